/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/binding.c: what a run binds (slots, rows, pages), where every recording of a tape
 * finds it: `RunBlock` of shaders/common.glsl with its arrays behind it.
 *
 * Owns: one block a tape. Never does: change a block that a submission still reads, or a recorded
 * address: pages alone may move, since the block tells where they are. Called from: the loading
 * thread (get, put), submitting threads (fill) and waiting ones (finish).
 */
#include <string.h>

#include "device/vulkan/core.h"

/* As common.glsl has it, scalar layout. */
typedef struct run_header {
    uint64_t slots[4]; /* scratch, output, cache, mirror of the scratch */
    uint64_t token, position, sequence, output_row, page_start, pages;
    uint32_t n_row, n_output, n_sequence, n_group;
    uint32_t failure; /* op << 13 | row */
} run_header;

enum {
    HEADER_BYTES = offsetof(run_header, failure) + 4,
    NO_FAILURE = 0xFFFFFFFF,
    ROW_BITS = 13,
    ROOM_SEQUENCES = 16, /* that the first page room is made for */
};

/* ---- layout: byte offsets of the arrays in the block ---- */

typedef struct layout {
    size_t token, position, sequence, output_row, page_start, bytes;
} layout;

static layout layout_of(const fm__tape *tape, uint32_t max_sequences) {
    size_t rows = fm__round_up((size_t)tape->max_rows * 4, 16);
    size_t outputs = fm__round_up((size_t)tape->max_outputs * 4, 16);
    layout l = {.token = fm__round_up(HEADER_BYTES, 16)};
    l.position = l.token + rows;
    l.sequence = l.position + rows;
    l.output_row = l.sequence + rows;
    l.page_start = l.output_row + outputs;
    l.bytes = l.page_start + fm__round_up((size_t)max_sequences * tape->n_group * 4 + 4, 16);
    return l;
}

/* ---- making one ---- */

static uint8_t *address_of(const fm__vulkan_buffer *buffer) {
    return buffer->host != NULL ? buffer->host : buffer->window;
}

/* Small memory that the host writes and every workgroup reads: the device's own, where the host has
   a window into it, else the host's. */
static fm_status create(fm__vulkan *gpu, size_t bytes, fm__vulkan_buffer **out, fm_error *error) {
    fm__memory memory = gpu->core->choice.local_visible ? FM__MEMORY_LOCAL : FM__MEMORY_HOST;
    fm_status status = fm__vulkan_buffer_make(gpu, bytes, memory, out, error);
    if (status != FM_OK || address_of(*out) != NULL)
        return status;
    fm__vulkan_buffer_destroy(&(*out)->base); /* the window could not be opened */
    *out = NULL;
    return fm__vulkan_buffer_make(gpu, bytes, FM__MEMORY_HOST, out, error);
}

static void destroy(fm__vulkan_binding *binding) {
    if (binding->block != NULL)
        fm__vulkan_buffer_destroy(&binding->block->base);
    if (binding->pages != NULL)
        fm__vulkan_buffer_destroy(&binding->pages->base);
    fm__free(binding->page_shadow);
    fm__free(binding->shadow);
    fm__free(binding);
}

/* Room for `n` page ids; only while no submission reads the old room. */
static fm_status reserve_pages(fm__vulkan *gpu, fm__vulkan_binding *binding, size_t n,
                               fm_error *error) {
    fm__vulkan_buffer *pages = NULL;
    if (n <= binding->page_capacity)
        return FM_OK;
    uint32_t *shadow = fm__alloc_zero(2 * n * sizeof *shadow);
    if (shadow == NULL)
        return fm__error_memory(error, gpu->device.properties.name, 2 * n * sizeof *shadow);
    fm_status status = create(gpu, n * sizeof *shadow, &pages, error);
    if (status != FM_OK) {
        fm__free(shadow);
        return status;
    }
    memset(address_of(pages), 0, n * sizeof *shadow);
    if (binding->pages != NULL)
        fm__vulkan_buffer_destroy(&binding->pages->base);
    fm__free(binding->page_shadow);
    binding->pages = pages;
    binding->page_shadow = shadow;
    binding->page_capacity = (uint32_t)n;
    return FM_OK;
}

