/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cpu_rows.c: row kernels: quantisers, RMSNorm, RoPE, gated units, addition, the cache store.
 * ref against double or against its own definition, every rung against ref bit for bit.
 */
#include "kernels.h"

enum { MAX_N = 4864 };

static fm__kernels ref;
static test_rung rungs[TEST_MAX_RUNGS];
static size_t n_rungs;

static int setup(void **state) {
    (void)state;
    fm__kernels_fill_ref(&ref);
    n_rungs = test_rungs(rungs);
    return 0;
}

/* 1..200, then a model's widths. */
static const uint32_t wide[] = {256, 896, 1000, 2560, 4864};
enum { SIZES = 200 + sizeof wide / sizeof wide[0] };
static uint32_t size_at(size_t i) {
    return i < 200 ? (uint32_t)i + 1 : wide[i - 200];
}

/* n floats that end at a guard page. */
static test_guarded row_alloc(fm__random *random, test_row kind, size_t n) {
    test_guarded g = test_guarded_alloc(n * sizeof(float));
    test_row_fill(random, kind, (float *)(void *)g.data, n);
    return g;
}

#define FLOATS(guarded) ((float *)(void *)(guarded).data)

/* ---- elementwise and RMSNorm ---- */

typedef struct binary {
    const char *name;
    void (*run)(const fm__kernels *kernels, const float *a, const float *b, size_t n, float *out);
} binary;

static void run_add(const fm__kernels *kernels, const float *a, const float *b, size_t n,
                    float *out) {
    kernels->add(a, b, n, out);
}

static void run_silu(const fm__kernels *kernels, const float *a, const float *b, size_t n,
                     float *out) {
    kernels->glu[FM__GLU_SILU](a, b, n, out);
}

static void run_gelu(const fm__kernels *kernels, const float *a, const float *b, size_t n,
                     float *out) {
    kernels->glu[FM__GLU_GELU](a, b, n, out);
}

static void run_rmsnorm(const fm__kernels *kernels, const float *a, const float *b, size_t n,
                        float *out) {
    kernels->rmsnorm(a, b, 1e-6f, (float)(1.0 / (double)n), n, out);
}

static const binary binaries[] = {
    {"add", run_add}, {"silu", run_silu}, {"gelu", run_gelu}, {"rmsnorm", run_rmsnorm}};

/* out apart, out = a, out = b, all at a guard page. */
static void check_binary(const binary *op, const test_rung *rung, test_row kind, size_t n) {
    static float want[MAX_N];
    fm__random random;
    fm__random_seed(&random, n * 10 + kind);
    test_guarded a = row_alloc(&random, kind, n), b = row_alloc(&random, TEST_ROW_NORMAL, n);
    test_guarded out = test_guarded_alloc(n * sizeof(float));
    op->run(&ref, FLOATS(a), FLOATS(b), n, want);
    op->run(&rung->kernels, FLOATS(a), FLOATS(b), n, FLOATS(out));
    test_same_all(FLOATS(out), want, n, op->name);
    memcpy(out.data, a.data, n * sizeof(float));
    op->run(&rung->kernels, FLOATS(out), FLOATS(b), n, FLOATS(out));
    test_same_all(FLOATS(out), want, n, op->name);
    if (op->run != run_rmsnorm) {
        memcpy(out.data, b.data, n * sizeof(float));
        op->run(&rung->kernels, FLOATS(a), FLOATS(out), n, FLOATS(out));
        test_same_all(FLOATS(out), want, n, op->name);
    }
    test_guarded_free(&a);
    test_guarded_free(&b);
    test_guarded_free(&out);
}

static void test_binaries(void **state) {
    (void)state;
    for (size_t r = 0; r < n_rungs; r++)
        for (size_t op = 0; op < sizeof binaries / sizeof binaries[0]; op++)
            for (size_t i = 0; i < SIZES; i++)
                for (int kind = i % 3 != 0; kind < TEST_ROW_COUNT; kind += 1 + (int)(i % 3))
                    check_binary(&binaries[op], &rungs[r], (test_row)kind, size_at(i));
}

/* Non-finite entries pass through as such, on every rung. */
static void test_not_finite(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    float a[100], b[100], out[100];
    for (size_t r = 0; r < n_rungs; r++)
        for (size_t op = 0; op < sizeof binaries / sizeof binaries[0]; op++)
            for (size_t at = 0; at < 100; at += 9)
                for (size_t i = 0; i < 3; i++) {
                    for (size_t j = 0; j < 100; j++)
                        a[j] = b[j] = 0.5f;
                    a[at] = bad[i];
                    binaries[op].run(&rungs[r].kernels, a, b, 100, out);
                    assert_false(isfinite(out[at]));
                }
}

