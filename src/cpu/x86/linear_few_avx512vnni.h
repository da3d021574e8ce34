/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_few_avx512vnni.h: quantised linear kernels of the AVX-512 VNNI rung for few
 * tokens.
 *
 * Owns: the register tiles that take panels straight from memory, and their walk. Never does:
 * many tokens (linear_avx512vnni.h). Included by: linear_avx512vnni.h.
 *
 * What counts is how memory is read, and nothing reads it faster than the processor's own fetching
 * along one run of lines without a gap. A panel's scales lie behind its codes and are needed with
 * them, so with one token all is walked backwards, from the last line of the last panel to the
 * first line of the first one: scales come before their codes, and every line follows its
 * neighbour. Sums ascend nevertheless: the terms of a segment's blocks wait until it is complete,
 * and the totals of a row's segments until that is (lab note 054). With more tokens arithmetic
 * takes as long as memory: a panel is asked for while the one before it is at work, and all
 * ascends, so that no term waits (lab note 044).
 */
#pragma once

#include "cpu/x86/linear_codes_avx512vnni.h"

enum {
    FM__VNNI_FEW = 8,      /* up to so many tokens a panel is read once and used at once */
    FM__VNNI_FEW_TILE = 4, /* tokens of a register tile; more take a second one, from L1 */
    FM__VNNI_FEW_TERMS = FM__VNNI_SEGMENT_CHUNKS * 2 * 64, /* bytes: of one token's segment */
    FM__VNNI_FEW_AHEAD = 1024,     /* bytes of the next task that are fetched */
    FM__VNNI_FEW_WIDE = 16 * 1024, /* bytes: a panel beyond this leaves nothing else in L1 */
    FM__VNNI_FEW_NEAR = 4096,      /* bytes from the codes at work to those fetched from L2 */
};

/* Reads the lines of [begin, begin + bytes), the last one first. Loads, since the processor drops
   prefetches while its buffers are full; in this order, since it follows no other; and before all
   other loads of them. */
FM__INLINE void fm__vnni_few_touch(const uint8_t *begin, const int bytes) {
    FM__UNROLL for (int i = bytes - 64; i >= 0; i -= 64)(void) *
        (const volatile uint8_t *)(begin + i);
    __asm__ volatile("" ::: "memory");
}

FM__INLINE void fm__vnni_few_fetch(const uint8_t *begin, const int bytes, const int hint) {
    FM__UNROLL for (int i = bytes - 64; i >= 0; i -= 64) {
        if (hint == _MM_HINT_T0)
            _mm_prefetch((const char *)begin + i, _MM_HINT_T0);
        else
            _mm_prefetch((const char *)begin + i, _MM_HINT_T1);
    }
}

/* ---- codes ---- */

/* log2 of the factor by which vector v of the codes is too large: with one token, taking it from
   the sums is cheaper than from the codes. */
FM__INLINE int fm__vnni_few_raised(const fm__shape shape, const int tokens, const int v) {
    if (tokens == 1 && shape.bits == 4 && !shape.lut)
        return v >= 4 ? 4 : 0;
    return tokens == 1 && shape.bits == 2 && !shape.sub_width && (v & 2) ? 2 : 0;
}

/* As fm__vnni_unpack, but for raised vectors. */
FM__INLINE void fm__vnni_few_unpack(const fm__shape shape, const int tokens, const uint8_t *chunk,
                                    __m512i table, __m512i w[8]) {
    if (!fm__vnni_few_raised(shape, tokens, 7)) {
        fm__vnni_unpack(shape, chunk, table, w);
    } else if (shape.bits == 4) {
        FM__UNROLL for (int v = 0; v < 4; v++) {
            const __m512i x = fm__vnni_load(chunk + 64 * v);
            w[v] = _mm512_and_si512(x, _mm512_set1_epi8(0x0F));
            w[v + 4] = _mm512_and_si512(x, _mm512_set1_epi8((char)0xF0));
        }
    } else {
        FM__UNROLL for (int v = 0; v < 2; v++) {
            const __m512i x = fm__vnni_load(chunk + 64 * v), y = _mm512_srli_epi16(x, 4);
            w[v] = _mm512_and_si512(x, _mm512_set1_epi8(0x03));
            w[v + 2] = _mm512_and_si512(x, _mm512_set1_epi8(0x0C));
            w[v + 4] = _mm512_and_si512(y, _mm512_set1_epi8(0x03));
            w[v + 6] = _mm512_and_si512(y, _mm512_set1_epi8(0x0C));
        }
    }
}

