/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_attention_tiles.h: exact attention over the paged cache, block after block.
 *
 * Owns: the tiles of queries and their state in scratch. Never does: writes to the cache. Included
 * by: the attention_* file of each rung, whose function it implements, after the body that reads
 * the cache. Bits: docs/numerics.md, "Attention". Merges multiply and add.
 */
#pragma once

/* ---- blocks ---- */

static inline uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
static inline uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* What the queries see of the block that starts at `start`; false: nothing. */
static bool span_of(const struct tile *tile, uint32_t start, struct span *span) {
    const uint32_t stop = start + BLOCK - 1;
    span->any_first = UINT32_MAX;
    span->any_last = 0;
    span->all_first = start;
    span->all_last = stop;
    for (uint32_t t = 0; t < tile->count; t++) {
        const struct query *query = &tile->query[t];
        span->first[t] = UINT32_MAX;
        span->last[t] = 0;
        if (query->first <= stop && query->last >= start) {
            span->first[t] = larger(query->first, start);
            span->last[t] = smaller(query->last, stop);
        }
        span->any_first = smaller(span->any_first, span->first[t]);
        span->any_last = larger(span->any_last, span->last[t]);
        span->all_first = larger(span->all_first, span->first[t]);
        span->all_last = smaller(span->all_last, span->last[t]);
    }
    return span->any_first != UINT32_MAX;
}
static void merge_columns(float *o, float alpha, const float *ob, float beta, uint32_t dim) {
    const fm__vf va = fm__vf_set(alpha), vb = fm__vf_set(beta);
    for (uint32_t j = 0; j < dim; j += 16) {
        const fm__vf x =
            fm__vf_add(fm__vf_mul(fm__vf_load(o + j), va), fm__vf_mul(fm__vf_load(ob + j), vb));
        fm__vf_store(o + j, fm__vf_drop_tiny(x));
    }
}

/* Each query's state with the block's: m, l, ob. */
static void merge(struct tile *tile, const struct span *span, const float *m, const float *l) {
    const uint32_t dim = tile->args->group->value_dim;
    float alpha[16], beta[16], both[16] = {0};
    for (uint32_t t = 0; t < TILE; t++)
        both[t] = tile->m[t] > m[t] ? tile->m[t] : m[t];
    const fm__vf v = fm__vf_load(both);
    fm__vf a = fm__vf_sub(fm__vf_load(tile->m), v), b = fm__vf_sub(fm__vf_load(m), v);
    fm__vf_exp_softmax(1, &a);
    fm__vf_exp_softmax(1, &b);
    fm__vf_store(alpha, a);
    fm__vf_store(beta, b);
    for (uint32_t t = 0; t < tile->count; t++) {
        if (span->first[t] > span->last[t])
            continue;
        float *const o = tile->o + t * tile->o_stride;
        const float *const ob = tile->ob + t * tile->o_stride;
        if (!tile->query[t].started) {
            tile->query[t].started = true;
            tile->m[t] = m[t];
            tile->l[t] = l[t];
            memcpy(o, ob, fm__round_up(dim, 16) * sizeof(float));
            continue;
        }
        tile->m[t] = both[t];
        tile->l[t] = tile->l[t] * alpha[t] + l[t] * beta[t];
        merge_columns(o, alpha[t], ob, beta[t], dim);
    }
}

FM__INLINE void attend_queries(const int queries, struct tile *tile, uint32_t start) {
    struct span span;
    if (!span_of(tile, start, &span))
        return;
    scores(queries, tile, span.any_first, span.any_last);
    float m[16] = {0}, l[16] = {0};
    probabilities((uint32_t)queries, tile, &span, m, l);
    values(queries, tile, &span);
    merge(tile, &span, m, l);
}

