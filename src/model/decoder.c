/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/decoder.c: the transformer block that llama, mistral, qwen2 and qwen3 share.
 *
 * Owns: the weights' ids and the order of ops. Never does: run anything. Called from: the loading
 * thread.
 *
 * A layer: x += O(attention(rope(QKV(norm(x))))), x += down(silu(gate(norm(x))) * up(norm(x))).
 * Activations are quantised once for each class that a consumer asks for.
 */
#include "model/model.h"

#include <math.h>
#include <string.h>

typedef struct layer {
    int16_t attn_norm, ffn_norm;
    int16_t q, k, v, o;
    int16_t q_bias, k_bias, v_bias, o_bias; /* FM__NONE where there is none */
    int16_t q_norm, k_norm;                 /* FM__NONE where there is none */
    int16_t gate, up, down;
} layer;

typedef struct decoder {
    int16_t embed, output_norm, output, cos, sin;
    layer layers[];
} decoder;

/* ---- binding ---- */

typedef struct layer_binder {
    fm__binder *binder;
    uint32_t index;
    fm_error *error;
    fm_status status; /* sticky */
} layer_binder;

static void linear(layer_binder *b, const char *suffix, uint64_t k, uint64_t n, int16_t *id) {
    char name[96];
    snprintf(name, sizeof(name), "blk.%u.%s.weight", b->index, suffix);
    if (b->status == FM_OK)
        b->status = fm__bind_linear(b->binder, name, k, n, id, b->error);
}

static void vector(layer_binder *b, const char *suffix, uint64_t n, bool optional, int16_t *id) {
    char name[96];
    snprintf(name, sizeof(name), "blk.%u.%s", b->index, suffix);
    if (b->status == FM_OK)
        b->status = fm__bind_vector(b->binder, name, n, optional, id, b->error);
}

static void bias(layer_binder *b, const char *suffix, uint64_t n, fm__bias kind, int16_t *id) {
    *id = FM__NONE;
    if (kind != FM__BIAS_NONE)
        vector(b, suffix, n, kind == FM__BIAS_OPTIONAL, id);
}

static fm_status bind_layer(layer_binder *b, const fm__hparams *h, layer *l,
                            const fm__decoder_options *options) {
    uint64_t q = (uint64_t)h->n_head * h->key_dim, k = (uint64_t)h->n_kv_head * h->key_dim;
    uint64_t v = (uint64_t)h->n_kv_head * h->value_dim, o = (uint64_t)h->n_head * h->value_dim;
    vector(b, "attn_norm.weight", h->n_embd, false, &l->attn_norm);
    linear(b, "attn_q", h->n_embd, q, &l->q);
    linear(b, "attn_k", h->n_embd, k, &l->k);
    linear(b, "attn_v", h->n_embd, v, &l->v);
    bias(b, "attn_q.bias", q, options->qkv_bias, &l->q_bias);
    bias(b, "attn_k.bias", k, options->qkv_bias, &l->k_bias);
    bias(b, "attn_v.bias", v, options->qkv_bias, &l->v_bias);
    l->q_norm = l->k_norm = FM__NONE;
    if (options->qk_norm) {
        vector(b, "attn_q_norm.weight", h->key_dim, false, &l->q_norm);
        vector(b, "attn_k_norm.weight", h->key_dim, false, &l->k_norm);
    }
    linear(b, "attn_output", o, h->n_embd, &l->o);
    bias(b, "attn_output.bias", h->n_embd, options->output_bias, &l->o_bias);
    vector(b, "ffn_norm.weight", h->n_embd, false, &l->ffn_norm);
    linear(b, "ffn_gate", h->n_embd, h->n_ff, &l->gate);
    linear(b, "ffn_up", h->n_embd, h->n_ff, &l->up);
    linear(b, "ffn_down", h->n_ff, h->n_embd, &l->down);
    return b->status;
}

