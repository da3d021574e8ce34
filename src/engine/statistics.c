/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/statistics.c: the order of interleaved measurements, medians, and intervals of ratios.
 *
 * Owns: nothing. Never does: look at a clock; every function is pure. Called from: any thread.
 */
#include "base/base.h"
#include "fusionml/lab.h"

#include <stdlib.h>
#include <string.h>

enum { RESAMPLES = 2000 };

/* Williams' design: row 0 is 0, 1, n-1, 2, n-2, ... whose neighbours differ by every number once;
   row r adds r. For odd n the rows n.. are those of 0..n-1 read backwards. */
uint32_t fm_lab_order(uint32_t n, uint32_t round, uint32_t position) {
    uint32_t row = round % n;
    if (n % 2 == 1 && round / n % 2 == 1)
        position = n - 1 - position;
    uint32_t step = position % 2 == 1 ? (position + 1) / 2 : n - position / 2;
    return (step + row) % n;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts in place. */
static double median_of(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, ascending);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double fm_lab_median(const double *values, uint32_t n) {
    double *copy = n > 0 ? fm__alloc_array(n, sizeof *copy) : NULL;
    if (copy == NULL)
        return 0;
    memcpy(copy, values, n * sizeof *copy);
    double median = median_of(copy, n);
    fm__free(copy);
    return median;
}

fm_lab_ratio fm_lab_paired_ratio(const double *above, const double *below, uint32_t n,
                                 uint64_t seed) {
    fm_lab_ratio out = {0};
    double *ratios = n > 0 ? fm__alloc_array(n, sizeof *ratios) : NULL;
    double *drawn = n > 0 ? fm__alloc_array(n, sizeof *drawn) : NULL;
    double *medians = fm__alloc_array(RESAMPLES, sizeof *medians);
    if (ratios == NULL || drawn == NULL || medians == NULL)
        goto done;
    fm__random random;
    fm__random_seed(&random, seed);
    for (uint32_t i = 0; i < n; i++)
        ratios[i] = below[i] > 0 ? above[i] / below[i] : 0;
    for (uint32_t r = 0; r < RESAMPLES; r++) {
        for (uint32_t i = 0; i < n; i++)
            drawn[i] = ratios[(uint32_t)(fm__random_double(&random) * n)];
        medians[r] = median_of(drawn, n);
    }
    qsort(medians, RESAMPLES, sizeof *medians, ascending);
    out.low = medians[RESAMPLES / 40];
    out.high = medians[RESAMPLES - 1 - RESAMPLES / 40];
    out.median = median_of(ratios, n);
done:
    fm__free(medians);
    fm__free(drawn);
    fm__free(ratios);
    return out;
}
