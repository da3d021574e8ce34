/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_string.c: UTF-8, buffers, hash, map, random numbers, errors and the log. */
#include "test.h"

#include <math.h>

#include "base/base.h"
#include "fusionml/fusionml.h"

/* ---- UTF-8 ---- */

static void test_utf8_every_scalar(void **state) {
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char bytes[4];
        uint32_t back = 0;
        size_t n;
        if (c >= 0xd800 && c < 0xe000)
            continue;
        n = fm__utf8_put(c, bytes);
        assert_int_equal(n, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        assert_int_equal(fm__utf8_next(bytes, n, &back), n);
        assert_int_equal(back, c);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(fm__utf8_next(bytes, cut, NULL), -1);
    }
}

/* Every sequence of two and three bytes: exactly the scalar values are accepted, each once. */
static void test_utf8_every_sequence(void **state) {
    (void)state;
    uint32_t two = 0, three = 0;
    for (uint32_t i = 0; i < 1u << 24; i++) {
        char bytes[3] = {(char)(i >> 16), (char)(i >> 8), (char)i};
        int n = fm__utf8_next(bytes, 3, NULL);
        two += n == 2 && (i & 0xff) == 0;
        three += n == 3;
    }
    assert_int_equal(two, 0x800 - 0x80);
    assert_int_equal(three, 0x10000 - 0x800 - 0x800);
}

static void test_utf8_bad(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        int want;
    } cases[] = {
        {"\xc0\xaf", 2, 0},
        {"\xc1\xbf", 2, 0},
        {"\xed\xa0\x80", 3, 0},
        {"\xff", 1, 0},
        {"\x80", 1, 0},
        {"\xf4\x90\x80\x80", 4, 0},
        {"\xf5\x80\x80\x80", 4, 0},
        {"\xe0\x80\x80", 3, 0},
        {"\xf0\x80\x80\x80", 4, 0},
        {"\xe6\xad", 2, -1},
        {"\xf4\x8f", 2, -1},
        {"\xf4\x90", 2, 0},
        {"\xed\xa0", 2, 0},
        {"\xe6"
         "A",
         2, 0},
        {"", 0, -1},
        {"\0", 1, 1},
        {"\xf4\x8f\xbf\xbf", 4, 4},
        {"\xef\xbb\xbf", 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(fm__utf8_next(cases[i].bytes, cases[i].n, NULL), cases[i].want);
}

/* ---- strings and buffers ---- */

static void test_str(void **state) {
    (void)state;
    assert_true(fm__str_is(FM__STR("abc"), "abc") && !fm__str_is(FM__STR("abc"), "abcd"));
    assert_true(fm__str_equal(FM__STR("a\0b"), FM__STR("a\0b")));
    assert_false(fm__str_equal(FM__STR("a\0b"), FM__STR("a\0c")));
    assert_true(fm__str_is((fm__str){NULL, 0}, ""));
    assert_true(fm__str_ends(FM__STR("x.weight"), ".weight"));
    assert_true(fm__str_ends(FM__STR("x"), "") && !fm__str_ends(FM__STR("x"), "xx"));
}

static void test_buf(void **state) {
    (void)state;
    fm__buf buf = {0};
    for (int i = 0; i < 1000; i++)
        assert_true(fm__buf_printf(&buf, "%03d,", i));
    assert_true(fm__buf_append(&buf, "\0x", 2));
    assert_int_equal(buf.bytes, 4002);
    assert_memory_equal(buf.data + 3996, "999,\0x", 7); /* the NUL behind it too */
    fm__buf_clear(&buf);
    assert_int_equal(buf.bytes, 0);
    assert_string_equal(buf.data, "");
    fm__alloc_fail_after(1);
    char large[8192] = {0};
    assert_false(fm__buf_append(&buf, large, sizeof large));
    assert_false(fm__buf_append(&buf, "x", 1)); /* sticky */
    assert_true(buf.failed);
    fm__alloc_fail_after(0);
    fm__buf_finish(&buf);
    assert_true(fm__buf_append(&buf, NULL, 0));
    assert_string_equal(buf.data, "");
    assert_false(fm__buf_append(&buf, "x", SIZE_MAX));
    fm__buf_finish(&buf);
}

/* ---- hash and map ---- */

static void test_hash(void **state) {
    (void)state;
    char data[64];
    for (int i = 0; i < 64; i++)
        data[i] = (char)(i * 37);
    for (size_t cut = 0; cut <= 64; cut += 8)
        assert_true(fm__hash(fm__hash(FM__HASH_SEED, data, cut), data + cut,
                             61 - fm__min_size(cut, 61)) == fm__hash(FM__HASH_SEED, data, 61) ||
                    cut > 61);
    assert_true(fm__hash(FM__HASH_SEED, "a", 1) != fm__hash(FM__HASH_SEED, "a\0", 2));
    assert_true(fm__hash(FM__HASH_SEED, "", 0) == FM__HASH_SEED);
    /* each flipped bit, and each two flipped bits, give another hash */
    uint64_t first = fm__hash(FM__HASH_SEED, data, 32);
    for (int i = 0; i < 256; i++)
        for (int j = i; j < 256; j++) {
            data[i / 8] ^= (char)(1 << i % 8);
            if (j != i)
                data[j / 8] ^= (char)(1 << j % 8);
            assert_true(fm__hash(FM__HASH_SEED, data, 32) != first);
            data[i / 8] ^= (char)(1 << i % 8);
            if (j != i)
                data[j / 8] ^= (char)(1 << j % 8);
        }
    /* stable across machines and versions: snapshots hold such hashes */
    assert_true(fm__hash(FM__HASH_SEED, "a key of 17 bytes", 17) == UINT64_C(0xa7f2657a42637ddc));
}

static void test_hash_bulk(void **state) {
    (void)state;
    uint8_t data[201], moved[202];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 37 + i / 7);
    memcpy(moved + 1, data, sizeof data);
    uint64_t first = fm__hash_bulk(FM__HASH_SEED, data, sizeof data);
    assert_true(fm__hash_bulk(FM__HASH_SEED, moved + 1, sizeof data) == first);
    assert_true(fm__hash_bulk(FM__HASH_SEED + 1, data, sizeof data) != first);
    /* each length gives another hash, and each flipped bit, and each two of them */
    uint64_t of_length[sizeof data];
    for (size_t n = 0; n < sizeof data; n++) {
        of_length[n] = fm__hash_bulk(FM__HASH_SEED, data, n);
        for (size_t shorter = 0; shorter < n; shorter++)
            assert_true(of_length[n] != of_length[shorter]);
    }
    for (size_t i = 0; i < 8 * sizeof data; i++)
        for (size_t j = i; j < 8 * sizeof data; j += 1 + j / 5) {
            data[i / 8] ^= (uint8_t)(1u << i % 8);
            if (j != i)
                data[j / 8] ^= (uint8_t)(1u << j % 8);
            assert_true(fm__hash_bulk(FM__HASH_SEED, data, sizeof data) != first);
            data[i / 8] ^= (uint8_t)(1u << i % 8);
            if (j != i)
                data[j / 8] ^= (uint8_t)(1u << j % 8);
        }
    /* stable across machines: snapshots hold a model's hash */
    assert_true(first == UINT64_C(0x76ed45f8da329ea7));
}

