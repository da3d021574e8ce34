/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/selftest.c: every kernel that a tape needs, against the host.
 *
 * Owns: small tapes of one op each, with inputs chosen to be difficult, and the devices' answers.
 * Never does: run the model's own memory. Called from: the loading thread.
 *
 * An op of the tape is repeated alone, with its own widths and its tape's bound on rows (which the
 * kernel was chosen by), but with few panels and few rows. The host runs it on one thread with its
 * best rung, which the build's tests hold equal to ref. Kernels that differ are excluded by name.
 */
#include <math.h>
#include <string.h>

#include "device/vulkan/core.h"
#include "device/vulkan/inputs.h"

enum {
    MOST_WEIGHTS = 12,
    MOST_ROWS = 80,       /* of a run: beyond a tile of tokens */
    MOST_PANELS = 6,      /* beyond a tile of rows */
    FIRST_POSITION = 290, /* rows see more than one key block */
    PAGES = 6,            /* that a run's rows need */
    CACHE_PAGES = 32,     /* of the cache, so that the kernel sees a long context */
    TABLE_ROWS = 64,      /* of an embedding table */
};

/* One op in a tape of its own. */
typedef struct trial {
    fm__vulkan *gpu;
    fm__device *host;
    const fm__kernels *kernels; /* the host's */
    const fm__tape *model;      /* the tape that is tested */
    fm__random random;
    bool fast; /* within the bound of the fast class, not bit for bit */

    fm__tape *tape;
    fm__weight *weights[MOST_WEIGHTS];
    void *owned[MOST_WEIGHTS];         /* what weights point at, where it is ours */
    fm__buffer *buffers[MOST_WEIGHTS]; /* the device's copies */
    uint32_t n_weight;
    fm__cache_group *groups; /* the model's, but small */
    uint32_t first, n_op;    /* the ops that run */
    uint32_t rows;
    fm__batch_view batch;
    uint32_t *numbers; /* what batch points at */
    const uint32_t **page_lists;
    uint8_t *before[FM__SLOT_COUNT], *after[2][FM__SLOT_COUNT]; /* host, device */
    size_t bytes[FM__SLOT_COUNT];
} trial;

/* ---- weights ---- */

/* Takes `bytes` at `host`; `owned` is freed with the trial. FM__NONE: out of memory, said so. */
static fm_status add_weight(trial *t, const fm__weight *like, const uint8_t *host, size_t bytes,
                            void *owned, int16_t *id, fm_error *error) {
    uint32_t i = t->n_weight;
    fm__weight *w = fm__alloc_zero(sizeof *w);
    t->owned[i] = owned;
    t->weights[i] = w;
    t->n_weight++;
    if (w == NULL)
        return fm__error_memory(error, "self-test", sizeof *w);
    *w = *like;
    w->host = host;
    w->bytes = bytes;
    w->n_ranges = 0;
    *id = (int16_t)i;
    fm__device *device = &t->gpu->device;
    fm_status status =
        fm__device_buffer_create(device, bytes, FM__MEMORY_LOCAL, &t->buffers[i], error);
    if (status == FM_OK)
        status = fm__device_buffer_write(t->buffers[i], 0, host, bytes, error);
    w->ranges[w->n_ranges++] = (fm__weight_range){
        .residency = FM__RESIDENCY_RESIDENT, .panel_end = w->panels, .buffer = t->buffers[i]};
    return status;
}

/* A matrix of the model's type and K with few rows and contents of our own. */
static fm_status add_matrix(trial *t, const fm__weight *model, int16_t *id, fm_error *error) {
    fm__weight like = *model;
    if (like.panels > MOST_PANELS) { /* the last panel stays as ragged as it is */
        like.n = (MOST_PANELS - 1) * FM__PANEL_ROWS + (model->n - 1) % FM__PANEL_ROWS + 1;
        like.panels = MOST_PANELS;
    }
    size_t bytes = like.panels * like.layout.stride;
    uint8_t *panels = fm__alloc(bytes);
    if (panels == NULL)
        return fm__error_memory(error, "self-test", bytes);
    for (uint32_t p = 0; p < like.panels; p++)
        fm__inputs_panel(&t->random, like.type, t->fast ? FM__INPUT_ALIKE : (fm__input)p, like.k,
                         panels + p * like.layout.stride);
    return add_weight(t, &like, panels, bytes, panels, id, error);
}

