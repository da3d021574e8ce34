/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_q256_amx.c: quantised linear layers with blocks of 256, AMX int8.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/x86/tile_amx.h"

#include "cpu/x86/linear_q256_amx.h"
#include "cpu/x86/x86.h"

/* What the types' kernels read is one of four forms. */
#define SHARED(id, NAME)                                                                           \
    static void prepare_##id(const fm__linear_args *args, uint32_t unit) {                         \
        fm__amx256_prepare(FM__SHAPE_##NAME, args, unit);                                          \
    }                                                                                              \
    const fm__linear_shared fm__linear_##id##_amx_shared = {fm__amx256_shared_bytes,               \
                                                            fm__amx_units, prepare_##id};
SHARED(q2_k, Q2_K)
SHARED(q3_k, Q3_K) /* and TQ1_0, TQ2_0 */
SHARED(q4_k, Q4_K) /* and Q5_K */
SHARED(q6_k, Q6_K) /* and IQ4_XS */

FM__INLINE void run(const fm__shape shape, fm__linear_fn *few, const fm__linear_args *args) {
    if (args->tokens < FM__AMX_LEAST)
        few(args);
    else
        fm__amx256_linear(shape, args);
}

void fm__linear_q2_k_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q2_K, fm__linear_q2_k_avx512vnni, args);
}

void fm__linear_q3_k_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q3_K, fm__linear_q3_k_avx512vnni, args);
}

void fm__linear_q4_k_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q4_K, fm__linear_q4_k_avx512vnni, args);
}

void fm__linear_q5_k_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q5_K, fm__linear_q5_k_avx512vnni, args);
}

void fm__linear_q6_k_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q6_K, fm__linear_q6_k_avx512vnni, args);
}

void fm__linear_iq4_xs_amx(const fm__linear_args *args) {
    run(FM__SHAPE_IQ4_XS, fm__linear_iq4_xs_avx512vnni, args);
}

/* TQ1_0 and TQ2_0 share one panel form. */
void fm__linear_tq1_0_amx(const fm__linear_args *args) {
    fm__linear_tq2_0_amx(args);
}

void fm__linear_tq2_0_amx(const fm__linear_args *args) {
    run(FM__SHAPE_TQ2_0, fm__linear_tq2_0_avx512vnni, args);
}
