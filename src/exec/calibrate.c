/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/calibrate.c: the search for the best share.
 *
 * Owns: nothing. Never does: time or run. Called from: the calibrating thread.
 *
 *   first     From share 0 upwards. To divide anything costs hand-overs, whatever the share, so
 *             a positive share is compared with other positive ones only. Where the units' own
 *             times are known, each is fitted as a fixed part and one in proportion to its share,
 *             and the next candidate is where both would end together; it may be a few times
 *             further than what was measured, not more, as the fit knows nothing of a cliff.
 *             Where they are not known, candidates follow a grid. A median above the best by twice
 *             the rise ends the pass; by the rise, the search looks half a step further: still
 *             above ends it, else it was a bump. So nothing is timed further than half a step
 *             behind a rise. A candidate that is far above after two measurements gets no third.
 *   middle    The winner and a neighbour at each side take turns, so that a drift hits all of them
 *             alike; only this pass's measurements decide. The neighbours then come nearer. Two
 *             times on both sides of the valley and the units' rates say where its ground is: that
 *             is a candidate too.
 *   last      The winner, share 0, and share 1 where it may be as good: some more repeats.
 *   result    The last winner, or an end of the scale where that loses less than the dead band.
 */
#include "exec/calibrate.h"

#include <math.h>
#include <string.h>

#include "exec/median.h"

/* Times the best: not measured again, whatever the reason may have been. */
static const double CLIFF = 2;
/* Share 1 is looked at when it is expected to take up to that much of the winner's time. */
static const double END_RATIO = 1.3;
/* Neighbours' distances of the middle passes, of the way to the nearer end of the scale. With the
   units' times known a pass leads to the next one's middle. */
static const double WIDTH = 0.25, WIDTH_KNOWN = 0.2, WIDTH_LEAST = 0.02;
/* Shares nearer to an end than this are the end. */
static const double LEAST_SHARE = 0.002;

/* LEAST_JUMPS: how many there are however long they take: the first two find most of what there is.
 */
enum { LEAST_JUMPS = 2, MOST_JUMPS = 6 };

static double or_default(double value, double standard) {
    return value > 0 ? value : standard;
}

static double smaller(double a, double b) {
    return a < b ? a : b;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* 0, first, first + step, ... and 1; a step that would need more points than there are is larger.
 */
static void make_grid(fm__search *search) {
    fm__search_options *o = &search->options;
    double least = (1 - o->first) / (FM__SEARCH_GRID - 2);
    if (o->step < least)
        o->step = least;
    search->grid[0] = 0;
    uint32_t n = 1;
    for (double share = o->first; share < 1 - 0.25 * o->step && n < FM__SEARCH_GRID - 1;
         share = o->first + (n - 1) * o->step)
        search->grid[n++] = share;
    search->grid[n++] = 1;
    search->n_grid = n;
}

/* The place of a share among the points, which is made if there is none yet. */
static uint32_t place(fm__search *search, double share) {
    uint32_t i = 0;
    while (i < search->n_point && search->points[i].share < share - 1e-9)
        i++;
    if (i < search->n_point && search->points[i].share < share + 1e-9)
        return i;
    assert(search->n_point < FM__SEARCH_POINTS);
    memmove(&search->points[i + 1], &search->points[i],
            (search->n_point - i) * sizeof search->points[0]);
    search->points[i] = (fm__search_point){.share = share};
    search->n_point++;
    return i;
}

void fm__search_init(fm__search *search, const fm__search_options *options) {
    memset(search, 0, sizeof *search);
    if (options != NULL)
        search->options = *options;
    fm__search_options *o = &search->options;
    o->step = or_default(o->step, 0.05);
    o->first = or_default(o->first, 0.05);
    o->rise = or_default(o->rise, 0.10);
    o->dead_band = or_default(o->dead_band, 0.02);
    o->repeats = o->repeats > 0 ? o->repeats : 3;
    if (o->repeats > FM__SEARCH_REPEATS)
        o->repeats = FM__SEARCH_REPEATS;
    if (o->first > 1)
        o->first = 1;
    make_grid(search);
    search->current = place(search, 0);
    search->next_grid = 1;
    search->gain = 1;
}

/* ---- measurements ---- */

static void add(fm__search_point *point, double ns) {
    if (point->n == FM__SEARCH_REPEATS) {
        memmove(point->ns, point->ns + 1, (FM__SEARCH_REPEATS - 1) * sizeof point->ns[0]);
        point->n--;
    }
    point->ns[point->n++] = ns;
}

static void add_units(fm__search_point *point, double first_ns, double second_ns) {
    if (first_ns > 0 && (point->first_ns <= 0 || first_ns < point->first_ns))
        point->first_ns = first_ns;
    if (second_ns > 0 && (point->second_ns <= 0 || second_ns < point->second_ns))
        point->second_ns = second_ns;
}

/* The median of the last n measurements. */
static void take_median(fm__search_point *point, uint32_t n) {
    point->median = fm__median(point->ns + (point->n - n), n);
}

/* The point with the lowest median, of those in set[]. */
static uint32_t lowest(const fm__search *search) {
    uint32_t best = search->set[0];
    for (uint32_t i = 1; i < search->n_set; i++)
        if (search->points[search->set[i]].median < search->points[best].median)
            best = search->set[i];
    return best;
}

/* The measured point with a share above 0 and the lowest median, but for the one at `without`;
   0: there is none. */
static uint32_t lowest_positive(const fm__search *search, uint32_t without) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < search->n_point; i++)
        if (i != without && search->points[i].n > 0 &&
            (best == 0 || search->points[i].median < search->points[best].median))
            best = i;
    return best;
}

