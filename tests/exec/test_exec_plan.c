/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: who can run what by where the weights lie; copies, no more than needed; the table and the
 * JSON.
 */
#include <jansson.h>

#include "exec_support.h"

static fm__device *make_null(bool discrete) {
    fm__device *device = NULL;
    const fm__null_options options = {.memory_bytes = 1 << 26, .discrete = discrete};
    CHECK(fm__device_null_create(&device, &options, why));
    return device;
}

/* A null device that needs its weights in buffers of its own. */
static fm__device *make_gpu(bool discrete) {
    static fm__device_vtable vtable;
    fm__device *device = make_null(discrete);
    vtable = *device->vtable;
    vtable.backend = "gpu";
    device->vtable = &vtable;
    snprintf(device->properties.name, sizeof device->properties.name, "gpu");
    return device;
}

/* ---- copies ---- */

typedef struct total {
    uint32_t n;
    size_t row_bytes; /* of whole copies and columns; rows count as part of a whole */
} total;

static total count_copies(const fm__plan *plan, const fm__tape *tape, fm__copy kind, fm__act act) {
    total t = {0};
    for (uint32_t i = 0; i < plan->n_copy; i++) {
        const fm__plan_copy *c = &plan->copies[i];
        assert_int_equal(c->unit, 0);
        assert_int_equal(tape->tensors[c->tensor].slot, FM__SLOT_SCRATCH);
        assert_true(i == 0 || plan->copies[i - 1].op <= c->op);
        if (c->copy != kind ||
            (tape->tensors[c->tensor].act == FM__ACT_F32) != (act == FM__ACT_F32))
            continue;
        t.n++;
        t.row_bytes += fm__plan_copy_row_bytes(tape, c);
    }
    return t;
}

static fm__plan *plan_discrete(const model *m, fm__device *units[2], double host, fm__axis axis) {
    fm__plan *plan = NULL;
    const fm__plan_options options = {.shares = {1 - host, host}, .axis = axis};
    CHECK(fm__plan_make(&plan, m->tape, units, 2, &options, why));
    return plan;
}

static size_t act_bytes(const fm__tape *tape, uint32_t cols) {
    for (uint32_t i = 0; i < tape->n_tensor; i++)
        if (tape->tensors[i].act != FM__ACT_F32 && tape->tensors[i].cols == cols)
            return tape->tensors[i].layout.stride;
    fail();
    return 0;
}

/* A quarter of each product on the host. A layer: quantised rows for q, o, gate/up and down go to
   the host; a quarter of q, x, gate/up and x comes back. The host's quarter of x stays with it:
   only the first layer's comes from the device, which looked it up. */
