/* SPDX-License-Identifier: Apache-2.0 */
/* device_test.h: machines of several units, for the tests of the engine room. */
#pragma once

#include "model_test.h"

#include <unistd.h>

/* What a test of several units runs on. */
typedef enum test_units {
    TEST_HOST,            /* one team */
    TEST_PAIR,            /* two teams of one thread each */
    TEST_DISCRETE,        /* a team that does not address host memory, and a host team */
    TEST_VULKAN,          /* the first Vulkan device, software or not, and the host */
    TEST_VULKAN_DISCRETE, /* the same, treated as if its memory were its own */
    TEST_UNITS
} test_units;

static const char *const test_units_names[TEST_UNITS] = {
    "host", "two host teams", "a discrete team and a host", "vulkan and host",
    "vulkan as discrete and host"};

/* A group's set-up: a tiny q8_0 model in a new file, whose name mkstemp() makes of `path`. */
static inline int test_make_tiny(char *path) {
    fm_error error = {0};
    int file = mkstemp(path);
    if (file >= 0)
        close(file);
    return file >= 0 && fm_lab_synth(path, "tiny", "q8_0", 1, NULL, NULL, &error) == FM_OK ? 0 : -1;
}

static inline fm_machine *test_discrete_machine(uint64_t budget) {
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm__device *devices[2] = {NULL, NULL};
    fm__host_options far = {.threads = 1, .name = "far", .discrete = true}, near = {.threads = 1};
    CHECK_OK(fm__device_host_create(&devices[0], &far, &error));
    CHECK_OK(fm__device_host_create(&devices[1], &near, &error));
    CHECK_OK(fm__machine_adopt(&machine, devices, 2, budget, &error));
    return machine;
}

/* NULL where this machine has no such units; *why says it. */
static inline fm_machine *test_units_machine(test_units units, fm_error *why) {
    fm_machine_options options = fm_machine_options_default();
    fm_machine *machine = NULL;
    char pair[64];
    int cpus[2];
    options.memory_budget = UINT64_C(2) << 30;
    options.threads = 1;
    switch (units) {
    case TEST_PAIR:
        if (fm__cores(cpus, 2) < 2) {
            fm__error(why, FM_ERROR_UNSUPPORTED, "host", "this machine has one core");
            return NULL;
        }
        snprintf(pair, sizeof(pair), "host:%d,host:%d", cpus[0], cpus[1]);
        options.devices = pair;
        break;
    case TEST_DISCRETE:
        return test_discrete_machine(options.memory_budget);
    case TEST_VULKAN:
        options.devices = "vulkan:0,host";
        break;
    case TEST_VULKAN_DISCRETE:
        options.devices = "vulkan:0+discrete,host";
        break;
    case TEST_HOST:
    case TEST_UNITS:
        options.devices = "host";
        break;
    }
    return fm_machine_create(&machine, &options, why) == FM_OK ? machine : NULL;
}

static inline void test_same_bits(const float *want, const float *got, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&want[i], &got[i], sizeof(float)) != 0)
            fail_msg("%s: entry %zu is %.9g instead of %.9g", what, i, got[i], want[i]);
    }
}
