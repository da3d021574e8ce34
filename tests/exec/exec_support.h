/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec_support.h: a model's tape with its plan, recorded on units, and conversations with it that
 * are compared with the interpreter.
 */
#pragma once

#include "exec/exec.h"
#include "interpreter.h"

static inline fm__device *make_host_as(const fm__host_options *wanted) {
    static const int free_cpus[] = {-1, -1, -1, -1, -1, -1, -1, -1};
    fm__device *device = NULL;
    fm__host_options options = *wanted;
    options.cpus = free_cpus;
    CHECK(fm__device_host_create(&device, &options, why));
    return device;
}

static inline fm__device *make_host(uint32_t threads, const char *rung) {
    return make_host_as(&(fm__host_options){.threads = threads, .rung = rung});
}

static inline fm__device *make_discrete_host(uint32_t threads) {
    return make_host_as(
        &(fm__host_options){.threads = threads, .name = "discrete", .discrete = true});
}

typedef struct session {
    fm__device *units[3];
    uint32_t n_unit;
    fm__plan *plan;
    fm__exec *exec;
    fm__run run;
    fm__run_status status;
} session;

/* The unit that makes the buffers: one with a queue of its own kind addresses only its own. */
static inline fm__device *session_memory(const session *s) {
    for (uint32_t u = 0; u < s->n_unit; u++)
        if (fm__device_has_own_queue(s->units[u]))
            return s->units[u];
    return s->units[0];
}

/* Buffers for the units: memory that all address; where others cannot address the main unit's, its
   own scratch and caches, outputs that they can, and a mirror of the scratch. The caches are zero:
   attention reads what was never stored. */
static inline void session_buffers(session *s, const model *m) {
    size_t bytes[FM__SLOT_COUNT] = {m->tape->scratch_bytes, m->tape->output_bytes,
                                    m->f.groups[0].bytes};
    fm__device *memory = session_memory(s);
    s->run = (fm__run){.batch = &m->f.batch, .status = &s->status};
    fm__run_status_clear(&s->status);
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++) {
        bool local = !s->units[0]->properties.unified && slot != FM__SLOT_OUTPUT;
        CHECK(fm__device_buffer_create(memory, bytes[slot],
                                       local ? FM__MEMORY_LOCAL : FM__MEMORY_HOST,
                                       &s->run.buffers[slot], why));
    }
    if (!s->units[0]->properties.unified && s->n_unit > 1)
        CHECK(fm__device_buffer_create(memory, bytes[FM__SLOT_SCRATCH], FM__MEMORY_HOST,
                                       &s->run.mirrors[FM__SLOT_SCRATCH], why));
    fm__buffer *cache = s->run.buffers[FM__SLOT_CACHE];
    void *zeros = fm__alloc_zero(cache->bytes);
    assert_non_null(zeros);
    CHECK(fm__device_buffer_write(cache, 0, zeros, cache->bytes, why));
    fm__free(zeros);
}

static inline void session_init(session *s, model *m, const fm__plan_options *options) {
    CHECK(fm__plan_make(&s->plan, m->tape, s->units, s->n_unit, options, why));
    CHECK(fm__exec_create(&s->exec, m->tape, s->plan, s->units, s->n_unit, why));
    session_buffers(s, m);
}

/* All but the units. */
static inline void session_close(session *s) {
    fm__device_buffer_destroy(&s->run.mirrors[FM__SLOT_SCRATCH]);
    run_finish(&s->run);
    fm__exec_destroy(&s->exec);
    assert_null(s->exec);
    fm__exec_destroy(&s->exec);
    fm__plan_destroy(&s->plan);
}

static inline void session_finish(session *s) {
    session_close(s);
    for (uint32_t u = 0; u < s->n_unit; u++)
        fm__device_destroy(&s->units[u]);
}

