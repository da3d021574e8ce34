/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/avx512.h: what the AVX-512 linear kernels share: reading rows of activations and
 * storing rows of a result.
 *
 * Owns: nothing. Never does: anything on its own. Included by: linear_*_avx512*.c.
 */
#pragma once

#include <immintrin.h>

#include "cpu/cpu.h"
#include "cpu/unroll.h"

FM__INLINE uint32_t fm__avx512_panel_end(const fm__linear_args *args) {
    const uint32_t all = (args->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    return args->panel_end < all ? args->panel_end : all;
}

/* The rows of a panel that exist. */
FM__INLINE __mmask16 fm__avx512_row_mask(uint32_t n, uint32_t panel) {
    const uint32_t left = n - panel * FM__PANEL_ROWS;
    return left >= FM__PANEL_ROWS ? (__mmask16)0xFFFF : (__mmask16)((1u << left) - 1u);
}

/* out rows lie far apart and are seldom in a near cache: fetched while the tile is computed. */
FM__INLINE void fm__avx512_fetch_rows(const float *out, size_t stride, const int tokens) {
    for (int t = 0; t < tokens; t++)
        _mm_prefetch((const char *)(out + (size_t)t * stride), _MM_HINT_T0);
}

/* out = acc for the first segment, out + acc for the later ones. */
FM__INLINE void fm__avx512_store_rows(float *out, size_t stride, const int tokens, __mmask16 rows,
                                      bool first, const __m512 *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        float *o = out + (size_t)t * stride;
        __m512 x = acc[t];
        if (!first)
            x = _mm512_add_ps(_mm512_maskz_loadu_ps(rows, o), x);
        _mm512_mask_storeu_ps(o, rows, x);
    }
}

/* Copies `bytes` (a multiple of 4) of `rows` rows to a stride that is no multiple of a page: rows
   of float activations usually lie 4096 * n apart, where a dozen of them share one set of the near
   cache (measured: half the speed). */
FM__INLINE void fm__avx512_gather_rows(uint8_t *to, size_t to_stride, const uint8_t *from,
                                       size_t from_stride, uint32_t rows, size_t bytes) {
    for (uint32_t t = 0; t < rows; t++) {
        uint8_t *o = to + (size_t)t * to_stride;
        const uint8_t *i = from + (size_t)t * from_stride;
        size_t b = 0;
        for (; b + 64 <= bytes; b += 64)
            _mm512_store_si512(o + b, _mm512_loadu_si512(i + b));
        if (b < bytes) {
            const __mmask16 mask = (__mmask16)((1u << ((bytes - b) / 4)) - 1u);
            _mm512_mask_storeu_epi32(o + b, mask, _mm512_maskz_loadu_epi32(mask, i + b));
        }
    }
}
