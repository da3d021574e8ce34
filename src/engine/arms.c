/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/arms.c: the ways to run a tape, from the units that there are.
 *
 * Owns: which arms an engine has, what each means in shares, and the plans and execs of them. Never
 * does: choose among them (choose.c). Called from: the loading thread, and any thread that holds
 * the engine's lock (an arm is recorded when it is first needed).
 *
 *     cpu        the first host team alone. Where the main unit is a discrete GPU, which holds the
 *                cache: the products only.
 *     gpu        products on the GPU, one submission; what it has no kernel for on the host
 *     gpu-eager  the same, the host waiting for each step
 *     split      products on all units: the last one's share is options.split and the others take
 *                the rest evenly; or op by op as measured; or, between host teams, by their
 *                numbers of threads
 *
 * Without a share of one's own, a calibration or an estimate (calibration.c) a GPU and a host do
 * not split: a guess could be slower than either.
 */
#include "engine/engine.h"

#include <assert.h>
#include <string.h>

/* The unit beside the host teams: what has memory of its own is treated as one, whatever it is. */
static bool is_gpu(const fm__device *device) {
    return strcmp(device->properties.kind, "gpu") == 0 || !device->properties.unified;
}

static bool is_discrete(const fm__device *device) {
    return device && !device->properties.unified;
}

/* ---- what there is ---- */

void fm__arms_find_units(fm_engine *engine, uint32_t lost) {
    const fm_machine *machine = engine->machine;
    engine->n_unit = 0;
    engine->gpu = engine->host = NULL;
    for (uint32_t i = 0; i < machine->n_device; i++) {
        fm__device *device = machine->devices[i];
        if (lost >> i & 1)
            continue;
        engine->units[engine->n_unit++] = device;
        if (is_gpu(device) && !engine->gpu)
            engine->gpu = device;
        if (!is_gpu(device) && !engine->host)
            engine->host = device;
    }
}

static bool can_split(const fm_engine *engine) {
    if (engine->n_unit < 2)
        return false;
    return engine->options.split >= 0 || engine->calibrated || engine->estimated || !engine->gpu;
}

void fm__arms_find(fm_engine *engine) {
    engine->arms = 0;
    if (engine->host)
        engine->arms |= 1u << FM_ARM_CPU;
    if (engine->gpu)
        engine->arms |= 1u << FM_ARM_GPU | 1u << FM_ARM_EAGER;
    if (can_split(engine))
        engine->arms |= 1u << FM_ARM_SPLIT;
}

const char *fm_arm_name(fm_arm arm) {
    static const char *const names[FM__ARM_COUNT] = {[FM_ARM_AUTO] = "auto",
                                                     [FM_ARM_CPU] = "cpu",
                                                     [FM_ARM_GPU] = "gpu",
                                                     [FM_ARM_EAGER] = "gpu-eager",
                                                     [FM_ARM_SPLIT] = "split"};
    return (uint32_t)arm < FM__ARM_COUNT ? names[arm] : "unknown";
}

fm_status fm__arms_check(const fm_engine *engine, fm_arm arm, fm_error *error) {
    if ((uint32_t)arm >= FM__ARM_COUNT)
        return fm__error(error, FM_ERROR_ARGUMENT, "arm", "%d is not an fm_arm", (int)arm);
    if (arm == FM_ARM_AUTO || (engine->arms >> arm & 1))
        return FM_OK;
    if (arm == FM_ARM_SPLIT && engine->n_unit > 1)
        return fm__error(error, FM_ERROR_ARGUMENT, "arm",
                         "split needs a share: give one, or find one with `fusionml calibrate`");
    if (arm == FM_ARM_SPLIT)
        return fm__error(error, FM_ERROR_ARGUMENT, "arm",
                         "there is no arm split, and no share, with one unit");
    char have[64] = "";
    for (uint32_t a = FM_ARM_CPU; a < FM__ARM_COUNT; a++) {
        size_t end = strlen(have);
        if (engine->arms >> a & 1)
            snprintf(have + end, sizeof(have) - end, "%s%s", end ? ", " : "",
                     fm_arm_name((fm_arm)a));
    }
    return fm__error(error, FM_ERROR_ARGUMENT, "arm",
                     "there is no arm %s with these units; there are: %s", fm_arm_name(arm), have);
}

/* ---- what an arm means ---- */

/* The cpu arm leaves a discrete main unit what its memory holds; else it needs the host alone. */
static bool runs_alone(const fm_engine *engine, fm_arm arm) {
    return arm == FM_ARM_CPU && !is_discrete(engine->units[0]);
}

static void set_units(const fm_engine *engine, fm_arm arm, fm__way *way) {
    way->n_unit = 0;
    for (uint32_t u = 0; u < engine->n_unit; u++) {
        if (runs_alone(engine, arm) && engine->units[u] != engine->host)
            continue;
        way->place[way->n_unit] = (uint8_t)u;
        way->units[way->n_unit++] = engine->units[u];
    }
}

void fm__arms_give(const fm_engine *engine, double share, double shares[FM__MAX_UNITS]) {
    uint32_t n = engine->n_unit;
    memset(shares, 0, FM__MAX_UNITS * sizeof(*shares));
    for (uint32_t u = 0; u < n && n > 1; u++)
        shares[u] = u + 1 == n ? share : (1 - share) / (n - 1);
}

void fm__arms_shares(const fm_engine *engine, double shares[FM__MAX_UNITS]) {
    memset(shares, 0, FM__MAX_UNITS * sizeof(*shares));
    if (engine->options.split >= 0)
        fm__arms_give(engine, engine->options.split, shares);
    for (uint32_t u = 0; u < engine->n_unit && engine->options.split < 0 && !engine->gpu; u++)
        shares[u] = engine->units[u]->properties.threads;
}

