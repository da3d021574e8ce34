/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_float_avx2.h: the shared body of the float linear kernels of the AVX2 rung.
 *
 * Owns: the register tile and the walk over tokens, segments and panels. Never does: choose a
 * kernel. Called from: the linear_f32, linear_f16 and linear_bf16 files, with constant parameters.
 * One accumulator a row, k ascending, segments of 1024; `fused` as in linear_float_avx512.h.
 */
#pragma once

#include "cpu/x86/avx2.h"

typedef enum fm__float_kind { FM__FLOAT_F32, FM__FLOAT_F16, FM__FLOAT_BF16 } fm__float_kind;

enum {
    FM__FLOAT_TILE = 5,               /* tokens of a register tile */
    FM__FLOAT_TOKENS = 25,            /* tokens of a block: a segment of theirs fits the scratch */
    FM__FLOAT_ROW = FM__SEGMENT + 16, /* floats from token to token there */
};

/* The weights of k and k + 1 of 8 rows (F16, BF16). */
FM__INLINE void fm__float_pair(const fm__float_kind kind, const uint8_t *at, __m256 w[2]) {
    const __m256i x = _mm256_load_si256((const __m256i *)(const void *)at);
    if (kind == FM__FLOAT_BF16) {
        w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
        w[1] = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xFFFF0000u)));
    } else {
        const __m256i even = _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF));
        const __m256i both =
            _mm256_permute4x64_epi64(_mm256_packus_epi32(even, _mm256_srli_epi32(x, 16)), 0xD8);
        w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
        w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
    }
}

/* acc[t][half] += w[half] * act[t]. */
FM__INLINE void fm__float_step(const bool fused, const int tokens, const __m256 w[2],
                               const float *act, size_t act_stride, __m256 *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const __m256 x = _mm256_broadcast_ss(act + (size_t)t * act_stride);
        FM__UNROLL for (int half = 0; half < 2; half++) {
            __m256 *a = &acc[half * tokens + t];
            *a = fused ? _mm256_fmadd_ps(w[half], x, *a)
                       : _mm256_add_ps(*a, _mm256_mul_ps(w[half], x));
        }
    }
}

/* acc[half][t] = the sum over k in [0, count) from +0. */
FM__INLINE void fm__float_tile(const fm__float_kind kind, const bool fused, const int tokens,
                               const uint8_t *weights, const float *act, size_t act_stride,
                               uint32_t count, __m256 *acc) {
    FM__UNROLL for (int i = 0; i < 2 * tokens; i++) acc[i] = _mm256_setzero_ps();
    if (kind == FM__FLOAT_F32) {
        for (uint32_t k = 0; k < count; k++) {
            const float *at = (const float *)(const void *)(weights + (size_t)k * 64);
            const __m256 w[2] = {_mm256_load_ps(at), _mm256_load_ps(at + 8)};
            fm__float_step(fused, tokens, w, act + k, act_stride, acc);
        }
        return;
    }
    for (uint32_t k = 0; k < count; k += 2) {
        __m256 low[2], high[2];
        fm__float_pair(kind, weights + (size_t)k * 32, low);
        fm__float_pair(kind, weights + (size_t)k * 32 + 32, high);
        const __m256 even[2] = {low[0], high[0]}, odd[2] = {low[1], high[1]};
        fm__float_step(fused, tokens, even, act + k, act_stride, acc);
        if (k + 1 < count) /* an odd K: the activation behind it is not defined */
            fm__float_step(fused, tokens, odd, act + k + 1, act_stride, acc);
    }
}

FM__INLINE void fm__float_run(const fm__float_kind kind, const bool fused, const int tokens,
                              const fm__linear_args *args, uint32_t panel, uint32_t token,
                              uint32_t k0, const float *act, size_t act_stride) {
    const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
    const size_t k_bytes = kind == FM__FLOAT_F32 ? 64 : 32;
    __m256 acc[2 * FM__FLOAT_TILE];
    fm__float_tile(kind, fused, tokens,
                   args->panels + (size_t)panel * args->layout.stride + k0 * k_bytes, act,
                   act_stride, count, acc);
    FM__UNROLL for (int half = 0; half < 2; half++) fm__avx2_store_rows(
        args->out + (size_t)token * args->out_stride, args->out_stride, tokens,
        panel * FM__PANEL_ROWS + 8 * (uint32_t)half, args->n, k0 == 0, acc + half * tokens);
}

/* Tokens [t0, t1), whose activations of the segment lie in scratch, times one panel. */
FM__INLINE void fm__float_panel(const fm__float_kind kind, const bool fused,
                                const fm__linear_args *args, uint32_t panel, uint32_t t0,
                                uint32_t t1, uint32_t k0) {
    const float *act = args->scratch;
    const size_t row = FM__FLOAT_ROW;
    uint32_t t = t0;
    for (; t1 - t >= FM__FLOAT_TILE; t += FM__FLOAT_TILE, act += FM__FLOAT_TILE * row)
        fm__float_run(kind, fused, FM__FLOAT_TILE, args, panel, t, k0, act, row);
    for (; t1 - t >= 2; t += 2, act += 2 * row)
        fm__float_run(kind, fused, 2, args, panel, t, k0, act, row);
    if (t < t1)
        fm__float_run(kind, fused, 1, args, panel, t, k0, act, row);
}

FM__INLINE void fm__float_linear(const fm__float_kind kind, const bool fused,
                                 const fm__linear_args *args) {
    const uint32_t end = fm__avx2_panel_end(args);
    const size_t row = FM__FLOAT_ROW;
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__FLOAT_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__FLOAT_TOKENS ? args->tokens : t0 + FM__FLOAT_TOKENS;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
            fm__avx2_gather_rows(args->scratch, row * sizeof(float),
                                 args->act + args->act_layout.values +
                                     t0 * args->act_layout.stride + k0 * sizeof(float),
                                 args->act_layout.stride, t1 - t0, count * sizeof(float));
            for (uint32_t panel = args->panel_begin; panel < end; panel++)
                fm__float_panel(kind, fused, args, panel, t0, t1, k0);
        }
    }
}
