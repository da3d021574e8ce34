/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/decode_simple.c: blocks of 32 with one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.
 *
 * Owns: nothing. Never does: anything but d * q or d * q + m in fp32. Called from: any thread.
 */
#include "quant/block.h"

void fm__decode_q8_0(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__Q8_0_BYTES) {
        float d = fm__load_f16(b + FM__Q8_0_D);
        for (int j = 0; j < 32; j++)
            out[i + j] = d * (float)(int8_t)b[FM__Q8_0_QS + j];
    }
}

void fm__decode_q4_0(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__Q4_0_BYTES) {
        float d = fm__load_f16(b + FM__Q4_0_D);
        const uint8_t *qs = b + FM__Q4_0_QS;
        for (int j = 0; j < 16; j++) {
            out[i + j] = d * (float)((qs[j] & 15) - 8);
            out[i + 16 + j] = d * (float)((qs[j] >> 4) - 8);
        }
    }
}

void fm__decode_q4_1(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__Q4_1_BYTES) {
        float d = fm__load_f16(b + FM__Q4_1_D), m = fm__load_f16(b + FM__Q4_1_M);
        const uint8_t *qs = b + FM__Q4_1_QS;
        for (int j = 0; j < 16; j++) {
            out[i + j] = d * (float)(qs[j] & 15) + m;
            out[i + 16 + j] = d * (float)(qs[j] >> 4) + m;
        }
    }
}

void fm__decode_q5_0(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__Q5_0_BYTES) {
        float d = fm__load_f16(b + FM__Q5_0_D);
        uint32_t high = fm__load_u32(b + FM__Q5_0_QH);
        const uint8_t *qs = b + FM__Q5_0_QS;
        for (int j = 0; j < 16; j++) {
            int low = (qs[j] & 15) | (int)(high >> j & 1) << 4;
            int up = qs[j] >> 4 | (int)(high >> (16 + j) & 1) << 4;
            out[i + j] = d * (float)(low - 16);
            out[i + 16 + j] = d * (float)(up - 16);
        }
    }
}

void fm__decode_q5_1(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__Q5_1_BYTES) {
        float d = fm__load_f16(b + FM__Q5_1_D), m = fm__load_f16(b + FM__Q5_1_M);
        uint32_t high = fm__load_u32(b + FM__Q5_1_QH);
        const uint8_t *qs = b + FM__Q5_1_QS;
        for (int j = 0; j < 16; j++) {
            int low = (qs[j] & 15) | (int)(high >> j & 1) << 4;
            int up = qs[j] >> 4 | (int)(high >> (16 + j) & 1) << 4;
            out[i + j] = d * (float)low + m;
            out[i + 16 + j] = d * (float)up + m;
        }
    }
}
