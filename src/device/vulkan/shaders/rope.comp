#version 460
// SPDX-License-Identifier: Apache-2.0
// ROPE, in place, a pair a lane; grid of (tiles of pairs) x rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"

layout(constant_id = 3) const uint HALVES = 0; // pair i is (i, i + rotary / 2), else (2i, 2i + 1)

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place x;
    uvec2 cos, sin; // tables (positions, rotary / 2)
    uint heads, head_dim, half_rotary;
} push;

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, pair = gl_GlobalInvocationID.x, n = push.half_rotary;
    if (!own_row(run, push.rows, row) || pair >= push.heads * n)
        return;
    uint head = pair / n, i = pair % n, base = head * push.head_dim;
    uint first = base + (HALVES != 0 ? i : 2 * i), second = first + (HALVES != 0 ? n : 1);
    uint position = Words(run.position).v[row];
    float c = Floats(element(push.cos, position, 4 * n)).v[i];
    float s = Floats(element(push.sin, position, 4 * n)).v[i];
    Floats x = Floats(row_at(run, push.x, row));
    float a = x.v[first], b = x.v[second];
    x.v[first] = sub(mul(a, c), mul(b, s));
    x.v[second] = add(mul(a, s), mul(b, c));
}