/* Fills the scratch, and its mirror, with what makes every sum that reads it wrong. */
static inline void session_poison(session *s) {
    fm__buffer *scratch[2] = {s->run.buffers[FM__SLOT_SCRATCH], s->run.mirrors[FM__SLOT_SCRATCH]};
    for (int i = 0; i < 2; i++) {
        if (scratch[i] == NULL)
            continue;
        void *bytes = fm__alloc(scratch[i]->bytes);
        assert_non_null(bytes);
        memset(bytes, 0xff, scratch[i]->bytes);
        CHECK(fm__device_buffer_write(scratch[i], 0, bytes, scratch[i]->bytes, why));
        fm__free(bytes);
    }
}

/* One run, whatever becomes of it. */
static inline fm_status run_try(session *s, fm_error *error) {
    uint64_t point = 0;
    fm_status status = fm__exec_submit(s->exec, &s->run, &point, error);
    return status == FM_OK ? fm__exec_wait(s->exec, point, &s->run, error) : status;
}

static inline void run_once(session *s) {
    CHECK(run_try(s, why));
}

/* ---- a batch with a row that fails ---- */

/* Of the embedding of token 5, the first block's (f16); returns what it was. */
static inline uint16_t set_scale(model *m, uint16_t scale) {
    const fm__weight *table = m->f.weights[m->embed];
    uint8_t *row = (uint8_t *)(uintptr_t)table->host + 5 * table->row_bytes;
    uint16_t before;
    memcpy(&before, row, sizeof before);
    memcpy(row, &scale, sizeof scale);
    return before;
}

/* Tokens 1 to 9, of which the fifth has an infinite scale; returns what that was. */
static inline uint16_t failing_batch(model *m) {
    fixture_batch(&m->f, 9, 20, MODEL_VOCAB, 2);
    for (int r = 0; r < 9; r++)
        ((int32_t *)(uintptr_t)m->f.batch.token)[r] = r + 1;
    return set_scale(m, 0x7C00);
}

static inline void run_fails(session *s) {
    fm_error error = {0};
    assert_int_equal(run_try(s, &error), FM_ERROR_NUMERIC);
    assert_string_equal(error.place, "quantise h of layer 0");
    assert_non_null(strstr(error.message, "row 4 (token 5 at position 24)"));
}

/* ---- conversations: prefill of 13 rows, then 3 single tokens ---- */

enum { STEPS = 4 };

/* What the interpreter makes of it. */
typedef struct conversation {
    fm__batch_view batch[STEPS];
    interpreter in[STEPS]; /* after each step */
} conversation;

static inline void conversation_init(conversation *c, model *m) {
    uint32_t at = 60; /* over the border of a page */
    for (int step = 0; step < STEPS; step++) {
        uint32_t rows = step == 0 ? 13 : 1;
        interpreter_init(&c->in[step], &m->f, m->tape);
        if (step > 0)
            memcpy(c->in[step].slots[FM__SLOT_CACHE], c->in[step - 1].slots[FM__SLOT_CACHE],
                   m->f.groups[0].bytes);
        fixture_batch(&m->f, rows, at, MODEL_VOCAB, rows > 1 ? 2 : 1);
        c->batch[step] = m->f.batch;
        interpreter_run(&c->in[step], m->tape, &m->f.batch);
        at += rows;
    }
}

static inline void conversation_finish(conversation *c) {
    for (int step = 0; step < STEPS; step++)
        interpreter_finish(&c->in[step]);
}

/* The same bits as the interpreter after each run. */
static inline void converse(session *s, const model *m, const conversation *c) {
    for (int step = 0; step < STEPS; step++) {
        s->run.batch = &c->batch[step];
        session_poison(s);
        run_once(s);
        uint32_t n = c->batch[step].n_output;
        interpreter_compare(&c->in[step], m->tape, m->tape->logits, n, &s->run);
        interpreter_compare(&c->in[step], m->tape, m->tape->hidden, n, &s->run);
    }
}

static inline void check_conversation(session *s, const fm__plan_options *options, fm__dtype type) {
    model m;
    conversation c;
    model_init(&m, FM__Q8_0, type, 16, 2);
    conversation_init(&c, &m);
    session_init(s, &m, options);
    converse(s, &m, &c);
    session_finish(s);
    conversation_finish(&c);
    model_finish(&m);
}
