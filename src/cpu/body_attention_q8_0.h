/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_attention_q8_0.h: scores and values over a cache of int8 codes, for any simd header and
 * the dot header beside it.
 *
 * Owns: nothing. Never does: writes to the cache. Included by: the attention_q8_0_* file of each
 * rung. Bits: docs/numerics.md, "Attention over q8_0".
 *
 * A dot header defines, for lanes of four codes each:
 *     FM__DOT_VECTORS vectors of 16 sums of values that fit the registers: 1 or 2
 *     FM__DOT_WORDS   32-bit words that hold four codes of a query
 *     FM__DOT_PLAIN   whether weights are held less 2^15, so that 2^15 times the plain sum is owed
 *     fm__codes       16 lanes of codes; fm__dot_sum: 16 sums of weights times codes
 *     fm__keys_load, fm__values_load, fm__query_store, fm__dot_start, fm__dot_keys,
 *     fm__weights_store, fm__dot_values, fm__dot_plain, fm__dot_total
 */
#pragma once

#include "cpu/body_attention.h"

enum {
    DIMS = FM__CACHE_BLOCK,
    QUADS = BLOCK / 4,         /* four keys whose codes lie side by side */
    WEIGHTS = 2 * QUADS + PAD, /* words of a query's weights for one block of dims */
    BLOCK_WORDS = DIMS / 4 * FM__DOT_WORDS,
};

/* A query in scratch: codes (blocks, BLOCK_WORDS), then scales and starts (blocks) each. */
static inline size_t query_floats(const fm__cache_group *group) {
    return fm__round_up((size_t)fm__cache_blocks(group->key_dim) * (BLOCK_WORDS + 2), 16) + PAD;
}

static inline fm__cache_parts parts_of(const fm__cache_group *group) {
    return fm__cache_q8_0_parts(group->key_dim, group->value_dim);
}

/* 16 codes at `to`, 0 where x is NaN or infinite (factor 0); their sum in lanes. */
static inline fm__vi query_codes(fm__vf x, float factor, int8_t *to) {
    const fm__vi i =
        factor == 0.0f ? fm__vi_zero() : fm__vi_round(fm__vf_mul(x, fm__vf_set(factor)));
    fm__vi_store_int8(to, i);
    return i;
}

/* Query t of the tile: (key_dim) at q. No code needs a clamp, as in body_quantise.h. */
static inline void load_query(struct tile *tile, uint32_t t, const float *q) {
    const uint32_t dim = tile->args->group->key_dim, blocks = fm__cache_blocks(dim);
    uint32_t *const words = (uint32_t *)(void *)(tile->q + t * tile->q_stride);
    float *const d = tile->q + t * tile->q_stride + (size_t)blocks * BLOCK_WORDS;
    int32_t *const start = (int32_t *)(void *)(d + blocks);
    const fm__vf scale = fm__vf_set(tile->args->scale);
    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t left = dim - b * DIMS;
        const fm__vf low = fm__vf_mul(fm__vf_load_first(q + b * DIMS, left), scale);
        const fm__vf high =
            left <= 16 ? fm__vf_zero()
                       : fm__vf_mul(fm__vf_load_first(q + b * DIMS + 16, left - 16), scale);
        const uint32_t most =
            (uint32_t)fm__vi_largest(fm__vi_max(fm__vi_magnitude(low), fm__vi_magnitude(high)));
        const bool none = most < FM__TINY_BITS, huge = most >= FM__HUGE_BITS;
        const float a = fm__bits_f32(most);
        const float factor = none || huge ? 0.0f : 127.0f * fm__rcp(a);
        int8_t codes[DIMS];
        const fm__vi sum =
            fm__vi_add(query_codes(low, factor, codes), query_codes(high, factor, codes + 16));
        d[b] = none ? 0.0f : huge ? fm__bits_f32(0x7FC00000u) : a * FM__INV127;
        start[b] = fm__dot_start(sum);
        fm__query_store(codes, words + (size_t)b * BLOCK_WORDS);
    }
}

/* ---- scores ---- */

/* Keys' codes [groups][words][16][4] and scales [groups][blocks][16] of one page. */
struct keys {
    const uint8_t *codes;
    const uint16_t *scales;
    uint32_t words, blocks;
};

