// SPDX-License-Identifier: Apache-2.0
// ATTENTION over a cache of q8_0 (docs/numerics.md, "Attention over q8_0"). Included by attention_q8_0.comp and,
// with DOT defined, by attention_q8_0_dot.comp, which multiplies four bytes at once.
//
// Outputs are made in passes of 1024 / QUERIES dims, so that all lanes have a dim: for each pass 8 lanes a query
// and block of 32 dims turn p into weights of 16 bits, four of them in a uvec2.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

#define Q8_0
#define OUTPUT_SLOTS (1024 / QUERIES)
#define OUTPUT_SPREAD 1
#define OUTPUT_STEP SLOTS
#include "attention.glsl"
#include "dot.glsl"

layout(constant_id = 11) const uint PER_SHARE = 8; // quads of one: QUADS / SHARES

const uint KEY_WORDS = (KEY_DIM + 3) / 4, KEY_BLOCKS = (KEY_DIM + 31) / 32, VALUE_BLOCKS = (VALUE_DIM + 31) / 32;
const uint QUADS = KEY_BLOCK / 4;        // four keys whose codes lie in one word
const uint PASS_BLOCKS = 32 / QUERIES;   // blocks of 32 dims of a pass
const uint SHARES = LANES / 32;          // lanes of a query and block

shared uvec4 q_words[8 * KEY_BLOCKS * FOURS];       // (words, queries): codes
shared vec4 q_scales[KEY_BLOCKS * FOURS];           // (blocks, queries)
shared uvec2 weights[PASS_BLOCKS * QUADS * QUERIES]; // (blocks of the pass, quads, queries)
shared uint most[32];                                // (blocks of the pass, queries): bits of the largest p * d
shared float unit[32];

float bf16_at(uvec2 base, uint index) { return bf16_f32(uint(Halves(base).v[index])); }

// ---- scores ----

// 32 dims of one query.
void load_block(RunBlock run, uint query, uint b) {
    bool own = row_of[query] != 0xFFFFFFFFu;
    Floats q = Floats(row_at(run, push.q, own ? row_of[query] : 0));
    uint first = query_head(query) * KEY_DIM + b * 32, n = own ? min(32, KEY_DIM - b * 32) : 0, largest = 0;
    for (uint i = 0; i < n; i++)
        largest = max(largest, magnitude(mul(q.v[first + i], push.scale)));
    bool none = largest < TINY_BITS, huge = largest >= HUGE_BITS;
    float a = uintBitsToFloat(none || huge ? 0x3F800000u : largest);
    float inverse = mul(127.0, rcp(a)), d = mul(a, uintBitsToFloat(0x3C010204u)); // 1/127
    q_scales[b * FOURS + query / 4][query % 4] = none ? 0.0 : huge ? uintBitsToFloat(0x7FC00000u) : d;
    for (uint w = 0; w < 8; w++) {
        uint word = 0;
        for (uint j = 0; j < 4 && 4 * w + j < n && !none && !huge; j++) {
            float x = round_even(mul(mul(q.v[first + 4 * w + j], push.scale), inverse));
            x = x > 127.0 ? 127.0 : x;
            x = x < -127.0 ? -127.0 : x;
            word |= (uint(int(x)) & 255u) << (8 * j);
        }
        q_words[(b * 8 + w) * FOURS + query / 4][query % 4] = word;
    }
}

void load_queries(RunBlock run) {
    for (uint i = gl_LocalInvocationID.x; i < QUERIES * KEY_BLOCKS; i += LANES)
        load_block(run, i % QUERIES, i / QUERIES);
    barrier();
}

// Four dims of FOURS neighbouring keys; keys lie 16 to a word.
uvec4 key_words(uvec2 keys, uint word) {
    if (FOURS == 4)
        return Quads(keys).v[4 * word];
    uvec4 k = uvec4(Words(keys).v[16 * word], 0, 0, 0);
    if (FOURS == 2)
        k.y = Words(keys).v[16 * word + 1];
    return k;
}

