/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_avxvnni.h: the shared body of every quantised linear kernel of the AVX-VNNI rung.
 *
 * Owns: preparing tokens, the register tile, the walks for many and for few tokens. Never does:
 * choose a kernel. Included by: linear_q32_avxvnni.c and linear_q256_avxvnni.c behind
 * dot_avxvnni.h, each function with a constant shape, so that the compiler folds every `shape.`
 * test; and by a test with emulated instructions.
 *
 * There are sixteen registers and no broadcast operands. A tile is a whole panel (two vectors of 8
 * rows) times 6 tokens: twelve chains of vpdpbusd, two vectors of codes and one broadcast fill the
 * registers, and eight loads serve twelve dots. The float sums live in memory between blocks.
 * For many tokens panels and tokens are prepared as bytes; for few, codes are unpacked where they
 * are used ("direct"), and the next panel is fetched meanwhile.
 */
#pragma once

#include "cpu/x86/linear_codes_avxvnni.h"

enum {
    FM__AVXVNNI_TILE = 6,     /* tokens of a register tile */
    FM__AVXVNNI_TOKENS = 258, /* tokens of a block: their segments, prepared, stay in L2 */
    FM__AVXVNNI_FEW = 8,      /* up to so many tokens a panel is read once and used at once */
    FM__AVXVNNI_FEW_TILE = 4, /* more take a second tile, from L1 */
    FM__AVXVNNI_ROW = FM__SEGMENT + 4 * FM__AVXVNNI_CHUNKS * 4 + FM__SEGMENT / 256 * 4,
    FM__AVXVNNI_WIDE = 16 * 1024, /* bytes: two panels beyond this do not fit L1 with the rest */
    FM__AVXVNNI_NEAR = 4096,      /* bytes from the codes at work to those fetched from L2 */
};

_Static_assert(FM__AVXVNNI_WEIGHTS + FM__AVXVNNI_TOKENS * FM__AVXVNNI_ROW <= FM__LINEAR_SCRATCH,
               "prepared operands fit the scratch");
_Static_assert(FM__AVXVNNI_TOKENS % FM__AVXVNNI_TILE == 0, "a block is whole tiles");

/* ---- a segment of a tile's tokens, prepared ---- */

/* `width` tokens: [chunk][width][32 bytes], then fields of 4 bytes, each [chunk][width] (sums up to
   32, block scales [block][width]). FM__AVXVNNI_ROW bytes a token. */
typedef struct fm__avxvnni_rows {
    size_t start;   /* int32: where sums begin; with minima of 32-blocks the float sum */
    size_t half;    /* int32: where the chunk's second sums begin */
    size_t scale;   /* blocks of 32: float scale; of 256: int32 shift */
    size_t sums;    /* int16 [2]: two shifted sums, for minima */
    size_t block_d; /* float scale of a block of 256 */
} fm__avxvnni_rows;

FM__INLINE fm__avxvnni_rows fm__avxvnni_rows_of(const size_t width) {
    const size_t field = 4 * FM__AVXVNNI_CHUNKS * width, first = FM__SEGMENT * width;
    return (fm__avxvnni_rows){
        .start = first,
        .half = first + field,
        .scale = first + 2 * field,
        .sums = first + 3 * field,
        .block_d = first + 4 * field,
    };
}

FM__INLINE void fm__avxvnni_put(uint8_t *field, size_t i, int32_t x) {
    memcpy(field + 4 * i, &x, 4);
}

/* Fields of token t of a tile. */
FM__INLINE void fm__avxvnni_fields32(const fm__shape shape, const size_t width, const uint8_t *row,
                                     const fm__act_layout *layout, uint32_t segment,
                                     uint32_t chunks, size_t t, uint8_t *to) {
    const fm__avxvnni_rows at = fm__avxvnni_rows_of(width);
    const size_t chunk0 = (size_t)segment * FM__AVXVNNI_CHUNKS;
    const int16_t *sums = (const int16_t *)(const void *)(row + layout->sum) + chunk0;
    const float *d = (const float *)(const void *)(row + layout->d) + chunk0;
    const int offset = fm__avxvnni_offset(shape, false);
    for (size_t c = 0; c < chunks; c++) {
        const float sum = (float)sums[c];
        fm__avxvnni_put(to + at.start, c * width + t,
                        shape.has_min ? (int32_t)fm__f32_bits(sum) : -offset * sums[c]);
        fm__avxvnni_put(to + at.scale, c * width + t, (int32_t)fm__f32_bits(d[c]));
    }
}

