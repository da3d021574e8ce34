/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/calibrate.h: the search for the best share, as a pure state machine, and what was found.
 *
 * Owns: nothing. Never does: time or run (the caller measures the candidate that it is given, with
 * both units at work, boundary and sync included). Called from: the calibrating thread.
 */
#pragma once

#include "base/base.h"

enum {
    FM__SEARCH_POINTS = 32, /* the grid has at most 21, the rest are halves of its steps */
    FM__SEARCH_GRID = 21,
    FM__SEARCH_REPEATS = 8,
    FM__SEARCH_PASSES = 4, /* the last is of half steps */
    /* Measurements of a search with the default options, at most: 28 candidates thrice, then three
       passes of up to 4. */
    FM__SEARCH_MEASUREMENTS = 120,
};

/* One candidate share of the second unit, 0..1, and its times. */
typedef struct fm__search_point {
    double share;
    uint32_t n;                    /* measurements that are kept */
    double ns[FM__SEARCH_REPEATS]; /* in order of measurement; the latest, where there were more */
    double median;                 /* of those of the last pass that measured it */
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
    uint32_t n_point;                           /* points so far */
    uint32_t current, pass;                     /* the point to measure; passes from 0 */
    double best_of_pass[FM__SEARCH_PASSES];     /* share */
    bool done;
    double best; /* the result: a share */
    double gain; /* time of share 0 over time of `best` */
    /* What follows is the search's own. */
    double grid[FM__SEARCH_GRID];
    uint32_t n_grid, next_grid; /* of the first pass */
    bool looking;               /* first pass: half a step behind a rise */
    uint32_t set[4], n_set;     /* later passes: points that take turns */
    uint32_t turn;              /* measurements of this pass */
    uint32_t measured;          /* measurements in all */
} fm__search;

void fm__search_init(fm__search *search, const fm__search_options *options);
/* The next share to measure; false: the search is over and `best` and `gain` hold. */
bool fm__search_next(fm__search *search, double *share);
/* What it took. INFINITY: it cannot be run, which is a rise like any other. */
void fm__search_feed(fm__search *search, double ns);

/* ---- what a split could take at best ---- */

/* The share of the second unit at which both end together, of rates that were measured while both
   worked (any unit of work a ns; >= 0, not both 0). */
double fm__ideal_share(double first_rate, double second_rate);
/* Time of `work` so divided, behind `fixed_ns` that only one of them works. */
double fm__ideal_ns(double work, double fixed_ns, double first_rate, double second_rate);
