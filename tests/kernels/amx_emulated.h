/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amx_emulated.h: the AMX linear kernels on emulated tiles, 32 tokens a round, for processors with
 * AVX-512 VNNI and GFNI.
 */
#pragma once

#include "cpu/cpu.h"

void test_amx_emulated_fill(fm__kernels *table);
