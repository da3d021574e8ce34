/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/run.c: runs of a tape over its plan's units.
 *
 * Owns: recordings and one timeline a unit. Never does: allocate or block while submitting. Called
 * from: the loading thread (create, destroy) and the running thread (submit, wait).
 *
 * Each unit gets its ops, in the tape's order, as segments. A segment ends right after an op that
 * another unit needs, and begins at an op that needs another unit's: it waits for that unit's
 * timeline, and signals its own. Waits only ever name earlier ops, so no two units can wait for
 * each other. A run raises every timeline by the same `span`, whichever unit has fewer segments;
 * its first segments wait for the other units' previous run, as both use the same scratch.
 */
#include <string.h>

#include "exec/exec.h"

typedef struct unit_run {
    fm__segment *segments; /* values relative to a run's base */
    uint32_t n_segment;    /* 0: the plan gives the unit nothing */
    fm__timeline timeline;
} unit_run;

struct fm__exec {
    const fm__tape *tape;
    fm__device *units[FM__MAX_UNITS];
    uint32_t n_unit;
    unit_run runs[FM__MAX_UNITS];
    uint64_t base; /* timeline value at which the next run begins */
    uint64_t span;
};

/* ---- laying out segments ---- */

enum { NO_WAIT = -1, WAIT_PREVIOUS_RUN = -2 };

/* What a unit does with one op. */
typedef struct cell {
    bool present;                /* the unit computes (part of) the op */
    bool cut_after;              /* another unit waits for it */
    uint32_t number;             /* of the segment that holds it, from 1 */
    int32_t wait[FM__MAX_UNITS]; /* op of unit v to wait for before it, or NO_WAIT, ... */
} cell;

typedef struct layout {
    const fm__tape *tape;
    const fm__plan *plan;
    fm__device *const *units;
    uint32_t n_unit;
    cell *cells; /* [unit][op] */
    bool used[FM__MAX_UNITS];
    fm_error *error;
} layout;

static cell *cell_of(const layout *l, uint32_t unit, uint32_t op) {
    return &l->cells[(size_t)unit * l->plan->n_op + op];
}

static void place_ops(layout *l) {
    for (uint32_t u = 0; u < l->n_unit; u++)
        for (uint32_t i = 0; i < l->plan->n_op; i++)
            for (uint32_t v = 0; v < l->n_unit; v++)
                cell_of(l, u, i)->wait[v] = NO_WAIT;
    for (uint32_t i = 0; i < l->plan->n_op; i++)
        for (uint32_t r = 0; r < l->plan->ops[i].n_range; r++) {
            uint32_t unit = l->plan->ops[i].ranges[r].unit;
            cell_of(l, unit, i)->present = true;
            l->used[unit] = true;
        }
}

/* The last op before `op` that unit v computes and `op` depends on, or NO_WAIT. */
static int32_t producer(const layout *l, uint32_t v, uint32_t op, int32_t seen) {
    for (int32_t j = (int32_t)op - 1; j > seen; j--)
        if (cell_of(l, v, (uint32_t)j)->present &&
            fm__tape_depends(l->tape, (uint32_t)j, op) != FM__DEPENDENCE_NONE)
            return j;
    return NO_WAIT;
}

/* Unit u's waits for unit v: one wherever an op needs something later than what was waited for. */
static void find_waits(layout *l, uint32_t u, uint32_t v) {
    int32_t seen = -1; /* v's ops up to here are known to be done */
    bool first = true;
    for (uint32_t i = 0; i < l->plan->n_op; i++) {
        cell *c = cell_of(l, u, i);
        if (!c->present)
            continue;
        int32_t op = producer(l, v, i, seen);
        if (op != NO_WAIT) {
            c->wait[v] = op;
            cell_of(l, v, (uint32_t)op)->cut_after = true;
            seen = op;
        } else if (first)
            c->wait[v] = WAIT_PREVIOUS_RUN;
        first = false;
    }
}

static uint32_t count_waits(const layout *l, const cell *c) {
    uint32_t n = 0;
    for (uint32_t v = 0; v < l->n_unit; v++)
        n += c->wait[v] != NO_WAIT;
    return n;
}

/* Numbers the segments of unit u; returns how many entries its submission has, wait-only ones
   included, and in *n_signal how many signal. */
static uint32_t number_segments(layout *l, uint32_t u, uint32_t *n_signal) {
    uint32_t number = 0, entries = 0;
    bool open = false;
    for (uint32_t i = 0; i < l->plan->n_op; i++) {
        cell *c = cell_of(l, u, i);
        if (!c->present)
            continue;
        uint32_t waits = count_waits(l, c);
        if (!open || waits > 0) {
            number++;
            entries += waits > 1 ? waits : 1;
        }
        c->number = number;
        open = !c->cut_after;
    }
    *n_signal = number;
    return entries;
}

