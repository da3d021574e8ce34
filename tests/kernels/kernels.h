/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h: what the kernel tests share: the rungs of this machine, memory with guard pages,
 * random and extreme inputs (docs/numerics.md, "Writing a new backend"), comparison by bits.
 */
#pragma once

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "test.h"

/* ---- rungs ---- */

typedef struct test_rung {
    char name[32];
    fm__kernels kernels;
} test_rung;

enum { TEST_MAX_RUNGS = 10 };

/* Every rung that this processor runs, ref first, and the same rungs with optional features taken
   away, as an older processor would run them. */
static inline size_t test_rungs(test_rung out[TEST_MAX_RUNGS]) {
    size_t n = 0;
    for (const char *const *name = fm__kernels_rungs(); *name; name++, n++) {
        snprintf(out[n].name, sizeof out[n].name, "%s", *name);
        assert_int_equal(fm__kernels_get(&out[n].kernels, *name, NULL), FM_OK);
    }
#if FM__RUNGS_X86
    uint32_t features = fm__cpu_features();
    if (features & FM__CPU_AVX512) {
        snprintf(out[n].name, sizeof out[n].name, "avx512 without vnni, bf16");
        features &= FM__CPU_AVX2 | FM__CPU_AVX512;
        memset(&out[n].kernels, 0, sizeof out[n].kernels);
        fm__kernels_fill_ref(&out[n].kernels);
        fm__kernels_fill_avx2(&out[n].kernels, features);
        fm__kernels_fill_avx512(&out[n].kernels, features);
        n++;
    }
#endif
    return n;
}

/* The NEON rung with optional features taken away, as an older processor would run it: other linear
   kernels, the rest is the same. Adds them behind the first n. */
static inline size_t test_rungs_older(test_rung out[TEST_MAX_RUNGS], size_t n) {
    static const struct {
        const char *name;
        uint32_t features;
    } older[] = {{"neon without dotprod, i8mm", FM__CPU_NEON},
                 {"neon without i8mm", FM__CPU_NEON | FM__CPU_DOTPROD}};
    const uint32_t features = fm__cpu_features();
    for (size_t i = 0; i < sizeof older / sizeof older[0]; i++) {
        const uint32_t missing = (FM__CPU_DOTPROD | FM__CPU_I8MM) & ~older[i].features;
        if (!(features & missing) || (features & older[i].features) != older[i].features)
            continue; /* nothing is taken away, or there is even less */
        snprintf(out[n].name, sizeof out[n].name, "%s", older[i].name);
        assert_int_equal(fm__kernels_get_for(&out[n].kernels, "neon", older[i].features, NULL),
                         FM_OK);
        n++;
    }
    return n;
}

/* ---- memory that ends at a page that must not be touched ---- */

typedef struct test_guarded {
    uint8_t *data; /* 64-byte aligned where bytes is a multiple of 64 */
    void *map;
    size_t map_bytes;
} test_guarded;

static inline test_guarded test_guarded_alloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = fm__round_up(bytes, page);
    test_guarded g = {.map_bytes = body + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect((uint8_t *)g.map + body, page, PROT_NONE), 0);
    g.data = (uint8_t *)g.map + body - bytes;
    return g;
}

static inline void test_guarded_free(test_guarded *g) {
    munmap(g->map, g->map_bytes);
    g->data = NULL;
}

/* ---- random numbers ---- */

static inline uint32_t test_below(fm__random *random, uint32_t n) {
    return (uint32_t)((fm__random_next(random) >> 32) * n >> 32);
}

static inline float test_sign(fm__random *random) {
    return test_below(random, 2) ? 1.0f : -1.0f;
}

/* Mean 0, deviation 1, nearly normal, and cheap: four 16-bit numbers of one draw. Exact in fp32, so
   the same on every machine. */
static inline float test_normal(fm__random *random) {
    uint64_t u = fm__random_next(random);
    int sum =
        (int)(u & 0xFFFF) + (int)(u >> 16 & 0xFFFF) + (int)(u >> 32 & 0xFFFF) + (int)(u >> 48);
    return (float)(sum - 131070) * 0x1.bb67aep-16f; /* sqrt(3) * 2^-16 */
}

/* ---- rows of activations ---- */

#define TEST_ROW_LIST(X)                                                                           \
    X(NORMAL)    /* deviation 1 */                                                                 \
    X(TIES)      /* many entries exactly half way between two codes */                             \
    X(SATURATED) /* +-the same magnitude: every code is +-127 */                                   \
    X(ALIKE)     /* all +the same: integer sums as large as they get */                            \
    X(ZEROS)     /* zero blocks and -0 between others */                                           \
    X(TINY)      /* magnitudes around 2^-64, and subnormals */                                     \
    X(LARGE)     /* up to just below 2^100 */                                                      \
    X(COLUMN)    /* one column of 1e4 to 1e6, the others of deviation 1 */                         \
    X(LADDER)    /* chunks of very different magnitude: shifts of 0 to 3 and their borders */

