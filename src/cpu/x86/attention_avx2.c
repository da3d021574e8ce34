/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/attention_avx2.c: exact attention over f16, AVX2.
 *
 * Owns: nothing; the work is cpu/body_attention_tiles.h's. Never does: allocate or start threads.
 * Called from: the host device's team, through the table.
 */
#include "cpu/x86/simd_avx2.h"

#include "cpu/body_attention_f16.h"
#include "cpu/body_attention_tiles.h"
#include "cpu/x86/x86.h"

void fm__attention_avx2(const fm__attention_args *args) {
    fm__body_attention(args);
}
