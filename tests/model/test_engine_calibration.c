/* SPDX-License-Identifier: Apache-2.0 */
/* A calibration that is stopped leaves shares and predictions as they were. */
#include "device_test.h"

#include <unistd.h>

static char model[] = "/tmp/fm_calibration_XXXXXX";

static uint32_t stop_behind;

static int stop_later(void *user, const fm_lab_point *point) {
    (void)user;
    return point->done > stop_behind;
}

static void stopped(fm_engine *engine, uint32_t behind) {
    fm_error error = {0};
    fm_lab_calibration found;
    stop_behind = behind;
    assert_int_equal(fm_lab_calibrate(engine, stop_later, NULL, &found, &error),
                     FM_ERROR_CANCELLED);
    assert_int_equal(found.n_curve, 0);
}

static void nothing_is_mixed(void **state) {
    (void)state;
    fm_error error = {0};
    char folder[] = "/tmp/fm_calibration_XXXXXX";
    assert_non_null(mkdtemp(folder));
    fm_machine *machine = test_discrete_machine(UINT64_C(2) << 30);
    machine->cache_dir = fm__alloc(sizeof folder);
    memcpy(machine->cache_dir, folder, sizeof folder);
    fm_engine *engine = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.context_length = 64;
    o.chunk_rows = 64;
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    assert_true(engine->n_bucket >= 2 && !engine->calibrated);
    /* Shares as they could have been found before. */
    double(*shares)[FM__MAX_UNITS] = NULL;
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        shares = fm__alloc_array(bucket->tape->n_op, sizeof *shares);
        for (uint32_t i = 0; i < bucket->tape->n_op; i++)
            shares[i][1] = 0.25 + b / 64.0;
        bucket->op_shares = shares;
        bucket->predicted[FM_ARM_CPU] = 1000 + b;
        bucket->predicted_work = 77;
    }
    /* At once, and when the first tape is done and the second half done. */
    static const uint32_t behind[] = {0, 110};
    for (int i = 0; i < 2; i++) {
        stopped(engine, behind[i]);
        assert_false(engine->calibrated);
        for (uint32_t b = 0; b < engine->n_bucket; b++) {
            const fm__bucket *bucket = &engine->buckets[b];
            assert_true(bucket->op_shares[0][1] == 0.25 + b / 64.0);
            assert_true(bucket->predicted[FM_ARM_CPU] == 1000 + b);
            assert_true(bucket->predicted_work == 77);
            assert_true(bucket->predicted[FM_ARM_GPU] == 0);
        }
    }
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    assert_int_equal(rmdir(folder), 0); /* and nothing was saved */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_mixed)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
