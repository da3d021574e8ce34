/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_quant_neon.h: the shared body of every quantised linear kernel of the NEON rung,
 * with and without the dot product instructions.
 *
 * Owns: unpacking of panel codes, the register tiles, the walk over tokens, segments and panels.
 * Never does: choose a kernel. Called from: linear_quant_neon.c and linear_quant_dotprod.c, each
 * function with a constant shape. A tile is a quarter of a panel (4 rows) times a few tokens; codes
 * become signed values at once, since every type's fit int8.
 */
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "cpu/linear_shape.h"
#include "cpu/unroll.h"

enum {
    FM__NEON_TILE = 4,    /* tokens of a register tile */
    FM__NEON_TOKENS = 64, /* tokens of a block: a segment of their activations in L2 */
};

/* ---- codes ---- */

/* A quarter of a chunk (32 k of 4 rows) as 8 vectors of values, k ascending by 4; `at` is the
   quarter's first 16 bytes, further vectors lie 64 bytes apart. */
FM__INLINE void fm__neon_unpack(const fm__shape shape, const uint8_t *at, int8x16_t table,
                                int8x16_t w[8]) {
    uint8x16_t u[8];
    if (shape.bits == 8) {
        FM__UNROLL for (int v = 0; v < 8; v++) w[v] = vreinterpretq_s8_u8(vld1q_u8(at + 64 * v));
        return;
    }
    if (shape.bits == 2 || shape.bits == 3) {
        const uint8x16_t three = vdupq_n_u8(3);
        FM__UNROLL for (int v = 0; v < 2; v++) {
            const uint8x16_t x = vld1q_u8(at + 64 * v);
            u[v] = vandq_u8(x, three);
            u[v + 2] = vandq_u8(vshrq_n_u8(x, 2), three);
            u[v + 4] = vandq_u8(vshrq_n_u8(x, 4), three);
            u[v + 6] = vshrq_n_u8(x, 6);
        }
        at += 128;
    } else {
        FM__UNROLL for (int v = 0; v < 4; v++) {
            const uint8x16_t x = vld1q_u8(at + 64 * v);
            u[v] = vandq_u8(x, vdupq_n_u8(15));
            u[v + 4] = vshrq_n_u8(x, 4);
        }
        at += 256;
    }
    if (shape.bits == 3 || shape.bits == 5) { /* one more bit above */
        const int above = shape.bits - 1;
        const uint8x16_t x = vld1q_u8(at), one = vdupq_n_u8(1);
        FM__UNROLL for (int t = 0; t < 8; t++) {
            const uint8x16_t bit = vandq_u8(vshlq_u8(x, vdupq_n_s8((int8_t)-t)), one);
            u[t] = vorrq_u8(u[t], vshlq_u8(bit, vdupq_n_s8((int8_t)above)));
        }
    }
    if (shape.bits == 6) { /* two more */
        const uint8x16_t three = vdupq_n_u8(3);
        FM__UNROLL for (int v = 0; v < 2; v++) {
            const uint8x16_t x = vld1q_u8(at + 64 * v);
            u[v] = vorrq_u8(u[v], vshlq_n_u8(vandq_u8(x, three), 4));
            u[v + 2] = vorrq_u8(u[v + 2], vshlq_n_u8(vandq_u8(vshrq_n_u8(x, 2), three), 4));
            u[v + 4] = vorrq_u8(u[v + 4], vshlq_n_u8(vandq_u8(vshrq_n_u8(x, 4), three), 4));
            u[v + 6] = vorrq_u8(u[v + 6], vshlq_n_u8(vshrq_n_u8(x, 6), 4));
        }
    }
    const int8x16_t offset =
        vdupq_n_s8((int8_t)(shape.offset_shift < 0 ? 0 : 1 << shape.offset_shift));
    FM__UNROLL for (int v = 0; v < 8; v++) w[v] =
        shape.lut ? vqtbl1q_s8(table, u[v]) : vsubq_s8(vreinterpretq_s8_u8(u[v]), offset);
}