static bool far_above(const fm__search *search, double ns, double best) {
    return ns > best * (1 + 2 * search->options.rise);
}

static bool spent(const fm__search *search, double part) {
    return search->options.budget_ns > 0 && search->spent_ns > part * search->options.budget_ns;
}

/* ---- what the units' times say ---- */

static bool has_times(const fm__search_point *point) {
    return point->share > 0 && point->share < 1 && point->first_ns > 0 && point->second_ns > 0;
}

/* Time of a unit's part x of the work: fixed + slope * x. */
typedef struct line {
    double fixed, slope;
} line;

/* Least squares over the points, neither number below 0. */
static line fit(const fm__search *search, bool second) {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (uint32_t i = 0; i < search->n_point; i++) {
        const fm__search_point *p = &search->points[i];
        if (!has_times(p))
            continue;
        double part = second ? p->share : 1 - p->share, ns = second ? p->second_ns : p->first_ns;
        n++;
        x += part;
        y += ns;
        xx += part * part;
        xy += part * ns;
    }
    line out = {0, xx > 0 ? xy / xx : 0};
    double spread = n * xx - x * x;
    if (n < 2 || spread <= 1e-12 * xx)
        return out;
    double slope = (n * xy - x * y) / spread, fixed = (y - slope * x) / n;
    return slope > 0 && fixed > 0 ? (line){fixed, slope} : out;
}

static bool any_times(const fm__search *search) {
    for (uint32_t i = 0; i < search->n_point; i++)
        if (has_times(&search->points[i]))
            return true;
    return false;
}

/* Where both units end together; may lie beyond the ends. */
static double balance(const fm__search *search) {
    line first = fit(search, false), second = fit(search, true);
    return (first.fixed + first.slope - second.fixed) / (first.slope + second.slope);
}

/* The ground of the valley between two measured points on its two sides. */
static double crossing(const fm__search *search, const fm__search_point *left,
                       const fm__search_point *right) {
    line first = fit(search, false), second = fit(search, true);
    double share =
        (left->median - right->median + first.slope * left->share + second.slope * right->share) /
        (first.slope + second.slope);
    return smaller(larger(share, left->share), right->share);
}

double fm__search_predict_alone(const fm__search *search) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < search->n_point; i++)
        if (has_times(&search->points[i]) &&
            (best == 0 || search->points[i].median < search->points[best].median))
            best = i;
    if (best == 0)
        return 0;
    const fm__search_point *p = &search->points[best];
    line second = fit(search, true);
    double rest = larger(p->median - larger(p->first_ns, p->second_ns), 0);
    return rest + second.fixed + second.slope;
}

void fm__search_unit_ns(const fm__search *search, double *first_ns, double *second_ns) {
    line first = fit(search, false), second = fit(search, true);
    *first_ns = first.fixed + first.slope;
    *second_ns = second.fixed + second.slope;
}

