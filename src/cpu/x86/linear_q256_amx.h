/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_q256_amx.h: quantised linear layers with blocks of 256 on AMX tiles.
 *
 * Owns: the body of every such kernel. Never does: choose a kernel. Included by: linear_q256_amx.c
 * and the test that runs it on emulated tiles.
 *
 * Tiles cannot shift or scale inside a block, so the shifts and the sub-scales go into the
 * operands, and a whole block's isum comes from products with k = 64:
 *
 *   activation << shift = radix * high + low  |high| <= 127, low >= 0: two A tiles
 *   value * sub-scale                         2-bit types and Q3_K: one byte, two panels at a time;
 *                                             others: radix * upper + lower, two B tiles
 *
 * so that in both cases two A and two B tiles give sixteen products a block. Two panels at a time
 * have four C tiles and radix 8. Where two bytes are needed, both radices are the same, so that
 * high * lower and low * upper add up in one of three C tiles (a chain of products on one C tile
 * is not slower than others):
 *
 *   Q4_K, Q5_K     radix 8: code * (scale / 8) and code * (scale % 8), at most 31 * 7: unsigned
 *   Q6_K, IQ4_XS   radix 64: |value * scale| <= 4096, upper -64..64, lower 0..63
 *   Q3_K           -(value * scale) is -128..124 (value -4..3, scale -32..31): its block is
 *                  subtracted, which gives the same bits, as the accumulator is never -0
 *
 * The float step of a token tile, 16 to 20 operations a token and panel, runs between the products
 * of the next one.
 */
#pragma once

#include "cpu/linear_shape.h"
#include "cpu/x86/linear_amx.h"
#include "cpu/x86/linear_codes_avx512vnni.h"

enum {
    FM__AMX256_BLOCKS = FM__SEGMENT / 256,
    FM__AMX256_STEPS = 4, /* of 64 k a block */
};

/* One segment of a token tile, prepared. */
typedef struct fm__amx256_tile {
    uint8_t act[FM__AMX256_BLOCKS][FM__AMX256_STEPS][2][FM__AMX_TILE][64];
    uint8_t side[FM__AMX_TILE][FM__VNNI_SIDE]; /* types with a minimum: their sums */
    float d[FM__AMX_TILE][FM__AMX256_BLOCKS];
} fm__amx256_tile;

/* One segment of FM__AMX_TOKENS tokens; a block of two panels. */
typedef struct fm__amx256_scratch {
    fm__amx256_tile tiles[FM__AMX_TILES];
    uint8_t codes[2][FM__AMX256_STEPS][16][64];
    uint8_t pairs[2][8][64];           /* types with a minimum, of each panel */
    int32_t isum[4][FM__AMX_TILE][16]; /* a token tile's, read before the next one's are stored */
    float acc[2][FM__AMX_TILES][FM__AMX_TILE][16]; /* of each panel */
} fm__amx256_scratch;
_Static_assert(sizeof(fm__amx256_scratch) <= FM__LINEAR_SCRATCH, "scratch");

/* One byte a product, and so two panels at a time. */
FM__INLINE bool fm__amx256_narrow(const fm__shape shape) {
    return shape.bits < 4;
}

FM__INLINE void fm__amx256_configure(void) {
    fm__amx_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) { /* 0..3: C; 4: A; 6: B */
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    FM__TILE_CONFIG(&config);
}

/* ---- activations ---- */

/* Bit matrices for gf2p8affineqb, by shift; byte 7 - i, so the i-th pair of digits, says which bits
   of q make bit i of the result. */
/* q << shift >> 3 with q's sign: bit i is bit i + 3 - shift of q, or its sign */
static const uint64_t fm__amx256_high[4] = {0x0810204080808080, 0x0408102040808080,
                                            0x0204081020408080, 0x0102040810204080};
/* q << shift & 7: bit i is bit i - shift of q */
static const uint64_t fm__amx256_low[4] = {0x0102040000000000, 0x0001020000000000,
                                           0x0000010000000000, 0};
