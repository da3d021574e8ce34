/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/layout.c: a plan cut into pieces that wait for each other: a pure function.
 *
 * Owns: nothing. Never does: record or run. Called from: the loading thread.
 *
 * Each unit gets its ops, in the tape's order, as pieces. A piece ends right after an op (with the
 * copies behind it) that another unit needs, and begins at an op that needs another unit's: it
 * waits for that unit's timeline, and signals its own. Ops that are divided by tokens at the same
 * borders need nothing of each other's rows, but for attention, which needs all keys and values.
 * Waits only ever name earlier ops, so no two units can wait for each other. A run raises every
 * timeline by the same `span`, whichever unit has fewer pieces; its first pieces wait for the other
 * units' previous run, as both use the same scratch.
 *
 * BATCH waits for more. The main unit's ops fall into batches, each beginning at an op that needs
 * another unit's result; it waits there for all that other unit has to do before it in the tape. An
 * op of another unit waits for the end of the main unit's batch that holds the last op up to and
 * including it. A batch begins at or before any op that waits for it, and waits only for what
 * stands before its beginning: still nothing waits in a circle.
 */
#include <string.h>

#include "exec/layout.h"

enum { NO_WAIT = -1, WAIT_PREVIOUS_RUN = -2 };

/* What a unit does with one op. */
typedef struct cell {
    bool present;                /* the unit computes (part of) the op */
    bool begins;                 /* a piece begins here, whatever it waits for */
    bool cut_after;              /* another unit waits for it */
    uint32_t number;             /* of the piece that holds it, from 1 */
    int32_t wait[FM__MAX_UNITS]; /* op of unit v to wait for before it, or NO_WAIT, ... */
} cell;

typedef struct cutter {
    const fm__tape *tape;
    const fm__plan *plan;
    uint32_t n_unit;
    cell *cells; /* [unit][op] */
    bool used[FM__MAX_UNITS];
} cutter;

static cell *cell_of(const cutter *c, uint32_t unit, uint32_t op) {
    return &c->cells[(size_t)unit * c->plan->n_op + op];
}

static void place_ops(cutter *c) {
    for (uint32_t u = 0; u < c->n_unit; u++)
        for (uint32_t i = 0; i < c->plan->n_op; i++)
            for (uint32_t v = 0; v < c->n_unit; v++)
                cell_of(c, u, i)->wait[v] = NO_WAIT;
    for (uint32_t i = 0; i < c->plan->n_op; i++)
        for (uint32_t r = 0; r < c->plan->ops[i].n_range; r++) {
            uint32_t unit = c->plan->ops[i].ranges[r].unit;
            cell_of(c, unit, i)->present = true;
            cell_of(c, unit, i)->begins =
                c->plan->deps == FM__DEPS_EAGER && fm__is_product(c->tape->ops[i].kind);
            c->used[unit] = true;
        }
}

/* ---- waits ---- */

static uint32_t token_end(fm__range range) {
    return range.end == 0 ? FM__TOKEN_PARTS : range.end;
}

/* Unit u's rows of op i and unit v's of op j have none in common, as both are divided by tokens. */
static bool rows_apart(const cutter *c, uint32_t u, uint32_t i, uint32_t v, uint32_t j) {
    const fm__plan_op *a = &c->plan->ops[i], *b = &c->plan->ops[j];
    if (a->axis != FM__AXIS_TOKENS || b->axis != FM__AXIS_TOKENS)
        return false;
    for (uint32_t x = 0; x < a->n_range; x++)
        for (uint32_t y = 0; y < b->n_range; y++) {
            const fm__plan_range *p = &a->ranges[x], *q = &b->ranges[y];
            if (p->unit == u && q->unit == v && p->range.begin < token_end(q->range) &&
                q->range.begin < token_end(p->range))
                return false;
        }
    return true;
}

/* Unit u's part of op i needs unit v's part of op j, which comes before it. */
static bool needs(const cutter *c, uint32_t u, uint32_t i, uint32_t v, uint32_t j) {
    if (fm__tape_depends(c->tape, j, i) == FM__DEPENDENCE_NONE)
        return false;
    return !rows_apart(c, u, i, v, j) || fm__tape_mixes_rows(c->tape, j, i);
}

/* The last op before `op` that unit v computes and unit u's part of `op` needs, or NO_WAIT. */
static int32_t producer(const cutter *c, uint32_t u, uint32_t v, uint32_t op, int32_t seen) {
    for (int32_t j = (int32_t)op - 1; j > seen; j--)
        if (cell_of(c, v, (uint32_t)j)->present && needs(c, u, op, v, (uint32_t)j))
            return j;
    return NO_WAIT;
}

/* The last op of unit v in (seen, op), or up to and including `op`; or NO_WAIT. */
static int32_t last_before(const cutter *c, uint32_t v, uint32_t op, bool including, int32_t seen) {
    for (int32_t j = (int32_t)op - !including; j > seen; j--)
        if (cell_of(c, v, (uint32_t)j)->present)
            return j;
    return NO_WAIT;
}

