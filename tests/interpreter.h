/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interpreter.h: runs a tape on one thread with the reference kernels, op by op, each in one call
 * over everything: what every device, team and split must equal bit for bit.
 */
#pragma once

#include "cpu/cpu.h"
#include "fixture.h"

typedef struct interpreter {
    fm__kernels kernels;
    uint8_t *slots[FM__SLOT_COUNT];
    bool failed; /* a quantise op refused a row */
} interpreter;

static inline void interpreter_init(interpreter *in, const fixture *f, const fm__tape *tape) {
    memset(in, 0, sizeof *in);
    CHECK(fm__kernels_get(&in->kernels, "ref", why));
    size_t bytes[FM__SLOT_COUNT] = {tape->scratch_bytes, tape->output_bytes, f->groups[0].bytes};
    for (int s = 0; s < FM__SLOT_COUNT; s++)
        assert_non_null(in->slots[s] = fm__alloc_zero(bytes[s]));
}

static inline void interpreter_finish(interpreter *in) {
    for (int s = 0; s < FM__SLOT_COUNT; s++)
        fm__free(in->slots[s]);
}

static inline void *interpreter_row(const interpreter *in, const fm__tape *tape, int16_t id,
                                    uint32_t row) {
    const fm__tensor *t = &tape->tensors[id];
    return in->slots[t->slot] + t->offset + row * t->layout.stride;
}

/* (rows, n) = in[0] . weight[which]^T; the caller frees it. */
static inline float *interpreter_product(interpreter *in, const fm__tape *tape, const fm__op *op,
                                         int which, uint32_t rows) {
    const fm__weight *w = tape->weights[op->weight[which]];
    float *out = fm__alloc_zero((size_t)rows * w->n * 4 + 4);
    void *scratch = fm__alloc(FM__LINEAR_SCRATCH);
    assert_true(out != NULL && scratch != NULL);
    const fm__linear_args args = {
        .type = w->type,
        .layout = w->layout,
        .panels = w->host,
        .n = w->n,
        .k = w->k,
        .panel_end = w->panels,
        .act = interpreter_row(in, tape, op->in[0], 0),
        .act_layout = tape->tensors[op->in[0]].layout,
        .tokens = rows,
        .out = out,
        .out_stride = w->n,
        .scratch = scratch,
    };
    in->kernels.linear[fm__type_index(w->type)][op->fast].fn(&args);
    fm__free(scratch);
    return out;
}

static inline void interpreter_linear(interpreter *in, const fm__tape *tape, const fm__op *op,
                                      uint32_t rows) {
    uint32_t n = tape->weights[op->weight[0]]->n;
    float *product = interpreter_product(in, tape, op, 0, rows);
    const float *bias = op->bias != FM__NONE ? (const float *)tape->weights[op->bias]->host : NULL;
    for (uint32_t r = 0; r < rows; r++) {
        float *out = interpreter_row(in, tape, op->out, r);
        const float *residual =
            op->in[1] != FM__NONE ? interpreter_row(in, tape, op->in[1], r) : NULL;
        for (uint32_t c = 0; c < n; c++) {
            float x = product[(size_t)r * n + c];
            if (bias != NULL)
                x = x + bias[c];
            if (residual != NULL)
                x = x + residual[c];
            out[c] = x;
        }
    }
    fm__free(product);
}

static inline void interpreter_glu(interpreter *in, const fm__tape *tape, const fm__op *op,
                                   uint32_t rows) {
    uint32_t n = tape->weights[op->weight[0]]->n;
    float *gate = interpreter_product(in, tape, op, 0, rows);
    float *up = interpreter_product(in, tape, op, 1, rows);
    for (uint32_t r = 0; r < rows; r++)
        in->kernels.glu[op->glu](gate + (size_t)r * n, up + (size_t)r * n, n,
                                 interpreter_row(in, tape, op->out, r));
    fm__free(up);
    fm__free(gate);
}

static inline void interpreter_attention(interpreter *in, const fm__tape *tape, const fm__op *op,
                                         const fm__batch_view *batch) {
    const fm__cache_group *g = &tape->groups[op->cache_group];
    void *scratch = fm__alloc(FM__ATTENTION_SCRATCH);
    assert_non_null(scratch);
    const fm__attention_args args = {
        .group = g,
        .layer_base = in->slots[FM__SLOT_CACHE] + fm__cache_offset(g, op->cache_layer, 0, 0),
        .batch = batch,
        .group_index = op->cache_group,
        .heads = op->heads,
        .scale = op->scale,
        .q = interpreter_row(in, tape, op->in[0], 0),
        .q_stride = tape->tensors[op->in[0]].layout.stride,
        .out = interpreter_row(in, tape, op->out, 0),
        .out_stride = tape->tensors[op->out].layout.stride,
        .row_end = batch->n_row,
        .kv_end = g->n_kv_head,
        .scratch = scratch,
    };
    in->kernels.attention[g->type](&args);
    fm__free(scratch);
}

