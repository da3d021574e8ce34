/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/gate.h: the gate: which arm runs next. A pure state machine, fed with samples and a clock.
 *
 * Owns: nothing (the caller holds the struct). Never does: time, allocate, run. Called from: the
 * running thread, for one (row bucket, cache-length bucket).
 *
 * An arm is a way to run the same tapes: "cpu", "gpu", "gpu-eager", "split". Each call of the
 * engine is one sample, whose time is divided by the work predicted for its batch (any unit that is
 * proportional to the time, the same for all arms), so that unequal batches compare.
 */
#pragma once

#include "base/base.h"

enum {
    FM__GATE_ARMS = 6,
    FM__GATE_WINDOW = 9, /* samples a median is taken of, at most */
    FM__GATE_PAIRS = 8,  /* A B B A, twice */
    /* Calls on the active arm's budget that may be spent before they are earned: what the budget of
       the first so many calls will be. An arm of which nothing is known must be looked at early, as
       it may be the better one; a prediction makes that less urgent. */
    FM__GATE_LENT_KNOWN = 100,
    FM__GATE_LENT_UNKNOWN = 400,
    FM__GATE_BACKOFF = 32, /* calls after a comparison before the next one; doubles */
    /* Calls from a lasting change to the switch, where budget and back-off allow the comparison:
       half a window to see it, one to begin, A b B B a A twice with the first call after each
       change left out. */
    FM__GATE_SWITCH_CALLS = 20,
    /* Calls of the active arm, most of them off its prediction by `expire`, after which predictions
       do not hold any more: two windows. */
    FM__GATE_EXPIRE_CALLS = 2 * FM__GATE_WINDOW,
};

typedef enum fm__gate_phase {
    FM__GATE_PROBATION, /* arms are measured, one after the other */
    FM__GATE_LOCKED,    /* the active arm runs; its drift is watched */
    FM__GATE_PAIRED,    /* A B B A: the active arm against one other, after drift */
} fm__gate_phase;

typedef struct fm__gate_options {
    uint32_t probation; /* samples an arm gets, its first call not counted; 0: 3 */
    double budget; /* share of all time that calls slower than the active arm's may lose; 0: 0.01 */
    double hysteresis; /* an arm must be faster by it to become active; 0: 0.03 */
    double drift;      /* a change of the active arm's median by it begins a comparison; 0: 0.10 */
    double hopeless;   /* arms predicted slower than the best by it are never run; 0: 1.3 */
    double expire;     /* predictions that are off by it, either way, expire; 0: as hopeless, since
                          an arm that was left out by them could be the best then */
    double work;       /* of the call that predictions were measured with: only calls whose work is
                          within a quarter of it are held against them; 0: predictions stay */
} fm__gate_options;

typedef struct fm__gate_arm {
    const char *name; /* static */
    double predicted; /* time for one unit of work, ns; 0: unknown */
    bool enlarges;    /* a probe of it touches memory that the active arm does not */
    /* state */
    bool hopeless;
    bool removed;                    /* it failed */
    bool proved;                     /* its probation is over */
    uint32_t n_sample;               /* in the ring below, at most FM__GATE_WINDOW */
    uint32_t next;                   /* place of the next one */
    double samples[FM__GATE_WINDOW]; /* ns for one unit of work */
    double median;                   /* of the samples; 0: none */
    double best;                     /* the lowest median that it had */
    double lowest;                   /* of the calls of its latest probes, first ones included */
    uint64_t calls, probes;
} fm__gate_arm;

typedef enum fm__gate_event {
    FM__GATE_KEPT,      /* nothing was decided */
    FM__GATE_LOCK,      /* probation is over */
    FM__GATE_DRIFT,     /* the active arm's time changed: others will be looked at */
    FM__GATE_ALL_DRIFT, /* the others changed alike: no switch */
    FM__GATE_SWITCH,
    FM__GATE_NO_SWITCH, /* the comparison ended without one; the next waits longer */
    FM__GATE_FORBIDDEN, /* a probe was due and not allowed: budget or memory */
    FM__GATE_EXPIRED,   /* predictions do not hold any more: no arm is hopeless by them, and all are
                           measured again, as the budget allows */
} fm__gate_event;

typedef struct fm__gate {
    fm__gate_options options;
    fm__gate_arm arms[FM__GATE_ARMS];
    uint32_t n_arm, active;
    fm__gate_phase phase;
    /* What follows is the state machine's own. */
    uint32_t probing;          /* PROBATION: the arm whose calls follow each other, or UINT32_MAX */
    uint32_t challenger, step; /* PAIRED: the other arm, and how far A B B A A B B A has come */
    uint32_t last;       /* arm of the call before: the first call after a change is left out */
    bool settled;        /* `last` is valid */
    double reference;    /* the active arm's median when it was locked */
    bool reference_full; /* it is the median of a full window */
    double pair[FM__GATE_PAIRS];
    double before;            /* PAIRED: the challenger's median until now */
    bool drifted;             /* the active arm's median is off its reference */
    uint32_t left;            /* an arm that was active before: it may recover */
    uint32_t compared;        /* mask of the challengers that were compared since */
    bool all_alike;           /* and all of them had changed like the active arm */
    bool refused;             /* a probe is due and was not allowed: said once */
    bool chosen;              /* fm__gate_choose() was called since the last feed */
    bool charged;             /* `lost_ns` holds what the chosen probe is expected to lose */
    double lost_before;       /* without that */
    double aftermath;         /* share of a call that the first call after a probe loses */
    double warm_up;           /* and that a probe's own first call loses beyond those after it */
    double work_sum;          /* of all calls */
    double work_high;         /* a bound on the work of a call: falls slowly */
    double spent_ns, lost_ns; /* of all calls; by probes, against the active arm's median */
    uint64_t calls, switches, probes, forbidden;
    uint32_t off;                 /* calls off the prediction, less those that were not */
    bool expired;                 /* predictions only say what a probe may cost */
    uint64_t wait_calls, backoff; /* calls until the next comparison may begin; doubles */
    fm__gate_event event; /* the weightiest of the last fm__gate_choose() and fm__gate_feed() */
    char reason[128];     /* of that event: a sentence */
} fm__gate;

/* options may be NULL. n_arm: 1..FM__GATE_ARMS; arms 0.. in order of preference where nothing is
   known. The arm with the lowest prediction, or arm 0, is active until another is measured to be
   faster. */
void fm__gate_init(fm__gate *gate, const fm__gate_options *options, const char *const *names,
                   const double *predicted, const bool *enlarges, uint32_t n_arm);
/* The arm of the next call. memory_tight: probes that enlarge the working set are forbidden. */
uint32_t fm__gate_choose(fm__gate *gate, bool memory_tight);
/* The call that fm__gate_choose() chose took `ns`, for `work` units of work (> 0). A call of
   another arm is counted and decides nothing. A call without a time is not fed. */
void fm__gate_feed(fm__gate *gate, uint32_t arm, double ns, double work);
/* An arm that failed is out for good; another becomes active. false: none is left. */
bool fm__gate_remove(fm__gate *gate, uint32_t arm);
const char *fm__gate_event_name(fm__gate_event event);
