/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/pretokenize.c: cuts a text into the words that are encoded one by one.
 *
 * Owns: the steps' compiled patterns. Never does: looking at the vocabulary. Called from: loading
 * threads (init), any thread (cutting). Bytes that are not UTF-8 become pieces of their own before
 * the first step, and no step touches them.
 *
 * Time is linear in the text for every pattern of the table: three of them look ahead to the end of
 * a run of digits at each match and are scanned by hand, two are replaced by forms that do not
 * backtrack.
 */
#include <string.h>

#include "text/internal.h"

/* ---- steps ---- */

static const struct {
    const char *pattern;
    fm__step_kind kind;
} scanned[] = {
    {"\\d{1,3}(?=(?:\\d{3})*\\b)", FM__STEP_DIGITS_WORD},
    {"(?=(\\d{3})+(?!\\d))", FM__STEP_DIGITS_CUT},
    {"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", FM__STEP_NUMBERS},
};

static const struct {
    const char *pattern, *faster;
} faster[] = {
    /* Only a run's first place can match; every other one fails at once. */
    {"\\s+$", "(?<!\\s)\\s++$"},
    /* Nothing follows the group that could ask it to give back. */
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: "
     "\\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: "
     "\\p{L}\\p{M}*+)*+)++|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    /* Behind white space that ends no line the rest of the run ends none either: whoever took it
       had looked for one. */
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|"
     "\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|"
     "\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|(?<![^\\S\\r\\n])\\s*[\\r\\n]+|\\s{512}(?!\\S)|"
     "\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|"
     "\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"},
};

fm_status fm__step_init_regex(fm__step *step, fm__str pattern, fm__behaviour behaviour, bool invert,
                              const char *place, fm_error *error) {
    *step = (fm__step){
        .kind = FM__STEP_REGEX, .behaviour = behaviour, .invert = invert, .pattern = pattern};
    for (size_t i = 0; i < sizeof scanned / sizeof *scanned; i++)
        if (fm__str_is(pattern, scanned[i].pattern)) {
            step->kind = scanned[i].kind;
            return FM_OK;
        }
    for (size_t i = 0; i < sizeof faster / sizeof *faster; i++)
        if (fm__str_is(pattern, faster[i].pattern))
            pattern = fm__str_of(faster[i].faster);
    return fm__regex_compile(&step->regex, pattern, place, error);
}

void fm__step_finish(fm__step *step) {
    fm__regex_destroy(&step->regex);
}

/* ---- collecting pieces as a behaviour asks ---- */

typedef struct collector {
    fm__pieces *out;
    fm__behaviour behaviour;
    bool invert;
    bool open; /* out's last piece belongs to the text that is being cut */
    bool previous_match;
    fm__piece held; /* MERGED_WITH_NEXT: a match that waits for what follows */
    bool holding;
} collector;

static void add(collector *c, size_t at, size_t bytes) {
    if (bytes > 0) {
        fm__pieces_add(c->out, at, bytes, false);
        c->open = true;
    }
}

static void release_held(collector *c) {
    if (c->holding)
        add(c, c->held.at, c->held.bytes);
    c->holding = false;
}

static bool extend_last(collector *c, size_t end) {
    if (!c->open || c->out->failed)
        return false;
    fm__piece *last = &c->out->data[c->out->count - 1];
    last->bytes = end - last->at;
    return true;
}

/* The next stretch of the text: a match or what lies between two. */
static void collect(collector *c, size_t start, size_t end, bool match) {
    match ^= c->invert;
    switch (c->behaviour) {
    case FM__ISOLATED:
        add(c, start, end - start);
        break;
    case FM__REMOVED:
        if (!match)
            add(c, start, end - start);
        break;
    case FM__CONTIGUOUS:
        if (match != c->previous_match || !extend_last(c, end))
            add(c, start, end - start);
        break;
    case FM__MERGED_WITH_PREVIOUS:
        if (!match || c->previous_match || !extend_last(c, end))
            add(c, start, end - start);
        break;
    case FM__MERGED_WITH_NEXT:
        if (match) {
            release_held(c);
            c->held = (fm__piece){start, end - start, false};
            c->holding = true;
        } else {
            size_t from = c->holding ? c->held.at : start;
            c->holding = false;
            add(c, from, end - from);
        }
        break;
    }
    c->previous_match = match;
}

/* ---- cutting by pattern ---- */

