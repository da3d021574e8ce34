/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/lists.c: the growing arrays of ids and pieces, and where valid UTF-8 ends.
 *
 * Owns: nothing (a list's memory is its caller's). Never does: looking at what it stores. Called
 * from: any thread, each with its own lists.
 */
#include "text/internal.h"

/* Doubles *data so that index count fits. */
static bool grow(void **data, size_t *capacity, size_t count, size_t size, bool *failed) {
    if (*failed)
        return false;
    if (count < *capacity)
        return true;
    size_t fresh = fm__max_size(*capacity * 2, 64), bytes;
    void *memory = fm__mul_size(fresh, size, &bytes) ? fm__realloc(*data, bytes) : NULL;
    if (!memory) {
        *failed = true;
        return false;
    }
    *data = memory;
    *capacity = fresh;
    return true;
}

bool fm__ids_add(fm__ids *ids, int32_t id) {
    void *data = ids->data;
    bool ok = grow(&data, &ids->capacity, ids->count, sizeof *ids->data, &ids->failed);
    ids->data = data;
    if (ok)
        ids->data[ids->count++] = id;
    return ok;
}

void fm__ids_finish(fm__ids *ids) {
    fm__free(ids->data);
    *ids = (fm__ids){0};
}

bool fm__pieces_add(fm__pieces *pieces, size_t at, size_t bytes, bool raw) {
    void *data = pieces->data;
    bool ok = grow(&data, &pieces->capacity, pieces->count, sizeof *pieces->data, &pieces->failed);
    pieces->data = data;
    if (ok)
        pieces->data[pieces->count++] = (fm__piece){at, bytes, raw};
    return ok;
}

void fm__pieces_finish(fm__pieces *pieces) {
    fm__free(pieces->data);
    *pieces = (fm__pieces){0};
}

size_t fm__valid_bytes(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        if ((unsigned char)text[at] < 0x80) {
            at++;
            continue;
        }
        int length = fm__utf8_next(text + at, bytes - at, NULL);
        if (length <= 0)
            break;
        at += (size_t)length;
    }
    return at;
}
