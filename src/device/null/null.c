/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/null/null.c: a device without hardware: settable limits, no results.
 *
 * Owns: its buffers' memory, which it counts against memory_bytes. Never does: compute; a
 * submission signals at once, whatever it was to wait for. Called from: tests, through device.c.
 */
#include "device/device.h"

#include <string.h>

typedef struct null_device {
    fm__device device;
    fm__null_options options;
    char refuse_op[32]; /* "": none */
    uint64_t used;      /* bytes of its buffers */
    uint64_t submits;
} null_device;

typedef struct null_buffer {
    fm__buffer base;
    void *memory;
    uint64_t counted; /* bytes against the limit */
} null_buffer;

static void destroy(fm__device *device) {
    fm__free(device);
}

static fm_status make_buffer(fm__device *device, void *memory, size_t bytes, uint64_t counted,
                             fm__buffer **out, fm_error *error) {
    null_buffer *buffer = fm__alloc_zero(sizeof *buffer);
    if (buffer == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *buffer);
    buffer->base = (fm__buffer){device, bytes};
    buffer->memory = memory;
    buffer->counted = counted;
    ((null_device *)device)->used += counted;
    *out = &buffer->base;
    return FM_OK;
}

static fm_status buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                               fm__buffer **out, fm_error *error) {
    null_device *null = (null_device *)device;
    if (bytes > null->options.memory_bytes - null->used)
        return fm__error_memory(error, device->properties.name, bytes);
    (void)memory;
    void *pages = fm__alloc_zero(bytes);
    if (pages == NULL)
        return fm__error_memory(error, device->properties.name, bytes);
    fm_status status = make_buffer(device, pages, bytes, bytes, out, error);
    if (status != FM_OK)
        fm__free(pages);
    return status;
}

static fm_status buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                               fm_error *error) {
    return make_buffer(device, host, bytes, 0, out, error);
}

static void *buffer_map(fm__buffer *buffer) {
    return ((null_buffer *)buffer)->memory;
}

static void buffer_destroy(fm__buffer *buffer) {
    null_buffer *b = (null_buffer *)buffer;
    ((null_device *)buffer->device)->used -= b->counted;
    if (b->counted != 0)
        fm__free(b->memory);
    fm__free(b);
}

static bool op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                        const char **reason) {
    (void)tape;
    if (strcmp(fm__op_name(op->kind), ((null_device *)device)->refuse_op) != 0)
        return true;
    *reason = "refused by its options";
    return false;
}

static fm_status record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                        uint32_t n_range, fm__recording **out, fm_error *error) {
    (void)ranges;
    (void)n_range;
    fm__recording *recording = fm__alloc_zero(sizeof *recording);
    if (recording == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *recording);
    *recording = (fm__recording){device, tape};
    *out = recording;
    return FM_OK;
}

static void recording_destroy(fm__recording *recording) {
    fm__free(recording);
}

static fm_status submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                        const fm__run *run, uint64_t base, fm_error *error) {
    (void)run;
    null_device *null = (null_device *)device;
    null->submits++;
    if (null->submits == null->options.fail_submit_at)
        return fm__error(error, FM_ERROR_DEVICE, device->properties.name,
                         "submit %llu failed, as its options ask",
                         (unsigned long long)null->submits);
    for (uint32_t i = 0; i < n_segment; i++)
        if (segments[i].signal != NULL)
            fm__timeline_signal(segments[i].signal, base + segments[i].signal_value);
    return FM_OK;
}

static const fm__device_vtable VTABLE = {
    .backend = "null",
    .destroy = destroy,
    .buffer_create = buffer_create,
    .buffer_import = buffer_import,
    .buffer_map = buffer_map,
    .buffer_destroy = buffer_destroy,
    .op_supports = op_supports,
    .record = record,
    .recording_destroy = recording_destroy,
    .submit = submit,
};

fm_status fm__device_null_create(fm__device **out, const fm__null_options *options,
                                 fm_error *error) {
    null_device *null = fm__alloc_zero(sizeof *null);
    if (null == NULL)
        return fm__error_memory(error, "null", sizeof *null);
    null->device.vtable = &VTABLE;
    null->options = *options;
    if (options->refuse_op != NULL)
        snprintf(null->refuse_op, sizeof null->refuse_op, "%s", options->refuse_op);
    null->options.refuse_op = null->refuse_op;
    fm__device_properties *p = &null->device.properties;
    snprintf(p->name, sizeof p->name, "null");
    snprintf(p->kind, sizeof p->kind, "gpu");
    snprintf(p->description, sizeof p->description, "a device that computes nothing");
    p->unified = true;
    p->memory_bytes = options->memory_bytes;
    *out = &null->device;
    return FM_OK;
}
