/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape/check.c: what an op must look like, kind by kind.
 *
 * Owns: the rules of tape.h's op list. Never does: change a tape. Called from: the loading thread,
 * once per op; devices trust what passed.
 */
#include "tape/tape.h"

#include <stdarg.h>

/* An op under check: where it is, and where its complaint goes. */
typedef struct check {
    const fm__tape *tape;
    const fm__op *op;
    uint32_t index;
    fm_error *error;
} check;

uint32_t fm__tape_bound(const fm__tape *tape, const fm__tensor *tensor) {
    return tensor->rows == FM__ROWS_OUTPUT ? tape->max_outputs : tape->max_rows;
}

fm__rows fm__op_rows(const fm__tape *tape, const fm__op *op) {
    return op->out == FM__NONE ? FM__ROWS_BATCH : tape->tensors[op->out].rows;
}

static fm_status refuse(const check *c, const char *format, ...) FM__PRINTF(2, 3);

static fm_status refuse(const check *c, const char *format, ...) {
    char op[160], place[192], message[256];
    fm__op_describe(c->tape, c->index, op, sizeof op);
    snprintf(place, sizeof place, "op %u: %s", c->index, op);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return fm__error(c->error, FM_ERROR_ARGUMENT, place, "%s", message);
}

/* ---- ids ---- */

/* A tensor id that must (or must not) be there. */
static fm_status check_tensor_id(const check *c, const char *what, int16_t id, bool wanted) {
    if (!wanted && id == FM__NONE)
        return FM_OK;
    if (!wanted)
        return refuse(c, "%s is set but not used by this kind of op", what);
    if (id < 0 || (uint32_t)id >= c->tape->n_tensor)
        return refuse(c, "%s is tensor %d of %u", what, id, c->tape->n_tensor);
    return FM_OK;
}

static fm_status check_weight_id(const check *c, const char *what, int16_t id, bool wanted) {
    if (!wanted && id == FM__NONE)
        return FM_OK;
    if (!wanted)
        return refuse(c, "%s is set but not used by this kind of op", what);
    if (id < 0 || (uint32_t)id >= c->tape->n_weight || c->tape->weights[id] == NULL)
        return refuse(c, "%s is weight %d of %u", what, id, c->tape->n_weight);
    return FM_OK;
}

static fm_status check_ids(const check *c, unsigned in, bool out, unsigned weights, bool bias) {
    fm_status status = check_tensor_id(c, "in[0]", c->op->in[0], in >= 1);
    if (status == FM_OK)
        status = check_tensor_id(c, "in[1]", c->op->in[1], in >= 2);
    if (status == FM_OK)
        status = check_tensor_id(c, "out", c->op->out, out);
    if (status == FM_OK)
        status = check_weight_id(c, "weight[0]", c->op->weight[0], weights >= 1);
    if (status == FM_OK)
        status = check_weight_id(c, "weight[1]", c->op->weight[1], weights >= 2);
    if (status == FM_OK)
        status = check_weight_id(c, "bias", c->op->bias, bias);
    return status;
}

/* ---- shapes ---- */

static const fm__tensor *tensor(const check *c, int16_t id) {
    return &c->tape->tensors[id];
}

static const fm__weight *weight(const check *c, int16_t id) {
    return c->tape->weights[id];
}

static fm_status check_tensor_shape(const check *c, const char *what, int16_t id, uint64_t cols,
                                    fm__act act, fm__rows rows) {
    const fm__tensor *t = tensor(c, id);
    if (t->cols != cols)
        return refuse(c, "%s (%s) has %u columns where %llu are needed", what, t->name, t->cols,
                      (unsigned long long)cols);
    if (t->act != act)
        return refuse(c, "%s (%s) is of activation class %d where %d is needed", what, t->name,
                      (int)t->act, (int)act);
    if (t->rows != rows)
        return refuse(c, "%s (%s) has rows of the wrong kind", what, t->name);
    return FM_OK;
}