/* the same for radix 64: q << shift >> 6 and q << shift & 63 */
static const uint64_t fm__amx256_high64[4] = {0x4080808080808080, 0x2040808080808080,
                                              0x1020408080808080, 0x0810204080808080};
static const uint64_t fm__amx256_low64[4] = {0x0102040810200000, 0x0001020408100000,
                                             0x0000010204080000, 0x0000000102040000};

FM__INLINE void fm__amx256_pack_token(const fm__shape shape, const fm__linear_args *args,
                                      uint32_t token, uint32_t k0, uint32_t blocks, uint32_t t,
                                      fm__amx256_tile *tile) {
    const uint8_t *row = args->act + (size_t)token * args->act_layout.stride;
    const uint8_t *q = row + args->act_layout.values + k0;
    const uint8_t *shift = row + args->act_layout.shift + k0 / FM__CHUNK;
    const bool wide = !fm__amx256_narrow(shape) && !shape.has_min;
    const uint64_t *high = wide ? fm__amx256_high64 : fm__amx256_high;
    const uint64_t *low = wide ? fm__amx256_low64 : fm__amx256_low;
    for (uint32_t c = 0; c < 8 * blocks; c++) {
        const __m256i x = _mm256_load_si256((const __m256i *)(q + (size_t)c * 32));
        const int e = shift[c] & 3;
        uint8_t *to = tile->act[c / 8][c / 2 % 4][0][t] + c % 2 * 32;
        _mm256_store_si256((__m256i *)to, _mm256_gf2p8affine_epi64_epi8(
                                              x, _mm256_set1_epi64x((long long)high[e]), 0));
        _mm256_store_si256(
            (__m256i *)(to + FM__AMX_TILE_BYTES),
            _mm256_gf2p8affine_epi64_epi8(x, _mm256_set1_epi64x((long long)low[e]), 0));
    }
    memset(tile->d[t], 0, sizeof tile->d[t]);
    memcpy(tile->d[t], row + args->act_layout.d + k0 / 256 * 4, blocks * sizeof(float));
    if (shape.has_min)
        fm__vnni_side256(shape, row, &args->act_layout, k0 / FM__SEGMENT, tile->side[t]);
}

/* One segment of `count` tokens; what is not there: zeros. */
FM__INLINE void fm__amx256_pack(const fm__shape shape, const fm__linear_args *args, uint32_t first,
                                uint32_t count, uint32_t k0, fm__amx256_tile *tile) {
    const uint32_t blocks = fm__amx_segment(args, k0) / 256;
    for (uint32_t t = 0; t < count; t++)
        fm__amx256_pack_token(shape, args, first + t, k0, blocks, t, tile);
    for (uint32_t t = count; t < FM__AMX_TILE; t++)
        for (uint32_t b = 0; b < blocks; b++)
            for (int step = 0; step < FM__AMX256_STEPS; step++)
                for (int half = 0; half < 2; half++)
                    _mm512_store_si512(tile->act[b][step][half][t], _mm512_setzero_si512());
}

/* ---- tokens prepared for all calls of a product: [segment][tile] ---- */

FM__INLINE size_t fm__amx256_shared_bytes(uint32_t tokens, uint32_t k) {
    return fm__amx_units(tokens, k) * sizeof(fm__amx256_tile);
}

FM__INLINE void fm__amx256_prepare(const fm__shape shape, const fm__linear_args *args,
                                   uint32_t unit) {
    const fm__amx_unit u = fm__amx_unit_at(args->tokens, unit);
    fm__amx256_tile *tiles = (fm__amx256_tile *)(void *)args->prepared;
    fm__amx256_pack(shape, args, u.first, u.count, u.k0, &tiles[unit]);
}

