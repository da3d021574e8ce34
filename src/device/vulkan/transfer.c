/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/transfer.c: bytes from and to buffers without a host address.
 *
 * Owns: one staging buffer and one command buffer, made when they are first needed. Never does:
 * overlap: each call returns when its bytes have arrived. Called from: the loading thread.
 */
#include <string.h>

#include "device/vulkan/core.h"

enum { STAGING = 16 << 20 };

fm_status fm__vulkan_transfer_init(fm__vulkan *gpu, fm_error *error) {
    if (pthread_mutex_init(&gpu->core->transfer.lock, NULL) == 0)
        return FM_OK;
    return fm__error(error, FM_ERROR_DEVICE, gpu->device.properties.name,
                     "a lock could not be made");
}

void fm__vulkan_transfer_finish(fm__vulkan *gpu) {
    fm__vulkan_transfer *transfer = &gpu->core->transfer;
    gpu->core->vk.DestroyCommandPool(gpu->core->device, transfer->pool, NULL);
    if (transfer->staging != NULL)
        fm__vulkan_buffer_destroy(&transfer->staging->base);
    pthread_mutex_destroy(&transfer->lock);
}

static fm_status prepare_commands(fm__vulkan *gpu, fm_error *error) {
    fm__vulkan_transfer *transfer = &gpu->core->transfer;
    const fm__vulkan_api *vk = &gpu->core->vk;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = gpu->core->choice.family};
    VkResult result = VK_SUCCESS;
    if (transfer->pool == VK_NULL_HANDLE)
        result = vk->CreateCommandPool(gpu->core->device, &pool, NULL, &transfer->pool);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkCreateCommandPool", error);
    if (transfer->commands != NULL)
        return FM_OK;
    const VkCommandBufferAllocateInfo info = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = transfer->pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = 1};
    result = vk->AllocateCommandBuffers(gpu->core->device, &info, &transfer->commands);
    if (result == VK_SUCCESS)
        return FM_OK;
    transfer->commands = NULL;
    return fm__vulkan_failed(gpu, result, "vkAllocateCommandBuffers", error);
}

static fm_status prepare_staging(fm__vulkan *gpu, fm_error *error) {
    fm__vulkan_transfer *transfer = &gpu->core->transfer;
    return transfer->staging != NULL
               ? FM_OK
               : fm__vulkan_buffer_make(gpu, STAGING, FM__MEMORY_HOST, &transfer->staging, error);
}

static fm_status begin(fm__vulkan *gpu, fm_error *error) {
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkMemoryBarrier before = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                                    .dstAccessMask =
                                        VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    const fm__vulkan_api *vk = &gpu->core->vk;
    fm_status status = prepare_commands(gpu, error);
    if (status != FM_OK)
        return status;
    VkResult result = vk->BeginCommandBuffer(gpu->core->transfer.commands, &info);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkBeginCommandBuffer", error);
    vk->CmdPipelineBarrier(gpu->core->transfer.commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                           VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1, &before, 0, NULL, 0, NULL);
    return FM_OK;
}

/* Hands the commands over; returns when they are done. */
static fm_status end(fm__vulkan *gpu, fm_error *error) {
    const VkMemoryBarrier after = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                   .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                   .dstAccessMask =
                                       VK_ACCESS_HOST_READ_BIT | VK_ACCESS_MEMORY_READ_BIT};
    const fm__vulkan_api *vk = &gpu->core->vk;
    VkCommandBuffer commands = gpu->core->transfer.commands;
    uint64_t ticket;
    vk->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                           VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 1,
                           &after, 0, NULL, 0, NULL);
    VkResult result = vk->EndCommandBuffer(commands);
    if (result != VK_SUCCESS)
        return fm__vulkan_failed(gpu, result, "vkEndCommandBuffer", error);
    fm_status status = fm__vulkan_submit_own(gpu, commands, &ticket, error);
    if (status == FM_OK && !fm__vulkan_wait(gpu, ticket))
        status = fm__vulkan_failed(gpu, VK_ERROR_DEVICE_LOST, "in a transfer", error);
    return status;
}

/* Between a buffer and the beginning of the staging buffer. */
static fm_status copy(fm__vulkan *gpu, fm__vulkan_buffer *buffer, size_t offset, size_t bytes,
                      bool to_staging, fm_error *error) {
    fm__vulkan_transfer *transfer = &gpu->core->transfer;
    const VkBufferCopy region = {to_staging ? offset : 0, to_staging ? 0 : offset, bytes};
    fm_status status = prepare_staging(gpu, error);
    if (status == FM_OK)
        status = begin(gpu, error);
    if (status != FM_OK)
        return status;
    VkBuffer from = to_staging ? buffer->buffer : transfer->staging->buffer;
    VkBuffer to = to_staging ? transfer->staging->buffer : buffer->buffer;
    gpu->core->vk.CmdCopyBuffer(transfer->commands, from, to, 1, &region);
    return end(gpu, error);
}

fm_status fm__vulkan_buffer_write(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                                  fm_error *error) {
    fm__vulkan_buffer *b = (fm__vulkan_buffer *)buffer;
    fm__vulkan *gpu = (fm__vulkan *)buffer->device;
    fm__vulkan_transfer *transfer = &gpu->core->transfer;
    if (b->window != NULL) {
        memcpy(b->window + offset, from, bytes);
        return FM_OK;
    }
    pthread_mutex_lock(&transfer->lock);
    fm_status status = prepare_staging(gpu, error);
    for (size_t done = 0, n; status == FM_OK && done < bytes; done += n) {
        n = fm__min_size(STAGING, bytes - done);
        memcpy(transfer->staging->host, (const uint8_t *)from + done, n);
        status = copy(gpu, b, offset + done, n, false, error);
    }
    pthread_mutex_unlock(&transfer->lock);
    return status;
}

fm_status fm__vulkan_buffer_read(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                                 fm_error *error) {
    fm__vulkan_buffer *b = (fm__vulkan_buffer *)buffer;
    fm__vulkan *gpu = (fm__vulkan *)buffer->device;
    fm__vulkan_transfer *transfer = &gpu->core->transfer;
    fm_status status = FM_OK;
    pthread_mutex_lock(&transfer->lock);
    for (size_t done = 0, n; status == FM_OK && done < bytes; done += n) {
        n = fm__min_size(STAGING, bytes - done);
        status = copy(gpu, b, offset + done, n, true, error);
        if (status == FM_OK)
            memcpy((uint8_t *)to + done, transfer->staging->host, n);
    }
    pthread_mutex_unlock(&transfer->lock);
    return status;
}

fm_status fm__vulkan_clear(fm__vulkan *gpu, fm__vulkan_buffer *buffer, fm_error *error) {
    if (buffer->host != NULL) {
        memset(buffer->host, 0, buffer->base.bytes);
        return FM_OK;
    }
    pthread_mutex_lock(&gpu->core->transfer.lock);
    fm_status status = begin(gpu, error);
    if (status == FM_OK) {
        gpu->core->vk.CmdFillBuffer(gpu->core->transfer.commands, buffer->buffer, 0, VK_WHOLE_SIZE,
                                    0);
        status = end(gpu, error);
    }
    pthread_mutex_unlock(&gpu->core->transfer.lock);
    return status;
}
