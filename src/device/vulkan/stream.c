/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/stream.c: weights in host memory, on their way through a ring of device memory.
 *
 * Owns: the ring, and the copy commands of recordings (parts). Never does: submit (submit.c), or
 * record a product. Called from: the loading thread.
 *
 * A part brings panels of one product, or of several that follow each other: it is large enough
 * that its copy takes far longer than a hand-over and that its products keep a large device busy.
 * Parts are placed one behind the other in the ring, in the order in which they are recorded; so
 * the parts of a run's recordings follow each other, and those of the next recording are copied
 * while this one waits for another unit or computes. Where recordings run in another order that is
 * only slower: submit.c asks each cell of the ring who uses it.
 */
#include "device/vulkan/core.h"

enum {
    /* A part of a product does not keep a large device busy (64 tokens on an H200: 35 ms with parts
       of 32 MiB, 26 with these, which a layer's widest product fits in a 7B model of 4 bits). Over
       PCIe 5 one takes 2 ms. */
    PART_BYTES = 96 << 20,
    PART_PANELS = 8, /* whole tiles of products */
    RING_PARTS = 4,  /* at least: one is read, one is filled, two are room for waits */
    /* Of a large device. A bus of 55 GB/s fills it in 20 ms: for as long copies go on while
       products wait for another unit. */
    RING_MOST = 1024 << 20,
    RING_SHARE = 64, /* of a small device's memory it takes one part in ... */
    RING_LEAST = 1 << 20,
    PLACE_ALIGN = 256, /* of a weight in its part */
};

/* ---- the ring ---- */

static uint64_t ring_bytes(const fm__vulkan *gpu, uint64_t asked) {
    uint64_t bytes = gpu->device.properties.memory_bytes / RING_SHARE;
    if (asked != 0)
        bytes = asked;
    else if (bytes > RING_MOST)
        bytes = RING_MOST;
    if (bytes < RING_LEAST)
        bytes = RING_LEAST;
    return bytes / FM__VULKAN_CELL * FM__VULKAN_CELL;
}

static void set_bytes(fm__vulkan_ring *ring, uint64_t bytes) {
    ring->bytes = bytes / FM__VULKAN_CELL * FM__VULKAN_CELL;
    ring->part_bytes = fm__min_size(PART_BYTES, ring->bytes / RING_PARTS);
}

fm_status fm__vulkan_ring_init(fm__vulkan *gpu, const fm__vulkan_options *options,
                               fm_error *error) {
    fm__vulkan_ring *ring = &gpu->core->ring;
    const fm__vulkan_api *vk = &gpu->core->vk;
    const fm__vulkan_choice *choice = &gpu->core->choice;
    const VkCommandPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = choice->copy_family};
    vk->GetDeviceQueue(gpu->core->device, choice->copy_family, choice->copy_index, &ring->queue);
    VkResult result = vk->CreateCommandPool(gpu->core->device, &info, NULL, &ring->pool);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkCreateCommandPool", error);
    result = fm__vulkan_semaphore_create(gpu, &ring->copied);
    if (result != VK_SUCCESS) {
        vk->DestroyCommandPool(gpu->core->device, ring->pool, NULL);
        return fm__vulkan_failed(gpu, result, "vkCreateSemaphore", error);
    }
    ring->keeps_time = choice->timestamp_bits > 0 && choice->copy_timestamp_bits > 0 &&
                       choice->can_reset_queries && !options->untimed_copies;
    set_bytes(ring, ring_bytes(gpu, options->ring_bytes));
    gpu->device.properties.ring_bytes = ring->bytes;
    return FM_OK;
}

void fm__vulkan_ring_finish(fm__vulkan *gpu) {
    fm__vulkan_ring *ring = &gpu->core->ring;
    const fm__vulkan_api *vk = &gpu->core->vk;
    if (ring->buffer != NULL)
        fm__vulkan_buffer_destroy(&ring->buffer->base);
    fm__free(ring->cells);
    vk->DestroySemaphore(gpu->core->device, ring->copied, NULL);
    vk->DestroyCommandPool(gpu->core->device, ring->pool, NULL);
}

