/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/bench_kernels.c: every kernel alone, beside the roofs of the same call.
 *
 * Owns: the order of cases and rungs, and what is reported. Never does: arithmetic. Called from:
 * the measuring thread, while nothing else runs.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/probe.h"
#include "engine/bench.h"

enum {
    MAX_ITEMS = 32,
    MAX_RUNGS = 8,
    DEFAULT_REPEATS = 3,
    MAX_REPEATS = 1000,
    MAX_SIZE = 1 << 20,
    SAMPLE_NS = 10000000, /* a sample lasts at least this */
    SLOW_NS = 1000000000, /* above it one round is enough */
};

typedef struct bench {
    const fm_lab_kernels_options *options;
    fm_lab_kernels_callback *callback;
    void *user;
    fm__bench_team *team;
    fm__bench_pool pool;
    fm_lab_roofs roofs;
    fm__kernels ref, rungs[MAX_RUNGS];
    uint32_t n_rung, repeats;
    uint32_t tokens[MAX_ITEMS], n_tokens;
    fm__bench_shape shapes[MAX_ITEMS];
    uint32_t n_shape;
    bool types[FM__TYPE_COUNT];
    uint32_t ops;          /* bits by position in op_names */
    double *ns[MAX_RUNGS]; /* (2 * repeats) of one iteration */
    float *first;          /* the first rung's output of the case at work */
} bench;

static const char *const op_names[] = {"linear", "attention", "rmsnorm",  "rope", "quantise",
                                       "glu",    "add",       "kv_store", "roof", NULL};
enum { LINEAR, ATTENTION, FIRST_ROW_OP, ROOF = 8 };

/* Of Qwen2.5-0.5B, Llama-3.2-1B and Qwen2.5-7B. */
static const fm__bench_shape models[] = {
    {"0.5b", 896, 4864, 14, 2, 64},
    {"1b", 2048, 8192, 32, 8, 64},
    {"7b", 3584, 18944, 28, 4, 128},
};
enum { N_MODELS = sizeof models / sizeof models[0] };

/* ---- lists ---- */

/* The next word of a list, at most 63 bytes; false: none is left, or it is too long (*list then
   stays). */
static bool next_word(const char **list, char word[64]) {
    size_t bytes = strcspn(*list, ",");
    if (bytes == 0 || bytes > 63)
        return false;
    memcpy(word, *list, bytes);
    word[bytes] = '\0';
    *list += bytes + ((*list)[bytes] == ',');
    return true;
}

static fm_status bad_word(fm_error *error, const char *option, const char *word,
                          const char *allowed) {
    return fm__error(error, FM_ERROR_ARGUMENT, option, "\"%s\" is not one of %s", word, allowed);
}

static bool parse_number(const char *text, char **end, uint32_t *out) {
    unsigned long v = strtoul(text, end, 10);
    *out = (uint32_t)v;
    return *end != text && text[0] >= '0' && text[0] <= '9' && v > 0 && v <= MAX_SIZE;
}

static fm_status parse_ops(bench *b, const char *list, fm_error *error) {
    char word[64];
    if (list == NULL) {
        b->ops = (1u << ROOF) - 1;
        return FM_OK;
    }
    while (next_word(&list, word)) {
        uint32_t i = 0;
        while (op_names[i] != NULL && strcmp(op_names[i], word) != 0)
            i++;
        if (op_names[i] == NULL)
            return bad_word(error, "op", word,
                            "linear, attention, rmsnorm, rope, quantise, glu, add, kv_store, roof");
        b->ops |= 1u << i;
    }
    return *list == '\0' ? FM_OK : bad_word(error, "op", list, "the ops");
}