/* Those of a round: prepared, or now in scratch. */
FM__INLINE const fm__amx256_tile *fm__amx256_tiles(const fm__shape shape,
                                                   const fm__linear_args *args,
                                                   fm__amx_tokens tokens, uint32_t k0,
                                                   fm__amx256_scratch *s) {
    if (args->prepared)
        return (const fm__amx256_tile *)(const void *)args->prepared +
               fm__amx_unit_of(args, tokens, k0);
    for (uint32_t i = 0; i < fm__amx_tiles(tokens); i++)
        fm__amx256_pack(shape, args, tokens.first + i * FM__AMX_TILE,
                        fm__amx_tile_tokens(tokens, i), k0, &s->tiles[i]);
    return s->tiles;
}

/* ---- weights: codes times sub-scales, as bytes ---- */

/* a where the mask's bit is set, else b. */
FM__INLINE __m512i fm__amx_select(__m512i mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
}

/* int32 lanes to pairs of equal int16. */
FM__INLINE __m512i fm__amx_twice(__m512i x) {
    return fm__amx_select(_mm512_set1_epi32(0xFFFF), x, _mm512_slli_epi32(x, 16));
}

/* Four vectors of one sub-scale (int32 lanes): upper (or only) and lower bytes. */
FM__INLINE void fm__amx256_products(const fm__shape shape, const __m512i *w, __m512i scale,
                                    uint8_t *upper, uint8_t *lower) {
    const __m512i odd = _mm512_set1_epi16((short)0xFF00);
    const __m512i twice = fm__amx_twice(scale);
    if (shape.has_min && shape.bits == 2) { /* at most 45: two bytes in one multiplication */
        FM__UNROLL for (int v = 0; v < 4; v++)
            _mm512_store_si512(upper + 64 * v, _mm512_mullo_epi16(w[v], twice));
    } else if (shape.has_min) { /* at most 217 */
        const __m512i high = _mm512_srli_epi16(twice, 3);
        const __m512i low = _mm512_and_si512(twice, _mm512_set1_epi16(7));
        FM__UNROLL for (int v = 0; v < 4; v++) {
            _mm512_store_si512(upper + 64 * v, _mm512_mullo_epi16(w[v], high));
            _mm512_store_si512(lower + 64 * v, _mm512_mullo_epi16(w[v], low));
        }
    } else if (shape.bits == 2) {
        FM__UNROLL for (int v = 0; v < 4; v++)
            _mm512_store_si512(upper + 64 * v, _mm512_sub_epi8(w[v], _mm512_set1_epi8(1)));
    } else if (shape.bits == 3) { /* (4 - code) * scale, modulo 256 */
        const __m512i first = _mm512_set4_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0);
        const __m512i four = _mm512_shuffle_epi8(_mm512_slli_epi32(scale, 2), first);
        FM__UNROLL for (int v = 0; v < 4; v++) {
            const __m512i even = _mm512_mullo_epi16(w[v], twice);
            const __m512i both =
                fm__amx_select(odd, _mm512_mullo_epi16(_mm512_and_si512(w[v], odd), twice), even);
            _mm512_store_si512(upper + 64 * v, _mm512_sub_epi8(four, both));
        }
    } else { /* (code - offset) * scale as int16, even and odd bytes */
        const __m512i of_odd = _mm512_and_si512(odd, _mm512_slli_epi16(twice, 8));
        const __m512i of_even = _mm512_andnot_si512(odd, twice);
        const __m512i bias = _mm512_slli_epi16(twice, (unsigned)fm__vnni_offset_shift(shape));
        FM__UNROLL for (int v = 0; v < 4; v++) {
            const __m512i x = _mm512_sub_epi16(_mm512_maddubs_epi16(w[v], of_even), bias);
            const __m512i y = _mm512_sub_epi16(_mm512_maddubs_epi16(w[v], of_odd), bias);
            _mm512_store_si512(upper + 64 * v, fm__amx_select(odd, _mm512_slli_epi16(y, 2),
                                                              _mm512_srli_epi16(x, 6)));
            _mm512_store_si512(lower + 64 * v,
                               _mm512_and_si512(fm__amx_select(odd, _mm512_slli_epi16(y, 8), x),
                                                _mm512_set1_epi8(63)));
        }
    }
}

