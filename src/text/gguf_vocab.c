/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/gguf_vocab.c: a tokenizer from the tokenizer.* keys of a GGUF file.
 *
 * Owns: nothing. Never does: guess at an unknown model or pre-tokenizer; it is refused by name.
 * Called from: loading threads. tokenizer.fusionml.* keys (keys.c writes them) say what the common
 * keys have no word for; without them defaults are those of other readers.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "text/internal.h"

#define KEY(name) "tokenizer.ggml." name
#define OWN(name) "tokenizer.fusionml." name

typedef struct loader {
    fm_tokenizer *t;
    const fm__checkpoint *c;
    const fm__pretokenizer *pre;
    bool add_bos, add_eos, add_sep, add_space_prefix, merge_spaces;
    fm_error *error;
} loader;

static fm_status malformed(loader *l, const char *key, const char *what) {
    return fm__error(l->error, FM_ERROR_FORMAT, l->c->path, "%s %s", key, what);
}

/* The array under key; *out NULL where it is missing. */
static fm_status read_array(loader *l, const char *key, fm__kv_type element, const fm__kv **out) {
    *out = fm__checkpoint_kv(l->c, key);
    if (!*out || ((*out)->type == FM__KV_ARRAY && (*out)->element == element))
        return FM_OK;
    return malformed(l, key, "is not an array of the expected type");
}

/* ---- tokens ---- */

static fm_status read_numbers(loader *l, const char *key, uint64_t n, const fm__kv **out) {
    *out = fm__checkpoint_kv(l->c, key);
    if (!*out)
        return FM_OK;
    if ((*out)->type != FM__KV_ARRAY || (*out)->element == FM__KV_STRING ||
        (*out)->element == FM__KV_ARRAY)
        return malformed(l, key, "is not an array of numbers");
    return (*out)->count < n ? malformed(l, key, "is shorter than tokenizer.ggml.tokens") : FM_OK;
}

static fm__token_type type_of(double number) {
    return number >= FM__TOKEN_NORMAL && number <= FM__TOKEN_BYTE ? (fm__token_type)(int)number
                                                                  : FM__TOKEN_UNUSED;
}

static fm_status read_tokens(loader *l) {
    const fm__kv *tokens, *scores = NULL, *types = NULL;
    fm_status status = read_array(l, KEY("tokens"), FM__KV_STRING, &tokens);
    if (status == FM_OK && !tokens)
        status = malformed(l, KEY("tokens"), "is missing");
    if (status == FM_OK)
        status = read_numbers(l, KEY("scores"), tokens->count, &scores);
    if (status == FM_OK)
        status = read_numbers(l, KEY("token_type"), tokens->count, &types);
    if (status == FM_OK)
        status = fm__vocab_create(&l->t, (size_t)tokens->count, l->c->path, l->error);
    size_t cursor = 0;
    fm__str spelling;
    for (size_t i = 0; status == FM_OK && fm__kv_next_string(tokens, &cursor, &spelling); i++)
        status = fm__vocab_set(l->t, i, spelling, scores ? fm__kv_element(scores, i) : 0,
                               types ? type_of(fm__kv_element(types, i)) : FM__TOKEN_NORMAL,
                               l->c->path, l->error);
    return status;
}

/* Tokens with a written function are control tokens, even where a converter marked them as text. */
static void correct_types(loader *l) {
    static const char *const control[] = {
        "<|eot_id|>",    "<|im_end|>", "<|end|>",         "<end_of_turn>",
        "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
        "<EOT>",         "<|return|>", "<|call|>"};
    for (size_t i = 0; i < l->t->n_tokens; i++)
        for (size_t k = 0; k < sizeof control / sizeof *control; k++) {
            fm__token *token = &l->t->tokens[i];
            if (token->type != FM__TOKEN_CONTROL && token->spelling.bytes > 4 &&
                fm__str_is(token->spelling, control[k])) {
                fm__log(FM_LOG_WARNING, "%s: token %zu \"%s\" is not marked as a control token",
                        l->c->path, i, token->shown);
                token->type = FM__TOKEN_CONTROL;
            }
        }
}

