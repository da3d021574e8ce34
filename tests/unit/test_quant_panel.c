/* SPDX-License-Identifier: Apache-2.0 */
/* Packing: panels read back equal decoded rows bit for bit, and lie as the layout says. */
#include "quant_blocks.h"

typedef struct rows {
    guarded data[FM__PANEL_ROWS];
    const void *at[FM__PANEL_ROWS]; /* NULL past n */
    size_t n;
} rows;

static rows random_rows(fm__random *random, const fm__type *type, size_t n, size_t k) {
    rows r = {.n = n};
    size_t bytes = k / type->block * type->block_bytes;
    for (size_t i = 0; i < n; i++) {
        r.data[i] = guarded_alloc(bytes);
        quant_random_blocks(random, type, r.data[i].data, bytes);
        r.at[i] = r.data[i].data;
    }
    return r;
}

static void free_rows(rows *r) {
    for (size_t i = 0; i < r->n; i++)
        guarded_free(&r->data[i]);
}

/* What a panel keeps of a decoded value. */
static float packed_value(const fm__type *type, float x) {
    bool flushed = type->dtype == FM__F32 || type->dtype == FM__BF16;
    return flushed && (fm__f32_bits(x) & 0x7FFFFFFFu) < fm__f32_bits(0x1p-38f) ? 0.0f : x;
}

/* MXFP4's scales below 2^-38 are packed as 0. */
static bool scale_is_flushed(const fm__type *type, const uint8_t *row, size_t i) {
    return type->dtype == FM__MXFP4 && row[i / 32 * 17] < 90;
}

static void check_panel(fm__random *random, const fm__type *type, size_t n, size_t k) {
    rows r = random_rows(random, type, n, k);
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    guarded panel = guarded_alloc(layout.stride), twin = guarded_alloc(layout.stride);
    float *row = calloc(k, sizeof(float)), *out = calloc(FM__PANEL_ROWS * k, sizeof(float));

    /* every byte is written, whatever was there */
    memset(panel.data, 0x55, layout.stride);
    memset(twin.data, 0xAA, layout.stride);
    type->pack(r.at, k, panel.data);
    type->pack(r.at, k, twin.data);
    assert_memory_equal(panel.data, twin.data, layout.stride);

    fm__panel_decode(type, panel.data, k, out);
    for (size_t i = 0; i < FM__PANEL_ROWS; i++) {
        if (i < n)
            type->decode(r.at[i], row, k);
        for (size_t j = 0; j < k; j++) {
            float got = out[i * k + j];
            if (i >= n || scale_is_flushed(type, r.at[i], j))
                assert_true(got == 0.0f);
            else
                assert_int_equal(fm__f32_bits(got), fm__f32_bits(packed_value(type, row[j])));
        }
    }
    free(out);
    free(row);
    guarded_free(&twin);
    guarded_free(&panel);
    free_rows(&r);
}

static void reads_back_what_decode_gives(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 7);
    static const size_t float_k[] = {1, 2, 3, 15, 16, 17, 31, 33, 47, 64, 588, 1023};
    static const size_t blocks[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_at(i);
        size_t n_k =
            type->quantised ? sizeof blocks / sizeof blocks[0] : sizeof float_k / sizeof float_k[0];
        for (size_t n = 1; n <= FM__PANEL_ROWS; n++)
            for (size_t j = 0; j < n_k; j++)
                check_panel(&random, type, n,
                            type->quantised ? blocks[j] * type->block : float_k[j]);
    }
}

/* The c(k) of a row's element: the unsigned code, from the value that fm__panel_code gives. */
static unsigned code_of(const fm__type *type, const uint8_t *panel, size_t k, uint32_t r,
                        size_t i) {
    int value = fm__panel_code(type, panel, k, r, i);
    if (type->code_bits == 8)
        return (uint8_t)value;
    assert_null(type->lut);
    return (unsigned)(value + type->offset);
}

static uint8_t expected_byte(int bits, const unsigned c[32], int v, int j) {
    unsigned byte = 0;
    switch (bits) {
    case 8:
        byte = c[4 * v + j];
        break;
    case 4:
        byte = c[4 * v + j] | c[16 + 4 * v + j] << 4;
        break;
    case 2:
        for (int t = 0; t < 4; t++)
            byte |= c[4 * (v + 2 * t) + j] << (2 * t);
        break;
    default:
        for (int t = 0; t < 8; t++)
            byte |= c[4 * t + j] << t;
        break;
    }
    return (uint8_t)byte;
}

/* One plane of one chunk, byte by byte as quant.h words it. */
static void check_plane(const uint8_t *plane, int bits, int shift, unsigned code[16][32]) {
    for (int r = 0; r < 16; r++) {
        unsigned c[32];
        for (int i = 0; i < 32; i++)
            c[i] = code[r][i] >> shift & ((1u << bits) - 1);
        for (int v = 0; v < bits; v++)
            for (int j = 0; j < 4; j++)
                assert_int_equal(plane[v * 64 + r * 4 + j], expected_byte(bits, c, v, j));
    }
}

