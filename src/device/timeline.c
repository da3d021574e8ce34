/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/timeline.c: the counter that orders units.
 *
 * Owns: nothing. Never does: go back: signals must ascend. Called from: the units' queues
 * (signal, wait) and the running thread (wait).
 */
#include "device/device.h"

void fm__timeline_init(fm__timeline *timeline) {
    *timeline = (fm__timeline){.owner = NULL};
    fm__counter_init(&timeline->counter, 0);
}

fm_status fm__timeline_create(fm__timeline *timeline, fm__device *const *units, uint32_t n_unit,
                              uint32_t signaller, fm_error *error) {
    fm__timeline_init(timeline);
    for (uint32_t u = 0; u < n_unit; u++) {
        fm__device *unit = units[u];
        if (!fm__device_has_own_queue(unit) || unit == timeline->attached)
            continue;
        if (timeline->attached != NULL) {
            fm__timeline_finish(timeline);
            return fm__error(error, FM_ERROR_UNSUPPORTED, unit->properties.name,
                             "cannot be ordered with a second device that has a queue of its own");
        }
        fm_status status = unit->vtable->timeline_attach(unit, &timeline->native, error);
        if (status != FM_OK)
            return status;
        timeline->attached = unit;
    }
    if (timeline->attached == units[signaller])
        timeline->owner = units[signaller];
    return FM_OK;
}

void fm__timeline_finish(fm__timeline *timeline) {
    if (timeline->attached != NULL)
        timeline->attached->vtable->timeline_detach(timeline->attached, timeline->native);
    timeline->owner = timeline->attached = NULL;
    timeline->native = NULL;
}

uint64_t fm__timeline_value(fm__timeline *timeline) {
    if (timeline->owner != NULL)
        return timeline->owner->vtable->timeline_value(timeline->owner, timeline->native);
    return fm__counter_read(&timeline->counter);
}

void fm__timeline_signal(fm__timeline *timeline, uint64_t value) {
    fm__counter_set(&timeline->counter, value);
    if (timeline->attached != NULL)
        timeline->attached->vtable->timeline_signal(timeline->attached, timeline->native, value);
}

bool fm__timeline_wait(fm__timeline *timeline, uint64_t value) {
    if (timeline->owner != NULL)
        return timeline->owner->vtable->timeline_wait(timeline->owner, timeline->native, value);
    fm__counter_wait_soon(&timeline->counter, value);
    return true;
}
