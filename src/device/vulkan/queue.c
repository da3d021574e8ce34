/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/queue.c: submissions, and timelines as semaphores that queue and host share.
 *
 * Owns: the queue, the semaphore that counts what ended. Never does: wait while it submits, or
 * allocate for at most FM__VULKAN_BATCH segments. Called from: submitting and waiting threads.
 *
 * A device that was lost stays lost: waits for it return false once their value cannot come, and
 * the host may signal in its place, which it remembers in the twin.
 */
#include <sched.h>
#include <string.h>

#include "device/vulkan/core.h"

enum {
    POLL_NS = 5000000,     /* before a waiting thread sleeps in the driver: on an H200 with busy
                              processors that costs a millisecond */
    SLICE_NS = 100000000,  /* of sleep, between looks at what else could end the wait */
    SOON_NS = 20000000,    /* that a signal may come behind one of the same submission */
    DRAIN_NS = 2000000000, /* for what a device that is said to be lost still does */
};

/* One driver call's structures. */
typedef struct fm__vulkan_batch {
    VkSubmitInfo submits[FM__VULKAN_BATCH];
    VkTimelineSemaphoreSubmitInfo values[FM__VULKAN_BATCH];
    VkSemaphore waits[FM__VULKAN_BATCH], signals[FM__VULKAN_BATCH][2];
    uint64_t wait_values[FM__VULKAN_BATCH], signal_values[FM__VULKAN_BATCH][2];
} fm__vulkan_batch;

static const VkPipelineStageFlags WAIT_STAGE = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;

/* ---- semaphores ---- */

static VkResult create_semaphore(fm__vulkan *gpu, VkSemaphore *out) {
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                        .pNext = &type};
    return gpu->core->vk.CreateSemaphore(gpu->core->device, &info, NULL, out);
}

static void note_lost(fm__vulkan *gpu) {
    if (!atomic_exchange(&gpu->core->queue.lost, true))
        fm__log(FM_LOG_WARNING, "%s was lost", gpu->device.properties.name);
}

fm_status fm__vulkan_failed(fm__vulkan *gpu, VkResult result, const char *call, fm_error *error) {
    const char *name = gpu->device.properties.name;
    char room[32];
    if (result == VK_ERROR_DEVICE_LOST) {
        note_lost(gpu);
        return fm__error(error, FM_ERROR_DEVICE, name, "%s was lost (%s)", name, call);
    }
    bool memory = result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY;
    return fm__error(error, memory ? FM_ERROR_MEMORY : FM_ERROR_DEVICE, name, "%s failed (%s)",
                     call, fm__vulkan_result(result, room));
}

/* 0 after a loss that the driver noticed. */
static uint64_t value_of(fm__vulkan *gpu, VkSemaphore semaphore) {
    uint64_t value = 0;
    VkResult result = gpu->core->vk.GetSemaphoreCounterValue(gpu->core->device, semaphore, &value);
    if (result == VK_SUCCESS)
        return value;
    if (result == VK_ERROR_DEVICE_LOST)
        note_lost(gpu);
    return 0;
}

static bool reached_within(fm__vulkan *gpu, VkSemaphore semaphore, uint64_t value, uint64_t ns) {
    const VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &semaphore,
                                      .pValues = &value};
    VkResult result = gpu->core->vk.WaitSemaphores(gpu->core->device, &info, ns);
    if (result == VK_ERROR_DEVICE_LOST)
        note_lost(gpu);
    return result == VK_SUCCESS;
}

/* ---- what was handed over, and whether it ended ---- */

bool fm__vulkan_is_lost(fm__device *device) {
    return atomic_load(&((fm__vulkan *)device)->core->queue.lost);
}

static bool driver_lost(fm__vulkan *gpu) {
    return fm__vulkan_is_lost(&gpu->device) && !gpu->core->queue.pretended;
}

