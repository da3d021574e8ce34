/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/lab.h: what `convert`, `synth`, `bench` and `calibrate` need beyond the public surface.
 * Unstable, not installed, not exported by the shared library: link the static one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "fusionml/engine.h"

/* Converts a Hugging Face folder (or re-quantises a .gguf) into one GGUF file. type: "f32", "f16",
   "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0",
   "tq2_0", "mxfp4" or a mixture: "q2_k_s"... "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m",
   "q5_k_s", "q5_k_m". A row length that the type's block does not divide falls back as llama.cpp
   does, and each such tensor is logged. threads: 0 = all cores. Writes to "out.tmp" and renames: an
   error leaves no half file. */
fm_status fm_lab_convert(const char *in, const char *out, const char *type, uint32_t threads,
                         fm_progress_callback *progress, void *user, fm_error *error);

/* Writes a model of a known shape with random weights and a vocabulary that loads. shape:
   "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "llama-3.2-1b", "tiny". type as for convert. */
fm_status fm_lab_synth(const char *out, const char *shape, const char *type, uint64_t seed,
                       fm_progress_callback *progress, void *user, fm_error *error);
/* The shapes' names, NULL-terminated. */
const char *const *fm_lab_synth_shapes(void);

/* ---- calibration: engine/calibration.c ---- */

/* One measured point, as it is measured. */
typedef struct fm_lab_point {
    const char *shape; /* "whole tape" */
    uint32_t rows;
    double share, ms, ms_share_0;
    uint32_t done, total; /* steps, for a progress bar */
} fm_lab_point;
typedef int fm_lab_point_callback(void *user, const fm_lab_point *point); /* non-zero: stop */

enum { FM_LAB_POINTS = 64, FM_LAB_PRODUCTS = 16 };

typedef struct fm_lab_calibration {
    uint32_t n_curve;
    struct fm_lab_curve { /* of a tape for up to `rows` rows */
        char shape[96];   /* "whole tape"; "whole tape, whole products": these are dealt out */
        uint32_t rows, n_point;
        double share[FM_LAB_POINTS], ms[FM_LAB_POINTS]; /* one share for all products */
        double best;                                    /* of these */
        double gain;      /* time at share 0 over time with `products` */
        double best_ms;   /* with them */
        double arm_ms[5]; /* by fm_arm; 0: there is none, or split: nothing is divided */
        double spent_ms;  /* in all its runs */
        uint32_t measured, n_product;
        struct fm_lab_product {
            char shape[96]; /* "ffn_gate+up 4864x896 q4_k" */
            double share;
        } products[FM_LAB_PRODUCTS];
    } * curves;     /* (n_curve) malloc'ed; fm_lab_calibration_free() */
    char path[512]; /* where it was saved */
    char key[1280]; /* what it is valid for, as saved with it */
} fm_lab_calibration;

/* Finds, from runs of whole tapes with both units at work, the share of the last unit for every
   shape of product of the engine and every row bucket; uses it from now on and saves it. An arm
   that fm_engine_set_arm() asked for stays. Where a run takes up to half a second it takes up to
   about 25 s, or 50 s where weights are streamed, for which there are two searches; up to three
   times as much where what is measured contradicts itself and is measured again. The engine needs
   two units. fm_engine_cancel() stops it (CANCELLED), as the callback does: then nothing has
   changed. */
fm_status fm_lab_calibrate(fm_engine *engine, fm_lab_point_callback *callback, void *user,
                           fm_lab_calibration *out, fm_error *error);
void fm_lab_calibration_free(fm_lab_calibration *calibration);

/* ---- what the units did in the last run: engine/run.c ---- */

enum { FM_LAB_UNITS = 8 };

