/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/null/null.c: a device without hardware: settable limits and rates, no results.
 *
 * Owns: its buffers' memory, which it counts against memory_bytes. Never does: compute. Without a
 * world a submission signals at once, whatever it was to wait for; with one (world.c) it takes
 * virtual time, and all units of a run must be of that world. Called from: tests, through device.c.
 *
 * A device that `lose_at` loses gives that submission's signals, reports DEVICE to the run's
 * status, and refuses everything after it: a loss in mid-run. `fail_submit_at` is a refusal.
 */
#include "device/null/null.h"

#include <string.h>

typedef struct null_buffer {
    fm__buffer base;
    uint8_t *memory;
    uint64_t counted; /* bytes against the limit */
    bool mapped;      /* it has a host address */
} null_buffer;

static fm__null_device *null_of(fm__device *device) {
    return (fm__null_device *)device;
}

static void destroy(fm__device *device) {
    fm__null_device *null = null_of(device);
    if (null->options.world != NULL)
        fm__null_world_leave(null->options.world, null);
    fm__free(null);
}

/* ---- buffers ---- */

static fm_status make_buffer(fm__device *device, null_buffer filled, fm__buffer **out,
                             fm_error *error) {
    null_buffer *buffer = fm__alloc_zero(sizeof *buffer);
    if (buffer == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *buffer);
    *buffer = filled;
    null_of(device)->used += buffer->counted;
    *out = &buffer->base;
    return FM_OK;
}

static fm_status buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                               fm__buffer **out, fm_error *error) {
    const fm__null_device *null = null_of(device);
    if (bytes > null->options.memory_bytes - null->used)
        return fm__error_memory(error, device->properties.name, bytes);
    uint8_t *pages = fm__alloc_zero(bytes);
    if (pages == NULL)
        return fm__error_memory(error, device->properties.name, bytes);
    const null_buffer buffer = {.base = {device, bytes},
                                .memory = pages,
                                .counted = bytes,
                                .mapped = device->properties.unified || memory == FM__MEMORY_HOST};
    fm_status status = make_buffer(device, buffer, out, error);
    if (status != FM_OK)
        fm__free(pages);
    return status;
}

static fm_status buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                               fm_error *error) {
    const null_buffer buffer = {.base = {device, bytes}, .memory = host, .mapped = true};
    return make_buffer(device, buffer, out, error);
}

static void *buffer_map(fm__buffer *buffer) {
    const null_buffer *b = (null_buffer *)buffer;
    return b->mapped ? b->memory : NULL;
}

static fm_status buffer_write(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                              fm_error *error) {
    (void)error;
    memcpy(((null_buffer *)buffer)->memory + offset, from, bytes);
    return FM_OK;
}

static fm_status buffer_read(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                             fm_error *error) {
    (void)error;
    memcpy(to, ((null_buffer *)buffer)->memory + offset, bytes);
    return FM_OK;
}

static void buffer_destroy(fm__buffer *buffer) {
    null_buffer *b = (null_buffer *)buffer;
    null_of(buffer->device)->used -= b->counted;
    if (b->counted != 0)
        fm__free(b->memory);
    fm__free(b);
}

/* ---- ops ---- */

static bool op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                        const char **reason) {
    (void)tape;
    if (strcmp(fm__op_name(op->kind), null_of(device)->refuse_op) != 0)
        return true;
    *reason = "refused by its options";
    return false;
}

/* Columns of a range, where its op has such an axis. */
static void product_cost(const fm__tape *tape, const fm__op_range *range, fm__null_cost *cost) {
    const fm__op *op = &tape->ops[range->op];
    const fm__weight *weight = tape->weights[op->weight[0]];
    uint32_t products = op->kind == FM__OP_LINEAR_GLU ? 2 : 1;
    uint32_t begin = 0, end = weight->n;
    if (range->axis == FM__AXIS_CHANNELS) {
        begin = range->begin;
        end = range->end;
    }
    double panels = (double)((end + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS - begin / FM__PANEL_ROWS);
    cost->ops_per_row = 2.0 * products * (end - begin) * weight->k;
    cost->bytes = products * panels * (double)weight->layout.stride;
}

static void copy_cost(const fm__tape *tape, const fm__op_range *range, fm__null_cost *cost) {
    const fm__tensor *tensor = &tape->tensors[range->tensor];
    cost->rows = tensor->rows;
    cost->bytes_per_row = range->axis == FM__AXIS_CHANNELS ? 4.0 * (range->end - range->begin)
                                                           : (double)tensor->layout.stride;
}

/* Products and copies take time; what else there is is small beside them. */
static fm__null_cost cost_of(const fm__tape *tape, const fm__op_range *range) {
    const fm__op *op = &tape->ops[range->op];
    fm__null_cost cost = {.rows = fm__op_rows(tape, op)};
    if (range->copy != FM__COPY_NONE)
        copy_cost(tape, range, &cost);
    else if (fm__is_product(op->kind))
        product_cost(tape, range, &cost);
    if (range->axis == FM__AXIS_TOKENS) {
        cost.begin = range->begin;
        cost.end = range->end;
    }
    return cost;
}

static fm_status record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                        uint32_t n_range, fm__recording **out, fm_error *error) {
    size_t bytes = sizeof(fm__null_recording) + n_range * sizeof(fm__null_cost);
    fm__null_recording *recording = fm__alloc_zero(bytes);
    if (recording == NULL)
        return fm__error_memory(error, device->properties.name, bytes);
    recording->base = (fm__recording){.device = device, .tape = tape};
    recording->n_cost = n_range;
    for (uint32_t i = 0; i < n_range; i++)
        recording->costs[i] = cost_of(tape, &ranges[i]);
    *out = &recording->base;
    return FM_OK;
}

