/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_avx512vnni.h: the shared body of every quantised linear kernel of the AVX-512 VNNI
 * rung.
 *
 * Owns: preparing panels and tokens, the register tile, the walk over tokens, segments and panels.
 * Never does: choose a kernel. Called from: the two files that instantiate it
 * (linear_q32_avx512vnni.c, linear_q256_avx512vnni.c), each function with a constant shape, so that
 * the compiler folds every `shape.` test.
 *
 * Codes are the unsigned operand of vpdpbusd and activations the signed one, broadcast from memory.
 * Where value = code - offset, the integer sums begin at -offset * (sum of activations), so isum is
 * exactly that of docs/numerics.md. On a Zen 4 a vpdpbusd, a product of floats and one of 32-bit
 * integers share two of the four vector pipes: these three are what a tile is short of, while
 * loads, conversions, shifts and additions are free beside them.
 */
#pragma once

#include <stdalign.h>

#include "cpu/x86/linear_codes_avx512vnni.h"
#include "cpu/x86/linear_few_avx512vnni.h"

enum {
    FM__VNNI_TILE = 8,     /* tokens of a register tile */
    FM__VNNI_TOKENS = 256, /* tokens of a block: their segments, prepared, stay in L2 */

    /* A segment of a panel, prepared: its codes as bytes, then at these offsets: */
    FM__VNNI_SCALES = FM__SEGMENT * FM__PANEL_ROWS, /* int32 [16] a sub scale, up to 64 */
    FM__VNNI_PAIRS = FM__VNNI_SCALES + 64 * 64,     /* int16 [16][2] two minima, up to 32 */
    FM__VNNI_D = FM__VNNI_PAIRS + 32 * 64,          /* float [16] a block, up to 32 */
    FM__VNNI_M = FM__VNNI_D + 32 * 64,              /* likewise */
    FM__VNNI_WEIGHTS = FM__VNNI_M + 32 * 64,

    /* A segment of a tile's tokens, prepared: a record a chunk, one after the other, so that a tile
       reads one stream. In a record 32 bytes a token, then fields of 4 bytes a token: */
    FM__VNNI_FIELD = 4 * FM__VNNI_TILE,
    FM__VNNI_START = 32 * FM__VNNI_TILE, /* int32: where sums begin; with minima the float sum */
    FM__VNNI_ROW_D = FM__VNNI_START + FM__VNNI_FIELD, /* blocks of 32: float scale */
    FM__VNNI_SHIFT = FM__VNNI_ROW_D,                  /* blocks of 256: int32 shift */
    FM__VNNI_HALF = FM__VNNI_SHIFT + FM__VNNI_FIELD,  /* int32: where the chunk's 2nd sums begin */
    FM__VNNI_RECORD = FM__VNNI_HALF + FM__VNNI_FIELD,
    /* behind the records, of blocks of 256, fields too: */
    FM__VNNI_SUMS = FM__VNNI_SEGMENT_CHUNKS * FM__VNNI_RECORD, /* int16 [2] two shifted sums */
    FM__VNNI_BLOCK_D = FM__VNNI_SUMS + 32 * FM__VNNI_FIELD,    /* float scale a block */
    FM__VNNI_ROWS = FM__VNNI_BLOCK_D + FM__SEGMENT / 256 * FM__VNNI_FIELD,
};

_Static_assert(FM__VNNI_WEIGHTS + FM__VNNI_TOKENS / FM__VNNI_TILE * FM__VNNI_ROWS <=
                   FM__LINEAR_SCRATCH,
               "prepared operands fit the scratch");

/* Sub scales that fit a byte together with their codes: code * scale becomes the code. */
FM__INLINE bool fm__vnni_scaled(const fm__shape shape) {
    return shape.sub_width == 16 && shape.bits <= 3;
}

/* Two sums a chunk, each with its scale. */
FM__INLINE bool fm__vnni_halves(const fm__shape shape) {
    return shape.sub_width == 16 && !fm__vnni_scaled(shape);
}

/* What the unsigned codes are too large by. Q3_K's (code - 4) * scale lies in -124 .. 128. */
FM__INLINE int fm__vnni_offset(const fm__shape shape) {
    if (fm__vnni_offset_shift(shape) < 0)
        return 0;
    return fm__vnni_scaled(shape) ? 124 : 1 << fm__vnni_offset_shift(shape);
}

