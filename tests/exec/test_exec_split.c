/* SPDX-License-Identifier: Apache-2.0 */
/* The split: the comment's worked table, and its properties over random inputs. Plans: who gets
   what, refusals, printing. */
#include "exec/exec.h"
#include "fixture.h"

static void the_worked_table_holds(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, granule, n;
        double weights[3];
        uint32_t ends[3];
    } table[] = {
        {896, 32, 1, {1}, {896}},
        {896, 32, 2, {1, 1}, {448, 896}},
        {896, 32, 2, {3, 1}, {672, 896}},
        {100, 32, 2, {1, 1}, {64, 100}},
        {33, 32, 2, {1, 1}, {32, 33}},
        {32, 32, 2, {1, 1}, {32, 32}},
        {128, 32, 3, {0, 1, 1}, {0, 64, 128}},
        {256, 32, 3, {1, 9, 0}, {32, 256, 256}},
        {0, 32, 2, {1, 1}, {0, 0}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fm__range ranges[3];
        fm__split(table[i].rows, table[i].granule, table[i].weights, table[i].n, ranges);
        uint32_t begin = 0;
        for (uint32_t r = 0; r < table[i].n; r++) {
            if (ranges[r].begin != begin || ranges[r].end != table[i].ends[r])
                fail_msg("line %zu, range %u: [%u, %u)", i, r, ranges[r].begin, ranges[r].end);
            begin = ranges[r].end;
        }
    }
}

static void splits_cover_all_in_granules(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 3);
    static const uint32_t granules[] = {1, 2, 16, 32, 96, 256};
    for (int round = 0; round < 20000; round++) {
        double weights[FM__MAX_UNITS], sum = 0;
        uint32_t n = 1 + (uint32_t)(fm__random_next(&random) % FM__MAX_UNITS);
        uint32_t rows = (uint32_t)(fm__random_next(&random) % (round % 2 ? 100 : 200000));
        uint32_t granule = granules[fm__random_next(&random) % 6];
        if (round % 100 == 0)
            rows = UINT32_MAX - (uint32_t)(fm__random_next(&random) % 3);
        for (uint32_t i = 0; i < n; i++) {
            weights[i] = fm__random_next(&random) % 3 == 0 ? 0 : fm__random_double(&random);
            if (round % 7 == 0)
                weights[i] *= 1e-300; /* tiny weights keep their proportions */
            sum += weights[i];
        }
        if (sum == 0)
            sum = weights[0] = 1;
        fm__range ranges[FM__MAX_UNITS];
        fm__split(rows, granule, weights, n, ranges);
        uint32_t begin = 0;
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(ranges[i].begin, begin);
            assert_true(ranges[i].end >= begin);
            assert_true(ranges[i].end % granule == 0 || ranges[i].end == rows);
            if (weights[i] == 0)
                assert_int_equal(ranges[i].begin, ranges[i].end);
            /* Each border is rounded by half a granule at most. */
            double exact = rows * (weights[i] / sum), got = ranges[i].end - begin;
            assert_true(got <= exact + granule + 1 && got >= exact - granule - 1);
            begin = ranges[i].end;
        }
        assert_int_equal(begin, rows);
    }
}

static void a_larger_share_never_gets_less(void **state) {
    (void)state;
    uint32_t before = 0;
    for (int i = 0; i <= 1000; i++) {
        fm__range ranges[2];
        fm__split(4864, 32, (const double[]){i, 1000 - i}, 2, ranges);
        assert_true(ranges[0].end >= before);
        before = ranges[0].end;
    }
    assert_int_equal(before, 4864);
}

/* ---- plans ---- */

static fm__device *make_null(const char *refuse) {
    fm__device *device = NULL;
    CHECK(fm__device_null_create(
        &device, &(fm__null_options){.memory_bytes = 1 << 20, .refuse_op = refuse}, why));
    return device;
}

static bool is_product(const fm__op *op) {
    return op->kind == FM__OP_LINEAR || op->kind == FM__OP_LINEAR_GLU;
}

