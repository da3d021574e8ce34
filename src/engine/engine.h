/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/engine.h: the engine room: machine, engine (a loaded model), page pool, batch, session,
 * sampler.
 *
 * Owns: everything behind the public nouns. Never does: kernels, file parsing. Called from: the
 * user's threads; an engine's lock serialises its runs and its pool. Lock order: an engine's lock
 * is the only one.
 */
#pragma once

#include <pthread.h>

#include "exec/calibrate.h"
#include "exec/exec.h"
#include "exec/gate.h"
#include "exec/store.h"
#include "exec/tune.h"
#include "fusionml/fusionml.h"
#include "fusionml/lab.h"
#include "model/model.h"
#include "text/text.h"

enum {
    FM__MAX_GROUPS = 4,
    FM__MAX_BUCKETS = 6,
    FM__CACHE_BUCKETS = 4,
    FM__ARM_COUNT = 5,
    FM__MAX_BATCH_ROWS = 1 << 24,
};

/* ---- machine.c, devices.c ---- */

/* What a device keeps for all engines: a GPU its ring for streamed weights. */
typedef enum fm__keeps { FM__KEEPS_SCRATCH, FM__KEEPS_RING, FM__KEEPS_COUNT } fm__keeps;

struct fm_machine {
    fm__device *devices[FM__MAX_UNITS]; /* main unit first */
    uint32_t n_device;
    fm__device *host; /* the first host team, one of devices[]; a machine always has one */
    uint64_t memory_budget;
    _Atomic uint64_t memory_used;
    _Atomic uint64_t own_used[FM__MAX_UNITS]; /* of the own memory of devices that are discrete */
    /* Kernels that self-tests left out, by device; guarded, as engines load in any thread. */
    pthread_mutex_t lock;
    char excluded[FM__MAX_UNITS][256];
    pthread_mutex_t order; /* fm__run.order of all its engines' runs */
    /* What devices keep for all engines alike, counted once; guarded likewise. */
    struct fm__kept {
        uint64_t largest, total; /* bytes: it grows by a new piece beside the old ones */
        uint32_t users;          /* engines that count on it; 0: what the device still holds */
    } kept[FM__MAX_UNITS][FM__KEEPS_COUNT];
    char *cache_dir; /* NULL: the user's */
};

/* A machine of devices that exist already, which it takes over (also on failure); budget 0: as
   for fm_machine_create(). One at least is a host team. For tests. */
fm_status fm__machine_adopt(fm_machine **out, fm__device *const *devices, uint32_t n_device,
                            uint64_t budget, fm_error *error);
/* Counts bytes against the budget; false (and nothing counted) when they do not fit. */
bool fm__machine_reserve(fm_machine *machine, uint64_t bytes);
void fm__machine_release(fm_machine *machine, uint64_t bytes);
/* The same against a discrete device's own memory, of which engines get 90 %. */
bool fm__machine_reserve_own(fm_machine *machine, const fm__device *device, uint64_t bytes);
void fm__machine_release_own(fm_machine *machine, const fm__device *device, uint64_t bytes);
/* Counts what the device keeps once an engine needs `bytes` of it: against its own memory where it
   is discrete, else against the budget; nothing where as much is counted already. */
bool fm__machine_keep(fm_machine *machine, const fm__device *device, fm__keeps what,
                      uint64_t bytes);
/* For an engine that counts on it already. */
bool fm__machine_keep_more(fm_machine *machine, const fm__device *device, fm__keeps what,
                           uint64_t bytes);
/* What fm__machine_keep() would count. */
uint64_t fm__machine_would_keep(fm_machine *machine, const fm__device *device, fm__keeps what,
                                uint64_t bytes);
/* It is `bytes` after all, and no more. */
void fm__machine_keep_less(fm_machine *machine, const fm__device *device, fm__keeps what,
                           uint64_t bytes);
/* One engine less counts on it. With the last one what the device holds stays counted, for as long
   as the machine lives: the next engine finds it there. */
void fm__machine_let_go(fm_machine *machine, fm__device *device, fm__keeps what);
uint64_t fm__machine_own_left(const fm_machine *machine, const fm__device *device);

enum { FM__MAX_CPUS = 1024 };

