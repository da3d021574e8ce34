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

static bool is_measured(fm__span span) {
    return span.end_ns > span.begin_ns;
}

void fm__exec_get_times(const fm__exec *exec, fm__exec_times *times) {
    const fm__layout *layout = &exec->layout;
    fm__span *lists[2] = {exec->spans, exec->spans + layout->n_piece};
    uint32_t n[2] = {0, 0};
    memset(times, 0, sizeof *times);
    for (uint32_t i = 0; i < layout->n_piece; i++) {
        uint32_t unit = layout->pieces[i].unit;
        fm__span span = fm__device_recording_span(layout->pieces[i].recording);
        times->n_segment[unit]++;
        if (!is_measured(span))
            continue;
        times->busy_ns[unit] += span.end_ns - span.begin_ns;
        if (layout->pieces[i].divided)
            times->divided_ns[unit] += span.end_ns - span.begin_ns;
        times->begin_ns =
            times->end_ns == 0 ? span.begin_ns : earlier(times->begin_ns, span.begin_ns);
        times->end_ns = later(times->end_ns, span.end_ns);
        if (unit < 2)
            lists[unit][n[unit]++] = span;
    }
    times->overlap_ns = fm__overlap_ns(lists[0], n[0], lists[1], n[1]);
}

uint32_t fm__exec_spans(const fm__exec *exec, fm__exec_span *spans, uint32_t n) {
    const fm__layout *layout = &exec->layout;
    for (uint32_t i = 0; i < layout->n_piece && i < n; i++) {
        const fm__piece *piece = &layout->pieces[i];
        spans[i] = (fm__exec_span){.unit = piece->unit,
                                   .first_op = piece->first_op,
                                   .last_op = piece->last_op,
                                   .span = fm__device_recording_span(piece->recording)};
    }
    return layout->n_piece;
}
