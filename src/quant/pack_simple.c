/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/pack_simple.c: panels of the 32-blocks: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4.
 *
 * Owns: nothing. Never does: change a code. Called from: any thread.
 */
#include "quant/pack.h"

/* The block's first two words, as numbers. */
FM__INLINE void load_head(const uint8_t *const *row, fm__lanes head[2]) {
    fm__lanes w[4];
    fm__load_lanes_4(row, 0, w);
    head[0] = fm__as_numbers(w[0]);
    head[1] = fm__as_numbers(w[1]);
}

/* The fifth bits: bit k of x is element k's; the plane wants bit t of byte j to be element
 * 4t + j. That is a rotation of the five bits of the position, done as four exchanges of two of
 * them. */
FM__INLINE fm__lanes exchange(fm__lanes x, uint32_t mask, int shift) {
    fm__lanes t = (x >> shift ^ x) & mask;
    return x ^ t ^ t << shift;
}

FM__INLINE fm__lanes fifth_bits(fm__lanes x) {
    x = exchange(x, 0x22222222u, 1);  /* position bits 1 and 0 */
    x = exchange(x, 0x0A0A0A0Au, 3);  /* 2 and 0 */
    x = exchange(x, 0x00CC00CCu, 6);  /* 3 and 1 */
    x = exchange(x, 0x0000F0F0u, 12); /* 4 and 2 */
    return fm__as_numbers(x);
}

FM__INLINE void block_q8_0(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    (void)sub, (void)m;
    fm__lanes head[2];
    load_head(row, head);
    fm__put_16(codes, row, FM__Q8_0_QS, group);
    fm__put_16(codes + 256, row, FM__Q8_0_QS + 16, group);
    fm__put_halves(d, group, head[0]);
}

FM__INLINE void block_q4_0(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    (void)sub, (void)m;
    fm__lanes head[2];
    load_head(row, head);
    fm__put_16(codes, row, FM__Q4_0_QS, group);
    fm__put_halves(d, group, head[0]);
}

FM__INLINE void block_q4_1(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    (void)sub;
    fm__lanes head[2];
    load_head(row, head);
    fm__put_16(codes, row, FM__Q4_1_QS, group);
    fm__put_halves(d, group, head[0]);
    fm__put_halves(m, group, head[0] >> 16);
}

FM__INLINE void block_q5_0(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    (void)sub, (void)m;
    fm__lanes head[2];
    load_head(row, head);
    fm__put_16(codes, row, FM__Q5_0_QS, group);
    fm__put(codes + 256, 0, group, fifth_bits(head[0] >> 16 | head[1] << 16));
    fm__put_halves(d, group, head[0]);
}

FM__INLINE void block_q5_1(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    (void)sub;
    fm__lanes head[2];
    load_head(row, head);
    fm__put_16(codes, row, FM__Q5_1_QS, group);
    fm__put(codes + 256, 0, group, fifth_bits(head[1]));
    fm__put_halves(d, group, head[0]);
    fm__put_halves(m, group, head[0] >> 16);
}

/* d is 2^(e - 128), and 0 where that is below 2^-38: none here is subnormal. */
FM__INLINE void block_mxfp4(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                            uint8_t *d, uint8_t *m) {
    (void)sub, (void)m;
    fm__lanes head[2];
    load_head(row, head);
    fm__lanes e = head[0] & 0xFFu, large = (fm__lanes)(e >= 128 - 38); /* all ones where so */
    fm__put_16(codes, row, FM__MXFP4_QS, group);
    fm__put(d, 0, group, (e - 1) << 23 & large);
}

static const uint8_t nothing[FM__Q8_0_BYTES]; /* what rows past N hold */

#define PACK_32(id, NAME, code_bits, block)                                                        \
    void fm__pack_##id(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel) {            \
        fm__pack_panel(fm__type_get(FM__##NAME), 32, FM__##NAME##_BYTES, code_bits, 0, block,      \
                       nothing, rows, k, panel);                                                   \
    }

PACK_32(q8_0, Q8_0, 8, block_q8_0)
PACK_32(q4_0, Q4_0, 4, block_q4_0)
PACK_32(q4_1, Q4_1, 4, block_q4_1)
PACK_32(q5_0, Q5_0, 5, block_q5_0)
PACK_32(q5_1, Q5_1, 5, block_q5_1)
PACK_32(iq4_nl, IQ4_NL, 4, block_q4_0)
PACK_32(mxfp4, MXFP4, 4, block_mxfp4)