static fm_status read_id(loader *l, const char *key, int32_t *id) {
    uint64_t value = UINT64_MAX;
    fm_status status = fm__kv_read_u64(l->c, key, false, &value, l->error);
    if (status != FM_OK || value == UINT64_MAX)
        return status;
    if (value >= l->t->n_tokens)
        fm__log(FM_LOG_WARNING, "%s: %s %llu is outside the vocabulary and ignored", l->c->path,
                key, (unsigned long long)value);
    else
        *id = (int32_t)value;
    return FM_OK;
}

static fm_status read_ids(loader *l) {
    fm__named_ids *ids = &l->t->ids;
    const struct {
        const char *key;
        int32_t *id;
    } keys[] = {{KEY("bos_token_id"), &ids->bos},
                {KEY("eos_token_id"), &ids->eos},
                {KEY("eot_token_id"), &ids->eot},
                {KEY("eom_token_id"), &ids->eom},
                {KEY("unknown_token_id"), &ids->unknown},
                {KEY("seperator_token_id"), &ids->separator}, /* so spelled in GGUF */
                {KEY("padding_token_id"), &ids->padding},
                {KEY("mask_token_id"), &ids->mask},
                {KEY("prefix_token_id"), &ids->fim_pre}, /* the older names */
                {KEY("suffix_token_id"), &ids->fim_suf},
                {KEY("middle_token_id"), &ids->fim_mid},
                {KEY("fim_pre_token_id"), &ids->fim_pre},
                {KEY("fim_suf_token_id"), &ids->fim_suf},
                {KEY("fim_mid_token_id"), &ids->fim_mid},
                {KEY("fim_pad_token_id"), &ids->fim_pad},
                {KEY("fim_rep_token_id"), &ids->fim_rep},
                {KEY("fim_sep_token_id"), &ids->fim_sep}};
    fm_status status = FM_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && status == FM_OK; i++)
        status = read_id(l, keys[i].key, keys[i].id);
    return status;
}

/* ---- added tokens ---- */

/* What tokenizer.json calls lstrip, rstrip, single_word and normalized, as bits 0 to 3; bit 4: a
   token that the model does not know; bit 5: never searched for; bit 6: searched for even where
   specials are not parsed. Pairs of id and bits. */
static fm_status read_added_flags(loader *l) {
    const fm__kv *flags;
    fm_status status = read_array(l, OWN("added_token_flags"), FM__KV_I32, &flags);
    for (uint64_t i = 0; status == FM_OK && flags && i + 1 < flags->count; i += 2)
        for (size_t k = 0; k < l->t->n_specials; k++) {
            fm__special *special = &l->t->specials[k];
            unsigned bits = (unsigned)(int32_t)fm__kv_element(flags, i + 1);
            if (special->id != (int32_t)fm__kv_element(flags, i))
                continue;
            special->left_strip = bits & 1;
            special->right_strip = bits >> 1 & 1;
            special->single_word = bits >> 2 & 1;
            special->normalized = bits >> 3 & 1;
            special->control = special->control && !(bits >> 6 & 1);
            if (bits >> 5 & 1)
                special->text.bytes = 0;
        }
    return status;
}

/* The one flag that the lookup depends on. */
static fm_status mark_outside(loader *l) {
    const fm__kv *flags;
    fm_status status = read_array(l, OWN("added_token_flags"), FM__KV_I32, &flags);
    for (uint64_t i = 0; status == FM_OK && flags && i + 1 < flags->count; i += 2) {
        double id = fm__kv_element(flags, i);
        if (id >= 0 && id < (double)l->t->n_tokens)
            l->t->tokens[(size_t)id].outside =
                (unsigned)(int32_t)fm__kv_element(flags, i + 1) >> 4 & 1;
    }
    return status;
}

