/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/hf_pipeline.c: the stages of a tokenizer.json around its model.
 *
 * Owns: nothing (all goes into the tokenizer). Never does: skipping a stage that it does not know;
 * it is refused by name. Called from: loading threads.
 */
#include <string.h>

#include <jansson.h>

#include "text/internal.h"

#define STAGE_LIMIT 64 /* of one kind */
#define DEPTH_LIMIT 8  /* Sequence in Sequence */

/* ---- reading JSON ---- */

static fm__str text_of(const json_t *string) {
    return (fm__str){json_string_value(string), json_string_length(string)};
}

static const char *type_of(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static bool flag(const json_t *object, const char *key, bool otherwise) {
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static fm_status refuse(const char *place, const char *stage, const char *what, fm_error *error) {
    return fm__error(error, FM_ERROR_UNSUPPORTED, place, "%s: \"%.80s\" is not supported", stage,
                     what);
}

static fm_status malformed(const char *place, const char *stage, fm_error *error) {
    return fm__error(error, FM_ERROR_FORMAT, place, "%s is not what its type asks for", stage);
}

static fm_status keep(fm_tokenizer *t, fm__str text, fm__str *out, const char *place,
                      fm_error *error) {
    const char *copy = fm__arena_copy(&t->arena, text.data, text.bytes);
    if (!copy)
        return fm__error_memory(error, place, text.bytes);
    *out = (fm__str){copy, text.bytes};
    return FM_OK;
}

/* {"String": s} or {"Regex": s}. */
static fm_status read_pattern(fm_tokenizer *t, const json_t *pattern, fm__str *out, bool *is_regex,
                              const char *place, fm_error *error) {
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *regex = json_object_get(pattern, "Regex");
    *is_regex = json_is_string(regex);
    if (!json_is_string(literal) && !*is_regex)
        return malformed(place, "pattern", error);
    return keep(t, text_of(*is_regex ? regex : literal), out, place, error);
}

/* ---- growing the pipeline ---- */

fm__step *fm__add_step(fm_tokenizer *t) {
    fm__step *steps = fm__realloc(t->steps, (t->n_steps + 1) * sizeof *steps);
    if (!steps)
        return NULL;
    t->steps = steps;
    steps[t->n_steps] = (fm__step){0};
    return &steps[t->n_steps++];
}

fm__normal *fm__add_normal(fm_tokenizer *t, fm__normal_kind kind) {
    fm__normal *normals = fm__realloc(t->normals, (t->n_normals + 1) * sizeof *normals);
    if (!normals)
        return NULL;
    t->normals = normals;
    normals[t->n_normals] = (fm__normal){.kind = kind};
    return &normals[t->n_normals++];
}

/* ---- normalizer ---- */

static fm_status add_simple_normal(fm_tokenizer *t, fm__normal_kind kind, const char *place,
                                   fm_error *error) {
    return fm__add_normal(t, kind) ? FM_OK : fm__error_memory(error, place, sizeof(fm__normal));
}

static fm_status add_replace(fm_tokenizer *t, const json_t *object, const char *place,
                             fm_error *error) {
    const json_t *content = json_object_get(object, "content");
    fm__normal *normal = fm__add_normal(t, FM__NORMAL_REPLACE);
    bool is_regex;
    if (!normal)
        return fm__error_memory(error, place, sizeof *normal);
    if (!json_is_string(content))
        return malformed(place, "normalizer Replace", error);
    fm_status status =
        read_pattern(t, json_object_get(object, "pattern"), &normal->what, &is_regex, place, error);
    if (status == FM_OK)
        status = keep(t, text_of(content), &normal->with, place, error);
    if (status == FM_OK && is_regex) {
        normal->kind = FM__NORMAL_REPLACE_REGEX;
        status = fm__regex_compile(&normal->regex, normal->what, place, error);
    }
    return status;
}

static fm_status add_normalizer(fm_tokenizer *t, const json_t *object, int depth, const char *place,
                                fm_error *error) {
    static const struct {
        const char *type;
        fm__normal_kind kind;
    } simple[] = {{"NFC", FM__NORMAL_NFC},         {"NFD", FM__NORMAL_NFD},
                  {"NFKC", FM__NORMAL_NFKC},       {"NFKD", FM__NORMAL_NFKD},
                  {"Lowercase", FM__NORMAL_LOWER}, {"StripAccents", FM__NORMAL_STRIP_ACCENTS}};
    const char *type = type_of(object);
    fm_status status = FM_OK;
    if (t->n_normals >= STAGE_LIMIT || depth > DEPTH_LIMIT)
        return refuse(place, "normalizer", "a sequence this long", error);
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (strcmp(type, simple[i].type) == 0)
            return add_simple_normal(t, simple[i].kind, place, error);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(object, "normalizers");
        if (!json_is_array(list))
            return malformed(place, "normalizer Sequence", error);
        for (size_t i = 0; i < json_array_size(list) && status == FM_OK; i++)
            status = add_normalizer(t, json_array_get(list, i), depth + 1, place, error);
        return status;
    }
    if (strcmp(type, "Strip") == 0) {
        if (flag(object, "strip_left", true))
            status = add_simple_normal(t, FM__NORMAL_STRIP_LEFT, place, error);
        if (status == FM_OK && flag(object, "strip_right", true))
            status = add_simple_normal(t, FM__NORMAL_STRIP_RIGHT, place, error);
        return status;
    }
    if (strcmp(type, "Prepend") == 0) {
        const json_t *prepend = json_object_get(object, "prepend");
        if (!json_is_string(prepend))
            return malformed(place, "normalizer Prepend", error);
        fm__normal *normal = fm__add_normal(t, FM__NORMAL_PREPEND);
        return normal ? keep(t, text_of(prepend), &normal->with, place, error)
                      : fm__error_memory(error, place, sizeof *normal);
    }
    if (strcmp(type, "Replace") == 0)
        return add_replace(t, object, place, error);
    return refuse(place, "normalizer", type, error);
}

fm_status fm__hf_normalizer(fm_tokenizer *t, const json_t *normalizer, const char *place,
                            fm_error *error) {
    if (!normalizer || json_is_null(normalizer))
        return FM_OK;
    return add_normalizer(t, normalizer, 0, place, error);
}

/* ---- pre_tokenizer ---- */

static fm_status read_behaviour(const json_t *object, fm__behaviour otherwise, fm__behaviour *out,
                                const char *place, fm_error *error) {
    static const struct {
        const char *name;
        fm__behaviour behaviour;
    } names[] = {{"Isolated", FM__ISOLATED},
                 {"Removed", FM__REMOVED},
                 {"MergedWithPrevious", FM__MERGED_WITH_PREVIOUS},
                 {"MergedWithNext", FM__MERGED_WITH_NEXT},
                 {"Contiguous", FM__CONTIGUOUS}};
    const char *name = json_string_value(json_object_get(object, "behavior"));
    *out = otherwise;
    if (!name)
        return FM_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].behaviour;
            return FM_OK;
        }
    return refuse(place, "behavior", name, error);
}