/* One block of a panel. Narrow types: the panel's half of s->codes; others fill both. */
FM__INLINE void fm__amx256_unpack(const fm__shape shape, const uint8_t *codes, const uint8_t *sub,
                                  __m512i table, int which, fm__amx256_scratch *s) {
    uint8_t *upper = s->codes[which][0][0], *lower = s->codes[1][0][0];
    for (int c = 0; c < 8; c++, upper += 512, lower += 512) {
        __m512i w[8];
        fm__vnni_unpack(shape, codes + (size_t)c * (size_t)(64 * shape.bits), table, w);
        __m512i s0 = _mm512_setzero_si512(), s1 = s0;
        if (shape.sub_width == 32)
            s0 = s1 = fm__vnni_scale(shape, sub, c);
        if (shape.sub_width == 16) {
            s0 = fm__vnni_scale(shape, sub, 2 * c);
            s1 = fm__vnni_scale(shape, sub, 2 * c + 1);
        }
        fm__amx256_products(shape, w, s0, upper, lower);
        fm__amx256_products(shape, w + 4, s1, upper + 256, lower + 256);
    }
    if (shape.has_min)
        FM__UNROLL for (int i = 0; i < fm__shape_pairs(shape); i++)
            _mm512_store_si512(s->pairs[which][i], fm__vnni_pairs(shape, sub, i));
}

/* ---- a token tile ---- */

/* One block of one panel, or of two, and where the results go. */
typedef struct fm__amx256_step {
    const fm__amx256_tile *tiles; /* the round's tokens */
    uint32_t panel, panels;       /* 1 or 2 */
    uint32_t block;
    bool first, last;    /* block of the segment */
    bool add;            /* out already holds earlier segments */
    __m512 d[2], m[2];   /* of each panel */
    __m512i pairs[4];    /* Q4_K, Q5_K: s->pairs in registers */
    const uint8_t *next; /* what is to be fetched, or NULL */
} fm__amx256_step;

/* The sixteen products of a token tile are spread over four of these. One register for the tokens
   and one for the codes: faster in this kernel (lab note 018). */
#define FM__AMX256_STEP(shape, s, act, step)                                                       \
    do {                                                                                           \
        if ((shape).has_min)                                                                       \
            FM__AMX256_DOTS(FM__TILE_DOT_SU, fm__amx256_narrow(shape), s, act, step);              \
        else                                                                                       \
            FM__AMX256_DOTS(FM__TILE_DOT_SS, fm__amx256_narrow(shape), s, act, step);              \
    } while (0)

/* Two panels: high and low of each. One panel: high * upper, low * upper + high * lower,
   low * lower. */
#define FM__AMX256_DOTS(DOT, narrow, s, act, step)                                                 \
    do {                                                                                           \
        const uint8_t *const high_ = (act) + (size_t)(step)*2 * FM__AMX_TILE_BYTES;                \
        FM__TILE_LOAD(6, (s)->codes[0][step][0], 64);                                              \
        FM__TILE_LOAD(4, high_, 64);                                                               \
        DOT(0, 4, 6);                                                                              \
        FM__TILE_LOAD(4, high_ + FM__AMX_TILE_BYTES, 64);                                          \
        DOT(1, 4, 6);                                                                              \
        FM__TILE_LOAD(6, (s)->codes[1][step][0], 64);                                              \
        if (narrow)                                                                                \
            DOT(3, 4, 6);                                                                          \
        else                                                                                       \
            DOT(2, 4, 6);                                                                          \
        FM__TILE_LOAD(4, high_, 64);                                                               \
        if (narrow)                                                                                \
            DOT(2, 4, 6);                                                                          \
        else                                                                                       \
            DOT(1, 4, 6);                                                                          \
    } while (0)

