/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_codes_avx512vnni.h: what the AVX-512 VNNI kernels for many and for few tokens
 * share.
 *
 * Owns: unpacking of panel codes to unsigned bytes, reading of scales, the side data of
 * activations. Never does: walk over tokens or panels. Included by: linear_avx512vnni.h and
 * linear_few_avx512vnni.h.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "cpu/linear_shape.h"
#include "cpu/x86/avx512.h"

enum {
    FM__VNNI_SEGMENT_CHUNKS = FM__SEGMENT / FM__CHUNK,
    FM__VNNI_SIDE = 256, /* bytes of prepared activation data a token and segment */
};

/* log2 of the offset of the unsigned codes; -1: none. Signed bytes and tables get + 128. */
FM__INLINE int fm__vnni_offset_shift(const fm__shape shape) {
    return shape.bits == 8 || shape.lut ? 7 : shape.offset_shift;
}

/* ---- codes ---- */

/* Into a register: the compiler would read memory once a use, and loads are one a cycle. */
FM__INLINE __m512i fm__vnni_load(const uint8_t *p) {
    __m512i x = _mm512_load_si512(p);
    __asm__("" : "+v"(x));
    return x;
}

/* One chunk (32 k of 16 rows) as 8 vectors of unsigned bytes, k ascending by 4. */
FM__INLINE void fm__vnni_unpack(const fm__shape shape, const uint8_t *chunk, __m512i table,
                                __m512i w[8]) {
    if (shape.bits == 8) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        FM__UNROLL for (int v = 0; v < 8; v++) w[v] =
            _mm512_xor_si512(_mm512_load_si512(chunk + 64 * v), flip);
        return;
    }
    if (shape.bits == 2 || shape.bits == 3) {
        const __m512i three = _mm512_set1_epi8(3);
        FM__UNROLL for (int v = 0; v < 2; v++) {
            __m512i x = fm__vnni_load(chunk + 64 * v);
            w[v] = _mm512_and_si512(x, three);
            w[v + 2] = _mm512_and_si512(_mm512_srli_epi16(x, 2), three);
            w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), three);
            w[v + 6] = _mm512_and_si512(_mm512_srli_epi16(x, 6), three);
        }
        chunk += 128;
    } else {
        const __m512i fifteen = _mm512_set1_epi8(15);
        FM__UNROLL for (int v = 0; v < 4; v++) {
            __m512i x = fm__vnni_load(chunk + 64 * v);
            w[v] = _mm512_and_si512(x, fifteen);
            w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), fifteen);
        }
        chunk += 256;
    }
    /* truth table 0xF8: a | (b & c) */
    if (shape.bits == 3 || shape.bits == 5) {
        const int at = shape.bits - 1;
        const __m512i bit = _mm512_set1_epi8((char)(1 << at));
        const __m512i x = fm__vnni_load(chunk);
        FM__UNROLL for (int t = 0; t < 8; t++) {
            __m512i y = t < at ? _mm512_slli_epi16(x, (unsigned)(t < at ? at - t : 0))
                               : _mm512_srli_epi16(x, (unsigned)(t < at ? 0 : t - at));
            w[t] = _mm512_ternarylogic_epi32(w[t], y, bit, 0xF8);
        }
    }
    if (shape.bits == 6) {
        const __m512i bits = _mm512_set1_epi8(0x30);
        FM__UNROLL for (int v = 0; v < 2; v++) {
            __m512i x = fm__vnni_load(chunk + 64 * v);
            w[v] = _mm512_ternarylogic_epi32(w[v], _mm512_slli_epi16(x, 4), bits, 0xF8);
            w[v + 2] = _mm512_ternarylogic_epi32(w[v + 2], _mm512_slli_epi16(x, 2), bits, 0xF8);
            w[v + 4] = _mm512_ternarylogic_epi32(w[v + 4], x, bits, 0xF8);
            w[v + 6] = _mm512_ternarylogic_epi32(w[v + 6], _mm512_srli_epi16(x, 2), bits, 0xF8);
        }
    }
    if (shape.lut)
        FM__UNROLL for (int v = 0; v < 8; v++) w[v] = _mm512_shuffle_epi8(table, w[v]);
}

/* The type's table + 128 in each 16 bytes. */
FM__INLINE __m512i fm__vnni_table(const fm__shape shape, const fm__type *type) {
    if (!shape.lut)
        return _mm512_setzero_si512();
    __m128i values = _mm_loadu_si128((const __m128i *)type->lut);
    return _mm512_broadcast_i32x4(_mm_xor_si128(values, _mm_set1_epi8((char)0x80)));
}

FM__INLINE __m512 fm__vnni_half(const uint8_t *halves) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)halves));
}

FM__INLINE __m512i fm__vnni_broadcast(const void *four_bytes) {
    int32_t x;
    memcpy(&x, four_bytes, 4);
    return _mm512_set1_epi32(x);
}

