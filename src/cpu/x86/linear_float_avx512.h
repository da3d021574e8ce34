/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_float_avx512.h: the shared body of the float linear kernels of the AVX-512 rung.
 *
 * Owns: the register tile and the walk over tokens, segments and panels. Never does: choose a
 * kernel. Called from: the linear_f32, linear_f16 and linear_bf16 files, with constant parameters.
 *
 * One accumulator a row, k ascending, segments of 1024. The order is the exact class's; with
 * `fused` the product is not rounded, which changes nothing where products are exact in fp32 (F16
 * with 13-bit and BF16 with 16-bit activations) and is the fast class elsewhere. BF16_DOTS is fast:
 * vdpbf16ps adds pairs without rounding each product.
 *
 * A unit is what one broadcast of 4 bytes multiplies: a k, or a pair of k for BF16_DOTS. Tokens of
 * a block are copied to records, 16 units of each token of a tile, so that a tile reads one stream
 * (rows lie far apart and share sets of the near cache), and what segments give is added in scratch
 * for the same reason: a row of `out` is touched once.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/x86/avx512.h"

typedef enum fm__float_kind {
    FM__FLOAT_F32,
    FM__FLOAT_F16,
    FM__FLOAT_BF16,
    FM__FLOAT_BF16_DOTS,
} fm__float_kind;

enum {
    FM__FLOAT_TILE = 16,  /* tokens of a register tile */
    FM__FLOAT_UNITS = 16, /* units of a token in a record: a line */
    /* A block's copied segment and its sums: together with a panel they stay in L2. */
    FM__FLOAT_ACT = 384 * 1024,
    FM__FLOAT_SUMS = 256 * 1024,
};

_Static_assert(FM__FLOAT_ACT + FM__FLOAT_SUMS <= FM__LINEAR_SCRATCH, "records and sums fit");

FM__INLINE uint32_t fm__float_unit(const fm__float_kind kind) {
    return kind == FM__FLOAT_BF16_DOTS ? 2 : 1;
}
/* Bytes of a unit's weights. */
FM__INLINE size_t fm__float_bytes(const fm__float_kind kind) {
    return kind == FM__FLOAT_F16 || kind == FM__FLOAT_BF16 ? 32 : 64;
}
/* Units of the segment at k0; an odd K is zero-padded on both sides where a unit is a pair. */
FM__INLINE uint32_t fm__float_count(const fm__float_kind kind, uint32_t k, uint32_t k0) {
    const uint32_t count = k - k0 < FM__SEGMENT ? k - k0 : FM__SEGMENT;
    return (count + fm__float_unit(kind) - 1) / fm__float_unit(kind);
}

/* ---- the register tile ---- */

/* The weights of k and k + 1 (F16, BF16). */
FM__INLINE void fm__float_pair(const fm__float_kind kind, const uint8_t *at, __m512 w[2]) {
    const __m512i x = _mm512_load_si512(at);
    const __m512i order =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    if (kind == FM__FLOAT_BF16) {
        w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        w[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xFFFF0000u)));
    } else {
        /* the halves of k to the low 256 bits, those of k + 1 to the high ones */
        const __m512i apart = _mm512_permutexvar_epi16(order, x);
        w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(apart));
        w[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(apart, 1));
    }
}

FM__INLINE __m512 fm__float_step(const fm__float_kind kind, const bool fused, __m512 acc, __m512 w,
                                 const uint8_t *unit) {
    int32_t bits;
    memcpy(&bits, unit, 4);
    const __m512i x = _mm512_set1_epi32(bits);
#ifdef __AVX512BF16__
    if (kind == FM__FLOAT_BF16_DOTS)
        return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
#endif
    (void)kind;
    const __m512 a = _mm512_castsi512_ps(x);
    return fused ? _mm512_fmadd_ps(w, a, acc) : _mm512_add_ps(acc, _mm512_mul_ps(w, a));
}

/* acc[p][t] += units [0, count) of the panels at `weights`, `stride` bytes apart, times those of
   the tokens at `act`, act_stride bytes apart. */