/* Pages of all groups that one sequence can have. */
static size_t pages_of_sequence(const fm__tape *tape) {
    size_t n = 0, longest = (size_t)tape->position_limit / FM__PAGE_TOKENS + 1;
    for (uint32_t g = 0; g < tape->n_group; g++)
        n += fm__min_size(longest, tape->groups[g].n_page);
    return n;
}

static fm_status make(fm__vulkan *gpu, const fm__tape *tape, fm__vulkan_binding **out,
                      fm_error *error) {
    fm__vulkan_binding *binding = fm__alloc_zero(sizeof *binding);
    if (binding == NULL)
        return fm__error_memory(error, gpu->device.properties.name, sizeof *binding);
    binding->tape = tape;
    binding->max_sequences = tape->max_rows;
    binding->block_bytes = layout_of(tape, binding->max_sequences).bytes;
    binding->shadow = fm__alloc_zero(2 * binding->block_bytes);
    fm_status status =
        binding->shadow != NULL
            ? create(gpu, binding->block_bytes, &binding->block, error)
            : fm__error_memory(error, gpu->device.properties.name, 2 * binding->block_bytes);
    size_t sequences = fm__min_size(tape->max_rows, ROOM_SEQUENCES);
    if (status == FM_OK)
        status = reserve_pages(gpu, binding, sequences * pages_of_sequence(tape) + 1, error);
    if (status != FM_OK) {
        destroy(binding);
        return status;
    }
    run_header *header = (run_header *)address_of(binding->block);
    memset(header, 0, binding->block_bytes);
    header->failure = NO_FAILURE;
    binding->failure = &header->failure;
    *out = binding;
    return FM_OK;
}

fm_status fm__vulkan_binding_get(fm__vulkan *gpu, const fm__tape *tape, fm__vulkan_binding **out,
                                 fm_error *error) {
    fm__vulkan_binding *binding = gpu->core->bindings;
    while (binding != NULL && binding->tape != tape)
        binding = binding->next;
    if (binding == NULL) {
        fm_status status = make(gpu, tape, &binding, error);
        if (status != FM_OK)
            return status;
        binding->next = gpu->core->bindings;
        gpu->core->bindings = binding;
    }
    binding->users++;
    *out = binding;
    return FM_OK;
}

void fm__vulkan_binding_put(fm__vulkan *gpu, fm__vulkan_binding *binding) {
    if (binding == NULL || --binding->users > 0)
        return;
    fm__vulkan_binding **at = &gpu->core->bindings;
    while (*at != binding)
        at = &(*at)->next;
    *at = binding->next;
    destroy(binding);
}

/* ---- filling it ---- */

/* Where the device finds a slot; 0: the run does not bind it. */
static uint64_t slot_address(const fm__vulkan *gpu, const fm__run *run, fm__slot slot) {
    return fm__vulkan_address(gpu, fm__run_buffer(run, &gpu->device, slot));
}

/* The mirror of the scratch, for copies: what the units that address host memory work on. */
static uint64_t mirror_address(const fm__vulkan *gpu, const fm__run *run) {
    return fm__vulkan_address(gpu, run->mirrors[FM__SLOT_SCRATCH]);
}

/* slots: those that the recording touches, as bits. */
static fm_status check_slots(const fm__vulkan *gpu, const fm__run *run, uint32_t slots,
                             fm_error *error) {
    for (uint32_t s = 0; s < FM__SLOT_COUNT; s++) {
        const fm__buffer *buffer = fm__run_buffer(run, &gpu->device, (fm__slot)s);
        if ((slots >> s & 1) == 0 || buffer == NULL || fm__vulkan_address(gpu, buffer) != 0)
            continue;
        return fm__error(error, FM_ERROR_ARGUMENT, gpu->device.properties.name,
                         "a run binds memory of %s, which has to be created here or imported",
                         buffer->device->properties.name);
    }
    return FM_OK;
}

