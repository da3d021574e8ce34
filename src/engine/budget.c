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

/* While residencies are not planned nothing is streamed. */
static bool streams(const fm_engine *engine) {
    for (uint32_t i = 0; engine->gpu && engine->residency && i < engine->model->n_weight; i++) {
        if (engine->residency[i] == FM__RESIDENCY_STREAMED)
            return true;
    }
    return false;
}

void fm__engine_add_up(fm_engine *engine) {
    fm__memory_need *n = &engine->need;
    bool discrete = is_discrete(engine);
    n->weights = engine->model->weight_bytes;
    n->cache = engine->info.cache_bytes;
    n->scratch = fm__engine_largest(engine, false);
    n->output = fm__engine_largest(engine, true);
    n->mirror = discrete ? n->scratch : 0;
    n->ring = streams(engine) ? engine->gpu->properties.ring_bytes : 0;
    uint64_t copies = n->vectors + n->copies;
    uint64_t gpu = n->scratch + n->cache + copies + n->ring;
    n->own = discrete ? gpu : 0;
    n->host = n->weights + n->output + (discrete ? n->mirror : gpu);
    fm_engine_info *info = &engine->info;
    info->weight_bytes = n->weights;
    info->mapped_bytes = engine->model->mapped_bytes;
    info->scratch_bytes = n->scratch + n->output;
    info->mirror_bytes = n->mirror;
    info->copy_bytes = copies;
    info->own_bytes = n->own;
}

/* Tokens of context for which `over` bytes less would be needed; 0: no context is that short. */
static uint32_t context_that_fits(const fm_engine *engine, uint64_t over) {
    const fm__hparams *h = &engine->model->hparams;
    uint64_t tables = (uint64_t)h->rotary * sizeof(float); /* a position's cosines and sines */
    uint64_t page = tables * FM__PAGE_TOKENS;
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        const fm__cache_group *group = &engine->model->groups[g];
        page += group->head_bytes * group->n_kv_head * group->n_layer;
    }
    uint64_t pages = (engine->context_length + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
    uint64_t fewer = (over + page - 1) / page;
    return fewer < pages ? (uint32_t)(pages - fewer) * FM__PAGE_TOKENS : 0;
}

/* "; a context of 1024 tokens would fit" */
static void advise(const fm_engine *engine, uint64_t over, char *out, size_t capacity) {
    uint32_t tokens = context_that_fits(engine, over);
    if (engine->options.cache_tokens)
        snprintf(out, capacity, "fewer cache_tokens than %u need less",
                 engine->options.cache_tokens);
    else if (tokens)
        snprintf(out, capacity, "a context of %u tokens would fit", tokens);
    else
        snprintf(out, capacity,
                 "no context is short enough: the weights and activations alone "
                 "need more");
}

static fm_status over_budget(const fm_engine *engine, fm_error *error) {
    const fm__memory_need *n = &engine->need;
    const fm_machine *machine = engine->machine;
    uint64_t used = fm_machine_memory_used(machine), budget = machine->memory_budget;
    uint64_t left = used < budget ? budget - used : 0;
    char parts[200], advice[120];
    snprintf(parts, sizeof(parts), "weights %.1f, cache %.1f, activations %.1f", mib(n->weights),
             is_discrete(engine) ? 0.0 : mib(n->cache),
             mib(n->output + (is_discrete(engine) ? n->mirror : n->scratch)));
    if (!is_discrete(engine) && n->vectors + n->copies) {
        size_t end = strlen(parts);
        snprintf(parts + end, sizeof(parts) - end, ", copies on %s %.1f",
                 engine->gpu->properties.name, mib(n->vectors + n->copies));
    }
    if (is_discrete(engine)) /* no part of it depends on the context */
        snprintf(advice, sizeof(advice), "%.1f MiB are too few for this model", mib(left));
    else
        advise(engine, n->host - left, advice, sizeof(advice));
    return fm__error(error, FM_ERROR_MEMORY, engine->model->checkpoint->path,
                     "needs %.1f MiB (%s), budget %.1f MiB of which %.1f MiB are in use; %s",
                     mib(n->host), parts, mib(budget), mib(used), advice);
}

static fm_status over_own(const fm_engine *engine, fm_error *error) {
    const fm__memory_need *n = &engine->need;
    uint64_t left = fm__machine_own_left(engine->machine, engine->gpu);
    char advice[120];
    advise(engine, n->own - left, advice, sizeof(advice));
    return fm__error(error, FM_ERROR_MEMORY, engine->gpu->properties.name,
                     "%.1f MiB of its own memory are needed (weights %.1f, cache %.1f, activations "
                     "%.1f, streaming %.1f), %.1f of %.1f MiB are free for it; %s",
                     mib(n->own), mib(n->vectors + n->copies), mib(n->cache), mib(n->scratch),
                     mib(n->ring), mib(left), mib(engine->gpu->properties.memory_bytes), advice);
}

fm_status fm__engine_reserve(fm_engine *engine, fm_error *error) {
    if (!fm__machine_reserve(engine->machine, engine->need.host))
        return over_budget(engine, error);
    engine->reserved = engine->need.host;
    if (engine->need.own == 0)
        return FM_OK;
    if (!fm__machine_reserve_own(engine->machine, engine->gpu, engine->need.own))
        return over_own(engine, error);
    engine->reserved_own = engine->need.own;
    return FM_OK;
}

void fm__engine_release(fm_engine *engine) {
    fm__machine_release(engine->machine, engine->reserved);
    engine->reserved = 0;
    if (engine->reserved_own)
        fm__machine_release_own(engine->machine, engine->gpu, engine->reserved_own);
    engine->reserved_own = 0;
}
