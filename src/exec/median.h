/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/median.h: the median of a few samples.
 *
 * Owns: nothing. Never does: more than FM__MEDIAN_MAX samples. Called from: gate.c, calibrate.c,
 * tune.c and engine/measure.c.
 */
#pragma once

#include <assert.h>
#include <stdint.h>

enum { FM__MEDIAN_MAX = 16 };

/* Of an even number: the middle of the two in the middle. n: 1..FM__MEDIAN_MAX. */
static inline double fm__median(const double *samples, uint32_t n) {
    double sorted[FM__MEDIAN_MAX];
    assert(n > 0 && n <= FM__MEDIAN_MAX);
    sorted[0] = samples[0];
    for (uint32_t i = 1; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > samples[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = samples[i];
    }
    return n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}
