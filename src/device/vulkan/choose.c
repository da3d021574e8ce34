/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/choose.c: which physical devices can serve, what they can do, and which is best.
 *
 * Owns: nothing. Never does: create a device. Called from: the loading thread.
 */
#include <string.h>

#include "device/vulkan/core.h"

/* ---- extensions ---- */

typedef struct extensions {
    VkExtensionProperties *all;
    uint32_t n;
} extensions;

static bool has(const extensions *e, const char *name) {
    for (uint32_t i = 0; i < e->n; i++)
        if (strcmp(e->all[i].extensionName, name) == 0)
            return true;
    return false;
}

static bool read_extensions(const fm__vulkan_api *vk, VkPhysicalDevice physical, extensions *e) {
    *e = (extensions){NULL, 0};
    if (vk->EnumerateDeviceExtensionProperties(physical, NULL, &e->n, NULL) != VK_SUCCESS)
        return false;
    e->all = fm__alloc_array(e->n, sizeof *e->all);
    return e->all != NULL &&
           vk->EnumerateDeviceExtensionProperties(physical, NULL, &e->n, e->all) == VK_SUCCESS;
}

/* ---- memory types ---- */

static bool is_type(const VkPhysicalDeviceMemoryProperties *memory, uint32_t type,
                    VkMemoryPropertyFlags flags) {
    return (memory->memoryTypes[type].propertyFlags & flags) == flags;
}

/* The heap that the device reads fastest: the largest that is its own. */
static uint32_t local_heap(const VkPhysicalDeviceMemoryProperties *memory) {
    uint32_t best = 0;
    uint64_t bytes = 0;
    for (uint32_t h = 0; h < memory->memoryHeapCount; h++) {
        const VkMemoryHeap *heap = &memory->memoryHeaps[h];
        if ((heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0 && heap->size > bytes) {
            best = h;
            bytes = heap->size;
        }
    }
    return best;
}

enum {
    VISIBLE = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    CACHED = VISIBLE | VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
    LOCAL = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
    /* Types that need other features, or whose writes the host does not see. */
    REFUSED = VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
              VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD |
              VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD,
};

/* The first type with all of `wanted` and none of `unwanted`, on heap `heap` (-1: any); or
   VK_MAX_MEMORY_TYPES. */
static uint32_t find_type(const VkPhysicalDeviceMemoryProperties *memory,
                          VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags unwanted, int heap) {
    for (uint32_t t = 0; t < memory->memoryTypeCount; t++)
        if (is_type(memory, t, wanted) &&
            (memory->memoryTypes[t].propertyFlags & (unwanted | REFUSED)) == 0 &&
            (heap < 0 || memory->memoryTypes[t].heapIndex == (uint32_t)heap))
            return t;
    return VK_MAX_MEMORY_TYPES;
}

static uint32_t first_of(const uint32_t *types, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (types[i] != VK_MAX_MEMORY_TYPES)
            return types[i];
    return VK_MAX_MEMORY_TYPES;
}

/* The type that device and host address alike, on the largest heap that has one: drivers split the
   memory of a chip into several heaps. */
static uint32_t find_shared_type(const VkPhysicalDeviceMemoryProperties *memory) {
    uint32_t best = VK_MAX_MEMORY_TYPES;
    uint64_t bytes = 0;
    for (uint32_t h = 0; h < memory->memoryHeapCount; h++) {
        uint32_t type = find_type(memory, LOCAL | CACHED, 0, (int)h);
        if (type == VK_MAX_MEMORY_TYPES || memory->memoryHeaps[h].size <= bytes)
            continue;
        best = type;
        bytes = memory->memoryHeaps[h].size;
    }
    return best;
}

static bool choose_memory(fm__vulkan_choice *c) {
    const VkPhysicalDeviceMemoryProperties *memory = &c->memory;
    int heap = (int)local_heap(memory);
    uint32_t shared = VK_MAX_MEMORY_TYPES;
    if (c->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU || c->software)
        shared = find_shared_type(memory);
    c->unified = shared != VK_MAX_MEMORY_TYPES;
    const uint32_t local[] = {shared, find_type(memory, LOCAL | VISIBLE, 0, heap),
                              find_type(memory, LOCAL, 0, heap), find_type(memory, 0, 0, heap)};
    const uint32_t host[] = {
        shared, find_type(memory, CACHED, LOCAL, -1), find_type(memory, CACHED, 0, -1),
        find_type(memory, VISIBLE, LOCAL, -1), find_type(memory, VISIBLE, 0, -1)};
    c->local_type = first_of(local, 4);
    c->host_type = first_of(host, 5);
    if (c->local_type == VK_MAX_MEMORY_TYPES || c->host_type == VK_MAX_MEMORY_TYPES)
        return false;
    c->local_visible = is_type(memory, c->local_type, VISIBLE);
    c->local_bytes = memory->memoryHeaps[memory->memoryTypes[c->local_type].heapIndex].size;
    return true;
}

static void read_memory(const fm__vulkan_api *vk, fm__vulkan_choice *c) {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
        .pNext = c->budget_extension ? &budget : NULL};
    vk->GetPhysicalDeviceMemoryProperties2(c->physical, &memory);
    c->memory = memory.memoryProperties;
    if (!choose_memory(c))
        snprintf(c->lacks, sizeof c->lacks, "memory that the host can address");
    else if (c->budget_extension)
        c->local_budget = budget.heapBudget[c->memory.memoryTypes[c->local_type].heapIndex];
}

