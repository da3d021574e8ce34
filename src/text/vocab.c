/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/vocab.c: tokens, their bytes, the lookup from text, and the merge table.
 *
 * Owns: a tokenizer's memory. Never does: cutting or encoding. Called from: loading threads; the
 * lookups from any thread. Control and unknown tokens are left out of the lookup, so that text
 * alone can never give one.
 */
#include <stdlib.h>
#include <string.h>

#include "text/internal.h"

#define ARENA_BLOCK ((size_t)1 << 18)
#define VOCAB_LIMIT ((size_t)1 << 24)

fm_status fm__vocab_create(fm_tokenizer **out, size_t n_tokens, const char *place,
                           fm_error *error) {
    if (n_tokens == 0 || n_tokens > VOCAB_LIMIT)
        return fm__error(error, FM_ERROR_FORMAT, place, "a vocabulary of %zu tokens", n_tokens);
    fm_tokenizer *t = fm__alloc_zero(sizeof *t);
    if (!t)
        return fm__error_memory(error, place, sizeof *t);
    fm__arena_init(&t->arena, ARENA_BLOCK);
    t->n_tokens = n_tokens;
    t->ids = (fm__named_ids){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    for (size_t i = 0; i < 256; i++)
        t->byte_ids[i] = -1;
    t->tokens = fm__alloc_array(n_tokens, sizeof *t->tokens);
    if (!t->tokens || !fm__map_init(&t->lookup, n_tokens)) {
        fm_tokenizer_destroy(&t);
        return fm__error_memory(error, place, n_tokens * sizeof *t->tokens);
    }
    for (size_t i = 0; i < n_tokens; i++)
        t->tokens[i] = (fm__token){FM__STR(""), "", FM__STR(""), 0, FM__TOKEN_UNUSED, false, false};
    *out = t;
    return FM_OK;
}

void fm_tokenizer_destroy(fm_tokenizer **tokenizer) {
    if (!tokenizer || !*tokenizer)
        return;
    fm_tokenizer *t = *tokenizer;
    for (size_t i = 0; i < 4; i++)
        fm__special_set_finish(&t->sets[i / 2][i % 2]);
    for (size_t i = 0; i < t->n_steps; i++)
        fm__step_finish(&t->steps[i]);
    for (size_t i = 0; i < t->n_normals; i++)
        fm__regex_destroy(&t->normals[i].regex);
    fm__free(t->steps);
    fm__free(t->normals);
    fm__free(t->specials);
    fm__free(t->sorted);
    fm__free(t->merge_slots);
    fm__free(t->merges);
    fm__ids_finish(&t->ends);
    fm__ids_finish(&t->before);
    fm__ids_finish(&t->after);
    fm__map_finish(&t->lookup);
    fm__free(t->tokens);
    fm__arena_finish(&t->arena);
    fm__free(t);
    *tokenizer = NULL;
}

/* The same text with U+FFFD for what is not UTF-8. */
static const char *as_valid(fm_tokenizer *t, fm__str s) {
    if (fm__valid_bytes(s.data, s.bytes) == s.bytes)
        return s.data;
    fm__buf out = {0};
    for (size_t at = 0; at < s.bytes;) {
        size_t valid = fm__valid_bytes(s.data + at, s.bytes - at);
        fm__buf_append(&out, s.data + at, valid);
        at += valid;
        if (at < s.bytes) {
            fm__buf_append(&out, "\xef\xbf\xbd", 3);
            at++;
        }
    }
    char *copy = out.failed ? NULL : fm__arena_copy(&t->arena, out.data, out.bytes);
    fm__buf_finish(&out);
    return copy;
}

fm_status fm__vocab_set(fm_tokenizer *t, size_t id, fm__str spelling, double score,
                        fm__token_type type, const char *place, fm_error *error) {
    fm__token *token = &t->tokens[id];
    char *copy = fm__arena_copy(&t->arena, spelling.data, spelling.bytes);
    if (!copy)
        return fm__error_memory(error, place, spelling.bytes);
    token->spelling = (fm__str){copy, spelling.bytes};
    token->bytes = token->spelling;
    token->score = score;
    token->type = (uint8_t)type;
    token->shown = as_valid(t, token->spelling);
    return token->shown ? FM_OK : fm__error_memory(error, place, spelling.bytes);
}

/* The spelling with U+2581 as spaces, in the arena. */
static fm_status unmark(fm_tokenizer *t, fm__token *token, const char *place, fm_error *error) {
    const char *s = token->spelling.data;
    size_t n = token->spelling.bytes, bytes = 0;
    char *copy = fm__arena_alloc(&t->arena, n + 1);
    if (!copy)
        return fm__error_memory(error, place, n);
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(s + i, FM__SPACE_MARK, 3) == 0) {
            copy[bytes++] = ' ';
            i += 3;
        } else {
            copy[bytes++] = s[i++];
        }
    }
    copy[bytes] = 0;
    token->bytes = (fm__str){copy, bytes};
    return FM_OK;
}

