/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_bf16_amx.h: linear layers of BF16 with bf16 activations on AMX tiles, fast class.
 *
 * Owns: the body of the kernel. Never does: choose a kernel. Included by: linear_bf16_fast_amx.c
 * and the test that runs it on emulated tiles.
 *
 * Panels are B tiles as they lie. Two token tiles times two panels give four C tiles, which stay
 * for FM__SEGMENT k; the sums of the k before wait in scratch, and the last go to their rows.
 */
#pragma once

#include "cpu/x86/linear_amx.h"

/* Panels whose sums are in scratch; tokens are packed once for so many. */
#ifndef FM__AMX_BF16_PANELS
#define FM__AMX_BF16_PANELS 16
#endif

enum {
    FM__AMX_BF16_STEPS = FM__SEGMENT / 32,
    FM__AMX_BF16_TILES = FM__AMX_TILES < 8 ? FM__AMX_TILES : 8, /* packed by a call itself */
};

/* One segment of a token tile, prepared. */
typedef struct fm__amx_bf16_tile {
    uint8_t act[FM__AMX_BF16_STEPS][FM__AMX_TILE][64];
} fm__amx_bf16_tile;

typedef struct fm__amx_bf16_scratch {
    fm__amx_bf16_tile tiles[FM__AMX_BF16_TILES];
    float acc[FM__AMX_BF16_PANELS][FM__AMX_TILES][FM__AMX_TILE][16];
    uint8_t rest[2][16][64]; /* the last k of two panels, where they do not fill a tile */
} fm__amx_bf16_scratch;
_Static_assert(sizeof(fm__amx_bf16_scratch) <= FM__LINEAR_SCRATCH, "scratch");

FM__INLINE void fm__amx_bf16_configure(void) {
    fm__amx_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) { /* 0..3: C; 7: A; 6: B */
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    FM__TILE_CONFIG(&config);
}

/* ---- activations ---- */

/* One segment of `count` tokens, with zeros for what is not there. */
FM__INLINE void fm__amx_bf16_pack(const fm__linear_args *args, uint32_t first, uint32_t count,
                                  uint32_t k0, fm__amx_bf16_tile *tile) {
    /* an odd K is zero-padded on both sides */
    const uint32_t pairs = (fm__amx_segment(args, k0) + 1) / 2;
    for (uint32_t i = 0; i < FM__AMX_TILE; i++) {
        const uint8_t *from = args->act + args->act_layout.values + 2 * (size_t)k0 +
                              (size_t)(first + i) * args->act_layout.stride;
        for (uint32_t p = 0; p < pairs; p += 16) {
            /* rows are far from each other, so nothing else asks for the next ones */
            _mm_prefetch((const char *)from + 2 * args->act_layout.stride + (size_t)p * 4,
                         _MM_HINT_T0);
            __m512i x = _mm512_setzero_si512();
            if (i < count)
                x = _mm512_maskz_loadu_epi32(fm__amx_mask(pairs - p), from + (size_t)p * 4);
            _mm512_store_si512(tile->act[p / 16][i], x);
        }
    }
}

/* ---- tokens prepared for all calls of a product: [segment][tile] ---- */

FM__INLINE size_t fm__amx_bf16_shared_bytes(uint32_t tokens, uint32_t k) {
    return fm__amx_units(tokens, k) * sizeof(fm__amx_bf16_tile);
}

FM__INLINE void fm__amx_bf16_prepare(const fm__linear_args *args, uint32_t unit) {
    const fm__amx_unit u = fm__amx_unit_at(args->tokens, unit);
    fm__amx_bf16_tile *tiles = (fm__amx_bf16_tile *)(void *)args->prepared;
    fm__amx_bf16_pack(args, u.first, u.count, u.k0, &tiles[unit]);
}

/* Those of a round: prepared, or now in scratch. */
FM__INLINE const fm__amx_bf16_tile *fm__amx_bf16_tiles(const fm__linear_args *args,
                                                       fm__amx_tokens tokens, uint32_t k0,
                                                       fm__amx_bf16_scratch *s) {
    if (args->prepared)
        return (const fm__amx_bf16_tile *)(const void *)args->prepared +
               fm__amx_unit_of(args, tokens, k0);
    for (uint32_t i = 0; i < fm__amx_tiles(tokens); i++)
        fm__amx_bf16_pack(args, tokens.first + i * FM__AMX_TILE, fm__amx_tile_tokens(tokens, i), k0,
                          &s->tiles[i]);
    return s->tiles;
}

