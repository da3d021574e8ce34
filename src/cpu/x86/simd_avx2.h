/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/simd_avx2.h: sixteen lanes for the shared bodies (cpu/body_*.h), AVX2 with FMA and F16C.
 *
 * Owns: nothing. Never does: anything but one operation a function. Included by: *_avx2.c.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "base/base.h"
#include "cpu/unroll.h"

typedef struct fm__vf { /* 16 floats */
    __m256 v[2];
} fm__vf;
typedef struct fm__vi { /* 16 int32 */
    __m256i v[2];
} fm__vi;
typedef fm__vi fm__vm; /* 16 truth values: all bits or none */

/* Attention: queries of a tile, and vectors of running sums that fit the registers. */
#define FM__SIMD_QUERIES 6
#define FM__SIMD_SUMS 6

/* Each operation on both halves. */
#define FM__BOTH_F(expression)                                                                     \
    fm__vf r;                                                                                      \
    FM__UNROLL for (int h = 0; h < 2; h++) r.v[h] = (expression);                                  \
    return r
#define FM__BOTH_I(expression)                                                                     \
    fm__vi r;                                                                                      \
    FM__UNROLL for (int h = 0; h < 2; h++) r.v[h] = (expression);                                  \
    return r

/* ---- floats ---- */

FM__INLINE fm__vf fm__vf_zero(void) {
    FM__BOTH_F(_mm256_setzero_ps());
}
FM__INLINE fm__vf fm__vf_set(float x) {
    FM__BOTH_F(_mm256_set1_ps(x));
}
FM__INLINE fm__vf fm__vf_load(const float *p) {
    FM__BOTH_F(_mm256_loadu_ps(p + 8 * h));
}
FM__INLINE void fm__vf_store(float *p, fm__vf x) {
    _mm256_storeu_ps(p, x.v[0]);
    _mm256_storeu_ps(p + 8, x.v[1]);
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
    FM__BOTH_F(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8 * h))));
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
    const __m256 x = _mm256_loadu_ps(p);
    FM__BOTH_F(_mm256_permutevar8x32_ps(x, h ? _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)
                                             : _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
}
FM__INLINE fm__vf fm__vf_add(fm__vf a, fm__vf b) {
    FM__BOTH_F(_mm256_add_ps(a.v[h], b.v[h]));
}
FM__INLINE fm__vf fm__vf_sub(fm__vf a, fm__vf b) {
    FM__BOTH_F(_mm256_sub_ps(a.v[h], b.v[h]));
}
FM__INLINE fm__vf fm__vf_mul(fm__vf a, fm__vf b) {
    FM__BOTH_F(_mm256_mul_ps(a.v[h], b.v[h]));
}
/* a * b + c, fused: only where the product is exact. */
FM__INLINE fm__vf fm__vf_fma(fm__vf a, fm__vf b, fm__vf c) {
    FM__BOTH_F(_mm256_fmadd_ps(a.v[h], b.v[h], c.v[h]));
}
/* a - b in even lanes, a + b in odd ones */
FM__INLINE fm__vf fm__vf_sub_add(fm__vf a, fm__vf b) {
    FM__BOTH_F(_mm256_addsub_ps(a.v[h], b.v[h]));
}
/* Swaps the lanes of each pair. */
FM__INLINE fm__vf fm__vf_swap(fm__vf a) {
    FM__BOTH_F(_mm256_permute_ps(a.v[h], 0xB1));
}
FM__INLINE fm__vm fm__vf_less(fm__vf a, fm__vf b) {
    FM__BOTH_I(_mm256_castps_si256(_mm256_cmp_ps(a.v[h], b.v[h], _CMP_LT_OQ)));
}
FM__INLINE fm__vf fm__vf_select(fm__vm m, fm__vf yes, fm__vf no) {
    FM__BOTH_F(_mm256_blendv_ps(no.v[h], yes.v[h], _mm256_castsi256_ps(m.v[h])));
}
/* a where m, else 0 */
FM__INLINE fm__vf fm__vf_keep(fm__vm m, fm__vf a) {
    FM__BOTH_F(_mm256_and_ps(_mm256_castsi256_ps(m.v[h]), a.v[h]));
}
/* The larger in each lane; b where a is NaN. */
FM__INLINE fm__vf fm__vf_max(fm__vf a, fm__vf b) {
    FM__BOTH_F(_mm256_max_ps(a.v[h], b.v[h]));
}
FM__INLINE float fm__vf_largest(fm__vf a) {
    const __m256 x = _mm256_max_ps(a.v[0], a.v[1]);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
/* s[l] += s[l + w] for w = 8, 4, 2, 1; lane 0. */
FM__INLINE float fm__vf_tree(fm__vf s) {
    const __m256 a = _mm256_add_ps(s.v[0], s.v[1]);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* ---- integers ---- */

FM__INLINE fm__vi fm__vi_zero(void) {
    FM__BOTH_I(_mm256_setzero_si256());
}
FM__INLINE fm__vi fm__vi_set(uint32_t x) {
    FM__BOTH_I(_mm256_set1_epi32((int)x));
}
FM__INLINE fm__vi fm__vi_load(const uint32_t *p) {
    FM__BOTH_I(_mm256_loadu_si256((const __m256i *)(const void *)(p + 8 * h)));
}
FM__INLINE void fm__vi_store(uint32_t *p, fm__vi a) {
    FM__UNROLL for (int h = 0; h < 2; h++)
        _mm256_storeu_si256((__m256i *)(void *)(p + 8 * h), a.v[h]);
}
FM__INLINE fm__vi fm__vi_bits(fm__vf a) {
    FM__BOTH_I(_mm256_castps_si256(a.v[h]));
}
FM__INLINE fm__vf fm__vf_bits(fm__vi a) {
    FM__BOTH_F(_mm256_castsi256_ps(a.v[h]));
}
/* Rounds to nearest even. */
FM__INLINE fm__vi fm__vi_round(fm__vf a) {
    FM__BOTH_I(_mm256_cvtps_epi32(a.v[h]));
}
FM__INLINE fm__vi fm__vi_add(fm__vi a, fm__vi b) {
    FM__BOTH_I(_mm256_add_epi32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_sub(fm__vi a, fm__vi b) {
    FM__BOTH_I(_mm256_sub_epi32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_and(fm__vi a, fm__vi b) {
    FM__BOTH_I(_mm256_and_si256(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_or(fm__vi a, fm__vi b) {
    FM__BOTH_I(_mm256_or_si256(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_left(fm__vi a, const int n) {
    FM__BOTH_I(_mm256_slli_epi32(a.v[h], n));
}
FM__INLINE fm__vi fm__vi_right(fm__vi a, const int n) {
    FM__BOTH_I(_mm256_srli_epi32(a.v[h], n));
}
/* Signed. */
FM__INLINE fm__vi fm__vi_max(fm__vi a, fm__vi b) {
    FM__BOTH_I(_mm256_max_epi32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_min(fm__vi a, fm__vi b) {
    FM__BOTH_I(_mm256_min_epi32(a.v[h], b.v[h]));
}
FM__INLINE fm__vm fm__vi_greater(fm__vi a, fm__vi b) {
    FM__BOTH_I(_mm256_cmpgt_epi32(a.v[h], b.v[h]));
}
FM__INLINE fm__vi fm__vi_select(fm__vm m, fm__vi yes, fm__vi no) {
    FM__BOTH_I(_mm256_blendv_epi8(no.v[h], yes.v[h], m.v[h]));
}
FM__INLINE fm__vi fm__vi_keep(fm__vm m, fm__vi a) {
    FM__BOTH_I(_mm256_and_si256(m.v[h], a.v[h]));
}
FM__INLINE int32_t fm__vi_largest(fm__vi a) {
    const __m256i x = _mm256_max_epi32(a.v[0], a.v[1]);
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 0xB1)));
}
/* Lane l: all lanes of x[l] taken together, by halves, pairs and lanes. */
#define FM__SIMD_EACH(combine)                                                                     \
    fm__vi r;                                                                                      \
    FM__UNROLL for (int h = 0; h < 2; h++) {                                                       \
        __m256i half[4], pair[2];                                                                  \
        FM__UNROLL for (int e = 0; e < 4; e++) {                                                   \
            const __m256i lo = combine(x[8 * h + e].v[0], x[8 * h + e].v[1]);                      \
            const __m256i hi = combine(x[8 * h + 4 + e].v[0], x[8 * h + 4 + e].v[1]);              \
            half[e] = combine(_mm256_permute2x128_si256(lo, hi, 0x20),                             \
                              _mm256_permute2x128_si256(lo, hi, 0x31));                            \
        }                                                                                          \
        FM__UNROLL for (int i = 0; i < 2; i++) pair[i] =                                           \
            combine(_mm256_unpacklo_epi64(half[2 * i], half[2 * i + 1]),                           \
                    _mm256_unpackhi_epi64(half[2 * i], half[2 * i + 1]));                          \
        const __m256 even = _mm256_castsi256_ps(pair[0]), odd = _mm256_castsi256_ps(pair[1]);      \
        r.v[h] = combine(_mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0x88)),                  \
                         _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xDD)));                 \
    }                                                                                              \
    return r

/* Lane l: the largest lane of x[l]. */
FM__INLINE fm__vi fm__vi_largest_each(const fm__vi x[16]) {
    FM__SIMD_EACH(_mm256_max_epi32);
}
/* Lane l: the sum of x[l]'s lanes. */
FM__INLINE fm__vi fm__vi_total_each(const fm__vi x[16]) {
    FM__SIMD_EACH(_mm256_add_epi32);
}
/* 16 int16 from values within uint16 (the upper halves of a are clear) or, signed, within int16. */
FM__INLINE __m256i fm__simd_narrow(__m256i low, __m256i high, const bool is_signed) {
    const __m256i both = is_signed ? _mm256_packs_epi32(low, high) : _mm256_packus_epi32(low, high);
    return _mm256_permute4x64_epi64(both, 0xD8);
}
/* 16 bytes from values within int8. */
FM__INLINE void fm__vi_store_int8(int8_t *p, fm__vi a) {
    const __m256i x = fm__simd_narrow(a.v[0], a.v[1], true);
    const __m128i y = _mm_packs_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storeu_si128((__m128i *)(void *)p, y);
}
/* The first n; upper halves must be clear. */
FM__INLINE void fm__vi_store_uint16_first(uint16_t *p, size_t n, fm__vi a) {
    const __m256i x = fm__simd_narrow(a.v[0], a.v[1], false);
    if (n >= 16) {
        _mm256_storeu_si256((__m256i *)(void *)p, x);
        return;
    }
    uint16_t all[16];
    _mm256_storeu_si256((__m256i *)(void *)all, x);
    memcpy(p, all, n * sizeof(uint16_t));
}
/* Lanes begin..end (0..15, both included). */
FM__INLINE fm__vm fm__vm_range(uint32_t begin, uint32_t end) {
    const __m256i b = _mm256_set1_epi32((int)begin), e = _mm256_set1_epi32((int)end);
    const __m256i eight = _mm256_set1_epi32(8);
    const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i lane[2] = {low, _mm256_add_epi32(low, eight)};
    FM__BOTH_I(_mm256_andnot_si256(
        _mm256_or_si256(_mm256_cmpgt_epi32(b, lane[h]), _mm256_cmpgt_epi32(lane[h], e)),
        _mm256_set1_epi32(-1)));
}