static void without_shares_unit_0_takes_all(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *units[2] = {make_null(NULL), make_null(NULL)};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, NULL, why));
    assert_int_equal(plan->n_op, m.tape->n_op);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        assert_int_equal(plan->ops[i].axis, FM__AXIS_WHOLE);
        assert_int_equal(plan->ops[i].n_range, 1);
        assert_int_equal(plan->ops[i].ranges[0].unit, 0);
        assert_true(strlen(plan->ops[i].reason) > 0);
    }
    fm__plan_destroy(&plan);
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void shares_cut_products_by_channels(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *units[2] = {make_null(NULL), make_null(NULL)};
    const fm__plan_options options = {.shares = {3, 1}};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    int split = 0;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        const fm__plan_op *op = &plan->ops[i];
        bool product = is_product(&m.tape->ops[i]);
        uint32_t n = product ? m.tape->weights[m.tape->ops[i].weight[0]]->n : 0;
        /* Of 64 columns in steps of 32, a quarter rounds to nothing. */
        assert_true((op->axis == FM__AXIS_CHANNELS) == (product && n > 64));
        if (op->axis == FM__AXIS_WHOLE) {
            assert_int_equal(op->n_range, 1);
            assert_int_equal(op->ranges[0].unit, 0);
            continue;
        }
        assert_int_equal(op->n_range, 2);
        assert_int_equal(op->ranges[0].range.begin, 0);
        assert_int_equal(op->ranges[0].range.end, op->ranges[1].range.begin);
        assert_int_equal(op->ranges[1].range.end, n);
        assert_int_equal(op->ranges[0].range.end % 32, 0);
        split++;
    }
    assert_int_equal(split, MODEL_LAYERS * 4 + 1);
    fm__buf text = {0};
    fm__plan_print(plan, m.tape, units, &text);
    assert_non_null(strstr(text.data, "linear blk.0.attn_q.weight"));
    assert_non_null(strstr(text.data, "[0, 192)"));
    assert_non_null(strstr(text.data, "[192, 256)"));
    assert_non_null(strstr(text.data, "split by channels\n"));
    fm__buf_finish(&text);
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void tokens_are_an_axis_too(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *units[2] = {make_null(NULL), make_null(NULL)};
    fm__plan_options options = {.shares = {1, 1}, .axis = FM__AXIS_TOKENS};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (m.tape->ops[i].kind == FM__OP_LINEAR) {
            assert_int_equal(plan->ops[i].axis, FM__AXIS_TOKENS);
            assert_int_equal(plan->ops[i].ranges[0].range.end, FM__TOKEN_PARTS / 2);
            assert_int_equal(plan->ops[i].ranges[1].range.end, FM__TOKEN_PARTS);
        }
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* By tokens, in one memory, all that the layers do is divided at the same rows: nobody waits for
   another but in attention. */
static void tokens_divide_every_op_of_the_layers(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(NULL), make_null(NULL)};
    fm__plan_options options = {.shares = {3, 1}, .axis = FM__AXIS_TOKENS};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    for (uint32_t i = 0; i < plan->n_op; i++) {
        const fm__op *op = &m.tape->ops[i];
        bool layers = fm__op_rows(m.tape, op) == FM__ROWS_BATCH;
        assert_int_equal(plan->ops[i].axis,
                         layers || is_product(op) ? FM__AXIS_TOKENS : FM__AXIS_WHOLE);
        if (plan->ops[i].axis == FM__AXIS_TOKENS)
            assert_int_equal(plan->ops[i].ranges[0].range.end, FM__TOKEN_PARTS / 4 * 3);
    }
    fm__exec *exec = NULL;
    CHECK(fm__exec_create(&exec, m.tape, plan, units, 2, why));
    fm__exec_span spans[64];
    uint32_t n = fm__exec_spans(exec, spans, 64), of_last = 0;
    assert_in_range(n, 1, 64);
    for (uint32_t i = 0; i < n; i++) {
        if (spans[i].unit == 0)
            continue;
        of_last++;
        /* Each piece ends with keys and values, but the last layer's, and the logits. */
        if (of_last <= MODEL_LAYERS)
            assert_int_equal(m.tape->ops[spans[i].last_op].kind, FM__OP_KV_STORE);
        if (of_last > 1 && of_last <= MODEL_LAYERS + 1)
            assert_int_equal(m.tape->ops[spans[i].first_op].kind, FM__OP_ATTENTION);
    }
    assert_int_equal(of_last, MODEL_LAYERS + 2);
    fm__exec_destroy(&exec);
    fm__plan_destroy(&plan);

    /* The producer of a product may have to stay where it is. */
    options.products_only = true;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    for (uint32_t i = 0; i < plan->n_op; i++)
        assert_int_equal(plan->ops[i].n_range, is_product(&m.tape->ops[i]) ? 2 : 1);
    fm__plan_destroy(&plan);
    options.products_only = false;

    /* Where the main unit has a memory of its own it keeps what it has, though others share. */
    fm__device *discrete = make_null(NULL), *three[3] = {discrete, units[0], units[1]};
    discrete->properties.unified = false;
    options.shares[0] = 0;
    options.shares[2] = 1;
    CHECK(fm__plan_make(&plan, m.tape, three, 3, &options, why));
    for (uint32_t i = 0; i < plan->n_op; i++)
        assert_int_equal(plan->ops[i].n_range, is_product(&m.tape->ops[i]) ? 2 : 1);
    fm__plan_destroy(&plan);
    fm__device_destroy(&discrete);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* A unit that lacks a kernel keeps its share of everything else. */
static void one_missing_kernel_moves_one_op(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(NULL), make_null("rope")};
    const fm__plan_options options = {.shares = {1, 1}, .axis = FM__AXIS_TOKENS};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (fm__op_rows(m.tape, &m.tape->ops[i]) == FM__ROWS_BATCH)
            assert_int_equal(plan->ops[i].n_range, 1 + (m.tape->ops[i].kind != FM__OP_ROPE));
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* Where nobody says otherwise: tokens for host teams and many rows, shares of the work; the few
   rows of the outputs by channels. */
static void many_rows_are_divided_by_tokens(void **state) {
    (void)state;
    for (uint32_t rows = 64; rows <= 512; rows *= 2) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q8_0, rows, 2);
        fm__device *units[2] = {make_null(NULL), make_null(NULL)};
        fm__plan_options options = {.shares = {1, 1}};
        fm__plan *plan = NULL;
        CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
        uint32_t border = plan->ops[0].ranges[0].range.end; /* 0: EMBED is not divided */
        if (rows < 128)
            assert_int_equal(border, 0);
        else /* the first unit's rows see fewer keys */
            assert_in_range(border, FM__TOKEN_PARTS / 2 + 1, FM__TOKEN_PARTS / 10 * 7);
        assert_int_equal(fm__token_border(rows, border) % 8, 0); /* in whole tiles of tokens */
        for (uint32_t i = 0; i < plan->n_op; i++) {
            const fm__op *op = &m.tape->ops[i];
            bool outputs = fm__op_rows(m.tape, op) == FM__ROWS_OUTPUT;
            fm__axis want = border > 0 && !outputs ? FM__AXIS_TOKENS
                            : is_product(op)       ? FM__AXIS_CHANNELS
                                                   : FM__AXIS_WHOLE;
            assert_int_equal(plan->ops[i].axis, want);
            if (want == FM__AXIS_TOKENS)
                assert_int_equal(plan->ops[i].ranges[0].range.end, border);
        }
        fm__plan_destroy(&plan);
        m.f.groups[0].window = 1; /* every row sees one key: nothing to balance */
        CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
        if (rows >= 128)
            assert_in_range(plan->ops[0].ranges[0].range.end, FM__TOKEN_PARTS / 2 - 1,
                            FM__TOKEN_PARTS / 2 + 1);
        fm__plan_destroy(&plan);
        fm__device_destroy(&units[1]);
        fm__device_destroy(&units[0]);
        model_finish(&m);
    }
}

