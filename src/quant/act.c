/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/act.c: how one row of activations lies in memory.
 *
 * Owns: the layout. Never does: quantise (the cpu room does). Called from: any thread.
 */
#include <assert.h>

#include "quant/quant.h"

enum { ALIGN = 64 };

/* Places a part of `bytes` at the end of the row so far. */
static size_t place(size_t *end, size_t bytes) {
    size_t at = *end;
    *end = fm__round_up(at + bytes, ALIGN);
    return at;
}

fm__act_layout fm__act_layout_of(fm__act act, size_t k) {
    fm__act_layout layout = {0};
    size_t end = 0;
    switch (act) {
    case FM__ACT_F32:
    case FM__ACT_R13:
    case FM__ACT_R16:
        layout.values = place(&end, k * sizeof(float));
        break;
    case FM__ACT_BF16:
        layout.values = place(&end, fm__round_up(k, 2) * sizeof(uint16_t));
        break;
    case FM__ACT_Q8_32:
        assert(k % 32 == 0);
        layout.values = place(&end, k);
        layout.d = place(&end, k / 32 * sizeof(float));
        layout.sum = place(&end, k / 32 * sizeof(int16_t));
        break;
    case FM__ACT_Q8_256:
        assert(k % 256 == 0);
        layout.values = place(&end, k);
        layout.d = place(&end, k / 256 * sizeof(float));
        layout.sum = place(&end, k / 16 * sizeof(int16_t));
        layout.shift = place(&end, k / 32);
        break;
    case FM__ACT_COUNT:
        assert(!"an activation kind");
        break;
    }
    layout.stride = end;
    return layout;
}
