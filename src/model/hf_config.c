/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/hf_config.c: config.json of a Hugging Face folder to GGUF keys.
 *
 * Owns: which fields are read, and which values are refused by name. Never does: look at tensors.
 * Called from: the loading thread. Reads both the old fields (rope_theta, rope_scaling) and the
 * newer rope_parameters.
 */
#include "model/model.h"

#include <jansson.h>
#include <string.h>

typedef struct config {
    const fm__checkpoint *hf;
    fm__checkpoint *view;
    json_t *root;
    const char *arch;
    fm_error *error;
    fm_status status; /* sticky */
} config;

static fm_status fail(config *c, fm_status status, const char *field, const char *what) {
    char place[1200];
    snprintf(place, sizeof(place), "%s: config.json: %s", c->hf->path, field);
    if (c->status == FM_OK)
        c->status = fm__error(c->error, status, place, "%s", what);
    return c->status;
}

static fm_status fail_value(config *c, const char *field, const char *kind, const char *value) {
    char text[160];
    snprintf(text, sizeof(text), "not supported: %s %.64s", kind, value);
    return fail(c, FM_ERROR_UNSUPPORTED, field, text);
}

/* ---- typed reads: a missing field or null leaves *out alone and gives false ---- */

static bool get_number(config *c, json_t *object, const char *field, bool required, double *out) {
    json_t *value = json_object_get(object, field);
    if (c->status != FM_OK)
        return false;
    if (!value || json_is_null(value)) {
        if (required)
            fail(c, FM_ERROR_FORMAT, field, "missing");
        return false;
    }
    if (!json_is_number(value)) {
        fail(c, FM_ERROR_FORMAT, field, "is not a number");
        return false;
    }
    *out = json_number_value(value);
    return true;
}

