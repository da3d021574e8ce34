/* SPDX-License-Identifier: Apache-2.0 */
/* bench_arms.c: `fusionml bench arms`: the arms of one engine, interleaved, with every sample kept.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "fusionml/lab.h"

enum { MAX_ARMS = 5, DEFAULT_ROUNDS = 9 };

/* What the units did in some calls, summed. */
typedef struct totals {
    double busy_ns[FM_LAB_UNITS], divided_ns[FM_LAB_UNITS]; /* the latter in divided products */
    double compute_ns[FM_LAB_UNITS], copy_ns[FM_LAB_UNITS]; /* what busy_ns is the union of */
    double work[FM_LAB_UNITS];                              /* ops in prefill, bytes in decode */
    double overlap_ns;
    uint32_t n_unit, calls;
    bool streams, observed; /* as in fm_lab_times */
} totals;

/* The prompt, or one token, with one arm. */
typedef struct phase {
    double *ns;    /* (rounds) */
    double *ideal; /* (rounds) ns, see ideal_ns() */
    totals units;  /* of all rounds */
} phase;

/* One arm at one prompt length. */
typedef struct series {
    phase prefill, decode;
    phase batch; /* of SPLIT: one prompt whose units wait for each other's whole submissions */
    uint64_t hash;
    bool same; /* every round gave the same tokens */
} series;

typedef struct comparison {
    const cli_args *args;
    fm_machine *machine;
    fm_engine *engine;
    fm_session *session;
    fm_arm arms[MAX_ARMS];
    uint32_t n_arm;
    uint32_t lengths[CLI_MAX_NUMBERS], n_length, n_decode, rounds;
    int32_t *prompt; /* (longest) */
    series series[CLI_MAX_NUMBERS][MAX_ARMS];
    bool equal_at[CLI_MAX_NUMBERS], equal; /* the arms' tokens: at one length, at all so far */
    char *before;                          /* stamp */
} comparison;

/* ---- what is asked for ---- */

static bool parse_arms(comparison *c, const char *text) {
    while (*text != '\0') {
        size_t bytes = strcspn(text, ",");
        int arm = FM_ARM_AUTO;
        while (arm <= FM_ARM_SPLIT && (strncmp(fm_arm_name((fm_arm)arm), text, bytes) != 0 ||
                                       fm_arm_name((fm_arm)arm)[bytes] != '\0'))
            arm++;
        if (arm > FM_ARM_SPLIT || c->n_arm == MAX_ARMS) {
            cli_fail_text("--arms: \"%.*s\" is not one of auto, cpu, gpu, gpu-eager, split",
                          (int)bytes, text);
            return false;
        }
        for (uint32_t i = 0; i < c->n_arm; i++)
            if (c->arms[i] == (fm_arm)arm) {
                cli_fail_text("--arms: \"%.*s\" is listed twice", (int)bytes, text);
                return false;
            }
        c->arms[c->n_arm++] = (fm_arm)arm;
        text += bytes + (text[bytes] == ',');
    }
    return true;
}

/* Without --arms: every arm that the engine has. With it: each must be there. */
static fm_status find_arms(comparison *c, fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t i = 0; status == FM_OK && i < c->n_arm; i++)
        status = fm_engine_set_arm(c->engine, c->arms[i], error);
    if (status == FM_ERROR_ARGUMENT)
        snprintf(error->place, sizeof error->place, "--arms");
    if (c->args->arms != NULL)
        return status;
    for (int arm = FM_ARM_CPU; arm <= FM_ARM_SPLIT; arm++)
        if (fm_engine_set_arm(c->engine, (fm_arm)arm, NULL) == FM_OK)
            c->arms[c->n_arm++] = (fm_arm)arm;
    return FM_OK;
}

static fm_status fail_memory(fm_error *error) {
    *error = (fm_error){FM_ERROR_MEMORY, "out of memory", ""};
    return FM_ERROR_MEMORY;
}

static bool make_phase(phase *p, uint32_t rounds) {
    p->ns = calloc(rounds, sizeof(double));
    p->ideal = calloc(rounds, sizeof(double));
    return p->ns != NULL && p->ideal != NULL;
}

static void free_phase(phase *p) {
    free(p->ns);
    free(p->ideal);
}

