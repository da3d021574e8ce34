/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_quant_avx2.h: the shared body of every quantised linear kernel of the AVX2 rung.
 *
 * Owns: unpacking of panel codes, the register tiles, the walk over tokens, segments and panels.
 * Never does: choose a kernel. Called from: linear_q32_avx2.c and linear_q256_avx2.c, each function
 * with a constant shape.
 *
 * A tile is half a panel (8 rows) times a few tokens. vpmaddubsw adds pairs in int16 and saturates,
 * so: unsigned codes of up to 6 bits are multiplied as they are, as many groups added in int16 as
 * must fit; signed bytes and table values become |w| times the activation with w's sign.
 */
#pragma once

#include "cpu/linear_shape.h"
#include "cpu/x86/avx2.h"

enum {
    FM__AVX2_TILE = 4,     /* tokens of a register tile */
    FM__AVX2_TOKENS = 256, /* tokens of a block: 256 KiB of activations of a segment in L2 */
    FM__AVX2_CHUNKS = FM__SEGMENT / FM__CHUNK,
    FM__AVX2_SIDE = 256, /* bytes of prepared activation data a token and segment */
};

FM__INLINE bool fm__avx2_signed(const fm__shape shape) {
    return shape.bits == 8 || shape.lut;
}

/* ---- codes ---- */

/* Half a chunk (32 k of 8 rows) as 8 vectors, k ascending by 4; `chunk` points at the half's first
   32 bytes, further vectors lie 64 bytes apart. */
FM__INLINE void fm__avx2_unpack(const fm__shape shape, const uint8_t *chunk, __m256i table,
                                __m256i w[8]) {
    const __m256i *at = (const __m256i *)(const void *)chunk; /* 64 bytes are 2 vectors */
    if (shape.bits == 8) {
        FM__UNROLL for (int v = 0; v < 8; v++) w[v] = _mm256_load_si256(at + 2 * v);
        return;
    }
    if (shape.bits == 2 || shape.bits == 3) {
        const __m256i three = _mm256_set1_epi8(3);
        FM__UNROLL for (int v = 0; v < 2; v++) {
            const __m256i x = _mm256_load_si256(at + 2 * v);
            w[v] = _mm256_and_si256(x, three);
            w[v + 2] = _mm256_and_si256(_mm256_srli_epi16(x, 2), three);
            w[v + 4] = _mm256_and_si256(_mm256_srli_epi16(x, 4), three);
            w[v + 6] = _mm256_and_si256(_mm256_srli_epi16(x, 6), three);
        }
        at += 4;
    } else {
        const __m256i fifteen = _mm256_set1_epi8(15);
        FM__UNROLL for (int v = 0; v < 4; v++) {
            const __m256i x = _mm256_load_si256(at + 2 * v);
            w[v] = _mm256_and_si256(x, fifteen);
            w[v + 4] = _mm256_and_si256(_mm256_srli_epi16(x, 4), fifteen);
        }
        at += 8;
    }
    if (shape.bits == 3 || shape.bits == 5) { /* one more bit above */
        const int above = shape.bits - 1;
        const __m256i bit = _mm256_set1_epi8((char)(1 << above));
        const __m256i x = _mm256_load_si256(at);
        FM__UNROLL for (int t = 0; t < 8; t++) {
            const __m256i y = t < above ? _mm256_slli_epi16(x, t < above ? above - t : 0)
                                        : _mm256_srli_epi16(x, t < above ? 0 : t - above);
            w[t] = _mm256_or_si256(w[t], _mm256_and_si256(y, bit));
        }
    }
    if (shape.bits == 6) { /* two more */
        const __m256i bits = _mm256_set1_epi8(0x30);
        FM__UNROLL for (int v = 0; v < 2; v++) {
            const __m256i x = _mm256_load_si256(at + 2 * v);
            w[v] = _mm256_or_si256(w[v], _mm256_and_si256(_mm256_slli_epi16(x, 4), bits));
            w[v + 2] = _mm256_or_si256(w[v + 2], _mm256_and_si256(_mm256_slli_epi16(x, 2), bits));
            w[v + 4] = _mm256_or_si256(w[v + 4], _mm256_and_si256(x, bits));
            w[v + 6] = _mm256_or_si256(w[v + 6], _mm256_and_si256(_mm256_srli_epi16(x, 2), bits));
        }
    }
    if (shape.lut)
        FM__UNROLL for (int v = 0; v < 8; v++) w[v] = _mm256_shuffle_epi8(table, w[v]);
}

