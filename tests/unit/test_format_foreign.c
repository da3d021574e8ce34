/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are no model of ours are told apart by what they hold, not by what they are called. */
#include "unit/gguf_bytes.h"

#define BYTES(literal) literal, sizeof(literal) - 1

static void test_looks(void **state) {
    (void)state;
    static const struct {
        const char *data;
        size_t bytes;
        const char *text;
    } cases[] = {
        {BYTES(""), "the file is empty"},
        {BYTES("G"), "ends at offset 1, inside the magic"},
        {BYTES("GGU"), "ends at offset 3, inside the magic"},
        {BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n"),
         "Git-LFS pointer"},
        {BYTES("<!DOCTYPE html>\n<html>"), "an HTML page"},
        {BYTES("\n \t<HTML><body>"), "an HTML page"},
        {BYTES("\xEF\xBB\xBF<!doctype HTML>"), "an HTML page"},
        {BYTES("<?xml version=\"1.0\"?><Error>"), "an XML document"},
        {BYTES("PK\x03\x04\x00\x00"), "a zip archive (PyTorch's"},
        {BYTES("\x80\x02\x8a\x0a"), "a Python pickle"},
        {BYTES("\x80\x04\x95"), "a Python pickle"},
        {BYTES("\x1F\x8B\x08\x00"), "gzip-compressed"},
        {BYTES("\x28\xB5\x2F\xFD\x00"), "zstd-compressed"},
        {BYTES("\xFD"
               "7zXZ\x00"),
         "xz-compressed"},
        {BYTES("BZh91AY"), "bzip2-compressed"},
        {BYTES("FUGG\x00\x00\x00\x03"), "big-endian"},
        {BYTES("lmgg\x01\x00"), "magic \"ggml\""},
        {BYTES("fmgg\x01\x00\x00\x00"), "magic \"ggmf\""},
        {BYTES("tjgg\x03\x00\x00\x00"), "magic \"ggjt\""},
        {BYTES("algg\x01\x00\x00\x00"), "LoRA"},
        {BYTES("\x7F"
               "ELF\x02\x01"),
         "a program or library"},
        {BYTES("{\n  \"architectures\": []}"), "JSON text"},
        {BYTES("Entry not found"), "plain text: \"Entry not found\""},
        {BYTES("Stra\xC3\x9F"
               "e"),
         "plain text: \"Stra\xC3\x9F"
         "e\""},
        {BYTES("\xFF\xFEh\0"), "UTF-16 text"},
        {BYTES("\0\0\0\0\0\0\0\0"), "an unfinished download"},
        {BYTES("\x89HDF\r\n\x1A\n"), "an HDF5 file"},
        {BYTES("\x01\x02\x03\x04\x05"), "its first bytes (01 02 03 04 05 hex)"},
        {BYTES("\xC3"), "its first bytes (c3 hex)"},
        {BYTES("a\x1B[31m"), "its first bytes (61 1b"},
        {BYTES("\x02\0\0\0\0\0\0\0{}"), "a safetensors file"},
    };
    char folder[64];
    make_folder(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm__buf b = {0};
        fm__buf_append(&b, cases[i].data, cases[i].bytes);
        expect_refused(&b, FM_ERROR_FORMAT, cases[i].text);
        write_file(folder, "model.gguf", cases[i].data, cases[i].bytes);
        fm_status wanted =
            i + 1 < sizeof cases / sizeof *cases ? FM_ERROR_FORMAT : FM_ERROR_UNSUPPORTED;
        expect_file(folder, "model.gguf", wanted,
                    wanted == FM_ERROR_FORMAT ? cases[i].text : "open a folder");
    }
    remove_folder(folder);
}

static void test_tar_and_long_zeros(void **state) {
    (void)state;
    fm__buf b = {0};
    static const char zeros[8192];
    fm__buf_append(&b, "name", 4);
    fm__buf_append(&b, zeros, 253);
    fm__buf_append(&b, "ustar\0", 6);
    expect_refused(&b, FM_ERROR_FORMAT, "a tar archive");
    fm__buf_append(&b, zeros, sizeof zeros);
    fm__buf_append(&b, "x", 1);
    expect_refused(&b, FM_ERROR_FORMAT, "an unfinished download");
}

