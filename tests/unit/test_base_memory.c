/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_memory.c: allocation, its failure hook, arenas, pages, checked arithmetic. */
#include "test.h"

#include "base/base.h"

static void test_alloc(void **state) {
    (void)state;
    for (size_t bytes = 0; bytes < 3000; bytes += 37) {
        uint8_t *memory = fm__alloc(bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(memory, 0xab, bytes);
        fm__free(memory);
    }
    uint8_t *zero = fm__alloc_zero(1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(zero[i], 0);
    fm_free(zero);
    fm_free(NULL);
    assert_null(fm__alloc(SIZE_MAX));
    assert_null(fm__alloc(SIZE_MAX - 64));
    assert_null(fm__alloc((size_t)PTRDIFF_MAX));
    assert_null(fm__alloc_array(SIZE_MAX / 8, 16));
    assert_null(fm__alloc_array((size_t)1 << 32, (size_t)1 << 32)); /* wraps to 0 */
}

static void test_reallocation(void **state) {
    (void)state;
    uint8_t *memory = fm__realloc(NULL, 10);
    for (int i = 0; i < 10; i++)
        memory[i] = (uint8_t)i;
    memory = fm__realloc(memory, 100000);
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(memory[i], i);
    fm__alloc_fail_after(1);
    assert_null(fm__realloc(memory, 200000));
    assert_int_equal(memory[9], 9); /* the old block is still there */
    assert_null(fm__realloc(memory, SIZE_MAX));
    memory = fm__realloc(memory, 3);
    assert_int_equal(memory[2], 2);
    fm__free(memory);
}

static void test_fail_after(void **state) {
    (void)state;
    uint64_t before = fm__alloc_count();
    fm__alloc_fail_after(3);
    void *one = fm__alloc(1), *two = fm__alloc(1), *three = fm__alloc(1), *four = fm__alloc(1);
    assert_true(one && two && !three && four); /* the third only */
    assert_int_equal(fm__alloc_count() - before, 4);
    fm__alloc_fail_after(1);
    assert_null(fm__pages_alloc(1));
    fm__alloc_fail_after(1);
    fm__alloc_fail_after(0);
    void *five = fm__alloc(1);
    assert_non_null(five);
    fm__free(one);
    fm__free(two);
    fm__free(four);
    fm__free(five);
}

static void test_pages(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 4096, 100000, (2 << 20) - 1, 2 << 20, (7 << 20) + 5};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        size_t bytes = sizes[s];
        uint8_t *memory = fm__pages_alloc(bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        if (bytes >= 2 << 20)
            assert_int_equal((uintptr_t)memory % (2 << 20), 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(memory[i], 0);
        memset(memory, 1, bytes);
        fm__pages_free(memory, bytes);
    }
    /* nothing is left mapped: 3000 times 64 MiB of address space, touched at both ends */
    for (int i = 0; i < 3000; i++) {
        uint8_t *memory = fm__pages_alloc(64 << 20);
        assert_non_null(memory);
        memory[0] = memory[(64 << 20) - 1] = 1;
        fm__pages_free(memory, 64 << 20);
    }
    assert_null(fm__pages_alloc(SIZE_MAX));
    assert_null(fm__pages_alloc(PTRDIFF_MAX));
    fm__pages_free(NULL, 5);
}

/* Whether programs that ask for huge pages get them, as far as the system says. */
static bool has_huge_pages(void) {
    char *text = NULL;
    size_t bytes;
    if (fm__file_read("/sys/kernel/mm/transparent_hugepage/enabled", 4096, &text, &bytes, NULL) !=
        FM_OK)
        return false;
    bool has = strstr(text, "[always]") || strstr(text, "[madvise]");
    fm__free(text);
    return has;
}

static void test_huge_pages(void **state) {
    (void)state;
    const size_t bytes = (size_t)16 << 20;
    uint8_t *memory = fm__pages_alloc(bytes);
    assert_non_null(memory);
    assert_int_equal(fm__pages_huge(memory + (4 << 20), 8 << 20), 0); /* nothing touched yet */
    memset(memory, 1, bytes);
    uint64_t whole = fm__pages_huge(memory, bytes), half = fm__pages_huge(memory, bytes / 2);
    assert_true(whole <= bytes && half <= bytes / 2 && half <= whole);
    assert_int_equal(whole % (2 << 20), 0);
    if (has_huge_pages()) /* how many is the system's affair */
        printf("huge pages: %llu of %zu MiB\n", (unsigned long long)(whole >> 20), bytes >> 20);
    else
        assert_int_equal(whole, 0);
    fm__pages_free(memory, bytes);
    assert_int_equal(fm__pages_huge(NULL, 0), 0);
}

static void test_arena(void **state) {
    (void)state;
    fm__arena arena;
    fm__arena_init(&arena, 4096);
    char *kept[500];
    for (int i = 0; i < 500; i++) {
        char text[64];
        size_t bytes = (size_t)snprintf(text, sizeof text, "string %d of the arena", i);
        kept[i] = fm__arena_copy(&arena, text, bytes);
        assert_int_equal((uintptr_t)kept[i] % 16, 0);
        void *large = i % 50 == 0 ? fm__arena_alloc(&arena, 10000) : fm__arena_alloc(&arena, 0);
        assert_non_null(large);
        if (i % 50 == 0)
            memset(large, 0xff, 10000);
    }
    for (int i = 0; i < 500; i++) {
        char text[64];
        snprintf(text, sizeof text, "string %d of the arena", i);
        assert_string_equal(kept[i], text);
    }
    assert_null(fm__arena_alloc(&arena, SIZE_MAX));
    assert_null(fm__arena_alloc(&arena, SIZE_MAX - 20));
    assert_null(fm__arena_copy(&arena, "", SIZE_MAX));
    fm__alloc_fail_after(1);
    assert_null(fm__arena_alloc(&arena, 10000));
    assert_non_null(fm__arena_alloc(&arena, 10000)); /* and is usable after it */
    fm__arena_finish(&arena);
    fm__arena_finish(&arena);
    assert_string_equal(fm__arena_copy(&arena, NULL, 0), "");
    fm__arena_finish(&arena);
}

static void test_checked(void **state) {
    (void)state;
    size_t size = 5;
    uint64_t wide = 5;
    assert_false(fm__add_size(SIZE_MAX, 1, &size));
    assert_false(fm__mul_size(SIZE_MAX / 2 + 1, 2, &size));
    assert_true(fm__mul_size(SIZE_MAX, 1, &size) && size == SIZE_MAX);
    assert_false(fm__mul_u64(UINT64_C(1) << 63, 2, &wide));
    assert_true(fm__add_u64(UINT64_MAX - 1, 1, &wide) && wide == UINT64_MAX);
    assert_int_equal(fm__round_up(17, 16), 32);
    assert_int_equal(fm__round_up(0, 16), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc),      cmocka_unit_test(test_reallocation),
        cmocka_unit_test(test_fail_after), cmocka_unit_test(test_pages),
        cmocka_unit_test(test_huge_pages), cmocka_unit_test(test_arena),
        cmocka_unit_test(test_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
