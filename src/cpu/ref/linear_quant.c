/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/linear_quant.c: linear layers with quantised weights, the specification
 * (docs/numerics.md, "Linear, quantised weights"). Owns: nothing. Never does: float weights. Called
 * from: team threads.
 *
 * A panel's block is unpacked once into 16-bit integers and used for a tile of tokens.
 */
#include "cpu/ref/ref.h"

#include <string.h>

enum { ROWS = FM__PANEL_ROWS, CHUNK = FM__CHUNK, TILE = 16, CHUNKS = 8 /* of a 256-block */ };

/* 16 rows of one chunk as values (codes minus offset, or from the table). */
struct chunk {
    int16_t w[ROWS][CHUNK];
};

/* Adds a plane of `bits` bits to the codes. Field t of byte j of lane r in vector v belongs to
   element 4 * (v + bits * t) + j. */
static void unpack_plane(const uint8_t *plane, int bits, int shift, struct chunk *out) {
    int mask = (1 << bits) - 1;
    for (int v = 0; v < bits; v++)
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < 4; j++) {
                int byte = plane[v * 64 + r * 4 + j];
                for (int t = 0; t < 8 / bits; t++) {
                    int code = byte >> (bits * t) & mask;
                    out->w[r][4 * (v + bits * t) + j] |= (int16_t)(code << shift);
                }
            }
}

static void unpack_chunk(const fm__type *type, const uint8_t *codes, struct chunk *out) {
    memset(out, 0, sizeof *out);
    int high = type->code_bits, shift = 0;
    /* the widest plane that fits comes first: 5 = 4 + 1, 6 = 4 + 2, 3 = 2 + 1 */
    for (int bits = 8; bits > 0; bits /= 2)
        if (high >= bits) {
            unpack_plane(codes, bits, shift, out);
            codes += 64 * bits;
            shift += bits;
            high -= bits;
        }
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < CHUNK; i++) {
            int code = out->w[r][i];
            if (type->lut)
                out->w[r][i] = type->lut[code];
            else if (type->code_bits == 8)
                out->w[r][i] = (int16_t)(int8_t)code; /* stored signed */
            else
                out->w[r][i] = (int16_t)(code - type->offset);
        }
}

static int32_t dot(const int16_t *w, const int16_t *q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += w[i] * q[i];
    return sum;
}

static void widen(const int8_t *q, int16_t *out, int n) {
    for (int i = 0; i < n; i++)
        out[i] = q[i];
}

static void read_f16(const uint8_t *region, size_t block, float out[ROWS]) {
    uint16_t h[ROWS];
    memcpy(h, region + block * sizeof h, sizeof h);
    for (int r = 0; r < ROWS; r++)
        out[r] = fm__ref_f16(h[r]);
}

/* The part of a panel that the innermost loop of one block needs. */
struct block {
    struct chunk chunks[CHUNKS];     /* 32-blocks use the first */
    int16_t scale[2 * CHUNKS][ROWS]; /* integer sub-scales, per 16 k (256-blocks) */
    int16_t min[2 * CHUNKS][ROWS];
    float d[ROWS], m[ROWS];
};

/* Integer sub-scales of a 256-block, expanded to one per 16 k. */
static void read_sub(const fm__type *type, const uint8_t *sub, struct block *out) {
    memset(out->min, 0, sizeof out->min);
    for (int s = 0; s < 2 * CHUNKS; s++)
        for (int r = 0; r < ROWS; r++) {
            uint8_t by16 = type->sub_width == 16 ? sub[s * ROWS + r] : 0;
            uint8_t by32 = type->sub_width == 32 ? sub[s / 2 * ROWS + r] : 0;
            switch (fm__type_index(type)) {
            case FM__TYPE_Q2_K:
                out->scale[s][r] = by16 & 15;
                out->min[s][r] = by16 >> 4;
                break;
            case FM__TYPE_Q3_K:
            case FM__TYPE_Q6_K:
                out->scale[s][r] = (int8_t)by16;
                break;
            case FM__TYPE_Q4_K:
            case FM__TYPE_Q5_K:
                out->scale[s][r] = by32;
                out->min[s][r] = sub[(CHUNKS + s / 2) * ROWS + r];
                break;
            case FM__TYPE_IQ4_XS:
                out->scale[s][r] = (int8_t)by32;
                break;
            default: /* TQ1_0, TQ2_0 */
                out->scale[s][r] = 1;
            }
        }
}

