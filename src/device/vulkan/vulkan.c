/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/vulkan.c: the device: its creation, what it says of itself, its vtable.
 *
 * Owns: the logical device. Never does: choose in silence: who asks for a device that is not there
 * is told what each one lacks. Called from: the loading thread.
 */
#include <string.h>

#include "device/vulkan/core.h"

/* ---- ops ---- */

static bool op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                        const char **reason) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    return fm__is_product(op->kind) ? fm__vulkan_supports_linear(gpu, tape, op, reason)
                                    : fm__vulkan_supports_rows(gpu, tape, op, reason);
}

static const char *op_kernel(fm__device *device, const fm__tape *tape, const fm__op *op) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    return fm__is_product(op->kind) ? fm__vulkan_kernel_linear(gpu, tape, op)
                                    : fm__vulkan_kernel_rows(gpu, tape, op);
}

/* ---- what it says of itself ---- */

static void describe(fm__vulkan *gpu, uint32_t index) {
    const fm__vulkan_choice *c = &gpu->core->choice;
    fm__device_properties *p = &gpu->device.properties;
    snprintf(p->name, sizeof p->name, "vulkan:%u", index);
    snprintf(p->kind, sizeof p->kind, "gpu");
    snprintf(p->description, sizeof p->description, "%.127s", c->properties.deviceName);
    snprintf(p->driver, sizeof p->driver, "%s", c->driver);
    gpu->has_matrix =
        c->has_matrix && fm__vulkan_shaders[FM__VULKAN_SHADER_linear_q32_matrix].n > 0;
    snprintf(p->features, sizeof p->features, "subgroup %u, %s%s%s%s%s%s", c->subgroup,
             c->has_dot   ? "int8 dot"
             : c->can_dot ? "int8 dot emulated"
                          : "no int8 dot",
             gpu->has_matrix ? ", int8 matrices"
             : c->has_matrix ? ", int8 matrices not in this build"
                             : "",
             c->has_f16 ? ", f16" : "", c->rounds_to_even ? ", float controls" : "",
             c->import_extension ? ", imports host memory" : "",
             gpu->core->hosted ? ", works on host memory" : "");
    p->hosted = gpu->core->hosted;
    p->unified = !gpu->core->discrete || p->hosted;
    p->software = c->software;
    p->memory_bytes =
        c->local_budget != 0 && c->local_budget < c->local_bytes ? c->local_budget : c->local_bytes;
    const VkPhysicalDeviceLimits *limits = &c->properties.limits;
    gpu->subgroup = c->subgroup;
    gpu->shared_bytes = limits->maxComputeSharedMemorySize;
    gpu->max_invocations = limits->maxComputeWorkGroupInvocations;
    gpu->has_dot = c->has_dot;
    gpu->can_dot = c->can_dot;
    gpu->has_f16 = c->has_f16;
    gpu->rounds_to_even = c->rounds_to_even;
}

/* The median of empty submissions, from the call until the host sees their end. */
static fm_status measure_dispatch(fm__vulkan *gpu, fm_error *error) {
    enum { N = 15 };
    uint64_t ns[N];
    for (int i = 0; i < N; i++) {
        uint64_t ticket, begin = fm__now_ns();
        fm_status status = fm__vulkan_submit_own(gpu, NULL, &ticket, error);
        if (status != FM_OK)
            return status;
        while (!fm__vulkan_ended(gpu, ticket))
            ;
        uint64_t taken = fm__now_ns() - begin;
        int j = i;
        for (; j > 0 && ns[j - 1] > taken; j--)
            ns[j] = ns[j - 1];
        ns[j] = taken;
    }
    gpu->device.properties.dispatch_ns = ns[N / 2];
    return FM_OK;
}

/* ---- creation ---- */

