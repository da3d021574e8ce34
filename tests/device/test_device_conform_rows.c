/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Row-wise ops on every device of this machine, bit for bit: widths off every tile, rows off every
 * team, extreme values, values that no quantiser takes, ranges of tokens, what a norm and the
 * quantise behind it may do together, and memory that must stay as it was.
 */
#include "conform.h"
#include "kernels/kernels.h"
#include "quant_blocks.h"

static const uint32_t ROWS[] = {1, 2, 3, 7, 8, 9, 31, 33, 64, 65};
enum { N_ROWS = sizeof ROWS / sizeof *ROWS };

/* A batch of n rows, each a token of its own at a position of its own; every third row wants
   output. */
static void batch_of(trial *t, uint32_t n, uint32_t vocab) {
    fixture_batch(&t->f, n, 5, vocab, 0);
    uint32_t *output = fixture_alloc(&t->f, n * 4);
    for (uint32_t r = 1; r < n; r += 3)
        output[t->f.batch.n_output++] = r;
    t->f.batch.output_row = output;
}

static void fill_rows(trial *t, int16_t tensor, test_row kind) {
    const fm__tensor *x = &t->tape->tensors[tensor];
    for (uint32_t r = 0; r < run_rows(t, x->rows); r++)
        test_row_fill(&t->f.random, (test_row)((kind + r) % TEST_ROW_COUNT),
                      trial_row(t, tensor, r), x->cols);
}

/* ---- embed ---- */

