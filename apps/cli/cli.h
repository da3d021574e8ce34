/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h: what the subcommands of `fusionml` share: the option table, opening a model, reading
 * input, progress and exit codes. Results go to stdout, everything else to stderr.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fusionml/fusionml.h"

/* INTERRUPTED: Ctrl-C came before the job was done, whatever was printed of it. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };
/* The longest context that a model may declare, 2^24 tokens, of 16 bytes each. */
enum { CLI_MOST_INPUT = 256 << 20 };
enum { CLI_MAX_TEXTS = 16, CLI_MAX_NUMBERS = 64, CLI_MAX_POSITIONAL = 2 };

/* The values of an option that may be repeated, as they were given. */
typedef struct cli_texts {
    const char *text[CLI_MAX_TEXTS];
    uint32_t n;
} cli_texts;

/* Every option of every subcommand; cli_parse() fills it from the table in options.c. */
typedef struct cli_args {
    const char *model;
    const char *prompt;
    const char *file;
    const char *out;
    const char *type;
    const char *shape;
    const char *ids;
    const char *reference;
    const char *cpu;
    const char *numeric_class;
    const char *devices, *gate_log, *arms, *svg;
    const char *ops, *types, *rungs, *shapes, *token_list; /* bench kernels */
    cli_texts stops;
    cli_texts models, n_prompt, n_gen, n_pair, n_depth, n_batch, n_ubatch, n_threads; /* bench */
    uint32_t predict, context, threads, repeat_last_n, top_k, repeats, memory_mib;
    uint32_t rows, k, n, trials, warmup;
    uint32_t delay;                       /* s */
    uint32_t depth;                       /* keys */
    uint32_t ubatch;                      /* rows of one tape run; 0: as the engine likes */
    uint32_t outputs;                     /* of a batch that is to find room; no option */
    int axis, deps, weights, arm;         /* fm_axis, fm_deps, fm_weights, fm_arm */
    int format, error_format;             /* cli_format */
    int cache_type, key_type, value_type; /* fm_cache_type; after parsing, cache_type is meant */
    uint64_t seed;
    double temperature, top_p, min_p, repeat_penalty, margin, tolerance, split;
    bool predict_set, seed_set, margin_set, tolerance_set, axis_set, repeats_set, error_format_set;
    bool depth_set, cache_type_set, key_type_set, value_type_set;
    bool json, special, placement, echo, keys, tensors, no_gate, explain;
    bool no_warmup, progress, verbose, force;
    const char *positional[CLI_MAX_POSITIONAL];
    uint32_t n_positional;
} cli_args;

typedef enum cli_format { CLI_MD, CLI_CSV, CLI_JSON, CLI_JSONL } cli_format;

/* An option of a program that ours stands in for, and why it is not ours. */
typedef struct cli_refusal {
    const char *words; /* "-fa --flash-attn" */
    const char *reason;
} cli_refusal;

/* What an option does in one command, where the table of options says something else. */
typedef struct cli_wording {
    const char *option; /* its id */
    const char *help;
} cli_wording;

typedef struct cli_command {
    const char *name;
    const char *summary;        /* one line, for `fusionml --help` */
    const char *usage;          /* behind "fusionml NAME " */
    const char *details;        /* paragraphs behind the options; may be "" */
    const char *const *options; /* ids, NULL-terminated */
    uint32_t positional_max;
    int (*run)(const cli_args *args);
    const cli_refusal *refused; /* ends at words NULL; may be NULL */
    const cli_wording *wording; /* ends at option NULL; may be NULL */
    const char *context;        /* the options that set the context: "--ctx-size"; NULL: none */
    const char *memory;         /* where memory is too small: what sets the need; NULL: nothing */
} cli_command;

/* ---- options.c ---- */

/* false: a message is on stderr, the caller returns CLI_USAGE. *help: the user asked for it. */
bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *args, bool *help);
void cli_help(const cli_command *command);
/* The whole numbers of all texts: "512,64", ranges "1-4", "0-8+2" (steps of 2), "16-256*2"
   (doubled). Numbers from least to `most`; false: a message with the option's name is on stderr. *n
   counts on from what it is. */
bool cli_numbers(const char *name, const cli_texts *texts, uint32_t least, uint32_t most,
                 uint32_t out[CLI_MAX_NUMBERS], uint32_t *n);

/* ---- common.c ---- */

/* Prints "fusionml NAME: place: message" to stderr and returns CLI_FAILED; CLI_USAGE where it is
   about the value of an option. Fields of the library's options are named as the command's options;
   where memory is too small, what sets the need. Where Ctrl-C cancelled the work: "fusionml NAME:
   interrupted", and CLI_INTERRUPTED. */
int cli_fail(const fm_error *error);
int cli_fail_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* For messages. */
void cli_set_command(const cli_command *command);
/* "s" but for 1: "%u token%s". */
const char *cli_plural(uint64_t n);

/* Lines of the library from this level on go to stderr; main() asks for warnings. */
void cli_show_log(fm_log_level least);
/* From here on the library's lines wait, so that none stands within an answer; false: those that
   wait go to stderr, and nothing waits any more. */