/* ---- two panels ---- */

/* A segment of two panels (the second may be the first again). */
typedef struct fm__amx_bf16_step {
    const fm__amx_bf16_tile *tiles; /* the round's tokens */
    const uint8_t *codes[2];        /* whole tiles, then rest */
    const uint8_t *next;            /* codes to be fetched meanwhile, or NULL */
    uint32_t whole;                 /* tiles of codes */
    bool rest;
    bool first, last; /* segment */
    uint32_t panel;   /* of args */
} fm__amx_bf16_step;

/* C tiles 0, 1: a's tokens with either panel; 2, 3: b's. One register for the tokens and one for
   the codes, five loads instead of four: faster in this kernel (lab note 018). */
#define FM__AMX_BF16_DOTS(act0, act1, codes0, codes1, two)                                         \
    do {                                                                                           \
        FM__TILE_LOAD(6, codes0, 64);                                                              \
        FM__TILE_LOAD(7, act0, 64);                                                                \
        FM__TILE_DOT_BF16(0, 7, 6);                                                                \
        if (two) {                                                                                 \
            FM__TILE_LOAD(7, act1, 64);                                                            \
            FM__TILE_DOT_BF16(2, 7, 6);                                                            \
        }                                                                                          \
        FM__TILE_LOAD(6, codes1, 64);                                                              \
        if (two) {                                                                                 \
            FM__TILE_DOT_BF16(3, 7, 6);                                                            \
            FM__TILE_LOAD(7, act0, 64);                                                            \
        }                                                                                          \
        FM__TILE_DOT_BF16(1, 7, 6);                                                                \
    } while (0)

/* C tile t of token tile i and a panel (of args; p of the round): to its rows when it is done and
   all of them exist. */
#define FM__AMX_BF16_STORE(t, args, x, tokens, n, p, i, s)                                         \
    do {                                                                                           \
        if ((x)->last && fm__amx_bf16_full(args, n, tokens, i))                                    \
            FM__TILE_STORE(t, fm__amx_bf16_out(args, n, tokens, i), (args)->out_stride * 4);       \
        else                                                                                       \
            FM__TILE_STORE(t, (s)->acc[p][i][0], 64);                                              \
    } while (0)

FM__INLINE bool fm__amx_bf16_full(const fm__linear_args *args, uint32_t panel,
                                  fm__amx_tokens tokens, uint32_t i) {
    return (size_t)(panel + 1) * FM__PANEL_ROWS <= args->n &&
           fm__amx_tile_tokens(tokens, i) == FM__AMX_TILE;
}

FM__INLINE float *fm__amx_bf16_out(const fm__linear_args *args, uint32_t panel,
                                   fm__amx_tokens tokens, uint32_t i) {
    return args->out + (size_t)(tokens.first + i * FM__AMX_TILE) * args->out_stride +
           (size_t)panel * FM__PANEL_ROWS;
}

/* acc of panels p, q (x->panel and its neighbour, or twice the same) and token tiles i (and i + 1)
   takes a segment. */
FM__INLINE void fm__amx_bf16_products(const bool two, const fm__linear_args *args,
                                      fm__amx_tokens tokens, const fm__amx_bf16_step *x, uint32_t p,
                                      uint32_t q, uint32_t i, fm__amx_bf16_scratch *s) {
    const uint32_t j = two ? i + 1 : i;
    const fm__amx_bf16_tile *a = &x->tiles[i], *b = &x->tiles[j];
    if (x->first) {
        FM__TILE_ZERO(0);
        FM__TILE_ZERO(1);
        FM__TILE_ZERO(2);
        FM__TILE_ZERO(3);
    } else {
        FM__TILE_LOAD(0, s->acc[p][i][0], 64);
        FM__TILE_LOAD(1, s->acc[q][i][0], 64);
        FM__TILE_LOAD(2, s->acc[p][j][0], 64);
        FM__TILE_LOAD(3, s->acc[q][j][0], 64);
    }
    for (uint32_t step = 0; step < x->whole; step++) {
        FM__AMX_BF16_DOTS(a->act[step][0], b->act[step][0], x->codes[0] + step * 1024ul,
                          x->codes[1] + step * 1024ul, two);
        if (x->next)
            fm__amx_fetch(x->next + step * 1024ul, 1024);
    }
    if (x->rest)
        FM__AMX_BF16_DOTS(a->act[x->whole][0], b->act[x->whole][0], s->rest[0][0], s->rest[1][0],
                          two);
    FM__AMX_BF16_STORE(0, args, x, tokens, x->panel, p, i, s);
    if (two)
        FM__AMX_BF16_STORE(2, args, x, tokens, x->panel, p, j, s);
    if (p == q)
        return;
    FM__AMX_BF16_STORE(1, args, x, tokens, x->panel + 1, q, i, s);
    if (two)
        FM__AMX_BF16_STORE(3, args, x, tokens, x->panel + 1, q, j, s);
}

