/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arms: which there are, what they divide, how one is forced or chosen, and what reports say of
 * them. That all give the same bits: test_engine_devices.c.
 */
#include "device_test.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/fm_arms_XXXXXX";
static char model[64], cache[64];
static int32_t ids[64];

static fm_engine_options small(void) {
    fm_engine_options o = fm_engine_options_default();
    o.context_length = 128;
    o.cache_tokens = 256;
    o.chunk_rows = 32;
    return o;
}

static fm_engine *load(fm_machine *machine, const fm_engine_options *o) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    CHECK_OK(fm_engine_load(&engine, machine, model, o, &error));
    return engine;
}

static void not_loaded(fm_machine *machine, const fm_engine_options *o, fm_status want,
                       const char *why) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    assert_int_equal(fm_engine_load(&engine, machine, model, o, &error), want);
    assert_null(engine);
    if (!strstr(error.message, why))
        fail_msg("says \"%s\", not \"%s\"", error.message, why);
    test_no_engine(machine);
}

/* A machine of two teams, or nothing (and the test ends) where there is one core. */
static fm_machine *pair(void) {
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_PAIR, &error);
    if (!machine)
        print_message("not tried: %s\n", error.message);
    return machine;
}

/* ---- which ---- */

static void of_one_team(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_HOST, &error);
    fm_engine_options o = small();
    fm_engine *engine = load(machine, &o);
    assert_int_equal(engine->arms, 1u << FM_ARM_CPU);
    assert_int_equal(fm_engine_set_arm(engine, FM_ARM_GPU, &error), FM_ERROR_ARGUMENT);
    assert_string_equal(error.message, "there is no arm gpu with these units; there are: cpu");
    assert_int_equal(fm_engine_set_arm(engine, (fm_arm)17, &error), FM_ERROR_ARGUMENT);
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_CPU, &error));
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_AUTO, &error));
    fm_engine_destroy(&engine);
    o.split = 0.5;
    not_loaded(machine, &o, FM_ERROR_ARGUMENT, "there is no arm split");
    o.split = 1.5;
    not_loaded(machine, &o, FM_ERROR_ARGUMENT, "a share is from 0 to 1");
    o = small();
    o.arm = FM_ARM_EAGER;
    not_loaded(machine, &o, FM_ERROR_ARGUMENT, "there is no arm gpu-eager");
    o = small();
    o.deps = (fm_deps)9;
    not_loaded(machine, &o, FM_ERROR_ARGUMENT, "not an fm_deps");
    o = small();
    o.axis = (fm_axis)9;
    not_loaded(machine, &o, FM_ERROR_ARGUMENT, "not an fm_axis");
    o = small();
    o.weights = (fm_weights)9;
    not_loaded(machine, &o, FM_ERROR_ARGUMENT, "not an fm_weights");
    fm_machine_destroy(&machine);
}

static void of_two_teams(void **state) {
    (void)state;
    fm_machine *machine = pair();
    if (!machine)
        return;
    fm_engine_options o = small();
    fm_engine *engine = load(machine, &o);
    fm_gate_info info;
    assert_int_equal(engine->arms, 1u << FM_ARM_CPU | 1u << FM_ARM_SPLIT);
    fm_engine_gate_info(engine, &info);
    assert_int_equal(info.active_decode, FM_ARM_SPLIT); /* equal teams begin together */
    assert_true(info.share_prefill == 0.5);
    assert_false(info.calibrated);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

static void of_a_discrete_unit(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error);
    fm_engine_options o = small();
    fm_engine *engine = load(machine, &o);
    assert_int_equal(engine->arms, 1u << FM_ARM_CPU | 1u << FM_ARM_GPU | 1u << FM_ARM_EAGER);
    assert_int_equal(fm_engine_set_arm(engine, FM_ARM_SPLIT, &error), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "needs a share"));
    fm_engine_destroy(&engine);
    o.split = 0.25;
    engine = load(machine, &o);
    fm_gate_info info;
    fm_engine_gate_info(engine, &info);
    assert_int_equal(info.active_prefill, FM_ARM_SPLIT); /* a share of one's own forces it */
    assert_true(info.share_decode == 0.25);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* What is reported of shares: the mean over all products by their operations, of the widest tape
   that ran, or of the widest of all where none has. */
