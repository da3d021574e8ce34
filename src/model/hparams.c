/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/hparams.c: hyper-parameters from `<arch>.*` keys.
 *
 * Owns: the list of keys that are read, and of those that would change the maths and are therefore
 * refused unless they hold their neutral value. Never does: look at tensors beyond the vocabulary's
 * size. Called from: the loading thread.
 */
#include "model/model.h"

#include "cpu/cpu.h"

#include <string.h>

enum { MAX_LAYERS = 1024, MAX_HEADS = 4096 };

typedef struct reader {
    const fm__checkpoint *checkpoint;
    const fm__hparams *hparams;
    fm_error *error;
    fm_status status; /* sticky */
} reader;

static void key_of(const reader *r, const char *suffix, char out[128]) {
    snprintf(out, 128, "%s.%s", r->hparams->arch, suffix);
}

static void read_u32(reader *r, const char *suffix, bool required, uint32_t *out) {
    char key[128];
    key_of(r, suffix, key);
    if (r->status == FM_OK)
        r->status = fm__kv_read_u32(r->checkpoint, key, required, out, r->error);
}

static void read_f32(reader *r, const char *suffix, bool required, float *out) {
    char key[128];
    key_of(r, suffix, key);
    if (r->status == FM_OK)
        r->status = fm__kv_read_f32(r->checkpoint, key, required, out, r->error);
}

static fm_status refuse(reader *r, fm_status status, const char *suffix, const char *what) {
    char place[1200];
    snprintf(place, sizeof(place), "%s: %s.%s", r->checkpoint->path, r->hparams->arch, suffix);
    return fm__error(r->error, status, place, "%s", what);
}

/* Keys whose neutral value changes nothing; any other value means another forward pass. */
static const struct {
    const char *suffix;
    double neutral;
} neutral_keys[] = {
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"attention.scale", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.causal", 1},
    {"attention.key_length_mla", 0},
    {"attention.value_length_mla", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"embedding_scale", 1},
    {"use_parallel_residual", 0},
    {"pooling_type", 0},
    {"nextn_predict_layers", 0},
    {"ssm.state_size", 0},
};

/* A scalar of any numeric type or a bool, as a number; a wrong type is an error. */
static fm_status read_number(reader *r, const fm__kv *kv, const char *key, double *out) {
    uint64_t whole = 0;
    float real = 0;
    bool flag = false;
    fm_status status;
    if (kv->type == FM__KV_BOOL) {
        status = fm__kv_read_bool(r->checkpoint, key, true, &flag, r->error);
        *out = flag;
    } else if (kv->type == FM__KV_F32 || kv->type == FM__KV_F64) {
        status = fm__kv_read_f32(r->checkpoint, key, true, &real, r->error);
        *out = real;
    } else {
        status = fm__kv_read_u64(r->checkpoint, key, true, &whole, r->error);
        *out = (double)whole;
    }
    return status;
}

static fm_status check_neutral(reader *r) {
    for (size_t i = 0; i < sizeof(neutral_keys) / sizeof(neutral_keys[0]); i++) {
        char key[128];
        double value = 0;
        key_of(r, neutral_keys[i].suffix, key);
        const fm__kv *kv = fm__checkpoint_kv(r->checkpoint, key);
        if (!kv)
            continue;
        fm_status status = read_number(r, kv, key, &value);
        if (status != FM_OK)
            return status;
        if (value != neutral_keys[i].neutral)
            return refuse(r, FM_ERROR_UNSUPPORTED, neutral_keys[i].suffix,
                          "a value that changes the forward pass in a way this family does not "
                          "have");
    }
    return FM_OK;
}

/* A factor without a type is linear, as in files older than the type's key. */
static fm_status read_scaling(reader *r, fm__hparams *h) {
    char key[128];
    fm__str type = FM__STR("linear");
    float factor = 1;
    key_of(r, "rope.scaling.type", key);
    fm_status status = fm__kv_read_str(r->checkpoint, key, false, &type, r->error);
    if (status != FM_OK)
        return status;
    read_f32(r, "rope.scale_linear", false, &factor);
    read_f32(r, "rope.scaling.factor", false, &factor);
    if (r->status != FM_OK)
        return r->status;
    h->rope_linear = 1;
    if (fm__str_is(type, "none") || type.bytes == 0)
        return FM_OK;
    if (!fm__str_is(type, "linear")) {
        char place[1200];
        snprintf(place, sizeof(place), "%s: %s", r->checkpoint->path, key);
        return fm__error(r->error, FM_ERROR_UNSUPPORTED, place,
                         "not supported: rope scaling type %.*s", (int)fm__min_size(type.bytes, 64),
                         type.data);
    }
    if (factor == 0) /* how some files say that there is none */
        return FM_OK;
    if (!(factor >= 1.0f && factor <= 1e6f))
        return refuse(r, FM_ERROR_FORMAT, "rope.scaling.factor", "must be between 1 and 1e6");
    h->rope_linear = factor;
    return FM_OK;
}

