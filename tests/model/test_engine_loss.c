/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A unit is lost while a model runs: the engine goes on without it, with the same bits, and no
 * session loses a token. A unit that fails without being lost is an error that changes nothing.
 * With no unit left runs end in an error, and sessions keep what they hold.
 */
#include "device_test.h"

#include <unistd.h>

enum { N_TOKENS = 60 };

static char folder[] = "/tmp/fm_loss_XXXXXX";
static char model[64];
static int32_t ids[N_TOKENS];

/* ---- a host team that can be lost ---- */

static fm__device_vtable fragile;
static fm_status (*real_submit)(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                                const fm__run *run, uint64_t base, fm_error *error);
static int64_t submits_left; /* below 0: for ever */
static uint64_t submits;
static bool stays_lost; /* it is lost from then on, or only that submit fails */
static fm__device *lost_device;

static fm_status fragile_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                                const fm__run *run, uint64_t base, fm_error *error) {
    if (lost_device == device || submits_left == 0) {
        submits_left = -1;
        lost_device = stays_lost ? device : NULL;
        return fm__error(error, FM_ERROR_DEVICE, device->properties.name, "broke");
    }
    submits_left -= submits_left > 0;
    submits++;
    return real_submit(device, segments, n_segment, run, base, error);
}

static bool fragile_is_lost(fm__device *device) {
    return lost_device == device;
}

static void make_fragile(fm__device *device) {
    fragile = *device->vtable;
    real_submit = fragile.submit;
    fragile.submit = fragile_submit;
    fragile.is_lost = fragile_is_lost;
    device->vtable = &fragile;
    submits_left = -1;
    submits = 0;
    stays_lost = true;
    lost_device = NULL;
}

static fm_machine *fragile_machine(void) {
    fm_machine *machine = test_discrete_machine(UINT64_C(1) << 30);
    make_fragile(machine->devices[0]);
    return machine;
}

/* ---- helpers ---- */

static fm_engine *load(fm_machine *machine, const char *path, double split) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.numeric_class = FM_CLASS_EXACT;
    o.context_length = 128;
    o.cache_tokens = 640;
    o.chunk_rows = 16;
    o.split = split;
    o.no_gate = 1;
    CHECK_OK(fm_engine_load(&engine, machine, path, &o, &error));
    return engine;
}

static float *reference(const char *path, size_t *n_vocab) {
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_HOST, &error);
    fm_engine *engine = load(machine, path, -1);
    *n_vocab = fm_engine_vocab_size(engine);
    float *logits = test_all_logits(engine, ids, N_TOKENS);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return logits;
}

static fm_session *new_session(fm_engine *engine, uint32_t n) {
    fm_error error = {0};
    fm_session *session = NULL;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    if (n > 0)
        CHECK_OK(fm_session_prefill(session, ids, n, NULL, &error));
    return session;
}

/* ---- tests ---- */

