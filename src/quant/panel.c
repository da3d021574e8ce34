/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/panel.c: the panel layout, and reading a panel back.
 *
 * Owns: the plain reader, written from the layout's description alone so that it can judge the
 * packers. Never does: pack (pack_*.c), run in a product's path. Called from: any thread.
 */
#include <assert.h>

#include "quant/block.h"

fm__panel_layout fm__panel_layout_of(const fm__type *type, size_t k) {
    fm__panel_layout layout = {0};
    size_t end;
    if (!type->quantised) {
        size_t lanes = type->code_bits == 16 ? fm__round_up(k, 2) / 2 : k;
        layout.sub = layout.d = layout.m = lanes * FM__PANEL_ROWS * sizeof(uint32_t);
        layout.stride = fm__round_up(layout.m, 128);
        return layout;
    }
    assert(k % type->block == 0);
    size_t blocks = k / type->block;
    layout.chunk_bytes = (size_t)64 * type->code_bits;
    if (type->sub_width != 0) {
        size_t subs = type->block / type->sub_width;
        bool own_minima = type->has_min && type->sub_width == 32; /* Q2_K's share a byte */
        layout.sub_bytes = subs * FM__PANEL_ROWS * (own_minima ? 2 : 1);
    }
    layout.d_bytes = FM__PANEL_ROWS * (type->d_is_f32 ? sizeof(float) : sizeof(uint16_t));
    layout.sub = k / FM__CHUNK * layout.chunk_bytes;
    layout.d = fm__round_up(layout.sub + blocks * layout.sub_bytes, 64);
    layout.m = fm__round_up(layout.d + blocks * layout.d_bytes, 64);
    end = layout.m + (type->has_min ? blocks * FM__PANEL_ROWS * sizeof(uint16_t) : 0);
    layout.stride = fm__round_up(end, 128);
    return layout;
}

/* Bits of element i (0..31) of row r in a plane of `bits` bits. */
static unsigned plane_bits(const uint8_t *plane, unsigned bits, uint32_t r, size_t i) {
    size_t group = i / 4, j = i % 4; /* four consecutive elements a lane */
    size_t vectors = bits;           /* of 64 bytes: 32 elements * bits / 32 bits a lane */
    size_t v = group % vectors, t = group / vectors;
    return plane[v * 64 + r * 4 + j] >> (t * bits) & ((1u << bits) - 1);
}

int fm__panel_code(const fm__type *type, const void *panel, size_t k, uint32_t row, size_t i) {
    assert(type->quantised && row < FM__PANEL_ROWS && i < k);
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    const uint8_t *chunk =
        (const uint8_t *)panel + layout.codes + i / FM__CHUNK * layout.chunk_bytes;
    unsigned bits = type->code_bits, code = 0, done = 0;
    while (done < bits) { /* planes of 8, or of 4, 2 and 1 as the bits left ask for */
        unsigned left = bits - done;
        unsigned plane = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        code |= plane_bits(chunk, plane, row, i % FM__CHUNK) << done;
        chunk += 64 * plane;
        done += plane;
    }
    if (type->lut != NULL)
        return type->lut[code];
    if (bits == 8) /* stored signed */
        return (int)(code ^ 0x80u) - 128;
    return (int)code - type->offset;
}

static uint32_t read_u32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint16_t read_u16(const uint8_t *p) {
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static float decode_float(const fm__type *type, const uint8_t *panel, uint32_t r, size_t i) {
    if (type->dtype == FM__F32)
        return fm__bits_f32(read_u32(panel + i * 64 + r * 4));
    uint16_t half = read_u16(panel + i / 2 * 64 + r * 4 + i % 2 * 2);
    return type->dtype == FM__F16 ? fm__f16_to_f32(half) : fm__bf16_to_f32(half);
}

static float decode_quantised(const fm__type *type, const fm__panel_layout *layout,
                              const uint8_t *panel, size_t k, uint32_t r, size_t i) {
    size_t b = i / type->block;
    const uint8_t *d_at = panel + layout->d + b * layout->d_bytes;
    float q = (float)fm__panel_code(type, panel, k, r, i);
    float d = type->d_is_f32 ? fm__bits_f32(read_u32(d_at + r * 4))
                             : fm__f16_to_f32(read_u16(d_at + r * 2));
    float m = type->has_min ? fm__f16_to_f32(read_u16(panel + layout->m + b * 32 + r * 2)) : 0.0f;
    if (type->sub_width == 0)
        return type->has_min ? d * q + m : d * q;

    size_t s = i % type->block / type->sub_width;
    const uint8_t *sub = panel + layout->sub + b * layout->sub_bytes + s * 16 + r;
    if (!type->has_min)
        return d * (float)(int8_t)sub[0] * q;
    bool shared = type->sub_width == 16; /* Q2_K: scale and minimum in one byte */
    float scale = (float)(shared ? sub[0] & 15 : sub[0]);
    float minimum = (float)(shared ? sub[0] >> 4 : sub[8 * 16]);
    return d * scale * q - m * minimum;
}

void fm__panel_decode(const fm__type *type, const void *panel, size_t k, float *out) {
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    for (uint32_t r = 0; r < FM__PANEL_ROWS; r++)
        for (size_t i = 0; i < k; i++)
            out[r * k + i] = type->quantised ? decode_quantised(type, &layout, panel, k, r, i)
                                             : decode_float(type, panel, r, i);
}
