/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vulkan device itself: refusals in words, buffers, recordings and their replays, timelines in
 * both directions, streaming, failures, loss, spans, the file of compiled shaders. The ops have
 * tests of their own. Any Vulkan device will do, one that the processor emulates too.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/vulkan/core.h"
#include "interpreter.h"

static fm__device *make_device(fm__vulkan_options options) {
    fm__device *device = NULL;
    options.allow_software = true;
    if (options.cache_dir == NULL)
        options.cache_dir = "";
    CHECK(fm__device_vulkan_create(&device, &options, why));
    return device;
}

static fm__device *plain_device(void) {
    return make_device((fm__vulkan_options){.index = 0});
}

/* ---- refusals, each in a process of its own: the loader reads its variables once ---- */

static fm_error refusal(const char *variable, const char *value, fm__vulkan_options options) {
    fm_error why = {0};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fm__device *device = NULL;
        options.cache_dir = "";
        if (variable != NULL) {
            setenv(variable, value, 1);
            setenv("VK_DRIVER_FILES", value, 1); /* the same, of later loaders */
        }
        freopen("/dev/null", "w", stderr); /* the loader's own words */
        fm_status status = fm__device_vulkan_create(&device, &options, &why);
        bool wrong = status == FM_OK ? why.status != FM_OK : why.status != status;
        if (wrong || (status != FM_OK) != (device == NULL) ||
            write(ends[1], &why, sizeof why) != (ssize_t)sizeof why)
            _exit(1);
        fm__device_destroy(&device);
        _exit(0);
    }
    int status = 0;
    close(ends[1]);
    assert_int_equal(read(ends[0], &why, sizeof why), sizeof why);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return why;
}

/* The devices that can serve are named, before those that cannot. */
static void check_serving(const fm_error *why, uint32_t n) {
    char serving[64];
    assert_true(n > 0);
    if (n == 1)
        snprintf(serving, sizeof serving, "only vulkan:0 can serve");
    else
        snprintf(serving, sizeof serving, "only vulkan:0 to vulkan:%u can serve", n - 1);
    assert_int_equal(why->status, FM_ERROR_UNSUPPORTED);
    const char *behind = why->message + strlen(serving);
    if (strncmp(why->message, serving, strlen(serving)) != 0 || (*behind != 0 && *behind != ';'))
        fail_msg("\"%s\" does not begin with \"%s\"", why->message, serving);
}

static void refuses_in_words(void **state) {
    (void)state;
    fm_error why = refusal("VK_ICD_FILENAMES", "/nonexistent/driver.json",
                           (fm__vulkan_options){.allow_software = true});
    assert_int_equal(why.status, FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why.message, "driver"));
    assert_string_equal(why.place, "vulkan");
    const fm_error beyond =
        refusal(NULL, NULL, (fm__vulkan_options){.index = 1000, .allow_software = true});
    why = refusal(NULL, NULL, (fm__vulkan_options){.index = 0, .allow_software = true});
    assert_int_equal(why.status, FM_OK);
    check_serving(&beyond, fm__device_vulkan_count(true));
    if (fm__device_vulkan_count(false) == 0) {
        why = refusal(NULL, NULL, (fm__vulkan_options){.index = 0});
        assert_int_equal(why.status, FM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why.message, "the processor emulates it"));
    }
}

static void describes_itself(void **state) {
    (void)state;
    fm__device *device = plain_device();
    const fm__device_properties *p = &device->properties;
    assert_string_equal(p->name, "vulkan:0");
    assert_string_equal(p->kind, "gpu");
    assert_true(p->description[0] != 0 && p->driver[0] != 0 && p->features[0] != 0);
    assert_true(p->memory_bytes > 1 << 20);
    assert_true(p->dispatch_ns > 0 && p->dispatch_ns < 1000000000);
    assert_false(fm__device_is_lost(device));
    fm__device_destroy(&device);
    assert_null(device);
    fm__device *discrete = make_device((fm__vulkan_options){.force_discrete = true});
    assert_false(discrete->properties.unified);
    fm__device_destroy(&discrete);
}

/* ---- buffers ---- */

static void round_trip(fm__device *device, fm__buffer *buffer) {
    size_t n = buffer->bytes;
    uint8_t *there = fm__alloc(n), *back = fm__alloc_zero(n);
    assert_true(there != NULL && back != NULL);
    for (size_t i = 0; i < n; i++)
        there[i] = (uint8_t)(i * 31 + i / 251);
    CHECK(fm__device_buffer_write(buffer, 0, there, n, why));
    there[n / 2] ^= 0x55;
    CHECK(fm__device_buffer_write(buffer, n / 2, there + n / 2, 1, why));
    CHECK(fm__device_buffer_read(buffer, 0, back, n / 3, why));
    CHECK(fm__device_buffer_read(buffer, n / 3, back + n / 3, n - n / 3, why));
    assert_memory_equal(there, back, n);
    assert_true(fm__vulkan_address((fm__vulkan *)device, buffer) != 0);
    assert_int_equal(fm__device_buffer_write(buffer, n, there, 1, NULL), FM_ERROR_ARGUMENT);
    fm__free(there);
    fm__free(back);
}

