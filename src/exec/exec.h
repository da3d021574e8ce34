/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/exec.h: the exec room: who computes what, and the order of it.
 *
 * Owns: splits, plans, and the running of a tape over one or more units. Never does: kernels,
 * architectures. Called from: the loading thread (plan, create) and the running thread (submit,
 * wait).
 */
#pragma once

#include "device/device.h"

/* ---- split.c: the pure function ---- */

typedef struct fm__range {
    uint32_t begin, end;
} fm__range;

/* Cuts [0, rows) into n consecutive ranges in proportion to weights[] (>= 0, not all 0), each
   border a multiple of granule except the last end, which is rows. No clock, no device. */
void fm__split(uint32_t rows, uint32_t granule, const double *weights, uint32_t n,
               fm__range *ranges);

/* ---- plan.c ---- */

typedef enum fm__deps { FM__DEPS_EVENT, FM__DEPS_BATCH, FM__DEPS_EAGER, FM__DEPS_READY } fm__deps;

typedef struct fm__plan_range {
    uint8_t unit;
    fm__range range; /* on the op's axis, as fm__op_range has it; WHOLE: unused */
} fm__plan_range;

typedef struct fm__plan_op {
    fm__axis axis;
    uint8_t n_range;
    fm__plan_range ranges[FM__MAX_UNITS];
    const char *reason; /* static text */
} fm__plan_op;

typedef struct fm__plan {
    uint32_t n_op;
    fm__plan_op *ops; /* one for each op of the tape */
    fm__deps deps;
} fm__plan;

typedef struct fm__plan_options {
    double shares[FM__MAX_UNITS]; /* of splittable ops; all 0: unit 0 takes everything */
    fm__axis axis;                /* CHANNELS or TOKENS; WHOLE: the default, which is CHANNELS */
    fm__deps deps;
} fm__plan_options;

/* Every op gets units that support it; one that none supports: UNSUPPORTED naming op and reasons.
   Unit 0 is the main unit. options may be NULL (all zero). */
fm_status fm__plan_make(fm__plan **out, const fm__tape *tape, fm__device *const *units,
                        uint32_t n_unit, const fm__plan_options *options, fm_error *error);
void fm__plan_destroy(fm__plan **plan);
void fm__plan_print(const fm__plan *plan, const fm__tape *tape, fm__device *const *units,
                    fm__buf *out);

/* ---- run.c ---- */

typedef struct fm__exec fm__exec;

/* Records the tape on the units as the plan says. tape, plan and units must outlive it. */
fm_status fm__exec_create(fm__exec **out, const fm__tape *tape, const fm__plan *plan,
                          fm__device *const *units, uint32_t n_unit, fm_error *error);
void fm__exec_destroy(fm__exec **exec);
/* Submits one run and returns at once; *point is the timeline value that marks its end. run (and
   what it points to) must stay valid until then; run->status is cleared here. Allocates nothing.
   Runs end in the order of their submission. After an error the run is over: nothing of it is in
   flight (a unit that refuses when others have begun is waited for). One thread at a time. Where a
   plan uses several units, execs that share buffers must not have runs in flight together. */
fm_status fm__exec_submit(fm__exec *exec, const fm__run *run, uint64_t *point, fm_error *error);
/* Waits for a point and returns the run's status: a failed op is named with its row. */
fm_status fm__exec_wait(fm__exec *exec, uint64_t point, const fm__run *run, fm_error *error);
