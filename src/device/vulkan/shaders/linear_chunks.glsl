// SPDX-License-Identifier: Apache-2.0
// The steps of linear_walk.glsl with quantised weights: what a step brings are STEP chunks, the weights
// unpacked to signed bytes.
//
// Included by linear_chunks_tile.glsl and linear_matrix.glsl, which say where a step lies in shared memory, and
// define multiply_chunk(); linear_q32_words.glsl and linear_q256_words.glsl define the rest of what is declared
// here.

const uint ROW_UNITS = (ROWS * STEP + LANES - 1) / LANES; // (chunk, row) that a lane brings
const uint TOKEN_UNITS = (TOKENS * STEP + LANES - 1) / LANES;

// What is on its way from memory.
uint raw_codes[ROW_UNITS * RAW];
uvec2 raw_row_words[ROW_UNITS];
uvec4 raw_values[TOKEN_UNITS * 2];
uvec2 raw_token_words[TOKEN_UNITS];

// Where chunk `c` of the step keeps the values of a row, and what else a chunk needs; likewise of a token.
void put_row(uint c, uint row, uvec4 low, uvec4 high, uvec2 words);
void put_token(uint c, uint token, uvec4 low, uvec4 high, uvec2 words);
// Words of a chunk for a row of a panel, and for a token, as they lie in memory; then made ready.
uvec2 fetch_row_words(uvec2 base, uint chunk, uint row);
uvec2 fetch_token_words(uvec2 base, uint chunk);
uvec2 ready_row_words(uvec2 raw, uint chunk, uint row);
uvec2 ready_token_words(uvec2 raw, uint chunk);
// Where `chunk` begins a block: what the whole block needs, from memory and into shared memory.
void fetch_block(uint chunk);
void store_block(uint chunk);
// Multiplies chunk `index` of the step, which is `chunk` of K, into acc.
void multiply_chunk(uint index, uint chunk);

void fetch(uint k) {
    uint chunk = k / CHUNK, chunks = push.k / CHUNK;
    [[unroll]] for (uint u = 0; u < ROW_UNITS; u++) {
        uint i = lane + u * LANES, c = min(chunk + i / ROWS, chunks - 1), r;
        uvec2 base = row_base(i % ROWS, r);
        Words codes = Words(at(base, c * 64 * BITS));
        [[unroll]] for (uint v = 0; v < RAW; v++)
            raw_codes[u * RAW + v] = codes.v[v * PANEL_ROWS + r];
        raw_row_words[u] = fetch_row_words(base, c, r);
    }
    [[unroll]] for (uint u = 0; u < TOKEN_UNITS; u++) {
        uint i = lane + u * LANES, c = min(chunk + i / TOKENS, chunks - 1);
        uvec2 base = token_base(i % TOKENS);
        Quads q = Quads(at(base, c * CHUNK));
        raw_values[2 * u] = q.v[0];
        raw_values[2 * u + 1] = q.v[1];
        raw_token_words[u] = fetch_token_words(base, c);
    }
    fetch_block(chunk);
}

void store(uint k) {
    uint chunk = k / CHUNK;
    [[unroll]] for (uint u = 0; u < ROW_UNITS; u++) {
        uint i = lane + u * LANES, c = i / ROWS, row = i % ROWS, raw[8];
        [[unroll]] for (uint v = 0; v < RAW; v++)
            raw[v] = raw_codes[u * RAW + v];
        uvec4 low, high;
        unpack(raw, low, high);
        if (c < STEP)
            put_row(c, row, low, high, ready_row_words(raw_row_words[u], chunk + c, row));
    }
    [[unroll]] for (uint u = 0; u < TOKEN_UNITS; u++) {
        uint i = lane + u * LANES, c = i / TOKENS, token = i % TOKENS;
        if (c < STEP)
            put_token(c, token, raw_values[2 * u], raw_values[2 * u + 1],
                      ready_token_words(raw_token_words[u], chunk + c));
    }
    store_block(chunk);
}

void multiply(uint k, uint count) {
    for (uint i = 0; i * CHUNK < count; i++)
        multiply_chunk(i, k / CHUNK + i);
}
