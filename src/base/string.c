/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/string.c: borrowed strings, growing buffers and UTF-8.
 *
 * Owns: nothing (a buffer's memory is its caller's). Never does: locales, or stopping at a NUL.
 * Called from: every thread.
 */
#include <stdarg.h>
#include <string.h>

#include "base/base.h"

fm__str fm__str_of(const char *c_string) {
    return (fm__str){c_string, c_string ? strlen(c_string) : 0};
}

bool fm__str_equal(fm__str a, fm__str b) {
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

bool fm__str_is(fm__str a, const char *c_string) {
    return fm__str_equal(a, fm__str_of(c_string));
}

bool fm__str_ends(fm__str a, const char *suffix) {
    fm__str s = fm__str_of(suffix);
    return s.bytes <= a.bytes &&
           (s.bytes == 0 || memcmp(a.data + a.bytes - s.bytes, s.data, s.bytes) == 0);
}

void fm__buf_finish(fm__buf *buf) {
    fm__free(buf->data);
    *buf = (fm__buf){0};
}

void fm__buf_clear(fm__buf *buf) {
    buf->bytes = 0;
    if (buf->data)
        buf->data[0] = 0;
}

/* Room for `more` bytes and the NUL behind them. */
static bool buf_reserve(fm__buf *buf, size_t more) {
    size_t need;
    if (buf->failed)
        return false;
    if (!fm__add_size(buf->bytes, more, &need) || !fm__add_size(need, 1, &need) ||
        need > PTRDIFF_MAX) {
        buf->failed = true;
        return false;
    }
    if (need <= buf->capacity)
        return true;
    size_t capacity = fm__max_size(need, fm__max_size(buf->capacity + buf->capacity / 2, 64));
    char *data = fm__realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    buf->data[buf->bytes] = 0;
    return true;
}

bool fm__buf_append(fm__buf *buf, const void *data, size_t bytes) {
    if (!buf_reserve(buf, bytes))
        return false;
    if (bytes)
        memcpy(buf->data + buf->bytes, data, bytes);
    buf->bytes += bytes;
    buf->data[buf->bytes] = 0;
    return true;
}

bool fm__buf_printf(fm__buf *buf, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    bool ok = length >= 0 && buf_reserve(buf, (size_t)length);
    if (ok) {
        vsnprintf(buf->data + buf->bytes, (size_t)length + 1, format, again);
        buf->bytes += (size_t)length;
    } else {
        buf->failed = true;
    }
    va_end(again);
    return ok;
}

int fm__utf8_next(const char *data, size_t bytes, uint32_t *code_point) {
    const uint8_t *s = (const uint8_t *)data;
    if (bytes == 0)
        return -1;
    uint32_t c = s[0];
    if (c < 0x80) {
        if (code_point)
            *code_point = c;
        return 1;
    }
    if (c < 0xc2 || c > 0xf4)
        return 0;
    int length = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    /* The second byte's range keeps out overlong forms, surrogates and values above 10FFFF. */
    uint8_t low = 0x80, high = 0xbf;
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    c &= 0x7fu >> length;
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= bytes)
            return -1;
        if (s[i] < low || s[i] > high)
            return 0;
        c = c << 6 | (s[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    if (code_point)
        *code_point = c;
    return length;
}

size_t fm__utf8_put(uint32_t code_point, char out[4]) {
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    size_t length = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code_point & 0x3f));
        code_point >>= 6;
    }
    out[0] = (char)((0xf00u >> length & 0xff) | code_point);
    return length;
}
