/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/pool.c: pages of one cache group, reference counted.
 *
 * Owns: the free list and the counts. Never does: touch the pages' memory. Called from: any thread
 * that holds the engine's lock.
 */
#include "engine/engine.h"

#include <assert.h>

fm_status fm__pool_init(fm__pool *pool, uint32_t n_page, fm_error *error) {
    *pool = (fm__pool){.n_page = n_page, .n_free = n_page};
    pool->free_list = fm__alloc_array(n_page, sizeof(uint32_t));
    pool->references = fm__alloc_array(n_page, sizeof(uint32_t));
    if (!pool->free_list || !pool->references) {
        fm__pool_finish(pool);
        return fm__error_memory(error, "page pool", (size_t)n_page * 2 * sizeof(uint32_t));
    }
    for (uint32_t i = 0; i < n_page; i++)
        pool->free_list[i] = n_page - 1 - i; /* low pages first */
    return FM_OK;
}

void fm__pool_finish(fm__pool *pool) {
    fm__free(pool->free_list);
    fm__free(pool->references);
    *pool = (fm__pool){0};
}

uint32_t fm__pool_take(fm__pool *pool) {
    if (pool->n_free == 0)
        return FM__NO_PAGE;
    uint32_t page = pool->free_list[--pool->n_free];
    pool->references[page] = 1;
    return page;
}

void fm__pool_share(fm__pool *pool, uint32_t page) {
    assert(page < pool->n_page && pool->references[page] > 0);
    pool->references[page]++;
}

void fm__pool_drop(fm__pool *pool, uint32_t page) {
    assert(page < pool->n_page && pool->references[page] > 0);
    if (--pool->references[page] == 0)
        pool->free_list[pool->n_free++] = page;
}