static void shares_that_are_reported(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = pair();
    if (!machine)
        return;
    fm_engine_options o = small();
    fm_engine *engine = load(machine, &o);
    fm_gate_info info;
    double work = 0, half = 0;
    bool odd = false;
    assert_int_equal(engine->n_bucket, 3);
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        const fm__tape *tape = bucket->tape;
        bucket->op_shares = fm__alloc_array(tape->n_op, sizeof(*bucket->op_shares));
        assert_non_null(bucket->op_shares);
        for (uint32_t i = 0; i < tape->n_op; i++) {
            const fm__op *op = &tape->ops[i];
            bool product = op->kind == FM__OP_LINEAR || op->kind == FM__OP_LINEAR_GLU;
            double last = b == 0 ? 0.25 : b == 2 ? 0.75 : odd ? 0.5 : 0; /* b == 1: by turns */
            for (uint32_t u = 0; u < FM__MAX_UNITS; u++)
                bucket->op_shares[i][u] = u == 0 ? 1 - last : u == 1 ? last : 0;
            if (b != 1 || !product)
                continue;
            const fm__weight *w = tape->weights[op->weight[0]];
            bool output = tape->tensors[op->out].rows == FM__ROWS_OUTPUT;
            double of_op = (double)w->n * w->k * (op->kind == FM__OP_LINEAR_GLU ? 2 : 1) *
                           (output ? 1 : tape->max_rows);
            work += of_op;
            half += odd ? of_op : 0;
            odd = !odd;
        }
    }
    fm__arms_forget_one(engine, FM_ARM_SPLIT); /* planned before there were shares */
    fm_engine_gate_info(engine, &info);
    assert_true(info.share_decode == 0.25);
    assert_true(info.share_prefill == 0.75); /* nothing ran */
    fm_session *session = NULL;
    const float *logits;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, ids, 5, &logits, &error));
    fm_engine_gate_info(engine, &info);
    double want = 0.5 * half / work;
    assert_true(want > 0.01 && want < 0.49); /* neither of the two shares that there are */
    assert_true(info.share_prefill > want - 1e-9 && info.share_prefill < want + 1e-9);
    CHECK_OK(fm_session_prefill(session, ids, 32, &logits, &error));
    fm_engine_gate_info(engine, &info);
    assert_true(info.share_prefill == 0.75);
    CHECK_OK(fm_session_decode(session, ids[0], &logits, &error));
    CHECK_OK(fm_session_prefill(session, ids, 5, &logits, &error));
    fm_engine_gate_info(engine, &info);
    assert_true(info.share_prefill == 0.75); /* still the widest */
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* ---- what they divide ---- */

/* Columns of products that a device has in the placement report; *n counts its lines. */
static uint64_t columns_of(const fm_engine *engine, const char *device, uint32_t *n) {
    fm_error error = {0};
    uint64_t columns = 0;
    *n = 0;
    for (size_t i = 0; i < fm_engine_placement_count(engine); i++) {
        fm_placement p;
        CHECK_OK(fm_engine_placement(engine, i, &p, &error));
        if (strncmp(p.op, "linear", 6) != 0 || strcmp(p.device, device) != 0)
            continue;
        columns += p.end - p.begin;
        ++*n;
    }
    return columns;
}

static void placements_follow(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error);
    fm_engine_options o = small();
    o.split = 0.5;
    fm_engine *engine = load(machine, &o);
    uint32_t n;
    uint64_t far = columns_of(engine, "far", &n), near = columns_of(engine, "host", &n);
    assert_true(far > 0 && near > 0);
    /* Borders are multiples of 32 columns: nearly even. */
    assert_true(far < near + near / 4 && near < far + far / 4);
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_GPU, &error));
    assert_true(columns_of(engine, "far", &n) == far + near);
    assert_true(columns_of(engine, "host", &n) == 0);
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_CPU, &error));
    assert_true(columns_of(engine, "far", &n) == 0);
    assert_true(columns_of(engine, "host", &n) == far + near);

    /* What each did in a run is what the plan gave it. */
    fm_session *session = NULL;
    const float *logits;
    fm_lab_times times, split;
    assert_int_equal(fm_lab_last_times(engine, &times, &error), FM_ERROR_STATE);
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, ids, 20, &logits, &error));
    CHECK_OK(fm_lab_last_times(engine, &times, &error));
    assert_int_equal(times.arm, FM_ARM_CPU);
    assert_int_equal(times.n_unit, 2);
    assert_int_equal(times.tape_runs, 1);
    assert_true(times.weight_bytes[0] == 0 && times.ops[0] == 0);
    assert_true(times.weight_bytes[1] > 0 && times.ops[1] > 0 && times.wall_ns > 0);
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_SPLIT, &error));
    CHECK_OK(fm_session_prefill(session, ids, 20, &logits, &error));
    CHECK_OK(fm_lab_last_times(engine, &split, &error));
    assert_int_equal(split.arm, FM_ARM_SPLIT);
    assert_true(split.ops[0] > 0 && split.ops[1] > 0);
    double sum = (double)split.ops[0] + (double)split.ops[1], all = (double)times.ops[1];
    assert_true(sum > 0.999 * all && sum < 1.001 * all);
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

