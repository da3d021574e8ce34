/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that does not address host memory, as the host device emulates it: copies between the
 * two instances of a tensor, of all rows, some columns or some rows; what is between the copied
 * stays; meetings around copies; buffers without an address; a unit needs only what it touches.
 */
#include "device/host/host.h"
#include "interpreter.h"

static const int FREE_CPUS[] = {-1, -1, -1, -1};

static fm__device *make_device(uint32_t threads, bool discrete) {
    fm__device *device = NULL;
    const fm__host_options options = {.threads = threads, .cpus = FREE_CPUS, .discrete = discrete};
    CHECK(fm__device_host_create(&device, &options, why));
    assert_int_equal(device->properties.unified, !discrete);
    return device;
}

/* ---- copies ---- */

typedef struct instances {
    model m;
    fm__device *device;
    fm__run run;
    fm__run_status status;
    fm__timeline timeline;
    uint64_t point;
    uint8_t *device_bytes, *host_bytes; /* what the two instances of the scratch held */
} instances;

static void instances_init(instances *in, uint32_t threads, uint32_t rows) {
    memset(in, 0, sizeof *in);
    model_init(&in->m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&in->m.f, rows, 0, MODEL_VOCAB, 2);
    in->device = make_device(threads, true);
    run_init(&in->run, &in->status, &in->m.f, in->m.tape, in->device);
    size_t bytes = in->m.tape->scratch_bytes;
    CHECK(fm__device_buffer_create(in->device, bytes, FM__MEMORY_HOST,
                                   &in->run.mirrors[FM__SLOT_SCRATCH], why));
    in->device_bytes = fm__alloc(bytes);
    in->host_bytes = fm__alloc(bytes);
    assert_true(in->device_bytes != NULL && in->host_bytes != NULL);
    for (size_t i = 0; i < bytes; i++) {
        in->device_bytes[i] = (uint8_t)fm__random_next(&in->m.f.random);
        in->host_bytes[i] = (uint8_t)fm__random_next(&in->m.f.random);
    }
    CHECK(fm__device_buffer_write(in->run.buffers[FM__SLOT_SCRATCH], 0, in->device_bytes, bytes,
                                  why));
    CHECK(
        fm__device_buffer_write(in->run.mirrors[FM__SLOT_SCRATCH], 0, in->host_bytes, bytes, why));
    fm__timeline_init(&in->timeline);
}

static void instances_finish(instances *in) {
    fm__free(in->device_bytes);
    fm__free(in->host_bytes);
    fm__device_buffer_destroy(&in->run.mirrors[FM__SLOT_SCRATCH]);
    run_finish(&in->run);
    fm__device_destroy(&in->device);
    model_finish(&in->m);
}

static void submit_and_wait(instances *in, const fm__op_range *ranges, uint32_t n) {
    fm__recording *recording = NULL;
    CHECK(fm__device_record(in->device, in->m.tape, ranges, n, &recording, why));
    const fm__segment segment = {
        .recording = recording, .signal = &in->timeline, .signal_value = ++in->point};
    CHECK(fm__device_submit(in->device, &segment, 1, &in->run, 0, why));
    assert_true(fm__timeline_wait(&in->timeline, in->point));
    fm__device_recording_destroy(&recording);
}

/* What the copy does, in the simplest words, to the bytes that the instances held. */
static void copy_plainly(instances *in, const fm__op_range *c) {
    const fm__tensor *t = &in->m.tape->tensors[c->tensor];
    const fm__batch_view *batch = &in->m.f.batch;
    uint32_t rows = t->rows == FM__ROWS_OUTPUT ? batch->n_output : batch->n_row;
    uint32_t first = 0, end = rows;
    if (c->axis == FM__AXIS_TOKENS) {
        first = fm__token_border(rows, c->begin);
        end = fm__token_border(rows, c->end);
    }
    uint8_t *to = c->copy == FM__COPY_TO_HOST ? in->host_bytes : in->device_bytes;
    const uint8_t *from = c->copy == FM__COPY_TO_HOST ? in->device_bytes : in->host_bytes;
    bool columns = c->axis == FM__AXIS_CHANNELS;
    for (uint32_t r = first; r < end; r++) {
        size_t at = t->offset + r * t->layout.stride + (columns ? c->begin * 4 : 0);
        memcpy(to + at, from + at, columns ? (c->end - c->begin) * 4 : t->layout.stride);
    }
}

static void compare(const fm__buffer *buffer, const uint8_t *expected) {
    uint8_t *got = fm__alloc(buffer->bytes);
    assert_non_null(got);
    CHECK(fm__device_buffer_read((fm__buffer *)(uintptr_t)buffer, 0, got, buffer->bytes, why));
    assert_memory_equal(got, expected, buffer->bytes);
    fm__free(got);
}

