/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: equal bits for every team, rung, split and number of units; decode after prefill; runs in
 * flight; failures that name the op and the token; no allocation while submitting.
 */
#include <math.h>

#include "exec_support.h"

static void teams_and_rungs_give_equal_bits(void **state) {
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 5};
    for (const char *const *rung = fm__kernels_rungs(); *rung != NULL; rung++)
        for (size_t t = 0; t < 4; t++) {
            session s = {.units = {make_host(threads[t], *rung)}, .n_unit = 1};
            check_conversation(&s, NULL, t % 2 == 0 ? FM__Q4_K : FM__F16);
        }
}

static void two_units_give_the_bits_of_one(void **state) {
    (void)state;
    for (int share = 0; share <= 8; share++)
        for (int axis = 0; axis < 2; axis++) {
            session s = {.units = {make_host(1, NULL), make_host(1, "ref")}, .n_unit = 2};
            const fm__plan_options options = {.shares = {8 - share, share},
                                              .axis = axis ? FM__AXIS_TOKENS : FM__AXIS_CHANNELS};
            check_conversation(&s, &options, FM__Q4_K);
        }
}

static void three_units_give_the_bits_of_one(void **state) {
    (void)state;
    session s = {.units = {make_host(1, NULL), make_host(2, NULL), make_host(1, "ref")},
                 .n_unit = 3};
    check_conversation(&s, &(fm__plan_options){.shares = {2, 1, 1}}, FM__Q8_0);
}

/* Ops that only the second unit supports run there, and the first waits for them. */
static void a_whole_op_can_live_elsewhere(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 9, 0, MODEL_VOCAB, 2);
    session s = {.units = {make_host(2, NULL), make_host(1, NULL)}, .n_unit = 2};
    CHECK(fm__plan_make(&s.plan, m.tape, s.units, 2, NULL, why));
    for (uint32_t i = 0; i < s.plan->n_op; i++)
        s.plan->ops[i].ranges[0].unit = (uint8_t)(i / 3 % 2); /* three ops here, three there */
    CHECK(fm__exec_create(&s.exec, m.tape, s.plan, s.units, 2, why));
    run_init(&s.run, &s.status, &m.f, m.tape, s.units[0]);
    interpreter in;
    interpreter_init(&in, &m.f, m.tape);
    interpreter_run(&in, m.tape, &m.f.batch);
    for (int round = 0; round < 50; round++) {
        memset(fm__device_buffer_map(s.run.buffers[FM__SLOT_OUTPUT]), 0, m.tape->output_bytes);
        run_once(&s);
        interpreter_compare(&in, m.tape, m.tape->logits, 2, &s.run);
    }
    interpreter_finish(&in);
    session_finish(&s);
    model_finish(&m);
}

/* ---- in flight ---- */

enum { FLIGHTS = 24 };

static void runs_in_flight(uint32_t n_unit) {
    model m;
    model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
    fixture_batch(&m.f, 5, 0, MODEL_VOCAB, 2);
    session s = {.units = {make_host(2, NULL), n_unit > 1 ? make_host(1, NULL) : NULL},
                 .n_unit = n_unit};
    session_init(&s, &m, &(fm__plan_options){.shares = {1, n_unit > 1}});
    interpreter in;
    interpreter_init(&in, &m.f, m.tape);
    interpreter_run(&in, m.tape, &m.f.batch);
    fm__run runs[FLIGHTS];
    static fm__run_status status[FLIGHTS];
    uint64_t points[FLIGHTS];
    for (int i = 0; i < FLIGHTS; i++) {
        runs[i] = s.run; /* one scratch: the units keep runs apart; outputs of their own */
        runs[i].status = &status[i];
        CHECK(fm__device_buffer_create(s.units[0], m.tape->output_bytes, FM__MEMORY_LOCAL,
                                       &runs[i].buffers[FM__SLOT_OUTPUT], why));
    }
    uint64_t allocations = fm__alloc_count();
    for (int i = 0; i < FLIGHTS; i++) {
        assert_int_equal(fm__exec_submit(s.exec, &runs[i], &points[i], NULL), FM_OK);
        assert_true(i == 0 || points[i] - points[i - 1] == points[0]);
    }
    for (int i = FLIGHTS - 1; i >= 0; i--)
        assert_int_equal(fm__exec_wait(s.exec, points[i], &runs[i], NULL), FM_OK);
    assert_int_equal(fm__alloc_count(), allocations);
    for (int i = 0; i < FLIGHTS; i++) {
        interpreter_compare(&in, m.tape, m.tape->logits, 2, &runs[i]);
        fm__device_buffer_destroy(&runs[i].buffers[FM__SLOT_OUTPUT]);
    }
    interpreter_finish(&in);
    session_finish(&s);
    model_finish(&m);
}

static void many_runs_on_one_unit(void **state) {
    (void)state;
    runs_in_flight(1);
}

static void many_runs_on_two_units(void **state) {
    (void)state;
    runs_in_flight(2);
}

/* ---- failures ---- */

