/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/host.h: the host device: a team of pinned threads over the kernel table.
 *
 * Owns: its threads, their scratch, the queue. Never does: validate (device.c did), allocate while
 * it runs. Called from: device.c only; the files of this folder share the types below.
 *
 * Every thread of the team runs every step of a recording, taking the part of it that is its own,
 * and meets the others where a step needs what they wrote. Thread 0, the leader, also takes
 * submissions from the queue, waits before them and signals after them.
 */
#pragma once

#include <pthread.h>
#include <stdalign.h>

#include "cpu/cpu.h"
#include "device/device.h"

typedef struct fm__host fm__host;
typedef struct fm__host_work fm__host_work;

/* One op kind: runs this thread's part of the step, returns when no part is left for it. */
typedef void fm__host_op_fn(const fm__host_work *work);

/* ---- record.c ---- */

typedef struct fm__host_step {
    const fm__op *op;
    uint32_t index; /* of op in the tape */
    bool barrier;   /* the team meets before it */
    bool is_product;
    bool prepared; /* a product whose tokens a step before it prepares, for all threads */
    /* > 0: this and the steps behind it that are row-wise too, after a meeting. With one row in the
       batch the last thread to arrive runs them all before the others go on, which saves the
       meeting behind them. */
    uint32_t n_alone;
    uint32_t next_product; /* steps to the next one that reads panels; 0: none */
    fm__axis axis;
    uint32_t begin, end;
    fm__copy copy;  /* not NONE: moves `tensor` instead of computing the op */
    int16_t tensor; /* of a copy */
    fm__host_op_fn *fn;
} fm__host_step;

/* parts.c: where blocks of keys wait to be merged, within one step, and prepared tokens for
   the products behind them; shared by recordings. */
typedef struct fm__host_parts {
    alignas(64) struct fm__host_parts *older; /* smaller ones, which older recordings use */
    size_t floats;                            /* of states */
    float *states;                            /* or the prepared tokens; 64-byte aligned */
    _Atomic uint32_t *done;                   /* blocks of a row and kv head; 0 between steps */
} fm__host_parts;

typedef struct fm__host_recording {
    fm__recording base;
    fm__host *host;
    uint32_t n_step;
    fm__host_step *steps;
    _Atomic uint32_t *next;      /* (n_step): the next task of a step that hands out tasks */
    const fm__host_parts *parts; /* NULL: nothing needs them, or one thread */
    fm__span span;
} fm__host_recording;

/* before[i] = whether range i must wait until the team has finished those before it. Pure. */
void fm__host_barriers(const fm__tape *tape, const fm__op_range *ranges, uint32_t n_range,
                       bool *before);
fm_status fm__host_record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                          uint32_t n_range, fm__recording **out, fm_error *error);
void fm__host_recording_destroy(fm__recording *recording);
fm__span fm__host_recording_span(fm__recording *recording);

/* ---- queue.c: a ring of segments; many threads push, the leader takes ---- */

enum { FM__HOST_QUEUE = 4096 };

typedef struct fm__host_entry {
    fm__host_recording *recording; /* NULL: only waits and signals */
    const fm__run *run;
    fm__timeline *wait, *signal;
    uint64_t wait_value, signal_value; /* absolute */
    bool stop;
} fm__host_entry;

typedef struct fm__host_queue {
    pthread_mutex_t lock;     /* of pushing; never held while work runs */
    fm__counter pushed, done; /* entries ever */
    fm__host_entry *ring;     /* (FM__HOST_QUEUE) */
} fm__host_queue;

fm_status fm__host_queue_init(fm__host_queue *queue, fm_error *error);
void fm__host_queue_finish(fm__host_queue *queue);
fm_status fm__host_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                          const fm__run *run, uint64_t base, fm_error *error);
/* Waits until all that was pushed is done; its timelines are no longer touched then. */
void fm__host_queue_drain(fm__host_queue *queue);
/* Makes fm__host_lead() return when it has done all before. */
void fm__host_queue_stop(fm__host_queue *queue);
/* The leader's loop. */
void fm__host_lead(fm__host *host);

/* ---- host.c ---- */

