/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/checkpoint.c: the directory of keys and tensors, and which reader fills it.
 *
 * Owns: a checkpoint's arrays, indexes and mappings. Never does: parse a format; add a name twice.
 * Called from: the loading thread. Adding a key or tensor moves the arrays: pointers into them are
 * valid until the next add.
 */
#include <string.h>

#include "format/format.h"

enum { ARENA_BLOCK = 16 * 1024 };

fm_status fm__checkpoint_create(fm__checkpoint **out, fm__checkpoint_kind kind, const char *path,
                                fm_error *error) {
    if (strlen(path) >= sizeof((*out)->path))
        return fm__format_error(error, FM_ERROR_ARGUMENT, path, NULL, FM__STR(""),
                                "the path is longer than %zu bytes", sizeof((*out)->path) - 1);
    fm__checkpoint *c = fm__alloc_zero(sizeof *c);
    if (!c)
        return fm__error_memory(error, path, sizeof *c);
    c->kind = kind;
    memcpy(c->path, path, strlen(path) + 1);
    snprintf(c->format, sizeof c->format, "%s",
             kind == FM__CHECKPOINT_GGUF ? "gguf v3" : "safetensors");
    fm__arena_init(&c->arena, ARENA_BLOCK);
    if (!fm__map_init(&c->kv_index, 0) || !fm__map_init(&c->tensor_index, 0)) {
        fm__checkpoint_close(&c);
        return fm__error_memory(error, path, 0);
    }
    *out = c;
    return FM_OK;
}

void fm__checkpoint_close(fm__checkpoint **checkpoint) {
    if (checkpoint == NULL || *checkpoint == NULL)
        return;
    fm__checkpoint *c = *checkpoint;
    *checkpoint = NULL;
    for (size_t i = 0; i < c->n_files; i++)
        fm__mapping_close(&c->files[i]);
    fm__free(c->files);
    fm__free(c->kvs);
    fm__free(c->tensors);
    fm__map_finish(&c->kv_index);
    fm__map_finish(&c->tensor_index);
    fm__free(c->config);
    fm__free(c->tokenizer);
    fm__free(c->tokenizer_config);
    fm__free(c->generation_config);
    fm__arena_finish(&c->arena);
    fm__checkpoint_close(&c->base);
    fm__free(c);
}

/* ---- opening ---- */

static fm_status open_gguf(fm__checkpoint **out, fm__mapping *mapping, const char *path,
                           fm_error *error) {
    fm__checkpoint *c = NULL;
    const uint8_t *data = mapping->data;
    size_t bytes = mapping->bytes;
    fm_status status = fm__checkpoint_create(&c, FM__CHECKPOINT_GGUF, path, error);
    if (status != FM_OK) {
        fm__mapping_close(mapping);
        return status;
    }
    status = fm__checkpoint_take_file(c, mapping, error);
    if (status == FM_OK)
        status = fm__gguf_parse(c, data, bytes, 0, path, error);
    if (status == FM_OK)
        status = fm__gguf_open_parts(c, false, error);
    if (status != FM_OK)
        fm__checkpoint_close(&c);
    else
        *out = c;
    return status;
}

fm_status fm__checkpoint_open(fm__checkpoint **out, const char *path, fm_error *error) {
    fm__mapping mapping = {0};
    *out = NULL;
    if (path == NULL || path[0] == '\0')
        return fm__error(error, FM_ERROR_ARGUMENT, "", "the path is empty");
    if (fm__path_is_directory(path))
        return fm__safetensors_open_folder(out, path, error);
    fm_status status = fm__mapping_open(&mapping, path, error);
    if (status != FM_OK)
        return status;
    if (mapping.bytes >= 4 && memcmp(mapping.data, "GGUF", 4) == 0)
        return open_gguf(out, &mapping, path, error);
    if (fm__foreign_is_safetensors(mapping.data, mapping.bytes))
        status = fm__safetensors_open_file(out, path, error);
    else
        status = fm__foreign_error(mapping.data, mapping.bytes, path, error);
    fm__mapping_close(&mapping);
    return status;
}