/* Smaller than it was meant to be where the device has no more left. */
static fm_status make_ring(fm__vulkan *gpu, fm_error *error) {
    fm__vulkan_ring *ring = &gpu->core->ring;
    fm_status status = FM_OK;
    if (ring->buffer != NULL)
        return FM_OK;
    for (uint64_t bytes = ring->bytes; ring->buffer == NULL && bytes >= RING_LEAST; bytes /= 2) {
        set_bytes(ring, bytes);
        status = fm__vulkan_buffer_make(gpu, ring->bytes, FM__MEMORY_LOCAL, &ring->buffer, error);
        if (status != FM_OK && status != FM_ERROR_MEMORY && status != FM_ERROR_LIMIT)
            return status;
    }
    if (ring->buffer == NULL)
        return status;
    size_t n = ring->bytes / FM__VULKAN_CELL;
    ring->cells = fm__alloc_array(n, sizeof *ring->cells);
    if (ring->cells != NULL) {
        gpu->device.properties.ring_bytes = ring->bytes; /* as budgets count it from now on */
        return FM_OK;
    }
    fm__vulkan_buffer_destroy(&ring->buffer->base);
    ring->buffer = NULL;
    return fm__error_memory(error, gpu->device.properties.name, n * sizeof *ring->cells);
}

/* ---- cutting products into uses ---- */

typedef struct cutter {
    fm__vulkan *gpu;
    const fm__tape *tape;
    const fm__op_range *ranges;
    fm__vulkan_uses *uses;
    uint32_t n_part;
    uint64_t filled; /* bytes of the last part */
} cutter;

static int matrices(const fm__op *op) {
    return op->kind == FM__OP_LINEAR_GLU ? 2 : 1;
}

