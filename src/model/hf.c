/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/hf.c: a GGUF-named view of a Hugging Face checkpoint.
 *
 * Owns: the table of tensor names. Never does: copy or convert weights: the view borrows them.
 * Called from: the loading thread.
 */
#include "model/model.h"

#include <string.h>

typedef struct rename_rule {
    const char *hf, *gguf;
    bool rope; /* q and k of llama: stored as half rotations, GGUF wants neighbouring pairs */
    bool query;
} rename_rule;

static const rename_rule layer_rules[] = {
    {"input_layernorm.weight", "attn_norm.weight", false, false},
    {"self_attn.q_proj.weight", "attn_q.weight", true, true},
    {"self_attn.q_proj.bias", "attn_q.bias", true, true},
    {"self_attn.k_proj.weight", "attn_k.weight", true, false},
    {"self_attn.k_proj.bias", "attn_k.bias", true, false},
    {"self_attn.v_proj.weight", "attn_v.weight", false, false},
    {"self_attn.v_proj.bias", "attn_v.bias", false, false},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", false, false},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", false, false},
    {"self_attn.o_proj.weight", "attn_output.weight", false, false},
    {"self_attn.o_proj.bias", "attn_output.bias", false, false},
    {"post_attention_layernorm.weight", "ffn_norm.weight", false, false},
    {"mlp.gate_proj.weight", "ffn_gate.weight", false, false},
    {"mlp.up_proj.weight", "ffn_up.weight", false, false},
    {"mlp.down_proj.weight", "ffn_down.weight", false, false},
};

enum { N_RULES = sizeof(layer_rules) / sizeof(layer_rules[0]) };

/* Adds hf's tensor under its GGUF name if it is there, and counts it. */
static fm_status add(fm__checkpoint *view, const fm__checkpoint *hf, const char *from,
                     const char *to, uint32_t rope_heads, size_t *count, fm_error *error) {
    const fm__tensor_info *t = fm__checkpoint_find(hf, from);
    if (!t)
        return FM_OK;
    fm__tensor_info renamed = *t;
    renamed.name = fm__str_of(to);
    renamed.rope_heads = rope_heads;
    ++*count;
    /* A permutation of rows needs whole heads; the binder checks the full shape later. */
    uint64_t rows = t->n_dims > 1 ? t->dims[1] : t->dims[0];
    if (rope_heads && rows % (2 * (uint64_t)rope_heads) != 0) {
        char place[1280];
        snprintf(place, sizeof(place), "%s: tensor %s", hf->path, from);
        return fm__error(error, FM_ERROR_FORMAT, place, "%llu rows are not %u heads",
                         (unsigned long long)rows, rope_heads);
    }
    return fm__checkpoint_add_tensor(view, &renamed, error);
}

static fm_status add_layers(fm__checkpoint *view, const fm__checkpoint *hf, const fm__hf_config *c,
                            size_t *count, fm_error *error) {
    /* More layers than tensors cannot be: bounds the loop before any shape is known. */
    if (c->n_layer > hf->n_tensors)
        return fm__error(error, FM_ERROR_FORMAT, hf->path,
                         "config.json asks for %u layers, the files hold %zu tensors", c->n_layer,
                         hf->n_tensors);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        for (int r = 0; r < N_RULES; r++) {
            const rename_rule *rule = &layer_rules[r];
            char from[96], to[96];
            snprintf(from, sizeof(from), "model.layers.%u.%s", i, rule->hf);
            snprintf(to, sizeof(to), "blk.%u.%s", i, rule->gguf);
            uint32_t heads = 0;
            if (rule->rope && c->permute)
                heads = rule->query ? c->n_head : c->n_kv_head;
            fm_status status = add(view, hf, from, to, heads, count, error);
            if (status != FM_OK)
                return status;
        }
    }
    return FM_OK;
}

static bool ignorable(fm__str name) {
    return fm__str_ends(name, ".rotary_emb.inv_freq") || fm__str_ends(name, ".attn.masked_bias") ||
           fm__str_ends(name, ".self_attn.masked_bias");
}