/* start + the dots of all codes of a chunk with a token's bytes, in two chains. */
FM__INLINE __m512i fm__vnni_few_dots(const fm__shape shape, const int tokens, __m512i start,
                                     const __m512i w[8], const uint8_t *a) {
    const int raised = fm__vnni_few_raised(shape, tokens, 7);
    __m512i plain = start, other = _mm512_setzero_si512();
    FM__UNROLL for (int v = 0; v < 8; v++) {
        const __m512i bytes = fm__vnni_broadcast(a + 4 * v);
        if (raised ? fm__vnni_few_raised(shape, tokens, v) != 0 : v >= 4)
            other = _mm512_dpbusd_epi32(other, w[v], bytes);
        else
            plain = _mm512_dpbusd_epi32(plain, w[v], bytes);
    }
    if (raised)
        other = _mm512_srai_epi32(other, (unsigned)raised);
    return _mm512_add_epi32(plain, other);
}

/* ---- one segment of a panel times some tokens ---- */

typedef struct fm__vnni_few_tile {
    const uint8_t *codes, *sub, *d, *m; /* the panel's, of the segment */
    const uint8_t *act, *act_d;         /* the first token's bytes and scales of the segment */
    size_t act_stride;                  /* token to token */
    const uint8_t *side;                /* the first token's side data of the segment */
    size_t side_stride;
    uint8_t *terms;     /* one token's, which wait: a product a block and, with minima, one more */
    size_t chunks;      /* of the segment */
    const uint8_t *end; /* of the panel's codes */
    size_t bytes;       /* of these */
    ptrdiff_t next;     /* bytes to the panel that is read next */
    bool asks;          /* fm__linear_args.asks */
    bool wide;          /* a panel of more than FM__VNNI_FEW_WIDE bytes */
    __m512i table;
} fm__vnni_few_tile;

/* Vectors of a block's terms. */
FM__INLINE size_t fm__vnni_few_terms(const fm__shape shape) {
    return shape.has_min ? 2 : 1;
}

/* With one token some thirty lines of codes are in the processor's window, and it fetches on its
   own what follows. With more work a line fewer are, and it falls behind: there the next panel is
   asked for beside this one, into L2, and from L2 into L1. */
FM__INLINE bool fm__vnni_few_self(const fm__shape shape, const int tokens,
                                  const fm__vnni_few_tile *tile) {
    return tokens == 1 && !tile->asks && (shape.bits >= 4 || !tile->wide);
}

FM__INLINE bool fm__vnni_few_ascends(const size_t tokens) {
    return tokens > 1;
}

/* The codes to fetch from L2: those that are at work soon. */
FM__INLINE const uint8_t *fm__vnni_few_near(const int tokens, const fm__vnni_few_tile *tile,
                                            const uint8_t *codes) {
    if (!fm__vnni_few_ascends((size_t)tokens))
        return codes - FM__VNNI_FEW_NEAR;
    const uint8_t *near = codes + FM__VNNI_FEW_NEAR;
    return near < tile->end ? near : near - tile->bytes + tile->next;
}

FM__INLINE void fm__vnni_few_chunk(const fm__shape shape, const int tokens,
                                   const fm__vnni_few_tile *tile, size_t c, __m512i w[8]) {
    const int bytes = 64 * shape.bits;
    const uint8_t *codes = tile->codes + c * (size_t)bytes;
    if (fm__vnni_few_self(shape, tokens, tile)) {
        fm__vnni_few_touch(codes, bytes);
    } else {
        fm__vnni_few_fetch(codes + tile->next, bytes, _MM_HINT_T1);
        fm__vnni_few_fetch(fm__vnni_few_near(tokens, tile, codes), bytes, _MM_HINT_T0);
    }
    fm__vnni_few_unpack(shape, tokens, codes, tile->table, w);
}