/* All panels of a product that a range covers; one of tokens reads all there are. */
static fm__vulkan_use whole_use(const cutter *c, uint32_t index) {
    const fm__op_range *range = &c->ranges[index];
    const fm__weight *weight = c->tape->weights[c->tape->ops[range->op].weight[0]];
    fm__vulkan_use use = {.range = index, .part = FM__VULKAN_NO_PART, .end = weight->panels};
    if (range->axis == FM__AXIS_CHANNELS) {
        use.begin = range->begin / FM__PANEL_ROWS;
        use.end = (range->end + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    }
    return use;
}

const fm__weight_range *fm__vulkan_panels(const fm__vulkan *gpu, const fm__weight *weight,
                                          uint32_t begin, uint32_t end) {
    for (uint32_t i = 0; i < weight->n_ranges; i++) {
        const fm__weight_range *range = &weight->ranges[i];
        if (fm__vulkan_address(gpu, range->buffer) != 0 && range->panel_begin <= begin &&
            range->panel_end >= end)
            return range;
    }
    return NULL;
}

/* Marks the weights of the use that have to be copied; bytes of one panel of them. */
static uint64_t find_copied(const cutter *c, fm__vulkan_use *use) {
    const fm__op *op = &c->tape->ops[c->ranges[use->range].op];
    uint64_t bytes = 0;
    for (int i = 0; i < matrices(op); i++) {
        const fm__weight *weight = c->tape->weights[op->weight[i]];
        const fm__weight_range *from = fm__vulkan_panels(c->gpu, weight, use->begin, use->end);
        use->copied[i] = from != NULL && from->residency == FM__RESIDENCY_STREAMED;
        bytes += use->copied[i] ? weight->layout.stride : 0;
    }
    return bytes;
}

static fm_status add_use(cutter *c, const fm__vulkan_use *use, fm_error *error) {
    fm__vulkan_uses *u = c->uses;
    if (u->n == u->capacity) {
        uint32_t capacity = u->capacity == 0 ? 64 : 2 * u->capacity;
        void *grown = fm__realloc(u->uses, capacity * sizeof *use);
        if (grown == NULL)
            return fm__error_memory(error, c->gpu->device.properties.name, capacity * sizeof *use);
        u->uses = grown;
        u->capacity = capacity;
    }
    u->uses[u->n++] = *use;
    return FM_OK;
}

/* How many of `left` panels go into the last part; 0: a new one is due. Few are not worth a product
   of their own. */
static uint32_t panels_that_fit(const cutter *c, uint64_t stride, uint32_t left) {
    uint64_t part = c->gpu->core->ring.part_bytes;
    uint64_t room = c->filled < part ? part - c->filled : 0;
    uint64_t most = room / stride;
    if (most >= left)
        return left;
    if (c->filled > 0 && (most < PART_PANELS || most * stride < part / 4))
        return 0;
    if (most >= PART_PANELS)
        most -= most % PART_PANELS;
    return most == 0 ? 1 : (uint32_t)most;
}

static fm_status cut_streamed(cutter *c, const fm__vulkan_use *all, uint64_t stride,
                              fm_error *error) {
    const fm__op *op = &c->tape->ops[c->ranges[all->range].op];
    uint64_t whole = stride + (uint64_t)matrices(op) * PLACE_ALIGN;
    if (whole > c->gpu->core->ring.bytes)
        return fm__error(error, FM_ERROR_LIMIT, c->tape->weights[op->weight[0]]->name,
                         "16 rows have %llu bytes, and weights are streamed through %llu",
                         (unsigned long long)stride, (unsigned long long)c->gpu->core->ring.bytes);
    fm_status status = FM_OK;
    for (uint32_t begin = all->begin, n; begin < all->end && status == FM_OK; begin += n) {
        n = c->n_part == 0 ? 0 : panels_that_fit(c, stride, all->end - begin);
        if (n == 0) {
            c->n_part++;
            c->filled = 0;
            n = panels_that_fit(c, stride, all->end - begin);
        }
        fm__vulkan_use use = *all;
        use.part = c->n_part - 1;
        use.begin = begin;
        use.end = begin + n;
        for (int i = 0; i < matrices(op); i++) {
            if (!use.copied[i])
                continue;
            use.at[i] = c->filled;
            c->filled += n * c->tape->weights[op->weight[i]]->layout.stride;
            c->filled = (c->filled + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
        }
        status = add_use(c, &use, error);
    }
    return status;
}

static fm_status cut(cutter *c, uint32_t n_range, fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t i = 0; i < n_range && status == FM_OK; i++) {
        if (c->ranges[i].copy != FM__COPY_NONE ||
            !fm__is_product(c->tape->ops[c->ranges[i].op].kind))
            continue;
        fm__vulkan_use use = whole_use(c, i);
        uint64_t stride = find_copied(c, &use);
        if (stride != 0 && c->gpu->core->ring.buffer == NULL)
            status = make_ring(c->gpu, error);
        if (status == FM_OK)
            status = stride == 0 ? add_use(c, &use, error) : cut_streamed(c, &use, stride, error);
    }
    return status;
}

/* ---- parts ---- */

static uint64_t end_of(const cutter *c, const fm__vulkan_use *use) {
    const fm__op *op = &c->tape->ops[c->ranges[use->range].op];
    uint64_t end = 0;
    for (int i = 0; i < matrices(op); i++) {
        uint64_t bytes = (use->end - use->begin) * c->tape->weights[op->weight[i]]->layout.stride;
        if (use->copied[i] && use->at[i] + bytes > end)
            end = use->at[i] + bytes;
    }
    return end;
}

static void place(fm__vulkan_ring *ring, fm__vulkan_part *part) {
    uint64_t bytes = (part->bytes + FM__VULKAN_CELL - 1) / FM__VULKAN_CELL * FM__VULKAN_CELL;
    part->at = ring->next + bytes <= ring->bytes ? ring->next : 0;
    ring->next = part->at + bytes;
}

static fm_status create_parts(const cutter *c, fm__vulkan_recording *recording, fm_error *error) {
    fm__vulkan_ring *ring = &c->gpu->core->ring;
    recording->parts = fm__alloc_array(c->n_part, sizeof *recording->parts);
    if (recording->parts == NULL)
        return fm__error_memory(error, c->gpu->device.properties.name,
                                c->n_part * sizeof *recording->parts);
    recording->n_part = c->n_part;
    for (uint32_t i = 0; i < c->uses->n; i++) {
        const fm__vulkan_use *use = &c->uses->uses[i];
        if (use->part != FM__VULKAN_NO_PART)
            recording->parts[use->part].bytes = end_of(c, use); /* the last of a part lies last */
    }
    for (uint32_t i = 0; i < c->n_part; i++)
        place(ring, &recording->parts[i]);
    return FM_OK;
}

static void copy_use(const cutter *c, const fm__vulkan_part *part, VkCommandBuffer commands,
                     const fm__vulkan_use *use) {
    const fm__op *op = &c->tape->ops[c->ranges[use->range].op];
    for (int i = 0; i < matrices(op); i++) {
        if (!use->copied[i])
            continue;
        const fm__weight *weight = c->tape->weights[op->weight[i]];
        const fm__weight_range *range = fm__vulkan_panels(c->gpu, weight, use->begin, use->end);
        const fm__vulkan_buffer *from = (const fm__vulkan_buffer *)range->buffer;
        uint64_t stride = weight->layout.stride;
        const VkBufferCopy region = {.srcOffset = from->start + range->offset +
                                                  (use->begin - range->panel_begin) * stride,
                                     .dstOffset = part->at + use->at[i],
                                     .size = (use->end - use->begin) * stride};
        c->gpu->core->vk.CmdCopyBuffer(commands, from->buffer, c->gpu->core->ring.buffer->buffer, 1,
                                       &region);
    }
}

/* Semaphores order the copy among what reads and writes the ring: no barrier is needed. It may be
   handed over for the next replay while it is still on its way for this one, by turns where it
   writes timestamps, which the host resets before. turn: may be UNTIMED. */
static VkResult record_turn(const cutter *c, const fm__vulkan_recording *recording, uint32_t index,
                            uint32_t turn) {
    const fm__vulkan_api *vk = &c->gpu->core->vk;
    const fm__vulkan_part *part = &recording->parts[index];
    VkCommandBuffer commands = part->commands[turn];
    uint32_t query = 2 * (FM__VULKAN_TURNS * index + turn);
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    VkResult result = vk->BeginCommandBuffer(commands, &begin);
    if (result != VK_SUCCESS)
        return result;
    if (turn != FM__VULKAN_UNTIMED)
        vk->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                              recording->copy_queries, query);
    for (uint32_t i = 0; i < c->uses->n; i++)
        if (c->uses->uses[i].part == index)
            copy_use(c, part, commands, &c->uses->uses[i]);
    if (turn != FM__VULKAN_UNTIMED)
        vk->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                              recording->copy_queries, query + 1);
    return vk->EndCommandBuffer(commands);
}

