/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/bench_rows.c: the ops that work row by row as cases of `bench kernels`.
 *
 * Owns: its inputs and output. Never does: time. Called from: the measuring thread; run() from the
 * team.
 */
#include "engine/bench.h"

#include <string.h>

enum { SMALL = 256 }; /* rows that an iteration works through at least: a meeting costs 1 us */

typedef struct rows {
    fm__bench_case base;
    fm__bench_row_op op;
    uint32_t variant;
    uint32_t width, heads, dim; /* floats of an input row */
    float *a, *b;               /* (tokens, width); b of two-input ops only */
    float *weight;              /* (width), and for ROPE cos, sin: (tokens, dim / 2) each */
    fm__act_layout layout;      /* QUANTISE */
    fm__cache_group group;      /* KV_STORE: out is the cache's one layer */
    size_t out_stride;          /* bytes; 0: KV_STORE */
} rows;

/* Row t of the op into `out`, the whole output's beginning. */
static void do_row(const rows *r, const fm__kernels *kernels, uint32_t t, uint8_t *out) {
    const float *a = r->a + (size_t)t * r->width, *b = r->b + (size_t)t * r->width;
    uint8_t *to = out + t * r->out_stride;
    size_t half = r->dim / 2;
    switch (r->op) {
    case FM__BENCH_RMSNORM:
        kernels->rmsnorm(a, r->weight, 1e-6f, (float)(1.0 / r->width), r->width, (float *)to);
        break;
    case FM__BENCH_ROPE:
        kernels->rope((float *)to, r->heads, r->dim, r->dim, (fm__rope_style)r->variant,
                      r->weight + t * half, r->weight + (r->base.tokens + t) * half);
        break;
    case FM__BENCH_QUANTISE:
        kernels->quantise[r->variant](a, r->width, &r->layout, to);
        break;
    case FM__BENCH_GLU:
        kernels->glu[r->variant](a, b, r->width, (float *)to);
        break;
    case FM__BENCH_ADD:
        kernels->add(a, b, r->width, (float *)to);
        break;
    case FM__BENCH_KV_STORE:
        kernels->kv_store[r->group.type](&r->group, out, t / FM__PAGE_TOKENS, t % FM__PAGE_TOKENS,
                                         a, b);
        break;
    }
}

static void run(const fm__bench_case *c, const fm__kernels *kernels, const fm__bench_part *part) {
    const rows *r = (const rows *)c;
    uint32_t tasks = 4 * part->threads < c->tokens ? 4 * part->threads : c->tokens, i;
    while ((i = fm__bench_take(part)) < tasks) {
        uint32_t t = (uint32_t)((uint64_t)c->tokens * i / tasks);
        uint32_t end = (uint32_t)((uint64_t)c->tokens * (i + 1) / tasks);
        for (; t < end; t++)
            for (uint32_t j = 0; j < c->inner; j++)
                do_row(r, kernels, t, (uint8_t *)c->out);
    }
}

static void reset(const fm__bench_case *c) {
    const rows *r = (const rows *)c;
    if (r->op == FM__BENCH_ROPE)
        memcpy(c->out, r->a, c->out_bytes);
    else
        memset(c->out, 0, c->out_bytes);
}

static const char *kernel_name(const fm__bench_case *c, const fm__kernels *kernels) {
    const rows *r = (const rows *)c;
    const void *fn[] = {
        [FM__BENCH_RMSNORM] = (const void *)(uintptr_t)kernels->rmsnorm,
        [FM__BENCH_ROPE] = (const void *)(uintptr_t)kernels->rope,
        [FM__BENCH_QUANTISE] = NULL,
        [FM__BENCH_GLU] = NULL,
        [FM__BENCH_ADD] = (const void *)(uintptr_t)kernels->add,
        [FM__BENCH_KV_STORE] = NULL,
    };
    bool has = fn[r->op] != NULL;
    if (r->op == FM__BENCH_QUANTISE)
        has = kernels->quantise[r->variant] != NULL;
    if (r->op == FM__BENCH_GLU)
        has = kernels->glu[r->variant] != NULL;
    if (r->op == FM__BENCH_KV_STORE)
        has = kernels->kv_store[r->variant] != NULL;
    return has ? c->op : NULL;
}

static fm_status check(const fm__bench_case *c, const fm__kernels *ref, fm__bench_check *out,
                       fm_error *error) {
    const rows *r = (const rows *)c;
    uint8_t *expected = fm__alloc_zero(c->out_bytes);
    if (expected == NULL)
        return fm__error_memory(error, "bench", c->out_bytes);
    if (r->op == FM__BENCH_ROPE)
        memcpy(expected, r->a, c->out_bytes);
    for (uint32_t t = 0; t < c->tokens; t++)
        for (uint32_t j = 0; j < (r->op == FM__BENCH_ROPE ? c->inner : 1); j++)
            do_row(r, ref, t, expected);
    *out = (fm__bench_check){.rows = c->n,
                             .of_rows = c->n,
                             .tokens = c->tokens,
                             .of_tokens = c->tokens,
                             .good = memcmp(expected, c->out, c->out_bytes) == 0};
    fm__free(expected);
    return FM_OK;
}

