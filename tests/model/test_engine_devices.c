/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity over devices: the logits of every row have the same bits on one host thread and on every
 * pair of units that this machine has, however products are divided between them, whichever way
 * they wait for each other, and wherever the weights lie.
 */
#include "device_test.h"

#include <unistd.h>

enum { N_TOKENS = 75 /* past a page of 64 */, SHORT = 19 };

static char folder[] = "/tmp/fm_devices_XXXXXX";
static int32_t ids[N_TOKENS];

static void model_path(const char *type, char out[128]) {
    snprintf(out, 128, "%s/%s.gguf", folder, type);
    fm_error error = {0};
    if (access(out, R_OK) != 0)
        CHECK_OK(fm_lab_synth(out, "tiny", type, 1, NULL, NULL, &error));
}

static fm_engine *load(fm_machine *machine, const char *path, fm_engine_options options) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    options.numeric_class = FM_CLASS_EXACT;
    options.context_length = 256;
    options.cache_tokens = 512;
    options.chunk_rows = options.chunk_rows ? options.chunk_rows : 64;
    options.no_gate = 1;
    CHECK_OK(fm_engine_load(&engine, machine, path, &options, &error));
    return engine;
}

static float *reference(const char *path, size_t n, size_t *n_vocab) {
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_HOST, &error);
    fm_engine *engine = load(machine, path, fm_engine_options_default());
    *n_vocab = fm_engine_vocab_size(engine);
    float *logits = test_all_logits(engine, ids, n);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return logits;
}

static void compare(fm_engine *engine, const float *want, size_t n, size_t n_vocab,
                    const char *what) {
    float *got = test_all_logits(engine, ids, n);
    test_same_bits(want, got, n * n_vocab, what);
    free(got);
}

/* Decodes one by one what the reference computed as a prompt. */
static void compare_decoded(fm_engine *engine, const float *want, size_t n, size_t n_vocab,
                            const char *what) {
    fm_error error = {0};
    fm_session *session = NULL;
    const float *logits;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    for (size_t i = 0; i < n; i++) {
        CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
        test_same_bits(want + i * n_vocab, logits, n_vocab, what);
    }
    fm_session_destroy(&session);
}

static fm_machine *machine_of(test_units units) {
    fm_error error = {0};
    fm_machine *machine = test_units_machine(units, &error);
    if (!machine)
        print_message("not tried: %s: %s\n", test_units_names[units], error.message);
    return machine;
}

static void finish(fm_engine **engine, fm_machine *machine) {
    fm_engine_destroy(engine);
    test_no_engine(machine);
}

/* ---- every arm, axis, share and way to wait ---- */

/* The engine with other options, without loading again. */
static void run_share(fm_engine *engine, const float *want, size_t n_vocab, double share,
                      fm_axis axis, fm_deps deps, const char *name) {
    char what[160];
    engine->options.split = share;
    engine->options.axis = axis;
    engine->options.deps = deps;
    fm__arms_forget(engine);
    snprintf(what, sizeof(what), "%s, share %g, axis %d, deps %d", name, share, (int)axis,
             (int)deps);
    compare(engine, want, N_TOKENS, n_vocab, what);
    compare_decoded(engine, want, 3, n_vocab, what);
}

static void shares_of(test_units units, const char *type, uint32_t chunk_rows) {
    char path[128];
    size_t n_vocab;
    fm_machine *machine = machine_of(units);
    if (!machine)
        return;
    model_path(type, path);
    float *want = reference(path, N_TOKENS, &n_vocab);
    fm_engine_options o = fm_engine_options_default();
    o.split = 0;
    o.chunk_rows = chunk_rows;
    fm_engine *engine = load(machine, path, o);
    for (int axis = FM_AXIS_CHANNELS; axis <= FM_AXIS_AUTO; axis++) {
        for (int eighth = 0; eighth <= 8; eighth++)
            run_share(engine, want, n_vocab, eighth / 8.0, (fm_axis)axis, (fm_deps)(eighth % 4),
                      test_units_names[units]);
        for (int deps = 0; deps < 4; deps++)
            run_share(engine, want, n_vocab, 0.4, (fm_axis)axis, (fm_deps)deps,
                      test_units_names[units]);
    }
    finish(&engine, machine);
    free(want);
    fm_machine_destroy(&machine);
}

static void shares_pair(void **state) {
    (void)state;
    shares_of(TEST_PAIR, "q4_k_m", 64);
}

/* A tape of so many rows is divided by tokens where the axis is not given. */
static void shares_pair_of_many_rows(void **state) {
    (void)state;
    shares_of(TEST_PAIR, "q4_k_m", 128);
}

static void shares_discrete(void **state) {
    (void)state;
    shares_of(TEST_DISCRETE, "q4_k_m", 64);
}

