/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/block.h: the quant room's private header: byte layout of GGUF's blocks, and small loads.
 *
 * Owns: nothing. Never does: anything outside this room needs it. Called from: any thread.
 * Blocks in files are unaligned and little-endian: fields are reached by byte offset, numbers by
 * fm__load_*; words whose bytes are independent lanes may be copied as they are.
 */
#pragma once

#include <string.h>

#include "quant/quant.h"

/* Offset of each field in its block, and the block's bytes. D: f16 scale; M: f16 minimum; QS: low
 * bits of codes; QH: high bits. */
enum {
    FM__Q8_0_D = 0,
    FM__Q8_0_QS = 2, /* int8[32] */
    FM__Q8_0_BYTES = 34,

    FM__Q4_0_D = 0,
    FM__Q4_0_QS = 2, /* [16]: elements j, j + 16 */
    FM__Q4_0_BYTES = 18,

    FM__Q4_1_D = 0,
    FM__Q4_1_M = 2,
    FM__Q4_1_QS = 4,
    FM__Q4_1_BYTES = 20,

    FM__Q5_0_D = 0,
    FM__Q5_0_QH = 2, /* u32: bit j is bit 4 of element j */
    FM__Q5_0_QS = 6,
    FM__Q5_0_BYTES = 22,

    FM__Q5_1_D = 0,
    FM__Q5_1_M = 2,
    FM__Q5_1_QH = 4,
    FM__Q5_1_QS = 8,
    FM__Q5_1_BYTES = 24,

    FM__IQ4_NL_D = 0,
    FM__IQ4_NL_QS = 2,
    FM__IQ4_NL_BYTES = 18,

    FM__MXFP4_E = 0, /* u8: exponent, bias 127 */
    FM__MXFP4_QS = 1,
    FM__MXFP4_BYTES = 17,

    FM__Q2_K_SCALES = 0, /* [16]: low nibble scale, high nibble minimum */
    FM__Q2_K_QS = 16,    /* [2][32]: bits 2t of byte (h, j) are element 128h + 32t + j */
    FM__Q2_K_D = 80,
    FM__Q2_K_DMIN = 82,
    FM__Q2_K_BYTES = 84,

    FM__Q3_K_QH = 0,  /* [32]: bit c of byte j is bit 2 of element 32c + j */
    FM__Q3_K_QS = 32, /* as Q2_K */
    FM__Q3_K_SCALES = 96,
    FM__Q3_K_D = 108,
    FM__Q3_K_BYTES = 110,

    FM__Q4_K_D = 0,
    FM__Q4_K_DMIN = 2,
    FM__Q4_K_SCALES = 4,
    FM__Q4_K_QS = 16, /* [4][32]: nibbles of byte (g, j) are elements 64g + j, 64g + 32 + j */
    FM__Q4_K_BYTES = 144,

    FM__Q5_K_D = 0,
    FM__Q5_K_DMIN = 2,
    FM__Q5_K_SCALES = 4,
    FM__Q5_K_QH = 16, /* [32]: bit c of byte j is bit 4 of element 32c + j */
    FM__Q5_K_QS = 48, /* as Q4_K */
    FM__Q5_K_BYTES = 176,

    FM__Q6_K_QS = 0,   /* [2][64]: nibbles of byte (h, j) are elements 128h + j, 128h + 64 + j */
    FM__Q6_K_QH = 128, /* [2][32]: bits 2t of byte (h, j) are bits 4-5 of 128h + 32t + j */
    FM__Q6_K_SCALES = 192, /* int8[16] */
    FM__Q6_K_D = 208,
    FM__Q6_K_BYTES = 210,

    FM__IQ4_XS_D = 0,
    FM__IQ4_XS_SCALES_H = 2, /* u16: bits 2s of sub-block s's bits 4-5 */
    FM__IQ4_XS_SCALES_L = 4, /* [4]: nibbles */
    FM__IQ4_XS_QS = 8,       /* [8][16]: as Q4_0 */
    FM__IQ4_XS_BYTES = 136,

    FM__TQ1_0_QS = 0,  /* [48]: five base-3 digits a byte */
    FM__TQ1_0_QH = 48, /* [4]: four digits a byte */
    FM__TQ1_0_D = 52,
    FM__TQ1_0_BYTES = 54,

    FM__TQ2_0_QS = 0, /* as Q2_K */
    FM__TQ2_0_D = 64,
    FM__TQ2_0_BYTES = 66,
};

/* ---- types.c ---- */

