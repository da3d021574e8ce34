/* SPDX-License-Identifier: Apache-2.0 */
/*
 * null_pair.h: two null units, "gpu" and "cpu", in a virtual world of their own.
 */
#pragma once

#include "device/device.h"
#include "fixture.h"

static inline void null_pair_create(fm__null_world **world, fm__device *units[2],
                                    fm__null_options a, fm__null_options b) {
    CHECK(fm__null_world_create(world, why));
    a.world = b.world = *world;
    a.memory_bytes = b.memory_bytes = 1 << 26;
    a.name = "gpu";
    b.name = "cpu";
    CHECK(fm__device_null_create(&units[0], &a, why));
    CHECK(fm__device_null_create(&units[1], &b, why));
}

static inline void null_pair_destroy(fm__null_world **world, fm__device *units[2]) {
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    fm__null_world_destroy(world);
}
