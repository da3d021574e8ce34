/* SPDX-License-Identifier: Apache-2.0 */
/* One GGUF image: what it holds is read as it is, and what does not hold together is refused. */
#include "unit/gguf_bytes.h"

/* ---- good files ---- */

static void check_whole(uint32_t version) {
    fm__buf b = {0};
    fm__checkpoint *c = NULL;
    fm_error error;
    put_whole(&b, version);
    assert_int_equal(fm__checkpoint_open_memory(&c, b.data, b.bytes, "test.gguf", &error), FM_OK);
    assert_string_equal(c->format, version == 2 ? "gguf v2" : "gguf v3");
    assert_int_equal(c->n_kvs, 17);
    assert_int_equal(c->n_tensors, 3);
    const fm__tensor_info *t = fm__checkpoint_find(c, "b.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, FM__Q8_0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 32);
    assert_int_equal(t->dims[1], 1);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->bytes, 34);
    assert_ptr_equal(t->data, (const uint8_t *)b.data + t->file_offset);
    assert_int_equal(t->data[33], 33);
    assert_null(fm__checkpoint_find(c, "b.weigh"));
    assert_null(fm__checkpoint_find(c, ""));
    t = fm__checkpoint_find(c, "a.weight");
    assert_int_equal(t->dims[0] * 10 + t->dims[1], 32);
    assert_int_equal(t->bytes, 24);
    const fm__kv *kv = fm__checkpoint_kv(c, "strings");
    fm__str s;
    size_t cursor = 0;
    assert_true(fm__kv_next_string(kv, &cursor, &s));
    assert_true(fm__str_is(s, "a\"b"));
    assert_true(fm__kv_next_string(kv, &cursor, &s));
    assert_int_equal(s.bytes, 0);
    assert_true(fm__kv_next_string(kv, &cursor, &s));
    assert_int_equal(s.bytes, 3);
    assert_memory_equal(s.data, "x\0\xFF", 3);
    assert_false(fm__kv_next_string(kv, &cursor, &s));
    fm__checkpoint_close(&c);
    assert_null(c);
    fm__checkpoint_close(&c);
    fm__checkpoint_close(NULL);
    fm__buf_finish(&b);
}

