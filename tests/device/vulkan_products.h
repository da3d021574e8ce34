/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan_products.h: one product on the vulkan device against ref: its inputs, its tape, a run of a
 * range, and the comparison of every float of `out`, those outside the range included.
 */
#pragma once

#include "device/vulkan/vulkan.h"
#include "fixture.h"
#include "kernels/kernels.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define UNTOUCHED 12345.678f

static fm__vulkan *gpu;
static fm__device *device;
static fm__kernels ref;

/* ---- one product ---- */

typedef enum follow { PLAIN, BIAS, RESIDUAL, BIAS_IN_PLACE, SILU, GELU, FOLLOW_COUNT } follow;

typedef struct product {
    fixture f;
    const fm__type *type;
    bool fast;
    follow follow;
    uint32_t n, k, bound;
    fm__weight *weights[2], *bias;
    uint32_t n_matrix;
    fm__buffer *buffers[3];
    fm__tape *tape;
    int16_t in, add, out;
    uint32_t op; /* the product */
    fm__run run;
    fm__run_status status;
    uint8_t *scratch; /* what the scratch slot holds before a run */
    float *expected;  /* (bound, n) */
    float *magnitude; /* (bound, n): sums of |w * x|, of fast products; else NULL */
} product;

static inline fm__buffer *upload(const void *bytes, size_t n, fm__weight *weight) {
    fm__buffer *buffer = NULL;
    CHECK(fm__device_buffer_create(device, n, FM__MEMORY_LOCAL, &buffer, why));
    CHECK(fm__device_buffer_write(buffer, 0, bytes, n, why));
    weight->ranges[weight->n_ranges++] = (fm__weight_range){
        .residency = FM__RESIDENCY_RESIDENT, .panel_end = weight->panels, .buffer = buffer};
    return buffer;
}

static inline int16_t matrix(product *p, int which, test_weight kind) {
    int16_t id;
    fm__weight *w = fixture_weight(&p->f, which == 0 ? "gate" : "up", FM__ROLE_LINEAR, &id);
    w->type = p->type;
    w->n = p->n;
    w->k = p->k;
    w->layout = fm__panel_layout_of(w->type, p->k);
    w->panels = (p->n + 15) / 16;
    w->bytes = w->panels * w->layout.stride;
    uint8_t *panels = fixture_alloc(&p->f, w->bytes);
    for (uint32_t i = 0; i < w->panels; i++) /* panels of a tile are unlike */
        test_panels_fill(&p->f.random, w->type, (test_weight)((kind + i) % TEST_WEIGHT_COUNT), p->k,
                         1, panels + i * w->layout.stride);
    w->host = panels;
    p->buffers[which] = upload(panels, w->bytes, w);
    p->weights[which] = w;
    return id;
}

/* A tensor that an op before the product writes, as tapes must have it; those ops are never run:
   the test puts the rows there itself. */
