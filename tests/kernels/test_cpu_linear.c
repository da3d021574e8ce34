/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cpu_linear.c: linear kernels. ref against a double-precision sum, every rung against ref bit
 * for bit (exact class), the fast class within its bound; guard pages, guard values, sub-ranges;
 * where kernels begin to read.
 */
#include <setjmp.h>
#include <signal.h>

#include "amx_emulated.h"
#include "avxvnni_emulated.h"
#include "kernels.h"

enum { MAX_N = 128, MAX_TOKENS = 33, MAX_K = 2560, GUARD = 5 /* columns behind n */ };

static const uint32_t all_n[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 63, 65, 100, 128};
static const uint32_t all_tokens[] = {1, 2, 3, 5, 6, 7, 8, 12, 13, 31, 33};
static const uint32_t k_of_32[] = {32, 64, 96, 1024, 1056, 2080, 2560, 0};
static const uint32_t k_of_256[] = {256, 512, 1024, 1280, 2304, 2560, 0};
static const uint32_t k_of_1[] = {1, 2, 33, 588, 1023, 1024, 1025, 2049, 2560, 0};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const uint32_t *k_list(const fm__type *type) {
    return type->block == 1 ? k_of_1 : type->block == 32 ? k_of_32 : k_of_256;
}

/* One weight and its activations, with the output of ref. */
typedef struct problem {
    const fm__type *type;
    bool fast;
    uint32_t k;
    fm__panel_layout layout;
    fm__act_layout act_layout;
    test_guarded panels, act;
    float *expected; /* (MAX_TOKENS, MAX_N) */
} problem;

static fm__kernels ref;
static test_rung rungs[TEST_MAX_RUNGS];
static size_t n_rungs;
static size_t older_begin, older_end; /* of rungs: with features taken away from NEON */
static uint8_t *scratch;
static float *out;

/* The AVX-VNNI kernels with AVX-512's encoding and the AMX kernels on emulated tiles, where the
   rest of them runs. */
static void add_emulated(void) {
#if FM__RUNGS_X86
    const uint32_t features = fm__cpu_features();
    if (!(features & FM__CPU_AVX_VNNI))
        print_message("avxvnni: this processor has no AVX-VNNI\n");
    if (features & FM__CPU_AVX512_VNNI) {
        snprintf(rungs[n_rungs].name, sizeof rungs[n_rungs].name, "avxvnni, emulated");
        assert_int_equal(fm__kernels_get(&rungs[n_rungs].kernels, "avx2", NULL), FM_OK);
        test_avxvnni_emulated_fill(&rungs[n_rungs++].kernels);
    } else {
        print_message("avxvnni, emulated: needs AVX-512 VNNI\n");
    }
    if (!(features & FM__CPU_AMX_INT8))
        print_message("amx: no tiles on this processor, or not granted by its system\n");
    if (!(features & FM__CPU_AVX512_VNNI) || !__builtin_cpu_supports("gfni")) {
        print_message("amx, emulated: needs AVX-512 VNNI and GFNI\n");
        return;
    }
    snprintf(rungs[n_rungs].name, sizeof rungs[n_rungs].name, "amx, emulated");
    assert_int_equal(fm__kernels_get(&rungs[n_rungs].kernels, "avx512", NULL), FM_OK);
    test_amx_emulated_fill(&rungs[n_rungs++].kernels);
#endif
}

static int setup(void **state) {
    (void)state;
    fm__kernels_fill_ref(&ref);
    older_begin = test_rungs(rungs);
    n_rungs = older_end = test_rungs_older(rungs, older_begin);
    add_emulated();
    scratch = fm__alloc(FM__LINEAR_SCRATCH);
    out = fm__alloc((size_t)MAX_TOKENS * (MAX_N + GUARD) * sizeof(float));
    return scratch && out ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    fm__free(scratch);
    fm__free(out);
    return 0;
}

static fm__linear_args arguments(const problem *p, uint32_t n, uint32_t tokens, float *to,
                                 size_t stride) {
    return (fm__linear_args){.type = p->type,
                             .layout = p->layout,
                             .panels = p->panels.data,
                             .n = n,
                             .k = p->k,
                             .panel_begin = 0,
                             .panel_end = (n + 15) / 16,
                             .act = p->act.data,
                             .act_layout = p->act_layout,
                             .tokens = tokens,
                             .out = to,
                             .out_stride = stride,
                             .scratch = scratch};
}

