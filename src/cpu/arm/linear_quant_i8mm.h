/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_quant_i8mm.h: the body of the quantised linear kernels of the NEON rung for many
 * tokens, by products of int8 matrices (smmla).
 *
 * Owns: preparing panels and tokens, the register tile, the walk. Never does: choose a kernel; few
 * tokens. Included by: linear_quant_i8mm.c, each function with a constant shape.
 *
 * smmla multiplies two rows of 8 k with two others. A panel lies by 4 k a row, so two neighbouring
 * vectors of codes are zipped into pairs of rows by 8 k: once for all tokens, with the unpacking.
 * Tokens are laid out by pairs likewise. A tile is half a panel (8 rows) times 8 tokens: sixteen
 * accumulators, and eight loads for sixteen products.
 */
#pragma once

#include "cpu/arm/linear_quant_neon.h"

enum {
    FM__I8MM_TILE = 8,     /* tokens of a register tile */
    FM__I8MM_PAIRS = 4,    /* of tokens of a tile; of rows of half a panel */
    FM__I8MM_TOKENS = 256, /* tokens of a block: their segments, prepared, stay in L2 */
    FM__I8MM_CHUNKS = FM__SEGMENT / FM__CHUNK,
    FM__I8MM_HALF = FM__SEGMENT * FM__PANEL_ROWS / 2, /* bytes of half a panel's segment */
    FM__I8MM_WEIGHTS = 2 * FM__I8MM_HALF,
    FM__I8MM_ROWS = FM__SEGMENT * FM__I8MM_TILE, /* bytes of a tile's tokens */
};

_Static_assert(FM__I8MM_WEIGHTS + FM__I8MM_TOKENS * FM__SEGMENT <= FM__LINEAR_SCRATCH,
               "prepared operands fit the scratch");

/* ---- a segment, prepared: [chunk][8 k of 4][pair of 4][2][8 bytes] ---- */

/* Both halves of a panel's segment, one after the other. */
FM__INLINE void fm__i8mm_prepare(const fm__shape shape, const uint8_t *codes, uint32_t chunks,
                                 int8x16_t table, int8_t *to) {
    for (size_t c = 0; c < chunks; c++, codes += 64 * shape.bits)
        FM__UNROLL for (int quarter = 0; quarter < 4; quarter++) {
            int8_t *at = to + (quarter / 2) * FM__I8MM_HALF + 256 * c + (quarter % 2) * 32;
            int8x16_t w[8];
            fm__neon_unpack(shape, codes + 16 * quarter, table, w);
            FM__UNROLL for (int g = 0; g < 4; g++) {
                const int32x4_t even = vreinterpretq_s32_s8(w[2 * g]);
                const int32x4_t odd = vreinterpretq_s32_s8(w[2 * g + 1]);
                vst1q_s8(at + 64 * g, vreinterpretq_s8_s32(vzip1q_s32(even, odd)));
                vst1q_s8(at + 64 * g + 16, vreinterpretq_s8_s32(vzip2q_s32(even, odd)));
            }
        }
}

/* A tile's tokens, whose bytes are `values`. */
FM__INLINE void fm__i8mm_prepare_rows(const uint8_t *const values[FM__I8MM_TILE], uint32_t chunks,
                                      int8_t *to) {
    for (size_t i = 0; i < 4 * (size_t)chunks; i++, to += 64)
        FM__UNROLL for (int t = 0; t < FM__I8MM_TILE; t++)
            vst1_s8(to + 8 * t, vld1_s8((const int8_t *)values[t] + 8 * i));
}

/* ---- half a panel times the tokens of a tile ---- */

typedef struct fm__i8mm_tile {
    const int8_t *weights, *tokens; /* prepared */
    const uint8_t *sub, *d, *m;     /* of the half, from the segment on */
    const uint8_t *rows[FM__I8MM_TILE];
    size_t act_d, act_sum, act_shift; /* in a row, of the segment */
    uint32_t chunks;                  /* of the segment */
} fm__i8mm_tile;

