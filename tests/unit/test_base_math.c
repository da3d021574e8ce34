/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_math.c: our own double functions against libm in long double.
 *
 * Errors of exp, ln and pow are in units of 2^-52 of the result; those of sin and cos are absolute.
 */
#include "test.h"

#include <float.h>
#include <math.h>

#include "base/base.h"

/* Where long double is made in software (aarch64), fewer samples are enough. */
static int samples(int n) {
    return LDBL_MANT_DIG > 64 ? n / 50 : n;
}

static double relative_error(double got, long double want) {
    return (double)(fabsl((long double)got - want) / fabsl(want)) * 0x1p52;
}

static void test_sin_cos(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 1);
    double worst = 0;
    for (int i = 0; i < samples(2000000); i++) {
        /* every magnitude from 2^-20 to 2^30, and the positions that RoPE meets */
        double x = (fm__random_double(&random) - 0.5) * ldexp(1, i % 51 - 19);
        if (i % 7 == 0)
            x = (double)(fm__random_next(&random) % 1000001);
        double s = fabs((double)((long double)fm__sin(x) - sinl((long double)x)));
        double c = fabs((double)((long double)fm__cos(x) - cosl((long double)x)));
        worst = fmax(worst, fmax(s, c));
    }
    printf("sin, cos: largest error 2^%.2f\n", log2(worst));
    assert_true(worst < 0x1p-50);
}

/* Where the reduction cancels: the doubles nearest to multiples of pi/2. There the error must be
   small against the result too. */
static void test_near_multiples(void **state) {
    (void)state;
    double worst = 0;
    for (uint64_t k = 1; k < 600000000;
         k = k < (uint64_t)samples(100000) ? k + 1 : k + (uint64_t)(791900000 / samples(100000))) {
        double x = (double)((long double)k * 1.57079632679489661923132169163975144L);
        double want = k % 2 ? (double)cosl((long double)x) : (double)sinl((long double)x);
        double got = k % 2 ? fm__cos(x) : fm__sin(x);
        worst = fmax(worst, fabs(got - want));
    }
    printf("near multiples of pi/2: largest error 2^%.2f\n", log2(worst));
    assert_true(worst < 0x1p-70);
}

static void test_exact_values(void **state) {
    (void)state;
    assert_true(fm__sin(0.0) == 0.0 && !signbit(fm__sin(0.0)) && signbit(fm__sin(-0.0)));
    assert_true(fm__cos(0.0) == 1.0);
    assert_true(fm__exp(0.0) == 1.0 && fm__ln(1.0) == 0.0);
    assert_true(fm__pow(10000.0, 0.0) == 1.0 && fm__pow(1.0, 1e300) == 1.0);
    assert_true(fm__pow(2.0, 10.0) == 1024.0 && fm__pow(2.0, -3.0) == 0.125);
    assert_true(fm__pow(10.0, 2.0) == 100.0 && fm__pow(4.0, 0.5) == 2.0);
    assert_true(isinf(fm__exp(710.0)) && fm__exp(-746.0) == 0.0);
    assert_true(isinf(fm__pow(10.0, 400.0)) && fm__pow(10.0, -400.0) == 0.0);
    assert_true(isnan(fm__exp(NAN)));
    for (int k = -1074; k <= 1023; k++) {
        assert_true(fm__exp(fm__ln(ldexp(1, k))) > 0);
        assert_true(relative_error(fm__pow(2.0, k), ldexpl(1, k)) < 1);
    }
}

static void test_exp(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 2);
    double worst = 0;
    for (int i = 0; i < samples(1000000); i++) {
        double range = i % 3 == 0 ? 1400 : i % 3 == 1 ? 40 : 0.7;
        double x = (fm__random_double(&random) - 0.5) * range;
        worst = fmax(worst, relative_error(fm__exp(x), expl((long double)x)));
    }
    printf("exp: largest error %.3f * 2^-52\n", worst);
    assert_true(worst < 1.1);
    /* subnormal results keep an absolute error of about one unit */
    for (double x = -708; x > -745; x -= 0.37)
        assert_true(fabsl((long double)fm__exp(x) - expl((long double)x)) <= 0x1.8p-1074L);
}

static void test_ln(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 3);
    double worst = 0;
    for (int i = 0; i < samples(1000000); i++) {
        double x = ldexp(1 + fm__random_double(&random), i % 3 == 0 ? i % 2097 - 1074 : i % 5 - 2);
        if (i % 5 == 0)
            x = 1 + ldexp(fm__random_double(&random) - 0.5, -(i % 40));
        if (x != 1)
            worst = fmax(worst, relative_error(fm__ln(x), logl((long double)x)));
    }
    printf("ln: largest error %.3f * 2^-52\n", worst);
    assert_true(worst < 1.1);
    assert_true(fm__ln(0x1p-1074) < -744.4 && fm__ln(0x1p-1074) > -744.5);
}

static void test_pow(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 4);
    double worst = 0;
    for (int i = 0; i < samples(1000000); i++) {
        double x = i % 4 == 0   ? 10000
                   : i % 4 == 1 ? 1000000
                   : i % 4 == 2 ? 1 + 100 * fm__random_double(&random)
                                : fm__random_double(&random) + 0x1p-60;
        double y = (fm__random_double(&random) - 0.5) * (i % 2 ? 2 : 30);
        worst = fmax(worst, relative_error(fm__pow(x, y), powl((long double)x, (long double)y)));
    }
    printf("pow: largest error %.3f * 2^-52\n", worst);
    assert_true(worst < 1.1);
}

/* The bits are part of the identity contract: this hash must be the same on every machine. */
static void test_same_bits_everywhere(void **state) {
    (void)state;
    uint64_t hash = FM__HASH_SEED;
    for (int i = 0; i < 10000; i++) {
        double position = i * 97, frequency = fm__pow(10000.0, -(double)(i % 64) / 64);
        double values[5] = {fm__sin(position * frequency), fm__cos(position * frequency), frequency,
                            fm__exp(frequency - 3), fm__ln(position + 0.25)};
        hash = fm__hash(hash, values, sizeof values);
    }
    printf("hash of the tables: %016llx\n", (unsigned long long)hash);
    assert_true(hash == UINT64_C(0xb3457618b734f206));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sin_cos),
        cmocka_unit_test(test_near_multiples),
        cmocka_unit_test(test_exact_values),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_ln),
        cmocka_unit_test(test_pow),
        cmocka_unit_test(test_same_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
