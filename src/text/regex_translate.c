/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/regex_translate.c: from the dialect of tokenizer.json (Oniguruma, Ruby syntax) to PCRE2's.
 *
 * Owns: the differences between the two dialects. Never does: guess; what has no equal meaning is
 * refused. Called from: loading threads. Equal patterns come out spelled alike (control characters
 * as \x{..}, groups not capturing), so that patterns can be compared as text.
 *
 * The differences: \s is White_Space (PCRE2 adds U+180E), \w has marks and connectors, \h is a
 * hexadecimal digit, \v is U+000B, x{n,m}+ repeats x{n,m} instead of being possessive, classes nest
 * and intersect.
 */
#include <string.h>

#include "text/internal.h"

#define DEPTH_LIMIT 60

static const char space_items[] =
    "\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";
/* Alphabetic, marks, decimal digits, connectors, and the numbers of Latin-1. */
static const char word_items[] = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}"
                                 "\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"
                                 "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";

typedef struct reader {
    fm__str in;
    size_t at;
    fm__buf *out;
    size_t groups[DEPTH_LIMIT]; /* where each open group starts in out */
    size_t depth;
    size_t atom; /* where the last repeatable item starts in out; SIZE_MAX: none */
    const char *place;
    fm_error *error;
} reader;

static fm_status refuse(reader *r, const char *what) {
    return fm__error(r->error, FM_ERROR_UNSUPPORTED, r->place,
                     "%s at byte %zu of the pattern \"%.*s\" is not supported", what, r->at,
                     (int)fm__min_size(r->in.bytes, 120), r->in.data);
}

static void put(reader *r, const char *text) {
    fm__buf_append(r->out, text, strlen(text));
}

