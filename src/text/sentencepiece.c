/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/sentencepiece.c: the two encoders of SentencePiece models: pairs by score, and unigram.
 *
 * Owns: nothing (scratch is the caller's). Never does: normalising. Called from: any thread, each
 * with its own scratch. Pairs: O(n log n). Unigram: O(n * length of the longest token).
 */
#include "text/internal.h"

/* ---- pairs by score ---- */

/* Higher scores first, then the leftmost: an order of unsigned numbers. */
static uint64_t order_of(float score, int32_t left) {
    uint32_t bits = fm__f32_bits(score);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u; /* ascending with the score */
    return (uint64_t)~bits << 32 | (uint32_t)left;
}

static bool consider(const fm_tokenizer *t, fm__work *work, fm__str word, int32_t left) {
    const fm__symbol *a = &work->symbols[left];
    if (left < 0 || a->next < 0)
        return true;
    const fm__symbol *b = &work->symbols[a->next];
    uint32_t bytes = a->bytes + b->bytes;
    int32_t id = fm__vocab_find(t, (fm__str){word.data + a->at, bytes});
    if (id < 0)
        return true;
    fm__candidate candidate = {.order = order_of((float)t->tokens[id].score, left),
                               .left = left,
                               .bytes = bytes,
                               .merged = id};
    return fm__heap_push(work, &candidate);
}

static bool merge_all(const fm_tokenizer *t, fm__work *work, fm__str word, size_t n) {
    fm__candidate best;
    work->heap_count = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (!consider(t, work, word, (int32_t)i))
            return false;
    while (fm__heap_pop(work, &best)) {
        fm__symbol *a = &work->symbols[best.left];
        if (a->bytes == 0 || a->next < 0)
            continue;
        fm__symbol *b = &work->symbols[a->next];
        if (a->bytes + b->bytes != best.bytes)
            continue; /* one of the two has grown since */
        a->id = best.merged;
        a->bytes += b->bytes;
        a->next = b->next;
        b->bytes = 0;
        if (a->next >= 0)
            work->symbols[a->next].previous = best.left;
        if ((a->previous >= 0 && !consider(t, work, word, a->previous)) ||
            !consider(t, work, word, best.left))
            return false;
    }
    return true;
}

fm_status fm__spm_encode(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                         fm_error *error) {
    if (word.bytes == 0)
        return FM_OK;
    if (!fm__work_symbols(work, word.bytes))
        return fm__error_memory(error, NULL, word.bytes);
    size_t n = 0;
    for (size_t at = 0; at < word.bytes; n++) {
        int length = fm__utf8_next(word.data + at, word.bytes - at, NULL);
        length = length > 0 ? length : 1;
        work->symbols[n] = (fm__symbol){.id = -1,
                                        .previous = (int32_t)n - 1,
                                        .next = (int32_t)n + 1,
                                        .at = (uint32_t)at,
                                        .bytes = (uint32_t)length};
        at += (size_t)length;
    }
    work->symbols[n - 1].next = -1;
    if (!merge_all(t, work, word, n))
        return fm__error_memory(error, NULL, word.bytes);
    fm_status status = FM_OK;
    for (int32_t i = 0; i >= 0 && status == FM_OK; i = work->symbols[i].next) {
        const fm__symbol *symbol = &work->symbols[i];
        fm__str text = {word.data + symbol->at, symbol->bytes};
        int32_t id = symbol->id >= 0 ? symbol->id : fm__vocab_find(t, text);
        if (id >= 0)
            fm__ids_add(out, id);
        else
            status = fm__encode_unknown(t, text, out, error);
    }
    return status;
}

/* ---- unigram ---- */

/* The best way to spell the text before a place: its last token and where that starts. */
typedef struct best {
    double score;
    uint32_t from;
    int32_t id; /* -1: a character without a token */
} best;

static void offer(best *place, double score, size_t from, int32_t id) {
    if (place->from == UINT32_MAX || score > place->score)
        *place = (best){score, (uint32_t)from, id};
}

/* Offers every token that text starts with at `at`; true if one is the whole character there. */
static bool offer_tokens(const fm_tokenizer *t, fm__str text, size_t at, size_t character,
                         best *table) {
    const char *data = text.data + at;
    size_t left = text.bytes - at;
    unsigned char byte = (unsigned char)data[0];
    size_t low = t->sorted_first[byte], high = t->sorted_first[byte + 1];
    bool whole = false;
    for (size_t depth = 1; low < high; depth++) {
        if (t->sorted[low].text.bytes == depth) {
            int32_t id = t->sorted[low].id;
            const fm__token *token = &t->tokens[id];
            double score = token->type == FM__TOKEN_USER ? 0 : token->score;
            offer(&table[at + depth], table[at].score + score, at, id);
            whole = whole || depth == character;
            low++;
        }
        if (depth >= left)
            break;
        byte = (unsigned char)data[depth];
        size_t a = low, b = high;
        while (a < b) {
            size_t middle = a + (b - a) / 2;
            if ((unsigned char)t->sorted[middle].text.data[depth] < byte)
                a = middle + 1;
            else
                b = middle;
        }
        low = a;
        b = high;
        while (a < b) {
            size_t middle = a + (b - a) / 2;
            if ((unsigned char)t->sorted[middle].text.data[depth] <= byte)
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
    }
    return whole;
}

/* Follows the best path back from the end, storing at each token's start where it ends; then walks
   forward. */
static fm_status emit(const fm_tokenizer *t, fm__str text, best *table, fm__ids *out,
                      fm_error *error) {
    uint32_t end = (uint32_t)text.bytes;
    best step = table[end];
    while (end > 0) {
        uint32_t start = step.from;
        best before = table[start];
        table[start] = (best){0, end, step.id}; /* from here on: `from` is the end */
        end = start;
        step = before;
    }
    fm_status status = FM_OK;
    for (size_t at = 0; at < text.bytes && status == FM_OK; at = table[at].from) {
        if (table[at].id >= 0)
            fm__ids_add(out, table[at].id);
        else
            status =
                fm__encode_unknown(t, (fm__str){text.data + at, table[at].from - at}, out, error);
    }
    return status;
}

fm_status fm__unigram_encode(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                             fm_error *error) {
    size_t bytes;
    if (word.bytes == 0)
        return FM_OK;
    if (!fm__mul_size(word.bytes + 1, sizeof(best), &bytes))
        return fm__error_memory(error, NULL, SIZE_MAX);
    if (work->best_bytes < bytes) {
        fm__free(work->best);
        work->best_bytes = 0;
        work->best = fm__alloc(bytes);
        if (!work->best)
            return fm__error_memory(error, NULL, bytes);
        work->best_bytes = bytes;
    }
    best *table = work->best;
    for (size_t i = 0; i <= word.bytes; i++)
        table[i] = (best){0, UINT32_MAX, -1};
    table[0].from = 0;
    for (size_t at = 0; at < word.bytes;) {
        int length = fm__utf8_next(word.data + at, word.bytes - at, NULL);
        length = length > 0 ? length : 1;
        if (!offer_tokens(t, word, at, (size_t)length, table))
            offer(&table[at + (size_t)length], table[at].score + t->unknown_score, at, -1);
        at += (size_t)length;
    }
    return emit(t, word, table, out, error);
}

fm_status fm__encode_word(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                          fm_error *error) {
    switch (t->model) {
    case FM__TEXT_BPE:
        return fm__bpe_encode(t, work, word, out, error);
    case FM__TEXT_SPM:
        return fm__spm_encode(t, work, word, out, error);
    default:
        return fm__unigram_encode(t, work, word, out, error);
    }
}
