/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/cpu.h: the cpu room: the kernel table.
 *
 * Owns: one table of kernels per rung (ref, avx2, avxvnni, avx512, amx, neon). Never does: threads,
 * allocation, model knowledge. Called from: the host device's team (each call handles the range it
 * is given), tests, benches.
 *
 * ref/ is the numeric specification (docs/numerics.md); every exact kernel of every rung gives
 * ref's bits.
 */
#pragma once

#include "cpu/numerics.h"
#include "quant/quant.h"
#include "tape/tape.h"

/* ---- linear ---- */

enum {
    FM__LINEAR_SCRATCH = 704 * 1024
}; /* bytes of scratch a linear kernel may use, 64-byte aligned */

/* out[t * out_stride + row] = sum over k of act(t, k) * w(row, k), rows [panel_begin*16,
   min(panel_end*16, n)), t in [0, tokens). Writes nothing else. Panels and activation rows are
   64-byte aligned; out needs the alignment of a float only. */
typedef struct fm__linear_args {
    const fm__type *type;
    fm__panel_layout layout;
    const uint8_t *panels; /* panel 0 of the group */
    uint32_t n, k;
    uint32_t panel_begin, panel_end;
    const uint8_t *act; /* activation row 0 */
    fm__act_layout act_layout;
    uint32_t tokens;
    float *out;        /* row 0 of out, column 0 */
    size_t out_stride; /* floats */
    void *scratch;
    /* NULL, or where this thread is likely to read next, for a kernel to fetch into its caches: a
       panel's first byte or, with ahead_backwards, the byte behind its last. Of any weight:
       ahead_alike says whether its panels have this layout. */
    const uint8_t *ahead;
    bool ahead_backwards, ahead_alike;
    bool asks; /* fm__kernels.asks */
    /* NULL, or what the kernel's shared->prepare() made of a product's tokens: of
       prepared_tokens, from which this call's begin at prepared_first, a multiple of 16. */
    uint8_t *prepared;
    uint32_t prepared_first, prepared_tokens;
} fm__linear_args;

typedef void fm__linear_fn(const fm__linear_args *args);

/* Tokens of a whole product prepared once for all its tasks, by all threads, where that takes a
   kernel as long as some panels do. Kernels with the same one read the same form. */
typedef struct fm__linear_shared {
    /* of args->prepared, 64-byte aligned; 0: so few tokens are not prepared */
    size_t (*bytes)(uint32_t tokens, uint32_t k);
    uint32_t (*units)(uint32_t tokens, uint32_t k); /* pieces of that work */
    /* Piece `unit` of args->tokens tokens from args->act into args->prepared. Any thread, any
       order; no scratch. */
    void (*prepare)(const fm__linear_args *args, uint32_t unit);
} fm__linear_shared;

typedef struct fm__linear_kernel {
    fm__linear_fn *fn; /* NULL: none */
    const char *name;  /* "fm__linear_q4_k_avx512vnni" */
    uint16_t tokens;   /* MR: tokens of a register tile (hint for splitting by tokens) */
    uint16_t panels;   /* NR: panels a call should at least get */
    bool backwards; /* one token: reads from the end of the last panel to the begin of the first */
    const fm__linear_shared *shared; /* NULL: none */
} fm__linear_kernel;

/* ---- rows: float pointers need the alignment of a float only ---- */

/* Quantises one row of k floats into a row (64-byte aligned) of the act's layout. Returns false
   when an entry is NaN, infinite or has |x| >= 2^100 (the row's content is then unspecified). */
typedef bool fm__quantise_fn(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row);
/* out may equal x. inv_n = 1/n rounded from double. */
typedef void fm__rmsnorm_fn(const float *x, const float *weight, float eps, float inv_n, size_t n,
                            float *out);
/* Rotates `heads` heads of head_dim in place; cos, sin: (rotary/2). */
typedef void fm__rope_fn(float *x, uint32_t heads, uint32_t head_dim, uint32_t rotary,
                         fm__rope_style style, const float *cos, const float *sin);
/* out = f(gate) * up; out may equal gate or up. */
typedef void fm__glu_fn(const float *gate, const float *up, size_t n, float *out);
typedef void fm__add_fn(const float *a, const float *b, size_t n, float *out);
/* One token's k (n_kv_head * key_dim) and v into its slot of one page; head_page[h] = start of head
 * h. */
typedef void fm__kv_store_fn(const fm__cache_group *group, uint8_t *layer_base, uint32_t page,
                             uint32_t slot, const float *k, const float *v);

