/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_bf16_fast_avx512bf16.c: linear layers of BF16 with bf16 activations, fast class.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table. vdpbf16ps adds pairs without rounding each product, so the bits are its own.
 */
#include <string.h>

#include "cpu/x86/avx512.h"
#include "cpu/x86/x86.h"

enum {
    TILE = 12,   /* tokens of a register tile */
    TOKENS = 48, /* tokens of a block: their activations of a segment fit the scratch */
    ROW = 2 * FM__SEGMENT + 64, /* bytes from token to token there */
};

FM__INLINE __m512bh broadcast(const uint8_t *pair) {
    int32_t x;
    memcpy(&x, pair, 4);
    return (__m512bh)_mm512_set1_epi32(x);
}

FM__INLINE void run(const int panels, const int tokens, const fm__linear_args *args, uint32_t panel,
                    uint32_t token, uint32_t k0, const uint8_t *act, size_t act_stride) {
    const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
    const uint32_t pairs = (count + 1) / 2; /* an odd K is zero-padded on both sides */
    const size_t stride = args->layout.stride;
    const uint8_t *weights = args->panels + (size_t)panel * stride + (size_t)k0 * 32;
    float *out = args->out + (size_t)token * args->out_stride + (size_t)panel * FM__PANEL_ROWS;
    fm__avx512_fetch_rows(out, args->out_stride, tokens);
    __m512 acc[16];
    FM__UNROLL for (int i = 0; i < panels * tokens; i++) acc[i] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < pairs; i++)
        FM__UNROLL for (int p = 0; p < panels; p++) {
            const __m512bh w =
                (__m512bh)_mm512_load_si512(weights + (size_t)p * stride + (size_t)i * 64);
            FM__UNROLL for (int t = 0; t < tokens; t++) acc[p * tokens + t] = _mm512_dpbf16_ps(
                acc[p * tokens + t], w, broadcast(act + (size_t)t * act_stride + (size_t)i * 4));
        }
    FM__UNROLL for (int p = 0; p < panels; p++) fm__avx512_store_rows(
        out + p * FM__PANEL_ROWS, args->out_stride, tokens,
        fm__avx512_row_mask(args->n, panel + (uint32_t)p), k0 == 0, acc + p * tokens);
}

FM__INLINE void few(const int tokens, const fm__linear_args *args) {
    const uint32_t end = fm__avx512_panel_end(args);
    const size_t stride = args->act_layout.stride;
    const uint8_t *act = args->act + args->act_layout.values;
    uint32_t panel = args->panel_begin;
    for (; panel + 4 <= end; panel += 4)
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT)
            run(4, tokens, args, panel, 0, k0, act + 2 * (size_t)k0, stride);
    for (; panel < end; panel++)
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT)
            run(1, tokens, args, panel, 0, k0, act + 2 * (size_t)k0, stride);
}

static void many(const fm__linear_args *args) {
    const uint32_t end = fm__avx512_panel_end(args);
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += TOKENS) {
        const uint32_t t1 = args->tokens - t0 < TOKENS ? args->tokens : t0 + TOKENS;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
            fm__avx512_gather_rows(args->scratch, ROW,
                                   args->act + args->act_layout.values +
                                       t0 * args->act_layout.stride + 2 * (size_t)k0,
                                   args->act_layout.stride, t1 - t0, 4 * (size_t)((count + 1) / 2));
            for (uint32_t panel = args->panel_begin; panel < end; panel++) {
                const uint8_t *act = args->scratch;
                uint32_t t = t0;
                for (; t1 - t >= TILE; t += TILE, act += TILE * ROW)
                    run(1, TILE, args, panel, t, k0, act, ROW);
                for (; t1 - t >= 4; t += 4, act += 4 * ROW)
                    run(1, 4, args, panel, t, k0, act, ROW);
                for (; t < t1; t++, act += ROW)
                    run(1, 1, args, panel, t, k0, act, ROW);
            }
        }
    }
}

void fm__linear_bf16_fast_avx512bf16(const fm__linear_args *args) {
    switch (args->tokens) {
    case 1:
        few(1, args);
        break;
    case 2:
        few(2, args);
        break;
    case 3:
        few(3, args);
        break;
    case 4:
        few(4, args);
        break;
    default:
        many(args);
        break;
    }
}
