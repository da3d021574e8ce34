/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/store.h: saved calibrations: what was measured on this machine, for this model, with this
 * build.
 *
 * Owns: the entries of a store. Never does: measure, or decide whether a calibration is too old.
 * Called from: the loading and the calibrating thread.
 *
 * One text file a key, in the user's cache folder. All numbers are whole: shares and gains are
 * millionths, times are millionths of a nanosecond, so that no locale and no rounding changes them.
 *
 *     fusionml-calibration 3
 *     cpu AMD EPYC 9B45                  the key, field by field as below
 *     ...
 *     saved 1732934400                   seconds since 1970
 *     entry op=linear n=4096 k=4096 type=q8_0 up=- fast=0 output=0 rows=512 cache=0 axis=channels
 *         deps=event weights=shared share=350000 gain=1210000 dealt=0 cpu=0 gpu=0 gpu-eager=0
 *         split=0
 *     end 1 0123456789abcdef             entries, and the hash of all bytes before this line
 *
 * (an entry is one line). A file that differs from this in any byte, or that was made for another
 * key, is left alone: a line in the log says why.
 */
#pragma once

#include "exec/exec.h"

enum { FM__STORE_VERSION = 3, FM__STORE_ENTRIES = 4096, FM__STORE_BYTES = 4 << 20 };

/* What a calibration holds for, and nothing else. Control characters count as '?'. */
typedef struct fm__store_key {
    char cpu[128], rung[32];
    uint32_t threads;
    char units[512]; /* all of them, main unit first */
    char driver[64]; /* of the GPU; "" where there is none */
    char power[16];  /* fm__power_name() */
    char build[96];  /* version and hash of the source */
    uint64_t model_hash;
    char model_type[32];
} fm__store_key;

typedef enum fm__store_arm {
    FM__STORE_CPU,
    FM__STORE_GPU,
    FM__STORE_EAGER,
    FM__STORE_SPLIT,
    FM__STORE_ARMS
} fm__store_arm;

/* What was measured. */
typedef struct fm__store_shape {
    fm__shape product;    /* kind FM__OP_COUNT: a run of the whole tape; the label is not kept */
    uint32_t rows, cache; /* buckets: rows of the tape, cached tokens before it */
    fm__axis axis;
    fm__deps deps;
    fm__residency weights; /* of the first unit */
} fm__store_shape;

typedef struct fm__store_entry {
    fm__store_shape shape;
    double share, gain; /* of the last unit, 0..1; time of share 0 over that of `share` */
    bool dealt;         /* whole products are (FM__AXIS_PRODUCTS), though the axis asked for is that
                           of `shape` */
    double ns_of_work[FM__STORE_ARMS]; /* ns for one unit of work; 0: not measured */
} fm__store_entry;

typedef struct fm__store {
    fm__store_key key;
    uint64_t saved_s; /* 0: not saved yet */
    fm__store_entry *entries;
    uint32_t n_entry, capacity;
} fm__store;

void fm__store_init(fm__store *store, const fm__store_key *key);
void fm__store_finish(fm__store *store);
/* The key's file in cache_dir (NULL: the user's cache folder, made if it is not there). Errors: IO
   (there is no such folder, and none can be made), LIMIT (`capacity`), MEMORY. */
fm_status fm__store_path(const char *cache_dir, const fm__store_key *key, char *out,
                         size_t capacity, fm_error *error);
/* Fills a store that was initialised with its key. false: nothing there that can be used; a file
   that is there and is not used is named in the log. The store is empty then. now_s: seconds since
   1970; a file of a later day is not used. */
bool fm__store_load(fm__store *store, const char *path, uint64_t now_s);
/* Before time is spent on what could not be saved: whether fm__store_save() can write the file.
   Leaves nothing behind. cache_dir: as for fm__store_path(), for the advice. Errors: IO, MEMORY. */
fm_status fm__store_check(const char *cache_dir, const char *path, fm_error *error);
/* Adds what the file holds by now, but for the shapes that the store has entries of, and replaces
   it at once or not at all; store->saved_s = now_s. Other processes that save or expire wait
   meanwhile. Errors: IO, MEMORY. */
fm_status fm__store_save(fm__store *store, const char *path, uint64_t now_s, fm_error *error);
/* Drops from the file what it holds for the axis, dependencies and weights of `shape`, where
   fm__store_digest() of that is `digest`; nothing else changes. Errors: IO, MEMORY. */
fm_status fm__store_expire(const fm__store_key *key, const char *path, const fm__store_shape *shape,
                           uint64_t digest, uint64_t now_s, fm_error *error);
/* Takes the place of the entry of the same shape. Errors: ARGUMENT (a value that cannot be saved),
   LIMIT, MEMORY. */
fm_status fm__store_put(fm__store *store, const fm__store_entry *entry, fm_error *error);
/* Drops every entry with the axis, dependencies and weights of `shape`; returns how many. */
uint32_t fm__store_drop(fm__store *store, const fm__store_shape *shape);
/* A hash of what fm__store_drop() would drop; 0: nothing. false: no memory for it. */
bool fm__store_digest(const fm__store *store, const fm__store_shape *shape, uint64_t *out);
/* The entry of this shape whose rows are nearest by ratio, then whose cache is; NULL: none. */
const fm__store_entry *fm__store_find(const fm__store *store, const fm__store_shape *shape);
/* Seconds since it was saved. */
double fm__store_age_s(const fm__store *store, uint64_t now_s);