/* The same for the scales of a block. */
FM__INLINE void fm__vnni_few_scales(const fm__shape shape, const int tokens,
                                    const fm__vnni_few_tile *tile, size_t b) {
    const int sub_bytes = (int)fm__shape_sub_bytes(shape);
    if (fm__vnni_few_self(shape, tokens, tile))
        return;
    fm__vnni_few_fetch(tile->sub + b * (size_t)sub_bytes + tile->next, sub_bytes, _MM_HINT_T1);
    fm__vnni_few_fetch(tile->d + b * (shape.d_is_f32 ? 64 : 32) + tile->next, 64, _MM_HINT_T1);
    if (shape.has_min)
        fm__vnni_few_fetch(tile->m + b * 32 + tile->next, 64, _MM_HINT_T1);
}

/* x, or -x, into acc where sums ascend; else it waits as a block's term i. */
FM__INLINE void fm__vnni_few_term(const fm__shape shape, const int tokens,
                                  const fm__vnni_few_tile *tile, size_t block, size_t i, bool minus,
                                  __m512 x, __m512 *acc) {
    if (!fm__vnni_few_ascends((size_t)tokens))
        _mm512_store_ps(tile->terms + 64 * (block * fm__vnni_few_terms(shape) + i), x);
    else
        *acc = minus ? _mm512_sub_ps(*acc, x) : _mm512_add_ps(*acc, x);
}

/* A block of 32. */
FM__INLINE void fm__vnni_few_block32(const fm__shape shape, const int tokens,
                                     const fm__vnni_few_tile *tile, size_t c, __m512 *acc) {
    fm__vnni_few_scales(shape, tokens, tile, c);
    __m512i w[8];
    fm__vnni_few_chunk(shape, tokens, tile, c, w);
    const __m512 d =
        shape.d_is_f32 ? _mm512_load_ps(tile->d + 64 * c) : fm__vnni_half(tile->d + 32 * c);
    const __m512 m = shape.has_min ? fm__vnni_half(tile->m + 32 * c) : d;
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const uint8_t *a = tile->act + (size_t)t * tile->act_stride + 32 * c;
        const uint8_t *side = tile->side + (size_t)t * tile->side_stride + 4 * c;
        const uint8_t *da_at = tile->act_d + (size_t)t * tile->act_stride + 4 * c;
        __m512i sum = _mm512_setzero_si512();
        if (fm__vnni_offset_shift(shape) >= 0)
            sum = fm__vnni_broadcast(side);
        sum = fm__vnni_few_dots(shape, tokens, sum, w, a);
        const __m512 da = _mm512_castsi512_ps(fm__vnni_broadcast(da_at));
        const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, da));
        fm__vnni_few_term(shape, tokens, tile, c, 0, false, x, acc + t);
        if (!shape.has_min)
            continue;
        const __m512 s = _mm512_castsi512_ps(fm__vnni_broadcast(side + 128));
        const __m512 y = _mm512_mul_ps(s, _mm512_mul_ps(m, da));
        fm__vnni_few_term(shape, tokens, tile, c, 1, false, y, acc + t);
    }
}

/* What the chunks of a block of 256 add to, for a token each. */
typedef struct fm__vnni_few_sums {
    __m512i codes[FM__VNNI_FEW_TILE];
    __m512i minima[FM__VNNI_FEW_TILE]; /* or, where codes have an offset, the scales */
} fm__vnni_few_sums;

/* Sums of 16 that fit 16 bits: a scale for each of the two halves of a chunk is one vpdpwssd. */
FM__INLINE bool fm__vnni_few_narrow(const fm__shape shape) {
    return shape.sub_width == 16 && shape.bits <= 3;
}

/* log2 of the factor by which the sums of narrow codes are too large: with one token their bits
   stay where they are in the byte, and each two of them multiply the sum of those below by 4. */
FM__INLINE int fm__vnni_few_sums_raised(const fm__shape shape, const int tokens) {
    return fm__vnni_few_narrow(shape) && shape.bits == 2 && tokens == 1 ? 2 : 0;
}

