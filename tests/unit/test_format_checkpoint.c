/* SPDX-License-Identifier: Apache-2.0 */
/* The directory: typed reads, values as text, views that are added to, and the public listing. */
#include "fusionml/checkpoint.h"
#include "unit/gguf_bytes.h"

static fm__buf whole;
static fm__checkpoint *opened;

static int open_whole(void **state) {
    (void)state;
    fm_error error;
    put_whole(&whole, 3);
    return fm__checkpoint_open_memory(&opened, whole.data, whole.bytes, "w.gguf", &error) != FM_OK;
}

static int close_whole(void **state) {
    (void)state;
    fm__checkpoint_close(&opened);
    fm__buf_finish(&whole);
    return 0;
}

static void test_read_integers(void **state) {
    (void)state;
    static const struct {
        const char *key;
        fm_status wide, narrow;
        uint64_t value;
    } cases[] = {{"u8", FM_OK, FM_OK, 200},
                 {"u16", FM_OK, FM_OK, 60000},
                 {"u32", FM_OK, FM_OK, 4000000000u},
                 {"u64", FM_OK, FM_ERROR_FORMAT, UINT64_MAX},
                 {"i8", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"i16", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"i32", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"i64", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"f32", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"f64", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"true", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"ints", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0},
                 {"general.architecture", FM_ERROR_FORMAT, FM_ERROR_FORMAT, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t wide = 99;
        uint32_t narrow = 99;
        fm_error error = {0};
        assert_int_equal(fm__kv_read_u64(opened, cases[i].key, true, &wide, &error), cases[i].wide);
        assert_int_equal(wide, cases[i].wide == FM_OK ? cases[i].value : 99);
        assert_int_equal(fm__kv_read_u32(opened, cases[i].key, false, &narrow, &error),
                         cases[i].narrow);
        assert_int_equal(narrow, cases[i].narrow == FM_OK ? cases[i].value : 99);
        if (cases[i].narrow != FM_OK)
            assert_non_null(strstr(error.place, cases[i].key));
    }
}

static void test_read_others(void **state) {
    (void)state;
    fm_error error = {0};
    float real = 7;
    bool truth = false;
    fm__str text = {0};
    assert_int_equal(fm__kv_read_f32(opened, "f32", true, &real, &error), FM_OK);
    assert_true(real == 1e-6f);
    assert_int_equal(fm__kv_read_f32(opened, "f64", true, &real, &error), FM_OK);
    assert_true(real == 0.1f);
    assert_int_equal(fm__kv_read_f32(opened, "i32", true, &real, &error), FM_OK);
    assert_true(real == -70000.0f);
    assert_int_equal(fm__kv_read_f32(opened, "true", true, &real, &error), FM_ERROR_FORMAT);
    assert_int_equal(fm__kv_read_bool(opened, "true", true, &truth, &error), FM_OK);
    assert_true(truth);
    assert_int_equal(fm__kv_read_bool(opened, "false", true, &truth, &error), FM_OK);
    assert_false(truth);
    assert_int_equal(fm__kv_read_bool(opened, "u8", true, &truth, &error), FM_ERROR_FORMAT);
    assert_int_equal(fm__kv_read_str(opened, "general.architecture", true, &text, &error), FM_OK);
    assert_true(fm__str_is(text, "llama"));
    assert_int_equal(fm__kv_read_str(opened, "u8", true, &text, &error), FM_ERROR_FORMAT);
    assert_string_equal(error.message, "is u8, a string is needed");
    /* Missing: the default stays, or the key is named. */
    real = 7;
    assert_int_equal(fm__kv_read_f32(opened, "none", false, &real, &error), FM_OK);
    assert_true(real == 7);
    assert_int_equal(fm__kv_read_f32(opened, "none", true, &real, &error), FM_ERROR_FORMAT);
    assert_string_equal(error.place, "w.gguf: key none");
    assert_string_equal(error.message, "is missing");
}

static void test_floats_that_do_not_fit(void **state) {
    (void)state;
    static const uint64_t bits[] = {UINT64_C(0x7FF0000000000000), UINT64_C(0xFFF0000000000000),
                                    UINT64_C(0x7FF8000000000000), UINT64_C(0x7E37E43C8800759C)};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        fm__checkpoint *c = NULL;
        fm__buf b = {0};
        fm_error error;
        float real = 7;
        put_header(&b, 3, 0, 1);
        put_key(&b, "x", FM__KV_F64, bits[i], 8);
        assert_int_equal(fm__checkpoint_open_memory(&c, b.data, b.bytes, "t", &error), FM_OK);
        assert_int_equal(fm__kv_read_f32(c, "x", true, &real, &error), FM_ERROR_FORMAT);
        assert_true(real == 7);
        fm__checkpoint_close(&c);
        fm__buf_finish(&b);
    }
}

