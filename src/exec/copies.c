/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/copies.c: what a unit with its own instance of the scratch must fetch and hand out.
 *
 * Owns: nothing. Never does: decide who computes what. Called from: the loading thread. Pure.
 *
 * Every tensor of the scratch has two instances: the device's, and the mirror that all other units
 * address. The plan is followed op by op, keeping for each side which cells of a tensor hold its
 * value. A cell is a range of columns in a range of rows, between the borders at which the plan
 * cuts that tensor anywhere. What an op reads on a side where it does not stand is copied there:
 * to the mirror right behind the op that made it, so that it runs early; to the device right before
 * the op that reads it. Tensors share memory alike in both instances, so writing one ends the
 * others that lie there; the waits that this needs are those of the ops themselves (layout.c).
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

enum { DEVICE, MIRROR, SIDES };

typedef struct cell {
    bool valid[SIDES];
    uint32_t producer; /* the op behind which the device's instance holds it */
} cell;

typedef struct grid {
    uint32_t *cols, *rows; /* ascending borders: columns, token parts; none: not in the scratch */
    uint32_t n_col, n_row; /* spaces between them */
    cell *cells;           /* (n_row, n_col) */
} grid;

typedef struct follower {
    fm__plan *plan;
    const fm__tape *tape;
    uint32_t unit;
    grid *grids; /* one a tensor */
    uint32_t capacity;
    fm_error *error;
} follower;

/* A part of a tensor. */
typedef struct area {
    int16_t tensor;
    fm__range cols, rows;
} area;

/* ---- what ops touch ---- */

static area all_of(const fm__tape *tape, int16_t tensor) {
    return (area){tensor, {0, tape->tensors[tensor].cols}, {0, FM__TOKEN_PARTS}};
}

/* The part of `tensor` that a range of an op has to do with. */
static area part_of(const fm__tape *tape, int16_t tensor, fm__axis axis, fm__range range) {
    area a = all_of(tape, tensor);
    if (axis == FM__AXIS_CHANNELS)
        a.cols = range;
    if (axis == FM__AXIS_TOKENS)
        a.rows = (fm__range){range.begin, range.end == 0 ? FM__TOKEN_PARTS : range.end};
    return a;
}

static bool in_scratch(const fm__tape *tape, int16_t tensor) {
    return tensor != FM__NONE && tape->tensors[tensor].slot == FM__SLOT_SCRATCH;
}

/* What range r of op `index` reads; returns how many areas. */
static uint32_t reads(const fm__plan *plan, const fm__tape *tape, uint32_t index, uint32_t r,
                      area out[3]) {
    const fm__op *op = &tape->ops[index];
    const fm__plan_op *planned = &plan->ops[index];
    fm__axis axis = planned->axis;
    fm__range range = planned->ranges[r].range;
    uint32_t n = 0;
    for (int i = 0; i < 2; i++) {
        if (!in_scratch(tape, op->in[i]))
            continue;
        /* A channel of an op needs its input's whole rows, but of a residual only itself. A SELECT
           picks its rows anywhere. */
        bool residual = i == 1 && op->kind == FM__OP_LINEAR;
        bool whole = op->kind == FM__OP_SELECT || (axis == FM__AXIS_CHANNELS && !residual);
        out[n++] = whole ? all_of(tape, op->in[i]) : part_of(tape, op->in[i], axis, range);
    }
    if (op->kind == FM__OP_ROPE && in_scratch(tape, op->out)) /* in place */
        out[n++] = part_of(tape, op->out, axis, range);
    return n;
}

/* ---- grids ---- */

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t sort_unique(uint32_t *values, uint32_t n) {
    uint32_t kept = 0;
    qsort(values, n, sizeof *values, ascending);
    for (uint32_t i = 0; i < n; i++)
        if (kept == 0 || values[kept - 1] != values[i])
            values[kept++] = values[i];
    return kept;
}

