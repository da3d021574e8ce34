/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_bf16_fast_amx.c: linear layers of BF16 with bf16 activations, AMX, fast class.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table. tdpbf16ps adds pairs without rounding each product, so the bits are its own.
 */
#include "cpu/x86/tile_amx.h"

#include "cpu/x86/linear_bf16_amx.h"
#include "cpu/x86/x86.h"

const fm__linear_shared fm__linear_bf16_fast_amx_shared = {fm__amx_bf16_shared_bytes, fm__amx_units,
                                                           fm__amx_bf16_prepare};

void fm__linear_bf16_fast_amx(const fm__linear_args *args) {
    if (args->tokens < FM__AMX_LEAST)
        fm__linear_bf16_fast_avx512bf16(args);
    else
        fm__amx_bf16_linear(args);
}
