/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/measure.c: how long a product takes at a share, and a whole tape on an arm.
 *
 * Owns: small tapes of one shape of product, and what was recorded of them at each share. Never
 * does: search (exec/calibrate.h), or keep results. Called from: the calibrating thread, which
 * holds the engine's lock.
 *
 * A small tape goes through the products of that shape of several layers, with their real weights,
 * as many as no cache holds: quantise on the main unit, the divided product, and a read of its
 * whole result on the main unit. So both units work, caches are cold, and copies, borders and waits
 * cost what they cost in the model.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

enum {
    COLD_BYTES = 256 << 20, /* beyond the caches of today's processors */
    MANY_ROWS = 32,         /* from here on a product is long against what caches save */
    FEW_OPS = 2,
    MOST_OPS = 32,
};

/* ---- shapes ---- */

static bool is_product(const fm__op *op) {
    return op->kind == FM__OP_LINEAR || op->kind == FM__OP_LINEAR_GLU;
}

/* "blk.3.ffn_gate.weight": "ffn_gate" */
static void short_name(const char *name, char *out, size_t capacity) {
    const char *begin = name, *end;
    if (strncmp(name, "blk.", 4) == 0 && strchr(name + 4, '.'))
        begin = strchr(name + 4, '.') + 1;
    end = strstr(begin, ".weight");
    size_t bytes = end ? (size_t)(end - begin) : strlen(begin);
    snprintf(out, capacity, "%.*s", (int)bytes, begin);
}

bool fm__shape_of(const fm__tape *tape, uint32_t index, fm__shape *out) {
    const fm__op *op = &tape->ops[index];
    if (!is_product(op))
        return false;
    const fm__weight *w = tape->weights[op->weight[0]];
    bool glu = op->kind == FM__OP_LINEAR_GLU;
    *out = (fm__shape){.kind = op->kind,
                       .n = w->n,
                       .k = w->k,
                       .types = {w->type, glu ? tape->weights[op->weight[1]]->type : NULL},
                       .act = tape->tensors[op->in[0]].act,
                       .fast = op->fast,
                       .output = tape->tensors[op->out].rows == FM__ROWS_OUTPUT};
    char name[64], up[64] = "";
    short_name(w->name, name, sizeof(name));
    if (glu)
        short_name(tape->weights[op->weight[1]]->name, up, sizeof(up));
    const char *tail = strncmp(up, "ffn_", 4) == 0 ? up + 4 : up;
    snprintf(out->label, sizeof(out->label), "%.40s%s%.20s %ux%u %s", name, glu ? "+" : "", tail,
             w->n, w->k, w->type->name);
    return true;
}

bool fm__shape_equal(const fm__shape *a, const fm__shape *b) {
    return a->kind == b->kind && a->n == b->n && a->k == b->k && a->types[0] == b->types[0] &&
           a->types[1] == b->types[1] && a->act == b->act && a->fast == b->fast &&
           a->output == b->output;
}

uint32_t fm__shape_rows(const fm__shape *shape, const fm__tape *tape) {
    return shape->output ? 1 : tape->max_rows;
}

/* ---- the small tape ---- */

typedef struct candidate {
    double share;
    fm__plan *plan;
    fm__exec *exec;
} candidate;

struct fm__measure {
    fm_engine *engine;
    fm__tape *tape;
    uint32_t rows;
    fm__run run; /* the engine's, or slots of its own where the small tape needs more */
    fm__buffer *slots[FM__SLOT_COUNT], *mirrors[FM__SLOT_COUNT];
    candidate candidates[FM__SEARCH_POINTS];
    uint32_t n_candidate;
    fm__weight input;       /* a table of one row: the activations of every token */
    fm__buffer *input_copy; /* the GPU's; NULL: there is no GPU */
    fm__weight **weights;   /* (n_weight) the model's, and `input` behind them */
    float *row;             /* (k) */
    uint32_t output_row;
    uint32_t *position, *sequence; /* (rows) */
    int32_t *token;
};

