/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/bench_attention.c: attention over a filled cache as a case of `bench kernels`.
 *
 * Owns: its cache, queries and output. Never does: time. Called from: the measuring thread; run()
 * from the team.
 */
#include "engine/bench.h"

#include <string.h>

enum {
    ROWS = 32, /* of one task at most, and tasks wanted a thread: as the host device has them */
    TASKS_A_THREAD = 4,
    FEW_ROWS = 64,     /* below: keys and values must come from memory */
    CHECKED_ROWS = 16, /* compared with ref, spread over the batch */
};

typedef struct attention {
    fm__bench_case base;
    fm__cache_group group;
    uint32_t heads, length; /* keys in the cache */
    uint8_t *cache;         /* the pool's */
    uint32_t *table;        /* (pages) */
    const uint32_t *pages[1];
    uint32_t *position, *sequence; /* (tokens) */
    fm__batch_view batch;
    float *q; /* (tokens, heads * dim) */
    size_t q_bytes;
    /* Few rows are also cut by blocks of keys: their states, and how many of a row and kv head are
       there. */
    float *parts;           /* (tokens, kv heads, blocks of the last row, heads of the kv head) */
    _Atomic uint32_t *done; /* (tokens, kv heads) */
} attention;

static size_t layer_bytes(const fm__cache_group *g) {
    return g->n_page * g->n_kv_head * g->head_bytes;
}

static const char *kernel_name(const fm__bench_case *c, const fm__kernels *kernels) {
    const attention *a = (const attention *)c;
    return kernels->attention[a->group.type] != NULL ? "attention" : NULL;
}

static fm__attention_args args_of(const attention *a, uint32_t layer, float *out, void *scratch) {
    size_t stride = (size_t)a->heads * a->group.value_dim * sizeof(float);
    return (fm__attention_args){
        .group = &a->group,
        .layer_base = a->cache + fm__cache_offset(&a->group, layer, 0, 0),
        .batch = &a->batch,
        .heads = a->heads,
        .scale = 0.125f,
        .q = (const uint8_t *)a->q,
        .q_stride = (size_t)a->heads * a->group.key_dim * sizeof(float),
        .out = (uint8_t *)out,
        .out_stride = stride,
        .scratch = scratch,
    };
}

/* Blocks of keys that row r sees. */
static uint32_t blocks_of(const attention *a, uint32_t r) {
    return (a->base.depth + r) / FM__KEY_BLOCK + 1;
}

/* Some blocks of one row and kv head; with its last ones, the merge. */
static void attend_blocks(const attention *a, const fm__kernels *kernels, fm__attention_args *args,
                          uint32_t row, uint32_t kv, uint32_t begin, uint32_t end) {
    uint32_t chain = row * a->group.n_kv_head + kv, all = blocks_of(a, row);
    size_t block = a->heads / a->group.n_kv_head * fm__attention_part_floats(&a->group);
    float *parts = a->parts + (size_t)chain * blocks_of(a, a->base.tokens - 1) * block;
    args->row_begin = row;
    args->row_end = row + 1;
    args->kv_begin = kv;
    args->kv_end = kv + 1;
    args->mode = FM__ATTENTION_PARTS;
    args->block_begin = begin;
    args->block_end = end;
    args->parts = parts + begin * block;
    kernels->attention[a->group.type](args);
    uint32_t n = end - begin;
    if (atomic_fetch_add_explicit(&a->done[chain], n, memory_order_acq_rel) + n < all)
        return;
    atomic_store_explicit(&a->done[chain], 0, memory_order_relaxed);
    args->mode = FM__ATTENTION_MERGE;
    args->block_begin = 0;
    args->block_end = all;
    args->parts = parts;
    kernels->attention[a->group.type](args);
}

/* `length` blocks a task. */
static void run_blocks(const attention *a, const fm__kernels *kernels, const fm__bench_part *part,
                       uint32_t length) {
    fm__attention_args args =
        args_of(a, part->iteration % a->base.copies, a->base.out, part->scratch);
    uint32_t row = 0, kv = 0, first = 0, task; /* the chain, and the first of its tasks */
    while (task = fm__bench_take(part), row < a->base.tokens) {
        uint32_t tasks = (blocks_of(a, row) + length - 1) / length;
        while (row < a->base.tokens && task >= first + tasks) {
            first += tasks;
            kv = (kv + 1) % a->group.n_kv_head;
            row += kv == 0;
            tasks = (blocks_of(a, row) + length - 1) / length;
        }
        if (row == a->base.tokens)
            return;
        uint32_t begin = (task - first) * length, all = blocks_of(a, row);
        attend_blocks(a, kernels, &args, row, kv, begin,
                      begin + length < all ? begin + length : all);
    }
}

