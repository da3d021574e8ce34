/* SPDX-License-Identifier: Apache-2.0 */
/* A load can be ended in what a GPU takes behind the packing: nothing of it stays, and the next one
   is like any other. */
#include "device_test.h"

#include <unistd.h>

static char model[] = "/tmp/fm_cancel_XXXXXX";

/* Ends a load at the call of that number of a phase. */
typedef struct stop {
    const char *phase;
    int at, calls;
    uint64_t last, total;
} stop;

static int ask(void *user, const char *phase, uint64_t done, uint64_t total) {
    stop *s = user;
    if (strcmp(phase, s->phase) != 0)
        return 0;
    assert_true(done <= total && (s->calls == 0 || total == s->total) && done >= s->last);
    s->last = done;
    s->total = total;
    return ++s->calls == s->at;
}

static fm_status load(fm_machine *machine, stop *s, fm_engine **engine, fm_error *error) {
    fm_engine_options o = fm_engine_options_default();
    o.chunk_rows = 64;
    o.context_length = 128;
    o.progress = ask;
    o.progress_user = s;
    return fm_engine_load(engine, machine, model, &o, error);
}

static void ended_at(const char *phase, bool software) {
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_VULKAN, &error);
    assert_non_null(machine);
    machine->devices[0]->properties.software = software;
    for (int at = 1; at <= 3; at++) {
        fm_engine *engine = NULL;
        stop s = {.phase = phase, .at = at};
        assert_int_equal(load(machine, &s, &engine, &error), FM_ERROR_CANCELLED);
        assert_int_equal(s.calls, at);
        assert_null(engine);
        test_no_engine(machine);
    }
    fm_engine *engine = NULL;
    stop never = {.phase = phase};
    CHECK_OK(load(machine, &never, &engine, &error));
    assert_true(never.calls >= 3);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

static void in_tests_of_kernels(void **state) {
    (void)state;
    ended_at("testing kernels", true);
}

/* As if the GPU were one: what the processor emulates is not tried. */
static void in_trials(void **state) {
    fm__pressure_state pressure = {0};
    (void)state;
    if (fm__memory_pressure(&pressure, NULL)) {
        puts("skip: memory is short, so nothing is tried");
        skip();
    }
    ended_at("trying units together", false);
}

static int make_model(void **state) {
    (void)state;
    return test_make_tiny(model);
}

static int remove_model(void **state) {
    (void)state;
    return unlink(model);
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        puts("skip: no Vulkan device, not even one that the processor emulates");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_tests_of_kernels),
                                       cmocka_unit_test(in_trials)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
