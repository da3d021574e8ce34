/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_float_avx512.h: the shared body of the float linear kernels of the AVX-512 rung.
 *
 * Owns: the register tile and the walk over tokens, segments and panels. Never does: choose a
 * kernel. Called from: the linear_f32, linear_f16 and linear_bf16 files, with constant parameters.
 *
 * One accumulator a row, k ascending, segments of 1024. The order is the exact class's; with
 * `fused` the product is not rounded, which changes nothing where products are exact in fp32 (F16
 * with 13-bit and BF16 with 16-bit activations) and is the fast class elsewhere.
 */
#pragma once

#include <immintrin.h>

#include "cpu/cpu.h"
#include "cpu/x86/avx512.h"

typedef enum fm__float_kind { FM__FLOAT_F32, FM__FLOAT_F16, FM__FLOAT_BF16 } fm__float_kind;

enum {
    FM__FLOAT_TILE = 12,   /* tokens of a register tile */
    FM__FLOAT_TOKENS = 24, /* tokens of a block: their activations of a segment fit the scratch */
    FM__FLOAT_ROW = FM__SEGMENT + 16, /* floats from token to token there */
};

/* The weights of k and k + 1 (F16, BF16). */
FM__INLINE void fm__float_pair(const fm__float_kind kind, const uint8_t *at, __m512 w[2]) {
    const __m512i x = _mm512_load_si512(at);
    const __m512i order =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    if (kind == FM__FLOAT_BF16) {
        w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        w[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xFFFF0000u)));
    } else {
        /* the halves of k to the low 256 bits, those of k + 1 to the high ones */
        const __m512i apart = _mm512_permutexvar_epi16(order, x);
        w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(apart));
        w[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(apart, 1));
    }
}

FM__INLINE __m512 fm__float_step(const bool fused, __m512 acc, __m512 w, const float *a) {
    const __m512 x = _mm512_set1_ps(*a);
    return fused ? _mm512_fmadd_ps(w, x, acc) : _mm512_add_ps(acc, _mm512_mul_ps(w, x));
}

/* acc[p][t] = the sum over k in [0, count) from +0. */
FM__INLINE void fm__float_tile(const fm__float_kind kind, const bool fused, const int panels,
                               const int tokens, const uint8_t *weights, size_t stride,
                               const float *act, size_t act_stride, uint32_t count, __m512 *acc) {
    FM__UNROLL for (int i = 0; i < panels * tokens; i++) acc[i] = _mm512_setzero_ps();
    uint32_t k = 0;
    if (kind == FM__FLOAT_F32) {
        for (; k < count; k++)
            FM__UNROLL for (int p = 0; p < panels; p++) {
                const __m512 w = _mm512_load_ps(weights + (size_t)p * stride + (size_t)k * 64);
                FM__UNROLL for (int t = 0; t < tokens; t++) acc[p * tokens + t] =
                    fm__float_step(fused, acc[p * tokens + t], w, act + (size_t)t * act_stride + k);
            }
        return;
    }
    for (; k + 2 <= count; k += 2)
        FM__UNROLL for (int p = 0; p < panels; p++) {
            __m512 w[2];
            fm__float_pair(kind, weights + (size_t)p * stride + (size_t)k * 32, w);
            FM__UNROLL for (int i = 0; i < 2; i++) FM__UNROLL for (int t = 0; t < tokens; t++)
                acc[p * tokens + t] = fm__float_step(fused, acc[p * tokens + t], w[i],
                                                     act + (size_t)t * act_stride + k + i);
        }
    if (k < count) /* an odd K: the activation behind it is not defined */
        FM__UNROLL for (int p = 0; p < panels; p++) {
            __m512 w[2];
            fm__float_pair(kind, weights + (size_t)p * stride + (size_t)k * 32, w);
            FM__UNROLL for (int t = 0; t < tokens; t++) acc[p * tokens + t] =
                fm__float_step(fused, acc[p * tokens + t], w[0], act + (size_t)t * act_stride + k);
        }
}

FM__INLINE void fm__float_run(const fm__float_kind kind, const bool fused, const int panels,
                              const int tokens, const fm__linear_args *args, uint32_t panel,
                              uint32_t token, uint32_t k0, const float *act, size_t act_stride) {
    const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
    const size_t k_bytes = kind == FM__FLOAT_F32 ? 64 : 32;
    float *out = args->out + (size_t)token * args->out_stride + (size_t)panel * FM__PANEL_ROWS;
    fm__avx512_fetch_rows(out, args->out_stride, tokens);
    __m512 acc[16];
    fm__float_tile(kind, fused, panels, tokens,
                   args->panels + (size_t)panel * args->layout.stride + k0 * k_bytes,
                   args->layout.stride, act, act_stride, count, acc);
    FM__UNROLL for (int p = 0; p < panels; p++) fm__avx512_store_rows(
        out + p * FM__PANEL_ROWS, args->out_stride, tokens,
        fm__avx512_row_mask(args->n, panel + (uint32_t)p), k0 == 0, acc + p * tokens);
}

/* Up to 4 tokens: several panels in flight, whose streams draw more bandwidth than one. */
FM__INLINE void fm__float_few(const fm__float_kind kind, const bool fused, const int tokens,
                              const fm__linear_args *args) {
    const uint32_t end = fm__avx512_panel_end(args);
    const size_t stride = args->act_layout.stride / sizeof(float);
    const float *act = (const float *)(const void *)(args->act + args->act_layout.values);
    uint32_t panel = args->panel_begin;
    for (; panel + 4 <= end; panel += 4)
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT)
            fm__float_run(kind, fused, 4, tokens, args, panel, 0, k0, act + k0, stride);
    for (; panel < end; panel++)
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT)
            fm__float_run(kind, fused, 1, tokens, args, panel, 0, k0, act + k0, stride);
}

FM__INLINE void fm__float_many(const fm__float_kind kind, const bool fused,
                               const fm__linear_args *args) {
    const uint32_t end = fm__avx512_panel_end(args);
    const size_t row = FM__FLOAT_ROW;
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__FLOAT_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__FLOAT_TOKENS ? args->tokens : t0 + FM__FLOAT_TOKENS;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
            fm__avx512_gather_rows(args->scratch, row * sizeof(float),
                                   args->act + args->act_layout.values +
                                       t0 * args->act_layout.stride + k0 * sizeof(float),
                                   args->act_layout.stride, t1 - t0, count * sizeof(float));
            for (uint32_t panel = args->panel_begin; panel < end; panel++) {
                const float *act = args->scratch;
                uint32_t t = t0;
                for (; t1 - t >= FM__FLOAT_TILE; t += FM__FLOAT_TILE, act += FM__FLOAT_TILE * row)
                    fm__float_run(kind, fused, 1, FM__FLOAT_TILE, args, panel, t, k0, act, row);
                for (; t1 - t >= 4; t += 4, act += 4 * row)
                    fm__float_run(kind, fused, 1, 4, args, panel, t, k0, act, row);
                for (; t < t1; t++, act += row)
                    fm__float_run(kind, fused, 1, 1, args, panel, t, k0, act, row);
            }
        }
    }
}

FM__INLINE void fm__float_linear(const fm__float_kind kind, const bool fused,
                                 const fm__linear_args *args) {
    switch (args->tokens) {
    case 1:
        fm__float_few(kind, fused, 1, args);
        break;
    case 2:
        fm__float_few(kind, fused, 2, args);
        break;
    case 3:
        fm__float_few(kind, fused, 3, args);
        break;
    case 4:
        fm__float_few(kind, fused, 4, args);
        break;
    default:
        fm__float_many(kind, fused, args);
        break;
    }
}
