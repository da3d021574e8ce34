/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/clock.c: the monotonic clock.
 *
 * Owns: nothing. Never does: calendar time. Called from: every thread.
 */
#include <time.h>

#include "base/base.h"

uint64_t fm__now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
