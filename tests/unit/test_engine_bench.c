/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine_bench.c: kernels alone: what is measured, that a wrong result is noticed, that the
 * part of a roof is what its definition says, refusals.
 */
#include "engine/bench.h"
#include "test.h"

#include <math.h>

typedef struct seen {
    fm_lab_roofs roofs;
    uint32_t calls, kernels, skipped, stop_after;
    bool linear, attention, fast;
} seen;

/* bytes of a q4_0 weight's panels, which the rate must follow */
static double panel_bytes(uint32_t n, uint32_t k) {
    fm__panel_layout layout = fm__panel_layout_of(fm__type_get(FM__Q4_0), k);
    return (double)((n + 15) / 16 * layout.stride);
}

static void check_kernel(seen *s, const fm_lab_kernel *k) {
    assert_true(k->good);
    assert_true(k->same || strcmp(k->numeric_class, "fast") == 0);
    assert_true(k->ms > 0 && k->ms_low <= k->ms && k->ms <= k->ms_high);
    assert_true(k->samples == 2 && k->iterations >= 1);
    assert_true(k->rows > 0 && k->rows <= k->of_rows && k->tokens_checked <= k->tokens);
    s->fast = s->fast || (strcmp(k->numeric_class, "fast") == 0 && k->error > 0 && k->error <= 1);
    s->attention = s->attention || strcmp(k->op, "attention") == 0;
    if (strcmp(k->op, "linear") != 0 || strcmp(k->type, "q4_0") != 0)
        return;
    s->linear = true;
    double ops = 2.0 * k->n * k->k * k->tokens, bytes = panel_bytes(k->n, k->k);
    assert_true(fabs(k->gop_s * k->ms * 1e6 / ops - 1) < 1e-9);
    assert_true(fabs(k->gb_s * k->ms * 1e6 / bytes - 1) < 1e-9);
    double compute = s->roofs.vnni > 0 ? k->gop_s / s->roofs.vnni : 0,
           read = k->gb_s / s->roofs.read;
    assert_string_equal(k->roof, read > compute ? "read" : "vnni");
    assert_true(fabs(k->of_roof / fmax(read, compute) - 1) < 1e-9);
}

static int on_kernel(void *user, const fm_lab_roofs *roofs, const fm_lab_kernel *kernel) {
    seen *s = user;
    if (s->calls++ == 0) {
        assert_null(kernel);
        s->roofs = *roofs;
        assert_true(roofs->read > 0 && roofs->threads == 2);
    } else {
        assert_non_null(kernel);
        s->kernels++;
        if (kernel->skipped != NULL)
            s->skipped++;
        else
            check_kernel(s, kernel);
    }
    return s->stop_after > 0 && s->calls > s->stop_after;
}

static fm_lab_kernels_options small(const char *ops) {
    fm_lab_kernels_options o = fm_lab_kernels_options_default();
    o.ops = ops;
    o.shapes = "40x96,40x256";
    o.tokens = "3";
    o.threads = 2;
    o.weight_bytes = 1 << 16;
    o.repeats = 1;
    return o;
}

static void test_measured(void **state) {
    (void)state;
    seen s = {0};
    fm_error error = {0};
    fm_lab_kernels_options o = small("linear,attention,quantise");
    o.types = "q4_0,q4_k,bf16";
    assert_int_equal(fm_lab_kernels(&o, on_kernel, &s, &error), FM_OK);
    assert_true(s.linear && s.fast);
    /* q4_k and q8_256 at 96 columns, attention at two shapes without heads */
    assert_int_equal(s.skipped, 4);
    o = small("attention");
    o.shapes = "0.5b";
    o.depth = 65;
    assert_int_equal(fm_lab_kernels(&o, on_kernel, &(seen){0}, &error), FM_OK);
}

static atomic_int asked;

static int stop_now(void) {
    atomic_fetch_add(&asked, 1);
    return 1;
}

static int go_on(void) {
    atomic_fetch_add(&asked, 1);
    return 0;
}

/* Far more threads than processors, and an operation as long as a minute: whoever asks to stop does
   not wait for it. */
static void stops_at_once(void **state) {
    (void)state;
    fm__kernels ref;
    fm__random random;
    fm__bench_pool pool = {0};
    fm__bench_case *c = NULL;
    assert_int_equal(fm__kernels_get(&ref, "ref", NULL), FM_OK);
    fm__random_seed(&random, 1);
    assert_int_equal(fm__bench_linear(&c, fm__type_get(FM__Q8_0), false, 512, 512, 1, 1 << 20,
                                      &pool, &random, NULL),
                     FM_OK);
    for (int stop = 0; stop < 2; stop++) {
        fm__bench_team *team = NULL;
        atomic_store(&asked, 0);
        assert_int_equal(fm__bench_team_create(&team, 64, stop ? stop_now : go_on, NULL), FM_OK);
        uint64_t begin = fm__now_ns();
        fm__bench_run(team, c, &ref, stop ? FM__BENCH_ITERATIONS : 8);
        assert_int_equal(fm__bench_team_cancelled(team), stop && atomic_load(&asked) > 0);
        if (stop) {
            assert_true(atomic_load(&asked) == 1);
            assert_true(fm__now_ns() - begin < UINT64_C(5000000000));
            assert_int_equal(fm__bench_run(team, c, &ref, FM__BENCH_ITERATIONS), 1);
        }
        fm__bench_team_destroy(&team);
    }
    c->destroy(c);
    fm__bench_pool_finish(&pool);
}

