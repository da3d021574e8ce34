/* SPDX-License-Identifier: Apache-2.0 */
/* text_support.h: what the tests of the text room share: loading, encoding, comparing. */
#pragma once

#include "test.h"

#include <jansson.h>

#include "text/internal.h"

static inline json_t *load_json(const char *path) {
    json_error_t reason;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &reason);
    if (!root)
        fail_msg("%s: %s", path, reason.text);
    return root;
}

static inline fm_tokenizer *load_tokenizer(const char *path) {
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    if (fm_tokenizer_load(&t, path, &error) != FM_OK)
        fail_msg("%s: %s (%s)", path, error.message, error.place);
    return t;
}

static inline fm_tokenizer *load_story(void) {
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    char *json = NULL, *config = NULL;
    size_t bytes = 0, config_bytes = 0;
    assert_int_equal(fm__file_read("text/story_tokenizer.json", 1 << 20, &json, &bytes, &error),
                     FM_OK);
    assert_int_equal(
        fm__file_read("text/story_tokenizer_config.json", 1 << 20, &config, &config_bytes, &error),
        FM_OK);
    if (fm__tokenizer_from_json(&t, json, bytes, config, config_bytes, NULL, 0, "story", &error) !=
        FM_OK)
        fail_msg("story: %s (%s)", error.message, error.place);
    fm__free(json);
    fm__free(config);
    return t;
}

/* The same tokenizer by way of GGUF keys. */
static inline fm_tokenizer *through_keys(const fm_tokenizer *t) {
    fm_tokenizer *again = NULL;
    fm__checkpoint *keys = NULL;
    fm_error error = {0};
    assert_int_equal(fm__checkpoint_view(&keys, NULL, &error), FM_OK);
    if (fm__tokenizer_to_keys(t, keys, &error) != FM_OK ||
        fm__tokenizer_from_checkpoint(&again, keys, &error) != FM_OK)
        fail_msg("%s (%s)", error.message, error.place);
    fm__checkpoint_close(&keys);
    assert_non_null(again);
    return again;
}

typedef struct encoded {
    int32_t *ids;
    size_t count;
} encoded;

static inline encoded encode(const fm_tokenizer *t, const char *text, size_t bytes,
                             unsigned flags) {
    encoded out = {0};
    fm_error error = {0};
    if (fm_tokenizer_encode(t, text, bytes, flags, &out.ids, &out.count, &error) != FM_OK)
        fail_msg("encode: %s", error.message);
    return out;
}

static inline bool same_ids(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    bool same = n_a == n_b;
    for (size_t i = 0; i < n_a && same; i++)
        same = a[i] == b[i];
    return same;
}

static inline void print_ids(const char *what, const int32_t *ids, size_t n) {
    printf("  %s:", what);
    for (size_t i = 0; i < n; i++)
        printf(" %d", ids[i]);
    printf("\n");
}

static inline void check_ids(const fm_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                             const int32_t *expected, size_t n) {
    encoded got = encode(t, text, bytes, flags);
    if (!same_ids(got.ids, got.count, expected, n)) {
        print_ids("got", got.ids, got.count);
        print_ids("expected", expected, n);
        fail_msg("ids of \"%.*s\" (flags %u) differ", (int)bytes, text ? text : "", flags);
    }
    fm_free(got.ids);
}

static inline void check_text(const fm_tokenizer *t, const int32_t *ids, size_t n, int keep_special,
                              const char *expected, size_t expected_bytes) {
    char *text = NULL;
    size_t bytes = 0;
    fm_error error = {0};
    if (fm_tokenizer_decode(t, ids, n, keep_special, &text, &bytes, &error) != FM_OK)
        fail_msg("decode: %s", error.message);
    if (bytes != expected_bytes || memcmp(text, expected, bytes) != 0)
        fail_msg("decoded \"%.*s\" instead of \"%.*s\"", (int)bytes, text, (int)expected_bytes,
                 expected);
    assert_int_equal(text[bytes], 0);
    fm_free(text);
}

static inline void check_round_trip(const fm_tokenizer *t, const void *text, size_t bytes) {
    encoded got = encode(t, text, bytes, 0);
    check_text(t, got.ids, got.count, 1, text, bytes);
    fm_free(got.ids);
}