static void test_value_text(void **state) {
    (void)state;
    static const struct {
        const char *key, *type, *value;
    } cases[] = {{"u8", "u8", "200"},
                 {"i8", "i8", "-7"},
                 {"i16", "i16", "-300"},
                 {"u32", "u32", "4000000000"},
                 {"i32", "i32", "-70000"},
                 {"f32", "f32", "1e-06"},
                 {"f64", "f64", "0.1"},
                 {"true", "bool", "true"},
                 {"u64", "u64", "18446744073709551615"},
                 {"i64", "i64", "-9223372036854775808"},
                 {"general.architecture", "string", "llama"},
                 {"strings", "array of string [3]", "[\"a\\\"b\", \"\", \"x\\u0000\xEF\xBF\xBD\"]"},
                 {"ints", "array of i32 [20]",
                  "[-10, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, ..."},
                 {"empty", "array of f32 [0]", "[]"},
                 {"bools", "array of bool [2]", "[true, false]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char type[64], text[128];
        const fm__kv *kv = fm__checkpoint_kv(opened, cases[i].key);
        assert_non_null(kv);
        fm__kv_type_text(kv, type, sizeof type);
        assert_string_equal(type, cases[i].type);
        size_t bytes = strlen(cases[i].value);
        assert_int_equal(fm__kv_value_text(kv, text, sizeof text), bytes);
        assert_string_equal(text, cases[i].value);
        for (size_t capacity = 0; capacity <= bytes; capacity++) {
            assert_int_equal(fm__kv_value_text(kv, text, capacity), bytes);
            if (capacity > 0)
                assert_memory_equal(text, cases[i].value, strlen(text));
        }
    }
    assert_true(fm__kv_element(fm__checkpoint_kv(opened, "ints"), 19) == 9);
    assert_true(fm__kv_element(fm__checkpoint_kv(opened, "bools"), 0) == 1);
    assert_true(fm__kv_element(fm__checkpoint_kv(opened, "ints"), 20) == 0);
}

static void test_source_row(void **state) {
    (void)state;
    /* Two heads of 6 rows: stored halves (0 1 2 | 3 4 5) interleave to 0 3 1 4 2 5. */
    static const uint64_t wanted[] = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11};
    fm__tensor_info info = {.n_dims = 2, .dims = {4, 12, 1, 1}, .rope_heads = 2};
    for (uint64_t r = 0; r < 12; r++)
        assert_int_equal(fm__tensor_source_row(&info, r), wanted[r]);
    info.rope_heads = 0;
    for (uint64_t r = 0; r < 12; r++)
        assert_int_equal(fm__tensor_source_row(&info, r), r);
    /* A permutation, whatever the heads. */
    for (uint32_t heads = 1; heads <= 64; heads *= 2) {
        bool seen[128] = {false};
        info = (fm__tensor_info){.n_dims = 2, .dims = {1, 128, 1, 1}, .rope_heads = heads};
        for (uint64_t r = 0; r < 128; r++) {
            uint64_t source = fm__tensor_source_row(&info, r);
            assert_in_range(source, 0, 127);
            assert_false(seen[source]);
            seen[source] = true;
        }
    }
}

