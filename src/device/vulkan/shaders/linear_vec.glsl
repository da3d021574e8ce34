// SPDX-License-Identifier: Apache-2.0
// Products for few tokens, as fast as memory gives the weights. A workgroup takes one panel and all of K,
// in rounds of ROUND chunks: a round's bytes come in whole lines of 16 bytes a lane while the two rounds
// before are multiplied, each lane multiplies one row of one chunk with each token, and a lane for each
// (row, token) adds the products in ascending order. A GLU is twice as many rounds.
//
// Few lanes add, and all wait for them at the next barrier: so what can be done by many, such as the sums of
// a block, which are integers, is done before (combine()), and added a round later (COMBINES).
//
// Included by linear_q32_vec.glsl and linear_q256_vec.glsl, which say how a block is laid out and define
// multiply(), combine() and take().

layout(constant_id = 10) const uint TOKENS = 1; // 16 * TOKENS <= workgroup size
layout(constant_id = 11) const uint ROUND = 32; // chunks; divides 32, a multiple of BLOCK_CHUNKS
layout(constant_id = 12) const uint ROLLED = 0; // 1: loops stay loops, for compilers that are slow

const uint LANES = gl_WorkGroupSize.x;
const uint ROUND_BLOCKS = ROUND / BLOCK_CHUNKS;
// In 16 bytes: of a chunk's codes in memory, and in the stage, where an odd pitch keeps the two chunks
// that 32 lanes read in different banks.
const uint CODE_QUADS = 4 * BITS, CODE_PITCH = 4 * (BITS | 1);
const uint CODES_END = ROUND * CODE_QUADS;
const uint SUB_END = CODES_END + ROUND_BLOCKS * SUB_QUADS;
const uint D_END = SUB_END + ROUND_BLOCKS * D_QUADS;
const uint M_END = D_END + ROUND_BLOCKS * M_QUADS;
const uint FETCHES = (M_END + LANES - 1) / LANES; // of a lane
const uint STAGE = M_END + ROUND * (CODE_PITCH - CODE_QUADS);
const uint SUB_AT = 4 * ROUND * CODE_PITCH; // words in the stage
const uint D_AT = SUB_AT + 4 * ROUND_BLOCKS * SUB_QUADS;
const uint M_AT = D_AT + 4 * ROUND_BLOCKS * D_QUADS;

shared uvec4 stage[2 * STAGE];

uint lane, panel, chunks, rounds, steps;
float acc, total, gate; // of the lane's (row, token)
uint first, count;  // tokens of this workgroup
uvec2 tokens_at;    // its first row of activations

// One step of the loop: a round of one matrix.
struct Step {
    uint matrix, chunk, count; // chunks [chunk, chunk + count)
    uint half_;                // which of the two stages
};

Step step_of(uint index) {
    Step s;
    s.matrix = index >= rounds ? 1 : 0;
    s.chunk = (index - s.matrix * rounds) * ROUND;
    s.count = min(ROUND, chunks - s.chunk);
    s.half_ = index & 1;
    return s;
}

uint staged(Step s, uint word) { return stage[s.half_ * STAGE + (word >> 2)][word & 3]; }

void fetch(uint index, out uvec4 quads[FETCHES]) {
    if (index >= steps)
        return;
    Step s = step_of(index);
    uvec2 base = panel_at(s.matrix, panel);
    uint block = s.chunk / BLOCK_CHUNKS, blocks = s.count / BLOCK_CHUNKS;
    [[unroll]] for (uint f = 0; f < FETCHES; f++) {
        uint i = lane + f * LANES, offset = s.chunk * CODE_QUADS * 16, end = s.count * CODE_QUADS;
        if (i >= D_END) {
            i -= D_END;
            offset = push.m + block * M_QUADS * 16;
            end = blocks * M_QUADS;
        } else if (i >= SUB_END) {
            i -= SUB_END;
            offset = push.d + block * D_QUADS * 16;
            end = blocks * D_QUADS;
        } else if (i >= CODES_END) {
            i -= CODES_END;
            offset = push.sub + block * SUB_QUADS * 16;
            end = blocks * SUB_QUADS;
        }
        if (i < end)
            quads[f] = Quads(at(base, offset + i * 16)).v[0];
    }
}