FM__INLINE void fm__avxvnni_fields256(const fm__shape shape, const bool direct, const size_t width,
                                      const uint8_t *row, const fm__act_layout *layout,
                                      uint32_t segment, uint32_t chunks, size_t t, uint8_t *to) {
    const fm__avxvnni_rows at = fm__avxvnni_rows_of(width);
    const size_t chunk0 = (size_t)segment * FM__AVXVNNI_CHUNKS;
    const uint8_t *shifts = row + layout->shift + chunk0;
    const int16_t *sums = (const int16_t *)(const void *)(row + layout->sum) + 2 * chunk0;
    const float *d = (const float *)(const void *)(row + layout->d) + chunk0 / 8;
    const int offset = fm__avxvnni_offset(shape, direct);
    const bool halves = fm__avxvnni_halves(shape, direct);
    for (size_t c = 0; c < chunks; c++) {
        const int a = sums[2 * c], b = sums[2 * c + 1], power = 1 << shifts[c];
        fm__avxvnni_put(to + at.scale, c * width + t, shifts[c]);
        if (offset)
            fm__avxvnni_put(to + at.start, c * width + t, -offset * (halves ? a : a + b));
        if (offset && halves)
            fm__avxvnni_put(to + at.half, c * width + t, -offset * b);
        if (!shape.has_min)
            continue;
        const int16_t both[2] = {(int16_t)(a * power), (int16_t)(b * power)};
        const int16_t one = (int16_t)((a + b) * power);
        if (shape.sub_width == 16)
            memcpy(to + at.sums + 4 * (c * width + t), both, 4);
        else
            memcpy(to + at.sums + 4 * (c / 2 * width + t) + 2 * (c % 2), &one, 2);
    }
    for (size_t b = 0; b < chunks / 8; b++)
        fm__avxvnni_put(to + at.block_d, b * width + t, (int32_t)fm__f32_bits(d[b]));
}

/* Tokens from `row` on; those from `count` on are like the last. */
FM__INLINE void fm__avxvnni_prepare_rows(const fm__shape shape, const bool direct,
                                         const size_t width, size_t count, const uint8_t *row,
                                         const fm__act_layout *layout, uint32_t segment,
                                         uint32_t chunks, uint8_t *to) {
    for (size_t t = 0; t < width; t++) {
        const uint8_t *values = row + layout->values + (size_t)segment * FM__SEGMENT;
        for (size_t c = 0; c < chunks; c++)
            _mm256_storeu_si256(
                (__m256i *)(void *)(to + 32 * (c * width + t)),
                _mm256_load_si256((const __m256i *)(const void *)(values + 32 * c)));
        if (shape.block == 32)
            fm__avxvnni_fields32(shape, width, row, layout, segment, chunks, t, to);
        else
            fm__avxvnni_fields256(shape, direct, width, row, layout, segment, chunks, t, to);
        row += t + 1 < count ? layout->stride : 0;
    }
}

/* ---- one segment of a panel times the tokens of a tile ---- */

typedef struct fm__avxvnni_tile {
    const uint8_t *codes; /* prepared bytes, or (direct) the panel's, of the segment */
    const uint8_t *sub;   /* direct: the panel's sub scales from the segment on */
    const uint8_t *d, *m; /* prepared floats, or (direct) the panel's, from the segment on */
    const uint8_t *rows;  /* prepared tokens */
    uint32_t chunks;      /* of the segment */
    const uint8_t *ahead; /* direct: what to fetch meanwhile; moves on */
    bool wide;            /* fetched to L2 first */
    __m256i table;
} fm__avxvnni_tile;

/* The numbers of a tile: [half][token]. */
#define FM__AVXVNNI_EACH(tokens)                                                                   \
    FM__UNROLL for (int half = 0; half < 2; half++) FM__UNROLL for (int t = 0; t < (tokens); t++)
