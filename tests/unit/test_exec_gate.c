/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate in virtual time: the cases of released traces, what probes may lose, noise, unequal
 * work, hopeless and failed arms, tight memory, and recorded traces (data/gate).
 */
#include "exec/gate.h"
#include "test.h"

#include "base/base.h"

/* ---- a machine whose arms take what a test says ---- */

typedef struct world world;
typedef double cost_of(const world *w, uint32_t arm, uint64_t call); /* ns of a call of work 1 */

struct world {
    fm__gate gate;
    cost_of *cost;
    double base[FM__GATE_ARMS];
    double after_probe;     /* the call after a call of an inactive arm takes that much more */
    double after_change;    /* the first call after any change of arm takes that much more */
    double noise, outliers; /* deviation; share of calls that take half as much again */
    uint32_t work_range;    /* a call's work is 1..work_range; 0: 1 */
    bool tight;
    fm__random random;
    uint32_t last;
    bool after; /* the call before was an inactive arm's */
    uint64_t call;
    double total, best; /* ns: all calls, and the best arm's at each of them */
    uint64_t events[FM__GATE_EXPIRED + 1];
    uint64_t switched_at; /* call of the last switch */
    double highest_share; /* of lost in spent, from call 1000 on */
};

static double steady(const world *w, uint32_t arm, uint64_t call) {
    (void)call;
    return w->base[arm];
}

static const char *const NAMES[FM__GATE_ARMS] = {"gpu", "cpu", "split", "gpu-eager", "npu", "two"};

static void world_init(world *w, cost_of *cost, const double *base, const double *predicted,
                       uint32_t n_arm) {
    memset(w, 0, sizeof *w);
    memcpy(w->base, base, n_arm * sizeof *base);
    w->cost = cost;
    w->last = UINT32_MAX;
    fm__random_seed(&w->random, 11);
    fm__gate_init(&w->gate, NULL, NAMES, predicted, NULL, n_arm);
}

static double draw(world *w, uint32_t arm, double work) {
    double ns = w->cost(w, arm, w->call) * work;
    if (w->after)
        ns *= 1 + w->after_probe;
    if (w->last != UINT32_MAX && arm != w->last)
        ns *= 1 + w->after_change;
    if (w->noise > 0) {
        double factor = 1 + w->noise * (double)fm__random_normal(&w->random);
        ns *= factor > 0.5 ? factor : 0.5;
    }
    if (w->outliers > 0 && fm__random_double(&w->random) < w->outliers)
        ns *= 1.5;
    return ns;
}

static void world_call(world *w) {
    fm__gate *g = &w->gate;
    uint32_t arm = fm__gate_choose(g, w->tight);
    assert_true(arm < g->n_arm);
    assert_int_equal(fm__gate_choose(g, w->tight), arm); /* to ask twice changes nothing */
    double work = w->work_range > 1 ? 1 + (double)(fm__random_next(&w->random) % w->work_range) : 1;
    double best = w->cost(w, 0, w->call);
    for (uint32_t i = 1; i < g->n_arm; i++)
        best = w->cost(w, i, w->call) < best ? w->cost(w, i, w->call) : best;
    double ns = draw(w, arm, work);
    w->after = arm != g->active;
    w->last = arm;
    w->total += ns;
    w->best += best * work;
    fm__gate_feed(g, arm, ns, work);
    w->events[g->event]++;
    assert_true(strlen(g->reason) > 0);
    if (g->event == FM__GATE_SWITCH)
        w->switched_at = w->call;
    w->call++;
    if (w->call >= 1000 && g->lost_ns / g->spent_ns > w->highest_share)
        w->highest_share = g->lost_ns / g->spent_ns;
}

static void world_run(world *w, uint64_t calls) {
    for (uint64_t end = w->call + calls; w->call < end;)
        world_call(w);
}

static void within_budget(const world *w) {
    assert_true(w->gate.lost_ns <= 0.01 * w->gate.spent_ns);
}

/* ---- the five cases ---- */

static double one_outlier(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (call == 500 && arm == w->gate.active ? 1.5 : 1);
}

static void one_outlier_does_not_switch(void **state) {
    (void)state;
    world w;
    world_init(&w, one_outlier, (double[]){1600e6, 1490e6}, (double[]){1600e6, 1500e6}, 2);
    world_run(&w, 1000);
    assert_int_equal(w.gate.active, 1);
    assert_int_equal(w.gate.switches, 0);
    assert_int_equal(w.events[FM__GATE_DRIFT], 0);
    assert_int_equal(w.gate.probes, 4); /* probation only */
    within_budget(&w);
}

enum { SLOWS_AT = 500 };

static double split_slows(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (arm == 2 && call >= SLOWS_AT ? 1.2 : 1);
}

