/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/pack.c: fills the weights that a binder declared.
 *
 * Owns: the order of the work, and the model's hash. Never does: know an architecture or a block.
 * Called from: the loading thread; the work fans out over fm__parallel_for().
 *
 * The work of a whole model is one list of tasks, about a megabyte of a matrix or one vector each,
 * so that no thread waits at the end of a tensor. A task goes from panel to panel: it hashes the
 * panel's rows first, which reads them in the order of their addresses, and packs them out of the
 * cache then.
 */
#include "model/binder.h"

#include <pthread.h>
#include <string.h>

enum {
    TASK_BYTES = 1 << 20,
    /* Drivers allow a few thousand allocations, and models have hundreds of weights: several share
       one. The offsets are pages, so that a part can be handed out by itself. */
    SLAB_BYTES = 512 << 20,
    SLAB_ALIGN = 4096
};

typedef struct task {
    uint32_t weight;
    uint32_t row, end; /* of a matrix; a vector is filled at once */
} task;

typedef struct packing {
    fm__binder *binder;
    const fm__pack_options *options;
    task *tasks;               /* (n_task) by weight, then by row */
    uint64_t *hashes;          /* (n_task) 0: not hashed */
    _Atomic uint32_t *pending; /* (n_weight) tasks that are not done */
    size_t n_task;
    size_t slab_used; /* of the last slab */
    uint64_t total;   /* bytes that are read */
    _Atomic uint64_t done;
    pthread_t caller; /* the callback is called from this thread alone */
    atomic_bool cancelled;
} packing;

/* ---- memory ---- */

/* Bytes of a slab that begins with weight `first`: as many whole weights as SLAB_BYTES take, one at
   least. */
static size_t slab_bytes(const fm__model *model, uint32_t first) {
    size_t bytes = 0;
    for (uint32_t i = first; i < model->n_weight; i++) {
        const fm__weight *w = model->weights[i];
        size_t end = fm__round_up(bytes, SLAB_ALIGN) + w->bytes;
        if (w->role != FM__ROLE_LINEAR)
            continue;
        if (bytes > 0 && end > SLAB_BYTES)
            break;
        bytes = end;
    }
    return bytes;
}

/* Room for the panels of weight `id`; weights ask in ascending order. */
static fm_status place(packing *p, uint32_t id, fm_error *error) {
    fm__model *model = p->binder->model;
    fm__weight *w = model->weights[id];
    size_t offset = fm__round_up(p->slab_used, SLAB_ALIGN);
    if (model->n_slab == 0 || offset + w->bytes > model->slabs[model->n_slab - 1]->bytes) {
        fm__buffer **slabs = fm__realloc(model->slabs, (model->n_slab + 1) * sizeof(*slabs));
        if (!slabs)
            return fm__error_memory(error, w->name, (model->n_slab + 1) * sizeof(*slabs));
        model->slabs = slabs;
        fm_status status = fm__device_buffer_create(p->options->memory, slab_bytes(model, id),
                                                    FM__MEMORY_HOST, &slabs[model->n_slab], error);
        if (status != FM_OK)
            return fm__error_within(error, status, w->name);
        model->n_slab++;
        offset = 0;
    }
    fm__buffer *slab = model->slabs[model->n_slab - 1];
    uint8_t *panels = fm__device_buffer_map(slab);
    if (!panels)
        return fm__error(error, FM_ERROR_DEVICE, w->name, "the device's memory has no address");
    p->slab_used = offset + w->bytes;
    w->host = panels + offset;
    w->ranges[0] = (fm__weight_range){.residency = FM__RESIDENCY_SHARED,
                                      .panel_end = w->panels,
                                      .buffer = slab,
                                      .offset = offset};
    w->n_ranges = 1;
    return FM_OK;
}

static fm_status place_vector(fm__weight *w, fm_error *error) {
    float *values = fm__alloc(w->bytes);
    if (!values)
        return fm__error_memory(error, w->name, w->bytes);
    w->host = (const uint8_t *)values; /* owned by the model from here on */
    w->ranges[0] = (fm__weight_range){.residency = FM__RESIDENCY_SHARED};
    w->n_ranges = 1;
    return FM_OK;
}

