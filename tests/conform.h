/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform.h: one tape with given inputs, run on every kind of device of this machine and compared
 * with the interpreter over the reference kernels, bit for bit. Memory that an op does not own must
 * stay as it was.
 */
#pragma once

#include <math.h>

#include "interpreter.h"

/* ---- the devices ---- */

enum { SUBJECTS = 12 };

typedef struct subject {
    char name[64];
    fm__device *device;
    bool computes; /* false: the null device, for shapes and refusals only */
} subject;

typedef struct subjects {
    subject list[SUBJECTS];
    uint32_t n;
} subjects;

static subjects all_subjects;

static inline void subject_add(const char *name, fm__device *device, bool computes) {
    assert_true(all_subjects.n < SUBJECTS);
    subject *s = &all_subjects.list[all_subjects.n++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->device = device;
    s->computes = computes;
}

static inline void subjects_add_host(uint32_t threads, const char *rung) {
    const int unpinned[] = {-1, -1, -1, -1};
    const fm__host_options options = {.threads = threads, .rung = rung, .cpus = unpinned};
    fm__device *device = NULL;
    char name[64];
    CHECK(fm__device_host_create(&device, &options, why));
    snprintf(name, sizeof name, "host %s, %u threads", device->properties.rung, threads);
    subject_add(name, device, true);
}

/* A gpu, real or emulated. NULL: there is none, and why was printed. */
static inline fm__device *open_gpu(bool discrete) {
    const fm__vulkan_options options = {
        .allow_software = true, .force_discrete = discrete, .cache_dir = ""};
    fm__device *device = NULL;
    fm_error error = {0};
    if (fm__device_vulkan_create(&device, &options, &error) != FM_OK)
        printf("skip: vulkan: %s: %s\n", error.place, error.message);
    return device;
}

/* Every rung of the processor, a team of two, the null device, and the first gpu there is. */
static inline int subjects_open(void **state) {
    (void)state;
    for (const char *const *rung = fm__kernels_rungs(); *rung != NULL; rung++)
        subjects_add_host(1, *rung);
    subjects_add_host(2, NULL);
    fm__device *device = NULL;
    CHECK(fm__device_null_create(&device, &(fm__null_options){.memory_bytes = 1u << 30}, why));
    subject_add("null", device, false);
    if ((device = open_gpu(false)) != NULL)
        subject_add("vulkan", device, true);
    return 0;
}

static inline int subjects_close(void **state) {
    (void)state;
    while (all_subjects.n > 0)
        fm__device_destroy(&all_subjects.list[--all_subjects.n].device);
    return 0;
}

static inline bool subject_is_gpu(const subject *s) {
    return strcmp(s->device->vtable->backend, "vulkan") == 0;
}

/* ---- a trial: a tape, its inputs, what must come out ---- */

enum { TRIAL_OPS = 64, TRIAL_BUFFERS = 64, TRIAL_VOCAB = 50 };

typedef struct trial {
    fixture f;
    fm__tape *tape;
    interpreter in;                   /* inputs before trial_run(), results after it */
    uint8_t *initial[FM__SLOT_COUNT]; /* what the slots hold before the run */
    size_t bytes[FM__SLOT_COUNT];     /* of each slot */
    uint8_t *owned[FM__SLOT_COUNT];   /* not 0: bytes that the ops may write */
    fm__op_range ranges[TRIAL_OPS];   /* what is recorded: every op, unless changed */
    uint32_t n_range;
    int16_t checked[8]; /* tensors that are compared */
    uint32_t n_checked;
    bool stores;       /* into the cache, which is compared as a whole */
    uint32_t first_op; /* those before it stand for whatever wrote the inputs: they are not run */
} trial;

static inline void trial_init(trial *t, uint64_t seed) {
    memset(t, 0, sizeof *t);
    fixture_init(&t->f, seed);
}

static inline void trial_tape(trial *t, uint32_t max_rows, uint32_t max_outputs) {
    t->tape = fixture_tape(&t->f, max_rows, max_outputs);
}

static inline int16_t trial_tensor(trial *t, const char *name, fm__act act, uint32_t cols,
                                   fm__rows rows, fm__slot slot) {
    return fm__tape_tensor(t->tape, name, act, cols, rows, slot);
}

/* A tensor that the test fills. A tape wants each tensor written by an op: all inputs come first.
 */
static inline int16_t trial_input(trial *t, const char *name, uint32_t cols, fm__rows rows) {
    bool outputs = rows == FM__ROWS_OUTPUT;
    int16_t table = fixture_gather(&t->f, "whatever", FM__F32, TRIAL_VOCAB, cols);
    t->tape->n_weight = t->f.n_weight;
    int16_t x = trial_tensor(t, name, FM__ACT_F32, cols, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(t->tape, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = table;
    if (outputs) {
        op = fm__tape_op(t->tape, FM__OP_SELECT, FM__NONE);
        op->in[0] = x;
        op->out = x = trial_tensor(t, name, FM__ACT_F32, cols, rows, FM__SLOT_SCRATCH);
    }
    t->first_op = t->tape->n_op;
    return x;
}

/* Offsets are known from here on; the slots are filled with what would show if it were read: NaN.
 */
static inline void trial_ready(trial *t) {
    CHECK(fm__tape_finish(t->tape, why));
    interpreter_init(&t->in, &t->f, t->tape);
    t->bytes[FM__SLOT_SCRATCH] = t->tape->scratch_bytes;
    t->bytes[FM__SLOT_OUTPUT] = t->tape->output_bytes;
    t->bytes[FM__SLOT_CACHE] = t->f.groups[0].bytes;
    for (int s = 0; s < FM__SLOT_COUNT; s++) {
        t->initial[s] = fixture_alloc(&t->f, t->bytes[s] + 1);
        t->owned[s] = fixture_alloc(&t->f, t->bytes[s] + 1);
        memset(t->in.slots[s], 0xFF, t->bytes[s]);
    }
    for (uint32_t i = t->first_op; i < t->tape->n_op; i++)
        t->ranges[t->n_range++] = (fm__op_range){.op = i, .axis = FM__AXIS_WHOLE};
}

static inline float *trial_row(trial *t, int16_t tensor, uint32_t row) {
    return interpreter_row(&t->in, t->tape, tensor, row);
}

static inline void trial_finish(trial *t) {
    interpreter_finish(&t->in);
    fm__tape_destroy(&t->tape);
    fixture_finish(&t->f);
}

/* ---- which bytes of a row count ---- */

typedef struct row_part {
    size_t offset, bytes;
} row_part;

static inline uint32_t row_parts(const fm__tensor *t, row_part parts[4]) {
    size_t k = t->cols;
    switch (t->act) {
    case FM__ACT_BF16:
        parts[0] = (row_part){t->layout.values, (k + k % 2) * 2};
        return 1;
    case FM__ACT_Q8_32:
        parts[0] = (row_part){t->layout.values, k};
        parts[1] = (row_part){t->layout.d, k / 32 * 4};
        parts[2] = (row_part){t->layout.sum, k / 32 * 2};
        return 3;
    case FM__ACT_Q8_256:
        parts[0] = (row_part){t->layout.values, k};
        parts[1] = (row_part){t->layout.d, k / 256 * 4};
        parts[2] = (row_part){t->layout.sum, k / 16 * 2};
        parts[3] = (row_part){t->layout.shift, k / 32};
        return 4;
    default:
        parts[0] = (row_part){t->layout.values, k * 4};
        return 1;
    }
}

/* Payloads and signs of NaN are not part of the contract. */
static inline bool same_float(const uint8_t *a, const uint8_t *b) {
    uint32_t x, y;
    memcpy(&x, a, 4);
    memcpy(&y, b, 4);
    return x == y || ((x & 0x7FFFFFFFu) > 0x7F800000u && (y & 0x7FFFFFFFu) > 0x7F800000u);
}

static inline void compare_row(const trial *t, const fm__tensor *tensor, uint32_t row,
                               const uint8_t *got, const char *who) {
    const uint8_t *want = t->in.slots[tensor->slot];
    size_t at = tensor->offset + row * tensor->layout.stride;
    row_part parts[4];
    uint32_t n = row_parts(tensor, parts);
    for (uint32_t p = 0; p < n; p++) {
        size_t begin = at + parts[p].offset;
        for (size_t i = 0; i < parts[p].bytes; i++) {
            if (got[begin + i] == want[begin + i])
                continue;
            size_t word = begin + i / 4 * 4;
            if (tensor->act == FM__ACT_F32 && same_float(got + word, want + word))
                continue;
            uint32_t x, y;
            memcpy(&x, got + word, 4);
            memcpy(&y, want + word, 4);
            fail_msg("%s: %s row %u part %u byte %zu: %08x (%.9g) instead of %08x (%.9g)", who,
                     tensor->name, row, p, i, x, (double)fm__bits_f32(x), y,
                     (double)fm__bits_f32(y));
        }
    }
}

static inline uint32_t run_rows(const trial *t, fm__rows rows) {
    return rows == FM__ROWS_OUTPUT ? t->f.batch.n_output : t->f.batch.n_row;
}

/* Marks the rows of the run, with their padding, as what an op may write. */
static inline void own_tensor(trial *t, int16_t id) {
    const fm__tensor *tensor = &t->tape->tensors[id];
    memset(t->owned[tensor->slot] + tensor->offset, 1,
           run_rows(t, tensor->rows) * tensor->layout.stride);
}

/* ---- running ---- */

typedef struct subject_run {
    fm__run run;
    fm__run_status status;
    fm__buffer *weights[TRIAL_BUFFERS];
    uint32_t n_weight;
} subject_run;

static inline fm__buffer *filled_buffer(fm__device *device, const void *from, size_t bytes) {
    fm__buffer *buffer = NULL;
    CHECK(fm__device_buffer_create(device, bytes, FM__MEMORY_LOCAL, &buffer, why));
    CHECK(fm__device_buffer_write(buffer, 0, from, bytes, why));
    return buffer;
}

/* A gpu gets its own copy of every weight. */
static inline void bind_weights(trial *t, const subject *s, subject_run *r) {
    for (uint32_t i = 0; i < t->f.n_weight; i++) {
        fm__weight *w = t->f.weights[i];
        w->n_ranges = 0;
        if (!subject_is_gpu(s))
            continue;
        assert_true(r->n_weight < TRIAL_BUFFERS);
        fm__buffer *buffer = filled_buffer(s->device, w->host, w->bytes);
        r->weights[r->n_weight++] = buffer;
        w->ranges[w->n_ranges++] =
            (fm__weight_range){.residency = FM__RESIDENCY_RESIDENT,
                               .panel_end = w->role == FM__ROLE_LINEAR ? w->panels : 1,
                               .buffer = buffer};
    }
}

static inline void subject_run_init(trial *t, const subject *s, subject_run *r) {
    memset(r, 0, sizeof *r);
    fm__run_status_clear(&r->status);
    r->run.batch = &t->f.batch;
    r->run.status = &r->status;
    for (int i = 0; i < FM__SLOT_COUNT; i++)
        if (t->bytes[i] > 0)
            r->run.buffers[i] = filled_buffer(s->device, t->initial[i], t->bytes[i]);
    bind_weights(t, s, r);
}

static inline void subject_run_finish(trial *t, subject_run *r) {
    for (int i = 0; i < FM__SLOT_COUNT; i++) {
        fm__device_buffer_destroy(&r->run.buffers[i]);
        fm__device_buffer_destroy(&r->run.mirrors[i]);
    }
    while (r->n_weight > 0)
        fm__device_buffer_destroy(&r->weights[--r->n_weight]);
    for (uint32_t i = 0; i < t->f.n_weight; i++)
        t->f.weights[i]->n_ranges = 0;
}

/* Records the ranges, runs them `times` times and waits. */
static inline void subject_execute(trial *t, const subject *s, subject_run *r, uint32_t times) {
    fm__recording *recording = NULL;
    fm__timeline done;
    fm__device *units[] = {s->device};
    CHECK(fm__timeline_create(&done, units, 1, 0, why));
    CHECK(fm__device_record(s->device, t->tape, t->ranges, t->n_range, &recording, why));
    for (uint32_t i = 1; i <= times; i++) {
        const fm__segment segment = {.recording = recording, .signal = &done, .signal_value = i};
        CHECK(fm__device_submit(s->device, &segment, 1, &r->run, 0, why));
        assert_true(fm__timeline_wait(&done, i));
        CHECK(fm__device_run_finish(s->device, t->tape, &r->run, why));
    }
    fm__device_recording_destroy(&recording);
    fm__timeline_finish(&done);
}

static inline void check_tensors(const trial *t, const subject *s, int slot, const uint8_t *got) {
    for (uint32_t i = 0; i < t->n_checked; i++) {
        const fm__tensor *tensor = &t->tape->tensors[t->checked[i]];
        if (tensor->slot == (fm__slot)slot)
            for (uint32_t row = 0; row < run_rows(t, tensor->rows); row++)
                compare_row(t, tensor, row, got, s->name);
    }
}

static inline void check_slot(const trial *t, const subject *s, const subject_run *r, int slot) {
    bool cache = slot == FM__SLOT_CACHE && t->stores;
    size_t bytes = t->bytes[slot];
    uint8_t *got = fm__alloc(bytes + 1);
    assert_non_null(got);
    if (bytes > 0)
        CHECK(fm__device_buffer_read(r->run.buffers[slot], 0, got, bytes, why));
    check_tensors(t, s, slot, got);
    for (size_t i = 0; i < bytes; i++) {
        uint8_t want = cache ? t->in.slots[slot][i] : t->initial[slot][i];
        if ((cache || !t->owned[slot][i]) && got[i] != want)
            fail_msg("%s: byte %zu of slot %d is %02x, not %02x", s->name, i, slot, got[i], want);
    }
    fm__free(got);
}

static inline void check_supported(const trial *t, const subject *s) {
    for (uint32_t i = 0; i < t->tape->n_op; i++) {
        const char *reason = "";
        if (!fm__device_op_supports(s->device, t->tape, &t->tape->ops[i], &reason))
            fail_msg("%s does not support %s: %s", s->name, fm__op_name(t->tape->ops[i].kind),
                     reason);
    }
}

static inline void trial_interpret(trial *t) {
    fm__tape run = *t->tape;
    run.ops += t->first_op;
    run.n_op -= t->first_op;
    interpreter_run(&t->in, &run, &t->f.batch);
}

/* The slots as they are now are the inputs; afterwards they hold the reference's results. */
static inline void trial_expect(trial *t) {
    for (int s = 0; s < FM__SLOT_COUNT; s++)
        memcpy(t->initial[s], t->in.slots[s], t->bytes[s]);
    for (uint32_t i = t->first_op; i < t->tape->n_op; i++) {
        if (t->tape->ops[i].out != FM__NONE)
            own_tensor(t, t->tape->ops[i].out);
        t->stores = t->stores || t->tape->ops[i].kind == FM__OP_KV_STORE;
    }
    trial_interpret(t);
}

static inline void trial_run_on(trial *t, const subject *s) {
    subject_run r;
    check_supported(t, s);
    subject_run_init(t, s, &r);
    subject_execute(t, s, &r, 1);
    if (s->computes) {
        if (r.status.first != UINT64_MAX)
            fail_msg("%s reports a failure of op %u", s->name, (unsigned)(r.status.first >> 32));
        for (int slot = 0; slot < FM__SLOT_COUNT; slot++)
            check_slot(t, s, &r, slot);
    }
    subject_run_finish(t, &r);
}

static inline void trial_check(trial *t, int16_t tensor) {
    assert_true(t->n_checked < 8);
    t->checked[t->n_checked++] = tensor;
}

/* Runs the tape on every device and compares. */
static inline void trial_run(trial *t) {
    trial_expect(t);
    for (uint32_t i = 0; i < all_subjects.n; i++)
        trial_run_on(t, &all_subjects.list[i]);
}

/* One half of the rows, then the other: as a split by tokens has it. */
static inline void trial_halve(trial *t, uint32_t border) {
    assert_true(2 * t->n_range <= TRIAL_OPS);
    uint32_t n = t->n_range;
    for (uint32_t i = n; i-- > 0;) {
        fm__op_range whole = t->ranges[i];
        t->ranges[2 * i] = (fm__op_range){whole.op, FM__AXIS_TOKENS, 0, border, 0, 0};
        t->ranges[2 * i + 1] =
            (fm__op_range){whole.op, FM__AXIS_TOKENS, border, FM__TOKEN_PARTS, 0, 0};
    }
    t->n_range = 2 * n;
}
