/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/ops.c: every op kind but products and attention: whose kernel, on which rows.
 *
 * Owns: nothing. Never does: arithmetic (kernels do). Called from: every thread of the team.
 *
 * Row-wise ops give thread t a fixed run of rows, so that a chain of them needs no meeting between
 * its links (record.c counts on it: same rows, same thread).
 */
#include "device/host/host.h"

#include <string.h>

/* ---- where things are ---- */

fm__host_rows fm__host_step_rows(const fm__host_work *work) {
    const fm__batch_view *batch = work->run->batch;
    const fm__host_step *step = work->step;
    fm__rows kind = step->copy != FM__COPY_NONE ? work->tape->tensors[step->tensor].rows
                                                : fm__op_rows(work->tape, step->op);
    bool outputs = kind == FM__ROWS_OUTPUT;
    uint32_t n = outputs ? batch->n_output : batch->n_row;
    if (work->step->axis != FM__AXIS_TOKENS || work->step->end == 0)
        return (fm__host_rows){0, n};
    return (fm__host_rows){fm__token_border(n, work->step->begin),
                           fm__token_border(n, work->step->end)};
}

static uint8_t *slot_memory(const fm__host_work *work, fm__slot slot) {
    return fm__host_memory(work->device, fm__run_buffer(work->run, work->device, slot));
}

uint8_t *fm__host_row(const fm__host_work *work, int16_t tensor, uint32_t row) {
    const fm__tensor *t = &work->tape->tensors[tensor];
    uint8_t *base = slot_memory(work, t->slot);
    return base + t->offset + row * t->layout.stride;
}

static float *float_row(const fm__host_work *work, int16_t tensor, uint32_t row) {
    return (float *)fm__host_row(work, tensor, row);
}

static const float *vector(const fm__host_work *work, int16_t weight) {
    return (const float *)work->tape->weights[weight]->host;
}

/* This thread's rows of the step: a pure function of rows, thread and threads. */
static fm__host_rows own_rows(const fm__host_work *work) {
    fm__host_rows all = fm__host_step_rows(work);
    uint64_t n = all.end - all.begin;
    return (fm__host_rows){all.begin + (uint32_t)(n * work->thread / work->threads),
                           all.begin + (uint32_t)(n * (work->thread + 1) / work->threads)};
}

/* ---- row-wise ops ---- */

static void embed(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    const fm__weight *table = work->tape->weights[op->weight[0]];
    fm__host_rows rows = own_rows(work);
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        size_t token = (size_t)work->run->batch->token[r];
        table->type->decode(table->host + token * table->row_bytes, float_row(work, op->out, r),
                            table->k);
    }
}

static void rmsnorm(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    const float *weight = vector(work, op->weight[0]); /* (group) */
    uint32_t cols = work->tape->tensors[op->out].cols;
    float inv_n = (float)(1.0 / op->group);
    fm__host_rows rows = own_rows(work);
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        const float *in = float_row(work, op->in[0], r); /* (cols) */
        float *out = float_row(work, op->out, r);
        for (uint32_t c = 0; c < cols; c += op->group)
            work->kernels->rmsnorm(in + c, weight, op->eps, inv_n, op->group, out + c);
    }
}

static void quantise(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    const fm__tensor *out = &work->tape->tensors[op->out];
    fm__quantise_fn *fn = work->kernels->quantise[out->act];
    fm__host_rows rows = own_rows(work);
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        if (fn(float_row(work, op->in[0], r), out->cols, &out->layout,
               fm__host_row(work, op->out, r)))
            continue;
        uint32_t row = out->rows == FM__ROWS_OUTPUT ? work->run->batch->output_row[r] : r;
        fm__run_status_report(work->run->status, work->step->index, row, FM_ERROR_NUMERIC);
    }
}

static void glu(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    fm__host_rows rows = own_rows(work);
    for (uint32_t r = rows.begin; r < rows.end; r++)
        work->kernels->glu[op->glu](float_row(work, op->in[0], r), float_row(work, op->in[1], r),
                                    work->tape->tensors[op->out].cols, float_row(work, op->out, r));
}

static void rope(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    const float *cos = vector(work, op->weight[0]), *sin = vector(work, op->weight[1]);
    fm__host_rows rows = own_rows(work);
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        size_t at = (size_t)work->run->batch->position[r] * (op->rotary / 2);
        work->kernels->rope(float_row(work, op->out, r), op->heads, op->head_dim, op->rotary,
                            op->rope, cos + at, sin + at);
    }
}

static uint8_t *layer_base(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    uint8_t *cache = slot_memory(work, FM__SLOT_CACHE);
    return cache + fm__cache_offset(&work->tape->groups[op->cache_group], op->cache_layer, 0, 0);
}

static void kv_store(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    const fm__batch_view *batch = work->run->batch;
    const fm__cache_group *group = &work->tape->groups[op->cache_group];
    uint8_t *base = layer_base(work);
    fm__host_rows rows = own_rows(work);
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        uint32_t position = batch->position[r];
        const uint32_t *pages = batch->pages[batch->sequence[r] * batch->n_group + op->cache_group];
        work->kernels->kv_store[group->type](
            group, base, pages[position / FM__PAGE_TOKENS], position % FM__PAGE_TOKENS,
            float_row(work, op->in[0], r), float_row(work, op->in[1], r));
    }
}

