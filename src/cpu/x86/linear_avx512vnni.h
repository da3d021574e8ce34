/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_avx512vnni.h: the shared body of every quantised linear kernel of the AVX-512 VNNI
 * rung.
 *
 * Owns: unpacking of panel codes to unsigned bytes, the register tiles, the walk over tokens,
 * segments and panels. Never does: choose a kernel. Called from: the two files that instantiate it
 * (linear_q32_avx512vnni.c, linear_q256_avx512vnni.c), each function with a constant shape, so that
 * the compiler folds every `shape.` test.
 *
 * Codes are the unsigned operand of vpdpbusd and activations the signed one, broadcast from memory.
 * Where value = code - offset, offset * (sum of activations) is taken off in int32, so isum is
 * exactly that of docs/numerics.md.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "cpu/linear_shape.h"
#include "cpu/x86/avx512.h"

enum {
    FM__VNNI_TILE = 8,     /* tokens of a register tile */
    FM__VNNI_DIRECT = 4,   /* up to so many tokens, panels are unpacked straight into registers */
    FM__VNNI_TOKENS = 256, /* tokens of a block: 256 KiB of activations of a segment in L2 */
    FM__VNNI_SEGMENT_CHUNKS = FM__SEGMENT / FM__CHUNK,
    FM__VNNI_SIDE = 256, /* bytes of prepared activation data a token and segment */
};

/* log2 of the offset of the unsigned codes; -1: none. Signed bytes and tables get + 128. */
FM__INLINE int fm__vnni_offset_shift(const fm__shape shape) {
    return shape.bits == 8 || shape.lut ? 7 : shape.offset_shift;
}

