/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/rows.c: row operations and the cache store, the specification (docs/numerics.md, "Row
 * operations"). Owns: nothing. Never does: matrix products. Called from: team threads.
 */
#include "cpu/ref/ref.h"

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

void fm__kv_store_ref(const fm__cache_group *group, uint8_t *layer_base, uint32_t page,
                      uint32_t slot, const float *k, const float *v) {
    for (uint32_t h = 0; h < group->n_kv_head; h++) {
        size_t index = (size_t)page * group->n_kv_head + h;
        uint16_t *keys = (uint16_t *)(void *)(layer_base + index * group->head_bytes);
        uint16_t *values = keys + (size_t)FM__PAGE_TOKENS * group->key_dim;
        keys += (size_t)(slot / 16) * group->key_dim * 16 + slot % 16; /* [4][key_dim][16] */
        values += (size_t)slot * group->value_dim;                     /* [64][value_dim] */
        for (uint32_t i = 0; i < group->key_dim; i++)
            keys[(size_t)i * 16] = fm__kv_f16(k[(size_t)h * group->key_dim + i]);
        for (uint32_t i = 0; i < group->value_dim; i++)
            values[i] = fm__kv_f16(v[(size_t)h * group->value_dim + i]);
    }
}
