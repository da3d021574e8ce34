/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Golden checkpoints: logits of every row and greedy ids against fp32 references, through every
 * family, in both numeric classes.
 */
#include "model_test.h"

#include <math.h>

static const char *const golden[] = {
    "llama", "llama-ropescale-tied", "llama-mha-odd", "mistral-swa", "qwen2", "qwen3",
};

static void check_greedy(fm_engine *engine, const int32_t *ids, size_t n, const int32_t *greedy,
                         size_t n_greedy, double slack) {
    fm_error error = {0};
    fm_session *session = NULL;
    const float *logits = NULL;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, ids, n, &logits, &error));
    for (size_t i = 0; i < n_greedy; i++) {
        int32_t best = test_argmax(logits, fm_engine_vocab_size(engine));
        /* bf16 activations may swap two ids whose logits are closer than the class's error. */
        if (best != greedy[i] && !((double)logits[best] - logits[greedy[i]] <= slack))
            fail_msg("token %zu: %d instead of %d", i, best, greedy[i]);
        CHECK_OK(fm_session_decode(session, greedy[i], &logits, &error));
    }
    assert_int_equal(fm_session_length(session), n + n_greedy);
    fm_session_destroy(&session);
}

static void check_one(const char *name, fm_class numeric_class, double bound) {
    fm_error error = {0};
    fm_machine *machine = test_machine(2, NULL);
    fm_engine *engine = NULL;
    char path[256];
    fm_engine_options options = fm_engine_options_default();
    options.numeric_class = numeric_class;
    snprintf(path, sizeof(path), "golden/%s", name);
    CHECK_OK(fm_engine_load(&engine, machine, path, &options, &error));
    fm_engine_info info;
    fm_engine_get_info(engine, &info);
    assert_int_equal(info.numeric_class, numeric_class);

    json_error_t json_error;
    snprintf(path, sizeof(path), "golden/%s/expected.json", name);
    json_t *expected = json_load_file(path, 0, &json_error);
    assert_non_null(expected);
    size_t n, n_greedy, rows, cols;
    int32_t *ids = test_read_ids(expected, "input_ids", &n);
    int32_t *greedy = test_read_ids(expected, "greedy", &n_greedy);
    snprintf(path, sizeof(path), "golden/%s/logits.npy", name);
    float *want = test_read_npy(path, &rows, &cols);
    assert_int_equal(cols, fm_engine_vocab_size(engine));
    assert_in_range(rows, 1, n);

    float *got = test_all_logits(engine, ids, n);
    double worst = 0;
    for (size_t i = 0; i < rows * cols; i++) {
        double d = fabs((double)got[(n - rows) * cols + i] - want[i]);
        if (!(d <= worst))
            worst = d;
    }
    print_message("%s, class %d: max |difference| %.3g\n", name, (int)numeric_class, worst);
    if (!(worst <= bound))
        fail_msg("%s: the largest difference is %g, allowed is %g", name, worst, bound);
    check_greedy(engine, ids, n, greedy, n_greedy, numeric_class == FM_CLASS_FAST ? bound : 0);

    free(got);
    free(want);
    free(ids);
    free(greedy);
    json_decref(expected);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

static void exact_class(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++)
        check_one(golden[i], FM_CLASS_EXACT, 1e-2);
}

static void fast_class(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++)
        check_one(golden[i], FM_CLASS_FAST, 1e-1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_class),
        cmocka_unit_test(fast_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