FM__INLINE void fm__float_tile(const fm__float_kind kind, const bool fused, const int panels,
                               const int tokens, const uint8_t *weights, size_t stride,
                               const uint8_t *act, size_t act_stride, uint32_t count, __m512 *acc) {
    uint32_t i = 0;
    if (kind == FM__FLOAT_F32 || kind == FM__FLOAT_BF16_DOTS) {
        for (; i < count; i++)
            FM__UNROLL for (int p = 0; p < panels; p++) {
                const __m512 w = _mm512_load_ps(weights + (size_t)p * stride + (size_t)i * 64);
                FM__UNROLL for (int t = 0; t < tokens; t++) acc[p * tokens + t] =
                    fm__float_step(kind, fused, acc[p * tokens + t], w,
                                   act + (size_t)t * act_stride + (size_t)i * 4);
            }
        return;
    }
    for (; i + 2 <= count; i += 2)
        FM__UNROLL for (int p = 0; p < panels; p++) {
            __m512 w[2];
            fm__float_pair(kind, weights + (size_t)p * stride + (size_t)i * 32, w);
            FM__UNROLL for (int j = 0; j < 2; j++) FM__UNROLL for (int t = 0; t < tokens; t++)
                acc[p * tokens + t] =
                    fm__float_step(kind, fused, acc[p * tokens + t], w[j],
                                   act + (size_t)t * act_stride + ((size_t)i + (size_t)j) * 4);
        }
    if (i < count) /* an odd K: the activation behind it is not defined */
        FM__UNROLL for (int p = 0; p < panels; p++) {
            __m512 w[2];
            fm__float_pair(kind, weights + (size_t)p * stride + (size_t)i * 32, w);
            FM__UNROLL for (int t = 0; t < tokens; t++) acc[p * tokens + t] =
                fm__float_step(kind, fused, acc[p * tokens + t], w[0],
                               act + (size_t)t * act_stride + (size_t)i * 4);
        }
}

/* ---- up to 4 tokens: several panels in flight, whose streams draw more bandwidth than one ---- */

FM__INLINE void fm__float_few_run(const fm__float_kind kind, const bool fused, const int panels,
                                  const int tokens, const fm__linear_args *args, uint32_t panel) {
    const uint8_t *weights = args->panels + (size_t)panel * args->layout.stride;
    const uint8_t *act = args->act + args->act_layout.values;
    float *out = args->out + (size_t)panel * FM__PANEL_ROWS;
    for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
        const size_t unit = k0 / fm__float_unit(kind);
        __m512 acc[16];
        FM__UNROLL for (int i = 0; i < panels * tokens; i++) acc[i] = _mm512_setzero_ps();
        fm__avx512_fetch_rows(out, args->out_stride, tokens);
        fm__float_tile(kind, fused, panels, tokens, weights + unit * fm__float_bytes(kind),
                       args->layout.stride, act + 4 * unit, args->act_layout.stride,
                       fm__float_count(kind, args->k, k0), acc);
        FM__UNROLL for (int p = 0; p < panels; p++) fm__avx512_store_rows(
            out + p * FM__PANEL_ROWS, args->out_stride, tokens,
            fm__avx512_row_mask(args->n, panel + (uint32_t)p), k0 == 0, acc + p * tokens);
    }
}

FM__INLINE void fm__float_few(const fm__float_kind kind, const bool fused, const int tokens,
                              const fm__linear_args *args) {
    const uint32_t end = fm__avx512_panel_end(args);
    uint32_t panel = args->panel_begin;
    for (; panel + 4 <= end; panel += 4)
        fm__float_few_run(kind, fused, 4, tokens, args, panel);
    for (; panel < end; panel++)
        fm__float_few_run(kind, fused, 1, tokens, args, panel);
}

/* ---- more: blocks of tokens, in tiles ---- */

/* A block of tokens and a group of panels. */
typedef struct fm__float_block {
    uint32_t t0, t1, panel0, panel1;
    uint8_t *records; /* the segment's, tile after tile */
    float *sums;      /* [panel][token][16], of the segments before */
} fm__float_block;

/* Tokens that a tile computes for `left` ones. Few have a tile of their size, since weights come
   from memory then; of a block's last ones some may be computed for nothing. */
