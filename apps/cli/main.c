/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the table of subcommands. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const char *const run_options[] = {
    "model",   "prompt", "file",   "predict",        "ctx-size",      "threads",      "temp",
    "top-k",   "top-p",  "min-p",  "repeat-penalty", "repeat-last-n", "seed",         "stop",
    "cpu",     "class",  "memory", "json",           "echo",          "placement",    "device",
    "split",   "axis",   "deps",   "weights",        "arm",           "no-gate",      "gate-log",
    "explain", "rows",   "ubatch", "cache-type",     "cache-type-k",  "cache-type-v", NULL};
static const char *const tokenize_options[] = {"model", "prompt", "file", "special", "json", NULL};
static const char *const inspect_options[] = {"model",        "ctx-size",     "cache-type",
                                              "cache-type-k", "cache-type-v", "keys",
                                              "tensors",      "json",         NULL};
static const char *const convert_options[] = {"type", "threads", "force", NULL};
static const char *const synth_options[] = {"shape", "type", "output", "seed", "force", NULL};
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
static const char *const bench_load_options[] = {"model",  "threads", "repetitions", "ctx-size",
                                                 "ubatch", "cpu",     "device",      "weights",
                                                 "memory", "json",    NULL};
static const char *const bench_arms_options[] = {
    "model",  "lengths", "predict",    "ubatch",       "repetitions",  "arms",    "device", "split",
    "axis",   "deps",    "weights",    "no-gate",      "gate-log",     "threads", "cpu",    "class",
    "memory", "json",    "cache-type", "cache-type-k", "cache-type-v", NULL};
static const char *const bench_probe_options[] = {
    "device", "rows",   "k",    "n",       "type", "split",  "axis", "weights",
    "trials", "warmup", "seed", "threads", "cpu",  "memory", "json", NULL};
static const char *const calibrate_options[] = {
    "model",   "device",     "axis",         "deps",         "weights", "svg",
    "threads", "cpu",        "class",        "ctx-size",     "ubatch",  "memory",
    "json",    "cache-type", "cache-type-k", "cache-type-v", NULL};

/* ---- what options say in one command only ---- */

#define EMBEDDED "a .gguf file or a Hugging Face folder (default: the embedded one)"
#define BUDGET "--memory sets the budget"

static const cli_wording run_wording[] = {
    {"model", EMBEDDED},
    {"prompt", "the prompt"},
    {"predict", "tokens to generate (default: until the end)"},
    {"seed", "seed of the draws (default: from the clock; it is printed)"},
    {"rows", "--explain: rows of the prefill plan (default 512)"},
    {NULL, NULL}};
static const cli_wording tokenize_wording[] = {{"model", EMBEDDED}, {NULL, NULL}};
static const cli_wording inspect_wording[] = {
    {"ctx-size", "memory for a context of N tokens (default: the model's, at most 4096)"},
    {"cache-type", "memory for keys and values as f16 or q8_0 (default f16)"},
    {NULL, NULL}};
static const cli_wording perplexity_wording[] = {
    {"model", EMBEDDED},
    {"ctx-size",
     "ids of a window (default 512); with --ids: the longest (default 4096, or the model's)"},
    {NULL, NULL}};
static const cli_wording verify_wording[] = {
    {"model", "--reference: a .gguf file or a Hugging Face folder (default: the embedded one)"},
    {"class", "numeric class: exact or fast (default: exact)"},
    {NULL, NULL}};
static const cli_wording devices_wording[] = {
    {"model", "test the kernels of each GPU at this model's shapes"},
    {"device",
     "the units to use, and the host behind a vulkan:N alone (default: auto); all others are listed"},
    {NULL, NULL}};
static const cli_wording bench_speed_wording[] = {{"repetitions", "timed repetitions (default 5)"},
                                                  {NULL, NULL}};
static const cli_wording bench_load_wording[] = {{"model", "a .gguf file of one part"},
                                                 {NULL, NULL}};
