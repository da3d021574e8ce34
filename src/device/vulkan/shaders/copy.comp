#version 460
// SPDX-License-Identifier: Apache-2.0
// Copies of a tensor's rows (or of a range of their columns) between its two instances, with many
// loads in flight, since one side may lie behind a slow link. Units are of 16 or 4 bytes.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"

layout(constant_id = 3) const uint WIDE = 1; // a unit is 16 bytes, else 4

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place from, to;
    uint first; // unit of a row
    uint units; // of a row
} push;

const uint DEPTH = 8; // loads that a lane has in flight

// Other units write the mirror while work that was submitted before is still to read it.
layout(buffer_reference, scalar, buffer_reference_align = 16) volatile buffer FreshQuads { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) volatile buffer FreshWords { uint v[]; };

uvec4 load(uvec2 from, uint unit) {
    return WIDE != 0 ? FreshQuads(from).v[unit] : uvec4(FreshWords(from).v[unit]);
}

void store(uvec2 to, uint unit, uvec4 value) {
    if (WIDE != 0)
        Quads(to).v[unit] = value;
    else
        Words(to).v[unit] = value.x;
}

void main() {
    RunBlock run = RunBlock(push.run);
    uint lanes = gl_WorkGroupSize.x, n = row_count(run, push.rows.outputs);
    uint row_begin = border(n, push.rows.begin), row_end = border(n, push.rows.end);
    uvec2 from = row_at(run, push.from, row_begin), to = row_at(run, push.to, row_begin);
    uint total = (row_end - row_begin) * push.units, tile = lanes * DEPTH;
    for (uint t = gl_WorkGroupID.x * tile; t < total; t += gl_NumWorkGroups.x * tile) {
        uvec4 held[DEPTH];
        for (uint d = 0; d < DEPTH; d++) {
            uint i = t + d * lanes + gl_LocalInvocationID.x, row = i / push.units;
            if (i < total)
                held[d] =
                    load(element(from, row, push.from.stride), push.first + i - row * push.units);
        }
        for (uint d = 0; d < DEPTH; d++) {
            uint i = t + d * lanes + gl_LocalInvocationID.x, row = i / push.units;
            if (i < total)
                store(element(to, row, push.to.stride), push.first + i - row * push.units, held[d]);
        }
    }
}
