/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/fill.c: what the x86 rungs put into the kernel table.
 *
 * Owns: nothing. Never does: arithmetic (it is built for any x86-64). Called from: cpu/table.c.
 */
#include "cpu/x86/x86.h"

#define ENTRY(NAME, class, kernel, tile_tokens, tile_panels, from_the_end)                         \
    table->linear[FM__TYPE_##NAME][class] = (fm__linear_kernel) {                                  \
        kernel, #kernel, tile_tokens, tile_panels, from_the_end, NULL                              \
    }
#define LINEAR(NAME, class, kernel, tile_tokens, tile_panels)                                      \
    ENTRY(NAME, class, kernel, tile_tokens, tile_panels, false)
/* Few tokens are the matter of linear_few_avx512vnni.h. */
#define BACKWARDS(NAME, class, kernel, tile_tokens, tile_panels)                                   \
    ENTRY(NAME, class, kernel, tile_tokens, tile_panels, true)

void fm__kernels_fill_avx2(fm__kernels *table, uint32_t features) {
    (void)features;
    LINEAR(Q8_0, 0, fm__linear_q8_0_avx2, 4, 1);
    LINEAR(Q4_0, 0, fm__linear_q4_0_avx2, 4, 1);
    LINEAR(Q4_1, 0, fm__linear_q4_1_avx2, 4, 1);
    LINEAR(Q5_0, 0, fm__linear_q5_0_avx2, 4, 1);
    LINEAR(Q5_1, 0, fm__linear_q5_1_avx2, 4, 1);
    LINEAR(IQ4_NL, 0, fm__linear_iq4_nl_avx2, 4, 1);
    LINEAR(MXFP4, 0, fm__linear_mxfp4_avx2, 4, 1);
    LINEAR(Q2_K, 0, fm__linear_q2_k_avx2, 4, 1);
    LINEAR(Q3_K, 0, fm__linear_q3_k_avx2, 4, 1);
    LINEAR(Q4_K, 0, fm__linear_q4_k_avx2, 4, 1);
    LINEAR(Q5_K, 0, fm__linear_q5_k_avx2, 4, 1);
    LINEAR(Q6_K, 0, fm__linear_q6_k_avx2, 4, 1);
    LINEAR(IQ4_XS, 0, fm__linear_iq4_xs_avx2, 4, 1);
    LINEAR(TQ1_0, 0, fm__linear_tq1_0_avx2, 4, 1);
    LINEAR(TQ2_0, 0, fm__linear_tq2_0_avx2, 4, 1);
    LINEAR(F32, 0, fm__linear_f32_avx2, 5, 1);
    LINEAR(F32, 1, fm__linear_f32_fast_avx2, 5, 1);
    LINEAR(F16, 0, fm__linear_f16_avx2, 5, 1);
    LINEAR(F16, 1, fm__linear_f16_avx2, 5, 1);
    LINEAR(BF16, 0, fm__linear_bf16_avx2, 5, 1);
    LINEAR(BF16, 1, fm__linear_bf16_fast_avx2, 5, 1);
    table->quantise[FM__ACT_F32] = fm__quantise_f32_avx2;
    table->quantise[FM__ACT_R13] = fm__quantise_r13_avx2;
    table->quantise[FM__ACT_R16] = fm__quantise_r16_avx2;
    table->quantise[FM__ACT_BF16] = fm__quantise_bf16_avx2;
    table->quantise[FM__ACT_Q8_32] = fm__quantise_q8_32_avx2;
    table->quantise[FM__ACT_Q8_256] = fm__quantise_q8_256_avx2;
    table->rmsnorm = fm__rmsnorm_avx2;
    table->rope = fm__rope_avx2;
    table->glu[FM__GLU_SILU] = fm__silu_glu_avx2;
    table->glu[FM__GLU_GELU] = fm__gelu_glu_avx2;
    table->add = fm__add_avx2;
    table->kv_store[FM__CACHE_F16] = fm__kv_store_avx2;
    table->kv_store[FM__CACHE_Q8_0] = fm__kv_store_q8_0_avx2;
    table->attention[FM__CACHE_F16] = fm__attention_avx2;
    table->attention[FM__CACHE_Q8_0] = fm__attention_q8_0_avx2;
}

