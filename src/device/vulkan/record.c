/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/record.c: ranges of a tape as command buffers that are replayed for every run.
 *
 * Owns: recordings, and the blocks of device memory that they use in turn. Never does: know an op
 * (ops.c and linear.c record those), or submit. Called from: the loading thread.
 *
 * Recordings run one after the other: each begins with a barrier behind all work before it and
 * what the host wrote, and ends with one that shows the host its results. So temporary memory and
 * the ring of streamed weights are shared by all of them. A range waits for the ranges of this
 * recording that it depends on, and for no others.
 *
 * Streaming: a recording has a command buffer for each part that stream.c cut its products into.
 * The first begins the recording, each other one begins at the first use of its part; submit.c lets
 * each wait for the part's copy. Barriers reach over the borders: all are of one queue.
 */
#include <assert.h>
#include <string.h>

#include "device/vulkan/core.h"
#include "device/vulkan/ops.h"

enum {
    BLOCK_ALIGN = 256,
    TEMPORARY_LEAST = 1 << 20, /* bytes of the first block */
};

struct fm__vulkan_recorder {
    fm__vulkan *gpu;
    const fm__tape *tape;
    fm__vulkan_recording *recording;
    VkCommandBuffer commands; /* that is being recorded: recording->commands[command] */
    uint32_t command;
    const fm__vulkan_kernel *bound;
    const fm__op_range *ranges;
    uint32_t n_range, current;
    uint32_t since; /* the first range behind the last barrier */
    size_t temporary_used;
    fm__vulkan_block *temporary; /* of blocks[]; NULL: none yet */
    fm__vulkan_uses uses;        /* of the products, in order */
    uint32_t next_use;
};

/* ---- what op files use ---- */

const fm__tape *fm__vulkan_recorder_tape(const fm__vulkan_recorder *recorder) {
    return recorder->tape;
}

fm__vulkan *fm__vulkan_recorder_gpu(const fm__vulkan_recorder *recorder) {
    return recorder->gpu;
}

uint64_t fm__vulkan_run_block(const fm__vulkan_recorder *recorder) {
    return recorder->recording->binding->block->address;
}

void fm__vulkan_dispatch(fm__vulkan_recorder *recorder, const fm__vulkan_kernel *kernel,
                         const void *push, uint32_t push_bytes, uint32_t x, uint32_t y,
                         uint32_t z) {
    const fm__vulkan_core *core = recorder->gpu->core;
    VkCommandBuffer commands = recorder->commands;
    const uint32_t *most = core->choice.properties.limits.maxComputeWorkGroupCount;
    assert(push_bytes <= FM__VULKAN_PUSH_BYTES && push_bytes % 4 == 0);
    assert(x <= most[0] && y <= most[1] && z <= most[2]);
    (void)most;
    if (x == 0 || y == 0 || z == 0)
        return;
    if (recorder->bound != kernel)
        core->vk.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, kernel->pipeline);
    recorder->bound = kernel;
    if (push_bytes > 0)
        core->vk.CmdPushConstants(commands, core->pipelines.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                  push_bytes, push);
    core->vk.CmdDispatch(commands, x, y, z);
}

static void barrier(fm__vulkan_recorder *recorder, VkPipelineStageFlags from, VkAccessFlags written,
                    VkPipelineStageFlags to, VkAccessFlags used) {
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = written, .dstAccessMask = used};
    recorder->gpu->core->vk.CmdPipelineBarrier(recorder->commands, from, to, 0, 1, &memory, 0, NULL,
                                               0, NULL);
}