void store(uint index, const uvec4 quads[FETCHES]) {
    if (index >= steps)
        return;
    Step s = step_of(index);
    [[unroll]] for (uint f = 0; f < FETCHES; f++) {
        uint i = lane + f * LANES;
        uint to = i < CODES_END ? i / CODE_QUADS * CODE_PITCH + i % CODE_QUADS
                                : i + ROUND * (CODE_PITCH - CODE_QUADS);
        if (i < M_END)
            stage[s.half_ * STAGE + to] = quads[f];
    }
}

void staged_row(Step s, uint chunk, uint row, out uvec4 low, out uvec4 high) {
    uint raw[8];
    [[unroll]] for (uint v = 0; v < RAW; v++)
        raw[v] = staged(s, 4 * chunk * CODE_PITCH + v * PANEL_ROWS + row);
    unpack(raw, low, high);
}

float staged_half(Step s, uint region, uint block, uint row) {
    return f16_f32((staged(s, region + block * 8 + (row >> 1)) >> 16 * (row & 1)) & 0xFFFFu);
}

// A lane's row of a chunk times each token, into the products of this step.
void multiply(Step s, uint chunk, uint row);
// What other lanes than those that add make of a step's products; nothing if COMBINES is 0.
void combine(Step s);
// Adds a step's products to the lane's accumulator.
float take(Step s, uint token, uint row, float acc);

// The step's products are there.
void account(Step s) {
    uint token = lane / PANEL_ROWS, end = s.chunk + s.count;
    if (token >= count)
        return;
    acc = take(s, token, lane % PANEL_ROWS, acc);
    if (end % (SEGMENT / CHUNK) == 0 || end == chunks) {
        total = end <= SEGMENT / CHUNK ? acc : add(total, acc);
        acc = 0.0;
    }
    if (end == chunks && s.matrix + 1 < MATRICES)
        gate = total;
}

// Step `index`: what is stored at its end has been on its way since the step before, and what it asks for
// arrives in the step behind, so that two rounds are in flight.
void advance(uint index, uvec4 arriving[FETCHES], out uvec4 asked[FETCHES]) {
    Step s = step_of(index);
    fetch(index + 2, asked);
    for (uint u = lane; u < s.count * PANEL_ROWS; u += LANES)
        multiply(s, u / PANEL_ROWS, u % PANEL_ROWS);
    store(index + 1, arriving);
    barrier();
    // Others go on with the next step meanwhile: its products have a place of their own.
    if (COMBINES == 0) {
        account(s);
        return;
    }
    combine(s);
    if (index > 0)
        account(step_of(index - 1));
}

void main() {
    uvec2 range = token_range();
    lane = gl_LocalInvocationIndex;
    panel = push.panel_begin + gl_WorkGroupID.y;
    first = range.x + gl_WorkGroupID.x * TOKENS;
    if (first >= range.y)
        return;
    count = min(TOKENS, range.y - first);
    chunks = push.k / CHUNK;
    rounds = (chunks + ROUND - 1) / ROUND;
    tokens_at = at(slot(push.in_slot), push.in_offset + first * push.in_stride);
    steps = MATRICES * rounds;
    acc = total = gate = 0.0;
    uvec4 a[FETCHES], b[FETCHES];
    fill_table();
    fetch(0, b);
    fetch(1, a);
    store(0, b);
    barrier();
    for (uint i = 0; i < steps; i++) {
        advance(i, a, b);
        if (ROLLED != 0)
            [[unroll]] for (uint f = 0; f < FETCHES; f++)
                a[f] = b[f];
        else if (++i < steps)
            advance(i, b, a);
    }
    if (COMBINES != 0) {
        barrier();
        account(step_of(steps - 1));
    }
    uint n = panel * PANEL_ROWS + lane % PANEL_ROWS;
    if (lane / PANEL_ROWS < count && n < push.n)
        finish(GLU != 0 ? gate : total, total, n, first + lane / PANEL_ROWS);
}
