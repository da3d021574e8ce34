/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: one image, and the folders that hold one or many. */
#include "fusionml/checkpoint.h"
#include "unit/gguf_bytes.h"

/* An image from its JSON and the number of data bytes (0, 1, 2, ...). */
static void put_image(fm__buf *b, const char *json, size_t data) {
    put_text(b, json);
    put_data(b, data);
}

static fm_status parse_bytes(const void *data, size_t bytes, fm__checkpoint **out,
                             fm_error *error) {
    fm__checkpoint *c = NULL;
    memset(error, 0, sizeof *error);
    assert_int_equal(fm__checkpoint_create(&c, FM__CHECKPOINT_SAFETENSORS, "t", NULL), FM_OK);
    fm_status status = fm__safetensors_parse(c, data, bytes, 0, "t.safetensors", error);
    if (status == FM_OK && out)
        *out = c;
    else
        fm__checkpoint_close(&c);
    return status;
}

/* Parses an exact-size copy, so that a sanitizer sees any read past its end; frees b. */
static void expect_image(fm__buf *b, fm_status wanted, const char *text) {
    fm_error error;
    char whole[600];
    uint8_t *copy = malloc(b->bytes > 0 ? b->bytes : 1);
    memcpy(copy, b->data ? b->data : "", b->bytes);
    fm_status status = parse_bytes(copy, b->bytes, NULL, &error);
    snprintf(whole, sizeof whole, "%s: %s", error.place, error.message);
    if (status != wanted || strstr(whole, text) == NULL)
        fail_msg("status %d (wanted %d), \"%s\" lacks \"%s\" for %.200s", (int)status, (int)wanted,
                 whole, text, b->data ? b->data + 8 : "");
    free(copy);
    fm__buf_finish(b);
}

static const char good_json[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]},"
    "\"v\":{\"dtype\":\"F16\",\"shape\":[1,2,1,3],\"data_offsets\":[12,24]}}  ";

static void test_good(void **state) {
    (void)state;
    fm__buf b = {0};
    fm__checkpoint *c = NULL;
    fm_error error;
    put_image(&b, good_json, 28);
    assert_int_equal(parse_bytes(b.data, b.bytes, &c, &error), FM_OK);
    assert_int_equal(c->n_tensors, 3);
    const fm__tensor_info *t = fm__checkpoint_find(c, "w");
    assert_int_equal(t->dtype, FM__BF16);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 3); /* the last of the shape varies fastest */
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->file_offset, 8 + sizeof good_json - 1);
    assert_int_equal(t->data[11], 11);
    t = fm__checkpoint_find(c, "s");
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->dims[0], 1);
    assert_int_equal(t->bytes, 4);
    assert_int_equal(t->data[0], 24);
    t = fm__checkpoint_find(c, "v");
    assert_int_equal(t->n_dims, 4);
    assert_int_equal(t->dims[0], 3);
    assert_int_equal(t->dims[2], 2);
    assert_null(fm__checkpoint_find(c, "__metadata__"));
    fm__checkpoint_close(&c);
    fm__buf_finish(&b);
    put_image(&b, "{}", 0);
    assert_int_equal(parse_bytes(b.data, b.bytes, NULL, &error), FM_OK);
    fm__buf_finish(&b);
}

static void test_cut_everywhere(void **state) {
    (void)state;
    fm__buf b = {0};
    put_image(&b, good_json, 28);
    for (size_t cut = 0; cut < b.bytes; cut++) {
        char end[32];
        fm__buf part = {0};
        fm__buf_append(&part, b.data, cut);
        snprintf(end, sizeof end, "%zu", cut);
        expect_image(&part, FM_ERROR_FORMAT, end);
    }
    put(&b, 0, 1); /* nor may a byte be left over */
    expect_image(&b, FM_ERROR_FORMAT, "the tensors end at offset ");
}