/* Before the model is loaded: on one unit there is one arm, which only --arms measures alone. */
static fm_status check_arms(const comparison *c, fm_error *error) {
    fm_device_info unit;
    if (!cli_has_one_unit(c->machine, &unit))
        return FM_OK;
    if (c->n_arm == 0) {
        *error = (fm_error){FM_ERROR_ARGUMENT, "", "--arms"};
        snprintf(error->message, sizeof error->message,
                 "there is one unit, %s, and so one arm, which --arms cpu measures alone; "
                 "else " CLI_NAME_TWO_UNITS,
                 unit.name);
        return error->status;
    }
    for (uint32_t i = 0; i < c->n_arm; i++) {
        if (c->arms[i] == FM_ARM_CPU || c->arms[i] == FM_ARM_AUTO)
            continue;
        *error = (fm_error){FM_ERROR_ARGUMENT, "", "--arms"};
        snprintf(error->message, sizeof error->message,
                 "there is one unit, %s, and so no arm %s: " CLI_NAME_TWO_UNITS, unit.name,
                 fm_arm_name(c->arms[i]));
        return error->status;
    }
    return FM_OK;
}

static fm_status open_all(comparison *c, fm_class numeric_class, fm_error *error) {
    cli_args args = *c->args;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < c->n_length; i++)
        longest = c->lengths[i] > longest ? c->lengths[i] : longest;
    args.context = longest + c->n_decode + 1;
    args.arm = FM_ARM_AUTO;
    c->prompt = malloc(longest * sizeof *c->prompt);
    if (c->prompt == NULL)
        return fail_memory(error);
    fm_status status = cli_open_machine(&args, &c->machine, error);
    if (status == FM_OK)
        status = check_arms(c, error);
    if (status == FM_OK)
        status = cli_open_engine(&args, numeric_class, c->machine, &c->engine, error);
    if (status == FM_OK)
        status = fm_session_create(&c->session, c->engine, NULL, error);
    if (status == FM_OK)
        status = find_arms(c, error);
    for (uint32_t l = 0; status == FM_OK && l < c->n_length; l++)
        for (uint32_t a = 0; a < c->n_arm; a++) {
            series *s = &c->series[l][a];
            s->same = true;
            if (!make_phase(&s->prefill, c->rounds) || !make_phase(&s->decode, c->rounds))
                status = fail_memory(error);
        }
    uint64_t state = 1;
    for (uint32_t i = 0; status == FM_OK && i < longest; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        c->prompt[i] = (int32_t)((state >> 33) % fm_engine_vocab_size(c->engine));
    }
    c->before = status == FM_OK ? fm_lab_stamp(c->machine) : NULL;
    return status;
}

static void close_all(comparison *c) {
    for (uint32_t l = 0; l < c->n_length; l++)
        for (uint32_t a = 0; a < c->n_arm; a++) {
            free_phase(&c->series[l][a].prefill);
            free_phase(&c->series[l][a].decode);
            free_phase(&c->series[l][a].batch);
        }
    fm_session_destroy(&c->session);
    cli_close_engine(&c->engine);
    fm_machine_destroy(&c->machine);
    free(c->prompt);
    fm_free(c->before);
}

/* ---- measuring ---- */

static void add_times(fm_engine *engine, totals *sum, bool bytes) {
    fm_lab_times times;
    if (fm_lab_last_times(engine, &times, NULL) != FM_OK)
        return;
    sum->n_unit = times.n_unit;
    sum->streams = times.streams;
    sum->observed |= times.observed;
    sum->calls++;
    sum->overlap_ns += (double)times.overlap_ns;
    for (uint32_t u = 0; u < times.n_unit; u++) {
        sum->busy_ns[u] += (double)times.busy_ns[u];
        sum->divided_ns[u] += (double)times.divided_ns[u];
        sum->compute_ns[u] += (double)times.compute_ns[u];
        sum->copy_ns[u] += (double)times.copy_ns[u];
        sum->work[u] += (double)(bytes ? times.weight_bytes[u] : times.ops[u]);
    }
}

/* The time of one call if its work had been divided perfectly: what is not divided as it was, then
   all that is at the sum of the rates that the units had beside each other, without a wait. The
   work is counted in products; what else a unit does of divided ops is in its time, so in its rate,
   and so are copies of weights, where they bound it. 0: some unit kept no time, or only a part of
   it, or nothing was divided. */
