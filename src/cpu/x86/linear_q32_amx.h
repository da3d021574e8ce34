/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_q32_amx.h: quantised linear layers with blocks of 32 on AMX tiles.
 *
 * Owns: the body of every such kernel. Never does: choose a kernel. Included by: linear_q32_amx.c
 * and the test that runs it on emulated tiles.
 *
 * A block is one product of 16 tokens x 32 k with 32 k x 16 rows, signed bytes on both sides, and
 * gives the exact int32 sums. They go through a buffer in the L1 cache to the vector unit, which
 * does the block's float step with the 16 accumulators of a panel and a token tile in registers:
 * four operations a token and panel. The products run three blocks ahead of the float steps and the
 * stores two.
 */
#pragma once

#include "cpu/linear_shape.h"
#include "cpu/x86/linear_amx.h"
#include "cpu/x86/linear_codes_avx512vnni.h"

enum { FM__AMX32_CHUNKS = FM__SEGMENT / FM__CHUNK };

/* One segment of a token tile, prepared. */
typedef struct fm__amx32_tile_data {
    uint8_t act[FM__AMX32_CHUNKS / 2][FM__AMX_TILE][64]; /* int8 */
    float d[FM__AMX_TILE][FM__AMX32_CHUNKS];
    float sum[FM__AMX_TILE][FM__AMX32_CHUNKS];
} fm__amx32_tile_data;

/* One segment of FM__AMX_TOKENS tokens, and of a panel. */
typedef struct fm__amx32_scratch {
    fm__amx32_tile_data tiles[FM__AMX_TILES];
    uint8_t codes[FM__AMX32_CHUNKS][8][64]; /* int8 */
    int32_t isum[4][FM__AMX_TILE][16];      /* of four blocks, as the tiles leave them */
} fm__amx32_scratch;
_Static_assert(sizeof(fm__amx32_scratch) <= FM__LINEAR_SCRATCH, "scratch");

FM__INLINE void fm__amx32_configure(void) {
    fm__amx_config config = {.palette = 1};
    for (int t = 0; t < 6; t++) { /* 0..3: C; 4: A; 5: B */
        config.row_bytes[t] = t == 4 ? 32 : 64;
        config.rows[t] = t == 5 ? 8 : 16;
    }
    FM__TILE_CONFIG(&config);
}

FM__INLINE void fm__amx32_pack_token(const fm__linear_args *args, uint32_t token, uint32_t k0,
                                     uint32_t chunks, uint32_t t, fm__amx32_tile_data *tile) {
    const uint8_t *row = args->act + (size_t)token * args->act_layout.stride;
    const uint8_t *q = row + args->act_layout.values + k0;
    for (uint32_t c = 0; c < chunks; c += 2) /* a row's values fill whole 64 bytes */
        _mm512_store_si512(tile->act[c / 2][t], _mm512_load_si512(q + (size_t)c * 32));
    const float *d = (const float *)(const void *)(row + args->act_layout.d) + k0 / FM__CHUNK;
    const int16_t *sum =
        (const int16_t *)(const void *)(row + args->act_layout.sum) + k0 / FM__CHUNK;
    for (uint32_t c = 0; c < chunks; c += 16) {
        const __mmask16 mask = fm__amx_mask(chunks - c);
        _mm512_store_ps(&tile->d[t][c], _mm512_maskz_loadu_ps(mask, d + c));
        _mm512_store_ps(&tile->sum[t][c], _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(
                                              _mm256_maskz_loadu_epi16(mask, sum + c))));
    }
}

/* One segment of `count` tokens; tokens that are not there: zeros, since some left-over number
   might be a slow one. */
FM__INLINE void fm__amx32_pack(const fm__linear_args *args, uint32_t first, uint32_t count,
                               uint32_t k0, fm__amx32_tile_data *tile) {
    const uint32_t chunks = fm__amx_segment(args, k0) / FM__CHUNK;
    for (uint32_t t = 0; t < count; t++)
        fm__amx32_pack_token(args, first + t, k0, chunks, t, tile);
    for (uint32_t t = count; t < FM__AMX_TILE; t++) {
        for (uint32_t c = 0; c < chunks; c += 2)
            _mm512_store_si512(tile->act[c / 2][t], _mm512_setzero_si512());
        memset(tile->d[t], 0, sizeof tile->d[t]);
        memset(tile->sum[t], 0, sizeof tile->sum[t]);
    }
}

/* ---- tokens prepared for all calls of a product: [segment][tile] ---- */

FM__INLINE size_t fm__amx32_shared_bytes(uint32_t tokens, uint32_t k) {
    return fm__amx_units(tokens, k) * sizeof(fm__amx32_tile_data);
}

