/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_attention.h: exact attention over the paged cache, for any simd header.
 *
 * Owns: the tiles of queries and their state in scratch. Never does: writes to the cache. Included
 * by: the attention_* file of each rung, whose function it implements. Bits: docs/numerics.md,
 * "Attention".
 *
 * A query is one head of one row. A tile of queries of one sequence and kv head shares each key
 * that is read and widened. Products of scores and of p * v are exact, so fused adds give the same
 * bits; merges multiply and add.
 */
#pragma once

#include <assert.h>

#include "cpu/body_numerics.h"
#include "cpu/cpu.h"

enum { TILE = FM__SIMD_QUERIES, BLOCK = FM__KEY_BLOCK, PAD = 16 };

/* How many of up to 4 neighbours fit beside `queries` queries into `sums` running sums. */
#define BESIDE(sums, queries) ((sums) / (queries) >= 4 ? 4 : (sums) / (queries) >= 2 ? 2 : 1)

/* One query of a tile. Positions: absolute. */
struct query {
    uint32_t first, last; /* visible keys, both included */
    float *out;
    bool started; /* a block has been taken in */
    float m, l;
};

struct tile {
    const fm__attention_args *args;
    const uint32_t *pages;
    uint32_t kv_head, count;
    struct query query[TILE];
    /* in scratch, query after query */
    float *q, *p, *o, *ob;
    size_t q_stride, p_stride, o_stride;
};

static inline const uint8_t *page_at(const struct tile *tile, uint32_t position) {
    const fm__cache_group *group = tile->args->group;
    const uint32_t page = tile->pages[position / FM__PAGE_TOKENS];
    assert(page != FM__NO_PAGE);
    return tile->args->layer_base +
           ((size_t)page * group->n_kv_head + tile->kv_head) * group->head_bytes;
}

/* ---- scores ---- */

/* Scores of `groups` groups of 16 keys for `queries` queries: keys points at [groups][dim][16]. */
FM__INLINE void score_groups(const int groups, const int queries, const uint16_t *keys,
                             uint32_t dim, const float *q, size_t q_stride, float *p,
                             size_t p_stride) {
    fm__vf acc[FM__SIMD_SCORE_SUMS];
    FM__UNROLL for (int i = 0; i < groups * queries; i++) acc[i] = fm__vf_zero();
    for (uint32_t i = 0; i < dim; i++)
        FM__UNROLL for (int g = 0; g < groups; g++) {
            const fm__vf k = fm__vf_load_half(keys + ((size_t)g * dim + i) * 16);
            FM__UNROLL for (int t = 0; t < queries; t++) acc[g * queries + t] =
                fm__vf_fma(k, fm__vf_set(q[(size_t)t * q_stride + i]), acc[g * queries + t]);
        }
    FM__UNROLL for (int g = 0; g < groups; g++) FM__UNROLL for (int t = 0; t < queries; t++)
        fm__vf_store(p + (size_t)t * p_stride + g * 16, acc[g * queries + t]);
}

/* The scores of one page's 64 keys. */
FM__INLINE void score_page(const int queries, const struct tile *tile, const uint16_t *keys,
                           float *p) {
    const uint32_t dim = tile->args->group->key_dim;
    const int groups = BESIDE(FM__SIMD_SCORE_SUMS, queries);
    for (int g = 0; g < 4; g += groups)
        score_groups(groups, queries, keys + (size_t)g * dim * 16, dim, tile->q, tile->q_stride,
                     p + g * 16, tile->p_stride);
}

/* Positions [begin, end], of one block; whole pages are computed, invisible keys with them. */
static void scores(const struct tile *tile, uint32_t begin, uint32_t end) {
    for (uint32_t at = begin / FM__PAGE_TOKENS * FM__PAGE_TOKENS; at <= end;
         at += FM__PAGE_TOKENS) {
        const uint16_t *keys = (const uint16_t *)(const void *)page_at(tile, at);
        float *p = tile->p + at % BLOCK;
        switch (tile->count) {
        case 1:
            score_page(1, tile, keys, p);
            break;
        case 2:
            score_page(2, tile, keys, p);
            break;
        case 3:
            score_page(3, tile, keys, p);
            break;
        case 4:
            score_page(4, tile, keys, p);
            break;
#if FM__SIMD_WIDE_TILE
        case 5:
            score_page(5, tile, keys, p);
            break;
        case 6:
            score_page(6, tile, keys, p);
            break;
        case 7:
            score_page(7, tile, keys, p);
            break;
        case 8:
            score_page(8, tile, keys, p);
            break;
#endif
        default:
            assert(!"a tile's count");
            break;
        }
    }
}

