#version 460
// SPDX-License-Identifier: Apache-2.0
// Key blocks that attention.comp left apart, merged in ascending order; grid of heads x rows, a lane per dim.
// The maxima are exact, so that all factors of LANES blocks come at once; the sums are then one chain.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"
#include "cache.glsl"

layout(constant_id = 3) const uint LANES = 128;
layout(constant_id = 4) const uint VALUE_DIM = 64;

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place to;
    uint window; // 0: none
    uint heads, head_begin;
    uint blocks; // of a row, at most
    uvec2 parts; // (rows, heads, blocks) of VALUE_DIM + 2 floats: o, m, l
} push;

const uint DIMS = (VALUE_DIM + LANES - 1) / LANES; // of a lane
const uint DEPTH = 4;                              // parts that a lane has in flight

shared float m_of[LANES], l_of[LANES], alpha[LANES], beta[LANES];

float total[DIMS];

Floats part_at(uint first, uint block) { return Floats(element(push.parts, first + block, 4 * (VALUE_DIM + 2))); }

// The factors of block `begin + lane`; m: the largest before `begin`.
void factors(uint begin, float m) {
    uint lane = gl_LocalInvocationID.x;
    for (uint i = 0; i < lane; i++)
        m = begin + i == 0 || !(m > m_of[i]) ? m_of[i] : m;
    float most = m > m_of[lane] ? m : m_of[lane];
    alpha[lane] = exp_softmax(sub(m, most));
    beta[lane] = exp_softmax(sub(m_of[lane], most));
}

void merge_part(float value, uint d, uint i, bool first) {
    float merged = keep(add(mul(total[d], alpha[i]), mul(value, beta[i])));
    total[d] = first ? value : merged;
}

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, lane = gl_LocalInvocationID.x;
    if (!own_row(run, push.rows, row))
        return;
    uint position = Words(run.position).v[row], head = push.head_begin + gl_WorkGroupID.x;
    uint first_key = push.window != 0 && position + 1 > push.window ? position + 1 - push.window : 0;
    uint n = position / KEY_BLOCK - first_key / KEY_BLOCK + 1;
    uint first = (row * push.heads + head) * push.blocks;
    float m = 0.0, l = 0.0;
    for (uint begin = 0; begin < n; begin += LANES) {
        uint end = min(LANES, n - begin);
        if (lane < end) {
            Floats part = part_at(first, begin + lane);
            m_of[lane] = part.v[VALUE_DIM];
            l_of[lane] = part.v[VALUE_DIM + 1];
        }
        barrier();
        if (lane < end)
            factors(begin, m);
        barrier();
        for (uint i = 0; i < end; i += DEPTH) {
            float held[DEPTH * DIMS];
            for (uint j = 0; j < DEPTH; j++)
                for (uint d = 0; d < DIMS; d++)
                    if (i + j < end && lane + d * LANES < VALUE_DIM)
                        held[j * DIMS + d] = part_at(first, begin + i + j).v[lane + d * LANES];
            for (uint j = 0; j < DEPTH; j++) {
                if (i + j >= end)
                    break;
                bool start = begin + i + j == 0;
                for (uint d = 0; d < DIMS; d++)
                    merge_part(held[j * DIMS + d], d, i + j, start);
                l = start ? l_of[0] : add(mul(l, alpha[i + j]), mul(l_of[i + j], beta[i + j]));
                m = start || !(m > m_of[i + j]) ? m_of[i + j] : m;
            }
        }
        barrier();
    }
    Floats to = Floats(row_at(run, push.to, row));
    float inverse = rcp(l);
    for (uint d = 0; d < DIMS; d++)
        if (lane + d * LANES < VALUE_DIM)
            to.v[head * VALUE_DIM + lane + d * LANES] = mul(total[d], inverse);
}
