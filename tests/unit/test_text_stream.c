/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: concatenated pieces equal the whole text, every piece is UTF-8, stop strings cut at the
 * same byte wherever the borders of tokens are.
 */
#include "unit/text_support.h"

typedef struct run {
    fm__buf text;
    bool stopped;
    size_t pieces; /* that were not empty */
} run;

static void take(run *r, const char *piece, size_t bytes) {
    if (fm__valid_bytes(piece, bytes) != bytes)
        fail_msg("the piece \"%.*s\" is not UTF-8", (int)bytes, piece);
    fm__buf_append(&r->text, piece, bytes);
    r->pieces += bytes > 0;
}

static run stream_ids(const fm_tokenizer *t, const int32_t *ids, size_t n, const char *const *stops,
                      size_t n_stops) {
    run r = {0};
    fm_stream *stream = NULL;
    fm_error error = {0};
    size_t stop_bytes[8], bytes;
    const char *piece;
    for (size_t i = 0; i < n_stops; i++)
        stop_bytes[i] = strlen(stops[i]);
    fm__buf_append(&r.text, "", 0);
    if (fm_stream_create(&stream, t, stops, stop_bytes, n_stops, &error) != FM_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < n; i++) {
        int stopped = 7;
        if (fm_stream_push(stream, ids[i], &piece, &bytes, &stopped, &error) != FM_OK)
            fail_msg("%s", error.message);
        take(&r, piece, bytes);
        assert_true(stopped == 0 || stopped == 1);
        assert_true(stopped >= (int)r.stopped);
        r.stopped = stopped;
    }
    assert_int_equal(fm_stream_finish(stream, &piece, &bytes, &error), FM_OK);
    take(&r, piece, bytes);
    fm_stream_destroy(&stream);
    fm_stream_destroy(&stream);
    return r;
}

/* One id a byte: the borders furthest from where the text's own are. */
static int32_t *byte_tokens(const fm_tokenizer *t, const char *text, size_t bytes) {
    int32_t *ids = calloc(bytes + 1, sizeof *ids);
    for (size_t i = 0; i < bytes; i++) {
        ids[i] = t->byte_ids[(uint8_t)text[i]];
        assert_true(ids[i] >= 0);
    }
    return ids;
}

static void check_stream(const fm_tokenizer *t, const char *text, size_t bytes,
                         const char *const *stops, size_t n_stops, const char *expected,
                         size_t expected_bytes, bool stopped) {
    encoded whole = encode(t, text, bytes, 0);
    int32_t *single = byte_tokens(t, text, bytes);
    for (int way = 0; way < 2; way++) {
        run r = way ? stream_ids(t, single, bytes, stops, n_stops)
                    : stream_ids(t, whole.ids, whole.count, stops, n_stops);
        if (r.text.bytes != expected_bytes || memcmp(r.text.data, expected, expected_bytes) != 0 ||
            r.stopped != stopped)
            fail_msg("way %d: \"%.*s\" (stopped %d) instead of \"%.*s\"", way, (int)r.text.bytes,
                     r.text.data, r.stopped, (int)expected_bytes, expected);
        fm__buf_finish(&r.text);
    }
    free(single);
    fm_free(whole.ids);
}

#define CHECK(t, text, stops, n, expected, stopped)                                                \
    check_stream(t, text, sizeof(text) - 1, stops, n, expected, sizeof(expected) - 1, stopped)

static void equals_the_whole(void **state) {
    (void)state;
    static const char *const files[] = {"text/bytes.json", "text/marked.json",
                                        "text/unprefixed.json", "text/unigram.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        fm_tokenizer *t = load_tokenizer(files[i]);
        json_t *vectors = load_json("text/marked_vectors.json");
        for (size_t k = 0; k < json_array_size(vectors); k++) {
            const json_t *text = json_object_get(json_array_get(vectors, k), "text");
            encoded e = encode(t, json_string_value(text), json_string_length(text), 2);
            run r = stream_ids(t, e.ids, e.count, NULL, 0);
            check_text(t, e.ids, e.count, 0, r.text.data, r.text.bytes);
            fm__buf_finish(&r.text);
            fm_free(e.ids);
        }
        json_decref(vectors);
        fm_tokenizer_destroy(&t);
    }
}