/* ---- codes ---- */

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
            __m512i x = _mm512_load_si512(chunk + 64 * v);
            w[v] = _mm512_and_si512(x, three);
            w[v + 2] = _mm512_and_si512(_mm512_srli_epi16(x, 2), three);
            w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), three);
            w[v + 6] = _mm512_and_si512(_mm512_srli_epi16(x, 6), three);
        }
        chunk += 128;
    } else {
        const __m512i fifteen = _mm512_set1_epi8(15);
        FM__UNROLL for (int v = 0; v < 4; v++) {
            __m512i x = _mm512_load_si512(chunk + 64 * v);
            w[v] = _mm512_and_si512(x, fifteen);
            w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), fifteen);
        }
        chunk += 256;
    }
    /* truth table 0xF8: a | (b & c) */
    if (shape.bits == 3 || shape.bits == 5) {
        const int at = shape.bits - 1;
        const __m512i bit = _mm512_set1_epi8((char)(1 << at));
        const __m512i x = _mm512_load_si512(chunk);
        FM__UNROLL for (int t = 0; t < 8; t++) {
            __m512i y = t < at ? _mm512_slli_epi16(x, (unsigned)(t < at ? at - t : 0))
                               : _mm512_srli_epi16(x, (unsigned)(t < at ? 0 : t - at));
            w[t] = _mm512_ternarylogic_epi32(w[t], y, bit, 0xF8);
        }
    }
    if (shape.bits == 6) {
        const __m512i bits = _mm512_set1_epi8(0x30);
        FM__UNROLL for (int v = 0; v < 2; v++) {
            __m512i x = _mm512_load_si512(chunk + 64 * v);
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

/* int16 pairs (2i, 2i + 1) of what multiplies the activation sums: minima, or, where codes have an
   offset, the scales. */
FM__INLINE __m512i fm__vnni_pairs(const fm__shape shape, const uint8_t *sub, int i) {
    if (!shape.sub_width)
        return _mm512_set1_epi16(1);
    if (shape.has_min && !shape.sub_nibbles)
        sub += 128; /* behind the scales */
    __m128i a = _mm_load_si128((const __m128i *)(sub + 32 * i));
    __m128i b = _mm_load_si128((const __m128i *)(sub + 32 * i + 16));
    if (shape.sub_nibbles) {
        a = _mm_and_si128(_mm_srli_epi16(a, 4), _mm_set1_epi8(15));
        b = _mm_and_si128(_mm_srli_epi16(b, 4), _mm_set1_epi8(15));
    }
    __m256i both = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
    return shape.sub_signed ? _mm512_cvtepi8_epi16(both) : _mm512_cvtepu8_epi16(both);
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

/* ---- one segment of some panels times some tokens ---- */

typedef struct fm__vnni_tile {
    const uint8_t *codes; /* unpacked bytes of the segment, or (direct) the panel's codes there */
    const uint8_t *sub;   /* panel's sub scales from the segment on */
    const uint8_t *d, *m; /* likewise */
    const uint8_t *pairs; /* unpacked pair vectors of the segment (256-blocks, not direct) */
    size_t stride;        /* panel to panel (direct) */
    const uint8_t *act;   /* first token's bytes of the segment */
    const uint8_t *act_d; /* first token's scales of the segment */
    size_t act_stride;    /* token to token */
    const uint8_t *side;  /* first token's side data of the segment */
    size_t side_stride;   /* token to token */
    size_t chunk_bytes;   /* direct: of a chunk of codes */
    uint32_t chunks;      /* of the segment */
    __m512i table;
} fm__vnni_tile;

/* acc[p][t] = the segment's sum, blocks of 32 ascending from +0. */
FM__INLINE void fm__vnni_tile32(const fm__shape shape, const bool direct, const int panels,
                                const int tokens, const fm__vnni_tile *tile, __m512 *acc) {
    FM__UNROLL for (int i = 0; i < panels * tokens; i++) acc[i] = _mm512_setzero_ps();
    const size_t d_bytes = shape.d_is_f32 ? 64 : 32;
    for (uint32_t c = 0; c < tile->chunks; c++) {
        FM__UNROLL for (int p = 0; p < panels; p++) {
            __m512i w[8];
            if (direct) {
                const uint8_t *chunk =
                    tile->codes + (size_t)p * tile->stride + c * (size_t)(64 * shape.bits);
                fm__vnni_unpack(shape, chunk, tile->table, w);
            } else {
                FM__UNROLL for (int v = 0; v < 8; v++) w[v] =
                    _mm512_load_si512(tile->codes + c * 512 + 64 * (size_t)v);
            }
            const uint8_t *dp = tile->d + (size_t)p * tile->stride + c * d_bytes;
            const __m512 d = shape.d_is_f32 ? _mm512_load_ps(dp) : fm__vnni_half(dp);
            __m512 m = d;
            if (shape.has_min)
                m = fm__vnni_half(tile->m + (size_t)p * tile->stride + c * (size_t)32);
            FM__UNROLL for (int t = 0; t < tokens; t++) {
                const uint8_t *a = tile->act + (size_t)t * tile->act_stride + c * (size_t)32;
                const uint8_t *side = tile->side + (size_t)t * tile->side_stride + c * (size_t)4;
                __m512i sum = _mm512_setzero_si512();
                if (fm__vnni_offset_shift(shape) >= 0)
                    sum = fm__vnni_broadcast(side);
                sum = fm__vnni_dot32(sum, w, a);
                const uint8_t *dap = tile->act_d + (size_t)t * tile->act_stride + c * (size_t)4;
                const __m512 da = _mm512_castsi512_ps(fm__vnni_broadcast(dap));
                __m512 x = acc[p * tokens + t];
                x = _mm512_add_ps(x, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, da)));
                if (shape.has_min) {
                    const __m512 s = _mm512_castsi512_ps(fm__vnni_broadcast(side + 128));
                    x = _mm512_add_ps(x, _mm512_mul_ps(s, _mm512_mul_ps(m, da)));
                }
                acc[p * tokens + t] = x;
            }
        }
    }
}

/* Likewise for blocks of 256. */
FM__INLINE void fm__vnni_tile256(const fm__shape shape, const bool direct, const int panels,
                                 const int tokens, const fm__vnni_tile *tile, __m512 *acc) {
    FM__UNROLL for (int i = 0; i < panels * tokens; i++) acc[i] = _mm512_setzero_ps();
    const int n_pairs = fm__shape_pairs(shape);
    const size_t sub_bytes = fm__shape_sub_bytes(shape);
    const uint32_t blocks = tile->chunks / 8;
    for (uint32_t b = 0; b < blocks; b++) {
        __m512i isum[8];
        FM__UNROLL for (int i = 0; i < panels * tokens; i++) isum[i] = _mm512_setzero_si512();
        for (uint32_t c = 8 * b; c < 8 * b + 8; c++) {
            FM__UNROLL for (int p = 0; p < panels; p++) {
                __m512i w[8];
                if (direct) {
                    const uint8_t *chunk =
                        tile->codes + (size_t)p * tile->stride + c * (size_t)(64 * shape.bits);
                    fm__vnni_unpack(shape, chunk, tile->table, w);
                } else {
                    FM__UNROLL for (int v = 0; v < 8; v++) w[v] =
                        _mm512_load_si512(tile->codes + c * 512 + 64 * (size_t)v);
                }
                const uint8_t *sub = tile->sub + (size_t)p * tile->stride + b * sub_bytes;
                __m512i s0 = _mm512_setzero_si512(), s1 = s0;
                if (shape.sub_width == 32)
                    s0 = fm__vnni_scale(shape, sub, (int)(c & 7));
                if (shape.sub_width == 16) {
                    s0 = fm__vnni_scale(shape, sub, (int)(2 * (c & 7)));
                    s1 = fm__vnni_scale(shape, sub, (int)(2 * (c & 7) + 1));
                }
                FM__UNROLL for (int t = 0; t < tokens; t++) {
                    const uint8_t *a = tile->act + (size_t)t * tile->act_stride + c * (size_t)32;
                    const uint8_t *side =
                        tile->side + (size_t)t * tile->side_stride + c * (size_t)4;
                    __m512i sum = _mm512_setzero_si512();
                    if (shape.sub_width == 16) {
                        __m512i high = fm__vnni_dot16(sum, w + 4, a + 16);
                        sum = fm__vnni_dot16(sum, w, a);
                        sum = _mm512_add_epi32(_mm512_mullo_epi32(sum, s0),
                                               _mm512_mullo_epi32(high, s1));
                    } else {
                        sum = fm__vnni_dot32(sum, w, a);
                        if (shape.sub_width)
                            sum = _mm512_mullo_epi32(sum, s0);
                    }
                    sum = _mm512_sllv_epi32(sum, fm__vnni_broadcast(side));
                    isum[p * tokens + t] = _mm512_add_epi32(isum[p * tokens + t], sum);
                }
            }
        }
        FM__UNROLL for (int p = 0; p < panels; p++) {
            __m512i pairs[8];
            const uint8_t *sub = tile->sub + (size_t)p * tile->stride + b * sub_bytes;
            FM__UNROLL for (int i = 0; i < n_pairs; i++) pairs[i] =
                direct ? fm__vnni_pairs(shape, sub, i)
                       : _mm512_load_si512(tile->pairs +
                                           64 * ((size_t)b * (size_t)n_pairs + (size_t)i));
            const __m512 d = fm__vnni_half(tile->d + (size_t)p * tile->stride + b * (size_t)32);
            __m512 m = d;
            if (shape.has_min)
                m = fm__vnni_half(tile->m + (size_t)p * tile->stride + b * (size_t)32);
            FM__UNROLL for (int t = 0; t < tokens; t++) {
                const uint8_t *side =
                    tile->side + (size_t)t * tile->side_stride + 128 + b * (size_t)(4 * n_pairs);
                __m512i msum = _mm512_setzero_si512();
                FM__UNROLL for (int i = 0; i < n_pairs; i++) msum =
                    _mm512_dpwssd_epi32(msum, pairs[i], fm__vnni_broadcast(side + 4 * i));
                const uint8_t *dap = tile->act_d + (size_t)t * tile->act_stride + b * (size_t)4;
                const __m512 da = _mm512_castsi512_ps(fm__vnni_broadcast(dap));
                __m512i sum = isum[p * tokens + t];
                if (!shape.has_min)
                    sum = _mm512_sub_epi32(
                        sum, _mm512_slli_epi32(msum, (unsigned)fm__vnni_offset_shift(shape)));
                __m512 x = acc[p * tokens + t];
                x = _mm512_add_ps(x, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, da)));
                if (shape.has_min)
                    x = _mm512_sub_ps(
                        x, _mm512_mul_ps(_mm512_cvtepi32_ps(msum), _mm512_mul_ps(m, da)));
                acc[p * tokens + t] = x;
            }
        }
    }
}

