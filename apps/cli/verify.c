/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: `fusionml verify`: a model against reference outputs (logits, greedy tokens, tokenizer
 * vectors). */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "npy.h"

/* The largest |logit difference| where it is not given. What a cache of q8_0 does to the logits of
   the models of tests/data/golden: up to 0.083 in the exact class, 0.096 in the fast one. */
static const double EXACT_TOLERANCE = 0.01, FAST_TOLERANCE = 0.1, Q8_TOLERANCE = 0.2;
/* Where the exact class does not decide it, tokens are compared where the leader is ahead by this
   many tolerances. */
static const double MARGIN = 1.5;

typedef struct subject {
    const cli_args *args;
    cli_scoring on;
    bool fast, exact_tokens; /* the latter: every greedy token must be the reference's */
    double usual_tolerance;
} subject;

typedef struct verdict {
    size_t rows; /* logit rows compared */
    double max_difference, sum_difference;
    uint64_t values;
    size_t tokens, tokens_equal;   /* greedy tokens that must agree */
    size_t close, close_equal;     /* those below the margin: counted only */
    size_t vectors, vectors_equal; /* tokenizer */
} verdict;

static fm_status open_subject(subject *s, const char *model, fm_error *error) {
    fm_class numeric_class = FM_CLASS_EXACT;
    cli_args args = *s->args;
    fm_engine_info info;
    args.model = model;
    (void)cli_class(args.numeric_class, FM_CLASS_EXACT, &numeric_class);
    fm_status status = cli_open_scoring(&args, numeric_class, &s->on, error);
    if (status != FM_OK)
        return status;
    fm_engine_get_info(s->on.engine, &info);
    s->fast = info.numeric_class == FM_CLASS_FAST;
    s->exact_tokens = !s->fast && info.cache_type == FM_CACHE_F16;
    s->usual_tolerance = info.cache_type != FM_CACHE_F16 ? Q8_TOLERANCE
                         : s->fast                       ? FAST_TOLERANCE
                                                         : EXACT_TOLERANCE;
    return FM_OK;
}

/* Whether a token must be the reference's where the leader is so far ahead. */
static bool is_judged(const subject *s, double margin) {
    return s->exact_tokens || margin >= MARGIN * s->usual_tolerance;
}

/* Leader's distance from the second of n logits. */
static double margin_of(const float *x, size_t n) {
    int32_t best = cli_argmax(x, n);
    double second = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if ((int32_t)i != best && x[i] > second)
            second = x[i];
    return (double)x[best] - second;
}

/* Reads {"name": [ids]} of an object. false: a message is on stderr. */
static bool read_ids(const json_t *object, const char *name, const char *place, int32_t **ids,
                     size_t *n) {
    const json_t *array = json_object_get(object, name);
    *n = json_array_size(array);
    *ids = malloc((*n + 1) * sizeof **ids);
    bool good = json_is_array(array) && *ids != NULL;
    for (size_t i = 0; good && i < *n; i++) {
        const json_t *id = json_array_get(array, i);
        good = json_is_integer(id) && json_integer_value(id) >= 0 &&
               json_integer_value(id) <= INT32_MAX;
        (*ids)[i] = good ? (int32_t)json_integer_value(id) : 0;
    }
    if (!good) {
        cli_fail_text("%s: \"%s\" is not an array of token ids", place, name);
        free(*ids);
        *ids = NULL;
    }
    return good;
}

static json_t *read_json(const char *path) {
    size_t bytes = 0;
    json_error_t problem;
    char *text = cli_read_file(path, &bytes);
    if (text == NULL)
        return NULL;
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, &problem);
    free(text);
    if (root == NULL)
        cli_fail_text("%s: line %d: %s", path, problem.line, problem.text);
    return root;
}

/* ---- a folder with expected.json and logits.npy ---- */

