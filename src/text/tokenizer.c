/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/tokenizer.c: the public calls: load, encode, decode, questions about tokens.
 *
 * Owns: the scratch of each call. Never does: changing a tokenizer. Called from: any thread.
 */
#include <string.h>

#include "text/internal.h"

/* Positions inside a text are kept in 32 bits. */
#define TEXT_LIMIT ((size_t)1 << 30)
#define JSON_LIMIT ((size_t)256 << 20)

/* ---- encoding ---- */

typedef struct encoder {
    const fm_tokenizer *t;
    bool parse_special;
    fm__matcher *matcher;
    fm__work work;
    fm__buf text, part; /* a fragment, and what is left of it between added tokens */
    fm__pieces pieces;
    fm__ids ids;
    fm_error *error;
} encoder;

/* Text without added tokens, normalised: words, then ids. */
static fm_status encode_plain(encoder *e, bool first) {
    const fm_tokenizer *t = e->t;
    fm_status status =
        fm__pretokenize(t->steps, t->n_steps, e->matcher, &e->part, first, &e->pieces, e->error);
    for (size_t i = 0; i < e->pieces.count && status == FM_OK; i++) {
        fm__piece piece = e->pieces.data[i];
        status = fm__encode_word(t, &e->work, (fm__str){e->part.data + piece.at, piece.bytes},
                                 &e->ids, e->error);
    }
    return status;
}

/* Text between two added tokens: normalised, then cut at those that are searched for behind the
   normaliser. */
static fm_status encode_fragment(encoder *e, const char *text, size_t bytes, bool first) {
    const fm_tokenizer *t = e->t;
    const fm__special_set *set = &t->sets[1][e->parse_special];
    fm__buf_clear(&e->text);
    fm__buf_append(&e->text, text, bytes);
    if (e->text.failed)
        return fm__error_memory(e->error, NULL, bytes);
    fm_status status = fm__normalize(t->normals, t->n_normals, e->matcher, &e->text, e->error);
    fm__special_cursor cursor = {0};
    const fm__special *special = NULL;
    do {
        size_t from = cursor.done, start = e->text.bytes;
        if (status == FM_OK)
            special = fm__special_find(set, e->text.data, e->text.bytes, &cursor, &start);
        if (status == FM_OK && start > from) {
            fm__buf_clear(&e->part);
            fm__buf_append(&e->part, e->text.data + from, start - from);
            status = e->part.failed ? fm__error_memory(e->error, NULL, start - from)
                                    : encode_plain(e, first && from == 0);
        }
        if (status == FM_OK && special)
            fm__ids_add(&e->ids, special->id);
    } while (special && status == FM_OK);
    return status;
}

static fm_status encode_text(encoder *e, const char *text, size_t bytes) {
    const fm__special_set *set = &e->t->sets[0][e->parse_special];
    fm_status status = FM_OK;
    fm__special_cursor cursor = {0};
    const fm__special *special;
    do {
        size_t from = cursor.done, start = bytes;
        special = fm__special_find(set, text, bytes, &cursor, &start);
        if (start > from)
            status = encode_fragment(e, text + from, start - from, from == 0);
        if (status == FM_OK && special)
            fm__ids_add(&e->ids, special->id);
    } while (special && status == FM_OK);
    return status;
}

/* How many of `before`'s last ids the text already starts with: those are not added again. */
static size_t already_there(const fm__ids *before, const fm__ids *ids) {
    for (size_t n = fm__min_size(before->count, ids->count); n > 0; n--)
        if (memcmp(before->data + before->count - n, ids->data, n * sizeof *ids->data) == 0)
            return n;
    return 0;
}

/* The ids in memory of their own, with what ADD_SPECIAL puts around them. */
static fm_status hand_over(encoder *e, unsigned flags, int32_t **ids, size_t *count) {
    const fm__ids *before = &e->t->before, *after = &e->t->after;
    bool add_special = (flags & FM_TOKENIZE_ADD_SPECIAL) != 0;
    size_t n_before = add_special ? before->count : 0;
    if (add_special && (flags & FM_TOKENIZE_ONE_BOS))
        n_before -= already_there(before, &e->ids);
    size_t n_after = add_special ? after->count : 0;
    size_t n = n_before + e->ids.count + n_after;
    *ids = NULL;
    *count = 0;
    if (e->ids.failed)
        return fm__error_memory(e->error, NULL, e->ids.count * sizeof **ids);
    if (n == 0)
        return FM_OK;
    int32_t *all = fm__alloc_array(n, sizeof *all);
    if (!all)
        return fm__error_memory(e->error, NULL, n * sizeof *all);
    if (n_before)
        memcpy(all, before->data, n_before * sizeof *all);
    if (e->ids.count)
        memcpy(all + n_before, e->ids.data, e->ids.count * sizeof *all);
    if (n_after)
        memcpy(all + n_before + e->ids.count, after->data, n_after * sizeof *all);
    *ids = all;
    *count = n;
    return FM_OK;
}

