/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/layout.h: a plan cut into pieces, and the struct that runs them: shared by the files of
 * exec.
 *
 * Owns: nothing. Never does: work on its own. Called from: run.c, drive.c, times.c.
 */
#pragma once

#include "exec/exec.h"

/* ---- layout.c: pure ---- */

#define FM__NO_VALUE UINT64_MAX

/* What one unit does between two points at which it waits or others wait for it. */
typedef struct fm__piece {
    uint8_t unit;
    bool begins_step; /* EAGER: the host waits for all before it */
    bool divided;     /* does of what several units share: parts of ops, or products */
    uint32_t first_op, last_op;
    uint64_t signal;              /* of the unit's timeline; values count from a run's base */
    uint64_t wait[FM__MAX_UNITS]; /* of each unit's timeline, or FM__NO_VALUE */
    fm__recording *recording;     /* run.c's */
} fm__piece;

/* Pieces ascend by first op, then unit; those of one unit run in this order. */
typedef struct fm__layout {
    fm__piece *pieces;
    uint32_t n_piece;
    uint64_t span; /* by which a run raises every timeline */
    uint32_t n_of_unit[FM__MAX_UNITS];
} fm__layout;

fm_status fm__layout_make(fm__layout *layout, const fm__tape *tape, const fm__plan *plan,
                          uint32_t n_unit, fm_error *error);
void fm__layout_finish(fm__layout *layout);
/* What a piece records, copies included; room for a range a unit and op, and one a copy. */
uint32_t fm__layout_ranges(const fm__plan *plan, const fm__piece *piece, fm__op_range *ranges);

/* ---- times.c ---- */

/* When a unit did something of a run. */
typedef struct fm__interval {
    uint64_t begin_ns, end_ns;
    bool copy, divided;
} fm__interval;

enum { FM__OF_COMPUTE = 1, FM__OF_COPIES = 2, FM__OF_UNDIVIDED = 4 };

/* Ascending by beginning. */
void fm__intervals_sort(fm__interval *intervals, uint32_t n);
/* Time in which at least one of the sorted intervals of the kinds `of` (bits; without UNDIVIDED
   those of divided ops alone) lies; spans: NULL, or room for n, filled with it, *n_span of them. */
uint64_t fm__intervals_union(const fm__interval *intervals, uint32_t n, unsigned of,
                             fm__span *spans, uint32_t *n_span);

/* ---- run.c's struct ---- */

struct fm__exec {
    const fm__tape *tape;
    fm__device *units[FM__MAX_UNITS];
    uint32_t n_unit;
    fm__deps deps;
    bool copies;
    fm__layout layout;
    fm__timeline timelines[FM__MAX_UNITS]; /* of units that have pieces */
    bool has_timeline[FM__MAX_UNITS];
    fm__segment *segments[FM__MAX_UNITS]; /* EVENT, BATCH: what is submitted at once */
    uint32_t n_segment[FM__MAX_UNITS];
    /* Room for times.c: what one piece did, what all pieces of a unit did, and merged (2, n_work).
     */
    fm__work *work;
    fm__interval *intervals;
    fm__span *spans;
    uint32_t n_work;
    uint64_t begin_ns, end_ns;           /* of the last run, as the host saw it */
    uint64_t base;                       /* timeline value at which the next run begins */
    uint64_t handed_over[FM__MAX_UNITS]; /* value that the unit was last asked to reach */
    /* READY, EAGER: the run under way. */
    const fm__run *driven; /* NULL: none */
    uint64_t driven_base;
    bool rows_checked;            /* by the device room, with the run's first piece */
    uint32_t next[FM__MAX_UNITS]; /* READY: each unit's next piece; EAGER: [0] of all */
};

static inline bool fm__exec_uses(const fm__exec *exec, uint32_t unit) {
    return exec->layout.n_of_unit[unit] > 0;
}

/* ---- drive.c: READY and EAGER ---- */

/* Begins to drive a run: hands over what need not wait. */
fm_status fm__exec_drive_begin(fm__exec *exec, const fm__run *run, fm_error *error);
/* Hands over all the rest, waiting in between; the last pieces may still be at work then. */
fm_status fm__exec_drive_end(fm__exec *exec, fm_error *error);