void score(Stretch s, uvec2 layer_base, uint block) {
    uint lane = gl_LocalInvocationID.x, f = lane / (LANES / FOURS), first = lane % (LANES / FOURS) * FOURS;
    uint key = block * KEY_BLOCK + first, slot = key % PAGE_TOKENS;
    if (key + FOURS <= s.first || key > s.last)
        return;
    uvec2 page = page_at(layer_base, push.layer, s.pages.v[key / PAGE_TOKENS],
                         push.kv_begin + gl_WorkGroupID.y);
    uvec2 keys = at(page, (slot / 16 * KEY_WORDS * 16 + slot % 16) * 4); // (words, 16)
    uvec2 scales = at(page, key_scales_at(KEY_DIM) + (slot / 16 * KEY_BLOCKS * 16 + slot % 16) * 2);
    vec4 scores[FOURS]; // (keys, queries): this lane's
    [[unroll]] for (uint i = 0; i < FOURS; i++)
        scores[i] = vec4(0);
    for (uint b = 0; b < KEY_BLOCKS; b++) {
        uvec4 k[8];
        [[unroll]] for (uint w = 0; w < 8; w++)
            k[w] = 8 * b + w < KEY_WORDS ? key_words(keys, 8 * b + w) : uvec4(0);
        ivec4 sums[FOURS];
        [[unroll]] for (uint i = 0; i < FOURS; i++)
            sums[i] = ivec4(0);
        [[unroll]] for (uint w = 0; w < 8; w++) {
            uvec4 q = q_words[(b * 8 + w) * FOURS + f];
            [[unroll]] for (uint i = 0; i < FOURS; i++)
                sums[i] = ivec4(dot4(k[w][i], q.x, sums[i].x), dot4(k[w][i], q.y, sums[i].y),
                                dot4(k[w][i], q.z, sums[i].z), dot4(k[w][i], q.w, sums[i].w));
        }
        vec4 d = q_scales[b * FOURS + f];
        [[unroll]] for (uint i = 0; i < FOURS; i++)
            scores[i] = add(scores[i], mul(vec4(sums[i]), mul(vec4(bf16_at(scales, b * 16 + i)), d)));
    }
    [[unroll]] for (uint i = 0; i < FOURS; i++)
        p[(first + i) * FOURS + f] = scores[i];
}

// ---- weights ----

// p * d of the four keys of a quad, 0 where the query does not see one: those from..to of the block.
vec4 products(Stretch s, uvec2 layer_base, uint block, uint quad, uint query, uint b, uint from, uint to) {
    uint key = 4 * quad, position = block * KEY_BLOCK + key, slot = position % PAGE_TOKENS;
    if (key > to || key + 3 < from)
        return vec4(0);
    uvec2 page = page_at(layer_base, push.layer, s.pages.v[position / PAGE_TOKENS],
                         push.kv_begin + gl_WorkGroupID.y);
    Words d = Words(at(page, value_scales_at(KEY_DIM, VALUE_DIM) + (b * PAGE_TOKENS + slot) * 2));
    uvec2 two = uvec2(d.v[0], d.v[1]);
    vec4 x = mul(vec4(component(key, query), component(key + 1, query), component(key + 2, query),
                      component(key + 3, query)),
                 uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u)));
    uvec4 keys = uvec4(key, key + 1, key + 2, key + 3);
    return mix(vec4(0), x, bvec4(uvec4(greaterThanEqual(keys, uvec4(from))) & uvec4(lessThanEqual(keys, uvec4(to)))));
}

// Four weights of 16 bits.
uvec2 packed(vec4 x, float factor) {
    uvec4 w;
    for (uint j = 0; j < 4; j++) {
        float r = round_even(mul(x[j], factor));
        w[j] = r > 65535.0 ? 65535u : uint(int(r));
    }
#ifdef DOT // the high bytes and the low ones, each less 128
    uvec4 high = w >> 8, low = w & 255u;
    return uvec2(high.x | high.y << 8 | high.z << 16 | high.w << 24, low.x | low.y << 8 | low.z << 16 | low.w << 24) ^
           0x80808080u;
#else
    return uvec2(w.x | w.y << 16, w.z | w.w << 16);
#endif
}

// The weights of the pass whose first block is `first`, and what one is worth.
void make_weights(Stretch s, uvec2 layer_base, uint block, uint first) {
    uint lane = gl_LocalInvocationID.x, pair = lane / SHARES, share = lane % SHARES;
    uint query = pair % QUERIES, b = first + pair / QUERIES, start = block * KEY_BLOCK;
    uint from = 1, to = 0;
    if (b < VALUE_BLOCKS && query >= s.begin && query < s.end && first_key[query] < start + KEY_BLOCK &&
        last_key[query] >= start) {
        from = max(first_key[query], start) - start;
        to = min(last_key[query] - start, KEY_BLOCK - 1);
    }
    if (share == 0)
        most[pair] = TINY_BITS;
    barrier(); // and the pass before has read its weights
    vec4 x[PER_SHARE];
    uint largest = 0;
    [[unroll]] for (uint i = 0; i < PER_SHARE; i++) {
        x[i] = vec4(0);
        if (from <= to)
            x[i] = products(s, layer_base, block, share + SHARES * i, query, b, from, to);
        [[unroll]] for (uint j = 0; j < 4; j++)
            largest = max(largest, magnitude(x[i][j]));
    }
    atomicMax(most[pair], largest);
    barrier();
    largest = most[pair];
    bool good = largest < INFINITE_BITS;
    uint exponent = good ? largest >> 23 : 127u;
    float factor = good ? uintBitsToFloat((269u - exponent) << 23) : 0.0;
    [[unroll]] for (uint i = 0; i < PER_SHARE; i++)
        weights[((pair / QUERIES) * QUADS + share + SHARES * i) * QUERIES + query] =
            good ? packed(x[i], factor) : uvec2(0);
    if (share == 0)
        unit[pair] = uintBitsToFloat(good ? (exponent - 15u) << 23 : 0x7FC00000u);
    barrier();
}