/* sum[quarter][token] = dots over groups [begin, end) of 8 k of chunk c, rows in the lanes. */
FM__INLINE void fm__i8mm_dots(const int pairs, const fm__i8mm_tile *tile, size_t c, const int begin,
                              const int end, int32x4_t sum[2][FM__I8MM_TILE]) {
    int32x4_t s[FM__I8MM_PAIRS][FM__I8MM_PAIRS]; /* [rows][tokens]; lanes token, token; row, row */
    FM__UNROLL for (int r = 0; r < FM__I8MM_PAIRS; r++) FM__UNROLL for (int p = 0; p < pairs; p++)
        s[r][p] = vdupq_n_s32(0);
    FM__UNROLL for (int g = begin; g < end; g++) {
        const int8_t *at = tile->weights + 256 * c + 64 * g, *bt = tile->tokens + 256 * c + 64 * g;
        int8x16_t a[FM__I8MM_PAIRS], w[FM__I8MM_PAIRS];
        FM__UNROLL for (int p = 0; p < pairs; p++) a[p] = vld1q_s8(bt + 16 * p);
        FM__UNROLL for (int r = 0; r < FM__I8MM_PAIRS; r++) w[r] = vld1q_s8(at + 16 * r);
        FM__UNROLL for (int r = 0; r < FM__I8MM_PAIRS; r++)
            FM__UNROLL for (int p = 0; p < pairs; p++) s[r][p] = vmmlaq_s32(s[r][p], a[p], w[r]);
    }
    FM__UNROLL for (int q = 0; q < 2; q++) FM__UNROLL for (int p = 0; p < pairs; p++) {
        const int64x2_t low = vreinterpretq_s64_s32(s[2 * q][p]);
        const int64x2_t high = vreinterpretq_s64_s32(s[2 * q + 1][p]);
        sum[q][2 * p] = vreinterpretq_s32_s64(vzip1q_s64(low, high));
        sum[q][2 * p + 1] = vreinterpretq_s32_s64(vzip2q_s64(low, high));
    }
}

FM__INLINE float fm__i8mm_da(const fm__i8mm_tile *tile, int t, size_t block) {
    return ((const float *)(const void *)(tile->rows[t] + tile->act_d))[block];
}

FM__INLINE const int16_t *fm__i8mm_sums(const fm__i8mm_tile *tile, int t) {
    return (const int16_t *)(const void *)(tile->rows[t] + tile->act_sum);
}

/* acc[quarter][token] = the segment's sum, blocks of 32 ascending from +0. */
FM__INLINE void fm__i8mm_tile32(const fm__shape shape, const int pairs, const fm__i8mm_tile *tile,
                                float32x4_t acc[2][FM__I8MM_TILE]) {
    for (size_t c = 0; c < tile->chunks; c++) {
        int32x4_t sum[2][FM__I8MM_TILE];
        fm__i8mm_dots(pairs, tile, c, 0, 4, sum);
        FM__UNROLL for (int q = 0; q < 2; q++) {
            const uint8_t *dp = tile->d + c * (shape.d_is_f32 ? 64 : 32);
            const float32x4_t d = shape.d_is_f32
                                      ? vld1q_f32((const float *)(const void *)(dp + 16 * q))
                                      : fm__neon_half(dp + 8 * q);
            float32x4_t m = d;
            if (shape.has_min)
                m = fm__neon_half(tile->m + 32 * c + 8 * q);
            FM__UNROLL for (int t = 0; t < 2 * pairs; t++) {
                const float da = fm__i8mm_da(tile, t, c);
                acc[q][t] = fm__neon_times(acc[q][t], sum[q][t], d, da, false);
                if (shape.has_min)
                    acc[q][t] = fm__neon_times(acc[q][t], vdupq_n_s32(fm__i8mm_sums(tile, t)[c]), m,
                                               da, false);
            }
        }
    }
}

/* isum += (sum * the scale of sub-block i) << shift. */
FM__INLINE void fm__i8mm_add(const fm__shape shape, const int pairs, const fm__i8mm_tile *tile,
                             const uint8_t *sub, int i, size_t c, int32x4_t sum[2][FM__I8MM_TILE],
                             int32x4_t isum[2][FM__I8MM_TILE]) {
    FM__UNROLL for (int q = 0; q < 2; q++) {
        int32x4_t scale = vdupq_n_s32(1);
        if (shape.sub_width)
            scale = fm__neon_scale(shape, sub + 4 * q, i);
        FM__UNROLL for (int t = 0; t < 2 * pairs; t++) {
            const int shift = (tile->rows[t] + tile->act_shift)[c];
            const int32x4_t x = shape.sub_width ? vmulq_s32(sum[q][t], scale) : sum[q][t];
            isum[q][t] = vaddq_s32(isum[q][t], vshlq_s32(x, vdupq_n_s32(shift)));
        }
    }
}