static fm_status parse_types(bench *b, const char *list, fm_error *error) {
    char word[64];
    for (size_t i = 0; list == NULL && i < FM__TYPE_COUNT; i++)
        b->types[i] = true;
    while (list != NULL && next_word(&list, word)) {
        size_t i = 0;
        while (i < FM__TYPE_COUNT && strcmp(fm__type_at(i)->name, word) != 0)
            i++;
        if (i == FM__TYPE_COUNT)
            return bad_word(error, "type", word,
                            "the weight types (`fusionml devices` lists them)");
        b->types[i] = true;
    }
    return list == NULL || *list == '\0' ? FM_OK : bad_word(error, "type", list, "the types");
}

static fm_status parse_shapes(bench *b, const char *list, fm_error *error) {
    char word[64], *end;
    for (list = list != NULL ? list : "0.5b,1b,7b";
         b->n_shape < MAX_ITEMS && next_word(&list, word);) {
        fm__bench_shape *shape = &b->shapes[b->n_shape++];
        uint32_t m = 0;
        while (m < N_MODELS && strcmp(models[m].name, word) != 0)
            m++;
        if (m < N_MODELS) {
            *shape = models[m];
            continue;
        }
        *shape = (fm__bench_shape){0};
        snprintf(shape->name, sizeof shape->name, "%.23s", word);
        if (!parse_number(word, &end, &shape->ffn) || *end != 'x' ||
            !parse_number(end + 1, &end, &shape->embd) || *end != '\0')
            return bad_word(error, "shape", word, "0.5b, 1b, 7b and NxK");
    }
    return *list == '\0' ? FM_OK : bad_word(error, "shape", list, "at most 32 shapes");
}

static fm_status parse_tokens(bench *b, const char *list, fm_error *error) {
    char word[64], *end;
    for (list = list != NULL ? list : "1,512"; b->n_tokens < MAX_ITEMS && next_word(&list, word);)
        if (!parse_number(word, &end, &b->tokens[b->n_tokens++]) || *end != '\0')
            return bad_word(error, "tokens", word, "the whole numbers from 1 to 1048576");
    return *list == '\0' ? FM_OK : bad_word(error, "tokens", list, "at most 32 whole numbers");
}

static fm_status parse_rungs(bench *b, const char *list, fm_error *error) {
    char word[64];
    fm_status status = FM_OK;
    if (list == NULL) {
        for (const char *const *name = fm__kernels_rungs(); *name != NULL; name++)
            if (status == FM_OK && strcmp(*name, "ref") != 0 && b->n_rung < MAX_RUNGS)
                status = fm__kernels_get(&b->rungs[b->n_rung++], *name, error);
        if (b->n_rung == 0)
            status = fm__kernels_get(&b->rungs[b->n_rung++], "ref", error);
        return status;
    }
    while (status == FM_OK && b->n_rung < MAX_RUNGS && next_word(&list, word))
        status = fm__kernels_get(&b->rungs[b->n_rung++], word, error);
    if (status != FM_OK || *list == '\0')
        return status;
    return bad_word(error, "rung", list, "at most 8 rungs");
}

static fm_status parse(bench *b, fm_error *error) {
    const fm_lab_kernels_options *o = b->options;
    if (o->repeats > MAX_REPEATS || o->depth > MAX_SIZE)
        return fm__error(error, FM_ERROR_ARGUMENT, o->repeats > MAX_REPEATS ? "repeats" : "depth",
                         "%d are the most", o->repeats > MAX_REPEATS ? MAX_REPEATS : MAX_SIZE);
    b->repeats = o->repeats > 0 ? o->repeats : DEFAULT_REPEATS;
    fm_status status = parse_ops(b, o->ops, error);
    if (status == FM_OK)
        status = parse_types(b, o->types, error);
    if (status == FM_OK)
        status = parse_shapes(b, o->shapes, error);
    if (status == FM_OK)
        status = parse_tokens(b, o->tokens, error);
    if (status == FM_OK)
        status = parse_rungs(b, o->rungs, error);
    return status;
}

/* ---- roofs ---- */

