/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture.h: small weights, batches, caches and a two-layer tape, made from random numbers, for the
 * tests of tape, device and exec. Everything lives in one fixture and dies with it.
 */
#pragma once

#include "device/device.h"
#include "test.h"

/* Fails the test with the error's own words. */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        fm_error why_ = {0};                                                                       \
        fm_error *why = &why_;                                                                     \
        if ((call) != FM_OK)                                                                       \
            fail_msg("%s: %s", why_.place, why_.message);                                          \
    } while (0)

enum { FIXTURE_WEIGHTS = 64, FIXTURE_MEMORY = 128 };

typedef struct fixture {
    fm__random random;
    fm__weight *weights[FIXTURE_WEIGHTS];
    uint32_t n_weight;
    void *memory[FIXTURE_MEMORY]; /* freed at the end */
    uint32_t n_memory;
    fm__cache_group groups[1];
    fm__batch_view batch;
} fixture;

static inline void *fixture_alloc(fixture *f, size_t bytes) {
    assert_true(f->n_memory < FIXTURE_MEMORY);
    void *memory = fm__alloc_zero(bytes);
    assert_non_null(memory);
    return f->memory[f->n_memory++] = memory;
}

static inline void fixture_init(fixture *f, uint64_t seed) {
    memset(f, 0, sizeof *f);
    fm__random_seed(&f->random, seed);
}

static inline void fixture_finish(fixture *f) {
    while (f->n_memory > 0)
        fm__free(f->memory[--f->n_memory]);
}

static inline fm__weight *fixture_weight(fixture *f, const char *name, fm__role role, int16_t *id) {
    assert_true(f->n_weight < FIXTURE_WEIGHTS);
    fm__weight *w = fixture_alloc(f, sizeof *w);
    snprintf(w->name, sizeof w->name, "%s", name);
    w->role = role;
    w->groups = 1;
    *id = (int16_t)f->n_weight;
    f->weights[f->n_weight++] = w;
    return w;
}

/* Blocks of a file row: random codes, small scales. Types used here: F32, F16, Q8_0, Q4_K. */
static inline void fixture_blocks(fixture *f, const fm__type *type, uint8_t *out, size_t n) {
    for (size_t b = 0; b < n / type->block; b++, out += type->block_bytes) {
        for (size_t i = 0; i < type->block_bytes; i++)
            out[i] = (uint8_t)fm__random_next(&f->random);
        float value = 0.02f * fm__random_normal(&f->random);
        uint16_t d = fm__f32_to_f16(0.001f + value * value), min = fm__f32_to_f16(0.0005f);
        if (type->dtype == FM__F32)
            memcpy(out, &value, 4);
        else if (type->dtype == FM__F16)
            memcpy(out, &(uint16_t){fm__f32_to_f16(value)}, 2);
        else
            memcpy(out, &d, 2);
        if (type->dtype == FM__Q4_K)
            memcpy(out + 2, &min, 2);
    }
}