static void test_versions(void **state) {
    (void)state;
    check_whole(2);
    check_whole(3);
    static const struct {
        uint32_t version;
        const char *text;
    } bad[] = {{0, "GGUF version 0"},
               {1, "GGUF version 1"},
               {4, "GGUF version 4"},
               {0x7FFFFFFF, "GGUF version 2147483647"},
               {0x03000000, "big-endian GGUF of version 3"},
               {0x02000000, "big-endian GGUF of version 2"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fm__buf b = {0};
        put_whole(&b, bad[i].version);
        expect_refused(&b, FM_ERROR_UNSUPPORTED, bad[i].text);
    }
}

static void test_no_tensors(void **state) {
    (void)state;
    fm_error error;
    fm__buf b = {0};
    put_header(&b, 3, 0, 0);
    assert_int_equal(open_bytes(b.data, b.bytes, &error), FM_OK);
    fm__buf_finish(&b);
}

/* Every type number: read with its size, refused by its name, or refused by its number. */
static void test_types(void **state) {
    (void)state;
    static const struct {
        uint32_t number;
        const char *name;
    } refused[] = {{4, "q4_2"},      {5, "q4_3"},       {9, "q8_1"},        {15, "q8_k"},
                   {16, "iq2_xxs"},  {17, "iq2_xs"},    {18, "iq3_xxs"},    {19, "iq1_s"},
                   {21, "iq3_s"},    {22, "iq2_s"},     {29, "iq1_m"},      {31, "q4_0_4_4"},
                   {32, "q4_0_4_8"}, {33, "q4_0_8_8"},  {36, "iq4_nl_4_4"}, {37, "iq4_nl_4_8"},
                   {40, "nvfp4"},    {38, "iq4_nl_8_8"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_string_equal(fm__dtype_foreign_name(refused[i].number), refused[i].name);
    size_t readable = 0;
    for (uint32_t type = 0; type < 300; type++) {
        fm__buf b = {0};
        fm_error error;
        const fm__dtype_info *info = fm__dtype_get(type);
        put_header(&b, 3, 1, 0);
        put_tensor(&b, "w", 2, (uint64_t[]){256, 3}, type, 0);
        put_padding(&b, 32);
        uint64_t bytes = 256 * 3 * 8;
        if (info)
            assert_true(fm__dtype_bytes(info, 256 * 3, &bytes));
        put_data(&b, (size_t)bytes);
        if (info) {
            readable++;
            assert_null(fm__dtype_foreign_name(type));
            assert_ptr_equal(fm__dtype_by_name(fm__str_of(info->name)), info);
            assert_int_equal(open_bytes(b.data, b.bytes, &error), FM_OK);
            b.bytes--; /* and not a byte less */
            expect_refused(&b, FM_ERROR_FORMAT, "test.gguf: tensor w: ends at ");
        } else if (fm__dtype_foreign_name(type)) {
            char text[64];
            snprintf(text, sizeof text, "type %s (%u)", fm__dtype_foreign_name(type), type);
            expect_refused(&b, FM_ERROR_UNSUPPORTED, text);
        } else {
            char text[64];
            snprintf(text, sizeof text, "type %u at offset", type);
            expect_refused(&b, FM_ERROR_UNSUPPORTED, text);
        }
    }
    assert_int_equal(readable, 23);
    assert_null(fm__dtype_get(UINT32_MAX));
    assert_null(fm__dtype_by_name(FM__STR("Q4_K")));
}

static void test_dtype_bytes(void **state) {
    (void)state;
    uint64_t bytes = 0;
    assert_false(fm__dtype_bytes(fm__dtype_get(FM__Q4_K), 255, &bytes));
    assert_false(fm__dtype_bytes(fm__dtype_get(FM__F64), UINT64_MAX / 4, &bytes));
    assert_true(fm__dtype_bytes(fm__dtype_get(FM__Q4_K), 512, &bytes));
    assert_int_equal(bytes, 288);
}

/* ---- cut files ---- */

static void test_cut_everywhere(void **state) {
    (void)state;
    fm__buf b = {0};
    fm_error error;
    put_whole(&b, 3);
    size_t data_end = b.bytes - 22; /* the last tensor takes 10 of its 32 bytes */
    assert_int_equal(open_bytes(b.data, b.bytes, &error), FM_OK);
    for (size_t cut = 0; cut < b.bytes; cut++) {
        fm_status status = open_bytes(b.data, cut, &error);
        if (cut == data_end) { /* nothing is missing but padding that not every writer adds */
            assert_int_equal(status, FM_OK);
            continue;
        }
        char number[32];
        snprintf(number, sizeof number, "%zu", cut);
        if (status != FM_ERROR_FORMAT)
            fail_msg("cut at %zu: status %d", cut, (int)status);
        if (cut > 0 && !strstr(error.message, number))
            fail_msg("cut at %zu: \"%s\" does not name the end", cut, error.message);
    }
    fm__buf_finish(&b);
}

static void test_cut_files(void **state) {
    (void)state;
    char folder[64];
    fm__buf b = {0};
    make_folder(folder);
    put_whole(&b, 3);
    write_file(folder, "whole.gguf", b.data, b.bytes);
    expect_file(folder, "whole.gguf", FM_OK, "");
    for (size_t cut = 0; cut + 23 < b.bytes; cut += 7) {
        write_file(folder, "cut.gguf", b.data, cut);
        expect_file(folder, "cut.gguf", FM_ERROR_FORMAT, "cut.gguf");
    }
    fm__buf_finish(&b);
    remove_folder(folder);
}

/* ---- hostile numbers: refused fast, without memory ---- */

/* A sanitizer's own memory grows with ours. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { MEMORY_LIMIT = (SANITIZED ? 8 : 1) << 20 };

static void expect_cheap(fm__buf *b, const char *text) {
    fm_error error;
    fm__checkpoint *c = NULL;
    uint64_t best = UINT64_MAX, before = fm__memory_resident();
    for (int i = 0; i < 3; i++) {
        uint64_t begin = test_cpu_ns();
        fm_status status = fm__checkpoint_open_memory(&c, b->data, b->bytes, "test.gguf", &error);
        uint64_t took = test_cpu_ns() - begin;
        assert_int_not_equal(status, FM_OK);
        best = took < best ? took : best;
    }
    uint64_t after = fm__memory_resident();
    if (best >= 10000000)
        fail_msg("refused after %.1f ms", (double)best / 1e6);
    if (after > before + MEMORY_LIMIT)
        fail_msg("took %llu bytes", (unsigned long long)(after - before));
    expect_refused(b, FM_ERROR_FORMAT, text);
}

static void test_hostile_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {UINT64_MAX,
                                      UINT64_MAX - 1,
                                      UINT64_C(1) << 63,
                                      UINT64_C(1) << 40,
                                      UINT64_C(1) << 32,
                                      UINT64_MAX / 33,
                                      UINT64_MAX / 14,
                                      UINT64_MAX / 80 + 1,
                                      1000,
                                      3};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        fm__buf b = {0};
        put_header(&b, 3, 0, counts[i]);
        put_data(&b, 36);
        expect_cheap(&b, "keys at offset 16, but the file ends at 60 and has room for 2");
        put_header(&b, 3, counts[i], 0);
        put_data(&b, 36);
        expect_cheap(&b, "tensors at offset 8, but the file ends at 60 and has room for 1");
        put_header(&b, 3, counts[i], 1);
        put_data(&b, 36);
        expect_cheap(&b, "tensors at offset 8, but the file ends at 60 and has room for 0");
    }
}

/* A claim that a large file could hold must not be believed before the records are there. */
static void test_hostile_counts_in_large_file(void **state) {
    (void)state;
    fm__buf b = {0};
    static const uint8_t zeros[1 << 20];
    put_header(&b, 3, 200000, 200000);
    for (int i = 0; i < 32; i++)
        fm__buf_append(&b, zeros, sizeof zeros);
    expect_cheap(&b, "the name is empty, at offset 32");
}

static void test_hostile_lengths(void **state) {
    (void)state;
    static const uint64_t lengths[] = {UINT64_MAX,
                                       UINT64_MAX - 7,
                                       UINT64_C(1) << 63,
                                       UINT64_C(1) << 62,
                                       UINT64_C(1) << 61,
                                       1 << 30,
                                       101};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        fm__buf b = {0};
        put_header(&b, 3, 0, 1); /* the key's name */
        put(&b, lengths[i], 8);
        put_data(&b, 100);
        expect_cheap(&b, "the name of a key at offset 32 takes ");
        put_header(&b, 3, 0, 1); /* a string */
        put_text(&b, "k");
        put(&b, FM__KV_STRING, 4);
        put(&b, lengths[i], 8);
        put_data(&b, 100);
        expect_cheap(&b, "key k: the string at offset 45 takes ");
        put_header(&b, 3, 0, 1); /* a string in an array */
        put_array_head(&b, "k", FM__KV_STRING, 2);
        put_text(&b, "x");
        put(&b, lengths[i], 8);
        put_data(&b, 100);
        expect_cheap(&b, "key k: a string of the array at offset ");
        put_header(&b, 3, 1, 0); /* a tensor's name */
        put(&b, lengths[i], 8);
        put_data(&b, 100);
        expect_cheap(&b, "the name of a tensor at offset 32 takes ");
        for (uint32_t element = 0; element <= FM__KV_F64; element++) {
            if (element == FM__KV_ARRAY)
                continue;
            put_header(&b, 3, 0, 1); /* an array */
            put_array_head(&b, "k", element, lengths[i]);
            put_data(&b, 100);
            expect_cheap(&b, "key k: an array of ");
        }
    }
}

static void test_hostile_dims(void **state) {
    (void)state;
    static const struct {
        uint32_t type, n_dims;
        uint64_t dims[8];
        const char *text;
    } cases[] = {
        {FM__F32, 0, {0}, "tensor w: 0 dimensions"},
        {FM__F32, 5, {1, 1, 1, 1, 1}, "tensor w: 5 dimensions"},
        {FM__F32, UINT32_MAX, {1, 1, 1, 1, 1}, "tensor w: 4294967295 dimensions"},
        {FM__F32, 0x80000001u, {1}, "tensor w: 2147483649 dimensions"},
        {FM__F32, 1, {0}, "dimension 0 is zero"},
        {FM__F32, 4, {1, 1, 1, 0}, "dimension 3 is zero"},
        {FM__F32, 2, {0, UINT64_MAX}, "dimension 0 is zero"},
        {FM__F32, 1, {UINT64_MAX}, "dimension 0 is 18446744073709551615"},
        {FM__F32, 1, {UINT64_C(1) << 63}, "the number of elements overflows"},
        {FM__F32, 2, {UINT64_C(1) << 32, UINT64_C(1) << 32}, "the number of elements overflows"},
        {FM__F32, 2, {UINT64_C(1) << 62, 4}, "the number of elements overflows"},
        {FM__F32, 4, {65536, 65536, 65536, 65536}, "dimension 3 is 65536"},
        {FM__F32, 4, {65536, 65536, 65536, 65537}, "the number of elements overflows"},
        {FM__F32, 1, {UINT64_C(1) << 62}, "the number of bytes overflows"},
        {FM__F32, 1, {(UINT64_C(1) << 62) + 1}, "the number of bytes overflows"},
        {FM__F64, 2, {UINT64_C(1) << 31, UINT64_C(1) << 31}, "the number of bytes overflows"},
        {FM__F32, 1, {UINT64_C(1) << 40}, "ends at 4398046511"},
        {FM__F32, 1, {17}, "ends at 132, file has 128"},
        {FM__Q4_K, 1, {255}, "rows of 255 elements do not divide into q4_k blocks of 256"},
        {FM__Q4_K, 2, {128, 2}, "rows of 128 elements"},
        {FM__Q8_0, 1, {UINT64_C(1) << 62}, "ends at "},
        {FM__Q8_0, 2, {32, UINT64_C(1) << 58}, "the number of elements overflows"},
        {FM__I8, 1, {INT64_MAX}, "ends at 922337203685477"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm__buf b = {0};
        put_header(&b, 3, 1, 0);
        put_tensor(&b, "w", cases[i].n_dims, cases[i].dims, cases[i].type, 0);
        put_padding(&b, 32);
        while (b.bytes < 128)
            put(&b, 0, 1);
        expect_cheap(&b, cases[i].text);
    }
}

/* ---- where tensors lie ---- */

static void two_tensors(fm__buf *b, uint64_t first, uint64_t second) {
    put_header(b, 3, 2, 0);
    put_tensor(b, "one", 1, (uint64_t[]){16}, FM__F32, first); /* 64 bytes */
    put_tensor(b, "two", 1, (uint64_t[]){8}, FM__F32, second); /* 32 bytes */
    put_padding(b, 32);
    put_data(b, 128);
}

static void test_places(void **state) {
    (void)state;
    fm__buf b = {0};
    fm_error error;
    static const uint64_t good[][2] = {{0, 64}, {32, 0}, {32, 96}, {64, 32}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        two_tensors(&b, good[i][0], good[i][1]);
        assert_int_equal(open_bytes(b.data, b.bytes, &error), FM_OK);
        fm__buf_clear(&b);
    }
    two_tensors(&b, 0, 32);
    expect_refused(&b, FM_ERROR_FORMAT, "tensor two: begins at offset 128 inside tensor one");
    two_tensors(&b, 32, 32);
    expect_refused(&b, FM_ERROR_FORMAT, "begins at offset 128 inside tensor");
    two_tensors(&b, 0, 128);
    expect_refused(&b, FM_ERROR_FORMAT, "tensor two: ends at 256, file has 224");
    two_tensors(&b, 0, 65);
    expect_refused(&b, FM_ERROR_FORMAT, "data offset 65 is not a multiple of the alignment 32");
    two_tensors(&b, 0, UINT64_MAX - 31);
    expect_refused(&b, FM_ERROR_FORMAT, "overflow");
    two_tensors(&b, UINT64_MAX - 127, 0);
    expect_refused(&b, FM_ERROR_FORMAT, "overflow");
    two_tensors(&b, UINT64_C(1) << 63, 0);
    expect_refused(&b, FM_ERROR_FORMAT, "tensor one: ends at ");
}

static void with_alignment(fm__buf *b, uint32_t type, uint64_t value, size_t bytes, size_t pad) {
    put_header(b, 3, 1, 1);
    put_key(b, "general.alignment", type, value, bytes);
    put_tensor(b, "w", 1, (uint64_t[]){4}, FM__F32, 0);
    put_padding(b, pad);
    put_data(b, 16);
}

static void test_alignment(void **state) {
    (void)state;
    fm__buf b = {0};
    fm_error error;
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        with_alignment(&b, FM__KV_U32, alignment, 4, alignment);
        assert_int_equal(open_bytes(b.data, b.bytes, &error), FM_OK);
        fm__buf_clear(&b);
    }
    static const uint32_t bad[] = {0, 3, 48, 0xFFFFFFFF, 33};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        with_alignment(&b, FM__KV_U32, bad[i], 4, 32);
        expect_refused(&b, FM_ERROR_FORMAT, "key general.alignment: ");
    }
    with_alignment(&b, FM__KV_U32, UINT64_C(1) << 31, 4, 32);
    expect_refused(&b, FM_ERROR_FORMAT, "inside the padding");
    with_alignment(&b, FM__KV_U64, UINT64_C(1) << 63, 8, 32);
    expect_refused(&b, FM_ERROR_FORMAT, "key general.alignment: ");
    with_alignment(&b, FM__KV_I32, (uint32_t)-32, 4, 32);
    expect_refused(&b, FM_ERROR_FORMAT, "key general.alignment: -32 does not fit");
    with_alignment(&b, FM__KV_F32, fm__f32_bits(32), 4, 32);
    expect_refused(&b, FM_ERROR_FORMAT, "key general.alignment: is f32");
}

/* ---- names ---- */

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t bytes;
        const char *text;
    } bad[] = {{"", 0, ": the name is empty"},
               {"a\0b", 3, "a\\x00b: the name holds a control character"},
               {"a\x1B[2J", 5, "a\\x1B[2J: the name holds a control character"},
               {"\xFF", 1, "\\xFF: the name is not valid UTF-8"},
               {"\xC0\xAF", 2, "\\xC0\\xAF: the name is not valid UTF-8"},
               {"\xED\xA0\x80", 3, "the name is not valid UTF-8"},
               {"a\xE6\xAD", 3, "a\\xE6\\xAD: the name is not valid UTF-8"},
               {"\xC2\x9B", 2, "\\xC2\\x9B: the name holds a control character"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fm__buf b = {0};
        put_header(&b, 3, 0, 1);
        put_bytes(&b, bad[i].name, bad[i].bytes);
        put(&b, FM__KV_U64, 4);
        put(&b, 1, 8);
        expect_refused(&b, FM_ERROR_FORMAT, bad[i].text);
        put_header(&b, 3, 1, 0);
        put_bytes(&b, bad[i].name, bad[i].bytes);
        put_data(&b, 64);
        expect_refused(&b, FM_ERROR_FORMAT, bad[i].text);
    }
    fm__buf b = {0};
    char *text = malloc(65537);
    memset(text, 'n', 65536);
    text[65536] = '\0';
    put_header(&b, 3, 0, 1);
    put_u32(&b, text, 1);
    expect_refused(&b, FM_ERROR_FORMAT, "longer than 65535");
    fm_error error;
    put_header(&b, 3, 0, 1);
    put_u32(&b, text + 1, 1);
    assert_int_equal(open_bytes(b.data, b.bytes, &error), FM_OK);
    fm__buf_finish(&b);
    free(text);
}