FM__INLINE __m256i fm__avx2_table(const fm__shape shape, const fm__type *type) {
    if (!shape.lut)
        return _mm256_setzero_si256();
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)type->lut));
}

FM__INLINE __m256 fm__avx2_half(const uint8_t *halves) {
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)halves));
}

FM__INLINE __m256i fm__avx2_broadcast(const void *four_bytes) {
    int32_t x;
    memcpy(&x, four_bytes, 4);
    return _mm256_set1_epi32(x);
}

/* The sum over `groups` vectors of 4 k of w * a, times `scale` (int16, the same in both halves of a
   lane). */
FM__INLINE __m256i fm__avx2_dot(const fm__shape shape, const int groups, const __m256i *w,
                                const uint8_t *a, __m256i scale) {
    /* groups whose int16 sums of pairs stay within 32767: 2 * 127 * 15 * 8, 31 * 4, 63 * 2 */
    const int together = fm__avx2_signed(shape) ? 1
                         : shape.bits == 6      ? 2
                         : shape.bits == 5      ? 4
                                                : groups;
    __m256i sum = _mm256_setzero_si256();
    FM__UNROLL for (int g = 0; g < groups / together; g++) {
        __m256i s16 = _mm256_setzero_si256();
        FM__UNROLL for (int i = 0; i < together; i++) {
            const int v = g * together + i;
            const __m256i x = fm__avx2_broadcast(a + 4 * v);
            const __m256i products =
                fm__avx2_signed(shape)
                    ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_sign_epi8(x, w[v]))
                    : _mm256_maddubs_epi16(w[v], x);
            s16 = i ? _mm256_add_epi16(s16, products) : products;
        }
        s16 = _mm256_madd_epi16(s16, scale);
        sum = g ? _mm256_add_epi32(sum, s16) : s16;
    }
    return sum;
}

/* ---- sub scales of 8 rows: `sub` points at the first of them ---- */

FM__INLINE __m128i fm__avx2_eight(const uint8_t *bytes) {
    return _mm_loadl_epi64((const __m128i *)(const void *)bytes);
}

/* The scale of sub-block i as int16, twice a lane. */
FM__INLINE __m256i fm__avx2_scale(const fm__shape shape, const uint8_t *sub, int i) {
    if (!shape.sub_width)
        return _mm256_set1_epi16(1);
    __m128i bytes = fm__avx2_eight(sub + 16 * i);
    if (shape.sub_nibbles)
        bytes = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i twice = _mm_unpacklo_epi8(bytes, bytes);
    return shape.sub_signed ? _mm256_cvtepi8_epi16(twice) : _mm256_cvtepu8_epi16(twice);
}

/* int16 pairs (2i, 2i + 1) of what multiplies the activation sums: minima, or, where codes have an
   offset, the scales. */
FM__INLINE __m256i fm__avx2_pairs(const fm__shape shape, const uint8_t *sub, int i) {
    if (!shape.sub_width)
        return _mm256_set1_epi16(1);
    if (shape.has_min && !shape.sub_nibbles)
        sub += 128; /* behind the scales */
    __m128i both =
        _mm_unpacklo_epi8(fm__avx2_eight(sub + 32 * i), fm__avx2_eight(sub + 32 * i + 16));
    if (shape.sub_nibbles)
        both = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
    return shape.sub_signed ? _mm256_cvtepi8_epi16(both) : _mm256_cvtepu8_epi16(both);
}

/* ---- activations: what a segment of one token needs besides its bytes ---- */

/* Q8_32: int32 -offset * sum [32], then (float)sum [32]. */
static inline void fm__avx2_side32(const int offset_shift, const uint8_t *row,
                                   const fm__act_layout *layout, uint32_t segment, uint32_t chunks,
                                   uint8_t *side) {
    const int16_t *sums =
        (const int16_t *)(const void *)(row + layout->sum) + (size_t)segment * FM__AVX2_CHUNKS;
    int32_t *bias = (int32_t *)(void *)side;
    float *as_float = (float *)(void *)(side + 128);
    for (uint32_t c = 0; c < chunks; c++) {
        bias[c] = offset_shift < 0 ? 0 : -(sums[c] * (1 << offset_shift));
        as_float[c] = (float)sums[c];
    }
}