static void a_lasting_slowdown_switches(void **state) {
    (void)state;
    /* What the other arm gains after the change: 11.7 %, 6.7 %, 4.2 %. */
    static const double gpu[] = {106, 112, 115};
    for (size_t i = 0; i < 3; i++) {
        world w;
        world_init(&w, split_slows, (double[]){gpu[i] * 1e6, 140e6, 100e6},
                   (double[]){110e6, 160e6, 100e6}, 3);
        world_run(&w, 1000);
        assert_int_equal(w.gate.active, 0);
        assert_int_equal(w.gate.switches, 1);
        assert_true(w.switched_at - SLOWS_AT < FM__GATE_SWITCH_CALLS);
        assert_int_equal(w.events[FM__GATE_DRIFT], 1);
        assert_int_equal(w.gate.arms[1].calls, 0);
        within_budget(&w);
        /* against an oracle that changes with the arms: the calls until the switch and the probes
         */
        assert_true(w.total - w.best <
                    FM__GATE_SWITCH_CALLS * (120e6 - gpu[i] * 1e6) + 0.01 * w.gate.spent_ns);
    }
}

static void probes_that_slow_the_next_call(void **state) {
    (void)state;
    for (int harsh = 0; harsh < 2; harsh++) {
        world w;
        world_init(&w, steady, (double[]){120e6, 130e6, 100e6, 125e6},
                   (double[]){120e6, 128e6, 100e6, 124e6}, 4);
        *(harsh ? &w.after_probe : &w.after_change) = 0.25;
        world_run(&w, 1000);
        assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
        assert_int_equal(w.gate.active, 2);
        within_budget(&w);
        assert_true(w.total <= 1.01 * w.best);
        double total = w.total, best = w.best;
        uint64_t probes = w.gate.probes;
        world_run(&w, 10000); /* steady state: nothing is probed */
        assert_true(w.total - total <= 1.0000001 * (w.best - best));
        assert_int_equal(w.gate.probes, probes);
    }
}

static double all_slow(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (call >= 500 ? 1.3 : 1);
}

static void both_drift_together(void **state) {
    (void)state;
    world w;
    world_init(&w, all_slow, (double[]){110e6, 100e6}, (double[]){110e6, 100e6}, 2);
    world_run(&w, 1000);
    assert_int_equal(w.gate.switches, 0);
    assert_int_equal(w.gate.active, 1);
    assert_int_equal(w.events[FM__GATE_DRIFT], 1);
    assert_int_equal(w.events[FM__GATE_ALL_DRIFT], 1);
    assert_true(w.gate.reference > 129e6 && w.gate.reference < 131e6);
    within_budget(&w);
    assert_true(w.total <= 1.01 * w.best);
    uint64_t probes = w.gate.probes;
    world_run(&w, 10000);
    assert_int_equal(w.gate.probes, probes); /* the new time is the reference */
}

/* ---- what probation loses ---- */

static void probation_keeps_to_its_budget(void **state) {
    (void)state;
    for (uint32_t n_arm = 1; n_arm <= FM__GATE_ARMS; n_arm++)
        for (int known = 0; known < 2; known++)
            for (double slower = 1; slower < 1.301; slower += 0.05)
                for (double scale = 1e3; scale < 2e11; scale *= 100) {
                    double base[FM__GATE_ARMS];
                    for (uint32_t i = 0; i < n_arm; i++)
                        base[i] = scale * (i == 0 ? 1 : slower);
                    world w;
                    world_init(&w, steady, base, known ? base : NULL, n_arm);
                    world_run(&w, 1000);
                    assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
                    within_budget(&w);
                    assert_true(w.total <= 1.01 * w.best);
                    assert_int_equal(w.gate.arms[w.gate.active].calls >= 900, 1);
                    /* and what it says it lost is what it lost */
                    double lost = w.total - w.best;
                    assert_true(lost - w.gate.lost_ns < 1e-6 * w.total);
                }
}

/* At every call, not only at the 1,000th, the loss is within what the rules lend. */
static void early_loss_is_lent_only(void **state) {
    (void)state;
    for (int known = 0; known < 2; known++) {
        static const double base[] = {100e6, 130e6, 125e6, 129e6, 120e6, 130e6};
        world w;
        world_init(&w, steady, base, known ? base : NULL, 6);
        double lent = 0.01 * 100e6 * (known ? FM__GATE_LENT_KNOWN : FM__GATE_LENT_UNKNOWN);
        for (int i = 0; i < 2000; i++) {
            world_call(&w);
            double earned = 0.01 * w.gate.spent_ns;
            /* unknown arms are expected to lose 15 % and may lose 30: half a block more */
            double surprise = known ? 0 : 4 * 0.15 * 100e6;
            assert_true(w.gate.lost_ns <= (earned > lent ? earned : lent) + surprise + 1);
        }
        assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
    }
}

