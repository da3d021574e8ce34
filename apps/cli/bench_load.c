/* SPDX-License-Identifier: Apache-2.0 */
/* bench_load.c: `fusionml bench load`: what a load takes beside reading its file. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "fusionml/lab.h"

enum { DEFAULT_ROUNDS = 3, MAX_ROUNDS = 1000, LOAD = FM_LAB_READING_COUNT, STEPS };

static const char *const names[STEPS] = {
    [FM_LAB_READ_AGAIN] = "read into 1 MiB a thread",
    [FM_LAB_READ_MAPPED] = "touch a mapping",
    [FM_LAB_READ_FRESH] = "read into new memory",
    [LOAD] = "load",
};
static const char *const keys[STEPS] = {
    [FM_LAB_READ_AGAIN] = "read_again",
    [FM_LAB_READ_MAPPED] = "touch_mapped",
    [FM_LAB_READ_FRESH] = "read_fresh",
    [LOAD] = "load",
};

/* What was measured: a row of each figure a step, a column a round. */
typedef struct loads {
    const cli_args *args;
    uint32_t rounds;
    double ms[STEPS][MAX_ROUNDS], user[STEPS][MAX_ROUNDS], system[STEPS][MAX_ROUNDS];
    double cpu[STEPS][MAX_ROUNDS], faults[STEPS][MAX_ROUNDS], pack[MAX_ROUNDS];
    uint64_t bytes; /* of the file */
    fm_engine_info info;
} loads;

static fm_status load_once(loads *l, uint32_t round, fm_lab_cost *out, fm_error *error) {
    fm_machine *machine = NULL;
    fm_engine *engine = NULL;
    fm_status status = cli_open_machine(l->args, &machine, error);
    if (status != FM_OK)
        return status;
    fm_lab_cost before = fm_lab_cost_now();
    status = cli_open_engine(l->args, FM_CLASS_AUTO, machine, &engine, error);
    fm_lab_cost after = fm_lab_cost_now();
    if (status == FM_OK) {
        fm_engine_get_info(engine, &l->info);
        l->pack[round] = l->info.pack_ms;
        *out = (fm_lab_cost){after.ms - before.ms, after.user_ms - before.user_ms,
                             after.system_ms - before.system_ms, after.faults - before.faults};
    }
    cli_close_engine(&engine);
    fm_machine_destroy(&machine);
    return status;
}

static fm_status step(loads *l, uint32_t which, uint32_t round, fm_error *error) {
    fm_lab_cost cost = {0};
    fm_status status = FM_OK;
    if (which >= FM_LAB_READ_FRESH) /* both take about as much new memory as the file is long */
        status = fm_lab_warm_memory(l->bytes + l->bytes / 8, l->args->threads, error);
    if (status != FM_OK)
        return status;
    status = which == LOAD ? load_once(l, round, &cost, error)
                           : fm_lab_read(l->args->model, (fm_lab_reading)which, l->args->threads,
                                         &l->bytes, &cost, error);
    l->ms[which][round] = cost.ms;
    l->user[which][round] = cost.user_ms;
    l->system[which][round] = cost.system_ms;
    l->cpu[which][round] = cost.user_ms + cost.system_ms;
    l->faults[which][round] = (double)cost.faults;
    return status;
}

/* Forwards and backwards by turns. The first reading is measured again: it brings the file into the
   page cache. */
static fm_status measure(loads *l, fm_error *error) {
    fm_status status = step(l, FM_LAB_READ_AGAIN, 0, error);
    for (uint32_t round = 0; round < l->rounds; round++)
        for (uint32_t i = 0; i < STEPS && status == FM_OK; i++) {
            status = cli_check_interrupt(error);
            if (status == FM_OK)
                status = step(l, round % 2 ? STEPS - 1 - i : i, round, error);
        }
    return status;
}