/* One item of a device list. */
typedef struct fm__device_item {
    enum { FM__ITEM_HOST, FM__ITEM_VULKAN, FM__ITEM_NULL } kind;
    enum {
        FM__ITEM_ALL,
        FM__ITEM_LISTED,
        FM__ITEM_PERFORMANCE,
        FM__ITEM_EFFICIENCY
    } cores;        /* HOST */
    char text[32];  /* as it was written, and the host team's name */
    uint32_t index; /* VULKAN */
    bool discrete;  /* VULKAN: "vulkan:0+discrete", which tests copies on unified memory */
    uint32_t n_cpu; /* HOST: processors of the team; 0: left to the device */
    int cpus[FM__MAX_CPUS];
} fm__device_item;

typedef struct fm__device_list {
    bool automatic; /* NULL or "auto": no items */
    uint32_t n;
    fm__device_item items[FM__MAX_UNITS];
} fm__device_list;

/* Pure; errors name the item and what is wrong with it. */
fm_status fm__devices_parse(const char *text, fm__device_list *list, fm_error *error);
/* Fills machine->devices and machine->host; what was made before an error stays there. */
fm_status fm__devices_make(fm_machine *machine, const fm_machine_options *options, fm_error *error);
/* Logs a warning where there are fewer processors than `threads`; that is allowed. */
void fm__warn_of_crowd(uint32_t threads);

/* ---- pool.c: pages of one cache group, reference counted ---- */

typedef struct fm__pool {
    uint32_t n_page, n_free;
    uint32_t *free_list;  /* (n_page) stack */
    uint32_t *references; /* (n_page) */
} fm__pool;

fm_status fm__pool_init(fm__pool *pool, uint32_t n_page, fm_error *error);
void fm__pool_finish(fm__pool *pool);
uint32_t fm__pool_take(fm__pool *pool); /* one reference; FM__NO_PAGE when empty */
void fm__pool_share(fm__pool *pool, uint32_t page);
void fm__pool_drop(fm__pool *pool, uint32_t page);

/* ---- engine.c ---- */

/* One arm of one bucket: its plan, and what was recorded for it. Made when first needed. */
typedef struct fm__way {
    fm__plan *plan;
    fm__exec *exec;
    fm__device *units[FM__MAX_UNITS]; /* that the plan speaks of; main unit first */
    uint8_t place[FM__MAX_UNITS];     /* of each among the engine's units */
    uint32_t n_unit;
    /* By the engine's units, of the products: weight bytes of a run, and operations of one row and
       of one row that wants output. */
    uint64_t weight_bytes[FM__MAX_UNITS];
    double ops_of_row[FM__MAX_UNITS], ops_of_output[FM__MAX_UNITS];
} fm__way;

/* Which arm runs next, for one bucket of rows and one of cached tokens. */
typedef struct fm__chooser {
    fm__gate gate;
    fm_arm arms[FM__GATE_ARMS]; /* the gate's arms by number */
} fm__chooser;

/* A tape for up to max_rows rows, and the ways to run it. */
typedef struct fm__bucket {
    fm__tape *tape;
    fm__way ways[FM__ARM_COUNT]; /* by fm_arm; AUTO's is unused */
    fm__chooser choosers[FM__CACHE_BUCKETS];
    double (*op_shares)[FM__MAX_UNITS]; /* (n_op) as calibrated; NULL: none */
    bool whole_products;                /* the calibration has dealt them out */
    double predicted[FM__ARM_COUNT];    /* ns for one unit of work, as calibrated; 0: unknown */
    double predicted_work; /* of the run that they were measured with; 0: never drifts */
} fm__bucket;

/* Bytes of one engine, by where they lie. */
typedef struct fm__memory_need {
    uint64_t weights; /* panels, vectors and computed tables in host memory */
    uint64_t vectors; /* a GPU's copies of the vectors */
    uint64_t copies;  /* a GPU's copies of matrices and gather tables */
    uint64_t cache, scratch, output;
    uint64_t ring; /* through which a GPU streams weights, where it does */
    /* What each unit keeps for its recordings, and the most of that for shorter contexts. */
    uint64_t kept[FM__MAX_UNITS], kept_most[FM__MAX_UNITS];
    uint64_t mirror;  /* scratch once more, where the main unit's is not in host memory */
    uint64_t session; /* of one, without which an engine is of no use; counted by sessions */
    uint64_t batch;   /* outputs of the batches that are meant to come; counted by batches */
    uint64_t host;    /* sum against the machine's budget */
    uint64_t own;     /* sum against a discrete GPU's own memory */
    uint64_t host_alone, own_alone; /* of these, what other engines have no part in */
} fm__memory_need;

