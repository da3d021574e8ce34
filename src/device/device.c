/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/device.c: the front end: every call is checked here, once, and backends trust it.
 *
 * Owns: nothing beyond what backends hand back. Never does: work on data. Called from: the loading
 * thread, and the running thread (submit).
 */
#include "device/device.h"

#include <string.h>

void fm__device_destroy(fm__device **device) {
    if (device == NULL || *device == NULL)
        return;
    (*device)->vtable->destroy(*device);
    *device = NULL;
}

/* ---- buffers ---- */

fm_status fm__device_buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                                   fm__buffer **out, fm_error *error) {
    if (bytes == 0)
        return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                         "a buffer of 0 bytes was asked for");
    return device->vtable->buffer_create(device, bytes, memory, out, error);
}

fm_status fm__device_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                   fm_error *error) {
    if (device->vtable->buffer_import == NULL)
        return fm__error(error, FM_ERROR_UNSUPPORTED, device->properties.name,
                         "cannot import host memory");
    if (host == NULL || bytes == 0)
        return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                         "an import of no memory was asked for");
    return device->vtable->buffer_import(device, host, bytes, out, error);
}

void *fm__device_buffer_map(fm__buffer *buffer) {
    return buffer->device->vtable->buffer_map(buffer);
}

void fm__device_buffer_destroy(fm__buffer **buffer) {
    if (buffer == NULL || *buffer == NULL)
        return;
    (*buffer)->device->vtable->buffer_destroy(*buffer);
    *buffer = NULL;
}

static bool in_range(const fm__buffer *buffer, size_t offset, size_t bytes) {
    return offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

fm_status fm__device_buffer_write(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                                  fm_error *error) {
    if (!in_range(buffer, offset, bytes))
        return fm__error(error, FM_ERROR_ARGUMENT, buffer->device->properties.name,
                         "%zu bytes at %zu of a buffer of %zu", bytes, offset, buffer->bytes);
    uint8_t *host = fm__device_buffer_map(buffer);
    if (host == NULL)
        return buffer->device->vtable->buffer_write(buffer, offset, from, bytes, error);
    memcpy(host + offset, from, bytes);
    return FM_OK;
}

fm_status fm__device_buffer_read(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                                 fm_error *error) {
    if (!in_range(buffer, offset, bytes))
        return fm__error(error, FM_ERROR_ARGUMENT, buffer->device->properties.name,
                         "%zu bytes at %zu of a buffer of %zu", bytes, offset, buffer->bytes);
    const uint8_t *host = fm__device_buffer_map(buffer);
    if (host == NULL)
        return buffer->device->vtable->buffer_read(buffer, offset, to, bytes, error);
    memcpy(to, host + offset, bytes);
    return FM_OK;
}

fm__buffer *fm__run_buffer(const fm__run *run, const fm__device *device, fm__slot slot) {
    return run->mirrors[slot] != NULL && device->properties.unified ? run->mirrors[slot]
                                                                    : run->buffers[slot];
}

/* ---- ops ---- */

bool fm__device_op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                            const char **reason) {
    const char *ignored;
    return device->vtable->op_supports(device, tape, op, reason != NULL ? reason : &ignored);
}

const char *fm__device_op_kernel(fm__device *device, const fm__tape *tape, const fm__op *op) {
    const char *name = NULL;
    if (device->vtable->op_kernel != NULL)
        name = device->vtable->op_kernel(device, tape, op);
    return name != NULL ? name : "";
}

uint32_t fm__device_channel_granule(const fm__tape *tape, const fm__op *op, uint32_t *channels) {
    switch (op->kind) {
    case FM__OP_LINEAR:
    case FM__OP_LINEAR_GLU:
        *channels = tape->weights[op->weight[0]]->n;
        return FM__PANEL_ROWS;
    case FM__OP_ATTENTION: { /* whole key/value heads: the query heads of one lie together */
        const fm__cache_group *group = &tape->groups[op->cache_group];
        *channels = op->heads * group->value_dim;
        return op->heads / group->n_kv_head * group->value_dim;
    }
    default:
        *channels = 0;
        return 0;
    }
}

static fm_status check_channels(const char *place, const fm__tape *tape, const fm__op_range *range,
                                fm_error *error) {
    uint32_t channels, granule;
    granule = fm__device_channel_granule(tape, &tape->ops[range->op], &channels);
    if (granule == 0)
        return fm__error(error, FM_ERROR_ARGUMENT, place, "cannot be split by channels");
    if (range->begin >= range->end || range->end > channels || range->begin % granule != 0 ||
        (range->end % granule != 0 && range->end != channels))
        return fm__error(error, FM_ERROR_ARGUMENT, place,
                         "channels %u to %u of %u are not a range in steps of %u", range->begin,
                         range->end, channels, granule);
    return FM_OK;
}

