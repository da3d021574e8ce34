/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/linear.c: products: which shader, with which constants, over which workgroups.
 *
 * Owns: nothing. Never does: arithmetic (shaders/linear_*.comp do). Called from: record.c and
 * vulkan.c, on the loading thread.
 *
 * Up to FEW rows (the tape's bound, not the run's rows) a workgroup takes a panel and reads it once
 * for all of them, quantised weights of one row by a kernel of their own; beyond, a tile of rows x
 * tokens from shared memory, by int8 matrices where device and build have them.
 */
#include "device/vulkan/vulkan.h"

enum {
    FEW = 8,
    LEAST_LANES = 16 * FEW,  /* a lane for each (row, token); every Vulkan device has 128 */
    SHARED_KEPT = 32 * 1024, /* of a workgroup at most, so that several fit beside each other */
    FLOAT_SLICE = 128,       /* columns that a lane adds up, fast class */
    FEW_WORKGROUPS = 256,    /* fewer leave a large device idle */
    MOST_GROUPS = 65535,     /* of a dispatch in one direction: what every device takes */
    CONSTANT_TILE = 10,      /* first constant that is a kernel's own */
};

static uint32_t divide_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t power_of_two(uint32_t x) {
    uint32_t p = 1;
    while (p < x)
        p *= 2;
    return p;
}

/* ---- names ---- */

typedef struct names {
    const char *kernel, *failed; /* what a report says; why an op is denied */
} names;

#define NAMES(name)                                                                                \
    { name, "kernel " name " failed its self-test" }
