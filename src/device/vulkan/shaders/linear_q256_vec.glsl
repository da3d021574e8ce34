// SPDX-License-Identifier: Apache-2.0
// linear_vec.glsl with blocks of 256: what a lane makes of a chunk is an integer, which is summed over the
// block's chunks before it becomes a float.
#include "linear.glsl"

const uint BLOCK_CHUNKS = 8, D_QUADS = 2, M_QUADS = 2 * HAS_MIN, COMBINES = 1;
const uint SUB_QUADS = FORM == SUB_NONE ? 0 : FORM == SUB_32 ? 8 : 16;
#include "linear_vec.glsl"

const uint PARTS = TOKENS * ROUND * PANEL_ROWS;         // (token, chunk, row)
const uint SCALES = TOKENS * ROUND_BLOCKS * PANEL_ROWS; // (token, block, row)
shared int parts[2 * PARTS];
shared int minimum_parts[HAS_MIN != 0 ? 2 * PARTS : 1];
shared float scales[2 * SCALES]; // dw * da
shared float minima[HAS_MIN != 0 ? 2 * SCALES : 1];
shared float terms[2 * SCALES]; // of a block: its sum, scaled
shared float minimum_terms[HAS_MIN != 0 ? 2 * SCALES : 1];

uint part_at(Step s, uint token, uint chunk, uint row) {
    return s.half_ * PARTS + (token * ROUND + chunk) * PANEL_ROWS + row;
}
uint scale_at(Step s, uint token, uint block, uint row) {
    return s.half_ * SCALES + (token * ROUND_BLOCKS + block) * PANEL_ROWS + row;
}

uint sub_word(Step s, uint block, uint sub, uint row) {
    return staged(s, SUB_AT + block * SUB_QUADS * 4 + sub * 4 + (row >> 2));
}

// Scales of the chunk's two halves, and their minima.
void sub_scales(Step s, uint chunk, uint row, out ivec2 scale, out ivec2 minimum) {
    uint block = chunk >> 3, c = chunk & 7, byte = row & 3;
    scale = ivec2(1);
    minimum = ivec2(0);
    if (FORM == SUB_NIBBLES || FORM == SUB_16) {
        uint a = sub_word(s, block, 2 * c, row), b = sub_word(s, block, 2 * c + 1, row);
        scale = ivec2(signed_byte(a, byte), signed_byte(b, byte));
        if (FORM == SUB_NIBBLES) {
            minimum = (scale >> 4) & 15;
            scale &= 15;
        }
    } else if (FORM == SUB_MIN || FORM == SUB_32) {
        scale = ivec2(signed_byte(sub_word(s, block, c, row), byte)); // SUB_MIN: 6 bits, no sign
        if (FORM == SUB_MIN)
            minimum = ivec2(signed_byte(sub_word(s, block, 8 + c, row), byte));
    }
}

void multiply(Step s, uint chunk, uint row) {
    uvec4 low, high;
    ivec2 scale, minimum;
    staged_row(s, chunk, row, low, high);
    sub_scales(s, chunk, row, scale, minimum);
    bool leads = (chunk & 7) == 0; // this lane also makes the block's scales
    uint c = s.chunk + chunk, block = chunk >> 3;
    float dw = leads ? staged_half(s, D_AT, block, row) : 0.0;
    float dm = leads && HAS_MIN != 0 ? staged_half(s, M_AT, block, row) : 0.0;
    [[unroll]] for (uint t = 0; t < (ROLLED != 0 ? count : TOKENS); t++)
        if (t < count) {
            uvec2 token = at(tokens_at, t * push.in_stride);
            Quads q = Quads(at(token, c * CHUNK));
            uint shift = (Words(at(token, push.act_shift)).v[c >> 2] >> 8 * (c & 3)) & 3u;
            int part;
            if (FORM == SUB_NIBBLES || FORM == SUB_16)
                part = dot16(low, q.v[0], 0) * scale.x + dot16(high, q.v[1], 0) * scale.y;
            else
                part = dot16(high, q.v[1], dot16(low, q.v[0], 0)) * scale.x;
            parts[part_at(s, t, chunk, row)] = part << shift;
            if (HAS_MIN != 0) {
                int sums = Ints(at(token, push.act_sum)).v[c];
                int m = bitfieldExtract(sums, 0, 16) * minimum.x + (sums >> 16) * minimum.y;
                minimum_parts[part_at(s, t, chunk, row)] = m << shift;
            }
            if (leads) {
                float da = Floats(at(token, push.act_d)).v[c >> 3];
                scales[scale_at(s, t, block, row)] = mul(dw, da);
                if (HAS_MIN != 0)
                    minima[scale_at(s, t, block, row)] = mul(dm, da);
            }
        }
}

// From the last lane down: the first ones add.
void combine(Step s) {
    for (uint u = LANES - 1 - lane; u < count * ROUND_BLOCKS * PANEL_ROWS; u += LANES) {
        uint row = u % PANEL_ROWS, b = u / PANEL_ROWS % ROUND_BLOCKS, token = u / PANEL_ROWS / ROUND_BLOCKS;
        if (8 * b >= s.count)
            continue;
        uint i = part_at(s, token, 8 * b, row), at_ = scale_at(s, token, b, row);
        int isum = 0, msum = 0;
        [[unroll]] for (uint c = 0; c < 8; c++) {
            isum += parts[i + c * PANEL_ROWS];
            if (HAS_MIN != 0)
                msum += minimum_parts[i + c * PANEL_ROWS];
        }
        terms[at_] = mul(exact_float(isum), scales[at_]);
        if (HAS_MIN != 0)
            minimum_terms[at_] = mul(exact_float(msum), minima[at_]);
    }
}

float add_block(uint at_, float acc) {
    acc = add(acc, terms[at_]);
    return HAS_MIN != 0 ? sub(acc, minimum_terms[at_]) : acc;
}

float take(Step s, uint token, uint row, float acc) {
    uint at_ = scale_at(s, token, 0, row);
    if (s.count == ROUND) { // the usual case: a known count lets the loads run ahead of the adds
        [[unroll]] for (uint b = 0; b < ROUND_BLOCKS; b++)
            acc = add_block(at_ + b * PANEL_ROWS, acc);
        return acc;
    }
    for (uint b = 0; b < s.count >> 3; b++)
        acc = add_block(at_ + b * PANEL_ROWS, acc);
    return acc;
}
