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
#include <math.h>
#include <string.h>

#include "cpu/body_numerics.h"
#include "cpu/cpu.h"

enum { TILE = FM__SIMD_QUERIES, BLOCK = FM__KEY_BLOCK, PAD = 16 };

/* How many vectors, a power of two up to `most`, fit beside `queries` queries into the running
 * sums.
 */
#define BESIDE(queries, most)                                                                      \
    (FM__SIMD_SUMS / (queries) >= 8 && (most) >= 8 ? 8                                             \
     : FM__SIMD_SUMS / (queries) >= 4              ? 4                                             \
     : FM__SIMD_SUMS / (queries) >= 2              ? 2                                             \
                                                   : 1)

/* One query of a tile. Positions: absolute. */
struct query {
    uint32_t first, last; /* visible keys, both included */
    float *out;
    bool started; /* a block has been taken in */
};

struct tile {
    const fm__attention_args *args;
    const uint32_t *pages;
    uint32_t kv_head, count;
    struct query query[TILE];
    float m[16], l[16]; /* (count) the queries' states; o is in scratch */
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
    fm__vf acc[FM__SIMD_SUMS];
    FM__UNROLL for (int i = 0; i < groups * queries; i++) acc[i] = fm__vf_zero();
    for (uint32_t i = 0; i < dim; i++) {
        fm__vf k[4];
        FM__UNROLL for (int g = 0; g < groups; g++) k[g] =
            fm__vf_load_half(keys + ((size_t)g * dim + i) * 16);
        FM__UNROLL for (int t = 0; t < queries; t++) {
            const fm__vf x = fm__vf_set(q[(size_t)t * q_stride + i]);
            FM__UNROLL for (int g = 0; g < groups; g++) acc[t * groups + g] =
                fm__vf_fma(k[g], x, acc[t * groups + g]);
        }
    }
    FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int g = 0; g < groups; g++)
        fm__vf_store(p + (size_t)t * p_stride + g * 16, acc[t * groups + g]);
}

/* The scores of groups first..last of one page. */
FM__INLINE void score_page(const int queries, const struct tile *tile, const uint16_t *keys,
                           uint32_t first, uint32_t last, float *p) {
    const uint32_t dim = tile->args->group->key_dim;
    const int together = BESIDE(queries, 4);
    uint32_t g = first;
    for (; g + (uint32_t)together <= last + 1; g += (uint32_t)together)
        score_groups(together, queries, keys + (size_t)g * dim * 16, dim, tile->q, tile->q_stride,
                     p + g * 16, tile->p_stride);
    for (; g <= last; g++)
        score_groups(1, queries, keys + (size_t)g * dim * 16, dim, tile->q, tile->q_stride,
                     p + g * 16, tile->p_stride);
}

/* Asks for the values of a page whose keys are about to be read. */
static inline void fetch_values(const struct tile *tile, const uint16_t *keys) {
    const fm__cache_group *group = tile->args->group;
    const uint16_t *v = keys + (size_t)FM__PAGE_TOKENS * group->key_dim;
    for (uint32_t i = 0; i < FM__PAGE_TOKENS * group->value_dim; i += 32)
        __builtin_prefetch(v + i, 0, 2);
}

/* Positions [begin, end], of one block; whole groups of 16 are computed, invisible keys with them.
 */
FM__INLINE void scores(const int queries, const struct tile *tile, uint32_t begin, uint32_t end) {
    for (uint32_t at = begin / FM__PAGE_TOKENS * FM__PAGE_TOKENS; at <= end;
         at += FM__PAGE_TOKENS) {
        const uint16_t *keys = (const uint16_t *)(const void *)page_at(tile, at);
        if (queries <= 2) /* memory is what takes the time */
            fetch_values(tile, keys);
        const uint32_t first = begin > at ? (begin - at) / 16 : 0;
        const uint32_t left = (end - at) / 16, most = FM__PAGE_TOKENS / 16 - 1;
        score_page(queries, tile, keys, first, left < most ? left : most, tile->p + at % BLOCK);
    }
}

/* Lanes of the 16 keys from `at` (of the block) that lie in [first, last]. */
static inline fm__vm visible(uint32_t at, uint32_t first, uint32_t last) {
    return fm__vm_range(at < first ? first - at : 0, at + 15 > last ? last - at : 15);
}

