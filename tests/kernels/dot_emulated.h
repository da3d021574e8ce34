/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dot_emulated.h: src/cpu/x86/dot_avxvnni.h for processors that have the same two instructions
 * only in AVX-512's encoding, so that the bodies of the AVX-VNNI kernels run there, compiled for
 * AVX2 and its sixteen registers as the real ones are. They cost the same.
 */
#pragma once

#include <immintrin.h>

#include "cpu/cpu.h"

FM__INLINE __m256i fm__dot_bytes(__m256i sum, __m256i u, __m256i s) {
    __asm__("%{evex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(s));
    return sum;
}

FM__INLINE __m256i fm__dot_words(__m256i sum, __m256i a, __m256i b) {
    __asm__("%{evex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}