struct fm_engine {
    fm_machine *machine;
    fm_engine_options options;
    fm__model *model;
    fm_tokenizer *tokenizer; /* NULL: the file has none */
    pthread_mutex_t lock;    /* of everything below, and of all sessions' state */

    /* Units that are alive: the machine's, in its order. */
    fm__device *units[FM__MAX_UNITS];
    uint32_t n_unit;
    fm__device *gpu;    /* the unit that is not a host team; NULL: none */
    fm__device *host;   /* the first host team; NULL: none */
    uint32_t lost;      /* bits of machine->devices */
    uint32_t epoch;     /* counts losses of units: a session with an older one has no cache */
    bool needs_rebuild; /* a unit was lost, and buffers in its place could not be had yet */

    fm__bucket buckets[FM__MAX_BUCKETS]; /* ascending max_rows */
    uint32_t n_bucket;
    uint32_t chunk_rows, max_outputs; /* of one tape run */
    uint32_t context_length;
    fm_arm forced; /* AUTO: chosen */
    uint32_t arms; /* bit `arm`: the engine has it */
    fm__pressure_state pressure;
    uint64_t calls_of[5];  /* tape runs, by fm_arm */
    double attention_work; /* work of one row for one cached token; choose.c */
    bool calibrated;       /* from a saved or a full calibration */
    bool estimated;        /* from the few runs of fm__calibration_estimate() */
    bool expired;          /* drift: what is saved goes when the engine does */
    double calibration_age_s;
    /* The saved calibration in use; path "": none. */
    struct fm__saved {
        char path[512];
        fm__store_key key;
        uint64_t digest; /* fm__store_digest() of what is in use */
    } saved;

    fm__pool pools[FM__MAX_GROUPS];
    fm__memory_need need;
    fm__residency *residency; /* (n_weight): where the GPU finds each */
    fm__buffer **copies;      /* (n_copy) slabs of the GPU's own copies of weights */
    uint32_t n_copy;
    fm__buffer *buffers[FM__SLOT_COUNT], *mirrors[FM__SLOT_COUNT];
    uint8_t *cache;        /* mapped; NULL where it has no host address */
    const uint8_t *output; /* mapped */
    uint8_t *page;         /* room for one layer's part of a page, where `cache` is NULL */
    uint64_t reserved;     /* bytes counted against the machine's budget */
    uint64_t reserved_own; /* against the GPU's own memory */
    uint8_t
        keeps[FM__MAX_UNITS]; /* by the machine's devices: bits of fm__keeps that it counts on */
    fm__run run;
    fm__run_status run_status;
    _Atomic uint32_t cancel; /* set by fm_engine_cancel(), also from a signal handler */
    /* One chunk's rows, (chunk_rows) each; output_row (max_outputs). */
    uint32_t *stage_position, *stage_sequence, *output_row;

    fm_engine_info info;
    fm_lab_times times;       /* of the last run; tape_runs 0: it failed, or there was none */
    const fm__way *timed;     /* whose recordings' spans `times` does not hold yet; NULL: none */
    fm_placement *placements; /* (n_placement) */
    char *placement_text;     /* the ops' descriptions, 128 bytes each */
    size_t n_placement;
    fm_arm placed; /* the arm that the placements show, and the epoch of then */
    uint32_t placed_epoch;
};

/* Bytes of scratch or output that the largest bucket needs. */
size_t fm__engine_largest(const fm_engine *engine, bool output);

/* ---- budget.c: what lies where, before anything is allocated ---- */

/* Sums engine->need from the sizes and residencies that are known by now. */
void fm__engine_add_up(fm_engine *engine);
/* What a session of that context counts against the machine's budget. */
uint64_t fm__session_bytes(const fm_engine *engine, uint32_t context);
/* Bytes of a batch's outputs; false: they overflow. */
bool fm__batch_bytes(const fm_engine *engine, uint32_t outputs, size_t *bytes);
/* Counts all of it against the machine's budget and the GPU's memory, and has units make what they
   keep. MEMORY: with every part of the sum, and what would fit. */
fm_status fm__engine_reserve(fm_engine *engine, fm_error *error);
/* Units as they are now: counts what they keep, and is not counted yet. */
fm_status fm__engine_reserve_kept(fm_engine *engine, fm_error *error);
/* Of what units keep in a GPU's own memory, or in the host's: what is not counted yet. */
uint64_t fm__engine_further(const fm_engine *engine, bool own);
/* After recording: the GPU may have had no room for all of its ring. */
void fm__engine_settle(fm_engine *engine);
/* The GPU was lost. */
void fm__engine_release_gpu(fm_engine *engine);
void fm__engine_release(fm_engine *engine);

