/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/status.c: the status table and filling fm_error.
 *
 * Owns: nothing. Never does: printing, or failing itself: a sentence that is too long is cut, a
 * byte that is not UTF-8 becomes '?'. Called from: every thread.
 */
#include <stdarg.h>
#include <string.h>

#include "base/base.h"

const char *fm_status_name(fm_status status) {
    switch (status) {
#define FM_STATUS_CASE(name, value, text)                                                          \
    case name:                                                                                     \
        return #name;
        FM_STATUS_LIST(FM_STATUS_CASE)
#undef FM_STATUS_CASE
    }
    return "unknown status";
}

const char *fm_status_text(fm_status status) {
    switch (status) {
#define FM_STATUS_CASE(name, value, text)                                                          \
    case name:                                                                                     \
        return text;
        FM_STATUS_LIST(FM_STATUS_CASE)
#undef FM_STATUS_CASE
    }
    return "unknown status";
}

/* Copies text into out, whole characters only. Paths and tensor names come from outside, so bytes
   that are not UTF-8 and control characters (a terminal would obey them) become '?'. */
static void copy_clean(char *out, size_t capacity, const char *text) {
    size_t n = 0, left = strlen(text);
    while (left > 0) {
        uint32_t code_point = 0;
        int length = fm__utf8_next(text, left, &code_point);
        bool clean = length > 0 && code_point >= 0x20 && (code_point < 0x7f || code_point > 0x9f);
        size_t take = length > 0 ? (size_t)length : 1, put = clean ? take : 1;
        if (n + put + 1 > capacity)
            break;
        if (clean)
            memcpy(out + n, text, take);
        else
            out[n] = '?';
        n += put;
        text += take;
        left -= take;
    }
    out[n] = 0;
}

/* vsnprintf cuts at a byte: what is left of a cut character is taken away. */
static void drop_cut_tail(char *text, size_t bytes) {
    for (size_t back = 1; back <= 3 && back <= bytes; back++)
        if (fm__utf8_next(text + bytes - back, back, NULL) < 0)
            text[bytes - back] = 0;
}

fm_status fm__error(fm_error *error, fm_status status, const char *place, const char *format, ...) {
    if (!error)
        return status;
    /* Formatted aside first: place and the arguments may point into *error. */
    char message[sizeof error->message + 4], where[sizeof error->place];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (length < 0)
        message[0] = 0;
    else if ((size_t)length >= sizeof message)
        drop_cut_tail(message, sizeof message - 1);
    copy_clean(where, sizeof where, place ? place : "");
    error->status = status;
    copy_clean(error->message, sizeof error->message, message);
    memcpy(error->place, where, sizeof where);
    return status;
}

fm_status fm__error_within(fm_error *error, fm_status status, const char *outer) {
    if (!error)
        return status;
    char where[sizeof error->place], joined[2 * sizeof error->place + 2];
    copy_clean(where, sizeof where, outer);
    if (error->place[0])
        snprintf(joined, sizeof joined, "%s: %s", where, error->place);
    else
        memcpy(joined, where, sizeof where);
    copy_clean(error->place, sizeof error->place, joined);
    return error->status;
}

fm_status fm__error_memory(fm_error *error, const char *place, size_t bytes) {
    return fm__error(error, FM_ERROR_MEMORY, place, "%zu bytes could not be allocated", bytes);
}
