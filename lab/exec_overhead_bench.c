/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec_overhead_bench: what a divided layer costs where nothing is computed: real time of
 * submitting and waiting for a tape of LAYERS layers (four divided hand-overs each: q, k and v; o;
 * gate and up; down) on units that take no time. Null devices signal at once, so theirs is the
 * scheduler's own part; two host teams with narrow products add the hand-overs between threads.
 *
 *     exec_overhead_bench [RUNS]           microseconds a layer, least and median of RUNS runs
 */
#include <string.h>

#include "exec/exec.h"
#include "lab.h"

enum { LAYERS = 28, WIDTH = 64, ROWS = 1, PRODUCTS = 6, MOST_RUNS = 100000 };

typedef struct bench {
    fm__weight table, matrix;
    fm__weight *weights[2];
    fm__tape *tape;
    fm__device *units[2];
    fm__plan *plan;
    fm__exec *exec;
    fm__buffer *buffers[2];
    fm__run run;
    fm__run_status status;
} bench;

static void make_weights(bench *b) {
    const fm__type *type = fm__type_get(FM__Q8_0);
    size_t row_bytes = WIDTH / type->block * type->block_bytes;
    uint8_t *row = need(row_bytes);
    b->table = (fm__weight){.name = "table",
                            .role = FM__ROLE_GATHER,
                            .type = type,
                            .groups = 1,
                            .n = 1,
                            .k = WIDTH,
                            .row_bytes = row_bytes,
                            .bytes = row_bytes,
                            .host = row};
    b->matrix = (fm__weight){.name = "matrix",
                             .role = FM__ROLE_LINEAR,
                             .type = type,
                             .groups = 1,
                             .n = WIDTH,
                             .k = WIDTH,
                             .panels = WIDTH / FM__PANEL_ROWS,
                             .layout = fm__panel_layout_of(type, WIDTH)};
    b->matrix.bytes = b->matrix.panels * b->matrix.layout.stride;
    uint8_t *panels = need(b->matrix.bytes);
    const void *rows[FM__PANEL_ROWS];
    for (int r = 0; r < FM__PANEL_ROWS; r++)
        rows[r] = row;
    for (uint32_t p = 0; p < b->matrix.panels; p++)
        type->pack(rows, WIDTH, panels + p * b->matrix.layout.stride);
    b->matrix.host = panels;
    b->weights[0] = &b->table;
    b->weights[1] = &b->matrix;
}

