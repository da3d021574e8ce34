/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/status.c: the first failure of a run, whoever finds it.
 *
 * Owns: nothing. Never does: stop a unit (ops ask before they begin). Called from: every thread of
 * every unit.
 */
#include "device/device.h"

/* Held for some instructions by a reporting thread, so that first and status belong together. */
#define REPORTING 0x80000000u

void fm__run_status_clear(fm__run_status *status) {
    atomic_store(&status->first, UINT64_MAX);
    atomic_store(&status->status, FM_OK);
}

void fm__run_status_report(fm__run_status *status, uint32_t op, uint32_t row, fm_status code) {
    uint64_t at = (uint64_t)op << 32 | row;
    uint32_t held;
    while ((held = atomic_fetch_or(&status->status, REPORTING)) & REPORTING)
        ;
    if (at < atomic_load(&status->first)) {
        atomic_store(&status->first, at);
        held = (uint32_t)code;
    }
    atomic_store(&status->status, held);
}

bool fm__run_status_failed_before(fm__run_status *status, uint32_t op) {
    return atomic_load_explicit(&status->first, memory_order_relaxed) >> 32 < op;
}
