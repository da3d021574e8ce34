/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/measure.c: how long a tape takes at some shares, and on an arm.
 *
 * Owns: a batch that fills a bucket's tape, and what was recorded of the tape at each of the shares
 * last asked for. Never does: search (exec/tune.h), or keep results. Called from: the calibrating
 * thread, which holds the engine's lock.
 *
 * What runs is the model's own tape with its own weights: hand-overs that consecutive products
 * share, weights that are fetched ahead and caches that are cold cost what they cost in a run.
 */
#include "engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "exec/median.h"

/* ---- a bucket's tape, filled ---- */

enum {
    CANDIDATES = 6,
    MOST_RUNS = 9,
    LONG_NS = 250000000, /* against what a first run pays for beside its work */
};

typedef struct candidate {
    double shares[FM__TUNE_CLASSES];
    bool whole;
    uint64_t used; /* when last; 0: there is none here */
    fm__plan *plan;
    fm__exec *exec;
} candidate;

struct fm__measure {
    fm_engine *engine;
    fm__bucket *bucket;
    uint32_t *pages, n_page; /* (n_group, n_page) */
    int32_t *token;          /* (rows) */
    uint32_t last;
    const uint32_t *tables[FM__MAX_GROUPS];
    fm__batch_view view;
    bool has_pages;
    fm__tape_classes classes;
    candidate candidates[CANDIDATES];
    uint64_t uses;
    fm__exec_span *spans; /* (n_span) */
    uint32_t n_span;
    double (*op_shares)[FM__MAX_UNITS]; /* (n_op) */
};

/* Pages for one sequence; false (and none taken) where the pools have too few. */
static bool take_pages(fm__measure *m) {
    fm_engine *engine = m->engine;
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        if (engine->pools[g].n_free < m->n_page)
            return false;
    }
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        m->tables[g] = m->pages + g * m->n_page;
        for (uint32_t p = 0; p < m->n_page; p++)
            m->pages[g * m->n_page + p] = fm__pool_take(&engine->pools[g]);
    }
    return true;
}

static void drop_pages(fm__measure *m) {
    for (uint32_t g = 0; m->has_pages && g < m->engine->model->n_group; g++) {
        for (uint32_t p = 0; p < m->n_page; p++)
            fm__pool_drop(&m->engine->pools[g], m->pages[g * m->n_page + p]);
    }
    m->has_pages = false;
}

/* The batch that fills the tape, or the context where that is shorter: one sequence, from its
   beginning. */