/* Both sums of a chunk of one token as int16 pairs. */
FM__INLINE __m512i fm__vnni_few_halves(const fm__shape shape, const int tokens,
                                       const uint8_t *codes, const __m512i w[8], const uint8_t *a) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i low, high;
    if (fm__vnni_few_sums_raised(shape, tokens)) {
        const __m512i x0 = fm__vnni_load(codes), x1 = fm__vnni_load(codes + 64);
        __m512i sum[4];
        FM__UNROLL for (int i = 0; i < 4; i++) {
            const __m512i mask = _mm512_set1_epi8((char)(3 << 2 * i));
            const __m512i start = i % 2 ? _mm512_slli_epi32(sum[i - 1], 2) : zero;
            sum[i] = _mm512_dpbusd_epi32(start, _mm512_and_si512(x0, mask),
                                         fm__vnni_broadcast(a + 8 * i));
            sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_and_si512(x1, mask),
                                         fm__vnni_broadcast(a + 8 * i + 4));
        }
        low = sum[1];                         /* * 4 */
        high = _mm512_slli_epi32(sum[3], 12); /* * 64 << 12 = * 4 << 16 */
    } else {
        low = fm__vnni_dot16(zero, w, a);
        high = _mm512_slli_epi32(fm__vnni_dot16(zero, w + 4, a + 16), 16);
    }
    return _mm512_mask_blend_epi16(0xAAAAAAAA, low, high);
}

/* One chunk of narrow codes. */
FM__INLINE void fm__vnni_few_chunk_narrow(const fm__shape shape, const int tokens,
                                          const fm__vnni_few_tile *tile, size_t c,
                                          const uint8_t *sub, fm__vnni_few_sums *sums) {
    const int i = (int)(c & 7);
    __m512i w[8];
    fm__vnni_few_chunk(shape, tokens, tile, c, w);
    const uint8_t *codes = tile->codes + c * (size_t)(64 * shape.bits);
    const __m512i scales = fm__vnni_scale_pairs(shape, sub, i);
    const __m512i minima = shape.has_min ? fm__vnni_pairs(shape, sub, i) : scales;
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const uint8_t *a = tile->act + (size_t)t * tile->act_stride + 32 * c;
        const uint8_t *side = tile->side + (size_t)t * tile->side_stride + 4 * c;
        int32_t shift; /* 3 at most */
        memcpy(&shift, side, 4);
        const __m512i scale = _mm512_sll_epi16(scales, _mm_cvtsi32_si128(shift));
        const __m512i halves = fm__vnni_few_halves(shape, tokens, codes, w, a);
        sums->codes[t] = _mm512_dpwssd_epi32(sums->codes[t], halves, scale);
        sums->minima[t] =
            _mm512_dpwssd_epi32(sums->minima[t], minima, fm__vnni_broadcast(side + 128));
    }
}

/* One chunk of other codes. */
FM__INLINE void fm__vnni_few_chunk_wide(const fm__shape shape, const int tokens,
                                        const fm__vnni_few_tile *tile, size_t c, const uint8_t *sub,
                                        fm__vnni_few_sums *sums) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i w[8], s0 = zero, s1 = zero;
    fm__vnni_few_chunk(shape, tokens, tile, c, w);
    if (shape.sub_width == 32)
        s0 = fm__vnni_scale(shape, sub, (int)(c & 7));
    if (shape.sub_width == 16) {
        s0 = fm__vnni_scale(shape, sub, (int)(2 * (c & 7)));
        s1 = fm__vnni_scale(shape, sub, (int)(2 * (c & 7) + 1));
    }
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const uint8_t *a = tile->act + (size_t)t * tile->act_stride + 32 * c;
        const uint8_t *shift = tile->side + (size_t)t * tile->side_stride + 4 * c;
        __m512i sum = shape.sub_width == 16 ? fm__vnni_dot16(zero, w, a)
                                            : fm__vnni_few_dots(shape, tokens, zero, w, a);
        if (shape.sub_width)
            sum = _mm512_mullo_epi32(sum, s0);
        if (shape.sub_width == 16)
            sum =
                _mm512_add_epi32(sum, _mm512_mullo_epi32(fm__vnni_dot16(zero, w + 4, a + 16), s1));
        sum = _mm512_sllv_epi32(sum, fm__vnni_broadcast(shift));
        sums->codes[t] = _mm512_add_epi32(sums->codes[t], sum);
    }
}

