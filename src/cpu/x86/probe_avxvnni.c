/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/probe_avxvnni.c: the probes' int8 loop, AVX-VNNI. Owns: nothing. Never does: measure
 * (cpu/probe.c does). Called from: the probes' threads.
 */
#include "cpu/x86/dot_avxvnni.h"

#include "cpu/x86/probe_avxvnni.h"

uint64_t fm__probe_int8_avxvnni(uint64_t rounds) {
    return fm__avxvnni_probe(rounds);
}
