/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host as main unit with a GPU behind a bus beside it: state and activations lie in host
 * memory, the GPU computes its part of products there, and the cpu arm is the host alone. The bits
 * are those of the host, whatever the arm, share, axis, order and place of the weights.
 */
#include "device/vulkan/core.h"
#include "device_test.h"

#include <unistd.h>

enum { PROMPT = 9, TOKENS = 3 };

static char model[] = "/tmp/fm_hosted_XXXXXX";
static const int32_t ids[PROMPT] = {3, 141, 59, 26, 5, 358, 97, 93, 238};

static fm_machine *machine_of(const char *devices) {
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm_machine_options options = fm_machine_options_default();
    options.memory_budget = UINT64_C(2) << 30;
    options.threads = 1;
    options.devices = devices;
    CHECK_OK(fm_machine_create(&machine, &options, &error));
    return machine;
}

static fm_engine *load(fm_machine *machine, const fm_engine_options *o) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    CHECK_OK(fm_engine_load(&engine, machine, model, o, &error));
    return engine;
}

static fm_engine_options options_of(fm_arm arm, double split) {
    fm_engine_options o = fm_engine_options_default();
    o.context_length = 64;
    o.chunk_rows = 16;
    o.arm = arm;
    o.split = split;
    return o;
}

/* (1 + TOKENS, n_vocab): behind the prompt and each token. */
static void run(fm_engine *engine, float *out) {
    fm_error error = {0};
    fm_session *session = NULL;
    const float *logits = NULL;
    size_t n = fm_engine_vocab_size(engine);
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, ids, PROMPT, &logits, &error));
    memcpy(out, logits, n * sizeof *out);
    for (int32_t i = 0; i < TOKENS; i++) {
        CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
        memcpy(out + (size_t)(i + 1) * n, logits, n * sizeof *out);
    }
    fm_session_destroy(&session);
}

static float *want;
static size_t n_want;

static void compare(fm_machine *machine, const fm_engine_options *o, const char *what) {
    fm_engine *engine = load(machine, o);
    float *got = calloc(n_want, sizeof *got);
    run(engine, got);
    test_same_bits(want, got, n_want, what);
    free(got);
    fm_engine_destroy(&engine);
    test_no_engine(machine);
}

static void the_bits_of_the_host(void **state) {
    (void)state;
    static const double shares[] = {0, 0.25, 0.5, 1};
    static const fm_weights places[] = {FM_WEIGHTS_SHARED, FM_WEIGHTS_STREAMED, FM_WEIGHTS_RESIDENT,
                                        FM_WEIGHTS_AUTO};
    char what[96];
    fm_machine *machine = machine_of("host,vulkan:0+discrete");
    for (fm_arm arm = FM_ARM_CPU; arm <= FM_ARM_EAGER; arm++) {
        fm_engine_options o = options_of(arm, -1);
        compare(machine, &o, fm_arm_name(arm));
    }
    for (size_t s = 0; s < 4; s++)
        for (int axis = FM_AXIS_CHANNELS; axis <= FM_AXIS_PRODUCTS; axis++) {
            fm_engine_options o = options_of(FM_ARM_SPLIT, shares[s]);
            o.axis = (fm_axis)axis;
            o.weights = places[(s + (size_t)axis) % 4];
            snprintf(what, sizeof what, "share %g, axis %d, weights %d", shares[s], axis,
                     (int)o.weights);
            compare(machine, &o, what);
        }
    for (int deps = FM_DEPS_EVENT; deps <= FM_DEPS_READY; deps++) {
        fm_engine_options o = options_of(FM_ARM_SPLIT, 0.5);
        o.deps = (fm_deps)deps;
        o.weights = deps % 2 == 0 ? FM_WEIGHTS_SHARED : FM_WEIGHTS_STREAMED;
        snprintf(what, sizeof what, "deps %d", deps);
        compare(machine, &o, what);
    }
    fm_machine_destroy(&machine);
}

