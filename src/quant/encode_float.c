/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/encode_float.c: float rows to F32, F16 and BF16.
 *
 * Owns: nothing. Never does: anything but IEEE conversions, ties to even. Called from: converting
 * threads.
 */
#include "quant/block.h"

void fm__encode_f32(const float *in, const float *importance, void *blocks, size_t n) {
    (void)importance;
    uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        fm__store_u32(p + 4 * i, fm__f32_bits(in[i]));
}

void fm__encode_f16(const float *in, const float *importance, void *blocks, size_t n) {
    (void)importance;
    uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        fm__store_u16(p + 2 * i, fm__f32_to_f16(in[i]));
}

void fm__encode_bf16(const float *in, const float *importance, void *blocks, size_t n) {
    (void)importance;
    uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        fm__store_u16(p + 2 * i, fm__f32_to_bf16(in[i]));
}
