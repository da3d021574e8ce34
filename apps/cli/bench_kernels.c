/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels.c: `fusionml bench kernels`: each kernel alone, beside the machine's roofs. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "fusionml/lab.h"

typedef struct output {
    cli_format format;
    bool begun;
    uint32_t rows, bad, skipped;
} output;

/* ---- JSON: {"roofs": {...}, "kernels": [...]}, or a line each ---- */

static json_t *json_roofs(const fm_lab_roofs *r) {
    return json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:I}", "cpu", r->cpu, "features",
                     r->features, "threads", (json_int_t)r->threads, "vnni_gop_s", r->vnni,
                     "fma_gop_s", r->fma, "bf16_gop_s", r->bf16, "read_gb_s", r->read,
                     "cache_bytes", (json_int_t)r->cache_bytes, "weight_bytes",
                     (json_int_t)r->weight_bytes);
}

static json_t *json_kernel(const fm_lab_roofs *roofs, const fm_lab_kernel *k) {
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "op", k->op, "type",
                  k->type, "class", k->numeric_class, "rung", k->rung, "kernel", k->kernel, "n",
                  (json_int_t)k->n, "k", (json_int_t)k->k, "tokens", (json_int_t)k->tokens, "depth",
                  (json_int_t)k->depth, "threads", (json_int_t)roofs->threads);
    json_object_set_new(row, "skipped", k->skipped != NULL ? json_string(k->skipped) : json_null());
    json_object_update_new(
        row,
        json_pack(
            "{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:s, s:f, s:I, s:I, s:I, s:b, s:f, s:b}",
            "copies", (json_int_t)k->copies, "samples", (json_int_t)k->samples, "iterations",
            (json_int_t)k->iterations, "ms", k->ms, "ms_low", k->ms_low, "ms_high", k->ms_high,
            "gop_s", k->gop_s, "gb_s", k->gb_s, "roof", k->roof, "of_roof", k->of_roof,
            "rows_checked", (json_int_t)k->rows, "rows", (json_int_t)k->of_rows, "tokens_checked",
            (json_int_t)k->tokens_checked, "good", k->good, "error", k->error, "same", k->same));
    return row;
}

static void print_json(json_t *value, const char *before, const char *after) {
    char *text = json_dumps(value, JSON_REAL_PRECISION(8));
    printf("%s%s%s", before, text != NULL ? text : "null", after);
    free(text);
    json_decref(value);
}

/* ---- tables ---- */

static void checked_text(const fm_lab_kernel *k, char *out, size_t capacity) {
    const char *verdict = !k->good ? "DIFFERS" : k->numeric_class[0] == 'f' ? "in bound" : "equal";
    if (k->rows == k->of_rows && k->tokens_checked == k->tokens)
        snprintf(out, capacity, "%s, all", verdict);
    else
        snprintf(out, capacity, "%s, %u/%u x %u/%u", verdict, k->rows, k->of_rows,
                 k->tokens_checked, k->tokens);
}

static void shape_text(const fm_lab_kernel *k, char *out, size_t capacity) {
    int used = k->k > 0 ? snprintf(out, capacity, "%ux%u", k->n, k->k)
                        : snprintf(out, capacity, "%u", k->n);
    if (k->depth > 0)
        snprintf(out + used, capacity - (size_t)used, " @ %u", k->depth);
}

static void print_md_roofs(const fm_lab_roofs *r) {
    printf(
        "roofs of %u thread%s (%s): VNNI %.0f GOP/s, FMA %.0f GFLOP/s, bf16 %.0f GFLOP/s, reading "
        "memory %.1f GB/s\n\n",
        r->threads, cli_plural(r->threads), r->cpu, r->vnni, r->fma, r->bf16, r->read);
}

/* Wide enough for the reasons why a kernel is left out. */
enum { LAST_COLUMN = 50 };
#define DASHES "--------------------------------------------------"

