#version 460
// SPDX-License-Identifier: Apache-2.0
// RMSNORM, and the QUANTISE of its output where that follows.
//
// Groups of a row apart (WHOLE_ROW 0): 64 lanes a group, four groups a workgroup, grid of (groups / 4) x
// rows. One group a row: LANES lanes, each taking four columns of a tile; grid of 1 x rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"

layout(constant_id = 3) const uint LANES = 256; // of a workgroup
layout(constant_id = 4) const uint ACT = 4;     // of the quantised row
layout(constant_id = 5) const uint WHOLE_ROW = 1;
layout(constant_id = 6) const uint NORMED = 1;    // the normed floats are stored
layout(constant_id = 7) const uint QUANTISED = 0; // they are stored quantised (WHOLE_ROW only)
#include "quantise.glsl"

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place from, to;
    uvec2 weight;
    uint group; // columns of one
    uint columns;
    float eps, inv_n;
    Place quantised;
    ActRow parts;
    uint quantise_op;
} push;

// The 64 sums of squares of each group, and what is left of them after three levels of the tree.
shared float lane_sums[4 * 64];
shared float eighths[4 * 8];
shared vec4 tile[WHOLE_ROW != 0 ? LANES : 1];

// From the 64 sums in lane_sums (written before a barrier by the caller) to the scale, in every lane.
float tree_scale(uint group, uint lane) {
    uint s = 64 * group + lane;
    if (lane < 8) {
        float a = add(lane_sums[s], lane_sums[s + 32]);
        float b = add(lane_sums[s + 8], lane_sums[s + 40]);
        float c = add(lane_sums[s + 16], lane_sums[s + 48]);
        float d = add(lane_sums[s + 24], lane_sums[s + 56]);
        eighths[8 * group + lane] = add(add(a, c), add(b, d));
    }
    barrier();
    uint t = 8 * group;
    float a = add(eighths[t], eighths[t + 4]), b = add(eighths[t + 1], eighths[t + 5]);
    float c = add(eighths[t + 2], eighths[t + 6]), d = add(eighths[t + 3], eighths[t + 7]);
    float sum = add(add(a, c), add(b, d));
    return rsqrt(add(mul(sum, push.inv_n), push.eps));
}

void groups_apart(RunBlock run, uint row) {
    uint lane = gl_LocalInvocationID.x, own = gl_LocalInvocationID.y;
    uint first = (4 * gl_WorkGroupID.x + own) * push.group; // column
    uint n = first < push.columns ? push.group : 0;
    Floats from = Floats(at(row_at(run, push.from, row), 4 * first));
    Floats to = Floats(at(row_at(run, push.to, row), 4 * first));
    Floats weight = Floats(push.weight);
    float s = 0.0;
    for (uint i = lane; i < n; i += 64)
        s = add(s, mul(from.v[i], from.v[i]));
    lane_sums[64 * own + lane] = s;
    barrier();
    float scale = tree_scale(own, lane);
    for (uint i = lane; i < n; i += 64)
        to.v[i] = mul(mul(from.v[i], scale), weight.v[i]);
}

vec4 load(uvec2 from, uint column) {
    if (column >= push.columns)
        return vec4(0);
    return uintBitsToFloat(Quads(from).v[column / 4]);
}

// The 64 sums of squares of the whole row: tiles of it pass through shared memory, so that many lanes load
// what 64 add up.
void row_sums(uvec2 from) {
    uint lane = gl_LocalInvocationID.x;
    float s = 0.0;
    for (uint begin = 0; begin < push.columns; begin += 4 * LANES) {
        tile[lane] = load(from, begin + 4 * lane);
        barrier();
        uint n = min(4 * LANES, push.columns - begin); // a tile is a multiple of 64 columns
        if (lane < 64) {
            for (uint i = lane; i < n; i += 64) {
                float x = tile[i / 4][i % 4];
                s = add(s, mul(x, x));
            }
        }
        barrier();
    }
    if (lane < 64)
        lane_sums[lane] = s;
    barrier();
}

void whole_row(RunBlock run, uint row) {
    uint lane = gl_LocalInvocationID.x;
    uvec2 from = row_at(run, push.from, row), to = row_at(run, push.to, row);
    uvec2 quantised = QUANTISED != 0 ? row_at(run, push.quantised, row) : uvec2(0);
    Floats weight = Floats(push.weight);
    row_sums(from);
    float scale = tree_scale(0, lane);
    bool failed = false;
    for (uint begin = 0; begin < push.columns; begin += 4 * LANES) {
        uint column = begin + 4 * lane;
        vec4 x = load(from, column);
        for (uint j = 0; j < 4; j++)
            if (column + j < push.columns)
                x[j] = mul(mul(x[j], scale), weight.v[column + j]);
        if (NORMED != 0 && column < push.columns)
            Quads(to).v[column / 4] = floatBitsToUint(x);
        if (QUANTISED != 0)
            failed = quantise_tile(quantised, push.parts, column, push.columns, x) || failed;
    }
    if (failed)
        fail(run, push.quantise_op, push.rows.outputs != 0 ? Words(run.output_row).v[row] : row);
}

void main() {
    RunBlock run = RunBlock(push.run);
    uint row;
    if (!own_row(run, push.rows, row))
        return;
    if (WHOLE_ROW != 0)
        whole_row(run, row);
    else
        groups_apart(run, row);
}
