/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/pipelines.c: kernels: shaders with their constants, compiled when first asked for
 * and kept; the driver's cache of them in a file.
 *
 * Owns: pipelines, the layout that all share, the cache file. Never does: trust the file: its
 * header names device and driver, and the driver ignores what is not its own. Called from: the
 * loading thread.
 */
#include <stdlib.h>
#include <string.h>

#include "device/vulkan/core.h"

enum { CACHE_LIMIT = 256 << 20 }; /* bytes that are read of a cache file */

/* ---- float modes: GLSL has no words for them, so they are put into the module ---- */

enum {
    OP_ENTRY_POINT = 15,
    OP_EXECUTION_MODE = 16,
    OP_CAPABILITY = 17,
    MODE_KEEPS_ZEROS_AND_NANS = 4461,
    MODE_ROUNDS_TO_EVEN = 4462,
    CAPABILITY_KEEPS_ZEROS_AND_NANS = 4466,
    CAPABILITY_ROUNDS_TO_EVEN = 4467,
    HEADER = 5, /* words before the first instruction */
};

/* The index behind the last entry point, and its function's id; 0: no module with one. */
static size_t entry_point_end(fm__vulkan_words in, uint32_t *function) {
    size_t end = 0;
    for (size_t at = HEADER, size; at < in.n; at += size) {
        size = in.words[at] >> 16;
        if (size == 0 || size > in.n - at)
            return 0;
        if ((in.words[at] & 0xFFFF) != OP_ENTRY_POINT)
            continue;
        if (end != 0 || size < 4)
            return 0;
        *function = in.words[at + 2];
        end = at + size;
    }
    return end;
}

static size_t put(uint32_t *out, size_t n, uint32_t op, const uint32_t *operands, uint32_t count) {
    out[n] = (count + 1) << 16 | op;
    memcpy(out + n + 1, operands, count * sizeof *operands);
    return n + 1 + count;
}

size_t fm__vulkan_declare_floats(fm__vulkan_words in, bool round_to_even, bool keep_zeros_and_nans,
                                 uint32_t *out) {
    uint32_t function = 0;
    size_t entry = entry_point_end(in, &function), n = HEADER;
    if (entry == 0)
        return 0;
    memcpy(out, in.words, HEADER * sizeof *out);
    /* Capabilities come first in a module, in any order. */
    if (round_to_even)
        n = put(out, n, OP_CAPABILITY, (uint32_t[]){CAPABILITY_ROUNDS_TO_EVEN}, 1);
    if (keep_zeros_and_nans)
        n = put(out, n, OP_CAPABILITY, (uint32_t[]){CAPABILITY_KEEPS_ZEROS_AND_NANS}, 1);
    memcpy(out + n, in.words + HEADER, (entry - HEADER) * sizeof *out);
    n += entry - HEADER;
    /* Execution modes stand behind the entry points; 32: of fp32. */
    if (round_to_even)
        n = put(out, n, OP_EXECUTION_MODE, (uint32_t[]){function, MODE_ROUNDS_TO_EVEN, 32}, 3);
    if (keep_zeros_and_nans)
        n = put(out, n, OP_EXECUTION_MODE, (uint32_t[]){function, MODE_KEEPS_ZEROS_AND_NANS, 32},
                3);
    memcpy(out + n, in.words + entry, (in.n - entry) * sizeof *out);
    return n + in.n - entry;
}

/* ---- kernels ---- */

static const char *const SHADER_NAMES[FM__VULKAN_SHADER_COUNT] = {
#define SHADER_NAME(name) #name,
    FM__VULKAN_SHADER_LIST(SHADER_NAME)
#undef SHADER_NAME
};

