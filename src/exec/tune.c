/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/tune.c: the shares of a whole tape.
 *
 * Owns: nothing. Never does: time or run. Called from: the calibrating thread.
 *
 *   one share   The search of calibrate.c, for all products at once.
 *   balance     A class on which the last unit is quicker than on the others gets a larger share:
 *               as the units' times in the fastest divided run say, and when they ended there.
 *   each        The same for one class after the other, where that may be worth it: borders are
 *               multiples of many columns, and narrow products may have the better ones already.
 *   fewer       Where products are divided, the classes whose products are shortest are left
 *               whole, one after the other, as long as that is faster.
 *   more        Where one share for all was not worth it, the class with the longest product is
 *               divided, then the next, as long as that is faster.
 *   level       All classes so that both units would have ended together in the runs of what is
 *               best so far. A share that is off by a tenth costs less than the noise of a few
 *               runs, but the units' ends, summed over all products and runs, show it.
 *
 *   check       Nothing divided, where what was found is by now no faster than that was, by the
 * search's dead band: times may have drifted, or luck ended.
 *
 * A change is measured in turns with what is best so far, and must be faster by `worth`; one of
 * `fewer` and `more` in nearly every turn. A levelled one must not be slower.
 */
#include "exec/tune.h"

#include <math.h>
#include <string.h>

#include "exec/median.h"

enum { STAGE_BALANCE, STAGE_EACH, STAGE_FEWER, STAGE_MORE, STAGE_LEVEL, STAGE_CHECK, STAGE_END };

/* Runs of which so many fit into the budget are short: a change is then measured more often. */
enum { SHORT = 80, SHORT_REPEATS = 5, LEVEL_REPEATS = 8, MOST_LEVELS = 3 };

/* A change that takes that much more in its first run is not run again. */
static const double CLEARLY_SLOWER = 1.1;
/* Shares that differ by less of the shorter way to an end are one. */
static const double SAME_SHARE = 0.05, SAME_LEVEL = 0.015;
static const double LEAST_SHARE = 0.005;
/* Cut at other rows than the shares of the work say, since later rows see more keys: a unit may
   have that much more of the products than of the work. */
static const double CUT = 0.9;

static void set_all(const fm__tune *tune, double *shares, double share) {
    for (uint32_t c = 0; c < tune->n_class; c++)
        shares[c] = share;
}

void fm__tune_init(fm__tune *tune, const fm__tune_options *options, const uint32_t *count,
                   uint32_t n_class) {
    assert(n_class > 0 && n_class <= FM__TUNE_CLASSES);
    memset(tune, 0, sizeof *tune);
    if (options != NULL)
        tune->options = *options;
    fm__tune_options *o = &tune->options;
    o->worth = o->worth > 0 ? o->worth : 0.01;
    o->repeats = o->repeats > 0 && o->repeats <= 8 ? o->repeats : 3;
    if (!(o->search.budget_ns > 0))
        o->search.budget_ns = 0.7 * o->budget_ns;
    tune->n_class = n_class;
    memcpy(tune->count, count, n_class * sizeof *count);
    fm__search_init(&tune->search, &o->search);
    tune->searching = true;
    double share = 0;
    fm__search_next(&tune->search, &share);
    set_all(tune, tune->shares, share);
}

/* ---- what the units' times say of each class ---- */

/* Of three units or more those before the last share 1 - share equally. What is called the first
   unit's time of all products is then what share 0 takes the slowest of them, which is in
   proportion to 1 - share as with two; so what follows holds for any number of units. */

static bool has_times(const fm__tune *tune, uint32_t c) {
    return tune->reference_ns > 0 && tune->reference.first_ns[c] > 0 &&
           tune->reference.second_ns[c] > 0;
}

/* Time of all the class's products with share 0, and with share 1, by what they take beside each
   other. */
static double first_of(const fm__tune *tune, uint32_t c) {
    return tune->reference.first_ns[c] / (1 - tune->reference_share);
}

static double second_of(const fm__tune *tune, uint32_t c) {
    return tune->reference.second_ns[c] / tune->reference_share;
}

static void sort_classes(fm__tune *tune) {
    for (uint32_t c = 0; c < tune->n_class; c++) {
        double ns = has_times(tune, c) ? first_of(tune, c) / tune->count[c] : 0;
        uint32_t at = c;
        for (; at > 0; at--) {
            uint32_t o = tune->order[at - 1];
            if ((has_times(tune, o) ? first_of(tune, o) / tune->count[o] : 0) >= ns)
                break;
            tune->order[at] = o;
        }
        tune->order[at] = c;
    }
}

