// SPDX-License-Identifier: Apache-2.0
// What linear_chunks.glsl needs of blocks of 256: per chunk the scales and the shift, per block the rest.
// Included by linear_q256.glsl and linear_q256_matrix.comp, which say where minima and their sums lie.

const bool BY_16 = FORM == SUB_NIBBLES || FORM == SUB_16;
// Words that hold a block's minima of one row, one a byte; and per token twice as many hold the sums that
// they are multiplied with, as 256 * high + low with signed bytes.
const uint MINIMA = HAS_MIN == 0 ? 0 : FORM == SUB_NIBBLES ? 4 : 2;

// Where a block's scales lie, the scales of its minima, word `w` of a row's minima, and of the sums that they
// are multiplied with.
void put_row_d(uint row, float d);
void put_row_m(uint row, float m);
void put_token_d(uint token, float d);
void put_minima(uint row, uint w, uint word);
void put_sums(uint token, uint w, uint high, uint low);

// The word that holds sub-scale `s` of a block's row.
uint sub_word(uvec2 base, uint block, uint s, uint row) {
    uint bytes = FORM == SUB_32 ? 128 : 256;
    return Words(at(base, push.sub + block * bytes)).v[s * 4 + (row >> 2)];
}

uvec2 fetch_row_words(uvec2 base, uint chunk, uint row) {
    uint block = chunk >> 3, c = chunk & 7;
    if (BY_16)
        return uvec2(sub_word(base, block, 2 * c, row), sub_word(base, block, 2 * c + 1, row));
    return uvec2(FORM == SUB_NONE ? 0 : sub_word(base, block, c, row), 0);
}

// The scales of both halves.
uvec2 ready_row_words(uvec2 raw, uint chunk, uint row) {
    uint byte = row & 3;
    ivec2 scale = ivec2(signed_byte(raw.x, byte), signed_byte(raw.y, byte));
    return uvec2(FORM == SUB_NIBBLES ? scale & 15 : scale);
}

uvec2 fetch_token_words(uvec2 base, uint chunk) {
    return uvec2(Words(at(base, push.act_shift)).v[chunk >> 2], 0);
}

// What a product is multiplied with for its shift.
uvec2 ready_token_words(uvec2 raw, uint chunk) { return uvec2(1u << ((raw.x >> 8 * (chunk & 3)) & 3), 0); }

// ---- what whole blocks need ----

const uint ROW_BLOCKS = (ROWS + LANES - 1) / LANES; // rows whose scales a lane brings
const uint TOKEN_BLOCKS = (TOKENS + LANES - 1) / LANES;
const uint MINIMA_UNITS = (MINIMA * ROWS + LANES) / LANES; // (word, row); one too many rather than none
const uint SUM_UNITS = (MINIMA * TOKENS + LANES) / LANES;

// What is on its way from memory.
uint raw_d[ROW_BLOCKS], raw_m[ROW_BLOCKS];
float raw_token_d[TOKEN_BLOCKS];
uvec4 raw_minima[MINIMA_UNITS]; // words that hold one minimum of this row each
ivec4 raw_sums[SUM_UNITS];      // pairs of sums
uint raw_shifts[SUM_UNITS];

void fetch_minima(uint block) {
    [[unroll]] for (uint u = 0; u < MINIMA_UNITS; u++) {
        uint i = min(lane + u * LANES, MINIMA * ROWS - 1), r;
        uvec2 base = row_base(i % ROWS, r);
        [[unroll]] for (uint b = 0; b < 4; b++) {
            uint s = 4 * (i / ROWS) + b;
            raw_minima[u][b] = sub_word(base, block, FORM == SUB_MIN ? 8 + s : s, r);
        }
    }
    [[unroll]] for (uint u = 0; u < SUM_UNITS; u++) {
        uint i = min(lane + u * LANES, MINIMA * TOKENS - 1), w = i / TOKENS;
        uvec2 base = token_base(i % TOKENS);
        uint c = block * 8 + (FORM == SUB_MIN ? 4 * w : 2 * w);
        [[unroll]] for (uint b = 0; b < (FORM == SUB_MIN ? 4 : 2); b++)
            raw_sums[u][b] = Ints(at(base, push.act_sum)).v[c + b];
        raw_shifts[u] = Words(at(base, push.act_shift)).v[c >> 2] >> 8 * (c & 3);
    }
}