static void channels_cost_what_they_must(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    fm__plan *plan = plan_discrete(&m, units, 0.25, FM__AXIS_CHANNELS);
    size_t embd = act_bytes(m.tape, MODEL_EMBD), ff = act_bytes(m.tape, MODEL_FF);
    total acts = count_copies(plan, m.tape, FM__COPY_TO_HOST, FM__ACT_Q8_32);
    assert_int_equal(acts.n, 4 * MODEL_LAYERS + 1); /* and the one before the logits */
    assert_int_equal(acts.row_bytes, MODEL_LAYERS * (3 * embd + ff) + embd);
    total residual = count_copies(plan, m.tape, FM__COPY_TO_HOST, FM__ACT_F32);
    assert_int_equal(residual.n, 1);
    assert_int_equal(residual.row_bytes, MODEL_EMBD / 4 * 4);
    total back = count_copies(plan, m.tape, FM__COPY_TO_DEVICE, FM__ACT_F32);
    assert_int_equal(back.n, 4 * MODEL_LAYERS);
    assert_int_equal(back.row_bytes, MODEL_LAYERS * (3 * MODEL_EMBD + MODEL_FF) / 4 * 4);
    assert_int_equal(count_copies(plan, m.tape, FM__COPY_TO_DEVICE, FM__ACT_Q8_32).n, 0);
    const fm__plan_copy *first = &plan->copies[0]; /* x right behind its look-up */
    assert_int_equal(first->op, 0);
    assert_int_equal(first->copy, FM__COPY_TO_HOST);
    assert_int_equal(first->axis, FM__AXIS_CHANNELS);
    assert_int_equal(first->range.begin, 192);
    assert_int_equal(first->range.end, 256);
    assert_int_equal(plan->copies[1].op, 2); /* behind the quantise, which the product follows */
    assert_int_equal(plan->copies[1].axis, FM__AXIS_WHOLE);
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* By tokens every product is split, and of each tensor only the host's rows travel. */
static void tokens_cost_what_they_must(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    fm__plan *plan = plan_discrete(&m, units, 0.25, FM__AXIS_TOKENS);
    assert_int_equal(count_copies(plan, m.tape, FM__COPY_TO_HOST, FM__ACT_Q8_32).n,
                     4 * MODEL_LAYERS + 1);
    assert_int_equal(count_copies(plan, m.tape, FM__COPY_TO_HOST, FM__ACT_F32).n, 1);
    assert_int_equal(count_copies(plan, m.tape, FM__COPY_TO_DEVICE, FM__ACT_F32).n,
                     6 * MODEL_LAYERS);
    for (uint32_t i = 0; i < plan->n_copy; i++) {
        assert_int_equal(plan->copies[i].axis, FM__AXIS_TOKENS);
        assert_int_equal(plan->copies[i].range.begin, FM__TOKEN_PARTS / 4 * 3);
        assert_int_equal(plan->copies[i].range.end, FM__TOKEN_PARTS);
    }
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* All of it on one side, or memory that all address: nothing is copied that need not be. */
static void without_need_nothing_is_copied(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    fm__plan *plan = plan_discrete(&m, units, 0, FM__AXIS_CHANNELS);
    assert_int_equal(plan->n_copy, 0);
    fm__plan_destroy(&plan);
    plan = plan_discrete(&m, units, 1, FM__AXIS_CHANNELS);
    /* Products whole on the host: x comes once for the first residual, and what the host makes of
       it is fetched once for the norm behind. */
    assert_int_equal(count_copies(plan, m.tape, FM__COPY_TO_HOST, FM__ACT_F32).n, 1);
    assert_int_equal(count_copies(plan, m.tape, FM__COPY_TO_HOST, FM__ACT_Q8_32).n,
                     4 * MODEL_LAYERS + 1);
    for (uint32_t i = 0; i < plan->n_copy; i++)
        assert_int_equal(plan->copies[i].axis, FM__AXIS_WHOLE);
    fm__plan_destroy(&plan);
    units[0]->properties.unified = true;
    plan = plan_discrete(&m, units, 0.25, FM__AXIS_CHANNELS);
    assert_int_equal(plan->n_copy, 0);
    assert_null(plan->copies);
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* The host's columns grow from one op to the next: only what is new to it travels. */
static void only_what_is_missing_travels(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    double(*shares)[FM__MAX_UNITS] = fm__alloc_zero(m.tape->n_op * sizeof *shares);
    assert_non_null(shares);
    uint32_t o = 0, down = 0; /* the first layer's products with a residual */
    for (uint32_t i = 0; i < m.tape->n_op; i++) {
        shares[i][0] = 1;
        o = m.tape->ops[i].weight[0] == m.layers[0].o ? i : o;
        down = m.tape->ops[i].weight[0] == m.layers[0].down ? i : down;
    }
    assert_true(0 < o && o < down);
    shares[o][1] = 1.0 / 3; /* x: [192, 256) */
    shares[down][1] = 1;    /* x: [128, 256) */
    fm__plan *plan = NULL;
    const fm__plan_options options = {.op_shares = (const double(*)[FM__MAX_UNITS])shares};
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    uint32_t behind_o = 0;
    for (uint32_t i = 0; i < plan->n_copy; i++) {
        const fm__plan_copy *c = &plan->copies[i];
        if (c->op != o || c->copy != FM__COPY_TO_HOST)
            continue;
        behind_o++;
        assert_int_equal(c->tensor, m.tape->ops[o].out);
        assert_int_equal(c->range.begin, 128);
        assert_int_equal(c->range.end, 192);
    }
    assert_int_equal(behind_o, 1);
    fm__plan_destroy(&plan);
    fm__free(shares);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void only_the_main_unit_may_be_discrete(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(false), make_null(true)};
    fm__plan *plan = NULL;
    fm_error error = {0};
    const fm__plan_options options = {.shares = {1, 1}};
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 2, &options, &error),
                     FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "does not address host memory"));
    fm__device *lame = NULL; /* its caches could only be used by it, and it cannot attend */
    const fm__null_options null = {.memory_bytes = 1, .refuse_op = "attention", .discrete = true};
    CHECK(fm__device_null_create(&lame, &null, why));
    fm__device *pair[2] = {lame, units[0]};
    assert_int_equal(fm__plan_make(&plan, m.tape, pair, 2, &options, &error), FM_ERROR_UNSUPPORTED);
    assert_string_equal(error.place, "attention q of layer 0");
    assert_non_null(strstr(error.message, "its caches lie where no other unit reaches them"));
    assert_null(plan);
    fm__device_destroy(&lame);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void senseless_cuts_are_refused(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    fm__plan *plan = plan_discrete(&m, units, 0, FM__AXIS_CHANNELS);
    plan->ops[2] = (fm__plan_op){.axis = FM__AXIS_CHANNELS, /* quantised rows have no columns */
                                 .n_range = 2,
                                 .ranges = {{0, {0, 128}}, {1, {128, 256}}}};
    fm_error error = {0};
    assert_int_equal(fm__plan_add_copies(plan, m.tape, 0, &error), FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "cannot be copied"));
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void planning_survives_failing_allocations(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    const fm__plan_options options = {.shares = {3, 1}};
    int failures = 0;
    for (uint64_t n = 1; n < 10000; n++) {
        fm__plan *plan = NULL;
        fm__alloc_fail_after(n);
        fm_status status = fm__plan_make(&plan, m.tape, units, 2, &options, NULL);
        fm__alloc_fail_after(0);
        if (status == FM_OK) {
            fm__plan_destroy(&plan);
            break;
        }
        assert_int_equal(status, FM_ERROR_MEMORY);
        assert_null(plan);
        failures++;
    }
    assert_in_range(failures, 10, 9000);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* ---- weights ---- */

static void place(model *m, fm__buffer *buffer, bool gathers) {
    for (uint32_t i = 0; i < m->f.n_weight; i++) {
        fm__weight *w = m->f.weights[i];
        w->n_ranges = 0;
        if (w->role == FM__ROLE_GATHER && !gathers)
            continue;
        w->ranges[w->n_ranges++] = (fm__weight_range){
            .residency = FM__RESIDENCY_RESIDENT, .panel_end = w->panels, .buffer = buffer};
    }
}

static void units_run_what_they_have_the_weights_of(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_gpu(true), make_host(1, NULL)};
    fm__buffer *buffer = NULL;
    CHECK(fm__device_buffer_create(units[0], 4096, FM__MEMORY_LOCAL, &buffer, why));
    place(&m, buffer, false);
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, NULL, why));
    for (uint32_t i = 0; i < plan->n_op; i++)
        assert_int_equal(plan->ops[i].ranges[0].unit, m.tape->ops[i].kind == FM__OP_EMBED);
    assert_string_equal(plan->ops[0].reason, "the main unit does not have its weights");
    assert_int_equal(plan->n_copy, 1); /* x, before the first norm */
    assert_int_equal(plan->copies[0].op, 1);
    assert_int_equal(plan->copies[0].copy, FM__COPY_TO_DEVICE);
    assert_int_equal(plan->copies[0].axis, FM__AXIS_WHOLE);
    fm__plan_destroy(&plan);
    place(&m, buffer, true);
    CHECK(fm__plan_make(&plan, m.tape, units, 2, NULL, why));
    assert_int_equal(plan->ops[0].ranges[0].unit, 0);
    assert_int_equal(plan->n_copy, 0);
    fm__plan_destroy(&plan);
    place(&m, buffer, false); /* alone, it lacks the table */
    fm_error error = {0};
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 1, NULL, &error), FM_ERROR_UNSUPPORTED);
    assert_string_equal(error.place, "embed token_embd.weight");
    assert_non_null(strstr(error.message, "gpu: it does not have the weights"));
    fm__device_buffer_destroy(&buffer);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* A GPU in the host's memory: keys of 16 positions share lines of the cache, so one unit stores
   them all; every other op of the layers is divided by tokens. */
