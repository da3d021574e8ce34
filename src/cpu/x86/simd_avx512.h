/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/simd_avx512.h: sixteen lanes for the shared bodies (cpu/body_*.h), AVX-512.
 *
 * Owns: nothing. Never does: anything but one operation a function. Included by: *_avx512*.c.
 */
#pragma once

#include <immintrin.h>

#include "base/base.h"
#include "cpu/numerics.h"
#include "cpu/unroll.h"

typedef __m512 fm__vf;    /* 16 floats */
typedef __m512i fm__vi;   /* 16 int32 */
typedef __mmask16 fm__vm; /* 16 truth values */

/* Attention: queries of a tile, and vectors of running sums that fit the registers. */
#define FM__SIMD_QUERIES 7
#define FM__SIMD_SUMS 28

FM__INLINE __mmask16 fm__simd_first(size_t n) {
    return n >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << n) - 1u);
}

/* ---- floats ---- */

FM__INLINE fm__vf fm__vf_zero(void) {
    return _mm512_setzero_ps();
}
FM__INLINE fm__vf fm__vf_set(float x) {
    return _mm512_set1_ps(x);
}
FM__INLINE fm__vf fm__vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
FM__INLINE void fm__vf_store(float *p, fm__vf x) {
    _mm512_storeu_ps(p, x);
}
/* The first n values, 0 behind them; reads and writes no more than those. */
FM__INLINE fm__vf fm__vf_load_first(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(fm__simd_first(n), p);
}
FM__INLINE void fm__vf_store_first(float *p, size_t n, fm__vf x) {
    _mm512_mask_storeu_ps(p, fm__simd_first(n), x);
}
/* Widens f16. */
FM__INLINE fm__vf fm__vf_load_half(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
FM__INLINE fm__vf fm__vf_load_half_first(const uint16_t *p, size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(fm__simd_first(n), p));
}
/* p[0], p[0], p[1], p[1], ... p[7], p[7] */
FM__INLINE fm__vf fm__vf_load_twice(const float *p) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
FM__INLINE fm__vf fm__vf_add(fm__vf a, fm__vf b) {
    return _mm512_add_ps(a, b);
}
FM__INLINE fm__vf fm__vf_sub(fm__vf a, fm__vf b) {
    return _mm512_sub_ps(a, b);
}
FM__INLINE fm__vf fm__vf_mul(fm__vf a, fm__vf b) {
    return _mm512_mul_ps(a, b);
}
/* a * b + c, fused: only where the product is exact. */
FM__INLINE fm__vf fm__vf_fma(fm__vf a, fm__vf b, fm__vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* What cpu/body_numerics.h says of these three. */
#define FM__SIMD_POWERS
FM__INLINE fm__vf fm__vf_power(fm__vf *x) {
    *x = _mm512_roundscale_ps(*x, _MM_FROUND_TO_NEAREST_INT);
    return *x;
}
FM__INLINE fm__vf fm__vf_times_power(fm__vf a, fm__vf power) {
    return _mm512_scalef_ps(a, power);
}
FM__INLINE fm__vf fm__vf_less_ln2_high(fm__vf a, fm__vf n) {
    return _mm512_fnmadd_ps(n, _mm512_set1_ps(FM__LN2_HI), a);
}
#define FM__SIMD_PIN(x) __asm__ volatile("" : "+v"(x))
/* a - b in even lanes, a + b in odd ones */
FM__INLINE fm__vf fm__vf_sub_add(fm__vf a, fm__vf b) {
    return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b);
}
/* Swaps the lanes of each pair. */
FM__INLINE fm__vf fm__vf_swap(fm__vf a) {
    return _mm512_permute_ps(a, 0xB1);
}
FM__INLINE fm__vm fm__vf_less(fm__vf a, fm__vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
FM__INLINE fm__vf fm__vf_select(fm__vm m, fm__vf yes, fm__vf no) {
    return _mm512_mask_mov_ps(no, m, yes);
}
/* a where m, else 0 */
FM__INLINE fm__vf fm__vf_keep(fm__vm m, fm__vf a) {
    return _mm512_maskz_mov_ps(m, a);
}
/* The larger in each lane; b where a is NaN. */
FM__INLINE fm__vf fm__vf_max(fm__vf a, fm__vf b) {
    return _mm512_max_ps(a, b);
}
FM__INLINE float fm__vf_largest(fm__vf a) {
    return _mm512_reduce_max_ps(a);
}
/* s[l] += s[l + w] for w = 8, 4, 2, 1; lane 0. */
FM__INLINE float fm__vf_tree(fm__vf s) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* ---- integers ---- */

FM__INLINE fm__vi fm__vi_zero(void) {
    return _mm512_setzero_si512();
}
FM__INLINE fm__vi fm__vi_set(uint32_t x) {
    return _mm512_set1_epi32((int)x);
}
FM__INLINE fm__vi fm__vi_load(const uint32_t *p) {
    return _mm512_loadu_si512(p);
}
FM__INLINE void fm__vi_store(uint32_t *p, fm__vi a) {
    _mm512_storeu_si512(p, a);
}
FM__INLINE fm__vi fm__vi_bits(fm__vf a) {
    return _mm512_castps_si512(a);
}
FM__INLINE fm__vf fm__vf_bits(fm__vi a) {
    return _mm512_castsi512_ps(a);
}
/* Rounds to nearest even. */
FM__INLINE fm__vi fm__vi_round(fm__vf a) {
    return _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
FM__INLINE fm__vi fm__vi_add(fm__vi a, fm__vi b) {
    return _mm512_add_epi32(a, b);
}
FM__INLINE fm__vi fm__vi_sub(fm__vi a, fm__vi b) {
    return _mm512_sub_epi32(a, b);
}
FM__INLINE fm__vi fm__vi_and(fm__vi a, fm__vi b) {
    return _mm512_and_si512(a, b);
}
FM__INLINE fm__vi fm__vi_or(fm__vi a, fm__vi b) {
    return _mm512_or_si512(a, b);
}
FM__INLINE fm__vi fm__vi_left(fm__vi a, const int n) {
    return _mm512_slli_epi32(a, (unsigned)n);
}
FM__INLINE fm__vi fm__vi_right(fm__vi a, const int n) {
    return _mm512_srli_epi32(a, (unsigned)n);
}
/* Signed. */
FM__INLINE fm__vi fm__vi_max(fm__vi a, fm__vi b) {
    return _mm512_max_epi32(a, b);
}
FM__INLINE fm__vi fm__vi_min(fm__vi a, fm__vi b) {
    return _mm512_min_epi32(a, b);
}
FM__INLINE fm__vm fm__vi_greater(fm__vi a, fm__vi b) {
    return _mm512_cmpgt_epi32_mask(a, b);
}
FM__INLINE fm__vi fm__vi_select(fm__vm m, fm__vi yes, fm__vi no) {
    return _mm512_mask_mov_epi32(no, m, yes);
}
FM__INLINE fm__vi fm__vi_keep(fm__vm m, fm__vi a) {
    return _mm512_maskz_mov_epi32(m, a);
}
FM__INLINE int32_t fm__vi_largest(fm__vi a) {
    return _mm512_reduce_max_epi32(a);
}
/* Lane l: all lanes of x[l] taken together, by halves, quarters, pairs and lanes. */
#define FM__SIMD_EACH(combine)                                                                     \
    fm__vi half[8], quarter[4], pair[2];                                                           \
    FM__UNROLL for (int e = 0; e < 4; e++) FM__UNROLL for (int b = 0; b < 2; b++) {                \
        const fm__vi lo = x[8 * b + e], hi = x[8 * b + 4 + e];                                     \
        half[2 * e + b] =                                                                          \
            combine(_mm512_shuffle_i32x4(lo, hi, 0x44), _mm512_shuffle_i32x4(lo, hi, 0xEE));       \
    }                                                                                              \
    FM__UNROLL for (int e = 0; e < 4; e++) quarter[e] =                                            \
        combine(_mm512_shuffle_i32x4(half[2 * e], half[2 * e + 1], 0x88),                          \
                _mm512_shuffle_i32x4(half[2 * e], half[2 * e + 1], 0xDD));                         \
    FM__UNROLL for (int i = 0; i < 2; i++) pair[i] =                                               \
        combine(_mm512_unpacklo_epi64(quarter[2 * i], quarter[2 * i + 1]),                         \
                _mm512_unpackhi_epi64(quarter[2 * i], quarter[2 * i + 1]));                        \
    const __m512 even = _mm512_castsi512_ps(pair[0]), odd = _mm512_castsi512_ps(pair[1]);          \
    return combine(_mm512_castps_si512(_mm512_shuffle_ps(even, odd, 0x88)),                        \
                   _mm512_castps_si512(_mm512_shuffle_ps(even, odd, 0xDD)))

/* Lane l: the largest lane of x[l]. */
FM__INLINE fm__vi fm__vi_largest_each(const fm__vi x[16]) {
    FM__SIMD_EACH(_mm512_max_epi32);
}
/* Lane l: the sum of x[l]'s lanes. */
FM__INLINE fm__vi fm__vi_total_each(const fm__vi x[16]) {
    FM__SIMD_EACH(_mm512_add_epi32);
}
/* 16 bytes from values within int8. */
FM__INLINE void fm__vi_store_int8(int8_t *p, fm__vi a) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}
/* The lower halves of the first n. */
FM__INLINE void fm__vi_store_uint16_first(uint16_t *p, size_t n, fm__vi a) {
    _mm512_mask_cvtepi32_storeu_epi16(p, fm__simd_first(n), a);
}
/* Lanes begin..end (0..15, both included). */
FM__INLINE fm__vm fm__vm_range(uint32_t begin, uint32_t end) {
    return (fm__vm)((0xFFFFu << begin) & (0xFFFFu >> (15 - end)));
}