/* The last cache that the system names; virtual machines may name a part of it, or none. */
static size_t cache_bytes(void) {
    size_t most = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const int levels[] = {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        long bytes = sysconf(levels[i]);
        most = bytes > 0 && (size_t)bytes > most ? (size_t)bytes : most;
    }
#endif
    return most;
}

static bool asked_to_stop(const bench *b) {
    return b->options->cancelled != NULL && b->options->cancelled() != 0;
}

static void measure_roofs(bench *b) {
    fm_lab_roofs *r = &b->roofs;
    r->threads = fm__bench_team_threads(b->team);
    /* The machine's, whatever runs on it: threads that take turns would add their waits. */
    uint32_t threads = fm__bench_processors(r->threads);
    fm__cpu_name(r->cpu, sizeof r->cpu);
    fm__cpu_feature_text(fm__cpu_features(), r->features, sizeof r->features);
    r->cache_bytes = cache_bytes();
    /* More than the last cache, between 256 MiB and 1 GiB. */
    size_t wanted =
        fm__min_size(fm__max_size(r->cache_bytes / 2 * 3, (size_t)256 << 20), (size_t)1 << 30);
    if (b->options->weight_bytes > 0)
        wanted = (size_t)b->options->weight_bytes;
    r->weight_bytes = wanted;
    if (!asked_to_stop(b))
        r->vnni = fm__probe_vnni(threads, NULL);
    if (!asked_to_stop(b))
        r->fma = fm__probe_fma(threads, NULL);
    if (!asked_to_stop(b))
        r->bf16 = fm__probe_bf16(threads, NULL);
    if (!asked_to_stop(b))
        r->read = fm__probe_read_best(threads, NULL, wanted);
}

/* The roof that allows the case the least: which, and the seconds that it takes there. */
static const char *roof_of(const bench *b, const fm__bench_case *c, double *seconds) {
    const struct {
        const char *name;
        double rate;
    } units[] = {[FM__BENCH_NO_OPS] = {"", 0},
                 [FM__BENCH_VNNI] = {"vnni", b->roofs.vnni},
                 [FM__BENCH_FMA] = {"fma", b->roofs.fma},
                 [FM__BENCH_BF16] = {b->roofs.bf16 > 0 ? "bf16" : "fma",
                                     b->roofs.bf16 > 0 ? b->roofs.bf16 : b->roofs.fma}};
    double read = b->roofs.read > 0 ? c->bytes / (b->roofs.read * 1e9) : 0;
    double compute = units[c->unit].rate > 0 ? c->ops / (units[c->unit].rate * 1e9) : 0;
    *seconds = read > compute ? read : compute;
    return *seconds <= 0 ? "" : read > compute ? "read" : units[c->unit].name;
}

/* ---- one case on every rung ---- */

static fm_status cancelled(fm_error *error) {
    return fm__error(error, FM_ERROR_CANCELLED, "bench kernels", "stopped");
}

static fm_status report(bench *b, const fm_lab_kernel *kernel, fm_error *error) {
    if (b->callback(b->user, &b->roofs, kernel) == 0)
        return FM_OK;
    return cancelled(error);
}

static fm_status report_skipped(bench *b, const char *op, const char *type, uint32_t n, uint32_t k,
                                const char *reason, fm_error *error) {
    fm_lab_kernel kernel = {.op = op,
                            .type = type,
                            .numeric_class = "exact",
                            .rung = "",
                            .kernel = "",
                            .skipped = reason,
                            .n = n,
                            .k = k,
                            .roof = ""};
    return report(b, &kernel, error);
}