static void problem_init(problem *p, const fm__type *type, bool fast, uint32_t k,
                         test_weight weight, test_row row, uint64_t seed) {
    fm__random random;
    fm__random_seed(&random, seed);
    fm__act act = type->act[fast];
    *p = (problem){.type = type,
                   .fast = fast,
                   .k = k,
                   .layout = fm__panel_layout_of(type, k),
                   .act_layout = fm__act_layout_of(act, k)};
    p->panels = test_guarded_alloc(MAX_N / 16 * p->layout.stride);
    p->act = test_guarded_alloc(MAX_TOKENS * p->act_layout.stride);
    test_panels_fill(&random, type, weight, k, MAX_N / 16, p->panels.data);
    memset(p->act.data, 0xFF, MAX_TOKENS * p->act_layout.stride); /* NaN behind a row's end */
    float *x = fm__alloc(k * sizeof(float));
    assert_non_null(x);
    for (uint32_t t = 0; t < MAX_TOKENS; t++) {
        /* the kind asked for, and its neighbours, so that tokens of a tile are unlike */
        test_row kind = (test_row)((row + t % 3) % TEST_ROW_COUNT);
        test_row_fill(&random, kind, x, k);
        assert_true(
            ref.quantise[act](x, k, &p->act_layout, p->act.data + t * p->act_layout.stride));
    }
    fm__free(x);
    p->expected = fm__alloc((size_t)MAX_TOKENS * MAX_N * sizeof(float));
    assert_non_null(p->expected);
    fm__linear_args args = arguments(p, MAX_N, MAX_TOKENS, p->expected, MAX_N);
    ref.linear[fm__type_index(type)][fast].fn(&args);
}

static void problem_finish(problem *p) {
    test_guarded_free(&p->panels);
    test_guarded_free(&p->act);
    fm__free(p->expected);
}

/* ---- the double-precision sum ---- */

/* Integer or float value of element k of row r, with its scales; *minimum = what is subtracted. */
static double weight_of(const problem *p, const uint8_t *panel, uint32_t r, size_t k,
                        double *minimum) {
    const fm__type *type = p->type;
    *minimum = 0.0;
    if (!type->quantised) {
        uint16_t half;
        float w;
        memcpy(&half, panel + (k / 2 * 16 + r) * 4 + k % 2 * 2, 2);
        memcpy(&w, panel + (k * 16 + r) * 4, type->dtype == FM__F32 ? 4 : 0);
        return type->dtype == FM__F32   ? w
               : type->dtype == FM__F16 ? fm__f16_to_f32(half)
                                        : fm__bf16_to_f32(half);
    }
    size_t block = k / type->block;
    double w = fm__panel_code(type, panel, p->k, r, k), scale = 1.0, sub_min = 0.0;
    if (type->sub_width) {
        size_t s = k % 256 / type->sub_width;
        const uint8_t *sub = panel + p->layout.sub + block * p->layout.sub_bytes;
        uint8_t byte = sub[s * 16 + r];
        bool nibbles = type->dtype == FM__Q2_K;
        scale = nibbles ? byte & 15 : type->has_min ? byte : (int8_t)byte;
        sub_min = nibbles ? byte >> 4 : type->has_min ? sub[(8 + s) * 16 + r] : 0;
    } else {
        sub_min = -1.0; /* Q4_1, Q5_1 add theirs */
    }
    uint16_t half;
    float d;
    memcpy(&half, panel + p->layout.d + (block * 16 + r) * 2, 2);
    d = fm__f16_to_f32(half);
    if (type->d_is_f32)
        memcpy(&d, panel + p->layout.d + (block * 16 + r) * 4, 4);
    if (type->has_min) {
        memcpy(&half, panel + p->layout.m + (block * 16 + r) * 2, 2);
        *minimum = (double)fm__f16_to_f32(half) * sub_min;
    }
    return w * scale * (double)d;
}

static double activation_of(const problem *p, uint32_t token, size_t k) {
    const uint8_t *row = p->act.data + token * p->act_layout.stride;
    const uint8_t *values = row + p->act_layout.values;
    float f;
    uint16_t half;
    switch (p->type->act[p->fast]) {
    case FM__ACT_Q8_32:
        memcpy(&f, row + p->act_layout.d + k / 32 * 4, 4);
        return (double)f * (int8_t)values[k];
    case FM__ACT_Q8_256:
        memcpy(&f, row + p->act_layout.d + k / 256 * 4, 4);
        return (double)f * (int8_t)values[k] * (1 << row[p->act_layout.shift + k / 32]);
    case FM__ACT_BF16:
        memcpy(&half, values + k * 2, 2);
        return fm__bf16_to_f32(half);
    default:
        memcpy(&f, values + k * 4, 4);
        return f;
    }
}