/* The first tensor of that name; `act` is a quantised one. */
static int16_t tensor_named(const fm__tape *tape, const char *name) {
    for (uint32_t i = 0; i < tape->n_tensor; i++)
        if (strcmp(tape->tensors[i].name, name) == 0)
            return (int16_t)i;
    fail_msg("no tensor %s", name);
    return FM__NONE;
}

static void copies_move_exactly_their_part(void **state) {
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++)
        for (uint32_t rows = 2; rows <= 16; rows += 7) {
            instances in;
            instances_init(&in, threads, rows);
            const fm__tape *tape = in.m.tape;
            const int16_t q = tensor_named(tape, "q"), act = tensor_named(tape, "act");
            const int16_t selected = tensor_named(tape, "selected");
            const fm__op_range copies[] = {
                {.axis = FM__AXIS_WHOLE, .copy = FM__COPY_TO_HOST, .tensor = q},
                {.axis = FM__AXIS_WHOLE, .copy = FM__COPY_TO_DEVICE, .tensor = act},
                {.axis = FM__AXIS_WHOLE, .copy = FM__COPY_TO_HOST, .tensor = selected},
                {.axis = FM__AXIS_CHANNELS,
                 .begin = 32,
                 .end = 96,
                 .copy = FM__COPY_TO_DEVICE,
                 .tensor = q},
                {.axis = FM__AXIS_CHANNELS,
                 .begin = 255,
                 .end = 256,
                 .copy = FM__COPY_TO_HOST,
                 .tensor = q},
                {.axis = FM__AXIS_TOKENS,
                 .begin = FM__TOKEN_PARTS / 3,
                 .end = FM__TOKEN_PARTS,
                 .copy = FM__COPY_TO_HOST,
                 .tensor = act},
                {.axis = FM__AXIS_TOKENS,
                 .begin = 0,
                 .end = 1, /* of few rows: none */
                 .copy = FM__COPY_TO_DEVICE,
                 .tensor = q},
            };
            for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
                submit_and_wait(&in, &copies[i], 1);
                copy_plainly(&in, &copies[i]);
                compare(in.run.buffers[FM__SLOT_SCRATCH], in.device_bytes);
                compare(in.run.mirrors[FM__SLOT_SCRATCH], in.host_bytes);
            }
            instances_finish(&in);
        }
}

/* A whole tape with a copy there and back behind every op: the bits stay. */
static void a_tape_full_of_copies_gives_the_same_bits(void **state) {
    (void)state;
    instances in;
    instances_init(&in, 3, 13);
    const fm__tape *tape = in.m.tape;
    fm__op_range ranges[192];
    uint32_t n = 0;
    for (uint32_t op = 0; op < tape->n_op; op++) {
        int16_t out = tape->ops[op].out;
        ranges[n++] = (fm__op_range){.op = op};
        if (out == FM__NONE || tape->tensors[out].slot != FM__SLOT_SCRATCH)
            continue;
        ranges[n++] = (fm__op_range){.op = op, .copy = FM__COPY_TO_HOST, .tensor = out};
        ranges[n++] = (fm__op_range){.op = op, .copy = FM__COPY_TO_DEVICE, .tensor = out};
        assert_in_range(n, 1, 190);
    }
    interpreter ref;
    interpreter_init(&ref, &in.m.f, tape);
    interpreter_run(&ref, tape, &in.m.f.batch);
    for (int round = 0; round < 20; round++) {
        submit_and_wait(&in, ranges, n);
        interpreter_compare(&ref, tape, tape->logits, 2, &in.run);
    }
    interpreter_finish(&ref);
    instances_finish(&in);
}

static void copies_meet_the_ops_beside_them(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    int16_t x = m.tape->ops[0].out;
    const fm__op_range ranges[] = {
        {.op = 0}, /* embed */
        {.op = 0, .copy = FM__COPY_TO_HOST, .tensor = x},
        {.op = 0, .copy = FM__COPY_TO_HOST, .tensor = x},
        {.op = 1, .copy = FM__COPY_TO_DEVICE, .tensor = x},
        {.op = 1}, /* rmsnorm, of the same rows: met only for the copies */
        {.op = 2},
    };
    bool before[6];
    fm__host_barriers(m.tape, ranges, 6, before);
    assert_false(before[0]);
    assert_true(before[1]);
    assert_false(before[2]);
    assert_true(before[4]);
    assert_false(before[5]);
    model_finish(&m);
}

