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
FM__INLINE void fm__avx512_fetch_rows(const float *out, size_t stride, int tokens) {
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

/* What a tile gives for one segment is added to the sums of those before, which wait in scratch (16
   floats a token); behind the last segment the first `count` tokens' go to out. Adding in out
   itself costs more: its rows often lie a power of two apart, where they share a set of the near
   cache. */
FM__INLINE void fm__avx512_add_segment(const int tokens, uint32_t count, bool first, bool last,
                                       __mmask16 rows, float *sums, float *out, size_t stride,
                                       const __m512 *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        __m512 x = acc[t];
        if (!first)
            x = _mm512_add_ps(_mm512_load_ps(sums + 16 * t), x);
        if (!last)
            _mm512_store_ps(sums + 16 * t, x);
        else if ((uint32_t)t < count)
            _mm512_mask_storeu_ps(out + (size_t)t * stride, rows, x);
    }
}

/* Memory that is read soon, asked for bit by bit, so that arithmetic goes on meanwhile. */
typedef struct fm__avx512_ahead {
    const uint8_t *at, *end;
    size_t step; /* bytes a call */
} fm__avx512_ahead;

/* `bytes` (a multiple of 64), all of them after `calls` calls. */
FM__INLINE fm__avx512_ahead fm__avx512_ahead_of(const uint8_t *at, size_t bytes, size_t calls) {
    return (fm__avx512_ahead){
        .at = at, .end = at + bytes, .step = (bytes / 64 + calls - 1) / calls * 64};
}

FM__INLINE void fm__avx512_fetch(fm__avx512_ahead *ahead) {
    const size_t left = (size_t)(ahead->end - ahead->at);
    const uint8_t *end = ahead->at + (ahead->step < left ? ahead->step : left);
    for (; ahead->at < end; ahead->at += 64)
        _mm_prefetch((const char *)ahead->at, _MM_HINT_T0);
}
