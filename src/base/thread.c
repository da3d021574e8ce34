/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/thread.c: threads, cores and loops over threads.
 *
 * Owns: each fm__thread until it is joined. Never does: detaching, cancelling. Called from: every
 * thread; joining from one.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <hwloc.h>
#if defined(FM__ARCH_X86_64) || defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/base.h"

struct fm__thread {
    pthread_t id;
    fm__thread_main *main;
    void *argument;
};

void fm__thread_set_float_mode(void) {
#if defined(FM__ARCH_X86_64)
    /* MXCSR: bit 15 flushes results, 13-14 is the rounding, bit 6 reads subnormals as zero. */
    _mm_setcsr(_mm_getcsr() & ~0xe040u);
#elif defined(FM__ARCH_AARCH64)
    /* FPCR: bit 24 flushes, 22-23 is the rounding, bit 19 flushes halves. */
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    mode &= ~(UINT64_C(1) << 24 | UINT64_C(3) << 22 | UINT64_C(1) << 19);
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

static void *thread_entry(void *argument) {
    fm__thread *thread = argument;
    fm__thread_set_float_mode();
    thread->main(thread->argument);
    return NULL;
}

/* Puts the pin into the attributes: the thread never runs elsewhere. Returns an errno. */
static int set_pin(pthread_attr_t *attributes, int cpu) {
#ifdef __linux__
    cpu_set_t *set = CPU_ALLOC((size_t)cpu + 1);
    if (!set)
        return ENOMEM;
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S((size_t)cpu, bytes, set);
    int code = pthread_attr_setaffinity_np(attributes, bytes, set);
    CPU_FREE(set);
    return code;
#else
    (void)attributes;
    fm__log(FM_LOG_DEBUG, "this system cannot pin a thread to processor %d", cpu);
    return 0;
#endif
}

fm_status fm__thread_start(fm__thread **out, fm__thread_main *main, void *argument, int cpu,
                           fm_error *error) {
    fm__thread *thread = fm__alloc(sizeof *thread);
    if (!thread)
        return fm__error_memory(error, "thread", sizeof *thread);
    *thread = (fm__thread){.main = main, .argument = argument};
    pthread_attr_t attributes;
    int code = pthread_attr_init(&attributes);
    if (code)
        goto free_thread;
    if (cpu >= 0)
        code = set_pin(&attributes, cpu);
    if (!code)
        code = pthread_create(&thread->id, &attributes, thread_entry, thread);
    pthread_attr_destroy(&attributes);
    if (code)
        goto free_thread;
    *out = thread;
    return FM_OK;

free_thread:
    fm__free(thread);
    if (cpu >= 0)
        return fm__error(error, FM_ERROR_DEVICE, "thread",
                         "a thread on processor %d could not be started: %s", cpu, strerror(code));
    return fm__error(error, FM_ERROR_DEVICE, "thread", "a thread could not be started: %s",
                     strerror(code));
}

void fm__thread_join(fm__thread **thread) {
    if (!thread || !*thread)
        return;
    pthread_join((*thread)->id, NULL);
    fm__free(*thread);
    *thread = NULL;
}

/* ---- cores ---- */

/* What taskset or a container left to this process; systems that cannot say so leave everything. */
static void allowed_here(hwloc_topology_t topology, hwloc_bitmap_t allowed) {
    hwloc_bitmap_t here = hwloc_bitmap_alloc();
    hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
    if (here && hwloc_get_cpubind(topology, here, HWLOC_CPUBIND_PROCESS) == 0 &&
        !hwloc_bitmap_iszero(here))
        hwloc_bitmap_and(allowed, allowed, here);
    hwloc_bitmap_free(here);
}

/* Takes the efficiency cores out of `allowed`, or all others; with one kind only: everything. */
static void keep_kind(hwloc_topology_t topology, fm__core_kind kind, hwloc_bitmap_t allowed) {
    hwloc_bitmap_t best = hwloc_bitmap_alloc();
    int n = hwloc_cpukinds_get_nr(topology, 0), efficiency = -1;
    /* hwloc lists kinds from the most efficient to the fastest, where it could rank them. */
    bool known =
        best && n > 1 &&
        hwloc_cpukinds_get_info(topology, (unsigned)n - 1, best, &efficiency, NULL, NULL, 0) == 0 &&
        efficiency >= 0;
    if (!known)
        hwloc_bitmap_zero(allowed);
    else if (kind == FM__CORES_PERFORMANCE)
        hwloc_bitmap_and(allowed, allowed, best);
    else
        hwloc_bitmap_andnot(allowed, allowed, best);
    hwloc_bitmap_free(best);
}

/* The first allowed processor of each core that hwloc sees, of one kind if `kind` is not NULL; 0 if
   it sees none. */
static size_t cores_by_hwloc(const fm__core_kind *kind, int *cpus, size_t capacity) {
    hwloc_topology_t topology;
    size_t count = 0;
    if (hwloc_topology_init(&topology) != 0)
        return 0;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc(), here = hwloc_bitmap_alloc();
    if (allowed && here && hwloc_topology_load(topology) == 0) {
        allowed_here(topology, allowed);
        if (kind)
            keep_kind(topology, *kind, allowed);
        for (hwloc_obj_t core = NULL;
             (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != NULL;) {
            hwloc_bitmap_and(here, core->cpuset, allowed);
            int cpu = hwloc_bitmap_first(here);
            if (cpu < 0)
                continue;
            if (count < capacity)
                cpus[count] = cpu;
            count++;
        }
    }
    hwloc_bitmap_free(here);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return count;
}

/* Every logical processor that the scheduler allows. */
static size_t processors_by_system(int *cpus, size_t capacity) {
    size_t count = 0;
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof set, &set) == 0)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &set)) {
                if (count < capacity)
                    cpus[count] = cpu;
                count++;
            }