/* ---- weights.c: where the GPU finds weights ---- */

/* Decides each weight's residency. RESIDENT that does not fit is MEMORY. */
fm_status fm__weights_plan(fm_engine *engine, fm_error *error);
/* After packing: makes the GPU's copies and every weight's ranges. */
fm_status fm__weights_place(fm_engine *engine, fm_error *error);
/* After the GPU was lost: its copies go, and ranges name host teams only. */
void fm__weights_drop_copies(fm_engine *engine);
void fm__weights_finish(fm_engine *engine);

/* ---- buffers.c: the slots' instances, and pages inside the cache ---- */

fm_status fm__buffers_create(fm_engine *engine, fm_error *error);
void fm__buffers_destroy(fm_engine *engine);
/* A slot's instance where the table in buffers.c puts it; *mirror stays as it is where it has none.
   After an error the caller destroys what is there. */
fm_status fm__buffers_slot(const fm_engine *engine, fm__slot slot, size_t bytes,
                           fm__buffer **buffer, fm__buffer **mirror, fm_error *error);
/* One layer's part of a page, to and from host memory. Blocks. */
fm_status fm__page_read(fm_engine *engine, uint32_t group, uint32_t page, uint32_t layer, void *out,
                        fm_error *error);
fm_status fm__page_write(fm_engine *engine, uint32_t group, uint32_t page, uint32_t layer,
                         const void *from, fm_error *error);
/* All layers. */
fm_status fm__page_copy(fm_engine *engine, uint32_t group, uint32_t page, uint32_t from,
                        fm_error *error);

/* ---- arms.c: the ways to run a tape ---- */

/* The units: machine->devices without those in `lost` (bits). */
void fm__arms_find_units(fm_engine *engine, uint32_t lost);
/* The arms that these units, options and calibration make. */
void fm__arms_find(fm_engine *engine);
/* ARGUMENT where there is no such arm, naming those that there are. */
fm_status fm__arms_check(const fm_engine *engine, fm_arm arm, fm_error *error);
/* Makes the bucket's plan of an arm, or all of the arm, where it is not there yet. */
fm_status fm__arms_plan(fm_engine *engine, fm__bucket *bucket, fm_arm arm, fm_error *error);
fm_status fm__arms_way(fm_engine *engine, fm__bucket *bucket, fm_arm arm, fm__way **out,
                       fm_error *error);
/* Shares of the units in products, as the SPLIT arm has them where nothing is calibrated. */
void fm__arms_shares(const fm_engine *engine, double shares[FM__MAX_UNITS]);
/* `share` to the last unit, the rest to the others evenly. */
void fm__arms_give(const fm_engine *engine, double share, double shares[FM__MAX_UNITS]);
/* The engine's axis and dependencies, without shares. */
fm__plan_options fm__arms_options(const fm_engine *engine);
void fm__arms_forget(fm_engine *engine);
void fm__arms_forget_one(fm_engine *engine, fm_arm arm);

/* ---- choose.c: the gate's place in the engine ---- */

/* Begins anew, from bucket->predicted. */
void fm__choose_init(fm_engine *engine);
/* The arm for a chunk whose longest sequence holds `cached` tokens behind it. */
fm_arm fm__choose(fm_engine *engine, fm__bucket *bucket, uint32_t cached);
void fm__choose_feed(fm_engine *engine, fm__bucket *bucket, uint32_t cached, fm_arm arm,
                     uint64_t ns, double work);
/* An arm that could not be made is out; false: none is left. */
bool fm__choose_remove(fm_engine *engine, fm_arm arm);
/* The arm that the bucket would run now. */
fm_arm fm__choose_active(const fm_engine *engine, const fm__bucket *bucket);
/* What a chunk's time is divided by. */
double fm__choose_work(const fm_engine *engine, const fm__batch_view *view);
/* The same for one sequence of `rows` rows from its beginning. */
double fm__choose_full_work(const fm_engine *engine, uint32_t rows);

/* ---- report.c ---- */

/* Fills engine->info from the model. */
void fm__report_info(fm_engine *engine);
/* Makes the placement report of the active arm. */
fm_status fm__report_placements(fm_engine *engine, fm_error *error);

/* ---- selftest.c ---- */

