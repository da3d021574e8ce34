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

/* How a unit learns that another's results are there.
     EVENT  it waits for a point right after the op that made them; everything is submitted at once.
     BATCH  it waits for the other unit's whole submission up to the next hand-over, its own half of
            the same op included: serial by construction, for comparison.
     READY  each unit's next segment is submitted once the host has seen its inputs; no device
            waits.
     EAGER  the host waits for every unit before it submits the next step to any; each product
            begins a step.
   In READY and EAGER the thread in fm__exec_wait() drives the run. The results are the same. */
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

/* A copy that the discrete unit executes: TO_DEVICE right before `op`, TO_HOST right behind it. */
typedef struct fm__plan_copy {
    uint32_t op;
    uint8_t unit; /* the discrete one */
    fm__copy copy;
    int16_t tensor;
    fm__axis axis; /* WHOLE, CHANNELS (f32 columns) or TOKENS */
    fm__range range;
} fm__plan_copy;

typedef struct fm__plan {
    uint32_t n_op;
    fm__plan_op *ops;     /* one for each op of the tape */
    bool shares_products; /* several units compute products, or parts of them */
    fm__deps deps;
    /* What a discrete unit must fetch or hand out; ascending by op. */
    fm__plan_copy *copies;
    uint32_t n_copy;
} fm__plan;

typedef struct fm__plan_options {
    double shares[FM__MAX_UNITS]; /* of what is divided; all 0: unit 0 takes everything */
    /* NULL, or shares op by op ([n_op][FM__MAX_UNITS]); a row of zeros: `shares` above. Where all
       ops are divided at the same rows, their mean by the products' work counts. */
    const double (*op_shares)[FM__MAX_UNITS];
    /* CHANNELS: products are divided. TOKENS: products, and between units that address the same
       memory all that the layers do. WHOLE, the default: TOKENS for host teams and a tape of many
       rows, the shares then being shares of the work (later rows see more keys), and CHANNELS for
       products of output rows; else CHANNELS. PRODUCTS: each product is one unit's, and a unit
       gets its share of those of one shape. */
    fm__axis axis;
    bool products_only; /* whatever the axis, nothing else is divided */
    fm__deps deps;
} fm__plan_options;

/* Every op gets units that support it and have its weights; one that none can run: UNSUPPORTED
   naming op and reasons. Unit 0 is the main unit. It alone may be one that does not address host
   memory (not unified) among several: then it works on its own instance of the scratch, the plan
   holds the copies, and the caches are its own. options may be NULL (all zero). */
fm_status fm__plan_make(fm__plan **out, const fm__tape *tape, fm__device *const *units,
                        uint32_t n_unit, const fm__plan_options *options, fm_error *error);
void fm__plan_destroy(fm__plan **plan);
/* A table for people: op, unit, range, kernel, residency, copies, reason. */
void fm__plan_print(const fm__plan *plan, const fm__tape *tape, fm__device *const *units,
                    fm__buf *out);
/* The same as one JSON object: {"deps":..., "ops":[{"op":..., "ranges":[...]}], "copies":[...]}. */
void fm__plan_json(const fm__plan *plan, const fm__tape *tape, fm__device *const *units,
                   fm__buf *out);

const char *fm__deps_name(fm__deps deps);                /* "event" */
const char *fm__axis_name(fm__axis axis);                /* "channels" */
const char *fm__residency_name(fm__residency residency); /* "shared" */

/* ---- shape.c ---- */

/* What products have in common whose times are alike. What an input holds (fm__act) follows from
   the weight's type and the class. */
typedef struct fm__shape {
    fm__op_kind kind;
    uint32_t n, k;
    const fm__type *types[2]; /* [1]: LINEAR_GLU's other weight, or NULL */
    bool fast;                /* class fast */
    bool output;              /* over the rows that want output: one, whatever the tape takes */
    char label[96];           /* "ffn_gate+up 4864x896 q4_k", of one of them; not compared */
} fm__shape;

/* false: the op is no product. */
bool fm__shape_of(const fm__tape *tape, uint32_t op, fm__shape *out);
bool fm__shape_equal(const fm__shape *a, const fm__shape *b);

/* ---- deal.c ---- */

/* owner[i]: the unit that gets product i of the tape whole, so that of the products of one shape
   each unit gets its share (shares: [n_op][FM__MAX_UNITS], as those of a plan; all 0: unit 0's). A
   pure function. Error: MEMORY. */
