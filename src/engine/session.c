/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/session.c: one sequence of tokens and its pages.
 *
 * Owns: a session's tokens and page tables. Never does: compute. Called from: the user's threads;
 * the engine's lock guards everything that another session can see.
 */
#include "engine/engine.h"

#include <string.h>

fm_session_options fm_session_options_default(void) {
    return (fm_session_options){0};
}

static void release(fm_session *s) {
    fm__machine_release(s->engine->machine, s->reserved);
    fm__free(s->tokens);
    fm__free(s->logits);
    for (uint32_t g = 0; g < FM__MAX_GROUPS; g++)
        fm__free(s->pages[g]);
    fm__free(s);
}

uint64_t fm__session_bytes(const fm_engine *engine, uint32_t context) {
    return context * (uint64_t)sizeof(int32_t) + engine->model->hparams.n_vocab * sizeof(float);
}

fm_status fm_session_create(fm_session **out, fm_engine *engine, const fm_session_options *options,
                            fm_error *error) {
    fm_session_options o = options ? *options : fm_session_options_default();
    if (!out || !engine)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_session_create", "an argument is NULL");
    uint32_t context = o.context_length ? o.context_length : engine->context_length;
    if (context > engine->context_length)
        return fm__error(error, FM_ERROR_ARGUMENT, "context_length",
                         "is %u, the engine's context is %u", context, engine->context_length);
    uint32_t n_table = (context + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
    size_t logits = engine->model->hparams.n_vocab * sizeof(float);
    uint64_t bytes = fm__session_bytes(engine, context);
    if (!fm__machine_reserve(engine->machine, bytes))
        return fm__error(error, FM_ERROR_MEMORY, "session",
                         "needs %.1f MiB, %.1f of the memory budget's %.1f MiB are in use",
                         (double)bytes / 0x1p20,
                         (double)fm_machine_memory_used(engine->machine) / 0x1p20,
                         (double)engine->machine->memory_budget / 0x1p20);
    fm_session *s = fm__alloc_zero(sizeof(*s));
    if (!s) {
        fm__machine_release(engine->machine, bytes);
        return fm__error_memory(error, "session", sizeof(*s));
    }
    s->engine = engine;
    s->epoch = engine->epoch;
    s->context_length = context;
    s->n_table = n_table;
    s->reserved = bytes;
    s->tokens = fm__alloc_array(context, sizeof(int32_t));
    s->logits = fm__alloc(logits);
    bool ok = s->tokens && s->logits;
    for (uint32_t g = 0; g < engine->model->n_group && ok; g++) {
        s->undo_page[g] = FM__NO_PAGE;
        s->pages[g] = fm__alloc_array(n_table, sizeof(uint32_t));
        ok = s->pages[g] != NULL;
        for (uint32_t p = 0; p < n_table && ok; p++)
            s->pages[g][p] = FM__NO_PAGE;
    }
    if (!ok) {
        release(s);
        return fm__error_memory(error, "session", (size_t)bytes);
    }
    *out = s;
    return FM_OK;
}

void fm__session_drop_pages(fm_session *s, uint32_t from) {
    for (uint32_t g = 0; g < s->engine->model->n_group; g++) {
        for (uint32_t p = from; p < s->n_table; p++) {
            if (s->pages[g][p] != FM__NO_PAGE)
                fm__pool_drop(&s->engine->pools[g], s->pages[g][p]);
            s->pages[g][p] = FM__NO_PAGE;
        }
        if (s->dropped[g] > from)
            s->dropped[g] = from;
    }
}

void fm_session_destroy(fm_session **session) {
    if (!session || !*session)
        return;
    fm_session *s = *session;
    pthread_mutex_lock(&s->engine->lock);
    fm__session_drop_pages(s, 0);
    pthread_mutex_unlock(&s->engine->lock);
    release(s);
    *session = NULL;
}

fm_status fm_session_fork(fm_session **out, const fm_session *session, fm_error *error) {
    fm_session *s = NULL;
    fm_session_options options = {.context_length = session->context_length};
    fm_status status = fm_session_create(&s, session->engine, &options, error);
    if (status != FM_OK)
        return status;
    pthread_mutex_lock(&s->engine->lock);
    s->length = session->length;
    s->epoch = session->epoch;
    memcpy(s->tokens, session->tokens, session->length * sizeof(int32_t));
    for (uint32_t g = 0; g < s->engine->model->n_group; g++) {
        s->dropped[g] = session->dropped[g];
        for (uint32_t p = 0; p < s->n_table; p++) {
            s->pages[g][p] = session->pages[g][p];
            if (s->pages[g][p] != FM__NO_PAGE)
                fm__pool_share(&s->engine->pools[g], s->pages[g][p]);
        }
    }
    pthread_mutex_unlock(&s->engine->lock);
    *out = s;
    return FM_OK;
}

uint32_t fm_session_length(const fm_session *session) {
    return session->length;
}

uint32_t fm_session_context_length(const fm_session *session) {
    return session->context_length;
}

const int32_t *fm_session_tokens(const fm_session *session) {
    return session->tokens;
}

/* The shortest length above 0 from which the session can go on: the next row's window must start
   on a page that is still held. */
static uint32_t shortest_length(const fm_session *s) {
    uint32_t shortest = 1;
    for (uint32_t g = 0; g < s->engine->model->n_group; g++) {
        if (s->dropped[g] == 0)
            continue;
        uint32_t need = s->dropped[g] * FM__PAGE_TOKENS + s->engine->model->groups[g].window - 1;
        shortest = need > shortest ? need : shortest;
    }
    return shortest;
}

fm_status fm_session_truncate(fm_session *session, uint32_t length, fm_error *error) {
    fm_status status = FM_OK;
    pthread_mutex_lock(&session->engine->lock);
    uint32_t shortest = shortest_length(session);
    if (length > session->length) {
        status = fm__error(error, FM_ERROR_ARGUMENT, "truncate",
                           "to %u tokens, the session holds %u", length, session->length);
    } else if (length > 0 && length < session->length && length < shortest) {
        status = fm__error(error, FM_ERROR_STATE, "truncate",
                           "to %u tokens: the sliding window's pages before it are gone, it works "
                           "from %u on (or to 0)",
                           length, shortest);
    } else if (length < session->length) {
        session->length = length;
        fm__session_drop_pages(session, (length + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS);
    }
    pthread_mutex_unlock(&session->engine->lock);
    return status;
}

static fm_status append(fm_session *session, const int32_t *tokens, size_t n, bool logits,
                        fm_error *error) {
    fm_engine *engine = session->engine;
    uint32_t n_vocab = engine->model->hparams.n_vocab;
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            return fm__error(error, FM_ERROR_ARGUMENT, "token",
                             "%d (number %zu) is outside the vocabulary of %u", tokens[i], i,
                             n_vocab);
    }
    const uint32_t *pages[FM__MAX_GROUPS];
    fm_status status = FM_OK;
    pthread_mutex_lock(&engine->lock);
    if (n > session->context_length - session->length) {
        status = fm__error(error, FM_ERROR_LIMIT, "context",
                           "the session holds %u of %u tokens: no room for %zu more",
                           session->length, session->context_length, n);
    } else {
        fm__run_entry entry = {.session = session, .base = session->length, .count = (uint32_t)n};
        fm__rows_view rows = {
            .n_row = (uint32_t)n,
            .token = tokens,
            .last = logits ? FM_OUTPUT_LOGITS : FM_OUTPUT_NONE,
            .entries = &entry,
            .n_entry = 1,
            .pages = pages,
            .out = session->logits,
        };
        status = fm__engine_run_rows(engine, &rows, error);
    }
    pthread_mutex_unlock(&engine->lock);
    return status;
}

fm_status fm_session_prefill(fm_session *session, const int32_t *tokens, size_t n,
                             const float **logits, fm_error *error) {
    if (n == 0 || !tokens)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_session_prefill", "no tokens");
    fm_status status = append(session, tokens, n, logits != NULL, error);
    if (status == FM_OK && logits)
        *logits = session->logits;
    return status;
}

fm_status fm_session_decode(fm_session *session, int32_t token, const float **logits,
                            fm_error *error) {
    return fm_session_prefill(session, &token, 1, logits, error);
}
