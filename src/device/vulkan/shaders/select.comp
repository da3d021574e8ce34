#version 460
// SPDX-License-Identifier: Apache-2.0
// SELECT: rows that want output, 16 bytes a lane; grid of (tiles of a row) x rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place from, to; // of one stride
} push;

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, i = gl_GlobalInvocationID.x;
    if (!own_row(run, push.rows, row) || 16 * i >= push.to.stride)
        return;
    Quads from = Quads(row_at(run, push.from, Words(run.output_row).v[row]));
    Quads(row_at(run, push.to, row)).v[i] = from.v[i];
}