static bool is_text(const fm__token *token) {
    return token->type == FM__TOKEN_NORMAL || token->type == FM__TOKEN_USER ||
           token->type == FM__TOKEN_UNUSED;
}

/* Raw bytes of one token; *reachable: running text can become it, as *key. */
static fm_status index_token(fm_tokenizer *t, fm__token *token, fm__buf *scratch, bool *reachable,
                             fm__str *key, const char *place, fm_error *error) {
    int byte =
        t->byte_level && token->type != FM__TOKEN_BYTE ? -1 : fm__byte_spelling(token->spelling);
    *key = token->spelling;
    *reachable = is_text(token) && token->spelling.bytes > 0 && !token->outside;
    if (token->type == FM__TOKEN_BYTE || (byte >= 0 && token->type == FM__TOKEN_NORMAL)) {
        if (byte < 0)
            return fm__error(error, FM_ERROR_FORMAT, place,
                             "\"%s\" is marked as a byte and is not spelled like one",
                             token->shown);
        token->type = FM__TOKEN_BYTE;
        if (t->byte_ids[byte] < 0)
            t->byte_ids[byte] = (int32_t)(token - t->tokens);
        char *copy = fm__arena_copy(&t->arena, (char[]){(char)byte}, 1);
        if (!copy)
            return fm__error_memory(error, place, 1);
        token->bytes = (fm__str){copy, 1};
        *reachable = false;
    } else if (t->byte_level && token->type != FM__TOKEN_USER && is_text(token)) {
        scratch->bytes = 0;
        if (!fm__alphabet_decode(token->spelling, scratch)) {
            *reachable = false; /* its bytes are its spelling; text never looks like that */
            return scratch->failed ? fm__error_memory(error, place, token->spelling.bytes) : FM_OK;
        }
        char *copy = fm__arena_copy(&t->arena, scratch->data, scratch->bytes);
        if (!copy)
            return fm__error_memory(error, place, scratch->bytes);
        *key = token->bytes = (fm__str){copy, scratch->bytes};
        if (scratch->bytes == 1 && t->byte_ids[(uint8_t)copy[0]] < 0)
            t->byte_ids[(uint8_t)copy[0]] = (int32_t)(token - t->tokens);
    } else if (t->marks_spaces && is_text(token)) {
        return unmark(t, token, place, error);
    }
    return FM_OK;
}

fm_status fm__vocab_index(fm_tokenizer *t, const char *place, fm_error *error) {
    fm_status status = FM_OK;
    fm__buf scratch = {0};
    fm__buf_append(&scratch, "", 0);
    for (size_t i = 0; i < t->n_tokens && status == FM_OK; i++) {
        bool reachable;
        fm__str key;
        status = index_token(t, &t->tokens[i], &scratch, &reachable, &key, place, error);
        if (status != FM_OK || !reachable)
            continue;
        if (!fm__map_put(&t->lookup, key, (uint32_t)i, NULL))
            status = fm__error_memory(error, place, t->n_tokens);
        t->longest = fm__max_size(t->longest, key.bytes);
    }
    fm__buf_finish(&scratch);
    return status;
}