static fm_status check_vector(const check *c, const char *what, int16_t id, uint32_t n) {
    const fm__weight *w = weight(c, id);
    if (w->role != FM__ROLE_VECTOR || w->groups != 1)
        return refuse(c, "%s (%s) is not a vector", what, w->name);
    if (w->n != n)
        return refuse(c, "%s (%s) has %u entries where %u are needed", what, w->name, w->n, n);
    return FM_OK;
}

/* ---- kinds ---- */

static fm_status check_embed(const check *c) {
    fm_status status = check_ids(c, 0, true, 1, false);
    if (status != FM_OK)
        return status;
    const fm__weight *table = weight(c, c->op->weight[0]);
    if (table->role != FM__ROLE_GATHER || table->type == NULL || table->n == 0)
        return refuse(c, "weight[0] is not a table of rows");
    if (table->k % table->type->block != 0 ||
        table->row_bytes < table->k / table->type->block * (size_t)table->type->block_bytes)
        return refuse(c, "rows of %u %s entries do not fit %zu bytes", table->k, table->type->name,
                      table->row_bytes);
    return check_tensor_shape(c, "out", c->op->out, table->k, FM__ACT_F32, FM__ROWS_BATCH);
}

static fm_status check_rmsnorm(const check *c) {
    fm_status status = check_ids(c, 1, true, 1, false);
    if (status != FM_OK)
        return status;
    const fm__tensor *out = tensor(c, c->op->out);
    if (c->op->group == 0 || out->cols % c->op->group != 0)
        return refuse(c, "%u columns are not a multiple of the group of %u", out->cols,
                      c->op->group);
    if (!(c->op->eps >= 0))
        return refuse(c, "eps is negative or not a number");
    status = check_vector(c, "weight[0]", c->op->weight[0], c->op->group);
    if (status == FM_OK)
        status = check_tensor_shape(c, "out", c->op->out, out->cols, FM__ACT_F32, out->rows);
    if (status == FM_OK)
        status = check_tensor_shape(c, "in[0]", c->op->in[0], out->cols, FM__ACT_F32, out->rows);
    return status;
}

static fm_status check_quantise(const check *c) {
    fm_status status = check_ids(c, 1, true, 0, false);
    if (status != FM_OK)
        return status;
    if (c->op->in[0] == c->op->out)
        return refuse(c, "reads and writes one tensor");
    const fm__tensor *out = tensor(c, c->op->out);
    uint32_t block = out->act == FM__ACT_Q8_32 ? 32 : out->act == FM__ACT_Q8_256 ? 256 : 1;
    if (out->cols % block != 0)
        return refuse(c, "%u columns are not a multiple of the block of %u", out->cols, block);
    return check_tensor_shape(c, "in[0]", c->op->in[0], out->cols, FM__ACT_F32, out->rows);
}

static fm_status check_matrix(const check *c, const char *what, int16_t id) {
    const fm__weight *w = weight(c, id);
    if (w->role != FM__ROLE_LINEAR || w->type == NULL)
        return refuse(c, "%s (%s) is not a packed matrix", what, w->name);
    if (w->groups != 1)
        return refuse(c, "%s (%s) has %u groups, and routing is not part of this op", what, w->name,
                      w->groups);
    if (w->n == 0 || w->k == 0 || w->k % w->type->block != 0)
        return refuse(c, "%s (%s) of %u x %u does not hold whole %s blocks", what, w->name, w->n,
                      w->k, w->type->name);
    return FM_OK;
}

/* What LINEAR and LINEAR_GLU share: in[0] in the weight's class, out plain floats of n columns. */
static fm_status check_product(const check *c) {
    const fm__weight *w = weight(c, c->op->weight[0]);
    fm__rows rows = tensor(c, c->op->out)->rows;
    if (c->op->fast > 1)
        return refuse(c, "fast is %u", c->op->fast);
    if (c->op->in[0] == c->op->out)
        return refuse(c, "reads and writes one tensor");
    fm_status status =
        check_tensor_shape(c, "in[0]", c->op->in[0], w->k, w->type->act[c->op->fast], rows);
    if (status == FM_OK)
        status = check_tensor_shape(c, "out", c->op->out, w->n, FM__ACT_F32, rows);
    return status;
}

