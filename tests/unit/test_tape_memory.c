/* SPDX-License-Identifier: Apache-2.0 */
/* Placement of tensors: no two that live together touch; alignment; total; sharing; overflow. */
#include "fixture.h"

static bool collide(const fm__life *a, size_t a_at, const fm__life *b, size_t b_at) {
    bool apart = a->kind != b->kind || (a->first <= b->last && b->first <= a->last);
    return a->bytes > 0 && b->bytes > 0 && apart && a_at < b_at + b->bytes &&
           b_at < a_at + a->bytes;
}

static void chain_shares_memory(void **state) {
    (void)state;
    /* a -> b -> c -> d: at most two live at once, so four need the room of two. */
    fm__life lives[] = {{1000, 0, 1, 0}, {1000, 1, 2, 0}, {1000, 2, 3, 0}, {1000, 3, 4, 0}};
    size_t at[4], total;
    CHECK(fm__tape_place(lives, 4, at, &total, why));
    assert_int_equal(total, 2 * 1024);
    assert_int_equal(at[0], at[2]);
    assert_int_equal(at[1], at[3]);
    lives[2].kind = 1; /* no memory of the others is its */
    CHECK(fm__tape_place(lives, 4, at, &total, why));
    assert_int_equal(total, 3 * 1024);
}

static void random_lives_never_collide(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 11);
    for (int round = 0; round < 300; round++) {
        fm__life lives[40];
        size_t at[40], again[40], total, total_again, sum = 0;
        uint32_t n = 1 + (uint32_t)(fm__random_next(&random) % 40);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t first = (uint32_t)(fm__random_next(&random) % 60);
            lives[i] = (fm__life){fm__random_next(&random) % 5000, first,
                                  first + (uint32_t)(fm__random_next(&random) % 20),
                                  round % 2 ? (uint32_t)(fm__random_next(&random) % 3) : 0};
            sum += fm__round_up(lives[i].bytes, FM__TENSOR_ALIGN);
        }
        CHECK(fm__tape_place(lives, n, at, &total, why));
        CHECK(fm__tape_place(lives, n, again, &total_again, why));
        assert_memory_equal(at, again, n * sizeof *at);
        assert_int_equal(total, total_again);
        assert_true(total <= sum);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(at[i] % FM__TENSOR_ALIGN, 0);
            assert_true(at[i] + lives[i].bytes <= total);
            for (uint32_t j = 0; j < i; j++)
                assert_false(collide(&lives[i], at[i], &lives[j], at[j]));
        }
    }
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    const fm__life lives[] = {{SIZE_MAX / 2, 0, 1, 0}, {SIZE_MAX / 2, 2, 3, 0}};
    size_t at[2], total;
    fm_error error;
    assert_int_equal(fm__tape_place(lives, 2, at, &total, &error), FM_ERROR_LIMIT);
}

static void out_of_memory_is_reported(void **state) {
    (void)state;
    const fm__life life = {100, 0, 1, 0};
    size_t at, total;
    fm_error error;
    fm__alloc_fail_after(1);
    assert_int_equal(fm__tape_place(&life, 1, &at, &total, &error), FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
}

/* In the model's tape: tensors that overlap in memory never live at the same time. */
static void tape_offsets_respect_lives(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q4_K, 33, 5);
    const fm__tape *t = m.tape;
    size_t sum = 0;
    for (uint32_t i = 0; i < t->n_tensor; i++) {
        size_t bytes = t->tensors[i].layout.stride * fm__tape_bound(t, &t->tensors[i]);
        bool scratch = t->tensors[i].slot == FM__SLOT_SCRATCH;
        assert_true(t->tensors[i].offset + bytes <= (scratch ? t->scratch_bytes : t->output_bytes));
        sum += scratch ? bytes : 0;
    }
    assert_true(t->scratch_bytes < sum / 2); /* they do share */
    /* x lives throughout: nothing else may lie on it. */
    size_t x_end = t->tensors[0].offset + t->tensors[0].layout.stride * 33;
    for (uint32_t i = 1; i < t->n_tensor; i++)
        if (t->tensors[i].slot == FM__SLOT_SCRATCH && t->tensors[i].rows == FM__ROWS_BATCH)
            assert_true(t->tensors[i].offset >= x_end ||
                        t->tensors[i].offset + t->tensors[i].layout.stride * 33 <=
                            t->tensors[0].offset);
    /* Where two lie on the same memory, so do their rows. */
    for (uint32_t i = 0; i < t->n_tensor; i++)
        for (uint32_t j = 0; j < i; j++) {
            const fm__tensor *a = &t->tensors[i], *b = &t->tensors[j];
            if (fm__tape_overlaps(t, (int16_t)i, (int16_t)j))
                assert_true(a->offset == b->offset && a->layout.stride == b->layout.stride &&
                            a->rows == b->rows);
        }
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chain_shares_memory),
        cmocka_unit_test(random_lives_never_collide),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(out_of_memory_is_reported),
        cmocka_unit_test(tape_offsets_respect_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
