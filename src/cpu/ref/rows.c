/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/rows.c: row operations and the cache store, the specification (docs/numerics.md, "Row
 * operations"). Owns: nothing. Never does: matrix products. Called from: team threads.
 */
#include "cpu/ref/ref.h"

#include <string.h>

enum { LANES = 64 };

/* The sum of x * x in 64 lanes and a tree. */
static float sum64_squares(const float *x, size_t n) {
    float s[LANES] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % LANES] = s[i % LANES] + x[i] * x[i];
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            s[l] = s[l] + s[l + w];
    return s[0];
}

void fm__rmsnorm_ref(const float *x, const float *weight, float eps, float inv_n, size_t n,
                     float *out) {
    float mean = sum64_squares(x, n) * inv_n;
    float scale = fm__rsqrt(mean + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = (x[i] * scale) * weight[i];
}

void fm__rope_ref(float *x, uint32_t heads, uint32_t head_dim, uint32_t rotary,
                  fm__rope_style style, const float *cos, const float *sin) {
    uint32_t half = rotary / 2;
    for (uint32_t h = 0; h < heads; h++) {
        float *head = x + (size_t)h * head_dim;
        for (uint32_t i = 0; i < half; i++) {
            float *a = style == FM__ROPE_PAIRS ? head + 2 * i : head + i;
            float *b = style == FM__ROPE_PAIRS ? head + 2 * i + 1 : head + i + half;
            float ra = *a * cos[i] - *b * sin[i];
            float rb = *a * sin[i] + *b * cos[i];
            *a = ra;
            *b = rb;
        }
    }
}

void fm__silu_glu_ref(const float *gate, const float *up, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = fm__silu(gate[i]) * up[i];
}

void fm__gelu_glu_ref(const float *gate, const float *up, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = fm__gelu(gate[i]) * up[i];
}

void fm__add_ref(const float *a, const float *b, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void store_f16(const fm__cache_group *group, uint8_t *head, uint32_t slot, const float *k,
                      const float *v) {
    uint16_t *keys = (uint16_t *)(void *)head;
    uint16_t *values = keys + (size_t)FM__PAGE_TOKENS * group->key_dim;
    keys += (size_t)(slot / 16) * group->key_dim * 16 + slot % 16; /* [4][key_dim][16] */
    values += (size_t)slot * group->value_dim;                     /* [64][value_dim] */
    for (uint32_t i = 0; i < group->key_dim; i++)
        keys[(size_t)i * 16] = fm__kv_f16(k[i]);
    for (uint32_t i = 0; i < group->value_dim; i++)
        values[i] = fm__kv_f16(v[i]);
}

/* The codes of up to 32 entries that share a scale, and its bits. */
static uint16_t codes_of(const float *x, uint32_t n, int8_t codes[FM__CACHE_BLOCK]) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = fm__f32_bits(x[i]) & 0x7FFFFFFFu;
        most = u > most ? u : most;
    }
    uint16_t scale = fm__kv_scale(most);
    float inv = fm__kv_inverse(scale);
    for (uint32_t i = 0; i < n; i++) {
        float t = inv == 0.0f ? 0.0f : x[i] * inv;
        t = t + FM__ROUND_MAGIC;
        t = t - FM__ROUND_MAGIC;
        t = t > 127.0f ? 127.0f : t;
        codes[i] = (int8_t)(t < -127.0f ? -127.0f : t);
    }
    return scale;
}

static void store_q8_0(const fm__cache_group *group, uint8_t *head, uint32_t slot, const float *k,
                       const float *v) {
    fm__cache_parts parts = fm__cache_q8_0_parts(group->key_dim, group->value_dim);
    int8_t codes[FM__CACHE_BLOCK];
    size_t words = (group->key_dim + 3) / 4, tile = slot / 16, lane = slot % 16;
    uint16_t *scales = (uint16_t *)(void *)(head + parts.key_scales); /* [4][blocks][16] */
    int8_t *to = (int8_t *)head + tile * words * 64 + lane * 4;       /* [4][words][16][4] */
    for (size_t i = 0; i < words * 4; i++) {
        if (i % FM__CACHE_BLOCK == 0) {
            uint32_t left = group->key_dim - (uint32_t)i, n = left < 32 ? left : 32;
            memset(codes, 0, sizeof codes);
            scales[(tile * fm__cache_blocks(group->key_dim) + i / 32) * 16 + lane] =
                codes_of(k + i, n, codes);
        }
        to[i / 4 * 64 + i % 4] = codes[i % 32];
    }
    scales = (uint16_t *)(void *)(head + parts.value_scales); /* [blocks][64] */
    to = (int8_t *)head + parts.values;                       /* [blocks][16][dims][4] */
    for (uint32_t b = 0; b < fm__cache_blocks(group->value_dim); b++) {
        uint32_t left = group->value_dim - b * 32, n = left < 32 ? left : 32;
        scales[(size_t)b * FM__PAGE_TOKENS + slot] = codes_of(v + b * 32, n, codes);
        for (uint32_t j = 0; j < n; j++)
            to[((size_t)slot / 4 * n + j) * 4 + slot % 4] = codes[j];
        to += (size_t)FM__PAGE_TOKENS * n;
    }
}

void fm__kv_store_ref(const fm__cache_group *group, uint8_t *layer_base, uint32_t page,
                      uint32_t slot, const float *k, const float *v) {
    for (uint32_t h = 0; h < group->n_kv_head; h++) {
        size_t index = (size_t)page * group->n_kv_head + h;
        uint8_t *head = layer_base + index * group->head_bytes;
        const float *key = k + (size_t)h * group->key_dim;
        const float *value = v + (size_t)h * group->value_dim;
        if (group->type == FM__CACHE_Q8_0)
            store_q8_0(group, head, slot, key, value);
        else
            store_f16(group, head, slot, key, value);
    }
}