static void run(const fm__bench_case *c, const fm__kernels *kernels, const fm__bench_part *part) {
    const attention *a = (const attention *)c;
    uint32_t heads = a->group.n_kv_head, wanted = TASKS_A_THREAD * part->threads, task;
    if (part->threads > 1 && a->parts != NULL && c->tokens * heads < wanted) {
        uint64_t all = 0;
        for (uint32_t r = 0; r < c->tokens; r++)
            all += blocks_of(a, r) * heads;
        run_blocks(a, kernels, part, (uint32_t)((all + wanted - 1) / wanted));
        return;
    }
    uint64_t share = (uint64_t)c->tokens * heads / wanted;
    uint32_t block = share < 1 ? 1 : share > ROWS ? ROWS : (uint32_t)share;
    uint32_t n_block = (c->tokens + block - 1) / block;
    fm__attention_args args = args_of(a, part->iteration % c->copies, c->out, part->scratch);
    while ((task = fm__bench_take(part)) < n_block * heads) {
        uint32_t b = n_block - 1 - task / heads; /* late rows see more keys: they go first */
        args.row_begin = b * block;
        args.row_end = b == n_block - 1 ? c->tokens : args.row_begin + block;
        args.kv_begin = task % heads;
        args.kv_end = args.kv_begin + 1;
        kernels->attention[a->group.type](&args);
    }
}

static fm_status check(const fm__bench_case *c, const fm__kernels *ref, fm__bench_check *out,
                       fm_error *error) {
    const attention *a = (const attention *)c;
    uint32_t rows = c->tokens < CHECKED_ROWS ? c->tokens : CHECKED_ROWS;
    size_t width = (size_t)a->heads * a->group.value_dim;
    float *expected = fm__alloc(c->out_bytes);
    void *scratch = fm__alloc(FM__ATTENTION_SCRATCH);
    fm_status status = FM_OK;
    if (expected == NULL || scratch == NULL)
        status = fm__error_memory(error, "bench", c->out_bytes);
    *out = (fm__bench_check){.rows = (uint32_t)width,
                             .of_rows = (uint32_t)width,
                             .tokens = rows,
                             .of_tokens = c->tokens,
                             .good = true};
    for (uint32_t i = 0; status == FM_OK && i < rows; i++) {
        fm__attention_args args = args_of(a, 0, expected, scratch);
        uint32_t r = rows > 1 ? (uint32_t)((uint64_t)i * (c->tokens - 1) / (rows - 1)) : 0;
        args.row_begin = r;
        args.row_end = r + 1;
        args.kv_end = a->group.n_kv_head;
        ref->attention[a->group.type](&args);
        out->good = out->good &&
                    memcmp(expected + r * width, c->out + r * width, width * sizeof(float)) == 0;
    }
    fm__free(scratch);
    fm__free(expected);
    return status;
}

static void destroy(fm__bench_case *c) {
    attention *a = (attention *)c;
    fm__free(a->table);
    fm__free(a->position);
    fm__free(a->sequence);
    fm__free(a->q);
    fm__free(a->parts);
    fm__free((void *)a->done);
    fm__free(a->base.out);
    fm__free(a);
}

/* Random keys and values into layer 0, which the other layers copy. */
static fm_status fill(attention *a, fm__random *random, fm_error *error) {
    fm__kernels ref;
    uint32_t width = a->group.n_kv_head * a->group.key_dim;
    float *k = fm__alloc(2 * width * sizeof *k);
    fm_status status = fm__kernels_get(&ref, "ref", error);
    if (k == NULL)
        status = fm__error_memory(error, "bench", 2 * width * sizeof *k);
    memset(a->cache, 0, layer_bytes(&a->group));
    for (uint32_t i = 0; status == FM_OK && i < a->length; i++) {
        fm__bench_normals(random, k, 2 * (size_t)width);
        ref.kv_store[a->group.type](&a->group, a->cache, a->table[i / FM__PAGE_TOKENS],
                                    i % FM__PAGE_TOKENS, k, k + width);
    }
    for (uint32_t l = 1; status == FM_OK && l < a->group.n_layer; l++)
        memcpy(a->cache + l * layer_bytes(&a->group), a->cache, layer_bytes(&a->group));
    fm__bench_normals(random, a->q, a->q_bytes / sizeof(float));
    fm__free(k);
    return status;
}

