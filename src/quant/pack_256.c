/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/pack_256.c: panels of the 256-blocks: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ1_0, TQ2_0.
 *
 * Owns: nothing. Never does: change a code. Called from: any thread.
 */
#include "quant/pack.h"

enum { SUB_4 = 4 * FM__PANEL_ROWS }; /* bytes of four sub scales of a panel's rows */

/* 16 sub scales as they lie. */
FM__INLINE void put_subs_16(uint8_t *sub, const uint8_t *const *row, size_t offset, size_t group) {
    fm__lanes w[4];
    fm__load_lanes_4(row, offset, w);
    FM__PACK_UNROLL
    for (size_t i = 0; i < 4; i++)
        fm__put_bytes(sub + i * SUB_4, group, w[i]);
}

/* Bytes of six bits, biased by 32, as int8: minus 32 modulo 64; then bit 5 is the sign. */
FM__INLINE fm__lanes unbias(fm__lanes w) {
    w ^= 0x20202020u;
    fm__lanes sign = w & 0x20202020u;
    return w | sign << 1 | sign << 2;
}

FM__INLINE void block_q2_k(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    fm__planes_2(row, FM__Q2_K_QS, group, codes, 128);
    fm__planes_2(row, FM__Q2_K_QS + 32, group, codes + 512, 128);
    put_subs_16(sub, row, FM__Q2_K_SCALES, group);
    fm__put_halves_at(d, row, FM__Q2_K_D, group);
    fm__put_halves_at(m, row, FM__Q2_K_DMIN, group);
}

/* Its last 14 bytes are scales (fm__q3_k_scales() says how they lie) and d; 16 are read. */
FM__INLINE void block_q3_k(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    (void)m;
    fm__planes_2(row, FM__Q3_K_QS, group, codes, 192);
    fm__planes_2(row, FM__Q3_K_QS + 32, group, codes + 768, 192);
    fm__planes_1(row, FM__Q3_K_QH, group, codes + 128, 192);
    fm__lanes w[4], n[3];
    fm__load_lanes_4(row, FM__Q3_K_BYTES - 16, w);
    FM__PACK_UNROLL
    for (size_t i = 0; i < 3; i++)
        n[i] = fm__as_numbers(w[i]) >> 16 | fm__as_numbers(w[i + 1]) << 16;
    FM__PACK_UNROLL
    for (int i = 0; i < 4; i++) {
        fm__lanes low = n[i % 2] >> (i / 2 * 4) & 0x0F0F0F0Fu;
        fm__lanes scales = unbias(low | (n[2] >> (2 * i) & 0x03030303u) << 4);
        fm__put_bytes(sub + (size_t)i * SUB_4, group, fm__as_numbers(scales));
    }
    fm__put_halves(d, group, fm__as_numbers(w[3]) >> 16);
}

/* Q4_K and Q5_K begin alike: d, dmin and the scales as fm__q4_k_scales() describes them. */
FM__INLINE void scales_q4_k(const uint8_t *const *row, size_t group, uint8_t *sub, uint8_t *d,
                            uint8_t *m) {
    const uint32_t low = 0x0F0F0F0Fu, high = 0x30303030u, both = low | high;
    fm__lanes w[4];
    fm__load_lanes_4(row, FM__Q4_K_D, w);
    fm__put_bytes(sub, group, w[1] & both);
    fm__put_bytes(sub + SUB_4, group, (w[3] & low) | (w[1] >> 2 & high));
    fm__put_bytes(sub + 2 * SUB_4, group, w[2] & both);
    fm__put_bytes(sub + 3 * SUB_4, group, (w[3] >> 4 & low) | (w[2] >> 2 & high));
    fm__lanes head = fm__as_numbers(w[0]);
    fm__put_halves(d, group, head);
    fm__put_halves(m, group, head >> 16);
}

FM__INLINE void block_q4_k(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    FM__PACK_UNROLL
    for (size_t g = 0; g < 4; g++)
        fm__planes_4(row, FM__Q4_K_QS + 32 * g, group, codes + 512 * g, codes + 512 * g + 256);
    scales_q4_k(row, group, sub, d, m);
}

FM__INLINE void block_q5_k(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    FM__PACK_UNROLL
    for (size_t g = 0; g < 4; g++)
        fm__planes_4(row, FM__Q5_K_QS + 32 * g, group, codes + 640 * g, codes + 640 * g + 320);
    fm__planes_1(row, FM__Q5_K_QH, group, codes + 256, 320);
    scales_q4_k(row, group, sub, d, m);
}

FM__INLINE void block_q6_k(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                           uint8_t *d, uint8_t *m) {
    (void)m;
    FM__PACK_UNROLL
    for (size_t h = 0; h < 2; h++) { /* halves of four chunks */
        uint8_t *out = codes + h * 4 * 384;
        fm__planes_4(row, FM__Q6_K_QS + 64 * h, group, out, out + 2 * 384);
        fm__planes_4(row, FM__Q6_K_QS + 64 * h + 32, group, out + 384, out + 3 * 384);
        fm__planes_2(row, FM__Q6_K_QH + 32 * h, group, out + 256, 384);
    }
    put_subs_16(sub, row, FM__Q6_K_SCALES, group);
    fm__put_halves_at(d, row, FM__Q6_K_D, group);
}

