/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/probe_avx512vnni.c: the probes' int8 loop, AVX-512 VNNI. Owns: nothing. Never does:
 * measure (cpu/probe.c does). Called from: the probes' threads.
 */
#include <immintrin.h>

#include "cpu/cpu.h"
#include "cpu/probe.h"
#include "cpu/unroll.h"

uint64_t fm__probe_int8_avx512vnni(uint64_t rounds) {
    __m512i sum[FM__PROBE_CHAINS];
    __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-5);
    for (int i = 0; i < FM__PROBE_CHAINS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (uint64_t r = 0; r < rounds; r++)
        FM__UNROLL for (int i = 0; i < FM__PROBE_CHAINS; i++) sum[i] =
            _mm512_dpbusd_epi32(sum[i], x, y);
    for (int i = 1; i < FM__PROBE_CHAINS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    return (uint64_t)_mm512_reduce_or_epi64(sum[0]);
}
