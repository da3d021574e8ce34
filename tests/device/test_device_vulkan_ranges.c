/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products on the vulkan device: ranges of channels and of tokens, outside of which nothing is
 * written; and the workgroups that GPUs run, larger than what an emulated device is given.
 */
#include "device/vulkan_products.h"

/* ---- ranges ---- */

static void check_ranges(const shape *s, uint64_t seed) {
    product p;
    product_init(&p, s, seed);
    const fm__op_range ranges[] = {
        {.axis = FM__AXIS_CHANNELS, .begin = 0, .end = 16, .tensor = FM__NONE},
        {.axis = FM__AXIS_CHANNELS, .begin = 16, .end = s->n, .tensor = FM__NONE},
        {.axis = FM__AXIS_CHANNELS, .begin = 32, .end = 64, .tensor = FM__NONE},
        {.axis = FM__AXIS_TOKENS, .begin = 0, .end = 21845, .tensor = FM__NONE},
        {.axis = FM__AXIS_TOKENS, .begin = 21845, .end = FM__TOKEN_PARTS, .tensor = FM__NONE},
        {.axis = FM__AXIS_TOKENS, .begin = 30000, .end = 30001, .tensor = FM__NONE},
    };
    uint32_t granule, channels;
    granule = fm__device_channel_granule(p.tape, &p.tape->ops[p.op], &channels);
    assert_int_equal(channels, s->n);
    for (size_t i = 0; i < COUNT(ranges); i++) {
        fm__op_range range = ranges[i];
        if (range.axis == FM__AXIS_CHANNELS) { /* in the granules that ranges come in */
            range.begin = range.begin / 16 * granule;
            range.end = range.end == s->n ? s->n : range.end / 16 * granule;
        }
        if (range.axis == FM__AXIS_CHANNELS && range.end > s->n)
            continue;
        for (uint32_t rows = 1; rows <= s->bound; rows += rows < 3 ? 1 : s->bound - 3)
            check_range(&p, rows, &range);
    }
    product_finish(&p);
}

static void test_ranges(void **state) {
    (void)state;
    static const uint32_t types[] = {FM__TYPE_Q4_1, FM__TYPE_Q5_K, FM__TYPE_Q8_0, FM__TYPE_F16};
    for (size_t i = 0; i < COUNT(types); i++)
        for (uint32_t bound = 5; bound <= 20; bound += 15) {
            const shape s = {.type = fm__type_at(types[i]),
                             .n = 323,
                             .k = 256,
                             .bound = bound,
                             .follow = (follow)((i + bound) % FOLLOW_COUNT)};
            check_ranges(&s, i);
        }
}

/* ---- the shapes that GPUs run: larger tiles, more lanes, the device's own dot product ---- */

static void check_trial(fm__vulkan_trial trial, bool dot, uint32_t bound) {
    static const uint32_t types[] = {FM__TYPE_Q4_0, FM__TYPE_MXFP4, FM__TYPE_Q5_1,
                                     FM__TYPE_Q2_K, FM__TYPE_Q6_K,  FM__TYPE_Q4_K};
    bool had_dot = gpu->has_dot;
    gpu->trial = trial;
    gpu->has_dot = dot && gpu->can_dot;
    for (size_t i = 0; i < COUNT(types); i++) {
        const shape s = {.type = fm__type_at(types[i]),
                         .n = 100,
                         .k = 1280, /* two segments */
                         .bound = bound,
                         .follow = (follow)(i % FOLLOW_COUNT)};
        check_shape(&s, s.bound, i);
    }
    gpu->has_dot = had_dot;
    gpu->trial = (fm__vulkan_trial){0};
}

static void test_large_tiles(void **state) {
    (void)state;
    const fm__vulkan_trial large = {
        .lanes = 128, .row_lanes = 8, .lane_rows = 8, .lane_tokens = 4, .step = 2};
    check_trial(large, true, 65);
}

static void test_many_lanes(void **state) {
    (void)state;
    if (gpu->max_invocations < 256) {
        print_message("skip: fewer than 256 invocations of a workgroup\n");
        skip();
    }
    check_trial((fm__vulkan_trial){.lanes = 256, .round = 8}, true, 8);
    for (uint32_t section = 8; section <= 64; section *= 8) /* within a segment, and two at once */
        check_trial((fm__vulkan_trial){.lanes = 256, .round = section}, true, 1);
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        printf("skip: no Vulkan device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_large_tiles),
        cmocka_unit_test(test_many_lanes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
