/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/report.c: plans for people and for programs.
 *
 * Owns: nothing. Never does: change a plan. Called from: whoever explains one.
 */
#include <string.h>

#include "exec/exec.h"

const char *fm__deps_name(fm__deps deps) {
    static const char *const names[] = {"event", "batch", "eager", "ready"};
    return names[deps];
}

const char *fm__axis_name(fm__axis axis) {
    static const char *const names[] = {"whole", "channels", "tokens", "products"};
    return names[axis];
}

const char *fm__residency_name(fm__residency residency) {
    static const char *const names[] = {"shared", "resident", "streamed", "mapped"};
    return names[residency];
}

/* ---- what a row says ---- */

/* Where the unit finds the op's weights; "" if it reads none. */
static const char *residency_of(const fm__tape *tape, const fm__op *op, const fm__device *unit) {
    if (op->weight[0] == FM__NONE)
        return "";
    const fm__weight *weight = tape->weights[op->weight[0]];
    for (uint32_t i = 0; i < weight->n_ranges; i++)
        if (weight->ranges[i].buffer != NULL && weight->ranges[i].buffer->device == unit)
            return fm__residency_name(weight->ranges[i].residency);
    if (weight->host == NULL)
        return "";
    return weight->role == FM__ROLE_GATHER ? fm__residency_name(FM__RESIDENCY_MAPPED)
                                           : fm__residency_name(FM__RESIDENCY_SHARED);
}

/* Token ranges are parts of whatever rows a run has: in percent. */
static void print_range(char *out, size_t capacity, fm__axis axis, fm__range range) {
    if (axis == FM__AXIS_WHOLE)
        snprintf(out, capacity, "all");
    else if (axis == FM__AXIS_TOKENS)
        snprintf(out, capacity, "[%.1f, %.1f) %%", 100.0 * range.begin / FM__TOKEN_PARTS,
                 100.0 * range.end / FM__TOKEN_PARTS);
    else
        snprintf(out, capacity, "[%u, %u)", range.begin, range.end);
}

/* ---- the table ---- */

enum { COLUMNS = 7, CELL = 168 };

typedef struct row {
    char cells[COLUMNS][CELL];
} row;

typedef struct table {
    size_t width[COLUMNS];
    fm__buf *out; /* NULL: only widths are taken */
} table;

static void put(row *r, int column, const char *text) {
    snprintf(r->cells[column], CELL, "%s", text);
}

static void add_row(table *t, const row *r) {
    int last = COLUMNS - 1;
    for (; last > 0 && r->cells[last][0] == '\0'; last--)
        ;
    for (int c = 0; c < COLUMNS; c++)
        if (t->out == NULL)
            t->width[c] = fm__max_size(t->width[c], strlen(r->cells[c]));
        else if (c < last)
            fm__buf_printf(t->out, "%-*s  ", (int)t->width[c], r->cells[c]);
        else if (c == last)
            fm__buf_printf(t->out, "%s\n", r->cells[c]);
}

static void add_copy_row(table *t, const fm__plan_copy *copy, const fm__tape *tape,
                         fm__device *const *units) {
    row r = {0};
    snprintf(r.cells[1], CELL, "copy %s to the %s", tape->tensors[copy->tensor].name,
             copy->copy == FM__COPY_TO_HOST ? "host" : "device");
    put(&r, 2, units[copy->unit]->properties.name);
    print_range(r.cells[3], CELL, copy->axis, copy->range);
    snprintf(r.cells[6], CELL, "%zu bytes a row", fm__plan_copy_row_bytes(tape, copy));
    add_row(t, &r);
}

static void add_copy_rows(table *t, const fm__plan *plan, uint32_t op, fm__copy kind, uint32_t *at,
                          const fm__tape *tape, fm__device *const *units) {
    for (; *at < plan->n_copy && plan->copies[*at].op == op && plan->copies[*at].copy == kind;
         ++*at)
        add_copy_row(t, &plan->copies[*at], tape, units);
}

static void add_op_rows(table *t, const fm__plan_op *op, uint32_t index, const fm__tape *tape,
                        fm__device *const *units) {
    for (uint32_t i = 0; i < op->n_range; i++) {
        fm__device *unit = units[op->ranges[i].unit];
        row r = {0};
        if (i == 0) {
            snprintf(r.cells[0], CELL, "%u", index);
            fm__op_describe(tape, index, r.cells[1], CELL);
            put(&r, 6, op->reason != NULL ? op->reason : "");
        }
        put(&r, 2, unit->properties.name);
        print_range(r.cells[3], CELL, op->axis, op->ranges[i].range);
        put(&r, 4, fm__device_op_kernel(unit, tape, &tape->ops[index]));
        put(&r, 5, residency_of(tape, &tape->ops[index], unit));
        add_row(t, &r);
    }
}

