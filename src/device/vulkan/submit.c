/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/submit.c: a run's segments as batches of the compute queue, and the copies of
 * weights that they need on the ring's queue.
 *
 * Owns: the room for one call's structures. Never does: allocate, or wait for more than the end of
 * a replay whose signal was seen. Called from: submitting threads, under the queue's lock.
 *
 * A batch is one command buffer with its waits and signals: a recording has one, or one for each
 * part, which waits for the part's copy. Before a batch whose copy is not under way yet, all copies
 * are handed over that wait for nothing but batches that the driver has already: so they run as far
 * ahead as the ring has room, across the borders of segments, and no copy ever waits for work that
 * was not handed over.
 *
 * When the last batch is under way and the tape is one of few rows (the next token will follow),
 * the first parts are copied once more, for the next replay: the bus has nothing else to do until
 * then.
 */
#include "device/vulkan/core.h"

enum {
    COPIES = 256,   /* of one call */
    EARLY_ROWS = 8, /* a tape of at most so many rows is likely to be run again at once */
    /* Copied for it then, at most, and half of a small ring: should another tape come, its own
       copies wait for these. */
    EARLY_BYTES = 96 << 20,
};

/* One driver call's structures. */
typedef struct fm__vulkan_batch {
    VkSubmitInfo submits[FM__VULKAN_BATCH];
    VkTimelineSemaphoreSubmitInfo values[FM__VULKAN_BATCH];
    VkSemaphore waits[FM__VULKAN_BATCH][2], signals[FM__VULKAN_BATCH][2];
    uint64_t wait_values[FM__VULKAN_BATCH][2], signal_values[FM__VULKAN_BATCH][2];
    const fm__segment *segments[FM__VULKAN_BATCH]; /* of a batch that ends one, else NULL */
    fm__vulkan_recording *recordings[FM__VULKAN_BATCH];
    fm__vulkan_part *parts[FM__VULKAN_BATCH];
} fm__vulkan_batch;

struct fm__vulkan_batch *fm__vulkan_batch_create(void) {
    return fm__alloc_zero(sizeof(fm__vulkan_batch));
}

/* One fm__device_submit() on its way. */
typedef struct handover {
    fm__vulkan *gpu;
    const fm__segment *segments;
    uint32_t n_segment;
    uint64_t base;
    uint32_t running;       /* the segment whose batches are being added */
    uint32_t n_batch;       /* in the room */
    uint32_t segment, part; /* of the next copy */
    bool begun;             /* a part of the run was handed over */
} handover;

/* ---- what can be submitted ---- */

static fm_status check_timeline(fm__vulkan *gpu, const fm__timeline *timeline, bool signals,
                                fm_error *error) {
    const char *name = gpu->device.properties.name;
    if (timeline->attached != &gpu->device || timeline->native == NULL)
        return fm__error(error, FM_ERROR_ARGUMENT, name,
                         "a timeline that was not made for %s cannot order its work", name);
    if (signals && timeline->owner != &gpu->device)
        return fm__error(error, FM_ERROR_ARGUMENT, name,
                         "a timeline that another unit signals was given to %s to signal", name);
    return FM_OK;
}

/* The recording can be replayed, and its tape's run block holds what the run binds. */
static fm_status prepare_recording(fm__vulkan *gpu, fm__vulkan_recording *recording,
                                   const fm__run *run, fm_error *error) {
    uint64_t call = gpu->core->queue.submits;
    if (recording->listed == call)
        return fm__error(error, FM_ERROR_STATE, gpu->device.properties.name,
                         "one recording stands twice in a submission");
    recording->listed = call;
    if (!fm__vulkan_ended_soon(gpu, recording->ticket))
        return fm__error(error, FM_ERROR_STATE, gpu->device.properties.name,
                         "a recording was submitted again before its last replay ended");
    return fm__vulkan_binding_fill(gpu, recording->binding, run, recording->base.slots, call,
                                   error);
}

static fm_status check_segments(fm__vulkan *gpu, const fm__segment *segments, uint32_t n,
                                const fm__run *run, fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t i = 0; i < n && status == FM_OK; i++) {
        const fm__segment *s = &segments[i];
        if (s->wait != NULL)
            status = check_timeline(gpu, s->wait, false, error);
        if (status == FM_OK && s->signal != NULL)
            status = check_timeline(gpu, s->signal, true, error);
        if (status == FM_OK && s->recording != NULL)
            status = prepare_recording(gpu, (fm__vulkan_recording *)s->recording, run, error);
    }
    return status;
}

