/* SPDX-License-Identifier: Apache-2.0 */
/* base/compiler.h: the only place for compiler extensions outside kernel files. */
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define FM__PRINTF(f, a) __attribute__((format(printf, f, a)))
#define FM__LIKELY(x) __builtin_expect(!!(x), 1)
#define FM__UNLIKELY(x) __builtin_expect(!!(x), 0)
#define FM__INLINE static inline __attribute__((always_inline))
#define FM__ALIGN(n) __attribute__((aligned(n)))
#define FM__UNUSED __attribute__((unused))
#else
#error "base/compiler.h: gcc or clang is needed"
#endif

#if defined(__x86_64__)
#define FM__ARCH_X86_64 1
#elif defined(__aarch64__)
#define FM__ARCH_AARCH64 1
#endif
