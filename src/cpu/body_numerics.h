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

FM__INLINE fm__vf fm__vf_rcp(fm__vf x) {
    fm__vf y = fm__vf_bits(fm__vi_sub(fm__vi_set(0x7EF311C7u), fm__vi_bits(x)));
    FM__UNROLL for (int i = 0; i < 3; i++) {
        const fm__vf t = fm__vf_sub(fm__vf_set(2.0f), fm__vf_mul(x, y));
        y = fm__vf_mul(y, t);
    }
    return y;
}

FM__INLINE fm__vf fm__vf_exp(fm__vf x) {
    const fm__vf magic = fm__vf_set(FM__ROUND_MAGIC);
    fm__vf n = fm__vf_add(fm__vf_mul(x, fm__vf_set(FM__LOG2E)), magic);
    const fm__vf power =
        fm__vf_bits(fm__vi_add(fm__vi_left(fm__vi_bits(n), 23), fm__vi_set(0x3F800000u)));
    n = fm__vf_sub(n, magic);
    fm__vf r = fm__vf_sub(x, fm__vf_mul(n, fm__vf_set(FM__LN2_HI)));
    r = fm__vf_sub(r, fm__vf_mul(n, fm__vf_set(FM__LN2_LO)));
    fm__vf p = fm__vf_set(FM__EXP_C0);
    p = fm__vf_add(fm__vf_mul(p, r), fm__vf_set(FM__EXP_C1));
    p = fm__vf_add(fm__vf_mul(p, r), fm__vf_set(FM__EXP_C2));
    p = fm__vf_add(fm__vf_mul(p, r), fm__vf_set(FM__EXP_C3));
    p = fm__vf_add(fm__vf_mul(p, r), fm__vf_set(FM__EXP_C4));
    p = fm__vf_add(fm__vf_mul(p, r), fm__vf_set(FM__EXP_C5));
    p = fm__vf_mul(p, fm__vf_mul(r, r));
    p = fm__vf_add(p, r);
    p = fm__vf_add(p, fm__vf_set(1.0f));
    return fm__vf_mul(p, power);
}

FM__INLINE fm__vf fm__vf_exp_softmax(fm__vf x) {
    return fm__vf_select(fm__vf_less(x, fm__vf_set(-24.0f)), fm__vf_zero(), fm__vf_exp(x));
}

FM__INLINE fm__vf fm__vf_sigmoid(fm__vf x) {
    const fm__vf low = fm__vf_set(-87.0f), high = fm__vf_set(87.0f);
    fm__vf c = fm__vf_select(fm__vf_less(x, low), low, x);
    c = fm__vf_select(fm__vf_less(high, c), high, c);
    /* -c, by its sign bit: adding 2^31 flips it */
    c = fm__vf_bits(fm__vi_add(fm__vi_bits(c), fm__vi_set(0x80000000u)));
    return fm__vf_rcp(fm__vf_add(fm__vf_set(1.0f), fm__vf_exp(c)));
}

FM__INLINE fm__vf fm__vf_silu(fm__vf x) {
    return fm__vf_mul(x, fm__vf_sigmoid(x));
}

FM__INLINE fm__vf fm__vf_gelu(fm__vf x) {
    fm__vf t = fm__vf_mul(fm__vf_mul(x, x), x);
    t = fm__vf_mul(t, fm__vf_set(0.044715f));
    t = fm__vf_add(x, t);
    t = fm__vf_mul(t, fm__vf_set(1.5957691216f));
    return fm__vf_mul(x, fm__vf_sigmoid(t));
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
