/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/weights.c: where a GPU finds each weight.
 *
 * Owns: residencies, and the GPU's own copies. Never does: pack (the model room did). Called from:
 * the loading thread.
 *
 * Panels always lie in host memory, since the host computes a share; a GPU gets that memory itself
 * (the panels are packed into memory that it addresses), a copy, or both in parts. Vectors are
 * small and read by nearly every op: a GPU always has a copy. Gather tables stay in the file's
 * mapping, which no GPU addresses; a discrete GPU that holds weights gets a copy where it fits.
 */
#include "engine/engine.h"

#include <assert.h>
#include <string.h>

enum {
    SLAB_BYTES = 512 << 20, /* drivers limit how many allocations there are */
    ALIGN_MATRIX = 4096,
    ALIGN_VECTOR = 256
};

static size_t align_of(const fm__weight *w) {
    return w->role == FM__ROLE_VECTOR ? ALIGN_VECTOR : ALIGN_MATRIX;
}

static uint64_t room_of(const fm__weight *w) {
    return fm__round_up(w->bytes, align_of(w));
}

static uint64_t sum(const fm_engine *engine, fm__role role) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < engine->model->n_weight; i++) {
        const fm__weight *w = engine->model->weights[i];
        bytes += w->role == role ? room_of(w) : 0;
    }
    return bytes;
}

/* ---- planning ---- */

/* Bytes that copies of matrices and tables may take. */
static uint64_t room_for_copies(fm_engine *engine) {
    engine->need.copies = 0;
    fm__engine_add_up(engine);
    const fm__memory_need *n = &engine->need;
    uint64_t left, need;
    if (!fm__device_has_own(&engine->gpu->properties)) {
        uint64_t used = fm_machine_memory_used(engine->machine);
        left = engine->machine->memory_budget - fm__min_size(used, engine->machine->memory_budget);
        need = n->host_alone + n->session + fm__engine_further(engine, false);
    } else {
        left = fm__machine_own_left(engine->machine, engine->gpu);
        need = n->own_alone + fm__engine_further(engine, true);
    }
    return left > need ? left - need : 0;
}

static fm_status does_not_fit(const fm_engine *engine, uint64_t need, uint64_t room,
                              fm_error *error) {
    return fm__error(
        error, FM_ERROR_MEMORY, engine->gpu->properties.name,
        "weights resident: their copies need %.1f MiB, %.1f MiB are left beside caches "
        "and activations; weights auto keeps as many there as fit",
        (double)need / 0x1p20, (double)room / 0x1p20);
}

/* Marks whole weights of a role as resident, in the model's order, while there is room. */
static void keep_resident(fm_engine *engine, fm__role role, uint64_t *room) {
    for (uint32_t i = 0; i < engine->model->n_weight; i++) {
        const fm__weight *w = engine->model->weights[i];
        if (w->role != role || room_of(w) > *room)
            continue;
        engine->residency[i] = FM__RESIDENCY_RESIDENT;
        *room -= room_of(w);
        engine->need.copies += room_of(w);
    }
}

static fm__residency rest_of(const fm_engine *engine) {
    switch (engine->options.weights) {
    case FM_WEIGHTS_SHARED:
        return FM__RESIDENCY_SHARED;
    case FM_WEIGHTS_STREAMED:
        return FM__RESIDENCY_STREAMED;
    case FM_WEIGHTS_AUTO:
    case FM_WEIGHTS_RESIDENT:
        break;
    }
    return fm__device_has_own(&engine->gpu->properties) ? FM__RESIDENCY_STREAMED
                                                        : FM__RESIDENCY_SHARED;
}

