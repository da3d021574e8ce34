/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_f16_avx2.c: linear layers of F16 with 13-bit activations (exact) or plain ones
 * (fast), AVX2.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table.
 */
#include "cpu/x86/linear_float_avx2.h"
#include "cpu/x86/x86.h"

void fm__linear_f16_avx2(const fm__linear_args *args) {
    fm__float_linear(FM__FLOAT_F16, true, args);
}
