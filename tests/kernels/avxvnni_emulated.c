/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avxvnni_emulated.c: instances of the bodies src/cpu/x86/linear_avxvnni.h with emulated dot
 * instructions. Built with the flags of the AVX2 kernels; called by test_cpu_linear and
 * lab/cpu_avxvnni_bench.c.
 */
#include "avxvnni_emulated.h"

#include "dot_emulated.h"

#include "cpu/x86/linear_avxvnni.h"
#include "cpu/x86/probe_avxvnni.h"

/* X(id, NAME) */
#define TYPES(X)                                                                                   \
    X(q8_0, Q8_0)                                                                                  \
    X(q4_0, Q4_0)                                                                                  \
    X(q4_1, Q4_1)                                                                                  \
    X(q5_0, Q5_0)                                                                                  \
    X(q5_1, Q5_1)                                                                                  \
    X(iq4_nl, IQ4_NL)                                                                              \
    X(mxfp4, MXFP4)                                                                                \
    X(q2_k, Q2_K)                                                                                  \
    X(q3_k, Q3_K)                                                                                  \
    X(q4_k, Q4_K)                                                                                  \
    X(q5_k, Q5_K)                                                                                  \
    X(q6_k, Q6_K)                                                                                  \
    X(iq4_xs, IQ4_XS)                                                                              \
    X(tq2_0, TQ2_0)

#define KERNEL(id, NAME)                                                                           \
    static void id##_emulated(const fm__linear_args *args) {                                       \
        fm__avxvnni_linear(FM__SHAPE_##NAME, args);                                                \
    }
TYPES(KERNEL)

void test_avxvnni_emulated_fill(fm__kernels *table) {
#define ENTRY(id, NAME)                                                                            \
    table->linear[FM__TYPE_##NAME][0] = (fm__linear_kernel){                                       \
        id##_emulated, "fm__linear_" #id "_avxvnni, emulated", 6, 4, false, NULL};
    TYPES(ENTRY)
    table->linear[FM__TYPE_TQ1_0][0] = table->linear[FM__TYPE_TQ2_0][0];
}

uint64_t test_avxvnni_emulated_probe(uint64_t rounds) {
    return fm__avxvnni_probe(rounds);
}