static fm_status create_device(fm__vulkan *gpu, fm_error *error) {
    const fm__vulkan_choice *c = &gpu->core->choice;
    const float priorities[2] = {1.0f, 1.0f};
    bool two_families = c->copy_family != c->family;
    const VkDeviceQueueCreateInfo queues[2] = {
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = c->family,
         .queueCount = c->copies_apart && !two_families ? 2 : 1,
         .pQueuePriorities = priorities},
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = c->copy_family,
         .queueCount = 1,
         .pQueuePriorities = priorities},
    };
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
        .shaderIntegerDotProduct = VK_TRUE};
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
        .pNext = c->can_dot ? &dot : NULL,
        .cooperativeMatrix = VK_TRUE};
    VkPhysicalDeviceVulkan12Features v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .pNext = c->has_matrix ? &matrix : matrix.pNext,
        .timelineSemaphore = VK_TRUE,
        .bufferDeviceAddress = VK_TRUE,
        .storageBuffer8BitAccess = VK_TRUE,
        .shaderInt8 = VK_TRUE,
        .shaderFloat16 = c->has_f16,
        .vulkanMemoryModel = c->has_matrix,
        .hostQueryReset = c->can_reset_queries,
        .scalarBlockLayout = VK_TRUE};
    VkPhysicalDeviceVulkan11Features v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .pNext = &v12,
        .storageBuffer16BitAccess = VK_TRUE};
    const VkPhysicalDeviceFeatures2 features = {.sType =
                                                    VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                                .pNext = &v11,
                                                .features = {.shaderInt16 = VK_TRUE}};
    const char *extensions[6];
    uint32_t n = 0;
    if (c->dot_extension)
        extensions[n++] = "VK_KHR_shader_integer_dot_product";
    if (c->has_matrix)
        extensions[n++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
    if (c->import_extension)
        extensions[n++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
    if (c->budget_extension)
        extensions[n++] = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    if (c->clock_extension)
        extensions[n++] = VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME;
    if (c->subset_extension)
        extensions[n++] = "VK_KHR_portability_subset";
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &features,
                                     .queueCreateInfoCount = two_families ? 2 : 1,
                                     .pQueueCreateInfos = queues,
                                     .enabledExtensionCount = n,
                                     .ppEnabledExtensionNames = extensions};
    char room[32];
    VkResult result = gpu->core->vk.CreateDevice(c->physical, &info, NULL, &gpu->core->device);
    if (result != VK_SUCCESS) {
        gpu->core->device = NULL;
        return fm__error(error, FM_ERROR_UNSUPPORTED, gpu->device.properties.name,
                         "the driver of %s does not start it (%s)", c->properties.deviceName,
                         fm__vulkan_result(result, room));
    }
    return fm__vulkan_load_device(&gpu->core->vk, gpu->core->device, error);
}

static fm_status create_pool(fm__vulkan *gpu, fm_error *error) {
    const VkCommandPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = gpu->core->choice.family};
    if (pthread_mutex_init(&gpu->core->record_lock, NULL) != 0)
        return fm__error(error, FM_ERROR_DEVICE, gpu->device.properties.name,
                         "a lock could not be made");
    VkResult result =
        gpu->core->vk.CreateCommandPool(gpu->core->device, &info, NULL, &gpu->core->pool);
    if (result == VK_SUCCESS)
        return FM_OK;
    pthread_mutex_destroy(&gpu->core->record_lock);
    return fm__vulkan_failed(gpu, result, "vkCreateCommandPool", error);
}

static void release_block(fm__vulkan_block *block) {
    if (block == NULL)
        return;
    fm__vulkan_buffer_destroy(&block->buffer->base);
    fm__free(block);
}

static void destroy_pool(fm__vulkan *gpu) {
    release_block(gpu->core->temporary);
    gpu->core->vk.DestroyCommandPool(gpu->core->device, gpu->core->pool, NULL);
    pthread_mutex_destroy(&gpu->core->record_lock);
}

static fm_status init_parts(fm__vulkan *gpu, const fm__vulkan_options *options, fm_error *error) {
    fm_status status = fm__vulkan_queue_init(gpu, options, error);
    if (status != FM_OK)
        return status;
    status = fm__vulkan_ring_init(gpu, options, error);
    if (status != FM_OK)
        goto no_ring;
    status = fm__vulkan_clock_init(gpu, &gpu->core->choice, error);
    if (status != FM_OK)
        goto no_clock;
    status = fm__vulkan_transfer_init(gpu, error);
    if (status != FM_OK)
        goto no_transfer;
    status = fm__vulkan_pipelines_init(gpu, options->cache_dir, error);
    if (status != FM_OK)
        goto no_pipelines;
    status = create_pool(gpu, error);
    if (status != FM_OK)
        goto no_pool;
    status = measure_dispatch(gpu, error);
    if (status == FM_OK)
        return FM_OK;
    destroy_pool(gpu);
no_pool:
    fm__vulkan_pipelines_finish(gpu);
no_pipelines:
    fm__vulkan_transfer_finish(gpu);
no_transfer:
    fm__vulkan_clock_finish(gpu);
no_clock:
    fm__vulkan_ring_finish(gpu);
no_ring:
    fm__vulkan_queue_finish(gpu);
    return status;
}

static void destroy(fm__device *device) {
    fm__vulkan *gpu = (fm__vulkan *)device;
    gpu->core->vk.DeviceWaitIdle(gpu->core->device);
    destroy_pool(gpu);
    fm__vulkan_pipelines_finish(gpu);
    fm__vulkan_transfer_finish(gpu);
    fm__vulkan_clock_finish(gpu);
    fm__vulkan_ring_finish(gpu);
    fm__vulkan_queue_finish(gpu);
    gpu->core->vk.DestroyDevice(gpu->core->device, NULL);
    fm__vulkan_close(&gpu->core->vk);
    fm__free(gpu->core);
    fm__free(gpu);
}

