/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/host.c: the host device's life, and its team.
 *
 * Owns: threads, their scratch and their meeting place. Never does: know ops. Called from: the
 * loading thread (create, destroy); the team runs in its own threads.
 */
#include "device/host/host.h"

#include <string.h>

enum { MAX_THREADS = 1024 };

/* ---- the team ---- */

/* A thread arrives at a meeting: *value is what host->met comes to with it. true: it is the last.
 */
static bool take_ticket(fm__host *host, uint64_t *value) {
    uint64_t ticket = host->threads == 1 ? 0 : atomic_fetch_add(&host->arrived, 1);
    *value = ticket / host->threads + 1;
    return ticket % host->threads == host->threads - 1;
}

/* Within a recording the others are at work and come soon: a short spin, then sleep. No offering
   of the processor: where another process wants it, that gives it away for milliseconds, several
   times a layer (seen: a sixth of the speed beside compilers). */
void fm__host_meet(fm__host *host, const fm__host_work *ahead, fm__host_alone_fn *alone,
                   void *argument) {
    fm__host_awaited met = {.counter = &host->met};
    if (take_ticket(host, &met.value)) {
        if (alone != NULL)
            alone(argument);
        if (host->threads > 1)
            fm__counter_add(&host->met, 1);
        return;
    }
    if (ahead != NULL)
        fm__host_read_ahead(ahead, &met);
    fm__counter_wait(&host->met, met.value);
}

static fm__host_work work_of(const fm__host *host, uint32_t member) {
    return (fm__host_work){
        .device = &host->device,
        .kernels = &host->kernels,
        .tape = host->recording->base.tape,
        .run = host->run,
        .thread = member,
        .threads = host->threads,
        .scratch = host->members[member].scratch,
        .parts = host->recording->parts,
    };
}

/* Makes `work` that of the first product from step i on; false: there is none. */
static bool go_to_product(const fm__host_recording *recording, uint32_t i, fm__host_work *work) {
    const fm__host_step *step = &recording->steps[i];
    if (i >= recording->n_step || (!step->is_product && step->next_product == 0))
        return false;
    work->step = step->is_product ? step : step + step->next_product;
    return true;
}

void fm__host_await_inputs(fm__host *host, fm__timeline *timeline, uint64_t value) {
    fm__host_work work = work_of(host, 0);
    if (go_to_product(host->recording, 0, &work))
        fm__host_read_ahead(&work, &(fm__host_awaited){.timeline = timeline, .value = value});
    fm__timeline_wait(timeline, value);
}

uint64_t fm__host_arrive(fm__host *host) {
    uint64_t value;
    if (host->threads == 1)
        return 0;
    if (take_ticket(host, &value))
        fm__counter_add(&host->met, 1);
    return value;
}

/* A member's meeting before a recording: the leader may be waiting for another unit, whose threads
   may need this processor. */
static void meet_before(fm__host *host, uint32_t member) {
    const fm__host_awaited met = {.counter = &host->met, .value = fm__host_arrive(host)};
    if (fm__counter_read(&host->met) >= met.value)
        return;
    fm__host_work work = work_of(host, member);
    if (go_to_product(host->recording, 0, &work))
        fm__host_read_ahead(&work, &met);
    fm__counter_wait_soon(&host->met, met.value);
}

static bool is_void(const fm__run *run, uint32_t op) {
    return fm__run_status_failed_before(run->status, op) ||
           (run->cancel && atomic_load_explicit(run->cancel, memory_order_relaxed) != 0);
}

/* Steps [i, i + n) as the thread that `work` describes. */
static void run_steps(fm__host_work *work, const fm__host_recording *recording, uint32_t i,
                      uint32_t n) {
    for (uint32_t end = i + n; i < end; i++) {
        const fm__host_step *step = &recording->steps[i];
        /* After a failure nothing that follows has a meaning; the meetings still take place. */
        if (is_void(work->run, step->index))
            continue;
        work->step = step;
        work->next = &recording->next[i];
        step->fn(work);
    }
}

typedef struct alone {
    fm__host_work work; /* of a team of one */
    const fm__host_recording *recording;
    uint32_t step, n;
} alone;

static void run_alone(void *argument) {
    alone *a = argument;
    run_steps(&a->work, a->recording, a->step, a->n);
}

void fm__host_run(fm__host *host, uint32_t member) {
    const fm__host_recording *recording = host->recording;
    fm__host_work work = work_of(host, member), ahead;
    alone rows = {.work = work, .recording = recording};
    rows.work.thread = 0;
    rows.work.threads = 1;
    const bool one_row = host->run->batch->n_row == 1;
    bool met = true;
    for (uint32_t i = 0, n = 1; i < recording->n_step; i += n) {
        const fm__host_step *step = &recording->steps[i];
        n = 1;
        if (step->n_alone > 0 && one_row) {
            n = rows.n = step->n_alone;
            rows.step = i;
            ahead = work;
            fm__host_meet(host, go_to_product(recording, i + n, &ahead) ? &ahead : NULL, run_alone,
                          &rows);
            met = true;
            continue;
        }
        if (step->barrier && !met) {
            ahead = work;
            fm__host_meet(host, go_to_product(recording, i, &ahead) ? &ahead : NULL, NULL, NULL);
        }
        met = false;
        run_steps(&work, recording, i, 1);
    }
}

