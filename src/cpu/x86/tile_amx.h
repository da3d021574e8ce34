/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/tile_amx.h: the tile instructions of AMX, as far as the kernels need them.
 *
 * Owns: nothing; the eight tile registers belong to the running thread. Never does: arithmetic of
 * its own. Included by: linear_*_amx.c; tests/kernels has a stand-in for processors without AMX.
 *
 * The number of a tile register is part of an instruction, so these are macros. They are written as
 * assembly because the compilers' own forms do not say that memory is read.
 */
#pragma once

/* The 64 bytes of struct fm__amx_config; every tile is zero afterwards. */
#define FM__TILE_CONFIG(config)                                                                    \
    __asm__ volatile("ldtilecfg %0" ::"m"(*(const uint8_t(*)[64])(const void *)(config)) : "memory")
#define FM__TILE_RELEASE() __asm__ volatile("tilerelease" ::: "memory")
#define FM__TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t :::)
/* Row i of the tile is at p + i * stride. */
#define FM__TILE_LOAD(t, p, stride)                                                                \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((size_t)(stride)) : "memory")
#define FM__TILE_STORE(t, p, stride)                                                               \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((size_t)(stride)) : "memory")
/* c[m][n] += sum over k of a[m][k] * b[k / 4][n][k % 4], a signed, b signed or unsigned bytes. */
#define FM__TILE_DOT_SS(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c :::)
#define FM__TILE_DOT_SU(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c :::)
/* c[m][n] += sum over k of a[m][k] * b[k / 2][n][k % 2], bf16 to fp32. */
#define FM__TILE_DOT_BF16(c, a, b)                                                                 \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c :::)
