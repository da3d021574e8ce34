/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/encode_k.c: float rows to blocks of 256 with sub scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
 *
 * Owns: nothing. Never does: look beyond one block. Called from: converting threads.
 *
 * A block is worked on scaled by a power of two to magnitudes below 1. Each sub-block gets its best
 * scale (and minimum); those are rounded to the few bits that the type has for them against the f16
 * block scale as stored; and the codes are rounded against what a reader will compute.
 */
#include <math.h> /* sqrtf alone: exact by IEEE */

#include "quant/block.h"
#include "quant/fit.h"

enum { N = 256 };

typedef struct block_input {
    float x[N]; /* scaled by unit */
    float unit;
    float mean_square;
    const float *importance; /* of this block, or NULL */
} block_input;

static void load(const float *in, const float *importance, size_t at, block_input *block) {
    block->unit = fm__fit_unit(fm__fit_load(in + at, block->x, N));
    block->importance = importance == NULL ? NULL : importance + at;
    float sum = 0.0f;
    for (int i = 0; i < N; i++) {
        block->x[i] *= block->unit;
        sum += block->x[i] * block->x[i];
    }
    block->mean_square = sum / N;
}

/* f16 bits for a scale of the scaled block, and what it is worth there. */
static uint16_t block_scale(const block_input *block, float scale, float *worth) {
    uint16_t half = fm__fit_scale(scale / block->unit);
    *worth = fm__f16_to_f32(half) * block->unit;
    return half;
}

static float inverse_of(float x) {
    return x == 0.0f ? 0.0f : 1.0f / x;
}

/* Weights of one sub-block's elements. Without importance larger ones count for more: they make the
 * larger part of a product. `level`: by how much more is tempered by their root mean square. */
static void sub_weights(const block_input *block, int at, int width, bool level, float *w) {
    const float *x = block->x + at;
    if (block->importance != NULL) {
        fm__fit_weights(x, block->importance + at, 2.0f * block->mean_square, w, (size_t)width);
        return;
    }
    float sum = 0.0f;
    for (int i = 0; i < width; i++)
        sum += x[i] * x[i];
    float base = level ? sqrtf(sum / (float)width) : 0.0f;
    for (int i = 0; i < width; i++)
        w[i] = base + (x[i] < 0.0f ? -x[i] : x[i]);
}

/* ---- scale and minimum: Q2_K, Q4_K, Q5_K ---- */

typedef struct affine_type {
    int width, levels, scale_levels; /* elements a sub-block, largest code, largest sub scale */
    fm__fit_search search;
} affine_type;

typedef struct affine_block {
    uint16_t d, dmin;
    uint8_t scale[16], minimum[16];
    uint8_t code[N];
} affine_block;

/* Sub scale and minimum of one sub-block: of the values next to the best real ones, the pair that
 * leaves the least error together. */
static void choose_pair(const affine_type *type, const float *x, const float *w, float d,
                        float dmin, float scale, float minimum, uint8_t *scale_code,
                        uint8_t *minimum_code) {
    int top = type->scale_levels;
    int s0 = fm__fit_round(scale * inverse_of(d), 0.0f, (float)top);
    int m0 = fm__fit_round(minimum * inverse_of(dmin), 0.0f, (float)top);
    float least = -1.0f;
    for (int s = s0 - (s0 > 0); s <= s0 + (s0 < top); s++)
        for (int m = m0 - (m0 > 0); m <= m0 + (m0 < top); m++) {
            float error = fm__fit_error(x, w, (size_t)type->width, d * (float)s, -dmin * (float)m,
                                        0.0f, (float)type->levels, type->search.linear);
            if (least < 0.0f || error < least) {
                least = error;
                *scale_code = (uint8_t)s;
                *minimum_code = (uint8_t)m;
            }
        }
}

static void encode_affine(const block_input *block, const affine_type *type, affine_block *out) {
    int subs = N / type->width;
    float scale[16], minimum[16], max_scale = 0.0f, max_minimum = 0.0f, w[N];
    for (int s = 0; s < subs; s++) {
        int at = s * type->width;
        sub_weights(block, at, type->width, !type->search.linear, w + at);
        fm__fit_affine(block->x + at, w + at, (size_t)type->width, type->levels, type->search,
                       &scale[s], &minimum[s]);
        max_scale = scale[s] > max_scale ? scale[s] : max_scale;
        max_minimum = minimum[s] > max_minimum ? minimum[s] : max_minimum;
    }

    float d, dmin, top = (float)type->scale_levels;
    out->d = block_scale(block, max_scale / top, &d);
    out->dmin = block_scale(block, max_minimum / top, &dmin);
    for (int s = 0; s < subs; s++) {
        int at = s * type->width;
        choose_pair(type, block->x + at, w + at, d, dmin, scale[s], minimum[s], &out->scale[s],
                    &out->minimum[s]);
        float inverse = inverse_of(d * (float)out->scale[s]);
        float low = dmin * (float)out->minimum[s];
        for (int i = at; i < at + type->width; i++)
            out->code[i] =
                (uint8_t)fm__fit_round((block->x[i] + low) * inverse, 0.0f, (float)type->levels);
    }
}

