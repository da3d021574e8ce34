/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/probe.c: measures the roofs: a team of threads that begin together, and a clock.
 *
 * Owns: its threads and memory while a probe runs. Never does: keep a figure. Called from: benches.
 */
#include "cpu/probe.h"

#include <sched.h>

#include "base/base.h"

enum { PASSES = 5, MAX_THREADS = 1024 };
#define PASS_NS 20000000u /* of an arithmetic loop */

typedef struct probe {
    /* Work of one pass: memory, or a loop. */
    fm__probe_read_fn *read;
    uint8_t *data;
    size_t part; /* of a stream */
    uint32_t streams;
    fm__probe_loop_fn *loop;
    uint64_t rounds;
    uint32_t threads;
    _Atomic uint32_t arrived;
    _Atomic bool stop;
} probe;

typedef struct member {
    probe *probe;
    uint32_t index;
    uint64_t begin[PASSES], end[PASSES]; /* ns */
    _Atomic uint64_t sink;
    fm__thread *thread;
} member;

/* Spinning, so that nobody sleeps when a pass begins; offering the processor, so that more threads
   than cores get there too. */
static bool meet(probe *p, uint32_t meeting) {
    atomic_fetch_add(&p->arrived, 1);
    while (atomic_load(&p->arrived) < meeting * p->threads) {
        if (atomic_load(&p->stop))
            return false;
        sched_yield();
    }
    return true;
}

static uint64_t work(const probe *p, uint32_t index) {
    if (p->read == NULL)
        return p->loop(p->rounds);
    return p->read(p->data + (size_t)index * p->streams * p->part, p->part, p->streams);
}

static void member_main(void *argument) {
    member *m = argument;
    probe *p = m->probe;
    size_t own = p->streams * p->part;
    for (size_t i = 0; p->read != NULL && i < own; i += 4096) /* near the thread that reads it */
        p->data[m->index * own + i] = (uint8_t)i;
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        if (!meet(p, pass + 1))
            return;
        m->begin[pass] = fm__now_ns();
        m->sink += work(p, m->index);
        m->end[pass] = fm__now_ns();
    }
}

/* The shortest pass, from the first thread's beginning to the last one's end, in ns; 0: failed. */
static uint64_t run(probe *p, const int *cpus) {
    int cores[MAX_THREADS];
    if (p->threads > MAX_THREADS)
        return 0;
    size_t n_core = cpus == NULL ? fm__cores(cores, MAX_THREADS) : 0;
    member *members = fm__alloc_array(p->threads, sizeof *members);
    if (members == NULL)
        return 0;
    uint32_t started = 0;
    fm_status status = FM_OK;
    for (; started < p->threads && status == FM_OK; started++) {
        member *m = &members[started];
        int cpu = cpus != NULL ? cpus[started] : started < n_core ? cores[started] : -1;
        m->probe = p;
        m->index = started;
        status = fm__thread_start(&m->thread, member_main, m, cpu, NULL);
    }
    if (status != FM_OK)
        atomic_store(&p->stop, true);
    for (uint32_t i = 0; i < p->threads; i++)
        fm__thread_join(&members[i].thread);
    uint64_t best = 0;
    for (uint32_t pass = 0; status == FM_OK && pass < PASSES; pass++) {
        uint64_t begin = UINT64_MAX, end = 0;
        for (uint32_t i = 0; i < p->threads; i++) {
            begin = members[i].begin[pass] < begin ? members[i].begin[pass] : begin;
            end = members[i].end[pass] > end ? members[i].end[pass] : end;
        }
        if (end > begin && (best == 0 || end - begin < best))
            best = end - begin;
    }
    fm__free(members);
    return best;
}

/* ---- memory ---- */

static uint64_t read_plain(const uint8_t *data, size_t part, uint32_t streams) {
    uint64_t sum = 0;
    for (size_t i = 0; i < part; i += 64)
        for (uint32_t s = 0; s < streams; s++) {
            const uint64_t *line = (const uint64_t *)(const void *)(data + s * part + i);
            sum ^= line[0] ^ line[1] ^ line[2] ^ line[3] ^ line[4] ^ line[5] ^ line[6] ^ line[7];
        }
    return sum;
}