static void fill_view(fm__checkpoint *view, fm_error *error) {
    fm__str strs[] = {FM__STR("one"), FM__STR(""), FM__STR("a\0b")};
    char name[] = "t.weight";
    fm__tensor_info info = {.name = fm__str_of(name),
                            .dtype = FM__F16,
                            .n_dims = 1,
                            .dims = {2, 1, 1, 1},
                            .bytes = 4,
                            .data = (const uint8_t *)"\0\x3C\0\x40"};
    assert_int_equal(fm__checkpoint_add_u32(view, "u", 77, error), FM_OK);
    assert_int_equal(fm__checkpoint_add_f32(view, "f", 0.5f, error), FM_OK);
    assert_int_equal(fm__checkpoint_add_bool(view, "b", true, error), FM_OK);
    assert_int_equal(fm__checkpoint_add_str(view, "s", FM__STR("text"), error), FM_OK);
    assert_int_equal(fm__checkpoint_add_str(view, "nothing", (fm__str){NULL, 0}, error), FM_OK);
    assert_int_equal(fm__checkpoint_add_strs(view, "ss", strs, 3, error), FM_OK);
    assert_int_equal(fm__checkpoint_add_strs(view, "ss0", NULL, 0, error), FM_OK);
    assert_int_equal(fm__checkpoint_add_i32s(view, "is", (int32_t[]){-1, INT32_MIN}, 2, error),
                     FM_OK);
    assert_int_equal(fm__checkpoint_add_f32s(view, "fs", (float[]){1.5f, -2}, 2, error), FM_OK);
    assert_int_equal(fm__checkpoint_add_tensor(view, &info, error), FM_OK);
    name[0] = 'x'; /* the name was copied */
}