FM__INLINE void fm__amx32_prepare(const fm__linear_args *args, uint32_t unit) {
    const fm__amx_unit u = fm__amx_unit_at(args->tokens, unit);
    fm__amx32_tile_data *tiles = (fm__amx32_tile_data *)(void *)args->prepared;
    fm__amx32_pack(args, u.first, u.count, u.k0, &tiles[unit]);
}

/* Those of a round: prepared, or now in scratch. */
FM__INLINE const fm__amx32_tile_data *fm__amx32_tiles(const fm__linear_args *args,
                                                      fm__amx_tokens tokens, uint32_t k0,
                                                      fm__amx32_scratch *s) {
    if (args->prepared)
        return (const fm__amx32_tile_data *)(const void *)args->prepared +
               fm__amx_unit_of(args, tokens, k0);
    for (uint32_t i = 0; i < fm__amx_tiles(tokens); i++)
        fm__amx32_pack(args, tokens.first + i * FM__AMX_TILE, fm__amx_tile_tokens(tokens, i), k0,
                       &s->tiles[i]);
    return s->tiles;
}

/* The panel's segment as signed bytes: Q8_0 is stored so. */
FM__INLINE const uint8_t *fm__amx32_codes(const fm__shape shape, const fm__linear_args *args,
                                          const uint8_t *codes, uint32_t chunks,
                                          fm__amx32_scratch *s) {
    if (shape.bits == 8)
        return codes;
    __m512i table = _mm512_setzero_si512(), offset = table;
    if (shape.lut)
        table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)args->type->lut));
    else if (shape.offset_shift >= 0)
        offset = _mm512_set1_epi8((char)(1 << shape.offset_shift));
    for (uint32_t c = 0; c < chunks; c++) {
        __m512i w[8];
        fm__vnni_unpack(shape, codes + c * (size_t)(64 * shape.bits), table, w);
        FM__UNROLL for (int v = 0; v < 8; v++)
            _mm512_store_si512(s->codes[c][v], _mm512_sub_epi8(w[v], offset));
    }
    return s->codes[0][0];
}

/* What one token tile and one panel have in common. */
typedef struct fm__amx32_step {
    const uint8_t *act, *codes;
    const float *act_d, *act_sum; /* token to token FM__AMX32_CHUNKS floats */
    const uint8_t *d, *m;
    const uint8_t *next; /* the next panel's codes, or NULL */
    int32_t *isum;
} fm__amx32_step;

/* Blocks take turns in four C tiles. One register for the tokens and one for the codes: faster
   in this kernel (lab note 018). */
#define FM__AMX32_PRODUCT(C, x, c)                                                                 \
    do {                                                                                           \
        FM__TILE_LOAD(5, (x)->codes + (size_t)(c)*512, 64);                                        \
        FM__TILE_LOAD(4, (x)->act + (size_t)((c) / 2) * 1024 + (size_t)((c) % 2) * 32, 64);        \
        FM__TILE_ZERO(C);                                                                          \
        FM__TILE_DOT_SS(C, 4, 5);                                                                  \
    } while (0)
#define FM__AMX32_STORE(C, x) FM__TILE_STORE(C, (x)->isum + (size_t)(C)*256, 64)

/* The float step of block c. */
FM__INLINE void fm__amx32_finish(const fm__shape shape, const int tokens, const fm__amx32_step *x,
                                 uint32_t c, __m512 *acc) {
    const int32_t *isum = x->isum + (size_t)(c % 4) * 256;
    const __m512 d = shape.d_is_f32 ? _mm512_load_ps(x->d + (size_t)c * 64)
                                    : fm__vnni_half(x->d + (size_t)c * 32);
    const __m512 m = shape.has_min ? fm__vnni_half(x->m + (size_t)c * 32) : d;
    if (x->next)
        fm__amx_fetch(x->next + (size_t)c * (size_t)(64 * shape.bits), (size_t)(64 * shape.bits));
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const __m512 da = _mm512_set1_ps(x->act_d[t * FM__AMX32_CHUNKS + (int)c]);
        const __m512 i = _mm512_cvtepi32_ps(_mm512_load_si512(isum + 16 * t));
        acc[t] = _mm512_add_ps(acc[t], _mm512_mul_ps(i, _mm512_mul_ps(d, da)));
        if (shape.has_min) {
            const __m512 sum = _mm512_set1_ps(x->act_sum[t * FM__AMX32_CHUNKS + (int)c]);
            acc[t] = _mm512_add_ps(acc[t], _mm512_mul_ps(sum, _mm512_mul_ps(m, da)));
        }
    }
}

/* Block c of C tile c % 4: its float step, before it the store of the block two behind, and before
   that the product of the block three behind, so that no store waits for its product. */
