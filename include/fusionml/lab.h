/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/lab.h: what `convert`, `synth`, `bench` and `calibrate` need beyond the public surface.
 * Unstable, not installed, not exported by the shared library: link the static one.
 */
#pragma once

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
    const char *shape; /* "ffn_gate+up 4864x896 q4_k", or "whole tape" */
    uint32_t rows;
    double share, ms, ms_share_0;
    uint32_t done, total; /* steps, for a progress bar */
} fm_lab_point;
typedef int fm_lab_point_callback(void *user, const fm_lab_point *point); /* non-zero: stop */

typedef struct fm_lab_calibration {
    uint32_t n_curve;
    struct fm_lab_curve {
        char shape[96];
        uint32_t rows, n_point;
        double share[32], ms[32];
        double best, gain; /* share, and time at share 0 over time at best */
    } * curves;            /* (n_curve) malloc'ed; fm_lab_calibration_free() */
    char path[512];        /* where it was saved */
    char key[768];         /* what it is valid for, as saved with it */
} fm_lab_calibration;

/* Measures, with both units at work, the share of the last unit for every shape of product of the
   engine and every row bucket; uses it from now on and saves it. The engine needs two units. */
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
    uint64_t overlap_ns;                 /* the first two units both at work */
    uint64_t busy_ns[FM_LAB_UNITS];      /* sum of the unit's recordings; 0: it keeps no time */
    uint64_t divided_ns[FM_LAB_UNITS];   /* of those that compute a part of a divided product */
    uint64_t weight_bytes[FM_LAB_UNITS]; /* packed weight bytes of the ranges that it computed */
    uint64_t ops[FM_LAB_UNITS]; /* 2 * rows * k * n of those products, rows as they were run */
} fm_lab_times;

/* Errors: STATE (the last run failed, or there was none). */
fm_status fm_lab_last_times(fm_engine *engine, fm_lab_times *out, fm_error *error);

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