/* Bytes of a record that the shape uses, so that records without halves lie closer. */
FM__INLINE size_t fm__vnni_record(const fm__shape shape) {
    return fm__vnni_halves(shape) ? FM__VNNI_RECORD : FM__VNNI_HALF;
}

/* ---- a segment of a tile's tokens ---- */

/* Fields gathered token by token before they are turned. */
typedef struct fm__vnni_fields {
    alignas(64) int32_t start[FM__VNNI_TILE][FM__VNNI_SEGMENT_CHUNKS];
    int32_t half[FM__VNNI_TILE][FM__VNNI_SEGMENT_CHUNKS];
    int32_t scale[FM__VNNI_TILE][FM__VNNI_SEGMENT_CHUNKS]; /* d, or the shift */
    int32_t sums[FM__VNNI_TILE][FM__VNNI_SEGMENT_CHUNKS];
} fm__vnni_fields;

/* to[i * stride] = (from[0][i], ..., from[7][i]) for i below count; writes up to a multiple of 8.
 */
FM__INLINE void fm__vnni_turn(int32_t (*from)[FM__VNNI_SEGMENT_CHUNKS], uint32_t count, uint8_t *to,
                              size_t stride) {
    for (uint32_t i = 0; i < count; i += 8) {
        __m256i a[8], b[8];
        FM__UNROLL for (int t = 0; t < 8; t++) a[t] =
            _mm256_load_si256((const __m256i *)(from[t] + i));
        FM__UNROLL for (int t = 0; t < 8; t += 2) {
            b[t] = _mm256_unpacklo_epi32(a[t], a[t + 1]);
            b[t + 1] = _mm256_unpackhi_epi32(a[t], a[t + 1]);
        }
        FM__UNROLL for (int t = 0; t < 8; t += 4) {
            a[t] = _mm256_unpacklo_epi64(b[t], b[t + 2]);
            a[t + 1] = _mm256_unpackhi_epi64(b[t], b[t + 2]);
            a[t + 2] = _mm256_unpacklo_epi64(b[t + 1], b[t + 3]);
            a[t + 3] = _mm256_unpackhi_epi64(b[t + 1], b[t + 3]);
        }
        FM__UNROLL for (int j = 0; j < 4; j++) {
            uint8_t *const at = to + (size_t)(i + (uint32_t)j) * stride;
            _mm256_store_si256((__m256i *)at, _mm256_permute2x128_si256(a[j], a[j + 4], 0x20));
            _mm256_store_si256((__m256i *)(at + 4 * stride),
                               _mm256_permute2x128_si256(a[j], a[j + 4], 0x31));
        }
    }
}

FM__INLINE void fm__vnni_fields32(const fm__shape shape, const uint8_t *row,
                                  const fm__act_layout *layout, uint32_t segment, uint32_t chunks,
                                  int t, fm__vnni_fields *fields) {
    const uint8_t *sums = row + layout->sum + (size_t)segment * (FM__VNNI_SEGMENT_CHUNKS * 2);
    const uint8_t *d = row + layout->d + (size_t)segment * (FM__VNNI_SEGMENT_CHUNKS * 4);
    for (uint32_t i = 0; i < chunks; i += 16) {
        const __m512i sum =
            _mm512_cvtepi16_epi32(_mm256_load_si256((const __m256i *)(sums + 2 * i)));
        const __m512i offset = _mm512_set1_epi32(-fm__vnni_offset(shape));
        _mm512_store_si512(fields->start[t] + i, shape.has_min
                                                     ? _mm512_castps_si512(_mm512_cvtepi32_ps(sum))
                                                     : _mm512_mullo_epi32(sum, offset));
        _mm512_store_si512(fields->scale[t] + i, _mm512_load_si512(d + 4 * (size_t)i));
    }
}

