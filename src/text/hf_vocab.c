/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/hf_vocab.c: a tokenizer from tokenizer.json and the files beside it.
 *
 * Owns: the parsed JSON while loading. Never does: guess at a model or stage that it does not know.
 * Called from: loading threads. The special ids come from tokenizer_config.json, then
 * generation_config.json, then config.json.
 */
#include <float.h>
#include <string.h>

#include <jansson.h>

#include "text/internal.h"

typedef struct loader {
    fm_tokenizer *t;
    const json_t *root, *model, *vocab, *added;
    const char *place;
    fm_error *error;
} loader;

static fm__str text_of(const json_t *string) {
    return (fm__str){json_string_value(string), json_string_length(string)};
}

static bool flag(const json_t *object, const char *key) {
    return json_is_true(json_object_get(object, key));
}

static fm_status malformed(loader *l, const char *what) {
    return fm__error(l->error, FM_ERROR_FORMAT, l->place, "%s", what);
}

/* text as JSON; *out NULL where there is no text. The companions' integers are read as doubles,
   since model_max_length is often one that no integer type holds. */
static fm_status parse(fm__str text, const char *name, const char *place, json_t **out,
                       fm_error *error) {
    size_t flags = JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES;
    json_error_t reason;
    *out = NULL;
    if (!text.data)
        return FM_OK;
    if (strcmp(name, "tokenizer.json") != 0)
        flags |= JSON_DECODE_INT_AS_REAL;
    *out = json_loadb(text.data, text.bytes, flags, &reason);
    if (*out && json_is_object(*out))
        return FM_OK;
    bool parsed = *out != NULL;
    json_decref(*out);
    *out = NULL;
    if (parsed)
        return fm__error(error, FM_ERROR_FORMAT, place, "%s is not a JSON object", name);
    return fm__error(error,
                     json_error_code(&reason) == json_error_out_of_memory ? FM_ERROR_MEMORY
                                                                          : FM_ERROR_FORMAT,
                     place, "%s: %s in line %d", name, reason.text, reason.line);
}

/* ---- tokens ---- */

/* Largest id + 1 of the model's vocabulary and the added tokens. Ids may have gaps, within reason.
 */
static fm_status count_tokens(loader *l, size_t *n_tokens) {
    uint64_t largest = 0, n = 0;
    const char *key;
    json_t *value;
    if (json_is_array(l->vocab)) {
        n = json_array_size(l->vocab);
        largest = n > 0 ? n - 1 : 0;
    } else {
        json_object_foreach((json_t *)l->vocab, key, value) {
            if (!json_is_integer(value) || json_integer_value(value) < 0)
                return malformed(l, "model.vocab: an id is not a number from 0 on");
            largest = largest > (uint64_t)json_integer_value(value)
                          ? largest
                          : (uint64_t)json_integer_value(value);
            n++;
        }
    }
    for (size_t i = 0; i < json_array_size(l->added); i++) {
        const json_t *id = json_object_get(json_array_get(l->added, i), "id");
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return malformed(l, "added_tokens: an id is not a number from 0 on");
        if ((uint64_t)json_integer_value(id) > largest)
            largest = (uint64_t)json_integer_value(id);
        n++;
    }
    if (n == 0 || largest >= n * 2 + 65536)
        return fm__error(l->error, FM_ERROR_FORMAT, l->place,
                         "model.vocab: %llu tokens, and the largest id is %llu",
                         (unsigned long long)n, (unsigned long long)largest);
    *n_tokens = (size_t)largest + 1;
    return FM_OK;
}

