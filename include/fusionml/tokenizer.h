/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/tokenizer.h: text to token ids and back.
 *
 * A tokenizer is immutable after loading and may be used from many threads at once. Text is bytes
 * with a length; NUL is a byte like any other, and bytes that are not UTF-8 survive a round trip
 * wherever the vocabulary has byte tokens.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fusionml/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_tokenizer fm_tokenizer;

/* From a .gguf file (a vocabulary-only one too), a folder with tokenizer.json, or a tokenizer.json
   file. Errors: IO, FORMAT, UNSUPPORTED (an unknown pre-tokenizer or model, by name), MEMORY. */
FM_API fm_status fm_tokenizer_load(fm_tokenizer **out, const char *path, fm_error *error);
FM_API void fm_tokenizer_destroy(fm_tokenizer **tokenizer);

enum {
    FM_TOKENIZE_ADD_SPECIAL = 1,   /* BOS/EOS where the vocabulary asks for them, as the model's own
                                      tokenizer does */
    FM_TOKENIZE_PARSE_SPECIAL = 2, /* text such as <|im_start|> becomes that special token */
    FM_TOKENIZE_ONE_BOS = 4,       /* ADD_SPECIAL leaves out what the text already starts with */
    FM_TOKENIZE_PROMPT = 7,        /* all of these: what a prompt for generation wants */
};

/* text may be NULL when bytes is 0. *ids (*count entries) is the caller's: fm_free(); it may be
   NULL when *count is 0. Errors: ARGUMENT, MEMORY, FORMAT (a byte that the vocabulary cannot
   express), LIMIT (a pattern of the file backtracks without end). */
FM_API fm_status fm_tokenizer_encode(const fm_tokenizer *tokenizer, const char *text, size_t bytes,
                                     unsigned flags, int32_t **ids, size_t *count, fm_error *error);

/* The whole text of ids at once, as raw bytes (NUL-terminated behind *bytes; fm_free()). With
   keep_special 0, control tokens are left out. Where the vocabulary puts a space before a text
   (SentencePiece), one space at the very start is taken off. An id outside the vocabulary:
   ARGUMENT. */
FM_API fm_status fm_tokenizer_decode(const fm_tokenizer *tokenizer, const int32_t *ids,
                                     size_t count, int keep_special, char **text, size_t *bytes,
                                     fm_error *error);

FM_API size_t fm_tokenizer_vocab_size(const fm_tokenizer *tokenizer);
/* -1 where the vocabulary has none. */
FM_API int32_t fm_tokenizer_bos(const fm_tokenizer *tokenizer);
FM_API int32_t fm_tokenizer_eos(const fm_tokenizer *tokenizer);
/* 1 if id ends an answer (EOS, end of turn, ...). */
FM_API int fm_tokenizer_is_end(const fm_tokenizer *tokenizer, int32_t id);
/* The token as the vocabulary spells it, valid UTF-8 (e.g. "Ġthe"); owned by the tokenizer; NULL
 * outside. */
FM_API const char *fm_tokenizer_token(const fm_tokenizer *tokenizer, int32_t id);

/* ---- Streams: ids in, valid UTF-8 out, stop strings cut ---- */

/* One answer's text. Not thread-safe; one stream per answer. The tokenizer must outlive it.
   Concatenated pieces equal the whole decoded text (up to a stop string); every piece is valid
   UTF-8; an incomplete tail becomes one U+FFFD at the end. Of several stop strings the one that is
   complete first cuts, and of those complete at the same byte the longest, wherever token borders
   are. */
typedef struct fm_stream fm_stream;

/* stops: n_stops strings of stop_bytes[i] bytes each (copied), or NULL with 0; one that is empty or
   not UTF-8: ARGUMENT. */
FM_API fm_status fm_stream_create(fm_stream **out, const fm_tokenizer *tokenizer,
                                  const char *const *stops, const size_t *stop_bytes,
                                  size_t n_stops, fm_error *error);
FM_API void fm_stream_destroy(fm_stream **stream);
/* The ids to come continue a text that the caller has already: where the vocabulary puts a space
   before a text and fm_tokenizer_decode() takes it off again (SentencePiece), the first id's space
   is kept, since it stands between the two. Call before the first fm_stream_push(). */
FM_API void fm_stream_continue(fm_stream *stream);
/* Takes one id. *piece (*bytes long, may be 0) stays valid until the next call on this stream. Text
   that may be the start of a stop string is held back. *stopped becomes 1 when a stop string
   matched: its text and all behind it are dropped and later ids are ignored. Control tokens give no
   text. Errors: ARGUMENT (an id outside the vocabulary), MEMORY. */
FM_API fm_status fm_stream_push(fm_stream *stream, int32_t id, const char **piece, size_t *bytes,
                                int *stopped, fm_error *error);
/* The end of the answer: releases what was held back. Same ownership as fm_stream_push(). */
FM_API fm_status fm_stream_finish(fm_stream *stream, const char **piece, size_t *bytes,
                                  fm_error *error);

#ifdef __cplusplus
}
#endif
