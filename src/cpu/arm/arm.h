/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/arm.h: the kernels of the arm leaf, for its own table.
 *
 * Owns: nothing. Never does: anything. Included by: the files of cpu/arm.
 */
#pragma once

#include "cpu/cpu.h"

/* X(id, NAME): the quantised types. */
#define FM__ARM_QUANTISED_LIST(X)                                                                  \
    X(q8_0, Q8_0)                                                                                  \
    X(q4_0, Q4_0)                                                                                  \
    X(q4_1, Q4_1)                                                                                  \
    X(q5_0, Q5_0)                                                                                  \
    X(q5_1, Q5_1)                                                                                  \
    X(iq4_nl, IQ4_NL)                                                                              \
    X(mxfp4, MXFP4)                                                                                \
    X(q2_k, Q2_K)                                                                                  \
    X(q3_k, Q3_K)                                                                                  \
    X(q4_k, Q4_K)                                                                                  \
    X(q5_k, Q5_K)                                                                                  \
    X(q6_k, Q6_K)                                                                                  \
    X(iq4_xs, IQ4_XS)                                                                              \
    X(tq1_0, TQ1_0)                                                                                \
    X(tq2_0, TQ2_0)

#define FM__ARM_LINEAR(id, NAME)                                                                   \
    fm__linear_fn fm__linear_##id##_neon, fm__linear_##id##_dotprod, fm__linear_##id##_i8mm;
FM__ARM_QUANTISED_LIST(FM__ARM_LINEAR)
#undef FM__ARM_LINEAR

/* F16's kernel is exact with 13-bit activations and the fast class with plain ones. */
fm__linear_fn fm__linear_f32_neon, fm__linear_f32_fast_neon, fm__linear_f16_neon,
    fm__linear_bf16_neon, fm__linear_bf16_fast_neon;
fm__quantise_fn fm__quantise_f32_neon, fm__quantise_r13_neon, fm__quantise_r16_neon,
    fm__quantise_bf16_neon, fm__quantise_q8_32_neon, fm__quantise_q8_256_neon;
fm__rmsnorm_fn fm__rmsnorm_neon;
fm__rope_fn fm__rope_neon;
fm__glu_fn fm__silu_glu_neon, fm__gelu_glu_neon;
fm__add_fn fm__add_neon;
fm__kv_store_fn fm__kv_store_neon, fm__kv_store_q8_0_neon;
fm__attention_fn fm__attention_neon, fm__attention_q8_0_neon;
