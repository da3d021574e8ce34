/* SPDX-License-Identifier: Apache-2.0 */
/* Recording, the check of every op kind, printing and describing, dependencies. */
#include "fixture.h"

static void a_model_passes_and_prints(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q4_K, 8, 2);
    assert_true(m.tape->finished);
    assert_int_equal(m.tape->token_limit, MODEL_VOCAB);
    assert_int_equal(m.tape->position_limit, MODEL_POSITIONS);
    assert_int_equal(m.tape->group_mask, 1);
    fm__buf text = {0};
    fm__tape_print(m.tape, &text);
    assert_false(text.failed);
    size_t lines = 0;
    for (size_t i = 0; i < text.bytes; i++)
        lines += text.data[i] == '\n';
    assert_int_equal(lines, m.tape->n_op + 2);
    assert_non_null(strstr(text.data, "blk.0.attn_q.weight q8_0[256][256]"));
    assert_non_null(strstr(text.data, "halves, 2 heads of 32, 32 rotated"));
    fm__buf_finish(&text);
    model_finish(&m);
}

static uint32_t find_op(const fm__tape *tape, fm__op_kind kind, int nth) {
    for (uint32_t i = 0; i < tape->n_op; i++)
        if (tape->ops[i].kind == kind && nth-- == 0)
            return i;
    fail_msg("no such op");
    return 0;
}

static void ops_are_described(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q4_K, 8, 2);
    char text[96];
    fm__op_describe(m.tape, find_op(m.tape, FM__OP_LINEAR, 0), text, sizeof text);
    assert_string_equal(text, "linear blk.0.attn_q.weight");
    fm__op_describe(m.tape, find_op(m.tape, FM__OP_ATTENTION, 1), text, sizeof text);
    assert_string_equal(text, "attention q of layer 1");
    fm__op_describe(m.tape, find_op(m.tape, FM__OP_ROPE, 1), text, sizeof text);
    assert_string_equal(text, "rope k of layer 0");
    fm__op_describe(m.tape, find_op(m.tape, FM__OP_QUANTISE, 0), text, 12);
    assert_string_equal(text, "quantise h ");
    fm__op_describe(m.tape, 100000, text, sizeof text);
    assert_string_equal(text, "op 100000");
    for (int k = 0; k < FM__OP_COUNT; k++)
        assert_true(strlen(fm__op_name((fm__op_kind)k)) >= 3);
    model_finish(&m);
}

/* Each damage, alone, makes the finished model fail, naming the op. */
typedef void damage(model *m, fm__op *op);

static void no_out(model *m, fm__op *op) {
    (void)m;
    op->out = FM__NONE;
}
static void wild_out(model *m, fm__op *op) {
    op->out = (int16_t)m->tape->n_tensor;
}
static void wild_in(model *m, fm__op *op) {
    (void)m;
    op->in[0] = -7;
}
static void wild_weight(model *m, fm__op *op) {
    op->weight[0] = (int16_t)m->f.n_weight;
}
static void wrong_role(model *m, fm__op *op) {
    op->weight[0] = op->kind == FM__OP_LINEAR ? m->embed : m->output;
}
static void spare_weight(model *m, fm__op *op) {
    op->weight[1] = m->output;
}
static void extra_bias(model *m, fm__op *op) {
    op->bias = m->cos;
}
static void in_is_out(model *m, fm__op *op) {
    (void)m;
    op->in[0] = op->out;
}
static void zero_group(model *m, fm__op *op) {
    (void)m;
    op->group = 0;
}
static void odd_group(model *m, fm__op *op) {
    (void)m;
    op->group = 100;
}
static void nan_eps(model *m, fm__op *op) {
    (void)m;
    op->eps = (float)(0.0 / 0.0 * 1);
}
static void fast_class(model *m, fm__op *op) {
    (void)m;
    op->fast = 2;
}
static void odd_rotary(model *m, fm__op *op) {
    (void)m;
    op->rotary = 7;
}
static void many_heads(model *m, fm__op *op) {
    (void)m;
    op->heads *= 2;
}
static void odd_heads(model *m, fm__op *op) {
    (void)m;
    op->heads = 7;
}
static void wild_group(model *m, fm__op *op) {
    (void)m;
    op->cache_group = 1;
}
static void wild_layer(model *m, fm__op *op) {
    (void)m;
    op->cache_layer = MODEL_LAYERS;
}
static void wild_kind(model *m, fm__op *op) {
    (void)m;
    op->kind = FM__OP_COUNT;
}
static void float_input(model *m, fm__op *op) {
    (void)m;
    op->in[0] = 1; /* the norm's floats, not the quantised ones */
}
static void grouped_weight(model *m, fm__op *op) {
    m->f.weights[op->weight[0]]->groups = 2;
}
static void unlike_up(model *m, fm__op *op) {
    op->weight[1] = m->layers[0].q;
}
static void wild_glu(model *m, fm__op *op) {
    (void)m;
    op->glu = (fm__glu)9;
}
static void short_rows(model *m, fm__op *op) {
    m->f.weights[op->weight[0]]->row_bytes--;
}