fm_status fm_tokenizer_encode(const fm_tokenizer *tokenizer, const char *text, size_t bytes,
                              unsigned flags, int32_t **ids, size_t *count, fm_error *error) {
    if (!tokenizer || !ids || !count || (!text && bytes > 0))
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_encode",
                         "tokenizer, ids, count and text must not be NULL");
    if (flags & ~(unsigned)FM_TOKENIZE_PROMPT)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_encode", "unknown flags 0x%x",
                         flags);
    if (bytes > TEXT_LIMIT)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_encode",
                         "a text of %zu bytes; at most %zu are encoded at once", bytes, TEXT_LIMIT);
    encoder e = {
        .t = tokenizer, .parse_special = (flags & FM_TOKENIZE_PARSE_SPECIAL) != 0, .error = error};
    fm_status status = fm__matcher_create(&e.matcher, error);
    if (status == FM_OK)
        status = encode_text(&e, text, bytes);
    if (status == FM_OK)
        status = hand_over(&e, flags, ids, count);
    fm__matcher_destroy(&e.matcher);
    fm__work_finish(&e.work);
    fm__buf_finish(&e.text);
    fm__buf_finish(&e.part);
    fm__pieces_finish(&e.pieces);
    fm__ids_finish(&e.ids);
    return status;
}

/* ---- decoding ---- */

fm_status fm_tokenizer_decode(const fm_tokenizer *tokenizer, const int32_t *ids, size_t count,
                              int keep_special, char **text, size_t *bytes, fm_error *error) {
    if (!tokenizer || !text || !bytes || (!ids && count > 0))
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_decode",
                         "tokenizer, ids, text and bytes must not be NULL");
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= tokenizer->n_tokens)
            return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_decode",
                             "id %d at index %zu is outside the vocabulary of %zu", ids[i], i,
                             tokenizer->n_tokens);
        if ((keep_special || !fm__tokenizer_is_control(tokenizer, ids[i])) &&
            !fm__add_size(total, tokenizer->tokens[ids[i]].bytes.bytes, &total))
            return fm__error_memory(error, "fm_tokenizer_decode", SIZE_MAX);
    }
    char *out = fm__alloc(total + 1);
    if (!out)
        return fm__error_memory(error, "fm_tokenizer_decode", total + 1);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        fm__str piece = tokenizer->tokens[ids[i]].bytes;
        if (!keep_special && fm__tokenizer_is_control(tokenizer, ids[i]))
            continue;
        if (piece.bytes)
            memcpy(out + at, piece.data, piece.bytes);
        at += piece.bytes;
    }
    if (tokenizer->decode_drops_space && at > 0 && out[0] == ' ')
        memmove(out, out + 1, --at);
    out[at] = 0;
    *text = out;
    *bytes = at;
    return FM_OK;
}

/* ---- questions ---- */

size_t fm_tokenizer_vocab_size(const fm_tokenizer *tokenizer) {
    return tokenizer->n_tokens;
}

int32_t fm_tokenizer_bos(const fm_tokenizer *tokenizer) {
    return tokenizer->ids.bos;
}

int32_t fm_tokenizer_eos(const fm_tokenizer *tokenizer) {
    return tokenizer->ids.eos;
}

static bool is_inside(const fm_tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n_tokens;
}

int fm_tokenizer_is_end(const fm_tokenizer *tokenizer, int32_t id) {
    return is_inside(tokenizer, id) && tokenizer->tokens[id].end;
}

const char *fm_tokenizer_token(const fm_tokenizer *tokenizer, int32_t id) {
    return is_inside(tokenizer, id) ? tokenizer->tokens[id].shown : NULL;
}

fm__str fm__tokenizer_bytes(const fm_tokenizer *tokenizer, int32_t id) {
    return is_inside(tokenizer, id) ? tokenizer->tokens[id].bytes : (fm__str){"", 0};
}

bool fm__tokenizer_is_control(const fm_tokenizer *tokenizer, int32_t id) {
    return is_inside(tokenizer, id) && (tokenizer->tokens[id].type == FM__TOKEN_CONTROL ||
                                        tokenizer->tokens[id].type == FM__TOKEN_UNKNOWN);
}

/* ---- loading ---- */