static fm_status check_tokens(const char *place, const fm__op_range *range, fm_error *error) {
    if (range->end == 0 ? range->begin == 0
                        : range->begin < range->end && range->end <= FM__TOKEN_PARTS)
        return FM_OK;
    return fm__error(error, FM_ERROR_ARGUMENT, place, "tokens %u to %u of %d parts", range->begin,
                     range->end, FM__TOKEN_PARTS);
}

static fm_status check_copy(fm__device *device, const char *place, const fm__tape *tape,
                            const fm__op_range *range, fm_error *error) {
    if (device->properties.unified || range->tensor < 0 ||
        (uint32_t)range->tensor >= tape->n_tensor ||
        tape->tensors[range->tensor].slot != FM__SLOT_SCRATCH)
        return fm__error(error, FM_ERROR_ARGUMENT, place,
                         "%s cannot copy tensor %d: it addresses host memory, or the tensor is not "
                         "in the scratch",
                         device->properties.name, range->tensor);
    const fm__tensor *tensor = &tape->tensors[range->tensor];
    if (range->axis == FM__AXIS_WHOLE)
        return FM_OK;
    if (range->axis == FM__AXIS_TOKENS)
        return check_tokens(place, range, error);
    if (range->axis == FM__AXIS_CHANNELS && tensor->act == FM__ACT_F32 &&
        range->begin < range->end && range->end <= tensor->cols)
        return FM_OK;
    return fm__error(error, FM_ERROR_ARGUMENT, place,
                     "columns %u to %u of tensor %s (%u) cannot be copied", range->begin,
                     range->end, tensor->name, tensor->cols);
}

static fm_status check_range(fm__device *device, const fm__tape *tape, const fm__op_range *range,
                             fm_error *error) {
    char place[160];
    fm__op_describe(tape, range->op, place, sizeof place);
    if (range->op >= tape->n_op)
        return fm__error(error, FM_ERROR_ARGUMENT, place, "the tape has %u ops", tape->n_op);
    if (range->copy != FM__COPY_NONE)
        return check_copy(device, place, tape, range, error);
    const char *reason = "";
    if (!fm__device_op_supports(device, tape, &tape->ops[range->op], &reason))
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "%s cannot run it: %s",
                         device->properties.name, reason);
    switch (range->axis) {
    case FM__AXIS_WHOLE:
        return FM_OK;
    case FM__AXIS_CHANNELS:
        return check_channels(place, tape, range, error);
    case FM__AXIS_TOKENS:
        return check_tokens(place, range, error);
    case FM__AXIS_PRODUCTS:
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "one product is not many");
    }
    return fm__error(error, FM_ERROR_ARGUMENT, place, "unknown axis %d", (int)range->axis);
}

/* The slots that the ranges touch. */
static uint32_t slots_of(const fm__tape *tape, const fm__op_range *ranges, uint32_t n_range) {
    uint32_t slots = 0;
    for (uint32_t i = 0; i < n_range; i++) {
        const fm__op *op = &tape->ops[ranges[i].op];
        bool copy = ranges[i].copy != FM__COPY_NONE;
        const int16_t tensors[3] = {copy ? ranges[i].tensor : op->out, copy ? FM__NONE : op->in[0],
                                    copy ? FM__NONE : op->in[1]};
        for (int t = 0; t < 3; t++)
            if (tensors[t] != FM__NONE)
                slots |= 1u << tape->tensors[tensors[t]].slot;
        if (!copy && (op->kind == FM__OP_KV_STORE || op->kind == FM__OP_ATTENTION))
            slots |= 1u << FM__SLOT_CACHE;
    }
    return slots;
}

fm_status fm__device_record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                            uint32_t n_range, fm__recording **out, fm_error *error) {
    if (!tape->finished)
        return fm__error(error, FM_ERROR_STATE, device->properties.name,
                         "a tape that is not finished cannot be recorded");
    if (n_range == 0)
        return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                         "a recording of no ops was asked for");
    for (uint32_t i = 0; i < n_range; i++) {
        if (i > 0 && ranges[i].op < ranges[i - 1].op)
            return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                             "op %u is recorded after op %u", ranges[i].op, ranges[i - 1].op);
        fm_status status = check_range(device, tape, &ranges[i], error);
        if (status != FM_OK)
            return status;
    }
    fm_status status = device->vtable->record(device, tape, ranges, n_range, out, error);
    if (status == FM_OK)
        (*out)->slots = slots_of(tape, ranges, n_range);
    return status;
}

void fm__device_recording_destroy(fm__recording **recording) {
    if (recording == NULL || *recording == NULL)
        return;
    (*recording)->device->vtable->recording_destroy(*recording);
    *recording = NULL;
}