static inline int16_t fixture_linear(fixture *f, const char *name, fm__dtype dtype, uint32_t n,
                                     uint32_t k) {
    int16_t id;
    fm__weight *w = fixture_weight(f, name, FM__ROLE_LINEAR, &id);
    w->type = fm__type_get(dtype);
    w->n = n;
    w->k = k;
    w->layout = fm__panel_layout_of(w->type, k);
    w->panels = (n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    w->bytes = w->panels * w->layout.stride;
    uint8_t *panels = fixture_alloc(f, w->bytes);
    size_t row_bytes = (size_t)k / w->type->block * w->type->block_bytes;
    uint8_t *rows = fm__alloc(FM__PANEL_ROWS * row_bytes);
    assert_non_null(rows);
    for (uint32_t p = 0; p < w->panels; p++) {
        const void *row[FM__PANEL_ROWS];
        for (uint32_t r = 0; r < FM__PANEL_ROWS; r++) {
            row[r] = p * FM__PANEL_ROWS + r < n ? rows + r * row_bytes : NULL;
            fixture_blocks(f, w->type, rows + r * row_bytes, k);
        }
        w->type->pack(row, k, panels + p * w->layout.stride);
    }
    fm__free(rows);
    w->host = panels;
    return id;
}

static inline int16_t fixture_gather(fixture *f, const char *name, fm__dtype dtype, uint32_t n,
                                     uint32_t k) {
    int16_t id;
    fm__weight *w = fixture_weight(f, name, FM__ROLE_GATHER, &id);
    w->type = fm__type_get(dtype);
    w->n = n;
    w->k = k;
    w->row_bytes = (size_t)k / w->type->block * w->type->block_bytes;
    w->bytes = n * w->row_bytes;
    uint8_t *rows = fixture_alloc(f, w->bytes);
    fixture_blocks(f, w->type, rows, (size_t)n * k);
    w->host = rows;
    return id;
}

/* (rows, n) floats: around 1 when `near_one`, else around 0. */
static inline int16_t fixture_vector(fixture *f, const char *name, uint32_t rows, uint32_t n,
                                     bool near_one) {
    int16_t id;
    fm__weight *w = fixture_weight(f, name, FM__ROLE_VECTOR, &id);
    w->groups = rows;
    w->n = n;
    w->k = 1;
    w->bytes = (size_t)rows * n * 4;
    float *v = fixture_alloc(f, w->bytes);
    for (size_t i = 0; i < (size_t)rows * n; i++)
        v[i] = (near_one ? 1.0f : 0.0f) + 0.1f * fm__random_normal(&f->random);
    w->host = (const uint8_t *)v;
    return id;
}

/* A full cache group at offset 0, `n_page` pages. */
static inline void fixture_cache(fixture *f, uint32_t n_layer, uint32_t n_page, uint32_t n_kv_head,
                                 uint32_t dim, uint32_t window) {
    fm__cache_group *g = &f->groups[0];
    *g = (fm__cache_group){.n_layer = n_layer,
                           .n_page = n_page,
                           .n_kv_head = n_kv_head,
                           .key_dim = dim,
                           .value_dim = dim,
                           .window = window};
    g->head_bytes = (size_t)FM__PAGE_TOKENS * 2 * (g->key_dim + g->value_dim);
    g->bytes = (size_t)n_layer * n_page * n_kv_head * g->head_bytes;
}

/* n rows of one sequence at positions [first, first + n), tokens below `vocab`; pages in falling
   order; the last `outputs` rows want output. */
static inline void fixture_batch(fixture *f, uint32_t n, uint32_t first, uint32_t vocab,
                                 uint32_t outputs) {
    int32_t *token = fixture_alloc(f, n * 4);
    uint32_t *position = fixture_alloc(f, n * 4), *sequence = fixture_alloc(f, n * 4);
    uint32_t *output = fixture_alloc(f, outputs * 4 + 4), n_page = f->groups[0].n_page;
    uint32_t *pages = fixture_alloc(f, n_page * 4 + 4);
    const uint32_t **table = fixture_alloc(f, sizeof *table);
    for (uint32_t r = 0; r < n; r++) {
        token[r] = (int32_t)(fm__random_next(&f->random) % vocab);
        position[r] = first + r;
    }
    for (uint32_t p = 0; p < n_page; p++)
        pages[p] = n_page - 1 - p;
    for (uint32_t o = 0; o < outputs; o++)
        output[o] = n - outputs + o;
    table[0] = pages;
    f->batch = (fm__batch_view){.n_row = n,
                                .token = token,
                                .position = position,
                                .sequence = sequence,
                                .n_output = outputs,
                                .output_row = output,
                                .n_sequence = 1,
                                .pages = table,
                                .n_group = 1};
}

static inline fm__tape *fixture_tape(fixture *f, uint32_t max_rows, uint32_t max_outputs) {
    fm__tape *tape = NULL;
    assert_int_equal(fm__tape_create(&tape, max_rows, max_outputs, NULL), FM_OK);
    tape->weights = f->weights;
    tape->n_weight = f->n_weight;
    tape->groups = f->groups;
    tape->n_group = f->groups[0].n_layer > 0 ? 1 : 0;
    return tape;
}

/* ---- a two-layer model: every op kind, biases, in-place and apart residuals ---- */

enum {
    MODEL_VOCAB = 77,
    MODEL_EMBD = 256,
    MODEL_FF = 512,
    MODEL_HEADS = 8,
    MODEL_KV = 2,
    MODEL_DIM = 32,
    MODEL_LAYERS = 2,
    MODEL_POSITIONS = 320,
};

typedef struct model_layer {
    int16_t norm, q, k, v, q_bias, o, ffn_norm, gate, up, down;
} model_layer;

typedef struct model {
    fixture f;
    int16_t embed, cos, sin, output_norm, output;
    model_layer layers[MODEL_LAYERS];
    fm__tape *tape;
    int16_t quantised, act; /* the last tensor that was quantised, + 1, and as what */
} model;

static inline int16_t model_tensor(model *m, const char *name, fm__act act, uint32_t cols,
                                   fm__rows rows, fm__slot slot) {
    return fm__tape_tensor(m->tape, name, act, cols, rows, slot);
}

static inline int16_t model_product(model *m, int layer, int16_t in, int16_t weight, int16_t out,
                                    int16_t residual, int16_t bias, int16_t up) {
    const fm__weight *w = m->f.weights[weight];
    fm__rows rows = m->tape->tensors[in].rows;
    int16_t act = in;
    bool there = m->quantised == in + 1 && m->tape->tensors[m->act].act == w->type->act[0];
    if (there) {
        act = m->act;
    } else if (w->type->act[0] != FM__ACT_F32) {
        act = model_tensor(m, "act", w->type->act[0], w->k, rows, FM__SLOT_SCRATCH);
        fm__op *q = fm__tape_op(m->tape, FM__OP_QUANTISE, layer);
        q->in[0] = in;
        q->out = m->act = act;
        m->quantised = (int16_t)(in + 1);
    }
    fm__op *op = fm__tape_op(m->tape, up == FM__NONE ? FM__OP_LINEAR : FM__OP_LINEAR_GLU, layer);
    op->in[0] = act;
    op->in[1] = residual;
    op->out = out;
    op->weight[0] = weight;
    op->weight[1] = up;
    op->bias = bias;
    return out;
}

static inline int16_t model_norm(model *m, int layer, int16_t in, int16_t weight, int16_t out) {
    fm__op *op = fm__tape_op(m->tape, FM__OP_RMSNORM, layer);
    op->in[0] = in;
    op->out = out;
    op->weight[0] = weight;
    op->group = MODEL_EMBD;
    op->eps = 1e-5f;
    return out;
}

static inline void model_rope(model *m, int layer, int16_t x, uint32_t heads) {
    fm__op *op = fm__tape_op(m->tape, FM__OP_ROPE, layer);
    op->out = x;
    op->weight[0] = m->cos;
    op->weight[1] = m->sin;
    op->heads = heads;
    op->head_dim = op->rotary = MODEL_DIM;
    op->rope = layer == 0 ? FM__ROPE_PAIRS : FM__ROPE_HALVES;
}

static inline void model_layer_ops(model *m, int i, int16_t x) {
    const model_layer *l = &m->layers[i];
    fm__rows R = FM__ROWS_BATCH;
    fm__slot S = FM__SLOT_SCRATCH;
    uint32_t q_cols = MODEL_HEADS * MODEL_DIM, kv_cols = MODEL_KV * MODEL_DIM;
    int16_t h = model_norm(m, i, x, l->norm, model_tensor(m, "h", FM__ACT_F32, MODEL_EMBD, R, S));
    int16_t q = model_tensor(m, "q", FM__ACT_F32, q_cols, R, S);
    int16_t k = model_tensor(m, "k", FM__ACT_F32, kv_cols, R, S);
    int16_t v = model_tensor(m, "v", FM__ACT_F32, kv_cols, R, S);
    model_product(m, i, h, l->q, q, FM__NONE, l->q_bias, FM__NONE);
    model_product(m, i, h, l->k, k, FM__NONE, FM__NONE, FM__NONE);
    model_product(m, i, h, l->v, v, FM__NONE, FM__NONE, FM__NONE);
    model_rope(m, i, q, MODEL_HEADS);
    model_rope(m, i, k, MODEL_KV);
    fm__op *store = fm__tape_op(m->tape, FM__OP_KV_STORE, i);
    store->in[0] = k;
    store->in[1] = v;
    store->cache_layer = (uint32_t)i;
    int16_t a = model_tensor(m, "attn", FM__ACT_F32, q_cols, R, S);
    fm__op *attention = fm__tape_op(m->tape, FM__OP_ATTENTION, i);
    attention->in[0] = q;
    attention->out = a;
    attention->heads = MODEL_HEADS;
    attention->cache_layer = (uint32_t)i;
    attention->scale = 0.1767767f;
    model_product(m, i, a, l->o, x, x, FM__NONE, FM__NONE);
    int16_t g = model_norm(m, i, x, l->ffn_norm,
                           model_tensor(m, "ffn_norm", FM__ACT_F32, MODEL_EMBD, R, S));
    int16_t ffn = model_tensor(m, "ffn", FM__ACT_F32, MODEL_FF, R, S);
    model_product(m, i, g, l->gate, ffn, FM__NONE, FM__NONE, l->up);
    model_product(m, i, ffn, l->down, x, x, FM__NONE, FM__NONE);
}

static inline void model_weights(model *m, fm__dtype a, fm__dtype b) {
    fixture *f = &m->f;
    m->embed = fixture_gather(f, "token_embd.weight", FM__Q8_0, MODEL_VOCAB, MODEL_EMBD);
    m->cos = fixture_vector(f, "cos", MODEL_POSITIONS, MODEL_DIM / 2, true);
    m->sin = fixture_vector(f, "sin", MODEL_POSITIONS, MODEL_DIM / 2, false);
    for (int i = 0; i < MODEL_LAYERS; i++) {
        fm__dtype t = i == 0 ? a : b;
        uint32_t q = MODEL_HEADS * MODEL_DIM, kv = MODEL_KV * MODEL_DIM;
        m->layers[i] = (model_layer){
            .norm = fixture_vector(f, "norm", 1, MODEL_EMBD, true),
            .q = fixture_linear(f, i == 0 ? "blk.0.attn_q.weight" : "blk.1.attn_q.weight", t, q,
                                MODEL_EMBD),
            .k = fixture_linear(f, "attn_k.weight", t, kv, MODEL_EMBD),
            .v = fixture_linear(f, "attn_v.weight", t, kv, MODEL_EMBD),
            .q_bias = fixture_vector(f, "attn_q.bias", 1, q, false),
            .o = fixture_linear(f, "attn_output.weight", t, MODEL_EMBD, q),
            .ffn_norm = fixture_vector(f, "ffn_norm", 1, MODEL_EMBD, true),
            .gate = fixture_linear(f, "ffn_gate.weight", t, MODEL_FF, MODEL_EMBD),
            .up = fixture_linear(f, "ffn_up.weight", t, MODEL_FF, MODEL_EMBD),
            .down = fixture_linear(f, "ffn_down.weight", t, MODEL_EMBD, MODEL_FF),
        };
    }
    m->output_norm = fixture_vector(f, "output_norm.weight", 1, MODEL_EMBD, true);
    m->output = fixture_linear(f, "output.weight", b, MODEL_VOCAB, MODEL_EMBD);
}

/* Layer 0 has weights of type a, layer 1 and the output of type b. */
static inline void model_init(model *m, fm__dtype a, fm__dtype b, uint32_t max_rows,
                              uint32_t max_outputs) {
    memset(m, 0, sizeof *m);
    fixture_init(&m->f, 7);
    fixture_cache(&m->f, MODEL_LAYERS, 5, MODEL_KV, MODEL_DIM, 0);
    model_weights(m, a, b);
    m->tape = fixture_tape(&m->f, max_rows, max_outputs);
    int16_t x = model_tensor(m, "x", FM__ACT_F32, MODEL_EMBD, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *embed = fm__tape_op(m->tape, FM__OP_EMBED, FM__NONE);
    embed->out = x;
    embed->weight[0] = m->embed;
    for (int i = 0; i < MODEL_LAYERS; i++)
        model_layer_ops(m, i, x);
    fm__rows O = FM__ROWS_OUTPUT;
    int16_t chosen = model_tensor(m, "selected", FM__ACT_F32, MODEL_EMBD, O, FM__SLOT_SCRATCH);
    fm__op *select = fm__tape_op(m->tape, FM__OP_SELECT, FM__NONE);
    select->in[0] = x;
    select->out = chosen;
    m->tape->hidden =
        model_norm(m, FM__NONE, chosen, m->output_norm,
                   model_tensor(m, "hidden", FM__ACT_F32, MODEL_EMBD, O, FM__SLOT_OUTPUT));
    m->tape->logits =
        model_product(m, FM__NONE, m->tape->hidden, m->output,
                      model_tensor(m, "logits", FM__ACT_F32, MODEL_VOCAB, O, FM__SLOT_OUTPUT),
                      FM__NONE, FM__NONE, FM__NONE);
    CHECK(fm__tape_finish(m->tape, why));
}

static inline void model_finish(model *m) {
    fm__tape_destroy(&m->tape);
    fixture_finish(&m->f);
}

/* ---- buffers of a run ---- */

static inline void run_init(fm__run *run, fm__run_status *status, const fixture *f,
                            const fm__tape *tape, fm__device *device) {
    size_t bytes[FM__SLOT_COUNT] = {tape->scratch_bytes, tape->output_bytes, f->groups[0].bytes};
    memset(run, 0, sizeof *run);
    fm__run_status_clear(status);
    run->batch = &f->batch;
    run->status = status;
    for (int s = 0; s < FM__SLOT_COUNT; s++)
        if (bytes[s] > 0)
            assert_int_equal(fm__device_buffer_create(device, bytes[s], FM__MEMORY_LOCAL,
                                                      &run->buffers[s], NULL),
                             FM_OK);
}

static inline void run_finish(fm__run *run) {
    for (int s = 0; s < FM__SLOT_COUNT; s++)
        fm__device_buffer_destroy(&run->buffers[s]);
}
