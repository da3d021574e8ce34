/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/budget.c: what an engine's memory adds up to, and whether there is room for it.
 *
 * Owns: the sums, and the sentences that name their parts. Never does: allocate. Called from: the
 * loading thread, before anything large is allocated, and after a unit was lost.
 *
 * Memory that two units address is counted once. A discrete GPU's own memory is a budget of its
 * own: what lies there does not count against the machine's.
 */
#include "engine/engine.h"

#include <string.h>

static double mib(uint64_t bytes) {
    return (double)bytes / 0x1p20;
}

/* A discrete GPU is the main unit: it keeps the cache and works on its own activations. */
static bool is_discrete(const fm_engine *engine) {
    return engine->gpu && !engine->gpu->properties.unified;
}

/* Its copies of weights, and what it keeps, lie in its own memory. */
static bool has_own(const fm_engine *engine) {
    return engine->gpu && fm__device_has_own(&engine->gpu->properties);
}

/* While residencies are not planned nothing is streamed. */
static bool streams(const fm_engine *engine) {
    for (uint32_t i = 0; engine->gpu && engine->residency && i < engine->model->n_weight; i++) {
        if (engine->residency[i] == FM__RESIDENCY_STREAMED)
            return true;
    }
    return false;
}

/* A unit beside a discrete GPU, which keeps the cache, attends nothing. */
static bool attends(const fm_engine *engine, uint32_t unit) {
    return !is_discrete(engine) || engine->units[unit] == engine->gpu;
}

static void add_up_kept(fm_engine *engine) {
    fm__memory_need *n = &engine->need;
    for (uint32_t u = 0; u < FM__MAX_UNITS; u++) {
        n->kept[u] = n->kept_most[u] = 0;
        for (uint32_t b = 0; u < engine->n_unit && attends(engine, u) && b < engine->n_bucket;
             b++) {
            const fm__tape *tape = engine->buckets[b].tape;
            n->kept[u] =
                fm__max_size(n->kept[u], fm__device_scratch_bytes(engine->units[u], tape, false));
            n->kept_most[u] = fm__max_size(n->kept_most[u],
                                           fm__device_scratch_bytes(engine->units[u], tape, true));
        }
    }
}

/* Of what units keep, by where it lies; ring included. */
static uint64_t kept_bytes(const fm_engine *engine, bool own) {
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < engine->n_unit; u++)
        if (own == fm__device_has_own(&engine->units[u]->properties))
            bytes +=
                engine->need.kept[u] + (engine->units[u] == engine->gpu ? engine->need.ring : 0);
    return bytes;
}

void fm__engine_add_up(fm_engine *engine) {
    fm__memory_need *n = &engine->need;
    bool discrete = is_discrete(engine);
    n->weights = engine->model->weight_bytes;
    n->cache = engine->info.cache_bytes;
    n->scratch = fm__engine_largest(engine, false);
    n->output = fm__engine_largest(engine, true);
    n->mirror = discrete ? n->scratch : 0;
    n->session = fm__session_bytes(engine, engine->context_length);
    size_t batch = 0;
    (void)fm__batch_bytes(engine, engine->options.batch_outputs, &batch); /* below 2^60 */
    n->batch = batch;
    n->ring = streams(engine) ? engine->gpu->properties.ring_bytes : 0;
    add_up_kept(engine);
    uint64_t copies = n->vectors + n->copies;
    uint64_t state = n->scratch + n->cache;
    n->own_alone = (discrete ? state : 0) + (has_own(engine) ? copies : 0);
    n->host_alone =
        n->weights + n->output + (discrete ? n->mirror : state) + (has_own(engine) ? 0 : copies);
    n->own = n->own_alone + kept_bytes(engine, true);
    n->host = n->host_alone + kept_bytes(engine, false);
    fm_engine_info *info = &engine->info;
    info->weight_bytes = n->weights;
    info->mapped_bytes = engine->model->mapped_bytes;
    info->scratch_bytes = n->scratch + n->output;
    info->mirror_bytes = n->mirror;
    info->copy_bytes = copies;
    info->own_bytes = n->own;
    info->kept_bytes = kept_bytes(engine, false) + kept_bytes(engine, true);
}

/* Tokens of context for which `over` bytes less would be needed; 0: no context is that short. */
static uint32_t context_that_fits(const fm_engine *engine, uint64_t over) {
    const fm__hparams *h = &engine->model->hparams;
    uint64_t tables = (uint64_t)h->rotary * sizeof(float); /* a position's cosines and sines */
    uint64_t page =
        (tables + fm__session_bytes(engine, 1) - fm__session_bytes(engine, 0)) * FM__PAGE_TOKENS;
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        const fm__cache_group *group = &engine->model->groups[g];
        page += group->head_bytes * group->n_kv_head * group->n_layer;
    }
    uint64_t pages = (engine->context_length + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
    for (uint32_t u = 0; u < engine->n_unit; u++) /* a shorter one may need more of these */
        over += engine->need.kept_most[u] - engine->need.kept[u];
    uint64_t fewer = (over + page - 1) / page;
    return fewer < pages ? (uint32_t)(pages - fewer) * FM__PAGE_TOKENS : 0;
}