bool fm__vulkan_ended(fm__vulkan *gpu, uint64_t ticket) {
    fm__vulkan_queue *queue = &gpu->core->queue;
    if (ticket <= atomic_load(&queue->seen)) /* the driver need not be asked */
        return true;
    uint64_t value = value_of(gpu, queue->progress);
    for (uint64_t seen = atomic_load(&queue->seen); seen < value;)
        if (atomic_compare_exchange_weak(&queue->seen, &seen, value))
            break;
    return value >= ticket || driver_lost(gpu);
}

bool fm__vulkan_ended_soon(fm__vulkan *gpu, uint64_t ticket) {
    if (fm__vulkan_ended(gpu, ticket))
        return true;
    for (uint64_t end = fm__now_ns() + SOON_NS; fm__now_ns() < end;) {
        if (fm__vulkan_ended(gpu, ticket))
            return true;
        sched_yield();
    }
    return false;
}

bool fm__vulkan_wait(fm__vulkan *gpu, uint64_t ticket) {
    VkSemaphore progress = gpu->core->queue.progress;
    while (!fm__vulkan_ended(gpu, ticket))
        reached_within(gpu, progress, ticket, SLICE_NS);
    return !driver_lost(gpu);
}

/* ---- submissions ---- */

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

static void fill_segment(fm__vulkan_batch *batch, uint32_t i, const fm__segment *segment,
                         uint64_t base, VkSemaphore progress, uint64_t ticket) {
    uint32_t n_wait = 0, n_signal = 0;
    if (segment->wait != NULL) {
        batch->waits[i] = ((fm__vulkan_timeline *)segment->wait->native)->semaphore;
        batch->wait_values[i] = base + segment->wait_value;
        n_wait = 1;
    }
    if (segment->signal != NULL) {
        batch->signals[i][0] = ((fm__vulkan_timeline *)segment->signal->native)->semaphore;
        batch->signal_values[i][n_signal++] = base + segment->signal_value;
    }
    if (progress != NULL) {
        batch->signals[i][n_signal] = progress;
        batch->signal_values[i][n_signal++] = ticket;
    }
    batch->values[i] =
        (VkTimelineSemaphoreSubmitInfo){.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                        .waitSemaphoreValueCount = n_wait,
                                        .pWaitSemaphoreValues = &batch->wait_values[i],
                                        .signalSemaphoreValueCount = n_signal,
                                        .pSignalSemaphoreValues = batch->signal_values[i]};
    fm__vulkan_recording *recording = (fm__vulkan_recording *)segment->recording;
    batch->submits[i] =
        (VkSubmitInfo){.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                       .pNext = &batch->values[i],
                       .waitSemaphoreCount = n_wait,
                       .pWaitSemaphores = &batch->waits[i],
                       .pWaitDstStageMask = &WAIT_STAGE,
                       .commandBufferCount = recording != NULL,
                       .pCommandBuffers = recording != NULL ? &recording->commands : NULL,
                       .signalSemaphoreCount = n_signal,
                       .pSignalSemaphores = batch->signals[i]};
}

/* The submission that was asked to lose the device. */
static fm_status lose(fm__vulkan *gpu, fm_error *error) {
    gpu->core->queue.pretended = true;
    return fm__vulkan_failed(gpu, VK_ERROR_DEVICE_LOST, "as its options say", error);
}

/* One call for all segments up to the next that waits for another unit. An H200's driver makes what
   the host wrote visible once a call, and no barrier inside one does it again: in a call with
   several waits, memory that was read behind an earlier one was seen to come from a cache. */
static VkResult hand_over(fm__vulkan *gpu, uint32_t n) {
    const fm__vulkan_queue *queue = &gpu->core->queue;
    const VkSubmitInfo *submits = queue->batch->submits;
    VkResult result = VK_SUCCESS;
    for (uint32_t i = 0, end; i < n && result == VK_SUCCESS; i = end) {
        for (end = i + 1; end < n && submits[end].waitSemaphoreCount == 0;)
            end++;
        result = gpu->core->vk.QueueSubmit(queue->queue, end - i, submits + i, VK_NULL_HANDLE);
        if (result != VK_SUCCESS && i > 0)
            result = VK_ERROR_DEVICE_LOST; /* a part is under way that cannot be taken back */
    }
    return result;
}

