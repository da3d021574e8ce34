/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cpu_attention.c: attention kernels: ref against naive attention in double, every rung
 * against ref bit for bit; page tables out of order, windows, several sequences, whatever unused
 * slots hold.
 */
#include "kernels.h"

enum { MAX_LENGTH = 800, MAX_PAGES = 40, SEQUENCES = 3 };

static fm__kernels ref;
static test_rung rungs[TEST_MAX_RUNGS];
static size_t n_rungs;
static uint8_t *scratch;
static fm__cache_type cache_type; /* of every problem */

static int setup(void **state) {
    (void)state;
    fm__kernels_fill_ref(&ref);
    n_rungs = test_rungs(rungs);
    scratch = fm__alloc(FM__ATTENTION_SCRATCH);
    return scratch ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    fm__free(scratch);
    return 0;
}

enum content {
    PLAIN,  /* scores of deviation about 1 */
    STEEP,  /* scores up to +-100: most probabilities are 0, merges drop whole blocks */
    FLAT,   /* all scores equal */
    EDGES,  /* score differences around -24, values of +-65504 and 0 */
    RISING, /* each block's largest score above all earlier ones, so that every merge rescales */
    CONTENTS
};

/* A cache with the keys and values of SEQUENCES sequences, and one batch of rows over them. */
typedef struct problem {
    fm__cache_group group;
    uint32_t heads, lengths[SEQUENCES];
    uint8_t *cache;
    float *k[SEQUENCES], *v[SEQUENCES]; /* (length, n_kv_head, dim), as the cache holds them */
    uint32_t tables[SEQUENCES * 2][MAX_LENGTH / 64 + 1];
    const uint32_t *pages[SEQUENCES * 2]; /* two groups; ours is the second */
    uint32_t position[256], sequence[256];
    fm__batch_view batch;
    test_guarded q;
    float *expected; /* (rows, heads * value_dim) */
} problem;

static void *array(size_t count, size_t size) {
    void *memory = fm__alloc_array(count, size);
    assert_non_null(memory);
    return memory;
}

static void fill_keys(fm__random *random, enum content content, float *k, size_t n,
                      uint32_t key_dim, uint32_t position) {
    for (size_t i = 0; i < n; i++) {
        k[i] = test_normal(random);
        if (content == FLAT)
            k[i] = 0.5f;
        if (content == EDGES) /* with q = (1, 0, ...): a score that takes steps of 1/64 near -24 */
            k[i] = i % key_dim ? 0.0f : position % 50 ? -23.5f - (float)(position % 64) / 64 : 0.0f;
        if (content == RISING)
            k[i] = i % key_dim ? 0.0f : (float)(position / 16) + 0.25f * k[i];
    }
}

static void fill_values(fm__random *random, enum content content, float *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        v[i] = test_normal(random);
        if (content == EDGES && i % 3 == 0)
            v[i] = test_below(random, 2) ? 1e6f * v[i] : 0.0f; /* clamps to 65504 */
    }
}

/* A page for each 64 positions, in no order, never page 0. Pages before the first one that any row
   of ours can see are dropped. */
static void fill_tables(problem *p, fm__random *random, const uint32_t first_seen[SEQUENCES]) {
    uint32_t order[MAX_PAGES], next = 1;
    for (uint32_t i = 0; i < MAX_PAGES; i++)
        order[i] = i;
    for (uint32_t i = MAX_PAGES - 1; i > 1; i--) {
        uint32_t j = 1 + test_below(random, i), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        p->pages[2 * s] = p->tables[2 * s]; /* the other group's: nonsense */
        p->pages[2 * s + 1] = p->tables[2 * s + 1];
        for (uint32_t i = 0; i < MAX_LENGTH / 64 + 1; i++)
            p->tables[2 * s][i] = p->tables[2 * s + 1][i] = FM__NO_PAGE;
        for (uint32_t i = first_seen[s] / 64; i * 64 < p->lengths[s]; i++)
            p->tables[2 * s + 1][i] = order[next++];
    }
    assert_true(next <= MAX_PAGES);
}

