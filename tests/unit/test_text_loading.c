/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading: what is not understood is refused by name, what is malformed by place; where BOS, EOS
 * and the ends of answers come from; GGUF files written and read back; the dialect of patterns.
 */
#include <unistd.h>

#include "unit/text_support.h"

/* ---- tokenizer.json ---- */

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static fm_status load_text(const char *json, fm_tokenizer **t, fm_error *error) {
    return fm__tokenizer_from_json(t, json, strlen(json), NULL, 0, NULL, 0, "some.json", error);
}

static void refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *json, *named;
    } cases[] = {
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", "WordPiece"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}", "WordLevel"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Nmt\"}}", "Nmt"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}}",
         "Precompiled"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
         "{\"type\":\"BertNormalizer\"}]}}",
         "BertNormalizer"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", "UnicodeScripts"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
         "\"ByteLevel\"},{\"type\":\"Digits\"}]}}",
         "Digits"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"}}}",
         "intersection"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
         "\"behavior\":\"Sometimes\"}}",
         "Sometimes"},
        {"{" MODEL ",\"decoder\":{\"type\":\"CTC\"}}", "CTC"},
        {"{" MODEL ",\"decoder\":{\"type\":\"ByteLevel\"}}", "ByteLevel"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Other\"}}", "Other"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}",
         "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":"
         "\"</w>\"}}",
         "end_of_word_suffix"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm_tokenizer *t = NULL;
        fm_error error = {0};
        assert_int_equal(load_text(cases[i].json, &t, &error), FM_ERROR_UNSUPPORTED);
        assert_null(t);
        if (!strstr(error.message, cases[i].named))
            fail_msg("\"%s\" does not name %s", error.message, cases[i].named);
        assert_string_equal(error.place, "some.json");
    }
}

static void malformed(void **state) {
    (void)state;
    static const char *const cases[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"model\":3}",
        "{\"model\":{\"type\":\"BPE\"}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2000000000},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"x\"}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}",
        "{" MODEL ",\"added_tokens\":[{\"content\":\"x\"}]}",
        "{" MODEL ",\"added_tokens\":[{\"id\":3}]}",
        "{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
        "\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{}}],\"special_tokens\":{}}}",
        "{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
        "\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{}}],\"special_tokens\":{\"x\":{\"ids\":[9]"
        "}}"
        "}}",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm_tokenizer *t = NULL;
        fm_error error = {0};
        if (load_text(cases[i], &t, &error) != FM_ERROR_FORMAT)
            fail_msg("%s: %s", cases[i], error.message);
        assert_null(t);
        assert_true(error.message[0] != 0);
    }
}

static void special_ids(void **state) {
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"added_tokens\":["
        "{\"id\":2,\"content\":\"<bos>\",\"special\":true},{\"id\":3,\"content\":\"<eos>\","
        "\"special\":true},{\"id\":4,\"content\":\"<|im_end|>\",\"special\":true},{\"id\":5,"
        "\"content\":\"<|eot_id|>\",\"special\":false},{\"id\":6,\"content\":\"<other>\","
        "\"special\":"
        "true}]}";
    /* An integer beyond 64 bits is usual in these files. */
    static const char config[] = "{\"bos_token\":{\"content\":\"<bos>\"},\"eos_token\":\"<eos>\","
                                 "\"model_max_length\":1000000000000000019884624838656,"
                                 "\"add_bos_token\":true}";
    static const char generation[] = "{\"eos_token_id\":[3,6],\"bos_token_id\":0}";
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    if (fm__tokenizer_from_json(&t, json, sizeof json - 1, config, sizeof config - 1, generation,
                                sizeof generation - 1, "x", &error) != FM_OK)
        fail_msg("%s", error.message);
    assert_int_equal(fm_tokenizer_bos(t), 2);
    assert_int_equal(fm_tokenizer_eos(t), 3);
    assert_true(fm_tokenizer_is_end(t, 3));
    assert_true(fm_tokenizer_is_end(t, 4));
    assert_true(fm_tokenizer_is_end(t, 6));
    assert_false(
        fm_tokenizer_is_end(t, 5)); /* not a control token: only text that looks like one */
    assert_false(fm_tokenizer_is_end(t, 2));
    check_ids(t, "ab", 2, FM_TOKENIZE_ADD_SPECIAL, (int32_t[]){2, 0, 1}, 3);
    fm_tokenizer_destroy(&t);
    /* Only generation_config.json. */
    assert_int_equal(fm__tokenizer_from_json(&t, json, sizeof json - 1, NULL, 0, generation,
                                             sizeof generation - 1, "x", &error),
                     FM_OK);
    assert_int_equal(fm_tokenizer_bos(t), 0);
    assert_int_equal(fm_tokenizer_eos(t), 3);
    fm_tokenizer_destroy(&t);
}