void fm__vulkan_barrier(fm__vulkan_recorder *recorder) {
    barrier(recorder, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

/* ---- blocks: memory that recordings use in turn ---- */

static void release_block(fm__vulkan_block *block) {
    if (block == NULL || --block->users > 0)
        return;
    fm__vulkan_buffer_destroy(&block->buffer->base);
    fm__free(block);
}

/* Makes *newest a block of at least `bytes`; whoever uses the old one keeps it. */
static fm_status grow_block(fm__vulkan *gpu, fm__vulkan_block **newest, size_t bytes,
                            fm_error *error) {
    if (*newest != NULL && (*newest)->buffer->base.bytes >= bytes)
        return FM_OK;
    fm__vulkan_block *block = fm__alloc_zero(sizeof *block);
    if (block == NULL)
        return fm__error_memory(error, gpu->device.properties.name, sizeof *block);
    fm_status status = fm__vulkan_buffer_make(gpu, bytes, FM__MEMORY_LOCAL, &block->buffer, error);
    if (status != FM_OK) {
        fm__free(block);
        return status;
    }
    block->users = 1; /* *newest */
    release_block(*newest);
    *newest = block;
    return FM_OK;
}

/* The recording uses the block until it is destroyed. */
static fm_status keep_block(fm__vulkan_recorder *recorder, fm__vulkan_block *block,
                            fm_error *error) {
    fm__vulkan_recording *recording = recorder->recording;
    for (uint32_t i = 0; i < recording->n_block; i++)
        if (recording->blocks[i] == block)
            return FM_OK;
    if (recording->n_block == FM__VULKAN_BLOCKS)
        return fm__error(error, FM_ERROR_LIMIT, recorder->gpu->device.properties.name,
                         "one recording needs more than %d blocks of temporary memory",
                         FM__VULKAN_BLOCKS);
    block->users++;
    recording->blocks[recording->n_block++] = block;
    return FM_OK;
}

fm_status fm__vulkan_temporary(fm__vulkan_recorder *recorder, size_t bytes, uint64_t *address,
                               fm_error *error) {
    fm__vulkan *gpu = recorder->gpu;
    fm__vulkan_block **newest = &gpu->core->temporary;
    size_t whole = fm__round_up(bytes, BLOCK_ALIGN);
    fm__vulkan_block *block = recorder->temporary;
    if (block == NULL || block->buffer->base.bytes - recorder->temporary_used < whole) {
        /* Ops of this recording that are not done yet may use the old block: they keep it. */
        size_t least = *newest == NULL ? TEMPORARY_LEAST
                       : block == NULL ? 0
                                       : 2 * (*newest)->buffer->base.bytes;
        fm_status status = grow_block(gpu, newest, fm__max_size(whole, least), error);
        if (status == FM_OK)
            status = keep_block(recorder, *newest, error);
        if (status != FM_OK)
            return status;
        block = recorder->temporary = *newest;
        recorder->temporary_used = 0;
    }
    *address = block->buffer->address + recorder->temporary_used;
    recorder->temporary_used += whole;
    return FM_OK;
}

uint64_t fm__vulkan_scratch_bytes(fm__device *device, const fm__tape *tape, bool or_shorter) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < tape->n_op; i++)
        if (tape->ops[i].kind == FM__OP_ATTENTION)
            bytes = fm__max_size(bytes, fm__vulkan_attention_temporary((fm__vulkan *)device, tape,
                                                                       &tape->ops[i], or_shorter));
    return bytes > 0 ? fm__max_size(fm__round_up(bytes, BLOCK_ALIGN), TEMPORARY_LEAST) : 0;
}

fm_status fm__vulkan_scratch_reserve(fm__device *device, uint64_t bytes, fm_error *error) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    pthread_mutex_lock(&gpu->core->record_lock);
    fm_status status = grow_block(gpu, &gpu->core->temporary, bytes, error);
    pthread_mutex_unlock(&gpu->core->record_lock);
    return status;
}

fm__held fm__vulkan_held(fm__device *device) {
    fm__vulkan_core *core = ((fm__vulkan *)device)->core;
    fm__held held = {0};
    pthread_mutex_lock(&core->record_lock);
    if (core->temporary != NULL) /* older ones go with the recordings that use them */
        held.scratch = held.largest = core->temporary->buffer->base.bytes;
    if (core->ring.buffer != NULL)
        held.ring = core->ring.buffer->base.bytes;
    pthread_mutex_unlock(&core->record_lock);
    return held;
}

/* ---- weights ---- */

