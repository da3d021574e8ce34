/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: one table of options, and the parser that reads it. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef enum kind { FLAG, TEXT, TEXTS, U32, U64, REAL, CHOICE } kind;

typedef struct option {
    const char *name;   /* without dashes */
    const char *letter; /* "-m", or NULL */
    kind kind;
    const char *argument; /* NULL for a flag */
    const char *help;
    size_t offset;              /* of the field in cli_args */
    size_t set_offset;          /* of its bool "was given", or 0 */
    double least, most;         /* U32 and REAL */
    const char *const *choices; /* CHOICE: NULL-terminated, in the order of the enum */
    const char *id;             /* how commands call it; NULL: its name */
} option;

#define AT(field) offsetof(cli_args, field)

/* In the order of fm_axis, fm_deps, fm_weights and fm_arm. */
static const char *const axes[] = {"channels", "tokens", "auto", "products", NULL};
static const char *const deps[] = {"event", "batch", "eager", "ready", NULL};
static const char *const weights[] = {"auto", "resident", "shared", "streamed", NULL};
static const char *const arms[] = {"auto", "cpu", "gpu", "gpu-eager", "split", NULL};
static const char *const caches[] = {"f16", "q8_0", NULL}; /* in the order of fm_cache_type */
static const char *const formats[] = {"md", "csv", "json", "jsonl", NULL};