static void test_rmsnorm_double(void **state) {
    (void)state;
    static float x[MAX_N], weight[MAX_N], out[MAX_N];
    fm__random random;
    fm__random_seed(&random, 1);
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = size_at(i);
        double sum = 0.0;
        for (size_t j = 0; j < n; j++) {
            x[j] = test_normal(&random) * 3.0f;
            weight[j] = test_normal(&random);
            sum += (double)x[j] * (double)x[j];
        }
        run_rmsnorm(&ref, x, weight, n, out);
        for (size_t j = 0; j < n; j++) {
            double want = (double)x[j] / sqrt(sum / n + 1e-6) * (double)weight[j];
            assert_true(fabs((double)out[j] - want) <= 2e-6 * fabs(want));
        }
    }
}

/* ---- RoPE ---- */

static void test_rope(void **state) {
    (void)state;
    const uint32_t dims[] = {40, 64, 80, 96, 112, 128, 192, 256};
    float cosines[128], sines[128], x[3 * 256], before[3 * 256], want[3 * 256];
    fm__random random;
    fm__random_seed(&random, 2);
    for (size_t d = 0; d < 8; d++)
        for (uint32_t rotary = 2; rotary <= dims[d]; rotary += rotary < 40 ? 2 : 8)
            for (int style = 0; style < 2; style++) {
                uint32_t n = 3 * dims[d];
                for (uint32_t i = 0; i < rotary / 2; i++) {
                    double angle = fm__random_double(&random) * 1e4;
                    cosines[i] = (float)fm__cos(angle);
                    sines[i] = (float)fm__sin(angle);
                }
                test_row_fill(&random, (test_row)(rotary / 2 % TEST_ROW_COUNT), before, n);
                memcpy(want, before, sizeof want);
                ref.rope(want, 3, dims[d], rotary, (fm__rope_style)style, cosines, sines);
                for (uint32_t i = 0; i < n; i++) { /* its own definition, in double */
                    uint32_t j = i % dims[d], half = rotary / 2, pair = j / 2, other = j ^ 1;
                    bool second = j & 1;
                    if (style == FM__ROPE_HALVES) {
                        second = j >= half;
                        pair = second ? j - half : j;
                        other = second ? j - half : j + half;
                    }
                    if (j >= rotary) {
                        assert_true(test_same(want[i], before[i]));
                        continue;
                    }
                    double c = (double)cosines[pair], s = (double)sines[pair];
                    double self = (double)before[i], mate = (double)before[i - j + other];
                    double value = second ? mate * s + self * c : self * c - mate * s;
                    double bound = (fabs(self) + fabs(mate)) * 0x1p-22 + 0x1p-126;
                    assert_true(fabs((double)want[i] - value) <= bound);
                }
                for (size_t r = 0; r < n_rungs; r++) {
                    memcpy(x, before, sizeof x);
                    rungs[r].kernels.rope(x, 3, dims[d], rotary, (fm__rope_style)style, cosines,
                                          sines);
                    test_same_all(x, want, n, rungs[r].name);
                }
            }
}

/* ---- quantisers ---- */

static uint32_t act_granule(fm__act act) {
    return act == FM__ACT_Q8_32 ? 32 : act == FM__ACT_Q8_256 ? 256 : 1;
}

/* Bytes of each part, for comparing without the padding between them. */
static void compare_rows(fm__act act, size_t k, const fm__act_layout *layout, const uint8_t *got,
                         const uint8_t *want, const char *what) {
    const struct {
        size_t at, bytes;
    } parts[4] = {
        {layout->values, act == FM__ACT_BF16     ? fm__round_up(k, 2) * 2
                         : act_granule(act) == 1 ? k * 4
                                                 : k},
        {layout->d, act_granule(act) == 1 ? 0 : k / act_granule(act) * 4},
        {layout->sum, act == FM__ACT_Q8_32    ? k / 32 * 2
                      : act == FM__ACT_Q8_256 ? k / 16 * 2
                                              : 0},
        {layout->shift, act == FM__ACT_Q8_256 ? k / 32 : 0},
    };
    for (size_t p = 0; p < 4; p++)
        for (size_t i = 0; i < parts[p].bytes; i++)
            if (got[parts[p].at + i] != want[parts[p].at + i])
                fail_msg("%s: act %d, k %zu, part %zu, byte %zu: %02x, ref has %02x", what,
                         (int)act, k, p, i, got[parts[p].at + i], want[parts[p].at + i]);
}

