/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/decode_float.c: rows of F32, F16 and BF16 to float.
 *
 * Owns: nothing. Never does: rounding; every value is exact. Called from: any thread.
 */
#include "quant/block.h"

void fm__decode_f32(const void *blocks, float *out, size_t n) {
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        out[i] = fm__bits_f32(fm__load_u32(p + 4 * i));
}

void fm__decode_f16(const void *blocks, float *out, size_t n) {
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        out[i] = fm__load_f16(p + 2 * i);
}

void fm__decode_bf16(const void *blocks, float *out, size_t n) {
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        out[i] = fm__bf16_to_f32(fm__load_u16(p + 2 * i));
}
