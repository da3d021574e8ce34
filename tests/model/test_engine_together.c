/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines of one machine, each in a thread of its own, with products divided between the same
 * two units: neither waits for the other for ever, and each gets the bits that it gets alone; also
 * when a GPU under both of them is lost.
 */
#include "device_test.h"

#include <pthread.h>
#include <time.h>

enum {
    N_TOKENS = 40,
    LATE = 2,         /* hand-overs that are held back */
    LATE_MS = 150,    /* for the other engine to overtake */
    STUCK_MS = 20000, /* without a token */
};

static char model[] = "/tmp/fm_together_XXXXXX";
static int32_t ids[N_TOKENS];

/* ---- a unit to which the first of two runs comes late ---- */

static fm__device_vtable late;
static fm_status (*real_submit)(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                                const fm__run *run, uint64_t base, fm_error *error);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t overtaken = PTHREAD_COND_INITIALIZER;
static uint32_t late_left, overtakes; /* guarded */
static const fm__run *held_back;      /* NULL: none; likewise */

/* With the lock held: until another run has gone by, or time is up. */
static void hold_back(const fm__run *run) {
    struct timespec until;
    uint32_t before = overtakes;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LATE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    late_left--;
    held_back = run;
    while (overtakes == before && pthread_cond_timedwait(&overtaken, &lock, &until) == 0)
        ;
    held_back = NULL;
}

static fm_status late_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                             const fm__run *run, uint64_t base, fm_error *error) {
    pthread_mutex_lock(&lock);
    bool passes = held_back != NULL && held_back != run;
    if (!passes && late_left > 0)
        hold_back(run);
    fm_status status = real_submit(device, segments, n_segment, run, base, error);
    if (passes && held_back != NULL) {
        overtakes++;
        pthread_cond_broadcast(&overtaken);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Of two host teams the first is handed its pieces last. */
static fm_machine *late_machine(void) {
    static const int free_cpus[] = {-1};
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm__device *devices[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        const fm__host_options host = {
            .threads = 1, .cpus = free_cpus, .name = i == 0 ? "first" : "second"};
        CHECK_OK(fm__device_host_create(&devices[i], &host, &error));
    }
    late = *devices[0]->vtable;
    real_submit = late.submit;
    late.submit = late_submit;
    devices[0]->vtable = &late;
    CHECK_OK(fm__machine_adopt(&machine, devices, 2, UINT64_C(1) << 30, &error));
    return machine;
}

/* ---- threads that decode ---- */

typedef struct job {
    fm_engine *engine;
    const float *want; /* (N_TOKENS, n_vocab) */
    pthread_t thread;
    _Atomic uint32_t n_done; /* tokens */
    _Atomic bool ended;
    bool same;
    fm_status status;
    fm_error error;
} job;

static job jobs[2]; /* not on the stack: a thread that is stuck outlives its test */

static void *decode(void *argument) {
    job *j = argument;
    const size_t n_vocab = fm_engine_vocab_size(j->engine);
    fm_session *session = NULL;
    j->status = fm_session_create(&session, j->engine, NULL, &j->error);
    j->same = true;
    for (uint32_t i = 0; i < N_TOKENS && j->status == FM_OK; i++) {
        const float *logits;
        j->status = fm_session_decode(session, ids[i], &logits, &j->error);
        if (j->status == FM_OK)
            j->same &= memcmp(j->want + i * n_vocab, logits, n_vocab * sizeof(float)) == 0;
        atomic_fetch_add(&j->n_done, 1);
    }
    fm_session_destroy(&session);
    atomic_store(&j->ended, true);
    return NULL;
}

static void await_jobs(const char *what) {
    uint32_t before = UINT32_MAX, waited_ms = 0;
    while (!atomic_load(&jobs[0].ended) || !atomic_load(&jobs[1].ended)) {
        uint32_t n = atomic_load(&jobs[0].n_done) + atomic_load(&jobs[1].n_done);
        waited_ms = n == before ? waited_ms + 10 : 0;
        before = n;
        if (waited_ms > STUCK_MS) /* threads, engines and machine stay behind */
            fail_msg("%s: stuck after %u and %u tokens", what, atomic_load(&jobs[0].n_done),
                     atomic_load(&jobs[1].n_done));
        usleep(10000);
    }
}

static fm_engine *load(fm_machine *machine, fm_deps deps, double split) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_engine_options o = fm_engine_options_default();
    o.numeric_class = FM_CLASS_EXACT;
    o.context_length = 64;
    o.chunk_rows = 8;
    o.split = split;
    o.deps = deps;
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    return engine;
}

static float *reference(void) {
    fm_machine *machine = test_machine(1, NULL);
    fm_engine *engine = load(machine, FM_DEPS_EVENT, -1);
    float *logits = test_all_logits(engine, ids, N_TOKENS);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    return logits;
}

static void run_both(fm_deps a, fm_deps b, const char *what) {
    fm_machine *machine = late_machine();
    float *want = reference();
    for (int i = 0; i < 2; i++)
        jobs[i] = (job){.engine = load(machine, i == 0 ? a : b, 0.5), .want = want};
    /* Where the host drives, nothing is wrong with overtaking. */
    overtakes = 0;
    late_left = a <= FM_DEPS_BATCH && b <= FM_DEPS_BATCH ? LATE : 0;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, decode, &jobs[i]), 0);
    await_jobs(what);
    for (int i = 0; i < 2; i++) {
        fm_error error = jobs[i].error;
        assert_int_equal(pthread_join(jobs[i].thread, NULL), 0);
        CHECK_OK(jobs[i].status);
        assert_true(jobs[i].same);
        assert_int_equal(jobs[i].n_done, N_TOKENS);
    }
    assert_int_equal(overtakes, 0);
    assert_int_equal(late_left, 0);
    for (int i = 0; i < 2; i++)
        fm_engine_destroy(&jobs[i].engine);
    test_no_engine(machine);
    fm_machine_destroy(&machine);
    free(want);
}