/* Where the plan cuts a tensor, unsorted, as many in cols[] as in rows[]: how many. */
static uint32_t borders_of(const follower *f, int16_t tensor, uint32_t *cols, uint32_t *rows) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->plan->n_op; i++) {
        const fm__op *op = &f->tape->ops[i];
        if (op->out != tensor && op->in[0] != tensor && op->in[1] != tensor)
            continue;
        for (uint32_t r = 0; r < f->plan->ops[i].n_range; r++) {
            area areas[4];
            uint32_t n_area = reads(f->plan, f->tape, i, r, areas);
            if (op->out == tensor)
                areas[n_area++] =
                    part_of(f->tape, tensor, f->plan->ops[i].axis, f->plan->ops[i].ranges[r].range);
            for (uint32_t a = 0; a < n_area; a++) {
                if (areas[a].tensor != tensor)
                    continue;
                cols[n] = areas[a].cols.begin;
                rows[n++] = areas[a].rows.begin;
                cols[n] = areas[a].cols.end;
                rows[n++] = areas[a].rows.end;
            }
        }
    }
    return n;
}

static fm_status make_grid(follower *f, int16_t tensor, uint32_t *cols, uint32_t *rows) {
    grid *g = &f->grids[tensor];
    uint32_t n = in_scratch(f->tape, tensor) ? borders_of(f, tensor, cols, rows) : 0;
    if (n == 0)
        return FM_OK;
    uint32_t n_col = sort_unique(cols, n), n_row = sort_unique(rows, n);
    g->n_col = n_col - 1;
    g->n_row = n_row - 1;
    g->cols = fm__alloc_array(n_col, sizeof *g->cols);
    g->rows = fm__alloc_array(n_row, sizeof *g->rows);
    g->cells = fm__alloc_array((size_t)g->n_col * g->n_row, sizeof *g->cells);
    if (g->cols == NULL || g->rows == NULL || g->cells == NULL)
        return fm__error_memory(f->error, "plan", (size_t)n_col * n_row * sizeof *g->cells);
    memcpy(g->cols, cols, n_col * sizeof *cols);
    memcpy(g->rows, rows, n_row * sizeof *rows);
    return FM_OK;
}

static fm_status make_grids(follower *f) {
    fm_status status = FM_OK;
    size_t most = 0; /* borders of a tensor: four areas a range at most, two borders an area */
    for (uint32_t i = 0; i < f->plan->n_op; i++)
        most += 8 * f->plan->ops[i].n_range;
    uint32_t *borders = fm__alloc_array(2 * most, sizeof *borders);
    f->grids = fm__alloc_array(f->tape->n_tensor, sizeof *f->grids);
    if (borders == NULL || f->grids == NULL)
        status = fm__error_memory(f->error, "plan", 2 * most * sizeof *borders);
    for (uint32_t t = 0; t < f->tape->n_tensor && status == FM_OK; t++)
        status = make_grid(f, (int16_t)t, borders, borders + most);
    fm__free(borders);
    return status;
}

static void free_grids(follower *f) {
    for (uint32_t t = 0; f->grids != NULL && t < f->tape->n_tensor; t++) {
        fm__free(f->grids[t].cells);
        fm__free(f->grids[t].rows);
        fm__free(f->grids[t].cols);
    }
    fm__free(f->grids);
}

static cell *cell_at(const grid *g, uint32_t row, uint32_t col) {
    return &g->cells[(size_t)row * g->n_col + col];
}

static bool inside(const grid *g, uint32_t row, uint32_t col, const area *a) {
    return g->cols[col] >= a->cols.begin && g->cols[col + 1] <= a->cols.end &&
           g->rows[row] >= a->rows.begin && g->rows[row + 1] <= a->rows.end;
}

/* ---- copies ---- */

static fm_status add_copy(follower *f, const fm__plan_copy *copy) {
    fm__plan *plan = f->plan;
    if (plan->n_copy > 0) { /* goes on where the one before it ends */
        fm__plan_copy *last = &plan->copies[plan->n_copy - 1];
        if (last->op == copy->op && last->copy == copy->copy && last->tensor == copy->tensor &&
            last->axis == copy->axis && last->range.end == copy->range.begin) {
            last->range.end = copy->range.end;
            return FM_OK;
        }
    }
    if (plan->n_copy == f->capacity) {
        uint32_t capacity = f->capacity == 0 ? 64 : 2 * f->capacity;
        fm__plan_copy *copies = fm__realloc(plan->copies, capacity * sizeof *copies);
        if (copies == NULL)
            return fm__error_memory(f->error, "plan", capacity * sizeof *copies);
        plan->copies = copies;
        f->capacity = capacity;
    }
    plan->copies[plan->n_copy++] = *copy;
    return FM_OK;
}