static void planes_lie_as_described(void **state) {
    (void)state;
    static const fm__dtype dtypes[] = {FM__Q8_0, FM__Q4_0, FM__Q5_0, FM__Q5_1, FM__Q2_K,
                                       FM__Q3_K, FM__Q4_K, FM__Q5_K, FM__Q6_K, FM__TQ1_0};
    fm__random random;
    fm__random_seed(&random, 11);
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        const fm__type *type = fm__type_get(dtypes[d]);
        size_t k = 512;
        rows r = random_rows(&random, type, 16, k);
        fm__panel_layout layout = fm__panel_layout_of(type, k);
        uint8_t *panel = malloc(layout.stride);
        type->pack(r.at, k, panel);
        for (size_t chunk = 0; chunk < k / 32; chunk++) {
            unsigned code[16][32];
            for (uint32_t row = 0; row < 16; row++)
                for (size_t i = 0; i < 32; i++)
                    code[row][i] = code_of(type, panel, k, row, 32 * chunk + i);
            const uint8_t *at = panel + layout.codes + chunk * layout.chunk_bytes;
            switch (type->code_bits) {
            case 5:
                check_plane(at, 4, 0, code);
                check_plane(at + 256, 1, 4, code);
                break;
            case 6:
                check_plane(at, 4, 0, code);
                check_plane(at + 256, 2, 4, code);
                break;
            case 3:
                check_plane(at, 2, 0, code);
                check_plane(at + 128, 1, 2, code);
                break;
            default:
                check_plane(at, type->code_bits, 0, code);
                break;
            }
        }
        free(panel);
        free_rows(&r);
    }
}

/* Codes of hand-made blocks: element by element, the values are known. */
static void codes_of_known_blocks(void **state) {
    (void)state;
    uint8_t q4_0[18] = {0x00, 0x3C}, q8_0[34] = {0x00, 0x3C};
    for (int j = 0; j < 16; j++)
        q4_0[2 + j] = (uint8_t)(j | (15 - j) << 4);
    for (int j = 0; j < 32; j++)
        q8_0[2 + j] = (uint8_t)(j * 8 - 128);
    uint8_t panel[640];
    const void *at[16] = {[5] = q4_0};
    fm__type_get(FM__Q4_0)->pack(at, 32, panel);
    for (size_t i = 0; i < 16; i++) {
        assert_int_equal(fm__panel_code(fm__type_get(FM__Q4_0), panel, 32, 5, i), (int)i - 8);
        assert_int_equal(fm__panel_code(fm__type_get(FM__Q4_0), panel, 32, 5, 16 + i), 7 - (int)i);
        assert_int_equal(panel[i / 4 * 64 + 5 * 4 + i % 4], q4_0[2 + i]);
        assert_int_equal(panel[i / 4 * 64 + 4 * 4 + i % 4], 0); /* no such row */
    }
    at[5] = q8_0;
    fm__type_get(FM__Q8_0)->pack(at, 32, panel);
    for (size_t i = 0; i < 32; i++)
        assert_int_equal(fm__panel_code(fm__type_get(FM__Q8_0), panel, 32, 5, i), (int)i * 8 - 128);

    uint8_t mxfp4[17] = {127};
    for (int j = 0; j < 16; j++)
        mxfp4[1 + j] = (uint8_t)(j | j << 4);
    static const int doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    at[5] = mxfp4;
    fm__type_get(FM__MXFP4)->pack(at, 32, panel);
    for (size_t i = 0; i < 32; i++)
        assert_int_equal(fm__panel_code(fm__type_get(FM__MXFP4), panel, 32, 5, i), doubled[i % 16]);
    float d;
    memcpy(&d, panel + 256 + 5 * 4, sizeof d);
    assert_true(d == 0.5f);
}

/* Scales of 16 rows lie together; each row's own value is told apart by its row. */
static void scales_lie_as_described(void **state) {
    (void)state;
    uint8_t block[16][144] = {{0}};
    const void *at[16];
    for (int r = 0; r < 16; r++) {
        block[r][0] = (uint8_t)r;          /* d */
        block[r][2] = (uint8_t)(0x40 + r); /* dmin */
        for (int s = 0; s < 4; s++) {
            block[r][4 + s] = (uint8_t)(r + s);      /* scales 0-3; the others are 0 */
            block[r][8 + s] = (uint8_t)(32 + r + s); /* minima 0-3 */
        }
        at[r] = block[r];
    }
    const fm__type *type = fm__type_get(FM__Q4_K);
    fm__panel_layout layout = fm__panel_layout_of(type, 256);
    uint8_t *panel = malloc(layout.stride);
    type->pack(at, 256, panel);
    for (int r = 0; r < 16; r++) {
        assert_int_equal(panel[layout.d + 2 * r], r);
        assert_int_equal(panel[layout.m + 2 * r], 0x40 + r);
        for (int s = 0; s < 8; s++) {
            assert_int_equal(panel[layout.sub + s * 16 + r], s < 4 ? r + s : 0);
            assert_int_equal(panel[layout.sub + 128 + s * 16 + r], s < 4 ? 32 + r + s : 0);
        }
    }
    free(panel);
}

