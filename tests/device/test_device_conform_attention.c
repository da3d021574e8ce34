/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on every device of this machine, bit for bit: head dims and counts off every tile,
 * contexts over several key blocks, windows, sequences mixed in one batch, shuffled page tables,
 * slots that hold NaN where no row sees them, ranges of heads and of rows, few rows (which a gpu
 * splits by key blocks) and many.
 */
#include "conform.h"
#include "kernels/kernels.h"

enum { SEQUENCES = 3, MAX_KEYS = 832, LIST = MAX_KEYS / FM__PAGE_TOKENS };

enum content {
    PLAIN,  /* scores of deviation about 1 */
    STEEP,  /* up to +-100: most probabilities are 0 */
    RISING, /* each block's largest score is above all before it */
    LARGE,  /* values of +-65504, and scores around the -24 where p ends */
    FADING, /* the first block's outputs in odd dims fall below 2^-64 in the second's merge */
};

typedef struct attention_case {
    uint32_t heads, n_kv, key_dim, value_dim, window;
    uint32_t rows[SEQUENCES], length[SEQUENCES]; /* the rows are the last of so many positions */
    uint32_t max_rows;
    enum content content;
    fm__axis axis;  /* CHANNELS: the kv heads apart; TOKENS: in two halves */
    bool scattered; /* rows of the sequences by turns */
} attention_case;

static fm__cache_type cache_type; /* of every case */

static float key_entry(trial *t, enum content content, uint32_t position, uint32_t i) {
    float z = test_normal(&t->f.random);
    switch (content) {
    case STEEP:
        return 8.0f * z;
    case RISING:
        return i == 0 ? (float)(position / 16) + 0.25f * z : 0.0f;
    case LARGE:
        return i == 0 ? (position % 50 ? -23.5f - (float)(position % 64) / 64 : 0.0f) : 0.0f;
    case FADING:
        return i == 0 ? 22.0f * (float)(position / FM__KEY_BLOCK) - (position % 50 ? 20.0f : 0.0f)
                      : 0.0f;
    default:
        return z;
    }
}

static float value_entry(trial *t, enum content content, uint32_t position, uint32_t i) {
    float z = test_normal(&t->f.random);
    if (content == FADING && i % 2 != 0)
        return position == 7 ? 0x1p-14f : 0.0f;
    return content == LARGE && test_below(&t->f.random, 3) == 0 ? 1e6f * z : z;
}

/* One position's key and value; the cache was NaN before. */
static void fill_position(trial *t, enum content content, const uint32_t *list, uint32_t position) {
    const fm__cache_group *g = &t->f.groups[0];
    uint32_t page = list[position / FM__PAGE_TOKENS], slot = position % FM__PAGE_TOKENS;
    float k[8 * 512], v[8 * 512];
    assert_true(g->n_kv_head * g->key_dim <= 8 * 512 && g->n_kv_head * g->value_dim <= 8 * 512);
    for (uint32_t i = 0; i < g->n_kv_head * g->key_dim; i++)
        k[i] = key_entry(t, content, position, i % g->key_dim);
    for (uint32_t i = 0; i < g->n_kv_head * g->value_dim; i++)
        v[i] = value_entry(t, content, position, i % g->value_dim);
    t->in.kernels.kv_store[g->type](g, t->in.slots[FM__SLOT_CACHE] + fm__cache_offset(g, 1, 0, 0),
                                    page, slot, k, v);
}

static void make_cache(trial *t, const attention_case *c) {
    fixture_cache(&t->f, 2, SEQUENCES * LIST, c->n_kv, c->key_dim, c->window);
    fm__cache_group *g = &t->f.groups[0];
    g->value_dim = c->value_dim;
    g->type = cache_type;
    g->head_bytes = fm__cache_head_bytes(g->type, g->key_dim, g->value_dim);
    g->bytes = (size_t)g->n_layer * g->n_page * g->n_kv_head * g->head_bytes;
}

/* The rows of each sequence, one after the other or by turns; output is of no account. */
static void make_batch(trial *t, const attention_case *c) {
    uint32_t n = c->rows[0] + c->rows[1] + c->rows[2], left[SEQUENCES], s = 0;
    fixture_batch(&t->f, n, 0, 10, 0);
    uint32_t *sequence = fixture_alloc(&t->f, n * 4), *position = fixture_alloc(&t->f, n * 4);
    memcpy(left, c->rows, sizeof left);
    for (uint32_t r = 0; r < n; r++) {
        while (left[s] == 0)
            s = (s + 1) % SEQUENCES;
        sequence[r] = s;
        position[r] = c->length[s] - left[s];
        left[s]--;
        if (c->scattered)
            s = (s + 1) % SEQUENCES;
    }
    t->f.batch.sequence = sequence;
    t->f.batch.position = position;
    t->f.batch.n_sequence = c->rows[2] != 0 ? 3 : c->rows[1] != 0 ? 2 : 1;
}