// ---- values ----

// sums += weights times the codes of four keys.
#ifdef DOT
ivec4 high_sums, low_sums;
int plain_sum;

void begin_sums() {
    high_sums = low_sums = ivec4(0);
    plain_sum = 0;
}

void add_quad(uint codes, uint from) {
    [[unroll]] for (uint r = 0; r < 4; r++) {
        uvec2 w = weights[from + r];
        high_sums[r] = dot4(codes, w.x, high_sums[r]);
        low_sums[r] = dot4(codes, w.y, low_sums[r]);
    }
    plain_sum = dot4(codes, 0x01010101u, plain_sum);
}

ivec4 all_sums() { return (high_sums << 8) + low_sums + 32896 * plain_sum; }
#else
ivec4 weighted_sums;

void begin_sums() { weighted_sums = ivec4(0); }

void add_quad(uint codes, uint from) {
    ivec4 v = ivec4(bitfieldExtract(int(codes), 0, 8), bitfieldExtract(int(codes), 8, 8),
                    bitfieldExtract(int(codes), 16, 8), int(codes) >> 24);
    [[unroll]] for (uint r = 0; r < 4; r++) {
        uvec2 w = weights[from + r];
        weighted_sums[r] += int(w.x & 0xFFFFu) * v.x + int(w.x >> 16) * v.y + int(w.y & 0xFFFFu) * v.z +
                            int(w.y >> 16) * v.w;
    }
}

ivec4 all_sums() { return weighted_sums; }
#endif

// Four queries' sums for one dim, over the quads of the stretch.
void sum_dim(Stretch s, uvec2 layer_base, uint block, uint dim, uint from) {
    uint start = block * KEY_BLOCK, n = min(32, VALUE_DIM - dim / 32 * 32);
    uint quad = (max(s.first, start) - start) / 4, last = min(s.last - start, KEY_BLOCK - 1) / 4;
    begin_sums();
    while (quad <= last) {
        uint position = start + 4 * quad;
        uvec2 page = page_at(layer_base, push.layer, s.pages.v[position / PAGE_TOKENS],
                             push.kv_begin + gl_WorkGroupID.y);
        uvec2 codes = at(page, values_at(KEY_DIM) + dim / 32 * 32 * PAGE_TOKENS +
                                   (position % PAGE_TOKENS / 4 * n + dim % 32) * 4); // (quads, n)
        uint end = min(quad | (PAGE_TOKENS / 4 - 1), last);                            // of the page
        uint i = 0;
        for (; quad + DEPTH <= end + 1; quad += DEPTH, i += DEPTH) {
            uint words[DEPTH];
            [[unroll]] for (uint d = 0; d < DEPTH; d++)
                words[d] = Words(codes).v[(i + d) * n];
            [[unroll]] for (uint d = 0; d < DEPTH; d++)
                add_quad(words[d], from + (quad + d) * QUERIES);
        }
        for (; quad <= end; quad++, i++)
            add_quad(Words(codes).v[i * n], from + quad * QUERIES);
    }
}

// part = the weighted sums over the keys of the block. All lanes come here.
void attend_values(Stretch s, uvec2 layer_base, uint block, uint dim, uint query, bool writer) {
    for (uint d = 0; d < DIMS; d++) {
        make_weights(s, layer_base, block, d * PASS_BLOCKS);
        uint own = dim + d * STEP, b = dim / 32;
        if (own >= VALUE_DIM)
            continue;
        sum_dim(s, layer_base, block, own, b * QUADS * QUERIES + query);
        vec4 worth = vec4(unit[b * QUERIES + query], unit[b * QUERIES + query + 1], unit[b * QUERIES + query + 2],
                          unit[b * QUERIES + query + 3]);
        ivec4 sums = all_sums();
        part[d] = mul(vec4(exact_float(sums.x), exact_float(sums.y), exact_float(sums.z), exact_float(sums.w)), worth);
    }
}