static void a_gpu_and_a_host_do_not_store_into_one_line(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_gpu(false), make_host(1, NULL)};
    fm__buffer *buffer = NULL;
    CHECK(fm__device_buffer_create(units[0], 4096, FM__MEMORY_LOCAL, &buffer, why));
    place(&m, buffer, true);
    fm__plan *plan = NULL;
    fm__plan_options options = {.shares = {1, 1}, .axis = FM__AXIS_TOKENS};
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    assert_int_equal(plan->n_copy, 0);
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (fm__op_rows(m.tape, &m.tape->ops[i]) == FM__ROWS_BATCH)
            assert_int_equal(plan->ops[i].n_range, 1 + (m.tape->ops[i].kind != FM__OP_KV_STORE));
    fm__plan_destroy(&plan);
    options.axis = FM__AXIS_WHOLE; /* with a GPU, channels whatever the rows */
    m.tape->max_rows = 4096;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    for (uint32_t i = 0; i < plan->n_op; i++)
        assert_int_not_equal(plan->ops[i].axis, FM__AXIS_TOKENS);
    m.tape->max_rows = 16;
    fm__plan_destroy(&plan);
    fm__device_buffer_destroy(&buffer);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void parts_of_weights_allow_parts_of_products(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_gpu(true), make_host(1, NULL)};
    fm__buffer *buffer = NULL;
    CHECK(fm__device_buffer_create(units[0], 4096, FM__MEMORY_LOCAL, &buffer, why));
    place(&m, buffer, false);
    fm__weight *q = m.f.weights[m.layers[0].q]; /* its first half, in two ranges */
    q->ranges[0].panel_end = 3;
    q->ranges[1] = q->ranges[0];
    q->ranges[1].panel_begin = 3;
    q->ranges[1].panel_end = q->panels / 2;
    q->n_ranges = 2;
    uint32_t op = 0;
    while (m.tape->ops[op].weight[0] != m.layers[0].q)
        op++;
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, NULL, why));
    assert_int_equal(plan->ops[op].ranges[0].unit, 1); /* whole it is the host's */
    fm__plan_destroy(&plan);
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &(fm__plan_options){.shares = {1, 1}}, why));
    assert_int_equal(plan->ops[op].n_range, 2);
    assert_int_equal(plan->ops[op].ranges[0].range.end, 128);
    fm__plan_destroy(&plan);
    fm_error error = {0};
    assert_int_equal(
        fm__plan_make(&plan, m.tape, units, 2, &(fm__plan_options){.shares = {3, 1}}, &error),
        FM_ERROR_UNSUPPORTED);
    assert_string_equal(error.place, "linear blk.0.attn_q.weight");
    assert_non_null(strstr(error.message, "channels 0 to 192 of it to gpu, which does not have"));
    fm__plan_options tokens = {.shares = {3, 1}, .axis = FM__AXIS_TOKENS};
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &tokens, why)); /* rows need all of a weight */
    assert_int_equal(plan->ops[op].n_range, 1);
    assert_int_equal(plan->ops[op].ranges[0].unit, 1);
    assert_int_equal(plan->ops[op + 2].n_range, 2);
    fm__plan_destroy(&plan);
    fm__device_buffer_destroy(&buffer);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void tapes_may_be_planned_before_weights_are_there(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    for (uint32_t i = 0; i < m.f.n_weight; i++)
        m.f.weights[i]->host = NULL;
    fm__device *units[2] = {make_gpu(true), make_null(false)};
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, NULL, why));
    assert_int_equal(plan->ops[0].ranges[0].unit, 0);
    assert_int_equal(plan->n_copy, 0);
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* ---- shares op by op ---- */