static void read_block(const fm__linear_args *args, const uint8_t *panel, size_t index,
                       struct block *out) {
    const fm__type *type = args->type;
    const fm__panel_layout *layout = &args->layout;
    size_t chunks = type->block / CHUNK;
    for (size_t c = 0; c < chunks; c++)
        unpack_chunk(type, panel + layout->codes + (index * chunks + c) * layout->chunk_bytes,
                     &out->chunks[c]);
    if (type->block == 256)
        read_sub(type, panel + layout->sub + index * layout->sub_bytes, out);
    if (type->d_is_f32)
        memcpy(out->d, panel + layout->d + index * layout->d_bytes, sizeof out->d);
    else
        read_f16(panel + layout->d, index, out->d);
    if (type->has_min)
        read_f16(panel + layout->m, index, out->m);
}

/* acc[r] takes one block of 32 of one token. */
static void step_32(const fm__linear_args *args, const struct block *b, const uint8_t *row,
                    size_t index, float acc[ROWS]) {
    int16_t q[CHUNK];
    widen((const int8_t *)row + args->act_layout.values + index * CHUNK, q, CHUNK);
    float da = ((const float *)(const void *)(row + args->act_layout.d))[index];
    int32_t sum = ((const int16_t *)(const void *)(row + args->act_layout.sum))[index];
    for (int r = 0; r < ROWS; r++) {
        int32_t isum = dot(b->chunks[0].w[r], q, CHUNK);
        acc[r] = acc[r] + (float)isum * (b->d[r] * da);
        if (args->type->has_min)
            acc[r] = acc[r] + (float)sum * (b->m[r] * da);
    }
}

/* acc[r] takes one block of 256 of one token. */
static void step_256(const fm__linear_args *args, const struct block *b, const uint8_t *row,
                     size_t index, float acc[ROWS]) {
    const fm__act_layout *layout = &args->act_layout;
    int16_t q[256];
    widen((const int8_t *)row + layout->values + index * 256, q, 256);
    float da = ((const float *)(const void *)(row + layout->d))[index];
    const int16_t *sum = (const int16_t *)(const void *)(row + layout->sum) + index * 16;
    const uint8_t *shift = row + layout->shift + index * CHUNKS;
    for (int r = 0; r < ROWS; r++) {
        int32_t isum = 0, msum = 0;
        for (int c = 0; c < CHUNKS; c++) {
            const int16_t *w = b->chunks[c].w[r];
            int32_t part = b->scale[2 * c][r] * dot(w, q + 32 * c, 16) +
                           b->scale[2 * c + 1][r] * dot(w + 16, q + 32 * c + 16, 16);
            int32_t mpart = b->min[2 * c][r] * sum[2 * c] + b->min[2 * c + 1][r] * sum[2 * c + 1];
            isum += part * (1 << shift[c]);
            msum += mpart * (1 << shift[c]);
        }
        acc[r] = acc[r] + (float)isum * (b->d[r] * da);
        if (args->type->has_min)
            acc[r] = acc[r] - (float)msum * (b->m[r] * da);
    }
}

/* One panel, tokens [first, first + count), count <= TILE. */
static void linear_tile(const fm__linear_args *args, uint32_t panel, uint32_t first,
                        uint32_t count) {
    const uint8_t *weights = args->panels + panel * args->layout.stride;
    const size_t blocks = args->k / args->type->block;
    const size_t per_segment = FM__SEGMENT / args->type->block;
    float total[TILE][ROWS] = {{0}}, acc[TILE][ROWS];
    struct block b;
    for (size_t begin = 0; begin < blocks; begin += per_segment) {
        memset(acc, 0, sizeof acc);
        for (size_t i = begin; i < fm__min_size(begin + per_segment, blocks); i++) {
            read_block(args, weights, i, &b);
            for (uint32_t t = 0; t < count; t++) {
                const uint8_t *row = args->act + (first + t) * args->act_layout.stride;
                if (args->type->block == 32)
                    step_32(args, &b, row, i, acc[t]);
                else
                    step_256(args, &b, row, i, acc[t]);
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

static void linear(const fm__linear_args *args) {
    for (uint32_t t = 0; t < args->tokens; t += TILE)
        for (uint32_t p = args->panel_begin; p < args->panel_end; p++)
            linear_tile(args, p, t, args->tokens - t < TILE ? args->tokens - t : TILE);
}

/* One body, and a name for each type: reports and tests speak of kernels by name. */
#define LINEAR(id)                                                                                 \
    void fm__linear_##id##_ref(const fm__linear_args *args) {                                      \
        linear(args);                                                                              \
    }
LINEAR(q8_0)
LINEAR(q4_0)
LINEAR(q4_1)
LINEAR(q5_0)
LINEAR(q5_1)
LINEAR(iq4_nl)
LINEAR(mxfp4)
LINEAR(q2_k)
LINEAR(q3_k)
LINEAR(q4_k)
LINEAR(q5_k)
LINEAR(q6_k)
LINEAR(iq4_xs)
LINEAR(tq1_0)
LINEAR(tq2_0)