typedef struct fm__host_member {
    fm__host *host;
    uint32_t index;
    fm__thread *thread;
    uint8_t *scratch; /* FM__HOST_SCRATCH bytes */
} fm__host_member;

struct fm__host {
    fm__device device;
    fm__kernels kernels;
    uint32_t threads;
    fm__host_member *members; /* (threads) */
    fm__host_queue queue;
    fm__counter announced; /* recordings ever that are next, their inputs perhaps still to come */
    fm__counter go;        /* 1: every thread was started, or `incomplete` is set */
    bool incomplete;       /* not all could be started: those that were end at once */
    bool stop;             /* nothing was announced: the threads end */
    /* What the team runs: set before it is announced, and until the meeting that ends it. */
    fm__host_recording *recording;
    const fm__run *run;
    fm__host_parts *parts; /* the latest, under the lock */
    pthread_mutex_t parts_lock;
    /* The meeting place: arrivals ever, and meetings completed ever. */
    alignas(64) _Atomic uint64_t arrived;
    alignas(64) fm__counter met;
};

/* Returns when every thread of the team has called it. ahead: NULL, or the product behind the
   meeting, of which a thread that waits reads. alone: NULL, or what the last one to arrive does
   before the others go on. */
typedef void fm__host_alone_fn(void *argument);
void fm__host_meet(fm__host *host, const fm__host_work *ahead, fm__host_alone_fn *alone,
                   void *argument);
/* The first half of a meeting: what host->met comes to once all have arrived. */
uint64_t fm__host_arrive(fm__host *host);
/* The leader's wait for what the recording that was announced needs of other units. */
void fm__host_await_inputs(fm__host *host, fm__timeline *timeline, uint64_t value);
/* A member's share of host->recording; all members call it between two meetings. */
void fm__host_run(fm__host *host, uint32_t member);

/* ---- buffers.c ---- */

fm_status fm__host_buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                                 fm__buffer **out, fm_error *error);
fm_status fm__host_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                 fm_error *error);
void *fm__host_buffer_map(fm__buffer *buffer);
void fm__host_buffer_destroy(fm__buffer *buffer);
fm_status fm__host_buffer_write(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                                fm_error *error);
fm_status fm__host_buffer_read(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                               fm_error *error);
/* Where a buffer's memory is for the device itself; NULL: neither its own nor mapped. */
uint8_t *fm__host_memory(const fm__device *device, fm__buffer *buffer);

/* ---- ops.c, linear.c, attention.c ---- */

enum {
    /* Of one tile of a product that cannot go straight to its tensor; a GLU needs two. */
    FM__HOST_TILE = 256 * 1024,
    FM__HOST_SCRATCH = FM__LINEAR_SCRATCH + 2 * FM__HOST_TILE > FM__ATTENTION_SCRATCH
                           ? FM__LINEAR_SCRATCH + 2 * FM__HOST_TILE
                           : FM__ATTENTION_SCRATCH,
};

struct fm__host_work {
    const fm__device *device;
    const fm__kernels *kernels;
    const fm__tape *tape;
    const fm__host_step *step;
    const fm__run *run;
    uint32_t thread, threads;
    uint8_t *scratch;
    const fm__host_parts *parts;
    _Atomic uint32_t *next;
};

/* Takes the next task of the step. Which thread gets which task is a matter of timing; what a task
   computes is not. */
static inline uint32_t fm__host_take(const fm__host_work *work) {
    return atomic_fetch_add_explicit(work->next, 1, memory_order_relaxed);
}

/* Rows of the run that a step covers: its token range of the batch's or the outputs' rows. */
typedef struct fm__host_rows {
    uint32_t begin, end;
} fm__host_rows;
fm__host_rows fm__host_step_rows(const fm__host_work *work);
/* Row `row` of a tensor in the run's buffers. */
uint8_t *fm__host_row(const fm__host_work *work, int16_t tensor, uint32_t row);

/* ---- parts.c ---- */

/* Tasks of attention that a thread is to have: keys are cut only where rows and kv heads make
   fewer. So many counters are enough. */
enum { FM__HOST_ATTENTION_TASKS = 4 };