static const fm__device_vtable VTABLE = {
    .backend = "vulkan",
    .destroy = destroy,
    .buffer_create = fm__vulkan_buffer_create,
    .buffer_import = fm__vulkan_buffer_import,
    .buffer_map = fm__vulkan_buffer_map,
    .buffer_destroy = fm__vulkan_buffer_destroy,
    .buffer_write = fm__vulkan_buffer_write,
    .buffer_read = fm__vulkan_buffer_read,
    .op_supports = op_supports,
    .op_kernel = op_kernel,
    .record = fm__vulkan_record,
    .recording_destroy = fm__vulkan_recording_destroy,
    .submit = fm__vulkan_submit,
    .recording_span = fm__vulkan_recording_span,
    .recording_work = fm__vulkan_recording_work,
    .scratch_bytes = fm__vulkan_scratch_bytes,
    .scratch_reserve = fm__vulkan_scratch_reserve,
    .held = fm__vulkan_held,
    .run_finish = fm__vulkan_run_finish,
    .is_lost = fm__vulkan_is_lost,
    .timeline_attach = fm__vulkan_timeline_attach,
    .timeline_detach = fm__vulkan_timeline_detach,
    .timeline_value = fm__vulkan_timeline_value,
    .timeline_wait = fm__vulkan_timeline_wait,
    .timeline_signal = fm__vulkan_timeline_signal,
};

/* Names the devices that can serve, and every other with what it lacks. */
static fm_status none_serves(const fm__vulkan_choice *choices, uint32_t n, uint32_t n_serving,
                             fm_error *error) {
    char list[300] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < n && used < sizeof list; i++)
        if (choices[i].lacks[0] != 0)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s lacks %s",
                                     used > 0 ? "; " : "", choices[i].properties.deviceName,
                                     choices[i].lacks);
    if (n == 0)
        return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan", "no Vulkan driver offers a device");
    char serving[48] = "no device can serve";
    if (n_serving == 1)
        snprintf(serving, sizeof serving, "only vulkan:0 can serve");
    else if (n_serving > 1)
        snprintf(serving, sizeof serving, "only vulkan:0 to vulkan:%u can serve", n_serving - 1);
    return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan", "%s%s%s", serving,
                     used == 0       ? ""
                     : n_serving > 0 ? "; "
                                     : ": ",
                     list);
}

/* Fills gpu->core up to the logical device. */
static fm_status open_device(fm__vulkan *gpu, const fm__vulkan_options *options, fm_error *error) {
    fm__vulkan_core *core = gpu->core;
    fm__vulkan_choice *choices;
    uint32_t n, n_serving;
    fm_status status =
        fm__vulkan_choose(&core->vk, options->allow_software, &choices, &n, &n_serving, error);
    if (status != FM_OK)
        return status;
    if (options->index < n_serving) {
        core->choice = choices[options->index];
        core->discrete = !core->choice.unified || options->force_discrete;
        core->hosted = core->discrete && options->hosted;
        if (options->one_queue) {
            core->choice.copies_apart = false;
            core->choice.copy_family = core->choice.family;
            core->choice.copy_index = 0;
            core->choice.copy_timestamp_bits = core->choice.timestamp_bits;
        }
        describe(gpu, options->index);
        status = create_device(gpu, error);
    } else {
        status = none_serves(choices, n, n_serving, error);
    }
    fm__free(choices);
    return status;
}

fm_status fm__device_vulkan_create(fm__device **out, const fm__vulkan_options *options,
                                   fm_error *error) {
    const fm__vulkan_options defaults = {.index = 0};
    const fm__vulkan_options *o = options != NULL ? options : &defaults;
    fm__vulkan *gpu = fm__alloc_zero(sizeof *gpu);
    fm__vulkan_core *core = fm__alloc_zero(sizeof *core);
    fm_status status;
    *out = NULL;
    if (gpu == NULL || core == NULL) {
        status = fm__error_memory(error, "vulkan", sizeof *gpu + sizeof *core);
        goto no_memory;
    }
    gpu->core = core;
    gpu->device.vtable = &VTABLE;
    status = fm__vulkan_open(&core->vk, error);
    if (status != FM_OK)
        goto no_memory;
    status = open_device(gpu, o, error);
    if (status == FM_OK)
        status = init_parts(gpu, o, error);
    if (status == FM_OK) {
        *out = &gpu->device;
        return FM_OK;
    }
    if (core->device != NULL && core->vk.DestroyDevice != NULL)
        core->vk.DestroyDevice(core->device, NULL);
    fm__vulkan_close(&core->vk);
no_memory:
    fm__free(core);
    fm__free(gpu);
    return status;
}

uint32_t fm__device_vulkan_count(bool allow_software) {
    fm__vulkan_api vk;
    fm__vulkan_choice *choices = NULL;
    uint32_t n, n_serving = 0;
    if (fm__vulkan_open(&vk, NULL) != FM_OK)
        return 0;
    fm__vulkan_choose(&vk, allow_software, &choices, &n, &n_serving, NULL);
    fm__free(choices);
    fm__vulkan_close(&vk);
    return n_serving;
}
