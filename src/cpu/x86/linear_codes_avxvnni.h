/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_codes_avxvnni.h: what the AVX-VNNI kernels read of a panel.
 *
 * Owns: unpacking of panel codes to unsigned bytes, reading of scales, preparing a segment of a
 * panel. Never does: walk over tokens or panels. Included by: linear_avxvnni.h.
 *
 * A panel's 16 rows are two vectors of 8, called halves. Codes are the unsigned operand of
 * vpdpbusd: signed bytes and table values get + 128, and sums begin at -128 * (sum of activations).
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "cpu/linear_shape.h"
#include "cpu/x86/avx2.h"

enum {
    FM__AVXVNNI_CHUNKS = FM__SEGMENT / FM__CHUNK,
    /* A segment of a panel, prepared: its codes as bytes, then at these offsets: */
    FM__AVXVNNI_SCALES = FM__SEGMENT * FM__PANEL_ROWS, /* int32 [16] a sub scale, up to 64 */
    FM__AVXVNNI_MINIMA = FM__AVXVNNI_SCALES + 64 * 64, /* int16 [16][2] two minima, up to 32 */
    FM__AVXVNNI_D = FM__AVXVNNI_MINIMA + 32 * 64,      /* float [16] a block, up to 32 */
    FM__AVXVNNI_M = FM__AVXVNNI_D + 32 * 64,           /* likewise */
    FM__AVXVNNI_WEIGHTS = FM__AVXVNNI_M + 32 * 64,
};

/* log2 of the offset of the unsigned codes; -1: none. */
FM__INLINE int fm__avxvnni_offset_shift(const fm__shape shape) {
    return shape.bits == 8 || shape.lut ? 7 : shape.offset_shift;
}

/* Prepared codes whose sub scales fit a byte together with them: code * scale becomes the code. */
FM__INLINE bool fm__avxvnni_scaled(const fm__shape shape, const bool direct) {
    return !direct && shape.sub_width == 16 && shape.bits <= 3;
}

/* Two sums a chunk, each with its scale. */
FM__INLINE bool fm__avxvnni_halves(const fm__shape shape, const bool direct) {
    return shape.sub_width == 16 && !fm__avxvnni_scaled(shape, direct);
}

/* What the unsigned codes are too large by. Q3_K's (code - 4) * scale lies in -124 .. 128. */
FM__INLINE int fm__avxvnni_offset(const fm__shape shape, const bool direct) {
    const int shift = fm__avxvnni_offset_shift(shape);
    return shift < 0 ? 0 : fm__avxvnni_scaled(shape, direct) ? 124 : 1 << (shift < 0 ? 0 : shift);
}

/* ---- codes ---- */

FM__INLINE __m256i fm__avxvnni_load(const uint8_t *vectors, int v, int half) {
    return _mm256_load_si256((const __m256i *)(const void *)(vectors + 64 * v + 32 * half));
}

/* x << n, or >> -n. Bits that cross a byte are for the caller to mask. */
FM__INLINE __m256i fm__avxvnni_left(__m256i x, const int n) {
    return n > 0   ? _mm256_slli_epi16(x, n > 0 ? n : 0)
           : n < 0 ? _mm256_srli_epi16(x, n < 0 ? -n : 0)
                   : x;
}

/* Unsigned codes of k = 4v .. 4v + 3 of a chunk, of 8 rows. */
FM__INLINE __m256i fm__avxvnni_code(const fm__shape shape, const uint8_t *chunk, const int v,
                                    const int half, __m256i table) {
    if (shape.bits == 8)
        return _mm256_xor_si256(fm__avxvnni_load(chunk, v, half), _mm256_set1_epi8((char)0x80));
    const bool pairs = shape.bits == 2 || shape.bits == 3;
    const uint8_t *const above = chunk + (pairs ? 128 : 256);
    __m256i w;
    if (pairs)
        w = _mm256_and_si256(fm__avxvnni_left(fm__avxvnni_load(chunk, v & 1, half), -2 * (v / 2)),
                             _mm256_set1_epi8(3));
    else
        w = _mm256_and_si256(fm__avxvnni_left(fm__avxvnni_load(chunk, v & 3, half), -4 * (v / 4)),
                             _mm256_set1_epi8(15));
    if (shape.bits == 3 || shape.bits == 5) { /* one more bit */
        const int at = shape.bits - 1;
        const __m256i x = fm__avxvnni_left(fm__avxvnni_load(above, 0, half), at - v);
        w = _mm256_or_si256(w, _mm256_and_si256(x, _mm256_set1_epi8((char)(1 << at))));
    }
    if (shape.bits == 6) { /* two more */
        const __m256i x = fm__avxvnni_left(fm__avxvnni_load(above, v & 1, half), 4 - 2 * (v / 2));
        w = _mm256_or_si256(w, _mm256_and_si256(x, _mm256_set1_epi8(0x30)));
    }
    return shape.lut ? _mm256_shuffle_epi8(table, w) : w;
}

/* The type's table + 128 in both lanes. */
FM__INLINE __m256i fm__avxvnni_table(const fm__shape shape, const fm__type *type) {
    if (!shape.lut)
        return _mm256_setzero_si256();
    const __m128i values = _mm_loadu_si128((const __m128i *)(const void *)type->lut);
    return _mm256_broadcastsi128_si256(_mm_xor_si128(values, _mm_set1_epi8((char)0x80)));
}

/* ---- scales ---- */

FM__INLINE __m256 fm__avxvnni_float(const bool wide, const uint8_t *at, int half) {
    if (wide)
        return _mm256_load_ps((const float *)(const void *)(at + 32 * half));
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(at + 16 * half)));
}