static void add_product(fm__tape *tape, const fm__shape *shape, const fm__op *like, int16_t x,
                        int16_t act, int16_t out, int16_t read) {
    if (act != x) {
        fm__op *quantise = fm__tape_op(tape, FM__OP_QUANTISE, like->layer);
        quantise->in[0] = x;
        quantise->out = act;
    }
    fm__op *product = fm__tape_op(tape, shape->kind, like->layer);
    product->in[0] = act;
    product->out = out;
    product->weight[0] = like->weight[0];
    product->weight[1] = like->weight[1];
    product->glu = like->glu;
    product->fast = like->fast;
    if (read == FM__NONE)
        return;
    fm__op *select = fm__tape_op(tape, FM__OP_SELECT, like->layer);
    select->in[0] = out;
    select->out = read;
}

/* How many products of the shape it takes. */
static uint32_t enough(uint32_t rows, size_t bytes) {
    size_t n = rows >= MANY_ROWS ? FEW_OPS : COLD_BYTES / fm__max_size(bytes, 1) + 1;
    return (uint32_t)fm__min_size(n, MOST_OPS);
}

static fm_status record(fm__measure *m, const fm__tape *like, const fm__shape *shape,
                        fm_error *error) {
    fm_status status = fm__tape_create(&m->tape, m->rows, 1, error);
    if (status != FM_OK)
        return status;
    fm__tape *tape = m->tape;
    tape->weights = m->weights;
    tape->n_weight = like->n_weight + 1;
    fm__rows rows = FM__ROWS_BATCH;
    /* The model's output lies in the output slot, where the host reads it: nobody else does. */
    fm__slot slot = shape->output ? FM__SLOT_OUTPUT : FM__SLOT_SCRATCH;
    int16_t x = fm__tape_tensor(tape, "x", FM__ACT_F32, shape->k, rows, FM__SLOT_SCRATCH), act = x;
    if (shape->act != FM__ACT_F32)
        act = fm__tape_tensor(tape, "act", shape->act, shape->k, rows, FM__SLOT_SCRATCH);
    int16_t out = fm__tape_tensor(tape, "out", FM__ACT_F32, shape->n, rows, slot), read = FM__NONE;
    if (!shape->output)
        read = fm__tape_tensor(tape, "read", FM__ACT_F32, shape->n, FM__ROWS_OUTPUT, slot);
    fm__op *embed = fm__tape_op(tape, FM__OP_EMBED, FM__NONE);
    embed->out = x;
    embed->weight[0] = (int16_t)like->n_weight;
    uint32_t n = 0, want = 1;
    for (uint32_t i = 0; i < like->n_op && n < want; i++) {
        fm__shape other;
        if (!fm__shape_of(like, i, &other) || !fm__shape_equal(&other, shape))
            continue;
        want = enough(m->rows, like->weights[like->ops[i].weight[0]]->bytes);
        add_product(tape, shape, &like->ops[i], x, act, out, read);
        n++;
    }
    return fm__tape_finish(tape, error);
}

/* The first op of the tape fills the activations from here. */
static fm_status make_input(fm__measure *m, const fm__tape *like, const fm__shape *shape,
                            fm_error *error) {
    size_t bytes = shape->k * sizeof(float);
    uint32_t n = like->n_weight;
    fm__random random;
    fm__random_seed(&random, 1);
    m->row = fm__alloc(bytes);
    m->weights = fm__alloc_array(n + 1, sizeof(fm__weight *));
    if (!m->row || !m->weights)
        return fm__error_memory(error, "calibration", bytes + n * sizeof(fm__weight *));
    for (uint32_t i = 0; i < shape->k; i++)
        m->row[i] = fm__random_normal(&random);
    memcpy(m->weights, like->weights, n * sizeof(fm__weight *));
    m->weights[n] = &m->input;
    m->input = (fm__weight){.name = "calibration input",
                            .role = FM__ROLE_GATHER,
                            .type = fm__type_get(FM__F32),
                            .groups = 1,
                            .n = 1,
                            .k = shape->k,
                            .host = (const uint8_t *)m->row,
                            .bytes = bytes,
                            .row_bytes = bytes};
    m->input.ranges[m->input.n_ranges++] = (fm__weight_range){.residency = FM__RESIDENCY_MAPPED};
    if (!m->engine->gpu)
        return FM_OK;
    fm_status status =
        fm__device_buffer_create(m->engine->gpu, bytes, FM__MEMORY_LOCAL, &m->input_copy, error);
    if (status == FM_OK)
        status = fm__device_buffer_write(m->input_copy, 0, m->row, bytes, error);
    m->input.ranges[m->input.n_ranges++] =
        (fm__weight_range){.residency = FM__RESIDENCY_RESIDENT, .buffer = m->input_copy};
    return status;
}

