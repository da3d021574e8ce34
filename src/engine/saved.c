/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/saved.c: a calibration between two processes.
 *
 * Owns: what a calibration's key is for an engine, and how shapes and tapes are named in the store.
 * Never does: measure, or know the file (exec/store.h). Called from: the loading and the
 * calibrating thread.
 */
#include "engine/engine.h"

#include <string.h>
#include <time.h>

#include "engine/source.h" /* made by the build: FM__SOURCE_HASH, FM__SOURCE_DIRTY */

static void make_key(const fm_engine *engine, fm__store_key *key) {
    const fm__device_properties *host = &engine->host->properties;
    *key = (fm__store_key){.threads = host->threads, .model_hash = engine->model->hash};
    snprintf(key->cpu, sizeof(key->cpu), "%s", host->description);
    snprintf(key->rung, sizeof(key->rung), "%s", host->rung);
    snprintf(key->power, sizeof(key->power), "%s", fm__power_name(fm__power_source("")));
    snprintf(key->build, sizeof(key->build), "%s %s%s", fm_version(), FM__SOURCE_HASH,
             FM__SOURCE_DIRTY ? "+" : "");
    bool f16 = engine->info.cache_type == FM_CACHE_F16;
    snprintf(key->model_type, sizeof(key->model_type), "%.*s%s", f16 ? 31 : 19,
             engine->info.weight_types, f16 ? "" : ", q8_0 cache");
    if (engine->gpu)
        snprintf(key->driver, sizeof(key->driver), "%s", engine->gpu->properties.driver);
    /* A team's name says which processors it has. Shares are of the last unit: the order counts. */
    for (uint32_t u = 0; u < engine->n_unit; u++) {
        const fm__device_properties *p = &engine->units[u]->properties;
        size_t end = strlen(key->units);
        snprintf(key->units + end, sizeof(key->units) - end, "%s%.60s x%u%s", end ? "; " : "",
                 strcmp(p->kind, "gpu") == 0 ? p->description : p->name, p->threads,
                 p->hosted    ? " hosted"
                 : p->unified ? ""
                              : " discrete");
    }
}

/* Where the GPU finds products' weights: as most of them lie. */
static fm__residency weights_of(const fm_engine *engine) {
    uint64_t bytes[FM__RESIDENCY_MAPPED + 1] = {0};
    fm__residency most = FM__RESIDENCY_SHARED;
    for (uint32_t i = 0; engine->residency && i < engine->model->n_weight; i++) {
        const fm__weight *w = engine->model->weights[i];
        if (w->role == FM__ROLE_LINEAR)
            bytes[engine->residency[i]] += w->bytes;
    }
    for (int r = 0; r <= FM__RESIDENCY_MAPPED; r++)
        most = bytes[r] > bytes[most] ? (fm__residency)r : most;
    return most;
}

static fm__store_shape shape_of(const fm_engine *engine, const fm__shape *shape, uint32_t rows) {
    const fm__plan_options options = fm__arms_options(engine);
    fm__store_shape out = {.product = {.kind = FM__OP_COUNT},
                           .rows = rows,
                           .axis = options.axis,
                           .deps = options.deps,
                           .weights = weights_of(engine)};
    if (shape)
        out.product = *shape;
    return out;
}

/* ---- saving ---- */

void fm__saved_begin(fm__store *store, const fm_engine *engine) {
    fm__store_key key;
    make_key(engine, &key);
    fm__store_init(store, &key);
}

fm_status fm__saved_add_products(fm__store *store, const fm_engine *engine,
                                 const fm__bucket *bucket, const fm__tape_classes *classes,
                                 const double *shares, double gain, fm_error *error) {
    const fm__tape *tape = bucket->tape;
    fm_status status = FM_OK;
    /* Not by class: the last one may hold many shapes. Those of several ops take their own place.
     */
    for (uint32_t i = 0; i < tape->n_op && status == FM_OK; i++) {
        fm__shape shape;
        if (!fm__shape_of(tape, i, &shape))
            continue;
        const fm__store_entry entry = {.shape = shape_of(engine, &shape, tape->max_rows),
                                       .share = shares[classes->class_of[i]],
                                       .gain = gain};
        status = fm__store_put(store, &entry, error);
    }
    return status;
}

static const fm_arm arms[FM__STORE_ARMS] = {[FM__STORE_CPU] = FM_ARM_CPU,
                                            [FM__STORE_GPU] = FM_ARM_GPU,
                                            [FM__STORE_EAGER] = FM_ARM_EAGER,
                                            [FM__STORE_SPLIT] = FM_ARM_SPLIT};

fm_status fm__saved_add_tape(fm__store *store, const fm_engine *engine, const fm__bucket *bucket,
                             fm_error *error) {
    fm__store_entry entry = {.shape = shape_of(engine, NULL, bucket->tape->max_rows),
                             .gain = 1,
                             .dealt = bucket->whole_products};
    for (int i = 0; i < FM__STORE_ARMS; i++)
        entry.ns_of_work[i] = bucket->predicted[arms[i]];
    return fm__store_put(store, &entry, error);
}

