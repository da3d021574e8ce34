/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/probe_avx2.c: the probes' loops, AVX2 with FMA. Owns: nothing. Never does: measure
 * (cpu/probe.c does). Called from: the probes' threads.
 */
#include <immintrin.h>

#include "cpu/cpu.h"
#include "cpu/probe.h"
#include "cpu/unroll.h"

static uint64_t fold(__m256i x) {
    __m128i y = _mm_xor_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return (uint64_t)_mm_cvtsi128_si64(y) ^ (uint64_t)_mm_extract_epi64(y, 1);
}

FM__INLINE uint64_t read_streams(const uint8_t *data, size_t part, const uint32_t streams) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t i = 0; i < part; i += 64)
        for (uint32_t s = 0; s < streams; s++) {
            const __m256i *line = (const __m256i *)(const void *)(data + s * part + i);
            a = _mm256_xor_si256(a, _mm256_load_si256(line));
            b = _mm256_xor_si256(b, _mm256_load_si256(line + 1));
        }
    return fold(_mm256_add_epi64(a, b));
}

uint64_t fm__probe_read_avx2(const uint8_t *data, size_t part, uint32_t streams) {
    return streams == 1   ? read_streams(data, part, 1)
           : streams == 4 ? read_streams(data, part, 4)
                          : read_streams(data, part, streams);
}

uint64_t fm__probe_fma_avx2(uint64_t rounds) {
    /* There are sixteen registers: half the chains at a time. */
    enum { CHAINS = 8 };
    __m256 sum[CHAINS];
    __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds * (FM__PROBE_CHAINS / CHAINS); r++)
        FM__UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = _mm256_fmadd_ps(sum[i], x, y);
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    return fold(_mm256_castps_si256(sum[0]));
}

uint64_t fm__probe_int8_avx2(uint64_t rounds) {
    enum { CHAINS = 8 };
    __m256i sum[CHAINS];
    __m256i x = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_epi32(i);
    for (uint64_t r = 0; r < rounds * (FM__PROBE_CHAINS / CHAINS); r++)
        FM__UNROLL for (int i = 0; i < CHAINS; i++) {
            /* Depends on the sum, so that the compiler cannot take it out of the loop. */
            __m256i pairs = _mm256_maddubs_epi16(x, sum[i]);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, ones));
        }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    return fold(sum[0]);
}