static fm_status fill(fm__measure *m, fm_error *error) {
    fm_engine *engine = m->engine;
    uint32_t rows = (uint32_t)fm__min_size(m->bucket->tape->max_rows, engine->context_length);
    m->n_page = (rows + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
    m->last = rows - 1;
    m->pages = fm__alloc_array((size_t)m->n_page * engine->model->n_group, sizeof(*m->pages));
    m->token = fm__alloc_array(rows, sizeof(*m->token));
    if (!m->pages || !m->token)
        return fm__error_memory(error, "calibration", rows * sizeof(*m->token));
    m->has_pages = take_pages(m);
    if (!m->has_pages)
        return fm__error(error, FM_ERROR_LIMIT, "page pool",
                         "calibration needs %u pages of %d tokens for a tape of %u rows", m->n_page,
                         FM__PAGE_TOKENS, rows);
    for (uint32_t i = 0; i < rows; i++) {
        m->token[i] = (int32_t)(i % engine->model->hparams.n_vocab);
        engine->stage_position[i] = i;
        engine->stage_sequence[i] = 0;
    }
    m->view = (fm__batch_view){.n_row = rows,
                               .token = m->token,
                               .position = engine->stage_position,
                               .sequence = engine->stage_sequence,
                               .n_output = 1,
                               .output_row = &m->last,
                               .n_sequence = 1,
                               .pages = m->tables,
                               .n_group = engine->model->n_group};
    return FM_OK;
}

fm_status fm__measure_create(fm__measure **out, fm_engine *engine, fm__bucket *bucket,
                             fm_error *error) {
    const fm__tape *tape = bucket->tape;
    fm__measure *m = fm__alloc_zero(sizeof(*m));
    if (!m)
        return fm__error_memory(error, "calibration", sizeof(*m));
    m->engine = engine;
    m->bucket = bucket;
    m->n_span = 2 * tape->n_op * engine->n_unit;
    m->spans = fm__alloc_array(m->n_span, sizeof(*m->spans));
    m->op_shares = fm__alloc_array(tape->n_op, sizeof(*m->op_shares));
    fm_status status = FM_OK;
    if (!m->spans || !m->op_shares)
        status = fm__error_memory(error, "calibration", m->n_span * sizeof(*m->spans));
    if (status == FM_OK)
        status = fm__classes_make(&m->classes, tape, error);
    if (status == FM_OK)
        status = fill(m, error);
    if (status != FM_OK)
        fm__measure_destroy(&m);
    else
        *out = m;
    return status;
}

static void drop(candidate *c) {
    fm__exec_destroy(&c->exec);
    fm__plan_destroy(&c->plan);
    *c = (candidate){.used = 0};
}

void fm__measure_destroy(fm__measure **measure) {
    if (!measure || !*measure)
        return;
    fm__measure *m = *measure;
    for (int i = 0; i < CANDIDATES; i++)
        drop(&m->candidates[i]);
    drop_pages(m);
    fm__classes_finish(&m->classes);
    fm__free(m->spans);
    fm__free(m->op_shares);
    fm__free(m->pages);
    fm__free(m->token);
    fm__free(m);
    *measure = NULL;
}

const fm__tape_classes *fm__measure_classes(const fm__measure *measure) {
    return &measure->classes;
}

uint32_t fm__measure_rows(const fm__measure *measure) {
    return measure->view.n_row;
}

double fm__measure_work(const fm__measure *measure) {
    return fm__choose_work(measure->engine, &measure->view);
}

/* ---- measuring ---- */

/* A time of a run that was cancelled means nothing: units have left ops out, and may have computed
   on what others left out. */
static fm_status time_run(fm__measure *m, fm__exec *exec, double *ns, fm_error *error) {
    fm__run *run = &m->engine->run;
    uint64_t point = 0, begin_ns = fm__now_ns();
    run->batch = &m->view;
    fm_status status = fm__exec_submit(exec, run, &point, error);
    if (status == FM_OK)
        status = fm__exec_wait(exec, point, run, error);
    run->batch = NULL;
    *ns = (double)(fm__now_ns() - begin_ns);
    if ((status == FM_OK || status == FM_ERROR_NUMERIC) && atomic_load(&m->engine->cancel))
        return fm__error(error, FM_ERROR_CANCELLED, "calibration", "cancelled during a run");
    return status;
}

static bool is_of(const candidate *c, const double *shares, bool whole) {
    return c->used && c->whole == whole && memcmp(c->shares, shares, sizeof(c->shares)) == 0;
}

/* The candidate with these shares, or the one that was not used for longest. */
static candidate *find(fm__measure *m, const double *shares, bool whole) {
    candidate *oldest = &m->candidates[0];
    for (int i = 0; i < CANDIDATES; i++) {
        candidate *c = &m->candidates[i];
        if (is_of(c, shares, whole))
            return c;
        if (c->used < oldest->used)
            oldest = c;
    }
    return oldest;
}

static fm_status make(fm__measure *m, const double *shares, bool whole, candidate *c,
                      fm_error *error) {
    fm_engine *engine = m->engine;
    const fm__tape *tape = m->bucket->tape;
    fm__plan_options options = fm__arms_options(engine);
    drop(c);
    fm__classes_give(&m->classes, engine, shares, tape->n_op, m->op_shares);
    options.op_shares = (const double(*)[FM__MAX_UNITS])m->op_shares;
    options.axis = whole ? FM__AXIS_PRODUCTS : options.axis;
    c->whole = whole;
    memcpy(c->shares, shares, sizeof(c->shares));
    fm_status status =
        fm__plan_make(&c->plan, tape, engine->units, engine->n_unit, &options, error);
    if (status == FM_OK)
        status = fm__exec_create(&c->exec, tape, c->plan, engine->units, engine->n_unit, error);
    return status;
}

fm_status fm__measure_shares(fm__measure *m, const double shares[FM__TUNE_CLASSES], bool whole,
                             fm__tune_times *times, double *beside_ns, fm_error *error) {
    uint64_t begin_ns = fm__now_ns();
    candidate *c = find(m, shares, whole);
    fm_status status = FM_OK;
    *times = (fm__tune_times){0};
    *beside_ns = 0;
    if (!is_of(c, shares, whole)) {
        status = make(m, shares, whole, c, error);
        if (status == FM_OK) /* a first run pays for more than itself */
            status = time_run(m, c->exec, &times->ns, error);
        *beside_ns = (double)(fm__now_ns() - begin_ns);
    }
    c->used = ++m->uses;
    if (times->ns > LONG_NS)
        *beside_ns = *beside_ns - times->ns;
    else if (status == FM_OK)
        status = time_run(m, c->exec, &times->ns, error);
    if (status != FM_OK) {
        drop(c);
        return status;
    }
    uint32_t n = fm__exec_spans(c->exec, m->spans, m->n_span);
    if (n <= m->n_span)
        fm__tune_add_spans(times, c->plan, m->engine->n_unit, m->classes.class_of, m->classes.work,
                           m->spans, n);
    return FM_OK;
}

fm_status fm__measure_arm(fm__measure *m, fm_arm arm, uint32_t runs, double *ns, fm_error *error) {
    double times[MOST_RUNS] = {0};
    fm__way *way;
    assert(runs > 0 && runs <= MOST_RUNS);
    fm_status status = fm__arms_way(m->engine, m->bucket, arm, &way, error);
    if (status == FM_OK)
        status = time_run(m, way->exec, ns, error);
    if (status == FM_OK && *ns > LONG_NS)
        return FM_OK;
    for (uint32_t i = 0; i < runs && status == FM_OK; i++)
        status = time_run(m, way->exec, &times[i], error);
    if (status == FM_OK)
        *ns = fm__median(times, runs);
    return status;
}

/* ---- classes ---- */

fm_status fm__classes_make(fm__tape_classes *out, const fm__tape *tape, fm_error *error) {
    *out = (fm__tape_classes){.n = 0};
    out->class_of = fm__alloc(tape->n_op);
    out->work = fm__alloc_array(tape->n_op, sizeof(*out->work));
    if (!out->class_of || !out->work) {
        fm__classes_finish(out);
        return fm__error_memory(error, "calibration", tape->n_op * (1 + sizeof(*out->work)));
    }
    for (uint32_t i = 0; i < tape->n_op; i++) {
        fm__shape shape;
        out->class_of[i] = FM__TUNE_NO_CLASS;
        out->work[i] = 0;
        if (!fm__shape_of(tape, i, &shape))
            continue;
        uint32_t c = 0;
        while (c < out->n && !fm__shape_equal(&out->shapes[c], &shape))
            c++;
        if (c == FM__TUNE_CLASSES)
            c--; /* what there are too many of goes with the last */
        if (c == out->n)
            out->shapes[out->n++] = shape;
        out->count[c]++;
        out->class_of[i] = (uint8_t)c;
        for (int k = 0; k < 2 && tape->ops[i].weight[k] != FM__NONE; k++)
            out->work[i] += (double)tape->weights[tape->ops[i].weight[k]]->bytes;
    }
    return FM_OK;
}

void fm__classes_finish(fm__tape_classes *classes) {
    fm__free(classes->class_of);
    fm__free(classes->work);
    *classes = (fm__tape_classes){.n = 0};
}

void fm__classes_give(const fm__tape_classes *classes, const fm_engine *engine,
                      const double shares[FM__TUNE_CLASSES], uint32_t n_op,
                      double (*op_shares)[FM__MAX_UNITS]) {
    for (uint32_t i = 0; i < n_op; i++) {
        memset(op_shares[i], 0, sizeof(op_shares[i]));
        if (classes->class_of[i] != FM__TUNE_NO_CLASS)
            fm__arms_give(engine, shares[classes->class_of[i]], op_shares[i]);
    }
}
