/* SPDX-License-Identifier: Apache-2.0 */
/* perplexity.c: `fusionml perplexity`: mean negative log likelihood over windows of ids. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct scorer {
    cli_scoring on;
    double nll; /* sum over scored ids, nats */
    uint64_t scored;
} scorer;

/* -log softmax(logits)[target], in double. */
static double negative_log_likelihood(const float *logits, size_t n, int32_t target) {
    double max = logits[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum) - (double)logits[target];
}

static fm_status check_ids(const int32_t *ids, size_t n, uint32_t vocab, const char *place,
                           fm_error *error) {
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && (uint32_t)ids[i] < vocab)
            continue;
        *error = (fm_error){.status = FM_ERROR_FORMAT};
        snprintf(error->place, sizeof error->place, "%s", place);
        snprintf(error->message, sizeof error->message,
                 "id %d (number %zu) is outside the vocabulary, whose ids are 0 to %u", ids[i],
                 i + 1, vocab - 1);
        return error->status;
    }
    return FM_OK;
}

/* Scores every id of a window but its first. place: where the ids are from. */
static fm_status score_window(scorer *s, const int32_t *ids, size_t n, const char *place,
                              fm_error *error) {
    const cli_scoring *on = &s->on;
    uint32_t vocab = fm_engine_vocab_size(on->engine);
    fm_status status = fm_session_truncate(on->session, 0, error);
    if (status == FM_OK)
        status = check_ids(ids, n, vocab, place, error);
    for (size_t begin = 0; status == FM_OK && begin + 1 < n; begin += on->rows) {
        if ((status = cli_check_interrupt(error)) != FM_OK)
            break;
        size_t end = begin + on->rows < n - 1 ? begin + on->rows : n - 1;
        fm_batch_clear(on->batch); /* the last id is only a target */
        for (size_t i = begin; status == FM_OK && i < end; i++)
            status = fm_batch_add(on->batch, on->session, ids[i], FM_OUTPUT_LOGITS, NULL, error);
        if (status == FM_OK)
            status = fm_engine_run(on->engine, on->batch, error);
        for (size_t i = begin; status == FM_OK && i < end; i++) {
            const float *logits = fm_batch_output(on->batch, (uint32_t)(i - begin));
            double nll = negative_log_likelihood(logits, vocab, ids[i + 1]);
            if (!isfinite(nll)) {
                *error = (fm_error){FM_ERROR_NUMERIC, "a logit is not finite", "perplexity"};
                status = error->status;
            }
            s->nll += nll;
            s->scored++;
        }
    }
    return status;
}

static void show_progress(const scorer *s, size_t done, size_t total) {
    char phase[64];
    double ppl = s->scored > 0 ? exp(s->nll / (double)s->scored) : 0;
    snprintf(phase, sizeof phase, "window %zu/%zu ppl %.3f", done, total, ppl);
    cli_progress(NULL, phase, done, total);
}

static fm_status parse_ids(const char *line, size_t bytes, const char *place, int32_t **ids,
                           size_t *n, fm_error *error) {
    json_error_t problem;
    json_t *array = json_loadb(line, bytes, 0, &problem);
    size_t count = json_array_size(array);
    *ids = malloc((count + 1) * sizeof **ids);
    *n = count;
    bool good = json_is_array(array) && *ids != NULL;
    for (size_t i = 0; good && i < count; i++) {
        json_t *id = json_array_get(array, i);
        good = json_is_integer(id) && json_integer_value(id) >= 0 &&
               json_integer_value(id) <= INT32_MAX;
        (*ids)[i] = good ? (int32_t)json_integer_value(id) : 0;
    }
    json_decref(array);
    if (good)
        return FM_OK;
    free(*ids);
    *ids = NULL;
    *error = (fm_error){FM_ERROR_FORMAT, "is not a JSON array of token ids", ""};
    snprintf(error->place, sizeof error->place, "%s", place);
    return FM_ERROR_FORMAT;
}

static fm_status score_ids_file(scorer *s, const char *path, const char *text, size_t bytes,
                                fm_error *error) {
    size_t total = 0, number = 0;
    for (size_t i = 0; i < bytes; i++)
        total += text[i] == '\n';
    fm_status status = FM_OK;
    for (size_t begin = 0; begin < bytes && status == FM_OK; number++) {
        const char *newline = memchr(text + begin, '\n', bytes - begin);
        size_t end = newline != NULL ? (size_t)(newline - text) : bytes;
        int32_t *ids = NULL;
        size_t n = 0;
        char place[160];
        snprintf(place, sizeof place, "--ids: %s: line %zu", path, number + 1);
        if (end > begin && strspn(text + begin, " \t\r") < end - begin) {
            status = parse_ids(text + begin, end - begin, place, &ids, &n, error);
            if (status == FM_OK)
                status = score_window(s, ids, n, place, error);
            free(ids);
            show_progress(s, number + 1, total > 0 ? total : 1);
        }
        begin = end + 1;
    }
    return status;
}

