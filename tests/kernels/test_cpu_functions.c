/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cpu_functions.c: the scalar functions of cpu/numerics.h: their error against double, their
 * edges, and their bits, which must be the same on every machine and with every compiler.
 */
#include "cpu/ref/ref.h"
#include "kernels.h"

typedef float function(float x);

static double exact_rcp(double x) {
    return 1.0 / x;
}

static double exact_rsqrt(double x) {
    return 1.0 / sqrt(x);
}

static double exact_silu(double x) {
    return x / (1.0 + exp(-x));
}

static double exact_gelu(double x) {
    return x / (1.0 + exp(-2.0 * 0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static float rcp(float x) {
    return fm__rcp(x);
}

static float rsqrt(float x) {
    return fm__rsqrt(x);
}

static float exp_f32(float x) {
    return fm__exp_f32(x);
}

static float silu(float x) {
    return fm__silu(x);
}

static float gelu(float x) {
    return fm__gelu(x);
}

/* The largest error in units in the last place over floats from..to (of one sign), every step-th.
 */
static double worst(function *f, double (*exact)(double), float from, float to, uint32_t step) {
    double most = 0.0;
    for (uint32_t u = fm__f32_bits(from); u <= fm__f32_bits(to); u += step) {
        int exponent;
        float x = fm__bits_f32(u);
        double want = exact((double)x);
        frexp(want, &exponent);
        double error = fabs((double)f(x) - want) / ldexp(1.0, exponent - 24);
        if (!(error <= most))
            most = error;
    }
    return most;
}

static void test_accuracy(void **state) {
    (void)state;
    const struct {
        const char *name;
        function *f;
        double (*exact)(double);
        float from, to;
        uint32_t step;
        double limit;
    } cases[] = {
        {"rcp", rcp, exact_rcp, 1.0f, 2.0f, 1, 2.0},
        {"rcp", rcp, exact_rcp, 0x1p-126f, 0x1.8p125f, 997, 2.0},
        {"rsqrt", rsqrt, exact_rsqrt, 1.0f, 4.0f, 1, 2.2},
        {"rsqrt", rsqrt, exact_rsqrt, 0x1p-125f, 0x1p127f, 997, 2.2},
        {"exp", exp_f32, exp, 0x1p-30f, 87.0f, 97, 1.0},
        {"exp", exp_f32, exp, -0x1p-30f, -87.0f, 97, 1.0},
        {"silu", silu, exact_silu, 0x1p-30f, 80.0f, 97, 5.0},
        {"silu", silu, exact_silu, -0x1p-30f, -80.0f, 97, 5.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double error = worst(cases[i].f, cases[i].exact, cases[i].from, cases[i].to, cases[i].step);
        print_message("%-5s on [%g, %g]: at most %.3f units\n", cases[i].name,
                      (double)cases[i].from, (double)cases[i].to, error);
        if (!(error <= cases[i].limit))
            fail_msg("%s: %.3f units, the limit is %.1f", cases[i].name, error, cases[i].limit);
    }
    /* far down the left tail, gelu's argument carries an error that exp magnifies: absolute there
     */
    for (float x = -12.0f; x < 12.0f; x += 0x1p-9f)
        if (fabs((double)gelu(x) - exact_gelu((double)x)) > 1e-6 * fmax(1.0, fabs((double)x)))
            fail_msg("gelu(%a) = %a, want %a", (double)x, (double)gelu(x), exact_gelu((double)x));
}

static void test_edges(void **state) {
    (void)state;
    assert_true(fm__exp_f32(0.0f) == 1.0f && fm__exp_f32(-0.0f) == 1.0f);
    assert_true(fm__exp_softmax(0.0f) == 1.0f);
    assert_true(fm__exp_softmax(-24.0f) > 0.0f);
    assert_int_equal(fm__f32_bits(fm__exp_softmax(-24.000002f)), 0);
    assert_int_equal(fm__f32_bits(fm__exp_softmax(-INFINITY)), 0);
    assert_true(isnan(fm__exp_softmax(NAN)) && isnan(fm__exp_f32(-NAN)));
    assert_true(isnan(fm__exp_f32(fm__bits_f32(0x7F800001u)))); /* any payload */
    assert_true(isnan(fm__exp_f32(fm__bits_f32(0x7FFFFFFFu))));
    assert_true(isnan(fm__sigmoid(NAN)) && isnan(fm__silu(NAN)) && isnan(fm__gelu(NAN)));
    /* the largest and smallest results stay normal */
    assert_true(fm__exp_f32(-87.0f) >= 0x1p-126f && fm__exp_f32(87.0f) < INFINITY);
    assert_true(fm__sigmoid(-1e30f) >= 0x1p-126f && fm__sigmoid(-1e30f) < 2e-38f);
    assert_true(fm__silu(-0x1p99f) > -1e-7f && fm__silu(0x1p99f) >= 0x1.fffff8p98f);
    assert_true(fm__gelu(-0x1p99f) > -1e-7f && fm__gelu(0x1p99f) >= 0x1.fffff8p98f);
    assert_true(fm__silu(0.0f) == 0.0f && fm__gelu(0.0f) == 0.0f);
    assert_false(isfinite(fm__rcp(INFINITY)) || isfinite(fm__rcp(NAN)));
    assert_false(isfinite(fm__rsqrt(INFINITY)) || isfinite(fm__rsqrt(NAN)));
}

/* round_bits against rounding in double: x * 2^s is an integer of `bits` bits, rounded by
 * nearbyint. */
static void test_round_bits(void **state) {
    (void)state;
    const int drops[] = {8, 11, 16};
    for (size_t d = 0; d < 3; d++)
        for (uint64_t u = 0; u <= 0xFFFFFFFFu; u += 7919) {
            float x = fm__bits_f32((uint32_t)u), got = fm__round_bits(x, drops[d]);
            if (!isfinite(x)) {
                assert_true(test_same(x, got));
                continue;
            }
            int exponent;
            frexp((double)x, &exponent);
            double unit = ldexp(1.0, exponent - (24 - drops[d]));
            double want = nearbyint((double)x / unit) * unit; /* the default mode: ties to even */
            if (fabsf(x) < 0x1p-64f)
                assert_int_equal(fm__f32_bits(got), 0);
            else
                assert_true((double)got == want || fabs(want) >= 0x1p128);
        }
}

static void test_f16(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++)
        if (!test_same(fm__ref_f16((uint16_t)h), fm__f16_to_f32((uint16_t)h)))
            fail_msg("f16 %04x", h);
    for (uint64_t u = 0; u <= 0xFFFFFFFFu; u += 3571) {
        float x = fm__bits_f32((uint32_t)u);
        uint16_t got = fm__kv_f16(x), sign = (uint16_t)(u >> 16 & 0x8000u);
        if (isnan(x))
            assert_int_equal(got, 0x7E00);
        else if (fabsf(x) < 0x1p-14f)
            assert_int_equal(got, 0);
        else if (fabsf(x) >= 65504.0f)
            assert_int_equal(got, sign | 0x7BFF);
        else
            assert_int_equal(got, fm__f32_to_f16(x));
    }
    assert_int_equal(fm__kv_f16(65503.99f), 0x7BFF);
    assert_int_equal(fm__kv_f16(0x1.ffffp-15f), 0); /* rounds up to 2^-14, but is below it */
    assert_int_equal(fm__kv_f16(INFINITY), 0x7BFF);
    assert_int_equal(fm__kv_f16(-INFINITY), 0xFBFF);
}

/* A hash of f's bits over all exponents that it takes, with a stride in the mantissa. */
static uint64_t bits_hash(function *f, float from, float to, bool both_signs) {
    uint64_t hash = FM__HASH_SEED;
    for (uint32_t u = fm__f32_bits(from); u <= fm__f32_bits(to); u += 4099) {
        float pair[2] = {f(fm__bits_f32(u)), f(fm__bits_f32(u | (both_signs ? 0x80000000u : 0u)))};
        hash = fm__hash(hash, pair, sizeof pair);
    }
    return hash;
}

/* The contract across machines and compilers. A change here changes every model's output: change
   docs/numerics.md with it. */
static void test_pinned_bits(void **state) {
    (void)state;
    const struct {
        const char *name;
        function *f;
        float from, to;
        bool both_signs;
        uint64_t hash;
    } cases[] = {
        {"rcp", rcp, 0x1p-126f, 0x1.8p125f, false, UINT64_C(0x616e8ae2192a1d24)},
        {"rsqrt", rsqrt, 0x1p-125f, 0x1p127f, false, UINT64_C(0x4651976f0e17f934)},
        {"exp", exp_f32, 0x1p-40f, 87.0f, true, UINT64_C(0x908f7f089711ee71)},
        {"silu", silu, 0x1p-64f, 0x1p99f, true, UINT64_C(0xa0b4d6d5d7813e75)},
        {"gelu", gelu, 0x1p-64f, 0x1p99f, true, UINT64_C(0xa86d4d1fd6f36acd)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t hash = bits_hash(cases[i].f, cases[i].from, cases[i].to, cases[i].both_signs);
        if (hash != cases[i].hash)
            fail_msg("%s: the bits hash to %016llx, not %016llx", cases[i].name,
                     (unsigned long long)hash, (unsigned long long)cases[i].hash);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy),    cmocka_unit_test(test_edges),
        cmocka_unit_test(test_round_bits),  cmocka_unit_test(test_f16),
        cmocka_unit_test(test_pinned_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
