/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/choose.c: the gate's place in the engine: which arm runs the next tape.
 *
 * Owns: one gate for each bucket of rows and bucket of cached tokens, the order of preference where
 * nothing is known, and the measure of work. Never does: run. Called from: any thread that holds
 * the engine's lock.
 *
 * The work of a tape run, in rows: WEIGHT_ROWS for reading the weights once, 1 for each row, and
 * for each row the multiply-adds of its attention over those of its products. It is the same for
 * every arm, so that times divided by it compare within a bucket.
 *
 * A model of the fast class may give other last bits on another arm: such an engine keeps one arm,
 * the one with the lowest prediction, or the first in the order of preference.
 */
#include "engine/engine.h"

#include <string.h>

enum { WEIGHT_ROWS = 16 };

static const uint32_t cache_bounds[FM__CACHE_BUCKETS] = {512, 2048, 8192, UINT32_MAX};

static uint32_t cache_bucket(uint32_t cached) {
    uint32_t i = 0;
    while (cached > cache_bounds[i])
        i++;
    return i;
}

/* ---- work ---- */

static double attention_work(const fm__model *model) {
    double products = 0, attention = 0;
    for (uint32_t i = 0; i < model->n_weight; i++) {
        const fm__weight *w = model->weights[i];
        products += w->role == FM__ROLE_LINEAR ? (double)w->n * w->k : 0;
    }
    const fm__hparams *h = &model->hparams;
    attention = (double)h->n_layer * h->n_head * (h->key_dim + h->value_dim);
    return products > 0 ? attention / products : 0;
}

double fm__choose_work(const fm_engine *engine, const fm__batch_view *view) {
    uint32_t window = engine->model->hparams.window;
    double keys = 0;
    for (uint32_t i = 0; i < view->n_row; i++) {
        uint32_t seen = view->position[i] + 1;
        keys += window && seen > window ? window : seen;
    }
    return WEIGHT_ROWS + view->n_row + keys * engine->attention_work;
}

double fm__choose_full_work(const fm_engine *engine, uint32_t rows) {
    uint32_t window = engine->model->hparams.window;
    double keys = 0;
    for (uint32_t i = 1; i <= rows; i++)
        keys += window && i > window ? window : i;
    return WEIGHT_ROWS + rows + keys * engine->attention_work;
}

/* ---- preference ---- */

static bool equal_teams(const fm_engine *engine) {
    for (uint32_t u = 1; u < engine->n_unit; u++) {
        if (engine->units[u]->properties.threads != engine->units[0]->properties.threads)
            return false;
    }
    return !engine->gpu;
}

/* A real GPU is the likely winner; one that the processor emulates never is; equal teams are faster
   together. */
static uint32_t preferred(const fm_engine *engine, fm_arm out[FM__GATE_ARMS]) {
    static const fm_arm gpu[] = {FM_ARM_GPU, FM_ARM_SPLIT, FM_ARM_CPU, FM_ARM_EAGER},
                        cpu[] = {FM_ARM_CPU, FM_ARM_SPLIT, FM_ARM_GPU, FM_ARM_EAGER},
                        teams[] = {FM_ARM_SPLIT, FM_ARM_CPU, FM_ARM_GPU, FM_ARM_EAGER};
    const fm_arm *order = engine->gpu && !engine->gpu->properties.software ? gpu
                          : equal_teams(engine)                            ? teams
                                                                           : cpu;
    uint32_t n = 0;
    for (int i = 0; i < 4; i++) {
        if (engine->arms >> order[i] & 1)
            out[n++] = order[i];
    }
    return n;
}

/* A GPU with its own copies leaves the host's panels untouched; what computes on the host reads
   them. */
static bool enlarges(const fm_engine *engine, fm_arm arm) {
    return engine->need.copies > 0 && (arm == FM_ARM_CPU || arm == FM_ARM_SPLIT);
}

