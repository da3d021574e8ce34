/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/bench_linear.c: a product as a case of `bench kernels`.
 *
 * Owns: its panels, activations and output. Never does: time. Called from: the measuring thread;
 * run() from the team.
 */
#include "engine/bench.h"

#include <math.h>
#include <string.h>

#include "device/host/host.h" /* how the host device cuts products */

enum {
    FEW_TOKENS = 64,     /* below: weights must come from memory */
    CHECKED_PANELS = 8,  /* compared with ref, spread over the weight */
    CHECKED_TOKENS = 16, /* likewise over the activations */
};

typedef struct linear {
    fm__bench_case base;
    const fm__type *type;
    fm__panel_layout layout;
    fm__act_layout act_layout;
    uint32_t panels;
    uint8_t *weights; /* (copies, panels), the pool's */
    size_t weight_bytes, copy_bytes;
    uint8_t *act; /* (tokens) rows */
    size_t act_bytes;
    uint8_t *prepared; /* of all tokens, for kernels that share them */
} linear;

/* ---- inputs: content of panels as a file could have given it ---- */

static uint8_t random_sub(fm__random *random, const fm__type *type) {
    uint8_t any = (uint8_t)(fm__random_next(random) >> 32);
    switch (fm__type_index(type)) {
    case FM__TYPE_Q4_K:
    case FM__TYPE_Q5_K:
        return any & 63;
    case FM__TYPE_Q3_K:
    case FM__TYPE_IQ4_XS:
        return (uint8_t)((any & 63) - 32);
    default:
        return any;
    }
}

static void fill_bytes(fm__random *random, uint8_t *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 8) { /* regions are multiples of 8 */
        uint64_t any = fm__random_next(random);
        memcpy(data + i, &any, 8);
    }
}

static void fill_floats(fm__random *random, const linear *l, uint8_t *panel) {
    float w[FM__PANEL_ROWS];
    for (size_t i = 0; i < l->base.k; i++) {
        fm__bench_normals(random, w, FM__PANEL_ROWS);
        for (size_t r = 0; r < FM__PANEL_ROWS; r++) {
            float value = w[r] * 0.05f;
            if (l->type->dtype == FM__F32) {
                memcpy(panel + (i * FM__PANEL_ROWS + r) * 4, &value, 4);
                continue;
            }
            uint16_t half =
                l->type->dtype == FM__F16 ? fm__f32_to_f16(value) : fm__f32_to_bf16(value);
            memcpy(panel + (i / 2 * 64) + r * 4 + i % 2 * 2, &half, 2);
        }
    }
}

static void fill_quantised(fm__random *random, const linear *l, uint8_t *panel) {
    size_t blocks = l->base.k / l->type->block, scales = blocks * FM__PANEL_ROWS;
    fill_bytes(random, panel + l->layout.codes, l->base.k / FM__CHUNK * l->layout.chunk_bytes);
    for (size_t i = 0; i < blocks * l->layout.sub_bytes; i++)
        panel[l->layout.sub + i] = random_sub(random, l->type);
    for (size_t i = 0; i < scales; i++) {
        float z[2];
        fm__bench_normals(random, z, 2);
        uint16_t d = fm__f32_to_f16(0.01f * z[0]), m = fm__f32_to_f16(0.01f * z[1]);
        float power = fm__bits_f32((uint32_t)(118 + (fm__random_next(random) >> 61)) << 23);
        if (l->type->d_is_f32)
            memcpy(panel + l->layout.d + i * 4, &power, 4);
        else
            memcpy(panel + l->layout.d + i * 2, &d, 2);
        if (l->type->has_min)
            memcpy(panel + l->layout.m + i * 2, &m, 2);
    }
}

