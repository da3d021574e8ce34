/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/ops.c: every op kind but the products: its kernel, its push constants, its grid.
 *
 * Owns: nothing. Never does: arithmetic (shaders do). Called from: the loading thread.
 *
 * Grids are sized by the tape's bound on rows; workgroups beyond a run's rows end at once. Columns
 * lie along x, rows along y.
 */
#include <string.h>

#include "device/vulkan/ops.h"

enum {
    LANES = 256,          /* of a row-wise workgroup */
    LANE_COLUMNS = 4,     /* that a lane takes at once: 16 bytes of floats */
    NORM_GROUPS = 4,      /* groups of RMSNORM that one workgroup takes, 64 lanes each */
    COPY_LANES = 512,     /* a copy has to fill a bus: */
    COPY_DEPTH = 8,       /* ... units of 16 bytes that a lane loads before it stores */
    COPY_GROUPS = 16,     /* ... workgroups that share the rest */
    SHARED_MARGIN = 2048, /* bytes of a workgroup's shared memory beside the RMSNORM tile */
};

/* ---- rows and places ---- */

fm__vulkan_place fm__vulkan_place_of(const fm__tape *tape, int16_t tensor) {
    const fm__tensor *t = &tape->tensors[tensor];
    return (fm__vulkan_place){
        .slot = (uint32_t)t->slot, .stride = (uint32_t)t->layout.stride, .offset = t->offset};
}

static bool by_tokens(const fm__op_range *range) {
    return range->axis == FM__AXIS_TOKENS && range->end != 0;
}

fm__vulkan_rows fm__vulkan_rows_of(const fm__op_range *range, fm__rows rows) {
    return (fm__vulkan_rows){.begin = by_tokens(range) ? range->begin : 0,
                             .end = by_tokens(range) ? range->end : FM__TOKEN_PARTS,
                             .outputs = rows == FM__ROWS_OUTPUT,
                             .op = range->op};
}

uint32_t fm__vulkan_row_bound(const fm__tape *tape, const fm__op_range *range, fm__rows rows) {
    uint32_t bound = rows == FM__ROWS_OUTPUT ? tape->max_outputs : tape->max_rows;
    if (!by_tokens(range))
        return bound;
    /* Both borders are rounded down: one row more than the range's share at most. */
    uint32_t share = fm__token_border(bound, range->end - range->begin) + 1;
    return share < bound ? share : bound;
}

static fm__vulkan_rows step_rows(const fm__vulkan_step *step) {
    return fm__vulkan_rows_of(step->range, fm__op_rows(step->tape, step->op));
}

static uint32_t columns_of(const fm__vulkan_step *step) {
    return step->tape->tensors[step->op->out].cols;
}

static uint32_t column_groups(const fm__vulkan_step *step) {
    return fm__vulkan_groups(columns_of(step), LANES * LANE_COLUMNS);
}

/* The parts of a quantised row, as shaders/quantise.glsl has them. */
typedef struct parts {
    uint32_t values, d, sum, shift;
} parts;

static parts parts_of(const fm__tensor *t) {
    return (parts){(uint32_t)t->layout.values, (uint32_t)t->layout.d, (uint32_t)t->layout.sum,
                   (uint32_t)t->layout.shift};
}

static fm_status find_weight(const fm__vulkan_step *step, int16_t id, uint64_t *address) {
    const fm__weight *weight = step->tape->weights[id];
    fm__residency residency;
    *address = fm__vulkan_weight(fm__vulkan_recorder_gpu(step->recorder), weight, &residency);
    if (*address == 0)
        return fm__error(step->error, FM_ERROR_STATE, weight->name, "the device has no copy of it");
    return FM_OK;
}

/* ---- variants: which kernel an op needs, and its name in reports ---- */

typedef struct choice {
    fm__vulkan_variant variant;
    char name[64];
} choice;

static const char *const ACT_NAMES[FM__ACT_COUNT] = {"f32",  "r13",   "r16",
                                                     "bf16", "q8_32", "q8_256"};

static fm__vulkan_variant variant_of(fm__vulkan_shader shader, uint32_t lanes) {
    return (fm__vulkan_variant){.shader = shader, .n = 3, .values = {lanes, 1, 1}};
}