static void ops_may_have_shares_of_their_own(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(false), make_null(false)};
    double(*shares)[FM__MAX_UNITS] = fm__alloc_zero(m.tape->n_op * sizeof *shares);
    assert_non_null(shares);
    fm__plan_options options = {.shares = {1, 1},
                                .op_shares = (const double(*)[FM__MAX_UNITS])shares};
    uint32_t op = 0, next;
    while (m.tape->ops[op].weight[0] != m.layers[0].q)
        op++;
    next = op + 1;
    while (m.tape->ops[next].weight[0] != m.layers[0].o)
        next++;
    shares[op][0] = 1;
    shares[op][1] = 7;
    fm__plan *plan = NULL;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    assert_int_equal(plan->ops[op].ranges[0].range.end, 32);
    assert_int_equal(plan->ops[next].ranges[0].range.end, 128); /* a row of zeros: the default */
    fm__plan_destroy(&plan);
    options.shares[0] = options.shares[1] = 0;
    CHECK(fm__plan_make(&plan, m.tape, units, 2, &options, why));
    assert_int_equal(plan->ops[op].n_range, 2);
    assert_int_equal(plan->ops[next].n_range, 1);
    assert_int_equal(plan->ops[next].ranges[0].unit, 0);
    assert_string_equal(plan->ops[next].reason, "no unit has a share");
    assert_true(plan->shares_products); /* though this one is whole */
    fm__plan_destroy(&plan);
    shares[op][2] = 1;
    fm_error error = {0};
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 2, &options, &error), FM_ERROR_ARGUMENT);
    assert_string_equal(error.place, "linear blk.0.attn_q.weight");
    shares[op][2] = 0;
    shares[op][1] = -1;
    assert_int_equal(fm__plan_make(&plan, m.tape, units, 2, &options, &error), FM_ERROR_ARGUMENT);
    fm__free(shares);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* ---- whole products ---- */