int32_t fm__vocab_find(const fm_tokenizer *t, fm__str key) {
    uint32_t id;
    return key.bytes <= t->longest && fm__map_get(&t->lookup, key, &id) ? (int32_t)id : -1;
}

int32_t fm__vocab_spelled(const fm_tokenizer *t, fm__str spelling) {
    for (size_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i].spelling.bytes > 0 && fm__str_equal(t->tokens[i].spelling, spelling))
            return (int32_t)i;
    return -1;
}

/* ---- merges ---- */

fm_status fm__vocab_reserve_merges(fm_tokenizer *t, size_t n, const char *place, fm_error *error) {
    size_t slots = 16;
    if (n >= INT32_MAX / 4)
        return fm__error(error, FM_ERROR_FORMAT, place, "%zu merges", n);
    while (slots < n * 2)
        slots *= 2;
    t->merges = fm__alloc_array(fm__max_size(n, 1), sizeof *t->merges);
    t->merge_slots = fm__alloc_array(slots, sizeof *t->merge_slots);
    t->n_merge_slots = slots;
    if (!t->merges || !t->merge_slots)
        return fm__error_memory(error, place, slots * sizeof *t->merge_slots);
    return FM_OK;
}

static size_t merge_slot(const fm_tokenizer *t, int32_t left, int32_t right) {
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    size_t mask = t->n_merge_slots - 1;
    for (size_t i = (size_t)(hash >> 20) & mask;; i = (i + 1) & mask) {
        if (t->merge_slots[i] == 0)
            return i;
        const fm__merge *merge = &t->merges[t->merge_slots[i] - 1];
        if (merge->left == left && merge->right == right)
            return i;
    }
}

const fm__merge *fm__vocab_merge(const fm_tokenizer *t, int32_t left, int32_t right) {
    if (left < 0 || right < 0 || t->n_merge_slots == 0)
        return NULL;
    uint32_t slot = t->merge_slots[merge_slot(t, left, right)];
    return slot ? &t->merges[slot - 1] : NULL;
}

/* The id of one side of a merge, or of both joined. */
static int32_t find_spelled(const fm_tokenizer *t, fm__str a, fm__str b, fm__buf *scratch) {
    scratch->bytes = 0;
    if (t->byte_level) {
        if (!fm__alphabet_decode(a, scratch) || !fm__alphabet_decode(b, scratch))
            return -1;
    } else {
        fm__buf_append(scratch, a.data, a.bytes);
        fm__buf_append(scratch, b.data, b.bytes);
    }
    return scratch->failed ? -1 : fm__vocab_find(t, (fm__str){scratch->data, scratch->bytes});
}

fm_status fm__vocab_add_merge(fm_tokenizer *t, fm__str left, fm__str right, uint32_t rank,
                              bool *known, const char *place, fm_error *error) {
    fm__buf scratch = {0};
    fm__buf_append(&scratch, "", 0);
    fm__merge merge = {.left = find_spelled(t, left, (fm__str){"", 0}, &scratch),
                       .right = find_spelled(t, right, (fm__str){"", 0}, &scratch),
                       .merged = find_spelled(t, left, right, &scratch),
                       .rank = rank};
    bool failed = scratch.failed;
    fm__buf_finish(&scratch);
    if (failed)
        return fm__error_memory(error, place, left.bytes + right.bytes);
    *known = merge.left >= 0 && merge.right >= 0 && merge.merged >= 0;
    if (!*known)
        return FM_OK;
    size_t slot = merge_slot(t, merge.left, merge.right);
    if (t->merge_slots[slot] != 0)
        return FM_OK; /* twice in the file: the first counts */
    t->merges[t->n_merges++] = merge;
    t->merge_slots[slot] = (uint32_t)t->n_merges;
    return FM_OK;
}

