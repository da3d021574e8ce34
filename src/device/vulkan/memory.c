/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/memory.c: buffers that shaders address: the device's memory, the host's, or the
 * caller's own pages.
 *
 * Owns: what it allocated. Never does: hand out a host address of memory
 * that the processor reads uncached. Called from: the loading thread.
 */
#include "device/vulkan/core.h"

static const VkBufferUsageFlags USAGE =
    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
    VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;

static bool has_host_address(const fm__vulkan *gpu, uint32_t type) {
    const VkPhysicalDeviceMemoryProperties *memory = &gpu->core->choice.memory;
    return (memory->memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) != 0;
}

/* ---- making one ---- */

static fm_status check_size(fm__vulkan *gpu, size_t bytes, uint32_t type, fm_error *error) {
    const fm__vulkan_choice *choice = &gpu->core->choice;
    const VkPhysicalDeviceMemoryProperties *memory = &choice->memory;
    uint64_t heap = memory->memoryHeaps[memory->memoryTypes[type].heapIndex].size;
    uint64_t most = choice->max_buffer < heap ? choice->max_buffer : heap;
    if (bytes <= most)
        return FM_OK;
    return fm__error(error, FM_ERROR_LIMIT, gpu->device.properties.name,
                     "%zu bytes in one buffer, the driver takes %llu", bytes,
                     (unsigned long long)most);
}

/* Out of memory names what was asked for; anything else is a failed call. What a driver promises to
   allocate in one piece is often less than it does: it is asked first. */
static fm_status failed(fm__vulkan *gpu, VkResult result, const char *call, size_t bytes,
                        fm_error *error) {
    uint64_t promised = gpu->core->choice.max_allocation;
    if (result != VK_ERROR_OUT_OF_DEVICE_MEMORY && result != VK_ERROR_OUT_OF_HOST_MEMORY)
        return fm__vulkan_failed(gpu, result, call, error);
    if (bytes > promised)
        return fm__error(error, FM_ERROR_LIMIT, gpu->device.properties.name,
                         "%zu bytes in one buffer, the driver promises %llu and gave no more",
                         bytes, (unsigned long long)promised);
    return fm__error_memory(error, gpu->device.properties.name, bytes);
}

static fm_status create_handle(fm__vulkan *gpu, fm__vulkan_buffer *buffer, size_t bytes,
                               bool imported, fm_error *error) {
    const VkExternalMemoryBufferCreateInfo external = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
        .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
    const fm__vulkan_choice *choice = &gpu->core->choice;
    /* Weights and the ring are used on two queues; for buffers that costs nothing. */
    const uint32_t families[2] = {choice->family, choice->copy_family};
    bool two = families[0] != families[1];
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .pNext = imported ? &external : NULL,
                                     .size = bytes,
                                     .usage = USAGE,
                                     .sharingMode = two ? VK_SHARING_MODE_CONCURRENT
                                                        : VK_SHARING_MODE_EXCLUSIVE,
                                     .queueFamilyIndexCount = two ? 2 : 0,
                                     .pQueueFamilyIndices = families};
    const fm__vulkan_api *vk = &gpu->core->vk;
    VkResult result = vk->CreateBuffer(gpu->core->device, &info, NULL, &buffer->buffer);
    return result == VK_SUCCESS ? FM_OK : failed(gpu, result, "vkCreateBuffer", bytes, error);
}

/* Memory of `type` for the buffer, and its address. next: NULL, or what is imported. */
static fm_status allocate(fm__vulkan *gpu, fm__vulkan_buffer *buffer, uint32_t type, size_t bytes,
                          const void *next, fm_error *error) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    VkDevice device = gpu->core->device;
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .pNext = next,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = &flags,
                                       .allocationSize = bytes,
                                       .memoryTypeIndex = type};
    VkResult result = vk->AllocateMemory(device, &info, NULL, &buffer->memory);
    if (result != VK_SUCCESS)
        return failed(gpu, result, "vkAllocateMemory", bytes, error);
    result = vk->BindBufferMemory(device, buffer->buffer, buffer->memory, 0);
    if (result != VK_SUCCESS)
        return failed(gpu, result, "vkBindBufferMemory", bytes, error);
    const VkBufferDeviceAddressInfo address = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = buffer->buffer};
    buffer->address = vk->GetBufferDeviceAddress(device, &address);
    return FM_OK;
}