/* Makes the scores of the pages of keys first..last (of the block) -infinity where a key is not
   among these; the largest of the others. */
static float hide(float *p, uint32_t first, uint32_t last) {
    const fm__vf nothing = fm__vf_set(-INFINITY);
    fm__vf most[4];
    FM__EACH(4) most[e] = fm__vf_set(p[first]);
    for (uint32_t at = first / FM__PAGE_TOKENS * FM__PAGE_TOKENS; at <= last; at += FM__PAGE_TOKENS)
        FM__EACH(4) {
            const uint32_t begin = at + 16 * (uint32_t)e, end = begin + 15;
            fm__vf x = fm__vf_load(p + begin);
            if (begin < first || end > last) {
                x = begin > last || end < first
                        ? nothing
                        : fm__vf_select(visible(begin, first, last), x, nothing);
                fm__vf_store(p + begin, x);
            }
            most[e] = fm__vf_max(x, most[e]);
        }
    return fm__vf_largest(fm__vf_max(fm__vf_max(most[0], most[1]), fm__vf_max(most[2], most[3])));
}

/* n vectors of scores into p; returns sum plus them. */
FM__INLINE fm__vf probabilities_of(const int n, float *p, fm__vf m, fm__vf sum) {
    fm__vf x[FM__VF_CHAINS];
    FM__EACH(n) x[e] = fm__vf_sub(fm__vf_load(p + 16 * e), m);
    fm__vf_exp_softmax(n, x);
    fm__vf_round_13(n, x);
    FM__EACH(n) {
        fm__vf_store(p + 16 * e, x[e]);
        sum = fm__vf_add(sum, x[e]);
    }
    return sum;
}

/* Turns the scores of keys first..last (of the block) into p, and those of the others in their
   pages into 0; gives m and l of the block. */
static void probabilities(float *p, uint32_t first, uint32_t last, float *m_out, float *l_out) {
    const float m = hide(p, first, last);
    const uint32_t end = (last / FM__PAGE_TOKENS + 1) * FM__PAGE_TOKENS;
    uint32_t at = first / FM__PAGE_TOKENS * FM__PAGE_TOKENS;
    fm__vf sum = fm__vf_zero();
    for (; at + 16 * FM__VF_CHAINS <= end; at += 16 * FM__VF_CHAINS)
        sum = probabilities_of(FM__VF_CHAINS, p + at, fm__vf_set(m), sum);
    if (FM__VF_CHAINS > 4 && at < end)
        sum = probabilities_of(4, p + at, fm__vf_set(m), sum);
    *m_out = m;
    *l_out = fm__vf_tree(sum);
}

/* ---- values ---- */

/* Keys of one block as a tile's queries see them: query t sees first[t]..last[t] (nothing where
   first > last); all of them see all_first..all_last. */
struct span {
    uint32_t first[TILE], last[TILE];
    uint32_t any_first, any_last, all_first, all_last;
};

/* acc += p * v for key `at`: `vectors` * 16 columns, or the `columns` left. */
FM__INLINE void value_key(const int queries, const int vectors, const bool partial,
                          const bool ragged, const struct span *span, uint32_t at,
                          const uint16_t *v, uint32_t columns, const float *p, size_t p_stride,
                          fm__vf *acc) {
    fm__vf x[8];
    FM__UNROLL for (int j = 0; j < vectors; j++) x[j] =
        partial ? fm__vf_load_half_first(v, columns) : fm__vf_load_half(v + 16 * j);
    FM__UNROLL for (int t = 0; t < queries; t++) {
        if (ragged && (at < span->first[t] || at > span->last[t]))
            continue;
        const fm__vf w = fm__vf_set(p[(size_t)t * p_stride]);
        FM__UNROLL for (int j = 0; j < vectors; j++) acc[t * vectors + j] =
            fm__vf_fma(x[j], w, acc[t * vectors + j]);
    }
}

/* ob = the sum of p * v over the span's keys for some columns, from column `from`. Keys that not
   all queries see are taken key by key, so that what no query sees is never multiplied. */
