/* SPDX-License-Identifier: Apache-2.0 */
/* What is written reads back equal, and what could not be read back is not written. */
#include "unit/gguf_bytes.h"

/* Hands out each tensor's data in pieces; `short_by` bytes fewer for tensor `at`. */
typedef struct source {
    size_t at;
    int64_t short_by;
    fm_status fails;
    size_t calls;
} source;

static fm_status emit(void *user, size_t index, const fm__tensor_info *info, fm__writer *writer,
                      fm_error *error) {
    source *from = user;
    uint64_t bytes = info->bytes;
    from->calls++;
    if (index == from->at) {
        if (from->fails != FM_OK)
            return fm__error(error, from->fails, "source", "gave up");
        bytes = (uint64_t)((int64_t)bytes - from->short_by);
    }
    for (uint64_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(index * 50 + i);
        fm_status status = fm__writer_write(writer, &byte, 1, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

static void check_equal_kv(const fm__kv *a, const fm__kv *b) {
    assert_non_null(b);
    assert_true(fm__str_equal(a->key, b->key));
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->element, b->element);
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->data_bytes, b->data_bytes);
    if (a->data_bytes > 0)
        assert_memory_equal(a->data, b->data, a->data_bytes);
    assert_true(fm__str_equal(a->string, b->string));
}

static void test_round_trip(void **state) {
    (void)state;
    char folder[64], path[512];
    fm__buf b = {0};
    fm__checkpoint *from = NULL, *back = NULL;
    fm_error error;
    source plain = {.at = SIZE_MAX};
    make_folder(folder);
    assert_true(fm__path_join(folder, "out.gguf", path, sizeof path));
    put_whole(&b, 2);
    assert_int_equal(fm__checkpoint_open_memory(&from, b.data, b.bytes, "b", &error), FM_OK);
    assert_int_equal(fm__gguf_write(path, from->kvs, from->n_kvs, from->tensors, from->n_tensors,
                                    emit, &plain, &error),
                     FM_OK);
    assert_int_equal(plain.calls, 3);
    assert_int_equal(fm__checkpoint_open(&back, path, &error), FM_OK);
    assert_string_equal(back->format, "gguf v3");
    assert_int_equal(back->n_kvs, from->n_kvs);
    assert_int_equal(back->n_tensors, from->n_tensors);
    for (size_t i = 0; i < from->n_kvs; i++)
        check_equal_kv(&from->kvs[i], &back->kvs[i]);
    for (size_t i = 0; i < from->n_tensors; i++) {
        const fm__tensor_info *x = &from->tensors[i], *y = &back->tensors[i];
        assert_true(fm__str_equal(x->name, y->name));
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_memory_equal(x->dims, y->dims, sizeof x->dims);
        assert_int_equal(x->bytes, y->bytes);
        assert_int_equal(y->file_offset % 32, 0);
        for (uint64_t j = 0; j < y->bytes; j++)
            assert_int_equal(y->data[j], (uint8_t)(i * 50 + j));
    }
    assert_int_equal(back->files[0].bytes % 32, 0);
    assert_int_equal(test_leftovers(path), 0);
    fm__checkpoint_close(&from);
    fm__checkpoint_close(&back);
    fm__buf_finish(&b);
    remove_folder(folder);
}

/* Keys that speak of the file they came from would be false in the new one. */
static void test_keys_of_the_file(void **state) {
    (void)state;
    char folder[64], path[512];
    fm__checkpoint *view = NULL, *back = NULL;
    fm_error error;
    make_folder(folder);
    assert_true(fm__path_join(folder, "out.gguf", path, sizeof path));
    assert_int_equal(fm__checkpoint_view(&view, NULL, &error), FM_OK);
    static const char *const keys[] = {"general.alignment", "split.no", "split.count",
                                       "split.tensors.count", "kept"};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(fm__checkpoint_add_u32(view, keys[i], 64, &error), FM_OK);
    assert_int_equal(fm__gguf_write(path, view->kvs, view->n_kvs, NULL, 0, emit, NULL, &error),
                     FM_OK);
    assert_int_equal(fm__checkpoint_open(&back, path, &error), FM_OK);
    assert_int_equal(back->n_kvs, 1);
    assert_true(fm__str_is(back->kvs[0].key, "kept"));
    assert_int_equal(back->n_tensors, 0);
    fm__checkpoint_close(&back);
    fm__checkpoint_close(&view);
    remove_folder(folder);
}

static void expect_not_written(const fm__kv *kvs, size_t n_kvs, const fm__tensor_info *tensors,
                               size_t n_tensors, source *from, fm_status wanted, const char *text) {
    char folder[64], path[512];
    fm_error error = {0};
    make_folder(folder);
    assert_true(fm__path_join(folder, "out.gguf", path, sizeof path));
    assert_int_equal(fm__gguf_write(path, kvs, n_kvs, tensors, n_tensors, emit, from, &error),
                     wanted);
    if (!strstr(error.message, text))
        fail_msg("\"%s\" lacks \"%s\"", error.message, text);
    assert_false(fm__path_exists(path));
    assert_int_equal(test_leftovers(path), 0);
    remove_folder(folder);
}

static void test_refusals(void **state) {
    (void)state;
    source plain = {.at = SIZE_MAX};
    static const uint8_t four[4];
    fm__kv kvs[2] = {
        {.key = FM__STR("k"), .type = FM__KV_U32, .count = 1, .data = four, .data_bytes = 4},
        {.key = FM__STR("k"), .type = FM__KV_U32, .count = 1, .data = four, .data_bytes = 4}};
    fm__tensor_info good = {
        .name = FM__STR("t"), .dtype = FM__F32, .n_dims = 1, .dims = {4, 1, 1, 1}, .bytes = 16};
    expect_not_written(kvs, 2, NULL, 0, &plain, FM_ERROR_ARGUMENT, "appears twice");
    kvs[1].key = FM__STR("");
    expect_not_written(kvs, 2, NULL, 0, &plain, FM_ERROR_ARGUMENT, "the name is empty");
    fm__tensor_info pair[2] = {good, good};
    expect_not_written(NULL, 0, pair, 2, &plain, FM_ERROR_ARGUMENT, "appears twice");
    pair[0].bytes = 17;
    expect_not_written(NULL, 0, pair, 1, &plain, FM_ERROR_ARGUMENT, "its dimensions take 16");
    pair[0] = good;
    pair[0].n_dims = 0;
    expect_not_written(NULL, 0, pair, 1, &plain, FM_ERROR_ARGUMENT, "has 0 dimensions");
    pair[0].n_dims = 5;
    expect_not_written(NULL, 0, pair, 1, &plain, FM_ERROR_ARGUMENT, "has 5 dimensions");
    pair[0] = good;
    pair[0].dtype = FM__Q8_0;
    expect_not_written(NULL, 0, pair, 1, &plain, FM_ERROR_FORMAT, "rows of 4 elements");
    pair[0] = good;
    pair[0].dtype = (fm__dtype)9;
    expect_not_written(NULL, 0, pair, 1, &plain, FM_ERROR_UNSUPPORTED, "type 9");
    assert_int_equal(plain.calls, 0);
    source shorter = {.at = 0, .short_by = 1}, longer = {.at = 0, .short_by = -1},
           failing = {.at = 0, .fails = FM_ERROR_CANCELLED};
    expect_not_written(NULL, 0, &good, 1, &shorter, FM_ERROR_ARGUMENT, "15 bytes were produced");
    expect_not_written(NULL, 0, &good, 1, &longer, FM_ERROR_ARGUMENT, "17 bytes were produced");
    expect_not_written(NULL, 0, &good, 1, &failing, FM_ERROR_CANCELLED, "gave up");
}

static void test_allocation_failures(void **state) {
    (void)state;
    char folder[64], path[512];
    fm_error error;
    fm__tensor_info good = {
        .name = FM__STR("t"), .dtype = FM__F32, .n_dims = 1, .dims = {4, 1, 1, 1}, .bytes = 16};
    make_folder(folder);
    assert_true(fm__path_join(folder, "out.gguf", path, sizeof path));
    fm_status status = FM_ERROR_MEMORY;
    uint64_t n = 1;
    for (; status != FM_OK && n < 100; n++) {
        source plain = {.at = SIZE_MAX};
        assert_false(fm__path_exists(path));
        fm__alloc_fail_after(n);
        status = fm__gguf_write(path, NULL, 0, &good, 1, emit, &plain, &error);
        fm__alloc_fail_after(0);
        assert_true(status == FM_OK || status == FM_ERROR_MEMORY);
    }
    assert_int_equal(status, FM_OK);
    assert_in_range(n, 3, 50);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_keys_of_the_file),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