/* The share of a class beside `share` for all: the units' relation in this class over that in all.
   What hand-overs cost is in `share` already. With `share` 0 the relation in this class alone. */
static double balanced(const fm__tune *tune, uint32_t c, double share) {
    double first = 0, second = 0;
    if (!has_times(tune, c))
        return share;
    double relation = first_of(tune, c) / second_of(tune, c);
    for (uint32_t i = 0; i < tune->n_class; i++)
        if (has_times(tune, i)) {
            first += first_of(tune, i);
            second += second_of(tune, i);
        }
    double odds = share > 0 ? share / (1 - share) * relation / (first / second) : relation;
    double out = odds / (1 + odds);
    return out < LEAST_SHARE ? 0 : out;
}

/* ---- changes ---- */

static void begin_change(fm__tune *tune) {
    tune->turn = 0;
    tune->of_change = (fm__tune_times){0};
    memcpy(tune->shares, tune->best, sizeof tune->shares);
}

static bool differs(const fm__tune *tune) {
    double same = tune->stage == STAGE_LEVEL ? SAME_LEVEL : SAME_SHARE;
    for (uint32_t c = 0; c < tune->n_class; c++) {
        double a = tune->best[c], b = tune->change[c];
        double room = fmin(fmin(a, 1 - a), fmin(b, 1 - b));
        if (fabs(a - b) > same * room + 1e-9)
            return true;
    }
    return false;
}

static void add_times(fm__tune_times *sum, const fm__tune_times *times) {
    for (uint32_t c = 0; c < FM__TUNE_CLASSES; c++) {
        sum->first_ns[c] += times->first_ns[c];
        sum->second_ns[c] += times->second_ns[c];
        sum->late_ns[c] += times->late_ns[c];
    }
}

/* The share with which both units would have ended the class's products together in the fastest
   divided run: a hand-over delays narrow products by a larger part than wide ones. */
static double ending_together(const fm__tune *tune, uint32_t c) {
    if (!has_times(tune, c))
        return tune->search.best;
    double share = tune->reference_share +
                   tune->reference.late_ns[c] / (first_of(tune, c) + second_of(tune, c));
    return share < LEAST_SHARE ? 0 : fmin(share, 1);
}

static bool knows_ends(const fm__tune *tune) {
    bool known = false;
    for (uint32_t c = 0; c < tune->n_class; c++)
        known = known || tune->reference.late_ns[c] != 0;
    return known;
}

/* By the classes' ends; beside the one share for all; then each class by itself: a share for all
   that is off because narrow products cannot be cut there says nothing of wide ones. */
static bool propose_balance(fm__tune *tune) {
    enum { BY_ENDS, BESIDE_ALL, BY_ITSELF, WAYS };
    uint32_t way = tune->next++;
    if (tune->n_class < 2 || way >= WAYS)
        return false;
    if (way == BY_ENDS && !knows_ends(tune))
        way = tune->next++;
    for (uint32_t c = 0; c < tune->n_class; c++)
        tune->change[c] = way == BY_ENDS
                              ? ending_together(tune, c)
                              : balanced(tune, c, way == BY_ITSELF ? 0 : tune->search.best);
    return true;
}

/* One class, so that both units end together; where the time between their ends, which is the most
   that it can save, is not worth a change the class is left out. */
static bool propose_each(fm__tune *tune) {
    memcpy(tune->change, tune->best, sizeof tune->change);
    while (tune->next < tune->n_class) {
        uint32_t c = tune->order[tune->next++];
        if (fabs(tune->reference.late_ns[c]) > tune->options.worth * tune->reference_ns) {
            tune->change[c] = ending_together(tune, c);
            return true;
        }
    }
    return false;
}

/* Of the classes from the shortest product on, number `next` is left whole; never the last one. */
static bool propose_fewer(fm__tune *tune) {
    memcpy(tune->change, tune->best, sizeof tune->change);
    if (tune->next + 1 >= tune->n_class)
        return false;
    tune->change[tune->order[tune->n_class - 1 - tune->next++]] = 0;
    return true;
}