static fm_status check_linear(const check *c) {
    bool residual = c->op->in[1] != FM__NONE, bias = c->op->bias != FM__NONE;
    fm_status status = check_ids(c, residual ? 2 : 1, true, 1, bias);
    if (status == FM_OK)
        status = check_matrix(c, "weight[0]", c->op->weight[0]);
    if (status == FM_OK)
        status = check_product(c);
    if (status == FM_OK && bias)
        status = check_vector(c, "bias", c->op->bias, weight(c, c->op->weight[0])->n);
    if (status == FM_OK && residual)
        status = check_tensor_shape(c, "in[1]", c->op->in[1], weight(c, c->op->weight[0])->n,
                                    FM__ACT_F32, tensor(c, c->op->out)->rows);
    return status;
}

static fm_status check_gate_function(const check *c) {
    if (c->op->glu != FM__GLU_SILU && c->op->glu != FM__GLU_GELU)
        return refuse(c, "unknown gate function %d", (int)c->op->glu);
    return FM_OK;
}

static fm_status check_linear_glu(const check *c) {
    fm_status status = check_ids(c, 1, true, 2, false);
    if (status == FM_OK)
        status = check_matrix(c, "weight[0]", c->op->weight[0]);
    if (status == FM_OK)
        status = check_matrix(c, "weight[1]", c->op->weight[1]);
    if (status != FM_OK)
        return status;
    const fm__weight *gate = weight(c, c->op->weight[0]), *up = weight(c, c->op->weight[1]);
    if (gate->n != up->n || gate->k != up->k)
        return refuse(c, "gate is %u x %u, up is %u x %u", gate->n, gate->k, up->n, up->k);
    if (gate->type->act[c->op->fast & 1] != up->type->act[c->op->fast & 1])
        return refuse(c, "gate (%s) and up (%s) need unlike activation classes", gate->type->name,
                      up->type->name);
    status = check_gate_function(c);
    return status == FM_OK ? check_product(c) : status;
}

static fm_status check_glu(const check *c) {
    fm_status status = check_ids(c, 2, true, 0, false);
    if (status == FM_OK)
        status = check_gate_function(c);
    if (status != FM_OK)
        return status;
    const fm__tensor *out = tensor(c, c->op->out);
    status = check_tensor_shape(c, "out", c->op->out, out->cols, FM__ACT_F32, out->rows);
    if (status == FM_OK)
        status = check_tensor_shape(c, "in[0]", c->op->in[0], out->cols, FM__ACT_F32, out->rows);
    if (status == FM_OK)
        status = check_tensor_shape(c, "in[1]", c->op->in[1], out->cols, FM__ACT_F32, out->rows);
    return status;
}

static fm_status check_rope(const check *c) {
    fm_status status = check_ids(c, 0, true, 2, false);
    if (status != FM_OK)
        return status;
    const fm__op *op = c->op;
    if (op->rotary == 0 || op->rotary % 2 != 0 || op->rotary > op->head_dim)
        return refuse(c, "%u of %u dims cannot be rotated", op->rotary, op->head_dim);
    if (op->rope != FM__ROPE_PAIRS && op->rope != FM__ROPE_HALVES)
        return refuse(c, "unknown style %d", (int)op->rope);
    for (int i = 0; i < 2; i++) {
        const fm__weight *table = weight(c, op->weight[i]);
        if (table->role != FM__ROLE_VECTOR || table->n != op->rotary / 2 || table->groups == 0)
            return refuse(c, "weight[%d] (%s) is not a table of %u entries a position", i,
                          table->name, op->rotary / 2);
    }
    return check_tensor_shape(c, "out", op->out, (uint64_t)op->heads * op->head_dim, FM__ACT_F32,
                              FM__ROWS_BATCH);
}