/* ---- properties and features ---- */

enum { FAMILIES = 32 };

/* What a family of nothing but copies may have beside; whatever else it does (video, optical flow,
   ...) goes on in engines whose copies may be slow, or bound to them. */
static const VkQueueFlags COPIES =
    VK_QUEUE_TRANSFER_BIT | VK_QUEUE_SPARSE_BINDING_BIT | VK_QUEUE_PROTECTED_BIT;

/* The first family but `family` that copies, with one of the flags `some` (0: any) and none of
   `none`; n: there is none. */
static uint32_t find_family(const VkQueueFamilyProperties *families, uint32_t n, uint32_t family,
                            VkQueueFlags some, VkQueueFlags none) {
    const VkQueueFlags copy = /* whether they say so or not */
        VK_QUEUE_TRANSFER_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT;
    for (uint32_t i = 0; i < n; i++) {
        VkQueueFlags flags = families[i].queueFlags;
        if (i != family && families[i].queueCount > 0 && (flags & copy) != 0 &&
            (some == 0 || (flags & some) != 0) && (flags & none) == 0)
            return i;
    }
    return n;
}

bool fm__vulkan_choose_copies(const VkQueueFamilyProperties *families, uint32_t n, uint32_t family,
                              uint32_t *copy_family, uint32_t *copy_index) {
    uint32_t found = find_family(families, n, family, VK_QUEUE_TRANSFER_BIT, ~COPIES);
    *copy_family = family;
    *copy_index = 0;
    if (found == n && families[family].queueCount > 1) {
        *copy_index = 1;
        return true;
    }
    if (found == n)
        found = find_family(families, n, family, VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT, 0);
    if (found == n)
        found = find_family(families, n, family, 0, 0);
    if (found == n)
        return false;
    *copy_family = found;
    return true;
}

/* Its own queue family for compute, where there is one, does not wait for pictures. */
static bool choose_family(const fm__vulkan_api *vk, fm__vulkan_choice *c) {
    VkQueueFamilyProperties families[FAMILIES];
    uint32_t n = FAMILIES;
    bool found = false, only = false;
    vk->GetPhysicalDeviceQueueFamilyProperties(c->physical, &n, families);
    for (uint32_t i = 0; i < n && !only; i++) {
        VkQueueFlags flags = families[i].queueFlags;
        bool alone = (flags & VK_QUEUE_GRAPHICS_BIT) == 0;
        if ((flags & VK_QUEUE_COMPUTE_BIT) == 0 || families[i].queueCount == 0 || (found && !alone))
            continue;
        found = true;
        only = alone;
        c->family = i;
        c->timestamp_bits = families[i].timestampValidBits;
    }
    if (!found)
        return false;
    c->copies_apart =
        fm__vulkan_choose_copies(families, n, c->family, &c->copy_family, &c->copy_index);
    c->copy_timestamp_bits = families[c->copy_family].timestampValidBits;
    return true;
}

/* Appends a structure to the chain that begins at *end. */
static void chain(void ***end, void *structure) {
    **end = structure;
    *end = (void **)&((VkBaseOutStructure *)structure)->pNext;
    **end = NULL;
}

