// SPDX-License-Identifier: Apache-2.0
// linear_walk.glsl by lanes: a lane owns LANE_ROWS x LANE_TOKENS outputs, strided over the tile, so that lanes
// side by side read words side by side.
//
// Included by linear_float.glsl and linear_chunks_tile.glsl, which give STEP_K.

layout(constant_id = 10) const uint ROW_LANES = 8;
layout(constant_id = 11) const uint LANE_ROWS = 8;
layout(constant_id = 12) const uint LANE_TOKENS = 4;

const uint TOKEN_LANES = gl_WorkGroupSize.x / ROW_LANES; // ROW_LANES divides the workgroup
const uint ROWS = ROW_LANES * LANE_ROWS;
const uint TOKENS = TOKEN_LANES * LANE_TOKENS;
const uint OUTPUTS = LANE_ROWS * LANE_TOKENS; // of a lane
#include "linear_walk.glsl"

shared float totals[OUTPUTS * LANES]; // each lane its own

uint row_lane, token_lane;
float acc[OUTPUTS];

void begin() {
    row_lane = lane % ROW_LANES;
    token_lane = lane / ROW_LANES;
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++)
        acc[o] = 0.0;
}

void end_segment(bool begins) {
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
        totals[o * LANES + lane] = begins ? acc[o] : add(totals[o * LANES + lane], acc[o]);
        acc[o] = 0.0;
    }
}

void write() {
    for (uint o = 0; o < OUTPUTS; o++)
        write_one(totals[o * LANES + lane], first_row + row_lane + o / LANE_TOKENS * ROW_LANES,
                  first + token_lane + o % LANE_TOKENS * TOKEN_LANES);
}
