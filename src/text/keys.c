/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/keys.c: a tokenizer as tokenizer.* keys of a GGUF file.
 *
 * Owns: nothing. Never does: writing keys that would read back as another tokenizer. Called from:
 * converting threads. The tokenizer.ggml.* keys are those that every reader knows;
 * tokenizer.fusionml.* keys carry what GGUF has no word for (Unicode forms, flags of added tokens,
 * templates beyond BOS and EOS), and are written only where there is something to say.
 */
#include <stdlib.h>
#include <string.h>

#include "text/internal.h"

#define KEY(name) "tokenizer.ggml." name
#define OWN(name) "tokenizer.fusionml." name

static fm_status refuse(const char *what, fm_error *error) {
    return fm__error(error, FM_ERROR_UNSUPPORTED, "tokenizer", "GGUF has no name for %s", what);
}

/* ---- which name stands for these steps ---- */

/* Both in PCRE2's spelling. false also where one is not understood. */
static bool same_pattern(fm__str a, const char *b) {
    fm__buf x = {0}, y = {0};
    fm_error ignored;
    bool same =
        fm__str_is(a, b) || (fm__regex_translate(a, &x, "", &ignored) == FM_OK &&
                             fm__regex_translate(fm__str_of(b), &y, "", &ignored) == FM_OK &&
                             fm__str_equal((fm__str){x.data, x.bytes}, (fm__str){y.data, y.bytes}));
    fm__buf_finish(&x);
    fm__buf_finish(&y);
    return same;
}

static bool same_steps(const fm_tokenizer *t, const fm__pretokenizer *pre) {
    size_t i = 0;
    for (; i < t->n_steps && pre->patterns[i]; i++) {
        const fm__step *step = &t->steps[i];
        bool cuts = step->kind != FM__STEP_LITERAL && step->kind != FM__STEP_PREFIX_SPACE &&
                    step->kind != FM__STEP_METASPACE;
        if (!cuts || step->behaviour != FM__ISOLATED || step->invert ||
            !same_pattern(step->pattern, pre->patterns[i]))
            return false;
    }
    return i == t->n_steps && !pre->patterns[i];
}

/* Whether taking a word that is a token as it is could change anything: whether some token is not
   what merging its own bytes gives. */
static fm_status merges_reach_all(const fm_tokenizer *t, bool *all, fm_error *error) {
    fm_tokenizer by_merging = *t;
    fm__work work = {0};
    fm__ids ids = {0};
    fm_status status = FM_OK;
    by_merging.ignore_merges = false;
    *all = true;
    for (size_t i = 0; i < t->n_tokens && *all && status == FM_OK; i++) {
        if (fm__vocab_find(t, t->tokens[i].bytes) != (int32_t)i)
            continue;
        ids.count = 0;
        status = fm__bpe_encode(&by_merging, &work, t->tokens[i].bytes, &ids, error);
        *all = ids.count == 1 && ids.data[0] == (int32_t)i;
    }
    if (status == FM_OK && ids.failed)
        status = fm__error_memory(error, "tokenizer", ids.count * sizeof *ids.data);
    fm__ids_finish(&ids);
    fm__work_finish(&work);
    return status;
}

static fm_status choose_pre(const fm_tokenizer *t, const char **name, fm_error *error) {
    int reaches = -1;
    *name = t->pre;
    for (size_t i = 0; i < fm__pretokenizer_count && !*name; i++) {
        const fm__pretokenizer *pre = &fm__pretokenizers[i];
        bool ignores = pre->flags & FM__PRE_IGNORE_MERGES, all;
        if (pre->flags & (FM__PRE_RAW | FM__PRE_FORCE_BOS) || !same_steps(t, pre))
            continue;
        if (ignores != t->ignore_merges && reaches < 0) {
            fm_status status = merges_reach_all(t, &all, error);
            if (status != FM_OK)
                return status;
            reaches = all;
        }
        if (ignores == t->ignore_merges || reaches == 1)
            *name = pre->name;
    }
    return *name ? FM_OK : refuse("this pre_tokenizer", error);
}

/* ---- tokens ---- */