/* The block that starts at `start`. */
static void attend_block(struct tile *tile, uint32_t start) {
    switch (tile->count) {
    case 1:
        attend_queries(1, tile, start);
        break;
    case 2:
        attend_queries(2, tile, start);
        break;
    case 3:
        attend_queries(3, tile, start);
        break;
    case 4:
        attend_queries(4, tile, start);
        break;
#if FM__SIMD_QUERIES >= 6
    case 5:
        attend_queries(5, tile, start);
        break;
    case 6:
        attend_queries(6, tile, start);
        break;
#endif
#if FM__SIMD_QUERIES >= 7
    case 7:
        attend_queries(7, tile, start);
        break;
#endif
    default:
        assert(!"a tile's count");
        break;
    }
}

static void finish_columns(const float *o, float l, float *out, uint32_t dim) {
    const fm__vf inverse = fm__vf_set(fm__rcp(l));
    for (uint32_t j = 0; j < dim; j += 16)
        fm__vf_store_first(out + j, dim - j, fm__vf_mul(fm__vf_load(o + j), inverse));
}

static void attend(struct tile *tile) {
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t t = 0; t < tile->count; t++) {
        first = smaller(first, tile->query[t].first);
        last = larger(last, tile->query[t].last);
    }
    for (uint32_t start = first / BLOCK * BLOCK; start <= last; start += BLOCK)
        attend_block(tile, start);
    for (uint32_t t = 0; t < tile->count; t++)
        finish_columns(tile->o + t * tile->o_stride, tile->l[t], tile->query[t].out,
                       tile->args->group->value_dim);
}

/* ---- tiles ---- */

/* Rows lie far apart in memory: what will be needed a tile later is asked for now. */
static void fetch_ahead(const float *next_q, uint32_t key_dim, float *out, uint32_t value_dim) {
    for (uint32_t i = 0; next_q != NULL && i < key_dim; i += 16)
        __builtin_prefetch(next_q + i);
    for (uint32_t j = 0; j < value_dim; j += 16)
        __builtin_prefetch(out + j, 1);
}

static void add_query(struct tile *tile, uint32_t row, uint32_t head) {
    const fm__attention_args *args = tile->args;
    const fm__cache_group *group = args->group;
    const uint32_t position = args->batch->position[row], t = tile->count++;
    const float *q = (const float *)(const void *)(args->q + row * args->q_stride) +
                     (size_t)head * group->key_dim;
    load_query(tile, t, q);
    float *const out =
        (float *)(void *)(args->out + row * args->out_stride) + (size_t)head * group->value_dim;
    fetch_ahead(row + 1 < args->row_end ? q + args->q_stride / sizeof(float) : NULL, group->key_dim,
                out, group->value_dim);
    tile->query[t] = (struct query){
        .first = group->window && position + 1 > group->window ? position + 1 - group->window : 0,
        .last = position,
        .out = out,
    };
}

/* Queries of the next tile where `left` are left: tiles as even as they can be, since one that is
   nearly empty takes a third of the time of a full one. */
static uint32_t tile_size(uint32_t left) {
    const uint32_t tiles = (left + TILE - 1) / TILE;
    return (left + tiles - 1) / tiles;
}

static void init_tile(struct tile *tile, const fm__attention_args *args) {
    const fm__cache_group *group = args->group;
    *tile = (struct tile){
        .args = args,
        .q_stride = query_floats(group),
        .p_stride = BLOCK + PAD,
        .o_stride = fm__round_up(group->value_dim, 16) + PAD,
    };
    tile->q = args->scratch;
    tile->p = tile->q + TILE * tile->q_stride;
    tile->o = tile->p + TILE * tile->p_stride;
    tile->ob = tile->o + TILE * tile->o_stride;
    tile->weights = (uint32_t *)(void *)(tile->ob + TILE * tile->o_stride);
}

/* ---- blocks apart ---- */

/* Of query head `head` of the kv head. */
static float *part_of(const fm__attention_args *args, uint32_t block, uint32_t head) {
    const size_t shared = args->heads / args->group->n_kv_head, index = block - args->block_begin;
    return args->parts + (index * shared + head) * fm__attention_part_floats(args->group);
}