static void test_view(void **state) {
    (void)state;
    fm__checkpoint *base = NULL, *view = NULL;
    fm_error error;
    uint32_t number = 0;
    size_t cursor = 0;
    fm__str text;
    assert_int_equal(fm__checkpoint_open_memory(&base, whole.data, whole.bytes, "b", &error),
                     FM_OK);
    assert_int_equal(fm__checkpoint_view(&view, base, &error), FM_OK);
    assert_int_equal(view->kind, FM__CHECKPOINT_GGUF);
    fill_view(view, &error);
    assert_int_equal(fm__kv_read_u32(view, "u", true, &number, &error), FM_OK);
    assert_int_equal(number, 77);
    assert_true(fm__kv_element(fm__checkpoint_kv(view, "is"), 1) == INT32_MIN);
    assert_true(fm__kv_element(fm__checkpoint_kv(view, "fs"), 0) == 1.5);
    const fm__kv *strs = fm__checkpoint_kv(view, "ss");
    for (int i = 0; i < 3; i++)
        assert_true(fm__kv_next_string(strs, &cursor, &text));
    assert_int_equal(text.bytes, 3);
    assert_memory_equal(text.data, "a\0b", 3);
    assert_false(fm__kv_next_string(strs, &cursor, &text));
    assert_int_equal(fm__checkpoint_find(view, "t.weight")->bytes, 4);
    /* Names: no second one, no faulty one; the view stays as it was. */
    size_t n_kvs = view->n_kvs;
    assert_int_equal(fm__checkpoint_add_f32(view, "u", 1, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm__checkpoint_add_u32(view, "", 1, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm__checkpoint_add_u32(view, "\xFF", 1, &error), FM_ERROR_ARGUMENT);
    fm__tensor_info twin = *fm__checkpoint_find(view, "t.weight");
    assert_int_equal(fm__checkpoint_add_tensor(view, &twin, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(view->n_kvs, n_kvs);
    assert_int_equal(view->n_tensors, 1);
    /* Keys of another checkpoint, many of them. */
    for (size_t i = 0; i < base->n_kvs; i++)
        assert_int_equal(fm__checkpoint_add_kv(view, &base->kvs[i], &error), FM_OK);
    for (int i = 0; i < 1000; i++) {
        char key[32];
        snprintf(key, sizeof key, "key.%d", i);
        assert_int_equal(fm__checkpoint_add_u32(view, key, (uint32_t)i, &error), FM_OK);
    }
    assert_int_equal(fm__kv_read_u32(view, "key.999", true, &number, &error), FM_OK);
    assert_int_equal(number, 999);
    assert_int_equal(fm__kv_read_u32(view, "u8", true, &number, &error), FM_OK);
    assert_int_equal(number, 200);
    fm__checkpoint_close(&view); /* and base with it */
    assert_int_equal(fm__checkpoint_view(&view, NULL, &error), FM_OK);
    assert_int_equal(view->n_kvs, 0);
    assert_null(fm__checkpoint_kv(view, "u"));
    fm__checkpoint_close(&view);
}

static void test_view_allocation_failures(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 100; n++) {
        fm__checkpoint *view = NULL;
        fm_error error;
        fm__alloc_fail_after(n);
        fm_status status = fm__checkpoint_view(&view, NULL, &error);
        for (int i = 0; status == FM_OK && i < 20; i++) {
            char key[32];
            snprintf(key, sizeof key, "key.%d", i);
            status = fm__checkpoint_add_strs(view, key, &FM__STR("value"), 1, &error);
        }
        fm__alloc_fail_after(0);
        if (status == FM_OK) {
            assert_int_equal(view->n_kvs, 20);
            assert_true(n > 5);
        } else {
            assert_int_equal(status, FM_ERROR_MEMORY);
        }
        fm__checkpoint_close(&view);
        if (status == FM_OK)
            return;
    }
    fail_msg("a hundred allocations for twenty keys");
}

/* ---- the public listing ---- */

static void test_listing(void **state) {
    (void)state;
    char folder[64], path[512], text[64];
    fm_checkpoint *c = NULL;
    fm_error error;
    fm_tensor_info info;
    make_folder(folder);
    write_file(folder, "w.gguf", whole.data, whole.bytes);
    assert_true(fm__path_join(folder, "w.gguf", path, sizeof path));
    assert_int_equal(fm_checkpoint_open(&c, path, &error), FM_OK);
    assert_string_equal(fm_checkpoint_format(c), "gguf v3");
    assert_int_equal(fm_checkpoint_key_count(c), 17);
    assert_string_equal(fm_checkpoint_key_name(c, 0), "general.architecture");
    assert_string_equal(fm_checkpoint_key_type(c, 0), "string");
    assert_string_equal(fm_checkpoint_key_type(c, 14), "array of i32 [20]");
    assert_int_equal(fm_checkpoint_key_value(c, 0, text, sizeof text), 5);
    assert_string_equal(text, "llama");
    assert_int_equal(fm_checkpoint_key_value(c, 0, text, 3), 5);
    assert_string_equal(text, "ll");
    assert_int_equal(fm_checkpoint_key_value(c, 0, NULL, 0), 5);
    assert_null(fm_checkpoint_key_name(c, 17));
    assert_null(fm_checkpoint_key_type(c, 17));
    assert_int_equal(fm_checkpoint_key_value(c, 17, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(fm_checkpoint_tensor_count(c), 3);
    assert_int_equal(fm_checkpoint_tensor(c, 1, &info, &error), FM_OK);
    assert_string_equal(info.name, "b.weight");
    assert_string_equal(info.type, "q8_0");
    assert_int_equal(info.bytes, 34);
    assert_int_equal(info.dims[0], 32);
    assert_int_equal(fm_checkpoint_tensor(c, 3, &info, &error), FM_ERROR_ARGUMENT);
    fm_checkpoint_close(&c);
    assert_null(c);
    fm_checkpoint_close(&c);
    fm_checkpoint_close(NULL);
    assert_int_equal(fm_checkpoint_open(&c, folder, &error), FM_ERROR_FORMAT);
    assert_null(c);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_integers),
        cmocka_unit_test(test_read_others),
        cmocka_unit_test(test_floats_that_do_not_fit),
        cmocka_unit_test(test_value_text),
        cmocka_unit_test(test_source_row),
        cmocka_unit_test(test_view),
        cmocka_unit_test(test_view_allocation_failures),
        cmocka_unit_test(test_listing),
    };
    return cmocka_run_group_tests(tests, open_whole, close_whole);
}
