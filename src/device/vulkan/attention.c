/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/attention.c: ATTENTION: how heads, rows and key blocks are dealt out to workgroups.
 *
 * Owns: nothing. Never does: arithmetic (shaders do). Called from: the loading thread.
 *
 * A tape for many rows gives a workgroup all key blocks of its queries: there are enough queries to
 * fill a device. With few rows and a long context each key block gets a workgroup of its own, and a
 * second dispatch merges what they leave (docs/numerics.md lets a backend do either).
 */
#include "device/vulkan/ops.h"

enum {
    LANES = 256, /* one a key of a block */
    MERGE_LANES = 128,
    DEPTH = 8,               /* loads that a lane has in flight: many workgroups share a core */
    SPLIT_DEPTH = 32,        /* ... where a workgroup has a core to itself */
    SPLIT_ROWS = 64,         /* up to so many rows key blocks are split */
    SPLIT_BYTES = 256 << 20, /* of what they leave, at most */
    SPLIT_GROUPS = 512,      /* workgroups of a split at most: each may take several blocks */
    MOST_QUERIES = 16,       /* of a workgroup: 16 lanes each in the softmax */
};

typedef struct shape {
    const fm__cache_group *group;
    uint32_t shared;  /* query heads of one kv head */
    uint32_t queries; /* of a workgroup: 16, 8 or 4 */
    uint32_t rows;    /* queries whose outputs one lane sums */
    uint32_t dims;    /* output dims of a lane */
    uint32_t blocks;  /* key blocks that a row sees, at most */
    bool split;
} shape;

/* Shared memory of shaders/attention.comp or attention_q8_0.glsl. */
static size_t shared_bytes(const fm__cache_group *group, uint32_t queries) {
    size_t words = FM__KEY_BLOCK + 2 * 16 + 9; /* of a query */
    if (group->type == FM__CACHE_F16)
        return (words + group->key_dim) * queries * sizeof(float);
    words += (size_t)fm__cache_blocks(group->key_dim) * (FM__CACHE_BLOCK / 4 + 1);
    size_t pairs = 32; /* of a query and a block of dims: its weights, the largest, the unit */
    return (words * queries + pairs * (FM__KEY_BLOCK / 4 * 2 + 2)) * sizeof(float);
}

/* Positions are below the tape's limit, and every key of a group without a window has its slot. */
static uint32_t block_bound(const fm__tape *tape, const fm__cache_group *group) {
    uint64_t keys = tape->position_limit;
    if (group->window == 0 || keys == UINT32_MAX)
        keys = fm__min_size(keys, (size_t)group->n_page * FM__PAGE_TOKENS);
    uint64_t blocks = (keys + FM__KEY_BLOCK - 1) / FM__KEY_BLOCK;
    if (group->window == 0)
        return (uint32_t)blocks;
    uint64_t seen = ((uint64_t)group->window + FM__KEY_BLOCK - 2) / FM__KEY_BLOCK + 1;
    return (uint32_t)(tape->position_limit == UINT32_MAX ? seen : fm__min_size(seen, blocks));
}

static uint64_t part_bytes(const shape *s, uint64_t rows, uint64_t heads) {
    return rows * heads * s->blocks * (s->group->value_dim + 2) * sizeof(float);
}

static shape shape_of(const fm__vulkan *gpu, const fm__tape *tape, const fm__op *op) {
    const fm__cache_group *group = &tape->groups[op->cache_group];
    shape s = {.group = group, .shared = op->heads / group->n_kv_head};
    s.blocks = block_bound(tape, group);
    s.split = tape->max_rows <= SPLIT_ROWS && s.blocks > 1 &&
              part_bytes(&s, tape->max_rows, op->heads) <= SPLIT_BYTES;
    s.queries = MOST_QUERIES;
    uint64_t all = (uint64_t)tape->max_rows * s.shared;
    while (s.queries > 4 &&
           (all <= s.queries / 2 || shared_bytes(group, s.queries) > gpu->shared_bytes))
        s.queries /= 2;
    if (group->type == FM__CACHE_Q8_0) { /* passes of 1024 / queries dims, one a lane */
        s.rows = 4;
        s.dims = fm__vulkan_groups(group->value_dim, 4 * LANES / s.queries);
        return s;
    }
    /* Lanes are dims times groups of queries. */
    uint32_t sets = s.queries / 4;
    s.dims = group->value_dim * sets <= LANES ? 1 : 2;
    s.rows = 4;
    while (fm__vulkan_groups(group->value_dim, s.dims) * (s.queries / s.rows) > LANES &&
           s.rows < s.queries)
        s.rows *= 2;
    return s;
}

uint64_t fm__vulkan_attention_temporary(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                        bool or_shorter) {
    shape s = shape_of(gpu, tape, op);
    if (s.split)
        return part_bytes(&s, tape->max_rows, op->heads);
    /* Not split as its parts would be too large: those of a shorter context may not be. */
    return or_shorter && tape->max_rows <= SPLIT_ROWS && s.blocks > 1 ? SPLIT_BYTES : 0;
}

bool fm__vulkan_supports_attention(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                   const char **reason) {
    const fm__cache_group *group = &tape->groups[op->cache_group];
    if (group->key_dim > 512 || group->value_dim > 512) {
        *reason = "heads wider than 512 dims";
        return false;
    }
    if (shared_bytes(group, 4) > gpu->shared_bytes) {
        *reason = "too little shared memory for a tile of queries";
        return false;
    }
    if (group->n_kv_head > UINT16_MAX) {
        *reason = "more than 65535 key/value heads";
        return false;
    }
    return true;
}

