/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/dot_avx2.h: sums of four products of bytes a lane, AVX2, for cpu/body_attention_q8_0.h.
 *
 * Owns: nothing. Never does: anything but one operation a function. Included by: *_avx2.c.
 *
 * Bytes are widened to 16 bits, even and odd ones apart, which vpmaddwd multiplies and adds in
 * pairs: nothing saturates. Weights are held less 2^15.
 */
#pragma once

#include "cpu/x86/simd_avx2.h"

/* Sums, codes in halves and two pairs of a query fill the registers. */
#undef FM__SIMD_QUERIES
#define FM__SIMD_QUERIES 4
#define FM__DOT_VECTORS 1
#define FM__DOT_WORDS 2
#define FM__DOT_PLAIN 1

typedef struct fm__codes {
    __m256i even[2], odd[2]; /* bytes 0 and 2, and 1 and 3, of each lane, as int16 */
} fm__codes;

FM__INLINE fm__vf fm__vf_load_bf16(const uint16_t *p) {
    FM__BOTH_F(_mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 8 * h))), 16)));
}
FM__INLINE fm__vf fm__vf_int(fm__vi a) {
    FM__BOTH_F(_mm256_cvtepi32_ps(a.v[h]));
}

FM__INLINE fm__codes fm__codes_load(const uint8_t *p) {
    fm__codes r;
    FM__UNROLL for (int h = 0; h < 2; h++) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * h));
        r.even[h] = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
        r.odd[h] = _mm256_srai_epi16(x, 8);
    }
    return r;
}
/* sum += the even codes times the pair in words[0], and the odd ones times that in words[1]. */
FM__INLINE fm__vi fm__dot_pairs(fm__vi sum, fm__codes codes, const uint32_t *words) {
    const __m256i even = _mm256_set1_epi32((int)words[0]), odd = _mm256_set1_epi32((int)words[1]);
    FM__BOTH_I(_mm256_add_epi32(_mm256_add_epi32(sum.v[h], _mm256_madd_epi16(codes.even[h], even)),
                                _mm256_madd_epi16(codes.odd[h], odd)));
}

/* ---- keys ---- */

FM__INLINE fm__codes fm__keys_load(const uint8_t *p) {
    return fm__codes_load(p);
}
/* 32 codes of a query: of each four the first and third, then the second and fourth. */
FM__INLINE void fm__query_store(const int8_t *codes, uint32_t *to) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
    const __m256i odd = _mm256_srai_epi16(x, 8);
    const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(to + 8), _mm256_permute2x128_si256(low, high, 0x31));
}
FM__INLINE int32_t fm__dot_start(fm__vi sums) {
    (void)sums;
    return 0;
}
FM__INLINE fm__vi fm__dot_keys(fm__vi sum, fm__codes keys, const uint32_t *query) {
    return fm__dot_pairs(sum, keys, query);
}

/* ---- values ---- */

typedef fm__vi fm__dot_sum;

FM__INLINE fm__dot_sum fm__dot_zero(void) {
    return fm__vi_zero();
}
FM__INLINE fm__codes fm__values_load(const uint8_t *p) {
    return fm__codes_load(p);
}
/* 16 weights of 0..65536, the last of which becomes 65535, in the order of fm__query_store. */
FM__INLINE void fm__weights_store(uint32_t *to, fm__vi weights) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0,
                                           1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m256i x = _mm256_packus_epi32(weights.v[0], weights.v[1]);
    x = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(x, 0xD8), order);
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm256_xor_si256(x, _mm256_set1_epi16((int16_t)0x8000)));
}
FM__INLINE void fm__dot_values(fm__dot_sum *sum, fm__codes values, const uint32_t *weights) {
    *sum = fm__dot_pairs(*sum, values, weights);
}
FM__INLINE fm__vi fm__dot_plain(fm__vi sum, fm__codes values) {
    const __m256i one = _mm256_set1_epi16(1);
    FM__BOTH_I(_mm256_add_epi32(
        sum.v[h], _mm256_madd_epi16(_mm256_add_epi16(values.even[h], values.odd[h]), one)));
}
FM__INLINE fm__vi fm__dot_total(fm__dot_sum sum) {
    return sum;
}
