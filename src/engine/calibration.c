/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/calibration.c: the shares of the SPLIT arm, found by measuring.
 *
 * Owns: which shapes are measured at which numbers of rows, and what follows from the results.
 * Never does: time (measure.c), search (exec/calibrate.h), or keep them (saved.c). Called
 * from: the calibrating thread.
 */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

/* Steps of the progress bar that a shape and a tape count for; a search ends when it is sure. */
enum { SHAPE_STEPS = FM__SEARCH_MEASUREMENTS, TAPE_STEPS = 20 };

/* One shape at one number of rows. */
typedef struct entry {
    fm__shape shape;
    uint32_t rows;
    const fm__tape *tape; /* that has such products */
    fm__search search;
} entry;

typedef struct calibrator {
    fm_engine *engine;
    fm_lab_point_callback *callback;
    void *user;
    entry *entries;
    uint32_t n_entry;
    uint32_t done, total; /* steps */
} calibrator;

/* ---- which ---- */

static const entry *find(const entry *entries, uint32_t n, const fm__shape *shape, uint32_t rows) {
    for (uint32_t i = 0; i < n; i++) {
        if (entries[i].rows == rows && fm__shape_equal(&entries[i].shape, shape))
            return &entries[i];
    }
    return NULL;
}

static fm_status add_entries(calibrator *c, const fm__tape *tape, fm_error *error) {
    for (uint32_t i = 0; i < tape->n_op; i++) {
        fm__shape shape;
        if (!fm__shape_of(tape, i, &shape))
            continue;
        uint32_t rows = fm__shape_rows(&shape, tape);
        if (find(c->entries, c->n_entry, &shape, rows))
            continue;
        size_t bytes = (c->n_entry + 1) * sizeof(entry);
        entry *more = fm__realloc(c->entries, bytes);
        if (!more)
            return fm__error_memory(error, "calibration", bytes);
        c->entries = more;
        c->entries[c->n_entry++] = (entry){.shape = shape, .rows = rows, .tape = tape};
    }
    return FM_OK;
}

/* ---- measuring ---- */

static fm_status report(calibrator *c, const char *shape, uint32_t rows, double share, double ns,
                        double ns_0, uint32_t done, fm_error *error) {
    const fm_lab_point point = {.shape = shape,
                                .rows = rows,
                                .share = share,
                                .ms = ns / 1e6,
                                .ms_share_0 = ns_0 / 1e6,
                                .done = done,
                                .total = c->total};
    if (c->callback && c->callback(c->user, &point) != 0)
        return fm__error(error, FM_ERROR_CANCELLED, "calibration", "stopped after %u of %u steps",
                         done, c->total);
    return FM_OK;
}

static fm_status search_share(calibrator *c, entry *e, fm_error *error) {
    fm__measure *measure = NULL;
    fm_status status = fm__measure_create(&measure, c->engine, e->tape, &e->shape, e->rows, error);
    double share, ns;
    uint32_t steps = 0;
    fm__search_init(&e->search, NULL);
    while (status == FM_OK && fm__search_next(&e->search, &share)) {
        status = fm__measure_share(measure, share, &ns, error);
        if (status != FM_OK)
            break;
        fm__search_feed(&e->search, ns);
        steps += steps + 1 < SHAPE_STEPS;
        double first = e->search.points[0].n ? e->search.points[0].ns[0] : ns;
        status = report(c, e->shape.label, e->rows, share, ns, first, c->done + steps, error);
    }
    c->done += SHAPE_STEPS;
    fm__measure_destroy(&measure);
    return status == FM_OK ? FM_OK : fm__error_within(error, status, e->shape.label);
}

/* ---- what follows ---- */

static fm_status set_shares(calibrator *c, fm__bucket *bucket, fm_error *error) {
    const fm__tape *tape = bucket->tape;
    if (!bucket->op_shares)
        bucket->op_shares = fm__alloc_array(tape->n_op, sizeof(*bucket->op_shares));
    if (!bucket->op_shares)
        return fm__error_memory(error, "calibration", tape->n_op * sizeof(*bucket->op_shares));
    for (uint32_t i = 0; i < tape->n_op; i++) {
        fm__shape shape;
        const entry *e = NULL;
        if (fm__shape_of(tape, i, &shape))
            e = find(c->entries, c->n_entry, &shape, fm__shape_rows(&shape, tape));
        if (e)
            fm__arms_give(c->engine, e->search.best, bucket->op_shares[i]);
    }
    return FM_OK;
}

