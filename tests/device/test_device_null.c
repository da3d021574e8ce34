/* SPDX-License-Identifier: Apache-2.0 */
/* The null device: memory limit, refused ops, failing submits, signals without work. */
#include "fixture.h"

static fm__device *make_null(const fm__null_options *options) {
    fm__device *device = NULL;
    CHECK(fm__device_null_create(&device, options, why));
    assert_string_equal(device->vtable->backend, "null");
    return device;
}

static void memory_is_limited(void **state) {
    (void)state;
    fm__device *device = make_null(&(fm__null_options){.memory_bytes = 1000});
    fm__buffer *a = NULL, *b = NULL;
    fm_error error = {0};
    assert_int_equal(device->properties.memory_bytes, 1000);
    assert_int_equal(fm__device_buffer_create(device, 1001, FM__MEMORY_LOCAL, &a, &error),
                     FM_ERROR_MEMORY);
    CHECK(fm__device_buffer_create(device, 600, FM__MEMORY_LOCAL, &a, why));
    assert_int_equal(fm__device_buffer_create(device, 401, FM__MEMORY_LOCAL, &b, &error),
                     FM_ERROR_MEMORY);
    assert_null(b);
    uint8_t mine[4096]; /* the caller's memory does not count */
    CHECK(fm__device_buffer_import(device, mine, sizeof mine, &b, why));
    assert_ptr_equal(fm__device_buffer_map(b), mine);
    fm__device_buffer_destroy(&b);
    fm__device_buffer_destroy(&a);
    CHECK(fm__device_buffer_create(device, 1000, FM__MEMORY_LOCAL, &b, why));
    memset(fm__device_buffer_map(b), 1, 1000);
    fm__device_buffer_destroy(&b);
    fm__device_destroy(&device);
}

static void an_op_can_be_refused(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *device = make_null(&(fm__null_options){.refuse_op = "attention"});
    int refused = 0;
    for (uint32_t i = 0; i < m.tape->n_op; i++) {
        const char *reason = NULL;
        bool supports = fm__device_op_supports(device, m.tape, &m.tape->ops[i], &reason);
        assert_true(supports == (m.tape->ops[i].kind != FM__OP_ATTENTION));
        if (supports)
            continue;
        assert_non_null(reason);
        const fm__op_range range = {.op = i, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0};
        fm__recording *recording = NULL;
        fm_error error = {0};
        assert_int_equal(fm__device_record(device, m.tape, &range, 1, &recording, &error),
                         FM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.message, "refused"));
        refused++;
    }
    assert_int_equal(refused, MODEL_LAYERS);
    fm__device_destroy(&device);
    model_finish(&m);
}

static void submits_signal_and_fail_as_asked(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fixture_batch(&m.f, 2, 0, MODEL_VOCAB, 1);
    fm__device *device =
        make_null(&(fm__null_options){.memory_bytes = 1 << 24, .fail_submit_at = 3});
    fm__run run;
    fm__run_status status;
    run_init(&run, &status, &m.f, m.tape, device);
    fm__recording *recording = NULL;
    const fm__op_range range = {.op = 0, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0};
    CHECK(fm__device_record(device, m.tape, &range, 1, &recording, why));
    fm__span span = fm__device_recording_span(recording);
    assert_true(span.begin_ns == 0 && span.end_ns == 0);
    fm__timeline never, done;
    fm__timeline_init(&never);
    fm__timeline_init(&done);
    const fm__segment segments[] = {{recording, &never, 7, &done, 1},
                                    {recording, NULL, 0, &done, 2}};
    for (uint64_t i = 1; i <= 4; i++) {
        fm_error error = {0};
        uint64_t before = fm__timeline_value(&done);
        fm_status got = fm__device_submit(device, segments, 2, &run, i * 10, &error);
        assert_int_equal(got, i == 3 ? FM_ERROR_DEVICE : FM_OK);
        assert_int_equal(fm__timeline_value(&done), i == 3 ? before : i * 10 + 2);
    }
    fm__device_recording_destroy(&recording);
    run_finish(&run);
    fm__device_destroy(&device);
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(an_op_can_be_refused),
        cmocka_unit_test(submits_signal_and_fail_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