fm__span fm__device_recording_span(fm__recording *recording) {
    const fm__device_vtable *vtable = recording->device->vtable;
    return vtable->recording_span != NULL ? vtable->recording_span(recording) : (fm__span){0, 0};
}

uint64_t fm__device_scratch_bytes(fm__device *device, const fm__tape *tape, bool or_shorter) {
    return device->vtable->scratch_bytes != NULL
               ? device->vtable->scratch_bytes(device, tape, or_shorter)
               : 0;
}

fm_status fm__device_scratch_reserve(fm__device *device, uint64_t bytes, fm_error *error) {
    return device->vtable->scratch_reserve != NULL && bytes > 0
               ? device->vtable->scratch_reserve(device, bytes, error)
               : FM_OK;
}

fm__held fm__device_held(fm__device *device) {
    return device->vtable->held != NULL ? device->vtable->held(device) : (fm__held){0};
}

bool fm__device_has_own_queue(const fm__device *device) {
    return device->vtable->timeline_attach != NULL;
}

uint32_t fm__device_recording_work(fm__recording *recording, fm__work *work, uint32_t room) {
    const fm__device_vtable *vtable = recording->device->vtable;
    if (vtable->recording_work != NULL)
        return vtable->recording_work(recording, work, room);
    if (work == NULL)
        return 1;
    fm__span span = fm__device_recording_span(recording);
    if (room == 0 || span.end_ns <= span.begin_ns)
        return 0;
    work[0] = (fm__work){.span = span};
    return 1;
}

fm_status fm__device_run_finish(fm__device *device, const fm__tape *tape, const fm__run *run,
                                fm_error *error) {
    const fm__device_vtable *vtable = device->vtable;
    return vtable->run_finish != NULL ? vtable->run_finish(device, tape, run, error) : FM_OK;
}

bool fm__device_is_lost(fm__device *device) {
    return device->vtable->is_lost != NULL && device->vtable->is_lost(device);
}

/* ---- queue ---- */

static const char *const SLOT_NAMES[FM__SLOT_COUNT] = {"scratch", "output", "cache"};

static fm_status check_buffer(fm__device *device, const fm__run *run, fm__slot slot, size_t needed,
                              fm_error *error) {
    if (needed == 0)
        return FM_OK;
    fm__buffer *buffer = fm__run_buffer(run, device, slot);
    if (buffer == NULL || buffer->bytes < needed)
        return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                         "the %s buffer has %zu bytes, the tape needs %zu", SLOT_NAMES[slot],
                         buffer == NULL ? 0 : buffer->bytes, needed);
    /* Another device's buffer will do where both address host memory. */
    if (buffer->device != device &&
        (!device->properties.unified || fm__device_buffer_map(buffer) == NULL))
        return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                         "the %s buffer belongs to %s and is not shared", SLOT_NAMES[slot],
                         buffer->device->properties.name);
    return FM_OK;
}

