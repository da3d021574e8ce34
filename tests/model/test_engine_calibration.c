/* SPDX-License-Identifier: Apache-2.0 */
/* A calibration that is stopped leaves shares and predictions as they were; one that is saved is
   loaded as it was. */
#include "device_test.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char model[] = "/tmp/fm_calibration_XXXXXX";

static void save_in(fm_machine *machine, const char *folder) {
    machine->cache_dir = fm__alloc(strlen(folder) + 1);
    assert_non_null(machine->cache_dir);
    strcpy(machine->cache_dir, folder);
}

static void leave_nothing(fm_machine **machine, const char *path, const char *folder) {
    fm_machine_destroy(machine);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Two units; what is calibrated is saved in a new folder, whose name mkdtemp() makes. */
static fm_machine *machine_that_saves(char *folder) {
    assert_non_null(mkdtemp(folder));
    fm_machine *machine = test_discrete_machine(UINT64_C(2) << 30);
    save_in(machine, folder);
    return machine;
}

/* Host teams of one thread each, with names of one letter. */
static fm_machine *teams(const char *names, const char *folder) {
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm__device *devices[FM__MAX_UNITS] = {NULL};
    uint32_t n = (uint32_t)strlen(names);
    for (uint32_t i = 0; i < n; i++) {
        static const int not_pinned[] = {-1};
        const char name[] = {names[i], 0};
        const fm__host_options options = {.threads = 1, .name = name, .cpus = not_pinned};
        CHECK_OK(fm__device_host_create(&devices[i], &options, &error));
    }
    CHECK_OK(fm__machine_adopt(&machine, devices, n, UINT64_C(2) << 30, &error));
    save_in(machine, folder);
    return machine;
}

static fm_engine *load_as(fm_machine *machine, uint32_t chunk_rows, fm_axis axis) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.context_length = chunk_rows > 64 ? chunk_rows : 64;
    o.chunk_rows = chunk_rows;
    o.axis = axis;
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    return engine;
}