static inline int16_t written(product *p, const char *name, fm__act act, uint32_t cols) {
    int16_t table = fixture_gather(&p->f, "table", FM__F32, 1, cols), x;
    x = fm__tape_tensor(p->tape, name, FM__ACT_F32, cols, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(p->tape, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = table;
    if (act == FM__ACT_F32)
        return x;
    op = fm__tape_op(p->tape, FM__OP_QUANTISE, FM__NONE);
    op->in[0] = x;
    op->out = fm__tape_tensor(p->tape, name, act, cols, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    return op->out;
}

static inline void make_tape(product *p, test_weight kind) {
    bool glu = p->follow == SILU || p->follow == GELU, in_place = p->follow == BIAS_IN_PLACE;
    p->n_matrix = glu ? 2 : 1;
    int16_t gate = matrix(p, 0, kind), up = glu ? matrix(p, 1, kind) : FM__NONE, bias = FM__NONE;
    if (p->follow == BIAS || in_place) {
        bias = fixture_vector(&p->f, "bias", 1, p->n, false);
        p->bias = p->f.weights[bias];
        p->buffers[2] = upload(p->bias->host, p->bias->bytes, p->bias);
    }
    fm__tape *t = p->tape = fixture_tape(&p->f, p->bound, 0);
    p->in = written(p, "in", p->type->act[p->fast], p->k);
    if (in_place || p->follow == RESIDUAL)
        p->add = written(p, "add", FM__ACT_F32, p->n);
    p->out = in_place
                 ? p->add
                 : fm__tape_tensor(t, "out", FM__ACT_F32, p->n, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    t->n_weight = p->f.n_weight;
    p->op = t->n_op;
    fm__op *op = fm__tape_op(t, glu ? FM__OP_LINEAR_GLU : FM__OP_LINEAR, FM__NONE);
    op->in[0] = p->in;
    op->in[1] = p->add;
    op->out = p->out;
    op->weight[0] = gate;
    op->weight[1] = up;
    op->bias = bias;
    op->fast = p->fast;
    op->glu = p->follow == GELU ? FM__GLU_GELU : FM__GLU_SILU;
    CHECK(fm__tape_finish(t, why));
}

static inline uint8_t *row_of(const product *p, uint8_t *scratch, int16_t tensor, uint32_t row) {
    const fm__tensor *t = &p->tape->tensors[tensor];
    return scratch + t->offset + row * t->layout.stride;
}

static inline void fill_scratch(product *p, test_row kind) {
    size_t bytes = p->tape->scratch_bytes;
    p->scratch = fixture_alloc(&p->f, bytes);
    for (size_t i = 0; i < bytes / 4; i++)
        ((float *)p->scratch)[i] = UNTOUCHED;
    const fm__tensor *in = &p->tape->tensors[p->in];
    float *x = fixture_alloc(&p->f, p->k * sizeof(float));
    for (uint32_t t = 0; t < p->bound; t++) {
        test_row_fill(&p->f.random, (test_row)((kind + t) % TEST_ROW_COUNT), x, p->k);
        assert_true(ref.quantise[in->act](x, p->k, &in->layout, row_of(p, p->scratch, p->in, t)));
        if (p->add == FM__NONE)
            continue;
        float *add = (float *)row_of(p, p->scratch, p->add, t);
        for (uint32_t i = 0; i < p->n; i++)
            add[i] = test_normal(&p->f.random);
    }
}

static inline void multiply(const product *p, const uint8_t *panels, const uint8_t *act,
                            float *out) {
    void *scratch = fm__alloc(FM__LINEAR_SCRATCH);
    assert_non_null(scratch);
    const fm__tensor *in = &p->tape->tensors[p->in];
    const fm__linear_args args = {.type = p->type,
                                  .layout = p->weights[0]->layout,
                                  .panels = panels,
                                  .n = p->n,
                                  .k = p->k,
                                  .panel_end = p->weights[0]->panels,
                                  .act = act,
                                  .act_layout = in->layout,
                                  .tokens = p->bound,
                                  .out = out,
                                  .out_stride = p->n,
                                  .scratch = scratch};
    ref.linear[fm__type_index(p->type)][p->fast].fn(&args);
    fm__free(scratch);
}

/* The same product of magnitudes. */
static inline void compute_magnitude(product *p) {
    const fm__weight *w = p->weights[0];
    const fm__tensor *in = &p->tape->tensors[p->in];
    size_t bytes = p->bound * in->layout.stride;
    uint32_t *panels = fixture_alloc(&p->f, w->bytes), *act = fixture_alloc(&p->f, bytes);
    memcpy(panels, w->host, w->bytes);
    memcpy(act, row_of(p, p->scratch, p->in, 0), bytes);
    for (size_t i = 0; i < w->bytes / 4; i++)
        panels[i] &= w->type->code_bits == 16 ? 0x7FFF7FFFu : 0x7FFFFFFFu;
    for (size_t i = 0; i < bytes / 4; i++)
        act[i] &= in->act == FM__ACT_BF16 ? 0x7FFF7FFFu : 0x7FFFFFFFu;
    p->magnitude = fixture_alloc(&p->f, (size_t)p->bound * p->n * sizeof(float));
    multiply(p, (uint8_t *)panels, (uint8_t *)act, p->magnitude);
}

static inline void compute_expected(product *p) {
    size_t count = (size_t)p->bound * p->n;
    const uint8_t *act = row_of(p, p->scratch, p->in, 0);
    p->expected = fixture_alloc(&p->f, count * sizeof(float));
    multiply(p, p->weights[0]->host, act, p->expected);
    if (p->fast)
        compute_magnitude(p);
    if (p->n_matrix == 2) {
        float *up = fixture_alloc(&p->f, count * sizeof(float));
        multiply(p, p->weights[1]->host, act, up);
        ref.glu[p->follow == GELU ? FM__GLU_GELU : FM__GLU_SILU](p->expected, up, count,
                                                                 p->expected);
    }
    for (uint32_t t = 0; t < p->bound; t++) {
        float *row = p->expected + (size_t)t * p->n;
        if (p->bias != NULL)
            ref.add(row, (const float *)p->bias->host, p->n, row);
        if (p->add != FM__NONE)
            ref.add(row, (const float *)row_of(p, p->scratch, p->add, t), p->n, row);
    }
}

typedef struct shape {
    const fm__type *type;
    uint32_t n, k, bound;
    follow follow;
    bool fast;
} shape;

static inline void product_init(product *p, const shape *s, uint64_t seed) {
    memset(p, 0, sizeof *p);
    fixture_init(&p->f, seed);
    fixture_batch(&p->f, s->bound, 0, 1, 0);
    p->type = s->type;
    p->n = s->n;
    p->k = s->k;
    p->bound = s->bound;
    p->follow = s->follow;
    p->fast = s->fast;
    p->add = FM__NONE;
    make_tape(p, (test_weight)(seed % TEST_WEIGHT_COUNT));
    fill_scratch(p, (test_row)(seed / 3 % TEST_ROW_COUNT));
    compute_expected(p);
    run_init(&p->run, &p->status, &p->f, p->tape, device);
}

static inline void product_finish(product *p) {
    run_finish(&p->run);
    fm__tape_destroy(&p->tape);
    for (size_t i = 0; i < COUNT(p->buffers); i++)
        fm__device_buffer_destroy(&p->buffers[i]);
    fixture_finish(&p->f);
}

/* ---- running it ---- */

static inline void execute(product *p, const fm__op_range *range) {
    fm__recording *recording = NULL;
    fm__timeline done;
    CHECK(fm__timeline_create(&done, &device, 1, 0, why));
    fm__op_range own = *range;
    own.op = p->op;
    CHECK(fm__device_record(device, p->tape, &own, 1, &recording, why));
    const fm__segment segment = {.recording = recording, .signal = &done, .signal_value = 1};
    CHECK(fm__device_submit(device, &segment, 1, &p->run, 0, why));
    assert_true(fm__timeline_wait(&done, 1));
    CHECK(fm__device_run_finish(device, p->tape, &p->run, why));
    fm__device_recording_destroy(&recording);
    fm__timeline_finish(&done);
}

typedef struct area {
    uint32_t rows, columns, row, column; /* ends, begins */
} area;

/* The same bits, or as near as the fast class has it (ref errs as much), and a bias behind it. */
static inline bool is_right(const product *p, size_t at, float got, float want) {
    if (test_same(got, want))
        return true;
    if (p->magnitude == NULL)
        return false;
    float bound = 2 * ((float)p->k + 8) * 0x1p-23f * p->magnitude[at] + 0x1p-22f * fabsf(want);
    return fabsf(got - want) <= bound ||
           !(p->magnitude[at] < 0x1p120f); /* may overflow on the way */
}

static inline void compare(const product *p, uint8_t *scratch, const area *a, const char *what) {
    const fm__tensor *out = &p->tape->tensors[p->out];
    for (uint32_t t = 0; t < p->bound; t++)
        for (uint32_t i = 0; i < out->layout.stride / 4; i++) {
            bool ours = t >= a->row && t < a->rows && i >= a->column && i < a->columns;
            float got = ((float *)row_of(p, scratch, p->out, t))[i];
            float want = ours ? p->expected[(size_t)t * p->n + i]
                              : ((float *)row_of(p, p->scratch, p->out, t))[i];
            if (ours ? !is_right(p, (size_t)t * p->n + i, got, want) : !test_same(got, want))
                fail_msg("%s %s n %u k %u bound %u follow %d: row %u column %u of %u-%u x %u-%u is "
                         "%a (%08x), want %a (%08x)",
                         what, p->type->name, p->n, p->k, p->bound, (int)p->follow, t, i, a->row,
                         a->rows, a->column, a->columns, (double)got, fm__f32_bits(got),
                         (double)want, fm__f32_bits(want));
        }
}

/* Runs `rows` rows of the range and looks at every float of `out`. */
static inline void check_range(product *p, uint32_t rows, const fm__op_range *range) {
    const char *reason = "";
    if (!fm__device_op_supports(device, p->tape, &p->tape->ops[p->op], &reason))
        fail_msg("%s: %s", p->type->name, reason);
    size_t bytes = p->tape->scratch_bytes;
    fm__buffer *buffer = p->run.buffers[FM__SLOT_SCRATCH];
    p->f.batch.n_row = rows;
    CHECK(fm__device_buffer_write(buffer, 0, p->scratch, bytes, why));
    execute(p, range);
    uint8_t *after = fm__alloc(bytes);
    assert_non_null(after);
    CHECK(fm__device_buffer_read(buffer, 0, after, bytes, why));
    area a = {.rows = rows, .columns = p->n};
    if (range->axis == FM__AXIS_CHANNELS) {
        a.column = range->begin;
        a.columns = range->end;
    } else if (range->axis == FM__AXIS_TOKENS) {
        a.row = fm__token_border(rows, range->begin);
        a.rows = fm__token_border(rows, range->end);
    }
    compare(p, after, &a, fm__device_op_kernel(device, p->tape, &p->tape->ops[p->op]));
    fm__free(after);
}

static const fm__op_range WHOLE = {.axis = FM__AXIS_WHOLE, .tensor = FM__NONE};

static inline void check_shape(const shape *s, uint32_t rows, uint64_t seed) {
    product p;
    product_init(&p, s, seed);
    check_range(&p, rows, &WHOLE);
    product_finish(&p);
}

static inline int setup(void **state) {
    (void)state;
    const fm__vulkan_options options = {.allow_software = true, .cache_dir = ""};
    CHECK(fm__device_vulkan_create(&device, &options, why));
    gpu = (fm__vulkan *)device;
    fm__kernels_fill_ref(&ref);
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    fm__device_destroy(&device);
    return 0;
}