FM__INLINE void fm__vnni_fields256(const fm__shape shape, const uint8_t *row,
                                   const fm__act_layout *layout, uint32_t segment, int t,
                                   fm__vnni_fields *fields) {
    const uint8_t *shifts = row + layout->shift + (size_t)segment * FM__VNNI_SEGMENT_CHUNKS;
    const uint8_t *sums = row + layout->sum + (size_t)segment * (FM__SEGMENT / 16 * 2);
    const __m512i offset = _mm512_set1_epi32(-fm__vnni_offset(shape));
    FM__UNROLL for (int i = 0; i < 2; i++) {
        const __m512i shift =
            _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(shifts + 16 * i)));
        const __m512i by16 = _mm512_load_si512(sums + 64 * i);
        const __m512i by32 = _mm512_madd_epi16(by16, _mm512_set1_epi16(1));
        _mm512_store_si512(fields->scale[t] + 16 * i, shift);
        if (shape.has_min && shape.sub_width == 16) {
            const __m512i both = _mm512_or_si512(shift, _mm512_slli_epi32(shift, 16));
            _mm512_store_si512(fields->sums[t] + 16 * i, _mm512_sllv_epi16(by16, both));
        } else if (shape.has_min) {
            _mm256_store_si256((__m256i *)(fields->sums[t] + 8 * i),
                               _mm512_cvtepi32_epi16(_mm512_sllv_epi32(by32, shift)));
        } else if (fm__vnni_halves(shape)) {
            const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(by16, 16), 16);
            const __m512i high = _mm512_srai_epi32(by16, 16);
            _mm512_store_si512(fields->start[t] + 16 * i, _mm512_mullo_epi32(low, offset));
            _mm512_store_si512(fields->half[t] + 16 * i, _mm512_mullo_epi32(high, offset));
        } else {
            _mm512_store_si512(fields->start[t] + 16 * i, _mm512_mullo_epi32(by32, offset));
        }
    }
}

/* rows: the tile's 8 tokens (the last ones alike where there are fewer). */
FM__INLINE void fm__vnni_prepare_rows(const fm__shape shape,
                                      const uint8_t *const rows[FM__VNNI_TILE],
                                      const fm__act_layout *layout, uint32_t segment,
                                      uint32_t chunks, uint8_t *to) {
    fm__vnni_fields fields;
    const size_t record = fm__vnni_record(shape);
    const size_t values = layout->values + (size_t)segment * FM__SEGMENT;
    for (uint32_t c = 0; c < chunks; c++)
        FM__UNROLL for (int t = 0; t < FM__VNNI_TILE; t++) _mm256_store_si256(
            (__m256i *)(to + c * record + 32 * (size_t)t),
            _mm256_load_si256((const __m256i *)(rows[t] + values + c * (size_t)32)));
    for (int t = 0; t < FM__VNNI_TILE; t++)
        if (shape.block == 32)
            fm__vnni_fields32(shape, rows[t], layout, segment, chunks, t, &fields);
        else
            fm__vnni_fields256(shape, rows[t], layout, segment, t, &fields);
    if (shape.block == 32 || !shape.has_min)
        fm__vnni_turn(fields.start, chunks, to + FM__VNNI_START, record);
    fm__vnni_turn(fields.scale, chunks, to + FM__VNNI_SHIFT, record);
    if (shape.block == 32)
        return;
    if (fm__vnni_halves(shape))
        fm__vnni_turn(fields.half, chunks, to + FM__VNNI_HALF, record);
    if (shape.has_min)
        fm__vnni_turn(fields.sums, chunks * (uint32_t)fm__shape_pairs(shape) / 8,
                      to + FM__VNNI_SUMS, FM__VNNI_FIELD);
    for (int t = 0; t < FM__VNNI_TILE; t++)
        for (uint32_t b = 0; b < chunks / 8; b++)
            memcpy(to + FM__VNNI_BLOCK_D + b * (size_t)FM__VNNI_FIELD + 4 * (size_t)t,
                   rows[t] + layout->d + (segment * (FM__SEGMENT / 256) + b) * (size_t)4, 4);
}

/* ---- a segment of a panel ---- */

/* w = (code - the type's offset) * scale + fm__vnni_offset, which fits a byte; two bytes at once.
 */
