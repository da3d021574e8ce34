/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion: types by mixture and by fallback, equal bits where nothing is lost, weights that are
 * no numbers, errors that leave no file; and the embedded model against its reference.
 */
#include "model_test.h"

#include <unistd.h>

static char folder[] = "/tmp/fm_convert_XXXXXX";
static char out[128], other[128];

#define STORY "../../models/story-21m-q8_0.gguf"

static const int32_t prompt[] = {1, 2205, 370, 622, 261, 559}; /* BOS, "Once upon a time" */
static const int32_t greedy[] = {
    463,  312, 261, 982, 454,  312, 369,  498,  2135, 320,  283, 350,  645, 429,  1275, 14,
    274,  283, 312, 369, 977,  320, 283,  471,  2012, 1297, 903, 363,  16,  598,  283,  312,
    369,  977, 320, 283, 471,  361, 1297, 903,  332,  2421, 14,  274,  283, 312,  369,  977,
    320,  283, 471, 361, 1297, 903, 332,  2421, 321,  2542, 570, 283,  312, 1649, 299,  264,
    1725, 14,  443, 283, 836,  261, 1056, 459,  364,  28,   347, 46,   458, 429,  14,   631,
    280,  380, 567, 588, 283,  730, 389,  274,  718,  264,  982, 1863, 619, 363,  321,  1183};

enum { N_PROMPT = 6, N_GREEDY = 96 };

static fm__dtype type_of(const fm__checkpoint *c, const char *name) {
    const fm__tensor_info *t = fm__checkpoint_find(c, name);
    if (!t)
        fail_msg("no tensor %s", name);
    return t->dtype;
}

/* Files in circulation were made with these rules; a few facts of well-known ones. */
static void mixtures(void **state) {
    (void)state;
    const fm__mixture_model m7b = {28, 28, 4, false}, small = {24, 14, 2, true},
                            big = {80, 64, 8, false};
    const struct {
        const char *mixture;
        const fm__mixture_model *model;
        const char *name;
        uint64_t k;
        fm__dtype want;
    } cases[] = {
        {"q4_k_m", &m7b, "blk.0.attn_q.weight", 3584, FM__Q4_K},
        {"q4_k_m", &m7b, "blk.2.attn_v.weight", 3584, FM__Q6_K}, /* first eighth */
        {"q4_k_m", &m7b, "blk.3.attn_v.weight", 3584, FM__Q4_K},
        {"q4_k_m", &m7b, "blk.5.attn_v.weight", 3584, FM__Q6_K},     /* every third */
        {"q4_k_m", &m7b, "blk.24.ffn_down.weight", 18944, FM__Q6_K}, /* last eighth */
        {"q4_k_m", &m7b, "blk.23.ffn_down.weight", 18944, FM__Q6_K},
        {"q4_k_m", &m7b, "blk.22.ffn_down.weight", 18944, FM__Q4_K},
        {"q4_k_m", &m7b, "output.weight", 3584, FM__Q6_K},
        {"q4_k_m", &m7b, "token_embd.weight", 3584, FM__Q4_K},
        {"q4_k_m", &m7b, "output_norm.weight", 3584, FM__F32},
        {"q4_k_m", &small, "token_embd.weight", 896, FM__Q8_0}, /* tied, 896 = 3.5 * 256 */
        {"q4_k_m", &small, "blk.3.attn_q.weight", 896, FM__Q5_0},
        {"q4_k_m", &small, "blk.0.attn_v.weight", 896, FM__Q8_0},
        {"q4_k_m", &small, "blk.0.ffn_down.weight", 4864, FM__Q6_K},
        {"q4_k_m", &small, "blk.3.ffn_down.weight", 4864, FM__Q4_K},
        {"q4_k_m", &big, "blk.11.attn_v.weight", 8192, FM__Q5_K},
        {"q4_k_s", &m7b, "blk.3.attn_v.weight", 3584, FM__Q5_K},
        {"q4_k_s", &m7b, "blk.4.attn_v.weight", 3584, FM__Q4_K},
        {"q4_k_s", &m7b, "blk.2.ffn_down.weight", 18944, FM__Q5_K},
        {"q4_k_s", &m7b, "blk.3.ffn_down.weight", 18944, FM__Q4_K},
        {"q5_k_m", &m7b, "blk.0.attn_v.weight", 3584, FM__Q6_K},
        {"q5_k_s", &m7b, "blk.0.attn_v.weight", 3584, FM__Q5_K},
        {"q3_k_m", &m7b, "blk.1.attn_v.weight", 3584, FM__Q5_K},
        {"q3_k_m", &m7b, "blk.2.attn_v.weight", 3584, FM__Q4_K},
        {"q3_k_m", &m7b, "blk.0.attn_output.weight", 3584, FM__Q4_K},
        {"q3_k_m", &m7b, "blk.1.ffn_down.weight", 18944, FM__Q4_K},
        {"q3_k_l", &m7b, "blk.9.ffn_down.weight", 18944, FM__Q5_K},
        {"q3_k_s", &m7b, "blk.9.ffn_down.weight", 18944, FM__Q3_K},
        {"q2_k", &m7b, "blk.9.attn_v.weight", 3584, FM__Q4_K},
        {"q2_k", &m7b, "blk.9.attn_output.weight", 3584, FM__Q3_K},
        {"q2_k", &m7b, "blk.9.ffn_gate.weight", 3584, FM__Q2_K},
        {"q2_k_s", &m7b, "blk.0.ffn_down.weight", 18944, FM__Q4_K},
        {"q4_0", &m7b, "output.weight", 3584, FM__Q6_K},
        {"q8_0", &m7b, "output.weight", 3584, FM__Q8_0},
        {"tq2_0", &m7b, "token_embd.weight", 3584, FM__Q4_K},
        {"tq2_0", &m7b, "blk.0.ffn_up.weight", 3584, FM__TQ2_0},
        {"q4_k", &m7b, "blk.0.attn_v.weight", 3584, FM__Q4_K},
        {"q8_0", &m7b, "blk.0.ffn_up.weight", 588, FM__F16},
        {"q2_k", &m7b, "blk.0.ffn_up.weight", 96, FM__Q4_0},
        {"q5_k", &m7b, "blk.0.ffn_up.weight", 96, FM__Q5_1},
        {"f16", &small, "token_embd.weight", 896, FM__F16},
        {"bf16", &m7b, "blk.0.ffn_up.weight", 588, FM__BF16},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const fm__mixture *mixture = fm__mixture_get(cases[i].mixture);
        assert_non_null(mixture);
        uint32_t n_dims = strstr(cases[i].name, "norm") ? 1 : 2;
        fm__dtype got =
            fm__mixture_type(mixture, cases[i].model, cases[i].name, n_dims, cases[i].k, NULL);
        if (got != cases[i].want)
            fail_msg("%s %s: %s instead of %s", cases[i].mixture, cases[i].name,
                     fm__dtype_get(got)->name, fm__dtype_get(cases[i].want)->name);
    }
    assert_null(fm__mixture_get("q9_k"));
    assert_null(fm__mixture_get(NULL));
}