/* One sequence: `tokens` rows behind `depth` keys; pages in falling order. */
static void set_rows(attention *a) {
    for (uint32_t p = 0; p < a->group.n_page; p++)
        a->table[p] = a->group.n_page - 1 - p;
    for (uint32_t r = 0; r < a->base.tokens; r++)
        a->position[r] = a->base.depth + r;
    a->pages[0] = a->table;
    a->batch = (fm__batch_view){.n_row = a->base.tokens,
                                .position = a->position,
                                .sequence = a->sequence,
                                .n_sequence = 1,
                                .pages = a->pages,
                                .n_group = 1};
}

fm_status fm__bench_attention(fm__bench_case **out, fm__cache_type type,
                              const fm__bench_shape *shape, uint32_t tokens, uint32_t depth,
                              size_t cache_bytes, fm__bench_pool *pool, fm__random *random,
                              fm_error *error) {
    attention *a = fm__alloc_zero(sizeof *a);
    if (a == NULL)
        return fm__error_memory(error, "bench", sizeof *a);
    fm__bench_case *c = &a->base;
    a->heads = shape->heads;
    a->length = depth + tokens;
    a->group = (fm__cache_group){
        .n_page = (a->length + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS,
        .n_kv_head = shape->kv_heads,
        .key_dim = shape->dim,
        .value_dim = shape->dim,
        .type = type,
        .head_bytes = fm__cache_head_bytes(type, shape->dim, shape->dim),
    };
    double keys = tokens * ((double)depth + 1) + tokens * (tokens - 1.0) / 2; /* of all rows */
    *c = (fm__bench_case){.op = "attention",
                          .type = fm__cache_type_name(type),
                          .n = shape->heads * shape->dim,
                          .k = shape->dim,
                          .tokens = tokens,
                          .depth = depth,
                          .inner = 1,
                          .ops = 4.0 * shape->dim * shape->heads * keys,
                          .bytes = (double)a->length * shape->kv_heads *
                                   (double)a->group.head_bytes / FM__PAGE_TOKENS,
                          .unit = type == FM__CACHE_F16 ? FM__BENCH_FMA : FM__BENCH_VNNI,
                          .kernel = kernel_name,
                          .run = run,
                          .check = check,
                          .destroy = destroy};
    c->copies = fm__bench_copies(layer_bytes(&a->group), tokens < FEW_ROWS ? cache_bytes : 0);
    a->group.n_layer = c->copies;
    a->group.bytes = c->copies * layer_bytes(&a->group);
    c->out_bytes = (size_t)tokens * c->n * sizeof(float);
    a->q_bytes = c->out_bytes;
    a->cache = fm__bench_pool_get(pool, a->group.bytes);
    a->table = fm__alloc_array(a->group.n_page, sizeof *a->table);
    a->position = fm__alloc_array(tokens, sizeof *a->position);
    a->sequence = fm__alloc_array(tokens, sizeof *a->sequence);
    a->q = fm__alloc(a->q_bytes);
    size_t blocks = depth / FM__KEY_BLOCK + 1, states = 0;
    if (tokens < FEW_ROWS && blocks > 1) {
        states = tokens * (blocks + 1) * shape->heads * fm__attention_part_floats(&a->group);
        a->parts = fm__alloc(states * sizeof(float));
        a->done = fm__alloc_array((size_t)tokens * shape->kv_heads, sizeof *a->done);
    }
    c->out = fm__alloc_zero(c->out_bytes);
    fm_status status = FM_OK;
    if (a->cache == NULL || a->table == NULL || a->position == NULL || a->sequence == NULL ||
        a->q == NULL || c->out == NULL || (states > 0 && (a->parts == NULL || a->done == NULL)))
        status = fm__error_memory(error, "bench", a->group.bytes + 2 * c->out_bytes + states * 4);
    if (status == FM_OK) {
        set_rows(a);
        status = fill(a, random, error);
    }
    if (status == FM_OK)
        *out = c;
    else
        destroy(c);
    return status;
}