static fm_status cut_regex(const fm__step *step, fm__matcher *matcher, const char *text,
                           fm__piece piece, collector *c, fm_error *error) {
    const char *data = text + piece.at;
    size_t done = 0, from = 0, last_end = SIZE_MAX;
    while (from <= piece.bytes) {
        bool found;
        size_t start, end;
        fm_status status = fm__regex_find(step->regex, matcher, data, piece.bytes, from, &found,
                                          &start, &end, error);
        if (status != FM_OK)
            return status;
        if (!found)
            break;
        if (start == end && end == last_end) { /* an empty match where one just ended */
            if (from >= piece.bytes)
                break;
            from += (size_t)fm__utf8_next(data + from, piece.bytes - from, NULL);
            continue;
        }
        if (start > done)
            collect(c, piece.at + done, piece.at + start, false);
        collect(c, piece.at + start, piece.at + end, true);
        done = from = last_end = end;
    }
    if (done < piece.bytes)
        collect(c, piece.at + done, piece.at + piece.bytes, false);
    return FM_OK;
}

static void cut_literal(const fm__step *step, const char *text, fm__piece piece, collector *c) {
    const char *data = text + piece.at;
    size_t done = 0;
    while (step->pattern.bytes > 0) {
        const char *hit =
            memmem(data + done, piece.bytes - done, step->pattern.data, step->pattern.bytes);
        if (!hit)
            break;
        size_t start = (size_t)(hit - data);
        if (start > done)
            collect(c, piece.at + done, piece.at + start, false);
        collect(c, piece.at + start, piece.at + start + step->pattern.bytes, true);
        done = start + step->pattern.bytes;
    }
    if (done < piece.bytes)
        collect(c, piece.at + done, piece.at + piece.bytes, false);
}

/* ---- digits by threes, from the end of their run ---- */

/* One run of count numbers, [start, end) of the piece: each group is a match of its own. */
static void cut_run(const char *data, size_t base, size_t start, size_t end, size_t count,
                    collector *c) {
    size_t at = start, in_group = 0, left = count;
    for (size_t i = start; i < end;) {
        i += (size_t)fm__utf8_next(data + i, end - i, NULL);
        in_group++;
        left--;
        if (left % 3 == 0) {
            collect(c, base + at, base + i, true);
            at = i;
            in_group = 0;
        }
    }
}

static void cut_digits(const fm__step *step, const char *text, fm__piece piece, collector *c) {
    const char *data = text + piece.at;
    bool decimal = step->kind != FM__STEP_NUMBERS;
    size_t done = 0;
    for (size_t i = 0; i < piece.bytes;) {
        uint32_t code_point = 0;
        size_t start = i, count = 0;
        int length = 0;
        while (i < piece.bytes &&
               (length = fm__utf8_next(data + i, piece.bytes - i, &code_point)) > 0 &&
               fm__is_number(code_point, decimal)) {
            i += (size_t)length;
            count++;
        }
        bool word_behind = i < piece.bytes && fm__is_word(code_point);
        if (count > 0 && step->kind == FM__STEP_DIGITS_CUT) {
            /* A cut wherever a multiple of three digits is left: never behind the last. */
            size_t left = count;
            for (size_t k = start; k < i; left--) {
                if (left % 3 == 0 && k > done) {
                    collect(c, piece.at + done, piece.at + k, false);
                    done = k;
                }
                k += (size_t)fm__utf8_next(data + k, i - k, NULL);
            }
        } else if (count > 0 && !(step->kind == FM__STEP_DIGITS_WORD && word_behind)) {
            if (start > done)
                collect(c, piece.at + done, piece.at + start, false);
            cut_run(data, piece.at, start, i, count, c);
            done = i;
        }
        if (i < piece.bytes)
            i += (size_t)length;
    }
    if (done < piece.bytes)
        collect(c, piece.at + done, piece.at + piece.bytes, false);
}

static fm_status cut(const fm__step *step, fm__matcher *matcher, const char *text,
                     const fm__pieces *in, fm__pieces *out, fm_error *error) {
    for (size_t i = 0; i < in->count; i++) {
        fm__piece piece = in->data[i];
        if (piece.raw) {
            fm__pieces_add(out, piece.at, piece.bytes, true);
            continue;
        }
        collector c = {.out = out, .behaviour = step->behaviour, .invert = step->invert};
        fm_status status = FM_OK;
        if (step->kind == FM__STEP_REGEX)
            status = cut_regex(step, matcher, text, piece, &c, error);
        else if (step->kind == FM__STEP_LITERAL)
            cut_literal(step, text, piece, &c);
        else
            cut_digits(step, text, piece, &c);
        if (status != FM_OK)
            return status;
        release_held(&c);
    }
    return FM_OK;
}

