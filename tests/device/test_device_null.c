/* SPDX-License-Identifier: Apache-2.0 */
/* The null device: memory limit, refused ops, failing and losing submits, signals without work; and
   virtual time: rates, contention, waits, epochs. */
#include "fixture.h"

static fm__device *make_null(const fm__null_options *options) {
    fm__device *device = NULL;
    CHECK(fm__device_null_create(&device, options, why));
    assert_string_equal(device->vtable->backend, "null");
    return device;
}

static void memory_is_limited(void **state) {
    (void)state;
    fm__device *device = make_null(&(fm__null_options){.memory_bytes = 1000});
    fm__buffer *a = NULL, *b = NULL;
    fm_error error = {0};
    assert_int_equal(device->properties.memory_bytes, 1000);
    assert_int_equal(fm__device_buffer_create(device, 1001, FM__MEMORY_LOCAL, &a, &error),
                     FM_ERROR_MEMORY);
    CHECK(fm__device_buffer_create(device, 600, FM__MEMORY_LOCAL, &a, why));
    assert_int_equal(fm__device_buffer_create(device, 401, FM__MEMORY_LOCAL, &b, &error),
                     FM_ERROR_MEMORY);
    assert_null(b);
    uint8_t mine[4096]; /* the caller's memory does not count */
    CHECK(fm__device_buffer_import(device, mine, sizeof mine, &b, why));
    assert_ptr_equal(fm__device_buffer_map(b), mine);
    fm__device_buffer_destroy(&b);
    fm__device_buffer_destroy(&a);
    CHECK(fm__device_buffer_create(device, 1000, FM__MEMORY_LOCAL, &b, why));
    memset(fm__device_buffer_map(b), 1, 1000);
    fm__device_buffer_destroy(&b);
    fm__device_destroy(&device);
}

static void an_op_can_be_refused(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *device = make_null(&(fm__null_options){.refuse_op = "attention"});
    int refused = 0;
    for (uint32_t i = 0; i < m.tape->n_op; i++) {
        const char *reason = NULL;
        bool supports = fm__device_op_supports(device, m.tape, &m.tape->ops[i], &reason);
        assert_true(supports == (m.tape->ops[i].kind != FM__OP_ATTENTION));
        if (supports)
            continue;
        assert_non_null(reason);
        const fm__op_range range = {.op = i, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0};
        fm__recording *recording = NULL;
        fm_error error = {0};
        assert_int_equal(fm__device_record(device, m.tape, &range, 1, &recording, &error),
                         FM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.message, "refused"));
        refused++;
    }
    assert_int_equal(refused, MODEL_LAYERS);
    fm__device_destroy(&device);
    model_finish(&m);
}

static void submits_signal_and_fail_as_asked(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fixture_batch(&m.f, 2, 0, MODEL_VOCAB, 1);
    fm__device *device =
        make_null(&(fm__null_options){.memory_bytes = 1 << 24, .fail_submit_at = 3});
    fm__run run;
    fm__run_status status;
    run_init(&run, &status, &m.f, m.tape, device);
    fm__recording *recording = NULL;
    const fm__op_range range = {.op = 0, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0};
    CHECK(fm__device_record(device, m.tape, &range, 1, &recording, why));
    fm__span span = fm__device_recording_span(recording);
    assert_true(span.begin_ns == 0 && span.end_ns == 0);
    fm__timeline never, done;
    fm__timeline_init(&never);
    fm__timeline_init(&done);
    const fm__segment segments[] = {{recording, &never, 7, &done, 1},
                                    {recording, NULL, 0, &done, 2}};
    for (uint64_t i = 1; i <= 4; i++) {
        fm_error error = {0};
        uint64_t before = fm__timeline_value(&done);
        fm_status got = fm__device_submit(device, segments, 2, &run, i * 10, &error);
        assert_int_equal(got, i == 3 ? FM_ERROR_DEVICE : FM_OK);
        assert_int_equal(fm__timeline_value(&done), i == 3 ? before : i * 10 + 2);
    }
    fm__device_recording_destroy(&recording);
    run_finish(&run);
    fm__device_destroy(&device);
    model_finish(&m);
}

