/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_bf16_fast_avx512bf16.c: linear layers of BF16 with bf16 activations, fast class.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table. vdpbf16ps adds pairs without rounding each product, so the bits are its own.
 */
#include "cpu/x86/linear_float_avx512.h"
#include "cpu/x86/x86.h"

void fm__linear_bf16_fast_avx512bf16(const fm__linear_args *args) {
    fm__float_linear(FM__FLOAT_BF16_DOTS, true, args);
}