/* Q8_256: int32 shift [32], then int16 (sum << shift) per 16 [64] or per 32 [32]. */
static inline void fm__avx2_side256(const bool per_16, const uint8_t *row,
                                    const fm__act_layout *layout, uint32_t segment, uint32_t chunks,
                                    uint8_t *side) {
    const uint8_t *shifts = row + layout->shift + (size_t)segment * FM__AVX2_CHUNKS;
    const int16_t *sums =
        (const int16_t *)(const void *)(row + layout->sum) + (size_t)segment * (FM__SEGMENT / 16);
    int32_t *shift = (int32_t *)(void *)side;
    int16_t *shifted = (int16_t *)(void *)(side + 128);
    for (uint32_t c = 0; c < chunks; c++) {
        const int power = 1 << shifts[c];
        shift[c] = shifts[c];
        if (per_16) {
            shifted[2 * c] = (int16_t)(sums[2 * c] * power);
            shifted[2 * c + 1] = (int16_t)(sums[2 * c + 1] * power);
        } else {
            shifted[c] = (int16_t)((sums[2 * c] + sums[2 * c + 1]) * power);
        }
    }
}

FM__INLINE void fm__avx2_side(const fm__shape shape, const uint8_t *row,
                              const fm__act_layout *layout, uint32_t segment, uint32_t chunks,
                              uint8_t *side) {
    if (shape.block == 32)
        fm__avx2_side32(fm__avx2_signed(shape) ? -1 : shape.offset_shift, row, layout, segment,
                        chunks, side);
    else
        fm__avx2_side256(shape.sub_width == 16, row, layout, segment, chunks, side);
}

/* ---- one segment of half a panel times some tokens ---- */

typedef struct fm__avx2_tile {
    const uint8_t *codes; /* of the half: unpacked bytes of the segment, or (direct) the panel's */
    const uint8_t *sub;   /* of the half, from the segment on */
    const uint8_t *d, *m; /* likewise */
    const uint8_t *act;   /* first token's bytes of the segment */
    const uint8_t *act_d; /* first token's scales of the segment */
    size_t act_stride;    /* token to token */
    const uint8_t *side;  /* first token's side data of the segment */
    size_t side_stride;   /* token to token */
    uint32_t chunks;      /* of the segment */
    __m256i table;
} fm__avx2_tile;

FM__INLINE void fm__avx2_codes(const fm__shape shape, const bool direct, const fm__avx2_tile *tile,
                               uint32_t c, __m256i w[8]) {
    if (direct) {
        fm__avx2_unpack(shape, tile->codes + c * (size_t)(64 * shape.bits), tile->table, w);
        return;
    }
    const __m256i *at = (const __m256i *)(const void *)(tile->codes + c * (size_t)512);
    FM__UNROLL for (int v = 0; v < 8; v++) w[v] = _mm256_load_si256(at + 2 * v);
}

/* acc[t] = the segment's sum, blocks of 32 ascending from +0. */
FM__INLINE void fm__avx2_tile32(const fm__shape shape, const bool direct, const int tokens,
                                const fm__avx2_tile *tile, __m256 *acc) {
    const __m256i ones = _mm256_set1_epi16(1);
    const bool biased = !fm__avx2_signed(shape) && shape.offset_shift >= 0;
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm256_setzero_ps();
    for (uint32_t c = 0; c < tile->chunks; c++) {
        __m256i w[8];
        fm__avx2_codes(shape, direct, tile, c, w);
        const __m256 d =
            shape.d_is_f32 ? _mm256_load_ps((const float *)(const void *)(tile->d + c * (size_t)64))
                           : fm__avx2_half(tile->d + c * (size_t)32);
        __m256 m = d;
        if (shape.has_min)
            m = fm__avx2_half(tile->m + c * (size_t)32);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const uint8_t *a = tile->act + (size_t)t * tile->act_stride + c * (size_t)32;
            const uint8_t *side = tile->side + (size_t)t * tile->side_stride + c * (size_t)4;
            __m256i sum = fm__avx2_dot(shape, 8, w, a, ones);
            if (biased)
                sum = _mm256_add_epi32(sum, fm__avx2_broadcast(side));
            const uint8_t *dap = tile->act_d + (size_t)t * tile->act_stride + c * (size_t)4;
            const __m256 da = _mm256_castsi256_ps(fm__avx2_broadcast(dap));
            acc[t] =
                _mm256_add_ps(acc[t], _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, da)));
            if (shape.has_min) {
                const __m256 s = _mm256_castsi256_ps(fm__avx2_broadcast(side + 128));
                acc[t] = _mm256_add_ps(acc[t], _mm256_mul_ps(s, _mm256_mul_ps(m, da)));
            }
        }
    }
}