/* Beside the linear layers the AVX2 kernels are as good. */
void fm__kernels_fill_avxvnni(fm__kernels *table, uint32_t features) {
    (void)features;
    LINEAR(Q8_0, 0, fm__linear_q8_0_avxvnni, 6, 4);
    LINEAR(Q4_0, 0, fm__linear_q4_0_avxvnni, 6, 4);
    LINEAR(Q4_1, 0, fm__linear_q4_1_avxvnni, 6, 4);
    LINEAR(Q5_0, 0, fm__linear_q5_0_avxvnni, 6, 4);
    LINEAR(Q5_1, 0, fm__linear_q5_1_avxvnni, 6, 4);
    LINEAR(IQ4_NL, 0, fm__linear_iq4_nl_avxvnni, 6, 4);
    LINEAR(MXFP4, 0, fm__linear_mxfp4_avxvnni, 6, 4);
    LINEAR(Q2_K, 0, fm__linear_q2_k_avxvnni, 6, 4);
    LINEAR(Q3_K, 0, fm__linear_q3_k_avxvnni, 6, 4);
    LINEAR(Q4_K, 0, fm__linear_q4_k_avxvnni, 6, 4);
    LINEAR(Q5_K, 0, fm__linear_q5_k_avxvnni, 6, 4);
    LINEAR(Q6_K, 0, fm__linear_q6_k_avxvnni, 6, 4);
    LINEAR(IQ4_XS, 0, fm__linear_iq4_xs_avxvnni, 6, 4);
    LINEAR(TQ1_0, 0, fm__linear_tq1_0_avxvnni, 6, 4);
    LINEAR(TQ2_0, 0, fm__linear_tq2_0_avxvnni, 6, 4);
}

void fm__kernels_fill_avx512(fm__kernels *table, uint32_t features) {
    if (features & FM__CPU_AVX512_VNNI) {
        BACKWARDS(Q8_0, 0, fm__linear_q8_0_avx512vnni, 8, 4);
        BACKWARDS(Q4_0, 0, fm__linear_q4_0_avx512vnni, 8, 4);
        BACKWARDS(Q4_1, 0, fm__linear_q4_1_avx512vnni, 8, 4);
        BACKWARDS(Q5_0, 0, fm__linear_q5_0_avx512vnni, 8, 4);
        BACKWARDS(Q5_1, 0, fm__linear_q5_1_avx512vnni, 8, 4);
        BACKWARDS(IQ4_NL, 0, fm__linear_iq4_nl_avx512vnni, 8, 4);
        BACKWARDS(MXFP4, 0, fm__linear_mxfp4_avx512vnni, 8, 4);
        BACKWARDS(Q2_K, 0, fm__linear_q2_k_avx512vnni, 8, 4);
        BACKWARDS(Q3_K, 0, fm__linear_q3_k_avx512vnni, 8, 4);
        BACKWARDS(Q4_K, 0, fm__linear_q4_k_avx512vnni, 8, 4);
        BACKWARDS(Q5_K, 0, fm__linear_q5_k_avx512vnni, 8, 4);
        BACKWARDS(Q6_K, 0, fm__linear_q6_k_avx512vnni, 8, 4);
        BACKWARDS(IQ4_XS, 0, fm__linear_iq4_xs_avx512vnni, 8, 4);
        BACKWARDS(TQ1_0, 0, fm__linear_tq1_0_avx512vnni, 8, 4);
        BACKWARDS(TQ2_0, 0, fm__linear_tq2_0_avx512vnni, 8, 4);
    }
    LINEAR(F32, 0, fm__linear_f32_avx512, 16, 4);
    LINEAR(F32, 1, fm__linear_f32_fast_avx512, 16, 4);
    LINEAR(F16, 0, fm__linear_f16_avx512, 16, 4);
    LINEAR(F16, 1, fm__linear_f16_avx512, 16, 4);
    LINEAR(BF16, 0, fm__linear_bf16_avx512, 16, 4);
    if (features & FM__CPU_AVX512_BF16)
        LINEAR(BF16, 1, fm__linear_bf16_fast_avx512bf16, 16, 4);
    table->quantise[FM__ACT_F32] = fm__quantise_f32_avx512;
    table->quantise[FM__ACT_R13] = fm__quantise_r13_avx512;
    table->quantise[FM__ACT_R16] = fm__quantise_r16_avx512;
    table->quantise[FM__ACT_BF16] = fm__quantise_bf16_avx512;
    table->quantise[FM__ACT_Q8_32] = fm__quantise_q8_32_avx512;
    table->quantise[FM__ACT_Q8_256] = fm__quantise_q8_256_avx512;
    table->rmsnorm = fm__rmsnorm_avx512;
    table->rope = fm__rope_avx512;
    table->glu[FM__GLU_SILU] = fm__silu_glu_avx512;
    table->glu[FM__GLU_GELU] = fm__gelu_glu_avx512;
    table->add = fm__add_avx512;
    table->kv_store[FM__CACHE_F16] = fm__kv_store_avx512;
    table->kv_store[FM__CACHE_Q8_0] = fm__kv_store_q8_0_avx512;
    table->attention[FM__CACHE_F16] = fm__attention_avx512;
    if (features & FM__CPU_AVX512_VNNI)
        table->attention[FM__CACHE_Q8_0] = fm__attention_q8_0_avx512vnni;
}

