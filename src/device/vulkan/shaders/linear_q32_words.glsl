// SPDX-License-Identifier: Apache-2.0
// What linear_chunks.glsl needs of blocks of 32: per chunk the scale, and the minimum where the type has one.
// Included by linear_q32.glsl and linear_q32_matrix.comp.

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

void fetch_block(uint chunk) {}
void store_block(uint chunk) {}
