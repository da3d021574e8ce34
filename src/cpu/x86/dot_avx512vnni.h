/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/dot_avx512vnni.h: sums of four products of bytes a lane, AVX-512 VNNI, for
 * cpu/body_attention_q8_0.h.
 *
 * Owns: nothing. Never does: anything but one operation a function. Included by: *_avx512vnni.c.
 *
 * vpdpbusd multiplies unsigned with signed bytes: keys are made unsigned by adding 128, which the
 * start of a sum takes back; a weight is two unsigned bytes.
 */
#pragma once

#include "cpu/x86/simd_avx512.h"

#define FM__DOT_VECTORS 2
#define FM__DOT_WORDS 1
#define FM__DOT_PLAIN 0

typedef __m512i fm__codes;

FM__INLINE fm__vf fm__vf_load_bf16(const uint16_t *p) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
FM__INLINE fm__vf fm__vf_int(fm__vi a) {
    return _mm512_cvtepi32_ps(a);
}

/* ---- keys ---- */

FM__INLINE fm__codes fm__keys_load(const uint8_t *p) {
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80));
}
/* 32 codes of a query. */
FM__INLINE void fm__query_store(const int8_t *codes, uint32_t *to) {
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm256_loadu_si256((const __m256i *)(const void *)codes));
}
/* Where a sum begins, from the lanes' sums of the query's codes. */
FM__INLINE int32_t fm__dot_start(fm__vi sums) {
    return -128 * _mm512_reduce_add_epi32(sums);
}
FM__INLINE fm__vi fm__dot_keys(fm__vi sum, fm__codes keys, const uint32_t *query) {
    return _mm512_dpbusd_epi32(sum, keys, _mm512_set1_epi32((int)*query));
}

/* ---- values ---- */

typedef struct fm__dot_sum {
    __m512i high, low; /* of the weights' bytes */
} fm__dot_sum;

FM__INLINE fm__dot_sum fm__dot_zero(void) {
    return (fm__dot_sum){_mm512_setzero_si512(), _mm512_setzero_si512()};
}
FM__INLINE fm__codes fm__values_load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}
/* 16 weights of 0..65536, the last of which becomes 65535: for each four the high bytes, then the
   low ones. */
FM__INLINE void fm__weights_store(uint32_t *to, fm__vi weights) {
    const __m512i bytes =
        _mm512_shuffle_epi8(_mm512_min_epi32(weights, _mm512_set1_epi32(65535)),
                            _mm512_broadcast_i32x4(_mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1,
                                                                 -1, -1, -1, -1, -1, -1)));
    const __m512i first = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm512_castsi512_si256(_mm512_permutexvar_epi64(first, bytes)));
}
FM__INLINE void fm__dot_values(fm__dot_sum *sum, fm__codes values, const uint32_t *weights) {
    sum->high = _mm512_dpbusd_epi32(sum->high, _mm512_set1_epi32((int)weights[0]), values);
    sum->low = _mm512_dpbusd_epi32(sum->low, _mm512_set1_epi32((int)weights[1]), values);
}
FM__INLINE fm__vi fm__dot_plain(fm__vi sum, fm__codes values) {
    (void)values;
    return sum;
}
FM__INLINE fm__vi fm__dot_total(fm__dot_sum sum) {
    return _mm512_add_epi32(_mm512_slli_epi32(sum.high, 8), sum.low);
}