FM__INLINE void fm__vnni_scale_codes(const fm__shape shape, const uint8_t *sub, int chunk,
                                     __m512i w[8]) {
    FM__UNROLL for (int half = 0; half < 2; half++) {
        const __m512i lanes = fm__vnni_scale(shape, sub, 2 * chunk + half);
        const __m512i scale =
            _mm512_mask_blend_epi16(0xAAAAAAAA, lanes, _mm512_slli_epi32(lanes, 16));
        __m512i plus = _mm512_setzero_si512();
        if (shape.offset_shift >= 0) {
            const unsigned shift = (unsigned)(shape.offset_shift >= 0 ? shape.offset_shift : 0);
            plus = _mm512_sub_epi16(_mm512_set1_epi16((short)fm__vnni_offset(shape)),
                                    _mm512_slli_epi16(scale, shift));
            plus = _mm512_add_epi16(plus, _mm512_slli_epi16(plus, 8));
        }
        FM__UNROLL for (int v = 4 * half; v < 4 * half + 4; v++) w[v] =
            _mm512_add_epi16(_mm512_mullo_epi16(w[v], scale), plus);
    }
}

FM__INLINE void fm__vnni_prepare_sub(const fm__shape shape, const uint8_t *sub, uint32_t blocks,
                                     uint8_t *to) {
    const int n_scale = fm__vnni_scaled(shape) || !shape.sub_width ? 0 : 256 / shape.sub_width;
    const int n_pairs = shape.has_min ? fm__shape_pairs(shape) : 0;
    for (uint32_t b = 0; b < blocks; b++, sub += fm__shape_sub_bytes(shape)) {
        for (int i = 0; i < n_scale; i++)
            _mm512_store_si512(to + FM__VNNI_SCALES + 64 * (b * (size_t)n_scale + (size_t)i),
                               fm__vnni_scale(shape, sub, i));
        for (int i = 0; i < n_pairs; i++)
            _mm512_store_si512(to + FM__VNNI_PAIRS + 64 * (b * (size_t)n_pairs + (size_t)i),
                               fm__vnni_pairs(shape, sub, i));
    }
}

/* Codes as bytes, scales as lanes of the width they are used in. */
FM__INLINE void fm__vnni_prepare(const fm__shape shape, const fm__linear_args *args, uint32_t panel,
                                 uint32_t k0, uint32_t chunks, __m512i table, uint8_t *to) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block;
    const uint8_t *codes = base + layout->codes + k0 / FM__CHUNK * (size_t)(64 * shape.bits);
    const uint8_t *sub = base + layout->sub + block0 * fm__shape_sub_bytes(shape);
    const uint8_t *d = base + layout->d + block0 * (shape.d_is_f32 ? 64 : 32);
    const uint8_t *m = base + layout->m + block0 * 32;
    for (uint32_t c = 0; c < chunks; c++) {
        __m512i w[8];
        fm__vnni_unpack(shape, codes + c * (size_t)(64 * shape.bits), table, w);
        if (fm__vnni_scaled(shape))
            fm__vnni_scale_codes(shape, sub + c / 8 * fm__shape_sub_bytes(shape), (int)(c % 8), w);
        FM__UNROLL for (int v = 0; v < 8; v++)
            _mm512_store_si512(to + c * (size_t)512 + 64 * (size_t)v, w[v]);
    }
    const uint32_t blocks = chunks * FM__CHUNK / (uint32_t)shape.block;
    for (uint32_t b = 0; b < blocks; b++) {
        const size_t at = 64 * (size_t)b;
        _mm512_store_ps(to + FM__VNNI_D + at,
                        shape.d_is_f32 ? _mm512_load_ps(d + at) : fm__vnni_half(d + at / 2));
        if (shape.has_min)
            _mm512_store_ps(to + FM__VNNI_M + at, fm__vnni_half(m + at / 2));
    }
    if (shape.block == 256)
        fm__vnni_prepare_sub(shape, sub, blocks, to);
}

/* ---- a prepared segment of a panel times a prepared tile ---- */

FM__INLINE void fm__vnni_zero(const int tokens, __m512i *sum) {
    FM__UNROLL for (int t = 0; t < tokens; t++) sum[t] = _mm512_setzero_si512();
}

/* sum[t] = token t's number in a field. */
FM__INLINE void fm__vnni_begin(const int tokens, const uint8_t *field, __m512i *sum) {
    FM__UNROLL for (int t = 0; t < tokens; t++) sum[t] = fm__vnni_broadcast(field + 4 * (size_t)t);
}

