/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/split.c: the split: rows, granule, weights -> ranges. A pure function.
 *
 * Owns: nothing. Never does: look at a clock or a device. Called from: the loading thread (plans)
 * and tests.
 *
 *     rows  granule  weights     ranges
 *      896       32  1           [0, 896)
 *      896       32  1 1         [0, 448)  [448, 896)
 *      896       32  3 1         [0, 672)  [672, 896)
 *      100       32  1 1         [0, 64)   [64, 100)         64 is nearer to 50 than 32
 *       33       32  1 1         [0, 32)   [32, 33)
 *       32       32  1 1         [0, 32)   [32, 32)          16 is as near to 0: upwards
 *      128       32  0 1 1       [0, 0)    [0, 64)   [64, 128)
 *      256       32  1 9 0       [0, 32)   [32, 256) [256, 256)
 *        0       32  1 1         [0, 0)    [0, 0)
 */
#include <assert.h>

#include "exec/exec.h"

/* The multiple of granule nearest to rows * part, half upwards, at most rows. A border depends on
   the weights before it only through their sum, so borders never cross. */
static uint32_t border(uint32_t rows, uint32_t granule, double part) {
    uint64_t steps = (uint64_t)((double)rows * part / granule + 0.5);
    uint64_t at = steps * granule;
    return at < rows ? (uint32_t)at : rows;
}

void fm__split(uint32_t rows, uint32_t granule, const double *weights, uint32_t n,
               fm__range *ranges) {
    double sum = 0, before = 0;
    uint32_t last = 0; /* the last part that has a weight: what is left over goes there */
    assert(granule > 0 && n > 0);
    for (uint32_t i = 0; i < n; i++) {
        assert(weights[i] >= 0);
        sum += weights[i];
        if (weights[i] > 0)
            last = i;
    }
    assert(sum > 0);
    uint32_t begin = 0;
    for (uint32_t i = 0; i < n; i++) {
        before += weights[i];
        uint32_t end = i >= last ? rows : border(rows, granule, before / sum);
        if (!(weights[i] > 0))
            end = begin; /* nothing for a part without weight, however the sums round */
        if (i > last)
            end = rows;
        ranges[i] = (fm__range){begin, end};
        begin = end;
    }
}
