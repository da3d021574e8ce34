#version 460
// SPDX-License-Identifier: Apache-2.0
// ATTENTION over a cache of f16.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

#define OUTPUT_SLOTS ((VALUE_DIM + DIMS - 1) / DIMS)
#define OUTPUT_SPREAD DIMS
#define OUTPUT_STEP 1
#include "attention.glsl"

shared vec4 q_rounded[KEY_DIM * FOURS]; // (key_dim, queries)

// ---- scores ----

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

// ---- values ----

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
void attend_values(Stretch s, uvec2 layer_base, uint block, uint dim, uint query, bool writer) {
    if (!writer)
        return;
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
