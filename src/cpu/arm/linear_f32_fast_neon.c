/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_f32_fast_neon.c: linear layers of F32, fast class (fused multiply-add),
 * NEON.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table.
 */
#include "cpu/arm/arm.h"
#include "cpu/arm/linear_float_neon.h"

void fm__linear_f32_fast_neon(const fm__linear_args *args) {
    fm__float_linear(FM__FLOAT_F32, true, false, args);
}