/* ---- one batch's structures ---- */

static const VkPipelineStageFlags WAIT_STAGES[2] = {VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                                    VK_PIPELINE_STAGE_ALL_COMMANDS_BIT};

static void add_wait(fm__vulkan_batch *room, uint32_t i, VkSemaphore semaphore, uint64_t value) {
    uint32_t n = room->values[i].waitSemaphoreValueCount++;
    room->waits[i][n] = semaphore;
    room->wait_values[i][n] = value;
}

static void add_signal(fm__vulkan_batch *room, uint32_t i, VkSemaphore semaphore, uint64_t value) {
    uint32_t n = room->values[i].signalSemaphoreValueCount++;
    room->signals[i][n] = semaphore;
    room->signal_values[i][n] = value;
}

static void open_batch(fm__vulkan_batch *room, uint32_t i) {
    room->segments[i] = NULL;
    room->values[i] =
        (VkTimelineSemaphoreSubmitInfo){.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                        .pWaitSemaphoreValues = room->wait_values[i],
                                        .pSignalSemaphoreValues = room->signal_values[i]};
}

/* commands: NULL or one, where the driver may read it until the call. */
static void close_batch(fm__vulkan_batch *room, uint32_t i, const VkCommandBuffer *commands) {
    room->submits[i] =
        (VkSubmitInfo){.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                       .pNext = &room->values[i],
                       .waitSemaphoreCount = room->values[i].waitSemaphoreValueCount,
                       .pWaitSemaphores = room->waits[i],
                       .pWaitDstStageMask = WAIT_STAGES,
                       .commandBufferCount = commands != NULL,
                       .pCommandBuffers = commands,
                       .signalSemaphoreCount = room->values[i].signalSemaphoreValueCount,
                       .pSignalSemaphores = room->signals[i]};
}

/* ---- the compute queue ---- */

static uint64_t last_cell(const fm__vulkan_part *part) {
    return (part->at + part->bytes - 1) / FM__VULKAN_CELL;
}

static void set_reader(fm__vulkan_ring *ring, const fm__vulkan_part *part, uint64_t reader) {
    for (uint64_t i = part->at / FM__VULKAN_CELL; i <= last_cell(part); i++)
        ring->cells[i].reader = reader;
}

static void note_reader(fm__vulkan_ring *ring, fm__vulkan_part *part, uint64_t reader) {
    set_reader(ring, part, reader);
    part->fresh = part->read != part->copy;
    part->read = part->copy;
    part->read_ns = part->copy_ns;
    part->timed = part->turn != FM__VULKAN_UNTIMED;
}

/* Batches first .. first + n - 1 of the room are under way; the first counts as number `ticket`. */
static void note_batches(handover *h, uint32_t n, uint64_t ticket) {
    const fm__vulkan_batch *room = h->gpu->core->queue.batch;
    for (uint32_t i = 0; i < n; i++, ticket++) {
        const fm__segment *segment = room->segments[i];
        if (room->recordings[i] != NULL)
            room->recordings[i]->ticket = room->recordings[i]->binding->ticket = ticket;
        if (room->parts[i] != NULL)
            note_reader(&h->gpu->core->ring, room->parts[i], ticket);
        if (segment != NULL && segment->signal != NULL) {
            fm__vulkan_timeline *timeline = segment->signal->native;
            atomic_store(&timeline->from_queue, h->base + segment->signal_value);
        }
    }
}

/* Hands over the batches in the room in one call. */
static VkResult flush(handover *h) {
    fm__vulkan_queue *queue = &h->gpu->core->queue;
    uint32_t n = h->n_batch;
    VkResult result;
    if (n == 0)
        return VK_SUCCESS;
    if (++queue->calls == queue->fail_at)
        result = VK_ERROR_OUT_OF_HOST_MEMORY;
    else
        result =
            h->gpu->core->vk.QueueSubmit(queue->queue, n, queue->batch->submits, VK_NULL_HANDLE);
    h->n_batch = 0;
    if (result != VK_SUCCESS)
        return result;
    h->begun = true;
    note_batches(h, n, atomic_load(&queue->submitted) + 1);
    atomic_fetch_add(&queue->submitted, n);
    return VK_SUCCESS;
}

/* ---- copies ---- */

static fm__vulkan_recording *recording_of(const handover *h, uint32_t segment) {
    return (fm__vulkan_recording *)h->segments[segment].recording;
}

