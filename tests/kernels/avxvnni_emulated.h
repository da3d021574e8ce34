/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avxvnni_emulated.h: the AVX-VNNI linear kernels for processors with AVX-512 VNNI: the same
 * bodies with AVX-512's encoding of their two instructions. For tests and benches.
 */
#pragma once

#include "cpu/cpu.h"

void test_avxvnni_emulated_fill(fm__kernels *table);
/* As the probes' loops (cpu/probe.h): FM__PROBE_INT8_AVXVNNI operations a round. */
uint64_t test_avxvnni_emulated_probe(uint64_t rounds);
