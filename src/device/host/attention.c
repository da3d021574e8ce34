/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/attention.c: who attends what.
 *
 * Owns: nothing (parts.c has the memory). Never does: arithmetic (kernels do), or allocate. Called
 * from: every thread of the team.
 *
 * Many rows are cut by rows and kv heads. Few rows, as in decoding, are also cut by blocks of keys,
 * so that two kv heads and a long context still keep a large team busy; whoever finishes the last
 * block of a row and kv head merges all of them.
 */
#include "device/host/host.h"

enum { ROWS = 32 /* of one task at most: enough to read a key block once for many */ };

/* ---- tasks ---- */

/* What a step covers. */
typedef struct area {
    const fm__batch_view *batch;
    const fm__cache_group *group;
    fm__host_rows rows;
    uint32_t kv_begin, kv_end;
} area;

static area area_of(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    const fm__cache_group *group = &work->tape->groups[op->cache_group];
    area a = {work->run->batch, group, fm__host_step_rows(work), 0, group->n_kv_head};
    if (work->step->axis == FM__AXIS_CHANNELS) {
        uint32_t width = op->heads / group->n_kv_head * group->value_dim;
        a.kv_begin = work->step->begin / width;
        a.kv_end = work->step->end / width;
    }
    return a;
}

static fm__attention_args arguments(const fm__host_work *work, const area *a) {
    const fm__op *op = work->step->op;
    uint8_t *cache =
        fm__host_memory(work->device, fm__run_buffer(work->run, work->device, FM__SLOT_CACHE));
    return (fm__attention_args){
        .group = a->group,
        .layer_base = cache + fm__cache_offset(a->group, op->cache_layer, 0, 0),
        .batch = a->batch,
        .group_index = op->cache_group,
        .heads = op->heads,
        .scale = op->scale,
        .q = fm__host_row(work, op->in[0], 0),
        .q_stride = work->tape->tensors[op->in[0]].layout.stride,
        .out = fm__host_row(work, op->out, 0),
        .out_stride = work->tape->tensors[op->out].layout.stride,
        .scratch = work->scratch,
    };
}

static void by_rows(const fm__host_work *work, const area *a) {
    uint32_t n = a->rows.end - a->rows.begin, heads = a->kv_end - a->kv_begin, task;
    uint64_t share = (uint64_t)n * heads / (FM__HOST_ATTENTION_TASKS * (uint64_t)work->threads);
    uint32_t block = share < 1 ? 1 : share > ROWS ? ROWS : (uint32_t)share;
    uint32_t n_block = (n + block - 1) / block;
    fm__attention_args args = arguments(work, a);
    while ((task = fm__host_take(work)) < n_block * heads) {
        /* Late rows see more keys: they go first, so that no long task is left for the end. */
        uint32_t b = n_block - 1 - task / heads;
        args.row_begin = a->rows.begin + b * block;
        args.row_end = b == n_block - 1 ? a->rows.end : args.row_begin + block;
        args.kv_begin = a->kv_begin + task % heads;
        args.kv_end = args.kv_begin + 1;
        work->kernels->attention[a->group->type](&args);
    }
}

/* ---- blocks of keys apart ---- */

/* Blocks [begin, end) with a key that a row sees. */
typedef struct blocks {
    uint32_t begin, end;
} blocks;

static blocks blocks_of(const area *a, uint32_t row) {
    uint32_t position = a->batch->position[row], window = a->group->window;
    uint32_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;
    return (blocks){first / FM__KEY_BLOCK, position / FM__KEY_BLOCK + 1};
}

/* How keys are cut: `run` blocks a task. 0: not at all. */
static uint32_t cut_keys(const fm__host_work *work, const area *a) {
    uint64_t heads = a->kv_end - a->kv_begin, n = a->rows.end - a->rows.begin, all = 0;
    uint64_t wanted = (uint64_t)FM__HOST_ATTENTION_TASKS * work->threads;
    if (work->threads == 1 || work->parts == NULL || n * heads >= wanted)
        return 0;
    for (uint32_t r = a->rows.begin; r < a->rows.end; r++) {
        blocks b = blocks_of(a, r);
        all += (b.end - b.begin) * heads;
    }
    size_t shared = work->step->op->heads / a->group->n_kv_head;
    if (all == n * heads ||
        all * shared * fm__attention_part_floats(a->group) > work->parts->floats)
        return 0;
    return (uint32_t)((all + wanted - 1) / wanted);
}

/* A row and kv head: its index among them, and where its parts begin. */
typedef struct chain {
    uint32_t row, kv, index;
    blocks all;
    uint64_t part; /* blocks of the chains before it */
} chain;

/* The chain that task `*task` belongs to, and in *task which one of its own it is; false: there is
   no such task. */
static bool find_chain(const area *a, uint32_t run, uint32_t *task, chain *c) {
    *c = (chain){0};
    for (c->row = a->rows.begin; c->row < a->rows.end; c->row++) {
        c->all = blocks_of(a, c->row);
        uint32_t n = c->all.end - c->all.begin, tasks = (n + run - 1) / run;
        for (c->kv = a->kv_begin; c->kv < a->kv_end; c->kv++, c->index++, c->part += n) {
            if (*task < tasks)
                return true;
            *task -= tasks;
        }
    }
    return false;
}

/* Some blocks of one chain; with its last ones, the merge. */
static void attend_blocks(const fm__host_work *work, fm__attention_args *args, const chain *c,
                          uint32_t begin, uint32_t end) {
    size_t head = args->heads / args->group->n_kv_head * fm__attention_part_floats(args->group);
    float *parts = work->parts->states + c->part * head;
    args->row_begin = c->row;
    args->row_end = c->row + 1;
    args->kv_begin = c->kv;
    args->kv_end = c->kv + 1;
    args->mode = FM__ATTENTION_PARTS;
    args->block_begin = begin;
    args->block_end = end;
    args->parts = parts + (begin - c->all.begin) * head;
    work->kernels->attention[args->group->type](args);
    uint32_t n = end - begin, all = c->all.end - c->all.begin;
    _Atomic uint32_t *done = &work->parts->done[c->index];
    if (atomic_fetch_add_explicit(done, n, memory_order_acq_rel) + n < all)
        return;
    atomic_store_explicit(done, 0, memory_order_relaxed); /* for the next step */
    args->mode = FM__ATTENTION_MERGE;
    args->block_begin = c->all.begin;
    args->block_end = c->all.end;
    args->parts = parts;
    work->kernels->attention[args->group->type](args);
}

static void by_keys(const fm__host_work *work, const area *a, uint32_t run) {
    fm__attention_args args = arguments(work, a);
    uint32_t task;
    chain c;
    while (task = fm__host_take(work), find_chain(a, run, &task, &c)) {
        uint32_t begin = c.all.begin + task * run;
        uint32_t end = begin + run < c.all.end ? begin + run : c.all.end;
        attend_blocks(work, &args, &c, begin, end);
    }
}

void fm__host_attention(const fm__host_work *work) {
    area a = area_of(work);
    if (a.rows.begin == a.rows.end)
        return;
    uint32_t run = cut_keys(work, &a);
    if (run == 0)
        by_rows(work, &a);
    else
        by_keys(work, &a, run);
}