/* `words` words of one block of dims. */
FM__INLINE void score_words(const int groups, const int queries, const struct keys *keys,
                            uint32_t first, uint32_t words, const uint32_t *q, size_t q_stride,
                            fm__vi *sum) {
    const uint8_t *codes = keys->codes + (size_t)first * 64;
    const size_t group = (size_t)keys->words * 64;
    q += (size_t)first * FM__DOT_WORDS;
    for (uint32_t w = 0; w < words; w++, codes += 64, q += FM__DOT_WORDS) {
        fm__codes k[4];
        FM__UNROLL for (int g = 0; g < groups; g++) k[g] = fm__keys_load(codes + (size_t)g * group);
        FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int g = 0; g < groups; g++)
            sum[t * groups + g] = fm__dot_keys(sum[t * groups + g], k[g], q + (size_t)t * q_stride);
    }
}

/* Scores of `groups` groups of 16 keys for `queries` queries. */
FM__INLINE void score_groups(const int groups, const int queries, const struct keys *keys,
                             const float *q, size_t q_stride, float *p, size_t p_stride) {
    const uint32_t blocks = keys->blocks;
    const uint32_t *const words = (const uint32_t *)(const void *)q;
    const float *const d = q + (size_t)blocks * BLOCK_WORDS;
    const int32_t *const start = (const int32_t *)(const void *)(d + blocks);
    fm__vf acc[FM__SIMD_SUMS];
    FM__UNROLL for (int i = 0; i < groups * queries; i++) acc[i] = fm__vf_zero();
    for (uint32_t b = 0; b < blocks; b++) {
        fm__vi sum[FM__SIMD_SUMS];
        FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int g = 0; g < groups; g++)
            sum[t * groups + g] = fm__vi_set((uint32_t)start[(size_t)t * q_stride + b]);
        const uint32_t first = b * (DIMS / 4), left = keys->words - first;
        if (left >= DIMS / 4)
            score_words(groups, queries, keys, first, DIMS / 4, words, q_stride, sum);
        else
            score_words(groups, queries, keys, first, left, words, q_stride, sum);
        fm__vf scale[4];
        FM__UNROLL for (int g = 0; g < groups; g++) scale[g] =
            fm__vf_load_bf16(keys->scales + ((size_t)g * blocks + b) * 16);
        FM__UNROLL for (int t = 0; t < queries; t++) {
            const fm__vf x = fm__vf_set(d[(size_t)t * q_stride + b]);
            FM__UNROLL for (int g = 0; g < groups; g++) acc[t * groups + g] =
                fm__vf_add(acc[t * groups + g],
                           fm__vf_mul(fm__vf_int(sum[t * groups + g]), fm__vf_mul(scale[g], x)));
        }
    }
    FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int g = 0; g < groups; g++)
        fm__vf_store(p + (size_t)t * p_stride + g * 16, acc[t * groups + g]);
}

/* The scores of groups first..last of one page. */
FM__INLINE void score_page(const int queries, const struct tile *tile, const uint8_t *page,
                           uint32_t first, uint32_t last, float *p) {
    const fm__cache_group *group = tile->args->group;
    struct keys keys = {.words = (group->key_dim + 3) / 4,
                        .blocks = fm__cache_blocks(group->key_dim)};
    const uint16_t *const scales =
        (const uint16_t *)(const void *)(page + parts_of(group).key_scales);
    const int together = BESIDE(2 * queries, 4);
    uint32_t g = first;
    for (; g + (uint32_t)together <= last + 1; g += (uint32_t)together) {
        keys.codes = page + (size_t)g * keys.words * 64;
        keys.scales = scales + (size_t)g * keys.blocks * 16;
        score_groups(together, queries, &keys, tile->q, tile->q_stride, p + g * 16, tile->p_stride);
    }
    for (; g <= last; g++) {
        keys.codes = page + (size_t)g * keys.words * 64;
        keys.scales = scales + (size_t)g * keys.blocks * 16;
        score_groups(1, queries, &keys, tile->q, tile->q_stride, p + g * 16, tile->p_stride);
    }
}

/* Asks for the values of a page whose keys are about to be read. */
static inline void fetch_values(const struct tile *tile, const uint8_t *page) {
    const fm__cache_parts parts = parts_of(tile->args->group);
    for (size_t i = parts.values; i < parts.end; i += 64)
        __builtin_prefetch(page + i, 0, 2);
}

