/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/probe_avx512.c: the probes' loops, AVX-512. Owns: nothing. Never does: measure
 * (cpu/probe.c does). Called from: the probes' threads.
 */
#include <immintrin.h>

#include "cpu/cpu.h"
#include "cpu/probe.h"
#include "cpu/unroll.h"

FM__INLINE uint64_t read_streams(const uint8_t *data, size_t part, const uint32_t streams) {
    __m512i a = _mm512_setzero_si512();
    for (size_t i = 0; i < part; i += 64)
        for (uint32_t s = 0; s < streams; s++)
            a = _mm512_xor_si512(a, _mm512_load_si512(data + s * part + i));
    return (uint64_t)_mm512_reduce_or_epi64(a);
}

uint64_t fm__probe_read_avx512(const uint8_t *data, size_t part, uint32_t streams) {
    return streams == 1   ? read_streams(data, part, 1)
           : streams == 4 ? read_streams(data, part, 4)
                          : read_streams(data, part, streams);
}

uint64_t fm__probe_fma_avx512(uint64_t rounds) {
    __m512 sum[FM__PROBE_CHAINS];
    __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
    for (int i = 0; i < FM__PROBE_CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds; r++)
        FM__UNROLL for (int i = 0; i < FM__PROBE_CHAINS; i++) sum[i] =
            _mm512_fmadd_ps(sum[i], x, y);
    for (int i = 1; i < FM__PROBE_CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return (uint64_t)_mm512_reduce_or_epi64(_mm512_castps_si512(sum[0]));
}