fm_status fm__checkpoint_open_memory(fm__checkpoint **out, const void *image, size_t bytes,
                                     const char *name, fm_error *error) {
    fm__checkpoint *c = NULL;
    *out = NULL;
    fm_status status = fm__checkpoint_create(&c, FM__CHECKPOINT_GGUF, name, error);
    if (status != FM_OK)
        return status;
    status = fm__gguf_parse(c, image, bytes, 0, name, error);
    if (status == FM_OK)
        status = fm__gguf_open_parts(c, true, error);
    if (status != FM_OK)
        fm__checkpoint_close(&c);
    else
        *out = c;
    return status;
}

fm_status fm__checkpoint_view(fm__checkpoint **out, fm__checkpoint *base, fm_error *error) {
    fm__checkpoint *c = NULL;
    *out = NULL;
    fm_status status =
        fm__checkpoint_create(&c, FM__CHECKPOINT_GGUF, base ? base->path : "", error);
    if (status != FM_OK)
        return status;
    if (base)
        memcpy(c->format, base->format, sizeof c->format);
    c->base = base;
    *out = c;
    return FM_OK;
}

/* ---- lookup ---- */

const fm__kv *fm__checkpoint_kv(const fm__checkpoint *checkpoint, const char *key) {
    uint32_t index;
    return fm__map_get(&checkpoint->kv_index, fm__str_of(key), &index) ? &checkpoint->kvs[index]
                                                                       : NULL;
}

const fm__tensor_info *fm__checkpoint_find(const fm__checkpoint *checkpoint, const char *name) {
    uint32_t index;
    return fm__map_get(&checkpoint->tensor_index, fm__str_of(name), &index)
               ? &checkpoint->tensors[index]
               : NULL;
}

uint64_t fm__tensor_source_row(const fm__tensor_info *tensor, uint64_t r) {
    if (tensor->rope_heads == 0)
        return r;
    /* GGUF's row pair (2i, 2i + 1) of a head rotates together; stored, the partners are half a head
       apart. */
    uint64_t rows = tensor->dims[1] / tensor->rope_heads; /* of one head */
    uint64_t head = r / rows, j = r % rows;
    return head * rows + j / 2 + (j % 2 ? rows / 2 : 0);
}

/* ---- adding ---- */

/* Arrays that grow by one entry double at powers of two, so no capacity needs to be kept. */
static bool make_room(void **array, size_t n, size_t size) {
    if (n != 0 && (n < 8 || (n & (n - 1)) != 0))
        return true;
    size_t bytes;
    if (!fm__mul_size(n == 0 ? 8 : n, n == 0 ? size : 2 * size, &bytes))
        return false;
    void *grown = fm__realloc(*array, bytes);
    if (grown)
        *array = grown;
    return grown != NULL;
}

fm_status fm__checkpoint_take_file(fm__checkpoint *c, fm__mapping *mapping, fm_error *error) {
    void *files = c->files;
    if (!make_room(&files, c->n_files, sizeof *c->files)) {
        fm__mapping_close(mapping);
        return fm__error_memory(error, c->path, sizeof *c->files);
    }
    c->files = files;
    c->files[c->n_files++] = *mapping;
    *mapping = (fm__mapping){0};
    return FM_OK;
}

/* Copies the name and enters it as number n; `again` becomes true where it is there already. */
static fm_status index_name(fm__checkpoint *c, fm__map *map, fm__str *name, size_t n, bool *again,
                            fm_error *error) {
    *again = fm__map_get(map, *name, NULL);
    if (*again)
        return FM_OK;
    char *copy = n < UINT32_MAX ? fm__arena_copy(&c->arena, name->data, name->bytes) : NULL;
    if (!copy || !fm__map_put(map, (fm__str){copy, name->bytes}, (uint32_t)n, NULL))
        return fm__error_memory(error, c->path, name->bytes);
    name->data = copy;
    return FM_OK;
}