/* msum += the minima of chunk i of a block times the activation sums. */
FM__INLINE void fm__i8mm_minima(const fm__shape shape, const int pairs, const fm__i8mm_tile *tile,
                                const uint8_t *sub, int i, size_t c,
                                int32x4_t msum[2][FM__I8MM_TILE]) {
    FM__UNROLL for (int q = 0; q < 2; q++) {
        const bool by_16 = shape.sub_width == 16;
        const int32x4_t low = fm__neon_minimum(shape, sub + 4 * q, by_16 ? 2 * i : i);
        int32x4_t high = low;
        if (by_16)
            high = fm__neon_minimum(shape, sub + 4 * q, 2 * i + 1);
        FM__UNROLL for (int t = 0; t < 2 * pairs; t++) {
            const int16_t *s = fm__i8mm_sums(tile, t) + 2 * c;
            const int power = 1 << (tile->rows[t] + tile->act_shift)[c];
            msum[q][t] = vmlaq_n_s32(msum[q][t], low, (by_16 ? s[0] : s[0] + s[1]) * power);
            if (by_16)
                msum[q][t] = vmlaq_n_s32(msum[q][t], high, s[1] * power);
        }
    }
}

/* Likewise for blocks of 256. */
FM__INLINE void fm__i8mm_tile256(const fm__shape shape, const int pairs, const fm__i8mm_tile *tile,
                                 float32x4_t acc[2][FM__I8MM_TILE]) {
    for (size_t b = 0; b < tile->chunks / 8; b++) {
        const uint8_t *sub = tile->sub + b * fm__shape_sub_bytes(shape);
        int32x4_t isum[2][FM__I8MM_TILE], msum[2][FM__I8MM_TILE], sum[2][FM__I8MM_TILE];
        FM__UNROLL for (int q = 0; q < 2; q++) FM__UNROLL for (int t = 0; t < 2 * pairs; t++)
            isum[q][t] = msum[q][t] = vdupq_n_s32(0);
        for (int i = 0; i < 8; i++) {
            const size_t c = 8 * b + (size_t)i;
            if (shape.sub_width == 16) {
                fm__i8mm_dots(pairs, tile, c, 0, 2, sum);
                fm__i8mm_add(shape, pairs, tile, sub, 2 * i, c, sum, isum);
                fm__i8mm_dots(pairs, tile, c, 2, 4, sum);
                fm__i8mm_add(shape, pairs, tile, sub, 2 * i + 1, c, sum, isum);
            } else {
                fm__i8mm_dots(pairs, tile, c, 0, 4, sum);
                fm__i8mm_add(shape, pairs, tile, sub, i, c, sum, isum);
            }
        }
        for (int i = 0; i < 8 && shape.has_min; i++) /* apart, so that all sums fit the registers */
            fm__i8mm_minima(shape, pairs, tile, sub, i, 8 * b + (size_t)i, msum);
        FM__UNROLL for (int q = 0; q < 2; q++) {
            const float32x4_t d = fm__neon_half(tile->d + 32 * b + 8 * q);
            float32x4_t m = d;
            if (shape.has_min)
                m = fm__neon_half(tile->m + 32 * b + 8 * q);
            FM__UNROLL for (int t = 0; t < 2 * pairs; t++) {
                const float da = fm__i8mm_da(tile, t, b);
                acc[q][t] = fm__neon_times(acc[q][t], isum[q][t], d, da, false);
                if (shape.has_min)
                    acc[q][t] = fm__neon_times(acc[q][t], msum[q][t], m, da, true);
            }
        }
    }
}

/* ---- the walk ---- */

/* The segment at k0 of a prepared panel times `pairs` pairs of tokens from `token` on, of which
   `count` tokens exist. */
