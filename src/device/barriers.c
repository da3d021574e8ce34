/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/barriers.c: which ranges of a recording must wait for which: a pure function, for every
 * device.
 *
 * Owns: nothing. Never does: synchronise. Called from: the loading thread, while devices record.
 */
#include "device/device.h"

static bool same_rows(const fm__op_range *a, const fm__op_range *b) {
    return a->axis == b->axis &&
           (a->axis == FM__AXIS_WHOLE ||
            (a->axis == FM__AXIS_TOKENS && a->begin == b->begin && a->end == b->end));
}

bool fm__range_must_wait(const fm__tape *tape, const fm__op_range *earlier,
                         const fm__op_range *later, bool keeps_rows) {
    /* Copies are few and may touch what no tensor of the op does: they wait, and are waited for. */
    if (earlier->copy != FM__COPY_NONE || later->copy != FM__COPY_NONE)
        return earlier->copy != later->copy;
    if (earlier->op == later->op)
        return false; /* ranges of one op are disjoint */
    fm__dependence d = fm__tape_depends(tape, earlier->op, later->op);
    return d == FM__DEPENDENCE_FULL ||
           (d == FM__DEPENDENCE_ROWS && !(keeps_rows && same_rows(earlier, later)));
}
