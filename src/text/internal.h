/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/internal.h: what the text room's files share. Nobody else includes it.
 *
 * Text takes this way: added tokens are cut out (special.c), what is left is normalised
 * (normalize.c), cut into words (pretokenize.c with regex.c) and each word becomes ids (bpe.c,
 * sentencepiece.c). The loaders (gguf_vocab.c, hf_vocab.c, hf_pipeline.c) fill a fm_tokenizer;
 * fm__vocab_finish() derives the rest.
 */
#pragma once

#include "text/text.h"

/* U+2581, which SentencePiece vocabularies spell a space with. */
#define FM__SPACE_MARK "\xe2\x96\x81"

/* ---- lists.c: growing arrays; failed is sticky ---- */

typedef struct fm__ids {
    int32_t *data;
    size_t count, capacity;
    bool failed;
} fm__ids;

bool fm__ids_add(fm__ids *ids, int32_t id);
void fm__ids_finish(fm__ids *ids);

/* A range of the text that is being cut. raw: bytes that are not UTF-8, which no pattern sees. */
typedef struct fm__piece {
    size_t at, bytes;
    bool raw;
} fm__piece;

typedef struct fm__pieces {
    fm__piece *data;
    size_t count, capacity;
    bool failed;
} fm__pieces;

bool fm__pieces_add(fm__pieces *pieces, size_t at, size_t bytes, bool raw);
void fm__pieces_finish(fm__pieces *pieces);
/* Bytes from the start of text that are valid UTF-8. */
size_t fm__valid_bytes(const char *text, size_t bytes);

/* ---- characters.c ---- */

bool fm__is_white_space(uint32_t code_point);
bool fm__is_word(uint32_t code_point);                 /* \w of regex_translate.c */
bool fm__is_number(uint32_t code_point, bool decimal); /* \p{Nd} or \p{N} */
/* GPT-2's byte alphabet: the code point of a byte, and back (-1: none). */
uint32_t fm__byte_to_code(uint8_t byte);
int fm__code_to_byte(uint32_t code_point);
/* Bytes spelled in the alphabet; false (out untouched) if a character is not in it. */
bool fm__alphabet_decode(fm__str spelling, fm__buf *out);
/* 0..255 for "<0x0A>" and the like; else -1. */
int fm__byte_spelling(fm__str spelling);

/* ---- regex.c: tokenizer.json's patterns (Oniguruma's dialect) on PCRE2 ---- */

typedef struct fm__regex fm__regex;
/* Memory of one thread's matching. */
typedef struct fm__matcher fm__matcher;

/* The pattern in PCRE2's dialect, one spelling for equal patterns. UNSUPPORTED for what PCRE2
   cannot say. */
fm_status fm__regex_translate(fm__str pattern, fm__buf *out, const char *place, fm_error *error);
fm_status fm__regex_compile(fm__regex **out, fm__str pattern, const char *place, fm_error *error);
/* From a pattern that is PCRE2's already. */
fm_status fm__regex_compile_native(fm__regex **out, fm__str pattern, const char *place,
                                   fm_error *error);
void fm__regex_destroy(fm__regex **regex);
fm_status fm__matcher_create(fm__matcher **out, fm_error *error);
void fm__matcher_destroy(fm__matcher **matcher);
/* The first match at or behind `from` in text, which must be valid UTF-8. *found 0: there is none.
   LIMIT: the pattern backtracks too much. */
fm_status fm__regex_find(const fm__regex *regex, fm__matcher *matcher, const char *text,
                         size_t bytes, size_t from, bool *found, size_t *start, size_t *end,
                         fm_error *error);

/* ---- normalize.c ---- */

typedef enum fm__normal_kind {
    FM__NORMAL_NFC,
    FM__NORMAL_NFD,
    FM__NORMAL_NFKC,
    FM__NORMAL_NFKD,
    FM__NORMAL_LOWER,
    FM__NORMAL_STRIP_ACCENTS,
    FM__NORMAL_STRIP_LEFT,
    FM__NORMAL_STRIP_RIGHT,
    FM__NORMAL_PREPEND,       /* `with` before text that is not empty */
    FM__NORMAL_REPLACE,       /* `what` by `with` */
    FM__NORMAL_REPLACE_REGEX, /* matches of `regex` by `with` */
    FM__NORMAL_SPACES,        /* SentencePiece's rules: see `prefix` and `merge` */
} fm__normal_kind;