static fm_status create_module(fm__vulkan *gpu, fm__vulkan_shader shader, VkShaderModule *out,
                               fm_error *error) {
    fm__vulkan_words source = fm__vulkan_shaders[shader];
    const fm__vulkan_choice *choice = &gpu->core->choice;
    uint32_t *words = fm__alloc((source.n + FM__VULKAN_ADDED_WORDS) * sizeof *words);
    if (words == NULL)
        return fm__error_memory(error, SHADER_NAMES[shader], source.n * sizeof *words);
    size_t n = fm__vulkan_declare_floats(source, choice->rounds_to_even,
                                         choice->keeps_zeros_and_nans, words);
    const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = n * sizeof *words,
                                           .pCode = words};
    fm_status status = FM_OK;
    if (n == 0) {
        status = fm__error(error, FM_ERROR_UNSUPPORTED, SHADER_NAMES[shader],
                           "is not part of this build");
    } else {
        VkResult result = gpu->core->vk.CreateShaderModule(gpu->core->device, &info, NULL, out);
        if (result != VK_SUCCESS)
            status = fm__vulkan_failed(gpu, result, "vkCreateShaderModule", error);
    }
    fm__free(words);
    return status;
}

static fm_status compile(fm__vulkan *gpu, const fm__vulkan_variant *variant, VkPipeline *out,
                         fm_error *error) {
    const fm__vulkan_api *vk = &gpu->core->vk;
    VkShaderModule module;
    VkSpecializationMapEntry entries[FM__VULKAN_CONSTANTS];
    fm_status status = create_module(gpu, variant->shader, &module, error);
    if (status != FM_OK)
        return status;
    for (uint32_t i = 0; i < variant->n; i++)
        entries[i] = (VkSpecializationMapEntry){.constantID = i, .offset = 4 * i, .size = 4};
    const VkSpecializationInfo constants = {.mapEntryCount = variant->n,
                                            .pMapEntries = entries,
                                            .dataSize = 4 * (size_t)variant->n,
                                            .pData = variant->values};
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = gpu->core->pipelines.layout,
        .basePipelineIndex = -1};
    VkResult result = vk->CreateComputePipelines(gpu->core->device, gpu->core->pipelines.cache, 1,
                                                 &info, NULL, out);
    vk->DestroyShaderModule(gpu->core->device, module, NULL);
    return result == VK_SUCCESS ? FM_OK
                                : fm__vulkan_failed(gpu, result, "vkCreateComputePipelines", error);
}

static void name_kernel(fm__vulkan_kernel *kernel, const char *name) {
    size_t room = sizeof kernel->name, n = 0;
    if (name != NULL) {
        snprintf(kernel->name, room, "%s", name);
        return;
    }
    n += (size_t)snprintf(kernel->name, room, "%s[", SHADER_NAMES[kernel->variant.shader]);
    for (uint32_t i = 0; i < kernel->variant.n && n < room; i++)
        n += (size_t)snprintf(kernel->name + n, room - n, "%s%u", i > 0 ? "," : "",
                              kernel->variant.values[i]);
    if (n < room)
        snprintf(kernel->name + n, room - n, "]");
}

static fm__vulkan_kernel *find(const fm__vulkan_pipelines *pipelines,
                               const fm__vulkan_variant *variant) {
    for (uint32_t i = 0; i < pipelines->n_kernel; i++) {
        const fm__vulkan_variant *v = &pipelines->kernels[i]->variant;
        if (v->shader == variant->shader && v->n == variant->n &&
            memcmp(v->values, variant->values, v->n * sizeof *v->values) == 0)
            return pipelines->kernels[i];
    }
    return NULL;
}

static bool make_room(fm__vulkan_pipelines *pipelines) {
    if (pipelines->n_kernel < pipelines->capacity)
        return true;
    uint32_t capacity = pipelines->capacity == 0 ? 64 : 2 * pipelines->capacity;
    void *grown = fm__realloc(pipelines->kernels, capacity * sizeof *pipelines->kernels);
    if (grown == NULL)
        return false;
    pipelines->kernels = grown;
    pipelines->capacity = capacity;
    return true;
}

