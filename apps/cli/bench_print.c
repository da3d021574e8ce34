/* SPDX-License-Identifier: Apache-2.0 */
/* bench_print.c: rows of `fusionml bench` as llama-bench prints them. */
#include "bench_print.h"

#include <stdlib.h>
#include <string.h>

/* A value as CSV has it: numbers, 0 or 1, text. */
static const char *value_text(const json_t *value, char buffer[32]) {
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_integer(value))
        snprintf(buffer, 32, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(buffer, 32, "%.6f", json_real_value(value));
    else
        snprintf(buffer, 32, "%d", json_is_true(value));
    return buffer;
}

static void print_csv(bench_printer *p, json_t *row) {
    const char *key;
    json_t *value;
    const char *comma = "";
    if (p->rows == 0) {
        json_object_foreach(row, key, value) if (!json_is_array(value)) {
            fprintf(p->to, "%s%s", comma, key);
            comma = ",";
        }
        fputc('\n', p->to);
        comma = "";
    }
    json_object_foreach(row, key, value) {
        char buffer[32];
        if (json_is_array(value))
            continue;
        fprintf(p->to, "%s\"", comma);
        for (const char *c = value_text(value, buffer); *c != '\0'; c++) {
            if (*c == '"')
                fputc('"', p->to);
            fputc(*c, p->to);
        }
        fputc('"', p->to);
        comma = ",";
    }
    fputc('\n', p->to);
}

static void print_json(bench_printer *p, json_t *row) {
    size_t flags = JSON_REAL_PRECISION(12) | (p->format == CLI_JSON ? JSON_INDENT(2) : 0);
    char *text = json_dumps(row, flags);
    if (p->format == CLI_JSON)
        fputs(p->rows == 0 ? "[\n" : ",\n", p->to);
    fputs(text != NULL ? text : "{}", p->to);
    if (p->format == CLI_JSONL)
        fputc('\n', p->to);
    free(text);
}

/* "pp512", "tg128", "pp512+tg128 @ d256" */
static int name_test(long long prompt, long long gen, long long depth, char *out, size_t capacity) {
    int used = prompt > 0 && gen > 0 ? snprintf(out, capacity, "pp%lld+tg%lld", prompt, gen)
               : gen > 0             ? snprintf(out, capacity, "tg%lld", gen)
                                     : snprintf(out, capacity, "pp%lld", prompt);
    if (depth > 0)
        used += snprintf(out + used, capacity - (size_t)used, " @ d%lld", depth);
    return used;
}

static void test_text(json_t *row, char *out, size_t capacity) {
    name_test(json_integer_value(json_object_get(row, "n_prompt")),
              json_integer_value(json_object_get(row, "n_gen")),
              json_integer_value(json_object_get(row, "n_depth")), out, capacity);
}

void bench_print_expect(bench_printer *p, uint32_t prompt, uint32_t gen, uint32_t depth) {
    char text[64];
    int width = name_test(prompt, gen, depth, text, sizeof text);
    p->test_width = width > p->test_width ? width : p->test_width;
}

static int bytes_of(json_t *row, const char *key) {
    return (int)strlen(json_string_value(json_object_get(row, key)));
}

/* `width` below 0: left-aligned, as in the peer's table. */
static void md_cell(bench_printer *p, int width, bool rule, const char *text) {
    if (!rule) {
        fprintf(p->to, " %*s |", width, text);
        return;
    }
    fputc(' ', p->to);
    for (int i = 1; i < abs(width); i++)
        fputc('-', p->to);
    fputs(width > 0 ? ": |" : "- |", p->to);
}