/* Every tensor is known by name or safe to leave out. */
static fm_status check_all_used(const fm__checkpoint *view, const fm__checkpoint *hf, size_t used,
                                size_t skipped, const fm__hf_config *c, fm_error *error) {
    if (used + skipped == hf->n_tensors)
        return FM_OK;
    fm__map taken;
    if (!fm__map_init(&taken, used))
        return fm__error_memory(error, hf->path, used);
    fm_status status = FM_OK;
    for (size_t i = 0; i < view->n_tensors && status == FM_OK; i++) {
        /* The data pointer identifies a tensor of hf. */
        fm__str key = {(const char *)&view->tensors[i].data, sizeof(view->tensors[i].data)};
        if (!fm__map_put(&taken, key, 0, NULL))
            status = fm__error_memory(error, hf->path, used);
    }
    for (size_t i = 0; i < hf->n_tensors && status == FM_OK; i++) {
        fm__str name = hf->tensors[i].name;
        fm__str key = {(const char *)&hf->tensors[i].data, sizeof(hf->tensors[i].data)};
        if (fm__map_get(&taken, key, NULL) || ignorable(name) ||
            (c->tied && fm__str_is(name, "lm_head.weight")))
            continue;
        char place[1400];
        snprintf(place, sizeof(place), "%s: tensor %.*s", hf->path,
                 (int)fm__min_size(name.bytes, 120), name.data);
        status = fm__error(error, FM_ERROR_UNSUPPORTED, place, "not a part of the %s architecture",
                           c->arch);
    }
    fm__map_finish(&taken);
    return status;
}

static fm_status fill_view(fm__checkpoint *view, const fm__checkpoint *hf, fm_error *error) {
    fm__hf_config c;
    size_t used = 0, skipped = 0;
    fm_status status = fm__hf_config_read(hf, view, &c, error);
    if (status != FM_OK)
        return status;
    const fm__tensor_info *head = fm__checkpoint_find(hf, "lm_head.weight");
    if (!c.tied_given)
        c.tied = head == NULL;
    if (!c.tied && !head) {
        char place[1280];
        snprintf(place, sizeof(place), "%s: tensor lm_head.weight", hf->path);
        return fm__error(error, FM_ERROR_FORMAT, place,
                         "missing, and config.json does not tie it to the embedding");
    }
    for (size_t i = 0; i < hf->n_tensors; i++)
        skipped += ignorable(hf->tensors[i].name);
    status = add(view, hf, "model.embed_tokens.weight", "token_embd.weight", 0, &used, error);
    if (status == FM_OK && c.factors) {
        fm__tensor_info t = {.name = FM__STR("rope_freqs.weight"),
                             .dtype = FM__F32,
                             .n_dims = 1,
                             .dims = {c.head_dim / 2, 1, 1, 1},
                             .bytes = c.head_dim / 2 * sizeof(float),
                             .data = (const uint8_t *)c.factors};
        status = fm__checkpoint_add_tensor(view, &t, error);
    }
    if (status == FM_OK)
        status = add_layers(view, hf, &c, &used, error);
    if (status == FM_OK)
        status = add(view, hf, "model.norm.weight", "output_norm.weight", 0, &used, error);
    if (status == FM_OK && !c.tied)
        status = add(view, hf, "lm_head.weight", "output.weight", 0, &used, error);
    if (status == FM_OK && c.tied && head)
        skipped++; /* a second copy of the embedding */
    if (status == FM_OK)
        status = check_all_used(view, hf, used, skipped, &c, error);
    return status;
}

fm_status fm__model_from_hf(fm__checkpoint **out, fm__checkpoint **hf, fm_error *error) {
    fm__checkpoint *base = *hf, *view = NULL;
    *hf = NULL;
    if (base->kind != FM__CHECKPOINT_SAFETENSORS || !base->config) {
        fm_status status = fm__error(error, FM_ERROR_FORMAT, base->path, "has no config.json");
        fm__checkpoint_close(&base);
        return status;
    }
    fm_status status = fm__checkpoint_view(&view, base, error);
    if (status != FM_OK) {
        fm__checkpoint_close(&base);
        return status;
    }
    status = fill_view(view, base, error);
    if (status != FM_OK)
        fm__checkpoint_close(&view); /* closes base too */
    else
        *out = view;
    return status;
}
