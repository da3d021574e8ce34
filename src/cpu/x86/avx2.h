/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/avx2.h: what the AVX2 linear kernels share: storing rows of a result.
 *
 * Owns: nothing. Never does: anything on its own. Included by: linear_*_avx2.c.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/unroll.h"

FM__INLINE uint32_t fm__avx2_panel_end(const fm__linear_args *args) {
    const uint32_t all = (args->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    return args->panel_end < all ? args->panel_end : all;
}

/* out = acc for the first segment, out + acc for the later ones; rows [row, row + 8) of n. */
FM__INLINE void fm__avx2_store_rows(float *out, size_t stride, const int tokens, uint32_t row,
                                    uint32_t n, bool first, const __m256 *acc) {
    const uint32_t left = row < n ? n - row : 0;
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        float *o = out + (size_t)t * stride + row;
        __m256 x = acc[t];
        if (left >= 8) {
            if (!first)
                x = _mm256_add_ps(_mm256_loadu_ps(o), x);
            _mm256_storeu_ps(o, x);
        } else {
            float some[8] = {0};
            if (!first) {
                memcpy(some, o, left * sizeof(float));
                x = _mm256_add_ps(_mm256_loadu_ps(some), x);
            }
            _mm256_storeu_ps(some, x);
            if (left)
                memcpy(o, some, left * sizeof(float));
        }
    }
}

/* Copies `bytes` of `rows` rows to a stride that is no multiple of a page: rows of float
   activations usually lie 4096 * n apart, where a dozen of them share one set of the near cache. */
FM__INLINE void fm__avx2_gather_rows(uint8_t *to, size_t to_stride, const uint8_t *from,
                                     size_t from_stride, uint32_t rows, size_t bytes) {
    for (uint32_t t = 0; t < rows; t++)
        memcpy(to + (size_t)t * to_stride, from + (size_t)t * from_stride, bytes);
}