/* A text longer than the window that is looked at, whose window ends inside a character. */
static void test_text_window(void **state) {
    (void)state;
    fm__buf b = {0};
    for (int i = 0; i < 511; i++)
        fm__buf_append(&b, "a", 1);
    fm__buf_append(&b, "\xC3\xA4", 2);
    expect_refused(&b, FM_ERROR_FORMAT, "plain text: \"aaaa");
}

static void test_paths(void **state) {
    (void)state;
    char folder[64], path[3000];
    fm__checkpoint *c = NULL;
    fm_error error;
    make_folder(folder);
    expect_file(folder, "nothing.gguf", FM_ERROR_IO, "nothing.gguf");
    expect_file(folder, "", FM_ERROR_FORMAT, "the folder holds neither model.safetensors nor");
    write_file(folder, "pytorch_model.bin", "PK", 2);
    expect_file(folder, "", FM_ERROR_FORMAT, "a pickled checkpoint is not read: pytorch_model.bin");
    write_file(folder, "weights.gguf", "GGUF", 4);
    expect_file(folder, "", FM_ERROR_FORMAT, "open this file itself: weights.gguf");
    assert_int_equal(fm__checkpoint_open(&c, "", &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm__checkpoint_open(&c, NULL, &error), FM_ERROR_ARGUMENT);
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = '\0';
    assert_int_not_equal(fm__checkpoint_open(&c, path, &error), FM_OK);
    assert_null(c);
    assert_int_equal(fm__checkpoint_open(&c, path, NULL), FM_ERROR_IO);
    remove_folder(folder);
}

/* What is shown of a file's name and contents stays valid UTF-8, whatever they are. */
static void test_messages_are_text(void **state) {
    (void)state;
    fm_error error;
    char name[400];
    for (size_t length = 1; length < sizeof name - 1; length += 3) {
        fm__checkpoint *c = NULL;
        for (size_t i = 0; i < length; i++)
            name[i] = (char)(i % 5 == 0 ? 0xFF : "\xC3\xA4\x1B/"[i % 4]);
        name[length] = '\0';
        assert_int_equal(fm__checkpoint_open_memory(&c, "GGUF\3", 5, name, &error),
                         FM_ERROR_FORMAT);
        for (size_t i = 0; error.place[i] != '\0';) {
            uint32_t code_point = 0;
            int n = fm__utf8_next(error.place + i, strlen(error.place + i), &code_point);
            assert_true(n > 0 && code_point >= 0x20);
            i += (size_t)n;
        }
    }
}

static void test_sink(void **state) {
    (void)state;
    char out[16];
    for (size_t capacity = 0; capacity <= sizeof out; capacity++) {
        memset(out, 'z', sizeof out);
        fm__sink sink = fm__sink_of(out, capacity);
        fm__sink_string(&sink, FM__STR("a\xC3\xA4\xFF\x1B"), false); /* 1 + 2 + 3 + 6 */
        assert_int_equal(sink.total, 12);
        static const char *const texts[] = {"", "a", "a", "a\xC3\xA4"};
        if (capacity > 0 && capacity <= 4)
            assert_string_equal(out, texts[capacity - 1]);
        if (capacity >= 13)
            assert_string_equal(out, "a\xC3\xA4\xEF\xBF\xBD\\u001B");
        if (capacity < sizeof out)
            assert_int_equal(out[capacity], 'z');
    }
    assert_string_equal(fm__format_escape(FM__STR("abcdefgh"), out, 8), "abcd...");
    assert_string_equal(fm__format_escape(FM__STR("abcdefg"), out, 8), "abcdefg");
    assert_string_equal(fm__format_escape(FM__STR("\x01\x02\x03"), out, 8), "\\x01...");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looks),
        cmocka_unit_test(test_tar_and_long_zeros),
        cmocka_unit_test(test_text_window),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_messages_are_text),
        cmocka_unit_test(test_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
