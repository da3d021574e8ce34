/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/kernels/test_cpu_probe.c: the roofs: positive where the processor has the instructions, 0
 * where not, at odd thread and stream counts too. How high they are is a matter of the machine.
 */
#include "test.h"

#include "base/base.h"
#include "cpu/probe.h"

static void reading_takes_odd_counts(void **state) {
    (void)state;
    enum { BYTES = 4 << 20 };
    assert_true(fm__probe_read(1, NULL, BYTES, 1) > 0);
    assert_true(fm__probe_read(0, NULL, BYTES, 0) > 0);       /* one thread, one stream */
    assert_true(fm__probe_read(3, NULL, BYTES, 5) > 0);       /* more threads than cores, perhaps */
    assert_true(fm__probe_read(2, NULL, 1, 1000000) > 0);     /* as many streams as there are */
    assert_true(fm__probe_read(100000, NULL, BYTES, 1) == 0); /* too many threads */
    assert_true(fm__probe_read_best(2, NULL, BYTES) > 0);
}

static void arithmetic_follows_features(void **state) {
    (void)state;
    uint32_t has = fm__cpu_features();
    bool bf16 = (has & FM__CPU_AVX512) && (has & FM__CPU_AVX512_BF16);
    assert_int_equal(fm__probe_fma(1, NULL) > 0, (has & FM__CPU_AVX2) != 0);
    assert_int_equal(fm__probe_vnni(1, NULL) > 0, (has & FM__CPU_AVX2) != 0);
    assert_int_equal(fm__probe_bf16(2, NULL) > 0, bf16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_takes_odd_counts),
        cmocka_unit_test(arithmetic_follows_features),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