/* ---- steps that rewrite ---- */

/* The piece only starts here because bytes that are not UTF-8 were cut out before it. */
static bool behind_raw(const fm__pieces *pieces, size_t i) {
    return i > 0 && pieces->data[i - 1].raw;
}

static void prefix_spaces(const char *text, const fm__pieces *in, fm__buf *out,
                          fm__pieces *pieces) {
    for (size_t i = 0; i < in->count; i++) {
        fm__piece piece = in->data[i];
        size_t at = out->bytes;
        if (!piece.raw && !behind_raw(in, i) && text[piece.at] != ' ')
            fm__buf_append(out, " ", 1);
        fm__buf_append(out, text + piece.at, piece.bytes);
        fm__pieces_add(pieces, at, out->bytes - at, piece.raw);
    }
}

static void metaspace(const fm__step *step, const char *text, const fm__pieces *in, bool first,
                      fm__buf *out, fm__pieces *pieces) {
    fm__str mark = step->pattern;
    fm__step by_mark = {.kind = FM__STEP_LITERAL, .pattern = mark};
    for (size_t i = 0; i < in->count; i++) {
        fm__piece piece = in->data[i];
        const char *data = text + piece.at;
        size_t at = out->bytes;
        if (piece.raw) {
            fm__buf_append(out, data, piece.bytes);
            fm__pieces_add(pieces, at, piece.bytes, true);
            continue;
        }
        bool marked = data[0] == ' ' ||
                      (piece.bytes >= mark.bytes && memcmp(data, mark.data, mark.bytes) == 0);
        if (!marked && !behind_raw(in, i) &&
            (step->prepend == FM__PREPEND_ALWAYS ||
             (step->prepend == FM__PREPEND_FIRST && first && i == 0)))
            fm__buf_append(out, mark.data, mark.bytes);
        for (size_t k = 0; k < piece.bytes;) {
            const char *space = memchr(data + k, ' ', piece.bytes - k);
            size_t plain = space ? (size_t)(space - data) - k : piece.bytes - k;
            fm__buf_append(out, data + k, plain);
            k += plain;
            if (space) {
                fm__buf_append(out, mark.data, mark.bytes);
                k++;
            }
        }
        if (out->failed)
            return;
        collector c = {.out = pieces, .behaviour = FM__MERGED_WITH_NEXT};
        if (step->split)
            cut_literal(&by_mark, out->data, (fm__piece){at, out->bytes - at, false}, &c);
        else
            add(&c, at, out->bytes - at);
        release_held(&c);
    }
}

/* ---- the whole ---- */

/* Runs of valid UTF-8, and each other byte alone. */
static void cut_invalid(const char *text, size_t bytes, fm__pieces *out) {
    for (size_t at = 0; at < bytes;) {
        size_t valid = fm__valid_bytes(text + at, bytes - at);
        if (valid > 0)
            fm__pieces_add(out, at, valid, false);
        at += valid;
        if (at < bytes)
            fm__pieces_add(out, at++, 1, true);
    }
}

fm_status fm__pretokenize(const fm__step *steps, size_t n_steps, fm__matcher *matcher,
                          fm__buf *text, bool first, fm__pieces *pieces, fm_error *error) {
    fm_status status = FM_OK;
    fm__pieces other = {0};
    fm__buf rewritten = {0};
    pieces->count = 0;
    cut_invalid(text->data, text->bytes, pieces);
    for (size_t i = 0; i < n_steps && status == FM_OK; i++) {
        const fm__step *step = &steps[i];
        other.count = 0;
        if (step->kind == FM__STEP_PREFIX_SPACE || step->kind == FM__STEP_METASPACE) {
            fm__buf_clear(&rewritten);
            if (step->kind == FM__STEP_METASPACE)
                metaspace(step, text->data, pieces, first, &rewritten, &other);
            else
                prefix_spaces(text->data, pieces, &rewritten, &other);
            fm__buf swap = *text;
            *text = rewritten;
            rewritten = swap;
        } else {
            status = cut(step, matcher, text->data, pieces, &other, error);
        }
        fm__pieces swap = *pieces;
        *pieces = other;
        other = swap;
        if (status == FM_OK && (pieces->failed || text->failed))
            status = fm__error_memory(error, NULL, text->bytes);
    }
    if (status == FM_OK && (pieces->failed || other.failed))
        status = fm__error_memory(error, NULL, text->bytes);
    fm__pieces_finish(&other);
    fm__buf_finish(&rewritten);
    return status;
}