/* Up to 32 entries as multiples of the scale that the contract gives them. */
static void round_block(float *x, size_t n, bool stored) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = (fm__f32_bits(x[i]) & 0x7FFFFFFFu) > most ? fm__f32_bits(x[i]) & 0x7FFFFFFFu : most;
    float a = fm__bits_f32(most);
    float d = stored ? fm__bits_f32((uint32_t)fm__kv_scale(most) << 16) : a * FM__INV127;
    float inverse = d == 0.0f ? 0.0f : stored ? fm__rcp(d) : 127.0f * fm__rcp(a);
    for (size_t i = 0; i < n; i++)
        x[i] = fmaxf(-127.0f, fminf(127.0f, rintf(x[i] * inverse))) * d;
}

static void round_all(float *x, size_t heads, size_t dim) {
    for (size_t h = 0; h < heads; h++, x += dim)
        for (size_t i = 0; i < dim; i += 32) {
            if (cache_type == FM__CACHE_Q8_0)
                round_block(x + i, dim - i < 32 ? dim - i : 32, true);
            for (size_t j = i; cache_type == FM__CACHE_F16 && j < dim && j < i + 32; j++)
                x[j] = fm__f16_to_f32(fm__kv_f16(x[j]));
        }
}

/* Stores the sequences; slots that no row sees stay NaN. */
static void fill_cache(problem *p, fm__random *random, enum content content) {
    size_t n_k = (size_t)p->group.n_kv_head * p->group.key_dim;
    size_t n_v = (size_t)p->group.n_kv_head * p->group.value_dim;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        p->k[s] = array(p->lengths[s] * n_k + 1, sizeof(float));
        p->v[s] = array(p->lengths[s] * n_v + 1, sizeof(float));
        for (uint32_t i = 0; i < p->lengths[s]; i++) {
            float *k = p->k[s] + i * n_k, *v = p->v[s] + i * n_v;
            fill_keys(random, content, k, n_k, p->group.key_dim, i);
            fill_values(random, content, v, n_v);
            uint32_t page = p->tables[2 * s + 1][i / 64];
            if (page != FM__NO_PAGE)
                ref.kv_store[p->group.type](&p->group, p->cache, page, i % 64, k, v);
            round_all(k, p->group.n_kv_head, p->group.key_dim);
            round_all(v, p->group.n_kv_head, p->group.value_dim);
        }
    }
}

/* rows: per sequence, the last `rows[s]` positions, sequences taking turns. */
static void fill_batch(problem *p, const uint32_t rows[SEQUENCES]) {
    uint32_t n = 0, done[SEQUENCES] = {0};
    for (bool more = true; more;) {
        more = false;
        for (uint32_t s = 0; s < SEQUENCES; s++)
            if (done[s] < rows[s]) {
                p->sequence[n] = s;
                p->position[n++] = p->lengths[s] - rows[s] + done[s]++;
                more = true;
            }
    }
    p->batch = (fm__batch_view){.n_row = n,
                                .position = p->position,
                                .sequence = p->sequence,
                                .n_sequence = SEQUENCES,
                                .pages = p->pages,
                                .n_group = 2};
}

static fm__attention_args arguments(const problem *p, float *out, size_t out_stride) {
    return (fm__attention_args){.group = &p->group,
                                .layer_base = p->cache,
                                .batch = &p->batch,
                                .group_index = 1,
                                .heads = p->heads,
                                .scale = 0.125f,
                                .q = p->q.data,
                                .q_stride = p->heads * p->group.key_dim * sizeof(float),
                                .out = (uint8_t *)out,
                                .out_stride = out_stride * sizeof(float),
                                .row_begin = 0,
                                .row_end = p->batch.n_row,
                                .kv_begin = 0,
                                .kv_end = p->group.n_kv_head,
                                .scratch = scratch};
}