static void explained(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error);
    fm_engine_options o = small();
    o.split = 0.5;
    fm_engine *engine = load(machine, &o);
    char *text = NULL;
    CHECK_OK(fm_engine_explain(engine, 32, FM_ARM_AUTO, 0, &text, &error));
    assert_non_null(strstr(text, "arm split, for up to 32 rows"));
    assert_non_null(strstr(text, "blk.1.ffn_down.weight"));
    assert_non_null(strstr(text, "far"));
    fm_free(text);
    for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++) {
        CHECK_OK(fm_engine_explain(engine, 1, (fm_arm)arm, 1, &text, &error));
        json_error_t why;
        json_t *plan = json_loads(text, 0, &why);
        if (!plan)
            fail_msg("arm %u: %s in %s", arm, why.text, text);
        assert_string_equal(json_string_value(json_object_get(plan, "arm")),
                            fm_arm_name((fm_arm)arm));
        assert_int_equal(json_integer_value(json_object_get(plan, "rows")), 1);
        assert_non_null(json_object_get(json_object_get(plan, "plan"), "ops"));
        json_decref(plan);
        fm_free(text);
    }
    assert_int_equal(fm_engine_explain(engine, 1, (fm_arm)6, 0, &text, &error), FM_ERROR_ARGUMENT);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* ---- choosing ---- */

typedef struct gate_log {
    uint32_t n, of_arm[FM__ARM_COUNT];
    char bad[400];
} gate_log;

static void note_line(void *user, const char *line) {
    gate_log *log = user;
    json_t *object = json_loads(line, 0, NULL);
    const char *arm = json_string_value(json_object_get(object, "arm"));
    bool ok = arm && json_is_number(json_object_get(object, "ms")) &&
              json_is_integer(json_object_get(object, "bucket")) &&
              json_is_string(json_object_get(object, "decision")) &&
              json_is_string(json_object_get(object, "reason")) && !strchr(line, '\n');
    if (!ok)
        snprintf(log->bad, sizeof(log->bad), "%s", line);
    for (uint32_t a = 0; ok && a < FM__ARM_COUNT; a++)
        log->of_arm[a] += strcmp(arm, fm_arm_name((fm_arm)a)) == 0;
    log->n++;
    json_decref(object);
}

/* The gate measures other arms among the runs, and no bit changes by it. */
static void gate_measures(void **state) {
    (void)state;
    fm_error error = {0};
    gate_log log = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error), *plain = NULL;
    fm_engine_options o = small();
    o.numeric_class = FM_CLASS_EXACT;
    o.gate_log = note_line;
    o.gate_log_user = &log;
    plain = test_units_machine(TEST_HOST, &error);
    fm_engine *engine = load(machine, &o), *reference = load(plain, &(fm_engine_options){
                                                                        .context_length = 128,
                                                                        .chunk_rows = 32,
                                                                        .split = -1,
                                                                    });
    fm_session *a = NULL, *b = NULL;
    const float *want, *got;
    size_t n_vocab = fm_engine_vocab_size(engine);
    CHECK_OK(fm_session_create(&a, engine, NULL, &error));
    CHECK_OK(fm_session_create(&b, reference, NULL, &error));
    uint32_t runs = 0;
    for (int round = 0; round < 12; round++) {
        CHECK_OK(fm_session_truncate(a, 0, &error));
        CHECK_OK(fm_session_truncate(b, 0, &error));
        for (int i = 0; i < 60; i++, runs++) {
            CHECK_OK(fm_session_decode(a, ids[i], &got, &error));
            CHECK_OK(fm_session_decode(b, ids[i], &want, &error));
            test_same_bits(want, got, n_vocab, "with the gate on");
        }
    }
    if (log.bad[0])
        fail_msg("not a line of JSON as documented: %s", log.bad);
    assert_int_equal(log.n, runs);
    fm_gate_info info;
    fm_engine_gate_info(engine, &info);
    assert_int_equal(info.calls, runs);
    for (int arm = 0; arm < FM__ARM_COUNT; arm++)
        assert_int_equal(info.calls_of[arm], log.of_arm[arm]);
    assert_true(info.calls_of[FM_ARM_CPU] > 0 && info.calls_of[FM_ARM_GPU] > 0);
    assert_true(info.spent_ms > 0);
    fm_session_destroy(&a);
    fm_session_destroy(&b);
    fm_engine_destroy(&engine);
    fm_engine_destroy(&reference);
    fm_machine_destroy(&machine);
    fm_machine_destroy(&plain);
}