static void test_dtypes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t bytes; /* 0: refused */
    } cases[] = {{"F32", 4},     {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I8", 1},
                 {"I16", 2},     {"I32", 4}, {"I64", 8},  {"U8", 0},  {"BOOL", 0},
                 {"U16", 0},     {"U32", 0}, {"U64", 0},  {"F4", 0},  {"F8_E4M3", 0},
                 {"F8_E5M2", 0}, {"f32", 0}, {"", 0},     {"Q4_K", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[160], text[64];
        fm__buf b = {0};
        size_t bytes = cases[i].bytes ? 4 * cases[i].bytes : 4;
        snprintf(json, sizeof json,
                 "{\"w\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%zu]}}", cases[i].name,
                 bytes);
        put_image(&b, json, bytes);
        snprintf(text, sizeof text, "tensor w: dtype %s", cases[i].name);
        if (cases[i].bytes)
            expect_image(&b, FM_OK, "");
        else
            expect_image(&b, FM_ERROR_UNSUPPORTED, text);
    }
}

/* One tensor "w" of the given description; 64 bytes of data. */
static void test_bad_tensors(void **state) {
    (void)state;
    static const struct {
        const char *tensor;
        fm_status status;
        const char *text;
    } cases[] = {
        {"5", FM_ERROR_FORMAT, "tensor w: is not described by a JSON object"},
        {"{}", FM_ERROR_FORMAT, "has no dtype"},
        {"{\"dtype\":3}", FM_ERROR_FORMAT, "has no dtype"},
        {"{\"dtype\":\"F32\"}", FM_ERROR_FORMAT, "has no shape"},
        {"{\"dtype\":\"F32\",\"shape\":16}", FM_ERROR_FORMAT, "has no shape"},
        {"{\"dtype\":\"F32\",\"shape\":[16]}", FM_ERROR_FORMAT, "data_offsets are not"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0]}", FM_ERROR_FORMAT,
         "data_offsets are not"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64,64]}", FM_ERROR_FORMAT,
         "data_offsets are not"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64.0]}", FM_ERROR_FORMAT,
         "data_offsets are not"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[\"0\",64]}", FM_ERROR_FORMAT,
         "data_offsets are not"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[-64,0]}", FM_ERROR_FORMAT,
         "are no range"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[64,0]}", FM_ERROR_FORMAT,
         "are no range"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[4,68]}", FM_ERROR_FORMAT, "ends at "},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,9223372036854775807]}",
         FM_ERROR_FORMAT, "ends at "},
        {"{\"dtype\":\"F32\",\"shape\":[15],\"data_offsets\":[0,64]}", FM_ERROR_FORMAT,
         "span 64 bytes, its shape and dtype take 60"},
        {"{\"dtype\":\"F32\",\"shape\":[15],\"data_offsets\":[4,64]}", FM_ERROR_FORMAT,
         "but the data before it ends at"},
        {"{\"dtype\":\"F32\",\"shape\":[15],\"data_offsets\":[0,60]}", FM_ERROR_FORMAT,
         "the tensors end at"},
        {"{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", FM_ERROR_FORMAT,
         "dimension 0 is zero"},
        {"{\"dtype\":\"F32\",\"shape\":[16,-1],\"data_offsets\":[0,64]}", FM_ERROR_FORMAT,
         "shape[1] is not a count"},
        {"{\"dtype\":\"F32\",\"shape\":[16.5],\"data_offsets\":[0,64]}", FM_ERROR_FORMAT,
         "shape[0] is not a count"},
        {"{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}",
         FM_ERROR_FORMAT, "overflows"},
        {"{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}",
         FM_ERROR_FORMAT, "overflows"},
        {"{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}",
         FM_ERROR_FORMAT, "not valid JSON"},
        {"{\"dtype\":\"F32\",\"shape\":[1,1,1,1,16],\"data_offsets\":[0,64]}", FM_ERROR_UNSUPPORTED,
         "has 5 dimensions"},
        {"{\"dtype\":\"F32\",\"dtype\":\"F16\"}", FM_ERROR_FORMAT, "not valid JSON"},
        {"{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]},\"w\":{}", FM_ERROR_FORMAT,
         "not valid JSON"},
        {"{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
         "\"x\":{\"dtype\":\"F32\",\"shape\":[12],\"data_offsets\":[16,64]}",
         FM_ERROR_FORMAT, "tensor x: begins at offset "},
        {"{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
         "\"\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[32,64]}",
         FM_ERROR_FORMAT, "the name is empty"},
        {"{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
         "\"\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[32,64]}",
         FM_ERROR_FORMAT, "\\x1B[2J: the name holds a control character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[400];
        fm__buf b = {0};
        snprintf(json, sizeof json, "{\"w\":%s}", cases[i].tensor);
        put_image(&b, json, 64);
        expect_image(&b, cases[i].status, cases[i].text);
    }
}