/* Likewise for blocks of 256. */
FM__INLINE void fm__avx2_tile256(const fm__shape shape, const bool direct, const int tokens,
                                 const fm__avx2_tile *tile, __m256 *acc) {
    const int n_pairs = fm__shape_pairs(shape);
    const size_t sub_bytes = fm__shape_sub_bytes(shape);
    const bool biased = !fm__avx2_signed(shape) && shape.offset_shift >= 0;
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < tile->chunks / 8; b++) {
        const uint8_t *sub = tile->sub + b * sub_bytes;
        __m256i isum[FM__AVX2_TILE];
        FM__UNROLL for (int t = 0; t < tokens; t++) isum[t] = _mm256_setzero_si256();
        for (uint32_t c = 8 * b; c < 8 * b + 8; c++) {
            __m256i w[8];
            fm__avx2_codes(shape, direct, tile, c, w);
            const int i = (int)(c & 7);
            const __m256i s0 = fm__avx2_scale(shape, sub, shape.sub_width == 16 ? 2 * i : i);
            __m256i s1 = s0;
            if (shape.sub_width == 16)
                s1 = fm__avx2_scale(shape, sub, 2 * i + 1);
            FM__UNROLL for (int t = 0; t < tokens; t++) {
                const uint8_t *a = tile->act + (size_t)t * tile->act_stride + c * (size_t)32;
                const uint8_t *side = tile->side + (size_t)t * tile->side_stride + c * (size_t)4;
                __m256i sum;
                if (shape.sub_width == 16)
                    sum = _mm256_add_epi32(fm__avx2_dot(shape, 4, w, a, s0),
                                           fm__avx2_dot(shape, 4, w + 4, a + 16, s1));
                else
                    sum = fm__avx2_dot(shape, 8, w, a, s0);
                sum = _mm256_sllv_epi32(sum, fm__avx2_broadcast(side));
                isum[t] = _mm256_add_epi32(isum[t], sum);
            }
        }
        const __m256 d = fm__avx2_half(tile->d + b * (size_t)32);
        __m256 m = d;
        if (shape.has_min)
            m = fm__avx2_half(tile->m + b * (size_t)32);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const uint8_t *side =
                tile->side + (size_t)t * tile->side_stride + 128 + b * (size_t)(4 * n_pairs);
            const uint8_t *dap = tile->act_d + (size_t)t * tile->act_stride + b * (size_t)4;
            const __m256 da = _mm256_castsi256_ps(fm__avx2_broadcast(dap));
            __m256i msum = _mm256_setzero_si256(), sum = isum[t];
            if (shape.has_min || biased)
                FM__UNROLL for (int i = 0; i < n_pairs; i++) msum =
                    _mm256_add_epi32(msum, _mm256_madd_epi16(fm__avx2_pairs(shape, sub, i),
                                                             fm__avx2_broadcast(side + 4 * i)));
            if (biased)
                sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(msum, shape.offset_shift));
            acc[t] =
                _mm256_add_ps(acc[t], _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, da)));
            if (shape.has_min)
                acc[t] = _mm256_sub_ps(
                    acc[t], _mm256_mul_ps(_mm256_cvtepi32_ps(msum), _mm256_mul_ps(m, da)));
        }
    }
}

/* One segment of one panel times `tokens` tokens from t0 on, both halves. */
FM__INLINE void fm__avx2_run(const fm__shape shape, const bool direct, const int tokens,
                             const fm__linear_args *args, uint32_t panel, uint32_t k0,
                             uint32_t token, const uint8_t *codes, const uint8_t *side,
                             size_t side_stride, __m256i table) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block;
    const uint8_t *row = args->act + (size_t)token * args->act_layout.stride;
    FM__UNROLL for (size_t half = 0; half < 2; half++) {
        const fm__avx2_tile tile = {
            .codes = codes + 32 * half,
            .sub = base + layout->sub + block0 * layout->sub_bytes + 8 * half,
            .d = base + layout->d + block0 * layout->d_bytes + half * layout->d_bytes / 2,
            .m = base + layout->m + block0 * 32 + 16 * half,
            .act = row + args->act_layout.values + k0,
            .act_d = row + args->act_layout.d + block0 * 4,
            .act_stride = args->act_layout.stride,
            .side = side,
            .side_stride = side_stride,
            .chunks = (args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT) / FM__CHUNK,
            .table = table,
        };
        __m256 acc[FM__AVX2_TILE];
        if (shape.block == 32)
            fm__avx2_tile32(shape, direct, tokens, &tile, acc);
        else
            fm__avx2_tile256(shape, direct, tokens, &tile, acc);
        fm__avx2_store_rows(args->out + (size_t)token * args->out_stride, args->out_stride, tokens,
                            panel * FM__PANEL_ROWS + 8 * (uint32_t)half, args->n, k0 == 0, acc);
    }
}

