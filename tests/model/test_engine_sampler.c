/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler: filters, ties, seeds, penalties, and logits that are no numbers. */
#include "model_test.h"

#include <math.h>

static fm_sampler_options plain(float temperature) {
    return (fm_sampler_options){
        .temperature = temperature, .top_p = 1, .repeat_penalty = 1, .repeat_last_n = 8};
}

static fm_sampler *make(const fm_sampler_options *options) {
    fm_sampler *sampler = NULL;
    fm_error error = {0};
    CHECK_OK(fm_sampler_create(&sampler, options, &error));
    return sampler;
}

static int32_t draw(fm_sampler *sampler, const float *logits, size_t n) {
    int32_t id = -1;
    fm_error error = {0};
    CHECK_OK(fm_sampler_sample(sampler, logits, n, &id, &error));
    assert_in_range(id, 0, n - 1);
    return id;
}

static void greedy(void **state) {
    (void)state;
    const float ties[] = {-1, 3, 2, 3, -INFINITY};
    fm_sampler_options options = plain(0);
    fm_sampler *sampler = make(&options);
    assert_int_equal(draw(sampler, ties, 5), 1);
    const float negative[] = {-5, -INFINITY, -4, -4};
    assert_int_equal(draw(sampler, negative, 4), 2);
    fm_sampler_destroy(&sampler);
    assert_null(sampler);
    fm_sampler_destroy(&sampler);
}

static void not_numbers(void **state) {
    (void)state;
    float logits[4] = {1, NAN, 2, 3};
    int32_t id = 77;
    fm_error error = {0};
    fm_sampler_options options = plain(1);
    fm_sampler *sampler = make(&options);
    assert_int_equal(fm_sampler_sample(sampler, logits, 4, &id, &error), FM_ERROR_NUMERIC);
    assert_non_null(strstr(error.message, "entry 1"));
    logits[1] = INFINITY;
    assert_int_equal(fm_sampler_sample(sampler, logits, 4, &id, &error), FM_ERROR_NUMERIC);
    for (int i = 0; i < 4; i++)
        logits[i] = -INFINITY;
    assert_int_equal(fm_sampler_sample(sampler, logits, 4, &id, &error), FM_ERROR_NUMERIC);
    assert_int_equal(fm_sampler_sample(sampler, logits, 0, &id, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(id, 77);
    /* And it goes on working. */
    logits[2] = 0;
    assert_int_equal(draw(sampler, logits, 4), 2);
    fm_sampler_destroy(&sampler);
}

static void bad_options(void **state) {
    (void)state;
    fm_error error = {0};
    fm_sampler *sampler = NULL;
    struct {
        fm_sampler_options options;
        const char *field;
    } cases[] = {
        {plain(-1), "temperature"}, {plain(NAN), "temperature"}, {plain(1), "top_p"},
        {plain(1), "top_p"},        {plain(1), "min_p"},         {plain(1), "repeat_penalty"},
    };
    cases[2].options.top_p = 0;
    cases[3].options.top_p = 1.5f;
    cases[4].options.min_p = -0.1f;
    cases[5].options.repeat_penalty = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(fm_sampler_create(&sampler, &cases[i].options, &error), FM_ERROR_ARGUMENT);
        assert_string_equal(error.place, cases[i].field);
    }
}

/* Frequencies of many draws against the softmax. */
static void check_frequencies(fm_sampler *sampler, const float *logits, const double *want,
                              size_t n) {
    enum { DRAWS = 20000 };
    size_t counts[16] = {0};
    for (int i = 0; i < DRAWS; i++)
        counts[draw(sampler, logits, n)]++;
    for (size_t i = 0; i < n; i++) {
        double seen = (double)counts[i] / DRAWS, sigma = sqrt(want[i] * (1 - want[i]) / DRAWS);
        if (want[i] == 0)
            assert_int_equal(counts[i], 0);
        else if (fabs(seen - want[i]) > 5 * sigma + 1e-9)
            fail_msg("id %zu: drawn with frequency %g, wanted %g", i, seen, want[i]);
    }
}

static void distributions(void **state) {
    (void)state;
    /* ln of probabilities 0.1 0.4 0.3 0.15 0.05, and one ruled out */
    const double p[] = {0.1, 0.4, 0.3, 0.15, 0.05, 0};
    float logits[6];
    for (int i = 0; i < 6; i++)
        logits[i] = (float)log(p[i]);
    struct {
        const char *what;
        fm_sampler_options options;
        double want[6];
    } cases[] = {
        {"plain", plain(1), {0.1, 0.4, 0.3, 0.15, 0.05, 0}},
        {"top-k", plain(1), {0, 0.4 / 0.7, 0.3 / 0.7, 0, 0, 0}},
        {"top-p", plain(1), {0, 0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0}},
        {"min-p", plain(1), {0, 0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0}},
        {"temperature", plain(0.5f), {0.01, 0.16, 0.09, 0.0225, 0.0025, 0}},
        {"top-k and top-p", plain(1), {0, 1, 0, 0, 0, 0}},
    };
    cases[1].options.top_k = 2;
    cases[2].options.top_p = 0.8f;
    cases[3].options.min_p = 0.3f;
    cases[5].options.top_k = 3;
    cases[5].options.top_p = 0.45f; /* of the three: 0.47 is enough */
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        double sum = 0;
        for (int i = 0; i < 6; i++)
            sum += cases[c].want[i];
        for (int i = 0; i < 6; i++)
            cases[c].want[i] /= sum;
        cases[c].options.seed = c;
        fm_sampler *sampler = make(&cases[c].options);
        check_frequencies(sampler, logits, cases[c].want, 6);
        fm_sampler_destroy(&sampler);
    }
}