/* One line of the table; row NULL: the head (rule: the line below it). */
static void md_line(bench_printer *p, json_t *row, bool rule) {
    static const struct column {
        const char *key, *head;
        int width;
    } columns[] = {
        {"model_type", "model", -30}, {"model_size", "size", 10},  {"model_n_params", "params", 10},
        {"backends", "backend", -10}, {"n_threads", "threads", 7}, {"n_batch", "n_batch", 7},
        {"n_ubatch", "n_ubatch", 8},  {"type_k", "type_k", 6},     {"type_v", "type_v", 6},
        {"devices", "dev", -12},      {"test", "test", 15},        {"t/s", "t/s", 20}};
    fputc('|', p->to);
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
        const char *key = columns[c].key;
        char text[512], buffer[32];
        if ((strcmp(key, "n_batch") == 0 && !p->batch) ||
            (strcmp(key, "n_ubatch") == 0 && !p->ubatch) ||
            (strncmp(key, "type_", 5) == 0 && !p->cache) ||
            (strcmp(key, "devices") == 0 && !p->devices))
            continue;
        int width = columns[c].width;
        int wide = strcmp(key, "model_type") == 0 ? p->model_width
                   : strcmp(key, "devices") == 0  ? p->devices_width
                   : strcmp(key, "test") == 0     ? p->test_width
                                                  : 0;
        if (wide > abs(width))
            width = width < 0 ? -wide : wide;
        double value = json_number_value(json_object_get(row, key));
        if (row == NULL)
            snprintf(text, sizeof text, "%s", columns[c].head);
        else if (strcmp(key, "model_size") == 0)
            snprintf(text, sizeof text, value < 0x1p30 ? "%.2f MiB" : "%.2f GiB",
                     value < 0x1p30 ? value / 0x1p20 : value / 0x1p30);
        else if (strcmp(key, "model_n_params") == 0)
            snprintf(text, sizeof text, value < 1e9 ? "%.2f M" : "%.2f B",
                     value < 1e9 ? value / 1e6 : value / 1e9);
        else if (strcmp(key, "test") == 0)
            test_text(row, text, sizeof text);
        else if (strcmp(key, "t/s") == 0) {
            snprintf(text, sizeof text, "%.2f \u00b1 %.2f",
                     json_number_value(json_object_get(row, "avg_ts")),
                     json_number_value(json_object_get(row, "stddev_ts")));
            width++; /* a character of two bytes */
        } else
            snprintf(text, sizeof text, "%s", value_text(json_object_get(row, key), buffer));
        md_cell(p, width, rule, text);
    }
    fputc('\n', p->to);
}

void bench_print_row(bench_printer *p, json_t *row) {
    if (p->format == CLI_CSV)
        print_csv(p, row);
    else if (p->format != CLI_MD)
        print_json(p, row);
    else {
        if (p->rows == 0) {
            p->model_width = bytes_of(row, "model_type");
            p->devices_width = bytes_of(row, "devices");
            md_line(p, NULL, false);
            md_line(p, NULL, true);
        }
        md_line(p, row, false);
    }
    p->rows++;
    fflush(p->to);
}

void bench_print_end(bench_printer *p, const char *commit) {
    if (p->format == CLI_JSON)
        fputs(p->rows > 0 ? "\n]\n" : "[\n]\n", p->to);
    if (p->format == CLI_MD && p->rows > 0)
        fprintf(p->to, "\nbuild: %s (0)\n", commit);
}

void bench_print_notes(const json_t *row) {
    char name[64];
    double bandwidth = json_real_value(json_object_get(row, "decode_gb_s"));
    double rate = json_real_value(json_object_get(row, "prompt_gop_s"));
    test_text((json_t *)row, name, sizeof name);
    fprintf(stderr, "%s: arm %s, %s, %s class; hash of the logits %s", name,
            json_string_value(json_object_get(row, "arm")),
            json_string_value(json_object_get(row, "rung")),
            json_string_value(json_object_get(row, "class")),
            json_string_value(json_object_get(row, "logits_hash")));
    if (bandwidth > 0)
        fprintf(stderr, "; %.2f GB/s of weights", bandwidth);
    if (rate > 0)
        fprintf(stderr, "; %.0f GOP/s in products", rate);
    fputc('\n', stderr);
}