static void read_properties(const fm__vulkan_api *vk, fm__vulkan_choice *c) {
    VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR};
    VkPhysicalDeviceMaintenance4PropertiesKHR sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES_KHR};
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT import = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceVulkan12Properties v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
    VkPhysicalDeviceVulkan11Properties v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    void **end = &all.pNext;
    chain(&end, &v11);
    chain(&end, &v12);
    if (c->can_dot)
        chain(&end, &dot);
    if (c->properties.apiVersion >= VK_API_VERSION_1_3)
        chain(&end, &sizes);
    if (c->import_extension)
        chain(&end, &import);
    vk->GetPhysicalDeviceProperties2(c->physical, &all);
    snprintf(c->driver, sizeof c->driver, "%.30s %.32s", v12.driverName, v12.driverInfo);
    c->subgroup = v11.subgroupSize;
    c->max_allocation = v11.maxMemoryAllocationSize;
    c->max_buffer = sizes.maxBufferSize != 0 ? sizes.maxBufferSize : UINT64_MAX;
    c->import_align = (size_t)import.minImportedHostPointerAlignment;
    c->has_dot = dot.integerDotProduct4x8BitPackedSignedAccelerated != 0;
    /* Where widths may not differ, what is declared for 32 bits would be asked of the others. */
    bool alone = v12.roundingModeIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE;
    c->rounds_to_even = alone && v12.shaderRoundingModeRTEFloat32 != 0;
    c->keeps_zeros_and_nans = v12.shaderSignedZeroInfNanPreserveFloat32 != 0;
}

static void read_features(const fm__vulkan_api *vk, fm__vulkan_choice *c) {
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR};
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
    VkPhysicalDeviceVulkan12Features v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES};
    VkPhysicalDeviceFeatures2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    void **end = &all.pNext;
    chain(&end, &v11);
    chain(&end, &v12);
    if (c->dot_extension || c->properties.apiVersion >= VK_API_VERSION_1_3)
        chain(&end, &dot);
    if (c->matrix_extension)
        chain(&end, &matrix);
    vk->GetPhysicalDeviceFeatures2(c->physical, &all);
    c->has_matrix = matrix.cooperativeMatrix != 0 && v12.vulkanMemoryModel != 0;
    c->can_dot = dot.shaderIntegerDotProduct != 0;
    c->has_f16 = v12.shaderFloat16 != 0;
    c->can_reset_queries = v12.hostQueryReset != 0;
    const struct {
        VkBool32 there;
        const char *name;
    } needed[] = {
        {v12.timelineSemaphore, "timeline semaphores"},
        {v12.bufferDeviceAddress, "buffer device addresses"},
        {v12.storageBuffer8BitAccess, "8-bit storage"},
        {v11.storageBuffer16BitAccess, "16-bit storage"},
        {v12.shaderInt8, "8-bit integers"},
        {all.features.shaderInt16, "16-bit integers"},
        {v12.scalarBlockLayout, "scalar block layout"},
    };
    for (size_t i = 0, n = 0; i < sizeof needed / sizeof *needed; i++)
        if (!needed[i].there)
            n += (size_t)snprintf(c->lacks + n, sizeof c->lacks - n, "%s%s", n > 0 ? ", " : "",
                                  needed[i].name);
}

/* linear_matrix.glsl: int8 x int8 -> int32, 16 x 16 x 32 in a subgroup of 32 lanes. */
static bool has_matrix_shape(const fm__vulkan_api *vk, const fm__vulkan_choice *c) {
    VkCooperativeMatrixPropertiesKHR shapes[128];
    uint32_t n = 128;
    for (uint32_t i = 0; i < n; i++)
        shapes[i] = (VkCooperativeMatrixPropertiesKHR){
            .sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
    if (!c->has_matrix || c->subgroup != 32 ||
        vk->GetPhysicalDeviceCooperativeMatrixPropertiesKHR == NULL ||
        vk->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(c->physical, &n, shapes) < VK_SUCCESS)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const VkCooperativeMatrixPropertiesKHR *s = &shapes[i];
        if (s->MSize == 16 && s->NSize == 16 && s->KSize == FM__CHUNK &&
            s->AType == VK_COMPONENT_TYPE_SINT8_KHR && s->BType == VK_COMPONENT_TYPE_SINT8_KHR &&
            s->CType == VK_COMPONENT_TYPE_SINT32_KHR &&
            s->ResultType == VK_COMPONENT_TYPE_SINT32_KHR && !s->saturatingAccumulation &&
            s->scope == VK_SCOPE_SUBGROUP_KHR)
            return true;
    }
    return false;
}

