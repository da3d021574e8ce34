// SPDX-License-Identifier: Apache-2.0
// linear_tile.glsl with float weights.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "linear.glsl"
#include "linear_float.glsl"

layout(constant_id = 13) const uint STEP_K = 16;
#include "linear_tile.glsl"

const uint ROW_WORDS = ROWS * STEP_K / PER_WORD, TOKEN_WORDS = TOKENS * STEP_K / PER_ACT; // of a step
const uint ROW_UNITS = (ROW_WORDS + LANES - 1) / LANES; // words that a lane brings
const uint TOKEN_UNITS = (TOKEN_WORDS + LANES - 1) / LANES;

shared float weights[STEP_K * ROWS];       // (k, row)
shared float activations[STEP_K * TOKENS]; // (k, token)
uint raw_weights[ROW_UNITS], raw_activations[TOKEN_UNITS];

void fetch(uint k) {
    [[unroll]] for (uint u = 0; u < ROW_UNITS; u++) {
        uint i = lane + u * LANES, r;
        uvec2 base = row_base(i % ROWS, r);
        uint word = min(k + i / ROWS * PER_WORD, push.k - 1) / PER_WORD;
        raw_weights[u] = Words(base).v[word * PANEL_ROWS + r];
    }
    [[unroll]] for (uint u = 0; u < TOKEN_UNITS; u++) { // lanes side by side read a token's columns
        uint i = lane + u * LANES, per_token = STEP_K / PER_ACT;
        uint word = min(k + i % per_token * PER_ACT, push.k - 1) / PER_ACT;
        raw_activations[u] = Words(token_base(i / per_token)).v[word];
    }
}

void store(uint k) {
    [[unroll]] for (uint u = 0; u < ROW_UNITS; u++) {
        uint i = lane + u * LANES;
        if (i < ROW_WORDS)
            [[unroll]] for (uint p = 0; p < PER_WORD; p++)
                weights[(i / ROWS * PER_WORD + p) * ROWS + i % ROWS] = weight_of(raw_weights[u], p);
    }
    [[unroll]] for (uint u = 0; u < TOKEN_UNITS; u++) {
        uint i = lane + u * LANES, per_token = STEP_K / PER_ACT;
        if (i < TOKEN_WORDS)
            [[unroll]] for (uint p = 0; p < PER_ACT; p++)
                activations[(i % per_token * PER_ACT + p) * TOKENS + i / per_token] =
                    activation_of(raw_activations[u], p);
    }
}

void multiply(uint k, uint count) {
    for (uint c = 0; c < count; c++) {
        float x[LANE_TOKENS];
        [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++)
            x[j] = activations[c * TOKENS + token_lane + j * TOKEN_LANES];
        [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
            float w = weights[c * ROWS + row_lane + i * ROW_LANES];
            [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++)
                acc[i * LANE_TOKENS + j] = add(acc[i * LANE_TOKENS + j], mul(w, x[j]));
        }
    }
}
