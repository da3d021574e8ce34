/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_amx_bench: what a processor's AMX can do, and the AMX linear kernels on it.
 *
 *     cpu_amx_bench [SECTION]...        roof order units cache kernels (none: all)
 *
 * Times are in cycles of the core: each timed run is followed at once by a chain of dependent
 * multiplications, three cycles each, which gives the clock of that moment. Best of several runs.
 * Threads are bound: "1", "2 of a core", "8" (one of each core) and "16" (all of this machine).
 */
#include <cpuid.h>
#include <immintrin.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/cpu.h"
#include "cpu/x86/tile_amx.h"

#include "cpu/x86/linear_amx.h"

enum { MAX_THREADS = 64, NEAR = 64 * 1024, FAR = 768 * 1024 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *need(size_t bytes) {
    void *p = fm__alloc_zero(bytes);
    if (p == NULL)
        exit(1);
    return p;
}

/* ---- processors ---- */

/* processors[i], i < n_cores: the first of each core; sibling[i]: its second, or -1. */
static int n_cores, first_of[MAX_THREADS], second_of[MAX_THREADS];

static void find_cores(void) {
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && n_cores < MAX_THREADS; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        char path[128], text[64] = "";
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        FILE *file = fopen(path, "r");
        int a = cpu, b = -1;
        if (file != NULL && fgets(text, sizeof text, file) != NULL &&
            sscanf(text, "%d%*[,-]%d", &a, &b) < 2)
            b = -1;
        if (file != NULL)
            fclose(file);
        if (b >= 0 && cpu == (a > b ? a : b) && CPU_ISSET(a < b ? a : b, &allowed))
            continue;
        first_of[n_cores] = cpu;
        second_of[n_cores++] = b < 0 ? -1 : a == cpu ? b : a;
    }
}

typedef struct place {
    const char *name;
    int n, cpus[MAX_THREADS];
} place;

/* Where the system does not tell siblings (in some containers), neighbours are taken for them. */
static place place_of(const char *name, int cores, bool both) {
    place p = {.name = name};
    for (int i = 0; i < n_cores; i++)
        if (second_of[i] < 0 && i + 1 < n_cores && second_of[i + 1] < 0) {
            second_of[i] = first_of[i + 1];
            memmove(first_of + i + 1, first_of + i + 2, sizeof(int) * (size_t)(n_cores - i - 2));
            memmove(second_of + i + 1, second_of + i + 2, sizeof(int) * (size_t)(n_cores - i - 2));
            n_cores--;
        }
    for (int i = 0; i < cores && i < n_cores; i++)
        p.cpus[p.n++] = first_of[i];
    for (int i = 0; both && i < cores && i < n_cores; i++)
        if (second_of[i] >= 0 && p.n < MAX_THREADS)
            p.cpus[p.n++] = second_of[i];
    return p;
}

/* ---- what runs ---- */

typedef struct thread thread;
typedef void run_fn(thread *t, uint64_t rounds);

struct thread {
    uint8_t *near_a, *near_b, *near_c; /* NEAR bytes each, mostly in L1 as little of them is used */
    uint8_t *far_a, *far_b;            /* FAR bytes each: in L2 */
    void *scratch;
    const void *job;
    run_fn *run;
    uint64_t rounds;
    int cpu;
    pthread_barrier_t *barrier;
    pthread_t id;
    double took, ghz;
    int phase; /* 0: warming up, 1: timed */
};

static atomic_uint taken[2]; /* tasks, in each phase */

/* Multiplications that wait for each other, three cycles each (additions of constants are done
   several a cycle by some processors). */
static uint64_t chain(uint64_t n) {
    uint64_t x = n | 1;
    for (uint64_t i = 0; i < n; i += 32)
        __asm__ volatile(".rept 32\n imul %0, %0\n .endr" : "+r"(x));
    return x;
}

static double clock_now(void) {
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        const double begin = now();
        chain(32 * 400);
        const double took = now() - begin;
        best = took < best ? took : best;
    }
    return 3 * 32 * 400 / best * 1e-9;
}

static void *thread_main(void *argument) {
    thread *t = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(t->cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    fm__amx_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    FM__TILE_CONFIG(&config);
    t->phase = 0;
    t->run(t, t->rounds / 8 + 1);
    pthread_barrier_wait(t->barrier);
    t->phase = 1;
    const double begin = now();
    t->run(t, t->rounds);
    t->took = now() - begin;
    t->ghz = clock_now();
    pthread_barrier_wait(t->barrier);
    FM__TILE_RELEASE();
    return NULL;
}

static thread threads[MAX_THREADS];

/* Nanoseconds a round of the slowest thread, best of `repeats`; *ghz is the clock then. */
static double measure(const place *p, run_fn *run, const void *job, uint64_t rounds, int repeats,
                      double *ghz) {
    double best = 1e9;
    for (int r = 0; r < repeats; r++) {
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, (unsigned)p->n);
        atomic_store(&taken[0], 0);
        atomic_store(&taken[1], 0);
        for (int i = 0; i < p->n; i++) {
            thread *t = &threads[i];
            if (t->near_a == NULL) {
                t->near_a = need(NEAR);
                t->near_b = need(NEAR);
                t->near_c = need(NEAR);
                t->far_a = need(FAR);
                t->far_b = need(FAR);
                t->scratch = need(FM__LINEAR_SCRATCH);
            }
            t->run = run;
            t->job = job;
            t->rounds = rounds;
            t->cpu = p->cpus[i];
            t->barrier = &barrier;
            if (pthread_create(&t->id, NULL, thread_main, t) != 0)
                exit(1);
        }
        double worst = 0, clock = 0;
        for (int i = 0; i < p->n; i++) {
            pthread_join(threads[i].id, NULL);
            worst = threads[i].took > worst ? threads[i].took : worst;
            clock += threads[i].ghz / p->n;
        }
        pthread_barrier_destroy(&barrier);
        if (worst < best) {
            best = worst;
            *ghz = clock;
        }
    }
    return best * 1e9 / (double)rounds;
}

