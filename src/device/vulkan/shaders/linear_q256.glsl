// SPDX-License-Identifier: Apache-2.0
// linear_chunks_tile.glsl with blocks of 256: chunks add up to an integer, and a block to a float.
#include "linear.glsl"
#include "linear_chunks_tile.glsl"
#include "linear_q256_words.glsl"

shared float row_d[ROWS], row_m[HAS_MIN != 0 ? ROWS : 1], token_d[TOKENS];
shared uint row_minima[MINIMA != 0 ? MINIMA * ROWS : 1];
shared uint token_sums[MINIMA != 0 ? 2 * MINIMA * TOKENS : 1]; // all high words, then all low ones

int isum[OUTPUTS]; // of the block so far

void put_row_d(uint row, float d) { row_d[row] = d; }
void put_row_m(uint row, float m) { row_m[row] = m; }
void put_token_d(uint token, float d) { token_d[token] = d; }
void put_minima(uint row, uint w, uint word) { row_minima[w * ROWS + row] = word; }
void put_sums(uint token, uint w, uint high, uint low) {
    token_sums[w * TOKENS + token] = high;
    token_sums[(MINIMA + w) * TOKENS + token] = low;
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
