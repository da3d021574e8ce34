/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/batch.c: the rows of one run, from any sessions of one engine.
 *
 * Owns: the rows and the memory of their outputs. Never does: allocate after creation. Called
 * from: one thread at a time.
 */
#include "engine/engine.h"

#include <string.h>

struct fm_batch {
    fm_engine *engine;
    uint32_t max_rows, max_outputs;
    uint32_t n_row, n_output, n_entry;
    int32_t *token;                /* (max_rows) */
    uint32_t *position, *sequence; /* (max_rows) */
    uint32_t *output;              /* (max_rows): index of the row's output */
    uint8_t *wanted;               /* (max_rows) */
    fm__run_entry *entries;        /* (max_rows) */
    const uint32_t **pages;        /* (max_rows * n_group) */
    float *out;                    /* (max_outputs, stride) */
    size_t stride;                 /* floats */
    uint64_t reserved;
    bool has_run;
};

/* Floats of one output. */
static size_t output_stride(const fm_engine *engine) {
    return fm__max_size(engine->model->hparams.n_vocab, engine->model->hparams.n_embd);
}

bool fm__batch_bytes(const fm_engine *engine, uint32_t outputs, size_t *bytes) {
    return fm__mul_size(output_stride(engine) * sizeof(float), outputs, bytes);
}

fm_status fm_batch_create(fm_batch **out, fm_engine *engine, uint32_t max_rows,
                          uint32_t max_outputs, fm_error *error) {
    if (!out || !engine || max_rows == 0 || max_rows > FM__MAX_BATCH_ROWS || max_outputs > max_rows)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_batch_create",
                         "%u rows with %u outputs: rows must be from 1 to 2^24, outputs at most as "
                         "many",
                         max_rows, max_outputs);
    size_t stride = output_stride(engine), bytes;
    if (!fm__batch_bytes(engine, max_outputs, &bytes))
        return fm__error(error, FM_ERROR_MEMORY, "batch", "%u outputs of %zu floats", max_outputs,
                         stride);
    if (!fm__machine_reserve(engine->machine, bytes))
        return fm__error(error, FM_ERROR_MEMORY, "batch",
                         "%u outputs need %.1f MiB, %.1f of the memory budget's %.1f MiB are in "
                         "use: fewer need less",
                         max_outputs, (double)bytes / 0x1p20,
                         (double)fm_machine_memory_used(engine->machine) / 0x1p20,
                         (double)engine->machine->memory_budget / 0x1p20);
    fm_batch *b = fm__alloc_zero(sizeof(*b));
    if (!b) {
        fm__machine_release(engine->machine, bytes);
        return fm__error_memory(error, "batch", sizeof(*b));
    }
    b->engine = engine;
    b->max_rows = max_rows;
    b->max_outputs = max_outputs;
    b->stride = stride;
    b->reserved = bytes;
    b->token = fm__alloc_array(max_rows, sizeof(*b->token));
    b->position = fm__alloc_array(max_rows, sizeof(*b->position));
    b->sequence = fm__alloc_array(max_rows, sizeof(*b->sequence));
    b->output = fm__alloc_array(max_rows, sizeof(*b->output));
    b->wanted = fm__alloc_array(max_rows, sizeof(*b->wanted));
    b->entries = fm__alloc_array(max_rows, sizeof(*b->entries));
    b->pages = fm__alloc_array((size_t)max_rows * engine->model->n_group, sizeof(*b->pages));
    b->out = fm__alloc(bytes);
    if (!b->token || !b->position || !b->sequence || !b->output || !b->wanted || !b->entries ||
        !b->pages || !b->out) {
        fm_batch_destroy(&b);
        return fm__error_memory(error, "batch", bytes + max_rows * 64);
    }
    *out = b;
    return FM_OK;
}

void fm_batch_destroy(fm_batch **batch) {
    if (!batch || !*batch)
        return;
    fm_batch *b = *batch;
    fm__machine_release(b->engine->machine, b->reserved);
    fm__free(b->token);
    fm__free(b->position);
    fm__free(b->sequence);
    fm__free(b->output);
    fm__free(b->wanted);
    fm__free(b->entries);
    fm__free(b->pages);
    fm__free(b->out);
    fm__free(b);
    *batch = NULL;
}