/* The ranges of unit u's segment that begins at op `first`; *next is the op after it. */
static uint32_t collect(const layout *l, uint32_t u, uint32_t first, fm__op_range *ranges,
                        uint32_t *next) {
    uint32_t number = cell_of(l, u, first)->number, n = 0, i = first;
    for (; i < l->plan->n_op; i++) {
        if (!cell_of(l, u, i)->present)
            continue;
        if (cell_of(l, u, i)->number != number)
            break;
        const fm__plan_op *op = &l->plan->ops[i];
        for (uint32_t r = 0; r < op->n_range; r++)
            if (op->ranges[r].unit == u)
                ranges[n++] = (fm__op_range){.op = i,
                                             .axis = op->axis,
                                             .begin = op->ranges[r].range.begin,
                                             .end = op->ranges[r].range.end};
    }
    *next = i;
    return n;
}

/* The waits of the segment that begins with `c`: all but the last become entries of their own, the
   last is the segment's. */
static void add_waits(const layout *l, fm__exec *exec, const cell *c, unit_run *run) {
    for (uint32_t v = 0; v < l->n_unit; v++) {
        if (c->wait[v] == NO_WAIT)
            continue;
        fm__segment *s = &run->segments[run->n_segment];
        if (s->wait != NULL)
            s = &run->segments[++run->n_segment];
        s->wait = &exec->runs[v].timeline;
        s->wait_value =
            c->wait[v] == WAIT_PREVIOUS_RUN ? 0 : cell_of(l, v, (uint32_t)c->wait[v])->number;
    }
}

static fm_status record_unit(const layout *l, fm__exec *exec, uint32_t u, fm__op_range *ranges) {
    unit_run *run = &exec->runs[u];
    uint32_t i = 0, n_signal = 0;
    while (i < l->plan->n_op) {
        const cell *c = cell_of(l, u, i);
        if (!c->present) {
            i++;
            continue;
        }
        add_waits(l, exec, c, run);
        fm__segment *s = &run->segments[run->n_segment++];
        uint32_t n = collect(l, u, i, ranges, &i);
        s->signal = &run->timeline;
        s->signal_value = ++n_signal;
        fm_status status =
            fm__device_record(l->units[u], l->tape, ranges, n, &s->recording, l->error);
        if (status != FM_OK)
            return status;
    }
    run->segments[run->n_segment - 1].signal_value = exec->span;
    return FM_OK;
}