/* Where a command takes two options of one letter, the letter means the first. */
static const option options[] = {
    {"model", "-m", TEXTS, "PATH",
     "a .gguf file or a Hugging Face folder; may be repeated, or a list (default: the embedded one)",
     AT(models), 0, 0, 0, NULL, "models"},
    {"n-prompt", "-p", TEXTS, "LIST", "prompt lengths in tokens (default 512; 0: none)",
     AT(n_prompt), 0, 0, 0, NULL, NULL},
    {"n-gen", "-n", TEXTS, "LIST", "tokens to generate (default 128; 0: none)", AT(n_gen), 0, 0, 0,
     NULL, NULL},
    {"prompt-gen", "-pg", TEXTS, "PP,TG", "a prompt and the tokens behind it, timed together",
     AT(n_pair), 0, 0, 0, NULL, NULL},
    {"n-depth", "-d", TEXTS, "LIST",
     "tokens in the context before each test, not timed (default 0)", AT(n_depth), 0, 0, 0, NULL,
     NULL},
    {"batch-size", "-b", TEXTS, "LIST", "tokens of a prompt that one call gets (default 2048)",
     AT(n_batch), 0, 0, 0, NULL, NULL},
    {"ubatch-size", "-ub", TEXTS, "LIST", "rows of one tape run (default 512)", AT(n_ubatch), 0, 0,
     0, NULL, NULL},
    {"threads", "-t", TEXTS, "LIST", "CPU threads (default: one a physical core)", AT(n_threads), 0,
     0, 0, NULL, "thread-counts"},
    {"ubatch-size", "-ub", U32, "N",
     "rows of one run: long prompts go in such pieces (default 512)", AT(ubatch), 0, 1, 8192, NULL,
     "ubatch"},
    {"output", "-o", CHOICE, "FORMAT", "md, csv, json or jsonl on stdout (default md)", AT(format),
     0, 0, 0, formats, "format"},
    {"output-err", "-oe", CHOICE, "FORMAT", "the same on stderr (default: none)", AT(error_format),
     AT(error_format_set), 0, 0, formats, NULL},
    {"delay", NULL, U32, "S", "seconds to wait before each test", AT(delay), 0, 0, 3600, NULL,
     NULL},
    {"no-warmup", NULL, FLAG, NULL, "no untimed run before each test", AT(no_warmup), 0, 0, 0, NULL,
     NULL},
    {"progress", NULL, FLAG, NULL, "say on stderr which test begins", AT(progress), 0, 0, 0, NULL,
     NULL},
    {"verbose", "-v", FLAG, NULL, "what the library logs, on stderr", AT(verbose), 0, 0, 0, NULL,
     NULL},
    {"op", NULL, TEXT, "LIST",
     "linear, attention, rmsnorm, rope, quantise, glu, add, kv_store, roof (default: all)", AT(ops),
     0, 0, 0, NULL, NULL},
    {"type", NULL, TEXT, "LIST", "weight types of linear (default: all)", AT(types), 0, 0, 0, NULL,
     "types"},
    {"rung", NULL, TEXT, "LIST", "kernel rungs (default: all but ref)", AT(rungs), 0, 0, 0, NULL,
     NULL},
    {"shape", NULL, TEXT, "LIST", "0.5b, 1b, 7b (default), or NxK of one product", AT(shapes), 0, 0,
     0, NULL, "shapes"},
    {"tokens", NULL, TEXT, "LIST", "rows of the activations (default 1,512)", AT(token_list), 0, 0,
     0, NULL, NULL},
    {"depth", NULL, U32, "N",
     "keys before attention's first row (default: 1024 for fewer than 64 rows, else 0)", AT(depth),
     AT(depth_set), 0, 1 << 20, NULL, NULL},
    {"model", "-m", TEXT, "PATH", "a .gguf file or a Hugging Face folder", AT(model), 0, 0, 0, NULL,
     NULL},
    {"prompt", "-p", TEXT, "TEXT", "the text", AT(prompt), 0, 0, 0, NULL, NULL},
    {"file", "-f", TEXT, "FILE", "read the text from FILE (\"-\": stdin)", AT(file), 0, 0, 0, NULL,
     NULL},
    {"output", "-o", TEXT, "FILE", "file to write", AT(out), 0, 0, 0, NULL, NULL},
    {"predict", "-n", U32, "N", "tokens to generate", AT(predict), AT(predict_set), 0, INT_MAX,
     NULL, NULL},
    {"ctx-size", "-c", U32, "N", "context in tokens (default: the model's, at most 4096)",
     AT(context), 0, 1, INT_MAX, NULL, NULL},
    {"cache-type", "-ct", CHOICE, "TYPE", "keys and values as f16 or q8_0 (default f16)",
     AT(cache_type), AT(cache_type_set), 0, 0, caches, NULL},
    {"cache-type-k", "-ctk", CHOICE, "TYPE", "of keys, as llama.cpp has it: the same as -ctv",
     AT(key_type), AT(key_type_set), 0, 0, caches, NULL},
    {"cache-type-v", "-ctv", CHOICE, "TYPE", "of values: the same as -ctk", AT(value_type),
     AT(value_type_set), 0, 0, caches, NULL},
    {"threads", "-t", U32, "N", "CPU threads (default: one a physical core)", AT(threads), 0, 1,
     1024, NULL, NULL},
    {"temp", NULL, REAL, "X", "temperature, 0: greedy (default 0.8)", AT(temperature), 0, 0, 1e6,
     NULL, NULL},
    {"top-k", NULL, U32, "N", "keep the N likeliest, 0: off (default 40)", AT(top_k), 0, 0, INT_MAX,
     NULL, NULL},
    {"top-p", NULL, REAL, "X", "keep the likeliest that sum to X (default 0.95)", AT(top_p), 0, 0,
     1, NULL, NULL},
    {"min-p", NULL, REAL, "X", "keep those above X of the likeliest (default 0.05)", AT(min_p), 0,
     0, 1, NULL, NULL},
    {"repeat-penalty", NULL, REAL, "X", "divide repeated tokens' logits, 1: off (default 1)",
     AT(repeat_penalty), 0, 1e-6, 1e6, NULL, NULL},
    {"repeat-last-n", NULL, U32, "N", "tokens that count as repeated (default 64)",
     AT(repeat_last_n), 0, 0, INT_MAX, NULL, NULL},
    {"seed", "-s", U64, "N", "seed of the random values (default 0)", AT(seed), AT(seed_set), 0, 0,
     NULL, NULL},
    {"stop", NULL, TEXTS, "TEXT", "end the answer before TEXT (may be repeated)", AT(stops), 0, 0,
     0, NULL, NULL},
    {"cpu", NULL, TEXT, "RUNG",
     "kernel rung: ref, avx2, avxvnni, avx512, amx, neon (default: the best)", AT(cpu), 0, 0, 0,
     NULL, NULL},
    {"class", NULL, TEXT, "CLASS",
     "numeric class: exact or fast (default: exact for quantised weights, else fast)",
     AT(numeric_class), 0, 0, 0, NULL, NULL},
    {"memory", NULL, U32, "MIB", "memory budget in MiB (default: 90 % of what is available)",
     AT(memory_mib), 0, 1, INT_MAX, NULL, NULL},
    {"type", NULL, TEXT, "TYPE", "weight type or mixture; see below", AT(type), 0, 0, 0, NULL,
     NULL},
    {"shape", NULL, TEXT, "SHAPE", "qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, llama-3.2-1b, tiny",
     AT(shape), 0, 0, 0, NULL, NULL},
    {"ids", NULL, TEXT, "FILE", "one JSON array of token ids a line", AT(ids), 0, 0, 0, NULL, NULL},
    {"reference", NULL, TEXT, "JSON", "reference outputs (tokenizer vectors, greedy tokens)",
     AT(reference), 0, 0, 0, NULL, NULL},
    {"margin", NULL, REAL, "X",
     "--reference: compare greedy tokens where it leads by at least X (default: everywhere)",
     AT(margin), AT(margin_set), 0, 1e6, NULL, NULL},
    {"tolerance", NULL, REAL, "X",
     "DIR: largest allowed |logit difference| (default: exact 0.01, fast 0.1; cache of q8_0: 0.2)",
     AT(tolerance), AT(tolerance_set), 0, 1e6, NULL, NULL},
    {"repetitions", "-r", U32, "N", "timed repetitions (default 3)", AT(repeats), AT(repeats_set),
     1, 1000, NULL, NULL},
    {"special", NULL, FLAG, NULL, "add BOS/EOS and parse special tokens", AT(special), 0, 0, 0,
     NULL, NULL},
    {"json", NULL, FLAG, NULL, "one JSON object on stdout", AT(json), 0, 0, 0, NULL, NULL},
    {"echo", NULL, FLAG, NULL, "print the prompt before its continuation", AT(echo), 0, 0, 0, NULL,
     NULL},
    {"placement", NULL, FLAG, NULL, "print where each layer ran", AT(placement), 0, 0, 0, NULL,
     NULL},
    {"keys", NULL, FLAG, NULL, "only the metadata keys", AT(keys), 0, 0, 0, NULL, NULL},
    {"tensors", NULL, FLAG, NULL, "only the tensors", AT(tensors), 0, 0, 0, NULL, NULL},
    {"device", "-d", TEXT, "LIST",
     "units, the main one first: host, host:0-3, host:p, host:e, vulkan:N (default: auto); a list "
     "without a host gets one, last",
     AT(devices), 0, 0, 0, NULL, NULL},
    {"split", NULL, REAL, "SHARE",
     "share of the last unit in products, 0 to 1 (default: as calibrated)", AT(split), 0, 0, 1,
     NULL, NULL},
    {"axis", NULL, CHOICE, "AXIS",
     "what a split divides: auto, channels, tokens, products (default: auto)", AT(axis),
     AT(axis_set), 0, 0, axes, NULL},
    {"deps", NULL, CHOICE, "MODE", "how units wait: event, batch, eager, ready (default: event)",
     AT(deps), 0, 0, 0, deps, NULL},
    {"weights", NULL, CHOICE, "WHERE",
     "a GPU's weights: auto, resident, shared, streamed (default: auto)", AT(weights), 0, 0, 0,
     weights, NULL},
    {"arm", NULL, CHOICE, "ARM", "way to run: auto, cpu, gpu, gpu-eager, split (default: auto)",
     AT(arm), 0, 0, 0, arms, NULL},
    {"no-gate", NULL, FLAG, NULL, "keep the arm that is predicted to be best; measure none",
     AT(no_gate), 0, 0, 0, NULL, NULL},
    {"gate-log", NULL, TEXT, "FILE", "one JSON line for each decision of the gate", AT(gate_log), 0,
     0, 0, NULL, NULL},
    {"explain", NULL, FLAG, NULL, "print the plans; without a prompt nothing is run", AT(explain),
     0, 0, 0, NULL, NULL},
    {"rows", NULL, U32, "N", "rows of the product (default 512)", AT(rows), 0, 1, 1 << 20, NULL,
     NULL},
    {"k", NULL, U32, "N", "columns of its input (default 1600)", AT(k), 0, 1, 1 << 20, NULL, NULL},
    {"n", NULL, U32, "N", "columns of its output (default 6400)", AT(n), 0, 1, 1 << 20, NULL, NULL},
    {"trials", NULL, U32, "N", "timed trials of each case (default 20)", AT(trials), 0, 1, 10000,
     NULL, NULL},
    {"warmup", NULL, U32, "N", "untimed trials before (default 5)", AT(warmup), 0, 1, 10000, NULL,
     NULL},
    {"arms", NULL, TEXT, "LIST", "arms to compare (default: all that the machine has)", AT(arms), 0,
     0, 0, NULL, NULL},
    {"lengths", "-p", TEXTS, "LIST", "prompt lengths in tokens (default 64,128,256,512)",
     AT(n_prompt), 0, 0, 0, NULL, NULL},
    {"force", NULL, FLAG, NULL, "replace a file of that name", AT(force), 0, 0, 0, NULL, NULL},
    {"svg", NULL, TEXT, "FILE", "write the curves as an SVG picture", AT(svg), 0, 0, 0, NULL, NULL},
};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static bool takes(const cli_command *command, const option *o) {
    for (const char *const *name = command->options; *name != NULL; name++)
        if (strcmp(*name, o->id != NULL ? o->id : o->name) == 0)
            return true;
    return false;
}

