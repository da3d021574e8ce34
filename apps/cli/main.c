/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the table of subcommands. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const char *const run_options[] = {
    "model",   "prompt", "file",           "predict",       "ctx-size", "threads", "temp", "top-k",
    "top-p",   "min-p",  "repeat-penalty", "repeat-last-n", "seed",     "stop",    "cpu",  "class",
    "memory",  "json",   "echo",           "placement",     "device",   "split",   "axis", "deps",
    "weights", "arm",    "no-gate",        "gate-log",      "explain",  "rows",    NULL};
static const char *const tokenize_options[] = {"model", "prompt", "file", "special", "json", NULL};
static const char *const inspect_options[] = {"model", "ctx-size", "keys", "tensors", "json", NULL};
static const char *const convert_options[] = {"type", "threads", NULL};
static const char *const synth_options[] = {"shape", "type", "output", "seed", NULL};
static const char *const perplexity_options[] = {
    "model",  "file",  "ctx-size", "ids",  "threads", "cpu", "class",   "memory",   "json",
    "device", "split", "axis",     "deps", "weights", "arm", "no-gate", "gate-log", NULL};
static const char *const verify_options[] = {
    "model",  "reference", "margin", "tolerance", "threads", "cpu", "class",   "memory",   "json",
    "device", "split",     "axis",   "deps",      "weights", "arm", "no-gate", "gate-log", NULL};
static const char *const devices_options[] = {"model", "device", "threads", "cpu", "json", NULL};
static const char *const bench_options[] = {
    "model", "prompt-tokens", "predict", "repetitions", "threads",  "cpu",
    "class", "memory",        "json",    "device",      "split",    "axis",
    "deps",  "weights",       "arm",     "no-gate",     "gate-log", NULL};
static const char *const bench_arms_options[] = {
    "model",   "lengths", "predict",  "repetitions", "arms", "device", "split",  "axis", "deps",
    "weights", "no-gate", "gate-log", "threads",     "cpu",  "class",  "memory", "json", NULL};
static const char *const bench_probe_options[] = {
    "device", "rows",   "k",    "n",       "type", "split",  "axis", "weights",
    "trials", "warmup", "seed", "threads", "cpu",  "memory", "json", NULL};
static const char *const calibrate_options[] = {"model",  "device",  "axis", "deps",  "weights",
                                                "svg",    "threads", "cpu",  "class", "ctx-size",
                                                "memory", "json",    NULL};

