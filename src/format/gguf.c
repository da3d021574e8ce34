/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/gguf.c: reads the header, keys and tensor directory of one GGUF image, version 2 or 3.
 *
 * Owns: nothing; what it finds goes into a checkpoint. Never does: allocate by a number that the
 * file claims, or read a byte that it has not compared with the image's end. Called from: the
 * loading thread.
 *
 * The image: magic, u32 version, u64 tensors, u64 keys; the keys (string name, u32 type, value);
 * the tensors (string name, u32 n_dims, u64 dims[], u32 type, u64 offset); zeros up to the
 * alignment; the data, each tensor at its offset from there. A string is a u64 length and bytes.
 */
#include <string.h>

#include "format/format.h"

typedef unsigned long long ull;

enum {
    COUNTS_AT = 8, /* offset of the tensor and key counts */
    LEAST_KEY = 8 + 1 + 4 + 1,
    LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8,
    DEFAULT_ALIGNMENT = 32,
};

typedef struct reader {
    const uint8_t *data;
    size_t bytes, at;
    const char *path;
    const char *noun; /* "key" or "tensor" while inside one, else NULL */
    fm__str name;
    fm_error *error;
} reader;

#define FAIL(r, status, ...)                                                                       \
    fm__format_error((r)->error, (status), (r)->path, (r)->noun, (r)->name, __VA_ARGS__)

static fm_status cut(const reader *r, const char *what, uint64_t bytes) {
    return FAIL(r, FM_ERROR_FORMAT, "%s at offset %zu takes %llu bytes, the file ends at %zu", what,
                r->at, (ull)bytes, r->bytes);
}

static fm_status read_number(reader *r, const char *what, size_t bytes, uint64_t *out) {
    if (r->bytes - r->at < bytes)
        return cut(r, what, bytes);
    *out = fm__load_le(r->data + r->at, bytes);
    r->at += bytes;
    return FM_OK;
}

static fm_status read_string(reader *r, const char *what, fm__str *out) {
    uint64_t length = 0;
    fm_status status = read_number(r, what, 8, &length);
    if (status != FM_OK)
        return status;
    if (length > r->bytes - r->at)
        return cut(r, what, length);
    *out = (fm__str){(const char *)r->data + r->at, (size_t)length};
    r->at += (size_t)length;
    return FM_OK;
}

/* ---- header ---- */

