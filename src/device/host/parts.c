/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/parts.c: the memory in which blocks of keys wait to be merged, and which prepared
 * tokens of products share.
 *
 * Owns: that memory, until the device is destroyed. Never does: write to it, but for the counters
 * that begin at 0; allocate after recording. Called from: loading threads; any thread that asks
 * what is held.
 *
 * A team has one piece for all recordings, which use it one after the other. Where a recording
 * needs a larger one, that takes its place, and the smaller stays for those that hold it.
 */
#include "device/host/host.h"

/* Floats for parts at least, so that several rows of a short context fit. */
enum { PARTS = 512 * 1024 };

/* ---- how much ---- */

/* Floats of the parts of one row that sees as many keys as the tape allows. */
static size_t row_floats(const fm__tape *tape, const fm__op *op) {
    const fm__cache_group *group = &tape->groups[op->cache_group];
    uint64_t keys = (uint64_t)group->n_page * FM__PAGE_TOKENS;
    if (tape->position_limit != 0 && tape->position_limit < keys)
        keys = tape->position_limit;
    if (group->window != 0 && group->window < keys)
        keys = group->window;
    uint64_t blocks = keys / FM__KEY_BLOCK + 2; /* a window need not begin with a block */
    return (size_t)blocks * op->heads * fm__attention_part_floats(group);
}

static size_t floats_of(const fm__tape *tape, const fm__op *op) {
    return fm__max_size(row_floats(tape, op), PARTS);
}

/* Beside the floats. */
static size_t counter_bytes(const fm__host *host) {
    return fm__round_up(host->threads * FM__HOST_ATTENTION_TASKS * sizeof(uint32_t), 64);
}

static size_t bytes_of(const fm__host *host, size_t floats) {
    return sizeof(fm__host_parts) + counter_bytes(host) + floats * sizeof(float);
}

/* Of prepared tokens, should the op be a product whose kernel shares them. */
static size_t prepared_floats(const fm__host *host, const fm__tape *tape, const fm__op *op) {
    const fm__linear_shared *shared = fm__host_shared(host, tape, op);
    if (shared == NULL)
        return 0;
    return (shared->bytes(tape->max_rows, tape->weights[op->weight[0]]->k) + 3) / sizeof(float);
}

static size_t floats_for(const fm__host *host, const fm__tape *tape, const fm__op *op) {
    return op->kind == FM__OP_ATTENTION ? floats_of(tape, op) : prepared_floats(host, tape, op);
}

uint64_t fm__host_scratch_bytes(fm__device *device, const fm__tape *tape, bool or_shorter) {
    const fm__host *host = (fm__host *)device;
    size_t floats = 0; /* grows with the context */
    (void)or_shorter;
    for (uint32_t i = 0; i < tape->n_op && host->threads > 1; i++)
        floats = fm__max_size(floats, floats_for(host, tape, &tape->ops[i]));
    return floats > 0 ? bytes_of(host, floats) : 0;
}

/* ---- making it ---- */

static fm_status reserve_locked(fm__host *host, size_t floats, fm_error *error) {
    if (floats <= (host->parts != NULL ? host->parts->floats : 0))
        return FM_OK;
    size_t bytes = bytes_of(host, floats);
    fm__host_parts *parts = fm__alloc(bytes);
    if (parts == NULL)
        return fm__error_memory(error, host->device.properties.name, bytes);
    parts->older = host->parts;
    parts->floats = floats;
    parts->done = (_Atomic uint32_t *)(void *)(parts + 1);
    for (uint32_t i = 0; i < host->threads * FM__HOST_ATTENTION_TASKS; i++)
        atomic_init(&parts->done[i], 0);
    parts->states = (float *)(void *)((uint8_t *)(parts + 1) + counter_bytes(host));
    host->parts = parts;
    return FM_OK;
}

fm_status fm__host_scratch_reserve(fm__device *device, uint64_t bytes, fm_error *error) {
    fm__host *host = (fm__host *)device;
    size_t beside = bytes_of(host, 0);
    if (bytes <= beside)
        return FM_OK;
    pthread_mutex_lock(&host->parts_lock);
    fm_status status = reserve_locked(host, ((size_t)bytes - beside) / sizeof(float), error);
    pthread_mutex_unlock(&host->parts_lock);
    return status;
}

fm__held fm__host_held(fm__device *device) {
    fm__host *host = (fm__host *)device;
    fm__held held = {0};
    pthread_mutex_lock(&host->parts_lock);
    for (const fm__host_parts *parts = host->parts; parts != NULL; parts = parts->older) {
        uint64_t bytes = bytes_of(host, parts->floats);
        held.scratch += bytes;
        held.largest = fm__max_size(held.largest, bytes);
    }
    pthread_mutex_unlock(&host->parts_lock);
    return held;
}

fm_status fm__host_parts_reserve(fm__host *host, const fm__tape *tape, const fm__op_range *ranges,
                                 uint32_t n_range, const fm__host_parts **out, fm_error *error) {
    size_t floats = 0;
    for (uint32_t i = 0; i < n_range && host->threads > 1; i++) {
        const fm__op *op = &tape->ops[ranges[i].op];
        if (ranges[i].copy == FM__COPY_NONE)
            floats = fm__max_size(floats, floats_for(host, tape, op));
    }
    pthread_mutex_lock(&host->parts_lock);
    fm_status status = reserve_locked(host, floats, error);
    *out = host->parts;
    pthread_mutex_unlock(&host->parts_lock);
    return status;
}

void fm__host_parts_free(fm__host *host) {
    while (host->parts != NULL) {
        fm__host_parts *older = host->parts->older;
        fm__free(host->parts);
        host->parts = older;
    }
}