/* ---- limits that a host can see ---- */

static void a_discrete_device_has_no_addresses(void **state) {
    (void)state;
    fm__device *device =
        make_null(&(fm__null_options){.memory_bytes = 4096, .discrete = true, .name = "card"});
    assert_string_equal(device->properties.name, "card");
    assert_false(device->properties.unified);
    fm__buffer *local = NULL, *host = NULL;
    CHECK(fm__device_buffer_create(device, 64, FM__MEMORY_LOCAL, &local, why));
    CHECK(fm__device_buffer_create(device, 64, FM__MEMORY_HOST, &host, why));
    assert_null(fm__device_buffer_map(local));
    assert_non_null(fm__device_buffer_map(host));
    uint8_t in[16], out[16] = {0};
    memset(in, 7, sizeof in);
    CHECK(fm__device_buffer_write(local, 48, in, 16, why));
    CHECK(fm__device_buffer_read(local, 48, out, 16, why));
    assert_memory_equal(in, out, 16);
    fm_error error = {0};
    assert_int_equal(fm__device_buffer_write(local, 49, in, 16, &error), FM_ERROR_ARGUMENT);
    fm__device_buffer_destroy(&host);
    fm__device_buffer_destroy(&local);
    fm__device_destroy(&device);
}

/* ---- virtual time ---- */

enum { WORLD_UNITS = 2 };

typedef struct pair {
    fm__null_world *world;
    fm__device *units[WORLD_UNITS];
    fm__recording *halves[WORLD_UNITS]; /* the first product's */
    fm__timeline timelines[WORLD_UNITS];
    model m;
    fm__run run;
    fm__run_status status;
    double ops, bytes; /* of a whole product */
} pair;

static uint32_t first_product(const fm__tape *tape) {
    for (uint32_t i = 0; i < tape->n_op; i++)
        if (tape->ops[i].kind == FM__OP_LINEAR)
            return i;
    fail();
    return 0;
}

static void pair_init(pair *p, fm__null_options a, fm__null_options b, uint32_t rows) {
    memset(p, 0, sizeof *p);
    model_init(&p->m, FM__Q8_0, FM__Q8_0, 64, 1);
    fixture_batch(&p->m.f, rows, 0, MODEL_VOCAB, 1);
    CHECK(fm__null_world_create(&p->world, why));
    a.world = b.world = p->world;
    a.memory_bytes = b.memory_bytes = 1 << 26;
    CHECK(fm__device_null_create(&p->units[0], &a, why));
    CHECK(fm__device_null_create(&p->units[1], &b, why));
    run_init(&p->run, &p->status, &p->m.f, p->m.tape, p->units[0]);
    uint32_t op = first_product(p->m.tape);
    const fm__weight *w = p->m.f.weights[p->m.tape->ops[op].weight[0]];
    p->ops = 2.0 * w->n * w->k;
    p->bytes = (double)w->bytes;
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        const fm__op_range half = {.op = op,
                                   .axis = FM__AXIS_CHANNELS,
                                   .begin = u * (w->n / 2),
                                   .end = (u + 1) * (w->n / 2)};
        CHECK(fm__device_record(p->units[u], p->m.tape, &half, 1, &p->halves[u], why));
        fm__timeline_init(&p->timelines[u]);
    }
}

static void pair_finish(pair *p) {
    run_finish(&p->run);
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        fm__device_recording_destroy(&p->halves[u]);
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        fm__device_destroy(&p->units[u]);
    fm__null_world_destroy(&p->world);
    fm__null_world_destroy(&p->world);
    model_finish(&p->m);
}