/* With no_gate each bucket keeps its arm; a fast-class model keeps one whatever is measured. */
static void gate_rests(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error);
    for (int fast = 0; fast < 2; fast++) {
        char path[80];
        fm_engine *engine = NULL;
        fm_session *session = NULL;
        fm_engine_options o = small();
        snprintf(path, sizeof(path), "%s/%s.gguf", folder, fast ? "bf16" : "q8_0");
        CHECK_OK(fm_lab_synth(path, "tiny", fast ? "bf16" : "q8_0", 1, NULL, NULL, &error));
        o.no_gate = !fast;
        CHECK_OK(fm_engine_load(&engine, machine, path, &o, &error));
        assert_int_equal(engine->model->fast, fast);
        CHECK_OK(fm_session_create(&session, engine, NULL, &error));
        const float *logits;
        for (int i = 0; i < 40; i++)
            CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
        fm_gate_info info;
        fm_engine_gate_info(engine, &info);
        assert_int_equal(info.calls, 40);
        assert_int_equal(info.calls_of[info.active_decode], 40);
        assert_int_equal(info.probes, 0);
        fm_session_destroy(&session);
        fm_engine_destroy(&engine);
        unlink(path);
    }
    fm_machine_destroy(&machine);
}

/* ---- calibration ---- */

typedef struct progress {
    uint32_t n, stop_at, last_done, total;
} progress;

static int note_point(void *user, const fm_lab_point *point) {
    progress *p = user;
    assert_true(point->share >= 0 && point->share <= 1 && point->ms > 0 && point->ms_share_0 > 0);
    assert_true(point->done >= p->last_done && point->done <= point->total);
    assert_true(point->shape[0] != 0 && point->rows >= 1);
    p->last_done = point->done;
    p->total = point->total;
    return ++p->n == p->stop_at;
}

static fm_machine *machine_with_cache(void) {
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error);
    machine->cache_dir = fm__alloc(sizeof(cache));
    memcpy(machine->cache_dir, cache, sizeof(cache));
    return machine;
}

/* Warnings that the times of the tape for one row contradict each other. */
static void note_contradiction(void *user, fm_log_level level, const char *line) {
    if (level == FM_LOG_WARNING && strstr(line, "with up to 1 row two units were"))
        ++*(int *)user;
}