fm_status fm__checkpoint_take_kv(fm__checkpoint *c, const fm__kv *kv, const char *path,
                                 uint64_t offset, fm_error *error) {
    bool again = false;
    fm__kv added = *kv;
    const char *fault = fm__name_fault(kv->key);
    if (fault)
        return fm__format_error(error, FM_ERROR_FORMAT, path, "key", kv->key, "%s, at offset %llu",
                                fault, (unsigned long long)offset);
    void *kvs = c->kvs;
    if (!make_room(&kvs, c->n_kvs, sizeof *c->kvs))
        return fm__error_memory(error, path, c->n_kvs * sizeof *c->kvs);
    c->kvs = kvs;
    fm_status status = index_name(c, &c->kv_index, &added.key, c->n_kvs, &again, error);
    if (status != FM_OK)
        return status;
    if (again)
        return fm__format_error(error, FM_ERROR_FORMAT, path, "key", kv->key,
                                "appears twice, again at offset %llu", (unsigned long long)offset);
    c->kvs[c->n_kvs++] = added;
    return FM_OK;
}

fm_status fm__checkpoint_take_tensor(fm__checkpoint *c, const fm__tensor_info *info,
                                     const char *path, uint64_t offset, fm_error *error) {
    bool again = false;
    fm__tensor_info added = *info;
    const char *fault = fm__name_fault(info->name);
    if (fault)
        return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", info->name,
                                "%s, at offset %llu", fault, (unsigned long long)offset);
    void *tensors = c->tensors;
    if (!make_room(&tensors, c->n_tensors, sizeof *c->tensors))
        return fm__error_memory(error, path, c->n_tensors * sizeof *c->tensors);
    c->tensors = tensors;
    fm_status status = index_name(c, &c->tensor_index, &added.name, c->n_tensors, &again, error);
    if (status != FM_OK)
        return status;
    if (again)
        return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", info->name,
                                "appears twice, again at offset %llu", (unsigned long long)offset);
    c->tensors[c->n_tensors++] = added;
    return FM_OK;
}

/* What a caller adds is the caller's mistake, not a file's. */
static fm_status refuse_argument(fm__checkpoint *c, const char *noun, fm__str name, bool there,
                                 fm_error *error) {
    const char *fault = fm__name_fault(name);
    if (!fault && there)
        fault = "there is one of that name already";
    if (!fault)
        return FM_OK;
    return fm__format_error(error, FM_ERROR_ARGUMENT, c->path, noun, name, "%s", fault);
}

fm_status fm__checkpoint_add_kv(fm__checkpoint *c, const fm__kv *kv, fm_error *e) {
    fm_status status =
        refuse_argument(c, "key", kv->key, fm__map_get(&c->kv_index, kv->key, NULL), e);
    return status == FM_OK ? fm__checkpoint_take_kv(c, kv, c->path, 0, e) : status;
}

fm_status fm__checkpoint_add_tensor(fm__checkpoint *c, const fm__tensor_info *info, fm_error *e) {
    fm_status status = refuse_argument(c, "tensor", info->name,
                                       fm__map_get(&c->tensor_index, info->name, NULL), e);
    return status == FM_OK ? fm__checkpoint_take_tensor(c, info, c->path, 0, e) : status;
}

static fm_status add_scalar(fm__checkpoint *c, const char *key, fm__kv_type type, uint64_t bits,
                            size_t bytes, fm_error *e) {
    uint8_t *data = fm__arena_alloc(&c->arena, bytes);
    if (!data)
        return fm__error_memory(e, c->path, bytes);
    fm__store_le(data, bits, bytes);
    fm__kv kv = {
        .key = fm__str_of(key), .type = type, .count = 1, .data = data, .data_bytes = bytes};
    return fm__checkpoint_add_kv(c, &kv, e);
}