FM__INLINE void fm__i8mm_run(const fm__shape shape, const int pairs, const fm__linear_args *args,
                             uint32_t panel, uint32_t k0, uint32_t token, uint32_t count,
                             const int8_t *tokens) {
    const fm__panel_layout *layout = &args->layout;
    const fm__act_layout *al = &args->act_layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block;
    fm__i8mm_tile tile = {
        .tokens = tokens,
        .act_d = al->d + block0 * 4,
        .act_sum = al->sum + (size_t)k0 / (shape.block == 32 ? 32 : 16) * 2,
        .act_shift = al->shift + k0 / FM__CHUNK,
        .chunks = (args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT) / FM__CHUNK,
    };
    FM__UNROLL for (int t = 0; t < 2 * pairs; t++) {
        const uint32_t row = (uint32_t)t < count ? (uint32_t)t : count - 1;
        tile.rows[t] = args->act + (size_t)(token + row) * al->stride;
    }
    for (size_t half = 0; half < 2; half++) {
        float32x4_t acc[2][FM__I8MM_TILE];
        tile.weights = (const int8_t *)args->scratch + half * FM__I8MM_HALF;
        tile.sub = base + layout->sub + block0 * layout->sub_bytes + 8 * half;
        tile.d = base + layout->d + block0 * layout->d_bytes + half * layout->d_bytes / 2;
        tile.m = base + layout->m + block0 * 32 + 16 * half;
        FM__UNROLL for (int q = 0; q < 2; q++) FM__UNROLL for (int t = 0; t < 2 * pairs; t++)
            acc[q][t] = vdupq_n_f32(0.0f);
        if (shape.block == 32)
            fm__i8mm_tile32(shape, pairs, &tile, acc);
        else
            fm__i8mm_tile256(shape, pairs, &tile, acc);
        FM__UNROLL for (int q = 0; q < 2; q++)
            FM__UNROLL for (int t = 0; t < 2 * pairs; t++) if ((uint32_t)t < count)
                fm__neon_store(args->out + (size_t)(token + (uint32_t)t) * args->out_stride,
                               args->out_stride, 1,
                               panel * FM__PANEL_ROWS + 8 * (uint32_t)half + 4 * (uint32_t)q,
                               args->n, k0 == 0, &acc[q][t]);
    }
}

/* Tokens [t0, t1), whose segment at k0 is prepared, times every panel. */
FM__INLINE void fm__i8mm_panels(const fm__shape shape, const fm__linear_args *args, uint32_t t0,
                                uint32_t t1, uint32_t k0, uint32_t chunks, int8x16_t table) {
    int8_t *const weights = args->scratch;
    const uint32_t all = (args->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    const uint32_t end = args->panel_end < all ? args->panel_end : all;
    for (uint32_t panel = args->panel_begin; panel < end; panel++) {
        const int8_t *tokens = weights + FM__I8MM_WEIGHTS;
        fm__i8mm_prepare(shape,
                         args->panels + (size_t)panel * args->layout.stride + args->layout.codes +
                             k0 / FM__CHUNK * (size_t)(64 * shape.bits),
                         chunks, table, weights);
        for (uint32_t t = t0; t < t1; t += FM__I8MM_TILE, tokens += FM__I8MM_ROWS) {
            const uint32_t left = t1 - t;
            if (left > FM__I8MM_TILE / 2)
                fm__i8mm_run(shape, 4, args, panel, k0, t,
                             left < FM__I8MM_TILE ? left : FM__I8MM_TILE, tokens);
            else
                fm__i8mm_run(shape, 2, args, panel, k0, t, left, tokens);
        }
    }
}

FM__INLINE void fm__i8mm_linear(const fm__shape shape, const fm__linear_args *args) {
    const int8x16_t table = shape.lut ? vld1q_s8(args->type->lut) : vdupq_n_s8(0);
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__I8MM_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__I8MM_TOKENS ? args->tokens : t0 + FM__I8MM_TOKENS;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const uint32_t left = args->k - k0;
            const uint32_t chunks = (left < FM__SEGMENT ? left : FM__SEGMENT) / FM__CHUNK;
            int8_t *to = (int8_t *)args->scratch + FM__I8MM_WEIGHTS;
            for (uint32_t t = t0; t < t1; t += FM__I8MM_TILE, to += FM__I8MM_ROWS) {
                const uint8_t *values[FM__I8MM_TILE];
                for (uint32_t i = 0; i < FM__I8MM_TILE; i++)
                    values[i] = args->act +
                                (size_t)(t + i < t1 ? t + i : t1 - 1) * args->act_layout.stride +
                                args->act_layout.values + k0;
                fm__i8mm_prepare_rows(values, chunks, to);
            }
            fm__i8mm_panels(shape, args, t0, t1, k0, chunks, table);
        }
    }
}
