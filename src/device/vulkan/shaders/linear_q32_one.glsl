// SPDX-License-Identifier: Apache-2.0
// linear_one.glsl with blocks of 32: a lane multiplies four rows of a chunk.
#include "linear.glsl"

const uint COMBINES = 0;
#include "linear_one.glsl"

shared vec4 products[2 * SECTION * 4]; // [half][chunk][four rows]
shared vec4 minima[HAS_MIN != 0 ? 2 * SECTION * 4 : 1];

// The scales of four rows.
vec4 scales_of(uvec2 base, uint region, uint at_) {
    Words w = Words(at(base, region));
    return vec4(f16_f32(w.v[2 * at_] & 0xFFFFu), f16_f32(w.v[2 * at_] >> 16),
                f16_f32(w.v[2 * at_ + 1] & 0xFFFFu), f16_f32(w.v[2 * at_ + 1] >> 16));
}

void multiply(uvec2 base, uint chunk, uint count, uint half_) {
    uint quad = lane % 4;
    for (uint c = lane / 4; c < count; c += LANES / 4) {
        uint at_ = (chunk + c) * 4 + quad;
        uvec4 words[RAW];
        [[unroll]] for (uint v = 0; v < RAW; v++)
            words[v] = Quads(base).v[(chunk + c) * 4 * BITS + 4 * v + quad];
        Quads q = Quads(at(token, (chunk + c) * CHUNK));
        float da = Floats(at(token, push.act_d)).v[chunk + c];
        vec4 dw = FORM == 1 ? uintBitsToFloat(Quads(at(base, push.d)).v[at_]) : scales_of(base, push.d, at_);
        vec4 isum;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uint raw[8];
            uvec4 low, high;
            [[unroll]] for (uint v = 0; v < RAW; v++)
                raw[v] = words[v][j];
            unpack(raw, low, high);
            isum[j] = float(dot16(high, q.v[1], dot16(low, q.v[0], 0))); // |isum| <= 32 * 128 * 127 < 2^24
        }
        products[half_ * SECTION * 4 + c * 4 + quad] = mul(isum, mul(dw, vec4(da)));
        if (HAS_MIN != 0) {
            float sum = float(int(int16_t(Halves(at(token, push.act_sum)).v[chunk + c])));
            minima[half_ * SECTION * 4 + c * 4 + quad] =
                mul(vec4(sum), mul(scales_of(base, push.m, at_), vec4(da)));
        }
    }
}

void combine(uint count) {}

float add_chunk(uint at_, float acc) {
    acc = add(acc, products[at_][lane & 3]);
    return HAS_MIN != 0 ? add(acc, minima[at_][lane & 3]) : acc;
}

float take(uint chunk, uint count, uint half_, float acc) {
    uint at_ = half_ * SECTION * 4 + chunk * 4 + (lane >> 2);
    if (count == PART) { // the usual case: a known count lets the loads run ahead of the adds
        [[unroll]] for (uint c = 0; c < PART; c++)
            acc = add_chunk(at_ + 4 * c, acc);
        return acc;
    }
    for (uint c = 0; c < count; c++)
        acc = add_chunk(at_ + 4 * c, acc);
    return acc;
}