static void add_constant(fm__vulkan_variant *variant, uint32_t value) {
    variant->values[variant->n++] = value;
}

static choice choose_embed(const fm__tape *tape, const fm__op *op) {
    const fm__type *type = tape->weights[op->weight[0]]->type;
    choice c = {.variant = variant_of(FM__VULKAN_SHADER_embed, LANES)};
    add_constant(&c.variant, (uint32_t)fm__type_index(type));
    add_constant(&c.variant, type->block);
    add_constant(&c.variant, type->block_bytes);
    snprintf(c.name, sizeof c.name, "embed_%s", type->name);
    return c;
}

static choice choose_quantise(fm__act act) {
    choice c = {.variant = variant_of(FM__VULKAN_SHADER_quantise, LANES)};
    add_constant(&c.variant, LANES);
    add_constant(&c.variant, (uint32_t)act);
    snprintf(c.name, sizeof c.name, "quantise_%s", ACT_NAMES[act]);
    return c;
}

/* Lanes for a whole row: one tile of it if the workgroup may be that large. */
static uint32_t norm_lanes(const fm__vulkan *gpu, uint32_t columns) {
    uint32_t lanes = LANES;
    while (lanes < 1024 && lanes * LANE_COLUMNS < columns && 2 * lanes <= gpu->max_invocations &&
           2 * lanes * LANE_COLUMNS * sizeof(float) + SHARED_MARGIN <= gpu->shared_bytes)
        lanes *= 2;
    return lanes;
}

/* act FM__ACT_COUNT: not quantised. normed: the floats are stored. */
static choice choose_rmsnorm(const fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                             fm__act act, bool normed) {
    uint32_t columns = tape->tensors[op->out].cols;
    bool whole = op->group == columns, quantised = act != FM__ACT_COUNT;
    choice c = {.variant =
                    variant_of(FM__VULKAN_SHADER_rmsnorm, whole ? norm_lanes(gpu, columns) : 64)};
    if (!whole)
        c.variant.values[1] = NORM_GROUPS;
    add_constant(&c.variant, whole ? c.variant.values[0] : 64);
    add_constant(&c.variant, (uint32_t)(quantised ? act : FM__ACT_F32));
    add_constant(&c.variant, whole);
    add_constant(&c.variant, normed);
    add_constant(&c.variant, quantised);
    snprintf(c.name, sizeof c.name, "rmsnorm%s%s",
             quantised ? "_"
             : whole   ? ""
                       : "_groups",
             quantised ? ACT_NAMES[act] : "");
    return c;
}

static choice choose_glu(const fm__op *op) {
    choice c = {.variant = variant_of(FM__VULKAN_SHADER_glu, LANES)};
    add_constant(&c.variant, op->glu == FM__GLU_GELU);
    snprintf(c.name, sizeof c.name, "glu_%s", op->glu == FM__GLU_GELU ? "gelu" : "silu");
    return c;
}

static choice choose_rope(const fm__op *op) {
    choice c = {.variant = variant_of(FM__VULKAN_SHADER_rope, LANES)};
    add_constant(&c.variant, op->rope == FM__ROPE_HALVES);
    snprintf(c.name, sizeof c.name, "rope_%s", op->rope == FM__ROPE_HALVES ? "halves" : "pairs");
    return c;
}

static choice choose_plain(fm__vulkan_shader shader, const char *name) {
    choice c = {.variant = variant_of(shader, LANES)};
    snprintf(c.name, sizeof c.name, "%s", name);
    return c;
}

static choice choose_kv_store(const fm__tape *tape, const fm__op *op) {
    return tape->groups[op->cache_group].type == FM__CACHE_Q8_0
               ? choose_plain(FM__VULKAN_SHADER_kv_store_q8_0, "kv_store_q8_0")
               : choose_plain(FM__VULKAN_SHADER_kv_store, "kv_store");
}

static choice choose_copy(bool wide) {
    choice c = {.variant = variant_of(FM__VULKAN_SHADER_copy, COPY_LANES)};
    add_constant(&c.variant, wide);
    snprintf(c.name, sizeof c.name, "copy_rows");
    return c;
}