/* Lanes of the 16 keys from `at` (of the block) that lie in [first, last]. */
static inline fm__vm visible(uint32_t at, uint32_t first, uint32_t last) {
    return fm__vm_range(at < first ? first - at : 0, at + 15 > last ? last - at : 15);
}

/* Turns the scores of keys first..last (of the block) into p, 0 elsewhere in their groups; gives m
   and l of the block. */
static void probabilities(float *p, uint32_t first, uint32_t last, float *m_out, float *l_out) {
    const uint32_t begin = first / 16 * 16;
    fm__vf most = fm__vf_set(p[first]);
    for (uint32_t at = begin; at <= last; at += 16)
        most = fm__vf_select(visible(at, first, last), fm__vf_max(fm__vf_load(p + at), most), most);
    const float m = fm__vf_largest(most);
    fm__vf sum = fm__vf_zero();
    for (uint32_t at = begin; at <= last; at += 16) {
        fm__vf x = fm__vf_sub(fm__vf_load(p + at), fm__vf_set(m));
        x = fm__vf_round_bits(fm__vf_exp_softmax(x), 11);
        x = fm__vf_keep(visible(at, first, last), x);
        fm__vf_store(p + at, x);
        sum = fm__vf_add(sum, x);
    }
    *m_out = m;
    *l_out = fm__vf_tree(sum);
}

/* ---- values ---- */

/* ob += p * v for `count` keys of one page and `vectors` * 16 columns, or the `columns` left. */
FM__INLINE void values_columns(const int queries, const int vectors, const bool partial,
                               const uint16_t *v, size_t dim, uint32_t columns, uint32_t count,
                               const float *p, size_t p_stride, float *ob, size_t o_stride) {
    fm__vf acc[FM__SIMD_VALUE_SUMS];
    FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int j = 0; j < vectors; j++)
        acc[t * vectors + j] = fm__vf_load(ob + (size_t)t * o_stride + 16 * j);
    for (uint32_t i = 0; i < count; i++, v += dim, p++) {
        fm__vf x[4];
        FM__UNROLL for (int j = 0; j < vectors; j++) x[j] =
            partial ? fm__vf_load_half_first(v, columns) : fm__vf_load_half(v + 16 * j);
        FM__UNROLL for (int t = 0; t < queries; t++) {
            const fm__vf w = fm__vf_set(p[(size_t)t * p_stride]);
            FM__UNROLL for (int j = 0; j < vectors; j++) acc[t * vectors + j] =
                fm__vf_fma(x[j], w, acc[t * vectors + j]);
        }
    }
    FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int j = 0; j < vectors; j++)
        fm__vf_store(ob + (size_t)t * o_stride + 16 * j, acc[t * vectors + j]);
}

/* Likewise for all columns. */
FM__INLINE void values_page(const int queries, const uint16_t *v, uint32_t dim, uint32_t count,
                            const float *p, size_t p_stride, float *ob, size_t o_stride) {
    const int vectors = BESIDE(FM__SIMD_VALUE_SUMS, queries);
    uint32_t j = 0;
    for (; j + 16 * (uint32_t)vectors <= dim; j += 16 * (uint32_t)vectors)
        values_columns(queries, vectors, false, v + j, dim, 0, count, p, p_stride, ob + j,
                       o_stride);
    for (; j + 16 <= dim; j += 16)
        values_columns(queries, 1, false, v + j, dim, 0, count, p, p_stride, ob + j, o_stride);
    if (j < dim)
        values_columns(queries, 1, true, v + j, dim, dim - j, count, p, p_stride, ob + j, o_stride);
}

/* Queries from..from + count - 1 of the tile take in keys [begin, end] (absolute, of one block),
   which all of them see. */