/* A unit needs only what its recordings touch: the caches may lie where it cannot reach them. */
static fm_status check_buffers(fm__device *device, const fm__tape *tape, uint32_t slots,
                               const fm__run *run, fm_error *error) {
    size_t needed[FM__SLOT_COUNT] = {tape->scratch_bytes, tape->output_bytes, 0};
    for (uint32_t g = 0; g < tape->n_group; g++)
        if (tape->group_mask >> g & 1)
            needed[FM__SLOT_CACHE] = fm__max_size(needed[FM__SLOT_CACHE],
                                                  tape->groups[g].offset + tape->groups[g].bytes);
    for (uint32_t s = 0; s < FM__SLOT_COUNT; s++) {
        if (!(slots >> s & 1))
            continue;
        fm_status status = check_buffer(device, run, (fm__slot)s, needed[s], error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* Every page that row `row` may touch in group g is there. A row that continues the one before it
   only adds a position: the rest was checked with that row. */
static fm_status check_pages(fm__device *device, const fm__tape *tape, const fm__batch_view *batch,
                             uint32_t g, uint32_t row, fm_error *error) {
    const fm__cache_group *group = &tape->groups[g];
    uint32_t sequence = batch->sequence[row], position = batch->position[row];
    const uint32_t *pages = batch->pages[sequence * batch->n_group + g];
    uint32_t first =
        group->window != 0 && position >= group->window ? position + 1 - group->window : 0;
    if (row > 0 && batch->sequence[row - 1] == sequence && batch->position[row - 1] + 1 == position)
        first = position;
    for (uint32_t i = first / FM__PAGE_TOKENS; i <= position / FM__PAGE_TOKENS; i++)
        if (pages == NULL || pages[i] >= group->n_page)
            return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                             "row %u at position %u: page %u of cache group %u is missing", row,
                             position, i, g);
    return FM_OK;
}

static fm_status check_row(fm__device *device, const fm__tape *tape, const fm__batch_view *batch,
                           uint32_t row, fm_error *error) {
    const char *place = device->properties.name;
    if (tape->token_limit != UINT32_MAX &&
        (batch->token[row] < 0 || (uint32_t)batch->token[row] >= tape->token_limit))
        return fm__error(error, FM_ERROR_ARGUMENT, place, "row %u: token %d of %u", row,
                         batch->token[row], tape->token_limit);
    if (tape->position_limit != UINT32_MAX && batch->position[row] >= tape->position_limit)
        return fm__error(error, FM_ERROR_ARGUMENT, place, "row %u: position %u of %u", row,
                         batch->position[row], tape->position_limit);
    if (tape->group_mask == 0)
        return FM_OK;
    if (batch->sequence[row] >= batch->n_sequence)
        return fm__error(error, FM_ERROR_ARGUMENT, place, "row %u: sequence %u of %u", row,
                         batch->sequence[row], batch->n_sequence);
    for (uint32_t g = 0; g < tape->n_group; g++) {
        if (!(tape->group_mask >> g & 1))
            continue;
        fm_status status = check_pages(device, tape, batch, g, row, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

static fm_status check_batch(fm__device *device, const fm__tape *tape, const fm__batch_view *batch,
                             fm_error *error) {
    const char *place = device->properties.name;
    if (batch == NULL || batch->n_row == 0 || batch->n_row > tape->max_rows ||
        batch->n_output > tape->max_outputs)
        return fm__error(error, FM_ERROR_ARGUMENT, place,
                         "%u rows with %u outputs; the tape takes 1 to %u with up to %u",
                         batch == NULL ? 0 : batch->n_row, batch == NULL ? 0 : batch->n_output,
                         tape->max_rows, tape->max_outputs);
    if (tape->group_mask != 0 && (batch->n_group != tape->n_group || batch->pages == NULL))
        return fm__error(error, FM_ERROR_ARGUMENT, place,
                         "the batch has pages of %u cache groups, the tape has %u groups",
                         batch->n_group, tape->n_group);
    for (uint32_t i = 0; i < batch->n_output; i++)
        if (batch->output_row[i] >= batch->n_row ||
            (i > 0 && batch->output_row[i] <= batch->output_row[i - 1]))
            return fm__error(error, FM_ERROR_ARGUMENT, place,
                             "output %u: row %u of %u, or rows that do not ascend", i,
                             batch->output_row[i], batch->n_row);
    for (uint32_t row = 0; row < batch->n_row; row++) {
        fm_status status = check_row(device, tape, batch, row, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* What was checked for a submission so far. */
typedef struct checked {
    bool rows; /* of every tape, before this submission */
    const fm__tape *tape;
    uint32_t slots;
} checked;

static fm_status check_segment(fm__device *device, const fm__segment *segment, const fm__run *run,
                               checked *so_far, fm_error *error) {
    const fm__recording *recording = segment->recording;
    if (recording == NULL)
        return FM_OK;
    if (recording->device != device)
        return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                         "a recording of %s was submitted", recording->device->properties.name);
    bool new_tape = recording->tape != so_far->tape;
    if (new_tape)
        *so_far = (checked){.rows = so_far->rows, .tape = recording->tape};
    fm_status status = FM_OK;
    if ((recording->slots & ~so_far->slots) != 0)
        status =
            check_buffers(device, recording->tape, recording->slots & ~so_far->slots, run, error);
    so_far->slots |= recording->slots;
    if (status != FM_OK || !new_tape || so_far->rows)
        return status;
    return check_batch(device, recording->tape, run->batch, error);
}

static fm_status submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                        const fm__run *run, uint64_t base, bool rows_checked, fm_error *error) {
    checked so_far = {.rows = rows_checked};
    if (n_segment == 0 || run == NULL || run->status == NULL)
        return fm__error(error, FM_ERROR_ARGUMENT, device->properties.name,
                         "no segments, or a run without a status");
    for (uint32_t i = 0; i < n_segment; i++) {
        fm_status status = check_segment(device, &segments[i], run, &so_far, error);
        if (status != FM_OK)
            return status;
    }
    return device->vtable->submit(device, segments, n_segment, run, base, error);
}

fm_status fm__device_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                            const fm__run *run, uint64_t base, fm_error *error) {
    return submit(device, segments, n_segment, run, base, false, error);
}

fm_status fm__device_submit_more(fm__device *device, const fm__segment *segments,
                                 uint32_t n_segment, const fm__run *run, uint64_t base,
                                 fm_error *error) {
    return submit(device, segments, n_segment, run, base, true, error);
}