/* ---- the list of tasks ---- */

/* Rows of a task: whole panels. */
static size_t task_rows(const packing *p, const fm__weight *w, size_t row_bytes) {
    size_t bytes = p->options->task_bytes ? p->options->task_bytes : TASK_BYTES;
    size_t panels = bytes / fm__max_size(row_bytes * FM__PANEL_ROWS, 1);
    return fm__min_size(fm__max_size(panels, 1) * FM__PANEL_ROWS, w->n);
}

/* Whether there is anything to do: a gather table is hashed only. */
static bool is_read(const packing *p, uint32_t id) {
    return p->binder->model->weights[id]->role != FM__ROLE_GATHER || p->binder->sources[id].hashed;
}

/* Counts a weight's tasks, and writes them where `out` is not NULL. */
static size_t list_tasks(const packing *p, uint32_t id, task *out) {
    const fm__weight *w = p->binder->model->weights[id];
    if (!is_read(p, id))
        return 0;
    if (w->role == FM__ROLE_VECTOR) {
        if (out)
            out[0] = (task){.weight = id};
        return 1;
    }
    size_t row_bytes, all, n = 0;
    fm__bind_bytes(w->type, w->k, w->n, &row_bytes, &all); /* was checked by measure() */
    size_t rows = task_rows(p, w, row_bytes);
    for (size_t row = 0; row < w->n; row += rows, n++) {
        if (out)
            out[n] = (task){id, (uint32_t)row, (uint32_t)fm__min_size(row + rows, w->n)};
    }
    return n;
}

/* Checks sizes, and finds out how much there is to read. */
static fm_status measure(packing *p, fm_error *error) {
    const fm__model *model = p->binder->model;
    for (uint32_t i = 0; i < model->n_weight; i++) {
        const fm__weight *w = model->weights[i];
        const fm__tensor_info *t = p->binder->sources[i].tensor;
        size_t row_bytes, all = 0;
        if (w->role == FM__ROLE_VECTOR)
            continue;
        if (!fm__bind_bytes(w->type, w->k, w->n, &row_bytes, &all) || all != t->bytes)
            return fm__error(error, FM_ERROR_FORMAT, w->name,
                             "has %llu bytes, its shape asks for %zu", (unsigned long long)t->bytes,
                             all);
        p->total += is_read(p, i) ? t->bytes : 0;
    }
    return FM_OK;
}

static fm_status prepare(packing *p, fm_error *error) {
    const fm__model *model = p->binder->model;
    fm_status status = measure(p, error);
    if (status != FM_OK)
        return status;
    for (uint32_t i = 0; i < model->n_weight; i++)
        p->n_task += list_tasks(p, i, NULL);
    p->tasks = fm__alloc_array(p->n_task + 1, sizeof(*p->tasks));
    p->hashes = fm__alloc_array(p->n_task + 1, sizeof(*p->hashes));
    p->pending = fm__alloc_array(model->n_weight + 1, sizeof(*p->pending));
    if (!p->tasks || !p->hashes || !p->pending)
        return fm__error_memory(error, "packing", p->n_task * (sizeof(task) + sizeof(uint64_t)));
    size_t n = 0;
    for (uint32_t i = 0; i < model->n_weight && status == FM_OK; i++) {
        fm__weight *w = model->weights[i];
        size_t tasks = list_tasks(p, i, p->tasks + n);
        atomic_init(&p->pending[i], (uint32_t)tasks);
        n += tasks;
        if (w->role == FM__ROLE_LINEAR)
            status = place(p, i, error);
        else if (w->role == FM__ROLE_VECTOR)
            status = place_vector(w, error);
    }
    return status;
}

/* ---- the work ---- */

static uint64_t fill_vector(const fm__source *s, const fm__weight *w) {
    float *values = (float *)(uintptr_t)w->host;
    if (s->fill)
        s->fill(s->user, w->groups, w->n, values);
    else
        fm__bind_read_vector(s->tensor, values);
    return s->hashed ? fm__hash(FM__HASH_SEED, values, w->bytes) : 0;
}

