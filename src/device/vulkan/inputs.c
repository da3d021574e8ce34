/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/inputs.c: rows and panels for the self-test.
 *
 * Owns: nothing. Never does: compare. Called from: selftest.c, on the loading thread.
 */
#include "device/vulkan/inputs.h"

#include <string.h>

static uint32_t below(fm__random *random, uint32_t n) {
    return (uint32_t)((fm__random_next(random) >> 32) * n >> 32);
}

static float power_of_two(int exponent) {
    return fm__bits_f32((uint32_t)(127 + exponent) << 23);
}

float fm__inputs_normal(fm__random *random) {
    uint64_t u = fm__random_next(random);
    int sum =
        (int)(u & 0xFFFF) + (int)(u >> 16 & 0xFFFF) + (int)(u >> 32 & 0xFFFF) + (int)(u >> 48);
    return (float)(sum - 131070) * 0x1.bb67aep-16f; /* sqrt(3) * 2^-16 */
}

/* ---- rows ---- */

static float sign(fm__random *random) {
    return below(random, 2) != 0 ? 1.0f : -1.0f;
}

static float edge(fm__random *random, float z, size_t i) {
    switch (i / 64 % 4) {
    case 0:
        return below(random, 4) != 0 ? 0.0f : -0.0f;
    case 1: /* around 2^-64 */
        return sign(random) * power_of_two(-66 + (int)below(random, 4));
    case 2: /* a subnormal */
        return fm__bits_f32(below(random, 0x7FFFFF));
    default:
        return z;
    }
}

/* Chunks whose largest entry is 2^-e of the block's, exactly or a bit beside; every second entry
   lies at or next to the border between two codes. */
static float ladder(fm__random *random, float z, size_t i) {
    int e = (int)(i / 32 % 5);
    float top = 8.0f * power_of_two(-e);
    if (i % 256 == 0)
        return 8.0f;
    if (i % 32 == 7)
        return fm__bits_f32(fm__f32_bits(top) + below(random, 3) - 1);
    if (i % 2 == 0)
        return ((float)below(random, 126) + 0.5f) * top * (1.0f / 127.0f) * sign(random);
    return z * 0.3f * power_of_two(-e);
}

void fm__inputs_row(fm__random *random, fm__input kind, bool large, float *x, size_t k) {
    for (size_t i = 0; i < k; i++) {
        float z = fm__inputs_normal(random);
        switch ((fm__input)(kind % FM__INPUT_COUNT)) {
        case FM__INPUT_ALIKE:
            x[i] = 0.75f;
            break;
        case FM__INPUT_CANCEL:
            x[i] = 3.0f * sign(random);
            break;
        case FM__INPUT_EDGES:
            x[i] = edge(random, z, i);
            break;
        case FM__INPUT_LADDER:
            x[i] = ladder(random, z, i);
            break;
        case FM__INPUT_LARGE:
            x[i] = large    ? (i % 7 == 0 ? 0x1.fffffep99f * sign(random) : z * 0x1p96f)
                   : i == 5 ? 1e5f
                            : z;
            break;
        default:
            x[i] = z;
        }
    }
}

/* ---- panels ---- */

static uint16_t scale(fm__random *random, fm__input kind, size_t block) {
    if (kind == FM__INPUT_ALIKE)
        return 0x4C00; /* 16 */
    if (kind == FM__INPUT_CANCEL)
        return (uint16_t)(0x2400u + (block / 2 & 1) + (block & 1) * 0x8000u);
    if (kind == FM__INPUT_EDGES)
        switch (below(random, 3)) {
        case 0:
            return (uint16_t)(below(random, 2) << 15);
        case 1:
            return (uint16_t)(1u + below(random, 0x3FF));
        default:
            return (uint16_t)(0x8000u | below(random, 0x7C00));
        }
    return fm__f32_to_f16(0.01f * fm__inputs_normal(random));
}