#endif
    if (count == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        for (; count < (online > 0 ? (size_t)online : 1); count++)
            if (count < capacity)
                cpus[count] = (int)count;
    }
    return count;
}

size_t fm__cores(int *cpus, size_t capacity) {
    size_t count = cores_by_hwloc(NULL, cpus, capacity);
    if (count == 0) {
        count = processors_by_system(cpus, capacity);
        fm__log(FM_LOG_WARNING,
                "hwloc finds no cores; using the %zu logical processors that the system allows",
                count);
    }
    return count;
}

size_t fm__core_list(fm__core_kind kind, int *cpus, size_t capacity) {
    return cores_by_hwloc(&kind, cpus, capacity);
}

size_t fm__processors(void) {
    return processors_by_system(NULL, 0);
}

/* ---- parallel_for ---- */

typedef struct loop {
    fm__task *task;
    void *argument;
    size_t count;
    _Atomic size_t next; /* never far above count: each thread adds one too many at most */
} loop;

static void loop_run(void *argument) {
    loop *l = argument;
    size_t index;
    while ((index = atomic_fetch_add(&l->next, 1)) < l->count)
        l->task(l->argument, index);
}

fm_status fm__parallel_for(uint32_t threads, size_t count, fm__task *task, void *argument,
                           fm_error *error) {
    size_t wanted = threads ? threads : fm__cores(NULL, 0);
    loop l = {.task = task, .argument = argument, .count = count};
    if (wanted <= 1 || count <= 1) {
        loop_run(&l);
        return FM_OK;
    }
    size_t helpers = fm__min_size(wanted, count) - 1, started = 0; /* this thread works too */
    fm__thread **team = fm__alloc_array(helpers, sizeof *team);
    if (!team)
        return fm__error_memory(error, "parallel loop", helpers * sizeof *team);
    fm_status status = FM_OK;
    while (started < helpers && status == FM_OK) {
        status = fm__thread_start(&team[started], loop_run, &l, -1, error);
        if (status == FM_OK)
            started++;
    }
    if (status == FM_OK)
        loop_run(&l);
    else
        atomic_store(&l.next, count); /* those that run finish their task and stop */
    while (started > 0)
        fm__thread_join(&team[--started]);
    fm__free(team);
    return status;
}