/* ---- passes that take turns ---- */

static void begin_turns(fm__search *search) {
    search->pass++;
    search->turn = search->n_set = search->out = 0;
    search->repeats = search->options.repeats;
    if (search->repeats > 2 && spent(search, 0.5))
        search->repeats = 2;
    if (spent(search, 1))
        search->repeats = 1;
}

static void add_turn(fm__search *search, double share) {
    if (share < -1e-9 || share > 1 + 1e-9)
        return;
    uint32_t known = search->n_point, p = place(search, share);
    for (uint32_t i = 0; i < search->n_set; i++) {
        if (search->n_point > known && search->set[i] >= p)
            search->set[i]++; /* a new point moved it */
    }
    for (uint32_t i = 0; i < search->n_set; i++)
        if (search->set[i] == p)
            return;
    search->set[search->n_set++] = p;
}

/* The lowest share above `share` whose time had risen; 2: none. */
static double risen_above(const fm__search *search, double share, double best) {
    for (uint32_t i = 0; i < search->n_point; i++) {
        const fm__search_point *p = &search->points[i];
        if (p->share > share + 1e-9 && p->n > 0 && p->median > best * (1 + search->options.rise))
            return p->share;
    }
    return 2;
}

/* How far a neighbour of `share` lies from it. */
static double distance(const fm__search *search, double share) {
    return search->width * larger(smaller(share, 1 - share), 0.02);
}

/* The highest share that a hint may name: a neighbour's distance beyond what was measured to be no
   more than a bump above the best. The winner of a few runs may be that by noise, of up to the
   rise. */
static double reach(const fm__search *search, double winner, double best) {
    double furthest = winner;
    for (uint32_t i = 0; i < search->n_point; i++) {
        const fm__search_point *p = &search->points[i];
        if (p->n > 0 && p->share > furthest && p->median <= best * (1 + search->options.rise))
            furthest = p->share;
    }
    return smaller(furthest + distance(search, furthest), risen_above(search, furthest, best));
}

/* The winner so far, a neighbour at each side, and a share that is thought to be better. */
static void begin_middle(fm__search *search, double winner, double hint) {
    double best = search->points[place(search, winner)].median;
    double away = distance(search, winner);
    double right = smaller(winner + away, 0.5 * (winner + risen_above(search, winner, best)));
    begin_turns(search);
    add_turn(search, winner);
    add_turn(search, winner - away > LEAST_SHARE ? winner - away : -1);
    add_turn(search, right);
    if (hint > LEAST_SHARE && fabs(hint - winner) > 0.1 * away &&
        hint < reach(search, winner, best))
        add_turn(search, hint);
    search->current = search->set[0];
}

static bool one_is_worth_it(const fm__search *search, const fm__search_point *winner) {
    const fm__search_point *last = &search->points[search->n_point - 1];
    if (winner->share >= 1 - 1e-9)
        return false; /* it is there already */
    if (last->share >= 1 - 1e-9 && last->n > 0)
        return last->median < CLIFF * winner->median;
    if (risen_above(search, winner->share, CLIFF / (1 + search->options.rise) * winner->median) < 2)
        return false;
    double alone = fm__search_predict_alone(search);
    if (alone > 0)
        return alone < END_RATIO * winner->median;
    return winner->share >= 0.75 && risen_above(search, winner->share, winner->median) > 1;
}

/* Share 0 loses nothing to hand-overs and 1 nothing to waiting: they win where it is close. */
static void finish(fm__search *search, uint32_t winner) {
    const fm__search_point *zero = &search->points[0], *best = &search->points[winner],
                           *one = &search->points[search->n_point - 1];
    double worth = 1 - search->options.dead_band;
    search->done = true;
    if (one->share >= 1 - 1e-9 && one->n > 0 && one->median * worth <= best->median)
        best = one;
    if (best->median < zero->median * worth) {
        search->best = best->share;
        search->gain = zero->median / best->median;
    }
}

/* What the last pass decides is whether to divide at all, and some gains are not above the noise of
   a few runs: where runs are short two shares take up to a quarter of the budget. */