/* ---- what follows from the rest ---- */

/* Spellings by which vocabularies end an answer, whatever their files say of ids. */
static const char *const end_spellings[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|fim_repo|>",
    "<|file_sep|>",
    "<|eot|>",
    "<|eom|>",
};

static fm__token *control_spelled(fm_tokenizer *t, const char *spelling) {
    int32_t id = fm__vocab_spelled(t, fm__str_of(spelling));
    return id >= 0 && t->tokens[id].type == FM__TOKEN_CONTROL ? &t->tokens[id] : NULL;
}

static void mark_end(fm_tokenizer *t, int32_t id) {
    if (id >= 0 && (size_t)id < t->n_tokens)
        t->tokens[id].end = true;
}

static void mark_ends(fm_tokenizer *t) {
    for (size_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i].type == FM__TOKEN_CONTROL)
            for (size_t k = 0; k < sizeof end_spellings / sizeof *end_spellings; k++)
                if (fm__str_is(t->tokens[i].spelling, end_spellings[k]))
                    t->tokens[i].end = true;
    /* In vocabularies where <|return|> or <|flush|> ends an answer, <|end|> only ends a part of
       one; where <turn|> does, </s> is a leftover. */
    fm__token *part = control_spelled(t, "<|end|>"), *leftover = control_spelled(t, "</s>");
    bool call = control_spelled(t, "<|call|>") || control_spelled(t, "<|calls|>");
    if (part && call && (control_spelled(t, "<|return|>") || control_spelled(t, "<|flush|>")))
        part->end = false;
    if (leftover && control_spelled(t, "<|tool_response>"))
        leftover->end = false;
    mark_end(t, t->ids.eos);
    mark_end(t, t->ids.eot);
    mark_end(t, t->ids.eom);
    mark_end(t, t->ids.fim_pad);
    mark_end(t, t->ids.fim_rep);
    mark_end(t, t->ids.fim_sep);
    for (size_t i = 0; i < t->ends.count; i++)
        mark_end(t, t->ends.data[i]);
}

/* ---- keys by their bytes, for the search of prefixes ---- */

static int compare_entries(const void *a, const void *b) {
    const fm__entry *x = a, *y = b;
    int order = memcmp(x->text.data, y->text.data, fm__min_size(x->text.bytes, y->text.bytes));
    return order != 0 ? order : x->text.bytes < y->text.bytes ? -1 : x->text.bytes > y->text.bytes;
}

static bool sort_keys(fm_tokenizer *t) {
    t->sorted = fm__alloc_array(t->n_tokens, sizeof *t->sorted);
    if (!t->sorted)
        return false;
    for (size_t i = 0; i < t->n_tokens; i++) {
        fm__str key = t->tokens[i].spelling; /* unigram vocabularies are looked up as spelled */
        if (fm__vocab_find(t, key) == (int32_t)i)
            t->sorted[t->n_sorted++] = (fm__entry){key, (int32_t)i};
    }
    qsort(t->sorted, t->n_sorted, sizeof *t->sorted, compare_entries);
    size_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        t->sorted_first[byte] = (uint32_t)at;
        while (at < t->n_sorted && (unsigned char)t->sorted[at].text.data[0] == byte)
            at++;
    }
    t->sorted_first[256] = (uint32_t)at;
    return true;
}

fm_status fm__vocab_finish(fm_tokenizer *t, const char *place, fm_error *error) {
    for (size_t i = 0; i < 4; i++)
        if (!fm__special_set_init(&t->sets[i / 2][i % 2], t->specials, t->n_specials, i / 2, i % 2))
            return fm__error_memory(error, place, t->n_specials * sizeof(void *));
    if (t->model == FM__TEXT_UNIGRAM && !sort_keys(t))
        return fm__error_memory(error, place, t->n_tokens * sizeof *t->sorted);
    mark_ends(t);
    return FM_OK;
}
