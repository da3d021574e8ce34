/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for a share in virtual time: V curves, plateaus, noise, a false bump before a cliff,
 * drift, shares that cannot be run; how many measurements it takes and what it never measures.
 */
#include <math.h>

#include "exec/calibrate.h"
#include "test.h"

/* Of a search with the default options: more than any took. */
enum { MOST_RUNS = 190 };

#include "base/base.h"

typedef double curve(double share);

typedef struct probe {
    fm__search search;
    fm__random random;
    double noise, outliers, drift; /* drift: of each measurement against the one before */
    uint32_t n;
    double highest;                /* share that was measured */
    double longest, longest_share; /* dearest measurement over share 0's time */
    double scale;
} probe;

static double measure(probe *p, curve *time, double share) {
    double ns = time(share) * p->scale * pow(1 + p->drift, p->n);
    ns *= 1 + p->noise * (double)fm__random_normal(&p->random);
    if (fm__random_double(&p->random) < p->outliers)
        ns *= 1.5;
    return ns;
}

static void look(probe *p, curve *time, const fm__search_options *options) {
    double share = -1;
    if (p->scale == 0)
        p->scale = 1e6;
    fm__search_init(&p->search, options);
    while (fm__search_next(&p->search, &share)) {
        assert_true(share >= 0 && share <= 1);
        p->highest = share > p->highest ? share : p->highest;
        double over = time(share) / time(0);
        if (over > p->longest) {
            p->longest = over;
            p->longest_share = share;
        }
        fm__search_feed(&p->search, measure(p, time, share));
        assert_true(++p->n <= MOST_RUNS);
        double again;
        if (fm__search_next(&p->search, &again))
            assert_true(fm__search_next(&p->search, &share) && again == share);
    }
    assert_true(p->search.done);
    assert_int_equal(p->search.measured, p->n);
    for (uint32_t i = 1; i < p->search.n_point; i++)
        assert_true(p->search.points[i].share > p->search.points[i - 1].share);
}

/* ---- V curves: the first unit alone takes 1; the second ends with it at `corner` ---- */

static double v_corner;

static double v_curve(double share) {
    if (v_corner <= 0)
        return 1 + 3 * share; /* the second unit only disturbs */
    if (v_corner >= 1)
        return 1 - 0.9 * share; /* it does everything ten times faster */
    double first = 1 - share, second = share * (1 - v_corner) / v_corner;
    return first > second ? first : second;
}

static void v_curves_find_their_corner(void **state) {
    (void)state;
    static const double corners[] = {0.2, 0.225, 0.33, 0.5, 0.7, 0.9, 0.97};
    for (size_t i = 0; i < sizeof corners / sizeof *corners; i++)
        for (double scale = 1e3; scale < 1e12; scale *= 1000) {
            v_corner = corners[i];
            probe p = {.scale = scale};
            look(&p, v_curve, NULL);
            assert_true(fabs(p.search.best - v_corner) <= 0.0251);
            assert_true(fabs(p.search.gain - v_curve(0) / v_curve(p.search.best)) < 1e-9);
            assert_true(p.highest <= v_corner * 1.2 + 0.076);
        }
}

static void the_ends_are_found(void **state) {
    (void)state;
    v_corner = 0;
    probe p = {.noise = 0};
    look(&p, v_curve, NULL);
    assert_true(p.search.best == 0 && p.search.gain == 1);
    assert_true(p.highest <= 0.1251); /* 0.1 is 13 % above 0.05: half a step more shows it */
    assert_true(p.n <= 85);
    v_corner = 1;
    p = (probe){.noise = 0};
    look(&p, v_curve, NULL);
    assert_true(p.search.best == 1);
    assert_true(fabs(p.search.gain - 10) < 1e-9);
}

static double flat(double share) {
    (void)share;
    return 1;
}

static double nearly_flat(double share) {
    return 1 - 0.015 * (share < 0.5 ? share : 1 - share) * 2;
}

/* Nothing to gain: the dead band says 0, with noise too. */
static void a_plateau_is_not_split(void **state) {
    (void)state;
    probe p = {.noise = 0};
    look(&p, flat, NULL);
    assert_true(p.search.best == 0 && p.search.gain == 1);
    p = (probe){.noise = 0};
    look(&p, nearly_flat, NULL);
    assert_true(p.search.best == 0 && p.search.gain == 1);
    for (uint64_t seed = 1; seed <= 50; seed++) {
        p = (probe){.noise = 0.005};
        fm__random_seed(&p.random, seed);
        look(&p, flat, NULL);
        assert_true(p.search.best == 0);
    }
}

static void noise_costs_little(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++)
        for (v_corner = 0.2; v_corner < 0.8; v_corner += 0.1) {
            probe p = {.noise = 0.02, .outliers = 0.05};
            fm__random_seed(&p.random, seed);
            look(&p, v_curve, NULL);
            assert_true(v_curve(p.search.best) < 1.10 * v_curve(v_corner));
        }
}

