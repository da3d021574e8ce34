/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape/print.c: tapes and ops as text.
 *
 * Owns: nothing. Never does: change a tape. Called from: any thread.
 */
#include "tape/tape.h"

#include <string.h>

static const char *const OP_NAMES[FM__OP_COUNT] = {
#define OP_NAME(NAME, text) [FM__OP_##NAME] = text,
    FM__OP_LIST(OP_NAME)
#undef OP_NAME
};

static const char *const ACT_NAMES[FM__ACT_COUNT] = {
    [FM__ACT_F32] = "f32",   [FM__ACT_R13] = "r13",     [FM__ACT_R16] = "r16",
    [FM__ACT_BF16] = "bf16", [FM__ACT_Q8_32] = "q8_32", [FM__ACT_Q8_256] = "q8_256",
};

static const char *const SLOT_NAMES[FM__SLOT_COUNT] = {
    [FM__SLOT_SCRATCH] = "scratch", [FM__SLOT_OUTPUT] = "output", [FM__SLOT_CACHE] = "cache"};

const char *fm__op_name(fm__op_kind kind) {
    return (unsigned)kind < FM__OP_COUNT ? OP_NAMES[kind] : "unknown op";
}

/* NULL where the id points nowhere: describing must work on tapes that fail their check. */
static const fm__weight *weight_of(const fm__tape *tape, int16_t id) {
    return id >= 0 && (uint32_t)id < tape->n_weight ? tape->weights[id] : NULL;
}

static const fm__tensor *tensor_of(const fm__tape *tape, int16_t id) {
    return id >= 0 && (uint32_t)id < tape->n_tensor ? &tape->tensors[id] : NULL;
}

void fm__op_describe(const fm__tape *tape, uint32_t op, char *out, size_t capacity) {
    if (op >= tape->n_op) {
        snprintf(out, capacity, "op %u", op);
        return;
    }
    const fm__op *o = &tape->ops[op];
    const fm__weight *weight = weight_of(tape, o->weight[0]);
    /* ROPE's weights are the tables that all layers share: its tensor says more. */
    if (weight != NULL && o->kind != FM__OP_ROPE) {
        snprintf(out, capacity, "%s %s", fm__op_name(o->kind), weight->name);
        return;
    }
    const fm__tensor *tensor = tensor_of(tape, o->in[0] != FM__NONE ? o->in[0] : o->out);
    int used = snprintf(out, capacity, "%s %s", fm__op_name(o->kind),
                        tensor != NULL ? tensor->name : "(no tensor)");
    if (o->layer != FM__NONE && used >= 0 && (size_t)used < capacity)
        snprintf(out + used, capacity - (size_t)used, " of layer %d", o->layer);
}

static void print_tensor(const fm__tape *tape, int16_t id, fm__buf *out) {
    const fm__tensor *t = tensor_of(tape, id);
    if (t == NULL)
        return;
    fm__buf_printf(out, " %s (%c, %u) %s @%s+%zu", t->name, t->rows == FM__ROWS_OUTPUT ? 'O' : 'R',
                   t->cols, ACT_NAMES[t->act], SLOT_NAMES[t->slot], t->offset);
}

static void print_weight(const fm__tape *tape, int16_t id, fm__buf *out) {
    const fm__weight *w = weight_of(tape, id);
    if (w == NULL)
        return;
    fm__buf_printf(out, " %s %s", w->name, w->type != NULL ? w->type->name : "f32");
    if (w->groups > 1)
        fm__buf_printf(out, "[%u]", w->groups);
    fm__buf_printf(out, "[%u]", w->n);
    if (w->role != FM__ROLE_VECTOR)
        fm__buf_printf(out, "[%u]", w->k);
}

static void print_parameters(const fm__op *op, fm__buf *out) {
    if (op->kind == FM__OP_RMSNORM)
        fm__buf_printf(out, ", group %u, eps %g", op->group, (double)op->eps);
    if (op->kind == FM__OP_LINEAR_GLU || op->kind == FM__OP_GLU)
        fm__buf_printf(out, ", %s", op->glu == FM__GLU_SILU ? "silu" : "gelu");
    if (op->kind == FM__OP_ROPE)
        fm__buf_printf(out, ", %s, %u heads of %u, %u rotated",
                       op->rope == FM__ROPE_PAIRS ? "pairs" : "halves", op->heads, op->head_dim,
                       op->rotary);
    if (op->kind == FM__OP_ATTENTION)
        fm__buf_printf(out, ", %u heads, scale %g", op->heads, (double)op->scale);
    if (op->kind == FM__OP_KV_STORE || op->kind == FM__OP_ATTENTION)
        fm__buf_printf(out, ", cache %u.%u", op->cache_group, op->cache_layer);
    if (op->fast)
        fm__buf_printf(out, ", fast");
}

void fm__tape_print(const fm__tape *tape, fm__buf *out) {
    fm__buf_printf(out, "tape: %u ops, %u tensors, up to %u rows, %u outputs\n", tape->n_op,
                   tape->n_tensor, tape->max_rows, tape->max_outputs);
    if (tape->finished)
        fm__buf_printf(out, "scratch %zu bytes, output %zu bytes\n", tape->scratch_bytes,
                       tape->output_bytes);
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const fm__op *op = &tape->ops[i];
        fm__buf_printf(out, "%4u  %-10s", i, fm__op_name(op->kind));
        print_weight(tape, op->weight[0], out);
        print_weight(tape, op->weight[1], out);
        print_weight(tape, op->bias, out);
        fm__buf_printf(out, ":");
        print_tensor(tape, op->in[0], out);
        print_tensor(tape, op->in[1], out);
        fm__buf_printf(out, " ->");
        print_tensor(tape, op->out, out);
        print_parameters(op, out);
        fm__buf_printf(out, "\n");
    }
}