typedef struct fm__normal {
    fm__normal_kind kind;
    fm__str what, with;
    fm__regex *regex;
    bool prefix; /* one space before the text */
    bool merge;  /* runs of spaces become one, outer ones go */
} fm__normal;

/* text (replaced) through all normalisers. */
fm_status fm__normalize(const fm__normal *normals, size_t n, fm__matcher *matcher, fm__buf *text,
                        fm_error *error);

/* ---- pretokenize.c ---- */

typedef enum fm__behaviour {
    FM__ISOLATED,
    FM__REMOVED,
    FM__MERGED_WITH_PREVIOUS,
    FM__MERGED_WITH_NEXT,
    FM__CONTIGUOUS,
} fm__behaviour;

typedef enum fm__step_kind {
    FM__STEP_REGEX,
    FM__STEP_LITERAL,
    FM__STEP_DIGITS_WORD, /* runs of \p{Nd} with no word character behind, by threes from the end */
    FM__STEP_DIGITS_CUT,  /* the same borders, as cuts only, for every run of \p{Nd} */
    FM__STEP_NUMBERS,     /* runs of \p{N} by threes from the end */
    FM__STEP_PREFIX_SPACE, /* a space before each piece that does not start with one */
    FM__STEP_METASPACE,    /* spaces become U+2581; prefixed as `prepend` says; cut before each */
} fm__step_kind;

typedef enum fm__prepend { FM__PREPEND_NEVER, FM__PREPEND_FIRST, FM__PREPEND_ALWAYS } fm__prepend;

typedef struct fm__step {
    fm__step_kind kind;
    fm__behaviour behaviour;
    bool invert;
    fm__str pattern; /* as the file gave it, or the literal, or Metaspace's mark */
    fm__regex *regex;
    fm__prepend prepend;
    bool split; /* METASPACE: cut before each mark */
} fm__step;

/* A step that cuts at matches of pattern; patterns whose plain form would take quadratic time are
   replaced by equivalent faster ones. */
fm_status fm__step_init_regex(fm__step *step, fm__str pattern, fm__behaviour behaviour, bool invert,
                              const char *place, fm_error *error);
void fm__step_finish(fm__step *step);
/* Cuts *text (which steps may rewrite) into *pieces. first: the text starts at the input's start.
 */
fm_status fm__pretokenize(const fm__step *steps, size_t n_steps, fm__matcher *matcher,
                          fm__buf *text, bool first, fm__pieces *pieces, fm_error *error);

/* ---- pretokenizers.c: the table of tokenizer.ggml.pre ---- */

enum {
    FM__PRE_IGNORE_MERGES = 1,
    FM__PRE_ADD_BOS = 2,
    FM__PRE_ADD_SEP = 4,
    FM__PRE_NO_BOS = 8,     /* no default BOS id */
    FM__PRE_RAW = 16,       /* tokens are spelled as text with U+2581 for spaces, not in bytes */
    FM__PRE_FORCE_BOS = 32, /* whatever tokenizer.ggml.add_bos_token says */
};

typedef struct fm__pretokenizer {
    const char *name;
    unsigned flags;
    const char *patterns[7]; /* tokenizer.json's dialect; each cuts what the one before left */
} fm__pretokenizer;

extern const fm__pretokenizer fm__pretokenizers[];
extern const size_t fm__pretokenizer_count;
const fm__pretokenizer *fm__pretokenizer_find(fm__str name);
/* GPT-2's pattern, which tokenizer.json's ByteLevel stands for. */
extern const char fm__pattern_gpt2[];
/* What tokenizer.json's Punctuation and Digits cut at. */
extern const char fm__pattern_punctuation[];
extern const char fm__pattern_number[];

/* ---- special.c: added tokens in running text ---- */

typedef struct fm__special {
    fm__str text;
    int32_t id;
    bool left_strip, right_strip, single_word;
    bool normalized; /* searched for behind the normaliser */
    bool control;    /* searched for only if the caller parses specials */
} fm__special;

/* A set of texts, sorted, for leftmost-longest search. */
typedef struct fm__special_set {
    const fm__special **sorted;
    size_t count;
    uint32_t first[257]; /* sorted[first[b]..first[b + 1]) start with byte b */
} fm__special_set;