#define FM__AVXVNNI_AT (half * FM__AVXVNNI_TILE + t)
enum { FM__AVXVNNI_SUMS = 2 * FM__AVXVNNI_TILE };

FM__INLINE __m256i fm__avxvnni_broadcast(const uint8_t *four_bytes) {
    int32_t x;
    memcpy(&x, four_bytes, 4);
    return _mm256_set1_epi32(x);
}

/* sum = each token's number in a field (NULL: 0). */
FM__INLINE void fm__avxvnni_begin(const int tokens, const uint8_t *field, __m256i *sum) {
    FM__AVXVNNI_EACH(tokens)
    sum[FM__AVXVNNI_AT] =
        field != NULL ? fm__avxvnni_broadcast(field + 4 * t) : _mm256_setzero_si256();
}

/* sum += dots of the vectors [begin, end) of chunk c. All chains advance together. */
FM__INLINE void fm__avxvnni_dots(const fm__shape shape, const bool direct, const int width,
                                 const int tokens, const fm__avxvnni_tile *tile, size_t c,
                                 const int begin, const int end, __m256i *sum) {
    const uint8_t *bytes = tile->rows + 32 * c * (size_t)width;
    const uint8_t *codes = tile->codes + c * (size_t)(direct ? 64 * shape.bits : 512);
    FM__UNROLL for (int v = begin; v < end; v++) {
        __m256i w[2];
        FM__UNROLL for (int half = 0; half < 2; half++) w[half] =
            direct ? fm__avxvnni_code(shape, codes, v, half, tile->table)
                   : fm__avxvnni_load(codes, v, half);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const __m256i a = fm__avxvnni_broadcast(bytes + 32 * t + 4 * v);
            FM__UNROLL for (int half = 0; half < 2; half++) sum[FM__AVXVNNI_AT] =
                fm__dot_bytes(sum[FM__AVXVNNI_AT], w[half], a);
        }
    }
}

/* acc + or - y * (d * da). */
FM__INLINE void fm__avxvnni_step(const bool minus, const bool converted, const int tokens,
                                 const bool wide, const uint8_t *d, const uint8_t *da,
                                 const __m256i *y, __m256 *acc) {
    FM__UNROLL for (int half = 0; half < 2; half++) {
        const __m256 scale = fm__avxvnni_float(wide, d, half);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const __m256 a = _mm256_castsi256_ps(fm__avxvnni_broadcast(da + 4 * t));
            const __m256i i = y[FM__AVXVNNI_AT];
            __m256 x = converted ? _mm256_castsi256_ps(i) : _mm256_cvtepi32_ps(i);
            x = _mm256_mul_ps(x, _mm256_mul_ps(scale, a));
            acc[FM__AVXVNNI_AT] = minus ? _mm256_sub_ps(acc[FM__AVXVNNI_AT], x)
                                        : _mm256_add_ps(acc[FM__AVXVNNI_AT], x);
        }
    }
}

/* Fetches `bytes` that follow at `ahead`, a panel ahead of the work; returns where the next call
   goes on. */
FM__INLINE const uint8_t *fm__avxvnni_fetch(const bool wide, const uint8_t *ahead, const int bytes,
                                            const uint8_t *codes, const int code_bytes) {
    if (!wide) {
        FM__UNROLL for (int b = 0; b < bytes; b += 64)
            _mm_prefetch((const char *)ahead + b, _MM_HINT_T0);
        return ahead + bytes;
    }
    FM__UNROLL for (int b = 0; b < bytes; b += 64)
        _mm_prefetch((const char *)ahead + b, _MM_HINT_T1);
    FM__UNROLL for (int b = 0; b < code_bytes; b += 64)
        _mm_prefetch((const char *)codes + FM__AVXVNNI_NEAR + b, _MM_HINT_T0);
    return ahead + bytes;
}