fm_status fm__vulkan_weight_source(fm__vulkan_recorder *recorder, const fm__weight *weight,
                                   uint32_t panel_begin, uint32_t panel_end, uint64_t *address,
                                   fm_error *error) {
    const fm__tape *tape = recorder->tape;
    const fm__vulkan_use *use = &recorder->uses.uses[recorder->next_use];
    const fm__op *op = &tape->ops[recorder->ranges[recorder->current].op];
    uint64_t stride = weight->layout.stride;
    for (int i = 0; i < 2 && use->part != FM__VULKAN_NO_PART; i++) {
        if (!use->copied[i] || tape->weights[op->weight[i]] != weight)
            continue;
        const fm__vulkan_ring *ring = &recorder->gpu->core->ring;
        const fm__vulkan_part *part = &recorder->recording->parts[use->part];
        *address = ring->buffer->address + part->at + use->at[i] - use->begin * stride;
        return FM_OK;
    }
    const fm__weight_range *range =
        fm__vulkan_panels(recorder->gpu, weight, panel_begin, panel_end);
    if (range == NULL)
        return fm__error(error, FM_ERROR_STATE, weight->name,
                         "panels %u to %u are not loaded on %s", panel_begin, panel_end,
                         recorder->gpu->device.properties.name);
    *address = fm__vulkan_address(recorder->gpu, range->buffer) + range->offset -
               range->panel_begin * stride;
    return FM_OK;
}

/* ---- command buffers ---- */

static fm_status create_commands(fm__vulkan_recorder *recorder, fm_error *error) {
    fm__vulkan *gpu = recorder->gpu;
    fm__vulkan_recording *recording = recorder->recording;
    uint32_t n = recording->n_part > 0 ? recording->n_part : 1;
    const VkCommandBufferAllocateInfo info = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = gpu->core->pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = n};
    recording->commands = fm__alloc_array(n, sizeof *recording->commands);
    if (recording->commands == NULL)
        return fm__error_memory(error, gpu->device.properties.name,
                                n * sizeof *recording->commands);
    VkResult result =
        gpu->core->vk.AllocateCommandBuffers(gpu->core->device, &info, recording->commands);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkAllocateCommandBuffers", error);
    recording->n_commands = n;
    return FM_OK;
}

static fm_status begin_commands(fm__vulkan_recorder *recorder, uint32_t index, fm_error *error) {
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    recorder->command = index;
    recorder->commands = recorder->recording->commands[index];
    recorder->bound = NULL;
    VkResult result = recorder->gpu->core->vk.BeginCommandBuffer(recorder->commands, &begin);
    return result == VK_SUCCESS
               ? FM_OK
               : fm__vulkan_failed(recorder->gpu, result, "vkBeginCommandBuffer", error);
}

static fm_status end_commands(fm__vulkan_recorder *recorder, fm_error *error) {
    VkResult result = recorder->gpu->core->vk.EndCommandBuffer(recorder->commands);
    return result == VK_SUCCESS
               ? FM_OK
               : fm__vulkan_failed(recorder->gpu, result, "vkEndCommandBuffer", error);
}

/* The beginning and the end of each command buffer: between two of them the device may wait for a
   copy. */
static void stamp(fm__vulkan_recorder *recorder, uint32_t query) {
    const fm__vulkan_recording *recording = recorder->recording;
    if (recording->queries != VK_NULL_HANDLE)
        recorder->gpu->core->vk.CmdWriteTimestamp(
            recorder->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, recording->queries,
            2 * recorder->command + query);
}

/* What follows is in the command buffer that waits for the part. */
static fm_status enter_part(fm__vulkan_recorder *recorder, uint32_t part, fm_error *error) {
    if (part == FM__VULKAN_NO_PART || part == recorder->command)
        return FM_OK;
    stamp(recorder, 1);
    fm_status status = end_commands(recorder, error);
    if (status == FM_OK)
        status = begin_commands(recorder, part, error);
    if (status == FM_OK)
        stamp(recorder, 0);
    return status;
}

/* ---- ranges ---- */

/* A barrier between ranges: what comes behind it waits for nothing of this recording any more. */
static void separate(fm__vulkan_recorder *recorder) {
    fm__vulkan_barrier(recorder);
    recorder->since = recorder->current;
    recorder->temporary_used = 0;
}

static bool must_wait(const fm__vulkan_recorder *recorder, uint32_t range, uint32_t until) {
    for (uint32_t i = recorder->since; i < until; i++)
        if (fm__range_must_wait(recorder->tape, &recorder->ranges[i], &recorder->ranges[range],
                                false))
            return true;
    return false;
}