static void hand(pair *p, uint32_t unit, const fm__segment *segments, uint32_t n, uint64_t base) {
    CHECK(fm__device_submit(p->units[unit], segments, n, &p->run, base, why));
}

static void close_to(uint64_t got, double expected) {
    double difference = (double)got - expected;
    if (difference < -1.5 || difference > 1.5)
        fail_msg("%llu ns, expected %.1f", (unsigned long long)got, expected);
}

static void work_takes_the_longer_of_ops_and_bytes(void **state) {
    (void)state;
    pair p;
    pair_init(&p, (fm__null_options){.ops_per_ns = 2, .bytes_per_ns = 8},
              (fm__null_options){.ops_per_ns = 1000, .bytes_per_ns = 0.5, .dispatch_ns = 700}, 16);
    const fm__segment a = {.recording = p.halves[0], .signal = &p.timelines[0], .signal_value = 1};
    const fm__segment b = {.recording = p.halves[1], .signal = &p.timelines[1], .signal_value = 1};
    uint64_t begin = fm__null_world_now_ns(p.world);
    hand(&p, 0, &a, 1, 0);
    assert_int_equal(fm__timeline_value(&p.timelines[0]), 1);
    fm__span span = fm__device_recording_span(p.halves[0]);
    close_to(span.begin_ns, (double)begin);
    close_to(span.end_ns - span.begin_ns, p.ops / 2 * 16 / 2);
    close_to(fm__null_world_now_ns(p.world), (double)span.end_ns);
    begin = fm__null_world_now_ns(p.world);
    hand(&p, 1, &b, 1, 0);
    span = fm__device_recording_span(p.halves[1]);
    close_to(span.begin_ns, (double)begin + 700);
    close_to(span.end_ns - span.begin_ns, p.bytes / 2 / 0.5);
    assert_int_equal(p.units[1]->properties.dispatch_ns, 700);
    pair_finish(&p);
}

/* Both at work slow each other; the rest of the longer one runs at full rate again. */
static void contention_counts_while_both_work(void **state) {
    (void)state;
    pair p;
    pair_init(&p, (fm__null_options){.ops_per_ns = 4, .contention = 0.8},
              (fm__null_options){.ops_per_ns = 1, .contention = 0.5}, 16);
    double work = p.ops / 2 * 16, a_end = work / 4 / 0.8, b_end = a_end + (work - a_end * 0.5);
    const fm__segment a = {.recording = p.halves[0], .signal = &p.timelines[0], .signal_value = 1};
    const fm__segment b = {.recording = p.halves[1], .signal = &p.timelines[1], .signal_value = 1};
    for (uint64_t round = 0; round < 3; round++) {
        uint64_t begin = fm__null_world_now_ns(p.world);
        hand(&p, 0, &a, 1, round);
        close_to(fm__device_recording_span(p.halves[0]).end_ns - begin, work / 4);
        hand(&p, 1, &b, 1, round); /* begins at the same moment, and slows the first one down */
        close_to(fm__device_recording_span(p.halves[0]).end_ns - begin, a_end);
        close_to(fm__device_recording_span(p.halves[1]).begin_ns, (double)begin);
        close_to(fm__device_recording_span(p.halves[1]).end_ns - begin, b_end);
        close_to(fm__null_world_now_ns(p.world) - begin, b_end);
    }
    pair_finish(&p);
}