/* Cycles a round. */
static double cycles(const place *p, run_fn *run, uint64_t rounds) {
    double ghz = 0;
    const double ns = measure(p, run, NULL, rounds, 5, &ghz);
    return ns * ghz;
}

/* ---- units: pieces of tile work beside other work ---- */

/* Tile work, four units of it; %[a], %[b], %[c]: memory, %[s]: 64. */
#define A "(%[a],%[s],1)"
#define B "(%[b],%[s],1)"
#define C(i) i "*1024(%[c],%[s],1)"
#define DOT(c) "tdpbssd %%tmm6, %%tmm4, %%tmm" c "\n"
#define BASE_none(i) ""
#define BASE_zero(i) "tilezero %%tmm" i "\n"
#define BASE_dot(i) DOT(i)
#define BASE_load(i) "tileloadd " A ", %%tmm" i "\n"
#define BASE_load4(i) "tileloadd " A ", %%tmm4\n"
#define BASE_store(i) "tilestored %%tmm" i ", " C(i) "\n"
#define BASE_loads_dot(i)                                                                          \
    "tileloadd " A ", %%tmm4\n"                                                                    \
    "tileloadd " B ", %%tmm6\n" DOT(i)
#define BASE_dot_store(i) "tilezero %%tmm" i "\n" DOT(i) "tilestored %%tmm" i ", " C(i) "\n"
#define BASE_all(i)                                                                                \
    "tileloadd " A ", %%tmm4\n"                                                                    \
    "tileloadd " B ", %%tmm6\n"                                                                    \
    "tilezero %%tmm" i "\n" DOT(i) "tilestored %%tmm" i ", " C(i) "\n"

/* Other work. On two 512-bit ports (0 and 5) `vector` takes 16 cycles. */
#define WITH_nothing ""
#define WITH_nop96 ".rept 96\n nop\n .endr\n"
#define WITH_add64                                                                                 \
    ".rept 8\n add $1,%%r8\n add $1,%%r9\n add $1,%%r10\n add $1,%%r11\n add $1,%%r12\n"           \
    " add $1,%%r13\n add $1,%%r14\n add $1,%%r15\n .endr\n"
#define EIGHT(op, last)                                                                            \
    op "zmm16," last "zmm16\n" op "zmm17," last "zmm17\n" op "zmm18," last "zmm18\n" op            \
       "zmm19," last "zmm19\n" op "zmm20," last "zmm20\n" op "zmm21," last "zmm21\n" op            \
       "zmm22," last "zmm22\n" op "zmm23," last "zmm23\n"
#define WITH_vector32 ".rept 4\n" EIGHT("vaddps %%zmm31,%%", "%%") ".endr\n"
#define WITH_port5_16 ".rept 2\n" EIGHT("vpermd %%zmm31,%%", "%%") ".endr\n"
#define WITH_port0_16 ".rept 2\n" EIGHT("vpsllvd %%zmm31,%%", "%%") ".endr\n"
#define WITH_half48                                                                                \
    ".rept 6\n vpaddd %%ymm0,%%ymm1,%%ymm1\n vpaddd %%ymm0,%%ymm2,%%ymm2\n"                        \
    " vpaddd %%ymm0,%%ymm3,%%ymm3\n vpaddd %%ymm0,%%ymm4,%%ymm4\n"                                 \
    " vpaddd %%ymm0,%%ymm5,%%ymm5\n vpaddd %%ymm0,%%ymm6,%%ymm6\n"                                 \
    " vpaddd %%ymm0,%%ymm7,%%ymm7\n vpaddd %%ymm0,%%ymm8,%%ymm8\n .endr\n"
#define WITH_load32                                                                                \
    ".rept 8\n vmovaps 4096(%[b]),%%zmm16\n vmovaps 4160(%[b]),%%zmm17\n"                          \
    " vmovaps 4224(%[b]),%%zmm18\n vmovaps 4288(%[b]),%%zmm19\n .endr\n"
#define WITH_store16                                                                               \
    ".rept 4\n vmovaps %%zmm16,8192(%[c])\n vmovaps %%zmm16,8256(%[c])\n"                          \
    " vmovaps %%zmm16,8320(%[c])\n vmovaps %%zmm16,8384(%[c])\n .endr\n"

#define BASES(X, with)                                                                             \
    X(none, with)                                                                                  \
    X(zero, with)                                                                                  \
    X(dot, with)                                                                                   \
    X(load, with)                                                                                  \
    X(store, with)                                                                                 \
    X(loads_dot, with)                                                                             \
    X(dot_store, with)                                                                             \
    X(all, with)
