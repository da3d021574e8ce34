#version 460
// SPDX-License-Identifier: Apache-2.0
// KV_STORE into a cache of q8_0: 32 entries of a head, which share a scale, a lane; grid of (tiles of these) x rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"
#define Q8_0
#include "cache.glsl"

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place k, v;
    CacheLayer layer;
} push;

// The scale's bits of entries the largest of which has these bits (numerics.h, fm__kv_scale).
uint kv_scale(uint most) {
    uint d = floatBitsToUint(round_bits(mul(uintBitsToFloat(most), uintBitsToFloat(0x3C010204u)), 16)); // 1/127
    return most < 0x34800000u ? 0u : most >= HUGE_BITS ? 0x7FC0u : d >> 16; // 2^-22
}

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, i = gl_GlobalInvocationID.x;
    uint key_blocks = (push.layer.key_dim + 31) / 32, value_blocks = (push.layer.value_dim + 31) / 32;
    uint n_key = push.layer.n_kv_head * key_blocks, n_value = push.layer.n_kv_head * value_blocks;
    if (!own_row(run, push.rows, row) || i >= n_key + n_value)
        return;
    bool key = i < n_key;
    i = key ? i : i - n_key;
    uint dim = key ? push.layer.key_dim : push.layer.value_dim, blocks = key ? key_blocks : value_blocks;
    uint head = i / blocks, b = i % blocks, n = min(32, dim - b * 32);
    uint position = Words(run.position).v[row], slot = position % PAGE_TOKENS;
    Words pages = page_list(run, push.layer, Words(run.sequence).v[row]);
    uvec2 base = beyond(run.slots[SLOT_CACHE], push.layer.offset);
    uvec2 page = page_at(base, push.layer, pages.v[position / PAGE_TOKENS], head);
    Floats from = Floats(at(key ? row_at(run, push.k, row) : row_at(run, push.v, row), 4 * (head * dim + b * 32)));
    uint most = 0;
    for (uint j = 0; j < n; j++)
        most = max(most, magnitude(from.v[j]));
    uint scale = kv_scale(most);
    bool some = scale != 0 && scale != 0x7FC0u;
    float inverse = rcp(uintBitsToFloat(some ? scale << 16 : 0x3F800000u));
    uint words = (dim + 3) / 4; // of a key
    uvec2 to = key ? at(page, (slot / 16 * words * 16 + slot % 16) * 4)
                   : at(page, values_at(push.layer.key_dim) + b * 32 * PAGE_TOKENS + slot / 4 * n * 4 + slot % 4);
    for (uint w = 0; w < (n + 3) / 4; w++) {
        uint word = 0;
        for (uint j = 4 * w; j < min(4 * w + 4, n); j++) {
            float x = round_even(mul(some ? from.v[j] : 0.0, inverse));
            x = x > 127.0 ? 127.0 : x;
            x = x < -127.0 ? -127.0 : x;
            uint code = uint(int(x)) & 255u;
            word |= code << (8 * (j % 4));
            if (!key)
                Bytes(to).v[4 * j] = uint8_t(code);
        }
        if (key)
            Words(to).v[(b * 8 + w) * 16] = word;
    }
    uint at_scale = key ? key_scales_at(dim) + ((slot / 16 * blocks + b) * 16 + slot % 16) * 2
                        : value_scales_at(push.layer.key_dim, dim) + (b * PAGE_TOKENS + slot) * 2;
    Halves(at(page, at_scale)).v[0] = uint16_t(scale);
}
