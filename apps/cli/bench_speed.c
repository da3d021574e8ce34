/* SPDX-License-Identifier: Apache-2.0 */
/* bench_speed.c: `fusionml bench`: prompt and generation speed, with llama-bench's options, tests,
 * columns and JSON keys, so that a script that reads one reads the other.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench_print.h"
#include "cli.h"
#include "fusionml/lab.h"

enum { DEFAULT_REPEATS = 5, MAX_TOKENS = 1 << 20 };

/* One line of the output: a prompt, tokens one by one, or both, behind `depth` tokens. */
typedef struct test {
    uint32_t n_prompt, n_gen, n_depth;
    uint32_t n_batch, n_ubatch, n_threads; /* threads 0: as the machine has it */
} test;

typedef struct speed {
    const cli_args *args;
    fm_class numeric_class;
    uint32_t prompts[CLI_MAX_NUMBERS], n_prompt, gens[CLI_MAX_NUMBERS], n_gen;
    uint32_t pairs[CLI_MAX_TEXTS][2], n_pair;
    uint32_t depths[CLI_MAX_NUMBERS], n_depth, threads[CLI_MAX_NUMBERS], n_threads;
    uint32_t batches[CLI_MAX_NUMBERS], n_batch, ubatches[CLI_MAX_NUMBERS], n_ubatch;
    uint32_t context, repeats; /* tokens that the largest test needs */
    /* What is loaded now, and for which threads and ubatch. */
    const char *model; /* NULL: the embedded one */
    fm_machine *machine;
    fm_engine *engine;
    fm_session *session;
    fm_engine_info info;
    uint64_t file_bytes; /* of the file's tensors */
    uint32_t loaded_threads, loaded_ubatch;
    int32_t *ids; /* (context) pseudo-random; position p of a sequence gets ids[p] */
    double *ns;   /* (repeats) */
    double ops;   /* of the products of one repetition's prompt */
    json_t *stamp;
    char commit[16];
    bench_printer printers[2];
    uint32_t n_printer, tests_done, tests;
} speed;

/* ---- what is asked for ---- */

static bool numbers(const char *option, const cli_texts *texts, const char *otherwise,
                    uint32_t least, uint32_t most, uint32_t out[CLI_MAX_NUMBERS], uint32_t *n) {
    cli_texts standard = {{otherwise}, 1};
    return cli_numbers(option, texts->n > 0 ? texts : &standard, least, most, out, n);
}

static bool parse_pairs(speed *s, const cli_texts *texts) {
    for (uint32_t i = 0; i < texts->n; i++) {
        cli_texts one = {{texts->text[i]}, 1};
        uint32_t pair[CLI_MAX_NUMBERS], n = 0;
        if (!cli_numbers("-pg", &one, 0, MAX_TOKENS, pair, &n))
            return false;
        if (n != 2) {
            cli_fail_text("-pg: \"%s\" is not PP,TG: two numbers", texts->text[i]);
            return false;
        }
        memcpy(s->pairs[s->n_pair++], pair, sizeof s->pairs[0]);
    }
    return true;
}

