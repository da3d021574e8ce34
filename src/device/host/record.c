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
    return step->copy == FM__COPY_NONE &&
           (step->op->kind == FM__OP_LINEAR || step->op->kind == FM__OP_LINEAR_GLU);
}

/* Finds the runs of row-wise steps behind a meeting, and for each step the next product. */
static void link_steps(fm__host_step *steps, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = i, product = i + 1;
        while (steps[i].barrier && end < n && by_rows(&steps[end]))
            end++;
        steps[i].n_alone = end - i;
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
    fm__host_step *steps = fm__alloc_array(n_range, sizeof *steps);
    _Atomic uint32_t *next = fm__alloc_array(n_range, sizeof *next);
    bool *before = fm__alloc_array(n_range, sizeof *before);
    if (recording == NULL || steps == NULL || next == NULL || before == NULL) {
        fm__free(before);
        fm__free((void *)next);
        fm__free(steps);
        fm__free(recording);
        return fm__error_memory(error, device->properties.name, n_range * sizeof *steps);
    }
    fm__host_barriers(tape, ranges, n_range, before);
    for (uint32_t i = 0; i < n_range; i++) {
        const fm__op *op = &tape->ops[ranges[i].op];
        steps[i] = (fm__host_step){.op = op,
                                   .index = ranges[i].op,
                                   .barrier = before[i],
                                   .axis = ranges[i].axis,
                                   .begin = ranges[i].begin,
                                   .end = ranges[i].end,
                                   .copy = ranges[i].copy,
                                   .tensor = ranges[i].tensor,
                                   .fn = ranges[i].copy != FM__COPY_NONE ? fm__host_copy
                                                                         : fm__host_op(op->kind)};
    }
    fm__free(before);
    link_steps(steps, n_range);
    recording->base = (fm__recording){.device = device, .tape = tape};
    recording->host = (fm__host *)device;
    recording->n_step = n_range;
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
