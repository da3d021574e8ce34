/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_bf16_amx.h: linear layers of BF16 with bf16 activations on AMX tiles, fast class.
 *
 * Owns: the body of the kernel. Never does: choose a kernel. Included by: linear_bf16_fast_amx.c
 * and the test that runs it on emulated tiles.
 *
 * Panels are B tiles as they lie. Two token tiles times two panels give four C tiles; with
 * FM__AMX_BF16_K k of two panels in the L1 cache, their activations come from the L2 cache and the
 * sums of the k before from scratch.
 */
#pragma once

#include "cpu/x86/linear_amx.h"

/* k of a round: two panels' 32 KiB for 512 of them. */
#ifndef FM__AMX_BF16_K
#define FM__AMX_BF16_K 512
#endif
/* Panels whose sums are in scratch; tokens are packed once for so many. */
#ifndef FM__AMX_BF16_PANELS
#define FM__AMX_BF16_PANELS 16
#endif

enum {
    FM__AMX_BF16_STEPS = FM__AMX_BF16_K / 32,
};

typedef struct fm__amx_bf16_scratch {
    uint8_t act[FM__AMX_TILES][FM__AMX_BF16_STEPS][FM__AMX_TILE][64];
    float acc[FM__AMX_BF16_PANELS][FM__AMX_TILES][FM__AMX_TILE][16];
    uint8_t rest[2][16][64]; /* the last k of two panels, where they do not fill a tile */
} fm__amx_bf16_scratch;
_Static_assert(sizeof(fm__amx_bf16_scratch) <= FM__LINEAR_SCRATCH, "scratch");

FM__INLINE void fm__amx_bf16_configure(void) {
    fm__amx_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) { /* 0..3: C; 4, 5: A; 6, 7: B */
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    FM__TILE_CONFIG(&config);
}

/* k0 .. k1 of the tokens to scratch, with zeros for what is not there. */
FM__INLINE void fm__amx_bf16_pack(const fm__linear_args *args, fm__amx_tokens tokens, uint32_t k0,
                                  uint32_t k1, fm__amx_bf16_scratch *s) {
    const uint32_t pairs = (k1 - k0 + 1) / 2; /* an odd K is zero-padded on both sides */
    for (uint32_t i = 0; i < fm__amx_tiles(tokens) * FM__AMX_TILE; i++) {
        const uint8_t *from = args->act + args->act_layout.values + 2 * (size_t)k0 +
                              (size_t)(tokens.first + i) * args->act_layout.stride;
        for (uint32_t p = 0; p < pairs; p += 16) {
            /* rows are far from each other, so nothing else asks for the next ones */
            _mm_prefetch((const char *)from + 2 * args->act_layout.stride + (size_t)p * 4,
                         _MM_HINT_T0);
            __m512i x = _mm512_setzero_si512();
            if (i < tokens.count)
                x = _mm512_maskz_loadu_epi32(fm__amx_mask(pairs - p), from + (size_t)p * 4);
            _mm512_store_si512(s->act[i / FM__AMX_TILE][p / 16][i % FM__AMX_TILE], x);
        }
    }
}

/* Two panels (the second may be the first again) and up to two token tiles. */
typedef struct fm__amx_bf16_step {
    const uint8_t *codes[2]; /* whole tiles, then rest */
    const uint8_t *next;     /* codes to be fetched meanwhile, or NULL */
    uint32_t tiles;          /* that are whole */
    bool rest;
    bool first; /* nothing in acc yet */
} fm__amx_bf16_step;

#define FM__AMX_BF16_DOTS(act0, act1, codes0, codes1, two)                                         \
    do {                                                                                           \
        FM__TILE_LOAD(4, act0, 64);                                                                \
        FM__TILE_LOAD(6, codes0, 64);                                                              \
        FM__TILE_LOAD(7, codes1, 64);                                                              \
        FM__TILE_DOT_BF16(0, 4, 6);                                                                \
        if (two)                                                                                   \
            FM__TILE_LOAD(5, act1, 64);                                                            \
        FM__TILE_DOT_BF16(1, 4, 7);                                                                \
        if (two) {                                                                                 \
            FM__TILE_DOT_BF16(2, 5, 6);                                                            \
            FM__TILE_DOT_BF16(3, 5, 7);                                                            \
        }                                                                                          \
    } while (0)