/* ---- scale alone: Q3_K, Q6_K ---- */

typedef struct symmetric_block {
    uint16_t d;
    int8_t scale[16];
    uint8_t code[N]; /* plus levels */
} symmetric_block;

/* The sub scale next to the best real one that leaves the least error. */
static int choose_scale(const float *x, const float *w, float d, float scale, int levels,
                        int scale_levels) {
    int s0 = fm__fit_round(scale * inverse_of(d), -(float)scale_levels, (float)scale_levels - 1.0f);
    int best = s0;
    float least = -1.0f;
    for (int s = s0 - (s0 > -scale_levels); s <= s0 + (s0 < scale_levels - 1); s++) {
        float error = fm__fit_error(x, w, 16, d * (float)s, 0.0f, -(float)levels,
                                    (float)levels - 1.0f, false);
        if (least < 0.0f || error < least) {
            least = error;
            best = s;
        }
    }
    return best;
}

/* Codes in [-levels, levels - 1], sub scales of 16 elements in [-scale_levels, scale_levels - 1].
 * The largest sub scale is given the most negative level, which the other sign does not have. */
static void encode_symmetric(const block_input *block, int levels, int scale_levels,
                             symmetric_block *out) {
    float scale[16], w[N];
    for (int s = 0; s < 16; s++) {
        sub_weights(block, 16 * s, 16, true, w + 16 * s);
        scale[s] = fm__fit_symmetric(block->x + 16 * s, w + 16 * s, 16, levels);
    }

    float d, top = (float)levels;
    out->d = block_scale(block, fm__fit_extreme(scale, 16) / -(float)scale_levels, &d);
    for (int s = 0; s < 16; s++) {
        const float *x = block->x + 16 * s;
        out->scale[s] = (int8_t)choose_scale(x, w + 16 * s, d, scale[s], levels, scale_levels);
        float inverse = inverse_of(d * (float)out->scale[s]);
        for (int i = 0; i < 16; i++)
            out->code[16 * s + i] =
                (uint8_t)(fm__fit_round(x[i] * inverse, -top, top - 1.0f) + levels);
    }
}

/* ---- writing blocks ---- */

/* 2 bits of each code at `shift` into [2][32] bytes as Q2_K holds them. */
static void put_pairs(const uint8_t code[N], int shift, uint8_t *qs) {
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 32; j++) {
            unsigned byte = 0;
            for (int t = 0; t < 4; t++)
                byte |= (unsigned)(code[128 * h + 32 * t + j] >> shift & 3) << (2 * t);
            qs[32 * h + j] = (uint8_t)byte;
        }
}

/* Bit `shift` of each code into 32 bytes: bit c of byte j is element 32c + j. */
static void put_bits(const uint8_t code[N], int shift, uint8_t *qh) {
    for (int j = 0; j < 32; j++) {
        unsigned byte = 0;
        for (int c = 0; c < 8; c++)
            byte |= (unsigned)(code[32 * c + j] >> shift & 1) << c;
        qh[j] = (uint8_t)byte;
    }
}

/* Low nibbles into [4][32] bytes as Q4_K holds them. */
static void put_nibbles(const uint8_t code[N], uint8_t *qs) {
    for (int g = 0; g < 4; g++)
        for (int j = 0; j < 32; j++)
            qs[32 * g + j] = (uint8_t)((code[64 * g + j] & 15) | (code[64 * g + 32 + j] & 15) << 4);
}

static void put_q4_k_scales(const affine_block *block, uint8_t *p) {
    for (int s = 0; s < 4; s++) {
        const uint8_t *scale = block->scale + s, *minimum = block->minimum + s;
        p[s] = (uint8_t)(scale[0] | scale[4] >> 4 << 6);
        p[4 + s] = (uint8_t)(minimum[0] | minimum[4] >> 4 << 6);
        p[8 + s] = (uint8_t)((scale[4] & 15) | (minimum[4] & 15) << 4);
    }
}