#define WITHS(X)                                                                                   \
    X(nothing)                                                                                     \
    X(nop96)                                                                                       \
    X(add64)                                                                                       \
    X(vector32)                                                                                    \
    X(port5_16)                                                                                    \
    X(port0_16)                                                                                    \
    X(half48)                                                                                      \
    X(load32)                                                                                      \
    X(store16)

#define UNIT(base, with)                                                                           \
    static void unit_##base##_##with(thread *t, uint64_t rounds) {                                 \
        for (uint64_t i = 0; i < rounds; i += 4)                                                   \
            __asm__ volatile(                                                                      \
                BASE_##base("0") WITH_##with BASE_##base("1") WITH_##with BASE_##base("2")         \
                    WITH_##with BASE_##base("3") WITH_##with                                       \
                :                                                                                  \
                : [a] "r"(t->near_a), [b] "r"(t->near_b), [c] "r"(t->near_c), [s] "r"(64l)         \
                : "memory", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm1", "xmm2",  \
                  "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm16", "xmm17", "xmm18",       \
                  "xmm19", "xmm20", "xmm21", "xmm22", "xmm23");                                    \
    }
#define UNITS(with) BASES(UNIT, with)
WITHS(UNITS)

static void section_units(const place *p) {
    static const char *const bases[] = {"nothing", "tilezero",     "dot",           "load",
                                        "store",   "2 loads, dot", "dot and store", "all of it"};
#define NAME(base, with) unit_##base##_##with,
#define ROW(with) {#with, {BASES(NAME, with)}},
    static const struct {
        const char *name;
        run_fn *run[8];
    } rows[] = {WITHS(ROW)};
    printf("units, %s: cycles of tile work (columns) beside other work (rows)\n%-10s", p->name, "");
    for (size_t i = 0; i < 8; i++)
        printf(" %13s", bases[i]);
    printf("\n");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        printf("%-10s", rows[r].name);
        for (size_t i = 0; i < 8; i++)
            if (r == 0 && i == 0)
                printf(" %13s", "");
            else
                printf(" %13.1f", cycles(p, rows[r].run[i], 40000));
        printf("\n");
        fflush(stdout);
    }
}

/* ---- order: what tile instructions wait for ---- */

#define LOAD_A(t) "tileloadd " A ", %%tmm" t "\n"
#define LOAD_B(t) "tileloadd " B ", %%tmm" t "\n"
#define ZERO(t) "tilezero %%tmm" t "\n"
#define STORE(t) "tilestored %%tmm" t ", " C(t) "\n"
#define DOT3(c, a, b) "tdpbssd %%tmm" b ", %%tmm" a ", %%tmm" c "\n"