static void split_characters(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    CHECK(t, "😀 👩‍👩‍👧 é 中", NULL, 0, "😀 👩‍👩‍👧 é 中", false);
    CHECK(t, "a\0b", NULL, 0, "a\0b", false);
    /* One U+FFFD for each longest beginning of a character, as Unicode advises. */
    CHECK(t, "a\xe6\xad", NULL, 0, "a\xef\xbf\xbd", false);
    CHECK(t, "a\xe6\xad!", NULL, 0, "a\xef\xbf\xbd!", false);
    CHECK(t, "\xf0\x9f\x98", NULL, 0, "\xef\xbf\xbd", false);
    CHECK(t, "\xff", NULL, 0, "\xef\xbf\xbd", false);
    CHECK(t, "\xff\xff", NULL, 0, "\xef\xbf\xbd\xef\xbf\xbd", false);
    CHECK(t, "\xed\xa0\x80", NULL, 0, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", false);
    CHECK(t, "\xc0\xaf", NULL, 0, "\xef\xbf\xbd\xef\xbf\xbd", false);
    CHECK(t, "\xf4\x90\x80\x80", NULL, 0, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
          false);
    CHECK(t, "\xe6\xad\xe6\xad\x8c", NULL, 0, "\xef\xbf\xbd歌", false);
    CHECK(t, "", NULL, 0, "", false);
    fm_tokenizer_destroy(&t);
}

static void stop_strings(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    static const char *const end[] = {"END"}, *const user[] = {"\nUser:", "</s>"};
    CHECK(t, "the story END and more", end, 1, "the story ", true);
    CHECK(t, "END", end, 1, "", true);
    CHECK(t, "the ENEND x", end, 1, "the EN", true);
    CHECK(t, "the EN", end, 1, "the EN", false);
    CHECK(t, "the ENDEND", end, 1, "the ", true);
    CHECK(t, "hello\nUser: hi", user, 2, "hello", true);
    CHECK(t, "hello\nUse the</s>", user, 2, "hello\nUse the", true);
    CHECK(t, "hello\nUser", user, 2, "hello\nUser", false);
    /* Beginnings that overlap themselves and each other. */
    static const char *const aab[] = {"aab"}, *const abab[] = {"ababc"};
    CHECK(t, "aaaaab", aab, 1, "aaa", true);
    CHECK(t, "ababababc!", abab, 1, "abab", true);
    /* The one that is complete first wins, though another began before it. */
    static const char *const inner[] = {"abcdef", "cd"}, *const tails[] = {"cd", "bcd", "abcd"};
    CHECK(t, "xabcdefg", inner, 2, "xab", true);
    CHECK(t, "xabcdefg", tails, 3, "x", true);
    static const char *const emoji[] = {"👧"}, *const replacement[] = {"\xef\xbf\xbd"};
    CHECK(t, "ok 👩‍👩‍👧 no", emoji, 1, "ok 👩‍👩‍", true);
    CHECK(t, "ok 😀", emoji, 1, "ok 😀", false);
    CHECK(t, "ok\xff no", replacement, 1, "ok", true);
    /* Only the end of the answer completes it, and then nobody asks any more. */
    CHECK(t, "ok \xe6\xad", replacement, 1, "ok ", false);
    fm_tokenizer_destroy(&t);
}

static void released_when_no_match(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    fm_stream *stream = NULL;
    fm_error error = {0};
    const char *stop = "xyz", *piece;
    size_t three = 3, bytes;
    int stopped;
    assert_int_equal(fm_stream_create(&stream, t, &stop, &three, 1, &error), FM_OK);
    static const struct {
        char byte;
        const char *out;
    } steps[] = {{'a', "a"}, {'x', ""}, {'y', ""}, {'x', "xy"}, {'y', ""}, {'b', "xyb"}, {'x', ""}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        int32_t id = t->byte_ids[(uint8_t)steps[i].byte];
        assert_int_equal(fm_stream_push(stream, id, &piece, &bytes, &stopped, &error), FM_OK);
        assert_int_equal(bytes, strlen(steps[i].out));
        assert_memory_equal(piece, steps[i].out, bytes);
        assert_int_equal(stopped, 0);
    }
    assert_int_equal(fm_stream_finish(stream, &piece, &bytes, &error), FM_OK);
    assert_int_equal(bytes, 1);
    assert_memory_equal(piece, "x", 1);
    assert_int_equal(fm_stream_push(stream, 5, &piece, &bytes, &stopped, &error), FM_ERROR_STATE);
    fm_stream_destroy(&stream);
    fm_tokenizer_destroy(&t);
}

/* Any cutting of any text at any borders gives what the whole gives. */
static void borders_do_not_matter(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    static const char *const stops[] = {"aba", "bb", "é"};
    fm__random random;
    fm__random_seed(&random, 5);
    for (int round = 0; round < 3000; round++) {
        char text[24];
        size_t n = fm__random_next(&random) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = "aaabb\xc3\xa9 \xff"[fm__random_next(&random) % 9];
        encoded e = encode(t, text, n, 0);
        int32_t *single = byte_tokens(t, text, n);
        run a = stream_ids(t, e.ids, e.count, stops, 3), b = stream_ids(t, single, n, stops, 3);
        run whole = stream_ids(t, single, n, NULL, 0);
        assert_int_equal(a.stopped, b.stopped);
        assert_int_equal(a.text.bytes, b.text.bytes);
        assert_memory_equal(a.text.data, b.text.data, a.text.bytes);
        assert_true(a.text.bytes <= whole.text.bytes);
        assert_memory_equal(a.text.data, whole.text.data, a.text.bytes);
        if (!a.stopped)
            assert_int_equal(a.text.bytes, whole.text.bytes);
        fm__buf_finish(&a.text);
        fm__buf_finish(&b.text);
        fm__buf_finish(&whole.text);
        free(single);
        fm_free(e.ids);
    }
    fm_tokenizer_destroy(&t);
}

static void leading_space(void **state) {
    (void)state;
    fm_tokenizer *t = load_tokenizer("text/marked.json");
    encoded e = encode(t, "the cat", 7, FM_TOKENIZE_ADD_SPECIAL);
    assert_int_equal(e.ids[0], 1); /* <s>, then a token that starts with a space */
    run r = stream_ids(t, e.ids, e.count, NULL, 0);
    assert_string_equal(r.text.data, "the cat");
    fm__buf_finish(&r.text);
    fm_stream *stream = NULL;
    fm_error error = {0};
    const char *piece;
    size_t bytes;
    int stopped;
    assert_int_equal(fm_stream_create(&stream, t, NULL, NULL, 0, &error), FM_OK);
    fm_stream_continue(stream);
    assert_int_equal(fm_stream_push(stream, e.ids[1], &piece, &bytes, &stopped, &error), FM_OK);
    assert_true(bytes > 1);
    assert_int_equal(piece[0], ' ');
    fm_stream_destroy(&stream);
    fm_free(e.ids);
    fm_tokenizer_destroy(&t);
}

static void refuses(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    fm_stream *stream = NULL;
    fm_error error = {0};
    const char *empty = "", *broken = "\xff", *piece;
    size_t zero = 0, one = 1, bytes;
    int stopped;
    assert_int_equal(fm_stream_create(&stream, t, &empty, &zero, 1, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_stream_create(&stream, t, &broken, &one, 1, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_stream_create(&stream, NULL, NULL, NULL, 0, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_stream_create(&stream, t, NULL, NULL, 0, &error), FM_OK);
    assert_int_equal(fm_stream_push(stream, -1, &piece, &bytes, &stopped, &error),
                     FM_ERROR_ARGUMENT);
    assert_int_equal(fm_stream_push(stream, 4096, &piece, &bytes, &stopped, &error),
                     FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "4096"));
    /* Control tokens give nothing. */
    assert_int_equal(fm_stream_push(stream, 2, &piece, &bytes, &stopped, &error), FM_OK);
    assert_int_equal(bytes, 0);
    fm_stream_destroy(&stream);
    fm_stream_destroy(NULL);
    fm_tokenizer_destroy(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_the_whole),
                                       cmocka_unit_test(split_characters),
                                       cmocka_unit_test(stop_strings),
                                       cmocka_unit_test(released_when_no_match),
                                       cmocka_unit_test(borders_do_not_matter),
                                       cmocka_unit_test(leading_space),
                                       cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