static fm_status bind(fm__measure *m, fm_error *error) {
    const size_t need[FM__SLOT_COUNT] = {
        [FM__SLOT_SCRATCH] = m->tape->scratch_bytes, [FM__SLOT_OUTPUT] = m->tape->output_bytes};
    m->run = m->engine->run;
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++) {
        if (need[slot] <= m->run.buffers[slot]->bytes)
            continue;
        fm_status status = fm__buffers_slot(m->engine, (fm__slot)slot, need[slot], &m->slots[slot],
                                            &m->mirrors[slot], error);
        if (status != FM_OK)
            return status;
        m->run.buffers[slot] = m->slots[slot];
        m->run.mirrors[slot] = m->mirrors[slot];
    }
    return FM_OK;
}

fm_status fm__measure_create(fm__measure **out, fm_engine *engine, const fm__tape *like,
                             const fm__shape *shape, uint32_t rows, fm_error *error) {
    fm__measure *m = fm__alloc_zero(sizeof(*m));
    if (!m)
        return fm__error_memory(error, "calibration", sizeof(*m));
    m->engine = engine;
    m->rows = rows;
    m->token = fm__alloc_array(rows, sizeof(*m->token));
    m->position = fm__alloc_array(rows, sizeof(*m->position));
    m->sequence = fm__alloc_array(rows, sizeof(*m->sequence));
    fm_status status = FM_OK;
    if (!m->token || !m->position || !m->sequence)
        status = fm__error_memory(error, "calibration", rows * 3 * sizeof(uint32_t));
    if (status == FM_OK)
        status = make_input(m, like, shape, error);
    if (status == FM_OK)
        status = record(m, like, shape, error);
    if (status == FM_OK)
        status = bind(m, error);
    if (status != FM_OK)
        fm__measure_destroy(&m);
    else
        *out = m;
    return status;
}

void fm__measure_destroy(fm__measure **measure) {
    if (!measure || !*measure)
        return;
    fm__measure *m = *measure;
    for (uint32_t i = m->n_candidate; i-- > 0;) {
        fm__exec_destroy(&m->candidates[i].exec);
        fm__plan_destroy(&m->candidates[i].plan);
    }
    fm__tape_destroy(&m->tape);
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++) {
        fm__device_buffer_destroy(&m->mirrors[slot]);
        fm__device_buffer_destroy(&m->slots[slot]);
    }
    fm__device_buffer_destroy(&m->input_copy);
    fm__free(m->weights);
    fm__free(m->row);
    fm__free(m->token);
    fm__free(m->position);
    fm__free(m->sequence);
    fm__free(m);
    *measure = NULL;
}

/* ---- measuring ---- */

static fm_status time_run(fm__run *run, fm__exec *exec, const fm__batch_view *view, double *ns,
                          fm_error *error) {
    uint64_t point = 0, begin_ns = fm__now_ns();
    run->batch = view;
    fm_status status = fm__exec_submit(exec, run, &point, error);
    if (status == FM_OK)
        status = fm__exec_wait(exec, point, run, error);
    run->batch = NULL;
    *ns = (double)(fm__now_ns() - begin_ns);
    return status;
}

static fm_status run_small(fm__measure *m, fm__exec *exec, double *ns, fm_error *error) {
    const fm__batch_view view = {
        .n_row = m->rows,
        .token = m->token,
        .position = m->position,
        .sequence = m->sequence,
        .n_output = 1,
        .output_row = &m->output_row,
        .n_sequence = 1,
    };
    return time_run(&m->run, exec, &view, ns, error);
}

static fm_status make_candidate(fm__measure *m, double share, candidate *c, fm_error *error) {
    fm_engine *engine = m->engine;
    fm__plan_options options = fm__arms_options(engine);
    fm__arms_give(engine, share, options.shares);
    c->share = share;
    fm_status status =
        fm__plan_make(&c->plan, m->tape, engine->units, engine->n_unit, &options, error);
    if (status == FM_OK)
        status = fm__exec_create(&c->exec, m->tape, c->plan, engine->units, engine->n_unit, error);
    return status;
}