static fm_status check_cancelled(const bench *b, fm_error *error) {
    return fm__bench_team_cancelled(b->team) ? cancelled(error) : FM_OK;
}

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Once to warm up and to be checked; *iterations: how many a sample needs. */
static fm_status try_rung(bench *b, const fm__bench_case *c, const fm__kernels *kernels, bool first,
                          fm_lab_kernel *out, uint64_t *ns, fm_error *error) {
    fm__bench_check check;
    if (c->reset != NULL)
        c->reset(c);
    fm__bench_run(b->team, c, kernels, 1);
    fm_status status = check_cancelled(b, error);
    if (status == FM_OK)
        status = c->check(c, &b->ref, &check, error);
    if (status != FM_OK)
        return status;
    out->rows = check.rows;
    out->of_rows = check.of_rows;
    out->tokens_checked = check.tokens;
    out->good = check.good;
    out->error = check.error;
    if (first)
        memcpy(b->first, c->out, c->out_bytes);
    out->same = memcmp(b->first, c->out, c->out_bytes) == 0;
    *ns = fm__bench_run(b->team, c, kernels, c->copies) / c->copies;
    return FM_OK;
}

static void fill(const bench *b, const fm__bench_case *c, double *ns, uint32_t samples,
                 fm_lab_kernel *out) {
    double bound;
    qsort(ns, samples, sizeof *ns, ascending);
    double middle = fm_lab_median(ns, samples);
    out->samples = samples;
    out->ms = middle / 1e6;
    out->ms_low = ns[0] / 1e6;
    out->ms_high = ns[samples - 1] / 1e6;
    out->gop_s = c->ops / middle;
    out->gb_s = c->bytes / middle;
    out->roof = roof_of(b, c, &bound);
    out->of_roof = bound * 1e9 / middle;
}

static void describe(const fm__bench_case *c, const fm__kernels *kernels, fm_lab_kernel *out) {
    const char *name = c->kernel(c, kernels);
    *out = (fm_lab_kernel){.op = c->op,
                           .type = c->type,
                           .n = c->n,
                           .k = c->k,
                           .tokens = c->tokens,
                           .depth = c->depth,
                           .copies = c->copies,
                           .rung = kernels->rung,
                           .kernel = name != NULL ? name : "",
                           .roof = "",
                           .numeric_class = c->fast ? "fast" : "exact"};
    if (name == NULL)
        out->skipped = "the rung has no such kernel";
}

/* Rungs go A B C C B A, so that a drift of the machine is shared. */
static fm_status run_rungs(bench *b, fm__bench_case *c, fm_error *error) {
    fm_lab_kernel out[MAX_RUNGS];
    uint64_t ns[MAX_RUNGS] = {0}, slowest = 1;
    uint32_t iterations[MAX_RUNGS], samples = 0, repeats = b->repeats;
    bool first = true;
    fm_status status = FM_OK;
    for (uint32_t r = 0; status == FM_OK && r < b->n_rung; r++) {
        describe(c, &b->rungs[r], &out[r]);
        if (out[r].skipped != NULL)
            continue;
        status = try_rung(b, c, &b->rungs[r], first, &out[r], &ns[r], error);
        first = false;
        slowest = ns[r] > slowest ? ns[r] : slowest;
        uint64_t rounds = SAMPLE_NS / ((ns[r] > 0 ? ns[r] : 1) * c->copies) + 1;
        uint64_t most = FM__BENCH_ITERATIONS / c->copies;
        iterations[r] = (uint32_t)(rounds < most ? rounds : most) * c->copies;
        if (ns[r] > SLOW_NS / 8) /* so long that no cache holds what it reads */
            iterations[r] = 1;
        out[r].iterations = iterations[r];
    }
    if (status == FM_OK)
        status = check_cancelled(b, error);
    repeats = slowest > SLOW_NS ? 1 : repeats;
    for (uint32_t i = 0; status == FM_OK && i < 2 * repeats; i++, samples++)
        for (uint32_t j = 0; j < b->n_rung; j++) {
            uint32_t r = i % 2 == 0 ? j : b->n_rung - 1 - j;
            if (out[r].skipped == NULL)
                b->ns[r][samples] = (double)fm__bench_run(b->team, c, &b->rungs[r], iterations[r]) /
                                    ((double)iterations[r] * c->inner);
        }
    if (status == FM_OK)
        status = check_cancelled(b, error);
    for (uint32_t r = 0; status == FM_OK && r < b->n_rung; r++) {
        if (out[r].skipped == NULL)
            fill(b, c, b->ns[r], samples, &out[r]);
        status = report(b, &out[r], error);
    }
    return status;
}

