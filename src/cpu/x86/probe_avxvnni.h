/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/probe_avxvnni.h: the body of the probes' int8 loop, AVX-VNNI. Owns: nothing. Never does:
 * measure. Included by: probe_avxvnni.c behind dot_avxvnni.h, and tests with emulated
 * instructions.
 */
#pragma once

#include <immintrin.h>

#include "cpu/cpu.h"
#include "cpu/probe.h"
#include "cpu/unroll.h"

FM__INLINE uint64_t fm__avxvnni_probe(uint64_t rounds) {
    enum { CHAINS = FM__PROBE_CHAINS - 4 }; /* of sixteen registers */
    __m256i sum[CHAINS];
    __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-5);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_epi32(i);
    for (uint64_t r = 0; r < rounds; r++)
        FM__UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = fm__dot_bytes(sum[i], x, y);
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    const __m128i half =
        _mm_xor_si128(_mm256_castsi256_si128(sum[0]), _mm256_extracti128_si256(sum[0], 1));
    return (uint64_t)_mm_cvtsi128_si64(half) ^ (uint64_t)_mm_extract_epi64(half, 1);
}
