/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/arm/linear_quant_i8mm.c: quantised linear layers, NEON with products of int8 matrices; few
 * tokens with the dot product instructions.
 *
 * Owns: one kernel a type. Never does: allocate or start threads. Called from: the host device's
 * team, through the table.
 */
#include "cpu/arm/linear_quant_i8mm.h"
#include "cpu/arm/arm.h"

/* Up to so many tokens the product is bound by memory, and preparing would not be paid back. */
enum { FEW = 4 };

/* TQ1_0 and TQ2_0 share one panel form. */
#define FM__SHAPE_TQ1_0 FM__SHAPE_TQ2_0

#define KERNEL(id, NAME)                                                                           \
    void fm__linear_##id##_i8mm(const fm__linear_args *args) {                                     \
        if (args->tokens <= FEW)                                                                   \
            fm__linear_##id##_dotprod(args);                                                       \
        else                                                                                       \
            fm__i8mm_linear(FM__SHAPE_##NAME, args);                                               \
    }
FM__ARM_QUANTISED_LIST(KERNEL)
