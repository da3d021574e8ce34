/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the table of subcommands. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const char *const run_options[] = {
    "model",   "prompt", "file",       "predict",        "ctx-size",      "threads",   "temp",
    "top-k",   "top-p",  "min-p",      "repeat-penalty", "repeat-last-n", "seed",      "stop",
    "cpu",     "class",  "memory",     "json",           "echo",          "placement", "device",
    "split",   "axis",   "deps",       "weights",        "arm",           "no-gate",   "gate-log",
    "explain", "rows",   "cache-type", "cache-type-k",   "cache-type-v",  NULL};
static const char *const tokenize_options[] = {"model", "prompt", "file", "special", "json", NULL};
static const char *const inspect_options[] = {"model",        "ctx-size",     "cache-type",
                                              "cache-type-k", "cache-type-v", "keys",
                                              "tensors",      "json",         NULL};
static const char *const convert_options[] = {"type", "threads", NULL};
static const char *const synth_options[] = {"shape", "type", "output", "seed", NULL};
static const char *const perplexity_options[] = {
    "model",  "file",    "ctx-size", "ids",        "threads",      "cpu",          "class",
    "memory", "json",    "device",   "split",      "axis",         "deps",         "weights",
    "arm",    "no-gate", "gate-log", "cache-type", "cache-type-k", "cache-type-v", NULL};
static const char *const verify_options[] = {
    "model",  "reference", "margin",   "tolerance",  "threads",      "cpu",          "class",
    "memory", "json",      "device",   "split",      "axis",         "deps",         "weights",
    "arm",    "no-gate",   "gate-log", "cache-type", "cache-type-k", "cache-type-v", NULL};
static const char *const devices_options[] = {"model", "device", "threads", "cpu", "json", NULL};
static const char *const bench_speed_options[] = {
    "models",      "n-prompt",      "n-gen",       "prompt-gen",   "n-depth",      "batch-size",
    "ubatch-size", "thread-counts", "repetitions", "format",       "output-err",   "delay",
    "no-warmup",   "progress",      "verbose",     "device",       "split",        "axis",
    "deps",        "weights",       "arm",         "no-gate",      "gate-log",     "cpu",
    "class",       "memory",        "cache-type",  "cache-type-k", "cache-type-v", NULL};
/* llama-bench's options that we do not take. */
static const cli_refusal bench_speed_refused[] = {
    {"-fa --flash-attn", "attention always goes by blocks, without a matrix of scores"},
    {"-ngl --n-gpu-layers -sm --split-mode -mg --main-gpu -ts --tensor-split -dev -nkvo --no-kv-offload -nopo --no-op-offload --no-host -ncmoe --n-cpu-moe -ot --override-tensor -fitt --fit-target -fitc --fit-ctx",
     "--device, --split, --weights and --arm say where a model runs"},
    {"-C --cpu-mask --cpu-strict --numa --prio --poll",
     "--device host:0-3 says on which processors; threads are pinned, and spin briefly before they sleep"},
    {"-mmp --mmap -dio --direct-io -lm --load-mode -rtr --run-time-repack",
     "weights are always packed into memory of our own"},
    {"-embd --embeddings -hf -hfr --hf-repo -hff --hf-file -hft --hf-token -rpc --rpc --list-devices --offline",
     "fusionml has no such thing; `fusionml devices` lists units"},
    {NULL, NULL}};
static const char *const bench_kernels_options[] = {"op",    "types",  "shapes",  "tokens",
                                                    "depth", "rung",   "threads", "repetitions",
                                                    "seed",  "format", NULL};
static const char *const bench_load_options[] = {"model", "threads", "repetitions", "ctx-size",
                                                 "cpu",   "device",  "weights",     "memory",
                                                 "json",  NULL};
#define BENCH_SPEED                                                                                                          \
    "[-m MODEL] [-p 512] [-n 128] [-pg PP,TG] [-d 0] [-t N] [-r 5] [-o md|csv|json|jsonl]",                                  \
        "llama-bench's options, tests, columns and JSON keys; a list makes every combination, and -m may be repeated.\n"     \
        "-p: prompts of random tokens. -n: random tokens one by one. -pg: both, timed together. -d: tokens in the context\n" \
        "before. Each test has an untimed run and -r timed ones; the mean and the deviation are printed.\n"                  \
        "Lists: 512,1024; 1-4; 0-8+2; 16-256*2. Without -m the embedded model is measured. docs/guide/bench.md.\n",          \
        bench_speed_options, 0, cli_bench_speed, bench_speed_refused

static const char *const bench_arms_options[] = {
    "model", "lengths", "predict", "repetitions", "arms",         "device",       "split",
    "axis",  "deps",    "weights", "no-gate",     "gate-log",     "threads",      "cpu",
    "class", "memory",  "json",    "cache-type",  "cache-type-k", "cache-type-v", NULL};
static const char *const bench_probe_options[] = {
    "device", "rows",   "k",    "n",       "type", "split",  "axis", "weights",
    "trials", "warmup", "seed", "threads", "cpu",  "memory", "json", NULL};
static const char *const calibrate_options[] = {
    "model", "device",   "axis",   "deps", "weights",    "svg",          "threads",      "cpu",
    "class", "ctx-size", "memory", "json", "cache-type", "cache-type-k", "cache-type-v", NULL};

