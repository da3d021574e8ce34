/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/probe.h: what this processor can do at most: the roofs that benches divide by.
 *
 * Owns: nothing. Never does: keep a figure (a shared machine's roofs change from minute to minute:
 * measure beside what is compared). Called from: benches, any thread, while nothing else runs.
 *
 * Each probe starts `threads` threads (at least 1), pinned to cpus[0 .. threads) (NULL: the cores
 * that hwloc sees, unpinned beyond them), and gives the best of several passes. 0: this processor
 * has no such instructions, or a thread or its memory could not be had.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { FM__PROBE_STREAMS = 16 };

/* GB/s of reading `bytes` (all threads together; take several times the last cache), each thread
   its own part as `streams` (1 .. FM__PROBE_STREAMS) runs side by side. How many streams read
   fastest differs between machines and hours: try 1, 4 and 16. */
double fm__probe_read(uint32_t threads, const int *cpus, size_t bytes, uint32_t streams);
/* The best of 1, 2, 4, 8 and 16 streams. */
double fm__probe_read_best(uint32_t threads, const int *cpus, size_t bytes);

/* 10^9 operations a second (a multiply-add is two), of the widest form that there is: int8 dot
   products (VNNI, else the AVX2 pair of multiply-adds), float32 fma, bfloat16 dot products. */
double fm__probe_vnni(uint32_t threads, const int *cpus);
double fm__probe_fma(uint32_t threads, const int *cpus);
double fm__probe_bf16(uint32_t threads, const int *cpus);

/* ---- the loops, one file an instruction set ---- */

typedef uint64_t fm__probe_read_fn(const uint8_t *data, size_t part, uint32_t streams);
/* Runs `rounds` rounds; returns what keeps the loop alive. */
typedef uint64_t fm__probe_loop_fn(uint64_t rounds);

/* Reads [s * part, (s + 1) * part) for each stream s; part: a multiple of 64. */
uint64_t fm__probe_read_avx2(const uint8_t *data, size_t part, uint32_t streams);
uint64_t fm__probe_read_avx512(const uint8_t *data, size_t part, uint32_t streams);

/* Operations of a round. */
enum {
    FM__PROBE_CHAINS = 16, /* independent sums: more than latency times units anywhere */
    FM__PROBE_FMA_AVX2 = FM__PROBE_CHAINS * 8 * 2,
    FM__PROBE_FMA_AVX512 = FM__PROBE_CHAINS * 16 * 2,
    FM__PROBE_INT8_AVX2 = FM__PROBE_CHAINS * 32 * 2,
    FM__PROBE_INT8_AVXVNNI = (FM__PROBE_CHAINS - 4) * 32 * 2, /* sixteen registers */
    FM__PROBE_INT8_AVX512VNNI = FM__PROBE_CHAINS * 64 * 2,
    FM__PROBE_BF16_AVX512BF16 = FM__PROBE_CHAINS * 32 * 2,
};
uint64_t fm__probe_fma_avx2(uint64_t rounds);
uint64_t fm__probe_fma_avx512(uint64_t rounds);
uint64_t fm__probe_int8_avx2(uint64_t rounds);
uint64_t fm__probe_int8_avxvnni(uint64_t rounds);
uint64_t fm__probe_int8_avx512vnni(uint64_t rounds);
uint64_t fm__probe_bf16_avx512bf16(uint64_t rounds);