static fm_status run_case(bench *b, fm__bench_case *c, fm_error *error) {
    b->first = fm__alloc(c->out_bytes);
    fm_status status =
        b->first != NULL ? run_rungs(b, c, error) : fm__error_memory(error, "bench", c->out_bytes);
    fm__free(b->first);
    b->first = NULL;
    c->destroy(c);
    return status;
}

/* ---- all cases ---- */

static bool any_kernel(const bench *b, size_t type, int fast) {
    for (uint32_t r = 0; r < b->n_rung; r++)
        if (b->rungs[r].linear[type][fast].fn != NULL)
            return true;
    return false;
}

static fm_status run_product(bench *b, const fm__type *type, bool fast, uint32_t n, uint32_t k,
                             uint32_t tokens, fm_error *error) {
    fm__random random;
    fm__bench_case *c;
    fm__random_seed(&random, b->options->seed);
    fm_status status = fm__bench_linear(&c, type, fast, n, k, tokens, b->roofs.weight_bytes,
                                        &b->pool, &random, error);
    return status == FM_OK ? run_case(b, c, error) : status;
}

/* Both products of a model's shape, (ffn, embd) and (embd, ffn); of a single one, that. */
static fm_status run_linear(bench *b, const fm__type *type, const fm__bench_shape *shape,
                            fm_error *error) {
    fm_status status = FM_OK;
    for (int turned = 0; turned < (shape->heads > 0 ? 2 : 1); turned++) {
        uint32_t n = turned ? shape->embd : shape->ffn, k = turned ? shape->ffn : shape->embd;
        if (status == FM_OK && k % type->block != 0) {
            status = report_skipped(b, "linear", type->name, n, k,
                                    "the row length is no multiple of the type's block", error);
            continue;
        }
        for (int fast = 0; fast < 2; fast++)
            for (uint32_t t = 0; status == FM_OK && t < b->n_tokens; t++)
                if (any_kernel(b, fm__type_index(type), fast))
                    status = run_product(b, type, fast != 0, n, k, b->tokens[t], error);
    }
    return status;
}

static fm_status run_attention(bench *b, fm__cache_type type, const fm__bench_shape *shape,
                               fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t t = 0; status == FM_OK && t < b->n_tokens; t++) {
        fm__random random;
        fm__bench_case *c;
        uint32_t depth = b->options->depth >= 0 ? (uint32_t)b->options->depth
                         : b->tokens[t] < 64    ? 1024
                                                : 0;
        fm__random_seed(&random, b->options->seed);
        status = fm__bench_attention(&c, type, shape, b->tokens[t], depth, b->roofs.weight_bytes,
                                     &b->pool, &random, error);
        if (status == FM_OK)
            status = run_case(b, c, error);
    }
    return status;
}

static fm_status run_attentions(bench *b, const fm__bench_shape *shape, fm_error *error) {
    if (shape->heads == 0)
        return report_skipped(b, "attention", "", shape->ffn, shape->embd,
                              "a product's shape has no heads", error);
    fm_status status = FM_OK;
    for (int type = 0; status == FM_OK && type < FM__CACHE_TYPES; type++)
        status = run_attention(b, (fm__cache_type)type, shape, error);
    return status;
}

