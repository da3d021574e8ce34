/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: `fusionml run`: continues a prompt. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

/* What one answer needs; everything is released by finish(). */
typedef struct answer {
    const cli_args *args;
    fm_machine *machine;
    fm_engine *engine;
    fm_session *session;
    fm_sampler *sampler;
    fm_stream *stream;
    char *prompt;
    size_t prompt_bytes;
    int32_t *prompt_ids, *ids; /* (n_prompt), (n) of (capacity) */
    size_t n_prompt, n, capacity;
    char *text; /* the continuation so far, for --json */
    size_t text_bytes, text_capacity;
    uint64_t seed;
    double prompt_ms, decode_ms;
    size_t n_decode;    /* evaluated after the prompt */
    const char *reason; /* why it ended */
} answer;

/* false: the gate's log could not be written. */
static bool finish(answer *a) {
    fm_stream_destroy(&a->stream);
    fm_sampler_destroy(&a->sampler);
    fm_session_destroy(&a->session);
    bool good = cli_close_engine(&a->engine);
    fm_machine_destroy(&a->machine);
    fm_free(a->prompt_ids);
    free(a->prompt);
    free(a->ids);
    free(a->text);
    return good;
}

static fm_status fail_memory(fm_error *error) {
    *error = (fm_error){FM_ERROR_MEMORY, "out of memory", ""};
    return FM_ERROR_MEMORY;
}