static fm_status add_regex(fm_tokenizer *t, fm__str pattern, fm__behaviour behaviour, bool invert,
                           const char *place, fm_error *error) {
    fm__step *step = fm__add_step(t);
    if (!step)
        return fm__error_memory(error, place, sizeof *step);
    return fm__step_init_regex(step, pattern, behaviour, invert, place, error);
}

static fm_status add_split(fm_tokenizer *t, const json_t *object, const char *place,
                           fm_error *error) {
    fm__str pattern;
    bool is_regex;
    fm__behaviour behaviour;
    fm_status status =
        read_pattern(t, json_object_get(object, "pattern"), &pattern, &is_regex, place, error);
    if (status == FM_OK)
        status = read_behaviour(object, FM__ISOLATED, &behaviour, place, error);
    if (status != FM_OK)
        return status;
    bool invert = flag(object, "invert", false);
    if (is_regex)
        return add_regex(t, pattern, behaviour, invert, place, error);
    fm__step *step = fm__add_step(t);
    if (!step)
        return fm__error_memory(error, place, sizeof *step);
    *step = (fm__step){
        .kind = FM__STEP_LITERAL, .behaviour = behaviour, .invert = invert, .pattern = pattern};
    return FM_OK;
}

/* A class of single characters: contiguous cuts are written as a repeat, so that equal pipelines
   look alike. */
