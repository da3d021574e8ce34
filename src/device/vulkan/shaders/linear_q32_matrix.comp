// SPDX-License-Identifier: Apache-2.0
// linear_matrix.glsl with blocks of 32.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "linear.glsl"
const bool HALVES = false;
#include "linear_matrix.glsl"
#include "linear_q32_words.glsl"

void begin_more() {}

void multiply_chunk(uint index, uint chunk) {
    OF_ACTIVATIONS b[SUB_TOKENS];
    OF_FLOATS token_d[SUB_TOKENS];
    OF_FLOATS token_sum[SUB_TOKENS];
    [[unroll]] for (uint j = 0; j < SUB_TOKENS; j++) {
        uint token = token0 + j * SIDE;
        b[j] = load_activations(index, token);
        LOAD_BY_TOKEN(token_d[j], token_words, 2 * index * TOKENS + token);
        if (HAS_MIN != 0)
            LOAD_BY_TOKEN(token_sum[j], token_words, (2 * index + 1) * TOKENS + token);
    }
    [[unroll]] for (uint i = 0; i < SUB_ROWS; i++) {
        uint row = row0 + i * SIDE;
        OF_WEIGHTS a = load_weights(index, row, 0);
        OF_FLOATS row_d;
        OF_FLOATS row_m;
        LOAD_BY_ROW(row_d, row_words, 2 * index * ROWS + row);
        if (HAS_MIN != 0)
            LOAD_BY_ROW(row_m, row_words, (2 * index + 1) * ROWS + row);
        [[unroll]] for (uint j = 0; j < SUB_TOKENS; j++) {
            uint o = i * SUB_TOKENS + j;
            OF_FLOATS isum = OF_FLOATS(coopMatMulAdd(a, b[j], OF_INTS(0))); // |isum| < 2^24
            precise OF_FLOATS scale = row_d * token_d[j];
            precise OF_FLOATS product = isum * scale;
            precise OF_FLOATS sum = acc[o] + product;
            if (HAS_MIN != 0) {
                precise OF_FLOATS least = row_m * token_d[j];
                precise OF_FLOATS more = token_sum[j] * least;
                precise OF_FLOATS both = sum + more;
                acc[o] = both;
            } else {
                acc[o] = sum;
            }
        }
    }
}