static void problem_init(problem *p, enum content content, uint32_t key_dim, uint32_t value_dim,
                         uint32_t kv_heads, uint32_t ratio, uint32_t window,
                         const uint32_t lengths[SEQUENCES], const uint32_t rows[SEQUENCES]) {
    fm__random random;
    fm__random_seed(&random, key_dim * 1000 + ratio * 100 + window + content);
    memset(p, 0, sizeof *p);
    p->group =
        (fm__cache_group){.n_layer = 1,
                          .n_page = MAX_PAGES,
                          .n_kv_head = kv_heads,
                          .key_dim = key_dim,
                          .value_dim = value_dim,
                          .type = cache_type,
                          .window = window,
                          .head_bytes = fm__cache_head_bytes(cache_type, key_dim, value_dim)};
    p->heads = kv_heads * ratio;
    size_t bytes = MAX_PAGES * kv_heads * p->group.head_bytes;
    p->cache = array(bytes, 1);
    memset(p->cache, 0xFF, bytes); /* NaN wherever nothing is stored */
    uint32_t first_seen[SEQUENCES];
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        p->lengths[s] = lengths[s];
        uint32_t first = lengths[s] - rows[s];
        first_seen[s] = window && first + 1 > window ? first + 1 - window : 0;
    }
    fill_tables(p, &random, first_seen);
    fill_cache(p, &random, content);
    fill_batch(p, rows);
    size_t n = (size_t)p->batch.n_row * p->heads * key_dim;
    p->q = test_guarded_alloc(n * sizeof(float));
    float *q = (float *)(void *)p->q.data;
    for (size_t i = 0; i < n; i++) {
        q[i] = test_normal(&random) * (content == STEEP ? 40.0f : 1.0f);
        if (content == EDGES || content == RISING)
            q[i] = i % key_dim ? 0.0f : 8.0f;
    }
    size_t out_cols = (size_t)p->heads * value_dim;
    p->expected = array(p->batch.n_row * out_cols, sizeof(float));
    fm__attention_args args = arguments(p, p->expected, out_cols);
    ref.attention[p->group.type](&args);
}

static void problem_finish(problem *p) {
    fm__free(p->cache);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        fm__free(p->k[s]);
        fm__free(p->v[s]);
    }
    test_guarded_free(&p->q);
    fm__free(p->expected);
}

/* ---- naive attention ---- */

static double largest_of(const float *x, size_t n) {
    float most = 0.0f;
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return (double)most;
}

/* One row and head in double, and what the result may differ by: `tolerance` of each term, the
   terms below exp(-24), which the contract drops, and for q8_0 half a unit of the 16-bit weights of
   each key (at most 2^-16 of the largest value). */
static void naive(const problem *p, uint32_t row, uint32_t head, double tolerance, double *out,
                  double *bound) {
    uint32_t s = p->sequence[row], kv = head / (p->heads / p->group.n_kv_head);
    uint32_t dk = p->group.key_dim, dv = p->group.value_dim, n_kv = p->group.n_kv_head;
    const float *q = (const float *)(const void *)p->q.data + ((size_t)row * p->heads + head) * dk;
    uint32_t position = p->position[row], window = p->group.window;
    uint32_t first = window && position + 1 > window ? position + 1 - window : 0;
    static double score[MAX_LENGTH];
    float rounded[FM__MAX_HEAD_DIM];
    for (uint32_t j = 0; j < dk; j++)
        rounded[j] = q[j] * 0.125f;
    for (uint32_t j = 0; p->group.type == FM__CACHE_Q8_0 && j < dk; j += 32)
        round_block(rounded + j, dk - j < 32 ? dk - j : 32, false);
    double most = -INFINITY, l = 0.0, largest = 0.0;
    for (uint32_t i = first; i <= position; i++) {
        score[i] = 0.0;
        for (uint32_t j = 0; j < dk; j++)
            score[i] += (double)rounded[j] * (double)p->k[s][((size_t)i * n_kv + kv) * dk + j];
        most = fmax(most, score[i]);
        if (p->group.type == FM__CACHE_Q8_0)
            largest = fmax(largest, largest_of(p->v[s] + ((size_t)i * n_kv + kv) * dv, dv));
    }
    for (uint32_t j = 0; j < dv; j++)
        out[j] = bound[j] = 0.0;
    for (uint32_t i = first; i <= position; i++) {
        double e = exp(score[i] - most);
        l += e;
        for (uint32_t j = 0; j < dv; j++) {
            double v = (double)p->v[s][((size_t)i * n_kv + kv) * dv + j];
            out[j] += e * v;
            bound[j] += (tolerance * e + 3.8e-11) * fabs(v) + 0x1p-16 * largest;
        }
    }
    for (uint32_t j = 0; j < dv; j++) {
        out[j] /= l;
        bound[j] /= l;
    }
}