static void destroy(fm__bench_case *c) {
    rows *r = (rows *)c;
    fm__free(r->a);
    fm__free(r->b);
    fm__free(r->weight);
    fm__free(r->base.out);
    fm__free(r);
}

/* Name, variant and sizes; bytes that a row reads and writes. */
static double describe(rows *r, const fm__bench_shape *shape) {
    static const char *const acts[FM__ACT_COUNT] = {
        [FM__ACT_F32] = "f32",   [FM__ACT_R13] = "r13",     [FM__ACT_R16] = "r16",
        [FM__ACT_BF16] = "bf16", [FM__ACT_Q8_32] = "q8_32", [FM__ACT_Q8_256] = "q8_256"};
    fm__bench_case *c = &r->base;
    r->width = shape->embd;
    c->type = "";
    switch (r->op) {
    case FM__BENCH_RMSNORM:
        c->op = "rmsnorm";
        return 8.0 * r->width;
    case FM__BENCH_ROPE:
        c->op = "rope";
        c->type = r->variant == FM__ROPE_PAIRS ? "pairs" : "halves";
        r->heads = shape->heads > 0 ? shape->heads : 1;
        r->dim = shape->heads > 0 ? shape->dim : shape->embd;
        r->width = r->heads * r->dim;
        return 8.0 * r->width;
    case FM__BENCH_QUANTISE:
        c->op = "quantise";
        c->type = acts[r->variant];
        r->layout = fm__act_layout_of((fm__act)r->variant, r->width);
        r->out_stride = r->layout.stride;
        return 4.0 * r->width + (double)r->layout.stride;
    case FM__BENCH_GLU:
        c->op = "glu";
        c->type = r->variant == FM__GLU_SILU ? "silu" : "gelu";
        r->width = shape->ffn;
        return 12.0 * r->width;
    case FM__BENCH_ADD:
        c->op = "add";
        return 12.0 * r->width;
    case FM__BENCH_KV_STORE:
        break;
    }
    c->op = "kv_store";
    c->type = fm__cache_type_name((fm__cache_type)r->variant);
    r->heads = shape->heads > 0 ? shape->kv_heads : 1;
    r->dim = shape->heads > 0 ? shape->dim : shape->embd;
    r->width = r->heads * r->dim;
    return 2 * 4.0 * r->width +
           r->heads * (double)fm__cache_head_bytes((fm__cache_type)r->variant, r->dim, r->dim) /
               FM__PAGE_TOKENS;
}

static void set_cache(rows *r) {
    r->group = (fm__cache_group){
        .n_layer = 1,
        .n_page = (r->base.tokens + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS,
        .n_kv_head = r->heads,
        .key_dim = r->dim,
        .value_dim = r->dim,
        .type = (fm__cache_type)r->variant,
        .head_bytes = fm__cache_head_bytes((fm__cache_type)r->variant, r->dim, r->dim),
    };
    r->group.bytes = r->group.n_page * r->group.n_kv_head * r->group.head_bytes;
    r->base.out_bytes = r->group.bytes;
    r->out_stride = 0;
}

fm_status fm__bench_rows(fm__bench_case **out, fm__bench_row_op op, uint32_t variant,
                         const fm__bench_shape *shape, uint32_t tokens, fm__random *random,
                         fm_error *error) {
    rows *r = fm__alloc_zero(sizeof *r);
    if (r == NULL)
        return fm__error_memory(error, "bench", sizeof *r);
    fm__bench_case *c = &r->base;
    r->op = op;
    r->variant = variant;
    *c = (fm__bench_case){.tokens = tokens,
                          .copies = 1,
                          .inner = tokens < SMALL ? SMALL / tokens : 1,
                          .kernel = kernel_name,
                          .run = run,
                          .check = check,
                          .reset = reset,
                          .destroy = destroy};
    c->bytes = describe(r, shape) * tokens;
    c->n = r->width;
    if (op != FM__BENCH_QUANTISE)
        r->out_stride = r->width * sizeof(float);
    c->out_bytes = tokens * r->out_stride;
    if (op == FM__BENCH_KV_STORE)
        set_cache(r);
    size_t floats = (size_t)tokens * r->width;
    r->a = fm__alloc(floats * sizeof(float));
    r->b = fm__alloc(floats * sizeof(float));
    r->weight = fm__alloc((floats + r->width) * sizeof(float));
    c->out = fm__alloc_zero(c->out_bytes);
    if (r->a == NULL || r->b == NULL || r->weight == NULL || c->out == NULL) {
        destroy(c);
        return fm__error_memory(error, "bench", 3 * floats * sizeof(float) + c->out_bytes);
    }
    fm__bench_normals(random, r->a, floats);
    fm__bench_normals(random, r->b, floats);
    fm__bench_normals(random, r->weight, floats + r->width);
    for (size_t i = 0; op == FM__BENCH_ROPE && i < (size_t)tokens * (r->dim / 2); i++) {
        double angle = 0.001 * (double)i;
        r->weight[i] = (float)fm__cos(angle);
        r->weight[(size_t)tokens * (r->dim / 2) + i] = (float)fm__sin(angle);
    }
    *out = c;
    return FM_OK;
}