/* Exact int32 sums of w * a over `groups` vectors of 4 k, for 4 rows. */
FM__INLINE int32x4_t fm__neon_dot(const bool dotprod, const int groups, const int8x16_t *w,
                                  const int8_t *a) {
#if defined(__ARM_FEATURE_DOTPROD)
    if (dotprod) {
        int32x4_t sum = vdupq_n_s32(0);
        FM__UNROLL for (int v = 0; v < groups; v += 4) { /* one load serves four */
            const int8x16_t x = vld1q_s8(a + 4 * v);
            sum = vdotq_laneq_s32(sum, w[v], x, 0);
            sum = vdotq_laneq_s32(sum, w[v + 1], x, 1);
            sum = vdotq_laneq_s32(sum, w[v + 2], x, 2);
            sum = vdotq_laneq_s32(sum, w[v + 3], x, 3);
        }
        return sum;
    }
#endif
    (void)dotprod;
    int32x4_t low = vdupq_n_s32(0), high = low; /* rows 0, 1 and 2, 3; two sums a row */
    FM__UNROLL for (int v = 0; v < groups; v += 2) {
        int32_t x[2];
        memcpy(x, a + 4 * v, 8);
        const int8x8_t even = vreinterpret_s8_s32(vdup_n_s32(x[0]));
        const int8x8_t odd = vreinterpret_s8_s32(vdup_n_s32(x[1]));
        /* two products of at most 128 * 127 fit int16 */
        int16x8_t s = vmull_s8(vget_low_s8(w[v]), even);
        low = vpadalq_s16(low, vmlal_s8(s, vget_low_s8(w[v + 1]), odd));
        s = vmull_s8(vget_high_s8(w[v]), even);
        high = vpadalq_s16(high, vmlal_s8(s, vget_high_s8(w[v + 1]), odd));
    }
    return vpaddq_s32(low, high);
}

/* ---- scales of 4 rows ---- */

FM__INLINE float32x4_t fm__neon_half(const uint8_t *halves) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(halves)));
}

/* Four bytes as int32. */
FM__INLINE int32x4_t fm__neon_bytes(const bool is_signed, const uint8_t *bytes) {
    uint32_t x;
    memcpy(&x, bytes, 4);
    const uint8x8_t u = vreinterpret_u8_u32(vdup_n_u32(x));
    if (is_signed)
        return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(u))));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(u))));
}

FM__INLINE int32x4_t fm__neon_scale(const fm__shape shape, const uint8_t *sub, int i) {
    const int32x4_t x = fm__neon_bytes(shape.sub_signed, sub + 16 * i);
    return shape.sub_nibbles ? vandq_s32(x, vdupq_n_s32(15)) : x;
}

FM__INLINE int32x4_t fm__neon_minimum(const fm__shape shape, const uint8_t *sub, int i) {
    if (shape.sub_nibbles)
        return vshrq_n_s32(fm__neon_bytes(false, sub + 16 * i), 4);
    return fm__neon_bytes(false, sub + 128 + 16 * i);
}

/* ---- one segment of a quarter of a panel times some tokens ---- */

typedef struct fm__neon_tile {
    const uint8_t *codes, *sub, *d, *m;               /* of the quarter, from the segment on */
    const uint8_t *act, *act_d, *act_sum, *act_shift; /* of the first token, likewise */
    size_t act_stride;                                /* token to token */
    uint32_t chunks;                                  /* of the segment */
    int8x16_t table;
} fm__neon_tile;

FM__INLINE float32x4_t fm__neon_times(float32x4_t acc, int32x4_t sum, float32x4_t d, float da,
                                      const bool subtract) {
    const float32x4_t x = vmulq_f32(vcvtq_f32_s32(sum), vmulq_f32(d, vdupq_n_f32(da)));
    return subtract ? vsubq_f32(acc, x) : vaddq_f32(acc, x);
}