static void keeps_bytes(void **state) {
    (void)state;
    const size_t sizes[] = {1, 7, 4096, (16 << 20) + 12345};
    for (int discrete = 0; discrete < 2; discrete++) {
        fm__device *device = make_device((fm__vulkan_options){.force_discrete = discrete == 1});
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            fm__buffer *local = NULL, *host = NULL;
            CHECK(fm__device_buffer_create(device, sizes[i], FM__MEMORY_LOCAL, &local, why));
            CHECK(fm__device_buffer_create(device, sizes[i], FM__MEMORY_HOST, &host, why));
            assert_non_null(fm__device_buffer_map(host));
            assert_int_equal(fm__device_buffer_map(local) != NULL, device->properties.unified);
            round_trip(device, local);
            round_trip(device, host);
            fm__device_buffer_destroy(&local);
            fm__device_buffer_destroy(&host);
        }
        fm__device_destroy(&device);
    }
}

static void refuses_sizes(void **state) {
    (void)state;
    fm__device *device = plain_device();
    fm__buffer *buffer = NULL;
    fm_error why = {0};
    assert_int_equal(
        fm__device_buffer_create(device, SIZE_MAX / 2, FM__MEMORY_LOCAL, &buffer, &why),
        FM_ERROR_LIMIT);
    assert_null(buffer);
    assert_non_null(strstr(why.message, "the driver takes"));
    assert_int_equal(fm__device_buffer_create(device, 0, FM__MEMORY_HOST, &buffer, &why),
                     FM_ERROR_ARGUMENT);
    fm__device_destroy(&device);
}

/* ---- a tape of one op that is run: rows of x that want output go to y ---- */

typedef struct chooser {
    fixture f;
    fm__tape *tape;
    int16_t x, y;
    uint32_t op; /* the SELECT */
    fm__device *device;
    fm__run run;
    fm__run_status status;
    fm__timeline done;
    uint64_t value; /* of `done`, last */
    fm__recording *recording;
    float *rows; /* (n_row, cols) */
} chooser;

enum { COLS = 64, MOST_ROWS = 40 };

static void chooser_batch(chooser *c, uint32_t rows, uint32_t outputs) {
    fixture_batch(&c->f, rows, 3, 9, outputs);
    for (uint32_t i = 0; i < rows * COLS; i++)
        c->rows[i] = fm__random_normal(&c->f.random);
    size_t stride = c->tape->tensors[c->x].layout.stride;
    for (uint32_t r = 0; r < rows; r++)
        CHECK(fm__device_buffer_write(c->run.buffers[FM__SLOT_SCRATCH],
                                      c->tape->tensors[c->x].offset + r * stride,
                                      c->rows + (size_t)r * COLS, COLS * 4, why));
}

static void chooser_tape(chooser *c) {
    int16_t table = fixture_gather(&c->f, "table", FM__F32, 9, COLS);
    c->tape = fixture_tape(&c->f, MOST_ROWS, MOST_ROWS);
    c->x = fm__tape_tensor(c->tape, "x", FM__ACT_F32, COLS, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    c->y = fm__tape_tensor(c->tape, "y", FM__ACT_F32, COLS, FM__ROWS_OUTPUT, FM__SLOT_OUTPUT);
    fm__op *op = fm__tape_op(c->tape, FM__OP_EMBED, FM__NONE);
    op->out = c->x;
    op->weight[0] = table;
    op = fm__tape_op(c->tape, FM__OP_SELECT, FM__NONE);
    op->in[0] = c->x;
    op->out = c->y;
    c->op = 1;
    CHECK(fm__tape_finish(c->tape, why));
}

static void chooser_init(chooser *c, fm__device *device) {
    memset(c, 0, sizeof *c);
    fixture_init(&c->f, 5);
    chooser_tape(c);
    c->device = device;
    c->rows = fixture_alloc(&c->f, MOST_ROWS * COLS * 4);
    run_init(&c->run, &c->status, &c->f, c->tape, device);
    CHECK(fm__timeline_create(&c->done, &device, 1, 0, why));
    const fm__op_range range = {.op = c->op, .axis = FM__AXIS_WHOLE};
    CHECK(fm__device_record(device, c->tape, &range, 1, &c->recording, why));
}

static void chooser_finish(chooser *c) {
    fm__device_recording_destroy(&c->recording);
    fm__timeline_finish(&c->done);
    run_finish(&c->run);
    fm__tape_destroy(&c->tape);
    fixture_finish(&c->f);
}

static fm_status chooser_submit(chooser *c, fm_error *error) {
    const fm__segment segment = {.recording = c->recording, .signal = &c->done, .signal_value = 1};
    fm_status status = fm__device_submit(c->device, &segment, 1, &c->run, c->value, error);
    c->value += status == FM_OK;
    return status;
}

static void chooser_compare(chooser *c) {
    float row[COLS];
    size_t stride = c->tape->tensors[c->y].layout.stride;
    for (uint32_t o = 0; o < c->f.batch.n_output; o++) {
        CHECK(fm__device_buffer_read(c->run.buffers[FM__SLOT_OUTPUT],
                                     c->tape->tensors[c->y].offset + o * stride, row, sizeof row,
                                     why));
        assert_memory_equal(row, c->rows + (size_t)c->f.batch.output_row[o] * COLS, sizeof row);
    }
}

static void replays(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 7, MOST_ROWS, 2, 33, 40, 5};
    for (int discrete = 0; discrete < 2; discrete++) {
        chooser c;
        uint64_t last = 0;
        chooser_init(&c, make_device((fm__vulkan_options){.force_discrete = discrete == 1}));
        fm__device *device = c.device;
        assert_int_equal(fm__device_recording_span(c.recording).end_ns, 0); /* it never ran */
        for (size_t i = 0; i < 7; i++) {
            chooser_batch(&c, rows[i], (rows[i] + 1) / 2);
            uint64_t begin = fm__now_ns();
            CHECK(chooser_submit(&c, why));
            assert_true(fm__timeline_wait(&c.done, c.value));
            uint64_t end = fm__now_ns();
            chooser_compare(&c);
            CHECK(fm__device_run_finish(device, c.tape, &c.run, why));
            assert_true(c.status.first == UINT64_MAX);
            fm__span span = fm__device_recording_span(c.recording);
            if (((fm__vulkan *)device)->core->clock.mask == 0)
                continue;
            assert_true(span.begin_ns >= last && span.begin_ns <= span.end_ns);
            /* On the host's clock: inside the time between submission and its end. */
            assert_true(span.begin_ns + 200000 > begin && span.end_ns < end + 200000);
            last = span.end_ns;
        }
        chooser_finish(&c);
        fm__device_destroy(&device);
    }
}