typedef enum test_row {
#define TEST_ROW_ENUM(NAME) TEST_ROW_##NAME,
    TEST_ROW_LIST(TEST_ROW_ENUM)
#undef TEST_ROW_ENUM
        TEST_ROW_COUNT
} test_row;

/* An x near j + 1/2 codes for which x * inv is exactly a tie; 0 where there is none. */
static inline float test_tie(float inv, int j) {
    float target = (float)j + 0.5f, x = target / inv;
    for (int step = -4; step <= 4; step++) {
        float y = fm__bits_f32(fm__f32_bits(x) + (uint32_t)step);
        if (y * inv == target)
            return y;
    }
    return 0.0f;
}

static inline float test_entry(fm__random *random, test_row kind, size_t i) {
    float z = test_normal(random);
    switch (kind) {
    case TEST_ROW_SATURATED:
        return 3.0f * test_sign(random);
    case TEST_ROW_ALIKE:
        return 0.75f;
    case TEST_ROW_ZEROS:
        return i / 32 % 3 == 1 || i / 256 % 3 == 1 ? 0.0f : test_below(random, 4) ? z : -0.0f;
    case TEST_ROW_TINY: {
        int exponent = i / 32 % 4 == 3 ? -140 : -66 + (int)test_below(random, 4);
        return i % 5 == 0 ? 0x1p-64f * test_sign(random) : ldexpf(test_sign(random), exponent);
    }
    case TEST_ROW_LARGE:
        return i % 7 == 0 ? 0x1.fffffep99f * test_sign(random) : z * 0x1p96f;
    case TEST_ROW_COLUMN:
        return i == 5 ? 1e4f + 99e4f * (float)fm__random_double(random) : z;
    case TEST_ROW_LADDER: /* the top of a chunk at exactly 2^-e of the block's, or a bit beside */
        if (i % 256 == 0)
            return 8.0f;
        if (i % 32 == 7) {
            float top = ldexpf(8.0f, -(int)(i / 32 % 5));
            return fm__bits_f32(fm__f32_bits(top) + test_below(random, 3) - 1);
        }
        return z * ldexpf(0.3f, -(int)(i / 32 % 5));
    default:
        return z;
    }
}

static inline void test_row_fill(fm__random *random, test_row kind, float *x, size_t k) {
    for (size_t i = 0; i < k; i++)
        x[i] = test_entry(random, kind, i);
    if (kind == TEST_ROW_TIES)
        for (size_t b = 0; b < k; b += 32) { /* each 32 with the same top: good for both forms */
            float top = 1.9375f, inv = 127.0f * fm__rcp(top);
            for (size_t i = b; i < b + 32 && i < k; i++)
                x[i] =
                    i == b ? top : test_sign(random) * test_tie(inv, (int)test_below(random, 126));
        }
}

/* ---- panels ---- */

#define TEST_WEIGHT_LIST(X)                                                                        \
    X(RANDOM)                                                                                      \
    X(HIGHEST) /* every code and scale at its top, scales positive */                              \
    X(LOWEST)  /* every code at its bottom (-128, -32, ...), scales at their most negative */      \
    X(CANCEL)  /* neighbouring blocks cancel almost */                                             \
    X(MIXED)   /* zero scales, f16-subnormal scales, extreme codes, by turns */

typedef enum test_weight {
#define TEST_WEIGHT_ENUM(NAME) TEST_WEIGHT_##NAME,
    TEST_WEIGHT_LIST(TEST_WEIGHT_ENUM)
#undef TEST_WEIGHT_ENUM
        TEST_WEIGHT_COUNT
} test_weight;

static inline uint16_t test_scale(fm__random *random, test_weight kind, size_t block) {
    if (kind == TEST_WEIGHT_CANCEL) /* signs alternate, magnitudes differ in the last bit */
        return (uint16_t)(0x2400u + (block / 2 & 1) + (block & 1) * 0x8000u);
    if (kind == TEST_WEIGHT_MIXED)
        switch (test_below(random, 4)) {
        case 0:
            return (uint16_t)(test_below(random, 2) << 15); /* +-0 */
        case 1:
            return (uint16_t)(1u + test_below(random, 0x3FF)); /* subnormal */
        case 2:
            return (uint16_t)(0x8000u | test_below(random, 0x7C00)); /* any finite, negative */
        default:
            break;
        }
    return fm__f32_to_f16(0.01f * test_normal(random));
}

