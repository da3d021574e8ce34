/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/pack.h: what the packers share (private to the quant room).
 *
 * Words of 32 bits are brought into a panel's order first: *lanes* hold the same word of four rows.
 * What a format keeps in one byte and a panel in several planes is then taken apart for all of
 * these rows at once, by shifts and masks that never cross a byte, so that the order of bytes in a
 * word does not matter; where numbers are read out of a word, fm__as_numbers() says so. Written
 * with the compilers' generic vectors: left to itself, neither gcc nor clang vectorises it. Vectors
 * of 32 and 64 bytes were measured to gain nothing that a load would notice
 * (lab/kernels/050-packing.md).
 */
#pragma once

#include "quant/block.h"

/* Vectors stay in registers only where the loops over them are gone. */
#if !defined(__OPTIMIZE__)
#define FM__PACK_UNROLL
#elif defined(__clang__)
#define FM__PACK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FM__PACK_UNROLL _Pragma("GCC unroll 16")
#endif

enum { FM__LANES = 4, FM__GROUPS = FM__PANEL_ROWS / FM__LANES };

typedef uint32_t fm__lanes __attribute__((vector_size(16)));
typedef uint8_t fm__lane_bytes __attribute__((vector_size(16)));
typedef uint16_t fm__lane_halves __attribute__((vector_size(8)));

/* Elements of two vectors side by side, by their numbers; gcc knows clang's way since 12 only. */
#if defined(__clang__)
#define FM__SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FM__SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

FM__INLINE fm__lanes fm__load_words(const void *p) {
    fm__lanes w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* Of words as they lie in a file, the numbers that they are there, and back. */
FM__INLINE fm__lanes fm__as_numbers(fm__lanes w) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    w = w >> 16 | w << 16;
    w = (w >> 8 & 0x00FF00FFu) | (w & 0x00FF00FFu) << 8;
#endif
    return w;
}

/* Four words of each of four rows, from row[] + offset, as four vectors of lanes. */
FM__INLINE void fm__load_lanes_4(const uint8_t *const *row, size_t offset, fm__lanes out[4]) {
    fm__lanes a = fm__load_words(row[0] + offset), b = fm__load_words(row[1] + offset);
    fm__lanes c = fm__load_words(row[2] + offset), d = fm__load_words(row[3] + offset);
    fm__lanes ab_low = FM__SHUFFLE(fm__lanes, a, b, 0, 4, 1, 5);
    fm__lanes ab_high = FM__SHUFFLE(fm__lanes, a, b, 2, 6, 3, 7);
    fm__lanes cd_low = FM__SHUFFLE(fm__lanes, c, d, 0, 4, 1, 5);
    fm__lanes cd_high = FM__SHUFFLE(fm__lanes, c, d, 2, 6, 3, 7);
    out[0] = FM__SHUFFLE(fm__lanes, ab_low, cd_low, 0, 1, 4, 5);
    out[1] = FM__SHUFFLE(fm__lanes, ab_low, cd_low, 2, 3, 6, 7);
    out[2] = FM__SHUFFLE(fm__lanes, ab_high, cd_high, 0, 1, 4, 5);
    out[3] = FM__SHUFFLE(fm__lanes, ab_high, cd_high, 2, 3, 6, 7);
}

FM__INLINE void fm__load_lanes_8(const uint8_t *const *row, size_t offset, fm__lanes out[8]) {
    fm__load_lanes_4(row, offset, out);
    fm__load_lanes_4(row, offset + 16, out + 4);
}

/* ---- planes ---- */

/* Vector v of a plane: the lanes of rows 4 * group on. */
FM__INLINE void fm__put(uint8_t *plane, size_t v, size_t group, fm__lanes lanes) {
    memcpy(plane + v * 64 + group * sizeof lanes, &lanes, sizeof lanes);
}

