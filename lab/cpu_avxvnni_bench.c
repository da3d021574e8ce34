/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_avxvnni_bench: how fast the AVX-VNNI linear kernels are, where only AVX-512's encoding of
 * their instructions exists, beside the AVX2 rung and the roof of 256-bit dots.
 *
 *     cpu_avxvnni_bench [TOKENS [N K [REPEATS [TYPE]]]]
 *
 * One thread, processor time, the best of REPEATS, the two rungs taking turns.
 */
#include <inttypes.h>
#include <string.h>

#include "avxvnni_emulated.h"
#include "cpu/probe.h"
#include "lab.h"

static double roof(uint32_t repeats) {
    const uint64_t rounds = 2000000;
    double best = 1e9;
    for (uint32_t i = 0; i < repeats; i++) {
        const double begin = cpu_seconds();
        const volatile uint64_t sink = test_avxvnni_emulated_probe(rounds);
        (void)sink;
        const double took = cpu_seconds() - begin;
        best = took < best ? took : best;
    }
    return (double)rounds * FM__PROBE_INT8_AVXVNNI / best * 1e-9;
}

static void bench(const fm__kernels *avx2, const fm__kernels *vnni, size_t type, uint32_t tokens,
                  uint32_t n, uint32_t k, uint32_t repeats) {
    const fm__type *t = fm__type_at(type);
    fm__linear_args args = {.type = t,
                            .layout = fm__panel_layout_of(t, k),
                            .n = n,
                            .k = k,
                            .panel_end = n / FM__PANEL_ROWS,
                            .act_layout = fm__act_layout_of(t->act[0], k),
                            .tokens = tokens,
                            .out_stride = n + 16};
    const size_t bytes = n / FM__PANEL_ROWS * args.layout.stride;
    uint8_t *panels = need(bytes), *act = need(tokens * args.act_layout.stride);
    float *x = need(k * sizeof *x), *out = need(tokens * args.out_stride * sizeof *out);
    float *other = need(tokens * args.out_stride * sizeof *other);
    fm__random random;
    fm__random_seed(&random, type);
    for (size_t i = 0; i < bytes; i++)
        panels[i] = (uint8_t)(fm__random_next(&random) >> 56);
    for (uint32_t p = 0; p < n / FM__PANEL_ROWS; p++) { /* scales are to be what packing makes */
        uint8_t *sub = panels + p * args.layout.stride + args.layout.sub;
        for (size_t i = 0; t->dtype == FM__Q3_K && i < args.layout.d - args.layout.sub; i++)
            sub[i] = (uint8_t)((sub[i] & 63) - 32);
        uint8_t *from = panels + p * args.layout.stride + args.layout.d;
        memset(from, 0x2b, args.layout.stride - args.layout.d);
    }
    for (uint32_t i = 0; i < tokens; i++) {
        for (uint32_t j = 0; j < k; j++)
            x[j] = (float)fm__random_double(&random) - 0.5f;
        avx2->quantise[t->act[0]](x, k, &args.act_layout, act + i * args.act_layout.stride);
    }
    args.panels = panels;
    args.act = act;
    args.scratch = need(FM__LINEAR_SCRATCH);
    double best[2] = {1e9, 1e9};
    for (uint32_t i = 0; i < 2 * repeats; i++) {
        const int which = (int)(i & 1) ^ (int)(i >> 1 & 1);
        args.out = which ? other : out;
        const double begin = cpu_seconds();
        (which ? vnni : avx2)->linear[type][0].fn(&args);
        const double took = cpu_seconds() - begin;
        best[which] = took < best[which] ? took : best[which];
    }
    const double work = 2e-9 * n * k * tokens;
    const bool same = memcmp(out, other, tokens * args.out_stride * sizeof *out) == 0;
    const double limit = roof(3);
    printf(
        "%-7s %5" PRIu32 " x %5" PRIu32 " x %4" PRIu32
        "  avx2 %6.1f  avxvnni %6.1f GOP/s (%4.1f %% of %5.1f)  x%.2f  %5.1f -> %5.1f GB/s  %s\n",
        t->name, n, k, tokens, work / best[0], work / best[1], 100 * work / best[1] / limit, limit,
        best[0] / best[1], 1e-9 * (double)bytes / best[0], 1e-9 * (double)bytes / best[1],
        same ? "same" : "DIFFERENT");
    fm__free(panels);
    fm__free(act);
    fm__free(x);
    fm__free(out);
    fm__free(other);
    fm__free(args.scratch);
}

int main(int argc, char **argv) {
    const uint32_t tokens = argc > 1 ? (uint32_t)atoi(argv[1]) : 256;
    const uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : 256;
    const uint32_t k = argc > 3 ? (uint32_t)atoi(argv[3]) : 2048;
    const uint32_t repeats = argc > 4 ? (uint32_t)atoi(argv[4]) : 9;
    if (!(fm__cpu_features() & FM__CPU_AVX512_VNNI)) {
        printf("needs AVX-512 VNNI\n");
        return 77;
    }
    fm__kernels avx2, vnni;
    MUST(fm__kernels_get(&avx2, "avx2", why));
    vnni = avx2;
    test_avxvnni_emulated_fill(&vnni);
    for (size_t i = 0; i < fm__type_count(); i++)
        if (fm__type_at(i)->quantised && (argc <= 5 || strcmp(argv[5], fm__type_at(i)->name) == 0))
            bench(&avx2, &vnni, i, tokens, n, k, repeats);
    return 0;
}
