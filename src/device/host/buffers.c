/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/buffers.c: memory of the host device: pages, or the caller's own.
 *
 * Owns: the pages of created buffers. Never does: copy. Called from: the loading thread, through
 * device.c.
 */
#include "device/host/host.h"

typedef struct host_buffer {
    fm__buffer base;
    void *memory;
    bool owned;
} host_buffer;

static fm_status make(fm__device *device, void *memory, size_t bytes, bool owned, fm__buffer **out,
                      fm_error *error) {
    host_buffer *buffer = fm__alloc_zero(sizeof *buffer);
    if (buffer == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *buffer);
    buffer->base = (fm__buffer){device, bytes};
    buffer->memory = memory;
    buffer->owned = owned;
    *out = &buffer->base;
    return FM_OK;
}

fm_status fm__host_buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                                 fm__buffer **out, fm_error *error) {
    (void)memory; /* all of it is the host's */
    void *pages = fm__pages_alloc(bytes);
    if (pages == NULL)
        return fm__error_memory(error, device->properties.name, bytes);
    fm_status status = make(device, pages, bytes, true, out, error);
    if (status != FM_OK)
        fm__pages_free(pages, bytes);
    return status;
}

fm_status fm__host_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                 fm_error *error) {
    return make(device, host, bytes, false, out, error);
}

void *fm__host_buffer_map(fm__buffer *buffer) {
    return ((host_buffer *)buffer)->memory;
}

void fm__host_buffer_destroy(fm__buffer *buffer) {
    host_buffer *b = (host_buffer *)buffer;
    if (b->owned)
        fm__pages_free(b->memory, b->base.bytes);
    fm__free(b);
}