static fm_status set_bpe_tokens(loader *l) {
    fm_tokenizer *t = l->t;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)l->vocab, key, value) {
        size_t id = (size_t)json_integer_value(value);
        if (t->tokens[id].spelling.bytes > 0)
            return fm__error(l->error, FM_ERROR_FORMAT, l->place,
                             "model.vocab: id %zu is used twice", id);
        fm_status status =
            fm__vocab_set(t, id, fm__str_of(key), 0, FM__TOKEN_NORMAL, l->place, l->error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

static fm_status set_unigram_tokens(loader *l) {
    fm_tokenizer *t = l->t;
    double least = DBL_MAX;
    for (size_t i = 0; i < json_array_size(l->vocab); i++) {
        const json_t *pair = json_array_get(l->vocab, i);
        const json_t *piece = json_array_get(pair, 0), *score = json_array_get(pair, 1);
        if (!json_is_string(piece) || !json_is_number(score))
            return fm__error(l->error, FM_ERROR_FORMAT, l->place,
                             "model.vocab[%zu] is not [text, score]", i);
        fm_status status = fm__vocab_set(t, i, text_of(piece), json_number_value(score),
                                         FM__TOKEN_NORMAL, l->place, l->error);
        if (status != FM_OK)
            return status;
        if (t->tokens[i].score < least)
            least = t->tokens[i].score;
    }
    t->unknown_score = least - 10; /* what the original takes off for a character without a token */
    t->fuse_unknown = true;
    const json_t *unknown = json_object_get(l->model, "unk_id");
    if (json_is_integer(unknown)) {
        json_int_t id = json_integer_value(unknown);
        if (id < 0 || (uint64_t)id >= json_array_size(l->vocab))
            return malformed(l, "model.unk_id is outside the vocabulary");
        t->ids.unknown = (int32_t)id;
        t->tokens[id].type = FM__TOKEN_UNKNOWN;
    }
    return FM_OK;
}

static fm_status set_added_tokens(loader *l) {
    fm_tokenizer *t = l->t;
    size_t n = json_array_size(l->added);
    t->specials = fm__alloc_array(fm__max_size(n, 1), sizeof *t->specials);
    if (!t->specials)
        return fm__error_memory(l->error, l->place, n * sizeof *t->specials);
    for (size_t i = 0; i < n; i++) {
        const json_t *object = json_array_get(l->added, i);
        const json_t *content = json_object_get(object, "content");
        size_t id = (size_t)json_integer_value(json_object_get(object, "id"));
        bool special = flag(object, "special");
        if (!json_is_string(content))
            return fm__error(l->error, FM_ERROR_FORMAT, l->place,
                             "added_tokens[%zu] has no content", i);
        t->tokens[id].outside = t->tokens[id].spelling.bytes == 0;
        fm_status status =
            fm__vocab_set(t, id, text_of(content), t->tokens[id].score,
                          special ? FM__TOKEN_CONTROL : FM__TOKEN_USER, l->place, l->error);
        if (status != FM_OK)
            return status;
        if ((int32_t)id == t->ids.unknown)
            t->tokens[id].type = FM__TOKEN_UNKNOWN;
        if (json_string_length(content) == 0)
            continue;
        t->specials[t->n_specials++] = (fm__special){.text = t->tokens[id].spelling,
                                                     .id = (int32_t)id,
                                                     .left_strip = flag(object, "lstrip"),
                                                     .right_strip = flag(object, "rstrip"),
                                                     .single_word = flag(object, "single_word"),
                                                     .normalized = flag(object, "normalized"),
                                                     .control = special};
    }
    return FM_OK;
}

/* ---- BPE ---- */

static fm_status read_merge(loader *l, size_t index, const json_t *merge, fm__str *left,
                            fm__str *right) {
    if (json_is_array(merge) && json_array_size(merge) == 2 &&
        json_is_string(json_array_get(merge, 0)) && json_is_string(json_array_get(merge, 1))) {
        *left = text_of(json_array_get(merge, 0));
        *right = text_of(json_array_get(merge, 1));
        return FM_OK;
    }
    fm__str whole = json_is_string(merge) ? text_of(merge) : (fm__str){"", 0};
    const char *space = whole.bytes ? memchr(whole.data, ' ', whole.bytes) : NULL;
    if (!space || memchr(space + 1, ' ', whole.bytes - (size_t)(space + 1 - whole.data)))
        return fm__error(l->error, FM_ERROR_FORMAT, l->place, "model.merges[%zu] is not two texts",
                         index);
    *left = (fm__str){whole.data, (size_t)(space - whole.data)};
    *right = (fm__str){space + 1, whole.bytes - left->bytes - 1};
    return FM_OK;
}

static fm_status set_merges(loader *l) {
    const json_t *merges = json_object_get(l->model, "merges");
    size_t n = json_array_size(merges), strangers = 0;
    if (!json_is_array(merges))
        return malformed(l, "model.merges is missing");
    fm_status status = fm__vocab_reserve_merges(l->t, n, l->place, l->error);
    for (size_t i = 0; i < n && status == FM_OK; i++) {
        fm__str left, right;
        bool known = true;
        status = read_merge(l, i, json_array_get(merges, i), &left, &right);
        if (status == FM_OK)
            status =
                fm__vocab_add_merge(l->t, left, right, (uint32_t)i, &known, l->place, l->error);
        strangers += !known;
    }
    if (strangers > 0)
        fm__log(FM_LOG_WARNING,
                "%s: %zu of %zu merges name tokens that text cannot become; ignored", l->place,
                strangers, n);
    return status;
}

static fm_status refuse_option(loader *l, const char *key) {
    const json_t *value = json_object_get(l->model, key);
    bool off = !value || json_is_null(value) || json_is_false(value) ||
               (json_is_string(value) && json_string_length(value) == 0) ||
               (json_is_number(value) && json_number_value(value) == 0);
    return off ? FM_OK
               : fm__error(l->error, FM_ERROR_UNSUPPORTED, l->place, "model.%s is not supported",
                           key);
}

static fm_status read_bpe_options(loader *l) {
    fm_tokenizer *t = l->t;
    static const char *const refused[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        fm_status status = refuse_option(l, refused[i]);
        if (status != FM_OK)
            return status;
    }
    t->fuse_unknown = flag(l->model, "fuse_unk");
    t->ignore_merges = flag(l->model, "ignore_merges");
    const json_t *unknown = json_object_get(l->model, "unk_token");
    if (json_is_string(unknown)) {
        t->ids.unknown = fm__vocab_spelled(t, text_of(unknown));
        if (t->ids.unknown < 0)
            return malformed(l, "model.unk_token is not in the vocabulary");
        t->tokens[t->ids.unknown].type = FM__TOKEN_UNKNOWN;
    }
    return FM_OK;
}

/* ---- special ids ---- */

/* "bos_token": "<s>" or {"content": "<s>"} */
static int32_t named_token(const fm_tokenizer *t, const json_t *config, const char *key) {
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) ? fm__vocab_spelled(t, text_of(value)) : -1;
}

static int32_t valid_id(const fm_tokenizer *t, const json_t *value) {
    double id = json_is_number(value) ? json_number_value(value) : -1;
    return id >= 0 && id < (double)t->n_tokens && id == (double)(int32_t)id ? (int32_t)id : -1;
}

/* "eos_token_id": 2 or [2, 3]: all end an answer; the first is the one that is named. */
static bool read_ids(fm_tokenizer *t, const json_t *config, const char *key, int32_t *first,
                     fm__ids *all) {
    const json_t *value = json_object_get(config, key);
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        int32_t id = valid_id(t, json_is_array(value) ? json_array_get(value, i) : value);
        if (id >= 0 && *first < 0)
            *first = id;
        if (id >= 0 && all && !fm__ids_add(all, id))
            return false;
    }
    return true;
}