/* Pages in no order; those that no row sees any more are dropped. */
static void make_pages(trial *t, const attention_case *c) {
    uint32_t n = SEQUENCES * LIST;
    uint32_t *order = fixture_alloc(&t->f, n * 4), next = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = test_below(&t->f.random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    const uint32_t **pages = fixture_alloc(&t->f, SEQUENCES * sizeof *pages);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t *list = fixture_alloc(&t->f, LIST * 4), oldest = c->length[s] - c->rows[s];
        uint32_t first = c->window != 0 && oldest + 1 > c->window ? oldest + 1 - c->window : 0;
        for (uint32_t i = 0; i < LIST; i++)
            list[i] = i >= first / FM__PAGE_TOKENS ? order[next++] : FM__NO_PAGE;
        pages[s] = list;
    }
    t->f.batch.pages = pages;
}

static void fill_cache(trial *t, const attention_case *c) {
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t p = 0; p < c->length[s]; p++)
            if (t->f.batch.pages[s][p / FM__PAGE_TOKENS] != FM__NO_PAGE)
                fill_position(t, c->content, t->f.batch.pages[s], p);
}

static void fill_queries(trial *t, int16_t q, const attention_case *c) {
    const fm__tensor *tensor = &t->tape->tensors[q];
    for (uint32_t r = 0; r < t->f.batch.n_row; r++) {
        float *x = trial_row(t, q, r);
        for (uint32_t i = 0; i < tensor->cols; i++) {
            float z = test_normal(&t->f.random);
            bool first = i % c->key_dim == 0;
            x[i] = c->content == PLAIN || c->content == STEEP ? z : first ? 1.0f : 0.0f;
        }
    }
    for (uint32_t i = 0; i < c->key_dim; i++)
        trial_row(t, q, 0)[i] = i % 2 ? -0.0f : 0.0f; /* a head of zeros */
}

static void split_heads(trial *t, const attention_case *c) {
    uint32_t width = c->heads / c->n_kv * c->value_dim, whole = c->n_kv * width;
    t->n_range = 0;
    for (uint32_t begin = 0; begin < whole; begin += width)
        t->ranges[t->n_range++] =
            (fm__op_range){t->first_op, FM__AXIS_CHANNELS, begin, begin + width, 0, 0};
}

static void attention_trial(const attention_case *c) {
    trial t;
    trial_init(&t, c->heads * 1000 + c->key_dim + c->window);
    make_cache(&t, c);
    make_batch(&t, c);
    make_pages(&t, c);
    trial_tape(&t, c->max_rows, 0);
    int16_t q = trial_input(&t, "q", c->heads * c->key_dim, FM__ROWS_BATCH);
    int16_t y = trial_tensor(&t, "y", FM__ACT_F32, c->heads * c->value_dim, FM__ROWS_BATCH,
                             FM__SLOT_OUTPUT);
    fm__op *op = fm__tape_op(t.tape, FM__OP_ATTENTION, 1);
    op->in[0] = q;
    op->out = y;
    op->heads = c->heads;
    op->cache_layer = 1;
    op->scale = c->content >= RISING ? 1.0f : 1.0f / sqrtf((float)c->key_dim);
    trial_ready(&t);
    fill_cache(&t, c);
    fill_queries(&t, q, c);
    trial_check(&t, y);
    if (c->axis == FM__AXIS_TOKENS)
        trial_halve(&t, 27000);
    if (c->axis == FM__AXIS_CHANNELS)
        split_heads(&t, c);
    trial_run(&t);
    trial_finish(&t);
}

/* ---- cases ---- */

#define WHOLE FM__AXIS_WHOLE
#define HEADS FM__AXIS_CHANNELS
#define TOKENS FM__AXIS_TOKENS

