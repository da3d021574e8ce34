/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/normalize.c: what happens to a text before it is cut.
 *
 * Owns: nothing. Never does: touching bytes that are not UTF-8 (they are copied), or taking more
 * than linear time (long runs of combining marks are sorted by counting). Called from: any thread.
 */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "text/internal.h"

/* ---- Unicode forms ---- */

typedef struct points {
    utf8proc_int32_t *data;
    size_t count, capacity;
} points;

static bool points_reserve(points *p, size_t more) {
    size_t need = p->count + more, bytes;
    if (need <= p->capacity)
        return true;
    size_t capacity = fm__max_size(need, p->capacity * 2);
    utf8proc_int32_t *data =
        fm__mul_size(capacity, sizeof *data, &bytes) ? fm__realloc(p->data, bytes) : NULL;
    if (!data)
        return false;
    p->data = data;
    p->capacity = capacity;
    return true;
}

static int combining_class(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

/* Stable, by combining class, of n marks; room for n more behind them. */
static void sort_marks(utf8proc_int32_t *marks, size_t n, utf8proc_int32_t *room) {
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t mark = marks[i];
            size_t k = i;
            for (; k > 0 && combining_class(marks[k - 1]) > combining_class(mark); k--)
                marks[k] = marks[k - 1];
            marks[k] = mark;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[(combining_class(marks[i]) & 255) + 1]++;
    for (size_t i = 1; i <= 256; i++)
        start[i] += start[i - 1];
    for (size_t i = 0; i < n; i++)
        room[start[combining_class(marks[i]) & 255]++] = marks[i];
    memcpy(marks, room, n * sizeof *marks);
}

static bool order_marks(points *p) {
    size_t count = p->count;
    if (!points_reserve(p, count))
        return false;
    for (size_t i = 0; i < count;) {
        size_t start = i;
        while (i < count && combining_class(p->data[i]) != 0)
            i++;
        if (i - start > 1)
            sort_marks(p->data + start, i - start, p->data + count);
        if (i == start)
            i++;
    }
    return true;
}

static bool put_point(fm__buf *out, utf8proc_int32_t c) {
    char bytes[4];
    return fm__buf_append(out, bytes, fm__utf8_put((uint32_t)c, bytes));
}

/* Valid UTF-8 text into out, in the form that options ask for. */
static bool put_form(const char *text, size_t bytes, utf8proc_option_t options, fm__buf *out,
                     points *p) {
    p->count = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t code_point = 0;
        at += (size_t)fm__utf8_next(text + at, bytes - at, &code_point);
        if (!points_reserve(p, 32)) /* no character has a longer decomposition than 18 */
            return false;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code_point,
                                                     p->data + p->count, 32, options, NULL);
        if (n < 0 || n > 32)
            return false;
        p->count += (size_t)n;
    }
    if (!order_marks(p))
        return false;
    if (options & UTF8PROC_COMPOSE) {
        utf8proc_ssize_t n = utf8proc_normalize_utf32(p->data, (utf8proc_ssize_t)p->count, options);
        if (n < 0)
            return false;
        p->count = (size_t)n;
    }
    for (size_t i = 0; i < p->count; i++)
        put_point(out, p->data[i]);
    return !out->failed;
}

static utf8proc_option_t form_options(fm__normal_kind kind) {
    switch (kind) {
    case FM__NORMAL_NFC:
        return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case FM__NORMAL_NFD:
        return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case FM__NORMAL_NFKC:
        return UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_COMPOSE;
    default:
        return UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE;
    }
}

/* ---- one character at a time ---- */

static bool put_mapped(const char *text, size_t bytes, fm__normal_kind kind, fm__buf *out) {
    for (size_t at = 0; at < bytes;) {
        uint32_t c = 0;
        int length = fm__utf8_next(text + at, bytes - at, &c);
        if (kind == FM__NORMAL_LOWER) {
            put_point(out, c == 0x130 ? 'i' : utf8proc_tolower((utf8proc_int32_t)c));
            if (c == 0x130) /* the one capital whose small form is two characters */
                put_point(out, 0x307);
        } else if (utf8proc_category((utf8proc_int32_t)c) != UTF8PROC_CATEGORY_MN) {
            fm__buf_append(out, text + at, (size_t)length);
        }
        at += (size_t)length;
    }
    return !out->failed;
}

static bool is_ascii(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= 0x80)
            return false;
    return true;
}

/* ---- operations on a whole text: in -> out (empty) ---- */

static fm_status replace_regex(const fm__normal *normal, fm__matcher *matcher, const char *text,
                               size_t bytes, fm__buf *out, fm_error *error) {
    size_t done = 0, from = 0;
    while (from <= bytes) {
        bool found;
        size_t start, end;
        fm_status status =
            fm__regex_find(normal->regex, matcher, text, bytes, from, &found, &start, &end, error);
        if (status != FM_OK)
            return status;
        if (!found)
            break;
        fm__buf_append(out, text + done, start - done);
        fm__buf_append(out, normal->with.data, normal->with.bytes);
        done = end;
        from = end;
        if (start == end) {
            if (end == bytes)
                break;
            from += (size_t)fm__utf8_next(text + end, bytes - end, NULL);
        }
    }
    fm__buf_append(out, text + done, bytes - done);
    return FM_OK;
}