/* sum[t] += dots of `vectors` vectors of codes with token t's bytes. Chains of all tokens advance
   together: an order that asks little of the processor's window. */
FM__INLINE void fm__vnni_dots(const int tokens, const int vectors, const uint8_t *codes,
                              const uint8_t *bytes, __m512i *sum) {
    FM__UNROLL for (int v = 0; v < vectors; v++) {
        const __m512i w = _mm512_load_si512(codes + 64 * (size_t)v);
        FM__UNROLL for (int t = 0; t < tokens; t++) sum[t] = _mm512_dpbusd_epi32(
            sum[t], w, fm__vnni_broadcast(bytes + 32 * (size_t)t + 4 * (size_t)v));
    }
}

/* x + or - y * (d * da). */
FM__INLINE __m512 fm__vnni_step(const bool minus, __m512 x, __m512 y, __m512 d, const uint8_t *da) {
    y = _mm512_mul_ps(y, _mm512_mul_ps(d, _mm512_castsi512_ps(fm__vnni_broadcast(da))));
    return minus ? _mm512_sub_ps(x, y) : _mm512_add_ps(x, y);
}

/* acc[t] = the segment's sum, blocks of 32 ascending from +0. */
FM__INLINE void fm__vnni_tile32(const fm__shape shape, const int tokens, const uint8_t *weights,
                                const uint8_t *rows, uint32_t chunks, __m512 *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < chunks; c++) {
        const uint8_t *record = rows + c * fm__vnni_record(shape);
        const uint8_t *start = record + FM__VNNI_START, *da = record + FM__VNNI_ROW_D;
        __m512i sum[FM__VNNI_TILE];
        if (fm__vnni_offset(shape))
            fm__vnni_begin(tokens, start, sum);
        else
            fm__vnni_zero(tokens, sum);
        fm__vnni_dots(tokens, 8, weights + c * (size_t)512, record, sum);
        const __m512 d = _mm512_load_ps(weights + FM__VNNI_D + c * (size_t)64);
        FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] =
            fm__vnni_step(false, acc[t], _mm512_cvtepi32_ps(sum[t]), d, da + 4 * (size_t)t);
        if (!shape.has_min)
            continue;
        const __m512 m = _mm512_load_ps(weights + FM__VNNI_M + c * (size_t)64);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const __m512 s = _mm512_castsi512_ps(fm__vnni_broadcast(start + 4 * (size_t)t));
            acc[t] = fm__vnni_step(false, acc[t], s, m, da + 4 * (size_t)t);
        }
    }
}

/* isum[t] += (sum[t] * scale) << shift. */
FM__INLINE void fm__vnni_add(const bool scaled, const int tokens, const uint8_t *scale,
                             const uint8_t *shift, const __m512i *sum, __m512i *isum) {
    const __m512i s = scaled ? _mm512_load_si512(scale) : _mm512_setzero_si512();
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        __m512i x = scaled ? _mm512_mullo_epi32(sum[t], s) : sum[t];
        x = _mm512_sllv_epi32(x, fm__vnni_broadcast(shift + 4 * (size_t)t));
        isum[t] = _mm512_add_epi32(isum[t], x);
    }
}

/* acc[t] -= the block's minima. */
FM__INLINE void fm__vnni_minima(const fm__shape shape, const int tokens, const uint8_t *weights,
                                const uint8_t *rows, uint32_t block, const uint8_t *da,
                                __m512 *acc) {
    const int n_pairs = fm__shape_pairs(shape);
    __m512i sum[FM__VNNI_TILE];
    fm__vnni_zero(tokens, sum);
    FM__UNROLL for (int i = 0; i < n_pairs; i++) {
        const size_t pair = block * (size_t)n_pairs + (size_t)i;
        const uint8_t *sums = rows + FM__VNNI_SUMS + pair * FM__VNNI_FIELD;
        const __m512i minima = _mm512_load_si512(weights + FM__VNNI_PAIRS + 64 * pair);
        FM__UNROLL for (int t = 0; t < tokens; t++) sum[t] =
            _mm512_dpwssd_epi32(sum[t], minima, fm__vnni_broadcast(sums + 4 * (size_t)t));
    }
    const __m512 m = _mm512_load_ps(weights + FM__VNNI_M + block * (size_t)64);
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] =
        fm__vnni_step(true, acc[t], _mm512_cvtepi32_ps(sum[t]), m, da + 4 * (size_t)t);
}