FM__INLINE void fm__vnni_tile_any(const fm__shape shape, const bool direct, const int panels,
                                  const int tokens, const fm__vnni_tile *tile, __m512 *acc) {
    if (shape.block == 32)
        fm__vnni_tile32(shape, direct, panels, tokens, tile, acc);
    else
        fm__vnni_tile256(shape, direct, panels, tokens, tile, acc);
}

/* ---- many tokens ---- */

/* The side data of one segment of one row. */
FM__INLINE void fm__vnni_side(const fm__shape shape, const uint8_t *row,
                              const fm__act_layout *layout, uint32_t segment, uint8_t *side) {
    if (shape.block == 32)
        fm__vnni_side32(shape, row, layout, segment, side);
    else
        fm__vnni_side256(shape, row, layout, segment, side);
}

/* Codes and pairs of the tile's segment into scratch; tile->codes and tile->pairs then point there.
 */
FM__INLINE void fm__vnni_unpack_segment(const fm__shape shape, fm__vnni_tile *tile, uint8_t *codes,
                                        uint8_t *pairs) {
    for (uint32_t c = 0; c < tile->chunks; c++) {
        __m512i w[8];
        fm__vnni_unpack(shape, tile->codes + c * (size_t)(64 * shape.bits), tile->table, w);
        FM__UNROLL for (int v = 0; v < 8; v++)
            _mm512_store_si512(codes + c * (size_t)512 + 64 * (size_t)v, w[v]);
    }
    tile->codes = codes;
    tile->pairs = pairs;
    if (shape.block == 32)
        return;
    const size_t n_pairs = (size_t)fm__shape_pairs(shape);
    for (uint32_t b = 0; b < tile->chunks / 8; b++)
        for (size_t i = 0; i < n_pairs; i++)
            _mm512_store_si512(
                pairs + 64 * (b * n_pairs + i),
                fm__vnni_pairs(shape, tile->sub + b * fm__shape_sub_bytes(shape), (int)i));
}

