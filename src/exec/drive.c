/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/drive.c: runs that the host drives piece by piece: READY and EAGER.
 *
 * Owns: nothing. Never does: let a device wait for another, or allocate. Called from: the running
 * thread.
 */
#include "exec/layout.h"

static fm_status hand_over(fm__exec *exec, const fm__piece *piece, fm_error *error) {
    const fm__segment segment = {.recording = piece->recording,
                                 .signal = &exec->timelines[piece->unit],
                                 .signal_value = piece->signal};
    fm__device *unit = exec->units[piece->unit];
    fm_status status =
        exec->rows_checked
            ? fm__device_submit_more(unit, &segment, 1, exec->driven, exec->driven_base, error)
            : fm__device_submit(unit, &segment, 1, exec->driven, exec->driven_base, error);
    if (status != FM_OK)
        return status;
    exec->rows_checked = true;
    exec->handed_over[piece->unit] = exec->driven_base + piece->signal;
    return FM_OK;
}

static fm_status await(fm__exec *exec, uint32_t unit, uint64_t value, fm_error *error) {
    if (!fm__device_is_lost(exec->units[unit]) && fm__timeline_wait(&exec->timelines[unit], value))
        return FM_OK;
    return fm__error(error, FM_ERROR_DEVICE, exec->units[unit]->properties.name,
                     "was lost during the run");
}

/* ---- READY ---- */

/* The unit's next piece, or NULL. */
static const fm__piece *next_of(fm__exec *exec, uint32_t unit) {
    const fm__layout *layout = &exec->layout;
    uint32_t *next = &exec->next[unit];
    while (*next < layout->n_piece && layout->pieces[*next].unit != unit)
        ++*next;
    return *next < layout->n_piece ? &layout->pieces[*next] : NULL;
}

/* A unit whose results the piece needs and that has not made them yet, or n_unit. */
static uint32_t missing(fm__exec *exec, const fm__piece *piece) {
    for (uint32_t v = 0; v < exec->n_unit; v++)
        if (piece->wait[v] != FM__NO_VALUE &&
            fm__timeline_value(&exec->timelines[v]) < exec->driven_base + piece->wait[v])
            return v;
    return exec->n_unit;
}

/* Hands over every piece that can begin. *blocked: the first in the tape's order of those that
   cannot, or NULL. It waits only for pieces before it, so what it waits for will come. */
static fm_status hand_over_ready(fm__exec *exec, const fm__piece **blocked, fm_error *error) {
    for (bool some = true; some;) {
        some = false;
        *blocked = NULL;
        for (uint32_t u = 0; u < exec->n_unit; u++) {
            const fm__piece *piece;
            while ((piece = next_of(exec, u)) != NULL && missing(exec, piece) == exec->n_unit) {
                fm_status status = hand_over(exec, piece, error);
                if (status != FM_OK)
                    return status;
                exec->next[u]++;
                some = true;
            }
            if (piece != NULL && (*blocked == NULL || piece < *blocked))
                *blocked = piece;
        }
    }
    return FM_OK;
}

static fm_status drive_ready(fm__exec *exec, bool may_wait, fm_error *error) {
    for (;;) {
        const fm__piece *blocked;
        fm_status status = hand_over_ready(exec, &blocked, error);
        if (status != FM_OK || blocked == NULL || !may_wait)
            return status;
        uint32_t v = missing(exec, blocked);
        if (v < exec->n_unit)
            status = await(exec, v, exec->driven_base + blocked->wait[v], error);
        if (status != FM_OK)
            return status;
    }
}

/* ---- EAGER ---- */

static fm_status await_all(fm__exec *exec, fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t u = 0; u < exec->n_unit && status == FM_OK; u++)
        if (fm__exec_uses(exec, u))
            status = await(exec, u, exec->handed_over[u], error);
    return status;
}

static fm_status drive_eager(fm__exec *exec, bool may_wait, fm_error *error) {
    uint32_t *next = &exec->next[0];
    for (; *next < exec->layout.n_piece; ++*next) {
        const fm__piece *piece = &exec->layout.pieces[*next];
        if (piece->begins_step && *next > 0 && !may_wait)
            return FM_OK;
        fm_status status = FM_OK;
        if (piece->begins_step)
            status = await_all(exec, error);
        if (status == FM_OK)
            status = hand_over(exec, piece, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* ---- both ---- */

static fm_status drive(fm__exec *exec, bool may_wait, fm_error *error) {
    return exec->deps == FM__DEPS_READY ? drive_ready(exec, may_wait, error)
                                        : drive_eager(exec, may_wait, error);
}

fm_status fm__exec_drive_begin(fm__exec *exec, const fm__run *run, fm_error *error) {
    exec->driven = run;
    exec->driven_base = exec->base;
    exec->rows_checked = false;
    for (uint32_t u = 0; u < FM__MAX_UNITS; u++)
        exec->next[u] = 0;
    return drive(exec, false, error);
}

fm_status fm__exec_drive_end(fm__exec *exec, fm_error *error) {
    return drive(exec, true, error);
}