static fm_engine *load(fm_machine *machine) {
    fm_engine *engine = load_as(machine, 64, FM_AXIS_AUTO);
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

/* At the first point: whether the engine is asked to stop; and it may be asked to. */
typedef struct asking {
    fm_engine *engine;
    bool ask;
    uint32_t n_point, asked;
} asking;

static int ask(void *user, const fm_lab_point *point) {
    asking *a = user;
    (void)point;
    a->asked |= atomic_load(&a->engine->cancel);
    if (a->ask)
        fm_engine_cancel(a->engine);
    a->n_point++;
    return !a->ask;
}

/* What was meant for a run before does not stop the runs that are timed; what comes while they are
   timed does, and nothing is kept of them. */
static void a_request_to_stop(void **state) {
    (void)state;
    char folder[] = "/tmp/fm_calibration_XXXXXX";
    fm_error error = {0};
    fm_lab_calibration found;
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load(machine);
    for (int i = 0; i < 2; i++) {
        asking a = {.engine = engine, .ask = i == 1};
        fm_engine_cancel(engine);
        assert_int_equal(fm_lab_calibrate(engine, ask, &a, &found, &error), FM_ERROR_CANCELLED);
        assert_non_null(strstr(error.message, i == 0 ? "stopped after" : "during a run"));
        assert_int_equal(a.asked, 0);
        assert_int_equal(a.n_point, 1);
        assert_int_equal(found.n_curve, 0);
        assert_false(engine->calibrated);
        for (uint32_t b = 0; b < engine->n_bucket; b++)
            assert_null(engine->buckets[b].op_shares);
    }
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    assert_int_equal(rmdir(folder), 0);
}

/* An arm that was asked for stays; a share in the options, which stood for one, goes with it. */
static void the_arm_stays(void **state) {
    (void)state;
    static const fm_arm arms[] = {FM_ARM_CPU, FM_ARM_SPLIT, FM_ARM_AUTO};
    char folder[] = "/tmp/fm_calibration_XXXXXX";
    fm_error error = {0};
    fm_lab_calibration found;
    fm_machine *machine = machine_that_saves(folder);
    for (int i = 0; i < 4; i++) {
        fm_engine *engine = NULL;
        fm_engine_options o = fm_engine_options_default();
        o.context_length = 8;
        o.chunk_rows = 1;
        o.split = 0.5;
        CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
        assert_int_equal(engine->forced, FM_ARM_SPLIT);
        if (i < 3)
            CHECK_OK(fm_engine_set_arm(engine, arms[i], &error));
        CHECK_OK(fm_lab_calibrate(engine, NULL, NULL, &found, &error));
        assert_int_equal(engine->forced, i < 3 ? arms[i] : FM_ARM_AUTO);
        assert_int_equal(unlink(found.path), 0);
        fm_lab_calibration_free(&found);
        fm_engine_destroy(&engine);
    }
    fm_machine_destroy(&machine);
    assert_int_equal(rmdir(folder), 0);
}

/* Of the last unit, in a class of the bucket's products; whole millionths. */
static double hand_share(uint32_t bucket, uint32_t class) {
    return (bucket + 1) / 16.0 + class / 64.0;
}

/* What a calibration could have found, times longer by `more`, and whole products in every other
   bucket. */
static void calibrate_by_hand(fm_engine *engine, fm__store *store, double more) {
    fm_error error = {0};
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        fm__tape_classes classes;
        CHECK_OK(fm__classes_make(&classes, bucket->tape, &error));
        assert_true(classes.n >= 4);
        double shares[FM__TUNE_CLASSES];
        for (uint32_t c = 0; c < classes.n; c++)
            shares[c] = hand_share(b, c);
        CHECK_OK(fm__saved_add_products(store, engine, bucket, &classes, shares, 1.25, &error));
        fm__classes_finish(&classes);
        for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++)
            bucket->predicted[arm] = 1000.25 + 10 * b + arm + more;
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

static void save_by_hand(fm_engine *engine, char path[512], double more) {
    fm_error error = {0};
    fm__store store;
    fm__saved_begin(&store, engine);
    calibrate_by_hand(engine, &store, more);
    CHECK_OK(fm__saved_path(&store, engine, path, 512, &error));
    CHECK_OK(fm__saved_write(&store, engine, path, &error));
    fm__store_finish(&store);
}

static void what_is_saved_is_loaded(void **state) {
    (void)state;
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load(machine);
    assert_false(engine->calibrated);
    save_by_hand(engine, path, 0);
    fm_engine_destroy(&engine);

    engine = load(machine);
    assert_true(engine->calibrated);
    for (uint32_t b = 0; b < engine->n_bucket; b++)
        check_bucket(engine, b);
    fm_engine_destroy(&engine);
    leave_nothing(&machine, path, folder);
}

/* As without a saved calibration: two teams divide by their numbers of threads. */
static void check_none(const fm_engine *engine) {
    assert_false(engine->calibrated);
    assert_true(engine->calibration_age_s == 0);
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        const fm__bucket *bucket = &engine->buckets[b];
        assert_null(bucket->op_shares);
        assert_false(bucket->whole_products);
        assert_true(bucket->predicted_work == 0);
        for (uint32_t arm = 0; arm < FM__ARM_COUNT; arm++)
            assert_true(bucket->predicted[arm] == 0);
    }
    fm_gate_info info;
    fm_engine_gate_info(engine, &info);
    assert_true(info.share_decode == 0.5 && info.share_prefill == 0.5);
}

/* Of another axis, or expired: the file is there, and nothing in it is for this engine. */
static void what_does_not_fit_changes_nothing(void **state) {
    (void)state;
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    assert_non_null(mkdtemp(folder));
    fm_machine *machine = teams("ab", folder);
    fm_engine *engine = load_as(machine, 64, FM_AXIS_CHANNELS);
    save_by_hand(engine, path, 0);
    fm_engine_destroy(&engine);
    engine = load(machine);
    check_none(engine);
    fm_engine_destroy(&engine);

    engine = load_as(machine, 64, FM_AXIS_CHANNELS);
    assert_true(engine->calibrated);
    engine->expired = true; /* as drift leaves it */
    fm_engine_destroy(&engine);
    assert_int_equal(access(path, R_OK), 0);
    engine = load_as(machine, 64, FM_AXIS_CHANNELS);
    check_none(engine);
    fm_engine_destroy(&engine);
    leave_nothing(&machine, path, folder);
}