/* ---- copies of a discrete device ---- */

void fm__host_copy(const fm__host_work *work) {
    const fm__host_step *step = work->step;
    const fm__tensor *t = &work->tape->tensors[step->tensor];
    uint8_t *own = fm__host_memory(work->device, work->run->buffers[t->slot]) + t->offset;
    uint8_t *mirror = fm__host_memory(work->device, work->run->mirrors[t->slot]) + t->offset;
    uint8_t *to = step->copy == FM__COPY_TO_HOST ? mirror : own;
    const uint8_t *from = step->copy == FM__COPY_TO_HOST ? own : mirror;
    bool columns = step->axis == FM__AXIS_CHANNELS;
    size_t first = columns ? step->begin * sizeof(float) : 0;
    size_t bytes = columns ? (step->end - step->begin) * sizeof(float) : t->layout.stride;
    fm__host_rows rows = own_rows(work);
    for (size_t r = rows.begin; r < rows.end; r++)
        memcpy(to + r * t->layout.stride + first, from + r * t->layout.stride + first, bytes);
}

/* ---- the others ---- */

static void select_rows(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    size_t bytes = work->tape->tensors[op->out].layout.stride;
    fm__host_rows rows = own_rows(work);
    for (uint32_t r = rows.begin; r < rows.end; r++)
        memcpy(fm__host_row(work, op->out, r),
               fm__host_row(work, op->in[0], work->run->batch->output_row[r]), bytes);
}

/* ---- what the device can do ---- */

fm__host_op_fn *fm__host_op(fm__op_kind kind) {
    static fm__host_op_fn *const ops[FM__OP_COUNT] = {
        [FM__OP_EMBED] = embed,
        [FM__OP_RMSNORM] = rmsnorm,
        [FM__OP_QUANTISE] = quantise,
        [FM__OP_LINEAR] = fm__host_linear,
        [FM__OP_LINEAR_GLU] = fm__host_linear_glu,
        [FM__OP_GLU] = glu,
        [FM__OP_ROPE] = rope,
        [FM__OP_KV_STORE] = kv_store,
        [FM__OP_ATTENTION] = fm__host_attention,
        [FM__OP_SELECT] = select_rows,
    };
    return (unsigned)kind < FM__OP_COUNT ? ops[kind] : NULL;
}

static const fm__linear_kernel *linear_kernel(const fm__kernels *kernels, const fm__tape *tape,
                                              const fm__op *op, int which) {
    const fm__weight *weight = tape->weights[op->weight[which]];
    return &kernels->linear[fm__type_index(weight->type)][op->fast];
}

static bool supports_product(const fm__kernels *kernels, const fm__tape *tape, const fm__op *op,
                             const char **reason) {
    int n = op->kind == FM__OP_LINEAR_GLU ? 2 : 1;
    for (int i = 0; i < n; i++)
        if (linear_kernel(kernels, tape, op, i)->fn == NULL) {
            *reason = op->fast ? "no fast kernel for the weight's type"
                               : "no kernel for the weight's type";
            return false;
        }
    if (kernels->add == NULL || (n == 2 && kernels->glu[op->glu] == NULL)) {
        *reason = "no kernel for the epilogue";
        return false;
    }
    return true;
}

bool fm__host_op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                          const char **reason) {
    const fm__kernels *kernels = &((fm__host *)device)->kernels;
    bool has = fm__host_op(op->kind) != NULL;
    switch (op->kind) {
    case FM__OP_LINEAR:
    case FM__OP_LINEAR_GLU:
        return supports_product(kernels, tape, op, reason);
    case FM__OP_RMSNORM:
        has = kernels->rmsnorm != NULL;
        break;
    case FM__OP_QUANTISE:
        has = kernels->quantise[tape->tensors[op->out].act] != NULL;
        break;
    case FM__OP_GLU:
        has = kernels->glu[op->glu] != NULL;
        break;
    case FM__OP_ROPE:
        has = kernels->rope != NULL;
        break;
    case FM__OP_KV_STORE:
        has = kernels->kv_store[tape->groups[op->cache_group].type] != NULL;
        break;
    case FM__OP_ATTENTION: {
        const fm__cache_group *group = &tape->groups[op->cache_group];
        if (group->key_dim > FM__MAX_HEAD_DIM || group->value_dim > FM__MAX_HEAD_DIM) {
            *reason = "heads wider than 512 dims";
            return false;
        }
        has = kernels->attention[group->type] != NULL;
        break;
    }
    default:
        break;
    }
    if (!has)
        *reason = "no kernel for it";
    return has;
}

const char *fm__host_op_kernel(fm__device *device, const fm__tape *tape, const fm__op *op) {
    if (!fm__is_product(op->kind))
        return "";
    return linear_kernel(&((fm__host *)device)->kernels, tape, op, 0)->name;
}