const char *fm__vulkan_attention_name(const fm__tape *tape, const fm__op *op, uint32_t n) {
    if (tape->groups[op->cache_group].type == FM__CACHE_Q8_0)
        return n == 2 ? "attention_q8_0_split" : "attention_q8_0";
    return n == 2 ? "attention_split" : "attention";
}

uint32_t fm__vulkan_attention_variants(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                       fm__vulkan_variant variants[2]) {
    shape s = shape_of(gpu, tape, op);
    uint32_t depth = s.split && !gpu->device.properties.software ? SPLIT_DEPTH : DEPTH;
    variants[0] = (fm__vulkan_variant){
        .shader = s.group->type == FM__CACHE_F16 ? FM__VULKAN_SHADER_attention
                  : gpu->has_dot                 ? FM__VULKAN_SHADER_attention_q8_0_dot
                                                 : FM__VULKAN_SHADER_attention_q8_0,
        .n = s.group->type == FM__CACHE_F16 ? 11 : 12,
        .values = {LANES, 1, 1, s.group->key_dim, s.group->value_dim, s.shared, s.queries, s.rows,
                   s.dims, s.split, depth, FM__KEY_BLOCK / 4 / (LANES / 32)},
    };
    variants[1] = (fm__vulkan_variant){
        .shader = FM__VULKAN_SHADER_attention_merge,
        .n = 5,
        .values = {MERGE_LANES, 1, 1, MERGE_LANES, s.group->value_dim},
    };
    return s.split ? 2 : 1;
}

/* Which kv heads a range covers. */
static void heads_of(const fm__vulkan_step *step, const shape *s, uint32_t *begin, uint32_t *end) {
    *begin = 0;
    *end = s->group->n_kv_head;
    if (step->range->axis == FM__AXIS_CHANNELS) {
        uint32_t width = s->shared * s->group->value_dim;
        *begin = step->range->begin / width;
        *end = step->range->end / width;
    }
}

static fm_status record_merge(const fm__vulkan_step *step, const shape *s,
                              const fm__vulkan_variant *variant, uint64_t parts, uint32_t kv_begin,
                              uint32_t kv_end) {
    const struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place to;
        uint32_t window, heads, head_begin, blocks;
        uint64_t parts;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = fm__vulkan_rows_of(step->range, FM__ROWS_BATCH),
        .to = fm__vulkan_place_of(step->tape, step->op->out),
        .window = s->group->window,
        .heads = step->op->heads,
        .head_begin = kv_begin * s->shared,
        .blocks = s->blocks,
        .parts = parts,
    };
    const fm__vulkan_kernel *kernel;
    fm_status status = fm__vulkan_kernel_get(fm__vulkan_recorder_gpu(step->recorder), variant,
                                             "attention_merge", &kernel, step->error);
    if (status != FM_OK)
        return status;
    fm__vulkan_barrier(step->recorder);
    fm__vulkan_dispatch(step->recorder, kernel, &push, sizeof push, (kv_end - kv_begin) * s->shared,
                        fm__vulkan_row_bound(step->tape, step->range, FM__ROWS_BATCH), 1);
    return FM_OK;
}

fm_status fm__vulkan_record_attention(const fm__vulkan_step *step) {
    const fm__op *op = step->op;
    fm__vulkan *gpu = fm__vulkan_recorder_gpu(step->recorder);
    shape s = shape_of(gpu, step->tape, op);
    fm__vulkan_variant variants[2];
    fm__vulkan_attention_variants(gpu, step->tape, op, variants);
    struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place q, to;
        uint64_t offset; /* of the cache layer */
        uint32_t group, n_kv_head, key_dim, value_dim;
        uint32_t window, kv_begin;
        float scale;
        uint32_t blocks;
        uint64_t parts;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = fm__vulkan_rows_of(step->range, FM__ROWS_BATCH),
        .q = fm__vulkan_place_of(step->tape, op->in[0]),
        .to = fm__vulkan_place_of(step->tape, op->out),
        .offset = fm__cache_offset(s.group, op->cache_layer, 0, 0),
        .group = op->cache_group,
        .n_kv_head = s.group->n_kv_head,
        .key_dim = s.group->key_dim,
        .value_dim = s.group->value_dim,
        .window = s.group->window,
        .scale = op->scale,
        .blocks = s.blocks,
    };
    _Static_assert(sizeof push <= FM__VULKAN_PUSH_BYTES, "push constants of attention");
    uint32_t kv_end;
    heads_of(step, &s, &push.kv_begin, &kv_end);
    uint32_t rows = fm__vulkan_row_bound(step->tape, step->range, FM__ROWS_BATCH);
    uint32_t tiles = fm__vulkan_groups((uint64_t)rows * s.shared, s.queries);
    uint32_t heads = kv_end - push.kv_begin, deep = 1;
    const fm__vulkan_kernel *kernel;
    fm_status status = fm__vulkan_kernel_get(
        gpu, &variants[0], fm__vulkan_attention_name(step->tape, op, s.split ? 2 : 1), &kernel,
        step->error);
    if (status != FM_OK || heads == 0)
        return status;
    if (s.split) {
        status =
            fm__vulkan_temporary(step->recorder, part_bytes(&s, step->tape->max_rows, op->heads),
                                 &push.parts, step->error);
        if (status != FM_OK)
            return status;
        uint64_t most = SPLIT_GROUPS / ((uint64_t)tiles * heads);
        deep = (uint32_t)(most < 1 ? 1 : most < s.blocks ? most : s.blocks);
    }
    fm__vulkan_dispatch(step->recorder, kernel, &push, sizeof push, tiles, heads, deep);
    if (s.split)
        status = record_merge(step, &s, &variants[1], push.parts, push.kv_begin, kv_end);
    return status;
}
