/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_quant_i8mm.c: quantised linear layers, NEON with products of int8 matrices; few
 * tokens with the dot product instructions.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/arm/linear_quant_i8mm.h"
#include "cpu/arm/arm.h"

/* Up to so many tokens the product is bound by memory, and preparing would not be paid back. */
enum { FEW = 4 };

void fm__linear_q8_0_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q8_0_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q8_0, args);
}

void fm__linear_q4_0_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q4_0_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q4_0, args);
}

void fm__linear_q4_1_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q4_1_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q4_1, args);
}

void fm__linear_q5_0_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q5_0_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q5_0, args);
}

void fm__linear_q5_1_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q5_1_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q5_1, args);
}

void fm__linear_iq4_nl_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_iq4_nl_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_IQ4_NL, args);
}

void fm__linear_mxfp4_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_mxfp4_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_MXFP4, args);
}

void fm__linear_q2_k_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q2_k_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q2_K, args);
}

void fm__linear_q3_k_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q3_k_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q3_K, args);
}

void fm__linear_q4_k_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q4_k_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q4_K, args);
}

void fm__linear_q5_k_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q5_k_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q5_K, args);
}

void fm__linear_q6_k_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_q6_k_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_Q6_K, args);
}

void fm__linear_iq4_xs_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_iq4_xs_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_IQ4_XS, args);
}

/* TQ1_0 and TQ2_0 share one panel form. */
void fm__linear_tq1_0_i8mm(const fm__linear_args *args) {
    fm__linear_tq2_0_i8mm(args);
}

void fm__linear_tq2_0_i8mm(const fm__linear_args *args) {
    if (args->tokens <= FEW)
        fm__linear_tq2_0_dotprod(args);
    else
        fm__i8mm_linear(FM__SHAPE_TQ2_0, args);
}