/* acc = the segment's sum, blocks of 32 ascending from +0. */
FM__INLINE void fm__avxvnni_tile32(const fm__shape shape, const bool direct, const int width,
                                   const int tokens, fm__avxvnni_tile *tile, __m256 *acc) {
    const fm__avxvnni_rows at = fm__avxvnni_rows_of((size_t)width);
    const bool wide = !direct || shape.d_is_f32;
    const int d_bytes = wide ? 64 : 32, m_bytes = direct ? 32 : 64;
    const int panel_bytes = 64 * shape.bits + (shape.d_is_f32 ? 64 : 32) + (shape.has_min ? 32 : 0);
    FM__AVXVNNI_EACH(tokens) acc[FM__AVXVNNI_AT] = _mm256_setzero_ps();
    for (size_t c = 0; c < tile->chunks; c++) {
        const uint8_t *field = tile->rows + 4 * c * (size_t)width;
        __m256i sum[FM__AVXVNNI_SUMS];
        if (direct)
            tile->ahead =
                fm__avxvnni_fetch(tile->wide, tile->ahead, panel_bytes,
                                  tile->codes + c * (size_t)(64 * shape.bits), 64 * shape.bits);
        fm__avxvnni_begin(tokens, fm__avxvnni_offset(shape, direct) ? field + at.start : NULL, sum);
        fm__avxvnni_dots(shape, direct, width, tokens, tile, c, 0, 8, sum);
        fm__avxvnni_step(false, false, tokens, wide, tile->d + c * (size_t)d_bytes,
                         field + at.scale, sum, acc);
        if (!shape.has_min)
            continue;
        fm__avxvnni_begin(tokens, field + at.start, sum);
        fm__avxvnni_step(false, true, tokens, !direct, tile->m + c * (size_t)m_bytes,
                         field + at.scale, sum, acc);
    }
}

/* isum += (sum * scale) << shift, with the scale of sub-block i of block b. */
FM__INLINE void fm__avxvnni_add(const fm__shape shape, const bool direct, const int tokens,
                                const fm__avxvnni_tile *tile, size_t b, int i, const uint8_t *shift,
                                const __m256i *sum, __m256i *isum) {
    const bool scaled = shape.sub_width && !fm__avxvnni_scaled(shape, direct);
    const size_t n_scale = shape.sub_width ? 256 / (size_t)shape.sub_width : 0;
    FM__UNROLL for (int half = 0; half < 2; half++) {
        __m256i s = _mm256_setzero_si256();
        if (scaled)
            s = direct
                    ? fm__avxvnni_scale(shape, tile->sub + b * fm__shape_sub_bytes(shape), i, half)
                    : fm__avxvnni_load(tile->codes + FM__AVXVNNI_SCALES +
                                           64 * (b * n_scale + (size_t)i),
                                       0, half);
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            __m256i x = sum[FM__AVXVNNI_AT];
            x = scaled ? _mm256_mullo_epi32(x, s) : x;
            x = _mm256_sllv_epi32(x, fm__avxvnni_broadcast(shift + 4 * t));
            isum[FM__AVXVNNI_AT] = _mm256_add_epi32(isum[FM__AVXVNNI_AT], x);
        }
    }
}

/* Chunk c, number i of block b. */
FM__INLINE void fm__avxvnni_chunk256(const fm__shape shape, const bool direct, const int width,
                                     const int tokens, const fm__avxvnni_tile *tile, size_t b,
                                     int i, __m256i *isum) {
    const fm__avxvnni_rows at = fm__avxvnni_rows_of((size_t)width);
    const bool offset = fm__avxvnni_offset(shape, direct) != 0;
    const bool halves = fm__avxvnni_halves(shape, direct);
    const size_t c = 8 * b + (size_t)i;
    const uint8_t *field = tile->rows + 4 * c * (size_t)width;
    __m256i sum[FM__AVXVNNI_SUMS];
    fm__avxvnni_begin(tokens, offset ? field + at.start : NULL, sum);
    fm__avxvnni_dots(shape, direct, width, tokens, tile, c, 0, halves ? 4 : 8, sum);
    fm__avxvnni_add(shape, direct, tokens, tile, b, halves ? 2 * i : i, field + at.scale, sum,
                    isum);
    if (!halves)
        return;
    fm__avxvnni_begin(tokens, offset ? field + at.half : NULL, sum);
    fm__avxvnni_dots(shape, direct, width, tokens, tile, c, 4, 8, sum);
    fm__avxvnni_add(shape, direct, tokens, tile, b, 2 * i + 1, field + at.scale, sum, isum);
}