static void signal_from(fm__timeline *timeline, uint64_t value) {
    fm__timeline_signal(timeline, value);
}

/* A timeline that the host signals, for the device to wait on. */
static void gate_init(fm__timeline *gate, fm__device *host, fm__device *device) {
    fm__device *units[2] = {host, device};
    CHECK(fm__timeline_create(gate, units, 2, 0, why));
    assert_ptr_equal(gate->attached, device);
    assert_null(gate->owner);
}

static fm__device *make_host(void) {
    fm__device *host = NULL;
    const int cpus[1] = {-1};
    const fm__host_options options = {.threads = 1, .cpus = cpus};
    CHECK(fm__device_host_create(&host, &options, why));
    return host;
}

static void one_replay_at_a_time(void **state) {
    (void)state;
    chooser c;
    fm__timeline gate;
    fm__device *device = plain_device(), *host = make_host();
    fm_error why_not = {0};
    chooser_init(&c, device);
    gate_init(&gate, host, device);
    chooser_batch(&c, 9, 4);
    const fm__segment held = {.recording = c.recording,
                              .wait = &gate,
                              .wait_value = 1,
                              .signal = &c.done,
                              .signal_value = 1};
    CHECK(fm__device_submit(device, &held, 1, &c.run, 0, why));
    c.value = 1;
    assert_int_equal(fm__timeline_value(&c.done), 0); /* it waits */
    assert_int_equal(chooser_submit(&c, &why_not), FM_ERROR_STATE);
    assert_non_null(strstr(why_not.message, "before its last replay ended"));
    /* Another recording of the tape cannot bind another run meanwhile, but the same it can. */
    fm__recording *other = NULL;
    fm__run unlike = c.run;
    const fm__op_range range = {.op = c.op, .axis = FM__AXIS_WHOLE};
    CHECK(fm__device_record(device, c.tape, &range, 1, &other, why));
    const fm__segment second = {.recording = other, .signal = &c.done, .signal_value = 1};
    assert_int_equal(fm__device_submit(device, &second, 1, &unlike, 1, &why_not), FM_ERROR_STATE);
    CHECK(fm__device_submit(device, &second, 1, &c.run, 1, why));
    c.value = 2;
    signal_from(&gate, 1);
    assert_true(fm__timeline_wait(&c.done, 2));
    chooser_compare(&c);
    CHECK(chooser_submit(&c, why));
    assert_true(fm__timeline_wait(&c.done, 3));
    const fm__segment twice[2] = {second, second};
    assert_int_equal(fm__device_submit(device, twice, 2, &c.run, 3, &why_not), FM_ERROR_STATE);
    fm__device_recording_destroy(&other);
    chooser_finish(&c);
    fm__timeline_finish(&gate);
    fm__device_destroy(&device);
    fm__device_destroy(&host);
}

/* ---- timelines ---- */