/* The tile's queries, the first of them query head `head`. */
static void attend_parts(struct tile *tile, uint32_t head) {
    const size_t padded = fm__round_up(tile->args->group->value_dim, 16);
    for (uint32_t b = tile->args->block_begin; b < tile->args->block_end; b++) {
        for (uint32_t t = 0; t < tile->count; t++)
            tile->query[t].started = false;
        attend_block(tile, b * BLOCK);
        for (uint32_t t = 0; t < tile->count; t++) {
            float *const part = part_of(tile->args, b, head + t);
            memcpy(part, tile->o + t * tile->o_stride, padded * sizeof(float));
            part[padded] = tile->m[t];
            part[padded + 1] = tile->l[t];
        }
    }
}

FM__INLINE void fm__body_attention_parts(const fm__attention_args *args) {
    const uint32_t shared = args->heads / args->group->n_kv_head;
    const size_t sequence = args->batch->sequence[args->row_begin];
    struct tile tile;
    init_tile(&tile, args);
    tile.kv_head = args->kv_begin;
    tile.pages = args->batch->pages[sequence * args->batch->n_group + args->group_index];
    for (uint32_t h = 0, end; h < shared; h = end) {
        end = h + tile_size(shared - h);
        for (uint32_t i = h; i < end; i++)
            add_query(&tile, args->row_begin, args->kv_begin * shared + i);
        attend_parts(&tile, h);
        tile.count = 0;
    }
}

FM__INLINE void fm__body_attention_merge(const fm__attention_args *args) {
    const uint32_t shared = args->heads / args->group->n_kv_head, dim = args->group->value_dim;
    const size_t padded = fm__round_up(dim, 16);
    float *const out = (float *)(void *)(args->out + args->row_begin * args->out_stride) +
                       (size_t)args->kv_begin * shared * dim;
    for (uint32_t h = 0; h < shared; h++) {
        float *const o = part_of(args, args->block_begin, h);
        float m = o[padded], l = o[padded + 1];
        for (uint32_t b = args->block_begin + 1; b < args->block_end; b++) {
            const float *const ob = part_of(args, b, h);
            const float both = m > ob[padded] ? m : ob[padded];
            const float alpha = fm__exp_softmax(m - both);
            const float beta = fm__exp_softmax(ob[padded] - both);
            m = both;
            l = l * alpha + ob[padded + 1] * beta;
            merge_columns(o, alpha, ob, beta, dim);
        }
        finish_columns(o, l, out + (size_t)h * dim, dim);
    }
}

/* ---- rows ---- */

/* Rows [begin, end), of one sequence. */
static void attend_rows(struct tile *tile, uint32_t begin, uint32_t end) {
    const uint32_t shared = tile->args->heads / tile->args->group->n_kv_head;
    const uint32_t n = (end - begin) * shared;
    for (uint32_t i = 0, stop; i < n;) {
        for (stop = i + tile_size(n - i); i < stop; i++)
            add_query(tile, begin + i / shared, tile->kv_head * shared + i % shared);
        attend(tile);
        tile->count = 0;
    }
}

FM__INLINE void fm__body_attention_rows(const fm__attention_args *args) {
    const fm__batch_view *batch = args->batch;
    struct tile tile;
    init_tile(&tile, args);
    for (tile.kv_head = args->kv_begin; tile.kv_head < args->kv_end; tile.kv_head++)
        for (uint32_t row = args->row_begin, end; row < args->row_end; row = end) {
            const uint32_t sequence = batch->sequence[row];
            for (end = row + 1; end < args->row_end && batch->sequence[end] == sequence;)
                end++;
            tile.pages = batch->pages[(size_t)sequence * batch->n_group + args->group_index];
            attend_rows(&tile, row, end);
        }
}

FM__INLINE void fm__body_attention(const fm__attention_args *args) {
    if (args->mode == FM__ATTENTION_ROWS)
        fm__body_attention_rows(args);
    else if (args->mode == FM__ATTENTION_PARTS)
        fm__body_attention_parts(args);
    else
        fm__body_attention_merge(args);
}
