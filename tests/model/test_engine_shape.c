/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity at a real shape: a 0.5B model with random weights of every quantised type, its logits on
 * one host thread against those of a Vulkan device and the host (lavapipe will do), and of two host
 * teams, over shares, axes and ways to wait. It takes many minutes and 0.6 GB of /tmp, so it runs
 * only where FUSIONML_SHAPE names types, separated by commas, or "all": `make check-shape`. With
 * FUSIONML_SHAPE_WAYS=some each type has one share and one way to wait on every axis, others for
 * the next type.
 */
#include "device_test.h"

#include <unistd.h>

enum { FEW = 6, MANY = 130 /* with a host team only; past 64, so that AUTO divides by tokens */ };

static const char *const all_types[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1",  "mxfp4", "q2_k",
                                        "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0"};

static char folder[] = "/tmp/fm_shape_XXXXXX";
static int32_t ids[MANY];

static fm_engine *load(fm_machine *machine, const char *path) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.numeric_class = FM_CLASS_EXACT;
    o.context_length = 256;
    o.no_gate = 1;
    o.split = 0.5;
    CHECK_OK(fm_engine_load(&engine, machine, path, &o, &error));
    return engine;
}

static float *reference(const char *path, size_t *n_vocab) {
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_HOST, &error);
    fm_engine *engine = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.numeric_class = FM_CLASS_EXACT;
    o.context_length = 256;
    CHECK_OK(fm_engine_load(&engine, machine, path, &o, &error));
    *n_vocab = fm_engine_vocab_size(engine);
    float *logits = test_all_logits(engine, ids, MANY);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return logits;
}

/* The rows as a prompt, then the last as a token behind the others. */
static void compare(fm_engine *engine, const float *want, size_t n, const char *what) {
    fm_error error = {0};
    size_t n_vocab = fm_engine_vocab_size(engine);
    float *got = test_all_logits(engine, ids, n);
    test_same_bits(want, got, n * n_vocab, what);
    free(got);
    fm_session *session = NULL;
    const float *logits;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, ids, (uint32_t)n - 1, NULL, &error));
    CHECK_OK(fm_session_decode(session, ids[n - 1], &logits, &error));
    test_same_bits(want + (n - 1) * n_vocab, logits, n_vocab, what);
    fm_session_destroy(&session);
}

typedef struct way {
    int eighths; /* the last unit's share */
    fm_axis axis;
    fm_deps deps;
} way;

/* Into room for 32; returns how many. */
static uint32_t list_ways(uint32_t index_of_type, bool has_gpu, way *ways) {
    static const int eighths[] = {1, 4, 7};
    static const fm_deps deps[] = {FM_DEPS_EVENT, FM_DEPS_BATCH};
    const char *which = getenv("FUSIONML_SHAPE_WAYS");
    bool some = which && strcmp(which, "some") == 0;
    uint32_t n = 0;
    for (int axis = FM_AXIS_CHANNELS; axis <= FM_AXIS_PRODUCTS; axis++) {
        if (has_gpu && axis == FM_AXIS_AUTO) /* by channels then */
            continue;
        uint32_t turn = 4 * index_of_type + (uint32_t)axis;
        if (some)
            ways[n++] = (way){1 + (int)(3 * turn % 7), (fm_axis)axis,
                              (fm_deps)((index_of_type + (uint32_t)axis) % 4)};
        for (int s = 0; s < 3 && !some; s++)
            for (int d = 0; d < 2; d++)
                ways[n++] = (way){eighths[s], (fm_axis)axis, deps[d]};
    }
    return n;
}

static uint32_t compare_units(test_units units, const char *path, uint32_t index_of_type,
                              const float *want, size_t n) {
    const char *type = all_types[index_of_type];
    char what[160];
    fm_error error = {0};
    fm_machine *machine = test_units_machine(units, &error);
    if (!machine) {
        print_message("not tried: %s: %s\n", test_units_names[units], error.message);
        return 0;
    }
    fm_engine *engine = load(machine, path);
    uint32_t runs = 0;
    for (int arm = FM_ARM_CPU; arm <= FM_ARM_EAGER; arm++) {
        if (fm_engine_set_arm(engine, (fm_arm)arm, NULL) != FM_OK)
            continue;
        snprintf(what, sizeof(what), "%s, %s, arm %s", type, test_units_names[units],
                 fm_arm_name((fm_arm)arm));
        compare(engine, want, n, what);
        runs++;
    }
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_SPLIT, &error));
    way ways[32];
    uint32_t n_way = list_ways(index_of_type, engine->gpu != NULL, ways);
    for (uint32_t w = 0; w < n_way; w++, runs++) {
        engine->options.split = ways[w].eighths / 8.0;
        engine->options.axis = ways[w].axis;
        engine->options.deps = ways[w].deps;
        fm__arms_forget(engine);
        snprintf(what, sizeof(what), "%s, %s, share %d/8, axis %d, deps %d", type,
                 test_units_names[units], ways[w].eighths, (int)ways[w].axis, (int)ways[w].deps);
        compare(engine, want, n, what);
    }
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return runs;
}

static void check_type(uint32_t index_of_type) {
    const char *type = all_types[index_of_type];
    char path[128];
    size_t n_vocab;
    fm_error error = {0};
    snprintf(path, sizeof(path), "%s/%s.gguf", folder, type);
    CHECK_OK(fm_lab_synth(path, "qwen2.5-0.5b", type, 1, NULL, NULL, &error));
    float *want = reference(path, &n_vocab);
    double begin = (double)fm__now_ns();
    uint32_t pair = compare_units(TEST_PAIR, path, index_of_type, want, MANY);
    uint32_t vulkan = compare_units(TEST_VULKAN, path, index_of_type, want, FEW);
    print_message("%-6s equal bits: %u ways of two host teams (%d rows), %u of Vulkan and host (%d "
                  "rows), %.0f s\n",
                  type, pair, MANY, vulkan, FEW, ((double)fm__now_ns() - begin) / 1e9);
    free(want);
    unlink(path);
}

static void every_quantised_type(void **state) {
    (void)state;
    char asked[256];
    snprintf(asked, sizeof(asked), ",%s,", getenv("FUSIONML_SHAPE"));
    uint32_t n = 0;
    for (size_t t = 0; t < sizeof(all_types) / sizeof(all_types[0]); t++) {
        char item[32];
        snprintf(item, sizeof(item), ",%s,", all_types[t]);
        if (strcmp(asked, ",all,") != 0 && !strstr(asked, item))
            continue;
        check_type((uint32_t)t);
        n++;
    }
    assert_true(n > 0);
}

static int begin(void **state) {
    (void)state;
    for (int i = 0; i < MANY; i++)
        ids[i] = (i * 131 + 17) % 50021;
    return mkdtemp(folder) ? 0 : 1;
}

static int end(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof(command), "rm -rf %s",
             folder); /* a model is left where a type fails */
    return system(command);
}

int main(void) {
    if (!getenv("FUSIONML_SHAPE")) {
        puts("skip: takes many minutes: make check-shape");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_quantised_type)};
    return cmocka_run_group_tests(tests, begin, end);
}
