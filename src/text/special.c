/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/special.c: finds added tokens in running text: the leftmost, and there the longest.
 *
 * Owns: the sorted sets. Never does: deciding which set applies. Called from: any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "text/internal.h"

static int compare(const void *a, const void *b) {
    const fm__special *x = *(const fm__special *const *)a, *y = *(const fm__special *const *)b;
    int order = memcmp(x->text.data, y->text.data, fm__min_size(x->text.bytes, y->text.bytes));
    if (order != 0)
        return order;
    if (x->text.bytes != y->text.bytes)
        return x->text.bytes < y->text.bytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

bool fm__special_set_init(fm__special_set *set, const fm__special *specials, size_t n,
                          bool normalized, bool with_control) {
    *set = (fm__special_set){0};
    set->sorted = fm__alloc_array(fm__max_size(n, 1), sizeof *set->sorted);
    if (!set->sorted)
        return false;
    for (size_t i = 0; i < n; i++)
        if (specials[i].text.bytes > 0 && specials[i].normalized == normalized &&
            (with_control || !specials[i].control))
            set->sorted[set->count++] = &specials[i];
    qsort(set->sorted, set->count, sizeof *set->sorted, compare);
    size_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        set->first[byte] = (uint32_t)at;
        while (at < set->count && (unsigned char)set->sorted[at]->text.data[0] == byte)
            at++;
    }
    set->first[256] = (uint32_t)at;
    return true;
}

void fm__special_set_finish(fm__special_set *set) {
    fm__free(set->sorted);
    *set = (fm__special_set){0};
}

/* The longest entry that text starts with, by narrowing the sorted range byte by byte. */
static const fm__special *longest_at(const fm__special_set *set, const char *text, size_t bytes) {
    unsigned char byte = (unsigned char)text[0];
    size_t low = set->first[byte], high = set->first[byte + 1];
    const fm__special *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (set->sorted[low]->text.bytes == depth) { /* the shortest of a range sorts first */
            best = set->sorted[low];
            while (low < high && set->sorted[low]->text.bytes == depth)
                low++;
        }
        if (depth >= bytes)
            break;
        byte = (unsigned char)text[depth];
        size_t left = low, right = high;
        while (left < right) { /* first entry whose byte here is at least the text's */
            size_t middle = left + (right - left) / 2;
            if ((unsigned char)set->sorted[middle]->text.data[depth] < byte)
                left = middle + 1;
            else
                right = middle;
        }
        low = left;
        right = high;
        while (left < right) {
            size_t middle = left + (right - left) / 2;
            if ((unsigned char)set->sorted[middle]->text.data[depth] <= byte)
                left = middle + 1;
            else
                right = middle;
        }
        high = left;
    }
    return best;
}

/* single_word's idea of a word character: \w of Rust's regex crate, which knows the joiners and not
   the numbers of Latin-1. */
static bool joins_words(uint32_t c) {
    bool latin1_number = c == 0xb2 || c == 0xb3 || c == 0xb9 || (c >= 0xbc && c <= 0xbe);
    return c == 0x200c || c == 0x200d || (fm__is_word(c) && !latin1_number);
}

/* The character that ends at `end`; its length, or 0. */
static size_t character_before(const char *text, size_t end, uint32_t *c) {
    size_t back = 1;
    if (end == 0)
        return 0;
    while (back < 4 && back < end && ((unsigned char)text[end - back] & 0xc0) == 0x80)
        back++;
    return fm__utf8_next(text + end - back, back, c) == (int)back ? back : 0;
}

static size_t character_at(const char *text, size_t bytes, size_t at, uint32_t *c) {
    int length = at < bytes ? fm__utf8_next(text + at, bytes - at, c) : 0;
    return length > 0 ? (size_t)length : 0;
}

const fm__special *fm__special_find(const fm__special_set *set, const char *text, size_t bytes,
                                    fm__special_cursor *cursor, size_t *start) {
    if (set->count == 0)
        return NULL;
    for (size_t at = cursor->scan; at < bytes; at++) {
        unsigned char byte = (unsigned char)text[at];
        if (set->first[byte] == set->first[byte + 1])
            continue;
        const fm__special *special = longest_at(set, text + at, bytes - at);
        if (!special)
            continue;
        uint32_t c;
        size_t left = at, right = at + special->text.bytes, length;
        cursor->scan = right;
        if (special->single_word && ((character_before(text, left, &c) && joins_words(c)) ||
                                     (character_at(text, bytes, right, &c) && joins_words(c)))) {
            at = right - 1; /* it was found, and then passed over */
            continue;
        }
        if (special->left_strip)
            while (left > 0 && (length = character_before(text, left, &c)) > 0 &&
                   fm__is_white_space(c))
                left -= length;
        if (special->right_strip)
            while ((length = character_at(text, bytes, right, &c)) > 0 && fm__is_white_space(c))
                right += length;
        *start = fm__max_size(left, cursor->done);
        cursor->done = right;
        return special;
    }
    cursor->scan = bytes;
    return NULL;
}

fm_status fm__specials_normalize(fm_tokenizer *t, const char *place, fm_error *error) {
    fm__matcher *matcher = NULL;
    fm__buf text = {0};
    if (t->n_normals == 0)
        return FM_OK;
    fm_status status = fm__matcher_create(&matcher, error);
    for (size_t i = 0; i < t->n_specials && status == FM_OK; i++) {
        fm__special *special = &t->specials[i];
        if (!special->normalized)
            continue;
        fm__buf_clear(&text);
        fm__buf_append(&text, special->text.data, special->text.bytes);
        status = fm__normalize(t->normals, t->n_normals, matcher, &text, error);
        if (status != FM_OK)
            break;
        const char *copy = fm__arena_copy(&t->arena, text.data, text.bytes);
        if (copy)
            special->text = (fm__str){copy, text.bytes};
        else
            status = fm__error_memory(error, place, text.bytes);
    }
    fm__buf_finish(&text);
    fm__matcher_destroy(&matcher);
    return status;
}