static fm_status add(fm__vulkan *gpu, const fm__vulkan_variant *variant, const char *name,
                     fm__vulkan_kernel **out, fm_error *error) {
    fm__vulkan_pipelines *pipelines = &gpu->core->pipelines;
    fm__vulkan_kernel *kernel = fm__alloc_zero(sizeof *kernel);
    if (kernel == NULL || !make_room(pipelines)) {
        fm__free(kernel);
        return fm__error_memory(error, gpu->device.properties.name, sizeof *kernel);
    }
    kernel->variant = *variant;
    name_kernel(kernel, name);
    fm_status status = compile(gpu, variant, &kernel->pipeline, error);
    if (status != FM_OK) {
        fm__error_within(error, status, kernel->name);
        fm__free(kernel);
        return status;
    }
    pipelines->kernels[pipelines->n_kernel++] = kernel;
    pipelines->grown = true;
    *out = kernel;
    return FM_OK;
}

fm_status fm__vulkan_kernel_get(fm__vulkan *gpu, const fm__vulkan_variant *variant,
                                const char *name, const fm__vulkan_kernel **out, fm_error *error) {
    fm__vulkan_pipelines *pipelines = &gpu->core->pipelines;
    fm_status status = FM_OK;
    pthread_mutex_lock(&pipelines->lock);
    fm__vulkan_kernel *kernel = find(pipelines, variant);
    if (kernel == NULL)
        status = add(gpu, variant, name, &kernel, error);
    pthread_mutex_unlock(&pipelines->lock);
    if (status == FM_OK)
        *out = kernel;
    return status;
}

void fm__vulkan_kernel_exclude(fm__vulkan *gpu, const fm__vulkan_kernel *kernel) {
    fm__vulkan_pipelines *pipelines = &gpu->core->pipelines;
    pthread_mutex_lock(&pipelines->lock);
    find(pipelines, &kernel->variant)->excluded = true;
    pthread_mutex_unlock(&pipelines->lock);
}

/* ---- the cache file ---- */

/* One file a device and driver: "vulkan-0123....bin". */
static void choose_path(fm__vulkan *gpu, const char *cache_dir) {
    const uint8_t *id = gpu->core->choice.properties.pipelineCacheUUID;
    char folder[448], name[64] = "vulkan-";
    for (size_t i = 0; i < VK_UUID_SIZE; i++)
        snprintf(name + strlen(name), sizeof name - strlen(name), "%02x", id[i]);
    strcat(name, ".bin");
    char *path = gpu->core->pipelines.path;
    if (!fm__cache_folder(cache_dir, folder, sizeof folder) ||
        !fm__path_join(folder, name, path, sizeof gpu->core->pipelines.path))
        path[0] = 0;
}

/* Its header is Vulkan's: length, version, vendor, device, UUID. The driver checks the same, but
   not every one well. */
static bool is_ours(const fm__vulkan *gpu, const char *data, size_t bytes) {
    const VkPhysicalDeviceProperties *p = &gpu->core->choice.properties;
    uint32_t header[4];
    if (bytes < sizeof header + VK_UUID_SIZE)
        return false;
    memcpy(header, data, sizeof header);
    return header[0] >= sizeof header + VK_UUID_SIZE && header[0] <= bytes &&
           header[1] == VK_PIPELINE_CACHE_HEADER_VERSION_ONE && header[2] == p->vendorID &&
           header[3] == p->deviceID &&
           memcmp(data + sizeof header, p->pipelineCacheUUID, VK_UUID_SIZE) == 0;
}

static void read_cache(const fm__vulkan *gpu, char **data, size_t *bytes) {
    const char *path = gpu->core->pipelines.path;
    *data = NULL;
    *bytes = 0;
    if (path[0] == 0 || !fm__path_exists(path))
        return;
    fm_error why = {0};
    if (fm__file_read(path, CACHE_LIMIT, data, bytes, &why) != FM_OK) {
        fm__log(FM_LOG_WARNING, "%s: %s; shaders are compiled anew", path, why.message);
        *data = NULL;
        *bytes = 0;
    } else if (!is_ours(gpu, *data, *bytes)) {
        fm__log(FM_LOG_WARNING, "%s is damaged or of another driver; shaders are compiled anew",
                path);
        fm__free(*data);
        *data = NULL;
        *bytes = 0;
    }
}