static void the_best_arm_is_found_from_nothing(void **state) {
    (void)state;
    for (uint32_t best = 0; best < 4; best++) {
        double base[] = {140e6, 120e6, 110e6, 130e6};
        base[best] = 70e6;
        world w;
        world_init(&w, steady, base, NULL, 4);
        world_run(&w, 3000);
        assert_int_equal(w.gate.active, best);
        within_budget(&w);
        double total = w.total, ideal = w.best;
        world_run(&w, 3000);
        assert_true(w.total - total <= 1.01 * (w.best - ideal));
    }
}

/* A prediction that is wrong by a factor: calls are lost one by one, not a block at once. */
static void a_cliff_is_left_at_once(void **state) {
    (void)state;
    world w;
    world_init(&w, steady, (double[]){100e6, 500e6}, (double[]){100e6, 101e6}, 2);
    world_run(&w, 300);
    assert_int_equal(w.gate.arms[1].calls, 1);
    world_run(&w, 700);
    within_budget(&w);
    assert_true(w.gate.arms[1].calls <= 2);
    world_run(&w, 5000);
    within_budget(&w);
    assert_int_equal(w.gate.active, 0);
    assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
    assert_true(w.gate.arms[1].calls <= 4);
}

/* What an arm's very first call takes for itself is paid back, and does not speak against it. */
static double slow_to_begin(const world *w, uint32_t arm, uint64_t call) {
    (void)call;
    return w->base[arm] * (arm == 1 && w->gate.arms[1].calls == 0 ? 8 : 1);
}

static void a_slow_first_call_is_forgiven(void **state) {
    (void)state;
    world w;
    world_init(&w, slow_to_begin, (double[]){100e6, 80e6}, (double[]){100e6, 101e6}, 2);
    world_run(&w, 1000);
    assert_int_equal(w.gate.active, 1);
    within_budget(&w);
}

/* Arms nearer than the hysteresis: the faster one is found all the same. */
static void near_arms_get_a_full_window(void **state) {
    (void)state;
    world w;
    world_init(&w, steady, (double[]){100e6, 98.5e6}, (double[]){100e6, 105e6}, 2);
    world_run(&w, 100);
    assert_int_equal(w.gate.active, 1);
    assert_int_equal(w.gate.arms[1].n_sample, FM__GATE_WINDOW);
    w.noise = 0.01;
    world_run(&w, 2000);
    assert_int_equal(w.gate.switches, 1);
}

/* ---- noise, unequal work ---- */

static void noise_does_not_switch(void **state) {
    (void)state;
    static const double others[] = {1.0, 1.02, 1.05, 1.2};
    for (size_t i = 0; i < 4; i++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            world w;
            double base[] = {others[i] * 100e6, 100e6, 115e6};
            world_init(&w, steady, base, NULL, 3);
            fm__random_seed(&w.random, seed);
            w.noise = 0.05;
            w.outliers = 0.02;
            world_run(&w, 10000);
            assert_true(w.gate.switches <= 4);
            within_budget(&w);
            assert_true(w.highest_share <= 0.0101);
            assert_true(w.gate.active != 2);
        }
}

static void unequal_work_compares(void **state) {
    (void)state;
    world w;
    world_init(&w, split_slows, (double[]){106e3, 140e3, 100e3}, (double[]){110e3, 160e3, 100e3},
               3);
    w.work_range = 500;
    world_run(&w, 1000);
    assert_int_equal(w.gate.active, 0);
    assert_int_equal(w.gate.switches, 1);
    assert_true(w.switched_at - SLOWS_AT < FM__GATE_SWITCH_CALLS);
    within_budget(&w);
}

/* ---- drift of other kinds ---- */

/* The processor gets busy: cpu and split slow down, the gpu alone does not. */
static double busy_processor(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (call >= 500 && arm != 0 ? 1.4 : 1);
}

static void an_arm_that_kept_its_time_is_found(void **state) {
    (void)state;
    world w;
    world_init(&w, busy_processor, (double[]){118e6, 108e6, 100e6}, (double[]){118e6, 108e6, 100e6},
               3);
    world_run(&w, 1000);
    assert_int_equal(w.gate.active, 0);
    assert_true(w.events[FM__GATE_NO_SWITCH] >= 1); /* cpu, which changed alike */
    assert_true(w.switched_at - 500 < 2 * FM__GATE_SWITCH_CALLS);
    assert_int_equal(w.events[FM__GATE_ALL_DRIFT], 0);
    assert_int_equal(w.gate.switches, 1);
    within_budget(&w);
}

