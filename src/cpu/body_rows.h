/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/body_rows.h: row operations and the cache store, for any simd header.
 *
 * Owns: nothing. Never does: matrix products. Included by: the rows_* file of each rung, whose
 * functions it implements. Bits: docs/numerics.md, "Row operations".
 */
#pragma once

#include <string.h>

#include "cpu/body_numerics.h"
#include "cpu/cpu.h"

/* Sum of squares in 64 lanes and a tree. A lane without a value gets +0, which changes nothing. */
static inline float fm__body_sum64_squares(const float *x, size_t n) {
    fm__vf s[4];
    FM__UNROLL for (int j = 0; j < 4; j++) s[j] = fm__vf_zero();
    size_t i = 0;
    for (; i + 64 <= n; i += 64)
        FM__UNROLL for (int j = 0; j < 4; j++) {
            const fm__vf v = fm__vf_load(x + i + 16 * (size_t)j);
            s[j] = fm__vf_add(s[j], fm__vf_mul(v, v));
        }
    FM__UNROLL for (int j = 0; j < 4; j++) {
        const size_t left = n > i ? n - i : 0;
        const fm__vf v = fm__vf_load_first(x + i, left);
        s[j] = fm__vf_add(s[j], fm__vf_mul(v, v));
        i += left < 16 ? left : 16;
    }
    return fm__vf_tree(fm__vf_add(fm__vf_add(s[0], s[2]), fm__vf_add(s[1], s[3])));
}

FM__INLINE void fm__body_rmsnorm(const float *x, const float *weight, float eps, float inv_n,
                                 size_t n, float *out) {
    const float mean = fm__body_sum64_squares(x, n) * inv_n;
    const fm__vf scale = fm__vf_set(fm__rsqrt(mean + eps));
    for (size_t i = 0; i < n; i += 16) {
        const fm__vf y = fm__vf_mul(fm__vf_load_first(x + i, n - i), scale);
        fm__vf_store_first(out + i, n - i, fm__vf_mul(y, fm__vf_load_first(weight + i, n - i)));
    }
}

/* Pairs (2i, 2i + 1), eight a vector. */
static inline void fm__body_rope_pairs(float *x, uint32_t half, const float *cos,
                                       const float *sin) {
    uint32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        const fm__vf v = fm__vf_load(x + 2 * i);
        const fm__vf straight = fm__vf_mul(v, fm__vf_load_twice(cos + i)); /* a c, b c */
        const fm__vf crossed =
            fm__vf_mul(fm__vf_swap(v), fm__vf_load_twice(sin + i)); /* b s, a s */
        fm__vf_store(x + 2 * i, fm__vf_sub_add(straight, crossed));
    }
    for (; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
}

/* Pairs (i, i + half). */
static inline void fm__body_rope_halves(float *x, uint32_t half, const float *cos,
                                        const float *sin) {
    for (uint32_t i = 0; i < half; i += 16) {
        const size_t left = half - i;
        const fm__vf a = fm__vf_load_first(x + i, left), b = fm__vf_load_first(x + half + i, left);
        const fm__vf c = fm__vf_load_first(cos + i, left), s = fm__vf_load_first(sin + i, left);
        fm__vf_store_first(x + i, left, fm__vf_sub(fm__vf_mul(a, c), fm__vf_mul(b, s)));
        fm__vf_store_first(x + half + i, left, fm__vf_add(fm__vf_mul(a, s), fm__vf_mul(b, c)));
    }
}

FM__INLINE void fm__body_rope(float *x, uint32_t heads, uint32_t head_dim, uint32_t rotary,
                              fm__rope_style style, const float *cos, const float *sin) {
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        if (style == FM__ROPE_PAIRS)
            fm__body_rope_pairs(x, rotary / 2, cos, sin);
        else
            fm__body_rope_halves(x, rotary / 2, cos, sin);
    }
}

/* f(gate) * up for `vectors` vectors, or for the first n < 16 values of one. */
FM__INLINE void fm__body_glu_part(const fm__glu glu, const int vectors, const float *gate,
                                  const float *up, size_t n, float *out) {
    fm__vf x[FM__VF_CHAINS];
    FM__EACH(vectors) x[e] = fm__vf_load_first(gate + 16 * e, n);
    if (glu == FM__GLU_SILU)
        fm__vf_silu(vectors, x);
    else
        fm__vf_gelu(vectors, x);
    FM__EACH(vectors)
    fm__vf_store_first(out + 16 * e, n, fm__vf_mul(x[e], fm__vf_load_first(up + 16 * e, n)));
}

FM__INLINE void fm__body_glu(const fm__glu glu, const float *gate, const float *up, size_t n,
                             float *out) {
    size_t i = 0;
    for (; i + 16 * FM__VF_CHAINS <= n; i += 16 * FM__VF_CHAINS)
        fm__body_glu_part(glu, FM__VF_CHAINS, gate + i, up + i, 16, out + i);
    for (; i < n; i += 16)
        fm__body_glu_part(glu, 1, gate + i, up + i, n - i, out + i);
}

