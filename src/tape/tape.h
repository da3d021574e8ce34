/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape/tape.h: the tape room: the layer program as data, the one vocabulary of model, exec and
 * every device.
 *
 * Owns: tapes (ops over named tensors), weight handles, views of batches and caches. Never does:
 * kernels, or clocks. Called from: the loading thread (recording), then read-only from anywhere.
 */
#pragma once

#include "quant/quant.h"

/* ---- weights ---- */

enum { FM__MAX_UNITS = 8, FM__NONE = -1 };

typedef enum fm__role {
    FM__ROLE_LINEAR, /* [groups][N][K], packed into panels */
    FM__ROLE_GATHER, /* rows read one by one, in the file's form, from the mapping */
    FM__ROLE_VECTOR, /* f32 [n]: norms, biases, RoPE tables ([rows][n] when rows > 1) */
} fm__role;

typedef enum fm__residency {
    FM__RESIDENCY_SHARED,   /* zero-copy of the host's panels */
    FM__RESIDENCY_RESIDENT, /* the unit's own copy */
    FM__RESIDENCY_STREAMED, /* copied when needed */
    FM__RESIDENCY_MAPPED,   /* in the file's mapping */
} fm__residency;

/* Where panels [panel_begin, panel_end) of a weight live for one unit. */
typedef struct fm__weight_range {
    uint8_t unit;
    fm__residency residency;
    uint32_t panel_begin, panel_end; /* over all groups: group g starts at g * panels_per_group */
    struct fm__buffer *buffer;       /* NULL: the host pointer below */
    size_t offset;                   /* of panel_begin */
} fm__weight_range;

typedef struct fm__weight {
    char name[96];
    fm__role role;
    const fm__type *type;
    uint32_t groups, n, k;   /* VECTOR: groups = rows, n = length, k = 1 */
    fm__panel_layout layout; /* LINEAR */
    uint32_t panels;         /* of one group: ceil(n / 16) */
    const uint8_t *host; /* LINEAR: panel 0; GATHER: row 0 of the file; VECTOR: f32[groups][n] */
    size_t bytes;        /* of `host` */
    size_t row_bytes;    /* GATHER */
    fm__weight_range ranges[FM__MAX_UNITS];
    uint32_t n_ranges;
} fm__weight;

/* ---- tensors ---- */

typedef enum fm__rows { FM__ROWS_BATCH, FM__ROWS_OUTPUT } fm__rows;

/* Buffers that a tape names; the run binds them. */
typedef enum fm__slot {
    FM__SLOT_SCRATCH,
    FM__SLOT_OUTPUT,
    FM__SLOT_CACHE,
    FM__SLOT_COUNT
} fm__slot;

typedef struct fm__tensor {
    char name[48];
    fm__act act;   /* FM__ACT_F32: plain floats */
    fm__rows rows; /* how many rows a run gives it */
    uint32_t cols;
    fm__act_layout layout; /* stride of a row and parts inside it */
    fm__slot slot;
    size_t
        offset; /* assigned by fm__tape_finish(); tensors whose lives do not overlap share memory */
} fm__tensor;

/* ---- ops ---- */

/* X(NAME, text). Shapes: R = rows of the run, O = rows that want output. */
#define FM__OP_LIST(X)                                                                             \
    X(EMBED, "embed")       /* out (R, n) = row token of weight[0] (GATHER) */                     \
    X(RMSNORM, "rmsnorm")   /* out = in * rsqrt(mean(in^2) + eps) * weight[0], over each group of  \
                               `group` columns (weight[0] has `group` entries) */                  \
    X(QUANTISE, "quantise") /* out in tensor's act class = in[0] (f32) */                          \
    X(LINEAR, "linear")     /* out (R, N) = in[0] . weight[0]^T (+ bias) (+ in[1] residual) */     \
    X(LINEAR_GLU, "linear_glu") /* out (R, N) = f(in[0] . weight[0]^T) * (in[0] . weight[1]^T) */  \
    X(GLU, "glu")   /* out = f(in[0]) * in[1]; for a gate and an up that LINEAR_GLU cannot         \
                       take together */                                                            \
    X(ROPE, "rope") /* in place on out (R, heads*head_dim); weight[0] = cos, weight[1] = sin,      \
                       VECTOR [positions][rotary/2] */                                             \
    X(KV_STORE,                                                                                    \
      "kv_store") /* in[0] = k (R, kv*key_dim), in[1] = v: into the pages of cache layer */        \
    X(ATTENTION,                                                                                   \
      "attention") /* out (R, heads*value_dim) from in[0] = q (R, heads*key_dim) and the pages */  \
    X(SELECT, "select") /* out (O, n) = rows of in[0] (R, n) that want output */

typedef enum fm__op_kind {
#define FM__OP_ENUM(NAME, text) FM__OP_##NAME,
    FM__OP_LIST(FM__OP_ENUM)
#undef FM__OP_ENUM
        FM__OP_COUNT
} fm__op_kind;

typedef enum fm__glu { FM__GLU_SILU, FM__GLU_GELU } fm__glu;
typedef enum fm__rope_style {
    FM__ROPE_PAIRS /* (2i, 2i+1) */,
    FM__ROPE_HALVES /* (i, i + rotary/2) */
} fm__rope_style;

