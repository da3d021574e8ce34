/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/x86.h: the kernels of the x86 leaf, for its own tables.
 *
 * Owns: nothing. Never does: anything. Included by: the files of cpu/x86.
 */
#pragma once

#include "cpu/cpu.h"

/* X(id, NAME, form): the quantised types, and which form of prepared tokens their AMX kernels
   read. */
#define FM__X86_QUANTISED_LIST(X)                                                                  \
    X(q8_0, Q8_0, q32)                                                                             \
    X(q4_0, Q4_0, q32)                                                                             \
    X(q4_1, Q4_1, q32)                                                                             \
    X(q5_0, Q5_0, q32)                                                                             \
    X(q5_1, Q5_1, q32)                                                                             \
    X(iq4_nl, IQ4_NL, q32)                                                                         \
    X(mxfp4, MXFP4, q32)                                                                           \
    X(q2_k, Q2_K, q2_k)                                                                            \
    X(q3_k, Q3_K, q3_k)                                                                            \
    X(q4_k, Q4_K, q4_k)                                                                            \
    X(q5_k, Q5_K, q4_k)                                                                            \
    X(q6_k, Q6_K, q6_k)                                                                            \
    X(iq4_xs, IQ4_XS, q6_k)                                                                        \
    X(tq1_0, TQ1_0, q3_k)                                                                          \
    X(tq2_0, TQ2_0, q3_k)

#define FM__X86_LINEAR(id, NAME, form)                                                             \
    fm__linear_fn fm__linear_##id##_amx, fm__linear_##id##_avx512vnni, fm__linear_##id##_avxvnni,  \
        fm__linear_##id##_avx2;
FM__X86_QUANTISED_LIST(FM__X86_LINEAR)
#undef FM__X86_LINEAR

/* F16's kernel is exact with 13-bit activations and the fast class with plain ones. */
fm__linear_fn fm__linear_f32_avx512, fm__linear_f32_fast_avx512, fm__linear_f16_avx512,
    fm__linear_bf16_avx512, fm__linear_bf16_fast_avx512bf16, fm__linear_bf16_fast_amx,
    fm__linear_f32_avx2, fm__linear_f32_fast_avx2, fm__linear_f16_avx2, fm__linear_bf16_avx2,
    fm__linear_bf16_fast_avx2;

/* Forms of prepared tokens. */
extern const fm__linear_shared fm__linear_q32_amx_shared, fm__linear_q2_k_amx_shared,
    fm__linear_q3_k_amx_shared, fm__linear_q4_k_amx_shared, fm__linear_q6_k_amx_shared,
    fm__linear_bf16_fast_amx_shared;

#define FM__X86_ROWS(rung)                                                                         \
    fm__quantise_fn fm__quantise_f32_##rung, fm__quantise_r13_##rung, fm__quantise_r16_##rung,     \
        fm__quantise_bf16_##rung, fm__quantise_q8_32_##rung, fm__quantise_q8_256_##rung;           \
    fm__rmsnorm_fn fm__rmsnorm_##rung;                                                             \
    fm__rope_fn fm__rope_##rung;                                                                   \
    fm__glu_fn fm__silu_glu_##rung, fm__gelu_glu_##rung;                                           \
    fm__add_fn fm__add_##rung;                                                                     \
    fm__kv_store_fn fm__kv_store_##rung, fm__kv_store_q8_0_##rung;                                 \
    fm__attention_fn fm__attention_##rung;
FM__X86_ROWS(avx512)
FM__X86_ROWS(avx2)
#undef FM__X86_ROWS
fm__attention_fn fm__attention_q8_0_avx512vnni, fm__attention_q8_0_avx2;
