#version 460
// SPDX-License-Identifier: Apache-2.0
// ATTENTION over the paged cache (docs/numerics.md, "Attention"). Grid of tiles x kv heads x key blocks.
//
// The query heads that share a kv head, of all rows, are one list: query i is head i % SHARED of row
// i / SHARED. A workgroup of 256 lanes takes QUERIES of them, so that they read a block of keys and values
// once. Of those queries, a stretch of rows of one sequence is attended at a time.
//
// For one key block: a lane scores QUERIES / 4 keys for four queries; 16 lanes per query turn scores into p
// and the 16 sums of p; a lane per two (or one) dims and ROWS queries gives the outputs. Everything that has
// an order is ascending within one lane. Keys that a query does not see are left out of its sums.
//
// SPLIT: a workgroup leaves what each of its blocks amounts to (o, m, l) in a temporary, and
// attention_merge.comp merges. Else it merges as it goes and writes the result.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"
#include "cache.glsl"

layout(constant_id = 3) const uint KEY_DIM = 64;
layout(constant_id = 4) const uint VALUE_DIM = 64;
layout(constant_id = 5) const uint SHARED = 1;
layout(constant_id = 6) const uint QUERIES = 16; // 4, 8 or 16
layout(constant_id = 7) const uint ROWS = 4;     // queries whose outputs one lane sums: a multiple of 4
layout(constant_id = 8) const uint DIMS = 1;     // and dims: 1 or 2
layout(constant_id = 9) const uint SPLIT = 0;
layout(constant_id = 10) const uint DEPTH = 8; // keys' or values' loads that a lane has in flight

// The driver unrolls what is marked so. Bounds are specialization constants there: a front end that unrolls
// by itself loses the `precise` of the copies.

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place q, to;
    CacheLayer layer;
    uint window; // 0: none
    uint kv_begin;
    float scale;
    uint blocks; // of a row, at most
    uvec2 parts; // SPLIT: (rows, heads, blocks) of VALUE_DIM + 2 floats
} push;

const uint LANES = 256;
const uint FOURS = QUERIES / 4;
const uint SLOTS = (VALUE_DIM + DIMS - 1) / DIMS; // of the output, DIMS dims each
const uint NOTHING = 0, FIRST = 1, LATER = 2;     // what a block is to a query

shared vec4 q_rounded[KEY_DIM * FOURS];    // (key_dim, queries)
shared vec4 p[KEY_BLOCK * FOURS];          // (keys, queries): scores, then p
shared float maxima[16 * QUERIES];         // (16 lanes, queries)
shared float p_sums[16 * QUERIES];         // the same
shared uint row_of[QUERIES];               // 0xFFFFFFFF: no such query
shared uint first_key[QUERIES], last_key[QUERIES], sequence[QUERIES];
shared float state_m[QUERIES], state_l[QUERIES], alpha[QUERIES], beta[QUERIES];
shared uint kind[QUERIES];

// The queries [begin, end) of the tile that are attended now, and what they see.
struct Stretch {
    uint begin, end;
    uint first, last;         // keys that any of them sees
    uint all_first, all_last; // keys that all of them see
    Words pages;
};

float component(uint key, uint query) { return p[key * FOURS + query / 4][query % 4]; }

// The first query of the tile, in the list. Late rows see more keys: they go first.
uint tile_begin() { return (gl_NumWorkGroups.x - 1 - gl_WorkGroupID.x) * QUERIES; }

// The head of a query of the tile.
uint query_head(uint query) {
    return (push.kv_begin + gl_WorkGroupID.y) * SHARED + (tile_begin() + query) % SHARED;
}

// ---- the tile ----

void load_rows(RunBlock run, uint row_begin, uint n) {
    uint lane = gl_LocalInvocationID.x, i = tile_begin() + lane;
    if (lane < QUERIES) {
        uint row = row_begin + i / SHARED;
        bool own = i < n * SHARED;
        uint position = own ? Words(run.position).v[row] : 0;
        row_of[lane] = own ? row : 0xFFFFFFFFu;
        sequence[lane] = own ? Words(run.sequence).v[row] : 0xFFFFFFFFu;
        last_key[lane] = position;
        first_key[lane] = push.window != 0 && position + 1 > push.window ? position + 1 - push.window : 0;
    }
    barrier();
}

float rounded_entry(RunBlock run, uint query, uint d) {
    if (row_of[query] == 0xFFFFFFFFu)
        return 0.0;
    Floats q = Floats(row_at(run, push.q, row_of[query]));
    return round_bits(mul(q.v[query_head(query) * KEY_DIM + d], push.scale), 11);
}