static fm_status look_at(const fm__vulkan_api *vk, bool allow_software, fm__vulkan_choice *c,
                         fm_error *error) {
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vk->GetPhysicalDeviceProperties2(c->physical, &all);
    c->properties = all.properties;
    c->software = c->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    if (c->properties.apiVersion < VK_API_VERSION_1_2) {
        snprintf(c->lacks, sizeof c->lacks, "Vulkan 1.2 (its driver has %u.%u)",
                 VK_API_VERSION_MAJOR(c->properties.apiVersion),
                 VK_API_VERSION_MINOR(c->properties.apiVersion));
        return FM_OK;
    }
    extensions e;
    if (!read_extensions(vk, c->physical, &e)) {
        fm__free(e.all);
        return fm__error_memory(error, "vulkan", e.n * sizeof *e.all);
    }
    c->dot_extension = has(&e, "VK_KHR_shader_integer_dot_product") &&
                       c->properties.apiVersion < VK_API_VERSION_1_3;
    c->import_extension = has(&e, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    c->budget_extension = has(&e, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    c->matrix_extension = has(&e, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
    c->clock_extension = has(&e, VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME);
    c->subset_extension = has(&e, "VK_KHR_portability_subset");
    fm__free(e.all);
    read_features(vk, c);
    read_properties(vk, c);
    c->has_matrix = has_matrix_shape(vk, c);
    if (c->lacks[0] == 0)
        read_memory(vk, c);
    if (c->lacks[0] == 0 && !choose_family(vk, c))
        snprintf(c->lacks, sizeof c->lacks, "a compute queue");
    if (c->lacks[0] == 0 && c->software && !allow_software)
        snprintf(c->lacks, sizeof c->lacks, "hardware: the processor emulates it");
    return FM_OK;
}

/* ---- order ---- */

static int rank(const fm__vulkan_choice *c) {
    static const int by_type[] = {
        [VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU] = 0, [VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU] = 1,
        [VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU] = 2,  [VK_PHYSICAL_DEVICE_TYPE_OTHER] = 3,
        [VK_PHYSICAL_DEVICE_TYPE_CPU] = 4,
    };
    unsigned type = (unsigned)c->properties.deviceType;
    return (c->lacks[0] != 0 ? 8 : 0) + (type < 5 ? by_type[type] : 3);
}

/* Insertion keeps the driver's order among equals. */
static void sort(fm__vulkan_choice *choices, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        fm__vulkan_choice moved = choices[i];
        uint32_t j = i;
        for (; j > 0 && rank(&choices[j - 1]) > rank(&moved); j--)
            choices[j] = choices[j - 1];
        choices[j] = moved;
    }
}

fm_status fm__vulkan_choose(const fm__vulkan_api *vk, bool allow_software,
                            fm__vulkan_choice **choices, uint32_t *n_choice, uint32_t *n_serving,
                            fm_error *error) {
    VkPhysicalDevice physical[64];
    char room[32];
    uint32_t n = 64;
    *choices = NULL;
    *n_choice = *n_serving = 0;
    VkResult result = vk->EnumeratePhysicalDevices(vk->instance, &n, physical);
    if (result < VK_SUCCESS)
        return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan",
                         "no Vulkan driver could list its devices (%s)",
                         fm__vulkan_result(result, room));
    fm__vulkan_choice *all = fm__alloc_array(n, sizeof *all);
    if (all == NULL)
        return fm__error_memory(error, "vulkan", n * sizeof *all);
    for (uint32_t i = 0; i < n; i++) {
        all[i].physical = physical[i];
        fm_status status = look_at(vk, allow_software, &all[i], error);
        if (status != FM_OK) {
            fm__free(all);
            return status;
        }
        *n_serving += all[i].lacks[0] == 0;
    }
    sort(all, n);
    *choices = all;
    *n_choice = n;
    return FM_OK;
}