static void test_bad_headers(void **state) {
    (void)state;
    static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, UINT64_C(1) << 63,
                                       UINT64_C(1) << 40, 3};
    fm__buf b = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint64_t begin = test_cpu_ns();
        put(&b, lengths[i], 8);
        fm__buf_append(&b, "{}", 2);
        expect_image(&b, FM_ERROR_FORMAT, "passes the file's end at 10");
        assert_true(test_cpu_ns() - begin < 10000000);
    }
    static const struct {
        const char *json, *text;
    } cases[] = {{"", "is not a JSON object"},
                 {"[]", "is not a JSON object"},
                 {"  {}", "is not a JSON object"},
                 {"{", "is not a JSON object"},
                 {"{]", "not valid JSON"},
                 {"{}x", "not valid JSON"},
                 {"{} []", "not valid JSON"},
                 {"{\"\xFF\":1}", "not valid JSON"},
                 {"{\"a\\u0000\":1}", "not valid JSON"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_image(&b, cases[i].json, 0);
        expect_image(&b, FM_ERROR_FORMAT, cases[i].text);
    }
    put(&b, 4, 8);
    fm__buf_append(&b, "{}\0\0", 4);
    expect_image(&b, FM_ERROR_FORMAT, "not valid JSON");
    /* Deep nesting ends in a message, not in the end of the stack. */
    fm__buf json = {0};
    fm__buf_append(&json, "{\"w\":", 5);
    for (int i = 0; i < 200000; i++)
        fm__buf_append(&json, "[", 1);
    put_bytes(&b, json.data, json.bytes);
    expect_image(&b, FM_ERROR_FORMAT, "not valid JSON");
    fm__buf_finish(&json);
}

static void test_many(void **state) {
    (void)state;
    fm__buf json = {0}, b = {0};
    fm_error error;
    fm__buf_append(&json, "{", 1);
    for (int i = 0; i < 2000; i++) /* stored backwards: the order of names is not that of data */
        fm__buf_printf(&json,
                       "%s\"t.%d\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                       i ? "," : "", i, 1999 - i, 2000 - i);
    fm__buf_append(&json, "}", 1);
    put_bytes(&b, json.data, json.bytes);
    put_data(&b, 2000);
    uint64_t begin = test_cpu_ns();
    assert_int_equal(parse_bytes(b.data, b.bytes, NULL, &error), FM_OK);
    assert_true(test_cpu_ns() - begin < 200000000);
    fm__buf_finish(&b);
    fm__buf_finish(&json);
}

/* ---- folders ---- */

static const char config[] = "{\"model_type\": \"llama\", \"rope\": {\"theta\": 1.5, \"none\": {}},"
                             " \"eos\": [1, 2], \"tied\": true, \"x\": null}";

static void write_texts(const char *folder) {
    write_file(folder, "config.json", config, sizeof config - 1);
}

/* A safetensors file with one F32 vector of 2. */
static void write_image(const char *folder, const char *file, const char *tensor) {
    char json[200];
    fm__buf b = {0};
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
             tensor);
    put_image(&b, json, 8);
    write_file(folder, file, b.data, b.bytes);
    fm__buf_finish(&b);
}

static void write_index(const char *folder, const char *weight_map) {
    char json[1000];
    snprintf(json, sizeof json, "{\"metadata\": {}, \"weight_map\": %s}", weight_map);
    write_file(folder, "model.safetensors.index.json", json, strlen(json));
}

static void write_sharded(const char *folder) {
    write_texts(folder);
    write_image(folder, "model-00001-of-00002.safetensors", "a");
    write_image(folder, "model-00002-of-00002.safetensors", "b");
    write_index(folder, "{\"a\": \"model-00001-of-00002.safetensors\","
                        " \"b\": \"model-00002-of-00002.safetensors\"}");
}