static fm_status record_product(fm__vulkan_recorder *recorder, const fm__op_range *range,
                                fm_error *error) {
    const fm__vulkan_uses *uses = &recorder->uses;
    fm_status status = FM_OK;
    while (status == FM_OK && recorder->next_use < uses->n &&
           uses->uses[recorder->next_use].range == recorder->current) {
        const fm__vulkan_use *use = &uses->uses[recorder->next_use];
        status = enter_part(recorder, use->part, error);
        if (status == FM_OK)
            status = fm__vulkan_record_linear(recorder, range, use->begin, use->end, error);
        recorder->next_use++;
    }
    return status;
}

/* The range behind the current one, where it may be recorded together with it: it must not wait for
   anything else. */
static const fm__op_range *candidate(const fm__vulkan_recorder *recorder) {
    uint32_t next = recorder->current + 1;
    if (next == recorder->n_range || recorder->ranges[next].copy != FM__COPY_NONE ||
        must_wait(recorder, next, recorder->current))
        return NULL;
    return &recorder->ranges[next];
}

static fm_status record_range(fm__vulkan_recorder *recorder, fm_error *error) {
    const fm__op_range *range = &recorder->ranges[recorder->current];
    bool fused = false;
    if (must_wait(recorder, recorder->current, recorder->current))
        separate(recorder);
    fm_status status;
    if (range->copy != FM__COPY_NONE)
        status = fm__vulkan_record_copy(recorder, range, error);
    else if (fm__is_product(recorder->tape->ops[range->op].kind))
        status = record_product(recorder, range, error);
    else
        status = fm__vulkan_record_rows(recorder, range, candidate(recorder), &fused, error);
    recorder->current += fused ? 2 : 1;
    return status;
}

static fm_status record_ranges(fm__vulkan_recorder *recorder, fm_error *error) {
    fm_status status = FM_OK;
    while (status == FM_OK && recorder->current < recorder->n_range) {
        uint32_t op = recorder->ranges[recorder->current].op;
        status = record_range(recorder, error);
        if (status != FM_OK) {
            char place[160];
            fm__op_describe(recorder->tape, op, place, sizeof place);
            fm__error_within(error, status, place);
        }
    }
    return status;
}

/* ---- recordings ---- */

static fm_status fill_commands(fm__vulkan_recorder *recorder, fm_error *error) {
    const fm__vulkan_recording *recording = recorder->recording;
    fm_status status = begin_commands(recorder, 0, error);
    if (status != FM_OK)
        return status;
    if (recording->queries != VK_NULL_HANDLE)
        recorder->gpu->core->vk.CmdResetQueryPool(recorder->commands, recording->queries, 0,
                                                  2 * recording->n_commands);
    /* What another unit wrote before it signalled counts as the host's writes. */
    barrier(recorder, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT,
            VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_WRITE_BIT,
            VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
            VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT);
    stamp(recorder, 0);
    status = record_ranges(recorder, error);
    if (status != FM_OK)
        return status;
    barrier(recorder, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT | VK_ACCESS_SHADER_READ_BIT);
    stamp(recorder, 1);
    return end_commands(recorder, error);
}

VkResult fm__vulkan_queries_create(fm__vulkan *gpu, uint32_t n, VkQueryPool *out) {
    const VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                           .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                           .queryCount = n};
    return gpu->core->vk.CreateQueryPool(gpu->core->device, &queries, NULL, out);
}

static fm_status create_queries(fm__vulkan *gpu, fm__vulkan_recording *recording, fm_error *error) {
    if (gpu->core->clock.mask == 0)
        return FM_OK;
    size_t room =
        2 * fm__max_size(2 * recording->n_commands, 2 * FM__VULKAN_TURNS * recording->n_part);
    recording->ticks = fm__alloc_array(room, sizeof *recording->ticks);
    if (recording->ticks == NULL)
        return fm__error_memory(error, gpu->device.properties.name,
                                room * sizeof *recording->ticks);
    VkResult result =
        fm__vulkan_queries_create(gpu, 2 * recording->n_commands, &recording->queries);
    return result == VK_SUCCESS ? FM_OK
                                : fm__vulkan_failed(gpu, result, "vkCreateQueryPool", error);
}