static uint32_t repeats_of_last(const fm__search *search, const fm__search_point *winner) {
    double pair = winner->median + search->points[0].median;
    double fits = search->options.budget_ns > 0 ? 0.25 * search->options.budget_ns / pair : 0;
    double least = search->repeats + 2.0;
    return (uint32_t)smaller(larger(fits, least), FM__SEARCH_REPEATS);
}

static void begin_last(fm__search *search, double winner) {
    uint32_t at = place(search, winner);
    double rise = 1 - search->options.rise;
    if (spent(search, 1) && search->points[at].median < rise * search->points[0].median) {
        search->pass++;
        finish(search, at); /* there is no time to ask again, and no need */
        return;
    }
    bool one = one_is_worth_it(search, &search->points[at]);
    search->before = search->points[place(search, winner)].median;
    begin_turns(search);
    if (!spent(search, 0.5))
        search->repeats = repeats_of_last(search, &search->points[at]);
    search->last = true;
    add_turn(search, 0);
    add_turn(search, winner);
    if (one)
        add_turn(search, 1);
    search->current = search->set[0];
}

static void end_pass(fm__search *search) {
    uint32_t winner = lowest(search);
    const fm__search_point *best = &search->points[winner], *left = NULL, *right = NULL;
    search->best_of_pass[search->pass] = best->share;
    if (search->last) {
        double now = search->points[search->set[1]].median;
        if (now > search->before * (1 + search->options.rise) &&
            search->pass < FM__SEARCH_PASSES - 1 && !spent(search, 1))
            begin_last(search, search->points[search->set[1]].share); /* it was disturbed */
        else
            finish(search, winner);
        return;
    }
    bool known = any_times(search);
    for (uint32_t i = 0; i < search->n_set; i++) {
        const fm__search_point *p = &search->points[search->set[i]];
        left = left == NULL || p->share < left->share ? p : left;
        right = right == NULL || p->share > right->share ? p : right;
    }
    if (known)
        search->width *= 0.25;
    else if (best != left && best != right)
        search->width *= 0.5; /* at a border of what was measured, the ground may lie beyond */
    if (search->width < WIDTH_LEAST || search->pass >= FM__SEARCH_PASSES - 3 || spent(search, 1)) {
        begin_last(search, best->share);
        return;
    }
    double hint = known && left != right ? crossing(search, left, right) : -1;
    begin_middle(search, best->share, hint);
}

/* The set's next point that is not out; false: the pass is over. */
static bool next_turn(fm__search *search) {
    do
        search->turn++;
    while (search->turn < search->n_set * search->repeats &&
           (search->out >> search->turn % search->n_set & 1));
    if (search->turn >= search->n_set * search->repeats)
        return false;
    search->current = search->set[search->turn % search->n_set];
    return true;
}

static void feed_turn(fm__search *search, double ns) {
    const fm__search_point *first = &search->points[search->set[search->last ? 1 : 0]];
    fm__search_point *point = &search->points[search->current];
    uint32_t place_in_set = search->turn % search->n_set;
    if (point != first && first->n > 0 && ns > CLIFF * first->ns[first->n - 1]) {
        search->out |= 1u << place_in_set;
        point->median = ns;
    }
    if (next_turn(search))
        return;
    for (uint32_t i = 0; i < search->n_set; i++)
        if (!(search->out >> i & 1))
            take_median(&search->points[search->set[i]], search->repeats);
    end_pass(search);
}

/* ---- the first pass ---- */

static void end_first(fm__search *search) {
    uint32_t best = lowest_positive(search, 0);
    search->best_of_pass[0] = search->points[best].share;
    if (best == 0) {
        search->done = true;
        return;
    }
    bool known = any_times(search);
    search->width = known ? WIDTH_KNOWN : WIDTH;
    double share = search->points[best].share;
    if (spent(search, 0.75))
        begin_last(search, share);
    else
        begin_middle(search, share, known ? balance(search) : -1);
}

static void next_candidate(fm__search *search) {
    if (search->next_grid == search->n_grid)
        end_first(search);
    else
        search->current = place(search, search->grid[search->next_grid++]);
}

/* Measurements of a candidate that would end the pass. */
static uint32_t wanted(const fm__search *search) {
    uint32_t twice = 2 * search->options.repeats;
    return twice < FM__SEARCH_REPEATS ? twice : FM__SEARCH_REPEATS;
}

