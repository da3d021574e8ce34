/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/null/world.c: virtual time: when null devices that work together would begin and end.
 *
 * Owns: the submissions of the current epoch. Never does: look at a clock, or wait. Called from:
 * the one thread that uses the devices of the world.
 *
 * The host takes no time, so what it hands to several devices, one after the other, begins at one
 * virtual moment. An epoch is what has been handed over since such a moment. A device that is
 * handed something again, once all of the epoch has come to its end, begins a new one at that end;
 * so does a look at the clock. Within an epoch every submission computes all of it anew, since a
 * later device slows an earlier one down; signals are given the first time that a segment is
 * computed to its end, and stay: only the virtual times change. A segment whose wait nobody has
 * signalled yet is left for the submission that will.
 *
 * A segment with a recording takes dispatch_ns, then its work: of each range the longer of ops and
 * bytes, slower by `contention` while another device is at work.
 */
#include <string.h>

#include "device/null/null.h"

/* Spans of zeros mean that no time is kept, so the clock does not begin at 0. */
static const double BEGINNING_NS = 1e9;

typedef struct item {
    fm__null_device *device;
    fm__null_recording *recording; /* NULL: only waits and signals */
    fm__timeline *wait, *signal;   /* NULL: none; values are absolute */
    uint64_t wait_value, signal_value;
    uint64_t value_before; /* of `signal`, before this item's */
    double work_ns;        /* with nobody else at work */
    double begin, end;
    bool done, signalled;
} item;

typedef enum phase { WAITING, DISPATCHING, WORKING, IDLE } phase;

typedef struct queue {
    fm__null_device *device;
    uint32_t at; /* its item */
    phase phase;
    double left; /* ns of the phase, at full rate */
} queue;

struct fm__null_world {
    fm__null_device *devices[FM__MAX_UNITS];
    uint32_t n_device;
    item *items; /* of the epoch, in order of submission */
    uint32_t n_item, capacity;
    double now;    /* when the epoch began */
    bool released; /* waits that nobody will end are over */
};

fm_status fm__null_world_create(fm__null_world **out, fm_error *error) {
    fm__null_world *world = fm__alloc_zero(sizeof *world);
    if (world == NULL)
        return fm__error_memory(error, "null world", sizeof *world);
    world->now = BEGINNING_NS;
    *out = world;
    return FM_OK;
}

void fm__null_world_destroy(fm__null_world **world) {
    if (world == NULL || *world == NULL)
        return;
    fm__free((*world)->items);
    fm__free(*world);
    *world = NULL;
}

fm_status fm__null_world_join(fm__null_world *world, fm__null_device *device, fm_error *error) {
    if (world->n_device == FM__MAX_UNITS)
        return fm__error(error, FM_ERROR_LIMIT, device->device.properties.name,
                         "a world has room for %d devices", FM__MAX_UNITS);
    world->devices[world->n_device++] = device;
    return FM_OK;
}

/* ---- one computation of an epoch ---- */

/* The item of the epoch that brings the wait of `waiting` to an end, or NULL. */
static const item *producer(const fm__null_world *world, const item *waiting) {
    for (uint32_t i = 0; i < world->n_item; i++) {
        const item *it = &world->items[i];
        if (it->signal == waiting->wait && it->value_before < waiting->wait_value &&
            waiting->wait_value <= it->signal_value)
            return it;
    }
    return NULL;
}

static bool may_begin(const fm__null_world *world, const item *it) {
    if (it->wait == NULL || world->released)
        return true;
    const item *before = producer(world, it);
    return before != NULL ? before->done : fm__timeline_value(it->wait) >= it->wait_value;
}

static void next_item(const fm__null_world *world, queue *q) {
    while (q->at < world->n_item && world->items[q->at].device != q->device)
        q->at++;
    q->phase = q->at < world->n_item ? WAITING : IDLE;
}

