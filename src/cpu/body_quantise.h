/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_quantise.h: activations into the forms that linear layers read, for any simd header.
 *
 * Owns: nothing. Never does: weights. Included by: the quantise_* file of each rung, whose
 * functions it implements. Bits: docs/numerics.md, "Activations".
 */
#pragma once

#include "cpu/body_numerics.h"
#include "cpu/cpu.h"

/* Chunks of 32 values are taken sixteen at a time, so that one tree of shuffles reduces all of
   them. count: 16 or fewer; a lane beyond it gets 0. */

/* Lane c: the largest magnitude of chunk c, as bits. */
FM__INLINE fm__vi fm__body_largest(const float *x, size_t count) {
    fm__vi most[16];
    FM__UNROLL for (int c = 0; c < 16; c++) most[c] =
        (size_t)c < count ? fm__vi_max(fm__vi_magnitude(fm__vf_load(x + 32 * c)),
                                       fm__vi_magnitude(fm__vf_load(x + 32 * c + 16)))
                          : fm__vi_zero();
    return fm__vi_largest_each(most);
}

/* 16 values times factor, rounded to nearest even and stored. They need no clamp: factor is 127
   over a value at least as large as all of these, 2 units in the last place off at most, so that
   nothing rounds to more than 127. */
FM__INLINE fm__vi fm__body_store16(const float *x, fm__vf factor, int8_t *q) {
    const fm__vi i = fm__vi_round(fm__vf_mul(fm__vf_load(x), factor));
    fm__vi_store_int8(q, i);
    return i;
}

/* Values of any sign, within int16. */
FM__INLINE void fm__body_store_sums(fm__vi sums, int16_t *out, size_t count) {
    fm__vi_store_uint16_first((uint16_t *)out, count, fm__vi_and(sums, fm__vi_set(0xFFFF)));
}

FM__INLINE bool fm__body_q8_32_chunks(const float *x, size_t count, int8_t *q, float *d,
                                      int16_t *sum) {
    const fm__vi most = fm__body_largest(x, count);
    if ((uint32_t)fm__vi_largest(most) >= FM__HUGE_BITS)
        return false;
    const fm__vm some = fm__vi_greater(most, fm__vi_set(FM__TINY_BITS - 1));
    const fm__vf a = fm__vf_bits(most);
    fm__vf inverse = a;
    fm__vf_rcp(1, &inverse);
    float factor[16];
    fm__vf_store(factor, fm__vf_keep(some, fm__vf_mul(fm__vf_set(127.0f), inverse)));
    fm__vf_store_first(d, count, fm__vf_keep(some, fm__vf_mul(a, fm__vf_set(FM__INV127))));
    fm__vi part[16];
    FM__UNROLL for (int c = 0; c < 16; c++) {
        part[c] = fm__vi_zero();
        if ((size_t)c < count) {
            const fm__vf f = fm__vf_set(factor[c]);
            part[c] = fm__body_store16(x + 32 * c, f, q + 32 * c);
            part[c] = fm__vi_add(part[c], fm__body_store16(x + 32 * c + 16, f, q + 32 * c + 16));
        }
    }
    fm__body_store_sums(fm__vi_total_each(part), sum, count);
    return true;
}

FM__INLINE bool fm__body_quantise_q8_32(const float *x, size_t k, const fm__act_layout *layout,
                                        uint8_t *row) {
    int8_t *const q = (int8_t *)row + layout->values;
    float *const d = (float *)(void *)(row + layout->d);
    int16_t *const sum = (int16_t *)(void *)(row + layout->sum);
    size_t b = 0;
    for (; b + 16 <= k / 32; b += 16)
        if (!fm__body_q8_32_chunks(x + b * 32, 16, q + b * 32, d + b, sum + b))
            return false;
    return b == k / 32 || fm__body_q8_32_chunks(x + b * 32, k / 32 - b, q + b * 32, d + b, sum + b);
}