/* Compares a GPU's kernels with the reference at this model's shapes; what differs is left out,
   with a warning and a name in fm_device_info.excluded. */
fm_status fm__engine_self_test(fm_engine *engine, fm_error *error);

/* ---- measure.c: how long products and tapes take ---- */

/* The products of a tape, by shape. */
typedef struct fm__tape_classes {
    uint32_t n;
    fm__shape shapes[FM__TUNE_CLASSES];
    uint32_t count[FM__TUNE_CLASSES];
    uint8_t *class_of; /* (n_op): FM__TUNE_NO_CLASS: no product */
    double *work;      /* (n_op): weight bytes of products */
} fm__tape_classes;

fm_status fm__classes_make(fm__tape_classes *out, const fm__tape *tape, fm_error *error);
void fm__classes_finish(fm__tape_classes *classes);
/* Shares of the units for each of the tape's ops, from the last unit's share in each class. */
void fm__classes_give(const fm__tape_classes *classes, const fm_engine *engine,
                      const double shares[FM__TUNE_CLASSES], uint32_t n_op,
                      double (*op_shares)[FM__MAX_UNITS]);

typedef struct fm__measure fm__measure;

/* Runs of the bucket's tape, full of rows. Pages are borrowed until it is destroyed. */
fm_status fm__measure_create(fm__measure **out, fm_engine *engine, fm__bucket *bucket,
                             fm_error *error);
void fm__measure_destroy(fm__measure **measure);
const fm__tape_classes *fm__measure_classes(const fm__measure *measure);
/* Rows of such a run: the tape's, or those of a shorter context. */
uint32_t fm__measure_rows(const fm__measure *measure);
/* Work of such a run. */
double fm__measure_work(const fm__measure *measure);
/* One run with the last unit's share of each class, of all its products or, with `whole`, of whole
   ones. *beside_ns: what else it took, to record it and to run it a first time; where that takes
   long, it is the run. */
fm_status fm__measure_shares(fm__measure *measure, const double shares[FM__TUNE_CLASSES],
                             bool whole, fm__tune_times *times, double *beside_ns, fm_error *error);
/* The median of `runs` runs (1 to 9) on an arm, behind a first one; where that takes long, its
   time. */
fm_status fm__measure_arm(fm__measure *measure, fm_arm arm, uint32_t runs, double *ns,
                          fm_error *error);

/* ---- calibration.c ---- */

/* What is known of the time of CPU or GPU from a search alone; 0: nothing. */
double fm__calibration_expected(const fm_engine *engine, const fm__tune *tune, fm_arm arm);
/* With the shares that were found several units compute products. */
bool fm__calibration_divides(const fm_engine *engine, const fm__tune *tune);

/* A real GPU and a host that nothing is known of, and whose arms are to be chosen by measuring. */
bool fm__calibration_wants_estimate(const fm_engine *engine);
/* Shares and predictions from a few runs, within about a second for each of two numbers of rows;
   the others follow from these. Measures nothing while memory is tight. */
fm_status fm__calibration_estimate(fm_engine *engine, fm_error *error);

/* ---- saved.c: calibrations in the user's cache folder ---- */

/* Takes over the saved calibration of these units and this model, if there is one. */
fm_status fm__calibration_load(fm_engine *engine, fm_error *error);
/* A store for what is measured of this engine, without entries; fm__store_finish(). */
void fm__saved_begin(fm__store *store, const fm_engine *engine);
/* For every shape of the tape's products the last unit's share of its class (shares, classes). */
fm_status fm__saved_add_products(fm__store *store, const fm_engine *engine,
                                 const fm__bucket *bucket, const fm__tape_classes *classes,
                                 const double *shares, double gain, fm_error *error);
/* What bucket->predicted says. */
fm_status fm__saved_add_tape(fm__store *store, const fm_engine *engine, const fm__bucket *bucket,
                             fm_error *error);
/* The saved calibration in use is dropped, for the engine's axis, dependencies and residency: it
   does not hold any more. One that took its place meanwhile stays. */
void fm__saved_expire(const fm_engine *engine);
/* path: receives where it will be written. Errors: those of fm__store_path(). */
fm_status fm__saved_path(const fm__store *store, const fm_engine *engine, char *path,
                         size_t capacity, fm_error *error);
/* Adds the store to what is saved; the engine's saved calibration is that from here on. */
fm_status fm__saved_write(fm__store *store, fm_engine *engine, const char *path, fm_error *error);

/* ---- loss.c ---- */