/* Whether the ranges hold the tape's first product, and its last. */
static void note_products(fm__vulkan_recorder *recorder) {
    const fm__tape *tape = recorder->tape;
    uint32_t first = 0, last = tape->n_op;
    while (first < tape->n_op && !fm__is_product(tape->ops[first].kind))
        first++;
    while (last > 0 && !fm__is_product(tape->ops[last - 1].kind))
        last--;
    for (uint32_t i = 0; i < recorder->n_range; i++) {
        recorder->recording->begins |= recorder->ranges[i].op == first;
        recorder->recording->ends |= recorder->ranges[i].op + 1 == last;
    }
}

static void destroy_locked(fm__vulkan *gpu, fm__vulkan_recording *recording) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    if (recording->n_commands > 0)
        vk->FreeCommandBuffers(gpu->core->device, gpu->core->pool, recording->n_commands,
                               recording->commands);
    fm__free(recording->commands);
    fm__vulkan_stream_free(gpu, recording);
    vk->DestroyQueryPool(gpu->core->device, recording->queries, NULL);
    fm__free(recording->ticks);
    for (uint32_t i = 0; i < recording->n_block; i++)
        release_block(recording->blocks[i]);
    fm__vulkan_binding_put(gpu, recording->binding);
    fm__free(recording);
}

fm_status fm__vulkan_record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                            uint32_t n_range, fm__recording **out, fm_error *error) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    fm__vulkan_recording *recording = fm__alloc_zero(sizeof *recording);
    if (recording == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *recording);
    recording->base = (fm__recording){.device = device, .tape = tape};
    fm__vulkan_recorder recorder = {
        .gpu = gpu, .tape = tape, .recording = recording, .ranges = ranges, .n_range = n_range};
    pthread_mutex_lock(&gpu->core->record_lock);
    fm_status status = fm__vulkan_binding_get(gpu, tape, &recording->binding, error);
    if (status == FM_OK)
        status =
            fm__vulkan_stream_plan(gpu, tape, ranges, n_range, recording, &recorder.uses, error);
    if (status == FM_OK)
        status = create_commands(&recorder, error);
    if (status == FM_OK)
        status = create_queries(gpu, recording, error);
    if (status == FM_OK)
        status = fill_commands(&recorder, error);
    note_products(&recorder);
    fm__free(recorder.uses.uses);
    if (status != FM_OK)
        destroy_locked(gpu, recording);
    pthread_mutex_unlock(&gpu->core->record_lock);
    if (status == FM_OK)
        *out = &recording->base;
    return status;
}

void fm__vulkan_recording_destroy(fm__recording *recording) {
    fm__vulkan_recording *r = (fm__vulkan_recording *)recording;
    fm__vulkan *gpu = (fm__vulkan *)recording->device;
    fm__vulkan_wait(gpu, r->ticket);
    fm__vulkan_wait_copy(gpu, r->copy);
    pthread_mutex_lock(&gpu->core->record_lock);
    destroy_locked(gpu, r);
    pthread_mutex_unlock(&gpu->core->record_lock);
}

/* ---- when a recording ran ---- */

/* Timestamps of n queries, each followed by whether it is there. */
static bool read_ticks(fm__vulkan *gpu, const fm__vulkan_recording *r, VkQueryPool queries,
                       uint32_t n) {
    VkResult result = gpu->core->vk.GetQueryPoolResults(
        gpu->core->device, queries, 0, n, 2 * n * sizeof *r->ticks, r->ticks, 2 * sizeof *r->ticks,
        VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WITH_AVAILABILITY_BIT);
    return result == VK_SUCCESS || result == VK_NOT_READY;
}

/* Of queries 2 i and 2 i + 1; zeros where one is not there. */
static fm__span span_of(fm__vulkan *gpu, const fm__vulkan_recording *r, uint32_t i, uint64_t mask) {
    const uint64_t *ticks = r->ticks + 4 * (size_t)i;
    if (ticks[1] == 0 || ticks[3] == 0)
        return (fm__span){0, 0};
    return (fm__span){fm__vulkan_clock_ns(gpu, ticks[0], mask),
                      fm__vulkan_clock_ns(gpu, ticks[2], mask)};
}

