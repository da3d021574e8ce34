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
    /* The unit that shares with the host, or the other teams. */
    for (uint32_t u = 0; u < engine->n_unit; u++) {
        const fm__device_properties *p = &engine->units[u]->properties;
        size_t end = strlen(key->gpu);
        if (engine->units[u] == engine->host)
            continue;
        snprintf(key->gpu + end, sizeof(key->gpu) - end, "%s%.60s x%u%s", end ? "; " : "",
                 engine->units[u] == engine->gpu ? p->description : p->name, p->threads,
                 p->hosted    ? " hosted"
                 : p->unified ? ""
                              : " discrete");
        if (engine->units[u] == engine->gpu)
            snprintf(key->driver, sizeof(key->driver), "%s", p->driver);
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
    fm__store_shape out = {.kind = FM__OP_COUNT,
                           .rows = rows,
                           .axis = options.axis,
                           .deps = options.deps,
                           .weights = weights_of(engine)};
    if (shape) {
        out.kind = shape->kind;
        out.n = shape->n;
        out.k = shape->k;
        out.types[0] = shape->types[0];
        out.types[1] = shape->types[1];
        out.fast = shape->fast;
        out.output = shape->output;
    }
    return out;
}

/* ---- saving ---- */

static void begin(fm__store *store, const fm_engine *engine) {
    fm__store_key key;
    make_key(engine, &key);
    fm__store_init(store, &key);
}

void fm__saved_begin(fm__store *store, const fm_engine *engine) {
    char path[512];
    begin(store, engine);
    /* What other axes, dependencies and residencies found stays. */
    if (fm__store_path(engine->machine->cache_dir, &store->key, path, sizeof(path)))
        fm__store_load(store, path, (uint64_t)time(NULL));
}

fm_status fm__saved_add(fm__store *store, const fm_engine *engine, const fm__shape *shape,
                        uint32_t rows, double share, double gain, fm_error *error) {
    const fm__store_entry entry = {
        .shape = shape_of(engine, shape, rows), .share = share, .gain = gain};
    return fm__store_put(store, &entry, error);
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
    if (!fm__store_path(engine->machine->cache_dir, &store->key, path, capacity))
        return fm__error(error, FM_ERROR_IO, "cache folder",
                         "there is none to save the calibration in: give one");
    return FM_OK;
}

fm_status fm__saved_write(fm__store *store, const char *path, fm_error *error) {
    return fm__store_save(store, path, (uint64_t)time(NULL), error);
}

void fm__saved_expire(const fm_engine *engine) {
    fm__store store;
    fm_error error = {0};
    char path[512];
    uint64_t now = (uint64_t)time(NULL);
    const fm__store_shape these = shape_of(engine, NULL, 1);
    begin(&store, engine);
    if (fm__store_path(engine->machine->cache_dir, &store.key, path, sizeof(path)) &&
        fm__store_load(&store, path, now) && fm__store_drop(&store, &these) > 0 &&
        fm__store_save(&store, path, store.saved_s, &error) != FM_OK)
        fm__log(FM_LOG_WARNING, "%s: the calibration, which has expired, stays: %s", error.place,
                error.message);
    fm__store_finish(&store);
}

/* ---- loading ---- */

static fm_status take_shares(const fm_engine *engine, const fm__store *store, fm__bucket *bucket,
                             bool *found, fm_error *error) {
    const fm__tape *tape = bucket->tape;
    double(*shares)[FM__MAX_UNITS] = fm__alloc_array(tape->n_op, sizeof(*shares));
    if (!shares)
        return fm__error_memory(error, "calibration", tape->n_op * sizeof(*shares));
    for (uint32_t i = 0; i < tape->n_op; i++) {
        fm__shape shape;
        if (!fm__shape_of(tape, i, &shape))
            continue;
        const fm__store_shape key = shape_of(engine, &shape, tape->max_rows);
        const fm__store_entry *entry = fm__store_find(store, &key);
        fm__arms_give(engine, entry ? entry->share : 0, shares[i]);
        *found = *found || entry;
    }
    bucket->op_shares = shares;
    const fm__store_shape key = shape_of(engine, NULL, tape->max_rows);
    const fm__store_entry *whole = fm__store_find(store, &key);
    bucket->whole_products = whole && whole->dealt;
    for (int i = 0; whole && i < FM__STORE_ARMS; i++)
        bucket->predicted[arms[i]] = whole->ns_of_work[i];
    if (whole && whole->shape.rows == tape->max_rows)
        bucket->predicted_work = fm__choose_full_work(engine, tape->max_rows);
    return FM_OK;
}

fm_status fm__calibration_load(fm_engine *engine, fm_error *error) {
    fm__store store;
    char path[512];
    fm_status status = FM_OK;
    uint64_t now = (uint64_t)time(NULL);
    if (engine->n_unit < 2)
        return FM_OK;
    begin(&store, engine);
    if (fm__store_path(engine->machine->cache_dir, &store.key, path, sizeof(path)) &&
        fm__store_load(&store, path, now)) {
        bool found = false;
        for (uint32_t b = 0; b < engine->n_bucket && status == FM_OK; b++)
            status = take_shares(engine, &store, &engine->buckets[b], &found, error);
        engine->calibrated = status == FM_OK && found;
        engine->calibration_age_s = fm__store_age_s(&store, now);
    }
    fm__store_finish(&store);
    return status;
}
