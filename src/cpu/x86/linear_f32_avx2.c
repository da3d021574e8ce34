/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_f32_avx2.c: linear layers of F32, exact: multiply, then add,
 * AVX2.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table.
 */
#include "cpu/x86/linear_float_avx2.h"
#include "cpu/x86/x86.h"

void fm__linear_f32_avx2(const fm__linear_args *args) {
    fm__float_linear(FM__FLOAT_F32, false, args);
}
