/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/x86/linear_bf16_fast_avx2.c: linear layers of BF16 with bf16 activations, fast class, AVX2.
 *
 * Owns: one kernel. Never does: allocate or start threads. Called from: the host device's team,
 * through the table. Activations are widened into scratch, then multiplied as floats.
 */
#include "cpu/x86/linear_float_avx2.h"
#include "cpu/x86/x86.h"

/* Widens `count` bf16 of each of `rows` rows. */
static void widen_rows(float *to, const uint8_t *from, size_t from_stride, uint32_t rows,
                       uint32_t count) {
    for (uint32_t t = 0; t < rows; t++) {
        const uint16_t *half = (const uint16_t *)(const void *)(from + (size_t)t * from_stride);
        float *o = to + (size_t)t * FM__FLOAT_ROW;
        uint32_t i = 0;
        for (; i + 8 <= count; i += 8) {
            const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(half + i));
            const __m256i y = _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16);
            _mm256_storeu_ps(o + i, _mm256_castsi256_ps(y));
        }
        for (; i < count; i++)
            o[i] = fm__bf16_to_f32(half[i]);
    }
}

void fm__linear_bf16_fast_avx2(const fm__linear_args *args) {
    const uint32_t end = fm__avx2_panel_end(args);
    for (uint32_t t0 = 0; t0 < args->tokens; t0 += FM__FLOAT_TOKENS) {
        const uint32_t t1 =
            args->tokens - t0 < FM__FLOAT_TOKENS ? args->tokens : t0 + FM__FLOAT_TOKENS;
        for (uint32_t k0 = 0; k0 < args->k; k0 += FM__SEGMENT) {
            const uint32_t count = args->k - k0 < FM__SEGMENT ? args->k - k0 : FM__SEGMENT;
            widen_rows(args->scratch,
                       args->act + args->act_layout.values + t0 * args->act_layout.stride +
                           k0 * sizeof(uint16_t),
                       args->act_layout.stride, t1 - t0, count);
            for (uint32_t panel = args->panel_begin; panel < end; panel++)
                fm__float_panel(FM__FLOAT_BF16, true, args, panel, t0, t1, k0);
        }
    }
}
