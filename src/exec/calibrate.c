/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/calibrate.c: the search for the best share.
 *
 * Owns: nothing. Never does: time or run. Called from: the calibrating thread.
 *
 *   pass 0    From share 0 upwards, each candidate `repeats` times in a row. A median above the
 * best so far by twice the rise ends the pass; by the rise, the search looks half a step further:
 * still above ends it, else it was a bump and the pass goes on. So nothing is timed further than
 * half a step behind a rise. A candidate that is far above after two measurements gets no third.
 *   pass 1..  The winner, its neighbours and share 0 take turns, so that a drift hits all of them
 *             alike; only this pass's measurements decide. Ends when two passes agree.
 *   last      The winner, half a step to both sides, and share 0.
 *   result    The last winner, or 0 where it gains less than the dead band.
 */
#include "exec/calibrate.h"

#include <math.h>
#include <string.h>

#include "exec/median.h"

static double or_default(double value, double standard) {
    return value > 0 ? value : standard;
}

/* Times the best: not measured again, whatever the reason may have been. */
static const double CLIFF = 2;

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

/* The median of the last n measurements. */
static void take_median(fm__search_point *point, uint32_t n) {
    point->median = fm__median(point->ns + (point->n - n), n);
}

/* The point with the lowest median, of those in set[] or of all. */
static uint32_t lowest(const fm__search *search, const uint32_t *set, uint32_t n) {
    uint32_t best = set != NULL ? set[0] : 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = set != NULL ? set[i] : i;
        if (search->points[p].median < search->points[best].median)
            best = p;
    }
    return best;
}

/* ---- passes that take turns ---- */

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

static bool far_above(const fm__search *search, double ns, double best) {
    return ns > best * (1 + 2 * search->options.rise);
}

/* A neighbour on the grid that was measured and is not beyond a clear rise. */
static void add_neighbour(fm__search *search, double share, double best) {
    for (uint32_t i = 0; i < search->n_point; i++) {
        const fm__search_point *point = &search->points[i];
        if (fabs(point->share - share) < 1e-9 && !far_above(search, point->median, best))
            add_turn(search, share);
    }
}

/* The grid's candidates on both sides of a share. */
static void neighbours(const fm__search *search, double share, double *below, double *above) {
    *below = -1;
    *above = 2;
    for (uint32_t i = 0; i < search->n_grid; i++) {
        double g = search->grid[i];
        if (g < share - 1e-9)
            *below = g;
        else if (g > share + 1e-9 && *above > 1)
            *above = g;
    }
}

static void begin_turns(fm__search *search, double winner, bool halves) {
    double below, above, best = search->points[place(search, winner)].median;
    neighbours(search, winner, &below, &above);
    search->pass++;
    search->turn = search->n_set = 0;
    add_turn(search, 0);
    add_turn(search, winner);
    if (halves) {
        add_turn(search, below < 0 ? -1 : 0.5 * (below + winner));
        add_turn(search, above > 1 ? 2 : 0.5 * (above + winner));
    } else {
        add_neighbour(search, below, best);
        add_neighbour(search, above, best);
    }
    search->current = search->set[0];
}

static void finish(fm__search *search, uint32_t winner) {
    const fm__search_point *zero = &search->points[0], *best = &search->points[winner];
    search->done = true;
    if (best->median < zero->median * (1 - search->options.dead_band)) {
        search->best = best->share;
        search->gain = isfinite(zero->median) ? zero->median / best->median : 1;
    }
}

/* The pass is over: another, the one of half steps, or the end. */
static void end_pass(fm__search *search, uint32_t winner) {
    double share = search->points[winner].share;
    search->best_of_pass[search->pass] = share;
    if (search->pass == FM__SEARCH_PASSES - 1 || isinf(search->points[winner].median)) {
        finish(search, winner);
        return;
    }
    bool agree = search->pass > 0 && fabs(search->best_of_pass[search->pass - 1] - share) < 1e-9;
    while (agree && search->pass < FM__SEARCH_PASSES - 2)
        search->best_of_pass[++search->pass] = share;
    begin_turns(search, share, search->pass == FM__SEARCH_PASSES - 2);
}

static void feed_turn(fm__search *search) {
    search->turn++;
    if (search->turn < search->n_set * search->options.repeats) {
        search->current = search->set[search->turn % search->n_set];
        return;
    }
    for (uint32_t i = 0; i < search->n_set; i++)
        take_median(&search->points[search->set[i]], search->options.repeats);
    end_pass(search, lowest(search, search->set, search->n_set));
}

/* ---- the first pass ---- */

static void next_candidate(fm__search *search) {
    if (search->next_grid == search->n_grid)
        end_pass(search, lowest(search, NULL, search->n_point));
    else
        search->current = place(search, search->grid[search->next_grid++]);
}

static double best_before(const fm__search *search) {
    double best = INFINITY;
    for (uint32_t i = 0; i < search->n_point; i++)
        if (i != search->current && search->points[i].median < best)
            best = search->points[i].median;
    return best;
}

/* Measurements of a candidate that would end the pass. */
static uint32_t wanted(const fm__search *search) {
    uint32_t twice = 2 * search->options.repeats;
    return twice < FM__SEARCH_REPEATS ? twice : FM__SEARCH_REPEATS;
}

/* The candidate has its measurements. */
static void judge(fm__search *search) {
    fm__search_point *point = &search->points[search->current];
    double best = best_before(search);
    bool risen = point->median > best * (1 + search->options.rise);
    bool room = search->n_point + 4 < FM__SEARCH_POINTS && search->next_grid < search->n_grid;
    bool ends = far_above(search, point->median, best) || (risen && (search->looking || !room));
    if (ends && point->n < wanted(search) && point->median < CLIFF * best)
        return; /* hiccups may come in pairs: what ends a pass is measured once more */
    if (ends) {
        end_pass(search, lowest(search, NULL, search->n_point));
        return;
    }
    search->looking = risen;
    if (risen)
        search->current = place(search, 0.5 * (point->share + search->grid[search->next_grid]));
    else
        next_candidate(search);
}

static void feed_upwards(fm__search *search) {
    fm__search_point *point = &search->points[search->current];
    double cliff = CLIFF * best_before(search);
    bool hopeless = point->n == 2 && point->ns[0] > cliff && point->ns[1] > cliff;
    take_median(point, point->n);
    if (point->n == search->options.repeats || point->n == wanted(search) || hopeless ||
        isinf(point->ns[0]))
        judge(search);
}

/* ---- the search ---- */

bool fm__search_next(fm__search *search, double *share) {
    if (!search->done)
        *share = search->points[search->current].share;
    return !search->done;
}

void fm__search_feed(fm__search *search, double ns) {
    assert(!search->done && ns >= 0);
    add(&search->points[search->current], ns > 0 ? ns : 1);
    search->measured++;
    if (search->pass == 0)
        feed_upwards(search);
    else
        feed_turn(search);
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