void fetch_block(uint chunk) {
    uint block = chunk >> 3, r;
    if ((chunk & 7) != 0)
        return;
    [[unroll]] for (uint u = 0; u < ROW_BLOCKS; u++) {
        uvec2 base = row_base(min(lane + u * LANES, ROWS - 1), r);
        raw_d[u] = uint(Halves(at(base, push.d)).v[block * PANEL_ROWS + r]);
        if (HAS_MIN != 0)
            raw_m[u] = uint(Halves(at(base, push.m)).v[block * PANEL_ROWS + r]);
    }
    [[unroll]] for (uint u = 0; u < TOKEN_BLOCKS; u++)
        raw_token_d[u] = Floats(at(token_base(min(lane + u * LANES, TOKENS - 1)), push.act_d)).v[block];
    if (HAS_MIN != 0)
        fetch_minima(block);
}

// Four minima of a row: those of sub-blocks 4w .. 4w + 3, one a byte.
uint four_minima(uvec4 raw, uint row) {
    uint word = 0;
    [[unroll]] for (uint b = 0; b < 4; b++) {
        uint byte = (raw[b] >> 8 * (row & 3)) & 0xFFu;
        word |= (FORM == SUB_MIN ? byte : byte >> 4) << 8 * b;
    }
    return word;
}

// The sums that four minima are multiplied with, shifted: at most 32512, so that both bytes are signed ones.
void four_sums(ivec4 raw, uint shifts, out uint high, out uint low) {
    high = low = 0;
    [[unroll]] for (uint b = 0; b < 4; b++) {
        uint c = FORM == SUB_MIN ? b : b >> 1;
        int first16 = bitfieldExtract(raw[c], 0, 16), second16 = raw[c] >> 16;
        int s = (FORM == SUB_MIN ? first16 + second16 : (b & 1) == 0 ? first16 : second16)
                << ((shifts >> 8 * c) & 3);
        int signed_low = bitfieldExtract(s, 0, 8);
        low |= (uint(signed_low) & 0xFFu) << 8 * b;
        high |= (uint(s - signed_low) >> 8 & 0xFFu) << 8 * b;
    }
}

void store_minima() {
    [[unroll]] for (uint u = 0; u < MINIMA_UNITS; u++) {
        uint i = lane + u * LANES;
        if (i < MINIMA * ROWS)
            put_minima(i % ROWS, i / ROWS, four_minima(raw_minima[u], i % PANEL_ROWS));
    }
    [[unroll]] for (uint u = 0; u < SUM_UNITS; u++) {
        uint i = lane + u * LANES, high, low;
        four_sums(raw_sums[u], raw_shifts[u], high, low);
        if (i < MINIMA * TOKENS)
            put_sums(i % TOKENS, i / TOKENS, high, low);
    }
}

void store_block(uint chunk) {
    if ((chunk & 7) != 0)
        return;
    [[unroll]] for (uint u = 0; u < ROW_BLOCKS; u++) {
        uint i = lane + u * LANES;
        if (i < ROWS)
            put_row_d(i, f16_f32(raw_d[u]));
        if (i < ROWS && HAS_MIN != 0)
            put_row_m(i, f16_f32(raw_m[u]));
    }
    [[unroll]] for (uint u = 0; u < TOKEN_BLOCKS; u++)
        if (lane + u * LANES < TOKENS)
            put_token_d(lane + u * LANES, raw_token_d[u]);
    if (HAS_MIN != 0)
        store_minima();
}
