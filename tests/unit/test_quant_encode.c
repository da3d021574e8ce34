/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding: error bounds per type, and inputs at the edges. */
#include <math.h>

#include "quant_blocks.h"

enum { N = 4096 };

/* Bound of the root mean square error on normal data of deviation 1: a few percent above what the
 * type gives when its scales are searched well. */
static const struct {
    fm__dtype dtype;
    double rmse;
} bounds[] = {
    {FM__Q8_0, 0.0055},  {FM__Q4_0, 0.0885},  {FM__Q4_1, 0.0805}, {FM__Q5_0, 0.0440},
    {FM__Q5_1, 0.0390},  {FM__MXFP4, 0.1190}, {FM__Q2_K, 0.2980}, {FM__Q3_K, 0.1500},
    {FM__Q4_K, 0.0725},  {FM__Q5_K, 0.0362},  {FM__Q6_K, 0.0179}, {FM__TQ1_0, 0.8300},
    {FM__TQ2_0, 0.8300},
};

static const fm__type *encodable(size_t i) {
    const fm__type *type = fm__type_at(i);
    return type->quantised && type->encode != NULL ? type : NULL;
}

/* Encodes into memory that ends at a guard page, and decodes. */
static void round_trip(const fm__type *type, const float *in, const float *importance, float *out,
                       size_t n) {
    guarded blocks = guarded_alloc(n / type->block * type->block_bytes);
    type->encode(in, importance, blocks.data, n);
    type->decode(blocks.data, out, n);
    guarded_free(&blocks);
}

static double weighted_rmse(const float *a, const float *b, const float *w, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)a[i] - (double)b[i];
        sum += e * e * (w == NULL ? 1.0 : (double)w[i]);
    }
    return sqrt(sum / (double)n);
}

static void normals(fm__random *random, float *x, size_t n, float deviation) {
    for (size_t i = 0; i < n; i++)
        x[i] = fm__random_normal(random) * deviation;
}

static void error_is_within_bounds(void **state) {
    (void)state;
    static float x[16 * N], out[16 * N];
    fm__random random;
    fm__random_seed(&random, 3);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        const fm__type *type = fm__type_get(bounds[i].dtype);
        /* the same at every magnitude that f16 scales reach without subnormals */
        for (float deviation = 0x1p-1f; deviation <= 0x1p12f; deviation *= 0x1p13f) {
            normals(&random, x, 16 * N, deviation);
            round_trip(type, x, NULL, out, 16 * N);
            double rmse = weighted_rmse(x, out, NULL, 16 * N) / deviation;
            if (rmse > bounds[i].rmse)
                print_error("%s: %g > %g\n", type->name, rmse, bounds[i].rmse);
            assert_true(rmse <= bounds[i].rmse);
            assert_true(rmse > 0.0);
        }
    }
}

static void importance_moves_the_error(void **state) {
    (void)state;
    static float x[4 * N], w[4 * N], plain[4 * N], weighted[4 * N];
    fm__random random;
    fm__random_seed(&random, 4);
    normals(&random, x, 4 * N, 0.05f);
    for (size_t i = 0; i < 4 * N; i++)
        w[i] = i % 4 == 0 ? 1000.0f : 0.1f;
    static const fm__dtype dtypes[] = {FM__Q4_0, FM__Q4_1, FM__Q5_0, FM__Q5_1, FM__Q2_K,
                                       FM__Q3_K, FM__Q4_K, FM__Q5_K, FM__Q6_K};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const fm__type *type = fm__type_get(dtypes[i]);
        round_trip(type, x, NULL, plain, 4 * N);
        round_trip(type, x, w, weighted, 4 * N);
        assert_true(weighted_rmse(x, weighted, w, 4 * N) <
                    0.95 * weighted_rmse(x, plain, w, 4 * N));
    }
}

