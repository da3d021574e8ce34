/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/probe_setup.c: the probe's product: its weights, tape, buffers and input.
 *
 * Owns: what struct fm__probe holds. Never does: time anything. Called from: the measuring thread.
 */
#include "engine/probe.h"

#include "engine/engine.h"

#include <string.h>

static const float DEVIATION = 0.02f; /* of weights, around 0 */

static bool is_host(const fm__device *device) {
    return strcmp(device->vtable->backend, "host") == 0 && device->properties.unified;
}

/* The unit whose buffers hold the slots: one that is no host team, as host teams reach its memory
   (or a mirror of it) and it may not reach theirs. */
static fm__device *owner(const fm__probe *p) {
    return is_host(p->units[0]) && !is_host(p->units[1]) ? p->units[1] : p->units[0];
}

static fm_status make_buffer(fm__probe *p, fm__device *device, size_t bytes, fm__memory memory,
                             fm__buffer **out, fm_error *error) {
    fm_status status = fm__device_buffer_create(device, bytes, memory, out, error);
    if (status == FM_OK)
        p->buffers[p->n_buffer++] = *out;
    return status;
}

/* ---- weights ---- */

static void set_weight(fm__probe *p, uint32_t id, const char *name, fm__role role,
                       const fm__type *type, uint32_t n, uint32_t k) {
    fm__weight *w = &p->weights[id];
    snprintf(w->name, sizeof w->name, "%s", name);
    w->role = role;
    w->type = type;
    w->groups = 1;
    w->n = n;
    w->k = k;
    p->weight_list[id] = w;
}

typedef struct packing {
    const fm__weight *weight;
    uint8_t *panels;
    uint64_t seed;
    _Atomic bool failed;
} packing;

/* Panel `index` from its own random numbers, so that threads may share the panels. */
static void pack_panel(void *argument, size_t index) {
    packing *job = argument;
    const fm__weight *w = job->weight;
    size_t row_bytes = (size_t)w->k / w->type->block * w->type->block_bytes;
    float *values = fm__alloc_array(w->k, sizeof *values);
    uint8_t *rows = fm__alloc_array(FM__PANEL_ROWS, row_bytes);
    const void *row[FM__PANEL_ROWS] = {NULL};
    fm__random random;
    fm__random_seed(&random, job->seed + index + 1);
    if (values == NULL || rows == NULL)
        atomic_store(&job->failed, true);
    else {
        for (uint32_t r = 0; r < FM__PANEL_ROWS && index * FM__PANEL_ROWS + r < w->n; r++) {
            for (uint32_t i = 0; i < w->k; i++)
                values[i] = DEVIATION * fm__random_normal(&random);
            w->type->encode(values, NULL, rows + r * row_bytes, w->k);
            row[r] = rows + r * row_bytes;
        }
        w->type->pack(row, w->k, job->panels + index * w->layout.stride);
    }
    fm__free(rows);
    fm__free(values);
}

static void add_range(fm__weight *w, uint8_t unit, fm__residency residency, fm__buffer *buffer) {
    w->ranges[w->n_ranges++] = (fm__weight_range){
        .unit = unit, .residency = residency, .panel_end = w->panels, .buffer = buffer};
}

static bool shares_matrix(const fm__probe *p, const fm__device *device) {
    fm_weights wanted = p->options.weights;
    if (is_host(device))
        return false;
    return wanted == FM_WEIGHTS_AUTO ? !fm__device_has_own(&device->properties)
                                     : wanted != FM_WEIGHTS_RESIDENT;
}

