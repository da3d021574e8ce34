/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/rows_avx512.c: row operations and the cache store, AVX-512.
 *
 * Owns: nothing; the work is cpu/body_rows.h's. Never does: allocate or start threads. Called
 * from: the host device's team, through the table.
 */
#include "cpu/x86/simd_avx512.h"

#include "cpu/body_rows.h"
#include "cpu/x86/x86.h"

void fm__rmsnorm_avx512(const float *x, const float *weight, float eps, float inv_n, size_t n,
                        float *out) {
    fm__body_rmsnorm(x, weight, eps, inv_n, n, out);
}

void fm__rope_avx512(float *x, uint32_t heads, uint32_t head_dim, uint32_t rotary,
                     fm__rope_style style, const float *cos, const float *sin) {
    fm__body_rope(x, heads, head_dim, rotary, style, cos, sin);
}

void fm__silu_glu_avx512(const float *gate, const float *up, size_t n, float *out) {
    fm__body_glu(FM__GLU_SILU, gate, up, n, out);
}

void fm__gelu_glu_avx512(const float *gate, const float *up, size_t n, float *out) {
    fm__body_glu(FM__GLU_GELU, gate, up, n, out);
}

void fm__add_avx512(const float *a, const float *b, size_t n, float *out) {
    fm__body_add(a, b, n, out);
}

void fm__kv_store_avx512(const fm__cache_group *group, uint8_t *layer_base, uint32_t page,
                         uint32_t slot, const float *k, const float *v) {
    fm__body_kv_store_f16(group, layer_base, page, slot, k, v);
}

void fm__kv_store_q8_0_avx512(const fm__cache_group *group, uint8_t *layer_base, uint32_t page,
                              uint32_t slot, const float *k, const float *v) {
    fm__body_kv_store_q8_0(group, layer_base, page, slot, k, v);
}
