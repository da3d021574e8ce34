/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/calibration.c: the shares of the SPLIT arm, and what each arm takes, found by measuring.
 *
 * Owns: which tapes are measured, for how long, and what follows from the results. Never does: time
 * (measure.c), search (exec/tune.h), or keep them (saved.c). Called from: the calibrating thread;
 * an estimate from the loading thread.
 */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

/* Steps of the progress bar that a tape's search and its arms count for. */
enum { TAPE_STEPS = 100, SEARCH_STEPS = 90 };

static const double SECOND_NS = 1e9;
/* What all measurements of a calibration may take, in seconds; each tape gets its part of what is
   left. A search whose few runs take longer is finished all the same. */
static const double BUDGET_S = 24;
/* And where there are two searches for each tape. */
static const double BUDGET_TWICE_S = 48;
/* And of each tape of an estimate. */
static const double ESTIMATE_S = 0.35;
/* Runs before the first that is measured. */
static const uint64_t WARM_UP_NS = 150000000;
/* An arm that takes so many times the best is not run, nor one that would, by what its unit took
   beside the other: alone it may be much quicker. */
static const double HOPELESS = 2, HOPELESS_BESIDE = 10;
/* Times that contradict each other by more (fm__tune_excess()) are measured again, so often. */
static const double EXCESS = 1.05;
enum { ATTEMPTS = 3 };

typedef struct calibrator {
    fm_engine *engine;
    fm_lab_point_callback *callback;
    void *user;
    fm_lab_calibration *out;
    fm__store store;
    uint32_t done, total; /* steps */
    uint32_t told;        /* of them, so far: never fewer, also where a search begins again */
    double spent_ns;
} calibrator;

/* ---- one tape ---- */

static fm_status report(calibrator *c, const char *what, uint32_t rows, double share, double ns,
                        double ns_0, uint32_t done, fm_error *error) {
    c->told = done > c->told ? done : c->told;
    const fm_lab_point point = {.shape = what,
                                .rows = rows,
                                .share = share,
                                .ms = ns / 1e6,
                                .ms_share_0 = ns_0 / 1e6,
                                .done = c->told,
                                .total = c->total};
    if (c->callback && c->callback(c->user, &point) != 0)
        return fm__error(error, FM_ERROR_CANCELLED, "calibration", "stopped after %u of %u steps",
                         c->told, c->total);
    return FM_OK;
}

/* The last unit's share of all the tape's products, by weight. */
static double mean_share(const fm__tape_classes *classes, uint32_t n_op, const double *shares) {
    double sum = 0, all = 0;
    for (uint32_t i = 0; i < n_op; i++) {
        if (classes->class_of[i] == FM__TUNE_NO_CLASS)
            continue;
        sum += classes->work[i] * shares[classes->class_of[i]];
        all += classes->work[i];
    }
    return all > 0 ? sum / all : 0;
}

/* Runs of the first unit alone until the units' clocks are up: an idle GPU's are low, and what the
   first runs take would speak against it. Of the shortest tape, which is the first to be measured.
 */
static fm_status warm_up(fm__measure *m, const fm_engine *engine, const fm__bucket *bucket,
                         fm_error *error) {
    const double shares[FM__TUNE_CLASSES] = {0};
    uint64_t begin_ns = fm__now_ns();
    fm_status status = FM_OK;
    while (status == FM_OK && bucket == &engine->buckets[0] &&
           fm__now_ns() - begin_ns < WARM_UP_NS) {
        fm__tune_times times;
        double beside;
        status = fm__measure_shares(m, shares, false, &times, &beside, error);
    }
    return status;
}