static void check_quantise(fm__act act, test_row kind, size_t k) {
    fm__random random;
    fm__random_seed(&random, k * 16 + kind);
    fm__act_layout layout = fm__act_layout_of(act, k);
    test_guarded x = row_alloc(&random, kind, k);
    test_guarded row = test_guarded_alloc(layout.stride);
    uint8_t *want = fm__alloc_zero(layout.stride);
    assert_non_null(want);
    assert_true(ref.quantise[act](FLOATS(x), k, &layout, want));
    for (size_t r = 0; r < n_rungs; r++) {
        memset(row.data, 0xA5, layout.stride);
        assert_true(rungs[r].kernels.quantise[act](FLOATS(x), k, &layout, row.data));
        compare_rows(act, k, &layout, row.data, want, rungs[r].name);
    }
    /* every position is looked at */
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 0x1p100f, -0x1p100f};
    for (size_t r = 0; r < n_rungs; r++)
        for (size_t i = 0; i<k; i += k> 300 ? 37 : 1) {
            float kept = FLOATS(x)[i];
            FLOATS(x)[i] = bad[i % 6];
            assert_false(rungs[r].kernels.quantise[act](FLOATS(x), k, &layout, row.data));
            FLOATS(x)[i] = kept;
        }
    fm__free(want);
    test_guarded_free(&x);
    test_guarded_free(&row);
}

static void test_quantise(void **state) {
    (void)state;
    for (int act = 0; act < FM__ACT_COUNT; act++)
        for (size_t i = 0; i < SIZES; i++) {
            uint32_t granule = act_granule((fm__act)act), k = size_at(i);
            if (granule > 1 && i < 200)
                k = (k <= 20 ? k : 0) * granule; /* 1..20 blocks */
            if (k == 0 || k % granule != 0 || k > MAX_N + 256)
                continue;
            for (int kind = 0; kind < TEST_ROW_COUNT; kind++)
                if (granule > 1 || (i + (size_t)kind) % 3 == 0)
                    check_quantise((fm__act)act, (test_row)kind, k);
        }
}

/* ref's int8 codes against their definition: nearest, ties to even, shifts as large as they may. */
static void test_quantise_ref(void **state) {
    (void)state;
    enum { K = 2048 };
    static float x[K];
    fm__act_layout layout = fm__act_layout_of(FM__ACT_Q8_256, K);
    fm__act_layout layout32 = fm__act_layout_of(FM__ACT_Q8_32, K);
    uint8_t *row = fm__alloc_zero(layout.stride), *row32 = fm__alloc_zero(layout32.stride);
    assert_true(row && row32);
    size_t ties = 0;
    for (int kind = 0; kind < TEST_ROW_COUNT; kind++) {
        fm__random random;
        fm__random_seed(&random, 5);
        test_row_fill(&random, (test_row)kind, x, K);
        assert_true(ref.quantise[FM__ACT_Q8_256](x, K, &layout, row));
        assert_true(ref.quantise[FM__ACT_Q8_32](x, K, &layout32, row32));
        for (size_t i = 0; i < K; i++) {
            float d, d32, top = 0.0f, top32 = 0.0f;
            for (size_t j = i / 256 * 256; j < i / 256 * 256 + 256; j++)
                top = fmaxf(top, fabsf(x[j]));
            for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; j++)
                top32 = fmaxf(top32, fabsf(x[j]));
            memcpy(&d, row + layout.d + i / 256 * 4, 4);
            memcpy(&d32, row32 + layout32.d + i / 32 * 4, 4);
            int q = (int8_t)row[layout.values + i], q32 = (int8_t)row32[layout32.values + i];
            int shift = row[layout.shift + i / 32];
            assert_in_range(q + 127, 0, 254);
            assert_in_range(q32 + 127, 0, 254);
            assert_in_range(shift, 0, 3);
            if (top < 0x1p-64f) {
                assert_true(q == 0 && fm__f32_bits(d) == 0 && shift == 0);
            } else {
                double step = (double)d * (1 << shift);
                assert_true(fabs((double)x[i] - q * step) <= step * 0.50002);
                assert_true((double)top32 * (1 << (3 - shift)) <= (double)top);
                assert_true(shift == 0 || (double)top32 * (2 << (3 - shift)) > (double)top);
            }
            if (top32 < 0x1p-64f) {
                assert_true(q32 == 0 && fm__f32_bits(d32) == 0);
                continue;
            }
            assert_true(fabs((double)x[i] - q32 * (double)d32) <= (double)d32 * 0.50002);
            float scaled = x[i] * (127.0f * fm__rcp(top32));
            if (fabsf(scaled - truncf(scaled)) == 0.5f) {
                ties++;
                assert_int_equal(q32 & 1, 0);
            }
        }
        for (size_t s = 0; s < K / 16; s++) {
            int16_t sum, want = 0;
            memcpy(&sum, row + layout.sum + s * 2, 2);
            for (size_t j = 0; j < 16; j++)
                want = (int16_t)(want + (int8_t)row[layout.values + s * 16 + j]);
            assert_int_equal(sum, want);
        }
    }
    assert_true(ties > 500); /* the generator does make them */
    fm__free(row);
    fm__free(row32);
}