/* Host and device take turns: each round waits for the other's last and signals its own. */
static void takes_turns(void **state) {
    (void)state;
    enum { ROUNDS = 400, AT_ONCE = 50 };
    fm__device *device = plain_device(), *host = make_host();
    fm__device *units[2] = {host, device};
    fm__timeline ping, pong; /* of the host, of the device */
    fm__run_status status;
    fm__batch_view batch = {.n_row = 1};
    const fm__run run = {.batch = &batch, .status = &status};
    fm__segment hosts[AT_ONCE], devices[AT_ONCE];
    fm__run_status_clear(&status);
    CHECK(fm__timeline_create(&ping, units, 2, 0, why));
    CHECK(fm__timeline_create(&pong, units, 2, 1, why));
    assert_ptr_equal(pong.owner, device);
    for (int i = 0; i < AT_ONCE; i++) {
        uint64_t n = (uint64_t)i + 1;
        hosts[i] =
            (fm__segment){.wait = &pong, .wait_value = n - 1, .signal = &ping, .signal_value = n};
        devices[i] =
            (fm__segment){.wait = &ping, .wait_value = n, .signal = &pong, .signal_value = n};
    }
    for (uint64_t base = 0; base < ROUNDS; base += AT_ONCE) {
        CHECK(fm__device_submit(device, devices, AT_ONCE, &run, base, why));
        CHECK(fm__device_submit(host, hosts, AT_ONCE, &run, base, why));
        assert_true(fm__timeline_wait(&pong, base + AT_ONCE));
        assert_int_equal(fm__timeline_value(&ping), base + AT_ONCE);
        assert_int_equal(fm__timeline_value(&pong), base + AT_ONCE);
    }
    fm__timeline_finish(&ping);
    fm__timeline_finish(&pong);
    fm__device_destroy(&device);
    fm__device_destroy(&host);
}

static void refuses_foreign_timelines(void **state) {
    (void)state;
    fm__device *device = plain_device(), *host = make_host();
    fm__timeline plain, hosts;
    fm__run_status status;
    fm__batch_view batch = {.n_row = 1};
    const fm__run run = {.batch = &batch, .status = &status};
    fm__run_status_clear(&status);
    fm__timeline_init(&plain);
    gate_init(&hosts, host, device);
    const fm__segment waits = {.wait = &plain, .wait_value = 1};
    const fm__segment signals = {.signal = &hosts, .signal_value = 1};
    assert_int_equal(fm__device_submit(device, &waits, 1, &run, 0, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm__device_submit(device, &signals, 1, &run, 0, NULL), FM_ERROR_ARGUMENT);
    fm__timeline_finish(&hosts);
    fm__device_destroy(&device);
    fm__device_destroy(&host);
}

/* ---- loss ---- */

typedef struct waiter {
    fm__timeline *timeline;
    uint64_t value;
    bool reached;
} waiter;

static void *wait_there(void *argument) {
    waiter *w = argument;
    w->reached = fm__timeline_wait(w->timeline, w->value);
    return NULL;
}

static void is_lost_and_says_so(void **state) {
    (void)state;
    chooser c;
    fm_error why_not = {0};
    fm__device *device = make_device((fm__vulkan_options){.lose_at = 3});
    chooser_init(&c, device);
    chooser_batch(&c, 9, 4);
    for (int i = 0; i < 2; i++) {
        CHECK(chooser_submit(&c, why));
        assert_true(fm__timeline_wait(&c.done, c.value));
    }
    waiter w = {.timeline = &c.done, .value = 3};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_there, &w), 0);
    usleep(2000); /* so that it waits when the device is lost */
    assert_int_equal(chooser_submit(&c, &why_not), FM_ERROR_DEVICE);
    assert_non_null(strstr(why_not.message, "vulkan:0 was lost"));
    pthread_join(thread, NULL);
    assert_false(w.reached);
    assert_true(fm__device_is_lost(device));
    assert_true(fm__timeline_wait(&c.done, 2)); /* what was done stays done */
    assert_false(fm__timeline_wait(&c.done, 3));
    assert_int_equal(chooser_submit(&c, NULL), FM_ERROR_DEVICE);
    assert_int_equal(fm__device_run_finish(device, c.tape, &c.run, NULL), FM_ERROR_DEVICE);
    /* The host signals in its place, so that others need not wait for ever. */
    signal_from(&c.done, 7);
    assert_true(fm__timeline_wait(&c.done, 7));
    assert_int_equal(fm__timeline_value(&c.done), 7);
    signal_from(&c.done, 5); /* does not take it back */
    assert_int_equal(fm__timeline_value(&c.done), 7);
    chooser_finish(&c);
    fm__device_destroy(&device);
}

/* A run that another unit left: the host signals what this device would have, and goes on later. */
static void host_signals_instead(void **state) {
    (void)state;
    chooser c;
    fm__device *device = plain_device();
    chooser_init(&c, device);
    chooser_batch(&c, 3, 2);
    signal_from(&c.done, 10);
    assert_true(fm__timeline_wait(&c.done, 10));
    c.value = 10;
    CHECK(chooser_submit(&c, why));
    assert_true(fm__timeline_wait(&c.done, 11));
    chooser_compare(&c);
    chooser_finish(&c);
    fm__device_destroy(&device);
}

/* ---- a whole model: where its weights lie makes no difference ---- */

enum { WEIGHT_BUFFERS = 2 * FIXTURE_WEIGHTS };

typedef struct bound_model {
    model m;
    fm__device *device;
    fm__buffer *buffers[WEIGHT_BUFFERS];
    uint32_t n_buffer;
} bound_model;

