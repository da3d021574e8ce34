/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/bpe.c: byte-pair encoding of one word, and the heap that SentencePiece's kind shares.
 *
 * Owns: nothing (scratch is the caller's). Never does: cutting a text into words. Called from: any
 * thread, each with its own scratch. A word of n symbols takes O(n log n): at most 3 n candidates
 * enter the heap, and a stale one is recognised by the ids it was made for.
 */
#include <string.h>

#include "text/internal.h"

/* ---- scratch ---- */

void fm__work_finish(fm__work *work) {
    fm__free(work->symbols);
    fm__free(work->heap);
    fm__free(work->best);
    *work = (fm__work){0};
}

bool fm__work_symbols(fm__work *work, size_t n) {
    if (n <= work->symbol_capacity)
        return true;
    size_t capacity = fm__max_size(n, 64), bytes;
    fm__symbol *symbols = fm__mul_size(capacity, sizeof *symbols, &bytes) ? fm__alloc(bytes) : NULL;
    if (!symbols)
        return false;
    fm__free(work->symbols);
    work->symbols = symbols;
    work->symbol_capacity = capacity;
    return true;
}

bool fm__heap_push(fm__work *work, const fm__candidate *candidate) {
    if (work->heap_count == work->heap_capacity) {
        size_t capacity = fm__max_size(work->heap_capacity * 2, 64), bytes;
        fm__candidate *heap =
            fm__mul_size(capacity, sizeof *heap, &bytes) ? fm__realloc(work->heap, bytes) : NULL;
        if (!heap)
            return false;
        work->heap = heap;
        work->heap_capacity = capacity;
    }
    size_t at = work->heap_count++;
    while (at > 0 && work->heap[(at - 1) / 2].order > candidate->order) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
        work->steps++;
    }
    work->heap[at] = *candidate;
    work->steps++;
    return true;
}

bool fm__heap_pop(fm__work *work, fm__candidate *out) {
    if (work->heap_count == 0)
        return false;
    *out = work->heap[0];
    fm__candidate last = work->heap[--work->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < work->heap_count) {
        if (child + 1 < work->heap_count && work->heap[child + 1].order < work->heap[child].order)
            child++;
        if (work->heap[child].order >= last.order)
            break;
        work->heap[at] = work->heap[child];
        at = child;
        work->steps++;
    }
    work->heap[at] = last;
    work->steps++;
    return true;
}

/* ---- what has no token ---- */

fm_status fm__encode_unknown(const fm_tokenizer *t, fm__str text, fm__ids *out, fm_error *error) {
    bool bytes = t->byte_fallback || t->byte_level;
    for (size_t i = 0; i < text.bytes && bytes; i++)
        bytes = t->byte_ids[(uint8_t)text.data[i]] >= 0;
    if (bytes) {
        for (size_t i = 0; i < text.bytes; i++)
            fm__ids_add(out, t->byte_ids[(uint8_t)text.data[i]]);
    } else if (t->ids.unknown >= 0) {
        bool fused =
            t->fuse_unknown && out->count > 0 && out->data[out->count - 1] == t->ids.unknown;
        if (!fused)
            fm__ids_add(out, t->ids.unknown);
    } else {
        return fm__error(error, FM_ERROR_FORMAT, NULL,
                         "the vocabulary has no token for byte 0x%02x and no unknown token",
                         (unsigned)(uint8_t)text.data[0]);
    }
    return FM_OK;
}

/* ---- the merging ---- */

static bool consider(const fm_tokenizer *t, fm__work *work, int32_t left) {
    const fm__symbol *a = &work->symbols[left];
    if (a->next < 0)
        return true;
    const fm__symbol *b = &work->symbols[a->next];
    const fm__merge *merge = fm__vocab_merge(t, a->id, b->id);
    if (!merge)
        return true;
    fm__candidate candidate = {.order = (uint64_t)merge->rank << 32 | (uint32_t)left,
                               .left = left,
                               .left_id = a->id,
                               .right_id = b->id,
                               .merged = merge->merged};
    return fm__heap_push(work, &candidate);
}

static bool merge_all(const fm_tokenizer *t, fm__work *work, size_t n) {
    fm__candidate best;
    work->heap_count = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (!consider(t, work, (int32_t)i))
            return false;
    while (fm__heap_pop(work, &best)) {
        fm__symbol *a = &work->symbols[best.left];
        if (a->bytes == 0 || a->id != best.left_id || a->next < 0)
            continue;
        fm__symbol *b = &work->symbols[a->next];
        if (b->id != best.right_id)
            continue;
        a->id = best.merged;
        a->bytes += b->bytes;
        a->next = b->next;
        b->bytes = 0;
        if (a->next >= 0)
            work->symbols[a->next].previous = best.left;
        if ((a->previous >= 0 && !consider(t, work, a->previous)) || !consider(t, work, best.left))
            return false;
    }
    return true;
}

/* One symbol a byte, or one a character with byte tokens for those without a token. */
static size_t first_symbols(const fm_tokenizer *t, fm__work *work, fm__str word) {
    size_t n = 0;
    for (size_t at = 0; at < word.bytes;) {
        int length = 1;
        int32_t id;
        if (t->byte_level) {
            id = t->byte_ids[(uint8_t)word.data[at]];
        } else {
            length = fm__utf8_next(word.data + at, word.bytes - at, NULL);
            length = length > 0 ? length : 1;
            id = fm__vocab_find(t, (fm__str){word.data + at, (size_t)length});
        }
        work->symbols[n] = (fm__symbol){.id = id,
                                        .previous = (int32_t)n - 1,
                                        .next = (int32_t)n + 1,
                                        .at = (uint32_t)at,
                                        .bytes = (uint32_t)length};
        n++;
        at += (size_t)length;
    }
    work->symbols[n - 1].next = -1;
    return n;
}

static bool only_newlines(fm__str word) {
    for (size_t i = 0; i < word.bytes; i++)
        if (word.data[i] != '\n')
            return false;
    return true;
}

fm_status fm__bpe_encode(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                         fm_error *error) {
    if (word.bytes == 0)
        return FM_OK;
    if (t->ignore_merges || (t->whole_newlines && only_newlines(word))) {
        int32_t id = fm__vocab_find(t, word);
        if (id >= 0) {
            fm__ids_add(out, id);
            return FM_OK;
        }
    }
    if (!fm__work_symbols(work, word.bytes))
        return fm__error_memory(error, NULL, word.bytes);
    size_t n = first_symbols(t, work, word);
    if (!merge_all(t, work, n))
        return fm__error_memory(error, NULL, word.bytes);
    fm_status status = FM_OK;
    for (int32_t i = 0; i >= 0 && status == FM_OK; i = work->symbols[i].next) {
        const fm__symbol *symbol = &work->symbols[i];
        if (symbol->id >= 0)
            fm__ids_add(out, symbol->id);
        else
            status =
                fm__encode_unknown(t, (fm__str){word.data + symbol->at, symbol->bytes}, out, error);
    }
    return status;
}