/* Finds the option that `word` names; *value is what follows "=" or NULL. A letter that this
   command does not take may be another's. */
static const option *find(const cli_command *command, const char *word, const char **value) {
    *value = NULL;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const option *o = &options[i];
        if (o->letter != NULL && strcmp(word, o->letter) == 0 && takes(command, o))
            return o;
        size_t n = strlen(o->name);
        if (strncmp(word, "--", 2) != 0 || strncmp(word + 2, o->name, n) != 0 || !takes(command, o))
            continue;
        if (word[2 + n] == '\0')
            return o;
        if (word[2 + n] == '=') {
            *value = word + 2 + n + 1;
            return o;
        }
    }
    return NULL;
}

static bool bad_value(const cli_command *command, const option *o, const char *text) {
    fprintf(stderr, "fusionml %s: --%s: \"%s\" is not ", command->name, o->name, text);
    if (o->kind == CHOICE) {
        fprintf(stderr, "one of");
        for (const char *const *c = o->choices; *c != NULL; c++)
            fprintf(stderr, "%s %s", c == o->choices ? "" : ",", *c);
        fputc('\n', stderr);
    } else if (o->kind == U64)
        fprintf(stderr, "a whole number from 0 to %lld\n", (long long)INT64_MAX);
    else
        fprintf(stderr, "a%s number from %.10g to %.10g\n", o->kind == U32 ? " whole" : "",
                o->least, o->most);
    return false;
}