static void fill_weights(fm__random *random, linear *l) {
    memset(l->weights, 0, l->copy_bytes);
    for (uint32_t p = 0; p < l->panels; p++) {
        uint8_t *panel = l->weights + p * l->layout.stride;
        if (l->type->quantised)
            fill_quantised(random, l, panel);
        else
            fill_floats(random, l, panel);
    }
    for (uint32_t c = 1; c < l->base.copies; c++)
        memcpy(l->weights + c * l->copy_bytes, l->weights, l->copy_bytes);
}

static fm_status fill_activations(fm__random *random, linear *l, fm_error *error) {
    fm__kernels ref;
    float *row = fm__alloc(l->base.k * sizeof *row);
    fm_status status = fm__kernels_get(&ref, "ref", error);
    if (row == NULL)
        status = fm__error_memory(error, "bench", l->base.k * sizeof *row);
    for (uint32_t t = 0; status == FM_OK && t < l->base.tokens; t++) {
        fm__bench_normals(random, row, l->base.k);
        if (!ref.quantise[l->type->act[l->base.fast]](row, l->base.k, &l->act_layout,
                                                      l->act + t * l->act_layout.stride))
            status = fm__error(error, FM_ERROR_NUMERIC, "bench", "ordinary numbers are refused");
    }
    fm__free(row);
    return status;
}

/* ---- running ---- */

static const fm__linear_kernel *kernel_of(const linear *l, const fm__kernels *kernels) {
    return &kernels->linear[fm__type_index(l->type)][l->base.fast];
}

static const char *kernel_name(const fm__bench_case *c, const fm__kernels *kernels) {
    const fm__linear_kernel *kernel = kernel_of((const linear *)c, kernels);
    return kernel->fn != NULL ? kernel->name : NULL;
}

/* The kernel wants the tokens prepared once, as the host device does it in a step of its own. */
static bool shares(const linear *l, const fm__kernels *kernels) {
    const fm__linear_shared *shared = kernel_of(l, kernels)->shared;
    return shared != NULL && shared->bytes(l->base.tokens, l->base.k) > 0;
}

static bool prepare(const fm__bench_case *c, const fm__kernels *kernels,
                    const fm__bench_part *part) {
    const linear *l = (const linear *)c;
    const fm__linear_shared *shared = kernel_of(l, kernels)->shared;
    if (!shares(l, kernels))
        return false;
    const fm__linear_args args = {.type = l->type,
                                  .layout = l->layout,
                                  .k = c->k,
                                  .act = l->act,
                                  .act_layout = l->act_layout,
                                  .tokens = c->tokens,
                                  .prepared = l->prepared,
                                  .prepared_tokens = c->tokens};
    const uint32_t units = shared->units(c->tokens, c->k);
    for (uint32_t unit; (unit = fm__bench_take(part)) < units;)
        shared->prepare(&args, unit);
    return true;
}

/* Panels [begin, end) of the copy x tokens [t, t + n) into their places of `out`. */
static void multiply(const linear *l, const fm__kernels *kernels, uint32_t copy, uint32_t begin,
                     uint32_t end, uint32_t t, uint32_t tokens, float *out, size_t stride,
                     void *scratch) {
    const fm__linear_args args = {
        .type = l->type,
        .layout = l->layout,
        .panels = l->weights + copy * l->copy_bytes + begin * l->layout.stride,
        .n = l->base.n - begin * FM__PANEL_ROWS,
        .k = l->base.k,
        .panel_begin = 0,
        .panel_end = end - begin,
        .act = l->act + t * l->act_layout.stride,
        .act_layout = l->act_layout,
        .tokens = tokens,
        .out = out,
        .out_stride = stride,
        .scratch = scratch,
        .asks = kernels->asks,
        .prepared = shares(l, kernels) ? l->prepared : NULL,
        .prepared_first = t,
        .prepared_tokens = l->base.tokens,
    };
    kernel_of(l, kernels)->fn(&args);
}

