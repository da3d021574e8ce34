/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/kv.c: typed reads of keys, and their values as text.
 *
 * Owns: nothing. Never does: coerce a value that does not fit. Called from: the loading thread, and
 * whoever lists a checkpoint.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"

enum { SHOWN_ELEMENTS = 16 }; /* of an array in a listing */

static const struct {
    const char *name;
    uint8_t bytes;
} types[] = {
    [FM__KV_U8] = {"u8", 1},       [FM__KV_I8] = {"i8", 1},     [FM__KV_U16] = {"u16", 2},
    [FM__KV_I16] = {"i16", 2},     [FM__KV_U32] = {"u32", 4},   [FM__KV_I32] = {"i32", 4},
    [FM__KV_F32] = {"f32", 4},     [FM__KV_BOOL] = {"bool", 1}, [FM__KV_STRING] = {"string", 0},
    [FM__KV_ARRAY] = {"array", 0}, [FM__KV_U64] = {"u64", 8},   [FM__KV_I64] = {"i64", 8},
    [FM__KV_F64] = {"f64", 8},
};

enum { N_TYPES = sizeof types / sizeof *types };

const char *fm__kv_type_name(uint32_t type) {
    return type < N_TYPES ? types[type].name : NULL;
}

size_t fm__kv_scalar_bytes(uint32_t type) {
    return type < N_TYPES ? types[type].bytes : 0;
}

/* ---- scalars ---- */

typedef struct scalar {
    enum { UNSIGNED, SIGNED, REAL, TRUTH } kind;
    uint64_t bits; /* of a signed number too */
    double real;
} scalar;

static scalar load_scalar(fm__kv_type type, const uint8_t *data) {
    scalar s = {UNSIGNED, fm__load_le(data, fm__kv_scalar_bytes((uint32_t)type)), 0};
    switch (type) {
    case FM__KV_I8:
        s.kind = SIGNED;
        s.bits = (uint64_t)(int64_t)(int8_t)s.bits;
        break;
    case FM__KV_I16:
        s.kind = SIGNED;
        s.bits = (uint64_t)(int64_t)(int16_t)s.bits;
        break;
    case FM__KV_I32:
        s.kind = SIGNED;
        s.bits = (uint64_t)(int64_t)(int32_t)s.bits;
        break;
    case FM__KV_I64:
        s.kind = SIGNED;
        break;
    case FM__KV_F32:
        s.kind = REAL;
        s.real = (double)fm__bits_f32((uint32_t)s.bits);
        break;
    case FM__KV_F64:
        s.kind = REAL;
        memcpy(&s.real, &s.bits, sizeof s.real);
        break;
    case FM__KV_BOOL:
        s.kind = TRUTH;
        break;
    default:
        break;
    }
    return s;
}

static double scalar_number(scalar s) {
    return s.kind == REAL ? s.real : s.kind == SIGNED ? (double)(int64_t)s.bits : (double)s.bits;
}

double fm__kv_element(const fm__kv *kv, uint64_t i) {
    size_t bytes = fm__kv_scalar_bytes((uint32_t)kv->element);
    if (kv->type != FM__KV_ARRAY || bytes == 0 || i >= kv->count)
        return 0;
    return scalar_number(load_scalar(kv->element, kv->data + i * bytes));
}

bool fm__kv_next_string(const fm__kv *kv, size_t *cursor, fm__str *out) {
    if (kv->type != FM__KV_ARRAY || kv->element != FM__KV_STRING || *cursor >= kv->data_bytes)
        return false;
    /* Every length was checked when the file was opened. */
    size_t length = (size_t)fm__load_le(kv->data + *cursor, 8);
    *out = (fm__str){(const char *)kv->data + *cursor + 8, length};
    *cursor += 8 + length;
    return true;
}

/* ---- typed reads ---- */

static fm_status missing(const fm__checkpoint *c, const char *key, bool required, fm_error *e) {
    if (!required)
        return FM_OK;
    return fm__format_error(e, FM_ERROR_FORMAT, c->path, "key", fm__str_of(key), "is missing");
}

static fm_status wrong_type(const fm__checkpoint *c, const fm__kv *kv, const char *wanted,
                            fm_error *e) {
    char type[48];
    fm__kv_type_text(kv, type, sizeof type);
    return fm__format_error(e, FM_ERROR_FORMAT, c->path, "key", kv->key, "is %s, %s is needed",
                            type, wanted);
}

static fm_status does_not_fit(const fm__checkpoint *c, const fm__kv *kv, const char *wanted,
                              fm_error *e) {
    char value[64];
    fm__kv_value_text(kv, value, sizeof value);
    return fm__format_error(e, FM_ERROR_FORMAT, c->path, "key", kv->key, "%s does not fit %s",
                            value, wanted);
}

static fm_status read_unsigned(const fm__checkpoint *c, const char *key, bool required,
                               uint64_t limit, const char *wanted, uint64_t *out, fm_error *e) {
    const fm__kv *kv = fm__checkpoint_kv(c, key);
    if (!kv)
        return missing(c, key, required, e);
    if (kv->type == FM__KV_STRING || kv->type == FM__KV_ARRAY)
        return wrong_type(c, kv, wanted, e);
    scalar s = load_scalar(kv->type, kv->data);
    if (s.kind == REAL || s.kind == TRUTH)
        return wrong_type(c, kv, wanted, e);
    if ((s.kind == SIGNED && (int64_t)s.bits < 0) || s.bits > limit)
        return does_not_fit(c, kv, wanted, e);
    *out = s.bits;
    return FM_OK;
}