static void a_failure_names_op_and_token(void **state) {
    (void)state;
    for (uint32_t n_unit = 1; n_unit <= 2; n_unit++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
        uint16_t scale = failing_batch(&m);
        session s = {.units = {make_host(2, NULL), n_unit > 1 ? make_host(1, NULL) : NULL},
                     .n_unit = n_unit};
        session_init(&s, &m, &(fm__plan_options){.shares = {1, n_unit > 1}});
        run_fails(&s);
        set_scale(&m, scale);
        run_once(&s); /* the status is cleared and the units live on */
        session_finish(&s);
        model_finish(&m);
    }
}

/* Where an op runs over the rows that want output, the batch's row is named. */
static void a_failing_output_row_is_named(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 9, 20, MODEL_VOCAB, 2);
    float *norm = (float *)(uintptr_t)m.f.weights[m.output_norm]->host;
    norm[100] = NAN;
    session s = {.units = {make_host(2, NULL)}, .n_unit = 1};
    session_init(&s, &m, NULL);
    fm_error error = {0};
    assert_int_equal(run_try(&s, &error), FM_ERROR_NUMERIC);
    assert_string_equal(error.place, "quantise hidden");
    assert_non_null(strstr(error.message, "row 7 (token "));
    session_finish(&s);
    model_finish(&m);
}

static void a_refusing_unit_ends_the_run(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
    session s = {.units = {make_host(2, NULL)}, .n_unit = 2};
    CHECK(fm__device_null_create(
        &s.units[1], &(fm__null_options){.memory_bytes = 1 << 20, .fail_submit_at = 2}, why));
    session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}});
    uint64_t point = 0;
    fm_error error = {0};
    for (int i = 1; i <= 3; i++) {
        fm_status status = fm__exec_submit(s.exec, &s.run, &point, &error);
        assert_int_equal(status, i == 2 ? FM_ERROR_DEVICE : FM_OK);
        if (i == 2)
            assert_string_equal(error.place, "null");
        else /* half of it is never computed, so its numbers may be any, but it ends */
            fm__exec_wait(s.exec, point, &s.run, NULL);
    }
    session_finish(&s);
    model_finish(&m);
}

static void a_refusing_main_unit_starts_nothing(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
    session s = {.units = {NULL, make_host(1, NULL)}, .n_unit = 2};
    CHECK(fm__device_null_create(
        &s.units[0], &(fm__null_options){.memory_bytes = 1 << 24, .fail_submit_at = 1}, why));
    session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}});
    uint64_t point = 0;
    fm_error error = {0};
    assert_int_equal(fm__exec_submit(s.exec, &s.run, &point, &error), FM_ERROR_DEVICE);
    session_finish(&s);
    model_finish(&m);
}

static void bad_batches_are_refused_before_they_start(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 2);
    fixture_batch(&m.f, 5, 0, MODEL_VOCAB, 2);
    session s = {.units = {make_host(1, NULL)}, .n_unit = 1};
    session_init(&s, &m, NULL);
    uint64_t point = 99;
    fm_error error = {0};
    assert_int_equal(fm__exec_submit(s.exec, &s.run, &point, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(point, 99);
    fixture_batch(&m.f, 4, 0, MODEL_VOCAB, 2);
    run_once(&s);
    session_finish(&s);
    model_finish(&m);
}

static void bad_plans_are_refused(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 2);
    fm__device *units[2] = {make_host(1, NULL), make_host(1, NULL)};
    fm__plan *plan = NULL;
    fm__exec *exec = NULL;
    fm_error error = {0};
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &(fm__plan_options){.shares = {1, 1}}, why));
    assert_int_equal(fm__exec_create(&exec, m.tape, plan, units, 1, &error), FM_ERROR_ARGUMENT);
    fm__plan_copy astray = {.op = 0, .unit = 1, .copy = FM__COPY_TO_HOST, .tensor = 0};
    plan->copies = &astray;
    plan->n_copy = 1;
    assert_int_equal(fm__exec_create(&exec, m.tape, plan, units, 2, &error), FM_ERROR_ARGUMENT);
    plan->copies = NULL;
    plan->n_copy = 0;
    plan->ops[3].n_range = 0;
    assert_int_equal(fm__exec_create(&exec, m.tape, plan, units, 2, &error), FM_ERROR_ARGUMENT);
    fm__plan_destroy(&plan);
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &(fm__plan_options){.shares = {1, 1}}, why));
    int failures = 0;
    for (uint64_t n = 1; n < 1000; n++) {
        fm__alloc_fail_after(n);
        fm_status status = fm__exec_create(&exec, m.tape, plan, units, 2, &error);
        fm__alloc_fail_after(0);
        if (status == FM_OK)
            break;
        assert_null(exec);
        failures++;
    }
    assert_true(failures > 10);
    fm__exec_destroy(&exec);
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(teams_and_rungs_give_equal_bits),
        cmocka_unit_test(two_units_give_the_bits_of_one),
        cmocka_unit_test(three_units_give_the_bits_of_one),
        cmocka_unit_test(a_whole_op_can_live_elsewhere),
        cmocka_unit_test(many_runs_on_one_unit),
        cmocka_unit_test(many_runs_on_two_units),
        cmocka_unit_test(a_failure_names_op_and_token),
        cmocka_unit_test(a_failing_output_row_is_named),
        cmocka_unit_test(a_refusing_unit_ends_the_run),
        cmocka_unit_test(a_refusing_main_unit_starts_nothing),
        cmocka_unit_test(bad_batches_are_refused_before_they_start),
        cmocka_unit_test(bad_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
