/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/record.c: a tape's ranges as steps, with a meeting of the team only where one is
 * needed.
 *
 * Owns: recordings. Never does: run them. Called from: the loading thread, through device.c.
 */
#include "device/host/host.h"

/* Attention steps, even of rows apart, merge their blocks of keys in the same memory. */
static bool share_parts(const fm__tape *tape, const fm__op_range *a, const fm__op_range *b) {
    return a->copy == FM__COPY_NONE && tape->ops[a->op].kind == FM__OP_ATTENTION &&
           b->copy == FM__COPY_NONE && tape->ops[b->op].kind == FM__OP_ATTENTION;
}

void fm__host_barriers(const fm__tape *tape, const fm__op_range *ranges, uint32_t n_range,
                       bool *before) {
    uint32_t since = 0; /* the first range after the last meeting */
    for (uint32_t i = 0; i < n_range; i++) {
        before[i] = false;
        for (uint32_t j = since; j < i && !before[i]; j++)
            /* Row-wise steps give thread t the same rows when they cover the same rows. */
            before[i] = share_parts(tape, &ranges[j], &ranges[i]) ||
                        fm__range_must_wait(tape, &ranges[j], &ranges[i], true);
        if (before[i])
            since = i;
    }
}

/* Ops of which every thread runs its own rows: with one row, all but one thread stand by. */
static bool by_rows(const fm__host_step *step) {
    switch (step->op->kind) {
    case FM__OP_EMBED:
    case FM__OP_RMSNORM:
    case FM__OP_QUANTISE:
    case FM__OP_GLU:
    case FM__OP_ROPE:
    case FM__OP_KV_STORE:
    case FM__OP_SELECT:
        return step->copy == FM__COPY_NONE;
    default:
        return false;
    }
}

static bool is_product(const fm__host_step *step) {
    return step->copy == FM__COPY_NONE && step->fn != fm__host_prepare &&
           fm__is_product(step->op->kind);
}

/* Finds the runs of row-wise steps behind a meeting, and for each step the next product. */
static void link_steps(fm__host_step *steps, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = i, product = i + 1;
        while (steps[i].barrier && end < n && by_rows(&steps[end]))
            end++;
        steps[i].n_alone = end - i;
        steps[i].is_product = is_product(&steps[i]);
        while (product < n && !is_product(&steps[product]))
            product++;
        steps[i].next_product = product < n ? product - i : 0;
    }
}

/* Weights that a host kernel reads must be in memory; a tape may be planned without them. */
static fm_status check_loaded(const fm__tape *tape, const fm__op *op, fm_error *error) {
    int16_t ids[3] = {op->weight[0], op->weight[1], op->bias};
    for (int i = 0; i < 3; i++)
        if (ids[i] != FM__NONE && tape->weights[ids[i]]->host == NULL)
            return fm__error(error, FM_ERROR_STATE, tape->weights[ids[i]]->name,
                             "is not loaded and cannot be recorded");
    return FM_OK;
}

/* ---- steps ---- */

static fm__host_step step_of(const fm__tape *tape, const fm__op_range *range, bool barrier) {
    const fm__op *op = &tape->ops[range->op];
    return (fm__host_step){.op = op,
                           .index = range->op,
                           .barrier = barrier,
                           .axis = range->axis,
                           .begin = range->begin,
                           .end = range->end,
                           .copy = range->copy,
                           .tensor = range->tensor,
                           .fn = range->copy != FM__COPY_NONE ? fm__host_copy
                                                              : fm__host_op(op->kind)};
}

/* What was prepared for `last` serves `range` too: products of the same rows of the same tensor. */
static bool reads_the_same(const fm__host *host, const fm__tape *tape, const fm__op_range *last,
                           const fm__op_range *range) {
    const fm__op *a = &tape->ops[last->op], *b = &tape->ops[range->op];
    bool rows = last->axis == FM__AXIS_TOKENS || range->axis == FM__AXIS_TOKENS;
    return a->in[0] == b->in[0] && a->out != b->in[0] && a->fast == b->fast &&
           fm__host_shared(host, tape, a) == fm__host_shared(host, tape, b) &&
           (!rows ||
            (last->axis == range->axis && last->begin == range->begin && last->end == range->end));
}

