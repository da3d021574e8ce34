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
    FM__SEARCH_POINTS = 64, /* the grid has at most 21, the rest lie between its steps */
    FM__SEARCH_GRID = 21,
    FM__SEARCH_REPEATS = 12,
    FM__SEARCH_PASSES = 9, /* the first looks around, the last compares with the units alone */
};

/* One candidate share of the second unit, 0..1, and its times. */
typedef struct fm__search_point {
    double share;
    uint32_t n;                    /* measurements that are kept */
    double ns[FM__SEARCH_REPEATS]; /* in order of measurement; the latest, where there were more */
    double median;                 /* of those of the last pass that measured it */
    /* The least that each unit worked at its part of what is divided; 0: unknown. */
    double first_ns, second_ns;
    double first_part; /* of what share 0 gives the units before the last: tune.c; 0: unknown */
} fm__search_point;

typedef struct fm__search_options {
    double first, step; /* candidates 0, first, first + step, ...; 0: 0.05, 0.05 */
    uint32_t repeats;   /* of a candidate in one pass; 0: 3 */
    double rise;        /* above the best so far that ends a pass when it is clear; 0: 0.10 */
    double dead_band;   /* shares 0 and 1 win unless beaten by it; 0: 0.02 */
    double budget_ns;   /* what measurements may take; beyond it only the last pass runs; 0: any */
} fm__search_options;

typedef struct fm__search {
    fm__search_options options;
    fm__search_point points[FM__SEARCH_POINTS]; /* ascending share; [0] is share 0 */
    uint32_t n_point;                           /* points so far */
    uint32_t current, pass;                     /* the point to measure; passes from 0 */
    double best_of_pass[FM__SEARCH_PASSES];     /* share */
    bool done;
    double best;     /* the result: a share */
    double gain;     /* time of share 0 over time of `best` */
    double spent_ns; /* of all measurements; the caller may add what it spent beside them */
    /* What follows is the search's own. */
    double grid[FM__SEARCH_GRID];
    uint32_t n_grid, next_grid; /* of the first pass */
    bool looking;               /* first pass: half a step behind a rise */
    uint32_t jumps;             /* first pass: to where the units' times say */
    double width;               /* later passes: to the neighbours, of the shorter way to an end */
    uint32_t set[4], n_set;     /* later passes: points that take turns */
    uint32_t out;               /* mask of set[]: far too slow to be measured again */
    bool last;                  /* this pass is the last */
    double before;              /* the winner's median before the last pass */
    uint32_t turn, repeats;     /* measurements of this pass, and of a point in it */
    uint32_t measured;          /* measurements in all */
} fm__search;

void fm__search_init(fm__search *search, const fm__search_options *options);
/* The next share to measure; false: the search is over and `best` and `gain` hold. */
bool fm__search_next(fm__search *search, double *share);
/* What it took, a finite number. */
void fm__search_feed(fm__search *search, double ns);
/* The same, with what each unit worked at its part of what is divided (0: not known). That tells
   where both would end together, so that few candidates are measured. */
void fm__search_feed_units(fm__search *search, double ns, double first_ns, double second_ns);
/* What the units' times say of the time at share 1; 0: nothing. */
double fm__search_predict_alone(const fm__search *search);
/* And of all that can be divided, on either unit beside the other; 0: nothing. */
void fm__search_unit_ns(const fm__search *search, double *first_ns, double *second_ns);

/* ---- what a split could take at best ---- */

/* The share of the second unit at which both end together, of rates that were measured while both
   worked (any unit of work a ns; >= 0, not both 0). */
double fm__ideal_share(double first_rate, double second_rate);
/* Time of `work` so divided, behind `fixed_ns` that only one of them works. */
double fm__ideal_ns(double work, double fixed_ns, double first_rate, double second_rate);
