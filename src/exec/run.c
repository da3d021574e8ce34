/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/run.c: runs of a tape over its plan's units.
 *
 * Owns: recordings and one timeline a unit. Never does: allocate or wait for work while submitting.
 * Called from: the loading thread (create, destroy) and the running thread (submit, wait).
 *
 * EVENT and BATCH hand every unit all of its pieces at once, and the units wait for each other.
 * READY and EAGER hand over piece by piece (drive.c). However a run ends, every timeline then
 * stands at the run's point, signalled by the host where a unit did not come to it.
 */
#include <string.h>

#include "exec/layout.h"

static bool hands_over_all(fm__deps deps) {
    return deps == FM__DEPS_EVENT || deps == FM__DEPS_BATCH;
}

/* ---- creation ---- */

static uint32_t count_entries(const fm__piece *piece) {
    uint32_t n = 0;
    for (uint32_t v = 0; v < FM__MAX_UNITS; v++)
        n += piece->wait[v] != FM__NO_VALUE;
    return n > 1 ? n : 1;
}

/* Whether another unit waits for the piece, or the end of the run does. */
static bool is_awaited(const fm__layout *layout, const fm__piece *piece) {
    for (uint32_t i = 0; i < layout->n_piece; i++)
        if (layout->pieces[i].wait[piece->unit] == piece->signal)
            return true;
    return piece->signal == layout->span;
}

/* The piece as entries of a submission: all waits but the last are entries of their own. A signal
   that nobody waits for is left out: to a GPU's queue, or from it, it takes microseconds. */
static void add_segments(fm__exec *exec, const fm__piece *piece) {
    fm__segment *segments = exec->segments[piece->unit];
    uint32_t *n = &exec->n_segment[piece->unit];
    for (uint32_t v = 0; v < FM__MAX_UNITS; v++) {
        if (piece->wait[v] == FM__NO_VALUE)
            continue;
        if (segments[*n].wait != NULL)
            ++*n;
        segments[*n].wait = &exec->timelines[v];
        segments[*n].wait_value = piece->wait[v];
    }
    segments[*n].recording = piece->recording;
    if (is_awaited(&exec->layout, piece))
        segments[*n].signal = &exec->timelines[piece->unit];
    segments[(*n)++].signal_value = piece->signal;
}

static fm_status make_segments(fm__exec *exec, fm_error *error) {
    const fm__layout *layout = &exec->layout;
    uint32_t entries[FM__MAX_UNITS] = {0};
    for (uint32_t i = 0; i < layout->n_piece; i++)
        entries[layout->pieces[i].unit] += count_entries(&layout->pieces[i]);
    for (uint32_t u = 0; u < exec->n_unit; u++) {
        if (entries[u] == 0)
            continue;
        exec->segments[u] = fm__alloc_array(entries[u], sizeof(fm__segment));
        if (exec->segments[u] == NULL)
            return fm__error_memory(error, "exec", entries[u] * sizeof(fm__segment));
    }
    for (uint32_t i = 0; i < layout->n_piece; i++)
        add_segments(exec, &layout->pieces[i]);
    return FM_OK;
}

static fm_status record_pieces(fm__exec *exec, const fm__plan *plan, fm_error *error) {
    size_t room = (size_t)plan->n_op * FM__MAX_UNITS + plan->n_copy;
    fm__op_range *ranges = fm__alloc_array(room, sizeof *ranges);
    if (ranges == NULL)
        return fm__error_memory(error, "exec", room * sizeof *ranges);
    fm_status status = FM_OK;
    for (uint32_t i = 0; i < exec->layout.n_piece && status == FM_OK; i++) {
        fm__piece *piece = &exec->layout.pieces[i];
        uint32_t n = fm__layout_ranges(plan, piece, ranges);
        status = fm__device_record(exec->units[piece->unit], exec->tape, ranges, n,
                                   &piece->recording, error);
    }
    fm__free(ranges);
    return status;
}