/* After a run failed, or before one: drops units that are lost. *changed: some were, and the engine
   is ready to go on without them. DEVICE: none is left. */
fm_status fm__loss_check(fm_engine *engine, bool *changed, fm_error *error);
/* Computes the session's cache from its tokens where a loss took it. */
fm_status fm__loss_refresh(fm_engine *engine, fm_session *session, fm_error *error);

/* ---- session.c ---- */

struct fm_session {
    fm_engine *engine;
    uint32_t context_length;
    uint32_t length;
    int32_t *tokens;                  /* (context_length) */
    uint32_t *pages[FM__MAX_GROUPS];  /* (n_table): page of positions [64 p, 64 p + 64) */
    uint32_t n_table;                 /* ceil(context_length / 64) */
    uint32_t dropped[FM__MAX_GROUPS]; /* leading pages that the window left behind */
    uint64_t reserved;
    uint32_t epoch; /* engine->epoch when the cache was whole */
    float *logits;  /* (n_vocab): of the last prefill or decode */
    /* Of the run in progress, for its roll-back (run.c). */
    uint32_t undo_page[FM__MAX_GROUPS]; /* the shared page that was copied; FM__NO_PAGE: none */
    uint32_t undo_from[FM__MAX_GROUPS]; /* first table entry that the run filled */
    uint32_t undo_end[FM__MAX_GROUPS];
};

/* Drops the table's pages from entry `from` on. The engine's lock is held. */
void fm__session_drop_pages(fm_session *session, uint32_t from);

/* ---- run.c: rows through tapes; the engine's lock is held ---- */

/* Consecutive rows of one session in a run. */
typedef struct fm__run_entry {
    fm_session *session;
    uint32_t base;  /* its length when the first row was added */
    uint32_t count; /* rows */
} fm__run_entry;

/* The rows of one run. Where `sequence` is NULL all rows belong to entry 0 and follow each other.
 */
typedef struct fm__rows_view {
    uint32_t n_row;
    const int32_t *token;
    const uint32_t *position, *sequence; /* NULL: see above */
    const uint8_t *wanted;               /* fm_output of each row; NULL: only the last row's */
    fm_output last;                      /* where wanted is NULL */
    fm__run_entry *entries;
    uint32_t n_entry;
    const uint32_t **pages; /* (n_entry * n_group) room, filled in by the run */
    float *out;             /* outputs in row order, out_stride floats apart */
    size_t out_stride;
} fm__rows_view;

/* All or nothing: takes pages, runs chunks, commits lengths, tokens and pages. Allocates nothing.
 */
fm_status fm__engine_run_rows(fm_engine *engine, const fm__rows_view *rows, fm_error *error);
/* Rows [base, base + n) of entry 0 whose keys and values are wanted again and nothing else: no page
   is taken and no length changes. */
fm_status fm__engine_run_again(fm_engine *engine, const fm__rows_view *rows, fm_error *error);

/* ---- mixture.c: which type a tensor gets; shared by convert and synth ---- */

typedef struct fm__mixture {
    const char *name;   /* "q4_k_m" */
    fm__dtype base;     /* of most matrices */
    uint32_t file_type; /* general.file_type */
    uint8_t rule;
} fm__mixture;

typedef struct fm__mixture_model {
    uint32_t n_layer, n_head, n_kv_head;
    bool tied;
} fm__mixture_model;

const fm__mixture *fm__mixture_get(const char *name); /* NULL: unknown */
/* The mixture of that name, which can be written; the error lists those that can. */
fm_status fm__mixture_find(const fm__mixture **out, const char *name, fm_error *error);
/* The type of a tensor named as in GGUF with n_dims dims and rows of k entries. *fell_back (may be
   NULL) tells that k ruled the first choice out. */
fm__dtype fm__mixture_type(const fm__mixture *mixture, const fm__mixture_model *model,
                           const char *name, uint32_t n_dims, uint64_t k, bool *fell_back);

/* How many tensors of a width got another type; told in one warning for each width and type. */
typedef struct fm__fallbacks {
    struct {
        uint64_t k;
        fm__dtype type; /* that they got */
        uint32_t n;
    } kinds[8];
    uint32_t n_kind;
} fm__fallbacks;

void fm__fallbacks_add(fm__fallbacks *f, const fm__mixture *mixture, uint64_t k, fm__dtype type);
void fm__fallbacks_tell(fm__fallbacks *f, const fm__mixture *mixture); /* and forgets */