static fm_status compare_logits(subject *s, const int32_t *ids, size_t n, const float *want,
                                size_t vocab, verdict *v, fm_error *error) {
    const cli_scoring *on = &s->on;
    fm_status status = FM_OK;
    for (size_t begin = 0; status == FM_OK && begin < n; begin += on->rows) {
        size_t end = begin + on->rows < n ? begin + on->rows : n;
        status = cli_check_interrupt(error);
        fm_batch_clear(on->batch);
        for (size_t i = begin; status == FM_OK && i < end; i++)
            status = fm_batch_add(on->batch, on->session, ids[i], FM_OUTPUT_LOGITS, NULL, error);
        if (status == FM_OK)
            status = fm_engine_run(on->engine, on->batch, error);
        for (size_t i = begin; status == FM_OK && i < end; i++) {
            const float *got = fm_batch_output(on->batch, (uint32_t)(i - begin));
            const float *row = want + i * vocab;
            for (size_t j = 0; j < vocab; j++) {
                double d = fabs((double)got[j] - (double)row[j]);
                if (!isfinite(d)) /* neither side may be infinite or NaN: the worst difference */
                    d = INFINITY;
                if (d > v->max_difference)
                    v->max_difference = d;
                v->sum_difference += d;
            }
            v->values += vocab;
            v->rows++;
            if (!s->exact_tokens && is_judged(s, margin_of(row, vocab))) {
                v->tokens++;
                v->tokens_equal += cli_argmax(got, vocab) == cli_argmax(row, vocab);
            }
        }
    }
    return status;
}

/* Exact class: our own greedy path must be the reference's. Else teacher-forced, where our leader
 * leads. */
static fm_status compare_greedy(subject *s, const float *logits, const int32_t *greedy, size_t n,
                                verdict *v, fm_error *error) {
    size_t vocab = fm_engine_vocab_size(s->on.engine);
    fm_status status = FM_OK;
    for (size_t i = 0; status == FM_OK && i < n; i++) {
        bool equal = cli_argmax(logits, vocab) == greedy[i];
        if (!is_judged(s, margin_of(logits, vocab))) {
            v->close++;
            v->close_equal += equal;
        } else {
            v->tokens++;
            v->tokens_equal += equal;
        }
        if (i + 1 == n)
            break;
        status = cli_check_interrupt(error);
        if (status == FM_OK)
            status = fm_session_decode(s->on.session, greedy[i], &logits, error);
    }
    return status;
}

static int verify_folder(subject *s, const char *folder, verdict *v) {
    char path[1200];
    fm_error error = {0};
    int32_t *ids = NULL, *greedy = NULL;
    size_t n = 0, n_greedy = 0, rows = 0, cols = 0;
    float *want = NULL;
    int code = CLI_FAILED;
    snprintf(path, sizeof path, "%s/expected.json", folder);
    json_t *expected = read_json(path);
    if (expected == NULL || !read_ids(expected, "input_ids", path, &ids, &n) ||
        !read_ids(expected, "greedy", path, &greedy, &n_greedy))
        goto done;
    if (n == 0 || n_greedy == 0) {
        cli_fail_text("%s: without input ids or greedy tokens there is nothing to compare", path);
        goto done;
    }
    snprintf(path, sizeof path, "%s/logits.npy", folder);
    if ((want = npy_read(path, &rows, &cols)) == NULL)
        goto done;
    fm_status status = open_subject(s, folder, &error);
    if (status == FM_OK && (rows != n || cols != fm_engine_vocab_size(s->on.engine))) {
        cli_fail_text("%s: %zu x %zu logits, but %zu input ids and a vocabulary of %u", path, rows,
                      cols, n, fm_engine_vocab_size(s->on.engine));
        goto done;
    }
    if (status == FM_OK)
        status = compare_logits(s, ids, n, want, cols, v, &error);
    if (status == FM_OK) {
        const float *last = fm_batch_output(s->on.batch, (uint32_t)((n - 1) % s->on.rows));
        status = compare_greedy(s, last, greedy, n_greedy, v, &error);
    }
    code = status == FM_OK ? CLI_OK : cli_fail(&error);
done:
    free(want);
    free(ids);
    free(greedy);
    json_decref(expected);
    return code;
}

/* ---- a reference JSON: tokenizer vectors and greedy continuations ---- */

static fm_status check_encoding(const subject *s, const char *text, size_t bytes, unsigned flags,
                                const int32_t *want, size_t n_want, bool *equal, fm_error *error) {
    int32_t *got = NULL;
    size_t n = 0;
    fm_status status =
        fm_tokenizer_encode(fm_engine_tokenizer(s->on.engine), text, bytes, flags, &got, &n, error);
    *equal = status == FM_OK && n == n_want && (n == 0 || memcmp(got, want, n * sizeof *got) == 0);
    fm_free(got);
    return status;
}

