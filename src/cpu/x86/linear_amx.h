/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_amx.h: what the AMX linear kernels share.
 *
 * Owns: nothing. Never does: tile arithmetic. Included by: the bodies linear_*_amx.h, after a tile
 * interface (tile_amx.h).
 *
 * A panel's vectors are the rows of a B tile: 8 of them hold 32 k of 8-bit codes, 16 hold 32 k of
 * bf16. An A tile is 16 tokens, a C tile 16 tokens by the 16 rows of a panel. Activations are
 * copied, so that the rows of a tile follow each other (rows of activations often lie a multiple of
 * 4096 bytes apart) and missing tokens are zeros: once for all calls of a product
 * (fm__linear_shared), or by a call to its scratch.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "cpu/x86/avx512.h"

/* Tokens that are prepared at a time; a test takes fewer so that it sees more than one round. */
#ifndef FM__AMX_TOKENS
#define FM__AMX_TOKENS 256
#endif

/* Fewer tokens go to the AVX-512 kernel: a tile of them is mostly zeros. */
#ifndef FM__AMX_LEAST
#define FM__AMX_LEAST 9
#endif

enum {
    FM__AMX_TILE = 16, /* tokens of a tile */
    FM__AMX_TILES = FM__AMX_TOKENS / FM__AMX_TILE,
    FM__AMX_TILE_BYTES = 1024, /* of a full tile: 16 rows of 64 */
};

/* What ldtilecfg reads. */
typedef struct fm__amx_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} fm__amx_config;
_Static_assert(sizeof(fm__amx_config) == 64, "as the processor lays it out");

/* Some tokens of a call: a round of them. */
typedef struct fm__amx_tokens {
    uint32_t first, count;
} fm__amx_tokens;

FM__INLINE fm__amx_tokens fm__amx_tokens_at(const fm__linear_args *args, uint32_t first) {
    const uint32_t left = args->tokens - first;
    return (fm__amx_tokens){first, left < FM__AMX_TOKENS ? left : FM__AMX_TOKENS};
}

FM__INLINE uint32_t fm__amx_tiles(fm__amx_tokens tokens) {
    return (tokens.count + FM__AMX_TILE - 1) / FM__AMX_TILE;
}

/* Tokens of tile i. */
FM__INLINE uint32_t fm__amx_tile_tokens(fm__amx_tokens tokens, uint32_t i) {
    const uint32_t left = tokens.count - i * FM__AMX_TILE;
    return left < FM__AMX_TILE ? left : FM__AMX_TILE;
}

/* Of k, from k0. */
FM__INLINE uint32_t fm__amx_segment(const fm__linear_args *args, uint32_t k0) {
    return args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
}

/* Pieces of preparing a whole product's tokens: [segment][tile of tokens]. */
FM__INLINE uint32_t fm__amx_all_tiles(uint32_t tokens) {
    return tokens / FM__AMX_TILE + (tokens % FM__AMX_TILE != 0);
}

/* 0: so few tokens that the AVX-512 kernel takes them. */
FM__INLINE uint32_t fm__amx_units(uint32_t tokens, uint32_t k) {
    const uint32_t segments = k / FM__SEGMENT + (k % FM__SEGMENT != 0);
    return tokens < FM__AMX_LEAST ? 0 : segments * fm__amx_all_tiles(tokens);
}

typedef struct fm__amx_unit {
    uint32_t first, count, k0; /* tokens of the product, first of its segment */
} fm__amx_unit;

FM__INLINE fm__amx_unit fm__amx_unit_at(uint32_t tokens, uint32_t unit) {
    const uint32_t tiles = fm__amx_all_tiles(tokens);
    fm__amx_unit u = {.first = unit % tiles * FM__AMX_TILE, .k0 = unit / tiles * FM__SEGMENT};
    u.count = tokens - u.first < FM__AMX_TILE ? tokens - u.first : FM__AMX_TILE;
    return u;
}

/* The piece with a round's first token. */
FM__INLINE size_t fm__amx_unit_of(const fm__linear_args *args, fm__amx_tokens tokens, uint32_t k0) {
    return (size_t)(k0 / FM__SEGMENT) * fm__amx_all_tiles(args->prepared_tokens) +
           (args->prepared_first + tokens.first) / FM__AMX_TILE;
}

/* The first `count` of 16 lanes, from memory that may end behind them. */
FM__INLINE __mmask16 fm__amx_mask(uint32_t count) {
    return count >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << count) - 1u);
}

/* out = x for the first segment, out + x for the later ones. */
FM__INLINE void fm__amx_store_row(float *out, __mmask16 rows, bool first, __m512 x) {
    if (!first)
        x = _mm512_add_ps(_mm512_maskz_loadu_ps(rows, out), x);
    _mm512_mask_storeu_ps(out, rows, x);
}

/* `bytes` of the next panel's codes on their way to the L2 cache. */
FM__INLINE void fm__amx_fetch(const uint8_t *next, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)next + i, _MM_HINT_T1);
}
