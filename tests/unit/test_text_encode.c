/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding what users send: bytes that are not UTF-8, NUL, special tokens, a second BOS, and long
 * runs, whose cost must grow with their length and not with its square.
 */
#include "unit/text_support.h"

static const char *const files[] = {"text/bytes.json", "text/marked.json", "text/unprefixed.json",
                                    "text/unigram.json"};
#define N_FILES (sizeof files / sizeof *files)

/* ---- bytes ---- */

static void every_byte(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    unsigned char all[256];
    for (int i = 0; i < 256; i++) {
        char two[2] = {(char)i, (char)i};
        all[i] = (unsigned char)i;
        check_round_trip(t, two, 1);
        check_round_trip(t, two, 2);
    }
    check_round_trip(t, all, sizeof all);
    fm_tokenizer_destroy(&t);
}

static void invalid_utf8(void **state) {
    (void)state;
    static const fm__str texts[] = {FM__STR("\xe6\xad"),
                                    FM__STR("\xff"),
                                    FM__STR("\xed\xa0\x80"),
                                    FM__STR("\xc0\xaf"),
                                    FM__STR("\0"),
                                    FM__STR("\xf4\x90\x80\x80"),
                                    FM__STR("caf\xc3"),
                                    FM__STR("a\xe6\xad b\xff\xff c"),
                                    FM__STR("\x80\x80 \xbf"),
                                    FM__STR("\xf0\x9f\x98 \xf0\x9f\x98\x80"),
                                    FM__STR("x\0y\0"),
                                    FM__STR("\xef\xbf\xbd")};
    for (size_t k = 0; k <= N_FILES; k++) {
        fm_tokenizer *t = k < N_FILES ? load_tokenizer(files[k]) : load_story();
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            check_round_trip(t, texts[i].data, texts[i].bytes);
        fm_tokenizer_destroy(&t);
    }
}

static void random_bytes(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 11);
    for (size_t k = 0; k <= N_FILES; k++) {
        /* bytes.json composes characters, so only its bytes that are not UTF-8 come back as such */
        if (k == 0)
            continue;
        fm_tokenizer *t = k < N_FILES ? load_tokenizer(files[k]) : load_story();
        for (int round = 0; round < 200; round++) {
            unsigned char text[64];
            size_t n = fm__random_next(&random) % sizeof text;
            for (size_t i = 0; i < n; i++)
                text[i] = (unsigned char)fm__random_next(&random);
            for (size_t i = 0; i + 2 < n; i++) /* U+2581 is how these vocabularies write a space */
                if (text[i] == 0xe2 && text[i + 1] == 0x96 && text[i + 2] == 0x81)
                    text[i] = 'x';
            if (k == 3 && n > 0 && text[0] == ' ') /* unigram.json does not mark a leading space */
                text[0] = 'x';
            check_round_trip(t, text, n);
        }
        fm_tokenizer_destroy(&t);
    }
}

static void inexpressible_byte(void **state) {
    (void)state;
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false,"
                               "\"add_prefix_space\":false}}";
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    int32_t *ids = NULL;
    size_t n = 7;
    assert_int_equal(
        fm__tokenizer_from_json(&t, json, sizeof json - 1, NULL, 0, NULL, 0, "tiny", &error),
        FM_OK);
    check_ids(t, "aa", 2, 0, (int32_t[]){0, 0}, 2);
    assert_int_equal(fm_tokenizer_encode(t, "ab", 2, 0, &ids, &n, &error), FM_ERROR_FORMAT);
    assert_non_null(strstr(error.message, "0x62"));
    fm_tokenizer_destroy(&t);
}

/* ---- special tokens ---- */

static void specials(void **state) {
    (void)state;
    fm_tokenizer *t = load_tokenizer("text/bytes.json");
    int32_t im_start = fm__vocab_spelled(t, FM__STR("<|im_start|>"));
    int32_t im = fm__vocab_spelled(t, FM__STR("<|im|>"));
    int32_t tool = fm__vocab_spelled(t, FM__STR("<tool>"));
    int32_t left = fm__vocab_spelled(t, FM__STR("<left>"));
    int32_t right = fm__vocab_spelled(t, FM__STR("<right>"));
    int32_t word = fm__vocab_spelled(t, FM__STR("word"));
    assert_true(im_start > 0 && im > 0 && tool > 0 && left > 0 && right > 0 && word > 0);
    /* Control tokens only where the caller parses them; user-defined ones always. */
    check_ids(t, "<|im_start|><|im|>", 18, FM_TOKENIZE_PARSE_SPECIAL, (int32_t[]){im_start, im}, 2);
    check_ids(t, "<tool>", 6, 0, &tool, 1);
    encoded plain = encode(t, "<|im_start|>", 12, 0);
    assert_true(plain.count > 3);
    for (size_t i = 0; i < plain.count; i++)
        assert_false(fm__tokenizer_is_control(t, plain.ids[i]));
    fm_free(plain.ids);
    /* Space before or behind goes into the token. */
    check_ids(t, " \n <left>", 9, 0, &left, 1);
    check_ids(t, "<right> \n ", 10, 0, &right, 1);
    check_ids(t, "<left><right>  <tool>", 21, 0, (int32_t[]){left, right, tool}, 3);
    /* Only as a word of its own. */
    check_ids(t, "word", 4, 0, &word, 1);
    encoded inside = encode(t, "sword", 5, 0);
    for (size_t i = 0; i < inside.count; i++)
        assert_int_not_equal(inside.ids[i], word);
    fm_free(inside.ids);
    fm_tokenizer_destroy(&t);
}

