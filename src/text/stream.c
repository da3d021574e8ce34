/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/stream.c: ids in, valid UTF-8 out, cut before the first stop string that is completed.
 *
 * Owns: one answer's undelivered text. Never does: looking ahead. Called from: one thread a stream.
 *
 * The text is taken byte by byte, so how it was cut into tokens cannot matter: of several stop
 * strings the one that is complete first wins, and of those complete at the same byte the longest.
 * Each stop string keeps the length of its longest beginning that the text ends with; the longest
 * of these lengths is held back, everything before it can go out.
 */
#include <string.h>

#include "text/internal.h"

typedef struct stop {
    fm__str text;
    uint32_t *fallback; /* fallback[n]: the next shorter beginning after n bytes matched */
    size_t matched;
} stop;

struct fm_stream {
    const fm_tokenizer *tokenizer;
    stop *stops;
    size_t n_stops;
    fm__buf held;     /* valid UTF-8: delivered by the last call, then what is held back */
    size_t delivered; /* bytes at the start of held that the last call handed out */
    char tail[4];     /* the start of a character that is not complete */
    size_t tail_bytes;
    bool at_start; /* nothing was added yet */
    bool stopped, finished;
};

static bool stop_init(stop *s, const char *text, size_t bytes) {
    char *copy = fm__alloc(bytes);
    s->fallback = fm__alloc_array(bytes + 1, sizeof *s->fallback);
    s->text = (fm__str){copy, bytes};
    if (!copy || !s->fallback)
        return false;
    memcpy(copy, text, bytes);
    size_t k = 0;
    for (size_t i = 1; i < bytes; i++) {
        while (k > 0 && copy[i] != copy[k])
            k = s->fallback[k];
        if (copy[i] == copy[k])
            k++;
        s->fallback[i + 1] = (uint32_t)k;
    }
    return true;
}

/* true: the stop string is complete with this byte. */
static bool stop_step(stop *s, char byte) {
    while (s->matched > 0 && s->text.data[s->matched] != byte)
        s->matched = s->fallback[s->matched];
    if (s->text.data[s->matched] == byte)
        s->matched++;
    return s->matched == s->text.bytes;
}

fm_status fm_stream_create(fm_stream **out, const fm_tokenizer *tokenizer, const char *const *stops,
                           const size_t *stop_bytes, size_t n_stops, fm_error *error) {
    if (!out || !tokenizer || (n_stops > 0 && (!stops || !stop_bytes)))
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_stream_create",
                         "out, tokenizer, stops and stop_bytes must not be NULL");
    for (size_t i = 0; i < n_stops; i++)
        if (!stops[i] || stop_bytes[i] == 0 || stop_bytes[i] > UINT32_MAX / 2 ||
            fm__valid_bytes(stops[i], stop_bytes[i]) != stop_bytes[i])
            return fm__error(error, FM_ERROR_ARGUMENT, "fm_stream_create", "stop string %zu is %s",
                             i, stops[i] && stop_bytes[i] > 0 ? "not UTF-8" : "empty");
    fm_stream *stream = fm__alloc_zero(sizeof *stream);
    if (!stream)
        return fm__error_memory(error, "fm_stream_create", sizeof *stream);
    stream->tokenizer = tokenizer;
    stream->at_start = true;
    stream->stops = fm__alloc_array(fm__max_size(n_stops, 1), sizeof *stream->stops);
    bool ok = stream->stops != NULL && fm__buf_append(&stream->held, "", 0);
    for (size_t i = 0; i < n_stops && ok; i++) {
        stream->n_stops = i + 1;
        ok = stop_init(&stream->stops[i], stops[i], stop_bytes[i]);
    }
    if (!ok) {
        fm_stream_destroy(&stream);
        return fm__error_memory(error, "fm_stream_create", n_stops * sizeof *stream->stops);
    }
    *out = stream;
    return FM_OK;
}

void fm_stream_destroy(fm_stream **stream) {
    if (!stream || !*stream)
        return;
    fm_stream *s = *stream;
    for (size_t i = 0; i < s->n_stops; i++) {
        fm__free((char *)s->stops[i].text.data);
        fm__free(s->stops[i].fallback);
    }
    fm__free(s->stops);
    fm__buf_finish(&s->held);
    fm__free(s);
    *stream = NULL;
}

