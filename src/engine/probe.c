/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/probe.c: the mechanism probe: one product and its producer, run in every way that two
 * units can be ordered, interleaved, with every trial kept.
 *
 * Owns: the cases and their report. Never does: judge a run whose outputs differ: it then gives no
 * ratio. Called from: the measuring thread.
 */
#include "engine/probe.h"

#include "engine/engine.h"
#include "exec/calibrate.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_SIDE = 1 << 20, MAX_TRIALS = 10000, WARM_RUNS = 2, MAX_SPANS = 32 };

/* Trials in which the machine's speed changed by more than this from first to last are reported as
   not valid: the order cancels a steady drift, but not a jump. */
static const double MOST_DRIFT = 0.30;

/* ---- the cases ---- */

typedef enum view { READY, DEPENDENT, PRODUCER } view;

typedef struct probe_case {
    char letter;
    const char *name, *what;
    view view;
    bool split, halves;
    fm__deps deps;
} probe_case;

static const probe_case CASES[] = {
    {'A', "gpu-ready", "the input is there; main unit only", READY, false, false, FM__DEPS_EVENT},
    {'B', "split-ready", "the input is there; both units", READY, true, false, FM__DEPS_EVENT},
    {'C', "gpu-dep", "producer and product on the main unit, one submission", DEPENDENT, false,
     false, FM__DEPS_EVENT},
    {'D', "split-batch", "the second unit waits for the main unit's submission", DEPENDENT, true,
     false, FM__DEPS_BATCH},
    {'E', "split-eager", "the host waits for all before each step", DEPENDENT, true, false,
     FM__DEPS_EAGER},
    {'F', "split-event", "the second unit waits for the producer only", DEPENDENT, true, false,
     FM__DEPS_EVENT},
    {'G', "gpu-halves", "both ranges on the main unit", DEPENDENT, false, true, FM__DEPS_EVENT},
    {'H', "gpu-boundary", "main unit only, the host waits before each step", DEPENDENT, false,
     false, FM__DEPS_EAGER},
    {'I', "split-host", "the host hands each step over once its input is there", DEPENDENT, true,
     false, FM__DEPS_READY},
    {'P', "producer", "the producer alone", PRODUCER, false, false, FM__DEPS_EVENT},
};
enum { N_CASE = sizeof CASES / sizeof CASES[0] };
enum { A, B, C, D, E, F, G, H, I, P };

typedef struct case_run {
    fm__plan *plan;
    fm__exec *exec;
    double *ns;      /* (trials) */
    double *overlap; /* (trials): part of the computing time of the unit that computed less */
    bool observed;   /* copied[] is the most that copies took */
    double *busy[2]; /* (trials) ns */
    double *computed[2], *copied[2]; /* likewise: what busy[] is the union of */
    uint64_t first, second;          /* output hash, before and after the trials */
    fm__exec_span spans[MAX_SPANS];  /* of the last trial */
    uint32_t n_span;
    uint64_t begin_ns;
} case_run;

typedef struct experiment {
    fm__probe probe;
    double share;
    bool searched;
    fm__search search;
    case_run runs[N_CASE];
    double *totals;   /* (trials) ns of all cases of a trial */
    uint64_t spoiled; /* hash of an output that nobody computed */
    fm_lab_probe_callback *callback;
    void *user;
    fm_error *error;
} experiment;

static const fm__tape *tape_of(const fm__probe *p, view v) {
    return v == READY ? &p->ready : v == DEPENDENT ? &p->dependent : &p->producer;
}

static fm__plan_op *product_of(const fm__tape *tape, fm__plan *plan) {
    for (uint32_t i = 0; i < tape->n_op; i++)
        if (tape->ops[i].kind == FM__OP_LINEAR)
            return &plan->ops[i];
    return NULL;
}

static fm_status make_plan(const experiment *x, const probe_case *c, double share, fm__plan **out) {
    const fm__plan_options options = {
        .shares = {1 - share, share},
        .axis = x->probe.options.axis == FM_AXIS_TOKENS ? FM__AXIS_TOKENS : FM__AXIS_CHANNELS,
        .products_only = true, /* the producer is the main unit's */
        .deps = c->deps};
    return fm__plan_make(out, tape_of(&x->probe, c->view), x->probe.units, 2, &options, x->error);
}