static void importance_of_zero_is_valid(void **state) {
    (void)state;
    static float x[N], w[N], out[N];
    fm__random random;
    fm__random_seed(&random, 5);
    normals(&random, x, N, 1.0f);
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = encodable(i);
        if (type == NULL)
            continue;
        round_trip(type, x, w, out, N); /* nothing matters: any codes, but no worse than range */
        for (size_t j = 0; j < N; j++)
            assert_true(fabsf(out[j] - x[j]) < 4.0f);
    }
}

static void zeros_stay_zeros(void **state) {
    (void)state;
    static float x[512], out[512];
    for (size_t i = 1; i < 512; i += 3)
        x[i] = -0.0f;
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = encodable(i);
        if (type == NULL)
            continue;
        round_trip(type, x, NULL, out, 512);
        for (size_t j = 0; j < 512; j++)
            assert_true(out[j] == 0.0f);
    }
}

/* All elements equal: every type but the ternary and FP4 ones has a level close by. */
static void constant_rows(void **state) {
    (void)state;
    static float x[512], out[512];
    static const float values[] = {1.0f, -1.0f, 0.37f, -2.5e-3f, 1234.5f, -6.0e4f};
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++)
        for (size_t i = 0; i < fm__type_count(); i++) {
            const fm__type *type = encodable(i);
            if (type == NULL)
                continue;
            for (size_t j = 0; j < 512; j++)
                x[j] = values[v];
            round_trip(type, x, NULL, out, 512);
            float bound = type->dtype == FM__MXFP4 ? 0.25f : 0.01f;
            for (size_t j = 0; j < 512; j++)
                assert_true(fabsf(out[j] - x[j]) <= bound * fabsf(x[j]));
        }
}

/* An outlier far beyond f16 must not make its block infinite, nor touch other blocks. */
static void huge_elements_stay_finite(void **state) {
    (void)state;
    static float x[768], clean[768], out[768];
    fm__random random;
    fm__random_seed(&random, 6);
    static const float huge[] = {1.0e5f, -1.0e9f, 3.0e38f, -3.4e38f};
    for (size_t h = 0; h < sizeof huge / sizeof huge[0]; h++)
        for (size_t i = 0; i < fm__type_count(); i++) {
            const fm__type *type = encodable(i);
            if (type == NULL)
                continue;
            normals(&random, x, 768, 1.0f);
            round_trip(type, x, NULL, clean, 768);
            x[300] = huge[h];
            round_trip(type, x, NULL, out, 768);
            for (size_t j = 0; j < 768; j++) {
                assert_true(out[j] - out[j] == 0.0f);
                if (j < 256 || j >= 512)
                    assert_int_equal(fm__f32_bits(out[j]), fm__f32_bits(clean[j]));
            }
            assert_true(out[300] * (huge[h] < 0 ? -1.0f : 1.0f) > 5.0e4f);
        }
}

/* Values near and below what an f16 scale can hold: the error is a fraction of the smallest scale
 * times the levels, never a wrong sign of a large value or a NaN. */
static void tiny_values(void **state) {
    (void)state;
    static float x[N], out[N];
    fm__random random;
    fm__random_seed(&random, 8);
    static const float deviations[] = {0x1p-8f, 0x1p-14f, 0x1p-20f, 0x1p-26f, 0x1p-60f, 0x1p-140f};
    for (size_t d = 0; d < sizeof deviations / sizeof deviations[0]; d++)
        for (size_t i = 0; i < fm__type_count(); i++) {
            const fm__type *type = encodable(i);
            if (type == NULL)
                continue;
            normals(&random, x, N, deviations[d]);
            round_trip(type, x, NULL, out, N);
            double rmse = weighted_rmse(x, out, NULL, N);
            double bound =
                type->block_bytes * 8 < 3 * type->block ? 0.9 : 0.2; /* ternary, 2 bits */
            if (rmse > bound * (double)deviations[d] + 0x1p-25)
                print_error("%s at %a: %g\n", type->name, (double)deviations[d], rmse);
            assert_true(rmse <= bound * (double)deviations[d] + 0x1p-25);
        }
}

