/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/ahead.c: what a thread that waits reads meanwhile.
 *
 * Owns: nothing. Never does: compute, or wait for longer than a few lines of memory take. Called
 * from: every thread of the team.
 *
 * With few rows a product is bound by memory, and memory has nothing to do while the team waits for
 * another unit or for the one thread that works on a row. The panels that a thread reads first in
 * the next product are known: they can be on their way before the product's input is there.
 */
#include "device/host/host.h"

enum {
    /* Of a thread: what memory gives it in some 30 us, and a part of the smallest second-level
       cache about (256 KiB on old cores, shared by two threads there). */
    AHEAD = 128 << 10,
    LINE = 64,
    LOOK = 2048, /* bytes between looks at what is waited for */
};

static bool has_come(const fm__host_awaited *awaited) {
    if (awaited->counter != NULL)
        return fm__counter_read(awaited->counter) >= awaited->value;
    return fm__timeline_value(awaited->timeline) >= awaited->value;
}

void fm__host_read_ahead(const fm__host_work *work, const fm__host_awaited *awaited) {
    fm__host_region region = fm__host_first_region(work);
    const size_t bytes = fm__min_size(region.bytes, AHEAD);
    for (size_t done = 0; done < bytes && !has_come(awaited); done += LOOK)
        for (size_t i = done; i < done + LOOK && i < bytes; i += LINE)
            __builtin_prefetch(region.backwards ? region.at - LINE - i : region.at + i, 0, 2);
}