/* The last op of the main unit's batch that holds its op `op`. */
static int32_t batch_end(const cutter *c, uint32_t op) {
    uint32_t end = op;
    for (uint32_t i = op + 1; i < c->plan->n_op; i++) {
        const cell *main = cell_of(c, 0, i);
        if (!main->present)
            continue;
        for (uint32_t v = 1; v < c->n_unit; v++)
            if (main->wait[v] >= 0)
                return (int32_t)end;
        end = i;
    }
    return (int32_t)end;
}

/* What unit u must wait for of unit v before op i, beyond op `seen`. */
static int32_t wait_for(const cutter *c, uint32_t u, uint32_t v, uint32_t i, int32_t seen) {
    if (c->plan->deps != FM__DEPS_BATCH || (u != 0 && v != 0))
        return producer(c, u, v, i, seen);
    if (u == 0)
        return producer(c, u, v, i, seen) == NO_WAIT ? NO_WAIT : last_before(c, v, i, false, seen);
    int32_t op = last_before(c, 0, i, true, NO_WAIT);
    int32_t end = op == NO_WAIT ? NO_WAIT : batch_end(c, (uint32_t)op);
    return end > seen ? end : NO_WAIT;
}

/* Ops that take as long as a hand-over or longer: before them it matters what is waited for. */
static bool is_long(fm__op_kind kind) {
    return fm__is_product(kind) || kind == FM__OP_ATTENTION;
}

/* Unit u is about to wait before op i for op `op` of unit v: the last op of v before i that u needs
   up to its next long one. Rows of q are turned while those of k and v come in, but a hand-over
   takes longer than that: one wait is for all three. */
static int32_t gather(const cutter *c, uint32_t u, uint32_t v, uint32_t i, int32_t op) {
    for (uint32_t k = i; k < c->plan->n_op; k++) {
        if (!cell_of(c, u, k)->present)
            continue;
        for (int32_t j = (int32_t)i - 1; j > op; j--)
            if (cell_of(c, v, (uint32_t)j)->present && needs(c, u, k, v, (uint32_t)j))
                op = j;
        if (is_long(c->tape->ops[k].kind))
            break;
    }
    return op;
}

/* Unit u's waits for unit v: one wherever an op needs something later than what was waited for. */
static void find_waits(cutter *c, uint32_t u, uint32_t v) {
    int32_t seen = NO_WAIT; /* v's ops up to here are known to be done */
    bool first = true;
    for (uint32_t i = 0; i < c->plan->n_op; i++) {
        cell *at = cell_of(c, u, i);
        if (!at->present)
            continue;
        int32_t op = wait_for(c, u, v, i, seen);
        if (op != NO_WAIT && c->plan->deps != FM__DEPS_BATCH)
            op = gather(c, u, v, i, op);
        if (op != NO_WAIT) {
            at->wait[v] = op;
            cell_of(c, v, (uint32_t)op)->cut_after = true;
            seen = op;
        } else if (first)
            at->wait[v] = WAIT_PREVIOUS_RUN;
        first = false;
    }
}

/* The main unit's waits come first: its batches are made of them. */
static void find_all_waits(cutter *c) {
    for (uint32_t u = 0; u < c->n_unit; u++)
        for (uint32_t v = 0; v < c->n_unit; v++)
            if (u != v && c->used[u] && c->used[v])
                find_waits(c, u, v);
}

/* ---- pieces ---- */

static bool waits(const cutter *c, const cell *at) {
    for (uint32_t v = 0; v < c->n_unit; v++)
        if (at->wait[v] != NO_WAIT)
            return true;
    return false;
}

/* Numbers the pieces of unit u; returns how many. */
static uint32_t number_pieces(cutter *c, uint32_t u) {
    uint32_t number = 0;
    bool open = false;
    for (uint32_t i = 0; i < c->plan->n_op; i++) {
        cell *at = cell_of(c, u, i);
        if (!at->present)
            continue;
        if (!open || at->begins || waits(c, at))
            number++;
        at->number = number;
        open = !at->cut_after;
    }
    return number;
}

static void begin_piece(const cutter *c, fm__layout *layout, uint32_t u, uint32_t i) {
    const cell *at = cell_of(c, u, i);
    fm__piece *piece = &layout->pieces[layout->n_piece++];
    bool last = at->number == layout->n_of_unit[u];
    *piece = (fm__piece){.unit = (uint8_t)u,
                         .first_op = i,
                         .last_op = i,
                         .signal = last ? layout->span : at->number};
    for (uint32_t v = 0; v < FM__MAX_UNITS; v++) {
        int32_t op = v < c->n_unit ? at->wait[v] : NO_WAIT;
        piece->wait[v] = op == NO_WAIT ? FM__NO_VALUE : 0;
        if (op < 0)
            continue;
        uint32_t number = cell_of(c, v, (uint32_t)op)->number;
        piece->wait[v] = number == layout->n_of_unit[v] ? layout->span : number;
    }
}