/* Host memory for the panels: of the first GPU that is to read them there, else pages. */
static fm_status allocate_matrix(fm__probe *p, uint8_t **panels, fm_error *error) {
    fm__weight *w = &p->weights[FM__PROBE_MATRIX];
    for (uint8_t u = 0; u < 2; u++) {
        if (!shares_matrix(p, p->units[u]))
            continue;
        fm__buffer *buffer;
        fm_status status = make_buffer(p, p->units[u], w->bytes, FM__MEMORY_HOST, &buffer, error);
        if (status != FM_OK)
            return status;
        *panels = fm__device_buffer_map(buffer);
        if (*panels == NULL)
            return fm__error(error, FM_ERROR_UNSUPPORTED, p->units[u]->properties.name,
                             "its host memory has no address here, so weights cannot be shared");
        add_range(w, u,
                  p->options.weights == FM_WEIGHTS_STREAMED ? FM__RESIDENCY_STREAMED
                                                            : FM__RESIDENCY_SHARED,
                  buffer);
        return FM_OK;
    }
    *panels = p->pages = fm__pages_alloc(p->page_bytes = w->bytes);
    return *panels != NULL ? FM_OK : fm__error_memory(error, "probe", w->bytes);
}

/* A unit that has no range of the weight yet gets the host's memory, or a copy of its own. */
static fm_status place_rest(fm__probe *p, fm__weight *w, fm_error *error) {
    for (uint8_t u = 0; u < 2; u++) {
        bool placed = false;
        for (uint32_t i = 0; i < w->n_ranges; i++)
            placed = placed || w->ranges[i].unit == u;
        if (placed)
            continue;
        if (is_host(p->units[u])) {
            add_range(w, u, FM__RESIDENCY_SHARED, NULL);
            continue;
        }
        fm__buffer *buffer;
        fm_status status = make_buffer(p, p->units[u], w->bytes, FM__MEMORY_LOCAL, &buffer, error);
        if (status == FM_OK)
            status = fm__device_buffer_write(buffer, 0, w->host, w->bytes, error);
        if (status != FM_OK)
            return status;
        add_range(w, u, FM__RESIDENCY_RESIDENT, buffer);
    }
    return FM_OK;
}

static fm_status make_matrix(fm__probe *p, fm_error *error) {
    fm__weight *w = &p->weights[FM__PROBE_MATRIX];
    uint8_t *panels = NULL;
    fm_status status = allocate_matrix(p, &panels, error);
    if (status != FM_OK)
        return status;
    packing job = {.weight = w, .panels = panels, .seed = p->options.seed};
    atomic_init(&job.failed, false);
    status = fm__parallel_for(0, w->panels, pack_panel, &job, error);
    if (status == FM_OK && atomic_load(&job.failed))
        status = fm__error_memory(error, "probe", (size_t)w->k * sizeof(float));
    w->host = panels;
    return status == FM_OK ? place_rest(p, w, error) : status;
}

static fm_status make_norm(fm__probe *p, fm_error *error) {
    fm__weight *w = &p->weights[FM__PROBE_NORM];
    float *values = fm__alloc_array(w->n, sizeof *values);
    if (values == NULL)
        return fm__error_memory(error, "probe", w->n * sizeof *values);
    for (uint32_t i = 0; i < w->n; i++)
        values[i] = 1;
    w->host = (const uint8_t *)values;
    w->bytes = w->n * sizeof *values;
    return place_rest(p, w, error);
}