fm_status fm__weights_plan(fm_engine *engine, fm_error *error) {
    const fm__model *model = engine->model;
    fm_weights mode = engine->options.weights;
    engine->need.vectors = engine->need.copies = 0;
    if (!engine->gpu)
        return FM_OK;
    engine->need.vectors = sum(engine, FM__ROLE_VECTOR);
    uint64_t room = room_for_copies(engine), matrices = sum(engine, FM__ROLE_LINEAR);
    engine->residency = fm__alloc_array(model->n_weight, sizeof(*engine->residency));
    if (!engine->residency)
        return fm__error_memory(error, "weights", model->n_weight * sizeof(*engine->residency));
    fm__residency rest = rest_of(engine);
    for (uint32_t i = 0; i < model->n_weight; i++) {
        fm__role role = model->weights[i]->role;
        engine->residency[i] = role == FM__ROLE_LINEAR   ? rest
                               : role == FM__ROLE_VECTOR ? FM__RESIDENCY_RESIDENT
                                                         : FM__RESIDENCY_MAPPED;
    }
    bool discrete = fm__device_has_own(&engine->gpu->properties);
    if (mode != FM_WEIGHTS_RESIDENT && !(mode == FM_WEIGHTS_AUTO && discrete))
        return FM_OK;
    if (mode == FM_WEIGHTS_RESIDENT && matrices > room)
        return does_not_fit(engine, matrices, room, error);
    if (matrices > room) /* the others are streamed */
        room -=
            fm__min_size(room, fm__machine_would_keep(engine->machine, engine->gpu, FM__KEEPS_RING,
                                                      engine->gpu->properties.ring_bytes));
    keep_resident(engine, FM__ROLE_LINEAR, &room);
    if (!engine->gpu->properties.unified) /* else the host looks them up */
        keep_resident(engine, FM__ROLE_GATHER, &room);
    return FM_OK;
}

/* ---- copying ---- */

typedef struct copier {
    fm_engine *engine;
    fm__role role;
    uint32_t first; /* weight with which the slab begins */
    size_t used;    /* of the last slab */
    bool have_slab;
} copier;

static bool is_copied(const copier *c, uint32_t id) {
    const fm__weight *w = c->engine->model->weights[id];
    return w->role == c->role && c->engine->residency[id] == FM__RESIDENCY_RESIDENT;
}

static size_t slab_bytes(const copier *c, uint32_t first) {
    size_t bytes = 0;
    for (uint32_t i = first; i < c->engine->model->n_weight; i++) {
        const fm__weight *w = c->engine->model->weights[i];
        if (!is_copied(c, i))
            continue;
        if (bytes > 0 && bytes + room_of(w) > SLAB_BYTES)
            break;
        bytes += room_of(w);
    }
    return bytes;
}

static fm_status add_slab(copier *c, uint32_t first, fm_error *error) {
    fm_engine *engine = c->engine;
    fm__buffer **copies =
        fm__realloc(engine->copies, (engine->n_copy + 1) * sizeof(*engine->copies));
    if (!copies)
        return fm__error_memory(error, "weights", (engine->n_copy + 1) * sizeof(*copies));
    engine->copies = copies;
    fm_status status = fm__device_buffer_create(engine->gpu, slab_bytes(c, first), FM__MEMORY_LOCAL,
                                                &copies[engine->n_copy], error);
    if (status != FM_OK)
        return status;
    engine->n_copy++;
    c->used = 0;
    c->have_slab = true;
    return FM_OK;
}

/* Copies weight `id` and gives the place in *range. */
static fm_status copy(copier *c, uint32_t id, fm__weight_range *range, fm_error *error) {
    fm_engine *engine = c->engine;
    const fm__weight *w = engine->model->weights[id];
    if (!c->have_slab || c->used + room_of(w) > engine->copies[engine->n_copy - 1]->bytes) {
        fm_status status = add_slab(c, id, error);
        if (status != FM_OK)
            return fm__error_within(error, status, w->name);
    }
    range->buffer = engine->copies[engine->n_copy - 1];
    range->offset = c->used;
    c->used += room_of(w);
    fm_status status =
        fm__device_buffer_write(range->buffer, range->offset, w->host, w->bytes, error);
    return status == FM_OK ? FM_OK : fm__error_within(error, status, w->name);
}

/* The device had less room than it said: what is not copied yet is read from host memory instead.
   The budget keeps what was reserved for it, which is more than is used. */
static void stream_rest(fm_engine *engine, uint32_t from, fm__role role, const fm_error *why) {
    fm__log(FM_LOG_WARNING, "%s: %s: weights from %s on stay in host memory",
            engine->gpu->properties.name, why->message, engine->model->weights[from]->name);
    for (uint32_t i = from; i < engine->model->n_weight; i++) {
        if (engine->model->weights[i]->role == role)
            engine->residency[i] =
                role == FM__ROLE_GATHER ? FM__RESIDENCY_MAPPED : FM__RESIDENCY_STREAMED;
    }
}

