/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files split into parts: opened from the first, with the missing or wrong part named. */
#include "unit/gguf_bytes.h"

/* One part with tensor `name` of 8 floats. tensors 0: no split.tensors.count. */
static void put_part(fm__buf *b, uint64_t no, uint64_t count, int32_t tensors, const char *name) {
    put_header(b, 3, 1, tensors > 0 ? 4 : 3);
    put_key(b, "split.no", FM__KV_U16, no, 2);
    put_key(b, "split.count", FM__KV_U16, count, 2);
    if (tensors > 0)
        put_key(b, "split.tensors.count", FM__KV_I32, (uint32_t)tensors, 4);
    put_u32(b, no == 0 ? "first.key" : "other.key", 5);
    put_tensor(b, name, 1, (uint64_t[]){8}, FM__F32, 0);
    put_padding(b, 32);
    put_data(b, 32);
}

static void write_part(const char *folder, const char *file, uint64_t no, uint64_t count,
                       int32_t tensors, const char *name) {
    fm__buf b = {0};
    put_part(&b, no, count, tensors, name);
    write_file(folder, file, b.data, b.bytes);
    fm__buf_finish(&b);
}

static void write_three(const char *folder) {
    write_part(folder, "m-00001-of-00003.gguf", 0, 3, 3, "a");
    write_part(folder, "m-00002-of-00003.gguf", 1, 3, 3, "b");
    write_part(folder, "m-00003-of-00003.gguf", 2, 3, 3, "c");
}

static void remove_file(const char *folder, const char *name) {
    char path[512];
    assert_true(fm__path_join(folder, name, path, sizeof path));
    assert_int_equal(remove(path), 0);
}

static void test_whole(void **state) {
    (void)state;
    char folder[64], path[512];
    fm__checkpoint *c = NULL;
    fm_error error;
    make_folder(folder);
    write_three(folder);
    assert_true(fm__path_join(folder, "m-00001-of-00003.gguf", path, sizeof path));
    assert_int_equal(fm__checkpoint_open(&c, path, &error), FM_OK);
    assert_int_equal(c->n_tensors, 3);
    assert_int_equal(c->n_files, 3);
    assert_int_equal(c->n_kvs, 4);
    assert_non_null(fm__checkpoint_kv(c, "first.key"));
    assert_null(fm__checkpoint_kv(c, "other.key"));
    for (uint32_t i = 0; i < 3; i++) {
        const fm__tensor_info *info = fm__checkpoint_find(c, (const char *[]){"a", "b", "c"}[i]);
        assert_non_null(info);
        assert_int_equal(info->file_index, i);
        assert_ptr_equal(info->data, c->files[i].data + info->file_offset);
        assert_int_equal(info->data[31], 31);
    }
    fm__checkpoint_close(&c);
    remove_folder(folder);
}

static void test_wrong_part_opened(void **state) {
    (void)state;
    char folder[64];
    make_folder(folder);
    write_three(folder);
    expect_file(folder, "m-00002-of-00003.gguf", FM_ERROR_FORMAT,
                "is part 2 of 3; open the first, m-00001-of-00003.gguf");
    expect_file(folder, "m-00003-of-00003.gguf", FM_ERROR_FORMAT, "m-00001-of-00003.gguf");
    remove_file(folder, "m-00001-of-00003.gguf");
    expect_file(folder, "m-00002-of-00003.gguf", FM_ERROR_IO,
                "the first, m-00001-of-00003.gguf, is missing");
    remove_folder(folder);
}

static void test_missing(void **state) {
    (void)state;
    char folder[64];
    make_folder(folder);
    write_three(folder);
    remove_file(folder, "m-00002-of-00003.gguf");
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_IO,
                "part 2 of 3 is missing: m-00002-of-00003.gguf");
    write_three(folder);
    remove_file(folder, "m-00003-of-00003.gguf");
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_IO,
                "part 3 of 3 is missing: m-00003-of-00003.gguf");
    remove_folder(folder);
}