/* GGUF has no word for it, and Phi-3's tokens swallow the white space behind them. */
static void strip_for_phi3(loader *l) {
    fm__str name = {"", 0};
    fm_error ignored;
    if (fm__kv_read_str(l->c, "general.name", false, &name, &ignored) != FM_OK)
        return;
    char lower[128];
    size_t bytes = fm__min_size(name.bytes, sizeof lower - 1);
    for (size_t i = 0; i < bytes; i++)
        lower[i] =
            (char)(name.data[i] >= 'A' && name.data[i] <= 'Z' ? name.data[i] + 32 : name.data[i]);
    lower[bytes] = 0;
    if (!strstr(lower, "phi-3") && !strstr(lower, "phi3"))
        return;
    for (size_t i = 0; i < l->t->n_specials; i++) {
        fm__special *special = &l->t->specials[i];
        special->right_strip = !fm__str_is(special->text, "<unk>") &&
                               !fm__str_is(special->text, "<s>") &&
                               !fm__str_is(special->text, "<|endoftext|>");
    }
}

static fm_status list_specials(loader *l) {
    fm_tokenizer *t = l->t;
    size_t n = 0;
    for (size_t i = 0; i < t->n_tokens; i++)
        n += t->tokens[i].type >= FM__TOKEN_UNKNOWN && t->tokens[i].type <= FM__TOKEN_USER;
    t->specials = fm__alloc_array(fm__max_size(n, 1), sizeof *t->specials);
    if (!t->specials)
        return fm__error_memory(l->error, l->c->path, n * sizeof *t->specials);
    for (size_t i = 0; i < t->n_tokens; i++) {
        const fm__token *token = &t->tokens[i];
        if (token->type >= FM__TOKEN_UNKNOWN && token->type <= FM__TOKEN_USER)
            t->specials[t->n_specials++] = (fm__special){.text = token->spelling,
                                                         .id = (int32_t)i,
                                                         .control = token->type != FM__TOKEN_USER};
    }
    strip_for_phi3(l);
    fm_status status = read_added_flags(l);
    return status == FM_OK ? fm__specials_normalize(t, l->c->path, l->error) : status;
}

/* ---- the stages ---- */

static fm_status add_unicode_forms(loader *l) {
    static const struct {
        const char *name;
        fm__normal_kind kind;
    } forms[] = {{"nfc", FM__NORMAL_NFC},     {"nfd", FM__NORMAL_NFD},
                 {"nfkc", FM__NORMAL_NFKC},   {"nfkd", FM__NORMAL_NFKD},
                 {"lower", FM__NORMAL_LOWER}, {"strip_accents", FM__NORMAL_STRIP_ACCENTS}};
    const fm__kv *names;
    fm_status status = read_array(l, OWN("normalizer"), FM__KV_STRING, &names);
    size_t cursor = 0;
    fm__str name;
    while (status == FM_OK && names && fm__kv_next_string(names, &cursor, &name)) {
        const fm__normal *added = NULL;
        bool known = false;
        for (size_t i = 0; i < sizeof forms / sizeof *forms && !known; i++)
            if (fm__str_is(name, forms[i].name)) {
                known = true;
                added = l->t->n_normals < 64 ? fm__add_normal(l->t, forms[i].kind) : NULL;
            }
        if (!known)
            status = malformed(l, OWN("normalizer"), "names an unknown form");
        else if (!added)
            status = fm__error_memory(l->error, l->c->path, sizeof *added);
    }
    return status;
}

static fm_status add_replace_spaces(loader *l) {
    fm__normal *normal = fm__add_normal(l->t, FM__NORMAL_REPLACE);
    if (!normal)
        return fm__error_memory(l->error, l->c->path, sizeof *normal);
    normal->what = FM__STR(" ");
    normal->with = FM__STR(FM__SPACE_MARK);
    return FM_OK;
}

/* tokenizer.fusionml.metaspace: "never", "first" or "always", and " split". */
static fm_status add_metaspace(loader *l, fm__str how) {
    fm__step *step = fm__add_step(l->t);
    if (!step)
        return fm__error_memory(l->error, l->c->path, sizeof *step);
    *step = (fm__step){.kind = FM__STEP_METASPACE, .pattern = FM__STR(FM__SPACE_MARK)};
    step->split = fm__str_ends(how, " split");
    how.bytes -= step->split ? strlen(" split") : 0;
    if (fm__str_is(how, "never"))
        step->prepend = FM__PREPEND_NEVER;
    else if (fm__str_is(how, "first"))
        step->prepend = FM__PREPEND_FIRST;
    else if (fm__str_is(how, "always"))
        step->prepend = FM__PREPEND_ALWAYS;
    else
        return malformed(l, OWN("metaspace"), "has an unknown value");
    return FM_OK;
}