static double ideal_ns(const totals *t) {
    double work = 0, rate = 0, alone = 0;
    for (uint32_t u = 0; u < t->n_unit; u++) {
        alone += t->busy_ns[u] - t->divided_ns[u];
        if (t->work[u] <= 0)
            continue;
        if (t->divided_ns[u] <= 0)
            return 0;
        work += t->work[u];
        rate += t->work[u] / t->divided_ns[u];
    }
    return rate > 0 && t->calls > 0 ? (alone + work / rate) / t->calls : 0;
}

static void keep(phase *p, int round, double ns, const totals *units) {
    if (round < 0)
        return;
    p->ns[round] = ns;
    p->ideal[round] = ideal_ns(units);
    p->units.n_unit = units->n_unit;
    p->units.streams = units->streams;
    p->units.observed |= units->observed;
    p->units.calls += units->calls;
    p->units.overlap_ns += units->overlap_ns;
    for (uint32_t u = 0; u < units->n_unit; u++) {
        p->units.busy_ns[u] += units->busy_ns[u];
        p->units.divided_ns[u] += units->divided_ns[u];
        p->units.compute_ns[u] += units->compute_ns[u];
        p->units.copy_ns[u] += units->copy_ns[u];
        p->units.work[u] += units->work[u];
    }
}

static uint64_t mix(uint64_t hash, int32_t id) {
    return (hash ^ (uint32_t)id) * UINT64_C(0x100000001b3);
}

/* The prompt, then greedy tokens. round < 0: to warm up, nothing is kept. */
static fm_status measure(comparison *c, uint32_t length, uint32_t arm, int round, fm_error *error) {
    series *s = &c->series[length][arm];
    uint32_t vocab = fm_engine_vocab_size(c->engine);
    const float *logits = NULL;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    totals prefill = {0}, decode = {0};
    fm_status status = fm_session_truncate(c->session, 0, error);
    if (status == FM_OK)
        status = fm_engine_set_arm(c->engine, c->arms[arm], error);
    double begin = cli_now_ms(), spent = 0;
    if (status == FM_OK)
        status = fm_session_prefill(c->session, c->prompt, c->lengths[length], &logits, error);
    if (status != FM_OK)
        return status;
    double ns = (cli_now_ms() - begin) * 1e6;
    add_times(c->engine, &prefill, false);
    keep(&s->prefill, round, ns, &prefill);
    for (uint32_t i = 0; i < c->n_decode; i++) {
        int32_t id = cli_argmax(logits, vocab);
        hash = mix(hash, id);
        if ((status = cli_check_interrupt(error)) != FM_OK)
            return status;
        begin = cli_now_ms();
        if ((status = fm_session_decode(c->session, id, &logits, error)) != FM_OK)
            return status;
        spent += (cli_now_ms() - begin) * 1e6;
        add_times(c->engine, &decode, true);
    }
    keep(&s->decode, round, c->n_decode > 0 ? spent / c->n_decode : 0, &decode);
    hash = mix(hash, cli_argmax(logits, vocab));
    s->same = s->same && (round < 0 || round == 0 || s->hash == hash);
    s->hash = hash;
    return FM_OK;
}

/* SPLIT once more, for comparison, with dependencies that let nothing overlap. */
static fm_status measure_batch(comparison *c, uint32_t length, uint32_t arm, fm_error *error) {
    phase *p = &c->series[length][arm].batch;
    totals units = {0};
    double begin = 0;
    if (!make_phase(p, 1))
        return fail_memory(error);
    fm_status status = fm_engine_set_arm(c->engine, FM_ARM_SPLIT, error);
    if (status == FM_OK)
        status = fm_lab_set_deps(c->engine, FM_DEPS_BATCH, error);
    for (int i = 0; status == FM_OK && i < 2; i++) { /* the first to warm up */
        status = fm_session_truncate(c->session, 0, error);
        begin = cli_now_ms();
        if (status == FM_OK)
            status = fm_session_prefill(c->session, c->prompt, c->lengths[length], NULL, error);
    }
    if (status == FM_OK) {
        add_times(c->engine, &units, false);
        keep(p, 0, (cli_now_ms() - begin) * 1e6, &units);
        status = fm_lab_set_deps(c->engine, (fm_deps)c->args->deps, error);
    }
    return status;
}

