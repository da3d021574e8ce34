/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/record.c: ranges of a tape as one command buffer that is replayed for every run.
 *
 * Owns: recordings, and the blocks of device memory that they use in turn. Never does: know an op
 * (ops.c and linear.c record those), or submit. Called from: the loading thread.
 *
 * Recordings run one after the other: each begins with a barrier behind all work before it and
 * what the host wrote, and ends with one that shows the host its results. So temporary memory and
 * the ring of streamed weights are shared by all of them. A range waits for the ranges of this
 * recording that it depends on, and for no others.
 *
 * Streaming: a product whose panels are streamed is recorded in parts of some panels each. The
 * panels of part i are copied into one half of the ring while part i - 1, of the same product or
 * the one before, reads the other half: copy and product stand between the same barriers.
 */
#include <assert.h>
#include <string.h>

#include "device/vulkan/core.h"

enum {
    DIRECT_ROWS = 8, /* up to them a product reads its panels once: no copy pays */
    /* Of one part: its copy takes far longer than a barrier, and its product keeps a large device
       busy; parts are whole tiles of products. */
    PART_BYTES = 32 << 20, /* 8 MiB: a prompt of 64 tokens took half as long again on an H200 */
    PART_PANELS = 8,
    BLOCK_ALIGN = 256,
    TEMPORARY_LEAST = 1 << 20, /* bytes of the first block */
};

/* One weight of a product that is streamed. */
typedef struct piece {
    const fm__weight *weight;
    uint32_t begin, end; /* panels */
    uint64_t from;       /* the address of panel `begin` */
    uint64_t at;         /* where it goes in its half of the ring */
} piece;

typedef struct stream {
    uint32_t range;    /* of the recording's ranges */
    fm__op_range part; /* what of it is computed from these pieces */
    uint32_t n_piece;
    piece pieces[2];
    uint64_t bytes;
} stream;