static void fill_map(size_t count, size_t expected) {
    fm__map map;
    char(*names)[48] = fm__alloc_array(count, 48);
    bool existing;
    uint32_t value;
    assert_non_null(names);
    assert_true(fm__map_init(&map, expected));
    uint64_t began = fm__now_ns();
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], 48, "blk.%zu.ffn_up.weight", i);
        assert_true(fm__map_put(&map, fm__str_of(names[i]), (uint32_t)i, &existing));
        assert_false(existing);
    }
    for (size_t i = 0; i < count; i++) {
        assert_true(fm__map_get(&map, fm__str_of(names[i]), &value));
        assert_int_equal(value, i);
        assert_true(fm__map_put(&map, fm__str_of(names[i]), 12345, &existing));
        assert_true(existing);
    }
    assert_true(fm__map_get(&map, fm__str_of(names[count / 2]), &value));
    assert_int_equal(value, count / 2); /* the first value is kept */
    assert_false(fm__map_get(&map, FM__STR("blk.x"), &value));
    printf("map of %zu: %.2f ms\n", count, (double)(fm__now_ns() - began) * 1e-6);
    assert_int_equal(map.count, count);
    assert_true(fm__now_ns() - began < UINT64_C(5000000000)); /* quadratic would take minutes */
    fm__map_finish(&map);
    assert_false(fm__map_get(&map, FM__STR("blk.0"), NULL));
    fm__free(names);
}

static void test_map(void **state) {
    (void)state;
    fill_map(2000, 2000);
    fill_map(2000, 0);
    fill_map(200000, 0);
    fm__map map = {0}; /* zeroed is an empty map */
    bool existing = true;
    assert_true(fm__map_put(&map, FM__STR(""), 1, &existing) && !existing);
    assert_true(fm__map_put(&map, FM__STR("\0"), 2, NULL));
    assert_int_equal(map.count, 2);
    fm__map_finish(&map);
    assert_false(fm__map_init(&map, SIZE_MAX / 2));
    fm__alloc_fail_after(1);
    assert_false(fm__map_init(&map, 10));
    fm__alloc_fail_after(0);
    fm__map_finish(&map);
}

/* ---- random numbers ---- */

