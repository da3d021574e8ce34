/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of q8_0 end to end: the logits of every row have the same bits for any rung, number of
 * threads, chunk size, cached prefix, restored snapshot and set of units; they lie near those of an
 * f16 cache, and the pool takes about half its memory.
 */
#include "device_test.h"

#include <math.h>
#include <unistd.h>

#include "cpu/cpu.h"

enum { N_TOKENS = 282 /* past a block of 256 keys */, CONTEXT = 320 };

typedef struct model {
    const char *path;
    size_t n; /* tokens that its context holds */
} model;

static char folder[] = "/tmp/fm_cache_XXXXXX", tiny[128];
static model models[] = {
    {tiny, N_TOKENS},
    {"golden/llama", 75},
    {"golden/llama-mha-odd", 75},
    {"golden/mistral-swa", 75},
};
enum { N_MODELS = sizeof models / sizeof models[0] };
static int32_t ids[N_TOKENS];

static fm_engine *load(fm_machine *machine, const char *path, fm_engine_options options) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    options.numeric_class = FM_CLASS_EXACT;
    options.context_length = strcmp(path, tiny) == 0 ? CONTEXT : 128;
    options.chunk_rows = options.chunk_rows ? options.chunk_rows : 64;
    options.no_gate = 1;
    CHECK_OK(fm_engine_load(&engine, machine, path, &options, &error));
    return engine;
}

static fm_engine_options q8_0(void) {
    fm_engine_options options = fm_engine_options_default();
    options.cache_type = FM_CACHE_Q8_0;
    return options;
}

static float *run(fm_machine *machine, const model *m, fm_engine_options options,
                  fm_engine_info *info) {
    fm_engine *engine = load(machine, m->path, options);
    float *logits = test_all_logits(engine, ids, m->n);
    fm_engine_get_info(engine, info);
    fm_engine_destroy(&engine);
    test_no_engine(machine);
    return logits;
}

static float *reference(const model *m, size_t *n) {
    fm_engine_info info;
    fm_machine *machine = test_machine(1, "ref");
    float *logits = run(machine, m, q8_0(), &info);
    fm_machine_destroy(&machine);
    *n = m->n * info.n_vocab;
    return logits;
}

static void rungs_threads_chunks(void **state) {
    (void)state;
    static const uint32_t chunks[] = {1, 17, 64, 300};
    for (int i = 0; i < N_MODELS; i++) {
        size_t n, c = 0;
        float *want = reference(&models[i], &n);
        for (const char *const *rung = fm__kernels_rungs(); *rung; rung++)
            for (uint32_t threads = 1; threads <= 3; threads++) {
                if (threads != 3 && strcmp(*rung, "ref") == 0)
                    continue; /* slow */
                char what[96];
                fm_engine_options options = q8_0();
                fm_engine_info info;
                options.chunk_rows = chunks[c++ % 4];
                snprintf(what, sizeof what, "%s, %s, %u threads, chunks of %u", models[i].path,
                         *rung, threads, options.chunk_rows);
                fm_machine *machine = test_machine(threads, *rung);
                float *got = run(machine, &models[i], options, &info);
                test_same_bits(want, got, n, what);
                free(got);
                fm_machine_destroy(&machine);
            }
        free(want);
    }
}

static void units(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        size_t n;
        float *want = reference(&models[i], &n);
        for (test_units u = TEST_PAIR; u < TEST_UNITS; u++) {
            fm_error error = {0};
            fm_machine *machine = test_units_machine(u, &error);
            if (machine == NULL) {
                print_message("not tried: %s: %s\n", test_units_names[u], error.message);
                continue;
            }
            for (int axis = FM_AXIS_CHANNELS; axis <= FM_AXIS_TOKENS; axis++) {
                static const double shares[] = {0, 0.375, 1};
                for (int s = axis == FM_AXIS_CHANNELS ? 0 : 1; s < (i == 0 ? 3 : 2); s++) {
                    char what[128];
                    fm_engine_options options = q8_0();
                    fm_engine_info info;
                    options.split = shares[s];
                    options.axis = (fm_axis)axis;
                    snprintf(what, sizeof what, "%s on %s, share %g, axis %d", models[i].path,
                             test_units_names[u], shares[s], axis);
                    float *got = run(machine, &models[i], options, &info);
                    test_same_bits(want, got, n, what);
                    free(got);
                }
            }
            fm_machine_destroy(&machine);
        }
        free(want);
    }
}

