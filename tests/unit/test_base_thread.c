/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_thread.c: counters under stress, threads, cores, parallel loops, CPU features. */
#include "test.h"

#include <dirent.h>
#include <sched.h>

#include "base/base.h"

/* ---- a ball that several threads pass on: one lost wake-up and the test hangs (and times out)
 * ---- */

enum { PLAYERS = 4, ROUNDS = 20000 };

typedef struct player {
    fm__counter *counters; /* one for each player */
    uint64_t index;
    uint64_t sleep_every; /* lets the others fall asleep now and then */
} player;

static void play(void *argument) {
    player *p = argument;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        fm__counter_wait(&p->counters[p->index], round);
        if (p->sleep_every && round % p->sleep_every == 0) {
            uint64_t until = fm__now_ns() + 40000;
            while (fm__now_ns() < until)
                sched_yield();
        }
        uint64_t next = (p->index + 1) % PLAYERS;
        fm__counter_set(&p->counters[next], next == 0 ? round + 1 : round);
    }
}

static void test_counter_ring(void **state) {
    (void)state;
    fm__counter counters[PLAYERS];
    player players[PLAYERS];
    fm__thread *threads[PLAYERS];
    fm_error error;
    for (int i = 0; i < PLAYERS; i++) {
        fm__counter_init(&counters[i], 0);
        players[i] = (player){counters, (uint64_t)i, i == 2 ? 16 : 0};
    }
    for (int i = 0; i < PLAYERS; i++)
        assert_int_equal(fm__thread_start(&threads[i], play, &players[i], -1, &error), FM_OK);
    fm__counter_set(&counters[0], 1);
    for (int i = 0; i < PLAYERS; i++) {
        fm__thread_join(&threads[i]);
        assert_null(threads[i]);
    }
    assert_int_equal(fm__counter_read(&counters[0]), ROUNDS + 1);
    assert_int_equal(atomic_load(&counters[0].sleepers), 0);
}

/* ---- many waiters, many raisers ---- */

enum { RAISERS = 3, WAITERS = 3, STEPS = 30000 };

typedef struct shared {
    fm__counter up, down;
} shared;

static void raise_up(void *argument) {
    shared *s = argument;
    for (uint64_t i = 1; i <= STEPS; i++) {
        fm__counter_add(&s->up, 1);
        if (i % 1000 == 0)
            fm__counter_wait(&s->down, i / 1000 * WAITERS);
    }
}

static void follow(void *argument) {
    shared *s = argument;
    for (uint64_t i = 1; i <= STEPS / 1000; i++) {
        fm__counter_wait(&s->up, i * 1000 * RAISERS);
        fm__counter_add(&s->down, 1);
    }
}

static void test_counter_crowd(void **state) {
    (void)state;
    for (int repeat = 0; repeat < 10; repeat++) {
        shared s;
        fm__thread *threads[RAISERS + WAITERS];
        fm__counter_init(&s.up, 0);
        fm__counter_init(&s.down, 0);
        for (int i = 0; i < RAISERS + WAITERS; i++)
            assert_int_equal(
                fm__thread_start(&threads[i], i < RAISERS ? raise_up : follow, &s, -1, NULL),
                FM_OK);
        for (int i = 0; i < RAISERS + WAITERS; i++)
            fm__thread_join(&threads[i]);
        assert_int_equal(fm__counter_read(&s.up), RAISERS * STEPS);
        assert_int_equal(fm__counter_read(&s.down), WAITERS * (STEPS / 1000));
    }
}

static void test_counter_past_values(void **state) {
    (void)state;
    fm__counter counter;
    fm__counter_init(&counter, 7);
    fm__counter_wait(&counter, 0);
    fm__counter_wait(&counter, 7);
    fm__counter_set(&counter, UINT64_MAX);
    fm__counter_wait(&counter, UINT64_MAX);
    assert_true(fm__counter_read(&counter) == UINT64_MAX);
}

/* ---- threads ---- */

typedef struct seen {
    int cpu;
    float product;
} seen;

static void look(void *argument) {
    seen *s = argument;
    volatile float tiny = 0x1p-130f; /* subnormal: 0 if the thread flushed */
    s->cpu = sched_getcpu();
    s->product = tiny * 4.0f;
}

static void test_pinning(void **state) {
    (void)state;
    int cpus[1024];
    size_t count = fm__cores(cpus, 1024);
    assert_true(count >= 1);
    for (size_t i = 0; i < count && i < 8; i++) {
        seen s = {-1, 0};
        fm__thread *thread = NULL;
        assert_int_equal(fm__thread_start(&thread, look, &s, cpus[i], NULL), FM_OK);
        fm__thread_join(&thread);
        assert_int_equal(s.cpu, cpus[i]);
        assert_true(s.product == 0x1p-128f);
    }
    fm__thread *none = NULL;
    fm_error error;
    assert_int_equal(fm__thread_start(&none, look, NULL, 100000, &error), FM_ERROR_DEVICE);
    assert_null(none);
    assert_non_null(strstr(error.message, "100000"));
    fm__thread_join(&none);
}