/* ---- attention ---- */

/* Blocks of FM__KEY_BLOCK keys may be taken apart and merged later (docs/numerics.md). */
typedef enum fm__attention_mode {
    FM__ATTENTION_ROWS,  /* all keys */
    FM__ATTENTION_PARTS, /* one row and kv head, some blocks: their states to `parts` */
    FM__ATTENTION_MERGE, /* one row and kv head: all its blocks' states from `parts` to `out` */
} fm__attention_mode;

/* Rows [row_begin, row_end) x kv heads [kv_begin, kv_end). Row r attends keys
   [max(0, position + 1 - window), position] of its sequence. */
typedef struct fm__attention_args {
    const fm__cache_group *group;
    const uint8_t *layer_base; /* cache base + fm__cache_offset(group, layer, 0, 0) */
    const fm__batch_view *batch;
    uint32_t group_index; /* for batch->pages */
    uint32_t heads;       /* query heads; heads / n_kv_head share a kv head */
    float scale;
    const uint8_t *q;
    size_t q_stride; /* bytes row to row; f32 (heads * key_dim) */
    uint8_t *out;
    size_t out_stride; /* f32 (heads * value_dim) */
    uint32_t row_begin, row_end, kv_begin, kv_end;
    fm__attention_mode mode;
    /* PARTS and MERGE: blocks [block_begin, block_end) of positions, each with a key that the row
       sees; parts[block - block_begin][head of the kv head]: fm__attention_part_floats() each,
       64-byte aligned */
    uint32_t block_begin, block_end;
    float *parts;
    void *scratch; /* FM__ATTENTION_SCRATCH bytes, 64-byte aligned */
} fm__attention_args;

enum { FM__ATTENTION_SCRATCH = 256 * 1024, FM__MAX_HEAD_DIM = 512 };

/* A block's state for one query head: o (value_dim, rounded up to 16), m, l, 14 unused. */
static inline size_t fm__attention_part_floats(const fm__cache_group *group) {
    return fm__round_up(group->value_dim, 16) + 16;
}

typedef void fm__attention_fn(const fm__attention_args *args);

/* ---- the table ---- */

typedef struct fm__kernels {
    const char *rung; /* "ref", "avx2", "avxvnni", "avx512", "amx", "neon" */
    /* Products of few tokens ask for their panels ahead of time; else they leave that to the
       processor, which follows a run of loads by itself (lab note 058). */
    bool asks;
    fm__linear_kernel linear[FM__TYPE_COUNT]
                            [2]; /* [type index][0 exact, 1 fast]; fast NULL where none */
    fm__quantise_fn *quantise[FM__ACT_COUNT];
    fm__rmsnorm_fn *rmsnorm;
    fm__rope_fn *rope;
    fm__glu_fn *glu[2]; /* indexed by fm__glu */
    fm__add_fn *add;
    fm__kv_store_fn *kv_store[FM__CACHE_TYPES];   /* indexed by the group's type */
    fm__attention_fn *attention[FM__CACHE_TYPES]; /* likewise */
} fm__kernels;

/* The rungs above ref that this build holds. */
#if defined(FM__ARCH_X86_64)
#define FM__RUNGS_X86 1
#else
#define FM__RUNGS_X86 0
#endif
#if defined(FM__ARCH_AARCH64)
#define FM__RUNGS_ARM 1
#else
#define FM__RUNGS_ARM 0
#endif

/* Fills the table of a rung (NULL or "auto": the best) as allowed by fm__cpu_features(). Errors:
   UNSUPPORTED names the rung and what the CPU lacks; ARGUMENT: no rung has this name. */
fm_status fm__kernels_get(fm__kernels *out, const char *rung, fm_error *error);
/* Likewise for a processor with these features (FM__CPU_*). */
fm_status fm__kernels_get_for(fm__kernels *out, const char *rung, uint32_t features,
                              fm_error *error);
/* NULL-terminated names of the rungs that this build holds and this CPU can run, ref first. */
const char *const *fm__kernels_rungs(void);

/* Each rung overwrites what it has; called in ladder order with the CPU's features. */
void fm__kernels_fill_ref(fm__kernels *table);
void fm__kernels_fill_avx2(fm__kernels *table, uint32_t features);
void fm__kernels_fill_avxvnni(fm__kernels *table, uint32_t features);
void fm__kernels_fill_avx512(fm__kernels *table, uint32_t features);
void fm__kernels_fill_amx(fm__kernels *table, uint32_t features);
void fm__kernels_fill_neon(fm__kernels *table, uint32_t features);
