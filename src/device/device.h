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

#include <pthread.h>

#include "tape/tape.h"

typedef struct fm__device fm__device;
typedef struct fm__buffer fm__buffer;
typedef struct fm__recording fm__recording;

/* ---- timeline.c: a counter that only grows and that units and the host wait on ---- */

/* One unit signals a timeline, any unit and the host wait on it. A device whose queue waits and
   signals by itself (vulkan) holds a native twin of it. Where such a device signals, the host asks
   the twin for the value; where the host signals, it passes the value on to the twins. */
typedef struct fm__timeline {
    fm__counter counter;  /* what host threads signalled */
    fm__device *owner;    /* NULL: host threads signal; else the device whose queue does */
    fm__device *attached; /* NULL, or the one device that holds a twin (it may be the owner) */
    void *native;         /* the twin */
} fm__timeline;

/* For host threads and host devices only: needs no fm__timeline_finish(). */
void fm__timeline_init(fm__timeline *timeline);
/* units[signaller] signals, every unit may wait. At most one unit may have a queue of its own kind
   (fm__device_has_own_queue()): two are UNSUPPORTED. */
fm_status fm__timeline_create(fm__timeline *timeline, fm__device *const *units, uint32_t n_unit,
                              uint32_t signaller, fm_error *error);
void fm__timeline_finish(fm__timeline *timeline);
uint64_t fm__timeline_value(fm__timeline *timeline);
/* From the host; also in place of an owner that will not signal any more. */
void fm__timeline_signal(fm__timeline *timeline, uint64_t value);
/* Polls briefly, then sleeps. false: the owner was lost and the value will never come. */
bool fm__timeline_wait(fm__timeline *timeline, uint64_t value);

/* ---- properties ---- */

typedef struct fm__device_properties {
    char name[32]; /* "host" */
    char kind[16]; /* "cpu", "gpu" */
    char description[128];
    char rung[32];
    char features[128];
    char driver[64]; /* name and version, a part of calibration keys; "" for the host */
    uint32_t threads;
    bool unified; /* addresses host memory as fast as the host does, and the host its own */
    /* Unified by request: it works on host memory over a bus, and has faster memory of its own, for
       weights and what it keeps. */
    bool hosted;
    bool software; /* a "gpu" that the processor emulates */
    uint64_t memory_bytes;
    uint64_t dispatch_ns; /* cost of handing over a submission, as measured or stated; 0 unknown */
    /* Of its memory that it takes once weights are streamed, less when it has no more left then; 0:
       none. */
    uint64_t ring_bytes;
} fm__device_properties;

/* Weights and what it keeps lie in memory of its own. */
static inline bool fm__device_has_own(const fm__device_properties *properties) {
    return !properties->unified || properties->hosted;
}

/* ---- what a recording covers, and what a run binds ---- */

/* A range of one op on one axis, as the plan gives it. Channels: [begin, end) of N, multiples of
   fm__device_channel_granule() (the last may end at N). Tokens: begin and end are 65536ths of the
   run's rows, which fm__token_border() resolves at run time (end 0 = all). PRODUCTS is for whole
   plans: their ops are WHOLE then. */
typedef enum fm__axis {
    FM__AXIS_WHOLE,
    FM__AXIS_CHANNELS,
    FM__AXIS_TOKENS,
    FM__AXIS_PRODUCTS
} fm__axis;

/* A discrete device works on its own instance of the scratch slot, units that address host memory
   on the mirror (fm__run). Copies between the two are recorded on the discrete device. */
typedef enum fm__copy {
    FM__COPY_NONE,
    FM__COPY_TO_HOST,  /* from the device's instance of a tensor to the mirror */
    FM__COPY_TO_DEVICE /* the other way */
} fm__copy;