/* A discrete device's own memory may have host addresses, but reads through them are uncached: they
   are a window for writes only. */
static fm_status map(fm__vulkan *gpu, fm__vulkan_buffer *buffer, uint32_t type, bool window,
                     fm_error *error) {
    void *host = NULL;
    if (!has_host_address(gpu, type))
        return FM_OK;
    VkResult result =
        gpu->core->vk.MapMemory(gpu->core->device, buffer->memory, 0, VK_WHOLE_SIZE, 0, &host);
    if (result != VK_SUCCESS)
        return window ? FM_OK : failed(gpu, result, "vkMapMemory", buffer->base.bytes, error);
    *(window ? &buffer->window : &buffer->host) = host;
    return FM_OK;
}

static fm__vulkan_buffer *new_buffer(fm__vulkan *gpu, size_t bytes) {
    fm__vulkan_buffer *buffer = fm__alloc_zero(sizeof *buffer);
    if (buffer != NULL)
        buffer->base = (fm__buffer){&gpu->device, bytes};
    return buffer;
}

static fm_status fill_created(fm__vulkan *gpu, fm__vulkan_buffer *buffer, uint32_t type,
                              bool window, fm_error *error) {
    VkMemoryRequirements needs;
    size_t bytes = buffer->base.bytes;
    /* Whole vectors, so that all of it can be cleared and read. */
    fm_status status = create_handle(gpu, buffer, fm__round_up(bytes, 16), false, error);
    if (status != FM_OK)
        return status;
    gpu->core->vk.GetBufferMemoryRequirements(gpu->core->device, buffer->buffer, &needs);
    if ((needs.memoryTypeBits >> type & 1) == 0)
        return fm__error(error, FM_ERROR_DEVICE, gpu->device.properties.name,
                         "memory type %u does not take a buffer of %zu bytes", type, bytes);
    status = allocate(gpu, buffer, type, needs.size, NULL, error);
    return status == FM_OK ? map(gpu, buffer, type, window, error) : status;
}

fm_status fm__vulkan_buffer_make(fm__vulkan *gpu, size_t bytes, fm__memory memory,
                                 fm__vulkan_buffer **out, fm_error *error) {
    const fm__vulkan_choice *choice = &gpu->core->choice;
    bool local = memory == FM__MEMORY_LOCAL;
    uint32_t type = local ? choice->local_type : choice->host_type;
    fm_status status = check_size(gpu, bytes, type, error);
    if (status != FM_OK)
        return status;
    fm__vulkan_buffer *buffer = new_buffer(gpu, bytes);
    if (buffer == NULL)
        return fm__error_memory(error, gpu->device.properties.name, sizeof *buffer);
    status = fill_created(gpu, buffer, type, local && gpu->core->discrete, error);
    if (status == FM_OK)
        *out = buffer;
    else
        fm__vulkan_buffer_destroy(&buffer->base);
    return status;
}

fm_status fm__vulkan_buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                                   fm__buffer **out, fm_error *error) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    fm__vulkan_buffer *buffer = NULL;
    fm_status status = fm__vulkan_buffer_make(gpu, bytes, memory, &buffer, error);
    if (status != FM_OK)
        return status;
    /* Host memory is written by whoever asked for it. */
    if (memory == FM__MEMORY_LOCAL)
        status = fm__vulkan_clear(gpu, buffer, error);
    if (status == FM_OK)
        *out = &buffer->base;
    else
        fm__vulkan_buffer_destroy(&buffer->base);
    return status;
}

/* ---- the caller's pages ---- */

