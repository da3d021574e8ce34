/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE tables against double libm, and Llama 3's factors against values computed elsewhere. */
#include "test.h"

#include <math.h>

#include "model/model.h"

static void tables(void **state) {
    (void)state;
    enum { ROTARY = 64, POSITIONS = 3000, HALF = ROTARY / 2 };
    float *cos_table = malloc(sizeof(float) * POSITIONS * HALF);
    float *sin_table = malloc(sizeof(float) * POSITIONS * HALF);
    float factors[HALF];
    for (int i = 0; i < HALF; i++)
        factors[i] = 1.0f + (float)i / 4;
    for (int variant = 0; variant < 3; variant++) {
        double base = variant ? 1e6 : 1e4, linear = variant == 2 ? 4 : 1;
        const float *f = variant == 1 ? factors : NULL;
        fm__rope_table(base, linear, f, ROTARY, POSITIONS, false, cos_table);
        fm__rope_table(base, linear, f, ROTARY, POSITIONS, true, sin_table);
        for (int p = 0; p < POSITIONS; p++) {
            for (int i = 0; i < HALF; i++) {
                double angle = p * (pow(base, -2.0 * i / ROTARY) / linear / (f ? f[i] : 1.0));
                assert_true(fabs(cos_table[p * HALF + i] - cos(angle)) < 1e-7);
                assert_true(fabs(sin_table[p * HALF + i] - sin(angle)) < 1e-7);
            }
        }
        assert_true(cos_table[0] == 1.0f && sin_table[0] == 0.0f);
    }
    free(cos_table);
    free(sin_table);
}

/* base 500000, factor 8, low 1, high 4, context 64, 64 dims: three bands. */
static void llama3_bands(void **state) {
    (void)state;
    float factors[32];
    fm__rope_llama3_factors(500000, 8, 1, 4, 64, 64, factors);
    assert_true(factors[0] == 1.0f); /* wavelength 6.3 < 16 */
    assert_true(factors[31] == 8.0f);
    /* i = 4: wavelength 2 pi 500000^(1/8) = 32.399; smooth = (64 / 32.399 - 1) / 3 = 0.32512 */
    double smooth = (64 / (2 * acos(-1) * pow(500000, 0.125)) - 1) / 3;
    assert_true(fabs(factors[4] - 1 / ((1 - smooth) / 8 + smooth)) < 1e-5);
    assert_true(fabs(smooth - 0.32512) < 1e-4);
    for (int i = 1; i < 32; i++)
        assert_true(factors[i] >= factors[i - 1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables),
        cmocka_unit_test(llama3_bands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