static fm_status add_class(fm_tokenizer *t, const char *pattern, fm__behaviour behaviour,
                           const char *place, fm_error *error) {
    fm__buf text = {0};
    fm__str kept = {0};
    fm__buf_printf(&text, "%s%s", pattern, behaviour == FM__CONTIGUOUS ? "+" : "");
    fm_status status = text.failed ? fm__error_memory(error, place, 64)
                                   : keep(t, (fm__str){text.data, text.bytes}, &kept, place, error);
    fm__buf_finish(&text);
    if (status != FM_OK)
        return status;
    return add_regex(t, kept, behaviour == FM__CONTIGUOUS ? FM__ISOLATED : behaviour, false, place,
                     error);
}

static fm_status read_prepend(const json_t *object, fm__prepend *out, const char *place,
                              fm_error *error) {
    const char *scheme = json_string_value(json_object_get(object, "prepend_scheme"));
    if (!scheme)
        *out = flag(object, "add_prefix_space", true) ? FM__PREPEND_ALWAYS : FM__PREPEND_NEVER;
    else if (strcmp(scheme, "always") == 0)
        *out = FM__PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        *out = FM__PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        *out = FM__PREPEND_NEVER;
    else
        return refuse(place, "prepend_scheme", scheme, error);
    return FM_OK;
}

static fm_status check_mark(const json_t *object, const char *place, fm_error *error) {
    const char *mark = json_string_value(json_object_get(object, "replacement"));
    return mark && strcmp(mark, FM__SPACE_MARK) == 0
               ? FM_OK
               : refuse(place, "Metaspace replacement", mark ? mark : "", error);
}

static fm_status add_metaspace(fm_tokenizer *t, const json_t *object, const char *place,
                               fm_error *error) {
    fm_status status = check_mark(object, place, error);
    fm__step *step = status == FM_OK ? fm__add_step(t) : NULL;
    if (!step)
        return status != FM_OK ? status : fm__error_memory(error, place, sizeof *step);
    step->kind = FM__STEP_METASPACE;
    step->pattern = FM__STR(FM__SPACE_MARK);
    step->split = flag(object, "split", true);
    return read_prepend(object, &step->prepend, place, error);
}

static fm_status add_byte_level(fm_tokenizer *t, const json_t *object, const char *place,
                                fm_error *error) {
    t->byte_level = true;
    if (flag(object, "add_prefix_space", true)) {
        fm__step *step = fm__add_step(t);
        if (!step)
            return fm__error_memory(error, place, sizeof *step);
        step->kind = FM__STEP_PREFIX_SPACE;
    }
    if (!flag(object, "use_regex", true))
        return FM_OK;
    return add_regex(t, fm__str_of(fm__pattern_gpt2), FM__ISOLATED, false, place, error);
}

