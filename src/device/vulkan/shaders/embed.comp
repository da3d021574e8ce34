#version 460
// SPDX-License-Identifier: Apache-2.0
// EMBED: rows of a table in the file's form to floats, as src/quant/decode_*.c does (offsets of a block's
// fields: src/quant/block.h). Four columns a lane; grid of (tiles of columns) x rows. Blocks are unaligned:
// they are read byte by byte.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"

layout(constant_id = 3) const uint TYPE = 0; // index in FM__TYPE_LIST
layout(constant_id = 4) const uint BLOCK = 1;
layout(constant_id = 5) const uint BLOCK_BYTES = 4;

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place to;
    uvec2 table;
    uint row_bytes, columns;
} push;

const uint F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q5_0 = 6, Q5_1 = 7, IQ4_NL = 8,
           MXFP4 = 9, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_XS = 15, TQ1_0 = 16,
           TQ2_0 = 17;
const int IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int FP4_DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

uint byte(Bytes b, uint i) { return uint(b.v[i]); }
int signed_byte(Bytes b, uint i) { return int(byte(b, i) << 24) >> 24; }
uint word16(Bytes b, uint i) { return byte(b, i) | (byte(b, i + 1) << 8); }
uint word32(Bytes b, uint i) { return word16(b, i) | (word16(b, i + 2) << 16); }
float half16(Bytes b, uint i) { return f16_f32(word16(b, i)); }

// Elements j and j + 16 of a block of 32 in the nibbles of byte j.
uint nibble(Bytes b, uint qs, uint e) { return (byte(b, qs + e % 16) >> (e / 16 * 4)) & 15u; }
// Two bits of element e of 256: bits 2t of byte (h, j) are element 128h + 32t + j.
uint pair(Bytes b, uint qs, uint e) { return (byte(b, qs + e / 128 * 32 + e % 32) >> (e % 128 / 32 * 2)) & 3u; }
// Nibble of element e of 256: those of byte (g, j) are elements 64g + j and 64g + 32 + j.
uint nibble256(Bytes b, uint qs, uint e) { return (byte(b, qs + e / 64 * 32 + e % 32) >> (e / 32 % 2 * 4)) & 15u; }

float decode_32(Bytes b, uint e) {
    if (TYPE == Q8_0)
        return mul(half16(b, 0), float(signed_byte(b, 2 + e)));
    if (TYPE == Q4_0)
        return mul(half16(b, 0), float(int(nibble(b, 2, e)) - 8));
    if (TYPE == Q4_1)
        return add(mul(half16(b, 0), float(nibble(b, 4, e))), half16(b, 2));
    if (TYPE == IQ4_NL)
        return mul(half16(b, 0), float(IQ4_LEVELS[nibble(b, 2, e)]));
    uint qh = TYPE == Q5_0 ? 2 : 4;
    uint code = nibble(b, qh + 4, e) | (((word32(b, qh) >> e) & 1u) << 4);
    if (TYPE == Q5_0)
        return mul(half16(b, 0), float(int(code) - 16));
    return add(mul(half16(b, 0), float(code)), half16(b, 2));
}

// An integer times 2^(e - 128). Where that may be subnormal it is built from its bits.
float decode_mxfp4(Bytes b, uint e) {
    int level = FP4_DOUBLED[nibble(b, 1, e)];
    uint exponent = byte(b, 0);
    if (exponent >= 8)
        return mul(uintBitsToFloat((exponent - 1) << 23), float(level));
    uint units = uint(abs(level)) << (21 + exponent); // of 2^-149
    uint bits = units < 0x800000u ? units : floatBitsToUint(float(units)) - (149u << 23);
    return uintBitsToFloat(bits | (level < 0 ? 0x80000000u : 0u));
}

// Scale (x) and minimum (y) of sub-block s of Q4_K and Q5_K: 6 bits each in 12 bytes.
uvec2 scale_minimum(Bytes b, uint at, uint s) {
    if (s < 4)
        return uvec2(byte(b, at + s), byte(b, at + 4 + s)) & 63u;
    uint low = byte(b, at + 4 + s);
    return uvec2((low & 15u) | (byte(b, at + s - 4) >> 6 << 4), (low >> 4) | (byte(b, at + s) >> 6 << 4));
}

