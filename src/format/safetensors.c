/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/safetensors.c: reads the header of one safetensors image.
 *
 * Owns: nothing; tensors go into a checkpoint. Never does: accept a hole, an overlap or a byte that
 * no tensor owns. Called from: the loading thread.
 *
 * The image: u64 header length, a JSON object {"name": {"dtype", "shape", "data_offsets": [begin,
 * end]}, "__metadata__": {...}}, then the data that the offsets count from.
 */
#include <string.h>

#include <jansson.h>

#include "format/format.h"

typedef unsigned long long ull;

enum { HEADER_LIMIT = 100000000, PREFIX = 8 };

static const fm__str none = {"", 0};

/* dtype -1: a name of the format whose elements we do not read. */
static const struct {
    const char *name;
    int dtype;
} dtypes[] = {
    {"F32", FM__F32},    {"F16", FM__F16},    {"BF16", FM__BF16}, {"F64", FM__F64}, {"I8", FM__I8},
    {"I16", FM__I16},    {"I32", FM__I32},    {"I64", FM__I64},   {"BOOL", -1},     {"U8", -1},
    {"U16", -1},         {"U32", -1},         {"U64", -1},        {"F4", -1},       {"F6_E2M3", -1},
    {"F6_E3M2", -1},     {"F8_E4M3", -1},     {"F8_E5M2", -1},    {"F8_E8M0", -1},  {"C64", -1},
    {"F8_E4M3FNUZ", -1}, {"F8_E5M2FNUZ", -1},
};

typedef struct image {
    fm__checkpoint *c;
    const uint8_t *data;
    size_t bytes;
    size_t begin; /* of the tensors' data */
    uint32_t file_index;
    const char *path;
    fm_error *error;
} image;

#define FAIL(m, status, name, ...)                                                                 \
    fm__format_error((m)->error, (status), (m)->path, "tensor", (name), __VA_ARGS__)

static fm_status parse_dtype(const image *m, const json_t *value, fm__tensor_info *info) {
    char shown[40];
    if (!json_is_string(value))
        return FAIL(m, FM_ERROR_FORMAT, info->name, "has no dtype string");
    fm__str text = {json_string_value(value), json_string_length(value)};
    fm__format_escape(text, shown, sizeof shown);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (!fm__str_is(text, dtypes[i].name))
            continue;
        if (dtypes[i].dtype < 0)
            return FAIL(m, FM_ERROR_UNSUPPORTED, info->name, "dtype %s is not read", shown);
        info->dtype = (fm__dtype)dtypes[i].dtype;
        return FM_OK;
    }
    return FAIL(m, FM_ERROR_UNSUPPORTED, info->name, "dtype %s is unknown", shown);
}

/* The last of shape's numbers varies fastest: dims are its reverse. A scalar is a vector of one. */
static fm_status parse_shape(const image *m, const json_t *value, fm__tensor_info *info) {
    if (!json_is_array(value))
        return FAIL(m, FM_ERROR_FORMAT, info->name, "has no shape array");
    size_t n = json_array_size(value);
    if (n > 4)
        return FAIL(m, FM_ERROR_UNSUPPORTED, info->name, "has %zu dimensions; at most 4 are read",
                    n);
    for (uint32_t i = 0; i < 4; i++)
        info->dims[i] = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(value, n - 1 - i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return FAIL(m, FM_ERROR_FORMAT, info->name, "shape[%zu] is not a count", n - 1 - i);
        info->dims[i] = (uint64_t)json_integer_value(dim);
    }
    info->n_dims = n == 0 ? 1 : (uint32_t)n;
    return fm__tensor_measure(info, m->path, m->error);
}

