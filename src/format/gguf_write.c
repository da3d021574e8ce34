/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/gguf_write.c: writes keys and tensors as one GGUF file, version 3, alignment 32.
 *
 * Owns: nothing. Never does: leave a half-written file under the name that was asked for. Called
 * from: the converting thread.
 */
#include "format/format.h"

typedef unsigned long long ull;

enum { VERSION = 3, ALIGNMENT = 32 };

static const fm__str none = {"", 0};

/* Keys that describe the file they came from, which is another one. */
static bool is_of_file(fm__str key) {
    return fm__str_is(key, "general.alignment") || fm__str_is(key, "split.no") ||
           fm__str_is(key, "split.count") || fm__str_is(key, "split.tensors.count");
}

static fm_status check_name(fm__map *seen, const char *path, const char *noun, fm__str name,
                            fm_error *error) {
    bool again = false;
    const char *fault = fm__name_fault(name);
    if (!fault && !fm__map_put(seen, name, 0, &again))
        return fm__error_memory(error, path, 0);
    if (!fault && again)
        fault = "appears twice";
    if (!fault)
        return FM_OK;
    return fm__format_error(error, FM_ERROR_ARGUMENT, path, noun, name, "%s", fault);
}

static fm_status check_kvs(const char *path, const fm__kv *kvs, size_t n, fm_error *error) {
    fm__map seen;
    fm_status status = FM_OK;
    if (!fm__map_init(&seen, n))
        return fm__error_memory(error, path, n);
    for (size_t i = 0; status == FM_OK && i < n; i++)
        status = check_name(&seen, path, "key", kvs[i].key, error);
    fm__map_finish(&seen);
    return status;
}

static fm_status check_tensor(const char *path, const fm__tensor_info *info, fm_error *error) {
    fm__tensor_info measured = *info;
    if (info->n_dims < 1 || info->n_dims > 4)
        return fm__format_error(error, FM_ERROR_ARGUMENT, path, "tensor", info->name,
                                "has %u dimensions; 1 to 4 are possible", info->n_dims);
    fm_status status = fm__tensor_measure(&measured, path, error);
    if (status == FM_OK && measured.bytes != info->bytes)
        return fm__format_error(error, FM_ERROR_ARGUMENT, path, "tensor", info->name,
                                "is said to take %llu bytes, its dimensions take %llu",
                                (ull)info->bytes, (ull)measured.bytes);
    return status;
}

static fm_status check_tensors(const char *path, const fm__tensor_info *tensors, size_t n,
                               fm_error *error) {
    fm__map seen;
    fm_status status = FM_OK;
    if (!fm__map_init(&seen, n))
        return fm__error_memory(error, path, n);
    for (size_t i = 0; status == FM_OK && i < n; i++) {
        status = check_name(&seen, path, "tensor", tensors[i].name, error);
        if (status == FM_OK)
            status = check_tensor(path, &tensors[i], error);
    }
    fm__map_finish(&seen);
    return status;
}

static void put_number(fm__buf *buf, uint64_t value, size_t bytes) {
    uint8_t data[8];
    fm__store_le(data, value, bytes);
    fm__buf_append(buf, data, bytes);
}

static void put_string(fm__buf *buf, fm__str text) {
    put_number(buf, text.bytes, 8);
    fm__buf_append(buf, text.data, text.bytes);
}

static void put_kv(fm__buf *buf, const fm__kv *kv) {
    put_string(buf, kv->key);
    put_number(buf, (uint32_t)kv->type, 4);
    if (kv->type == FM__KV_STRING) {
        put_string(buf, kv->string);
        return;
    }
    if (kv->type == FM__KV_ARRAY) {
        put_number(buf, (uint32_t)kv->element, 4);
        put_number(buf, kv->count, 8);
    }
    fm__buf_append(buf, kv->data, kv->data_bytes);
}

