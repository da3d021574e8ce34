/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products on the vulkan device against ref, bit for bit: every type, few rows and many, bias,
 * residual, in place, gated units. Fast kernels for few rows: within the bound of their class.
 */
#include "device/vulkan_products.h"

/* ---- tests ---- */

static const uint32_t k_of_1[] = {1, 33, 588, 1024, 1025, 2560};
static const uint32_t k_of_32[] = {32, 96, 1024, 1056, 2080, 2560};
static const uint32_t k_of_256[] = {256, 768, 1024, 1280, 2304, 2560};
static const uint32_t all_n[] = {16, 17, 33, 63, 100, 128};
static const uint32_t all_tokens[] = {9, 15, 16, 17, 31, 33};

static uint32_t k_at(const fm__type *type, size_t i) {
    return type->block == 1 ? k_of_1[i] : type->block == 32 ? k_of_32[i] : k_of_256[i];
}

/* Every type and class with few rows and with many: half of the K, each with another N and
   follow-up; which half takes turns. */
static void check_types(uint32_t begin, uint32_t end, bool many) {
    for (uint32_t index = begin; index < end; index++)
        for (int fast = 0; fast < 2; fast++) {
            const fm__type *type = fm__type_at(index);
            if (ref.linear[index][fast].fn == NULL)
                continue;
            for (size_t i = index % 2; i < COUNT(k_of_1); i += 2) {
                shape s = {.type = type, .k = k_at(type, i), .fast = fast != 0};
                s.n = all_n[(i + index) % COUNT(all_n)];
                s.bound = many ? all_tokens[(i + index) % COUNT(all_tokens)]
                          : (index + i / 2) % 2 == 0
                              ? 1
                              : 5 + (uint32_t)i / 2; /* kernels for one, and up to 8 */
                /* A gated unit is another kernel: a third of the types have it. */
                s.follow = fast             ? (follow)(i / 2 % 2)
                           : index % 3 == 0 ? (follow)(SILU + index / 3 % 2)
                                            : (follow)((i / 2 + index) % SILU);
                check_shape(&s, s.bound - (i / 2 == 1 && s.bound > 1), i + 7 * index);
            }
        }
}

static void test_few_32(void **state) {
    (void)state;
    check_types(FM__TYPE_Q8_0, FM__TYPE_Q2_K, false);
}

static void test_few_256(void **state) {
    (void)state;
    check_types(FM__TYPE_Q2_K, FM__TYPE_COUNT, false);
}

static void test_many_32(void **state) {
    (void)state;
    check_types(FM__TYPE_Q8_0, FM__TYPE_Q2_K, true);
}

static void test_many_256(void **state) {
    (void)state;
    check_types(FM__TYPE_Q2_K, FM__TYPE_COUNT, true);
}

static void test_floats(void **state) {
    (void)state;
    check_types(0, FM__TYPE_Q8_0, true);
    check_types(0, FM__TYPE_Q8_0, false);
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        printf("skip: no Vulkan device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_32),  cmocka_unit_test(test_few_256),
        cmocka_unit_test(test_many_32), cmocka_unit_test(test_many_256),
        cmocka_unit_test(test_floats),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