/* The chunks of a block of 256. Counters are size_t throughout: of 32 bits, the compiler stores one
   and loads it as 64, which waits for the store (half the speed of Q4_K). */
FM__INLINE void fm__vnni_few_chunks(const fm__shape shape, const int tokens,
                                    const fm__vnni_few_tile *tile, size_t b, const uint8_t *sub,
                                    fm__vnni_few_sums *sums) {
    FM__UNROLL for (int t = 0; t < tokens; t++) sums->codes[t] = sums->minima[t] =
        _mm512_setzero_si512();
    for (size_t i = 0; i < 8; i++) {
        const size_t c = 8 * b + (fm__vnni_few_ascends((size_t)tokens) ? i : 7 - i);
        if (fm__vnni_few_narrow(shape))
            fm__vnni_few_chunk_narrow(shape, tokens, tile, c, sub, sums);
        else
            fm__vnni_few_chunk_wide(shape, tokens, tile, c, sub, sums);
    }
    if (fm__vnni_few_narrow(shape))
        return;
    const int n_pairs = fm__shape_pairs(shape);
    const uint8_t *side = tile->side + 128 + b * (size_t)(4 * n_pairs);
    __m512i pairs[8];
    FM__UNROLL for (int i = 0; i < n_pairs; i++) pairs[i] = fm__vnni_pairs(shape, sub, i);
    FM__UNROLL for (int t = 0; t < tokens; t++) FM__UNROLL for (int i = 0; i < n_pairs; i++)
        sums->minima[t] =
        _mm512_dpwssd_epi32(sums->minima[t], pairs[i],
                            fm__vnni_broadcast(side + (size_t)t * tile->side_stride + 4 * i));
}

/* A block of 256. */
FM__INLINE void fm__vnni_few_block256(const fm__shape shape, const int tokens,
                                      const fm__vnni_few_tile *tile, size_t b, __m512 *acc) {
    fm__vnni_few_sums sums;
    fm__vnni_few_scales(shape, tokens, tile, b);
    fm__vnni_few_chunks(shape, tokens, tile, b, tile->sub + b * fm__shape_sub_bytes(shape), &sums);
    const unsigned raised = (unsigned)fm__vnni_few_sums_raised(shape, tokens);
    const __m512 d = fm__vnni_half(tile->d + 32 * b);
    const __m512 m = shape.has_min ? fm__vnni_half(tile->m + 32 * b) : d;
    FM__UNROLL for (int t = 0; t < tokens; t++) {
        const uint8_t *da_at = tile->act_d + (size_t)t * tile->act_stride + 4 * b;
        const __m512 da = _mm512_castsi512_ps(fm__vnni_broadcast(da_at));
        __m512i sum = _mm512_srai_epi32(sums.codes[t], raised);
        if (!shape.has_min)
            sum = _mm512_sub_epi32(
                sum, _mm512_slli_epi32(sums.minima[t], (unsigned)fm__vnni_offset_shift(shape)));
        const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, da));
        fm__vnni_few_term(shape, tokens, tile, b, 0, false, x, acc + t);
        if (!shape.has_min)
            continue;
        const __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sums.minima[t]), _mm512_mul_ps(m, da));
        fm__vnni_few_term(shape, tokens, tile, b, 1, true, y, acc + t);
    }
}

/* The segment's total of one token: its blocks ascending from +0. */
FM__INLINE __m512 fm__vnni_few_total(const fm__shape shape, const uint8_t *terms, size_t blocks) {
    __m512 x = _mm512_setzero_ps();
    for (size_t b = 0; b < blocks; b++, terms += 64 * fm__vnni_few_terms(shape)) {
        x = _mm512_add_ps(x, _mm512_load_ps(terms));
        if (shape.has_min) {
            const __m512 y = _mm512_load_ps(terms + 64);
            x = shape.block == 32 ? _mm512_add_ps(x, y) : _mm512_sub_ps(x, y);
        }
    }
    return x;
}

