/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/pretokenizers.c: the table of tokenizer.ggml.pre: which patterns cut a text into words.
 *
 * Owns: names, patterns and defaults, as constants. Never does: compiling. Called from: loading
 * threads. Patterns are those of the models' own tokenizer.json files, so that a pipeline read from
 * such a file can be found here by comparison; each cuts what the one before left. Of entries with
 * equal patterns the first is the one that converted files are named after.
 */
#include "text/internal.h"

/* ---- parts that patterns share ---- */

#define ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MARKS_LINES " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"

#define LLAMA3 ENGLISH "|" LETTERS "|\\p{N}{1,3}|" MARKS_LINES "|" SPACES
#define QWEN2 ENGLISH "|" LETTERS "|\\p{N}|" MARKS_LINES "|" SPACES
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Words in two cases, as the o200k family cuts them. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(tail)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER    \
    "*" tail
#define MARKS_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define GPT4O CASED(ENGLISH "?") "|\\p{N}{1,3}|" MARKS_SLASH "|" SPACES
#define TEKKEN CASED("") "|\\p{N}|" MARKS_SLASH "|" SPACES

/* The same two cases without Han, written as what is left of all categories. */
#define UPPER_NOT_HAN "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{Han}]"
#define LOWER_NOT_HAN "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{Han}]"
#define KIMI                                                                                       \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" UPPER_NOT_HAN "*" LOWER_NOT_HAN "+" ENGLISH               \
    "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER_NOT_HAN "+" LOWER_NOT_HAN "*" ENGLISH                         \
    "?|\\p{N}{1,3}|" MARKS_LINES "|" SPACES

#define DEEPSEEK_MAIN                                                                              \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define DEEPSEEK3 "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_MAIN
#define CJK "[一-龥ࠀ-一가-\xed\x9f\xbf]+"
/* The letters that DeepSeek LLM listed one range after the other. */
#define DEEPSEEK_LETTERS                                                                                                                         \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-"                                                \
    "ՖႠ"                                                                                                                                      \
    "-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-"              \
    "ῄῆ-"                                                                                                                                    \
    "ῌῐ-"                                                                                                                                    \
    "ΐ"                                                                                                                                        \
    "ῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-" \
    "ꚛꜢ-"                                                                                                                                    \
    "ꝯ"                                                                                                                                        \
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-"                                        \
    "𑣟𞤀-"                                                                                                                                  \
    "𞥃]"                                                                                                                                      \
    "+"
#define BLOOM " ?[^(\\s|.,!?…。，、।۔،)]+"
#define STARCODER "\\p{N}", GPT2
#define LINES "[^\\n]+|[\\n]+"

const char fm__pattern_gpt2[] = GPT2;
const char fm__pattern_punctuation[] = "[\\p{P}\\$\\+<=>\\^~\\|`]";
const char fm__pattern_number[] = "\\p{N}";

#define LLAMA3_FLAGS (FM__PRE_IGNORE_MERGES | FM__PRE_ADD_BOS)