/* The next part in the order of the segments, or NULL. */
static fm__vulkan_part *next_part(handover *h) {
    while (h->segment < h->n_segment) {
        fm__vulkan_recording *recording = recording_of(h, h->segment);
        if (recording != NULL && h->part < recording->n_part)
            return &recording->parts[h->part];
        h->segment++;
        h->part = 0;
    }
    return NULL;
}

/* What was copied for it last is still there. */
static bool lies_there(const fm__vulkan_ring *ring, const fm__vulkan_part *part) {
    for (uint64_t i = part->at / FM__VULKAN_CELL; i <= last_cell(part); i++)
        if (ring->cells[i].copy != part->copy)
            return false;
    return part->copy != 0;
}

/* What a copy into the part's place has to wait for: a batch, and a copy that nobody reads. false:
   a batch that is still to be handed over will read what lies there. */
static bool find_waits(const fm__vulkan_ring *ring, const fm__vulkan_part *part, uint64_t *batch,
                       uint64_t *copy) {
    *batch = *copy = 0;
    for (uint64_t i = part->at / FM__VULKAN_CELL; i <= last_cell(part); i++) {
        const fm__vulkan_cell *cell = &ring->cells[i];
        if (cell->reader == FM__VULKAN_CLAIMED)
            return false;
        if (cell->reader != FM__VULKAN_UNREAD)
            *batch = cell->reader > *batch ? cell->reader : *batch;
        else if (cell->copy > *copy)
            *copy = cell->copy;
    }
    return true;
}

static bool overlaps_room(const fm__vulkan_batch *room, uint32_t n, const fm__vulkan_part *part) {
    for (uint32_t i = 0; i < n; i++)
        if (part->at / FM__VULKAN_CELL <= last_cell(room->parts[i]) &&
            room->parts[i]->at / FM__VULKAN_CELL <= last_cell(part))
            return true;
    return false;
}

/* The turn whose timestamps may be overwritten, the one used longest ago. Its copy ended with a
   replay that did, unless the ring was so full of copies for others that nobody has read it: then
   this copy gets no time, as a submission waits for none. */
static uint32_t begin_turn(handover *h, const fm__vulkan_part *part) {
    fm__vulkan_ring *ring = &h->gpu->core->ring;
    const fm__vulkan_recording *recording = recording_of(h, h->segment);
    if (recording->copy_queries == VK_NULL_HANDLE)
        return FM__VULKAN_UNTIMED;
    uint32_t turn = part->copies[1] < part->copies[0];
    uint32_t index = (uint32_t)(part - recording->parts);
    if (part->copies[turn] > ring->seen)
        ring->seen = fm__vulkan_copies_ended(h->gpu);
    if (part->copies[turn] > ring->seen)
        return FM__VULKAN_UNTIMED;
    h->gpu->core->vk.ResetQueryPool(h->gpu->core->device, recording->copy_queries,
                                    2 * (FM__VULKAN_TURNS * index + turn), 2);
    return turn;
}

static void add_copy(handover *h, uint32_t i, fm__vulkan_part *part, uint64_t batch,
                     uint64_t copy) {
    fm__vulkan_ring *ring = &h->gpu->core->ring;
    fm__vulkan_batch *room = h->gpu->core->queue.batch;
    open_batch(room, i);
    if (batch != 0)
        add_wait(room, i, h->gpu->core->queue.progress, batch);
    if (copy != 0)
        add_wait(room, i, ring->copied, copy);
    add_signal(room, i, ring->copied, ring->n_copy + i + 1);
    part->turn = begin_turn(h, part);
    if (part->turn != FM__VULKAN_UNTIMED)
        part->copies[part->turn] = 0;
    close_batch(room, i, &part->commands[part->turn]);
    room->parts[i] = part;
    room->recordings[i] = recording_of(h, h->segment);
}

