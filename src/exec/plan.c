/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/plan.c: which unit computes which range of which op.
 *
 * Owns: plans. Never does: record or run. Called from: the loading thread.
 *
 * Products are divided on one of two axes. By channels a unit reads only its weights, but the next
 * op needs the columns of all units: a hand-over a product, and what lies between products stays on
 * the main unit. By tokens units that address the same memory divide every op of the layers at the
 * same rows: a unit needs nothing of another's rows until attention, which needs all keys and
 * values, so there is one hand-over a layer. Or products are not divided but dealt out (deal.c).
 */
#include <string.h>

#include "exec/exec.h"

enum {
    LINE_COLUMNS = 32, /* f32 columns of 128 bytes: the line that two units should not both write */
    MANY_ROWS = 128,   /* from here on the default axis of host teams is TOKENS */
    /* Time of attention's multiply-adds over that of a product's, about: theirs are floats. */
    ATTENTION_COST = 3,
    /* Rows of a full tape in which balanced borders count: products take whole tiles of tokens. Of
       512 rows, 264 and 248 took 685 ms on two cores, 267 and 245 took 705. */
    ROW_STEP = 8,
};

typedef struct planner {
    const fm__tape *tape;
    fm__device *const *units;
    uint32_t n_unit;
    const fm__plan_options *options;
    fm_error *error;
    bool shared;   /* some unit has a share */
    bool together; /* several have one, and all address the same memory: every op is divided */
    bool hosts;    /* those are all host teams */
    fm__axis axis; /* of ops over the batch's rows */
    double rows[FM__MAX_UNITS]; /* together, TOKENS: the units' shares of the rows in all ops */
    uint32_t token_step;        /* in which borders by tokens count, of FM__TOKEN_PARTS */
    uint8_t *owner;             /* PRODUCTS: of each product; else NULL */
} planner;

/* What a unit can do with one op. */
typedef struct ability {
    bool kernel;
    bool part;  /* it has a kernel, and some of every weight */
    bool whole; /* it has a kernel, and all of every weight */
    char reason[96];
} ability;