static const cli_command commands[] = {
    {"run", "continue a prompt", "[-m MODEL] [-p TEXT | -f FILE] [options]",
     "Without -m the embedded story model answers. Without -p and -f the prompt is read from "
     "stdin.\n"
     "The continuation goes to stdout, figures to stderr. Generation ends at -n tokens, at the "
     "model's\n"
     "end token, at a stop string, or when the context is full. Ctrl-C stops the answer.\n"
     "docs/guide/coexecution.md says how units share the work: --device and the options below it.\n",
     run_options, 0, cli_run, NULL},
    {"tokenize", "text to token ids", "-m MODEL [-p TEXT | -f FILE] [--special] [--json]",
     "Without -p and -f the text is read from stdin. One id and its piece a line, or {\"ids\": "
     "[...]}.\n",
     tokenize_options, 0, cli_tokenize, NULL},
    {"inspect", "keys, tensors, types and memory need of a model file", "(-m MODEL | MODEL)", "",
     inspect_options, 1, cli_inspect, NULL},
    {"convert", "Hugging Face folder or GGUF to GGUF", "IN OUT --type TYPE",
     "Types: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k tq1_0 tq2_0 mxfp4, and "
     "the\n"
     "mixtures q2_k_s q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m.\n",
     convert_options, 2, cli_convert, NULL},
    {"synth", "write a model of a known shape with random weights",
     "--shape SHAPE --type TYPE -o FILE",
     "For speed measurements: speed does not depend on the values. Types as for `convert`.\n",
     synth_options, 0, cli_synth, NULL},
    {"perplexity", "how well a model predicts a text", "[-m MODEL] (-f FILE [-c 512] | --ids FILE)",
     "-f: the text's tokens in windows of -c ids (BOS first where the model adds one), each window "
     "alone,\n"
     "every id but the window's first scored. --ids: one JSON array of ids a line, each line "
     "alone.\n",
     perplexity_options, 0, cli_perplexity, NULL},
    {"verify", "compare a model with reference outputs", "DIR | -m MODEL --reference JSON",
     "DIR holds a checkpoint, expected.json and logits.npy. Exit status 0: all within tolerance.\n"
     "The exact class is used unless --class says otherwise.\n",
     verify_options, 1, cli_verify, NULL},
    {"devices", "what was found, and which kernels serve each weight type", "[options]",
     "Lists every unit that can be had, Vulkan devices that are not used by themselves too, and why there "
     "is\n"
     "no further one. With -m the kernels of each GPU are tested at that model's shapes.\n",
     devices_options, 0, cli_devices, NULL},
    {"bench speed", "prompt and generation speed of models", BENCH_SPEED},
    {"bench", "short for `bench speed`", BENCH_SPEED},
    {"bench kernels", "each kernel alone, beside the machine's roofs",
     "[--op LIST] [--type LIST] [--shape LIST] [--tokens LIST] [--rung LIST] [-t N] [-r 3]",
     "All threads run the kernel on their panels, as in a model; rungs are interleaved A B B A, and the median of the slowest thread's time\n"
     "counts. The roofs (VNNI, FMA, bf16, reading memory) are measured in the same call. Results are compared with ref's, bit for bit in\n"
     "the exact class, on a sample of rows that the output names. Exit status 1: some differ. docs/guide/bench.md.\n",
     bench_kernels_options, 0, cli_bench_kernels, NULL},
    {"bench load", "a load beside reading its file", "-m MODEL [-t N] [-r 3]",
     "Reads the file into new memory of its size, into a megabyte a thread over and over, touches a mapping\n"
     "of it, and loads it, in turn; the least of the rounds. The file comes from the page cache. docs/guide/bench.md.\n",
     bench_load_options, 0, cli_bench_load, NULL},
    {"bench arms", "the ways to run a model, side by side",
     "[-m MODEL] [-p 64,128,256,512] [-n 32] [-r 9] [--arms cpu,gpu,split]",
     "One process, one engine, the arms interleaved in Latin-square order; every sample is in the "
     "JSON.\n"
     "Ratios are of paired rounds, with an interval that holds 95 % of 2000 resampled medians; above 1 "
     "the\n"
     "first-named arm is faster. Arms whose tokens differ get no ratio, and the exit status is 1.\n",
     bench_arms_options, 0, cli_bench_arms, NULL},
    {"bench probe", "one product on two units, in every order of waiting",
     "--device MAIN,SECOND [--rows N] [--k N] [--n N] [--type TYPE] [--split SHARE]",
     "Ten cases in Latin-square order: with the input there and behind its producer; by event, "
     "batch,\n"
     "eager and host; with controls. Without --split the best share is searched first. The axis is "
     "tokens\n"
     "unless --axis says otherwise. Cases whose outputs differ give no ratio, and exit status 1.\n"
     "See docs/guide/probe.md.\n",
     bench_probe_options, 0, cli_bench_probe, NULL},
    {"calibrate", "measure how to divide a model's products between two units",
     "[-m MODEL] [--device LIST] [--svg FILE]",
     "Runs whole tapes of the model with both units at work, shows time over share, and saves the "
     "result\n"
     "where later runs of this model on these units find it; takes about half a minute. See\n"
     "docs/guide/calibrate.md.\n",
     calibrate_options, 0, cli_calibrate, NULL},
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
