/* SPDX-License-Identifier: Apache-2.0 */
/* The table of weight types and the layouts that follow from it. */
#include "quant/quant.h"
#include "test.h"

static void order_follows_the_list(void **state) {
    (void)state;
    static const fm__dtype expected[] = {
#define DTYPE(id, NAME) FM__##NAME,
        FM__TYPE_LIST(DTYPE)
#undef DTYPE
    };
    assert_int_equal(fm__type_count(), FM__TYPE_COUNT);
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_at(i);
        assert_int_equal(type->dtype, expected[i]);
        assert_ptr_equal(fm__type_get(expected[i]), type);
        assert_int_equal(fm__type_index(type), i);
    }
    assert_null(fm__type_at(FM__TYPE_COUNT));
    assert_int_equal(fm__type_index(fm__type_get(FM__Q4_K)), FM__TYPE_Q4_K);
}

static void storage_dtypes_have_no_row(void **state) {
    (void)state;
    assert_null(fm__type_get(FM__I8));
    assert_null(fm__type_get(FM__I64));
    assert_null(fm__type_get(FM__F64));
    assert_null(fm__type_get((fm__dtype)4));
}

static void agrees_with_the_format_room(void **state) {
    (void)state;
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_at(i);
        const fm__dtype_info *info = fm__dtype_get((uint32_t)type->dtype);
        assert_non_null(info);
        assert_string_equal(info->name, type->name);
        assert_int_equal(info->block, type->block);
        assert_int_equal(info->block_bytes, type->block_bytes);
    }
}

static void fields_are_consistent(void **state) {
    (void)state;
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_at(i);
        assert_non_null(type->decode);
        assert_non_null(type->pack);
        assert_true((type->encode == NULL) ==
                    (type->dtype == FM__IQ4_NL || type->dtype == FM__IQ4_XS));
        assert_int_equal(type->quantised, type->block > 1);
        if (type->lut != NULL) {
            assert_int_equal(type->code_bits, 4);
            assert_int_equal(type->offset, 0);
        }
        if (!type->quantised) {
            assert_int_equal(type->code_bits, 8 * type->block_bytes);
            continue;
        }
        assert_int_equal(type->act[0], type->block == 32 ? FM__ACT_Q8_32 : FM__ACT_Q8_256);
        assert_int_equal(type->act[1], type->act[0]);
        assert_true(type->block == 256 || type->sub_width == 0);
        assert_true(type->offset >= 0 && type->offset <= 1 << (type->code_bits - 1));
    }
}

