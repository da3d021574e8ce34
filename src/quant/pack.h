/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/pack.h: what the packers share (private to the quant room).
 *
 * A packer turns one block of one row into that row's *words*, contiguous: per chunk of 32
 * elements, `code_bits` words of 32 bits, in the order of the panel's 64-byte vectors (quant.h).
 * Interleaving the words of 16 rows is then the same transposition for every type. All arithmetic
 * is on words of four byte lanes and never crosses a lane, so byte order does not matter. The
 * transposition uses the compilers' generic vectors: left to itself, neither gcc nor clang
 * vectorises it, and it is most of the work.
 */
#pragma once

#include "quant/block.h"

enum { FM__PACK_WORDS = 48 }; /* the most of one block: 8 chunks of 6 bits */

/* The words of one block of one row. */
typedef void fm__pack_words(const uint8_t *block, uint32_t *words);
/* Scales of one block of one row: writes d[0], m[0] and sub[s * 16], as far as the type has them.
 */
typedef void fm__pack_scales(const uint8_t *block, uint8_t *d, uint8_t *m, uint8_t *sub);

typedef uint32_t fm__words_4 __attribute__((vector_size(16)));

FM__INLINE fm__words_4 fm__load_words_4(const void *p) {
    fm__words_4 w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* Exchanges the bits of `high` under mask with those of `low` under mask << shift. */
FM__INLINE void fm__exchange_4(fm__words_4 *high, fm__words_4 *low, uint32_t mask, int shift) {
    fm__words_4 difference = (*high ^ *low >> shift) & mask;
    *high ^= difference;
    *low ^= difference << shift;
}

/* The 2-bit planes of four chunks whose 32 elements lie at bits 0-1, 2-3, 4-5, 6-7 of the same 32
 * bytes: in every byte lane a 4 x 4 transposition of bit pairs. Two words a chunk, the next chunk's
 * `step` words on. */
FM__INLINE void fm__planes_2(const uint8_t *bytes, uint32_t *out, size_t step) {
    fm__words_4 a = fm__load_words_4(bytes);      /* pairs of words 0 1 */
    fm__words_4 b = fm__load_words_4(bytes + 16); /* 2 3 */
    fm__exchange_4(&b, &a, 0x0F0F0F0Fu, 4);
    fm__words_4 planes[2] = {__builtin_shufflevector(a, b, 0, 1, 4, 5),  /* 0 2 */
                             __builtin_shufflevector(a, b, 2, 3, 6, 7)}; /* 1 3 */
    fm__exchange_4(&planes[1], &planes[0], 0x33333333u, 2);
    for (size_t c = 0; c < 4; c++)
        memcpy(out + c * step, (const uint8_t *)&planes[c % 2] + c / 2 * 8, 8);
}

/* The 1-bit planes of eight chunks whose elements lie at bits 0, 1, ... 7 of the same 32 bytes: an
 * 8 x 8 transposition of bits in every byte lane. One word a chunk, `step` words apart. */
FM__INLINE void fm__planes_1(const uint8_t *bytes, uint32_t *out, size_t step) {
    fm__words_4 a = fm__load_words_4(bytes);      /* words 0 1 2 3 */
    fm__words_4 b = fm__load_words_4(bytes + 16); /* 4 5 6 7 */
    fm__exchange_4(&b, &a, 0x0F0F0F0Fu, 4);
    fm__words_4 c = __builtin_shufflevector(a, b, 0, 1, 4, 5); /* 0 1 4 5 */
    fm__words_4 d = __builtin_shufflevector(a, b, 2, 3, 6, 7); /* 2 3 6 7 */
    fm__exchange_4(&d, &c, 0x33333333u, 2);
    fm__words_4 even = __builtin_shufflevector(c, d, 0, 4, 2, 6);
    fm__words_4 odd = __builtin_shufflevector(c, d, 1, 5, 3, 7);
    fm__exchange_4(&odd, &even, 0x55555555u, 1);
    for (size_t i = 0; i < 4; i++) {
        out[2 * i * step] = even[i];
        out[(2 * i + 1) * step] = odd[i];
    }
}

/* Four words of each of four rows to four rows' lanes of four vectors. */
FM__INLINE void fm__transpose_4(fm__words_4 a, fm__words_4 b, fm__words_4 c, fm__words_4 d,
                                uint8_t *out) {
    fm__words_4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    fm__words_4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    fm__words_4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    fm__words_4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    fm__words_4 lanes[4] = {
        __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
        __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
        __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
        __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7),
    };
    for (size_t v = 0; v < 4; v++)
        memcpy(out + v * 64, &lanes[v], sizeof lanes[v]);
}

/* The 32-bit word (w, r) of the panel at out = words[r][w]. */
FM__INLINE void fm__pack_interleave(uint32_t words[FM__PANEL_ROWS][FM__PACK_WORDS], size_t n_words,
                                    uint8_t *out) {
    size_t w = 0;
    for (; w + 4 <= n_words; w += 4)
        for (size_t r = 0; r < FM__PANEL_ROWS; r += 4)
            fm__transpose_4(fm__load_words_4(&words[r][w]), fm__load_words_4(&words[r + 1][w]),
                            fm__load_words_4(&words[r + 2][w]), fm__load_words_4(&words[r + 3][w]),
                            out + w * 64 + r * 4);
    for (; w < n_words; w++)
        for (size_t r = 0; r < FM__PANEL_ROWS; r++)
            memcpy(out + w * 64 + r * 4, &words[r][w], sizeof(uint32_t));
}

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
 * constants. */
FM__INLINE void fm__pack_panel(const fm__type *type, size_t block, size_t block_bytes,
                               size_t code_bits, size_t sub_bytes, fm__pack_words *pack_words,
                               fm__pack_scales *pack_scales, const void *const rows[FM__PANEL_ROWS],
                               size_t k, uint8_t *panel) {
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    size_t n_words = block / FM__CHUNK * code_bits;
    size_t scale_bytes = layout.d_bytes / FM__PANEL_ROWS;
    uint32_t words[FM__PANEL_ROWS][FM__PACK_WORDS];
    memset(words, 0, sizeof words); /* rows past N stay so */

    for (size_t b = 0; b < k / block; b++) {
        uint8_t *d = panel + layout.d + b * layout.d_bytes;
        uint8_t *m = panel + layout.m + b * 32;
        uint8_t *sub = panel + layout.sub + b * sub_bytes;
        for (size_t r = 0; r < FM__PANEL_ROWS; r++) {
            if (rows[r] == NULL) {
                memset(d + r * scale_bytes, 0, scale_bytes);
                if (type->has_min)
                    memset(m + r * 2, 0, 2);
                for (size_t s = 0; s < sub_bytes / 16; s++)
                    sub[s * 16 + r] = 0;
                continue;
            }
            const uint8_t *from = (const uint8_t *)rows[r] + b * block_bytes;
            pack_words(from, words[r]);
            pack_scales(from, d + r * scale_bytes, m + r * 2, sub + r);
        }
        fm__pack_interleave(words, n_words, panel + b * n_words * 64);
    }
    fm__pack_clear_gaps(type, &layout, k, panel);
}