/* ---- GGUF ---- */

static fm__checkpoint *tiny_keys(const char *model, const char *pre) {
    static const fm__str tokens[] = {FM__STR("a"), FM__STR("b"), FM__STR("ab"), FM__STR("<s>")};
    static const fm__str merges[] = {FM__STR("a b")};
    static const int32_t types[] = {1, 1, 1, 3};
    static const float scores[] = {-1, -2, -3, 0};
    fm__checkpoint *c = NULL;
    fm_error error = {0};
    assert_int_equal(fm__checkpoint_view(&c, NULL, &error), FM_OK);
    if (model)
        fm__checkpoint_add_str(c, "tokenizer.ggml.model", fm__str_of(model), &error);
    if (pre)
        fm__checkpoint_add_str(c, "tokenizer.ggml.pre", fm__str_of(pre), &error);
    fm__checkpoint_add_strs(c, "tokenizer.ggml.tokens", tokens, 4, &error);
    fm__checkpoint_add_strs(c, "tokenizer.ggml.merges", merges, 1, &error);
    fm__checkpoint_add_i32s(c, "tokenizer.ggml.token_type", types, 4, &error);
    fm__checkpoint_add_f32s(c, "tokenizer.ggml.scores", scores, 4, &error);
    fm__checkpoint_add_u32(c, "tokenizer.ggml.bos_token_id", 3, &error);
    return c;
}

static fm_status load_keys(const char *model, const char *pre, fm_tokenizer **t, fm_error *error) {
    fm__checkpoint *c = tiny_keys(model, pre);
    fm_status status = fm__tokenizer_from_checkpoint(t, c, error);
    fm__checkpoint_close(&c);
    return status;
}

static void gguf_models(void **state) {
    (void)state;
    static const char *const refused[] = {"bert", "rwkv", "plamo2", "whitespace", "no such model"};
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(load_keys(refused[i], NULL, &t, &error), FM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.message, refused[i]));
        assert_null(t);
    }
    assert_int_equal(load_keys("gpt2", "no-such-pre", &t, &error), FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no-such-pre"));
    assert_int_equal(load_keys("none", NULL, &t, &error), FM_OK);
    assert_null(t);
    assert_int_equal(load_keys("no_vocab", NULL, &t, &error), FM_OK);
    assert_null(t);
    assert_int_equal(load_keys(NULL, NULL, &t, &error), FM_OK);
    assert_null(t);
}