static bool is_near(const fm__search *search, double share) {
    double near = 0.08 * smaller(share, 1 - share) + 1e-9;
    for (uint32_t i = 1; i < search->n_point; i++)
        if (search->points[i].n > 0 && fabs(search->points[i].share - share) <= near)
            return true;
    return false;
}

/* To where both units would end together, if that is not known yet. */
static void jump(fm__search *search) {
    double share = search->points[search->current].share, next = balance(search);
    next = smaller(next, larger(4 * share, share + 0.15));
    next = smaller(next, 0.97);
    if (next < LEAST_SHARE || search->jumps == MOST_JUMPS || is_near(search, next)) {
        end_first(search);
        return;
    }
    search->jumps++;
    search->current = place(search, next);
}

/* The candidate has its measurements. */
static void judge(fm__search *search) {
    fm__search_point *point = &search->points[search->current];
    if (point->share <= 0) {
        next_candidate(search);
        return;
    }
    uint32_t other = lowest_positive(search, search->current);
    double best = other > 0 ? search->points[other].median : INFINITY;
    bool risen = point->median > best * (1 + search->options.rise);
    bool room = search->n_point + 20 < FM__SEARCH_POINTS && search->next_grid < search->n_grid;
    bool ends = far_above(search, point->median, best) || (risen && (search->looking || !room));
    if (ends && point->n < wanted(search) && point->median < CLIFF * best)
        return; /* hiccups may come in pairs: what ends a pass is measured once more */
    bool known = has_times(point);
    if (known && spent(search, 0.75) && search->jumps >= LEAST_JUMPS)
        end_first(search);
    else if (ends && !(known && point->median < CLIFF * best))
        end_first(search);
    else if (known)
        jump(search);
    else if ((search->looking = risen))
        search->current = place(search, 0.5 * (point->share + search->grid[search->next_grid]));
    else
        next_candidate(search);
}

/* One of the runs of which a search takes some 30 to 60. */
static void fit_in(fm__search_options *o, double ns) {
    if (o->budget_ns > 0 && ns > o->budget_ns / 40 && o->repeats > 2)
        o->repeats = 2;
    if (o->budget_ns > 0 && ns > o->budget_ns / 20)
        o->repeats = 1;
}

static void feed_first(fm__search *search) {
    fm__search_point *point = &search->points[search->current];
    fit_in(&search->options, point->ns[point->n - 1]);
    uint32_t other = lowest_positive(search, search->current), repeats = search->options.repeats;
    double cliff = other > 0 ? CLIFF * search->points[other].median : INFINITY;
    bool hopeless = point->n == 2 && point->ns[0] > cliff && point->ns[1] > cliff;
    if (repeats > 2 && has_times(point))
        repeats = 2; /* it only shows where to look */
    take_median(point, point->n);
    if (point->n >= repeats || point->n == wanted(search) || hopeless)
        judge(search);
}

/* ---- the search ---- */

bool fm__search_next(fm__search *search, double *share) {
    if (!search->done)
        *share = search->points[search->current].share;
    return !search->done;
}

void fm__search_feed_units(fm__search *search, double ns, double first_ns, double second_ns) {
    assert(!search->done && ns >= 0 && isfinite(ns));
    fm__search_point *point = &search->points[search->current];
    add(point, ns > 0 ? ns : 1);
    add_units(point, first_ns, second_ns);
    search->measured++;
    search->spent_ns += ns;
    if (search->pass == 0)
        feed_first(search);
    else
        feed_turn(search, ns);
}

void fm__search_feed(fm__search *search, double ns) {
    fm__search_feed_units(search, ns, 0, 0);
}

/* ---- ideals ---- */

double fm__ideal_share(double first_rate, double second_rate) {
    assert(first_rate >= 0 && second_rate >= 0 && first_rate + second_rate > 0);
    return second_rate / (first_rate + second_rate);
}

double fm__ideal_ns(double work, double fixed_ns, double first_rate, double second_rate) {
    assert(first_rate >= 0 && second_rate >= 0 && first_rate + second_rate > 0);
    return fixed_ns + work / (first_rate + second_rate);
}