static void wrong_copies_are_refused(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fm__device *discrete = make_device(1, true), *unified = make_device(1, false);
    int16_t q = tensor_named(m.tape, "q"), act = tensor_named(m.tape, "act");
    const fm__op_range good = {.copy = FM__COPY_TO_HOST, .tensor = q};
    fm__op_range bad[9];
    for (int i = 0; i < 9; i++)
        bad[i] = good;
    bad[0].tensor = FM__NONE;
    bad[1].tensor = (int16_t)m.tape->n_tensor;
    bad[2].tensor = m.tape->logits; /* outputs are seen by all */
    bad[3].axis = bad[4].axis = bad[5].axis = FM__AXIS_CHANNELS;
    bad[3].end = 257;
    bad[4].begin = bad[4].end = 32;
    bad[5].tensor = act; /* quantised: rows only */
    bad[5].end = 32;
    bad[6].axis = FM__AXIS_TOKENS;
    bad[6].begin = bad[6].end = 5;
    bad[7].axis = FM__AXIS_PRODUCTS;
    bad[8].op = m.tape->n_op;
    fm__recording *recording = NULL;
    fm_error error = {0};
    for (int i = 0; i < 9; i++)
        assert_int_equal(fm__device_record(discrete, m.tape, &bad[i], 1, &recording, &error),
                         FM_ERROR_ARGUMENT);
    assert_int_equal(fm__device_record(unified, m.tape, &good, 1, &recording, &error),
                     FM_ERROR_ARGUMENT);
    CHECK(fm__device_record(discrete, m.tape, &good, 1, &recording, why));
    fm__device_recording_destroy(&recording);
    fm__device_destroy(&unified);
    fm__device_destroy(&discrete);
    model_finish(&m);
}

/* ---- memory ---- */

static void local_memory_has_no_address(void **state) {
    (void)state;
    fm__device *device = make_device(1, true), *unified = make_device(1, false);
    fm__buffer *local = NULL, *shared = NULL, *own = NULL;
    CHECK(fm__device_buffer_create(device, 100, FM__MEMORY_LOCAL, &local, why));
    CHECK(fm__device_buffer_create(device, 100, FM__MEMORY_HOST, &shared, why));
    CHECK(fm__device_buffer_create(unified, 100, FM__MEMORY_LOCAL, &own, why));
    assert_null(fm__device_buffer_map(local));
    assert_non_null(fm__device_buffer_map(shared));
    assert_non_null(fm__device_buffer_map(own));
    char back[6] = {0};
    CHECK(fm__device_buffer_write(local, 94, "hello", 6, why));
    CHECK(fm__device_buffer_read(local, 94, back, 6, why));
    assert_string_equal(back, "hello");
    fm_error error = {0};
    assert_int_equal(fm__device_buffer_write(local, 95, "hello", 6, &error), FM_ERROR_ARGUMENT);
    fm__device_buffer_destroy(&own);
    fm__device_buffer_destroy(&shared);
    fm__device_buffer_destroy(&local);
    fm__device_destroy(&unified);
    fm__device_destroy(&device);
}

/* The caches of a discrete main unit are out of a host's reach: it runs what does not use them. */
static void a_unit_needs_only_what_it_touches(void **state) {
    (void)state;
    instances in;
    instances_init(&in, 1, 3);
    fm__device *host = make_device(1, false);
    fm_error error = {0};
    for (uint32_t op = 0; op < in.m.tape->n_op; op++) {
        fm__op_kind kind = in.m.tape->ops[op].kind;
        bool cached = kind == FM__OP_KV_STORE || kind == FM__OP_ATTENTION;
        int16_t out = in.m.tape->ops[op].out;
        bool output = out != FM__NONE && in.m.tape->tensors[out].slot == FM__SLOT_OUTPUT;
        fm__recording *recording = NULL;
        const fm__op_range range = {.op = op};
        if (in.m.tape->ops[op].in[0] == in.m.tape->hidden || output)
            continue; /* outputs are local here, for the other tests */
        CHECK(fm__device_record(host, in.m.tape, &range, 1, &recording, why));
        const fm__segment segment = {.recording = recording};
        assert_int_equal(fm__device_submit(host, &segment, 1, &in.run, 0, &error),
                         cached ? FM_ERROR_ARGUMENT : FM_OK);
        if (cached)
            assert_non_null(strstr(error.message, "the cache buffer belongs to"));
        fm__device_recording_destroy(&recording);
    }
    fm__device_destroy(&host);
    instances_finish(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_move_exactly_their_part),
        cmocka_unit_test(a_tape_full_of_copies_gives_the_same_bits),
        cmocka_unit_test(copies_meet_the_ops_beside_them),
        cmocka_unit_test(wrong_copies_are_refused),
        cmocka_unit_test(local_memory_has_no_address),
        cmocka_unit_test(a_unit_needs_only_what_it_touches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