static void put_q3_k_scales(const int8_t scale[16], uint8_t *p) {
    uint8_t biased[16];
    for (int s = 0; s < 16; s++)
        biased[s] = (uint8_t)(scale[s] + 32);
    for (int s = 0; s < 8; s++)
        p[s] = (uint8_t)((biased[s] & 15) | (biased[s + 8] & 15) << 4);
    for (int s = 0; s < 4; s++)
        p[8 + s] = (uint8_t)(biased[s] >> 4 | biased[s + 4] >> 4 << 2 | biased[s + 8] >> 4 << 4 |
                             biased[s + 12] >> 4 << 6);
}

void fm__encode_q2_k(const float *in, const float *importance, void *blocks, size_t n) {
    static const affine_type type = {
        16, 3, 15, {.first = -0.5f, .step = 0.1f, .count = 16, .linear = true}};
    uint8_t *b = blocks;
    block_input input;
    affine_block block;
    for (size_t i = 0; i < n; i += N, b += FM__Q2_K_BYTES) {
        load(in, importance, i, &input);
        encode_affine(&input, &type, &block);
        for (int s = 0; s < 16; s++)
            b[FM__Q2_K_SCALES + s] = (uint8_t)(block.scale[s] | block.minimum[s] << 4);
        put_pairs(block.code, 0, b + FM__Q2_K_QS);
        fm__store_u16(b + FM__Q2_K_D, block.d);
        fm__store_u16(b + FM__Q2_K_DMIN, block.dmin);
    }
}

void fm__encode_q4_k(const float *in, const float *importance, void *blocks, size_t n) {
    static const affine_type type = {32, 15, 63, {.first = -1.0f, .step = 0.1f, .count = 21}};
    uint8_t *b = blocks;
    block_input input;
    affine_block block;
    for (size_t i = 0; i < n; i += N, b += FM__Q4_K_BYTES) {
        load(in, importance, i, &input);
        encode_affine(&input, &type, &block);
        fm__store_u16(b + FM__Q4_K_D, block.d);
        fm__store_u16(b + FM__Q4_K_DMIN, block.dmin);
        put_q4_k_scales(&block, b + FM__Q4_K_SCALES);
        put_nibbles(block.code, b + FM__Q4_K_QS);
    }
}

void fm__encode_q5_k(const float *in, const float *importance, void *blocks, size_t n) {
    static const affine_type type = {32, 31, 63, {.first = -0.5f, .step = 0.1f, .count = 16}};
    uint8_t *b = blocks;
    block_input input;
    affine_block block;
    for (size_t i = 0; i < n; i += N, b += FM__Q5_K_BYTES) {
        load(in, importance, i, &input);
        encode_affine(&input, &type, &block);
        fm__store_u16(b + FM__Q5_K_D, block.d);
        fm__store_u16(b + FM__Q5_K_DMIN, block.dmin);
        put_q4_k_scales(&block, b + FM__Q5_K_SCALES);
        put_bits(block.code, 4, b + FM__Q5_K_QH);
        put_nibbles(block.code, b + FM__Q5_K_QS);
    }
}

void fm__encode_q3_k(const float *in, const float *importance, void *blocks, size_t n) {
    uint8_t *b = blocks;
    block_input input;
    symmetric_block block;
    for (size_t i = 0; i < n; i += N, b += FM__Q3_K_BYTES) {
        load(in, importance, i, &input);
        encode_symmetric(&input, 4, 32, &block);
        put_bits(block.code, 2, b + FM__Q3_K_QH);
        put_pairs(block.code, 0, b + FM__Q3_K_QS);
        put_q3_k_scales(block.scale, b + FM__Q3_K_SCALES);
        fm__store_u16(b + FM__Q3_K_D, block.d);
    }
}

void fm__encode_q6_k(const float *in, const float *importance, void *blocks, size_t n) {
    uint8_t *b = blocks;
    block_input input;
    symmetric_block block;
    for (size_t i = 0; i < n; i += N, b += FM__Q6_K_BYTES) {
        load(in, importance, i, &input);
        encode_symmetric(&input, 32, 128, &block);
        for (int h = 0; h < 2; h++) {
            uint8_t *qs = b + FM__Q6_K_QS + 64 * h;
            const uint8_t *code = block.code + 128 * h;
            for (int j = 0; j < 64; j++)
                qs[j] = (uint8_t)((code[j] & 15) | (code[64 + j] & 15) << 4);
        }
        put_pairs(block.code, 4, b + FM__Q6_K_QH);
        memcpy(b + FM__Q6_K_SCALES, block.scale, 16);
        fm__store_u16(b + FM__Q6_K_D, block.d);
    }
}
