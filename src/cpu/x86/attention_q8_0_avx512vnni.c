/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/attention_q8_0_avx512vnni.c: exact attention over q8_0, AVX-512 VNNI.
 *
 * Owns: nothing; the work is cpu/body_attention_tiles.h's. Never does: allocate or start threads.
 * Called from: the host device's team, through the table.
 */
#include "cpu/x86/dot_avx512vnni.h"

#include "cpu/body_attention_q8_0.h"
#include "cpu/body_attention_tiles.h"
#include "cpu/x86/x86.h"

void fm__attention_q8_0_avx512vnni(const fm__attention_args *args) {
    fm__body_attention(args);
}