static void add_rows(table *t, const fm__plan *plan, const fm__tape *tape,
                     fm__device *const *units) {
    static const row head = {{"op", "what", "unit", "range", "kernel", "weights", "why"}};
    uint32_t at = 0; /* the next copy */
    add_row(t, &head);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        add_copy_rows(t, plan, i, FM__COPY_TO_DEVICE, &at, tape, units);
        add_op_rows(t, &plan->ops[i], i, tape, units);
        add_copy_rows(t, plan, i, FM__COPY_TO_HOST, &at, tape, units);
    }
}

void fm__plan_print(const fm__plan *plan, const fm__tape *tape, fm__device *const *units,
                    fm__buf *out) {
    table t = {.out = NULL};
    fm__buf_printf(out, "plan: %u ops, %u copies, dependencies by %s\n", plan->n_op, plan->n_copy,
                   fm__deps_name(plan->deps));
    add_rows(&t, plan, tape, units);
    t.out = out;
    add_rows(&t, plan, tape, units);
}

/* ---- JSON ---- */

/* A string with its quotes. What is not UTF-8 (names come from files) becomes U+FFFD. */
static void json_string(fm__buf *out, const char *text) {
    size_t bytes = strlen(text);
    fm__buf_append(out, "\"", 1);
    while (bytes > 0) {
        int n = fm__utf8_next(text, bytes, NULL);
        if (n <= 0) {
            fm__buf_append(out, "\\ufffd", 6);
            n = 1;
        } else if (*text == '"' || *text == '\\')
            fm__buf_printf(out, "\\%c", *text);
        else if (n == 1 && (unsigned char)*text < 0x20)
            fm__buf_printf(out, "\\u%04x", (unsigned)*text);
        else
            fm__buf_append(out, text, (size_t)n);
        text += n;
        bytes -= (size_t)n;
    }
    fm__buf_append(out, "\"", 1);
}

static void json_member(fm__buf *out, const char *name, const char *text) {
    fm__buf_printf(out, ", \"%s\": ", name);
    json_string(out, text);
}

/* "axis" and, unless it is whole, "begin" and "end": channels, or 65536ths of the rows. */
static void json_range(fm__buf *out, fm__axis axis, fm__range range) {
    json_member(out, "axis", fm__axis_name(axis));
    if (axis != FM__AXIS_WHOLE)
        fm__buf_printf(out, ", \"begin\": %u, \"end\": %u", range.begin, range.end);
}

static void json_op(fm__buf *out, const fm__plan_op *op, uint32_t index, const fm__tape *tape,
                    fm__device *const *units) {
    char text[160];
    fm__op_describe(tape, index, text, sizeof text);
    fm__buf_printf(out, "{\"index\": %u, \"layer\": %d", index, tape->ops[index].layer);
    json_member(out, "op", text);
    json_member(out, "reason", op->reason != NULL ? op->reason : "");
    fm__buf_printf(out, ", \"ranges\": [");
    for (uint32_t r = 0; r < op->n_range; r++) {
        fm__device *unit = units[op->ranges[r].unit];
        fm__buf_printf(out, "%s{\"unit\": %u", r > 0 ? ", " : "", op->ranges[r].unit);
        json_member(out, "device", unit->properties.name);
        json_range(out, op->axis, op->ranges[r].range);
        json_member(out, "kernel", fm__device_op_kernel(unit, tape, &tape->ops[index]));
        json_member(out, "residency", residency_of(tape, &tape->ops[index], unit));
        fm__buf_printf(out, "}");
    }
    fm__buf_printf(out, "]}");
}

static void json_copy(fm__buf *out, const fm__plan_copy *copy, const fm__tape *tape,
                      fm__device *const *units) {
    fm__buf_printf(out, "{\"op\": %u, \"unit\": %u", copy->op, copy->unit);
    json_member(out, "device", units[copy->unit]->properties.name);
    json_member(out, "to", copy->copy == FM__COPY_TO_HOST ? "host" : "device");
    json_member(out, "tensor", tape->tensors[copy->tensor].name);
    json_range(out, copy->axis, copy->range);
    fm__buf_printf(out, ", \"row_bytes\": %zu}", fm__plan_copy_row_bytes(tape, copy));
}

void fm__plan_json(const fm__plan *plan, const fm__tape *tape, fm__device *const *units,
                   fm__buf *out) {
    fm__buf_printf(out, "{\"deps\": \"%s\", \"ops\": [", fm__deps_name(plan->deps));
    for (uint32_t i = 0; i < plan->n_op; i++) {
        fm__buf_printf(out, i > 0 ? ",\n" : "\n");
        json_op(out, &plan->ops[i], i, tape, units);
    }
    fm__buf_printf(out, "], \"copies\": [");
    for (uint32_t i = 0; i < plan->n_copy; i++) {
        fm__buf_printf(out, i > 0 ? ",\n" : "\n");
        json_copy(out, &plan->copies[i], tape, units);
    }
    fm__buf_printf(out, "]}\n");
}
