/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_numerics.h: cpu/numerics.h sixteen lanes at a time.
 *
 * Owns: nothing. Never does: contracted or reordered arithmetic. Included by: the other bodies,
 * after a simd header (x86/simd_*.h, arm/simd_neon.h) has defined fm__vf, fm__vi and fm__vm.
 */
#pragma once

#include "cpu/numerics.h"

FM__INLINE fm__vi fm__vi_magnitude(fm__vf x) {
    return fm__vi_and(fm__vi_bits(x), fm__vi_set(0x7FFFFFFFu));
}

/* Functions of x[0..n-1] in place, n vectors step by step: their chains of operations fill each
   other's waiting times. n is a constant, FM__VF_CHAINS at most. */
enum { FM__VF_CHAINS = FM__SIMD_SUMS >= 16 ? 8 : FM__SIMD_SUMS >= 6 ? 2 : 1 };
#define FM__EACH(n) FM__UNROLL for (int e = 0; e < (n); e++)

FM__INLINE void fm__vf_rcp(const int n, fm__vf *x) {
    fm__vf y[FM__VF_CHAINS], t[FM__VF_CHAINS];
    FM__EACH(n) y[e] = fm__vf_bits(fm__vi_sub(fm__vi_set(0x7EF311C7u), fm__vi_bits(x[e])));
    FM__UNROLL for (int i = 0; i < 3; i++) {
        FM__EACH(n) t[e] = fm__vf_mul(x[e], y[e]);
        FM__EACH(n) t[e] = fm__vf_sub(fm__vf_set(2.0f), t[e]);
        FM__EACH(n) y[e] = fm__vf_mul(y[e], t[e]);
    }
    FM__EACH(n) x[e] = y[e];
}

/* Some compilers take the chains one after the other again to need fewer registers: where the
   processor says so (FM__SIMD_PIN), a step of all of them is done before the next one begins. */
#ifndef FM__SIMD_PIN
#define FM__SIMD_PIN(x) ((void)(x))
#endif

/* p = p * r + c */
FM__INLINE void fm__vf_horner(const int n, fm__vf *p, const fm__vf *r, float c) {
    FM__EACH(n) p[e] = fm__vf_mul(p[e], r[e]);
    FM__EACH(n) FM__SIMD_PIN(p[e]);
    FM__EACH(n) p[e] = fm__vf_add(p[e], fm__vf_set(c));
    FM__EACH(n) FM__SIMD_PIN(p[e]);
}

#ifndef FM__SIMD_POWERS
/* Rounds *x, below 2^22, to a whole number; gives 2 to the power of that, of -126..127. */
FM__INLINE fm__vf fm__vf_power(fm__vf *x) {
    const fm__vf magic = fm__vf_set(FM__ROUND_MAGIC), sum = fm__vf_add(*x, magic);
    *x = fm__vf_sub(sum, magic);
    return fm__vf_bits(fm__vi_add(fm__vi_left(fm__vi_bits(sum), 23), fm__vi_set(0x3F800000u)));
}
/* a times what fm__vf_power() gave. */
FM__INLINE fm__vf fm__vf_times_power(fm__vf a, fm__vf power) {
    return fm__vf_mul(a, power);
}
/* a - n * FM__LN2_HI, n whole: the product is exact, so that fusing is free to do. */
FM__INLINE fm__vf fm__vf_less_ln2_high(fm__vf a, fm__vf n) {
    return fm__vf_sub(a, fm__vf_mul(n, fm__vf_set(FM__LN2_HI)));
}
#endif

FM__INLINE void fm__vf_exp(const int n, fm__vf *x) {
    fm__vf whole[FM__VF_CHAINS], power[FM__VF_CHAINS], r[FM__VF_CHAINS], p[FM__VF_CHAINS];
    FM__EACH(n) whole[e] = fm__vf_mul(x[e], fm__vf_set(FM__LOG2E));
    FM__EACH(n) power[e] = fm__vf_power(&whole[e]);
    FM__EACH(n) r[e] = fm__vf_less_ln2_high(x[e], whole[e]);
    FM__EACH(n) r[e] = fm__vf_sub(r[e], fm__vf_mul(whole[e], fm__vf_set(FM__LN2_LO)));
    FM__EACH(n) FM__SIMD_PIN(r[e]);
    FM__EACH(n) p[e] = fm__vf_set(FM__EXP_C0);
    fm__vf_horner(n, p, r, FM__EXP_C1);
    fm__vf_horner(n, p, r, FM__EXP_C2);
    fm__vf_horner(n, p, r, FM__EXP_C3);
    fm__vf_horner(n, p, r, FM__EXP_C4);
    fm__vf_horner(n, p, r, FM__EXP_C5);
    FM__EACH(n) p[e] = fm__vf_mul(p[e], fm__vf_mul(r[e], r[e]));
    FM__EACH(n) FM__SIMD_PIN(p[e]);
    FM__EACH(n) p[e] = fm__vf_add(p[e], r[e]);
    FM__EACH(n) FM__SIMD_PIN(p[e]);
    FM__EACH(n) p[e] = fm__vf_add(p[e], fm__vf_set(1.0f));
    FM__EACH(n) FM__SIMD_PIN(p[e]);
    FM__EACH(n) x[e] = fm__vf_times_power(p[e], power[e]);
}

