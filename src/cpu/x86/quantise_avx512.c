/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/quantise_avx512.c: activations into the forms that linear layers read, AVX-512.
 *
 * Owns: nothing; the work is cpu/body_quantise.h's. Never does: allocate or start threads. Called
 * from: the host device's team, through the table.
 */
#include "cpu/x86/simd_avx512.h"

#include "cpu/body_quantise.h"
#include "cpu/x86/x86.h"

bool fm__quantise_q8_32_avx512(const float *x, size_t k, const fm__act_layout *layout,
                               uint8_t *row) {
    return fm__body_quantise_q8_32(x, k, layout, row);
}

bool fm__quantise_q8_256_avx512(const float *x, size_t k, const fm__act_layout *layout,
                                uint8_t *row) {
    return fm__body_quantise_q8_256(x, k, layout, row);
}

bool fm__quantise_f32_avx512(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_float(x, k, 0, layout, row);
}

bool fm__quantise_r13_avx512(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_float(x, k, 11, layout, row);
}

bool fm__quantise_r16_avx512(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_float(x, k, 8, layout, row);
}

bool fm__quantise_bf16_avx512(const float *x, size_t k, const fm__act_layout *layout,
                              uint8_t *row) {
    return fm__body_quantise_bf16(x, k, layout, row);
}