/* Begins with d, 16 bits with bits 4-5 of the eight scales, and their nibbles in 4 bytes. */
FM__INLINE void block_iq4_xs(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                             uint8_t *d, uint8_t *m) {
    (void)m;
    FM__PACK_UNROLL
    for (size_t c = 0; c < 8; c++)
        fm__put_16(codes + 256 * c, row, FM__IQ4_XS_QS + 16 * c, group);
    fm__lanes w[4];
    fm__load_lanes_4(row, FM__IQ4_XS_D, w);
    fm__lanes head = fm__as_numbers(w[0]), nibbles = fm__as_numbers(w[1]);
    fm__put_halves(d, group, head);
    FM__PACK_UNROLL
    for (int i = 0; i < 2; i++) { /* four scales, one a byte */
        fm__lanes low = nibbles >> (16 * i) & 0xFFFFu, high = head >> (16 + 8 * i) & 0xFFu;
        low = (low | low << 8) & 0x00FF00FFu;
        low = (low | low << 4) & 0x0F0F0F0Fu;
        high = (high | high << 12) & 0x000F000Fu;
        high = (high | high << 6) & 0x03030303u;
        fm__put_bytes(sub + (size_t)i * SUB_4, group, fm__as_numbers(unbias(low | high << 4)));
    }
}

FM__INLINE void block_tq2_0(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                            uint8_t *d, uint8_t *m) {
    (void)m, (void)sub;
    fm__planes_2(row, FM__TQ2_0_QS, group, codes, 128);
    fm__planes_2(row, FM__TQ2_0_QS + 32, group, codes + 512, 128);
    fm__put_halves_at(d, row, FM__TQ2_0_D, group);
}

/* ---- TQ1_0: ternary.c says how its digits lie ---- */

/* Carries the next digit out of every byte of a word: of bytes 0 and 2, and of 1 and 3. */
FM__INLINE fm__lanes next_digits(fm__lanes *even, fm__lanes *odd) {
    const uint32_t bytes = 0x00FF00FFu, digit = 0x00030003u;
    fm__lanes e = *even + (*even << 1), o = *odd + (*odd << 1); /* times 3 */
    *even = e & bytes;
    *odd = o & bytes;
    return (e >> 8 & digit) | (o >> 8 & digit) << 8;
}

/* Codes of elements 4 * word on of a chunk, into its plane's two vectors. */
FM__INLINE void add_codes(fm__lanes plane[2], size_t word, fm__lanes codes) {
    plane[word % 2] |= codes << (int)(word / 2 * 2);
}

FM__INLINE void block_tq1_0(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                            uint8_t *d, uint8_t *m) {
    (void)m, (void)sub;
    const uint32_t bytes = 0x00FF00FFu;
    fm__lanes plane[8][2], w[12], last[4];
    memset(plane, 0, sizeof plane);
    fm__load_lanes_8(row, FM__TQ1_0_QS, w);
    fm__load_lanes_4(row, FM__TQ1_0_QS + 32, w + 8);
    fm__load_lanes_4(row, FM__TQ1_0_BYTES - 16, last); /* its last 6 bytes: qh and d */
    for (size_t i = 0; i < 12; i++) {
        fm__lanes even = w[i] & bytes, odd = w[i] >> 8 & bytes;
        FM__PACK_UNROLL
        for (size_t t = 0; t < 5; t++) { /* a chunk a digit; of the last four words, half of one */
            size_t chunk = i < 8 ? t : 5 + t / 2, word = i < 8 ? i : i - 8 + t % 2 * 4;
            add_codes(plane[chunk], word, next_digits(&even, &odd));
        }
    }
    fm__lanes end = fm__as_numbers(last[3]);
    fm__lanes qh = fm__as_numbers(fm__as_numbers(last[2]) >> 16 | end << 16);
    fm__lanes even = qh & bytes, odd = qh >> 8 & bytes;
    FM__PACK_UNROLL
    for (size_t t = 0; t < 4; t++)
        add_codes(plane[7], 4 + t, next_digits(&even, &odd));
    for (size_t c = 0; c < 8; c++) {
        fm__put(codes + 128 * c, 0, group, plane[c][0]);
        fm__put(codes + 128 * c, 1, group, plane[c][1]);
    }
    fm__put_halves(d, group, end >> 16);
}

/* ---- */

/* What rows past N hold: scales that are stored with 32 added must come out as 0. */
static const uint8_t nothing[FM__Q6_K_BYTES];
static const uint8_t nothing_q3_k[FM__Q3_K_BYTES] = {
    [FM__Q3_K_SCALES + 8] = 0xAA, 0xAA, 0xAA, 0xAA};
static const uint8_t nothing_iq4_xs[FM__IQ4_XS_BYTES] = {[FM__IQ4_XS_SCALES_H] = 0xAA, 0xAA};

#define PACK_256(id, NAME, code_bits, sub_bytes, null_block)                                       \
    void fm__pack_##id(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel) {            \
        fm__pack_panel(fm__type_get(FM__##NAME), 256, FM__##NAME##_BYTES, code_bits, sub_bytes,    \
                       block_##id, null_block, rows, k, panel);                                    \
    }

PACK_256(q2_k, Q2_K, 2, 256, nothing)
PACK_256(q3_k, Q3_K, 3, 256, nothing_q3_k)
PACK_256(q4_k, Q4_K, 4, 256, nothing)
PACK_256(q5_k, Q5_K, 5, 256, nothing)
PACK_256(q6_k, Q6_K, 6, 256, nothing)
PACK_256(iq4_xs, IQ4_XS, 4, 128, nothing_iq4_xs)
PACK_256(tq1_0, TQ1_0, 2, 0, nothing)
PACK_256(tq2_0, TQ2_0, 2, 0, nothing)