static uint64_t payload_of(const cutter *c, uint32_t index) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->uses->n; i++) {
        const fm__vulkan_use *use = &c->uses->uses[i];
        const fm__op *op = &c->tape->ops[c->ranges[use->range].op];
        for (int k = 0; use->part == index && k < matrices(op); k++)
            if (use->copied[k])
                bytes += (use->end - use->begin) * c->tape->weights[op->weight[k]]->layout.stride;
    }
    return bytes;
}

/* Of a part's commands those before it are not made. */
static uint32_t first_turn(const fm__vulkan_recording *recording) {
    return recording->copy_queries != VK_NULL_HANDLE ? 0 : FM__VULKAN_UNTIMED;
}

static fm_status record_part(const cutter *c, const fm__vulkan_recording *recording, uint32_t index,
                             fm_error *error) {
    const fm__vulkan_api *vk = &c->gpu->core->vk;
    fm__vulkan_part *part = &recording->parts[index];
    uint32_t first = first_turn(recording);
    const VkCommandBufferAllocateInfo info = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = c->gpu->core->ring.pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = FM__VULKAN_TURNS + 1 - first};
    part->payload = payload_of(c, index);
    VkResult result =
        vk->AllocateCommandBuffers(c->gpu->core->device, &info, part->commands + first);
    if (result != VK_SUCCESS) {
        part->commands[FM__VULKAN_UNTIMED] = NULL;
        return fm__vulkan_failed(c->gpu, result, "vkAllocateCommandBuffers", error);
    }
    for (uint32_t turn = first; turn <= FM__VULKAN_UNTIMED && result == VK_SUCCESS; turn++)
        result = record_turn(c, recording, index, turn);
    return result == VK_SUCCESS
               ? FM_OK
               : fm__vulkan_failed(c->gpu, result, "recording a copy of weights", error);
}

static fm_status create_copy_queries(fm__vulkan *gpu, fm__vulkan_recording *recording,
                                     fm_error *error) {
    uint32_t n = 2 * FM__VULKAN_TURNS * recording->n_part;
    if (!gpu->core->ring.keeps_time || n == 0)
        return FM_OK;
    VkResult result = fm__vulkan_queries_create(gpu, n, &recording->copy_queries);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkCreateQueryPool", error);
    gpu->core->vk.ResetQueryPool(gpu->core->device, recording->copy_queries, 0, n);
    return FM_OK;
}

fm_status fm__vulkan_stream_plan(fm__vulkan *gpu, const fm__tape *tape, const fm__op_range *ranges,
                                 uint32_t n_range, fm__vulkan_recording *recording,
                                 fm__vulkan_uses *out, fm_error *error) {
    cutter c = {.gpu = gpu, .tape = tape, .ranges = ranges, .uses = out};
    fm_status status = cut(&c, n_range, error);
    if (status == FM_OK && c.n_part > 0)
        status = create_parts(&c, recording, error);
    if (status == FM_OK)
        status = create_copy_queries(gpu, recording, error);
    for (uint32_t i = 0; i < recording->n_part && status == FM_OK; i++)
        status = record_part(&c, recording, i, error);
    return status;
}

void fm__vulkan_stream_free(fm__vulkan *gpu, fm__vulkan_recording *recording) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    uint32_t first = first_turn(recording);
    for (uint32_t i = 0; i < recording->n_part; i++)
        if (recording->parts[i].commands[FM__VULKAN_UNTIMED] != NULL)
            vk->FreeCommandBuffers(gpu->core->device, gpu->core->ring.pool,
                                   FM__VULKAN_TURNS + 1 - first,
                                   recording->parts[i].commands + first);
    vk->DestroyQueryPool(gpu->core->device, recording->copy_queries, NULL);
    fm__free(recording->parts);
}
