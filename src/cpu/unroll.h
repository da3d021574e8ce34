/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/unroll.h: full unrolling of loops with a constant count, so that arrays of vectors stay in
 * registers.
 *
 * Owns: nothing. Never does: anything on its own. Included by: kernel files.
 */
#pragma once

/* clang honours GCC's pragma too late to keep the arrays out of memory (measured: half the speed).
 */
#if !defined(__OPTIMIZE__) /* nothing is unrolled there, and gcc says so */
#define FM__UNROLL
#elif defined(__clang__)
#define FM__UNROLL _Pragma("clang loop unroll(full)")
#else
#define FM__UNROLL _Pragma("GCC unroll 16")
#endif
