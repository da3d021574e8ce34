// SPDX-License-Identifier: Apache-2.0
// linear_matrix.glsl with blocks of 256: chunks add up to an integer, and a block to a float.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "linear.glsl"
const bool HALVES = FORM == SUB_NIBBLES || FORM == SUB_16;
#include "linear_matrix.glsl"
#include "linear_q256_words.glsl"

// Minima and their sums as one more chunk, whose other bytes are zeros.
const uint EXTRA_STRIDE = 3; // in units of 16 bytes
shared uvec4 row_d[ROWS / 4], row_m[HAS_MIN != 0 ? ROWS / 4 : 1], token_d[TOKENS / 4];
shared uvec4 row_minima[HAS_MIN != 0 ? ROWS * EXTRA_STRIDE : 1];
shared uvec4 token_sums[HAS_MIN != 0 ? 2 * TOKENS * EXTRA_STRIDE : 1]; // all high bytes, then all low ones

OF_INTS isum[OUTPUTS]; // of the block so far

void put_row_d(uint row, float d) { row_d[row / 4][row % 4] = floatBitsToUint(d); }
void put_row_m(uint row, float m) { row_m[row / 4][row % 4] = floatBitsToUint(m); }
void put_token_d(uint token, float d) { token_d[token / 4][token % 4] = floatBitsToUint(d); }
void put_minima(uint row, uint w, uint word) { row_minima[row * EXTRA_STRIDE][w] = word; }
void put_sums(uint token, uint w, uint high, uint low) {
    token_sums[token * EXTRA_STRIDE][w] = high;
    token_sums[(TOKENS + token) * EXTRA_STRIDE][w] = low;
}

void begin_more() {
    if (HAS_MIN == 0)
        return;
    for (uint i = lane; i < ROWS * EXTRA_STRIDE; i += LANES)
        row_minima[i] = uvec4(0);
    for (uint i = lane; i < 2 * TOKENS * EXTRA_STRIDE; i += LANES)
        token_sums[i] = uvec4(0);
}

// exact_float() of linear.glsl, element by element.
OF_FLOATS exact_floats(OF_INTS x) {
    OF_INTS high = x / OF_INTS(4096); // toward zero, which the rest makes up for
    OF_INTS low = x - high * OF_INTS(4096);
    precise OF_FLOATS most = OF_FLOATS(high) * OF_FLOATS(4096.0);
    precise OF_FLOATS all = most + OF_FLOATS(low);
    return all;
}

void end_block() {
    [[unroll]] for (uint j = 0; j < SUB_TOKENS; j++) {
        uint token = token0 + j * SIDE;
        OF_FLOATS by_token;
        LOAD_BY_TOKEN(by_token, token_d, token);
        OF_ACTIVATIONS high;
        OF_ACTIVATIONS low;
        if (HAS_MIN != 0) {
            coopMatLoad(high, token_sums, token * EXTRA_STRIDE, EXTRA_STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
            coopMatLoad(low, token_sums, (TOKENS + token) * EXTRA_STRIDE, EXTRA_STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
        }
        [[unroll]] for (uint i = 0; i < SUB_ROWS; i++) {
            uint o = i * SUB_TOKENS + j, row = row0 + i * SIDE;
            OF_FLOATS by_row;
            LOAD_BY_ROW(by_row, row_d, row);
            precise OF_FLOATS scale = by_row * by_token;
            precise OF_FLOATS product = exact_floats(isum[o]) * scale;
            precise OF_FLOATS sum = acc[o] + product;
            acc[o] = sum;
            if (HAS_MIN != 0) {
                OF_WEIGHTS minima;
                coopMatLoad(minima, row_minima, row * EXTRA_STRIDE, EXTRA_STRIDE,
                            gl_CooperativeMatrixLayoutRowMajor);
                OF_INTS msum = coopMatMulAdd(minima, high, OF_INTS(0));
                msum = coopMatMulAdd(minima, low, msum * OF_INTS(256));
                LOAD_BY_ROW(by_row, row_m, row);
                precise OF_FLOATS least = by_row * by_token;
                precise OF_FLOATS off = exact_floats(msum) * least;
                precise OF_FLOATS rest = acc[o] - off;
                acc[o] = rest;
            }
        }
    }
}

void multiply_chunk(uint index, uint chunk) {
    if ((chunk & 7) == 0)
        [[unroll]] for (uint o = 0; o < OUTPUTS; o++)
            isum[o] = OF_INTS(0);
    OF_ACTIVATIONS b[SUB_TOKENS];
    OF_INTS power[SUB_TOKENS];
    [[unroll]] for (uint j = 0; j < SUB_TOKENS; j++) {
        uint token = token0 + j * SIDE;
        b[j] = load_activations(index, token);
        LOAD_BY_TOKEN(power[j], token_words, 2 * index * TOKENS + token);
    }
    [[unroll]] for (uint i = 0; i < SUB_ROWS; i++) {
        uint row = row0 + i * SIDE;
        OF_WEIGHTS a = load_weights(index, row, 0);
        OF_WEIGHTS second;
        OF_INTS scale;
        OF_INTS second_scale;
        if (FORM != SUB_NONE)
            LOAD_BY_ROW(scale, row_words, 2 * index * ROWS + row);
        if (HALVES) {
            second = load_weights(index, row, 1);
            LOAD_BY_ROW(second_scale, row_words, (2 * index + 1) * ROWS + row);
        }
        [[unroll]] for (uint j = 0; j < SUB_TOKENS; j++) {
            OF_INTS part = coopMatMulAdd(a, b[j], OF_INTS(0));
            if (FORM != SUB_NONE)
                part = part * scale;
            if (HALVES)
                part = part + coopMatMulAdd(second, b[j], OF_INTS(0)) * second_scale;
            isum[i * SUB_TOKENS + j] = isum[i * SUB_TOKENS + j] + part * power[j];
        }
    }
    if ((chunk & 7) == 7)
        end_block();
}