/* It multiplies by a weight's panels: what is divided between units, streamed, and worth most. */
static inline bool fm__is_product(fm__op_kind kind) {
    return kind == FM__OP_LINEAR || kind == FM__OP_LINEAR_GLU;
}

typedef struct fm__op {
    fm__op_kind kind;
    int16_t layer; /* FM__NONE outside the layers */
    int16_t in[2]; /* tensor ids, FM__NONE where unused */
    int16_t out;
    int16_t weight[2]; /* weight ids */
    int16_t bias;      /* weight id (VECTOR) or FM__NONE */
    uint8_t fast;      /* LINEAR*: 1 = the weight type's fast class kernel */
    /* parameters by kind */
    uint32_t group;       /* RMSNORM: columns of one group */
    float eps;            /* RMSNORM */
    fm__glu glu;          /* LINEAR_GLU, GLU */
    fm__rope_style rope;  /* ROPE */
    uint32_t heads;       /* ROPE, ATTENTION: query heads (or key heads when rotating k) */
    uint32_t head_dim;    /* ROPE */
    uint32_t rotary;      /* ROPE: dims rotated, even, <= head_dim */
    uint32_t cache_group; /* KV_STORE, ATTENTION */
    uint32_t cache_layer; /* KV_STORE, ATTENTION: layer within the group */
    float scale;          /* ATTENTION: multiplies q */
} fm__op;

/* ---- caches ---- */

enum { FM__PAGE_TOKENS = 64, FM__KEY_BLOCK = 256 };
#define FM__NO_PAGE UINT32_MAX

typedef enum fm__cache_type { FM__CACHE_F16, FM__CACHE_Q8_0, FM__CACHE_TYPES } fm__cache_type;

/* The page pool of one cache group. Layer l, page p, head h starts at byte
 *     ((l * n_page + p) * n_kv_head + h) * head_bytes
 * F16: K as f16 [4][key_dim][16 keys], then V as f16 [64][value_dim].
 * Q8_0: int8 codes with a bf16 scale per key and 32 dims, the last ones of a head perhaps fewer:
 *     K    [4][ceil(key_dim / 4)][16 keys][4 dims], 0 behind the last dim
 *          its scales [4][blocks][16 keys]
 *     V    block after block [16][the block's dims][4 keys]
 *          its scales [blocks][64]
 * so that four bytes side by side are multiplied and summed at once. */
typedef struct fm__cache_group {
    uint32_t n_layer, n_page, n_kv_head, key_dim, value_dim;
    fm__cache_type type;
    uint32_t window;   /* keys a row sees, itself included; 0: all */
    size_t head_bytes; /* fm__cache_head_bytes() */
    size_t offset;     /* of this group in the cache buffer */
    size_t bytes;
} fm__cache_group;

enum { FM__CACHE_BLOCK = 32 }; /* dims that share a scale */

static inline uint32_t fm__cache_blocks(uint32_t dim) {
    return (dim + FM__CACHE_BLOCK - 1) / FM__CACHE_BLOCK;
}

/* Where the parts of a Q8_0 head begin; K's codes at 0. */
typedef struct fm__cache_parts {
    size_t key_scales, values, value_scales, end;
} fm__cache_parts;

static inline fm__cache_parts fm__cache_q8_0_parts(uint32_t key_dim, uint32_t value_dim) {
    fm__cache_parts p;
    p.key_scales = (size_t)FM__PAGE_TOKENS * ((key_dim + 3) / 4) * 4;
    p.values = p.key_scales + (size_t)FM__PAGE_TOKENS * 2 * fm__cache_blocks(key_dim);
    p.value_scales = p.values + (size_t)FM__PAGE_TOKENS * value_dim;
    p.end = p.value_scales + (size_t)FM__PAGE_TOKENS * 2 * fm__cache_blocks(value_dim);
    return p;
}

static inline size_t fm__cache_head_bytes(fm__cache_type type, uint32_t key_dim,
                                          uint32_t value_dim) {
    return type == FM__CACHE_Q8_0 ? fm__cache_q8_0_parts(key_dim, value_dim).end
                                  : (size_t)FM__PAGE_TOKENS * 2 * (key_dim + value_dim);
}

/* "f16", "q8_0" */
static inline const char *fm__cache_type_name(fm__cache_type type) {
    return type == FM__CACHE_Q8_0 ? "q8_0" : "f16";
}

static inline size_t fm__cache_offset(const fm__cache_group *g, uint32_t layer, uint32_t page,
                                      uint32_t head) {
    return g->offset + (((size_t)layer * g->n_page + page) * g->n_kv_head + head) * g->head_bytes;
}

/* ---- one run's rows: views, owned by the engine ---- */

typedef struct fm__batch_view {
    uint32_t n_row;
    const int32_t *token;     /* (n_row) */
    const uint32_t *position; /* (n_row) */
    const uint32_t *sequence; /* (n_row): index into pages */
    uint32_t n_output;
    const uint32_t *output_row; /* (n_output) ascending row indices */
    uint32_t n_sequence;
    /* pages[sequence * n_group + group][position / 64] = page id, FM__NO_PAGE where dropped */
    const uint32_t *const *pages;
    uint32_t n_group;
} fm__batch_view;