/* Takes the queue over one border that needs no time; false: it needs some, or another's signal. */
static bool step(fm__null_world *world, queue *q, double now) {
    if (q->phase == IDLE || (q->phase != WAITING && q->left > 0))
        return false;
    item *it = &world->items[q->at];
    if (q->phase == WAITING) {
        if (!may_begin(world, it))
            return false;
        q->phase = DISPATCHING;
        q->left = it->recording != NULL ? (double)q->device->options.dispatch_ns : 0;
    } else if (q->phase == DISPATCHING) {
        q->phase = WORKING;
        q->left = it->work_ns;
        it->begin = now;
    } else {
        it->end = now;
        it->done = true;
        q->at++;
        next_item(world, q);
    }
    return true;
}

static double rate(const queue *q, uint32_t n_working) {
    return q->phase == WORKING && n_working > 1 ? q->device->options.contention : 1;
}

/* Time until the first phase ends; *first is its queue. NULL: nothing runs. */
static double next_event(queue *queues, uint32_t n, uint32_t n_working, queue **first) {
    double least = 0;
    *first = NULL;
    for (uint32_t i = 0; i < n; i++) {
        queue *q = &queues[i];
        if (q->phase != DISPATCHING && q->phase != WORKING)
            continue;
        double ns = q->left / rate(q, n_working);
        if (*first == NULL || ns < least) {
            least = ns;
            *first = q;
        }
    }
    return least;
}

static uint32_t count_working(const queue *queues, uint32_t n) {
    uint32_t working = 0;
    for (uint32_t i = 0; i < n; i++)
        working += queues[i].phase == WORKING;
    return working;
}

static void settle_borders(fm__null_world *world, queue *queues, double now) {
    for (bool some = true; some;) {
        some = false;
        for (uint32_t i = 0; i < world->n_device; i++)
            while (step(world, &queues[i], now))
                some = true;
    }
}

static void compute(fm__null_world *world) {
    queue queues[FM__MAX_UNITS];
    double now = world->now;
    for (uint32_t i = 0; i < world->n_item; i++)
        world->items[i].done = false;
    for (uint32_t i = 0; i < world->n_device; i++) {
        queues[i] = (queue){.device = world->devices[i]};
        next_item(world, &queues[i]);
    }
    for (;;) {
        settle_borders(world, queues, now);
        queue *first;
        uint32_t working = count_working(queues, world->n_device);
        double ns = next_event(queues, world->n_device, working, &first);
        if (first == NULL)
            return;
        now += ns;
        for (uint32_t i = 0; i < world->n_device; i++)
            queues[i].left -= ns * rate(&queues[i], working);
        first->left = 0; /* exactly, whatever the sums rounded to */
    }
}

/* ---- epochs ---- */

static bool all_done(const fm__null_world *world) {
    for (uint32_t i = 0; i < world->n_item; i++)
        if (!world->items[i].done)
            return false;
    return true;
}

/* Ends the epoch, if all of it is over. */
static void end_epoch(fm__null_world *world) {
    if (world->n_item == 0 || !all_done(world))
        return;
    for (uint32_t i = 0; i < world->n_item; i++)
        if (world->items[i].end > world->now)
            world->now = world->items[i].end;
    world->n_item = 0;
    world->released = false;
}

/* Hands out what was computed: spans, and signals not given yet. */
static void publish(fm__null_world *world) {
    for (uint32_t i = 0; i < world->n_item; i++) {
        item *it = &world->items[i];
        if (!it->done)
            continue;
        if (it->recording != NULL)
            it->recording->span =
                (fm__span){(uint64_t)(it->begin + 0.5), (uint64_t)(it->end + 0.5)};
        if (it->signal != NULL && !it->signalled &&
            fm__timeline_value(it->signal) < it->signal_value) /* the host may have been first */
            fm__timeline_signal(it->signal, it->signal_value);
        it->signalled = true;
    }
}

static bool has_items(const fm__null_world *world, const fm__null_device *device) {
    for (uint32_t i = 0; i < world->n_item; i++)
        if (world->items[i].device == device)
            return true;
    return false;
}

/* ---- what a recording takes ---- */