/* SentencePiece's two models. */
static fm_status set_space_stages(loader *l) {
    fm_tokenizer *t = l->t;
    fm__str how = {"", 0};
    fm_status status = fm__kv_read_str(l->c, OWN("metaspace"), false, &how, l->error);
    if (status == FM_OK)
        status = add_unicode_forms(l);
    if (status != FM_OK)
        return status;
    t->marks_spaces = true;
    t->decode_drops_space = l->add_space_prefix;
    if (how.bytes > 0)
        return add_metaspace(l, how);
    fm__normal *normal = fm__add_normal(t, FM__NORMAL_SPACES);
    if (!normal)
        return fm__error_memory(l->error, l->c->path, sizeof *normal);
    normal->prefix = l->add_space_prefix;
    normal->merge = l->merge_spaces;
    return add_replace_spaces(l);
}

static fm_status set_bpe_stages(loader *l) {
    fm_tokenizer *t = l->t;
    fm_status status = add_unicode_forms(l);
    t->byte_level = !(l->pre->flags & FM__PRE_RAW);
    t->marks_spaces = !t->byte_level;
    t->byte_fallback = !t->byte_level;
    t->whole_newlines = !t->byte_level;
    t->ignore_merges = l->pre->flags & FM__PRE_IGNORE_MERGES;
    t->pre = l->pre->name;
    if (status == FM_OK && !t->byte_level)
        status = add_replace_spaces(l);
    for (size_t i = 0; status == FM_OK && l->pre->patterns[i]; i++) {
        fm__step *step = fm__add_step(t);
        status = step ? fm__step_init_regex(step, fm__str_of(l->pre->patterns[i]), FM__ISOLATED,
                                            false, l->c->path, l->error)
                      : fm__error_memory(l->error, l->c->path, sizeof *step);
    }
    return status;
}

static fm_status read_merges(loader *l) {
    const fm__kv *merges;
    fm_status status = read_array(l, KEY("merges"), FM__KV_STRING, &merges);
    if (status == FM_OK && !merges)
        status = malformed(l, KEY("merges"), "is missing");
    if (status == FM_OK)
        status = fm__vocab_reserve_merges(l->t, (size_t)merges->count, l->c->path, l->error);
    size_t cursor = 0, strangers = 0;
    uint32_t rank = 0;
    fm__str text;
    while (status == FM_OK && fm__kv_next_string(merges, &cursor, &text)) {
        bool known = false;
        const char *space = /* the left side has at least one byte, which may be a space */
            text.bytes > 1 ? memchr(text.data + 1, ' ', text.bytes - 1) : NULL;
        if (!space)
            return fm__error(l->error, FM_ERROR_FORMAT, l->c->path, "%s: entry %u is not two texts",
                             KEY("merges"), (unsigned)rank);
        size_t left = (size_t)(space - text.data);
        status = fm__vocab_add_merge(l->t, (fm__str){text.data, left},
                                     (fm__str){space + 1, text.bytes - left - 1}, rank++, &known,
                                     l->c->path, l->error);
        strangers += !known;
    }
    if (strangers > 0)
        fm__log(FM_LOG_WARNING,
                "%s: %zu of %llu merges name tokens that text cannot become; ignored", l->c->path,
                strangers, (unsigned long long)merges->count);
    return status;
}

/* ---- models and their defaults ---- */