static void gguf_defaults(void **state) {
    (void)state;
    static const struct {
        const char *model, *pre;
        size_t bos;
    } cases[] = {{"gpt2", "llama-bpe", 1}, {"gpt2", "qwen2", 0}, {"gpt2", "tekken", 1},
                 {"gpt2", "gpt-2", 0},     {"llama", NULL, 1},   {"t5", NULL, 0},
                 {"gemma4", NULL, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm_tokenizer *t = NULL;
        fm_error error = {0};
        if (load_keys(cases[i].model, cases[i].pre, &t, &error) != FM_OK)
            fail_msg("%s: %s", cases[i].model, error.message);
        encoded e = encode(t, "", 0, FM_TOKENIZE_ADD_SPECIAL);
        bool is_t5 = strcmp(cases[i].model, "t5") == 0; /* it adds an EOS instead */
        assert_int_equal(e.count, is_t5 ? 1 : cases[i].bos);
        if (cases[i].bos)
            assert_int_equal(e.ids[0], 3);
        fm_free(e.ids);
        fm_tokenizer_destroy(&t);
    }
}

static char last_warning[512];

static void keep_warning(void *user, fm_log_level level, const char *line) {
    (void)user;
    (void)level;
    snprintf(last_warning, sizeof last_warning, "%s", line);
}

static void missing_pre_is_logged(void **state) {
    (void)state;
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    fm_log_set(keep_warning, NULL, FM_LOG_WARNING);
    assert_int_equal(load_keys("gpt2", NULL, &t, &error), FM_OK);
    fm_log_set(NULL, NULL, FM_LOG_WARNING);
    assert_non_null(strstr(last_warning, "tokenizer.ggml.pre"));
    check_ids(t, "ab", 2, 0, (int32_t[]){2}, 1);
    fm_tokenizer_destroy(&t);
}

static void gguf_malformed(void **state) {
    (void)state;
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    fm__checkpoint *c = NULL;
    static const fm__str token = FM__STR("a"), merge = FM__STR("nospace");
    assert_int_equal(fm__checkpoint_view(&c, NULL, &error), FM_OK);
    fm__checkpoint_add_str(c, "tokenizer.ggml.model", FM__STR("gpt2"), &error);
    fm__checkpoint_add_str(c, "tokenizer.ggml.pre", FM__STR("qwen2"), &error);
    assert_int_equal(fm__tokenizer_from_checkpoint(&t, c, &error), FM_ERROR_FORMAT);
    assert_non_null(strstr(error.message, "tokenizer.ggml.tokens"));
    fm__checkpoint_add_strs(c, "tokenizer.ggml.tokens", &token, 1, &error);
    assert_int_equal(fm__tokenizer_from_checkpoint(&t, c, &error), FM_ERROR_FORMAT);
    assert_non_null(strstr(error.message, "tokenizer.ggml.merges"));
    fm__checkpoint_add_strs(c, "tokenizer.ggml.merges", &merge, 1, &error);
    assert_int_equal(fm__tokenizer_from_checkpoint(&t, c, &error), FM_ERROR_FORMAT);
    assert_non_null(strstr(error.message, "entry 0"));
    assert_null(t);
    fm__checkpoint_close(&c);
}

/* ---- files ---- */

static fm_status no_tensors(void *user, size_t index, const fm__tensor_info *info,
                            fm__writer *writer, fm_error *error) {
    (void)user;
    (void)index;
    (void)info;
    (void)writer;
    return fm__error(error, FM_ERROR_STATE, NULL, "there are no tensors");
}

static void written_and_read_back(void **state) {
    (void)state;
    char path[] = "/tmp/fusionml-text-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    fm_tokenizer *t = load_story(), *again = NULL;
    fm__checkpoint *keys = NULL;
    fm_error error = {0};
    assert_int_equal(fm__checkpoint_view(&keys, NULL, &error), FM_OK);
    assert_int_equal(fm__tokenizer_to_keys(t, keys, &error), FM_OK);
    assert_int_equal(
        fm__gguf_write(path, keys->kvs, keys->n_kvs, NULL, 0, no_tensors, NULL, &error), FM_OK);
    fm__checkpoint_close(&keys);
    if (fm_tokenizer_load(&again, path, &error) != FM_OK)
        fail_msg("%s (%s)", error.message, error.place);
    static const char text[] = "Once upon a time, 123 <|endoftext|> café 😀\n";
    for (unsigned flags = 0; flags < 4; flags++) {
        encoded e = encode(t, text, sizeof text - 1, flags);
        check_ids(again, text, sizeof text - 1, flags, e.ids, e.count);
        fm_free(e.ids);
    }
    for (int32_t id = 0; id < 4096; id++) {
        assert_true(fm__str_equal(fm__tokenizer_bytes(t, id), fm__tokenizer_bytes(again, id)));
        assert_int_equal(fm_tokenizer_is_end(t, id), fm_tokenizer_is_end(again, id));
        assert_int_equal(fm__tokenizer_is_control(t, id), fm__tokenizer_is_control(again, id));
    }
    unlink(path);
    fm_tokenizer_destroy(&again);
    fm_tokenizer_destroy(&t);
}

static void load_errors(void **state) {
    (void)state;
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    assert_int_equal(fm_tokenizer_load(&t, "no/such/file", &error), FM_ERROR_IO);
    assert_int_equal(fm_tokenizer_load(&t, "text", &error), FM_ERROR_IO); /* no tokenizer.json */
    assert_non_null(strstr(error.message, "tokenizer.json"));
    assert_int_equal(fm_tokenizer_load(&t, "text/make.py", &error), FM_ERROR_FORMAT);
    assert_int_equal(fm_tokenizer_load(&t, NULL, &error), FM_ERROR_ARGUMENT);
    assert_null(t);
    fm_tokenizer_destroy(&t);
    fm_tokenizer_destroy(NULL);
}

static void no_name_for_it(void **state) {
    (void)state;
    static const char json[] =
        "{" MODEL
        ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"[abc]+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
        "\"use_regex\":false,\"add_prefix_space\":false}]}}";
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    fm__checkpoint *keys = NULL;
    assert_int_equal(load_text(json, &t, &error), FM_OK);
    assert_int_equal(fm__checkpoint_view(&keys, NULL, &error), FM_OK);
    assert_int_equal(fm__tokenizer_to_keys(t, keys, &error), FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "pre_tokenizer"));
    fm__checkpoint_close(&keys);
    fm_tokenizer_destroy(&t);
}

