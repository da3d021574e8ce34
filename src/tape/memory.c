/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape/memory.c: where tensors lie: a pure function of their sizes and lives.
 *
 * Owns: nothing. Never does: know ops. Called from: the loading thread.
 */
#include "tape/tape.h"

static bool keep_apart(const fm__life *a, const fm__life *b) {
    return a->kind != b->kind || (a->first <= b->last && b->first <= a->last);
}

/* Larger first, then the lower index: an insertion sort, as a tape has some tens of tensors. */
static void order_by_size(const fm__life *lives, uint32_t n, uint32_t *order) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        for (; j > 0 && lives[order[j - 1]].bytes < lives[i].bytes; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
}

/* Lowest offset at which `bytes` do not touch any placed tensor that must be kept apart. Only 0 and
   the ends of those tensors can be the answer. */
static size_t lowest_fit(const fm__life *lives, const size_t *offsets, const uint32_t *placed,
                         uint32_t n_placed, uint32_t tensor, size_t bytes) {
    size_t offset = 0;
    for (;;) {
        size_t next = offset;
        for (uint32_t i = 0; i < n_placed; i++) {
            const fm__life *other = &lives[placed[i]];
            size_t begin = offsets[placed[i]];
            size_t end = begin + fm__round_up(other->bytes, FM__TENSOR_ALIGN);
            if (keep_apart(other, &lives[tensor]) && offset < end && begin < offset + bytes &&
                end > next)
                next = end;
        }
        if (next == offset)
            return offset;
        offset = next;
    }
}

fm_status fm__tape_place(const fm__life *lives, uint32_t n, size_t *offsets, size_t *total,
                         fm_error *error) {
    size_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!fm__add_size(sum, lives[i].bytes, &sum) || !fm__add_size(sum, FM__TENSOR_ALIGN, &sum))
            return fm__error(error, FM_ERROR_LIMIT, "tape", "the tensors' sizes overflow");
    uint32_t *order = fm__alloc_array(n, sizeof *order);
    if (order == NULL)
        return fm__error_memory(error, "tape", n * sizeof *order);
    order_by_size(lives, n, order);
    *total = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t tensor = order[i];
        offsets[tensor] = 0;
        if (lives[tensor].bytes == 0)
            continue;
        size_t bytes = fm__round_up(lives[tensor].bytes, FM__TENSOR_ALIGN);
        offsets[tensor] = lowest_fit(lives, offsets, order, i, tensor, bytes);
        *total = fm__max_size(*total, offsets[tensor] + bytes);
    }
    fm__free(order);
    return FM_OK;
}
