/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_few_avx512vnni.h: quantised linear kernels of the AVX-512 VNNI rung for few
 * tokens.
 *
 * Owns: the register tiles that take panels straight from memory, and their walk. Never does:
 * many tokens (linear_avx512vnni.h). Included by: linear_avx512vnni.h.
 *
 * What counts is how memory is read: one panel after the other, and beside the work on one panel
 * the whole next panel, scales included, is fetched in the order of its addresses. The processors'
 * own fetching follows one long run of lines best: it loses half its speed where the run jumps
 * (over the scales behind the codes) and a quarter where several panels are read side by side (lab
 * note 030).
 */
#pragma once

#include "cpu/x86/linear_codes_avx512vnni.h"

enum {
    FM__VNNI_FEW = 8,      /* up to so many tokens a panel is read once and used at once */
    FM__VNNI_FEW_TILE = 4, /* tokens of a register tile; more take a second one, from L1 */
    FM__VNNI_FEW_SIDES = 128 * 1024, /* bytes of scratch for side data */
    FM__VNNI_WIDE = 12 * 1024, /* bytes: two panels beyond this do not fit L1 beside activations */
    FM__VNNI_NEAR = 4096,      /* bytes from the codes at work to those fetched from L2 */
};

/* Fetches what follows at `ahead`, a panel ahead of the work; returns where the next call goes on.
   A panel that L1 would not hold beside its predecessor goes to L2 first (`wide`); `codes`, are
   then those at work, of which the ones FM__VNNI_NEAR on go to L1. */
FM__INLINE const uint8_t *fm__vnni_fetch(const bool wide, const uint8_t *ahead, const int bytes,
                                         const uint8_t *codes, const int code_bytes) {
    if (!wide) {
        FM__UNROLL for (int b = 0; b < bytes; b += 64)
            _mm_prefetch((const char *)ahead + b, _MM_HINT_T0);
        return ahead + bytes;
    }
    FM__UNROLL for (int b = 0; b < bytes; b += 64)
        _mm_prefetch((const char *)ahead + b, _MM_HINT_T1);
    FM__UNROLL for (int b = 0; b < code_bytes; b += 64)
        _mm_prefetch((const char *)codes + FM__VNNI_NEAR + b, _MM_HINT_T0);
    return ahead + bytes;
}

/* ---- one segment of some panels times some tokens ---- */

typedef struct fm__vnni_few_tile {
    const uint8_t *codes; /* panel's codes of the segment */
    const uint8_t *sub;   /* panel's sub scales from the segment on */
    const uint8_t *d, *m; /* likewise */
    const uint8_t *act;   /* first token's bytes of the segment */
    const uint8_t *act_d; /* first token's scales of the segment */
    size_t act_stride;    /* token to token */
    const uint8_t *side;  /* first token's side data of the segment */
    size_t side_stride;   /* token to token */
    uint32_t chunks;      /* of the segment */
    const uint8_t *ahead; /* what to fetch meanwhile; moves on */
    bool wide;            /* fetched to L2 first */
    __m512i table;
} fm__vnni_few_tile;

/* acc[t] = the segment's sum, blocks of 32 ascending from +0. */
FM__INLINE void fm__vnni_few_tile32(const fm__shape shape, const int tokens,
                                    fm__vnni_few_tile *tile, __m512 *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    const int d_bytes = shape.d_is_f32 ? 64 : 32, m_bytes = shape.has_min ? 32 : 0;
    const uint8_t *ahead = tile->ahead;
    for (uint32_t c = 0; c < tile->chunks; c++) {
        __m512i w[8];
        const uint8_t *codes = tile->codes + c * (size_t)(64 * shape.bits);
        ahead = fm__vnni_fetch(tile->wide, ahead, 64 * shape.bits + d_bytes + m_bytes, codes,
                               64 * shape.bits);
        fm__vnni_unpack(shape, codes, tile->table, w);
        const uint8_t *dp = tile->d + c * (size_t)d_bytes;
        const __m512 d = shape.d_is_f32 ? _mm512_load_ps(dp) : fm__vnni_half(dp);
        const __m512 m = shape.has_min ? fm__vnni_half(tile->m + c * (size_t)32) : d;
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const uint8_t *a = tile->act + (size_t)t * tile->act_stride + c * (size_t)32;
            const uint8_t *side = tile->side + (size_t)t * tile->side_stride + c * (size_t)4;
            __m512i sum = _mm512_setzero_si512();
            if (fm__vnni_offset_shift(shape) >= 0)
                sum = fm__vnni_broadcast(side);
            sum = fm__vnni_dot32(sum, w, a);
            const uint8_t *dap = tile->act_d + (size_t)t * tile->act_stride + c * (size_t)4;
            const __m512 da = _mm512_castsi512_ps(fm__vnni_broadcast(dap));
            __m512 x = acc[t];
            x = _mm512_add_ps(x, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, da)));
            if (shape.has_min) {
                const __m512 s = _mm512_castsi512_ps(fm__vnni_broadcast(side + 128));
                x = _mm512_add_ps(x, _mm512_mul_ps(s, _mm512_mul_ps(m, da)));
            }
            acc[t] = x;
        }
    }
    tile->ahead = ahead;
}