/* Both ranges of a split product, on the main unit. */
static fm_status make_halves(const experiment *x, const probe_case *c, double share,
                             fm__plan *plan) {
    const fm__tape *tape = tape_of(&x->probe, c->view);
    fm__plan *split = NULL;
    fm_status status = make_plan(x, c, share, &split);
    if (status != FM_OK)
        return status;
    const fm__plan_op *from = product_of(tape, split);
    fm__plan_op *to = product_of(tape, plan);
    to->axis = from->axis;
    to->n_range = from->n_range;
    for (uint32_t r = 0; r < from->n_range; r++)
        to->ranges[r] = (fm__plan_range){.unit = 0, .range = from->ranges[r].range};
    fm__plan_destroy(&split);
    return FM_OK;
}

static void drop_exec(case_run *run) {
    fm__exec_destroy(&run->exec);
    fm__plan_destroy(&run->plan);
}

static fm_status make_exec(experiment *x, const probe_case *c, double share, case_run *run) {
    fm_status status = make_plan(x, c, c->split ? share : 0, &run->plan);
    if (status == FM_OK && c->halves)
        status = make_halves(x, c, share, run->plan);
    if (status == FM_OK)
        status = fm__exec_create(&run->exec, tape_of(&x->probe, c->view), run->plan, x->probe.units,
                                 2, x->error);
    return status;
}

/* ---- running ---- */

static fm_status run_once(experiment *x, case_run *run, double *ns) {
    uint64_t point, begin = fm__now_ns();
    fm_status status = fm__exec_submit(run->exec, &x->probe.run, &point, x->error);
    if (status == FM_OK)
        status = fm__exec_wait(run->exec, point, &x->probe.run, x->error);
    *ns = (double)(fm__now_ns() - begin);
    return status;
}

static fm_status warm_up(experiment *x, case_run *run, uint32_t times) {
    fm_status status = FM_OK;
    double ignored;
    for (uint32_t i = 0; status == FM_OK && i < times; i++)
        status = run_once(x, run, &ignored);
    return status;
}

static fm_status tell(const experiment *x, const char *phase, uint32_t done, uint32_t total) {
    if (x->callback != NULL && x->callback(x->user, phase, done, total) != 0)
        return fm__error(x->error, FM_ERROR_CANCELLED, "probe", "stopped by the caller");
    return FM_OK;
}

/* The share with which split-event is fastest; a share is never 0, as the split is what is probed.
 */
static fm_status find_share(experiment *x) {
    case_run run = {0};
    double share = 0, of_run = -1, ns;
    fm_status status = FM_OK;
    fm__search_init(&x->search, NULL);
    for (uint32_t step = 0; status == FM_OK && fm__search_next(&x->search, &share); step++) {
        status = tell(x, "searching the share", step, 0);
        if (status == FM_OK && share != of_run) {
            drop_exec(&run);
            of_run = share;
            status = make_exec(x, &CASES[F], share, &run);
            if (status == FM_OK)
                status = warm_up(x, &run, WARM_RUNS);
        }
        if (status == FM_OK)
            status = run_once(x, &run, &ns);
        if (status == FM_OK)
            fm__search_feed(&x->search, ns);
    }
    drop_exec(&run);
    x->share = x->search.best;
    double least = 0;
    for (uint32_t i = 0; x->search.best == 0 && i < x->search.n_point; i++) {
        const fm__search_point *p = &x->search.points[i];
        if (p->share > 0 && p->share < 1 && (least == 0 || p->median < least)) {
            least = p->median;
            x->share = p->share;
        }
    }
    x->searched = true;
    return status;
}

/* One run on an output that was overwritten, and the hash of what it left. */
static fm_status hash_case(experiment *x, uint32_t index, uint64_t *hash) {
    double ignored;
    fm_status status = fm__probe_spoil(&x->probe, x->error);
    if (status == FM_OK)
        status = run_once(x, &x->runs[index], &ignored);
    if (status != FM_OK)
        return status;
    return fm__probe_hash(&x->probe, CASES[index].view == PRODUCER ? x->probe.a : x->probe.y, hash,
                          x->error);
}

