/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/half.c: 16-bit floats by integer operations.
 *
 * Owns: nothing. Never does: using the processor's conversions, whose treatment of subnormals
 * depends on modes that another library may have set. Called from: every thread.
 */
#include "base/base.h"

float fm__f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;
    if (exponent == 31)
        return fm__bits_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        if (mantissa == 0)
            return fm__bits_f32(sign);
        int shift = __builtin_clz(mantissa) - 21; /* brings the leading one to bit 10 */
        mantissa = mantissa << shift & 0x3ff;
        exponent = (uint32_t)(1 - shift);
    }
    /* exponent may have wrapped below zero; the sum with the bias difference is positive again */
    return fm__bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t fm__f32_to_f16(float f) {
    uint32_t bits = fm__f32_bits(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN: quiet, the payload's upper bits kept */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {    /* below 2^-14: a multiple of 2^-24 */
        if (magnitude <= 0x33000000u) /* up to 2^-25, a tie with zero */
            return (uint16_t)sign;
        uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        uint32_t shift = 126 - (magnitude >> 23); /* 14..24 */
        uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1);
        uint32_t half = 1u << (shift - 1);
        kept += rest > half || (rest == half && (kept & 1));
        return (uint16_t)(sign | kept);
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - (112u << 23)) >> 13);
}

uint16_t fm__f32_to_bf16(float f) {
    uint32_t bits = fm__f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
