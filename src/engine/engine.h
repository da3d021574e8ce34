/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/engine.h: the engine room: machine, engine (a loaded model), page pool, batch, session,
 * sampler.
 *
 * Owns: everything behind the public nouns. Never does: kernels, file parsing. Called from: the
 * user's threads; an engine's lock serialises its runs and its pool.
 */
#pragma once

#include <pthread.h>

#include "exec/exec.h"
#include "fusionml/fusionml.h"
#include "model/model.h"
#include "text/text.h"

struct fm_machine {
    fm__device *devices[FM__MAX_UNITS];
    uint32_t n_device;
    uint64_t memory_budget;
    _Atomic uint64_t memory_used;
};

/* ---- pool.c: pages of one cache group, reference counted ---- */

typedef struct fm__pool {
    uint32_t n_page, n_free;
    uint32_t *free_list;  /* (n_page) stack */
    uint32_t *references; /* (n_page) */
} fm__pool;

fm_status fm__pool_init(fm__pool *pool, uint32_t n_page, fm_error *error);
void fm__pool_finish(fm__pool *pool);
uint32_t fm__pool_take(fm__pool *pool); /* one reference; FM__NO_PAGE when empty */
void fm__pool_share(fm__pool *pool, uint32_t page);
void fm__pool_drop(fm__pool *pool, uint32_t page);
