/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding against golden vectors (data/quant/README.md) and, for floats, against arithmetic. */
#include "quant_blocks.h"

static uint32_t crc32_of(const uint8_t *data, size_t bytes) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static uint32_t read_u32(FILE *file) {
    uint32_t x;
    assert_int_equal(fread(&x, sizeof x, 1, file), 1);
    return x;
}

static void decodes_the_golden_vectors(void **state) {
    (void)state;
    FILE *file = fopen("quant/golden.bin", "rb");
    assert_non_null(file);
    char magic[8];
    assert_int_equal(fread(magic, sizeof magic, 1, file), 1);
    assert_memory_equal(magic, "FMQUANT1", 8);
    uint32_t n_types = read_u32(file);
    assert_int_equal(n_types, FM__TYPE_COUNT - 3); /* all but the float types */
    for (uint32_t i = 0; i < n_types; i++) {
        char name[9] = {0};
        assert_int_equal(fread(name, 8, 1, file), 1);
        const fm__dtype_info *info = fm__dtype_by_name(fm__str_of(name));
        assert_non_null(info);
        const fm__type *type = fm__type_get(info->dtype);
        assert_non_null(type);
        uint32_t n_blocks = read_u32(file), elements = read_u32(file), crc = read_u32(file);
        assert_int_equal(elements, type->block);
        size_t bytes = (size_t)n_blocks * type->block_bytes, n = (size_t)n_blocks * elements;

        guarded blocks = guarded_alloc(bytes);
        float *expected = calloc(elements, sizeof(float)), *out = calloc(n, sizeof(float));
        assert_int_equal(fread(blocks.data, 1, bytes, file), bytes);
        assert_int_equal(fread(expected, sizeof(float), elements, file), elements);
        type->decode(blocks.data, out, n);
        assert_memory_equal(out, expected, elements * sizeof(float));
        assert_int_equal(crc32_of((const uint8_t *)out, n * sizeof(float)), crc);

        /* block by block, at odd addresses: the same */
        uint8_t *odd = malloc(type->block_bytes + 1u);
        float *one = calloc(elements, sizeof(float));
        for (uint32_t b = 0; b < n_blocks; b++) {
            memcpy(odd + 1, blocks.data + (size_t)b * type->block_bytes, type->block_bytes);
            type->decode(odd + 1, one, elements);
            assert_memory_equal(one, out + (size_t)b * elements, elements * sizeof(float));
        }
        free(one);
        free(odd);
        free(out);
        free(expected);
        guarded_free(&blocks);
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

/* Every f16, valued by arithmetic in double. */
static void decodes_every_f16(void **state) {
    (void)state;
    const fm__type *type = fm__type_get(FM__F16);
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint8_t bytes[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        float out;
        type->decode(bytes, &out, 1);
        int exponent = h >> 10 & 31;
        double fraction = (h & 1023) / 1024.0;
        if (exponent == 31) {
            assert_true(fraction == 0.0 ? out - out != 0.0f : out != out);
            continue;
        }
        double value = exponent == 0 ? fraction : 1.0 + fraction;
        for (int e = exponent == 0 ? 1 : exponent; e < 15; e++)
            value *= 0.5;
        for (int e = 15; e < exponent; e++)
            value *= 2.0;
        assert_true((double)out == (h & 0x8000 ? -value : value));
        assert_int_equal(fm__f32_bits(out) >> 31, h >> 15);
    }
}

static void decodes_f32_and_bf16(void **state) {
    (void)state;
    static const uint32_t bits[] = {0,          0x80000000, 1,          0x007FFFFF, 0x00800000,
                                    0x3F800000, 0xC0490FDB, 0x7F7FFFFF, 0x7F800000, 0x7FC00001};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        uint8_t bytes[5] = {0, (uint8_t)bits[i], (uint8_t)(bits[i] >> 8), (uint8_t)(bits[i] >> 16),
                            (uint8_t)(bits[i] >> 24)};
        float out;
        fm__type_get(FM__F32)->decode(bytes + 1, &out, 1);
        assert_int_equal(fm__f32_bits(out), bits[i]);
        fm__type_get(FM__BF16)->decode(bytes + 3, &out, 1);
        assert_int_equal(fm__f32_bits(out), bits[i] & 0xFFFF0000u);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_the_golden_vectors),
        cmocka_unit_test(decodes_every_f16),
        cmocka_unit_test(decodes_f32_and_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