/* The arm that was left after a drift recovers: the gate looks back, ever more rarely. */
static double split_recovers(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (arm == 1 && call >= 500 && call < 1000 ? 1.4 : 1);
}

static void an_arm_that_recovers_is_found(void **state) {
    (void)state;
    world w;
    world_init(&w, split_recovers, (double[]){112e6, 100e6}, (double[]){112e6, 100e6}, 2);
    world_run(&w, 1000);
    assert_int_equal(w.gate.active, 0);
    assert_int_equal(w.gate.switches, 1);
    world_run(&w, 1000);
    assert_int_equal(w.gate.active, 1);
    assert_int_equal(w.gate.switches, 2);
    assert_true(w.switched_at < 1500); /* as long after as it had lasted */
    within_budget(&w);
    uint64_t probes = w.gate.probes;
    world_run(&w, 20000);
    assert_int_equal(w.gate.probes, probes);
}

/* Everything gets faster, the inactive arm more so. */
static double load_ends(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (call < 500 ? 1 : arm == 0 ? 0.85 : 0.7);
}

static void a_speed_up_is_looked_into(void **state) {
    (void)state;
    world w;
    world_init(&w, load_ends, (double[]){100e6, 112e6}, (double[]){100e6, 112e6}, 2);
    world_run(&w, 1000);
    assert_int_equal(w.gate.active, 1);
    within_budget(&w);
}

/* Slower for good, but still the best by little: compared again and again, each time later. */
static double slower_but_best(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (call >= 500 && arm == 1 ? 1.2 : 1);
}

static void comparisons_back_off(void **state) {
    (void)state;
    world w;
    world_init(&w, slower_but_best, (double[]){121e6, 100e6}, (double[]){121e6, 100e6}, 2);
    world_run(&w, 20000);
    assert_int_equal(w.gate.switches, 0);
    assert_int_equal(w.events[FM__GATE_DRIFT], 1);
    assert_true(w.events[FM__GATE_NO_SWITCH] >= 5);
    assert_true(w.events[FM__GATE_NO_SWITCH] <= 12); /* log2 of 20,000 / 32 and the first */
    within_budget(&w);
}

/* ---- arms that may not run ---- */

static void a_hopeless_arm_is_never_run(void **state) {
    (void)state;
    world w;
    world_init(&w, all_slow, (double[]){100e6, 50e6, 105e6}, (double[]){100e6, 131e6, 105e6}, 3);
    w.noise = 0.1;
    world_run(&w, 5000);
    assert_true(w.gate.arms[1].hopeless);
    assert_int_equal(w.gate.arms[1].calls, 0);
    world_init(&w, steady, (double[]){100e6, 129e6}, (double[]){100e6, 129e6}, 2);
    world_run(&w, 1000);
    assert_int_equal(w.gate.arms[1].calls, 4); /* not hopeless: a probation */
}

/* ---- predictions that do not hold any more ---- */

/* A world whose calls have the work that predictions were measured with. */
static void predicted_world(world *w, cost_of *cost, const double *base, const double *predicted,
                            uint32_t n_arm) {
    world_init(w, cost, base, NULL, n_arm);
    fm__gate_init(&w->gate, &(fm__gate_options){.work = 1}, NAMES, predicted, NULL, n_arm);
}

/* The active arm comes to take 1.5 times what was predicted: the arm that was hopeless is the best
 * now. */
static double split_is_slow(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (call >= 500 && arm == 2 ? 1.5 : 1);
}

static void drift_expires_predictions(void **state) {
    (void)state;
    static const double base[] = {135e6, 190e6, 100e6};
    for (int from_start = 0; from_start < 2; from_start++) {
        world w;
        predicted_world(&w, split_is_slow, base, base, 3);
        if (from_start)
            w.call = 500; /* it was another day when they were made */
        uint64_t begin = w.call;
        assert_true(w.gate.arms[0].hopeless && w.gate.arms[1].hopeless);
        world_run(&w, 500);
        if (!from_start) {
            assert_int_equal(w.events[FM__GATE_EXPIRED], 0);
            assert_int_equal(w.gate.arms[0].calls + w.gate.arms[1].calls, 0);
        }
        while (w.events[FM__GATE_EXPIRED] == 0 && w.call < 600)
            world_call(&w);
        assert_int_equal(w.events[FM__GATE_EXPIRED], 1);
        assert_true(w.gate.expired);
        if (!from_start)
            assert_int_equal(w.call - begin - 500, FM__GATE_EXPIRE_CALLS);
        if (!from_start)
            assert_true(w.gate.reference > 149e6 && w.gate.reference < 151e6);
        world_run(&w, 2000);
        assert_int_equal(w.gate.active, 0);
        assert_int_equal(w.gate.switches, 1);
        assert_int_equal(w.events[FM__GATE_EXPIRED], 1); /* once */
        within_budget(&w);
        double total = w.total, best = w.best;
        world_run(&w, 2000);
        assert_true(w.total - total <= 1.01 * (w.best - best));
    }
}