void load_queries(RunBlock run) {
    for (uint i = gl_LocalInvocationID.x; i < KEY_DIM * FOURS; i += LANES) {
        uint d = i % KEY_DIM, f = i / KEY_DIM, query = 4 * f;
        q_rounded[d * FOURS + f] = vec4(rounded_entry(run, query, d), rounded_entry(run, query + 1, d),
                                        rounded_entry(run, query + 2, d), rounded_entry(run, query + 3, d));
    }
    barrier();
}

Stretch stretch_from(RunBlock run, uint begin) {
    Stretch s;
    s.begin = begin;
    s.end = begin;
    s.first = first_key[begin];
    s.last = last_key[begin];
    s.all_first = s.first;
    s.all_last = s.last;
    while (s.end < QUERIES && sequence[s.end] == sequence[begin]) {
        s.first = min(s.first, first_key[s.end]);
        s.last = max(s.last, last_key[s.end]);
        s.all_first = max(s.all_first, first_key[s.end]);
        s.all_last = min(s.all_last, last_key[s.end]);
        s.end++;
    }
    s.pages = page_list(run, push.layer, sequence[begin]);
    return s;
}

// SPLIT: whether this workgroup has a block of any stretch.
bool has_block(RunBlock run) {
    for (uint begin = 0; begin < QUERIES && row_of[begin] != 0xFFFFFFFFu;) {
        Stretch s = stretch_from(run, begin);
        if (s.first / KEY_BLOCK + gl_WorkGroupID.z <= s.last / KEY_BLOCK)
            return true;
        begin = s.end;
    }
    return false;
}

// ---- one key block ----

// FOURS neighbouring keys' entries of one dim: f16, two in a word. Keys lie 16 to a dim.
uvec2 key_bits(uvec2 keys, uint dim) {
    if (FOURS == 4)
        return uvec2(Words(keys).v[8 * dim], Words(keys).v[8 * dim + 1]);
    return uvec2(FOURS == 2 ? Words(keys).v[8 * dim] : uint(Halves(keys).v[16 * dim]), 0);
}

vec4 scores[FOURS]; // (keys, queries): this lane's

void add_dim(uvec2 bits, uint dim, uint f) {
    vec4 q = q_rounded[dim * FOURS + f], x = vec4(kv_f32(bits.x), kv_f32(bits.y));
    [[unroll]] for (uint i = 0; i < FOURS; i++)
        scores[i] = add(scores[i], mul(q, vec4(x[i])));
}

// p[key][query] = the score, of FOURS keys and four queries a lane.
void score(Stretch s, uvec2 layer_base, uint block) {
    uint lane = gl_LocalInvocationID.x, f = lane / (LANES / FOURS), first = lane % (LANES / FOURS) * FOURS;
    uint key = block * KEY_BLOCK + first, slot = key % PAGE_TOKENS;
    if (key + FOURS <= s.first || key > s.last)
        return;
    uvec2 page = page_at(layer_base, push.layer, s.pages.v[key / PAGE_TOKENS],
                         push.kv_begin + gl_WorkGroupID.y);
    uvec2 keys = at(page, (slot / 16 * KEY_DIM * 16 + slot % 16) * 2); // (key_dim, 16)
    [[unroll]] for (uint i = 0; i < FOURS; i++)
        scores[i] = vec4(0);
    uint dim = 0;
    for (; dim + DEPTH <= KEY_DIM; dim += DEPTH) {
        uvec2 bits[DEPTH];
        [[unroll]] for (uint d = 0; d < DEPTH; d++)
            bits[d] = key_bits(keys, dim + d);
        [[unroll]] for (uint d = 0; d < DEPTH; d++)
            add_dim(bits[d], dim + d, f);
    }
    for (; dim < KEY_DIM; dim++)
        add_dim(key_bits(keys, dim), dim, f);
    [[unroll]] for (uint i = 0; i < FOURS; i++)
        p[(first + i) * FOURS + f] = scores[i];
}