/* X(id, name, products, asm) */
#define ORDERS(X)                                                                                  \
    X(o1, "4 products, 4 C", 4,                                                                    \
      DOT3("0", "4", "6") DOT3("1", "4", "6") DOT3("2", "4", "6") DOT3("3", "4", "6"))             \
    X(o2, "4 products, one C", 4,                                                                  \
      DOT3("0", "4", "6") DOT3("0", "4", "6") DOT3("0", "4", "6") DOT3("0", "4", "6"))             \
    X(o3, "loads to one tile", 4, LOAD_A("4") LOAD_A("4") LOAD_A("4") LOAD_A("4"))                 \
    X(o4, "loads to four tiles", 4, LOAD_A("4") LOAD_A("5") LOAD_A("6") LOAD_A("7"))               \
    X(o5, "products, as many loads that none needs", 4,                                            \
      DOT3("0", "4", "6") LOAD_A("5") DOT3("1", "4", "6") LOAD_A("7") DOT3("2", "4", "6")          \
          LOAD_A("5") DOT3("3", "4", "6") LOAD_A("7"))                                             \
    X(o6, "one load a product, one A", 4,                                                          \
      LOAD_A("4") DOT3("0", "4", "6") LOAD_A("4") DOT3("1", "4", "6") LOAD_A("4")                  \
          DOT3("2", "4", "6") LOAD_A("4") DOT3("3", "4", "6"))                                     \
    X(o7, "one load a product, two A", 4,                                                          \
      LOAD_A("4") DOT3("0", "4", "6") LOAD_A("5") DOT3("1", "5", "6") LOAD_A("4")                  \
          DOT3("2", "4", "6") LOAD_A("5") DOT3("3", "5", "6"))                                     \
    X(o8, "one load a product, two A, loads a product ahead", 4,                                   \
      LOAD_A("5") DOT3("0", "4", "6") LOAD_A("4") DOT3("1", "5", "6") LOAD_A("5")                  \
          DOT3("2", "4", "6") LOAD_A("4") DOT3("3", "5", "6"))                                     \
    X(o9, "one load a product, three A, two ahead", 6,                                             \
      LOAD_A("7") DOT3("0", "4", "6") LOAD_A("4") DOT3("1", "5", "6") LOAD_A("5")                  \
          DOT3("2", "7", "6") LOAD_A("7") DOT3("3", "4", "6") LOAD_A("4") DOT3("0", "5", "6")      \
              LOAD_A("5") DOT3("1", "7", "6"))                                                     \
    X(p1, "two loads a product, one A, one B", 4,                                                  \
      LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6") LOAD_A("4") LOAD_B("6") DOT3("1", "4", "6")      \
          LOAD_A("4") LOAD_B("6") DOT3("2", "4", "6") LOAD_A("4") LOAD_B("6") DOT3("3", "4", "6")) \
    X(p2, "two loads a product, two A, two B", 4,                                                  \
      LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6") LOAD_A("5") LOAD_B("7") DOT3("1", "5", "7")      \
          LOAD_A("4") LOAD_B("6") DOT3("2", "4", "6") LOAD_A("5") LOAD_B("7") DOT3("3", "5", "7")) \
    X(p3, "two loads a product, three A, three B", 6,                                              \
      LOAD_A("2") LOAD_B("3") DOT3("0", "2", "3") LOAD_A("4") LOAD_B("5") DOT3("1", "4", "5")      \
          LOAD_A("6") LOAD_B("7") DOT3("0", "6", "7") LOAD_A("2") LOAD_B("3") DOT3("1", "2", "3")  \
              LOAD_A("4") LOAD_B("5") DOT3("0", "4", "5") LOAD_A("6") LOAD_B("7")                  \
                  DOT3("1", "6", "7"))                                                             \
    X(q1, "2x2: loads, then products", 4,                                                          \
      LOAD_A("4") LOAD_B("6") LOAD_A("5") LOAD_B("7") DOT3("0", "4", "6") DOT3("1", "4", "7")      \
          DOT3("2", "5", "6") DOT3("3", "5", "7"))                                                 \
    X(q2, "2x2: each load before its first product", 4,                                            \
      LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6") LOAD_B("7") DOT3("1", "4", "7") LOAD_A("5")      \
          DOT3("2", "5", "6") DOT3("3", "5", "7"))                                                 \
    X(q3, "2x2: each load behind its last product", 4,                                             \
      DOT3("0", "4", "6") DOT3("1", "4", "7") LOAD_A("4") DOT3("2", "5", "6") LOAD_B("6")          \
          DOT3("3", "5", "7") LOAD_A("5") LOAD_B("7"))                                             \
    X(q4, "1x2, operands twice", 4,                                                                \
      LOAD_A("2") LOAD_B("3") LOAD_B("4") DOT3("0", "5", "6") DOT3("1", "5", "7") LOAD_A("5")      \
          LOAD_B("6") LOAD_B("7") DOT3("0", "2", "3") DOT3("1", "2", "4"))                         \
    X(r1, "zero, product, 4 C", 4,                                                                 \
      ZERO("0") DOT3("0", "4", "6") ZERO("1") DOT3("1", "4", "6") ZERO("2") DOT3("2", "4", "6")    \
          ZERO("3") DOT3("3", "4", "6"))                                                           \
    X(r2, "products, as many stores of other tiles", 4,                                            \
      DOT3("0", "4", "6") STORE("2") DOT3("1", "4", "6") STORE("3") DOT3("0", "4", "6") STORE("2") \
          DOT3("1", "4", "6") STORE("3"))                                                          \
    X(r3, "zero, product, store at once, 4 C", 4,                                                  \
      ZERO("0") DOT3("0", "4", "6") STORE("0") ZERO("1") DOT3("1", "4", "6") STORE("1") ZERO("2")  \
          DOT3("2", "4", "6") STORE("2") ZERO("3") DOT3("3", "4", "6") STORE("3"))                 \
    X(r4, "store of the product three before, zero, product, 4 C", 4,                              \
      STORE("0") ZERO("0") DOT3("0", "4", "6") STORE("1") ZERO("1") DOT3("1", "4", "6") STORE("2") \
          ZERO("2") DOT3("2", "4", "6") STORE("3") ZERO("3") DOT3("3", "4", "6"))                  \
    X(r5, "four products, four stores", 4,                                                         \
      ZERO("0") DOT3("0", "4", "6") ZERO("1") DOT3("1", "4", "6") ZERO("2") DOT3("2", "4", "6")    \
          ZERO("3") DOT3("3", "4", "6") STORE("0") STORE("1") STORE("2") STORE("3"))               \
    X(r6, "four products, four stores, six C, no wait", 6,                                         \
      ZERO("0") DOT3("0", "6", "7") STORE("3") ZERO("1") DOT3("1", "6", "7") STORE("4") ZERO("2")  \
          DOT3("2", "6", "7") STORE("5") ZERO("3") DOT3("3", "6", "7") STORE("0") ZERO("4")        \
              DOT3("4", "6", "7") STORE("1") ZERO("5") DOT3("5", "6", "7") STORE("2"))             \
    X(r8, "C loaded, product, 4 C", 4,                                                             \
      LOAD_A("0") DOT3("0", "4", "6") LOAD_A("1") DOT3("1", "4", "6") LOAD_A("2")                  \
          DOT3("2", "4", "6") LOAD_A("3") DOT3("3", "4", "6"))                                     \
    X(r9, "C loaded, product, store, 4 C", 4,                                                      \
      LOAD_A("0") DOT3("0", "4", "6") STORE("0") LOAD_A("1") DOT3("1", "4", "6") STORE("1")        \
          LOAD_A("2") DOT3("2", "4", "6") STORE("2") LOAD_A("3") DOT3("3", "4", "6") STORE("3"))   \
    X(s1, "4x1, one A, one B", 4,                                                                  \
      LOAD_B("6") LOAD_A("4") DOT3("0", "4", "6") LOAD_A("4") DOT3("1", "4", "6") LOAD_A("4")      \
          DOT3("2", "4", "6") LOAD_A("4") DOT3("3", "4", "6"))                                     \
    X(s2, "6x1, one A, one B", 6,                                                                  \
      LOAD_B("6") LOAD_A("7") DOT3("0", "7", "6") LOAD_A("7") DOT3("1", "7", "6") LOAD_A("7")      \
          DOT3("2", "7", "6") LOAD_A("7") DOT3("3", "7", "6") LOAD_A("7") DOT3("4", "7", "6")      \
              LOAD_A("7") DOT3("5", "7", "6"))                                                     \
    X(s3, "1x4, one A, one B", 4,                                                                  \
      LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6") LOAD_B("6") DOT3("1", "4", "6") LOAD_B("6")      \
          DOT3("2", "4", "6") LOAD_B("6") DOT3("3", "4", "6"))                                     \
    X(s4, "2x2, one A, one B, 8 loads", 4,                                                         \
      LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6") LOAD_A("4") LOAD_B("6") DOT3("1", "4", "6")      \
          LOAD_A("4") LOAD_B("6") DOT3("2", "4", "6") LOAD_A("4") LOAD_B("6") DOT3("3", "4", "6")) \
    X(s5, "4x1, two C", 4,                                                                         \
      LOAD_B("6") LOAD_A("4") DOT3("0", "4", "6") LOAD_A("4") DOT3("1", "4", "6") LOAD_A("4")      \
          DOT3("0", "4", "6") LOAD_A("4") DOT3("1", "4", "6"))                                     \
    X(s6, "4x1, one C", 4,                                                                         \
      LOAD_B("6") LOAD_A("4") DOT3("0", "4", "6") LOAD_A("4") DOT3("0", "4", "6") LOAD_A("4")      \
          DOT3("0", "4", "6") LOAD_A("4") DOT3("0", "4", "6"))                                     \
    X(s7, "one C, one A, one B", 4,                                                                \
      LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6") LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6")      \
          LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6") LOAD_A("4") LOAD_B("6") DOT3("0", "4", "6")) \
    X(r7, "stores of one tile", 4, STORE("0") STORE("0") STORE("0") STORE("0"))