/* Likewise for blocks of 256. */
FM__INLINE void fm__vnni_tile256(const fm__shape shape, const int tokens, const uint8_t *weights,
                                 const uint8_t *rows, uint32_t chunks, __m512 *acc) {
    const bool halves = fm__vnni_halves(shape);
    const bool scaled = shape.sub_width && !fm__vnni_scaled(shape);
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < chunks / 8; b++) {
        __m512i isum[FM__VNNI_TILE];
        fm__vnni_zero(tokens, isum);
        for (uint32_t c = 8 * b; c < 8 * b + 8; c++) {
            const uint8_t *record = rows + c * fm__vnni_record(shape);
            const uint8_t *codes = weights + c * (size_t)512, *shift = record + FM__VNNI_SHIFT;
            const uint8_t *scale = weights + FM__VNNI_SCALES + c * (size_t)(halves ? 128 : 64);
            __m512i sum[FM__VNNI_TILE];
            if (fm__vnni_offset(shape))
                fm__vnni_begin(tokens, record + FM__VNNI_START, sum);
            else
                fm__vnni_zero(tokens, sum);
            fm__vnni_dots(tokens, halves ? 4 : 8, codes, record, sum);
            fm__vnni_add(scaled, tokens, scale, shift, sum, isum);
            if (!halves)
                continue;
            fm__vnni_begin(tokens, record + FM__VNNI_HALF, sum);
            fm__vnni_dots(tokens, 4, codes + 256, record + 16, sum);
            fm__vnni_add(scaled, tokens, scale + 64, shift, sum, isum);
        }
        const uint8_t *da = rows + FM__VNNI_BLOCK_D + b * (size_t)FM__VNNI_FIELD;
        const __m512 d = _mm512_load_ps(weights + FM__VNNI_D + b * (size_t)64);
        FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] =
            fm__vnni_step(false, acc[t], _mm512_cvtepi32_ps(isum[t]), d, da + 4 * (size_t)t);
        if (shape.has_min)
            fm__vnni_minima(shape, tokens, weights, rows, b, da, acc);
    }
}

/* ---- many tokens ---- */

/* Where the products of a prepared segment of a panel go. */
typedef struct fm__vnni_place {
    float *out;     /* of the block's first token */
    size_t stride;  /* floats */
    __mmask16 rows; /* that exist */
    bool first;     /* segment */
} fm__vnni_place;

/* The first `tokens` tokens of a tile, of which `count` are stored. */
FM__INLINE void fm__vnni_run(const fm__shape shape, const int tokens, const uint8_t *weights,
                             const uint8_t *rows, uint32_t chunks, const fm__vnni_place *place,
                             uint32_t token, uint32_t count) {
    float *const out = place->out + (size_t)token * place->stride;
    __m512 acc[FM__VNNI_TILE];
    fm__avx512_fetch_rows(out, place->stride, (int)count);
    if (shape.block == 32)
        fm__vnni_tile32(shape, tokens, weights, rows, chunks, acc);
    else
        fm__vnni_tile256(shape, tokens, weights, rows, chunks, acc);
    FM__UNROLL for (int t = 0; t < tokens; t++) if ((uint32_t)t < count) fm__avx512_store_rows(
        out + (size_t)t * place->stride, place->stride, 1, place->rows, place->first, acc + t);
}

/* Bytes of a panel's `chunks` chunks at k0: codes, to be fetched while the panel before is
   multiplied; scales, which are few, at once. */