static void bos_once(void **state) {
    (void)state;
    const unsigned both = FM_TOKENIZE_PROMPT;
    fm_tokenizer *t = load_tokenizer("text/bytes.json"); /* <s> text </s> */
    check_ids(t, "", 0, both, (int32_t[]){0, 1}, 2);
    check_ids(t, NULL, 0, both, (int32_t[]){0, 1}, 2);
    check_ids(t, "", 0, 0, NULL, 0);
    check_ids(t, "<s>", 3, both, (int32_t[]){0, 1}, 2);
    check_ids(t, "<s><s>", 6, both, (int32_t[]){0, 0, 1}, 3);
    encoded text = encode(t, "<s>", 3, FM_TOKENIZE_ADD_SPECIAL); /* just text, so BOS comes first */
    assert_int_equal(text.ids[0], 0);
    assert_true(text.count > 4);
    assert_int_not_equal(text.ids[1], 0);
    fm_free(text.ids);
    fm_tokenizer_destroy(&t);
}

static void arguments(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    fm_error error = {0};
    int32_t *ids = NULL, outside[] = {5, 4096};
    size_t n = 0;
    char *text = NULL;
    assert_int_equal(fm_tokenizer_encode(t, "a", 1, 8, &ids, &n, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_tokenizer_encode(t, NULL, 1, 0, &ids, &n, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_tokenizer_encode(NULL, "a", 1, 0, &ids, &n, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_tokenizer_decode(t, outside, 2, 1, &text, &n, &error), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "index 1"));
    check_text(t, NULL, 0, 1, "", 0);
    check_text(t, (int32_t[]){1, 42, 2}, 3, 0, "H", 1);
    check_text(t, (int32_t[]){1, 42, 2}, 3, 1, "<|begin_of_text|>H<|endoftext|>", 31);
    assert_true(fm__tokenizer_is_control(t, 1));
    assert_false(fm__tokenizer_is_control(t, 42));
    assert_true(fm__str_is(fm__tokenizer_bytes(t, 223), " "));
    assert_int_equal(fm__tokenizer_bytes(t, 4096).bytes, 0);
    fm_tokenizer_destroy(&t);
}

/* ---- long inputs ---- */

#define LONG ((size_t)128 << 10)

static void fill(char *out, size_t n, const char *unit, size_t bytes) {
    for (size_t i = 0; i < n; i++)
        out[i] = unit[i % bytes];
}

static void long_runs(void **state) {
    (void)state;
    static const fm__str units[] = {FM__STR(" "),     FM__STR("a"),  FM__STR("7"),
                                    FM__STR("\n"),    FM__STR("😀"),  FM__STR("A"),
                                    FM__STR("\r\n "), FM__STR("a "), FM__STR("\xff"),
                                    FM__STR("\0"),    FM__STR("!"),  FM__STR("<|"),
                                    FM__STR("中"),    FM__STR("'s"), FM__STR("e\xcc\x81\xcc\x96")};
    char *text = malloc(LONG + 1);
    for (size_t k = 0; k <= N_FILES; k++) {
        fm_tokenizer *t = k < N_FILES ? load_tokenizer(files[k]) : load_story();
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            size_t n = LONG / units[i].bytes * units[i].bytes;
            fill(text, n, units[i].data, units[i].bytes);
            text[n] = 'x';
            if (k == 0 || (k == 3 && units[i].data[0] == ' ')) {
                encoded e = encode(t, text, n + 1, 0);
                assert_true(e.count > 0 && e.count <= n + 1);
                fm_free(e.ids);
            } else {
                check_round_trip(t, text, n + 1);
            }
        }
        fm_tokenizer_destroy(&t);
    }
    free(text);
}

/* Every pattern of the table on runs that make careless ones look at the rest of the text again at
   each match; the limit on backtracking would turn that into an error. */
static void long_runs_through_the_table(void **state) {
    (void)state;
    static const char *const units[] = {" ", "a", "A", "7", "\n", "Aa", "'", "!", "\t\n"};
    char *text = malloc(LONG + 1);
    fm__matcher *matcher = NULL;
    fm__pieces pieces = {0};
    fm_error error = {0};
    assert_int_equal(fm__matcher_create(&matcher, &error), FM_OK);
    const fm__pretokenizer *last = NULL;
    for (size_t k = 0; k < fm__pretokenizer_count; k++) {
        const fm__pretokenizer *pre = &fm__pretokenizers[k];
        if (last && strcmp(last->patterns[0], pre->patterns[0]) == 0)
            continue;
        last = pre;
        fm__step steps[7];
        size_t n_steps = 0;
        for (; n_steps < 7 && pre->patterns[n_steps]; n_steps++)
            assert_int_equal(fm__step_init_regex(&steps[n_steps],
                                                 fm__str_of(pre->patterns[n_steps]), FM__ISOLATED,
                                                 false, pre->name, &error),
                             FM_OK);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            fm__buf buf = {0};
            size_t total = 0;
            fill(text, LONG, units[i], strlen(units[i]));
            text[LONG] = '.';
            fm__buf_append(&buf, text, LONG + 1);
            if (fm__pretokenize(steps, n_steps, matcher, &buf, true, &pieces, &error) != FM_OK)
                fail_msg("%s: %s", pre->name, error.message);
            for (size_t p = 0; p < pieces.count; p++)
                total += pieces.data[p].bytes;
            assert_int_equal(total, LONG + 1);
            fm__buf_finish(&buf);
        }
        for (size_t i = 0; i < n_steps; i++)
            fm__step_finish(&steps[i]);
    }
    fm__pieces_finish(&pieces);
    fm__matcher_destroy(&matcher);
    free(text);
}

