/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/numerics.h: the scalar functions of the identity contract (docs/numerics.md). Every rung and
 * every shader repeats these operations in this order; none of them calls libm or is contracted.
 */
#pragma once

#include "base/base.h"

#define FM__TINY 0x1p-64f         /* activations and accumulated outputs below it become 0 */
#define FM__HUGE 0x1p100f         /* absmax at or above it is an error */
#define FM__TINY_BITS 0x1F800000u /* their bits, for comparing with the sign cleared */
#define FM__HUGE_BITS 0x71800000u
#define FM__CACHE_TINY_BITS 0x34800000u /* 2^-22: 32 cache entries all below it are zeros */
#define FM__INV127 0x1.020408p-7f       /* 1/127 rounded: 0x3C010204 */

/* 1.5 * 2^23: (x + M) - M rounds |x| < 2^22 to nearest even */
#define FM__ROUND_MAGIC 12582912.0f

/* 1/x for normal x > 0, 2^-126 <= x <= 2^125.6: integer seed, three Newton steps; y stays normal.
   Infinite or NaN x: NaN. */
FM__INLINE float fm__rcp(float x) {
    float y = fm__bits_f32(0x7EF311C7u - fm__f32_bits(x));
    for (int i = 0; i < 3; i++) {
        float t = x * y;
        t = 2.0f - t;
        y = y * t;
    }
    return y;
}

/* 1/sqrt(x) for x >= 2^-125: integer seed, three Newton steps. h * y comes first, because y * y
   would be subnormal for a large x. Infinite or NaN x: not finite. */
FM__INLINE float fm__rsqrt(float x) {
    float y = fm__bits_f32(0x5F375A86u - (fm__f32_bits(x) >> 1));
    float h = 0.5f * x;
    for (int i = 0; i < 3; i++) {
        float t = h * y;
        t = t * y;
        t = 1.5f - t;
        y = y * t;
    }
    return y;
}

/* Horner coefficients of (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2, highest first. */
#define FM__EXP_C0 1.9875691500e-4f
#define FM__EXP_C1 1.3981999507e-3f
#define FM__EXP_C2 8.3334519073e-3f
#define FM__EXP_C3 4.1665795894e-2f
#define FM__EXP_C4 1.6666665459e-1f
#define FM__EXP_C5 5.0000001201e-1f
#define FM__LOG2E 1.44269504088896341f
#define FM__LN2_HI 0.693359375f
#define FM__LN2_LO -2.12194440e-4f

/* exp(x) for |x| <= 87 (the caller clamps). exp(0) is exactly 1, NaN gives NaN. 2^n is built from
   the low bits of n + MAGIC and multiplied in: exact, since the result is normal (adding n << 23 to
   p's bits gives the same). */
FM__INLINE float fm__exp_f32(float x) {
    float n = x * FM__LOG2E;
    n = n + FM__ROUND_MAGIC;
    float power = fm__bits_f32((fm__f32_bits(n) << 23) + 0x3F800000u); /* 2^n */
    n = n - FM__ROUND_MAGIC;
    float r = x - n * FM__LN2_HI;
    r = r - n * FM__LN2_LO;
    float p = FM__EXP_C0;
    p = p * r + FM__EXP_C1;
    p = p * r + FM__EXP_C2;
    p = p * r + FM__EXP_C3;
    p = p * r + FM__EXP_C4;
    p = p * r + FM__EXP_C5;
    float r2 = r * r;
    p = p * r2;
    p = p + r;
    p = p + 1.0f;
    return p * power;
}

/* exp for softmax, x <= 0: 0 below -24. */
FM__INLINE float fm__exp_softmax(float x) {
    return x < -24.0f ? 0.0f : fm__exp_f32(x);
}

/* 1 / (1 + exp(-x)), x clamped to +-87. */
FM__INLINE float fm__sigmoid(float x) {
    float c = x < -87.0f ? -87.0f : x;
    c = c > 87.0f ? 87.0f : c;
    float e = fm__exp_f32(-c);
    return fm__rcp(1.0f + e);
}

FM__INLINE float fm__silu(float x) {
    return x * fm__sigmoid(x);
}

/* tanh form: x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)). */
FM__INLINE float fm__gelu(float x) {
    float t = x * x;
    t = t * x;
    t = t * 0.044715f;
    t = x + t;
    t = t * 1.5957691216f;
    return x * fm__sigmoid(t);
}

/* Keeps the `drop` lowest mantissa bits clear: integer round to nearest even, exponent carried.
   drop 11 leaves 13 significant bits, 8 leaves 16, 16 leaves bf16's 8. Below 2^-64: +0. Infinities
   and NaN stay. */
FM__INLINE float fm__round_bits(float x, int drop) {
    uint32_t u = fm__f32_bits(x);
    if ((u & 0x7FFFFFFFu) < FM__TINY_BITS)
        return 0.0f;
    if ((u & 0x7FFFFFFFu) >= 0x7F800000u)
        return x;
    uint32_t low = (u >> drop) & 1u;
    u += (1u << (drop - 1)) - 1u + low;
    u &= ~((1u << drop) - 1u);
    return fm__bits_f32(u);
}

/* f16 bits for a K or V entry: below 2^-14 is +0, clamped to +-65504 (infinities too), round to
   nearest even. NaN becomes 0x7E00, so that the next quantiser can report it. */
FM__INLINE uint16_t fm__kv_f16(float x) {
    uint32_t u = fm__f32_bits(x), s = (u >> 16) & 0x8000u;
    u &= 0x7FFFFFFFu;
    if (u < 0x38800000u) /* 2^-14 */
        return 0;
    if (u > 0x7F800000u) /* NaN */
        return 0x7E00;
    if (u >= 0x477FE000u) /* 65504 and above */
        return (uint16_t)(s | 0x7BFFu);
    uint32_t low = (u >> 13) & 1u;
    u += 0xFFFu + low;
    u = (u - 0x38000000u) >> 13;
    return (uint16_t)(s | (u > 0x7BFFu ? 0x7BFFu : u));
}

/* The scale, as bf16 bits, of cache entries whose largest magnitude has these bits: 0 below 2^-22,
   NaN from 2^100 on, so that the next quantiser can report it. */
FM__INLINE uint16_t fm__kv_scale(uint32_t most) {
    if (most < FM__CACHE_TINY_BITS)
        return 0;
    if (most >= FM__HUGE_BITS)
        return 0x7FC0;
    return (uint16_t)(fm__f32_bits(fm__round_bits(fm__bits_f32(most) * FM__INV127, 16)) >> 16);
}

/* What entries are multiplied with before they are rounded to codes. */
FM__INLINE float fm__kv_inverse(uint16_t scale) {
    return scale == 0 || scale == 0x7FC0 ? 0.0f : fm__rcp(fm__bits_f32((uint32_t)scale << 16));
}
