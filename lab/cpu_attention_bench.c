/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lab/cpu_attention_bench.c: attention over f16 and over q8_0 in one run, by thread CPU time.
 *
 * Owns: its caches and batches. Never does: check results (tests/kernels does). Usage:
 *     cpu_attention_bench [rung]
 * One thread. Few rows read another layer each time, so that keys and values come from memory.
 * Caches take turns (A B B A); the minimum of all rounds is printed, in ns for a key and head.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "lab.h"

enum { ROUNDS = 8, COLD_BYTES = 256 << 20 };

typedef struct shape {
    const char *name;
    uint32_t heads, kv_heads, dim, rows, depth;
} shape;

static const shape shapes[] = {
    {"14/2 of 64, 512 rows", 14, 2, 64, 512, 0},
    {"14/2 of 64, 512 rows behind 1536", 14, 2, 64, 512, 1536},
    {"32/8 of 128, 512 rows", 32, 8, 128, 512, 0},
    {"16/16 of 64, 256 rows", 16, 16, 64, 256, 0},
    {"14/2 of 64, 1 row behind 4095", 14, 2, 64, 1, 4095},
    {"32/8 of 128, 1 row behind 4095", 32, 8, 128, 1, 4095},
    {"16/16 of 64, 1 row behind 4095", 16, 16, 64, 1, 4095},
    {"14/2 of 64, 1 row behind 255 (cached)", 14, 2, 64, 1, 255},
};

typedef struct bench {
    fm__cache_group group;
    uint8_t *cache;
    uint32_t *table, *position, *sequence;
    const uint32_t *pages[1];
    fm__batch_view batch;
    float *q, *out;
    void *scratch;
} bench;

static void make(bench *b, const shape *s, fm__cache_type type, const fm__kernels *kernels) {
    fm__random random;
    fm__random_seed(&random, 1);
    uint32_t length = s->depth + s->rows, width = s->kv_heads * s->dim;
    b->group = (fm__cache_group){.n_layer = 1,
                                 .n_page = (length + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS,
                                 .n_kv_head = s->kv_heads,
                                 .key_dim = s->dim,
                                 .value_dim = s->dim,
                                 .type = type,
                                 .head_bytes = fm__cache_head_bytes(type, s->dim, s->dim)};
    size_t layer = (size_t)b->group.n_page * s->kv_heads * b->group.head_bytes;
    if (s->rows == 1 && length > 256)
        b->group.n_layer = (uint32_t)(COLD_BYTES / layer + 1);
    b->cache = need(b->group.n_layer * layer);
    b->table = need(b->group.n_page * sizeof *b->table);
    b->position = need(s->rows * sizeof *b->position);
    b->sequence = need(s->rows * sizeof *b->sequence);
    b->q = need((size_t)s->rows * s->heads * s->dim * sizeof(float));
    b->out = need((size_t)s->rows * s->heads * s->dim * sizeof(float));
    b->scratch = need(FM__ATTENTION_SCRATCH);
    float *k = need(2 * width * sizeof *k);
    for (uint32_t p = 0; p < b->group.n_page; p++)
        b->table[p] = p;
    for (uint32_t i = 0; i < length; i++) {
        for (uint32_t j = 0; j < 2 * width; j++)
            k[j] = fm__random_normal(&random);
        kernels->kv_store[type](&b->group, b->cache, i / FM__PAGE_TOKENS, i % FM__PAGE_TOKENS, k,
                                k + width);
    }
    for (uint32_t l = 1; l < b->group.n_layer; l++)
        memcpy(b->cache + l * layer, b->cache, layer);
    for (size_t i = 0; i < (size_t)s->rows * s->heads * s->dim; i++)
        b->q[i] = fm__random_normal(&random);
    for (uint32_t r = 0; r < s->rows; r++) {
        b->position[r] = s->depth + r;
        b->sequence[r] = 0;
    }
    b->pages[0] = b->table;
    b->batch = (fm__batch_view){.n_row = s->rows,
                                .position = b->position,
                                .sequence = b->sequence,
                                .n_sequence = 1,
                                .pages = b->pages,
                                .n_group = 1};
    fm__free(k);
}

static void drop(bench *b) {
    fm__free(b->cache);
    fm__free(b->table);
    fm__free(b->position);
    fm__free(b->sequence);
    fm__free(b->q);
    fm__free(b->out);
    fm__free(b->scratch);
}

/* ns of one call, averaged over enough of them. */
static double once(const bench *b, const shape *s, const fm__kernels *kernels) {
    size_t layer = (size_t)b->group.n_page * s->kv_heads * b->group.head_bytes;
    fm__attention_args args = {.group = &b->group,
                               .batch = &b->batch,
                               .heads = s->heads,
                               .scale = 0.125f,
                               .q = (const uint8_t *)b->q,
                               .q_stride = (size_t)s->heads * s->dim * sizeof(float),
                               .out = (uint8_t *)b->out,
                               .out_stride = (size_t)s->heads * s->dim * sizeof(float),
                               .row_end = s->rows,
                               .kv_end = s->kv_heads,
                               .scratch = b->scratch};
    uint32_t calls = s->rows > 1 ? 1 : b->group.n_layer > 1 ? b->group.n_layer : 300;
    double begin = cpu_seconds();
    for (uint32_t i = 0; i < calls; i++) {
        args.layer_base = b->cache + i % b->group.n_layer * layer;
        kernels->attention[b->group.type](&args);
    }
    return 1e9 * (cpu_seconds() - begin) / calls;
}

int main(int argc, char **argv) {
    fm__kernels kernels;
    MUST(fm__kernels_get(&kernels, argc > 1 ? argv[1] : "auto", why));
    printf("%-40s %9s %9s %7s  (%s, ns a key and head)\n", "", "f16", "q8_0", "ratio",
           kernels.rung);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const shape *s = &shapes[i];
        bench b[2] = {0};
        make(&b[0], s, FM__CACHE_F16, &kernels);
        make(&b[1], s, FM__CACHE_Q8_0, &kernels);
        double best[2] = {1e30, 1e30};
        for (int r = 0; r < 2 * ROUNDS; r++) {
            int which = (r + 1) / 2 % 2;
            double ns = once(&b[which], s, &kernels);
            best[which] = ns < best[which] ? ns : best[which];
        }
        double keys = ((double)s->depth + (s->rows + 1) / 2.0) * s->rows * s->heads;
        printf("%-40s %9.3f %9.3f %7.2f\n", s->name, best[0] / keys, best[1] / keys,
               best[0] / best[1]);
        drop(&b[0]);
        drop(&b[1]);
    }
    return 0;
}