/* Also where everything got faster than it was predicted to be. */
static double machine_is_fast(const world *w, uint32_t arm, uint64_t call) {
    (void)call;
    return w->base[arm] * (arm == 1 ? 0.4 : 0.6);
}

static void predictions_too_slow_expire(void **state) {
    (void)state;
    static const double base[] = {100e6, 140e6};
    world w;
    predicted_world(&w, machine_is_fast, base, base, 2);
    world_run(&w, 1000);
    assert_int_equal(w.events[FM__GATE_EXPIRED], 1);
    assert_int_equal(w.gate.active, 1);
    within_budget(&w);
}

/* Noise, outliers, a disturbance that passes, 25 % for good, and calls of other work: all stay. */
static double disturbed(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * (call >= 300 && call < 300 + FM__GATE_WINDOW ? 3 : call > 600 ? 1.25 : 1);
}

static void predictions_outlast_noise(void **state) {
    (void)state;
    static const double base[] = {100e6, 140e6};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world w;
        predicted_world(&w, disturbed, base, base, 2);
        fm__random_seed(&w.random, seed);
        w.noise = 0.05;
        w.outliers = 0.1;
        w.gate.options.expire = 1.4; /* 25 % and the noise stay below */
        world_run(&w, 5000);
        assert_int_equal(w.events[FM__GATE_EXPIRED], 0);
        assert_int_equal(w.gate.arms[1].calls, 0);
    }
    world w;
    static const double wrong[] = {50e6, 70e6};
    predicted_world(&w, steady, base, wrong, 2);
    w.gate.options.work = 2; /* no call is like the one that was predicted */
    world_run(&w, 2000);
    assert_int_equal(w.events[FM__GATE_EXPIRED], 0);
    w.gate.options.work = 0;
    world_run(&w, 2000);
    assert_int_equal(w.events[FM__GATE_EXPIRED], 0);
}

/* ---- an H200 with the weights in its memory: docs/results, 147 tokens/s ---- */

enum { GPU, CPU, SPLIT, EAGER };

/* gpu 6.8 ms, cpu (products on the host) 49.8; hand-overs of 10 us at four products in each of 28
   layers make a split slower; the host waiting for each step costs about as much again. */
static const double h200[] = {6.8e6, 49.8e6, 9.1e6, 10.2e6};

static double lost_by(world *w, uint64_t calls) {
    world_run(w, calls);
    return w->total / w->best - 1;
}

/* With predictions nobody but the gpu ever runs. Without any, what the looks at the others cost is
   seen by the user in the first tokens: the figures are printed, and are why an engine makes an
   estimate when it loads. */
static void the_gpu_alone_is_left_alone(void **state) {
    (void)state;
    world w;
    world_init(&w, steady, h200, h200, 4);
    assert_true(lost_by(&w, 100) <= 1e-12);
    assert_true(lost_by(&w, 900) <= 1e-12);
    assert_int_equal(w.gate.active, GPU);
    assert_int_equal(w.gate.probes, 0);
    /* An arm within what is not hopeless: still within 1 % from the first 100 tokens on. */
    world_init(&w, steady, (double[]){6.8e6, 49.8e6, 9.1e6, 8.2e6},
               (double[]){6.8e6, 49.8e6, 9.1e6, 8.2e6}, 4);
    double first = lost_by(&w, 100);
    printf("gpu-eager 1.2 times the gpu, predicted: the first 100 tokens lose %.2f %%\n",
           100 * first);
    assert_true(first <= 0.01);
    assert_true(lost_by(&w, 900) <= 0.01);
    assert_int_equal(w.gate.arms[CPU].calls + w.gate.arms[SPLIT].calls, 0);
    assert_int_equal(w.gate.active, GPU);
    /* Nothing is known. */
    world_init(&w, steady, h200, NULL, 4);
    first = lost_by(&w, 100);
    double thousand = lost_by(&w, 900), ten = lost_by(&w, 9000);
    printf("no predictions: the first 100 tokens lose %.1f %%, 1,000 %.2f %%, 10,000 %.2f %%\n",
           100 * first, 100 * thousand, 100 * ten);
    assert_int_equal(w.gate.active, GPU);
    assert_true(thousand < 0.03 && ten <= 0.01);
}