static fm_status prepare(experiment *x) {
    const fm_lab_probe_options *o = &x->probe.options;
    fm_status status = FM_OK;
    for (uint32_t i = N_CASE; status == FM_OK && i-- > 0;) { /* P first: A and B need its output */
        case_run *run = &x->runs[i];
        run->ns = fm__alloc_array(o->trials, sizeof(double));
        run->overlap = fm__alloc_array(o->trials, sizeof(double));
        bool there = run->ns && run->overlap;
        for (int u = 0; u < 2; u++) {
            run->busy[u] = fm__alloc_array(o->trials, sizeof(double));
            run->computed[u] = fm__alloc_array(o->trials, sizeof(double));
            run->copied[u] = fm__alloc_array(o->trials, sizeof(double));
            there = there && run->busy[u] && run->computed[u] && run->copied[u];
        }
        if (!there)
            return fm__error_memory(x->error, "probe", o->trials * sizeof(double));
        status = make_exec(x, &CASES[i], x->share, run);
        if (status == FM_OK)
            status = tell(x, "warming up", N_CASE - 1 - i, N_CASE);
        if (status == FM_OK)
            status = warm_up(x, run, o->warmup);
        if (status == FM_OK && i == P)
            status = fm__probe_share_input(&x->probe, x->error);
    }
    for (uint32_t i = 0; status == FM_OK && i < N_CASE; i++)
        status = hash_case(x, i, &x->runs[i].first);
    return status;
}

static void note_times(case_run *run, uint32_t trial) {
    fm__exec_times times;
    fm__exec_get_times(run->exec, &times);
    const uint64_t *computed = times.compute_ns;
    uint64_t shorter = computed[0] < computed[1] ? computed[0] : computed[1];
    for (int u = 0; u < 2; u++) {
        run->busy[u][trial] = (double)times.busy_ns[u];
        run->computed[u][trial] = (double)times.compute_ns[u];
        run->copied[u][trial] = (double)times.copy_ns[u];
        run->observed |= times.observed[u];
    }
    run->overlap[trial] = shorter > 0 ? (double)times.overlap_ns / (double)shorter : 0;
    run->begin_ns = times.begin_ns;
    uint32_t n = fm__exec_spans(run->exec, run->spans, MAX_SPANS);
    run->n_span = n < MAX_SPANS ? n : MAX_SPANS;
}

static fm_status measure(experiment *x) {
    uint32_t trials = x->probe.options.trials;
    fm_status status = FM_OK;
    x->totals = fm__alloc_array(trials, sizeof(double));
    if (x->totals == NULL)
        return fm__error_memory(x->error, "probe", trials * sizeof(double));
    for (uint32_t t = 0; status == FM_OK && t < trials; t++) {
        status = tell(x, "measuring", t, trials);
        for (uint32_t i = 0; status == FM_OK && i < N_CASE; i++) {
            case_run *run = &x->runs[fm_lab_order(N_CASE, t, i)];
            status = run_once(x, run, &run->ns[t]);
            x->totals[t] += run->ns[t];
            note_times(run, t);
        }
    }
    for (uint32_t i = 0; status == FM_OK && i < N_CASE; i++)
        status = hash_case(x, i, &x->runs[i].second);
    if (status == FM_OK)
        status = fm__probe_spoil(&x->probe, x->error);
    if (status == FM_OK)
        status = fm__probe_hash(&x->probe, x->probe.y, &x->spoiled, x->error);
    return status;
}

/* ---- what came out ---- */

static bool outputs_agree(const experiment *x) {
    bool agree = x->runs[P].first == x->runs[P].second && x->runs[A].first != x->spoiled;
    for (uint32_t i = 0; i < N_CASE; i++)
        if (i != P)
            agree = agree && x->runs[i].first == x->runs[A].first &&
                    x->runs[i].second == x->runs[A].first;
    return agree;
}

/* Time of the last third of the trials over that of the first third. */
static double drift(const experiment *x) {
    uint32_t n = x->probe.options.trials, third = (n + 2) / 3;
    double first = fm_lab_median(x->totals, third);
    return first > 0 ? fm_lab_median(x->totals + n - third, third) / first : 1;
}