static fm_status add_pre_tokenizer(fm_tokenizer *t, const json_t *object, int depth,
                                   const char *place, fm_error *error) {
    const char *type = type_of(object);
    fm_status status = FM_OK;
    fm__behaviour behaviour;
    if (t->n_steps >= STAGE_LIMIT || depth > DEPTH_LIMIT)
        return refuse(place, "pre_tokenizer", "a sequence this long", error);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(object, "pretokenizers");
        if (!json_is_array(list))
            return malformed(place, "pre_tokenizer Sequence", error);
        for (size_t i = 0; i < json_array_size(list) && status == FM_OK; i++)
            status = add_pre_tokenizer(t, json_array_get(list, i), depth + 1, place, error);
        return status;
    }
    if (t->byte_level) /* it would see the byte alphabet instead of the text */
        return fm__error(error, FM_ERROR_UNSUPPORTED, place,
                         "pre_tokenizer: \"%.80s\" behind ByteLevel is not supported", type);
    if (strcmp(type, "ByteLevel") == 0)
        return add_byte_level(t, object, place, error);
    if (strcmp(type, "Split") == 0)
        return add_split(t, object, place, error);
    if (strcmp(type, "Digits") == 0)
        return add_class(t, fm__pattern_number,
                         flag(object, "individual_digits", false) ? FM__ISOLATED : FM__CONTIGUOUS,
                         place, error);
    if (strcmp(type, "Punctuation") == 0) {
        status = read_behaviour(object, FM__ISOLATED, &behaviour, place, error);
        return status == FM_OK ? add_class(t, fm__pattern_punctuation, behaviour, place, error)
                               : status;
    }
    if (strcmp(type, "Metaspace") == 0)
        return add_metaspace(t, object, place, error);
    if (strcmp(type, "Whitespace") == 0)
        return add_regex(t, FM__STR("\\w+|[^\\w\\s]+"), FM__REMOVED, true, place, error);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_regex(t, FM__STR("\\s"), FM__REMOVED, false, place, error);
    return refuse(place, "pre_tokenizer", type, error);
}

fm_status fm__hf_pre_tokenizer(fm_tokenizer *t, const json_t *pre_tokenizer, const char *place,
                               fm_error *error) {
    if (!pre_tokenizer || json_is_null(pre_tokenizer))
        return FM_OK;
    return add_pre_tokenizer(t, pre_tokenizer, 0, place, error);
}

/* ---- decoder ---- */

static fm_status add_decoder(fm_tokenizer *t, const json_t *object, int depth, const char *place,
                             fm_error *error) {
    const char *type = type_of(object);
    fm_status status = FM_OK;
    if (depth > DEPTH_LIMIT)
        return refuse(place, "decoder", "a sequence this deep", error);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(object, "decoders");
        if (!json_is_array(list))
            return malformed(place, "decoder Sequence", error);
        for (size_t i = 0; i < json_array_size(list) && status == FM_OK; i++)
            status = add_decoder(t, json_array_get(list, i), depth + 1, place, error);
        return status;
    }
    if (strcmp(type, "ByteLevel") == 0)
        return t->byte_level
                   ? FM_OK
                   : refuse(place, "decoder", "ByteLevel without its pre_tokenizer", error);
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0)
        return FM_OK;
    if (t->byte_level)
        return refuse(place, "decoder beside ByteLevel", type, error);
    if (strcmp(type, "Metaspace") == 0) {
        fm__prepend prepend = FM__PREPEND_NEVER;
        status = check_mark(object, place, error);
        if (status == FM_OK)
            status = read_prepend(object, &prepend, place, error);
        t->marks_spaces = true;
        t->decode_drops_space = prepend != FM__PREPEND_NEVER;
        return status;
    }
    if (strcmp(type, "Replace") == 0) {
        const char *what =
            json_string_value(json_object_get(json_object_get(object, "pattern"), "String"));
        const char *with = json_string_value(json_object_get(object, "content"));
        if (!what || !with || strcmp(what, FM__SPACE_MARK) != 0 || strcmp(with, " ") != 0)
            return refuse(place, "decoder Replace of", what ? what : "a pattern", error);
        t->marks_spaces = true;
        return FM_OK;
    }
    if (strcmp(type, "Strip") == 0) {
        const char *content = json_string_value(json_object_get(object, "content"));
        json_int_t start = json_integer_value(json_object_get(object, "start"));
        json_int_t stop = json_integer_value(json_object_get(object, "stop"));
        if (!content || strcmp(content, " ") != 0 || start < 0 || start > 1 || stop != 0)
            return refuse(place, "decoder Strip of", content ? content : "", error);
        t->decode_drops_space = start == 1;
        return FM_OK;
    }
    return refuse(place, "decoder", type, error);
}