/* The largest e of 0..3 for which chunk * 2^e <= whole. */
static inline int fm__body_exponent(float chunk, float whole) {
    return (chunk * 2.0f <= whole) + (chunk * 4.0f <= whole) + (chunk * 8.0f <= whole);
}

/* 256 values whose chunks' largest magnitudes are most[0..7]. */
FM__INLINE bool fm__body_q8_256_block(const float *x, const uint32_t *most, int8_t *q, float *d,
                                      int16_t *sum, uint8_t *shift) {
    uint32_t whole = 0;
    for (size_t c = 0; c < 8; c++)
        whole = most[c] > whole ? most[c] : whole;
    if (whole >= FM__HUGE_BITS)
        return false;
    const bool zero = whole < FM__TINY_BITS;
    const float a = fm__bits_f32(whole), inv = zero ? 0.0f : 127.0f * fm__rcp(a);
    *d = zero ? 0.0f : a * FM__INV127 * 0.125f;
    fm__vi part[16];
    FM__UNROLL for (int c = 0; c < 8; c++) {
        const int e = zero ? 3 : fm__body_exponent(fm__bits_f32(most[c]), a);
        /* x * (inv * 2^e) rounds as (x * inv) * 2^e does */
        const fm__vf f = fm__vf_set(inv * (float)(1 << e));
        shift[c] = (uint8_t)(3 - e);
        part[2 * c] = fm__body_store16(x + 32 * c, f, q + 32 * c);
        part[2 * c + 1] = fm__body_store16(x + 32 * c + 16, f, q + 32 * c + 16);
    }
    fm__body_store_sums(fm__vi_total_each(part), sum, 16);
    return true;
}

FM__INLINE bool fm__body_quantise_q8_256(const float *x, size_t k, const fm__act_layout *layout,
                                         uint8_t *row) {
    int8_t *const q = (int8_t *)row + layout->values;
    float *const d = (float *)(void *)(row + layout->d);
    int16_t *const sum = (int16_t *)(void *)(row + layout->sum);
    uint8_t *const shift = row + layout->shift;
    uint32_t most[16];
    for (size_t b = 0; b < k / 256; b++) {
        if (b % 2 == 0)
            fm__vi_store(most, b + 2 <= k / 256 ? fm__body_largest(x + b * 256, 16)
                                                : fm__body_largest(x + b * 256, 8));
        if (!fm__body_q8_256_block(x + b * 256, most + b % 2 * 8, q + b * 256, d + b, sum + b * 16,
                                   shift + b * 8))
            return false;
    }
    return true;
}

static inline bool fm__body_no_huge(fm__vi most) {
    return (uint32_t)fm__vi_largest(most) < FM__HUGE_BITS;
}

/* drop 0: F32. */
FM__INLINE bool fm__body_quantise_float(const float *x, size_t k, const int drop,
                                        const fm__act_layout *layout, uint8_t *row) {
    float *const out = (float *)(void *)(row + layout->values);
    fm__vi most = fm__vi_zero();
    for (size_t i = 0; i < k; i += 16) {
        const fm__vf v = fm__vf_load_first(x + i, k - i);
        most = fm__vi_max(most, fm__vi_magnitude(v));
        fm__vf_store_first(out + i, k - i,
                           drop ? fm__vf_round_bits(v, drop ? drop : 1) : fm__vf_drop_tiny(v));
    }
    return fm__body_no_huge(most);
}

FM__INLINE bool fm__body_quantise_bf16(const float *x, size_t k, const fm__act_layout *layout,
                                       uint8_t *row) {
    uint16_t *const out = (uint16_t *)(void *)(row + layout->values);
    fm__vi most = fm__vi_zero();
    for (size_t i = 0; i < k; i += 16) {
        const fm__vf v = fm__vf_load_first(x + i, k - i);
        most = fm__vi_max(most, fm__vi_magnitude(v));
        fm__vi_store_uint16_first(out + i, k - i,
                                  fm__vi_right(fm__vi_bits(fm__vf_round_bits(v, 16)), 16));
    }
    if (k % 2 != 0)
        out[k] = 0;
    return fm__body_no_huge(most);
}