static bool is_product(const fm__op *op) {
    return op->kind == FM__OP_LINEAR || op->kind == FM__OP_LINEAR_GLU;
}

/* Of the products like op `like`: how many there are, and how many are the last unit's. */
static uint32_t count_dealt(const fm__tape *tape, const uint8_t *owner, uint32_t like,
                            uint32_t *n) {
    const fm__weight *w = tape->weights[tape->ops[like].weight[0]];
    uint32_t last = 0;
    *n = 0;
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const fm__op *op = &tape->ops[i];
        if (!is_product(op) || op->kind != tape->ops[like].kind ||
            tape->weights[op->weight[0]]->n != w->n || tape->weights[op->weight[0]]->k != w->k ||
            tape->weights[op->weight[0]]->type != w->type)
            continue;
        ++*n;
        last += owner[i] == 1;
    }
    return last;
}

/* Pairs whose second weights differ in type are not of one shape: a unit gets its share of either
   kind, however the kinds alternate. */
static void pairs_are_dealt_by_both_types(void **state) {
    (void)state;
    enum { N = 16 };
    const fm__type *q8 = fm__type_get(FM__Q8_0), *q6 = fm__type_get(FM__Q6_K);
    fm__weight gate = {.n = 64, .k = 256, .type = q8, .name = "gate"}, up = gate, other = gate;
    other.type = q6;
    fm__weight *const weights[] = {&gate, &up, &other};
    fm__tensor tensor = {.rows = FM__ROWS_BATCH};
    fm__op ops[N];
    double shares[N][FM__MAX_UNITS];
    for (int i = 0; i < N; i++) {
        ops[i] = (fm__op){.kind = FM__OP_LINEAR_GLU, .weight = {0, (int16_t)(1 + i % 2)}};
        memset(shares[i], 0, sizeof shares[i]);
        shares[i][0] = shares[i][1] = 0.5;
    }
    const fm__tape tape = {
        .ops = ops, .n_op = N, .weights = weights, .n_weight = 3, .tensors = &tensor};
    uint8_t owner[N];
    CHECK(fm__deal(&tape, (const double(*)[FM__MAX_UNITS])shares, 2, owner, why));
    for (int kind = 0; kind < 2; kind++) {
        int last = 0;
        for (int i = kind; i < N; i += 2)
            last += owner[i];
        assert_int_equal(last, N / 4);
    }
}