static const cli_command commands[] = {
    {"run", "continue a prompt", "[-m MODEL] [-p TEXT | -f FILE] [options]",
     "Without -m the embedded story model answers. Without -p and -f the prompt is read from "
     "stdin.\n"
     "The continuation goes to stdout, figures to stderr. Generation ends at -n tokens, at the "
     "model's\n"
     "end token, at a stop string, or when the context is full. Ctrl-C stops the answer.\n"
     "docs/guide/coexecution.md says how units share the work: --device and the options below it.\n",
     run_options, 0, cli_run},
    {"tokenize", "text to token ids", "-m MODEL [-p TEXT | -f FILE] [--special] [--json]",
     "Without -p and -f the text is read from stdin. One id and its piece a line, or {\"ids\": "
     "[...]}.\n",
     tokenize_options, 0, cli_tokenize},
    {"inspect", "keys, tensors, types and memory need of a model file", "(-m MODEL | MODEL)", "",
     inspect_options, 1, cli_inspect},
    {"convert", "Hugging Face folder or GGUF to GGUF", "IN OUT --type TYPE",
     "Types: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k tq1_0 tq2_0 mxfp4, and "
     "the\n"
     "mixtures q2_k_s q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m.\n",
     convert_options, 2, cli_convert},
    {"synth", "write a model of a known shape with random weights",
     "--shape SHAPE --type TYPE -o FILE",
     "For speed measurements: speed does not depend on the values. Types as for `convert`.\n",
     synth_options, 0, cli_synth},
    {"perplexity", "how well a model predicts a text", "[-m MODEL] (-f FILE [-c 512] | --ids FILE)",
     "-f: the text's tokens in windows of -c ids (BOS first where the model adds one), each window "
     "alone,\n"
     "every id but the window's first scored. --ids: one JSON array of ids a line, each line "
     "alone.\n",
     perplexity_options, 0, cli_perplexity},
    {"verify", "compare a model with reference outputs", "DIR | -m MODEL --reference JSON",
     "DIR holds a checkpoint, expected.json and logits.npy. Exit status 0: all within tolerance.\n"
     "The exact class is used unless --class says otherwise.\n",
     verify_options, 1, cli_verify},
    {"devices", "what was found, and which kernels serve each weight type", "[options]",
     "Lists every unit that can be had, Vulkan devices that are not used by themselves too, and why there "
     "is\n"
     "no further one. With -m the kernels of each GPU are tested at that model's shapes.\n",
     devices_options, 0, cli_devices},
    {"bench", "prefill and decode speed of a model", "[-m MODEL] [-P 512] [-n 64] [-r 3]",
     "Prints medians in tokens/s, with GB/s of weights read beside decode.\n"
     "`fusionml bench arms` compares the ways to run a model, `fusionml bench probe` takes the\n"
     "mechanism apart; both have a --help of their own.\n",
     bench_options, 0, cli_bench},
    {"bench arms", "the ways to run a model, side by side",
     "[-m MODEL] [-p 64,128,256,512] [-n 32] [-r 9] [--arms cpu,gpu,split]",
     "One process, one engine, the arms interleaved in Latin-square order; every sample is in the "
     "JSON.\n"
     "Ratios are of paired rounds, with an interval that holds 95 % of 2000 resampled medians; above 1 "
     "the\n"
     "first-named arm is faster. Arms whose tokens differ get no ratio, and the exit status is 1.\n",
     bench_arms_options, 0, cli_bench_arms},
    {"bench probe", "one product on two units, in every order of waiting",
     "--device MAIN,SECOND [--rows N] [--k N] [--n N] [--type TYPE] [--split SHARE]",
     "Ten cases in Latin-square order: with the input there and behind its producer; by event, "
     "batch,\n"
     "eager and host; with controls. Without --split the best share is searched first. The axis is "
     "tokens\n"
     "unless --axis says otherwise. Cases whose outputs differ give no ratio, and exit status 1.\n"
     "See docs/guide/probe.md.\n",
     bench_probe_options, 0, cli_bench_probe},
    {"calibrate", "measure how to divide a model's products between two units",
     "[-m MODEL] [--device LIST] [--svg FILE]",
     "Runs every product's shape with both units at work, shows time over share, and saves the "
     "result\n"
     "where later runs of this model on these units find it. See docs/guide/calibrate.md.\n",
     calibrate_options, 0, cli_calibrate},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_overview(FILE *to) {
    fprintf(to, "usage: fusionml COMMAND [options]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\n`fusionml COMMAND --help` lists a command's options. fusionml %s\n",
            fm_version());
}

static int run_command(const cli_command *command, int argc, char **argv) {
    cli_args args;
    bool help = false;
    cli_set_name(command->name);
    cli_show_log(FM_LOG_WARNING);
    if (!cli_parse(command, argc, argv, &args, &help))
        return CLI_USAGE;
    if (!help)
        return command->run(&args);
    cli_help(command);
    return CLI_OK;
}

static int dispatch(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : NULL;
    if (word == NULL) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_overview(stdout);
        return CLI_OK;
    }
    if (strcmp(word, "--version") == 0) {
        printf("fusionml %s\n", fm_version());
        return CLI_OK;
    }
    char both[64] = ""; /* "bench probe" is a command of its own */
    if (argc > 2)
        snprintf(both, sizeof both, "%s %s", word, argv[2]);
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(both, commands[i].name) == 0)
            return run_command(&commands[i], argc - 3, argv + 3);
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return run_command(&commands[i], argc - 2, argv + 2);
    fprintf(stderr, "fusionml: no command \"%s\"\n\n", word);
    print_overview(stderr);
    return CLI_USAGE;
}

int main(int argc, char **argv) {
    int code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return cli_fail_text("stdout: write failed");
    return code;
}