void cli_hold_log(bool hold);
/* What helps where there is one unit. */
#define CLI_NAME_TWO_UNITS                                                                         \
    "name two, as in --device host:0,host:1 or --device vulkan:0,host (`fusionml devices` lists "  \
    "units)"
/* *unit: the machine's one, where it has no more. */
bool cli_has_one_unit(const fm_machine *machine, fm_device_info *unit);
/* false, with a message on stderr: the machine has one unit, and `what` takes two. */
bool cli_has_two_units(const fm_machine *machine, const char *what);
/* Machine and engine as args ask for (no -m: the embedded model). */
fm_status cli_open_machine(const cli_args *args, fm_machine **machine, fm_error *error);
fm_status cli_open_engine(const cli_args *args, fm_class numeric_class, fm_machine *machine,
                          fm_engine **engine, fm_error *error);
/* One machine, engine, session and a batch whose rows all have outputs. */
typedef struct cli_scoring {
    fm_machine *machine;
    fm_engine *engine;
    fm_session *session;
    fm_batch *batch;
    uint32_t rows; /* of the batch: 128, or fewer (said on stderr) where memory is for fewer */
} cli_scoring;

fm_status cli_open_scoring(const cli_args *args, fm_class numeric_class, cli_scoring *s,
                           fm_error *error);
/* false: the gate's log could not be written. */
bool cli_close_scoring(cli_scoring *s);
/* Also closes the gate's log; false with a message on stderr: that could not be written. Clears
 *engine; NULL in it is allowed. */
bool cli_close_engine(fm_engine **engine);
/* "exact", "fast", NULL -> otherwise. false: the text is neither. */
bool cli_class(const char *text, fm_class otherwise, fm_class *out);
/* For models that are written: false, with a message on stderr, where a file of that name exists
   and --force is not given. What is no regular file is left to the writer. */
bool cli_may_write(const cli_args *args, const char *path);
/* -p TEXT, else -f FILE ("-" and no option: stdin). malloc'ed, NUL behind *bytes; NULL after a
 * message. */
char *cli_input(const cli_args *args, size_t *bytes);
/* A whole file ("-": stdin) of at most CLI_MOST_INPUT bytes; malloc'ed, NUL behind *bytes; NULL
   with a message on stderr. */
char *cli_read_file(const char *path, size_t *bytes);

/* A bar on stderr while it is a terminal; else a line wherever 10 s ($FUSIONML_PROGRESS) passed
   without one. An fm_progress_callback; also stops on Ctrl-C. */
int cli_progress(void *user, const char *phase, uint64_t done, uint64_t total);
void cli_progress_end(void);

/* First Ctrl-C: cli_interrupted() turns true and a run of `engine` (may be NULL) is cancelled.
   Second: exit 130. */
void cli_catch_interrupt(fm_engine *engine);
/* Until then, or from now on again: the first says so and ends the program with 130 at once. */
void cli_end_on_interrupt(void);
bool cli_interrupted(void);
/* FM_ERROR_CANCELLED once Ctrl-C was pressed: one that comes between two runs cancels neither, so
   loops ask. */
fm_status cli_check_interrupt(fm_error *error);

double cli_now_ms(void);
uint64_t cli_hash_ids(const int32_t *ids, size_t n); /* FNV-1a, 64 bits, over little-endian int32 */
void cli_print_placement(const fm_engine *engine);
/* One line on stderr: which arms ran, and what the gate did. */
void cli_print_gate(const fm_engine *engine);
/* The same as a JSON object; the caller's. */
struct json_t *cli_json_gate(const fm_engine *engine);
/* "1.50 GiB" into out. */
void cli_bytes_text(uint64_t bytes, char *out, size_t capacity);
int32_t cli_argmax(const float *x, size_t n); /* ties: the lower index */

/* ---- explain.c ---- */

/* The plans of the tapes for args->rows rows and for one row, to `to`: tables, or with args->json
   one JSON object {"prefill":..., "decode":...}. */
fm_status cli_explain(fm_engine *engine, const cli_args *args, FILE *to, fm_error *error);
/* The same object; the caller's. NULL after an error. */
struct json_t *cli_explain_json(fm_engine *engine, const cli_args *args, fm_error *error);

/* ---- embedded.c: the model in the program ---- */

extern const unsigned char cli_embedded_model[];
extern const unsigned char cli_embedded_model_end[];

/* ---- one function a file ---- */

int cli_run(const cli_args *args);
int cli_tokenize(const cli_args *args);
int cli_inspect(const cli_args *args);
int cli_convert(const cli_args *args);
int cli_synth(const cli_args *args);
int cli_perplexity(const cli_args *args);
int cli_verify(const cli_args *args);
int cli_devices(const cli_args *args);
int cli_bench_speed(const cli_args *args);
int cli_bench_kernels(const cli_args *args);
int cli_bench_load(const cli_args *args);
int cli_bench_arms(const cli_args *args);
int cli_bench_probe(const cli_args *args);
int cli_calibrate(const cli_args *args);
