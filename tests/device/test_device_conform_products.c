/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LINEAR and LINEAR_GLU on every device of this machine, bit for bit: every weight type with
 * extreme codes and scales, extreme activations, sizes off every tile, biases, residuals in place
 * and apart, ranges of channels and of tokens; and whole models, replayed.
 */
#include "conform.h"
#include "kernels/kernels.h"

typedef struct product_case {
    uint32_t n, rows, blocks; /* k = blocks * the type's block (of 37 for floats) */
    bool bias, glu;
    int residual; /* 2: in place */
    fm__axis axis;
    test_weight weight;
    test_row row;
} product_case;

static int16_t matrix(trial *t, const char *name, const fm__type *type, uint32_t n, uint32_t k,
                      test_weight kind) {
    int16_t id;
    fm__weight *w = fixture_weight(&t->f, name, FM__ROLE_LINEAR, &id);
    w->type = type;
    w->n = n;
    w->k = k;
    w->layout = fm__panel_layout_of(type, k);
    w->panels = (n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    w->bytes = w->panels * w->layout.stride;
    uint8_t *panels = fixture_alloc(&t->f, w->bytes + 64);
    panels += (64 - (uintptr_t)panels % 64) % 64;
    test_panels_fill(&t->f.random, type, kind, k, w->panels, panels);
    w->host = panels;
    return id;
}

static void add_product(trial *t, const product_case *c, const fm__type *type, int16_t x,
                        int16_t residual, int16_t y) {
    uint32_t k = t->tape->tensors[x].cols;
    int16_t weight = matrix(t, "w", type, c->n, k, c->weight), up = FM__NONE, act = x;
    if (c->glu)
        up = matrix(t, "up", type, c->n, k, TEST_WEIGHT_RANDOM);
    int16_t bias = c->bias ? fixture_vector(&t->f, "bias", 1, c->n, false) : FM__NONE;
    t->tape->n_weight = t->f.n_weight;
    act = trial_tensor(t, "act", type->act[0], k, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(t->tape, FM__OP_QUANTISE, 0);
    op->in[0] = x;
    op->out = act;
    op = fm__tape_op(t->tape, c->glu ? FM__OP_LINEAR_GLU : FM__OP_LINEAR, 0);
    op->in[0] = act;
    op->in[1] = residual;
    op->out = y;
    op->weight[0] = weight;
    op->weight[1] = up;
    op->bias = bias;
    op->glu = c->rows % 2 != 0 ? FM__GLU_GELU : FM__GLU_SILU;
}

static void split_product(trial *t, const product_case *c) {
    if (c->axis == FM__AXIS_TOKENS)
        trial_halve(t, 30000);
    if (c->axis == FM__AXIS_CHANNELS) {
        uint32_t border = (c->n / 2 + 15) / 16 * 16, op = t->first_op + 1;
        t->ranges[1] = (fm__op_range){op, FM__AXIS_CHANNELS, 0, border, 0, 0};
        t->ranges[2] = (fm__op_range){op, FM__AXIS_CHANNELS, border, c->n, 0, 0};
        t->n_range = 3;
    }
}

static void product_trial(const product_case *c, const fm__type *type) {
    uint32_t k = c->blocks * (type->block == 1 ? 37 : type->block);
    trial t;
    trial_init(&t, c->n * 31 + c->rows);
    fixture_batch(&t.f, c->rows, 0, TRIAL_VOCAB, 0);
    trial_tape(&t, c->rows + c->rows % 3, 0);
    int16_t x = trial_input(&t, "x", k, FM__ROWS_BATCH), residual = FM__NONE;
    if (c->residual != 0)
        residual = trial_input(&t, "r", c->n, FM__ROWS_BATCH);
    int16_t y = c->residual == 2
                    ? residual
                    : trial_tensor(&t, "y", FM__ACT_F32, c->n, FM__ROWS_BATCH, FM__SLOT_OUTPUT);
    add_product(&t, c, type, x, residual, y);
    trial_ready(&t);
    for (uint32_t r = 0; r < c->rows; r++) {
        test_row kind = r == 0 ? c->row : (test_row)((c->row + r) % TEST_ROW_TINY);
        test_row_fill(&t.f.random, kind, trial_row(&t, x, r), k);
        if (residual != FM__NONE)
            test_row_fill(&t.f.random, TEST_ROW_NORMAL, trial_row(&t, residual, r), c->n);
    }
    trial_check(&t, y);
    split_product(&t, c);
    trial_run(&t);
    trial_finish(&t);
}

static void products_of_every_type(void **state) {
    (void)state;
    static const product_case cases[] = {
        {16, 1, 5, false, false, 0, FM__AXIS_WHOLE, TEST_WEIGHT_RANDOM, TEST_ROW_NORMAL},
        {33, 3, 1, true, false, 1, FM__AXIS_WHOLE, TEST_WEIGHT_HIGHEST, TEST_ROW_SATURATED},
        {47, 33, 2, true, false, 2, FM__AXIS_CHANNELS, TEST_WEIGHT_LOWEST, TEST_ROW_ALIKE},
        {31, 9, 5, false, true, 0, FM__AXIS_WHOLE, TEST_WEIGHT_MIXED, TEST_ROW_TIES},
        {100, 2, 3, false, false, 2, FM__AXIS_CHANNELS, TEST_WEIGHT_CANCEL, TEST_ROW_TINY},
        {65, 65, 1, false, false, 0, FM__AXIS_TOKENS, TEST_WEIGHT_MIXED, TEST_ROW_COLUMN},
        {1, 7, 6, false, true, 0, FM__AXIS_WHOLE, TEST_WEIGHT_RANDOM, TEST_ROW_LADDER},
    };
    for (size_t i = 0; i < fm__type_count();
         i++) /* every other case: kernels take time to compile */
        for (size_t j = i % 2; j < sizeof cases / sizeof *cases; j += 2)
            product_trial(&cases[j], fm__type_at(i));
}

/* K over several segments of 1024, and more columns and tokens than one tile. */
static void large_products(void **state) {
    (void)state;
    static const product_case cases[] = {
        {150, 8, 10, true, false, 1, FM__AXIS_WHOLE, TEST_WEIGHT_RANDOM, TEST_ROW_LADDER},
        {320, 64, 9, false, true, 0, FM__AXIS_CHANNELS, TEST_WEIGHT_RANDOM, TEST_ROW_NORMAL},
    };
    static const int types[] = {FM__TYPE_Q4_K, FM__TYPE_Q6_K};
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++)
            product_trial(&cases[j], fm__type_at((size_t)types[i]));
    product_case long_rows = cases[0];
    long_rows.blocks = 70;
    product_trial(&long_rows, fm__type_at(FM__TYPE_Q8_0));
    product_trial(&long_rows, fm__type_at(FM__TYPE_F16));
}

/* ---- whole models ---- */

/* The model's cache and outputs after three replays of one recording. */
static void model_trial(fm__dtype a, fm__dtype b, const subject *s) {
    model m;
    model_init(&m, a, b, 24, 3);
    trial t = {.f = m.f, .tape = m.tape};
    fixture_batch(&t.f, 23, 0, MODEL_VOCAB, 3);
    t.tape->weights = t.f.weights;
    t.tape->groups = t.f.groups;
    trial_ready(&t);
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++)
        memset(t.in.slots[slot], 0, t.bytes[slot]);
    trial_check(&t, t.tape->hidden);
    trial_check(&t, t.tape->logits);
    trial_expect(&t);
    subject_run r;
    subject_run_init(&t, s, &r);
    subject_execute(&t, s, &r, 3); /* the same rows again change nothing */
    assert_true(r.status.first == UINT64_MAX);
    check_slot(&t, s, &r, FM__SLOT_OUTPUT);
    check_slot(&t, s, &r, FM__SLOT_CACHE);
    subject_run_finish(&t, &r);
    trial_finish(&t);
}

static void models_replayed(void **state) {
    (void)state;
    for (uint32_t i = 0; i < all_subjects.n; i++)
        if (all_subjects.list[i].computes) {
            model_trial(FM__Q8_0, FM__Q4_K, &all_subjects.list[i]);
            model_trial(FM__F32, FM__F16, &all_subjects.list[i]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_every_type),
        cmocka_unit_test(large_products),
        cmocka_unit_test(models_replayed),
    };
    return cmocka_run_group_tests(tests, subjects_open, subjects_close);
}
