/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/device.h: the device room: what a unit that can run ops offers.
 *
 * Owns: devices, their buffers, recordings and queues, timelines. Never does: decide who computes
 * what (exec does), or know architectures. Called from: the loading thread (create, buffers,
 * record) and the running thread (submit, wait). The front end (device.c) validates once; backends
 * trust it.
 */
#pragma once

#include "tape/tape.h"

typedef struct fm__device fm__device;
typedef struct fm__buffer fm__buffer;
typedef struct fm__recording fm__recording;

/* ---- timeline.c: a counter that only grows and that units and the host wait on ---- */

typedef struct fm__timeline {
    fm__counter counter;
} fm__timeline;

void fm__timeline_init(fm__timeline *timeline);
uint64_t fm__timeline_value(fm__timeline *timeline);
void fm__timeline_signal(fm__timeline *timeline, uint64_t value);
void fm__timeline_wait(fm__timeline *timeline, uint64_t value);

/* ---- properties ---- */

typedef struct fm__device_properties {
    char name[32]; /* "host" */
    char kind[16]; /* "cpu", "gpu" */
    char description[128];
    char rung[32];
    char features[128];
    uint32_t threads;
    bool unified; /* addresses host memory */
    uint64_t memory_bytes;
    uint64_t dispatch_ns; /* cost of handing over a submission, as measured or stated; 0 unknown */
} fm__device_properties;

/* ---- what a recording covers, and what a run binds ---- */

/* A range of one op on one axis, as the plan gives it. Channels: [begin, end) of N, multiples of
   fm__device_channel_granule() (the last may end at N). Tokens: begin and end are 65536ths of the
   run's rows, which fm__token_border() resolves at run time (end 0 = all). */
typedef enum fm__axis {
    FM__AXIS_WHOLE,
    FM__AXIS_CHANNELS,
    FM__AXIS_TOKENS,
    FM__AXIS_GROUPS
} fm__axis;

typedef struct fm__op_range {
    uint32_t op;
    fm__axis axis;
    uint32_t begin, end;
} fm__op_range;

enum { FM__TOKEN_PARTS = 1 << 16 };

/* The row at which the range border `part` of FM__TOKEN_PARTS lies in a run of `rows` rows. */
static inline uint32_t fm__token_border(uint32_t rows, uint32_t part) {
    return (uint32_t)(((uint64_t)rows * part) / FM__TOKEN_PARTS);
}

/* First failure inside a run (lowest op, then lowest row wins); shared by all units of a run. */
typedef struct fm__run_status {
    _Atomic uint64_t first;  /* (op << 32 | row) of the failure, UINT64_MAX: none */
    _Atomic uint32_t status; /* fm_status of it */
} fm__run_status;

void fm__run_status_clear(fm__run_status *status);
void fm__run_status_report(fm__run_status *status, uint32_t op, uint32_t row, fm_status code);
/* An op before `op` has failed: `op` need not run. */
bool fm__run_status_failed_before(fm__run_status *status, uint32_t op);

/* Everything a recording needs to be replayed once. Valid until the run's last signal. */
typedef struct fm__run {
    const fm__batch_view *batch;
    fm__buffer *buffers[FM__SLOT_COUNT];
    fm__run_status *status;
    _Atomic uint32_t *cancel; /* NULL, or: once not 0, ops that have not begun need not run */
} fm__run;

/* One recorded piece of work in a submission. Values are relative to the submission's base. */
typedef struct fm__segment {
    fm__recording *recording; /* NULL: only waits and signals */
    fm__timeline *wait;       /* NULL: no wait */
    uint64_t wait_value;
    fm__timeline *signal; /* NULL: no signal */
    uint64_t signal_value;
} fm__segment;

typedef struct fm__span { /* when a recording last ran, fm__now_ns() scale */
    uint64_t begin_ns, end_ns;
} fm__span;

/* ---- the vtable, grouped by noun; entries marked optional may be NULL ---- */

