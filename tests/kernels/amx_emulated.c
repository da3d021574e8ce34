/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amx_emulated.c: instances of the bodies src/cpu/x86/linear_*_amx.h on emulated tiles. Built with
 * the flags of the AMX kernels; called by test_cpu_linear.
 */
#include "amx_emulated.h"

#define FM__AMX_TOKENS 32
#include "tile_emulated.h"

#include "cpu/x86/linear_bf16_amx.h"
#include "cpu/x86/linear_q256_amx.h"
#include "cpu/x86/linear_q32_amx.h"
#include "cpu/x86/x86.h"

/* What reads each form. */
#define BODY_q32 fm__amx32_linear
#define BODY_q2_k fm__amx256_linear
#define BODY_q3_k fm__amx256_linear
#define BODY_q4_k fm__amx256_linear
#define BODY_q6_k fm__amx256_linear

#define FM__SHAPE_TQ1_0 FM__SHAPE_TQ2_0 /* one panel form */

/* As linear_*_amx.c have them. */
#define SHARED(id, NAME)                                                                           \
    static void prepare_##id(const fm__linear_args *args, uint32_t unit) {                         \
        fm__amx256_prepare(FM__SHAPE_##NAME, args, unit);                                          \
    }                                                                                              \
    static const fm__linear_shared shared_##id = {fm__amx256_shared_bytes, fm__amx_units,          \
                                                  prepare_##id};
SHARED(q2_k, Q2_K)
SHARED(q3_k, Q3_K)
SHARED(q4_k, Q4_K)
SHARED(q6_k, Q6_K)
static const fm__linear_shared shared_q32 = {fm__amx32_shared_bytes, fm__amx_units,
                                             fm__amx32_prepare};
static const fm__linear_shared shared_bf16 = {fm__amx_bf16_shared_bytes, fm__amx_units,
                                              fm__amx_bf16_prepare};

#define KERNEL(id, NAME, form)                                                                     \
    static void id##_emulated(const fm__linear_args *args) {                                       \
        BODY_##form(FM__SHAPE_##NAME, args);                                                       \
    }
FM__X86_QUANTISED_LIST(KERNEL)

static void bf16_fast_emulated(const fm__linear_args *args) {
    fm__amx_bf16_linear(args);
}

void test_amx_emulated_fill(fm__kernels *table) {
#define ENTRY(id, NAME, form)                                                                      \
    table->linear[FM__TYPE_##NAME][0] = (fm__linear_kernel){                                       \
        id##_emulated, "fm__linear_" #id "_amx, emulated", 16, 8, false, &shared_##form};
    FM__X86_QUANTISED_LIST(ENTRY)
    table->linear[FM__TYPE_BF16][1] = (fm__linear_kernel){
        bf16_fast_emulated, "fm__linear_bf16_fast_amx, emulated", 32, 8, false, &shared_bf16};
}