/* Shares are the last unit's, and a team's name says which processors it has. */
static void other_units_are_another_key(void **state) {
    (void)state;
    static const char *const names[] = {"ab", "ba", "ac", "cb", "abc"};
    enum { N = sizeof(names) / sizeof(*names) };
    char folder[] = "/tmp/fm_calibration_XXXXXX", paths[N][512];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < N; i++) {
        fm_machine *machine = teams(names[i], folder);
        fm_engine *engine = load(machine);
        fm__store store;
        fm_error error = {0};
        fm__saved_begin(&store, engine);
        CHECK_OK(fm__saved_path(&store, engine, paths[i], sizeof paths[i], &error));
        fm__store_finish(&store);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(paths[i], paths[k]);
        fm_engine_destroy(&engine);
        fm_machine_destroy(&machine);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Drift of an engine that goes by an older calibration says nothing of one that was saved since,
   nor of other options'. */
static void only_what_was_in_use_expires(void **state) {
    (void)state;
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load(machine), *other = load_as(machine, 64, FM_AXIS_CHANNELS);
    save_by_hand(engine, path, 0);
    fm_engine *old = load(machine);
    assert_true(old->calibrated);
    save_by_hand(engine, path, 0.5);
    save_by_hand(other, path, 0.25);
    fm_engine_destroy(&other);
    old->expired = true;
    fm_engine_destroy(&old);
    old = load(machine);
    assert_true(old->calibrated);
    assert_true(fabs(old->buckets[0].predicted[FM_ARM_CPU] - 1000.75 - FM_ARM_CPU) < 1e-6);
    fm_engine_destroy(&old);

    engine->expired = true; /* which saved it itself */
    fm_engine_destroy(&engine);
    engine = load(machine);
    assert_false(engine->calibrated);
    fm_engine_destroy(&engine);
    engine = load_as(machine, 64, FM_AXIS_CHANNELS);
    assert_true(engine->calibrated);
    fm_engine_destroy(&engine);
    leave_nothing(&machine, path, folder);
}

/* Two processes that measure with other options at the same time: each has begun before the other
   saves. */
static void both_are_saved(void **state) {
    (void)state;
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    fm_error error = {0};
    fm_machine *machine = machine_that_saves(folder);
    static const fm_axis axes[] = {FM_AXIS_AUTO, FM_AXIS_CHANNELS};
    fm_engine *engines[2];
    fm__store stores[2];
    for (int i = 0; i < 2; i++) {
        engines[i] = load_as(machine, 64, axes[i]);
        fm__saved_begin(&stores[i], engines[i]);
    }
    for (int i = 0; i < 2; i++) {
        calibrate_by_hand(engines[i], &stores[i], 0);
        CHECK_OK(fm__saved_path(&stores[i], engines[i], path, sizeof path, &error));
        CHECK_OK(fm__saved_write(&stores[i], engines[i], path, &error));
        fm__store_finish(&stores[i]);
    }
    for (int i = 0; i < 2; i++) {
        fm_engine *engine = load_as(machine, 64, axes[i]);
        assert_true(engine->calibrated);
        for (uint32_t b = 0; b < engine->n_bucket; b++)
            check_bucket(engine, b);
        fm_engine_destroy(&engine);
    }
    engines[0]->expired = true; /* its own are dropped still, and nobody else's */
    for (int i = 0; i < 2; i++)
        fm_engine_destroy(&engines[i]);
    for (int i = 0; i < 2; i++) {
        fm_engine *engine = load_as(machine, 64, axes[i]);
        assert_int_equal(engine->calibrated, i == 1);
        fm_engine_destroy(&engine);
    }
    leave_nothing(&machine, path, folder);
}

static int count_points(void *user, const fm_lab_point *point) {
    (void)point;
    return ++*(int *)user > 0;
}

/* A folder where the file should be, which is no matter of permissions: found out before anything
   is measured. */
static void what_cannot_be_saved_is_not_measured(void **state) {
    (void)state;
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    fm_error error = {0};
    fm_lab_calibration found;
    fm__store store;
    int n = 0;
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load(machine);
    fm__saved_begin(&store, engine);
    CHECK_OK(fm__saved_path(&store, engine, path, sizeof path, &error));
    fm__store_finish(&store);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(fm_lab_calibrate(engine, count_points, &n, &found, &error), FM_ERROR_IO);
    assert_int_equal(n, 0);
    assert_string_equal(error.place, path);
    assert_non_null(strstr(error.message, "a calibration could not be saved there"));
    assert_non_null(strstr(error.message, "give another cache folder"));
    assert_false(engine->calibrated);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(fm_lab_calibrate(engine, count_points, &n, &found, &error),
                     FM_ERROR_CANCELLED);
    assert_int_equal(n, 1);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    assert_int_equal(rmdir(folder), 0); /* the look left nothing */
}

/* Times hold for nearly the same rows, where drift ends them; shares for up to three times as
   many or few. */
static void far_rows_take_nothing(void **state) {
    (void)state;
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load_as(machine, 8, FM_AXIS_AUTO);
    assert_int_equal(engine->n_bucket, 2);
    save_by_hand(engine, path, 0);
    fm_engine_destroy(&engine);
    static const struct {
        uint32_t rows;
        bool shares, times;
    } cases[] = {{10, true, true}, {20, true, false}, {25, false, false}, {64, false, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        engine = load_as(machine, cases[i].rows, FM_AXIS_AUTO);
        assert_true(engine->calibrated);
        assert_int_equal(engine->n_bucket, 3);
        check_bucket(engine, 0);
        check_bucket(engine, 1);
        const fm__bucket *last = &engine->buckets[2];
        assert_int_equal(last->op_shares != NULL, cases[i].shares);
        assert_true(cases[i].times
                        ? last->predicted[FM_ARM_CPU] > 0 &&
                              last->predicted_work == fm__choose_full_work(engine, cases[i].rows)
                        : last->predicted[FM_ARM_CPU] == 0 && last->predicted_work == 0);
        fm_engine_destroy(&engine);
    }
    leave_nothing(&machine, path, folder);
}

/* The last class holds all the shapes that there are too many of: each is found again. */
static void every_shape_is_saved(void **state) {
    (void)state;
    fm_error error = {0};
    char folder[] = "/tmp/fm_calibration_XXXXXX", path[512];
    fm_machine *machine = machine_that_saves(folder);
    fm_engine *engine = load_as(machine, 1, FM_AXIS_AUTO);
    fm__bucket *bucket = &engine->buckets[0];
    fm__tape_classes classes;
    fm__store store;
    CHECK_OK(fm__classes_make(&classes, bucket->tape, &error));
    assert_true(classes.n >= 4);
    classes.n = 2; /* as if there were no more */
    for (uint32_t i = 0; i < bucket->tape->n_op; i++)
        if (classes.class_of[i] != FM__TUNE_NO_CLASS && classes.class_of[i] > 1)
            classes.class_of[i] = 1;
    const double shares[FM__TUNE_CLASSES] = {0.25, 0.75};
    fm__saved_begin(&store, engine);
    CHECK_OK(fm__saved_add_products(&store, engine, bucket, &classes, shares, 1, &error));
    CHECK_OK(fm__saved_path(&store, engine, path, sizeof path, &error));
    CHECK_OK(fm__saved_write(&store, engine, path, &error));
    fm__store_finish(&store);
    fm_engine_destroy(&engine);
    engine = load_as(machine, 1, FM_AXIS_AUTO);
    assert_non_null(engine->buckets[0].op_shares);
    for (uint32_t i = 0; i < engine->buckets[0].tape->n_op; i++)
        if (classes.class_of[i] != FM__TUNE_NO_CLASS)
            assert_true(engine->buckets[0].op_shares[i][1] == shares[classes.class_of[i]]);
    fm__classes_finish(&classes);
    fm_engine_destroy(&engine);
    leave_nothing(&machine, path, folder);
}

/* With three units "nothing to the last" is two units at work: not the first one's time, nor an
   arm under a second name. */
static void three_units(void **state) {
    (void)state;
    fm_error error = {0};
    char folder[] = "/tmp/fm_calibration_XXXXXX";
    assert_non_null(mkdtemp(folder));
    fm_machine *machine = teams("abc", folder);
    fm_engine *engine = load(machine);
    fm__tune tune = {.n_class = 2, .zero_ns = 7};
    assert_true(fm__calibration_expected(engine, &tune, FM_ARM_CPU) == 0);
    assert_true(fm__calibration_divides(engine, &tune));
    tune.best[0] = 1;
    assert_true(fm__calibration_divides(engine, &tune));
    tune.best[1] = 1;
    assert_false(fm__calibration_divides(engine, &tune));
    engine->n_unit = 2; /* and with two */
    assert_true(fm__calibration_expected(engine, &tune, FM_ARM_CPU) == 7);
    assert_false(fm__calibration_divides(engine, &tune));
    tune.best[1] = 0; /* each unit has some products */
    assert_true(fm__calibration_divides(engine, &tune));
    tune.best[0] = 0;
    assert_false(fm__calibration_divides(engine, &tune));
    tune.best[0] = 0.5;
    assert_true(fm__calibration_divides(engine, &tune));
    engine->n_unit = 3;

    fm_lab_calibration found;
    CHECK_OK(fm_lab_calibrate(engine, NULL, NULL, &found, &error));
    assert_int_equal(found.n_curve, engine->n_bucket);
    for (size_t b = 0; b < found.n_curve; b++) {
        const struct fm_lab_curve *curve = &found.curves[b];
        bool alone = true;
        for (uint32_t i = 0; i < curve->n_product; i++)
            alone = alone && curve->products[i].share == 1;
        assert_true(curve->arm_ms[FM_ARM_CPU] > 0);
        assert_true(alone || curve->arm_ms[FM_ARM_SPLIT] == curve->best_ms);
    }
    assert_int_equal(unlink(found.path), 0);
    fm_lab_calibration_free(&found);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    assert_int_equal(rmdir(folder), 0);
}

/* Not "there is no folder": the path does not fit. */
static void a_long_folder_is_named(void **state) {
    (void)state;
    fm_error error = {0};
    char folder[] = "/tmp/fm_calibration_XXXXXX", deep[600], path[512];
    assert_non_null(mkdtemp(folder));
    snprintf(deep, sizeof deep, "%s/", folder);
    for (size_t i = strlen(deep); i < 500; i++)
        deep[i] = i % 101 == 100 ? '/' : 'd', deep[i + 1] = 0;
    fm_machine *machine = teams("ab", deep);
    fm_engine *engine = load(machine); /* without a calibration, and no error */
    fm__store store;
    fm__saved_begin(&store, engine);
    assert_int_equal(fm__saved_path(&store, engine, path, sizeof path, &error), FM_ERROR_LIMIT);
    fm__store_finish(&store);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    for (char *slash; (slash = strrchr(deep, '/')) != NULL && strlen(deep) > strlen(folder);
         *slash = 0)
        assert_int_equal(rmdir(deep), 0);
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
                                       cmocka_unit_test(a_request_to_stop),
                                       cmocka_unit_test(the_arm_stays),
                                       cmocka_unit_test(what_is_saved_is_loaded),
                                       cmocka_unit_test(what_does_not_fit_changes_nothing),
                                       cmocka_unit_test(other_units_are_another_key),
                                       cmocka_unit_test(only_what_was_in_use_expires),
                                       cmocka_unit_test(both_are_saved),
                                       cmocka_unit_test(what_cannot_be_saved_is_not_measured),
                                       cmocka_unit_test(far_rows_take_nothing),
                                       cmocka_unit_test(every_shape_is_saved),
                                       cmocka_unit_test(three_units),
                                       cmocka_unit_test(a_long_folder_is_named)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
