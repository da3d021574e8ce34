/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/probe_avx512bf16.c: the probes' bfloat16 loop, AVX-512 BF16. Owns: nothing. Never does:
 * measure (cpu/probe.c does). Called from: the probes' threads.
 */
#include <immintrin.h>

#include "cpu/cpu.h"
#include "cpu/probe.h"
#include "cpu/unroll.h"

uint64_t fm__probe_bf16_avx512bf16(uint64_t rounds) {
    __m512 sum[FM__PROBE_CHAINS];
    const __m512 half = _mm512_set1_ps(0.5f);
    __m512bh x = _mm512_cvtne2ps_pbh(half, half), y = x;
    for (int i = 0; i < FM__PROBE_CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds; r++)
        FM__UNROLL for (int i = 0; i < FM__PROBE_CHAINS; i++) sum[i] =
            _mm512_dpbf16_ps(sum[i], x, y);
    for (int i = 1; i < FM__PROBE_CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return (uint64_t)_mm512_reduce_or_epi64(_mm512_castps_si512(sum[0]));
}
