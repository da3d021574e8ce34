/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_q32_avx2.c: quantised linear layers with blocks of 32, AVX2.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/x86/linear_quant_avx2.h"
#include "cpu/x86/x86.h"

void fm__linear_q8_0_avx2(const fm__linear_args *args) {
    fm__avx2_linear(FM__SHAPE_Q8_0, args);
}

void fm__linear_q4_0_avx2(const fm__linear_args *args) {
    fm__avx2_linear(FM__SHAPE_Q4_0, args);
}

void fm__linear_q4_1_avx2(const fm__linear_args *args) {
    fm__avx2_linear(FM__SHAPE_Q4_1, args);
}

void fm__linear_q5_0_avx2(const fm__linear_args *args) {
    fm__avx2_linear(FM__SHAPE_Q5_0, args);
}

void fm__linear_q5_1_avx2(const fm__linear_args *args) {
    fm__avx2_linear(FM__SHAPE_Q5_1, args);
}

void fm__linear_iq4_nl_avx2(const fm__linear_args *args) {
    fm__avx2_linear(FM__SHAPE_IQ4_NL, args);
}

void fm__linear_mxfp4_avx2(const fm__linear_args *args) {
    fm__avx2_linear(FM__SHAPE_MXFP4, args);
}
