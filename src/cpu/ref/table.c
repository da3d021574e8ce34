/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/table.c: the bottom rung: every entry of the table has a reference kernel. Never does:
 * arithmetic. Called from: fm__kernels_get().
 */
#include "cpu/ref/ref.h"

void fm__kernels_fill_ref(fm__kernels *table) {
    table->rung = "ref";
#define EXACT(id, NAME)                                                                            \
    table->linear[FM__TYPE_##NAME][0] =                                                            \
        (fm__linear_kernel){fm__linear_##id##_ref, "fm__linear_" #id "_ref", 16, 1, false, NULL};
    FM__TYPE_LIST(EXACT)
#undef EXACT
#define FAST(id, NAME)                                                                             \
    table->linear[FM__TYPE_##NAME][1] = (fm__linear_kernel){                                       \
        fm__linear_##id##_fast_ref, "fm__linear_" #id "_fast_ref", 16, 1, false, NULL};
    FM__FLOAT_TYPE_LIST(FAST)
#undef FAST
    table->quantise[FM__ACT_F32] = fm__quantise_f32_ref;
    table->quantise[FM__ACT_R13] = fm__quantise_r13_ref;
    table->quantise[FM__ACT_R16] = fm__quantise_r16_ref;
    table->quantise[FM__ACT_BF16] = fm__quantise_bf16_ref;
    table->quantise[FM__ACT_Q8_32] = fm__quantise_q8_32_ref;
    table->quantise[FM__ACT_Q8_256] = fm__quantise_q8_256_ref;
    table->rmsnorm = fm__rmsnorm_ref;
    table->rope = fm__rope_ref;
    table->glu[FM__GLU_SILU] = fm__silu_glu_ref;
    table->glu[FM__GLU_GELU] = fm__gelu_glu_ref;
    table->add = fm__add_ref;
    for (int t = 0; t < FM__CACHE_TYPES; t++) {
        table->kv_store[t] = fm__kv_store_ref;
        table->attention[t] = fm__attention_ref;
    }
}