static void every_damage_is_named(void **state) {
    (void)state;
    static const struct {
        fm__op_kind kind;
        damage *damage;
    } cases[] = {
        {FM__OP_EMBED, no_out},         {FM__OP_EMBED, wrong_role},
        {FM__OP_EMBED, short_rows},     {FM__OP_EMBED, wild_kind},
        {FM__OP_RMSNORM, wild_in},      {FM__OP_RMSNORM, zero_group},
        {FM__OP_RMSNORM, odd_group},    {FM__OP_RMSNORM, nan_eps},
        {FM__OP_RMSNORM, extra_bias},   {FM__OP_QUANTISE, in_is_out},
        {FM__OP_QUANTISE, wild_out},    {FM__OP_LINEAR, wild_weight},
        {FM__OP_LINEAR, wrong_role},    {FM__OP_LINEAR, spare_weight},
        {FM__OP_LINEAR, extra_bias},    {FM__OP_LINEAR, fast_class},
        {FM__OP_LINEAR, float_input},   {FM__OP_LINEAR, grouped_weight},
        {FM__OP_LINEAR, in_is_out},     {FM__OP_LINEAR_GLU, unlike_up},
        {FM__OP_LINEAR_GLU, wild_glu},  {FM__OP_LINEAR_GLU, extra_bias},
        {FM__OP_ROPE, odd_rotary},      {FM__OP_ROPE, many_heads},
        {FM__OP_ROPE, wrong_role},      {FM__OP_KV_STORE, wild_group},
        {FM__OP_KV_STORE, wild_layer},  {FM__OP_KV_STORE, wild_in},
        {FM__OP_ATTENTION, odd_heads},  {FM__OP_ATTENTION, many_heads},
        {FM__OP_ATTENTION, wild_layer}, {FM__OP_ATTENTION, in_is_out},
        {FM__OP_SELECT, wild_in},       {FM__OP_SELECT, in_is_out},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, 4, 1);
        uint32_t at = find_op(m.tape, cases[i].kind, 0);
        cases[i].damage(&m, &m.tape->ops[at]);
        fm_error error = {0};
        char place[16];
        snprintf(place, sizeof place, "op %u: ", at);
        if (fm__tape_finish(m.tape, &error) != FM_ERROR_ARGUMENT ||
            strncmp(error.place, place, strlen(place)) != 0)
            fail_msg("case %zu: %s: %s", i, error.place, error.message);
        assert_false(m.tape->finished);
        model_finish(&m);
    }
}