static fm_status put_tokens(const fm_tokenizer *t, const float *scores, fm__checkpoint *out,
                            fm_error *error) {
    fm__str *spellings = fm__alloc_array(t->n_tokens, sizeof *spellings);
    int32_t *types = fm__alloc_array(t->n_tokens, sizeof *types);
    fm_status status = spellings && types
                           ? FM_OK
                           : fm__error_memory(error, "tokenizer", t->n_tokens * sizeof *spellings);
    for (size_t i = 0; i < t->n_tokens && status == FM_OK; i++) {
        spellings[i] = t->tokens[i].spelling;
        types[i] = t->tokens[i].type;
    }
    if (status == FM_OK)
        status = fm__checkpoint_add_strs(out, KEY("tokens"), spellings, t->n_tokens, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_i32s(out, KEY("token_type"), types, t->n_tokens, error);
    if (status == FM_OK && scores)
        status = fm__checkpoint_add_f32s(out, KEY("scores"), scores, t->n_tokens, error);
    fm__free(spellings);
    fm__free(types);
    return status;
}

/* A token inside a merge: byte-level ones in the alphabet, whatever their own spelling. */
static void put_side(const fm_tokenizer *t, int32_t id, fm__buf *out) {
    fm__str text = t->byte_level ? t->tokens[id].bytes : t->tokens[id].spelling;
    for (size_t i = 0; i < text.bytes; i++) {
        char c[4] = {text.data[i]};
        size_t bytes = t->byte_level ? fm__utf8_put(fm__byte_to_code((uint8_t)text.data[i]), c) : 1;
        fm__buf_append(out, c, bytes);
    }
}

static fm_status put_merges(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    fm__buf text = {0};
    fm__str *merges = fm__alloc_array(fm__max_size(t->n_merges, 1), sizeof *merges);
    if (!merges)
        return fm__error_memory(error, "tokenizer", t->n_merges * sizeof *merges);
    for (size_t i = 0; i < t->n_merges; i++) {
        size_t before = text.bytes;
        put_side(t, t->merges[i].left, &text);
        fm__buf_append(&text, " ", 1);
        put_side(t, t->merges[i].right, &text);
        merges[i].bytes = text.bytes - before;
    }
    size_t at = 0;
    for (size_t i = 0; i < t->n_merges && !text.failed; at += merges[i].bytes, i++)
        merges[i].data = text.data + at;
    fm_status status =
        text.failed ? fm__error_memory(error, "tokenizer", text.bytes)
                    : fm__checkpoint_add_strs(out, KEY("merges"), merges, t->n_merges, error);
    fm__free(merges);
    fm__buf_finish(&text);
    return status;
}

/* ---- ids and what stands around a text ---- */

static fm_status put_ids(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    const fm__named_ids *ids = &t->ids;
    const struct {
        const char *key;
        int32_t id;
    } keys[] = {
        {KEY("bos_token_id"), ids->bos},         {KEY("eos_token_id"), ids->eos},
        {KEY("eot_token_id"), ids->eot},         {KEY("eom_token_id"), ids->eom},
        {KEY("unknown_token_id"), ids->unknown}, {KEY("seperator_token_id"), ids->separator},
        {KEY("padding_token_id"), ids->padding}, {KEY("mask_token_id"), ids->mask},
        {KEY("fim_pre_token_id"), ids->fim_pre}, {KEY("fim_suf_token_id"), ids->fim_suf},
        {KEY("fim_mid_token_id"), ids->fim_mid}, {KEY("fim_pad_token_id"), ids->fim_pad},
        {KEY("fim_rep_token_id"), ids->fim_rep}, {KEY("fim_sep_token_id"), ids->fim_sep}};
    fm_status status = FM_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && status == FM_OK; i++)
        if (keys[i].id >= 0)
            status = fm__checkpoint_add_u32(out, keys[i].key, (uint32_t)keys[i].id, error);
    return status;
}

static bool is_only(const fm__ids *list, int32_t id) {
    return list->count == 1 && list->data[0] == id && id >= 0;
}