/* Panels begin + p and its neighbour, if there is one. */
FM__INLINE void fm__amx_bf16_pair(const fm__linear_args *args, fm__amx_tokens tokens,
                                  uint32_t begin, uint32_t count, uint32_t p, uint32_t k0,
                                  const fm__amx_bf16_tile *all, fm__amx_bf16_scratch *s) {
    const uint32_t q = p + 1 < count ? p + 1 : p;
    const size_t stride = args->layout.stride;
    const uint8_t *codes = args->panels + args->layout.codes + (size_t)k0 * 32 + begin * stride;
    const uint32_t pairs = (fm__amx_segment(args, k0) + 1) / 2;
    fm__amx_bf16_step x = {.tiles = all,
                           .codes = {codes + p * stride, codes + q * stride},
                           .whole = pairs / 16,
                           .rest = pairs % 16 != 0,
                           .first = k0 == 0,
                           .last = args->k - k0 <= FM__SEGMENT,
                           .panel = begin + p};
    for (uint32_t r = 0; x.rest && r < 2; r++)
        for (uint32_t row = 0; row < 16; row++)
            _mm512_store_si512(s->rest[r][row],
                               row < pairs % 16
                                   ? _mm512_load_si512(x.codes[r] + x.whole * 1024ul + row * 64ul)
                                   : _mm512_setzero_si512());
    const uint32_t tiles = fm__amx_tiles(tokens);
    uint32_t i = 0;
    for (; i + 1 < tiles; i += 2) {
        /* the next two panels, one with each of the first pairs of tiles */
        const uint32_t next = q + 1 + i / 2;
        x.next = i < 4 && next < count ? codes + next * stride : NULL;
        fm__amx_bf16_products(true, args, tokens, &x, p, q, i, s);
    }
    x.next = NULL;
    if (i < tiles)
        fm__amx_bf16_products(false, args, tokens, &x, p, q, i, s);
}

/* Sums of `count` panels to their rows, of those that tiles do not store there. */
FM__INLINE void fm__amx_bf16_store(const fm__linear_args *args, fm__amx_tokens tokens,
                                   uint32_t begin, uint32_t count, const fm__amx_bf16_scratch *s) {
    for (uint32_t p = 0; p < count; p++)
        for (uint32_t i = 0; i < fm__amx_tiles(tokens); i++) {
            float *out = fm__amx_bf16_out(args, begin + p, tokens, i);
            const uint32_t n =
                fm__amx_bf16_full(args, begin + p, tokens, i) ? 0 : fm__amx_tile_tokens(tokens, i);
            for (uint32_t t = 0; t < n; t++)
                _mm512_mask_storeu_ps(out + t * args->out_stride,
                                      fm__avx512_row_mask(args->n, begin + p),
                                      _mm512_load_ps(s->acc[p][i][t]));
        }
}

FM__INLINE void fm__amx_bf16_linear(const fm__linear_args *args) {
    fm__amx_bf16_scratch *const s = args->scratch;
    const uint32_t end = fm__avx512_panel_end(args);
    const uint32_t most =
        args->prepared ? FM__AMX_TOKENS : (uint32_t)FM__AMX_BF16_TILES * FM__AMX_TILE;
    fm__amx_bf16_configure();
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += most) {
        const uint32_t left = args->tokens - t0;
        const fm__amx_tokens tokens = {t0, left < most ? left : most};
        for (uint32_t begin = args->panel_begin; begin < end; begin += FM__AMX_BF16_PANELS) {
            const uint32_t count =
                end - begin < FM__AMX_BF16_PANELS ? end - begin : FM__AMX_BF16_PANELS;
            for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
                const fm__amx_bf16_tile *tiles = fm__amx_bf16_tiles(args, tokens, k0, s);
                for (uint32_t p = 0; p < count; p += 2)
                    fm__amx_bf16_pair(args, tokens, begin, count, p, k0, tiles, s);
            }
            fm__amx_bf16_store(args, tokens, begin, count, s);
        }
    }
    FM__TILE_RELEASE();
}