/* Page ids that each sequence needs: up to its last position in the batch; 0: no row is of it. They
   go to the first place of the sequence in `start`. */
static void count_pages(const fm__batch_view *batch, uint32_t *start) {
    for (uint32_t s = 0; s < batch->n_sequence; s++)
        start[s * batch->n_group] = 0;
    for (uint32_t r = 0; r < batch->n_row; r++) {
        uint32_t n = batch->position[r] / FM__PAGE_TOKENS + 1;
        uint32_t *most = &start[batch->sequence[r] * batch->n_group];
        *most = n > *most ? n : *most;
    }
}

/* Writes where each list begins, and the lists one behind the other (ids NULL: only counts). */
static size_t flatten_pages(const fm__tape *tape, const fm__batch_view *batch, uint32_t *start,
                            uint32_t *ids) {
    size_t n = 0;
    if (tape->group_mask == 0)
        return 0;
    count_pages(batch, start);
    for (uint32_t s = 0; s < batch->n_sequence; s++) {
        uint32_t needed = start[s * batch->n_group];
        for (uint32_t g = 0; g < batch->n_group; g++) {
            size_t list = (size_t)s * batch->n_group + g;
            uint32_t taken = tape->group_mask >> g & 1 ? needed : 0;
            start[list] = (uint32_t)n;
            if (ids != NULL && taken > 0)
                memcpy(ids + n, batch->pages[list], taken * sizeof *ids);
            n += taken;
        }
    }
    return n;
}

static void put_array(uint8_t *to, const void *from, uint32_t n) {
    if (from != NULL)
        memcpy(to, from, (size_t)n * 4);
}

/* What the block shall hold, in the second half of the shadows. */
static void compose(fm__vulkan *gpu, fm__vulkan_binding *binding, const fm__run *run) {
    const fm__batch_view *batch = run->batch;
    layout l = layout_of(binding->tape, binding->max_sequences);
    uint8_t *out = binding->shadow + binding->block_bytes;
    uint64_t base = binding->block->address;
    const run_header header = {
        .slots = {slot_address(gpu, run, FM__SLOT_SCRATCH), slot_address(gpu, run, FM__SLOT_OUTPUT),
                  slot_address(gpu, run, FM__SLOT_CACHE), mirror_address(gpu, run)},
        .token = base + l.token,
        .position = base + l.position,
        .sequence = base + l.sequence,
        .output_row = base + l.output_row,
        .page_start = base + l.page_start,
        .pages = binding->pages->address,
        .n_row = batch->n_row,
        .n_output = batch->n_output,
        .n_sequence = batch->n_sequence,
        .n_group = batch->n_group,
        .failure = NO_FAILURE};
    memcpy(out, &header, HEADER_BYTES); /* without its padding, whose bytes may be any */
    put_array(out + l.token, batch->token, batch->n_row);
    put_array(out + l.position, batch->position, batch->n_row);
    put_array(out + l.sequence, batch->sequence, batch->n_row);
    put_array(out + l.output_row, batch->output_row, batch->n_output);
    flatten_pages(binding->tape, batch, (uint32_t *)(out + l.page_start),
                  binding->page_shadow + binding->page_capacity);
}

/* Copies what differs: a run is often submitted in parts, of which only the first writes. The bytes
   [skip_from, skip_to) stay as they are. */
static void renew(void *old, const void *now, size_t bytes, uint8_t *memory, size_t skip_from,
                  size_t skip_to) {
    memcpy(old, now, bytes);
    memcpy(memory, now, skip_from);
    memcpy(memory + skip_to, (const uint8_t *)now + skip_to, bytes - skip_to);
}

/* A failure that nobody has asked for yet belongs to the run that the block held last. */
static void forget_failure(fm__vulkan_binding *binding, const fm__run *run) {
    if (binding->run != run)
        *binding->failure = NO_FAILURE;
    binding->run = run;
}