/* sum = the block's minima times the activation sums. */
FM__INLINE void fm__avxvnni_minima_sum(const fm__shape shape, const bool direct, const int width,
                                       const int tokens, const fm__avxvnni_tile *tile, size_t b,
                                       __m256i *sum) {
    const int n_pairs = fm__shape_pairs(shape);
    fm__avxvnni_begin(tokens, NULL, sum);
    FM__UNROLL for (int i = 0; i < n_pairs; i++) {
        const size_t pair = b * (size_t)n_pairs + (size_t)i;
        const uint8_t *sums =
            tile->rows + fm__avxvnni_rows_of((size_t)width).sums + 4 * pair * (size_t)width;
        FM__UNROLL for (int half = 0; half < 2; half++) {
            const __m256i minima =
                direct
                    ? fm__avxvnni_minima(shape, tile->sub + b * fm__shape_sub_bytes(shape), i, half)
                    : fm__avxvnni_load(tile->codes + FM__AVXVNNI_MINIMA + 64 * pair, 0, half);
            FM__UNROLL for (int t = 0; t < tokens; t++) sum[FM__AVXVNNI_AT] =
                fm__dot_words(sum[FM__AVXVNNI_AT], minima, fm__avxvnni_broadcast(sums + 4 * t));
        }
    }
}

/* Likewise for blocks of 256. */
FM__INLINE void fm__avxvnni_tile256(const fm__shape shape, const bool direct, const int width,
                                    const int tokens, fm__avxvnni_tile *tile, __m256 *acc) {
    const fm__avxvnni_rows at = fm__avxvnni_rows_of((size_t)width);
    const int code_bytes = 64 * shape.bits;
    const int side_bytes = (int)fm__shape_sub_bytes(shape) + (shape.has_min ? 64 : 32);
    const size_t d_bytes = direct ? 32 : 64;
    FM__AVXVNNI_EACH(tokens) acc[FM__AVXVNNI_AT] = _mm256_setzero_ps();
    for (size_t b = 0; b < tile->chunks / 8; b++) {
        __m256i isum[FM__AVXVNNI_SUMS];
        fm__avxvnni_begin(tokens, NULL, isum);
        for (int i = 0; i < 8; i++) {
            if (direct)
                tile->ahead = fm__avxvnni_fetch(
                    tile->wide, tile->ahead, code_bytes,
                    tile->codes + (8 * b + (size_t)i) * (size_t)code_bytes, code_bytes);
            fm__avxvnni_chunk256(shape, direct, width, tokens, tile, b, i, isum);
        }
        if (direct)
            tile->ahead = fm__avxvnni_fetch(tile->wide, tile->ahead, side_bytes, tile->codes, 0);
        const uint8_t *da = tile->rows + at.block_d + 4 * b * (size_t)width;
        fm__avxvnni_step(false, false, tokens, !direct, tile->d + b * d_bytes, da, isum, acc);
        if (!shape.has_min)
            continue;
        fm__avxvnni_minima_sum(shape, direct, width, tokens, tile, b, isum);
        fm__avxvnni_step(true, false, tokens, !direct, tile->m + b * d_bytes, da, isum, acc);
    }
}

/* The first `tokens` tokens of a tile, of which `count` are stored from token `first` on. */
FM__INLINE void fm__avxvnni_run(const fm__shape shape, const bool direct, const int width,
                                const int tokens, const fm__linear_args *args, uint32_t panel,
                                bool first_segment, uint32_t first, uint32_t count,
                                fm__avxvnni_tile *tile) {
    __m256 acc[FM__AVXVNNI_SUMS];
    float *const out = args->out + (size_t)first * args->out_stride;
    for (uint32_t t = 0; t < count; t++) /* seldom in a near cache */
        _mm_prefetch((const char *)(out + t * args->out_stride + (size_t)panel * FM__PANEL_ROWS),
                     _MM_HINT_T0);
    if (shape.block == 32)
        fm__avxvnni_tile32(shape, direct, width, tokens, tile, acc);
    else
        fm__avxvnni_tile256(shape, direct, width, tokens, tile, acc);
    FM__AVXVNNI_EACH(tokens)
    if ((uint32_t)t < count)
        fm__avx2_store_rows(out + (size_t)t * args->out_stride, args->out_stride, 1,
                            panel * FM__PANEL_ROWS + 8 * (uint32_t)half, args->n, first_segment,
                            acc + FM__AVXVNNI_AT);
}