fm_status fm__hf_decoder(fm_tokenizer *t, const json_t *decoder, const char *place,
                         fm_error *error) {
    if (decoder && !json_is_null(decoder))
        return add_decoder(t, decoder, 0, place, error);
    for (size_t i = 0; i < t->n_steps; i++) /* without one, undo what the pre_tokenizer did */
        if (t->steps[i].kind == FM__STEP_METASPACE) {
            t->marks_spaces = true;
            t->decode_drops_space = t->steps[i].prepend != FM__PREPEND_NEVER;
        }
    return FM_OK;
}

/* ---- post_processor ---- */

static fm_status add_id(fm_tokenizer *t, fm__ids *list, const json_t *id, const char *place,
                        fm_error *error) {
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || (uint64_t)value >= t->n_tokens)
        return fm__error(error, FM_ERROR_FORMAT, place,
                         "post_processor: a special token's id is outside the vocabulary");
    return fm__ids_add(list, (int32_t)value) ? FM_OK : fm__error_memory(error, place, sizeof value);
}

static fm_status add_template(fm_tokenizer *t, const json_t *object, const char *place,
                              fm_error *error) {
    const json_t *single = json_object_get(object, "single");
    const json_t *specials = json_object_get(object, "special_tokens");
    fm_status status = FM_OK;
    fm__ids *list = &t->before;
    bool seen = false;
    if (!json_is_array(single))
        return refuse(place, "post_processor", "TemplateProcessing without a list", error);
    for (size_t i = 0; i < json_array_size(single) && status == FM_OK; i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        if (json_object_get(item, "Sequence")) {
            if (seen)
                return refuse(place, "post_processor", "a text twice", error);
            seen = true;
            list = &t->after;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        if (!json_is_array(ids))
            return malformed(place, "post_processor TemplateProcessing", error);
        for (size_t k = 0; k < json_array_size(ids) && status == FM_OK; k++)
            status = add_id(t, list, json_array_get(ids, k), place, error);
    }
    return status == FM_OK && !seen ? malformed(place, "post_processor TemplateProcessing", error)
                                    : status;
}

static fm_status add_post_processor(fm_tokenizer *t, const json_t *object, int depth,
                                    const char *place, fm_error *error) {
    const char *type = type_of(object);
    fm_status status = FM_OK;
    if (depth > DEPTH_LIMIT)
        return refuse(place, "post_processor", "a sequence this deep", error);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(object, "processors");
        if (!json_is_array(list))
            return malformed(place, "post_processor Sequence", error);
        for (size_t i = 0; i < json_array_size(list) && status == FM_OK; i++)
            status = add_post_processor(t, json_array_get(list, i), depth + 1, place, error);
        return status;
    }
    if (strcmp(type, "ByteLevel") == 0) /* it only adjusts offsets */
        return FM_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return add_template(t, object, place, error);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        status =
            add_id(t, &t->before, json_array_get(json_object_get(object, "cls"), 1), place, error);
        if (status == FM_OK)
            status = add_id(t, &t->after, json_array_get(json_object_get(object, "sep"), 1), place,
                            error);
        return status;
    }
    return refuse(place, "post_processor", type, error);
}

fm_status fm__hf_post_processor(fm_tokenizer *t, const json_t *post_processor, const char *place,
                                fm_error *error) {
    if (!post_processor || json_is_null(post_processor))
        return FM_OK;
    return add_post_processor(t, post_processor, 0, place, error);
}
