// SPDX-License-Identifier: Apache-2.0
// linear_chunks.glsl with blocks of 32.
#include "linear.glsl"
#include "linear_chunks.glsl"

uvec2 fetch_row_words(uvec2 base, uint chunk, uint row) {
    uint d = FORM == 1 ? Words(at(base, push.d)).v[chunk * PANEL_ROWS + row]
                       : uint(Halves(at(base, push.d)).v[chunk * PANEL_ROWS + row]);
    return uvec2(d, HAS_MIN != 0 ? uint(Halves(at(base, push.m)).v[chunk * PANEL_ROWS + row]) : 0);
}

uvec2 ready_row_words(uvec2 raw, uint chunk, uint row) {
    return uvec2(FORM == 1 ? raw.x : floatBitsToUint(f16_f32(raw.x)),
                 HAS_MIN != 0 ? floatBitsToUint(f16_f32(raw.y)) : 0);
}

uvec2 fetch_token_words(uvec2 base, uint chunk) {
    return uvec2(Words(at(base, push.act_d)).v[chunk],
                 HAS_MIN != 0 ? uint(Halves(at(base, push.act_sum)).v[chunk]) : 0);
}

uvec2 ready_token_words(uvec2 raw, uint chunk) {
    return uvec2(raw.x, floatBitsToUint(float(bitfieldExtract(int(raw.y), 0, 16))));
}

void bring_blocks(uint chunk) {}

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