static fm__weight_range *add_range(bound_model *b, fm__weight *w, fm__residency residency,
                                   uint32_t begin, uint32_t end) {
    size_t offset = w->role == FM__ROLE_LINEAR ? begin * w->layout.stride : 0;
    size_t bytes = w->role == FM__ROLE_LINEAR ? (end - begin) * w->layout.stride : w->bytes;
    fm__buffer **buffer = &b->buffers[b->n_buffer++];
    assert_true(b->n_buffer < WEIGHT_BUFFERS && w->n_ranges < FM__MAX_UNITS);
    if (residency == FM__RESIDENCY_SHARED) {
        CHECK(fm__device_buffer_import(b->device, (void *)(w->host + offset), bytes, buffer, why));
    } else {
        fm__memory memory =
            residency == FM__RESIDENCY_STREAMED ? FM__MEMORY_HOST : FM__MEMORY_LOCAL;
        CHECK(fm__device_buffer_create(b->device, bytes, memory, buffer, why));
        CHECK(fm__device_buffer_write(*buffer, 0, w->host + offset, bytes, why));
    }
    w->ranges[w->n_ranges] = (fm__weight_range){
        .residency = residency, .panel_begin = begin, .panel_end = end, .buffer = *buffer};
    return &w->ranges[w->n_ranges++];
}

static void bound_init(bound_model *b, fm__device *device, fm__residency residency, uint32_t rows) {
    memset(b, 0, sizeof *b);
    b->device = device;
    model_init(&b->m, FM__Q8_0, FM__Q4_K, rows, 2);
    for (uint32_t i = 0; i < b->m.f.n_weight; i++) {
        fm__weight *w = b->m.f.weights[i];
        bool product = w->role == FM__ROLE_LINEAR;
        add_range(b, w, product ? residency : FM__RESIDENCY_RESIDENT, 0, w->panels);
    }
}

static void bound_finish(bound_model *b) {
    while (b->n_buffer > 0)
        fm__device_buffer_destroy(&b->buffers[--b->n_buffer]);
    model_finish(&b->m);
}

/* Every op, in one recording or each in its own; products whole or in two ranges of channels. */
static uint32_t model_ranges(const fm__tape *tape, bool halves, fm__op_range *ranges) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < tape->n_op; i++) {
        uint32_t channels, granule = fm__device_channel_granule(tape, &tape->ops[i], &channels);
        if (!halves || granule == 0 || channels <= granule) {
            ranges[n++] = (fm__op_range){.op = i, .axis = FM__AXIS_WHOLE};
            continue;
        }
        uint32_t middle = channels / granule / 2 * granule;
        ranges[n++] = (fm__op_range){.op = i, .axis = FM__AXIS_CHANNELS, .begin = 0, .end = middle};
        ranges[n++] =
            (fm__op_range){.op = i, .axis = FM__AXIS_CHANNELS, .begin = middle, .end = channels};
    }
    return n;
}

static void run_ranges(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                       uint32_t n, uint32_t per_recording, const fm__run *run) {
    fm__recording *recordings[256];
    fm__segment segments[256];
    uint32_t n_recording = 0;
    fm__timeline done;
    CHECK(fm__timeline_create(&done, &device, 1, 0, why));
    for (uint32_t i = 0; i < n; i += per_recording, n_recording++) {
        assert_true(n_recording < 256);
        CHECK(fm__device_record(device, tape, ranges + i,
                                i + per_recording < n ? per_recording : n - i,
                                &recordings[n_recording], why));
        segments[n_recording] = (fm__segment){
            .recording = recordings[n_recording], .signal = &done, .signal_value = n_recording + 1};
    }
    CHECK(fm__device_submit(device, segments, n_recording, run, 0, why));
    assert_true(fm__timeline_wait(&done, n_recording));
    CHECK(fm__device_run_finish(device, tape, run, why));
    uint64_t last = 0;
    for (uint32_t i = 0; i < n_recording; i++) {
        fm__span span = fm__device_recording_span(recordings[i]);
        assert_true(span.begin_ns >= last && span.end_ns >= span.begin_ns);
        last = span.end_ns;
        fm__device_recording_destroy(&recordings[i]);
    }
    fm__timeline_finish(&done);
}

static void check_model(fm__device *device, fm__residency residency, uint32_t bound, uint32_t rows,
                        bool halves, uint32_t per_recording) {
    bound_model b;
    interpreter in;
    fm__run run;
    fm__run_status status;
    fm__op_range ranges[256];
    bound_init(&b, device, residency, bound);
    fixture_batch(&b.m.f, rows, 0, MODEL_VOCAB, 2);
    interpreter_init(&in, &b.m.f, b.m.tape);
    interpreter_run(&in, b.m.tape, &b.m.f.batch);
    run_init(&run, &status, &b.m.f, b.m.tape, device);
    uint32_t n = model_ranges(b.m.tape, halves, ranges);
    run_ranges(device, b.m.tape, ranges, n, per_recording == 0 ? n : per_recording, &run);
    assert_true(status.first == UINT64_MAX);
    interpreter_compare(&in, b.m.tape, b.m.tape->logits, 2, &run);
    run_finish(&run);
    interpreter_finish(&in);
    bound_finish(&b);
}

