/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/buffers.c: the memory that a run binds, and pages inside the cache.
 *
 * Owns: one instance of each slot, and a second of the scratch where the GPU is discrete. Never
 * does: decide who computes. Called from: the loading thread, and any thread that holds the
 * engine's lock.
 *
 *                   scratch              output        cache
 *     host only     host                 host          host
 *     unified GPU   GPU, mapped          GPU, mapped   GPU, mapped
 *     discrete GPU  GPU + host's mirror  host          GPU
 *     hosted GPU    host                 host          host
 *
 * With a GPU, "host" is memory that it addresses too, so that it can copy to and from it.
 */
#include "engine/engine.h"

#include <assert.h>
#include <string.h>

/* ---- slots ---- */

/* The GPU's own memory, but for what a discrete one's host reads at the end, and where it works on
   host memory. */
static fm__memory memory_of(const fm_engine *engine, fm__slot slot) {
    if (engine->gpu && engine->gpu->properties.hosted)
        return FM__MEMORY_HOST;
    bool discrete = engine->gpu && !engine->gpu->properties.unified;
    return discrete && slot == FM__SLOT_OUTPUT ? FM__MEMORY_HOST : FM__MEMORY_LOCAL;
}

fm_status fm__buffers_slot(const fm_engine *engine, fm__slot slot, size_t bytes,
                           fm__buffer **buffer, fm__buffer **mirror, fm_error *error) {
    fm__device *device = engine->gpu ? engine->gpu : engine->units[0];
    fm_status status =
        fm__device_buffer_create(device, bytes, memory_of(engine, slot), buffer, error);
    if (status == FM_OK && slot == FM__SLOT_SCRATCH && engine->need.mirror)
        status = fm__device_buffer_create(device, bytes, FM__MEMORY_HOST, mirror, error);
    return status;
}

static fm_status create_slots(fm_engine *engine, fm_error *error) {
    const uint64_t bytes[FM__SLOT_COUNT] = {
        [FM__SLOT_SCRATCH] = engine->need.scratch,
        [FM__SLOT_OUTPUT] = engine->need.output,
        [FM__SLOT_CACHE] = engine->need.cache,
    };
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++) {
        size_t size = fm__max_size((size_t)bytes[slot], 64);
        fm_status status = fm__buffers_slot(engine, (fm__slot)slot, size, &engine->buffers[slot],
                                            &engine->mirrors[slot], error);
        if (status != FM_OK)
            return status;
        engine->run.buffers[slot] = engine->buffers[slot];
        engine->run.mirrors[slot] = engine->mirrors[slot];
    }
    return FM_OK;
}

/* A device's fresh memory holds anything; keys and values that no row has written are multiplied by
   zero weights, so they must be finite. Host pages come zeroed. */
static fm_status clear_cache(fm_engine *engine, fm_error *error) {
    enum { PIECE = 1 << 20 };
    fm__buffer *cache = engine->buffers[FM__SLOT_CACHE];
    if (engine->cache) {
        if (cache->device == engine->gpu)
            memset(engine->cache, 0, cache->bytes);
        return FM_OK;
    }
    uint8_t *zeros = fm__alloc_zero(PIECE);
    if (!zeros)
        return fm__error_memory(error, "cache", PIECE);
    fm_status status = FM_OK;
    for (size_t at = 0; at < cache->bytes && status == FM_OK; at += PIECE)
        status = fm__device_buffer_write(cache, at, zeros, fm__min_size(PIECE, cache->bytes - at),
                                         error);
    fm__free(zeros);
    return status;
}

static size_t page_layer_bytes(const fm__cache_group *g) {
    return g->n_kv_head * g->head_bytes;
}

fm_status fm__buffers_create(fm_engine *engine, fm_error *error) {
    fm_status status = create_slots(engine, error);
    if (status != FM_OK)
        return status;
    engine->cache = fm__device_buffer_map(engine->buffers[FM__SLOT_CACHE]);
    engine->output = fm__device_buffer_map(engine->buffers[FM__SLOT_OUTPUT]);
    if (!engine->output)
        return fm__error(error, FM_ERROR_DEVICE,
                         engine->buffers[FM__SLOT_OUTPUT]->device->properties.name,
                         "its host memory has no address");
    size_t page = 0;
    for (uint32_t g = 0; g < engine->model->n_group; g++)
        page = fm__max_size(page, page_layer_bytes(&engine->model->groups[g]));
    engine->page = fm__alloc(page);
    if (!engine->page)
        return fm__error_memory(error, "page", page);
    engine->run.status = &engine->run_status;
    engine->run.cancel = &engine->cancel;
    engine->run.order = &engine->machine->order;
    return clear_cache(engine, error);
}

void fm__buffers_destroy(fm_engine *engine) {
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++) {
        fm__device_buffer_destroy(&engine->mirrors[slot]);
        fm__device_buffer_destroy(&engine->buffers[slot]);
        engine->run.buffers[slot] = engine->run.mirrors[slot] = NULL;
    }
    engine->cache = NULL;
    engine->output = NULL;
    fm__free(engine->page);
    engine->page = NULL;
}

/* ---- pages ---- */

static size_t place(const fm_engine *engine, uint32_t group, uint32_t page, uint32_t layer) {
    return fm__cache_offset(&engine->model->groups[group], layer, page, 0);
}

fm_status fm__page_read(fm_engine *engine, uint32_t group, uint32_t page, uint32_t layer, void *out,
                        fm_error *error) {
    return fm__device_buffer_read(engine->buffers[FM__SLOT_CACHE],
                                  place(engine, group, page, layer), out,
                                  page_layer_bytes(&engine->model->groups[group]), error);
}

fm_status fm__page_write(fm_engine *engine, uint32_t group, uint32_t page, uint32_t layer,
                         const void *from, fm_error *error) {
    return fm__device_buffer_write(engine->buffers[FM__SLOT_CACHE],
                                   place(engine, group, page, layer), from,
                                   page_layer_bytes(&engine->model->groups[group]), error);
}

fm_status fm__page_copy(fm_engine *engine, uint32_t group, uint32_t page, uint32_t from,
                        fm_error *error) {
    const fm__cache_group *g = &engine->model->groups[group];
    fm_status status = FM_OK;
    for (uint32_t layer = 0; layer < g->n_layer && status == FM_OK; layer++) {
        const uint8_t *data = engine->page;
        if (engine->cache)
            data = engine->cache + place(engine, group, from, layer);
        else
            status = fm__page_read(engine, group, from, layer, engine->page, error);
        if (status == FM_OK)
            status = fm__page_write(engine, group, page, layer, data, error);
    }
    return status;
}