/* ---- tapes ---- */

typedef struct fm__tape {
    fm__op *ops;
    uint32_t n_op, op_capacity;
    fm__tensor *tensors;
    uint32_t n_tensor, tensor_capacity;
    fm__weight *const *weights; /* the model's; ids index it */
    uint32_t n_weight;
    const fm__cache_group *groups; /* the model's */
    uint32_t n_group;
    uint32_t max_rows, max_outputs;     /* bounds */
    size_t scratch_bytes, output_bytes; /* after fm__tape_finish() */
    /* Also after fm__tape_finish(): what a run's rows are checked against. */
    uint32_t token_limit;    /* tokens are below it (rows of the EMBED tables) */
    uint32_t position_limit; /* positions are below it (rows of the ROPE tables) */
    uint32_t group_mask;     /* bit g: some op uses cache group g */
    int16_t logits, hidden;  /* tensor ids of the outputs; logits may be FM__NONE */
    bool failed;             /* sticky: out of memory or too many tensors while recording */
    bool finished; /* fm__tape_finish() succeeded: offsets are assigned, ops are checked */
} fm__tape;

fm_status fm__tape_create(fm__tape **out, uint32_t max_rows, uint32_t max_outputs, fm_error *error);
void fm__tape_destroy(fm__tape **tape);
/* Appends; the id, or FM__NONE with tape->failed set. name is copied. */
int16_t fm__tape_tensor(fm__tape *tape, const char *name, fm__act act, uint32_t cols, fm__rows rows,
                        fm__slot slot);
/* An op with every id FM__NONE and parameters zero; fill it in before the next call. Never NULL (a
   scratch op once failed). */
fm__op *fm__tape_op(fm__tape *tape, fm__op_kind kind, int layer);
/* Checks shapes and ids of every op, plans memory (offsets), sets scratch_bytes and output_bytes.
 */
fm_status fm__tape_finish(fm__tape *tape, fm_error *error);
/* One line an op, for --explain and tests. */
void fm__tape_print(const fm__tape *tape, fm__buf *out);
const char *fm__op_name(fm__op_kind kind);
/* "linear blk.0.attn_q.weight": for reports and error messages. */
void fm__op_describe(const fm__tape *tape, uint32_t op, char *out, size_t capacity);

/* ---- check.c ---- */

/* Rows that a run may give a tensor at most: max_rows or max_outputs. */
uint32_t fm__tape_bound(const fm__tape *tape, const fm__tensor *tensor);
/* Whose rows an op runs over. A KV_STORE has no out: its rows are the batch's. */
fm__rows fm__op_rows(const fm__tape *tape, const fm__op *op);
/* Ids, roles, shapes, classes and parameters of one op against the tape: ARGUMENT naming the op. */
fm_status fm__op_check(const fm__tape *tape, uint32_t op, fm_error *error);

/* ---- memory.c: where tensors lie in the scratch slot; pure ---- */

/* 128: the granule of a channel split, so that two tensors never share a line that two units
   write. */
enum { FM__TENSOR_ALIGN = 128 };

/* One tensor's need: bytes from op `first` to op `last`, both included. */
typedef struct fm__life {
    size_t bytes;
    uint32_t first, last;
    uint32_t kind; /* only lives of one kind share memory */
} fm__life;

/* Offsets (multiples of FM__TENSOR_ALIGN) such that no two lives that overlap in time, or are of
   two kinds, overlap in memory; *total is the end of the highest. Largest first, each at the lowest
   offset that fits: lives of one kind that are equally large share all of their memory or none.
   Zero bytes: offset 0. Errors: MEMORY, LIMIT (sizes overflow). */
fm_status fm__tape_place(const fm__life *lives, uint32_t n, size_t *offsets, size_t *total,
                         fm_error *error);

/* ---- depend.c: which ops must wait for which; pure ---- */

typedef enum fm__dependence {
    FM__DEPENDENCE_NONE, /* the two may run in any order or at once */
    FM__DEPENDENCE_ROWS, /* row r of the later op needs row r of the earlier one and nothing else */
    FM__DEPENDENCE_FULL, /* the later op needs all of the earlier one */
} fm__dependence;

/* Whether two tensors of a finished tape share memory (a tensor does with itself). */
bool fm__tape_overlaps(const fm__tape *tape, int16_t a, int16_t b);
/* Of op `later` on op `earlier` of a finished tape: through tensors, through memory that tensors
   share, and through cache layers; read after write, write after read, write after write. */
fm__dependence fm__tape_depends(const fm__tape *tape, uint32_t earlier, uint32_t later);
/* Whether a row of `later` may depend on other rows of `earlier` than that one. If not, a unit that
   computes some rows of both need not wait for one that computes others: so it is along a chain of
   row-wise ops, products and attention. Of a finished tape. */
bool fm__tape_mixes_rows(const fm__tape *tape, uint32_t earlier, uint32_t later);
