/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/timeline.c: the counter that orders units.
 *
 * Owns: nothing. Never does: go back: signals must ascend. Called from: the units' queues
 * (signal, wait) and the running thread (wait).
 */
#include "device/device.h"

void fm__timeline_init(fm__timeline *timeline) {
    fm__counter_init(&timeline->counter, 0);
}

uint64_t fm__timeline_value(fm__timeline *timeline) {
    return fm__counter_read(&timeline->counter);
}

void fm__timeline_signal(fm__timeline *timeline, uint64_t value) {
    fm__counter_set(&timeline->counter, value);
}

void fm__timeline_wait(fm__timeline *timeline, uint64_t value) {
    fm__counter_wait(&timeline->counter, value);
}
