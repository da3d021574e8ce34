/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_f16_neon.c: linear layers of F16 with 13-bit activations (exact) or plain ones
 * (fast), NEON.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table.
 */
#include "cpu/arm/arm.h"
#include "cpu/arm/linear_float_neon.h"

void fm__linear_f16_neon(const fm__linear_args *args) {
    fm__float_linear(FM__FLOAT_F16, true, false, args);
}
