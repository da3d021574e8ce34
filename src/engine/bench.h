/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/bench.h: kernels alone: what the files of `bench kernels` share.
 *
 * Owns: nothing beyond a call of fm_lab_kernels(). Never does: run a model. Called from: the
 * measuring thread; the team's threads run kernels only.
 *
 * A *case* is one op at one shape: its inputs, its output and how it falls into tasks. Running it
 * once is what a model does for one op: every thread takes tasks until none is left, and the team
 * meets. The same case runs on every rung.
 */
#pragma once

#include "cpu/cpu.h"
#include "fusionml/lab.h"

/* ---- bench_team.c ---- */

typedef struct fm__bench_team fm__bench_team;

/* What a thread needs to take its part of an iteration. */
typedef struct fm__bench_part {
    uint32_t threads;
    uint32_t iteration;
    uint8_t *scratch;       /* 64-byte aligned, enough for a linear and an attention kernel */
    _Atomic uint32_t *next; /* the next task of this iteration */
} fm__bench_part;

static inline uint32_t fm__bench_take(const fm__bench_part *part) {
    return atomic_fetch_add_explicit(part->next, 1, memory_order_relaxed);
}

enum { FM__BENCH_ITERATIONS = 4096 }; /* the most of one run */

/* threads 0: all cores. cancelled (or NULL) is asked while the team works. */
fm_status fm__bench_team_create(fm__bench_team **out, uint32_t threads, int (*cancelled)(void),
                                fm_error *error);
void fm__bench_team_destroy(fm__bench_team **team);
/* As many of `threads` as there are processors. */
uint32_t fm__bench_processors(uint32_t threads);
uint32_t fm__bench_team_threads(const fm__bench_team *team);
/* It was cancelled: its runs return at once and mean nothing, and it can only be destroyed. */
bool fm__bench_team_cancelled(const fm__bench_team *team);

/* ---- cases: bench_linear.c, bench_attention.c, bench_rows.c ---- */

/* A model's sizes, or one product's. */
typedef struct fm__bench_shape {
    char name[24];
    uint32_t embd, ffn;            /* K and N of the product */
    uint32_t heads, kv_heads, dim; /* heads 0: not a model */
} fm__bench_shape;

typedef struct fm__bench_check {
    uint32_t rows, of_rows, tokens, of_tokens; /* of the output: how much was compared with ref */
    bool good;
    double error; /* fast class: the largest error as a part of what is allowed */
} fm__bench_check;

typedef struct fm__bench_case fm__bench_case;
struct fm__bench_case {
    const char *op, *type; /* type: of weights or activations, "" where there is none */
    bool fast;
    uint32_t n, k, tokens, depth; /* as reported; 0: does not apply */
    uint32_t copies;              /* of the inputs, used in turn */
    uint32_t inner;               /* times that an iteration does the op: small ones more often */
    double ops, bytes;            /* of the op once */
    enum { FM__BENCH_NO_OPS, FM__BENCH_VNNI, FM__BENCH_FMA, FM__BENCH_BF16 } unit; /* of `ops` */
    float *out; /* what a run writes; compared between rungs */
    size_t out_bytes;
    /* NULL, or puts back what a run overwrites; called before the run that is checked. */
    void (*reset)(const fm__bench_case *c);
    /* The rung's kernel for this case, or NULL. */
    const char *(*kernel)(const fm__bench_case *c, const fm__kernels *kernels);
    /* NULL, or what the team does before it meets and goes on with run(); false: nothing, and it
       need not meet. */
    bool (*prepare)(const fm__bench_case *c, const fm__kernels *kernels,
                    const fm__bench_part *part);
    void (*run)(const fm__bench_case *c, const fm__kernels *kernels, const fm__bench_part *part);
    /* Compares `out` with what ref gives. */
    fm_status (*check)(const fm__bench_case *c, const fm__kernels *ref, fm__bench_check *out,
                       fm_error *error);
    void (*destroy)(fm__bench_case *c);
};

/* Large memory that one case after the other uses: faulting pages in takes longer than filling
   them. Zero-initialise. */
typedef struct fm__bench_pool {
    uint8_t *data;
    size_t bytes;
} fm__bench_pool;

/* `bytes` of any content, until the next call; NULL: no memory. */
uint8_t *fm__bench_pool_get(fm__bench_pool *pool, size_t bytes);
void fm__bench_pool_finish(fm__bench_pool *pool);

/* How many copies of `bytes`, used in turn, do not stay in the cache; 2 at least, and 16 of what is
   so small that more than 1024 would be needed. */
uint32_t fm__bench_copies(size_t bytes, size_t cache_bytes);

fm_status fm__bench_linear(fm__bench_case **out, const fm__type *type, bool fast, uint32_t n,
                           uint32_t k, uint32_t tokens, size_t cache_bytes, fm__bench_pool *pool,
                           fm__random *random, fm_error *error);
fm_status fm__bench_attention(fm__bench_case **out, fm__cache_type type,
                              const fm__bench_shape *shape, uint32_t tokens, uint32_t depth,
                              size_t cache_bytes, fm__bench_pool *pool, fm__random *random,
                              fm_error *error);

/* Ops that work row by row, and for which activation or function. */
typedef enum fm__bench_row_op {
    FM__BENCH_RMSNORM,
    FM__BENCH_ROPE,
    FM__BENCH_QUANTISE,
    FM__BENCH_GLU,
    FM__BENCH_ADD,
    FM__BENCH_KV_STORE,
} fm__bench_row_op;
/* variant: fm__act of QUANTISE, fm__glu of GLU, fm__rope_style of ROPE, else 0. */
fm_status fm__bench_rows(fm__bench_case **out, fm__bench_row_op op, uint32_t variant,
                         const fm__bench_shape *shape, uint32_t tokens, fm__random *random,
                         fm_error *error);

/* Runs `iterations` of the case, beginning with copy 0; ns from the first thread's beginning to the
   last one's end. */
uint64_t fm__bench_run(fm__bench_team *team, const fm__bench_case *c, const fm__kernels *kernels,
                       uint32_t iterations);

/* ---- inputs ---- */

/* Nearly normal, deviation 1. */
void fm__bench_normals(fm__random *random, float *x, size_t n);