static void put_options(const experiment *x, fm__buf *out) {
    static const char *const weights[] = {"auto", "resident", "shared", "streamed"};
    const fm_lab_probe_options *o = &x->probe.options;
    fm__buf_printf(out,
                   "\"options\": {\"rows\": %u, \"k\": %u, \"n\": %u, \"type\": \"%s\", "
                   "\"axis\": \"%s\", \"weights\": \"%s\", \"warmup\": %u, \"trials\": %u, "
                   "\"seed\": %" PRIu64 "}",
                   o->rows, o->k, o->n, o->type, o->axis == FM_AXIS_TOKENS ? "tokens" : "channels",
                   weights[o->weights], o->warmup, o->trials, o->seed);
}

static void put_search(const experiment *x, fm__buf *out) {
    fm__buf_printf(out, ", \"share\": %.6g, \"search\": ", x->share);
    if (!x->searched) {
        fm__buf_printf(out, "null");
        return;
    }
    fm__buf_printf(out, "{\"best\": %.6g, \"gain\": %.6g, \"points\": [", x->search.best,
                   x->search.gain);
    for (uint32_t i = 0; i < x->search.n_point; i++) {
        const fm__search_point *p = &x->search.points[i];
        fm__buf_printf(out, "%s{\"share\": %.6g, \"median_ns\": %.0f, \"ns\": [", i > 0 ? ", " : "",
                       p->share, p->median);
        for (uint32_t j = 0; j < p->n && j < FM__SEARCH_REPEATS; j++)
            fm__buf_printf(out, "%s%.0f", j > 0 ? ", " : "", p->ns[j]);
        fm__buf_printf(out, "]}");
    }
    fm__buf_printf(out, "]}");
}

static void put_range(const experiment *x, fm__buf *out) {
    const fm__plan_op *op = product_of(&x->probe.dependent, x->runs[F].plan);
    fm__buf_printf(out, ", \"ranges\": [");
    for (uint32_t r = 0; r < op->n_range; r++)
        fm__buf_printf(out, "%s{\"unit\": %u, \"begin\": %u, \"end\": %u}", r > 0 ? ", " : "",
                       op->ranges[r].unit, op->ranges[r].range.begin, op->ranges[r].range.end);
    fm__buf_printf(out, "]");
}

static void put_case(const experiment *x, uint32_t index, fm__buf *out) {
    const probe_case *c = &CASES[index];
    const case_run *run = &x->runs[index];
    uint32_t trials = x->probe.options.trials;
    fm__buf_printf(out,
                   "%s\n  {\"letter\": \"%c\", \"name\": \"%s\", \"what\": \"%s\", "
                   "\"median_ns\": %.0f, \"hash\": \"%016" PRIx64
                   "\", \"hash_after\": \"%016" PRIx64 "\", \"ns\": [",
                   index > 0 ? "," : "", c->letter, c->name, c->what,
                   fm_lab_median(run->ns, trials), run->first, run->second);
    for (uint32_t t = 0; t < trials; t++)
        fm__buf_printf(out, "%s%.0f", t > 0 ? ", " : "", run->ns[t]);
    fm__buf_printf(out, "]}");
}

static void put_ratio(fm__buf *out, bool first, const char *name, const char *what,
                      const double *above, const double *below, const experiment *x) {
    const fm_lab_ratio r =
        fm_lab_paired_ratio(above, below, x->probe.options.trials, x->probe.options.seed);
    fm__buf_printf(out,
                   "%s\n  {\"name\": \"%s\", \"what\": \"%s\", \"median\": %.4f, \"low\": %.4f, "
                   "\"high\": %.4f}",
                   first ? "" : ",", name, what, r.median, r.low, r.high);
}

