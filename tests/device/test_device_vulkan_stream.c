/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that are streamed: each byte of a range is copied once a run, through a ring far smaller
 * than the matrix; copies run while a recording waits for another unit; what the next token needs
 * is copied behind a run of few rows; and what a failed submission leaves under way ends.
 */
#include <unistd.h>

#include "device/vulkan/core.h"
#include "interpreter.h"

enum { N = 8217, K = 1024, PANELS = (N + 15) / 16, RING = 1 << 20 };

/* x = table[token]; y = wide * x: three ops, of which the last streams 9 MB. */
typedef struct wide {
    model m;
    fm__device *device, *host;
    fm__vulkan_ring *ring;
    fm__buffer *buffers[2];
    fm__weight *weight;
    int16_t y;
    fm__run run;
    fm__run_status status;
    fm__timeline gate, done; /* host to device, device to host */
    fm__recording *recordings[2];
} wide;

static void add_range(wide *w, int i, fm__weight *weight, fm__residency residency) {
    fm__memory memory = residency == FM__RESIDENCY_STREAMED ? FM__MEMORY_HOST : FM__MEMORY_LOCAL;
    CHECK(fm__device_buffer_create(w->device, weight->bytes, memory, &w->buffers[i], why));
    CHECK(fm__device_buffer_write(w->buffers[i], 0, weight->host, weight->bytes, why));
    weight->ranges[0] = (fm__weight_range){
        .residency = residency, .panel_end = weight->panels, .buffer = w->buffers[i]};
    weight->n_ranges = 1;
}