static bool store(const cli_command *command, const option *o, const char *text, cli_args *args) {
    char *field = (char *)args + o->offset, *end = NULL;
    errno = 0;
    switch (o->kind) {
    case FLAG:
        *(bool *)field = true;
        break;
    case TEXT:
        *(const char **)field = text;
        break;
    case TEXTS: {
        cli_texts *texts = (cli_texts *)field;
        if (texts->n == CLI_MAX_TEXTS) {
            fprintf(stderr, "fusionml %s: --%s: at most %d\n", command->name, o->name,
                    CLI_MAX_TEXTS);
            return false;
        }
        texts->text[texts->n++] = text;
        break;
    }
    case U32:
    case U64: {
        unsigned long long v = strtoull(text, &end, 10);
        if (errno != 0 || end == text || *end != '\0' || strchr(text, '-') != NULL)
            return bad_value(command, o, text);
        if (o->kind == U64) {
            if (v > INT64_MAX) /* JSON readers keep no more */
                return bad_value(command, o, text);
            *(uint64_t *)field = v;
            break;
        }
        if ((double)v < o->least || (double)v > o->most)
            return bad_value(command, o, text);
        *(uint32_t *)field = (uint32_t)v;
        break;
    }
    case REAL: {
        double v = strtod(text, &end);
        if (errno == ERANGE || end == text || *end != '\0' || !isfinite(v) || v < o->least ||
            v > o->most)
            return bad_value(command, o, text);
        *(double *)field = v;
        break;
    }
    case CHOICE: {
        int v = 0;
        while (o->choices[v] != NULL && strcmp(o->choices[v], text) != 0)
            v++;
        if (o->choices[v] == NULL)
            return bad_value(command, o, text);
        *(int *)field = v;
        break;
    }
    }
    if (o->set_offset != 0)
        *(bool *)((char *)args + o->set_offset) = true;
    return true;
}