FM__INLINE uint32_t fm__float_tile_tokens(uint32_t left) {
    return left >= FM__FLOAT_TILE ? FM__FLOAT_TILE
           : left <= 4            ? 4
           : left <= 8            ? left
                                  : (left + 3) / 4 * 4;
}

/* Units [0, count) of a segment of `tokens` rows; the row behind the last one is the last again. */
FM__INLINE void fm__float_copy_tile(const uint8_t *row, size_t stride, uint32_t tokens,
                                    uint32_t left, uint32_t count, uint8_t *to) {
    for (uint32_t i = 0; i < count; i += FM__FLOAT_UNITS) {
        const uint32_t units = count - i < FM__FLOAT_UNITS ? count - i : FM__FLOAT_UNITS;
        const __mmask16 mask = (__mmask16)((1u << units) - 1u);
        for (uint32_t t = 0; t < tokens; t++, to += 64) {
            const uint8_t *from = row + (t < left ? t : left - 1) * stride + 4 * (size_t)i;
            _mm512_store_si512(to, _mm512_maskz_loadu_epi32(mask, from));
        }
    }
}

FM__INLINE void fm__float_run(const fm__float_kind kind, const bool fused, const int tokens,
                              const fm__linear_args *args, const fm__float_block *block,
                              uint32_t panel, uint32_t token, uint32_t k0,
                              fm__avx512_ahead *ahead) {
    const uint32_t count = fm__float_count(kind, args->k, k0);
    const size_t unit = k0 / fm__float_unit(kind);
    const uint8_t *weights =
        args->panels + (size_t)panel * args->layout.stride + unit * fm__float_bytes(kind);
    const uint32_t lines = (count + FM__FLOAT_UNITS - 1) / FM__FLOAT_UNITS;
    const uint8_t *record = block->records + (size_t)(token - block->t0) * lines * 64;
    const bool last = args->k - k0 <= FM__SEGMENT;
    const uint32_t left = block->t1 - token;
    float *out = args->out + (size_t)token * args->out_stride + (size_t)panel * FM__PANEL_ROWS;
    if (last)
        fm__avx512_fetch_rows(out, args->out_stride, left < (uint32_t)tokens ? (int)left : tokens);
    __m512 acc[FM__FLOAT_TILE];
    FM__UNROLL for (int t = 0; t < tokens; t++) acc[t] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < count; i += FM__FLOAT_UNITS, record += 64 * tokens) {
        const uint32_t units = count - i < FM__FLOAT_UNITS ? count - i : FM__FLOAT_UNITS;
        fm__float_tile(kind, fused, 1, tokens, weights + i * fm__float_bytes(kind), 0, record, 64,
                       units, acc);
        fm__avx512_fetch(ahead);
    }
    const size_t tall = (block->t1 - block->t0 + 3) / 4 * 4;
    float *sums = block->sums + ((panel - block->panel0) * tall + (token - block->t0)) * 16;
    fm__avx512_add_segment(tokens, left, k0 == 0, last, fm__avx512_row_mask(args->n, panel), sums,
                           out, args->out_stride, acc);
}

/* What is multiplied next: the segment of the next panel, or the next segment of the group's first.
   A record of each tile fetches its part. */
FM__INLINE fm__avx512_ahead fm__float_next(const fm__float_kind kind, const fm__linear_args *args,
                                           const fm__float_block *block, uint32_t panel,
                                           uint32_t k0) {
    const bool turn = panel + 1 == block->panel1;
    const uint32_t k = turn ? k0 + FM__SEGMENT : k0, next = turn ? block->panel0 : panel + 1;
    if (k >= args->k)
        return (fm__avx512_ahead){0};
    const size_t units = fm__float_count(kind, args->k, k);
    const size_t records =
        (fm__float_count(kind, args->k, k0) + FM__FLOAT_UNITS - 1) / FM__FLOAT_UNITS;
    const size_t tiles = (block->t1 - block->t0 + FM__FLOAT_TILE - 1) / FM__FLOAT_TILE;
    return fm__avx512_ahead_of(args->panels + (size_t)next * args->layout.stride +
                                   k / fm__float_unit(kind) * fm__float_bytes(kind),
                               (units * fm__float_bytes(kind) + 63) / 64 * 64, records * tiles);
}