/* Hands over n copies in one call. reader: who will read them. */
static VkResult flush_copies(handover *h, uint32_t n, uint64_t reader) {
    fm__vulkan_ring *ring = &h->gpu->core->ring;
    const fm__vulkan_batch *room = h->gpu->core->queue.batch;
    if (n == 0)
        return VK_SUCCESS;
    /* One call may hold several waits here: what the driver makes visible once a call is what the
       host wrote before it, and weights do not change. */
    VkResult result = h->gpu->core->vk.QueueSubmit(ring->queue, n, room->submits, VK_NULL_HANDLE);
    if (result != VK_SUCCESS)
        return result;
    uint64_t now = fm__now_ns();
    for (uint32_t i = 0; i < n; i++) {
        fm__vulkan_part *part = room->parts[i];
        part->copy = room->recordings[i]->copy = ++ring->n_copy;
        if (part->turn != FM__VULKAN_UNTIMED)
            part->copies[part->turn] = part->copy;
        part->copy_ns = now;
        for (uint64_t c = part->at / FM__VULKAN_CELL; c <= last_cell(part); c++)
            ring->cells[c] = (fm__vulkan_cell){.copy = part->copy, .reader = reader};
        ring->copied_bytes += part->payload;
    }
    return VK_SUCCESS;
}

/* Hands over the next parts' copies, as many as wait for nothing but what the driver has. The room
   is empty. */
static VkResult copy_ahead(handover *h) {
    fm__vulkan_ring *ring = &h->gpu->core->ring;
    const fm__vulkan_batch *room = h->gpu->core->queue.batch;
    uint32_t n = 0;
    for (fm__vulkan_part *part; n < COPIES && (part = next_part(h)) != NULL; h->part++) {
        uint64_t batch, copy;
        if (lies_there(ring, part) && !overlaps_room(room, n, part)) {
            set_reader(ring, part, FM__VULKAN_CLAIMED);
            continue;
        }
        if (!find_waits(ring, part, &batch, &copy) || overlaps_room(room, n, part))
            break;
        add_copy(h, n++, part, batch, copy);
        ring->ahead += h->segment > h->running;
    }
    return flush_copies(h, n, FM__VULKAN_CLAIMED);
}

/* A whole run of few rows: it has the tape's first product and the last. */
static bool will_be_run_again(const handover *h) {
    bool begins = false, ends = false;
    for (uint32_t i = 0; i < h->n_segment; i++) {
        const fm__vulkan_recording *recording = recording_of(h, i);
        if (recording == NULL)
            continue;
        if (recording->base.tape->max_rows > EARLY_ROWS)
            return false;
        begins |= recording->begins;
        ends |= recording->ends;
    }
    return begins && ends;
}

/* Behind all batches: the first part once more, or several small ones. */
static VkResult copy_early(handover *h) {
    fm__vulkan_ring *ring = &h->gpu->core->ring;
    const fm__vulkan_batch *room = h->gpu->core->queue.batch;
    const uint64_t most = ring->bytes / 2 < EARLY_BYTES ? ring->bytes / 2 : EARLY_BYTES;
    uint64_t bytes = 0;
    uint32_t n = 0;
    h->segment = h->part = 0;
    for (fm__vulkan_part *part; n < COPIES && (part = next_part(h)) != NULL; h->part++) {
        uint64_t batch, copy;
        bytes += part->bytes;
        if (lies_there(ring, part))
            continue;
        if ((n > 0 && bytes > most) || bytes > ring->bytes / 2 || overlaps_room(room, n, part) ||
            !find_waits(ring, part, &batch, &copy))
            break;
        add_copy(h, n++, part, batch, copy);
    }
    ring->early += n;
    return flush_copies(h, n, FM__VULKAN_UNREAD);
}

/* ---- segments ---- */

/* Before a batch: it begins a call where it waits for another unit. An H200's driver makes what the
   host wrote visible once a call, and no barrier inside one does it again: in a call with several
   such waits, memory that was read behind an earlier one was seen to come from a cache. */
static VkResult make_ready(handover *h, const fm__segment *segment, uint32_t part) {
    VkResult result = VK_SUCCESS;
    bool copied = recording_of(h, h->running) == NULL ||
                  part >= recording_of(h, h->running)->n_part || h->segment > h->running ||
                  (h->segment == h->running && h->part > part);
    bool waits = part == 0 && segment->wait != NULL;
    if (!copied || waits || h->n_batch == FM__VULKAN_BATCH)
        result = flush(h);
    if (result == VK_SUCCESS && !copied)
        result = copy_ahead(h);
    return result;
}