/* Where a segment of a panel and of the activations lies. */
FM__INLINE fm__vnni_tile fm__vnni_tile_at(const fm__shape shape, const fm__linear_args *args,
                                          uint32_t panel, uint32_t k0, __m512i table) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block;
    return (fm__vnni_tile){
        .codes = base + layout->codes + k0 / FM__CHUNK * (size_t)(64 * shape.bits),
        .sub = base + layout->sub + block0 * layout->sub_bytes,
        .d = base + layout->d + block0 * layout->d_bytes,
        .m = base + layout->m + block0 * 32,
        .stride = layout->stride,
        .act = args->act + args->act_layout.values + k0,
        .act_d = args->act + args->act_layout.d + block0 * 4,
        .act_stride = args->act_layout.stride,
        .chunks = (args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT) / FM__CHUNK,
        .table = table,
    };
}

/* `tokens` tokens from the tile's first on, which is the call's token t; then moves on. */
FM__INLINE void fm__vnni_advance(const fm__shape shape, const int tokens,
                                 const fm__linear_args *args, uint32_t panel, bool first,
                                 fm__vnni_tile *tile, uint32_t *t) {
    float *out = args->out + (size_t)*t * args->out_stride + (size_t)panel * FM__PANEL_ROWS;
    __m512 acc[FM__VNNI_TILE];
    fm__avx512_fetch_rows(out, args->out_stride, tokens);
    fm__vnni_tile_any(shape, false, 1, tokens, tile, acc);
    fm__avx512_store_rows(out, args->out_stride, tokens, fm__avx512_row_mask(args->n, panel), first,
                          acc);
    tile->act += (size_t)tokens * tile->act_stride;
    tile->act_d += (size_t)tokens * tile->act_stride;
    tile->side += (size_t)tokens * tile->side_stride;
    *t += (uint32_t)tokens;
}

