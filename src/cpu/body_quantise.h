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

/* The largest magnitude of 32 values, as bits. */
static inline uint32_t fm__body_largest32(const float *x) {
    return (uint32_t)fm__vi_largest(
        fm__vi_max(fm__vi_magnitude(fm__vf_load(x)), fm__vi_magnitude(fm__vf_load(x + 16))));
}

/* 16 values that have been scaled: rounded to nearest even, clamped, stored; returns their sum. */
static inline int fm__body_store16(fm__vf v, int8_t *q) {
    fm__vi i = fm__vi_round(v);
    i = fm__vi_min(i, fm__vi_set(127));
    i = fm__vi_max(i, fm__vi_set((uint32_t)-127));
    fm__vi_store_int8(q, i);
    return fm__vi_total(i);
}

FM__INLINE bool fm__body_quantise_q8_32(const float *x, size_t k, const fm__act_layout *layout,
                                        uint8_t *row) {
    int8_t *const q = (int8_t *)row + layout->values;
    float *const d = (float *)(void *)(row + layout->d);
    int16_t *const sum = (int16_t *)(void *)(row + layout->sum);
    const size_t blocks = k / 32;
    for (size_t b0 = 0; b0 < blocks; b0 += 16) { /* sixteen reciprocals at once */
        const size_t count = blocks - b0 < 16 ? blocks - b0 : 16;
        uint32_t most[16] = {0};
        for (size_t b = 0; b < count; b++) {
            most[b] = fm__body_largest32(x + (b0 + b) * 32);
            if (most[b] >= FM__HUGE_BITS)
                return false;
        }
        const fm__vi bits = fm__vi_load(most);
        const fm__vm some = fm__vi_greater(bits, fm__vi_set(FM__TINY_BITS - 1));
        const fm__vf a = fm__vf_bits(bits);
        float inv[16];
        fm__vf_store(inv, fm__vf_keep(some, fm__vf_mul(fm__vf_set(127.0f), fm__vf_rcp(a))));
        fm__vf_store_first(d + b0, count, fm__vf_keep(some, fm__vf_mul(a, fm__vf_set(FM__INV127))));
        for (size_t b = 0; b < count; b++) {
            const size_t at = (b0 + b) * 32;
            const fm__vf f = fm__vf_set(inv[b]);
            const int low = fm__body_store16(fm__vf_mul(fm__vf_load(x + at), f), q + at);
            const int high = fm__body_store16(fm__vf_mul(fm__vf_load(x + at + 16), f), q + at + 16);
            sum[b0 + b] = (int16_t)(low + high);
        }
    }
    return true;
}

/* The largest e of 0..3 for which chunk * 2^e <= whole. */
static inline int fm__body_exponent(float chunk, float whole) {
    return (chunk * 2.0f <= whole) + (chunk * 4.0f <= whole) + (chunk * 8.0f <= whole);
}

FM__INLINE bool fm__body_quantise_q8_256(const float *x, size_t k, const fm__act_layout *layout,
                                         uint8_t *row) {
    int8_t *const q = (int8_t *)row + layout->values;
    float *const d = (float *)(void *)(row + layout->d);
    int16_t *const sum = (int16_t *)(void *)(row + layout->sum);
    uint8_t *const shift = row + layout->shift;
    for (size_t b = 0; b < k / 256; b++) {
        uint32_t most[8], whole = 0;
        for (size_t c = 0; c < 8; c++) {
            most[c] = fm__body_largest32(x + b * 256 + c * 32);
            whole = most[c] > whole ? most[c] : whole;
        }
        if (whole >= FM__HUGE_BITS)
            return false;
        const bool zero = whole < FM__TINY_BITS;
        const float a = fm__bits_f32(whole), inv = zero ? 0.0f : 127.0f * fm__rcp(a);
        d[b] = zero ? 0.0f : a * FM__INV127 * 0.125f;
        for (size_t c = 0; c < 8; c++) {
            const int e = zero ? 3 : fm__body_exponent(fm__bits_f32(most[c]), a);
            const fm__vf f = fm__vf_set(inv), power = fm__vf_set((float)(1 << e));
            shift[b * 8 + c] = (uint8_t)(3 - e);
            for (size_t s = b * 16 + c * 2; s < b * 16 + c * 2 + 2; s++)
                sum[s] = (int16_t)fm__body_store16(
                    fm__vf_mul(fm__vf_mul(fm__vf_load(x + s * 16), f), power), q + s * 16);
        }
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