/* Rounding q to 13 bits moves a score by at most 2^-14 of its terms' magnitudes, p likewise. */
static void check_naive(const problem *p, double tolerance) {
    double want[FM__MAX_HEAD_DIM], bound[FM__MAX_HEAD_DIM];
    size_t dv = p->group.value_dim;
    for (uint32_t row = 0; row < p->batch.n_row; row += 3)
        for (uint32_t head = 0; head < p->heads; head++) {
            const float *got = p->expected + ((size_t)row * p->heads + head) * dv;
            naive(p, row, head, tolerance, want, bound);
            for (size_t j = 0; j < dv; j++)
                if (!(fabs((double)got[j] - want[j]) <= bound[j] + 1e-18))
                    fail_msg("row %u (position %u) head %u dim %zu: %a, naive %a", row,
                             p->position[row], head, j, (double)got[j], want[j]);
        }
}

/* ---- every rung ---- */

#define UNTOUCHED 12345.678f

static void check_call(const problem *p, const test_rung *rung, uint32_t row_begin,
                       uint32_t row_end, uint32_t kv_begin, uint32_t kv_end) {
    size_t cols = (size_t)p->heads * p->group.value_dim, stride = cols + 16;
    size_t per_kv = cols / p->group.n_kv_head, n = p->batch.n_row * stride;
    float *out = array(n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        out[i] = UNTOUCHED;
    fm__attention_args args = arguments(p, out, stride);
    args.row_begin = row_begin;
    args.row_end = row_end;
    args.kv_begin = kv_begin;
    args.kv_end = kv_end;
    rung->kernels.attention[p->group.type](&args);
    for (uint32_t row = 0; row < p->batch.n_row; row++)
        for (size_t c = 0; c < stride; c++) {
            bool ours =
                row >= row_begin && row < row_end && c >= kv_begin * per_kv && c < kv_end * per_kv;
            float want = ours ? p->expected[row * cols + c] : UNTOUCHED;
            float got = out[row * stride + c];
            if (!test_same(got, want))
                fail_msg("%s: key_dim %u value_dim %u heads %u/%u window %u position %u rows %u-%u "
                         "kv %u-%u: column %zu is %a, want %a",
                         rung->name, p->group.key_dim, p->group.value_dim, p->heads,
                         p->group.n_kv_head, p->group.window, p->position[row], row_begin, row_end,
                         kv_begin, kv_end, c, (double)got, (double)want);
        }
    fm__free(out);
}

/* A row and kv head at a time: its blocks apart, the later ones first and `run` a call, into parts
   that hold nothing but NaN before; then the merge. */
static void check_parts(const problem *p, const test_rung *rung, uint32_t run) {
    size_t cols = (size_t)p->heads * p->group.value_dim, n = p->batch.n_row * cols;
    size_t head = p->heads / p->group.n_kv_head * fm__attention_part_floats(&p->group);
    float *out = array(n, sizeof(float));
    fm__attention_args args = arguments(p, out, cols);
    for (args.row_begin = 0; args.row_begin < p->batch.n_row; args.row_begin++)
        for (args.kv_begin = 0; args.kv_begin < p->group.n_kv_head; args.kv_begin++) {
            uint32_t position = p->position[args.row_begin], window = p->group.window;
            uint32_t first = window && position + 1 > window ? position + 1 - window : 0;
            uint32_t begin = first / FM__KEY_BLOCK, end = position / FM__KEY_BLOCK + 1;
            float *parts = array((end - begin) * head, sizeof(float));
            memset(parts, 0xFF, (end - begin) * head * sizeof(float));
            args.row_end = args.row_begin + 1;
            args.kv_end = args.kv_begin + 1;
            args.mode = FM__ATTENTION_PARTS;
            for (args.block_end = end; args.block_end > begin; args.block_end = args.block_begin) {
                args.block_begin = args.block_end - begin > run ? args.block_end - run : begin;
                args.parts = parts + (args.block_begin - begin) * head;
                rung->kernels.attention[p->group.type](&args);
            }
            args.mode = FM__ATTENTION_MERGE;
            args.block_begin = begin;
            args.block_end = end;
            args.parts = parts;
            rung->kernels.attention[p->group.type](&args);
            fm__free(parts);
        }
    test_same_all(out, p->expected, n, rung->name);
    fm__free(out);
}

static void check_rungs(const problem *p) {
    uint32_t rows = p->batch.n_row, kv = p->group.n_kv_head;
    for (size_t r = 0; r < n_rungs; r++) {
        check_call(p, &rungs[r], rows / 2, rows / 2 + 1, 0, kv);
        check_parts(p, &rungs[r], 1 + rows % 2);
        if (rungs[r].kernels.attention[p->group.type] == ref.attention[p->group.type])
            continue; /* slow, and it made what is expected */
        check_call(p, &rungs[r], 0, rows, 0, kv);
        check_call(p, &rungs[r], 0, rows, kv / 2, kv);
        check_call(p, &rungs[r], 1, rows, 0, (kv + 1) / 2);
    }
}

static const uint32_t dims[] = {40, 64, 80, 96, 112, 128, 192, 256};
static const uint32_t ratios[] = {1, 2, 5, 7, 8};

/* Lengths at every border of 16, 64 and 256. */
static const uint32_t lengths[][SEQUENCES] = {{1, 15, 16},    {17, 63, 64},   {65, 255, 2},
                                              {256, 257, 3},  {300, 511, 33}, {512, 513, 7},
                                              {700, 767, 31}, {768, 769, 128}};

static void check_shape(size_t d, size_t ratio, size_t which, uint32_t window) {
    uint32_t rows[SEQUENCES];
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t length = lengths[which][s], most = s == 0 ? 1 : s == 1 ? 9 : 3;
        rows[s] = length < most ? length : most;
    }
    for (int content = 0; content < CONTENTS; content++) {
        if (content != PLAIN && (d + ratio + which) % CONTENTS != (size_t)content)
            continue;
        problem p;
        uint32_t kv_heads = 1 + (uint32_t)(d + ratio) % 3;
        problem_init(&p, (enum content)content, dims[d], dims[d], kv_heads, ratios[ratio], window,
                     lengths[which], rows);
        /* scores up to 200 with 13-bit queries: an error of 2^-6 in the exponent */
        check_naive(&p, content == STEEP                        ? 0.2
                        : content == EDGES || content == RISING ? 4e-3
                                                                : 1e-3);
        check_rungs(&p);
        problem_finish(&p);
    }
}