static fm__probe_read_fn *reader(void) {
#if defined(FM__ARCH_X86_64)
    if (fm__cpu_features() & FM__CPU_AVX512)
        return fm__probe_read_avx512;
    if (fm__cpu_features() & FM__CPU_AVX2)
        return fm__probe_read_avx2;
#endif
    return read_plain;
}

double fm__probe_read(uint32_t threads, const int *cpus, size_t bytes, uint32_t streams) {
    threads = threads == 0 ? 1 : threads;
    streams = streams == 0 ? 1 : streams > FM__PROBE_STREAMS ? FM__PROBE_STREAMS : streams;
    probe p = {.read = reader(), .streams = streams, .threads = threads};
    /* An odd number of lines over a page: streams at equal distances that are powers of two fall
       into the same sets of caches and banks of memory. */
    p.part = bytes / threads / streams / 4096 * 4096 + 4096 + 5 * 64;
    size_t whole = (size_t)threads * streams * p.part;
    p.data = fm__pages_alloc(whole);
    if (p.data == NULL)
        return 0;
    uint64_t ns = run(&p, cpus);
    fm__pages_free(p.data, whole);
    return ns == 0 ? 0 : (double)whole / (double)ns;
}

double fm__probe_read_best(uint32_t threads, const int *cpus, size_t bytes) {
    double best = 0;
    for (uint32_t streams = 1; streams <= FM__PROBE_STREAMS; streams *= 2) {
        double rate = fm__probe_read(threads, cpus, bytes, streams);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- arithmetic ---- */

static double arithmetic(fm__probe_loop_fn *loop, double operations, uint32_t threads,
                         const int *cpus) {
    if (loop == NULL)
        return 0;
    probe p = {.loop = loop, .rounds = 1000, .threads = 1};
    for (uint64_t ns = 0; ns < PASS_NS / 4;
         p.rounds *= 2) { /* how many rounds a pass should have */
        uint64_t begin = fm__now_ns();
        p.loop(p.rounds);
        ns = fm__now_ns() - begin;
    }
    p.threads = threads == 0 ? 1 : threads;
    uint64_t ns = run(&p, cpus);
    return ns == 0 ? 0 : operations * (double)p.rounds * p.threads / (double)ns;
}

double fm__probe_vnni(uint32_t threads, const int *cpus) {
#if defined(FM__ARCH_X86_64)
    uint32_t has = fm__cpu_features();
    if ((has & FM__CPU_AVX512) && (has & FM__CPU_AVX512_VNNI))
        return arithmetic(fm__probe_int8_avx512vnni, FM__PROBE_INT8_AVX512VNNI, threads, cpus);
    if ((has & FM__CPU_AVX2) && (has & FM__CPU_AVX_VNNI))
        return arithmetic(fm__probe_int8_avxvnni, FM__PROBE_INT8_AVXVNNI, threads, cpus);
    if (has & FM__CPU_AVX2)
        return arithmetic(fm__probe_int8_avx2, FM__PROBE_INT8_AVX2, threads, cpus);
#endif
    return arithmetic(NULL, 0, threads, cpus);
}

double fm__probe_fma(uint32_t threads, const int *cpus) {
#if defined(FM__ARCH_X86_64)
    if (fm__cpu_features() & FM__CPU_AVX512)
        return arithmetic(fm__probe_fma_avx512, FM__PROBE_FMA_AVX512, threads, cpus);
    if (fm__cpu_features() & FM__CPU_AVX2)
        return arithmetic(fm__probe_fma_avx2, FM__PROBE_FMA_AVX2, threads, cpus);
#endif
    return arithmetic(NULL, 0, threads, cpus);
}

double fm__probe_bf16(uint32_t threads, const int *cpus) {
#if defined(FM__ARCH_X86_64)
    uint32_t has = fm__cpu_features();
    if ((has & FM__CPU_AVX512) && (has & FM__CPU_AVX512_BF16))
        return arithmetic(fm__probe_bf16_avx512bf16, FM__PROBE_BF16_AVX512BF16, threads, cpus);
#endif
    return arithmetic(NULL, 0, threads, cpus);
}