/* One chunk of a block of 256 into the block's sums. */
FM__INLINE void fm__vnni_few_chunk256(const fm__shape shape, const int tokens,
                                      const fm__vnni_few_tile *tile, uint32_t c, const uint8_t *sub,
                                      __m512i *isum) {
    __m512i w[8], s0 = _mm512_setzero_si512(), s1 = s0;
    fm__vnni_unpack(shape, tile->codes + c * (size_t)(64 * shape.bits), tile->table, w);
    if (shape.sub_width == 32)
        s0 = fm__vnni_scale(shape, sub, (int)(c & 7));
    if (shape.sub_width == 16) {
        s0 = fm__vnni_scale(shape, sub, (int)(2 * (c & 7)));
        s1 = fm__vnni_scale(shape, sub, (int)(2 * (c & 7) + 1));
    }
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const uint8_t *a = tile->act + (size_t)t * tile->act_stride + c * (size_t)32;
        const uint8_t *side = tile->side + (size_t)t * tile->side_stride + c * (size_t)4;
        __m512i sum = _mm512_setzero_si512();
        if (shape.sub_width == 16) {
            __m512i high = fm__vnni_dot16(sum, w + 4, a + 16);
            sum = fm__vnni_dot16(sum, w, a);
            sum = _mm512_add_epi32(_mm512_mullo_epi32(sum, s0), _mm512_mullo_epi32(high, s1));
        } else {
            sum = fm__vnni_dot32(sum, w, a);
            if (shape.sub_width)
                sum = _mm512_mullo_epi32(sum, s0);
        }
        sum = _mm512_sllv_epi32(sum, fm__vnni_broadcast(side));
        isum[t] = _mm512_add_epi32(isum[t], sum);
    }
}

/* Likewise for blocks of 256. */
FM__INLINE void fm__vnni_few_tile256(const fm__shape shape, const int tokens,
                                     fm__vnni_few_tile *tile, __m512 *acc) {
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    const int n_pairs = fm__shape_pairs(shape);
    const size_t sub_bytes = fm__shape_sub_bytes(shape);
    const uint32_t blocks = tile->chunks / 8;
    const uint8_t *ahead = tile->ahead;
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *sub = tile->sub + b * sub_bytes;
        __m512i isum[FM__VNNI_FEW_TILE], pairs[8];
        FM__UNROLL for (int t = 0; t < tokens; t++) isum[t] = _mm512_setzero_si512();
        for (uint32_t c = 8 * b; c < 8 * b + 8; c++) {
            ahead = fm__vnni_fetch(tile->wide, ahead, 64 * shape.bits,
                                   tile->codes + c * (size_t)(64 * shape.bits), 64 * shape.bits);
            fm__vnni_few_chunk256(shape, tokens, tile, c, sub, isum);
        }
        ahead =
            fm__vnni_fetch(tile->wide, ahead, (int)sub_bytes + (shape.has_min ? 64 : 32), NULL, 0);
        FM__UNROLL for (int i = 0; i < n_pairs; i++) pairs[i] = fm__vnni_pairs(shape, sub, i);
        const __m512 d = fm__vnni_half(tile->d + b * (size_t)32);
        const __m512 m = shape.has_min ? fm__vnni_half(tile->m + b * (size_t)32) : d;
        FM__UNROLL for (int t = 0; t < tokens; t++) {
            const uint8_t *side =
                tile->side + (size_t)t * tile->side_stride + 128 + b * (size_t)(4 * n_pairs);
            __m512i msum = _mm512_setzero_si512();
            FM__UNROLL for (int i = 0; i < n_pairs; i++) msum =
                _mm512_dpwssd_epi32(msum, pairs[i], fm__vnni_broadcast(side + 4 * i));
            const uint8_t *dap = tile->act_d + (size_t)t * tile->act_stride + b * (size_t)4;
            const __m512 da = _mm512_castsi512_ps(fm__vnni_broadcast(dap));
            __m512i sum = isum[t];
            if (!shape.has_min)
                sum = _mm512_sub_epi32(
                    sum, _mm512_slli_epi32(msum, (unsigned)fm__vnni_offset_shift(shape)));
            __m512 x = acc[t];
            x = _mm512_add_ps(x, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, da)));
            if (shape.has_min)
                x = _mm512_sub_ps(x, _mm512_mul_ps(_mm512_cvtepi32_ps(msum), _mm512_mul_ps(m, da)));
            acc[t] = x;
        }
    }
    tile->ahead = ahead;
}