fm_status fm__decoder_bind(fm__model *model, fm__binder *binder, const fm__decoder_options *options,
                           fm_error *error) {
    const fm__hparams *h = &model->hparams;
    size_t bytes = sizeof(decoder) + h->n_layer * sizeof(layer);
    decoder *d = fm__alloc_zero(bytes);
    if (!d)
        return fm__error_memory(error, "decoder", bytes);
    model->family_data = d; /* released by fm__decoder_finish() */
    fm_status status =
        fm__bind_gather(binder, "token_embd.weight", h->n_embd, h->n_vocab, &d->embed, error);
    layer_binder b = {.binder = binder, .error = error, .status = status};
    for (; b.index < h->n_layer && b.status == FM_OK; b.index++)
        bind_layer(&b, h, &d->layers[b.index], options);
    if (b.status != FM_OK)
        return b.status;
    status =
        fm__bind_vector(binder, "output_norm.weight", h->n_embd, false, &d->output_norm, error);
    if (status == FM_OK)
        status = fm__bind_linear(binder, h->tied ? "token_embd.weight" : "output.weight", h->n_embd,
                                 h->n_vocab, &d->output, error);
    if (status == FM_OK)
        status = fm__bind_rope(binder, h, model->positions, &d->cos, &d->sin, error);
    return status;
}

void fm__decoder_finish(fm__model *model) {
    fm__free(model->family_data);
    model->family_data = NULL;
}

/* ---- recording ---- */

typedef struct recorder {
    fm__tape *tape;
    const fm__model *model;
    int layer;
    fm__rows rows;
    /* The tensors made so far from the float tensor `source`, by class. */
    int16_t source, made[FM__ACT_COUNT];
} recorder;

static int16_t tensor(recorder *r, const char *name, uint32_t cols, fm__slot slot) {
    return fm__tape_tensor(r->tape, name, FM__ACT_F32, cols, r->rows, slot);
}

static fm__act act_of(const recorder *r, int16_t weight) {
    return r->model->weights[weight]->type->act[r->model->fast];
}

/* The float tensor `from` in the class that `weight` multiplies with. */
static int16_t activation(recorder *r, int16_t from, int16_t weight) {
    fm__act act = act_of(r, weight);
    if (act == FM__ACT_F32)
        return from;
    if (r->source != from) {
        r->source = from;
        for (int i = 0; i < FM__ACT_COUNT; i++)
            r->made[i] = FM__NONE;
    }
    if (r->made[act] == FM__NONE) {
        r->made[act] = fm__tape_tensor(r->tape, "act", act, r->model->weights[weight]->k, r->rows,
                                       FM__SLOT_SCRATCH);
        fm__op *op = fm__tape_op(r->tape, FM__OP_QUANTISE, r->layer);
        op->in[0] = from;
        op->out = r->made[act];
    }
    return r->made[act];
}

static int16_t norm(recorder *r, int16_t from, int16_t weight, uint32_t group, int16_t out) {
    fm__op *op = fm__tape_op(r->tape, FM__OP_RMSNORM, r->layer);
    op->in[0] = from;
    op->out = out;
    op->weight[0] = weight;
    op->group = group;
    op->eps = r->model->hparams.eps;
    return out;
}

static uint8_t fast_of(const recorder *r, int16_t weight) {
    return r->model->fast && !r->model->weights[weight]->type->quantised;
}

static int16_t product(recorder *r, int16_t from, int16_t weight, int16_t bias_id, int16_t residual,
                       const char *name, fm__slot slot) {
    int16_t in = activation(r, from, weight);
    int16_t out = tensor(r, name, r->model->weights[weight]->n, slot);
    fm__op *op = fm__tape_op(r->tape, FM__OP_LINEAR, r->layer);
    op->in[0] = in;
    op->in[1] = residual;
    op->out = out;
    op->weight[0] = weight;
    op->bias = bias_id;
    op->fast = fast_of(r, weight);
    return out;
}

static void rotate(recorder *r, const decoder *d, int16_t x, uint32_t heads) {
    const fm__hparams *h = &r->model->hparams;
    fm__op *op = fm__tape_op(r->tape, FM__OP_ROPE, r->layer);
    op->out = x;
    op->weight[0] = d->cos;
    op->weight[1] = d->sin;
    op->rope = h->rope_style;
    op->heads = heads;
    op->head_dim = h->key_dim;
    op->rotary = h->rotary;
}