static void runs_a_model(void **state) {
    (void)state;
    fm__device *device = plain_device();
    check_model(device, FM__RESIDENCY_RESIDENT, 20, 17, false, 0);
    check_model(device, FM__RESIDENCY_RESIDENT, 2, 2, true, 0);
    check_model(device, FM__RESIDENCY_RESIDENT, 20, 20, true, 1);
    if (device->vtable->buffer_import != NULL)
        check_model(device, FM__RESIDENCY_SHARED, 20, 9, false, 5);
    fm__device_destroy(&device);
}

static void streams_weights(void **state) {
    (void)state;
    fm__device *device = make_device((fm__vulkan_options){.force_discrete = true});
    check_model(device, FM__RESIDENCY_STREAMED, 20, 17, false, 0);
    check_model(device, FM__RESIDENCY_STREAMED, 20, 20, true, 0);
    check_model(device, FM__RESIDENCY_STREAMED, 20, 20, true, 3);
    check_model(device, FM__RESIDENCY_STREAMED, 3, 3, false, 0); /* read where they are */
    fm__device_destroy(&device);
}

/* A matrix that is streamed in two parts, the second of which ends in a panel that is not full; the
   rows of its result that no range covers stay as they were. */
static void streams_in_parts(void **state) {
    (void)state;
    enum { N = 33001, K = 1024, ROWS = 9 };
    bound_model b = {.device = make_device((fm__vulkan_options){.force_discrete = true})};
    fixture *f = &b.m.f;
    interpreter in;
    fm__run run;
    fm__run_status status;
    fixture_init(f, 3);
    int16_t table = fixture_gather(f, "table", FM__F32, 9, K);
    int16_t weight = fixture_linear(f, "wide", FM__Q8_0, N, K);
    fm__tape *t = b.m.tape = fixture_tape(f, ROWS, 0);
    int16_t x = fm__tape_tensor(t, "x", FM__ACT_F32, K, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    int16_t y = fm__tape_tensor(t, "y", FM__ACT_F32, N, FM__ROWS_BATCH, FM__SLOT_OUTPUT);
    fm__op *embed = fm__tape_op(t, FM__OP_EMBED, FM__NONE);
    embed->out = x;
    embed->weight[0] = table;
    model_product(&b.m, FM__NONE, x, weight, y, FM__NONE, FM__NONE, FM__NONE);
    CHECK(fm__tape_finish(t, why));
    uint32_t panels = f->weights[weight]->panels;
    assert_true(panels * f->weights[weight]->layout.stride > 32 << 20);
    add_range(&b, f->weights[table], FM__RESIDENCY_RESIDENT, 0, 0);
    add_range(&b, f->weights[weight], FM__RESIDENCY_STREAMED, 0, panels);
    fixture_batch(f, ROWS, 0, 9, 0);
    interpreter_init(&in, f, t);
    interpreter_run(&in, t, &f->batch);
    run_init(&run, &status, f, t, b.device);
    const fm__op_range whole[3] = {{.op = 0}, {.op = 1}, {.op = 2}};
    run_ranges(b.device, t, whole, 3, 3, &run);
    interpreter_compare(&in, t, y, ROWS, &run);
    const fm__op_range part[3] = {
        {.op = 0}, {.op = 1}, {.op = 2, .axis = FM__AXIS_CHANNELS, .begin = 32, .end = N}};
    const float mark = 7.0f;
    CHECK(fm__device_buffer_write(run.buffers[FM__SLOT_OUTPUT], 31 * 4, &mark, 4, why));
    run_ranges(b.device, t, part, 3, 3, &run);
    float left;
    CHECK(fm__device_buffer_read(run.buffers[FM__SLOT_OUTPUT], 31 * 4, &left, 4, why));
    assert_true(left == mark);
    memcpy(interpreter_row(&in, t, y, 0) + 31 * 4, &mark, 4);
    interpreter_compare(&in, t, y, ROWS, &run);
    run_finish(&run);
    interpreter_finish(&in);
    fm__device *device = b.device;
    bound_finish(&b);
    fm__device_destroy(&device);
}

static void names_missing_weights(void **state) {
    (void)state;
    bound_model b;
    fm__device *device = plain_device();
    fm__recording *recording = NULL;
    fm_error why_not = {0};
    fm__op_range ranges[256];
    bound_init(&b, device, FM__RESIDENCY_RESIDENT, 20);
    fm__weight *q = b.m.f.weights[b.m.layers[1].q];
    uint32_t n = model_ranges(b.m.tape, false, ranges);
    q->ranges[0].panel_end--;
    assert_int_equal(fm__device_record(device, b.m.tape, ranges, n, &recording, &why_not),
                     FM_ERROR_STATE);
    assert_null(recording);
    assert_non_null(strstr(why_not.place, "blk.1.attn_q.weight"));
    q->n_ranges = 0;
    assert_int_equal(fm__device_record(device, b.m.tape, ranges, n, &recording, &why_not),
                     FM_ERROR_STATE);
    bound_finish(&b);
    fm__device_destroy(&device);
}

/* A value that no quantiser takes: the run's status names op and row, once. */
static void reports_failures(void **state) {
    (void)state;
    bound_model b;
    fm__run run;
    fm__run_status status;
    fm__op_range ranges[256];
    fm__device *device = plain_device();
    bound_init(&b, device, FM__RESIDENCY_RESIDENT, 20);
    fixture_batch(&b.m.f, 12, 0, MODEL_VOCAB, 2);
    const float bad = INFINITY;
    fm__weight *w = b.m.f.weights[b.m.layers[0].norm];
    CHECK(fm__device_buffer_write(w->ranges[0].buffer, 40, &bad, 4, why));
    run_init(&run, &status, &b.m.f, b.m.tape, device);
    uint32_t n = model_ranges(b.m.tape, false, ranges);
    run_ranges(device, b.m.tape, ranges, n, n, &run);
    assert_int_equal(status.status, FM_ERROR_NUMERIC);
    uint32_t op = (uint32_t)(status.first >> 32), row = (uint32_t)status.first;
    assert_int_equal(b.m.tape->ops[op].kind, FM__OP_QUANTISE);
    assert_int_equal(b.m.tape->ops[op].layer, 0);
    assert_int_equal(row, 0);
    CHECK(fm__device_buffer_write(w->ranges[0].buffer, 40, w->host + 40, 4, why));
    fm__run_status_clear(&status);
    run_ranges(device, b.m.tape, ranges, n, n, &run);
    assert_true(status.first == UINT64_MAX);
    run_finish(&run);
    bound_finish(&b);
    fm__device_destroy(&device);
}

/* Whichever allocation fails: MEMORY, and what was made before is given back. */
static void survives_lack_of_memory(void **state) {
    (void)state;
    const fm__vulkan_options options = {.allow_software = true, .cache_dir = ""};
    fm__device *device = NULL;
    fm_status status = FM_ERROR_MEMORY;
    for (uint64_t n = 1; status != FM_OK; n++) {
        assert_true(n < 100);
        fm__alloc_fail_after(n);
        status = fm__device_vulkan_create(&device, &options, NULL);
        fm__alloc_fail_after(0);
        assert_true(status == FM_OK || (status == FM_ERROR_MEMORY && device == NULL));
    }
    bound_model b;
    fm__op_range ranges[256];
    fm__recording *recording = NULL;
    bound_init(&b, device, FM__RESIDENCY_STREAMED, 20);
    uint32_t n_range = model_ranges(b.m.tape, false, ranges);
    /* Kernels are compiled before: where that fails, ops are not supported. */
    CHECK(fm__device_record(device, b.m.tape, ranges, n_range, &recording, why));
    fm__device_recording_destroy(&recording);
    status = FM_ERROR_MEMORY;
    for (uint64_t n = 1; status != FM_OK; n++) {
        assert_true(n < 1000);
        fm__alloc_fail_after(n);
        status = fm__device_record(device, b.m.tape, ranges, n_range, &recording, NULL);
        fm__alloc_fail_after(0);
        assert_true(status == FM_OK || (status == FM_ERROR_MEMORY && recording == NULL));
    }
    fm__device_recording_destroy(&recording);
    bound_finish(&b);
    fm__device_destroy(&device);
}

/* ---- imports ---- */

static void imports_host_memory(void **state) {
    (void)state;
    fm__device *device = plain_device();
    enum { BYTES = 40000 };
    uint8_t *pages = fm__pages_alloc(BYTES + 8192);
    assert_non_null(pages);
    static const size_t befores[] = {0, 64, 4096, 5008}; /* device.h: in steps of 16 */
    fm__buffer *buffer = NULL;
    fm_status first = fm__device_buffer_import(device, pages, BYTES, &buffer, NULL);
    fm__device_buffer_destroy(&buffer);
    if (first == FM_ERROR_UNSUPPORTED) {
        fm__pages_free(pages, BYTES + 8192);
        fm__device_destroy(&device);
        print_message("skip: this device does not import host memory\n");
        skip();
    }
    for (size_t i = 0; i < 4; i++) {
        chooser c;
        chooser_init(&c, device);
        CHECK(fm__device_buffer_import(device, pages + befores[i], BYTES, &buffer, why));
        assert_ptr_equal(fm__device_buffer_map(buffer), pages + befores[i]);
        round_trip(device, buffer);
        /* The device's own work goes through to the caller's pages. */
        fm__buffer *own = c.run.buffers[FM__SLOT_OUTPUT];
        assert_true(own->bytes <= BYTES);
        c.run.buffers[FM__SLOT_OUTPUT] = buffer;
        chooser_batch(&c, 30, 30);
        CHECK(chooser_submit(&c, why));
        assert_true(fm__timeline_wait(&c.done, c.value));
        chooser_compare(&c);
        assert_memory_equal(pages + befores[i] + c.tape->tensors[c.y].offset, c.rows, COLS * 4);
        c.run.buffers[FM__SLOT_OUTPUT] = own;
        chooser_finish(&c);
        fm__device_buffer_destroy(&buffer);
        assert_int_equal(pages[befores[i] + BYTES], 0); /* nothing behind it was touched */
        memset(pages, 0, BYTES + 8192);
    }
    fm__pages_free(pages, BYTES + 8192);
    fm__device_destroy(&device);
}

/* ---- shaders ---- */

/* The cache's file, in `folder`. */
static void cache_path(const fm__device *device, char *out, size_t room) {
    snprintf(out, room, "%s", ((const fm__vulkan *)device)->core->pipelines.path);
}

static void use_once(const char *folder, char *path, size_t room) {
    chooser c;
    fm__device *device = make_device((fm__vulkan_options){.cache_dir = folder});
    cache_path(device, path, room);
    chooser_init(&c, device);
    chooser_batch(&c, 9, 4);
    CHECK(chooser_submit(&c, why));
    assert_true(fm__timeline_wait(&c.done, c.value));
    chooser_compare(&c);
    chooser_finish(&c);
    fm__device_destroy(&device);
}

static _Atomic int warnings;

static void count_warnings(void *user, fm_log_level level, const char *line) {
    (void)user;
    (void)line;
    warnings += level == FM_LOG_WARNING;
}

static void keeps_compiled_shaders(void **state) {
    (void)state;
    char folder[] = "/tmp/fusionml-vulkan-XXXXXX", path[600];
    char *data = NULL;
    size_t bytes = 0;
    assert_non_null(mkdtemp(folder));
    fm_log_set(count_warnings, NULL, FM_LOG_WARNING);
    warnings = 0;
    use_once(folder, path, sizeof path);
    assert_true(strncmp(path, folder, strlen(folder)) == 0);
    CHECK(fm__file_read(path, 1 << 28, &data, &bytes, why));
    assert_true(bytes >= 32);
    fm__free(data);
    use_once(folder, path, sizeof path); /* with the file */
    assert_int_equal(warnings, 0);
    assert_int_equal(test_leftovers(path), 0);
    /* A file that is not the driver's is told of, ignored and replaced. */
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("not a cache of any driver, but longer than a header would be", file);
    fclose(file);
    use_once(folder, path, sizeof path);
    assert_int_equal(warnings, 1);
    CHECK(fm__file_read(path, 1 << 28, &data, &bytes, why));
    assert_true(memcmp(data, "not a", 5) != 0);
    fm__free(data);
    fm_log_set(NULL, NULL, FM_LOG_WARNING);
    unlink(path);
    rmdir(folder);
}

static void declares_float_modes(void **state) {
    (void)state;
    for (int s = 0; s < FM__VULKAN_SHADER_COUNT; s++) {
        fm__vulkan_words in = fm__vulkan_shaders[s];
        bool optional = s == FM__VULKAN_SHADER_linear_q32_matrix ||
                        s == FM__VULKAN_SHADER_linear_q256_matrix; /* cmake/vulkan.cmake */
        if (optional && in.n == 0)
            continue;
        assert_non_null(in.words); /* every other row of the list has its file */
        uint32_t *out = fm__alloc((in.n + FM__VULKAN_ADDED_WORDS) * 4);
        assert_non_null(out);
        assert_int_equal(fm__vulkan_declare_floats(in, false, false, out), in.n);
        assert_memory_equal(out, in.words, in.n * 4);
        size_t n = fm__vulkan_declare_floats(in, true, true, out);
        assert_int_equal(n, in.n + FM__VULKAN_ADDED_WORDS);
        fm__free(out);
    }
    static const uint32_t none[] = {0x07230203, 0x00010500, 0, 8, 0, 0x00020011, 1};
    static const uint32_t cut[] = {0x07230203, 0x00010500, 0, 8, 0, 0x00090011, 1};
    uint32_t out[32];
    assert_int_equal(fm__vulkan_declare_floats((fm__vulkan_words){none, 7}, true, true, out), 0);
    assert_int_equal(fm__vulkan_declare_floats((fm__vulkan_words){cut, 7}, true, true, out), 0);
    assert_int_equal(fm__vulkan_declare_floats((fm__vulkan_words){NULL, 0}, true, true, out), 0);
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        puts("skip: no Vulkan device, not even one that the processor emulates");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_in_words),
        cmocka_unit_test(describes_itself),
        cmocka_unit_test(keeps_bytes),
        cmocka_unit_test(refuses_sizes),
        cmocka_unit_test(replays),
        cmocka_unit_test(one_replay_at_a_time),
        cmocka_unit_test(takes_turns),
        cmocka_unit_test(refuses_foreign_timelines),
        cmocka_unit_test(is_lost_and_says_so),
        cmocka_unit_test(host_signals_instead),
        cmocka_unit_test(runs_a_model),
        cmocka_unit_test(streams_weights),
        cmocka_unit_test(streams_in_parts),
        cmocka_unit_test(names_missing_weights),
        cmocka_unit_test(reports_failures),
        cmocka_unit_test(survives_lack_of_memory),
        cmocka_unit_test(imports_host_memory),
        cmocka_unit_test(keeps_compiled_shaders),
        cmocka_unit_test(declares_float_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
