/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/attention_q8_0_neon.c: exact attention over q8_0, NEON.
 *
 * Owns: nothing; the work is cpu/body_attention_tiles.h's. Never does: allocate or start threads.
 * Called from: the host device's team, through the table.
 */
#include "cpu/arm/dot_neon.h"

#include "cpu/arm/arm.h"
#include "cpu/body_attention_q8_0.h"
#include "cpu/body_attention_tiles.h"

void fm__attention_q8_0_neon(const fm__attention_args *args) {
    fm__body_attention(args);
}