static uint32_t k_of(const fm__tape *tape, const fm__op *product) {
    return tape->weights[product->weight[0]]->k;
}

/* Attention works where they lie, and a new input wants new ones. */
static bool ends_prepared(const fm__tape *tape, const fm__op_range *prepared,
                          const fm__op_range *range) {
    const fm__op *op = &tape->ops[range->op];
    int16_t out = range->copy != FM__COPY_NONE ? range->tensor : op->out;
    return op->kind == FM__OP_ATTENTION || out == tape->ops[prepared->op].in[0];
}

/* A step for each range, and one before products whose tokens are to be prepared: it overwrites
   what was prepared before, and where attention worked, so all have to be there. Returns how many;
   room for two a range. */
static uint32_t make_steps(const fm__host *host, const fm__tape *tape, const fm__op_range *ranges,
                           uint32_t n_range, const bool *before, fm__host_step *steps) {
    const fm__op_range *prepared = NULL; /* the product whose tokens are there */
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_range; i++) {
        const fm__op_range *range = &ranges[i];
        const fm__linear_shared *shared = NULL;
        if (range->copy == FM__COPY_NONE && host->threads > 1)
            shared = fm__host_shared(host, tape, &tape->ops[range->op]);
        if (shared != NULL && shared->bytes(tape->max_rows, k_of(tape, &tape->ops[range->op])) == 0)
            shared = NULL;
        bool anew =
            shared != NULL && (prepared == NULL || !reads_the_same(host, tape, prepared, range));
        if (anew) {
            steps[n] = step_of(tape, range, true);
            steps[n++].fn = fm__host_prepare;
        }
        /* Attention works where prepared tokens lie: whoever still reads them comes first. */
        bool over = prepared != NULL && range->copy == FM__COPY_NONE &&
                    tape->ops[range->op].kind == FM__OP_ATTENTION;
        steps[n] = step_of(tape, range, before[i] || anew || over);
        steps[n++].prepared = shared != NULL;
        if (shared != NULL)
            prepared = range;
        else if (prepared != NULL && ends_prepared(tape, prepared, range))
            prepared = NULL;
    }
    return n;
}

fm_status fm__host_record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                          uint32_t n_range, fm__recording **out, fm_error *error) {
    for (uint32_t i = 0; i < n_range; i++) {
        if (ranges[i].copy != FM__COPY_NONE)
            continue;
        fm_status status = check_loaded(tape, &tape->ops[ranges[i].op], error);
        if (status != FM_OK)
            return status;
    }
    const fm__host_parts *parts = NULL;
    fm_status reserved =
        fm__host_parts_reserve((fm__host *)device, tape, ranges, n_range, &parts, error);
    if (reserved != FM_OK)
        return reserved;
    fm__host_recording *recording = fm__alloc_zero(sizeof *recording);
    fm__host_step *steps = fm__alloc_array(2 * (size_t)n_range, sizeof *steps);
    _Atomic uint32_t *next = fm__alloc_array(2 * (size_t)n_range, sizeof *next);
    bool *before = fm__alloc_array(n_range, sizeof *before);
    if (recording == NULL || steps == NULL || next == NULL || before == NULL) {
        fm__free(before);
        fm__free((void *)next);
        fm__free(steps);
        fm__free(recording);
        return fm__error_memory(error, device->properties.name, 2 * n_range * sizeof *steps);
    }
    fm__host_barriers(tape, ranges, n_range, before);
    uint32_t n = make_steps((fm__host *)device, tape, ranges, n_range, before, steps);
    fm__free(before);
    link_steps(steps, n);
    recording->base = (fm__recording){.device = device, .tape = tape};
    recording->host = (fm__host *)device;
    recording->n_step = n;
    recording->steps = steps;
    recording->next = next;
    recording->parts = parts;
    *out = &recording->base;
    return FM_OK;
}

void fm__host_recording_destroy(fm__recording *recording) {
    fm__host_recording *r = (fm__host_recording *)recording;
    fm__host_queue_drain(&r->host->queue);
    fm__free((void *)r->next);
    fm__free(r->steps);
    fm__free(r);
}

fm__span fm__host_recording_span(fm__recording *recording) {
    return ((fm__host_recording *)recording)->span;
}