#define FORMS(kind, id)                                                                            \
    {                                                                                              \
        {NAMES(kind "_" #id), NAMES(kind "_" #id "_vec"), NAMES(kind "_" #id "_one")},             \
            {NAMES(kind "_" #id "_fast"), NAMES(kind "_" #id "_fast_vec")},                        \
    }
#define ROW(id, NAME) {FORMS("linear", id), FORMS("linear_glu", id)},

enum { MANY_ROWS, FEW_ROWS, ONE_ROW, SIZES };

/* [type][glu][fast][size]; floats have no kernel for one row. */
static const names all_names[FM__TYPE_COUNT][2][2][SIZES] = {FM__TYPE_LIST(ROW)};

#define MATRIX_ROW(id, NAME) {NAMES("linear_" #id "_matrix"), NAMES("linear_glu_" #id "_matrix")},

/* [type][glu] */
static const names matrix_names[FM__TYPE_COUNT][2] = {FM__TYPE_LIST(MATRIX_ROW)};

/* ---- constants ---- */

/* Constant FORM of linear.glsl: sub-scales of 256-blocks. */
enum { SUB_NONE, SUB_NIBBLES, SUB_16, SUB_MIN, SUB_32 };

static uint32_t form(const fm__type *type) {
    switch (fm__type_index(type)) {
    case FM__TYPE_F16:
        return 1;
    case FM__TYPE_BF16:
        return 2;
    case FM__TYPE_MXFP4:
        return 1;
    case FM__TYPE_Q2_K:
        return SUB_NIBBLES;
    case FM__TYPE_Q3_K:
    case FM__TYPE_Q6_K:
        return SUB_16;
    case FM__TYPE_Q4_K:
    case FM__TYPE_Q5_K:
        return SUB_MIN;
    case FM__TYPE_IQ4_XS:
        return SUB_32;
    default:
        return SUB_NONE;
    }
}

static uint32_t table(const fm__type *type) {
    return type->lut == NULL ? 0 : type->d_is_f32 ? 2 : 1;
}

typedef struct plan {
    fm__vulkan_variant variant;
    const names *names;
    int size;
    bool matrix;
    uint32_t rows, tokens; /* of a workgroup: columns of out, and rows of it */
} plan;

static fm__vulkan_shader shader(const fm__vulkan *gpu, const fm__type *type, int size) {
#define SHADERS(kind)                                                                              \
    {                                                                                              \
        {FM__VULKAN_SHADER_linear_##kind, FM__VULKAN_SHADER_linear_##kind##_dot},                  \
            {FM__VULKAN_SHADER_linear_##kind##_vec, FM__VULKAN_SHADER_linear_##kind##_vec_dot},    \
            {FM__VULKAN_SHADER_linear_##kind##_one, FM__VULKAN_SHADER_linear_##kind##_one_dot},    \
    }
    static const fm__vulkan_shader all[2][SIZES][2] = {SHADERS(q32), SHADERS(q256)};
#undef SHADERS
    if (!type->quantised)
        return size == FEW_ROWS ? FM__VULKAN_SHADER_linear_float_vec
                                : FM__VULKAN_SHADER_linear_float;
    return all[type->block == 256][size][gpu->has_dot];
}

static void set(fm__vulkan_variant *variant, uint32_t at, uint32_t value) {
    variant->values[at] = value;
    variant->n = at + 1 > variant->n ? at + 1 : variant->n;
}

/* ---- one row ---- */

/* Lanes of linear_one.glsl that work at the same rows of a block, or of a chunk. */
static uint32_t one_team(const fm__type *type) {
    return type->block == 32 ? 4 : type->code_bits < 4 ? 8 : 16;
}

/* Chunks of a section: a block, or a chunk, for each team. */
static uint32_t one_section(const fm__type *type, uint32_t lanes) {
    return lanes / one_team(type) * (type->block / FM__CHUNK);
}

/* Shared bytes: two sections' products of 64 bytes a chunk, or a block's integers of 16 bytes a
   lane and its terms. */
static uint32_t one_bytes(const fm__type *type, uint32_t lanes) {
    uint32_t teams = lanes / one_team(type), kinds = type->has_min ? 2 : 1;
    uint32_t bytes = type->block == 32 ? 2 * 64 * teams : 16 * lanes + 64 * teams;
    return kinds * bytes + (type->lut != NULL ? 1024 : 4) + 12; /* arrays of one */
}

/* Many panels: many small workgroups, which wait for memory in turns. Few: large ones. */
static uint32_t one_lanes(const fm__vulkan *gpu, const fm__weight *weight) {
    bool many = gpu->device.properties.software || weight->panels > FEW_WORKGROUPS;
    uint32_t lanes = many ? LEAST_LANES : 512, most = least(gpu->shared_bytes, SHARED_KEPT);
    while (lanes > gpu->max_invocations ||
           (lanes > LEAST_LANES && one_bytes(weight->type, lanes) > most))
        lanes /= 2;
    return lanes;
}

static void plan_one(const fm__vulkan *gpu, const fm__weight *weight, plan *out) {
    const fm__vulkan_trial *trial = &gpu->trial;
    out->size = ONE_ROW;
    out->rows = FM__PANEL_ROWS;
    out->tokens = 1;
    uint32_t lanes = trial->lanes != 0 ? trial->lanes : one_lanes(gpu, weight);
    set(&out->variant, 0, lanes);
    set(&out->variant, CONSTANT_TILE,
        trial->round != 0 ? trial->round : one_section(weight->type, lanes));
    set(&out->variant, CONSTANT_TILE + 1, gpu->device.properties.software);
}

/* ---- few rows ---- */

/* Shared bytes of linear_vec.glsl: two stages of a round, and two rounds' products and terms. */
static uint32_t vec_bytes(const fm__type *type, const fm__panel_layout *layout, uint32_t tokens,
                          uint32_t round) {
    uint32_t blocks = round * FM__CHUNK / type->block, kinds = type->has_min ? 2 : 1;
    uint32_t block = (uint32_t)layout->sub_bytes + (uint32_t)layout->d_bytes * kinds;
    uint32_t stage = round * 64 * (type->code_bits | 1u) + blocks * block;
    uint32_t products = tokens * FM__PANEL_ROWS * 4 * kinds * round;
    if (type->block == 256) /* scales, and the blocks' terms */
        products += 2 * tokens * FM__PANEL_ROWS * 4 * kinds * blocks;
    return 2 * (stage + products) + (type->lut != NULL ? 1024 : 4) + 12; /* arrays of one */
}

/* 512 where there are few panels to go round. */
static uint32_t vec_lanes(const fm__vulkan *gpu, const fm__weight *weight) {
    uint32_t lanes = gpu->device.properties.software    ? LEAST_LANES
                     : weight->panels <= FEW_WORKGROUPS ? 512
                                                        : 256;
    return least(lanes, gpu->max_invocations);
}

static void plan_few(const fm__vulkan *gpu, const fm__weight *weight, uint32_t bound, bool fast,
                     plan *out) {
    const fm__vulkan_trial *trial = &gpu->trial;
    out->size = FEW_ROWS;
    out->rows = FM__PANEL_ROWS;
    out->tokens = trial->tokens != 0 ? trial->tokens : power_of_two(bound);
    set(&out->variant, 0, trial->lanes != 0 ? trial->lanes : vec_lanes(gpu, weight));
    if (!weight->type->quantised) {
        set(&out->variant, CONSTANT_TILE, out->tokens);
        set(&out->variant, CONSTANT_TILE + 1, fast ? FLOAT_SLICE : FM__SEGMENT);
        return;
    }
    uint32_t round = 32, most = least(gpu->shared_bytes, SHARED_KEPT);
    while (out->tokens > 1 && vec_bytes(weight->type, &weight->layout, out->tokens, 8) > most)
        out->tokens /= 2; /* a workgroup for each so many */
    set(&out->variant, CONSTANT_TILE, out->tokens);
    while (round > 8 && vec_bytes(weight->type, &weight->layout, out->tokens, round) > most)
        round /= 2;
    set(&out->variant, CONSTANT_TILE + 1, trial->round != 0 ? trial->round : round);
    set(&out->variant, CONSTANT_TILE + 2, gpu->device.properties.software);
}

/* ---- many rows ---- */

typedef struct tile {
    uint32_t lanes, row_lanes, lane_rows, lane_tokens, step; /* step: chunks (columns of floats) */
} tile;

/* Tiles of linear_matrix.glsl: subgroups instead of lanes along the rows, and each owns lane_rows x
   lane_tokens matrices. */
enum { SUBGROUP = 32, SIDE = 16 };
static const tile matrix_tiles[] = {{256, 4, 2, 2, 4}, {128, 2, 2, 2, 4}, {128, 2, 1, 2, 8}};
enum { MATRIX_TILES = sizeof matrix_tiles / sizeof matrix_tiles[0] };

/* Largest first; the last fits every device (16 KiB of shared memory, 128 lanes). */
static const tile quantised_tiles[] = {{128, 8, 8, 4, 2}, {64, 8, 4, 4, 2}, {32, 8, 2, 2, 2}};
static const tile float_tiles[] = {{256, 16, 4, 4, 16}, {64, 8, 4, 4, 16}, {32, 8, 2, 2, 16}};
enum { TILES = sizeof quantised_tiles / sizeof quantised_tiles[0] };

/* Shared bytes of linear_tile.glsl. */
static uint32_t tile_bytes(const fm__type *type, const tile *t) {
    uint32_t rows = t->row_lanes * t->lane_rows, tokens = t->lanes / t->row_lanes * t->lane_tokens;
    uint32_t totals = t->lane_rows * t->lane_tokens * t->lanes * 4;
    if (!type->quantised)
        return totals + t->step * (rows + tokens) * 4;
    uint32_t words = t->step * (rows + tokens) * (32 + 8); /* values, and a pair beside them */
    uint32_t blocks = type->block == 256 ? (rows * 6 + tokens * 9) * 4 : 0;
    return totals + words + blocks + 1024;
}

static uint32_t tile_rows(const tile *t) {
    return t->row_lanes * t->lane_rows;
}

static uint32_t tile_tokens(const tile *t) {
    return t->lanes / t->row_lanes * t->lane_tokens;
}

/* The largest tile that fits and still gives enough workgroups, but not the smallest for that. */
static tile choose_tile(const fm__vulkan *gpu, const fm__weight *weight, uint32_t bound) {
    const tile *t = weight->type->quantised ? quantised_tiles : float_tiles;
    if (gpu->device.properties.software)
        return t[TILES - 1];
    for (uint32_t i = 0; i + 1 < TILES; i++) {
        uint64_t groups =
            (uint64_t)divide_up(weight->n, tile_rows(&t[i])) * divide_up(bound, tile_tokens(&t[i]));
        bool fits = t[i].lanes <= gpu->max_invocations &&
                    tile_bytes(weight->type, &t[i]) <= gpu->shared_bytes;
        if (fits && (groups >= FEW_WORKGROUPS || i + 2 == TILES))
            return t[i];
    }
    return t[TILES - 1];
}

/* Shared bytes of linear_matrix.glsl. */
static uint32_t matrix_bytes(const fm__type *type, const tile *t) {
    uint32_t rows = t->row_lanes * t->lane_rows * SIDE;
    uint32_t tokens = t->lanes / SUBGROUP / t->row_lanes * t->lane_tokens * SIDE;
    bool halves = form(type) == SUB_NIBBLES || form(type) == SUB_16;
    uint32_t row = t->step * (halves ? 48 : 32) + 16, token = t->step * 32 + 16;
    uint32_t words = 8 * t->step * (rows + tokens);
    uint32_t blocks = type->block == 256 ? 8 * rows + 4 * tokens : 0;
    uint32_t minima = type->block == 256 && type->has_min ? 48 * (rows + 2 * tokens) : 0;
    return rows * row + tokens * token + words + blocks + minima + 1024;
}

/* The largest that fits and gives enough workgroups; the smallest that fits otherwise. */
static const tile *choose_matrix(const fm__vulkan *gpu, const fm__weight *weight, uint32_t bound) {
    const tile *found = NULL;
    for (uint32_t i = 0; i < MATRIX_TILES; i++) {
        const tile *t = &matrix_tiles[i];
        uint32_t rows = t->row_lanes * t->lane_rows * SIDE;
        uint32_t tokens = t->lanes / SUBGROUP / t->row_lanes * t->lane_tokens * SIDE;
        if (t->lanes > gpu->max_invocations || matrix_bytes(weight->type, t) > gpu->shared_bytes)
            continue;
        found = t;
        if ((uint64_t)divide_up(weight->n, rows) * divide_up(bound, tokens) >= FEW_WORKGROUPS)
            break;
    }
    return found;
}

static void set_tile(plan *out, const tile *t) {
    set(&out->variant, 0, t->lanes);
    set(&out->variant, CONSTANT_TILE, t->row_lanes);
    set(&out->variant, CONSTANT_TILE + 1, t->lane_rows);
    set(&out->variant, CONSTANT_TILE + 2, t->lane_tokens);
    set(&out->variant, CONSTANT_TILE + 3, t->step);
}

/* false: no matrix kernel serves; out is as it was. */
static bool plan_matrix(fm__vulkan *gpu, const fm__weight *weight, uint32_t bound, bool glu,
                        plan *out) {
    const fm__vulkan_trial *trial = &gpu->trial;
    const fm__type *type = weight->type;
    const fm__vulkan_kernel *kernel;
    plan p = *out;
    if (!gpu->has_matrix || !type->quantised || trial->matrix == FM__TRIAL_LANES)
        return false;
    tile forced = {trial->lanes, trial->row_lanes, trial->lane_rows, trial->lane_tokens,
                   trial->step};
    const tile *t = trial->row_lanes != 0 ? &forced : choose_matrix(gpu, weight, bound);
    if (t == NULL)
        return false;
    p.matrix = true;
    p.rows = t->row_lanes * t->lane_rows * SIDE;
    p.tokens = t->lanes / SUBGROUP / t->row_lanes * t->lane_tokens * SIDE;
    set_tile(&p, t);
    p.names = &matrix_names[fm__type_index(type)][glu];
    p.variant.shader = type->block == 256 ? FM__VULKAN_SHADER_linear_q256_matrix
                                          : FM__VULKAN_SHADER_linear_q32_matrix;
    /* One that failed its self-test, or that the driver does not compile, leaves the op to lanes.
     */
    if (fm__vulkan_kernel_get(gpu, &p.variant, p.names->kernel, &kernel, NULL) != FM_OK ||
        kernel->excluded)
        return false;
    *out = p;
    return true;
}

static void plan_many(const fm__vulkan *gpu, const fm__weight *weight, uint32_t bound, plan *out) {
    const fm__vulkan_trial *trial = &gpu->trial;
    tile chosen = {trial->lanes, trial->row_lanes, trial->lane_rows, trial->lane_tokens,
                   trial->step};
    if (trial->row_lanes == 0)
        chosen = choose_tile(gpu, weight, bound);
    out->rows = tile_rows(&chosen);
    out->tokens = tile_tokens(&chosen);
    set_tile(out, &chosen);
}

/* ---- both ---- */

static plan plan_op(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op) {
    const fm__weight *weight = tape->weights[op->weight[0]];
    const fm__type *type = weight->type;
    uint32_t bound = fm__tape_bound(tape, &tape->tensors[op->out]);
    bool glu = op->kind == FM__OP_LINEAR_GLU;
    plan p = {0};
    set(&p.variant, 1, 1);
    set(&p.variant, 2, 1);
    set(&p.variant, 3, type->code_bits);
    /* Of floats: whether activations are bf16. */
    set(&p.variant, 4,
        type->quantised ? (uint32_t)type->offset : type->act[op->fast] == FM__ACT_BF16);
    set(&p.variant, 5, table(type));
    set(&p.variant, 6, type->has_min);
    set(&p.variant, 7, form(type));
    set(&p.variant, 8, !glu ? 0 : op->glu == FM__GLU_SILU ? 1 : 2);
    set(&p.variant, 9, gpu->trial.sabotage == type);
    if (bound > FEW && plan_matrix(gpu, weight, bound, glu, &p))
        return p;
    if (bound == 1 && type->quantised && gpu->trial.tokens == 0)
        plan_one(gpu, weight, &p);
    else if (bound <= FEW)
        plan_few(gpu, weight, bound, op->fast, &p);
    else
        plan_many(gpu, weight, bound, &p);
    p.names = &all_names[fm__type_index(type)][glu][op->fast && !type->quantised][p.size];
    p.variant.shader = shader(gpu, type, p.size);
    return p;
}

static bool fits(const fm__tape *tape, int16_t tensor) {
    const fm__tensor *t = &tape->tensors[tensor];
    uint64_t bytes = (uint64_t)fm__tape_bound(tape, t) * t->layout.stride;
    return t->offset + bytes <= UINT32_MAX;
}

bool fm__vulkan_supports_linear(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                const char **reason) {
    const fm__weight *weight = tape->weights[op->weight[0]];
    if (op->kind == FM__OP_LINEAR_GLU && tape->weights[op->weight[1]]->type != weight->type) {
        *reason = "gate and up are of different types";
        return false;
    }
    if (!fits(tape, op->in[0]) || !fits(tape, op->out) ||
        (op->in[1] != FM__NONE && !fits(tape, op->in[1])) || weight->layout.stride > UINT32_MAX) {
        *reason = "a tensor or a panel ends beyond 4 GiB, and offsets have 32 bits";
        return false;
    }
    if (weight->panels > MOST_GROUPS) {
        *reason = "it has more panels than a dispatch has workgroups";
        return false;
    }
    plan p = plan_op(gpu, tape, op);
    const fm__vulkan_kernel *kernel;
    if (fm__vulkan_kernel_get(gpu, &p.variant, p.names->kernel, &kernel, NULL) != FM_OK) {
        *reason = "the driver does not compile its kernel";
        return false;
    }
    if (kernel->excluded) {
        *reason = p.names->failed;
        return false;
    }
    return true;
}

fm__vulkan_trial fm__vulkan_linear_choice(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op) {
    plan p = plan_op(gpu, tape, op);
    const uint32_t *own = p.variant.values + CONSTANT_TILE;
    fm__vulkan_trial trial = {.sabotage = gpu->trial.sabotage,
                              .lanes = p.variant.values[0],
                              .matrix = p.matrix ? FM__TRIAL_MATRIX : FM__TRIAL_LANES};
    if (p.size == ONE_ROW) {
        trial.round = own[0];
    } else if (p.size == FEW_ROWS) {
        trial.tokens = own[0];
        trial.round = own[1];
    } else {
        trial.row_lanes = own[0];
        trial.lane_rows = own[1];
        trial.lane_tokens = own[2];
        trial.step = own[3];
    }
    return trial;
}

const char *fm__vulkan_kernel_linear(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op) {
    return plan_op(gpu, tape, op).names->kernel;
}

/* ---- recording ---- */

/* The push constants of linear.glsl, word by word. */
typedef struct push {
    uint64_t run, weight[2], bias;
    uint32_t in_slot, in_offset, in_stride;
    uint32_t out_slot, out_offset, out_stride;
    uint32_t add_slot, add_offset, add_stride;
    uint32_t n, k, panel_begin, panel_end;
    uint32_t token_begin, token_end, outputs;
    uint32_t panel_stride, sub, d, m;
    uint32_t act_d, act_sum, act_shift;
    uint32_t unused; /* what a struct with 64-bit members is padded with */
} push;
_Static_assert(sizeof(push) <= FM__VULKAN_PUSH_BYTES, "push constants");

static void place(const fm__tensor *tensor, uint32_t *slot, uint32_t *offset, uint32_t *stride) {
    *slot = (uint32_t)tensor->slot;
    *offset = (uint32_t)tensor->offset;
    *stride = (uint32_t)tensor->layout.stride;
}

static void describe(const fm__tape *tape, const fm__op *op, push *out) {
    const fm__weight *weight = tape->weights[op->weight[0]];
    const fm__tensor *in = &tape->tensors[op->in[0]];
    place(in, &out->in_slot, &out->in_offset, &out->in_stride);
    place(&tape->tensors[op->out], &out->out_slot, &out->out_offset, &out->out_stride);
    if (op->in[1] != FM__NONE)
        place(&tape->tensors[op->in[1]], &out->add_slot, &out->add_offset, &out->add_stride);
    out->n = weight->n;
    out->k = weight->k;
    out->outputs = fm__op_rows(tape, op) == FM__ROWS_OUTPUT;
    out->panel_stride = (uint32_t)weight->layout.stride;
    out->sub = (uint32_t)weight->layout.sub;
    out->d = (uint32_t)weight->layout.d;
    out->m = (uint32_t)weight->layout.m;
    out->act_d = (uint32_t)in->layout.d;
    out->act_sum = (uint32_t)in->layout.sum;
    out->act_shift = (uint32_t)in->layout.shift;
}

/* Rows of any run that the range covers at most. */
static uint32_t most_rows(const fm__op_range *range, uint32_t bound) {
    if (range->axis != FM__AXIS_TOKENS || range->end == 0)
        return bound;
    uint64_t parts = (uint64_t)bound * (range->end - range->begin);
    return least(bound, (uint32_t)((parts + FM__TOKEN_PARTS - 1) / FM__TOKEN_PARTS));
}

static fm_status find_weights(fm__vulkan_recorder *recorder, const fm__op *op, push *out,
                              fm_error *error) {
    const fm__tape *tape = fm__vulkan_recorder_tape(recorder);
    int matrices = op->kind == FM__OP_LINEAR_GLU ? 2 : 1;
    for (int i = 0; i < matrices; i++) {
        fm_status status =
            fm__vulkan_weight_source(recorder, tape->weights[op->weight[i]], out->panel_begin,
                                     out->panel_end, &out->weight[i], error);
        if (status != FM_OK)
            return status;
    }
    if (op->bias == FM__NONE)
        return FM_OK;
    fm__residency residency;
    const fm__weight *bias = tape->weights[op->bias];
    out->bias = fm__vulkan_weight(fm__vulkan_recorder_gpu(recorder), bias, &residency);
    if (out->bias == 0)
        return fm__error(error, FM_ERROR_STATE, bias->name, "the device does not have it");
    return FM_OK;
}

fm_status fm__vulkan_record_linear(fm__vulkan_recorder *recorder, const fm__op_range *range,
                                   uint32_t panel_begin, uint32_t panel_end, fm_error *error) {
    const fm__tape *tape = fm__vulkan_recorder_tape(recorder);
    const fm__op *op = &tape->ops[range->op];
    fm__vulkan *gpu = fm__vulkan_recorder_gpu(recorder);
    push what = {.run = fm__vulkan_run_block(recorder)};
    describe(tape, op, &what);
    what.panel_begin = panel_begin;
    what.panel_end = panel_end;
    if (range->axis == FM__AXIS_TOKENS) {
        what.token_begin = range->begin;
        what.token_end = range->end;
    }
    plan p = plan_op(gpu, tape, op);
    uint32_t rows = most_rows(range, fm__tape_bound(tape, &tape->tensors[op->out]));
    uint32_t panels = what.panel_end - what.panel_begin;
    if (rows == 0 || panels == 0)
        return FM_OK;
    const fm__vulkan_kernel *kernel;
    fm_status status = fm__vulkan_kernel_get(gpu, &p.variant, p.names->kernel, &kernel, error);
    if (status == FM_OK)
        status = find_weights(recorder, op, &what, error);
    if (status != FM_OK)
        return status;
    uint32_t along = divide_up(rows, p.tokens);
    uint32_t down = divide_up(panels * FM__PANEL_ROWS, p.rows);
    /* Workgroups that follow each other read the same weights. */
    fm__vulkan_dispatch(recorder, kernel, &what, sizeof what, along, down, 1);
    return FM_OK;
}