/* Shares op by op become one for all ops, by the products' work. */
static void op_shares_become_one_share(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[3] = {make_null(NULL), make_null(NULL), make_null(NULL)};
    double(*shares)[FM__MAX_UNITS] = fm__alloc_zero(m.tape->n_op * sizeof *shares);
    assert_non_null(shares);
    double all = 0, first = 0;
    for (uint32_t i = 0; i < m.tape->n_op; i++) {
        const fm__op *op = &m.tape->ops[i];
        shares[i][i % 2 * 2] = 1 + i % 5; /* whole products, to the first or the last unit */
        if (!is_product(op) || fm__op_rows(m.tape, op) == FM__ROWS_OUTPUT)
            continue;
        const fm__weight *w = m.tape->weights[op->weight[0]];
        double work = (double)w->n * w->k * (op->kind == FM__OP_LINEAR_GLU ? 2 : 1);
        all += work;
        first += i % 2 == 0 ? work : 0;
    }
    const fm__plan_options options = {.op_shares = (const double(*)[FM__MAX_UNITS])shares,
                                      .axis = FM__AXIS_TOKENS};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 3, &options, why));
    uint32_t want = (uint32_t)(first / all * FM__TOKEN_PARTS + 0.5);
    assert_in_range(want, 1, FM__TOKEN_PARTS - 1);
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (fm__op_rows(m.tape, &m.tape->ops[i]) == FM__ROWS_BATCH &&
            m.tape->ops[i].kind != FM__OP_SELECT) {
            assert_int_equal(plan->ops[i].n_range, 2);
            assert_int_equal(plan->ops[i].ranges[0].range.end, want);
            assert_int_equal(plan->ops[i].ranges[1].unit, 2);
        }
    fm__plan_destroy(&plan);
    fm__free(shares);
    for (int u = 0; u < 3; u++)
        fm__device_destroy(&units[u]);
    model_finish(&m);
}

