/* SPDX-License-Identifier: Apache-2.0 */
/* unit/gguf_bytes.h: builds GGUF images, good and bad, byte by byte; and scratch folders. */
#pragma once

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/format.h"
#include "test.h"

static FM__UNUSED void put(fm__buf *b, uint64_t value, size_t bytes) {
    uint8_t data[8];
    fm__store_le(data, value, bytes);
    assert_true(fm__buf_append(b, data, bytes));
}

static FM__UNUSED void put_bytes(fm__buf *b, const void *data, size_t bytes) {
    put(b, bytes, 8);
    assert_true(fm__buf_append(b, data, bytes));
}

static FM__UNUSED void put_text(fm__buf *b, const char *text) {
    put_bytes(b, text, strlen(text));
}

static FM__UNUSED void put_header(fm__buf *b, uint32_t version, uint64_t n_tensors,
                                  uint64_t n_kvs) {
    assert_true(fm__buf_append(b, "GGUF", 4));
    put(b, version, 4);
    put(b, n_tensors, 8);
    put(b, n_kvs, 8);
}

static FM__UNUSED void put_key(fm__buf *b, const char *key, uint32_t type, uint64_t value,
                               size_t bytes) {
    put_text(b, key);
    put(b, type, 4);
    put(b, value, bytes);
}

static FM__UNUSED void put_u32(fm__buf *b, const char *key, uint32_t value) {
    put_key(b, key, FM__KV_U32, value, 4);
}

static FM__UNUSED void put_string_key(fm__buf *b, const char *key, const char *value) {
    put_text(b, key);
    put(b, FM__KV_STRING, 4);
    put_text(b, value);
}

static FM__UNUSED void put_array_head(fm__buf *b, const char *key, uint32_t element,
                                      uint64_t count) {
    put_text(b, key);
    put(b, FM__KV_ARRAY, 4);
    put(b, element, 4);
    put(b, count, 8);
}

static FM__UNUSED void put_tensor(fm__buf *b, const char *name, uint32_t n_dims,
                                  const uint64_t *dims, uint32_t type, uint64_t offset) {
    put_text(b, name);
    put(b, n_dims, 4);
    for (uint32_t i = 0; i < n_dims && i < 8; i++)
        put(b, dims[i], 8);
    put(b, type, 4);
    put(b, offset, 8);
}

/* Zeros up to a multiple. */
static FM__UNUSED void put_padding(fm__buf *b, size_t multiple) {
    while (b->bytes % multiple != 0)
        put(b, 0, 1);
}

/* Bytes 0, 1, 2, ... */
static FM__UNUSED void put_data(fm__buf *b, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        put(b, i & 0xFF, 1);
}

/* A file of every kind of key and three tensors (f32 [3, 2], q8_0 [32, 1], f16 [5]), 32-aligned. */
static FM__UNUSED void put_whole(fm__buf *b, uint32_t version) {
    put_header(b, version, 3, 17);
    put_string_key(b, "general.architecture", "llama");
    put_key(b, "u8", FM__KV_U8, 200, 1);
    put_key(b, "i8", FM__KV_I8, (uint8_t)-7, 1);
    put_key(b, "u16", FM__KV_U16, 60000, 2);
    put_key(b, "i16", FM__KV_I16, (uint16_t)-300, 2);
    put_key(b, "u32", FM__KV_U32, 4000000000u, 4);
    put_key(b, "i32", FM__KV_I32, (uint32_t)-70000, 4);
    put_key(b, "f32", FM__KV_F32, fm__f32_bits(1e-6f), 4);
    put_key(b, "true", FM__KV_BOOL, 1, 1);
    put_key(b, "false", FM__KV_BOOL, 0, 1);
    put_key(b, "u64", FM__KV_U64, UINT64_MAX, 8);
    put_key(b, "i64", FM__KV_I64, (uint64_t)INT64_MIN, 8);
    put_key(b, "f64", FM__KV_F64, UINT64_C(0x3FB999999999999A), 8); /* 0.1 */
    put_array_head(b, "strings", FM__KV_STRING, 3);
    put_text(b, "a\"b");
    put_text(b, "");
    put_bytes(b, "x\0\xFF", 3);
    put_array_head(b, "ints", FM__KV_I32, 20);
    for (int i = 0; i < 20; i++)
        put(b, (uint32_t)(i - 10), 4);
    put_array_head(b, "empty", FM__KV_F32, 0);
    put_array_head(b, "bools", FM__KV_BOOL, 2);
    put(b, 1, 1);
    put(b, 0, 1);
    put_tensor(b, "a.weight", 2, (uint64_t[]){3, 2}, FM__F32, 0);
    put_tensor(b, "b.weight", 2, (uint64_t[]){32, 1}, FM__Q8_0, 32);
    put_tensor(b, "c.bias", 1, (uint64_t[]){5}, FM__F16, 96);
    put_padding(b, 32);
    put_data(b, 24);
    put_padding(b, 32);
    put_data(b, 34);
    put_padding(b, 32);
    put_data(b, 10);
    put_padding(b, 32);
}