static void test_wrong_contents(void **state) {
    (void)state;
    char folder[64];
    make_folder(folder);
    write_three(folder);
    expect_file(folder, "m-00001-of-00003.gguf", FM_OK, "");
    write_part(folder, "m-00002-of-00003.gguf", 2, 3, 3, "b"); /* another part's number */
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_FORMAT,
                "m-00002-of-00003.gguf: holds split.no 2 of split.count 3");
    write_part(folder, "m-00002-of-00003.gguf", 1, 2, 3, "b"); /* of another set */
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_FORMAT, "split.no 1 of split.count 2");
    write_part(folder, "m-00002-of-00003.gguf", 1, 3, 3, "a"); /* a tensor twice */
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_FORMAT,
                "m-00002-of-00003.gguf: tensor a: appears twice");
    write_file(folder, "m-00002-of-00003.gguf", "version https://git-lfs.github.com/spec/v1\n", 43);
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_FORMAT,
                "m-00002-of-00003.gguf: not a GGUF file; it looks like a Git-LFS pointer");
    write_file(folder, "m-00002-of-00003.gguf", "GGUF\3\0\0\0\1", 9);
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_FORMAT, "m-00002-of-00003.gguf: ");
    write_three(folder);
    write_part(folder, "m-00001-of-00003.gguf", 0, 3, 4, "a"); /* a tensor too few */
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_FORMAT,
                "split.tensors.count is 4, the parts hold 3");
    write_part(folder, "m-00001-of-00003.gguf", 0, 3, 0, "a"); /* no count: not checked */
    expect_file(folder, "m-00001-of-00003.gguf", FM_OK, "");
    remove_folder(folder);
}

static void test_names(void **state) {
    (void)state;
    char folder[64];
    make_folder(folder);
    write_three(folder);
    write_part(folder, "renamed.gguf", 0, 3, 3, "a");
    expect_file(folder, "renamed.gguf", FM_ERROR_FORMAT,
                "is part 1 of 3, so its name should end in -00001-of-00003.gguf");
    write_part(folder, "m-00001-of-00004.gguf", 0, 3, 3, "a");
    expect_file(folder, "m-00001-of-00004.gguf", FM_ERROR_FORMAT, "-00001-of-00003.gguf");
    write_part(folder, "m-00002-of-00003.gguf", 0, 3, 3, "a");
    expect_file(folder, "m-00002-of-00003.gguf", FM_ERROR_FORMAT, "is named part 2");
    write_part(folder, "-00001-of-00003.gguf", 0, 3, 3, "a"); /* an empty stem is a stem */
    expect_file(folder, "-00001-of-00003.gguf", FM_ERROR_IO, "missing: -00002-of-00003.gguf");
    write_part(folder, "00001-of-00003.gguf", 0, 3, 3, "a");
    expect_file(folder, "00001-of-00003.gguf", FM_ERROR_FORMAT, "its name should end");
    write_part(folder, "whole.gguf", 0, 1, 1, "a");
    expect_file(folder, "whole.gguf", FM_OK, "");
    write_part(folder, "merged.gguf", 0, 0, 1, "a"); /* merged files say split.count 0 */
    expect_file(folder, "merged.gguf", FM_OK, "");
    remove_folder(folder);
}

static void test_bad_keys(void **state) {
    (void)state;
    char folder[64];
    fm__buf b = {0};
    fm_error error;
    make_folder(folder);
    write_part(folder, "m-00001-of-00003.gguf", 3, 3, 3, "a");
    expect_file(folder, "m-00001-of-00003.gguf", FM_ERROR_FORMAT,
                "split.no 3 of split.count 3 is not a part");
    put_header(&b, 3, 0, 1);
    put_key(&b, "split.count", FM__KV_U64, UINT64_MAX, 8);
    write_file(folder, "m-00001-of-99999.gguf", b.data, b.bytes);
    expect_file(folder, "m-00001-of-99999.gguf", FM_ERROR_FORMAT, "is not a part");
    fm__buf_clear(&b);
    put_header(&b, 3, 0, 1);
    put_key(&b, "split.count", FM__KV_I32, (uint32_t)-3, 4);
    expect_refused(&b, FM_ERROR_FORMAT, "key split.count: -3 does not fit");
    put_header(&b, 3, 0, 1);
    put_string_key(&b, "split.count", "3");
    expect_refused(&b, FM_ERROR_FORMAT, "key split.count: is string");
    put_part(&b, 0, 3, 3, "a");
    expect_refused(&b, FM_ERROR_UNSUPPORTED, "is part 1 of 3; an image in memory must be whole");
    put_part(&b, 0, 1, 1, "a");
    assert_int_equal(open_bytes(b.data, b.bytes, &error), FM_OK);
    fm__buf_finish(&b);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),   cmocka_unit_test(test_wrong_part_opened),
        cmocka_unit_test(test_missing), cmocka_unit_test(test_wrong_contents),
        cmocka_unit_test(test_names),   cmocka_unit_test(test_bad_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
