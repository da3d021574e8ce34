/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/ternary.c: the ternary types TQ1_0 and TQ2_0: decode and encode. Value d * (code - 1).
 *
 * Owns: the base-3 digits of TQ1_0. Never does: anything else. Called from: any thread.
 *
 * A byte of TQ1_0 holds the number x = c0 * 81 + c1 * 27 + c2 * 9 + c3 * 3 + c4 as the fraction
 * ceil(x * 256 / 243) / 256, so that multiplying by three carries the first digit out of the byte.
 * Three runs of bytes follow one another: 32 bytes give elements 0-159 (digit t of byte j is
 * element 32t + j), 16 bytes 160-239, and 4 bytes of four digits 240-255.
 */
#include "quant/block.h"
#include "quant/fit.h"

typedef struct digit_run {
    int offset, bytes, digits, element; /* offset: of the first byte in the block */
} digit_run;

static const digit_run runs[3] = {
    {FM__TQ1_0_QS, 32, 5, 0}, {FM__TQ1_0_QS + 32, 16, 5, 160}, {FM__TQ1_0_QH, 4, 4, 240}};

static const uint8_t power_of_3[5] = {1, 3, 9, 27, 81};

/* Digits of one run; inlined, so that the loops are of constant length and vectorise. */
FM__INLINE void run_codes(const uint8_t *bytes, int n_bytes, int n_digits, uint8_t *code) {
    for (int t = 0; t < n_digits; t++)
        for (int j = 0; j < n_bytes; j++) {
            uint8_t fraction = (uint8_t)(bytes[j] * power_of_3[t]);
            code[t * n_bytes + j] = (uint8_t)(fraction * 3 >> 8);
        }
}

void fm__tq1_0_codes(const uint8_t *block, uint8_t code[256]) {
    run_codes(block + FM__TQ1_0_QS, 32, 5, code);
    run_codes(block + FM__TQ1_0_QS + 32, 16, 5, code + 160);
    run_codes(block + FM__TQ1_0_QH, 4, 4, code + 240);
}

void fm__decode_tq1_0(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__TQ1_0_BYTES) {
        float d = fm__load_f16(b + FM__TQ1_0_D);
        uint8_t code[256];
        fm__tq1_0_codes(b, code);
        for (int j = 0; j < 256; j++)
            out[i + j] = d * (float)(code[j] - 1);
    }
}

void fm__decode_tq2_0(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__TQ2_0_BYTES) {
        float d = fm__load_f16(b + FM__TQ2_0_D);
        for (int c = 0; c < 8; c++) {
            const uint8_t *qs = b + FM__TQ2_0_QS + c / 4 * 32;
            for (int j = 0; j < 32; j++)
                out[i + 32 * c + j] = d * (float)((qs[j] >> (2 * (c % 4)) & 3) - 1);
        }
    }
}

/* Codes 0..2 of 256 elements at the scale that the largest magnitude gives; returns its bits. */
static uint16_t encode_codes(const float *in, uint8_t code[256]) {
    float x[256];
    uint16_t d = fm__fit_scale(fm__fit_load(in, x, 256));
    float inverse = fm__fit_inverse(d);
    for (int j = 0; j < 256; j++)
        code[j] = (uint8_t)(fm__fit_round(x[j] * inverse, -1.0f, 1.0f) + 1);
    return d;
}

void fm__encode_tq1_0(const float *in, const float *importance, void *blocks, size_t n) {
    (void)importance;
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__TQ1_0_BYTES) {
        uint8_t code[256];
        fm__store_u16(b + FM__TQ1_0_D, encode_codes(in + i, code));
        for (int run = 0; run < 3; run++) {
            const digit_run *r = &runs[run];
            for (int j = 0; j < r->bytes; j++) {
                unsigned number = 0;
                for (int t = 0; t < r->digits; t++)
                    number += (unsigned)power_of_3[4 - t] * code[r->element + t * r->bytes + j];
                b[r->offset + j] = (uint8_t)((number * 256 + 242) / 243);
            }
        }
    }
}

void fm__encode_tq2_0(const float *in, const float *importance, void *blocks, size_t n) {
    (void)importance;
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__TQ2_0_BYTES) {
        uint8_t code[256];
        fm__store_u16(b + FM__TQ2_0_D, encode_codes(in + i, code));
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 32; j++) {
                const uint8_t *c = code + 128 * half + j;
                b[FM__TQ2_0_QS + 32 * half + j] =
                    (uint8_t)(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
            }
    }
}