/* acc of panels p, q and token tiles i (and i + 1) takes the k in scratch. */
FM__INLINE void fm__amx_bf16_tiles(const bool two, const fm__amx_bf16_step *x, uint32_t p,
                                   uint32_t q, uint32_t i, fm__amx_bf16_scratch *s) {
    const uint32_t j = two ? i + 1 : i;
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
    for (uint32_t step = 0; step < x->tiles; step++) {
        FM__AMX_BF16_DOTS(s->act[i][step][0], s->act[j][step][0], x->codes[0] + step * 1024ul,
                          x->codes[1] + step * 1024ul, two);
        if (x->next)
            fm__amx_fetch(x->next + step * 1024ul, 1024);
    }
    if (x->rest)
        FM__AMX_BF16_DOTS(s->act[i][x->tiles][0], s->act[j][x->tiles][0], s->rest[0][0],
                          s->rest[1][0], two);
    FM__TILE_STORE(0, s->acc[p][i][0], 64);
    if (two)
        FM__TILE_STORE(2, s->acc[p][j][0], 64);
    if (p == q)
        return;
    FM__TILE_STORE(1, s->acc[q][i][0], 64);
    if (two)
        FM__TILE_STORE(3, s->acc[q][j][0], 64);
}

/* Panels begin + p and its neighbour, if there is one, k0 .. k1. */
FM__INLINE void fm__amx_bf16_pair(const fm__linear_args *args, fm__amx_tokens tokens,
                                  uint32_t begin, uint32_t count, uint32_t p, uint32_t k0,
                                  uint32_t k1, fm__amx_bf16_scratch *s) {
    const uint32_t q = p + 1 < count ? p + 1 : p;
    const size_t stride = args->layout.stride;
    const uint8_t *codes = args->panels + args->layout.codes + (size_t)k0 * 32 + begin * stride;
    const uint32_t pairs = (k1 - k0 + 1) / 2;
    fm__amx_bf16_step x = {.codes = {codes + p * stride, codes + q * stride},
                           .tiles = pairs / 16,
                           .rest = pairs % 16 != 0,
                           .first = k0 == 0};
    for (uint32_t r = 0; x.rest && r < 2; r++)
        for (uint32_t row = 0; row < 16; row++)
            _mm512_store_si512(s->rest[r][row],
                               row < pairs % 16
                                   ? _mm512_load_si512(x.codes[r] + x.tiles * 1024ul + row * 64ul)
                                   : _mm512_setzero_si512());
    const uint32_t tiles = fm__amx_tiles(tokens);
    uint32_t i = 0;
    for (; i + 1 < tiles; i += 2) {
        /* the next two panels, one with each of the first pairs of tiles */
        const uint32_t next = q + 1 + i / 2;
        x.next = i < 4 && next < count ? codes + next * stride : NULL;
        fm__amx_bf16_tiles(true, &x, p, q, i, s);
    }
    x.next = NULL;
    if (i < tiles)
        fm__amx_bf16_tiles(false, &x, p, q, i, s);
}

/* Sums of `count` panels to their rows. */
FM__INLINE void fm__amx_bf16_store(const fm__linear_args *args, fm__amx_tokens tokens,
                                   uint32_t begin, uint32_t count, const fm__amx_bf16_scratch *s) {
    for (uint32_t p = 0; p < count; p++) {
        const __mmask16 rows = fm__avx512_row_mask(args->n, begin + p);
        float *out = args->out + (size_t)tokens.first * args->out_stride +
                     (size_t)(begin + p) * FM__PANEL_ROWS;
        for (uint32_t i = 0; i < tokens.count; i++)
            _mm512_mask_storeu_ps(out + i * args->out_stride, rows,
                                  _mm512_load_ps(s->acc[p][i / FM__AMX_TILE][i % FM__AMX_TILE]));
    }
}

FM__INLINE void fm__amx_bf16_linear(const fm__linear_args *args) {
    fm__amx_bf16_scratch *const s = args->scratch;
    const uint32_t end = fm__avx512_panel_end(args);
    fm__amx_bf16_configure();
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__AMX_TOKENS) {
        const fm__amx_tokens tokens = fm__amx_tokens_at(args, t0);
        for (uint32_t begin = args->panel_begin; begin < end; begin += FM__AMX_BF16_PANELS) {
            const uint32_t count =
                end - begin < FM__AMX_BF16_PANELS ? end - begin : FM__AMX_BF16_PANELS;
            for (uint32_t k0 = 0; k0 < args->k; k0 += FM__AMX_BF16_K) {
                const uint32_t k1 = args->k - k0 < FM__AMX_BF16_K ? args->k : k0 + FM__AMX_BF16_K;
                fm__amx_bf16_pack(args, tokens, k0, k1, s);
                for (uint32_t p = 0; p < count; p += 2)
                    fm__amx_bf16_pair(args, tokens, begin, count, p, k0, k1, s);
            }
            fm__amx_bf16_store(args, tokens, begin, count, s);
        }
    }
    FM__TILE_RELEASE();
}