static fm_status parse_offsets(const image *m, const json_t *value, fm__tensor_info *info) {
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(first) ||
        !json_is_integer(last))
        return FAIL(m, FM_ERROR_FORMAT, info->name, "data_offsets are not two whole numbers");
    long long begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return FAIL(m, FM_ERROR_FORMAT, info->name, "data_offsets [%lld, %lld] are no range", begin,
                    end);
    uint64_t file_end = 0;
    if (!fm__add_u64(m->begin, (uint64_t)end, &file_end) || file_end > m->bytes)
        return FAIL(m, FM_ERROR_FORMAT, info->name, "ends at %llu, file has %zu",
                    (ull)m->begin + (ull)end, m->bytes);
    if ((uint64_t)(end - begin) != info->bytes)
        return FAIL(m, FM_ERROR_FORMAT, info->name,
                    "data_offsets span %llu bytes, its shape and dtype take %llu",
                    (ull)(end - begin), (ull)info->bytes);
    info->file_offset = m->begin + (uint64_t)begin;
    info->data = m->data + info->file_offset;
    return FM_OK;
}

static fm_status parse_tensor(const image *m, const char *key, const json_t *value) {
    fm__tensor_info info = {.name = fm__str_of(key), .file_index = m->file_index};
    if (!json_is_object(value))
        return FAIL(m, FM_ERROR_FORMAT, info.name, "is not described by a JSON object");
    fm_status status = parse_dtype(m, json_object_get(value, "dtype"), &info);
    if (status == FM_OK)
        status = parse_shape(m, json_object_get(value, "shape"), &info);
    if (status == FM_OK)
        status = parse_offsets(m, json_object_get(value, "data_offsets"), &info);
    if (status == FM_OK)
        status = fm__checkpoint_take_tensor(m->c, &info, m->path, info.file_offset, m->error);
    return status;
}

static fm_status parse_directory(const image *m, json_t *root) {
    const char *key;
    json_t *value;
    size_t first = m->c->n_tensors;
    fm_status status = FM_OK;
    json_object_foreach(root, key, value) {
        if (strcmp(key, "__metadata__") == 0)
            continue;
        status = parse_tensor(m, key, value);
        if (status != FM_OK)
            return status;
    }
    return fm__tensors_check_ranges(m->c, first, m->path, true, m->begin, m->bytes, m->error);
}

static fm_status check_header(image *m) {
    if (m->bytes < PREFIX)
        return fm__format_error(m->error, FM_ERROR_FORMAT, m->path, NULL, none,
                                "the file ends at offset %zu, inside the 8-byte header length",
                                m->bytes);
    uint64_t header = fm__load_le(m->data, PREFIX);
    if (header > m->bytes - PREFIX)
        return fm__format_error(
            m->error, FM_ERROR_FORMAT, m->path, NULL, none,
            "the header of %llu bytes at offset %d passes the file's end at %zu", (ull)header,
            PREFIX, m->bytes);
    if (header > HEADER_LIMIT)
        return fm__format_error(m->error, FM_ERROR_FORMAT, m->path, NULL, none,
                                "the header takes %llu bytes, %d are allowed", (ull)header,
                                HEADER_LIMIT);
    if (header < 2 || m->data[PREFIX] != '{')
        return fm__format_error(m->error, FM_ERROR_FORMAT, m->path, NULL, none,
                                "the header of %llu bytes at offset %d is not a JSON object",
                                (ull)header, PREFIX);
    m->begin = PREFIX + (size_t)header;
    return FM_OK;
}

fm_status fm__safetensors_parse(fm__checkpoint *c, const uint8_t *data, size_t bytes,
                                uint32_t file_index, const char *path, fm_error *error) {
    image m = {.c = c,
               .data = data,
               .bytes = bytes,
               .file_index = file_index,
               .path = path,
               .error = error};
    json_t *root = NULL;
    fm_status status = check_header(&m);
    if (status == FM_OK)
        status = fm__format_json(&root, (const char *)data + PREFIX, m.begin - PREFIX, PREFIX, path,
                                 error);
    if (status == FM_OK)
        status = parse_directory(&m, root);
    json_decref(root);
    return status;
}
