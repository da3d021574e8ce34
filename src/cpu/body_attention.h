/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_attention.h: what exact attention has in common whatever the cache holds: tiles of
 * queries, the softmax of a block. For any simd header.
 *
 * Owns: nothing. Never does: read keys or values. Included by: body_attention_f16.h and
 * body_attention_q8_0.h, which give load_query(), scores() and values() to
 * body_attention_tiles.h. Bits: docs/numerics.md, "Attention".
 *
 * A query is one head of one row. A tile of queries of one sequence and kv head shares each key
 * that is read.
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
    uint32_t *weights; /* room of FM__KEY_BLOCK * 4 bytes a query, and one more */
};

static inline const uint8_t *page_at(const struct tile *tile, uint32_t position) {
    const fm__cache_group *group = tile->args->group;
    const uint32_t page = tile->pages[position / FM__PAGE_TOKENS];
    assert(page != FM__NO_PAGE);
    return tile->args->layer_base +
           ((size_t)page * group->n_kv_head + tile->kv_head) * group->head_bytes;
}

/* ---- softmax ---- */

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
    for (uint32_t at = first / FM__PAGE_TOKENS * FM__PAGE_TOKENS; at <= last;
         at += FM__PAGE_TOKENS) {
        const bool whole = at >= first && at + FM__PAGE_TOKENS - 1 <= last;
        FM__EACH(4) {
            const uint32_t begin = at + 16 * (uint32_t)e, end = begin + 15;
            fm__vf x = fm__vf_load(p + begin);
            if (!whole && (begin < first || end > last)) {
                x = begin > last || end < first
                        ? nothing
                        : fm__vf_select(visible(begin, first, last), x, nothing);
                fm__vf_store(p + begin, x);
            }
            most[e] = fm__vf_max(x, most[e]);
        }
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

/* Keys of one block as a tile's queries see them: query t sees first[t]..last[t] (nothing where
   first > last); all of them see all_first..all_last. */
struct span {
    uint32_t first[TILE], last[TILE];
    uint32_t any_first, any_last, all_first, all_last;
};

/* Turns the scores of keys first..last (of the block) into p, and those of the others in their
   pages into 0; their sums by lanes. */
static fm__vf exponentials(float *p, uint32_t first, uint32_t last, float m) {
    const uint32_t end = (last / FM__PAGE_TOKENS + 1) * FM__PAGE_TOKENS;
    uint32_t at = first / FM__PAGE_TOKENS * FM__PAGE_TOKENS;
    fm__vf sum = fm__vf_zero();
    for (; at + 16 * FM__VF_CHAINS <= end; at += 16 * FM__VF_CHAINS)
        sum = probabilities_of(FM__VF_CHAINS, p + at, fm__vf_set(m), sum);
    if (FM__VF_CHAINS > 4 && at < end)
        sum = probabilities_of(4, p + at, fm__vf_set(m), sum);
    return sum;
}

/* Each query's p, m and l of the block. One step for all queries before the next: the maxima and
   the sums are chains that wait for themselves. */
static void probabilities(uint32_t queries, const struct tile *tile, const struct span *span,
                          float *m, float *l) {
    fm__vf sum[TILE];
    for (uint32_t t = 0; t < queries; t++)
        if (span->first[t] <= span->last[t])
            m[t] =
                hide(tile->p + t * tile->p_stride, span->first[t] % BLOCK, span->last[t] % BLOCK);
    for (uint32_t t = 0; t < queries; t++)
        if (span->first[t] <= span->last[t])
            sum[t] = exponentials(tile->p + t * tile->p_stride, span->first[t] % BLOCK,
                                  span->last[t] % BLOCK, m[t]);
    for (uint32_t t = 0; t < queries; t++)
        if (span->first[t] <= span->last[t])
            l[t] = fm__vf_tree(sum[t]);
}