static void seeds(void **state) {
    (void)state;
    float logits[1000];
    for (int i = 0; i < 1000; i++)
        logits[i] = (float)((i * 37) % 91) / 30;
    fm_sampler_options options = fm_sampler_options_default();
    options.seed = 42;
    options.top_k = 0;
    options.top_p = 1;
    options.min_p = 0;
    fm_sampler *a = make(&options), *b = make(&options);
    options.seed = 43;
    fm_sampler *c = make(&options);
    int differ = 0;
    for (int i = 0; i < 200; i++) {
        int32_t x = draw(a, logits, 1000);
        assert_int_equal(x, draw(b, logits, 1000));
        differ += x != draw(c, logits, 1000);
    }
    assert_true(differ > 150);
    fm_sampler_destroy(&a);
    fm_sampler_destroy(&b);
    fm_sampler_destroy(&c);
}

static void repeat_penalty(void **state) {
    (void)state;
    const float logits[] = {2, 1.5f, -1, 0};
    fm_sampler_options options = plain(0);
    options.repeat_penalty = 2;
    options.repeat_last_n = 2;
    fm_sampler *sampler = make(&options);
    assert_int_equal(draw(sampler, logits, 4), 0); /* 2 -> 1 from now on */
    assert_int_equal(draw(sampler, logits, 4), 1); /* 1.5 -> 0.75 */
    assert_int_equal(draw(sampler, logits, 4), 0); /* 1 and 0.75 */
    fm_sampler_accept(sampler, 0);                 /* twice in the ring, penalised once */
    assert_int_equal(draw(sampler, logits, 4), 1); /* 1.5 against 1 */
    fm_sampler_accept(sampler, -5);                /* ids that are none here are passed over */
    fm_sampler_accept(sampler, 1000);
    assert_int_equal(draw(sampler, logits, 4), 0);
    fm_sampler_destroy(&sampler);
}

/* Extreme temperatures and spreads stay finite. */
static void extremes(void **state) {
    (void)state;
    const float wide[] = {-3e38f, 3e38f, 0};
    const float temperatures[] = {1e-30f, 1e-3f, 1, 1e6f};
    for (int i = 0; i < 4; i++) {
        fm_sampler_options options = plain(temperatures[i]);
        fm_sampler *sampler = make(&options);
        for (int j = 0; j < 20; j++)
            assert_int_equal(draw(sampler, wide, 3), 1);
        const float one[] = {5};
        assert_int_equal(draw(sampler, one, 1), 0);
        fm_sampler_destroy(&sampler);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy),      cmocka_unit_test(not_numbers),
        cmocka_unit_test(bad_options), cmocka_unit_test(distributions),
        cmocka_unit_test(seeds),       cmocka_unit_test(repeat_penalty),
        cmocka_unit_test(extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
