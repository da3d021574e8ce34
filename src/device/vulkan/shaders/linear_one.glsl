// SPDX-License-Identifier: Apache-2.0
// Products for one token, as fast as memory gives the weights. A workgroup takes one panel and all of K, in
// sections of SECTION chunks. Codes go from memory to registers, 16 bytes a lane: one word of each of four
// rows. What is multiplied becomes floats that have an order; sixteen lanes, one a row, add them while the
// others have gone on to the next section. A GLU is twice as many sections.
//
// Included by linear_q32_one.glsl and linear_q256_one.glsl, which define COMBINES, multiply(), combine() and
// take().

layout(constant_id = 10) const uint SECTION = 64; // chunks: whole blocks; divides 32 or is a multiple of it
layout(constant_id = 11) const uint ROLLED = 0;   // 1: loops stay loops, for compilers that are slow

const uint LANES = gl_WorkGroupSize.x;
// Chunks that are added at a time: of one segment. (A constant that is not known before the device: else
// the compiler unrolls loops over it, and its copies of an operation may lose their `precise`.)
const uint PART = SECTION < SEGMENT / CHUNK ? SECTION : SEGMENT / CHUNK;

uint lane, panel, chunks;
uvec2 token; // its activations
float acc, total, gate;

// Chunks [chunk, chunk + count) of a panel at `base`. half_: sections take turns with two places.
void multiply(uvec2 base, uint chunk, uint count, uint half_);
// What is left to do when all lanes have multiplied, if COMBINES is not 0.
void combine(uint count);
// Adds what became of chunks [chunk, chunk + count) of a section to the accumulator of the lane's row.
float take(uint chunk, uint count, uint half_, float acc);

void account(uint matrix, uint chunk, uint count, uint half_) {
    for (uint c = 0; c < count; c += PART) {
        uint n = min(PART, count - c), end = chunk + c + n;
        acc = take(c, n, half_, acc);
        if (end % (SEGMENT / CHUNK) == 0 || end == chunks) {
            total = end <= SEGMENT / CHUNK ? acc : add(total, acc);
            acc = 0.0;
        }
    }
    if (chunk + count == chunks && matrix + 1 < MATRICES)
        gate = total;
}

void main() {
    uvec2 range = token_range();
    uint first = range.x + gl_WorkGroupID.x;
    if (first >= range.y)
        return;
    lane = gl_LocalInvocationIndex;
    panel = push.panel_begin + gl_WorkGroupID.y;
    chunks = push.k / CHUNK;
    token = at(slot(push.in_slot), push.in_offset + first * push.in_stride);
    acc = total = gate = 0.0;
    fill_table();
    if (TABLE != 0)
        barrier();
    uint sections = (chunks + SECTION - 1) / SECTION;
    for (uint i = 0; i < MATRICES * sections; i++) {
        uint matrix = i >= sections ? 1 : 0;
        uint chunk = (i - matrix * sections) * SECTION, count = min(SECTION, chunks - chunk);
        uvec2 base = panel_at(matrix, panel);
        multiply(base, chunk, count, i & 1);
        barrier();
        if (COMBINES != 0) {
            combine(count);
            barrier();
        }
        if (lane < PANEL_ROWS)
            account(matrix, chunk, count, i & 1);
    }
    uint n = panel * PANEL_ROWS + lane;
    if (lane < PANEL_ROWS && n < push.n)
        finish(GLU != 0 ? gate : total, total, n, first);
}
