/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/inputs.h: inputs on which a kernel that is nearly right goes wrong
 * (docs/numerics.md, "Writing a new backend").
 *
 * Owns: nothing. Never does: clocks or the machine's own randomness: the same seed gives the same
 * inputs. Called from: selftest.c, on the loading thread.
 */
#pragma once

#include "cpu/cpu.h"

/* Kinds of rows and of panels, by turns; counts beyond the last begin again. */
typedef enum fm__input {
    FM__INPUT_NORMAL,
    FM__INPUT_ALIKE,  /* one sign and magnitude: integer sums as large as they get */
    FM__INPUT_CANCEL, /* rows: codes of +-127; panels: neighbouring blocks cancel almost */
    FM__INPUT_EDGES,  /* rows: zero blocks, -0, around 2^-64; panels: extreme codes, zero scales,
                         f16 subnormals */
    FM__INPUT_LADDER, /* rows: chunks of very different magnitude, and ties */
    FM__INPUT_LARGE,  /* rows: just below 2^100 where that is allowed, else one large column */
    FM__INPUT_COUNT
} fm__input;

/* Mean 0, deviation 1, nearly normal. */
float fm__inputs_normal(fm__random *random);
/* k floats. large: entries may come near 2^100. */
void fm__inputs_row(fm__random *random, fm__input kind, bool large, float *x, size_t k);
/* One packed panel of k columns. ALIKE: every weight is positive. */
void fm__inputs_panel(fm__random *random, const fm__type *type, fm__input kind, size_t k,
                      uint8_t *panel);