/* The kernels that an op needs where nothing is fused: 1 or 2. */
static uint32_t choose(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op, choice out[2]) {
    switch (op->kind) {
    case FM__OP_EMBED:
        out[0] = choose_embed(tape, op);
        return 1;
    case FM__OP_RMSNORM:
        out[0] = choose_rmsnorm(gpu, tape, op, FM__ACT_COUNT, true);
        return 1;
    case FM__OP_QUANTISE:
        out[0] = choose_quantise(tape->tensors[op->out].act);
        return 1;
    case FM__OP_GLU:
        out[0] = choose_glu(op);
        return 1;
    case FM__OP_ROPE:
        out[0] = choose_rope(op);
        return 1;
    case FM__OP_KV_STORE:
        out[0] = choose_kv_store(tape, op);
        return 1;
    case FM__OP_SELECT:
        out[0] = choose_plain(FM__VULKAN_SHADER_select, "select");
        return 1;
    case FM__OP_ATTENTION: {
        fm__vulkan_variant variants[2];
        uint32_t n = fm__vulkan_attention_variants(gpu, tape, op, variants);
        for (uint32_t i = 0; i < n; i++)
            out[i] = (choice){.variant = variants[i]};
        snprintf(out[0].name, sizeof out[0].name, "%s", fm__vulkan_attention_name(tape, op, n));
        snprintf(out[1].name, sizeof out[1].name, "attention_merge");
        return n;
    }
    case FM__OP_LINEAR:
    case FM__OP_LINEAR_GLU:
    case FM__OP_COUNT:
        break;
    }
    return 0;
}

static fm_status get_kernel(const fm__vulkan_step *step, const choice *c,
                            const fm__vulkan_kernel **kernel) {
    return fm__vulkan_kernel_get(fm__vulkan_recorder_gpu(step->recorder), &c->variant, c->name,
                                 kernel, step->error);
}

/* Records one dispatch of a chosen kernel. */
static fm_status dispatch(const fm__vulkan_step *step, choice c, const void *push, size_t bytes,
                          uint32_t x, uint32_t y) {
    const fm__vulkan_kernel *kernel;
    fm_status status = get_kernel(step, &c, &kernel);
    if (status == FM_OK && x > 0 && y > 0)
        fm__vulkan_dispatch(step->recorder, kernel, push, (uint32_t)bytes, x, y, 1);
    return status;
}

static uint32_t row_groups(const fm__vulkan_step *step) {
    return fm__vulkan_row_bound(step->tape, step->range, fm__op_rows(step->tape, step->op));
}

/* ---- row-wise ops: push structs mirror their shaders' ---- */

static fm_status record_embed(const fm__vulkan_step *step) {
    const fm__weight *table = step->tape->weights[step->op->weight[0]];
    struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place to;
        uint64_t table;
        uint32_t row_bytes, columns;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = step_rows(step),
        .to = fm__vulkan_place_of(step->tape, step->op->out),
        .row_bytes = (uint32_t)table->row_bytes,
        .columns = columns_of(step),
    };
    fm__residency residency;
    push.table = fm__vulkan_weight(fm__vulkan_recorder_gpu(step->recorder), table, &residency);
    if (push.table == 0)
        return fm__error(step->error, FM_ERROR_STATE, table->name,
                         "the embedding table stays in the file's mapping");
    return dispatch(step, choose_embed(step->tape, step->op), &push, sizeof push,
                    column_groups(step), row_groups(step));
}

static fm_status record_quantise(const fm__vulkan_step *step) {
    const fm__tensor *out = &step->tape->tensors[step->op->out];
    const struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place from, to;
        parts parts;
        uint32_t columns;
        uint32_t unused;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = step_rows(step),
        .from = fm__vulkan_place_of(step->tape, step->op->in[0]),
        .to = fm__vulkan_place_of(step->tape, step->op->out),
        .parts = parts_of(out),
        .columns = out->cols,
    };
    return dispatch(step, choose_quantise(out->act), &push, sizeof push, column_groups(step),
                    row_groups(step));
}