uint64_t fm__host_scratch_bytes(fm__device *device, const fm__tape *tape, bool or_shorter);
fm_status fm__host_scratch_reserve(fm__device *device, uint64_t bytes, fm_error *error);
fm__held fm__host_held(fm__device *device);
/* Memory for the parts of one row at least, for the ranges' attention, and for the prepared tokens
   of each product. NULL: nothing needs any. */
fm_status fm__host_parts_reserve(fm__host *host, const fm__tape *tape, const fm__op_range *ranges,
                                 uint32_t n_range, const fm__host_parts **out, fm_error *error);
void fm__host_parts_free(fm__host *host);

/* ---- ahead.c ---- */

/* One of the two: a counter, or a timeline. */
typedef struct fm__host_awaited {
    fm__counter *counter;
    fm__timeline *timeline;
    uint64_t value; /* at least */
} fm__host_awaited;

/* Asks for what the thread reads first in the work's step, a product, until it has asked for enough
   or what is awaited has come. */
void fm__host_read_ahead(const fm__host_work *work, const fm__host_awaited *awaited);

bool fm__host_op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                          const char **reason);
const char *fm__host_op_kernel(fm__device *device, const fm__tape *tape, const fm__op *op);
fm__host_op_fn *fm__host_op(fm__op_kind kind);
/* A copy between the two instances of a tensor; every thread moves its own rows. */
void fm__host_copy(const fm__host_work *work);
/* Tokens of a product for all tasks of it and of those that follow and read the same. */
void fm__host_prepare(const fm__host_work *work);
void fm__host_linear(const fm__host_work *work);
void fm__host_linear_glu(const fm__host_work *work);
void fm__host_attention(const fm__host_work *work);
/* How the kernel of the product wants its tokens prepared; NULL: it does that task by task. */
const fm__linear_shared *fm__host_shared(const fm__host *host, const fm__tape *tape,
                                         const fm__op *op);

enum { FM__HOST_ROUNDS = 8 };

/* How a product is dealt out: in turns, each some panels x a tile of tokens, the tiles of the same
   panels one after the other. Rounds follow each other and their turns get smaller. A pure
   function; results never depend on it. */
typedef struct fm__host_cut {
    uint32_t panels, tokens; /* of the product */
    uint32_t tile, n_tile;   /* tokens of a turn */
    uint32_t n_round;        /* 0: nothing to do */
    struct {
        uint32_t panels, count; /* of a turn; how often, for each tile */
    } rounds[FM__HOST_ROUNDS];
} fm__host_cut;

/* What is done in one call: panels and tokens from the first to before the last; no panels: none.
 */
typedef struct fm__host_turn {
    uint32_t panel_begin, panel_end, token_begin, token_end;
} fm__host_turn;

/* Where a thread reads panels next. */
typedef struct fm__host_ahead {
    const uint8_t *at; /* as fm__linear_args.ahead */
    const fm__weight *weight;
    bool backwards;
} fm__host_ahead;

/* Where a kernel begins with panels [begin, end) of a weight, given a few tokens. Pure. */
fm__host_ahead fm__host_reading_begins(const fm__weight *weight, const fm__linear_kernel *kernel,
                                       uint32_t begin, uint32_t end, uint32_t tokens);

/* Lines of memory that follow each other, up or down. */
typedef struct fm__host_region {
    const uint8_t *at; /* its first byte; backwards: the byte behind its last */
    size_t bytes;      /* 0: none */
    bool backwards;
} fm__host_region;

/* What the thread reads first in the work's step, a product; none: the batch has many rows. */
fm__host_region fm__host_first_region(const fm__host_work *work);

/* Turn i: those below the number of threads belong to a thread each, the later ones to whoever
   takes them. */
fm__host_turn fm__host_cut_turn(const fm__host_cut *cut, uint32_t i);

/* Panels that a call should at least get: a kernel of quantised weights takes those of few tokens
   one by one. */
uint32_t fm__host_panels(const fm__linear_kernel *kernel, const fm__type *type, uint32_t tokens);

/* panel_bytes: of one panel; mr, nr: the kernel's register tile in tokens and panels. tokens,
   panels > 0. */
fm__host_cut fm__host_cut_product(uint32_t panels, uint32_t tokens, size_t panel_bytes, uint32_t mr,
                                  uint32_t nr, uint32_t threads);