/* The unit is lost at each of the first submits of a generation, in every arm that uses it. */
static void at_each_submit(void **state) {
    (void)state;
    fm_error error = {0};
    size_t n_vocab;
    float *want = reference(model, &n_vocab);
    for (int64_t at = 0; at < 18; at++) {
        fm_machine *machine = fragile_machine();
        fm_engine *engine = load(machine, model, at % 3 == 0 ? 0.5 : -1);
        if (at % 3 == 2)
            CHECK_OK(fm_engine_set_arm(engine, FM_ARM_EAGER, &error));
        fm_session *a = new_session(engine, 20), *b = new_session(engine, 33), *c = NULL;
        CHECK_OK(fm_session_fork(&c, b, &error));
        const float *logits;
        submits_left = at;
        for (uint32_t i = 0; i < 10; i++) {
            CHECK_OK(fm_session_decode(a, ids[20 + i], &logits, &error));
            test_same_bits(want + (20 + i) * n_vocab, logits, n_vocab, "the session that ran");
            CHECK_OK(fm_session_decode(b, ids[33 + i], &logits, &error));
            test_same_bits(want + (33 + i) * n_vocab, logits, n_vocab, "another session");
            if (i == 8) {
                CHECK_OK(fm_session_decode(c, ids[33], &logits, &error));
                test_same_bits(want + 33 * n_vocab, logits, n_vocab, "a fork");
            }
        }
        assert_ptr_equal(lost_device, machine->devices[0]);
        assert_int_equal(engine->epoch, 1);
        assert_int_equal(engine->arms, 1u << FM_ARM_CPU);
        fm_placement p;
        assert_true(fm_engine_placement_count(engine) > 0);
        CHECK_OK(fm_engine_placement(engine, 3, &p, &error));
        assert_string_equal(p.device, "host");
        fm_session_destroy(&a);
        fm_session_destroy(&b);
        fm_session_destroy(&c);
        assert_int_equal(engine->pools[0].n_free, engine->pools[0].n_page);
        fm_engine_destroy(&engine);
        test_no_engine(machine);
        fm_machine_destroy(&machine);
    }
    free(want);
}

/* A batch of several sessions, one of them new, and a prompt of several chunks. */
static void in_a_batch(void **state) {
    (void)state;
    fm_error error = {0};
    size_t n_vocab;
    float *want = reference(model, &n_vocab);
    fm_machine *machine = fragile_machine();
    fm_engine *engine = load(machine, model, 0.4);
    fm_session *a = new_session(engine, 7), *b = new_session(engine, 0);
    fm_batch *batch = NULL;
    uint32_t rows[2];
    CHECK_OK(fm_batch_create(&batch, engine, 64, 64, &error));
    CHECK_OK(fm_batch_add(batch, a, ids[7], FM_OUTPUT_LOGITS, &rows[0], &error));
    for (int i = 0; i < 45; i++)
        CHECK_OK(fm_batch_add(batch, b, ids[i], i == 44 ? FM_OUTPUT_LOGITS : FM_OUTPUT_NONE,
                              &rows[1], &error));
    submits_left = 2; /* two chunks have run */
    CHECK_OK(fm_engine_run(engine, batch, &error));
    assert_ptr_equal(lost_device, machine->devices[0]);
    test_same_bits(want + 7 * n_vocab, fm_batch_output(batch, rows[0]), n_vocab, "first of two");
    test_same_bits(want + 44 * n_vocab, fm_batch_output(batch, rows[1]), n_vocab, "second of two");
    fm_batch_destroy(&batch);
    fm_session_destroy(&a);
    fm_session_destroy(&b);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    free(want);
}

/* A sliding window has left pages behind: they are borrowed to compute the rest again, in chunks
   shorter and longer than the window. `others`: pages that other sessions hold meanwhile. */