/* ---- patterns ---- */

static void dialect(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *translated; /* NULL: refused */
    } cases[] = {
        {"a+b", "a+b"},
        {"(a)b", "(?:a)b"},
        {"\\h+x", "[0-9A-Fa-f]+x"},
        {"\\vx", "\\x{b}x"},
        {"\xc2\xb5", "\xc2\xb5"},
        {"\\p{Letter}x", "\\p{L}x"},
        {"\\p{^L}x", "\\P{L}x"},
        {"a{,3}x", "a{0,3}x"},
        {"a{x}", "a\\{x\\}"},
        {"a{1,3}+x", "(?:a{1,3})+x"},
        {"[\r\n]x", "[\\x{d}\\x{a}]x"},
        {"[\\r\\n]x", "[\\x{d}\\x{a}]x"},
        {"\\u4e00x", "\\x{4e00}x"},
        {"a++|b?+", "a++|b?+"},
        {"a+|b*", "a++|b*+"}, /* nothing behind them could ask for something back */
        {"[]a]x", "[\\]a]x"},
        {"(?i:'s)(?=x)(?<!y)", "(?i:\\'s)(?=x)(?<!y)"},
        {"[[a]]", NULL},
        {"[a&&b]", NULL},
        {"(?<n>a)", NULL},
        {"(?m:a)", NULL},
        {"(*FAIL)", NULL},
        {"\\1", NULL},
        {"\\K", NULL},
        {"a{2}?", NULL},
        {"*a", NULL},
        {"(a", NULL},
        {"a)", NULL},
        {"[a", NULL},
        {"\\", NULL},
        {"\\xff", NULL},
        {"\\x{110000}", NULL},
        {"\xff", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm__buf out = {0};
        fm_error error = {0};
        fm_status status = fm__regex_translate(fm__str_of(cases[i].pattern), &out, "x", &error);
        if (status != (cases[i].translated ? FM_OK : FM_ERROR_UNSUPPORTED) ||
            (cases[i].translated && strcmp(out.data, cases[i].translated) != 0))
            fail_msg("%s: status %d, \"%s\" (%s)", cases[i].pattern, status, out.data,
                     error.message);
        fm__buf_finish(&out);
    }
}

/* ---- memory ---- */

static void out_of_memory(void **state) {
    (void)state;
    char *json = NULL;
    size_t bytes = 0;
    fm_error error = {0};
    assert_int_equal(fm__file_read("text/unigram.json", 1 << 20, &json, &bytes, &error), FM_OK);
    bool done = false;
    for (uint64_t n = 1; n < 3000 && !done; n++) {
        fm_tokenizer *t = NULL;
        fm__alloc_fail_after(n);
        fm_status status = fm__tokenizer_from_json(&t, json, bytes, NULL, 0, NULL, 0, "x", &error);
        fm__alloc_fail_after(0);
        done = status == FM_OK;
        assert_int_equal(status, done ? FM_OK : FM_ERROR_MEMORY);
        assert_true(done == (t != NULL));
        fm_tokenizer_destroy(&t);
    }
    assert_true(done);
    fm__free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_by_name), cmocka_unit_test(malformed),
        cmocka_unit_test(special_ids),     cmocka_unit_test(gguf_models),
        cmocka_unit_test(gguf_defaults),   cmocka_unit_test(missing_pre_is_logged),
        cmocka_unit_test(gguf_malformed),  cmocka_unit_test(written_and_read_back),
        cmocka_unit_test(load_errors),     cmocka_unit_test(no_name_for_it),
        cmocka_unit_test(dialect),         cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