typedef struct fm__op_range {
    uint32_t op;
    fm__axis axis;
    uint32_t begin, end;
    /* Not NONE: instead of computing `op`, copy the rows of `tensor`; CHANNELS: only its f32
       columns [begin, end), TOKENS: only those rows, WHOLE: all of every row. A copy TO_DEVICE
       stands before the op that reads it, one TO_HOST behind the op that wrote it. */
    fm__copy copy;
    int16_t tensor;
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
    fm__buffer *buffers[FM__SLOT_COUNT]; /* the main unit's instances */
    /* Instances for units that address host memory, where they cannot address the main unit's; NULL
       where buffers[] serves every unit. */
    fm__buffer *mirrors[FM__SLOT_COUNT];
    fm__run_status *status;
    _Atomic uint32_t *cancel; /* NULL, or: once not 0, ops that have not begun need not run */
    /* NULL, or held while a run enters the queues of several units. Runs that may be in flight
       together and have two units in common share one: they then stand in the same order in all
       queues. Else a unit could wait for what lies, on another one, behind a run that waits for
       it. */
    pthread_mutex_t *order;
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

/* When a device was at work for a recording: it computed, or copied weights that the recording
   reads. The two go on at the same time. */
typedef struct fm__work {
    fm__span span;
    bool copy; /* end_ns UINT64_MAX: it is under way still */
    /* A copy that kept no time, as its queue keeps none or no room for it was free: from its
       hand-over until what reads it began, so it took this long at most. */
    bool observed;
} fm__work;

/* What a device keeps of its own accord, until it is destroyed: bytes. */
typedef struct fm__held {
    uint64_t scratch, largest; /* for recordings, and the largest piece of that */
    uint64_t ring;             /* for streamed weights */
} fm__held;

typedef enum fm__memory {
    FM__MEMORY_LOCAL, /* what the device reads fastest; may have no host address */
    FM__MEMORY_HOST,  /* host memory, cached there, that the device addresses too */
} fm__memory;

/* ---- the vtable, grouped by noun; entries marked optional may be NULL ---- */

typedef struct fm__device_vtable {
    const char *backend; /* "host", "null" */
    void (*destroy)(fm__device *device);
    /* buffers */
    fm_status (*buffer_create)(fm__device *device, size_t bytes, fm__memory memory,
                               fm__buffer **out, fm_error *error);
    fm_status (*buffer_import)(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                               fm_error *error); /* optional: memory stays the caller's */
    void *(*buffer_map)(fm__buffer *buffer);     /* host address, NULL if it has none */
    void (*buffer_destroy)(fm__buffer *buffer);
    /* optional, for buffers without a host address; they return when it is done */
    fm_status (*buffer_write)(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                              fm_error *error);
    fm_status (*buffer_read)(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                             fm_error *error);
    /* ops */
    bool (*op_supports)(fm__device *device, const fm__tape *tape, const fm__op *op,
                        const char **reason);
    const char *(*op_kernel)(fm__device *device, const fm__tape *tape,
                             const fm__op *op); /* optional */
    fm_status (*record)(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                        uint32_t n_range, fm__recording **out, fm_error *error);
    void (*recording_destroy)(fm__recording *recording);
    /* both or none: what the device keeps for recordings, which use it in turn */
    uint64_t (*scratch_bytes)(fm__device *device, const fm__tape *tape, bool or_shorter);
    fm_status (*scratch_reserve)(fm__device *device, uint64_t bytes, fm_error *error);
    fm__held (*held)(fm__device *device); /* optional */
    /* queue */
    fm_status (*submit)(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                        const fm__run *run, uint64_t base,
                        fm_error *error);                 /* never blocks on work */
    fm__span (*recording_span)(fm__recording *recording); /* optional */
    /* optional: where a span holds waits, or the device does things beside it */
    uint32_t (*recording_work)(fm__recording *recording, fm__work *work, uint32_t room);
    /* optional: once a run's last signal has come: what the device noticed goes to run->status */
    fm_status (*run_finish)(fm__device *device, const fm__tape *tape, const fm__run *run,
                            fm_error *error);
    bool (*is_lost)(fm__device *device); /* optional: it computes no more, until it is destroyed */
    /* timelines: all or none, of a device whose queue waits and signals by itself */
    fm_status (*timeline_attach)(fm__device *device, void **native, fm_error *error);
    void (*timeline_detach)(fm__device *device, void *native);
    uint64_t (*timeline_value)(fm__device *device, void *native);
    bool (*timeline_wait)(fm__device *device, void *native, uint64_t value); /* false: lost */
    void (*timeline_signal)(fm__device *device, void *native, uint64_t value);
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
    uint32_t slots; /* bit s: its ranges touch slot s; set by the front end */
};

/* ---- device.c: the front end ---- */

void fm__device_destroy(fm__device **device);
fm_status fm__device_buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                                   fm__buffer **out, fm_error *error);
/* The memory stays the caller's, and outlives the buffer. What ops read or write of it begins at
   multiples of 16 bytes: GPUs drop the lower bits of such an address (seen on an H200). */