static void test_single_folder(void **state) {
    (void)state;
    char folder[64], path[512];
    fm__checkpoint *c = NULL;
    fm_error error;
    make_folder(folder);
    write_image(folder, "model.safetensors", "a");
    expect_file(folder, "", FM_ERROR_IO, "config.json");
    expect_file(folder, "model.safetensors", FM_ERROR_UNSUPPORTED, "open a folder that holds");
    write_texts(folder);
    expect_file(folder, "model.safetensors", FM_OK, "");
    write_file(folder, "tokenizer.json", "{ }", 3);
    write_file(folder, "generation_config.json", "{}", 2);
    assert_int_equal(fm__checkpoint_open(&c, folder, &error), FM_OK);
    assert_int_equal(c->kind, FM__CHECKPOINT_SAFETENSORS);
    assert_string_equal(c->format, "safetensors");
    assert_string_equal(c->config, config);
    assert_int_equal(c->config_bytes, sizeof config - 1);
    assert_string_equal(c->tokenizer, "{ }");
    assert_int_equal(c->tokenizer_bytes, 3);
    assert_null(c->tokenizer_config);
    assert_string_equal(c->generation_config, "{}");
    assert_int_equal(fm__checkpoint_find(c, "a")->data[7], 7);
    fm__checkpoint_close(&c);
    assert_true(fm__path_join(folder, "", path, sizeof path)); /* with a slash behind it */
    assert_int_equal(fm__checkpoint_open(&c, path, &error), FM_OK);
    fm__checkpoint_close(&c);
    write_image(folder, "adapter_model.safetensors", "z"); /* not what the model is made of */
    expect_file(folder, "adapter_model.safetensors", FM_ERROR_UNSUPPORTED, "open a folder");
    write_file(folder, "model.safetensors", "version https://git-lfs.github.com/spec/v1\n", 43);
    expect_file(folder, "", FM_ERROR_FORMAT, "a Git-LFS pointer");
    write_file(folder, "model.safetensors", "", 0);
    expect_file(folder, "", FM_ERROR_FORMAT, "the file is empty");
    remove_folder(folder);
}

static void test_sharded_folder(void **state) {
    (void)state;
    char folder[64], path[512];
    fm__checkpoint *c = NULL;
    fm_error error;
    make_folder(folder);
    write_sharded(folder);
    assert_int_equal(fm__checkpoint_open(&c, folder, &error), FM_OK);
    assert_int_equal(c->n_files, 2);
    assert_int_equal(fm__checkpoint_find(c, "a")->file_index, 0);
    assert_int_equal(fm__checkpoint_find(c, "b")->file_index, 1);
    fm__checkpoint_close(&c);
    expect_file(folder, "model-00002-of-00002.safetensors", FM_OK, "");
    write_image(folder, "model-00002-of-00002.safetensors", "a");
    expect_file(folder, "", FM_ERROR_FORMAT, "tensor a: appears twice");
    write_image(folder, "model-00002-of-00002.safetensors", "c");
    expect_file(folder, "", FM_ERROR_FORMAT,
                "tensor b: is not in model-00002-of-00002.safetensors, where");
    write_image(folder, "model-00001-of-00002.safetensors", "b");
    write_image(folder, "model-00002-of-00002.safetensors", "a"); /* the other way round */
    expect_file(folder, "", FM_ERROR_FORMAT, "is not in model-0000");
    write_sharded(folder);
    assert_true(fm__path_join(folder, "model-00002-of-00002.safetensors", path, sizeof path));
    assert_int_equal(remove(path), 0);
    expect_file(folder, "", FM_ERROR_IO,
                "file 2 of 2 that model.safetensors.index.json names is missing: "
                "model-00002-of-00002.safetensors");
    remove_folder(folder);
}

