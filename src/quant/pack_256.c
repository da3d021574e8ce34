/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/pack_256.c: panels of the 256-blocks: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ1_0, TQ2_0.
 *
 * Owns: nothing. Never does: change a code. Called from: any thread.
 */
#include "quant/pack.h"

/* Two chunks of 4-bit codes from 32 bytes that hold the first chunk in their low nibbles and the
 * second in their high ones. */
FM__INLINE void split_nibbles(const uint8_t *qs, uint32_t *first, uint32_t *second) {
    const uint32_t low = 0x0F0F0F0Fu;
    fm__words_4 a = fm__load_words_4(qs), b = fm__load_words_4(qs + 16);
    fm__words_4 planes[2] = {(a & low) | (b & low) << 4, (a >> 4 & low) | (b & ~low)};
    memcpy(first, &planes[0], sizeof planes[0]);
    memcpy(second, &planes[1], sizeof planes[1]);
}

static void words_q2_k(const uint8_t *b, uint32_t *words) {
    fm__planes_2(b + FM__Q2_K_QS, words, 2);
    fm__planes_2(b + FM__Q2_K_QS + 32, words + 8, 2);
}

static void words_q3_k(const uint8_t *b, uint32_t *words) {
    fm__planes_2(b + FM__Q3_K_QS, words, 3);
    fm__planes_2(b + FM__Q3_K_QS + 32, words + 12, 3);
    fm__planes_1(b + FM__Q3_K_QH, words + 2, 3);
}

static void words_q4_k(const uint8_t *b, uint32_t *words) {
    for (int g = 0; g < 4; g++)
        split_nibbles(b + FM__Q4_K_QS + 32 * g, words + 8 * g, words + 8 * g + 4);
}

static void words_q5_k(const uint8_t *b, uint32_t *words) {
    for (int g = 0; g < 4; g++)
        split_nibbles(b + FM__Q5_K_QS + 32 * g, words + 10 * g, words + 10 * g + 5);
    fm__planes_1(b + FM__Q5_K_QH, words + 4, 5);
}

static void words_q6_k(const uint8_t *b, uint32_t *words) {
    for (int h = 0; h < 2; h++) { /* halves of four chunks */
        const uint8_t *qs = b + FM__Q6_K_QS + 64 * h;
        uint32_t *w = words + 24 * h;
        split_nibbles(qs, w, w + 12);
        split_nibbles(qs + 32, w + 6, w + 18);
        fm__planes_2(b + FM__Q6_K_QH + 32 * h, w + 4, 6);
    }
}

static void words_iq4_xs(const uint8_t *b, uint32_t *words) {
    memcpy(words, b + FM__IQ4_XS_QS, 128);
}

static void words_tq1_0(const uint8_t *b, uint32_t *words) {
    uint8_t code[256], qs[64];
    fm__tq1_0_codes(b, code);
    for (int h = 0; h < 2; h++) /* as TQ2_0 would hold them */
        for (int j = 0; j < 32; j++) {
            const uint8_t *c = code + 128 * h + j;
            qs[32 * h + j] = (uint8_t)(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
        }
    fm__planes_2(qs, words, 2);
    fm__planes_2(qs + 32, words + 8, 2);
}

static void words_tq2_0(const uint8_t *b, uint32_t *words) {
    fm__planes_2(b + FM__TQ2_0_QS, words, 2);
    fm__planes_2(b + FM__TQ2_0_QS + 32, words + 8, 2);
}

/* ---- scales ---- */

static void put_half(uint8_t *to, const uint8_t *from) {
    uint16_t h = fm__load_u16(from);
    memcpy(to, &h, sizeof h);
}

FM__INLINE void put_subs(uint8_t *sub, const void *scales, int n) {
    for (int s = 0; s < n; s++)
        sub[s * 16] = ((const uint8_t *)scales)[s];
}

static void scales_q2_k(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    put_half(d, b + FM__Q2_K_D);
    put_half(m, b + FM__Q2_K_DMIN);
    put_subs(sub, b + FM__Q2_K_SCALES, 16);
}

static void scales_q3_k(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)m;
    int8_t scale[16];
    fm__q3_k_scales(b + FM__Q3_K_SCALES, scale);
    put_half(d, b + FM__Q3_K_D);
    put_subs(sub, scale, 16);
}

/* Q4_K and Q5_K begin alike. */
static void scales_q4_k(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    uint8_t scale[8], minimum[8];
    fm__q4_k_scales(b + FM__Q4_K_SCALES, scale, minimum);
    put_half(d, b + FM__Q4_K_D);
    put_half(m, b + FM__Q4_K_DMIN);
    put_subs(sub, scale, 8);
    put_subs(sub + 8 * 16, minimum, 8);
}

static void scales_q6_k(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)m;
    put_half(d, b + FM__Q6_K_D);
    put_subs(sub, b + FM__Q6_K_SCALES, 16);
}

static void scales_iq4_xs(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)m;
    int8_t scale[8];
    fm__iq4_xs_scales(b, scale);
    put_half(d, b + FM__IQ4_XS_D);
    put_subs(sub, scale, 8);
}

static void scales_tq1_0(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)m, (void)sub;
    put_half(d, b + FM__TQ1_0_D);
}

static void scales_tq2_0(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)m, (void)sub;
    put_half(d, b + FM__TQ2_0_D);
}

#define PACK_256(id, NAME, code_bits, sub_bytes, words, scales)                                    \
    void fm__pack_##id(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel) {            \
        fm__pack_panel(fm__type_get(FM__##NAME), 256, FM__##NAME##_BYTES, code_bits, sub_bytes,    \
                       words, scales, rows, k, panel);                                             \
    }

PACK_256(q2_k, Q2_K, 2, 256, words_q2_k, scales_q2_k)
PACK_256(q3_k, Q3_K, 3, 256, words_q3_k, scales_q3_k)
PACK_256(q4_k, Q4_K, 4, 256, words_q4_k, scales_q4_k)
PACK_256(q5_k, Q5_K, 5, 256, words_q5_k, scales_q4_k)
PACK_256(q6_k, Q6_K, 6, 256, words_q6_k, scales_q6_k)
PACK_256(iq4_xs, IQ4_XS, 4, 128, words_iq4_xs, scales_iq4_xs)
PACK_256(tq1_0, TQ1_0, 2, 0, words_tq1_0, scales_tq1_0)
PACK_256(tq2_0, TQ2_0, 2, 0, words_tq2_0, scales_tq2_0)