/* Searches, and tells how far it is. whole: for whole products. */
static fm_status tune(fm__measure *m, fm__bucket *bucket, const fm__tune_options *options,
                      bool whole, fm__tune *tune, calibrator *c, fm_error *error) {
    const fm__tape_classes *classes = fm__measure_classes(m);
    double shares[FM__TUNE_CLASSES];
    uint32_t rows = bucket->tape->max_rows;
    fm_status status = warm_up(m, c->engine, bucket, error);
    fm__tune_init(tune, options, classes->count, classes->n);
    while (status == FM_OK && fm__tune_next(tune, shares)) {
        fm__tune_times times;
        double beside;
        status = fm__measure_shares(m, shares, whole, &times, &beside, error);
        if (status != FM_OK)
            break;
        tune->spent_ns += beside;
        fm__tune_feed(tune, &times);
        uint32_t part = (uint32_t)(SEARCH_STEPS * tune->spent_ns / options->budget_ns);
        double first = tune->search.points[0].ns[0];
        status = report(c,
                        whole             ? "whole tape, whole products"
                        : tune->searching ? "whole tape"
                                          : "whole tape, by product",
                        rows, mean_share(classes, bucket->tape->n_op, shares), times.ns, first,
                        c->done + (part < SEARCH_STEPS ? part : SEARCH_STEPS), error);
    }
    return status;
}

/* The same, again where the times contradict each other: what that takes, later tapes are not to
   pay for. *sound: they do not, in the end. */
static fm_status tune_soundly(fm__measure *m, fm__bucket *bucket, const fm__tune_options *options,
                              bool whole, fm__tune *search, calibrator *c, bool *sound,
                              fm_error *error) {
    *sound = false;
    for (int i = 0; i < ATTEMPTS && !*sound; i++) {
        uint64_t begin_ns = fm__now_ns();
        fm_status status = tune(m, bucket, options, whole, search, c, error);
        if (status != FM_OK)
            return status;
        *sound = fm__tune_excess(search) <= EXCESS;
        if (!*sound && i + 1 < ATTEMPTS)
            c->spent_ns -= (double)(fm__now_ns() - begin_ns);
    }
    return FM_OK;
}

static void warn_of_contradiction(const fm__tune *search, uint32_t rows) {
    fm__log(FM_LOG_WARNING,
            "with up to %u row%s what works with nothing for the last unit took %.2f times as long "
            "as what it did beside that unit allows: something else ran meanwhile. What each arm "
            "takes is not kept for them; calibrate again when the machine is quiet",
            rows, rows == 1 ? "" : "s", fm__tune_excess(search));
}

/* With share 0 all units but the last work: the first one alone where there are two. */
double fm__calibration_expected(const fm_engine *engine, const fm__tune *tune, fm_arm arm) {
    const fm__device *unit = arm == FM_ARM_CPU ? engine->host : engine->gpu;
    if (unit == engine->units[0])
        return engine->n_unit == 2 ? tune->zero_ns : 0;
    return unit == engine->units[engine->n_unit - 1] ? fm__tune_predict_alone(tune) : 0;
}

bool fm__calibration_divides(const fm_engine *engine, const fm__tune *tune) {
    bool first = false, last = false; /* one of the units before the last, and the last, has some */
    for (uint32_t i = 0; i < tune->n_class; i++) {
        first = first || tune->best[i] < 1;
        last = last || tune->best[i] > 0;
    }
    return first && (last || engine->n_unit > 2);
}