/* Positions [begin, end], of one block; whole groups of 16 are computed, invisible keys with them.
 */
FM__INLINE void scores(const int queries, const struct tile *tile, uint32_t begin, uint32_t end) {
    for (uint32_t at = begin / FM__PAGE_TOKENS * FM__PAGE_TOKENS; at <= end;
         at += FM__PAGE_TOKENS) {
        const uint8_t *page = page_at(tile, at);
        if (queries <= 2) /* memory is what takes the time */
            fetch_values(tile, page);
        const uint32_t first = begin > at ? (begin - at) / 16 : 0;
        const uint32_t left = (end - at) / 16, most = FM__PAGE_TOKENS / 16 - 1;
        score_page(queries, tile, page, first, left < most ? left : most, tile->p + at % BLOCK);
    }
}

/* ---- weights ---- */

/* The scales of block b of the values of the span's groups of 16 keys. */
static inline void load_scales(const struct tile *tile, const struct span *span, uint32_t b,
                               float *d) {
    const size_t at = parts_of(tile->args->group).value_scales + (size_t)b * FM__PAGE_TOKENS * 2;
    for (uint32_t key = span->any_first / 16 * 16; key <= span->any_last; key += 16) {
        const uint8_t *const scales = page_at(tile, key) + at + key % FM__PAGE_TOKENS * 2;
        fm__vf_store(d + key % BLOCK, fm__vf_load_bf16((const uint16_t *)(const void *)scales));
    }
}

/* p * d of the 16 keys from `at` (of the block), 0 where they do not lie in [first, last], to w. */
static inline fm__vi edge_product(const float *p, const float *d, uint32_t at, uint32_t first,
                                  uint32_t last, float *w) {
    fm__vf x = fm__vf_zero();
    if (at <= last && at + 15 >= first)
        x = fm__vf_keep(visible(at, first, last),
                        fm__vf_mul(fm__vf_load(p + at), fm__vf_load(d + at)));
    fm__vf_store(w + at, x);
    return fm__vi_magnitude(x);
}

/* p * d of the keys first..last (of the block) to w, 0 for the others of the groups of 16
   begin..end; the bits of the largest. */
static inline uint32_t products(const float *p, const float *d, uint32_t first, uint32_t last,
                                uint32_t begin, uint32_t end, float *w) {
    const uint32_t whole = (first + 15) / 16, past = (last + 1) / 16; /* groups seen as a whole */
    fm__vi largest[4];
    FM__EACH(4) largest[e] = fm__vi_zero();
    uint32_t g = begin;
    for (; g <= end && g < whole; g++)
        largest[0] = fm__vi_max(largest[0], edge_product(p, d, g * 16, first, last, w));
    for (; g + 4 <= past; g += 4)
        FM__EACH(4) {
            const size_t at = (size_t)(g + (uint32_t)e) * 16;
            const fm__vf x = fm__vf_mul(fm__vf_load(p + at), fm__vf_load(d + at));
            fm__vf_store(w + at, x);
            largest[e] = fm__vi_max(largest[e], fm__vi_magnitude(x));
        }
    for (; g <= end; g++)
        largest[1] = fm__vi_max(largest[1], edge_product(p, d, g * 16, first, last, w));
    return (uint32_t)fm__vi_largest(
        fm__vi_max(fm__vi_max(largest[0], largest[1]), fm__vi_max(largest[2], largest[3])));
}

/* The weights of keys first..last (of the block) as integers of 16 bits, 0 for the others of the
   groups begin..end; returns what one is worth. w: room for a block. */
static inline float weights_of(const float *p, const float *d, uint32_t first, uint32_t last,
                               uint32_t begin, uint32_t end, float *w, uint32_t *to) {
    uint32_t most = products(p, d, first, last, begin, end, w);
    const bool good = most < 0x7F800000u;
    most = most < FM__TINY_BITS ? FM__TINY_BITS : good ? most : 0x3F800000u;
    const uint32_t exponent = most >> 23;
    const fm__vf factor = fm__vf_set(fm__bits_f32((269u - exponent) << 23));
    for (uint32_t g = begin; g <= end; g++) {
        const fm__vf x = fm__vf_mul(fm__vf_load(w + (size_t)g * 16), factor);
        fm__weights_store(to + (size_t)g * 8, fm__vi_round(x));
    }
    return good ? fm__bits_f32((exponent - 15u) << 23) : fm__bits_f32(0x7FC00000u);
}