static fm_status put_ratios(const experiment *x, fm__buf *out) {
    const case_run *r = x->runs;
    uint32_t trials = x->probe.options.trials;
    double *sum = fm__alloc_array(trials, sizeof *sum);
    if (sum == NULL)
        return fm__error_memory(x->error, "probe", trials * sizeof *sum);
    for (uint32_t t = 0; t < trials; t++)
        sum[t] = r[B].ns[t] + r[P].ns[t];
    put_ratio(out, true, "A/B", "speed-up of the split with its input there", r[A].ns, r[B].ns, x);
    put_ratio(out, false, "C/D", "speed-up behind a producer, by batch", r[C].ns, r[D].ns, x);
    put_ratio(out, false, "C/E", "by eager", r[C].ns, r[E].ns, x);
    put_ratio(out, false, "C/F", "by event", r[C].ns, r[F].ns, x);
    put_ratio(out, false, "C/I", "by the host, step by step", r[C].ns, r[I].ns, x);
    put_ratio(out, false, "C/G", "control: two ranges on one unit", r[C].ns, r[G].ns, x);
    put_ratio(out, false, "C/H", "control: host waits, one unit", r[C].ns, r[H].ns, x);
    put_ratio(out, false, "(B+P)/F", "what the event costs: 1 is nothing", sum, r[F].ns, x);
    fm__free(sum);
    return FM_OK;
}

static void put_overlap(const experiment *x, uint32_t index, bool first, fm__buf *out) {
    const case_run *run = &x->runs[index];
    uint32_t trials = x->probe.options.trials;
    fm__buf_printf(out,
                   "%s\n  {\"case\": \"%c\", \"of_shorter\": %.4f, \"busy_ns\": [%.0f, %.0f], "
                   "\"compute_ns\": [%.0f, %.0f], \"copy_ns\": [%.0f, %.0f], "
                   "\"copies_observed\": %s, "
                   "\"last\": [",
                   first ? "" : ",", CASES[index].letter, fm_lab_median(run->overlap, trials),
                   fm_lab_median(run->busy[0], trials), fm_lab_median(run->busy[1], trials),
                   fm_lab_median(run->computed[0], trials), fm_lab_median(run->computed[1], trials),
                   fm_lab_median(run->copied[0], trials), fm_lab_median(run->copied[1], trials),
                   run->observed ? "true" : "false");
    for (uint32_t i = 0; i < run->n_span; i++) {
        const fm__exec_span *s = &run->spans[i];
        fm__buf_printf(out,
                       "%s{\"unit\": %u, \"first_op\": %u, \"last_op\": %u, \"begin_ns\": %" PRId64
                       ", \"end_ns\": %" PRId64 "}",
                       i > 0 ? ", " : "", s->unit, s->first_op, s->last_op,
                       (int64_t)(s->span.begin_ns - run->begin_ns),
                       (int64_t)(s->span.end_ns - run->begin_ns));
    }
    fm__buf_printf(out, "]}");
}

static void put_verdict(const experiment *x, fm__buf *out) {
    bool agree = outputs_agree(x);
    double change = drift(x);
    bool steady = change < 1 + MOST_DRIFT && change > 1 / (1 + MOST_DRIFT);
    fm__buf_printf(out, ", \"equal\": %s, \"drift\": %.4f, \"valid\": %s, \"reason\": \"%s\"",
                   agree ? "true" : "false", change, agree && steady ? "true" : "false",
                   !agree    ? "the cases' outputs differ: no ratio is given"
                   : !steady ? "the machine's speed changed during the trials"
                             : "");
}

static fm_status report(const experiment *x, const char *before, char **json) {
    fm__buf out = {0};
    char *after = fm_lab_stamp(x->probe.machine);
    fm_status status = FM_OK;
    fm__buf_printf(&out, "{\"probe\": 1, ");
    put_options(x, &out);
    fm__buf_printf(&out, ", \"units\": [");
    for (uint32_t u = 0; u < 2; u++) {
        fm__buf_printf(&out, u > 0 ? ", " : "");
        fm__json_text(&out, x->probe.units[u]->properties.name);
    }
    fm__buf_printf(&out, "]");
    put_search(x, &out);
    put_range(x, &out);
    put_verdict(x, &out);
    fm__buf_printf(&out, ", \"cases\": [");
    for (uint32_t i = 0; i < N_CASE; i++)
        put_case(x, i, &out);
    fm__buf_printf(&out, "], \"ratios\": [");
    if (outputs_agree(x))
        status = put_ratios(x, &out);
    fm__buf_printf(&out, "], \"overlap\": [");
    for (uint32_t i = 0, n = 0; i < N_CASE; i++)
        if (CASES[i].split)
            put_overlap(x, i, n++ == 0, &out);
    fm__buf_printf(&out, "],\n \"before\": %s,\n \"after\": %s}", before, after ? after : "null");
    fm_free(after);
    if (status == FM_OK && out.failed)
        status = fm__error_memory(x->error, "probe", out.bytes);
    if (status == FM_OK)
        *json = out.data;
    else
        fm__buf_finish(&out);
    return status;
}