static void make_tape(wide *w, uint32_t rows) {
    fixture *f = &w->m.f;
    fixture_init(f, 3);
    int16_t table = fixture_gather(f, "table", FM__F32, 9, K);
    int16_t weight = fixture_linear(f, "wide", FM__Q8_0, N, K);
    fm__tape *t = w->m.tape = fixture_tape(f, rows, 0);
    int16_t x = fm__tape_tensor(t, "x", FM__ACT_F32, K, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    w->y = fm__tape_tensor(t, "y", FM__ACT_F32, N, FM__ROWS_BATCH, FM__SLOT_OUTPUT);
    fm__op *embed = fm__tape_op(t, FM__OP_EMBED, FM__NONE);
    embed->out = x;
    embed->weight[0] = table;
    model_product(&w->m, FM__NONE, x, weight, w->y, FM__NONE, FM__NONE, FM__NONE);
    CHECK(fm__tape_finish(t, why));
    assert_int_equal(t->n_op, 3);
    w->weight = f->weights[weight];
    add_range(w, 0, f->weights[table], FM__RESIDENCY_RESIDENT);
    add_range(w, 1, w->weight, FM__RESIDENCY_STREAMED);
    fixture_batch(f, rows, 0, 9, 0);
}

static void record(wide *w, int i, uint32_t first, uint32_t n, fm__axis axis, uint32_t begin,
                   uint32_t end) {
    fm__op_range ranges[3];
    for (uint32_t r = 0; r < n; r++)
        ranges[r] = (fm__op_range){.op = first + r};
    ranges[n - 1].axis = axis;
    ranges[n - 1].begin = begin;
    ranges[n - 1].end = end;
    CHECK(fm__device_record(w->device, w->m.tape, ranges, n, &w->recordings[i], why));
}

static void wide_init(wide *w, uint32_t rows, fm__vulkan_options options) {
    memset(w, 0, sizeof *w);
    options.allow_software = options.force_discrete = true;
    options.cache_dir = "";
    options.ring_bytes = options.ring_bytes == 0 ? RING : options.ring_bytes;
    const int cpus[1] = {-1};
    const fm__host_options host = {.threads = 1, .cpus = cpus};
    CHECK(fm__device_vulkan_create(&w->device, &options, why));
    CHECK(fm__device_host_create(&w->host, &host, why));
    w->ring = &((fm__vulkan *)w->device)->core->ring;
    fm__device *units[2] = {w->host, w->device};
    CHECK(fm__timeline_create(&w->gate, units, 2, 0, why));
    CHECK(fm__timeline_create(&w->done, units, 2, 1, why));
    make_tape(w, rows);
    assert_int_equal(w->weight->panels, PANELS);
    run_init(&w->run, &w->status, &w->m.f, w->m.tape, w->device);
}

static void wide_finish(wide *w) {
    for (int i = 0; i < 2; i++)
        fm__device_recording_destroy(&w->recordings[i]);
    fm__timeline_finish(&w->gate);
    fm__timeline_finish(&w->done);
    run_finish(&w->run);
    for (int i = 0; i < 2; i++)
        fm__device_buffer_destroy(&w->buffers[i]);
    model_finish(&w->m);
    fm__device_destroy(&w->device);
    fm__device_destroy(&w->host);
}

static uint64_t value = 0; /* of `done`, in the running test */

static void replay(wide *w) {
    const fm__segment segment = {
        .recording = w->recordings[0], .signal = &w->done, .signal_value = 1};
    CHECK(fm__device_submit(w->device, &segment, 1, &w->run, value, why));
    assert_true(fm__timeline_wait(&w->done, ++value));
    CHECK(fm__device_run_finish(w->device, w->m.tape, &w->run, why));
    assert_true(w->status.first == UINT64_MAX);
}

static void compare(wide *w, uint32_t rows) {
    interpreter in;
    interpreter_init(&in, &w->m.f, w->m.tape);
    interpreter_run(&in, w->m.tape, &w->m.f.batch);
    interpreter_compare(&in, w->m.tape, w->y, rows, &w->run);
    interpreter_finish(&in);
}

static void copies_each_byte_once(void **state) {
    (void)state;
    for (int one = 0; one < 2; one++) {
        wide w;
        value = 0;
        wide_init(&w, 9, (fm__vulkan_options){.one_queue = one == 1});
        uint64_t stride = w.weight->layout.stride;
        assert_true(PANELS * stride > 8 * RING); /* each cell of the ring is used again and again */
        record(&w, 0, 0, 3, FM__AXIS_WHOLE, 0, 0);
        for (uint64_t n = 1; n <= 3; n++) {
            replay(&w);
            assert_int_equal(w.ring->copied_bytes, n * PANELS * stride);
        }
        assert_int_equal(w.ring->buffer->base.bytes, RING);
        compare(&w, 9);
        /* Of a range only what it reads. */
        record(&w, 1, 0, 3, FM__AXIS_CHANNELS, 4096, N);
        fm__recording *all = w.recordings[0];
        w.recordings[0] = w.recordings[1];
        w.recordings[1] = all;
        uint64_t before = w.ring->copied_bytes;
        replay(&w);
        assert_int_equal(w.ring->copied_bytes - before, (PANELS - 4096 / 16) * stride);
        compare(&w, 9);
        wide_finish(&w);
    }
}

/* Ranges of tokens need every panel, part by part as well. */
static void tokens_take_parts_too(void **state) {
    (void)state;
    wide w;
    value = 0;
    wide_init(&w, 9, (fm__vulkan_options){.index = 0});
    record(&w, 0, 0, 3, FM__AXIS_TOKENS, 0, 0);
    replay(&w);
    assert_int_equal(w.ring->copied_bytes, PANELS * w.weight->layout.stride);
    compare(&w, 9);
    wide_finish(&w);
}

/* What the ring holds is not copied again. */
static void keeps_what_fits(void **state) {
    (void)state;
    wide w;
    value = 0;
    wide_init(&w, 9, (fm__vulkan_options){.ring_bytes = 64 << 20});
    record(&w, 0, 0, 3, FM__AXIS_WHOLE, 0, 0);
    for (int n = 0; n < 3; n++)
        replay(&w);
    assert_int_equal(w.ring->copied_bytes, PANELS * w.weight->layout.stride);
    compare(&w, 9);
    wide_finish(&w);
}

/* A ring that the device has no room for becomes smaller, and budgets are told. */
static void shrinks(void **state) {
    (void)state;
    wide w;
    const uint64_t asked = UINT64_C(1) << 42;
    value = 0;
    wide_init(&w, 9, (fm__vulkan_options){.ring_bytes = asked});
    assert_int_equal(w.device->properties.ring_bytes, asked);
    record(&w, 0, 0, 3, FM__AXIS_WHOLE, 0, 0);
    assert_true(w.ring->bytes < asked);
    assert_int_equal(w.device->properties.ring_bytes, w.ring->bytes);
    assert_int_equal(w.ring->buffer->base.bytes, w.ring->bytes);
    replay(&w);
    compare(&w, 9);
    wide_finish(&w);
}

static uint64_t copies_done(const wide *w) {
    const fm__vulkan_core *core = ((fm__vulkan *)w->device)->core;
    uint64_t n = 0;
    assert_int_equal(core->vk.GetSemaphoreCounterValue(core->device, core->ring.copied, &n),
                     VK_SUCCESS);
    return n;
}

static void two_segments(wide *w, fm__segment segments[2]) {
    record(w, 0, 0, 2, FM__AXIS_WHOLE, 0, 0);
    record(w, 1, 2, 1, FM__AXIS_WHOLE, 0, 0);
    for (uint64_t i = 0; i < 2; i++)
        segments[i] = (fm__segment){.recording = w->recordings[i],
                                    .wait = &w->gate,
                                    .wait_value = i + 1,
                                    .signal = &w->done,
                                    .signal_value = i + 1};
}

/* The first segment waits for the host; the second one's weights come meanwhile. */
static void borders_do_not_stop_copies(void **state) {
    (void)state;
    for (int one = 0; one < 2; one++) {
        wide w;
        fm__segment segments[2];
        wide_init(&w, 9, (fm__vulkan_options){.one_queue = one == 1});
        two_segments(&w, segments);
        CHECK(fm__device_submit(w.device, segments, 2, &w.run, 0, why));
        uint64_t until = fm__now_ns() + 20000000000;
        while (copies_done(&w) < 4 && fm__now_ns() < until) /* as many parts as the ring takes */
            usleep(1000);
        assert_true(copies_done(&w) >= 4 && w.ring->ahead >= 4);
        assert_int_equal(fm__timeline_value(&w.done), 0);
        fm__timeline_signal(&w.gate, 1);
        assert_true(fm__timeline_wait(&w.done, 1));
        fm__timeline_signal(&w.gate, 2);
        assert_true(fm__timeline_wait(&w.done, 2));
        assert_int_equal(w.ring->copied_bytes, PANELS * w.weight->layout.stride);
        compare(&w, 9);
        wide_finish(&w);
    }
}

/* Few rows: behind a run the first parts are copied for the next one, which then needs the rest. */
static void copies_for_the_next_token(void **state) {
    (void)state;
    wide w;
    value = 0;
    wide_init(&w, 2, (fm__vulkan_options){.index = 0});
    record(&w, 0, 0, 3, FM__AXIS_WHOLE, 0, 0);
    uint64_t whole = PANELS * w.weight->layout.stride, first = 0;
    for (uint64_t n = 1; n <= 3; n++) {
        replay(&w);
        if (n == 1)
            first = w.ring->copied_bytes - whole;
        assert_true(first > 0 && first <= RING / 2);
        assert_int_equal(w.ring->copied_bytes, n * whole + first);
        compare(&w, 2);
    }
    wide_finish(&w);
}

enum { MOST_WORK = 512 };

/* What the device did for the recording, of which `begin` to `end` on the host's clock saw the
   replay. Computing comes in order and apart; each copy ended before the last that it is for. */
static void check_work(const wide *w, uint64_t begin, uint64_t end, uint32_t n_copy,
                       bool observed) {
    static fm__work work[MOST_WORK];
    enum { SLACK_NS = 2000000 }; /* of the two clocks */
    const fm__vulkan_recording *r = (fm__vulkan_recording *)w->recordings[0];
    uint32_t most = fm__device_recording_work(w->recordings[0], NULL, 0), computed = 0, copied = 0;
    assert_in_range(most, r->n_commands + r->n_part, MOST_WORK);
    uint32_t n = fm__device_recording_work(w->recordings[0], work, MOST_WORK);
    fm__span whole = fm__device_recording_span(w->recordings[0]);
    uint64_t until = whole.begin_ns;
    assert_true(n <= most);
    for (uint32_t i = 0; i < n; i++) {
        const fm__work *v = &work[i];
        assert_true(v->span.begin_ns < v->span.end_ns);
        assert_int_equal(v->observed, v->copy && observed);
        if (v->copy) {
            copied += v->span.begin_ns + SLACK_NS >= begin && v->span.end_ns <= end + SLACK_NS;
            continue;
        }
        assert_true(v->span.begin_ns >= until && v->span.end_ns <= whole.end_ns);
        until = v->span.end_ns;
        computed++;
    }
    assert_int_equal(computed, r->n_commands);
    assert_int_equal(copied, n_copy);
    assert_int_equal(fm__device_recording_work(w->recordings[0], work, 1), 1);
}

/* Copies have times of their own, those for this replay also while the ones for the next are under
   way; where their queue keeps none they are bounded from without. */
static void copies_keep_time(void **state) {
    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        wide w;
        value = 0;
        wide_init(&w, 2, (fm__vulkan_options){.untimed_copies = mode == 1, .one_queue = mode == 2});
        assert_int_equal(w.ring->keeps_time, mode != 1);
        record(&w, 0, 0, 3, FM__AXIS_WHOLE, 0, 0);
        const fm__vulkan_recording *r = (fm__vulkan_recording *)w.recordings[0];
        assert_int_equal(fm__device_recording_work(w.recordings[0], (fm__work[1]){0}, 1), 0);
        assert_true(r->n_part > 8);
        for (uint64_t n = 1; n <= 4; n++) {
            usleep(5000); /* the copies of before are out of reach of the slack */
            uint64_t early = w.ring->early, begin = fm__now_ns();
            replay(&w);
            uint64_t end = fm__now_ns();
            assert_true(w.ring->early > early);
            assert_true(fm__vulkan_wait_copy((fm__vulkan *)w.device, w.ring->n_copy));
            /* Of this replay and of the one behind it: bounded ones only once they are read. */
            uint64_t all = fm__now_ns();
            if (mode == 1)
                check_work(&w, begin, end, (uint32_t)(r->n_part - (n > 1 ? early / (n - 1) : 0)),
                           true);
            else
                check_work(&w, begin, all, r->n_part + (n > 1 ? 0 : (uint32_t)w.ring->early),
                           false);
        }
        compare(&w, 2);
        wide_finish(&w);
    }
}