/* What waits is left until the other unit's submission comes; its time is the signal's. */
static void waits_are_kept_in_virtual_time(void **state) {
    (void)state;
    pair p;
    pair_init(&p, (fm__null_options){.ops_per_ns = 4}, (fm__null_options){.ops_per_ns = 1}, 16);
    double work = p.ops / 2 * 16;
    fm__timeline *t = p.timelines;
    const fm__segment first[] = {{NULL, &t[1], 1, NULL, 0}, {p.halves[0], NULL, 0, &t[0], 1}};
    const fm__segment second[] = {{p.halves[1], NULL, 0, &t[1], 1}, {NULL, &t[0], 1, &t[1], 2}};
    for (uint64_t base = 0; base < 6; base += 2) {
        uint64_t begin = fm__null_world_now_ns(p.world);
        hand(&p, 0, first, 2, base);
        assert_true(fm__timeline_value(&t[0]) <= base);
        hand(&p, 1, second, 2, base);
        assert_int_equal(fm__timeline_value(&t[0]), base + 1);
        assert_int_equal(fm__timeline_value(&t[1]), base + 2);
        close_to(fm__device_recording_span(p.halves[1]).end_ns - begin, work);
        close_to(fm__device_recording_span(p.halves[0]).begin_ns - begin, work);
        close_to(fm__null_world_now_ns(p.world) - begin, work * 1.25);
    }
    pair_finish(&p);
}

/* A look at the clock, or a second submission to a device, lets time pass. */
static void what_follows_begins_later(void **state) {
    (void)state;
    pair p;
    pair_init(&p, (fm__null_options){.ops_per_ns = 4}, (fm__null_options){.ops_per_ns = 1}, 16);
    double work = p.ops / 2 * 16;
    const fm__segment a = {.recording = p.halves[0], .signal = &p.timelines[0], .signal_value = 1};
    const fm__segment b = {.recording = p.halves[1], .signal = &p.timelines[1], .signal_value = 1};
    uint64_t begin = fm__null_world_now_ns(p.world);
    hand(&p, 0, &a, 1, 0);
    hand(&p, 0, &a, 1, 1); /* after the first */
    close_to(fm__device_recording_span(p.halves[0]).begin_ns - begin, work / 4);
    hand(&p, 1, &b, 1, 0); /* with the second */
    close_to(fm__device_recording_span(p.halves[1]).begin_ns - begin, work / 4);
    close_to(fm__null_world_now_ns(p.world) - begin, work / 4 + work);
    hand(&p, 0, &a, 1, 2);
    close_to(fm__device_recording_span(p.halves[0]).begin_ns - begin, work / 4 + work);
    pair_finish(&p);
}

static void rows_and_tokens_count(void **state) {
    (void)state;
    pair p;
    pair_init(&p, (fm__null_options){.ops_per_ns = 1}, (fm__null_options){.ops_per_ns = 1}, 10);
    uint32_t op = first_product(p.m.tape);
    static const uint32_t borders[] = {0, FM__TOKEN_PARTS / 4, FM__TOKEN_PARTS};
    for (int i = 0; i < 2; i++) {
        const fm__op_range range = {
            .op = op, .axis = FM__AXIS_TOKENS, .begin = borders[i], .end = borders[i + 1]};
        fm__recording *recording = NULL;
        CHECK(fm__device_record(p.units[0], p.m.tape, &range, 1, &recording, why));
        const fm__segment s = {.recording = recording};
        hand(&p, 0, &s, 1, 0);
        fm__span span = fm__device_recording_span(recording);
        close_to(span.end_ns - span.begin_ns, p.ops * (i == 0 ? 2 : 8)); /* 2.5 rows: 2 and 8 */
        fm__device_recording_destroy(&recording);
    }
    pair_finish(&p);
}

/* ---- failures in virtual time ---- */

