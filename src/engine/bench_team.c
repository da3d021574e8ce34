/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/bench_team.c: threads that run one kernel together, and how long that takes.
 *
 * Owns: its threads and their scratch. Never does: look at results. Called from: the measuring
 * thread; one run at a time.
 */
#include "engine/bench.h"

#include <sched.h>
#include <time.h>

enum {
    MAX_THREADS = 1024,
    FEW_COPIES = 16,
    ASK_NS = 20000000,  /* between questions whether to stop */
    SPIN_NS = 30000,    /* a run that is over so soon is waited for awake */
    SLICE_NS = 1000000, /* of a longer one: waking up takes a processor away from a member */
};

/* Enough for any kernel. */
static const size_t SCRATCH = (size_t)FM__LINEAR_SCRATCH + FM__ATTENTION_SCRATCH;

typedef struct member {
    fm__bench_team *team;
    fm__thread *thread;
    uint8_t *scratch;
    uint64_t begin, end; /* ns, of the last run */
} member;

struct fm__bench_team {
    uint32_t threads, started;
    member *members;
    fm__counter go, done; /* runs ever; threads that have ended one, ever */
    bool stop;
    int (*cancelled)(void);   /* NULL: it cannot be */
    _Atomic bool cancel;      /* members leave the run where they are */
    _Atomic uint64_t arrived; /* at meetings, ever */
    /* The run at work. */
    const fm__bench_case *job;
    const fm__kernels *kernels;
    uint32_t iterations;
    _Atomic uint32_t prepared[FM__BENCH_ITERATIONS], next[FM__BENCH_ITERATIONS];
};

/* Spinning, so that a meeting costs little; offering the processor, so that more threads than cores
   come through. *ticket counts this thread's meetings. */
static void meet(fm__bench_team *team, uint64_t *ticket) {
    uint64_t wanted = ++*ticket * team->threads;
    atomic_fetch_add(&team->arrived, 1);
    for (uint32_t spins = 0; atomic_load(&team->arrived) < wanted && !atomic_load(&team->cancel);
         spins++)
        if (spins > 1000)
            sched_yield();
}

static void run_part(member *m, uint64_t *ticket) {
    fm__bench_team *team = m->team;
    fm__bench_part part = {.threads = team->threads, .scratch = m->scratch};
    meet(team, ticket);
    m->begin = fm__now_ns();
    for (; part.iteration < team->iterations && !atomic_load(&team->cancel); part.iteration++) {
        if (part.iteration > 0)
            meet(team, ticket);
        part.next = &team->prepared[part.iteration];
        if (team->job->prepare != NULL && team->job->prepare(team->job, team->kernels, &part))
            meet(team, ticket);
        part.next = &team->next[part.iteration];
        team->job->run(team->job, team->kernels, &part);
    }
    m->end = fm__now_ns();
}

static void member_main(void *argument) {
    member *m = argument;
    fm__bench_team *team = m->team;
    uint64_t ticket = 0;
    for (uint64_t run = 1;; run++) {
        fm__counter_wait(&team->go, run);
        if (team->stop)
            return;
        run_part(m, &ticket);
        fm__counter_add(&team->done, 1);
    }
}

uint32_t fm__bench_processors(uint32_t threads) {
    return (uint32_t)fm__min_size(threads, fm__processors());
}

/* Members spin where they meet, and every one must have had its turn before any goes on. */
static void warn_of_crowd(uint32_t threads) {
    uint32_t processors = fm__bench_processors(threads);
    if (threads > processors)
        fm__log(FM_LOG_WARNING,
                "%u threads take turns on %u processor%s: this measures the scheduler, not kernels",
                threads, processors, processors == 1 ? "" : "s");
}

fm_status fm__bench_team_create(fm__bench_team **out, uint32_t threads, int (*cancelled)(void),
                                fm_error *error) {
    int cores[MAX_THREADS];
    size_t n_core = fm__min_size(fm__cores(cores, MAX_THREADS), MAX_THREADS);
    threads = threads > 0 ? threads : (uint32_t)fm__max_size(n_core, 1);
    if (threads > MAX_THREADS)
        return fm__error(error, FM_ERROR_ARGUMENT, "threads", "%u; %d are the most", threads,
                         MAX_THREADS);
    fm__bench_team *team = fm__alloc_zero(sizeof *team);
    if (team == NULL)
        return fm__error_memory(error, "bench team", sizeof *team);
    warn_of_crowd(threads);
    team->cancelled = cancelled;
    fm__counter_init(&team->go, 0);
    fm__counter_init(&team->done, 0);
    team->threads = threads;
    team->members = fm__alloc_array(threads, sizeof *team->members);
    fm_status status = team->members != NULL
                           ? FM_OK
                           : fm__error_memory(error, "bench team", threads * sizeof(member));
    while (status == FM_OK && team->started < threads) {
        member *m = &team->members[team->started];
        m->team = team;
        m->scratch = fm__alloc_zero(SCRATCH);
        if (m->scratch == NULL)
            status = fm__error_memory(error, "bench team", SCRATCH);
        else
            status = fm__thread_start(&m->thread, member_main, m,
                                      team->started < n_core ? cores[team->started] : -1, error);
        if (status == FM_OK)
            team->started++;
        else
            fm__free(m->scratch);
    }
    if (status != FM_OK)
        fm__bench_team_destroy(&team);
    *out = team;
    return status;
}