static void run(const fm__bench_case *c, const fm__kernels *kernels, const fm__bench_part *part) {
    const linear *l = (const linear *)c;
    const fm__linear_kernel *kernel = kernel_of(l, kernels);
    fm__host_cut cut =
        fm__host_cut_product(l->panels, c->tokens, l->layout.stride, kernel->tokens,
                             fm__host_panels(kernel, l->type, c->tokens), part->threads);
    fm__host_turn turn;
    while (turn = fm__host_cut_turn(&cut, fm__bench_take(part)), turn.panel_begin < turn.panel_end)
        multiply(l, kernels, part->iteration % c->copies, turn.panel_begin, turn.panel_end,
                 turn.token_begin, turn.token_end - turn.token_begin,
                 c->out + (size_t)turn.token_begin * c->n +
                     (size_t)turn.panel_begin * FM__PANEL_ROWS,
                 c->n, part->scratch);
}

/* ---- checking ---- */

static double activation(const linear *l, uint32_t token, size_t k) {
    const uint8_t *values = l->act + token * l->act_layout.stride + l->act_layout.values;
    float f;
    uint16_t half;
    if (l->type->act[l->base.fast] == FM__ACT_BF16) {
        memcpy(&half, values + k * 2, 2);
        return (double)fm__bf16_to_f32(half);
    }
    memcpy(&f, values + k * 4, 4);
    return (double)f;
}

/* |got - sum| as a part of (k + 8) * 2^-23 * (sum of magnitudes), the fast class's bound. */
static double error_of(const linear *l, const float *weights, uint32_t token, float got) {
    double sum = 0, magnitude = 0;
    for (size_t k = 0; k < l->base.k; k++) {
        double product = (double)weights[k] * activation(l, token, k);
        sum += product;
        magnitude += fabs(product);
    }
    double bound = (l->base.k + 8.0) * 0x1p-23 * magnitude + 0x1p-126;
    double error = fabs((double)got - sum) / bound;
    return error == error ? error : INFINITY;
}

/* One panel and one token: `expected` has room for a panel's rows. */
static void check_tile(const linear *l, const fm__kernels *ref, uint32_t panel, uint32_t token,
                       const float *weights, void *scratch, fm__bench_check *out) {
    float expected[FM__PANEL_ROWS] = {0};
    uint32_t row = panel * FM__PANEL_ROWS;
    uint32_t rows = l->base.n - row < FM__PANEL_ROWS ? l->base.n - row : FM__PANEL_ROWS;
    const float *got = l->base.out + (size_t)token * l->base.n + row;
    if (l->base.fast) {
        for (uint32_t r = 0; r < rows; r++)
            out->error =
                fmax(out->error, error_of(l, weights + r * (size_t)l->base.k, token, got[r]));
        out->good = out->good && out->error <= 1;
        return;
    }
    multiply(l, ref, 0, panel, panel + 1, token, 1, expected, FM__PANEL_ROWS, scratch);
    out->good = out->good && memcmp(expected, got, rows * sizeof *got) == 0;
}

/* The i-th of `n` numbers spread over [0, of), the first and the last among them. */
static uint32_t spread(uint32_t i, uint32_t n, uint32_t of) {
    return n > 1 ? (uint32_t)((uint64_t)i * (of - 1) / (n - 1)) : 0;
}