/* A first arm whose first calls are slow loses to a second one, which it is faster than. */
static double slow_at_first(const world *w, uint32_t arm, uint64_t call) {
    return arm == 0 && call < 12 ? 9e6 : w->base[arm];
}

static void a_slow_start_is_forgiven(void **state) {
    (void)state;
    world w;
    world_init(&w, slow_at_first, (double[]){3.5e6, 7.7e6}, NULL, 2);
    world_run(&w, 20);
    assert_int_equal(w.gate.active, 1);
    world_run(&w, 80);
    assert_int_equal(w.gate.active, 0);
    world_run(&w, 900);
    assert_int_equal(w.gate.active, 0);
    assert_int_equal(w.gate.switches, 2); /* away, and back */
}

static void removal(void **state) {
    (void)state;
    world w;
    static const double base[] = {100e6, 110e6, 120e6, 200e6};
    world_init(&w, steady, base, base, 4);
    world_run(&w, 500);
    assert_int_equal(w.gate.active, 0);
    assert_true(fm__gate_remove(&w.gate, 0));
    assert_int_equal(w.gate.active, 1);
    assert_int_equal(w.gate.event, FM__GATE_SWITCH);
    assert_non_null(strstr(w.gate.reason, "gpu failed"));
    world_run(&w, 100);
    assert_int_equal(w.gate.active, 1);
    assert_true(fm__gate_remove(&w.gate, 2)); /* not the active one */
    assert_int_equal(w.gate.active, 1);
    assert_true(fm__gate_remove(&w.gate, 1));
    assert_int_equal(w.gate.active, 3); /* hopeless before: the only one now */
    world_run(&w, 100);
    assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
    assert_false(fm__gate_remove(&w.gate, 3));
}

/* An arm may fail at any moment: whatever is left goes on. */
static void removal_at_any_moment(void **state) {
    (void)state;
    for (uint64_t at = 0; at < 60; at++)
        for (uint32_t arm = 0; arm < 3; arm++)
            for (int drifts = 0; drifts < 2; drifts++) {
                world w;
                static const double base[] = {106e6, 110e6, 100e6};
                world_init(&w, drifts ? split_slows : steady, base, base, 3);
                world_run(&w, drifts ? SLOWS_AT : 0);
                world_run(&w, at);
                assert_true(fm__gate_remove(&w.gate, arm));
                uint64_t calls = w.gate.arms[arm].calls;
                w.last = UINT32_MAX;
                world_run(&w, 1000);
                assert_int_equal(w.gate.arms[arm].calls, calls);
                assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
                uint32_t best = arm == 0 ? drifts ? 1 : 2 : drifts || arm == 2 ? 0 : 2;
                assert_int_equal(w.gate.active, best);
            }
}

static void tight_memory_forbids(void **state) {
    (void)state;
    world w;
    static const double base[] = {100e6, 90e6, 104e6};
    world_init(&w, steady, base, (double[]){100e6, 102e6, 104e6}, 3);
    w.gate.arms[1].enlarges = true;
    w.tight = true;
    world_run(&w, 1000);
    assert_int_equal(w.gate.arms[1].calls, 0);
    assert_true(w.gate.arms[2].calls > 0);
    assert_int_equal(w.gate.forbidden, 1); /* said once, not at each call */
    assert_int_equal(w.events[FM__GATE_FORBIDDEN], 1);
    assert_int_equal(w.gate.phase, FM__GATE_PROBATION);
    w.tight = false;
    world_run(&w, 100);
    assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
    assert_int_equal(w.gate.active, 1);
}

/* It gets tight in the middle of a probation, and of a comparison. */
static void memory_gets_tight_meanwhile(void **state) {
    (void)state;
    for (uint64_t at = 0; at < 30; at++) {
        world w;
        static const double base[] = {106e6, 110e6, 100e6};
        world_init(&w, split_slows, base, base, 3);
        w.gate.arms[0].enlarges = w.gate.arms[1].enlarges = true;
        world_run(&w, at);
        w.tight = true;
        uint64_t probes = w.gate.probes;
        world_run(&w, 50);
        assert_int_equal(w.gate.probes, probes);
        w.tight = false;
        world_run(&w, SLOWS_AT - w.call + at);
        w.tight = true;
        probes = w.gate.arms[0].probes + w.gate.arms[1].probes;
        world_run(&w, 50);
        assert_int_equal(w.gate.arms[0].probes + w.gate.arms[1].probes, probes);
        w.tight = false;
        world_run(&w, 1000);
        assert_int_equal(w.gate.active, 0);
        assert_true(w.gate.phase != FM__GATE_PROBATION);
        within_budget(&w);
    }
}

/* ---- machines of all kinds ---- */

static double between(fm__random *random, double low, double high) {
    return low + (high - low) * fm__random_double(random);
}