static fm_status choose_pre(loader *l, bool raw_model) {
    fm__str name = raw_model ? FM__STR("gemma4") : (fm__str){"", 0};
    fm_status status =
        raw_model ? FM_OK : fm__kv_read_str(l->c, KEY("pre"), false, &name, l->error);
    if (status != FM_OK)
        return status;
    if (name.bytes == 0) {
        fm__log(FM_LOG_WARNING,
                "%s: tokenizer.ggml.pre is missing; cutting words as \"default\" does, which may "
                "not be how the model was trained",
                l->c->path);
        name = FM__STR("default");
    }
    l->pre = fm__pretokenizer_find(name);
    if (!l->pre)
        return fm__error(l->error, FM_ERROR_UNSUPPORTED, l->c->path,
                         "the pre-tokenizer \"%.*s\" (tokenizer.ggml.pre) is not known",
                         (int)fm__min_size(name.bytes, 80), name.data);
    l->add_bos = l->pre->flags & FM__PRE_ADD_BOS;
    l->add_sep = l->pre->flags & FM__PRE_ADD_SEP;
    return FM_OK;
}

static fm_status default_ids(loader *l, bool spm) {
    fm__named_ids *ids = &l->t->ids;
    int32_t n = (int32_t)l->t->n_tokens;
    bool explicit = false; /* only the ids that have a key */
    fm_status status = fm__kv_read_bool(l->c, OWN("explicit_ids"), false, &explicit, l->error);
    if (status != FM_OK || explicit)
        return status;
    if (spm) {
        ids->unknown = 0;
        ids->bos = n > 1 ? 1 : -1;
        ids->eos = n > 2 ? 2 : -1;
    } else {
        ids->padding = 0;
        ids->eos = n > 1 ? 1 : -1;
        ids->unknown = n > 2 ? 2 : -1;
    }
    return FM_OK;
}

static fm_status set_unknown_score(loader *l) {
    fm_tokenizer *t = l->t;
    float least = FLT_MAX;
    for (size_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i].type == FM__TOKEN_NORMAL && (float)t->tokens[i].score < least)
            least = (float)t->tokens[i].score;
    fm_status status = fm__kv_read_f32(l->c, OWN("least_score"), false, &least, l->error);
    t->unknown_score = (least == FLT_MAX ? 0 : (double)least) - 10;
    return status;
}

static fm_status load_sentencepiece(loader *l, bool spm) {
    fm_tokenizer *t = l->t;
    if (fm__checkpoint_kv(l->c, KEY("precompiled_charsmap")))
        return fm__error(l->error, FM_ERROR_UNSUPPORTED, l->c->path,
                         "tokenizer.ggml.precompiled_charsmap is not supported");
    t->model = spm ? FM__TEXT_SPM : FM__TEXT_UNIGRAM;
    t->byte_fallback = true;
    t->fuse_unknown = true;
    fm_status status = default_ids(l, spm);
    if (status == FM_OK)
        status = set_space_stages(l);
    if (status == FM_OK)
        status = fm__vocab_index(t, l->c->path, l->error);
    return status == FM_OK && !spm ? set_unknown_score(l) : status;
}

static fm_status load_bpe(loader *l) {
    fm_status status = set_bpe_stages(l);
    if (status == FM_OK)
        status = fm__vocab_index(l->t, l->c->path, l->error);
    if (status == FM_OK)
        status = read_merges(l);
    return status;
}

/* ---- what stands around a text ---- */

static fm_status read_id_list(loader *l, const char *key, fm__ids *list) {
    const fm__kv *kv;
    fm_status status = read_array(l, key, FM__KV_I32, &kv);
    if (status != FM_OK || !kv)
        return status;
    list->count = 0;
    for (uint64_t i = 0; i < kv->count; i++) {
        double id = fm__kv_element(kv, i);
        if (id < 0 || id >= (double)l->t->n_tokens)
            return malformed(l, key, "has an id outside the vocabulary");
        if (!fm__ids_add(list, (int32_t)id))
            return fm__error_memory(l->error, l->c->path, sizeof(int32_t));
    }
    return FM_OK;
}