/* |got - sum| <= (k + 8) * 2^-23 * (sum of magnitudes), the fast bound; the exact class rounds once
   or thrice a block, so (3 * blocks + 8) * 2^-24 holds there. */
static void check_double(const problem *p, const float *got, size_t stride, uint32_t n,
                         uint32_t tokens, const char *what) {
    double terms = p->type->quantised ? 3.0 * p->k / p->type->block + 8 : 2.0 * p->k + 16;
    for (uint32_t row = 0; row < n; row++)
        for (uint32_t t = 0; t < tokens; t++) {
            if (t >= 3 && t + 2 < tokens) /* of many tokens the first and the last */
                continue;
            const uint8_t *panel = p->panels.data + row / 16 * p->layout.stride;
            double sum = 0.0, magnitude = 0.0, minimum;
            for (size_t k = 0; k < p->k; k++) {
                double w = weight_of(p, panel, row % 16, k, &minimum);
                double x = activation_of(p, t, k);
                sum += (w - minimum) * x;
                magnitude += (fabs(w) + fabs(minimum)) * fabs(x);
            }
            double bound = terms * 0x1p-24 * magnitude + terms * 0x1p-126;
            double y = (double)got[t * stride + row];
            if (magnitude > 0x1p126) /* may overflow on the way */
                continue;
            if (!(fabs(y - sum) <= bound))
                fail_msg("%s %s k %u row %u token %u: %a, the sum is %a, bound %a", what,
                         p->type->name, p->k, row, t, y, sum, bound);
        }
}

static void test_ref_double(void **state) {
    (void)state;
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__type *type = fm__type_at(i);
        for (const uint32_t *k = k_list(type); *k; k++)
            for (int fast = 0; fast < 2; fast++) {
                if (!ref.linear[i][fast].fn)
                    continue;
                problem p;
                problem_init(&p, type, fast != 0, *k, (test_weight)(*k % TEST_WEIGHT_COUNT),
                             (test_row)(*k / 32 % TEST_ROW_COUNT), 7 * *k + i);
                check_double(&p, p.expected, MAX_N, 17, 5, ref.linear[i][fast].name);
                problem_finish(&p);
            }
    }
}

/* The comparison itself must notice a single code that differs by one. */
static void test_one_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < fm__type_count(); i++) {
        problem p;
        uint32_t k = k_list(fm__type_at(i))[3];
        problem_init(&p, fm__type_at(i), false, k, TEST_WEIGHT_RANDOM, TEST_ROW_ALIKE, i);
        p.panels.data[4 * 3] ^= 0x01; /* row 3, element 0 (the lowest bit of its code) */
        if (!p.type->quantised)
            p.panels.data[4 * 3 + 1] ^= 0x30;
        fm__linear_args args = arguments(&p, MAX_N, MAX_TOKENS, out, MAX_N);
        ref.linear[i][0].fn(&args);
        size_t different = 0;
        for (size_t j = 0; j < (size_t)MAX_TOKENS * MAX_N; j++)
            different += !test_same(out[j], p.expected[j]);
        assert_in_range(different, 1, MAX_TOKENS);
        assert_false(test_same(out[3], p.expected[3]));
        problem_finish(&p);
    }
}

/* ref's bits for each type, on every machine and with every compiler. A change here changes every
   model's output: change docs/numerics.md with it. */