static fm_status check_ranges(reader *r, const fm__hparams *h) {
    const struct {
        const char *suffix;
        uint32_t value, low, high;
    } ranges[] = {
        {"block_count", h->n_layer, 1, MAX_LAYERS},
        {"embedding_length", h->n_embd, 1, 1u << 20},
        {"feed_forward_length", h->n_ff, 1, 1u << 24},
        {"attention.head_count", h->n_head, 1, MAX_HEADS},
        {"attention.head_count_kv", h->n_kv_head, 1, MAX_HEADS},
        {"attention.key_length", h->key_dim, 2, FM__MAX_HEAD_DIM},
        {"attention.value_length", h->value_dim, 1, FM__MAX_HEAD_DIM},
        {"context_length", h->context_length, 1, 1u << 24},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high) {
            char text[96];
            snprintf(text, sizeof(text), "is %u, must be between %u and %u", ranges[i].value,
                     ranges[i].low, ranges[i].high);
            return refuse(r, FM_ERROR_FORMAT, ranges[i].suffix, text);
        }
    }
    if (h->n_head % h->n_kv_head != 0)
        return refuse(r, FM_ERROR_FORMAT, "attention.head_count_kv",
                      "does not divide attention.head_count");
    if (h->rotary == 0 || h->rotary % 2 != 0 || h->rotary > h->key_dim)
        return refuse(r, FM_ERROR_FORMAT, "rope.dimension_count",
                      "must be even, above 0 and at most attention.key_length");
    if (!(h->eps > 0 && h->eps < 1))
        return refuse(r, FM_ERROR_FORMAT, "attention.layer_norm_rms_epsilon",
                      "must be above 0 and below 1");
    if (!(h->rope_base > 1 && h->rope_base < 1e12))
        return refuse(r, FM_ERROR_FORMAT, "rope.freq_base", "must be above 1 and below 1e12");
    return FM_OK;
}

fm_status fm__hparams_refuse_window(const fm__model *model, fm_error *error) {
    if (model->hparams.window == 0)
        return FM_OK;
    reader r = {model->checkpoint, &model->hparams, error, FM_OK};
    return refuse(&r, FM_ERROR_UNSUPPORTED, "attention.sliding_window",
                  "not supported: a sliding window in some layers");
}

fm_status fm__hparams_read(fm__model *model, fm_error *error) {
    fm__hparams *h = &model->hparams;
    reader r = {model->checkpoint, h, error, FM_OK};
    fm_status status = check_neutral(&r);
    if (status != FM_OK)
        return status;

    float base = 10000;
    read_u32(&r, "block_count", true, &h->n_layer);
    read_u32(&r, "embedding_length", true, &h->n_embd);
    read_u32(&r, "feed_forward_length", true, &h->n_ff);
    read_u32(&r, "attention.head_count", true, &h->n_head);
    h->n_kv_head = h->n_head;
    read_u32(&r, "attention.head_count_kv", false, &h->n_kv_head);
    read_u32(&r, "context_length", true, &h->context_length);
    read_f32(&r, "attention.layer_norm_rms_epsilon", true, &h->eps);
    read_f32(&r, "rope.freq_base", false, &base);
    read_u32(&r, "attention.sliding_window", false, &h->window);
    h->key_dim = h->value_dim = 0;
    read_u32(&r, "attention.key_length", false, &h->key_dim);
    read_u32(&r, "attention.value_length", false, &h->value_dim);
    if (r.status != FM_OK)
        return r.status;
    if (h->key_dim == 0 || h->value_dim == 0) {
        if (h->n_head == 0 || h->n_embd % h->n_head != 0)
            return refuse(&r, FM_ERROR_FORMAT, "attention.head_count",
                          "does not divide embedding_length");
        h->key_dim = h->key_dim ? h->key_dim : h->n_embd / h->n_head;
        h->value_dim = h->value_dim ? h->value_dim : h->n_embd / h->n_head;
    }
    h->rotary = h->key_dim;
    read_u32(&r, "rope.dimension_count", false, &h->rotary);
    if (r.status != FM_OK)
        return r.status;
    h->rope_base = base;
    status = read_scaling(&r, h);
    if (status != FM_OK)
        return status;
    status = check_ranges(&r, h);
    if (status != FM_OK)
        return status;

    /* The embedding's own rows decide: `vocab_size` is often padded or missing. */
    const fm__tensor_info *embed = fm__checkpoint_find(model->checkpoint, "token_embd.weight");
    char place[1200];
    snprintf(place, sizeof(place), "%s: tensor token_embd.weight", model->checkpoint->path);
    if (!embed)
        return fm__error(error, FM_ERROR_FORMAT, place, "missing");
    if (embed->dims[1] < 1 || embed->dims[1] > (1u << 24))
        return fm__error(error, FM_ERROR_FORMAT, place, "a vocabulary of %llu tokens",
                         (unsigned long long)embed->dims[1]);
    h->n_vocab = (uint32_t)embed->dims[1];
    h->tied = fm__checkpoint_find(model->checkpoint, "output.weight") == NULL;

    model->n_group = 1;
    model->groups[0] = (fm__cache_group){
        .n_layer = h->n_layer,
        .n_kv_head = h->n_kv_head,
        .key_dim = h->key_dim,
        .value_dim = h->value_dim,
        .window = h->window,
        .head_bytes = (size_t)FM__PAGE_TOKENS * 2 * (h->key_dim + h->value_dim),
    };
    return FM_OK;
}