/* Timestamps that are not free, as of copies that nobody has read yet, are not waited for: those
   copies are bounded from without, and the others keep their times. */
static void submits_without_free_timestamps(void **state) {
    (void)state;
    wide w;
    value = 0;
    wide_init(&w, 9, (fm__vulkan_options){.index = 0});
    record(&w, 0, 0, 3, FM__AXIS_WHOLE, 0, 0);
    fm__vulkan_recording *r = (fm__vulkan_recording *)w.recordings[0];
    replay(&w);
    for (uint32_t i = 0; i < r->n_part; i += 2)
        for (int turn = 0; turn < FM__VULKAN_TURNS; turn++)
            r->parts[i].copies[turn] = w.ring->n_copy + 1000000; /* it will never end */
    usleep(5000);
    uint64_t begin = fm__now_ns();
    replay(&w);
    uint64_t end = fm__now_ns();
    static fm__work work[MOST_WORK];
    uint32_t n = fm__device_recording_work(w.recordings[0], work, MOST_WORK), timed = 0,
             bounded = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool here = work[i].span.begin_ns + 2000000 >= begin && work[i].span.end_ns <= end;
        timed += work[i].copy && !work[i].observed && here;
        bounded += work[i].observed && here;
        assert_true(work[i].copy || !work[i].observed);
    }
    assert_true(r->n_part > 8);
    assert_int_equal(bounded, (r->n_part + 1) / 2);
    assert_int_equal(timed, r->n_part / 2);
    assert_int_equal(w.ring->copied_bytes, 2 * PANELS * w.weight->layout.stride);
    compare(&w, 9);
    wide_finish(&w);
}

