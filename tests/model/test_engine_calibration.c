/* SPDX-License-Identifier: Apache-2.0 */
/* A calibration that is stopped leaves shares and predictions as they were; one that is saved is
   loaded as it was. */
#include "device_test.h"

#include <math.h>
#include <unistd.h>

static char model[] = "/tmp/fm_calibration_XXXXXX";

/* Two units; what is calibrated is saved in a new folder, whose name mkdtemp() makes. */
static fm_machine *machine_that_saves(char *folder) {
    assert_non_null(mkdtemp(folder));
    fm_machine *machine = test_discrete_machine(UINT64_C(2) << 30);
    machine->cache_dir = fm__alloc(strlen(folder) + 1);
    strcpy(machine->cache_dir, folder);
    return machine;
}

static fm_engine *load(fm_machine *machine) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.context_length = 64;
    o.chunk_rows = 64;
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    assert_true(engine->n_bucket >= 2);
    return engine;
}

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
    char folder[] = "/tmp/fm_calibration_XXXXXX";
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load(machine);
    assert_false(engine->calibrated);
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

/* Of the last unit, in a class of the bucket's products; whole millionths. */
static double hand_share(uint32_t bucket, uint32_t class) {
    return (bucket + 1) / 16.0 + class / 64.0;
}

/* What a calibration could have found, and whole products in every other bucket. */
static void calibrate_by_hand(fm_engine *engine, fm__store *store) {
    fm_error error = {0};
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        const uint32_t rows = bucket->tape->max_rows;
        fm__tape_classes classes;
        CHECK_OK(fm__classes_make(&classes, bucket->tape, &error));
        assert_true(classes.n >= 4);
        for (uint32_t c = 0; c < classes.n; c++)
            CHECK_OK(fm__saved_add(store, engine, &classes.shapes[c], rows, hand_share(b, c), 1.25,
                                   &error));
        fm__classes_finish(&classes);
        for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++)
            bucket->predicted[arm] = 1000.25 + 10 * b + arm;
        bucket->whole_products = b % 2 == 0;
        CHECK_OK(fm__saved_add_tape(store, engine, bucket, &error));
    }
}

static void check_bucket(const fm_engine *engine, uint32_t b) {
    fm_error error = {0};
    const fm__bucket *bucket = &engine->buckets[b];
    double want[FM__MAX_UNITS];
    fm__tape_classes classes;
    CHECK_OK(fm__classes_make(&classes, bucket->tape, &error));
    assert_non_null(bucket->op_shares);
    for (uint32_t i = 0; i < bucket->tape->n_op; i++) {
        const uint8_t class = classes.class_of[i];
        memset(want, 0, sizeof want);
        if (class != FM__TUNE_NO_CLASS) {
            want[0] = 1 - hand_share(b, class);
            want[1] = hand_share(b, class);
        }
        for (uint32_t u = 0; u < FM__MAX_UNITS; u++)
            assert_true(fabs(bucket->op_shares[i][u] - want[u]) < 1e-9);
    }
    fm__classes_finish(&classes);
    for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++)
        assert_true(fabs(bucket->predicted[arm] - (1000.25 + 10 * b + arm)) < 1e-6);
    assert_true(bucket->predicted[FM_ARM_AUTO] == 0);
    assert_int_equal(bucket->whole_products, b % 2 == 0);
    assert_true(bucket->predicted_work > 0);
    assert_true(bucket->predicted_work == fm__choose_full_work(engine, bucket->tape->max_rows));
}

static void what_is_saved_is_loaded(void **state) {
    (void)state;
    fm_error error = {0};
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load(machine);
    assert_false(engine->calibrated);
    fm__store store;
    fm__saved_begin(&store, engine);
    calibrate_by_hand(engine, &store);
    CHECK_OK(fm__saved_path(&store, engine, path, sizeof path, &error));
    CHECK_OK(fm__saved_write(&store, path, &error));
    fm__store_finish(&store);
    fm_engine_destroy(&engine);

    engine = load(machine);
    assert_true(engine->calibrated);
    for (uint32_t b = 0; b < engine->n_bucket; b++)
        check_bucket(engine, b);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_mixed),
                                       cmocka_unit_test(what_is_saved_is_loaded)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