static void replace_literal(const fm__normal *normal, const fm__buf *in, fm__buf *out) {
    size_t done = 0;
    while (normal->what.bytes > 0 && done < in->bytes) {
        const char *hit =
            memmem(in->data + done, in->bytes - done, normal->what.data, normal->what.bytes);
        if (!hit)
            break;
        size_t start = (size_t)(hit - in->data);
        fm__buf_append(out, in->data + done, start - done);
        fm__buf_append(out, normal->with.data, normal->with.bytes);
        done = start + normal->what.bytes;
    }
    fm__buf_append(out, in->data + done, in->bytes - done);
}

/* SentencePiece: one space first; with merge every run of spaces is one, and outer ones go. */
static void spaces(const fm__normal *normal, const fm__buf *in, fm__buf *out) {
    bool in_word = false;
    if (!normal->merge) {
        if (normal->prefix)
            fm__buf_append(out, " ", 1);
        fm__buf_append(out, in->data, in->bytes);
        return;
    }
    for (size_t i = 0; i < in->bytes; i++) {
        bool space = in->data[i] == ' ';
        if (!space && !in_word && (normal->prefix || out->bytes > 0))
            fm__buf_append(out, " ", 1);
        if (!space)
            fm__buf_append(out, in->data + i, 1);
        in_word = !space;
    }
}

static void strip(fm__normal_kind kind, const fm__buf *in, fm__buf *out) {
    size_t start = 0, end = in->bytes;
    uint32_t c;
    int length;
    if (kind == FM__NORMAL_STRIP_LEFT)
        while (start < end && (length = fm__utf8_next(in->data + start, end - start, &c)) > 0 &&
               fm__is_white_space(c))
            start += (size_t)length;
    else
        while (end > 0) {
            size_t back = 1;
            while (back < 4 && back < end && ((unsigned char)in->data[end - back] & 0xc0) == 0x80)
                back++;
            length = fm__utf8_next(in->data + end - back, back, &c);
            if (length != (int)back || !fm__is_white_space(c))
                break;
            end -= back;
        }
    fm__buf_append(out, in->data + start, end - start);
}

/* Operations that only see valid UTF-8: each valid run through them, other bytes copied. */
static fm_status by_runs(const fm__normal *normal, fm__matcher *matcher, const fm__buf *in,
                         fm__buf *out, fm_error *error) {
    fm_status status = FM_OK;
    points scratch = {0};
    for (size_t at = 0; at < in->bytes && status == FM_OK;) {
        const char *text = in->data + at;
        size_t bytes = fm__valid_bytes(text, in->bytes - at);
        bool ok = true;
        if (normal->kind == FM__NORMAL_REPLACE_REGEX)
            status = replace_regex(normal, matcher, text, bytes, out, error);
        else if (normal->kind == FM__NORMAL_LOWER || normal->kind == FM__NORMAL_STRIP_ACCENTS)
            ok = put_mapped(text, bytes, normal->kind, out);
        else if (is_ascii(text, bytes))
            fm__buf_append(out, text, bytes);
        else
            ok = put_form(text, bytes, form_options(normal->kind), out, &scratch);
        if (!ok)
            status = fm__error_memory(error, NULL, bytes);
        at += bytes;
        if (at < in->bytes)
            fm__buf_append(out, in->data + at++, 1);
    }
    fm__free(scratch.data);
    return status;
}

fm_status fm__normalize(const fm__normal *normals, size_t n, fm__matcher *matcher, fm__buf *text,
                        fm_error *error) {
    fm_status status = FM_OK;
    fm__buf out = {0};
    for (size_t i = 0; i < n && status == FM_OK; i++) {
        const fm__normal *normal = &normals[i];
        fm__buf_clear(&out);
        if (text->bytes == 0)
            break;
        switch (normal->kind) {
        case FM__NORMAL_PREPEND:
            fm__buf_append(&out, normal->with.data, normal->with.bytes);
            fm__buf_append(&out, text->data, text->bytes);
            break;
        case FM__NORMAL_REPLACE:
            replace_literal(normal, text, &out);
            break;
        case FM__NORMAL_SPACES:
            spaces(normal, text, &out);
            break;
        case FM__NORMAL_STRIP_LEFT:
        case FM__NORMAL_STRIP_RIGHT:
            strip(normal->kind, text, &out);
            break;
        default:
            status = by_runs(normal, matcher, text, &out, error);
            break;
        }
        if (status == FM_OK && out.failed)
            status = fm__error_memory(error, NULL, text->bytes);
        fm__buf swap = *text;
        *text = out;
        out = swap;
    }
    fm__buf_finish(&out);
    return status;
}