/* A sub-scale byte, within what the format can hold. */
static uint8_t sub_scale(fm__random *random, const fm__type *type, fm__input kind) {
    uint32_t any = below(random, 256);
    bool top = kind == FM__INPUT_ALIKE || (kind == FM__INPUT_EDGES && any < 32);
    bool bottom = kind == FM__INPUT_EDGES && any >= 224;
    switch (fm__type_index(type)) {
    case FM__TYPE_Q4_K:
    case FM__TYPE_Q5_K: /* 6 bits */
        return (uint8_t)(top ? 63 : bottom ? 0 : any & 63);
    case FM__TYPE_Q3_K:
    case FM__TYPE_IQ4_XS: /* 6 bits less 32 */
        return (uint8_t)(top ? 31 : bottom ? -32 : (int)(any & 63) - 32);
    case FM__TYPE_Q6_K:
        return (uint8_t)(top ? 127 : bottom ? -128 : (int)any);
    default: /* Q2_K: two nibbles */
        return (uint8_t)(top ? 0xFF : bottom ? 0xF0 : any);
    }
}

static void fill_codes(fm__random *random, const fm__type *type, fm__input kind, uint8_t *codes,
                       size_t bytes) {
    bool byte_wide = type->code_bits == 8;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = fm__random_next(random);
        bool top = kind == FM__INPUT_ALIKE || (kind == FM__INPUT_EDGES && i / 64 % 4 == 1);
        bool bottom = kind == FM__INPUT_EDGES && i / 64 % 4 == 2;
        if (top)
            word = byte_wide ? UINT64_C(0x7F7F7F7F7F7F7F7F) : UINT64_MAX;
        if (bottom)
            word = byte_wide ? UINT64_C(0x8080808080808080) : 0;
        memcpy(codes + i, &word, 8);
    }
}

static float float_weight(fm__random *random, fm__input kind, size_t k) {
    float z = fm__inputs_normal(random);
    switch (kind) {
    case FM__INPUT_ALIKE: /* positive, of any size */
        return 0x1p-6f * (1.0f + z * z);
    case FM__INPUT_CANCEL:
        return k % 2 != 0 ? -1.0f : 1.0f + (k % 4 == 0 ? 0x1p-7f : 0.0f);
    case FM__INPUT_EDGES: {
        const float some[] = {0.0f, -0.0f, 0x1p-24f, -0x1.8p-20f, 65504.0f, z * 100.0f};
        return some[below(random, 6)];
    }
    default:
        return z * 0.05f;
    }
}

static void fill_floats(fm__random *random, const fm__type *type, fm__input kind, size_t k,
                        uint8_t *panel) {
    for (size_t i = 0; i < k; i++)
        for (size_t r = 0; r < FM__PANEL_ROWS; r++) {
            float w = float_weight(random, kind, i);
            uint16_t half = type->dtype == FM__F16 ? fm__f32_to_f16(w) : fm__f32_to_bf16(w);
            if (type->dtype == FM__F32)
                memcpy(panel + (i * FM__PANEL_ROWS + r) * 4, &w, 4);
            else
                memcpy(panel + ((i / 2 * FM__PANEL_ROWS + r) * 2 + i % 2) * 2, &half, 2);
        }
}

void fm__inputs_panel(fm__random *random, const fm__type *type, fm__input kind, size_t k,
                      uint8_t *panel) {
    static const fm__input kinds[] = {FM__INPUT_NORMAL, FM__INPUT_ALIKE, FM__INPUT_CANCEL,
                                      FM__INPUT_EDGES};
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    kind = kinds[kind % (sizeof kinds / sizeof kinds[0])];
    memset(panel, 0, layout.stride);
    if (!type->quantised) {
        fill_floats(random, type, kind, k, panel);
        return;
    }
    size_t blocks = k / type->block;
    fill_codes(random, type, kind, panel + layout.codes, k / FM__CHUNK * layout.chunk_bytes);
    for (size_t i = 0; i < blocks * layout.sub_bytes; i++)
        panel[layout.sub + i] = sub_scale(random, type, kind);
    for (size_t i = 0; i < blocks * FM__PANEL_ROWS; i++) {
        uint16_t d = scale(random, kind, i / FM__PANEL_ROWS);
        uint16_t m = scale(random, kind, i / FM__PANEL_ROWS);
        float power = power_of_two((int)below(random, 20) - 12);
        if (type->d_is_f32)
            memcpy(panel + layout.d + i * 4, &power, 4);
        else
            memcpy(panel + layout.d + i * 2, &d, 2);
        if (type->has_min)
            memcpy(panel + layout.m + i * 2, &m, 2);
    }
}