static fm_status in_use(const fm__vulkan *gpu, fm_error *error) {
    return fm__error(error, FM_ERROR_STATE, gpu->device.properties.name,
                     "a run of the same tape has not ended yet");
}

/* Makes the block hold the run. */
static fm_status fill(fm__vulkan *gpu, fm__vulkan_binding *binding, const fm__run *run,
                      fm_error *error) {
    const fm__batch_view *batch = run->batch;
    if (batch->n_sequence > binding->max_sequences)
        return fm__error(error, FM_ERROR_LIMIT, gpu->device.properties.name,
                         "%u sequences in a batch, the tape takes %u", batch->n_sequence,
                         binding->max_sequences);
    layout l = layout_of(binding->tape, binding->max_sequences);
    uint32_t *start = (uint32_t *)(binding->shadow + binding->block_bytes + l.page_start);
    size_t n_page = flatten_pages(binding->tape, batch, start, NULL);
    if (n_page > binding->page_capacity) {
        if (!fm__vulkan_ended_soon(gpu, binding->ticket))
            return in_use(gpu, error);
        fm_status status = reserve_pages(gpu, binding, n_page + n_page / 2, error);
        if (status != FM_OK)
            return status;
    }
    compose(gpu, binding, run);
    const uint8_t *now = binding->shadow + binding->block_bytes;
    const uint32_t *pages_now = binding->page_shadow + binding->page_capacity;
    size_t page_bytes = n_page * sizeof *pages_now;
    bool rows = memcmp(binding->shadow, now, binding->block_bytes) != 0;
    bool pages = memcmp(binding->page_shadow, pages_now, page_bytes) != 0;
    if ((rows || pages || binding->run != run) && !fm__vulkan_ended_soon(gpu, binding->ticket))
        return in_use(gpu, error);
    /* The failure word alone is written by the device. */
    size_t word = offsetof(run_header, failure);
    if (rows)
        renew(binding->shadow, now, binding->block_bytes, address_of(binding->block), word,
              word + 4);
    if (pages)
        renew(binding->page_shadow, pages_now, page_bytes, address_of(binding->pages), page_bytes,
              page_bytes);
    forget_failure(binding, run);
    return FM_OK;
}

fm_status fm__vulkan_binding_fill(fm__vulkan *gpu, fm__vulkan_binding *binding, const fm__run *run,
                                  uint32_t slots, uint64_t call, fm_error *error) {
    fm_status status = check_slots(gpu, run, slots, error);
    if (status != FM_OK || binding->filled == call)
        return status;
    status = fill(gpu, binding, run, error);
    if (status == FM_OK)
        binding->filled = call;
    return status;
}

/* ---- after a run ---- */

static void report(const fm__tape *tape, const fm__run *run, uint32_t failure) {
    uint32_t op = failure >> ROW_BITS, row = failure & ((1u << ROW_BITS) - 1);
    if (op < tape->n_op)
        fm__run_status_report(run->status, op, row, FM_ERROR_NUMERIC);
}

fm_status fm__vulkan_run_finish(fm__device *device, const fm__tape *tape, const fm__run *run,
                                fm_error *error) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    if (fm__vulkan_is_lost(device))
        return fm__error(error, FM_ERROR_DEVICE, device->properties.name, "%s was lost",
                         device->properties.name);
    pthread_mutex_lock(&gpu->core->record_lock);
    fm__vulkan_binding *binding = gpu->core->bindings;
    while (binding != NULL && binding->tape != tape)
        binding = binding->next;
    pthread_mutex_unlock(&gpu->core->record_lock);
    if (binding == NULL)
        return FM_OK;
    pthread_mutex_lock(&gpu->core->queue.lock);
    if (binding->run == run) {
        if (*binding->failure != NO_FAILURE)
            report(tape, run, *binding->failure);
        *binding->failure = NO_FAILURE;
        binding->run = NULL;
    }
    pthread_mutex_unlock(&gpu->core->queue.lock);
    return FM_OK;
}
