/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/dot_avxvnni.h: the two instructions that the AVX-VNNI kernels have beyond AVX2.
 *
 * Owns: nothing. Never does: anything on its own. Included by: the *_avxvnni.c files, in front of
 * the bodies; tests have another (tests/kernels/dot_emulated.h), so that the bodies run on any
 * processor with AVX-512 VNNI.
 */
#pragma once

#include <immintrin.h>

#include "cpu/cpu.h"

/* Each 32-bit lane: sum + the products of its four unsigned bytes of u with the signed ones of s.
 */
FM__INLINE __m256i fm__dot_bytes(__m256i sum, __m256i u, __m256i s) {
    return _mm256_dpbusd_avx_epi32(sum, u, s);
}

/* Each 32-bit lane: sum + the products of its two int16. */
FM__INLINE __m256i fm__dot_words(__m256i sum, __m256i a, __m256i b) {
    return _mm256_dpwssd_avx_epi32(sum, a, b);
}