/* The byte at `ahead` from here; 0 behind the end. */
static char peek(const reader *r, size_t ahead) {
    return r->at + ahead < r->in.bytes ? r->in.data[r->at + ahead] : 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int hex_value(char c) {
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* One character that means itself. */
static fm_status put_literal(reader *r) {
    uint32_t code_point;
    int length = fm__utf8_next(r->in.data + r->at, r->in.bytes - r->at, &code_point);
    if (length <= 0)
        return refuse(r, "a byte that is not UTF-8");
    if (code_point < 0x20 || code_point == 0x7f)
        fm__buf_printf(r->out, "\\x{%x}", (unsigned)code_point);
    else if (code_point < 0x80 && !is_letter((char)code_point) && !is_digit((char)code_point) &&
             code_point != ' ')
        fm__buf_printf(r->out, "\\%c", (char)code_point);
    else
        fm__buf_append(r->out, r->in.data + r->at, (size_t)length);
    r->at += (size_t)length;
    return FM_OK;
}

/* \xHH, \x{H...}, \uHHHH: r->at is on the x or u. */
static fm_status put_code(reader *r) {
    bool braces = peek(r, 0) == 'x' && peek(r, 1) == '{';
    size_t most = braces ? 6 : peek(r, 0) == 'u' ? 4 : 2, n = 0;
    uint32_t value = 0;
    r->at += braces ? 2 : 1;
    while (n < most && hex_value(peek(r, 0)) >= 0) {
        value = value << 4 | (uint32_t)hex_value(peek(r, 0));
        r->at++;
        n++;
    }
    if (n == 0 || (braces && peek(r, 0) != '}') || (most == 4 && n != 4) || value > 0x10ffff ||
        (value >= 0xd800 && value < 0xe000) || (most == 2 && value >= 0x80))
        return refuse(r, "this character code");
    if (braces)
        r->at++;
    fm__buf_printf(r->out, "\\x{%x}", (unsigned)value);
    return FM_OK;
}

/* \p{Name}: r->at is on the p or P. */
static fm_status put_property(reader *r) {
    static const char *const names[][2] = {{"Letter", "L"},
                                           {"Lowercase_Letter", "Ll"},
                                           {"Uppercase_Letter", "Lu"},
                                           {"Titlecase_Letter", "Lt"},
                                           {"Modifier_Letter", "Lm"},
                                           {"Other_Letter", "Lo"},
                                           {"Mark", "M"},
                                           {"Nonspacing_Mark", "Mn"},
                                           {"Number", "N"},
                                           {"Decimal_Number", "Nd"},
                                           {"Punctuation", "P"},
                                           {"Symbol", "S"},
                                           {"Separator", "Z"},
                                           {"Space_Separator", "Zs"},
                                           {"Other", "C"},
                                           {"Control", "Cc"}};
    bool negated = peek(r, 0) == 'P';
    if (peek(r, 1) != '{')
        return refuse(r, "this property");
    r->at += 2;
    if (peek(r, 0) == '^') {
        negated = !negated;
        r->at++;
    }
    const char *name = r->in.data + r->at;
    size_t bytes = 0;
    while (is_letter(peek(r, bytes)) || is_digit(peek(r, bytes)) || peek(r, bytes) == '_')
        bytes++;
    if (bytes == 0 || bytes > 40 || peek(r, bytes) != '}')
        return refuse(r, "this property");
    fm__str shorter = {name, bytes};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (fm__str_is(shorter, names[i][0]))
            shorter = fm__str_of(names[i][1]);
    fm__buf_printf(r->out, "\\%c{%.*s}", negated ? 'P' : 'p', (int)shorter.bytes, shorter.data);
    r->at += bytes + 1;
    return FM_OK;
}

/* Escapes that mean one character in and out of classes. true: taken. */
static bool put_control(reader *r) {
    static const char letters[] = "rntfvae";
    static const unsigned codes[] = {0xd, 0xa, 0x9, 0xc, 0xb, 0x7, 0x1b};
    const char *found = peek(r, 0) ? strchr(letters, peek(r, 0)) : NULL;
    if (!found)
        return false;
    fm__buf_printf(r->out, "\\x{%x}", codes[found - letters]);
    r->at++;
    return true;
}

/* A backslash inside [ ]; r->at is behind it. */
static fm_status class_escape(reader *r) {
    char c = peek(r, 0);
    if (put_control(r))
        return FM_OK;
    if (c == 'x' || c == 'u')
        return put_code(r);
    if (c == 'p' || c == 'P')
        return put_property(r);
    const char *items = c == 's'   ? space_items
                        : c == 'w' ? word_items
                        : c == 'd' ? "\\p{Nd}"
                        : c == 'D' ? "\\P{Nd}"
                        : c == 'h' ? "0-9A-Fa-f"
                        : c == 'S' ? "\\S" /* U+180E apart */
                        : c == 'b' ? "\\x{8}"
                                   : NULL;
    if (items) {
        put(r, items);
        r->at++;
        return FM_OK;
    }
    if (c == 0 || is_letter(c) || is_digit(c))
        return refuse(r, "this escape in a class");
    return put_literal(r);
}

/* [:name:] inside a class; r->at is on its bracket. */
static fm_status class_posix(reader *r) {
    static const char *const names[][2] = {
        {"[:digit:]", "\\p{Nd}"}, {"[:space:]", space_items}, {"[:punct:]", "\\p{P}\\p{S}"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t bytes = strlen(names[i][0]);
        if (r->in.bytes - r->at >= bytes && memcmp(r->in.data + r->at, names[i][0], bytes) == 0) {
            put(r, names[i][1]);
            r->at += bytes;
            return FM_OK;
        }
    }
    return refuse(r, "a class inside a class");
}

static fm_status translate_class(reader *r) {
    fm_status status = FM_OK;
    r->atom = r->out->bytes;
    put(r, "[");
    r->at++;
    if (peek(r, 0) == '^') {
        put(r, "^");
        r->at++;
    }
    for (bool first = true; status == FM_OK; first = false) {
        if (r->at >= r->in.bytes)
            return refuse(r, "a class without its end");
        char c = peek(r, 0);
        if (c == ']' && !first)
            break;
        if (c == '[') {
            status = class_posix(r);
        } else if (c == '&' && peek(r, 1) == '&') {
            status = refuse(r, "an intersection of classes");
        } else if (c == '\\') {
            r->at++;
            status = class_escape(r);
        } else if (c == '-') { /* a range or itself, as in the original */
            put(r, "-");
            r->at++;
        } else {
            status = put_literal(r);
        }
    }
    put(r, "]");
    r->at++;
    return status;
}

static fm_status translate_escape(reader *r) {
    r->at++;
    char c = peek(r, 0);
    r->atom = r->out->bytes;
    if (put_control(r))
        return FM_OK;
    switch (c) {
    case 'x':
    case 'u':
        return put_code(r);
    case 'p':
    case 'P':
        return put_property(r);
    case 's':
        fm__buf_printf(r->out, "[%s]", space_items);
        break;
    case 'S':
        fm__buf_printf(r->out, "[^%s]", space_items);
        break;
    case 'w':
        fm__buf_printf(r->out, "[%s]", word_items);
        break;
    case 'W':
        fm__buf_printf(r->out, "[^%s]", word_items);
        break;
    case 'd':
        put(r, "\\p{Nd}");
        break;
    case 'D':
        put(r, "\\P{Nd}");
        break;
    case 'h':
        put(r, "[0-9A-Fa-f]");
        break;
    case 'b':
        fm__buf_printf(r->out, "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))", word_items, word_items,
                       word_items, word_items);
        break;
    case 'A':
    case 'z':
    case 'Z':
        fm__buf_printf(r->out, "\\%c", c);
        break;
    default:
        if (c == 0 || is_letter(c) || is_digit(c))
            return refuse(r, "this escape");
        return put_literal(r);
    }
    r->at++;
    return FM_OK;
}

static fm_status translate_group(reader *r) {
    static const char *const kept[] = {"(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (r->depth == DEPTH_LIMIT)
        return refuse(r, "a group this deep");
    r->groups[r->depth++] = r->out->bytes;
    r->atom = SIZE_MAX;
    if (peek(r, 1) == '*')
        return refuse(r, "a verb");
    if (peek(r, 1) != '?') { /* nobody asks what a group held */
        put(r, "(?:");
        r->at++;
        return FM_OK;
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        size_t bytes = strlen(kept[i]);
        if (r->in.bytes - r->at >= bytes && memcmp(r->in.data + r->at, kept[i], bytes) == 0) {
            put(r, kept[i]);
            r->at += bytes;
            return FM_OK;
        }
    }
    return refuse(r, "this kind of group");
}

/* Puts "(?:" before the last atom, so that what follows applies to all of it. */
static void wrap_atom(reader *r) {
    char tail_stack[256];
    size_t bytes = r->out->bytes - r->atom;
    char *tail = bytes <= sizeof tail_stack ? tail_stack : fm__alloc(bytes);
    if (!tail) {
        r->out->failed = true;
        return;
    }
    memcpy(tail, r->out->data + r->atom, bytes);
    r->out->bytes = r->atom;
    put(r, "(?:");
    fm__buf_append(r->out, tail, bytes);
    put(r, ")");
    if (tail != tail_stack)
        fm__free(tail);
}

/* {n}, {n,}, {n,m} or {,m} at r->at; bytes 0: these braces mean themselves. */
static size_t read_interval(const reader *r, unsigned *low, unsigned *high, bool *open,
                            bool *exact) {
    size_t i = 1;
    unsigned value = 0;
    bool any = false;
    for (; is_digit(peek(r, i)) && value < 100000; i++, any = true)
        value = value * 10 + (unsigned)(peek(r, i) - '0');
    *low = *high = value;
    *open = false;
    *exact = peek(r, i) == '}';
    if (peek(r, i) == ',') {
        bool bounded = false;
        value = 0;
        for (i++; is_digit(peek(r, i)) && value < 100000; i++, bounded = true)
            value = value * 10 + (unsigned)(peek(r, i) - '0');
        if (!any && !bounded)
            return 0;
        *high = value;
        *open = !bounded;
        any = true;
    }
    return any && peek(r, i) == '}' ? i + 1 : 0;
}

static fm_status translate_repeat(reader *r) {
    unsigned low, high;
    bool open, exact;
    char c = peek(r, 0);
    bool greedy = c != '?';
    size_t bytes = c == '{' ? read_interval(r, &low, &high, &open, &exact) : 1;
    if (bytes == 0) {
        r->atom = r->out->bytes;
        return put_literal(r);
    }
    if (r->atom == SIZE_MAX)
        return refuse(r, "a repeat of nothing");
    if (c != '{') {
        fm__buf_append(r->out, &c, 1);
        r->at++;
        if (peek(r, 0) == '+' || peek(r, 0) == '?') { /* possessive or lazy in both dialects */
            c = peek(r, 0);
            fm__buf_append(r->out, &c, 1);
            r->at++;
            greedy = false;
        }
    } else {
        if (open)
            fm__buf_printf(r->out, "{%u,}", low);
        else if (exact)
            fm__buf_printf(r->out, "{%u}", low);
        else
            fm__buf_printf(r->out, "{%u,%u}", low, high);
        r->at += bytes;
        if (peek(r, 0) == '?') {
            if (exact)
                return refuse(r, "{n}?");
            put(r, "?");
            r->at++;
            greedy = false;
        }
    }
    bool last = r->depth == 0 && (r->at == r->in.bytes || peek(r, 0) == '|');
    if (peek(r, 0) == '*' || peek(r, 0) == '+' || peek(r, 0) == '?' || peek(r, 0) == '{') {
        wrap_atom(r); /* a repeat of a repeat: the next round repeats the whole */
    } else {
        if (greedy && last) /* nothing follows that could ask for something back: keep no record */
            put(r, "+");
        r->atom = SIZE_MAX;
    }
    return r->out->failed ? fm__error_memory(r->error, r->place, r->in.bytes) : FM_OK;
}

static fm_status translate_one(reader *r) {
    switch (peek(r, 0)) {
    case '\\':
        return translate_escape(r);
    case '[':
        return translate_class(r);
    case '(':
        return translate_group(r);
    case ')':
        if (r->depth == 0)
            return refuse(r, "a closing parenthesis without its group");
        r->atom = r->groups[--r->depth];
        break;
    case '|':
    case '^':
    case '$':
        r->atom = SIZE_MAX;
        break;
    case '.':
        r->atom = r->out->bytes;
        break;
    case '*':
    case '+':
    case '?':
    case '{':
        return translate_repeat(r);
    default:
        r->atom = r->out->bytes;
        return put_literal(r);
    }
    char c = peek(r, 0);
    fm__buf_append(r->out, &c, 1);
    r->at++;
    return FM_OK;
}

fm_status fm__regex_translate(fm__str pattern, fm__buf *out, const char *place, fm_error *error) {
    reader r = {.in = pattern, .out = out, .atom = SIZE_MAX, .place = place, .error = error};
    if (pattern.bytes > 16384)
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "a pattern of %zu bytes is too long",
                         pattern.bytes);
    fm_status status = FM_OK;
    fm__buf_append(out, "", 0);
    while (status == FM_OK && r.at < pattern.bytes)
        status = translate_one(&r);
    if (status == FM_OK && r.depth > 0)
        status = refuse(&r, "a group without its end");
    if (status == FM_OK && out->failed)
        status = fm__error_memory(error, place, pattern.bytes);
    return status;
}
