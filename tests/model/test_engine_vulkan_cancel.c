/* SPDX-License-Identifier: Apache-2.0 */
/* A load can be ended in what a GPU takes behind the packing: nothing of it stays, and the next one
   is like any other. A run that is cancelled says so, whatever the GPU made of its rows. */
#include "device_test.h"

#include <time.h>
#include <unistd.h>

enum { FAILING = 200 };

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

/* ---- runs ---- */

static struct {
    fm__device_vtable vtable;
    const fm__device_vtable *real;
    fm_engine *engine; /* to be cancelled at the next submission but `after`; NULL: none */
    int after;
} cancelling;

static fm_status submit_cancelled(fm__device *device, const fm__segment *segments,
                                  uint32_t n_segment, const fm__run *run, uint64_t base,
                                  fm_error *error) {
    if (cancelling.engine && cancelling.after-- == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* the host looks up embeddings */
        fm_engine_cancel(cancelling.engine);
    }
    return cancelling.real->submit(device, segments, n_segment, run, base, error);
}

/* A GPU does all of what was submitted, and so finds a row that fails. */
static void a_cancelled_run_is_no_numeric_failure(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_VULKAN, &error);
    assert_non_null(machine);
    fm_engine_options o = fm_engine_options_default();
    o.chunk_rows = 2;
    o.context_length = 16;
    o.arm = FM_ARM_GPU;
    fm_engine *engine = NULL;
    fm_session *session = NULL;
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    fm__device *gpu = machine->devices[0];
    cancelling.real = gpu->vtable;
    cancelling.vtable = *gpu->vtable;
    cancelling.vtable.submit = submit_cancelled;
    gpu->vtable = &cancelling.vtable;
    const int32_t ids[] = {1, 2, 3, FAILING};
    assert_int_equal(fm_session_prefill(session, ids, 4, NULL, &error), FM_ERROR_NUMERIC);
    cancelling.engine = engine;
    cancelling.after = 1; /* the second chunk */
    assert_int_equal(fm_session_prefill(session, ids, 4, NULL, &error), FM_ERROR_CANCELLED);
    assert_true(cancelling.after < 0);
    cancelling.engine = NULL;
    CHECK_OK(fm_session_truncate(session, 0, &error));
    CHECK_OK(fm_session_prefill(session, ids, 3, NULL, &error));
    gpu->vtable = cancelling.real;
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* The tiny model, in which token FAILING has an embedding that is not finite (the scale of its
   first block). */
static int make_model(void **state) {
    fm_error error = {0};
    fm__checkpoint *c = NULL;
    const uint16_t infinite = 0x7C00;
    (void)state;
    if (test_make_tiny(model) != 0 || fm__checkpoint_open(&c, model, &error) != FM_OK)
        return -1;
    const fm__tensor_info *embed = fm__checkpoint_find(c, "token_embd.weight");
    long at = (long)(embed->file_offset + FAILING * (embed->dims[0] / 32 * 34));
    fm__checkpoint_close(&c);
    FILE *file = fopen(model, "r+b");
    bool good = file && fseek(file, at, SEEK_SET) == 0 && fwrite(&infinite, 2, 1, file) == 1;
    return file && fclose(file) == 0 && good ? 0 : -1;
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
                                       cmocka_unit_test(in_trials),
                                       cmocka_unit_test(a_cancelled_run_is_no_numeric_failure)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