/* A case whose output is not what ref gives is reported as such. */
static void expect_noticed(fm__bench_case *c) {
    fm__kernels ref;
    fm__bench_team *team = NULL;
    fm__bench_check check;
    assert_int_equal(fm__kernels_get(&ref, "ref", NULL), FM_OK);
    assert_int_equal(fm__bench_team_create(&team, 2, NULL, NULL), FM_OK);
    if (c->reset != NULL)
        c->reset(c);
    assert_true(fm__bench_run(team, c, &ref, 1) > 0);
    assert_int_equal(c->check(c, &ref, &check, NULL), FM_OK);
    assert_true(check.good);
    if (c->fast)
        c->out[0] *= 1.01f;
    else
        ((uint8_t *)c->out)[0] ^= 1;
    assert_int_equal(c->check(c, &ref, &check, NULL), FM_OK);
    assert_false(check.good);
    fm__bench_team_destroy(&team);
    assert_null(team);
    c->destroy(c);
}

static void test_noticed(void **state) {
    (void)state;
    fm__bench_pool pool = {0};
    fm__bench_case *c = NULL;
    fm__random random;
    const fm__bench_shape shape = {"", 256, 256, 4, 2, 64};
    fm__random_seed(&random, 1);
    const fm__dtype types[] = {FM__Q4_K, FM__BF16};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fm__bench_linear(&c, fm__type_get(types[i]), i == 1, 300, 256, 20, 1 << 20,
                                          &pool, &random, NULL),
                         FM_OK);
        assert_true(c->copies >= 2);
        expect_noticed(c);
    }
    const uint32_t rows[] = {70, 5, 1, 2}, depth[] = {3, 70, 1000, 511}; /* the last two: by keys */
    for (int i = 0; i < 8; i++) {
        assert_int_equal(fm__bench_attention(&c, (fm__cache_type)(i / 4), &shape, rows[i % 4],
                                             depth[i % 4], 1 << 20, &pool, &random, NULL),
                         FM_OK);
        expect_noticed(c);
    }
    for (int op = FM__BENCH_RMSNORM; op <= FM__BENCH_KV_STORE; op++) {
        assert_int_equal(fm__bench_rows(&c, (fm__bench_row_op)op, 0, &shape, 5, &random, NULL),
                         FM_OK);
        expect_noticed(c);
    }
    fm__bench_pool_finish(&pool);
    fm__bench_pool_finish(&pool);
}

static void expect_refused(fm_lab_kernels_options o, fm_status status, const char *place,
                           const char *word) {
    fm_error error = {0};
    seen s = {0};
    assert_int_equal(fm_lab_kernels(&o, on_kernel, &s, &error), status);
    assert_int_equal(s.calls, 0);
    assert_string_equal(error.place, place);
    assert_non_null(strstr(error.message, word));
}

static void test_refused(void **state) {
    (void)state;
    fm_lab_kernels_options o = small("linear,walk");
    expect_refused(o, FM_ERROR_ARGUMENT, "op", "\"walk\"");
    o = small("linear");
    o.types = "q4_0,q9";
    expect_refused(o, FM_ERROR_ARGUMENT, "type", "\"q9\"");
    o = small("linear");
    o.shapes = "40x96y";
    expect_refused(o, FM_ERROR_ARGUMENT, "shape", "\"40x96y\"");
    o.shapes = "0x96";
    expect_refused(o, FM_ERROR_ARGUMENT, "shape", "\"0x96\"");
    o = small("linear");
    o.tokens = "1,,2";
    expect_refused(o, FM_ERROR_ARGUMENT, "tokens", "\",2\"");
    o.tokens = "-1";
    expect_refused(o, FM_ERROR_ARGUMENT, "tokens", "\"-1\"");
    o = small("linear");
    o.rungs = "mmx";
    expect_refused(o, FM_ERROR_ARGUMENT, "cpu rung", "\"mmx\"");
    o = small("linear");
    o.repeats = 100000;
    expect_refused(o, FM_ERROR_ARGUMENT, "repeats", "1000");
    o = small("linear");
    o.depth = INT64_MAX;
    expect_refused(o, FM_ERROR_ARGUMENT, "depth", "1048576");
}

static void test_stopped(void **state) {
    (void)state;
    fm_error error = {0};
    seen s = {.stop_after = 2};
    fm_lab_kernels_options o = small("add,rmsnorm");
    assert_int_equal(fm_lab_kernels(&o, on_kernel, &s, &error), FM_ERROR_CANCELLED);
    assert_int_equal(s.calls, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured), cmocka_unit_test(test_noticed),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_stopped),
        cmocka_unit_test(stops_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