fm_status fm__checkpoint_add_u32(fm__checkpoint *c, const char *key, uint32_t value, fm_error *e) {
    return add_scalar(c, key, FM__KV_U32, value, 4, e);
}

fm_status fm__checkpoint_add_f32(fm__checkpoint *c, const char *key, float value, fm_error *e) {
    return add_scalar(c, key, FM__KV_F32, fm__f32_bits(value), 4, e);
}

fm_status fm__checkpoint_add_bool(fm__checkpoint *c, const char *key, bool value, fm_error *e) {
    return add_scalar(c, key, FM__KV_BOOL, value, 1, e);
}

fm_status fm__checkpoint_add_str(fm__checkpoint *c, const char *key, fm__str value, fm_error *e) {
    char *data = fm__arena_copy(&c->arena, value.data, value.bytes);
    if (!data)
        return fm__error_memory(e, c->path, value.bytes);
    fm__kv kv = {.key = fm__str_of(key),
                 .type = FM__KV_STRING,
                 .count = 1,
                 .data = (const uint8_t *)data,
                 .data_bytes = value.bytes,
                 .string = {data, value.bytes}};
    return fm__checkpoint_add_kv(c, &kv, e);
}

/* An array key whose data (bytes long) the caller then fills through *data. */
static fm_status add_array(fm__checkpoint *c, const char *key, fm__kv_type element, size_t n,
                           size_t bytes, uint8_t **data, fm_error *e) {
    *data = fm__arena_alloc(&c->arena, bytes);
    if (!*data)
        return fm__error_memory(e, c->path, bytes);
    fm__kv kv = {.key = fm__str_of(key),
                 .type = FM__KV_ARRAY,
                 .element = element,
                 .count = n,
                 .data = *data,
                 .data_bytes = bytes};
    return fm__checkpoint_add_kv(c, &kv, e);
}

fm_status fm__checkpoint_add_strs(fm__checkpoint *c, const char *key, const fm__str *values,
                                  size_t n, fm_error *e) {
    size_t bytes = 0;
    uint8_t *at = NULL;
    for (size_t i = 0; i < n; i++)
        if (!fm__add_size(bytes, 8, &bytes) || !fm__add_size(bytes, values[i].bytes, &bytes))
            return fm__error_memory(e, c->path, SIZE_MAX);
    fm_status status = add_array(c, key, FM__KV_STRING, n, bytes, &at, e);
    for (size_t i = 0; status == FM_OK && i < n; i++) {
        fm__store_le(at, values[i].bytes, 8);
        if (values[i].bytes > 0)
            memcpy(at + 8, values[i].data, values[i].bytes);
        at += 8 + values[i].bytes;
    }
    return status;
}

static fm_status array_bytes(fm__checkpoint *c, size_t n, size_t *bytes, fm_error *e) {
    return fm__mul_size(n, 4, bytes) ? FM_OK : fm__error_memory(e, c->path, SIZE_MAX);
}

fm_status fm__checkpoint_add_i32s(fm__checkpoint *c, const char *key, const int32_t *values,
                                  size_t n, fm_error *e) {
    size_t bytes = 0;
    uint8_t *data = NULL;
    fm_status status = array_bytes(c, n, &bytes, e);
    if (status == FM_OK)
        status = add_array(c, key, FM__KV_I32, n, bytes, &data, e);
    for (size_t i = 0; status == FM_OK && i < n; i++)
        fm__store_le(data + 4 * i, (uint32_t)values[i], 4);
    return status;
}

fm_status fm__checkpoint_add_f32s(fm__checkpoint *c, const char *key, const float *values, size_t n,
                                  fm_error *e) {
    size_t bytes = 0;
    uint8_t *data = NULL;
    fm_status status = array_bytes(c, n, &bytes, e);
    if (status == FM_OK)
        status = add_array(c, key, FM__KV_F32, n, bytes, &data, e);
    for (size_t i = 0; status == FM_OK && i < n; i++)
        fm__store_le(data + 4 * i, fm__f32_bits(values[i]), 4);
    return status;
}
