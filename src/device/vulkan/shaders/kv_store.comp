#version 460
// SPDX-License-Identifier: Apache-2.0
// KV_STORE: keys and values into their slots, an entry a lane; grid of (tiles of entries) x rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "numerics.glsl"
#include "cache.glsl"

layout(push_constant, scalar) uniform Push {
    uvec2 run;
    Rows rows;
    Place k, v;
    CacheLayer layer;
} push;

void main() {
    RunBlock run = RunBlock(push.run);
    uint row, i = gl_GlobalInvocationID.x;
    uint n_key = push.layer.n_kv_head * push.layer.key_dim;
    uint n_value = push.layer.n_kv_head * push.layer.value_dim;
    if (!own_row(run, push.rows, row) || i >= n_key + n_value)
        return;
    bool key = i < n_key;
    i = key ? i : i - n_key;
    uint dim = key ? push.layer.key_dim : push.layer.value_dim, head = i / dim, d = i % dim;
    uint position = Words(run.position).v[row], slot = position % PAGE_TOKENS;
    Words pages = page_list(run, push.layer, Words(run.sequence).v[row]);
    uvec2 base = beyond(run.slots[SLOT_CACHE], push.layer.offset);
    Halves halves =
        Halves(page_at(base, push.layer, pages.v[position / PAGE_TOKENS], head));
    uint to = key ? (slot / 16 * dim + d) * 16 + slot % 16 : PAGE_TOKENS * push.layer.key_dim + slot * dim + d;
    float x = key ? Floats(row_at(run, push.k, row)).v[i] : Floats(row_at(run, push.v, row)).v[i];
    halves.v[to] = uint16_t(kv_f16(x));
}
