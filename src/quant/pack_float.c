/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/pack_float.c: panels of F32, F16 and BF16.
 *
 * Owns: the rule that weights below 2^-38 become 0. Never does: other rounding. Called from: any
 * thread.
 */
#include "quant/pack.h"

enum {
    TINY_F32 = 0x2C800000, /* bits of 2^-38 */
    TINY_BF16 = 0x2C80,
    TILE = 16, /* lanes of one row at a time: a cache line, so that rows 4096 bytes apart, which
                  share a cache set, need each of their lines once */
};

typedef int32_t signed_4 __attribute__((vector_size(16)));
typedef int16_t halves_8 __attribute__((vector_size(16)));

/* What happens to a vector of lanes on its way. */
typedef fm__lanes filter(fm__lanes lanes);

FM__INLINE fm__lanes flush_f32(fm__lanes w) {
    signed_4 tiny = (signed_4)(w & 0x7FFFFFFFu) < TINY_F32; /* -1 where so */
    return w & ~(fm__lanes)tiny;
}

FM__INLINE fm__lanes flush_bf16(fm__lanes w) {
    halves_8 tiny = ((halves_8)w & 0x7FFF) < TINY_BF16;
    return w & ~(fm__lanes)tiny;
}

FM__INLINE fm__lanes keep(fm__lanes w) {
    return w;
}

/* TILE lanes of all rows. */
FM__INLINE void pack_tile(const uint8_t *const row[FM__PANEL_ROWS], filter *through, uint8_t *out) {
    for (size_t group = 0; group < FM__GROUPS; group++)
        for (size_t i = 0; i < TILE; i += 4) {
            fm__lanes w[4];
            fm__load_lanes_4(row + group * FM__LANES, 4 * i, w);
            FM__PACK_UNROLL
            for (size_t v = 0; v < 4; v++)
                fm__put(out, i + v, group, through(w[v]));
        }
}

/* Interleaves `bytes` of each row as lanes of 32 bits; the last lane is filled up with zeros. */
FM__INLINE void pack_lanes(const void *const rows[FM__PANEL_ROWS], size_t bytes, filter *through,
                           uint8_t *panel) {
    static const uint8_t nothing[TILE * 4]; /* what rows past N hold */
    const uint8_t *row[FM__PANEL_ROWS];
    size_t step[FM__PANEL_ROWS], at = 0;
    for (size_t r = 0; r < FM__PANEL_ROWS; r++) {
        row[r] = rows[r] ? rows[r] : nothing;
        step[r] = rows[r] ? TILE * 4 : 0;
    }
    for (; at + TILE * 4 <= bytes; at += TILE * 4) {
        pack_tile(row, through, panel + at * 16);
        for (size_t r = 0; r < FM__PANEL_ROWS; r++)
            row[r] += step[r];
    }
    if (at == bytes)
        return;

    /* The rest, through a copy: nothing past a row's end is read. */
    uint8_t rest[FM__PANEL_ROWS][TILE * 4] = {{0}}, tile[TILE * 64];
    for (size_t r = 0; r < FM__PANEL_ROWS; r++) {
        memcpy(rest[r], row[r], bytes - at);
        row[r] = rest[r];
    }
    pack_tile(row, through, tile);
    memcpy(panel + at * 16, tile, (bytes - at + 3) / 4 * 64);
}

/* Clears what lies behind the last lane. */
static void clear_end(fm__dtype dtype, size_t k, uint8_t *panel) {
    fm__panel_layout layout = fm__panel_layout_of(fm__type_get(dtype), k);
    memset(panel + layout.m, 0, layout.stride - layout.m);
}

void fm__pack_f32(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel) {
    pack_lanes(rows, k * 4, flush_f32, panel);
    clear_end(FM__F32, k, panel);
}

void fm__pack_f16(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel) {
    pack_lanes(rows, k * 2, keep, panel);
    clear_end(FM__F16, k, panel);
}

void fm__pack_bf16(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel) {
    pack_lanes(rows, k * 2, flush_bf16, panel);
    clear_end(FM__BF16, k, panel);
}