/* Heap operations for one word of n symbols: at most 3 n candidates, each up and down a heap that
   is at most 21 levels deep here. */
static void merging_is_not_quadratic(void **state) {
    (void)state;
    char *text = malloc(LONG);
    fm_error error = {0};
    for (size_t k = 0; k < 3; k++) {
        fm_tokenizer *t = load_tokenizer(files[k]);
        static const char *const units[] = {"a", "the", "ab", "e"};
        for (size_t i = 0; i < 4; i++) {
            fm__work work = {0};
            fm__ids ids = {0};
            fill(text, LONG, units[i], strlen(units[i]));
            assert_int_equal(fm__encode_word(t, &work, (fm__str){text, LONG}, &ids, &error), FM_OK);
            assert_true(ids.count > 0);
            assert_true(work.steps <= 3 * 2 * 21 * (uint64_t)LONG);
            fm__work_finish(&work);
            fm__ids_finish(&ids);
        }
        fm_tokenizer_destroy(&t);
    }
    free(text);
}

/* A pattern of somebody's file that backtracks without end is an error, not a hang or a crash. */
static void endless_pattern(void **state) {
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"(a|aa)+$\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
        "\"use_regex\":false,\"add_prefix_space\":false}]}}";
    fm_tokenizer *t = NULL;
    fm_error error = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    char text[4096];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    assert_int_equal(
        fm__tokenizer_from_json(&t, json, sizeof json - 1, NULL, 0, NULL, 0, "bomb", &error),
        FM_OK);
    assert_int_equal(fm_tokenizer_encode(t, text, sizeof text, 0, &ids, &n, &error),
                     FM_ERROR_LIMIT);
    check_ids(t, "aab", 3, 0, (int32_t[]){0, 0, 1}, 3);
    fm_tokenizer_destroy(&t);
}

/* ---- memory ---- */

/* Each allocation of an encoding in turn fails: an error, nothing leaked (the sanitizers look), and
   the tokenizer works afterwards. */
static void out_of_memory(void **state) {
    (void)state;
    for (size_t k = 0; k < N_FILES; k++) {
        fm_tokenizer *t = load_tokenizer(files[k]);
        fm_error error = {0};
        bool done = false;
        for (uint64_t n = 1; n < 500 && !done; n++) {
            int32_t *ids = NULL;
            size_t count = 0;
            fm__alloc_fail_after(n);
            fm_status status = fm_tokenizer_encode(t, "The cat é <s> sat \xff on 12 mats", 32, 3,
                                                   &ids, &count, &error);
            fm__alloc_fail_after(0);
            done = status == FM_OK;
            if (!done)
                assert_int_equal(status, FM_ERROR_MEMORY);
            fm_free(ids);
        }
        assert_true(done);
        fm_tokenizer_destroy(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte),
                                       cmocka_unit_test(invalid_utf8),
                                       cmocka_unit_test(random_bytes),
                                       cmocka_unit_test(inexpressible_byte),
                                       cmocka_unit_test(specials),
                                       cmocka_unit_test(bos_once),
                                       cmocka_unit_test(arguments),
                                       cmocka_unit_test(long_runs),
                                       cmocka_unit_test(long_runs_through_the_table),
                                       cmocka_unit_test(merging_is_not_quadratic),
                                       cmocka_unit_test(endless_pattern),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