/* ref's bits, on every machine and with every compiler. A change here changes every model's output:
   change docs/numerics.md with it. */
static void test_pinned_bits(void **state) {
    (void)state;
    enum { K = 2048 };
    static float x[K], y[K], weight[K];
    const uint64_t want_rmsnorm = UINT64_C(0xd2373f7c6808ab28),
                   want_q8[2] = {UINT64_C(0x0ec8c3c5b03354bf), UINT64_C(0x4a76cf62896eead0)};
    uint64_t rmsnorm = FM__HASH_SEED, q8[2] = {FM__HASH_SEED, FM__HASH_SEED};
    fm__random random;
    fm__random_seed(&random, 11);
    for (int kind = 0; kind < TEST_ROW_COUNT; kind++) {
        test_row_fill(&random, (test_row)kind, x, K);
        test_row_fill(&random, TEST_ROW_NORMAL, weight, K);
        run_rmsnorm(&ref, x, weight, K - 7, y);
        if (kind != TEST_ROW_LARGE && kind != TEST_ROW_TINY) /* squares overflow, or vanish */
            rmsnorm = fm__hash(rmsnorm, y, K * sizeof(float));
        for (int form = 0; form < 2; form++) {
            fm__act act = form ? FM__ACT_Q8_256 : FM__ACT_Q8_32;
            fm__act_layout layout = fm__act_layout_of(act, K);
            uint8_t *row = fm__alloc_zero(layout.stride);
            assert_non_null(row);
            assert_true(ref.quantise[act](x, K, &layout, row));
            q8[form] = fm__hash(q8[form], row, layout.stride);
            fm__free(row);
        }
    }
    if (rmsnorm != want_rmsnorm || q8[0] != want_q8[0] || q8[1] != want_q8[1])
        fail_msg("the bits hash to %016llx, %016llx, %016llx", (unsigned long long)rmsnorm,
                 (unsigned long long)q8[0], (unsigned long long)q8[1]);
}

/* ---- the cache store ---- */

/* The entry where tape.h says that it is, of a page's head. */
static float entry_q8_0(const uint8_t *head, size_t code, size_t scale) {
    uint16_t bits;
    memcpy(&bits, head + scale, sizeof bits);
    return (float)(int8_t)head[code] * fm__bits_f32((uint32_t)bits << 16);
}

static void check_entry(float stored, const float *block, uint32_t n, uint32_t i) {
    uint32_t most = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t u = fm__f32_bits(block[j]) & 0x7FFFFFFFu;
        most = u > most ? u : most;
    }
    float a = fm__bits_f32(most);
    if (!(a < 0x1p100f))
        assert_true(isnan(stored));
    else if (a < 0x1p-22f)
        assert_true(stored == 0.0f);
    else /* half a step, and the largest by what its scale is rounded */
        assert_true(fabsf(stored - block[i]) <= a * (0.505f / 127));
}

static void check_stored_q8_0(const uint8_t *head, const fm__cache_group *group, uint32_t slot,
                              const float *k, const float *v) {
    uint32_t dk = group->key_dim, dv = group->value_dim, tile = slot / 16, lane = slot % 16;
    fm__cache_parts parts = fm__cache_q8_0_parts(dk, dv);
    for (uint32_t i = 0; i < dk; i++) {
        size_t code = ((size_t)tile * ((dk + 3) / 4) + i / 4) * 64 + lane * 4 + i % 4;
        size_t scale =
            parts.key_scales + (((size_t)tile * ((dk + 31) / 32) + i / 32) * 16 + lane) * 2;
        uint32_t b = i / 32 * 32, n = dk - b < 32 ? dk - b : 32;
        check_entry(entry_q8_0(head, code, scale), k + b, n, i % 32);
    }
    for (uint32_t j = 0; j < dv; j++) {
        uint32_t b = j / 32 * 32, n = dv - b < 32 ? dv - b : 32;
        size_t code = parts.values + (size_t)b * 64 + (slot / 4 * n + j % 32) * 4 + slot % 4;
        size_t scale = parts.value_scales + ((size_t)j / 32 * 64 + slot) * 2;
        check_entry(entry_q8_0(head, code, scale), v + b, n, j % 32);
    }
}