void fm_stream_continue(fm_stream *stream) {
    stream->at_start = false;
}

/* Valid text behind what is held. Cuts and stops at the first stop string that completes. */
static void add_valid(fm_stream *s, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes && !s->stopped; i++) {
        size_t longest = 0;
        fm__buf_append(&s->held, text + i, 1);
        for (size_t k = 0; k < s->n_stops; k++)
            if (stop_step(&s->stops[k], text[i]))
                longest = fm__max_size(longest, s->stops[k].text.bytes);
        if (longest > 0 && !s->held.failed) {
            s->held.bytes -= longest;
            s->stopped = true;
        }
    }
}

static void add_replacement(fm_stream *s) {
    add_valid(s, "\xef\xbf\xbd", 3);
}

/* One raw byte: completes a character, continues one, or shows that what came before is none. */
static void add_byte(fm_stream *s, char byte) {
    s->tail[s->tail_bytes++] = byte;
    int length = fm__utf8_next(s->tail, s->tail_bytes, NULL);
    if (length > 0) {
        s->tail_bytes = 0;
        add_valid(s, s->tail, (size_t)length);
    } else if (length == 0 && s->tail_bytes == 1) {
        s->tail_bytes = 0;
        add_replacement(s);
    } else if (length == 0) {
        s->tail_bytes = 0;
        add_replacement(s);
        if (!s->stopped)
            add_byte(s, byte);
    }
}

/* Hands out all of held but the last `keep` bytes. */
static fm_status deliver(fm_stream *s, size_t keep, const char **piece, size_t *bytes,
                         const char *place, fm_error *error) {
    if (s->held.failed)
        return fm__error_memory(error, place, s->held.bytes);
    s->delivered = s->held.bytes - keep;
    *piece = s->held.data;
    *bytes = s->delivered;
    return FM_OK;
}

/* Drops what the last call handed out. */
static void drop_delivered(fm_stream *s) {
    if (s->delivered == 0 || s->held.failed)
        return;
    memmove(s->held.data, s->held.data + s->delivered, s->held.bytes - s->delivered);
    s->held.bytes -= s->delivered;
    s->delivered = 0;
}

fm_status fm_stream_push(fm_stream *stream, int32_t id, const char **piece, size_t *bytes,
                         int *stopped, fm_error *error) {
    if (!stream || !piece || !bytes || !stopped)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_stream_push",
                         "stream, piece, bytes and stopped must not be NULL");
    if (stream->finished)
        return fm__error(error, FM_ERROR_STATE, "fm_stream_push", "the stream is finished");
    const fm_tokenizer *t = stream->tokenizer;
    if (id < 0 || (size_t)id >= t->n_tokens)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_stream_push",
                         "id %d is outside the vocabulary of %zu", id, t->n_tokens);
    drop_delivered(stream);
    if (!stream->stopped && !fm__tokenizer_is_control(t, id)) {
        fm__str text = t->tokens[id].bytes;
        size_t i =
            stream->at_start && t->decode_drops_space && text.bytes > 0 && text.data[0] == ' ';
        stream->at_start = stream->at_start && text.bytes == 0;
        for (; i < text.bytes && !stream->stopped; i++)
            add_byte(stream, text.data[i]);
    }
    size_t keep = 0;
    for (size_t k = 0; k < stream->n_stops && !stream->stopped; k++)
        keep = fm__max_size(keep, stream->stops[k].matched);
    *stopped = stream->stopped;
    return deliver(stream, keep, piece, bytes, "fm_stream_push", error);
}

fm_status fm_stream_finish(fm_stream *stream, const char **piece, size_t *bytes, fm_error *error) {
    if (!stream || !piece || !bytes)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_stream_finish",
                         "stream, piece and bytes must not be NULL");
    drop_delivered(stream);
    if (!stream->stopped && !stream->finished && stream->tail_bytes > 0) {
        stream->tail_bytes = 0;
        add_replacement(stream);
    }
    stream->finished = true;
    return deliver(stream, 0, piece, bytes, "fm_stream_finish", error);
}