static void test_pinned_bits(void **state) {
    (void)state;
    static const uint64_t hashes[FM__TYPE_COUNT] = {
        [FM__TYPE_F32] = UINT64_C(0xaab6e32bbabe3cf0),
        [FM__TYPE_F16] = UINT64_C(0xb278766eb9dd469b),
        [FM__TYPE_BF16] = UINT64_C(0x8da447c79c1ff263),
        [FM__TYPE_Q8_0] = UINT64_C(0xee300eb3df828720),
        [FM__TYPE_Q4_0] = UINT64_C(0xee7ed7c8024a0bb9),
        [FM__TYPE_Q4_1] = UINT64_C(0x0a602e7758ccf7ee),
        [FM__TYPE_Q5_0] = UINT64_C(0xd2c41f9e7ef360d1),
        [FM__TYPE_Q5_1] = UINT64_C(0xc6a793e3a116f46d),
        [FM__TYPE_IQ4_NL] = UINT64_C(0x9033329f1536388e),
        [FM__TYPE_MXFP4] = UINT64_C(0xec8b3cea69f9a763),
        [FM__TYPE_Q2_K] = UINT64_C(0x790d7058923ea0d5),
        [FM__TYPE_Q3_K] = UINT64_C(0x4218d3ef02a095d8),
        [FM__TYPE_Q4_K] = UINT64_C(0x96efd11007011ac2),
        [FM__TYPE_Q5_K] = UINT64_C(0x72bbccc967d7684d),
        [FM__TYPE_Q6_K] = UINT64_C(0x341a36b2321b1651),
        [FM__TYPE_IQ4_XS] = UINT64_C(0xb7b771591b3aacd8),
        [FM__TYPE_TQ1_0] = UINT64_C(0x1fc5ec1ed0a6771d),
        [FM__TYPE_TQ2_0] = UINT64_C(0x1fc5ec1ed0a6771d),
    };
    for (size_t i = 0; i < fm__type_count(); i++) {
        uint64_t hash = FM__HASH_SEED;
        for (const uint32_t *k = k_list(fm__type_at(i)); *k; k++) {
            problem p;
            problem_init(&p, fm__type_at(i), false, *k, TEST_WEIGHT_RANDOM, TEST_ROW_NORMAL, *k);
            hash = fm__hash(hash, p.expected, (size_t)MAX_TOKENS * MAX_N * sizeof(float));
            problem_finish(&p);
        }
        if (hash != hashes[i])
            fail_msg("%s: the bits hash to %016llx, not %016llx", fm__type_at(i)->name,
                     (unsigned long long)hash, (unsigned long long)hashes[i]);
    }
}

/* ---- every rung ---- */

#define UNTOUCHED 12345.678f

/* Up to so many tokens a kernel may heed fm__linear_args.asks. */
enum { FEW_TOKENS = 8 };

/* Runs one call, panels [begin, end), and compares it with ref's rows and the guard values. */
static void check_call(const problem *p, const fm__linear_kernel *kernel, bool asks, uint32_t n,
                       uint32_t tokens, uint32_t begin, uint32_t end) {
    const size_t stride = n + GUARD;
    for (size_t i = 0; i < tokens * stride; i++)
        out[i] = UNTOUCHED;
    fm__linear_args args = arguments(p, n, tokens, out, stride);
    args.asks = asks;
    args.panel_begin = begin;
    args.panel_end = end;
    /* the last row of activations and the last panel end at a guard page */
    args.act = p->act.data + (MAX_TOKENS - tokens) * p->act_layout.stride;
    uint32_t first_panel = MAX_N / 16 - (n + 15) / 16;
    args.panels = p->panels.data + first_panel * p->layout.stride;
    kernel->fn(&args);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t row = 0; row < stride; row++) {
            bool ours = row >= begin * 16 && row < end * 16 && row < n;
            float want = ours ? p->expected[(size_t)(MAX_TOKENS - tokens + t) * MAX_N +
                                            first_panel * 16 + row]
                              : UNTOUCHED;
            float got = out[t * stride + row];
            if (!test_same(got, want))
                fail_msg("%s%s n %u k %u tokens %u panels %u-%u: token %u row %u is %a, want %a",
                         kernel->name, asks ? " that asks" : "", n, p->k, tokens, begin, end, t,
                         row, (double)got, (double)want);
        }
}

/* One of `every` shapes for one weight, other ones for the next `turn`; all panels of few tokens
   with and without asking, parts of them now with, now without. */
static void check_shapes(const problem *p, const fm__linear_kernel *kernel, size_t every,
                         size_t turn) {
    for (size_t i = turn % every; i < COUNT(all_n) * COUNT(all_tokens); i += every) {
        const uint32_t n = all_n[i / COUNT(all_tokens)], tokens = all_tokens[i % COUNT(all_tokens)];
        const uint32_t panels = (n + 15) / 16;
        const bool asks = (i + turn) % 2 == 0;
        check_call(p, kernel, false, n, tokens, 0, panels);
        if (tokens <= FEW_TOKENS)
            check_call(p, kernel, true, n, tokens, 0, panels);
        if (panels > 1) {
            check_call(p, kernel, asks, n, tokens, panels / 2, panels);
            check_call(p, kernel, !asks, n, tokens, 1, panels - 1); /* may be empty */
        }
    }
}