static fm_status run_row_op(bench *b, fm__bench_row_op op, uint32_t variant,
                            const fm__bench_shape *shape, fm_error *error) {
    fm_status status = FM_OK;
    uint32_t width = shape->embd;
    if ((op == FM__BENCH_QUANTISE && variant == FM__ACT_Q8_32 && width % 32 != 0) ||
        (op == FM__BENCH_QUANTISE && variant == FM__ACT_Q8_256 && width % 256 != 0))
        return report_skipped(b, "quantise", variant == FM__ACT_Q8_32 ? "q8_32" : "q8_256", width,
                              0, "the row length is no multiple of the block", error);
    if (shape->heads == 0 && width % 2 != 0 && (op == FM__BENCH_ROPE || op == FM__BENCH_KV_STORE))
        return report_skipped(b, op_names[FIRST_ROW_OP + op], "", width, 0, "the width is odd",
                              error);
    for (uint32_t t = 0; status == FM_OK && t < b->n_tokens; t++) {
        fm__random random;
        fm__bench_case *c;
        fm__random_seed(&random, b->options->seed);
        status = fm__bench_rows(&c, op, variant, shape, b->tokens[t], &random, error);
        if (status == FM_OK)
            status = run_case(b, c, error);
    }
    return status;
}

static fm_status run_row_ops(bench *b, const fm__bench_shape *shape, fm_error *error) {
    static const uint32_t variants[] = {
        [FM__BENCH_RMSNORM] = 1, [FM__BENCH_ROPE] = 2, [FM__BENCH_QUANTISE] = FM__ACT_COUNT,
        [FM__BENCH_GLU] = 2,     [FM__BENCH_ADD] = 1,  [FM__BENCH_KV_STORE] = FM__CACHE_TYPES};
    fm_status status = FM_OK;
    for (int op = FM__BENCH_RMSNORM; op <= FM__BENCH_KV_STORE; op++)
        for (uint32_t v = 0; status == FM_OK && v < variants[op]; v++)
            if (b->ops & 1u << (FIRST_ROW_OP + op))
                status = run_row_op(b, (fm__bench_row_op)op, v, shape, error);
    return status;
}

static fm_status run_all(bench *b, fm_error *error) {
    measure_roofs(b);
    if (asked_to_stop(b))
        return cancelled(error);
    fm_status status = report(b, NULL, error);
    for (size_t i = 0; i < FM__TYPE_COUNT; i++)
        for (uint32_t s = 0; status == FM_OK && s < b->n_shape; s++)
            if ((b->ops & 1u << LINEAR) && b->types[i])
                status = run_linear(b, fm__type_at(i), &b->shapes[s], error);
    for (uint32_t s = 0; status == FM_OK && s < b->n_shape; s++) {
        if (b->ops & 1u << ATTENTION)
            status = run_attentions(b, &b->shapes[s], error);
        if (status == FM_OK)
            status = run_row_ops(b, &b->shapes[s], error);
    }
    return status;
}

fm_lab_kernels_options fm_lab_kernels_options_default(void) {
    return (fm_lab_kernels_options){.depth = -1};
}

fm_status fm_lab_kernels(const fm_lab_kernels_options *options, fm_lab_kernels_callback *callback,
                         void *user, fm_error *error) {
    const fm_lab_kernels_options standard = fm_lab_kernels_options_default();
    bench *b = fm__alloc_zero(sizeof *b);
    if (b == NULL)
        return fm__error_memory(error, "bench kernels", sizeof *b);
    b->options = options != NULL ? options : &standard;
    b->callback = callback;
    b->user = user;
    fm_status status = fm__kernels_get(&b->ref, "ref", error);
    if (status == FM_OK)
        status = parse(b, error);
    if (status == FM_OK)
        status = fm__bench_team_create(&b->team, b->options->threads, b->options->cancelled, error);
    for (uint32_t r = 0; status == FM_OK && r < b->n_rung; r++) {
        b->ns[r] = fm__alloc_array(2 * b->repeats, sizeof(double));
        if (b->ns[r] == NULL)
            status = fm__error_memory(error, "bench kernels", 2 * b->repeats * sizeof(double));
    }
    if (status == FM_OK)
        status = run_all(b, error);
    fm__bench_team_destroy(&b->team);
    fm__bench_pool_finish(&b->pool);
    for (uint32_t r = 0; r < MAX_RUNGS; r++)
        fm__free(b->ns[r]);
    fm__free(b);
    return status;
}