static void lose_behind_a_window(uint32_t chunk_rows, uint32_t others) {
    enum { MOST_OTHERS = 4, LAST = 4 };
    fm_error error = {0};
    char path[64];
    snprintf(path, sizeof(path), "golden/mistral-swa");
    fm_machine *machine = fragile_machine(), *plain = test_units_machine(TEST_HOST, &error);
    fm_engine *engine = NULL, *host = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.numeric_class = FM_CLASS_EXACT;
    o.chunk_rows = chunk_rows;
    o.no_gate = 1;
    CHECK_OK(fm_engine_load(&engine, machine, path, &o, &error));
    CHECK_OK(fm_engine_load(&host, plain, path, &o, &error));
    assert_true(engine->model->hparams.window > 0);
    uint32_t n_vocab = fm_engine_vocab_size(engine), n = engine->context_length - 8;
    int32_t *prompt = malloc(n * sizeof(int32_t));
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)(i * 7 % n_vocab);
    fm_session *a = NULL, *b = NULL, *other[MOST_OTHERS] = {NULL};
    const float *want, *got;
    CHECK_OK(fm_session_create(&a, engine, NULL, &error));
    CHECK_OK(fm_session_create(&b, host, NULL, &error));
    CHECK_OK(fm_session_prefill(a, prompt, n - LAST, NULL, &error));
    CHECK_OK(fm_session_prefill(b, prompt, n - LAST, NULL, &error));
    assert_true(a->dropped[0] > 2);
    for (uint32_t i = 0; i < others; i++) {
        other[i] = new_session(engine, 0);
        CHECK_OK(fm_session_prefill(other[i], prompt, 10, NULL, &error));
    }
    assert_int_equal(engine->pools[0].n_free, a->dropped[0] - others);
    submits_left = 0;
    for (uint32_t i = n - LAST; i < n; i++) {
        CHECK_OK(fm_session_decode(a, prompt[i], &got, &error));
        CHECK_OK(fm_session_decode(b, prompt[i], &want, &error));
        test_same_bits(want, got, n_vocab, "behind a window");
    }
    assert_ptr_equal(lost_device, machine->devices[0]);
    for (uint32_t p = 0; p < a->dropped[0]; p++)
        assert_true(a->pages[0][p] == FM__NO_PAGE);
    free(prompt);
    for (uint32_t i = 0; i < others; i++)
        fm_session_destroy(&other[i]);
    fm_session_destroy(&a);
    fm_session_destroy(&b);
    assert_int_equal(engine->pools[0].n_free, engine->pools[0].n_page);
    fm_engine_destroy(&engine);
    fm_engine_destroy(&host);
    fm_machine_destroy(&machine);
    fm_machine_destroy(&plain);
}

static void behind_a_window(void **state) {
    (void)state;
    static const uint32_t chunks[] = {16, 64, 128, 512};
    for (int i = 0; i < 4; i++)
        lose_behind_a_window(chunks[i], 0);
}

/* Two pages are free: a long chunk would take more. */
static void behind_a_window_in_a_full_pool(void **state) {
    (void)state;
    lose_behind_a_window(512, 4);
    lose_behind_a_window(64, 4);
}

/* The lost unit's copies go, and nobody else's ranges, also where an earlier loss has given the
   units other numbers than the ranges have. */