static void pack_panel(const fm__tensor_info *tensor, const fm__weight *w, size_t row_bytes,
                       size_t row, size_t end) {
    const void *rows[FM__PANEL_ROWS];
    for (uint32_t r = 0; r < FM__PANEL_ROWS; r++)
        rows[r] = row + r < end ? tensor->data + fm__tensor_source_row(tensor, row + r) * row_bytes
                                : NULL;
    uint8_t *panels = (uint8_t *)(uintptr_t)w->host;
    w->type->pack(rows, w->k, panels + row / FM__PANEL_ROWS * w->layout.stride);
}

/* Gives the hash of the rows. */
static uint64_t pack_rows(const fm__source *s, const fm__weight *w, const task *t) {
    size_t row_bytes = s->tensor->bytes / w->n;
    uint64_t hash = FM__HASH_SEED;
    for (size_t row = t->row; row < t->end; row += FM__PANEL_ROWS) {
        size_t end = fm__min_size(row + FM__PANEL_ROWS, t->end);
        if (s->hashed)
            hash = fm__hash_bulk(hash, s->tensor->data + row * row_bytes, (end - row) * row_bytes);
        if (w->role == FM__ROLE_LINEAR)
            pack_panel(s->tensor, w, row_bytes, row, end);
    }
    return s->hashed ? hash : 0;
}

/* The file's pages have been read into panels: let the system have them back. */
static void done_with(const fm__checkpoint *c, const fm__tensor_info *t) {
    for (; c; c = c->base) {
        for (size_t i = 0; i < c->n_files; i++) {
            const fm__mapping *m = &c->files[i];
            if (t->data >= m->data && t->data < m->data + m->bytes)
                fm__mapping_done_with(m, (size_t)(t->data - m->data), (size_t)t->bytes);
        }
    }
}

/* From the calling thread. */
static void report(packing *p) {
    if (p->options->progress && p->options->progress(p->options->progress_user, "packing weights",
                                                     atomic_load(&p->done), p->total) != 0)
        atomic_store(&p->cancelled, true);
}

static void run_task(void *argument, size_t index) {
    packing *p = argument;
    const task *t = &p->tasks[index];
    const fm__model *model = p->binder->model;
    const fm__weight *w = model->weights[t->weight];
    const fm__source *s = &p->binder->sources[t->weight];
    if (atomic_load_explicit(&p->cancelled, memory_order_relaxed))
        return;
    if (w->role == FM__ROLE_VECTOR) {
        p->hashes[index] = fill_vector(s, w);
        return;
    }
    p->hashes[index] = pack_rows(s, w, t);
    if (atomic_fetch_sub(&p->pending[t->weight], 1) == 1 && w->role == FM__ROLE_LINEAR)
        done_with(model->checkpoint, s->tensor);
    atomic_fetch_add(&p->done, (uint64_t)(t->end - t->row) * (s->tensor->bytes / w->n));
    if (pthread_equal(pthread_self(), p->caller))
        report(p);
}

static fm_status pack(packing *p, fm_error *error) {
    fm__model *model = p->binder->model;
    fm_status status = prepare(p, error);
    if (status != FM_OK)
        return status;
    report(p);
    status = fm__parallel_for(p->options->threads, p->n_task, run_task, p, error);
    if (status == FM_OK && !atomic_load(&p->cancelled))
        report(p);
    if (status == FM_OK && atomic_load(&p->cancelled))
        status = fm__error(error, FM_ERROR_CANCELLED, "load", "cancelled after %llu of %llu bytes",
                           (unsigned long long)atomic_load(&p->done), (unsigned long long)p->total);
    if (status == FM_OK)
        model->hash = fm__hash(model->hash, p->hashes, p->n_task * sizeof(*p->hashes));
    return status;
}

fm_status fm__binder_pack(fm__binder *binder, const fm__pack_options *options, fm_error *error) {
    packing p = {.binder = binder, .options = options, .caller = pthread_self()};
    fm_status status = pack(&p, error);
    fm__free(p.pending);
    fm__free(p.hashes);
    fm__free(p.tasks);
    return status;
}