fm_status fm__device_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                   fm_error *error);
void *fm__device_buffer_map(fm__buffer *buffer);
void fm__device_buffer_destroy(fm__buffer **buffer);
/* Through the host address where there is one. No run may use the buffer meanwhile. */
fm_status fm__device_buffer_write(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                                  fm_error *error);
fm_status fm__device_buffer_read(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                                 fm_error *error);
/* The instance of a slot that `device` works on: run->mirrors[] or run->buffers[]. */
fm__buffer *fm__run_buffer(const fm__run *run, const fm__device *device, fm__slot slot);
bool fm__device_op_supports(fm__device *device, const fm__tape *tape, const fm__op *op,
                            const char **reason);
const char *fm__device_op_kernel(fm__device *device, const fm__tape *tape,
                                 const fm__op *op); /* "" if none */
fm_status fm__device_record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                            uint32_t n_range, fm__recording **out, fm_error *error);
/* Memory that the device keeps of its own accord for recordings of this tape, which use it one
   after the other; or the most of this tape and its like for shorter contexts. */
uint64_t fm__device_scratch_bytes(fm__device *device, const fm__tape *tape, bool or_shorter);
/* Makes it now, so that no recording that needs at most so much makes more. It stays until the
   device, or on a GPU the last recording that uses it, is destroyed. */
fm_status fm__device_scratch_reserve(fm__device *device, uint64_t bytes, fm_error *error);
/* What is there by now. */
fm__held fm__device_held(fm__device *device);
/* Waits until the device no longer touches the recording or the timelines it was submitted with. */
void fm__device_recording_destroy(fm__recording **recording);
/* Hands segments over and returns; a full queue is FM_ERROR_LIMIT, never a wait. A failed submit
   hands over nothing. The segments are copied; run, and what it points to, must stay valid until
   the last signal, timelines until the recordings are destroyed. A device may refuse (STATE) to
   replay a recording whose last replay it has not finished. */
fm_status fm__device_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                            const fm__run *run, uint64_t base, fm_error *error);
/* The same for more of a run, of which some unit has taken a part of the same tape: its rows were
   checked then. */
fm_status fm__device_submit_more(fm__device *device, const fm__segment *segments,
                                 uint32_t n_segment, const fm__run *run, uint64_t base,
                                 fm_error *error);
fm_status fm__device_run_finish(fm__device *device, const fm__tape *tape, const fm__run *run,
                                fm_error *error);
bool fm__device_is_lost(fm__device *device);
/* Its queue waits for timelines and signals them by itself, as a GPU's does; each wait of it takes
   a driver call. Else host threads do. */
bool fm__device_has_own_queue(const fm__device *device);
/* After the recording's signal; zeros where the backend keeps no time. */
fm__span fm__device_recording_span(fm__recording *recording);
/* Likewise: when its device was at work for it, in up to `room` intervals, copies also for the
   replay that comes next; how many were filled in. work NULL: how many there are at most. */
uint32_t fm__device_recording_work(fm__recording *recording, fm__work *work, uint32_t room);
/* Columns that a CHANNELS range of this op counts in; 0: the op has no such axis. *channels = N. */
uint32_t fm__device_channel_granule(const fm__tape *tape, const fm__op *op, uint32_t *channels);

/* ---- barriers.c ---- */

/* In one recording, whether `later` must wait until `earlier` is done; for backends. keeps_rows:
   whoever computes a row of one range also computes that row of the next, in order. Pure. */
bool fm__range_must_wait(const fm__tape *tape, const fm__op_range *earlier,
                         const fm__op_range *later, bool keeps_rows);

/* ---- backends ---- */