struct fm__vulkan_recorder {
    fm__vulkan *gpu;
    const fm__tape *tape;
    fm__vulkan_recording *recording;
    const fm__vulkan_kernel *bound;
    const fm__op_range *ranges;
    uint32_t n_range, current;
    uint32_t since; /* the first range behind the last barrier */
    size_t temporary_used;
    fm__vulkan_block *temporary; /* of blocks[]; NULL: none yet */
    stream *streams;             /* parts of products, in order */
    uint32_t n_stream, stream_capacity, next_stream;
    uint64_t ring, half; /* address, bytes */
    bool copying;        /* the next stream's copy was recorded behind the last barrier */
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
    VkCommandBuffer commands = recorder->recording->commands;
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
    recorder->gpu->core->vk.CmdPipelineBarrier(recorder->recording->commands, from, to, 0, 1,
                                               &memory, 0, NULL, 0, NULL);
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

/* ---- weights ---- */

/* Where panels [begin, end) lie for this device, as the address of panel 0; 0: not in one piece. */
static uint64_t find_panels(const fm__vulkan *gpu, const fm__weight *weight, uint32_t begin,
                            uint32_t end, fm__residency *residency) {
    for (uint32_t i = 0; i < weight->n_ranges; i++) {
        const fm__weight_range *range = &weight->ranges[i];
        uint64_t address = fm__vulkan_address(gpu, range->buffer);
        if (address == 0 || range->panel_begin > begin || range->panel_end < end)
            continue;
        *residency = range->residency;
        return address + range->offset - (uint64_t)range->panel_begin * weight->layout.stride;
    }
    return 0;
}

/* The range that is being recorded is read from the next stream. */
static bool stream_is_next(const fm__vulkan_recorder *recorder) {
    return recorder->next_stream < recorder->n_stream &&
           recorder->streams[recorder->next_stream].range == recorder->current;
}

fm_status fm__vulkan_weight_source(fm__vulkan_recorder *recorder, const fm__weight *weight,
                                   uint32_t panel_begin, uint32_t panel_end, uint64_t *address,
                                   fm_error *error) {
    if (stream_is_next(recorder)) {
        const stream *s = &recorder->streams[recorder->next_stream];
        for (uint32_t i = 0; i < s->n_piece; i++) {
            const piece *p = &s->pieces[i];
            if (p->weight != weight || p->begin > panel_begin || p->end < panel_end)
                continue;
            *address = recorder->ring + (recorder->next_stream % 2) * recorder->half + p->at -
                       (uint64_t)p->begin * weight->layout.stride;
            return FM_OK;
        }
    }
    fm__residency residency;
    *address = find_panels(recorder->gpu, weight, panel_begin, panel_end, &residency);
    if (*address != 0)
        return FM_OK;
    return fm__error(error, FM_ERROR_STATE, weight->name, "panels %u to %u are not loaded on %s",
                     panel_begin, panel_end, recorder->gpu->device.properties.name);
}

/* ---- streaming ---- */

static bool is_product(const fm__op *op) {
    return op->kind == FM__OP_LINEAR || op->kind == FM__OP_LINEAR_GLU;
}

typedef struct panels {
    uint32_t begin, end;
} panels;

static panels product_panels(const fm__tape *tape, const fm__op_range *range) {
    const fm__weight *weight = tape->weights[tape->ops[range->op].weight[0]];
    if (range->axis != FM__AXIS_CHANNELS)
        return (panels){0, weight->panels};
    return (panels){range->begin / FM__PANEL_ROWS,
                    (range->end + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS};
}

static int product_weights(const fm__op *op) {
    return op->kind == FM__OP_LINEAR_GLU ? 2 : 1;
}

/* Panels [p.begin, p.end) of weight `which`, if they are streamed; else from is 0. */
static piece streamed_piece(const fm__vulkan_recorder *recorder, const fm__op *op, int which,
                            panels p) {
    const fm__weight *weight = recorder->tape->weights[op->weight[which]];
    fm__residency residency;
    uint64_t address = find_panels(recorder->gpu, weight, p.begin, p.end, &residency);
    if (address == 0 || residency != FM__RESIDENCY_STREAMED)
        return (piece){.from = 0};
    return (piece){.weight = weight,
                   .begin = p.begin,
                   .end = p.end,
                   .from = address + (uint64_t)p.begin * weight->layout.stride};
}

/* Bytes that one panel of the range needs copied; 0: all can be read where they are. */
static uint64_t streamed_stride(const fm__vulkan_recorder *recorder, const fm__op_range *range) {
    const fm__tape *tape = recorder->tape;
    const fm__op *op = &tape->ops[range->op];
    uint64_t bytes = 0;
    if (range->copy != FM__COPY_NONE || !is_product(op) ||
        fm__tape_bound(tape, &tape->tensors[op->out]) <= DIRECT_ROWS)
        return 0;
    for (int i = 0; i < product_weights(op); i++)
        if (streamed_piece(recorder, op, i, product_panels(tape, range)).from != 0)
            bytes += tape->weights[op->weight[i]]->layout.stride;
    return bytes;
}

static bool add_stream(fm__vulkan_recorder *recorder, const stream *s) {
    if (recorder->n_stream == recorder->stream_capacity) {
        uint32_t capacity = recorder->stream_capacity == 0 ? 64 : 2 * recorder->stream_capacity;
        void *grown = fm__realloc(recorder->streams, capacity * sizeof *s);
        if (grown == NULL)
            return false;
        recorder->streams = grown;
        recorder->stream_capacity = capacity;
    }
    recorder->streams[recorder->n_stream++] = *s;
    recorder->half = recorder->half > s->bytes ? recorder->half : s->bytes;
    return true;
}

/* The part of range `index` that panels `p` give. */
static stream plan_part(const fm__vulkan_recorder *recorder, uint32_t index, panels p) {
    const fm__op_range *range = &recorder->ranges[index];
    const fm__op *op = &recorder->tape->ops[range->op];
    stream s = {.range = index, .part = *range};
    if (range->axis != FM__AXIS_TOKENS) {
        uint32_t n = recorder->tape->weights[op->weight[0]]->n, end = p.end * FM__PANEL_ROWS;
        s.part.axis = FM__AXIS_CHANNELS;
        s.part.begin = p.begin * FM__PANEL_ROWS;
        s.part.end = end < n ? end : n;
    }
    for (int i = 0; i < product_weights(op); i++) {
        piece found = streamed_piece(recorder, op, i, p);
        if (found.from == 0)
            continue;
        found.at = s.bytes;
        s.bytes += (uint64_t)(p.end - p.begin) * found.weight->layout.stride;
        s.bytes = (s.bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
        s.pieces[s.n_piece++] = found;
    }
    return s;
}

/* Cuts range `index` into parts, if it is streamed. A range of tokens reads all panels at once. */
static bool plan_range(fm__vulkan_recorder *recorder, uint32_t index) {
    const fm__op_range *range = &recorder->ranges[index];
    uint64_t stride = streamed_stride(recorder, range);
    if (stride == 0)
        return true;
    panels all = product_panels(recorder->tape, range);
    uint32_t most = (uint32_t)(PART_BYTES / stride) / PART_PANELS * PART_PANELS;
    if (range->axis == FM__AXIS_TOKENS)
        most = all.end - all.begin;
    else if (most == 0)
        most = PART_PANELS;
    for (uint32_t begin = all.begin, end; begin < all.end; begin = end) {
        end = all.end - begin < most ? all.end : begin + most;
        const stream s = plan_part(recorder, index, (panels){begin, end});
        if (!add_stream(recorder, &s))
            return false;
    }
    return true;
}

static fm_status plan_streams(fm__vulkan_recorder *recorder, fm_error *error) {
    fm__vulkan *gpu = recorder->gpu;
    for (uint32_t i = 0; i < recorder->n_range; i++)
        if (!plan_range(recorder, i))
            return fm__error_memory(error, gpu->device.properties.name,
                                    2 * recorder->stream_capacity * sizeof(stream));
    if (recorder->n_stream == 0)
        return FM_OK;
    fm_status status = grow_block(gpu, &gpu->core->ring, 2 * recorder->half, error);
    if (status != FM_OK)
        return status;
    recorder->ring = gpu->core->ring->buffer->address;
    return keep_block(recorder, gpu->core->ring, error);
}

static fm_status copy_stream(fm__vulkan_recorder *recorder, uint32_t index, fm_error *error) {
    fm_status status = FM_OK;
    if (index >= recorder->n_stream)
        return FM_OK;
    const stream *s = &recorder->streams[index];
    uint64_t half = recorder->ring + (index % 2) * recorder->half;
    for (uint32_t i = 0; i < s->n_piece && status == FM_OK; i++) {
        const piece *p = &s->pieces[i];
        status = fm__vulkan_record_bytes(recorder, p->from, half + p->at,
                                         (uint64_t)(p->end - p->begin) * p->weight->layout.stride,
                                         error);
    }
    recorder->copying = true;
    return status;
}

/* ---- ranges ---- */

/* A barrier between ranges: what comes behind it waits for nothing of this recording any more. */
static void separate(fm__vulkan_recorder *recorder) {
    fm__vulkan_barrier(recorder);
    recorder->since = recorder->current;
    recorder->temporary_used = 0;
    recorder->copying = false;
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
    if (!stream_is_next(recorder))
        return fm__vulkan_record_linear(recorder, range, error);
    fm_status status = FM_OK;
    for (; status == FM_OK && stream_is_next(recorder); recorder->next_stream++) {
        if (recorder->copying) /* the copy, or the product before it, is not known to be done */
            separate(recorder);
        status = copy_stream(recorder, recorder->next_stream + 1, error);
        if (status == FM_OK)
            status = fm__vulkan_record_linear(
                recorder, &recorder->streams[recorder->next_stream].part, error);
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
    else if (is_product(&recorder->tape->ops[range->op]))
        status = record_product(recorder, range, error);
    else
        status = fm__vulkan_record_rows(recorder, range, candidate(recorder), &fused, error);
    recorder->current += fused ? 2 : 1;
    return status;
}

static fm_status record_ranges(fm__vulkan_recorder *recorder, fm_error *error) {
    fm_status status = plan_streams(recorder, error);
    if (status == FM_OK)
        status = copy_stream(recorder, 0, error);
    while (status == FM_OK && recorder->current < recorder->n_range) {
        uint32_t op = recorder->ranges[recorder->current].op;
        status = record_range(recorder, error);
        if (status != FM_OK) {
            char place[160];
            fm__op_describe(recorder->tape, op, place, sizeof place);
            fm__error_within(error, status, place);
        }
    }
    fm__free(recorder->streams);
    return status;
}

/* ---- recordings ---- */

static void stamp(fm__vulkan_recorder *recorder, uint32_t query) {
    const fm__vulkan_recording *recording = recorder->recording;
    if (recording->queries != VK_NULL_HANDLE)
        recorder->gpu->core->vk.CmdWriteTimestamp(
            recording->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, recording->queries, query);
}

static fm_status fill_commands(fm__vulkan_recorder *recorder, fm_error *error) {
    fm__vulkan *gpu = recorder->gpu;
    const fm__vulkan_api *vk = &gpu->core->vk;
    fm__vulkan_recording *recording = recorder->recording;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkResult result = vk->BeginCommandBuffer(recording->commands, &begin);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkBeginCommandBuffer", error);
    if (recording->queries != VK_NULL_HANDLE)
        vk->CmdResetQueryPool(recording->commands, recording->queries, 0, 2);
    /* What another unit wrote before it signalled counts as the host's writes. */
    barrier(recorder, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT,
            VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_WRITE_BIT,
            VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
            VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT);
    stamp(recorder, 0);
    fm_status status = record_ranges(recorder, error);
    barrier(recorder, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT | VK_ACCESS_SHADER_READ_BIT);
    stamp(recorder, 1);
    result = vk->EndCommandBuffer(recording->commands);
    if (status == FM_OK && result != VK_SUCCESS)
        status = fm__vulkan_failed(gpu, result, "vkEndCommandBuffer", error);
    return status;
}

static fm_status create_handles(fm__vulkan *gpu, fm__vulkan_recording *recording, fm_error *error) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    const VkCommandBufferAllocateInfo commands = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = gpu->core->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1};
    const VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                           .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                           .queryCount = 2};
    VkResult result =
        vk->AllocateCommandBuffers(gpu->core->device, &commands, &recording->commands);
    if (result != VK_SUCCESS) {
        recording->commands = NULL;
        return fm__vulkan_failed(gpu, result, "vkAllocateCommandBuffers", error);
    }
    if (gpu->core->clock.mask == 0)
        return FM_OK;
    result = vk->CreateQueryPool(gpu->core->device, &queries, NULL, &recording->queries);
    return result == VK_SUCCESS ? FM_OK
                                : fm__vulkan_failed(gpu, result, "vkCreateQueryPool", error);
}

static void destroy_locked(fm__vulkan *gpu, fm__vulkan_recording *recording) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    if (recording->commands != NULL)
        vk->FreeCommandBuffers(gpu->core->device, gpu->core->pool, 1, &recording->commands);
    vk->DestroyQueryPool(gpu->core->device, recording->queries, NULL);
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
        status = create_handles(gpu, recording, error);
    if (status == FM_OK)
        status = fill_commands(&recorder, error);
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
    pthread_mutex_lock(&gpu->core->record_lock);
    destroy_locked(gpu, r);
    pthread_mutex_unlock(&gpu->core->record_lock);
}

fm__span fm__vulkan_recording_span(fm__recording *recording) {
    fm__vulkan_recording *r = (fm__vulkan_recording *)recording;
    fm__vulkan *gpu = (fm__vulkan *)recording->device;
    uint64_t ticks[2];
    if (r->queries == VK_NULL_HANDLE || r->ticket == 0 || fm__vulkan_is_lost(recording->device) ||
        !fm__vulkan_ended_soon(gpu, r->ticket) ||
        gpu->core->vk.GetQueryPoolResults(gpu->core->device, r->queries, 0, 2, sizeof ticks, ticks,
                                          8, VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
        return (fm__span){0, 0};
    fm__vulkan_clock_refresh(gpu);
    return (fm__span){fm__vulkan_clock_ns(gpu, ticks[0]), fm__vulkan_clock_ns(gpu, ticks[1])};
}