const fm__pretokenizer fm__pretokenizers[] = {
    {"llama-bpe", LLAMA3_FLAGS, {LLAMA3}},
    {"llama3", LLAMA3_FLAGS, {LLAMA3}},
    {"llama-v3", LLAMA3_FLAGS, {LLAMA3}},
    {"falcon3", LLAMA3_FLAGS, {LLAMA3}},
    {"falcon-h1", LLAMA3_FLAGS, {LLAMA3}},
    {"pixtral", LLAMA3_FLAGS, {LLAMA3}},
    {"midm-2.0", LLAMA3_FLAGS, {LLAMA3}},
    {"lfm2", LLAMA3_FLAGS, {LLAMA3}},
    {"jina-v5-nano", LLAMA3_FLAGS, {LLAMA3}},
    {"dbrx", 0, {LLAMA3}},
    {"smaug-bpe", 0, {LLAMA3}},
    {"glm4", FM__PRE_NO_BOS, {LLAMA3}},
    {"chatglm-bpe", FM__PRE_NO_BOS, {LLAMA3}},
    {"minicpm5",
     FM__PRE_IGNORE_MERGES,
     {"\\p{N}{1,3}", ENGLISH "|" LETTERS "|\\p{N}+|" MARKS_LINES "|" SPACES}},
    {"jais-2",
     0,
     {ENGLISH "|" LETTERS "|\\p{N}{1,3}|" MARKS_LINES
              "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|"
              "\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"}},

    {"qwen2", 0, {QWEN2}},
    {"deepseek-r1-qwen", 0, {QWEN2}},
    {"kormo", 0, {QWEN2}},
    {"f2llmv2", 0, {QWEN2}},
    {"megrez", 0, {QWEN2}},
    {"stablelm2", 0, {QWEN2}},
    {"hunyuan", 0, {QWEN2}},
    {"solar-open", 0, {QWEN2}},
    {"grok-2", 0, {QWEN2}},
    {"laguna", 0, {LINES, QWEN2}},
    {"qwen35",
     0,
     {ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
              "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"bailingmoe",
     0,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
      "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"bailingmoe2",
     0,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
      "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"llada-moe",
     0,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
      "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"seed-coder", 0, {ENGLISH "|" LETTERS "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES}},
    {"exaone-moe",
     0,
     {ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
              "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},

    {"gpt-2", 0, {GPT2}},
    {"gpt2", 0, {GPT2}},
    {"phi-2", 0, {GPT2}},
    {"mpt", 0, {GPT2}},
    {"olmo", 0, {GPT2}},
    {"jais", 0, {GPT2}},
    {"trillion", 0, {GPT2}},
    {"granite-docling", 0, {GPT2}},
    {"exaone4", 0, {GPT2}},
    {"gigachat", 0, {GPT2}},
    {"a.x-4.0", 0, {GPT2}},
    {"mellum", 0, {GPT2}},
    {"modern-bert", 0, {GPT2}},
    {"jina-es", 0, {GPT2}},
    {"jina-de", 0, {GPT2}},
    {"jina-v2-es", 0, {GPT2}},
    {"jina-v2-de", 0, {GPT2}},
    {"jina-v1-en", FM__PRE_ADD_SEP, {GPT2}},
    {"jina-v2-code", FM__PRE_ADD_SEP, {GPT2}},
    {"roberta-bpe", FM__PRE_ADD_SEP, {GPT2}},
    {"starcoder", 0, {STARCODER}},
    {"refact", 0, {STARCODER}},
    {"command-r", 0, {STARCODER}},
    {"smollm", 0, {STARCODER}},
    {"codeshell", 0, {STARCODER}},
    {"exaone", 0, {STARCODER}},
    {"minerva-7b", 0, {STARCODER}},
    {"mellum2", 0, {STARCODER}},
    {"falcon", 0, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"default", 0, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"chameleon",
     FM__PRE_ADD_BOS,
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},

    {"gpt-4o", 0, {GPT4O}},
    {"llama4", 0, {GPT4O}},
    {"kanana2", 0, {GPT4O}},
    {"talkie", 0, {GPT4O}},
    {"minimax-m2", 0, {GPT4O}},
    {"granite-embed-multi-97m", FM__PRE_IGNORE_MERGES, {GPT4O}},
    {"tiny_aya", 0, {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}},
    {"cohere2moe", 0, {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}},
    {"tekken", LLAMA3_FLAGS, {TEKKEN}},
    {"kimi-k2", 0, {KIMI}},
    {"youtu",
     FM__PRE_IGNORE_MERGES,
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-"
      "ゟ゠-"
      "ヿ]"
      "+",
      CASED(ENGLISH "?") "|\\p{N}|" MARKS_SLASH "|" SPACES}},

    {"deepseek-llm",
     0,
     {"[\\r\\n]", DEEPSEEK_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", CJK, "\\p{N}+"}},
    {"deepseek-coder", 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}},
    {"deepseek-v3", 0, {DEEPSEEK3}},
    {"hunyuan-dense", 0, {DEEPSEEK3}},
    {"joyai-llm", 0, {DEEPSEEK3}},
    {"afmoe",
     0,
     {"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
      "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-"
      "힯ᄀ-"
      "ᇿ]"
      "+",
      DEEPSEEK_MAIN}},
    {"superbpe", 0, {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},

    {"bloom", 0, {BLOOM}},
    {"gpt3-finnish", 0, {BLOOM}},
    {"poro-chat", 0, {BLOOM}},
    {"viking", 0, {BLOOM, "\\p{N}"}},

    {"gemma4", FM__PRE_RAW | FM__PRE_FORCE_BOS, {LINES}},
    {"granite-embed-multi-311m", FM__PRE_RAW | FM__PRE_FORCE_BOS, {LINES}},
    {"sarvam-moe", FM__PRE_RAW, {LINES}},
};

const size_t fm__pretokenizer_count = sizeof fm__pretokenizers / sizeof *fm__pretokenizers;

const fm__pretokenizer *fm__pretokenizer_find(fm__str name) {
    for (size_t i = 0; i < fm__pretokenizer_count; i++)
        if (fm__str_is(name, fm__pretokenizers[i].name))
            return &fm__pretokenizers[i];
    return NULL;
}