/* Times of all arms. One that needs no run of its own, or is hopeless, gets what the search saw. */
static fm_status time_arms(fm_engine *engine, fm__measure *m, const fm__tune *tune,
                           double ns[FM__ARM_COUNT], fm_error *error) {
    bool broke = tune->spent_ns > tune->options.budget_ns;
    fm_status status = FM_OK;
    for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT && status == FM_OK; arm++) {
        double expected = arm == FM_ARM_SPLIT ? tune->best_ns
                                              : fm__calibration_expected(engine, tune, (fm_arm)arm);
        ns[arm] = 0;
        if (!(engine->arms >> arm & 1) && arm != FM_ARM_SPLIT)
            continue;
        bool same = arm == FM_ARM_GPU && engine->gpu == engine->units[0] && engine->n_unit == 2;
        bool beside = (arm == FM_ARM_CPU ? engine->host : engine->gpu) != engine->units[0];
        double hopeless = beside ? HOPELESS_BESIDE : HOPELESS;
        if (arm == FM_ARM_SPLIT || same || expected > hopeless * tune->best_ns)
            ns[arm] = expected;
        else if (broke && expected > 0)
            ns[arm] = beside ? 0 : expected; /* not known */
        else
            status = fm__measure_arm(
                m, (fm_arm)arm, (expected > 0 ? expected : tune->zero_ns) < 0.1 * SECOND_NS ? 3 : 1,
                &ns[arm], error);
        if (arm == FM_ARM_CPU && engine->host == engine->units[0] && expected > 0)
            ns[arm] = fmin(ns[arm], expected); /* as share 0; what disturbs only adds */
    }
    /* Nothing is divided: the arm is another one under a second name, and is left alone. */
    if (!fm__calibration_divides(engine, tune))
        ns[FM_ARM_SPLIT] = HOPELESS * tune->best_ns;
    return status;
}

static fm_status set_shares(fm_engine *engine, fm__bucket *bucket, const fm__tape_classes *classes,
                            const double *shares, fm_error *error) {
    uint32_t n = bucket->tape->n_op;
    if (!bucket->op_shares)
        bucket->op_shares = fm__alloc_array(n, sizeof(*bucket->op_shares));
    if (!bucket->op_shares)
        return fm__error_memory(error, "calibration", n * sizeof(*bucket->op_shares));
    fm__classes_give(classes, engine, shares, n, bucket->op_shares);
    return FM_OK;
}

/* ---- the whole of it ---- */

static fm_status give_curve(const fm_engine *engine, const fm__tune *tune,
                            const fm__tape_classes *classes, const fm__bucket *bucket,
                            const double *ns, fm_lab_calibration *out, fm_error *error) {
    size_t bytes = (out->n_curve + 1) * sizeof(*out->curves);
    struct fm_lab_curve *curves = fm__realloc(out->curves, bytes);
    if (!curves)
        return fm__error_memory(error, "calibration", bytes);
    out->curves = curves;
    struct fm_lab_curve *curve = &out->curves[out->n_curve++];
    *curve = (struct fm_lab_curve){.rows = bucket->tape->max_rows,
                                   .best = tune->search.best,
                                   .gain = tune->zero_ns / tune->best_ns,
                                   .best_ms = tune->best_ns / 1e6,
                                   .measured = tune->measured,
                                   .spent_ms = tune->spent_ns / 1e6};
    snprintf(curve->shape, sizeof(curve->shape), "whole tape%s",
             bucket->whole_products ? ", whole products" : "");
    enum { ROOM = sizeof(curve->share) / sizeof(*curve->share) };
    for (uint32_t i = 0; i < tune->search.n_point && curve->n_point < ROOM; i++) {
        const fm__search_point *p = &tune->search.points[i];
        if (!(p->median > 0))
            continue;
        curve->share[curve->n_point] = p->share;
        curve->ms[curve->n_point++] = p->median / 1e6;
    }
    for (uint32_t c = 0; c < classes->n; c++) {
        struct fm_lab_product *product = &curve->products[curve->n_product++];
        snprintf(product->shape, sizeof(product->shape), "%s", classes->shapes[c].label);
        product->share = tune->best[c];
    }
    for (uint32_t arm = 0; arm < FM__ARM_COUNT; arm++)
        curve->arm_ms[arm] = ns[arm] / 1e6;
    if (!fm__calibration_divides(engine, tune))
        curve->arm_ms[FM_ARM_SPLIT] = 0;
    return FM_OK;
}

static fm_status keep(calibrator *c, const fm__tune *tune, const fm__tape_classes *classes,
                      fm__bucket *bucket, fm_error *error) {
    fm_status status = fm__saved_add_products(&c->store, c->engine, bucket, classes, tune->best,
                                              tune->zero_ns / tune->best_ns, error);
    if (status == FM_OK)
        status = fm__saved_add_tape(&c->store, c->engine, bucket, error);
    return status;
}