static void test_bad_index(void **state) {
    (void)state;
    static const struct {
        const char *weight_map, *text;
    } cases[] = {
        {"{}", "has no weight_map"},
        {"[]", "has no weight_map"},
        {"{\"a\": 5}", "tensor a: its file is not a string"},
        {"{\"a\": \"\"}", "the name is empty"},
        {"{\"a\": \"../model-00001-of-00002.safetensors\"}", "the name leaves the folder"},
        {"{\"a\": \"/etc/passwd\"}", "the name leaves the folder"},
        {"{\"a\": \"sub/x.safetensors\"}", "the name leaves the folder"},
        {"{\"a\": \"..\\\\x.safetensors\"}", "the name leaves the folder"},
        {"{\"a\": \"..\"}", "the name begins with a dot"},
        {"{\"a\": \".safetensors\"}", "the name begins with a dot"},
        {"{\"a\": \"config.json\"}", "does not end in .safetensors"},
        {"{\"a\": \"x\\n.safetensors\"}", "a control character"},
        {"{\"a\": \"x.safetensors\", \"a\": \"y.safetensors\"}", "not valid JSON"},
        {"{\"a\": ", "not valid JSON"},
    };
    char folder[64], many[400];
    make_folder(folder);
    write_sharded(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_index(folder, cases[i].weight_map);
        expect_file(folder, "", FM_ERROR_FORMAT, cases[i].text);
    }
    memset(many, 'x', sizeof many);
    memcpy(many, "{\"a\": \"", 7);
    memcpy(many + sizeof many - 16, ".safetensors\"}", 15);
    write_index(folder, many);
    expect_file(folder, "", FM_ERROR_FORMAT, "longer than 255 bytes");
    write_file(folder, "model.safetensors.index.json", "[]", 2);
    expect_file(folder, "", FM_ERROR_FORMAT, "is not an object");
    write_file(folder, "model.safetensors.index.json", "", 0);
    expect_file(folder, "", FM_ERROR_FORMAT, "not valid JSON");
    remove_folder(folder);
}

static void test_listing(void **state) {
    (void)state;
    static const char *const wanted[][3] = {
        {"model_type", "string", "llama"}, {"rope.theta", "f64", "1.5"},
        {"rope.none", "object", "{}"},     {"eos", "array of i64 [2]", "[1, 2]"},
        {"tied", "bool", "true"},          {"x", "null", "null"}};
    char folder[64], text[64];
    fm_checkpoint *c = NULL;
    fm_error error;
    fm_tensor_info info;
    make_folder(folder);
    write_sharded(folder);
    assert_int_equal(fm_checkpoint_open(&c, folder, &error), FM_OK);
    assert_int_equal(fm_checkpoint_key_count(c), 6);
    for (size_t i = 0; i < 6; i++) {
        assert_string_equal(fm_checkpoint_key_name(c, i), wanted[i][0]);
        assert_string_equal(fm_checkpoint_key_type(c, i), wanted[i][1]);
        assert_int_equal(fm_checkpoint_key_value(c, i, text, sizeof text), strlen(wanted[i][2]));
        assert_string_equal(text, wanted[i][2]);
    }
    assert_int_equal(fm_checkpoint_tensor(c, 1, &info, &error), FM_OK);
    assert_string_equal(info.name, "b");
    assert_int_equal(info.file_index, 1);
    fm_checkpoint_close(&c);
    write_file(folder, "config.json", "[1", 2);
    assert_int_equal(fm_checkpoint_open(&c, folder, &error), FM_ERROR_FORMAT);
    assert_non_null(strstr(error.place, "config.json"));
    assert_null(c);
    remove_folder(folder);
}

static void test_allocation_failures(void **state) {
    (void)state;
    char folder[64];
    fm_status status = FM_ERROR_MEMORY;
    uint64_t n = 1;
    make_folder(folder);
    write_sharded(folder);
    for (; status != FM_OK && n < 200; n++) {
        fm_checkpoint *c = NULL;
        fm_error error;
        fm__alloc_fail_after(n);
        status = fm_checkpoint_open(&c, folder, &error);
        fm__alloc_fail_after(0);
        assert_true(status == FM_OK || status == FM_ERROR_MEMORY);
        fm_checkpoint_close(&c);
    }
    assert_int_equal(status, FM_OK);
    assert_in_range(n, 10, 190);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_cut_everywhere),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_single_folder),
        cmocka_unit_test(test_sharded_folder),
        cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_listing),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