static uint32_t import_type(fm__vulkan *gpu, void *pages) {
    VkMemoryHostPointerPropertiesEXT found = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    const fm__vulkan_api *vk = &gpu->core->vk;
    if (vk->GetMemoryHostPointerPropertiesEXT(
            gpu->core->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, pages,
            &found) != VK_SUCCESS)
        return VK_MAX_MEMORY_TYPES;
    const VkPhysicalDeviceMemoryProperties *memory = &gpu->core->choice.memory;
    const VkMemoryPropertyFlags seen =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    uint32_t best = VK_MAX_MEMORY_TYPES;
    for (uint32_t t = 0; t < memory->memoryTypeCount; t++) {
        VkMemoryPropertyFlags flags = memory->memoryTypes[t].propertyFlags;
        if ((found.memoryTypeBits >> t & 1) == 0 || (flags & seen) != seen)
            continue;
        bool cached = (flags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
        if (best == VK_MAX_MEMORY_TYPES || (cached && t == gpu->core->choice.host_type))
            best = t;
    }
    return best;
}

/* Whole pages are imported; the buffer begins `before` bytes into them. */
static fm_status fill_imported(fm__vulkan *gpu, fm__vulkan_buffer *buffer, void *host,
                               fm_error *error) {
    size_t align = gpu->core->choice.import_align, bytes = buffer->base.bytes;
    size_t before = (uintptr_t)host % align;
    uint8_t *pages = (uint8_t *)host - before;
    size_t whole = fm__round_up(before + bytes, align);
    uint32_t type = import_type(gpu, pages);
    if (type == VK_MAX_MEMORY_TYPES)
        return fm__error(error, FM_ERROR_UNSUPPORTED, gpu->device.properties.name,
                         "the driver does not take these %zu bytes of host memory", bytes);
    fm_status status = check_size(gpu, whole, type, error);
    if (status == FM_OK)
        status = create_handle(gpu, buffer, before + bytes, true, error);
    if (status != FM_OK)
        return status;
    VkMemoryRequirements needs;
    gpu->core->vk.GetBufferMemoryRequirements(gpu->core->device, buffer->buffer, &needs);
    if (needs.size > whole || (needs.memoryTypeBits >> type & 1) == 0)
        return fm__error(error, FM_ERROR_UNSUPPORTED, gpu->device.properties.name,
                         "a buffer over host memory needs %llu bytes, its pages have %zu",
                         (unsigned long long)needs.size, whole);
    const VkImportMemoryHostPointerInfoEXT pointer = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
        .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
        .pHostPointer = pages};
    status = allocate(gpu, buffer, type, whole, &pointer, error);
    buffer->start = before;
    buffer->address += before;
    buffer->host = host;
    return status;
}

fm_status fm__vulkan_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                   fm_error *error) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    if (gpu->core->choice.import_align == 0 ||
        gpu->core->vk.GetMemoryHostPointerPropertiesEXT == NULL)
        return fm__error(error, FM_ERROR_UNSUPPORTED, device->properties.name,
                         "the driver cannot import host memory (VK_EXT_external_memory_host)");
    fm__vulkan_buffer *buffer = new_buffer(gpu, bytes);
    if (buffer == NULL)
        return fm__error_memory(error, device->properties.name, sizeof *buffer);
    fm_status status = fill_imported(gpu, buffer, host, error);
    if (status != FM_OK) {
        fm__vulkan_buffer_destroy(&buffer->base);
        return status;
    }
    *out = &buffer->base;
    return FM_OK;
}

/* ---- use ---- */

void *fm__vulkan_buffer_map(fm__buffer *buffer) {
    return ((fm__vulkan_buffer *)buffer)->host;
}

void fm__vulkan_buffer_destroy(fm__buffer *buffer) {
    fm__vulkan_buffer *b = (fm__vulkan_buffer *)buffer;
    const fm__vulkan_core *core = ((fm__vulkan *)buffer->device)->core;
    core->vk.DestroyBuffer(core->device, b->buffer, NULL);
    core->vk.FreeMemory(core->device, b->memory, NULL); /* unmaps it too */
    fm__free(b);
}

uint64_t fm__vulkan_address(const fm__vulkan *gpu, const fm__buffer *buffer) {
    return buffer != NULL && buffer->device == &gpu->device
               ? ((const fm__vulkan_buffer *)buffer)->address
               : 0;
}

uint64_t fm__vulkan_weight(const fm__vulkan *gpu, const fm__weight *weight,
                           fm__residency *residency) {
    for (uint32_t i = 0; i < weight->n_ranges; i++) {
        const fm__weight_range *range = &weight->ranges[i];
        uint64_t address = fm__vulkan_address(gpu, range->buffer);
        if (address == 0)
            continue;
        if (residency != NULL)
            *residency = range->residency;
        return address + range->offset - (uint64_t)range->panel_begin * weight->layout.stride;
    }
    return 0;
}