fm_status fm__measure_share(fm__measure *m, double share, double *ns, fm_error *error) {
    candidate *c = NULL;
    for (uint32_t i = 0; i < m->n_candidate; i++) {
        if (m->candidates[i].share == share)
            c = &m->candidates[i];
    }
    if (c)
        return run_small(m, c->exec, ns, error);
    if (m->n_candidate == FM__SEARCH_POINTS)
        return fm__error(error, FM_ERROR_LIMIT, "calibration", "more than %d shares",
                         FM__SEARCH_POINTS);
    c = &m->candidates[m->n_candidate];
    fm_status status = make_candidate(m, share, c, error);
    if (status == FM_OK) /* a first run pays for more than itself */
        status = run_small(m, c->exec, ns, error);
    if (status == FM_OK)
        status = run_small(m, c->exec, ns, error);
    if (status != FM_OK) {
        fm__exec_destroy(&c->exec);
        fm__plan_destroy(&c->plan);
        return status;
    }
    m->n_candidate++;
    return FM_OK;
}

/* ---- whole tapes ---- */

/* Pages for one sequence of `rows` tokens; false (and none taken) where the pools have too few. */
static bool take_pages(fm_engine *engine, uint32_t *pages, uint32_t n) {
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        if (engine->pools[g].n_free < n)
            return false;
    }
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        for (uint32_t p = 0; p < n; p++)
            pages[g * n + p] = fm__pool_take(&engine->pools[g]);
    }
    return true;
}

static void drop_pages(fm_engine *engine, const uint32_t *pages, uint32_t n) {
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        for (uint32_t p = 0; p < n; p++)
            fm__pool_drop(&engine->pools[g], pages[g * n + p]);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

fm_status fm__measure_tape(fm_engine *engine, fm__bucket *bucket, fm_arm arm, double *ns,
                           double *work, fm_error *error) {
    enum { RUNS = 5 };
    fm__way *way;
    uint32_t rows = bucket->tape->max_rows, n = (rows + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
    uint32_t last = rows - 1;
    fm_status status = fm__arms_way(engine, bucket, arm, &way, error);
    if (status != FM_OK)
        return status;
    uint32_t *pages = fm__alloc_array((size_t)n * engine->model->n_group, sizeof(*pages));
    int32_t *token = fm__alloc_array(rows, sizeof(*token));
    if (!pages || !token) {
        status = fm__error_memory(error, "calibration", rows * sizeof(*token));
        goto done;
    }
    if (rows > engine->context_length || !take_pages(engine, pages, n)) {
        status = fm__error(error, FM_ERROR_LIMIT, "page pool",
                           "calibration needs %u pages of %d tokens for a tape of %u rows", n,
                           FM__PAGE_TOKENS, rows);
        goto done;
    }
    const uint32_t *tables[FM__MAX_GROUPS];
    for (uint32_t g = 0; g < engine->model->n_group; g++)
        tables[g] = pages + g * n;
    for (uint32_t i = 0; i < rows; i++) {
        token[i] = (int32_t)(i % engine->model->hparams.n_vocab);
        engine->stage_position[i] = i;
        engine->stage_sequence[i] = 0;
    }
    const fm__batch_view view = {.n_row = rows,
                                 .token = token,
                                 .position = engine->stage_position,
                                 .sequence = engine->stage_sequence,
                                 .n_output = 1,
                                 .output_row = &last,
                                 .n_sequence = 1,
                                 .pages = tables,
                                 .n_group = engine->model->n_group};
    double times[RUNS], first;
    status = time_run(&engine->run, way->exec, &view, &first, error);
    for (int i = 0; i < RUNS && status == FM_OK; i++)
        status = time_run(&engine->run, way->exec, &view, &times[i], error);
    qsort(times, RUNS, sizeof(*times), ascending);
    *ns = times[RUNS / 2];
    *work = fm__choose_work(engine, &view);
    drop_pages(engine, pages, n);
done:
    fm__free(pages);
    fm__free(token);
    return status;
}