float minus_minimum(Bytes b, uint d, uint scale, uint code, uint minimum) {
    float product = mul(mul(half16(b, d), float(scale)), float(code));
    return sub(product, mul(half16(b, d + 2), float(minimum)));
}

float decode_q3_k(Bytes b, uint e) {
    uint s = e / 16; // its scale: a low nibble and two bits, biased by 32
    uint low = (byte(b, 96 + s % 8) >> (s / 8 * 4)) & 15u;
    uint high = (byte(b, 104 + s % 4) >> (s / 4 * 2)) & 3u;
    uint code = pair(b, 32, e) | (((byte(b, e % 32) >> (e / 32)) & 1u) << 2);
    return mul(mul(half16(b, 108), float(int(low | (high << 4)) - 32)), float(int(code) - 4));
}

float decode_q6_k(Bytes b, uint e) {
    uint low = (byte(b, e / 128 * 64 + e % 64) >> (e / 64 % 2 * 4)) & 15u;
    uint code = low | (pair(b, 128, e) << 4);
    return mul(mul(half16(b, 208), float(signed_byte(b, 192 + e / 16))), float(int(code) - 32));
}

float decode_iq4_xs(Bytes b, uint e) {
    uint s = e / 32;
    uint low = (byte(b, 4 + s / 2) >> (s % 2 * 4)) & 15u, high = (word16(b, 2) >> (2 * s)) & 3u;
    float scale = mul(half16(b, 0), float(int(low | (high << 4)) - 32));
    return mul(scale, float(IQ4_LEVELS[nibble(b, 8 + 16 * s, e % 32)]));
}

// Base-3 digits: three runs of bytes hold elements 0-159, 160-239 and 240-255.
float decode_tq1_0(Bytes b, uint e) {
    uint begin = e < 160 ? 0 : e < 240 ? 160 : 240, n = e < 160 ? 32 : e < 240 ? 16 : 4;
    uint at = e < 160 ? 0 : e < 240 ? 32 : 48, digit = (e - begin) / n;
    uint power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    uint fraction = (byte(b, at + (e - begin) % n) * power) & 255u;
    return mul(half16(b, 52), float(int(fraction * 3 >> 8) - 1));
}

float decode_256(Bytes b, uint e) {
    if (TYPE == Q2_K) {
        uint scales = byte(b, e / 16);
        return minus_minimum(b, 80, scales & 15u, pair(b, 16, e), scales >> 4);
    }
    if (TYPE == Q3_K)
        return decode_q3_k(b, e);
    if (TYPE == Q4_K) {
        uvec2 s = scale_minimum(b, 4, e / 32);
        return minus_minimum(b, 0, s.x, nibble256(b, 16, e), s.y);
    }
    if (TYPE == Q5_K) {
        uvec2 s = scale_minimum(b, 4, e / 32);
        uint high = (byte(b, 16 + e % 32) >> (e / 32)) & 1u;
        return minus_minimum(b, 0, s.x, nibble256(b, 48, e) | (high << 4), s.y);
    }
    if (TYPE == Q6_K)
        return decode_q6_k(b, e);
    if (TYPE == IQ4_XS)
        return decode_iq4_xs(b, e);
    if (TYPE == TQ1_0)
        return decode_tq1_0(b, e);
    return mul(half16(b, 64), float(int(pair(b, 0, e)) - 1)); // TQ2_0
}

float decode(uvec2 row, uint column) {
    Bytes b = Bytes(at(row, column / BLOCK * BLOCK_BYTES));
    uint e = column % BLOCK;
    if (TYPE == F32)
        return uintBitsToFloat(word32(b, 0));
    if (TYPE == F16)
        return half16(b, 0);
    if (TYPE == BF16)
        return bf16_f32(word16(b, 0));
    if (TYPE == MXFP4)
        return decode_mxfp4(b, e);
    return BLOCK == 32 ? decode_32(b, e) : decode_256(b, e);
}

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, column = 4 * gl_GlobalInvocationID.x;
    if (!own_row(run, push.rows, row) || column >= push.columns)
        return;
    uvec2 from = element(push.table, Words(run.token).v[row], push.row_bytes);
    uvec4 bits = uvec4(0);
    for (uint j = 0; j < 4 && column + j < push.columns; j++)
        bits[j] = floatBitsToUint(decode(from, column + j));
    Quads(row_at(run, push.to, row)).v[column / 4] = bits;
}