static uint32_t lcm(uint32_t a, uint32_t b) {
    uint32_t x = a, y = b;
    while (y != 0) {
        uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* ---- weights ---- */

/* The host reads weights where they lie; a device that computes nothing reads none. */
static bool needs_no_buffer(const fm__device *unit) {
    return strcmp(unit->properties.kind, "cpu") == 0 || strcmp(unit->vtable->backend, "null") == 0;
}

/* The end of what the unit holds of a weight from panel `at` on; `at` if it does not hold that. A
   range without an end is all of the weight. */
static uint32_t held_from(const fm__weight *weight, const fm__device *unit, uint32_t at) {
    for (uint32_t i = 0; i < weight->n_ranges; i++) {
        const fm__weight_range *r = &weight->ranges[i];
        if (r->buffer == NULL || r->buffer->device != unit)
            continue;
        uint32_t end = r->panel_end == 0 ? UINT32_MAX : r->panel_end;
        if (r->panel_begin <= at && at < end)
            return end;
    }
    return at;
}

/* The unit reaches panels [begin, end) of every group of the weight (LINEAR; else all of it). A
   tape may be planned before its weights are loaded: then nothing is known against it. */
static bool holds(const fm__weight *weight, const fm__device *unit, uint32_t begin, uint32_t end) {
    if (needs_no_buffer(unit) || (weight->host == NULL && weight->n_ranges == 0))
        return true;
    if (weight->role != FM__ROLE_LINEAR)
        return held_from(weight, unit, 0) > 0;
    for (uint32_t g = 0; g < weight->groups; g++) {
        uint32_t at = g * weight->panels + begin, until = g * weight->panels + end;
        while (at < until) {
            uint32_t next = held_from(weight, unit, at);
            if (next == at)
                return false;
            at = next;
        }
    }
    return true;
}

static bool holds_some(const fm__weight *weight, const fm__device *unit) {
    if (needs_no_buffer(unit) || (weight->host == NULL && weight->n_ranges == 0))
        return true;
    for (uint32_t i = 0; i < weight->n_ranges; i++)
        if (weight->ranges[i].buffer != NULL && weight->ranges[i].buffer->device == unit)
            return true;
    return false;
}

static const fm__weight *weight_of(const fm__tape *tape, const fm__op *op, int which) {
    int16_t id = which < 2 ? op->weight[which] : op->bias;
    return id != FM__NONE ? tape->weights[id] : NULL;
}

static uint32_t panels_of(uint32_t channels) {
    return (channels + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
}

/* The unit has what channels [begin, end) of the op read; end UINT32_MAX: the whole op. */
static bool unit_has_weights(const fm__tape *tape, const fm__op *op, const fm__device *unit,
                             uint32_t begin, uint32_t end) {
    for (int i = 0; i < 3; i++) {
        const fm__weight *weight = weight_of(tape, op, i);
        if (weight == NULL)
            continue;
        uint32_t last = end == UINT32_MAX ? weight->panels : panels_of(end);
        if (!holds(weight, unit, begin / FM__PANEL_ROWS, last))
            return false;
    }
    return true;
}

static ability able(const planner *p, uint32_t index, uint32_t unit) {
    const fm__op *op = &p->tape->ops[index];
    const char *reason = "";
    ability a = {0};
    a.kernel = a.part = fm__device_op_supports(p->units[unit], p->tape, op, &reason);
    for (int i = 0; a.part && i < 3; i++) {
        const fm__weight *weight = weight_of(p->tape, op, i);
        if (weight != NULL && !holds_some(weight, p->units[unit])) {
            a.part = false;
            reason = "it does not have the weights";
        }
    }
    a.whole = a.part && unit_has_weights(p->tape, op, p->units[unit], 0, UINT32_MAX);
    if (a.part && !a.whole)
        reason = "it has only a part of the weights";
    snprintf(a.reason, sizeof a.reason, "%s", reason);
    return a;
}

/* ---- one op ---- */

static void give_whole(fm__plan_op *op, uint32_t unit, const char *reason) {
    op->axis = FM__AXIS_WHOLE;
    op->n_range = 1;
    op->ranges[0] = (fm__plan_range){.unit = (uint8_t)unit};
    op->reason = reason;
}

static fm_status refuse(const planner *p, uint32_t index, const ability *abilities) {
    char place[160], all[320] = "";
    fm__op_describe(p->tape, index, place, sizeof place);
    size_t used = 0;
    for (uint32_t u = 0; u < p->n_unit && used < sizeof all; u++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s: %s", u > 0 ? "; " : "",
                                 p->units[u]->properties.name, abilities[u].reason);
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

/* The shares of an op: its own where it has any. */
static const double *shares_of(const planner *p, uint32_t index) {
    if (p->options->op_shares != NULL)
        for (uint32_t u = 0; u < p->n_unit; u++)
            if (p->options->op_shares[index][u] > 0)
                return p->options->op_shares[index];
    return p->options->shares;
}

/* By default what few rows want is read from the weights once: that work is divided by channels. */
static fm__axis axis_of(const planner *p, const fm__op *op) {
    bool outputs = fm__op_rows(p->tape, op) == FM__ROWS_OUTPUT;
    return outputs && p->options->axis == FM__AXIS_WHOLE ? FM__AXIS_CHANNELS : p->axis;
}

static void split_op(const planner *p, uint32_t index, const ability *abilities, uint32_t first,
                     fm__plan_op *op) {
    const fm__op *work = &p->tape->ops[index];
    bool tokens = axis_of(p, work) == FM__AXIS_TOKENS;
    if (p->owner != NULL) {
        bool able = abilities[p->owner[index]].whole;
        give_whole(op, able ? p->owner[index] : first,
                   able ? "whole products are dealt out"
                        : "dealt out to a unit that cannot run all of it");
        return;
    }
    bool with_all = tokens && p->together && fm__op_rows(p->tape, work) == FM__ROWS_BATCH;
    const double *asked = with_all ? p->rows : shares_of(p, index);
    double shares[FM__MAX_UNITS];
    uint32_t with_share = 0, last = first;
    for (uint32_t u = 0; u < p->n_unit; u++) {
        shares[u] = (tokens ? abilities[u].whole : abilities[u].part) ? asked[u] : 0;
        if (shares[u] > 0) {
            with_share++;
            last = u;
        }
    }
    if (with_share < 2) {
        give_whole(op, last,
                   with_share == 1 ? "one unit has a share and can run it" : "no unit has a share");
        return;
    }
    if (tokens) {
        cut(op, FM__AXIS_TOKENS, FM__TOKEN_PARTS, p->token_step, shares, p->n_unit,
            "split by tokens");
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

/* Where units hold only parts of the weights, the split must fit the parts. */
static fm_status check_parts(const planner *p, uint32_t index, const fm__plan_op *op) {
    for (uint32_t r = 0; r < op->n_range; r++) {
        const fm__device *unit = p->units[op->ranges[r].unit];
        bool all = op->axis != FM__AXIS_CHANNELS;
        uint32_t begin = all ? 0 : op->ranges[r].range.begin;
        uint32_t end = all ? UINT32_MAX : op->ranges[r].range.end;
        if (unit_has_weights(p->tape, &p->tape->ops[index], unit, begin, end))
            continue;
        char place[160], part[48] = "all";
        fm__op_describe(p->tape, index, place, sizeof place);
        if (!all)
            snprintf(part, sizeof part, "channels %u to %u", begin, end);
        return fm__error(p->error, FM_ERROR_UNSUPPORTED, place,
                         "the split gives %s of it to %s, which does not have those weights", part,
                         unit->properties.name);
    }
    return FM_OK;
}

/* Products are; by tokens, and in one memory, so is all that works row by row. Keys of 16 positions
   share a line of the cache, which a GPU and a host do not both write. */
static bool is_divided(const planner *p, const fm__op *op) {
    if (fm__is_product(op->kind))
        return p->shared;
    return p->together && axis_of(p, op) == FM__AXIS_TOKENS && op->kind != FM__OP_SELECT &&
           fm__op_rows(p->tape, op) == FM__ROWS_BATCH && (op->kind != FM__OP_KV_STORE || p->hosts);
}

static fm_status plan_op(const planner *p, uint32_t index, fm__plan_op *op) {
    ability abilities[FM__MAX_UNITS];
    uint32_t first = p->n_unit;
    bool split = is_divided(p, &p->tape->ops[index]), some = false;
    for (uint32_t u = 0; u < p->n_unit; u++) {
        abilities[u] = able(p, index, u);
        some = some || abilities[u].part;
        if (abilities[u].whole && first == p->n_unit)
            first = u;
    }
    if (first == p->n_unit && !(split && some))
        return refuse(p, index, abilities);
    if (!split) {
        give_whole(op, first,
                   first > 0 && abilities[0].kernel ? "the main unit does not have its weights"
                   : first > 0                      ? "the main unit cannot run it"
                   : p->shared                      ? "not split: its rows are cheap"
                                                    : "the main unit runs everything");
        return FM_OK;
    }
    split_op(p, index, abilities, first < p->n_unit ? first : 0, op);
    return check_parts(p, index, op);
}

/* ---- where results lie ---- */

/* The caches are the main unit's: where others cannot address them, it alone works on them. */
static fm_status check_caches(const planner *p, const fm__plan *plan) {
    for (uint32_t i = 0; i < plan->n_op; i++) {
        fm__op_kind kind = p->tape->ops[i].kind;
        if ((kind != FM__OP_KV_STORE && kind != FM__OP_ATTENTION) ||
            plan->ops[i].ranges[0].unit == 0)
            continue;
        char place[160];
        fm__op_describe(p->tape, i, place, sizeof place);
        return fm__error(p->error, FM_ERROR_UNSUPPORTED, place,
                         "%s cannot run it, and its caches lie where no other unit reaches them",
                         p->units[0]->properties.name);
    }
    return FM_OK;
}

/* Units that share work see each other's results where they lie, but for a main unit that does not
   address host memory: then there are copies. */
static fm_status plan_memory(const planner *p, fm__plan *plan) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < plan->n_op; i++)
        for (uint32_t r = 0; r < plan->ops[i].n_range; r++)
            used |= 1u << plan->ops[i].ranges[r].unit;
    if ((used & (used - 1)) == 0)
        return FM_OK;
    for (uint32_t u = 1; u < p->n_unit; u++)
        if ((used >> u & 1) && !p->units[u]->properties.unified)
            return fm__error(p->error, FM_ERROR_UNSUPPORTED, p->units[u]->properties.name,
                             "does not address host memory; among several units only the first "
                             "(here %s) may be such a one",
                             p->units[0]->properties.name);
    if (p->units[0]->properties.unified || (used & 1) == 0)
        return FM_OK;
    fm_status status = check_caches(p, plan);
    return status == FM_OK ? fm__plan_add_copies(plan, p->tape, 0, p->error) : status;
}

/* ---- plans ---- */

static fm_status check_shares(const planner *p, const double *shares, const char *place) {
    for (uint32_t u = 0; u < FM__MAX_UNITS; u++)
        if (!(shares[u] >= 0 && shares[u] <= 1e9) || (shares[u] > 0 && u >= p->n_unit))
            return fm__error(p->error, FM_ERROR_ARGUMENT, place, "share %u is %g, of %u units", u,
                             shares[u], p->n_unit);
    return FM_OK;
}

static fm_status check_options(const planner *p) {
    if (p->n_unit == 0 || p->n_unit > FM__MAX_UNITS)
        return fm__error(p->error, FM_ERROR_ARGUMENT, "plan", "%u units; 1 to %d are possible",
                         p->n_unit, FM__MAX_UNITS);
    if (!p->tape->finished)
        return fm__error(p->error, FM_ERROR_STATE, "plan", "the tape is not finished");
    fm_status status = check_shares(p, p->options->shares, "plan");
    for (uint32_t i = 0; p->options->op_shares != NULL && i < p->tape->n_op; i++) {
        char place[160];
        fm__op_describe(p->tape, i, place, sizeof place);
        if (status == FM_OK)
            status = check_shares(p, p->options->op_shares[i], place);
    }
    return status;
}

/* ---- who shares, and on which axis ---- */

static bool has_share(const planner *p, uint32_t unit) {
    if (p->options->shares[unit] > 0)
        return true;
    for (uint32_t i = 0; p->options->op_shares != NULL && i < p->tape->n_op; i++)
        if (p->options->op_shares[i][unit] > 0)
            return true;
    return false;
}

/* Multiply-adds of a row: in products, and in attention for one key. */
static double row_work(const planner *p, const fm__op *op) {
    if (fm__op_rows(p->tape, op) == FM__ROWS_OUTPUT)
        return 0;
    if (op->kind == FM__OP_ATTENTION) {
        const fm__cache_group *group = &p->tape->groups[op->cache_group];
        return (double)op->heads * (group->key_dim + group->value_dim);
    }
    if (!fm__is_product(op->kind))
        return 0;
    const fm__weight *weight = p->tape->weights[op->weight[0]];
    return (double)weight->n * weight->k * (op->kind == FM__OP_LINEAR_GLU ? 2 : 1);
}

/* One share of the rows a unit, for all ops: the mean of the products', by their work. */
static void mean_shares(const planner *p, double shares[FM__MAX_UNITS]) {
    if (p->options->op_shares == NULL) {
        memcpy(shares, p->options->shares, FM__MAX_UNITS * sizeof *shares);
        return;
    }
    memset(shares, 0, FM__MAX_UNITS * sizeof *shares);
    for (uint32_t i = 0; i < p->tape->n_op; i++) {
        const double *of_op = shares_of(p, i);
        double work = p->tape->ops[i].kind != FM__OP_ATTENTION ? row_work(p, &p->tape->ops[i]) : 0;
        double sum = 0;
        for (uint32_t u = 0; u < p->n_unit; u++)
            sum += of_op[u];
        for (uint32_t u = 0; u < p->n_unit && sum > 0; u++)
            shares[u] += work * of_op[u] / sum;
    }
}

/* Work of the first `rows` rows of a full tape that begins a sequence: later rows see more keys. */
static double work_before(const planner *p, double rows) {
    double sum = 0;
    for (uint32_t i = 0; i < p->tape->n_op; i++) {
        const fm__op *op = &p->tape->ops[i];
        double work = row_work(p, op);
        if (op->kind != FM__OP_ATTENTION) {
            sum += work * rows;
            continue;
        }
        double window = p->tape->groups[op->cache_group].window;
        double full = window > 0 && window < rows ? window : rows; /* rows that see all before */
        sum += ATTENTION_COST * work * (full * full / 2 + (rows - full) * full);
    }
    return sum;
}

/* Turns shares of the work into shares of the rows. */
static void balance(planner *p) {
    double *shares = p->rows;
    double all = work_before(p, p->tape->max_rows), sum = 0, before = 0, begin = 0;
    for (uint32_t u = 0; u < p->n_unit; u++)
        sum += shares[u];
    for (uint32_t u = 0; u < p->n_unit && all > 0; u++) {
        if (!(shares[u] > 0))
            continue;
        before += shares[u];
        double low = begin, high = p->tape->max_rows;
        for (int step = 0; step < 40; step++) {
            double middle = (low + high) / 2;
            if (work_before(p, middle) * sum < before * all)
                low = middle;
            else
                high = middle;
        }
        shares[u] = high - begin;
        begin = high;
    }
    p->token_step = (FM__TOKEN_PARTS * ROW_STEP + p->tape->max_rows - 1) / p->tape->max_rows;
}

static void settle_axis(planner *p) {
    uint32_t n = 0;
    bool unified = p->units[0]->properties.unified; /* it runs what is not divided */
    p->hosts = true;
    for (uint32_t u = 0; u < p->n_unit; u++) {
        if (!has_share(p, u))
            continue;
        n++;
        unified = unified && p->units[u]->properties.unified;
        p->hosts = p->hosts && needs_no_buffer(p->units[u]);
    }
    p->shared = n > 0;
    p->together = n > 1 && unified && !p->options->products_only;
    p->token_step = 1;
    p->axis = p->options->axis == FM__AXIS_PRODUCTS ? FM__AXIS_CHANNELS : p->options->axis;
    if (p->axis == FM__AXIS_WHOLE)
        p->axis = p->together && p->hosts && p->tape->max_rows >= MANY_ROWS ? FM__AXIS_TOKENS
                                                                            : FM__AXIS_CHANNELS;
    if (!p->together || p->axis != FM__AXIS_TOKENS)
        return;
    mean_shares(p, p->rows);
    if (p->options->axis == FM__AXIS_WHOLE)
        balance(p);
}

/* Who gets which product, into p->owner, for the caller to free. */
static fm_status deal(planner *p) {
    uint32_t n = p->tape->n_op;
    double(*shares)[FM__MAX_UNITS] = fm__alloc_array(n, sizeof *shares);
    fm_status status = FM_OK;
    p->owner = fm__alloc(n);
    if (shares == NULL || p->owner == NULL)
        status = fm__error_memory(p->error, "plan", n * (1 + sizeof *shares));
    for (uint32_t i = 0; i < n && status == FM_OK; i++)
        memcpy(shares[i], shares_of(p, i), sizeof shares[i]);
    if (status == FM_OK)
        status = fm__deal(p->tape, (const double(*)[FM__MAX_UNITS])shares, p->n_unit, p->owner,
                          p->error);
    fm__free(shares);
    return status;
}

static bool share_products(const fm__plan *plan, const fm__tape *tape) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        fm__op_kind kind = tape->ops[i].kind;
        for (uint32_t r = 0; r < plan->ops[i].n_range; r++)
            if (fm__is_product(kind))
                used |= 1u << plan->ops[i].ranges[r].unit;
    }
    return (used & (used - 1)) != 0;
}

fm_status fm__plan_make(fm__plan **out, const fm__tape *tape, fm__device *const *units,
                        uint32_t n_unit, const fm__plan_options *options, fm_error *error) {
    static const fm__plan_options none;
    planner p = {.tape = tape,
                 .units = units,
                 .n_unit = n_unit,
                 .options = options != NULL ? options : &none,
                 .error = error};
    fm_status status = check_options(&p);
    if (status != FM_OK)
        return status;
    settle_axis(&p);
    fm__plan *plan = fm__alloc_zero(sizeof *plan);
    if (plan == NULL)
        return fm__error_memory(error, "plan", sizeof *plan);
    if (p.options->axis == FM__AXIS_PRODUCTS)
        status = deal(&p);
    if (status != FM_OK)
        goto failed;
    plan->ops = fm__alloc_array(tape->n_op, sizeof *plan->ops);
    if (plan->ops == NULL) {
        status = fm__error_memory(error, "plan", tape->n_op * sizeof *plan->ops);
        goto failed;
    }
    plan->n_op = tape->n_op;
    plan->deps = p.options->deps;
    for (uint32_t i = 0; i < tape->n_op && status == FM_OK; i++)
        status = plan_op(&p, i, &plan->ops[i]);
    if (status == FM_OK)
        status = plan_memory(&p, plan);
    if (status != FM_OK)
        goto failed;
    plan->shares_products = share_products(plan, tape);
    fm__free(p.owner);
    *out = plan;
    return FM_OK;

failed:
    fm__free(p.owner);
    fm__plan_destroy(&plan);
    return status;
}

void fm__plan_destroy(fm__plan **plan) {
    if (plan == NULL || *plan == NULL)
        return;
    fm__free((*plan)->copies);
    fm__free((*plan)->ops);
    fm__free(*plan);
    *plan = NULL;
}