/* ---- values ---- */

/* ob = the weighted sums for `vectors` * 16 dims, from dim `skip` of a block on that begins with
   dim `from` and has `dims` of them. */
FM__INLINE void value_block(const int queries, const int vectors, const struct tile *tile,
                            const struct span *span, uint32_t from, uint32_t dims, uint32_t skip,
                            const float *unit) {
    const size_t at0 =
        parts_of(tile->args->group).values + (size_t)from * FM__PAGE_TOKENS + skip * 4;
    fm__dot_sum sum[FM__SIMD_QUERIES * 2];
    fm__vi plain[2];
    FM__UNROLL for (int i = 0; i < queries * vectors; i++) sum[i] = fm__dot_zero();
    FM__UNROLL for (int j = 0; j < vectors; j++) plain[j] = fm__vi_zero();
    for (uint32_t at = span->any_first / 4 * 4; at <= span->any_last;) {
        const uint32_t page_end = at / FM__PAGE_TOKENS * FM__PAGE_TOKENS + FM__PAGE_TOKENS - 1;
        const uint32_t stop = page_end < span->any_last ? page_end : span->any_last;
        const uint8_t *v = page_at(tile, at) + at0 + (size_t)(at % FM__PAGE_TOKENS) * dims;
        const uint32_t *w = tile->weights + at % BLOCK / 4 * 2;
        for (; at <= stop; at += 4, v += (size_t)dims * 4, w += 2) {
            fm__codes x[2];
            FM__UNROLL for (int j = 0; j < vectors; j++) x[j] = fm__values_load(v + 64 * j);
            if (FM__DOT_PLAIN)
                FM__UNROLL for (int j = 0; j < vectors; j++) plain[j] =
                    fm__dot_plain(plain[j], x[j]);
            FM__UNROLL for (int t = 0; t < queries; t++)
                FM__UNROLL for (int j = 0; j < vectors; j++)
                    fm__dot_values(&sum[t * vectors + j], x[j], w + (size_t)t * WEIGHTS);
        }
    }
    FM__UNROLL for (int t = 0; t < queries; t++) FM__UNROLL for (int j = 0; j < vectors; j++) {
        fm__vi all = fm__dot_total(sum[t * vectors + j]);
        if (FM__DOT_PLAIN)
            all = fm__vi_add(all, fm__vi_left(plain[j], 15));
        fm__vf_store(tile->ob + (size_t)t * tile->o_stride + from + skip + 16 * j,
                     fm__vf_mul(fm__vf_int(all), fm__vf_set(unit[t])));
    }
}

/* ob = the sums of weights * values over the span's keys. */
FM__INLINE void values(const int queries, const struct tile *tile, const struct span *span) {
    const uint32_t dim = tile->args->group->value_dim;
    const uint32_t begin = span->any_first % BLOCK / 16, end = span->any_last % BLOCK / 16;
    float *const d = (float *)(void *)(tile->weights + TILE * WEIGHTS), *const w = d + BLOCK + PAD;
    for (uint32_t b = 0; b < fm__cache_blocks(dim); b++) {
        const uint32_t dims = dim - b * DIMS < DIMS ? dim - b * DIMS : DIMS;
        float unit[TILE] = {0};
        load_scales(tile, span, b, d);
        for (uint32_t t = 0; t < (uint32_t)queries; t++)
            if (span->first[t] <= span->last[t])
                unit[t] =
                    weights_of(tile->p + t * tile->p_stride, d, span->first[t] % BLOCK,
                               span->last[t] % BLOCK, begin, end, w, tile->weights + t * WEIGHTS);
        if (FM__DOT_VECTORS == 2 && dims > 16) {
            value_block(queries, FM__DOT_VECTORS, tile, span, b * DIMS, dims, 0, unit);
            continue;
        }
        value_block(queries, 1, tile, span, b * DIMS, dims, 0, unit);
        if (dims > 16)
            value_block(queries, 1, tile, span, b * DIMS, dims, 16, unit);
    }
}
