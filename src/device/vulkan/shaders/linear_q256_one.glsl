// SPDX-License-Identifier: Apache-2.0
// linear_one.glsl with blocks of 256. A team of lanes takes a block; side by side they have a chunk, each one
// word of its four rows, and each adds up its part of all eight. These are integers, whose sum has no order:
// the team's are added from shared memory, by a lane for each row of each block, and become floats.
#include "linear.glsl"

const uint COMBINES = 1;
#include "linear_one.glsl"

const uint WORDS = BITS < 4 ? 2 : 4; // lanes of a team that have the same rows
const uint GROUPS = 8 / WORDS;       // a lane's part of a chunk: so many times four elements of each row
const uint TEAM = 4 * WORDS, TEAMS = LANES / TEAM;
const bool HAS_MORE = BITS == 3 || BITS == 5 || BITS == 6;

const uint AT_ONCE = ROLLED != 0 ? 1 : 8; // chunks of a lane in flight; divides 8
const uint BLOCKS = SECTION / 8;
const uint UNITS = (BLOCKS * PANEL_ROWS + LANES - 1) / LANES; // (block, row) of a lane
const uint SUB_WORDS = FORM == SUB_32 ? 32 : 64;              // of a block
const bool TWO_SCALES = FORM == SUB_NIBBLES || FORM == SUB_16;
shared ivec4 parts[BLOCKS * TEAM];
shared ivec4 minimum_parts[HAS_MIN != 0 ? BLOCKS * TEAM : 1];
shared float terms[BLOCKS * PANEL_ROWS]; // of a block: its sum, scaled
shared float minimum_terms[HAS_MIN != 0 ? BLOCKS * PANEL_ROWS : 1];

uint word, quad;                       // of the lane: which word of a row; which four rows
float dw[UNITS], dm[UNITS], da[UNITS]; // of a lane's units

// A lane's bytes of a chunk, a word of each of its rows; `more`: the words that hold high bits.
struct Codes {
    uvec4 words, more;
};

Codes codes_of(uvec2 base, uint chunk) {
    uint first = chunk * 4 * BITS + quad;
    Codes c;
    c.words = Quads(base).v[first + 4 * word];
    c.more = uvec4(0);
    if (HAS_MORE)
        c.more = Quads(base).v[first + 4 * (BITS == 3 ? 2 : BITS == 5 ? 4 : 4 + (word & 1))];
    return c;
}

uint table_values(uint codes, uint i) {
    uint values = 0;
    [[unroll]] for (uint b = 0; b < 4; b++)
        values |= ((pairs[(codes >> 8 * b) & 0xFFu] >> 16 * i) & 0xFFu) << 8 * b;
    return values;
}

// The values of group word + WORDS * i of each row, one a byte: see code_group().
uvec4 values_of(Codes c, uint i) {
    uint g = word + WORDS * i, high2 = g >> 1 << 1;
    uvec4 code;
    if (TABLE != 0)
        return uvec4(table_values(c.words.x, i), table_values(c.words.y, i), table_values(c.words.z, i),
                     table_values(c.words.w, i));
    if (BITS < 4)
        code = (c.words >> high2) & 0x03030303u;
    else
        code = (c.words >> 4 * i) & 0x0F0F0F0Fu;
    if (BITS == 3)
        code |= ((c.more >> g) & 0x01010101u) << 2;
    if (BITS == 5)
        code |= ((c.more >> g) & 0x01010101u) << 4;
    if (BITS == 6)
        code |= ((c.more >> high2) & 0x03030303u) << 4;
    // c - OFFSET byte by byte: the top bit keeps a borrow from its neighbour
    return OFFSET == 0 ? code : ((code | 0x80808080u) - OFFSET * 0x01010101u) ^ 0x80808080u;
}

// Groups [first, end) of the lane's, times the token.
ivec4 dots(Codes c, uint chunk, uint first, uint end) {
    ivec4 sum = ivec4(0);
    [[unroll]] for (uint i = first; i < end; i++) {
        uvec4 w = values_of(c, i);
        uint a = Words(token).v[chunk * 8 + word + WORDS * i];
        sum = ivec4(dot4(w.x, a, sum.x), dot4(w.y, a, sum.y), dot4(w.z, a, sum.z), dot4(w.w, a, sum.w));
    }
    return sum;
}

// The scales that combine() wants.
void ask(uvec2 base, uint chunk, uint count) {
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint u = lane + i * LANES, at_ = chunk / 8 * PANEL_ROWS + u;
        if (u >= count / 8 * PANEL_ROWS)
            continue;
        dw[i] = f16_f32(uint(Halves(at(base, push.d)).v[at_]));
        da[i] = Floats(at(token, push.act_d)).v[at_ / PANEL_ROWS];
        if (HAS_MIN != 0)
            dm[i] = f16_f32(uint(Halves(at(base, push.m)).v[at_]));
    }
}