FM__INLINE void fm__float_block_run(const fm__float_kind kind, const bool fused,
                                    const fm__linear_args *args, const fm__float_block *block) {
    const size_t stride = args->act_layout.stride;
    for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
        const uint32_t count = fm__float_count(kind, args->k, k0);
        const size_t lines = (count + FM__FLOAT_UNITS - 1) / FM__FLOAT_UNITS;
        const uint8_t *act =
            args->act + args->act_layout.values + 4 * (size_t)(k0 / fm__float_unit(kind));
        for (uint32_t t = block->t0; t < block->t1; t += FM__FLOAT_TILE)
            fm__float_copy_tile(act + t * stride, stride, fm__float_tile_tokens(block->t1 - t),
                                block->t1 - t, count,
                                block->records + (t - block->t0) * lines * 64);
        for (uint32_t panel = block->panel0; panel < block->panel1; panel++) {
            fm__avx512_ahead ahead = fm__float_next(kind, args, block, panel, k0);
            for (uint32_t t = block->t0; t < block->t1; t += FM__FLOAT_TILE)
                switch (fm__float_tile_tokens(block->t1 - t)) {
                case 4:
                    fm__float_run(kind, fused, 4, args, block, panel, t, k0, &ahead);
                    break;
                case 5:
                    fm__float_run(kind, fused, 5, args, block, panel, t, k0, &ahead);
                    break;
                case 6:
                    fm__float_run(kind, fused, 6, args, block, panel, t, k0, &ahead);
                    break;
                case 7:
                    fm__float_run(kind, fused, 7, args, block, panel, t, k0, &ahead);
                    break;
                case 8:
                    fm__float_run(kind, fused, 8, args, block, panel, t, k0, &ahead);
                    break;
                case 12:
                    fm__float_run(kind, fused, 12, args, block, panel, t, k0, &ahead);
                    break;
                default:
                    fm__float_run(kind, fused, 16, args, block, panel, t, k0, &ahead);
                    break;
                }
        }
    }
}

FM__INLINE void fm__float_many(const fm__float_kind kind, const bool fused,
                               const fm__linear_args *args) {
    const uint32_t end = fm__avx512_panel_end(args);
    const uint32_t most =
        FM__FLOAT_ACT / (4 * FM__SEGMENT / fm__float_unit(kind)) / FM__FLOAT_TILE * FM__FLOAT_TILE;
    /* blocks as even as whole tiles allow */
    const uint32_t blocks = (args->tokens + most - 1) / most;
    const uint32_t even = (args->tokens + blocks - 1) / blocks;
    const uint32_t tall = (even + FM__FLOAT_TILE - 1) / FM__FLOAT_TILE * FM__FLOAT_TILE;
    const uint32_t wide = FM__FLOAT_SUMS / 64 / tall;
    fm__float_block block = {.records = args->scratch};
    block.sums = (float *)(void *)(block.records + FM__FLOAT_ACT);
    for (block.panel0 = args->panel_begin; block.panel0 < end; block.panel0 = block.panel1) {
        block.panel1 = end - block.panel0 < wide ? end : block.panel0 + wide;
        for (block.t0 = 0; block.t0 < args->tokens; block.t0 = block.t1) {
            block.t1 = args->tokens - block.t0 < tall ? args->tokens : block.t0 + tall;
            fm__float_block_run(kind, fused, args, &block);
        }
    }
}

FM__INLINE void fm__float_linear(const fm__float_kind kind, const bool fused,
                                 const fm__linear_args *args) {
    switch (args->tokens) {
    case 1:
        fm__float_few(kind, fused, 1, args);
        break;
    case 2:
        fm__float_few(kind, fused, 2, args);
        break;
    case 3:
        fm__float_few(kind, fused, 3, args);
        break;
    case 4:
        fm__float_few(kind, fused, 4, args);
        break;
    default:
        fm__float_many(kind, fused, args);
        break;
    }
}