FM__INLINE void value_columns(const int queries, const int vectors, const bool partial,
                              const struct tile *tile, const struct span *span, uint32_t from) {
    const fm__cache_group *group = tile->args->group;
    const uint32_t dim = group->value_dim, columns = dim - from;
    fm__vf acc[FM__SIMD_SUMS];
    FM__UNROLL for (int i = 0; i < queries * vectors; i++) acc[i] = fm__vf_zero();
    for (uint32_t at = span->any_first; at <= span->any_last;) {
        const uint32_t page_end = at / FM__PAGE_TOKENS * FM__PAGE_TOKENS + FM__PAGE_TOKENS - 1;
        const uint32_t stop = page_end < span->any_last ? page_end : span->any_last;
        const uint16_t *v = (const uint16_t *)(const void *)page_at(tile, at) +
                            (size_t)FM__PAGE_TOKENS * group->key_dim +
                            (size_t)(at % FM__PAGE_TOKENS) * dim + from;
        const float *p = tile->p + at % BLOCK;
        for (; at <= stop && at < span->all_first; at++, v += dim, p++)
            value_key(queries, vectors, partial, true, span, at, v, columns, p, tile->p_stride,
                      acc);
        for (; at <= stop && at <= span->all_last; at++, v += dim, p++)
            value_key(queries, vectors, partial, false, span, at, v, columns, p, tile->p_stride,
                      acc);
        for (; at <= stop; at++, v += dim, p++)
            value_key(queries, vectors, partial, true, span, at, v, columns, p, tile->p_stride,
                      acc);
    }
    FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int j = 0; j < vectors; j++)
        fm__vf_store(tile->ob + (size_t)t * tile->o_stride + from + 16 * j, acc[t * vectors + j]);
}

/* Likewise for all columns. */
FM__INLINE void values(const int queries, const struct tile *tile, const struct span *span) {
    const uint32_t dim = tile->args->group->value_dim;
    const int together = BESIDE(queries, 8);
    uint32_t j = 0;
    for (; j + 16 * (uint32_t)together <= dim; j += 16 * (uint32_t)together)
        value_columns(queries, together, false, tile, span, j);
    if (together > 4 && j + 64 <= dim) {
        value_columns(queries, 4, false, tile, span, j);
        j += 64;
    }
    for (; j + 16 <= dim; j += 16)
        value_columns(queries, 1, false, tile, span, j);
    if (j < dim)
        value_columns(queries, 1, true, tile, span, j);
}

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
    for (uint32_t t = 0; t < (uint32_t)queries; t++)
        if (span.first[t] <= span.last[t])
            probabilities(tile->p + t * tile->p_stride, span.first[t] - start, span.last[t] - start,
                          &m[t], &l[t]);
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
    float *to = tile->q + t * tile->q_stride;
    const fm__vf scale = fm__vf_set(args->scale);
    for (uint32_t i = 0; i < group->key_dim; i += 16) {
        const fm__vf x = fm__vf_load_first(q + i, group->key_dim - i);
        fm__vf_store(to + i, fm__vf_round_bits(fm__vf_mul(x, scale), 11));
    }
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

static void init_tile(struct tile *tile, const fm__attention_args *args) {
    const fm__cache_group *group = args->group;
    *tile = (struct tile){
        .args = args,
        .q_stride = fm__round_up(group->key_dim, 16) + PAD,
        .p_stride = BLOCK + PAD,
        .o_stride = fm__round_up(group->value_dim, 16) + PAD,
    };
    tile->q = args->scratch;
    tile->p = tile->q + TILE * tile->q_stride;
    tile->o = tile->p + TILE * tile->p_stride;
    tile->ob = tile->o + TILE * tile->o_stride;
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
    for (uint32_t h = 0; h < shared; h++) {
        add_query(&tile, args->row_begin, args->kv_begin * shared + h);
        if (tile.count == TILE || h + 1 == shared) {
            attend_parts(&tile, h + 1 - tile.count);
            tile.count = 0;
        }
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

FM__INLINE void fm__body_attention_rows(const fm__attention_args *args) {
    const fm__batch_view *batch = args->batch;
    const uint32_t shared = args->heads / args->group->n_kv_head;
    struct tile tile;
    init_tile(&tile, args);
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

FM__INLINE void fm__body_attention(const fm__attention_args *args) {
    if (args->mode == FM__ATTENTION_ROWS)
        fm__body_attention_rows(args);
    else if (args->mode == FM__ATTENTION_PARTS)
        fm__body_attention_parts(args);
    else
        fm__body_attention_merge(args);
}