/* Each tensor's offset from the data's start; false on overflow. */
static bool put_tensors(fm__buf *buf, const fm__tensor_info *tensors, size_t n) {
    uint64_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        put_string(buf, tensors[i].name);
        put_number(buf, tensors[i].n_dims, 4);
        for (uint32_t d = 0; d < tensors[i].n_dims; d++)
            put_number(buf, tensors[i].dims[d], 8);
        put_number(buf, (uint32_t)tensors[i].dtype, 4);
        put_number(buf, offset, 8);
        if (!fm__add_u64(offset, tensors[i].bytes, &offset) ||
            !fm__add_u64(offset, ALIGNMENT - 1, &offset))
            return false;
        offset = offset / ALIGNMENT * ALIGNMENT;
    }
    return true;
}

static fm_status write_padding(fm__writer *writer, fm_error *error) {
    static const uint8_t zeros[ALIGNMENT];
    size_t past = (size_t)(fm__writer_offset(writer) % ALIGNMENT);
    return past == 0 ? FM_OK : fm__writer_write(writer, zeros, ALIGNMENT - past, error);
}

static fm_status write_directory(fm__writer *writer, const char *path, const fm__kv *kvs,
                                 size_t n_kvs, const fm__tensor_info *tensors, size_t n_tensors,
                                 fm_error *error) {
    fm__buf buf = {0};
    size_t written_kvs = 0;
    for (size_t i = 0; i < n_kvs; i++)
        written_kvs += !is_of_file(kvs[i].key);
    fm__buf_append(&buf, "GGUF", 4);
    put_number(&buf, VERSION, 4);
    put_number(&buf, n_tensors, 8);
    put_number(&buf, written_kvs, 8);
    for (size_t i = 0; i < n_kvs; i++)
        if (!is_of_file(kvs[i].key))
            put_kv(&buf, &kvs[i]);
    fm_status status = FM_OK;
    if (!put_tensors(&buf, tensors, n_tensors))
        status = fm__format_error(error, FM_ERROR_ARGUMENT, path, NULL, none,
                                  "the tensors' sizes overflow 64 bits");
    else if (buf.failed)
        status = fm__error_memory(error, path, buf.bytes);
    if (status == FM_OK)
        status = fm__writer_write(writer, buf.data, buf.bytes, error);
    if (status == FM_OK)
        status = write_padding(writer, error);
    fm__buf_finish(&buf);
    return status;
}

static fm_status write_tensor(fm__writer *writer, const char *path, size_t index,
                              const fm__tensor_info *info, fm__gguf_emit *emit, void *user,
                              fm_error *error) {
    uint64_t begin = fm__writer_offset(writer);
    fm_status status = emit(user, index, info, writer, error);
    if (status != FM_OK)
        return status;
    uint64_t written = fm__writer_offset(writer) - begin;
    if (written != info->bytes)
        return fm__format_error(error, FM_ERROR_ARGUMENT, path, "tensor", info->name,
                                "%llu bytes were produced, it takes %llu", (ull)written,
                                (ull)info->bytes);
    return write_padding(writer, error);
}

fm_status fm__gguf_write(const char *path, const fm__kv *kvs, size_t n_kvs,
                         const fm__tensor_info *tensors, size_t n_tensors, fm__gguf_emit *emit,
                         void *user, fm_error *error) {
    fm__writer *writer = NULL;
    fm_status status = check_kvs(path, kvs, n_kvs, error);
    if (status == FM_OK)
        status = check_tensors(path, tensors, n_tensors, error);
    if (status == FM_OK)
        status = fm__writer_open(&writer, path, error);
    if (status != FM_OK)
        return status;
    status = write_directory(writer, path, kvs, n_kvs, tensors, n_tensors, error);
    for (size_t i = 0; status == FM_OK && i < n_tensors; i++)
        status = write_tensor(writer, path, i, &tensors[i], emit, user, error);
    if (status == FM_OK)
        return fm__writer_commit(&writer, error);
    fm__writer_abort(&writer);
    return status;
}
