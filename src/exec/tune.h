/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/tune.h: the search for the shares of a whole tape: one for each class of its products.
 *
 * Owns: nothing. Never does: time or run. Called from: the calibrating thread.
 *
 * What is measured is always a run of the whole tape: the hand-overs that consecutive divided
 * products share, weights that are fetched ahead, and what is not divided are then counted as they
 * will be.
 */
#pragma once

#include "exec/calibrate.h"
#include "exec/exec.h"

enum { FM__TUNE_CLASSES = 16, FM__TUNE_NO_CLASS = 255 };

typedef struct fm__tune_options {
    fm__search_options search; /* of the share that all classes begin with */
    double budget_ns;          /* what measurements may take; beyond it the tuning ends; 0: any */
    double worth;              /* a change must be faster by it; 0: 0.01 */
    uint32_t repeats;          /* of a change, and of what it is compared with; 0: 3 */
} fm__tune_options;

/* One run of the tape. */
typedef struct fm__tune_times {
    double ns;
    /* What the first and the last unit worked at the products of each class, where several units
       compute products; 0: unknown. Of three units or more the first is here the one before the
       last that took longest: they have equal parts, and it says when they have ended. */
    double first_ns[FM__TUNE_CLASSES], second_ns[FM__TUNE_CLASSES];
    /* How much later the first unit ended its parts of each class than the last unit, all of them
       together; below 0: earlier. Hand-overs are in it, as they delay one unit more than the other.
     */
    double late_ns[FM__TUNE_CLASSES];
    double part[FM__MAX_UNITS]; /* each unit's of the work, in the plan; all 0: unknown */
} fm__tune_times;

typedef struct fm__tune {
    fm__tune_options options;
    uint32_t n_class, count[FM__TUNE_CLASSES]; /* products of each class */
    fm__search search;
    bool done;
    double best[FM__TUNE_CLASSES]; /* the result: shares of the last unit */
    double best_ns, zero_ns;       /* time with it, and with nothing divided */
    /* Of the units before the last: each one's part with share 0; and the least that one of them
       has of that with the best, and with the change; 0: unknown. */
    double zero_part[FM__MAX_UNITS], best_part, change_part;
    double spent_ns; /* of all measurements; the caller may add what it spent beside */
    uint32_t measured;
    /* What follows is the tuning's own. */
    bool searching;                  /* one share for all */
    double shares[FM__TUNE_CLASSES]; /* to be measured now */
    double change[FM__TUNE_CLASSES]; /* what is compared with the best */
    double base_ns[8], change_ns[8];
    fm__tune_times of_best, of_change; /* sums of runs with either; `ns` and `part` unused */
    uint32_t turn;
    uint32_t stage, next;                 /* changes to try */
    uint32_t order[FM__TUNE_CLASSES];     /* by what one product takes, longest first */
    double reference_share, reference_ns; /* the fastest divided run so far, and its times */
    fm__tune_times reference;
} fm__tune;

/* count: products of each class, n_class of 1..FM__TUNE_CLASSES. options may be NULL. */
void fm__tune_init(fm__tune *tune, const fm__tune_options *options, const uint32_t *count,
                   uint32_t n_class);
/* The shares to measure next, by class; false: it is over and `best` holds. */
bool fm__tune_next(fm__tune *tune, double shares[FM__TUNE_CLASSES]);
void fm__tune_feed(fm__tune *tune, const fm__tune_times *times);
/* Time of the tape with everything that can be divided on the last unit, as far as the units' times
   say; 0: unknown. */
double fm__tune_predict_alone(const fm__tune *tune);

/* How many times longer share 0 took than it can have: where every unit but the last did a part of
   what it does with share 0, that takes 1 / part times as long at most; where nothing is divided,
   runs of share 0 take as long as each other. Above 1 something else slowed those that share 0 was
   judged by (or half of the weights fit into a cache that all of them do not). 0: unknown. */
double fm__tune_excess(const fm__tune *tune);

/* Adds what recordings took (busy_ns) to the classes of the divided products that they compute, by
   work: class_of and work are of the plan's ops, FM__TUNE_NO_CLASS where an op has none. Also sets
   `part`. */
void fm__tune_add_spans(fm__tune_times *times, const fm__plan *plan, uint32_t n_unit,
                        const uint8_t *class_of, const double *work, const fm__exec_span *spans,
                        uint32_t n_span);