/* Where weights are streamed while the host computes, products may also be dealt out whole: another
   search, whose result replaces `search` where it is faster by more than the noise. */
static bool tries_whole_products(const fm_engine *engine) {
    return engine->need.ring > 0 && engine->options.axis == FM_AXIS_AUTO;
}

static double budget_ns(const fm_engine *engine) {
    return (tries_whole_products(engine) ? BUDGET_TWICE_S : BUDGET_S) * SECOND_NS;
}

static fm_status try_whole_products(fm__measure *m, fm__bucket *bucket,
                                    const fm__tune_options *options, fm__tune *search,
                                    calibrator *c, fm_error *error) {
    static const double WORTH = 1.01;
    bool sound = false;
    fm__tune *other = fm__alloc_zero(sizeof(*other));
    if (!other)
        return fm__error_memory(error, "calibration", sizeof(*other));
    fm_status status = tune_soundly(m, bucket, options, true, other, c, &sound, error);
    if (status == FM_OK && sound && other->best_ns * WORTH < search->best_ns) {
        *search = *other;
        bucket->whole_products = true;
    }
    fm__free(other);
    return status;
}

/* Of few products a small share is none: then the runs at it were runs at share 0, and what looked
   faster is noise. */
static fm_status drop_empty_deal(fm__measure *m, fm__bucket *bucket, const fm_engine *engine,
                                 fm__tune *search, fm_error *error) {
    const fm__tape *tape = bucket->tape;
    double(*shares)[FM__MAX_UNITS] = fm__alloc_array(tape->n_op, sizeof(*shares));
    uint8_t *owner = fm__alloc(tape->n_op);
    bool dealt = false;
    fm_status status = FM_OK;
    if (!shares || !owner)
        status = fm__error_memory(error, "calibration", tape->n_op * (1 + sizeof(*shares)));
    if (status == FM_OK) {
        fm__classes_give(fm__measure_classes(m), engine, search->best, tape->n_op, shares);
        status =
            fm__deal(tape, (const double(*)[FM__MAX_UNITS])shares, engine->n_unit, owner, error);
    }
    for (uint32_t i = 0; status == FM_OK && i < tape->n_op; i++)
        dealt = dealt || owner[i] + 1u == engine->n_unit;
    if (status == FM_OK && !dealt) {
        memset(search->best, 0, sizeof(search->best));
        search->best_ns = search->zero_ns;
    }
    fm__free(owner);
    fm__free(shares);
    return status;
}

static fm_status calibrate_bucket(calibrator *c, uint32_t b, fm_error *error) {
    fm_engine *engine = c->engine;
    fm__bucket *bucket = &engine->buckets[b];
    fm__measure *m = NULL;
    fm__tune *search = fm__alloc_zero(sizeof(*search));
    double ns[FM__ARM_COUNT], left = budget_ns(engine) - c->spent_ns;
    uint64_t begin_ns = fm__now_ns();
    if (!search)
        return fm__error_memory(error, "calibration", sizeof(*search));
    fm__tune_options options = {.budget_ns = fmax(left, SECOND_NS) / (engine->n_bucket - b)};
    if (tries_whole_products(engine))
        options.budget_ns /= 2; /* there are two searches */
    fm_status status = fm__measure_create(&m, engine, bucket, error);
    if (status != FM_OK)
        goto done;
    const fm__tape_classes *classes = fm__measure_classes(m);
    bool sound = false;
    status = tune_soundly(m, bucket, &options, false, search, c, &sound, error);
    if (status == FM_OK && !sound)
        warn_of_contradiction(search, bucket->tape->max_rows);
    if (status == FM_OK && sound && tries_whole_products(engine))
        status = try_whole_products(m, bucket, &options, search, c, error);
    if (status == FM_OK && (bucket->whole_products || engine->options.axis == FM_AXIS_PRODUCTS))
        status = drop_empty_deal(m, bucket, engine, search, error);
    if (status == FM_OK)
        status = time_arms(engine, m, search, ns, error);
    if (status == FM_OK)
        status = set_shares(engine, bucket, classes, search->best, error);
    if (status != FM_OK)
        goto done;
    bucket->predicted_work = fm__measure_work(m);
    for (uint32_t arm = 0; arm < FM__ARM_COUNT; arm++)
        bucket->predicted[arm] =
            arm == FM_ARM_AUTO || !sound ? 0 : ns[arm] / bucket->predicted_work;
    ns[FM_ARM_AUTO] = 0;
    status = keep(c, search, classes, bucket, error);
    if (status == FM_OK)
        status = give_curve(engine, search, classes, bucket, ns, c->out, error);
    c->done += TAPE_STEPS;
    if (status == FM_OK)
        status = report(c, "whole tape, arms", bucket->tape->max_rows,
                        mean_share(classes, bucket->tape->n_op, search->best), search->best_ns,
                        search->zero_ns, c->done, error);
done:
    c->spent_ns += (double)(fm__now_ns() - begin_ns);
    fm__measure_destroy(&m);
    fm__free(search);
    return status;
}