// Lane (l, query) takes the keys l, l + 16, ... of the block that the query sees; the queries lie side by
// side, so that shared memory is read without conflicts.
void softmax(Stretch s, uint block) {
    uint lane = gl_LocalInvocationID.x, query = lane % QUERIES, l = lane / QUERIES;
    bool own = lane < 16 * QUERIES && query >= s.begin && query < s.end;
    uint start = block * KEY_BLOCK, from = 1, to = 0; // keys of the block, both included
    if (own && first_key[query] < start + KEY_BLOCK && last_key[query] >= start) {
        from = max(first_key[query], start) - start;
        to = min(last_key[query] - start, KEY_BLOCK - 1);
    }
    bool sees = from <= to;
    uint begin = (from & ~15u) + l;
    begin = begin < from ? begin + 16 : begin;
    float m = uintBitsToFloat(0xFF800000u);
    if (sees)
        for (uint key = begin; key <= to; key += 16) {
            float x = component(key, query);
            m = x > m ? x : m;
        }
    if (lane < 16 * QUERIES)
        maxima[lane] = m;
    barrier();
    float sum = 0.0;
    if (sees) {
        for (uint i = 0; i < 16; i++) {
            float x = maxima[i * QUERIES + query];
            m = x > m ? x : m;
        }
        for (uint key = begin; key <= to; key += 16) {
            float x = round_bits(exp_softmax(sub(component(key, query), m)), 11);
            p[key * FOURS + query / 4][query % 4] = x;
            sum = add(sum, x);
        }
    }
    if (lane < 16 * QUERIES)
        p_sums[lane] = sum;
    if (lane < QUERIES) { // the first of the 16, which have the same m
        beta[query] = m;
        kind[query] = !sees ? NOTHING : block == first_key[query] / KEY_BLOCK ? FIRST : LATER;
    }
    barrier();
}

float p_sum(uint l, uint query) { return p_sums[l * QUERIES + query]; }

// (s[l] + s[l + 8]) + (s[l + 4] + s[l + 12]): two levels of the tree.
float quarter(uint l, uint query) {
    float a = add(p_sum(l, query), p_sum(l + 8, query));
    return add(a, add(p_sum(l + 4, query), p_sum(l + 12, query)));
}

float tree_16(uint query) {
    float a = add(quarter(0, query), quarter(2, query));
    return add(a, add(quarter(1, query), quarter(3, query)));
}

// Takes the block's m (in beta) and l into the states of the queries, and leaves the factors of the outputs.
void merge_states() {
    uint query = gl_LocalInvocationID.x;
    if (query >= QUERIES || kind[query] == NOTHING)
        return;
    float mb = beta[query], lb = tree_16(query), m = state_m[query];
    if (SPLIT != 0 || kind[query] == FIRST) {
        state_m[query] = mb;
        state_l[query] = lb;
        return;
    }
    float most = m > mb ? m : mb;
    float a = exp_softmax(sub(m, most)), b = exp_softmax(sub(mb, most));
    state_m[query] = most;
    state_l[query] = add(mul(state_l[query], a), mul(lb, b));
    alpha[query] = a;
    beta[query] = b;
}

// ---- outputs: this lane's DIMS dims from `dim`, queries from `query` ----

const uint SUMS = DIMS * ROWS / 4;
vec4 part[SUMS], total[SUMS]; // (dims, queries): of the block, and merged

// The values of this lane's dims: two f16.
uint value_bits(uvec2 values, uint slot, uint dim) {
    uint i = slot * VALUE_DIM + dim;
    if (DIMS == 2 && VALUE_DIM % 2 == 0)
        return Words(values).v[i / 2];
    uint low = uint(Halves(values).v[i]);
    return DIMS == 1 || dim + 1 >= VALUE_DIM ? low : low | (uint(Halves(values).v[i + 1]) << 16);
}

void accumulate(uint bits, uint key, uint query) {
    vec2 v = kv_f32(bits);
    [[unroll]] for (uint f = 0; f < ROWS / 4; f++) {
        vec4 weights = p[key * FOURS + query / 4 + f];
        [[unroll]] for (uint d = 0; d < DIMS; d++)
            part[d * (ROWS / 4) + f] = add(part[d * (ROWS / 4) + f], mul(weights, vec4(v[d])));
    }
}

bool sees(uint query, uint position) { return position >= first_key[query] && position <= last_key[query]; }

// The same where not every query sees the key: one that does not keeps its sum as it is, since p and the
// value may be anything.
void accumulate_seen(uint bits, uint key, uint query, uint position) {
    vec2 v = kv_f32(bits);
    [[unroll]] for (uint f = 0; f < ROWS / 4; f++) {
        uint i = query + 4 * f;
        vec4 weights = p[key * FOURS + i / 4];
        bvec4 seen = bvec4(sees(i, position), sees(i + 1, position), sees(i + 2, position), sees(i + 3, position));
        [[unroll]] for (uint d = 0; d < DIMS; d++) {
            vec4 sum = part[d * (ROWS / 4) + f];
            part[d * (ROWS / 4) + f] = mix(sum, add(sum, mul(weights, vec4(v[d]))), seen);
        }
    }
}