/* A line is a column of cells, or a row of them: what one copy can move. */
typedef struct line {
    bool by_rows;
    uint32_t index;
} line;

static uint32_t line_cells(const grid *g, line l) {
    return l.by_rows ? g->n_col : g->n_row;
}

static cell *line_cell(const grid *g, line l, uint32_t i) {
    return l.by_rows ? cell_at(g, l.index, i) : cell_at(g, i, l.index);
}

static bool line_inside(const grid *g, line l, uint32_t i, const area *a) {
    return l.by_rows ? inside(g, l.index, i, a) : inside(g, i, l.index, a);
}

static bool lacks(const cell *c, int side) {
    return !c->valid[side] && c->valid[!side];
}

/* Some cell of the line is needed on `side` and stands on the other only. */
static bool line_lacks(const grid *g, line l, const area *a, int side) {
    for (uint32_t i = 0; i < line_cells(g, l); i++)
        if (line_inside(g, l, i, a) && lacks(line_cell(g, l, i), side))
            return true;
    return false;
}

/* The whole line stands on the side it would be copied from. */
static bool line_ready(const grid *g, line l, int side) {
    for (uint32_t i = 0; i < line_cells(g, l); i++)
        if (!line_cell(g, l, i)->valid[!side])
            return false;
    return true;
}

static fm_status copy_line(follower *f, line l, const area *a, int side, uint32_t op) {
    const grid *g = &f->grids[a->tensor];
    uint32_t behind = 0;
    for (uint32_t i = 0; i < line_cells(g, l); i++) {
        cell *c = line_cell(g, l, i);
        behind = c->producer > behind ? c->producer : behind;
        c->valid[side] = true;
        if (side == DEVICE)
            c->producer = op;
    }
    const uint32_t *borders = l.by_rows ? g->rows : g->cols;
    return add_copy(f, &(fm__plan_copy){
                           .op = side == DEVICE ? op : behind,
                           .unit = (uint8_t)f->unit,
                           .copy = side == DEVICE ? FM__COPY_TO_DEVICE : FM__COPY_TO_HOST,
                           .tensor = a->tensor,
                           .axis = l.by_rows ? FM__AXIS_TOKENS : FM__AXIS_CHANNELS,
                           .range = {borders[l.index], borders[l.index + 1]},
                       });
}

/* Copies whole columns, or whole rows, until nothing of the area is missing; false: some line was
   left, as it does not stand whole on the other side. */
static bool fetch_lines(follower *f, bool by_rows, const area *a, int side, uint32_t op,
                        fm_status *status) {
    const grid *g = &f->grids[a->tensor];
    bool complete = true;
    for (uint32_t i = 0; i < (by_rows ? g->n_row : g->n_col) && *status == FM_OK; i++) {
        line l = {by_rows, i};
        if (!line_lacks(g, l, a, side))
            continue;
        if (line_ready(g, l, side))
            *status = copy_line(f, l, a, side, op);
        else
            complete = false;
    }
    return complete;
}

static fm_status fetch(follower *f, const area *a, int side, uint32_t op) {
    const fm__tensor *t = &f->tape->tensors[a->tensor];
    const grid *g = &f->grids[a->tensor];
    fm_status status = FM_OK;
    /* Quantised rows have no columns of their own: they are cut by tokens or not at all. */
    bool rows_first = g->n_col == 1 || t->act != FM__ACT_F32;
    if (fetch_lines(f, rows_first, a, side, op, &status) || status != FM_OK ||
        (t->act == FM__ACT_F32 && fetch_lines(f, !rows_first, a, side, op, &status)) ||
        status != FM_OK)
        return status;
    char place[160];
    fm__op_describe(f->tape, op, place, sizeof place);
    return fm__error(f->error, FM_ERROR_UNSUPPORTED, place,
                     "%s was cut by channels and by tokens at once and cannot be copied", t->name);
}

/* ---- following the plan ---- */