// A byte of each of the lane's rows.
ivec4 bytes(uint w) { return ivec4(int(w << 24), int(w << 16), int(w << 8), int(w)) >> 24; }

// Word s of a block's sub-scales, of the lane's rows.
uint sub_word(uvec2 subs, uint block, uint s) { return Words(subs).v[block * SUB_WORDS + s * 4 + quad]; }

ivec4 product(Codes codes, uvec2 subs, uint block, uint c) {
    uint chunk = block * 8 + c;
    if (TWO_SCALES) {
        ivec4 low = bytes(sub_word(subs, block, 2 * c)), high = bytes(sub_word(subs, block, 2 * c + 1));
        if (FORM == SUB_NIBBLES) {
            low &= 15;
            high &= 15;
        }
        return dots(codes, chunk, 0, GROUPS / 2) * low + dots(codes, chunk, GROUPS / 2, GROUPS) * high;
    }
    ivec4 sum = dots(codes, chunk, 0, GROUPS);
    return FORM == SUB_NONE ? sum : sum * bytes(sub_word(subs, block, c));
}

ivec4 minimum(uvec2 subs, uint block, uint c) {
    int pair = Ints(at(token, push.act_sum)).v[block * 8 + c];
    int low = bitfieldExtract(pair, 0, 16), high = pair >> 16;
    if (FORM == SUB_NIBBLES)
        return (bytes(sub_word(subs, block, 2 * c)) >> 4 & 15) * low +
               (bytes(sub_word(subs, block, 2 * c + 1)) >> 4 & 15) * high;
    return bytes(sub_word(subs, block, 8 + c)) * (low + high);
}

void multiply(uvec2 base, uint chunk, uint count, uint half_) {
    word = lane % TEAM / 4;
    quad = lane % 4;
    ask(base, chunk, count);
    uvec2 subs = at(base, push.sub), shift_at = at(token, push.act_shift);
    for (uint b = lane / TEAM; b < count / 8; b += TEAMS) {
        uint block = chunk / 8 + b;
        uint shifts[2] = uint[2](Words(shift_at).v[block * 2], Words(shift_at).v[block * 2 + 1]);
        ivec4 isum = ivec4(0), msum = ivec4(0);
        for (uint c0 = 0; c0 < 8; c0 += AT_ONCE) {
            Codes codes[AT_ONCE];
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++)
                codes[i] = codes_of(base, block * 8 + c0 + i);
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++) {
                uint c = c0 + i;
                isum += product(codes[i], subs, block, c) << (shifts[c >> 2] >> 8 * (c & 3) & 3);
            }
        }
        parts[b * TEAM + word * 4 + quad] = isum;
        if (HAS_MIN == 0)
            continue;
        [[unroll]] for (uint i = 0; i < GROUPS; i++) { // each lane of the same rows has chunks of its own
            uint c = word + WORDS * i;
            msum += minimum(subs, block, c) << (shifts[c >> 2] >> 8 * (c & 3) & 3);
        }
        minimum_parts[b * TEAM + word * 4 + quad] = msum;
    }
}

void combine(uint count) {
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint u = lane + i * LANES, b = u / PANEL_ROWS, row = u % PANEL_ROWS;
        if (b >= count / 8)
            continue;
        int isum = 0, msum = 0;
        [[unroll]] for (uint w = 0; w < WORDS; w++) {
            uint part = b * TEAM + w * 4 + (row >> 2);
            isum += parts[part][row & 3];
            if (HAS_MIN != 0)
                msum += minimum_parts[part][row & 3];
        }
        terms[u] = mul(exact_float(isum), mul(dw[i], da[i]));
        if (HAS_MIN != 0)
            minimum_terms[u] = mul(exact_float(msum), mul(dm[i], da[i]));
    }
}

float add_block(uint u, float acc) {
    acc = add(acc, terms[u]);
    return HAS_MIN != 0 ? sub(acc, minimum_terms[u]) : acc;
}

float take(uint chunk, uint count, uint half_, float acc) {
    uint u = chunk / 8 * PANEL_ROWS + lane;
    if (count == PART) { // the usual case: a known count lets the loads run ahead of the adds
        [[unroll]] for (uint b = 0; b < PART / 8; b++)
            acc = add_block(u + b * PANEL_ROWS, acc);
        return acc;
    }
    for (uint b = 0; b < count / 8; b++)
        acc = add_block(u + b * PANEL_ROWS, acc);
    return acc;
}