/* A gate and an up in tensors of their own: shapes, classes and the function are checked. */
static void glu_is_checked(void **state) {
    (void)state;
    static const struct {
        uint32_t up_cols;
        fm__glu glu;
        fm_status status;
    } cases[] = {{64, FM__GLU_GELU, FM_OK},
                 {64, (fm__glu)9, FM_ERROR_ARGUMENT},
                 {32, FM__GLU_SILU, FM_ERROR_ARGUMENT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        fixture_init(&f, 1);
        int16_t table = fixture_gather(&f, "table", FM__F32, 9, 64);
        int16_t narrow = fixture_gather(&f, "narrow", FM__F32, 9, 32);
        fm__tape *tape = fixture_tape(&f, 4, 1);
        int16_t gate =
            fm__tape_tensor(tape, "gate", FM__ACT_F32, 64, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
        int16_t up = fm__tape_tensor(tape, "up", FM__ACT_F32, cases[i].up_cols, FM__ROWS_BATCH,
                                     FM__SLOT_SCRATCH);
        int16_t out =
            fm__tape_tensor(tape, "out", FM__ACT_F32, 64, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
        fm__op *op = fm__tape_op(tape, FM__OP_EMBED, 0);
        op->out = gate;
        op->weight[0] = table;
        op = fm__tape_op(tape, FM__OP_EMBED, 0);
        op->out = up;
        op->weight[0] = cases[i].up_cols == 64 ? table : narrow;
        op = fm__tape_op(tape, FM__OP_GLU, 0);
        op->in[0] = gate;
        op->in[1] = up;
        op->out = out;
        op->glu = cases[i].glu;
        fm_error error = {0};
        assert_int_equal(fm__tape_finish(tape, &error), cases[i].status);
        if (cases[i].status == FM_OK)
            assert_int_equal(fm__tape_depends(tape, 1, 2), FM__DEPENDENCE_ROWS);
        else
            assert_non_null(strstr(error.place, "op 2: "));
        fm__tape_destroy(&tape);
        fixture_finish(&f);
    }
}

static void reading_before_writing_is_refused(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 1);
    int16_t norm = fixture_vector(&f, "norm", 1, 64, true);
    fm__tape *tape = fixture_tape(&f, 4, 1);
    int16_t a = fm__tape_tensor(tape, "a", FM__ACT_F32, 64, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    int16_t b = fm__tape_tensor(tape, "b", FM__ACT_F32, 64, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(tape, FM__OP_RMSNORM, 0);
    op->in[0] = a;
    op->out = b;
    op->weight[0] = norm;
    op->group = 64;
    fm_error error = {0};
    assert_int_equal(fm__tape_finish(tape, &error), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "reads a"));
    fm__tape_destroy(&tape);
    assert_null(tape);
    fm__tape_destroy(&tape);
    fixture_finish(&f);
}

static void bounds_and_limits(void **state) {
    (void)state;
    fm__tape *tape = NULL;
    fm_error error = {0};
    assert_int_equal(fm__tape_create(&tape, 0, 0, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm__tape_create(&tape, 2, 3, &error), FM_ERROR_ARGUMENT);
    CHECK(fm__tape_create(&tape, UINT32_MAX, 1, why));
    assert_int_equal(fm__tape_finish(tape, &error), FM_ERROR_ARGUMENT); /* no op */
    fm__tape_tensor(tape, "t", FM__ACT_F32, 0, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__tape_op(tape, FM__OP_SELECT, 0);
    assert_int_equal(fm__tape_finish(tape, &error), FM_ERROR_ARGUMENT); /* no columns */
    assert_string_equal(error.place, "t");
    while (fm__tape_tensor(tape, "t", FM__ACT_F32, 1, FM__ROWS_BATCH, FM__SLOT_SCRATCH) != FM__NONE)
        assert_true(tape->n_tensor <= INT16_MAX);
    assert_true(tape->failed);
    assert_int_equal(fm__tape_finish(tape, &error), FM_ERROR_MEMORY);
    fm__tape_destroy(&tape);
}

static void failing_allocations_stick(void **state) {
    (void)state;
    fm_error error;
    fm__tape *tape = NULL;
    for (uint64_t n = 1; n <= 3; n++) {
        fm__alloc_fail_after(n);
        assert_int_equal(fm__tape_create(&tape, 4, 1, &error), FM_ERROR_MEMORY);
        assert_null(tape);
    }
    fm__alloc_fail_after(0);
    CHECK(fm__tape_create(&tape, 4, 1, why));
    fm__alloc_fail_after(1);
    for (int i = 0; i < 200; i++)
        assert_non_null(fm__tape_op(tape, FM__OP_SELECT, i)); /* a spare one once memory is out */
    fm__alloc_fail_after(0);
    assert_true(tape->failed);
    assert_int_equal(fm__tape_finish(tape, &error), FM_ERROR_MEMORY);
    fm__tape_destroy(&tape);
}

static void dependencies_of_a_layer(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 8, 2);
    const fm__tape *t = m.tape;
    uint32_t norm = find_op(t, FM__OP_RMSNORM, 0), quantise = find_op(t, FM__OP_QUANTISE, 0);
    uint32_t q = find_op(t, FM__OP_LINEAR, 0), k = find_op(t, FM__OP_LINEAR, 1);
    uint32_t rope_q = find_op(t, FM__OP_ROPE, 0), rope_k = find_op(t, FM__OP_ROPE, 1);
    uint32_t store = find_op(t, FM__OP_KV_STORE, 0);
    uint32_t attention = find_op(t, FM__OP_ATTENTION, 0);
    assert_int_equal(fm__tape_depends(t, 0, norm), FM__DEPENDENCE_ROWS);
    assert_int_equal(fm__tape_depends(t, norm, quantise), FM__DEPENDENCE_ROWS);
    assert_int_equal(fm__tape_depends(t, quantise, q), FM__DEPENDENCE_FULL);
    assert_int_equal(fm__tape_depends(t, q, k), FM__DEPENDENCE_NONE);
    assert_int_equal(fm__tape_depends(t, q, rope_q), FM__DEPENDENCE_FULL);
    assert_int_equal(fm__tape_depends(t, rope_q, rope_k), FM__DEPENDENCE_NONE);
    assert_int_equal(fm__tape_depends(t, rope_k, store), FM__DEPENDENCE_ROWS);
    assert_int_equal(fm__tape_depends(t, store, attention), FM__DEPENDENCE_FULL);
    uint32_t select = find_op(t, FM__OP_SELECT, 0);
    assert_int_equal(fm__tape_depends(t, select - 1, select), FM__DEPENDENCE_FULL);
    assert_int_equal(fm__tape_depends(t, select, select + 1), FM__DEPENDENCE_FULL);
    model_finish(&m);
}

/* From the look-up to the last layer rows meet in attention and in SELECT only, whatever memory
   their tensors share. */
static void rows_mix_in_attention_only(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q4_K, FM__F16, 8, 2);
    const fm__tape *t = m.tape;
    uint32_t select = find_op(t, FM__OP_SELECT, 0);
    for (uint32_t i = 0; i < select; i++)
        for (uint32_t j = 0; j < i; j++) {
            bool cached = t->ops[j].kind == FM__OP_KV_STORE && t->ops[i].kind == FM__OP_ATTENTION &&
                          t->ops[j].cache_layer == t->ops[i].cache_layer;
            assert_int_equal(fm__tape_mixes_rows(t, j, i), cached);
            if (cached)
                assert_int_equal(fm__tape_depends(t, j, i), FM__DEPENDENCE_FULL);
        }
    assert_true(fm__tape_mixes_rows(t, select - 1, select));
    model_finish(&m);
}

/* Two tensors that share memory order the ops that use them, though no op names both. */
static void shared_memory_is_a_dependency(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 8, 2);
    const fm__tape *t = m.tape;
    int found = 0;
    for (uint32_t i = 0; i < t->n_op; i++)
        for (uint32_t j = 0; j < i; j++) {
            int16_t a = t->ops[j].in[0], b = t->ops[i].out;
            if (a == FM__NONE || b == FM__NONE || a == b || t->ops[i].in[0] == t->ops[j].out ||
                t->tensors[a].slot != t->tensors[b].slot ||
                t->tensors[a].offset != t->tensors[b].offset)
                continue;
            assert_int_not_equal(fm__tape_depends(t, j, i), FM__DEPENDENCE_NONE);
            found++;
        }
    assert_true(found > 0);
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_passes_and_prints),
        cmocka_unit_test(ops_are_described),
        cmocka_unit_test(every_damage_is_named),
        cmocka_unit_test(glu_is_checked),
        cmocka_unit_test(reading_before_writing_is_refused),
        cmocka_unit_test(bounds_and_limits),
        cmocka_unit_test(failing_allocations_stick),
        cmocka_unit_test(dependencies_of_a_layer),
        cmocka_unit_test(rows_mix_in_attention_only),
        cmocka_unit_test(shared_memory_is_a_dependency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