typedef struct fm__device_vtable {
    const char *backend; /* "host", "null" */
    void (*destroy)(fm__device *device);
    /* buffers */
    fm_status (*buffer_create)(fm__device *device, size_t bytes, fm__buffer **out, fm_error *error);
    fm_status (*buffer_import)(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                               fm_error *error); /* optional: memory stays the caller's */
    void *(*buffer_map)(fm__buffer *buffer);     /* host address, NULL if it has none */
    void (*buffer_destroy)(fm__buffer *buffer);
    /* ops */
    bool (*op_supports)(fm__device *device, const fm__tape *tape, const fm__op *op,
                        const char **reason);
    const char *(*op_kernel)(fm__device *device, const fm__tape *tape,
                             const fm__op *op); /* optional */
    fm_status (*record)(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                        uint32_t n_range, fm__recording **out, fm_error *error);
    void (*recording_destroy)(fm__recording *recording);
    /* queue */
    fm_status (*submit)(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                        const fm__run *run, uint64_t base,
                        fm_error *error);                 /* never blocks on work */
    fm__span (*recording_span)(fm__recording *recording); /* optional */
} fm__device_vtable;

struct fm__device {
    const fm__device_vtable *vtable;
    fm__device_properties properties;
};

struct fm__buffer { /* backends put this first */
    fm__device *device;
    size_t bytes;
};

struct fm__recording { /* backends put this first */
    fm__device *device;
    const fm__tape *tape;
};

/* ---- device.c: the front end ---- */

void fm__device_destroy(fm__device **device);
fm_status fm__device_buffer_create(fm__device *device, size_t bytes, fm__buffer **out,
                                   fm_error *error);
fm_status fm__device_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                   fm_error *error);
void *fm__device_buffer_map(fm__buffer *buffer);
void fm__device_buffer_destroy(fm__buffer **buffer);
bool fm__device_op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                            const char **reason);
const char *fm__device_op_kernel(fm__device *device, const fm__tape *tape,
                                 const fm__op *op); /* "" if none */
fm_status fm__device_record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                            uint32_t n_range, fm__recording **out, fm_error *error);
/* Waits until the device no longer touches the recording or the timelines it was submitted with. */
void fm__device_recording_destroy(fm__recording **recording);
/* Hands segments over and returns; a full queue is FM_ERROR_LIMIT, never a wait. A failed submit
   hands over nothing. The segments are copied; run, and what it points to, must stay valid until
   the last signal, timelines until the recordings are destroyed. */
fm_status fm__device_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                            const fm__run *run, uint64_t base, fm_error *error);
/* After the recording's signal; zeros where the backend keeps no time. */
fm__span fm__device_recording_span(fm__recording *recording);
/* Columns that a CHANNELS range of this op counts in; 0: the op has no such axis. *channels = N. */
uint32_t fm__device_channel_granule(const fm__tape *tape, const fm__op *op, uint32_t *channels);

/* ---- backends ---- */

typedef struct fm__host_options {
    uint32_t threads; /* 0: one a physical core */
    const char *rung; /* NULL: best */
    /* Logical processors to pin to, `threads` of them (-1: not pinned); NULL: one a core as hwloc
       lists them, and threads beyond the cores are not pinned. */
    const int *cpus;
    const char *name; /* NULL: "host" */
} fm__host_options;

/* A team of pinned threads that runs recordings in order. */
fm_status fm__device_host_create(fm__device **out, const fm__host_options *options,
                                 fm_error *error);
/* The host device's kernel table, for reports. */
const struct fm__kernels *fm__device_host_kernels(const fm__device *device);

typedef struct fm__null_options {
    uint64_t memory_bytes;   /* buffers beyond it fail */
    uint64_t fail_submit_at; /* the n-th submit fails (1-based); 0: never */
    const char *refuse_op;   /* op name that op_supports() denies; NULL: none */
} fm__null_options;

/* Computes nothing; signals at once. For plans, memory and failure paths. */
fm_status fm__device_null_create(fm__device **out, const fm__null_options *options,
                                 fm_error *error);
