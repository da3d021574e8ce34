/* SPDX-License-Identifier: Apache-2.0 */
/* common.c: messages, opening models, reading input, progress, interrupts. */
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static const cli_command no_command = {.name = ""};
static const cli_command *command = &no_command;

void cli_set_command(const cli_command *now) {
    command = now;
}

const char *cli_plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

/* What the user calls a field of fm_machine_options, fm_engine_options or fm_sampler_options; NULL:
   it is none. */
static const char *option_of(const char *field) {
    static const char *const names[][2] = {
        {"context_length", NULL},
        {"chunk_rows", "--ubatch-size"},
        {"threads", "--threads"},
        {"cpu rung", "--cpu"},
        {"numeric_class", "--class"},
        {"cache_type", "--cache-type"},
        {"temperature", "--temp"},
        {"top_p", "--top-p"},
        {"min_p", "--min-p"},
        {"repeat_penalty", "--repeat-penalty"},
        {"split", "--split"},
        {"axis", "--axis"},
        {"deps", "--deps"},
        {"weights", "--weights"},
        {"repeat_last_n", "--repeat-last-n"},
        {"arm", "--arm"},
        {"share", "--split"},
        {"type", "--type"},
        {"shape", "--shape"},
        {"op", "--op"},
        {"rung", "--rung"},
        {"tokens", "--tokens"},
        {"depth", "--depth"},
        {"repeats", "--repetitions"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(field, names[i][0]) == 0)
            return names[i][1] != NULL        ? names[i][1]
                   : command->context != NULL ? command->context
                                              : "context";
    return strncmp(field, "--", 2) == 0 ? field : NULL;
}

/* What would help, where memory is too small for what this command was asked for. */
static void print_memory_advice(const fm_error *error) {
    static const char budget[] = "--memory sets the budget";
    if (command->memory != NULL)
        fprintf(stderr, "%s\n",
                strstr(error->message, "the weights alone") != NULL ? budget : command->memory);
}

int cli_fail(const fm_error *error) {
    if (error->status == FM_ERROR_CANCELLED && cli_interrupted()) {
        cli_fail_text("interrupted");
        return CLI_INTERRUPTED;
    }
    /* other errors name the library's own things: "weights" may be what found no memory */
    bool is_usage = error->status == FM_ERROR_ARGUMENT || error->status == FM_ERROR_LIMIT;
    bool is_rung = error->status == FM_ERROR_UNSUPPORTED && strcmp(error->place, "cpu rung") == 0;
    const char *option = is_usage || is_rung ? option_of(error->place) : NULL;
    const char *place = option != NULL ? option : error->place;
    cli_progress_end();
    fprintf(stderr, "fusionml %s: %s%s%s\n", command->name, place, place[0] != '\0' ? ": " : "",
            error->message);
    if (error->status == FM_ERROR_MEMORY)
        print_memory_advice(error);
    return is_usage && option != NULL ? CLI_USAGE : CLI_FAILED;
}

int cli_fail_text(const char *format, ...) {
    va_list arguments;
    cli_progress_end();
    fprintf(stderr, "fusionml %s: ", command->name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return CLI_FAILED;
}

/* ---- the library's log ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* any thread may log */
static bool log_held;
static char *held_lines;
static size_t held_bytes;

/* false: out of memory. */
static bool hold_line(const char *mark, const char *line) {
    size_t more = strlen(mark) + strlen(line) + 1;
    char *larger = realloc(held_lines, held_bytes + more + 1);
    if (larger == NULL)
        return false;
    snprintf(larger + held_bytes, more + 1, "%s%s\n", mark, line);
    held_lines = larger;
    held_bytes += more;
    return true;
}

/* Whether this warning was said before: a command that makes several machines or engines would say
   it for each. Of two that are alike in their first bytes the second is said. */
static bool is_said(fm_log_level level, const char *line) {
    enum { KEPT = 16, BYTES = 256 };
    static char said[KEPT][BYTES];
    static size_t n;
    if (level != FM_LOG_WARNING || strlen(line) >= BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if (strcmp(said[i], line) == 0)
            return true;
    if (n < KEPT)
        memcpy(said[n++], line, strlen(line) + 1);
    return false;
}

static void log_line(void *user, fm_log_level level, const char *line) {
    const char *mark = level == FM_LOG_WARNING ? "warning: " : "";
    (void)user;
    pthread_mutex_lock(&log_lock);
    if (!is_said(level, line) && (!log_held || !hold_line(mark, line))) {
        cli_progress_end();
        fprintf(stderr, "%s%s\n", mark, line);
    }
    pthread_mutex_unlock(&log_lock);
}

void cli_hold_log(bool hold) {
    pthread_mutex_lock(&log_lock);
    log_held = hold;
    if (!hold && held_lines != NULL)
        fputs(held_lines, stderr);
    if (!hold) {
        free(held_lines);
        held_lines = NULL;
        held_bytes = 0;
    }
    pthread_mutex_unlock(&log_lock);
}

void cli_show_log(fm_log_level least) {
    fm_log_set(log_line, NULL, least);
}

static void add_option(char *list, size_t capacity, const char *name) {
    size_t used = strlen(list);
    snprintf(list + used, capacity - used, "%s%s", used > 0 ? ", " : "", name);
}

/* One line for options that say how units share work, where there is nothing to share. */
static void tell_idle_options(const cli_args *args, const fm_machine *machine) {
    size_t n = fm_machine_device_count(machine);
    bool has_gpu = false;
    char list[64] = "";
    for (size_t i = 0; i < n; i++) {
        fm_device_info info;
        if (fm_machine_device(machine, i, &info, NULL) == FM_OK)
            has_gpu = has_gpu || strcmp(info.kind, "cpu") != 0;
    }
    if (args->axis_set && n < 2)
        add_option(list, sizeof list, "--axis");
    if (args->deps != FM_DEPS_EVENT && n < 2)
        add_option(list, sizeof list, "--deps");
    if (args->weights != FM_WEIGHTS_AUTO && !has_gpu)
        add_option(list, sizeof list, "--weights");
    if (list[0] != '\0')
        fprintf(stderr, "fusionml: no effect of %s: %s\n", list,
                n < 2 ? "there is one unit, the host (see --device)" : "there is no GPU");
}

/* Whose list of units could not be had: names the option. */
static fm_status name_device_option(fm_error *error) {
    char place[sizeof error->place];
    memcpy(place, error->place, sizeof place);
    const char *head = strncmp(place, "device ", 7) == 0 ? "--" : "--device: ";
    snprintf(error->place, sizeof error->place, "%s%.*s", head, (int)sizeof place - 12, place);
    return error->status;
}

/* What only two units can do: that is known before a model is loaded. */
static fm_status check_unit_count(const cli_args *args, const fm_machine *machine,
                                  fm_error *error) {
    const char *option = args->split >= 0                                      ? "--split"
                         : args->arm != FM_ARM_AUTO && args->arm != FM_ARM_CPU ? "--arm"
                                                                               : NULL;
    fm_device_info unit;
    if (option == NULL || !cli_has_one_unit(machine, &unit))
        return FM_OK;
    *error = (fm_error){.status = FM_ERROR_ARGUMENT};
    snprintf(error->place, sizeof error->place, "%s%s%s", option, args->split >= 0 ? "" : " ",
             args->split >= 0 ? "" : fm_arm_name((fm_arm)args->arm));
    snprintf(error->message, sizeof error->message,
             "takes two units, and there is one, %s: " CLI_NAME_TWO_UNITS, unit.name);
    return error->status;
}

fm_status cli_open_machine(const cli_args *args, fm_machine **machine, fm_error *error) {
    fm_machine_options options = fm_machine_options_default();
    options.threads = args->threads;
    options.cpu_rung = args->cpu;
    options.memory_budget = (uint64_t)args->memory_mib << 20;
    options.devices = args->devices;
    fm_status status = fm_machine_create(machine, &options, error);
    if ((status == FM_ERROR_ARGUMENT || status == FM_ERROR_UNSUPPORTED) && args->devices != NULL &&
        option_of(error->place) == NULL)
        return name_device_option(error);
    if (status == FM_OK)
        status = check_unit_count(args, *machine, error);
    if (status == FM_OK)
        tell_idle_options(args, *machine);
    return status;
}

bool cli_has_one_unit(const fm_machine *machine, fm_device_info *unit) {
    *unit = (fm_device_info){.name = "host"};
    if (fm_machine_device_count(machine) > 1)
        return false;
    (void)fm_machine_device(machine, 0, unit, NULL);
    return true;
}

bool cli_has_two_units(const fm_machine *machine, const char *what) {
    fm_device_info unit;
    if (!cli_has_one_unit(machine, &unit))
        return true;
    cli_fail_text("%s takes two units, and there is one, %s: " CLI_NAME_TWO_UNITS, what, unit.name);
    return false;
}

/* ---- engines, and the gate's log ---- */

static FILE *gate_log;
static const char *gate_log_path;

static void write_gate_line(void *user, const char *line) {
    (void)user;
    if (gate_log != NULL)
        fprintf(gate_log, "%s\n", line);
}

static fm_status open_gate_log(const cli_args *args, fm_engine_options *options, fm_error *error) {
    if (args->gate_log == NULL)
        return FM_OK;
    gate_log_path = args->gate_log;
    gate_log = fopen(gate_log_path, "w");
    if (gate_log == NULL) {
        *error = (fm_error){FM_ERROR_IO, "", ""};
        snprintf(error->message, sizeof error->message, "%s", strerror(errno));
        snprintf(error->place, sizeof error->place, "--gate-log: %s", gate_log_path);
        return error->status;
    }
    options->gate_log = write_gate_line;
    return FM_OK;
}

bool cli_close_engine(fm_engine **engine) {
    cli_catch_interrupt(NULL);
    fm_engine_destroy(engine);
    if (gate_log == NULL)
        return true;
    bool good = ferror(gate_log) == 0;
    good = fclose(gate_log) == 0 && good;
    gate_log = NULL;
    if (!good)
        cli_fail_text("--gate-log: %s: write failed", gate_log_path);
    return good;
}

fm_status cli_open_engine(const cli_args *args, fm_class numeric_class, fm_machine *machine,
                          fm_engine **engine, fm_error *error) {
    fm_engine_options options = fm_engine_options_default();
    options.numeric_class = numeric_class;
    options.context_length = args->context;
    options.chunk_rows = args->ubatch;
    options.cache_type = (fm_cache_type)args->cache_type;
    options.batch_outputs = args->outputs;
    options.progress = cli_progress;
    options.split = args->split;
    options.axis = args->axis_set ? (fm_axis)args->axis : FM_AXIS_AUTO;
    options.deps = (fm_deps)args->deps;
    options.weights = (fm_weights)args->weights;
    options.arm = (fm_arm)args->arm;
    options.no_gate = args->no_gate;
    cli_catch_interrupt(NULL);
    fm_status status = open_gate_log(args, &options, error);
    if (status != FM_OK)
        return status;
    if (args->model != NULL) {
        status = fm_engine_load(engine, machine, args->model, &options, error);
    } else {
        size_t bytes = (size_t)(cli_embedded_model_end - cli_embedded_model);
        status = fm_engine_load_memory(engine, machine, cli_embedded_model, bytes,
                                       "embedded story-21m", &options, error);
    }
    cli_progress_end();
    if (status == FM_OK)
        cli_catch_interrupt(*engine);
    return status;
}

enum { SCORED_ROWS = 128 };

fm_status cli_open_scoring(const cli_args *args, fm_class numeric_class, cli_scoring *s,
                           fm_error *error) {
    cli_args with = *args;
    fm_status status = cli_open_machine(args, &s->machine, error);
    if (status != FM_OK)
        return status;
    for (s->rows = SCORED_ROWS;; s->rows /= 4) { /* 128, 32, 8, 2 */
        with.ubatch = with.outputs = s->rows;
        status = cli_open_engine(&with, numeric_class, s->machine, &s->engine, error);
        if (status != FM_ERROR_MEMORY || s->rows == 2)
            break;
        cli_close_engine(&s->engine);
    }
    if (status == FM_OK && s->rows < SCORED_ROWS)
        fprintf(stderr, "%u rows a run instead of %d: the memory budget is for no more\n", s->rows,
                SCORED_ROWS);
    if (status == FM_OK)
        status = fm_session_create(&s->session, s->engine, NULL, error);
    if (status == FM_OK)
        status = fm_batch_create(&s->batch, s->engine, s->rows, s->rows, error);
    return status;
}

bool cli_close_scoring(cli_scoring *s) {
    fm_batch_destroy(&s->batch);
    fm_session_destroy(&s->session);
    bool good = cli_close_engine(&s->engine);
    fm_machine_destroy(&s->machine);
    return good;
}

bool cli_class(const char *text, fm_class otherwise, fm_class *out) {
    if (text == NULL)
        *out = otherwise;
    else if (strcmp(text, "exact") == 0)
        *out = FM_CLASS_EXACT;
    else if (strcmp(text, "fast") == 0)
        *out = FM_CLASS_FAST;
    else
        return false;
    return true;
}

/* ---- input ---- */

/* Reads `longest` bytes at most; *longer: there are more. NULL: out of memory. */
static char *read_up_to(FILE *stream, size_t longest, size_t *bytes, bool *longer) {
    size_t capacity = 1 << 16, n = 0;
    char *data = malloc(capacity);
    *longer = false;
    while (data != NULL) {
        size_t got = fread(data + n, 1, capacity - n - 1, stream);
        n += got;
        *longer = n > longest;
        if (got == 0 || *longer)
            break;
        if (capacity - n - 1 > 0)
            continue;
        char *larger = realloc(data, capacity * 2);
        if (larger == NULL)
            free(data);
        data = larger;
        capacity *= 2;
    }
    *bytes = n;
    return data;
}

static char *read_stream(FILE *stream, const char *name, size_t *bytes) {
    struct stat info;
    bool longer =
        fstat(fileno(stream), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > CLI_MOST_INPUT;
    char *data = longer ? NULL : read_up_to(stream, CLI_MOST_INPUT, bytes, &longer);
    if (longer)
        cli_fail_text("%s: is longer than %d MiB, the most that is read: no context holds as much",
                      name, CLI_MOST_INPUT >> 20);
    else if (data == NULL)
        cli_fail_text("%s: out of memory after %zu bytes", name, *bytes);
    else if (ferror(stream))
        cli_fail_text("%s: %s", name, strerror(errno));
    else {
        data[*bytes] = '\0';
        return data;
    }
    free(data);
    return NULL;
}

char *cli_read_file(const char *path, size_t *bytes) {
    if (strcmp(path, "-") == 0)
        return read_stream(stdin, "stdin", bytes);
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        cli_fail_text("%s: %s", path, strerror(errno));
        return NULL;
    }
    char *data = read_stream(stream, path, bytes);
    fclose(stream);
    return data;
}

bool cli_may_write(const cli_args *args, const char *path) {
    struct stat info;
    if (args->force || lstat(path, &info) != 0 ||
        (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode)))
        return true;
    cli_fail_text("%s: exists; --force replaces it", path);
    return false;
}

char *cli_input(const cli_args *args, size_t *bytes) {
    if (args->prompt == NULL)
        return cli_read_file(args->file != NULL ? args->file : "-", bytes);
    *bytes = strlen(args->prompt);
    char *copy = malloc(*bytes + 1);
    if (copy == NULL) {
        cli_fail_text("out of memory");
        return NULL;
    }
    memcpy(copy, args->prompt, *bytes + 1);
    return copy;
}

/* ---- progress ---- */

static bool bar_shown;
static _Atomic double silent_since; /* ms; 0: from the next cli_progress() on */

/* ms between two lines where stderr is no terminal; 0: no lines. */
static double line_interval(void) {
    const char *text = getenv("FUSIONML_PROGRESS");
    char *end = NULL;
    double seconds = text != NULL ? strtod(text, &end) : 0;
    return end == NULL || end == text || *end != '\0' || !(seconds >= 0) ? 1e4 : seconds * 1e3;
}

static void show_bar(const char *phase, int percent) {
    fprintf(stderr, "\r%s %3d %% [%-40.*s]", phase, percent, percent * 40 / 100,
            "########################################");
    bar_shown = true;
}

/* For logs, which keep every line: one only where nothing was said for a while. */
static void show_line(const char *phase, int percent, double now, double interval) {
    double since = atomic_load(&silent_since);
    if (since != 0 && now - since >= interval)
        fprintf(stderr, "%s: %d %%\n", phase, percent);
    if (since == 0 || now - since >= interval)
        atomic_store(&silent_since, now);
}

int cli_progress(void *user, const char *phase, uint64_t done, uint64_t total) {
    static double last_ms, interval;
    static int is_terminal = -1;
    (void)user;
    if (is_terminal < 0) {
        is_terminal = isatty(STDERR_FILENO);
        interval = line_interval();
    }
    double now = cli_now_ms();
    int percent = total > 0 ? (int)((double)done * 100 / (double)total) : 100;
    if (!is_terminal && interval > 0) {
        show_line(phase, percent, now, interval);
    } else if (is_terminal && (now - last_ms > 100 || done == total)) {
        show_bar(phase, percent);
        last_ms = now;
    }
    return cli_interrupted();
}

void cli_progress_end(void) {
    if (bar_shown)
        fprintf(stderr, "\r\033[K");
    bar_shown = false;
    atomic_store(&silent_since, 0);
}

/* ---- interrupts ---- */

static _Atomic(fm_engine *) interrupt_engine;
static atomic_int interrupts;

static void on_interrupt(int number) {
    (void)number;
    if (atomic_fetch_add(&interrupts, 1) > 0)
        _exit(CLI_INTERRUPTED);
    fm_engine *engine = atomic_load(&interrupt_engine);
    if (engine != NULL)
        fm_engine_cancel(engine);
}

static void end_at_once(int number) {
    static const char words[] = "fusionml: interrupted\n";
    (void)number;
    ssize_t written = write(STDERR_FILENO, words, sizeof words - 1);
    (void)written; /* there is nobody else to tell */
    _exit(CLI_INTERRUPTED);
}

void cli_end_on_interrupt(void) {
    struct sigaction action = {.sa_handler = end_at_once}, before;
    sigemptyset(&action.sa_mask);
    /* whoever started us with it ignored, as a shell does with jobs behind, means that */
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGINT, &action, NULL);
}

void cli_catch_interrupt(fm_engine *engine) {
    struct sigaction action = {.sa_handler = on_interrupt};
    atomic_store(&interrupt_engine, engine);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool cli_interrupted(void) {
    return atomic_load(&interrupts) > 0;
}

fm_status cli_check_interrupt(fm_error *error) {
    if (!cli_interrupted())
        return FM_OK;
    *error = (fm_error){.status = FM_ERROR_CANCELLED, .message = "interrupted"};
    return FM_ERROR_CANCELLED;
}

/* ---- small things ---- */

double cli_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

uint64_t cli_hash_ids(const int32_t *ids, size_t n) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        for (int b = 0; b < 4; b++)
            h = (h ^ (((uint32_t)ids[i] >> (8 * b)) & 0xFF)) * UINT64_C(0x100000001b3);
    return h;
}

/* ---- placement: one line for each run of layers that are placed alike ---- */

enum { PLACED_BYTES = 512 };

/* Adds ", word" unless the text holds it already. */
static void add_word(char *text, const char *word) {
    size_t used = strlen(text);
    if (word[0] != '\0' && strstr(text, word) == NULL)
        snprintf(text + used, PLACED_BYTES - used, "%s%s", used > 0 ? ", " : "", word);
}

/* "host: 16 ops; kernels ...; the main unit runs everything" for the layer that begins at entry i;
   returns the entry behind it. */
static size_t describe_layer(const fm_engine *engine, size_t i, int *layer,
                             char out[PLACED_BYTES]) {
    char devices[PLACED_BYTES] = "", kernels[PLACED_BYTES] = "", reasons[PLACED_BYTES] = "";
    size_t n = fm_engine_placement_count(engine), begin = i;
    fm_placement p;
    for (; i < n && fm_engine_placement(engine, i, &p, NULL) == FM_OK; i++) {
        if (i > begin && p.layer != *layer)
            break;
        *layer = p.layer;
        char part[160];
        snprintf(part, sizeof part, "%s%s%s", p.device, strcmp(p.axis, "whole") == 0 ? "" : " by ",
                 strcmp(p.axis, "whole") == 0 ? "" : p.axis);
        add_word(devices, part);
        add_word(kernels, p.kernel);
        add_word(reasons, p.reason);
    }
    int used = snprintf(out, PLACED_BYTES, "%s: %zu operation%s", devices, i - begin,
                        cli_plural(i - begin));
    if (used < PLACED_BYTES && kernels[0] != '\0')
        used += snprintf(out + used, PLACED_BYTES - (size_t)used, ", %s", kernels);
    if (used < PLACED_BYTES)
        snprintf(out + used, PLACED_BYTES - (size_t)used, " (%s)", reasons);
    return i > begin ? i : n;
}

static void print_layers(int first, int last, const char *text) {
    if (first < 0)
        fprintf(stderr, "  outside the layers  %s\n", text);
    else if (first == last)
        fprintf(stderr, "  layer %-13d %s\n", first, text);
    else
        fprintf(stderr, "  layers %3d to %-5d %s\n", first, last, text);
}

void cli_print_placement(const fm_engine *engine) {
    char text[PLACED_BYTES], next[PLACED_BYTES];
    size_t n = fm_engine_placement_count(engine);
    int first = 0, last = 0, layer = 0;
    fprintf(stderr, "where each layer ran:\n");
    for (size_t i = 0; i < n;) {
        bool begins = i == 0;
        i = describe_layer(engine, i, &layer, next);
        if (!begins && layer == last + 1 && last >= 0 && strcmp(text, next) == 0) {
            last = layer;
            continue;
        }
        if (!begins)
            print_layers(first, last, text);
        first = last = layer;
        memcpy(text, next, sizeof text);
    }
    if (n > 0)
        print_layers(first, last, text);
}

/* ---- the gate ---- */

static void calls_text(const fm_gate_info *gate, char *out, size_t capacity) {
    size_t used = 0;
    out[0] = '\0';
    for (int arm = FM_ARM_CPU; arm <= FM_ARM_SPLIT && used < capacity; arm++)
        if (gate->calls_of[arm] > 0)
            used +=
                (size_t)snprintf(out + used, capacity - used, "%s%s %llu", used > 0 ? ", " : "",
                                 fm_arm_name((fm_arm)arm), (unsigned long long)gate->calls_of[arm]);
}

void cli_print_gate(const fm_engine *engine) {
    fm_gate_info gate;
    char calls[160];
    fm_engine_gate_info(engine, &gate);
    if ((gate.arms & (gate.arms - 1)) == 0)
        return; /* one way to run: there was nothing to choose */
    calls_text(&gate, calls, sizeof calls);
    fprintf(stderr, "arms       prefill %s, decode %s; runs: %s\n",
            fm_arm_name(gate.active_prefill), fm_arm_name(gate.active_decode),
            calls[0] != '\0' ? calls : "none");
    if (gate.calls_of[FM_ARM_SPLIT] > 0 && (gate.share_prefill > 0 || gate.share_decode > 0))
        fprintf(stderr,
                "split      share of the last unit in all products: %.3f in prefill, %.3f in "
                "decode\n",
                gate.share_prefill, gate.share_decode);
    if (gate.calibrated)
        fprintf(stderr, "calibrated %.1f hours ago\n", gate.calibration_age_s / 3600);
    if (gate.calls > 0)
        fprintf(stderr,
                "gate       %llu call%s, %llu probe%s (%llu forbidden), %llu switch%s; probes lost "
                "%.1f of %.1f ms\n",
                (unsigned long long)gate.calls, cli_plural(gate.calls),
                (unsigned long long)gate.probes, cli_plural(gate.probes),
                (unsigned long long)gate.forbidden, (unsigned long long)gate.switches,
                gate.switches == 1 ? "" : "es", gate.lost_ms, gate.spent_ms);
}

struct json_t *cli_json_gate(const fm_engine *engine) {
    fm_gate_info gate;
    fm_engine_gate_info(engine, &gate);
    json_t *calls = json_object();
    for (int arm = FM_ARM_CPU; arm <= FM_ARM_SPLIT; arm++)
        json_object_set_new(calls, fm_arm_name((fm_arm)arm),
                            json_integer((json_int_t)gate.calls_of[arm]));
    return json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:b, s:f}", "prefill",
                     fm_arm_name(gate.active_prefill), "decode", fm_arm_name(gate.active_decode),
                     "runs", calls, "calls", (json_int_t)gate.calls, "probes",
                     (json_int_t)gate.probes, "forbidden", (json_int_t)gate.forbidden, "switches",
                     (json_int_t)gate.switches, "spent_ms", gate.spent_ms, "lost_ms", gate.lost_ms,
                     "share_prefill", gate.share_prefill, "share_decode", gate.share_decode,
                     "calibrated", gate.calibrated, "calibration_age_s", gate.calibration_age_s);
}

void cli_bytes_text(uint64_t bytes, char *out, size_t capacity) {
    if (bytes >= (UINT64_C(1) << 30))
        snprintf(out, capacity, "%.2f GiB", (double)bytes / 1073741824.0);
    else if (bytes >= (1u << 20))
        snprintf(out, capacity, "%.1f MiB", (double)bytes / 1048576.0);
    else
        snprintf(out, capacity, "%.1f KiB", (double)bytes / 1024.0);
}

int32_t cli_argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}