/* The other unit, which waits for the one that fails, is let go. */
static void a_refusal_lets_the_others_go(void **state) {
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        pair p;
        pair_init(&p, (fm__null_options){.ops_per_ns = 4},
                  (fm__null_options){.ops_per_ns = 1,
                                     .fail_submit_at = lost ? 0 : 1,
                                     .lose_at = lost ? 1 : 0,
                                     .name = "second"},
                  16);
        fm__timeline *t = p.timelines;
        const fm__segment first = {p.halves[0], &t[1], 1, &t[0], 1};
        const fm__segment second = {p.halves[1], NULL, 0, &t[1], 1};
        hand(&p, 0, &first, 1, 0);
        assert_int_equal(fm__timeline_value(&t[0]), 0);
        fm_error error = {0};
        assert_false(fm__device_is_lost(p.units[1]));
        fm_status got = fm__device_submit(p.units[1], &second, 1, &p.run, 0, &error);
        assert_int_equal(fm__timeline_value(&t[0]), 1);
        assert_int_equal(got, lost ? FM_OK : FM_ERROR_DEVICE);
        assert_true(fm__device_is_lost(p.units[1]) == (lost == 1));
        if (lost) { /* its signal comes, and the run knows */
            assert_int_equal(fm__timeline_value(&t[1]), 1);
            assert_true(fm__run_status_failed_before(p.run.status, 1));
        }
        got = fm__device_submit(p.units[1], &second, 1, &p.run, 1, &error);
        assert_int_equal(got, lost ? FM_ERROR_DEVICE : FM_OK);
        if (lost) {
            assert_string_equal(error.place, "second");
            assert_non_null(strstr(error.message, "lost"));
        }
        pair_finish(&p);
    }
}

/* Whatever is never signalled goes with its recordings. */
static void what_waits_for_ever_can_be_destroyed(void **state) {
    (void)state;
    pair p;
    pair_init(&p, (fm__null_options){.ops_per_ns = 4}, (fm__null_options){.ops_per_ns = 1}, 16);
    fm__timeline *t = p.timelines, never;
    fm__timeline_init(&never);
    const fm__segment stuck[] = {{NULL, &never, 1, NULL, 0}, {p.halves[0], NULL, 0, &t[0], 1}};
    hand(&p, 0, stuck, 2, 0);
    hand(&p, 0, stuck, 2, 1);
    assert_int_equal(fm__timeline_value(&t[0]), 0);
    fm__device_recording_destroy(&p.halves[0]);
    const fm__segment free = {p.halves[1], NULL, 0, &t[1], 1};
    hand(&p, 1, &free, 1, 0);
    assert_int_equal(fm__timeline_value(&t[1]), 1);
    pair_finish(&p);
}

static void creation_fails_cleanly(void **state) {
    (void)state;
    fm__null_world *world = NULL;
    CHECK(fm__null_world_create(&world, why));
    fm__device *devices[FM__MAX_UNITS + 1] = {NULL};
    const fm__null_options options = {.world = world};
    for (int i = 0; i <= FM__MAX_UNITS; i++) {
        fm_error error = {0};
        fm_status status = fm__device_null_create(&devices[i], &options, &error);
        assert_int_equal(status, i < FM__MAX_UNITS ? FM_OK : FM_ERROR_LIMIT);
    }
    fm__device_destroy(&devices[3]);
    CHECK(fm__device_null_create(&devices[3], &options, why));
    for (int i = 0; i < FM__MAX_UNITS; i++)
        fm__device_destroy(&devices[i]);
    fm__null_world_destroy(&world);
    fm__alloc_fail_after(1);
    assert_int_equal(fm__null_world_create(&world, NULL), FM_ERROR_MEMORY);
    fm__alloc_fail_after(1);
    assert_int_equal(fm__device_null_create(&devices[0], &(fm__null_options){.world = NULL}, NULL),
                     FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(an_op_can_be_refused),
        cmocka_unit_test(submits_signal_and_fail_as_asked),
        cmocka_unit_test(a_discrete_device_has_no_addresses),
        cmocka_unit_test(work_takes_the_longer_of_ops_and_bytes),
        cmocka_unit_test(contention_counts_while_both_work),
        cmocka_unit_test(waits_are_kept_in_virtual_time),
        cmocka_unit_test(what_follows_begins_later),
        cmocka_unit_test(rows_and_tokens_count),
        cmocka_unit_test(a_refusal_lets_the_others_go),
        cmocka_unit_test(what_waits_for_ever_can_be_destroyed),
        cmocka_unit_test(creation_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
