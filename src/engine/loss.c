/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/loss.c: going on after a unit was lost.
 *
 * Owns: the rebuilding of what lay on the unit, and of sessions' caches. Never does: bring a unit
 * back. Called from: any thread that holds the engine's lock.
 *
 * Panels lie in host memory, and sessions hold their tokens: those are all that is needed. The
 * slots are made anew on the units that are left; a session's cache is computed again from its
 * tokens when it next runs, into the pages that it holds (sessions that share pages write the same
 * bits into them).
 */
#include "engine/engine.h"

#include <string.h>

/* ---- units ---- */

static uint32_t find_lost(const fm_engine *engine) {
    uint32_t lost = engine->lost;
    for (uint32_t i = 0; i < engine->machine->n_device; i++) {
        if (fm__device_is_lost(engine->machine->devices[i]))
            lost |= 1u << i;
    }
    return lost;
}

static void warn(const fm_engine *engine, uint32_t fresh) {
    for (uint32_t i = 0; i < engine->machine->n_device; i++) {
        const fm__device_properties *p = &engine->machine->devices[i]->properties;
        if (fresh >> i & 1)
            fm__log(FM_LOG_WARNING,
                    "%s (%s) was lost: the engine goes on without it, and computes what sessions "
                    "had cached again",
                    p->name, p->description);
    }
}

static void let_go(fm_engine *engine) {
    fm__arms_forget(engine);
    fm__buffers_destroy(engine);
    if (engine->gpu && fm__device_is_lost(engine->gpu)) {
        fm__weights_drop_copies(engine);
        fm__engine_release_gpu(engine);
    }
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        fm__free(bucket->op_shares);
        bucket->op_shares = NULL;
        bucket->whole_products = false;
        memset(bucket->predicted, 0, sizeof(bucket->predicted));
        bucket->predicted_work = 0;
    }
    engine->calibrated = engine->estimated = engine->expired = false;
}

/* What was in the unit's memory now counts against the machine's budget. */
static fm_status reserve_again(fm_engine *engine, fm_error *error) {
    fm__engine_add_up(engine);
    uint64_t need = engine->need.host_alone;
    if (need > engine->reserved && !fm__machine_reserve(engine->machine, need - engine->reserved))
        return fm__error(
            error, FM_ERROR_MEMORY, "engine",
            "after a unit was lost %.1f MiB more are needed in host memory, the budget "
            "of %.1f MiB has %.1f MiB in use",
            (double)(need - engine->reserved) / 0x1p20,
            (double)engine->machine->memory_budget / 0x1p20,
            (double)fm_machine_memory_used(engine->machine) / 0x1p20);
    if (need < engine->reserved)
        fm__machine_release(engine->machine, engine->reserved - need);
    engine->reserved = need;
    return fm__engine_reserve_kept(engine, error);
}

static fm_status rebuild(fm_engine *engine, fm_error *error) {
    if (engine->n_unit == 0)
        return fm__error(
            error, FM_ERROR_DEVICE, "engine",
            "every unit was lost; sessions keep their tokens and can be run by another "
            "engine");
    fm_status status = reserve_again(engine, error);
    if (status == FM_OK)
        status = fm__buffers_create(engine, error);
    if (status != FM_OK) {
        fm__buffers_destroy(engine);
        return status;
    }
    engine->needs_rebuild = false;
    fm__arms_find(engine);
    fm__choose_init(engine);
    if (engine->forced != FM_ARM_AUTO && !(engine->arms >> engine->forced & 1)) {
        fm__log(FM_LOG_WARNING, "arm %s is gone with it: the engine chooses among those left",
                fm_arm_name(engine->forced));
        engine->forced = FM_ARM_AUTO;
    }
    return FM_OK;
}