static fm_status record_glu(const fm__vulkan_step *step) {
    const struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place gate, up, to;
        uint32_t columns;
        uint32_t unused;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = step_rows(step),
        .gate = fm__vulkan_place_of(step->tape, step->op->in[0]),
        .up = fm__vulkan_place_of(step->tape, step->op->in[1]),
        .to = fm__vulkan_place_of(step->tape, step->op->out),
        .columns = columns_of(step),
    };
    return dispatch(step, choose_glu(step->op), &push, sizeof push, column_groups(step),
                    row_groups(step));
}

static fm_status record_rope(const fm__vulkan_step *step) {
    const fm__op *op = step->op;
    struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place x;
        uint64_t cos, sin;
        uint32_t heads, head_dim, half_rotary;
        uint32_t unused;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = step_rows(step),
        .x = fm__vulkan_place_of(step->tape, op->out),
        .heads = op->heads,
        .head_dim = op->head_dim,
        .half_rotary = op->rotary / 2,
    };
    fm_status status = find_weight(step, op->weight[0], &push.cos);
    if (status == FM_OK)
        status = find_weight(step, op->weight[1], &push.sin);
    if (status != FM_OK)
        return status;
    return dispatch(step, choose_rope(op), &push, sizeof push,
                    fm__vulkan_groups((uint64_t)op->heads * push.half_rotary, LANES),
                    row_groups(step));
}

static fm_status record_kv_store(const fm__vulkan_step *step) {
    const fm__op *op = step->op;
    const fm__cache_group *group = &step->tape->groups[op->cache_group];
    const struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place k, v;
        uint64_t offset;
        uint32_t group, n_kv_head, key_dim, value_dim;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = step_rows(step),
        .k = fm__vulkan_place_of(step->tape, op->in[0]),
        .v = fm__vulkan_place_of(step->tape, op->in[1]),
        .offset = fm__cache_offset(group, op->cache_layer, 0, 0),
        .group = op->cache_group,
        .n_kv_head = group->n_kv_head,
        .key_dim = group->key_dim,
        .value_dim = group->value_dim,
    };
    uint64_t entries = group->type == FM__CACHE_Q8_0
                           ? fm__cache_blocks(group->key_dim) + fm__cache_blocks(group->value_dim)
                           : group->key_dim + group->value_dim; /* of a head: a lane each */
    return dispatch(step, choose_kv_store(step->tape, op), &push, sizeof push,
                    fm__vulkan_groups(group->n_kv_head * entries, LANES), row_groups(step));
}

static fm_status record_select(const fm__vulkan_step *step) {
    const struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place from, to;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = step_rows(step),
        .from = fm__vulkan_place_of(step->tape, step->op->in[0]),
        .to = fm__vulkan_place_of(step->tape, step->op->out),
    };
    return dispatch(step, choose_plain(FM__VULKAN_SHADER_select, "select"), &push, sizeof push,
                    fm__vulkan_groups(push.to.stride, 16 * LANES), row_groups(step));
}

/* ---- RMSNORM, alone or with the QUANTISE behind it ---- */

/* Whether anything but op `but` reads a tensor's floats. */
static bool has_other_reader(const fm__tape *tape, int16_t tensor, uint32_t norm, uint32_t but) {
    const fm__tensor *t = &tape->tensors[tensor];
    if (t->slot != FM__SLOT_SCRATCH || tensor == tape->hidden || tensor == tape->logits)
        return true;
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const fm__op *op = &tape->ops[i];
        bool in_place = op->kind == FM__OP_ROPE && op->out == tensor;
        if (i != norm && i != but && (op->in[0] == tensor || op->in[1] == tensor || in_place))
            return true;
    }
    return false;
}

static bool share_memory(const fm__tape *tape, int16_t a, int16_t b) {
    const fm__tensor *x = &tape->tensors[a], *y = &tape->tensors[b];
    size_t x_end = x->offset + fm__tape_bound(tape, x) * x->layout.stride;
    size_t y_end = y->offset + fm__tape_bound(tape, y) * y->layout.stride;
    return x->slot == y->slot && x->offset < y_end && y->offset < x_end;
}

