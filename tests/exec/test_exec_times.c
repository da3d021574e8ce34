/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a unit was busy: computing and copies that go on beside it are counted once, what lies
 * outside the run not at all, and pieces of divided ops share the union.
 */
#include "exec/layout.h"
#include "exec_support.h"

enum { EITHER = FM__OF_COMPUTE | FM__OF_COPIES, ALL = EITHER | FM__OF_UNDIVIDED };

/* ---- intervals ---- */

static void sorts_and_unites(void **state) {
    (void)state;
    fm__interval list[] = {
        {50, 60, .copy = true, .divided = true}, /* alone */
        {10, 30, .divided = true},
        {0, 20, .copy = true, .divided = true},
        {12, 14, .copy = true},         /* within both */
        {.begin_ns = 30, .end_ns = 35}, /* right behind */
        {58, 70, .divided = true},
    };
    enum { N = sizeof list / sizeof *list };
    fm__span spans[N];
    uint32_t n = 0;
    fm__intervals_sort(list, N);
    for (uint32_t i = 1; i < N; i++)
        assert_true(list[i - 1].begin_ns <= list[i].begin_ns);
    assert_int_equal(fm__intervals_union(list, N, ALL, spans, &n), 35 + 20);
    assert_int_equal(n, 2);
    assert_int_equal(spans[0].begin_ns, 0);
    assert_int_equal(spans[0].end_ns, 35);
    assert_int_equal(spans[1].begin_ns, 50);
    assert_int_equal(spans[1].end_ns, 70);
    assert_int_equal(fm__intervals_union(list, N, EITHER, NULL, NULL), 30 + 20);
    assert_int_equal(fm__intervals_union(list, N, FM__OF_COMPUTE | FM__OF_UNDIVIDED, spans, &n),
                     25 + 12);
    assert_int_equal(n, 2);
    assert_int_equal(fm__intervals_union(list, N, FM__OF_COPIES | FM__OF_UNDIVIDED, NULL, NULL),
                     20 + 10);
    assert_int_equal(fm__intervals_union(list, 0, ALL, spans, &n), 0);
    assert_int_equal(n, 0);
}

/* Against a count of every nanosecond. */
static void unions_are_those_of_sets(void **state) {
    (void)state;
    enum { N = 40, WIDTH = 200 };
    fm__random random;
    fm__random_seed(&random, 7);
    for (int round = 0; round < 200; round++) {
        fm__interval list[N];
        bool covered[WIDTH] = {false};
        uint64_t wanted = 0, sum = 0;
        uint32_t n = (uint32_t)(fm__random_next(&random) % N) + 1, n_span;
        unsigned of = (unsigned)(fm__random_next(&random) % 8);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t bits = fm__random_next(&random);
            uint64_t begin = bits % (WIDTH - 20);
            list[i] = (fm__interval){.begin_ns = begin,
                                     .end_ns = begin + 1 + (bits >> 16) % 19,
                                     .copy = bits >> 32 & 1,
                                     .divided = bits >> 33 & 1};
            bool counts = (of & (list[i].copy ? FM__OF_COPIES : FM__OF_COMPUTE)) != 0 &&
                          (list[i].divided || (of & FM__OF_UNDIVIDED) != 0);
            for (uint64_t t = list[i].begin_ns; counts && t < list[i].end_ns; t++)
                covered[t] = true;
        }
        for (int t = 0; t < WIDTH; t++)
            wanted += covered[t];
        fm__span spans[N];
        fm__intervals_sort(list, n);
        assert_int_equal(fm__intervals_union(list, n, of, spans, &n_span), wanted);
        for (uint32_t i = 0; i < n_span; i++) {
            sum += spans[i].end_ns - spans[i].begin_ns;
            assert_true(i == 0 || spans[i - 1].end_ns < spans[i].begin_ns);
        }
        assert_int_equal(sum, wanted);
    }
}

/* ---- a unit that copies while it computes ---- */

static uint64_t clock_ns = 0; /* of the fake below: how many recordings were asked */
static bool replaced = false;
static fm__span replacement; /* of the copy */

/* Each recording computes for 10 ns, one behind the other, and its copy takes 8 of the 10 before,
   or what the test says. */
static uint32_t fake_work(fm__recording *recording, fm__work *work, uint32_t room) {
    (void)recording;
    if (work == NULL)
        return 2;
    assert_true(room >= 2);
    uint64_t at = fm__now_ns() / 2 + 10 * clock_ns++; /* long before the run */
    work[0] = (fm__work){.span = {at, at + 10}};
    work[1] = (fm__work){.span = {at - 10, at - 2}, .copy = true, .observed = true};
    if (replaced)
        work[1].span = replacement;
    return 2;
}

static void copies_count_within_the_run(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
    session s = {.n_unit = 2};
    for (uint32_t u = 0; u < 2; u++)
        CHECK(
            fm__device_null_create(&s.units[u], &(fm__null_options){.memory_bytes = 1 << 24}, why));
    fm__device_vtable vtable = *s.units[0]->vtable;
    const fm__device_vtable *real = s.units[0]->vtable;
    vtable.recording_work = fake_work;
    s.units[0]->vtable = &vtable;
    session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}});
    uint64_t before = fm__now_ns();
    run_once(&s);
    uint64_t after = fm__now_ns();
    fm__exec_times times;
    fm__exec_get_times(s.exec, &times);
    assert_true(times.observed[0] && !times.observed[1]);
    /* The copies lie before the run. */
    assert_int_equal(times.copy_ns[0], 0);
    assert_int_equal(times.busy_ns[0], times.compute_ns[0]);
    assert_true(times.compute_ns[0] > 0);
    assert_true(times.divided_ns[0] > 0 && times.divided_ns[0] < times.busy_ns[0]);
    /* A copy for the next run that began in this one and is under way still counts to the end; what
       it takes of the next run counts there, from its begin. */
    replaced = true;
    uint64_t begin = s.exec->begin_ns, end = s.exec->end_ns;
    assert_true(begin >= before && end <= after && end - begin > 60);
    replacement = (fm__span){end - 50, UINT64_MAX};
    fm__exec_get_times(s.exec, &times);
    assert_int_equal(times.copy_ns[0], 50);
    replacement = (fm__span){begin - 50, begin + 60};
    fm__exec_get_times(s.exec, &times);
    assert_int_equal(times.copy_ns[0], 60);
    /* One that began before the run and is under way still. */
    replacement = (fm__span){1, UINT64_MAX};
    fm__exec_get_times(s.exec, &times);
    assert_int_equal(times.copy_ns[0], end - begin);
    assert_int_equal(times.busy_ns[0], times.copy_ns[0] + times.compute_ns[0]);
    /* Every divided piece's copy lasts as long as the run: they share that. */
    static fm__exec_span spans[256];
    uint32_t n = fm__exec_spans(s.exec, spans, 256);
    double sum = 0;
    assert_in_range(n, 8, 256);
    for (uint32_t i = 0; i < n; i++)
        if (spans[i].unit == 0 && s.exec->layout.pieces[i].divided)
            sum += spans[i].busy_ns;
    assert_true(sum > 0.99 * (double)times.divided_ns[0] &&
                sum < 1.01 * (double)times.divided_ns[0]);
    replaced = false;
    s.units[0]->vtable = real;
    session_finish(&s);
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorts_and_unites),
        cmocka_unit_test(unions_are_those_of_sets),
        cmocka_unit_test(copies_count_within_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
