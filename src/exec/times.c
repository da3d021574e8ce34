/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/times.c: when each unit was at work.
 *
 * Owns: nothing. Never does: look at a clock. Called from: the running thread, between runs.
 */
#include <string.h>

#include "exec/layout.h"

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

uint64_t fm__overlap_ns(const fm__span *a, uint32_t n_a, const fm__span *b, uint32_t n_b) {
    uint64_t sum = 0, done = 0; /* up to `done` all is counted, should spans of one list overlap */
    uint32_t i = 0, j = 0;
    while (i < n_a && j < n_b) {
        uint64_t begin = later(later(a[i].begin_ns, b[j].begin_ns), done);
        uint64_t end = earlier(a[i].end_ns, b[j].end_ns);
        if (begin < end) {
            sum += end - begin;
            done = end;
        }
        if (a[i].end_ns < b[j].end_ns)
            i++;
        else
            j++;
    }
    return sum;
}

/* ---- intervals of one unit ---- */

static void sift(fm__interval *intervals, uint32_t at, uint32_t n) {
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && intervals[child + 1].begin_ns > intervals[child].begin_ns)
            child++;
        if (intervals[at].begin_ns >= intervals[child].begin_ns)
            return;
        fm__interval moved = intervals[at];
        intervals[at] = intervals[child];
        intervals[child] = moved;
    }
}

void fm__intervals_sort(fm__interval *intervals, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;)
        sift(intervals, i, n);
    for (uint32_t last = n; last-- > 1;) {
        fm__interval moved = intervals[0];
        intervals[0] = intervals[last];
        intervals[last] = moved;
        sift(intervals, 0, last);
    }
}

uint64_t fm__intervals_union(const fm__interval *intervals, uint32_t n, unsigned of,
                             fm__span *spans, uint32_t *n_span) {
    uint64_t sum = 0, until = 0; /* up to `until` all is counted */
    uint32_t filled = 0;
    for (uint32_t i = 0; i < n; i++) {
        const fm__interval *v = &intervals[i];
        if ((of & (v->copy ? FM__OF_COPIES : FM__OF_COMPUTE)) == 0 ||
            (!v->divided && (of & FM__OF_UNDIVIDED) == 0) || v->end_ns <= later(v->begin_ns, until))
            continue;
        sum += v->end_ns - later(v->begin_ns, until);
        if (spans != NULL && filled > 0 && v->begin_ns <= until)
            spans[filled - 1].end_ns = v->end_ns;
        else if (spans != NULL)
            spans[filled++] = (fm__span){v->begin_ns, v->end_ns};
        until = v->end_ns;
    }
    if (n_span != NULL)
        *n_span = filled;
    return sum;
}

/* Copies go on before a run and behind it; what a unit computes lies in it. */
static fm__interval clip(const fm__exec *exec, const fm__work *work, bool divided) {
    fm__interval v = {.begin_ns = work->span.begin_ns,
                      .end_ns = work->span.end_ns,
                      .copy = work->copy,
                      .divided = divided};
    if (work->copy) {
        v.begin_ns = later(v.begin_ns, exec->begin_ns);
        v.end_ns = earlier(v.end_ns, exec->end_ns);
    }
    return v;
}

/* What the piece's unit did for it, into `out`; how many intervals that is. */
static uint32_t collect_piece(const fm__exec *exec, const fm__piece *piece, fm__interval *out,
                              bool *observed) {
    uint32_t n = fm__device_recording_work(piece->recording, exec->work, exec->n_work), filled = 0;
    for (uint32_t i = 0; i < n; i++) {
        fm__interval v = clip(exec, &exec->work[i], piece->divided);
        if (v.end_ns > v.begin_ns)
            out[filled++] = v;
        *observed |= exec->work[i].observed;
    }
    return filled;
}

