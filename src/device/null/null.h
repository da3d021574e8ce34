/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/null/null.h: what the null device's files share: the device, its recordings' costs, and
 * the world that keeps virtual time.
 *
 * Owns: nothing. Never does: compute. Called from: null.c and world.c.
 */
#pragma once

#include "device/device.h"

/* What one range of a recording costs; rows are known when it runs. */
typedef struct fm__null_cost {
    double ops_per_row; /* multiply-adds count as 2 */
    double bytes;       /* of weights, read once where there is a row */
    double bytes_per_row;
    fm__rows rows;       /* which count of the batch */
    uint32_t begin, end; /* of the rows, in 65536ths; end 0: all */
} fm__null_cost;

typedef struct fm__null_recording {
    fm__recording base;
    fm__span span; /* of its last run, virtual */
    uint32_t n_cost;
    fm__null_cost costs[];
} fm__null_recording;

typedef struct fm__null_device {
    fm__device device;
    fm__null_options options;
    char refuse_op[32]; /* "": none */
    uint64_t used;      /* bytes of its buffers */
    uint64_t submits;
    bool lost;
} fm__null_device;

/* ---- world.c ---- */

fm_status fm__null_world_join(fm__null_world *world, fm__null_device *device, fm_error *error);
void fm__null_world_leave(fm__null_world *world, fm__null_device *device);
/* Puts a submission into the device's queue and computes what can be computed. */
fm_status fm__null_world_submit(fm__null_world *world, fm__null_device *device,
                                const fm__segment *segments, uint32_t n_segment, const fm__run *run,
                                uint64_t base, fm_error *error);
/* Something was refused: who waits for it shall not wait for ever. */
void fm__null_world_release(fm__null_world *world);
/* No part of the world points to the recording any more. */
void fm__null_world_forget(fm__null_world *world, const fm__null_recording *recording);