/* ---- options ---- */

fm_lab_probe_options fm_lab_probe_options_default(void) {
    return (fm_lab_probe_options){.share = -1};
}

static fm_status check_type(const fm_lab_probe_options *o, fm_error *error) {
    const fm__type *type = NULL;
    for (size_t i = 0; i < fm__type_count(); i++)
        if (strcmp(fm__type_at(i)->name, o->type) == 0)
            type = fm__type_at(i);
    if (type == NULL || type->encode == NULL)
        return fm__error(error, FM_ERROR_ARGUMENT, "type", "\"%s\" is no type that can be written",
                         o->type);
    if (o->k % type->block != 0)
        return fm__error(error, FM_ERROR_ARGUMENT, "k", "is %u, and %s has blocks of %u", o->k,
                         o->type, type->block);
    return FM_OK;
}

static fm_status resolve(const fm_machine *machine, const fm_lab_probe_options *options,
                         fm_lab_probe_options *o, fm_error *error) {
    *o = options != NULL ? *options : fm_lab_probe_options_default();
    o->rows = o->rows != 0 ? o->rows : 2048;
    o->k = o->k != 0 ? o->k : 1600;
    o->n = o->n != 0 ? o->n : 6400;
    o->type = o->type != NULL ? o->type : "q8_0";
    o->warmup = o->warmup != 0 ? o->warmup : 5;
    o->trials = o->trials != 0 ? o->trials : 20;
    if (machine->n_device < 2)
        return fm__error(error, FM_ERROR_ARGUMENT, "probe",
                         "the machine has one unit, two are needed (\"host:0,host:1\", "
                         "\"vulkan:0,host\")");
    if (o->rows > MAX_SIDE || o->k > MAX_SIDE || o->n > MAX_SIDE || o->trials > MAX_TRIALS ||
        o->warmup > MAX_TRIALS)
        return fm__error(error, FM_ERROR_ARGUMENT, "probe",
                         "rows, k and n are at most %d, trials and warm-up %d", MAX_SIDE,
                         MAX_TRIALS);
    if (o->axis == FM_AXIS_PRODUCTS)
        return fm__error(error, FM_ERROR_ARGUMENT, "axis",
                         "the probe divides one product: by tokens or by channels");
    if (!(o->share < 1) || o->share == 0)
        return fm__error(error, FM_ERROR_ARGUMENT, "share",
                         "is %g, and both units need a part: above 0 and below 1", o->share);
    return check_type(o, error);
}

static void finish(experiment *x) {
    for (uint32_t i = 0; i < N_CASE; i++) {
        drop_exec(&x->runs[i]);
        fm__free(x->runs[i].ns);
        fm__free(x->runs[i].overlap);
        for (int u = 0; u < 2; u++) {
            fm__free(x->runs[i].busy[u]);
            fm__free(x->runs[i].computed[u]);
            fm__free(x->runs[i].copied[u]);
        }
    }
    fm__free(x->totals);
    fm__probe_close(&x->probe);
    fm__free(x);
}

fm_status fm_lab_probe(fm_machine *machine, const fm_lab_probe_options *options,
                       fm_lab_probe_callback *callback, void *user, char **json, fm_error *error) {
    fm_lab_probe_options o;
    fm_status status = resolve(machine, options, &o, error);
    if (status != FM_OK)
        return status;
    experiment *x = fm__alloc_zero(sizeof *x);
    char *before = fm_lab_stamp(machine);
    if (x == NULL || before == NULL) {
        fm__free(x);
        fm_free(before);
        return fm__error_memory(error, "probe", sizeof *x);
    }
    x->callback = callback;
    x->user = user;
    x->error = error;
    x->share = o.share;
    status = fm__probe_open(&x->probe, machine, &o, error);
    if (status == FM_OK && o.share < 0)
        status = find_share(x);
    if (status == FM_OK)
        status = prepare(x);
    if (status == FM_OK)
        status = measure(x);
    if (status == FM_OK)
        status = report(x, before, json);
    finish(x);
    fm_free(before);
    return status;
}