static void begin(fm_engine *engine, fm__bucket *bucket) {
    const char *names[FM__GATE_ARMS];
    double predicted[FM__GATE_ARMS];
    bool grows[FM__GATE_ARMS];
    fm_arm arms[FM__GATE_ARMS];
    uint32_t n = preferred(engine, arms);
    const fm__gate_options options = {.work = bucket->predicted_work};
    for (uint32_t i = 0; i < n; i++) {
        names[i] = fm_arm_name(arms[i]);
        predicted[i] = bucket->predicted[arms[i]];
        grows[i] = enlarges(engine, arms[i]);
    }
    for (int c = 0; c < FM__CACHE_BUCKETS; c++) {
        memcpy(bucket->choosers[c].arms, arms, sizeof(arms));
        fm__gate_init(&bucket->choosers[c].gate, &options, names, predicted, grows, n);
    }
}

void fm__choose_init(fm_engine *engine) {
    engine->attention_work = attention_work(engine->model);
    for (uint32_t i = 0; i < engine->n_bucket; i++)
        begin(engine, &engine->buckets[i]);
}

/* ---- choosing ---- */

static const fm__chooser *of_fast_class(const fm_engine *engine) {
    return &engine->buckets[engine->n_bucket - 1].choosers[0];
}

static bool is_measuring(const fm_engine *engine, const fm__chooser *chooser) {
    return engine->forced == FM_ARM_AUTO && !engine->options.no_gate && !engine->model->fast &&
           chooser->gate.n_arm > 1;
}

static fm_arm active(const fm_engine *engine, const fm__chooser *chooser) {
    if (engine->forced != FM_ARM_AUTO)
        return engine->forced;
    if (engine->model->fast)
        chooser = of_fast_class(engine);
    return chooser->arms[chooser->gate.active];
}

fm_arm fm__choose_active(const fm_engine *engine, const fm__bucket *bucket) {
    return active(engine, &bucket->choosers[0]);
}

static void log_event(const fm_engine *engine, const fm__bucket *bucket, uint32_t cached,
                      fm_arm arm, double ms, double work, const fm__gate *gate) {
    char line[400];
    if (!engine->options.gate_log)
        return;
    snprintf(line, sizeof(line),
             "{\"bucket\":%u,\"cached\":%u,\"arm\":\"%s\",\"ms\":%.4f,\"work\":%.3f,"
             "\"decision\":\"%s\",\"reason\":\"%s\"}",
             bucket->tape->max_rows, cached, fm_arm_name(arm), ms, work,
             fm__gate_event_name(gate->event), gate->reason);
    engine->options.gate_log(engine->options.gate_log_user, line);
}

fm_arm fm__choose(fm_engine *engine, fm__bucket *bucket, uint32_t cached) {
    fm__chooser *chooser = &bucket->choosers[cache_bucket(cached)];
    if (!is_measuring(engine, chooser))
        return active(engine, chooser);
    bool tight = fm__memory_pressure(&engine->pressure, NULL);
    return chooser->arms[fm__gate_choose(&chooser->gate, tight)];
}

/* A saved calibration does not outlive what it predicted. Its shares stay in use until the engine
   goes: the gate knows what they are worth. */
static void expire(fm_engine *engine, const fm__bucket *bucket, const fm__gate *gate) {
    if (!engine->expired)
        fm__log(FM_LOG_WARNING,
                "the calibration has expired: with up to %u rows %s; `fusionml calibrate` makes a "
                "new one",
                bucket->tape->max_rows, gate->reason);
    engine->expired = true;
}

void fm__choose_feed(fm_engine *engine, fm__bucket *bucket, uint32_t cached, fm_arm arm,
                     uint64_t ns, double work) {
    fm__chooser *chooser = &bucket->choosers[cache_bucket(cached)];
    if (!is_measuring(engine, chooser))
        return;
    for (uint32_t i = 0; i < chooser->gate.n_arm; i++) {
        if (chooser->arms[i] == arm)
            fm__gate_feed(&chooser->gate, i, (double)ns, work);
    }
    if (chooser->gate.event == FM__GATE_EXPIRED && engine->calibrated)
        expire(engine, bucket, &chooser->gate);
    log_event(engine, bucket, cached, arm, (double)ns / 1e6, work, &chooser->gate);
}

bool fm__choose_remove(fm_engine *engine, fm_arm arm) {
    engine->arms &= ~(1u << arm);
    bool left = engine->arms != 0;
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        for (int c = 0; c < FM__CACHE_BUCKETS; c++) {
            fm__chooser *chooser = &engine->buckets[b].choosers[c];
            for (uint32_t i = 0; i < chooser->gate.n_arm; i++) {
                if (chooser->arms[i] == arm)
                    left = fm__gate_remove(&chooser->gate, i) && left;
            }
        }
    }
    return left;
}