static void shares_vulkan(void **state) {
    (void)state;
    shares_of(TEST_VULKAN, "q4_k_m", 64);
}

static void shares_vulkan_discrete(void **state) {
    (void)state;
    shares_of(TEST_VULKAN_DISCRETE, "q4_k_m", 64);
}

/* ---- every type ---- */

static const char *const types[] = {
    "q8_0", "q4_0", "q4_1", "q5_0",  "q5_1",  "mxfp4", "q2_k", "q3_k",
    "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0", "f16",   "bf16", "f32",
};

static void one_type(fm_machine *machine, test_units units, const char *type) {
    static const fm_arm arms[] = {FM_ARM_GPU, FM_ARM_SPLIT};
    char path[128], what[128];
    size_t n_vocab;
    fm_error error = {0};
    model_path(type, path);
    float *want = reference(path, SHORT, &n_vocab);
    fm_engine_options o = fm_engine_options_default();
    o.split = 0.5;
    fm_engine *engine = load(machine, path, o);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fm_engine_set_arm(engine, arms[i], &error));
        snprintf(what, sizeof(what), "%s, %s, arm %s", type, test_units_names[units],
                 fm_arm_name(arms[i]));
        compare(engine, want, SHORT, n_vocab, what);
        compare_decoded(engine, want, 2, n_vocab, what);
    }
    finish(&engine, machine);
    free(want);
}

/* Every `step`-th: kernels are the same wherever memory lies, so that one way has them all. */
static void every_type(test_units units, size_t step) {
    fm_machine *machine = machine_of(units);
    for (size_t t = 0; machine && t < sizeof(types) / sizeof(types[0]); t += step)
        one_type(machine, units, types[t]);
    fm_machine_destroy(&machine);
}

static void types_discrete(void **state) {
    (void)state;
    every_type(TEST_DISCRETE, 1);
}

static void types_vulkan(void **state) {
    (void)state;
    every_type(TEST_VULKAN, 1);
}

static void types_vulkan_discrete(void **state) {
    (void)state;
    every_type(TEST_VULKAN_DISCRETE, 5);
}

/* ---- residencies ---- */

static void residencies(void **state) {
    (void)state;
    static const fm_weights modes[] = {FM_WEIGHTS_AUTO, FM_WEIGHTS_RESIDENT, FM_WEIGHTS_SHARED,
                                       FM_WEIGHTS_STREAMED};
    static const test_units all[] = {TEST_DISCRETE, TEST_VULKAN, TEST_VULKAN_DISCRETE};
    char path[128], what[160];
    size_t n_vocab;
    model_path("q4_k_m", path);
    float *want = reference(path, N_TOKENS, &n_vocab);
    for (size_t u = 0; u < 3; u++) {
        fm_machine *machine = machine_of(all[u]);
        for (size_t m = 0; machine && m < 4; m++) {
            fm_engine_options o = fm_engine_options_default();
            o.weights = modes[m];
            o.arm = FM_ARM_GPU;
            snprintf(what, sizeof(what), "%s, weights %d", test_units_names[all[u]], (int)m);
            fm_engine *engine = load(machine, path, o);
            compare(engine, want, N_TOKENS, n_vocab, what);
            compare_decoded(engine, want, 5, n_vocab, what);
            bool streams = modes[m] == FM_WEIGHTS_STREAMED;
            assert_int_equal(engine->need.ring, streams ? engine->gpu->properties.ring_bytes : 0);
            finish(&engine, machine);
        }
        fm_machine_destroy(&machine);
    }
    free(want);
}

/* ---- sessions across arms ---- */

static fm_arm next_arm(const fm_engine *engine, fm_arm arm) {
    do
        arm = (fm_arm)(arm % (FM__ARM_COUNT - 1) + 1);
    while (!(engine->arms >> arm & 1));
    return arm;
}