/* Of a copy that has begun and has not ended there is an open interval; of one that has not begun
   there is none. */
static void copies_on_their_way_are_open(void **state) {
    (void)state;
    wide w;
    value = 0;
    wide_init(&w, 9, (fm__vulkan_options){.index = 0});
    record(&w, 0, 0, 3, FM__AXIS_WHOLE, 0, 0);
    const fm__vulkan_recording *r = (fm__vulkan_recording *)w.recordings[0];
    const fm__vulkan_core *core = ((fm__vulkan *)w.device)->core;
    replay(&w);
    static fm__work before[MOST_WORK], after[MOST_WORK];
    uint32_t n = fm__device_recording_work(w.recordings[0], before, MOST_WORK), first = 0;
    while (first < n && !before[first].copy)
        first++;
    assert_true(n - first == r->n_part && r->n_part > 8); /* one copy of each part */
    for (uint32_t i = 0; i < 2; i++) {                    /* as if part 3 had no end, 5 no begin */
        const fm__vulkan_part *part = &r->parts[3 + 2 * i];
        uint32_t query = 2 * (FM__VULKAN_TURNS * (3 + 2 * i) + part->turn);
        core->vk.ResetQueryPool(core->device, r->copy_queries, query + (i == 0), 2 - (i == 0));
    }
    uint32_t left = fm__device_recording_work(w.recordings[0], after, MOST_WORK);
    assert_int_equal(left, n - 1);
    for (uint32_t i = 0; i < left; i++) {
        const fm__work *was = &before[i < first + 5 ? i : i + 1];
        bool open = i == first + 3;
        /* Without calibration both clocks' distance is taken anew: not by the nanosecond. */
        assert_in_range(after[i].span.begin_ns, was->span.begin_ns - 1000000,
                        was->span.begin_ns + 1000000);
        assert_true(open ? after[i].span.end_ns == UINT64_MAX && after[i].copy
                         : after[i].span.end_ns < fm__now_ns() + 2000000);
    }
    wide_finish(&w);
}