/* Whether an earlier rung has the same kernel. */
static bool seen(size_t rung, size_t type, int fast) {
    for (size_t r = 0; r < rung; r++)
        if (rungs[r].kernels.linear[type][fast].fn == rungs[rung].kernels.linear[type][fast].fn)
            return true;
    return false;
}

/* Every how manieth shape: all for the plain content of each k, some for the others; fewer for ref,
   which is against itself, and for the older forms of NEON. */
static size_t every(size_t rung, bool plain) {
    if (rung >= older_begin && rung < older_end)
        return 21;
    return plain && rung > 0 ? 1 : 11;
}

/* Contents of the problems of the i-th k. All of them take minutes where aarch64 is emulated: there
   it is a third, another one for the next k. */
static bool taken(size_t i, int weight, int row) {
    return FM__RUNGS_X86 || (i + (size_t)(weight + row / 3)) % 3 == 0;
}

static void test_rungs_exact(void **state) {
    (void)state;
    for (size_t type = 0; type < fm__type_count(); type++) {
        const uint32_t *k = k_list(fm__type_at(type));
        uint64_t seed = 100 * type;
        for (size_t i = 0; k[i]; i++)
            for (int weight = 0; weight < TEST_WEIGHT_COUNT; weight++)
                for (int row = weight % 3; row < TEST_ROW_COUNT; row += 3) {
                    const bool plain = weight == TEST_WEIGHT_RANDOM && row == 0;
                    if (!plain && !taken(i, weight, row))
                        continue;
                    problem p;
                    problem_init(&p, fm__type_at(type), false, k[i], (test_weight)weight,
                                 (test_row)row, seed++);
                    for (size_t r = 0; r < n_rungs; r++)
                        if (r == 0 ? plain : !seen(r, type, 0))
                            check_shapes(&p, &rungs[r].kernels.linear[type][0], every(r, plain),
                                         (size_t)seed);
                    problem_finish(&p);
                }
    }
}

/* The fast class: within its bound on every rung, and it writes only what it should. */
static void test_rungs_fast(void **state) {
    (void)state;
    for (size_t r = 0; r < n_rungs; r++)
        for (size_t type = 0; type < fm__type_count(); type++) {
            const fm__linear_kernel *kernel = &rungs[r].kernels.linear[type][1];
            if (!kernel->fn || seen(r, type, 1))
                continue;
            for (const uint32_t *k = k_of_1; *k; k++) {
                problem p;
                problem_init(&p, fm__type_at(type), true, *k, (test_weight)(*k % TEST_WEIGHT_COUNT),
                             (test_row)(*k % 3), *k + type);
                for (size_t i = 0; i < COUNT(all_tokens); i++) {
                    uint32_t tokens = all_tokens[i], n = all_n[(i * 5 + *k) % COUNT(all_n)];
                    for (size_t j = 0; j < (size_t)tokens * (n + GUARD); j++)
                        out[j] = UNTOUCHED;
                    fm__linear_args args = arguments(&p, n, tokens, out, n + GUARD);
                    kernel->fn(&args);
                    check_double(&p, out, n + GUARD, n, tokens, kernel->name);
                    for (uint32_t t = 0; t < tokens; t++)
                        for (uint32_t j = n; j < n + GUARD; j++)
                            assert_true(out[t * (n + GUARD) + j] == UNTOUCHED);
                }
                problem_finish(&p);
            }
        }
}

/* More tokens than a kernel prepares at a time: the rows of a problem, over and over. A token's
   result does not depend on the others. */
static void check_many(problem *p, const fm__linear_kernel *kernel) {
    enum { MANY = 2 * 256 + 21, ROWS_OUT = 40 };
    const size_t stride = p->act_layout.stride;
    test_guarded few = p->act, many = test_guarded_alloc(MANY * stride);
    float *to = fm__alloc((size_t)MANY * ROWS_OUT * sizeof(float));
    assert_non_null(to);
    for (size_t t = 0; t < MANY; t++)
        memcpy(many.data + t * stride, few.data + t % MAX_TOKENS * stride, stride);
    p->act = many;
    fm__linear_args args = arguments(p, ROWS_OUT, MANY, to, ROWS_OUT);
    kernel->fn(&args);
    if (p->fast)
        check_double(p, to, ROWS_OUT, ROWS_OUT, MANY, kernel->name);
    else
        for (size_t t = 0; t < MANY; t++)
            test_same_all(to + t * ROWS_OUT, p->expected + t % MAX_TOKENS * MAX_N, ROWS_OUT,
                          kernel->name);
    p->act = few;
    test_guarded_free(&many);
    fm__free(to);
}

