/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_quant_dotprod.c: quantised linear layers, NEON with the dot product instructions.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/arm/arm.h"
#include "cpu/arm/linear_quant_neon.h"

void fm__linear_q8_0_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q8_0, true, args);
}

void fm__linear_q4_0_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q4_0, true, args);
}

void fm__linear_q4_1_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q4_1, true, args);
}

void fm__linear_q5_0_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q5_0, true, args);
}

void fm__linear_q5_1_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q5_1, true, args);
}

void fm__linear_iq4_nl_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_IQ4_NL, true, args);
}

void fm__linear_mxfp4_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_MXFP4, true, args);
}

void fm__linear_q2_k_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q2_K, true, args);
}

void fm__linear_q3_k_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q3_K, true, args);
}

void fm__linear_q4_k_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q4_K, true, args);
}

void fm__linear_q5_k_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q5_K, true, args);
}

void fm__linear_q6_k_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_Q6_K, true, args);
}

void fm__linear_iq4_xs_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_IQ4_XS, true, args);
}

/* TQ1_0 and TQ2_0 share one panel form. */
void fm__linear_tq1_0_dotprod(const fm__linear_args *args) {
    fm__linear_tq2_0_dotprod(args);
}

void fm__linear_tq2_0_dotprod(const fm__linear_args *args) {
    fm__neon_linear(FM__SHAPE_TQ2_0, true, args);
}
