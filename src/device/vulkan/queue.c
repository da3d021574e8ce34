/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/queue.c: what was handed over and whether it ended, and timelines as semaphores
 * that queue and host share.
 *
 * Owns: the queue, the semaphore that counts what ended. Never does: know segments (submit.c).
 * Called from: submitting and waiting threads.
 *
 * A device that was lost stays lost: waits for it return false once their value cannot come, and
 * the host may signal in its place, which it remembers in the twin. Where only a submission failed,
 * what was handed over before still ends, and is waited for before anything that it uses is freed.
 */
#include <sched.h>
#include <string.h>

#include "device/vulkan/core.h"

enum {
    POLL_NS = 5000000,       /* before a waiting thread sleeps in the driver: on an H200 with busy
                                processors that costs a millisecond */
    PAUSES = 32,             /* between two looks: about a microsecond */
    LOOKS = 16,              /* between two offers of the processor to who needs it */
    SLICE_NS = 100000000,    /* of sleep, between looks at what else could end the wait */
    SOON_NS = 20000000,      /* that a signal may come behind one of the same submission */
    LOST_SLICE_NS = 1000000, /* the same, when it is lost */
    DRAIN_NS = 2000000000,   /* for what a device that is said to be lost still does */
};

/* ---- semaphores ---- */

VkResult fm__vulkan_semaphore_create(fm__vulkan *gpu, VkSemaphore *out) {
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
    return fm__vulkan_is_lost(&gpu->device) && !atomic_load(&gpu->core->queue.still_runs);
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

/* A lost device has DRAIN_NS from *since on (0: it is set) for what it still does; then the driver
   has lost it too. */
static void sleep_for(fm__vulkan *gpu, VkSemaphore semaphore, uint64_t value, uint64_t *since) {
    reached_within(gpu, semaphore, value, SLICE_NS);
    if (!fm__vulkan_is_lost(&gpu->device))
        return;
    uint64_t now = fm__now_ns();
    if (*since == 0)
        *since = now;
    else if (now - *since > DRAIN_NS)
        atomic_store(&gpu->core->queue.still_runs, false);
}

bool fm__vulkan_wait(fm__vulkan *gpu, uint64_t ticket) {
    uint64_t since = 0;
    while (!fm__vulkan_ended(gpu, ticket))
        sleep_for(gpu, gpu->core->queue.progress, ticket, &since);
    return !driver_lost(gpu);
}

bool fm__vulkan_wait_copy(fm__vulkan *gpu, uint64_t copy) {
    uint64_t since = 0;
    while (copy > 0 && value_of(gpu, gpu->core->ring.copied) < copy && !driver_lost(gpu))
        sleep_for(gpu, gpu->core->ring.copied, copy, &since);
    return !driver_lost(gpu);
}

uint64_t fm__vulkan_copies_ended(fm__vulkan *gpu) {
    return value_of(gpu, gpu->core->ring.copied);
}

/* ---- the device's own commands ---- */

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
    VkResult result = fm__vulkan_semaphore_create(gpu, &timeline->semaphore);
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

/* Nothing of a lost device is at work when its waits return, so that what it used can be freed. But
   for one that gets its value: what the queue has beside may wait for the caller's next signal. */
static bool drained(fm__vulkan *gpu, fm__vulkan_timeline *timeline, uint64_t value) {
    const uint64_t end_ns = fm__now_ns() + DRAIN_NS;
    const uint64_t submitted = atomic_load(&gpu->core->queue.submitted);
    while (!driver_lost(gpu) && fm__vulkan_timeline_value(&gpu->device, timeline) < value &&
           fm__now_ns() < end_ns &&
           !reached_within(gpu, gpu->core->queue.progress, submitted, LOST_SLICE_NS))
        ;
    return fm__vulkan_timeline_value(&gpu->device, timeline) >= value;
}

/* A hand-over to a host team takes as long as its next look: so it looks often, but from a core
   that leaves its other thread the units and the bus between looks, and that a thread of the driver
   or of the team can have at once. */
static void rest(uint32_t look) {
    for (int i = 0; i < PAUSES; i++)
        fm__cpu_pause();
    if (look % LOOKS == LOOKS - 1)
        sched_yield();
}

bool fm__vulkan_timeline_wait(fm__device *device, void *native, uint64_t value) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    fm__vulkan_timeline *timeline = native;
    uint64_t until = 0; /* the end of polling; 0: it has not begun */
    for (uint32_t look = 0;; look++) {
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
            rest(look);
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

fm_status fm__vulkan_queue_init(fm__vulkan *gpu, const fm__vulkan_options *options,
                                fm_error *error) {
    fm__vulkan_queue *queue = &gpu->core->queue;
    queue->lose_at = options->lose_at;
    queue->fail_at = options->fail_at;
    queue->batch = fm__vulkan_batch_create();
    if (queue->batch == NULL)
        return fm__error_memory(error, gpu->device.properties.name, 0);
    if (pthread_mutex_init(&queue->lock, NULL) != 0) {
        fm__free(queue->batch);
        return fm__error(error, FM_ERROR_DEVICE, gpu->device.properties.name,
                         "a lock could not be made");
    }
    gpu->core->vk.GetDeviceQueue(gpu->core->device, gpu->core->choice.family, 0, &queue->queue);
    VkResult result = fm__vulkan_semaphore_create(gpu, &queue->progress);
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