/* As taskset does at a program's start: a sanitizer's own thread counts too. */
static void set_affinity_of_all(const cpu_set_t *set) {
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;)
        if (entry->d_name[0] != '.')
            assert_int_equal(sched_setaffinity(atoi(entry->d_name), sizeof *set, set), 0);
    closedir(tasks);
}

static void test_cores(void **state) {
    (void)state;
    int cpus[1024];
    size_t count = fm__cores(cpus, 1024);
    assert_true(count <= 1024);
    for (size_t i = 1; i < count; i++)
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(cpus[i], cpus[j]);
    assert_int_equal(fm__cores(NULL, 0), count);

    /* A process that may use one processor only has one core. */
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    CPU_SET(cpus[count - 1], &one);
    set_affinity_of_all(&one);
    int only = -1;
    size_t cores = fm__cores(&only, 1);
    set_affinity_of_all(&before);
    assert_int_equal(cores, 1);
    assert_int_equal(only, cpus[count - 1]);
}

/* ---- parallel_for ---- */

static void touch(void *argument, size_t index) {
    atomic_fetch_add(&((_Atomic uint32_t *)argument)[index], 1);
}

static void test_parallel_for(void **state) {
    (void)state;
    static _Atomic uint32_t touched[10007];
    const uint32_t threads[] = {0, 1, 2, 3, 17};
    const size_t counts[] = {0, 1, 2, 16, 10007};
    for (size_t t = 0; t < 5; t++)
        for (size_t c = 0; c < 5; c++) {
            memset((void *)touched, 0, sizeof touched);
            assert_int_equal(fm__parallel_for(threads[t], counts[c], touch, (void *)touched, NULL),
                             FM_OK);
            for (size_t i = 0; i < 10007; i++)
                assert_int_equal(touched[i], i < counts[c]);
        }
    /* each allocation that fails gives an error, not a crash; the third one does not exist */
    fm_error error;
    for (uint64_t n = 1; n <= 2; n++) {
        fm__alloc_fail_after(n);
        assert_int_equal(fm__parallel_for(2, 1000, touch, (void *)touched, &error),
                         FM_ERROR_MEMORY);
    }
    fm__alloc_fail_after(0);
}

/* ---- the processor ---- */

static void test_features(void **state) {
    (void)state;
    char text[256], small[8], name[64];
    uint32_t features = fm__cpu_features();
    assert_int_equal(features, fm__cpu_features());
    if (features & (FM__CPU_AVX512_VNNI | FM__CPU_AVX512_BF16))
        assert_true(features & FM__CPU_AVX512);
    if (features & FM__CPU_AVX512)
        assert_true(features & FM__CPU_AVX2);
#if defined(__x86_64__)
    assert_int_equal(!!(features & FM__CPU_AVX2),
                     __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    assert_int_equal(!!(features & FM__CPU_AVX512), __builtin_cpu_supports("avx512bw") &&
                                                        __builtin_cpu_supports("avx512f") &&
                                                        __builtin_cpu_supports("avx512vl"));
    assert_int_equal(!!(features & FM__CPU_AVX512_VNNI), !!__builtin_cpu_supports("avx512vnni"));
#elif defined(__aarch64__)
    assert_true(features & FM__CPU_NEON);
#endif
    fm__cpu_feature_text(FM__CPU_AVX2 | FM__CPU_AVX512 | FM__CPU_AVX512_VNNI, text, sizeof text);
    assert_string_equal(text, "avx2 avx512 vnni");
    fm__cpu_feature_text(FM__CPU_AVX2 | FM__CPU_AVX512, small, sizeof small);
    assert_string_equal(small, "avx2");
    fm__cpu_feature_text(0, text, sizeof text);
    assert_string_equal(text, "");
    fm__cpu_name(name, sizeof name);
    assert_true(strlen(name) > 0 && name[0] != ' ' && name[strlen(name) - 1] != ' ');
    fm__cpu_name(name, 4);
    assert_int_equal(strlen(name), 3);
}

static void test_processors(void **state) {
    (void)state;
    size_t all = fm__processors();
    assert_true(all >= 1);
#ifdef __linux__
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(all, CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    size_t few = fm__processors();
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(few, 1);
#endif
}

static void test_system(void **state) {
    (void)state;
    uint64_t total = fm__memory_total(), available = fm__memory_available(),
             resident = fm__memory_resident();
    assert_true(total > 0 && available > 0 && available <= total);
    assert_true(resident > 100 << 10 && resident < total);
    uint64_t first = fm__now_ns(), second = fm__now_ns();
    assert_true(first > 0 && second >= first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counter_ring),
        cmocka_unit_test(test_counter_crowd),
        cmocka_unit_test(test_counter_past_values),
        cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_cores),
        cmocka_unit_test(test_processors),
        cmocka_unit_test(test_parallel_for),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