#define ORDER_RUN(id, name, products, text)                                                        \
    static void order_##id(thread *t, uint64_t rounds) {                                           \
        for (uint64_t i = 0; i < rounds; i += products)                                            \
            __asm__ volatile(                                                                      \
                text                                                                               \
                :                                                                                  \
                : [a] "r"(t->near_a), [b] "r"(t->near_b), [c] "r"(t->near_c), [s] "r"(64l)         \
                : "memory");                                                                       \
    }
ORDERS(ORDER_RUN)

static void section_order(const place *one, const place *all) {
#define ORDER_ROW(id, name, products, text) {name, order_##id},
    static const struct {
        const char *name;
        run_fn *run;
    } rows[] = {ORDERS(ORDER_ROW)};
    printf("order: of each product (or load, store): cycles, ns; %s, %s\n", one->name, all->name);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double ghz = 0, ghz_all = 0;
        const double ns = measure(one, rows[r].run, NULL, 120000, 5, &ghz);
        const double ns_all = measure(all, rows[r].run, NULL, 120000, 5, &ghz_all);
        printf("  %-56s %6.1f (%5.1f ns)  %6.1f (%5.1f ns)\n", rows[r].name, ns * ghz, ns,
               ns_all * ghz_all, ns_all);
        fflush(stdout);
    }
}

/* ---- cache: where operands come from ---- */

#define LOAD_STREAM(t, p, stride)                                                                  \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(p), "r"((size_t)(stride)) : "memory")

typedef struct flow {
    int tokens, panels;      /* tiles: 2 x 2, 1 x 4 */
    size_t bytes_a, bytes_b; /* of a thread, walked over and over */
    size_t fetch;            /* bytes ahead that A is asked for; 0: not */
    bool stream;             /* A by tileloaddt1 */
    bool fetch_b;
} flow;

FM__INLINE void flow_fetch(const uint8_t *p) {
    FM__UNROLL for (int i = 0; i < 16; i++) _mm_prefetch((const char *)p + 64 * i, _MM_HINT_T0);
}

