/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/quant.h: the quant room: one row a weight type, and the panel layout.
 *
 * Owns: the table of types, scalar encode and decode of file rows, packing of file rows into
 * panels. Never does: matrix products. Called from: loading and converting threads.
 *
 * PANEL. A panel is 16 consecutive output rows of a weight, interleaved so that one 32-bit lane
 * belongs to one row (lane r = row r). It is four regions, each starting at a multiple of 64 bytes
 * (an empty region starts where the next one does; bytes between regions are 0):
 *
 *     codes | sub (scales per 16 or 32) | d (block scale) | m (block minimum)
 *
 * codes, of quantised types: `code_bits` wide, in *chunks* of 32 consecutive k (chunk c = elements
 * 32c .. 32c+31, at codes + c * chunk_bytes). chunk_bytes = 64 * code_bits. A chunk is a sequence
 * of bit planes; each is a sequence of 64-byte vectors v = 0, 1, ...: byte (v, r, j) of a plane is
 * at v * 64 + r * 4 + j, r = 0..15, j = 0..3. With c(k) = the plane's bits of element k (0..31 in
 * the chunk) of row r:
 *
 *     8-bit plane (512 B, v = 0..7): the byte is     c(4v + j)
 *     4-bit plane (256 B, v = 0..3): bits 0..3 are   c(4v + j), bits 4..7 are c(16 + 4v + j)
 *     2-bit plane (128 B, v = 0..1): bits 2t, 2t+1   are c(4v + 8t + j), t = 0..3
 *     1-bit plane ( 64 B, v = 0):    bit t is        c(4t + j), t = 0..7
 *
 *     code_bits 8: {8}    4: {4}    2: {2}           5: {4 holding bits 0-3, then 1 holding bit 4}
 *     6: {4 holding bits 0-3, then 2 holding bits 4-5}    3: {2 holding bits 0-1, then 1: bit 2}
 *
 * So a 4-bit chunk of one row is the 16 bytes of a Q4_0 block, four to a lane, and element k of a
 * 2-bit plane is in vector (k / 4) % 2 at bits 2 * (k / 8). Codes are unsigned and their value is
 * lut ? lut[code] : code - offset; Q8_0 alone is stored signed (two's complement bytes, offset 0).
 *
 * sub, of block b at sub + b * sub_bytes (256-blocks only), one byte a row, sub-block s of 16 or 32
 * elements at s * 16 + r:
 *     Q2_K        [16][16 rows] low nibble scale, high nibble minimum          sub_bytes 256
 *     Q3_K, Q6_K  [16][16 rows] int8 scale (Q3_K: the stored 6 bits - 32)      sub_bytes 256
 *     Q4_K, Q5_K  [8][16 rows] uint8 scale, then [8][16 rows] uint8 minimum    sub_bytes 256
 *     IQ4_XS      [8][16 rows] int8 scale (the stored 6 bits - 32)             sub_bytes 128
 *     TQ1_0, TQ2_0 and the 32-blocks: empty                                    sub_bytes 0
 *
 * d, of block b at d + b * d_bytes: [16 rows] f16 bits (uint16) of the block scale, d_bytes 32.
 * MXFP4: [16 rows] f32 holding 2^(e - 128), +0 where that is below 2^-38, d_bytes 64; its lut is
 * the doubled values. m, of block b at m + b * 32: [16 rows] f16 bits of Q4_1/Q5_1's minimum
 * (added) or Q2_K/Q4_K/Q5_K's dmin (subtracted); of other types empty. A block is the type's
 * `block` (32 or 256 elements). TQ1_0 is packed as 2-bit codes like TQ2_0 (offset 1).
 *
 * Float types have only codes: F32 [K][16 rows] f32; F16 and BF16 [ceil(K/2)][16 rows][2] uint16,
 * element k at (k / 2) * 64 + r * 4 + (k % 2) * 2 bytes (odd K: the element past the end is 0).
 * |w| below 2^-38, -0 among them, is packed as +0 (F32, BF16). Rows past N are zero codes with zero
 * scales. K of a quantised type is a multiple of its block. A panel starts at a multiple of 64
 * bytes, and panel p of a weight at p * stride.
 */
#pragma once

#include "format/format.h"

enum { FM__PANEL_ROWS = 16, FM__SEGMENT = 1024, FM__CHUNK = 32 };

/* What a linear layer multiplies with: how activations are stored (docs/numerics.md). */
typedef enum fm__act {
    FM__ACT_F32,    /* float as is: F32 exact; F16, F32 fast */
    FM__ACT_R13,    /* float rounded to 13 significant bits: F16 exact */
    FM__ACT_R16,    /* float rounded to 16 significant bits: BF16 exact */
    FM__ACT_BF16,   /* bf16: BF16 fast */
    FM__ACT_Q8_32,  /* int8 with a scale per 32 */
    FM__ACT_Q8_256, /* int8 with a scale per 256 and a shift per 32 */
    FM__ACT_COUNT
} fm__act;

/* One activation row: byte offsets of its parts and the stride from row to row (all multiples of
 * 64). FLOAT kinds: values at 0: float[K] (BF16: uint16[K], zero-padded to an even count). Q8_32:
 * q int8[K]; d float[K/32]; sum int16[K/32] (sum of q over 32). Q8_256: q int8[K]; d float[K/256]
 * (already da = d / 8); sum int16[K/16] (plain sums of q over 16, not shifted); shift uint8[K/32]
 * (3 - e: what the products are shifted left by). K that the block does not divide is an error of
 * the caller: the type table keeps it from happening. */
typedef struct fm__act_layout {
    size_t values, d, sum, shift; /* offsets in bytes; unused ones are 0 */
    size_t stride;
} fm__act_layout;

fm__act_layout fm__act_layout_of(fm__act act, size_t k);

/* Byte offsets inside one panel. */
typedef struct fm__panel_layout {
    size_t codes, sub, d, m; /* region starts; codes is 0 */
    size_t chunk_bytes;      /* of one 32-chunk of codes (quantised types) */
    size_t sub_bytes;        /* of one block's sub scales */
    size_t d_bytes;          /* of one block's d: 32, or 64 for f32 scales */
    size_t stride;           /* panel to panel, a multiple of 128 */
} fm__panel_layout;

typedef struct fm__type {
    fm__dtype dtype;
    const char *name;
    uint16_t block;       /* elements a block: 1, 32, 256 */
    uint16_t block_bytes; /* in the file */
    bool quantised;
    uint8_t code_bits; /* 8, 4, 5, 6, 2, 3; 16 or 32 for float types */
    int16_t offset;    /* value = code - offset (0 where lut is set, and for signed Q8_0) */
    const int8_t *lut; /* 16 values, or NULL */
    uint8_t sub_width; /* 16, 32: elements a sub scale; 0: none */
    bool has_min;
    bool d_is_f32;  /* MXFP4 */
    fm__act act[2]; /* [0] exact, [1] fast (equal where there is no fast kernel) */
    /* n elements (a multiple of block); blocks unaligned; exact fp32 order of docs/numerics.md, the
       same as embedding rows: d * q (+ m); (d * sc) * q (- (dmin * m)). */
    void (*decode)(const void *blocks, float *out, size_t n);
    /* NULL: cannot be encoded. importance: NULL or n finite weights >= 0 (Q8_0, MXFP4, TQ and float
       types ignore it). blocks unaligned. Input is to be finite: a caller that cannot know checks
       first. Quantised types take a NaN or infinity as 0, and clamp block scales to f16's +-65504;
       float types convert as IEEE does (F16 overflows to infinity). */
    void (*encode)(const float *in, const float *importance, void *blocks, size_t n);
    /* Packs one panel: rows[i] points at row i's file bytes (unaligned; NULL: a row past N), k
       elements each. Writes all `stride` bytes of panel and reads nothing past a row's last block.
     */
    void (*pack)(const void *const rows[FM__PANEL_ROWS], size_t k, void *panel);
} fm__type;

/* The table, ordered as in FM__TYPE_LIST below; NULL where dtype is storage only (integers, F64).
 */
const fm__type *fm__type_get(fm__dtype dtype);
size_t fm__type_count(void);
const fm__type *fm__type_at(size_t index);
size_t fm__type_index(const fm__type *type);

fm__panel_layout fm__panel_layout_of(const fm__type *type, size_t k);
/* Reads a panel back: FM__PANEL_ROWS x k floats as decode would give, but for scales and weights
   packed as 0 because they are below 2^-38 (the packers' plain twin, for tests). */
void fm__panel_decode(const fm__type *type, const void *panel, size_t k, float *out);
/* Value of one element's code before scales (lut applied, offset subtracted), of a quantised type;
   for tests and ref kernels. */
int fm__panel_code(const fm__type *type, const void *panel, size_t k, uint32_t row, size_t i);

/* X(id, NAME): the order of the table and of kernel tables. */
/* clang-format off */
#define FM__TYPE_LIST(X)                                                                           \
    X(f32, F32) X(f16, F16) X(bf16, BF16)                                                          \
    X(q8_0, Q8_0) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1)                          \
    X(iq4_nl, IQ4_NL) X(mxfp4, MXFP4)                                                              \
    X(q2_k, Q2_K) X(q3_k, Q3_K) X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K)                          \
    X(iq4_xs, IQ4_XS)                                                                              \
    X(tq1_0, TQ1_0) X(tq2_0, TQ2_0)
/* clang-format on */

enum {
#define FM__TYPE_INDEX(id, NAME) FM__TYPE_##NAME,
    FM__TYPE_LIST(FM__TYPE_INDEX)
#undef FM__TYPE_INDEX
        FM__TYPE_COUNT
};