/* State in host memory, once; the GPU's own holds copies of weights and what it keeps. */
static void state_is_the_host_s(void **state) {
    (void)state;
    fm_machine *machine = machine_of("host,vulkan:0+discrete");
    const fm__device_properties *gpu = &machine->devices[1]->properties;
    fm_device_info told;
    assert_true(gpu->hosted && gpu->unified && machine->host == machine->devices[0]);
    assert_int_equal(fm_machine_device(machine, 1, &told, NULL), FM_OK);
    assert_non_null(strstr(told.features, "works on host memory"));
    fm_engine_options o = options_of(FM_ARM_SPLIT, 0.5);
    o.weights = FM_WEIGHTS_RESIDENT;
    fm_engine *engine = load(machine, &o);
    const fm__memory_need *n = &engine->need;
    assert_true(engine->cache != NULL && n->mirror == 0);
    assert_int_equal(n->host_alone, n->weights + n->output + n->scratch + n->cache);
    assert_int_equal(n->own_alone, n->vectors + n->copies);
    assert_true(n->copies > 0);
    assert_int_equal(fm_machine_memory_used(machine), n->host);
    assert_int_equal(atomic_load(&machine->own_used[1]), n->own);
    /* The cpu arm needs no GPU at all. */
    fm__way *way;
    fm_error error = {0};
    CHECK_OK(fm__arms_way(engine, &engine->buckets[0], FM_ARM_CPU, &way, &error));
    assert_true(way->n_unit == 1 && way->units[0] == machine->host && way->plan->n_copy == 0);
    fm_engine_destroy(&engine);
    test_no_engine(machine);
    fm_machine_destroy(&machine);
    /* A GPU of the same memory is what it was. */
    machine = machine_of("host,vulkan:0");
    assert_int_equal(machine->devices[1]->properties.hosted,
                     !machine->devices[1]->properties.unified);
    fm_machine_destroy(&machine);
    machine = machine_of("vulkan:0+discrete,host");
    assert_false(machine->devices[0]->properties.hosted);
    fm_machine_destroy(&machine);
}

/* Arms may change at any call, and a session goes on. */
static void arms_change_in_a_session(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = machine_of("host,vulkan:0+discrete");
    fm_engine_options o = options_of(FM_ARM_AUTO, 0.5);
    o.weights = FM_WEIGHTS_STREAMED;
    fm_engine *engine = load(machine, &o);
    fm_session *session = NULL;
    const float *logits = NULL;
    size_t n = fm_engine_vocab_size(engine);
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_GPU, &error));
    CHECK_OK(fm_session_prefill(session, ids, PROMPT, &logits, &error));
    test_same_bits(want, logits, n, "the prompt");
    static const fm_arm order[TOKENS] = {FM_ARM_CPU, FM_ARM_SPLIT, FM_ARM_EAGER};
    for (int32_t i = 0; i < TOKENS; i++) {
        CHECK_OK(fm_engine_set_arm(engine, order[i], &error));
        CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
        test_same_bits(want + (size_t)(i + 1) * n, logits, n, fm_arm_name(order[i]));
    }
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* The GPU goes in mid-run: the host goes on alone, with the same bits and no memory left counted.
 */
static void the_gpu_may_be_lost(void **state) {
    (void)state;
    for (uint64_t at = 1; at <= 3; at++) {
        fm_error error = {0};
        fm_machine *machine = NULL;
        fm__device *devices[2] = {NULL, NULL};
        const fm__host_options near = {.threads = 1};
        const fm__vulkan_options far = {
            .allow_software = true, .force_discrete = true, .hosted = true, .cache_dir = ""};
        CHECK_OK(fm__device_host_create(&devices[0], &near, &error));
        CHECK_OK(fm__device_vulkan_create(&devices[1], &far, &error));
        CHECK_OK(fm__machine_adopt(&machine, devices, 2, UINT64_C(2) << 30, &error));
        fm_engine_options o = options_of(FM_ARM_AUTO, 0.5);
        o.weights = FM_WEIGHTS_STREAMED;
        fm_engine *engine = load(machine, &o);
        fm__vulkan_queue *queue = &((fm__vulkan *)devices[1])->core->queue;
        queue->lose_at = queue->submits + at; /* behind the self-tests */
        float *got = calloc(n_want, sizeof *got);
        run(engine, got);
        test_same_bits(want, got, n_want, "without the GPU");
        assert_int_equal(engine->lost, 2);
        assert_int_equal(fm_machine_memory_used(machine), engine->need.host);
        const fm__held held = fm__device_held(devices[1]); /* what is lost is not free */
        assert_true(held.ring > 0);
        assert_int_equal(atomic_load(&machine->own_used[1]), held.scratch + held.ring);
        free(got);
        fm_engine_destroy(&engine);
        test_no_engine(machine);
        fm_machine_destroy(&machine);
    }
}

static int make_model(void **state) {
    (void)state;
    fm_error error = {0};
    int file = mkstemp(model);
    if (file >= 0)
        close(file);
    if (file < 0 || fm_lab_synth(model, "tiny", "q4_k_m", 1, NULL, NULL, &error) != FM_OK)
        return -1;
    fm_machine *machine = machine_of("host");
    fm_engine_options o = options_of(FM_ARM_AUTO, -1);
    fm_engine *engine = load(machine, &o);
    n_want = (1 + TOKENS) * (size_t)fm_engine_vocab_size(engine);
    want = calloc(n_want, sizeof *want);
    run(engine, want);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return 0;
}

static int remove_model(void **state) {
    (void)state;
    free(want);
    return unlink(model);
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        puts("skip: no Vulkan device, not even one that the processor emulates");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_the_host),
        cmocka_unit_test(state_is_the_host_s),
        cmocka_unit_test(arms_change_in_a_session),
        cmocka_unit_test(the_gpu_may_be_lost),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
