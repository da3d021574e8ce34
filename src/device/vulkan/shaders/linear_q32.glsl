// SPDX-License-Identifier: Apache-2.0
// linear_chunks_tile.glsl with blocks of 32.
#include "linear.glsl"
#include "linear_chunks_tile.glsl"
#include "linear_q32_words.glsl"

void multiply_chunk(uint index, uint chunk) {
    // Sums begin at the bits of ROUND_MAGIC: as a float that is ROUND_MAGIC + isum, for |isum| < 2^22.
    int sums[OUTPUTS];
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++)
        sums[o] = floatBitsToInt(ROUND_MAGIC);
    [[unroll]] for (uint h = 0; h < 2; h++) {
        uvec4 a[LANE_TOKENS];
        [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++)
            a[j] = activations[(2 * index + h) * TOKENS + token_lane + j * TOKEN_LANES];
        [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
            uvec4 w = weights[(2 * index + h) * ROWS + row_lane + i * ROW_LANES];
            [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++)
                sums[i * LANE_TOKENS + j] = dot16(w, a[j], sums[i * LANE_TOKENS + j]);
        }
    }
    vec2 token[LANE_TOKENS];
    [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++)
        token[j] = uintBitsToFloat(token_words[index * TOKENS + token_lane + j * TOKEN_LANES]);
    [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
        vec2 row = uintBitsToFloat(row_words[index * ROWS + row_lane + i * ROW_LANES]);
        [[unroll]] for (uint j = 0; j < LANE_TOKENS; j++) {
            uint o = i * LANE_TOKENS + j;
            float isum = sub(intBitsToFloat(sums[o]), ROUND_MAGIC);
            acc[o] = add(acc[o], mul(isum, mul(row.x, token[j].x)));
            if (HAS_MIN != 0)
                acc[o] = add(acc[o], mul(token[j].y, mul(row.y, token[j].x)));
        }
    }
}