static double range_ns(const fm__null_cost *cost, const fm__null_options *options,
                       const fm__batch_view *batch) {
    uint32_t rows = cost->rows == FM__ROWS_BATCH ? batch->n_row : batch->n_output;
    if (cost->end != 0)
        rows = fm__token_border(rows, cost->end) - fm__token_border(rows, cost->begin);
    if (rows == 0)
        return 0;
    double ops = options->ops_per_ns > 0 ? cost->ops_per_row * rows / options->ops_per_ns : 0;
    double bytes = cost->bytes + cost->bytes_per_row * rows;
    bytes = options->bytes_per_ns > 0 ? bytes / options->bytes_per_ns : 0;
    return ops > bytes ? ops : bytes;
}

static double recording_ns(const fm__null_recording *recording, const fm__null_options *options,
                           const fm__batch_view *batch) {
    double ns = 0;
    for (uint32_t i = 0; i < recording->n_cost; i++)
        ns += range_ns(&recording->costs[i], options, batch);
    return ns;
}

/* ---- submissions ---- */

static fm_status make_room(fm__null_world *world, uint32_t n, fm_error *error) {
    size_t need = (size_t)world->n_item + n;
    if (need <= world->capacity)
        return FM_OK;
    if (need > UINT32_MAX / 2)
        return fm__error(error, FM_ERROR_LIMIT, "null world", "%zu segments wait", need);
    item *items = fm__realloc(world->items, 2 * need * sizeof *items);
    if (items == NULL)
        return fm__error_memory(error, "null world", 2 * need * sizeof *items);
    world->items = items;
    world->capacity = (uint32_t)(2 * need);
    return FM_OK;
}

static uint64_t value_before(const fm__null_world *world, fm__timeline *signal) {
    if (signal == NULL)
        return 0;
    for (uint32_t i = world->n_item; i-- > 0;)
        if (world->items[i].signal == signal)
            return world->items[i].signal_value;
    return fm__timeline_value(signal);
}

fm_status fm__null_world_submit(fm__null_world *world, fm__null_device *device,
                                const fm__segment *segments, uint32_t n_segment, const fm__run *run,
                                uint64_t base, fm_error *error) {
    if (has_items(world, device))
        end_epoch(world);
    fm_status status = make_room(world, n_segment, error);
    if (status != FM_OK)
        return status;
    for (uint32_t i = 0; i < n_segment; i++) {
        const fm__segment *s = &segments[i];
        fm__null_recording *recording = (fm__null_recording *)s->recording;
        double ns = 0;
        if (recording != NULL)
            ns = recording_ns(recording, &device->options, run->batch);
        const item it = {.device = device,
                         .recording = recording,
                         .wait = s->wait,
                         .wait_value = base + s->wait_value,
                         .signal = s->signal,
                         .signal_value = base + s->signal_value,
                         .value_before = value_before(world, s->signal),
                         .work_ns = ns};
        world->items[world->n_item++] = it;
    }
    compute(world);
    publish(world);
    return FM_OK;
}

void fm__null_world_release(fm__null_world *world) {
    if (all_done(world))
        return;
    world->released = true;
    compute(world);
    publish(world);
}

/* ---- leaving ---- */

static void drop_items(fm__null_world *world, const fm__null_device *device) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < world->n_item; i++)
        if (world->items[i].device != device)
            world->items[n++] = world->items[i];
    world->n_item = n;
}

/* What never came to its end goes with everything that its device had: timelines go next. */
void fm__null_world_forget(fm__null_world *world, const fm__null_recording *recording) {
    end_epoch(world);
    for (uint32_t i = 0; i < world->n_item; i++)
        if (world->items[i].recording == recording) {
            drop_items(world, world->items[i].device);
            return;
        }
}

void fm__null_world_leave(fm__null_world *world, fm__null_device *device) {
    end_epoch(world);
    drop_items(world, device);
    for (uint32_t i = 0; i < world->n_device; i++)
        if (world->devices[i] == device) {
            memmove(&world->devices[i], &world->devices[i + 1],
                    (world->n_device - i - 1) * sizeof world->devices[0]);
            world->n_device--;
            return;
        }
}

uint64_t fm__null_world_now_ns(fm__null_world *world) {
    end_epoch(world);
    return (uint64_t)(world->now + 0.5);
}