/* From its first byte on the answer is one text: the library's lines wait for its end. */
static void show(const char *text, size_t bytes) {
    if (bytes > 0)
        cli_hold_log(true);
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

static void end_line(void) {
    putchar('\n');
    fflush(stdout);
    cli_hold_log(false);
}

static fm_status emit(answer *a, const char *piece, size_t bytes, fm_error *error) {
    if (!a->args->json) {
        show(piece, bytes);
        return FM_OK;
    }
    if (bytes > a->text_capacity - a->text_bytes) {
        size_t capacity = (a->text_bytes + bytes) * 2;
        char *larger = realloc(a->text, capacity);
        if (larger == NULL)
            return fail_memory(error);
        a->text = larger;
        a->text_capacity = capacity;
    }
    if (bytes > 0) /* the text may be NULL still */
        memcpy(a->text + a->text_bytes, piece, bytes);
    a->text_bytes += bytes;
    return FM_OK;
}

static fm_status open_engine(answer *a, fm_class numeric_class, fm_error *error) {
    fm_status status = cli_open_machine(a->args, &a->machine, error);
    if (status == FM_OK)
        status = cli_open_engine(a->args, numeric_class, a->machine, &a->engine, error);
    return status;
}

static fm_status open_all(answer *a, fm_class numeric_class, fm_error *error) {
    const cli_args *args = a->args;
    fm_sampler_options sampling = fm_sampler_options_default();
    const cli_texts *stops = &args->stops;
    size_t stop_bytes[CLI_MAX_TEXTS];
    for (uint32_t i = 0; i < stops->n; i++)
        stop_bytes[i] = strlen(stops->text[i]);
    a->seed = args->seed_set ? args->seed
                             : ((uint64_t)time(NULL) ^ ((uint64_t)getpid() << 32)) & INT64_MAX;
    sampling.temperature = (float)args->temperature;
    sampling.top_k = args->top_k;
    sampling.top_p = (float)args->top_p;
    sampling.min_p = (float)args->min_p;
    sampling.repeat_penalty = (float)args->repeat_penalty;
    sampling.repeat_last_n = args->repeat_last_n;
    sampling.seed = a->seed;
    fm_status status = fm_sampler_create(&a->sampler, &sampling, error);
    if (status == FM_OK)
        status = open_engine(a, numeric_class, error);
    if (status != FM_OK)
        return status;
    const fm_tokenizer *tokenizer = fm_engine_tokenizer(a->engine);
    if (tokenizer == NULL) {
        *error = (fm_error){FM_ERROR_UNSUPPORTED,
                            "the model carries no vocabulary, so text cannot be read", ""};
        snprintf(error->place, sizeof error->place, "%s", args->model != NULL ? args->model : "");
        return error->status;
    }
    status = fm_stream_create(&a->stream, tokenizer, stops->text, stop_bytes, stops->n, error);
    if (status == FM_OK)
        status = fm_session_create(&a->session, a->engine, NULL, error);
    if (status == FM_OK)
        status = fm_tokenizer_encode(tokenizer, a->prompt, a->prompt_bytes, FM_TOKENIZE_PROMPT,
                                     &a->prompt_ids, &a->n_prompt, error);
    if (status == FM_OK && a->prompt_bytes > 0)
        fm_stream_continue(a->stream); /* the answer's first space stands behind the prompt */
    if (status == FM_OK && a->n_prompt == 0) {
        *error = (fm_error){FM_ERROR_ARGUMENT,
                            "the prompt is empty and the model has no beginning-of-text token",
                            "prompt"};
        status = error->status;
    }
    for (size_t i = 0; status == FM_OK && i < a->n_prompt; i++)
        fm_sampler_accept(a->sampler, a->prompt_ids[i]);
    return status;
}

/* Draws, prints and evaluates tokens until something ends the answer. */
static fm_status generate(answer *a, const float *logits, fm_error *error) {
    const fm_tokenizer *tokenizer = fm_engine_tokenizer(a->engine);
    uint32_t vocab = fm_engine_vocab_size(a->engine),
             context = fm_session_context_length(a->session);
    size_t limit = a->args->predict_set ? a->args->predict : SIZE_MAX;
    const char *piece;
    size_t bytes;
    int stopped = 0;
    fm_status status = FM_OK;
    a->reason = "length";
    while (a->n < limit) {
        int32_t id;
        if (cli_interrupted()) {
            a->reason = "interrupted";
            break;
        }
        if ((status = fm_sampler_sample(a->sampler, logits, vocab, &id, error)) != FM_OK)
            return status;
        if (a->n == a->capacity) {
            size_t capacity = a->capacity == 0 ? 256 : a->capacity * 2;
            int32_t *larger = realloc(a->ids, capacity * sizeof *larger);
            if (larger == NULL)
                return fail_memory(error);
            a->ids = larger;
            a->capacity = capacity;
        }
        if (fm_tokenizer_is_end(tokenizer, id)) {
            a->reason = "stop";
            break;
        }
        a->ids[a->n++] = id;
        if ((status = fm_stream_push(a->stream, id, &piece, &bytes, &stopped, error)) != FM_OK ||
            (status = emit(a, piece, bytes, error)) != FM_OK)
            return status;
        if (stopped) {
            a->reason = "stop";
            break;
        }
        if (a->n == limit)
            break;
        if (fm_session_length(a->session) == context) {
            a->reason = "context";
            break;
        }
        double begin = cli_now_ms();
        status = fm_session_decode(a->session, id, &logits, error);
        if (status == FM_ERROR_CANCELLED) {
            a->reason = "interrupted";
            break;
        }
        if (status != FM_OK)
            return status;
        a->decode_ms += cli_now_ms() - begin;
        a->n_decode++;
    }
    status = fm_stream_finish(a->stream, &piece, &bytes, error);
    return status == FM_OK ? emit(a, piece, bytes, error) : status;
}

static double per_second(size_t n, double ms) {
    return n > 0 && ms > 1e-3 ? (double)n * 1e3 / ms : 0;
}

/* In a column. */
static const char *tokens(size_t n) {
    return n == 1 ? "token " : "tokens";
}

static void report(const answer *a) {
    fm_engine_info info;
    char weights[32], huge[32], cache[32], scratch[32], kept[32];
    fm_engine_get_info(a->engine, &info);
    cli_bytes_text(info.huge_bytes, huge, sizeof huge);
    cli_bytes_text(info.kept_bytes, kept, sizeof kept);
    cli_bytes_text(info.weight_bytes, weights, sizeof weights);
    cli_bytes_text(info.cache_bytes, cache, sizeof cache);
    cli_bytes_text(info.scratch_bytes, scratch, sizeof scratch);
    fprintf(stderr, "\n%s%s%s, %s, %s class, %u layer%s\n", info.name, info.name[0] ? ": " : "",
            info.architecture, info.weight_types,
            info.numeric_class == FM_CLASS_EXACT ? "exact" : "fast", info.n_layer,
            cli_plural(info.n_layer));
    fprintf(stderr,
            "load       %9.1f ms   weights %s (%s on huge pages), cache %s, scratch %s%s%s\n",
            info.load_ms, weights, huge, cache, scratch,
            info.kept_bytes > 0 ? ", kept by units " : "", info.kept_bytes > 0 ? kept : "");
    fprintf(stderr, "prompt     %9.1f ms   %6zu %s  %8.2f tokens/s\n", a->prompt_ms, a->n_prompt,
            tokens(a->n_prompt), per_second(a->n_prompt, a->prompt_ms));
    fprintf(stderr, "generation %9.1f ms   %6zu %s  %8.2f tokens/s  %6.2f GB/s of weights\n",
            a->decode_ms, a->n_decode, tokens(a->n_decode), per_second(a->n_decode, a->decode_ms),
            per_second(a->n_decode, a->decode_ms) * (double)info.decode_bytes / 1e9);
    fprintf(stderr, "seed %" PRIu64 ", ended by %s, output hash %016" PRIx64 "\n", a->seed,
            a->reason, cli_hash_ids(a->ids, a->n));
    cli_print_gate(a->engine);
}

static json_t *json_ids(const int32_t *ids, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static int print_json(const answer *a) {
    fm_engine_info info;
    fm_error error = {0};
    char hash[17];
    fm_engine_get_info(a->engine, &info);
    snprintf(hash, sizeof hash, "%016" PRIx64, cli_hash_ids(a->ids, a->n));
    json_t *timings = json_pack(
        "{s:f, s:f, s:I, s:f, s:f, s:I, s:I, s:f, s:f, s:f}", "load_ms", info.load_ms, "pack_ms",
        info.pack_ms, "prompt_n", (json_int_t)a->n_prompt, "prompt_ms", a->prompt_ms,
        "prompt_per_second", per_second(a->n_prompt, a->prompt_ms), "predicted_n", (json_int_t)a->n,
        "decode_n", (json_int_t)a->n_decode, "decode_ms", a->decode_ms, "decode_per_second",
        per_second(a->n_decode, a->decode_ms), "decode_gb_per_second",
        per_second(a->n_decode, a->decode_ms) * (double)info.decode_bytes / 1e9);
    json_t *root = json_object();
    json_object_set_new(root, "prompt_ids", json_ids(a->prompt_ids, a->n_prompt));
    json_object_set_new(root, "ids", json_ids(a->ids, a->n));
    json_object_set_new(root, "text", json_stringn(a->text != NULL ? a->text : "", a->text_bytes));
    json_object_set_new(root, "finish", json_string(a->reason));
    json_object_set_new(root, "seed", json_integer((json_int_t)a->seed));
    json_object_set_new(root, "timings", timings);
    json_object_set_new(root, "weights",
                        json_pack("{s:I, s:I}", "bytes", (json_int_t)info.weight_bytes,
                                  "huge_bytes", (json_int_t)info.huge_bytes));
    json_object_set_new(root, "hash", json_string(hash));
    json_object_set_new(root, "gate", cli_json_gate(a->engine));
    if (a->args->explain) {
        json_t *plans = cli_explain_json(a->engine, a->args, &error);
        if (plans == NULL) {
            json_decref(root);
            return cli_fail(&error);
        }
        json_object_set_new(root, "plans", plans);
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL)
        return cli_fail_text("out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

/* `--explain` without a prompt: the plans, and no run. */
static int explain_only(answer *a, fm_class numeric_class) {
    fm_error error = {0};
    fm_status status = open_engine(a, numeric_class, &error);
    if (status == FM_OK)
        status = cli_explain(a->engine, a->args, stdout, &error);
    int code = status == FM_OK ? CLI_OK : cli_fail(&error);
    return finish(a) ? code : CLI_FAILED;
}

int cli_run(const cli_args *args) {
    answer a = {.args = args, .reason = "length"};
    fm_error error = {0};
    fm_class numeric_class;
    const float *logits = NULL;
    int code = CLI_OK;
    if (!cli_class(args->numeric_class, FM_CLASS_AUTO, &numeric_class)) {
        cli_fail_text("--class: \"%s\" is neither exact nor fast", args->numeric_class);
        return CLI_USAGE;
    }
    if (args->prompt != NULL && args->file != NULL) {
        cli_fail_text("-p and -f exclude each other");
        return CLI_USAGE;
    }
    if (args->explain && args->prompt == NULL && args->file == NULL)
        return explain_only(&a, numeric_class);
    if ((a.prompt = cli_input(args, &a.prompt_bytes)) == NULL)
        return CLI_FAILED;
    fm_status status = open_all(&a, numeric_class, &error);
    if (status == FM_OK && args->explain && !args->json)
        status = cli_explain(a.engine, args, stderr, &error);
    if (status == FM_OK && args->echo && !args->json)
        show(a.prompt, a.prompt_bytes);
    if (status == FM_OK) {
        double begin = cli_now_ms();
        if (cli_interrupted())
            status = FM_ERROR_CANCELLED; /* between loading and here, no run could be cancelled */
        else
            status = fm_session_prefill(a.session, a.prompt_ids, a.n_prompt, &logits, &error);
        a.prompt_ms = cli_now_ms() - begin;
        if (status == FM_ERROR_CANCELLED && cli_interrupted()) {
            a.reason = "interrupted";
            status = FM_OK;
        } else if (status == FM_OK) {
            status = generate(&a, logits, &error);
        }
    }
    if (status != FM_OK) {
        if (!args->json && (a.n > 0 || args->echo))
            end_line();
        code = cli_fail(&error);
    } else {
        if (args->json)
            code = print_json(&a);
        else
            end_line();
        fflush(stdout);
        report(&a);
        if (args->placement)
            cli_print_placement(a.engine);
        if (code == CLI_OK && strcmp(a.reason, "interrupted") == 0)
            code = CLI_INTERRUPTED;
    }
    return finish(&a) ? code : CLI_FAILED;
}
