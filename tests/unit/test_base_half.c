/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_half.c: every f16 value, and rounding to the nearest even in both directions. */
#include "test.h"

#include <math.h>

#include "base/base.h"

/* The definition, in double: no bit tricks to share a mistake with. */
static double f16_value(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void test_f16_all(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = fm__f16_to_f32(h);
        if ((h & 0x7fff) > 0x7c00) {
            assert_true(isnan(f));
            assert_int_equal(!!signbit(f), h >> 15);
            assert_int_equal(fm__f32_to_f16(f), h | 0x200); /* quiet, payload kept */
            continue;
        }
        if ((h & 0x7fff) == 0x7c00)
            assert_true(isinf(f) && !!signbit(f) == h >> 15);
        else
            assert_true((double)f == f16_value(h) && !!signbit(f) == h >> 15);
        assert_int_equal(fm__f32_to_f16(f), h);
    }
}

/* Between each two neighbours: just below, at and just above the middle. */
static void test_f16_rounding(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = f16_value((uint16_t)h);
        double high = h == 0x7bff ? 65536.0 : f16_value((uint16_t)(h + 1));
        float middle = (float)((low + high) / 2); /* exact: one bit more */
        uint32_t even = h + (h & 1);
        assert_int_equal(fm__f32_to_f16(middle), even);
        assert_int_equal(fm__f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(fm__f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(fm__f32_to_f16(-middle), 0x8000 | even);
    }
    assert_int_equal(fm__f32_to_f16(0x1p-149f), 0);
    assert_int_equal(fm__f32_to_f16(3.4e38f), 0x7c00);
    assert_int_equal(fm__f32_to_f16(-INFINITY), 0xfc00);
}

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        float f = fm__bf16_to_f32((uint16_t)i);
        if (isnan(f)) {
            assert_true(isnan(fm__bf16_to_f32(fm__f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(fm__f32_to_bf16(f), i);
        if (isinf(f))
            continue;
        uint32_t even = i + (i & 1);
        assert_int_equal(fm__f32_to_bf16(fm__bits_f32(i << 16 | 0x8000)), even);
        assert_int_equal(fm__f32_to_bf16(fm__bits_f32(i << 16 | 0x7fff)), i);
        assert_int_equal(fm__f32_to_bf16(fm__bits_f32(i << 16 | 0x8001)), i + 1);
    }
    /* a NaN whose payload is only in the low half must not become infinity */
    assert_true(isnan(fm__bf16_to_f32(fm__f32_to_bf16(fm__bits_f32(0x7f800001)))));
    assert_true(isnan(fm__bf16_to_f32(fm__f32_to_bf16(fm__bits_f32(0xffffffff)))));
    assert_true(isinf(fm__bf16_to_f32(fm__f32_to_bf16(3.4e38f))));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_all),
        cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