static bool has_run(fm__vulkan *gpu, const fm__vulkan_recording *r) {
    return r->queries != VK_NULL_HANDLE && r->ticket != 0 && !fm__vulkan_is_lost(&gpu->device) &&
           fm__vulkan_ended_soon(gpu, r->ticket);
}

fm__span fm__vulkan_recording_span(fm__recording *recording) {
    fm__vulkan_recording *r = (fm__vulkan_recording *)recording;
    fm__vulkan *gpu = (fm__vulkan *)recording->device;
    if (!has_run(gpu, r) || !read_ticks(gpu, r, r->queries, 2 * r->n_commands))
        return (fm__span){0, 0};
    fm__vulkan_clock_refresh(gpu);
    fm__span first = span_of(gpu, r, 0, gpu->core->clock.mask);
    fm__span last = span_of(gpu, r, r->n_commands - 1, gpu->core->clock.mask);
    return first.end_ns != 0 && last.end_ns != 0 ? (fm__span){first.begin_ns, last.end_ns}
                                                 : (fm__span){0, 0};
}

static uint32_t add_work(fm__work *work, uint32_t n, uint32_t room, fm__work what) {
    if (n == room || what.span.end_ns <= what.span.begin_ns)
        return n;
    work[n] = what;
    return n + 1;
}

/* What each command buffer computed; and where its copy kept no time, what is known of that. */
static uint32_t add_computing(fm__vulkan *gpu, const fm__vulkan_recording *r, fm__work *work,
                              uint32_t room) {
    uint32_t n = 0;
    if (!read_ticks(gpu, r, r->queries, 2 * r->n_commands))
        return 0;
    for (uint32_t i = 0; i < r->n_commands; i++) {
        fm__span span = span_of(gpu, r, i, gpu->core->clock.mask);
        n = add_work(work, n, room, (fm__work){.span = span});
        if (i >= r->n_part || r->parts[i].timed || !r->parts[i].fresh)
            continue;
        span = (fm__span){r->parts[i].read_ns, span.begin_ns};
        n = add_work(work, n, room, (fm__work){.span = span, .copy = true, .observed = true});
    }
    return n;
}

/* One that has begun and is under way has no end yet. */
static fm__span copy_span(fm__vulkan *gpu, const fm__vulkan_recording *r, uint32_t i) {
    const uint64_t *ticks = r->ticks + 4 * (size_t)i;
    uint64_t mask = gpu->core->clock.copy_mask;
    if (ticks[1] != 0 && ticks[3] == 0)
        return (fm__span){fm__vulkan_clock_ns(gpu, ticks[0], mask), UINT64_MAX};
    return span_of(gpu, r, i, mask);
}

static uint32_t add_copies(fm__vulkan *gpu, const fm__vulkan_recording *r, fm__work *work,
                           uint32_t n, uint32_t room) {
    if (r->copy_queries == VK_NULL_HANDLE ||
        !read_ticks(gpu, r, r->copy_queries, 2 * FM__VULKAN_TURNS * r->n_part))
        return n;
    for (uint32_t i = 0; i < FM__VULKAN_TURNS * r->n_part; i++) {
        const fm__vulkan_part *part = &r->parts[i / FM__VULKAN_TURNS];
        fm__work what = {.span = copy_span(gpu, r, i), .copy = true};
        if (part->copies[i % FM__VULKAN_TURNS] != 0)
            n = add_work(work, n, room, what);
    }
    return n;
}

uint32_t fm__vulkan_recording_work(fm__recording *recording, fm__work *work, uint32_t room) {
    fm__vulkan_recording *r = (fm__vulkan_recording *)recording;
    fm__vulkan *gpu = (fm__vulkan *)recording->device;
    if (work == NULL)
        return r->n_commands + (FM__VULKAN_TURNS + 1) * r->n_part;
    if (!has_run(gpu, r))
        return 0;
    fm__vulkan_clock_refresh(gpu);
    uint32_t n = add_computing(gpu, r, work, room);
    return add_copies(gpu, r, work, n, room);
}