/* n keys and n tensors; the last of one kind repeats number `twin`. */
static void many_names(fm__buf *b, uint32_t n, bool twin_key, bool twin_tensor) {
    char name[64];
    put_header(b, 3, n, n);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "some.key.number.%u", twin_key && i == n - 1 ? n / 2 : i);
        put_u32(b, name, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "blk.%u.weight", twin_tensor && i == n - 1 ? n / 2 : i);
        put_tensor(b, name, 1, (uint64_t[]){8}, FM__F32, 32 * (uint64_t)i);
    }
    put_padding(b, 32);
    put_data(b, 32 * (size_t)n);
}

static void test_duplicates(void **state) {
    (void)state;
    fm__buf b = {0};
    fm_error error;
    put_header(&b, 3, 0, 2);
    put_u32(&b, "twin", 1);
    put_string_key(&b, "twin", "of another type");
    expect_refused(&b, FM_ERROR_FORMAT, "key twin: appears twice, again at offset 44");
    many_names(&b, 2000, true, false);
    expect_cheap(&b, "key some.key.number.1000: appears twice");
    many_names(&b, 2000, false, true);
    expect_refused(&b, FM_ERROR_FORMAT, "tensor blk.1000.weight: appears twice");
    /* Ten times the names: about ten times the work, not a hundred (which would take seconds). */
    uint64_t took[2] = {UINT64_MAX, UINT64_MAX};
    for (int size = 0; size < 2; size++) {
        many_names(&b, size == 0 ? 5000 : 50000, false, false);
        for (int i = 0; i < 3; i++) {
            fm__checkpoint *c = NULL;
            uint64_t begin = test_cpu_ns();
            assert_int_equal(fm__checkpoint_open_memory(&c, b.data, b.bytes, "t", &error), FM_OK);
            uint64_t ns = test_cpu_ns() - begin;
            took[size] = ns < took[size] ? ns : took[size];
            fm__checkpoint_close(&c);
        }
        fm__buf_finish(&b);
    }
    if (took[1] > 40 * took[0] && took[1] > 500000000)
        fail_msg("%.1f ms for 5,000 names, %.1f ms for 50,000", (double)took[0] / 1e6,
                 (double)took[1] / 1e6);
}

