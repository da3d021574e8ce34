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

/* X(id, NAME, body, shared) */
#define TYPES(X)                                                                                   \
    X(q8_0, Q8_0, fm__amx32_linear, q32)                                                           \
    X(q4_0, Q4_0, fm__amx32_linear, q32)                                                           \
    X(q4_1, Q4_1, fm__amx32_linear, q32)                                                           \
    X(q5_0, Q5_0, fm__amx32_linear, q32)                                                           \
    X(q5_1, Q5_1, fm__amx32_linear, q32)                                                           \
    X(iq4_nl, IQ4_NL, fm__amx32_linear, q32)                                                       \
    X(mxfp4, MXFP4, fm__amx32_linear, q32)                                                         \
    X(q2_k, Q2_K, fm__amx256_linear, q2_k)                                                         \
    X(q3_k, Q3_K, fm__amx256_linear, q3_k)                                                         \
    X(q4_k, Q4_K, fm__amx256_linear, q4_k)                                                         \
    X(q5_k, Q5_K, fm__amx256_linear, q4_k)                                                         \
    X(q6_k, Q6_K, fm__amx256_linear, q6_k)                                                         \
    X(iq4_xs, IQ4_XS, fm__amx256_linear, q6_k)                                                     \
    X(tq2_0, TQ2_0, fm__amx256_linear, q3_k)

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

#define KERNEL(id, NAME, body, shared)                                                             \
    static void id##_emulated(const fm__linear_args *args) {                                       \
        body(FM__SHAPE_##NAME, args);                                                              \
    }
TYPES(KERNEL)

static void bf16_fast_emulated(const fm__linear_args *args) {
    fm__amx_bf16_linear(args);
}

void test_amx_emulated_fill(fm__kernels *table) {
#define ENTRY(id, NAME, body, shared)                                                              \
    table->linear[FM__TYPE_##NAME][0] = (fm__linear_kernel){                                       \
        id##_emulated, "fm__linear_" #id "_amx, emulated", 16, 8, false, &shared_##shared};
    TYPES(ENTRY)
    table->linear[FM__TYPE_TQ1_0][0] = table->linear[FM__TYPE_TQ2_0][0];
    table->linear[FM__TYPE_BF16][1] = (fm__linear_kernel){
        bf16_fast_emulated, "fm__linear_bf16_fast_amx, emulated", 32, 8, false, &shared_bf16};
}