FM__INLINE void fm__body_add(const float *a, const float *b, size_t n, float *out) {
    for (size_t i = 0; i < n; i += 16)
        fm__vf_store_first(
            out + i, n - i,
            fm__vf_add(fm__vf_load_first(a + i, n - i), fm__vf_load_first(b + i, n - i)));
}

FM__INLINE void fm__body_kv_store_f16(const fm__cache_group *group, uint8_t *layer_base,
                                      uint32_t page, uint32_t slot, const float *k,
                                      const float *v) {
    const uint32_t key_dim = group->key_dim, value_dim = group->value_dim;
    for (uint32_t h = 0; h < group->n_kv_head; h++, k += key_dim, v += value_dim) {
        uint16_t *const base =
            (uint16_t *)(void *)(layer_base +
                                 ((size_t)page * group->n_kv_head + h) * group->head_bytes);
        /* [4][key_dim][16]: this key's entries lie 32 bytes apart */
        uint16_t *const keys = base + (size_t)(slot / 16) * key_dim * 16 + slot % 16;
        for (uint32_t i = 0; i < key_dim; i += 16) {
            const uint32_t count = key_dim - i < 16 ? key_dim - i : 16;
            uint16_t half[16];
            fm__vi_store_uint16_first(half, 16,
                                      fm__vi_kv_f16(fm__vf_load_first(k + i, key_dim - i)));
            for (uint32_t j = 0; j < count; j++)
                keys[(size_t)(i + j) * 16] = half[j];
        }
        uint16_t *const values =
            base + (size_t)FM__PAGE_TOKENS * key_dim + (size_t)slot * value_dim;
        for (uint32_t i = 0; i < value_dim; i += 16)
            fm__vi_store_uint16_first(values + i, value_dim - i,
                                      fm__vi_kv_f16(fm__vf_load_first(v + i, value_dim - i)));
    }
}

/* The codes of up to 32 entries that share a scale, and its bits. */
FM__INLINE uint16_t fm__body_codes(const float *x, uint32_t n, int8_t codes[FM__CACHE_BLOCK]) {
    const fm__vf low = fm__vf_load_first(x, n);
    const fm__vf high = n <= 16 ? fm__vf_zero() : fm__vf_load_first(x + 16, n - 16);
    const uint16_t scale = fm__kv_scale(
        (uint32_t)fm__vi_largest(fm__vi_max(fm__vi_magnitude(low), fm__vi_magnitude(high))));
    const float inverse = fm__kv_inverse(scale);
    memset(codes, 0, FM__CACHE_BLOCK);
    if (inverse == 0.0f)
        return scale;
    const fm__vi most = fm__vi_set(127), least = fm__vi_set((uint32_t)-127);
    FM__UNROLL for (int j = 0; j < 2; j++) {
        const fm__vi i = fm__vi_round(fm__vf_mul(j ? high : low, fm__vf_set(inverse)));
        fm__vi_store_int8(codes + 16 * j, fm__vi_max(fm__vi_min(i, most), least));
    }
    return scale;
}

FM__INLINE void fm__body_kv_store_q8_0(const fm__cache_group *group, uint8_t *layer_base,
                                       uint32_t page, uint32_t slot, const float *k,
                                       const float *v) {
    const uint32_t key_dim = group->key_dim, value_dim = group->value_dim;
    const fm__cache_parts parts = fm__cache_q8_0_parts(key_dim, value_dim);
    const uint32_t words = (key_dim + 3) / 4, tile = slot / 16, lane = slot % 16;
    int8_t codes[FM__CACHE_BLOCK];
    for (uint32_t h = 0; h < group->n_kv_head; h++, k += key_dim, v += value_dim) {
        uint8_t *const head =
            layer_base + ((size_t)page * group->n_kv_head + h) * group->head_bytes;
        uint8_t *const keys = head + (size_t)tile * words * 64 + lane * 4;
        uint16_t *scales = (uint16_t *)(void *)(head + parts.key_scales) +
                           (size_t)tile * fm__cache_blocks(key_dim) * 16 + lane;
        for (uint32_t i = 0; i < key_dim; i += FM__CACHE_BLOCK, scales += 16) {
            const uint32_t n = key_dim - i < FM__CACHE_BLOCK ? key_dim - i : FM__CACHE_BLOCK;
            *scales = fm__body_codes(k + i, n, codes);
            for (uint32_t w = 0; w < (n + 3) / 4; w++)
                memcpy(keys + (size_t)(i / 4 + w) * 64, codes + 4 * w, 4);
        }
        uint8_t *to = head + parts.values + slot % 4;
        scales = (uint16_t *)(void *)(head + parts.value_scales) + slot;
        for (uint32_t i = 0; i < value_dim; i += FM__CACHE_BLOCK, scales += FM__PAGE_TOKENS) {
            const uint32_t n = value_dim - i < FM__CACHE_BLOCK ? value_dim - i : FM__CACHE_BLOCK;
            *scales = fm__body_codes(v + i, n, codes);
            for (uint32_t j = 0; j < n; j++)
                to[((size_t)slot / 4 * n + j) * 4] = (uint8_t)codes[j];
            to += (size_t)FM__PAGE_TOKENS * n;
        }
    }
}