/* All that the unit did, sorted, into exec->intervals. */
static uint32_t collect_unit(const fm__exec *exec, uint32_t unit, bool *observed) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < exec->layout.n_piece; i++)
        if (exec->layout.pieces[i].unit == unit)
            n += collect_piece(exec, &exec->layout.pieces[i], exec->intervals + n, observed);
    fm__intervals_sort(exec->intervals, n);
    return n;
}

/* ---- a run ---- */

static void add_unit(const fm__exec *exec, uint32_t unit, fm__exec_times *times, fm__span *spans,
                     uint32_t *n_span) {
    enum { EITHER = FM__OF_COMPUTE | FM__OF_COPIES };
    const fm__interval *list = exec->intervals;
    uint32_t n = collect_unit(exec, unit, &times->observed[unit]);
    times->busy_ns[unit] = fm__intervals_union(list, n, EITHER | FM__OF_UNDIVIDED, NULL, NULL);
    times->compute_ns[unit] =
        fm__intervals_union(list, n, FM__OF_COMPUTE | FM__OF_UNDIVIDED, spans, n_span);
    times->copy_ns[unit] =
        fm__intervals_union(list, n, FM__OF_COPIES | FM__OF_UNDIVIDED, NULL, NULL);
    times->divided_ns[unit] = fm__intervals_union(list, n, EITHER, NULL, NULL);
    for (uint32_t i = 0; i < n; i++) {
        times->begin_ns =
            times->end_ns == 0 ? list[i].begin_ns : earlier(times->begin_ns, list[i].begin_ns);
        times->end_ns = later(times->end_ns, list[i].end_ns);
    }
}

void fm__exec_get_times(const fm__exec *exec, fm__exec_times *times) {
    uint32_t n[2] = {0, 0};
    memset(times, 0, sizeof *times);
    for (uint32_t i = 0; i < exec->layout.n_piece; i++)
        times->n_segment[exec->layout.pieces[i].unit]++;
    for (uint32_t u = 0; u < exec->n_unit; u++)
        add_unit(exec, u, times, u < 2 ? exec->spans + u * exec->n_work : NULL,
                 u < 2 ? &n[u] : NULL);
    times->overlap_ns = fm__overlap_ns(exec->spans, n[0], exec->spans + exec->n_work, n[1]);
}

/* Divided pieces' times are lengths until here, and overlap: they get their parts of the union. */
static void share_out(const fm__exec *exec, uint32_t unit, fm__exec_span *spans, uint32_t n) {
    bool observed = false;
    uint32_t n_interval = collect_unit(exec, unit, &observed);
    double whole = (double)fm__intervals_union(exec->intervals, n_interval,
                                               FM__OF_COMPUTE | FM__OF_COPIES, NULL, NULL);
    double sum = 0;
    for (uint32_t i = 0; i < n_interval; i++)
        if (exec->intervals[i].divided)
            sum += (double)(exec->intervals[i].end_ns - exec->intervals[i].begin_ns);
    for (uint32_t i = 0; i < n && sum > 0; i++)
        if (spans[i].unit == unit && exec->layout.pieces[i].divided)
            spans[i].busy_ns *= whole / sum;
}

uint32_t fm__exec_spans(const fm__exec *exec, fm__exec_span *spans, uint32_t n) {
    const fm__layout *layout = &exec->layout;
    n = n < layout->n_piece ? n : layout->n_piece;
    for (uint32_t i = 0; i < n; i++) {
        const fm__piece *piece = &layout->pieces[i];
        bool observed = false;
        uint32_t n_interval = collect_piece(exec, piece, exec->intervals, &observed);
        spans[i] = (fm__exec_span){.unit = piece->unit,
                                   .first_op = piece->first_op,
                                   .last_op = piece->last_op,
                                   .span = fm__device_recording_span(piece->recording)};
        for (uint32_t k = 0; k < n_interval; k++)
            spans[i].busy_ns += (double)(exec->intervals[k].end_ns - exec->intervals[k].begin_ns);
    }
    for (uint32_t u = 0; u < exec->n_unit; u++)
        share_out(exec, u, spans, n);
    return layout->n_piece;
}