/* Where a segment of a panel and of the activations lies. */
FM__INLINE fm__vnni_few_tile fm__vnni_few_tile_at(const fm__shape shape,
                                                  const fm__linear_args *args, uint32_t panel,
                                                  uint32_t k0, __m512i table) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *base = args->panels + (size_t)panel * layout->stride;
    const size_t block0 = k0 / (uint32_t)shape.block;
    return (fm__vnni_few_tile){
        .codes = base + layout->codes + k0 / FM__CHUNK * (size_t)(64 * shape.bits),
        .sub = base + layout->sub + block0 * layout->sub_bytes,
        .d = base + layout->d + block0 * layout->d_bytes,
        .m = base + layout->m + block0 * 32,
        .act = args->act + args->act_layout.values + k0,
        .act_d = args->act + args->act_layout.d + block0 * 4,
        .act_stride = args->act_layout.stride,
        .chunks = (args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT) / FM__CHUNK,
        .table = table,
    };
}

/* ---- the walk ---- */

/* Tokens [first, first + tokens) of one segment of one panel. */
FM__INLINE void fm__vnni_few_tokens(const fm__shape shape, const int tokens,
                                    const fm__linear_args *args, uint32_t panel, uint32_t segment,
                                    uint32_t first, fm__vnni_few_tile *tile) {
    __m512 acc[FM__VNNI_FEW_TILE];
    if (shape.block == 32)
        fm__vnni_few_tile32(shape, tokens, tile, acc);
    else
        fm__vnni_few_tile256(shape, tokens, tile, acc);
    float *out = args->out + (size_t)first * args->out_stride + (size_t)panel * FM__PANEL_ROWS;
    fm__avx512_store_rows(out, args->out_stride, tokens, fm__avx512_row_mask(args->n, panel),
                          segment == 0, acc);
}

FM__INLINE void fm__vnni_few_any(const fm__shape shape, uint32_t tokens,
                                 const fm__linear_args *args, uint32_t panel, uint32_t segment,
                                 uint32_t first, fm__vnni_few_tile *tile) {
    switch (tokens) {
    case 1:
        fm__vnni_few_tokens(shape, 1, args, panel, segment, first, tile);
        break;
    case 2:
        fm__vnni_few_tokens(shape, 2, args, panel, segment, first, tile);
        break;
    case 3:
        fm__vnni_few_tokens(shape, 3, args, panel, segment, first, tile);
        break;
    default:
        fm__vnni_few_tokens(shape, 4, args, panel, segment, first, tile);
        break;
    }
}

/* All tokens of one panel; fetches what lies at `ahead` meanwhile. */
FM__INLINE void fm__vnni_few_panel(const fm__shape shape, const fm__linear_args *args,
                                   uint32_t panel, const uint8_t *ahead, __m512i table) {
    const uint32_t segments = (args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    for (uint32_t s = 0; s < segments; s++) {
        fm__vnni_few_tile tile = fm__vnni_few_tile_at(shape, args, panel, s * FM__SEGMENT, table);
        tile.side = (const uint8_t *)args->scratch + (size_t)s * FM__VNNI_SIDE;
        tile.side_stride = (size_t)segments * FM__VNNI_SIDE;
        tile.ahead = ahead;
        tile.wide = args->layout.stride > FM__VNNI_WIDE;
        uint32_t now = args->tokens < FM__VNNI_FEW_TILE ? args->tokens : FM__VNNI_FEW_TILE;
        fm__vnni_few_any(shape, now, args, panel, s, 0, &tile);
        ahead = tile.ahead;
        if (args->tokens == now)
            continue;
        tile.ahead = tile.codes; /* nothing new: these lines are at hand */
        tile.wide = false;
        tile.act += now * tile.act_stride;
        tile.act_d += now * tile.act_stride;
        tile.side += now * tile.side_stride;
        fm__vnni_few_any(shape, args->tokens - now, args, panel, s, now, &tile);
    }
}

FM__INLINE bool fm__vnni_few_fits(const fm__linear_args *args) {
    const size_t segments = ((size_t)args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    return args->tokens <= FM__VNNI_FEW &&
           segments * args->tokens * FM__VNNI_SIDE <= FM__VNNI_FEW_SIDES;
}

FM__INLINE void fm__vnni_few(const fm__shape shape, const fm__linear_args *args) {
    const uint32_t segments = (args->k + FM__SEGMENT - 1) / FM__SEGMENT;
    const __m512i table = fm__vnni_table(shape, args->type);
    for (uint32_t t = 0; t < args->tokens; t++)
        for (uint32_t s = 0; s < segments; s++)
            fm__vnni_side(shape, args->act + (size_t)t * args->act_layout.stride, &args->act_layout,
                          s, (uint8_t *)args->scratch + ((size_t)t * segments + s) * FM__VNNI_SIDE);
    const uint32_t end = fm__avx512_panel_end(args);
    for (uint32_t panel = args->panel_begin; panel < end; panel++) {
        const uint8_t *at = args->panels + (size_t)panel * args->layout.stride;
        /* With nothing known to follow, the last one fetches its own lines: they are on their way.
         */
        const uint8_t *ahead = panel + 1 < end       ? at + args->layout.stride
                               : args->ahead != NULL ? args->ahead
                                                     : at;
        fm__vnni_few_panel(shape, args, panel, ahead, table);
    }
}