/* The machine slows by 0.3 % with each measurement, 20 % in all: the turns cancel it. */
static void a_drift_does_not_mislead(void **state) {
    (void)state;
    v_corner = 0.33;
    probe p = {.drift = 0.003};
    look(&p, v_curve, NULL);
    assert_true(fabs(p.search.best - v_corner) <= 0.05);
    assert_true(fabs(p.search.gain - v_curve(0) / v_curve(p.search.best)) < 0.03);
}

/* ---- the released case: a false bump at 0.25, and a cliff at 0.5 ---- */

static double bump_and_cliff(double share) {
    if (share >= 0.5)
        return 4.5;
    double first = 1 - share, second = share * 0.67 / 0.33, time = first > second ? first : second;
    return share > 0.24 && share < 0.26 ? time * 1.17 : time;
}

/* The same, less smooth, and as a table of measured points. */
static double table(double share) {
    static const double times[] = {1.00, 0.96, 0.92, 0.88, 0.84, 0.95, 0.79, 0.77, 0.87, 1.10, 4.5};
    double at = share / 0.05;
    if (at >= 10)
        return times[10];
    int i = (int)at;
    return times[i] + (at - i) * (times[i + 1] - times[i]);
}

static void a_bump_is_passed_and_a_cliff_never_timed(void **state) {
    (void)state;
    static curve *const curves[] = {bump_and_cliff, table};
    for (int c = 0; c < 2; c++)
        for (uint64_t seed = 0; seed <= 100; seed++) {
            probe p = {.noise = seed == 0 ? 0 : 0.005};
            fm__random_seed(&p.random, seed);
            look(&p, curves[c], NULL);
            assert_true(p.search.best > 0.299 && p.search.best < 0.3501);
            assert_true(p.highest < 0.45);
        }
}

/* Wherever the cliff stands right of the minimum, what is timed is below it or just at its foot. */
static double cliff_at;

static double moving_cliff(double share) {
    return share >= cliff_at ? 8 : 1 - share;
}

static void a_cliff_is_timed_as_little_as_can_be(void **state) {
    (void)state;
    for (cliff_at = 0.06; cliff_at < 1; cliff_at += 0.01) {
        probe p = {.noise = 0};
        look(&p, moving_cliff, NULL);
        assert_true(p.search.best < cliff_at && p.search.best > cliff_at - 0.0501);
        uint32_t over = 0;
        for (uint32_t i = 0; i < p.search.n_point; i++)
            if (p.search.points[i].share >= cliff_at)
                over += p.search.points[i].n;
        assert_true(over <= 2 + 4); /* twice in the first pass, then once a pass */
        assert_true(p.highest <= cliff_at + 0.0501);
    }
}

/* ---- units whose own times are known ---- */

typedef struct pair {
    double first, second;             /* ns for all of the work, beside each other */
    double fixed_first, fixed_second; /* ns of hand-overs, once anything is divided */
    double alone;                     /* ns of the first unit for all of it, nobody beside it */
    double rest;                      /* ns that nothing divides */
    double noise;
    fm__random random;
} pair;

static double pair_ns(const pair *p, double share, double *a, double *b) {
    *a = *b = 0;
    if (share <= 0)
        return p->rest + p->alone;
    *a = share < 1 ? p->fixed_first + (1 - share) * p->first : 0;
    *b = p->fixed_second + share * p->second;
    return p->rest + (*a > *b ? *a : *b);
}

static double blur(pair *p, double ns) {
    return ns * (1 + p->noise * (double)fm__random_normal(&p->random));
}

static void search_pair(pair *p, fm__search *search) {
    double share, a, b;
    fm__search_init(search, NULL);
    while (fm__search_next(search, &share)) {
        double ns = blur(p, pair_ns(p, share, &a, &b));
        fm__search_feed_units(search, ns, blur(p, a), blur(p, b));
        assert_true(search->measured <= MOST_RUNS);
    }
}

static double best_of(const pair *p) {
    double a, b, least = pair_ns(p, 0, &a, &b);
    for (int i = 1; i <= 4000; i++) {
        double ns = pair_ns(p, i / 4000.0, &a, &b);
        least = ns < least ? ns : least;
    }
    return least;
}

/* Within 2 % of the best that there is (a unit alone has the dead band besides), with at most 60
   measurements, whatever the units' speeds and the price of dividing. */
static void known_times_lead_to_the_ground(void **state) {
    (void)state;
    static const double faster[] = {0.1, 0.25, 1, 2, 4, 10, 30},
                        fixed[] = {0, 0.01, 0.05, 0.2, 0.6};
    for (size_t i = 0; i < 7; i++)
        for (size_t f = 0; f < 5; f++)
            for (int contended = 0; contended < 2; contended++)
                for (uint64_t seed = 0; seed <= 20; seed++) {
                    double slow = contended ? 1.25 : 1, alone = 100e6;
                    pair p = {.first = alone * slow,
                              .second = alone * faster[i] * slow,
                              .fixed_first = alone * fixed[f],
                              .fixed_second = alone * fixed[f],
                              .alone = alone,
                              .rest = 5e6,
                              .noise = seed == 0 ? 0 : 0.005};
                    fm__search s;
                    double a, b, ideal = best_of(&p);
                    fm__random_seed(&p.random, seed);
                    search_pair(&p, &s);
                    double ns = pair_ns(&p, s.best, &a, &b);
                    double limit = s.best <= 0 || s.best >= 1 ? 1.031 : 1.02;
                    if (ns > ideal * (seed == 0 ? limit : limit + 0.02))
                        fail_msg("second %g times, fixed %g, contended %d, seed %d: share %g takes "
                                 "%.3f of the best",
                                 faster[i], fixed[f], contended, (int)seed, s.best, ns / ideal);
                    assert_true(s.measured <= 60);
                }
}