/* 16 bytes of a row as they lie: a 4-bit plane, or half of an 8-bit one. */
FM__INLINE void fm__put_16(uint8_t *plane, const uint8_t *const *row, size_t offset, size_t group) {
    fm__lanes w[4];
    fm__load_lanes_4(row, offset, w);
    FM__PACK_UNROLL
    for (size_t v = 0; v < 4; v++)
        fm__put(plane, v, group, w[v]);
}

/* Exchanges the bits of `high` under mask with those of `low` under mask << shift. */
FM__INLINE void fm__exchange(fm__lanes *high, fm__lanes *low, uint32_t mask, int shift) {
    fm__lanes difference = (*high ^ *low >> shift) & mask;
    *high ^= difference;
    *low ^= difference << shift;
}

/* The 4-bit planes of two chunks from 32 bytes that hold the first chunk in their low nibbles and
 * the second in their high ones. */
FM__INLINE void fm__planes_4(const uint8_t *const *row, size_t offset, size_t group, uint8_t *first,
                             uint8_t *second) {
    fm__lanes w[8];
    fm__load_lanes_8(row, offset, w);
    FM__PACK_UNROLL
    for (size_t v = 0; v < 4; v++) { /* elements 4v on and 16 + 4v on */
        fm__exchange(&w[v + 4], &w[v], 0x0F0F0F0Fu, 4);
        fm__put(first, v, group, w[v]);
        fm__put(second, v, group, w[v + 4]);
    }
}

/* The 2-bit planes of four chunks whose 32 elements lie at bits 0-1, 2-3, 4-5, 6-7 of the same 32
 * bytes: over words v, v + 2, v + 4 and v + 6 a 4 x 4 transposition of bit pairs. The next chunk's
 * plane is `step` bytes on. */
FM__INLINE void fm__planes_2(const uint8_t *const *row, size_t offset, size_t group, uint8_t *out,
                             size_t step) {
    fm__lanes w[8];
    fm__load_lanes_8(row, offset, w);
    FM__PACK_UNROLL
    for (size_t v = 0; v < 2; v++) {
        fm__lanes a = w[v], b = w[v + 2], c = w[v + 4], d = w[v + 6];
        fm__exchange(&c, &a, 0x0F0F0F0Fu, 4);
        fm__exchange(&d, &b, 0x0F0F0F0Fu, 4);
        fm__exchange(&b, &a, 0x33333333u, 2);
        fm__exchange(&d, &c, 0x33333333u, 2);
        fm__put(out, v, group, a);
        fm__put(out + step, v, group, b);
        fm__put(out + 2 * step, v, group, c);
        fm__put(out + 3 * step, v, group, d);
    }
}

/* The 1-bit planes of eight chunks whose elements lie at bits 0, 1, ... 7 of the same 32 bytes:
 * over the eight words an 8 x 8 transposition of bits. Planes are `step` bytes apart. */
FM__INLINE void fm__planes_1(const uint8_t *const *row, size_t offset, size_t group, uint8_t *out,
                             size_t step) {
    fm__lanes w[8];
    fm__load_lanes_8(row, offset, w);
    FM__PACK_UNROLL
    for (size_t i = 0; i < 4; i++)
        fm__exchange(&w[i + 4], &w[i], 0x0F0F0F0Fu, 4);
    FM__PACK_UNROLL
    for (size_t i = 0; i < 8; i += 4) {
        fm__exchange(&w[i + 2], &w[i], 0x33333333u, 2);
        fm__exchange(&w[i + 3], &w[i + 1], 0x33333333u, 2);
    }
    FM__PACK_UNROLL
    for (size_t i = 0; i < 8; i += 2) {
        fm__exchange(&w[i + 1], &w[i], 0x55555555u, 1);
        fm__put(out + i * step, 0, group, w[i]);
        fm__put(out + (i + 1) * step, 0, group, w[i + 1]);
    }
}

/* ---- scales ---- */

