/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/calibrate.h: the search for the best share, as a pure state machine, and what was found.
 *
 * Owns: nothing. Never does: time or run (the caller measures the candidate that it is given, with
 * both units at work, boundary and sync included). Called from: the calibrating thread.
 */
#pragma once

#include "base/base.h"

enum { FM__SEARCH_POINTS = 24, FM__SEARCH_REPEATS = 8 };

/* One candidate share of the second unit, 0..1, and its times. */
typedef struct fm__search_point {
    double share;
    uint32_t n;                    /* measurements */
    double ns[FM__SEARCH_REPEATS]; /* in order of measurement */
    double median;
} fm__search_point;

typedef struct fm__search_options {
    double first, step; /* candidates 0, first, first + step, ...; 0: 0.05, 0.05 */
    uint32_t repeats;   /* of a candidate in one pass; 0: 3 */
    double rise;        /* above the best so far that ends a pass when it is clear; 0: 0.10 */
    double dead_band;   /* share 0 wins unless beaten by it; 0: 0.02 */
} fm__search_options;

typedef struct fm__search {
    fm__search_options options;
    fm__search_point points[FM__SEARCH_POINTS]; /* ascending share; [0] is share 0 */
    uint32_t n_point;                           /* points measured at least once */
    uint32_t current, pass;
    double best_of_pass[4];
    bool done;
    double best; /* the result: a share */
    double gain; /* time of share 0 over time of `best` */
} fm__search;

void fm__search_init(fm__search *search, const fm__search_options *options);
/* The next share to measure; false: the search is over and `best` and `gain` hold. */
bool fm__search_next(fm__search *search, double *share);
void fm__search_feed(fm__search *search, double ns);