static void calibrated(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = machine_with_cache();
    fm_engine_options o = small();
    fm_engine *engine = load(machine, &o);
    fm_lab_calibration found;
    fm_gate_info info;
    const float *logits;
    progress p = {.stop_at = 5};
    if (fm_lab_calibrate(engine, note_point, &p, &found, &error) != FM_ERROR_CANCELLED)
        fail_msg("%s: %s", error.place, error.message);
    assert_null(found.curves);
    assert_false(engine->calibrated);

    p = (progress){0};
    int contradictions = 0;
    assert_int_equal(engine->buckets[0].tape->max_rows, 1);
    fm_log_set(note_contradiction, &contradictions, FM_LOG_WARNING);
    CHECK_OK(fm_lab_calibrate(engine, note_point, &p, &found, &error));
    fm_log_set(NULL, NULL, FM_LOG_WARNING);
    assert_int_equal(found.n_curve, engine->n_bucket);
    for (uint32_t i = 0; i < found.n_curve; i++) {
        const struct fm_lab_curve *c = &found.curves[i];
        assert_int_equal(c->rows, engine->buckets[i].tape->max_rows);
        assert_true(c->n_point >= 2 && c->share[0] == 0);
        assert_true(c->best >= 0 && c->best <= 1 && c->gain > 0 && c->best_ms > 0);
        for (int arm = FM_ARM_CPU; arm < FM_ARM_SPLIT; arm++)
            assert_true(c->arm_ms[arm] > 0);
        /* q and o, k and v, gate and up, down, the output */
        assert_true(c->n_product >= 4 && c->n_product <= FM_LAB_PRODUCTS);
        for (uint32_t k = 0; k < c->n_product; k++)
            assert_true(c->products[k].share >= 0 && c->products[k].share <= 1);
    }
    assert_int_equal(access(found.path, R_OK), 0);
    fm_lab_calibration_free(&found);
    assert_int_equal(engine->pools[0].n_free, engine->pools[0].n_page);
    fm_engine_gate_info(engine, &info);
    assert_true(info.calibrated);
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_SPLIT, &error));
    /* On a busy machine times may contradict each other: then no arm's is kept. */
    assert_in_range(contradictions, 0, 1);
    for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++)
        assert_int_equal(engine->buckets[0].predicted[arm] > 0, contradictions == 0);
    double share = info.share_prefill;

    /* It is in use, and a session runs on. */
    fm_session *session = NULL;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, ids, 30, &logits, &error));
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);

    /* The next engine finds it, in full as test_engine_calibration.c says; one with other options
       does not. */
    engine = load(machine, &o);
    fm_engine_gate_info(engine, &info);
    assert_true(info.calibrated);
    assert_true(info.calibration_age_s < 600);
    assert_true(share - info.share_prefill < 1e-5 && info.share_prefill - share < 1e-5);
    fm_engine_destroy(&engine);
    o.axis = FM_AXIS_TOKENS;
    engine = load(machine, &o);
    fm_engine_gate_info(engine, &info);
    assert_false(info.calibrated);

    /* One for these options stands beside the first. */
    CHECK_OK(fm_lab_calibrate(engine, NULL, NULL, &found, &error));
    fm_lab_calibration_free(&found);
    fm_engine_destroy(&engine);
    static const fm_axis axes[] = {FM_AXIS_AUTO, FM_AXIS_TOKENS, FM_AXIS_CHANNELS};
    for (int i = 0; i < 3; i++) {
        o.axis = axes[i];
        engine = load(machine, &o);
        fm_engine_gate_info(engine, &info);
        assert_int_equal(info.calibrated, axes[i] != FM_AXIS_CHANNELS);
        fm_engine_destroy(&engine);
    }
    fm_machine_destroy(&machine);
}

/* A calibration that is far off what runs take expires: in the gate at once, on disk when the
   engine goes; what other options have saved stays. */
static void expired(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = machine_with_cache();
    fm_engine_options o = small();
    fm_lab_calibration found;
    const float *logits;
    fm_gate_info info;
    for (int axis = 0; axis < 2; axis++) {
        o.axis = (fm_axis)axis;
        fm_engine *engine = load(machine, &o);
        CHECK_OK(fm_lab_calibrate(engine, NULL, NULL, &found, &error));
        fm_lab_calibration_free(&found);
        fm_engine_destroy(&engine);
    }
    o.axis = FM_AXIS_CHANNELS;
    fm_engine *engine = load(machine, &o);
    fm_session *session = NULL;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    assert_true(engine->calibrated && engine->buckets[0].predicted_work > 0);
    for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++)
        engine->buckets[0].predicted[arm] /= 50; /* as if the machine had been so fast */
    fm__choose_init(engine);
    for (int i = 0; i < 60; i++)
        CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
    assert_true(engine->expired);
    assert_true(engine->buckets[0].choosers[0].gate.expired);
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);
    for (int axis = 0; axis < 2; axis++) {
        o.axis = (fm_axis)axis;
        engine = load(machine, &o);
        fm_engine_gate_info(engine, &info);
        assert_int_equal(info.calibrated, axis == 1);
        fm_engine_destroy(&engine);
    }
    fm_machine_destroy(&machine);
}

