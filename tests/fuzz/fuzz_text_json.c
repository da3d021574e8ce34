/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz/fuzz_text_json.c: any bytes as a tokenizer.json: an error, or a tokenizer that encodes,
 * decodes and streams whatever it is given, and is the same again by way of GGUF keys.
 */
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const fm__str texts[] = {FM__STR(""), FM__STR("a"), FM__STR(" The cat's 123 <s>a b\n\n"),
                                FM__STR("e\xcc\x81\xff\xe6\xad 中\0x"),
                                FM__STR("aaaaaaaaaaaaaaab")};

static void stream_all(const fm_tokenizer *t, const int32_t *ids, size_t n) {
    fm_stream *stream = NULL;
    fm_error error;
    const char *piece, *stop = "at";
    size_t bytes, two = 2;
    int stopped;
    if (fm_stream_create(&stream, t, &stop, &two, 1, &error) != FM_OK)
        __builtin_trap();
    for (size_t i = 0; i < n; i++)
        if (fm_stream_push(stream, ids[i], &piece, &bytes, &stopped, &error) != FM_OK)
            __builtin_trap();
    if (fm_stream_finish(stream, &piece, &bytes, &error) != FM_OK)
        __builtin_trap();
    fm_stream_destroy(&stream);
}

/* The ids of text by t; the same by `again` where there is one. */
static void use(const fm_tokenizer *t, const fm_tokenizer *again, fm__str text, unsigned flags) {
    int32_t *ids = NULL, *same = NULL;
    size_t n = 0, n_same = 0, text_bytes = 0;
    char *decoded = NULL;
    fm_error error;
    fm_status status = fm_tokenizer_encode(t, text.data, text.bytes, flags, &ids, &n, &error);
    if (again &&
        fm_tokenizer_encode(again, text.data, text.bytes, flags, &same, &n_same, &error) != status)
        __builtin_trap();
    if (again && (n != n_same || (n && memcmp(ids, same, n * sizeof *ids) != 0)))
        __builtin_trap();
    fm_free(same);
    if (status != FM_OK)
        return;
    for (int keep = 0; keep < 2; keep++) {
        if (fm_tokenizer_decode(t, ids, n, keep, &decoded, &text_bytes, &error) != FM_OK)
            __builtin_trap();
        fm_free(decoded);
    }
    stream_all(t, ids, n);
    fm_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    fm_tokenizer *t = NULL, *again = NULL;
    fm__checkpoint *keys = NULL;
    fm_error error;
    if (fm__tokenizer_from_json(&t, (const char *)data, bytes, NULL, 0, NULL, 0, "fuzz", &error) !=
        FM_OK)
        return 0;
    if (fm__checkpoint_view(&keys, NULL, &error) == FM_OK &&
        fm__tokenizer_to_keys(t, keys, &error) == FM_OK &&
        (fm__tokenizer_from_checkpoint(&again, keys, &error) != FM_OK || !again))
        __builtin_trap();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (unsigned flags = 0; flags < 4; flags++)
            use(t, again, texts[i], flags);
    fm_tokenizer_destroy(&again);
    fm__checkpoint_close(&keys);
    fm_tokenizer_destroy(&t);
    return 0;
}
