#version 460
// SPDX-License-Identifier: Apache-2.0
// GLU: f(gate) * up, four columns a lane; grid of (tiles of columns) x rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"

layout(constant_id = 3) const uint GELU = 0; // else SiLU

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place gate, up, to;
    uint columns;
} push;

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, column = 4 * gl_GlobalInvocationID.x;
    if (!own_row(run, push.rows, row) || column >= push.columns)
        return;
    vec4 gate = uintBitsToFloat(Quads(row_at(run, push.gate, row)).v[column / 4]);
    vec4 up = uintBitsToFloat(Quads(row_at(run, push.up, row)).v[column / 4]), y;
    for (uint j = 0; j < 4; j++)
        y[j] = mul(GELU != 0 ? gelu(gate[j]) : silu(gate[j]), up[j]);
    Quads(row_at(run, push.to, row)).v[column / 4] = floatBitsToUint(y);
}
