/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids and texts that other implementations gave (tests/data/text/make.py), read from tokenizer.json
 * and again by way of GGUF keys; and how every pre-tokenizer of the table cuts.
 */
#include "unit/text_support.h"

static int32_t *ids_of(const json_t *list, size_t *n) {
    *n = json_array_size(list);
    int32_t *ids = calloc(*n + 1, sizeof *ids);
    for (size_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static void check_vector(const fm_tokenizer *t, const json_t *entry) {
    const json_t *text = json_object_get(entry, "text");
    const json_t *decoded = json_object_get(entry, "decoded");
    const json_t *kept = json_object_get(entry, "kept");
    decoded = decoded ? decoded : text;
    kept = kept ? kept : decoded;
    size_t n;
    int32_t *ids = ids_of(json_object_get(entry, "ids"), &n);
    check_ids(t, json_string_value(text), json_string_length(text), FM_TOKENIZE_PARSE_SPECIAL, ids,
              n);
    check_text(t, ids, n, 1, json_string_value(kept), json_string_length(kept));
    check_text(t, ids, n, 0, json_string_value(decoded), json_string_length(decoded));
    free(ids);
}

static void check_vectors(const fm_tokenizer *t, const char *path) {
    json_t *vectors = load_json(path);
    assert_true(json_array_size(vectors) > 300);
    for (size_t i = 0; i < json_array_size(vectors); i++)
        check_vector(t, json_array_get(vectors, i));
    json_decref(vectors);
}

static void check_both_ways(const char *tokenizer, const char *vectors) {
    fm_tokenizer *t = load_tokenizer(tokenizer);
    check_vectors(t, vectors);
    fm_tokenizer *again = through_keys(t);
    check_vectors(again, vectors);
    fm_tokenizer_destroy(&again);
    fm_tokenizer_destroy(&t);
}

static void byte_level(void **state) {
    (void)state;
    check_both_ways("text/bytes.json", "text/bytes_vectors.json");
}

static void marked(void **state) {
    (void)state;
    check_both_ways("text/marked.json", "text/marked_vectors.json");
}

static void unprefixed(void **state) {
    (void)state;
    check_both_ways("text/unprefixed.json", "text/unprefixed_vectors.json");
}

static void unigram(void **state) {
    (void)state;
    check_both_ways("text/unigram.json", "text/unigram_vectors.json");
}

/* The story model's own reference. ADD_SPECIAL writes a second BOS before a text that has one, as
   the reference does; ONE_BOS does not. */
static void check_story(const fm_tokenizer *t) {
    json_t *vectors = load_json("text/story_vectors.json");
    assert_int_equal(json_array_size(vectors), 28);
    for (size_t i = 0; i < json_array_size(vectors); i++) {
        const json_t *entry = json_array_get(vectors, i), *text = json_object_get(entry, "text");
        const json_t *decoded = json_object_get(entry, "decoded");
        size_t n, n_special;
        int32_t *ids = ids_of(json_object_get(entry, "ids"), &n);
        int32_t *special = ids_of(json_object_get(entry, "ids_with_special"), &n_special);
        bool doubled = n_special > 1 && special[1] == 1;
        check_ids(t, json_string_value(text), json_string_length(text), FM_TOKENIZE_PARSE_SPECIAL,
                  ids, n);
        check_ids(t, json_string_value(text), json_string_length(text),
                  FM_TOKENIZE_PARSE_SPECIAL | FM_TOKENIZE_ADD_SPECIAL, special, n_special);
        check_ids(t, json_string_value(text), json_string_length(text), FM_TOKENIZE_PROMPT,
                  special + doubled, n_special - doubled);
        check_text(t, ids, n, 1, json_string_value(decoded), json_string_length(decoded));
        free(ids);
        free(special);
    }
    json_decref(vectors);
    assert_int_equal(fm_tokenizer_vocab_size(t), 4096);
    assert_int_equal(fm_tokenizer_bos(t), 1);
    assert_int_equal(fm_tokenizer_eos(t), 2);
    assert_true(fm_tokenizer_is_end(t, 2));
    assert_false(fm_tokenizer_is_end(t, 1));
    assert_false(fm_tokenizer_is_end(t, -1));
    assert_false(fm_tokenizer_is_end(t, 4096));
    assert_string_equal(fm_tokenizer_token(t, 223), "\xc4\xa0");
    assert_null(fm_tokenizer_token(t, 4096));
    assert_null(fm_tokenizer_token(t, -1));
}

static void story(void **state) {
    (void)state;
    fm_tokenizer *t = load_story();
    check_story(t);
    fm_tokenizer *again = through_keys(t);
    check_story(again);
    assert_string_equal(again->pre, "llama-bpe");
    fm_tokenizer_destroy(&again);
    fm_tokenizer_destroy(&t);
}

/* ---- the table of pre-tokenizers ---- */

static void check_cuts(const json_t *entry, const json_t *texts) {
    const char *name = json_string_value(json_object_get(entry, "name"));
    const fm__pretokenizer *pre = fm__pretokenizer_find(fm__str_of(name));
    fm__step steps[7];
    size_t n_steps = 0;
    fm_error error = {0};
    if (!pre)
        fail_msg("no pre-tokenizer %s", name);
    for (; n_steps < 7 && pre->patterns[n_steps]; n_steps++)
        if (fm__step_init_regex(&steps[n_steps], fm__str_of(pre->patterns[n_steps]), FM__ISOLATED,
                                false, name, &error) != FM_OK)
            fail_msg("%s: %s", name, error.message);
    fm__matcher *matcher = NULL;
    fm__pieces pieces = {0};
    assert_int_equal(fm__matcher_create(&matcher, &error), FM_OK);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        const json_t *cuts = json_array_get(json_object_get(entry, "cuts"), i);
        fm__buf buf = {0};
        fm__buf_append(&buf, json_string_value(text), json_string_length(text));
        assert_int_equal(fm__pretokenize(steps, n_steps, matcher, &buf, true, &pieces, &error),
                         FM_OK);
        if (pieces.count != json_array_size(cuts))
            fail_msg("%s cuts \"%s\" into %zu pieces instead of %zu", name, json_string_value(text),
                     pieces.count, json_array_size(cuts));
        for (size_t k = 0; k < pieces.count; k++)
            assert_int_equal(pieces.data[k].bytes, json_integer_value(json_array_get(cuts, k)));
        fm__buf_finish(&buf);
    }
    fm__pieces_finish(&pieces);
    fm__matcher_destroy(&matcher);
    for (size_t i = 0; i < n_steps; i++)
        fm__step_finish(&steps[i]);
}

static void table_cuts(void **state) {
    (void)state;
    json_t *root = load_json("text/cuts.json");
    const json_t *names = json_object_get(root, "names");
    assert_int_equal(json_array_size(names), 27); /* the different sets of patterns */
    for (size_t i = 0; i < json_array_size(names); i++)
        check_cuts(json_array_get(names, i), json_object_get(root, "texts"));
    json_decref(root);
}

/* Every name is there once, and cuts like one of those above. */
static void table_names(void **state) {
    (void)state;
    json_t *root = load_json("text/cuts.json");
    const json_t *names = json_object_get(root, "names");
    for (size_t i = 0; i < fm__pretokenizer_count; i++) {
        const fm__pretokenizer *pre = &fm__pretokenizers[i];
        assert_ptr_equal(fm__pretokenizer_find(fm__str_of(pre->name)), pre);
        bool known = false;
        for (size_t k = 0; k < json_array_size(names) && !known; k++) {
            const json_t *patterns = json_object_get(json_array_get(names, k), "patterns");
            size_t n = 0;
            while (n < 7 && pre->patterns[n] && n < json_array_size(patterns) &&
                   strcmp(pre->patterns[n], json_string_value(json_array_get(patterns, n))) == 0)
                n++;
            known = n == json_array_size(patterns) && (n == 7 || !pre->patterns[n]);
        }
        if (!known)
            fail_msg("%s: no vectors for its patterns", pre->name);
    }
    json_decref(root);
    assert_null(fm__pretokenizer_find(FM__STR("no-such-name")));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(byte_level), cmocka_unit_test(marked),
                                       cmocka_unit_test(unprefixed), cmocka_unit_test(unigram),
                                       cmocka_unit_test(story),      cmocka_unit_test(table_cuts),
                                       cmocka_unit_test(table_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