/* Decoding on a machine whose times move by some per cent: the first runs at a share that is far
   from the best one were the fastest by luck. The units' own times say where to look. */
static void luck_in_the_first_runs_does_not_mislead(void **state) {
    (void)state;
    pair p = {.first = 38e6, .second = 103e6, .fixed_second = 2e6, .alone = 36e6, .rest = 2e6};
    fm__search s;
    double share, a, b;
    fm__search_init(&s, &(fm__search_options){.budget_ns = 4e9});
    while (fm__search_next(&s, &share)) {
        double ns = pair_ns(&p, share, &a, &b);
        bool lucky = s.pass == 0 && share > 0.1 && share < 0.21;
        fm__search_feed_units(&s, lucky ? 0.9 * ns : ns, a, b);
    }
    assert_true(pair_ns(&p, s.best, &a, &b) < 1.002 * best_of(&p));
}

/* Measured at one small share, a unit whose fixed part dominates there is not given up. */
static void what_is_known_of_share_1(void **state) {
    (void)state;
    pair p = {.first = 80, .second = 40, .fixed_first = 2, .fixed_second = 3, .alone = 80};
    fm__search s;
    search_pair(&p, &s);
    assert_true(fabs(fm__search_predict_alone(&s) - 43) < 1);
    fm__search_init(&s, NULL);
    assert_true(fm__search_predict_alone(&s) == 0);
}

/* A budget ends the search early, and its answer is still one that was measured. */
static void a_budget_is_kept(void **state) {
    (void)state;
    pair p = {.first = 100e6, .second = 300e6, .alone = 100e6};
    for (double budget = 1e6; budget < 1e11; budget *= 10) {
        fm__search s;
        double share, a, b;
        fm__search_init(&s, &(fm__search_options){.budget_ns = budget});
        while (fm__search_next(&s, &share)) {
            double ns = pair_ns(&p, share, &a, &b);
            fm__search_feed_units(&s, ns, a, b);
        }
        assert_true(s.spent_ns < 1.5 * budget + 20 * 100e6);
        assert_true(pair_ns(&p, s.best, &a, &b) <= 100e6);
        assert_true(s.gain > 1.2); /* of 1.33: even the first few runs find most of it */
        if (budget <= 100e6)
            assert_true(s.measured <= 6);
    }
}

/* ---- limits ---- */

static void options_are_bounded(void **state) {
    (void)state;
    v_corner = 0.33;
    for (uint32_t repeats = 1; repeats < 20; repeats += 6)
        for (double step = 0.001; step < 3; step *= 3)
            for (double first = 0.001; first < 3; first *= 3) {
                fm__search search;
                fm__search_init(&search, &(fm__search_options){
                                             .first = first, .step = step, .repeats = repeats});
                double share;
                uint32_t n = 0;
                for (; fm__search_next(&search, &share); n++)
                    fm__search_feed(&search, v_curve(share));
                assert_true(n <= FM__SEARCH_REPEATS * MOST_RUNS / 3);
                assert_true(search.best >= 0 && search.best <= 1);
                assert_true(v_curve(search.best) <= v_curve(0));
            }
}

static void a_clear_curve_is_cheap(void **state) {
    (void)state;
    v_corner = 0.33;
    probe p = {.noise = 0};
    look(&p, v_curve, NULL);
    assert_true(p.n <= 100);
}

static void ideals(void **state) {
    (void)state;
    assert_true(fm__ideal_share(2, 1) == 1.0 / 3);
    assert_true(fm__ideal_share(0, 1) == 1);
    assert_true(fm__ideal_share(1, 0) == 0);
    assert_true(fm__ideal_ns(300, 10, 2, 1) == 110);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v_curves_find_their_corner),
        cmocka_unit_test(the_ends_are_found),
        cmocka_unit_test(a_plateau_is_not_split),
        cmocka_unit_test(noise_costs_little),
        cmocka_unit_test(luck_in_the_first_runs_does_not_mislead),
        cmocka_unit_test(a_drift_does_not_mislead),
        cmocka_unit_test(a_bump_is_passed_and_a_cliff_never_timed),
        cmocka_unit_test(a_cliff_is_timed_as_little_as_can_be),
        cmocka_unit_test(known_times_lead_to_the_ground),
        cmocka_unit_test(what_is_known_of_share_1),
        cmocka_unit_test(a_budget_is_kept),
        cmocka_unit_test(options_are_bounded),
        cmocka_unit_test(a_clear_curve_is_cheap),
        cmocka_unit_test(ideals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