static bool propose_more(fm__tune *tune) {
    memcpy(tune->change, tune->best, sizeof tune->change);
    if (tune->next >= tune->n_class)
        return false;
    uint32_t c = tune->order[tune->next++];
    tune->change[c] = balanced(tune, c, 0);
    return has_times(tune, c);
}

/* Every divided class, so that both units end together, by the sums of all runs of the best. */
static bool propose_level(fm__tune *tune) {
    const fm__tune_times *t = &tune->of_best;
    if (tune->next++ == MOST_LEVELS)
        return false;
    for (uint32_t c = 0; c < tune->n_class; c++) {
        double share = tune->best[c];
        tune->change[c] = share;
        if (share <= 0 || share >= 1 || t->first_ns[c] <= 0 || t->second_ns[c] <= 0)
            continue;
        double all = t->first_ns[c] / (1 - share) + t->second_ns[c] / share;
        share += t->late_ns[c] / all;
        tune->change[c] = fmin(fmax(share, LEAST_SHARE), 1 - LEAST_SHARE);
    }
    return true;
}

static bool divides(const fm__tune *tune) {
    for (uint32_t c = 0; c < tune->n_class; c++)
        if (tune->best[c] > 0)
            return true;
    return false;
}

static bool propose_check(fm__tune *tune) {
    double worth = 1 - tune->search.options.dead_band;
    memset(tune->change, 0, sizeof tune->change);
    return tune->next++ == 0 && tune->best_ns > worth * tune->zero_ns;
}

static void end_stage(fm__tune *tune) {
    tune->stage = tune->stage == STAGE_FEWER ? STAGE_LEVEL : tune->stage + 1;
    tune->next = 0;
}

/* `runs` more would take more than there is. */
static bool broke(const fm__tune *tune, uint32_t runs) {
    double budget = tune->options.budget_ns;
    return budget > 0 && tune->spent_ns + runs * tune->best_ns > budget;
}

static void next_change(fm__tune *tune) {
    if (tune->stage < STAGE_CHECK && broke(tune, 2)) {
        tune->stage = STAGE_CHECK; /* of which there is always time */
        tune->next = 0;
    }
    while (tune->stage != STAGE_END) {
        bool found = tune->stage == STAGE_BALANCE ? propose_balance(tune)
                     : tune->stage == STAGE_EACH  ? propose_each(tune)
                     : tune->stage == STAGE_FEWER ? propose_fewer(tune)
                     : tune->stage == STAGE_MORE  ? propose_more(tune)
                     : tune->stage == STAGE_LEVEL ? propose_level(tune)
                                                  : propose_check(tune);
        if (found && differs(tune)) {
            begin_change(tune);
            return;
        }
        if (!found)
            end_stage(tune);
    }
    tune->done = true;
}

/* The change is measured: on within its stage, or to the next one. */
static void end_change(fm__tune *tune, bool better, double base_ns, double ns) {
    tune->best_ns = better ? ns : base_ns;
    if (tune->stage == STAGE_CHECK)
        tune->zero_ns = ns;
    if (better) {
        memcpy(tune->best, tune->change, sizeof tune->best);
        tune->best_part = tune->change_part;
        tune->of_best = tune->of_change;
    }
    if (tune->stage >= STAGE_FEWER && !better)
        end_stage(tune);
    next_change(tune);
}

/* How often a change is measured. */
static uint32_t repeats(const fm__tune *tune) {
    bool often = tune->stage == STAGE_LEVEL && tune->options.repeats >= SHORT_REPEATS;
    return often ? LEVEL_REPEATS : tune->options.repeats;
}

/* That some products are better left whole, or divided, is what few of the neighbouring runs deny:
   nothing but noise may speak for it. */
static bool pairs_agree(const fm__tune *tune, uint32_t n) {
    uint32_t against = 0;
    for (uint32_t i = 0; i < n; i++)
        against += tune->change_ns[i] >= tune->base_ns[i];
    return (tune->stage != STAGE_FEWER && tune->stage != STAGE_MORE) ||
           against <= n / SHORT_REPEATS;
}