static void member_main(void *argument) {
    fm__host_member *member = argument;
    fm__host *host = member->host;
    memset(member->scratch, 0, FM__HOST_SCRATCH); /* its pages lie near the thread that uses them */
    fm__counter_wait(&host->go, 1);
    if (host->incomplete)
        return;
    if (member->index == 0) {
        fm__host_lead(host);
        host->stop = true;
        fm__counter_add(&host->announced, 1);
        return;
    }
    for (uint64_t n = 1;; n++) {
        fm__counter_wait(&host->announced, n);
        if (host->stop)
            return;
        meet_before(host, member->index);
        fm__host_run(host, member->index);
        fm__host_meet(host, NULL, NULL, NULL);
    }
}

/* Pins to cpus[i] where given; by hwloc while there are cores; what is beyond them stays free. */
static fm_status start_team(fm__host *host, const fm__host_options *options, fm_error *error) {
    int cores[MAX_THREADS];
    size_t n_core = options->cpus == NULL ? fm__cores(cores, MAX_THREADS) : 0;
    fm_status status = FM_OK;
    uint32_t started = 0;
    for (; started < host->threads; started++) {
        fm__host_member *member = &host->members[started];
        int cpu = options->cpus != NULL ? options->cpus[started]
                  : started < n_core    ? cores[started]
                                        : -1;
        member->host = host;
        member->index = started;
        member->scratch = fm__alloc(FM__HOST_SCRATCH);
        status = member->scratch != NULL
                     ? fm__thread_start(&member->thread, member_main, member, cpu, error)
                     : fm__error_memory(error, host->device.properties.name, FM__HOST_SCRATCH);
        if (status != FM_OK)
            break;
    }
    host->incomplete = status != FM_OK;
    fm__counter_set(&host->go, 1);
    return status;
}

static void join_team(fm__host *host) {
    for (uint32_t i = 0; i < host->threads; i++) {
        fm__thread_join(&host->members[i].thread);
        fm__free(host->members[i].scratch);
    }
}

/* ---- the device ---- */

static void destroy(fm__device *device) {
    fm__host *host = (fm__host *)device;
    fm__host_queue_stop(&host->queue);
    join_team(host);
    fm__host_queue_finish(&host->queue);
    fm__host_parts_free(host);
    pthread_mutex_destroy(&host->parts_lock);
    fm__free(host->members);
    fm__free(host);
}

static const fm__device_vtable VTABLE = {
    .backend = "host",
    .destroy = destroy,
    .buffer_create = fm__host_buffer_create,
    .buffer_import = fm__host_buffer_import,
    .buffer_map = fm__host_buffer_map,
    .buffer_destroy = fm__host_buffer_destroy,
    .buffer_write = fm__host_buffer_write,
    .buffer_read = fm__host_buffer_read,
    .op_supports = fm__host_op_supports,
    .op_kernel = fm__host_op_kernel,
    .scratch_bytes = fm__host_scratch_bytes,
    .scratch_reserve = fm__host_scratch_reserve,
    .held = fm__host_held,
    .record = fm__host_record,
    .recording_destroy = fm__host_recording_destroy,
    .submit = fm__host_submit,
    .recording_span = fm__host_recording_span,
};

static void describe(fm__host *host, const char *name, bool discrete) {
    fm__device_properties *p = &host->device.properties;
    snprintf(p->name, sizeof p->name, "%s", name != NULL ? name : "host");
    snprintf(p->kind, sizeof p->kind, "cpu");
    fm__cpu_name(p->description, sizeof p->description);
    snprintf(p->rung, sizeof p->rung, "%s", host->kernels.rung);
    fm__cpu_feature_text(fm__cpu_features(), p->features, sizeof p->features);
    p->threads = host->threads;
    p->unified = !discrete;
    p->memory_bytes = fm__memory_total();
}

fm_status fm__device_host_create(fm__device **out, const fm__host_options *options,
                                 fm_error *error) {
    const char *name = options->name != NULL ? options->name : "host";
    size_t threads = options->threads != 0 ? options->threads : fm__cores(NULL, 0);
    threads = options->threads == 0 ? fm__min_size(threads, MAX_THREADS) : threads;
    if (threads > MAX_THREADS)
        return fm__error(error, FM_ERROR_ARGUMENT, name, "%zu threads; %d are the most", threads,
                         MAX_THREADS);
    fm__host *host = fm__alloc_zero(sizeof *host);
    if (host == NULL)
        return fm__error_memory(error, name, sizeof *host);
    host->device.vtable = &VTABLE;
    host->threads = (uint32_t)fm__max_size(threads, 1);
    fm__counter_init(&host->go, 0);
    fm__counter_init(&host->met, 0);
    fm__counter_init(&host->announced, 0);
    pthread_mutex_init(&host->parts_lock, NULL);
    fm_status status = fm__kernels_get(&host->kernels, options->rung, error);
    if (status != FM_OK)
        goto no_kernels;
    describe(host, name, options->discrete);
    host->members = fm__alloc_array(host->threads, sizeof *host->members);
    if (host->members == NULL) {
        status = fm__error_memory(error, name, host->threads * sizeof *host->members);
        goto no_kernels;
    }
    status = fm__host_queue_init(&host->queue, error);
    if (status != FM_OK)
        goto no_queue;
    status = start_team(host, options, error);
    if (status != FM_OK)
        goto no_team;
    *out = &host->device;
    return FM_OK;

no_team:
    join_team(host);
    fm__host_queue_finish(&host->queue);
no_queue:
    fm__free(host->members);
no_kernels:
    pthread_mutex_destroy(&host->parts_lock);
    fm__free(host);
    return status;
}

const struct fm__kernels *fm__device_host_kernels(const fm__device *device) {
    return device->vtable == &VTABLE ? &((const fm__host *)device)->kernels : NULL;
}