/* A round is a product. */
FM__INLINE void flow_run(const flow f, thread *t, uint64_t rounds) {
    const uint8_t *a = f.bytes_a > NEAR ? t->far_a : t->near_a;
    const uint8_t *b = f.bytes_b > NEAR ? t->far_b : t->near_b;
    size_t at_a = 0, at_b = 0;
    for (uint64_t i = 0; i < rounds; i += 4) {
#define NEXT_A(T)                                                                                  \
    do {                                                                                           \
        if (f.stream)                                                                              \
            LOAD_STREAM(T, a + at_a, 64);                                                          \
        else                                                                                       \
            FM__TILE_LOAD(T, a + at_a, 64);                                                        \
        if (f.fetch)                                                                               \
            flow_fetch(a + (at_a + f.fetch) % f.bytes_a);                                          \
        at_a = (at_a + 1024) % f.bytes_a;                                                          \
    } while (0)
#define NEXT_B(T)                                                                                  \
    do {                                                                                           \
        FM__TILE_LOAD(T, b + at_b, 64);                                                            \
        if (f.fetch_b)                                                                             \
            flow_fetch(b + (at_b + f.fetch) % f.bytes_b);                                          \
        at_b = (at_b + 1024) % f.bytes_b;                                                          \
    } while (0)
        NEXT_A(4);
        NEXT_B(6);
        FM__TILE_DOT_BF16(0, 4, 6);
        if (f.panels == 2) {
            NEXT_B(7);
            FM__TILE_DOT_BF16(1, 4, 7);
            NEXT_A(5);
            FM__TILE_DOT_BF16(2, 5, 6);
            FM__TILE_DOT_BF16(3, 5, 7);
        } else {
            NEXT_B(7);
            FM__TILE_DOT_BF16(1, 4, 7);
            NEXT_B(5);
            FM__TILE_DOT_BF16(2, 4, 5);
            NEXT_B(6);
            FM__TILE_DOT_BF16(3, 4, 6);
        }
    }
}

enum { K8 = 8192, K16 = 16384, K32 = 32768, K256 = 262144 };

#define FLOWS(X)                                                                                   \
    X(p22_near, "2x2, A 8K, B 8K", 2, 2, K8, K8, 0, 0, 0)                                          \
    X(p22_16, "2x2, A 256K, B 16K", 2, 2, K256, K16, 0, 0, 0)                                      \
    X(p22_32, "2x2, A 256K, B 32K", 2, 2, K256, K32, 0, 0, 0)                                      \
    X(p22_16s, "2x2, A 256K streamed, B 16K", 2, 2, K256, K16, 0, 1, 0)                            \
    X(p22_32s, "2x2, A 256K streamed, B 32K", 2, 2, K256, K32, 0, 1, 0)                            \
    X(p22_16f2, "2x2, A 256K fetched 2K ahead, B 16K", 2, 2, K256, K16, 2048, 0, 0)                \
    X(p22_16f4, "2x2, A 256K fetched 4K ahead, B 16K", 2, 2, K256, K16, 4096, 0, 0)                \
    X(p22_16f8, "2x2, A 256K fetched 8K ahead, B 16K", 2, 2, K256, K16, 8192, 0, 0)                \
    X(p22_far, "2x2, A 256K, B 256K", 2, 2, K256, K256, 0, 0, 0)                                   \
    X(p22_farf, "2x2, A 256K, B 256K, both fetched 4K ahead", 2, 2, K256, K256, 4096, 0, 1)        \
    X(p14_near, "1x4, A 8K, B 8K", 1, 4, K8, K8, 0, 0, 0)                                          \
    X(p14_16, "1x4, A 256K, B 16K", 1, 4, K256, K16, 0, 0, 0)                                      \
    X(p14_32, "1x4, A 256K, B 32K", 1, 4, K256, K32, 0, 0, 0)                                      \
    X(p14_16s, "1x4, A 256K streamed, B 16K", 1, 4, K256, K16, 0, 1, 0)                            \
    X(p14_32s, "1x4, A 256K streamed, B 32K", 1, 4, K256, K32, 0, 1, 0)                            \
    X(p14_16f, "1x4, A 256K fetched 2K ahead, B 16K", 1, 4, K256, K16, 2048, 0, 0)                 \
    X(p14_32f, "1x4, A 256K fetched 2K ahead, B 32K", 1, 4, K256, K32, 2048, 0, 0)

#define FLOW_RUN(id, name, ...)                                                                    \
    static void flow_##id(thread *t, uint64_t rounds) {                                            \
        flow_run((flow){__VA_ARGS__}, t, rounds);                                                  \
    }
FLOWS(FLOW_RUN)

static void section_cache(const place *one, const place *two, const place *all) {
#define FLOW_ROW(id, name, ...) {name, flow_##id},
    static const struct {
        const char *name;
        run_fn *run;
    } rows[] = {FLOWS(FLOW_ROW)};
    printf("cache: cycles a product; %s, %s, %s (of each thread)\n", one->name, two->name,
           all->name);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        printf("  %-44s %6.1f %6.1f %6.1f\n", rows[r].name, cycles(one, rows[r].run, 40000),
               cycles(two, rows[r].run, 40000), cycles(all, rows[r].run, 40000));
        fflush(stdout);
    }
}

static void section_roof(const place *places, int n) {
    printf("roof: products of 16 x 64 x 16 int8, ns and cycles of each thread, TOP/s of all\n");
    for (int i = 0; i < n; i++) {
        double ghz = 0;
        const double ns = measure(&places[i], unit_dot_nothing, NULL, 400000, 3, &ghz);
        printf("  %-10s %2d threads  %5.2f ns  %5.2f GHz  %5.1f cycles  %6.2f TOP/s\n",
               places[i].name, places[i].n, ns, ghz, ns * ghz,
               2.0 * 16 * 64 * 16 / ns * 1e-3 * places[i].n);
        double vector = measure(&places[i], unit_none_vector32, NULL, 400000, 3, &ghz);
        printf("  %-10s 32 vector additions  %5.2f ns  %5.2f GHz  %5.1f cycles\n", "", vector, ghz,
               vector * ghz);
    }
}