static void end_overlapping(const follower *f, int16_t tensor) {
    for (uint32_t t = 0; t < f->tape->n_tensor; t++) {
        grid *g = &f->grids[t];
        if ((int16_t)t == tensor || g->cells == NULL ||
            !fm__tape_overlaps(f->tape, (int16_t)t, tensor))
            continue;
        for (size_t i = 0; i < (size_t)g->n_row * g->n_col; i++)
            g->cells[i].valid[DEVICE] = g->cells[i].valid[MIRROR] = false;
    }
}

static int side_of(const follower *f, uint32_t unit) {
    return unit == f->unit ? DEVICE : MIRROR;
}

static void write_area(const follower *f, const area *a, int side, uint32_t op) {
    const grid *g = &f->grids[a->tensor];
    for (uint32_t row = 0; row < g->n_row; row++)
        for (uint32_t col = 0; col < g->n_col; col++) {
            cell *c = cell_at(g, row, col);
            if (!inside(g, row, col, a))
                continue;
            c->valid[side] = true;
            c->valid[!side] = false;
            c->producer = op;
        }
}

static fm_status follow(follower *f, uint32_t index) {
    const fm__plan_op *planned = &f->plan->ops[index];
    const fm__op *op = &f->tape->ops[index];
    for (uint32_t r = 0; r < planned->n_range; r++) {
        area areas[3];
        uint32_t n = reads(f->plan, f->tape, index, r, areas);
        for (uint32_t a = 0; a < n; a++) {
            fm_status status = fetch(f, &areas[a], side_of(f, planned->ranges[r].unit), index);
            if (status != FM_OK)
                return status;
        }
    }
    if (!in_scratch(f->tape, op->out))
        return FM_OK;
    end_overlapping(f, op->out);
    for (uint32_t r = 0; r < planned->n_range; r++) {
        area a = part_of(f->tape, op->out, planned->axis, planned->ranges[r].range);
        write_area(f, &a, side_of(f, planned->ranges[r].unit), index);
    }
    return FM_OK;
}

/* Ascending by op, what goes to the device first, else as they were found: copies behind an op are
   found when a later op reads. They are nearly in order. */
static bool goes_before(const fm__plan_copy *a, const fm__plan_copy *b) {
    if (a->op != b->op)
        return a->op < b->op;
    return a->copy == FM__COPY_TO_DEVICE && b->copy == FM__COPY_TO_HOST;
}

static void sort_copies(fm__plan *plan) {
    for (uint32_t i = 1; i < plan->n_copy; i++) {
        fm__plan_copy copy = plan->copies[i];
        uint32_t j = i;
        for (; j > 0 && goes_before(&copy, &plan->copies[j - 1]); j--)
            plan->copies[j] = plan->copies[j - 1];
        plan->copies[j] = copy;
    }
}

/* A range that covers its axis is the whole tensor. */
static void name_whole_copies(fm__plan *plan, const fm__tape *tape) {
    for (uint32_t i = 0; i < plan->n_copy; i++) {
        fm__plan_copy *c = &plan->copies[i];
        uint32_t all = c->axis == FM__AXIS_TOKENS ? FM__TOKEN_PARTS : tape->tensors[c->tensor].cols;
        if (c->range.begin == 0 && c->range.end == all)
            *c = (fm__plan_copy){c->op, c->unit, c->copy, c->tensor, FM__AXIS_WHOLE, {0, 0}};
    }
}

fm_status fm__plan_add_copies(fm__plan *plan, const fm__tape *tape, uint32_t unit,
                              fm_error *error) {
    follower f = {.plan = plan, .tape = tape, .unit = unit, .error = error};
    fm_status status = make_grids(&f);
    for (uint32_t i = 0; i < plan->n_op && status == FM_OK; i++)
        status = follow(&f, i);
    free_grids(&f);
    sort_copies(plan);
    name_whole_copies(plan, tape);
    return status;
}

size_t fm__plan_copy_row_bytes(const fm__tape *tape, const fm__plan_copy *copy) {
    if (copy->axis == FM__AXIS_CHANNELS)
        return (copy->range.end - copy->range.begin) * sizeof(float);
    return tape->tensors[copy->tensor].layout.stride;
}