static float *exact_logits(const char *path, const int32_t *ids, size_t n, size_t *n_vocab) {
    fm_error error = {0};
    fm_machine *machine = test_machine(2, NULL);
    fm_engine *engine = NULL;
    fm_engine_options options = fm_engine_options_default();
    options.numeric_class = FM_CLASS_EXACT;
    options.context_length = 64;
    CHECK_OK(fm_engine_load(&engine, machine, path, &options, &error));
    *n_vocab = fm_engine_vocab_size(engine);
    float *logits = test_all_logits(engine, ids, n);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return logits;
}

/* The same weights by another way: a folder, a bf16 file made from it, and a copy of that. */
static void same_weights(void **state) {
    (void)state;
    static const char *const golden[] = {"golden/llama", "golden/llama-ropescale-tied",
                                         "golden/mistral-swa", "golden/qwen2", "golden/qwen3"};
    const int32_t ids[] = {5, 300, 2, 77, 77, 13, 250, 1, 99, 100, 101, 7, 8, 9, 10, 11, 12, 200};
    size_t n = sizeof(ids) / sizeof(ids[0]), n_vocab;
    fm_error error = {0};
    for (size_t g = 0; g < 5; g++) {
        CHECK_OK(fm_lab_convert(golden[g], out, "bf16", 2, NULL, NULL, &error));
        CHECK_OK(fm_lab_convert(out, other, "bf16", 1, NULL, NULL, &error));
        float *want = exact_logits(golden[g], ids, n, &n_vocab);
        float *first = exact_logits(out, ids, n, &n_vocab);
        float *second = exact_logits(other, ids, n, &n_vocab);
        assert_memory_equal(want, first, n * n_vocab * sizeof(float));
        assert_memory_equal(want, second, n * n_vocab * sizeof(float));
        free(want);
        free(first);
        free(second);
    }
}