void fm_batch_clear(fm_batch *batch) {
    batch->n_row = batch->n_output = batch->n_entry = 0;
    batch->has_run = false;
}

/* The session's entry; the latest first, since rows of a session mostly come together. */
static uint32_t find_entry(const fm_batch *b, const fm_session *session) {
    for (uint32_t i = b->n_entry; i-- > 0;) {
        if (b->entries[i].session == session)
            return i;
    }
    return b->n_entry;
}

fm_status fm_batch_add(fm_batch *b, fm_session *session, int32_t token, fm_output output,
                       uint32_t *row, fm_error *error) {
    if (session->engine != b->engine)
        return fm__error(error, FM_ERROR_ARGUMENT, "session", "belongs to another engine");
    uint32_t n_vocab = b->engine->model->hparams.n_vocab;
    if (token < 0 || (uint32_t)token >= n_vocab)
        return fm__error(error, FM_ERROR_ARGUMENT, "token", "%d is outside the vocabulary of %u",
                         token, n_vocab);
    if (output != FM_OUTPUT_NONE && output != FM_OUTPUT_LOGITS && output != FM_OUTPUT_HIDDEN)
        return fm__error(error, FM_ERROR_ARGUMENT, "output", "%d is not an fm_output", (int)output);
    if (b->has_run)
        return fm__error(error, FM_ERROR_STATE, "batch", "has run and was not cleared");
    if (b->n_row == b->max_rows)
        return fm__error(error, FM_ERROR_LIMIT, "batch", "is full: %u of %u rows", b->n_row,
                         b->max_rows);
    if (output != FM_OUTPUT_NONE && b->n_output == b->max_outputs)
        return fm__error(error, FM_ERROR_LIMIT, "batch", "is full: %u of %u outputs", b->n_output,
                         b->max_outputs);
    uint32_t entry = find_entry(b, session);
    uint32_t base = entry == b->n_entry ? session->length : b->entries[entry].base;
    uint32_t count = entry == b->n_entry ? 0 : b->entries[entry].count;
    if (base + count >= session->context_length)
        return fm__error(error, FM_ERROR_LIMIT, "context",
                         "the session holds %u of %u tokens: no room for 1 more", base + count,
                         session->context_length);
    if (entry == b->n_entry)
        b->entries[b->n_entry++] = (fm__run_entry){.session = session, .base = base};
    b->entries[entry].count++;
    uint32_t r = b->n_row++;
    b->token[r] = token;
    b->position[r] = base + count;
    b->sequence[r] = entry;
    b->wanted[r] = (uint8_t)output;
    b->output[r] = output == FM_OUTPUT_NONE ? 0 : b->n_output++;
    if (row)
        *row = r;
    return FM_OK;
}

uint32_t fm_batch_rows(const fm_batch *batch) {
    return batch->n_row;
}

const float *fm_batch_output(const fm_batch *batch, uint32_t row) {
    if (!batch->has_run || row >= batch->n_row || batch->wanted[row] == FM_OUTPUT_NONE)
        return NULL;
    return batch->out + batch->output[row] * batch->stride;
}

fm_status fm_engine_run(fm_engine *engine, fm_batch *batch, fm_error *error) {
    if (batch->engine != engine)
        return fm__error(error, FM_ERROR_ARGUMENT, "batch", "belongs to another engine");
    if (batch->n_row == 0)
        return fm__error(error, FM_ERROR_ARGUMENT, "batch", "has no rows");
    fm__rows_view rows = {
        .n_row = batch->n_row,
        .token = batch->token,
        .position = batch->position,
        .sequence = batch->sequence,
        .wanted = batch->wanted,
        .entries = batch->entries,
        .n_entry = batch->n_entry,
        .pages = batch->pages,
        .out = batch->out,
        .out_stride = batch->stride,
    };
    batch->has_run = false;
    pthread_mutex_lock(&engine->lock);
    fm_status status = fm__engine_run_rows(engine, &rows, error);
    pthread_mutex_unlock(&engine->lock);
    batch->has_run = status == FM_OK;
    return status;
}
