/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_attention_f16.h: scores and values over a cache of f16, for any simd header.
 *
 * Owns: nothing. Never does: writes to the cache. Included by: the attention_* file of each rung.
 * Bits: docs/numerics.md, "Attention".
 *
 * Products of scores and of p * v are exact, so fused adds give the same bits.
 */
#pragma once

#include "cpu/body_attention.h"

/* Floats of a query in scratch. */
static inline size_t query_floats(const fm__cache_group *group) {
    return fm__round_up(group->key_dim, 16) + PAD;
}

/* Query t of the tile: (key_dim) at q. */
static inline void load_query(struct tile *tile, uint32_t t, const float *q) {
    const uint32_t dim = tile->args->group->key_dim;
    float *const to = tile->q + t * tile->q_stride;
    const fm__vf scale = fm__vf_set(tile->args->scale);
    for (uint32_t i = 0; i < dim; i += 16) {
        const fm__vf x = fm__vf_load_first(q + i, dim - i);
        fm__vf_store(to + i, fm__vf_round_bits(fm__vf_mul(x, scale), 11));
    }
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

/* ---- values ---- */

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