/* The sub-scale byte of a type, within what the format can hold. */
static inline uint8_t test_sub(fm__random *random, const fm__type *type, test_weight kind) {
    uint32_t any = test_below(random, 256);
    bool top = kind == TEST_WEIGHT_HIGHEST, bottom = kind == TEST_WEIGHT_LOWEST;
    if (kind == TEST_WEIGHT_MIXED && any < 64) {
        top = any < 32;
        bottom = !top;
    }
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

static inline void test_codes_fill(fm__random *random, const fm__type *type, test_weight kind,
                                   uint8_t *codes, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)test_below(random, 256);
        test_weight now = kind;
        if (kind == TEST_WEIGHT_MIXED && i / 64 % 4 == 1)
            now = i / 256 % 2 ? TEST_WEIGHT_HIGHEST : TEST_WEIGHT_LOWEST;
        if (now == TEST_WEIGHT_HIGHEST)
            byte = type->code_bits == 8 ? 0x7F : 0xFF;
        if (now == TEST_WEIGHT_LOWEST)
            byte = type->code_bits == 8 ? 0x80 : 0x00;
        codes[i] = byte;
    }
}

static inline float test_float_weight(fm__random *random, test_weight kind, size_t k) {
    float z = test_normal(random);
    switch (kind) {
    case TEST_WEIGHT_HIGHEST:
        return 60000.0f;
    case TEST_WEIGHT_LOWEST:
        return -0x1p-30f;
    case TEST_WEIGHT_CANCEL:
        return k % 2 ? -1.0f : 1.0f + 0x1p-7f * (float)(k % 4 == 0);
    case TEST_WEIGHT_MIXED: {
        float some[] = {0.0f, -0.0f, 0x1p-24f, -0x1.8p-20f, 65504.0f, z * 100.0f};
        return test_below(random, 2) ? some[test_below(random, 6)] : z * 0.05f;
    }
    default:
        return z * 0.05f;
    }
}

/* One panel's codes of a float type, [k][16] or [k / 2][16][2]. */
static inline void test_floats_fill(fm__random *random, const fm__type *type, test_weight kind,
                                    size_t k, uint8_t *panel) {
    for (size_t i = 0; i < k; i++)
        for (size_t r = 0; r < FM__PANEL_ROWS; r++) {
            float w = test_float_weight(random, kind, i);
            if (type->dtype == FM__F32) {
                memcpy(panel + (i * 16 + r) * 4, &w, 4);
            } else {
                uint16_t h = type->dtype == FM__F16 ? fm__f32_to_f16(w) : fm__f32_to_bf16(w);
                memcpy(panel + ((i / 2 * 16 + r) * 2 + i % 2) * 2, &h, 2);
            }
        }
}

/* Fills `panels` panels as quant/quant.h lays them out, but with arbitrary content. */
static inline void test_panels_fill(fm__random *random, const fm__type *type, test_weight kind,
                                    size_t k, size_t panels, uint8_t *data) {
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    memset(data, 0, panels * layout.stride);
    for (size_t p = 0; p < panels; p++, data += layout.stride) {
        if (!type->quantised) {
            test_floats_fill(random, type, kind, k, data);
            continue;
        }
        size_t blocks = k / type->block;
        test_codes_fill(random, type, kind, data + layout.codes, k / 32 * layout.chunk_bytes);
        for (size_t i = 0; i < blocks * layout.sub_bytes; i++)
            data[layout.sub + i] = test_sub(random, type, kind);
        for (size_t i = 0; i < blocks * FM__PANEL_ROWS; i++) {
            uint16_t d = test_scale(random, kind, i / 16), m = test_scale(random, kind, i / 16);
            if (kind == TEST_WEIGHT_HIGHEST)
                d = m = 0x4C00; /* 16 */
            float power = ldexpf(1.0f, (int)test_below(random, 20) - 12);
            if (type->d_is_f32)
                memcpy(data + layout.d + i * 4, &power, 4);
            else
                memcpy(data + layout.d + i * 2, &d, 2);
            if (type->has_min)
                memcpy(data + layout.m + i * 2, &m, 2);
        }
    }
}

/* ---- comparison ---- */

/* The same bits; any NaN equals any NaN. */
static inline bool test_same(float a, float b) {
    return fm__f32_bits(a) == fm__f32_bits(b) || (isnan(a) && isnan(b));
}

/* Fails with the first differing index. */
static inline void test_same_all(const float *a, const float *b, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (!test_same(a[i], b[i]))
            fail_msg("%s: entry %zu is %a (%08x), ref has %a (%08x)", what, i, (double)a[i],
                     fm__f32_bits(a[i]), (double)b[i], fm__f32_bits(b[i]));
}