static void embed_case(const fm__type *type, uint32_t rows, uint32_t k) {
    enum { VOCAB = 41 };
    trial t;
    trial_init(&t, rows * 100 + k);
    int16_t id;
    fm__weight *w = fixture_weight(&t.f, "table", FM__ROLE_GATHER, &id);
    w->type = type;
    w->n = VOCAB;
    w->k = k;
    w->row_bytes = (size_t)k / type->block * type->block_bytes;
    w->bytes = VOCAB * w->row_bytes;
    uint8_t *blocks = fixture_alloc(&t.f, w->bytes);
    quant_random_blocks(&t.f.random, type, blocks, w->bytes);
    w->host = blocks;
    batch_of(&t, rows, VOCAB);
    trial_tape(&t, rows + 2, rows);
    int16_t x = trial_tensor(&t, "x", FM__ACT_F32, k, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(t.tape, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = id;
    trial_ready(&t);
    trial_check(&t, x);
    trial_run(&t);
    trial_finish(&t);
}

static void embed_rows_of_every_type(void **state) {
    (void)state;
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_at(i);
        uint32_t k = type->block == 1 ? 37 : type->block;
        embed_case(type, ROWS[i % N_ROWS], k);
        embed_case(type, 2, type->block == 1 ? 1026 : 5 * k);
    }
}

/* ---- rmsnorm ---- */

static int16_t norm_op(trial *t, int16_t in, int16_t out, int16_t weight, uint32_t group) {
    fm__op *op = fm__tape_op(t->tape, FM__OP_RMSNORM, 0);
    op->in[0] = in;
    op->out = out;
    op->weight[0] = weight;
    op->group = group;
    op->eps = 1e-6f;
    return out;
}

typedef struct norm_case {
    uint32_t rows, group, groups;
    bool in_place, outputs;
} norm_case;

static void norm_trial(const norm_case *c, test_row kind, uint32_t border) {
    trial t;
    trial_init(&t, c->rows * 1000 + c->group);
    int16_t weight = fixture_vector(&t.f, "norm", 1, c->group, true);
    batch_of(&t, c->rows, 10);
    trial_tape(&t, c->rows + 1, c->rows);
    fm__rows rows = c->outputs ? FM__ROWS_OUTPUT : FM__ROWS_BATCH;
    uint32_t cols = c->group * c->groups;
    int16_t x = trial_input(&t, "x", cols, rows);
    int16_t y = c->in_place ? x
                            : trial_tensor(&t, "y", FM__ACT_F32, cols, rows,
                                           c->outputs ? FM__SLOT_OUTPUT : FM__SLOT_SCRATCH);
    norm_op(&t, x, y, weight, c->group);
    trial_ready(&t);
    fill_rows(&t, x, kind);
    trial_check(&t, y);
    if (border != 0)
        trial_halve(&t, border);
    trial_run(&t);
    trial_finish(&t);
}

static void norms_of_many_shapes(void **state) {
    (void)state;
    static const norm_case cases[] = {
        {1, 1, 1, false, false},     {2, 3, 1, true, false},    {3, 63, 1, false, false},
        {7, 64, 1, false, true},     {8, 65, 1, true, true},    {9, 256, 1, false, false},
        {31, 1000, 1, false, false}, {5, 1030, 1, true, false}, {3, 4096, 1, false, false},
        {2, 5121, 1, true, false},   {33, 1, 7, false, false},  {65, 33, 5, true, false},
        {64, 64, 4, false, false},   {3, 128, 9, true, false},  {2, 80, 28, false, false},
        {1, 300, 3, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        norm_trial(&cases[i], (test_row)(i % TEST_ROW_COUNT), i % 3 == 0 ? 20000 : 0);
}

/* ---- quantise ---- */

static int16_t quantise_op(trial *t, int16_t in, fm__act act, fm__rows rows) {
    const fm__tensor *x = &t->tape->tensors[in];
    int16_t out = trial_tensor(t, "act", act, x->cols, rows, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(t->tape, FM__OP_QUANTISE, 0);
    op->in[0] = in;
    op->out = out;
    return out;
}

static uint32_t act_block(fm__act act) {
    return act == FM__ACT_Q8_32 ? 32 : act == FM__ACT_Q8_256 ? 256 : 1;
}

static void quantise_trial(fm__act act, uint32_t rows, uint32_t cols, test_row kind, bool outputs,
                           uint32_t border) {
    trial t;
    trial_init(&t, rows * 1000 + cols);
    batch_of(&t, rows, 10);
    trial_tape(&t, rows + 1, rows);
    fm__rows which = outputs ? FM__ROWS_OUTPUT : FM__ROWS_BATCH;
    int16_t x = trial_input(&t, "x", cols, which);
    int16_t a = quantise_op(&t, x, act, which);
    trial_ready(&t);
    fill_rows(&t, x, kind);
    trial_check(&t, a);
    if (border != 0)
        trial_halve(&t, border);
    trial_run(&t);
    trial_finish(&t);
}

static void every_act_and_extreme_rows(void **state) {
    (void)state;
    for (uint32_t act = 0; act < FM__ACT_COUNT; act++) {
        uint32_t block = act_block((fm__act)act);
        for (uint32_t i = 0; i < N_ROWS; i++) {
            uint32_t cols = block == 1 ? 1 + 37 * i : block * (1 + i % 5 * (block == 32 ? 9 : 2));
            quantise_trial((fm__act)act, ROWS[i], cols, (test_row)(i % TEST_ROW_COUNT), i % 4 == 3,
                           i % 3 == 1 ? 30000 : 0);
        }
        quantise_trial((fm__act)act, 3, 18944, TEST_ROW_NORMAL, false, 0);
    }
}

/* Around 2^-64 and 2^100, one code at a time. */
static void thresholds(void **state) {
    (void)state;
    static const float edges[] = {0x1p-64f,        0x1.fffffep-65f, 0x1.000002p-64f, 0x1p-126f,
                                  0x1p-149f,       0x1.fffffep99f,  0x1p99f,         -0x1p-64f,
                                  -0x1.fffffep99f, -0.0f,           0x1.8p-64f,      0x1p-63f};
    enum { N = sizeof edges / sizeof *edges };
    for (uint32_t act = 0; act < FM__ACT_COUNT; act++) {
        trial t;
        trial_init(&t, act);
        batch_of(&t, N, 10);
        trial_tape(&t, N, N);
        int16_t x = trial_input(&t, "x", 512, FM__ROWS_BATCH);
        int16_t a = quantise_op(&t, x, (fm__act)act, FM__ROWS_BATCH);
        trial_ready(&t);
        for (uint32_t r = 0; r < N; r++)
            for (uint32_t c = 0; c < 512; c++)
                trial_row(&t, x, r)[c] = c % 32 == r ? edges[r] : edges[r] * (float)(c % 7) * 0.1f;
        trial_check(&t, a);
        trial_run(&t);
        trial_finish(&t);
    }
}

/* Runs two quantise ops of which the given rows of the second must fail: the run's status names op
   1 and the least of the rows. */
static void failure_trial(fm__act act, float bad, const uint32_t *bad_rows, uint32_t n_bad,
                          bool outputs) {
    trial t;
    trial_init(&t, act);
    batch_of(&t, 40, 10);
    trial_tape(&t, 48, 40);
    fm__rows which = outputs ? FM__ROWS_OUTPUT : FM__ROWS_BATCH;
    int16_t x = trial_input(&t, "x", 768, which);
    int16_t y = trial_input(&t, "y", 768, which);
    quantise_op(&t, x, act, which);
    quantise_op(&t, y, act, which);
    trial_ready(&t);
    fill_rows(&t, x, TEST_ROW_NORMAL);
    fill_rows(&t, y, TEST_ROW_NORMAL);
    for (uint32_t i = 0; i < n_bad; i++)
        trial_row(&t, y, bad_rows[i])[(37 * i + 300) % 768] = bad;
    for (int s = 0; s < FM__SLOT_COUNT; s++)
        memcpy(t.initial[s], t.in.slots[s], t.bytes[s]);
    uint32_t row = outputs ? t.f.batch.output_row[bad_rows[0]] : bad_rows[0];
    for (uint32_t i = 0; i < all_subjects.n; i++) {
        const subject *s = &all_subjects.list[i];
        subject_run r;
        subject_run_init(&t, s, &r);
        subject_execute(&t, s, &r, 1);
        uint64_t want = s->computes ? (uint64_t)(t.first_op + 1) << 32 | row : UINT64_MAX;
        if (r.status.first != want)
            fail_msg("%s reports op %llu row %llu instead of op %u row %u", s->name,
                     (unsigned long long)(r.status.first >> 32),
                     (unsigned long long)(r.status.first & UINT32_MAX), t.first_op + 1, row);
        if (s->computes)
            assert_int_equal(r.status.status, FM_ERROR_NUMERIC);
        subject_run_finish(&t, &r);
    }
    trial_finish(&t);
}

static void failures_name_op_and_row(void **state) {
    (void)state;
    static const uint32_t rows[] = {3, 7, 12}, last[] = {12};
    const float bad[] = {0x1p100f, -0x1p100f, INFINITY, NAN, -INFINITY, 0x1.fffffep127f};
    for (uint32_t act = 0; act < FM__ACT_COUNT; act++) {
        failure_trial((fm__act)act, bad[act], rows, 3, act % 2 == 1);
        failure_trial((fm__act)act, bad[(act + 3) % 6], last, 1, act % 2 == 0);
    }
}

/* ---- rmsnorm with the quantise behind it ---- */

/* other: a second op reads the normed floats. overlap: they are quantised into memory that the
   norm's input has left. */
static void fused_trial(fm__act act, uint32_t rows, uint32_t cols, bool other, uint32_t border) {
    trial t;
    trial_init(&t, cols + act);
    int16_t weight = fixture_vector(&t.f, "norm", 1, cols, true);
    batch_of(&t, rows, 10);
    trial_tape(&t, rows + 1, rows);
    int16_t x = trial_input(&t, "x", cols, FM__ROWS_BATCH);
    int16_t y = trial_tensor(&t, "y", FM__ACT_F32, cols, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    norm_op(&t, x, y, weight, cols);
    int16_t a = quantise_op(&t, y, act, FM__ROWS_BATCH), z = FM__NONE;
    if (other) {
        z = trial_tensor(&t, "z", FM__ACT_F32, cols, FM__ROWS_BATCH, FM__SLOT_OUTPUT);
        fm__op *op = fm__tape_op(t.tape, FM__OP_GLU, 0);
        op->in[0] = y;
        op->in[1] = x; /* keeps x alive beyond the quantise */
        op->out = z;
    }
    trial_ready(&t);
    for (uint32_t r = 0; r < rows; r++) /* norms of LARGE rows overflow */
        test_row_fill(&t.f.random, (test_row)(r % TEST_ROW_LARGE), trial_row(&t, x, r), cols);
    trial_check(&t, a);
    if (other)
        trial_check(&t, z);
    if (border != 0)
        trial_halve(&t, border);
    trial_run(&t);
    trial_finish(&t);
}

static void norm_and_quantise_together(void **state) {
    (void)state;
    for (uint32_t act = 0; act < FM__ACT_COUNT; act++)
        for (uint32_t other = 0; other < 2; other++) {
            uint32_t block = act_block((fm__act)act);
            fused_trial((fm__act)act, 9, block == 1 ? 333 : block * 3, other, 0);
            fused_trial((fm__act)act, 3, block == 1 ? 1027 : 1280 + block * 3, other,
                        other ? 20000 : 0);
        }
    fused_trial(FM__ACT_Q8_256, 2, 5120, true, 0);
}

/* ---- glu, rope, select, kv_store ---- */

static void glu_trial(uint32_t rows, uint32_t cols, fm__glu glu, test_row kind, int alias) {
    trial t;
    trial_init(&t, rows + cols);
    batch_of(&t, rows, 10);
    trial_tape(&t, rows + 1, rows);
    int16_t a = trial_input(&t, "a", cols, FM__ROWS_BATCH);
    int16_t b = trial_input(&t, "b", cols, FM__ROWS_BATCH);
    int16_t y = alias == 1 ? a
                : alias == 2
                    ? b
                    : trial_tensor(&t, "y", FM__ACT_F32, cols, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(t.tape, FM__OP_GLU, 0);
    op->in[0] = a;
    op->in[1] = b;
    op->out = y;
    op->glu = glu;
    trial_ready(&t);
    fill_rows(&t, a, kind);
    fill_rows(&t, b, TEST_ROW_NORMAL);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = r % 5; c < cols; c += 5)
            trial_row(&t, a, r)[c] *= 40.0f; /* past both ends of the sigmoid's clamp, too */
    trial_row(&t, a, rows - 1)[0] = NAN;
    trial_check(&t, y);
    if (rows > 2)
        trial_halve(&t, 40000);
    trial_run(&t);
    trial_finish(&t);
}

static void gated_units(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_ROWS; i++)
        glu_trial(ROWS[i], 1 + 113 * i, i % 2 ? FM__GLU_GELU : FM__GLU_SILU,
                  (test_row)(i % TEST_ROW_COUNT), (int)i % 3);
    glu_trial(2, 4864, FM__GLU_SILU, TEST_ROW_COLUMN, 0);
}

static void rope_trial(uint32_t rows, uint32_t heads, uint32_t dim, uint32_t rotary,
                       fm__rope_style style) {
    trial t;
    trial_init(&t, rows + dim);
    int16_t cos = fixture_vector(&t.f, "cos", 80, rotary / 2, true);
    int16_t sin = fixture_vector(&t.f, "sin", 80, rotary / 2, false);
    batch_of(&t, rows, 10);
    trial_tape(&t, rows + 1, rows);
    int16_t x = trial_input(&t, "x", heads * dim, FM__ROWS_BATCH);
    fm__op *op = fm__tape_op(t.tape, FM__OP_ROPE, 0);
    op->out = x;
    op->weight[0] = cos;
    op->weight[1] = sin;
    op->heads = heads;
    op->head_dim = dim;
    op->rotary = rotary;
    op->rope = style;
    trial_ready(&t);
    fill_rows(&t, x, TEST_ROW_NORMAL);
    trial_check(&t, x);
    if (rows > 2)
        trial_halve(&t, 10000);
    trial_run(&t);
    trial_finish(&t);
}

static void rotations(void **state) {
    (void)state;
    static const uint32_t dims[] = {40, 64, 80, 96, 112, 128, 192, 256};
    for (uint32_t i = 0; i < N_ROWS; i++) {
        uint32_t dim = dims[i % 8];
        rope_trial(ROWS[i], 1 + i % 5 * 2, dim, i % 3 == 2 ? dim / 2 : dim,
                   i % 2 ? FM__ROPE_PAIRS : FM__ROPE_HALVES);
    }
    rope_trial(1, 28, 128, 128, FM__ROPE_HALVES);
}

static void select_trial(uint32_t rows, uint32_t cols) {
    trial t;
    trial_init(&t, rows + cols);
    batch_of(&t, rows, 10);
    trial_tape(&t, rows + 1, rows);
    int16_t x = trial_input(&t, "x", cols, FM__ROWS_BATCH);
    int16_t y = trial_tensor(&t, "y", FM__ACT_F32, cols, FM__ROWS_OUTPUT, FM__SLOT_OUTPUT);
    fm__op *op = fm__tape_op(t.tape, FM__OP_SELECT, FM__NONE);
    op->in[0] = x;
    op->out = y;
    trial_ready(&t);
    const fm__tensor *tensor = &t.tape->tensors[x];
    for (uint32_t r = 0; r < rows; r++)
        for (size_t i = 0; i < tensor->layout.stride; i++)
            ((uint8_t *)trial_row(&t, x, r))[i] = (uint8_t)(r * 31 + i);
    trial_check(&t, y);
    if (rows > 8)
        trial_halve(&t, 25000);
    trial_run(&t);
    trial_finish(&t);
}

static void selections(void **state) {
    (void)state;
    for (uint32_t i = 1; i < N_ROWS; i++)
        select_trial(ROWS[i], 1 + 211 * i);
}

/* Three sequences with pages in no order; slots that no row stores stay as they were. */
static void store_trial(fm__cache_type type, uint32_t rows, uint32_t n_kv, uint32_t key_dim,
                        uint32_t value_dim) {
    enum { PAGES = 9 };
    trial t;
    trial_init(&t, rows + key_dim);
    fixture_cache(&t.f, 2, PAGES, n_kv, key_dim, 0);
    fm__cache_group *g = &t.f.groups[0];
    g->value_dim = value_dim;
    g->type = type;
    g->head_bytes = fm__cache_head_bytes(type, key_dim, value_dim);
    g->bytes = 2 * (size_t)PAGES * n_kv * g->head_bytes;
    fixture_batch(&t.f, rows, 0, 10, 0);
    uint32_t *sequence = fixture_alloc(&t.f, rows * 4), *position = fixture_alloc(&t.f, rows * 4);
    static const uint32_t lists[3][3] = {{4, 7, 1}, {0, 8, 3}, {6, 2, 5}};
    const uint32_t **pages = fixture_alloc(&t.f, sizeof *pages * 3);
    for (uint32_t r = 0; r < rows; r++) {
        sequence[r] = r % 3;
        position[r] = r / 3 * 5 % 192;
    }
    for (uint32_t s = 0; s < 3; s++)
        pages[s] = lists[s];
    t.f.batch.sequence = sequence;
    t.f.batch.position = position;
    t.f.batch.n_sequence = rows < 3 ? rows : 3;
    t.f.batch.pages = pages;
    trial_tape(&t, rows + 1, 0);
    int16_t k = trial_input(&t, "k", n_kv * key_dim, FM__ROWS_BATCH);
    int16_t v = trial_input(&t, "v", n_kv * value_dim, FM__ROWS_BATCH);
    fm__op *op = fm__tape_op(t.tape, FM__OP_KV_STORE, 1);
    op->in[0] = k;
    op->in[1] = v;
    op->cache_layer = 1;
    trial_ready(&t);
    fill_rows(&t, k, TEST_ROW_NORMAL);
    fill_rows(&t, v, TEST_ROW_COLUMN); /* beyond 65504 */
    static const float edges[] = {
        0x1p-14f,  0x1.fffffep-15f, 65504.0f,   65519.9f,   INFINITY,       NAN,
        -0x1p-14f, -1e9f,           0x1.002p0f, 0x1.006p0f, 0x1.0020002p0f, -0.0f};
    for (uint32_t i = 0; i < 12 && i < n_kv * key_dim; i++)
        trial_row(&t, k, 0)[i] = edges[i];
    if (rows > 2)
        trial_halve(&t, 33000);
    trial_run(&t);
    trial_finish(&t);
}

static void stores(void **state) {
    (void)state;
    static const uint32_t dims[] = {40, 64, 80, 96, 112, 128, 192, 256};
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (int type = 0; type < FM__CACHE_TYPES; type++)
            store_trial((fm__cache_type)type, ROWS[i], 1 + i % 3 * 2, dims[i % 8],
                        dims[(i + i / 2) % 8]);
    store_trial(FM__CACHE_F16, 5, 2, 33, 17);
    store_trial(FM__CACHE_Q8_0, 5, 2, 33, 17);
}

/* ---- copies between a discrete device's scratch and its mirror ---- */

/* The mirror's x goes to the device, a unit computes y there, y comes back. */
static void copy_trial(const subject *s, uint32_t rows, uint32_t cols, fm__axis axis,
                       uint32_t begin, uint32_t end) {
    trial t;
    trial_init(&t, rows + cols);
    batch_of(&t, rows, 10);
    trial_tape(&t, rows + 1, rows);
    int16_t x = trial_input(&t, "x", cols, FM__ROWS_BATCH);
    int16_t y = trial_tensor(&t, "y", FM__ACT_F32, cols, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(t.tape, FM__OP_GLU, 0);
    op->in[0] = op->in[1] = x;
    op->out = y;
    trial_ready(&t);
    memcpy(t.initial[0], t.in.slots[0], t.bytes[0]); /* NaN on both sides where nothing is copied */
    fill_rows(&t, x, TEST_ROW_NORMAL);
    t.ranges[0] = (fm__op_range){t.first_op, FM__AXIS_WHOLE, 0, 0, FM__COPY_TO_DEVICE, x};
    t.ranges[1] = (fm__op_range){.op = t.first_op, .axis = FM__AXIS_WHOLE};
    t.ranges[2] = (fm__op_range){t.first_op, axis, begin, end, FM__COPY_TO_HOST, y};
    t.n_range = 3;
    subject_run r;
    subject_run_init(&t, s, &r);
    CHECK(fm__device_buffer_create(s->device, t.bytes[0], FM__MEMORY_HOST, &r.run.mirrors[0], why));
    CHECK(fm__device_buffer_write(r.run.mirrors[0], 0, t.in.slots[0], t.bytes[0], why));
    subject_execute(&t, s, &r, 1);
    trial_interpret(&t);
    const fm__tensor *out = &t.tape->tensors[y];
    uint8_t *got = fixture_alloc(&t.f, t.bytes[0]);
    CHECK(fm__device_buffer_read(r.run.mirrors[0], 0, got, t.bytes[0], why));
    for (uint32_t row = 0; row <= rows; row++)
        for (uint32_t c = 0; c < cols; c++) {
            bool copied = row < rows;
            if (axis == FM__AXIS_CHANNELS)
                copied = copied && c >= begin && c < end;
            if (axis == FM__AXIS_TOKENS)
                copied = copied && row >= fm__token_border(rows, begin) &&
                         row < fm__token_border(rows, end);
            uint32_t word, want = UINT32_MAX;
            memcpy(&word, got + out->offset + row * out->layout.stride + 4 * c, 4);
            if (copied)
                want = fm__f32_bits(trial_row(&t, y, row)[c]);
            if (word != want)
                fail_msg("%s: copied row %u column %u: %08x instead of %08x", s->name, row, c, word,
                         want);
        }
    subject_run_finish(&t, &r);
    trial_finish(&t);
}

static void copies(void **state) {
    (void)state;
    subject s = {.name = "vulkan, discrete", .device = open_gpu(true), .computes = true};
    if (s.device == NULL)
        skip();
    copy_trial(&s, 1, 7, FM__AXIS_WHOLE, 0, 0);
    copy_trial(&s, 65, 4099, FM__AXIS_WHOLE, 0, 0);
    copy_trial(&s, 33, 96, FM__AXIS_CHANNELS, 16, 64);
    copy_trial(&s, 9, 97, FM__AXIS_CHANNELS, 33, 97);
    copy_trial(&s, 9, 97, FM__AXIS_CHANNELS, 0, 33);
    copy_trial(&s, 31, 128, FM__AXIS_TOKENS, 20000, 50000);
    copy_trial(&s, 2, 128, FM__AXIS_TOKENS, 1, 30000);
    fm__device_destroy(&s.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_rows_of_every_type),
        cmocka_unit_test(norms_of_many_shapes),
        cmocka_unit_test(every_act_and_extreme_rows),
        cmocka_unit_test(thresholds),
        cmocka_unit_test(failures_name_op_and_row),
        cmocka_unit_test(norm_and_quantise_together),
        cmocka_unit_test(gated_units),
        cmocka_unit_test(rotations),
        cmocka_unit_test(selections),
        cmocka_unit_test(stores),
        cmocka_unit_test(copies),
    };
    return cmocka_run_group_tests(tests, subjects_open, subjects_close);
}