/* The driver takes the first call and refuses the second: the device counts as lost, but whoever
   frees what the first works on waits for it. Where it refuses the first nothing has happened. */
static void ends_what_it_began(void **state) {
    (void)state;
    for (uint64_t at = 1; at <= 2; at++) {
        wide w;
        fm__segment segments[2];
        fm_error why_not = {0};
        wide_init(&w, 9, (fm__vulkan_options){.fail_at = at});
        two_segments(&w, segments);
        fm_status status = fm__device_submit(w.device, segments, 2, &w.run, 0, &why_not);
        assert_int_equal(status, at == 1 ? FM_ERROR_MEMORY : FM_ERROR_DEVICE);
        assert_int_equal(fm__device_is_lost(w.device), at == 2);
        if (at == 1)
            CHECK(fm__device_submit(w.device, segments, 2, &w.run, 0, why));
        assert_int_equal(fm__timeline_value(&w.done), 0); /* what is under way waits */
        fm__timeline_signal(&w.gate, 2);
        fm__device_recording_destroy(&w.recordings[0]);
        /* Nothing came behind that: the first segment is done now. */
        assert_true(fm__timeline_wait(&w.done, 1));
        if (at == 1) {
            assert_true(fm__timeline_wait(&w.done, 2));
            compare(&w, 9);
        } else {
            assert_false(fm__timeline_wait(&w.done, 2));
        }
        wide_finish(&w);
    }
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        puts("skip: no Vulkan device, not even one that the processor emulates");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_each_byte_once),
        cmocka_unit_test(tokens_take_parts_too),
        cmocka_unit_test(keeps_what_fits),
        cmocka_unit_test(borders_do_not_stop_copies),
        cmocka_unit_test(copies_for_the_next_token),
        cmocka_unit_test(copies_keep_time),
        cmocka_unit_test(ends_what_it_began),
        cmocka_unit_test(shrinks),
        cmocka_unit_test(submits_without_free_timestamps),
        cmocka_unit_test(copies_on_their_way_are_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
