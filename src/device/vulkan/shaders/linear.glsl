// SPDX-License-Identifier: Apache-2.0
// What the products share: what they are told, where panels, activations and results lie, codes to
// values, integer dots, and what follows a product. Panels and activation rows: src/quant/quant.h.
#extension GL_EXT_control_flow_attributes : require
#include "common.glsl"
#include "numerics.glsl"
#include "dot.glsl"

// Of the weight's type. Each kernel has constants of its own from 10 on.
layout(constant_id = 3) const uint BITS = 4;     // of a code; 16 or 32 of a float
layout(constant_id = 4) const uint OFFSET = 8;   // value = code - OFFSET
layout(constant_id = 5) const uint TABLE = 0;    // 1: IQ4_NL, IQ4_XS, 2: MXFP4; OFFSET is 0 then
layout(constant_id = 6) const uint HAS_MIN = 0;
layout(constant_id = 7) const uint FORM = 0;     // q32: 1: scales are f32; q256: SUB_*; float: FLOAT_*
layout(constant_id = 8) const uint GLU = 0;      // 1: SiLU, 2: GELU
layout(constant_id = 9) const uint SABOTAGE = 0; // 1: wrong on purpose, for the test of the self-test

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    uvec2 weight[2]; // panel 0; [1] of the up matrix of a GLU
    uvec2 bias;      // 0: none
    uint in_slot, in_offset, in_stride;
    uint out_slot, out_offset, out_stride;
    uint add_slot, add_offset, add_stride; // the residual; stride 0: none
    uint n, k, panel_begin, panel_end;
    uint token_begin, token_end, outputs; // 65536ths; token_end 0: all
    uint panel_stride, sub, d, m;         // fm__panel_layout
    uint act_d, act_sum, act_shift;       // fm__act_layout
} push;

const uint MATRICES = GLU != 0 ? 2 : 1;
const uint CHUNK = 32, SEGMENT = 1024, PANEL_ROWS = 16;

// Rows of the run that the op covers.
uvec2 token_range() {
    uint rows = row_count(RunBlock(push.run), push.outputs);
    uint end = push.token_end == 0 ? rows : border(rows, push.token_end);
    return uvec2(border(rows, push.token_begin), end);
}

uvec2 slot(uint index) { return RunBlock(push.run).slots[index]; }

uvec2 panel_at(uint matrix, uint panel) { // a weight may have more than 4 GiB
    uint high, low;
    umulExtended(panel, push.panel_stride, high, low);
    uvec2 base = at(push.weight[matrix], low);
    return uvec2(base.x, base.y + high);
}

// What follows the products of one output: bias, residual, or the gated unit.
void finish(float x, float up, uint row, uint token) {
    if (SABOTAGE != 0 && row % 5 == 3)
        x = uintBitsToFloat(floatBitsToUint(x) ^ 1u);
    if (GLU != 0)
        x = mul(GLU == 1 ? silu(x) : gelu(x), up);
    if (any(notEqual(push.bias, uvec2(0))))
        x = add(x, Floats(push.bias).v[row]);
    if (push.add_stride != 0)
        x = add(x, Floats(at(slot(push.add_slot), push.add_offset + token * push.add_stride)).v[row]);
    Floats(at(slot(push.out_slot), push.out_offset + token * push.out_stride)).v[row] = x;
}

// ---- integer dots of 16 signed bytes ----

int dot16(uvec4 a, uvec4 b, int c) {
    c = dot4(a.x, b.x, c);
    c = dot4(a.y, b.y, c);
    c = dot4(a.z, b.z, c);
    return dot4(a.w, b.w, c);
}

// ---- codes of a chunk to signed bytes ----

const uint RAW = BITS < 8 ? BITS : 8; // words of a chunk that belong to one row

// For a byte of two codes: the value of the low one in bits 0..7, of the high one in 16..23.
shared uint pairs[TABLE != 0 ? 256 : 1];

uint table_value(uint code) {
    const uint iq4[4] = uint[4](0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u);
    const uint mx4[4] = uint[4](0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu);
    uint word = TABLE == 1 ? iq4[code >> 2] : mx4[code >> 2];
    return (word >> 8 * (code & 3)) & 0xFFu;
}

// Before the first unpack(); a barrier must follow.
void fill_table() {
    if (TABLE != 0)
        for (uint i = gl_LocalInvocationIndex; i < 256; i += gl_WorkGroupSize.x)
            pairs[i] = table_value(i & 15) | table_value(i >> 4) << 16;
}

// Codes of elements 4g .. 4g + 3, one a byte.
uint code_group(const uint raw[8], uint g) {
    uint high2 = g >> 1 << 1;
    if (BITS == 8)
        return raw[g];
    if (BITS < 4) {
        uint code = (raw[g & 1] >> high2) & 0x03030303u;
        return BITS == 2 ? code : code | ((raw[2] >> g) & 0x01010101u) << 2;
    }
    uint code = (raw[g & 3] >> (g >> 2 << 2)) & 0x0F0F0F0Fu;
    if (BITS == 5)
        code |= ((raw[4] >> g) & 0x01010101u) << 4;
    if (BITS == 6)
        code |= ((raw[4 + (g & 1)] >> high2) & 0x03030303u) << 4;
    return code;
}

// The values of one row of a chunk, elements 4g .. 4g + 3 in word g.
void unpack(const uint raw[8], out uvec4 low, out uvec4 high) {
    uint value[8];
    if (TABLE != 0) {
        [[unroll]] for (uint v = 0; v < 4; v++) {
            uint w = raw[v];
            uint a = pairs[w & 0xFFu] | pairs[(w >> 8) & 0xFFu] << 8;
            uint b = pairs[(w >> 16) & 0xFFu] | pairs[w >> 24] << 8;
            value[v] = (a & 0xFFFFu) | b << 16;
            value[4 + v] = a >> 16 | (b & 0xFFFF0000u);
        }
    } else {
        [[unroll]] for (uint g = 0; g < 8; g++) {
            uint code = code_group(raw, g);
            // c - OFFSET byte by byte: the top bit keeps a borrow from its neighbour
            value[g] = OFFSET == 0 ? code
                                   : ((code | 0x80808080u) - OFFSET * 0x01010101u) ^ 0x80808080u;
        }
    }
    low = uvec4(value[0], value[1], value[2], value[3]);
    high = uvec4(value[4], value[5], value[6], value[7]);
}

// ---- sub-scales of 256-blocks (FORM) ----

const uint SUB_NONE = 0;    // TQ1_0, TQ2_0
const uint SUB_NIBBLES = 1; // Q2_K: per 16, scale and minimum in one byte
const uint SUB_16 = 2;      // Q3_K, Q6_K: int8 per 16
const uint SUB_MIN = 3;     // Q4_K, Q5_K: scales per 32, then minima
const uint SUB_32 = 4;      // IQ4_XS: int8 per 32

int signed_byte(uint word, uint byte) { return bitfieldExtract(int(word), int(byte) * 8, 8); }