static uint32_t largest(const uint32_t *values, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

static bool parse(speed *s) {
    const cli_args *a = s->args;
    s->repeats = a->repeats_set ? a->repeats : DEFAULT_REPEATS;
    if (!cli_class(a->numeric_class, FM_CLASS_AUTO, &s->numeric_class)) {
        cli_fail_text("--class: \"%s\" is neither exact nor fast", a->numeric_class);
        return false;
    }
    if (!numbers("-p", &a->n_prompt, "512", 0, MAX_TOKENS, s->prompts, &s->n_prompt) ||
        !numbers("-n", &a->n_gen, "128", 0, MAX_TOKENS, s->gens, &s->n_gen) ||
        !numbers("-d", &a->n_depth, "0", 0, MAX_TOKENS, s->depths, &s->n_depth) ||
        !numbers("-b", &a->n_batch, "2048", 1, MAX_TOKENS, s->batches, &s->n_batch) ||
        !numbers("-ub", &a->n_ubatch, "512", 1, MAX_TOKENS, s->ubatches, &s->n_ubatch) ||
        !parse_pairs(s, &a->n_pair))
        return false;
    if (a->n_threads.n == 0)
        s->n_threads = 1; /* of 0: as the machine has it */
    else if (!cli_numbers("-t", &a->n_threads, 1, 1024, s->threads, &s->n_threads))
        return false;
    uint32_t prompt = largest(s->prompts, s->n_prompt), gen = largest(s->gens, s->n_gen);
    uint32_t most = prompt > gen ? prompt : gen;
    for (uint32_t i = 0; i < s->n_pair; i++)
        if (s->pairs[i][0] + s->pairs[i][1] > most)
            most = s->pairs[i][0] + s->pairs[i][1];
    s->context = largest(s->depths, s->n_depth) + most;
    return true;
}

/* ---- loading ---- */

static void unload(speed *s, bool machine_too) {
    if (s->engine != NULL && s->printers[0].format == CLI_MD &&
        fm_machine_device_count(s->machine) > 1)
        cli_print_gate(s->engine);
    fm_session_destroy(&s->session);
    cli_close_engine(&s->engine);
    if (machine_too)
        fm_machine_destroy(&s->machine);
}

/* Bytes of the file's tensors; without a file, of the packed weights. */
static uint64_t tensor_bytes(const char *path, const fm_engine_info *info) {
    fm_checkpoint *checkpoint = NULL;
    uint64_t bytes = 0;
    if (path == NULL || fm_checkpoint_open(&checkpoint, path, NULL) != FM_OK)
        return info->weight_bytes + info->mapped_bytes;
    for (size_t i = 0; i < fm_checkpoint_tensor_count(checkpoint); i++) {
        fm_tensor_info tensor;
        if (fm_checkpoint_tensor(checkpoint, i, &tensor, NULL) == FM_OK)
            bytes += tensor.bytes;
    }
    fm_checkpoint_close(&checkpoint);
    return bytes;
}

static fm_status load(speed *s, const char *model, const test *t, fm_error *error) {
    cli_args args = *s->args;
    args.model = model;
    args.threads = t->n_threads;
    args.context = s->context;
    args.ubatch = t->n_ubatch;
    fm_status status = FM_OK;
    unload(s, s->machine != NULL && s->loaded_threads != t->n_threads);
    if (s->machine == NULL)
        status = cli_open_machine(&args, &s->machine, error);
    if (status == FM_OK)
        status = cli_open_engine(&args, s->numeric_class, s->machine, &s->engine, error);
    if (status == FM_OK)
        status = fm_session_create(&s->session, s->engine, NULL, error);
    if (status != FM_OK)
        return status;
    s->model = model;
    s->loaded_threads = t->n_threads;
    s->loaded_ubatch = t->n_ubatch;
    fm_engine_get_info(s->engine, &s->info);
    s->file_bytes = tensor_bytes(model, &s->info);
    uint64_t state = 1;
    for (uint32_t i = 0; i < s->context; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        s->ids[i] = (int32_t)((state >> 33) % fm_engine_vocab_size(s->engine));
    }
    if (s->stamp == NULL) {
        char *text = fm_lab_stamp(s->machine);
        s->stamp = json_loads(text != NULL ? text : "{}", 0, NULL);
        fm_free(text);
    }
    return FM_OK;
}

/* ---- measuring ---- */

/* Operations of the products that the last call ran. */
static void add_ops(speed *s) {
    fm_lab_times times;
    if (fm_lab_last_times(s->engine, &times, NULL) == FM_OK)
        for (uint32_t u = 0; u < times.n_unit; u++)
            s->ops += (double)times.ops[u];
}

/* Appends n ids, a batch at a time; the logits of each batch's last token are computed. */
static fm_status run_prompt(speed *s, uint32_t n, uint32_t batch, const float **logits,
                            fm_error *error) {
    uint32_t at = fm_session_length(s->session);
    fm_status status = FM_OK;
    for (uint32_t end = at + n; status == FM_OK && at < end;) {
        uint32_t now = end - at < batch ? end - at : batch;
        status = cli_check_interrupt(error);
        if (status == FM_OK)
            status = fm_session_prefill(s->session, s->ids + at, now, logits, error);
        at += now;
        add_ops(s);
    }
    return status;
}

static fm_status run_gen(speed *s, uint32_t n, const float **logits, fm_error *error) {
    uint32_t at = fm_session_length(s->session);
    fm_status status = FM_OK;
    for (uint32_t i = 0; status == FM_OK && i < n; i++) {
        status = cli_check_interrupt(error);
        if (status == FM_OK)
            status = fm_session_decode(s->session, s->ids[at + i], logits, error);
    }
    return status;
}

/* The depth once, then the untimed run and the timed ones, each from the depth on. *hash: of the
   last logits. */
static fm_status measure(speed *s, const test *t, uint64_t *hash, fm_error *error) {
    const float *logits = NULL;
    fm_status status = fm_session_truncate(s->session, 0, error);
    if (status == FM_OK && t->n_depth > 0)
        status = run_prompt(s, t->n_depth, t->n_batch, &logits, error);
    for (int r = s->args->no_warmup ? 0 : -1; status == FM_OK && r < (int)s->repeats; r++) {
        status = fm_session_truncate(s->session, t->n_depth, error);
        s->ops = 0;
        double begin = cli_now_ms();
        if (status == FM_OK && t->n_prompt > 0)
            status = run_prompt(s, t->n_prompt, t->n_batch, &logits, error);
        if (status == FM_OK && t->n_gen > 0)
            status = run_gen(s, r < 0 ? 1 : t->n_gen, &logits, error);
        if (r >= 0)
            s->ns[r] = floor((cli_now_ms() - begin) * 1e6 + 0.5);
    }
    if (status == FM_OK)
        *hash = cli_hash_ids((const int32_t *)logits, fm_engine_vocab_size(s->engine));
    return status;
}

/* ---- one row, as the JSON object whose keys are llama-bench's, ours behind them ---- */

static double mean(const double *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* Of a sample; 0 for a single value. */
static double deviation(const double *x, uint32_t n) {
    double centre = mean(x, n), sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (x[i] - centre) * (x[i] - centre);
    return n > 1 ? sqrt(sum / (n - 1)) : 0;
}

static const char *stamped(const speed *s, const char *key) {
    const char *text = json_string_value(json_object_get(s->stamp, key));
    return text != NULL ? text : "";
}

/* Short, as the peer has it. */
static const char *commit(speed *s) {
    const char *whole = stamped(s, "source");
    snprintf(s->commit, sizeof s->commit, "%.9s", whole[0] != '\0' ? whole : "unknown");
    return s->commit;
}

static void put(json_t *row, const char *key, json_t *value) {
    json_object_set_new(row, key, value);
}

static void put_text(json_t *row, const char *key, const char *text) {
    put(row, key, json_string(text));
}

static void put_int(json_t *row, const char *key, int64_t value) {
    put(row, key, json_integer(value));
}

/* Names and descriptions of the units: "vulkan:0,host", the GPUs' own names. */
static void list_units(const speed *s, char names[256], char gpus[256], fm_device_info *host,
                       bool *gpu_first) {
    fm_device_info d;
    names[0] = gpus[0] = '\0';
    *host = (fm_device_info){0};
    *gpu_first = false;
    for (size_t i = 0; i < fm_machine_device_count(s->machine); i++) {
        if (fm_machine_device(s->machine, i, &d, NULL) != FM_OK)
            continue;
        bool gpu = strcmp(d.kind, "gpu") == 0;
        size_t used = strlen(names);
        snprintf(names + used, 256 - used, "%s%s", i > 0 ? "," : "", d.name);
        used = strlen(gpus);
        if (gpu)
            snprintf(gpus + used, 256 - used, "%s%s", used > 0 ? ", " : "", d.description);
        else if (host->threads == 0)
            *host = d;
        *gpu_first = *gpu_first || (i == 0 && gpu);
    }
}

static json_t *samples(const double *x, uint32_t n, bool whole) {
    json_t *array = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(array, whole ? json_integer((json_int_t)x[i]) : json_real(x[i]));
    return array;
}

/* What the peer's options say, of which we have one value each. */
static void put_peer_options(json_t *row, const test *t, bool gpu_first, double split,
                             const char *names, const char *cache) {
    char share[16];
    snprintf(share, sizeof share, "%.2f", split > 0 ? split : 0);
    put_text(row, "cpu_mask", "0x0");
    put(row, "cpu_strict", json_false());
    put_int(row, "poll", 0);
    put_text(row, "type_k", cache);
    put_text(row, "type_v", cache);
    put_int(row, "n_gpu_layers", gpu_first ? -1 : 0);
    put_int(row, "n_cpu_moe", 0);
    put_text(row, "split_mode", "none");
    put_int(row, "main_gpu", 0);
    put(row, "no_kv_offload", json_false());
    put_int(row, "flash_attn", 1);
    put_text(row, "devices", names);
    put_text(row, "tensor_split", share);
    put_text(row, "tensor_buft_overrides", "none");
    put_text(row, "load_mode", "none");
    put(row, "embeddings", json_false());
    put_int(row, "no_op_offload", 0);
    put(row, "no_host", json_false());
    put_int(row, "fit_target", 0);
    put_int(row, "fit_min_ctx", 0);
    put_int(row, "n_prompt", t->n_prompt);
    put_int(row, "n_gen", t->n_gen);
    put_int(row, "n_depth", t->n_depth);
}

static void put_times(json_t *row, const speed *s, const test *t, double *ts) {
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    for (uint32_t r = 0; r < s->repeats; r++)
        ts[r] = s->ns[r] > 0 ? 1e9 * (t->n_prompt + t->n_gen) / s->ns[r] : 0;
    put_text(row, "test_time", when);
    put_int(row, "avg_ns", (int64_t)mean(s->ns, s->repeats));
    put_int(row, "stddev_ns", (int64_t)deviation(s->ns, s->repeats));
    put(row, "avg_ts", json_real(mean(ts, s->repeats)));
    put(row, "stddev_ts", json_real(deviation(ts, s->repeats)));
    put(row, "samples_ns", samples(s->ns, s->repeats, true));
    put(row, "samples_ts", samples(ts, s->repeats, false));
}

/* Keys that only we have. */
static void put_own(json_t *row, const speed *s, const test *t, const fm_device_info *host,
                    const double *ts, uint64_t hash) {
    char text[24];
    fm_gate_info gate;
    fm_engine_gate_info(s->engine, &gate);
    bool decode = t->n_prompt == 0;
    put_text(row, "arm", fm_arm_name(decode ? gate.active_decode : gate.active_prefill));
    put_text(row, "rung", host->rung);
    put_text(row, "class", s->info.numeric_class == FM_CLASS_EXACT ? "exact" : "fast");
    put_text(row, "weight_types", s->info.weight_types);
    put_int(row, "decode_bytes", (int64_t)s->info.decode_bytes);
    put(row, "decode_gb_s", /* 0: not a test of single tokens */
        json_real(decode ? mean(ts, s->repeats) * (double)s->info.decode_bytes / 1e9 : 0));
    put(row, "prompt_gop_s", /* 0: tokens one by one are in the time */
        json_real(t->n_gen == 0 ? s->ops / mean(s->ns, s->repeats) : 0));
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    put_text(row, "logits_hash", text);
}

static json_t *make_row(speed *s, const test *t, uint64_t hash) {
    char names[256], gpus[256], type[192];
    fm_device_info host;
    bool gpu_first;
    double *ts = calloc(s->repeats, sizeof *ts);
    json_t *row = json_object();
    if (ts == NULL || row == NULL) {
        free(ts);
        json_decref(row);
        return NULL;
    }
    list_units(s, names, gpus, &host, &gpu_first);
    snprintf(type, sizeof type, "%s %s", s->info.architecture, s->info.weight_types);
    put_text(row, "build_commit", commit(s));
    put_int(row, "build_number", 0);
    put_text(row, "cpu_info", stamped(s, "cpu"));
    put_text(row, "gpu_info", gpus);
    put_text(row, "backends", gpus[0] != '\0' ? "Vulkan" : "CPU");
    put_text(row, "model_filename", s->model != NULL ? s->model : "embedded");
    put_text(row, "model_type", type);
    put_int(row, "model_size", (int64_t)s->file_bytes);
    put_int(row, "model_n_params", (int64_t)s->info.parameters);
    put_int(row, "n_batch", t->n_batch);
    put_int(row, "n_ubatch", t->n_ubatch);
    put_int(row, "n_threads", host.threads);
    put_peer_options(row, t, gpu_first, s->args->split, names,
                     fm_cache_type_name(s->info.cache_type));
    put_times(row, s, t, ts);
    put_own(row, s, t, &host, ts, hash);
    free(ts);
    return row;
}

/* ---- all of it ---- */

static fm_status run_test(speed *s, const char *model, const test *t, fm_error *error) {
    uint64_t hash = 0;
    fm_status status = FM_OK;
    s->tests_done++;
    if (s->args->progress)
        fprintf(stderr, "test %u of %u: prompt %u, then %u, behind %u\n", s->tests_done, s->tests,
                t->n_prompt, t->n_gen, t->n_depth);
    if (s->engine == NULL || s->model != model || s->loaded_threads != t->n_threads ||
        s->loaded_ubatch != t->n_ubatch)
        status = load(s, model, t, error);
    if (status == FM_OK && s->args->delay > 0)
        sleep(s->args->delay);
    if (status == FM_OK)
        status = measure(s, t, &hash, error);
    if (status != FM_OK)
        return status;
    json_t *row = make_row(s, t, hash);
    if (row == NULL) {
        *error = (fm_error){FM_ERROR_MEMORY, "out of memory", ""};
        return error->status;
    }
    for (uint32_t i = 0; i < s->n_printer; i++)
        bench_print_row(&s->printers[i], row);
    if (s->printers[0].format == CLI_MD && s->n_printer == 1)
        bench_print_notes(row);
    json_decref(row);
    return FM_OK;
}

/* The tests of one model, threads, depth and batch: prompts, generations, pairs. */
static fm_status run_tests(speed *s, const char *model, test t, fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t i = 0; status == FM_OK && i < s->n_prompt; i++) {
        t.n_prompt = s->prompts[i];
        t.n_gen = 0;
        if (t.n_prompt > 0)
            status = run_test(s, model, &t, error);
    }
    for (uint32_t i = 0; status == FM_OK && i < s->n_gen; i++) {
        t.n_prompt = 0;
        t.n_gen = s->gens[i];
        if (t.n_gen > 0)
            status = run_test(s, model, &t, error);
    }
    for (uint32_t i = 0; status == FM_OK && i < s->n_pair; i++) {
        t.n_prompt = s->pairs[i][0];
        t.n_gen = s->pairs[i][1];
        if (t.n_prompt + t.n_gen > 0)
            status = run_test(s, model, &t, error);
    }
    return status;
}

/* In the peer's order, which reloads least. */
static fm_status run_model(speed *s, const char *model, fm_error *error) {
    fm_status status = FM_OK;
    test t = {0};
    for (uint32_t b = 0; b < s->n_batch; b++)
        for (uint32_t u = 0; u < s->n_ubatch; u++)
            for (uint32_t h = 0; h < s->n_threads; h++)
                for (uint32_t d = 0; status == FM_OK && d < s->n_depth; d++) {
                    t.n_batch = s->batches[b];
                    t.n_ubatch = s->ubatches[u];
                    t.n_threads = s->threads[h];
                    t.n_depth = s->depths[d];
                    status = run_tests(s, model, t, error);
                }
    return status;
}

/* Each -m is a list; a copy is cut at its commas. */
static fm_status run_models(speed *s, fm_error *error) {
    const cli_texts *models = &s->args->models;
    fm_status status = FM_OK;
    if (models->n == 0)
        return run_model(s, NULL, error);
    for (uint32_t i = 0; status == FM_OK && i < models->n; i++) {
        char *copy = strdup(models->text[i]), *rest = copy, *model;
        if (copy == NULL) {
            *error = (fm_error){FM_ERROR_MEMORY, "out of memory", ""};
            return error->status;
        }
        while (status == FM_OK && (model = strsep(&rest, ",")) != NULL)
            status = run_model(s, model, error);
        unload(s, false); /* s->model pointed into the copy */
        free(copy);
    }
    return status;
}

static uint32_t count_above_zero(const uint32_t *values, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += values[i] > 0;
    return count;
}

static void expect_tests(const speed *s, bench_printer *p) {
    uint32_t depth = largest(s->depths, s->n_depth);
    for (uint32_t i = 0; i < s->n_prompt; i++)
        bench_print_expect(p, s->prompts[i], 0, depth);
    for (uint32_t i = 0; i < s->n_gen; i++)
        bench_print_expect(p, 0, s->gens[i], depth);
    for (uint32_t i = 0; i < s->n_pair; i++)
        bench_print_expect(p, s->pairs[i][0], s->pairs[i][1], depth);
}

static void add_printer(speed *s, FILE *to, int format) {
    const cli_args *a = s->args;
    s->printers[s->n_printer++] = (bench_printer){.to = to,
                                                  .format = (cli_format)format,
                                                  .batch = a->n_batch.n > 0,
                                                  .ubatch = a->n_ubatch.n > 0,
                                                  .cache = a->cache_type != FM_CACHE_F16,
                                                  .devices = a->devices != NULL};
    expect_tests(s, &s->printers[s->n_printer - 1]);
}

int cli_bench_speed(const cli_args *args) {
    fm_error error = {0};
    int code = CLI_OK;
    speed *s = calloc(1, sizeof *s);
    if (s == NULL)
        return cli_fail_text("out of memory");
    s->args = args;
    if (!parse(s)) {
        free(s);
        return CLI_USAGE;
    }
    uint32_t models = args->models.n > 0 ? 0 : 1;
    for (uint32_t i = 0; i < args->models.n; i++) {
        models++;
        for (const char *c = args->models.text[i]; *c != '\0'; c++)
            models += *c == ',';
    }
    s->tests = models * s->n_batch * s->n_ubatch * s->n_threads * s->n_depth *
               (count_above_zero(s->prompts, s->n_prompt) + count_above_zero(s->gens, s->n_gen) +
                s->n_pair);
    if (s->tests == 0) {
        free(s);
        cli_fail_text("there is nothing to measure: -p and -n are 0");
        return CLI_USAGE;
    }
    if (args->verbose)
        cli_show_log(FM_LOG_INFO);
    add_printer(s, stdout, args->format);
    if (args->error_format_set)
        add_printer(s, stderr, args->error_format);
    s->ids = malloc((s->context > 0 ? s->context : 1) * sizeof *s->ids);
    s->ns = malloc(s->repeats * sizeof *s->ns);
    if (s->ids == NULL || s->ns == NULL) {
        code = cli_fail_text("out of memory");
    } else {
        fm_status status = run_models(s, &error);
        for (uint32_t i = 0; i < s->n_printer; i++)
            bench_print_end(&s->printers[i], commit(s));
        if (status != FM_OK)
            code = cli_fail(&error);
    }
    unload(s, true);
    json_decref(s->stamp);
    free(s->ids);
    free(s->ns);
    free(s);
    return code;
}
