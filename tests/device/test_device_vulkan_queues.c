/* SPDX-License-Identifier: Apache-2.0 */
/* Which queue copies weights, for the queue families that devices are known to have. */
#include "device/vulkan/core.h"
#include "test.h"

enum {
    TRANSFER = VK_QUEUE_TRANSFER_BIT,
    COMPUTE = VK_QUEUE_COMPUTE_BIT,
    DRAW = VK_QUEUE_GRAPHICS_BIT,
    SPARSE = VK_QUEUE_SPARSE_BINDING_BIT,
    DECODE = 0x20, /* VK_QUEUE_VIDEO_DECODE_BIT_KHR, which older headers have not */
    ENCODE = 0x40,
    FLOW = 0x100, /* VK_QUEUE_OPTICAL_FLOW_BIT_NV */
};

typedef struct family {
    VkQueueFlags flags;
    uint32_t queues;
} family;

static void expect(const family *list, uint32_t n, uint32_t compute, bool apart, uint32_t want,
                   uint32_t want_index) {
    VkQueueFamilyProperties families[8] = {0};
    uint32_t found = 99, index = 99;
    assert_true(n <= 8);
    for (uint32_t i = 0; i < n; i++)
        families[i] =
            (VkQueueFamilyProperties){.queueFlags = list[i].flags, .queueCount = list[i].queues};
    assert_int_equal(fm__vulkan_choose_copies(families, n, compute, &found, &index), apart);
    assert_int_equal(found, want);
    assert_int_equal(index, want_index);
}

static void a_copy_engine_is_best(void **state) {
    (void)state;
    /* In any order, video and optical flow engines, which copy as well, come after it. */
    const family nvidia[] = {
        {DRAW | COMPUTE | TRANSFER | SPARSE, 16}, {TRANSFER | SPARSE, 2},
        {COMPUTE | TRANSFER | SPARSE, 8},         {TRANSFER | SPARSE | DECODE, 3},
        {TRANSFER | SPARSE | ENCODE, 3},          {TRANSFER | SPARSE | FLOW, 1}};
    expect(nvidia, 6, 2, true, 1, 0);
    const family turned[] = {{TRANSFER | DECODE, 3},
                             {TRANSFER | FLOW, 1},
                             {COMPUTE | TRANSFER, 8},
                             {TRANSFER | ENCODE, 2},
                             {TRANSFER, 1}};
    expect(turned, 5, 2, true, 4, 0);
    /* One without a queue is none. */
    const family empty[] = {{TRANSFER, 0}, {COMPUTE, 1}, {TRANSFER | SPARSE, 1}};
    expect(empty, 3, 1, true, 2, 0);
}

static void else_a_second_queue_or_family(void **state) {
    (void)state;
    const family several[] = {{COMPUTE | TRANSFER, 2}, {TRANSFER | DECODE, 1}, {DRAW, 1}};
    expect(several, 3, 0, true, 0, 1);
    /* Compute and graphics queues copy, whether they say so or not. */
    const family other[] = {{TRANSFER | DECODE, 1}, {COMPUTE, 1}, {DRAW, 1}};
    expect(other, 3, 1, true, 2, 0);
    const family video[] = {{COMPUTE, 1}, {DECODE, 1}, {TRANSFER | FLOW, 1}};
    expect(video, 3, 0, true, 2, 0);
}

static void or_the_compute_queue(void **state) {
    (void)state;
    const family one[] = {{DRAW | COMPUTE | TRANSFER, 1}};
    expect(one, 1, 0, false, 0, 0);
    const family useless[] = {{SPARSE, 1}, {COMPUTE, 1}, {DECODE, 4}, {TRANSFER, 0}};
    expect(useless, 4, 1, false, 1, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_engine_is_best),
        cmocka_unit_test(else_a_second_queue_or_family),
        cmocka_unit_test(or_the_compute_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
