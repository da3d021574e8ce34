/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_quant_neon.c: quantised linear layers, NEON.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/arm/linear_quant_neon.h"
#include "cpu/arm/arm.h"

void fm__linear_q8_0_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q8_0, false, args);
}

void fm__linear_q4_0_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q4_0, false, args);
}

void fm__linear_q4_1_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q4_1, false, args);
}

void fm__linear_q5_0_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q5_0, false, args);
}

void fm__linear_q5_1_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q5_1, false, args);
}

void fm__linear_iq4_nl_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_IQ4_NL, false, args);
}

void fm__linear_mxfp4_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_MXFP4, false, args);
}

void fm__linear_q2_k_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q2_K, false, args);
}

void fm__linear_q3_k_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q3_K, false, args);
}

void fm__linear_q4_k_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q4_K, false, args);
}

void fm__linear_q5_k_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q5_K, false, args);
}

void fm__linear_q6_k_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q6_K, false, args);
}

void fm__linear_iq4_xs_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_IQ4_XS, false, args);
}

/* TQ1_0 and TQ2_0 share one panel form. */
void fm__linear_tq1_0_neon(const fm__linear_args *args) {
    fm__linear_tq2_0_neon(args);
}

void fm__linear_tq2_0_neon(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_TQ2_0, false, args);
}