/* isum of a token from the tiles; narrow types: of panel p. */
FM__INLINE __m512i fm__amx256_isum(const fm__shape shape, const int32_t *tiles, int p) {
    const int tile = FM__AMX_TILE * 16;
    if (fm__amx256_narrow(shape)) {
        const __m512i high = _mm512_load_si512(tiles + (2 * p) * tile);
        return _mm512_add_epi32(_mm512_slli_epi32(high, 3),
                                _mm512_load_si512(tiles + (2 * p + 1) * tile));
    }
    const unsigned radix = shape.has_min ? 3 : 6; /* its bits */
    const __m512i x = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(tiles), radix),
                                       _mm512_load_si512(tiles + tile));
    return _mm512_add_epi32(_mm512_slli_epi32(x, radix), _mm512_load_si512(tiles + 2 * tile));
}

/* The float step of token t of tile i. */
FM__INLINE void fm__amx256_token(const fm__shape shape, const fm__linear_args *args,
                                 fm__amx_tokens tokens, const fm__amx256_step *x, uint32_t i,
                                 uint32_t t, fm__amx256_scratch *s) {
    const __m512 da = _mm512_set1_ps(x->tiles[i].d[t][x->block]);
    const uint32_t token = i * FM__AMX_TILE + t;
    const int n_pairs = fm__shape_pairs(shape);
    const uint8_t *sums = x->tiles[i].side[t] + 128 + (size_t)x->block * (size_t)(4 * n_pairs);
    __asm__("" : "+r"(sums)); /* one register, not one for each of the offsets from it */
    const uint32_t panels = fm__amx256_narrow(shape) ? x->panels : 1;
    for (uint32_t p = 0; p < panels; p++) {
        const __m512i isum = fm__amx256_isum(shape, s->isum[0][t], (int)p);
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(x->d[p], da));
        __m512 acc = x->first ? _mm512_setzero_ps() : _mm512_load_ps(s->acc[p][i][t]);
        acc = shape.bits == 3 ? _mm512_sub_ps(acc, product) : _mm512_add_ps(acc, product);
        if (shape.has_min) {
            __m512i msum = _mm512_setzero_si512();
            FM__UNROLL for (int j = 0; j < n_pairs; j++) msum = _mm512_dpwssd_epi32(
                msum, n_pairs == 4 ? x->pairs[j] : _mm512_load_si512(s->pairs[p][j]),
                fm__vnni_broadcast(sums + 4 * j));
            acc = _mm512_sub_ps(
                acc, _mm512_mul_ps(_mm512_cvtepi32_ps(msum), _mm512_mul_ps(x->m[p], da)));
        }
        if (!x->last)
            _mm512_store_ps(s->acc[p][i][t], acc);
        else
            fm__amx_store_row(args->out + (size_t)(tokens.first + token) * args->out_stride +
                                  (size_t)(x->panel + p) * FM__PANEL_ROWS,
                              fm__avx512_row_mask(args->n, x->panel + p), !x->add, acc);
    }
}

/* A quarter of tile i's tokens. */
FM__INLINE void fm__amx256_quarter(const fm__shape shape, const fm__linear_args *args,
                                   fm__amx_tokens tokens, const fm__amx256_step *x, uint32_t i,
                                   uint32_t quarter, fm__amx256_scratch *s) {
    const uint32_t count = fm__amx_tile_tokens(tokens, i);
    FM__UNROLL for (uint32_t t = 0; t < 4; t++) if (4 * quarter + t < count)
        fm__amx256_token(shape, args, tokens, x, i, 4 * quarter + t, s);
}

/* One block times the round's tokens: the products of tile i between the float steps of tile
   i - 1. */