/* The QUANTISE behind a norm can be done with it: same rows, one group a row, and no row of its
   output lies where another row of the norm's input may still be read. */
static bool can_fuse(const fm__vulkan_step *step, const fm__op_range *next) {
    if (next == NULL || next->copy != FM__COPY_NONE || next->axis != step->range->axis ||
        next->begin != step->range->begin || next->end != step->range->end)
        return false;
    const fm__op *norm = step->op, *quantise = &step->tape->ops[next->op];
    return quantise->kind == FM__OP_QUANTISE && quantise->in[0] == norm->out &&
           norm->group == columns_of(step) && !share_memory(step->tape, norm->in[0], quantise->out);
}

static fm_status record_rmsnorm(const fm__vulkan_step *step, const fm__op_range *next,
                                bool *fused) {
    const fm__tape *tape = step->tape;
    const fm__op *op = step->op;
    fm__vulkan *gpu = fm__vulkan_recorder_gpu(step->recorder);
    struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place from, to;
        uint64_t weight;
        uint32_t group, columns;
        float eps, inv_n;
        fm__vulkan_place quantised;
        parts parts;
        uint32_t quantise_op;
        uint32_t unused;
    } push = {
        .run = fm__vulkan_run_block(step->recorder),
        .rows = step_rows(step),
        .from = fm__vulkan_place_of(tape, op->in[0]),
        .to = fm__vulkan_place_of(tape, op->out),
        .group = op->group,
        .columns = columns_of(step),
        .eps = op->eps,
        .inv_n = (float)(1.0 / op->group),
    };
    _Static_assert(sizeof push <= FM__VULKAN_PUSH_BYTES, "push constants of rmsnorm");
    fm_status status = find_weight(step, op->weight[0], &push.weight);
    if (status != FM_OK)
        return status;
    choice plain = choose_rmsnorm(gpu, tape, op, FM__ACT_COUNT, true);
    if (can_fuse(step, next)) {
        const fm__op *quantise = &tape->ops[next->op];
        const fm__tensor *to = &tape->tensors[quantise->out];
        const fm__vulkan_kernel *kernel;
        bool normed = has_other_reader(tape, op->out, step->range->op, next->op);
        choice both = choose_rmsnorm(gpu, tape, op, to->act, normed);
        status = get_kernel(step, &both, &kernel);
        if (status != FM_OK)
            return status;
        push.quantised = fm__vulkan_place_of(tape, quantise->out);
        push.parts = parts_of(to);
        push.quantise_op = next->op;
        *fused = !kernel->excluded;
        if (*fused)
            plain = both;
    }
    uint32_t groups =
        op->group == push.columns ? 1 : fm__vulkan_groups(push.columns / op->group, NORM_GROUPS);
    return dispatch(step, plain, &push, sizeof push, groups, row_groups(step));
}

/* ---- copies ---- */

fm_status fm__vulkan_record_copy(fm__vulkan_recorder *recorder, const fm__op_range *range,
                                 fm_error *error) {
    const fm__tape *tape = fm__vulkan_recorder_tape(recorder);
    const fm__tensor *t = &tape->tensors[range->tensor];
    const fm__vulkan_step step = {recorder, range, &tape->ops[range->op], tape, error};
    if (t->slot != FM__SLOT_SCRATCH)
        return fm__error(error, FM_ERROR_ARGUMENT, t->name,
                         "only tensors of the scratch buffer have a mirror");
    struct {
        uint64_t run;
        fm__vulkan_rows rows;
        fm__vulkan_place from, to;
        uint32_t first, units;
    } push = {
        .run = fm__vulkan_run_block(recorder),
        .rows = fm__vulkan_rows_of(range, t->rows),
        .from = fm__vulkan_place_of(tape, range->tensor),
        .to = fm__vulkan_place_of(tape, range->tensor),
    };
    if (range->copy == FM__COPY_TO_HOST)
        push.to.slot = FM__VULKAN_SLOT_MIRROR;
    else
        push.from.slot = FM__VULKAN_SLOT_MIRROR;
    size_t begin = 0, end = t->layout.stride; /* bytes of a row */
    if (range->axis == FM__AXIS_CHANNELS) {
        begin = range->begin * sizeof(float);
        end = range->end == t->cols ? end : range->end * sizeof(float); /* with its padding */
    }
    bool wide = begin % 16 == 0 && end % 16 == 0;
    uint32_t unit = wide ? 16 : 4;
    push.first = (uint32_t)(begin / unit);
    push.units = (uint32_t)((end - begin) / unit);
    /* Few workgroups: they share the rest of the units among them. */
    uint64_t units = fm__vulkan_row_bound(tape, range, t->rows) * (uint64_t)push.units;
    uint32_t groups = fm__vulkan_groups(units, COPY_LANES * COPY_DEPTH);
    return dispatch(&step, choose_copy(wide), &push, sizeof push,
                    groups < COPY_GROUPS ? groups : COPY_GROUPS, 1);
}