/* One {"text", "ids", "ids_with_special"?, "decoded"?}. */
static bool check_vector(const subject *s, const json_t *vector, const char *place, verdict *v) {
    const json_t *text = json_object_get(vector, "text"),
                 *decoded = json_object_get(vector, "decoded");
    int32_t *ids = NULL, *special = NULL;
    size_t n = 0, n_special = 0, bytes = 0;
    bool equal = false, good = true;
    char *back = NULL;
    fm_error error = {0};
    if (!json_is_string(text) || !read_ids(vector, "ids", place, &ids, &n)) {
        cli_fail_text("%s: a tokenizer vector lacks \"text\"", place);
        return false;
    }
    fm_status status = check_encoding(s, json_string_value(text), json_string_length(text),
                                      FM_TOKENIZE_PARSE_SPECIAL, ids, n, &equal, &error);
    good = status == FM_OK && equal;
    if (good && json_object_get(vector, "ids_with_special") != NULL &&
        read_ids(vector, "ids_with_special", place, &special, &n_special)) {
        status = check_encoding(s, json_string_value(text), json_string_length(text),
                                FM_TOKENIZE_PARSE_SPECIAL | FM_TOKENIZE_ADD_SPECIAL, special,
                                n_special, &equal, &error);
        good = status == FM_OK && equal;
    }
    if (good && json_is_string(decoded)) {
        status = fm_tokenizer_decode(fm_engine_tokenizer(s->on.engine), ids, n, 1, &back, &bytes,
                                     &error);
        good = status == FM_OK && bytes == json_string_length(decoded) &&
               memcmp(back, json_string_value(decoded), bytes) == 0;
    }
    v->vectors++;
    v->vectors_equal += good;
    if (!good)
        fprintf(stderr, "tokenizer vector differs: %.60s%s%s\n", json_string_value(text),
                status != FM_OK ? ": " : "", status != FM_OK ? error.message : "");
    fm_free(back);
    free(special);
    free(ids);
    return true;
}

/* Teacher-forced over one {"prompt", "input_ids", "greedy_ids", "margins"?}. An exit status. */
static int check_continuation(subject *s, const json_t *entry, const char *place, verdict *v) {
    const json_t *margins = json_object_get(entry, "margins"),
                 *prompt = json_object_get(entry, "prompt");
    int32_t *ids = NULL, *greedy = NULL;
    size_t n = 0, n_greedy = 0, vocab = fm_engine_vocab_size(s->on.engine);
    const float *logits = NULL;
    fm_error error = {0};
    bool equal = false, read = read_ids(entry, "input_ids", place, &ids, &n) &&
                               read_ids(entry, "greedy_ids", place, &greedy, &n_greedy);
    int code = CLI_FAILED;
    fm_status status;
    if (read && s->args->margin_set && json_array_size(margins) != n_greedy) {
        snprintf(error.place, sizeof error.place, "%s", place);
        snprintf(error.message, sizeof error.message,
                 "--margin: the reference does not carry a margin for each greedy token");
        cli_fail(&error);
        read = false;
    }
    if (!read)
        goto done;
    status = fm_session_truncate(s->on.session, 0, &error);
    if (status == FM_OK && json_is_string(prompt)) {
        status = check_encoding(s, json_string_value(prompt), json_string_length(prompt),
                                FM_TOKENIZE_PARSE_SPECIAL | FM_TOKENIZE_ADD_SPECIAL, ids, n, &equal,
                                &error);
        v->vectors++;
        v->vectors_equal += equal;
        if (!equal)
            fprintf(stderr, "prompt's ids differ: %.60s\n", json_string_value(prompt));
    }
    if (status == FM_OK)
        status = fm_session_prefill(s->on.session, ids, n, &logits, &error);
    for (size_t i = 0; status == FM_OK && i < n_greedy; i++) {
        const json_t *margin = json_array_get(margins, i);
        bool same = cli_argmax(logits, vocab) == greedy[i];
        if (json_is_number(margin) && json_number_value(margin) < s->args->margin) {
            v->close++;
            v->close_equal += same;
        } else {
            v->tokens++;
            v->tokens_equal += same;
            if (!same)
                fprintf(stderr, "token %zu after \"%.40s\" differs: %d, reference %d\n", i,
                        json_is_string(prompt) ? json_string_value(prompt) : "",
                        cli_argmax(logits, vocab), greedy[i]);
        }
        if (i + 1 == n_greedy)
            break;
        status = cli_check_interrupt(&error);
        if (status == FM_OK)
            status = fm_session_decode(s->on.session, greedy[i], &logits, &error);
    }
    code = status == FM_OK ? CLI_OK : cli_fail(&error);
done:
    free(ids);
    free(greedy);
    return code;
}