/* A timeline a unit that has work; only such units can wait for it. */
static fm_status make_timelines(fm__exec *exec, fm_error *error) {
    fm__device *used[FM__MAX_UNITS];
    uint32_t n = 0, signaller = 0;
    for (uint32_t u = 0; u < exec->n_unit; u++)
        if (fm__exec_uses(exec, u))
            used[n++] = exec->units[u];
    for (uint32_t u = 0; u < exec->n_unit; u++) {
        if (!fm__exec_uses(exec, u))
            continue;
        fm_status status = fm__timeline_create(&exec->timelines[u], used, n, signaller++, error);
        if (status != FM_OK)
            return status;
        exec->has_timeline[u] = true;
    }
    return FM_OK;
}

static bool sound_op(const fm__plan_op *op, uint32_t n_unit) {
    bool sound = op->n_range > 0 && op->n_range <= FM__MAX_UNITS;
    for (uint32_t r = 0; sound && r < op->n_range; r++)
        sound = op->ranges[r].unit < n_unit;
    return sound;
}

/* The unit computes part of the op that the copy stands beside, and copies ascend. */
static bool sound_copy(const fm__plan *plan, uint32_t i) {
    const fm__plan_copy *copy = &plan->copies[i];
    if (copy->op >= plan->n_op || copy->copy == FM__COPY_NONE ||
        (i > 0 && plan->copies[i - 1].op > copy->op))
        return false;
    const fm__plan_op *op = &plan->ops[copy->op];
    for (uint32_t r = 0; r < op->n_range; r++)
        if (op->ranges[r].unit == copy->unit)
            return true;
    return false;
}

static fm_status check_plan(const fm__tape *tape, const fm__plan *plan, uint32_t n_unit,
                            fm_error *error) {
    if (n_unit == 0 || n_unit > FM__MAX_UNITS || plan->n_op != tape->n_op)
        return fm__error(error, FM_ERROR_ARGUMENT, "exec",
                         "a plan of %u ops over %u units for a tape of %u ops", plan->n_op, n_unit,
                         tape->n_op);
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (!sound_op(&plan->ops[i], n_unit))
            return fm__error(error, FM_ERROR_ARGUMENT, "exec",
                             "the plan gives op %u to no unit, or to one that is not there", i);
    for (uint32_t i = 0; i < plan->n_copy; i++)
        if (!sound_copy(plan, i))
            return fm__error(error, FM_ERROR_ARGUMENT, "exec",
                             "copy %u of the plan stands beside no op of its unit", i);
    return FM_OK;
}

/* For times.c, which runs between runs and allocates nothing. */
static fm_status make_room(fm__exec *exec, fm_error *error) {
    size_t n = 0;
    for (uint32_t i = 0; i < exec->layout.n_piece; i++)
        n += fm__device_recording_work(exec->layout.pieces[i].recording, NULL, 0);
    exec->n_work = (uint32_t)n;
    exec->work = fm__alloc_array(n, sizeof *exec->work);
    exec->intervals = fm__alloc_array(n, sizeof *exec->intervals);
    exec->spans = fm__alloc_array(2 * n, sizeof *exec->spans);
    if (exec->work == NULL || exec->intervals == NULL || exec->spans == NULL)
        return fm__error_memory(error, "exec", n * sizeof *exec->work);
    return FM_OK;
}

fm_status fm__exec_create(fm__exec **out, const fm__tape *tape, const fm__plan *plan,
                          fm__device *const *units, uint32_t n_unit, fm_error *error) {
    fm_status status = check_plan(tape, plan, n_unit, error);
    if (status != FM_OK)
        return status;
    fm__exec *exec = fm__alloc_zero(sizeof *exec);
    if (exec == NULL)
        return fm__error_memory(error, "exec", sizeof *exec);
    exec->tape = tape;
    exec->n_unit = n_unit;
    exec->deps = plan->deps;
    exec->copies = plan->n_copy > 0;
    memcpy(exec->units, units, n_unit * sizeof *units);
    status = fm__layout_make(&exec->layout, tape, plan, n_unit, error);
    if (status == FM_OK)
        status = make_timelines(exec, error);
    if (status == FM_OK)
        status = record_pieces(exec, plan, error);
    if (status == FM_OK && hands_over_all(plan->deps))
        status = make_segments(exec, error);
    if (status == FM_OK)
        status = make_room(exec, error);
    if (status != FM_OK)
        fm__exec_destroy(&exec);
    else
        *out = exec;
    return status;
}