static fm_status declare_weights(fm__probe *p, fm_error *error) {
    const fm_lab_probe_options *o = &p->options;
    set_weight(p, FM__PROBE_TABLE, "x", FM__ROLE_GATHER, fm__type_get(FM__F32), 1, o->k);
    p->weights[FM__PROBE_TABLE].row_bytes = (size_t)o->k * sizeof(float);
    set_weight(p, FM__PROBE_NORM, "norm", FM__ROLE_VECTOR, fm__type_get(FM__F32), o->k, 1);
    set_weight(p, FM__PROBE_MATRIX, "w", FM__ROLE_LINEAR, p->type, o->n, o->k);
    fm__weight *w = &p->weights[FM__PROBE_MATRIX];
    w->layout = fm__panel_layout_of(p->type, o->k);
    w->panels = (o->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    if (!fm__mul_size(w->layout.stride, w->panels, &w->bytes))
        return fm__error(error, FM_ERROR_LIMIT, "probe", "the size of %u x %u overflows", o->n,
                         o->k);
    return FM_OK;
}

/* ---- the tape and its views ---- */

static fm__op *add_op(fm__probe *p, fm__op_kind kind, int16_t in, int16_t out, int16_t weight) {
    fm__op *op = fm__tape_op(p->tape, kind, FM__NONE);
    op->in[0] = in;
    op->out = out;
    op->weight[0] = weight;
    return op;
}

static void set_view(fm__tape *view, const fm__tape *whole, uint32_t first, uint32_t end,
                     int16_t output) {
    *view = *whole;
    view->ops += first;
    view->n_op = view->op_capacity = end - first;
    view->hidden = output;
}

static fm_status record(fm__probe *p, fm_error *error) {
    const fm_lab_probe_options *o = &p->options;
    const fm__slot S = FM__SLOT_SCRATCH;
    const fm__rows R = FM__ROWS_BATCH;
    fm_status status = fm__tape_create(&p->tape, o->rows, 1, error);
    if (status != FM_OK)
        return status;
    fm__tape *t = p->tape;
    t->weights = p->weight_list;
    t->n_weight = FM__PROBE_WEIGHTS;
    p->x = fm__tape_tensor(t, "x", FM__ACT_F32, o->k, R, S);
    int16_t h = p->a = fm__tape_tensor(t, "h", FM__ACT_F32, o->k, R, S);
    bool plain = p->type->act[0] == FM__ACT_F32;
    if (!plain)
        p->a = fm__tape_tensor(t, "a", p->type->act[0], o->k, R, S);
    p->y = fm__tape_tensor(t, "y", FM__ACT_F32, o->n, R, S);
    int16_t chosen =
        fm__tape_tensor(t, "selected y", FM__ACT_F32, o->n, FM__ROWS_OUTPUT, FM__SLOT_OUTPUT);
    int16_t kept =
        fm__tape_tensor(t, "selected x", FM__ACT_F32, o->k, FM__ROWS_OUTPUT, FM__SLOT_OUTPUT);
    add_op(p, FM__OP_EMBED, FM__NONE, p->x, FM__PROBE_TABLE);
    fm__op *norm = add_op(p, FM__OP_RMSNORM, p->x, h, FM__PROBE_NORM);
    norm->group = o->k;
    norm->eps = 1e-5f;
    if (!plain)
        add_op(p, FM__OP_QUANTISE, h, p->a, FM__NONE);
    uint32_t product = t->n_op;
    add_op(p, FM__OP_LINEAR, p->a, p->y, FM__PROBE_MATRIX);
    add_op(p, FM__OP_SELECT, p->y, chosen, FM__NONE);
    uint32_t end = t->n_op;
    add_op(p, FM__OP_SELECT, p->x, kept, FM__NONE);
    t->hidden = chosen;
    status = fm__tape_finish(t, error);
    set_view(&p->producer, t, 1, product, FM__NONE);
    set_view(&p->ready, t, product, end, chosen);
    set_view(&p->dependent, t, 1, end, chosen);
    return status;
}

/* ---- slots and input ---- */

static fm_status make_slots(fm__probe *p, fm_error *error) {
    fm__device *device = owner(p);
    fm__memory memory = device->properties.hosted ? FM__MEMORY_HOST : FM__MEMORY_LOCAL;
    fm_status status = make_buffer(p, device, p->tape->scratch_bytes, memory,
                                   &p->run.buffers[FM__SLOT_SCRATCH], error);
    if (status == FM_OK && !device->properties.unified)
        status = make_buffer(p, device, p->tape->scratch_bytes, FM__MEMORY_HOST,
                             &p->run.mirrors[FM__SLOT_SCRATCH], error);
    if (status == FM_OK)
        status = make_buffer(p, device, p->tape->output_bytes, FM__MEMORY_HOST,
                             &p->run.buffers[FM__SLOT_OUTPUT], error);
    return status;
}

static fm_status make_batch(fm__probe *p, fm_error *error) {
    uint32_t rows = p->options.rows;
    p->token = fm__alloc_array(rows, sizeof *p->token);
    p->position = fm__alloc_array(rows, sizeof *p->position);
    p->sequence = fm__alloc_array(rows, sizeof *p->sequence);
    if (p->token == NULL || p->position == NULL || p->sequence == NULL)
        return fm__error_memory(error, "probe", rows * sizeof *p->token);
    p->output_row = rows - 1;
    p->batch = (fm__batch_view){.n_row = rows,
                                .token = p->token,
                                .position = p->position,
                                .sequence = p->sequence,
                                .n_output = 1,
                                .output_row = &p->output_row,
                                .n_sequence = 1};
    p->run.batch = &p->batch;
    p->run.status = &p->status;
    p->run.order = &p->machine->order;
    return FM_OK;
}

static size_t tensor_bytes(const fm__probe *p, int16_t id) {
    return p->tape->tensors[id].layout.stride * p->options.rows;
}

/* The same bytes to every instance of the scratch slot. */
static fm_status write_tensor(fm__probe *p, int16_t id, const void *from, fm_error *error) {
    size_t offset = p->tape->tensors[id].offset, bytes = tensor_bytes(p, id);
    fm__buffer *mirror = p->run.mirrors[FM__SLOT_SCRATCH];
    fm_status status =
        fm__device_buffer_write(p->run.buffers[FM__SLOT_SCRATCH], offset, from, bytes, error);
    if (status == FM_OK && mirror != NULL)
        status = fm__device_buffer_write(mirror, offset, from, bytes, error);
    return status;
}

static fm_status write_input(fm__probe *p, fm_error *error) {
    size_t bytes = tensor_bytes(p, p->x), stride = p->tape->tensors[p->x].layout.stride;
    uint8_t *rows = fm__alloc_zero(bytes);
    if (rows == NULL)
        return fm__error_memory(error, "probe", bytes);
    fm__random random;
    fm__random_seed(&random, p->options.seed);
    for (uint32_t r = 0; r < p->options.rows; r++) {
        float *row = (float *)(void *)(rows + r * stride);
        for (uint32_t i = 0; i < p->options.k; i++)
            row[i] = fm__random_normal(&random);
    }
    fm_status status = write_tensor(p, p->x, rows, error);
    fm__free(rows);
    return status;
}

fm_status fm__probe_spoil(fm__probe *probe, fm_error *error) {
    size_t bytes = tensor_bytes(probe, probe->y);
    void *poison = fm__alloc(bytes);
    if (poison == NULL)
        return fm__error_memory(error, "probe", bytes);
    memset(poison, 0xFF, bytes);
    fm_status status = write_tensor(probe, probe->y, poison, error);
    fm__free(poison);
    return status;
}

static fm_status read_tensor(fm__probe *p, int16_t id, void **out, fm_error *error) {
    size_t bytes = tensor_bytes(p, id);
    *out = fm__alloc(bytes);
    if (*out == NULL)
        return fm__error_memory(error, "probe", bytes);
    fm_status status =
        fm__device_buffer_read(fm__run_buffer(&p->run, p->units[0], FM__SLOT_SCRATCH),
                               p->tape->tensors[id].offset, *out, bytes, error);
    if (status != FM_OK) {
        fm__free(*out);
        *out = NULL;
    }
    return status;
}

/* Bytes of a row that are computed: what follows them up to the stride is no one's. */
static size_t row_bytes(const fm__tensor *t) {
    return t->act == FM__ACT_F32 ? (size_t)t->cols * sizeof(float) : t->layout.stride;
}

fm_status fm__probe_hash(fm__probe *probe, int16_t id, uint64_t *hash, fm_error *error) {
    const fm__tensor *t = &probe->tape->tensors[id];
    void *data;
    fm_status status = read_tensor(probe, id, &data, error);
    if (status != FM_OK)
        return status;
    *hash = FM__HASH_SEED;
    for (uint32_t r = 0; r < probe->options.rows; r++)
        *hash = fm__hash(*hash, (uint8_t *)data + r * t->layout.stride, row_bytes(t));
    fm__free(data);
    return FM_OK;
}

fm_status fm__probe_share_input(fm__probe *probe, fm_error *error) {
    void *data;
    if (probe->run.mirrors[FM__SLOT_SCRATCH] == NULL)
        return FM_OK;
    fm_status status = read_tensor(probe, probe->a, &data, error);
    if (status != FM_OK)
        return status;
    status = write_tensor(probe, probe->a, data, error);
    fm__free(data);
    return status;
}

/* ---- life ---- */

/* What the buffers will take, counted against the budgets before any is made. */
static fm_status reserve(fm__probe *p, fm_error *error) {
    uint64_t matrix = p->weights[FM__PROBE_MATRIX].bytes, scratch = p->tape->scratch_bytes;
    uint64_t host = matrix + scratch + p->tape->output_bytes, own = 0;
    for (uint32_t u = 0; u < 2; u++) {
        bool copied = !is_host(p->units[u]) && !shares_matrix(p, p->units[u]);
        if (copied && !fm__device_has_own(&p->units[u]->properties))
            host += matrix;
        else if (copied)
            own += matrix;
    }
    own += owner(p)->properties.unified ? 0 : scratch;
    if (!fm__machine_reserve(p->machine, host))
        return fm__error(error, FM_ERROR_MEMORY, "probe", "needs %.1f MiB, the budget is %.1f MiB",
                         (double)host / 0x1p20,
                         (double)fm_machine_memory_budget(p->machine) / 0x1p20);
    p->reserved = host;
    if (own > 0 && !fm__machine_reserve_own(p->machine, owner(p), own))
        return fm__error(error, FM_ERROR_MEMORY, owner(p)->properties.name,
                         "needs %.1f MiB of its own memory, %.1f MiB are left",
                         (double)own / 0x1p20,
                         (double)fm__machine_own_left(p->machine, owner(p)) / 0x1p20);
    p->reserved_own = own;
    return FM_OK;
}

fm_status fm__probe_open(fm__probe *probe, fm_machine *machine, const fm_lab_probe_options *options,
                         fm_error *error) {
    *probe = (fm__probe){.options = *options, .machine = machine};
    probe->units[0] = machine->devices[0];
    probe->units[1] = machine->devices[1];
    for (size_t i = 0; i < fm__type_count(); i++)
        if (strcmp(fm__type_at(i)->name, options->type) == 0)
            probe->type = fm__type_at(i);
    fm_status status = declare_weights(probe, error);
    if (status == FM_OK)
        status = record(probe, error);
    if (status == FM_OK)
        status = reserve(probe, error);
    if (status == FM_OK)
        status = make_matrix(probe, error);
    if (status == FM_OK)
        status = make_norm(probe, error);
    if (status == FM_OK)
        status = make_slots(probe, error);
    if (status == FM_OK)
        status = make_batch(probe, error);
    if (status == FM_OK)
        status = write_input(probe, error);
    if (status != FM_OK)
        fm__probe_close(probe);
    return status;
}

void fm__probe_close(fm__probe *probe) {
    while (probe->n_buffer > 0)
        fm__device_buffer_destroy(&probe->buffers[--probe->n_buffer]);
    fm__tape_destroy(&probe->tape);
    fm__free((void *)(uintptr_t)probe->weights[FM__PROBE_NORM].host);
    if (probe->pages != NULL)
        fm__pages_free(probe->pages, probe->page_bytes);
    fm__free(probe->token);
    fm__free(probe->position);
    fm__free(probe->sequence);
    if (probe->machine != NULL)
        fm__machine_release(probe->machine, probe->reserved);
    if (probe->reserved_own > 0)
        fm__machine_release_own(probe->machine, owner(probe), probe->reserved_own);
    *probe = (fm__probe){0};
}