static int verify_reference(subject *s, const char *model, const char *path, verdict *v) {
    fm_error error = {0};
    size_t i;
    const json_t *entry;
    int code = CLI_OK;
    json_t *root = read_json(path);
    if (root == NULL)
        return CLI_FAILED;
    const json_t *vectors = json_object_get(root, "tokenizer"),
                 *greedy = json_object_get(root, "greedy");
    if (open_subject(s, model, &error) != FM_OK) {
        code = cli_fail(&error);
    } else if (json_array_size(vectors) + json_array_size(greedy) == 0) {
        code = cli_fail_text("%s: neither \"tokenizer\" nor \"greedy\" has entries", path);
    } else if (fm_engine_tokenizer(s->on.engine) == NULL) {
        code = cli_fail_text("%s: the model carries no vocabulary", model);
    }
    json_array_foreach(vectors, i, entry) {
        if (code == CLI_OK && !check_vector(s, entry, path, v))
            code = CLI_FAILED;
    }
    json_array_foreach(greedy, i, entry) {
        if (code == CLI_OK)
            code = check_continuation(s, entry, path, v);
    }
    json_decref(root);
    return code;
}

static bool report(const subject *s, const verdict *v, double tolerance) {
    bool pass = v->max_difference <= tolerance && v->tokens == v->tokens_equal &&
                v->vectors == v->vectors_equal;
    const char *cache = fm_cache_type_name((fm_cache_type)s->args->cache_type);
    bool f16 = s->args->cache_type == FM_CACHE_F16;
    double mean = v->values > 0 ? v->sum_difference / (double)v->values : 0;
    if (s->args->json) {
        printf(
            "{\"pass\": %s, \"class\": \"%s\", \"cache\": \"%s\", \"rows\": %zu, \"max_difference\": %.9g, "
            "\"mean_difference\": %.9g, \"tokens\": %zu, \"tokens_equal\": %zu, \"close\": %zu, "
            "\"close_equal\": %zu, \"vectors\": %zu, \"vectors_equal\": %zu}\n",
            pass ? "true" : "false", s->fast ? "fast" : "exact", cache, v->rows,
            isfinite(v->max_difference) ? v->max_difference : -1, isfinite(mean) ? mean : -1,
            v->tokens, v->tokens_equal, v->close, v->close_equal, v->vectors, v->vectors_equal);
        return pass;
    }
    if (v->vectors > 0)
        printf("tokenizer: %zu of %zu equal\n", v->vectors_equal, v->vectors);
    if (v->rows > 0)
        printf("logits: %zu row%s, max |difference| %.3g, mean %.3g, tolerance %.3g\n", v->rows,
               cli_plural(v->rows), v->max_difference, mean, tolerance);
    if (v->tokens + v->close > 0)
        printf("greedy tokens: %zu of %zu equal", v->tokens_equal, v->tokens);
    if (v->close > 0)
        printf("; below the margin, not judged: %zu of %zu equal", v->close_equal, v->close);
    printf("%s%s class%s%s: %s\n", v->tokens + v->close > 0 ? "\n" : "", s->fast ? "fast" : "exact",
           f16 ? "" : ", cache of ", f16 ? "" : cache, pass ? "pass" : "FAIL");
    return pass;
}

int cli_verify(const cli_args *args) {
    subject s = {.args = args};
    verdict v = {0};
    fm_class numeric_class;
    int code;
    if (!cli_class(args->numeric_class, FM_CLASS_EXACT, &numeric_class)) {
        cli_fail_text("--class: \"%s\" is neither exact nor fast", args->numeric_class);
        return CLI_USAGE;
    }
    bool folder = args->n_positional == 1 && args->model == NULL && args->reference == NULL;
    if (folder ? args->margin_set : args->tolerance_set) {
        cli_fail_text("--margin goes with --reference, --tolerance with DIR");
        return CLI_USAGE;
    }
    if (folder) {
        code = verify_folder(&s, args->positional[0], &v);
    } else if (args->n_positional == 0 && args->reference != NULL) {
        code = verify_reference(&s, args->model, args->reference, &v);
    } else {
        cli_fail_text("either DIR, or -m MODEL with --reference JSON; see --help");
        return CLI_USAGE;
    }
    double tolerance = args->tolerance_set ? args->tolerance : s.usual_tolerance;
    if (code == CLI_OK && !report(&s, &v, tolerance))
        code = CLI_FAILED;
    return cli_close_scoring(&s.on) ? code : CLI_FAILED;
}