/* Prefilled to any length, decoded one by one behind it, and taken up again from a snapshot. */
static void prefixes_and_snapshots(void **state) {
    (void)state;
    fm_error error = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/snapshot", folder);
    for (int i = 0; i < N_MODELS; i++) {
        size_t n, last = models[i].n - 1;
        float *want = reference(&models[i], &n);
        fm_machine *machine = test_machine(2, NULL);
        fm_engine *engine = load(machine, models[i].path, q8_0());
        size_t n_vocab = fm_engine_vocab_size(engine);
        for (size_t length = 1; length < last; length += 1 + length / 2) {
            fm_session *a = NULL, *b = NULL;
            const float *logits;
            CHECK_OK(fm_session_create(&a, engine, NULL, &error));
            CHECK_OK(fm_session_prefill(a, ids, length, &logits, &error));
            test_same_bits(want + (length - 1) * n_vocab, logits, n_vocab, "a prefix");
            CHECK_OK(fm_session_save(a, path, &error));
            fm_session_destroy(&a);
            CHECK_OK(fm_session_create(&b, engine, NULL, &error));
            CHECK_OK(fm_session_restore(b, path, &error));
            CHECK_OK(fm_session_decode(b, ids[length], &logits, &error));
            test_same_bits(want + length * n_vocab, logits, n_vocab, "a restored prefix");
            CHECK_OK(fm_session_prefill(b, ids + length + 1, last - length, &logits, &error));
            test_same_bits(want + last * n_vocab, logits, n_vocab, "behind a restored prefix");
            fm_session_destroy(&b);
        }
        fm_engine_destroy(&engine);
        fm_machine_destroy(&machine);
        free(want);
    }
    unlink(path);
}

/* Neither the same as with f16 nor far from it. */
static void beside_f16(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        fm_engine_info half, eighth;
        fm_machine *machine = test_machine(1, NULL);
        float *a = run(machine, &models[i], fm_engine_options_default(), &half);
        float *b = run(machine, &models[i], q8_0(), &eighth);
        double square = 0, error = 0;
        for (size_t j = 0; j < models[i].n * half.n_vocab; j++) {
            square += (double)a[j] * (double)a[j];
            error += ((double)a[j] - (double)b[j]) * ((double)a[j] - (double)b[j]);
        }
        if (!(error > 0 && error < square * 1e-2))
            fail_msg("%s: %.3g of the f16 cache's logits", models[i].path, sqrt(error / square));
        assert_int_equal(half.cache_type, FM_CACHE_F16);
        assert_int_equal(eighth.cache_type, FM_CACHE_Q8_0);
        assert_true(eighth.cache_bytes > half.cache_bytes / 2);
        assert_true(eighth.cache_bytes <= half.cache_bytes * 10 / 16);
        free(a);
        free(b);
        fm_machine_destroy(&machine);
    }
}

static void no_such_type(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_engine_options options = fm_engine_options_default();
    options.cache_type = (fm_cache_type)2;
    fm_machine *machine = test_machine(1, NULL);
    assert_int_equal(fm_engine_load(&engine, machine, "golden/llama", &options, &error),
                     FM_ERROR_ARGUMENT);
    assert_string_equal(error.place, "cache_type");
    assert_null(engine);
    assert_string_equal(fm_cache_type_name(FM_CACHE_Q8_0), "q8_0");
    fm_machine_destroy(&machine);
}

static int make_models(void **state) {
    (void)state;
    fm_error error = {0};
    if (!mkdtemp(folder))
        return 1;
    snprintf(tiny, sizeof tiny, "%s/tiny.gguf", folder);
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (i * 37 + i / 7) % 300;
    return fm_lab_synth(tiny, "tiny", "q4_k_m", 1, NULL, NULL, &error) == FM_OK ? 0 : 1;
}

static int remove_models(void **state) {
    (void)state;
    unlink(tiny);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rungs_threads_chunks),
        cmocka_unit_test(prefixes_and_snapshots),
        cmocka_unit_test(beside_f16),
        cmocka_unit_test(no_such_type),
        cmocka_unit_test(units),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