/* The model's own vector or table, its first rows. */
static fm_status add_model_weight(trial *t, int16_t model_id, uint32_t rows, int16_t *id,
                                  fm_error *error) {
    *id = FM__NONE;
    if (model_id == FM__NONE)
        return FM_OK;
    fm__weight like = *t->model->weights[model_id];
    size_t row = like.role == FM__ROLE_GATHER ? like.row_bytes : 4 * (size_t)like.n;
    uint32_t *count = like.role == FM__ROLE_GATHER ? &like.n : &like.groups;
    *count = *count < rows ? *count : rows;
    return add_weight(t, &like, like.host, *count * row, NULL, id, error);
}

/* ---- the tape ---- */

static fm_status add_embed(trial *t, uint32_t cols, int16_t *out, fm_error *error) {
    fm__weight like = {
        .name = "self-test", .role = FM__ROLE_GATHER, .groups = 1, .n = 1, .k = cols};
    like.type = fm__type_get(FM__F32);
    like.row_bytes = 4 * (size_t)cols;
    void *zeros = fm__alloc_zero(like.row_bytes);
    int16_t table;
    if (zeros == NULL)
        return fm__error_memory(error, "self-test", like.row_bytes);
    fm_status status = add_weight(t, &like, zeros, like.row_bytes, zeros, &table, error);
    *out = fm__tape_tensor(t->tape, "x", FM__ACT_F32, cols, FM__ROWS_BATCH, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(t->tape, FM__OP_EMBED, FM__NONE);
    op->out = *out;
    op->weight[0] = table;
    return status;
}

/* A tensor like the model's, with ops before it that write it, as a tape must have them. They never
   run: the rows are put there. */
static fm_status add_input(trial *t, int16_t model_id, int16_t *out, fm_error *error) {
    *out = FM__NONE;
    if (model_id == FM__NONE)
        return FM_OK;
    const fm__tensor *like = &t->model->tensors[model_id];
    fm_status status = add_embed(t, like->cols, out, error);
    if (status != FM_OK)
        return status;
    if (like->rows == FM__ROWS_OUTPUT) {
        fm__op *op = fm__tape_op(t->tape, FM__OP_SELECT, FM__NONE);
        op->in[0] = *out;
        op->out = *out = fm__tape_tensor(t->tape, "selected", FM__ACT_F32, like->cols, like->rows,
                                         FM__SLOT_SCRATCH);
    }
    if (like->act != FM__ACT_F32) {
        fm__op *op = fm__tape_op(t->tape, FM__OP_QUANTISE, FM__NONE);
        op->in[0] = *out;
        op->out = *out = fm__tape_tensor(t->tape, "quantised", like->act, like->cols, like->rows,
                                         FM__SLOT_SCRATCH);
    }
    return FM_OK;
}

static fm_status add_weights(trial *t, const fm__op *model, fm__op *op, fm_error *error) {
    bool product = fm__is_product(model->kind);
    fm_status status = FM_OK;
    for (int i = 0; i < 2 && status == FM_OK; i++) {
        uint32_t rows = model->kind == FM__OP_EMBED  ? TABLE_ROWS
                        : model->kind == FM__OP_ROPE ? FIRST_POSITION + MOST_ROWS
                                                     : 1;
        if (product && model->weight[i] != FM__NONE)
            status = add_matrix(t, t->model->weights[model->weight[i]], &op->weight[i], error);
        else
            status = add_model_weight(t, model->weight[i], rows, &op->weight[i], error);
    }
    if (status == FM_OK)
        status = add_model_weight(t, model->bias, 1, &op->bias, error);
    return status;
}

/* Columns of the op's result here: those of the model's, or of the matrix with fewer rows. */
static uint32_t columns_of(const trial *t, const fm__op *model, const fm__op *op) {
    if (fm__is_product(model->kind))
        return t->weights[op->weight[0]]->n;
    return t->model->tensors[model->out].cols;
}

/* Fits a bias and a residual to a matrix with fewer rows. */
static fm_status add_residual(trial *t, const fm__op *model, fm__op *op, uint32_t cols,
                              fm_error *error) {
    if (op->bias != FM__NONE)
        t->weights[op->bias]->n = cols;
    if (model->in[1] == FM__NONE)
        return FM_OK;
    fm_status status = add_embed(t, cols, &op->in[1], error);
    if (status != FM_OK || t->model->tensors[model->in[1]].rows != FM__ROWS_OUTPUT)
        return status;
    fm__op *select = fm__tape_op(t->tape, FM__OP_SELECT, FM__NONE);
    select->in[0] = op->in[1];
    select->out = op->in[1] =
        fm__tape_tensor(t->tape, "selected", FM__ACT_F32, cols, FM__ROWS_OUTPUT, FM__SLOT_SCRATCH);
    return FM_OK;
}

/* Repeats the model's op at the end of the tape; in: what it reads if that was made before. */
static fm_status add_op(trial *t, const fm__op *model, int16_t in, fm_error *error) {
    fm__op own = *model;
    bool product = fm__is_product(model->kind);
    own.in[0] = in;
    fm_status status = add_weights(t, model, &own, error);
    if (status == FM_OK && in == FM__NONE)
        status = add_input(t, model->in[0], &own.in[0], error);
    if (status == FM_OK && product)
        status = add_residual(t, model, &own, columns_of(t, model, &own), error);
    else if (status == FM_OK)
        status = add_input(t, model->in[1], &own.in[1], error);
    if (status == FM_OK && model->kind == FM__OP_ROPE)
        status = add_input(t, model->out, &own.out, error);
    if (status != FM_OK)
        return status;
    if (model->in[1] != FM__NONE && model->in[1] == model->out) {
        own.out = own.in[1];
    } else if (model->out != FM__NONE && model->kind != FM__OP_ROPE) {
        const fm__tensor *out = &t->model->tensors[model->out];
        own.out = fm__tape_tensor(t->tape, "out", out->act, columns_of(t, model, &own), out->rows,
                                  out->slot);
    }
    own.cache_layer = 0;
    own.layer = FM__NONE;
    if (t->n_op++ == 0)
        t->first = t->tape->n_op;
    *fm__tape_op(t->tape, model->kind, FM__NONE) = own;
    return FM_OK;
}

static fm_status copy_groups(trial *t, fm_error *error) {
    uint32_t n = t->model->n_group;
    t->groups = fm__alloc_array(n + 1, sizeof *t->groups);
    if (t->groups == NULL)
        return fm__error_memory(error, "self-test", n * sizeof *t->groups);
    size_t end = 0;
    for (uint32_t g = 0; g < n; g++) {
        t->groups[g] = t->model->groups[g];
        t->groups[g].n_layer = 1;
        if (t->groups[g].n_page > CACHE_PAGES)
            t->groups[g].n_page = CACHE_PAGES;
        t->groups[g].offset = end;
        t->groups[g].bytes =
            (size_t)t->groups[g].n_page * t->groups[g].n_kv_head * t->groups[g].head_bytes;
        end = fm__round_up(end + t->groups[g].bytes, 256);
    }
    t->bytes[FM__SLOT_CACHE] = end;
    return FM_OK;
}

/* The tape of one model op, or of two of which the second reads what the first wrote. */
static fm_status make_tape(trial *t, const fm__op *ops, uint32_t n_op, fm_error *error) {
    fm_status status = fm__tape_create(&t->tape, t->model->max_rows, t->model->max_outputs, error);
    if (status == FM_OK)
        status = copy_groups(t, error);
    for (uint32_t i = 0; i < n_op && status == FM_OK; i++)
        status = add_op(t, &ops[i], i == 0 ? FM__NONE : t->tape->ops[t->first].out, error);
    if (status != FM_OK)
        return status;
    t->tape->weights = t->weights;
    t->tape->n_weight = t->n_weight;
    t->tape->groups = t->groups;
    t->tape->n_group = t->model->n_group;
    return fm__tape_finish(t->tape, error);
}

/* ---- a run's rows ---- */

static bool make_batch(trial *t) {
    uint32_t rows = t->rows, groups = t->tape->n_group, outputs = rows;
    if (outputs > t->tape->max_outputs)
        outputs = t->tape->max_outputs;
    t->numbers = fm__alloc_zero((4 * (size_t)rows + PAGES + 1) * sizeof *t->numbers);
    t->page_lists = fm__alloc_array(groups + 1, sizeof *t->page_lists);
    if (t->numbers == NULL || t->page_lists == NULL)
        return false;
    uint32_t *token = t->numbers, *position = token + rows, *sequence = position + rows;
    uint32_t *output = sequence + rows, *pages = output + rows;
    uint32_t table = t->tape->token_limit, first = FIRST_POSITION, n_page = PAGES;
    for (uint32_t g = 0; g < groups; g++)
        if (t->groups[g].n_page < n_page)
            n_page = t->groups[g].n_page;
    size_t limit = fm__min_size(t->tape->position_limit, (size_t)n_page * FM__PAGE_TOKENS);
    if (limit < (size_t)first + rows)
        first = limit > rows ? (uint32_t)limit - rows : 0;
    for (uint32_t r = 0; r < rows; r++) {
        token[r] = (r * 7 + 3) % (table < TABLE_ROWS ? table : TABLE_ROWS);
        position[r] = first + r;
    }
    for (uint32_t o = 0; o < outputs; o++)
        output[o] = rows - outputs + o;
    for (uint32_t p = 0; p < PAGES; p++)
        pages[p] = n_page - 1 - p % n_page; /* not in order */
    for (uint32_t g = 0; g < groups; g++)
        t->page_lists[g] = pages;
    t->batch = (fm__batch_view){.n_row = rows,
                                .token = (const int32_t *)token,
                                .position = position,
                                .sequence = sequence,
                                .n_output = outputs,
                                .output_row = output,
                                .n_sequence = 1,
                                .pages = t->page_lists,
                                .n_group = groups};
    return true;
}

static uint32_t rows_of(const trial *t, const fm__tensor *tensor) {
    return tensor->rows == FM__ROWS_OUTPUT ? t->batch.n_output : t->batch.n_row;
}

/* Ordinary keys and values in every slot. */
static fm_status fill_cache(trial *t, fm_error *error) {
    for (uint32_t g = 0; g < t->tape->n_group; g++) {
        const fm__cache_group *group = &t->groups[g];
        size_t n_k = (size_t)group->n_kv_head * group->key_dim;
        size_t n = n_k + (size_t)group->n_kv_head * group->value_dim;
        float *k = fm__alloc(n * sizeof *k);
        if (k == NULL)
            return fm__error_memory(error, "self-test", n * sizeof *k);
        for (uint32_t at = 0; at < group->n_page * FM__PAGE_TOKENS; at++) {
            for (size_t i = 0; i < n; i++)
                k[i] = fm__inputs_normal(&t->random);
            t->kernels->kv_store[group->type](group, t->before[FM__SLOT_CACHE] + group->offset,
                                              at / FM__PAGE_TOKENS, at % FM__PAGE_TOKENS, k,
                                              k + n_k);
        }
        fm__free(k);
    }
    return FM_OK;
}

/* Rows of every tensor that an op before the tested ones writes, and a cache of ordinary entries.
 */
static fm_status fill(trial *t, uint32_t kind, fm_error *error) {
    const fm__op *op = &t->tape->ops[t->first];
    bool large = op->kind == FM__OP_QUANTISE || fm__is_product(op->kind);
    for (uint32_t i = 0; i < t->first; i++) {
        const fm__tensor *to = &t->tape->tensors[t->tape->ops[i].out];
        float *x = fm__alloc(to->cols * sizeof *x);
        if (x == NULL)
            return fm__error_memory(error, "self-test", to->cols * sizeof *x);
        for (uint32_t r = 0; r < rows_of(t, to); r++) {
            fm__input which = t->fast ? FM__INPUT_ALIKE : (fm__input)(kind + r);
            fm__inputs_row(&t->random, which, large, x, to->cols);
            uint8_t *row = t->before[to->slot] + to->offset + r * to->layout.stride;
            if (to->act == FM__ACT_F32)
                memcpy(row, x, to->cols * sizeof *x);
            else
                t->kernels->quantise[to->act](x, to->cols, &to->layout, row);
        }
        fm__free(x);
    }
    if (op->kind == FM__OP_ATTENTION || op->kind == FM__OP_KV_STORE)
        return fill_cache(t, error);
    return FM_OK;
}

/* ---- running ---- */

static fm_status wait_for(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                          uint32_t n_range, const fm__run *run, fm_error *error) {
    fm__recording *recording = NULL;
    fm__timeline done;
    fm_status status = fm__timeline_create(&done, &device, 1, 0, error);
    if (status != FM_OK)
        return status;
    status = fm__device_record(device, tape, ranges, n_range, &recording, error);
    const fm__segment segment = {.recording = recording, .signal = &done, .signal_value = 1};
    if (status == FM_OK)
        status = fm__device_submit(device, &segment, 1, run, 0, error);
    if (status == FM_OK && !fm__timeline_wait(&done, 1))
        status = fm__error(error, FM_ERROR_DEVICE, device->properties.name,
                           "it was lost during its self-test");
    if (status == FM_OK)
        status = fm__device_run_finish(device, tape, run, error);
    fm__device_recording_destroy(&recording);
    fm__timeline_finish(&done);
    return status;
}

/* Runs the ops on `device`, from t->before to `after`. */
static fm_status run_on(trial *t, fm__device *device, uint8_t *const after[], fm_error *error) {
    fm__op_range ranges[2];
    fm__run_status failure;
    fm__run_status_clear(&failure);
    fm__run run = {.batch = &t->batch, .status = &failure};
    fm_status status = FM_OK;
    for (int s = 0; s < FM__SLOT_COUNT && status == FM_OK; s++) {
        if (t->bytes[s] == 0)
            continue;
        status =
            fm__device_buffer_create(device, t->bytes[s], FM__MEMORY_LOCAL, &run.buffers[s], error);
        if (status == FM_OK)
            status = fm__device_buffer_write(run.buffers[s], 0, t->before[s], t->bytes[s], error);
    }
    for (uint32_t i = 0; i < t->n_op; i++)
        ranges[i] = (fm__op_range){.op = t->first + i, .tensor = FM__NONE};
    if (status == FM_OK)
        status = wait_for(device, t->tape, ranges, t->n_op, &run, error);
    for (int s = 0; s < FM__SLOT_COUNT && status == FM_OK; s++)
        if (t->bytes[s] > 0)
            status = fm__device_buffer_read(run.buffers[s], 0, after[s], t->bytes[s], error);
    for (int s = 0; s < FM__SLOT_COUNT; s++)
        fm__device_buffer_destroy(&run.buffers[s]);
    return status;
}

/* ---- comparison ---- */

static bool same_floats(const trial *t, const float *a, const float *b, uint32_t n, uint32_t k) {
    for (uint32_t i = 0; i < n; i++) {
        bool equal = fm__f32_bits(a[i]) == fm__f32_bits(b[i]) || (isnan(a[i]) && isnan(b[i]));
        /* Fast: terms are positive here, so that their sum is the sum of their magnitudes; both
           sides may err. */
        float bound = 2.0f * ((float)k + 8.0f) * 0x1p-23f * fabsf(a[i]);
        if (!equal && !(t->fast && fabsf(a[i] - b[i]) <= bound))
            return false;
    }
    return true;
}

/* The defined bytes of a quantised row. */
static bool same_parts(const fm__tensor *tensor, const uint8_t *a, const uint8_t *b) {
    const fm__act_layout *l = &tensor->layout;
    size_t k = tensor->cols;
    if (tensor->act == FM__ACT_BF16)
        return memcmp(a, b, fm__round_up(k, 2) * 2) == 0;
    bool wide = tensor->act == FM__ACT_Q8_256;
    return memcmp(a + l->values, b + l->values, k) == 0 &&
           memcmp(a + l->d, b + l->d, k / (wide ? 256 : 32) * 4) == 0 &&
           memcmp(a + l->sum, b + l->sum, k / (wide ? 16 : 32) * 2) == 0 &&
           (!wide || memcmp(a + l->shift, b + l->shift, k / 32) == 0);
}

static bool same_tensor(const trial *t, const fm__op *op) {
    const fm__tensor *out = &t->tape->tensors[op->out];
    bool product = fm__is_product(op->kind);
    uint32_t k = product ? t->tape->weights[op->weight[0]]->k : 0;
    bool floats = out->act == FM__ACT_F32 || out->act == FM__ACT_R13 || out->act == FM__ACT_R16;
    for (uint32_t r = 0; r < rows_of(t, out); r++) {
        size_t at = out->offset + r * out->layout.stride;
        const uint8_t *a = t->after[0][out->slot] + at, *b = t->after[1][out->slot] + at;
        if (floats ? !same_floats(t, (const float *)(const void *)a, (const float *)(const void *)b,
                                  out->cols, k)
                   : !same_parts(out, a, b))
            return false;
    }
    return true;
}

static bool same_results(const trial *t) {
    for (uint32_t i = 0; i < t->n_op; i++) {
        const fm__op *op = &t->tape->ops[t->first + i];
        /* What only the next op reads need not come to memory. */
        if (i + 1 < t->n_op && t->tape->tensors[op->out].slot == FM__SLOT_SCRATCH)
            continue;
        bool same = op->kind == FM__OP_KV_STORE
                        ? memcmp(t->after[0][FM__SLOT_CACHE], t->after[1][FM__SLOT_CACHE],
                                 t->bytes[FM__SLOT_CACHE]) == 0
                        : same_tensor(t, op);
        if (!same)
            return false;
    }
    return true;
}

/* ---- one trial ---- */

static void finish(trial *t) {
    fm__tape_destroy(&t->tape);
    for (uint32_t i = 0; i < t->n_weight; i++) {
        fm__device_buffer_destroy(&t->buffers[i]);
        fm__free(t->weights[i]);
        fm__free(t->owned[i]);
    }
    for (int s = 0; s < FM__SLOT_COUNT; s++) {
        fm__free(t->before[s]);
        fm__free(t->after[0][s]);
        fm__free(t->after[1][s]);
    }
    fm__free(t->groups);
    fm__free(t->numbers);
    fm__free(t->page_lists);
}

static fm_status make_room(trial *t, fm_error *error) {
    const fm__op *op = &t->tape->ops[t->first];
    bool cached = op->kind == FM__OP_ATTENTION || op->kind == FM__OP_KV_STORE;
    t->bytes[FM__SLOT_SCRATCH] = t->tape->scratch_bytes;
    t->bytes[FM__SLOT_OUTPUT] = t->tape->output_bytes;
    if (!cached)
        t->bytes[FM__SLOT_CACHE] = 0;
    for (int s = 0; s < FM__SLOT_COUNT; s++) {
        t->before[s] = fm__alloc_zero(t->bytes[s] + 64);
        t->after[0][s] = fm__alloc_zero(t->bytes[s] + 64);
        t->after[1][s] = fm__alloc_zero(t->bytes[s] + 64);
        if (t->before[s] == NULL || t->after[0][s] == NULL || t->after[1][s] == NULL)
            return fm__error_memory(error, "self-test", t->bytes[s]);
    }
    return FM_OK;
}

/* Rows that reach beyond a tile, or as many as there may be: a tape may have room for more rows
   than a short context has positions. */
static uint32_t choose_rows(const trial *t, const fm__op *op) {
    bool product = fm__is_product(op->kind);
    uint32_t rows = product && !t->gpu->device.properties.software ? MOST_ROWS : 17;
    if (op->kind == FM__OP_ATTENTION)
        rows = 9;
    uint32_t most = t->tape->max_rows;
    if (t->tape->position_limit < most)
        most = t->tape->position_limit;
    return rows < most ? rows : most;
}

/* *same: both devices gave the same for every kind of input. */
static fm_status try_ops(trial *t, const fm__op *ops, uint32_t n_op, bool *same, fm_error *error) {
    fm__random_seed(&t->random, 20 + ops->kind);
    fm_status status = make_tape(t, ops, n_op, error);
    if (status != FM_OK)
        return status;
    t->rows = choose_rows(t, ops);
    if (!make_batch(t))
        return fm__error_memory(error, "self-test", t->rows);
    status = make_room(t, error);
    *same = true;
    /* Every kind of row must come by, however few rows a run has. */
    for (uint32_t kind = 0; kind < FM__INPUT_COUNT && status == FM_OK && *same; kind += t->rows) {
        status = fill(t, kind, error);
        if (status == FM_OK)
            status = run_on(t, t->host, t->after[0], error);
        if (status == FM_OK)
            status = run_on(t, &t->gpu->device, t->after[1], error);
        *same = status != FM_OK || same_results(t);
    }
    return status;
}

/* ---- which ops ---- */

static bool same_tensors(const fm__tape *tape, int16_t a, int16_t b) {
    if (a == FM__NONE || b == FM__NONE)
        return a == b;
    const fm__tensor *x = &tape->tensors[a], *y = &tape->tensors[b];
    return x->act == y->act && x->cols == y->cols && x->rows == y->rows;
}

static bool same_weights(const fm__tape *tape, int16_t a, int16_t b) {
    if (a == FM__NONE || b == FM__NONE)
        return a == b;
    const fm__weight *x = tape->weights[a], *y = tape->weights[b];
    return x->type == y->type && x->n == y->n && x->k == y->k;
}

/* Two ops that the same kernels compute, on the same shapes. */
static bool alike(const fm__tape *tape, const fm__op *a, const fm__op *b) {
    return a->kind == b->kind && a->fast == b->fast && a->glu == b->glu && a->rope == b->rope &&
           a->group == b->group && a->heads == b->heads && a->head_dim == b->head_dim &&
           a->rotary == b->rotary && a->cache_group == b->cache_group && a->eps == b->eps &&
           a->scale == b->scale && (a->bias == FM__NONE) == (b->bias == FM__NONE) &&
           (a->in[1] == a->out) == (b->in[1] == b->out) &&
           same_weights(tape, a->weight[0], b->weight[0]) &&
           same_weights(tape, a->weight[1], b->weight[1]) &&
           same_tensors(tape, a->in[0], b->in[0]) && same_tensors(tape, a->in[1], b->in[1]) &&
           same_tensors(tape, a->out, b->out);
}

/* A norm and the QUANTISE behind it, which the device may do at once. */
static uint32_t chain(const fm__tape *tape, uint32_t i) {
    const fm__op *op = &tape->ops[i];
    bool quantised = op->kind == FM__OP_RMSNORM && i + 1 < tape->n_op &&
                     op[1].kind == FM__OP_QUANTISE && op[1].in[0] == op->out;
    return quantised ? 2 : 1;
}

static bool seen(const fm__tape *tape, uint32_t index, uint32_t n_op) {
    for (uint32_t i = 0; i < index; i++) {
        bool all = chain(tape, i) >= n_op;
        for (uint32_t j = 0; j < n_op && all; j++)
            all = alike(tape, &tape->ops[i + j], &tape->ops[index + j]);
        if (all)
            return true;
    }
    return false;
}

/* ---- exclusion ---- */

/* Every kernel of that name; how many were not excluded before. */
static uint32_t exclude(fm__vulkan *gpu, const char *name, bool begins) {
    fm__vulkan_pipelines *pipelines = &gpu->core->pipelines;
    uint32_t n = 0;
    for (uint32_t i = 0; i < pipelines->n_kernel; i++) {
        const fm__vulkan_kernel *kernel = pipelines->kernels[i];
        bool this = begins ? strncmp(kernel->name, name, strlen(name)) == 0
                           : strcmp(kernel->name, name) == 0;
        if (!this || kernel->excluded)
            continue;
        fm__vulkan_kernel_exclude(gpu, kernel);
        n++;
    }
    return n;
}

static uint32_t exclude_ops(fm__vulkan *gpu, const fm__tape *tape, const fm__op *ops,
                            uint32_t n_op) {
    if (n_op == 2) /* each alone was good */
        return exclude(gpu, "rmsnorm_q", true) + exclude(gpu, "rmsnorm_r", true) +
               exclude(gpu, "rmsnorm_b", true);
    char name[64];
    snprintf(name, sizeof name, "%s", fm__device_op_kernel(&gpu->device, tape, ops));
    uint32_t n = exclude(gpu, name, false);
    if (ops->kind == FM__OP_ATTENTION)
        n += exclude(gpu, "attention_merge", false);
    return n;
}

/* ---- the whole ---- */

typedef struct self_test {
    fm__vulkan *gpu;
    fm__device *host;
    const fm__tape *tape;
    fm__self_test_callback *callback; /* or NULL */
    void *user;
    uint32_t n_tested, n_excluded;
} self_test;

static fm_status test_ops(fm__vulkan *gpu, fm__device *host, const fm__tape *tape, uint32_t index,
                          uint32_t n_op, uint32_t *n_excluded, fm_error *error) {
    bool same = false;
    trial *t = fm__alloc_zero(sizeof *t);
    if (t == NULL)
        return fm__error_memory(error, "self-test", sizeof *t);
    t->gpu = gpu;
    t->host = host;
    t->kernels = fm__device_host_kernels(host);
    t->model = tape;
    const fm__op *op = &tape->ops[index];
    bool product = fm__is_product(op->kind);
    t->fast = product && op->fast && !tape->weights[op->weight[0]]->type->quantised;
    fm__vulkan_trial before = gpu->trial;
    if (product) /* the small op's own layout would be another */
        gpu->trial = fm__vulkan_linear_choice(gpu, tape, op);
    fm_status status = try_ops(t, op, n_op, &same, error);
    gpu->trial = before;
    finish(t);
    fm__free(t);
    if (status == FM_OK && !same)
        *n_excluded += exclude_ops(gpu, tape, op, n_op);
    return status;
}

/* What stands at op i, alone or as a chain of n, until a kernel is found that is right. */
static fm_status test_at(self_test *s, uint32_t i, uint32_t n, fm_error *error) {
    fm__device *device = &s->gpu->device;
    char place[128];
    bool supported = true;
    fm_status status = FM_OK;
    for (uint32_t j = 0; j < n; j++)
        supported &= fm__device_op_supports(device, s->tape, &s->tape->ops[i + j], NULL);
    if (!supported || seen(s->tape, i, n))
        return FM_OK;
    /* Where a kernel is excluded, another may take its place: that one is tested next. */
    for (uint32_t before = UINT32_MAX; supported && before != s->n_excluded;) {
        before = s->n_excluded;
        if (s->callback != NULL && s->callback(s->user, i) != 0)
            return fm__error(error, FM_ERROR_CANCELLED, device->properties.name,
                             "stopped after %u tests of kernels", s->n_tested);
        status = test_ops(s->gpu, s->host, s->tape, i, n, &s->n_excluded, error);
        s->n_tested++;
        supported = n == 1 && status == FM_OK &&
                    fm__device_op_supports(device, s->tape, &s->tape->ops[i], NULL);
    }
    if (status != FM_OK) {
        fm__op_describe(s->tape, i, place, sizeof place);
        fm__error_within(error, status, place);
    }
    return status;
}

fm_status fm__device_vulkan_self_test(fm__device *device, const fm__tape *tape,
                                      fm__self_test_callback *callback, void *user,
                                      uint32_t *n_tested, uint32_t *n_excluded, fm_error *error) {
    static const int unpinned = -1;
    const fm__host_options options = {.threads = 1, .cpus = &unpinned};
    self_test s = {.gpu = (fm__vulkan *)device, .tape = tape, .callback = callback, .user = user};
    fm_status status = fm__device_host_create(&s.host, &options, error);
    for (uint32_t i = 0; i < tape->n_op && status == FM_OK; i++)
        for (uint32_t n = 1; n <= chain(tape, i) && status == FM_OK; n++)
            status = test_at(&s, i, n, error);
    fm__device_destroy(&s.host);
    if (n_tested != NULL)
        *n_tested = s.n_tested;
    if (n_excluded != NULL)
        *n_excluded = s.n_excluded;
    return status;
}