static void all_handed_over_at_once(void **state) {
    (void)state;
    run_both(FM_DEPS_EVENT, FM_DEPS_EVENT, "event and event");
}

static void whole_submissions(void **state) {
    (void)state;
    run_both(FM_DEPS_BATCH, FM_DEPS_EVENT, "batch and event");
}

static void driven_by_the_host(void **state) {
    (void)state;
    run_both(FM_DEPS_READY, FM_DEPS_EAGER, "ready and eager");
}

static void one_of_each(void **state) {
    (void)state;
    run_both(FM_DEPS_EVENT, FM_DEPS_READY, "event and ready");
}

/* ---- a GPU that is lost under both ---- */

static fm__device_vtable counting;
static uint64_t submits;

static fm_status counted_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                                const fm__run *run, uint64_t base, fm_error *error) {
    submits++;
    return real_submit(device, segments, n_segment, run, base, error);
}

/* Two engines on a GPU, which is lost in a submission, and one host team. */
static fm_machine *load_both(bool discrete, uint64_t lose_at, const float *want) {
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm__device *devices[2] = {NULL, NULL};
    const fm__vulkan_options vulkan = {
        .allow_software = true, .force_discrete = discrete, .lose_at = lose_at};
    const fm__host_options host = {.threads = 1};
    CHECK_OK(fm__device_vulkan_create(&devices[0], &vulkan, &error));
    CHECK_OK(fm__device_host_create(&devices[1], &host, &error));
    if (lose_at == 0) {
        counting = *devices[0]->vtable;
        real_submit = counting.submit;
        counting.submit = counted_submit;
        devices[0]->vtable = &counting;
    }
    CHECK_OK(fm__machine_adopt(&machine, devices, 2, UINT64_C(1) << 30, &error));
    for (int i = 0; i < 2; i++)
        jobs[i] = (job){.engine = load(machine, FM_DEPS_EVENT, 0.5), .want = want};
    return machine;
}

static uint64_t submits_of_loads(bool discrete) {
    submits = 0;
    fm_machine *machine = load_both(discrete, 0, NULL);
    for (int i = 0; i < 2; i++)
        fm_engine_destroy(&jobs[i].engine);
    fm_machine_destroy(&machine);
    return submits;
}

static void lose_under_both(bool discrete, uint64_t at, const float *want) {
    fm_machine *machine = load_both(discrete, at, want);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, decode, &jobs[i]), 0);
    await_jobs("a lost GPU");
    assert_true(fm__device_is_lost(machine->devices[0]));
    for (int i = 0; i < 2; i++) {
        fm_error error = jobs[i].error;
        assert_int_equal(pthread_join(jobs[i].thread, NULL), 0);
        CHECK_OK(jobs[i].status);
        assert_true(jobs[i].same);
        fm_engine_destroy(&jobs[i].engine);
    }
    test_no_engine(machine);
    fm_machine_destroy(&machine);
}

static void a_gpu_is_lost_under_both(void **state) {
    (void)state;
    if (fm__device_vulkan_count(true) == 0) {
        print_message("not tried: no Vulkan device\n");
        return;
    }
    float *want = reference();
    for (int discrete = 0; discrete < 2; discrete++) {
        uint64_t loading = submits_of_loads(discrete);
        for (uint64_t i = 5; i <= 8; i++)
            lose_under_both(discrete, loading + i, want);
    }
    free(want);
}

static int make_model(void **state) {
    (void)state;
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (i * 131 + 17) % 509;
    return test_make_tiny(model);
}

static int remove_model(void **state) {
    (void)state;
    return unlink(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_handed_over_at_once), cmocka_unit_test(whole_submissions),
        cmocka_unit_test(driven_by_the_host), cmocka_unit_test(one_of_each),
        cmocka_unit_test(a_gpu_is_lost_under_both)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
