/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_q32_avxvnni.c: quantised linear layers with blocks of 32, AVX-VNNI.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/x86/dot_avxvnni.h"

#include "cpu/x86/linear_avxvnni.h"
#include "cpu/x86/x86.h"

void fm__linear_q8_0_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q8_0, args);
}

void fm__linear_q4_0_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q4_0, args);
}

void fm__linear_q4_1_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q4_1, args);
}

void fm__linear_q5_0_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q5_0, args);
}

void fm__linear_q5_1_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_Q5_1, args);
}

void fm__linear_iq4_nl_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_IQ4_NL, args);
}

void fm__linear_mxfp4_avxvnni(const fm__linear_args *args) {
    fm__avxvnni_linear(FM__SHAPE_MXFP4, args);
}