/* Of the products of each shape a unit gets its share, as nearly as whole ones allow. */
static void products_are_dealt_out(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    double(*shares)[FM__MAX_UNITS] = fm__alloc_zero(m.tape->n_op * sizeof *shares);
    uint8_t *owner = fm__alloc(m.tape->n_op);
    assert_true(shares != NULL && owner != NULL);
    for (int share = 0; share <= 16; share++) {
        for (uint32_t i = 0; i < m.tape->n_op; i++) {
            shares[i][0] = 16 - share;
            shares[i][1] = share;
        }
        CHECK(fm__deal(m.tape, (const double(*)[FM__MAX_UNITS])shares, 2, owner, why));
        for (uint32_t i = 0; i < m.tape->n_op; i++) {
            uint32_t n = 0;
            if (!is_product(&m.tape->ops[i])) {
                assert_int_equal(owner[i], 0);
                continue;
            }
            double want, last = count_dealt(m.tape, owner, i, &n);
            want = n * share / 16.0;
            assert_true(last > want - 1 && last < want + 1);
            assert_true(n > 1 || share == 8 || last == (share > 8)); /* whoever has most of it */
        }
    }
    uint32_t of_unit[3] = {0, 0, 0}; /* who has no share gets none, among three too */
    for (uint32_t i = 0; i < m.tape->n_op; i++) {
        shares[i][0] = 0;
        shares[i][1] = shares[i][2] = 1;
    }
    CHECK(fm__deal(m.tape, (const double(*)[FM__MAX_UNITS])shares, 3, owner, why));
    for (uint32_t i = 0; i < m.tape->n_op; i++)
        if (is_product(&m.tape->ops[i]))
            of_unit[owner[i]]++;
    assert_true(of_unit[0] == 0 && of_unit[1] > 0 && of_unit[2] > 0);
    fm__alloc_fail_after(1);
    fm_error error = {0};
    assert_int_equal(fm__deal(m.tape, (const double(*)[FM__MAX_UNITS])shares, 2, owner, &error),
                     FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
    fm__free(owner);
    fm__free(shares);
    model_finish(&m);
}

/* No product is divided, and all count as shared: the busy time of both is of what was shared. */
static void whole_products_are_not_divided(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    for (int share = 0; share <= 4; share++) {
        fm__plan *plan = plan_discrete(&m, units, share / 4.0, FM__AXIS_PRODUCTS);
        uint32_t of_unit[2] = {0, 0};
        for (uint32_t i = 0; i < plan->n_op; i++) {
            assert_int_equal(plan->ops[i].axis, FM__AXIS_WHOLE);
            assert_int_equal(plan->ops[i].n_range, 1);
            if (is_product(&m.tape->ops[i]))
                of_unit[plan->ops[i].ranges[0].unit]++;
        }
        assert_int_equal(of_unit[0] > 0, share < 4);
        assert_int_equal(of_unit[1] > 0, share > 0);
        assert_int_equal(plan->shares_products, share > 0 && share < 4);
        for (uint32_t i = 0; i < plan->n_copy; i++)
            assert_int_equal(plan->copies[i].axis, FM__AXIS_WHOLE);
        fm__plan_destroy(&plan);
    }
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

/* ---- reports ---- */

/* Every device name stands under "unit", every range under "range". */
static void check_columns(const char *text) {
    const char *head = strchr(text, '\n') + 1;
    size_t unit = (size_t)(strstr(head, "unit") - head);
    size_t range = (size_t)(strstr(head, "range") - head);
    int lines = 0;
    for (const char *line = strchr(head, '\n') + 1; *line != '\0'; line = strchr(line, '\n') + 1) {
        size_t length = strcspn(line, "\n");
        assert_true(length > range && length < 400);
        assert_true(strncmp(line + unit, "null", 4) == 0);
        assert_true(line[range] == '[' || strncmp(line + range, "all", 3) == 0);
        lines++;
    }
    assert_true(lines > 50);
}

static void the_table_is_aligned(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_null(true), make_null(false)};
    for (int axis = 0; axis < 2; axis++) {
        fm__plan *plan =
            plan_discrete(&m, units, 0.25, axis == 0 ? FM__AXIS_CHANNELS : FM__AXIS_TOKENS);
        fm__buf text = {0};
        fm__plan_print(plan, m.tape, units, &text);
        assert_false(text.failed);
        check_columns(text.data);
        assert_non_null(strstr(text.data, "dependencies by event\n"));
        assert_non_null(strstr(text.data, "copy x to the device"));
        assert_non_null(strstr(text.data, axis == 0 ? "[192, 256)" : "[75.0, 100.0) %"));
        fm__buf_finish(&text);
        fm__plan_destroy(&plan);
    }
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void json_says_what_the_plan_holds(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    snprintf(m.f.weights[m.layers[0].q]->name, sizeof m.f.weights[0]->name,
             "q \"\\\n\x01 \xc3\xa9 \xff\xc3.weight");
    fm__device *units[2] = {make_null(true), make_null(false)};
    fm__plan *plan = plan_discrete(&m, units, 0.25, FM__AXIS_CHANNELS);
    fm__buf text = {0};
    fm__plan_json(plan, m.tape, units, &text);
    json_error_t why;
    json_t *root = json_loadb(text.data, text.bytes, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        fail_msg("line %d: %s", why.line, why.text);
    assert_string_equal(json_string_value(json_object_get(root, "deps")), "event");
    json_t *ops = json_object_get(root, "ops"), *copies = json_object_get(root, "copies");
    assert_int_equal(json_array_size(ops), m.tape->n_op);
    assert_int_equal(json_array_size(copies), plan->n_copy);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        json_t *op = json_array_get(ops, i), *ranges = json_object_get(op, "ranges");
        assert_int_equal(json_integer_value(json_object_get(op, "index")), i);
        assert_int_equal(json_integer_value(json_object_get(op, "layer")), m.tape->ops[i].layer);
        assert_int_equal(json_array_size(ranges), plan->ops[i].n_range);
        if (m.tape->ops[i].weight[0] != m.layers[0].q)
            continue;
        assert_string_equal(json_string_value(json_object_get(op, "op")),
                            "linear q \"\\\n\x01 \xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd.weight");
        json_t *second = json_array_get(ranges, 1);
        assert_int_equal(json_integer_value(json_object_get(second, "unit")), 1);
        assert_int_equal(json_integer_value(json_object_get(second, "begin")), 192);
        assert_int_equal(json_integer_value(json_object_get(second, "end")), 256);
        assert_string_equal(json_string_value(json_object_get(second, "axis")), "channels");
        assert_string_equal(json_string_value(json_object_get(second, "residency")), "shared");
    }
    json_t *first = json_array_get(copies, 0);
    assert_string_equal(json_string_value(json_object_get(first, "tensor")), "x");
    assert_string_equal(json_string_value(json_object_get(first, "to")), "host");
    assert_int_equal(json_integer_value(json_object_get(first, "row_bytes")), 256);
    json_decref(root);
    fm__buf_finish(&text);
    fm__plan_destroy(&plan);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

static void reports_name_each_units_residency(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *units[2] = {make_gpu(true), make_host(1, NULL)};
    fm__buffer *buffer = NULL;
    CHECK(fm__device_buffer_create(units[0], 4096, FM__MEMORY_LOCAL, &buffer, why));
    place(&m, buffer, false);
    fm__plan *plan = plan_discrete(&m, units, 0.25, FM__AXIS_CHANNELS);
    fm__buf text = {0};
    fm__plan_print(plan, m.tape, units, &text);
    const char *line = strstr(text.data, "linear blk.0.attn_q.weight");
    assert_non_null(line);
    assert_in_range(strstr(line, "resident") - line, 1, strcspn(line, "\n"));
    const char *next = strchr(line, '\n') + 1; /* the host's part */
    assert_in_range(strstr(next, "shared") - next, 1, strcspn(next, "\n"));
    const char *embed = strstr(text.data, "embed token_embd.weight");
    assert_in_range(strstr(embed, "mapped") - embed, 1, strcspn(embed, "\n"));
    fm__buf_finish(&text);
    fm__plan_destroy(&plan);
    fm__device_buffer_destroy(&buffer);
    fm__device_destroy(&units[1]);
    fm__device_destroy(&units[0]);
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(channels_cost_what_they_must),
        cmocka_unit_test(tokens_cost_what_they_must),
        cmocka_unit_test(without_need_nothing_is_copied),
        cmocka_unit_test(only_what_is_missing_travels),
        cmocka_unit_test(only_the_main_unit_may_be_discrete),
        cmocka_unit_test(senseless_cuts_are_refused),
        cmocka_unit_test(planning_survives_failing_allocations),
        cmocka_unit_test(units_run_what_they_have_the_weights_of),
        cmocka_unit_test(a_gpu_and_a_host_do_not_store_into_one_line),
        cmocka_unit_test(parts_of_weights_allow_parts_of_products),
        cmocka_unit_test(tapes_may_be_planned_before_weights_are_there),
        cmocka_unit_test(ops_may_have_shares_of_their_own),
        cmocka_unit_test(pairs_are_dealt_by_both_types),
        cmocka_unit_test(products_are_dealt_out),
        cmocka_unit_test(whole_products_are_not_divided),
        cmocka_unit_test(the_table_is_aligned),
        cmocka_unit_test(json_says_what_the_plan_holds),
        cmocka_unit_test(reports_name_each_units_residency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