/* ---- values ---- */

static void test_bad_values(void **state) {
    (void)state;
    fm__buf b = {0};
    static const uint32_t unknown[] = {13, 14, 255, UINT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char text[64];
        put_header(&b, 3, 0, 1);
        put_key(&b, "k", unknown[i], 0, 8);
        snprintf(text, sizeof text, "key k: type %u at offset 33 is unknown", unknown[i]);
        expect_refused(&b, FM_ERROR_FORMAT, text);
        put_header(&b, 3, 0, 1);
        put_array_head(&b, "k", unknown[i], 0);
        snprintf(text, sizeof text, "key k: array type %u at offset 37", unknown[i]);
        expect_refused(&b, FM_ERROR_FORMAT, text);
    }
    put_header(&b, 3, 0, 1);
    put_key(&b, "k", FM__KV_BOOL, 2, 1);
    expect_refused(&b, FM_ERROR_FORMAT, "key k: a bool at offset 37 is 2");
    put_header(&b, 3, 0, 1);
    put_array_head(&b, "k", FM__KV_BOOL, 3);
    put(&b, 0xFF0100, 3);
    expect_refused(&b, FM_ERROR_FORMAT, "key k: a bool at offset 51 is 255");
    put_header(&b, 3, 0, 1); /* arrays in arrays in arrays */
    put_array_head(&b, "k", FM__KV_ARRAY, 1);
    for (int i = 0; i < 1000; i++) {
        put(&b, FM__KV_ARRAY, 4);
        put(&b, 1, 8);
    }
    expect_refused(&b, FM_ERROR_UNSUPPORTED, "key k: an array of arrays at offset 37");
}

