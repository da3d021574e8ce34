/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/clock.c: the device's timestamps on the scale of fm__now_ns().
 *
 * Owns: one moment that is known on both clocks. Never does: guess while work is in flight: without
 * VK_EXT_calibrated_timestamps the moment is taken once, when the device is made. Called from: the
 * loading thread, and whoever asks for spans.
 */
#include "device/vulkan/core.h"

enum { FRESH_NS = 200000000 }; /* clocks drift by some 10 us a second at most */

#ifdef __APPLE__
static const VkTimeDomainEXT HOST_DOMAIN = VK_TIME_DOMAIN_CLOCK_MONOTONIC_RAW_EXT;
#else
static const VkTimeDomainEXT HOST_DOMAIN = VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT;
#endif

static bool has_domains(fm__vulkan *gpu) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    VkTimeDomainEXT domains[16];
    uint32_t n = 16;
    bool device = false, host = false;
    if (!gpu->core->choice.clock_extension || vk->GetCalibratedTimestampsEXT == NULL ||
        vk->GetPhysicalDeviceCalibrateableTimeDomainsEXT == NULL ||
        vk->GetPhysicalDeviceCalibrateableTimeDomainsEXT(gpu->core->choice.physical, &n, domains) <
            VK_SUCCESS)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        device = device || domains[i] == VK_TIME_DOMAIN_DEVICE_EXT;
        host = host || domains[i] == HOST_DOMAIN;
    }
    return device && host;
}

static bool calibrate(fm__vulkan *gpu) {
    fm__vulkan_clock *clock = &gpu->core->clock;
    const VkCalibratedTimestampInfoEXT infos[2] = {
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT,
         .timeDomain = VK_TIME_DOMAIN_DEVICE_EXT},
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = HOST_DOMAIN}};
    uint64_t both[2], deviation;
    if (gpu->core->vk.GetCalibratedTimestampsEXT(gpu->core->device, 2, infos, both, &deviation) !=
        VK_SUCCESS)
        return false;
    clock->ticks = both[0] & clock->mask;
    clock->ns = both[1];
    return true;
}

/* A timestamp that the queue writes, between two looks at the host's clock. */
static fm_status measure(fm__vulkan *gpu, VkCommandPool pool, VkQueryPool queries,
                         fm_error *error) {
    fm__vulkan_clock *clock = &gpu->core->clock;
    const fm__vulkan_api *vk = &gpu->core->vk;
    VkDevice device = gpu->core->device;
    VkCommandBuffer commands;
    const VkCommandBufferAllocateInfo info = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkResult result = vk->AllocateCommandBuffers(device, &info, &commands);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkAllocateCommandBuffers", error);
    vk->BeginCommandBuffer(commands, &begin);
    vk->CmdResetQueryPool(commands, queries, 0, 2);
    vk->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries, 0);
    result = vk->EndCommandBuffer(commands);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkEndCommandBuffer", error);
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 8; i++) { /* the shortest round trip is the most exact */
        uint64_t ticket, ticks, before = fm__now_ns();
        fm_status status = fm__vulkan_submit_own(gpu, commands, &ticket, error);
        if (status != FM_OK)
            return status;
        while (!fm__vulkan_ended(gpu, ticket))
            ;
        uint64_t after = fm__now_ns();
        result = vk->GetQueryPoolResults(device, queries, 0, 1, 8, &ticks, 8,
                                         VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
        if (result != VK_SUCCESS)
            return fm__vulkan_failed(gpu, result, "vkGetQueryPoolResults", error);
        if (after - before < least) {
            least = after - before;
            clock->ticks = ticks & clock->mask;
            clock->ns = before + (after - before) / 2;
        }
    }
    return FM_OK;
}

static fm_status measure_once(fm__vulkan *gpu, fm_error *error) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    VkDevice device = gpu->core->device;
    VkCommandPool pool;
    VkQueryPool queries;
    const VkCommandPoolCreateInfo pool_info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                               .queueFamilyIndex = gpu->core->choice.family};
    const VkQueryPoolCreateInfo query_info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                              .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                              .queryCount = 2};
    VkResult result = vk->CreateCommandPool(device, &pool_info, NULL, &pool);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkCreateCommandPool", error);
    fm_status status;
    result = vk->CreateQueryPool(device, &query_info, NULL, &queries);
    if (result == VK_SUCCESS) {
        status = measure(gpu, pool, queries, error);
        vk->DestroyQueryPool(device, queries, NULL);
    } else {
        status = fm__vulkan_failed(gpu, result, "vkCreateQueryPool", error);
    }
    vk->DestroyCommandPool(device, pool, NULL);
    return status;
}

static uint64_t mask_of(uint32_t bits) {
    return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
}

fm_status fm__vulkan_clock_init(fm__vulkan *gpu, const fm__vulkan_choice *choice, fm_error *error) {
    fm__vulkan_clock *clock = &gpu->core->clock;
    clock->mask = mask_of(choice->timestamp_bits);
    clock->copy_mask = mask_of(choice->copy_timestamp_bits);
    clock->period = (double)choice->properties.limits.timestampPeriod;
    if (pthread_mutex_init(&clock->lock, NULL) != 0)
        return fm__error(error, FM_ERROR_DEVICE, gpu->device.properties.name,
                         "a lock could not be made");
    if (clock->mask == 0)
        return FM_OK;
    clock->calibrated = has_domains(gpu) && calibrate(gpu);
    fm_status status = clock->calibrated ? FM_OK : measure_once(gpu, error);
    if (status != FM_OK)
        pthread_mutex_destroy(&clock->lock);
    return status;
}

void fm__vulkan_clock_finish(fm__vulkan *gpu) {
    pthread_mutex_destroy(&gpu->core->clock.lock);
}

void fm__vulkan_clock_refresh(fm__vulkan *gpu) {
    fm__vulkan_clock *clock = &gpu->core->clock;
    pthread_mutex_lock(&clock->lock);
    if (clock->calibrated && fm__now_ns() - clock->ns > FRESH_NS)
        calibrate(gpu);
    pthread_mutex_unlock(&clock->lock);
}

uint64_t fm__vulkan_clock_ns(fm__vulkan *gpu, uint64_t ticks, uint64_t mask) {
    fm__vulkan_clock *clock = &gpu->core->clock;
    pthread_mutex_lock(&clock->lock);
    /* The distance may be negative, and the counter may have wrapped since. */
    uint64_t ahead = (ticks - clock->ticks) & mask;
    uint64_t behind = (clock->ticks - ticks) & mask;
    uint64_t ns = ahead <= behind ? clock->ns + (uint64_t)((double)ahead * clock->period)
                                  : clock->ns - (uint64_t)((double)behind * clock->period);
    pthread_mutex_unlock(&clock->lock);
    return ns;
}
