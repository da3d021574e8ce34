/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz/fuzz_text_encode.c: any bytes as text for one of the test tokenizers: it is encoded, comes
 * back as it was where the vocabulary can say so, and a stream of its ids gives the same text.
 *
 * The first byte chooses tokenizer and flags, the second how long the stop string is that is taken
 * from the text itself. Reads text/... from the working directory (tests/data).
 */
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const files[] = {"text/story_tokenizer.json", "text/bytes.json",
                                    "text/marked.json", "text/unprefixed.json",
                                    "text/unigram.json"};
static fm_tokenizer *tokenizers[5];

static void load_all(void) {
    fm_error error;
    for (size_t i = 0; i < 5 && !tokenizers[4]; i++)
        if (fm_tokenizer_load(&tokenizers[i], files[i], &error) != FM_OK) {
            fprintf(stderr, "%s: %s (run in tests/data)\n", files[i], error.message);
            exit(1);
        }
}

/* What a stream must give: decoded text with U+FFFD for each longest broken character. */
static void to_valid(const char *text, size_t bytes, fm__buf *out) {
    for (size_t at = 0; at < bytes;) {
        int length = fm__utf8_next(text + at, bytes - at, NULL);
        if (length > 0) {
            fm__buf_append(out, text + at, (size_t)length);
            at += (size_t)length;
            continue;
        }
        size_t part = 1; /* the longest beginning that a longer text could complete */
        while (at + part < bytes && fm__utf8_next(text + at, part + 1, NULL) < 0)
            part++;
        at += fm__utf8_next(text + at, part, NULL) < 0 ? part : 1;
        fm__buf_append(out, "\xef\xbf\xbd", 3);
    }
}

static void check_stream(const fm_tokenizer *t, const int32_t *ids, size_t n, const char *text,
                         size_t bytes, size_t stop_bytes) {
    fm_stream *stream = NULL;
    fm_error error;
    fm__buf expected = {0}, got = {0};
    const char *piece, *stop;
    size_t piece_bytes;
    int stopped = 0;
    to_valid(text, bytes, &expected);
    stop = expected.data ? expected.data + expected.bytes / 2 : "";
    bool with_stop = stop_bytes > 0 && stop_bytes <= expected.bytes - expected.bytes / 2;
    if (fm_stream_create(&stream, t, &stop, &stop_bytes, with_stop, &error) != FM_OK) {
        if (!with_stop) /* half of a character is not a stop string */
            __builtin_trap();
        with_stop = false;
        if (fm_stream_create(&stream, t, NULL, NULL, 0, &error) != FM_OK)
            __builtin_trap();
    }
    for (size_t i = 0; i < n; i++) {
        if (fm_stream_push(stream, ids[i], &piece, &piece_bytes, &stopped, &error) != FM_OK)
            __builtin_trap();
        fm__buf_append(&got, piece, piece_bytes);
    }
    if (fm_stream_finish(stream, &piece, &piece_bytes, &error) != FM_OK)
        __builtin_trap();
    fm__buf_append(&got, piece, piece_bytes);
    if (with_stop) { /* it is in the text, so the first of it cuts */
        const char *hit = memmem(expected.data, expected.bytes, stop, stop_bytes);
        expected.bytes = hit ? (size_t)(hit - expected.data) : expected.bytes;
    }
    if (got.bytes != expected.bytes ||
        (got.bytes && memcmp(got.data, expected.data, got.bytes) != 0))
        __builtin_trap();
    fm__buf_finish(&expected);
    fm__buf_finish(&got);
    fm_stream_destroy(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    load_all();
    if (bytes < 2)
        return 0;
    size_t which = data[0] % 5;
    unsigned flags = data[0] / 5 % 8;
    size_t stop_bytes = data[1] % 16;
    const char *text = (const char *)data + 2;
    bytes -= 2;
    int32_t *ids = NULL;
    size_t n = 0, whole_bytes = 0, shown_bytes = 0;
    char *whole = NULL, *shown = NULL;
    fm_error error;
    const fm_tokenizer *t = tokenizers[which];
    if (fm_tokenizer_encode(t, text, bytes, flags, &ids, &n, &error) != FM_OK ||
        fm_tokenizer_decode(t, ids, n, 1, &whole, &whole_bytes, &error) != FM_OK ||
        fm_tokenizer_decode(t, ids, n, 0, &shown, &shown_bytes, &error) != FM_OK)
        __builtin_trap();
    if (which == 0 && !(flags & FM_TOKENIZE_ADD_SPECIAL) &&
        (whole_bytes != bytes || memcmp(whole, text, bytes) != 0))
        __builtin_trap();
    check_stream(t, ids, n, shown, shown_bytes, stop_bytes);
    fm_free(whole);
    fm_free(shown);
    fm_free(ids);
    return 0;
}
