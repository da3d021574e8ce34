/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape/depend.c: which op must wait for which: a pure function of a finished tape.
 *
 * Owns: nothing. Never does: schedule (devices and exec do, with this). Called from: the loading
 * thread.
 */
#include "tape/tape.h"

/* Ops whose row r reads and writes only row r of their tensors. KV_STORE belongs to them: what it
   writes to the cache is another matter, see cache_conflict(). */
static bool is_row_wise(fm__op_kind kind) {
    return kind == FM__OP_EMBED || kind == FM__OP_RMSNORM || kind == FM__OP_QUANTISE ||
           kind == FM__OP_GLU || kind == FM__OP_ROPE || kind == FM__OP_KV_STORE;
}

bool fm__tape_overlaps(const fm__tape *tape, int16_t a, int16_t b) {
    const fm__tensor *x = &tape->tensors[a], *y = &tape->tensors[b];
    size_t x_end = x->offset + x->layout.stride * fm__tape_bound(tape, x);
    size_t y_end = y->offset + y->layout.stride * fm__tape_bound(tape, y);
    return x->slot == y->slot && x->offset < y_end && y->offset < x_end;
}

/* Row r of one tensor lies on row r of the other and on no other row. */
static bool rows_coincide(const fm__tape *tape, int16_t a, int16_t b) {
    const fm__tensor *x = &tape->tensors[a], *y = &tape->tensors[b];
    return x->slot == y->slot && x->offset == y->offset && x->rows == y->rows &&
           x->layout.stride == y->layout.stride;
}

/* The stronger of `so_far` and what two accesses, one of them a write, to tensors a and b mean. */
static fm__dependence conflict(const fm__tape *tape, int16_t a, int16_t b, bool by_rows,
                               fm__dependence so_far) {
    if (a == FM__NONE || b == FM__NONE || !fm__tape_overlaps(tape, a, b))
        return so_far;
    if (by_rows && rows_coincide(tape, a, b))
        return so_far == FM__DEPENDENCE_FULL ? so_far : FM__DEPENDENCE_ROWS;
    return FM__DEPENDENCE_FULL;
}

static bool uses_cache(const fm__op *op) {
    return op->kind == FM__OP_KV_STORE || op->kind == FM__OP_ATTENTION;
}

static bool cache_conflict(const fm__op *a, const fm__op *b) {
    return uses_cache(a) && uses_cache(b) && a->cache_group == b->cache_group &&
           a->cache_layer == b->cache_layer &&
           (a->kind == FM__OP_KV_STORE || b->kind == FM__OP_KV_STORE);
}

static fm__dependence depends(const fm__tape *tape, const fm__op *a, const fm__op *b,
                              bool by_rows) {
    if (cache_conflict(a, b))
        return FM__DEPENDENCE_FULL;
    by_rows = by_rows && fm__op_rows(tape, a) == fm__op_rows(tape, b);
    fm__dependence d = FM__DEPENDENCE_NONE;
    for (int i = 0; i < 2; i++) {
        d = conflict(tape, a->out, b->in[i], by_rows, d); /* read after write */
        d = conflict(tape, a->in[i], b->out, by_rows, d); /* write after read */
    }
    return conflict(tape, a->out, b->out, by_rows, d); /* write after write; ROPE's own read */
}

fm__dependence fm__tape_depends(const fm__tape *tape, uint32_t earlier, uint32_t later) {
    const fm__op *a = &tape->ops[earlier], *b = &tape->ops[later];
    return depends(tape, a, b, is_row_wise(a->kind) && is_row_wise(b->kind));
}

bool fm__tape_mixes_rows(const fm__tape *tape, uint32_t earlier, uint32_t later) {
    const fm__op *a = &tape->ops[earlier], *b = &tape->ops[later];
    bool by_rows = a->kind != FM__OP_SELECT && b->kind != FM__OP_SELECT;
    return depends(tape, a, b, by_rows) == FM__DEPENDENCE_FULL;
}