/* What disturbs only adds. */
static double least(const loads *l, const double *values) {
    double best = values[0];
    for (uint32_t i = 1; i < l->rounds; i++)
        best = values[i] < best ? values[i] : best;
    return best;
}

static double ratio(const loads *l, double values[STEPS][MAX_ROUNDS], uint32_t below) {
    return least(l, values[LOAD]) / least(l, values[below]);
}

static void print_table(loads *l) {
    char file[32], weights[32], huge[32];
    cli_bytes_text(l->bytes, file, sizeof file);
    cli_bytes_text(l->info.weight_bytes, weights, sizeof weights);
    cli_bytes_text(l->info.huge_bytes, huge, sizeof huge);
    printf("| %-24s | %9s | %6s | %9s | %9s | %9s |\n", "step", "ms", "GB/s", "user ms",
           "kernel ms", "faults");
    printf("| %-24s | %9s | %6s | %9s | %9s | %9s |\n", "---", "--:", "--:", "--:", "--:", "--:");
    for (uint32_t i = 0; i < STEPS; i++) {
        double ms = least(l, l->ms[i]);
        printf("| %-24s | %9.1f | %6.2f | %9.1f | %9.1f | %9.0f |\n", names[i], ms,
               (double)l->bytes / 1e6 / ms, least(l, l->user[i]), least(l, l->system[i]),
               least(l, l->faults[i]));
    }
    printf("| %-24s | %9.1f | %6.2f | %9s | %9s | %9s |\n", "of it, packing", least(l, l->pack),
           (double)l->bytes / 1e6 / least(l, l->pack), "", "", "");
    printf("\nfile %s, weights %s (%s on huge pages), %u round%s\n", file, weights, huge, l->rounds,
           l->rounds == 1 ? "" : "s");
    printf(
        "load over reading into new memory: %.2f (CPU time %.2f); into 1 MiB a thread: %.2f (CPU "
        "time %.2f)\n",
        ratio(l, l->ms, FM_LAB_READ_FRESH), ratio(l, l->cpu, FM_LAB_READ_FRESH),
        ratio(l, l->ms, FM_LAB_READ_AGAIN), ratio(l, l->cpu, FM_LAB_READ_AGAIN));
}

static json_t *array(const double *values, uint32_t n) {
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(a, json_real(values[i]));
    return a;
}

static int print_json(loads *l) {
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:f}", "bytes", (json_int_t)l->bytes, "weight_bytes",
        (json_int_t)l->info.weight_bytes, "huge_bytes", (json_int_t)l->info.huge_bytes, "pack_ms",
        array(l->pack, l->rounds), "over_read_fresh", ratio(l, l->ms, FM_LAB_READ_FRESH),
        "over_read_fresh_cpu", ratio(l, l->cpu, FM_LAB_READ_FRESH), "over_read_again",
        ratio(l, l->ms, FM_LAB_READ_AGAIN), "over_read_again_cpu",
        ratio(l, l->cpu, FM_LAB_READ_AGAIN));
    for (uint32_t i = 0; i < STEPS; i++)
        json_object_set_new(root, keys[i],
                            json_pack("{s:o, s:o, s:o, s:o}", "ms", array(l->ms[i], l->rounds),
                                      "user_ms", array(l->user[i], l->rounds), "system_ms",
                                      array(l->system[i], l->rounds), "faults",
                                      array(l->faults[i], l->rounds)));
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL)
        return cli_fail_text("out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

int cli_bench_load(const cli_args *args) {
    static loads l; /* too large for the stack */
    fm_error error = {0};
    if (args->model == NULL) {
        cli_fail_text("-m MODEL is needed");
        return CLI_USAGE;
    }
    l.args = args;
    l.rounds = args->repeats_set ? args->repeats : DEFAULT_ROUNDS;
    cli_catch_interrupt(NULL);
    fm_status status = measure(&l, &error);
    if (status != FM_OK)
        return cli_fail(&error);
    if (args->json)
        return print_json(&l);
    print_table(&l);
    return CLI_OK;
}