void fm__bench_team_destroy(fm__bench_team **team) {
    if (team == NULL || *team == NULL)
        return;
    fm__bench_team *t = *team;
    t->stop = true;
    fm__counter_add(&t->go, 1);
    for (uint32_t i = 0; i < t->started; i++) {
        fm__thread_join(&t->members[i].thread);
        fm__free(t->members[i].scratch);
    }
    fm__free(t->members);
    fm__free(t);
    *team = NULL;
}

uint32_t fm__bench_team_threads(const fm__bench_team *team) {
    return team->threads;
}

bool fm__bench_team_cancelled(const fm__bench_team *team) {
    return atomic_load(&team->cancel);
}

/* Sleeps while members work, since they may need every processor; for less than a person notices at
   a time where it has to ask. */
static void wait_done(fm__bench_team *team, uint64_t at_least) {
    const struct timespec slice = {.tv_nsec = SLICE_NS};
    uint64_t asked = fm__now_ns(), begun = asked;
    while (team->cancelled != NULL && !atomic_load(&team->cancel) &&
           fm__counter_read(&team->done) < at_least) {
        uint64_t now = fm__now_ns();
        if (now - asked > ASK_NS) {
            asked = now;
            if (team->cancelled())
                atomic_store(&team->cancel, true);
        }
        if (now - begun > SPIN_NS)
            nanosleep(&slice, NULL);
        else
            fm__cpu_pause();
    }
    fm__counter_wait(&team->done, at_least);
}

uint64_t fm__bench_run(fm__bench_team *team, const fm__bench_case *c, const fm__kernels *kernels,
                       uint32_t iterations) {
    team->job = c;
    team->kernels = kernels;
    team->iterations = iterations < FM__BENCH_ITERATIONS ? iterations : FM__BENCH_ITERATIONS;
    for (uint32_t i = 0; i < team->iterations; i++) {
        atomic_store_explicit(&team->prepared[i], 0, memory_order_relaxed);
        atomic_store_explicit(&team->next[i], 0, memory_order_relaxed);
    }
    uint64_t ended = fm__counter_read(&team->done);
    fm__counter_add(&team->go, 1);
    wait_done(team, ended + team->threads);
    if (atomic_load(&team->cancel))
        return 1;
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < team->threads; i++) {
        begin = team->members[i].begin < begin ? team->members[i].begin : begin;
        end = team->members[i].end > end ? team->members[i].end : end;
    }
    return end - begin;
}

/* ---- what cases share ---- */

uint8_t *fm__bench_pool_get(fm__bench_pool *pool, size_t bytes) {
    if (bytes > pool->bytes) {
        fm__bench_pool_finish(pool);
        pool->data = fm__pages_alloc(bytes);
        pool->bytes = pool->data != NULL ? bytes : 0;
    }
    return pool->data;
}

void fm__bench_pool_finish(fm__bench_pool *pool) {
    if (pool->data != NULL)
        fm__pages_free(pool->data, pool->bytes);
    *pool = (fm__bench_pool){0};
}

uint32_t fm__bench_copies(size_t bytes, size_t cache_bytes) {
    size_t copies = cache_bytes / (bytes > 0 ? bytes : 1) + 1;
    if (copies > FM__BENCH_ITERATIONS / 4) /* so small that it is not worth it */
        return FEW_COPIES;
    return (uint32_t)fm__max_size(copies, 2);
}

void fm__bench_normals(fm__random *random, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t u =
            fm__random_next(random); /* four numbers of 16 bits: deviation 2^16 / sqrt(3) */
        int64_t sum = (int64_t)(u & 0xFFFF) + (int64_t)(u >> 16 & 0xFFFF) +
                      (int64_t)(u >> 32 & 0xFFFF) + (int64_t)(u >> 48);
        x[i] = (float)(sum - 131070) * 0x1.bb67aep-16f;
    }
}