fm_status fm__tokenizer_from_checkpoint(fm_tokenizer **out, const fm__checkpoint *checkpoint,
                                        fm_error *error) {
    *out = NULL;
    if (checkpoint->kind == FM__CHECKPOINT_GGUF)
        return fm__tokenizer_from_gguf(out, checkpoint, error);
    if (!checkpoint->tokenizer)
        return FM_OK;
    fm__hf_texts texts = {
        .json = {checkpoint->tokenizer, checkpoint->tokenizer_bytes},
        .tokenizer_config = {checkpoint->tokenizer_config, checkpoint->tokenizer_config_bytes},
        .generation_config = {checkpoint->generation_config, checkpoint->generation_config_bytes},
        .config = {checkpoint->config, checkpoint->config_bytes}};
    return fm__tokenizer_from_hf(out, &texts, checkpoint->path, error);
}

fm_status fm__tokenizer_from_json(fm_tokenizer **out, const char *json, size_t bytes,
                                  const char *config, size_t config_bytes, const char *generation,
                                  size_t generation_bytes, const char *place, fm_error *error) {
    fm__hf_texts texts = {.json = {json, bytes},
                          .tokenizer_config = {config, config_bytes},
                          .generation_config = {generation, generation_bytes}};
    *out = NULL;
    return fm__tokenizer_from_hf(out, &texts, place, error);
}

/* A companion of tokenizer.json, which may be missing. */
static fm_status read_companion(const char *folder, const char *name, fm__str *out,
                                fm_error *error) {
    char path[1024], *data = NULL;
    if (!fm__path_join(folder, name, path, sizeof path) || !fm__path_exists(path))
        return FM_OK;
    fm_status status = fm__file_read(path, JSON_LIMIT, &data, &out->bytes, error);
    out->data = data;
    return status;
}

static fm_status load_json(fm_tokenizer **out, const char *folder, const char *path,
                           fm_error *error) {
    fm__hf_texts texts = {0};
    char *json = NULL;
    fm_status status = fm__file_read(path, JSON_LIMIT, &json, &texts.json.bytes, error);
    texts.json.data = json;
    if (status == FM_OK)
        status = read_companion(folder, "tokenizer_config.json", &texts.tokenizer_config, error);
    if (status == FM_OK)
        status = read_companion(folder, "generation_config.json", &texts.generation_config, error);
    if (status == FM_OK)
        status = read_companion(folder, "config.json", &texts.config, error);
    if (status == FM_OK)
        status = fm__tokenizer_from_hf(out, &texts, path, error);
    fm__free(json);
    fm__free((char *)texts.tokenizer_config.data);
    fm__free((char *)texts.generation_config.data);
    fm__free((char *)texts.config.data);
    return status;
}

static fm_status load_folder(fm_tokenizer **out, const char *folder, fm_error *error) {
    char path[1024];
    if (!fm__path_join(folder, "tokenizer.json", path, sizeof path))
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_load", "the path is too long");
    if (fm__path_exists(path))
        return load_json(out, folder, path, error);
    if (fm__path_join(folder, "tokenizer.model", path, sizeof path) && fm__path_exists(path))
        return fm__error(error, FM_ERROR_UNSUPPORTED, path,
                         "only tokenizer.json is read, and the folder has none");
    return fm__error(error, FM_ERROR_IO, folder, "the folder has no tokenizer.json");
}

/* The first byte that is not white space; -1: none, or the file cannot be read. */
static int first_byte(const char *path) {
    FILE *file = fm__path_is_regular(path) ? fopen(path, "rb") : NULL; /* a pipe would wait */
    int c = -1;
    if (!file)
        return -1;
    do
        c = fgetc(file);
    while (c == ' ' || c == '\n' || c == '\r' || c == '\t');
    fclose(file);
    return c;
}

fm_status fm_tokenizer_load(fm_tokenizer **out, const char *path, fm_error *error) {
    if (!out || !path)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_load",
                         "out and path must not be NULL");
    *out = NULL;
    if (fm__path_is_directory(path))
        return load_folder(out, path, error);
    if (first_byte(path) == '{') {
        char folder[1024];
        const char *slash = strrchr(path, '/');
        size_t bytes = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
        if (bytes >= sizeof folder)
            return fm__error(error, FM_ERROR_ARGUMENT, "fm_tokenizer_load", "the path is too long");
        memcpy(folder, slash ? path : ".", slash ? bytes : 1);
        folder[slash ? bytes : 1] = 0;
        return load_json(out, folder, path, error);
    }
    fm__checkpoint *checkpoint = NULL;
    fm_status status = fm__checkpoint_open(&checkpoint, path, error);
    if (status == FM_OK)
        status = fm__tokenizer_from_checkpoint(out, checkpoint, error);
    if (status == FM_OK && !*out)
        status = fm__error(error, FM_ERROR_UNSUPPORTED, path, "the file has no vocabulary");
    fm__checkpoint_close(&checkpoint);
    return status;
}
