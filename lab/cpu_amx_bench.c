/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_amx_bench: what a processor's AMX can do; the figures of lab/kernels/017 and 018. The kernels
 * themselves: `fusionml bench kernels --rung avx512,amx`.
 *
 *     cpu_amx_bench [SECTION]...        roof order states units cache (none: all)
 *
 * Times are in cycles of the core: each timed run is followed at once by a chain of dependent
 * multiplications, three cycles each, which gives the clock of that moment. Best of several runs.
 * Threads are bound: "1 thread", "cores" (one of each core), and, where the system tells which
 * processors share a core, "2 of a core" and "all".
 */
#include <cpuid.h>
#include <immintrin.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/x86/linear_amx.h"
#include "cpu/x86/tile_amx.h"
#include "lab.h"

enum { MAX_THREADS = 64, NEAR = 64 * 1024, FAR = 768 * 1024 };

static double now(void) {
    return 1e-9 * (double)fm__now_ns();
}

/* ---- processors ---- */

/* Of n_cores: the first processor of each core, and its second, or -1: there is none to be had, or
   the system does not tell. */
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
        const int other = a == cpu ? b : a;
        second_of[n_cores++] = b >= 0 && CPU_ISSET(other, &allowed) ? other : -1;
    }
}

typedef struct place {
    const char *name;
    int n, cpus[MAX_THREADS];
} place;

