/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_bf16_neon.c: linear layers of BF16 with 16-bit activations (exact),
 * NEON.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table.
 */
#include "cpu/arm/arm.h"
#include "cpu/arm/linear_float_neon.h"

void fm__linear_bf16_neon(const fm__linear_args *args) {
    fm__float_linear(FM__FLOAT_BF16, true, false, args);
}