static fm_status put_around(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    bool bos = is_only(&t->before, t->ids.bos), eos = is_only(&t->after, t->ids.eos);
    fm_status status = fm__checkpoint_add_bool(out, KEY("add_bos_token"), bos, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_bool(out, KEY("add_eos_token"), eos, error);
    if (status == FM_OK && !bos && t->before.count > 0)
        status =
            fm__checkpoint_add_i32s(out, OWN("before"), t->before.data, t->before.count, error);
    if (status == FM_OK && !eos && t->after.count > 0)
        status = fm__checkpoint_add_i32s(out, OWN("after"), t->after.data, t->after.count, error);
    bool listed = false; /* an end that the named ids do not tell */
    for (size_t i = 0; i < t->ends.count; i++)
        listed = listed || t->ends.data[i] != t->ids.eos;
    if (status == FM_OK && listed)
        status =
            fm__checkpoint_add_i32s(out, OWN("end_token_ids"), t->ends.data, t->ends.count, error);
    return status;
}

/* What read_added_flags() of gguf_vocab.c reads. */
static fm_status put_added_flags(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    fm__ids flags = {0};
    bool *listed = fm__alloc_array(t->n_tokens, sizeof *listed);
    if (!listed)
        return fm__error_memory(error, "tokenizer", t->n_tokens);
    for (size_t i = 0; i < t->n_specials; i++) {
        const fm__special *special = &t->specials[i];
        const fm__token *token = &t->tokens[special->id];
        bool outside = token->outside && !special->control;
        bool text = !special->control && token->type != FM__TOKEN_USER;
        int32_t bits = special->left_strip | special->right_strip << 1 | special->single_word << 2 |
                       special->normalized << 3 | outside << 4 | text << 6;
        listed[special->id] = true;
        if (bits == 0)
            continue;
        fm__ids_add(&flags, special->id);
        fm__ids_add(&flags, bits);
    }
    for (size_t i = 0; i < t->n_tokens; i++)
        if (!listed[i] && t->tokens[i].type == FM__TOKEN_UNKNOWN) {
            fm__ids_add(&flags, (int32_t)i);
            fm__ids_add(&flags, 1 << 5);
        }
    fm__free(listed);
    fm_status status = FM_OK;
    if (flags.failed)
        status = fm__error_memory(error, "tokenizer", t->n_specials * sizeof *flags.data);
    else if (flags.count > 0)
        status =
            fm__checkpoint_add_i32s(out, OWN("added_token_flags"), flags.data, flags.count, error);
    fm__ids_finish(&flags);
    return status;
}

/* ---- normalisers ---- */

/* The Unicode forms at the front, named; *rest: how many normalisers they are. */
static fm_status put_forms(const fm_tokenizer *t, fm__checkpoint *out, size_t *rest,
                           fm_error *error) {
    static const char *const names[] = {"nfc", "nfd", "nfkc", "nfkd", "lower", "strip_accents"};
    fm__str list[64];
    size_t n = 0;
    while (n < t->n_normals && n < 64 && t->normals[n].kind <= FM__NORMAL_STRIP_ACCENTS) {
        list[n] = fm__str_of(names[t->normals[n].kind]);
        n++;
    }
    *rest = n;
    return n > 0 ? fm__checkpoint_add_strs(out, OWN("normalizer"), list, n, error) : FM_OK;
}

static bool is_replace(const fm__normal *normal) {
    return normal->kind == FM__NORMAL_REPLACE && fm__str_is(normal->what, " ") &&
           fm__str_is(normal->with, FM__SPACE_MARK);
}

/* The ways in which spaces become U+2581: SentencePiece's own two normalisers, Prepend and Replace,
   Replace alone, or the Metaspace step. */
static fm_status put_spaces(const fm_tokenizer *t, size_t at, bool unigram, fm__checkpoint *out,
                            fm_error *error) {
    static const char *const schemes[] = {"never", "first", "always"};
    const fm__normal *normals = t->n_normals > at ? t->normals + at : NULL;
    size_t n = t->n_normals - at, n_steps = t->n_steps;
    bool prefix = false, merge = false;
    char how[32] = "";
    if (n_steps == 1 && t->steps[0].kind == FM__STEP_LITERAL &&
        fm__str_is(t->steps[0].pattern, " ") && n > 0 && is_replace(&normals[n - 1]))
        n_steps = 0; /* it looks for spaces, and none is left */
    if (n == 0 && n_steps == 1 && t->steps[0].kind == FM__STEP_METASPACE) {
        snprintf(how, sizeof how, "%s%s", schemes[t->steps[0].prepend],
                 t->steps[0].split ? " split" : "");
        prefix = t->steps[0].prepend != FM__PREPEND_NEVER;
        n_steps = 0;
    } else if (n == 2 && normals[0].kind == FM__NORMAL_SPACES && is_replace(&normals[1])) {
        prefix = normals[0].prefix;
        merge = normals[0].merge;
    } else if (n == 2 && normals[0].kind == FM__NORMAL_PREPEND &&
               fm__str_is(normals[0].with, FM__SPACE_MARK) && is_replace(&normals[1])) {
        prefix = true;
    } else if (n != 1 || !is_replace(&normals[0])) {
        return refuse("these normalizers", error);
    }
    if (n_steps > 0)
        return refuse("this pre_tokenizer", error);
    fm_status status = fm__checkpoint_add_bool(out, KEY("add_space_prefix"), prefix, error);
    if (status == FM_OK && unigram)
        status = fm__checkpoint_add_bool(out, KEY("remove_extra_whitespaces"), merge, error);
    if (status == FM_OK && how[0])
        status = fm__checkpoint_add_str(out, OWN("metaspace"), fm__str_of(how), error);
    if (status == FM_OK && prefix != t->decode_drops_space)
        status =
            fm__checkpoint_add_bool(out, OWN("decode_drops_space"), t->decode_drops_space, error);
    if (status == FM_OK && !t->fuse_unknown)
        status = fm__checkpoint_add_bool(out, OWN("fuse_unknown"), false, error);
    if (status == FM_OK && !t->byte_fallback)
        status = fm__checkpoint_add_bool(out, OWN("byte_fallback"), false, error);
    return status;
}

/* ---- merges as scores ---- */

/* Whether a symbol of a merging by score can hold this text: a token, or one character even if it
   has no token. */
static bool can_be_symbol(fm__str text, int32_t id) {
    return id >= 0 || fm__utf8_next(text.data, text.bytes, NULL) == (int)text.bytes;
}

/* Merging by score joins any two neighbours whose text is a token; so every such pair must be a
   merge. */
static bool has_all_merges(const fm_tokenizer *t, int32_t id) {
    fm__str text = t->tokens[id].spelling;
    for (size_t at = 0; at < text.bytes;) {
        int length = fm__utf8_next(text.data + at, text.bytes - at, NULL);
        if (length <= 0)
            return false;
        at += (size_t)length;
        if (at == text.bytes)
            break;
        fm__str left = {text.data, at}, right = {text.data + at, text.bytes - at};
        int32_t left_id = fm__vocab_find(t, left), right_id = fm__vocab_find(t, right);
        if (can_be_symbol(left, left_id) && can_be_symbol(right, right_id) &&
            !fm__vocab_merge(t, left_id, right_id))
            return false;
    }
    return true;
}

/* Scores under which merging by score does what the merges do: minus the rank of a token's first
   merge. The merges of one token must stand together, as they do where they came from scores. */
static fm_status scores_from_merges(const fm_tokenizer *t, float *scores, fm_error *error) {
    bool *done = fm__alloc_array(t->n_tokens, sizeof *done);
    bool same = done != NULL;
    for (size_t i = 0; i < t->n_merges && same; i++) {
        int32_t id = t->merges[i].merged;
        if (i > 0 && t->merges[i - 1].merged == id)
            continue;
        same = !done[id];
        done[id] = true;
        scores[id] = -(float)(i + 1);
    }
    for (size_t i = 0; i < t->n_tokens && same; i++)
        if (fm__vocab_find(t, t->tokens[i].spelling) == (int32_t)i)
            same = has_all_merges(t, (int32_t)i);
    fm_status status = !done ? fm__error_memory(error, "tokenizer", t->n_tokens) : FM_OK;
    fm__free(done);
    return status == FM_OK && !same ? refuse("merges that no scores give", error) : status;
}

/* ---- the whole ---- */

static fm_status put_byte_level(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    const char *name;
    size_t rest;
    fm_status status = choose_pre(t, &name, error);
    if (status == FM_OK)
        status = put_forms(t, out, &rest, error);
    if (status == FM_OK && rest != t->n_normals)
        status = refuse("these normalizers", error);
    if (status == FM_OK)
        status = fm__checkpoint_add_str(out, KEY("model"), FM__STR("gpt2"), error);
    if (status == FM_OK)
        status = fm__checkpoint_add_str(out, KEY("pre"), fm__str_of(name), error);
    if (status == FM_OK)
        status = put_tokens(t, NULL, out, error);
    return status == FM_OK ? put_merges(t, out, error) : status;
}

/* Readers take the least score of normal tokens for that of a character without one; the original
   takes the least of all. */
static fm_status put_least_score(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    double least = t->tokens[0].score;
    for (size_t i = 1; i < t->n_tokens; i++)
        least = t->tokens[i].score < least ? t->tokens[i].score : least;
    if (least - 10 != t->unknown_score)
        return t->from_gguf ? FM_OK : refuse("this score of unknown characters", error);
    return fm__checkpoint_add_f32(out, OWN("least_score"), (float)least, error);
}

/* Vocabularies of text with U+2581, merged by rank, by score, or unigram. */
static fm_status put_marked(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    bool unigram = t->model == FM__TEXT_UNIGRAM;
    size_t rest;
    if (!t->marks_spaces || t->ignore_merges)
        return refuse("this decoder", error);
    float *scores = fm__alloc_array(t->n_tokens, sizeof *scores);
    fm_status status =
        scores ? FM_OK : fm__error_memory(error, "tokenizer", t->n_tokens * sizeof *scores);
    for (size_t i = 0; i < t->n_tokens && status == FM_OK; i++) {
        scores[i] = (float)t->tokens[i].score;
        if (unigram && (double)scores[i] != t->tokens[i].score)
            status = refuse("scores in double precision", error);
    }
    if (status == FM_OK && t->model == FM__TEXT_BPE)
        status = scores_from_merges(t, scores, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_str(out, KEY("model"),
                                        unigram ? FM__STR("t5") : FM__STR("llama"), error);
    if (status == FM_OK)
        status = put_tokens(t, scores, out, error);
    if (status == FM_OK && unigram)
        status = put_least_score(t, out, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_bool(out, OWN("explicit_ids"), true, error);
    if (status == FM_OK)
        status = put_forms(t, out, &rest, error);
    if (status == FM_OK)
        status = put_spaces(t, rest, unigram, out, error);
    fm__free(scores);
    return status;
}

/* What came from GGUF as raw text with merges goes back as it was. */
static fm_status put_raw_bpe(const fm_tokenizer *t, fm__checkpoint *out, fm_error *error) {
    fm_status status = fm__checkpoint_add_str(
        out, KEY("model"), strcmp(t->pre, "gemma4") == 0 ? FM__STR("gemma4") : FM__STR("gpt2"),
        error);
    if (status == FM_OK)
        status = fm__checkpoint_add_str(out, KEY("pre"), fm__str_of(t->pre), error);
    if (status == FM_OK)
        status = put_tokens(t, NULL, out, error);
    return status == FM_OK ? put_merges(t, out, error) : status;
}

fm_status fm__tokenizer_to_keys(const fm_tokenizer *tokenizer, fm__checkpoint *out,
                                fm_error *error) {
    const fm_tokenizer *t = tokenizer;
    fm_status status;
    if (t->model == FM__TEXT_BPE && t->byte_level)
        status = put_byte_level(t, out, error);
    else if (t->model == FM__TEXT_BPE && t->pre)
        status = put_raw_bpe(t, out, error);
    else
        status = put_marked(t, out, error);
    if (status == FM_OK)
        status = put_ids(t, out, error);
    if (status == FM_OK)
        status = put_around(t, out, error);
    if (status == FM_OK)
        status = put_added_flags(t, out, error);
    return status;
}
