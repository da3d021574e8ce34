/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/dot_neon.h: sums of four products of bytes a lane, NEON, for cpu/body_attention_q8_0.h.
 *
 * Owns: nothing. Never does: anything but one operation a function. Included by: *_neon.c.
 *
 * Products of two codes are added in pairs within 16 bits. Weights are held less 2^15.
 */
#pragma once

#include "cpu/arm/simd_neon.h"

#define FM__DOT_VECTORS 1
#define FM__DOT_WORDS 1
#define FM__DOT_PLAIN 1

typedef struct fm__codes {
    int8x16_t v[4];
} fm__codes;

FM__INLINE fm__vf fm__vf_load_bf16(const uint16_t *p) {
    FM__ALL(fm__vf, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * h), 16)));
}
FM__INLINE fm__vf fm__vf_int(fm__vi a) {
    FM__ALL(fm__vf, vcvtq_f32_s32(a.v[h]));
}
FM__INLINE fm__codes fm__codes_load(const uint8_t *p) {
    FM__ALL(fm__codes, vreinterpretq_s8_u8(vld1q_u8(p + 16 * h)));
}

/* ---- keys ---- */

FM__INLINE fm__codes fm__keys_load(const uint8_t *p) {
    return fm__codes_load(p);
}
/* 32 codes of a query. */
FM__INLINE void fm__query_store(const int8_t *codes, uint32_t *to) {
    memcpy(to, codes, 32);
}
FM__INLINE int32_t fm__dot_start(fm__vi sums) {
    (void)sums;
    return 0;
}
FM__INLINE fm__vi fm__dot_keys(fm__vi sum, fm__codes keys, const uint32_t *query) {
    const int8x8_t q = vreinterpret_s8_u32(vdup_n_u32(*query));
    FM__ALL(fm__vi, vpadalq_s16(sum.v[h], vpaddq_s16(vmull_s8(vget_low_s8(keys.v[h]), q),
                                                     vmull_s8(vget_high_s8(keys.v[h]), q))));
}

/* ---- values ---- */

typedef fm__vi fm__dot_sum;

FM__INLINE fm__dot_sum fm__dot_zero(void) {
    return fm__vi_zero();
}
FM__INLINE fm__codes fm__values_load(const uint8_t *p) {
    return fm__codes_load(p);
}
/* 16 weights of 0..65536, the last of which becomes 65535. */
FM__INLINE void fm__weights_store(uint32_t *to, fm__vi weights) {
    uint16_t all[16];
    FM__UNROLL for (int h = 0; h < 4; h++)
        vst1_u16(all + 4 * h, veor_u16(vqmovun_s32(weights.v[h]), vdup_n_u16(0x8000)));
    memcpy(to, all, sizeof all);
}
FM__INLINE void fm__dot_values(fm__dot_sum *sum, fm__codes values, const uint32_t *weights) {
    const int16x4_t w = vld1_s16((const int16_t *)(const void *)weights);
    FM__UNROLL for (int h = 0; h < 4; h++) {
        const int16x8_t low = vmovl_s8(vget_low_s8(values.v[h]));
        const int16x8_t high = vmovl_s8(vget_high_s8(values.v[h]));
        const int32x4_t a =
            vpaddq_s32(vmull_s16(vget_low_s16(low), w), vmull_s16(vget_high_s16(low), w));
        const int32x4_t b =
            vpaddq_s32(vmull_s16(vget_low_s16(high), w), vmull_s16(vget_high_s16(high), w));
        sum->v[h] = vaddq_s32(sum->v[h], vpaddq_s32(a, b));
    }
}
FM__INLINE fm__vi fm__dot_plain(fm__vi sum, fm__codes values) {
    FM__ALL(fm__vi, vpadalq_s16(sum.v[h], vpaddlq_s8(values.v[h])));
}
FM__INLINE fm__vi fm__dot_total(fm__dot_sum sum) {
    return sum;
}
