/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/types.c: the table of weight types.
 *
 * Owns: one row a type. Never does: arithmetic. Called from: any thread (read-only).
 */
#include "quant/block.h"

/* IQ4_NL's and IQ4_XS's levels, as the format fixes them. */
const int8_t fm__lut_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

/* FP4 (E2M1) times two, sign in bit 3; the negative zero is a plain zero. */
const int8_t fm__lut_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The three operations, by the type's id. */
#define OPERATIONS(id) .decode = fm__decode_##id, .encode = fm__encode_##id, .pack = fm__pack_##id
#define READ_ONLY(id) .decode = fm__decode_##id, .pack = fm__pack_##id

/* What all types of one block length have in common. */
#define BLOCK_1 .block = 1
#define BLOCK_32 .block = 32, .quantised = true, .act = {FM__ACT_Q8_32, FM__ACT_Q8_32}
#define BLOCK_256 .block = 256, .quantised = true, .act = {FM__ACT_Q8_256, FM__ACT_Q8_256}

static const fm__type types[FM__TYPE_COUNT] = {
    /* float */
    [FM__TYPE_F32] = {FM__F32, "f32", BLOCK_1, .block_bytes = 4, .code_bits = 32,
                      .act = {FM__ACT_F32, FM__ACT_F32}, OPERATIONS(f32)},
    [FM__TYPE_F16] = {FM__F16, "f16", BLOCK_1, .block_bytes = 2, .code_bits = 16,
                      .act = {FM__ACT_R13, FM__ACT_F32}, OPERATIONS(f16)},
    [FM__TYPE_BF16] = {FM__BF16, "bf16", BLOCK_1, .block_bytes = 2, .code_bits = 16,
                       .act = {FM__ACT_R16, FM__ACT_BF16}, OPERATIONS(bf16)},

    /* 32-blocks */
    [FM__TYPE_Q8_0] = {FM__Q8_0, "q8_0", BLOCK_32, .block_bytes = FM__Q8_0_BYTES, .code_bits = 8,
                       OPERATIONS(q8_0)},
    [FM__TYPE_Q4_0] = {FM__Q4_0, "q4_0", BLOCK_32, .block_bytes = FM__Q4_0_BYTES, .code_bits = 4,
                       .offset = 8, OPERATIONS(q4_0)},
    [FM__TYPE_Q4_1] = {FM__Q4_1, "q4_1", BLOCK_32, .block_bytes = FM__Q4_1_BYTES, .code_bits = 4,
                       .has_min = true, OPERATIONS(q4_1)},
    [FM__TYPE_Q5_0] = {FM__Q5_0, "q5_0", BLOCK_32, .block_bytes = FM__Q5_0_BYTES, .code_bits = 5,
                       .offset = 16, OPERATIONS(q5_0)},
    [FM__TYPE_Q5_1] = {FM__Q5_1, "q5_1", BLOCK_32, .block_bytes = FM__Q5_1_BYTES, .code_bits = 5,
                       .has_min = true, OPERATIONS(q5_1)},
    [FM__TYPE_IQ4_NL] = {FM__IQ4_NL, "iq4_nl", BLOCK_32, .block_bytes = FM__IQ4_NL_BYTES,
                         .code_bits = 4, .lut = fm__lut_iq4, READ_ONLY(iq4_nl)},
    [FM__TYPE_MXFP4] = {FM__MXFP4, "mxfp4", BLOCK_32, .block_bytes = FM__MXFP4_BYTES,
                        .code_bits = 4, .lut = fm__lut_mxfp4, .d_is_f32 = true, OPERATIONS(mxfp4)},

    /* 256-blocks with sub scales */
    [FM__TYPE_Q2_K] = {FM__Q2_K, "q2_k", BLOCK_256, .block_bytes = FM__Q2_K_BYTES, .code_bits = 2,
                       .sub_width = 16, .has_min = true, OPERATIONS(q2_k)},
    [FM__TYPE_Q3_K] = {FM__Q3_K, "q3_k", BLOCK_256, .block_bytes = FM__Q3_K_BYTES, .code_bits = 3,
                       .offset = 4, .sub_width = 16, OPERATIONS(q3_k)},
    [FM__TYPE_Q4_K] = {FM__Q4_K, "q4_k", BLOCK_256, .block_bytes = FM__Q4_K_BYTES, .code_bits = 4,
                       .sub_width = 32, .has_min = true, OPERATIONS(q4_k)},
    [FM__TYPE_Q5_K] = {FM__Q5_K, "q5_k", BLOCK_256, .block_bytes = FM__Q5_K_BYTES, .code_bits = 5,
                       .sub_width = 32, .has_min = true, OPERATIONS(q5_k)},
    [FM__TYPE_Q6_K] = {FM__Q6_K, "q6_k", BLOCK_256, .block_bytes = FM__Q6_K_BYTES, .code_bits = 6,
                       .offset = 32, .sub_width = 16, OPERATIONS(q6_k)},
    [FM__TYPE_IQ4_XS] = {FM__IQ4_XS, "iq4_xs", BLOCK_256, .block_bytes = FM__IQ4_XS_BYTES,
                         .code_bits = 4, .lut = fm__lut_iq4, .sub_width = 32, READ_ONLY(iq4_xs)},

    /* ternary */
    [FM__TYPE_TQ1_0] = {FM__TQ1_0, "tq1_0", BLOCK_256, .block_bytes = FM__TQ1_0_BYTES,
                        .code_bits = 2, .offset = 1, OPERATIONS(tq1_0)},
    [FM__TYPE_TQ2_0] = {FM__TQ2_0, "tq2_0", BLOCK_256, .block_bytes = FM__TQ2_0_BYTES,
                        .code_bits = 2, .offset = 1, OPERATIONS(tq2_0)},
};

const fm__type *fm__type_get(fm__dtype dtype) {
    for (size_t i = 0; i < FM__TYPE_COUNT; i++)
        if (types[i].dtype == dtype)
            return &types[i];
    return NULL;
}

size_t fm__type_count(void) {
    return FM__TYPE_COUNT;
}

const fm__type *fm__type_at(size_t index) {
    return index < FM__TYPE_COUNT ? &types[index] : NULL;
}

size_t fm__type_index(const fm__type *type) {
    return (size_t)(type - types);
}