static fm_status lay_out(layout *l, fm__exec *exec, fm__op_range *ranges) {
    place_ops(l);
    for (uint32_t u = 0; u < l->n_unit; u++)
        for (uint32_t v = 0; v < l->n_unit; v++)
            if (u != v && l->used[u] && l->used[v])
                find_waits(l, u, v);
    uint32_t entries[FM__MAX_UNITS];
    for (uint32_t u = 0; u < l->n_unit; u++) {
        uint32_t n_signal;
        entries[u] = number_segments(l, u, &n_signal);
        exec->span = n_signal > exec->span ? n_signal : exec->span;
    }
    for (uint32_t u = 0; u < l->n_unit; u++) {
        if (!l->used[u])
            continue;
        exec->runs[u].segments = fm__alloc_array(entries[u], sizeof(fm__segment));
        if (exec->runs[u].segments == NULL)
            return fm__error_memory(l->error, "exec", entries[u] * sizeof(fm__segment));
        fm_status status = record_unit(l, exec, u, ranges);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* ---- life ---- */

static fm_status check_plan(const fm__tape *tape, const fm__plan *plan, uint32_t n_unit,
                            fm_error *error) {
    if (n_unit == 0 || n_unit > FM__MAX_UNITS || plan->n_op != tape->n_op)
        return fm__error(error, FM_ERROR_ARGUMENT, "exec",
                         "a plan of %u ops over %u units for a tape of %u ops", plan->n_op, n_unit,
                         tape->n_op);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        const fm__plan_op *op = &plan->ops[i];
        bool sound = op->n_range > 0 && op->n_range <= FM__MAX_UNITS;
        for (uint32_t r = 0; sound && r < op->n_range; r++)
            sound = op->ranges[r].unit < n_unit;
        if (!sound)
            return fm__error(error, FM_ERROR_ARGUMENT, "exec",
                             "the plan gives op %u to no unit, or to one that is not there", i);
    }
    if (n_unit > 1 && plan->deps != FM__DEPS_EVENT)
        return fm__error(error, FM_ERROR_UNSUPPORTED, "exec",
                         "several units are ordered by events only");
    return FM_OK;
}

fm_status fm__exec_create(fm__exec **out, const fm__tape *tape, const fm__plan *plan,
                          fm__device *const *units, uint32_t n_unit, fm_error *error) {
    fm_status status = check_plan(tape, plan, n_unit, error);
    if (status != FM_OK)
        return status;
    fm__exec *exec = fm__alloc_zero(sizeof *exec);
    layout l = {.tape = tape, .plan = plan, .units = units, .n_unit = n_unit, .error = error};
    l.cells = fm__alloc_array((size_t)n_unit * plan->n_op, sizeof *l.cells);
    /* A segment of one unit holds at most all ops, each once a range. */
    fm__op_range *ranges = fm__alloc_array((size_t)plan->n_op * FM__MAX_UNITS, sizeof *ranges);
    if (exec == NULL || l.cells == NULL || ranges == NULL) {
        status = fm__error_memory(error, "exec", (size_t)n_unit * plan->n_op * sizeof *l.cells);
        goto done;
    }
    exec->tape = tape;
    exec->n_unit = n_unit;
    for (uint32_t u = 0; u < n_unit; u++) {
        exec->units[u] = units[u];
        fm__timeline_init(&exec->runs[u].timeline);
    }
    status = lay_out(&l, exec, ranges);

done:
    fm__free(ranges);
    fm__free(l.cells);
    if (status != FM_OK)
        fm__exec_destroy(&exec);
    else
        *out = exec;
    return status;
}

void fm__exec_destroy(fm__exec **exec) {
    if (exec == NULL || *exec == NULL)
        return;
    /* Destroying a recording waits for its device to let go of the timelines. */
    for (uint32_t u = 0; u < (*exec)->n_unit; u++)
        for (uint32_t i = 0; i < (*exec)->runs[u].n_segment; i++)
            fm__device_recording_destroy(&(*exec)->runs[u].segments[i].recording);
    for (uint32_t u = 0; u < (*exec)->n_unit; u++)
        fm__free((*exec)->runs[u].segments);
    fm__free(*exec);
    *exec = NULL;
}

/* ---- running ---- */

/* Unit `failed` and those after it have nothing of the run that others already work on: takes
   their part, so that the others come to an end, and waits for that. */
static void abandon(fm__exec *exec, const fm__run *run, uint32_t failed, uint64_t point) {
    fm__run_status_report(run->status, 0, 0, FM_ERROR_DEVICE);
    for (uint32_t u = failed; u < exec->n_unit; u++) {
        if (exec->runs[u].n_segment == 0)
            continue;
        fm__timeline_wait(&exec->runs[u].timeline, exec->base);
        fm__timeline_signal(&exec->runs[u].timeline, point);
    }
    for (uint32_t u = 0; u < failed; u++)
        if (exec->runs[u].n_segment != 0)
            fm__timeline_wait(&exec->runs[u].timeline, point);
    exec->base = point;
}

fm_status fm__exec_submit(fm__exec *exec, const fm__run *run, uint64_t *point, fm_error *error) {
    uint64_t end = exec->base + exec->span;
    bool begun = false;
    if (run->status != NULL)
        fm__run_status_clear(run->status);
    for (uint32_t u = 0; u < exec->n_unit; u++) {
        const unit_run *r = &exec->runs[u];
        if (r->n_segment == 0)
            continue;
        fm_status status =
            fm__device_submit(exec->units[u], r->segments, r->n_segment, run, exec->base, error);
        if (status != FM_OK) {
            if (begun)
                abandon(exec, run, u, end);
            return status;
        }
        begun = true;
    }
    exec->base = end;
    *point = end;
    return FM_OK;
}

static fm_status failure(const fm__exec *exec, const fm__run *run, uint64_t first,
                         fm_error *error) {
    uint32_t op = (uint32_t)(first >> 32), row = (uint32_t)first;
    fm_status code = (fm_status)atomic_load(&run->status->status);
    char place[160];
    fm__op_describe(exec->tape, op, place, sizeof place);
    if (row >= run->batch->n_row)
        return fm__error(error, code, place, "row %u: %s", row, fm_status_text(code));
    return fm__error(error, code, place, "row %u (token %d at position %u): %s", row,
                     run->batch->token[row], run->batch->position[row],
                     code == FM_ERROR_NUMERIC ? "a value is not finite, or is 2^100 or above"
                                              : fm_status_text(code));
}

fm_status fm__exec_wait(fm__exec *exec, uint64_t point, const fm__run *run, fm_error *error) {
    for (uint32_t u = 0; u < exec->n_unit; u++)
        if (exec->runs[u].n_segment != 0)
            fm__timeline_wait(&exec->runs[u].timeline, point);
    uint64_t first = atomic_load(&run->status->first);
    return first == UINT64_MAX ? FM_OK : failure(exec, run, first, error);
}