static const cli_wording bench_arms_wording[] = {
    {"model", EMBEDDED},
    {"predict", "tokens to generate behind each prompt (default 32)"},
    {"repetitions", "timed rounds (default 9)"},
    {NULL, NULL}};
static const cli_wording bench_probe_wording[] = {
    {"type", "weight type (default q8_0)"},
    {"split", "share of the second unit, 0 to 1 (default: searched)"},
    {"axis", "what the split divides: channels, tokens (default: tokens)"},
    {NULL, NULL}};
static const cli_wording calibrate_wording[] = {{"model", EMBEDDED}, {NULL, NULL}};

#define BENCH_SPEED                                                                                                          \
    .summary = "prompt and generation speed of models",                                                                      \
    .usage =                                                                                                                 \
        "[-m MODEL] [-p 512] [-n 128] [-pg PP,TG] [-d 0] [-t N] [-r 5] [-o md|csv|json|jsonl]",                              \
    .details =                                                                                                               \
        "llama-bench's options, tests, columns and JSON keys; a list makes every combination, and -m may be repeated.\n"     \
        "-p: prompts of random tokens. -n: random tokens one by one. -pg: both, timed together. -d: tokens in the context\n" \
        "before. Each test has an untimed run and -r timed ones; the mean and the deviation are printed.\n"                  \
        "Lists: 512,1024; 1-4; 0-8+2; 16-256*2. docs/guide/bench.md.\n",                                                     \
    .options = bench_speed_options, .run = cli_bench_speed, .refused = bench_speed_refused,                                  \
    .wording = bench_speed_wording, .context = "context (of -p, -n and -d)",                                                 \
    .memory = "-p, -n and -d set the context, -ub the rows of a run; " BUDGET

