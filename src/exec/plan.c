/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/plan.c: which unit computes which range of which op.
 *
 * Owns: plans. Never does: record or run. Called from: the loading thread.
 */
#include <string.h>

#include "exec/exec.h"

/* f32 columns of 128 bytes: the line that two units should not both write. */
enum { LINE_COLUMNS = 32 };

typedef struct planner {
    const fm__tape *tape;
    fm__device *const *units;
    uint32_t n_unit;
    const fm__plan_options *options;
    fm_error *error;
} planner;

static uint32_t lcm(uint32_t a, uint32_t b) {
    uint32_t x = a, y = b;
    while (y != 0) {
        uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static bool splittable(fm__op_kind kind) {
    return kind == FM__OP_LINEAR || kind == FM__OP_LINEAR_GLU;
}

static void give_whole(fm__plan_op *op, uint32_t unit, const char *reason) {
    op->axis = FM__AXIS_WHOLE;
    op->n_range = 1;
    op->ranges[0] = (fm__plan_range){.unit = (uint8_t)unit};
    op->reason = reason;
}

static fm_status refuse(const planner *p, uint32_t index, char (*reasons)[96]) {
    char place[160], all[320] = "";
    fm__op_describe(p->tape, index, place, sizeof place);
    size_t used = 0;
    for (uint32_t u = 0; u < p->n_unit && used < sizeof all; u++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s: %s", u > 0 ? "; " : "",
                                 p->units[u]->properties.name, reasons[u]);
    return fm__error(p->error, FM_ERROR_UNSUPPORTED, place, "no unit can run it (%s)", all);
}

/* Cuts [0, rows) by the shares; parts that get nothing are left out. */
static void cut(fm__plan_op *op, fm__axis axis, uint32_t rows, uint32_t granule,
                const double *shares, uint32_t n_unit, const char *reason) {
    fm__range ranges[FM__MAX_UNITS];
    fm__split(rows, granule, shares, n_unit, ranges);
    op->axis = axis;
    op->n_range = 0;
    op->reason = reason;
    for (uint32_t u = 0; u < n_unit; u++)
        if (ranges[u].begin < ranges[u].end)
            op->ranges[op->n_range++] = (fm__plan_range){(uint8_t)u, ranges[u]};
    if (op->n_range == 1)
        give_whole(op, op->ranges[0].unit, "the other shares round to nothing");
}

static void split_op(const planner *p, uint32_t index, const bool *supports, uint32_t first,
                     fm__plan_op *op) {
    double shares[FM__MAX_UNITS];
    uint32_t with_share = 0, last = first;
    for (uint32_t u = 0; u < p->n_unit; u++) {
        shares[u] = supports[u] ? p->options->shares[u] : 0;
        if (shares[u] > 0) {
            with_share++;
            last = u;
        }
    }
    if (with_share < 2) {
        give_whole(op, with_share == 1 ? last : first, "one unit has a share and can run it");
        return;
    }
    if (p->options->axis == FM__AXIS_TOKENS) {
        cut(op, FM__AXIS_TOKENS, FM__TOKEN_PARTS, 1, shares, p->n_unit, "split by tokens");
        return;
    }
    uint32_t channels;
    uint32_t granule = fm__device_channel_granule(p->tape, &p->tape->ops[index], &channels);
    granule = lcm(granule, LINE_COLUMNS);
    if (channels <= granule)
        give_whole(op, first, "too narrow to split");
    else
        cut(op, FM__AXIS_CHANNELS, channels, granule, shares, p->n_unit, "split by channels");
}

static fm_status plan_op(const planner *p, uint32_t index, bool shared, fm__plan_op *op) {
    bool supports[FM__MAX_UNITS];
    char reasons[FM__MAX_UNITS][96];
    uint32_t first = p->n_unit;
    for (uint32_t u = 0; u < p->n_unit; u++) {
        const char *reason = "";
        supports[u] = fm__device_op_supports(p->units[u], p->tape, &p->tape->ops[index], &reason);
        snprintf(reasons[u], sizeof reasons[u], "%s", reason);
        if (supports[u] && first == p->n_unit)
            first = u;
    }
    if (first == p->n_unit)
        return refuse(p, index, reasons);
    if (shared && splittable(p->tape->ops[index].kind))
        split_op(p, index, supports, first, op);
    else
        give_whole(op, first,
                   first > 0 ? "the main unit cannot run it"
                   : shared  ? "not split: its rows are cheap"
                             : "the main unit runs everything");
    return FM_OK;
}

/* Units that share work must see each other's results where they lie. */
static fm_status check_memory(const planner *p, const fm__plan *plan) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < plan->n_op; i++)
        for (uint32_t r = 0; r < plan->ops[i].n_range; r++)
            used |= 1u << plan->ops[i].ranges[r].unit;
    if ((used & (used - 1)) == 0)
        return FM_OK;
    for (uint32_t u = 0; u < p->n_unit; u++)
        if ((used >> u & 1) && !p->units[u]->properties.unified)
            return fm__error(p->error, FM_ERROR_UNSUPPORTED, p->units[u]->properties.name,
                             "does not address host memory, and plans hold no copies yet");
    return FM_OK;
}

