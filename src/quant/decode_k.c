/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/decode_k.c: blocks of 256 with sub scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
 *
 * Owns: nothing. Never does: anything but (d * sc) * q and (d * sc) * q - (dmin * m) in fp32.
 * Called from: any thread.
 */
#include "quant/block.h"

void fm__decode_q2_k(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__Q2_K_BYTES) {
        float d = fm__load_f16(b + FM__Q2_K_D), dmin = fm__load_f16(b + FM__Q2_K_DMIN);
        for (int s = 0; s < 16; s++) { /* of 16 elements */
            const uint8_t *qs = b + FM__Q2_K_QS + s / 8 * 32 + s % 2 * 16;
            int shift = s % 8 / 2 * 2;
            float scale = d * (float)(b[FM__Q2_K_SCALES + s] & 15);
            float minimum = dmin * (float)(b[FM__Q2_K_SCALES + s] >> 4);
            for (int j = 0; j < 16; j++)
                out[i + 16 * s + j] = scale * (float)(qs[j] >> shift & 3) - minimum;
        }
    }
}

void fm__decode_q3_k(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__Q3_K_BYTES) {
        float d = fm__load_f16(b + FM__Q3_K_D);
        int8_t scales[16];
        fm__q3_k_scales(b + FM__Q3_K_SCALES, scales);
        for (int s = 0; s < 16; s++) {
            const uint8_t *qs = b + FM__Q3_K_QS + s / 8 * 32 + s % 2 * 16;
            const uint8_t *qh = b + FM__Q3_K_QH + s % 2 * 16;
            int shift = s % 8 / 2 * 2, bit = s / 2;
            float scale = d * (float)scales[s];
            for (int j = 0; j < 16; j++) {
                int code = (qs[j] >> shift & 3) | (qh[j] >> bit & 1) << 2;
                out[i + 16 * s + j] = scale * (float)(code - 4);
            }
        }
    }
}

void fm__decode_q4_k(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__Q4_K_BYTES) {
        float d = fm__load_f16(b + FM__Q4_K_D), dmin = fm__load_f16(b + FM__Q4_K_DMIN);
        uint8_t scales[8], minima[8];
        fm__q4_k_scales(b + FM__Q4_K_SCALES, scales, minima);
        for (int s = 0; s < 8; s++) { /* of 32 elements */
            const uint8_t *qs = b + FM__Q4_K_QS + s / 2 * 32;
            int shift = s % 2 * 4;
            float scale = d * (float)scales[s], minimum = dmin * (float)minima[s];
            for (int j = 0; j < 32; j++)
                out[i + 32 * s + j] = scale * (float)(qs[j] >> shift & 15) - minimum;
        }
    }
}

void fm__decode_q5_k(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__Q5_K_BYTES) {
        float d = fm__load_f16(b + FM__Q5_K_D), dmin = fm__load_f16(b + FM__Q5_K_DMIN);
        const uint8_t *qh = b + FM__Q5_K_QH;
        uint8_t scales[8], minima[8];
        fm__q4_k_scales(b + FM__Q5_K_SCALES, scales, minima);
        for (int s = 0; s < 8; s++) {
            const uint8_t *qs = b + FM__Q5_K_QS + s / 2 * 32;
            int shift = s % 2 * 4;
            float scale = d * (float)scales[s], minimum = dmin * (float)minima[s];
            for (int j = 0; j < 32; j++) {
                int code = (qs[j] >> shift & 15) | (qh[j] >> s & 1) << 4;
                out[i + 32 * s + j] = scale * (float)code - minimum;
            }
        }
    }
}

void fm__decode_q6_k(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__Q6_K_BYTES) {
        float d = fm__load_f16(b + FM__Q6_K_D);
        for (int s = 0; s < 16; s++) {
            int half = s / 8, quarter = s % 8 / 2, side = s % 2 * 16;
            const uint8_t *qs = b + FM__Q6_K_QS + half * 64 + quarter % 2 * 32 + side;
            const uint8_t *qh = b + FM__Q6_K_QH + half * 32 + side;
            int shift = quarter / 2 * 4;
            float scale = d * (float)(int8_t)b[FM__Q6_K_SCALES + s];
            for (int j = 0; j < 16; j++) {
                int code = (qs[j] >> shift & 15) | (qh[j] >> (2 * quarter) & 3) << 4;
                out[i + 16 * s + j] = scale * (float)(code - 32);
            }
        }
    }
}
