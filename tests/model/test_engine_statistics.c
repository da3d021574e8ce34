/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine_statistics.c: the order of interleaved runs, medians, and intervals of ratios. */
#include "fusionml/lab.h"
#include "test.h"

enum { MOST = 12 };

/* Over n rounds (2 n where n is odd): every subject equally often at every place, and behind every
   other one. */
static void order_is_balanced(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= MOST; n++) {
        uint32_t at[MOST][MOST] = {{0}}, behind[MOST][MOST] = {{0}};
        uint32_t times = n % 2 == 1 ? 2 : 1, rounds = times * n;
        for (uint32_t r = 0; r < rounds; r++) {
            uint32_t seen = 0;
            for (uint32_t p = 0; p < n; p++) {
                uint32_t subject = fm_lab_order(n, r, p);
                assert_true(subject < n);
                assert_false(seen >> subject & 1);
                seen |= 1u << subject;
                at[subject][p]++;
                if (p > 0)
                    behind[fm_lab_order(n, r, p - 1)][subject]++;
            }
        }
        for (uint32_t a = 0; a < n; a++)
            for (uint32_t b = 0; b < n; b++) {
                assert_int_equal(at[a][b], times);
                assert_int_equal(behind[a][b], a == b ? 0 : times);
            }
        for (uint32_t p = 0; p < n; p++)
            assert_int_equal(fm_lab_order(n, rounds, p), fm_lab_order(n, 0, p));
    }
}

static void medians(void **state) {
    (void)state;
    const double odd[] = {9, 1, 5}, even[] = {4, 1, 3, 2}, one[] = {7};
    assert_true(fm_lab_median(odd, 3) == 5);
    assert_true(odd[0] == 9); /* a copy was sorted */
    assert_true(fm_lab_median(even, 4) == 2.5);
    assert_true(fm_lab_median(one, 1) == 7);
    assert_true(fm_lab_median(NULL, 0) == 0);
}

/* A machine that slows down tenfold leaves the ratio of pairs where it was. */
static void ratios_are_of_pairs(void **state) {
    (void)state;
    double above[20], below[20];
    for (int i = 0; i < 20; i++) {
        below[i] = 100 * (1 + i);
        above[i] = below[i] * (i % 2 == 0 ? 1.19 : 1.21);
    }
    fm_lab_ratio r = fm_lab_paired_ratio(above, below, 20, 1);
    assert_true(r.median > 1.199 && r.median < 1.201);
    assert_true(r.low >= 1.189 && r.low <= r.median && r.high >= r.median && r.high <= 1.211);
    fm_lab_ratio again = fm_lab_paired_ratio(above, below, 20, 1);
    assert_true(r.low == again.low && r.high == again.high);
}

/* The interval widens with the scatter, and one outlier does not move the median. */
static void intervals_tell_scatter(void **state) {
    (void)state;
    double steady[15], wild[15], ones[15];
    for (int i = 0; i < 15; i++) {
        ones[i] = 1;
        steady[i] = 2 + 0.001 * i;
        wild[i] = 2 + 0.1 * (i % 5);
    }
    fm_lab_ratio narrow = fm_lab_paired_ratio(steady, ones, 15, 3);
    fm_lab_ratio wide = fm_lab_paired_ratio(wild, ones, 15, 3);
    assert_true(wide.high - wide.low > 5 * (narrow.high - narrow.low));
    steady[7] = 1000;
    assert_true(fm_lab_paired_ratio(steady, ones, 15, 3).median < 2.02);
    const double zero[1] = {0};
    assert_true(fm_lab_paired_ratio(steady, zero, 1, 3).median == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_balanced),
        cmocka_unit_test(medians),
        cmocka_unit_test(ratios_are_of_pairs),
        cmocka_unit_test(intervals_tell_scatter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