/* isum of 16 k (4 vectors) or 32 k (8 vectors, two chains: vpdpbusd takes 4 cycles). */
FM__INLINE __m512i fm__vnni_dot16(__m512i sum, const __m512i *w, const uint8_t *a) {
    FM__UNROLL for (int v = 0; v < 4; v++) sum =
        _mm512_dpbusd_epi32(sum, w[v], fm__vnni_broadcast(a + 4 * v));
    return sum;
}
FM__INLINE __m512i fm__vnni_dot32(__m512i sum, const __m512i *w, const uint8_t *a) {
    __m512i high = _mm512_setzero_si512();
    FM__UNROLL for (int v = 0; v < 4; v++) {
        sum = _mm512_dpbusd_epi32(sum, w[v], fm__vnni_broadcast(a + 4 * v));
        high = _mm512_dpbusd_epi32(high, w[v + 4], fm__vnni_broadcast(a + 16 + 4 * v));
    }
    return _mm512_add_epi32(sum, high);
}

/* ---- sub scales ---- */

/* The scale of sub-block i of a block, as int32 lanes. */
FM__INLINE __m512i fm__vnni_scale(const fm__shape shape, const uint8_t *sub, int i) {
    __m128i bytes = _mm_load_si128((const __m128i *)(sub + 16 * i));
    if (shape.sub_nibbles)
        bytes = _mm_and_si128(bytes, _mm_set1_epi8(15));
    return shape.sub_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
}

/* Bytes of sub-blocks 2i and 2i + 1 as int16 pairs. */
FM__INLINE __m512i fm__vnni_sub_pairs(const fm__shape shape, const uint8_t *sub, int i) {
    const __m128i a = _mm_load_si128((const __m128i *)(sub + 32 * i));
    const __m128i b = _mm_load_si128((const __m128i *)(sub + 32 * i + 16));
    const __m256i both = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
    return shape.sub_signed ? _mm512_cvtepi8_epi16(both) : _mm512_cvtepu8_epi16(both);
}

/* Their scales. */
FM__INLINE __m512i fm__vnni_scale_pairs(const fm__shape shape, const uint8_t *sub, int i) {
    const __m512i pairs = fm__vnni_sub_pairs(shape, sub, i);
    return shape.sub_nibbles ? _mm512_and_si512(pairs, _mm512_set1_epi16(15)) : pairs;
}

/* What multiplies their activation sums: minima, or, where codes have an offset, the scales. */
FM__INLINE __m512i fm__vnni_pairs(const fm__shape shape, const uint8_t *sub, int i) {
    if (!shape.sub_width)
        return _mm512_set1_epi16(1);
    if (shape.has_min && !shape.sub_nibbles)
        sub += 128; /* behind the scales */
    const __m512i pairs = fm__vnni_sub_pairs(shape, sub, i);
    return shape.sub_nibbles ? _mm512_srli_epi16(pairs, 4) : pairs;
}

/* ---- activations: what a segment of one token needs besides its bytes ---- */

/* Q8_32: int32 -offset * sum [32], then (float)sum [32] where the type has a minimum. */
FM__INLINE void fm__vnni_side32(const fm__shape shape, const uint8_t *row,
                                const fm__act_layout *layout, uint32_t segment, uint8_t *side) {
    const uint8_t *sums = row + layout->sum + (size_t)segment * (FM__VNNI_SEGMENT_CHUNKS * 2);
    FM__UNROLL for (int i = 0; i < 2; i++) {
        __m512i sum = _mm512_cvtepi16_epi32(_mm256_load_si256((const __m256i *)(sums + 32 * i)));
        __m512i bias = _mm512_setzero_si512();
        if (fm__vnni_offset_shift(shape) >= 0)
            bias = _mm512_sub_epi32(bias,
                                    _mm512_slli_epi32(sum, (unsigned)fm__vnni_offset_shift(shape)));
        _mm512_store_si512(side + 64 * i, bias);
        if (shape.has_min)
            _mm512_store_ps(side + 128 + 64 * i, _mm512_cvtepi32_ps(sum));
    }
}

/* Q8_256: int32 shift [32], then int16 (sum << shift) per 16 [64] or per 32 [32]. */
FM__INLINE void fm__vnni_side256(const fm__shape shape, const uint8_t *row,
                                 const fm__act_layout *layout, uint32_t segment, uint8_t *side) {
    const uint8_t *shifts = row + layout->shift + (size_t)segment * FM__VNNI_SEGMENT_CHUNKS;
    const uint8_t *sums = row + layout->sum + (size_t)segment * (FM__SEGMENT / 16 * 2);
    FM__UNROLL for (int i = 0; i < 2; i++) {
        __m512i shift = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(shifts + 16 * i)));
        __m512i sum = _mm512_load_si512(sums + 64 * i);
        _mm512_store_si512(side + 64 * i, shift);
        if (shape.sub_width == 16) {
            __m512i both = _mm512_or_si512(shift, _mm512_slli_epi32(shift, 16));
            _mm512_store_si512(side + 128 + 64 * i, _mm512_sllv_epi16(sum, both));
        } else {
            sum = _mm512_madd_epi16(sum, _mm512_set1_epi16(1));
            sum = _mm512_sllv_epi32(sum, shift);
            _mm256_store_si256((__m256i *)(side + 128 + 32 * i), _mm512_cvtepi32_epi16(sum));
        }
    }
}

/* The side data of one segment of one row. */
FM__INLINE void fm__vnni_side(const fm__shape shape, const uint8_t *row,
                              const fm__act_layout *layout, uint32_t segment, uint8_t *side) {
    if (shape.block == 32)
        fm__vnni_side32(shape, row, layout, segment, side);
    else
        fm__vnni_side256(shape, row, layout, segment, side);
}