/* Whether the command names the word as one that it does not take, and says why. */
static bool refuse(const cli_command *command, const char *word) {
    size_t bytes = strcspn(word, "=");
    for (const cli_refusal *r = command->refused; r != NULL && r->words != NULL; r++)
        for (const char *at = r->words; *at != '\0'; at += strspn(at, " ")) {
            size_t n = strcspn(at, " ");
            if (n == bytes && strncmp(at, word, n) == 0) {
                fprintf(stderr, "fusionml %s: %.*s: not supported: %s\n", command->name, (int)n, at,
                        r->reason);
                return true;
            }
            at += n;
        }
    return false;
}

static void set_defaults(cli_args *args) {
    fm_sampler_options sampler = fm_sampler_options_default();
    *args = (cli_args){0};
    args->temperature = sampler.temperature;
    args->top_k = sampler.top_k;
    args->top_p = sampler.top_p;
    args->min_p = sampler.min_p;
    args->repeat_penalty = sampler.repeat_penalty;
    args->repeat_last_n = sampler.repeat_last_n;
    args->repeats = 3;
    args->split = -1;
}

/* --cache-type, or both of its llama.cpp spellings, or all three alike. */
static bool settle_cache_type(const cli_command *command, cli_args *args) {
    int k = args->key_type_set ? args->key_type : args->cache_type;
    int v = args->value_type_set ? args->value_type : args->cache_type;
    if (args->cache_type_set && (k != args->cache_type || v != args->cache_type)) {
        const bool keys = k != args->cache_type;
        fprintf(stderr, "fusionml %s: --cache-type %s and %s %s contradict each other\n",
                command->name, caches[args->cache_type], keys ? "-ctk" : "-ctv",
                caches[keys ? k : v]);
        return false;
    }
    if (k != v) {
        fprintf(stderr,
                "fusionml %s: keys as %s and values as %s: not supported: both are kept alike; "
                "--cache-type sets both\n",
                command->name, caches[k], caches[v]);
        return false;
    }
    args->cache_type = k;
    return true;
}

bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *args, bool *help) {
    bool only_positional = false;
    set_defaults(args);
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i], *value = NULL;
        if (!only_positional && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            *help = true;
            return true;
        }
        if (!only_positional && strcmp(word, "--") == 0) {
            only_positional = true;
            continue;
        }
        if (only_positional || word[0] != '-' || word[1] == '\0') {
            if (args->n_positional == command->positional_max) {
                fprintf(stderr, "fusionml %s: \"%s\" is not expected; see --help\n", command->name,
                        word);
                return false;
            }
            args->positional[args->n_positional++] = word;
            continue;
        }
        const option *o = find(command, word, &value);
        /* a short spelling of --ctx-size */
        if (o == NULL && (strcmp(word, "--ctx") == 0))
            o = find(command, "--ctx-size", &value);
        if (o == NULL && refuse(command, word))
            return false;
        if (o == NULL) {
            fprintf(stderr, "fusionml %s: no option %s; see --help\n", command->name, word);
            return false;
        }
        if (o->kind == FLAG && value != NULL) {
            fprintf(stderr, "fusionml %s: --%s takes no value\n", command->name, o->name);
            return false;
        }
        if (o->kind != FLAG && value == NULL) {
            if (i + 1 == argc) {
                fprintf(stderr, "fusionml %s: %s needs %s\n", command->name, word, o->argument);
                return false;
            }
            value = argv[++i];
        }
        if (!store(command, o, value, args))
            return false;
    }
    return settle_cache_type(command, args);
}