static void feed_change(fm__tune *tune, const fm__tune_times *times) {
    uint32_t n = tune->turn / 2;
    bool change = tune->turn % 2 == 1;
    (change ? tune->change_ns : tune->base_ns)[n] = times->ns;
    add_times(change ? &tune->of_change : &tune->of_best, times);
    tune->turn++;
    if (change && n == 0 && times->ns > CLEARLY_SLOWER * tune->base_ns[0]) {
        end_change(tune, false, tune->base_ns[0], times->ns);
        return;
    }
    if (tune->turn < 2 * repeats(tune) && !(change && broke(tune, 2))) {
        memcpy(tune->shares, tune->turn % 2 == 1 ? tune->change : tune->best, sizeof tune->shares);
        return;
    }
    double base = fm__median(tune->base_ns, n + 1), other = fm__median(tune->change_ns, n + 1);
    double worth = tune->stage == STAGE_LEVEL   ? 0
                   : tune->stage == STAGE_CHECK ? -tune->search.options.dead_band
                                                : tune->options.worth;
    end_change(tune, other <= base * (1 - worth) && pairs_agree(tune, n + 1), base, other);
}

/* ---- one share for all ---- */

static void begin_changes(fm__tune *tune) {
    const fm__search *search = &tune->search;
    double best = search->best;
    tune->searching = false;
    tune->zero_ns = search->points[0].median;
    for (uint32_t i = 0; i < search->n_point; i++)
        if (fabs(search->points[i].share - best) < 1e-9) {
            tune->best_ns = search->points[i].median;
            tune->best_part = search->points[i].first_part;
        }
    set_all(tune, tune->best, best);
    if (tune->reference_ns > 0 && fabs(tune->reference_share - best) < 1e-9)
        add_times(&tune->of_best, &tune->reference);
    sort_classes(tune);
    if (tune->best_ns * SHORT < tune->options.budget_ns && tune->options.repeats < SHORT_REPEATS)
        tune->options.repeats = SHORT_REPEATS;
    tune->stage = best > 0 ? STAGE_BALANCE : STAGE_MORE;
    if (best >= 1)
        tune->stage = STAGE_END;
    next_change(tune);
}

/* The least that a unit before the last has of its part with share 0; 0: unknown. */
static double part_of_zero(const fm__tune *tune, const fm__tune_times *times) {
    double least = INFINITY;
    for (uint32_t u = 0; u < FM__MAX_UNITS; u++)
        if (tune->zero_part[u] > 0)
            least = fmin(least, times->part[u] / tune->zero_part[u]);
    return isfinite(least) ? least : 0;
}

static void feed_search(fm__tune *tune, const fm__tune_times *times) {
    double share = tune->shares[0], first = 0, second = 0;
    for (uint32_t c = 0; c < tune->n_class; c++) {
        first += times->first_ns[c];
        second += times->second_ns[c];
    }
    bool divided = share > 0 && share < 1 && first > 0 && second > 0;
    if (divided && (tune->reference_ns <= 0 || times->ns < tune->reference_ns)) {
        tune->reference = *times;
        tune->reference_ns = times->ns;
        tune->reference_share = share;
    }
    if (share <= 0)
        memcpy(tune->zero_part, times->part, sizeof tune->zero_part);
    tune->search.spent_ns = tune->spent_ns;
    tune->search.points[tune->search.current].first_part =
        fmin(part_of_zero(tune, times), 1 - share);
    fm__search_feed_units(&tune->search, times->ns, first, second);
    if (fm__search_next(&tune->search, &share))
        set_all(tune, tune->shares, share);
    else
        begin_changes(tune);
}

/* ---- the tuning ---- */

bool fm__tune_next(fm__tune *tune, double shares[FM__TUNE_CLASSES]) {
    if (!tune->done)
        memcpy(shares, tune->shares, sizeof tune->shares);
    return !tune->done;
}

void fm__tune_feed(fm__tune *tune, const fm__tune_times *times) {
    assert(!tune->done && times->ns >= 0 && isfinite(times->ns));
    fm__tune_times taken = *times;
    taken.ns = fmax(taken.ns, 1); /* of a clock that is too coarse: times are divided by times */
    tune->measured++;
    if (tune->searching) {
        feed_search(tune, &taken);
    } else {
        if (tune->turn % 2 == 1)
            tune->change_part = part_of_zero(tune, &taken) * CUT;
        feed_change(tune, &taken);
    }
    tune->spent_ns += taken.ns;
}

double fm__tune_predict_alone(const fm__tune *tune) {
    return fm__search_predict_alone(&tune->search);
}