static void write_cache(fm__vulkan *gpu) {
    fm__vulkan_pipelines *pipelines = &gpu->core->pipelines;
    const fm__vulkan_api *vk = &gpu->core->vk;
    size_t bytes = 0;
    if (pipelines->path[0] == 0 || !pipelines->grown || fm__vulkan_is_lost(&gpu->device) ||
        vk->GetPipelineCacheData(gpu->core->device, pipelines->cache, &bytes, NULL) != VK_SUCCESS)
        return;
    void *data = fm__alloc(bytes);
    fm__writer *writer = NULL;
    fm_error why = {.message = "out of memory"};
    bool done =
        data != NULL &&
        vk->GetPipelineCacheData(gpu->core->device, pipelines->cache, &bytes, data) == VK_SUCCESS &&
        fm__writer_open(&writer, pipelines->path, &why) == FM_OK &&
        fm__writer_write(writer, data, bytes, &why) == FM_OK &&
        fm__writer_commit(&writer, &why) == FM_OK;
    if (!done)
        fm__log(FM_LOG_WARNING, "%s could not be written: %s", pipelines->path, why.message);
    fm__writer_abort(&writer);
    fm__free(data);
}

/* ---- creation ---- */

static fm_status create_cache(fm__vulkan *gpu, const char *cache_dir, fm_error *error) {
    char *data;
    size_t bytes;
    choose_path(gpu, cache_dir);
    read_cache(gpu, &data, &bytes);
    const VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                            .initialDataSize = bytes,
                                            .pInitialData = data};
    VkResult result = gpu->core->vk.CreatePipelineCache(gpu->core->device, &info, NULL,
                                                        &gpu->core->pipelines.cache);
    fm__free(data);
    return result == VK_SUCCESS ? FM_OK
                                : fm__vulkan_failed(gpu, result, "vkCreatePipelineCache", error);
}

fm_status fm__vulkan_pipelines_init(fm__vulkan *gpu, const char *cache_dir, fm_error *error) {
    fm__vulkan_pipelines *pipelines = &gpu->core->pipelines;
    const fm__vulkan_api *vk = &gpu->core->vk;
    const VkPushConstantRange push = {VK_SHADER_STAGE_COMPUTE_BIT, 0, FM__VULKAN_PUSH_BYTES};
    const VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                             .pushConstantRangeCount = 1,
                                             .pPushConstantRanges = &push};
    if (pthread_mutex_init(&pipelines->lock, NULL) != 0)
        return fm__error(error, FM_ERROR_DEVICE, gpu->device.properties.name,
                         "a lock could not be made");
    VkResult result = vk->CreatePipelineLayout(gpu->core->device, &info, NULL, &pipelines->layout);
    fm_status status = result == VK_SUCCESS
                           ? create_cache(gpu, cache_dir, error)
                           : fm__vulkan_failed(gpu, result, "vkCreatePipelineLayout", error);
    if (status != FM_OK) {
        vk->DestroyPipelineLayout(gpu->core->device, pipelines->layout, NULL);
        pthread_mutex_destroy(&pipelines->lock);
    }
    return status;
}

void fm__vulkan_pipelines_finish(fm__vulkan *gpu) {
    fm__vulkan_pipelines *pipelines = &gpu->core->pipelines;
    const fm__vulkan_api *vk = &gpu->core->vk;
    write_cache(gpu);
    for (uint32_t i = 0; i < pipelines->n_kernel; i++) {
        vk->DestroyPipeline(gpu->core->device, pipelines->kernels[i]->pipeline, NULL);
        fm__free(pipelines->kernels[i]);
    }
    fm__free(pipelines->kernels);
    vk->DestroyPipelineCache(gpu->core->device, pipelines->cache, NULL);
    vk->DestroyPipelineLayout(gpu->core->device, pipelines->layout, NULL);
    pthread_mutex_destroy(&pipelines->lock);
}