static void copies_of_a_renumbered_unit(void **state) {
    (void)state;
    fm_machine *machine = fragile_machine();
    fm_engine *engine = load(machine, model, -1);
    fm__device *first = engine->units[0];
    assert_ptr_equal(engine->gpu, first);
    engine->units[0] = engine->units[1];
    engine->units[1] = first;
    uint32_t of_gpu = 0;
    for (uint32_t i = 0; i < engine->model->n_weight; i++)
        of_gpu += engine->model->weights[i]->n_ranges > 1;
    assert_true(of_gpu > 0);
    fm__weights_drop_copies(engine);
    for (uint32_t i = 0; i < engine->model->n_weight; i++) {
        const fm__weight *w = engine->model->weights[i];
        assert_int_equal(w->n_ranges, 1);
        assert_null(w->ranges[0].buffer);
    }
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* What is saved after a loss was computed again; what is restored is there as it is. */
static void snapshots(void **state) {
    (void)state;
    fm_error error = {0};
    char path[80];
    size_t n_vocab;
    float *want = reference(model, &n_vocab);
    const float *logits;
    fm_machine *machine = fragile_machine();
    fm_engine *engine = load(machine, model, -1);
    fm_session *a = new_session(engine, 30), *b = new_session(engine, 12), *c = NULL;
    snprintf(path, sizeof(path), "%s/snap", folder);
    submits_left = 0;
    CHECK_OK(fm_session_decode(b, ids[12], &logits, &error));
    assert_int_equal(a->epoch, 0); /* nothing has touched it since */
    CHECK_OK(fm_session_save(a, path, &error));
    assert_int_equal(a->epoch, 1);
    CHECK_OK(fm_session_create(&c, engine, NULL, &error));
    CHECK_OK(fm_session_restore(c, path, &error));
    CHECK_OK(fm_session_decode(c, ids[30], &logits, &error));
    test_same_bits(want + 30 * n_vocab, logits, n_vocab, "restored after a loss");
    fm_session_destroy(&a);
    fm_session_destroy(&b);
    fm_session_destroy(&c);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    unlink(path);
    free(want);
}

/* Only one submit fails: an error, nothing changes, and the unit stays. */
static void fails_once(void **state) {
    (void)state;
    fm_error error = {0};
    size_t n_vocab;
    float *want = reference(model, &n_vocab);
    const float *logits;
    fm_machine *machine = fragile_machine();
    fm_engine *engine = load(machine, model, -1);
    fm_session *a = new_session(engine, 30);
    stays_lost = false;
    submits_left = 0;
    assert_int_equal(fm_session_decode(a, ids[30], &logits, &error), FM_ERROR_DEVICE);
    assert_int_equal(fm_session_length(a), 30);
    assert_int_equal(engine->epoch, 0);
    CHECK_OK(fm_session_decode(a, ids[30], &logits, &error));
    test_same_bits(want + 30 * n_vocab, logits, n_vocab, "after a failure");
    fm_session_destroy(&a);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    free(want);
}

/* No unit is left, or no memory to go on with: errors, again and again, and sessions are whole. */
static void nothing_left(void **state) {
    (void)state;
    fm_error error = {0};
    const float *logits;
    fm__device *device = NULL;
    fm_machine *machine = NULL;
    fm__host_options host = {.threads = 1};
    CHECK_OK(fm__device_host_create(&device, &host, &error));
    make_fragile(device);
    CHECK_OK(fm__machine_adopt(&machine, &device, 1, UINT64_C(1) << 30, &error));
    fm_engine *engine = load(machine, model, -1);
    fm_session *a = new_session(engine, 30);
    submits_left = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fm_session_decode(a, ids[30], &logits, &error), FM_ERROR_DEVICE);
        assert_non_null(strstr(error.message, "every unit was lost"));
        assert_int_equal(fm_session_length(a), 30);
        assert_memory_equal(fm_session_tokens(a), ids, 30 * sizeof(int32_t));
    }
    assert_int_equal(fm_engine_placement_count(engine) > 0, 1);
    char *text;
    assert_int_equal(fm_engine_explain(engine, 1, FM_ARM_AUTO, 0, &text, &error), FM_ERROR_DEVICE);
    assert_int_equal(fm_session_save(a, "/tmp/fm_loss_nothing", &error), FM_ERROR_DEVICE);
    fm_session_destroy(&a);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

static void no_memory_left(void **state) {
    (void)state;
    fm_error error = {0};
    size_t n_vocab;
    float *want = reference(model, &n_vocab);
    const float *logits;
    fm_machine *machine = fragile_machine();
    fm_engine *engine = load(machine, model, -1);
    fm_session *a = new_session(engine, 30);
    uint64_t budget = machine->memory_budget;
    machine->memory_budget = fm_machine_memory_used(machine) + 1000;
    submits_left = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fm_session_decode(a, ids[30], &logits, &error), FM_ERROR_MEMORY);
        assert_int_equal(fm_session_length(a), 30);
    }
    machine->memory_budget = budget; /* some came free */
    CHECK_OK(fm_session_decode(a, ids[30], &logits, &error));
    test_same_bits(want + 30 * n_vocab, logits, n_vocab, "once there is memory again");
    fm_session_destroy(&a);
    fm_engine_destroy(&engine);
    test_no_engine(machine);
    fm_machine_destroy(&machine);
    free(want);
}

/* ---- Vulkan ---- */