/* A product's tokens prepared in pieces, last piece first, and calls that begin within them. */
static void check_prepared(problem *p, const fm__linear_kernel *kernel) {
    enum { MANY = 2 * 256 + 21, ROWS_OUT = 40 };
    static const uint32_t begins[] = {0, 16, 256, 272, 512}, counts[] = {32, 16, 277, 48, 21};
    if (!kernel->shared)
        return;
    const size_t stride = p->act_layout.stride;
    test_guarded few = p->act, many = test_guarded_alloc(MANY * stride);
    float *to = fm__alloc((size_t)MANY * ROWS_OUT * sizeof(float));
    assert_non_null(to);
    for (size_t t = 0; t < MANY; t++)
        memcpy(many.data + t * stride, few.data + t % MAX_TOKENS * stride, stride);
    fm__linear_args args = arguments(p, ROWS_OUT, MANY, to, ROWS_OUT);
    args.act = many.data;
    const size_t bytes = kernel->shared->bytes(MANY, p->k);
    test_guarded prepared = test_guarded_alloc(bytes);
    memset(prepared.data, 0xFF, bytes); /* what is not prepared is NaN */
    args.prepared = prepared.data;
    args.prepared_tokens = MANY;
    args.scratch = NULL; /* preparing needs none */
    for (uint32_t unit = kernel->shared->units(MANY, p->k); unit-- > 0;)
        kernel->shared->prepare(&args, unit);
    assert_int_equal(kernel->shared->bytes(1, p->k), 0);
    memset(many.data, 0xFF, MANY * stride); /* the call is not to read them again */
    args.scratch = scratch;
    for (size_t i = 0; i < COUNT(begins); i++) {
        args.prepared_first = begins[i];
        args.tokens = counts[i];
        args.act = many.data + begins[i] * stride;
        for (size_t j = 0; j < (size_t)MANY * ROWS_OUT; j++)
            to[j] = UNTOUCHED;
        kernel->fn(&args);
        for (size_t t = 0; t < MANY; t++) {
            if (t >= counts[i]) {
                assert_true(to[t * ROWS_OUT] == UNTOUCHED);
                continue;
            }
            if (!p->fast)
                test_same_all(to + t * ROWS_OUT, p->expected + (begins[i] + t) % MAX_TOKENS * MAX_N,
                              ROWS_OUT, kernel->name);
        }
        if (p->fast) { /* those of a whole period, in its order */
            for (uint32_t t = 0; t < counts[i]; t++) {
                problem one = *p;
                one.act.data = few.data + (begins[i] + t) % MAX_TOKENS * stride;
                if (t < 3 || t + 2 >= counts[i])
                    check_double(&one, to + t * ROWS_OUT, ROWS_OUT, ROWS_OUT, 1, kernel->name);
            }
        }
    }
    test_guarded_free(&many);
    test_guarded_free(&prepared);
    fm__free(to);
}

/* More panels than a kernel keeps sums of: those of a problem, over and over, in more than one
   segment. */
static void check_wide(problem *p, const fm__linear_kernel *kernel) {
    enum { N = 90 * FM__PANEL_ROWS - 3 };
    const size_t stride = p->layout.stride, own = MAX_N / FM__PANEL_ROWS;
    const size_t panels = (N + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    test_guarded few = p->panels, many = test_guarded_alloc(panels * stride);
    float *to = fm__alloc((size_t)MAX_TOKENS * N * sizeof(float));
    assert_non_null(to);
    for (size_t i = 0; i < panels; i++)
        memcpy(many.data + i * stride, few.data + i % own * stride, stride);
    p->panels = many;
    fm__linear_args args = arguments(p, N, MAX_TOKENS, to, N);
    kernel->fn(&args);
    for (size_t t = 0; t < MAX_TOKENS; t++)
        for (size_t row = 0; row < N; row += MAX_N) {
            const size_t rows = N - row < MAX_N ? N - row : MAX_N;
            if (!p->fast)
                test_same_all(to + t * N + row, p->expected + t * MAX_N, rows, kernel->name);
        }
    p->panels = few;
    for (size_t row = 0; p->fast && row < N; row += MAX_N)
        check_double(p, to + row, N, N - row < MAX_N ? (uint32_t)(N - row) : MAX_N, MAX_TOKENS,
                     kernel->name);
    test_guarded_free(&many);
    fm__free(to);
}

static void test_many_tokens(void **state) {
    (void)state;
    for (size_t type = 0; type < fm__type_count(); type++)
        for (int fast = 0; fast < 2; fast++) {
            if (!ref.linear[type][fast].fn)
                continue;
            problem p;
            const bool floats = fm__type_at(type)->block == 1;
            problem_init(&p, fm__type_at(type), fast != 0,
                         k_list(fm__type_at(type))[floats ? 6 : 4], TEST_WEIGHT_RANDOM,
                         TEST_ROW_NORMAL, 31 * type);
            for (size_t r = 1; r < n_rungs; r++) {
                if (seen(r, type, fast))
                    continue;
                check_many(&p, &rungs[r].kernels.linear[type][fast]);
                check_prepared(&p, &rungs[r].kernels.linear[type][fast]);
                if (floats)
                    check_wide(&p, &rungs[r].kernels.linear[type][fast]);
            }
            problem_finish(&p);
        }
}

/* ---- the order of reading ---- */

static sigjmp_buf leave;
static uint8_t *volatile touched;

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    touched = info->si_addr;
    siglongjmp(leave, 1);
}