static place place_of(const char *name, int cores, bool both) {
    place p = {.name = name};
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
    uint8_t *near_a, *near_b, *near_c; /* NEAR bytes each; what is used of them lies in L1 */
    uint8_t *far_a, *far_b;            /* FAR bytes each: in L2 */
    run_fn *run;
    uint64_t rounds;
    int cpu;
    pthread_barrier_t *barrier;
    pthread_t id;
    double took, ghz;
};

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
    t->run(t, t->rounds / 8 + 1);
    pthread_barrier_wait(t->barrier);
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
static double measure(const place *p, run_fn *run, uint64_t rounds, int repeats, double *ghz) {
    double best = 1e9;
    for (int r = 0; r < repeats; r++) {
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, (unsigned)p->n);
        for (int i = 0; i < p->n; i++) {
            thread *t = &threads[i];
            if (t->near_a == NULL) {
                t->near_a = need(NEAR);
                t->near_b = need(NEAR);
                t->near_c = need(NEAR);
                t->far_a = need(FAR);
                t->far_b = need(FAR);
            }
            t->run = run;
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
    const double ns = measure(p, run, rounds, 5, &ghz);
    return ns * ghz;
}

/* ---- units: pieces of tile work beside other work ---- */

/* Tile work, four units of it; %[a], %[b], %[c]: memory, %[s]: 64. */
#define A "(%[a],%[s],1)"
#define B "(%[b],%[s],1)"
#define C(i) i "*1024(%[c],%[s],1)"
#define DOT(c) "tdpbssd %%tmm6, %%tmm4, %%tmm" c "\n"
#define BASE_none(i) ""
#define BASE_dot(i) DOT(i)
#define BASE_loads_dot(i)                                                                          \
    "tileloadd " A ", %%tmm4\n"                                                                    \
    "tileloadd " B ", %%tmm6\n" DOT(i)
#define BASE_all(i)                                                                                \
    "tileloadd " A ", %%tmm4\n"                                                                    \
    "tileloadd " B ", %%tmm6\n"                                                                    \
    "tilezero %%tmm" i "\n" DOT(i) "tilestored %%tmm" i ", " C(i) "\n"

#define BASE_kept(i)                                                                               \
    "tileloadd " A ", %%tmm4\n"                                                                    \
    "tileloadd " B ", %%tmm6\n" DOT(i) "tilestored %%tmm" i ", " C(i) "\n"

/* Other work. On two 512-bit ports (0 and 5) `vector32` takes 16 cycles. */
#define WITH_nothing ""
#define WITH_nop96 ".rept 96\n nop\n .endr\n"
#define EIGHT(op, last)                                                                            \
    op "zmm16," last "zmm16\n" op "zmm17," last "zmm17\n" op "zmm18," last "zmm18\n" op            \
       "zmm19," last "zmm19\n" op "zmm20," last "zmm20\n" op "zmm21," last "zmm21\n" op            \
       "zmm22," last "zmm22\n" op "zmm23," last "zmm23\n"
#define WITH_vector32 ".rept 4\n" EIGHT("vaddps %%zmm31,%%", "%%") ".endr\n"
#define WITH_vector64 WITH_vector32 WITH_vector32
#define WITH_load32                                                                                \
    ".rept 8\n vmovaps 4096(%[b]),%%zmm16\n vmovaps 4160(%[b]),%%zmm17\n"                          \
    " vmovaps 4224(%[b]),%%zmm18\n vmovaps 4288(%[b]),%%zmm19\n .endr\n"

#define BASES(X, with)                                                                             \
    X(dot, with)                                                                                   \
    X(loads_dot, with)                                                                             \
    X(all, with)                                                                                   \
    X(kept, with)
#define WITHS(X)                                                                                   \
    X(nothing)                                                                                     \
    X(nop96)                                                                                       \
    X(vector32)                                                                                    \
    X(vector64)                                                                                    \
    X(load32)

#define UNIT(base, with)                                                                           \
    static void unit_##base##_##with(thread *t, uint64_t rounds) {                                 \
        for (uint64_t i = 0; i < rounds; i += 4)                                                   \
            __asm__ volatile(                                                                      \
                BASE_##base("0") WITH_##with BASE_##base("1") WITH_##with BASE_##base("2")         \
                    WITH_##with BASE_##base("3") WITH_##with                                       \
                :                                                                                  \
                : [a] "r"(t->near_a), [b] "r"(t->near_b), [c] "r"(t->near_c), [s] "r"(64l)         \
                : "memory", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22",         \
                  "xmm23");                                                                        \
    }
#define UNITS(with) BASES(UNIT, with)
WITHS(UNITS)
UNIT(none, vector32)

static void section_units(const place *p) {
    static const char *const bases[] = {"dot", "2 loads, dot", "and zero, store",
                                        "store, not zero"};
#define NAME(base, with) unit_##base##_##with,
#define ROW(with) {#with, {BASES(NAME, with)}},
    static const struct {
        const char *name;
        run_fn *run[4];
    } rows[] = {WITHS(ROW)};
    printf("units, %s: cycles of tile work (columns) beside other work (rows)\n%-10s", p->name, "");
    for (size_t i = 0; i < 4; i++)
        printf(" %15s", bases[i]);
    printf("\n");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        printf("%-10s", rows[r].name);
        for (size_t i = 0; i < 4; i++)
            printf(" %15.1f", cycles(p, rows[r].run[i], 40000));
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

#define K256_STEP                                                                                  \
    LOAD_B("6")                                                                                    \
    LOAD_A("4")                                                                                    \
    DOT3("0", "4", "6")                                                                            \
    LOAD_A("4") DOT3("1", "4", "6") LOAD_B("6") DOT3("2", "4", "6") LOAD_A("4") DOT3("1", "4", "6")
#define K256_DOTS K256_STEP K256_STEP K256_STEP K256_STEP
#define K256_ZERO ZERO("0") ZERO("1") ZERO("2")
#define K256_STORE STORE("0") STORE("1") STORE("2")

/* X(id, name, products, asm) */
#define ORDERS(X)                                                                                  \
    X(o1, "4 products, 4 C", 4,                                                                    \
      DOT3("0", "4", "6") DOT3("1", "4", "6") DOT3("2", "4", "6") DOT3("3", "4", "6"))             \
    X(o2, "4 products, one C", 4,                                                                  \
      DOT3("0", "4", "6") DOT3("0", "4", "6") DOT3("0", "4", "6") DOT3("0", "4", "6"))             \
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
    X(r8, "C loaded, product, 4 C", 4,                                                             \
      LOAD_A("0") DOT3("0", "4", "6") LOAD_A("1") DOT3("1", "4", "6") LOAD_A("2")                  \
          DOT3("2", "4", "6") LOAD_A("3") DOT3("3", "4", "6"))                                     \
    X(t1, "product, store at once, 4 C, never zero", 4,                                            \
      DOT3("0", "4", "6") STORE("0") DOT3("1", "4", "6") STORE("1") DOT3("2", "4", "6") STORE("2") \
          DOT3("3", "4", "6") STORE("3"))                                                          \
    X(t2, "store of the product three before, product, 4 C, never zero", 4,                        \
      STORE("0") DOT3("0", "4", "6") STORE("1") DOT3("1", "4", "6") STORE("2") DOT3("2", "4", "6") \
          STORE("3") DOT3("3", "4", "6"))                                                          \
    X(t3, "product, store at once, one C, never zero", 4,                                          \
      DOT3("0", "4", "6") STORE("0") DOT3("0", "4", "6") STORE("0") DOT3("0", "4", "6") STORE("0") \
          DOT3("0", "4", "6") STORE("0"))                                                          \
    X(t4, "2 loads, product, store of the one before, 2 C, never zero", 4,                         \
      LOAD_B("6") LOAD_A("4") DOT3("0", "4", "6") STORE("1") LOAD_B("6") LOAD_A("4")               \
          DOT3("1", "4", "6") STORE("0") LOAD_B("6") LOAD_A("4") DOT3("0", "4", "6") STORE("1")    \
              LOAD_B("6") LOAD_A("4") DOT3("1", "4", "6") STORE("0"))                              \
    X(t5, "2 loads, product, store of the one before, 4 C, never zero", 4,                         \
      LOAD_B("6") LOAD_A("4") DOT3("0", "4", "6") STORE("3") LOAD_B("6") LOAD_A("4")               \
          DOT3("1", "4", "6") STORE("0") LOAD_B("6") LOAD_A("4") DOT3("2", "4", "6") STORE("1")    \
              LOAD_B("6") LOAD_A("4") DOT3("3", "4", "6") STORE("2"))                              \
    X(t6, "the same, zero before each product", 4,                                                 \
      LOAD_B("6") LOAD_A("4") ZERO("0") DOT3("0", "4", "6") STORE("3") LOAD_B("6") LOAD_A("4")     \
          ZERO("1") DOT3("1", "4", "6") STORE("0") LOAD_B("6") LOAD_A("4") ZERO("2")               \
              DOT3("2", "4", "6") STORE("1") LOAD_B("6") LOAD_A("4") ZERO("3") DOT3("3", "4", "6") \
                  STORE("2"))                                                                      \
    X(u1, "16 products as q4_k's, 3 C zero, stored", 16, K256_ZERO K256_DOTS K256_STORE)           \
    X(u2, "16 products as q4_k's, 3 C never zero, stored", 16, K256_DOTS K256_STORE)               \
    X(u3, "16 products as q4_k's, 3 C never zero, not stored", 16, K256_DOTS)                      \
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
          LOAD_A("4") LOAD_B("6") DOT3("2", "4", "6") LOAD_A("4") LOAD_B("6") DOT3("3", "4", "6"))

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

#define ORDER_ROW(id, name, products, text) {name, order_##id},
static const struct {
    const char *name;
    run_fn *run;
} order_rows[] = {ORDERS(ORDER_ROW)};
enum { N_ORDER = sizeof order_rows / sizeof order_rows[0] };

static void section_order(const place *one, const place *all) {
    printf("order: of each product: cycles, ns; %s, %s\n", one->name, all->name);
    for (int r = 0; r < N_ORDER; r++) {
        double ghz = 0, ghz_all = 0;
        const double ns = measure(one, order_rows[r].run, 120000, 5, &ghz);
        const double ns_all = measure(all, order_rows[r].run, 120000, 5, &ghz_all);
        printf("  %-64s %6.1f (%5.1f ns)  %6.1f (%5.1f ns)\n", order_rows[r].name, ns * ghz, ns,
               ns_all * ghz_all, ns_all);
        fflush(stdout);
    }
}

/* ---- states: the same with the core's other thread at rest and at work ---- */

/* On a virtual machine nobody says whether a core is shared at the moment. A loop of 2 x 2 tiles
   does: 16 to 20 cycles a product alone, 65 to 85 beside something else, and little between. So
   each piece is timed between two runs of it and counts where both agree. */
enum { STATE_PASSES = 60, STATE_ROUNDS = 960, STATE_ORDERS = 64 };

typedef struct state_times {
    float cycles[STATE_ORDERS][STATE_PASSES];  /* of a product */
    uint8_t state[STATE_ORDERS][STATE_PASSES]; /* 0: alone; 1: not; 2: neither, or both */
} state_times;

static state_times states_of[MAX_THREADS];

static double ns_of(thread *t, run_fn *run, uint64_t rounds) {
    const double begin = now();
    run(t, rounds);
    return (now() - begin) * 1e9 / (double)rounds;
}

static int state_of(double before, double behind, double ghz) {
    const double most = (before > behind ? before : behind) * ghz;
    const double least = (before > behind ? behind : before) * ghz;
    return most < 24 ? 0 : least > 45 ? 1 : 2;
}

_Static_assert((int)N_ORDER <= (int)STATE_ORDERS, "room for all");

static void states_run(thread *t, uint64_t rounds) {
    if (rounds < 8) /* warming up */
        return;
    state_times *out = &states_of[t - threads];
    const double ghz = clock_now();
    for (int pass = 0; pass < STATE_PASSES; pass++)
        for (int r = 0; r < N_ORDER; r++) {
            const double before = ns_of(t, order_q1, 400);
            order_rows[r].run(t, STATE_ROUNDS / 6);
            out->cycles[r][pass] = (float)(ns_of(t, order_rows[r].run, STATE_ROUNDS) * ghz);
            out->state[r][pass] = (uint8_t)state_of(before, ns_of(t, order_q1, 400), ghz);
        }
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void section_states(const place *p) {
    static float values[MAX_THREADS * STATE_PASSES];
    double ghz = 0;
    measure(p, states_run, 8, 1, &ghz);
    printf("states, %s: cycles of a product, median (times seen): alone, shared\n", p->name);
    for (int r = 0; r < N_ORDER; r++) {
        printf("  %-64s", order_rows[r].name);
        for (int state = 0; state < 2; state++) {
            size_t n = 0;
            for (int t = 0; t < p->n; t++)
                for (int pass = 0; pass < STATE_PASSES; pass++)
                    if (states_of[t].state[r][pass] == state)
                        values[n++] = states_of[t].cycles[r][pass];
            qsort(values, n, sizeof *values, by_size);
            printf("  %6.1f (%4zu)", n > 0 ? (double)values[n / 2] : 0.0, n);
        }
        printf("\n");
    }
    fflush(stdout);
}

/* ---- cache: where operands come from ---- */

/* Products of 2 x 2 tiles. */
typedef struct flow {
    size_t bytes_a, bytes_b; /* of a thread, walked over and over */
    size_t fetch;            /* bytes ahead that A is asked for; 0: not */
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
        FM__TILE_LOAD(T, a + at_a, 64);                                                            \
        if (f.fetch)                                                                               \
            flow_fetch(a + (at_a + f.fetch) % f.bytes_a);                                          \
        at_a = (at_a + 1024) % f.bytes_a;                                                          \
    } while (0)
#define NEXT_B(T)                                                                                  \
    do {                                                                                           \
        FM__TILE_LOAD(T, b + at_b, 64);                                                            \
        at_b = (at_b + 1024) % f.bytes_b;                                                          \
    } while (0)
        NEXT_A(4);
        NEXT_B(6);
        FM__TILE_DOT_BF16(0, 4, 6);
        NEXT_B(7);
        FM__TILE_DOT_BF16(1, 4, 7);
        NEXT_A(5);
        FM__TILE_DOT_BF16(2, 5, 6);
        FM__TILE_DOT_BF16(3, 5, 7);
    }
}

enum { K8 = 8192, K16 = 16384, K32 = 32768, K256 = 262144 };

#define FLOWS(X)                                                                                   \
    X(near, "A 8K, B 8K", K8, K8, 0)                                                               \
    X(b16, "A 256K, B 16K", K256, K16, 0)                                                          \
    X(b32, "A 256K, B 32K", K256, K32, 0)                                                          \
    X(b16f2, "A 256K fetched 2K ahead, B 16K", K256, K16, 2048)                                    \
    X(b16f4, "A 256K fetched 4K ahead, B 16K", K256, K16, 4096)                                    \
    X(b16f8, "A 256K fetched 8K ahead, B 16K", K256, K16, 8192)                                    \
    X(far, "A 256K, B 256K", K256, K256, 0)

#define FLOW_RUN(id, name, ...)                                                                    \
    static void flow_##id(thread *t, uint64_t rounds) {                                            \
        flow_run((flow){__VA_ARGS__}, t, rounds);                                                  \
    }
