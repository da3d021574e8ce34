/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/regex.c: compiles and matches the patterns of pre-tokenizers on PCRE2.
 *
 * Owns: compiled patterns and the memory of matching. Never does: matching bytes that are not UTF-8
 * (the caller cuts them out), or backtracking without a bound. Called from: any thread; a matcher
 * from one. The dialect of tokenizer.json is turned into PCRE2's by regex_translate.c.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/internal.h"

/* Backtracking steps of one match: a floor, and a few for each byte of the text. A known pattern
   needs at most about two for each byte. */
#define MATCH_LIMIT_FLOOR 1000000u
#define MATCH_LIMIT_PER_BYTE 16u
#define HEAP_LIMIT_KIB 65536u
#define JIT_STACK_FLOOR ((size_t)32 << 10)
#define JIT_STACK_CEILING ((size_t)8 << 20)

struct fm__regex {
    pcre2_code *code;
};

struct fm__matcher {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

static void *pcre_alloc(size_t bytes, void *user) {
    (void)user;
    return fm__alloc(bytes);
}

static void pcre_free(void *memory, void *user) {
    (void)user;
    fm__free(memory);
}

fm_status fm__regex_compile_native(fm__regex **out, fm__str pattern, const char *place,
                                   fm_error *error) {
    fm_status status = FM_ERROR_MEMORY;
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = NULL;
    fm__regex *regex = fm__alloc_zero(sizeof *regex);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (regex && general)
        context = pcre2_compile_context_create(general);
    if (!context) {
        fm__error_memory(error, place, sizeof *regex);
        goto done;
    }
    /* ^ and $ mean lines, and . stops at \n only, as in Oniguruma's default syntax. */
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 60);
    regex->code = pcre2_compile((PCRE2_SPTR)pattern.data, pattern.bytes,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                &code, &offset, context);
    if (!regex->code) {
        char message[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        status = code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED
                     ? FM_ERROR_MEMORY
                     : FM_ERROR_UNSUPPORTED;
        fm__error(error, status, place, "the pattern \"%.*s\" is not understood at %zu: %s",
                  (int)fm__min_size(pattern.bytes, 120), pattern.data, (size_t)offset, message);
        goto done;
    }
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE); /* where it fails, the interpreter runs */
    *out = regex;
    regex = NULL;
    status = FM_OK;
done:
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    fm__free(regex);
    return status;
}

fm_status fm__regex_compile(fm__regex **out, fm__str pattern, const char *place, fm_error *error) {
    fm__buf native = {0};
    fm_status status = fm__regex_translate(pattern, &native, place, error);
    if (status == FM_OK)
        status = fm__regex_compile_native(out, (fm__str){native.data, native.bytes}, place, error);
    fm__buf_finish(&native);
    return status;
}

void fm__regex_destroy(fm__regex **regex) {
    if (!regex || !*regex)
        return;
    pcre2_code_free((*regex)->code);
    fm__free(*regex);
    *regex = NULL;
}

fm_status fm__matcher_create(fm__matcher **out, fm_error *error) {
    fm__matcher *matcher = fm__alloc_zero(sizeof *matcher);
    if (!matcher)
        return fm__error_memory(error, NULL, sizeof *matcher);
    matcher->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (matcher->general) {
        matcher->context = pcre2_match_context_create(matcher->general);
        matcher->data = pcre2_match_data_create(1, matcher->general);
    }
    if (!matcher->context || !matcher->data) {
        fm__matcher_destroy(&matcher);
        return fm__error_memory(error, NULL, sizeof *matcher);
    }
    pcre2_set_heap_limit(matcher->context, HEAP_LIMIT_KIB);
    *out = matcher;
    return FM_OK;
}

void fm__matcher_destroy(fm__matcher **matcher) {
    if (!matcher || !*matcher)
        return;
    fm__matcher *m = *matcher;
    pcre2_jit_stack_free(m->stack);
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_general_context_free(m->general);
    fm__free(m);
    *matcher = NULL;
}

/* Once a pattern overflows the machine stack's 32 KiB, matches get a larger stack of their own. */
static bool give_stack(fm__matcher *matcher) {
    if (matcher->stack)
        return false;
    matcher->stack = pcre2_jit_stack_create(JIT_STACK_FLOOR, JIT_STACK_CEILING, matcher->general);
    if (!matcher->stack)
        return false;
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return true;
}

fm_status fm__regex_find(const fm__regex *regex, fm__matcher *matcher, const char *text,
                         size_t bytes, size_t from, bool *found, size_t *start, size_t *end,
                         fm_error *error) {
    size_t limit = MATCH_LIMIT_FLOOR + MATCH_LIMIT_PER_BYTE * bytes;
    pcre2_set_match_limit(matcher->context, (uint32_t)fm__min_size(limit, UINT32_MAX));
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int n;
    do {
        n = pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, from, options, matcher->data,
                        matcher->context);
    } while (n == PCRE2_ERROR_JIT_STACKLIMIT && give_stack(matcher));
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
        n = pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, from, options | PCRE2_NO_JIT,
                        matcher->data, matcher->context);
    *found = n >= 0;
    if (n >= 0) {
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
        *start = range[0];
        *end = range[1];
        return FM_OK;
    }
    if (n == PCRE2_ERROR_NOMATCH)
        return FM_OK;
    if (n == PCRE2_ERROR_NOMEMORY)
        return fm__error_memory(error, NULL, bytes);
    char message[128];
    pcre2_get_error_message(n, (PCRE2_UCHAR *)message, sizeof message);
    return fm__error(error, FM_ERROR_LIMIT, NULL,
                     "the pre-tokenizer's pattern gave up at byte %zu of the text: %s", from,
                     message);
}