/* Some tokenizer classes rebuild the template from these two keys. */
static bool apply_add_keys(fm_tokenizer *t, const json_t *config) {
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    const json_t *add_eos = json_object_get(config, "add_eos_token");
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    bool rebuilds = class && (strncmp(class, "Llama", 5) == 0 || strncmp(class, "Gemma", 5) == 0 ||
                              strncmp(class, "CodeLlama", 9) == 0);
    if (json_is_true(add_bos) && t->before.count == 0 && t->ids.bos >= 0 &&
        !fm__ids_add(&t->before, t->ids.bos))
        return false;
    if (json_is_true(add_eos) && t->after.count == 0 && t->ids.eos >= 0 &&
        !fm__ids_add(&t->after, t->ids.eos))
        return false;
    if (rebuilds && json_is_false(add_bos))
        t->before.count = 0;
    if (rebuilds && json_is_false(add_eos))
        t->after.count = 0;
    return true;
}

static fm_status set_special_ids(loader *l, const json_t *const configs[3]) {
    fm_tokenizer *t = l->t;
    bool ok = true;
    for (size_t i = 0; i < 3 && ok; i++) {
        const json_t *config = configs[i];
        const json_t *inner = json_object_get(config, "text_config");
        if (t->ids.bos < 0)
            t->ids.bos = named_token(t, config, "bos_token");
        if (t->ids.eos < 0)
            t->ids.eos = named_token(t, config, "eos_token");
        if (t->ids.padding < 0)
            t->ids.padding = named_token(t, config, "pad_token");
        ok = read_ids(t, config, "bos_token_id", &t->ids.bos, NULL) &&
             read_ids(t, config, "eos_token_id", &t->ids.eos, &t->ends) &&
             read_ids(t, config, "pad_token_id", &t->ids.padding, NULL) &&
             read_ids(t, inner, "bos_token_id", &t->ids.bos, NULL) &&
             read_ids(t, inner, "eos_token_id", &t->ids.eos, &t->ends);
    }
    if (t->ids.bos < 0 && t->before.count == 1)
        t->ids.bos = t->before.data[0];
    if (t->ids.eos < 0 && t->after.count == 1)
        t->ids.eos = t->after.data[0];
    if (!ok || !apply_add_keys(t, configs[0]))
        return fm__error_memory(l->error, l->place, sizeof(int32_t));
    return FM_OK;
}