/* The edge of 2^-38, both signs, and odd K. */
static void small_floats_become_zero(void **state) {
    (void)state;
    float f32[5] = {0x1p-38f, -0x1p-38f, 0x1.fffffep-39f, -0x1p-149f, -0.0f};
    uint32_t panel[128 * 4 / 4 * 3];
    const void *at[16] = {[15] = f32};
    fm__type_get(FM__F32)->pack(at, 5, panel);
    assert_int_equal(panel[0 * 16 + 15], 0x2C800000);
    assert_int_equal(panel[1 * 16 + 15], 0xAC800000);
    for (int i = 2; i < 5; i++)
        assert_int_equal(panel[i * 16 + 15], 0);

    uint16_t bf16[5] = {0x2C80, 0xAC80, 0x2C7F, 0x8000, 0x7F7F}, half[6];
    at[15] = bf16;
    fm__type_get(FM__BF16)->pack(at, 5, panel);
    for (int i = 0; i < 3; i++)
        memcpy(half + 2 * i, &panel[i * 16 + 15], 4);
    static const uint16_t expected[6] = {0x2C80, 0xAC80, 0, 0, 0x7F7F, 0};
    assert_memory_equal(half, expected, sizeof half);

    uint16_t f16[3] = {0x0001, 0x8000, 0xFBFF}; /* kept as they are */
    at[15] = f16;
    fm__type_get(FM__F16)->pack(at, 3, panel);
    for (int i = 0; i < 2; i++)
        memcpy(half + 2 * i, &panel[i * 16 + 15], 4);
    assert_memory_equal(half, f16, sizeof f16);
    assert_int_equal(half[3], 0);
}

/* Hash of a full panel and of one of five rows, of rows that a seed gives. */
static uint64_t hash_of_panels(const fm__type *type) {
    fm__random random;
    fm__random_seed(&random, 13);
    size_t k = type->quantised ? (size_t)5 * type->block : 1023;
    size_t stride = fm__panel_layout_of(type, k).stride;
    uint8_t *panel = malloc(stride);
    uint64_t hash = FM__HASH_SEED;
    static const size_t n[] = {16, 5};
    for (size_t i = 0; i < 2; i++) {
        rows r = random_rows(&random, type, n[i], k);
        type->pack(r.at, k, panel);
        hash = fm__hash(hash, panel, stride);
        free_rows(&r);
    }
    free(panel);
    return hash;
}

/* The packers' bytes, all of them, as the first and plainest packers wrote them. */
static void bytes_do_not_change(void **state) {
    (void)state;
    static const struct {
        fm__dtype dtype;
        uint64_t hash;
    } expected[] = {
        {FM__F32, UINT64_C(0x1ccd86a25ae0e5c4)},    {FM__F16, UINT64_C(0x97e568caa1f767fe)},
        {FM__BF16, UINT64_C(0x4f019334a70706d8)},   {FM__Q8_0, UINT64_C(0x4795c1f8b49524b6)},
        {FM__Q4_0, UINT64_C(0xdde008f840782d5e)},   {FM__Q4_1, UINT64_C(0x30165f3d669a1eaf)},
        {FM__Q5_0, UINT64_C(0x2ecb515ddc0b9a11)},   {FM__Q5_1, UINT64_C(0x6a7a1450f25f66e6)},
        {FM__IQ4_NL, UINT64_C(0xdde008f840782d5e)}, {FM__MXFP4, UINT64_C(0x04e31e89671e31eb)},
        {FM__Q2_K, UINT64_C(0x77b915893e3a912a)},   {FM__Q3_K, UINT64_C(0x41c7dfb27e9d8217)},
        {FM__Q4_K, UINT64_C(0x1b99e200b16f0e5f)},   {FM__Q5_K, UINT64_C(0x5130f0c61d3cdeab)},
        {FM__Q6_K, UINT64_C(0x76b74c0c7e54c804)},   {FM__IQ4_XS, UINT64_C(0x11d58a92f0c3fca1)},
        {FM__TQ1_0, UINT64_C(0xb7830ca687744c09)},  {FM__TQ2_0, UINT64_C(0x255a3eb76a8f9023)},
    };
    assert_int_equal(sizeof expected / sizeof expected[0], fm__type_count());
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_get(expected[i].dtype);
        uint64_t hash = hash_of_panels(type);
        if (hash != expected[i].hash)
            fail_msg("%s: 0x%016llx", type->name, (unsigned long long)hash);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_back_what_decode_gives), cmocka_unit_test(planes_lie_as_described),
        cmocka_unit_test(codes_of_known_blocks),        cmocka_unit_test(scales_lie_as_described),
        cmocka_unit_test(small_floats_become_zero),     cmocka_unit_test(bytes_do_not_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