FM__INLINE void fm__vnni_few_tokens(const fm__shape shape, const int tokens,
                                    const fm__vnni_few_tile *tile, uint8_t *totals,
                                    size_t total_stride) {
    const size_t blocks = tile->chunks * FM__CHUNK / (size_t)shape.block;
    const bool ascends = fm__vnni_few_ascends((size_t)tokens);
    __m512 acc[FM__VNNI_FEW_TILE];
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    for (size_t i = 0; i < blocks; i++) {
        const size_t b = ascends ? i : blocks - 1 - i;
        if (shape.block == 32)
            fm__vnni_few_block32(shape, tokens, tile, b, acc);
        else
            fm__vnni_few_block256(shape, tokens, tile, b, acc);
    }
    if (!ascends)
        acc[0] = fm__vnni_few_total(shape, tile->terms, blocks);
    FM__UNROLL for (int t = 0; t < tokens; t++)
        _mm512_store_ps(totals + (size_t)t * total_stride, acc[t]);
}

FM__INLINE void fm__vnni_few_any(const fm__shape shape, size_t tokens,
                                 const fm__vnni_few_tile *tile, uint8_t *totals,
                                 size_t total_stride) {
    switch (tokens) {
    case 1:
        fm__vnni_few_tokens(shape, 1, tile, totals, total_stride);
        break;
    case 2:
        fm__vnni_few_tokens(shape, 2, tile, totals, total_stride);
        break;
    case 3:
        fm__vnni_few_tokens(shape, 3, tile, totals, total_stride);
        break;
    default:
        fm__vnni_few_tokens(shape, 4, tile, totals, total_stride);
        break;
    }
}

/* ---- the walk ---- */

/* The scratch of a call. */
typedef struct fm__vnni_few_scratch {
    uint8_t *sides;  /* (token, segment) FM__VNNI_SIDE bytes */
    uint8_t *totals; /* (token, segment) a vector */
    uint8_t *terms;  /* FM__VNNI_FEW_TERMS bytes */
    size_t segments;
} fm__vnni_few_scratch;

FM__INLINE void fm__vnni_few_segment(const fm__shape shape, const fm__linear_args *args,
                                     const uint8_t *panel, ptrdiff_t next, size_t segment,
                                     const fm__vnni_few_scratch *scratch, __m512i table) {
    const fm__panel_layout *layout = &args->layout;
    const size_t k0 = segment * FM__SEGMENT, block0 = k0 / (size_t)shape.block;
    const size_t left = args->k - k0, total_stride = 64 * scratch->segments;
    const size_t now = args->tokens < FM__VNNI_FEW_TILE ? args->tokens : FM__VNNI_FEW_TILE;
    fm__vnni_few_tile tile = {
        .codes = panel + layout->codes + k0 / FM__CHUNK * (size_t)(64 * shape.bits),
        .sub = panel + layout->sub + block0 * fm__shape_sub_bytes(shape),
        .d = panel + layout->d + block0 * (shape.d_is_f32 ? 64 : 32),
        .m = panel + layout->m + block0 * 32,
        .act = args->act + args->act_layout.values + k0,
        .act_d = args->act + args->act_layout.d + 4 * block0,
        .act_stride = args->act_layout.stride,
        .side = scratch->sides + segment * FM__VNNI_SIDE,
        .side_stride = scratch->segments * FM__VNNI_SIDE,
        .terms = scratch->terms,
        .chunks = (left < FM__SEGMENT ? left : FM__SEGMENT) / FM__CHUNK,
        .end = panel + layout->sub,
        .bytes = layout->sub,
        .next = next,
        .asks = args->asks,
        .wide = layout->stride > FM__VNNI_FEW_WIDE,
        .table = table,
    };
    uint8_t *totals = scratch->totals + 64 * segment;
    fm__vnni_few_any(shape, now, &tile, totals, total_stride);
    if (args->tokens == now)
        return;
    tile.act += now * tile.act_stride;
    tile.act_d += now * tile.act_stride;
    tile.side += now * tile.side_stride;
    fm__vnni_few_any(shape, args->tokens - now, &tile, totals + now * total_stride, total_stride);
}