FM__INLINE void fm__neon_tile32(const fm__shape shape, const bool dotprod, const int tokens,
                                const fm__neon_tile *tile, float32x4_t *acc) {
    for (uint32_t c = 0; c < tile->chunks; c++) {
        int8x16_t w[8];
        fm__neon_unpack(shape, tile->codes + c * (size_t)(64 * shape.bits), tile->table, w);
        const float32x4_t d =
            shape.d_is_f32 ? vld1q_f32((const float *)(const void *)(tile->d + c * (size_t)64))
                           : fm__neon_half(tile->d + c * (size_t)32);
        float32x4_t m = d;
        if (shape.has_min)
            m = fm__neon_half(tile->m + c * (size_t)32);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const size_t row = (size_t)t * tile->act_stride;
            const float da = ((const float *)(const void *)(tile->act_d + row))[c];
            const int32x4_t sum =
                fm__neon_dot(dotprod, 8, w, (const int8_t *)tile->act + row + (size_t)c * 32);
            acc[t] = fm__neon_times(acc[t], sum, d, da, false);
            if (shape.has_min) {
                const int16_t s = ((const int16_t *)(const void *)(tile->act_sum + row))[c];
                acc[t] = fm__neon_times(acc[t], vdupq_n_s32(s), m, da, false);
            }
        }
    }
}

FM__INLINE void fm__neon_tile256(const fm__shape shape, const bool dotprod, const int tokens,
                                 const fm__neon_tile *tile, float32x4_t *acc) {
    for (uint32_t b = 0; b < tile->chunks / 8; b++) {
        const uint8_t *sub = tile->sub + b * fm__shape_sub_bytes(shape);
        int32x4_t isum[FM__NEON_TILE], msum[FM__NEON_TILE];
        FM__UNROLL for (int t = 0; t < tokens; t++) isum[t] = msum[t] = vdupq_n_s32(0);
        for (uint32_t c = 8 * b; c < 8 * b + 8; c++) {
            int8x16_t w[8];
            fm__neon_unpack(shape, tile->codes + c * (size_t)(64 * shape.bits), tile->table, w);
            const int i = (int)(c & 7);
            FM__UNROLL for (int t = 0; t < tokens; t++) {
                const size_t row = (size_t)t * tile->act_stride;
                const int8_t *a = (const int8_t *)tile->act + row + (size_t)c * 32;
                const int16_t *s = (const int16_t *)(const void *)(tile->act_sum + row) + 2 * c;
                const int shift = (tile->act_shift + row)[c];
                int32x4_t sum;
                if (shape.sub_width == 16) {
                    sum = vmulq_s32(fm__neon_dot(dotprod, 4, w, a),
                                    fm__neon_scale(shape, sub, 2 * i));
                    sum = vmlaq_s32(sum, fm__neon_dot(dotprod, 4, w + 4, a + 16),
                                    fm__neon_scale(shape, sub, 2 * i + 1));
                } else {
                    sum = fm__neon_dot(dotprod, 8, w, a);
                    if (shape.sub_width == 32)
                        sum = vmulq_s32(sum, fm__neon_scale(shape, sub, i));
                }
                isum[t] = vaddq_s32(isum[t], vshlq_s32(sum, vdupq_n_s32(shift)));
                if (!shape.has_min)
                    continue;
                const int power = 1 << shift;
                if (shape.sub_width == 16) {
                    msum[t] =
                        vmlaq_n_s32(msum[t], fm__neon_minimum(shape, sub, 2 * i), s[0] * power);
                    msum[t] =
                        vmlaq_n_s32(msum[t], fm__neon_minimum(shape, sub, 2 * i + 1), s[1] * power);
                } else {
                    msum[t] = vmlaq_n_s32(msum[t], fm__neon_minimum(shape, sub, i),
                                          (s[0] + s[1]) * power);
                }
            }
        }
        const float32x4_t d = fm__neon_half(tile->d + b * (size_t)32);
        float32x4_t m = d;
        if (shape.has_min)
            m = fm__neon_half(tile->m + b * (size_t)32);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const float *dap =
                (const float *)(const void *)(tile->act_d + (size_t)t * tile->act_stride);
            acc[t] = fm__neon_times(acc[t], isum[t], d, dap[b], false);
            if (shape.has_min)
                acc[t] = fm__neon_times(acc[t], msum[t], m, dap[b], true);
        }
    }
}

