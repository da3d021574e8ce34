/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_q256_avxvnni.c: quantised linear layers with blocks of 256, AVX-VNNI.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/x86/dot_avxvnni.h"

#include "cpu/x86/linear_avxvnni.h"
#include "cpu/x86/x86.h"

void fm__linear_q2_k_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q2_K, args);
}

void fm__linear_q3_k_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q3_K, args);
}

void fm__linear_q4_k_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q4_K, args);
}

void fm__linear_q5_k_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q5_K, args);
}

void fm__linear_q6_k_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q6_K, args);
}

void fm__linear_iq4_xs_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_IQ4_XS, args);
}

/* TQ1_0 and TQ2_0 share one panel form. */
void fm__linear_tq1_0_avxvnni(const fm__linear_args *args) {
    fm__linear_tq2_0_avxvnni(args);
}

void fm__linear_tq2_0_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_TQ2_0, args);
}
