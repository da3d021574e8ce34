/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/session.h: one sequence of tokens and its state (key/value pages).
 *
 * A session holds references to 64-token pages of its engine's pool. A fork shares them and copies
 * a page when one of the two writes to it. Calls on sessions of one engine are serialised by the
 * engine.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fusionml/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_session fm_session;

typedef struct fm_session_options {
    uint32_t context_length; /* tokens; 0: the engine's. More than the engine's: ARGUMENT. */
} fm_session_options;

FM_API fm_session_options fm_session_options_default(void);

/* options may be NULL. The engine must outlive the session. Errors: ARGUMENT, MEMORY. */
FM_API fm_status fm_session_create(fm_session **out, fm_engine *engine,
                                   const fm_session_options *options, fm_error *error);
FM_API void fm_session_destroy(fm_session **session);

/* A second session with the same tokens and state; pages are shared. Errors: MEMORY. */
FM_API fm_status fm_session_fork(fm_session **out, const fm_session *session, fm_error *error);

FM_API uint32_t fm_session_length(const fm_session *session);         /* tokens held */
FM_API uint32_t fm_session_context_length(const fm_session *session); /* tokens it may hold */
/* The tokens so far (fm_session_length() of them), owned by the session, valid until its next
 * change. */
FM_API const int32_t *fm_session_tokens(const fm_session *session);

/* Keeps the first `length` tokens. Errors: ARGUMENT (length above the session's), STATE (a
   sliding-window session whose needed pages are gone: the message says from which length on it
   works). */
FM_API fm_status fm_session_truncate(fm_session *session, uint32_t length, fm_error *error);

/* Appends n > 0 tokens, in chunks. *logits (may be NULL: then none are computed) receives the last
   token's logits, (n_vocab) floats, valid until the session's next prefill or decode. Errors: as
   fm_engine_run(). */
FM_API fm_status fm_session_prefill(fm_session *session, const int32_t *tokens, size_t n,
                                    const float **logits, fm_error *error);
/* Appends one token; allocates nothing. */
FM_API fm_status fm_session_decode(fm_session *session, int32_t token, const float **logits,
                                   fm_error *error);

/* Tokens and state to a file, and back into an empty session of an engine with the same model hash
   and numeric class. Errors: IO, FORMAT, LIMIT, STATE (session not empty, other model; the message
   says which). */
FM_API fm_status fm_session_save(const fm_session *session, const char *path, fm_error *error);
FM_API fm_status fm_session_restore(fm_session *session, const char *path, fm_error *error);

#ifdef __cplusplus
}
#endif