static void values(const struct tile *tile, uint32_t from, uint32_t count, uint32_t begin,
                   uint32_t end) {
    const fm__cache_group *group = tile->args->group;
    const uint32_t dim = group->value_dim;
    for (uint32_t at = begin; at <= end;) {
        const uint32_t page_end = at / FM__PAGE_TOKENS * FM__PAGE_TOKENS + FM__PAGE_TOKENS - 1;
        const uint32_t last = page_end < end ? page_end : end, n = last - at + 1;
        const uint16_t *v = (const uint16_t *)(const void *)page_at(tile, at) +
                            (size_t)FM__PAGE_TOKENS * group->key_dim +
                            (size_t)(at % FM__PAGE_TOKENS) * dim;
        const float *p = tile->p + from * tile->p_stride + at % BLOCK;
        float *ob = tile->ob + from * tile->o_stride;
        const size_t ps = tile->p_stride, os = tile->o_stride;
        switch (count) {
        case 1:
            values_page(1, v, dim, n, p, ps, ob, os);
            break;
        case 2:
            values_page(2, v, dim, n, p, ps, ob, os);
            break;
        case 3:
            values_page(3, v, dim, n, p, ps, ob, os);
            break;
        case 4:
            values_page(4, v, dim, n, p, ps, ob, os);
            break;
#if FM__SIMD_WIDE_TILE
        case 5:
            values_page(5, v, dim, n, p, ps, ob, os);
            break;
        case 6:
            values_page(6, v, dim, n, p, ps, ob, os);
            break;
        case 7:
            values_page(7, v, dim, n, p, ps, ob, os);
            break;
        case 8:
            values_page(8, v, dim, n, p, ps, ob, os);
            break;
#endif
        default:
            assert(!"a tile's count");
            break;
        }
        at = last + 1;
    }
}

/* ---- blocks ---- */

static void merge(struct query *query, float m, float l, float *o, const float *ob, uint32_t dim) {
    if (!query->started) {
        query->started = true;
        query->m = m;
        query->l = l;
        for (uint32_t j = 0; j < dim; j += 16)
            fm__vf_store(o + j, fm__vf_load(ob + j));
        return;
    }
    const float both = query->m > m ? query->m : m;
    const float alpha = fm__exp_softmax(query->m - both), beta = fm__exp_softmax(m - both);
    query->m = both;
    query->l = query->l * alpha + l * beta;
    const fm__vf va = fm__vf_set(alpha), vb = fm__vf_set(beta);
    for (uint32_t j = 0; j < dim; j += 16) {
        const fm__vf x =
            fm__vf_add(fm__vf_mul(fm__vf_load(o + j), va), fm__vf_mul(fm__vf_load(ob + j), vb));
        fm__vf_store(o + j, fm__vf_drop_tiny(x));
    }
}

static inline uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
static inline uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* The block that starts at `start`. Queries see different ranges of it: what all see is computed
   for all at once, the rest query by query, in ascending order of keys for each. */
static void attend_block(struct tile *tile, uint32_t start) {
    const uint32_t stop = start + BLOCK - 1, dim = tile->args->group->value_dim;
    uint32_t any_first = UINT32_MAX, any_last = 0, all_first = start, all_last = stop;
    bool all = true;
    for (uint32_t t = 0; t < tile->count; t++) {
        const struct query *query = &tile->query[t];
        if (query->first > stop || query->last < start) {
            all = false;
            continue;
        }
        const uint32_t first = larger(query->first, start), last = smaller(query->last, stop);
        any_first = smaller(any_first, first);
        any_last = larger(any_last, last);
        all_first = larger(all_first, first);
        all_last = smaller(all_last, last);
    }
    if (any_first == UINT32_MAX)
        return;
    scores(tile, any_first, any_last);
    const bool shared = all && all_first <= all_last;
    float m[TILE] = {0}, l[TILE] = {0};
    for (uint32_t t = 0; t < tile->count; t++) {
        const struct query *query = &tile->query[t];
        float *const ob = tile->ob + t * tile->o_stride;
        if (query->first > stop || query->last < start)
            continue;
        const uint32_t first = larger(query->first, start), last = smaller(query->last, stop);
        probabilities(tile->p + t * tile->p_stride, first - start, last - start, &m[t], &l[t]);
        for (uint32_t j = 0; j < dim; j += 16)
            fm__vf_store(ob + j, fm__vf_zero());
        if (!shared)
            values(tile, t, 1, first, last);
        else if (first < all_first)
            values(tile, t, 1, first, all_first - 1);
    }
    if (shared)
        values(tile, 0, tile->count, all_first, all_last);
    for (uint32_t t = 0; t < tile->count; t++) {
        struct query *query = &tile->query[t];
        if (query->first > stop || query->last < start)
            continue;
        const uint32_t last = smaller(query->last, stop);
        if (shared && last > all_last)
            values(tile, t, 1, all_last + 1, last);
        merge(query, m[t], l[t], tile->o + t * tile->o_stride, tile->ob + t * tile->o_stride, dim);
    }
}