static fm_status set_around(loader *l) {
    fm_tokenizer *t = l->t;
    fm_status status = fm__kv_read_bool(l->c, KEY("add_bos_token"), false, &l->add_bos, l->error);
    if (status == FM_OK)
        status = fm__kv_read_bool(l->c, KEY("add_eos_token"), false, &l->add_eos, l->error);
    if (status == FM_OK)
        status = fm__kv_read_bool(l->c, KEY("add_sep_token"), false, &l->add_sep, l->error);
    if (status != FM_OK)
        return status;
    if (l->pre && l->pre->flags & FM__PRE_FORCE_BOS)
        l->add_bos = true;
    if (l->add_bos && t->ids.bos < 0)
        fm__log(FM_LOG_WARNING, "%s: a BOS is asked for and the vocabulary has none", l->c->path);
    bool ok = true;
    if (l->add_bos && t->ids.bos >= 0)
        ok = fm__ids_add(&t->before, t->ids.bos);
    if (ok && l->add_eos && t->ids.eos >= 0)
        ok = fm__ids_add(&t->after, t->ids.eos);
    if (ok && l->add_sep && t->ids.separator >= 0)
        ok = fm__ids_add(&t->after, t->ids.separator);
    if (!ok)
        return fm__error_memory(l->error, l->c->path, sizeof(int32_t));
    status = read_id_list(l, OWN("before"), &t->before);
    if (status == FM_OK)
        status = read_id_list(l, OWN("after"), &t->after);
    if (status == FM_OK)
        status = read_id_list(l, OWN("end_token_ids"), &t->ends);
    if (status == FM_OK)
        status = fm__kv_read_bool(l->c, OWN("decode_drops_space"), false, &t->decode_drops_space,
                                  l->error);
    return status;
}

static fm_status read_own_options(loader *l) {
    fm_tokenizer *t = l->t;
    fm_status status =
        fm__kv_read_bool(l->c, OWN("fuse_unknown"), false, &t->fuse_unknown, l->error);
    if (status == FM_OK)
        status = fm__kv_read_bool(l->c, OWN("byte_fallback"), false, &t->byte_fallback, l->error);
    return status;
}

fm_status fm__tokenizer_from_gguf(fm_tokenizer **out, const fm__checkpoint *checkpoint,
                                  fm_error *error) {
    loader l = {.c = checkpoint, .error = error};
    fm__str model = {"", 0};
    *out = NULL;
    fm_status status = fm__kv_read_str(checkpoint, KEY("model"), false, &model, error);
    if (status != FM_OK || model.bytes == 0 || fm__str_is(model, "none") ||
        fm__str_is(model, "no_vocab"))
        return status;
    bool raw = fm__str_is(model, "gemma4"), bpe = raw || fm__str_is(model, "gpt2");
    bool spm = fm__str_is(model, "llama"), unigram = fm__str_is(model, "t5");
    if (!bpe && !spm && !unigram)
        return fm__error(error, FM_ERROR_UNSUPPORTED, checkpoint->path,
                         "the tokenizer model \"%.*s\" (tokenizer.ggml.model) is not supported",
                         (int)fm__min_size(model.bytes, 80), model.data);
    l.add_bos = spm;
    l.add_eos = unigram;
    l.add_space_prefix = spm || unigram;
    if (bpe)
        status = choose_pre(&l, raw);
    if (status == FM_OK)
        status = fm__kv_read_bool(checkpoint, KEY("add_space_prefix"), false, &l.add_space_prefix,
                                  error);
    if (status == FM_OK && unigram)
        status = fm__kv_read_bool(checkpoint, KEY("remove_extra_whitespaces"), false,
                                  &l.merge_spaces, error);
    if (status == FM_OK)
        status = read_tokens(&l);
    if (status == FM_OK) {
        l.t->from_gguf = true;
        correct_types(&l);
        status = mark_outside(&l);
    }
    if (status == FM_OK)
        status = bpe ? load_bpe(&l) : load_sentencepiece(&l, spm);
    if (status == FM_OK)
        status = read_ids(&l);
    if (status == FM_OK)
        status = list_specials(&l);
    if (status == FM_OK)
        status = set_around(&l);
    if (status == FM_OK)
        status = read_own_options(&l);
    if (status == FM_OK)
        status = fm__vocab_finish(l.t, checkpoint->path, error);
    if (status == FM_OK)
        *out = l.t;
    else
        fm_tokenizer_destroy(&l.t);
    return status;
}