// part = the sum of p * v over the keys of the block.
void attend_values(Stretch s, uvec2 layer_base, uint block, uint dim, uint query) {
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        part[i] = vec4(0);
    uint start = block * KEY_BLOCK;
    uint key = max(s.first, start) - start, last = min(s.last - start, KEY_BLOCK - 1);
    while (key <= last) {
        uint position = start + key, slot = position % PAGE_TOKENS;
        uvec2 page = page_at(layer_base, push.layer, s.pages.v[position / PAGE_TOKENS],
                             push.kv_begin + gl_WorkGroupID.y);
        uvec2 values = at(page, PAGE_TOKENS * KEY_DIM * 2); // (64, value_dim)
        uint end = min(key + PAGE_TOKENS - 1 - slot, last);  // of the page
        while (key <= end) {
            slot = (start + key) % PAGE_TOKENS;
            bool full = start + key >= s.all_first && start + key + DEPTH - 1 <= s.all_last;
            if (full && key + DEPTH - 1 <= end) {
                uint bits[DEPTH];
                [[unroll]] for (uint d = 0; d < DEPTH; d++)
                    bits[d] = value_bits(values, slot + d, dim);
                [[unroll]] for (uint d = 0; d < DEPTH; d++)
                    accumulate(bits[d], key + d, query);
                key += DEPTH;
            } else {
                accumulate_seen(value_bits(values, slot, dim), key, query, start + key);
                key++;
            }
        }
    }
}

void merge_outputs(uint query) {
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        uint i = query + j, what = kind[i];
        [[unroll]] for (uint d = 0; d < DIMS; d++) {
            uint v = d * (ROWS / 4) + j / 4;
            float before = total[v][j % 4], own = part[v][j % 4];
            float merged = keep(add(mul(before, alpha[i]), mul(own, beta[i])));
            total[v][j % 4] = what == FIRST ? own : what == LATER ? merged : before;
        }
    }
}

// ---- where results go ----

// What this block amounts to, for attention_merge: VALUE_DIM floats of o, then m and l.
void store_part(uint block, uint dim, uint query) {
    uint heads = SHARED * push.layer.n_kv_head;
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        uint i = query + j;
        if (kind[i] == NOTHING)
            continue;
        uint index = (row_of[i] * heads + query_head(i)) * push.blocks + block - first_key[i] / KEY_BLOCK;
        Floats to = Floats(element(push.parts, index, 4 * (VALUE_DIM + 2)));
        [[unroll]] for (uint d = 0; d < DIMS; d++)
            if (dim + d < VALUE_DIM)
                to.v[dim + d] = part[d * (ROWS / 4) + j / 4][j % 4];
        if (dim == 0) {
            to.v[VALUE_DIM] = state_m[i];
            to.v[VALUE_DIM + 1] = state_l[i];
        }
    }
}

void store_result(RunBlock run, uint dim, uint query) {
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        uint i = query + j;
        if (row_of[i] == 0xFFFFFFFFu)
            continue;
        Floats to = Floats(row_at(run, push.to, row_of[i]));
        float inverse = rcp(state_l[i]);
        [[unroll]] for (uint d = 0; d < DIMS; d++)
            if (dim + d < VALUE_DIM)
                to.v[query_head(i) * VALUE_DIM + dim + d] =
                    mul(total[d * (ROWS / 4) + j / 4][j % 4], inverse);
    }
}

void main() {
    RunBlock run = RunBlock(push.run);
    uint n = row_count(run, 0), row_begin = border(n, push.rows.begin);
    n = border(n, push.rows.end) - row_begin;
    if (tile_begin() >= n * SHARED)
        return;
    load_rows(run, row_begin, n);
    if (SPLIT != 0 && !has_block(run))
        return;
    load_queries(run);
    uvec2 layer_base = beyond(run.slots[SLOT_CACHE], push.layer.offset);
    uint lane = gl_LocalInvocationID.x, dim = lane % SLOTS * DIMS, query = lane / SLOTS * ROWS;
    bool writer = query < QUERIES;
    query = writer ? query : 0;
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        total[i] = vec4(0);
    for (uint begin = 0; begin < QUERIES && row_of[begin] != 0xFFFFFFFFu;) {
        Stretch s = stretch_from(run, begin);
        uint step = SPLIT != 0 ? gl_NumWorkGroups.z : 1;
        uint block = s.first / KEY_BLOCK + (SPLIT != 0 ? gl_WorkGroupID.z : 0);
        for (; block <= s.last / KEY_BLOCK; block += step) {
            score(s, layer_base, block);
            barrier();
            softmax(s, block);
            merge_states();
            if (writer)
                attend_values(s, layer_base, block, dim, query);
            barrier();
            if (writer && SPLIT != 0)
                store_part(block, dim, query);
            else if (writer)
                merge_outputs(query);
        }
        begin = s.end;
    }
    if (SPLIT == 0 && writer)
        store_result(run, dim, query);
}