/* Sums over the tape runs of the last fm_engine_run(), prefill or decode. */
typedef struct fm_lab_times {
    fm_arm arm;      /* that ran the last tape */
    uint32_t n_unit; /* of the engine, main unit first */
    uint32_t tape_runs;
    uint64_t wall_ns;
    uint64_t overlap_ns;                 /* the first two units both computed */
    bool streams;                        /* a GPU copies weights while it computes */
    bool observed;                       /* copy_ns is the most that these copies can have taken:
                                            some of them kept no time */
    uint64_t busy_ns[FM_LAB_UNITS];      /* it computed or copied; 0: it keeps no time */
    uint64_t divided_ns[FM_LAB_UNITS];   /* of that: for its parts of divided products */
    uint64_t compute_ns[FM_LAB_UNITS];   /* it computed */
    uint64_t copy_ns[FM_LAB_UNITS];      /* it copied weights, also while it computed */
    uint64_t weight_bytes[FM_LAB_UNITS]; /* packed weight bytes of the ranges that it computed */
    uint64_t ops[FM_LAB_UNITS]; /* 2 * rows * k * n of those products, rows as they were run */
} fm_lab_times;

/* Errors: STATE (the last run failed, or there was none). */
fm_status fm_lab_last_times(fm_engine *engine, fm_lab_times *out, fm_error *error);
/* From now on the SPLIT arm's units wait for each other so. */
fm_status fm_lab_set_deps(fm_engine *engine, fm_deps deps, fm_error *error);

/* ---- the mechanism probe: engine/probe.c, docs/guide/probe.md ---- */

typedef struct fm_lab_probe_options {
    uint32_t rows, k, n; /* 0: 2048, 1600, 6400 */
    const char *type;    /* NULL: "q8_0" */
    double share;        /* of the second unit, in (0, 1); below 0: searched */
    fm_axis axis;        /* TOKENS is the paper's; CHANNELS, the default, ours */
    fm_weights weights;
    uint32_t warmup, trials; /* 0: 5, 20 */
    uint64_t seed;
} fm_lab_probe_options;

fm_lab_probe_options fm_lab_probe_options_default(void);

/* Called before each step; done and total count steps. Non-zero: stop (CANCELLED). */
typedef int fm_lab_probe_callback(void *user, const char *phase, uint32_t done, uint32_t total);

/* Runs the cases of the probe in Latin-square order on the machine's first two units and returns
   one JSON object (fm_free()): stamp before and after, options, raw trials and output hash of each
   case, medians, ratios, overlap. Where two cases' outputs differ the object says so, carries no
   ratio, and the call still succeeds. callback may be NULL. Errors: ARGUMENT (names the option; a
   machine of one unit), MEMORY, UNSUPPORTED, DEVICE, CANCELLED. */
fm_status fm_lab_probe(fm_machine *machine, const fm_lab_probe_options *options,
                       fm_lab_probe_callback *callback, void *user, char **json, fm_error *error);

/* ---- kernels alone: engine/bench_kernels.c, docs/guide/bench.md ---- */

/* Lists are separated by commas; NULL: what stands in brackets. */
typedef struct fm_lab_kernels_options {
    const char *ops; /* linear, attention, rmsnorm, rope, quantise, glu, add, kv_store, and roof for
                        the roofs alone [all of them] */
    const char *types;  /* of linear's weights [all that the rung has] */
    const char *shapes; /* 0.5b, 1b, 7b, or NxK: n rows of k weights [0.5b,1b,7b] */
    const char *tokens; /* rows of the activations [1,512] */
    const char *rungs;  /* [all but ref] */
    int64_t depth;      /* keys before attention's first row; below 0: 1024 for fewer than 64 rows,
                           else 0 */
    uint64_t weight_bytes; /* as in fm_lab_roofs; 0: more than the last cache holds */
    uint32_t threads;      /* 0: one a core */
    uint32_t repeats;      /* samples are twice as many, for the rungs go A B B A; 0: 3 */
    /* NULL, or asked every 20 ms or so while kernels run; non-zero: stop (CANCELLED). */
    int (*cancelled)(void);
    uint64_t seed;
} fm_lab_kernels_options;

fm_lab_kernels_options fm_lab_kernels_options_default(void);

/* What the machine reaches at most, measured in the same call; 0: it has no such instructions. */
typedef struct fm_lab_roofs {
    uint32_t threads;
    double vnni, fma, bf16; /* 10^9 operations a second; a multiply-add is two */
    double read;            /* GB/s from memory, the best of 1 to 16 streams a thread */
    uint64_t cache_bytes;   /* last cache, as the system tells */
    uint64_t weight_bytes;  /* what few tokens read before they meet the same weights again */
    char cpu[128], features[128];
} fm_lab_roofs;