static const cli_command commands[] = {
    {.name = "run",
     .summary = "continue a prompt",
     .usage = "[-m MODEL] [-p TEXT | -f FILE] [options]",
     .details =
         "The embedded model tells stories. Without -p and -f the prompt is read from stdin.\n"
         "The continuation goes to stdout, figures to stderr. Generation ends at -n tokens, at the "
         "model's\n"
         "end token, at a stop string, or when the context is full. Ctrl-C stops the answer.\n"
         "docs/guide/coexecution.md says how units share the work: --device and the options below "
         "it.\n",
     .options = run_options,
     .run = cli_run,
     .wording = run_wording,
     .context = "--ctx-size",
     .memory = "--ctx-size sets the context, --ubatch-size the rows of a run; " BUDGET},
    {.name = "tokenize",
     .summary = "text to token ids",
     .usage = "[-m MODEL] [-p TEXT | -f FILE] [--special] [--json]",
     .details = "Without -p and -f the text is read from stdin. One id and its piece a line, or "
                "{\"ids\": "
                "[...]}.\n",
     .options = tokenize_options,
     .run = cli_tokenize,
     .wording = tokenize_wording},
    {.name = "inspect",
     .summary = "keys, tensors, types and memory need of a model file",
     .usage = "(-m MODEL | MODEL)",
     .details = "",
     .options = inspect_options,
     .positional_max = 1,
     .run = cli_inspect,
     .wording = inspect_wording,
     .context = "--ctx-size"},
    {.name = "convert",
     .summary = "Hugging Face folder or GGUF to GGUF",
     .usage = "IN OUT --type TYPE [--force]",
     .details =
         "Types: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k tq1_0 tq2_0 mxfp4, "
         "and the\n"
         "mixtures q2_k_s q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m.\n"
         "OUT is there once it is whole; one that exists is replaced only with --force.\n",
     .options = convert_options,
     .positional_max = 2,
     .run = cli_convert},
    {.name = "synth",
     .summary = "write a model of a known shape with random weights",
     .usage = "--shape SHAPE --type TYPE -o FILE [--force]",
     .details = "For speed measurements: speed does not depend on the values. Types as for "
                "`convert`.\n"
                "FILE is there once it is whole; one that exists is replaced only with --force.\n",
     .options = synth_options,
     .run = cli_synth},
    {.name = "perplexity",
     .summary = "how well a model predicts a text",
     .usage = "[-m MODEL] (-f FILE [-c 512] | --ids FILE)",
     .details = "-f: the text's tokens in windows of -c ids (BOS first where the model adds one), "
                "each window "
                "alone,\n"
                "every id but the window's first scored. --ids: one JSON array of ids a line, each "
                "line "
                "alone.\n",
     .options = perplexity_options,
     .run = cli_perplexity,
     .wording = perplexity_wording,
     .context = "--ctx-size",
     .memory = "--ctx-size sets the window and with it the context; " BUDGET},
    {.name = "verify",
     .summary = "compare a model with reference outputs",
     .usage = "DIR | -m MODEL --reference JSON",
     .details = "DIR holds a checkpoint, expected.json and logits.npy. Exit status 0: all within "
                "tolerance.\n",
     .options = verify_options,
     .positional_max = 1,
     .run = cli_verify,
     .wording = verify_wording,
     .memory = BUDGET},
    {.name = "devices",
     .summary = "what was found, and which kernels serve each weight type",
     .usage = "[options]",
     .details = "Lists every unit that can be had, Vulkan devices that are not used by themselves "
                "too, and why there "
                "is\n"
                "no further one.\n",
     .options = devices_options,
     .run = cli_devices,
     .wording = devices_wording},
    {.name = "bench speed", BENCH_SPEED},
    {.name = "bench", BENCH_SPEED},
    {.name = "bench kernels",
     .summary = "each kernel alone, beside the machine's roofs",
     .usage =
         "[--op LIST] [--type LIST] [--shape LIST] [--tokens LIST] [--rung LIST] [-t N] [-r 3]",
     .details =
         "All threads run the kernel on their panels, as in a model; rungs are interleaved A B B A, and the median of the slowest thread's time\n"
         "counts. The roofs (VNNI, FMA, bf16, reading memory) are measured in the same call. Results are compared with ref's, bit for bit in\n"
         "the exact class, on a sample of rows that the output names. Exit status 1: some differ. docs/guide/bench.md.\n",
     .options = bench_kernels_options,
     .run = cli_bench_kernels},
    {.name = "bench load",
     .summary = "a load beside reading its file",
     .usage = "-m MODEL [-t N] [-r 3]",
     .details =
         "Reads the file into new memory of its size, into a megabyte a thread over and over, touches a mapping\n"
         "of it, and loads it, in turn; the least of the rounds. The file comes from the page cache. docs/guide/bench.md.\n",
     .options = bench_load_options,
     .run = cli_bench_load,
     .wording = bench_load_wording,
     .context = "--ctx-size",
     .memory = "--ctx-size sets the context, --ubatch-size the rows of a run; " BUDGET},
    {.name = "bench arms",
     .summary = "the ways to run a model, side by side",
     .usage = "[-m MODEL] [-p 64,128,256,512] [-n 32] [-r 9] [--arms cpu,gpu,split]",
     .details =
         "One process, one engine, the arms interleaved in Latin-square order; every sample is in "
         "the "
         "JSON.\n"
         "Ratios are of paired rounds, with an interval that holds 95 % of 2000 resampled medians; "
         "above 1 "
         "the\n"
         "first-named arm is faster. Arms whose tokens differ get no ratio, and the exit status is "
         "1.\n",
     .options = bench_arms_options,
     .run = cli_bench_arms,
     .wording = bench_arms_wording,
     .context = "context (of -p and -n)",
     .memory = "-p and -n set the context, -ub the rows of a run; " BUDGET},
    {.name = "bench probe",
     .summary = "one product on two units, in every order of waiting",
     .usage = "--device MAIN,SECOND [--rows N] [--k N] [--n N] [--type TYPE] [--split SHARE]",
     .details =
         "Ten cases in Latin-square order: with the input there and behind its producer; by event, "
         "batch,\n"
         "eager and host; with controls. Without --split the best share is searched first.\n"
         "Cases whose outputs differ give no ratio, and exit status 1. See docs/guide/probe.md.\n",
     .options = bench_probe_options,
     .run = cli_bench_probe,
     .wording = bench_probe_wording,
     .memory = "--rows, --k and --n set the sizes; " BUDGET},
    {.name = "calibrate",
     .summary = "measure how to divide a model's products between two units",
     .usage = "[-m MODEL] [--device LIST] [--svg FILE]",
     .details =
         "Runs whole tapes of the model with both units at work, shows time over share, and saves "
         "the "
         "result\n"
         "where later runs of this model on these units find it; takes half a minute to a minute. See\n"
         "docs/guide/calibrate.md.\n",
     .options = calibrate_options,
     .run = cli_calibrate,
     .wording = calibrate_wording,
     .context = "--ctx-size",
     .memory = "--ctx-size sets the context, --ubatch-size the rows of a run; " BUDGET},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_overview(FILE *to) {
    fprintf(to, "usage: fusionml COMMAND [options]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, "bench speed") != 0) /* what "bench" alone is */
            fprintf(to, "  %-13s %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\n`fusionml COMMAND --help` lists a command's options. fusionml %s\n",
            fm_version());
}

/* "bench" is a command, and the beginning of others. */
static void print_subcommands(const cli_command *command) {
    size_t bytes = strlen(command->name), n = 0;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const char *name = commands[i].name;
        if (strncmp(name, command->name, bytes) != 0 || name[bytes] != ' ')
            continue;
        if (n++ == 0)
            printf("\nSubcommands (`fusionml %s SUBCOMMAND --help`); without one, the first:\n",
                   command->name);
        printf("  %-12s %s\n", name + bytes + 1, commands[i].summary);
    }
}

static int run_command(const cli_command *command, int argc, char **argv) {
    cli_args args;
    bool help = false;
    cli_set_command(command);
    cli_show_log(FM_LOG_WARNING);
    if (!cli_parse(command, argc, argv, &args, &help))
        return CLI_USAGE;
    if (!help)
        return command->run(&args);
    cli_help(command);
    print_subcommands(command);
    return CLI_OK;
}

/* argv: the command's words and what follows; *n_word: how many words it has. NULL: there is none.
 */
static const cli_command *find_command(int argc, char **argv, int *n_word) {
    char both[64] = ""; /* "bench probe" is a command of its own */
    if (argc > 1)
        snprintf(both, sizeof both, "%s %s", argv[0], argv[1]);
    for (*n_word = 2; *n_word > 0; --*n_word)
        for (size_t i = 0; i < N_COMMANDS; i++)
            if (strcmp(*n_word == 2 ? both : argv[0], commands[i].name) == 0)
                return &commands[i];
    return NULL;
}

static int refuse_command(const char *word) {
    fprintf(stderr, "fusionml: no command \"%s\"\n\n", word);
    print_overview(stderr);
    return CLI_USAGE;
}

/* "help", "help run", "help bench arms" */
static int help(int argc, char **argv) {
    int n_word;
    if (argc == 0) {
        print_overview(stdout);
        return CLI_OK;
    }
    const cli_command *command = find_command(argc, argv, &n_word);
    if (command == NULL)
        return refuse_command(argv[0]);
    cli_help(command);
    print_subcommands(command);
    return CLI_OK;
}

static int dispatch(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : NULL;
    int n_word;
    if (word == NULL) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0)
        return help(argc - 2, argv + 2);
    if (strcmp(word, "--version") == 0) {
        printf("fusionml %s\n", fm_version());
        return CLI_OK;
    }
    const cli_command *command = find_command(argc - 1, argv + 1, &n_word);
    if (command == NULL)
        return refuse_command(word);
    return run_command(command, argc - 1 - n_word, argv + 1 + n_word);
}

int main(int argc, char **argv) {
    cli_end_on_interrupt();
    int code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return cli_fail_text("stdout: write failed");
    return code;
}