/* ---- what the device can do ---- */

static bool supports_shape(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                           const char **reason) {
    if (gpu->max_invocations < COPY_LANES) {
        *reason = "workgroups of fewer than 512 lanes";
        return false;
    }
    if (tape->max_rows > FM__VULKAN_MAX_ROWS) {
        *reason = "more than 8192 rows a run";
        return false;
    }
    if (op->kind == FM__OP_EMBED && tape->weights[op->weight[0]]->row_bytes > UINT32_MAX) {
        *reason = "rows of the table beyond 4 GiB";
        return false;
    }
    if (op->kind == FM__OP_ATTENTION)
        return fm__vulkan_supports_attention(gpu, tape, op, reason);
    return true;
}

bool fm__vulkan_supports_rows(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                              const char **reason) {
    if (!supports_shape(gpu, tape, op, reason))
        return false;
    choice choices[2];
    uint32_t n = choose(gpu, tape, op, choices);
    if (n == 0)
        *reason = "no kernel for it";
    for (uint32_t i = 0; i < n; i++) {
        const fm__vulkan_kernel *kernel;
        if (fm__vulkan_kernel_get(gpu, &choices[i].variant, choices[i].name, &kernel, NULL) !=
            FM_OK) {
            *reason = "the driver does not compile its kernel";
            return false;
        }
        if (kernel->excluded) {
            *reason = "the self-test found that its kernel differs from the reference";
            return false;
        }
    }
    return n > 0;
}

const char *fm__vulkan_kernel_rows(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op) {
    const char *reason;
    choice choices[2];
    const fm__vulkan_kernel *kernel;
    if (!supports_shape(gpu, tape, op, &reason) || choose(gpu, tape, op, choices) == 0)
        return "";
    fm_status status =
        fm__vulkan_kernel_get(gpu, &choices[0].variant, choices[0].name, &kernel, NULL);
    return status == FM_OK ? kernel->name : "";
}

/* ---- recording ---- */

fm_status fm__vulkan_record_rows(fm__vulkan_recorder *recorder, const fm__op_range *range,
                                 const fm__op_range *next, bool *fused, fm_error *error) {
    const fm__tape *tape = fm__vulkan_recorder_tape(recorder);
    const fm__vulkan_step step = {recorder, range, &tape->ops[range->op], tape, error};
    *fused = false;
    switch (step.op->kind) {
    case FM__OP_EMBED:
        return record_embed(&step);
    case FM__OP_RMSNORM:
        return record_rmsnorm(&step, next, fused);
    case FM__OP_QUANTISE:
        return record_quantise(&step);
    case FM__OP_GLU:
        return record_glu(&step);
    case FM__OP_ROPE:
        return record_rope(&step);
    case FM__OP_KV_STORE:
        return record_kv_store(&step);
    case FM__OP_ATTENTION:
        return fm__vulkan_record_attention(&step);
    case FM__OP_SELECT:
        return record_select(&step);
    case FM__OP_LINEAR:
    case FM__OP_LINEAR_GLU:
    case FM__OP_COUNT:
        break;
    }
    return fm__error(error, FM_ERROR_UNSUPPORTED, fm__op_name(step.op->kind),
                     "is not a row-wise op");
}