/* Panel outside, tokens inside: a segment of a panel is unpacked once for a block of tokens. */
FM__INLINE void fm__vnni_many(const fm__shape shape, const fm__linear_args *args) {
    uint8_t *const codes = args->scratch;
    uint8_t *const pairs = codes + (size_t)FM__SEGMENT * FM__PANEL_ROWS;
    uint8_t *const sides = pairs + (size_t)(4 * 8 * 64);
    const __m512i table = fm__vnni_table(shape, args->type);
    const uint32_t end = fm__avx512_panel_end(args);
    const size_t act_stride = args->act_layout.stride;
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__VNNI_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__VNNI_TOKENS ? args->tokens : t0 + FM__VNNI_TOKENS;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            for (uint32_t t = t0; t < t1; t++)
                fm__vnni_side(shape, args->act + (size_t)t * act_stride, &args->act_layout,
                              k0 / FM__SEGMENT, sides + (size_t)(t - t0) * FM__VNNI_SIDE);
            for (uint32_t panel = args->panel_begin; panel < end; panel++) {
                fm__vnni_tile tile = fm__vnni_tile_at(shape, args, panel, k0, table);
                fm__vnni_unpack_segment(shape, &tile, codes, pairs);
                tile.act += (size_t)t0 * act_stride;
                tile.act_d += (size_t)t0 * act_stride;
                tile.side = sides;
                tile.side_stride = FM__VNNI_SIDE;
                uint32_t t = t0;
                while (t1 - t >= FM__VNNI_TILE)
                    fm__vnni_advance(shape, FM__VNNI_TILE, args, panel, k0 == 0, &tile, &t);
                while (t1 - t >= 4)
                    fm__vnni_advance(shape, 4, args, panel, k0 == 0, &tile, &t);
                while (t < t1)
                    fm__vnni_advance(shape, 1, args, panel, k0 == 0, &tile, &t);
            }
        }
    }
}

/* ---- few tokens ---- */

/* `panels` neighbours side by side: their streams draw more bandwidth than one. */
FM__INLINE void fm__vnni_few_panels(const fm__shape shape, const int panels, const int tokens,
                                    const fm__linear_args *args, uint32_t panel, __m512i table) {
    const uint32_t segments = (args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    for (uint32_t s = 0; s < segments; s++) {
        fm__vnni_tile tile = fm__vnni_tile_at(shape, args, panel, s * FM__SEGMENT, table);
        tile.side = (const uint8_t *)args->scratch + (size_t)s * FM__VNNI_SIDE;
        tile.side_stride = (size_t)segments * FM__VNNI_SIDE;
        __m512 acc[8];
        fm__vnni_tile_any(shape, true, panels, tokens, &tile, acc);
        FM__UNROLL for (int p = 0; p < panels; p++) fm__avx512_store_rows(
            args->out + (size_t)(panel + (uint32_t)p) * FM__PANEL_ROWS, args->out_stride, tokens,
            fm__avx512_row_mask(args->n, panel + (uint32_t)p), s == 0, acc + p * tokens);
    }
}

FM__INLINE void fm__vnni_few(const fm__shape shape, const int panels, const int tokens,
                             const fm__linear_args *args) {
    const uint32_t segments = (args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    const __m512i table = fm__vnni_table(shape, args->type);
    for (int t = 0; t < tokens; t++)
        for (uint32_t s = 0; s < segments; s++) {
            fm__vnni_side(shape, args->act + (size_t)t * args->act_layout.stride, &args->act_layout,
                          s, (uint8_t *)args->scratch + ((size_t)t * segments + s) * FM__VNNI_SIDE);
        }
    const uint32_t end = fm__avx512_panel_end(args);
    uint32_t panel = args->panel_begin;
    for (; panel + (uint32_t)panels <= end; panel += (uint32_t)panels)
        fm__vnni_few_panels(shape, panels, tokens, args, panel, table);
    for (; panel < end; panel++)
        fm__vnni_few_panels(shape, 1, tokens, args, panel, table);
}

/* ---- the kernel ---- */

FM__INLINE void fm__vnni_linear(const fm__shape shape, const fm__linear_args *args) {
    const size_t segments = ((size_t)args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    const bool sides_fit = segments * args->tokens * FM__VNNI_SIDE <= FM__LINEAR_SCRATCH;
    if (args->tokens > FM__VNNI_DIRECT || !sides_fit) {
        fm__vnni_many(shape, args);
        return;
    }
    switch (args->tokens) {
    case 1:
        fm__vnni_few(shape, 4, 1, args);
        break;
    case 2:
        fm__vnni_few(shape, 4, 2, args);
        break;
    case 3:
        fm__vnni_few(shape, 2, 3, args);
        break;
    case 4:
        fm__vnni_few(shape, 2, 4, args);
        break;
    default:
        break;
    }
}