static void non_finite_elements_count_as_zero(void **state) {
    (void)state;
    static float bad[512], good[512], out_bad[512], out_good[512];
    fm__random random;
    fm__random_seed(&random, 9);
    normals(&random, bad, 512, 1.0f);
    memcpy(good, bad, sizeof bad);
    bad[3] = INFINITY;
    bad[100] = NAN;
    bad[300] = -INFINITY;
    good[3] = good[100] = good[300] = 0.0f;
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = encodable(i);
        if (type == NULL)
            continue;
        round_trip(type, bad, NULL, out_bad, 512);
        round_trip(type, good, NULL, out_good, 512);
        assert_memory_equal(out_bad, out_good, sizeof out_bad);
    }
}

/* What a type can hold exactly comes back exactly. */
static void exact_values(void **state) {
    (void)state;
    static float x[256], out[256];
    for (size_t j = 0; j < 256; j++) /* extreme element at the negative end of Q4_0 */
        x[j] = 0.125f * ((float)(j % 16) - 8.0f);
    static const fm__dtype dtypes[] = {FM__Q4_0, FM__Q4_1};
    for (size_t i = 0; i < 2; i++) {
        round_trip(fm__type_get(dtypes[i]), x, NULL, out, 256);
        assert_memory_equal(out, x, sizeof x);
    }
    for (size_t j = 0; j < 256; j++)
        x[j] = 0.25f * ((float)(j % 3) - 1.0f);
    round_trip(fm__type_get(FM__TQ1_0), x, NULL, out, 256);
    assert_memory_equal(out, x, sizeof x);
    round_trip(fm__type_get(FM__TQ2_0), x, NULL, out, 256);
    assert_memory_equal(out, x, sizeof x);

    static const float fp4[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int e = -126; e <= 124; e += 25) { /* any power of two */
        float unit = fm__bits_f32((uint32_t)(e + 127) << 23);
        for (size_t j = 0; j < 256; j++)
            x[j] = fp4[j % 8] * unit * (j / 8 % 2 && j % 8 ? -1.0f : 1.0f);
        round_trip(fm__type_get(FM__MXFP4), x, NULL, out, 256);
        assert_memory_equal(out, x, sizeof x);
    }
}

/* Ties of FP4 go to the even code; what exceeds the largest value goes to it. */
static void mxfp4_rounding(void **state) {
    (void)state;
    float x[32] = {4.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 7.9f, -0.25f, -0.75f, -7.9f};
    float expected[32] = {4.0f, 0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f, 6.0f, 0.0f, -1.0f, -6.0f};
    float out[32];
    round_trip(fm__type_get(FM__MXFP4), x, NULL, out, 32);
    assert_memory_equal(out, expected, sizeof out);
}

static void float_types_convert_as_ieee(void **state) {
    (void)state;
    float x[6] = {1.0f, 0x1.001p0f, 0x1.003p0f, 65520.0f, -0x1p-25f, 0x1.8p-25f}, out[6];
    float f16[6] = {1.0f, 1.0f, 0x1.004p0f, INFINITY, -0.0f, 0x1p-24f};
    round_trip(fm__type_get(FM__F16), x, NULL, out, 6);
    /* 1 + 2^-12 and 1 + 3 * 2^-12 lie between neighbours 2^-10 apart */
    assert_memory_equal(out, f16, sizeof out);
    float y[3] = {1.00390625f, 1.01171875f, 3.0f}, bf16[3] = {1.0f, 1.015625f, 3.0f};
    round_trip(fm__type_get(FM__BF16), y, NULL, out, 3);
    assert_memory_equal(out, bf16, sizeof bf16);
    round_trip(fm__type_get(FM__F32), x, NULL, out, 6);
    assert_memory_equal(out, x, sizeof out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_within_bounds),
        cmocka_unit_test(importance_moves_the_error),
        cmocka_unit_test(importance_of_zero_is_valid),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(constant_rows),
        cmocka_unit_test(huge_elements_stay_finite),
        cmocka_unit_test(tiny_values),
        cmocka_unit_test(non_finite_elements_count_as_zero),
        cmocka_unit_test(exact_values),
        cmocka_unit_test(mxfp4_rounding),
        cmocka_unit_test(float_types_convert_as_ieee),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
