/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_float_neon.h: the shared body of the float linear kernels of the NEON rung.
 *
 * Owns: the register tile and the walk over tokens, segments and panels. Never does: choose a
 * kernel. Called from: the linear_f32, linear_f16 and linear_bf16 files, with constant parameters.
 * One accumulator a row, k ascending, segments of 1024; `fused` as in x86/linear_float_avx512.h.
 */
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/unroll.h"

typedef enum fm__float_kind { FM__FLOAT_F32, FM__FLOAT_F16, FM__FLOAT_BF16 } fm__float_kind;

enum {
    FM__FLOAT_TILE = 4,    /* tokens of a register tile: 16 sums of 4 rows */
    FM__FLOAT_TOKENS = 64, /* tokens of a block: 256 KiB of activations of a segment in L2 */
};

/* One activation, as stored: bf16 where `bf16`, else float. */
FM__INLINE float fm__float_act(const bool bf16, const uint8_t *row, uint32_t k) {
    if (bf16)
        return fm__bf16_to_f32(((const uint16_t *)(const void *)row)[k]);
    return ((const float *)(const void *)row)[k];
}

/* The weights of k (and k + 1, but for F32) of the 4 rows of each quarter. */
FM__INLINE void fm__float_weights(const fm__float_kind kind, const uint8_t *at,
                                  float32x4_t w[2][4]) {
    FM__UNROLL for (int i = 0; i < 4; i++) {
        if (kind == FM__FLOAT_F32) {
            w[0][i] = vld1q_f32((const float *)(const void *)(at + 16 * i));
            continue;
        }
        const uint16x4x2_t pair = vld2_u16((const uint16_t *)(const void *)(at + 16 * i));
        FM__UNROLL for (int j = 0; j < 2; j++) w[j][i] =
            kind == FM__FLOAT_F16 ? vcvt_f32_f16(vreinterpret_f16_u16(pair.val[j]))
                                  : vreinterpretq_f32_u32(vshll_n_u16(pair.val[j], 16));
    }
}

FM__INLINE void fm__float_step(const bool fused, const bool bf16, const int tokens,
                               const float32x4_t w[4], const uint8_t *act, size_t act_stride,
                               uint32_t k, float32x4_t *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const float32x4_t x = vdupq_n_f32(fm__float_act(bf16, act + (size_t)t * act_stride, k));
        FM__UNROLL for (int i = 0; i < 4; i++) {
            float32x4_t *a = &acc[t * 4 + i];
            *a = fused ? vfmaq_f32(*a, w[i], x) : vaddq_f32(*a, vmulq_f32(w[i], x));
        }
    }
}

/* Segment k0 of one panel times `tokens` tokens. act: row `token`, its k0 included. */
FM__INLINE void fm__float_run(const fm__float_kind kind, const bool fused, const bool bf16,
                              const int tokens, const fm__linear_args *args, uint32_t panel,
                              uint32_t token, uint32_t k0) {
    const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
    const size_t k_bytes = kind == FM__FLOAT_F32 ? 64 : 32, stride = args->act_layout.stride;
    const uint8_t *weights = args->panels + (size_t)panel * args->layout.stride + k0 * k_bytes;
    const uint8_t *act = args->act + args->act_layout.values + (size_t)token * stride +
                         k0 * (bf16 ? sizeof(uint16_t) : sizeof(float));
    const uint32_t step = kind == FM__FLOAT_F32 ? 1 : 2;
    float32x4_t acc[FM__FLOAT_TILE * 4];
    FM__UNROLL for (int i = 0; i < 4 * tokens; i++) acc[i] = vdupq_n_f32(0.0f);
    for (uint32_t k = 0; k < count; k += step) {
        float32x4_t w[2][4];
        fm__float_weights(kind, weights + k * k_bytes, w);
        fm__float_step(fused, bf16, tokens, w[0], act, stride, k, acc);
        if (step == 2 && k + 1 < count) /* an odd K: the activation behind it is not defined */
            fm__float_step(fused, bf16, tokens, w[1], act, stride, k + 1, acc);
    }
    const uint32_t row = panel * FM__PANEL_ROWS;
    const size_t left = args->n - row < FM__PANEL_ROWS ? args->n - row : FM__PANEL_ROWS;
    for (int t = 0; t < tokens; t++) {
        float *o = args->out + (size_t)(token + (uint32_t)t) * args->out_stride + row;
        float all[FM__PANEL_ROWS] = {0};
        if (k0)
            memcpy(all, o, left * sizeof(float));
        FM__UNROLL for (int i = 0; i < 4; i++) vst1q_f32(
            all + 4 * i, k0 ? vaddq_f32(vld1q_f32(all + 4 * i), acc[t * 4 + i]) : acc[t * 4 + i]);
        memcpy(o, all, left * sizeof(float));
    }
}

FM__INLINE void fm__float_linear(const fm__float_kind kind, const bool fused, const bool bf16,
                                 const fm__linear_args *args) {
    const uint32_t all = (args->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    const uint32_t end = args->panel_end < all ? args->panel_end : all;
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__FLOAT_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__FLOAT_TOKENS ? args->tokens : t0 + FM__FLOAT_TOKENS;
        for (uint32_t panel = args->panel_begin; panel < end; panel++)
            for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
                uint32_t t = t0;
                for (; t1 - t >= FM__FLOAT_TILE; t += FM__FLOAT_TILE)
                    fm__float_run(kind, fused, bf16, FM__FLOAT_TILE, args, panel, t, k0);
                for (; t < t1; t++)
                    fm__float_run(kind, fused, bf16, 1, args, panel, t, k0);
            }
    }
}