static int16_t attention(recorder *r, const decoder *d, const layer *l, int16_t x) {
    const fm__hparams *h = &r->model->hparams;
    int16_t normed =
        norm(r, x, l->attn_norm, h->n_embd, tensor(r, "attn_norm", h->n_embd, FM__SLOT_SCRATCH));
    int16_t q = product(r, normed, l->q, l->q_bias, FM__NONE, "q", FM__SLOT_SCRATCH);
    int16_t k = product(r, normed, l->k, l->k_bias, FM__NONE, "k", FM__SLOT_SCRATCH);
    int16_t v = product(r, normed, l->v, l->v_bias, FM__NONE, "v", FM__SLOT_SCRATCH);
    if (l->q_norm != FM__NONE) {
        q = norm(r, q, l->q_norm, h->key_dim,
                 tensor(r, "q_norm", h->n_head * h->key_dim, FM__SLOT_SCRATCH));
        k = norm(r, k, l->k_norm, h->key_dim,
                 tensor(r, "k_norm", h->n_kv_head * h->key_dim, FM__SLOT_SCRATCH));
    }
    rotate(r, d, q, h->n_head);
    rotate(r, d, k, h->n_kv_head);
    fm__op *store = fm__tape_op(r->tape, FM__OP_KV_STORE, r->layer);
    store->in[0] = k;
    store->in[1] = v;
    store->cache_layer = (uint32_t)r->layer;
    int16_t out = tensor(r, "attn", h->n_head * h->value_dim, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(r->tape, FM__OP_ATTENTION, r->layer);
    op->in[0] = q;
    op->out = out;
    op->heads = h->n_head;
    op->cache_layer = (uint32_t)r->layer;
    op->scale = (float)(1.0 / sqrt((double)h->key_dim)); /* sqrt is exactly rounded everywhere */
    return product(r, out, l->o, l->o_bias, x, "x", FM__SLOT_SCRATCH);
}

/* silu(gate) * up: one op where both read the same activations, which is nearly always. */
static int16_t gated(recorder *r, const layer *l, int16_t normed) {
    const fm__model *model = r->model;
    const fm__type *gate = model->weights[l->gate]->type, *up = model->weights[l->up]->type;
    bool together =
        gate->act[model->fast] == up->act[model->fast] && fast_of(r, l->gate) == fast_of(r, l->up);
    int16_t in[2] = {FM__NONE, FM__NONE};
    if (together) {
        in[0] = activation(r, normed, l->gate);
    } else {
        in[0] = product(r, normed, l->gate, FM__NONE, FM__NONE, "gate", FM__SLOT_SCRATCH);
        in[1] = product(r, normed, l->up, FM__NONE, FM__NONE, "up", FM__SLOT_SCRATCH);
    }
    int16_t out = tensor(r, "ffn", model->hparams.n_ff, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(r->tape, together ? FM__OP_LINEAR_GLU : FM__OP_GLU, r->layer);
    op->in[0] = in[0];
    op->in[1] = in[1];
    op->out = out;
    op->glu = FM__GLU_SILU;
    if (together) {
        op->weight[0] = l->gate;
        op->weight[1] = l->up;
        op->fast = fast_of(r, l->gate);
    }
    return out;
}

static int16_t feed_forward(recorder *r, const layer *l, int16_t x) {
    const fm__hparams *h = &r->model->hparams;
    int16_t normed =
        norm(r, x, l->ffn_norm, h->n_embd, tensor(r, "ffn_norm", h->n_embd, FM__SLOT_SCRATCH));
    int16_t hidden = gated(r, l, normed);
    return product(r, hidden, l->down, FM__NONE, x, "x", FM__SLOT_SCRATCH);
}

fm_status fm__decoder_record(const fm__model *model, fm__tape *tape, fm_error *error) {
    (void)error; /* a failed recording is sticky in the tape; fm__tape_finish() reports it */
    const fm__hparams *h = &model->hparams;
    const decoder *d = model->family_data;
    recorder r = {.tape = tape,
                  .model = model,
                  .layer = FM__NONE,
                  .rows = FM__ROWS_BATCH,
                  .source = FM__NONE};
    int16_t x = tensor(&r, "x", h->n_embd, FM__SLOT_SCRATCH);
    fm__op *op = fm__tape_op(tape, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = d->embed;
    for (uint32_t i = 0; i < h->n_layer; i++) {
        r.layer = (int)i;
        x = attention(&r, d, &d->layers[i], x);
        x = feed_forward(&r, &d->layers[i], x);
    }
    r.layer = FM__NONE;
    r.rows = FM__ROWS_OUTPUT;
    int16_t selected = tensor(&r, "selected", h->n_embd, FM__SLOT_SCRATCH);
    op = fm__tape_op(tape, FM__OP_SELECT, FM__NONE);
    op->in[0] = x;
    op->out = selected;
    tape->hidden = norm(&r, selected, d->output_norm, h->n_embd,
                        tensor(&r, "hidden", h->n_embd, FM__SLOT_OUTPUT));
    tape->logits =
        product(&r, tape->hidden, d->output, FM__NONE, FM__NONE, "logits", FM__SLOT_OUTPUT);
    return FM_OK;
}