static fm_status submit_locked(fm__vulkan *gpu, const fm__segment *segments, uint32_t n,
                               const fm__run *run, uint64_t base, fm_error *error) {
    fm__vulkan_queue *queue = &gpu->core->queue;
    if (fm__vulkan_is_lost(&gpu->device))
        return fm__vulkan_failed(gpu, VK_ERROR_DEVICE_LOST, "before this submission", error);
    if (++queue->submits == queue->lose_at)
        return lose(gpu, error);
    uint64_t ticket = atomic_load(&queue->submitted) + 1;
    fm_status status = check_segments(gpu, segments, n, run, error);
    if (status != FM_OK)
        return status;
    for (uint32_t i = 0; i < n; i++)
        fill_segment(queue->batch, i, &segments[i], base, i == n - 1 ? queue->progress : NULL,
                     ticket);
    VkResult result = hand_over(gpu, n);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkQueueSubmit", error);
    atomic_store(&queue->submitted, ticket);
    for (uint32_t i = 0; i < n; i++) {
        fm__vulkan_recording *recording = (fm__vulkan_recording *)segments[i].recording;
        if (recording != NULL)
            recording->ticket = recording->binding->ticket = ticket;
        if (segments[i].signal != NULL) {
            fm__vulkan_timeline *timeline = segments[i].signal->native;
            atomic_store(&timeline->from_queue, base + segments[i].signal_value);
        }
    }
    return FM_OK;
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

fm_status fm__vulkan_submit_own(fm__vulkan *gpu, VkCommandBuffer commands, uint64_t *ticket,
                                fm_error *error) {
    fm__vulkan_queue *queue = &gpu->core->queue;
    if (fm__vulkan_is_lost(&gpu->device))
        return fm__vulkan_failed(gpu, VK_ERROR_DEVICE_LOST, "before this submission", error);
    pthread_mutex_lock(&queue->lock);
    *ticket = atomic_load(&queue->submitted) + 1;
    const VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = ticket};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &values,
                                 .commandBufferCount = commands != NULL,
                                 .pCommandBuffers = &commands,
                                 .signalSemaphoreCount = 1,
                                 .pSignalSemaphores = &queue->progress};
    VkResult result = gpu->core->vk.QueueSubmit(queue->queue, 1, &submit, VK_NULL_HANDLE);
    if (result == VK_SUCCESS)
        atomic_store(&queue->submitted, *ticket);
    pthread_mutex_unlock(&queue->lock);
    return result == VK_SUCCESS ? FM_OK : fm__vulkan_failed(gpu, result, "vkQueueSubmit", error);
}

/* ---- timelines ---- */

fm_status fm__vulkan_timeline_attach(fm__device *device, void **native, fm_error *error) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    fm__vulkan_timeline *timeline = fm__alloc_zero(sizeof *timeline);
    if (timeline == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *timeline);
    VkResult result = create_semaphore(gpu, &timeline->semaphore);
    if (result != VK_SUCCESS || pthread_mutex_init(&timeline->lock, NULL) != 0) {
        gpu->core->vk.DestroySemaphore(gpu->core->device, timeline->semaphore, NULL);
        fm__free(timeline);
        return fm__vulkan_failed(gpu, result != VK_SUCCESS ? result : VK_ERROR_UNKNOWN,
                                 "a timeline semaphore", error);
    }
    *native = timeline;
    return FM_OK;
}

/* Nothing waits for or signals it any more but the end of the submission whose signal was seen. */
void fm__vulkan_timeline_detach(fm__device *device, void *native) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    fm__vulkan_timeline *timeline = native;
    fm__vulkan_wait(gpu, atomic_load(&gpu->core->queue.submitted));
    gpu->core->vk.DestroySemaphore(gpu->core->device, timeline->semaphore, NULL);
    pthread_mutex_destroy(&timeline->lock);
    fm__free(timeline);
}