FM__INLINE void fm__vf_exp_softmax(const int n, fm__vf *x) {
    fm__vm small[FM__VF_CHAINS];
    FM__EACH(n) small[e] = fm__vf_less(x[e], fm__vf_set(-24.0f));
    fm__vf_exp(n, x);
    FM__EACH(n) x[e] = fm__vf_select(small[e], fm__vf_zero(), x[e]);
}

FM__INLINE void fm__vf_sigmoid(const int n, fm__vf *x) {
    const fm__vf low = fm__vf_set(-87.0f), high = fm__vf_set(87.0f);
    FM__EACH(n) x[e] = fm__vf_select(fm__vf_less(x[e], low), low, x[e]);
    FM__EACH(n) x[e] = fm__vf_select(fm__vf_less(high, x[e]), high, x[e]);
    /* -x, by its sign bit: adding 2^31 flips it */
    FM__EACH(n) x[e] = fm__vf_bits(fm__vi_add(fm__vi_bits(x[e]), fm__vi_set(0x80000000u)));
    fm__vf_exp(n, x);
    FM__EACH(n) x[e] = fm__vf_add(fm__vf_set(1.0f), x[e]);
    fm__vf_rcp(n, x);
}

FM__INLINE void fm__vf_silu(const int n, fm__vf *x) {
    fm__vf t[FM__VF_CHAINS];
    FM__EACH(n) t[e] = x[e];
    fm__vf_sigmoid(n, t);
    FM__EACH(n) x[e] = fm__vf_mul(x[e], t[e]);
}

FM__INLINE void fm__vf_gelu(const int n, fm__vf *x) {
    fm__vf t[FM__VF_CHAINS];
    FM__EACH(n) t[e] = fm__vf_mul(fm__vf_mul(x[e], x[e]), x[e]);
    FM__EACH(n) t[e] = fm__vf_mul(t[e], fm__vf_set(0.044715f));
    FM__EACH(n) t[e] = fm__vf_add(x[e], t[e]);
    FM__EACH(n) t[e] = fm__vf_mul(t[e], fm__vf_set(1.5957691216f));
    fm__vf_sigmoid(n, t);
    FM__EACH(n) x[e] = fm__vf_mul(x[e], t[e]);
}

/* +0 where the magnitude is below 2^-64. */
FM__INLINE fm__vf fm__vf_drop_tiny(fm__vf x) {
    return fm__vf_keep(fm__vi_greater(fm__vi_magnitude(x), fm__vi_set(FM__TINY_BITS - 1)), x);
}

FM__INLINE fm__vf fm__vf_round_bits(fm__vf x, const int drop) {
    const fm__vi magnitude = fm__vi_magnitude(x);
    fm__vi u = fm__vi_bits(x);
    const fm__vi low = fm__vi_and(fm__vi_right(u, drop), fm__vi_set(1));
    u = fm__vi_add(u, fm__vi_set((1u << (drop - 1)) - 1u));
    u = fm__vi_add(u, low);
    u = fm__vi_and(u, fm__vi_set(~((1u << drop) - 1u)));
    u = fm__vi_select(fm__vi_greater(magnitude, fm__vi_set(0x7F7FFFFFu)), fm__vi_bits(x), u);
    return fm__vf_bits(fm__vi_keep(fm__vi_greater(magnitude, fm__vi_set(FM__TINY_BITS - 1)), u));
}

/* fm__vf_round_bits(x, 11) of +0, of 2^-64 <= x < 2^100 and of NaN: adding 2^11 times x's power of
   two leaves 13 bits of x, and rounds them to nearest even. */
FM__INLINE void fm__vf_round_13(const int n, fm__vf *x) {
    fm__vf large[FM__VF_CHAINS];
    FM__EACH(n)
    large[e] = fm__vf_bits(
        fm__vi_add(fm__vi_and(fm__vi_bits(x[e]), fm__vi_set(0x7F800000u)), fm__vi_set(11u << 23)));
    FM__EACH(n) x[e] = fm__vf_add(x[e], large[e]);
    FM__EACH(n) x[e] = fm__vf_sub(x[e], large[e]);
}

/* The bits of fm__kv_f16, upper halves clear. */
FM__INLINE fm__vi fm__vi_kv_f16(fm__vf x) {
    const fm__vi sign = fm__vi_and(fm__vi_right(fm__vi_bits(x), 16), fm__vi_set(0x8000));
    const fm__vi magnitude = fm__vi_magnitude(x);
    fm__vi u = fm__vi_min(magnitude, fm__vi_set(0x477FE000u)); /* 65504 */
    const fm__vi low = fm__vi_and(fm__vi_right(u, 13), fm__vi_set(1));
    u = fm__vi_add(fm__vi_add(u, fm__vi_set(0xFFF)), low);
    u = fm__vi_right(fm__vi_sub(u, fm__vi_set(0x38000000u)), 13);
    u = fm__vi_or(fm__vi_min(u, fm__vi_set(0x7BFF)), sign);
    u = fm__vi_keep(fm__vi_greater(magnitude, fm__vi_set(0x387FFFFFu)), u); /* below 2^-14: +0 */
    return fm__vi_select(fm__vi_greater(magnitude, fm__vi_set(0x7F800000u)), fm__vi_set(0x7E00), u);
}
