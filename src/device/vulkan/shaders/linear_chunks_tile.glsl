// SPDX-License-Identifier: Apache-2.0
// linear_chunks.glsl by lanes.
//
// Included by linear_q32.glsl and linear_q256.glsl.

layout(constant_id = 13) const uint STEP = 2; // chunks; divides 8
const uint STEP_K = STEP * CHUNK;
#include "linear_tile.glsl"
#include "linear_chunks.glsl"

shared uvec4 weights[2 * STEP * ROWS];       // (chunk, half, row): 16 values each
shared uvec4 activations[2 * STEP * TOKENS]; // (chunk, half, token)
shared uvec2 row_words[STEP * ROWS];         // (chunk, row): what else a chunk needs
shared uvec2 token_words[STEP * TOKENS];

void put_row(uint c, uint row, uvec4 low, uvec4 high, uvec2 words) {
    weights[2 * c * ROWS + row] = low;
    weights[(2 * c + 1) * ROWS + row] = high;
    row_words[c * ROWS + row] = words;
}

void put_token(uint c, uint token, uvec4 low, uvec4 high, uvec2 words) {
    activations[2 * c * TOKENS + token] = low;
    activations[(2 * c + 1) * TOKENS + token] = high;
    token_words[c * TOKENS + token] = words;
}