static void test_shapes(void **state) {
    (void)state;
    for (size_t d = 0; d < 8; d++)
        for (size_t ratio = 0; ratio < 5; ratio++)
            for (size_t i = 0; i < 2; i++) {
                size_t which = (d + 3 * ratio + 4 * i) % 8;
                check_shape(d, ratio, which, 0);
                check_shape(d, ratio, which, i ? 300 : 8);
            }
}

/* Keys and values of different sizes. */
static void test_unequal_dims(void **state) {
    (void)state;
    const uint32_t some[SEQUENCES] = {270, 20, 1}, rows[SEQUENCES] = {4, 2, 1};
    for (size_t d = 0; d < 8; d++) {
        problem p;
        problem_init(&p, PLAIN, dims[d], dims[(d + 3) % 8], 2, 2, 0, some, rows);
        check_naive(&p, 1e-3);
        check_rungs(&p);
        problem_finish(&p);
    }
    problem p; /* the largest that the scratch must hold */
    problem_init(&p, PLAIN, FM__MAX_HEAD_DIM, FM__MAX_HEAD_DIM, 1, 16, 0, some, rows);
    check_naive(&p, 1e-3);
    check_rungs(&p);
    problem_finish(&p);
}

/* The whole prompt, window 8, length 40: what lies before the window changes nothing, not even as
   NaN, and a chunk's rows do not depend on the chunk. */