/* What buckets had before a calibration that may yet be stopped. */
typedef struct former {
    double (*op_shares)[FM__MAX_UNITS];
    bool whole_products;
    double predicted[FM__ARM_COUNT], predicted_work;
} former;

static void put_aside(fm_engine *engine, former *before) {
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        before[b] = (former){.op_shares = bucket->op_shares,
                             .whole_products = bucket->whole_products,
                             .predicted_work = bucket->predicted_work};
        memcpy(before[b].predicted, bucket->predicted, sizeof(before[b].predicted));
        bucket->op_shares = NULL;
        bucket->whole_products = false;
    }
}

/* Either all tapes get what was found, or all keep what they had. */
static void settle(fm_engine *engine, former *before, bool good) {
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        if (good) {
            fm__free(before[b].op_shares);
            continue;
        }
        fm__free(bucket->op_shares);
        bucket->op_shares = before[b].op_shares;
        bucket->whole_products = before[b].whole_products;
        bucket->predicted_work = before[b].predicted_work;
        memcpy(bucket->predicted, before[b].predicted, sizeof(before[b].predicted));
    }
}

/* The shares are in use from here on, and the gate begins anew. */
static void take_over(fm_engine *engine) {
    engine->options.split = -1;
    engine->calibrated = true;
    engine->estimated = engine->expired = false;
    engine->calibration_age_s = 0;
    fm__arms_forget_one(engine, FM_ARM_SPLIT);
    fm__arms_find(engine);
    if (engine->options.arm == FM_ARM_AUTO) /* the share asked for the arm as well */
        engine->forced = FM_ARM_AUTO;
    fm__choose_init(engine);
}

static fm_status save(calibrator *c, fm_error *error) {
    fm_lab_calibration *out = c->out;
    const fm__store_key *key = &c->store.key;
    snprintf(out->key, sizeof(out->key),
             "%s, rung %s, %u threads; %s%s%s; power %s; build %s; model %016llx %s", key->cpu,
             key->rung, key->threads, key->units, key->driver[0] ? ", driver " : "", key->driver,
             key->power, key->build, (unsigned long long)key->model_hash, key->model_type);
    return fm__saved_write(&c->store, c->engine, out->path, error);
}