/* Whole tapes, arm by arm: what the gate begins with. */
static fm_status predict(calibrator *c, fm__bucket *bucket, fm_error *error) {
    fm_engine *engine = c->engine;
    double first = 0;
    for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++) {
        double ns, work;
        if (!(engine->arms >> arm & 1))
            continue;
        char label[32];
        fm_status status = fm__measure_tape(engine, bucket, (fm_arm)arm, &ns, &work, error);
        if (status != FM_OK)
            return status;
        bucket->predicted[arm] = ns / work;
        first = first > 0 ? first : ns;
        snprintf(label, sizeof(label), "whole tape, %s", fm_arm_name((fm_arm)arm));
        c->done += TAPE_STEPS;
        status = report(c, label, bucket->tape->max_rows, arm == FM_ARM_SPLIT ? 1 : 0, ns, first,
                        c->done, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* The shares are in use from here on, and the gate begins anew. */
static void take_over(fm_engine *engine, double age_s) {
    engine->options.split = -1;
    engine->calibrated = true;
    engine->calibration_age_s = age_s;
    fm__arms_forget_one(engine, FM_ARM_SPLIT);
    fm__arms_find(engine);
    if (engine->options.arm == FM_ARM_AUTO)
        engine->forced = FM_ARM_AUTO;
}

static fm_status give_curves(const calibrator *c, fm_lab_calibration *out, fm_error *error) {
    out->curves = fm__alloc_array(c->n_entry, sizeof(*out->curves));
    if (!out->curves)
        return fm__error_memory(error, "calibration", c->n_entry * sizeof(*out->curves));
    enum { ROOM = sizeof(out->curves->share) / sizeof(*out->curves->share) };
    for (uint32_t i = 0; i < c->n_entry; i++) {
        const entry *e = &c->entries[i];
        struct fm_lab_curve *curve = &out->curves[out->n_curve++];
        snprintf(curve->shape, sizeof(curve->shape), "%s", e->shape.label);
        curve->rows = e->rows;
        curve->best = e->search.best;
        curve->gain = e->search.gain;
        for (uint32_t p = 0; p < e->search.n_point && p < ROOM; p++) {
            if (!(e->search.points[p].median > 0) || isinf(e->search.points[p].median))
                continue;
            curve->share[curve->n_point] = e->search.points[p].share;
            curve->ms[curve->n_point++] = e->search.points[p].median / 1e6;
        }
    }
    return FM_OK;
}

static fm_status calibrate(calibrator *c, fm_lab_calibration *out, fm_error *error) {
    fm_engine *engine = c->engine;
    fm_status status = FM_OK;
    for (uint32_t b = 0; b < engine->n_bucket && status == FM_OK; b++)
        status = add_entries(c, engine->buckets[b].tape, error);
    c->total = c->n_entry * SHAPE_STEPS + engine->n_bucket * (FM__ARM_COUNT - 1) * TAPE_STEPS;
    for (uint32_t i = 0; i < c->n_entry && status == FM_OK; i++)
        status = search_share(c, &c->entries[i], error);
    for (uint32_t b = 0; b < engine->n_bucket && status == FM_OK; b++)
        status = set_shares(c, &engine->buckets[b], error);
    if (status != FM_OK)
        return status;
    take_over(engine, 0);
    for (uint32_t b = 0; b < engine->n_bucket && status == FM_OK; b++)
        status = predict(c, &engine->buckets[b], error);
    if (status == FM_OK)
        status = give_curves(c, out, error);
    fm__choose_init(engine);
    return status;
}

static fm_status save(const calibrator *c, fm_lab_calibration *out, fm_error *error) {
    const fm_engine *engine = c->engine;
    fm__store store;
    fm_status status = FM_OK;
    fm__saved_begin(&store, engine);
    for (uint32_t i = 0; i < c->n_entry && status == FM_OK; i++) {
        const entry *e = &c->entries[i];
        status = fm__saved_add(&store, engine, &e->shape, e->rows, e->search.best, e->search.gain,
                               error);
    }
    for (uint32_t b = 0; b < engine->n_bucket && status == FM_OK; b++)
        status = fm__saved_add_tape(&store, engine, &engine->buckets[b], error);
    if (status == FM_OK)
        status = fm__saved_write(&store, engine, out->path, sizeof(out->path), error);
    const fm__store_key *key = &store.key;
    snprintf(out->key, sizeof(out->key),
             "%s, rung %s, %u threads; %s%s%s; power %s; build %s; model %016llx %s", key->cpu,
             key->rung, key->threads, key->gpu, key->driver[0] ? ", driver " : "", key->driver,
             key->power, key->build, (unsigned long long)key->model_hash, key->model_type);
    fm__store_finish(&store);
    return status;
}

fm_status fm_lab_calibrate(fm_engine *engine, fm_lab_point_callback *callback, void *user,
                           fm_lab_calibration *out, fm_error *error) {
    calibrator c = {.engine = engine, .callback = callback, .user = user};
    *out = (fm_lab_calibration){0};
    fm_status status = FM_OK;
    pthread_mutex_lock(&engine->lock);
    if (engine->n_unit < 2)
        status = fm__error(error, FM_ERROR_ARGUMENT, "calibration",
                           "takes two units, this machine has one: see --device");
    if (status == FM_OK)
        status = calibrate(&c, out, error);
    if (status == FM_OK)
        status = save(&c, out, error);
    pthread_mutex_unlock(&engine->lock);
    fm__free(c.entries);
    if (status != FM_OK)
        fm_lab_calibration_free(out);
    return status;
}

void fm_lab_calibration_free(fm_lab_calibration *calibration) {
    if (!calibration)
        return;
    fm__free(calibration->curves);
    *calibration = (fm_lab_calibration){0};
}