/* Where a call reads its panels first. */
static const uint8_t *first_read(const fm__linear_kernel *kernel, const fm__linear_args *args,
                                 const test_guarded *panels) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    const size_t body = panels->map_bytes - (size_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    assert_int_equal(mprotect(panels->map, body, PROT_NONE), 0);
    touched = NULL;
    if (sigsetjmp(leave, 1) == 0)
        kernel->fn(args);
    assert_int_equal(mprotect(panels->map, body, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    return touched;
}

/* With few tokens a kernel begins at the end that its entry names for one, and with more at the
   first panel: there, what precedes it fetches ahead (device/host/linear.c). */
static void check_direction(const problem *p, const fm__linear_kernel *kernel, bool asks) {
    static const uint32_t few[] = {1, 2, 3, 8};
    for (size_t i = 0; i < COUNT(few); i++) {
        fm__linear_args args = arguments(p, MAX_N, few[i], out, MAX_N);
        args.asks = asks;
        const uint8_t *at = first_read(kernel, &args, &p->panels);
        const uint8_t *middle = p->panels.data + MAX_N / 16 / 2 * p->layout.stride;
        assert_true(at >= p->panels.data && at < middle + (middle - p->panels.data));
        if ((at >= middle) != (kernel->backwards && few[i] == 1))
            fail_msg("%s%s, %u tokens: begins with panel %zu of %d", kernel->name,
                     asks ? " that asks" : "", few[i],
                     (size_t)(at - p->panels.data) / p->layout.stride, MAX_N / 16);
    }
}

static void test_direction(void **state) {
    (void)state;
    for (size_t r = 0; r < n_rungs; r++)
        for (size_t type = 0; type < fm__type_count(); type++)
            for (int fast = 0; fast < 2; fast++) {
                const fm__linear_kernel *kernel = &rungs[r].kernels.linear[type][fast];
                if (kernel->fn == NULL || seen(r, type, fast))
                    continue;
                problem p;
                problem_init(&p, fm__type_at(type), fast != 0, k_list(fm__type_at(type))[1],
                             TEST_WEIGHT_RANDOM, TEST_ROW_NORMAL, type);
                for (int asks = 0; asks < 2; asks++)
                    check_direction(&p, kernel, asks != 0);
                problem_finish(&p);
            }
}

/* Each type has an exact kernel on every rung, named after the type. */
static void test_names(void **state) {
    (void)state;
    for (size_t r = 0; r < n_rungs; r++)
        for (size_t type = 0; type < fm__type_count(); type++) {
            char prefix[48];
            snprintf(prefix, sizeof prefix, "fm__linear_%s_", fm__type_at(type)->name);
            const fm__linear_kernel *kernel = rungs[r].kernels.linear[type];
            if (type !=
                FM__TYPE_TQ1_0) /* packed like TQ2_0, so a rung may have one kernel for both */
                assert_memory_equal(kernel[0].name, prefix, strlen(prefix));
            assert_true(kernel[0].tokens > 0 && kernel[0].panels > 0);
            assert_int_equal(kernel[1].fn != NULL, !fm__type_at(type)->quantised);
        }
}

static void test_ladder(void **state) {
    (void)state;
    fm__kernels table;
    fm_error error = {0};
    assert_int_equal(fm__kernels_get(&table, NULL, &error), FM_OK);
    const char *const *names = fm__kernels_rungs();
    assert_string_equal(names[0], "ref");
    size_t last = 0;
    while (names[last + 1])
        last++;
    assert_string_equal(table.rung, names[last]);
    assert_int_equal(fm__kernels_get(&table, "auto", &error), FM_OK);
    assert_string_equal(table.rung, names[last]);
    assert_int_equal(fm__kernels_get(&table, "avx1024", &error), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "avx1024"));
    const char *foreign = FM__RUNGS_X86 ? "neon" : "avx2";
    assert_int_equal(fm__kernels_get(&table, foreign, &error), FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, foreign));
}