FM__INLINE uint32_t fm__avxvnni_chunks(const fm__linear_args *args, uint32_t k0) {
    return (args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT) / FM__CHUNK;
}

/* ---- many tokens ---- */

/* Tokens [t0, t1), whose segment at k0 is prepared in rows, times every panel. */
FM__INLINE void fm__avxvnni_panels(const fm__shape shape, const fm__linear_args *args, uint32_t t0,
                                   uint32_t t1, uint32_t k0, __m256i table) {
    uint8_t *const weights = args->scratch;
    const uint32_t end = fm__avx2_panel_end(args), chunks = fm__avxvnni_chunks(args, k0);
    const int width = FM__AVXVNNI_TILE;
    for (uint32_t panel = args->panel_begin; panel < end; panel++) {
        fm__avxvnni_prepare(shape, args, panel, k0, chunks, table, weights);
        fm__avxvnni_tile tile = {
            .codes = weights,
            .d = weights + FM__AVXVNNI_D,
            .m = weights + FM__AVXVNNI_M,
            .rows = weights + FM__AVXVNNI_WEIGHTS,
            .chunks = chunks,
        };
        for (uint32_t t = t0; t < t1; t += FM__AVXVNNI_TILE) {
            const uint32_t left = t1 - t;
            if (left > 3)
                fm__avxvnni_run(shape, false, width, width, args, panel, k0 == 0, t,
                                left < FM__AVXVNNI_TILE ? left : FM__AVXVNNI_TILE, &tile);
            else
                fm__avxvnni_run(shape, false, width, 3, args, panel, k0 == 0, t, left, &tile);
            tile.rows += FM__AVXVNNI_TILE * FM__AVXVNNI_ROW;
        }
    }
}

FM__INLINE void fm__avxvnni_many(const fm__shape shape, const fm__linear_args *args) {
    const __m256i table = fm__avxvnni_table(shape, args->type);
    const fm__act_layout *layout = &args->act_layout;
    /* blocks as even as whole tiles allow */
    const uint32_t blocks = (args->tokens + FM__AVXVNNI_TOKENS - 1) / FM__AVXVNNI_TOKENS;
    const uint32_t even = (args->tokens + blocks - 1) / blocks;
    const uint32_t block = (even + FM__AVXVNNI_TILE - 1) / FM__AVXVNNI_TILE * FM__AVXVNNI_TILE;
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += block) {
        const uint32_t t1 = args->tokens - t0 < block ? args->tokens : t0 + block;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            uint8_t *to = (uint8_t *)args->scratch + FM__AVXVNNI_WEIGHTS;
            for (uint32_t t = t0; t < t1; t += FM__AVXVNNI_TILE) {
                fm__avxvnni_prepare_rows(shape, false, FM__AVXVNNI_TILE, t1 - t,
                                         args->act + (size_t)t * layout->stride, layout,
                                         k0 / FM__SEGMENT, fm__avxvnni_chunks(args, k0), to);
                to += FM__AVXVNNI_TILE * FM__AVXVNNI_ROW;
            }
            fm__avxvnni_panels(shape, args, t0, t1, k0, table);
        }
    }
}

/* ---- few tokens ---- */

/* A segment of a panel times the tokens of one tile. */
FM__INLINE void fm__avxvnni_few_tokens(const fm__shape shape, const int tokens,
                                       const fm__linear_args *args, uint32_t panel,
                                       uint32_t segment, uint32_t first, fm__avxvnni_tile *tile) {
    tile->rows += (size_t)segment * (size_t)tokens * FM__AVXVNNI_ROW;
    fm__avxvnni_run(shape, true, tokens, tokens, args, panel, segment == 0, first, (uint32_t)tokens,
                    tile);
}