static void print_md(output *o, const fm_lab_kernel *k) {
    char shape[48], checked[64];
    if (o->rows++ == 0)
        printf(
            "| op        | type   | class | rung    |             shape | tokens |        ms |   "
            "GOP/s |  GB/s | roof | of it | %-*s |\n"
            "| --------- | ------ | ----- | ------- | ----------------: | -----: | --------: | "
            "------: | ----: | ---- | ----: | %.*s |\n",
            LAST_COLUMN, "beside ref", LAST_COLUMN, DASHES);
    shape_text(k, shape, sizeof shape);
    if (k->skipped != NULL) {
        printf("| %-9s | %-6s | %-5s | %-7s | %17s | %6s | %9s | %7s | %5s | %-4s | %5s | %-*s |\n",
               k->op, k->type, "", k->rung, shape, "", "", "", "", "", "", LAST_COLUMN, k->skipped);
        return;
    }
    checked_text(k, checked, sizeof checked);
    char rate[16] = "";
    if (k->gop_s > 0)
        snprintf(rate, sizeof rate, "%.1f", k->gop_s);
    printf(
        "| %-9s | %-6s | %-5s | %-7s | %17s | %6u | %9.4f | %7s | %5.1f | %-4s | %5.2f | %-*s |\n",
        k->op, k->type, k->numeric_class, k->rung, shape, k->tokens, k->ms, rate, k->gb_s, k->roof,
        k->of_roof, LAST_COLUMN, checked);
}

static void print_csv(output *o, const fm_lab_roofs *r, const fm_lab_kernel *k) {
    if (o->rows++ == 0)
        puts(
            "op,type,class,rung,kernel,n,k,tokens,depth,threads,skipped,copies,samples,iterations,"
            "ms,ms_low,ms_high,gop_s,gb_s,roof,of_roof,rows_checked,rows,tokens_checked,good,error,"
            "same,vnni_gop_s,fma_gop_s,bf16_gop_s,read_gb_s");
    printf(
        "%s,%s,%s,%s,%s,%u,%u,%u,%u,%u,\"%s\",%u,%u,%u,%.6f,%.6f,%.6f,%.3f,%.3f,%s,%.4f,%u,%u,%u,"
        "%d,%.6g,%d,%.1f,%.1f,%.1f,%.2f\n",
        k->op, k->type, k->numeric_class, k->rung, k->kernel, k->n, k->k, k->tokens, k->depth,
        r->threads, k->skipped != NULL ? k->skipped : "", k->copies, k->samples, k->iterations,
        k->ms, k->ms_low, k->ms_high, k->gop_s, k->gb_s, k->roof, k->of_roof, k->rows, k->of_rows,
        k->tokens_checked, k->good, k->error, k->same, r->vnni, r->fma, r->bf16, r->read);
}

static int on_kernel(void *user, const fm_lab_roofs *roofs, const fm_lab_kernel *k) {
    output *o = user;
    if (k == NULL) {
        if (o->format == CLI_MD)
            print_md_roofs(roofs);
        if (o->format == CLI_JSON)
            print_json(json_roofs(roofs), "{\"roofs\": ", ", \"kernels\": [");
        if (o->format == CLI_JSONL)
            print_json(json_pack("{s:o}", "roofs", json_roofs(roofs)), "", "\n");
        o->begun = true;
    } else {
        o->bad += k->skipped == NULL && (!k->good || (k->numeric_class[0] == 'e' && !k->same));
        if (o->format == CLI_MD)
            print_md(o, k);
        else if (o->format == CLI_CSV)
            print_csv(o, roofs, k);
        else
            print_json(json_kernel(roofs, k),
                       o->format == CLI_JSONL ? ""
                       : o->rows++ == 0       ? "\n"
                                              : ",\n",
                       o->format == CLI_JSONL ? "\n" : "");
    }
    fflush(stdout);
    return cli_interrupted();
}

static int cancelled(void) {
    return cli_interrupted();
}

int cli_bench_kernels(const cli_args *args) {
    fm_lab_kernels_options options = fm_lab_kernels_options_default();
    output o = {.format = (cli_format)args->format};
    fm_error error = {0};
    options.ops = args->ops;
    options.types = args->types;
    options.shapes = args->shapes;
    options.tokens = args->token_list;
    options.rungs = args->rungs;
    options.depth = args->depth_set ? (int64_t)args->depth : -1;
    options.threads = args->threads;
    options.repeats = args->repeats_set ? args->repeats : 0;
    options.seed = args->seed;
    options.cancelled = cancelled;
    cli_catch_interrupt(NULL);
    fm_status status = fm_lab_kernels(&options, on_kernel, &o, &error);
    if (o.format == CLI_JSON && o.begun)
        puts("\n]}");
    if (status != FM_OK)
        return cli_fail(&error);
    if (o.bad > 0)
        return cli_fail_text("%u kernel%s from ref or from each other", o.bad,
                             o.bad == 1 ? " differs" : "s differ");
    return CLI_OK;
}
