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

#include "exec/exec.h"
#include "fusionml/fusionml.h"
#include "fusionml/lab.h"
#include "model/model.h"
#include "text/text.h"

enum { FM__MAX_GROUPS = 4, FM__MAX_BUCKETS = 4 };

struct fm_machine {
    fm__device *devices[FM__MAX_UNITS];
    uint32_t n_device;
    uint64_t memory_budget;
    _Atomic uint64_t memory_used;
};

/* Counts bytes against the budget; false (and nothing counted) when they do not fit. */
bool fm__machine_reserve(fm_machine *machine, uint64_t bytes);
void fm__machine_release(fm_machine *machine, uint64_t bytes);

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

/* A tape for up to max_rows rows, recorded on the machine's devices. */
typedef struct fm__bucket {
    fm__tape *tape;
    fm__plan *plan;
    fm__exec *exec;
} fm__bucket;

struct fm_engine {
    fm_machine *machine;
    fm__model *model;
    fm_tokenizer *tokenizer;             /* NULL: the file has none */
    pthread_mutex_t lock;                /* of everything below, and of all sessions' state */
    fm__bucket buckets[FM__MAX_BUCKETS]; /* ascending max_rows */
    uint32_t n_bucket;
    uint32_t chunk_rows, max_outputs; /* of one tape run */
    uint32_t context_length;
    fm__pool pools[FM__MAX_GROUPS];
    fm__buffer *buffers[FM__SLOT_COUNT];
    uint8_t *cache, *output; /* mapped */
    uint64_t reserved;       /* bytes counted against the machine's budget */
    fm__run run;
    fm__run_status run_status;
    _Atomic uint32_t cancel; /* set by fm_engine_cancel(), also from a signal handler */
    /* One chunk's rows, (chunk_rows) each; output_row (max_outputs). */
    int32_t *stage_token;
    uint32_t *stage_position, *stage_sequence, *output_row;
    fm_engine_info info;
    fm_placement *placements; /* (n_placement) */
    char *placement_text;     /* the ops' descriptions, 128 bytes each */
    size_t n_placement;
};

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
    float *logits; /* (n_vocab): of the last prefill or decode */
    /* Of the run in progress, for its roll-back (run.c). */
    uint32_t undo_page[FM__MAX_GROUPS]; /* the shared page that was copied; FM__NO_PAGE: none */
    uint32_t undo_from[FM__MAX_GROUPS]; /* first table entry that the run filled */
    uint32_t undo_end[FM__MAX_GROUPS];
};

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
/* Zeroes a page of a pool and copies it from another one (FM__NO_PAGE: leaves it zero). */
void fm__engine_page_copy(fm_engine *engine, uint32_t group, uint32_t page, uint32_t from);

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
/* The type of a tensor named as in GGUF with n_dims dims and rows of k entries. *fell_back (may be
   NULL) tells that k ruled the first choice out. */
fm__dtype fm__mixture_type(const fm__mixture *mixture, const fm__mixture_model *model,
                           const char *name, uint32_t n_dims, uint64_t k, bool *fell_back);