typedef struct fm__host_options {
    uint32_t threads; /* 0: one a physical core */
    const char *rung; /* NULL: best */
    /* Logical processors to pin to, `threads` of them (-1: not pinned); NULL: one a core as hwloc
       lists them, and threads beyond the cores are not pinned. */
    const int *cpus;
    const char *name; /* NULL: "host" */
    /* Behave as a device that does not address host memory: local buffers without an address, and
       copies between fm__run.buffers and .mirrors. Tests discrete machines on any machine. */
    bool discrete;
} fm__host_options;

/* A team of pinned threads that runs recordings in order. */
fm_status fm__device_host_create(fm__device **out, const fm__host_options *options,
                                 fm_error *error);
/* The host device's kernel table, for reports. */
const struct fm__kernels *fm__device_host_kernels(const fm__device *device);

/* Virtual time of null devices that work together: their clocks, and who slows whom. The host takes
   no time: what it submits to several devices in a row begins at once. A device that is submitted
   to again, when all before is over, begins at its end; so does everything after a look at the
   clock. All units of a run must be of one world, and one thread uses them. */
typedef struct fm__null_world fm__null_world;

typedef struct fm__null_options {
    const char *name;        /* NULL: "null" */
    uint64_t memory_bytes;   /* buffers beyond it fail */
    uint64_t fail_submit_at; /* the n-th submit fails (1-based); 0: never */
    uint64_t lose_at;        /* the n-th submit loses the device (1-based): it signals, the run's
                                status says DEVICE, and later ones are refused; 0: never */
    const char *refuse_op;   /* op name that op_supports() denies; NULL: none */
    bool discrete;           /* not unified */
    /* NULL: every submission signals at once, in no time. Else the rates below make each recording
       take virtual time; the world must outlive the device. */
    fm__null_world *world;
    double ops_per_ns;    /* multiply-adds count as 2; 0: infinitely many */
    double bytes_per_ns;  /* of weights read; 0: infinitely many */
    uint64_t dispatch_ns; /* before each recording */
    double contention;    /* rates are multiplied by it while another device works; 0: 1 */
} fm__null_options;

/* Computes nothing. For plans, calibration, gates, memory and failure paths. */
fm_status fm__device_null_create(fm__device **out, const fm__null_options *options,
                                 fm_error *error);
fm_status fm__null_world_create(fm__null_world **out, fm_error *error);
void fm__null_world_destroy(fm__null_world **world);
uint64_t fm__null_world_now_ns(fm__null_world *world);

typedef struct fm__vulkan_options {
    uint32_t index;      /* of the physical devices that can serve, best first */
    bool allow_software; /* also devices that the processor emulates */
    bool force_discrete; /* treat unified memory as if it were not: tests the copies */
    bool hosted;         /* a discrete device works on host memory (fm__device_properties) */
    bool one_queue;      /* copy weights on the compute queue, as if there were no other */
    bool untimed_copies; /* as if the copies' queue kept no time */
    uint64_t ring_bytes; /* through which weights are streamed; 0: by the device's memory */
    uint64_t lose_at;    /* the n-th submit loses the device (1-based); 0: never. For tests. */
    uint64_t fail_at; /* the driver refuses the n-th call with a run's work; 0: none. Likewise. */
    const char *cache_dir; /* of compiled pipelines; NULL: the user's cache folder; "": none */
} fm__vulkan_options;

/* UNSUPPORTED, with the reason in a sentence: built without Vulkan, no loader, no driver, no device
   that can serve (each is named with what it lacks), or fewer than index + 1 of them. */
fm_status fm__device_vulkan_create(fm__device **out, const fm__vulkan_options *options,
                                   fm_error *error);
/* How many fm__device_vulkan_create() can reach. */
uint32_t fm__device_vulkan_count(bool allow_software);
/* Asked before each kernel is made and tested; op: of the tape. Non-zero: stop (CANCELLED). */
typedef int fm__self_test_callback(void *user, uint32_t op);
/* Runs every kernel that the tape needs against the reference, at the tape's own shapes; those that
   differ in one bit are excluded: op_supports() then denies the ops that need them, naming it.
   Fills *n_tested and *n_excluded (may be NULL). callback may be NULL. */
fm_status fm__device_vulkan_self_test(fm__device *device, const fm__tape *tape,
                                      fm__self_test_callback *callback, void *user,
                                      uint32_t *n_tested, uint32_t *n_excluded, fm_error *error);
