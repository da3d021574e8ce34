/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/quantise_neon.c: activations into the forms that linear layers read, NEON.
 *
 * Owns: nothing; the work is cpu/body_quantise.h's. Never does: allocate or start threads. Called
 * from: the host device's team, through the table.
 */
#include "cpu/arm/simd_neon.h"

#include "cpu/arm/arm.h"
#include "cpu/body_quantise.h"

bool fm__quantise_q8_32_neon(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_q8_32(x, k, layout, row);
}

bool fm__quantise_q8_256_neon(const float *x, size_t k, const fm__act_layout *layout,
                              uint8_t *row) {
    return fm__body_quantise_q8_256(x, k, layout, row);
}

bool fm__quantise_f32_neon(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_float(x, k, 0, layout, row);
}

bool fm__quantise_r13_neon(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_float(x, k, 11, layout, row);
}

bool fm__quantise_r16_neon(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_float(x, k, 8, layout, row);
}

bool fm__quantise_bf16_neon(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    return fm__body_quantise_bf16(x, k, layout, row);
}