static fm_status load_vulkan(uint64_t lose_at, bool discrete, bool count, fm_machine **machine,
                             fm_engine **engine) {
    fm_error error = {0};
    fm__device *devices[2] = {NULL, NULL};
    fm__vulkan_options vulkan = {
        .allow_software = true, .force_discrete = discrete, .lose_at = lose_at};
    fm__host_options host = {.threads = 1};
    CHECK_OK(fm__device_vulkan_create(&devices[0], &vulkan, &error));
    CHECK_OK(fm__device_host_create(&devices[1], &host, &error));
    CHECK_OK(fm__machine_adopt(machine, devices, 2, UINT64_C(1) << 30, &error));
    if (count)
        make_fragile(devices[0]);
    fm_engine_options o = fm_engine_options_default();
    o.context_length = 128;
    o.cache_tokens = 512;
    o.chunk_rows = 16;
    o.split = discrete ? 0.5 : 0.25;
    return fm_engine_load(engine, *machine, model, &o, &error);
}

/* Submits that loading takes. */
static uint64_t submits_of_load(bool discrete) {
    fm_machine *machine = NULL;
    fm_engine *engine = NULL;
    assert_int_equal(load_vulkan(0, discrete, true, &machine, &engine), FM_OK);
    uint64_t n = submits;
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return n;
}

/* The device is lost in the i-th submit after the load. */
static void lose_vulkan(uint64_t at, bool discrete, const float *want, size_t n_vocab) {
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm_engine *engine = NULL;
    const float *logits;
    assert_int_equal(load_vulkan(at, discrete, false, &machine, &engine), FM_OK);
    assert_false(fm__device_is_lost(machine->devices[0]));
    fm_session *a = new_session(engine, 20);
    for (uint32_t i = 20; i < 40; i++) {
        CHECK_OK(fm_session_decode(a, ids[i], &logits, &error));
        test_same_bits(want + i * n_vocab, logits, n_vocab, "around a loss");
    }
    assert_true(fm__device_is_lost(machine->devices[0]));
    assert_int_equal(engine->epoch, 1);
    fm_session_destroy(&a);
    fm_engine_destroy(&engine);
    test_no_engine(machine);
    fm_machine_destroy(&machine);
}

static void of_vulkan(void **state) {
    (void)state;
    size_t n_vocab;
    if (fm__device_vulkan_count(true) == 0) {
        print_message("not tried: no Vulkan device\n");
        return;
    }
    float *want = reference(model, &n_vocab);
    for (int discrete = 0; discrete < 2; discrete++) {
        uint64_t loading = submits_of_load(discrete);
        lose_vulkan(loading + 1, discrete, want, n_vocab);
        lose_vulkan(loading + 8, discrete, want, n_vocab);
        /* While it loads it is an error. */
        fm_machine *machine = NULL;
        fm_engine *engine = NULL;
        assert_int_equal(load_vulkan(2, discrete, false, &machine, &engine), FM_ERROR_DEVICE);
        test_no_engine(machine);
        fm_machine_destroy(&machine);
    }
    free(want);
}

static int make_model(void **state) {
    (void)state;
    fm_error error = {0};
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (i * 131 + 17) % 509;
    if (!mkdtemp(folder))
        return 1;
    snprintf(model, sizeof(model), "%s/tiny.gguf", folder);
    return fm_lab_synth(model, "tiny", "q4_k_m", 1, NULL, NULL, &error) == FM_OK ? 0 : 1;
}

static int remove_model(void **state) {
    (void)state;
    unlink(model);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_each_submit),
        cmocka_unit_test(in_a_batch),
        cmocka_unit_test(behind_a_window),
        cmocka_unit_test(behind_a_window_in_a_full_pool),
        cmocka_unit_test(copies_of_a_renumbered_unit),
        cmocka_unit_test(snapshots),
        cmocka_unit_test(fails_once),
        cmocka_unit_test(nothing_left),
        cmocka_unit_test(no_memory_left),
        cmocka_unit_test(of_vulkan),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