static fm_status check_cache(const check *c) {
    const fm__op *op = c->op;
    if (op->cache_group >= c->tape->n_group)
        return refuse(c, "cache group %u of %u", op->cache_group, c->tape->n_group);
    const fm__cache_group *g = &c->tape->groups[op->cache_group];
    if (op->cache_layer >= g->n_layer)
        return refuse(c, "cache layer %u of %u", op->cache_layer, g->n_layer);
    if (g->n_kv_head == 0 || g->key_dim == 0 || g->value_dim == 0)
        return refuse(c, "cache group %u has no heads or no dims", op->cache_group);
    if ((unsigned)g->type >= FM__CACHE_TYPES)
        return refuse(c, "cache group %u is of no known type", op->cache_group);
    return FM_OK;
}

static fm_status check_kv_store(const check *c) {
    fm_status status = check_ids(c, 2, false, 0, false);
    if (status == FM_OK)
        status = check_cache(c);
    if (status != FM_OK)
        return status;
    const fm__cache_group *g = &c->tape->groups[c->op->cache_group];
    status = check_tensor_shape(c, "in[0]", c->op->in[0], (uint64_t)g->n_kv_head * g->key_dim,
                                FM__ACT_F32, FM__ROWS_BATCH);
    if (status == FM_OK)
        status = check_tensor_shape(c, "in[1]", c->op->in[1], (uint64_t)g->n_kv_head * g->value_dim,
                                    FM__ACT_F32, FM__ROWS_BATCH);
    return status;
}

static fm_status check_attention(const check *c) {
    fm_status status = check_ids(c, 1, true, 0, false);
    if (status == FM_OK)
        status = check_cache(c);
    if (status != FM_OK)
        return status;
    const fm__cache_group *g = &c->tape->groups[c->op->cache_group];
    if (c->op->heads == 0 || c->op->heads % g->n_kv_head != 0)
        return refuse(c, "%u heads do not share %u key/value heads evenly", c->op->heads,
                      g->n_kv_head);
    if (c->op->in[0] == c->op->out)
        return refuse(c, "reads and writes one tensor");
    status = check_tensor_shape(c, "in[0]", c->op->in[0], (uint64_t)c->op->heads * g->key_dim,
                                FM__ACT_F32, FM__ROWS_BATCH);
    if (status == FM_OK)
        status = check_tensor_shape(c, "out", c->op->out, (uint64_t)c->op->heads * g->value_dim,
                                    FM__ACT_F32, FM__ROWS_BATCH);
    return status;
}

static fm_status check_select(const check *c) {
    fm_status status = check_ids(c, 1, true, 0, false);
    if (status != FM_OK)
        return status;
    const fm__tensor *in = tensor(c, c->op->in[0]);
    status = check_tensor_shape(c, "in[0]", c->op->in[0], in->cols, in->act, FM__ROWS_BATCH);
    if (status == FM_OK)
        status = check_tensor_shape(c, "out", c->op->out, in->cols, in->act, FM__ROWS_OUTPUT);
    return status;
}

fm_status fm__op_check(const fm__tape *tape, uint32_t op, fm_error *error) {
    const check c = {tape, &tape->ops[op], op, error};
    switch (c.op->kind) {
    case FM__OP_EMBED:
        return check_embed(&c);
    case FM__OP_RMSNORM:
        return check_rmsnorm(&c);
    case FM__OP_QUANTISE:
        return check_quantise(&c);
    case FM__OP_LINEAR:
        return check_linear(&c);
    case FM__OP_LINEAR_GLU:
        return check_linear_glu(&c);
    case FM__OP_GLU:
        return check_glu(&c);
    case FM__OP_ROPE:
        return check_rope(&c);
    case FM__OP_KV_STORE:
        return check_kv_store(&c);
    case FM__OP_ATTENTION:
        return check_attention(&c);
    case FM__OP_SELECT:
        return check_select(&c);
    case FM__OP_COUNT:
        break;
    }
    return refuse(&c, "unknown kind %d", (int)c.op->kind);
}