static void many_rows(void **state) {
    (void)state;
    static const attention_case cases[] = {
        {4, 2, 64, 64, 0, {33, 0, 0}, {33, 0, 0}, 70, PLAIN, WHOLE, false},
        {7, 1, 40, 40, 0, {20, 9, 4}, {300, 9, 513}, 70, PLAIN, WHOLE, false},
        {8, 8, 80, 80, 0, {9, 9, 15}, {270, 257, 256}, 70, STEEP, HEADS, true},
        {5, 5, 96, 96, 8, {31, 2, 2}, {40, 264, 777}, 70, PLAIN, TOKENS, false},
        {14, 2, 128, 128, 0, {34, 0, 1}, {600, 0, 1}, 70, RISING, WHOLE, false},
        {8, 4, 112, 112, 200, {40, 20, 5}, {700, 300, 60}, 70, PLAIN, HEADS, false},
        {6, 2, 192, 128, 0, {33, 3, 0}, {520, 3, 0}, 70, LARGE, WHOLE, false},
        {2, 1, 256, 256, 300, {35, 2, 1}, {640, 256, 257}, 70, STEEP, TOKENS, true},
        {4, 1, 64, 64, 0, {40, 0, 0}, {400, 0, 0}, 70, FADING, WHOLE, false},
        {3, 1, 33, 17, 0, {20, 20, 20}, {260, 20, 25}, 70, LARGE, WHOLE, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        attention_trial(&cases[i]);
}

static void few_rows(void **state) {
    (void)state;
    static const attention_case cases[] = {
        {7, 1, 64, 64, 0, {1, 0, 0}, {1, 0, 0}, 1, PLAIN, WHOLE, false},
        {14, 2, 128, 128, 0, {1, 0, 0}, {800, 0, 0}, 1, PLAIN, WHOLE, false},
        {2, 2, 80, 80, 0, {1, 1, 1}, {256, 257, 700}, 4, RISING, HEADS, false},
        {8, 1, 96, 40, 0, {3, 4, 1}, {260, 600, 832}, 8, LARGE, TOKENS, true},
        {7, 1, 64, 64, 0, {2, 0, 0}, {600, 0, 0}, 8, FADING, WHOLE, false},
        {40, 2, 64, 64, 8, {2, 3, 2}, {259, 3, 520}, 8, PLAIN, WHOLE, false},
        {4, 2, 64, 64, 2, {4, 0, 0}, {258, 0, 0}, 4, PLAIN, WHOLE, false},
        {5, 1, 192, 256, 300, {3, 0, 2}, {700, 0, 302}, 8, STEEP, WHOLE, false},
        {4, 4, 112, 35, 257, {42, 8, 10}, {513, 258, 831}, 64, PLAIN, TOKENS, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        attention_trial(&cases[i]);
}

/* The widest heads there are. */
static void wide_heads(void **state) {
    (void)state;
    static const attention_case cases[] = {
        {2, 1, 512, 512, 0, {3, 1, 0}, {300, 7, 0}, 70, PLAIN, WHOLE, false},
        {2, 1, 500, 511, 0, {1, 1, 0}, {300, 7, 0}, 2, PLAIN, WHOLE, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        attention_trial(&cases[i]);
}

/* A NaN in one head's query, an infinity in another's: NaN where the reference has it, and there
   only. */
static void not_numbers(void **state) {
    (void)state;
    for (uint32_t max_rows = 4; max_rows <= 70; max_rows += 66) {
        const attention_case c = {4,           2,        64,    64,    0,    {3, 0, 0},
                                  {300, 0, 0}, max_rows, PLAIN, WHOLE, false};
        trial t;
        trial_init(&t, max_rows);
        make_cache(&t, &c);
        make_batch(&t, &c);
        make_pages(&t, &c);
        trial_tape(&t, c.max_rows, 0);
        int16_t q = trial_input(&t, "q", 256, FM__ROWS_BATCH);
        int16_t y = trial_tensor(&t, "y", FM__ACT_F32, 256, FM__ROWS_BATCH, FM__SLOT_OUTPUT);
        fm__op *op = fm__tape_op(t.tape, FM__OP_ATTENTION, 1);
        op->in[0] = q;
        op->out = y;
        op->heads = 4;
        op->cache_layer = 1;
        op->scale = 0.125f;
        trial_ready(&t);
        fill_cache(&t, &c);
        fill_queries(&t, q, &c);
        const fm__cache_group *g = &t.f.groups[0];
        float k[128] = {1.0f}, v[128] = {1.0f}; /* of the second kv head, one value is NaN */
        v[64 + 40] = NAN;
        t.in.kernels.kv_store[g->type](g, t.in.slots[FM__SLOT_CACHE] + fm__cache_offset(g, 1, 0, 0),
                                       t.f.batch.pages[0][0], 5, k, v);
        trial_row(&t, q, 1)[3] = NAN;
        trial_row(&t, q, 2)[64 + 5] = INFINITY;
        trial_check(&t, y);
        trial_run(&t);
        assert_true(isnan(trial_row(&t, y, 1)[0]) && !isnan(trial_row(&t, y, 1)[64]));
        assert_true(isnan(trial_row(&t, y, 0)[128 + 40]) && !isnan(trial_row(&t, y, 0)[128]));
        trial_finish(&t);
    }
}

static int with_q8_0(void **state) {
    (void)state;
    cache_type = FM__CACHE_Q8_0;
    return 0;
}

#define WITH_Q8_0(test)                                                                            \
    { #test " q8_0", test, with_q8_0, NULL, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_rows),   cmocka_unit_test(few_rows), cmocka_unit_test(wide_heads),
        cmocka_unit_test(not_numbers), WITH_Q8_0(many_rows),       WITH_Q8_0(few_rows),
        WITH_Q8_0(wide_heads),         WITH_Q8_0(not_numbers),
    };
    return cmocka_run_group_tests(tests, subjects_open, subjects_close);
}
