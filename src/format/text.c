/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/text.c: untrusted bytes made fit for messages and listings.
 *
 * Owns: nothing. Never does: allocate; hand on a byte that is not valid UTF-8 or that would steer a
 * terminal. Called from: the loading thread.
 */
#include <stdarg.h>
#include <string.h>

#include "format/format.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

static bool is_control(uint32_t code_point) {
    return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0);
}

/* The character at data[0]: its length if it can be shown as it is, else 0. */
static size_t printable(const char *data, size_t bytes) {
    uint32_t code_point = 0;
    int length = fm__utf8_next(data, bytes, &code_point);
    return length > 0 && !is_control(code_point) ? (size_t)length : 0;
}

char *fm__format_escape(fm__str name, char *out, size_t capacity) {
    size_t at = 0, i = 0, dots_at = 0; /* the last place where "..." still fits */
    while (i < name.bytes) {
        char piece[8];
        size_t length = printable(name.data + i, name.bytes - i);
        size_t taken = length > 0 ? length : 1;
        if (length > 0)
            memcpy(piece, name.data + i, length);
        else
            length = (size_t)snprintf(piece, sizeof piece, "\\x%02X", (uint8_t)name.data[i]);
        if (at + 4 <= capacity)
            dots_at = at;
        if (at + length + 1 > capacity) {
            at = dots_at;
            if (at + 4 <= capacity)
                memcpy(out + at, "...", 3);
            at = at + 4 <= capacity ? at + 3 : 0;
            break;
        }
        memcpy(out + at, piece, length);
        at += length;
        i += taken;
    }
    if (capacity > 0)
        out[at] = '\0';
    return out;
}

/* A long path keeps its end, which holds the file's name. */
static void escape_path(const char *path, char *out, size_t capacity) {
    fm__str whole = fm__str_of(path);
    size_t room = capacity - 1 - 3;
    if (whole.bytes <= room) {
        fm__format_escape(whole, out, capacity);
        return;
    }
    size_t from = whole.bytes - room;
    while (from < whole.bytes && ((uint8_t)whole.data[from] & 0xC0) == 0x80)
        from++;
    memcpy(out, "...", 3);
    fm__format_escape((fm__str){whole.data + from, whole.bytes - from}, out + 3, capacity - 3);
}

fm_status fm__format_error(fm_error *error, fm_status status, const char *path, const char *noun,
                           fm__str name, const char *format, ...) {
    char place[192], message[384], file[100], escaped[80];
    va_list arguments;
    escape_path(path, file, sizeof file);
    if (noun == NULL)
        snprintf(place, sizeof place, "%s", file);
    else
        snprintf(place, sizeof place, "%s: %s %s", file, noun,
                 fm__format_escape(name, escaped, sizeof escaped));
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return fm__error(error, status, place, "%s", message);
}

const char *fm__name_fault(fm__str name) {
    if (name.bytes == 0)
        return "the name is empty";
    if (name.bytes > FM__NAME_LIMIT)
        return "the name is longer than 65535 bytes";
    for (size_t i = 0; i < name.bytes;) {
        uint32_t code_point = 0;
        int length = fm__utf8_next(name.data + i, name.bytes - i, &code_point);
        if (length <= 0)
            return "the name is not valid UTF-8";
        if (is_control(code_point))
            return "the name holds a control character";
        i += (size_t)length;
    }
    return NULL;
}

fm__sink fm__sink_of(char *out, size_t capacity) {
    if (capacity > 0)
        out[0] = '\0';
    return (fm__sink){.out = out, .capacity = capacity};
}

void fm__sink_text(fm__sink *sink, const char *data, size_t bytes) {
    sink->total += bytes;
    if (sink->full || sink->at + bytes + 1 > sink->capacity) {
        sink->full = true; /* later, shorter pieces must not fill the gap */
        return;
    }
    memcpy(sink->out + sink->at, data, bytes);
    sink->at += bytes;
    sink->out[sink->at] = '\0';
}

void fm__sink_string(fm__sink *sink, fm__str text, bool quoted) {
    if (quoted)
        fm__sink_text(sink, "\"", 1);
    for (size_t i = 0; i < text.bytes;) {
        uint32_t code_point = 0;
        char piece[8];
        int length = fm__utf8_next(text.data + i, text.bytes - i, &code_point);
        if (length <= 0) {
            fm__sink_text(sink, replacement, sizeof replacement - 1);
            i++;
            continue;
        }
        if (quoted && (code_point == '"' || code_point == '\\')) {
            piece[0] = '\\';
            piece[1] = (char)code_point;
            fm__sink_text(sink, piece, 2);
        } else if (quoted && code_point == '\n') {
            fm__sink_text(sink, "\\n", 2);
        } else if (is_control(code_point) &&
                   (quoted || (code_point != '\n' && code_point != '\t'))) {
            int n = snprintf(piece, sizeof piece, "\\u%04X", code_point);
            fm__sink_text(sink, piece, (size_t)n);
        } else {
            fm__sink_text(sink, text.data + i, (size_t)length);
        }
        i += (size_t)length;
    }
    if (quoted)
        fm__sink_text(sink, "\"", 1);
}