/* What an engine does with a GPU that nothing is known of, here with a team in its place. */
static void estimated(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error);
    fm_engine_options o = small();
    fm_engine *engine = load(machine, &o);
    const float *logits;
    assert_false(fm__calibration_wants_estimate(engine)); /* it is no real GPU */
    assert_int_equal(fm_engine_set_arm(engine, FM_ARM_SPLIT, &error), FM_ERROR_ARGUMENT);
    CHECK_OK(fm__calibration_estimate(engine, &error));
    engine->estimated = true; /* whatever the two threads gained */
    fm__arms_find(engine);
    fm__choose_init(engine);
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        const fm__bucket *bucket = &engine->buckets[b];
        assert_non_null(bucket->op_shares);
        for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++)
            assert_true(bucket->predicted[arm] > 0);
        for (uint32_t i = 0; i < bucket->tape->n_op; i++)
            assert_true(bucket->op_shares[i][1] >= 0 && bucket->op_shares[i][1] <= 1);
    }
    assert_false(engine->calibrated);
    CHECK_OK(fm_engine_set_arm(engine, FM_ARM_SPLIT, &error));
    fm_session *session = NULL;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, ids, 30, &logits, &error));
    fm_session_destroy(&session);
    assert_int_equal(engine->pools[0].n_free, engine->pools[0].n_page);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* Tapes with more rows than the context has tokens: an estimate takes as many as there are, and a
   calibration, which is kept for other contexts too, refuses. */
static void short_context(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_DISCRETE, &error);
    fm_engine_options o = small();
    fm_lab_calibration found;
    o.context_length = 5;
    fm_engine *engine = load(machine, &o);
    assert_true(engine->buckets[engine->n_bucket - 1].tape->max_rows > 5);
    CHECK_OK(fm__calibration_estimate(engine, &error));
    for (uint32_t b = 0; b < engine->n_bucket; b++)
        assert_true(engine->buckets[b].predicted[FM_ARM_CPU] > 0);
    assert_int_equal(fm_lab_calibrate(engine, NULL, NULL, &found, &error), FM_ERROR_LIMIT);
    assert_non_null(strstr(error.message, "this one is of 5"));
    assert_int_equal(engine->pools[0].n_free, engine->pools[0].n_page);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

static void not_calibrated(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_units_machine(TEST_HOST, &error);
    fm_engine_options o = small();
    fm_engine *engine = load(machine, &o);
    fm_lab_calibration found;
    assert_int_equal(fm_lab_calibrate(engine, NULL, NULL, &found, &error), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "two units"));
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* ---- memory ---- */

/* The number behind `before` in a message. */
static double number_in(const char *message, const char *before) {
    const char *at = strstr(message, before);
    if (!at)
        fail_msg("no \"%s\" in \"%s\"", before, message);
    return atof(at + strlen(before));
}

static fm_machine *discrete(uint64_t budget, uint64_t own) {
    fm_machine *machine = test_discrete_machine(budget);
    machine->devices[0]->properties.memory_bytes = own;
    return machine;
}

/* A context that was said to fit fits, and a page more does not. */
static void context_that_fits(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_info info;
    fm_engine_options o = fm_engine_options_default();
    o.chunk_rows = 32;
    o.context_length = 64;
    CHECK_OK(fm_engine_measure(model, &o, &info, &error));
    uint64_t fixed = info.weight_bytes + info.scratch_bytes + info.cache_bytes;
    for (int kind = 0; kind < 2; kind++) {
        /* Room for a bit more than 64 tokens, in host memory or in the device's own. */
        fm_machine *machine = kind == 0 ? test_units_machine(TEST_HOST, &error)
                                        : discrete(UINT64_C(1) << 30, (fixed + 500000) / 9 * 10);
        if (kind == 0)
            machine->memory_budget = fixed + 500000;
        fm_engine *engine = NULL;
        o.weights = FM_WEIGHTS_SHARED;
        o.context_length = 512;
        if (kind == 1) {
            fm_engine_options least = o;
            least.context_length = 64;
            engine = load(machine, &least);
            uint64_t own = engine->need.own;
            fm_engine_destroy(&engine);
            machine->devices[0]->properties.memory_bytes = (own + 500000) / 9 * 10;
        }
        assert_int_equal(fm_engine_load(&engine, machine, model, &o, &error), FM_ERROR_MEMORY);
        o.context_length = (uint32_t)number_in(error.message, "a context of ");
        assert_true(o.context_length >= 64 && o.context_length < 512);
        engine = load(machine, &o);
        fm_engine_destroy(&engine);
        o.context_length += 64;
        assert_int_equal(fm_engine_load(&engine, machine, model, &o, &error), FM_ERROR_MEMORY);
        test_no_engine(machine);
        fm_machine_destroy(&machine);
    }
}

