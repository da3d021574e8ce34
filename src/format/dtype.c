/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/dtype.c: how many bytes the elements of a tensor type take.
 *
 * Owns: the tables of GGUF's type numbers. Never does: decode a block. Called from: any thread.
 */
#include "format/format.h"

static const fm__dtype_info dtypes[] = {
    {FM__F32, "f32", 1, 4},         {FM__F16, "f16", 1, 2},           {FM__Q4_0, "q4_0", 32, 18},
    {FM__Q4_1, "q4_1", 32, 20},     {FM__Q5_0, "q5_0", 32, 22},       {FM__Q5_1, "q5_1", 32, 24},
    {FM__Q8_0, "q8_0", 32, 34},     {FM__Q2_K, "q2_k", 256, 84},      {FM__Q3_K, "q3_k", 256, 110},
    {FM__Q4_K, "q4_k", 256, 144},   {FM__Q5_K, "q5_k", 256, 176},     {FM__Q6_K, "q6_k", 256, 210},
    {FM__IQ4_NL, "iq4_nl", 32, 18}, {FM__IQ4_XS, "iq4_xs", 256, 136}, {FM__I8, "i8", 1, 1},
    {FM__I16, "i16", 1, 2},         {FM__I32, "i32", 1, 4},           {FM__I64, "i64", 1, 8},
    {FM__F64, "f64", 1, 8},         {FM__BF16, "bf16", 1, 2},         {FM__TQ1_0, "tq1_0", 256, 54},
    {FM__TQ2_0, "tq2_0", 256, 66},  {FM__MXFP4, "mxfp4", 32, 17},
};

/* Numbers that GGUF has or had a name for, but whose blocks no part of this library reads. */
static const struct {
    uint32_t number;
    const char *name;
} foreign[] = {
    {4, "q4_2"},        {5, "q4_3"},        {9, "q8_1"},      {15, "q8_k"},     {16, "iq2_xxs"},
    {17, "iq2_xs"},     {18, "iq3_xxs"},    {19, "iq1_s"},    {21, "iq3_s"},    {22, "iq2_s"},
    {29, "iq1_m"},      {31, "q4_0_4_4"},   {32, "q4_0_4_8"}, {33, "q4_0_8_8"}, {36, "iq4_nl_4_4"},
    {37, "iq4_nl_4_8"}, {38, "iq4_nl_8_8"}, {40, "nvfp4"},    {41, "q1_0"},     {42, "q2_0"},
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

const fm__dtype_info *fm__dtype_get(uint32_t dtype) {
    for (size_t i = 0; i < LENGTH(dtypes); i++)
        if ((uint32_t)dtypes[i].dtype == dtype)
            return &dtypes[i];
    return NULL;
}

const fm__dtype_info *fm__dtype_by_name(fm__str name) {
    for (size_t i = 0; i < LENGTH(dtypes); i++)
        if (fm__str_is(name, dtypes[i].name))
            return &dtypes[i];
    return NULL;
}

const char *fm__dtype_foreign_name(uint32_t dtype) {
    for (size_t i = 0; i < LENGTH(foreign); i++)
        if (foreign[i].number == dtype)
            return foreign[i].name;
    return NULL;
}

bool fm__dtype_bytes(const fm__dtype_info *info, uint64_t n, uint64_t *bytes) {
    if (n % info->block != 0)
        return false;
    return fm__mul_u64(n / info->block, info->block_bytes, bytes);
}