/* The arm changes before every token; forks, truncation and snapshots cross the change. */
static void sessions_of(test_units units) {
    char path[128], snapshot[128];
    size_t n_vocab;
    fm_error error = {0};
    fm_machine *machine = machine_of(units);
    if (!machine)
        return;
    model_path("q5_k", path);
    snprintf(snapshot, sizeof(snapshot), "%s/snap", folder);
    float *want = reference(path, N_TOKENS, &n_vocab);
    fm_engine_options o = fm_engine_options_default();
    o.split = 0.3;
    fm_engine *engine = load(machine, path, o);
    fm_session *session = NULL, *fork = NULL, *restored = NULL;
    const float *logits;
    fm_arm arm = FM_ARM_CPU;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_create(&restored, engine, NULL, &error));
    CHECK_OK(fm_engine_set_arm(engine, arm, &error));
    CHECK_OK(fm_session_prefill(session, ids, 40, &logits, &error));
    for (uint32_t i = 40; i < 70; i++) {
        arm = next_arm(engine, arm);
        CHECK_OK(fm_engine_set_arm(engine, arm, &error));
        if (i == 50)
            CHECK_OK(fm_session_fork(&fork, session, &error));
        if (i == 55)
            CHECK_OK(fm_session_save(session, snapshot, &error));
        CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
        test_same_bits(want + i * n_vocab, logits, n_vocab, test_units_names[units]);
    }
    for (uint32_t i = 50; i < 53; i++) {
        arm = next_arm(engine, arm);
        CHECK_OK(fm_engine_set_arm(engine, arm, &error));
        CHECK_OK(fm_session_decode(fork, ids[i], &logits, &error));
        test_same_bits(want + i * n_vocab, logits, n_vocab, "a fork");
    }
    CHECK_OK(fm_session_truncate(session, 41, &error));
    CHECK_OK(fm_session_prefill(session, ids + 41, 20, &logits, &error));
    test_same_bits(want + 60 * n_vocab, logits, n_vocab, "after a truncation");
    CHECK_OK(fm_session_restore(restored, snapshot, &error));
    CHECK_OK(fm_session_decode(restored, ids[55], &logits, &error));
    test_same_bits(want + 55 * n_vocab, logits, n_vocab, "restored");
    fm_session_destroy(&session);
    fm_session_destroy(&fork);
    fm_session_destroy(&restored);
    finish(&engine, machine);
    fm_machine_destroy(&machine);
    unlink(snapshot);
    free(want);
}

static void sessions(void **state) {
    (void)state;
    for (int units = TEST_PAIR; units < TEST_UNITS; units++)
        sessions_of((test_units)units);
}

/* A snapshot made on one set of units restores on another. */
static void snapshots_travel(void **state) {
    (void)state;
    char path[128], snapshot[128];
    size_t n_vocab;
    fm_error error = {0};
    const float *logits;
    model_path("q8_0", path);
    snprintf(snapshot, sizeof(snapshot), "%s/snap", folder);
    float *want = reference(path, N_TOKENS, &n_vocab);
    for (int from = TEST_DISCRETE; from < TEST_UNITS; from++) {
        fm_machine *machine = machine_of((test_units)from), *host = machine_of(TEST_HOST);
        fm_session *session = NULL;
        if (machine) {
            fm_engine_options o = fm_engine_options_default();
            fm_engine *engine = load(machine, path, o), *plain = load(host, path, o);
            CHECK_OK(fm_session_create(&session, engine, NULL, &error));
            CHECK_OK(fm_session_prefill(session, ids, 67, NULL, &error));
            CHECK_OK(fm_session_save(session, snapshot, &error));
            fm_session_destroy(&session);
            CHECK_OK(fm_session_create(&session, plain, NULL, &error));
            CHECK_OK(fm_session_restore(session, snapshot, &error));
            CHECK_OK(fm_session_decode(session, ids[67], &logits, &error));
            test_same_bits(want + 67 * n_vocab, logits, n_vocab, test_units_names[from]);
            fm_session_destroy(&session);
            finish(&engine, machine);
            fm_engine_destroy(&plain);
        }
        fm_machine_destroy(&host);
        fm_machine_destroy(&machine);
    }
    unlink(snapshot);
    free(want);
}

/* ---- the embedded model ---- */

static void story(void **state) {
    (void)state;
    static const char path[] = "../../models/story-21m-q8_0.gguf";
    size_t n_vocab;
    float *want = reference(path, SHORT, &n_vocab);
    for (int units = TEST_PAIR; units < TEST_UNITS; units++) {
        fm_machine *machine = machine_of((test_units)units);
        if (!machine)
            continue;
        fm_engine_options o = fm_engine_options_default();
        o.split = 0.25;
        fm_engine *engine = load(machine, path, o);
        compare(engine, want, SHORT, n_vocab, test_units_names[units]);
        compare_decoded(engine, want, 4, n_vocab, test_units_names[units]);
        finish(&engine, machine);
        fm_machine_destroy(&machine);
    }
    free(want);
}

static int make_folder(void **state) {
    (void)state;
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (i * 131 + 17) % 509;
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state) {
    (void)state;
    DIR *directory = opendir(folder);
    if (!directory)
        return 1;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char path[400];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    closedir(directory);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_pair),
        cmocka_unit_test(shares_pair_of_many_rows),
        cmocka_unit_test(shares_discrete),
        cmocka_unit_test(shares_vulkan),
        cmocka_unit_test(shares_vulkan_discrete),
        cmocka_unit_test(types_discrete),
        cmocka_unit_test(types_vulkan),
        cmocka_unit_test(types_vulkan_discrete),
        cmocka_unit_test(residencies),
        cmocka_unit_test(sessions),
        cmocka_unit_test(snapshots_travel),
        cmocka_unit_test(story),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