static fm_status check(const fm__bench_case *c, const fm__kernels *ref, fm__bench_check *out,
                       fm_error *error) {
    const linear *l = (const linear *)c;
    uint32_t panels = l->panels < CHECKED_PANELS ? l->panels : CHECKED_PANELS;
    uint32_t tokens = c->tokens < CHECKED_TOKENS ? c->tokens : CHECKED_TOKENS;
    void *scratch = fm__alloc(FM__LINEAR_SCRATCH);
    size_t bytes = (size_t)FM__PANEL_ROWS * c->k * sizeof(float);
    float *weights = fm__alloc(bytes);
    *out =
        (fm__bench_check){.of_rows = c->n, .tokens = tokens, .of_tokens = c->tokens, .good = true};
    fm_status status = FM_OK;
    if (scratch == NULL || weights == NULL)
        status = fm__error_memory(error, "bench", bytes);
    for (uint32_t p = 0; status == FM_OK && p < panels; p++) {
        uint32_t panel = spread(p, panels, l->panels);
        out->rows += c->n - panel * FM__PANEL_ROWS < FM__PANEL_ROWS ? c->n - panel * FM__PANEL_ROWS
                                                                    : FM__PANEL_ROWS;
        if (c->fast)
            fm__panel_decode(l->type, l->weights + panel * l->layout.stride, c->k, weights);
        for (uint32_t t = 0; t < tokens; t++)
            check_tile(l, ref, panel, spread(t, tokens, c->tokens), weights, scratch, out);
    }
    fm__free(weights);
    fm__free(scratch);
    return status;
}

/* ---- life ---- */

/* For prepared tokens: rungs below the best one share none. */
static fm_status make_room(linear *l, fm_error *error) {
    fm__kernels best;
    fm_status status = fm__kernels_get(&best, "auto", error);
    if (status != FM_OK || !shares(l, &best))
        return status;
    size_t bytes = kernel_of(l, &best)->shared->bytes(l->base.tokens, l->base.k);
    l->prepared = fm__alloc(bytes);
    return l->prepared != NULL ? FM_OK : fm__error_memory(error, "bench", bytes);
}

static void destroy(fm__bench_case *c) {
    linear *l = (linear *)c;
    fm__free(l->prepared);
    fm__free(l->act);
    fm__free(l->base.out);
    fm__free(l);
}

fm_status fm__bench_linear(fm__bench_case **out, const fm__type *type, bool fast, uint32_t n,
                           uint32_t k, uint32_t tokens, size_t cache_bytes, fm__bench_pool *pool,
                           fm__random *random, fm_error *error) {
    linear *l = fm__alloc_zero(sizeof *l);
    if (l == NULL)
        return fm__error_memory(error, "bench", sizeof *l);
    l->type = type;
    l->layout = fm__panel_layout_of(type, k);
    l->act_layout = fm__act_layout_of(type->act[fast], k);
    l->panels = (n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    l->copy_bytes = l->panels * l->layout.stride;
    fm__bench_case *c = &l->base;
    *c = (fm__bench_case){.op = "linear",
                          .type = type->name,
                          .fast = fast,
                          .n = n,
                          .k = k,
                          .tokens = tokens,
                          .inner = 1,
                          .ops = 2.0 * n * k * tokens,
                          .bytes = (double)l->copy_bytes,
                          .kernel = kernel_name,
                          .prepare = prepare,
                          .run = run,
                          .check = check,
                          .destroy = destroy};
    c->unit = type->quantised                        ? FM__BENCH_VNNI
              : fast && type->act[1] == FM__ACT_BF16 ? FM__BENCH_BF16
                                                     : FM__BENCH_FMA;
    c->copies = tokens < FEW_TOKENS ? fm__bench_copies(l->copy_bytes, cache_bytes) : 2;
    c->out_bytes = (size_t)tokens * n * sizeof(float);
    l->weight_bytes = c->copies * l->copy_bytes;
    l->act_bytes = tokens * l->act_layout.stride;
    l->weights = fm__bench_pool_get(pool, l->weight_bytes);
    l->act = fm__alloc_zero(l->act_bytes);
    c->out = fm__alloc_zero(c->out_bytes);
    fm_status status = FM_OK;
    if (l->weights == NULL || l->act == NULL || c->out == NULL)
        status = fm__error_memory(error, "bench", l->weight_bytes + l->act_bytes + c->out_bytes);
    if (status == FM_OK)
        status = make_room(l, error);
    if (status == FM_OK) {
        fill_weights(random, l);
        status = fill_activations(random, l, error);
    }
    if (status == FM_OK)
        *out = c;
    else
        destroy(c);
    return status;
}
