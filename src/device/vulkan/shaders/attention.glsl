// SPDX-License-Identifier: Apache-2.0
// ATTENTION over the paged cache (docs/numerics.md, "Attention"). Grid of tiles x kv heads x key blocks.
//
// The query heads that share a kv head, of all rows, are one list: query i is head i % SHARED of row
// i / SHARED. A workgroup of 256 lanes takes QUERIES of them, so that they read a block of keys and values
// once. Of those queries, a stretch of rows of one sequence is attended at a time.
//
// For one key block: a lane scores QUERIES / 4 keys for four queries; 16 lanes per query turn scores into p
// and the 16 sums of p; a lane per a few dims and ROWS queries gives the outputs. Everything that has
// an order is ascending within one lane. Keys that a query does not see are left out of its sums.
//
// SPLIT: a workgroup leaves what each of its blocks amounts to (o, m, l) in a temporary, and
// attention_merge.comp merges. Else it merges as it goes and writes the result.
//
// Included by: attention*.comp, which read the cache, and before that say which dims of the output a lane
// has: lane % SLOTS * SPREAD and DIMS - 1 more, STEP apart.
#extension GL_EXT_control_flow_attributes : require
#include "rows.glsl"
#include "numerics.glsl"
#include "cache.glsl"

layout(constant_id = 3) const uint KEY_DIM = 64;
layout(constant_id = 4) const uint VALUE_DIM = 64;
layout(constant_id = 5) const uint SHARED = 1;
layout(constant_id = 6) const uint QUERIES = 16; // 4, 8 or 16
layout(constant_id = 7) const uint ROWS = 4;     // queries whose outputs one lane sums: a multiple of 4
layout(constant_id = 8) const uint DIMS = 1;     // and dims
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
const uint SLOTS = OUTPUT_SLOTS, SPREAD = OUTPUT_SPREAD, STEP = OUTPUT_STEP;
const uint NOTHING = 0, FIRST = 1, LATER = 2;     // what a block is to a query

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

// What the file that includes this one gives.
void load_queries(RunBlock run);                          // ends with a barrier
void score(Stretch s, uvec2 layer_base, uint block);      // p[key][query], QUERIES / 4 keys and 4 queries a lane
void attend_values(Stretch s, uvec2 layer_base, uint block, uint dim, uint query, bool writer); // part

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

bool sees(uint query, uint position) { return position >= first_key[query] && position <= last_key[query]; }

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
            if (dim + d * STEP < VALUE_DIM)
                to.v[dim + d * STEP] = part[d * (ROWS / 4) + j / 4][j % 4];
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
            if (dim + d * STEP < VALUE_DIM)
                to.v[query_head(i) * VALUE_DIM + dim + d * STEP] =
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
    uint lane = gl_LocalInvocationID.x, dim = lane % SLOTS * SPREAD, query = lane / SLOTS * ROWS;
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
            attend_values(s, layer_base, block, dim, query, writer);
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