static bool get_u32(config *c, json_t *object, const char *field, bool required, uint32_t *out) {
    double value = 0;
    if (!get_number(c, object, field, required, &value))
        return false;
    if (!json_is_integer(json_object_get(object, field)) || value < 0 || value > 4294967295.0) {
        fail(c, FM_ERROR_FORMAT, field, "is not a whole number from 0 to 4294967295");
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static bool get_bool(config *c, const char *field, bool *out) {
    json_t *value = json_object_get(c->root, field);
    if (c->status != FM_OK || !value || json_is_null(value))
        return false;
    if (!json_is_boolean(value)) {
        fail(c, FM_ERROR_FORMAT, field, "is not true or false");
        return false;
    }
    *out = json_is_true(value);
    return true;
}

static const char *get_string(config *c, json_t *object, const char *field) {
    json_t *value = json_object_get(object, field);
    if (c->status != FM_OK || !value || json_is_null(value))
        return NULL;
    if (!json_is_string(value)) {
        fail(c, FM_ERROR_FORMAT, field, "is not a string");
        return NULL;
    }
    return json_string_value(value);
}

/* ---- keys of the view ---- */

static void add_u32(config *c, const char *suffix, uint32_t value) {
    char key[128];
    snprintf(key, sizeof(key), "%s.%s", c->arch, suffix);
    if (c->status == FM_OK)
        c->status = fm__checkpoint_add_u32(c->view, key, value, c->error);
}

static void add_f32(config *c, const char *suffix, double value) {
    char key[128];
    snprintf(key, sizeof(key), "%s.%s", c->arch, suffix);
    if (c->status == FM_OK)
        c->status = fm__checkpoint_add_f32(c->view, key, (float)value, c->error);
}

static void add_str(config *c, const char *key, const char *value) {
    if (c->status == FM_OK)
        c->status = fm__checkpoint_add_str(c->view, key, fm__str_of(value), c->error);
}

/* ---- parts ---- */

static void read_model_type(config *c, fm__hf_config *out) {
    static const struct {
        const char *model_type, *arch;
        bool permute;
    } types[] = {
        {"llama", "llama", true},
        {"mistral", "llama", true},
        {"qwen2", "qwen2", false},
        {"qwen3", "qwen3", false},
    };
    const char *type = get_string(c, c->root, "model_type");
    if (c->status != FM_OK)
        return;
    if (!type) {
        fail(c, FM_ERROR_FORMAT, "model_type", "missing");
        return;
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(type, types[i].model_type) == 0) {
            out->arch = c->arch = types[i].arch;
            out->permute = types[i].permute;
            return;
        }
    }
    fail_value(c, "model_type", "model type", type);
}

/* Fields that name another forward pass than the families here have. */
static void refuse_unknown(config *c) {
    const char *act = get_string(c, c->root, "hidden_act");
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        fail_value(c, "hidden_act", "activation", act);
    bool flag = false;
    if (get_bool(c, "mlp_bias", &flag) && flag)
        fail_value(c, "mlp_bias", "value", "true");
    flag = false;
    if (get_bool(c, "attention_bias", &flag) && flag && strcmp(c->arch, "llama") != 0)
        fail_value(c, "attention_bias", "value", "true");
    json_t *quantization = json_object_get(c->root, "quantization_config");
    if (c->status == FM_OK && quantization && !json_is_null(quantization)) {
        const char *method = json_string_value(json_object_get(quantization, "quant_method"));
        fail_value(c, "quantization_config", "quantised safetensors, method",
                   method ? method : "unknown");
    }
    static const char *const moe[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < sizeof(moe) / sizeof(moe[0]); i++) {
        uint32_t n = 0;
        if (get_u32(c, c->root, moe[i], false, &n) && n > 0)
            fail_value(c, moe[i], "mixture of experts in model type", c->arch);
    }
    double partial = 1;
    if (get_number(c, c->root, "partial_rotary_factor", false, &partial) && partial != 1.0)
        fail_value(c, "partial_rotary_factor", "value", "other than 1");
}

/* A sliding window: Mistral's for every layer. Qwen switches it on by layer, which is refused. */
static void read_window(config *c, const fm__hf_config *out) {
    const char *type = get_string(c, c->root, "model_type");
    uint32_t window = 0;
    if (c->status != FM_OK)
        return;
    if (strcmp(type, "mistral") == 0) {
        if (get_u32(c, c->root, "sliding_window", false, &window) && window > 0)
            add_u32(c, "attention.sliding_window", window);
        return;
    }
    bool use = false;
    uint32_t from = 0;
    if (get_bool(c, "use_sliding_window", &use) && use) {
        get_u32(c, c->root, "max_window_layers", false, &from);
        if (from < out->n_layer)
            fail_value(c, "use_sliding_window", "a sliding window in some layers of model type",
                       type);
    }
    json_t *layers = json_object_get(c->root, "layer_types"), *layer;
    size_t i;
    json_array_foreach(layers, i, layer) {
        const char *kind = json_string_value(layer);
        if (!kind || strcmp(kind, "full_attention") != 0)
            fail_value(c, "layer_types", "layer type", kind ? kind : "unknown");
    }
}

static void read_llama3(config *c, json_t *rope, double base, fm__hf_config *out) {
    double factor = 0, low = 0, high = 0, original = 0;
    get_number(c, rope, "factor", true, &factor);
    get_number(c, rope, "low_freq_factor", true, &low);
    get_number(c, rope, "high_freq_factor", true, &high);
    if (!get_number(c, rope, "original_max_position_embeddings", false, &original))
        get_number(c, c->root, "original_max_position_embeddings", true, &original);
    if (c->status != FM_OK)
        return;
    if (!(factor >= 1 && factor <= 1e6 && low > 0 && high > low && high < 1e6 && original >= 1)) {
        fail(c, FM_ERROR_FORMAT, "rope scaling",
             "needs 1 <= factor, 0 < low_freq_factor < high_freq_factor and a context");
        return;
    }
    out->factors = fm__arena_alloc(&c->view->arena, out->head_dim / 2 * sizeof(float));
    if (!out->factors) {
        c->status = fm__error_memory(c->error, "rope factors", out->head_dim * 2);
        return;
    }
    fm__rope_llama3_factors(base, factor, low, high, original, out->head_dim, out->factors);
}

static void read_rope(config *c, fm__hf_config *out) {
    double base = 10000;
    json_t *parameters = json_object_get(c->root, "rope_parameters");
    json_t *rope = parameters;
    get_number(c, c->root, "rope_theta", false, &base);
    if (!rope || json_is_null(rope))
        rope = json_object_get(c->root, "rope_scaling");
    if (rope && !json_is_null(rope) && !json_is_object(rope)) {
        fail(c, FM_ERROR_FORMAT, rope == parameters ? "rope_parameters" : "rope_scaling",
             "is not an object");
        return;
    }
    const char *type = NULL;
    if (rope && json_is_object(rope)) {
        get_number(c, rope, "rope_theta", false, &base);
        double partial = 1;
        if (get_number(c, rope, "partial_rotary_factor", false, &partial) && partial != 1.0)
            fail_value(c, "partial_rotary_factor", "value", "other than 1");
        type = get_string(c, rope, "rope_type");
        if (!type)
            type = get_string(c, rope, "type");
    }
    if (c->status != FM_OK)
        return;
    if (!(base > 1 && base < 1e12)) {
        fail(c, FM_ERROR_FORMAT, "rope_theta", "must be above 1 and below 1e12");
        return;
    }
    add_f32(c, "rope.freq_base", base);
    add_u32(c, "rope.dimension_count", out->head_dim);
    if (!type || strcmp(type, "default") == 0)
        return;
    if (strcmp(type, "linear") == 0) {
        double factor = 0;
        get_number(c, rope, "factor", true, &factor);
        char key[64];
        snprintf(key, sizeof(key), "%s.rope.scaling.type", c->arch);
        add_str(c, key, "linear");
        add_f32(c, "rope.scaling.factor", factor);
    } else if (strcmp(type, "llama3") == 0) {
        read_llama3(c, rope, base, out);
    } else {
        fail_value(c, "rope_type", "rope scaling type", type);
    }
}

static void read_sizes(config *c, fm__hf_config *out) {
    uint32_t embd = 0, ff = 0, context = 0, vocab = 0;
    double eps = 0;
    get_u32(c, c->root, "num_hidden_layers", true, &out->n_layer);
    get_u32(c, c->root, "hidden_size", true, &embd);
    get_u32(c, c->root, "intermediate_size", true, &ff);
    get_u32(c, c->root, "num_attention_heads", true, &out->n_head);
    out->n_kv_head = out->n_head;
    get_u32(c, c->root, "num_key_value_heads", false, &out->n_kv_head);
    get_u32(c, c->root, "max_position_embeddings", true, &context);
    get_number(c, c->root, "rms_norm_eps", true, &eps);
    if (!get_u32(c, c->root, "head_dim", false, &out->head_dim) && c->status == FM_OK) {
        if (out->n_head == 0 || embd % out->n_head != 0)
            fail(c, FM_ERROR_FORMAT, "num_attention_heads", "does not divide hidden_size");
        else
            out->head_dim = embd / out->n_head;
    }
    if (c->status == FM_OK && (out->head_dim < 2 || out->head_dim > 65536 || out->head_dim % 2))
        fail(c, FM_ERROR_FORMAT, "head_dim", "must be even and from 2 to 65536");
    add_u32(c, "block_count", out->n_layer);
    add_u32(c, "context_length", context);
    add_u32(c, "embedding_length", embd);
    add_u32(c, "feed_forward_length", ff);
    add_u32(c, "attention.head_count", out->n_head);
    add_u32(c, "attention.head_count_kv", out->n_kv_head);
    add_u32(c, "attention.key_length", out->head_dim);
    add_u32(c, "attention.value_length", out->head_dim);
    add_f32(c, "attention.layer_norm_rms_epsilon", eps);
    if (get_u32(c, c->root, "vocab_size", false, &vocab))
        add_u32(c, "vocab_size", vocab);
}

/* general.name: `_name_or_path`, or the folder's last part. */
static void add_name(config *c) {
    const char *name = get_string(c, c->root, "_name_or_path");
    char folder[128];
    if (!name || !name[0] || strlen(name) >= 120) {
        size_t end = strlen(c->hf->path);
        while (end > 0 && c->hf->path[end - 1] == '/')
            end--;
        size_t begin = end;
        while (begin > 0 && c->hf->path[begin - 1] != '/')
            begin--;
        snprintf(folder, sizeof(folder), "%.*s", (int)fm__min_size(end - begin, 100),
                 c->hf->path + begin);
        name = folder;
    }
    if (name[0])
        add_str(c, "general.name", name);
}

fm_status fm__hf_config_read(const fm__checkpoint *hf, fm__checkpoint *view, fm__hf_config *out,
                             fm_error *error) {
    config c = {.hf = hf, .view = view, .error = error};
    json_error_t where;
    *out = (fm__hf_config){0};
    c.root = json_loadb(hf->config, hf->config_bytes, JSON_REJECT_DUPLICATES, &where);
    if (!c.root) {
        char text[200];
        snprintf(text, sizeof(text), "%.120s at line %d", where.text, where.line);
        return fail(&c, FM_ERROR_FORMAT, "whole file", text);
    }
    if (!json_is_object(c.root))
        fail(&c, FM_ERROR_FORMAT, "whole file", "is not an object");
    read_model_type(&c, out);
    if (c.status == FM_OK) {
        add_str(&c, "general.architecture", c.arch);
        add_name(&c);
        refuse_unknown(&c);
    }
    if (c.status == FM_OK)
        read_sizes(&c, out);
    if (c.status == FM_OK)
        read_window(&c, out);
    if (c.status == FM_OK)
        read_rope(&c, out);
    if (c.status == FM_OK)
        out->tied_given = get_bool(&c, "tie_word_embeddings", &out->tied);
    json_decref(c.root);
    return c.status;
}