static void unsupported_ops_move_or_are_refused(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *units[2] = {make_null("attention"), make_null("rmsnorm")};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, NULL, why));
    for (uint32_t i = 0; i < plan->n_op; i++)
        assert_int_equal(plan->ops[i].ranges[0].unit, m.tape->ops[i].kind == FM__OP_ATTENTION);
    fm__plan_destroy(&plan);
    fm_error error = {0};
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 1, NULL, &error), FM_ERROR_UNSUPPORTED);
    assert_string_equal(error.place, "attention q of layer 0");
    assert_non_null(strstr(error.message, "refused by its options"));
    assert_null(plan);
    units[1]->properties.unified = false; /* its results would need copies */
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 2, NULL, &error), FM_ERROR_UNSUPPORTED);
    assert_null(plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *units[1] = {make_null(NULL)};
    fm__plan *plan = NULL;
    fm_error error = {0};
    static const fm__plan_options bad[] = {
        {.shares = {-1}}, {.shares = {0.0 / 1.0, 1}}, {.shares = {1e300}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_not_equal(fm__plan_make(&plan, m.tape, units, 1, &bad[i], &error), FM_OK);
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 0, NULL, &error), FM_ERROR_ARGUMENT);
    for (uint64_t n = 1; n <= 2; n++) {
        fm__alloc_fail_after(n);
        assert_int_equal(fm__plan_make(&plan, m.tape, units, 1, NULL, &error), FM_ERROR_MEMORY);
    }
    fm__alloc_fail_after(0);
    m.tape->finished = false;
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 1, NULL, &error), FM_ERROR_STATE);
    assert_null(plan);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worked_table_holds),
        cmocka_unit_test(splits_cover_all_in_granules),
        cmocka_unit_test(a_larger_share_never_gets_less),
        cmocka_unit_test(without_shares_unit_0_takes_all),
        cmocka_unit_test(shares_cut_products_by_channels),
        cmocka_unit_test(tokens_are_an_axis_too),
        cmocka_unit_test(tokens_divide_every_op_of_the_layers),
        cmocka_unit_test(one_missing_kernel_moves_one_op),
        cmocka_unit_test(many_rows_are_divided_by_tokens),
        cmocka_unit_test(op_shares_become_one_share),
        cmocka_unit_test(unsupported_ops_move_or_are_refused),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