static void add_batch(handover *h, const fm__segment *segment, uint32_t index, bool last) {
    fm__vulkan_core *core = h->gpu->core;
    fm__vulkan_batch *room = core->queue.batch;
    fm__vulkan_recording *recording = (fm__vulkan_recording *)segment->recording;
    uint32_t i = h->n_batch++;
    open_batch(room, i);
    room->recordings[i] = recording;
    room->parts[i] = recording != NULL && recording->n_part > 0 ? &recording->parts[index] : NULL;
    if (index == 0 && segment->wait != NULL)
        add_wait(room, i, ((fm__vulkan_timeline *)segment->wait->native)->semaphore,
                 h->base + segment->wait_value);
    if (room->parts[i] != NULL)
        add_wait(room, i, core->ring.copied, room->parts[i]->copy);
    if (last) {
        room->segments[i] = segment;
        if (segment->signal != NULL)
            add_signal(room, i, ((fm__vulkan_timeline *)segment->signal->native)->semaphore,
                       h->base + segment->signal_value);
    }
    add_signal(room, i, core->queue.progress, atomic_load(&core->queue.submitted) + h->n_batch);
    close_batch(room, i, recording != NULL ? &recording->commands[index] : NULL);
}

static VkResult hand_over(handover *h) {
    VkResult result = copy_ahead(h);
    if (result != VK_SUCCESS)
        return result;
    for (; h->running < h->n_segment; h->running++) {
        const fm__segment *segment = &h->segments[h->running];
        const fm__vulkan_recording *recording = recording_of(h, h->running);
        uint32_t n = recording != NULL ? recording->n_commands : 1;
        for (uint32_t i = 0; i < n; i++) {
            result = make_ready(h, segment, i);
            if (result != VK_SUCCESS)
                return result;
            add_batch(h, segment, i, i + 1 == n);
        }
    }
    return flush(h);
}

/* What was copied for batches that were never handed over will not be read. */
static void give_up_claims(fm__vulkan_ring *ring) {
    for (uint64_t i = 0; ring->cells != NULL && i < ring->bytes / FM__VULKAN_CELL; i++)
        if (ring->cells[i].reader == FM__VULKAN_CLAIMED)
            ring->cells[i].reader = FM__VULKAN_UNREAD;
}

/* The submission that was asked to lose the device. */
static fm_status lose(fm__vulkan *gpu, fm_error *error) {
    atomic_store(&gpu->core->queue.still_runs, true);
    return fm__vulkan_failed(gpu, VK_ERROR_DEVICE_LOST, "as its options say", error);
}

/* A part is under way that cannot be taken back: the device is of no use any more, but what it has
   will end, and whoever frees what that touches waits for it. */
static fm_status half_done(fm__vulkan *gpu, VkResult result, fm_error *error) {
    char room[32], call[96];
    if (result != VK_ERROR_DEVICE_LOST)
        atomic_store(&gpu->core->queue.still_runs, true);
    snprintf(call, sizeof call, "vkQueueSubmit failed in the middle of a run, %s",
             fm__vulkan_result(result, room));
    return fm__vulkan_failed(gpu, VK_ERROR_DEVICE_LOST, call, error);
}

static fm_status submit_locked(fm__vulkan *gpu, const fm__segment *segments, uint32_t n,
                               const fm__run *run, uint64_t base, fm_error *error) {
    fm__vulkan_queue *queue = &gpu->core->queue;
    if (fm__vulkan_is_lost(&gpu->device))
        return fm__vulkan_failed(gpu, VK_ERROR_DEVICE_LOST, "before this submission", error);
    if (++queue->submits == queue->lose_at)
        return lose(gpu, error);
    fm_status status = check_segments(gpu, segments, n, run, error);
    if (status != FM_OK)
        return status;
    handover h = {.gpu = gpu, .segments = segments, .n_segment = n, .base = base};
    VkResult result = hand_over(&h);
    if (result == VK_SUCCESS) {
        if (will_be_run_again(&h))
            copy_early(&h); /* where that fails they are copied when they are needed */
        return FM_OK;
    }
    give_up_claims(&gpu->core->ring);
    return h.begun ? half_done(gpu, result, error)
                   : fm__vulkan_failed(gpu, result, "vkQueueSubmit", error);
}

fm_status fm__vulkan_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                            const fm__run *run, uint64_t base, fm_error *error) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    if (n_segment > FM__VULKAN_BATCH)
        return fm__error(error, FM_ERROR_LIMIT, device->properties.name,
                         "%u segments in one submission, it takes %d", n_segment, FM__VULKAN_BATCH);
    pthread_mutex_lock(&gpu->core->queue.lock);
    fm_status status = submit_locked(gpu, segments, n_segment, run, base, error);
    pthread_mutex_unlock(&gpu->core->queue.lock);
    return status;
}