/* A call reads all its prepared tokens, often from the L3 cache, and wants many panels for them;
   few tokens run the AVX-512 kernels, as finely cut. */
void fm__kernels_fill_amx(fm__kernels *table, uint32_t features) {
    (void)features;
    BACKWARDS(Q8_0, 0, fm__linear_q8_0_amx, 16, 16);
    BACKWARDS(Q4_0, 0, fm__linear_q4_0_amx, 16, 16);
    BACKWARDS(Q4_1, 0, fm__linear_q4_1_amx, 16, 16);
    BACKWARDS(Q5_0, 0, fm__linear_q5_0_amx, 16, 16);
    BACKWARDS(Q5_1, 0, fm__linear_q5_1_amx, 16, 16);
    BACKWARDS(IQ4_NL, 0, fm__linear_iq4_nl_amx, 16, 16);
    BACKWARDS(MXFP4, 0, fm__linear_mxfp4_amx, 16, 16);
    BACKWARDS(Q2_K, 0, fm__linear_q2_k_amx, 16, 16);
    BACKWARDS(Q3_K, 0, fm__linear_q3_k_amx, 16, 16);
    BACKWARDS(Q4_K, 0, fm__linear_q4_k_amx, 16, 16);
    BACKWARDS(Q5_K, 0, fm__linear_q5_k_amx, 16, 16);
    BACKWARDS(Q6_K, 0, fm__linear_q6_k_amx, 16, 16);
    BACKWARDS(IQ4_XS, 0, fm__linear_iq4_xs_amx, 16, 16);
    BACKWARDS(TQ1_0, 0, fm__linear_tq1_0_amx, 16, 16);
    BACKWARDS(TQ2_0, 0, fm__linear_tq2_0_amx, 16, 16);
    LINEAR(BF16, 1, fm__linear_bf16_fast_amx, 32, 16);
#define SHARED(id, NAME, form)                                                                     \
    table->linear[FM__TYPE_##NAME][0].shared = &fm__linear_##form##_amx_shared;
    FM__X86_QUANTISED_LIST(SHARED)
    table->linear[FM__TYPE_BF16][1].shared = &fm__linear_bf16_fast_amx_shared;
}