static void test_window(void **state) {
    (void)state;
    const uint32_t prompt[SEQUENCES] = {40, 1, 1}, all[SEQUENCES] = {40, 1, 1};
    problem p;
    problem_init(&p, PLAIN, 64, 64, 2, 2, 8, prompt, all);
    check_naive(&p, 1e-3);
    check_rungs(&p);
    const float nan_k[128] = {NAN}, nan_v[128] = {[64] = NAN};
    ref.kv_store[p.group.type](&p.group, p.cache, p.tables[1][0], 0, nan_k, nan_v);
    size_t cols = 4 * 64, n_finite = 0;
    float *out = array(p.batch.n_row * cols, sizeof(float));
    for (size_t r = 0; r < n_rungs; r++)
        for (uint32_t row = 0; row < p.batch.n_row; row++) {
            fm__attention_args args = arguments(&p, out, cols);
            args.row_begin = row;
            args.row_end = row + 1;
            rungs[r].kernels.attention[p.group.type](&args);
            bool touched = p.sequence[row] == 0 && p.position[row] < 8;
            if (touched)
                assert_true(isnan(out[row * cols])); /* a NaN in reach is not hidden */
            else
                test_same_all(out + row * cols, p.expected + row * cols, cols, rungs[r].name);
            n_finite += !touched;
        }
    assert_int_equal(n_finite, (42 - 8) * n_rungs);
    fm__free(out);
    problem_finish(&p);
}

/* A row's result is the same whatever rows are computed beside it. */
static void test_chunks(void **state) {
    (void)state;
    const uint32_t prompt[SEQUENCES] = {530, 1, 1}, rows[SEQUENCES] = {100, 1, 1};
    problem p;
    problem_init(&p, PLAIN, 64, 64, 1, 2, 0, prompt, rows);
    for (size_t r = 0; r < n_rungs; r++)
        for (uint32_t chunk = 1; chunk <= 33; chunk = chunk * 2 + 1)
            for (uint32_t row = 0; row + chunk <= p.batch.n_row;
                 row +=
                 rungs[r].kernels.attention[p.group.type] == ref.attention[p.group.type] ? 80 : 20)
                check_call(&p, &rungs[r], row, row + chunk, 0, 1);
    problem_finish(&p);
}

/* ref's bits, on every machine and with every compiler. A change here changes every model's output:
   change docs/numerics.md with it. */
static void test_pinned_bits(void **state) {
    (void)state;
    const uint64_t want =
        cache_type == FM__CACHE_Q8_0 ? UINT64_C(0x9ca4883f4286a46b) : UINT64_C(0x9f1b27c0d665220b);
    const uint32_t rows[SEQUENCES] = {5, 5, 5};
    uint64_t hash = FM__HASH_SEED;
    for (size_t which = 2; which < 8; which += 2)
        for (int content = PLAIN; content < CONTENTS; content++) {
            const uint32_t some[SEQUENCES] = {lengths[which][0], lengths[which][1], 20};
            problem p;
            problem_init(&p, (enum content)content, 64, 64, 2, 2, which == 6 ? 300 : 0, some, rows);
            hash = fm__hash(hash, p.expected, p.batch.n_row * (size_t)4 * 64 * sizeof(float));
            problem_finish(&p);
        }
    if (hash != want)
        fail_msg("the bits hash to %016llx, not %016llx", (unsigned long long)hash,
                 (unsigned long long)want);
}

static int with_q8_0(void **state) {
    (void)state;
    cache_type = FM__CACHE_Q8_0;
    return 0;
}

static int back_to_f16(void **state) {
    (void)state;
    cache_type = FM__CACHE_F16;
    return 0;
}

#define WITH_Q8_0(test)                                                                            \
    { #test " q8_0", test, with_q8_0, back_to_f16, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pinned_bits),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_unequal_dims),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_chunks),
        WITH_Q8_0(test_pinned_bits),
        WITH_Q8_0(test_shapes),
        WITH_Q8_0(test_unequal_dims),
        WITH_Q8_0(test_window),
        WITH_Q8_0(test_chunks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