uint64_t fm__vulkan_timeline_value(fm__device *device, void *native) {
    fm__vulkan_timeline *timeline = native;
    uint64_t here = atomic_load(&timeline->from_host);
    uint64_t there = value_of((fm__vulkan *)device, timeline->semaphore);
    return here > there ? here : there;
}

/* Nothing of a lost device is at work when its waits return, so that what it used can be freed. */
static bool drained(fm__vulkan *gpu, fm__vulkan_timeline *timeline, uint64_t value) {
    if (!driver_lost(gpu))
        reached_within(gpu, gpu->core->queue.progress, atomic_load(&gpu->core->queue.submitted),
                       DRAIN_NS);
    return fm__vulkan_timeline_value(&gpu->device, timeline) >= value;
}

bool fm__vulkan_timeline_wait(fm__device *device, void *native, uint64_t value) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    fm__vulkan_timeline *timeline = native;
    uint64_t until = 0; /* the end of polling; 0: it has not begun */
    for (;;) {
        if (fm__vulkan_timeline_value(device, native) >= value)
            return true;
        if (fm__vulkan_is_lost(device))
            return drained(gpu, timeline, value);
        uint64_t now = fm__now_ns();
        if (until == 0)
            until = now + POLL_NS;
        else if (now >= until)
            reached_within(gpu, timeline->semaphore, value, SLICE_NS);
        else
            sched_yield();
    }
}

void fm__vulkan_timeline_signal(fm__device *device, void *native, uint64_t value) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    fm__vulkan_timeline *timeline = native;
    pthread_mutex_lock(&timeline->lock);
    /* A semaphore's value must only grow: what is not greater was signalled already, and what the
       queue may still signal must not come behind a greater value. Then the twin alone keeps it. */
    uint64_t from_queue = atomic_load(&timeline->from_queue);
    uint64_t now = from_queue == 0 ? atomic_load(&timeline->from_host) /* nobody else signals */
                                   : value_of(gpu, timeline->semaphore);
    bool ours = now >= from_queue && !driver_lost(gpu);
    if (now < value && ours) {
        const VkSemaphoreSignalInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                            .semaphore = timeline->semaphore,
                                            .value = value};
        if (gpu->core->vk.SignalSemaphore(gpu->core->device, &info) == VK_ERROR_DEVICE_LOST)
            note_lost(gpu);
    }
    if (atomic_load(&timeline->from_host) < value)
        atomic_store(&timeline->from_host, value);
    pthread_mutex_unlock(&timeline->lock);
}

/* ---- creation ---- */

fm_status fm__vulkan_queue_init(fm__vulkan *gpu, uint64_t lose_at, fm_error *error) {
    fm__vulkan_queue *queue = &gpu->core->queue;
    queue->lose_at = lose_at;
    queue->batch = fm__alloc_zero(sizeof *queue->batch);
    if (queue->batch == NULL)
        return fm__error_memory(error, gpu->device.properties.name, sizeof *queue->batch);
    if (pthread_mutex_init(&queue->lock, NULL) != 0) {
        fm__free(queue->batch);
        return fm__error(error, FM_ERROR_DEVICE, gpu->device.properties.name,
                         "a lock could not be made");
    }
    gpu->core->vk.GetDeviceQueue(gpu->core->device, gpu->core->choice.family, 0, &queue->queue);
    VkResult result = create_semaphore(gpu, &queue->progress);
    if (result == VK_SUCCESS)
        return FM_OK;
    pthread_mutex_destroy(&queue->lock);
    fm__free(queue->batch);
    return fm__vulkan_failed(gpu, result, "vkCreateSemaphore", error);
}

void fm__vulkan_queue_finish(fm__vulkan *gpu) {
    fm__vulkan_queue *queue = &gpu->core->queue;
    gpu->core->vk.DestroySemaphore(gpu->core->device, queue->progress, NULL);
    pthread_mutex_destroy(&queue->lock);
    fm__free(queue->batch);
}