static int16_t tensor(bench *b, fm__act act) {
    return fm__tape_tensor(b->tape, "t", act, WIDTH, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
}

/* Quantises x and multiplies it n times; returns the last product. */
static int16_t products(bench *b, int layer, int16_t x, int n) {
    int16_t act = tensor(b, b->matrix.type->act[0]), out = x;
    fm__op *op = fm__tape_op(b->tape, FM__OP_QUANTISE, layer);
    op->in[0] = x;
    op->out = act;
    for (int i = 0; i < n; i++) {
        out = tensor(b, FM__ACT_F32);
        op = fm__tape_op(b->tape, FM__OP_LINEAR, layer);
        op->in[0] = act;
        op->out = out;
        op->weight[0] = 1;
    }
    return out;
}

static void make_tape(bench *b) {
    MUST(fm__tape_create(&b->tape, ROWS, 1, why));
    b->tape->weights = b->weights;
    b->tape->n_weight = 2;
    int16_t x = tensor(b, FM__ACT_F32);
    fm__op *op = fm__tape_op(b->tape, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        static const int parts[] = {3, 1, 2, 1};
        for (int i = 0; i < 4; i++)
            x = products(b, layer, x, parts[i]);
    }
    op = fm__tape_op(b->tape, FM__OP_SELECT, FM__NONE);
    op->in[0] = x;
    op->out = b->tape->hidden =
        fm__tape_tensor(b->tape, "hidden", FM__ACT_F32, WIDTH, FM__ROWS_OUTPUT, FM__SLOT_OUTPUT);
    MUST(fm__tape_finish(b->tape, why));
}

static void open_units(bench *b, bool host) {
    const fm__null_options null = {.memory_bytes = 1 << 26};
    for (int u = 0; u < 2; u++) {
        const fm__host_options team = {.threads = 1, .cpus = &(int){u}};
        MUST(host ? fm__device_host_create(&b->units[u], &team, why)
                  : fm__device_null_create(&b->units[u], &null, why));
    }
    static const int32_t token[ROWS];
    static const uint32_t zeros[ROWS];
    static const fm__batch_view batch = {.n_row = ROWS,
                                         .token = token,
                                         .position = zeros,
                                         .sequence = zeros,
                                         .n_output = 1,
                                         .output_row = zeros,
                                         .n_sequence = 1};
    const size_t bytes[2] = {b->tape->scratch_bytes, b->tape->output_bytes};
    b->run = (fm__run){.batch = &batch, .status = &b->status};
    for (int slot = 0; slot < 2; slot++) {
        MUST(fm__device_buffer_create(b->units[0], bytes[slot], FM__MEMORY_HOST, &b->buffers[slot],
                                      why));
        b->run.buffers[slot] = b->buffers[slot];
    }
}

static void close_units(bench *b) {
    for (int slot = 0; slot < 2; slot++)
        fm__device_buffer_destroy(&b->buffers[slot]);
    for (int u = 2; u-- > 0;)
        fm__device_destroy(&b->units[u]);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of each run, sorted. */
static void time_runs(bench *b, double share, fm__deps deps, double *us, uint32_t n) {
    const fm__plan_options options = {
        .shares = {1 - share, share}, .axis = FM__AXIS_CHANNELS, .deps = deps};
    MUST(fm__plan_make(&b->plan, b->tape, b->units, 2, &options, why));
    MUST(fm__exec_create(&b->exec, b->tape, b->plan, b->units, 2, why));
    for (uint32_t i = 0; i < n + 10; i++) {
        uint64_t point = 0, begin = fm__now_ns();
        MUST(fm__exec_submit(b->exec, &b->run, &point, why));
        MUST(fm__exec_wait(b->exec, point, &b->run, why));
        if (i >= 10)
            us[i - 10] = (double)(fm__now_ns() - begin) / 1e3;
    }
    qsort(us, n, sizeof *us, ascending);
    fm__exec_destroy(&b->exec);
    fm__plan_destroy(&b->plan);
}

static void measure(bench *b, bool host, double *us, uint32_t n) {
    printf("%s\n  %-8s %12s %12s %12s %12s\n", host ? "two host teams" : "null devices", "deps",
           "whole, least", "median", "split, least", "median");
    open_units(b, host);
    for (fm__deps deps = FM__DEPS_EVENT; deps <= FM__DEPS_READY; deps++) {
        double whole[2];
        time_runs(b, 0, deps, us, n);
        whole[0] = us[0];
        whole[1] = us[n / 2];
        time_runs(b, 0.5, deps, us, n);
        printf("  %-8s %12.3f %12.3f %12.3f %12.3f   us a layer\n", fm__deps_name(deps),
               whole[0] / LAYERS, whole[1] / LAYERS, us[0] / LAYERS, us[n / 2] / LAYERS);
    }
    close_units(b);
}

int main(int argc, char **argv) {
    static double us[MOST_RUNS];
    bench b = {.exec = NULL};
    long n = argc > 1 ? atol(argv[1]) : 1000;
    if (n < 1 || n > MOST_RUNS) {
        fprintf(stderr, "exec_overhead_bench [RUNS]: 1 to %d\n", MOST_RUNS);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    make_weights(&b);
    make_tape(&b);
    printf("%d layers of %d products, %u ops; %ld runs\n", LAYERS, PRODUCTS + 1, b.tape->n_op, n);
    measure(&b, false, us, (uint32_t)n);
    measure(&b, true, us, (uint32_t)n);
    fm__tape_destroy(&b.tape);
    fm__free((void *)(uintptr_t)b.table.host);
    fm__free((void *)(uintptr_t)b.matrix.host);
    return 0;
}