/* The low halves of numbers: f16 bits of four rows, side by side. */
FM__INLINE void fm__put_halves(uint8_t *to, size_t group, fm__lanes numbers) {
    fm__lane_halves halves = __builtin_convertvector(numbers & 0xFFFFu, fm__lane_halves);
    memcpy(to + group * sizeof halves, &halves, sizeof halves);
}

/* f16 bits at `offset` of each block. */
FM__INLINE void fm__put_halves_at(uint8_t *to, const uint8_t *const *row, size_t offset,
                                  size_t group) {
    FM__PACK_UNROLL
    for (size_t r = 0; r < FM__LANES; r++) {
        uint16_t h = fm__load_u16(row[r] + offset);
        memcpy(to + (group * FM__LANES + r) * sizeof h, &h, sizeof h);
    }
}

/* Byte j of every lane to to[16 * j], rows side by side; lanes as they lie in a file. */
FM__INLINE void fm__put_bytes(uint8_t *to, size_t group, fm__lanes w) {
    FM__PACK_UNROLL
    for (int i = 0; i < 2; i++) { /* bytes 0 8 1 9 2 10 ..., twice: a 4 x 4 transposition */
        fm__lane_bytes low = (fm__lane_bytes)w;
        fm__lane_bytes high = (fm__lane_bytes)FM__SHUFFLE(fm__lanes, w, w, 2, 3, 2, 3);
        w = (fm__lanes)FM__SHUFFLE(fm__lane_bytes, low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                   21, 6, 22, 7, 23);
    }
    FM__PACK_UNROLL
    for (size_t j = 0; j < 4; j++)
        memcpy(to + 16 * j + group * FM__LANES, (const uint8_t *)&w + j * 4, 4);
}

/* ---- panels ---- */

/* One block of four rows: row[i] points at it. Codes, and scales as far as the type has them, go to
 * the start of the block's part of each region. */
typedef void fm__pack_block(const uint8_t *const *row, size_t group, uint8_t *codes, uint8_t *sub,
                            uint8_t *d, uint8_t *m);

/* Clears what lies between the regions and behind the last one. */
FM__INLINE void fm__pack_clear_gaps(const fm__type *type, const fm__panel_layout *layout, size_t k,
                                    uint8_t *panel) {
    size_t blocks = k / type->block;
    size_t sub_end = layout->sub + blocks * layout->sub_bytes;
    size_t d_end = layout->d + blocks * layout->d_bytes;
    size_t m_end = layout->m + (type->has_min ? blocks * 32 : 0);
    memset(panel + sub_end, 0, layout->d - sub_end);
    memset(panel + d_end, 0, layout->m - d_end);
    memset(panel + m_end, 0, layout->stride - m_end);
}

/* Packs a panel of a quantised type. Always inlined, so that each type gets loops of its own
 * constants. null_block: what a row past N is read from. */
FM__INLINE void fm__pack_panel(const fm__type *type, size_t block, size_t block_bytes,
                               size_t code_bits, size_t sub_bytes, fm__pack_block *pack_block,
                               const uint8_t *null_block, const void *const rows[FM__PANEL_ROWS],
                               size_t k, uint8_t *panel) {
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    const uint8_t *row[FM__PANEL_ROWS];
    size_t step[FM__PANEL_ROWS];
    for (size_t r = 0; r < FM__PANEL_ROWS; r++) {
        row[r] = rows[r] ? rows[r] : null_block;
        step[r] = rows[r] ? block_bytes : 0;
    }
    for (size_t b = 0; b < k / block; b++) {
        for (size_t group = 0; group < FM__GROUPS; group++)
            pack_block(row + group * FM__LANES, group,
                       panel + b * (block / FM__CHUNK * 64 * code_bits),
                       panel + layout.sub + b * sub_bytes, panel + layout.d + b * layout.d_bytes,
                       panel + layout.m + b * 32);
        for (size_t r = 0; r < FM__PANEL_ROWS; r++)
            row[r] += step[r];
    }
    fm__pack_clear_gaps(type, &layout, k, panel);
}