static void check_stored_f16(const uint8_t *head, const fm__cache_group *group, uint32_t slot,
                             const float *k, const float *v) {
    uint32_t i = group->key_dim - 1, j = group->value_dim - 1;
    uint16_t stored;
    memcpy(&stored, head + 2 * ((slot / 16 * group->key_dim + i) * 16 + slot % 16), 2);
    assert_int_equal(stored, fm__kv_f16(k[i]));
    memcpy(&stored, head + 2 * (64 * group->key_dim + slot * group->value_dim + j), 2);
    assert_int_equal(stored, fm__kv_f16(v[j]));
}

static void check_kv_store(fm__cache_type type, uint32_t key_dim, uint32_t value_dim,
                           uint32_t heads, uint32_t seed) {
    fm__random random;
    fm__random_seed(&random, seed);
    fm__cache_group group = {.n_layer = 1,
                             .n_page = 3,
                             .n_kv_head = heads,
                             .key_dim = key_dim,
                             .value_dim = value_dim,
                             .type = type,
                             .head_bytes = fm__cache_head_bytes(type, key_dim, value_dim)};
    size_t bytes = 3 * heads * group.head_bytes;
    uint8_t *want = fm__alloc(bytes), *got = fm__alloc(bytes);
    assert_true(want && got);
    for (size_t r = 0; r < n_rungs; r++) {
        memset(want, 0xA5, bytes);
        memset(got, 0xA5, bytes);
        for (uint32_t slot = 0; slot < 64; slot += 1 + seed % 5) {
            test_row kind = (test_row)(slot % TEST_ROW_COUNT);
            test_guarded k = row_alloc(&random, kind, (size_t)heads * key_dim);
            test_guarded v = row_alloc(&random, TEST_ROW_NORMAL, (size_t)heads * value_dim);
            const float edges[] = {NAN,        INFINITY,      -INFINITY, 65504.0f,
                                   -65520.0f,  1e30f,         0x1p-14f,  -0x1.fp-15f,
                                   -0.0f,      2049.0f,       2051.0f,   -1e-40f,
                                   65503.999f, 0x1.ffffp-15f, 0x1p100f,  0x1.fffp-23f};
            for (size_t i = 0; i < 16 && i < heads * value_dim; i++)
                FLOATS(v)[(i * 7 + slot) % (heads * value_dim)] = edges[i];
            FLOATS(k)[slot % key_dim] = edges[slot % 16];
            ref.kv_store[group.type](&group, want, slot % 3, slot, FLOATS(k), FLOATS(v));
            rungs[r].kernels.kv_store[group.type](&group, got, slot % 3, slot, FLOATS(k),
                                                  FLOATS(v));
            uint32_t h = heads - 1;
            const uint8_t *head = want + ((size_t)(slot % 3) * heads + h) * group.head_bytes;
            (type == FM__CACHE_Q8_0 ? check_stored_q8_0 : check_stored_f16)(
                head, &group, slot, FLOATS(k) + (size_t)h * key_dim,
                FLOATS(v) + (size_t)h * value_dim);
            test_guarded_free(&k);
            test_guarded_free(&v);
        }
        for (size_t i = 0; i < bytes; i++)
            if (got[i] != want[i])
                fail_msg("%s: key_dim %u, value_dim %u: byte %zu is %02x, ref has %02x",
                         rungs[r].name, key_dim, value_dim, i, got[i], want[i]);
    }
    fm__free(want);
    fm__free(got);
}

static void test_kv_store(void **state) {
    (void)state;
    const uint32_t dims[] = {40, 64, 80, 96, 112, 128, 192, 256, 33};
    for (uint32_t i = 0; i < 9; i++)
        for (uint32_t heads = 1; heads <= 3; heads++) {
            for (int t = 0; t < FM__CACHE_TYPES; t++) {
                check_kv_store((fm__cache_type)t, dims[i], dims[i], heads, i + heads);
                check_kv_store((fm__cache_type)t, dims[i], dims[(i + heads) % 9], heads, i + heads);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_binaries),       cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_rmsnorm_double), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_quantise),       cmocka_unit_test(test_quantise_ref),
        cmocka_unit_test(test_pinned_bits),    cmocka_unit_test(test_kv_store),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
