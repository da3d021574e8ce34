/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/encode_simple.c: float rows to blocks of 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4.
 *
 * Owns: nothing. Never does: look beyond one block. Called from: converting threads.
 *
 * Codes are rounded against the scale as stored (f16), not as computed. Without importance a scale
 * comes from the extreme elements alone; with it, from a weighted search.
 */
#include "quant/block.h"
#include "quant/fit.h"

static void put_nibbles(const uint8_t code[32], uint8_t *qs) {
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)((code[j] & 15) | code[16 + j] << 4);
}

static void put_fifth_bits(const uint8_t code[32], uint8_t *qh) {
    uint32_t high = 0;
    for (int j = 0; j < 32; j++)
        high |= (uint32_t)(code[j] >> 4) << j;
    fm__store_u32(qh, high);
}

void fm__encode_q8_0(const float *in, const float *importance, void *blocks, size_t n) {
    (void)importance;
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__Q8_0_BYTES) {
        float x[32];
        uint16_t d = fm__fit_scale(fm__fit_load(in + i, x, 32) / 127.0f);
        float inverse = fm__fit_inverse(d);
        fm__store_u16(b + FM__Q8_0_D, d);
        for (int j = 0; j < 32; j++)
            b[FM__Q8_0_QS + j] = (uint8_t)fm__fit_round(x[j] * inverse, -127.0f, 127.0f);
    }
}

/* Mean of x^2 over the block, for weights made of importance. */
static float mean_square(const float *x, size_t n) {
    float sum = 0.0f;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum / (float)n;
}

/* Codes of one block, x ~ d * (code - levels); returns d. The extreme element gets code 0: the
 * negative side has one level more. */
static uint16_t encode_symmetric(const float *in, const float *importance, int levels,
                                 uint8_t code[32]) {
    float x[32], largest = fm__fit_load(in, x, 32), scale;
    if (importance == NULL) {
        scale = fm__fit_extreme(x, 32) / -(float)levels;
    } else {
        float unit = fm__fit_unit(largest), y[32], w[32];
        for (int j = 0; j < 32; j++)
            y[j] = x[j] * unit;
        fm__fit_weights(y, importance, mean_square(y, 32), w, 32);
        scale = fm__fit_symmetric(y, w, 32, levels) / unit;
    }
    uint16_t d = fm__fit_scale(scale);
    float inverse = fm__fit_inverse(d), top = (float)levels;
    for (int j = 0; j < 32; j++)
        code[j] = (uint8_t)(fm__fit_round(x[j] * inverse, -top, top - 1.0f) + levels);
    return d;
}

/* Codes of one block, x ~ d * code + m with codes in [0, levels]. */
static void encode_affine(const float *in, const float *importance, int levels, uint8_t code[32],
                          uint16_t *d, uint16_t *m) {
    float x[32], unit = fm__fit_unit(fm__fit_load(in, x, 32)), scale, minimum;
    for (int j = 0; j < 32; j++)
        x[j] *= unit;
    if (importance == NULL) {
        float low = x[0], high = x[0];
        for (int j = 1; j < 32; j++) {
            low = x[j] < low ? x[j] : low;
            high = x[j] > high ? x[j] : high;
        }
        scale = (high - low) / (float)levels;
        minimum = -low;
    } else {
        float w[32];
        fm__fit_search search = {.first = -0.9f, .step = 0.05f, .count = 37, .min_any = true};
        fm__fit_weights(x, importance, mean_square(x, 32), w, 32);
        fm__fit_affine(x, w, 32, levels, search, &scale, &minimum);
    }
    *d = fm__fit_scale(scale / unit);
    *m = fm__fit_half(-minimum / unit);
    float low = fm__f16_to_f32(*m) * unit, inverse = fm__fit_inverse(*d) / unit;
    for (int j = 0; j < 32; j++)
        code[j] = (uint8_t)fm__fit_round((x[j] - low) * inverse, 0.0f, (float)levels);
}

void fm__encode_q4_0(const float *in, const float *importance, void *blocks, size_t n) {
    uint8_t *b = blocks, code[32];
    for (size_t i = 0; i < n; i += 32, b += FM__Q4_0_BYTES) {
        const float *weights = importance == NULL ? NULL : importance + i;
        fm__store_u16(b + FM__Q4_0_D, encode_symmetric(in + i, weights, 8, code));
        put_nibbles(code, b + FM__Q4_0_QS);
    }
}

void fm__encode_q5_0(const float *in, const float *importance, void *blocks, size_t n) {
    uint8_t *b = blocks, code[32];
    for (size_t i = 0; i < n; i += 32, b += FM__Q5_0_BYTES) {
        const float *weights = importance == NULL ? NULL : importance + i;
        fm__store_u16(b + FM__Q5_0_D, encode_symmetric(in + i, weights, 16, code));
        put_nibbles(code, b + FM__Q5_0_QS);
        put_fifth_bits(code, b + FM__Q5_0_QH);
    }
}

void fm__encode_q4_1(const float *in, const float *importance, void *blocks, size_t n) {
    uint8_t *b = blocks, code[32];
    for (size_t i = 0; i < n; i += 32, b += FM__Q4_1_BYTES) {
        uint16_t d, m;
        encode_affine(in + i, importance == NULL ? NULL : importance + i, 15, code, &d, &m);
        fm__store_u16(b + FM__Q4_1_D, d);
        fm__store_u16(b + FM__Q4_1_M, m);
        put_nibbles(code, b + FM__Q4_1_QS);
    }
}

void fm__encode_q5_1(const float *in, const float *importance, void *blocks, size_t n) {
    uint8_t *b = blocks, code[32];
    for (size_t i = 0; i < n; i += 32, b += FM__Q5_1_BYTES) {
        uint16_t d, m;
        encode_affine(in + i, importance == NULL ? NULL : importance + i, 31, code, &d, &m);
        fm__store_u16(b + FM__Q5_1_D, d);
        fm__store_u16(b + FM__Q5_1_M, m);
        put_nibbles(code, b + FM__Q5_1_QS);
        put_fifth_bits(code, b + FM__Q5_1_QH);
    }
}

/* FP4 code of a value given as twice its magnitude over the scale: 0 1 2 3 4 6 8 12 are exact, what
 * lies midway goes to the even code, and beyond 12 to 12. */
static uint8_t fp4_code(float x) {
    uint8_t sign = x < 0.0f ? 8 : 0;
    float v = x < 0.0f ? -x : x;
    uint8_t code = (uint8_t)((v > 0.5f) + (v >= 1.5f) + (v > 2.5f) + (v >= 3.5f) + (v > 5.0f) +
                             (v >= 7.0f) + (v > 10.0f));
    return code == 0 ? 0 : code | sign;
}

/* The shared exponent is that of the largest magnitude less 2, FP4's own largest exponent (OCP
 * Microscaling Formats 1.0, 6.3). */
void fm__encode_mxfp4(const float *in, const float *importance, void *blocks, size_t n) {
    (void)importance;
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__MXFP4_BYTES) {
        float x[32];
        int exponent = (int)(fm__f32_bits(fm__fit_load(in + i, x, 32)) >> 23);
        int e = exponent < 2 ? 0 : exponent - 2;                 /* both biased by 127 */
        float inverse = fm__bits_f32((uint32_t)(254 - e) << 23); /* 2^(127 - e) */
        uint8_t code[32];
        for (int j = 0; j < 32; j++)
            code[j] = fp4_code(x[j] * inverse * 2.0f);
        b[FM__MXFP4_E] = (uint8_t)e;
        put_nibbles(code, b + FM__MXFP4_QS);
    }
}