/* What a processor with some features is given. */
static void check_choice(uint32_t features, const char *rung, const char *q4_k, const char *f32) {
    fm__kernels table;
    assert_int_equal(fm__kernels_get_for(&table, NULL, features, NULL), FM_OK);
    assert_string_equal(table.rung, rung);
    assert_string_equal(table.linear[FM__TYPE_Q4_K][0].name, q4_k);
    assert_string_equal(table.linear[FM__TYPE_F32][0].name, f32);
    const bool backwards = strstr(q4_k, "avx512vnni") != NULL || strstr(q4_k, "amx") != NULL;
    assert_int_equal(table.linear[FM__TYPE_Q4_K][0].backwards, backwards);
    assert_false(table.linear[FM__TYPE_F32][0].backwards);
}

static void test_choice(void **state) {
    (void)state;
    check_choice(0, "ref", "fm__linear_q4_k_ref", "fm__linear_f32_ref");
#if FM__RUNGS_X86
    const uint32_t avx2 = FM__CPU_AVX2, avxvnni = avx2 | FM__CPU_AVX_VNNI;
    const uint32_t avx512 = avx2 | FM__CPU_AVX512 | FM__CPU_AVX512_VNNI | FM__CPU_AVX512_BF16;
    const uint32_t amx = avx512 | FM__CPU_AVX_VNNI | FM__CPU_AMX_INT8 | FM__CPU_AMX_BF16;
    check_choice(FM__CPU_AVX_VNNI, "ref", "fm__linear_q4_k_ref", "fm__linear_f32_ref");
    check_choice(avx2, "avx2", "fm__linear_q4_k_avx2", "fm__linear_f32_avx2");
    check_choice(avxvnni, "avxvnni", "fm__linear_q4_k_avxvnni", "fm__linear_f32_avx2");
    /* without VNNI of its own, AVX-512 keeps what the step below has */
    check_choice(avx2 | FM__CPU_AVX512, "avx512", "fm__linear_q4_k_avx2", "fm__linear_f32_avx512");
    check_choice(avx512, "avx512", "fm__linear_q4_k_avx512vnni", "fm__linear_f32_avx512");
    check_choice(amx, "amx", "fm__linear_q4_k_amx", "fm__linear_f32_avx512");
    fm__kernels table;
    fm_error error = {0};
    assert_int_equal(fm__kernels_get_for(&table, "avxvnni", avx512, &error), FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "AVX-VNNI"));
    assert_int_equal(fm__kernels_get_for(&table, "avxvnni", amx, &error), FM_OK);
    assert_string_equal(table.linear[FM__TYPE_Q4_K][0].name, "fm__linear_q4_k_avxvnni");
    assert_int_equal(fm__kernels_get_for(&table, "avx2", amx, &error), FM_OK);
    assert_string_equal(table.linear[FM__TYPE_Q4_K][0].name, "fm__linear_q4_k_avx2");
#endif
#if FM__RUNGS_ARM
    const uint32_t neon = FM__CPU_NEON, dotprod = neon | FM__CPU_DOTPROD;
    check_choice(neon, "neon", "fm__linear_q4_k_neon", "fm__linear_f32_neon");
    check_choice(dotprod, "neon", "fm__linear_q4_k_dotprod", "fm__linear_f32_neon");
    check_choice(dotprod | FM__CPU_I8MM, "neon", "fm__linear_q4_k_i8mm", "fm__linear_f32_neon");
    /* which fall back on dot products for few tokens */
    check_choice(neon | FM__CPU_I8MM, "neon", "fm__linear_q4_k_neon", "fm__linear_f32_neon");
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ladder),      cmocka_unit_test(test_choice),
        cmocka_unit_test(test_names),       cmocka_unit_test(test_one_bit),
        cmocka_unit_test(test_ref_double),  cmocka_unit_test(test_pinned_bits),
        cmocka_unit_test(test_rungs_exact), cmocka_unit_test(test_rungs_fast),
        cmocka_unit_test(test_many_tokens), cmocka_unit_test(test_direction),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
