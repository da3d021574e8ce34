/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/decode_lut.c: types whose codes look up a level: IQ4_NL, IQ4_XS, MXFP4.
 *
 * Owns: nothing. Never does: anything but the products below in fp32. Called from: any thread.
 */
#include "quant/block.h"

/* 16 bytes of nibbles, elements j and j + 16 in byte j. */
static void decode_nibbles(const uint8_t *qs, const int8_t *lut, float scale, float *out) {
    for (int j = 0; j < 16; j++) {
        out[j] = scale * (float)lut[qs[j] & 15];
        out[16 + j] = scale * (float)lut[qs[j] >> 4];
    }
}

void fm__decode_iq4_nl(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__IQ4_NL_BYTES)
        decode_nibbles(b + FM__IQ4_NL_QS, fm__lut_iq4, fm__load_f16(b + FM__IQ4_NL_D), out + i);
}

void fm__decode_mxfp4(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 32, b += FM__MXFP4_BYTES) {
        float d = fm__bits_f32(fm__mxfp4_scale_bits(b[FM__MXFP4_E]));
        decode_nibbles(b + FM__MXFP4_QS, fm__lut_mxfp4, d, out + i);
    }
}

void fm__decode_iq4_xs(const void *blocks, float *out, size_t n) {
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += 256, b += FM__IQ4_XS_BYTES) {
        float d = fm__load_f16(b + FM__IQ4_XS_D);
        int8_t scale[8];
        fm__iq4_xs_scales(b, scale);
        for (int s = 0; s < 8; s++)
            decode_nibbles(b + FM__IQ4_XS_QS + 16 * s, fm__lut_iq4, d * (float)scale[s],
                           out + i + 32 * s);
    }
}