static void fallbacks(void **state) {
    (void)state;
    fm_error error = {0};
    fm__checkpoint *c = NULL;
    CHECK_OK(fm_lab_convert("golden/llama-mha-odd", out, "q4_k", 2, NULL, NULL, &error));
    CHECK_OK(fm__checkpoint_open(&c, out, &error));
    assert_int_equal(type_of(c, "blk.0.attn_q.weight"), FM__Q5_0);  /* 96 = 3 * 32 */
    assert_int_equal(type_of(c, "blk.0.ffn_down.weight"), FM__F16); /* 176 = 5.5 * 32 */
    assert_int_equal(type_of(c, "output.weight"), FM__Q8_0);
    assert_int_equal(type_of(c, "output_norm.weight"), FM__F32);
    uint32_t value = 0;
    CHECK_OK(fm__kv_read_u32(c, "general.file_type", true, &value, &error));
    assert_int_equal(value, 14);
    CHECK_OK(fm__kv_read_u32(c, "general.quantization_version", true, &value, &error));
    assert_int_equal(value, 2);
    fm__checkpoint_close(&c);
    const int32_t ids[] = {1, 2, 3};
    size_t n_vocab;
    free(exact_logits(out, ids, 3, &n_vocab));
    assert_int_equal(n_vocab, 307);
}

static bool same_files(const char *a, const char *b) {
    fm__mapping x, y;
    assert_int_equal(fm__mapping_open(&x, a, NULL), FM_OK);
    assert_int_equal(fm__mapping_open(&y, b, NULL), FM_OK);
    bool same = x.bytes == y.bytes && memcmp(x.data, y.data, x.bytes) == 0;
    fm__mapping_close(&x);
    fm__mapping_close(&y);
    return same;
}

static void deterministic(void **state) {
    (void)state;
    fm_error error = {0};
    CHECK_OK(fm_lab_convert("golden/qwen2", out, "q5_1", 1, NULL, NULL, &error));
    CHECK_OK(fm_lab_convert("golden/qwen2", other, "q5_1", 3, NULL, NULL, &error));
    assert_true(same_files(out, other));
    CHECK_OK(fm_lab_synth(out, "tiny", "q4_k_m", 5, NULL, NULL, &error));
    CHECK_OK(fm_lab_synth(other, "tiny", "q4_k_m", 5, NULL, NULL, &error));
    assert_true(same_files(out, other));
    CHECK_OK(fm_lab_synth(other, "tiny", "q4_k_m", 6, NULL, NULL, &error));
    assert_false(same_files(out, other));
}

static int cancel_late(void *user, const char *phase, uint64_t done, uint64_t total) {
    (void)user;
    (void)phase;
    return done > total / 2;
}

static void errors_leave_nothing(void **state) {
    (void)state;
    fm_error error = {0};
    unlink(out);
    assert_int_equal(fm_lab_convert("golden/llama", out, "q4_9", 0, NULL, NULL, &error),
                     FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "q4_9"));
    assert_int_equal(fm_lab_convert("golden/none", out, "q8_0", 0, NULL, NULL, &error),
                     FM_ERROR_IO);
    assert_int_equal(fm_lab_convert("golden/llama", "no-folder/x", "q8_0", 0, NULL, NULL, &error),
                     FM_ERROR_IO);
    assert_int_equal(fm_lab_convert("golden/llama", out, "q8_0", 0, cancel_late, NULL, &error),
                     FM_ERROR_CANCELLED);
    assert_int_equal(fm_lab_synth(out, "huge", "q8_0", 0, NULL, NULL, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_lab_synth(out, "tiny", "q8_9", 0, NULL, NULL, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_lab_synth(out, "tiny", "q8_0", 0, cancel_late, NULL, &error),
                     FM_ERROR_CANCELLED);
    assert_false(fm__path_exists(out));
    assert_int_equal(test_leftovers(out), 0);
}

/* One weight that is not a number is found and named, whatever the target. */
static void not_numbers(void **state) {
    (void)state;
    fm_error error = {0};
    CHECK_OK(fm_lab_convert("golden/llama", out, "bf16", 1, NULL, NULL, &error));
    fm__checkpoint *c = NULL;
    CHECK_OK(fm__checkpoint_open(&c, out, &error));
    const fm__tensor_info *t = fm__checkpoint_find(c, "blk.1.ffn_up.weight");
    uint64_t at = t->file_offset + (3 * t->dims[0] + 5) * 2; /* row 3, column 5 */
    fm__checkpoint_close(&c);
    static const uint16_t values[] = {0x7FC1, 0x7F80, 0xFF80};
    for (int i = 0; i < 3; i++) {
        FILE *file = fopen(out, "r+b");
        assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
        assert_int_equal(fwrite(&values[i], 2, 1, file), 1);
        fclose(file);
        unlink(other);
        assert_int_equal(fm_lab_convert(out, other, i ? "q8_0" : "bf16", 2, NULL, NULL, &error),
                         FM_ERROR_NUMERIC);
        assert_non_null(strstr(error.place, "blk.1.ffn_up.weight"));
        assert_non_null(strstr(error.message, "389"));
        assert_false(fm__path_exists(other));
    }
    /* 1e30 is a number, but none of f16. */
    FILE *file = fopen(out, "r+b");
    uint16_t large = fm__f32_to_bf16(1e30f);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(&large, 2, 1, file), 1);
    fclose(file);
    assert_int_equal(fm_lab_convert(out, other, "f16", 2, NULL, NULL, &error), FM_ERROR_NUMERIC);
    CHECK_OK(fm_lab_convert(out, other, "f32", 2, NULL, NULL, &error));
}