/* ---- reports ---- */

fm_status fm_engine_set_arm(fm_engine *engine, fm_arm arm, fm_error *error) {
    pthread_mutex_lock(&engine->lock);
    fm_status status = fm__arms_check(engine, arm, error);
    if (status == FM_OK)
        engine->forced = engine->options.arm = arm;
    pthread_mutex_unlock(&engine->lock);
    return status;
}

/* Multiply-adds of a product in a run that fills its tape; 0: it is none. */
static double product_work(const fm__tape *tape, const fm__op *op) {
    if (!fm__is_product(op->kind))
        return 0;
    const fm__weight *w = tape->weights[op->weight[0]];
    uint32_t rows = tape->tensors[op->out].rows == FM__ROWS_OUTPUT ? 1 : tape->max_rows;
    return (double)w->n * w->k * rows * (op->kind == FM__OP_LINEAR_GLU ? 2 : 1);
}

/* What a plan gives the last unit of all operations in products: borders are multiples of
   something, and whole products are few. */
static double share_in(const fm_engine *engine, const fm__way *way, uint32_t rows) {
    double last = 0, all = 0;
    for (uint32_t u = 0; u < engine->n_unit; u++) {
        last = way->ops_of_row[u] * rows + way->ops_of_output[u];
        all += last;
    }
    return all > 0 ? last / all : 0;
}

/* The last unit's share of the bucket's products, by their operations: as planned or, as long as
   nothing is, as wanted. */
static double share_of(const fm_engine *engine, const fm__bucket *bucket) {
    const fm__tape *tape = bucket->tape;
    double common[FM__MAX_UNITS], of_last = 0, all = 0;
    if (!(engine->arms >> FM_ARM_SPLIT & 1))
        return 0;
    if (bucket->ways[FM_ARM_SPLIT].plan)
        return share_in(engine, &bucket->ways[FM_ARM_SPLIT], tape->max_rows);
    fm__arms_shares(engine, common);
    for (uint32_t i = 0; i < tape->n_op; i++) {
        bool own = bucket->op_shares && engine->options.split < 0;
        const double *shares = own ? bucket->op_shares[i] : common;
        double work = product_work(tape, &tape->ops[i]), sum = 0;
        for (uint32_t u = 0; u < engine->n_unit; u++)
            sum += shares[u];
        if (sum > 0)
            of_last += work * (shares[engine->n_unit - 1] / sum);
        all += work;
    }
    return all > 0 ? of_last / all : 0;
}

/* The widest bucket that the gate has been asked about; none: the widest of all. */
static const fm__bucket *widest_run(const fm_engine *engine) {
    for (uint32_t b = engine->n_bucket; b-- > 1;)
        for (int c = 0; c < FM__CACHE_BUCKETS; c++)
            if (engine->buckets[b].choosers[c].gate.calls > 0)
                return &engine->buckets[b];
    return &engine->buckets[engine->n_bucket - 1];
}

void fm_engine_gate_info(const fm_engine *engine, fm_gate_info *out) {
    *out = (fm_gate_info){0};
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&engine->lock);
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        for (int c = 0; c < FM__CACHE_BUCKETS; c++) {
            const fm__gate *gate = &engine->buckets[b].choosers[c].gate;
            out->probes += gate->probes;
            out->switches += gate->switches;
            out->forbidden += gate->forbidden;
            out->spent_ms += gate->spent_ns / 1e6;
            out->lost_ms += gate->lost_ns / 1e6;
        }
    }
    for (int arm = 0; arm < FM__ARM_COUNT; arm++) {
        out->calls_of[arm] = engine->calls_of[arm];
        out->calls += engine->calls_of[arm];
    }
    const fm__bucket *first = &engine->buckets[0], *last = widest_run(engine);
    out->active_decode = fm__choose_active(engine, first);
    out->active_prefill = fm__choose_active(engine, last);
    out->share_decode = share_of(engine, first);
    out->share_prefill = share_of(engine, last);
    out->arms = engine->arms;
    out->calibrated = engine->calibrated;
    out->calibration_age_s = engine->calibration_age_s;
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&engine->lock);
}