void fm__exec_destroy(fm__exec **exec) {
    if (exec == NULL || *exec == NULL)
        return;
    fm__exec *e = *exec;
    /* Destroying a recording waits for its device to let go of the timelines. */
    for (uint32_t i = 0; i < e->layout.n_piece; i++)
        fm__device_recording_destroy(&e->layout.pieces[i].recording);
    for (uint32_t u = 0; u < e->n_unit; u++) {
        if (e->has_timeline[u])
            fm__timeline_finish(&e->timelines[u]);
        fm__free(e->segments[u]);
    }
    fm__layout_finish(&e->layout);
    fm__free(e->work);
    fm__free(e->intervals);
    fm__free(e->spans);
    fm__free(e);
    *exec = NULL;
}

/* ---- the end of a run ---- */

/* Makes every timeline stand at `point`. A unit that was lost, or that was not handed all of its
   part, does not come there by itself: the host signals in its place, so that the others, which may
   wait for it, end too. Returns a unit that was lost, or n_unit. */
static uint32_t settle(fm__exec *exec, const fm__run *run, uint64_t point) {
    uint32_t lost = exec->n_unit;
    bool open[FM__MAX_UNITS] = {false};
    for (uint32_t u = 0; u < exec->n_unit; u++) {
        if (!fm__exec_uses(exec, u))
            continue;
        fm__timeline *timeline = &exec->timelines[u];
        bool is_lost = fm__device_is_lost(exec->units[u]);
        if (is_lost)
            lost = u;
        open[u] = !is_lost && exec->handed_over[u] >= point;
        if (open[u])
            continue;
        fm__run_status_report(run->status, 0, 0, FM_ERROR_DEVICE);
        if (!is_lost && !fm__timeline_wait(timeline, exec->handed_over[u]))
            lost = u;
        if (fm__timeline_value(timeline) < point)
            fm__timeline_signal(timeline, point);
    }
    /* The main unit last: where it is a GPU, looking at its value takes a processor. */
    for (uint32_t u = exec->n_unit; u-- > 0;) {
        if (!open[u] || fm__timeline_wait(&exec->timelines[u], point))
            continue;
        lost = u;
        fm__run_status_report(run->status, 0, 0, FM_ERROR_DEVICE);
        fm__timeline_signal(&exec->timelines[u], point);
    }
    return lost;
}

static fm_status report_lost(const fm__exec *exec, uint32_t unit, fm_error *error) {
    return fm__error(error, FM_ERROR_DEVICE, exec->units[unit]->properties.name,
                     "was lost during the run; no other unit works on the run any more");
}

static fm_status failure(const fm__exec *exec, const fm__run *run, uint64_t first,
                         fm_error *error) {
    uint32_t op = (uint32_t)(first >> 32), row = (uint32_t)first;
    fm_status code = (fm_status)atomic_load(&run->status->status);
    char place[160];
    fm__op_describe(exec->tape, op, place, sizeof place);
    if (row >= run->batch->n_row)
        return fm__error(error, code, place, "row %u: %s", row, fm_status_text(code));
    return fm__error(error, code, place, "row %u (token %d at position %u): %s", row,
                     run->batch->token[row], run->batch->position[row],
                     code == FM_ERROR_NUMERIC ? "a value is not finite, or is 2^100 or above"
                                              : fm_status_text(code));
}

/* ---- running ---- */

