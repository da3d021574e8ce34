/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/quant.h: the quant room: one row a weight type, and the panel layout.
 *
 * Owns: the table of types, scalar encode and decode of file rows, packing of file rows into
 * panels. Never does: matrix products. Called from: loading and converting threads.
 *
 * PANEL. A panel is 16 consecutive output rows of a weight, interleaved so that one 32-bit lane
 * belongs to one row (lane r = row r). It is four regions, each starting at a multiple of 64 bytes:
 *
 *     codes | sub (scales per 16 or 32) | d (block scale) | m (block minimum)
 *
 * Codes of quantised types are unsigned, `code_bits` wide, in *chunks* of 32 consecutive k; a chunk
 * takes 64 * code_bits bytes and is a sequence of bit planes in this order (c(k) = the plane's bits
 * of element k of row r; k counts within the chunk; byte index is v*64 + r*4 + j, j = 0..3): 8-bit
 * plane  (512 B): byte (v, r, j) = c(4v + j),                                   v = 0..7 4-bit
 * plane  (256 B): bits 0-3 = c(4v + j), bits 4-7 = c(16 + 4v + j),              v = 0..3 2-bit
 * plane  (128 B): bits 2t..2t+1 = c(4(v + 2t) + j), t = 0..3,                   v = 0..1 1-bit
 * plane  ( 64 B): bit t = c(4t + j), t = 0..7 code_bits 8 = {8}; 4 = {4}; 5 = {4, then 1 holding
 * bit 4}; 6 = {4, then 2 holding bits 4-5}; 2 = {2}; 3 = {2, then 1 holding bit 2}. Value of a
 * code: lut ? lut[code] : code - offset. Q8_0 is stored signed (two's complement bytes, offset 0).
 *
 * sub, per block of 256 (K types only), lane-contiguous: [16 or 8][16 rows] one byte each:
 *     Q2_K [16][16] low nibble scale, high nibble minimum    Q3_K, Q6_K [16][16] int8 scale
 *     Q4_K, Q5_K [8][16] uint8 scale then [8][16] uint8 minimum    IQ4_XS [8][16] int8 scale    TQ:
 * none d, per block: [16 rows] f16 bits (uint16) of the block scale; MXFP4: [16] f32 (0 where below
 * 2^-38). m, per block: [16 rows] f16 bits: Q4_1/Q5_1 minimum, Q2_K/Q4_K/Q5_K dmin; else the region
 * is empty. TQ1_0 is packed as 2-bit codes like TQ2_0 (offset 1).
 *
 * Float types have only codes: F32 [K][16] f32; F16 and BF16 [ceil(K/2)][16][2] (odd K: a zero
 * last). |w| below 2^-38 is packed as 0 (F32, BF16). Rows past N are zero codes with zero scales.
 * K of a quantised type is a multiple of its block; K of a 256-block type a multiple of 256.
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
       same as embedding rows. */
    void (*decode)(const void *blocks, float *out, size_t n);
    /* NULL: cannot be encoded. importance: NULL or n weights. */
    void (*encode)(const float *in, const float *importance, void *blocks, size_t n);
    /* Packs one panel: rows[i] points at row i's file bytes (NULL: a row past N), k elements each.
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
/* Reads a panel back: n_rows x k floats as decode would give (the packers' plain twin, for tests).
 */
void fm__panel_decode(const fm__type *type, const void *panel, size_t k, float *out);
/* Unpacks element codes: out[row * k + i] = value of the code (before scales), for tests and ref
 * kernels. */
int fm__panel_code(const fm__type *type, const void *panel, size_t k, uint32_t row, size_t i);

/* X(id, NAME): the order of the table and of kernel tables. */
#define FM__TYPE_LIST(X)                                                                           \
    X(f32, F32)                                                                                    \
    X(f16, F16) X(bf16, BF16) X(q8_0, Q8_0) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0)              \
        X(q5_1, Q5_1) X(iq4_nl, IQ4_NL) X(mxfp4, MXFP4) X(q2_k, Q2_K) X(q3_k, Q3_K) X(q4_k, Q4_K)  \
            X(q5_k, Q5_K) X(q6_k, Q6_K) X(iq4_xs, IQ4_XS) X(tq1_0, TQ1_0) X(tq2_0, TQ2_0)

enum {
#define FM__TYPE_INDEX(id, NAME) FM__TYPE_##NAME,
    FM__TYPE_LIST(FM__TYPE_INDEX)
#undef FM__TYPE_INDEX
        FM__TYPE_COUNT
};