/* ---- lists of numbers ---- */

static bool bad_list(const char *name, const char *text, uint32_t least, uint32_t most) {
    cli_fail_text(
        "%s: \"%s\" is not a list of at most %d whole numbers from %u to %u, or of ranges "
        "1-4, 0-8+2, 16-256*2",
        name, text, CLI_MAX_NUMBERS, least, most);
    return false;
}

/* One number at *at, which moves on. */
static bool read_number(const char **at, uint32_t least, uint32_t most, uint32_t *out) {
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    unsigned long long v = strtoull(*at, &end, 10);
    *at = end;
    *out = (uint32_t)v;
    return errno == 0 && v >= least && v <= most;
}

/* "5", "1-4", "0-8+2" or "16-256*2" at *at, which moves on. */
static bool read_range(const char **at, uint32_t least, uint32_t most,
                       uint32_t out[CLI_MAX_NUMBERS], uint32_t *n) {
    uint32_t first, last, step = 1;
    bool times = false;
    if (!read_number(at, least, most, &first))
        return false;
    last = first;
    if (**at == '-') {
        ++*at;
        if (!read_number(at, first, most, &last))
            return false;
        times = **at == '*';
        if (**at == '*' || **at == '+') {
            ++*at;
            if (!read_number(at, times ? 2 : 1, most, &step))
                return false;
        }
    }
    for (uint64_t v = first; v <= last; v = times ? v * step : v + step) {
        if (*n == CLI_MAX_NUMBERS || (times && v == 0))
            return false;
        out[(*n)++] = (uint32_t)v;
    }
    return true;
}

bool cli_numbers(const char *name, const cli_texts *texts, uint32_t least, uint32_t most,
                 uint32_t out[CLI_MAX_NUMBERS], uint32_t *n) {
    for (uint32_t i = 0; i < texts->n; i++) {
        const char *at = texts->text[i];
        bool good = read_range(&at, least, most, out, n);
        while (good && *at == ',') {
            at++;
            good = read_range(&at, least, most, out, n);
        }
        if (!good || *at != '\0')
            return bad_list(name, texts->text[i], least, most);
    }
    return true;
}

/* Whether an option before o in the table has its letter in this command. */
static bool letter_taken(const cli_command *command, const option *o) {
    for (const option *other = options; other < o; other++)
        if (other->letter != NULL && strcmp(other->letter, o->letter) == 0 && takes(command, other))
            return true;
    return false;
}

static const char *help_of(const cli_command *command, const char *id, const option *o) {
    for (const cli_wording *w = command->wording; w != NULL && w->option != NULL; w++)
        if (strcmp(w->option, id) == 0)
            return w->help;
    return o->help;
}

void cli_help(const cli_command *command) {
    printf("usage: fusionml %s %s\n\n%s.\n\n", command->name, command->usage, command->summary);
    for (const char *const *name = command->options; *name != NULL; name++) {
        for (size_t i = 0; i < N_OPTIONS; i++) {
            const option *o = &options[i];
            if (strcmp(o->id != NULL ? o->id : o->name, *name) != 0)
                continue;
            char left[48];
            bool letter = o->letter != NULL && !letter_taken(command, o);
            snprintf(left, sizeof left, "%s%s--%s%s%s", letter ? o->letter : "    ",
                     letter ? ", " : "", o->name, o->argument != NULL ? " " : "",
                     o->argument != NULL ? o->argument : "");
            printf("  %-28s %s\n", left, help_of(command, *name, o));
        }
    }
    if (command->details[0] != '\0')
        printf("\n%s", command->details);
}
