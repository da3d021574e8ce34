/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan_linear_bench: how fast a vulkan device multiplies, and whether its bits are the host's.
 *
 *     vulkan_linear_bench [OPTION...] [TYPE N K TOKENS local|host]
 *
 * Without a shape: a table of them. Options: glu=1, and what linear.c would otherwise choose:
 * lanes= tokens= round= row_lanes= lane_rows= lane_tokens= step= dot=0|1; check=0 leaves the
 * comparison out, index= is the device. The time is the device's own, the median of RUNS, per
 * product; the weights of one run do not fit into a cache.
 */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "device/vulkan/vulkan.h"
#include "lab.h"

enum { RUNS = 9, MOST_COPIES = 32, MOST_WEIGHTS = 2 * MOST_COPIES + 1 };
static const size_t COLD_BYTES = (size_t)384 << 20; /* of weights in one run */

typedef struct bench {
    fm__device *device;
    fm__vulkan *gpu;
    fm__kernels kernels;
    bool glu, check;
} bench;

typedef struct subject {
    const fm__type *type;
    uint32_t n, k, tokens, copies;
    fm__memory memory;
    bool glu;
    fm__tape *tape;
    fm__weight table, matrices[2 * MOST_COPIES], *weights[MOST_WEIGHTS];
    uint8_t *panels; /* every copy is the same */
    fm__batch_view batch;
    int16_t in, out;
} subject;

/* ---- content ---- */

static uint16_t some_half(fm__random *random) {
    return (uint16_t)(0x2000u | (fm__random_next(random) & 0x87FFu)); /* +-2^-7 to 2^-5 */
}

static void fill_panel(fm__random *random, const fm__type *type, uint32_t k, uint8_t *panel) {
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    if (!type->quantised) {
        for (size_t i = 0; i < layout.sub / 4; i++) {
            float f = 0.05f * (float)fm__random_normal(random);
            uint32_t pair = (uint32_t)some_half(random) << 16 | some_half(random);
            memcpy(panel + 4 * i, type->code_bits == 32 ? (void *)&f : &pair, 4);
        }
        return;
    }
    for (size_t i = 0; i < layout.sub; i += 8) {
        uint64_t word = fm__random_next(random);
        memcpy(panel + i, &word, 8);
    }
    size_t blocks = k / type->block, scales = blocks * FM__PANEL_ROWS;
    for (size_t i = 0; i < blocks * layout.sub_bytes; i++)
        panel[layout.sub + i] = fm__random_next(random) & 31;
    for (size_t i = 0; i < scales; i++) {
        float power = 0x1p-6f;
        uint16_t half = some_half(random);
        memcpy(panel + layout.d + i * (type->d_is_f32 ? 4 : 2),
               type->d_is_f32 ? (void *)&power : &half, type->d_is_f32 ? 4 : 2);
        if (type->has_min)
            memcpy(panel + layout.m + 2 * i, &half, 2);
    }
}