fm_status fm__saved_path(const fm__store *store, const fm_engine *engine, char *path,
                         size_t capacity, fm_error *error) {
    return fm__store_path(engine->machine->cache_dir, &store->key, path, capacity, error);
}

/* The engine goes by what the store holds for its options. */
static fm_status remember(const fm__store *store, const char *path, fm_engine *engine,
                          fm_error *error) {
    const fm__store_shape these = shape_of(engine, NULL, 1);
    if (!fm__store_digest(store, &these, &engine->saved.digest))
        return fm__error_memory(error, "calibration", store->n_entry * sizeof(*store->entries));
    engine->saved.key = store->key;
    snprintf(engine->saved.path, sizeof(engine->saved.path), "%s", path);
    return FM_OK;
}

fm_status fm__saved_write(fm__store *store, fm_engine *engine, const char *path, fm_error *error) {
    engine->saved.path[0] = 0;
    fm_status status = fm__store_save(store, path, (uint64_t)time(NULL), error);
    return status == FM_OK ? remember(store, path, engine, error) : status;
}

void fm__saved_expire(const fm_engine *engine) {
    const char *path = engine->saved.path;
    fm_error error = {0};
    const fm__store_shape these = shape_of(engine, NULL, 1);
    if (path[0] && fm__store_expire(&engine->saved.key, path, &these, engine->saved.digest,
                                    (uint64_t)time(NULL), &error) != FM_OK)
        fm__log(FM_LOG_WARNING, "%s: the calibration, which has expired, stays: %s", error.place,
                error.message);
}

/* ---- loading ---- */

/* Shares of other numbers of rows say something up to a factor, and times up to a smaller one,
   within which drift is not taken for it (the gate's 1.3). */
static const double NEAR_SHARES = 3, NEAR_TIMES = 1.25;

/* The entry of the nearest number of rows; NULL: none within the factor. */
static const fm__store_entry *find(const fm_engine *engine, const fm__store *store,
                                   const fm__shape *shape, uint32_t rows, double factor) {
    const fm__store_shape key = shape_of(engine, shape, rows);
    const fm__store_entry *entry = fm__store_find(store, &key);
    if (!entry || entry->shape.rows > factor * rows || rows > factor * entry->shape.rows)
        return NULL;
    return entry;
}

/* What is saved for the bucket; nothing of it: the bucket stays as without a calibration. */
static fm_status take_bucket(const fm_engine *engine, const fm__store *store, fm__bucket *bucket,
                             bool *found, fm_error *error) {
    const fm__tape *tape = bucket->tape;
    uint32_t rows = tape->max_rows;
    bool any = false;
    double(*shares)[FM__MAX_UNITS] = fm__alloc_array(tape->n_op, sizeof(*shares));
    if (!shares)
        return fm__error_memory(error, "calibration", tape->n_op * sizeof(*shares));
    for (uint32_t i = 0; i < tape->n_op; i++) {
        fm__shape shape;
        if (!fm__shape_of(tape, i, &shape))
            continue;
        const fm__store_entry *entry = find(engine, store, &shape, rows, NEAR_SHARES);
        fm__arms_give(engine, entry ? entry->share : 0, shares[i]);
        any = any || entry;
    }
    if (!any) {
        fm__free(shares);
        return FM_OK;
    }
    *found = true;
    bucket->op_shares = shares;
    const fm__store_entry *whole = find(engine, store, NULL, rows, NEAR_SHARES);
    bucket->whole_products = whole && whole->dealt;
    whole = find(engine, store, NULL, rows, NEAR_TIMES);
    if (!whole)
        return FM_OK;
    for (int i = 0; i < FM__STORE_ARMS; i++)
        bucket->predicted[arms[i]] = whole->ns_of_work[i];
    bucket->predicted_work = fm__choose_full_work(engine, rows);
    return FM_OK;
}

fm_status fm__calibration_load(fm_engine *engine, fm_error *error) {
    fm__store store;
    char path[512];
    uint64_t now = (uint64_t)time(NULL);
    if (engine->n_unit < 2)
        return FM_OK;
    fm__saved_begin(&store, engine);
    fm_status status =
        fm__store_path(engine->machine->cache_dir, &store.key, path, sizeof(path), error);
    if (status != FM_OK) /* where nothing can be saved nothing is */
        return status == FM_ERROR_MEMORY ? status : FM_OK;
    if (fm__store_load(&store, path, now)) {
        bool found = false;
        for (uint32_t b = 0; b < engine->n_bucket && status == FM_OK; b++)
            status = take_bucket(engine, &store, &engine->buckets[b], &found, error);
        if (status == FM_OK && found)
            status = remember(&store, path, engine, error);
        if (status == FM_OK && found) {
            engine->calibrated = true;
            engine->calibration_age_s = fm__store_age_s(&store, now);
        }
    }
    fm__store_finish(&store);
    return status;
}