/* ---- kernels ---- */

enum { MAX_N = 4096, MAX_TOKENS = 512, OUT_STRIDE = MAX_N + 16 };

typedef struct candidate {
    const char *type, *name;
    fm__linear_fn *fn;
    bool prepared; /* reads tokens that are prepared before */
} candidate;

static fm__linear_args problem_of(const fm__kernels *table, const fm__type *t, uint32_t n,
                                  uint32_t k, uint32_t tokens) {
    fm__linear_args args = {.type = t,
                            .layout = fm__panel_layout_of(t, k),
                            .n = n,
                            .k = k,
                            .panel_end = n / FM__PANEL_ROWS,
                            .act_layout = fm__act_layout_of(t->act[!t->quantised], k),
                            .tokens = tokens,
                            .out_stride = OUT_STRIDE};
    if (!t->quantised) /* rows of 4096 bf16 share the sets of the L1 cache */
        args.act_layout.stride += 64;
    const size_t bytes = n / FM__PANEL_ROWS * args.layout.stride;
    uint8_t *panels = need(bytes), *act = need(tokens * args.act_layout.stride);
    float *x = need(k * sizeof *x);
    fm__random random;
    fm__random_seed(&random, 1);
    if (t->quantised) {
        for (size_t i = 0; i + 8 <= bytes; i += 8) {
            const uint64_t word = fm__random_next(&random);
            memcpy(panels + i, &word, 8);
        }
        /* scales are to be what packing makes */
        for (uint32_t p = 0; p < n / FM__PANEL_ROWS; p++) {
            uint8_t *base = panels + p * args.layout.stride;
            if (t->block == 256)
                for (uint8_t *sub = base + args.layout.sub; sub < base + args.layout.d; sub++)
                    *sub = t->dtype == FM__Q3_K ? (uint8_t)((*sub & 63) - 32)
                           : t->has_min         ? *sub & 63
                                                : *sub;
            memset(base + args.layout.d, 0x2b, args.layout.stride - args.layout.d);
        }
    } else {
        for (size_t i = 0; i + 2 <= bytes; i += 2) {
            const float value = (float)fm__random_double(&random) - 0.5f;
            memcpy(panels + i, (const uint8_t *)&value + 2, 2);
        }
    }
    for (uint32_t i = 0; i < tokens; i++) {
        for (uint32_t j = 0; j < k; j++)
            x[j] = (float)fm__random_double(&random) - 0.5f;
        table->quantise[t->act[!t->quantised]](x, k, &args.act_layout,
                                               act + i * args.act_layout.stride);
    }
    fm__free(x);
    args.panels = panels;
    args.act = act;
    return args;
}

static const fm__type *type_named(const char *name) {
    for (size_t i = 0; i < fm__type_count(); i++)
        if (strcmp(fm__type_at(i)->name, name) == 0)
            return fm__type_at(i);
    exit(1);
}

static void problem_free(const fm__linear_args *args) {
    fm__free((void *)(uintptr_t)args->panels);
    fm__free((void *)(uintptr_t)args->act);
}

/* A call cut into tasks, or the same call in every thread. */
typedef struct job {
    fm__linear_args args;
    fm__linear_fn *fn;
    uint32_t panels, tokens; /* of a task */
} job;

static void call_cut(thread *t, uint64_t rounds) {
    const job *j = t->job;
    const uint32_t by_panels = (j->args.panel_end + j->panels - 1) / j->panels;
    const uint32_t by_tokens = (j->args.tokens + j->tokens - 1) / j->tokens;
    const uint32_t tasks = by_panels * by_tokens;
    for (;;) {
        uint32_t i = atomic_fetch_add(&taken[t->phase], 1);
        if (i >= rounds * tasks)
            return;
        i %= tasks;
        fm__linear_args args = j->args;
        const uint32_t token = i % by_tokens * j->tokens;
        args.panel_begin = i / by_tokens * j->panels;
        args.panel_end = args.panel_begin + j->panels < j->args.panel_end
                             ? args.panel_begin + j->panels
                             : j->args.panel_end;
        args.act += token * args.act_layout.stride;
        args.prepared_first = token;
        args.out += token * args.out_stride;
        args.tokens = j->args.tokens - token < j->tokens ? j->args.tokens - token : j->tokens;
        args.scratch = t->scratch;
        j->fn(&args);
    }
}

/* What `b` differs from `a` by, relative to the greatest of a. */
static double difference(const float *a, const float *b, size_t n) {
    double most = 0, greatest = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = a[i] > b[i] ? (double)a[i] - b[i] : (double)b[i] - a[i];
        most = d > most || d != d ? d : most;
        greatest = a[i] > greatest ? a[i] : greatest;
    }
    return most / greatest;
}