static void add_matrix(const bench *b, subject *s, uint32_t i) {
    fm__weight *w = s->weights[1 + i] = &s->matrices[i];
    snprintf(w->name, sizeof w->name, "matrix %u", i);
    w->role = FM__ROLE_LINEAR;
    w->type = s->type;
    w->groups = 1;
    w->n = s->n;
    w->k = s->k;
    w->layout = fm__panel_layout_of(s->type, s->k);
    w->panels = (s->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    w->bytes = w->panels * w->layout.stride;
    w->host = s->panels;
    fm__buffer *buffer;
    MUST(fm__device_buffer_create(b->device, w->bytes, s->memory, &buffer, why));
    MUST(fm__device_buffer_write(buffer, 0, s->panels, w->bytes, why));
    w->ranges[0] = (fm__weight_range){
        .residency = s->memory == FM__MEMORY_HOST ? FM__RESIDENCY_SHARED : FM__RESIDENCY_RESIDENT,
        .panel_end = w->panels,
        .buffer = buffer};
    w->n_ranges = 1;
}

/* embed -> quantise -> one product a copy; only the products are recorded. */
static void make_tape(const bench *b, subject *s) {
    fm__random random;
    fm__random_seed(&random, 1);
    size_t stride = fm__panel_layout_of(s->type, s->k).stride;
    uint32_t panels = (s->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS, matrices = s->glu ? 2 : 1;
    s->panels = need(panels * stride);
    fill_panel(&random, s->type, s->k, s->panels);
    for (uint32_t p = 1; p < panels; p++)
        if (p < 64)
            fill_panel(&random, s->type, s->k, s->panels + p * stride);
        else
            memcpy(s->panels + p * stride, s->panels + p % 64 * stride, stride);
    size_t copies = COLD_BYTES / (panels * stride * matrices) + 1;
    s->copies = copies < MOST_COPIES ? (uint32_t)copies : MOST_COPIES;
    s->weights[0] = &s->table;
    s->table = (fm__weight){.role = FM__ROLE_GATHER, .groups = 1, .n = 1, .k = s->k};
    s->table.type = fm__type_get(FM__F32);
    s->table.bytes = s->table.row_bytes = 4 * (size_t)s->k;
    s->table.host = need(s->table.bytes);
    for (uint32_t i = 0; i < s->copies * matrices; i++)
        add_matrix(b, s, i);

    MUST(fm__tape_create(&s->tape, s->tokens, 0, why));
    s->tape->weights = s->weights;
    s->tape->n_weight = 1 + s->copies * matrices;
    fm__slot S = FM__SLOT_SCRATCH;
    fm__act act = s->type->act[0];
    s->in = fm__tape_tensor(s->tape, "x", FM__ACT_F32, s->k, FM__ROWS_BATCH, S);
    fm__op *op = fm__tape_op(s->tape, FM__OP_EMBED, FM__NONE);
    op->out = s->in;
    op->weight[0] = 0;
    if (act != FM__ACT_F32) {
        int16_t x = s->in;
        s->in = fm__tape_tensor(s->tape, "in", act, s->k, FM__ROWS_BATCH, S);
        op = fm__tape_op(s->tape, FM__OP_QUANTISE, FM__NONE);
        op->in[0] = x;
        op->out = s->in;
    }
    s->out = fm__tape_tensor(s->tape, "out", FM__ACT_F32, s->n, FM__ROWS_BATCH, S);
    for (uint32_t i = 0; i < s->copies; i++) {
        op = fm__tape_op(s->tape, s->glu ? FM__OP_LINEAR_GLU : FM__OP_LINEAR, FM__NONE);
        op->in[0] = s->in;
        op->out = s->out;
        op->weight[0] = (int16_t)(1 + i * matrices);
        op->weight[1] = s->glu ? (int16_t)(2 + i * matrices) : FM__NONE;
    }
    MUST(fm__tape_finish(s->tape, why));
}

static void destroy(subject *s) {
    for (uint32_t i = 0; i < s->tape->n_weight; i++)
        if (s->weights[i]->n_ranges > 0)
            fm__device_buffer_destroy(&s->weights[i]->ranges[0].buffer);
    fm__tape_destroy(&s->tape);
    fm__free((void *)s->table.host);
    fm__free(s->panels);
    fm__free((void *)s->batch.token);
}

static void make_batch(subject *s) {
    uint32_t *zeros = need(s->tokens * sizeof *zeros);
    s->batch = (fm__batch_view){.n_row = s->tokens,
                                .token = (int32_t *)zeros,
                                .position = zeros,
                                .sequence = zeros,
                                .n_sequence = 1};
}

static void fill_rows(const bench *b, const subject *s, uint8_t *scratch) {
    fm__random random;
    fm__random_seed(&random, 2);
    const fm__tensor *in = &s->tape->tensors[s->in];
    float *x = need(s->k * sizeof(float));
    for (uint32_t t = 0; t < s->tokens; t++) {
        for (uint32_t i = 0; i < s->k; i++)
            x[i] = (float)fm__random_normal(&random);
        b->kernels.quantise[in->act](x, s->k, &in->layout,
                                     scratch + in->offset + t * in->layout.stride);
    }
    fm__free(x);
}

/* ---- comparison: up to 64 panels, tokens from both ends ---- */

static uint32_t compare(const bench *b, const subject *s, const uint8_t *scratch) {
    const fm__tensor *in = &s->tape->tensors[s->in], *out = &s->tape->tensors[s->out];
    uint32_t columns = s->n < 1024 ? s->n : 1024, rows = s->tokens < 20 ? s->tokens : 20;
    uint32_t different = 0;
    float *want = need((size_t)2 * rows * columns * sizeof(float));
    void *work = need(FM__LINEAR_SCRATCH);
    for (int end = 0; end < 2; end++) {
        uint32_t first = end == 0 ? 0 : s->tokens - rows;
        fm__linear_args args = {.type = s->type,
                                .layout = fm__panel_layout_of(s->type, s->k),
                                .panels = s->panels,
                                .n = columns,
                                .k = s->k,
                                .panel_end = (columns + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS,
                                .act = scratch + in->offset + first * in->layout.stride,
                                .act_layout = in->layout,
                                .tokens = rows,
                                .out = want,
                                .out_stride = columns,
                                .scratch = work};
        b->kernels.linear[fm__type_index(s->type)][0].fn(&args);
        if (s->glu) /* gate and up are alike here */
            b->kernels.glu[0](want, want, (size_t)rows * columns, want);
        for (uint32_t t = 0; t < rows; t++)
            different += memcmp(want + (size_t)t * columns,
                                scratch + out->offset + (first + t) * out->layout.stride,
                                columns * sizeof(float)) != 0;
    }
    fm__free(work);
    fm__free(want);
    return different;
}

/* ---- measuring ---- */

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(const bench *b, const subject *s, const fm__run *run) {
    fm__op_range ranges[MOST_COPIES];
    uint32_t first = s->tape->n_op - s->copies;
    for (uint32_t i = 0; i < s->copies; i++)
        ranges[i] = (fm__op_range){.op = first + i, .axis = FM__AXIS_WHOLE, .tensor = FM__NONE};
    fm__recording *recording = NULL;
    fm__timeline done;
    fm__device *device = b->device;
    MUST(fm__timeline_create(&done, &device, 1, 0, why));
    MUST(fm__device_record(device, s->tape, ranges, s->copies, &recording, why));
    double times[RUNS];
    for (uint64_t i = 0; i < RUNS; i++) {
        const fm__segment segment = {.recording = recording, .signal = &done, .signal_value = 1};
        MUST(fm__device_submit(device, &segment, 1, run, i, why));
        fm__timeline_wait(&done, i + 1);
        fm__span span = fm__device_recording_span(recording);
        times[i] = (double)(span.end_ns - span.begin_ns) / s->copies;
    }
    MUST(fm__device_run_finish(device, s->tape, run, why));
    fm__device_recording_destroy(&recording);
    fm__timeline_finish(&done);
    qsort(times, RUNS, sizeof times[0], by_time);
    return times[RUNS / 2];
}

static void bench_one(const bench *b, const char *type, uint32_t n, uint32_t k, uint32_t tokens,
                      fm__memory memory) {
    subject *s = need(sizeof *s);
    for (size_t i = 0; i < fm__type_count(); i++)
        if (strcmp(fm__type_at(i)->name, type) == 0)
            s->type = fm__type_at(i);
    if (s->type == NULL || tokens == 0 || n == 0 || k % s->type->block != 0)
        die("shape", "no such type, or K does not fit its block");
    s->n = n;
    s->k = k;
    s->tokens = tokens;
    s->memory = memory;
    s->glu = b->glu;
    make_tape(b, s);
    make_batch(s);
    const fm__op *op = &s->tape->ops[s->tape->n_op - 1];
    const char *reason;
    if (!fm__device_op_supports(b->device, s->tape, op, &reason)) {
        printf("%s: %s\n", type, reason);
    } else {
        fm__run_status status;
        fm__run_status_clear(&status);
        fm__run run = {.batch = &s->batch, .status = &status};
        size_t bytes = s->tape->scratch_bytes;
        uint8_t *scratch = need(bytes);
        fill_rows(b, s, scratch);
        fm__buffer **buffer = &run.buffers[FM__SLOT_SCRATCH];
        MUST(fm__device_buffer_create(b->device, bytes, FM__MEMORY_LOCAL, buffer, why));
        MUST(fm__device_buffer_write(*buffer, 0, scratch, bytes, why));
        double ns = measure(b, s, &run);
        double weight_bytes = (double)s->matrices[0].bytes * (s->glu ? 2 : 1);
        double ops = 2.0 * n * k * tokens * (s->glu ? 2 : 1);
        MUST(fm__device_buffer_read(*buffer, 0, scratch, bytes, why));
        uint32_t different = b->check ? compare(b, s, scratch) : 0;
        printf("%-7s %6u x %5u x %4u %-5s %-24s %10.1f us %8.2f TOP/s %8.1f GB/s  %s\n", type, n, k,
               tokens, memory == FM__MEMORY_HOST ? "host" : "local",
               fm__device_op_kernel(b->device, s->tape, op), ns / 1e3, ops / ns / 1e3,
               weight_bytes / ns,
               !b->check        ? "not compared"
               : different != 0 ? "BITS DIFFER"
                                : "bits equal");
        fflush(stdout);
        fm__device_buffer_destroy(buffer);
        fm__free(scratch);
    }
    destroy(s);
    fm__free(s);
}

static void bench_table(const bench *b) {
    static const char *const types[] = {"q4_k", "q6_k", "q8_0", "q4_0", "q5_k", "iq4_nl", "f16"};
    static const uint32_t shapes[][2] = {{18944, 3584}, {3584, 18944}, {3584, 3584}, {512, 3584}};
    static const uint32_t tokens[] = {1, 8, 64, 512};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t i = 0; i < 4; i++)
            for (size_t j = 0; j < 4; j++) {
                bench_one(b, types[t], shapes[i][0], shapes[i][1], tokens[j], FM__MEMORY_LOCAL);
                if (tokens[j] == 1)
                    bench_one(b, types[t], shapes[i][0], shapes[i][1], 1, FM__MEMORY_HOST);
            }
}

/* "name=value"; the index of the next argument that is none. */
static int options(bench *b, fm__vulkan_options *device, fm__vulkan_trial *trial, int *dot,
                   int argc, char **argv) {
    int i = 1;
    for (; i < argc && strchr(argv[i], '=') != NULL; i++) {
        const struct {
            const char *name;
            uint32_t *to;
        } all[] = {{"lanes", &trial->lanes},         {"tokens", &trial->tokens},
                   {"round", &trial->round},         {"row_lanes", &trial->row_lanes},
                   {"lane_rows", &trial->lane_rows}, {"lane_tokens", &trial->lane_tokens},
                   {"step", &trial->step},           {"index", &device->index}};
        const char *value = strchr(argv[i], '=') + 1;
        size_t length = (size_t)(value - argv[i]) - 1;
        bool known = true;
        if (strncmp(argv[i], "glu", length) == 0)
            b->glu = atoi(value) != 0;
        else if (strncmp(argv[i], "check", length) == 0)
            b->check = atoi(value) != 0;
        else if (strncmp(argv[i], "dot", length) == 0)
            *dot = atoi(value);
        else if (strncmp(argv[i], "matrix", length) == 0)
            trial->matrix = atoi(value) != 0 ? FM__TRIAL_MATRIX : FM__TRIAL_LANES;
        else
            known = false;
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            if (strlen(all[j].name) == length && strncmp(argv[i], all[j].name, length) == 0) {
                *all[j].to = (uint32_t)atoi(value);
                known = true;
            }
        if (!known)
            die("option", "unknown");
    }
    return i;
}

int main(int argc, char **argv) {
    bench b = {.check = true};
    fm__vulkan_options how = {.allow_software = true};
    fm__vulkan_trial trial = {0};
    int dot = -1, i = options(&b, &how, &trial, &dot, argc, argv);
    MUST(fm__device_vulkan_create(&b.device, &how, why));
    MUST(fm__kernels_get(&b.kernels, NULL, why));
    b.gpu = (fm__vulkan *)b.device;
    b.gpu->trial = trial;
    if (dot >= 0)
        b.gpu->has_dot = dot == 1 && b.gpu->can_dot;
    printf("%s, %s, dot %s\n", b.device->properties.description, b.device->properties.driver,
           b.gpu->has_dot ? "yes" : "no");
    if (argc - i >= 5)
        bench_one(&b, argv[i], (uint32_t)atoi(argv[i + 1]), (uint32_t)atoi(argv[i + 2]),
                  (uint32_t)atoi(argv[i + 3]),
                  strcmp(argv[i + 4], "host") == 0 ? FM__MEMORY_HOST : FM__MEMORY_LOCAL);
    else
        bench_table(&b);
    fm__device_destroy(&b.device);
    return 0;
}