FM__INLINE void fm__vnni_few_panel(const fm__shape shape, const fm__linear_args *args,
                                   uint32_t panel, ptrdiff_t next,
                                   const fm__vnni_few_scratch *scratch, __m512i table) {
    const fm__panel_layout *layout = &args->layout;
    const uint8_t *at = args->panels + (size_t)panel * layout->stride;
    float *out = args->out + (size_t)panel * FM__PANEL_ROWS;
    const bool ascends = fm__vnni_few_ascends(args->tokens);
    for (size_t i = layout->stride; i > layout->sub && !ascends; i -= 64)
        fm__vnni_few_touch(at + i - 64, 64);
    for (size_t i = 0; i < scratch->segments; i++)
        fm__vnni_few_segment(shape, args, at, next, ascends ? i : scratch->segments - 1 - i,
                             scratch, table);
    for (size_t t = 0; t < args->tokens; t++) {
        const uint8_t *totals = scratch->totals + 64 * t * scratch->segments;
        __m512 x = _mm512_load_ps(totals);
        for (size_t s = 1; s < scratch->segments; s++)
            x = _mm512_add_ps(x, _mm512_load_ps(totals + 64 * s));
        _mm512_mask_storeu_ps(out + t * args->out_stride, fm__avx512_row_mask(args->n, panel), x);
    }
}

FM__INLINE size_t fm__vnni_few_segments(const fm__linear_args *args) {
    return ((size_t)args->k + FM__SEGMENT - 1) / FM__SEGMENT;
}

FM__INLINE bool fm__vnni_few_fits(const fm__linear_args *args) {
    return args->tokens <= FM__VNNI_FEW &&
           args->tokens * fm__vnni_few_segments(args) * (FM__VNNI_SIDE + 64) + FM__VNNI_FEW_TERMS <=
               FM__LINEAR_SCRATCH;
}

/* Fetches where the next task begins. Gives the panel to fetch beside the last one: the next
   task's, or that itself, whose lines are at hand, where the next is laid out or read in another
   way. */
FM__INLINE const uint8_t *fm__vnni_few_begin(const fm__linear_args *args, const uint8_t *last) {
    const bool backwards = !fm__vnni_few_ascends(args->tokens);
    const uint8_t *lines = args->ahead - (args->ahead_backwards ? FM__VNNI_FEW_AHEAD : 0);
    for (size_t i = FM__VNNI_FEW_AHEAD; i > 0; i -= 64)
        fm__vnni_few_fetch(lines + i - 64, 64, _MM_HINT_T0);
    if (!args->ahead_alike || args->ahead_backwards != backwards)
        return last;
    return args->ahead - (backwards ? args->layout.stride : 0);
}

FM__INLINE void fm__vnni_few(const fm__shape shape, const fm__linear_args *args) {
    const __m512i table = fm__vnni_table(shape, args->type);
    const size_t segments = fm__vnni_few_segments(args);
    uint8_t *const sides = args->scratch;
    uint8_t *const totals = sides + args->tokens * segments * FM__VNNI_SIDE;
    const fm__vnni_few_scratch scratch = {.sides = sides,
                                          .totals = totals,
                                          .terms = totals + args->tokens * segments * 64,
                                          .segments = segments};
    for (size_t t = 0; t < args->tokens; t++)
        for (uint32_t s = 0; s < segments; s++)
            fm__vnni_side(shape, args->act + t * args->act_layout.stride, &args->act_layout, s,
                          sides + (t * segments + s) * FM__VNNI_SIDE);
    const uint32_t end = fm__avx512_panel_end(args);
    for (uint32_t i = args->panel_begin; i < end; i++) {
        const bool ascends = fm__vnni_few_ascends(args->tokens);
        const uint32_t panel = ascends ? i : end - 1 - (i - args->panel_begin);
        const uint8_t *at = args->panels + (size_t)panel * args->layout.stride, *next = at;
        if (i + 1 < end)
            next = ascends ? at + args->layout.stride : at - args->layout.stride;
        else if (args->ahead != NULL)
            next = fm__vnni_few_begin(args, at);
        fm__vnni_few_panel(shape, args, panel, next - at, &scratch, table);
    }
}