static void fill_pieces(const cutter *c, fm__layout *layout) {
    uint32_t open[FM__MAX_UNITS] = {0}; /* each unit's last piece, as an index */
    uint32_t number[FM__MAX_UNITS] = {0};
    for (uint32_t i = 0; i < c->plan->n_op; i++)
        for (uint32_t u = 0; u < c->n_unit; u++) {
            const cell *at = cell_of(c, u, i);
            if (!at->present)
                continue;
            if (at->number != number[u]) {
                number[u] = at->number;
                open[u] = layout->n_piece;
                begin_piece(c, layout, u, i);
            }
            layout->pieces[open[u]].last_op = i;
            layout->pieces[open[u]].divided |=
                c->plan->ops[i].n_range > 1 ||
                (c->plan->shares_products && fm__is_product(c->tape->ops[i].kind));
        }
}

/* A piece joins the step before it if its unit is idle in it and it needs nothing of it. */
static void mark_steps(fm__layout *layout) {
    uint64_t first[FM__MAX_UNITS]; /* signal of each unit's piece in the step; none: no value */
    memset(first, 0xff, sizeof first);
    for (uint32_t i = 0; i < layout->n_piece; i++) {
        fm__piece *piece = &layout->pieces[i];
        bool joins = i > 0 && first[piece->unit] == FM__NO_VALUE;
        for (uint32_t v = 0; v < FM__MAX_UNITS; v++)
            joins = joins && (piece->wait[v] == FM__NO_VALUE || piece->wait[v] < first[v]);
        piece->begins_step = !joins;
        if (!joins)
            memset(first, 0xff, sizeof first);
        first[piece->unit] = piece->signal;
    }
}

fm_status fm__layout_make(fm__layout *layout, const fm__tape *tape, const fm__plan *plan,
                          uint32_t n_unit, fm_error *error) {
    cutter c = {.tape = tape, .plan = plan, .n_unit = n_unit};
    size_t n_cell = (size_t)n_unit * plan->n_op, n_piece = 0;
    *layout = (fm__layout){.span = 0};
    c.cells = fm__alloc_array(n_cell, sizeof *c.cells);
    if (c.cells == NULL)
        return fm__error_memory(error, "exec", n_cell * sizeof *c.cells);
    place_ops(&c);
    find_all_waits(&c);
    for (uint32_t u = 0; u < n_unit; u++) {
        layout->n_of_unit[u] = number_pieces(&c, u);
        layout->span = fm__max_size(layout->n_of_unit[u], layout->span);
        n_piece += layout->n_of_unit[u];
    }
    fm_status status = FM_OK;
    layout->pieces = fm__alloc_array(n_piece, sizeof *layout->pieces);
    if (layout->pieces == NULL)
        status = fm__error_memory(error, "exec", n_piece * sizeof *layout->pieces);
    else {
        fill_pieces(&c, layout);
        mark_steps(layout);
    }
    fm__free(c.cells);
    return status;
}

void fm__layout_finish(fm__layout *layout) {
    fm__free(layout->pieces);
    *layout = (fm__layout){.span = 0};
}

/* ---- what pieces record ---- */

static uint32_t add_copies(const fm__plan *plan, const fm__piece *piece, uint32_t op, fm__copy copy,
                           uint32_t *at, fm__op_range *ranges) {
    uint32_t n = 0;
    while (*at < plan->n_copy && plan->copies[*at].op < op)
        ++*at;
    for (; *at < plan->n_copy && plan->copies[*at].op == op; ++*at) {
        const fm__plan_copy *c = &plan->copies[*at];
        if (c->copy != copy)
            break;
        if (c->unit == piece->unit)
            ranges[n++] = (fm__op_range){.op = op,
                                         .axis = c->axis,
                                         .begin = c->range.begin,
                                         .end = c->range.end,
                                         .copy = copy,
                                         .tensor = c->tensor};
    }
    return n;
}

uint32_t fm__layout_ranges(const fm__plan *plan, const fm__piece *piece, fm__op_range *ranges) {
    uint32_t n = 0, at = 0; /* the next copy */
    for (uint32_t i = piece->first_op; i <= piece->last_op; i++) {
        const fm__plan_op *op = &plan->ops[i];
        for (uint32_t r = 0; r < op->n_range; r++) {
            if (op->ranges[r].unit != piece->unit)
                continue;
            n += add_copies(plan, piece, i, FM__COPY_TO_DEVICE, &at, ranges + n);
            ranges[n++] = (fm__op_range){.op = i,
                                         .axis = op->axis,
                                         .begin = op->ranges[r].range.begin,
                                         .end = op->ranges[r].range.end,
                                         .tensor = FM__NONE};
        }
        n += add_copies(plan, piece, i, FM__COPY_TO_HOST, &at, ranges + n);
    }
    return n;
}