/* ---- memory and mutation ---- */

static void test_allocation_failures(void **state) {
    (void)state;
    fm__buf b = {0};
    fm_error error;
    many_names(&b, 40, false, false);
    uint64_t failures = 0;
    for (uint64_t n = 1; n < 1000; n++) {
        fm__checkpoint *c = NULL;
        fm__alloc_fail_after(n);
        fm_status status = fm__checkpoint_open_memory(&c, b.data, b.bytes, "t", &error);
        fm__alloc_fail_after(0);
        fm__checkpoint_close(&c);
        if (status == FM_OK)
            break;
        assert_int_equal(status, FM_ERROR_MEMORY);
        failures++;
    }
    assert_in_range(failures, 5, 500);
    fm__buf_finish(&b);
}

/* Any bytes at any place: an error or a directory whose every byte can be read. */
static void test_mutations(void **state) {
    (void)state;
    static const uint64_t extremes[] = {
        0, 1, 0x7F, 0xFF, 0xFFFF, 1u << 31, UINT32_MAX, UINT64_C(1) << 63, UINT64_MAX};
    fm__buf b = {0};
    fm__random random;
    size_t opened = 0;
    fm__random_seed(&random, 5);
    put_whole(&b, 3);
    for (int round = 0; round < 20000; round++) {
        fm__checkpoint *c = NULL;
        fm_error error;
        uint8_t *copy = malloc(b.bytes);
        size_t bytes = b.bytes;
        memcpy(copy, b.data, bytes);
        int changes = 1 + (int)(fm__random_next(&random) % 3);
        for (int i = 0; i < changes; i++) {
            size_t at = fm__random_next(&random) % bytes;
            size_t width = (size_t)1 << fm__random_next(&random) % 4;
            uint64_t value = fm__random_next(&random) % 2 ? fm__random_next(&random)
                                                          : extremes[fm__random_next(&random) % 9];
            if (at + width <= bytes)
                fm__store_le(copy + at, value, width);
        }
        if (fm__checkpoint_open_memory(&c, copy, bytes, "t", &error) == FM_OK) {
            uint64_t sum = 0;
            opened++;
            for (size_t i = 0; i < c->n_tensors; i++)
                for (uint64_t j = 0; j < c->tensors[i].bytes; j++)
                    sum += c->tensors[i].data[j];
            assert_true(sum < UINT64_MAX);
        } else {
            assert_true(error.message[0] != '\0');
        }
        fm__checkpoint_close(&c);
        free(copy);
    }
    assert_in_range(opened, 100, 19000);
    fm__buf_finish(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),        cmocka_unit_test(test_no_tensors),
        cmocka_unit_test(test_types),           cmocka_unit_test(test_dtype_bytes),
        cmocka_unit_test(test_cut_everywhere),  cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_hostile_counts),  cmocka_unit_test(test_hostile_counts_in_large_file),
        cmocka_unit_test(test_hostile_lengths), cmocka_unit_test(test_hostile_dims),
        cmocka_unit_test(test_places),          cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_names),           cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_bad_values),      cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
