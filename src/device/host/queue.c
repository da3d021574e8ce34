/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/queue.c: submissions: a ring of segments, run in the order in which they came.
 *
 * Owns: the ring. Never does: block a submitter on work, or allocate after its creation. Called
 * from: submitting threads (push) and the leader (take).
 *
 * Order of locks: queue->lock is taken alone.
 */
#include "device/host/host.h"

fm_status fm__host_queue_init(fm__host_queue *queue, fm_error *error) {
    queue->ring = fm__alloc_array(FM__HOST_QUEUE, sizeof *queue->ring);
    if (queue->ring == NULL)
        return fm__error_memory(error, "host queue", FM__HOST_QUEUE * sizeof *queue->ring);
    fm__counter_init(&queue->pushed, 0);
    fm__counter_init(&queue->done, 0);
    if (pthread_mutex_init(&queue->lock, NULL) != 0) {
        fm__free(queue->ring);
        queue->ring = NULL;
        return fm__error(error, FM_ERROR_DEVICE, "host queue", "its lock could not be made");
    }
    return FM_OK;
}

void fm__host_queue_finish(fm__host_queue *queue) {
    pthread_mutex_destroy(&queue->lock);
    fm__free(queue->ring);
}

fm_status fm__host_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                          const fm__run *run, uint64_t base, fm_error *error) {
    fm__host_queue *queue = &((fm__host *)device)->queue;
    pthread_mutex_lock(&queue->lock);
    uint64_t pushed = fm__counter_read(&queue->pushed);
    uint64_t waiting = pushed - fm__counter_read(&queue->done);
    if (n_segment > FM__HOST_QUEUE - waiting) {
        pthread_mutex_unlock(&queue->lock);
        return fm__error(error, FM_ERROR_LIMIT, device->properties.name,
                         "%u segments do not fit the queue: %llu of %d wait", n_segment,
                         (unsigned long long)waiting, FM__HOST_QUEUE);
    }
    for (uint32_t i = 0; i < n_segment; i++)
        queue->ring[(pushed + i) % FM__HOST_QUEUE] = (fm__host_entry){
            .recording = (fm__host_recording *)segments[i].recording,
            .run = run,
            .wait = segments[i].wait,
            .signal = segments[i].signal,
            .wait_value = base + segments[i].wait_value,
            .signal_value = base + segments[i].signal_value,
        };
    fm__counter_add(&queue->pushed, n_segment);
    pthread_mutex_unlock(&queue->lock);
    return FM_OK;
}

void fm__host_queue_drain(fm__host_queue *queue) {
    fm__counter_wait(&queue->done, fm__counter_read(&queue->pushed));
}

void fm__host_queue_stop(fm__host_queue *queue) {
    fm__host_queue_drain(queue); /* so that the ring has room */
    pthread_mutex_lock(&queue->lock);
    queue->ring[fm__counter_read(&queue->pushed) % FM__HOST_QUEUE] = (fm__host_entry){.stop = true};
    fm__counter_add(&queue->pushed, 1);
    pthread_mutex_unlock(&queue->lock);
}

static void reset(fm__host_recording *recording) {
    for (uint32_t i = 0; i < recording->n_step; i++)
        atomic_store_explicit(&recording->next[i], 0, memory_order_relaxed);
}

/* The team may start on the entry's recording; returns what host->met comes to when it has. */
static uint64_t open_entry(fm__host *host, const fm__host_entry *entry) {
    reset(entry->recording);
    host->recording = entry->recording;
    host->run = entry->run;
    fm__counter_add(&host->announced, 1);
    if (entry->wait != NULL)
        fm__host_await_inputs(host, entry->wait, entry->wait_value);
    entry->recording->span.begin_ns = fm__now_ns();
    return fm__host_arrive(host);
}

static void finish_entry(fm__host *host, const fm__host_entry *entry, uint64_t met) {
    fm__counter_wait(&host->met, met);
    fm__host_run(host, 0);
    fm__host_meet(host, NULL, NULL, NULL);
    entry->recording->span.end_ns = fm__now_ns();
}

/* Entry n, counted from 1, if it is there. */
static const fm__host_entry *entry_at(fm__host_queue *queue, uint64_t n) {
    return fm__counter_read(&queue->pushed) >= n ? &queue->ring[(n - 1) % FM__HOST_QUEUE] : NULL;
}

/* A signal to a GPU is a driver call of 5 us and more: the team starts meanwhile on what comes
   next, if that needs no other unit. */
void fm__host_lead(fm__host *host) {
    fm__host_queue *queue = &host->queue;
    uint64_t met = 0;
    bool opened = false;
    for (uint64_t n = 1;; n++) {
        fm__counter_wait(&queue->pushed, n);
        const fm__host_entry *entry = entry_at(queue, n), *next = NULL;
        if (entry->stop)
            return;
        if (entry->recording != NULL) {
            if (!opened)
                met = open_entry(host, entry);
            finish_entry(host, entry, met);
        } else if (entry->wait != NULL) {
            fm__timeline_wait(entry->wait, entry->wait_value);
        }
        if (entry->signal != NULL && entry->signal->attached != NULL)
            next = entry_at(queue, n + 1);
        opened = next != NULL && next->recording != NULL && next->wait == NULL;
        if (opened)
            met = open_entry(host, next);
        if (entry->signal != NULL)
            fm__timeline_signal(entry->signal, entry->signal_value);
        fm__counter_set(&queue->done, n); /* from here on the ring's place may be written again */
    }
}
