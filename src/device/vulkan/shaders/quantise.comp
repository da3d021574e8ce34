#version 460
// SPDX-License-Identifier: Apache-2.0
// QUANTISE: grid of (tiles of 4 * LANES columns) x rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"

layout(constant_id = 3) const uint LANES = 256;
layout(constant_id = 4) const uint ACT = 4;
#include "quantise.glsl"

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place from, to;
    ActRow parts;
    uint columns;
} push;

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, column = 4 * gl_GlobalInvocationID.x;
    if (!own_row(run, push.rows, row))
        return;
    vec4 x = vec4(0);
    if (column < push.columns)
        x = uintBitsToFloat(Quads(row_at(run, push.from, row)).v[column / 4]);
    if (quantise_tile(row_at(run, push.to, row), push.parts, column, push.columns, x))
        fail(run, push.rows.op, push.rows.outputs != 0 ? Words(run.output_row).v[row] : row);
}