/* A part of the need, and what makes it smaller. */
typedef struct need_part {
    char text[48];
    bool one; /* it needs, they need */
} need_part;

/* "runs of fewer rows than 512 and a shorter context need less" */
static void list_parts(const need_part *parts, uint32_t n, char *out, size_t capacity) {
    size_t used = 0;
    for (uint32_t i = 0; i < n && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%s",
                                 i == 0      ? ""
                                 : i + 1 < n ? ", "
                                 : n == 2    ? " and "
                                             : ", and ",
                                 parts[i].text);
    if (used < capacity)
        snprintf(out + used, capacity - used, " need%s less", n == 1 && parts[0].one ? "s" : "");
}

/* What needs less: one part that `over` bytes can come from, the cache first where it is what is
   large, else all parts that count. own: of a discrete GPU's memory, which has no outputs.
   How much of what units keep depends on the rows is not known here: none of it is counted as what
   fewer rows would save. */
static void advise(const fm_engine *engine, uint64_t over, bool own, char *out, size_t capacity) {
    const fm__memory_need *n = &engine->need;
    uint32_t fixed = engine->options.cache_tokens, chunk = engine->chunk_rows;
    uint32_t tokens = fixed ? 0 : context_that_fits(engine, over);
    uint64_t activations = n->scratch + (own ? 0 : n->output), batch = own ? 0 : n->batch;
    uint64_t rows = activations - activations / chunk; /* runs of one row need some, too */
    bool cache_will_do = tokens || (fixed && over < n->cache);
    uint64_t all = activations + batch + n->cache + (own ? 0 : n->session);
    need_part parts[3], cache = {.text = "a shorter context", .one = true};
    uint32_t n_part = 0;
    if (fixed) {
        cache.one = false;
        snprintf(cache.text, sizeof(cache.text), "fewer cache_tokens than %u", fixed);
    }
    if (over > all + fm__engine_further(engine, own)) {
        snprintf(out, capacity, "the weights alone need more");
        return;
    }
    if (cache_will_do && (n->cache >= rows + batch || over > fm__max_size(rows, batch))) {
        if (tokens)
            snprintf(out, capacity, "a context of %u tokens would fit", tokens);
        else
            list_parts(&cache, 1, out, capacity);
        return;
    }
    if (rows && over > batch)
        snprintf(parts[n_part++].text, sizeof(parts->text), "runs of fewer rows than %u", chunk);
    if (batch && (over <= batch || over > rows))
        snprintf(parts[n_part++].text, sizeof(parts->text), "batches of fewer outputs than %u",
                 engine->options.batch_outputs);
    if (over > rows + batch)
        parts[n_part++] = cache;
    list_parts(parts, n_part, out, capacity);
}

uint64_t fm__engine_further(const fm_engine *engine, bool own) {
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < engine->n_unit; u++) {
        fm__device *unit = engine->units[u];
        if (own != fm__device_has_own(&unit->properties))
            continue;
        bytes +=
            fm__machine_would_keep(engine->machine, unit, FM__KEEPS_SCRATCH, engine->need.kept[u]);
        if (unit == engine->gpu)
            bytes +=
                fm__machine_would_keep(engine->machine, unit, FM__KEEPS_RING, engine->need.ring);
    }
    return bytes;
}

/* Less what the engine itself has counted. */
static uint64_t used_by_others(const fm_engine *engine) {
    return fm_machine_memory_used(engine->machine) - engine->reserved;
}

static fm_status over_budget(const fm_engine *engine, fm_error *error) {
    const fm__memory_need *n = &engine->need;
    const fm_machine *machine = engine->machine;
    uint64_t used = used_by_others(engine), budget = machine->memory_budget;
    uint64_t left = used < budget ? budget - used : 0;
    char parts[280], advice[160];
    snprintf(parts, sizeof(parts), "weights %.1f, cache %.1f, activations %.1f, a session %.1f",
             mib(n->weights), is_discrete(engine) ? 0.0 : mib(n->cache),
             mib(n->output + (is_discrete(engine) ? n->mirror : n->scratch)), mib(n->session));
    if (n->batch) {
        size_t end = strlen(parts);
        snprintf(parts + end, sizeof(parts) - end, ", outputs of batches %.1f", mib(n->batch));
    }
    if (!has_own(engine) && n->vectors + n->copies) {
        size_t end = strlen(parts);
        snprintf(parts + end, sizeof(parts) - end, ", copies on %s %.1f",
                 engine->gpu->properties.name, mib(n->vectors + n->copies));
    }
    if (kept_bytes(engine, false)) {
        size_t end = strlen(parts);
        snprintf(parts + end, sizeof(parts) - end, ", kept by units %.1f",
                 mib(kept_bytes(engine, false)));
    }
    if (is_discrete(engine)) /* no part of it depends on the context */
        snprintf(advice, sizeof(advice), "%.1f MiB are too few for this model", mib(left));
    else
        advise(engine,
               n->host_alone + n->session + n->batch + fm__engine_further(engine, false) - left,
               false, advice, sizeof(advice));
    return fm__error(error, FM_ERROR_MEMORY, engine->model->checkpoint->path,
                     "needs %.1f MiB (%s), budget %.1f MiB of which %.1f MiB are in use; %s",
                     mib(n->host + n->session + n->batch), parts, mib(budget), mib(used), advice);
}