static fm_status measure_length(comparison *c, uint32_t length, fm_error *error) {
    uint32_t each = c->n_arm * (c->rounds + 1), done = length * each;
    fm_status status = FM_OK;
    for (int round = -1; round < (int)c->rounds; round++)
        for (uint32_t i = 0; status == FM_OK && i < c->n_arm; i++) {
            uint32_t arm = fm_lab_order(c->n_arm, (uint32_t)(round + 1), i);
            cli_progress(NULL, "measuring", done++, c->n_length * each);
            status = cli_check_interrupt(error);
            if (status == FM_OK)
                status = measure(c, length, arm, round, error);
        }
    for (uint32_t a = 0; a < c->n_arm; a++)
        if (status == FM_OK && c->arms[a] == FM_ARM_SPLIT &&
            (status = cli_check_interrupt(error)) == FM_OK)
            status = measure_batch(c, length, a, error);
    for (uint32_t a = 0; status == FM_OK && a < c->n_arm; a++) {
        const series *s = &c->series[length][a];
        c->equal_at[length] =
            (a == 0 || c->equal_at[length]) && s->same && s->hash == c->series[length][0].hash;
    }
    c->equal = c->equal && c->equal_at[length];
    return status;
}

/* ---- what came out ---- */

static json_t *json_samples(const double *values, uint32_t n) {
    json_t *array = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer((json_int_t)values[i]));
    return array;
}

/* Part of the ideal that was reached, over paired rounds; 0: there is no ideal. */
static fm_lab_ratio of_ideal(const comparison *c, const phase *p) {
    fm_lab_ratio none = {0};
    for (uint32_t r = 0; r < c->rounds; r++)
        if (p->ideal[r] <= 0)
            return none;
    return fm_lab_paired_ratio(p->ideal, p->ns, c->rounds, 3);
}

/* Time with arm a over time with arm b: above 1, b is faster. */
static fm_lab_ratio speed_up(const comparison *c, const phase *a, const phase *b) {
    return fm_lab_paired_ratio(a->ns, b->ns, c->rounds, 1);
}

static json_t *json_ratio(fm_lab_ratio r) {
    return json_pack("{s:f, s:f, s:f}", "median", r.median, "low", r.low, "high", r.high);
}

static json_t *json_units(const double *sums, const totals *t) {
    json_t *array = json_array();
    for (uint32_t u = 0; u < t->n_unit; u++)
        json_array_append_new(array, json_real(t->calls > 0 ? sums[u] / t->calls : 0));
    return array;
}

static json_t *json_phase(const comparison *c, const phase *p) {
    const totals *t = &p->units;
    return json_pack("{s:f, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:f, s:o, s:o}", "median_ns",
                     fm_lab_median(p->ns, c->rounds), "ns", json_samples(p->ns, c->rounds),
                     "busy_ns", json_units(t->busy_ns, t), "divided_ns",
                     json_units(t->divided_ns, t), "compute_ns", json_units(t->compute_ns, t),
                     "copy_ns", json_units(t->copy_ns, t), "copies_observed", (int)t->observed,
                     "work", json_units(t->work, t), "overlap_ns",
                     t->calls > 0 ? t->overlap_ns / t->calls : 0, "ideal_ns",
                     json_samples(p->ideal, c->rounds), "of_ideal", json_ratio(of_ideal(c, p)));
}

static json_t *json_ratios(const comparison *c, uint32_t length) {
    json_t *array = json_array();
    for (uint32_t b = 1; c->equal_at[length] && b < c->n_arm; b++)
        for (uint32_t a = 0; a < b; a++) {
            const series *x = &c->series[length][a], *y = &c->series[length][b];
            json_array_append_new(
                array, json_pack("{s:s, s:s, s:o, s:o}", "arm", fm_arm_name(c->arms[b]), "over",
                                 fm_arm_name(c->arms[a]), "prefill",
                                 json_ratio(speed_up(c, &x->prefill, &y->prefill)), "decode",
                                 json_ratio(speed_up(c, &x->decode, &y->decode))));
        }
    return array;
}

