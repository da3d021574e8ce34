/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/ref.h: the kernels of ref/, the specification in plain C.
 *
 * Every function follows docs/numerics.md literally. They are written for reading first, and fast
 * enough to run a model on a machine that no other rung knows. All are pure: they touch only what
 * their arguments name.
 */
#pragma once

#include "cpu/cpu.h"

/* X(id, NAME): the float types, which also have a fast class kernel. */
#define FM__FLOAT_TYPE_LIST(X)                                                                     \
    X(f32, F32)                                                                                    \
    X(f16, F16)                                                                                    \
    X(bf16, BF16)

#define FM__LINEAR_REF(id, NAME) fm__linear_fn fm__linear_##id##_ref;
FM__TYPE_LIST(FM__LINEAR_REF)
#undef FM__LINEAR_REF
#define FM__LINEAR_FAST_REF(id, NAME) fm__linear_fn fm__linear_##id##_fast_ref;
FM__FLOAT_TYPE_LIST(FM__LINEAR_FAST_REF)
#undef FM__LINEAR_FAST_REF

fm__quantise_fn fm__quantise_f32_ref, fm__quantise_r13_ref, fm__quantise_r16_ref,
    fm__quantise_bf16_ref, fm__quantise_q8_32_ref, fm__quantise_q8_256_ref;
fm__rmsnorm_fn fm__rmsnorm_ref;
fm__rope_fn fm__rope_ref;
fm__glu_fn fm__silu_glu_ref, fm__gelu_glu_ref;
fm__add_fn fm__add_ref;
fm__kv_store_fn fm__kv_store_ref;
fm__attention_fn fm__attention_ref;

/* f16 to f32 without a branch, exact, written so that a compiler can vectorise it. A subnormal's
   mantissa m is put under an implicit one (2^-14 * (1 + m/1024)), which is then subtracted. */
FM__INLINE float fm__ref_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, u = (uint32_t)(h & 0x7FFFu) << 13;
    uint32_t tiny = fm__f32_bits(fm__bits_f32(u + 0x38800000u) - 0x1p-14f);
    uint32_t normal = u + (u >= 0x0F800000u ? 0x70000000u : 0x38000000u); /* infinity, NaN: 255 */
    return fm__bits_f32(sign | (u < 0x00800000u ? tiny : normal));
}