static inline void interpreter_row_op(interpreter *in, const fm__tape *tape, const fm__op *op,
                                      const fm__batch_view *batch, uint32_t r) {
    const fm__weight *w = op->weight[0] != FM__NONE ? tape->weights[op->weight[0]] : NULL;
    void *out = op->out != FM__NONE ? interpreter_row(in, tape, op->out, r) : NULL;
    uint32_t source = op->kind == FM__OP_SELECT ? batch->output_row[r] : r;
    const void *x = op->in[0] != FM__NONE ? interpreter_row(in, tape, op->in[0], source) : NULL;
    const fm__cache_group *g = &tape->groups[op->cache_group];
    size_t table = (size_t)batch->position[r] * (op->rotary / 2);
    switch (op->kind) {
    case FM__OP_EMBED:
        w->type->decode(w->host + (size_t)batch->token[r] * w->row_bytes, out, w->k);
        break;
    case FM__OP_RMSNORM:
        for (uint32_t c = 0; c < tape->tensors[op->out].cols; c += op->group)
            in->kernels.rmsnorm((const float *)x + c, (const float *)w->host, op->eps,
                                (float)(1.0 / op->group), op->group, (float *)out + c);
        break;
    case FM__OP_QUANTISE:
        if (!in->kernels.quantise[tape->tensors[op->out].act](x, tape->tensors[op->out].cols,
                                                              &tape->tensors[op->out].layout, out))
            in->failed = true;
        break;
    case FM__OP_GLU:
        in->kernels.glu[op->glu](x, interpreter_row(in, tape, op->in[1], r),
                                 tape->tensors[op->out].cols, out);
        break;
    case FM__OP_ROPE:
        in->kernels.rope(out, op->heads, op->head_dim, op->rotary, op->rope,
                         (const float *)w->host + table,
                         (const float *)tape->weights[op->weight[1]]->host + table);
        break;
    case FM__OP_KV_STORE:
        in->kernels.kv_store[g->type](
            g, in->slots[FM__SLOT_CACHE] + fm__cache_offset(g, op->cache_layer, 0, 0),
            batch->pages[batch->sequence[r] * batch->n_group + op->cache_group]
                        [batch->position[r] / FM__PAGE_TOKENS],
            batch->position[r] % FM__PAGE_TOKENS, x, interpreter_row(in, tape, op->in[1], r));
        break;
    default:
        memcpy(out, x, (size_t)tape->tensors[op->out].cols * 4);
        break;
    }
}

static inline void interpreter_run(interpreter *in, const fm__tape *tape,
                                   const fm__batch_view *batch) {
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const fm__op *op = &tape->ops[i];
        uint32_t rows = fm__op_rows(tape, op) == FM__ROWS_OUTPUT ? batch->n_output : batch->n_row;
        if (op->kind == FM__OP_LINEAR)
            interpreter_linear(in, tape, op, rows);
        else if (op->kind == FM__OP_LINEAR_GLU)
            interpreter_glu(in, tape, op, rows);
        else if (op->kind == FM__OP_ATTENTION)
            interpreter_attention(in, tape, op, batch);
        else
            for (uint32_t r = 0; r < rows; r++)
                interpreter_row_op(in, tape, op, batch, r);
    }
}

/* A copy of one of a run's buffers, wherever it lies; fm__free. */
static inline uint8_t *interpreter_fetch(const fm__run *run, fm__slot slot) {
    fm__buffer *buffer = run->buffers[slot];
    uint8_t *bytes = fm__alloc(buffer->bytes);
    assert_non_null(bytes);
    CHECK(fm__device_buffer_read(buffer, 0, bytes, buffer->bytes, why));
    return bytes;
}

/* Rows [0, rows) of a tensor, and the cache, in a run's buffers equal the interpreter's. */
static inline void interpreter_compare(const interpreter *in, const fm__tape *tape, int16_t id,
                                       uint32_t rows, const fm__run *run) {
    const fm__tensor *t = &tape->tensors[id];
    uint8_t *base = interpreter_fetch(run, t->slot);
    for (uint32_t r = 0; r < rows; r++) {
        const float *a = interpreter_row(in, tape, id, r);
        const float *b = (const float *)(base + t->offset + r * t->layout.stride);
        for (uint32_t c = 0; c < t->cols; c++)
            if (fm__f32_bits(a[c]) != fm__f32_bits(b[c]))
                fail_msg("%s: row %u column %u: %.9g instead of %.9g", t->name, r, c, (double)b[c],
                         (double)a[c]);
    }
    fm__free(base);
    if (tape->group_mask == 0)
        return;
    uint8_t *cache = interpreter_fetch(run, FM__SLOT_CACHE);
    assert_memory_equal(in->slots[FM__SLOT_CACHE], cache, tape->groups[0].bytes);
    fm__free(cache);
}