FM__INLINE __m128i fm__avxvnni_eight(const uint8_t *bytes, int half) {
    return _mm_loadl_epi64((const __m128i *)(const void *)(bytes + 8 * half));
}

/* The scale of sub-block i of a block, as int32 lanes. */
FM__INLINE __m256i fm__avxvnni_scale(const fm__shape shape, const uint8_t *sub, int i, int half) {
    __m128i bytes = fm__avxvnni_eight(sub + 16 * i, half);
    if (shape.sub_nibbles)
        bytes = _mm_and_si128(bytes, _mm_set1_epi8(15));
    return shape.sub_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
}

/* int16 pairs of the minima of sub-blocks 2i and 2i + 1. */
FM__INLINE __m256i fm__avxvnni_minima(const fm__shape shape, const uint8_t *sub, int i, int half) {
    if (!shape.sub_nibbles)
        sub += 128; /* behind the scales */
    __m128i both = _mm_unpacklo_epi8(fm__avxvnni_eight(sub + 32 * i, half),
                                     fm__avxvnni_eight(sub + 32 * i + 16, half));
    if (shape.sub_nibbles)
        both = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
    return _mm256_cvtepu8_epi16(both);
}

/* ---- a segment of a panel, prepared ---- */

FM__INLINE void fm__avxvnni_store(uint8_t *vectors, size_t v, int half, __m256i x) {
    _mm256_store_si256((__m256i *)(void *)(vectors + 64 * v + 32 * (size_t)half), x);
}

/* (code - the type's offset) * scale + fm__avxvnni_offset, which fits a byte; two bytes at once. */
FM__INLINE __m256i fm__avxvnni_scale_code(const fm__shape shape, __m256i code, __m256i lanes) {
    const __m256i scale = _mm256_blend_epi16(lanes, _mm256_slli_epi32(lanes, 16), 0xAA);
    code = _mm256_mullo_epi16(code, scale);
    if (shape.offset_shift < 0)
        return code;
    __m256i plus = _mm256_sub_epi16(_mm256_set1_epi16((short)fm__avxvnni_offset(shape, false)),
                                    fm__avxvnni_left(scale, shape.offset_shift));
    plus = _mm256_add_epi16(plus, _mm256_slli_epi16(plus, 8));
    return _mm256_add_epi16(code, plus);
}

FM__INLINE void fm__avxvnni_prepare_sub(const fm__shape shape, const uint8_t *sub, uint32_t blocks,
                                        uint8_t *to) {
    const size_t n_scale =
        fm__avxvnni_scaled(shape, false) || !shape.sub_width ? 0 : 256 / (size_t)shape.sub_width;
    const size_t n_minima = shape.has_min ? (size_t)fm__shape_pairs(shape) : 0;
    for (size_t b = 0; b < blocks; b++, sub += fm__shape_sub_bytes(shape))
        FM__UNROLL for (int half = 0; half < 2; half++) {
            for (size_t i = 0; i < n_scale; i++)
                fm__avxvnni_store(to + FM__AVXVNNI_SCALES, b * n_scale + i, half,
                                  fm__avxvnni_scale(shape, sub, (int)i, half));
            for (size_t i = 0; i < n_minima; i++)
                fm__avxvnni_store(to + FM__AVXVNNI_MINIMA, b * n_minima + i, half,
                                  fm__avxvnni_minima(shape, sub, (int)i, half));
        }
}

/* Codes as bytes, scales as lanes of the width they are used in. */
FM__INLINE void fm__avxvnni_prepare(const fm__shape shape, const fm__linear_args *args,
                                    uint32_t panel, uint32_t k0, uint32_t chunks, __m256i table,
                                    uint8_t *to) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block, d_bytes = shape.d_is_f32 ? 64 : 32;
    const uint8_t *codes = base + layout->codes + k0 / FM__CHUNK * (size_t)(64 * shape.bits);
    const uint8_t *sub = base + layout->sub + block0 * fm__shape_sub_bytes(shape);
    const uint8_t *d = base + layout->d + block0 * d_bytes, *m = base + layout->m + block0 * 32;
    for (size_t c = 0; c < chunks; c++)
        FM__UNROLL for (int half = 0; half < 2; half++) {
            const uint8_t *block_sub = sub + c / 8 * fm__shape_sub_bytes(shape);
            FM__UNROLL for (int v = 0; v < 8; v++) {
                __m256i w =
                    fm__avxvnni_code(shape, codes + c * (size_t)(64 * shape.bits), v, half, table);
                if (fm__avxvnni_scaled(shape, false)) {
                    const int i = 2 * (int)(c % 8) + v / 4;
                    w = fm__avxvnni_scale_code(shape, w,
                                               fm__avxvnni_scale(shape, block_sub, i, half));
                }
                fm__avxvnni_store(to + c * 512, (size_t)v, half, w);
            }
        }
    const uint32_t blocks = chunks * FM__CHUNK / (uint32_t)shape.block;
    for (size_t b = 0; b < blocks; b++)
        FM__UNROLL for (int half = 0; half < 2; half++) {
            float *at = (float *)(void *)(to + FM__AVXVNNI_D + 64 * b + 32 * (size_t)half);
            _mm256_store_ps(at, fm__avxvnni_float(shape.d_is_f32, d + b * d_bytes, half));
            at += (FM__AVXVNNI_M - FM__AVXVNNI_D) / 4;
            if (shape.has_min)
                _mm256_store_ps(at, fm__avxvnni_float(false, m + b * 32, half));
        }
    if (shape.block == 256)
        fm__avxvnni_prepare_sub(shape, sub, blocks, to);
}