/* ---- the whole ---- */

static fm_status load_model(loader *l, bool unigram) {
    fm_tokenizer *t = l->t;
    fm_status status = unigram ? set_unigram_tokens(l) : set_bpe_tokens(l);
    t->model = unigram ? FM__TEXT_UNIGRAM : FM__TEXT_BPE;
    t->byte_fallback = flag(l->model, "byte_fallback");
    if (status == FM_OK)
        status = set_added_tokens(l);
    if (status == FM_OK && !unigram)
        status = read_bpe_options(l);
    if (status == FM_OK)
        status = fm__vocab_index(t, l->place, l->error);
    if (status == FM_OK && !unigram)
        status = set_merges(l);
    return status;
}

static fm_status load_stages(loader *l) {
    const json_t *root = l->root;
    fm_status status =
        fm__hf_normalizer(l->t, json_object_get(root, "normalizer"), l->place, l->error);
    if (status == FM_OK)
        status =
            fm__hf_pre_tokenizer(l->t, json_object_get(root, "pre_tokenizer"), l->place, l->error);
    if (status == FM_OK)
        status = fm__hf_decoder(l->t, json_object_get(root, "decoder"), l->place, l->error);
    if (status == FM_OK)
        status = fm__hf_post_processor(l->t, json_object_get(root, "post_processor"), l->place,
                                       l->error);
    return status;
}

static fm_status load(loader *l, const json_t *const configs[3]) {
    l->model = json_object_get(l->root, "model");
    l->vocab = json_object_get(l->model, "vocab");
    l->added = json_object_get(l->root, "added_tokens");
    const char *type = json_string_value(json_object_get(l->model, "type"));
    bool unigram = type ? strcmp(type, "Unigram") == 0 : json_is_array(l->vocab);
    size_t n_tokens = 0;
    if (!json_is_object(l->model))
        return malformed(l, "the JSON has no \"model\": it is not a tokenizer.json");
    if (type && !unigram && strcmp(type, "BPE") != 0)
        return fm__error(l->error, FM_ERROR_UNSUPPORTED, l->place,
                         "model type \"%.80s\" is not supported", type);
    if (unigram ? !json_is_array(l->vocab) : !json_is_object(l->vocab))
        return malformed(l, "model.vocab is missing");
    fm_status status = count_tokens(l, &n_tokens);
    if (status == FM_OK)
        status = fm__vocab_create(&l->t, n_tokens, l->place, l->error);
    if (status == FM_OK)
        status = load_stages(l);
    if (status == FM_OK)
        status = load_model(l, unigram);
    if (status == FM_OK)
        status = fm__specials_normalize(l->t, l->place, l->error);
    if (status == FM_OK)
        status = set_special_ids(l, configs);
    if (status == FM_OK)
        status = fm__vocab_finish(l->t, l->place, l->error);
    return status;
}

fm_status fm__tokenizer_from_hf(fm_tokenizer **out, const fm__hf_texts *texts, const char *place,
                                fm_error *error) {
    json_t *root = NULL, *configs[3] = {NULL, NULL, NULL};
    loader l = {.place = place ? place : "tokenizer.json", .error = error};
    *out = NULL;
    fm_status status = parse(texts->json, "tokenizer.json", l.place, &root, error);
    if (status == FM_OK)
        status =
            parse(texts->tokenizer_config, "tokenizer_config.json", l.place, &configs[0], error);
    if (status == FM_OK)
        status =
            parse(texts->generation_config, "generation_config.json", l.place, &configs[1], error);
    if (status == FM_OK)
        status = parse(texts->config, "config.json", l.place, &configs[2], error);
    if (status == FM_OK && !root)
        status = fm__error(error, FM_ERROR_ARGUMENT, l.place, "the text of tokenizer.json is NULL");
    l.root = root;
    if (status == FM_OK)
        status = load(&l, (const json_t *const *)configs);
    if (status == FM_OK)
        *out = l.t;
    else
        fm_tokenizer_destroy(&l.t);
    json_decref(root);
    for (size_t i = 0; i < 3; i++)
        json_decref(configs[i]);
    return status;
}