static void recording_destroy(fm__recording *recording) {
    fm__null_world *world = null_of(recording->device)->options.world;
    if (world != NULL)
        fm__null_world_forget(world, (fm__null_recording *)recording);
    fm__free(recording);
}

static fm__span recording_span(fm__recording *recording) {
    return ((fm__null_recording *)recording)->span;
}

/* ---- queue ---- */

static fm_status refuse(fm__null_device *null, fm_error *error) {
    if (null->options.world != NULL)
        fm__null_world_release(null->options.world);
    return fm__error(error, FM_ERROR_DEVICE, null->device.properties.name,
                     null->lost ? "was lost before submit %llu"
                                : "submit %llu failed, as its "
                                  "options ask",
                     (unsigned long long)null->submits);
}

static void signal_at_once(const fm__segment *segments, uint32_t n_segment, uint64_t base) {
    for (uint32_t i = 0; i < n_segment; i++)
        if (segments[i].signal != NULL)
            fm__timeline_signal(segments[i].signal, base + segments[i].signal_value);
}

static fm_status submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                        const fm__run *run, uint64_t base, fm_error *error) {
    fm__null_device *null = null_of(device);
    null->submits++;
    if (null->lost || null->submits == null->options.fail_submit_at)
        return refuse(null, error);
    fm_status status = FM_OK;
    if (null->options.world != NULL)
        status =
            fm__null_world_submit(null->options.world, null, segments, n_segment, run, base, error);
    else
        signal_at_once(segments, n_segment, base);
    if (status == FM_OK && null->submits == null->options.lose_at) {
        null->lost = true;
        fm__run_status_report(run->status, 0, 0, FM_ERROR_DEVICE);
        if (null->options.world != NULL)
            fm__null_world_release(null->options.world);
    }
    return status;
}

static bool is_lost(fm__device *device) {
    return null_of(device)->lost;
}

static const fm__device_vtable VTABLE = {
    .backend = "null",
    .destroy = destroy,
    .buffer_create = buffer_create,
    .buffer_import = buffer_import,
    .buffer_map = buffer_map,
    .buffer_write = buffer_write,
    .buffer_read = buffer_read,
    .buffer_destroy = buffer_destroy,
    .op_supports = op_supports,
    .record = record,
    .recording_destroy = recording_destroy,
    .recording_span = recording_span,
    .submit = submit,
    .is_lost = is_lost,
};

fm_status fm__device_null_create(fm__device **out, const fm__null_options *options,
                                 fm_error *error) {
    fm__null_device *null = fm__alloc_zero(sizeof *null);
    if (null == NULL)
        return fm__error_memory(error, "null", sizeof *null);
    null->device.vtable = &VTABLE;
    null->options = *options;
    if (options->refuse_op != NULL)
        snprintf(null->refuse_op, sizeof null->refuse_op, "%s", options->refuse_op);
    null->options.refuse_op = null->refuse_op;
    if (!(options->contention > 0))
        null->options.contention = 1;
    fm__device_properties *p = &null->device.properties;
    snprintf(p->name, sizeof p->name, "%s", options->name != NULL ? options->name : "null");
    null->options.name = p->name;
    snprintf(p->kind, sizeof p->kind, "gpu");
    snprintf(p->description, sizeof p->description, "a device that computes nothing");
    p->unified = !options->discrete;
    p->memory_bytes = options->memory_bytes;
    p->dispatch_ns = options->dispatch_ns;
    if (options->world != NULL) {
        fm_status status = fm__null_world_join(options->world, null, error);
        if (status != FM_OK) {
            null->options.world = NULL;
            destroy(&null->device);
            return status;
        }
    }
    *out = &null->device;
    return FM_OK;
}