fm_status fm_lab_calibrate(fm_engine *engine, fm_lab_point_callback *callback, void *user,
                           fm_lab_calibration *out, fm_error *error) {
    calibrator c = {.engine = engine, .callback = callback, .user = user, .out = out};
    *out = (fm_lab_calibration){0};
    fm_status status = FM_OK;
    pthread_mutex_lock(&engine->lock);
    atomic_store(&engine->cancel, 0); /* it was for the run before */
    if (engine->n_unit < 2)
        status = fm__error(error, FM_ERROR_ARGUMENT, "calibration",
                           "takes two units, this machine has one: see --device");
    else if (engine->context_length < engine->chunk_rows)
        status = fm__error(error, FM_ERROR_LIMIT, "calibration",
                           "takes a context of %u tokens, as many as the longest tape has rows; "
                           "this one is of %u: take a longer one, or smaller chunks",
                           engine->chunk_rows, engine->context_length);
    c.total = engine->n_bucket * TAPE_STEPS;
    fm__saved_begin(&c.store, engine);
    if (status == FM_OK) /* before time is spent on what could not be kept */
        status = fm__saved_path(&c.store, engine, out->path, sizeof(out->path), error);
    if (status == FM_OK)
        status = fm__store_check(engine->machine->cache_dir, out->path, error);
    former before[FM__MAX_BUCKETS];
    put_aside(engine, before);
    for (uint32_t b = 0; b < engine->n_bucket && status == FM_OK; b++)
        status = calibrate_bucket(&c, b, error);
    settle(engine, before, status == FM_OK);
    if (status == FM_OK) {
        take_over(engine);
        status = save(&c, error);
    }
    fm__store_finish(&c.store);
    pthread_mutex_unlock(&engine->lock);
    if (status != FM_OK)
        fm_lab_calibration_free(out);
    return status;
}

void fm_lab_calibration_free(fm_lab_calibration *calibration) {
    if (!calibration)
        return;
    fm__free(calibration->curves);
    *calibration = (fm_lab_calibration){0};
}

/* ---- an estimate ---- */

/* One of the two tapes that an estimate measures. */
typedef struct sample {
    double rows;
    double ns[FM__ARM_COUNT];
    double zero_ns, gain;
    double first_ns, second_ns; /* of all products on one unit, beside the other */
} sample;

/* Whatever is fitted here cannot fall as rows rise. */
static double at_rows(double rows, const sample *a, double ns_a, const sample *b, double ns_b) {
    if (b->rows <= a->rows || ns_a <= 0 || ns_b <= 0)
        return ns_a;
    double slope = fmax((ns_b - ns_a) / (b->rows - a->rows), 0);
    return ns_a + slope * (rows - a->rows);
}

/* Who loads may end that here, too. */
static int on_trial(void *user, const fm_lab_point *point) {
    const fm_engine_options *o = user;
    return o->progress
               ? o->progress(o->progress_user, "trying units together", point->done, point->total)
               : 0;
}

static fm_status sample_bucket(calibrator *c, fm__bucket *bucket, sample *out, fm_error *error) {
    fm_engine *engine = c->engine;
    fm__measure *m = NULL;
    fm__tune *search = fm__alloc_zero(sizeof(*search));
    if (!search)
        return fm__error_memory(error, "calibration", sizeof(*search));
    const fm__tune_options options = {.budget_ns = ESTIMATE_S * SECOND_NS,
                                      .search = {.repeats = 1}};
    fm_status status = fm__measure_create(&m, engine, bucket, error);
    if (status == FM_OK)
        status = tune(m, bucket, &options, false, search, c, error);
    c->done += TAPE_STEPS;
    if (status == FM_OK)
        status = time_arms(engine, m, search, out->ns, error);
    if (status == FM_OK)
        status = set_shares(engine, bucket, fm__measure_classes(m), search->best, error);
    if (status == FM_OK) {
        double work = fm__measure_work(m);
        bucket->predicted_work = work;
        for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT; arm++)
            bucket->predicted[arm] = out->ns[arm] / work;
        out->rows = fm__measure_rows(m);
        out->zero_ns = search->zero_ns;
        out->gain = search->zero_ns / search->best_ns;
        fm__search_unit_ns(&search->search, &out->first_ns, &out->second_ns);
    }
    fm__measure_destroy(&m);
    fm__free(search);
    return status;
}

