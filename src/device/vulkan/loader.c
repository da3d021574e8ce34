/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/loader.c: opens the system's Vulkan loader and fetches its functions.
 *
 * Owns: the library and the instance of one device. Never does: link against the loader, read
 * VK_* variables (they are the loader's business), or print. Called from: the loading thread.
 */
#include <dlfcn.h>
#include <string.h>

#include "device/vulkan/core.h"

#ifndef VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME
#define VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME "VK_KHR_portability_enumeration"
#endif
/* The bit of the flag is written out: older headers do not name it. */
enum { ENUMERATE_PORTABILITY = 1 };

const char *fm__vulkan_result(VkResult result, char room[32]) {
#define CASE(name)                                                                                 \
    case name:                                                                                     \
        return #name
    switch (result) {
        CASE(VK_ERROR_OUT_OF_HOST_MEMORY);
        CASE(VK_ERROR_OUT_OF_DEVICE_MEMORY);
        CASE(VK_ERROR_INITIALIZATION_FAILED);
        CASE(VK_ERROR_DEVICE_LOST);
        CASE(VK_ERROR_MEMORY_MAP_FAILED);
        CASE(VK_ERROR_LAYER_NOT_PRESENT);
        CASE(VK_ERROR_EXTENSION_NOT_PRESENT);
        CASE(VK_ERROR_FEATURE_NOT_PRESENT);
        CASE(VK_ERROR_INCOMPATIBLE_DRIVER);
        CASE(VK_ERROR_TOO_MANY_OBJECTS);
        CASE(VK_ERROR_INVALID_EXTERNAL_HANDLE);
        CASE(VK_ERROR_UNKNOWN);
    default:
        snprintf(room, 32, "VkResult %d", (int)result);
        return room;
    }
#undef CASE
}

static void *open_library(void) {
#ifdef __APPLE__
    static const char *const names[] = {"libvulkan.1.dylib", "libvulkan.dylib",
                                        "/usr/local/lib/libvulkan.dylib",
                                        "/opt/homebrew/lib/libvulkan.dylib", "libMoltenVK.dylib"};
#else
    static const char *const names[] = {"libvulkan.so.1", "libvulkan.so"};
#endif
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static bool has_portability(const fm__vulkan_api *vk) {
    uint32_t n = 0;
    if (vk->EnumerateInstanceExtensionProperties(NULL, &n, NULL) != VK_SUCCESS || n == 0)
        return false;
    VkExtensionProperties *all = fm__alloc_array(n, sizeof *all);
    bool found = false;
    if (all != NULL && vk->EnumerateInstanceExtensionProperties(NULL, &n, all) >= VK_SUCCESS)
        for (uint32_t i = 0; i < n; i++)
            found = found || strcmp(all[i].extensionName,
                                    VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME) == 0;
    fm__free(all);
    return found;
}

static fm_status create_instance(fm__vulkan_api *vk, fm_error *error) {
    static const char *const portability = VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME;
    /* The newest version that is made use of where a device has it. */
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = "fusionml",
                                           .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};
    if (has_portability(vk)) {
        info.flags = ENUMERATE_PORTABILITY;
        info.enabledExtensionCount = 1;
        info.ppEnabledExtensionNames = &portability;
    }
    char room[32];
    VkResult result = vk->CreateInstance(&info, NULL, &vk->instance);
    if (result == VK_SUCCESS)
        return FM_OK;
    vk->instance = NULL;
    if (result == VK_ERROR_OUT_OF_HOST_MEMORY)
        return fm__error(error, FM_ERROR_MEMORY, "vulkan", "no memory for an instance");
    return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan",
                     "the Vulkan loader found no driver that starts (%s)",
                     fm__vulkan_result(result, room));
}

static fm_status missing(const char *name, fm_error *error) {
    return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan", "the Vulkan loader lacks vk%s", name);
}

#define LOAD(name)                                                                                 \
    vk->name = (PFN_vk##name)vk->GetInstanceProcAddr(vk->instance, "vk" #name);                    \
    if (vk->name == NULL)                                                                          \
        return missing(#name, error);
#define LOAD_IF_THERE(name)                                                                        \
    vk->name = (PFN_vk##name)vk->GetInstanceProcAddr(vk->instance, "vk" #name);

static fm_status load_instance(fm__vulkan_api *vk, fm_error *error) {
    FM__VULKAN_INSTANCE_FUNCTIONS(LOAD)
    FM__VULKAN_OPTIONAL_INSTANCE_FUNCTIONS(LOAD_IF_THERE)
    return FM_OK;
}

static fm_status load_library(fm__vulkan_api *vk, fm_error *error) {
    vk->GetInstanceProcAddr =
        (PFN_vkGetInstanceProcAddr)dlsym(vk->library, "vkGetInstanceProcAddr");
    if (vk->GetInstanceProcAddr == NULL)
        return missing("GetInstanceProcAddr", error);
    FM__VULKAN_LOADER_FUNCTIONS(LOAD)
    uint32_t version = 0;
    if (vk->EnumerateInstanceVersion(&version) != VK_SUCCESS || version < VK_API_VERSION_1_2)
        return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan",
                         "the Vulkan loader knows version %u.%u, 1.2 is needed",
                         VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    fm_status status = create_instance(vk, error);
    return status == FM_OK ? load_instance(vk, error) : status;
}

fm_status fm__vulkan_open(fm__vulkan_api *vk, fm_error *error) {
    memset(vk, 0, sizeof *vk);
    vk->library = open_library();
    if (vk->library == NULL)
        return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan",
                         "no Vulkan loader (libvulkan.so.1) is installed");
    fm_status status = load_library(vk, error);
    if (status != FM_OK)
        fm__vulkan_close(vk);
    return status;
}

#define LOAD_DEVICE(name)                                                                          \
    vk->name = (PFN_vk##name)vk->GetDeviceProcAddr(device, "vk" #name);                            \
    if (vk->name == NULL)                                                                          \
        return missing(#name, error);
#define LOAD_DEVICE_IF_THERE(name)                                                                 \
    vk->name = (PFN_vk##name)vk->GetDeviceProcAddr(device, "vk" #name);

fm_status fm__vulkan_load_device(fm__vulkan_api *vk, VkDevice device, fm_error *error) {
    FM__VULKAN_DEVICE_FUNCTIONS(LOAD_DEVICE)
    FM__VULKAN_OPTIONAL_FUNCTIONS(LOAD_DEVICE_IF_THERE)
    return FM_OK;
}

void fm__vulkan_close(fm__vulkan_api *vk) {
    if (vk->instance != NULL && vk->DestroyInstance != NULL)
        vk->DestroyInstance(vk->instance, NULL);
    if (vk->library != NULL)
        dlclose(vk->library);
    memset(vk, 0, sizeof *vk);
}
