// SPDX-License-Identifier: Apache-2.0
// Products for many tokens. A workgroup takes a tile of ROWS x TOKENS outputs; each step brings STEP_K
// columns of both sides into shared memory, while the step before is multiplied from there.
//
// Included by linear_tile.glsl and linear_matrix.glsl, which give ROWS (a multiple of 16), TOKENS and STEP_K
// (it divides 1024) and define the functions declared here.

const uint LANES = gl_WorkGroupSize.x;

uint lane, matrix;
uint first, last; // tokens [first, last), of which this workgroup takes up to TOKENS
uint first_row;

void begin();                   // once, before the first step
void fetch(uint k);             // starts to bring columns from k on
void store(uint k);             // puts what came into shared memory
void multiply(uint k, uint count);
void end_segment(bool begins);  // adds a segment's sums to those before it
void write();                   // the sums of one matrix to memory

// Rows and tokens behind the last repeat it: they are read and never written.
uvec2 row_base(uint row, out uint in_panel) {
    uint n = min(first_row + row, min(push.n, push.panel_end * PANEL_ROWS) - 1);
    in_panel = n % PANEL_ROWS;
    return panel_at(matrix, n / PANEL_ROWS);
}
uvec2 token_base(uint token) {
    return at(slot(push.in_slot), push.in_offset + min(first + token, last - 1) * push.in_stride);
}

// One output. The gate of a GLU waits in `out`, where its own lane finds it.
void write_one(float x, uint row, uint token) {
    if (row >= push.n || row >= push.panel_end * PANEL_ROWS || token >= last)
        return;
    Floats out_ = Floats(at(slot(push.out_slot), push.out_offset + token * push.out_stride));
    if (GLU != 0 && matrix == 0)
        out_.v[row] = x;
    else
        finish(GLU != 0 ? out_.v[row] : x, x, row, token);
}

void main() {
    uvec2 range = token_range();
    first = range.x + gl_WorkGroupID.x * TOKENS;
    last = range.y;
    if (first >= last)
        return;
    first_row = push.panel_begin * PANEL_ROWS + gl_WorkGroupID.y * ROWS;
    lane = gl_LocalInvocationIndex;
    fill_table();
    begin();
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
