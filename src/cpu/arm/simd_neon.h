/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/simd_neon.h: sixteen lanes for the shared bodies (cpu/body_*.h), NEON.
 *
 * Owns: nothing. Never does: anything but one operation a function. Included by: *_neon.c.
 */
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "base/base.h"
#include "cpu/unroll.h"

typedef struct fm__vf { /* 16 floats */
    float32x4_t v[4];
} fm__vf;
typedef struct fm__vi { /* 16 int32 */
    int32x4_t v[4];
} fm__vi;
typedef struct fm__vm { /* 16 truth values: all bits or none */
    uint32x4_t v[4];
} fm__vm;

/* Attention: queries of a tile, and vectors of running sums that fit the registers. */
#define FM__SIMD_QUERIES 4
#define FM__SIMD_SUMS 4

/* Each operation on all four quarters. */
#define FM__ALL(type, expression)                                                                  \
    type r;                                                                                        \
    FM__UNROLL for (int h = 0; h < 4; h++) r.v[h] = (expression);                                  \
    return r

/* ---- floats ---- */

FM__INLINE fm__vf fm__vf_set(float x) {
    FM__ALL(fm__vf, vdupq_n_f32(x));
}
FM__INLINE fm__vf fm__vf_zero(void) {
    return fm__vf_set(0.0f);
}
FM__INLINE fm__vf fm__vf_load(const float *p) {
    FM__ALL(fm__vf, vld1q_f32(p + 4 * h));
}
FM__INLINE void fm__vf_store(float *p, fm__vf x) {
    FM__UNROLL for (int h = 0; h < 4; h++) vst1q_f32(p + 4 * h, x.v[h]);
}
/* The first n values, 0 behind them; reads and writes no more than those. */
FM__INLINE fm__vf fm__vf_load_first(const float *p, size_t n) {
    if (n >= 16)
        return fm__vf_load(p);
    float all[16] = {0};
    memcpy(all, p, n * sizeof(float));
    return fm__vf_load(all);
}
FM__INLINE void fm__vf_store_first(float *p, size_t n, fm__vf x) {
    if (n >= 16) {
        fm__vf_store(p, x);
        return;
    }
    float all[16];
    fm__vf_store(all, x);
    memcpy(p, all, n * sizeof(float));
}
/* Widens f16. */
FM__INLINE fm__vf fm__vf_load_half(const uint16_t *p) {
    FM__ALL(fm__vf, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * h))));
}
FM__INLINE fm__vf fm__vf_load_half_first(const uint16_t *p, size_t n) {
    if (n >= 16)
        return fm__vf_load_half(p);
    uint16_t all[16] = {0};
    memcpy(all, p, n * sizeof(uint16_t));
    return fm__vf_load_half(all);
}
/* p[0], p[0], p[1], p[1], ... p[7], p[7] */
FM__INLINE fm__vf fm__vf_load_twice(const float *p) {
    const float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + 4);
    return (fm__vf){{vzip1q_f32(a, a), vzip2q_f32(a, a), vzip1q_f32(b, b), vzip2q_f32(b, b)}};
}
FM__INLINE fm__vf fm__vf_add(fm__vf a, fm__vf b) {
    FM__ALL(fm__vf, vaddq_f32(a.v[h], b.v[h]));
}
FM__INLINE fm__vf fm__vf_sub(fm__vf a, fm__vf b) {
    FM__ALL(fm__vf, vsubq_f32(a.v[h], b.v[h]));
}
FM__INLINE fm__vf fm__vf_mul(fm__vf a, fm__vf b) {
    FM__ALL(fm__vf, vmulq_f32(a.v[h], b.v[h]));
}
/* a * b + c, fused: only where the product is exact. */
FM__INLINE fm__vf fm__vf_fma(fm__vf a, fm__vf b, fm__vf c) {
    FM__ALL(fm__vf, vfmaq_f32(c.v[h], a.v[h], b.v[h]));
}
/* a - b in even lanes, a + b in odd ones */
FM__INLINE fm__vf fm__vf_sub_add(fm__vf a, fm__vf b) {
    const uint32x4_t even = {UINT32_MAX, 0, UINT32_MAX, 0};
    FM__ALL(fm__vf, vbslq_f32(even, vsubq_f32(a.v[h], b.v[h]), vaddq_f32(a.v[h], b.v[h])));
}
/* Swaps the lanes of each pair. */
FM__INLINE fm__vf fm__vf_swap(fm__vf a) {
    FM__ALL(fm__vf, vrev64q_f32(a.v[h]));
}
FM__INLINE fm__vm fm__vf_less(fm__vf a, fm__vf b) {
    FM__ALL(fm__vm, vcltq_f32(a.v[h], b.v[h]));
}
FM__INLINE fm__vf fm__vf_select(fm__vm m, fm__vf yes, fm__vf no) {
    FM__ALL(fm__vf, vbslq_f32(m.v[h], yes.v[h], no.v[h]));
}
/* a where m, else 0 */
FM__INLINE fm__vf fm__vf_keep(fm__vm m, fm__vf a) {
    FM__ALL(fm__vf, vreinterpretq_f32_u32(vandq_u32(m.v[h], vreinterpretq_u32_f32(a.v[h]))));
}
/* The larger in each lane. */
FM__INLINE fm__vf fm__vf_max(fm__vf a, fm__vf b) {
    FM__ALL(fm__vf, vmaxq_f32(a.v[h], b.v[h]));
}
FM__INLINE float fm__vf_largest(fm__vf a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
/* s[l] += s[l + w] for w = 8, 4, 2, 1; lane 0. */
FM__INLINE float fm__vf_tree(fm__vf s) {
    const float32x4_t four = vaddq_f32(vaddq_f32(s.v[0], s.v[2]), vaddq_f32(s.v[1], s.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* ---- integers ---- */

FM__INLINE fm__vi fm__vi_set(uint32_t x) {
    FM__ALL(fm__vi, vreinterpretq_s32_u32(vdupq_n_u32(x)));
}
FM__INLINE fm__vi fm__vi_zero(void) {
    return fm__vi_set(0);
}
FM__INLINE fm__vi fm__vi_load(const uint32_t *p) {
    FM__ALL(fm__vi, vreinterpretq_s32_u32(vld1q_u32(p + 4 * h)));
}
FM__INLINE void fm__vi_store(uint32_t *p, fm__vi a) {
    FM__UNROLL for (int h = 0; h < 4; h++) vst1q_u32(p + 4 * h, vreinterpretq_u32_s32(a.v[h]));
}
FM__INLINE fm__vi fm__vi_bits(fm__vf a) {
    FM__ALL(fm__vi, vreinterpretq_s32_f32(a.v[h]));
}
FM__INLINE fm__vf fm__vf_bits(fm__vi a) {
    FM__ALL(fm__vf, vreinterpretq_f32_s32(a.v[h]));
}
/* Rounds to nearest even. */
FM__INLINE fm__vi fm__vi_round(fm__vf a) {
    FM__ALL(fm__vi, vcvtnq_s32_f32(a.v[h]));
}
FM__INLINE fm__vi fm__vi_add(fm__vi a, fm__vi b) {
    FM__ALL(fm__vi, vaddq_s32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_sub(fm__vi a, fm__vi b) {
    FM__ALL(fm__vi, vsubq_s32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_and(fm__vi a, fm__vi b) {
    FM__ALL(fm__vi, vandq_s32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_or(fm__vi a, fm__vi b) {
    FM__ALL(fm__vi, vorrq_s32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_left(fm__vi a, const int n) {
    FM__ALL(fm__vi, vshlq_s32(a.v[h], vdupq_n_s32(n)));
}
/* Logical. */
FM__INLINE fm__vi fm__vi_right(fm__vi a, const int n) {
    FM__ALL(fm__vi,
            vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.v[h]), vdupq_n_s32(-n))));
}
/* Signed. */
FM__INLINE fm__vi fm__vi_max(fm__vi a, fm__vi b) {
    FM__ALL(fm__vi, vmaxq_s32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_min(fm__vi a, fm__vi b) {
    FM__ALL(fm__vi, vminq_s32(a.v[h], b.v[h]));
}
FM__INLINE fm__vm fm__vi_greater(fm__vi a, fm__vi b) {
    FM__ALL(fm__vm, vcgtq_s32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_select(fm__vm m, fm__vi yes, fm__vi no) {
    FM__ALL(fm__vi, vbslq_s32(m.v[h], yes.v[h], no.v[h]));
}
FM__INLINE fm__vi fm__vi_keep(fm__vm m, fm__vi a) {
    FM__ALL(fm__vi, vandq_s32(vreinterpretq_s32_u32(m.v[h]), a.v[h]));
}
FM__INLINE int32_t fm__vi_largest(fm__vi a) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
}
/* Lane l: all lanes of x[l] taken together; `combine` by lanes, `neighbours` by pairs of lanes. */
#define FM__SIMD_EACH(combine, neighbours)                                                         \
    fm__vi r;                                                                                      \
    FM__UNROLL for (int h = 0; h < 4; h++) {                                                       \
        int32x4_t one[4];                                                                          \
        FM__UNROLL for (int e = 0; e < 4; e++) one[e] =                                            \
            combine(combine(x[4 * h + e].v[0], x[4 * h + e].v[1]),                                 \
                    combine(x[4 * h + e].v[2], x[4 * h + e].v[3]));                                \
        r.v[h] = neighbours(neighbours(one[0], one[1]), neighbours(one[2], one[3]));               \
    }                                                                                              \
    return r

/* Lane l: the largest lane of x[l]. */
FM__INLINE fm__vi fm__vi_largest_each(const fm__vi x[16]) {
    FM__SIMD_EACH(vmaxq_s32, vpmaxq_s32);
}
/* Lane l: the sum of x[l]'s lanes. */
FM__INLINE fm__vi fm__vi_total_each(const fm__vi x[16]) {
    FM__SIMD_EACH(vaddq_s32, vpaddq_s32);
}
/* 16 bytes from values within int8. */
FM__INLINE void fm__vi_store_int8(int8_t *p, fm__vi a) {
    const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
/* The lower halves of the first n. */
FM__INLINE void fm__vi_store_uint16_first(uint16_t *p, size_t n, fm__vi a) {
    uint16_t all[16];
    FM__UNROLL for (int h = 0; h < 4; h++)
        vst1_u16(all + 4 * h, vmovn_u32(vreinterpretq_u32_s32(a.v[h])));
    memcpy(p, all, (n < 16 ? n : 16) * sizeof(uint16_t));
}
/* Lanes begin..end (0..15, both included). */
FM__INLINE fm__vm fm__vm_range(uint32_t begin, uint32_t end) {
    const uint32x4_t lane = {0, 1, 2, 3};
    const uint32x4_t b = vdupq_n_u32(begin), e = vdupq_n_u32(end);
    FM__ALL(fm__vm, vandq_u32(vcgeq_u32(vaddq_u32(lane, vdupq_n_u32(4 * (uint32_t)h)), b),
                              vcleq_u32(vaddq_u32(lane, vdupq_n_u32(4 * (uint32_t)h)), e)));
}