/* The first candidate of a type is what the others are compared with. */
static void whole_calls(const fm__kernels *table, const fm__linear_shared *shared,
                        const candidate *list, size_t n, const place *places, int n_places,
                        int repeats) {
    const fm__type *t = type_named(list[0].type);
    fm__linear_args args = problem_of(table, t, MAX_N, 4096, MAX_TOKENS);
    const size_t floats = (size_t)MAX_TOKENS * OUT_STRIDE;
    uint8_t *prepared = need(shared->bytes(MAX_TOKENS, args.k));
    args.prepared = prepared;
    args.prepared_tokens = MAX_TOKENS;
    double took = 1e9;
    for (int r = 0; r < 3; r++) {
        const double begin = now();
        for (uint32_t unit = 0; unit < shared->units(MAX_TOKENS, args.k); unit++)
            shared->prepare(&args, unit);
        took = now() - begin < took ? now() - begin : took;
    }
    args.prepared = NULL;
    printf("  %-8s preparing all tokens: %.3f ms of one thread\n", list[0].type, 1e3 * took);
    float *expected = need(floats * sizeof *expected), *out = need(floats * sizeof *out);
    double best[8][8];
    for (size_t c = 0; c < n; c++)
        for (int p = 0; p < n_places; p++)
            best[c][p] = 1e30;
    for (int r = 0; r < repeats; r++)
        for (int p = 0; p < n_places; p++)
            for (size_t i = 0; i < n && (places[p].n > 1 || r < 2); i++) { /* one: slow */
                const size_t c = r % 2 ? n - 1 - i : i;
                job j = {args, list[c].fn, 16, 256};
                j.args.out = c == 0 ? expected : out;
                j.args.prepared = list[c].prepared ? prepared : NULL;
                double ghz;
                const uint64_t rounds = places[p].n > 1 ? 4 : 1;
                const double ns = measure(&places[p], call_cut, &j, rounds, 1, &ghz);
                best[c][p] = ns < best[c][p] ? ns : best[c][p];
            }
    for (size_t c = 0; c < n; c++) {
        printf("  %-8s %-28s", list[c].type, list[c].name);
        for (int p = 0; p < n_places; p++)
            printf("  %6.3f TOP/s x%4.2f", 2e-3 * MAX_N * 4096 * MAX_TOKENS / best[c][p],
                   best[0][p] / best[c][p]);
        if (c > 0) {
            memset(out, 0, floats * sizeof *out);
            job j = {args, list[c].fn, 16, 256};
            j.args.out = out;
            j.args.prepared = list[c].prepared ? prepared : NULL;
            double ghz;
            measure(&places[n_places - 1], call_cut, &j, 1, 1, &ghz);
            if (memcmp(expected, out, floats * sizeof *out) == 0)
                printf("  same bits");
            else
                printf("  differs by %.1e", difference(expected, out, floats));
        }
        printf("\n");
        fflush(stdout);
    }
    problem_free(&args);
    fm__free(prepared);
    fm__free(expected);
    fm__free(out);
}

static void section_kernels(const fm__kernels *vnni, const fm__kernels *amx, const place *one,
                            const place *cores, const place *all) {
    static const char *const types[] = {"q8_0", "q4_0", "q4_k", "q6_k", "q2_k", "bf16"};
    const place places[] = {*one, *cores, *all};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const fm__type *t = type_named(types[i]);
        const int fast = !t->quantised;
        const fm__linear_kernel *a = &vnni->linear[fm__type_index(t)][fast];
        const fm__linear_kernel *b = &amx->linear[fm__type_index(t)][fast];
        const candidate list[] = {{types[i], a->name, a->fn, false},
                                  {types[i], b->name, b->fn, false},
                                  {types[i], "the same, prepared", b->fn, true}};
        const size_t n = sizeof list / sizeof list[0];
        printf("kernels: 4096 x 4096, 512 tokens, tasks of 16 panels x 256 tokens; %s, %s, %s\n",
               one->name, cores->name, all->name);
        whole_calls(vnni, b->shared, list, n, places, 3, 5);
    }
}

static bool asked(int argc, char **argv, const char *section) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], section) == 0)
            return true;
    return argc < 2;
}

int main(int argc, char **argv) {
    const uint32_t wanted = FM__CPU_AMX_INT8 | FM__CPU_AMX_BF16 | FM__CPU_AVX512_VNNI;
    if ((fm__cpu_features() & wanted) != wanted) {
        printf("not supported: AMX (int8 and bf16) that the system grants, and AVX-512 VNNI\n");
        return 77;
    }
    find_cores();
    const place one = place_of("1 thread", 1, false), two = place_of("2 of a core", 1, true),
                cores = place_of("all cores", MAX_THREADS, false),
                all = place_of("all", MAX_THREADS, true);
    const place places[] = {one, two, cores, all};
    uint32_t id, tmul, b = 0, c = 0, d = 0;
    __cpuid_count(1, 0, id, b, c, d);
    __cpuid_count(0x1e, 0, tmul, b, c, d);
    char name[64];
    fm__cpu_name(name, sizeof name);
    printf("%s, %08x, tmul %08x; %d cores, %d threads\n", name, id, b, n_cores, all.n);
    fm__kernels vnni, amx;
    if (fm__kernels_get(&vnni, "avx512", NULL) != FM_OK ||
        fm__kernels_get(&amx, "amx", NULL) != FM_OK)
        return 1;
    if (asked(argc, argv, "roof"))
        section_roof(places, 4);
    if (asked(argc, argv, "order"))
        section_order(&one, &all);
    if (asked(argc, argv, "units"))
        section_units(&one);
    if (asked(argc, argv, "cache"))
        section_cache(&one, &two, &all);
    if (asked(argc, argv, "kernels"))
        section_kernels(&vnni, &amx, &one, &cores, &all);
    return 0;
}