static json_t *json_length(const comparison *c, uint32_t length) {
    json_t *arms = json_array();
    for (uint32_t a = 0; a < c->n_arm; a++) {
        const series *s = &c->series[length][a];
        char hash[17];
        snprintf(hash, sizeof hash, "%016" PRIx64, s->hash);
        json_t *arm =
            json_pack("{s:s, s:s, s:o, s:o}", "arm", fm_arm_name(c->arms[a]), "hash", hash,
                      "prefill", json_phase(c, &s->prefill), "decode", json_phase(c, &s->decode));
        if (s->batch.units.calls > 0)
            json_object_set_new(arm, "batch",
                                json_pack("{s:f, s:o, s:f}", "ns", s->batch.ns[0], "busy_ns",
                                          json_units(s->batch.units.busy_ns, &s->batch.units),
                                          "overlap_ns", s->batch.units.overlap_ns));
        json_array_append_new(arms, arm);
    }
    return json_pack("{s:I, s:o, s:o}", "prompt_tokens", (json_int_t)c->lengths[length], "arms",
                     arms, "ratios", json_ratios(c, length));
}

static int print_json(const comparison *c) {
    fm_engine_info info;
    json_error_t fault;
    char *after = fm_lab_stamp(c->machine);
    fm_engine_get_info(c->engine, &info);
    json_t *lengths = json_array();
    for (uint32_t l = 0; l < c->n_length; l++)
        json_array_append_new(lengths, json_length(c, l));
    json_t *root =
        json_pack("{s:i, s:s, s:s, s:I, s:I, s:b, s:o, s:o}", "arms", 1, "model",
                  c->args->model != NULL ? c->args->model : "embedded", "types", info.weight_types,
                  "decode_tokens", (json_int_t)c->n_decode, "rounds", (json_int_t)c->rounds,
                  "equal", (int)c->equal, "gate", cli_json_gate(c->engine), "lengths", lengths);
    json_object_set_new(root, "before", json_loads(c->before != NULL ? c->before : "", 0, &fault));
    json_object_set_new(root, "after", json_loads(after != NULL ? after : "", 0, &fault));
    fm_free(after);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL)
        return cli_fail_text("out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

/* In percent of the computing time of the unit that computed less. */
static double overlap_of(const totals *t) {
    double shorter = t->compute_ns[0] < t->compute_ns[1] ? t->compute_ns[0] : t->compute_ns[1];
    return shorter > 0 ? 100 * t->overlap_ns / shorter : 0;
}

static void print_ideal(const comparison *c, const phase *p, const char *what) {
    fm_lab_ratio r = of_ideal(c, p);
    if (p->units.n_unit < 2 || r.median <= 0)
        return;
    printf("  split, %s: ideal %.3f ms, %.3f of it reached (%.3f to %.3f)\n", what,
           fm_lab_median(p->ideal, c->rounds) / 1e6, r.median, r.low, r.high);
}

/* Of a unit that copies weights: what it computed, what it copied, and both together. */
static void print_copies(const char *arm, const phase *p, const char *what) {
    const totals *t = &p->units;
    for (uint32_t u = 0; u < t->n_unit && t->calls > 0; u++)
        if (t->copy_ns[u] > 0)
            printf("  %s, %s: unit %u computed for %.3f ms, copied weights for %s%.3f, either for "
                   "%.3f\n",
                   arm, what, u, t->compute_ns[u] / t->calls / 1e6,
                   t->observed ? "at most (that queue keeps no time) " : "",
                   t->copy_ns[u] / t->calls / 1e6, t->busy_ns[u] / t->calls / 1e6);
}

/* Both from the units' own timestamps. */
static void print_overlap(const comparison *c, const series *s) {
    static const char *const modes[] = {"event", "batch", "eager", "ready"};
    if (s->prefill.units.n_unit < 2 || s->prefill.units.calls == 0)
        return;
    printf(
        "  split, prompt: both units computed for %.1f %% of the time of the one that did less (%s)",
        overlap_of(&s->prefill.units), modes[c->args->deps]);
    if (s->batch.units.calls > 0)
        printf(", %.1f %% (batch, %.3f ms)", overlap_of(&s->batch.units), s->batch.ns[0] / 1e6);
    putchar('\n');
}

static void print_ratios(const comparison *c, uint32_t length) {
    for (uint32_t b = 1; c->equal_at[length] && b < c->n_arm; b++)
        for (uint32_t a = 0; a < b; a++) {
            const series *x = &c->series[length][a], *y = &c->series[length][b];
            fm_lab_ratio p = speed_up(c, &x->prefill, &y->prefill);
            fm_lab_ratio d = speed_up(c, &x->decode, &y->decode);
            printf("  %s over %s: prompt %.3f (%.3f to %.3f)", fm_arm_name(c->arms[b]),
                   fm_arm_name(c->arms[a]), p.median, p.low, p.high);
            if (c->n_decode > 0)
                printf(", token %.3f (%.3f to %.3f)", d.median, d.low, d.high);
            putchar('\n');
        }
}

static void print_length(const comparison *c, uint32_t length) {
    printf("\nprompt of %u token%s, then %u\n  %-10s %12s %12s   %s\n", c->lengths[length],
           cli_plural(c->lengths[length]), c->n_decode, "arm", "prompt ms", "ms a token",
           "tokens' hash");
    for (uint32_t a = 0; a < c->n_arm; a++) {
        const series *s = &c->series[length][a];
        printf("  %-10s %12.3f %12.3f   %016" PRIx64 "%s\n", fm_arm_name(c->arms[a]),
               fm_lab_median(s->prefill.ns, c->rounds) / 1e6,
               fm_lab_median(s->decode.ns, c->rounds) / 1e6, s->hash,
               s->same ? "" : " (not the same in every round)");
    }
    print_ratios(c, length);
    for (uint32_t a = 0; a < c->n_arm; a++) {
        print_copies(fm_arm_name(c->arms[a]), &c->series[length][a].prefill, "prompt");
        print_copies(fm_arm_name(c->arms[a]), &c->series[length][a].decode, "token");
    }
    for (uint32_t a = 0; a < c->n_arm; a++)
        if (c->arms[a] == FM_ARM_SPLIT) {
            print_ideal(c, &c->series[length][a].prefill, "prompt");
            print_ideal(c, &c->series[length][a].decode, "token");
            print_overlap(c, &c->series[length][a]);
        }
}

/* A length's table is printed once it is measured; JSON is one object of all of them. */
static fm_status measure_all(comparison *c, fm_error *error) {
    fm_status status = FM_OK;
    c->equal = true;
    for (uint32_t l = 0; status == FM_OK && l < c->n_length; l++) {
        status = measure_length(c, l, error);
        cli_progress_end();
        if (status != FM_OK || c->args->json)
            continue;
        print_length(c, l);
        fflush(stdout);
    }
    return status;
}

int cli_bench_arms(const cli_args *args) {
    comparison *c = calloc(1, sizeof *c);
    fm_error error = {0};
    fm_class numeric_class;
    int code = CLI_OK;
    if (c == NULL)
        return cli_fail_text("out of memory");
    cli_texts lengths = {{"64,128,256,512"}, 1};
    if (args->n_prompt.n > 0)
        lengths = args->n_prompt;
    c->args = args;
    c->n_decode = args->predict_set ? args->predict : 32;
    c->rounds = args->repeats_set ? args->repeats : DEFAULT_ROUNDS;
    if (!cli_class(args->numeric_class, FM_CLASS_AUTO, &numeric_class)) {
        cli_fail_text("--class: \"%s\" is neither exact nor fast", args->numeric_class);
        code = CLI_USAGE;
    } else if (!cli_numbers("-p", &lengths, 1, 1u << 20, c->lengths, &c->n_length) ||
               (args->arms != NULL && !parse_arms(c, args->arms)))
        code = CLI_USAGE;
    if (code != CLI_OK) {
        free(c);
        return code;
    }
    fm_status status = open_all(c, numeric_class, &error);
    if (status == FM_OK)
        status = measure_all(c, &error);
    cli_progress_end();
    if (status != FM_OK)
        code = cli_fail(&error);
    else if (args->json)
        code = print_json(c);
    if (code == CLI_OK && !c->equal)
        code = cli_fail_text("the arms' tokens differ: no ratio is given where they do");
    close_all(c);
    free(c);
    return code;
}