static void embedded_model(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(2, NULL);
    fm_engine *engine = NULL;
    fm_session *session = NULL;
    const float *logits = NULL;
    CHECK_OK(fm_engine_load(&engine, machine, STORY, NULL, &error));
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    int32_t *ids = NULL;
    size_t n = 0;
    CHECK_OK(fm_tokenizer_encode(fm_engine_tokenizer(engine), "Once upon a time", 16,
                                 FM_TOKENIZE_ADD_SPECIAL, &ids, &n, &error));
    assert_int_equal(n, N_PROMPT);
    assert_memory_equal(ids, prompt, sizeof(prompt));
    CHECK_OK(fm_session_prefill(session, ids, n, &logits, &error));
    for (int i = 0; i < N_GREEDY; i++) {
        assert_int_equal(test_argmax(logits, fm_engine_vocab_size(engine)), greedy[i]);
        CHECK_OK(fm_session_decode(session, greedy[i], &logits, &error));
    }
    fm_free(ids);
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);

    /* A Q8_0 file of a Q8_0 file is the same file. */
    CHECK_OK(fm_lab_convert(STORY, out, "q8_0", 0, NULL, NULL, &error));
    fm__checkpoint *a = NULL, *b = NULL;
    CHECK_OK(fm__checkpoint_open(&a, STORY, &error));
    CHECK_OK(fm__checkpoint_open(&b, out, &error));
    assert_int_equal(a->n_tensors, b->n_tensors);
    assert_int_equal(a->n_kvs, b->n_kvs);
    for (size_t i = 0; i < a->n_tensors; i++) {
        assert_int_equal(a->tensors[i].bytes, b->tensors[i].bytes);
        assert_memory_equal(a->tensors[i].data, b->tensors[i].data, a->tensors[i].bytes);
    }
    fm__checkpoint_close(&a);
    fm__checkpoint_close(&b);

    /* From memory, as the program does with its own copy. */
    fm__mapping image;
    CHECK_OK(fm__mapping_open(&image, STORY, &error));
    CHECK_OK(
        fm_engine_load_memory(&engine, machine, image.data, image.bytes, "embedded", NULL, &error));
    fm_engine_destroy(&engine);
    assert_int_equal(fm_engine_load_memory(&engine, machine, image.data, image.bytes / 2,
                                           "embedded", NULL, &error),
                     FM_ERROR_FORMAT);
    assert_null(engine);
    fm__mapping_close(&image);
    fm_machine_destroy(&machine);
}

/* The made-up vocabulary is a real one: all bytes survive a round trip. */
static void synthetic_vocabulary(void **state) {
    (void)state;
    fm_error error = {0};
    fm_tokenizer *tokenizer = NULL;
    CHECK_OK(fm_lab_synth(out, "tiny", "q8_0", 1, NULL, NULL, &error));
    CHECK_OK(fm_tokenizer_load(&tokenizer, out, &error));
    assert_int_equal(fm_tokenizer_vocab_size(tokenizer), 512);
    char text[256], *back = NULL;
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    CHECK_OK(fm_tokenizer_encode(tokenizer, text, 256, 0, &ids, &n, &error));
    assert_true(n > 100 && n <= 256);
    CHECK_OK(fm_tokenizer_decode(tokenizer, ids, n, 0, &back, &bytes, &error));
    assert_int_equal(bytes, 256);
    assert_memory_equal(text, back, 256);
    fm_free(ids);
    fm_free(back);
    fm_tokenizer_destroy(&tokenizer);
    size_t shapes = 0;
    while (fm_lab_synth_shapes()[shapes])
        shapes++;
    assert_int_equal(shapes, 5);
}

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    snprintf(out, sizeof(out), "%s/out.gguf", folder);
    snprintf(other, sizeof(other), "%s/other.gguf", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(out);
    unlink(other);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixtures),       cmocka_unit_test(same_weights),
        cmocka_unit_test(fallbacks),      cmocka_unit_test(deterministic),
        cmocka_unit_test(not_numbers),    cmocka_unit_test(errors_leave_nothing),
        cmocka_unit_test(embedded_model), cmocka_unit_test(synthetic_vocabulary),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