bool fm__special_set_init(fm__special_set *set, const fm__special *specials, size_t n,
                          bool normalized, bool with_control);
void fm__special_set_finish(fm__special_set *set);
/* Where a search stands; zero-initialise. The two differ where a token swallows space behind it:
   another token may still be found in there. */
typedef struct fm__special_cursor {
    size_t scan; /* the search goes on here */
    size_t done; /* text before this belongs to what was found */
} fm__special_cursor;

/* The next token; the text between the old cursor's done and *start is not part of any. */
const fm__special *fm__special_find(const fm__special_set *set, const char *text, size_t bytes,
                                    fm__special_cursor *cursor, size_t *start);

/* Tokens that are searched for behind the normaliser: makes them look as it makes text look. */
fm_status fm__specials_normalize(fm_tokenizer *t, const char *place, fm_error *error);

/* ---- vocab.c ---- */

typedef enum fm__token_type { /* GGUF's numbers */
                              FM__TOKEN_NORMAL = 1,
                              FM__TOKEN_UNKNOWN = 2,
                              FM__TOKEN_CONTROL = 3,
                              FM__TOKEN_USER = 4,
                              FM__TOKEN_UNUSED = 5,
                              FM__TOKEN_BYTE = 6,
} fm__token_type;

typedef struct fm__token {
    fm__str spelling;  /* as the file has it, NUL-terminated */
    const char *shown; /* the spelling as valid UTF-8 */
    fm__str bytes;     /* what it adds to a text, NUL-terminated */
    double score;
    uint8_t type;
    bool end;     /* ends an answer */
    bool outside; /* an added token that the model itself does not know: never a word's result */
} fm__token;

typedef enum fm__text_model { FM__TEXT_BPE, FM__TEXT_SPM, FM__TEXT_UNIGRAM } fm__text_model;

typedef struct fm__merge {
    int32_t left, right, merged;
    uint32_t rank;
} fm__merge;

typedef struct fm__entry {
    fm__str text;
    int32_t id;
} fm__entry;

/* Ids that keys and files name; -1: none. */
typedef struct fm__named_ids {
    int32_t bos, eos, eot, eom, unknown, separator, padding, mask;
    int32_t fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep;
} fm__named_ids;

struct fm_tokenizer {
    fm__arena arena;
    fm__text_model model;
    fm__token *tokens;
    size_t n_tokens;
    /* From what running text looks like (bytes of a byte-level vocabulary, else the spelling) to
       the id; control and unknown tokens are not in it. */
    fm__map lookup;
    size_t longest; /* bytes of the longest key of lookup */
    int32_t byte_ids[256];

    bool byte_level;    /* BPE: spelled in GPT-2's byte alphabet */
    bool marks_spaces;  /* U+2581 in spellings stands for a space */
    bool byte_fallback; /* characters without a token become byte tokens */
    bool fuse_unknown;
    bool ignore_merges;
    bool whole_newlines; /* a word of newlines that is a token is taken as it is */
    fm__merge *merges;   /* in file order */
    size_t n_merges;
    uint32_t *merge_slots; /* open addressing: 1 + index into merges, 0 empty */
    size_t n_merge_slots;  /* a power of two */

    fm__entry *sorted; /* unigram: what is in lookup, by key */
    size_t n_sorted;
    uint32_t sorted_first[257]; /* where each first byte starts in sorted */
    double unknown_score;

    fm__normal *normals;
    size_t n_normals;
    fm__step *steps;
    size_t n_steps;
    fm__special *specials;
    size_t n_specials;
    fm__special_set sets[2][2]; /* [behind the normaliser][with control tokens] */

    fm__named_ids ids;
    fm__ids ends;            /* ids that files list as ending an answer, besides the named ones */
    fm__ids before, after;   /* what ADD_SPECIAL puts around a text */
    bool decode_drops_space; /* one space at the very start of decoded text */
    bool from_gguf;
    const char *pre; /* tokenizer.ggml.pre where it came from there; NULL else */
};

fm_status fm__vocab_create(fm_tokenizer **out, size_t n_tokens, const char *place, fm_error *error);
/* Adds a normal, user-defined, ... token's spelling (copied). */
fm_status fm__vocab_set(fm_tokenizer *t, size_t id, fm__str spelling, double score,
                        fm__token_type type, const char *place, fm_error *error);