FLOWS(FLOW_RUN)

static void section_cache(const place *places, int n) {
#define FLOW_ROW(id, name, ...) {name, flow_##id},
    static const struct {
        const char *name;
        run_fn *run;
    } rows[] = {FLOWS(FLOW_ROW)};
    printf("cache: cycles of a product in blocks of 2 x 2, of each thread\n  %-32s", "");
    for (int i = 0; i < n; i++)
        printf(" %11s", places[i].name);
    printf("\n");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        printf("  %-32s", rows[r].name);
        for (int i = 0; i < n; i++)
            printf(" %11.1f", cycles(&places[i], rows[r].run, 40000));
        printf("\n");
        fflush(stdout);
    }
}

/* ---- roof ---- */

static void section_roof(const place *places, int n) {
    printf("roof: products of 16 x 64 x 16 int8, ns and cycles of each thread, TOP/s of all\n");
    for (int i = 0; i < n; i++) {
        double ghz = 0;
        const double ns = measure(&places[i], unit_dot_nothing, 400000, 3, &ghz);
        printf("  %-11s %2d threads  %5.2f ns  %5.2f GHz  %5.1f cycles  %6.2f TOP/s\n",
               places[i].name, places[i].n, ns, ghz, ns * ghz,
               2.0 * 16 * 64 * 16 / ns * 1e-3 * places[i].n);
        const double vector = measure(&places[i], unit_none_vector32, 400000, 3, &ghz);
        printf("  %-11s 32 vector additions  %5.2f ns  %5.2f GHz  %5.1f cycles\n", "", vector, ghz,
               vector * ghz);
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
    place places[4] = {place_of("1 thread", 1, false), place_of("cores", MAX_THREADS, false)};
    int n = 2;
    if (second_of[0] >= 0) {
        places[n++] = place_of("2 of a core", 1, true);
        places[n++] = place_of("all", MAX_THREADS, true);
    }
    uint32_t id, tmul, b = 0, c = 0, d = 0;
    __cpuid_count(1, 0, id, b, c, d);
    __cpuid_count(0x1e, 0, tmul, b, c, d);
    char name[64];
    fm__cpu_name(name, sizeof name);
    printf("%s, %08x, tmul %08x; %d cores, %d threads\n", name, id, b, n_cores, places[n - 1].n);
    if (asked(argc, argv, "roof"))
        section_roof(places, n);
    if (asked(argc, argv, "order"))
        section_order(&places[0], &places[n - 1]);
    if (asked(argc, argv, "states"))
        section_states(&places[n - 1]);
    if (asked(argc, argv, "units"))
        section_units(&places[0]);
    if (asked(argc, argv, "cache"))
        section_cache(places, n);
    return 0;
}