/* Steady machines: the best of the arms that may run is found, whatever was predicted. */
static void random_machines(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 5);
    for (int n = 0; n < 400; n++) {
        double base[FM__GATE_ARMS], predicted[FM__GATE_ARMS], least = 1e300;
        uint32_t n_arm = 1 + (uint32_t)(fm__random_next(&random) % FM__GATE_ARMS);
        bool known = fm__random_next(&random) % 2 == 0;
        for (uint32_t i = 0; i < n_arm; i++) {
            base[i] = 1e6 * between(&random, 1, 2);
            predicted[i] = base[i] * between(&random, 0.9, 1.1);
        }
        world w;
        world_init(&w, steady, base, known ? predicted : NULL, n_arm);
        w.after_change = between(&random, 0, 0.3);
        w.work_range = 1 + (uint32_t)(fm__random_next(&random) % 8);
        for (uint32_t i = 0; i < n_arm; i++)
            if (!w.gate.arms[i].hopeless && base[i] < least)
                least = base[i];
        world_run(&w, 6000);
        assert_int_equal(w.gate.phase, FM__GATE_LOCKED);
        assert_true(w.base[w.gate.active] == least);
        within_budget(&w);
        for (uint32_t i = 0; i < n_arm; i++)
            assert_true(!w.gate.arms[i].hopeless || w.gate.arms[i].calls == 0);
    }
}

/* Steps of all kinds, noise, tight memory, failing arms: the budget holds, and in the end the gate
   is on an arm that is not much worse than the best. */
static double step_size[FM__GATE_ARMS][4];

static double random_steps(const world *w, uint32_t arm, uint64_t call) {
    return w->base[arm] * step_size[arm][call / 1500 % 4];
}

static void random_changes(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 6);
    double total = 0, best = 0;
    for (int n = 0; n < 300; n++) {
        double base[FM__GATE_ARMS];
        uint32_t n_arm = 2 + (uint32_t)(fm__random_next(&random) % (FM__GATE_ARMS - 1));
        for (uint32_t i = 0; i < n_arm; i++) {
            base[i] = 1e6 * between(&random, 1, 1.3);
            for (int s = 0; s < 4; s++)
                step_size[i][s] = s > 0 && n % 2 == 0 ? between(&random, 0.8, 1.4) : 1;
        }
        world w;
        world_init(&w, random_steps, base, NULL, n_arm);
        fm__random_seed(&w.random, (uint64_t)n);
        w.noise = between(&random, 0, 0.05);
        w.outliers = 0.01;
        for (int part = 0; part < 60; part++) {
            w.tight = fm__random_next(&random) % 4 == 0;
            world_run(&w, 100);
        }
        assert_true(w.highest_share <= 0.0105);
        assert_true(w.gate.switches < 30);
        total += w.total;
        best += w.best;
    }
    /* best: an oracle that changes at once, and pays nothing */
    assert_true(total < 1.06 * best);
}

static void odd_samples(void **state) {
    (void)state;
    fm__gate g;
    fm__gate_init(&g, &(fm__gate_options){.probation = 100}, NAMES, (double[]){-1, 0}, NULL, 2);
    assert_int_equal(g.options.probation, FM__GATE_WINDOW);
    for (int i = 0; i < 100; i++) {
        uint32_t arm = fm__gate_choose(&g, false);
        fm__gate_feed(&g, arm, 0, 1); /* a clock that does not move */
    }
    assert_int_equal(g.phase, FM__GATE_LOCKED);
    uint64_t calls = g.arms[1 - g.active].calls;
    fm__gate_feed(&g, 1 - g.active, 5, 1); /* an arm that nobody asked for */
    assert_int_equal(g.arms[1 - g.active].calls, calls + 1);
    assert_non_null(strstr(g.reason, "unasked"));
    assert_string_equal(fm__gate_event_name(FM__GATE_ALL_DRIFT), "all-drift");
    assert_string_equal(fm__gate_event_name((fm__gate_event)99), "unknown");
}

/* ---- traces (data/gate/README.md has the format) ---- */

typedef struct trace {
    world w;
    char names[FM__GATE_ARMS][32];
    double predicted[FM__GATE_ARMS];
    uint32_t n_arm;
    char active[32];
    double switches, probes, lost, total, after;
} trace;

static double from_row(const world *w, uint32_t arm, uint64_t call) {
    (void)call;
    return w->base[arm];
}

static void trace_begin(trace *t) {
    const char *names[FM__GATE_ARMS];
    bool known = false;
    for (uint32_t i = 0; i < t->n_arm; i++) {
        names[i] = t->names[i];
        known = known || t->predicted[i] > 0;
    }
    world_init(&t->w, from_row, t->predicted, known ? t->predicted : NULL, t->n_arm);
    for (uint32_t i = 0; i < t->n_arm; i++)
        t->w.gate.arms[i].name = names[i];
    t->w.after_change = t->after;
}