/* One op at one shape on one rung. */
typedef struct fm_lab_kernel {
    const char *op, *type;        /* type "": the op has none */
    const char *numeric_class;    /* "exact", "fast" */
    const char *rung, *kernel;    /* kernel: its function, where the table has a name for it */
    const char *skipped;          /* not NULL: why nothing was measured; nothing below is set */
    uint32_t n, k, tokens, depth; /* 0: does not apply */
    uint32_t copies;              /* of the weights or the cache, used in turn */
    uint32_t samples;             /* each of `iterations` runs of the op */
    uint32_t iterations;
    double ms, ms_low, ms_high; /* of one run: median, least and most of the samples */
    double gop_s, gb_s;         /* GB/s: of weights, cache, or rows in and out; 0: does not apply */
    const char *roof;           /* the one that bounds it: "vnni", "fma", "bf16", "read", "" */
    double of_roof;             /* part of it that was reached; rows that lie in caches pass 1 */
    /* Part of the output that was compared with ref: rows of rows, tokens of tokens. */
    uint32_t rows, of_rows, tokens_checked;
    int good;     /* equal bits; of the fast class, within its bound */
    double error; /* fast class: the largest error as a part of the bound */
    int same;     /* the whole output has the bits of the first rung's (exact class) */
} fm_lab_kernel;

/* Called once with the roofs (kernel NULL), then with each kernel. Non-zero: stop (CANCELLED). */
typedef int fm_lab_kernels_callback(void *user, const fm_lab_roofs *roofs,
                                    const fm_lab_kernel *kernel);

/* options may be NULL. Errors: ARGUMENT (names the option and the word), UNSUPPORTED (a rung that
   this processor lacks), MEMORY, CANCELLED. A kernel whose results differ is no error: see `good`.
 */
fm_status fm_lab_kernels(const fm_lab_kernels_options *options, fm_lab_kernels_callback *callback,
                         void *user, fm_error *error);

/* ---- stamp.c ---- */

/* The environment of this process and machine as one JSON object; fm_free(). NULL: no memory. */
char *fm_lab_stamp(const fm_machine *machine);

/* ---- statistics.c: pure ---- */

/* Which of n subjects comes at `position` of `round`, such that over n rounds (2 n where n is odd)
   each stands once (twice) at each place and comes after each other equally often. */
uint32_t fm_lab_order(uint32_t n, uint32_t round, uint32_t position);
/* Sorts a copy; 0 where n is 0 or there is no memory. */
double fm_lab_median(const double *values, uint32_t n);

typedef struct fm_lab_ratio {
    double median, low, high; /* the interval holds 95 % of the resampled medians */
} fm_lab_ratio;

/* Of the ratios above[i] / below[i] of n paired samples, by 2000 resamples drawn from `seed`. */
fm_lab_ratio fm_lab_paired_ratio(const double *above, const double *below, uint32_t n,
                                 uint64_t seed);

/* ---- a load beside reading its file: engine/bench_load.c ---- */

/* CPU time and page faults of the whole process. */
typedef struct fm_lab_cost {
    double ms, user_ms, system_ms;
    uint64_t faults;
} fm_lab_cost;

/* Since some beginning: what something took is the difference of two. */
fm_lab_cost fm_lab_cost_now(void);

typedef enum fm_lab_reading {
    FM_LAB_READ_AGAIN = 0,  /* into a megabyte a thread, over and over */
    FM_LAB_READ_MAPPED = 1, /* no copy: one byte of every page of a mapping */
    FM_LAB_READ_FRESH = 2,  /* into new memory as large as the file: what a load needs at least */
    FM_LAB_READING_COUNT
} fm_lab_reading;

/* Takes memory, touches it and gives it back: the host of a virtual machine, which may have to find
   it first, then has it ready for what follows at once. */
fm_status fm_lab_warm_memory(uint64_t bytes, uint32_t threads, fm_error *error);
/* Reads a model's file once on `threads` threads (0: all cores), in pieces of a megabyte. Errors:
   as fm_engine_load(), and UNSUPPORTED for a model of several files. */
fm_status fm_lab_read(const char *path, fm_lab_reading how, uint32_t threads, uint64_t *bytes,
                      fm_lab_cost *out, fm_error *error);