/* ---- the walk ---- */

/* out = acc for the first segment, out + acc for the later ones; rows [row, row + 4) of n. */
FM__INLINE void fm__neon_store(float *out, size_t stride, const int tokens, uint32_t row,
                               uint32_t n, bool first, const float32x4_t *acc) {
    const uint32_t left = row < n ? n - row : 0;
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        float *o = out + (size_t)t * stride + row;
        float32x4_t x = acc[t];
        float some[4] = {0};
        if (left >= 4) {
            vst1q_f32(o, first ? x : vaddq_f32(vld1q_f32(o), x));
            continue;
        }
        if (left == 0)
            continue;
        if (!first) {
            memcpy(some, o, left * sizeof(float));
            x = vaddq_f32(vld1q_f32(some), x);
        }
        vst1q_f32(some, x);
        memcpy(o, some, left * sizeof(float));
    }
}

FM__INLINE void fm__neon_run(const fm__shape shape, const bool dotprod, const int tokens,
                             const fm__linear_args *args, uint32_t panel, uint32_t k0,
                             uint32_t token, int8x16_t table) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block, chunk0 = k0 / FM__CHUNK;
    const fm__act_layout *al = &args->act_layout;
    const uint8_t *row = args->act + (size_t)token * al->stride;
    for (size_t quarter = 0; quarter < 4; quarter++) {
        const fm__neon_tile tile = {
            .codes = base + layout->codes + chunk0 * (size_t)(64 * shape.bits) + 16 * quarter,
            .sub = base + layout->sub + block0 * layout->sub_bytes + 4 * quarter,
            .d = base + layout->d + block0 * layout->d_bytes + quarter * layout->d_bytes / 4,
            .m = base + layout->m + block0 * 32 + 8 * quarter,
            .act = row + al->values + k0,
            .act_d = row + al->d + block0 * 4,
            .act_sum = row + al->sum + (size_t)k0 / (shape.block == 32 ? 32 : 16) * 2,
            .act_shift = row + al->shift + chunk0,
            .act_stride = al->stride,
            .chunks = (args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT) / FM__CHUNK,
            .table = table,
        };
        float32x4_t acc[FM__NEON_TILE];
        FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = vdupq_n_f32(0.0f);
        if (shape.block == 32)
            fm__neon_tile32(shape, dotprod, tokens, &tile, acc);
        else
            fm__neon_tile256(shape, dotprod, tokens, &tile, acc);
        fm__neon_store(args->out + (size_t)token * args->out_stride, args->out_stride, tokens,
                       panel * FM__PANEL_ROWS + 4 * (uint32_t)quarter, args->n, k0 == 0, acc);
    }
}

FM__INLINE void fm__neon_linear(const fm__shape shape, const bool dotprod,
                                const fm__linear_args *args) {
    const uint32_t all = (args->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    const uint32_t end = args->panel_end < all ? args->panel_end : all;
    const int8x16_t table = shape.lut ? vld1q_s8(args->type->lut) : vdupq_n_s8(0);
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__NEON_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__NEON_TOKENS ? args->tokens : t0 + FM__NEON_TOKENS;
        for (uint32_t panel = args->panel_begin; panel < end; panel++)
            for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
                uint32_t t = t0;
                for (; t1 - t >= FM__NEON_TILE; t += FM__NEON_TILE)
                    fm__neon_run(shape, dotprod, FM__NEON_TILE, args, panel, k0, t, table);
                for (; t < t1; t++)
                    fm__neon_run(shape, dotprod, 1, args, panel, k0, t, table);
            }
    }
}
