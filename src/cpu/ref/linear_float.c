/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/linear_float.c: linear layers with float weights, the specification (docs/numerics.md,
 * "Linear, float weights"). Owns: nothing. Never does: quantised weights. Called from: team
 * threads.
 *
 * The fast class kernels are the same loops: ref is as exact as the class allows, and the yardstick
 * of other rungs' error.
 */
#include "cpu/ref/ref.h"

#include <string.h>

enum { ROWS = FM__PANEL_ROWS, TILE = 16 };

/* w[r] = element k of the panel's 16 rows. */
typedef void weight_fn(const uint8_t *panel, size_t k, float w[ROWS]);

FM__INLINE void weight_f32(const uint8_t *panel, size_t k, float w[ROWS]) {
    memcpy(w, panel + k * ROWS * sizeof(float), ROWS * sizeof(float));
}

/* 16-bit types hold pairs of k: [k / 2][16 rows][2] */
FM__INLINE void weight_f16(const uint8_t *panel, size_t k, float w[ROWS]) {
    const uint16_t *pair = (const uint16_t *)(const void *)panel + k / 2 * ROWS * 2 + k % 2;
    for (int r = 0; r < ROWS; r++)
        w[r] = fm__ref_f16(pair[2 * r]);
}

FM__INLINE void weight_bf16(const uint8_t *panel, size_t k, float w[ROWS]) {
    const uint16_t *pair = (const uint16_t *)(const void *)panel + k / 2 * ROWS * 2 + k % 2;
    for (int r = 0; r < ROWS; r++)
        w[r] = fm__bf16_to_f32(pair[2 * r]);
}

FM__INLINE float value(const uint8_t *row, size_t k, bool bf16) {
    if (bf16)
        return fm__bf16_to_f32(((const uint16_t *)(const void *)row)[k]);
    return ((const float *)(const void *)row)[k];
}

/* One panel, tokens [first, first + count), count <= TILE. */
FM__INLINE void linear_tile(const fm__linear_args *args, uint32_t panel, uint32_t first,
                            uint32_t count, weight_fn *weight, bool bf16) {
    const uint8_t *codes = args->panels + panel * args->layout.stride + args->layout.codes;
    const uint8_t *act = args->act + first * args->act_layout.stride + args->act_layout.values;
    float total[TILE][ROWS] = {{0}}, acc[TILE][ROWS], w[ROWS];
    for (size_t begin = 0; begin < args->k; begin += FM__SEGMENT) {
        memset(acc, 0, sizeof acc);
        for (size_t k = begin; k < fm__min_size(begin + FM__SEGMENT, args->k); k++) {
            weight(codes, k, w);
            for (uint32_t t = 0; t < count; t++) {
                float x = value(act + t * args->act_layout.stride, k, bf16);
                for (int r = 0; r < ROWS; r++)
                    acc[t][r] = acc[t][r] + w[r] * x;
            }
        }
        for (uint32_t t = 0; t < count; t++)
            for (int r = 0; r < ROWS; r++)
                total[t][r] = begin == 0 ? acc[t][r] : total[t][r] + acc[t][r];
    }
    size_t rows = fm__min_size(ROWS, args->n - (size_t)panel * ROWS);
    for (uint32_t t = 0; t < count; t++)
        memcpy(args->out + (first + t) * args->out_stride + (size_t)panel * ROWS, total[t],
               rows * sizeof(float));
}

FM__INLINE void linear(const fm__linear_args *args, weight_fn *weight, bool bf16) {
    for (uint32_t t = 0; t < args->tokens; t += TILE)
        for (uint32_t p = args->panel_begin; p < args->panel_end; p++)
            linear_tile(args, p, t, args->tokens - t < TILE ? args->tokens - t : TILE, weight,
                        bf16);
}

void fm__linear_f32_ref(const fm__linear_args *args) {
    linear(args, weight_f32, false);
}

void fm__linear_f16_ref(const fm__linear_args *args) {
    linear(args, weight_f16, false);
}

void fm__linear_bf16_ref(const fm__linear_args *args) {
    linear(args, weight_bf16, false);
}

void fm__linear_f32_fast_ref(const fm__linear_args *args) {
    linear(args, weight_f32, false);
}

void fm__linear_f16_fast_ref(const fm__linear_args *args) {
    linear(args, weight_f16, false);
}

void fm__linear_bf16_fast_ref(const fm__linear_args *args) {
    linear(args, weight_bf16, true);
}
