/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/buffers.c: memory of the host device: pages, or the caller's own.
 *
 * Owns: the pages of created buffers. Never does: copy while runs are in flight. Called from: the
 * loading thread, through device.c; the team asks for addresses.
 */
#include "device/host/host.h"

#include <string.h>

typedef struct host_buffer {
    fm__buffer base;
    void *memory;
    bool owned;
    bool hidden; /* local memory of a discrete device: only it has the address */
} host_buffer;

static fm_status make(fm__device *device, void *memory, size_t bytes, bool owned, bool hidden,
                      fm__buffer **out, fm_error *error) {
    host_buffer *buffer = fm__alloc_zero(sizeof *buffer);
    if (buffer == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *buffer);
    buffer->base = (fm__buffer){device, bytes};
    buffer->memory = memory;
    buffer->owned = owned;
    buffer->hidden = hidden;
    *out = &buffer->base;
    return FM_OK;
}

fm_status fm__host_buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                                 fm__buffer **out, fm_error *error) {
    bool hidden = memory == FM__MEMORY_LOCAL && !device->properties.unified;
    void *pages = fm__pages_alloc(bytes);
    if (pages == NULL)
        return fm__error_memory(error, device->properties.name, bytes);
    fm_status status = make(device, pages, bytes, true, hidden, out, error);
    if (status != FM_OK)
        fm__pages_free(pages, bytes);
    return status;
}

fm_status fm__host_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                 fm_error *error) {
    return make(device, host, bytes, false, false, out, error);
}

void *fm__host_buffer_map(fm__buffer *buffer) {
    const host_buffer *b = (const host_buffer *)buffer;
    return b->hidden ? NULL : b->memory;
}

fm_status fm__host_buffer_write(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                                fm_error *error) {
    (void)error;
    memcpy((uint8_t *)((host_buffer *)buffer)->memory + offset, from, bytes);
    return FM_OK;
}

fm_status fm__host_buffer_read(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                               fm_error *error) {
    (void)error;
    memcpy(to, (const uint8_t *)((host_buffer *)buffer)->memory + offset, bytes);
    return FM_OK;
}

uint8_t *fm__host_memory(const fm__device *device, fm__buffer *buffer) {
    return buffer->device == device ? ((host_buffer *)buffer)->memory
                                    : fm__device_buffer_map(buffer);
}

void fm__host_buffer_destroy(fm__buffer *buffer) {
    host_buffer *b = (host_buffer *)buffer;
    if (b->owned)
        fm__pages_free(b->memory, b->base.bytes);
    fm__free(b);
}
