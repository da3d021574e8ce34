/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/pack_simple.c: panels of the 32-blocks: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4.
 *
 * Owns: nothing. Never does: change a code. Called from: any thread.
 */
#include "quant/pack.h"

/* A file block of 4-bit codes is its plane already. */
FM__INLINE void nibbles(const uint8_t *qs, uint32_t *words) {
    memcpy(words, qs, 16);
}

/* The fifth bits: bit k of x is element k's; the plane wants bit t of byte j to be element
 * 4t + j. That is a rotation of the five bits of the position, done as four exchanges of two of
 * them. */
FM__INLINE uint32_t exchange(uint32_t x, uint32_t mask, int shift) {
    uint32_t t = (x >> shift ^ x) & mask;
    return x ^ t ^ t << shift;
}

FM__INLINE void fifth_bits(const uint8_t *p, uint32_t *word) {
    uint32_t x = fm__load_u32(p);
    x = exchange(x, 0x22222222u, 1);  /* position bits 1 and 0 */
    x = exchange(x, 0x0A0A0A0Au, 3);  /* 2 and 0 */
    x = exchange(x, 0x00CC00CCu, 6);  /* 3 and 1 */
    x = exchange(x, 0x0000F0F0u, 12); /* 4 and 2 */
    fm__store_u32((uint8_t *)word, x);
}

static void words_q8_0(const uint8_t *b, uint32_t *words) {
    memcpy(words, b + FM__Q8_0_QS, 32);
}

static void words_q4_0(const uint8_t *b, uint32_t *words) {
    nibbles(b + FM__Q4_0_QS, words);
}

static void words_q4_1(const uint8_t *b, uint32_t *words) {
    nibbles(b + FM__Q4_1_QS, words);
}

static void words_q5_0(const uint8_t *b, uint32_t *words) {
    nibbles(b + FM__Q5_0_QS, words);
    fifth_bits(b + FM__Q5_0_QH, words + 4);
}

static void words_q5_1(const uint8_t *b, uint32_t *words) {
    nibbles(b + FM__Q5_1_QS, words);
    fifth_bits(b + FM__Q5_1_QH, words + 4);
}

static void words_mxfp4(const uint8_t *b, uint32_t *words) {
    nibbles(b + FM__MXFP4_QS, words);
}

static void put_half(uint8_t *to, const uint8_t *from) {
    uint16_t h = fm__load_u16(from);
    memcpy(to, &h, sizeof h);
}

/* d first in the block, and m behind it where there is one. */
static void scales_d(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)m, (void)sub;
    put_half(d, b);
}

static void scales_d_m(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)sub;
    put_half(d, b);
    put_half(m, b + 2);
}

static void scales_mxfp4(const uint8_t *b, uint8_t *d, uint8_t *m, uint8_t *sub) {
    (void)m, (void)sub;
    uint8_t e = b[FM__MXFP4_E];
    uint32_t bits = e < 128 - 38 ? 0 : fm__mxfp4_scale_bits(e);
    memcpy(d, &bits, sizeof bits);
}

#define PACK_32(id, NAME, code_bits, words, scales)                                                \
    void fm__pack_##id(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel) {            \
        fm__pack_panel(fm__type_get(FM__##NAME), 32, FM__##NAME##_BYTES, code_bits, 0, words,      \
                       scales, rows, k, panel);                                                    \
    }

PACK_32(q8_0, Q8_0, 8, words_q8_0, scales_d)
PACK_32(q4_0, Q4_0, 4, words_q4_0, scales_d)
PACK_32(q4_1, Q4_1, 4, words_q4_1, scales_d_m)
PACK_32(q5_0, Q5_0, 5, words_q5_0, scales_d)
PACK_32(q5_1, Q5_1, 5, words_q5_1, scales_d_m)
PACK_32(iq4_nl, IQ4_NL, 4, words_q4_0, scales_d)
PACK_32(mxfp4, MXFP4, 4, words_mxfp4, scales_mxfp4)
