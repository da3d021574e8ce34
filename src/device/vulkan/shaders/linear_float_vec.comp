// SPDX-License-Identifier: Apache-2.0
// Products of float weights for few tokens. A workgroup takes one panel: a lane adds up one row over SLICE
// columns for each token, and a lane for each (row, token) adds the slices in ascending order. Exact: a slice
// is a segment. Fast: slices may be shorter, for more lanes.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "linear.glsl"
#include "linear_float.glsl"

layout(constant_id = 10) const uint TOKENS = 1;   // 16 * TOKENS <= workgroup size
layout(constant_id = 11) const uint SLICE = 1024; // columns, a multiple of 8
layout(constant_id = 12) const uint WIDE = 8; // constant for the device only: glslc's unrolling drops NoContraction

const uint LANES = gl_WorkGroupSize.x; // a multiple of 16
const uint SLICES = LANES / PANEL_ROWS; // at once

shared float sums[TOKENS * SLICES * PANEL_ROWS]; // (token, slice, row)

uint first, count; // tokens of this workgroup
uvec2 tokens_at;   // its first row of activations
float acc[TOKENS];

void step_8(uvec2 base, uint k, uint row) { // columns k .. k + 7
    Words at_ = Words(base);
    uint w[8];
    [[unroll]] for (uint i = 0; i < WIDE / PER_WORD; i++)
        w[i] = at_.v[(k / PER_WORD + i) * PANEL_ROWS + row];
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        if (t < count) {
            Quads x = Quads(at(tokens_at, t * push.in_stride + k * 4 / PER_ACT));
            uvec4 x0 = x.v[0], x1 = ACT_BF16 ? uvec4(0) : x.v[1];
            [[unroll]] for (uint i = 0; i < WIDE; i++) {
                uint at_word = i / PER_ACT, word = at_word < 4 ? x0[at_word] : x1[at_word & 3];
                acc[t] = add(acc[t], mul(weight_of(w[i / PER_WORD], i), activation_of(word, i)));
            }
        }
}

void step_1(uvec2 base, uint k, uint row) {
    uint w = Words(base).v[k / PER_WORD * PANEL_ROWS + row];
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        if (t < count) {
            uint x = Words(at(tokens_at, t * push.in_stride)).v[k / PER_ACT];
            acc[t] = add(acc[t], mul(weight_of(w, k), activation_of(x, k)));
        }
}

void main() {
    uvec2 range = token_range();
    uint lane = gl_LocalInvocationIndex, panel = push.panel_begin + gl_WorkGroupID.y;
    first = range.x + gl_WorkGroupID.x * TOKENS;
    if (first >= range.y)
        return;
    count = min(TOKENS, range.y - first);
    tokens_at = at(slot(push.in_slot), push.in_offset + first * push.in_stride);
    uint row = lane % PANEL_ROWS, own = lane / PANEL_ROWS; // own: slice, and token when adding
    uint slices = (push.k + SLICE - 1) / SLICE;
    float total = 0.0, gate = 0.0;
    for (uint m = 0; m < MATRICES; m++) {
        uvec2 base = panel_at(m, panel);
        gate = total;
        for (uint s = 0; s < slices; s += SLICES) {
            uint k = (s + own) * SLICE, end = min(k + SLICE, push.k);
            [[unroll]] for (uint t = 0; t < TOKENS; t++)
                acc[t] = 0.0;
            for (; k + 8 <= end; k += 8)
                step_8(base, k, row);
            for (; k < end; k++)
                step_1(base, k, row);
            [[unroll]] for (uint t = 0; t < TOKENS; t++)
                sums[(t * SLICES + own) * PANEL_ROWS + row] = acc[t];
            barrier();
            if (own < count)
                for (uint i = 0; i < min(SLICES, slices - s); i++) {
                    float x = sums[(own * SLICES + i) * PANEL_ROWS + row];
                    total = s + i == 0 ? x : add(total, x);
                }
            barrier();
        }
    }
    uint n = panel * PANEL_ROWS + row;
    if (own < count && n < push.n)
        finish(GLU != 0 ? gate : total, total, n, first + own);
}
