/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_q32_amx.c: quantised linear layers with blocks of 32, AMX int8.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/x86/tile_amx.h"

#include "cpu/x86/linear_q32_amx.h"
#include "cpu/x86/x86.h"

const fm__linear_shared fm__linear_q32_amx_shared = {fm__amx32_shared_bytes, fm__amx_units,
                                                     fm__amx32_prepare};

FM__INLINE void run(const fm__shape shape, fm__linear_fn *few, const fm__linear_args *args) {
    if (args->tokens < FM__AMX_LEAST)
        few(args);
    else
        fm__amx32_linear(shape, args);
}

void fm__linear_q8_0_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q8_0, fm__linear_q8_0_avx512vnni, args);
}

void fm__linear_q4_0_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q4_0, fm__linear_q4_0_avx512vnni, args);
}

void fm__linear_q4_1_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q4_1, fm__linear_q4_1_avx512vnni, args);
}

void fm__linear_q5_0_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q5_0, fm__linear_q5_0_avx512vnni, args);
}

void fm__linear_q5_1_amx(const fm__linear_args *args) {
    run(FM__SHAPE_Q5_1, fm__linear_q5_1_avx512vnni, args);
}

void fm__linear_iq4_nl_amx(const fm__linear_args *args) {
    run(FM__SHAPE_IQ4_NL, fm__linear_iq4_nl_avx512vnni, args);
}

void fm__linear_mxfp4_amx(const fm__linear_args *args) {
    run(FM__SHAPE_MXFP4, fm__linear_mxfp4_avx512vnni, args);
}
