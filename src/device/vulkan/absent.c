/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/absent.c: stands for this folder in a build without Vulkan.
 *
 * Owns: nothing. Never does: anything but say so. Called from: whoever asks for a vulkan device.
 */
#include "device/device.h"

static fm_status absent(fm_error *error) {
    return fm__error(error, FM_ERROR_UNSUPPORTED, "vulkan", "built without Vulkan: %s",
                     FM_VULKAN_MISSING);
}

fm_status fm__device_vulkan_create(fm__device **out, const fm__vulkan_options *options,
                                   fm_error *error) {
    (void)options;
    *out = NULL;
    return absent(error);
}

uint32_t fm__device_vulkan_count(bool allow_software) {
    (void)allow_software;
    return 0;
}

fm_status fm__device_vulkan_self_test(fm__device *device, const fm__tape *tape,
                                      fm__self_test_callback *callback, void *user,
                                      uint32_t *n_tested, uint32_t *n_excluded, fm_error *error) {
    (void)device;
    (void)tape;
    (void)callback;
    (void)user;
    (void)n_tested;
    (void)n_excluded;
    return absent(error);
}