static fm_status over_own(const fm_engine *engine, fm_error *error) {
    const fm__memory_need *n = &engine->need;
    uint64_t left = fm__machine_own_left(engine->machine, engine->gpu) + engine->reserved_own;
    char advice[160];
    if (is_discrete(engine))
        advise(engine, n->own_alone + fm__engine_further(engine, true) - left, true, advice,
               sizeof(advice));
    else /* no part of it depends on the context */
        snprintf(advice, sizeof(advice), "weights shared or streamed need less");
    return fm__error(
        error, FM_ERROR_MEMORY, engine->gpu->properties.name,
        "%.1f MiB of its own memory are needed (weights %.1f, cache %.1f, activations "
        "%.1f, streaming %.1f, temporaries %.1f), %.1f of %.1f MiB are free for it; %s",
        mib(n->own), mib(n->vectors + n->copies), mib(is_discrete(engine) ? n->cache : 0),
        mib(is_discrete(engine) ? n->scratch : 0), mib(n->ring),
        mib(kept_bytes(engine, true) - n->ring), mib(left),
        mib(engine->gpu->properties.memory_bytes), advice);
}

static uint8_t *keeps_of(fm_engine *engine, const fm__device *unit) {
    uint32_t i = 0;
    while (engine->machine->devices[i] != unit)
        i++;
    return &engine->keeps[i];
}

/* Counts it, as far as the engine does not already. */
static bool keep(fm_engine *engine, const fm__device *unit, fm__keeps what, uint64_t bytes) {
    uint8_t *keeps = keeps_of(engine, unit);
    if (bytes == 0)
        return true;
    if (*keeps >> what & 1)
        return fm__machine_keep_more(engine->machine, unit, what, bytes);
    if (!fm__machine_keep(engine->machine, unit, what, bytes))
        return false;
    *keeps |= (uint8_t)(1u << what);
    return true;
}

static void let_go(fm_engine *engine, uint32_t device) {
    for (int what = 0; what < FM__KEEPS_COUNT; what++)
        if (engine->keeps[device] >> what & 1)
            fm__machine_let_go(engine->machine, engine->machine->devices[device], (fm__keeps)what);
    engine->keeps[device] = 0;
}

fm_status fm__engine_reserve_kept(fm_engine *engine, fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t u = 0; u < engine->n_unit && status == FM_OK; u++) {
        fm__device *unit = engine->units[u];
        uint64_t ring = unit == engine->gpu ? engine->need.ring : 0;
        if (!keep(engine, unit, FM__KEEPS_SCRATCH, engine->need.kept[u]) ||
            !keep(engine, unit, FM__KEEPS_RING, ring))
            status = fm__device_has_own(&unit->properties) ? over_own(engine, error)
                                                           : over_budget(engine, error);
        else
            status = fm__device_scratch_reserve(unit, engine->need.kept[u], error);
    }
    return status;
}

fm_status fm__engine_reserve(fm_engine *engine, fm_error *error) {
    const fm__memory_need *n = &engine->need;
    uint64_t later = n->session + n->batch; /* which sessions and batches count themselves */
    if (!fm__machine_reserve(engine->machine, n->host_alone + later))
        return over_budget(engine, error);
    engine->reserved = n->host_alone + later;
    if (n->own_alone > 0) {
        if (!fm__machine_reserve_own(engine->machine, engine->gpu, n->own_alone))
            return over_own(engine, error);
        engine->reserved_own = n->own_alone;
    }
    fm_status status = fm__engine_reserve_kept(engine, error);
    fm__machine_release(engine->machine, later);
    engine->reserved = n->host_alone;
    return status;
}

void fm__engine_settle(fm_engine *engine) {
    uint64_t ring = engine->need.ring;
    fm__engine_add_up(engine);
    if (engine->need.ring < ring)
        fm__machine_keep_less(engine->machine, engine->gpu, FM__KEEPS_RING, engine->need.ring);
}

void fm__engine_release_gpu(fm_engine *engine) {
    if (engine->reserved_own)
        fm__machine_release_own(engine->machine, engine->gpu, engine->reserved_own);
    engine->reserved_own = 0;
    for (uint32_t i = 0; i < engine->machine->n_device; i++)
        if (engine->machine->devices[i] == engine->gpu)
            let_go(engine, i);
}

void fm__engine_release(fm_engine *engine) {
    fm__machine_release(engine->machine, engine->reserved);
    engine->reserved = 0;
    if (engine->reserved_own)
        fm__machine_release_own(engine->machine, engine->gpu, engine->reserved_own);
    engine->reserved_own = 0;
    for (uint32_t i = 0; i < engine->machine->n_device; i++)
        let_go(engine, i);
}