/* A tape between, or beyond, the two that were measured. */
static fm_status derive(fm_engine *engine, fm__bucket *bucket, const sample *a, const sample *b,
                        fm_error *error) {
    double rows = bucket->tape->max_rows, shares[FM__TUNE_CLASSES], share = 0;
    double first = at_rows(rows, a, a->first_ns, b, b->first_ns);
    double second = at_rows(rows, a, a->second_ns, b, b->second_ns);
    double zero = at_rows(rows, a, a->zero_ns, b, b->zero_ns);
    double gain = rows > b->rows ? b->gain : fmin(a->gain, b->gain);
    if (gain > 1 && first > 0 && second > 0)
        share = first / (first + second);
    for (uint32_t c = 0; c < FM__TUNE_CLASSES; c++)
        shares[c] = share;
    fm__tape_classes classes;
    fm_status status = fm__classes_make(&classes, bucket->tape, error);
    if (status == FM_OK)
        status = set_shares(engine, bucket, &classes, shares, error);
    fm__classes_finish(&classes);
    double work = fm__choose_full_work(engine, bucket->tape->max_rows);
    for (uint32_t arm = FM_ARM_CPU; arm < FM__ARM_COUNT && status == FM_OK; arm++)
        bucket->predicted[arm] = at_rows(rows, a, a->ns[arm], b, b->ns[arm]) / work;
    bucket->predicted_work = work;
    bucket->predicted[FM_ARM_SPLIT] = (share > 0 ? zero / gain : HOPELESS * zero) / work;
    return status;
}

/* Not where weights are streamed: the units' times, which a few runs have to go by, leave out the
   copies, and the shares found so were slower than the host alone (on an H200). */
bool fm__calibration_wants_estimate(const fm_engine *engine) {
    const fm_engine_options *o = &engine->options;
    return engine->need.ring == 0 && engine->n_unit > 1 && engine->gpu &&
           strcmp(engine->gpu->properties.kind, "gpu") == 0 && !engine->gpu->properties.software &&
           !engine->calibrated && !engine->model->fast && o->split < 0 && !o->no_gate &&
           (o->arm == FM_ARM_AUTO || o->arm == FM_ARM_SPLIT);
}

fm_status fm__calibration_estimate(fm_engine *engine, fm_error *error) {
    enum { SHORT_PROMPT = 64 };
    sample few = {0}, many = {0};
    uint64_t begin_ns = fm__now_ns();
    uint32_t last = 0;
    if (fm__memory_pressure(&engine->pressure, NULL))
        return FM_OK;
    /* A short context cannot fill the tapes of more rows. */
    while (last + 1 < engine->n_bucket && engine->buckets[last].tape->max_rows < SHORT_PROMPT &&
           engine->buckets[last + 1].tape->max_rows <= engine->context_length)
        last++;
    calibrator c = {.engine = engine,
                    .callback = on_trial,
                    .user = &engine->options,
                    .total = (last > 0 ? 2 : 1) * TAPE_STEPS};
    fm_status status = sample_bucket(&c, &engine->buckets[0], &few, error);
    if (status == FM_OK && last > 0)
        status = sample_bucket(&c, &engine->buckets[last], &many, error);
    for (uint32_t b = 1; b < engine->n_bucket && status == FM_OK; b++) {
        if (b != last)
            status = derive(engine, &engine->buckets[b], &few, &many, error);
    }
    if (status != FM_OK)
        return status;
    engine->estimated = few.gain > 1 || many.gain > 1;
    fm__log(FM_LOG_INFO,
            "not calibrated: %.1f s of trials say that with %s a token is %.2f times as fast as "
            "without it, %.0f are %.2f times; `fusionml calibrate` finds better shares",
            (double)(fm__now_ns() - begin_ns) / SECOND_NS,
            engine->units[engine->n_unit - 1]->properties.name, few.gain,
            last > 0 ? many.rows : few.rows, last > 0 ? many.gain : few.gain);
    return FM_OK;
}