FM__INLINE void fm__amx256_block(const fm__shape shape, const fm__linear_args *args,
                                 fm__amx_tokens tokens, const fm__amx256_step *x,
                                 fm__amx256_scratch *s) {
    const uint32_t tiles = fm__amx_tiles(tokens);
    for (uint32_t i = 0; i < tiles; i++) {
        const uint8_t *act = x->tiles[i].act[x->block][0][0][0];
        FM__TILE_ZERO(0);
        FM__TILE_ZERO(1);
        FM__TILE_ZERO(2);
        if (fm__amx256_narrow(shape))
            FM__TILE_ZERO(3);
        for (uint32_t step = 0; step < FM__AMX256_STEPS; step++) {
            FM__AMX256_STEP(shape, s, act, step);
            if (i > 0)
                fm__amx256_quarter(shape, args, tokens, x, i - 1, step, s);
            else if (x->next)
                fm__amx_fetch(x->next + step * (size_t)(128 * shape.bits),
                              (size_t)(128 * shape.bits));
        }
        FM__TILE_STORE(0, s->isum[0][0], 64);
        FM__TILE_STORE(1, s->isum[1][0], 64);
        FM__TILE_STORE(2, s->isum[2][0], 64);
        if (fm__amx256_narrow(shape))
            FM__TILE_STORE(3, s->isum[3][0], 64);
    }
    for (uint32_t quarter = 0; quarter < 4; quarter++)
        fm__amx256_quarter(shape, args, tokens, x, tiles - 1, quarter, s);
}

/* ---- the walk ---- */

/* One segment of one panel (or two) times the round's tokens. */
FM__INLINE void fm__amx256_panel(const fm__shape shape, const fm__linear_args *args, uint32_t panel,
                                 uint32_t panels, bool last_panel, fm__amx_tokens tokens,
                                 uint32_t k0, const fm__amx256_tile *tiles, fm__amx256_scratch *s) {
    const fm__panel_layout *layout = &args->layout;
    const uint32_t blocks = fm__amx_segment(args, k0) / 256;
    const __m512i table = fm__vnni_table(shape, args->type);
    for (uint32_t b = 0; b < blocks; b++) {
        const size_t block = k0 / 256 + b;
        fm__amx256_step x = {.tiles = tiles,
                             .panel = panel,
                             .panels = panels,
                             .block = b,
                             .first = b == 0,
                             .last = b + 1 == blocks,
                             .add = k0 > 0};
        for (uint32_t p = 0; p < panels; p++) {
            const uint8_t *base = args->panels + (size_t)(panel + p) * layout->stride;
            const uint8_t *codes = base + layout->codes + block * (size_t)(512 * shape.bits);
            fm__amx256_unpack(shape, codes, base + layout->sub + block * layout->sub_bytes, table,
                              (int)p, s);
            x.d[p] = fm__vnni_half(base + layout->d + block * 32);
            if (shape.has_min)
                x.m[p] = fm__vnni_half(base + layout->m + block * 32);
            x.next = last_panel ? NULL : codes + layout->stride;
        }
        if (shape.has_min && fm__shape_pairs(shape) == 4)
            FM__UNROLL for (int j = 0; j < 4; j++) x.pairs[j] = _mm512_load_si512(s->pairs[0][j]);
        fm__amx256_block(shape, args, tokens, &x, s);
    }
}

FM__INLINE void fm__amx256_linear(const fm__shape shape, const fm__linear_args *args) {
    fm__amx256_scratch *const s = args->scratch;
    const uint32_t end = fm__avx512_panel_end(args);
    const uint32_t most = fm__amx256_narrow(shape) ? 2 : 1;
    fm__amx256_configure();
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__AMX_TOKENS) {
        const fm__amx_tokens tokens = fm__amx_tokens_at(args, t0);
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const fm__amx256_tile *tiles = fm__amx256_tiles(shape, args, tokens, k0, s);
            for (uint32_t panel = args->panel_begin; panel < end; panel += most) {
                const uint32_t panels = end - panel < most ? end - panel : most;
                fm__amx256_panel(shape, args, panel, panels, panel + panels >= end, tokens, k0,
                                 tiles, s);
            }
        }
    }
    FM__TILE_RELEASE();
}