double fm__tune_excess(const fm__tune *tune) {
    const fm__search *search = &tune->search;
    if (!tune->done)
        return 0;
    if (!divides(tune))
        return tune->zero_ns / tune->best_ns;
    double excess = tune->zero_ns / tune->best_ns * tune->best_part;
    for (uint32_t i = 1; i < search->n_point; i++) {
        const fm__search_point *p = &search->points[i];
        if (fabs(p->share - search->best) < 1e-9)
            excess = fmax(excess, search->points[0].median / p->median * p->first_part);
    }
    return excess;
}

/* ---- spans ---- */

static double work_in(const fm__plan *plan, const uint8_t *class_of, const double *work,
                      const fm__exec_span *span, uint32_t c) {
    double sum = 0;
    for (uint32_t i = span->first_op; i <= span->last_op; i++)
        if ((plan->ops[i].n_range > 1 || plan->shares_products) &&
            (c == FM__TUNE_NO_CLASS ? class_of[i] != FM__TUNE_NO_CLASS : class_of[i] == c))
            sum += work[i];
    return sum;
}

/* Each unit's part of all products, by work. */
static void take_parts(const fm__plan *plan, const uint8_t *class_of, const double *work,
                       double part[FM__MAX_UNITS]) {
    double all = 0;
    memset(part, 0, FM__MAX_UNITS * sizeof *part);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        const fm__plan_op *op = &plan->ops[i];
        double of[FM__MAX_UNITS] = {0}, of_all = 0;
        if (class_of[i] == FM__TUNE_NO_CLASS)
            continue;
        for (uint32_t r = 0; r < op->n_range; r++) {
            bool whole = op->axis == FM__AXIS_WHOLE;
            double length = whole ? 1 : op->ranges[r].range.end - op->ranges[r].range.begin;
            of[op->ranges[r].unit] += length;
            of_all += length;
        }
        for (uint32_t u = 0; u < FM__MAX_UNITS && of_all > 0; u++)
            part[u] += work[i] * of[u] / of_all;
        all += work[i];
    }
    for (uint32_t u = 0; u < FM__MAX_UNITS && all > 0; u++)
        part[u] /= all;
}

static bool ends_in_product(const fm__plan *plan, const uint8_t *class_of,
                            const fm__exec_span *span) {
    uint32_t i = span->last_op;
    return class_of[i] != FM__TUNE_NO_CLASS && plan->ops[i].n_range > 1 &&
           span->span.end_ns > span->span.begin_ns;
}

/* What a unit's piece ended later than the last unit's part of the same product. */
static double late_ns(const fm__plan *plan, const uint8_t *class_of, const fm__exec_span *piece,
                      const fm__exec_span *spans, uint32_t n_span, uint32_t n_unit) {
    if (piece->unit == n_unit - 1 || !ends_in_product(plan, class_of, piece))
        return 0;
    for (uint32_t s = 0; s < n_span; s++)
        if (spans[s].unit == n_unit - 1 && spans[s].last_op == piece->last_op &&
            ends_in_product(plan, class_of, &spans[s]))
            return (double)piece->span.end_ns - (double)spans[s].span.end_ns;
    return 0;
}

void fm__tune_add_spans(fm__tune_times *times, const fm__plan *plan, uint32_t n_unit,
                        const uint8_t *class_of, const double *work, const fm__exec_span *spans,
                        uint32_t n_span) {
    double busy[FM__MAX_UNITS][FM__TUNE_CLASSES] = {{0}};
    double late[FM__MAX_UNITS][FM__TUNE_CLASSES] = {{0}};
    take_parts(plan, class_of, work, times->part);
    for (uint32_t s = 0; s < n_span; s++) {
        const fm__exec_span *span = &spans[s];
        double all = work_in(plan, class_of, work, span, FM__TUNE_NO_CLASS);
        if (all <= 0 || span->busy_ns <= 0)
            continue;
        double later = late_ns(plan, class_of, span, spans, n_span, n_unit);
        for (uint32_t c = 0; c < FM__TUNE_CLASSES; c++) {
            double part = work_in(plan, class_of, work, span, c) / all;
            busy[span->unit][c] += span->busy_ns * part;
            late[span->unit][c] += later * part;
        }
    }
    for (uint32_t c = 0; c < FM__TUNE_CLASSES; c++) {
        uint32_t slowest = 0;
        for (uint32_t u = 1; u + 1 < n_unit; u++)
            slowest = busy[u][c] > busy[slowest][c] ? u : slowest;
        times->first_ns[c] += busy[slowest][c];
        times->late_ns[c] += late[slowest][c];
        times->second_ns[c] += busy[n_unit - 1][c];
    }
}