static fm_status score_text(scorer *s, const char *text, size_t bytes, uint32_t window,
                            fm_error *error) {
    const fm_tokenizer *tokenizer = fm_engine_tokenizer(s->on.engine);
    if (tokenizer == NULL) {
        *error = (fm_error){FM_ERROR_UNSUPPORTED, "the model carries no vocabulary; use --ids", ""};
        return error->status;
    }
    int32_t *ids = NULL, *row = NULL, *probe = NULL;
    size_t n = 0, n_probe = 0;
    fm_status status =
        fm_tokenizer_encode(tokenizer, "", 0, FM_TOKENIZE_ADD_SPECIAL, &probe, &n_probe, error);
    int32_t bos = n_probe > 0 && probe[0] == fm_tokenizer_bos(tokenizer) ? probe[0] : -1;
    fm_free(probe);
    if (status == FM_OK)
        status = fm_tokenizer_encode(tokenizer, text, bytes, 0, &ids, &n, error);
    row = malloc(((size_t)window + 1) * sizeof *row);
    if (status == FM_OK && row == NULL) {
        *error = (fm_error){FM_ERROR_MEMORY, "out of memory", ""};
        status = error->status;
    }
    size_t lead = bos >= 0 ? 1 : 0, each = window - lead,
           n_window = each > 0 ? (n + each - 1) / each : 0;
    for (size_t w = 0; status == FM_OK && w < n_window; w++) {
        size_t take = n - w * each < each ? n - w * each : each;
        if (lead > 0)
            row[0] = bos;
        memcpy(row + lead, ids + w * each, take * sizeof *row);
        status = score_window(s, row, lead + take, "-f", error);
        show_progress(s, w + 1, n_window);
    }
    free(row);
    fm_free(ids);
    return status;
}

int cli_perplexity(const cli_args *given) {
    cli_args args = *given;
    scorer s = {0};
    fm_error error = {0};
    fm_class numeric_class;
    size_t bytes = 0;
    if ((args.file == NULL) == (args.ids == NULL)) {
        cli_fail_text("either -f FILE or --ids FILE is needed");
        return CLI_USAGE;
    }
    if (!cli_class(args.numeric_class, FM_CLASS_AUTO, &numeric_class)) {
        cli_fail_text("--class: \"%s\" is neither exact nor fast", args.numeric_class);
        return CLI_USAGE;
    }
    uint32_t window = args.context > 0 ? args.context : 512;
    if (window < 2) {
        cli_fail_text("-c: a window needs at least 2 ids");
        return CLI_USAGE;
    }
    if (args.file != NULL)
        args.context = window;
    char *text = cli_read_file(args.file != NULL ? args.file : args.ids, &bytes);
    if (text == NULL)
        return CLI_FAILED;
    fm_status status = cli_open_scoring(&args, numeric_class, &s.on, &error);
    double begin = cli_now_ms();
    if (status == FM_OK)
        status = args.file != NULL ? score_text(&s, text, bytes, window, &error)
                                   : score_ids_file(&s, args.ids, text, bytes, &error);
    double ms = cli_now_ms() - begin;
    cli_progress_end();
    int code = CLI_OK;
    if (status != FM_OK) {
        code = cli_fail(&error);
    } else if (s.scored == 0) {
        code = cli_fail_text("nothing to score: a window needs at least two ids");
    } else {
        double nll = s.nll / (double)s.scored;
        if (args.json)
            printf("{\"nll\": %.9f, \"ppl\": %.6f, \"tokens\": %llu}\n", nll, exp(nll),
                   (unsigned long long)s.scored);
        else
            printf("ppl %.4f  nll %.6f  tokens %llu\n", exp(nll), nll,
                   (unsigned long long)s.scored);
        fprintf(stderr, "%.1f s, %.1f tokens/s\n", ms / 1e3, (double)s.scored * 1e3 / ms);
        cli_print_gate(s.on.engine);
    }
    if (!cli_close_scoring(&s.on))
        code = CLI_FAILED;
    free(text);
    return code;
}
