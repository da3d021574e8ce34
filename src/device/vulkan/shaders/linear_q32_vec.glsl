// SPDX-License-Identifier: Apache-2.0
// linear_vec.glsl with blocks of 32.
#include "linear.glsl"

const uint BLOCK_CHUNKS = 1, SUB_QUADS = 0, D_QUADS = FORM == 1 ? 4 : 2, M_QUADS = 2 * HAS_MIN;
const uint COMBINES = 0;
#include "linear_vec.glsl"

const uint PRODUCTS = TOKENS * ROUND * PANEL_ROWS; // (token, chunk, row)
shared float products[2 * PRODUCTS];
shared float minima[HAS_MIN != 0 ? 2 * PRODUCTS : 1];

uint product_at(Step s, uint token, uint chunk, uint row) {
    return s.half_ * PRODUCTS + (token * ROUND + chunk) * PANEL_ROWS + row;
}

void multiply(Step s, uint chunk, uint row) {
    uvec4 low, high;
    staged_row(s, chunk, row, low, high);
    float dw = FORM == 1 ? uintBitsToFloat(staged(s, D_AT + chunk * PANEL_ROWS + row))
                         : staged_half(s, D_AT, chunk, row);
    float m = HAS_MIN != 0 ? staged_half(s, M_AT, chunk, row) : 0.0;
    uint c = s.chunk + chunk;
    [[unroll]] for (uint t = 0; t < (ROLLED != 0 ? count : TOKENS); t++)
        if (t < count) {
            uvec2 token = at(tokens_at, t * push.in_stride);
            Quads q = Quads(at(token, c * CHUNK));
            int isum = dot16(high, q.v[1], dot16(low, q.v[0], 0)); // |isum| <= 32 * 128 * 127 < 2^24
            float da = Floats(at(token, push.act_d)).v[c];
            products[product_at(s, t, chunk, row)] = mul(float(isum), mul(dw, da));
            if (HAS_MIN != 0) {
                int sum = int(int16_t(Halves(at(token, push.act_sum)).v[c]));
                minima[product_at(s, t, chunk, row)] = mul(float(sum), mul(m, da));
            }
        }
}

void combine(Step s) {}

float take(Step s, uint token, uint row, float acc) {
    uint i = product_at(s, token, 0, row);
    if (s.count == ROUND) { // the usual case: a known count lets the loads run ahead of the adds
        [[unroll]] for (uint c = 0; c < ROUND; c++, i += PANEL_ROWS) {
            acc = add(acc, products[i]);
            if (HAS_MIN != 0)
                acc = add(acc, minima[i]);
        }
        return acc;
    }
    for (uint c = 0; c < s.count; c++, i += PANEL_ROWS) {
        acc = add(acc, products[i]);
        if (HAS_MIN != 0)
            acc = add(acc, minima[i]);
    }
    return acc;
}