/* ---- many tokens: a segment of a panel is unpacked once for a block of tokens ---- */

FM__INLINE void fm__avx2_unpack_segment(const fm__shape shape, const fm__linear_args *args,
                                        uint32_t panel, uint32_t k0, uint32_t chunks, __m256i table,
                                        uint8_t *codes) {
    const uint8_t *from = args->panels + (size_t)panel * args->layout.stride + args->layout.codes +
                          k0 / FM__CHUNK * (size_t)(64 * shape.bits);
    for (uint32_t c = 0; c < chunks; c++)
        FM__UNROLL for (size_t half = 0; half < 2; half++) {
            __m256i w[8];
            fm__avx2_unpack(shape, from + c * (size_t)(64 * shape.bits) + 32 * half, table, w);
            __m256i *to = (__m256i *)(void *)(codes + c * (size_t)512 + 32 * half);
            FM__UNROLL for (int v = 0; v < 8; v++) _mm256_store_si256(to + 2 * v, w[v]);
        }
}

FM__INLINE void fm__avx2_many(const fm__shape shape, const fm__linear_args *args) {
    uint8_t *const codes = args->scratch;
    uint8_t *const sides = codes + (size_t)FM__SEGMENT * FM__PANEL_ROWS;
    const __m256i table = fm__avx2_table(shape, args->type);
    const uint32_t end = fm__avx2_panel_end(args);
    const size_t ss = FM__AVX2_SIDE;
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__AVX2_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__AVX2_TOKENS ? args->tokens : t0 + FM__AVX2_TOKENS;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const uint32_t chunks =
                (args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT) / FM__CHUNK;
            for (uint32_t t = t0; t < t1; t++)
                fm__avx2_side(shape, args->act + (size_t)t * args->act_layout.stride,
                              &args->act_layout, k0 / FM__SEGMENT, chunks, sides + (t - t0) * ss);
            for (uint32_t panel = args->panel_begin; panel < end; panel++) {
                fm__avx2_unpack_segment(shape, args, panel, k0, chunks, table, codes);
                uint32_t t = t0;
                for (; t1 - t >= FM__AVX2_TILE; t += FM__AVX2_TILE)
                    fm__avx2_run(shape, false, FM__AVX2_TILE, args, panel, k0, t, codes,
                                 sides + (t - t0) * ss, ss, table);
                for (; t < t1; t++)
                    fm__avx2_run(shape, false, 1, args, panel, k0, t, codes, sides + (t - t0) * ss,
                                 ss, table);
            }
        }
    }
}

/* ---- few tokens: panels are unpacked straight into registers ---- */

FM__INLINE void fm__avx2_few(const fm__shape shape, const int tokens, const fm__linear_args *args) {
    const uint32_t segments = (args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    const __m256i table = fm__avx2_table(shape, args->type);
    const uint32_t end = fm__avx2_panel_end(args);
    uint8_t *const sides = args->scratch;
    const size_t ss = (size_t)segments * FM__AVX2_SIDE;
    for (int t = 0; t < tokens; t++)
        for (uint32_t s = 0; s < segments; s++) {
            const uint32_t left = args->k - s * FM__SEGMENT;
            fm__avx2_side(shape, args->act + (size_t)t * args->act_layout.stride, &args->act_layout,
                          s, (left < FM__SEGMENT ? left : FM__SEGMENT) / FM__CHUNK,
                          sides + (size_t)t * ss + (size_t)s * FM__AVX2_SIDE);
        }
    for (uint32_t panel = args->panel_begin; panel < end; panel++)
        for (uint32_t s = 0; s < segments; s++) {
            const uint32_t k0 = s * FM__SEGMENT;
            fm__avx2_run(shape, true, tokens, args, panel, k0, 0,
                         args->panels + (size_t)panel * args->layout.stride + args->layout.codes +
                             k0 / FM__CHUNK * (size_t)(64 * shape.bits),
                         sides + (size_t)s * FM__AVX2_SIDE, ss, table);
        }
}

FM__INLINE void fm__avx2_linear(const fm__shape shape, const fm__linear_args *args) {
    const size_t segments = ((size_t)args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    const bool sides_fit = segments * args->tokens * FM__AVX2_SIDE <= FM__LINEAR_SCRATCH;
    if (args->tokens == 1 && sides_fit)
        fm__avx2_few(shape, 1, args);
    else if (args->tokens == 2 && sides_fit)
        fm__avx2_few(shape, 2, args);
    else
        fm__avx2_many(shape, args);
}