fm_status fm__kv_read_u64(const fm__checkpoint *c, const char *key, bool required, uint64_t *out,
                          fm_error *e) {
    return read_unsigned(c, key, required, UINT64_MAX, "an unsigned 64-bit number", out, e);
}

fm_status fm__kv_read_u32(const fm__checkpoint *c, const char *key, bool required, uint32_t *out,
                          fm_error *e) {
    uint64_t wide = *out;
    fm_status status =
        read_unsigned(c, key, required, UINT32_MAX, "an unsigned 32-bit number", &wide, e);
    if (status == FM_OK)
        *out = (uint32_t)wide;
    return status;
}

fm_status fm__kv_read_f32(const fm__checkpoint *c, const char *key, bool required, float *out,
                          fm_error *e) {
    static const char wanted[] = "a finite 32-bit float";
    const fm__kv *kv = fm__checkpoint_kv(c, key);
    if (!kv)
        return missing(c, key, required, e);
    if (kv->type == FM__KV_STRING || kv->type == FM__KV_ARRAY || kv->type == FM__KV_BOOL)
        return wrong_type(c, kv, wanted, e);
    double number = scalar_number(load_scalar(kv->type, kv->data));
    if (!isfinite(number) || !isfinite((float)number))
        return does_not_fit(c, kv, wanted, e);
    *out = (float)number;
    return FM_OK;
}

fm_status fm__kv_read_bool(const fm__checkpoint *c, const char *key, bool required, bool *out,
                           fm_error *e) {
    const fm__kv *kv = fm__checkpoint_kv(c, key);
    if (!kv)
        return missing(c, key, required, e);
    if (kv->type != FM__KV_BOOL)
        return wrong_type(c, kv, "a bool", e);
    *out = kv->data[0] != 0;
    return FM_OK;
}

fm_status fm__kv_read_str(const fm__checkpoint *c, const char *key, bool required, fm__str *out,
                          fm_error *e) {
    const fm__kv *kv = fm__checkpoint_kv(c, key);
    if (!kv)
        return missing(c, key, required, e);
    if (kv->type != FM__KV_STRING)
        return wrong_type(c, kv, "a string", e);
    *out = kv->string;
    return FM_OK;
}

/* ---- text ---- */

void fm__kv_type_text(const fm__kv *kv, char *out, size_t capacity) {
    if (kv->type == FM__KV_ARRAY)
        snprintf(out, capacity, "array of %s [%llu]", fm__kv_type_name((uint32_t)kv->element),
                 (unsigned long long)kv->count);
    else
        snprintf(out, capacity, "%s", fm__kv_type_name((uint32_t)kv->type));
}

/* The fewest digits that give the same number back. */
static int real_text(double value, bool single, char out[40]) {
    int last = single ? 9 : 17, length = 0;
    for (int digits = single ? 6 : 15; digits <= last; digits++) {
        length = snprintf(out, 40, "%.*g", digits, value);
        double back = strtod(out, NULL);
        if (single ? (float)back == (float)value : back == value)
            break;
    }
    for (int i = 0; i < length; i++)
        if (out[i] == ',') /* the program's locale may write a comma */
            out[i] = '.';
    return length;
}

static void sink_scalar(fm__sink *sink, fm__kv_type type, const uint8_t *data) {
    char text[40];
    int length;
    scalar s = load_scalar(type, data);
    if (s.kind == REAL)
        length = real_text(s.real, type == FM__KV_F32, text);
    else if (s.kind == TRUTH)
        length = snprintf(text, sizeof text, "%s", s.bits ? "true" : "false");
    else if (s.kind == SIGNED)
        length = snprintf(text, sizeof text, "%lld", (long long)s.bits);
    else
        length = snprintf(text, sizeof text, "%llu", (unsigned long long)s.bits);
    fm__sink_text(sink, text, (size_t)length);
}

static void sink_array(fm__sink *sink, const fm__kv *kv) {
    size_t bytes = fm__kv_scalar_bytes((uint32_t)kv->element), cursor = 0;
    fm__sink_text(sink, "[", 1);
    for (uint64_t i = 0; i < kv->count && i < SHOWN_ELEMENTS; i++) {
        fm__str string;
        if (i > 0)
            fm__sink_text(sink, ", ", 2);
        if (kv->element != FM__KV_STRING)
            sink_scalar(sink, kv->element, kv->data + i * bytes);
        else if (fm__kv_next_string(kv, &cursor, &string))
            fm__sink_string(sink, string, true);
    }
    if (kv->count > SHOWN_ELEMENTS)
        fm__sink_text(sink, ", ...", 5);
    else
        fm__sink_text(sink, "]", 1);
}

size_t fm__kv_value_text(const fm__kv *kv, char *out, size_t capacity) {
    fm__sink sink = fm__sink_of(out, capacity);
    if (kv->type == FM__KV_STRING)
        fm__sink_string(&sink, kv->string, false);
    else if (kv->type == FM__KV_ARRAY)
        sink_array(&sink, kv);
    else
        sink_scalar(&sink, kv->type, kv->data);
    return sink.total;
}