/* Raw bytes of every token and the lookup. Needs model and byte_level. */
fm_status fm__vocab_index(fm_tokenizer *t, const char *place, fm_error *error);
/* After the loader has filled everything: specials, ends, sorted prefixes. */
fm_status fm__vocab_finish(fm_tokenizer *t, const char *place, fm_error *error);
/* Room for n merges; then fm__vocab_add_merge() for each, in order. */
fm_status fm__vocab_reserve_merges(fm_tokenizer *t, size_t n, const char *place, fm_error *error);
/* left and right as the file spells them. *known 0: one of the three tokens is not in the
   vocabulary, and nothing was added. */
fm_status fm__vocab_add_merge(fm_tokenizer *t, fm__str left, fm__str right, uint32_t rank,
                              bool *known, const char *place, fm_error *error);
const fm__merge *fm__vocab_merge(const fm_tokenizer *t, int32_t left, int32_t right);
/* The id that running text `key` has, or -1. */
int32_t fm__vocab_find(const fm_tokenizer *t, fm__str key);
/* The id whose spelling this is, whatever its type; -1. Slow (linear). */
int32_t fm__vocab_spelled(const fm_tokenizer *t, fm__str spelling);

/* ---- bpe.c, sentencepiece.c: words to ids ---- */

typedef struct fm__symbol {
    int32_t id; /* -1: none yet */
    int32_t previous, next;
    uint32_t at, bytes;
} fm__symbol;

typedef struct fm__candidate {
    uint64_t order; /* less first: rank or inverted score, then position */
    int32_t left, left_id, right_id;
    uint32_t bytes;
    int32_t merged;
} fm__candidate;

/* Scratch of one encoding; zero-initialise. */
typedef struct fm__work {
    fm__symbol *symbols;
    size_t symbol_capacity;
    fm__candidate *heap;
    size_t heap_count, heap_capacity;
    uint64_t steps; /* heap operations so far, for tests of the running time */
    void *best;     /* unigram's table */
    size_t best_bytes;
} fm__work;

void fm__work_finish(fm__work *work);
bool fm__work_symbols(fm__work *work, size_t n);
bool fm__heap_push(fm__work *work, const fm__candidate *candidate);
bool fm__heap_pop(fm__work *work, fm__candidate *out);

fm_status fm__bpe_encode(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                         fm_error *error);
fm_status fm__spm_encode(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                         fm_error *error);
fm_status fm__unigram_encode(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                             fm_error *error);
/* Byte tokens for text that has no token; else the unknown token, one for a run of them if
   fuse_unknown; else FORMAT naming the byte. */
fm_status fm__encode_unknown(const fm_tokenizer *t, fm__str text, fm__ids *out, fm_error *error);
/* One word of the model's kind. */
fm_status fm__encode_word(const fm_tokenizer *t, fm__work *work, fm__str word, fm__ids *out,
                          fm_error *error);

/* ---- loaders ---- */

fm_status fm__tokenizer_from_gguf(fm_tokenizer **out, const fm__checkpoint *checkpoint,
                                  fm_error *error);
/* What tokenizer.json needs beside itself; each may be NULL. */
typedef struct fm__hf_texts {
    fm__str json, tokenizer_config, generation_config, config;
} fm__hf_texts;
fm_status fm__tokenizer_from_hf(fm_tokenizer **out, const fm__hf_texts *texts, const char *place,
                                fm_error *error);

/* hf_pipeline.c: normalizer, pre_tokenizer, decoder and post_processor of tokenizer.json. json_t is
   jansson's. */
struct json_t;
fm_status fm__hf_normalizer(fm_tokenizer *t, const struct json_t *normalizer, const char *place,
                            fm_error *error);
fm_status fm__hf_pre_tokenizer(fm_tokenizer *t, const struct json_t *pre_tokenizer,
                               const char *place, fm_error *error);
fm_status fm__hf_decoder(fm_tokenizer *t, const struct json_t *decoder, const char *place,
                         fm_error *error);
fm_status fm__hf_post_processor(fm_tokenizer *t, const struct json_t *post_processor,
                                const char *place, fm_error *error);
/* Adds an empty step or normaliser; NULL: out of memory. */
fm__step *fm__add_step(fm_tokenizer *t);
fm__normal *fm__add_normal(fm_tokenizer *t, fm__normal_kind kind);
