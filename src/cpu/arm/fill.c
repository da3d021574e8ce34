/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/fill.c: what the NEON rung puts into the kernel table.
 *
 * Owns: nothing. Never does: arithmetic. Called from: cpu/table.c.
 */
#include "cpu/arm/arm.h"

#define LINEAR(NAME, class, kernel, tile_tokens, tile_panels)                                      \
    table->linear[FM__TYPE_##NAME][class] = (fm__linear_kernel) {                                  \
        kernel, #kernel, tile_tokens, tile_panels, false, NULL                                     \
    }

void fm__kernels_fill_neon(fm__kernels *table, uint32_t features) {
    if ((features & FM__CPU_DOTPROD) && (features & FM__CPU_I8MM)) {
        LINEAR(Q8_0, 0, fm__linear_q8_0_i8mm, 8, 4);
        LINEAR(Q4_0, 0, fm__linear_q4_0_i8mm, 8, 4);
        LINEAR(Q4_1, 0, fm__linear_q4_1_i8mm, 8, 4);
        LINEAR(Q5_0, 0, fm__linear_q5_0_i8mm, 8, 4);
        LINEAR(Q5_1, 0, fm__linear_q5_1_i8mm, 8, 4);
        LINEAR(IQ4_NL, 0, fm__linear_iq4_nl_i8mm, 8, 4);
        LINEAR(MXFP4, 0, fm__linear_mxfp4_i8mm, 8, 4);
        LINEAR(Q2_K, 0, fm__linear_q2_k_i8mm, 8, 4);
        LINEAR(Q3_K, 0, fm__linear_q3_k_i8mm, 8, 4);
        LINEAR(Q4_K, 0, fm__linear_q4_k_i8mm, 8, 4);
        LINEAR(Q5_K, 0, fm__linear_q5_k_i8mm, 8, 4);
        LINEAR(Q6_K, 0, fm__linear_q6_k_i8mm, 8, 4);
        LINEAR(IQ4_XS, 0, fm__linear_iq4_xs_i8mm, 8, 4);
        LINEAR(TQ1_0, 0, fm__linear_tq1_0_i8mm, 8, 4);
        LINEAR(TQ2_0, 0, fm__linear_tq2_0_i8mm, 8, 4);
    } else if (features & FM__CPU_DOTPROD) {
        LINEAR(Q8_0, 0, fm__linear_q8_0_dotprod, 4, 1);
        LINEAR(Q4_0, 0, fm__linear_q4_0_dotprod, 4, 1);
        LINEAR(Q4_1, 0, fm__linear_q4_1_dotprod, 4, 1);
        LINEAR(Q5_0, 0, fm__linear_q5_0_dotprod, 4, 1);
        LINEAR(Q5_1, 0, fm__linear_q5_1_dotprod, 4, 1);
        LINEAR(IQ4_NL, 0, fm__linear_iq4_nl_dotprod, 4, 1);
        LINEAR(MXFP4, 0, fm__linear_mxfp4_dotprod, 4, 1);
        LINEAR(Q2_K, 0, fm__linear_q2_k_dotprod, 4, 1);
        LINEAR(Q3_K, 0, fm__linear_q3_k_dotprod, 4, 1);
        LINEAR(Q4_K, 0, fm__linear_q4_k_dotprod, 4, 1);
        LINEAR(Q5_K, 0, fm__linear_q5_k_dotprod, 4, 1);
        LINEAR(Q6_K, 0, fm__linear_q6_k_dotprod, 4, 1);
        LINEAR(IQ4_XS, 0, fm__linear_iq4_xs_dotprod, 4, 1);
        LINEAR(TQ1_0, 0, fm__linear_tq1_0_dotprod, 4, 1);
        LINEAR(TQ2_0, 0, fm__linear_tq2_0_dotprod, 4, 1);
    } else {
        LINEAR(Q8_0, 0, fm__linear_q8_0_neon, 4, 1);
        LINEAR(Q4_0, 0, fm__linear_q4_0_neon, 4, 1);
        LINEAR(Q4_1, 0, fm__linear_q4_1_neon, 4, 1);
        LINEAR(Q5_0, 0, fm__linear_q5_0_neon, 4, 1);
        LINEAR(Q5_1, 0, fm__linear_q5_1_neon, 4, 1);
        LINEAR(IQ4_NL, 0, fm__linear_iq4_nl_neon, 4, 1);
        LINEAR(MXFP4, 0, fm__linear_mxfp4_neon, 4, 1);
        LINEAR(Q2_K, 0, fm__linear_q2_k_neon, 4, 1);
        LINEAR(Q3_K, 0, fm__linear_q3_k_neon, 4, 1);
        LINEAR(Q4_K, 0, fm__linear_q4_k_neon, 4, 1);
        LINEAR(Q5_K, 0, fm__linear_q5_k_neon, 4, 1);
        LINEAR(Q6_K, 0, fm__linear_q6_k_neon, 4, 1);
        LINEAR(IQ4_XS, 0, fm__linear_iq4_xs_neon, 4, 1);
        LINEAR(TQ1_0, 0, fm__linear_tq1_0_neon, 4, 1);
        LINEAR(TQ2_0, 0, fm__linear_tq2_0_neon, 4, 1);
    }
    LINEAR(F32, 0, fm__linear_f32_neon, 4, 1);
    LINEAR(F32, 1, fm__linear_f32_fast_neon, 4, 1);
    LINEAR(F16, 0, fm__linear_f16_neon, 4, 1);
    LINEAR(F16, 1, fm__linear_f16_neon, 4, 1);
    LINEAR(BF16, 0, fm__linear_bf16_neon, 4, 1);
    LINEAR(BF16, 1, fm__linear_bf16_fast_neon, 4, 1);
    table->quantise[FM__ACT_F32] = fm__quantise_f32_neon;
    table->quantise[FM__ACT_R13] = fm__quantise_r13_neon;
    table->quantise[FM__ACT_R16] = fm__quantise_r16_neon;
    table->quantise[FM__ACT_BF16] = fm__quantise_bf16_neon;
    table->quantise[FM__ACT_Q8_32] = fm__quantise_q8_32_neon;
    table->quantise[FM__ACT_Q8_256] = fm__quantise_q8_256_neon;
    table->rmsnorm = fm__rmsnorm_neon;
    table->rope = fm__rope_neon;
    table->glu[FM__GLU_SILU] = fm__silu_glu_neon;
    table->glu[FM__GLU_GELU] = fm__gelu_glu_neon;
    table->add = fm__add_neon;
    table->kv_store[FM__CACHE_F16] = fm__kv_store_neon;
    table->kv_store[FM__CACHE_Q8_0] = fm__kv_store_q8_0_neon;
    table->attention[FM__CACHE_F16] = fm__attention_neon;
    table->attention[FM__CACHE_Q8_0] = fm__attention_q8_0_neon;
}