fm_status fm__deal(const fm__tape *tape, const double (*shares)[FM__MAX_UNITS], uint32_t n_unit,
                   uint8_t *owner, fm_error *error);

/* ---- copies.c ---- */

/* Fills plan->copies for a plan whose ops are decided: what unit `unit`, which alone works on its
   own instance of the scratch, must fetch and hand out. A pure function. */
fm_status fm__plan_add_copies(fm__plan *plan, const fm__tape *tape, uint32_t unit, fm_error *error);
/* Bytes that a copy moves for one row of its tensor; a TOKENS copy moves only its rows. */
size_t fm__plan_copy_row_bytes(const fm__tape *tape, const fm__plan_copy *copy);

/* ---- run.c ---- */

typedef struct fm__exec fm__exec;

/* Records the tape on the units as the plan says. tape, plan and units must outlive it. */
fm_status fm__exec_create(fm__exec **out, const fm__tape *tape, const fm__plan *plan,
                          fm__device *const *units, uint32_t n_unit, fm_error *error);
void fm__exec_destroy(fm__exec **exec);
/* Submits one run and returns at once; *point is the timeline value that marks its end. run (and
   what it points to) must stay valid until then; run->status is cleared here. Allocates nothing.
   Runs end in the order of their submission. With READY or EAGER dependencies only the first step
   is handed over here, fm__exec_wait() does the rest, and a run must have been waited for before
   the next (STATE). A plan with copies needs run->mirrors[] of the scratch. After an error the run
   is over: nothing of it is in flight (a unit that refuses when others have begun is waited for).
   One thread at a time. Where a plan uses several units, execs that share buffers must not have
   runs in flight together. Those that share none may, from several threads: with EVENT or BATCH
   they must name the same run->order, which is held while the pieces are handed over and not while
   anybody waits for them; READY and EAGER need none, as none of their pieces waits in a queue. */
fm_status fm__exec_submit(fm__exec *exec, const fm__run *run, uint64_t *point, fm_error *error);
/* Waits for a point and returns the run's status: a failed op is named with its row; a device that
   was lost is DEVICE, and nothing of the run is in flight any more. */
fm_status fm__exec_wait(fm__exec *exec, uint64_t point, const fm__run *run, fm_error *error);

/* ---- times.c ---- */

/* When each unit worked during the last run that was waited for. No run may be in flight. All zero
   where no unit keeps time. A unit is busy when it computes, and when it copies weights that it
   streams, whichever copies these are: those of the next run, too, as far as they lie in this one,
   and those of this one only as far. Of a copy that kept no time (observed) the part before its run
   is not known, and counts in neither. */
typedef struct fm__exec_times {
    uint64_t begin_ns, end_ns;       /* first begin and last end, fm__now_ns() scale */
    uint64_t busy_ns[FM__MAX_UNITS]; /* either; the two go on at the same time */
    uint64_t compute_ns[FM__MAX_UNITS], copy_ns[FM__MAX_UNITS];
    /* Of the busy time: for what units share, which is parts of divided ops and, where several
       compute products, all products. */
    uint64_t divided_ns[FM__MAX_UNITS];
    uint64_t overlap_ns; /* both of the first two units computed */
    /* Some copies kept no time: of those for this run, copy_ns is the most that they took in it. */
    bool observed[FM__MAX_UNITS];
    uint32_t n_segment[FM__MAX_UNITS];
} fm__exec_times;
void fm__exec_get_times(const fm__exec *exec, fm__exec_times *times);
/* Every recording of the last run: unit, first op, span. For reports; n is the room, returned is
   how many there are. */
typedef struct fm__exec_span {
    uint8_t unit;
    uint32_t first_op, last_op;
    fm__span span;
    /* What of the unit's busy time counts for it. Of pieces of what is shared that adds up to the
       divided_ns of the unit: what copies and computing do at the same time is counted once. */
    double busy_ns;
} fm__exec_span;
uint32_t fm__exec_spans(const fm__exec *exec, fm__exec_span *spans, uint32_t n);
/* Time that lies in spans of both lists. Each list in order of time. */
uint64_t fm__overlap_ns(const fm__span *a, uint32_t n_a, const fm__span *b, uint32_t n_b);