static void test_random(void **state) {
    (void)state;
    fm__random a, b;
    double sum = 0, squares = 0;
    fm__random_seed(&a, 0);
    /* splitmix64(0)'s first four outputs */
    assert_true(a.s[0] == UINT64_C(0xe220a8397b1dcdaf) && a.s[1] == UINT64_C(0x6e789e6aa1b965f4));
    fm__random_seed(&a, 42);
    fm__random_seed(&b, 42);
    for (int i = 0; i < 200000; i++) {
        double d = fm__random_double(&b);
        assert_true(d >= 0 && d < 1);
        assert_true(d == (double)(fm__random_next(&a) >> 11) / 9007199254740992.0);
    }
    for (int i = 0; i < 200000; i++) {
        double x = (double)fm__random_normal(&a);
        assert_true(fabs(x) < 9);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / 200000) < 0.01 && fabs(squares / 200000 - 1) < 0.02);
}

/* ---- errors and the log ---- */

static void test_status(void **state) {
    (void)state;
    assert_string_equal(fm_status_name(FM_ERROR_FORMAT), "FM_ERROR_FORMAT");
    assert_string_equal(fm_status_text(FM_OK), "success");
    assert_string_equal(fm_status_name((fm_status)99), "unknown status");
    assert_string_equal(fm_status_text((fm_status)-1), "unknown status");
    char want[32];
    snprintf(want, sizeof want, "%d.%d.%d", FM_VERSION_MAJOR, FM_VERSION_MINOR, FM_VERSION_PATCH);
    assert_string_equal(fm_version(), want);
}

static bool is_utf8(const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        int n = fm__utf8_next(text, left, NULL);
        if (n <= 0)
            return false;
        text += n;
        left -= (size_t)n;
    }
    return true;
}

static void test_error(void **state) {
    (void)state;
    fm_error error;
    assert_int_equal(fm__error(NULL, FM_ERROR_IO, "x", "y"), FM_ERROR_IO);
    assert_int_equal(fm__error(&error, FM_ERROR_FORMAT, NULL, "ends at %d", 1052), FM_ERROR_FORMAT);
    assert_string_equal(error.message, "ends at 1052");
    assert_string_equal(error.place, "");
    assert_int_equal(fm__error_within(&error, FM_ERROR_IO, "inner"), FM_ERROR_FORMAT);
    assert_int_equal(fm__error_within(&error, FM_ERROR_IO, "m.gguf"), FM_ERROR_FORMAT);
    assert_string_equal(error.place, "m.gguf: inner");
    assert_int_equal(fm__error_within(NULL, FM_ERROR_IO, "m"), FM_ERROR_IO);
    /* what it is made from may be the error itself */
    fm__error(&error, FM_ERROR_STATE, error.place, "again: %s", error.message);
    assert_string_equal(error.message, "again: ends at 1052");
    assert_string_equal(error.place, "m.gguf: inner");
    assert_int_equal(fm__error_memory(&error, "p", 77), FM_ERROR_MEMORY);
    assert_non_null(strstr(error.message, "77 bytes"));
    fm__error(&error, FM_ERROR_FORMAT, "a\xff\x1b[2J\xe6\xad", "bad \xc0\xaf\n");
    assert_string_equal(error.place, "a??[2J??");
    assert_string_equal(error.message, "bad ???");
}

/* Characters of every length over both buffers' ends. */
static void test_error_cut(void **state) {
    (void)state;
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t c = 0; c < 4; c++)
        for (size_t lead = 0; lead < 8; lead++) {
            char text[1000] = "";
            memset(text, '-', lead);
            for (size_t n = lead; n < 900; n += c + 1)
                strcpy(text + n, characters[c]);
            fm_error error;
            fm__error(&error, FM_ERROR_IO, text, "%s", text);
            assert_true(is_utf8(error.message) && is_utf8(error.place));
            assert_in_range(strlen(error.message), sizeof error.message - 4,
                            sizeof error.message - 1);
            assert_in_range(strlen(error.place), sizeof error.place - 4, sizeof error.place - 1);
            assert_null(strchr(error.message, '?'));
            fm__error_within(&error, FM_ERROR_IO, text);
            assert_true(is_utf8(error.place));
            assert_null(strchr(error.place, '?'));
        }
}

static char last_line[4096];
static int lines;

static void keep_line(void *user, fm_log_level level, const char *line) {
    assert_int_equal(*(int *)user, 5);
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
    lines++;
    fm__log(FM_LOG_WARNING, "from inside"); /* dropped: must neither wait for ever nor recurse */
}

static void test_log(void **state) {
    (void)state;
    int user = 5;
    fm__log(FM_LOG_WARNING, "nobody listens");
    fm_log_set(keep_line, &user, FM_LOG_INFO);
    fm__log(FM_LOG_DEBUG, "too low");
    assert_int_equal(lines, 0);
    fm__log(FM_LOG_INFO, "two\nlines %d", 7);
    assert_int_equal(lines, 1);
    assert_string_equal(last_line, "two lines 7");
    fm_log_set(NULL, NULL, FM_LOG_DEBUG);
    fm__log(FM_LOG_WARNING, "silence");
    assert_int_equal(lines, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_every_scalar),
        cmocka_unit_test(test_utf8_every_sequence),
        cmocka_unit_test(test_utf8_bad),
        cmocka_unit_test(test_str),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_hash_bulk),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_error_cut),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