/* Facts that kernels build upon, each written out. */
static void rows_say_what_is_agreed(void **state) {
    (void)state;
    static const struct {
        fm__dtype dtype;
        int bits, offset, sub_width;
        bool has_min, d_is_f32;
        fm__act exact, fast;
    } rows[] = {
        {FM__F32, 32, 0, 0, false, false, FM__ACT_F32, FM__ACT_F32},
        {FM__F16, 16, 0, 0, false, false, FM__ACT_R13, FM__ACT_F32},
        {FM__BF16, 16, 0, 0, false, false, FM__ACT_R16, FM__ACT_BF16},
        {FM__Q8_0, 8, 0, 0, false, false, FM__ACT_Q8_32, FM__ACT_Q8_32},
        {FM__Q4_0, 4, 8, 0, false, false, FM__ACT_Q8_32, FM__ACT_Q8_32},
        {FM__Q4_1, 4, 0, 0, true, false, FM__ACT_Q8_32, FM__ACT_Q8_32},
        {FM__Q5_0, 5, 16, 0, false, false, FM__ACT_Q8_32, FM__ACT_Q8_32},
        {FM__Q5_1, 5, 0, 0, true, false, FM__ACT_Q8_32, FM__ACT_Q8_32},
        {FM__IQ4_NL, 4, 0, 0, false, false, FM__ACT_Q8_32, FM__ACT_Q8_32},
        {FM__MXFP4, 4, 0, 0, false, true, FM__ACT_Q8_32, FM__ACT_Q8_32},
        {FM__Q2_K, 2, 0, 16, true, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
        {FM__Q3_K, 3, 4, 16, false, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
        {FM__Q4_K, 4, 0, 32, true, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
        {FM__Q5_K, 5, 0, 32, true, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
        {FM__Q6_K, 6, 32, 16, false, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
        {FM__IQ4_XS, 4, 0, 32, false, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
        {FM__TQ1_0, 2, 1, 0, false, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
        {FM__TQ2_0, 2, 1, 0, false, false, FM__ACT_Q8_256, FM__ACT_Q8_256},
    };
    assert_int_equal(sizeof rows / sizeof rows[0], FM__TYPE_COUNT);
    for (size_t i = 0; i < FM__TYPE_COUNT; i++) {
        const fm__type *type = fm__type_get(rows[i].dtype);
        assert_int_equal(type->code_bits, rows[i].bits);
        assert_int_equal(type->offset, rows[i].offset);
        assert_int_equal(type->sub_width, rows[i].sub_width);
        assert_int_equal(type->has_min, rows[i].has_min);
        assert_int_equal(type->d_is_f32, rows[i].d_is_f32);
        assert_int_equal(type->act[0], rows[i].exact);
        assert_int_equal(type->act[1], rows[i].fast);
    }
}

static void panel_layouts(void **state) {
    (void)state;
    /* stride of one block of K, worked out by hand from the layout's description */
    static const struct {
        fm__dtype dtype;
        size_t k, sub, d, m, stride;
    } cases[] = {
        {FM__F32, 1, 64, 64, 64, 128},
        {FM__F32, 588, 37632, 37632, 37632, 37632},
        {FM__F16, 3, 128, 128, 128, 128},
        {FM__BF16, 5, 192, 192, 192, 256},
        {FM__Q8_0, 32, 512, 512, 576, 640},
        {FM__Q4_0, 96, 768, 768, 896, 896},
        {FM__Q4_1, 32, 256, 256, 320, 384},
        {FM__Q5_1, 64, 640, 640, 704, 768},
        {FM__MXFP4, 64, 512, 512, 640, 640},
        {FM__Q2_K, 256, 1024, 1280, 1344, 1408},
        {FM__Q3_K, 256, 1536, 1792, 1856, 1920},
        {FM__Q4_K, 512, 4096, 4608, 4672, 4736},
        {FM__Q6_K, 256, 3072, 3328, 3392, 3456},
        {FM__IQ4_XS, 256, 2048, 2176, 2240, 2304},
        {FM__TQ1_0, 256, 1024, 1024, 1088, 1152},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fm__panel_layout layout = fm__panel_layout_of(fm__type_get(cases[i].dtype), cases[i].k);
        assert_int_equal(layout.codes, 0);
        assert_int_equal(layout.sub, cases[i].sub);
        assert_int_equal(layout.d, cases[i].d);
        assert_int_equal(layout.m, cases[i].m);
        assert_int_equal(layout.stride, cases[i].stride);
    }
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_at(i);
        for (size_t k = type->block; k <= (size_t)5 * type->block; k += type->block) {
            fm__panel_layout layout = fm__panel_layout_of(type, k);
            assert_int_equal(layout.sub % 64, 0);
            assert_int_equal(layout.d % 64, 0);
            assert_int_equal(layout.m % 64, 0);
            assert_int_equal(layout.stride % 128, 0);
            assert_true(layout.sub <= layout.d && layout.d <= layout.m);
            assert_true(layout.m <= layout.stride);
            if (type->quantised)
                assert_int_equal(layout.chunk_bytes, 64 * type->code_bits);
        }
    }
}

/* Bits a weight in the file and packed, K = 4096, in 1/10000: the figures of docs/guide/types.md.
 */
static void bits_per_weight(void **state) {
    (void)state;
    static const struct {
        fm__dtype dtype;
        unsigned file, packed;
    } rows[] = {
        {FM__F32, 320000, 320000},  {FM__F16, 160000, 160000}, {FM__BF16, 160000, 160000},
        {FM__Q8_0, 85000, 85000},   {FM__Q4_0, 45000, 45000},  {FM__Q4_1, 50000, 50000},
        {FM__Q5_0, 55000, 55000},   {FM__Q5_1, 60000, 60000},  {FM__IQ4_NL, 45000, 45000},
        {FM__MXFP4, 42500, 50000},  {FM__Q2_K, 26250, 26250},  {FM__Q3_K, 34375, 35625},
        {FM__Q4_K, 45000, 46250},   {FM__Q5_K, 55000, 56250},  {FM__Q6_K, 65625, 65625},
        {FM__IQ4_XS, 42500, 43125}, {FM__TQ1_0, 16875, 20625}, {FM__TQ2_0, 20625, 20625},
    };
    assert_int_equal(sizeof rows / sizeof rows[0], FM__TYPE_COUNT);
    for (size_t i = 0; i < FM__TYPE_COUNT; i++) {
        const fm__type *type = fm__type_get(rows[i].dtype);
        size_t k = 4096, stride = fm__panel_layout_of(type, k).stride;
        assert_int_equal(k / type->block * type->block_bytes * 80000 / k, rows[i].file);
        assert_int_equal(stride * 80000 / FM__PANEL_ROWS / k, rows[i].packed);
    }
}

static void act_layouts(void **state) {
    (void)state;
    fm__act_layout a = fm__act_layout_of(FM__ACT_F32, 33);
    assert_int_equal(a.values, 0);
    assert_int_equal(a.stride, 192); /* 132 bytes */
    a = fm__act_layout_of(FM__ACT_BF16, 65);
    assert_int_equal(a.stride, 192); /* 66 x 2 bytes: the odd count is padded */
    a = fm__act_layout_of(FM__ACT_BF16, 63);
    assert_int_equal(a.stride, 128);
    a = fm__act_layout_of(FM__ACT_Q8_32, 96);
    assert_int_equal(a.values, 0);
    assert_int_equal(a.d, 128);
    assert_int_equal(a.sum, 192);
    assert_int_equal(a.shift, 0);
    assert_int_equal(a.stride, 256);
    a = fm__act_layout_of(FM__ACT_Q8_256, 1024);
    assert_int_equal(a.d, 1024);
    assert_int_equal(a.sum, 1088);
    assert_int_equal(a.shift, 1216);
    assert_int_equal(a.stride, 1280);
    assert_int_equal(fm__act_layout_of(FM__ACT_R13, 64).stride, 256);
    assert_int_equal(fm__act_layout_of(FM__ACT_R16, 64).stride, 256);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_follows_the_list),
        cmocka_unit_test(storage_dtypes_have_no_row),
        cmocka_unit_test(agrees_with_the_format_room),
        cmocka_unit_test(fields_are_consistent),
        cmocka_unit_test(rows_say_what_is_agreed),
        cmocka_unit_test(panel_layouts),
        cmocka_unit_test(bits_per_weight),
        cmocka_unit_test(act_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