/* "calls,name,name...", "predicted,ms,ms..." or "calls,ms,ms...". */
static void trace_line(trace *t, char *line) {
    char *cell = strtok(line, ",\n");
    assert_non_null(cell);
    char first[32];
    snprintf(first, sizeof first, "%s", cell);
    uint32_t n = 0;
    while ((cell = strtok(NULL, ",\n")) != NULL) {
        assert_true(n < FM__GATE_ARMS);
        if (strcmp(first, "calls") == 0)
            snprintf(t->names[n], sizeof t->names[n], "%s", cell);
        else if (strcmp(first, "predicted") == 0)
            t->predicted[n] = atof(cell) * 1e6;
        else
            t->w.base[n] = atof(cell) * 1e6;
        n++;
    }
    if (strcmp(first, "calls") == 0)
        t->n_arm = n;
    assert_int_equal(n, t->n_arm);
    if (strcmp(first, "calls") == 0 || strcmp(first, "predicted") == 0)
        trace_begin(t);
    else
        world_run(&t->w, (uint64_t)atoll(first));
}

static void replay(const char *path) {
    trace t = {.switches = 1e9, .probes = 1e9, .lost = 0.01, .total = 1e9};
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "#! active %31s", t.active) == 1 ||
            sscanf(line, "#! switches %lf", &t.switches) == 1 ||
            sscanf(line, "#! probes %lf", &t.probes) == 1 ||
            sscanf(line, "#! lost %lf", &t.lost) == 1 ||
            sscanf(line, "#! after %lf", &t.after) == 1 ||
            sscanf(line, "#! total %lf", &t.total) == 1)
            continue;
        assert_true(strncmp(line, "#!", 2) != 0);
        if (line[0] != '#' && line[0] != '\n')
            trace_line(&t, line);
    }
    fclose(file);
    const fm__gate *g = &t.w.gate;
    if (strcmp(g->arms[g->active].name, t.active) != 0 || (double)g->switches > t.switches ||
        (double)g->probes > t.probes || g->lost_ns > t.lost * g->spent_ns ||
        t.w.total > t.total * t.w.best)
        fail_msg("%s: active %s, %g switches, %g probes, lost %g, total %g", path,
                 g->arms[g->active].name, (double)g->switches, (double)g->probes,
                 g->lost_ns / g->spent_ns, t.w.total / t.w.best);
}

static void traces_replay(void **state) {
    (void)state;
    DIR *folder = opendir("gate");
    assert_non_null(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[300];
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strcmp(dot, ".csv") != 0)
            continue;
        snprintf(path, sizeof path, "gate/%s", entry->d_name);
        replay(path);
        n++;
    }
    closedir(folder);
    assert_true(n >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_outlier_does_not_switch),
        cmocka_unit_test(a_lasting_slowdown_switches),
        cmocka_unit_test(probes_that_slow_the_next_call),
        cmocka_unit_test(both_drift_together),
        cmocka_unit_test(probation_keeps_to_its_budget),
        cmocka_unit_test(early_loss_is_lent_only),
        cmocka_unit_test(the_best_arm_is_found_from_nothing),
        cmocka_unit_test(a_cliff_is_left_at_once),
        cmocka_unit_test(a_slow_first_call_is_forgiven),
        cmocka_unit_test(near_arms_get_a_full_window),
        cmocka_unit_test(noise_does_not_switch),
        cmocka_unit_test(unequal_work_compares),
        cmocka_unit_test(an_arm_that_kept_its_time_is_found),
        cmocka_unit_test(an_arm_that_recovers_is_found),
        cmocka_unit_test(a_speed_up_is_looked_into),
        cmocka_unit_test(comparisons_back_off),
        cmocka_unit_test(a_hopeless_arm_is_never_run),
        cmocka_unit_test(drift_expires_predictions),
        cmocka_unit_test(predictions_too_slow_expire),
        cmocka_unit_test(predictions_outlast_noise),
        cmocka_unit_test(the_gpu_alone_is_left_alone),
        cmocka_unit_test(a_slow_start_is_forgiven),
        cmocka_unit_test(removal),
        cmocka_unit_test(removal_at_any_moment),
        cmocka_unit_test(tight_memory_forbids),
        cmocka_unit_test(memory_gets_tight_meanwhile),
        cmocka_unit_test(random_machines),
        cmocka_unit_test(random_changes),
        cmocka_unit_test(odd_samples),
        cmocka_unit_test(traces_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
