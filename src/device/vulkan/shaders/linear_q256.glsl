// SPDX-License-Identifier: Apache-2.0
// linear_chunks.glsl with blocks of 256: chunks add up to an integer, and a block to a float.
#include "linear.glsl"
#include "linear_chunks.glsl"

const bool BY_16 = FORM == SUB_NIBBLES || FORM == SUB_16;
// Words that hold a block's minima of one row, one a byte; and per token twice as many hold the sums that
// they are multiplied with, as 256 * high + low with signed bytes.
const uint MINIMA = HAS_MIN == 0 ? 0 : FORM == SUB_NIBBLES ? 4 : 2;

shared float row_d[ROWS], row_m[HAS_MIN != 0 ? ROWS : 1], token_d[TOKENS];
shared uint row_minima[MINIMA != 0 ? MINIMA * ROWS : 1];
shared uint token_sums[MINIMA != 0 ? 2 * MINIMA * TOKENS : 1]; // all high words, then all low ones

int isum[OUTPUTS]; // of the block so far

// The word that holds sub-scale `s` of a block's row.
uint sub_word(uvec2 base, uint block, uint s, uint row) {
    uint bytes = FORM == SUB_32 ? 128 : 256;
    return Words(at(base, push.sub + block * bytes)).v[s * 4 + (row >> 2)];
}

uvec2 fetch_row_words(uvec2 base, uint chunk, uint row) {
    uint block = chunk >> 3, c = chunk & 7;
    if (BY_16)
        return uvec2(sub_word(base, block, 2 * c, row), sub_word(base, block, 2 * c + 1, row));
    return uvec2(FORM == SUB_NONE ? 0 : sub_word(base, block, c, row), 0);
}

// The scales of both halves.
uvec2 ready_row_words(uvec2 raw, uint chunk, uint row) {
    uint byte = row & 3;
    ivec2 scale = ivec2(signed_byte(raw.x, byte), signed_byte(raw.y, byte));
    return uvec2(FORM == SUB_NIBBLES ? scale & 15 : scale);
}

uvec2 fetch_token_words(uvec2 base, uint chunk) {
    return uvec2(Words(at(base, push.act_shift)).v[chunk >> 2], 0);
}

// What a product is multiplied with for its shift.
uvec2 ready_token_words(uvec2 raw, uint chunk) { return uvec2(1u << ((raw.x >> 8 * (chunk & 3)) & 3), 0); }

// Four minima of a row: those of sub-blocks 4w .. 4w + 3.
uint four_minima(uvec2 base, uint block, uint w, uint row) {
    uint word = 0;
    [[unroll]] for (uint b = 0; b < 4; b++) {
        uint s = 4 * w + b;
        uint byte = (sub_word(base, block, FORM == SUB_MIN ? 8 + s : s, row) >> 8 * (row & 3)) & 0xFFu;
        word |= (FORM == SUB_MIN ? byte : byte >> 4) << 8 * b;
    }
    return word;
}

// The sums that four minima are multiplied with, shifted: at most 32512, so that both bytes are signed ones.
void four_sums(uvec2 base, uint block, uint w, out uint high, out uint low) {
    high = low = 0;
    [[unroll]] for (uint b = 0; b < 4; b++) {
        uint c = block * 8 + (FORM == SUB_MIN ? 4 * w + b : 2 * w + (b >> 1));
        int pair = Ints(at(base, push.act_sum)).v[c];
        uint shift = (Words(at(base, push.act_shift)).v[c >> 2] >> 8 * (c & 3)) & 3;
        int first16 = bitfieldExtract(pair, 0, 16), second16 = pair >> 16;
        int s = (FORM == SUB_MIN ? first16 + second16 : (b & 1) == 0 ? first16 : second16) << shift;
        int signed_low = bitfieldExtract(s, 0, 8);
        low |= (uint(signed_low) & 0xFFu) << 8 * b;
        high |= (uint(s - signed_low) >> 8 & 0xFFu) << 8 * b;
    }
}

void bring_blocks(uint chunk) {
    if ((chunk & 7) != 0)
        return;
    uint block = chunk >> 3, r;
    for (uint i = lane; i < ROWS; i += LANES) {
        uvec2 base = row_base(i, r);
        row_d[i] = f16_f32(uint(Halves(at(base, push.d)).v[block * PANEL_ROWS + r]));
        if (HAS_MIN != 0)
            row_m[i] = f16_f32(uint(Halves(at(base, push.m)).v[block * PANEL_ROWS + r]));
    }
    for (uint i = lane; i < TOKENS; i += LANES)
        token_d[i] = Floats(at(token_base(i), push.act_d)).v[block];
    for (uint i = lane; i < MINIMA * ROWS; i += LANES) {
        uvec2 base = row_base(i % ROWS, r);
        row_minima[i] = four_minima(base, block, i / ROWS, r);
    }
    for (uint i = lane; i < MINIMA * TOKENS; i += LANES) {
        uint high, low;
        four_sums(token_base(i % TOKENS), block, i / TOKENS, high, low);
        token_sums[i] = high;
        token_sums[MINIMA * TOKENS + i] = low;
    }
}

void end_block() {
    [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
        uint row = row_lane + i * ROW_LANES;
        [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++) {
            uint o = i * LANE_TOKENS + j, token = token_lane + j * TOKEN_LANES;
            acc[o] = add(acc[o], mul(exact_float(isum[o]), mul(row_d[row], token_d[token])));
            if (HAS_MIN != 0) {
                int high = 0, low = 0;
                [[unroll]] for (uint w = 0; w < MINIMA; w++) {
                    uint m = row_minima[w * ROWS + row];
                    high = dot4(m, token_sums[w * TOKENS + token], high);
                    low = dot4(m, token_sums[(MINIMA + w) * TOKENS + token], low);
                }
                float msum = exact_float((high << 8) + low);
                acc[o] = sub(acc[o], mul(msum, mul(row_m[row], token_d[token])));
            }
        }
    }
}

void multiply_chunk(uint index, uint chunk) {
    if ((chunk & 7) == 0)
        [[unroll]] for (uint o = 0; o < OUTPUTS; o++)
            isum[o] = 0;
    int parts[OUTPUTS];
    [[unroll]] for (uint h = 0; h < 2; h++) {
        uvec4 a[LANE_TOKENS];
        [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++)
            a[j] = activations[(2 * index + h) * TOKENS + token_lane + j * TOKEN_LANES];
        [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
            uint row = row_lane + i * ROW_LANES;
            uvec4 w = weights[(2 * index + h) * ROWS + row];
            ivec2 scale = ivec2(row_words[index * ROWS + row]);
            [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++) {
                uint o = i * LANE_TOKENS + j;
                int sum = dot16(w, a[j], h == 0 || BY_16 ? 0 : parts[o]);
                if (BY_16)
                    parts[o] = h == 0 ? sum * scale.x : parts[o] + sum * scale.y;
                else
                    parts[o] = h == 1 && FORM != SUB_NONE ? sum * scale.x : sum;
            }
        }
    }
    [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++) {
        int power = int(token_words[index * TOKENS + token_lane + j * TOKEN_LANES].x);
        [[unroll]] for (uint i = 0; i < LANE_ROWS; i++)
            isum[i * LANE_TOKENS + j] += parts[i * LANE_TOKENS + j] * power;
    }
    if ((chunk & 7) == 7)
        end_block();
}