static void finish(const struct tile *tile) {
    const uint32_t dim = tile->args->group->value_dim;
    for (uint32_t t = 0; t < tile->count; t++) {
        const struct query *query = &tile->query[t];
        const fm__vf inverse = fm__vf_set(fm__rcp(query->l));
        const float *o = tile->o + t * tile->o_stride;
        for (uint32_t j = 0; j < dim; j += 16)
            fm__vf_store_first(query->out + j, dim - j, fm__vf_mul(fm__vf_load(o + j), inverse));
    }
}

static void attend(struct tile *tile) {
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t t = 0; t < tile->count; t++) {
        first = smaller(first, tile->query[t].first);
        last = larger(last, tile->query[t].last);
    }
    for (uint32_t start = first / BLOCK * BLOCK; start <= last; start += BLOCK)
        attend_block(tile, start);
    finish(tile);
}

/* ---- tiles ---- */

static void add_query(struct tile *tile, uint32_t row, uint32_t head) {
    const fm__attention_args *args = tile->args;
    const fm__cache_group *group = args->group;
    const uint32_t position = args->batch->position[row], t = tile->count++;
    const float *q = (const float *)(const void *)(args->q + row * args->q_stride) +
                     (size_t)head * group->key_dim;
    float *to = tile->q + t * tile->q_stride;
    const fm__vf scale = fm__vf_set(args->scale);
    for (uint32_t i = 0; i < group->key_dim; i += 16) {
        const fm__vf x = fm__vf_load_first(q + i, group->key_dim - i);
        fm__vf_store(to + i, fm__vf_round_bits(fm__vf_mul(x, scale), 11));
    }
    tile->query[t] = (struct query){
        .first = group->window && position + 1 > group->window ? position + 1 - group->window : 0,
        .last = position,
        .out =
            (float *)(void *)(args->out + row * args->out_stride) + (size_t)head * group->value_dim,
    };
}

FM__INLINE void fm__body_attention(const fm__attention_args *args) {
    const fm__cache_group *group = args->group;
    const fm__batch_view *batch = args->batch;
    const uint32_t shared = args->heads / group->n_kv_head;
    struct tile tile = {
        .args = args,
        .q_stride = fm__round_up(group->key_dim, 16) + PAD,
        .p_stride = BLOCK + PAD,
        .o_stride = fm__round_up(group->value_dim, 16) + PAD,
    };
    tile.q = args->scratch;
    tile.p = tile.q + TILE * tile.q_stride;
    tile.o = tile.p + TILE * tile.p_stride;
    tile.ob = tile.o + TILE * tile.o_stride;
    for (uint32_t kv = args->kv_begin; kv < args->kv_end; kv++) {
        tile.kv_head = kv;
        for (uint32_t row = args->row_begin; row < args->row_end; row++) {
            const uint32_t sequence = batch->sequence[row];
            const bool last_row = row + 1 == args->row_end || batch->sequence[row + 1] != sequence;
            tile.pages = batch->pages[(size_t)sequence * batch->n_group + args->group_index];
            for (uint32_t h = 0; h < shared; h++) {
                add_query(&tile, row, kv * shared + h);
                if (tile.count == TILE || (last_row && h + 1 == shared)) {
                    attend(&tile);
                    tile.count = 0;
                }
            }
        }
    }
}
