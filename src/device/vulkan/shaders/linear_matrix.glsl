// SPDX-License-Identifier: Apache-2.0
// linear_walk.glsl by subgroups with int8 cooperative matrices: 16 rows x 16 tokens x one chunk at a time. Sums
// of a chunk are integers and exact; what follows is float arithmetic element by element, each operation on its
// own, so that the bits are those of every other kernel. A subgroup of 32 lanes owns SUB_ROWS x SUB_TOKENS
// matrices of 16 x 16 outputs.
//
// Included by linear_q32_matrix.comp and linear_q256_matrix.comp, which say before whether a chunk's halves have
// scales of their own (HALVES: weights of one half beside zeros for the other).
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

layout(constant_id = 10) const uint ROW_GROUPS = 4; // subgroups side by side along the rows
layout(constant_id = 11) const uint SUB_ROWS = 2;
layout(constant_id = 12) const uint SUB_TOKENS = 2;
layout(constant_id = 13) const uint STEP = 2; // chunks; divides 8

const uint SIDE = 16; // of a matrix of outputs
const uint SUBGROUPS = gl_WorkGroupSize.x / 32;
const uint ROWS = ROW_GROUPS * SUB_ROWS * SIDE;
const uint TOKENS = SUBGROUPS / ROW_GROUPS * SUB_TOKENS * SIDE;
const uint STEP_K = STEP * CHUNK;
const uint OUTPUTS = SUB_ROWS * SUB_TOKENS; // matrices of a subgroup
#include "linear_walk.glsl"
#include "linear_chunks.glsl"

#define OF_WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define OF_ACTIVATIONS coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB>
#define OF_INTS coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define OF_FLOATS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// In units of 16 values. The odd one keeps rows that follow each other on different banks.
const uint ROW_QUADS = HALVES ? 3 : 2; // of a chunk: low, (zeros,) high
const uint ROW_STRIDE = STEP * ROW_QUADS + (STEP * ROW_QUADS + 1) % 2;
const uint TOKEN_STRIDE = STEP * 2 + 1;

const uint STAGE = SUBGROUPS * SIDE * SIDE / 4; // where results pass through, once the weights are used up
shared uvec4 weights[ROWS * ROW_STRIDE > STAGE ? ROWS * ROW_STRIDE : STAGE];
shared uvec4 activations[TOKENS * TOKEN_STRIDE];
// Matrices are loaded from 16 bytes on, so what they are loaded from is declared in such pieces.
shared uvec4 row_words[2 * STEP * ROWS / 4]; // (chunk, word, row)
shared uvec4 token_words[2 * STEP * TOKENS / 4];

uint row0, token0; // the subgroup's first in the tile
OF_FLOATS acc[OUTPUTS];
OF_FLOATS totals[OUTPUTS];

void put_row(uint c, uint row, uvec4 low, uvec4 high, uvec2 words) {
    uint to = row * ROW_STRIDE + c * ROW_QUADS;
    weights[to] = low;
    if (HALVES)
        weights[to + 1] = uvec4(0);
    weights[to + ROW_QUADS - 1] = high;
    row_words[(2 * c * ROWS + row) / 4][row % 4] = words.x;
    row_words[((2 * c + 1) * ROWS + row) / 4][row % 4] = words.y;
}

void put_token(uint c, uint token, uvec4 low, uvec4 high, uvec2 words) {
    uint to = token * TOKEN_STRIDE + c * 2;
    activations[to] = low;
    activations[to + 1] = high;
    token_words[(2 * c * TOKENS + token) / 4][token % 4] = words.x;
    token_words[((2 * c + 1) * TOKENS + token) / 4][token % 4] = words.y;
}

// One value a row of outputs, or a token, in every place that it belongs to: a stride of 0 repeats. `first` is a
// multiple of 4.
#define LOAD_BY_ROW(to, from, first)                                                                              \
    coopMatLoad(to, from, (first) / 4, 0, gl_CooperativeMatrixLayoutColumnMajor)
#define LOAD_BY_TOKEN(to, from, first)                                                                            \
    coopMatLoad(to, from, (first) / 4, 0, gl_CooperativeMatrixLayoutRowMajor)

// half 1: the second half of the chunk beside zeros (HALVES).
OF_WEIGHTS load_weights(uint index, uint row, uint half_) {
    OF_WEIGHTS a;
    coopMatLoad(a, weights, row * ROW_STRIDE + index * ROW_QUADS + half_, ROW_STRIDE,
                gl_CooperativeMatrixLayoutRowMajor);
    return a;
}
OF_ACTIVATIONS load_activations(uint index, uint token) {
    OF_ACTIVATIONS b;
    coopMatLoad(b, activations, token * TOKEN_STRIDE + index * 2, TOKEN_STRIDE,
                gl_CooperativeMatrixLayoutColumnMajor);
    return b;
}

void begin_more();

void begin() {
    row0 = gl_SubgroupID % ROW_GROUPS * SUB_ROWS * SIDE;
    token0 = gl_SubgroupID / ROW_GROUPS * SUB_TOKENS * SIDE;
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++)
        acc[o] = OF_FLOATS(0.0);
    begin_more();
}

void end_segment(bool begins) {
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
        precise OF_FLOATS sum = totals[o] + acc[o];
        totals[o] = begins ? acc[o] : sum;
        acc[o] = OF_FLOATS(0.0);
    }
}

void write() {
    uint own = gl_SubgroupID * SIDE * SIDE / 4;
    barrier(); // the last step is multiplied
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
        coopMatStore(totals[o], weights, own, SIDE / 4, gl_CooperativeMatrixLayoutColumnMajor);
        subgroupBarrier();
        for (uint i = gl_SubgroupInvocationID; i < SIDE * SIDE; i += gl_SubgroupSize)
            write_one(uintBitsToFloat(weights[own + i / 4][i % 4]), first_row + row0 + o / SUB_TOKENS * SIDE + i % SIDE,
                      first + token0 + o % SUB_TOKENS * SIDE + i / SIDE);
        subgroupBarrier();
    }
}
