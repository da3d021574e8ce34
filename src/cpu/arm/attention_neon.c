/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/attention_neon.c: exact attention over f16, NEON.
 *
 * Owns: nothing; the work is cpu/body_attention_tiles.h's. Never does: allocate or start threads.
 * Called from: the host device's team, through the table.
 */
#include "cpu/arm/simd_neon.h"

#include "cpu/arm/arm.h"
#include "cpu/body_attention_f16.h"
#include "cpu/body_attention_tiles.h"

void fm__attention_neon(const fm__attention_args *args) {
    fm__body_attention(args);
}