static fm_status check_run(const fm__exec *exec, const fm__run *run, fm_error *error) {
    if (exec->driven != NULL)
        return fm__error(error, FM_ERROR_STATE, "exec",
                         "the run before has not been waited for; where the host drives the units "
                         "there is one run at a time");
    for (uint32_t u = 0; u < exec->n_unit; u++)
        if (fm__exec_uses(exec, u) && fm__device_is_lost(exec->units[u]))
            return fm__error(error, FM_ERROR_DEVICE, exec->units[u]->properties.name,
                             "was lost and runs nothing any more");
    const fm__buffer *mirror = run->mirrors[FM__SLOT_SCRATCH];
    if (exec->copies && (mirror == NULL || mirror->bytes < exec->tape->scratch_bytes))
        return fm__error(error, FM_ERROR_ARGUMENT, "exec",
                         "the plan copies, and the run has no mirror of the scratch (%zu bytes)",
                         exec->tape->scratch_bytes);
    return FM_OK;
}

/* Hands every unit all of its pieces: one with a queue of its own last. It takes a driver call for
   each of its waits, and meanwhile works on the first pieces; the others are there when it comes to
   need them. */
static fm_status submit_all(fm__exec *exec, const fm__run *run, uint64_t end, fm_error *error) {
    for (uint32_t i = 2 * exec->n_unit; i-- > 0;) {
        uint32_t u = i % exec->n_unit;
        bool last = fm__device_has_own_queue(exec->units[u]);
        if (!fm__exec_uses(exec, u) || last != (i < exec->n_unit))
            continue;
        fm_status status = fm__device_submit(exec->units[u], exec->segments[u], exec->n_segment[u],
                                             run, exec->base, error);
        if (status != FM_OK)
            return status;
        exec->handed_over[u] = end;
    }
    return FM_OK;
}

/* The same, as one step among the runs that share an order: of two of them the same one is ahead in
   every queue, so what its pieces wait for is never behind the other's. */
static fm_status submit_in_order(fm__exec *exec, const fm__run *run, uint64_t end,
                                 fm_error *error) {
    pthread_mutex_t *order = exec->n_unit > 1 ? run->order : NULL;
    if (order != NULL)
        pthread_mutex_lock(order);
    fm_status status = submit_all(exec, run, end, error);
    if (order != NULL)
        pthread_mutex_unlock(order);
    return status;
}

static bool has_begun(const fm__exec *exec) {
    for (uint32_t u = 0; u < exec->n_unit; u++)
        if (fm__exec_uses(exec, u) && exec->handed_over[u] > exec->base)
            return true;
    return false;
}

fm_status fm__exec_submit(fm__exec *exec, const fm__run *run, uint64_t *point, fm_error *error) {
    uint64_t end = exec->base + exec->layout.span;
    exec->begin_ns = fm__now_ns();
    if (run->status != NULL)
        fm__run_status_clear(run->status);
    fm_status status = check_run(exec, run, error);
    if (status != FM_OK)
        return status;
    status = hands_over_all(exec->deps) ? submit_in_order(exec, run, end, error)
                                        : fm__exec_drive_begin(exec, run, error);
    if (status != FM_OK) {
        exec->driven = NULL;
        if (has_begun(exec)) {
            settle(exec, run, end);
            exec->base = end;
        }
        return status;
    }
    exec->base = end;
    *point = end;
    return FM_OK;
}

fm_status fm__exec_wait(fm__exec *exec, uint64_t point, const fm__run *run, fm_error *error) {
    fm_status status = FM_OK;
    if (exec->driven == run && exec->driven != NULL) {
        status = fm__exec_drive_end(exec, error);
        exec->driven = NULL;
    }
    uint32_t lost = settle(exec, run, point);
    exec->end_ns = fm__now_ns();
    for (uint32_t u = 0; u < exec->n_unit && status == FM_OK && lost == exec->n_unit; u++)
        if (fm__exec_uses(exec, u)) {
            status = fm__device_run_finish(exec->units[u], exec->tape, run, error);
            if (fm__device_is_lost(exec->units[u]))
                lost = u;
        }
    if (lost < exec->n_unit)
        return report_lost(exec, lost, error);
    if (status != FM_OK)
        return status;
    uint64_t first = atomic_load(&run->status->first);
    return first == UINT64_MAX ? FM_OK : failure(exec, run, first, error);
}