extern const int8_t fm__lut_iq4[16];   /* IQ4_NL, IQ4_XS */
extern const int8_t fm__lut_mxfp4[16]; /* twice the value */

/* ---- decode_*.c, encode_*.c, pack_*.c: the operations of each row of the table ---- */

#define FM__TYPE_OPERATIONS(id, NAME)                                                              \
    void fm__decode_##id(const void *blocks, float *out, size_t n);                                \
    void fm__encode_##id(const float *in, const float *importance, void *blocks, size_t n);        \
    void fm__pack_##id(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel);
FM__TYPE_LIST(FM__TYPE_OPERATIONS)
#undef FM__TYPE_OPERATIONS

/* ---- ternary.c ---- */

/* Codes 0..2 of one TQ1_0 block. */
void fm__tq1_0_codes(const uint8_t *block, uint8_t code[256]);

/* ---- small loads ---- */

FM__INLINE uint16_t fm__load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
FM__INLINE uint32_t fm__load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
FM__INLINE float fm__load_f16(const uint8_t *p) {
    return fm__f16_to_f32(fm__load_u16(p));
}
FM__INLINE void fm__store_u16(uint8_t *p, uint16_t x) {
    p[0] = (uint8_t)x;
    p[1] = (uint8_t)(x >> 8);
}
FM__INLINE void fm__store_u32(uint8_t *p, uint32_t x) {
    fm__store_u16(p, (uint16_t)x);
    fm__store_u16(p + 2, (uint16_t)(x >> 16));
}

/* 2^(e - 128) as bits; e < 2 is subnormal. */
FM__INLINE uint32_t fm__mxfp4_scale_bits(uint8_t e) {
    return e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23;
}

/* ---- packed sub scales ---- */

/* The formats cut 6-bit scales up so that four can be put together at once, one a byte lane. */
FM__INLINE uint32_t fm__load_lanes(const uint8_t *p) {
    uint32_t lanes;
    memcpy(&lanes, p, sizeof lanes);
    return lanes;
}

/* Q4_K, Q5_K: 12 bytes hold 8 scales and 8 minima of 6 bits. The first four of each lie in the low
 * bits of bytes 0-3 and 4-7; the others have their low nibbles in bytes 8-11 and their high two
 * bits on top of the first four. */
FM__INLINE void fm__q4_k_scales(const uint8_t *p, uint8_t scale[8], uint8_t minimum[8]) {
    const uint32_t low = 0x0F0F0F0Fu, high = 0x30303030u, both = low | high;
    uint32_t a = fm__load_lanes(p), b = fm__load_lanes(p + 4), c = fm__load_lanes(p + 8);
    uint32_t s[2] = {a & both, (c & low) | (a >> 2 & high)};
    uint32_t m[2] = {b & both, (c >> 4 & low) | (b >> 2 & high)};
    memcpy(scale, s, sizeof s);
    memcpy(minimum, m, sizeof m);
}

/* Q3_K: 12 bytes hold 16 scales of 6 bits, biased by 32: low nibbles in bytes 0-7 (scale s and
 * s + 8), high two bits in bytes 8-11 (scales s, s + 4, s + 8, s + 12). */
FM__INLINE void fm__q3_k_scales(const uint8_t *p, int8_t scale[16]) {
    uint32_t nibbles[2] = {fm__load_lanes(p), fm__load_lanes(p + 4)};
    uint32_t pairs = fm__load_lanes(p + 8), out[4];
    for (int i = 0; i < 4; i++) {
        uint32_t low = nibbles[i % 2] >> (i / 2 * 4) & 0x0F0F0F0Fu;
        uint32_t x = low | (pairs >> (2 * i) & 0x03030303u) << 4;
        x ^= 0x20202020u; /* minus 32 modulo 64; then bit 5 is the sign */
        uint32_t sign = x & 0x20202020u;
        out[i] = x | sign << 1 | sign << 2;
    }
    memcpy(scale, out, sizeof out);
}

/* IQ4_XS: 8 scales of 6 bits, biased by 32. */
FM__INLINE void fm__iq4_xs_scales(const uint8_t *block, int8_t scale[8]) {
    uint32_t high = fm__load_u16(block + FM__IQ4_XS_SCALES_H);
    for (int s = 0; s < 8; s++) {
        int low = block[FM__IQ4_XS_SCALES_L + s / 2] >> (4 * (s % 2)) & 15;
        scale[s] = (int8_t)((low | (int)(high >> (2 * s) & 3) << 4) - 32);
    }
}