static fm_status check_version(reader *r, fm__checkpoint *c) {
    uint64_t version = 0;
    if (r->bytes < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return fm__foreign_error(r->data, r->bytes, r->path, r->error);
    r->at = 4;
    fm_status status = read_number(r, "the version", 4, &version);
    if (status != FM_OK)
        return status;
    if (version != 0 && (version & 0xFFFF) == 0)
        return FAIL(r, FM_ERROR_UNSUPPORTED,
                    "a big-endian GGUF of version %llu; only little-endian files are read",
                    (ull)(__builtin_bswap32((uint32_t)version)));
    if (version == 1)
        return FAIL(r, FM_ERROR_UNSUPPORTED,
                    "GGUF version 1 (32-bit sizes) is not read, convert it to version 3");
    if (version != 2 && version != 3)
        return FAIL(r, FM_ERROR_UNSUPPORTED, "GGUF version %llu; versions 2 and 3 are read",
                    (ull)version);
    snprintf(c->format, sizeof c->format, "gguf v%u", (unsigned)version);
    return FM_OK;
}

static fm_status read_counts(reader *r, uint64_t *n_tensors, uint64_t *n_kvs) {
    fm_status status = read_number(r, "the number of tensors", 8, n_tensors);
    if (status == FM_OK)
        status = read_number(r, "the number of keys", 8, n_kvs);
    if (status != FM_OK)
        return status;
    uint64_t left = r->bytes - r->at;
    if (*n_kvs > left / LEAST_KEY)
        return FAIL(r, FM_ERROR_FORMAT,
                    "%llu keys at offset %d, but the file ends at %zu and has room for %llu",
                    (ull)*n_kvs, COUNTS_AT + 8, r->bytes, (ull)(left / LEAST_KEY));
    left -= *n_kvs * LEAST_KEY;
    if (*n_tensors > left / LEAST_TENSOR)
        return FAIL(r, FM_ERROR_FORMAT,
                    "%llu tensors at offset %d, but the file ends at %zu and has room for %llu",
                    (ull)*n_tensors, COUNTS_AT, r->bytes, (ull)(left / LEAST_TENSOR));
    return FM_OK;
}

/* ---- keys ---- */

static fm_status check_bools(const reader *r, const uint8_t *data, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (data[i] > 1)
            return FAIL(r, FM_ERROR_FORMAT, "a bool at offset %zu is %u",
                        (size_t)(data - r->data) + (size_t)i, data[i]);
    return FM_OK;
}

static fm_status read_array(reader *r, fm__kv *kv) {
    uint64_t element = 0;
    size_t element_at = r->at;
    fm_status status = read_number(r, "the array's type", 4, &element);
    if (status == FM_OK)
        status = read_number(r, "the array's length", 8, &kv->count);
    if (status != FM_OK)
        return status;
    if (element == FM__KV_ARRAY)
        return FAIL(r, FM_ERROR_UNSUPPORTED, "an array of arrays at offset %zu is not read",
                    element_at);
    if (fm__kv_type_name((uint32_t)element) == NULL)
        return FAIL(r, FM_ERROR_FORMAT, "array type %llu at offset %zu is unknown", (ull)element,
                    element_at);
    kv->element = (fm__kv_type)element;
    kv->data = r->data + r->at;
    size_t least = element == FM__KV_STRING ? 8 : fm__kv_scalar_bytes((uint32_t)element);
    if (kv->count > (r->bytes - r->at) / least)
        return FAIL(r, FM_ERROR_FORMAT,
                    "an array of %llu elements at offset %zu, but the file ends at %zu",
                    (ull)kv->count, r->at, r->bytes);
    if (element == FM__KV_STRING) {
        fm__str ignored;
        for (uint64_t i = 0; status == FM_OK && i < kv->count; i++)
            status = read_string(r, "a string of the array", &ignored);
    } else {
        r->at += (size_t)kv->count * least;
        if (element == FM__KV_BOOL)
            status = check_bools(r, kv->data, kv->count);
    }
    kv->data_bytes = (size_t)(r->data + r->at - kv->data);
    return status;
}

static fm_status read_value(reader *r, fm__kv *kv) {
    fm_status status;
    if (kv->type == FM__KV_ARRAY)
        return read_array(r, kv);
    kv->count = 1;
    if (kv->type == FM__KV_STRING) {
        status = read_string(r, "the string", &kv->string);
        kv->data = (const uint8_t *)kv->string.data;
        kv->data_bytes = kv->string.bytes;
        return status;
    }
    uint64_t bits = 0;
    kv->data = r->data + r->at;
    kv->data_bytes = fm__kv_scalar_bytes((uint32_t)kv->type);
    status = read_number(r, "the value", kv->data_bytes, &bits);
    if (status == FM_OK && kv->type == FM__KV_BOOL)
        status = check_bools(r, kv->data, 1);
    return status;
}

static fm_status read_name(reader *r, const char *noun, const char *what, fm__str *name) {
    fm_status status = read_string(r, what, name);
    if (status != FM_OK)
        return status;
    r->noun = noun;
    r->name = *name;
    const char *fault = fm__name_fault(*name);
    if (fault)
        return FAIL(r, FM_ERROR_FORMAT, "%s, at offset %zu", fault, r->at - name->bytes);
    return FM_OK;
}

static fm_status read_key(reader *r, fm__checkpoint *c) {
    fm__kv kv = {0};
    size_t begin = r->at;
    uint64_t type = 0;
    r->noun = NULL;
    fm_status status = read_name(r, "key", "the name of a key", &kv.key);
    if (status == FM_OK)
        status = read_number(r, "the type", 4, &type);
    if (status != FM_OK)
        return status;
    if (fm__kv_type_name((uint32_t)type) == NULL)
        return FAIL(r, FM_ERROR_FORMAT, "type %llu at offset %zu is unknown", (ull)type, r->at - 4);
    kv.type = (fm__kv_type)type;
    status = read_value(r, &kv);
    if (status == FM_OK)
        status = fm__checkpoint_take_kv(c, &kv, r->path, begin, r->error);
    return status;
}

static fm_status read_alignment(reader *r, const fm__checkpoint *c, uint64_t *alignment) {
    *alignment = DEFAULT_ALIGNMENT;
    fm_status status = fm__kv_read_u64(c, "general.alignment", false, alignment, r->error);
    if (status != FM_OK)
        return status;
    r->noun = "key";
    r->name = FM__STR("general.alignment");
    if (*alignment == 0 || (*alignment & (*alignment - 1)) != 0 || *alignment > UINT32_MAX)
        return FAIL(r, FM_ERROR_FORMAT, "%llu is not a power of two", (ull)*alignment);
    return FM_OK;
}

/* ---- tensors ---- */

static fm_status read_dims(reader *r, fm__tensor_info *info) {
    uint64_t n_dims = 0;
    fm_status status = read_number(r, "the number of dimensions", 4, &n_dims);
    if (status != FM_OK)
        return status;
    if (n_dims < 1 || n_dims > 4)
        return FAIL(r, FM_ERROR_FORMAT, "%llu dimensions at offset %zu; 1 to 4 are possible",
                    (ull)n_dims, r->at - 4);
    info->n_dims = (uint32_t)n_dims;
    for (uint32_t i = 0; i < 4; i++)
        info->dims[i] = 1;
    for (uint32_t i = 0; status == FM_OK && i < info->n_dims; i++)
        status = read_number(r, "a dimension", 8, &info->dims[i]);
    return status;
}

static fm_status check_type(const reader *r, uint32_t type) {
    if (fm__dtype_get(type) != NULL)
        return FM_OK;
    const char *name = fm__dtype_foreign_name(type);
    if (name != NULL)
        return FAIL(r, FM_ERROR_UNSUPPORTED, "type %s (%u) is not read", name, type);
    return FAIL(r, FM_ERROR_UNSUPPORTED, "type %u at offset %zu is unknown", type, r->at - 4);
}

/* file_offset is relative to the data's start until place_tensors(). */
static fm_status read_tensor(reader *r, fm__checkpoint *c, uint32_t file_index) {
    fm__tensor_info info = {.file_index = file_index};
    size_t begin = r->at;
    uint64_t type = 0;
    r->noun = NULL;
    fm_status status = read_name(r, "tensor", "the name of a tensor", &info.name);
    if (status == FM_OK)
        status = read_dims(r, &info);
    if (status == FM_OK)
        status = read_number(r, "the type", 4, &type);
    if (status == FM_OK)
        status = check_type(r, (uint32_t)type);
    info.dtype = (fm__dtype)type;
    if (status == FM_OK)
        status = read_number(r, "the data's offset", 8, &info.file_offset);
    if (status == FM_OK)
        status = fm__tensor_measure(&info, r->path, r->error);
    if (status == FM_OK)
        status = fm__checkpoint_take_tensor(c, &info, r->path, begin, r->error);
    return status;
}

static fm_status place_tensor(reader *r, fm__tensor_info *info, uint64_t base, uint64_t alignment) {
    uint64_t begin = 0, end = 0;
    r->noun = "tensor";
    r->name = info->name;
    if (info->file_offset % alignment != 0)
        return FAIL(r, FM_ERROR_FORMAT, "data offset %llu is not a multiple of the alignment %llu",
                    (ull)info->file_offset, (ull)alignment);
    if (!fm__add_u64(base, info->file_offset, &begin) || !fm__add_u64(begin, info->bytes, &end))
        return FAIL(r, FM_ERROR_FORMAT, "data offset %llu and %llu bytes overflow",
                    (ull)info->file_offset, (ull)info->bytes);
    if (end > r->bytes)
        return FAIL(r, FM_ERROR_FORMAT, "ends at %llu, file has %zu", (ull)end, r->bytes);
    info->file_offset = begin;
    info->data = r->data + begin;
    return FM_OK;
}

/* Not every writer pads behind the last part, so a file may end right there; one that ends within
   the padding has been cut. */
static fm_status check_padding(reader *r, uint64_t end, uint64_t padded) {
    r->noun = NULL;
    if (r->bytes > end && r->bytes < padded)
        return FAIL(r, FM_ERROR_FORMAT,
                    "the file ends at offset %zu, inside the padding from %llu to %llu", r->bytes,
                    (ull)end, (ull)padded);
    return FM_OK;
}

static uint64_t align_up(uint64_t x, uint64_t alignment) { /* a power of two, x < 2^63 */
    return (x + alignment - 1) & ~(alignment - 1);
}

static fm_status place_tensors(reader *r, fm__checkpoint *c, size_t first, uint64_t alignment) {
    uint64_t base = align_up(r->at, alignment), end = 0;
    fm_status status = check_padding(r, r->at, base);
    for (size_t i = first; status == FM_OK && i < c->n_tensors; i++) {
        status = place_tensor(r, &c->tensors[i], base, alignment);
        if (c->tensors[i].file_offset + c->tensors[i].bytes > end)
            end = c->tensors[i].file_offset + c->tensors[i].bytes;
    }
    if (status == FM_OK)
        status = fm__tensors_check_ranges(c, first, r->path, false, base, 0, r->error);
    if (status == FM_OK && c->n_tensors > first)
        status = check_padding(r, end, base + align_up(end - base, alignment));
    return status;
}

fm_status fm__gguf_parse(fm__checkpoint *c, const uint8_t *data, size_t bytes, uint32_t file_index,
                         const char *path, fm_error *error) {
    reader r = {.data = data, .bytes = bytes, .path = path, .error = error};
    uint64_t n_tensors = 0, n_kvs = 0, alignment = 0;
    size_t first = c->n_tensors;
    fm_status status = check_version(&r, c);
    if (status == FM_OK)
        status = read_counts(&r, &n_tensors, &n_kvs);
    for (uint64_t i = 0; status == FM_OK && i < n_kvs; i++)
        status = read_key(&r, c);
    if (status == FM_OK)
        status = read_alignment(&r, c, &alignment);
    for (uint64_t i = 0; status == FM_OK && i < n_tensors; i++)
        status = read_tensor(&r, c, file_index);
    if (status == FM_OK)
        status = place_tensors(&r, c, first, alignment);
    return status;
}
