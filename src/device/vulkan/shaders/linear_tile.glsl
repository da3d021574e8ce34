// SPDX-License-Identifier: Apache-2.0
// Products for many tokens. A workgroup takes a tile of ROWS x TOKENS outputs; each step brings STEP_K
// columns of both sides into shared memory, while the step before is multiplied from there. A lane owns
// LANE_ROWS x LANE_TOKENS outputs, strided over the tile, so that lanes side by side read words side by
// side. The gate of a GLU waits in `out`, where its own lane finds it.
//
// Included by linear_float.glsl and linear_chunks.glsl, which give STEP_K (it divides 1024) and define the
// functions declared here.

layout(constant_id = 10) const uint ROW_LANES = 8;
layout(constant_id = 11) const uint LANE_ROWS = 8;
layout(constant_id = 12) const uint LANE_TOKENS = 4;

const uint LANES = gl_WorkGroupSize.x; // a multiple of ROW_LANES
const uint TOKEN_LANES = LANES / ROW_LANES;
const uint ROWS = ROW_LANES * LANE_ROWS; // a multiple of 16
const uint TOKENS = TOKEN_LANES * LANE_TOKENS;
const uint OUTPUTS = LANE_ROWS * LANE_TOKENS; // of a lane

shared float totals[OUTPUTS * LANES]; // each lane its own

uint lane, row_lane, token_lane, matrix;
uint first, last; // tokens [first, last), of which this workgroup takes up to TOKENS
uint first_row;
float acc[OUTPUTS];

void fetch(uint k); // starts to bring columns from k on
void store(uint k); // puts what came into shared memory
void multiply(uint k, uint count);

// Rows and tokens behind the last repeat it: they are read and never written.
uvec2 row_base(uint row, out uint in_panel) {
    uint n = min(first_row + row, min(push.n, push.panel_end * PANEL_ROWS) - 1);
    in_panel = n % PANEL_ROWS;
    return panel_at(matrix, n / PANEL_ROWS);
}
uvec2 token_base(uint token) {
    return at(slot(push.in_slot), push.in_offset + min(first + token, last - 1) * push.in_stride);
}

void end_segment(bool begins) {
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
        totals[o * LANES + lane] = begins ? acc[o] : add(totals[o * LANES + lane], acc[o]);
        acc[o] = 0.0;
    }
}

void write() {
    for (uint o = 0; o < OUTPUTS; o++) {
        uint row = first_row + row_lane + o / LANE_TOKENS * ROW_LANES;
        uint token = first + token_lane + o % LANE_TOKENS * TOKEN_LANES;
        if (row >= push.n || row >= push.panel_end * PANEL_ROWS || token >= last)
            continue;
        float x = totals[o * LANES + lane];
        Floats out_ = Floats(at(slot(push.out_slot), push.out_offset + token * push.out_stride));
        if (GLU != 0 && matrix == 0)
            out_.v[row] = x;
        else
            finish(GLU != 0 ? out_.v[row] : x, x, row, token);
    }
}

void main() {
    uvec2 range = token_range();
    first = range.x + gl_WorkGroupID.x * TOKENS;
    last = range.y;
    if (first >= last)
        return;
    first_row = push.panel_begin * PANEL_ROWS + gl_WorkGroupID.y * ROWS;
    lane = gl_LocalInvocationIndex;
    row_lane = lane % ROW_LANES;
    token_lane = lane / ROW_LANES;
    fill_table();
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++)
        acc[o] = 0.0;
    for (matrix = 0; matrix < MATRICES; matrix++) {
        fetch(0);
        for (uint k = 0; k < push.k; k += STEP_K) {
            barrier(); // the step before is multiplied
            store(k);
            barrier();
            uint end = min(k + STEP_K, push.k);
            if (end < push.k)
                fetch(end);
            multiply(k, end - k);
            if (end % SEGMENT == 0 || end == push.k)
                end_segment(end <= SEGMENT);
        }
        write();
    }
}