static fm_status check_options(const planner *p) {
    if (p->n_unit == 0 || p->n_unit > FM__MAX_UNITS)
        return fm__error(p->error, FM_ERROR_ARGUMENT, "plan", "%u units; 1 to %d are possible",
                         p->n_unit, FM__MAX_UNITS);
    if (!p->tape->finished)
        return fm__error(p->error, FM_ERROR_STATE, "plan", "the tape is not finished");
    for (uint32_t u = 0; u < FM__MAX_UNITS; u++) {
        double share = p->options->shares[u];
        if (!(share >= 0 && share <= 1e9) || (share > 0 && u >= p->n_unit))
            return fm__error(p->error, FM_ERROR_ARGUMENT, "plan", "share %u is %g, of %u units", u,
                             share, p->n_unit);
    }
    if (p->options->axis == FM__AXIS_GROUPS)
        return fm__error(p->error, FM_ERROR_UNSUPPORTED, "plan", "no op is split by groups");
    return FM_OK;
}

fm_status fm__plan_make(fm__plan **out, const fm__tape *tape, fm__device *const *units,
                        uint32_t n_unit, const fm__plan_options *options, fm_error *error) {
    static const fm__plan_options none;
    const planner p = {tape, units, n_unit, options != NULL ? options : &none, error};
    fm_status status = check_options(&p);
    if (status != FM_OK)
        return status;
    bool shared = false;
    for (uint32_t u = 0; u < n_unit; u++)
        shared = shared || p.options->shares[u] > 0;
    fm__plan *plan = fm__alloc_zero(sizeof *plan);
    if (plan == NULL)
        return fm__error_memory(error, "plan", sizeof *plan);
    plan->ops = fm__alloc_array(tape->n_op, sizeof *plan->ops);
    if (plan->ops == NULL) {
        status = fm__error_memory(error, "plan", tape->n_op * sizeof *plan->ops);
        goto failed;
    }
    plan->n_op = tape->n_op;
    plan->deps = p.options->deps;
    for (uint32_t i = 0; i < tape->n_op && status == FM_OK; i++)
        status = plan_op(&p, i, shared, &plan->ops[i]);
    if (status == FM_OK)
        status = check_memory(&p, plan);
    if (status != FM_OK)
        goto failed;
    *out = plan;
    return FM_OK;

failed:
    fm__plan_destroy(&plan);
    return status;
}

void fm__plan_destroy(fm__plan **plan) {
    if (plan == NULL || *plan == NULL)
        return;
    fm__free((*plan)->ops);
    fm__free(*plan);
    *plan = NULL;
}

void fm__plan_print(const fm__plan *plan, const fm__tape *tape, fm__device *const *units,
                    fm__buf *out) {
    static const char *const axes[] = {"whole", "channels", "tokens", "groups"};
    static const char *const deps[] = {"event", "batch", "eager", "ready"};
    fm__buf_printf(out, "plan: %u ops, dependencies by %s\n", plan->n_op, deps[plan->deps]);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        const fm__plan_op *op = &plan->ops[i];
        char text[160];
        fm__op_describe(tape, i, text, sizeof text);
        fm__buf_printf(out, "%4u  %-40s %-8s", i, text, axes[op->axis]);
        for (uint32_t r = 0; r < op->n_range; r++) {
            fm__device *unit = units[op->ranges[r].unit];
            const char *kernel = fm__device_op_kernel(unit, tape, &tape->ops[i]);
            fm__buf_printf(out, "  %u:%s", op->ranges[r].unit, unit->properties.name);
            if (op->axis != FM__AXIS_WHOLE)
                fm__buf_printf(out, " [%u, %u)", op->ranges[r].range.begin,
                               op->ranges[r].range.end);
            if (kernel[0] != '\0')
                fm__buf_printf(out, " %s", kernel);
        }
        fm__buf_printf(out, "  (%s)\n", op->reason);
    }
}