static void residency_that_fits(void **state) {
    (void)state;
    fm_engine_options o = small();
    fm_machine *machine = discrete(UINT64_C(1) << 30, UINT64_C(1) << 30);
    fm_engine *engine = load(machine, &o);
    uint64_t all = engine->need.own, copies = engine->need.copies;
    fm_engine_info info;
    fm_engine_get_info(engine, &info);
    assert_true(copies > 0 && info.copy_bytes == copies + engine->need.vectors);
    assert_true(info.own_bytes == all && info.mirror_bytes == engine->need.scratch);
    /* The panels are in host memory all the same: nothing there counts twice. */
    assert_true(engine->need.host == info.weight_bytes + engine->need.mirror + engine->need.output);
    assert_true(fm_machine_memory_used(machine) == engine->need.host);
    fm_engine_destroy(&engine);

    /* Half of the copies fit: auto keeps some resident and streams the rest, resident refuses. */
    machine->devices[0]->properties.memory_bytes = (all - copies / 2) / 9 * 10;
    engine = load(machine, &o);
    assert_true(engine->need.copies > copies / 4 && engine->need.copies <= copies / 2);
    uint32_t resident = 0, streamed = 0;
    for (uint32_t i = 0; i < engine->model->n_weight; i++) {
        if (engine->model->weights[i]->role != FM__ROLE_LINEAR)
            continue;
        resident += engine->residency[i] == FM__RESIDENCY_RESIDENT;
        streamed += engine->residency[i] == FM__RESIDENCY_STREAMED;
    }
    assert_true(resident > 0 && streamed > 0);
    fm_engine_destroy(&engine);
    o.weights = FM_WEIGHTS_RESIDENT;
    not_loaded(machine, &o, FM_ERROR_MEMORY, "weights resident: their copies need");
    o.weights = FM_WEIGHTS_STREAMED;
    engine = load(machine, &o);
    assert_true(engine->need.copies == 0);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* A second engine finds the device's own memory taken. */
static void engines_share_memory(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options o = small();
    o.weights = FM_WEIGHTS_RESIDENT;
    fm_machine *machine = discrete(UINT64_C(1) << 30, UINT64_C(1) << 30);
    fm_engine *first = load(machine, &o), *second = NULL;
    machine->devices[0]->properties.memory_bytes = first->need.own * 2 / 9 * 10 - (1 << 20);
    assert_int_equal(fm_engine_load(&second, machine, model, &o, &error), FM_ERROR_MEMORY);
    fm_engine_destroy(&first);
    second = load(machine, &o);
    fm_engine_destroy(&second);
    fm_machine_destroy(&machine);
}

/* Whichever allocation fails, a load over two units says so (or does without, as a pattern does
   without being compiled), and leaks nothing. */
static void failing_allocations(void **state) {
    (void)state;
    fm_machine *machine = discrete(UINT64_C(1) << 30, UINT64_C(1) << 30);
    fm_engine_options o = small();
    o.split = 0.5;
    uint64_t before = fm__alloc_count();
    fm_engine *engine = load(machine, &o);
    uint64_t all = fm__alloc_count() - before, failed = 0;
    fm_engine_destroy(&engine);
    for (uint64_t n = 1; n <= all; n += n < 60 ? 1 : 7) {
        fm_error error = {0};
        fm__alloc_fail_after(n);
        fm_status status = fm_engine_load(&engine, machine, model, &o, &error);
        fm__alloc_fail_after(0);
        if (status != FM_OK && status != FM_ERROR_MEMORY)
            fail_msg("allocation %llu: %s: %s", (unsigned long long)n, error.place, error.message);
        failed += status != FM_OK;
        fm_engine_destroy(&engine);
        test_no_engine(machine);
    }
    assert_true(failed > 60);
    fm_machine_destroy(&machine);
}

/* The device has less memory than it says: with auto weights fewer are resident, and bits stay. */
static void less_than_promised(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = discrete(UINT64_C(1) << 30, UINT64_C(1) << 30);
    fm_machine *plain = test_units_machine(TEST_HOST, &error);
    fm_engine_options o = small();
    fm_engine *reference = load(plain, &o);
    float *want = test_all_logits(reference, ids, 30);
    uint32_t streamed = 0;
    for (uint64_t n = 1; n < 400 && streamed == 0; n++) {
        fm_engine *engine = NULL;
        fm__alloc_fail_after(n);
        fm_status status = fm_engine_load(&engine, machine, model, &o, &error);
        fm__alloc_fail_after(0);
        for (uint32_t i = 0; status == FM_OK && i < engine->model->n_weight; i++)
            streamed += engine->residency[i] == FM__RESIDENCY_STREAMED;
        if (streamed > 0) {
            CHECK_OK(fm_engine_set_arm(engine, FM_ARM_GPU, &error));
            float *got = test_all_logits(engine, ids, 30);
            test_same_bits(want, got, (size_t)30 * fm_engine_vocab_size(engine), "with less");
            free(got);
        }
        fm_engine_destroy(&engine);
    }
    assert_true(streamed > 0);
    test_no_engine(machine);
    free(want);
    fm_engine_destroy(&reference);
    fm_machine_destroy(&machine);
    fm_machine_destroy(&plain);
}

/* Once an arm has run it allocates nothing, nor does the gate. */
static void decode_allocates_nothing(void **state) {
    (void)state;
    fm_error error = {0};
    for (int units = TEST_PAIR; units < TEST_UNITS; units++) {
        fm_machine *machine = test_units_machine((test_units)units, &error);
        fm_engine_options o = small();
        const float *logits;
        if (!machine)
            continue;
        o.split = 0.5;
        fm_engine *engine = load(machine, &o);
        fm_session *session = NULL;
        CHECK_OK(fm_session_create(&session, engine, NULL, &error));
        for (uint32_t arm = 0; arm < FM__ARM_COUNT; arm++) {
            if (arm != FM_ARM_AUTO && !(engine->arms >> arm & 1))
                continue;
            CHECK_OK(fm_engine_set_arm(engine, (fm_arm)arm, &error));
            for (int i = 0; i < 6; i++) {
                uint64_t before = fm__alloc_count();
                CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
                if (arm != FM_ARM_AUTO && i > 0 && fm__alloc_count() != before)
                    fail_msg("%s, arm %s: %llu allocations", test_units_names[units],
                             fm_arm_name((fm_arm)arm),
                             (unsigned long long)(fm__alloc_count() - before));
            }
        }
        /* All arms have run by now. */
        CHECK_OK(fm_engine_set_arm(engine, FM_ARM_AUTO, &error));
        uint64_t before = fm__alloc_count();
        for (int i = 0; i < 20; i++)
            CHECK_OK(fm_session_decode(session, ids[i], &logits, &error));
        assert_int_equal(fm__alloc_count(), before);
        fm_session_destroy(&session);
        fm_engine_destroy(&engine);
        fm_machine_destroy(&machine);
    }
}

static int make_model(void **state) {
    (void)state;
    fm_error error = {0};
    for (int i = 0; i < 64; i++)
        ids[i] = (i * 131 + 17) % 509;
    if (!mkdtemp(folder))
        return 1;
    snprintf(model, sizeof(model), "%s/tiny.gguf", folder);
    snprintf(cache, sizeof(cache), "%s/cache", folder);
    if (mkdir(cache, 0700) != 0)
        return 1;
    return fm_lab_synth(model, "tiny", "q4_k_m", 1, NULL, NULL, &error) == FM_OK ? 0 : 1;
}

static void remove_files(const char *path) {
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory)) != NULL;) {
        char file[400];
        snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.' && unlink(file) != 0)
            remove_files(file);
    }
    if (directory)
        closedir(directory);
    rmdir(path);
}

static int remove_model(void **state) {
    (void)state;
    remove_files(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_one_team),
        cmocka_unit_test(of_two_teams),
        cmocka_unit_test(of_a_discrete_unit),
        cmocka_unit_test(shares_that_are_reported),
        cmocka_unit_test(placements_follow),
        cmocka_unit_test(explained),
        cmocka_unit_test(gate_measures),
        cmocka_unit_test(gate_rests),
        cmocka_unit_test(calibrated),
        cmocka_unit_test(expired),
        cmocka_unit_test(estimated),
        cmocka_unit_test(short_context),
        cmocka_unit_test(not_calibrated),
        cmocka_unit_test(context_that_fits),
        cmocka_unit_test(residency_that_fits),
        cmocka_unit_test(engines_share_memory),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(less_than_promised),
        cmocka_unit_test(decode_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