/* Opens an image from an exact-size copy, so that a sanitizer sees any read past its end. */
static FM__UNUSED fm_status open_bytes(const void *data, size_t bytes, fm_error *error) {
    fm__checkpoint *c = NULL;
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(copy);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    memset(error, 0, sizeof *error);
    fm_status status = fm__checkpoint_open_memory(&c, copy, bytes, "test.gguf", error);
    if (status == FM_OK)
        assert_non_null(c);
    else
        assert_null(c);
    fm__checkpoint_close(&c);
    free(copy);
    return status;
}

/* Opens b's image, which must fail so, with `text` somewhere in "place: message"; frees b. */
static FM__UNUSED void expect_refused(fm__buf *b, fm_status wanted, const char *text) {
    fm_error error;
    char whole[600];
    fm_status status = open_bytes(b->data, b->bytes, &error);
    snprintf(whole, sizeof whole, "%s: %s", error.place, error.message);
    if (status != wanted || strstr(whole, text) == NULL)
        fail_msg("status %d (wanted %d), \"%s\" lacks \"%s\"", (int)status, (int)wanted, whole,
                 text);
    assert_int_equal(error.status, wanted);
    fm__buf_finish(b);
}

/* ---- scratch folders ---- */

static FM__UNUSED void make_folder(char out[64]) {
    snprintf(out, 64, "/tmp/fm_test_format_XXXXXX");
    assert_non_null(mkdtemp(out));
}

static FM__UNUSED int remove_entry(const char *path, const struct stat *info, int flag,
                                   struct FTW *walk) {
    (void)info, (void)flag, (void)walk;
    return remove(path);
}

static FM__UNUSED void remove_folder(const char *folder) {
    assert_int_equal(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static FM__UNUSED void write_file(const char *folder, const char *name, const void *data,
                                  size_t bytes) {
    char path[512];
    assert_true(fm__path_join(folder, name, path, sizeof path));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (bytes > 0)
        assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* fm__checkpoint_open() of folder/name must give `wanted` and a text that holds `text`. */
static FM__UNUSED void expect_file(const char *folder, const char *name, fm_status wanted,
                                   const char *text) {
    fm__checkpoint *c = NULL;
    fm_error error = {0};
    char path[512], whole[600];
    assert_true(fm__path_join(folder, name, path, sizeof path));
    fm_status status = fm__checkpoint_open(&c, name[0] ? path : folder, &error);
    snprintf(whole, sizeof whole, "%s: %s", error.place, error.message);
    if (status != wanted || (status != FM_OK && strstr(whole, text) == NULL))
        fail_msg("%s: status %d (wanted %d), \"%s\" lacks \"%s\"", name, (int)status, (int)wanted,
                 whole, text);
    fm__checkpoint_close(&c);
}
