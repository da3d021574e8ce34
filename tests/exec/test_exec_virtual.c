/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heart in virtual time: two null devices of known rates run a chain of products. A split takes
 * what the rates allow, the search finds its share, the gate ends on the fastest arm.
 */
#include <time.h>

#include "exec/calibrate.h"
#include "exec/exec.h"
#include "exec/gate.h"
#include "null_pair.h"

enum { WIDTH = 1280 /* 40 granules of 32: steps of 0.025 */, LAYERS = 6, VOCAB = 16, ROWS = 64 };

typedef struct chain {
    fixture f;
    fm__tape *tape;
    fm__null_world *world;
    fm__device *units[2];
    fm__run run;
    fm__run_status status;
} chain;

/* x = W x, LAYERS times with one W; then the rows that want output. */
static void make_tape(chain *c) {
    int16_t embed = fixture_gather(&c->f, "token_embd.weight", FM__Q8_0, VOCAB, WIDTH);
    int16_t weight = fixture_linear(&c->f, "w", FM__Q8_0, WIDTH, WIDTH);
    c->tape = fixture_tape(&c->f, ROWS, 1);
    int16_t x = fm__tape_tensor(c->tape, "x", FM__ACT_F32, WIDTH, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(c->tape, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = embed;
    for (int i = 0; i < LAYERS; i++) {
        int16_t act = fm__tape_tensor(c->tape, "act", c->f.weights[weight]->type->act[0], WIDTH,
                                      FM__ROWS_BATCH, FM__SLOT_SCRATCH);
        int16_t y =
            fm__tape_tensor(c->tape, "y", FM__ACT_F32, WIDTH, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
        op = fm__tape_op(c->tape, FM__OP_QUANTISE, i);
        op->in[0] = x;
        op->out = act;
        op = fm__tape_op(c->tape, FM__OP_LINEAR, i);
        op->in[0] = act;
        op->out = y;
        op->weight[0] = weight;
        x = y;
    }
    op = fm__tape_op(c->tape, FM__OP_SELECT, FM__NONE);
    op->in[0] = x;
    op->out = c->tape->hidden =
        fm__tape_tensor(c->tape, "hidden", FM__ACT_F32, WIDTH, FM__ROWS_OUTPUT, FM__SLOT_OUTPUT);
    CHECK(fm__tape_finish(c->tape, why));
}

static void chain_init(chain *c, fm__null_options a, fm__null_options b, uint32_t rows) {
    memset(c, 0, sizeof *c);
    fixture_init(&c->f, 3);
    make_tape(c);
    fixture_batch(&c->f, rows, 0, VOCAB, 1);
    null_pair_create(&c->world, c->units, a, b);
    run_init(&c->run, &c->status, &c->f, c->tape, c->units[0]);
}

static void chain_finish(chain *c) {
    run_finish(&c->run);
    null_pair_destroy(&c->world, c->units);
    fm__tape_destroy(&c->tape);
    fixture_finish(&c->f);
}

/* ---- one way to run the chain ---- */

typedef struct way {
    fm__plan *plan;
    fm__exec *exec;
} way;

static void way_init(way *w, chain *c, double share, fm__axis axis, fm__deps deps) {
    const fm__plan_options options = {.shares = {1 - share, share}, .axis = axis, .deps = deps};
    CHECK(fm__plan_make(&w->plan, c->tape, c->units, 2, &options, why));
    CHECK(fm__exec_create(&w->exec, c->tape, w->plan, c->units, 2, why));
}

static void way_finish(way *w) {
    fm__exec_destroy(&w->exec);
    fm__plan_destroy(&w->plan);
}

/* Virtual ns of one run. */
static double way_run(way *w, chain *c) {
    uint64_t begin = fm__null_world_now_ns(c->world), point = 0;
    CHECK(fm__exec_submit(w->exec, &c->run, &point, why));
    CHECK(fm__exec_wait(w->exec, point, &c->run, why));
    return (double)(fm__null_world_now_ns(c->world) - begin);
}

static double run_share(chain *c, double share, fm__axis axis, fm__deps deps) {
    way w;
    way_init(&w, c, share, axis, deps);
    double first = way_run(&w, c), second = way_run(&w, c);
    assert_true(first - second < 2 && second - first < 2);
    way_finish(&w);
    return second;
}

static double work_ops(uint32_t rows) {
    return 2.0 * WIDTH * WIDTH * LAYERS * rows;
}

/* ---- the split ---- */

static void a_split_takes_what_the_rates_allow(void **state) {
    (void)state;
    static const double rates[][2] = {{100, 100}, {300, 100}, {65, 35}, {10, 390}};
    static const double contention[] = {1, 0.8};
    for (size_t i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++)
            /* tokens are cut at 65536ths and rounded down: 0.35 and 0.975 of 40 rows lose one */
            for (int axis = 0; axis < (i < 2 ? 2 : 1); axis++) {
                chain c;
                double a = rates[i][0], b = rates[i][1], slow = contention[j];
                chain_init(&c, (fm__null_options){.ops_per_ns = a, .contention = slow},
                           (fm__null_options){.ops_per_ns = b, .contention = slow}, 40);
                double share = fm__ideal_share(a, b);
                double ideal = fm__ideal_ns(work_ops(40), 0, a * slow, b * slow);
                double ns = run_share(&c, share, axis ? FM__AXIS_TOKENS : FM__AXIS_CHANNELS,
                                      FM__DEPS_EVENT);
                assert_true(ns > 0.99 * ideal && ns < 1.01 * ideal);
                chain_finish(&c);
            }
}

/* Units overlap with EVENT dependencies, and not at all with BATCH. */
static void dependencies_decide_the_overlap(void **state) {
    (void)state;
    chain c;
    chain_init(&c, (fm__null_options){.ops_per_ns = 100}, (fm__null_options){.ops_per_ns = 100},
               ROWS);
    double work = work_ops(ROWS) / 100;
    static const struct {
        fm__deps deps;
        double time, overlap; /* over the work of one unit alone; of the shorter busy time */
    } cases[] = {{FM__DEPS_EVENT, 0.5, 1},
                 {FM__DEPS_READY, 0.5, 1},
                 {FM__DEPS_EAGER, 0.5, 1},
                 {FM__DEPS_BATCH, 1, 0}};
    for (size_t i = 0; i < 4; i++) {
        way w;
        way_init(&w, &c, 0.5, FM__AXIS_CHANNELS, cases[i].deps);
        double ns = way_run(&w, &c);
        assert_true(ns > work * cases[i].time * 0.99 && ns < work * cases[i].time * 1.01);
        fm__exec_times times;
        fm__exec_get_times(w.exec, &times);
        assert_true((double)times.overlap_ns >= (cases[i].overlap - 0.01) * work / 2);
        assert_true((double)times.overlap_ns <= (cases[i].overlap + 0.01) * work / 2);
        assert_true((double)times.busy_ns[1] > 0.49 * work);
        way_finish(&w);
    }
    chain_finish(&c);
}

/* ---- the search ---- */

static double search_share(chain *c, double *gain) {
    fm__search search;
    fm__search_init(&search, NULL);
    double share;
    while (fm__search_next(&search, &share))
        fm__search_feed(&search, run_share(c, share, FM__AXIS_CHANNELS, FM__DEPS_EVENT));
    *gain = search.gain;
    return search.best;
}

static void the_search_finds_the_share_of_the_rates(void **state) {
    (void)state;
    static const double shares[] = {0.1, 0.2, 0.35, 0.5, 0.725, 0.9};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        chain c;
        chain_init(&c, (fm__null_options){.ops_per_ns = 100 * (1 - shares[i]), .contention = 0.95},
                   (fm__null_options){.ops_per_ns = 100 * shares[i], .contention = 0.95}, 40);
        double gain, share = search_share(&c, &gain);
        /* borders lie at every 0.025 */
        if (share < shares[i] - 0.0125 || share > shares[i] + 0.0125)
            fail_msg("share %g, expected %g", share, shares[i]);
        /* beside the first unit alone, which nobody slows */
        double expected = work_ops(40) / (100 * (1 - shares[i])) / (work_ops(40) / 95);
        assert_true(gain > 0.99 * expected && gain < 1.01 * expected);
        chain_finish(&c);
    }
}

/* A hand-over that costs more than it brings: no split. One row, bound by bytes: bandwidths add. */
static void the_search_counts_all_costs(void **state) {
    (void)state;
    chain c;
    double gain;
    double alone = work_ops(1) / 100 / LAYERS;
    chain_init(&c, (fm__null_options){.ops_per_ns = 100},
               (fm__null_options){.ops_per_ns = 100, .dispatch_ns = (uint64_t)(1.1 * alone)}, 1);
    assert_true(search_share(&c, &gain) == 0);
    assert_true(gain == 1);
    chain_finish(&c);
    chain_init(&c, (fm__null_options){.ops_per_ns = 1e6, .bytes_per_ns = 51},
               (fm__null_options){.ops_per_ns = 1e3, .bytes_per_ns = 102}, 1);
    double share = search_share(&c, &gain);
    assert_true(share > 0.65 && share < 0.69);
    assert_true(gain > 2.9 && gain < 3.01);
    chain_finish(&c);
}

/* ---- the gate over cpu, gpu, split ---- */

enum { ARM_GPU, ARM_CPU, ARM_SPLIT, ARMS };

static void gate_ends_on(fm__null_options gpu, fm__null_options cpu, double share, uint32_t rows,
                         uint32_t best) {
    static const char *const names[ARMS] = {"gpu", "cpu", "split"};
    static const double shares[ARMS] = {0, 1, -1};
    chain c;
    way ways[ARMS];
    fm__gate gate;
    chain_init(&c, gpu, cpu, rows);
    for (int i = 0; i < ARMS; i++)
        way_init(&ways[i], &c, i == ARM_SPLIT ? share : shares[i], FM__AXIS_CHANNELS,
                 FM__DEPS_EVENT);
    fm__gate_init(&gate, NULL, names, NULL, NULL, ARMS);
    double total = 0, least = 0;
    for (int call = 0; call < 1000; call++) {
        uint32_t arm = fm__gate_choose(&gate, false);
        double ns = way_run(&ways[arm], &c);
        fm__gate_feed(&gate, arm, ns, rows);
        total += ns;
        if (arm == best)
            least = ns;
    }
    assert_int_equal(gate.active, best);
    assert_true(gate.lost_ns <= 0.01 * gate.spent_ns);
    double before = total;
    for (int call = 0; call < 200; call++) { /* from then on nothing is lost at all */
        uint32_t arm = fm__gate_choose(&gate, false);
        double ns = way_run(&ways[arm], &c);
        fm__gate_feed(&gate, arm, ns, rows);
        total += ns;
    }
    assert_true(total - before <= 1.01 * 200 * least);
    for (int i = 0; i < ARMS; i++)
        way_finish(&ways[i]);
    chain_finish(&c);
}

static void the_gate_ends_on_the_fastest_arm(void **state) {
    (void)state;
    gate_ends_on((fm__null_options){.ops_per_ns = 100}, (fm__null_options){.ops_per_ns = 50}, 0.325,
                 ROWS, ARM_SPLIT);
    gate_ends_on((fm__null_options){.ops_per_ns = 100, .contention = 0.5},
                 (fm__null_options){.ops_per_ns = 90, .contention = 0.5}, 0.475, ROWS, ARM_GPU);
    gate_ends_on((fm__null_options){.ops_per_ns = 80, .contention = 0.5},
                 (fm__null_options){.ops_per_ns = 90, .contention = 0.5}, 0.525, ROWS, ARM_CPU);
    gate_ends_on((fm__null_options){.bytes_per_ns = 51}, (fm__null_options){.bytes_per_ns = 102},
                 0.675, 1, ARM_SPLIT);
}

/* ---- real time ---- */

static double cpu_us(void) {
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Devices that take no time at all: what is left is submitting and waiting, in this thread's own
   processor time. lab/exec_overhead_bench.c has more of it. */
static void scheduling_a_divided_layer_takes_little(void **state) {
    (void)state;
    chain c;
    memset(&c, 0, sizeof c);
    fixture_init(&c.f, 3);
    make_tape(&c);
    fixture_batch(&c.f, 1, 0, VOCAB, 1);
    for (int u = 0; u < 2; u++)
        CHECK(
            fm__device_null_create(&c.units[u], &(fm__null_options){.memory_bytes = 1 << 26}, why));
    run_init(&c.run, &c.status, &c.f, c.tape, c.units[0]);
    static const fm__deps deps[] = {FM__DEPS_EVENT, FM__DEPS_BATCH, FM__DEPS_READY, FM__DEPS_EAGER};
    for (size_t d = 0; d < 4; d++) {
        way w;
        double least = 1e9;
        way_init(&w, &c, 0.5, FM__AXIS_CHANNELS, deps[d]);
        for (int i = 0; i < 200; i++) {
            uint64_t point = 0;
            double begin = cpu_us();
            CHECK(fm__exec_submit(w.exec, &c.run, &point, why));
            CHECK(fm__exec_wait(w.exec, point, &c.run, why));
            double us = (cpu_us() - begin) / LAYERS;
            least = us < least ? us : least;
        }
        printf("%s: %.3f us for each divided layer\n", fm__deps_name(deps[d]), least);
        assert_true(least <= 20);
        way_finish(&w);
    }
    run_finish(&c.run);
    for (int u = 0; u < 2; u++)
        fm__device_destroy(&c.units[u]);
    fm__tape_destroy(&c.tape);
    fixture_finish(&c.f);
}

/* ---- failures ---- */

static void a_failing_unit_ends_the_run(void **state) {
    (void)state;
    for (int lost = 0; lost < 2; lost++)
        for (uint32_t unit = 0; unit < 2; unit++) {
            chain c;
            fm__null_options options[2] = {{.ops_per_ns = 100}, {.ops_per_ns = 100}};
            *(lost ? &options[unit].lose_at : &options[unit].fail_submit_at) = 2;
            chain_init(&c, options[0], options[1], ROWS);
            way w;
            way_init(&w, &c, 0.5, FM__AXIS_CHANNELS, FM__DEPS_EVENT);
            way_run(&w, &c);
            uint64_t point = 0;
            fm_error error = {0};
            fm_status status = fm__exec_submit(w.exec, &c.run, &point, &error);
            if (status == FM_OK)
                status = fm__exec_wait(w.exec, point, &c.run, &error);
            assert_int_equal(status, FM_ERROR_DEVICE);
            assert_string_equal(error.place, unit == 0 ? "gpu" : "cpu");
            if (!lost)
                way_run(&w, &c); /* it only refused once */
            way_finish(&w);
            chain_finish(&c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_takes_what_the_rates_allow),
        cmocka_unit_test(dependencies_decide_the_overlap),
        cmocka_unit_test(the_search_finds_the_share_of_the_rates),
        cmocka_unit_test(the_search_counts_all_costs),
        cmocka_unit_test(the_gate_ends_on_the_fastest_arm),
        cmocka_unit_test(scheduling_a_divided_layer_takes_little),
        cmocka_unit_test(a_failing_unit_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