FM__INLINE void fm__avxvnni_few_any(const fm__shape shape, uint32_t tokens,
                                    const fm__linear_args *args, uint32_t panel, uint32_t segment,
                                    uint32_t first, fm__avxvnni_tile *tile) {
    switch (tokens) {
    case 1:
        fm__avxvnni_few_tokens(shape, 1, args, panel, segment, first, tile);
        break;
    case 2:
        fm__avxvnni_few_tokens(shape, 2, args, panel, segment, first, tile);
        break;
    case 3:
        fm__avxvnni_few_tokens(shape, 3, args, panel, segment, first, tile);
        break;
    default:
        fm__avxvnni_few_tokens(shape, 4, args, panel, segment, first, tile);
        break;
    }
}

/* All tokens of one panel; fetches what lies at `ahead` meanwhile. */
FM__INLINE void fm__avxvnni_few_panel(const fm__shape shape, const fm__linear_args *args,
                                      uint32_t panel, const uint8_t *ahead, __m256i table) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const uint32_t segments = (args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    const uint32_t now = args->tokens < FM__AVXVNNI_FEW_TILE ? args->tokens : FM__AVXVNNI_FEW_TILE;
    for (uint32_t s = 0; s < segments; s++) {
        const uint32_t k0 = s * FM__SEGMENT;
        const size_t block0 = k0 / (uint32_t)shape.block;
        fm__avxvnni_tile tile = {
            .codes = base + layout->codes + k0 / FM__CHUNK * (size_t)(64 * shape.bits),
            .sub = base + layout->sub + block0 * fm__shape_sub_bytes(shape),
            .d = base + layout->d + block0 * (shape.d_is_f32 ? 64 : 32),
            .m = base + layout->m + block0 * 32,
            .rows = args->scratch,
            .chunks = fm__avxvnni_chunks(args, k0),
            .ahead = ahead,
            .wide = layout->stride > FM__AVXVNNI_WIDE,
            .table = table,
        };
        fm__avxvnni_few_any(shape, now, args, panel, s, 0, &tile);
        ahead = tile.ahead;
        if (args->tokens == now)
            continue;
        tile.ahead = tile.codes; /* nothing new: these lines are at hand */
        tile.wide = false;
        tile.rows = (const uint8_t *)args->scratch +
                    (size_t)segments * FM__AVXVNNI_FEW_TILE * FM__AVXVNNI_ROW;
        fm__avxvnni_few_any(shape, args->tokens - now, args, panel, s, now, &tile);
    }
}

FM__INLINE void fm__avxvnni_few(const fm__shape shape, const fm__linear_args *args) {
    const uint32_t segments = (args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    const uint32_t end = fm__avx2_panel_end(args);
    const __m256i table = fm__avxvnni_table(shape, args->type);
    uint8_t *to = args->scratch;
    for (uint32_t first = 0; first < args->tokens; first += FM__AVXVNNI_FEW_TILE) {
        const uint32_t left = args->tokens - first;
        const uint32_t width = left < FM__AVXVNNI_FEW_TILE ? left : FM__AVXVNNI_FEW_TILE;
        for (uint32_t s = 0; s < segments; s++, to += (size_t)width * FM__AVXVNNI_ROW)
            fm__avxvnni_prepare_rows(
                shape, true, width, width, args->act + (size_t)first * args->act_layout.stride,
                &args->act_layout, s, fm__avxvnni_chunks(args, s * FM__SEGMENT), to);
    }
    for (uint32_t panel = args->panel_begin; panel < end; panel++) {
        const uint8_t *at = args->panels + (size_t)panel * args->layout.stride;
        /* With nothing known to follow, the last one fetches its own lines: they are on their way.
         */
        const bool follows = args->ahead != NULL && !args->ahead_backwards;
        const uint8_t *ahead = panel + 1 < end ? at + args->layout.stride
                               : follows       ? args->ahead
                                               : at;
        fm__avxvnni_few_panel(shape, args, panel, ahead, table);
    }
}

/* ---- the kernel ---- */

FM__INLINE void fm__avxvnni_linear(const fm__shape shape, const fm__linear_args *args) {
    const size_t segments = ((size_t)args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    if (args->tokens <= FM__AVXVNNI_FEW &&
        segments * args->tokens * FM__AVXVNNI_ROW <= FM__LINEAR_SCRATCH)
        fm__avxvnni_few(shape, args);
    else
        fm__avxvnni_many(shape, args);
}