/* Everything that can be split to one unit. */
static void give_all_to(const fm__way *way, const fm__device *unit, double *shares) {
    for (uint32_t u = 0; u < way->n_unit; u++)
        shares[u] = way->units[u] == unit;
}

fm__plan_options fm__arms_options(const fm_engine *engine) {
    static const fm__deps deps[] = {[FM_DEPS_EVENT] = FM__DEPS_EVENT,
                                    [FM_DEPS_BATCH] = FM__DEPS_BATCH,
                                    [FM_DEPS_EAGER] = FM__DEPS_EAGER,
                                    [FM_DEPS_READY] = FM__DEPS_READY};
    static const fm__axis axes[] = {[FM_AXIS_CHANNELS] = FM__AXIS_CHANNELS,
                                    [FM_AXIS_TOKENS] = FM__AXIS_TOKENS,
                                    [FM_AXIS_AUTO] = FM__AXIS_WHOLE,
                                    [FM_AXIS_PRODUCTS] = FM__AXIS_PRODUCTS};
    const fm_engine_options *o = &engine->options;
    return (fm__plan_options){
        .axis = axes[o->axis],
        .deps = deps[o->deps],
    };
}

static fm__plan_options options_of(const fm_engine *engine, const fm__bucket *bucket, fm_arm arm,
                                   const fm__way *way) {
    fm__plan_options options = fm__arms_options(engine);
    switch (arm) {
    case FM_ARM_CPU:
        if (way->n_unit > 1)
            give_all_to(way, engine->host, options.shares);
        break;
    case FM_ARM_EAGER:
        options.deps = FM__DEPS_EAGER;
        give_all_to(way, engine->gpu, options.shares);
        break;
    case FM_ARM_GPU:
        give_all_to(way, engine->gpu, options.shares);
        break;
    case FM_ARM_SPLIT:
        fm__arms_shares(engine, options.shares);
        if (engine->options.split < 0) {
            options.op_shares = (const double(*)[FM__MAX_UNITS])bucket->op_shares;
            options.axis = bucket->whole_products ? FM__AXIS_PRODUCTS : options.axis;
        }
        break;
    case FM_ARM_AUTO:
        break;
    }
    return options;
}

/* ---- plans and execs ---- */

/* What each unit's part of the products comes to, for reports. */
static void weigh(const fm__bucket *bucket, fm__way *way) {
    const fm__tape *tape = bucket->tape;
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const fm__op *op = &tape->ops[i];
        const fm__plan_op *plan = &way->plan->ops[i];
        if (!fm__is_product(op->kind))
            continue;
        bool output = tape->tensors[op->out].rows == FM__ROWS_OUTPUT;
        for (int k = 0; k < 2 && op->weight[k] != FM__NONE; k++) {
            const fm__weight *w = tape->weights[op->weight[k]];
            for (uint32_t r = 0; r < plan->n_range; r++) {
                uint32_t unit = way->place[plan->ranges[r].unit];
                double n = plan->ranges[r].range.end - plan->ranges[r].range.begin;
                double channels = plan->axis == FM__AXIS_CHANNELS ? n / w->n : 1;
                double rows = plan->axis == FM__AXIS_TOKENS ? n / FM__TOKEN_PARTS : 1;
                way->weight_bytes[unit] += (uint64_t)(channels * (double)w->bytes);
                double *ops = output ? way->ops_of_output : way->ops_of_row;
                ops[unit] += 2.0 * rows * channels * w->n * w->k;
            }
        }
    }
}

fm_status fm__arms_plan(fm_engine *engine, fm__bucket *bucket, fm_arm arm, fm_error *error) {
    fm__way *way = &bucket->ways[arm];
    if (way->plan)
        return FM_OK;
    set_units(engine, arm, way);
    const fm__plan_options options = options_of(engine, bucket, arm, way);
    fm_status status =
        fm__plan_make(&way->plan, bucket->tape, way->units, way->n_unit, &options, error);
    if (status == FM_OK)
        weigh(bucket, way);
    return status;
}

fm_status fm__arms_way(fm_engine *engine, fm__bucket *bucket, fm_arm arm, fm__way **out,
                       fm_error *error) {
    fm__way *way = &bucket->ways[arm];
    fm_status status = fm__arms_plan(engine, bucket, arm, error);
    if (status == FM_OK && !way->exec)
        status =
            fm__exec_create(&way->exec, bucket->tape, way->plan, way->units, way->n_unit, error);
    *out = way;
    return status;
}

static void forget(fm__way *way) {
    fm__exec_destroy(&way->exec);
    fm__plan_destroy(&way->plan);
    *way = (fm__way){0};
}

void fm__arms_forget(fm_engine *engine) {
    engine->timed = NULL;
    for (uint32_t i = engine->n_bucket; i-- > 0;) {
        for (uint32_t arm = 0; arm < FM__ARM_COUNT; arm++)
            forget(&engine->buckets[i].ways[arm]);
    }
}

void fm__arms_forget_one(fm_engine *engine, fm_arm arm) {
    engine->timed = NULL;
    for (uint32_t i = engine->n_bucket; i-- > 0;)
        forget(&engine->buckets[i].ways[arm]);
}

fm_status fm_lab_set_deps(fm_engine *engine, fm_deps deps, fm_error *error) {
    if ((uint32_t)deps > FM_DEPS_READY)
        return fm__error(error, FM_ERROR_ARGUMENT, "deps", "%d is not an fm_deps", (int)deps);
    pthread_mutex_lock(&engine->lock);
    engine->options.deps = deps;
    fm__arms_forget_one(engine, FM_ARM_SPLIT);
    pthread_mutex_unlock(&engine->lock);
    return FM_OK;
}