fm_status fm__loss_check(fm_engine *engine, bool *changed, fm_error *error) {
    uint32_t lost = find_lost(engine), fresh = lost & ~engine->lost;
    *changed = false;
    if (!fresh && !engine->needs_rebuild)
        return FM_OK;
    if (fresh) {
        warn(engine, fresh);
        let_go(engine);
        engine->lost = lost;
        fm__arms_find_units(engine, lost);
        engine->epoch++;
        engine->needs_rebuild = true;
    }
    fm_status status = rebuild(engine, error);
    *changed = status == FM_OK;
    return status;
}

/* ---- sessions ---- */

/* The keys that later rows of the session see begin on a later page than this one. */
static bool is_behind(const fm__cache_group *g, uint32_t page, uint32_t length) {
    return g->window && length + 1 > g->window &&
           (page + 1) * FM__PAGE_TOKENS <= length + 1 - g->window;
}

/* Pages that the window left behind are needed once more, while rows [begin, end) run: these write
   their keys, and the first of them sees those of the window before it. */
static fm_status lend_pages(fm_engine *engine, fm_session *s, uint32_t begin, uint32_t end,
                            fm_error *error) {
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        for (uint32_t p = 0; p < s->dropped[g] && p * FM__PAGE_TOKENS < end; p++) {
            if (s->pages[g][p] != FM__NO_PAGE || is_behind(&engine->model->groups[g], p, begin))
                continue;
            s->pages[g][p] = fm__pool_take(&engine->pools[g]);
            if (s->pages[g][p] == FM__NO_PAGE)
                return fm__error(
                    error, FM_ERROR_LIMIT, "page pool",
                    "a session's cache was lost with a unit; to compute it again takes "
                    "a page of %d tokens more, all %u are taken",
                    FM__PAGE_TOKENS, engine->pools[g].n_page);
        }
    }
    return FM_OK;
}

static void take_back(fm_engine *engine, fm_session *s, uint32_t length) {
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        for (uint32_t p = 0; p < s->dropped[g]; p++) {
            if (s->pages[g][p] == FM__NO_PAGE || !is_behind(&engine->model->groups[g], p, length))
                continue;
            fm__pool_drop(&engine->pools[g], s->pages[g][p]);
            s->pages[g][p] = FM__NO_PAGE;
        }
    }
}

static fm_status run_again(fm_engine *engine, fm_session *s, uint32_t begin, uint32_t n,
                           fm_error *error) {
    const uint32_t *pages[FM__MAX_GROUPS];
    for (uint32_t g = 0; g < engine->model->n_group; g++)
        pages[g] = s->pages[g];
    fm__run_entry entry = {.session = s, .base = begin, .count = n};
    fm__rows_view rows = {
        .n_row = n,
        .token = s->tokens + begin,
        .last = FM_OUTPUT_NONE,
        .entries = &entry,
        .n_entry = 1,
        .pages = pages,
    };
    return fm__engine_run_again(engine, &rows, error);
}

fm_status fm__loss_refresh(fm_engine *engine, fm_session *s, fm_error *error) {
    fm_status status = FM_OK;
    if (engine->needs_rebuild)
        status = fm__loss_check(engine, &(bool){false}, error);
    if (status != FM_OK || s->epoch == engine->epoch)
        return status;
    for (uint32_t begin = 0; begin < s->length && status == FM_OK;) {
        uint32_t left = s->length - begin;
        uint32_t n = left < engine->chunk_rows ? left : engine->chunk_rows;
        status = lend_pages(engine, s, begin, begin + n, error);
        if (status == FM_ERROR_LIMIT && n > FM__PAGE_TOKENS) { /* fewer rows take fewer pages */
            n = FM__PAGE_TOKENS - begin % FM__PAGE_TOKENS;
            status = lend_pages(engine, s, begin, begin + n, error);
        }
        if (status == FM_OK)
            status = run_again(engine, s, begin, n, error);
        begin += n;
        take_back(engine, s, status == FM_OK ? begin : s->length);
    }
    if (status == FM_OK)
        s->epoch = engine->epoch;
    return status;
}