FM__INLINE fm__avx512_ahead fm__vnni_next(const fm__shape shape, const fm__linear_args *args,
                                          uint32_t panel, uint32_t k0, uint32_t chunks,
                                          size_t tiles) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block;
    const size_t blocks = chunks * FM__CHUNK / (uint32_t)shape.block;
    const size_t d_bytes = shape.d_is_f32 ? 64 : 32, sub_bytes = fm__shape_sub_bytes(shape);
    for (size_t i = 0; i < blocks * sub_bytes; i += 64)
        _mm_prefetch((const char *)base + layout->sub + block0 * sub_bytes + i, _MM_HINT_T0);
    for (size_t i = 0; i < blocks * d_bytes; i += 64)
        _mm_prefetch((const char *)base + layout->d + block0 * d_bytes + i, _MM_HINT_T0);
    for (size_t i = 0; shape.has_min && i < blocks * 32; i += 64)
        _mm_prefetch((const char *)base + layout->m + block0 * 32 + i, _MM_HINT_T0);
    const size_t chunk_bytes = 64 * (size_t)shape.bits;
    return fm__avx512_ahead_of(base + layout->codes + k0 / FM__CHUNK * chunk_bytes,
                               chunks * chunk_bytes, tiles);
}

/* Tokens [t0, t1), whose segment at k0 is prepared in rows, times every panel. */
FM__INLINE void fm__vnni_panels(const fm__shape shape, const fm__linear_args *args, uint32_t t0,
                                uint32_t t1, uint32_t k0, uint32_t chunks, __m512i table) {
    uint8_t *const weights = args->scratch;
    const uint32_t end = fm__avx512_panel_end(args);
    for (uint32_t panel = args->panel_begin; panel < end; panel++) {
        const fm__vnni_place place = {
            .out = args->out + (size_t)t0 * args->out_stride + (size_t)panel * FM__PANEL_ROWS,
            .stride = args->out_stride,
            .rows = fm__avx512_row_mask(args->n, panel),
            .first = k0 == 0,
        };
        const uint8_t *rows = weights + FM__VNNI_WEIGHTS;
        fm__vnni_prepare(shape, args, panel, k0, chunks, table, weights);
        fm__avx512_ahead ahead = {0};
        if (panel + 1 < end)
            ahead = fm__vnni_next(shape, args, panel + 1, k0, chunks,
                                  (t1 - t0 + FM__VNNI_TILE - 1) / FM__VNNI_TILE);
        for (uint32_t t = 0; t < t1 - t0; t += FM__VNNI_TILE, rows += FM__VNNI_ROWS) {
            const uint32_t left = t1 - t0 - t;
            fm__avx512_fetch(&ahead);
            if (left > 4)
                fm__vnni_run(shape, FM__VNNI_TILE, weights, rows, chunks, &place, t,
                             left < FM__VNNI_TILE ? left : FM__VNNI_TILE);
            else
                fm__vnni_run(shape, 4, weights, rows, chunks, &place, t, left);
        }
    }
}

FM__INLINE void fm__vnni_many(const fm__shape shape, const fm__linear_args *args) {
    const __m512i table = fm__vnni_table(shape, args->type);
    /* blocks as even as whole tiles allow */
    const uint32_t blocks = (args->tokens + FM__VNNI_TOKENS - 1) / FM__VNNI_TOKENS;
    const uint32_t even = (args->tokens + blocks - 1) / blocks;
    const uint32_t block = (even + FM__VNNI_TILE - 1) / FM__VNNI_TILE * FM__VNNI_TILE;
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += block) {
        const uint32_t t1 = args->tokens - t0 < block ? args->tokens : t0 + block;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const uint32_t left = args->k - k0;
            const uint32_t chunks = (left < FM__SEGMENT ? left : FM__SEGMENT) / FM__CHUNK;
            uint8_t *to = (uint8_t *)args->scratch + FM__VNNI_WEIGHTS;
            for (uint32_t t = t0; t < t1; t += FM__VNNI_TILE, to += FM__VNNI_ROWS) {
                const uint8_t *rows[FM__VNNI_TILE];
                for (uint32_t i = 0; i < FM__VNNI_TILE; i++)
                    rows[i] =
                        args->act + (size_t)(t + i < t1 ? t + i : t1 - 1) * args->act_layout.stride;
                fm__vnni_prepare_rows(shape, rows, &args->act_layout, k0 / FM__SEGMENT, chunks, to);
            }
            fm__vnni_panels(shape, args, t0, t1, k0, chunks, table);
        }
    }
}

/* ---- the kernel ---- */

FM__INLINE void fm__vnni_linear(const fm__shape shape, const fm__linear_args *args) {
    if (fm__vnni_few_fits(args))
        fm__vnni_few(shape, args);
    else
        fm__vnni_many(shape, args);
}