static fm_status copy_role(fm_engine *engine, fm__role role, fm__weight_range *found,
                           fm_error *error) {
    copier c = {.engine = engine, .role = role};
    bool optional = role == FM__ROLE_GATHER ||
                    (role == FM__ROLE_LINEAR && engine->options.weights == FM_WEIGHTS_AUTO);
    for (uint32_t i = 0; i < engine->model->n_weight; i++) {
        if (!is_copied(&c, i))
            continue;
        fm_error why = {0};
        fm_status status = copy(&c, i, &found[i], &why);
        if (status == FM_ERROR_MEMORY && optional) {
            stream_rest(engine, i, role, &why);
            return FM_OK;
        }
        if (status != FM_OK) {
            if (error)
                *error = why;
            return status;
        }
    }
    return FM_OK;
}

/* ---- ranges ---- */

static fm__weight_range whole(const fm__weight *w, uint32_t unit, fm__residency residency) {
    return (fm__weight_range){
        .unit = (uint8_t)unit, .residency = residency, .panel_end = w->groups * w->panels};
}

/* Host teams find weights at `host`: their ranges name no buffer. */
static void add_host_ranges(const fm_engine *engine, fm__weight *w) {
    w->n_ranges = 0;
    for (uint32_t u = 0; u < engine->n_unit; u++) {
        if (engine->units[u] != engine->gpu)
            w->ranges[w->n_ranges++] = whole(
                w, u, w->role == FM__ROLE_GATHER ? FM__RESIDENCY_MAPPED : FM__RESIDENCY_SHARED);
    }
}

static void set_ranges(fm_engine *engine, uint32_t id, const fm__weight_range *copied) {
    fm__weight *w = engine->model->weights[id];
    const fm__weight_range packed = w->ranges[0];
    add_host_ranges(engine, w);
    if (!engine->gpu || engine->residency[id] == FM__RESIDENCY_MAPPED)
        return;
    uint32_t unit = engine->gpu == engine->units[0] ? 0 : 1;
    while (engine->units[unit] != engine->gpu)
        unit++;
    fm__weight_range *range = &w->ranges[w->n_ranges++];
    *range = whole(w, unit, engine->residency[id]);
    bool own = engine->residency[id] == FM__RESIDENCY_RESIDENT;
    range->buffer = own ? copied->buffer : packed.buffer;
    range->offset = own ? copied->offset : packed.offset;
}

fm_status fm__weights_place(fm_engine *engine, fm_error *error) {
    uint32_t n = engine->model->n_weight;
    fm__weight_range *found = fm__alloc_array(n, sizeof(*found));
    if (!found)
        return fm__error_memory(error, "weights", n * sizeof(*found));
    fm_status status = FM_OK;
    if (engine->gpu) {
        status = copy_role(engine, FM__ROLE_VECTOR, found, error);
        if (status == FM_OK)
            status = copy_role(engine, FM__ROLE_LINEAR, found, error);
        if (status == FM_OK)
            status = copy_role(engine, FM__ROLE_GATHER, found, error);
    }
    for (uint32_t i = 0; i < n && status == FM_OK; i++)
        set_ranges(engine, i, &found[i]);
    fm__free(found);
    return status;
}

static void destroy_copies(fm_engine *engine) {
    for (uint32_t i = engine->n_copy; i-- > 0;)
        fm__device_buffer_destroy(&engine->copies[i]);
    fm__free(engine->copies);
    engine->copies = NULL;
    engine->n_copy = 0;
}

/* By their buffers: an earlier loss may have given the units other numbers. */
void fm__weights_drop_copies(fm_engine *engine) {
    for (uint32_t i = 0; engine->gpu && i < engine->model->n_weight; i++) {
        fm__weight *w = engine->model->weights[i];
        for (uint32_t r = 0; r < w->n_ranges; r++) {
            if (w->ranges[r].buffer && w->ranges[r].buffer->device == engine->gpu)
                w->ranges[r--] = w->ranges[--w->n_ranges];
        }
    }
    destroy_copies(engine);
    engine->need.vectors = engine->need.copies = 0;
}

void fm__weights_finish(fm_engine *engine) {
    destroy_copies(engine);
    fm__free(engine->residency);
    engine->residency = NULL;
}
