/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/linear_shape.h: what distinguishes the quantised types for a linear kernel, as compile-time
 * constants.
 *
 * Owns: nothing. Never does: anything on its own. Included by: the linear_* files of the rungs,
 * whose shared bodies take a shape as a constant argument so that the compiler folds every test of
 * it.
 */
#pragma once

#include "cpu/cpu.h"

typedef struct fm__shape {
    int block;        /* 32, 256 */
    int bits;         /* of a code */
    bool lut;         /* codes index a table of int8 values */
    int offset_shift; /* value = code - (1 << offset_shift); -1: no offset */
    int sub_width;    /* 256-blocks: 16 or 32 elements a sub scale, 0 for scale 1 */
    bool sub_signed;  /* int8 sub scales, else uint8 */
    bool sub_nibbles; /* Q2_K: scale in the low and minimum in the high nibble */
    bool has_min;
    bool d_is_f32;
} fm__shape;

#define FM__SHAPE_Q8_0 ((fm__shape){.block = 32, .bits = 8, .offset_shift = -1})
#define FM__SHAPE_Q4_0 ((fm__shape){.block = 32, .bits = 4, .offset_shift = 3})
#define FM__SHAPE_Q4_1 ((fm__shape){.block = 32, .bits = 4, .offset_shift = -1, .has_min = true})
#define FM__SHAPE_Q5_0 ((fm__shape){.block = 32, .bits = 5, .offset_shift = 4})
#define FM__SHAPE_Q5_1 ((fm__shape){.block = 32, .bits = 5, .offset_shift = -1, .has_min = true})
#define FM__SHAPE_IQ4_NL ((fm__shape){.block = 32, .bits = 4, .lut = true, .offset_shift = -1})
#define FM__SHAPE_MXFP4                                                                            \
    ((fm__shape){.block = 32, .bits = 4, .lut = true, .offset_shift = -1, .d_is_f32 = true})
#define FM__SHAPE_Q2_K                                                                             \
    ((fm__shape){.block = 256,                                                                     \
                 .bits = 2,                                                                        \
                 .offset_shift = -1,                                                               \
                 .sub_width = 16,                                                                  \
                 .sub_nibbles = true,                                                              \
                 .has_min = true})
#define FM__SHAPE_Q3_K                                                                             \
    ((fm__shape){.block = 256, .bits = 3, .offset_shift = 2, .sub_width = 16, .sub_signed = true})
#define FM__SHAPE_Q4_K                                                                             \
    ((fm__shape){.block = 256, .bits = 4, .offset_shift = -1, .sub_width = 32, .has_min = true})
#define FM__SHAPE_Q5_K                                                                             \
    ((fm__shape){.block = 256, .bits = 5, .offset_shift = -1, .sub_width = 32, .has_min = true})
#define FM__SHAPE_Q6_K                                                                             \
    ((fm__shape){.block = 256, .bits = 6, .offset_shift = 5, .sub_width = 16, .sub_signed = true})
#define FM__SHAPE_IQ4_XS                                                                           \
    ((fm__shape){.block = 256,                                                                     \
                 .bits = 4,                                                                        \
                 .lut = true,                                                                      \
                 .offset_shift = -1,                                                               \
                 .sub_width = 32,                                                                  \
                 .sub_signed = true})
#define FM__SHAPE_TQ2_0 ((fm__shape){.block = 256, .bits = 2, .offset_shift = 0})

/* Sub scales of a block: bytes, and pairs of sub-blocks. */
FM__INLINE size_t fm__shape_sub_bytes(const fm__shape shape) {
    return !shape.sub_width ? 0 : shape.sub_width == 16 || shape.has_min ? 256 : 128;
}
FM__INLINE int fm__shape_pairs(const fm__shape shape) {
    return shape.sub_width == 16 ? 8 : 4;
}
