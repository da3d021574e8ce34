/* SPDX-License-Identifier: Apache-2.0 */
/* bench_print.h: rows of `fusionml bench`, objects with llama-bench's keys, as Markdown, CSV, JSON.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "cli.h"

typedef struct bench_printer {
    FILE *to;
    cli_format format;
    bool batch, ubatch, cache, devices; /* md: show these columns */
    uint32_t rows;                      /* printed so far */
    /* md: columns are as wide as the peer's, or as the first row and all tests take. */
    int model_width, devices_width, test_width;
} bench_printer;

/* That test will have a row. Before the first one. */
void bench_print_expect(bench_printer *p, uint32_t prompt, uint32_t gen, uint32_t depth);
void bench_print_row(bench_printer *p, json_t *row);
/* After the last row; also where there is none. */
void bench_print_end(bench_printer *p, const char *commit);
/* One line on stderr: what a decoded token reads, and the hash to compare runs by. */
void bench_print_notes(const json_t *row);