#define FM__AMX32_BLOCK(behind2, behind3, c)                                                       \
    do {                                                                                           \
        if ((c) + 3 < chunks)                                                                      \
            FM__AMX32_PRODUCT(behind3, x, (c) + 3);                                                \
        if ((c) + 2 < chunks)                                                                      \
            FM__AMX32_STORE(behind2, x);                                                           \
        fm__amx32_finish(shape, tokens, x, c, acc);                                                \
    } while (0)

/* acc[t] = the segment's sum, blocks ascending from +0, of the first `tokens` of a tile. */
FM__INLINE void fm__amx32_tile(const fm__shape shape, const int tokens, const fm__amx32_step *x,
                               uint32_t chunks, __m512 *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    FM__AMX32_PRODUCT(0, x, 0u);
    if (chunks > 1)
        FM__AMX32_PRODUCT(1, x, 1u);
    FM__AMX32_STORE(0, x);
    if (chunks > 2)
        FM__AMX32_PRODUCT(2, x, 2u);
    if (chunks > 1)
        FM__AMX32_STORE(1, x);
    uint32_t c = 0;
    for (; c + 3 < chunks; c += 4) {
        FM__AMX32_BLOCK(2, 3, c);
        FM__AMX32_BLOCK(3, 0, c + 1);
        FM__AMX32_BLOCK(0, 1, c + 2);
        FM__AMX32_BLOCK(1, 2, c + 3);
    }
    if (c < chunks)
        FM__AMX32_BLOCK(2, 3, c);
    if (c + 1 < chunks)
        FM__AMX32_BLOCK(3, 0, c + 1);
    if (c + 2 < chunks)
        FM__AMX32_BLOCK(0, 1, c + 2);
}

FM__INLINE void fm__amx32_rows(const fm__shape shape, const int tokens, uint32_t count,
                               const fm__amx32_step *x, uint32_t chunks, float *out,
                               size_t out_stride, __mmask16 rows, bool first) {
    __m512 acc[FM__AMX_TILE];
    for (uint32_t t = 0; t < count; t++)
        _mm_prefetch((const char *)(out + t * out_stride), _MM_HINT_T0);
    fm__amx32_tile(shape, tokens, x, chunks, acc);
    FM__UNROLL for (int t = 0; t < tokens; t++) if ((uint32_t)t < count)
        fm__amx_store_row(out + (size_t)t * out_stride, rows, first, acc[t]);
}

/* One segment of one panel times the round's tokens. */
FM__INLINE void fm__amx32_panel(const fm__shape shape, const fm__linear_args *args, uint32_t panel,
                                bool last, fm__amx_tokens tokens, uint32_t k0,
                                const fm__amx32_tile_data *tiles, fm__amx32_scratch *s) {
    const uint32_t chunks = fm__amx_segment(args, k0) / FM__CHUNK;
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t c0 = k0 / FM__CHUNK;
    const uint8_t *codes = base + layout->codes + c0 * (size_t)(64 * shape.bits);
    fm__amx32_step x = {.codes = fm__amx32_codes(shape, args, codes, chunks, s),
                        .d = base + layout->d + c0 * layout->d_bytes,
                        .m = base + layout->m + c0 * 32,
                        .next = last ? NULL : codes + layout->stride,
                        .isum = s->isum[0][0]};
    const __mmask16 rows = fm__avx512_row_mask(args->n, panel);
    for (uint32_t i = 0; i < fm__amx_tiles(tokens); i++) {
        const uint32_t count = fm__amx_tile_tokens(tokens, i);
        float *out = args->out + (size_t)(tokens.first + i * FM__AMX_TILE) * args->out_stride +
                     (size_t)panel * FM__PANEL_ROWS;
        x.act = tiles[i].act[0][0];
        x.act_d = tiles[i].d[0];
        x.act_sum = tiles[i].sum[0];
        if (count > 8)
            fm__amx32_rows(shape, 16, count, &x, chunks, out, args->out_stride, rows, k0 == 0);
        else
            fm__amx32_rows(shape, 8, count, &x, chunks, out, args->out_stride, rows, k0 == 0);
        x.next = NULL;
    }
}

FM__INLINE void fm__amx32_linear(const fm__shape shape, const fm__linear_args *args) {
    fm__amx32_scratch *const s = args->scratch;
    const uint32_t end = fm__avx512_panel_end(args);
    fm__amx32_configure();
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__AMX_TOKENS) {
        const fm__amx_tokens tokens = fm__amx_tokens_at(args, t0);
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const fm__amx32_tile_data *tiles = fm__amx32_tiles(args, tokens, k0, s);
            for (uint32_t panel = args->panel_begin; panel < end; panel++)
                fm__amx32_panel(shape, args, panel, panel + 1 == end, tokens, k0, tiles, s);
        }
    }
    FM__TILE_RELEASE();
}
