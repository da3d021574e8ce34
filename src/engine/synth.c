/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/synth.c: models of known shapes with random weights, for speed runs and tests.
 *
 * Owns: the shapes and how their weights and vocabulary are made up. Never does: pretend to be a
 * trained model. Called from: one thread; encoding fans out over fm__parallel_for().
 *
 * Encoding billions of random weights would take longer than the run they are for: each tensor's
 * rows are taken from a pool of POOL_ROWS encoded rows, each rotated by a different number of
 * blocks, so that rows differ and the product's spread is that of independent weights.
 */
#include "engine/engine.h"

#include <string.h>

enum {
    POOL_ROWS = 256,
    WRITE_BYTES = 4 << 20,
    LETTERS = 26,
    N_CONTROL = 3,
    N_POOLS = 12,
};

typedef struct shape {
    const char *name, *arch;
    uint32_t n_layer, n_embd, n_ff, n_head, n_kv_head, head_dim, n_vocab, context;
    float rope_base;
    bool tied;
} shape;

static const shape shapes[] = {
    {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6f, true},
    {"qwen2.5-1.5b", "qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, 1e6f, true},
    {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1e6f, false},
    {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5f, true},
    {"tiny", "llama", 2, 256, 512, 4, 2, 64, 512, 512, 1e4f, false},
};

enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

const char *const *fm_lab_synth_shapes(void) {
    static const char *const names[] = {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b",
                                        "llama-3.2-1b", "tiny",         NULL};
    return names;
}

/* Encoded random rows of one type and length; a mixture has a handful of such pairs. */
typedef struct pool {
    fm__dtype type;
    size_t k;
    uint64_t seed;
    uint8_t *rows; /* (POOL_ROWS, row bytes) */
    float *values; /* (POOL_ROWS, k), while encoding */
} pool;

typedef struct synth {
    const shape *shape;
    fm__checkpoint *out; /* keys and tensors that are written */
    uint64_t seed;
    pool pools[N_POOLS];
    uint32_t next_pool; /* the slot that is made over when all are taken */
    uint8_t *piece;
    fm_progress_callback *progress;
    void *user;
    uint64_t done, total; /* bytes */
} synth;

/* ---- the vocabulary: 256 byte tokens, merges of a token and a letter, control tokens ---- */

/* The character that stands for a byte in byte-level vocabularies. */
static uint32_t byte_character(unsigned byte) {
    bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (shown)
        return byte;
    uint32_t hidden = 256;
    for (unsigned b = 0; b < byte; b++)
        hidden += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    return hidden;
}

typedef struct vocabulary {
    fm__arena arena;
    fm__str *tokens, *merges;
    int32_t *kinds; /* 1 normal, 3 control */
    uint32_t n, n_merge;
} vocabulary;

static void finish_vocabulary(vocabulary *v) {
    fm__arena_finish(&v->arena);
    fm__free(v->tokens);
    fm__free(v->merges);
    fm__free(v->kinds);
}

static bool set_token(vocabulary *v, uint32_t id, const char *text, size_t bytes, int32_t kind) {
    char *copy = fm__arena_copy(&v->arena, text, bytes);
    v->tokens[id] = (fm__str){copy, bytes};
    v->kinds[id] = kind;
    return copy != NULL;
}

/* Token m of the merged ones: token m / 26 followed by letter m % 26. Its left part comes earlier,
   and no two are spelled alike, since the last letter and the rest say which m it was. */
static bool make_merged(vocabulary *v) {
    for (uint32_t m = 0; m < v->n_merge; m++) {
        fm__str left = v->tokens[m / LETTERS];
        char letter = (char)('a' + m % LETTERS);
        char *merge = fm__arena_alloc(&v->arena, left.bytes + 2);
        if (!merge)
            return false;
        memcpy(merge, left.data, left.bytes);
        merge[left.bytes] = ' ';
        merge[left.bytes + 1] = letter;
        v->merges[m] = (fm__str){merge, left.bytes + 2};
        char *token = fm__arena_copy(&v->arena, left.data, left.bytes + 1); /* one to overwrite */
        if (!token)
            return false;
        token[left.bytes] = letter;
        v->tokens[256 + m] = (fm__str){token, left.bytes + 1};
        v->kinds[256 + m] = 1;
    }
    return true;
}

static bool make_vocabulary(vocabulary *v, uint32_t n_vocab) {
    static const char *const control[N_CONTROL] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    fm__arena_init(&v->arena, 1 << 20);
    v->n = n_vocab;
    v->n_merge = n_vocab - 256 - N_CONTROL;
    v->tokens = fm__alloc_array(n_vocab, sizeof(fm__str));
    v->merges = fm__alloc_array(v->n_merge, sizeof(fm__str));
    v->kinds = fm__alloc_array(n_vocab, sizeof(int32_t));
    if (!v->tokens || !v->merges || !v->kinds)
        return false;
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[4];
        size_t bytes = fm__utf8_put(byte_character(byte), text);
        if (!set_token(v, byte, text, bytes, 1))
            return false;
    }
    if (!make_merged(v))
        return false;
    for (uint32_t i = 0; i < N_CONTROL; i++) {
        if (!set_token(v, n_vocab - N_CONTROL + i, control[i], strlen(control[i]), 3))
            return false;
    }
    return true;
}

static fm_status add_vocabulary(synth *s, fm_error *error) {
    vocabulary v = {0};
    uint32_t n = s->shape->n_vocab;
    const char *pre = strcmp(s->shape->arch, "llama") == 0 ? "llama-bpe" : "qwen2";
    fm_status status = FM_OK;
    if (!make_vocabulary(&v, n))
        status = fm__error_memory(error, "vocabulary", (size_t)n * 64);
    fm__checkpoint *out = s->out;
    if (status == FM_OK)
        status = fm__checkpoint_add_str(out, "tokenizer.ggml.model", FM__STR("gpt2"), error);
    if (status == FM_OK)
        status = fm__checkpoint_add_str(out, "tokenizer.ggml.pre", fm__str_of(pre), error);
    if (status == FM_OK)
        status = fm__checkpoint_add_strs(out, "tokenizer.ggml.tokens", v.tokens, n, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_i32s(out, "tokenizer.ggml.token_type", v.kinds, n, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_strs(out, "tokenizer.ggml.merges", v.merges, v.n_merge, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_u32(out, "tokenizer.ggml.eos_token_id", n - 1, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_u32(out, "tokenizer.ggml.bos_token_id", n - N_CONTROL, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_bool(out, "tokenizer.ggml.add_bos_token", false, error);
    finish_vocabulary(&v);
    return status;
}

/* ---- keys and tensors ---- */

static fm_status add_keys(synth *s, const fm__mixture *mixture, fm_error *error) {
    const shape *h = s->shape;
    const struct {
        const char *suffix;
        uint32_t value;
    } numbers[] = {
        {"block_count", h->n_layer},           {"context_length", h->context},
        {"embedding_length", h->n_embd},       {"feed_forward_length", h->n_ff},
        {"attention.head_count", h->n_head},   {"attention.head_count_kv", h->n_kv_head},
        {"attention.key_length", h->head_dim}, {"attention.value_length", h->head_dim},
        {"rope.dimension_count", h->head_dim}, {"vocab_size", h->n_vocab},
    };
    char key[128], name[64];
    fm__checkpoint *out = s->out;
    snprintf(name, sizeof(name), "random weights, %s", h->name);
    fm_status status =
        fm__checkpoint_add_str(out, "general.architecture", fm__str_of(h->arch), error);
    if (status == FM_OK)
        status = fm__checkpoint_add_str(out, "general.name", fm__str_of(name), error);
    if (status == FM_OK)
        status = fm__checkpoint_add_u32(out, "general.file_type", mixture->file_type, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_u32(out, "general.quantization_version", 2, error);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && status == FM_OK; i++) {
        snprintf(key, sizeof(key), "%s.%s", h->arch, numbers[i].suffix);
        status = fm__checkpoint_add_u32(out, key, numbers[i].value, error);
    }
    snprintf(key, sizeof(key), "%s.rope.freq_base", h->arch);
    if (status == FM_OK)
        status = fm__checkpoint_add_f32(out, key, h->rope_base, error);
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", h->arch);
    if (status == FM_OK)
        status = fm__checkpoint_add_f32(out, key, 1e-6f, error);
    return status;
}

typedef struct tensor_adder {
    synth *synth;
    const fm__mixture *mixture;
    fm__fallbacks fallbacks;
    fm_error *error;
    fm_status status; /* sticky */
} tensor_adder;

/* n 0: a vector of k entries. */
static void add_tensor(tensor_adder *a, const char *name, uint64_t k, uint64_t n) {
    const shape *h = a->synth->shape;
    const fm__mixture_model model = {h->n_layer, h->n_head, h->n_kv_head, h->tied};
    fm__tensor_info t = {
        .name = fm__str_of(name), .n_dims = n ? 2 : 1, .dims = {k, n ? n : 1, 1, 1}};
    bool fell_back;
    t.dtype = fm__mixture_type(a->mixture, &model, name, t.n_dims, k, &fell_back);
    if (a->status != FM_OK)
        return;
    if (fell_back)
        fm__fallbacks_add(&a->fallbacks, a->mixture, k, t.dtype);
    if (!fm__type_get(t.dtype)->encode) {
        a->status = fm__error(a->error, FM_ERROR_UNSUPPORTED, name, "type %s cannot be written",
                              fm__type_get(t.dtype)->name);
        return;
    }
    fm__dtype_bytes(fm__dtype_get((uint32_t)t.dtype), t.dims[0] * t.dims[1], &t.bytes);
    a->synth->total += t.bytes;
    a->status = fm__checkpoint_add_tensor(a->synth->out, &t, a->error);
}

static void add_layer(tensor_adder *a, uint32_t layer) {
    const shape *h = a->synth->shape;
    uint64_t q = (uint64_t)h->n_head * h->head_dim, kv = (uint64_t)h->n_kv_head * h->head_dim;
    const struct {
        const char *suffix;
        uint64_t k, n;
        bool qwen2_only;
    } parts[] = {
        {"attn_norm.weight", h->n_embd, 0, false},
        {"attn_q.weight", h->n_embd, q, false},
        {"attn_q.bias", q, 0, true},
        {"attn_k.weight", h->n_embd, kv, false},
        {"attn_k.bias", kv, 0, true},
        {"attn_v.weight", h->n_embd, kv, false},
        {"attn_v.bias", kv, 0, true},
        {"attn_output.weight", q, h->n_embd, false},
        {"ffn_norm.weight", h->n_embd, 0, false},
        {"ffn_gate.weight", h->n_embd, h->n_ff, false},
        {"ffn_up.weight", h->n_embd, h->n_ff, false},
        {"ffn_down.weight", h->n_ff, h->n_embd, false},
    };
    bool qwen2 = strcmp(h->arch, "qwen2") == 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char name[96];
        snprintf(name, sizeof(name), "blk.%u.%s", layer, parts[i].suffix);
        if (qwen2 || !parts[i].qwen2_only)
            add_tensor(a, name, parts[i].k, parts[i].n);
    }
}

static fm_status add_tensors(synth *s, const fm__mixture *mixture, fm_error *error) {
    const shape *h = s->shape;
    tensor_adder a = {.synth = s, .mixture = mixture, .error = error};
    add_tensor(&a, "token_embd.weight", h->n_embd, h->n_vocab);
    for (uint32_t i = 0; i < h->n_layer; i++)
        add_layer(&a, i);
    add_tensor(&a, "output_norm.weight", h->n_embd, 0);
    if (!h->tied)
        add_tensor(&a, "output.weight", h->n_embd, h->n_vocab);
    fm__fallbacks_tell(&a.fallbacks, mixture);
    return a.status;
}

/* ---- data ---- */

static void encode_pool_row(void *argument, size_t index) {
    const pool *p = argument;
    const fm__type *type = fm__type_get(p->type);
    size_t bytes = p->k / type->block * type->block_bytes;
    fm__random random;
    fm__random_seed(&random, p->seed + (index << 32) + p->k * 64 + (uint64_t)p->type);
    float *values = p->values + index * p->k;
    /* Deviation 1/sqrt(k): a product of normed activations has deviation 1. */
    double scale = fm__pow((double)p->k, -0.5);
    for (size_t i = 0; i < p->k; i++)
        values[i] = fm__random_normal(&random) * (float)scale;
    type->encode(values, NULL, p->rows + index * bytes, p->k);
}

static fm_status find_pool(synth *s, fm__dtype dtype, size_t k, const pool **out, fm_error *error) {
    for (int i = 0; i < N_POOLS; i++) {
        *out = &s->pools[i];
        if (s->pools[i].rows && s->pools[i].type == dtype && s->pools[i].k == k)
            return FM_OK;
    }
    const fm__type *type = fm__type_get(dtype);
    pool *p = &s->pools[s->next_pool];
    s->next_pool = (s->next_pool + 1) % N_POOLS;
    *out = p;
    fm__free(p->rows);
    *p = (pool){.type = dtype, .k = k, .seed = s->seed};
    p->rows = fm__alloc_array(POOL_ROWS, k / type->block * type->block_bytes);
    p->values = fm__alloc_array(POOL_ROWS, k * sizeof(float));
    fm_status status = FM_OK;
    if (!p->rows || !p->values)
        status = fm__error_memory(error, "pool of rows", k * POOL_ROWS * sizeof(float));
    else
        status = fm__parallel_for(0, POOL_ROWS, encode_pool_row, p, error);
    fm__free(p->values);
    p->values = NULL;
    return status;
}

/* Row r of tensor `index`: pool row r mod POOL_ROWS, rotated by blocks. */
static void copy_row(const pool *p, size_t index, uint64_t r, uint8_t *out) {
    const fm__type *type = fm__type_get(p->type);
    size_t blocks = p->k / type->block, bytes = blocks * type->block_bytes;
    const uint8_t *row = p->rows + (r + index * 37) % POOL_ROWS * bytes;
    size_t cut = (size_t)((r / POOL_ROWS + index * 11) % blocks) * type->block_bytes;
    memcpy(out, row + cut, bytes - cut);
    memcpy(out + bytes - cut, row, cut);
}

static fm_status report(synth *s, uint64_t bytes, fm_error *error) {
    s->done += bytes;
    if (s->progress && s->progress(s->user, "writing", s->done, s->total) != 0)
        return fm__error(error, FM_ERROR_CANCELLED, "synth", "cancelled");
    return FM_OK;
}

/* Norm weights near 1, biases near 0. */
static fm_status emit_vector(synth *s, size_t index, const fm__tensor_info *info,
                             fm__writer *writer, fm_error *error) {
    fm__random random;
    fm__random_seed(&random, s->seed * 31 + index);
    float center = fm__str_ends(info->name, "_norm.weight") ? 1.0f : 0.0f;
    float *values = fm__alloc_array((size_t)info->dims[0], sizeof(float));
    if (!values)
        return fm__error_memory(error, "vector", (size_t)info->bytes);
    for (uint64_t i = 0; i < info->dims[0]; i++)
        values[i] = center + 0.1f * fm__random_normal(&random);
    fm_status status = fm__writer_write(writer, values, (size_t)info->bytes, error);
    fm__free(values);
    return status == FM_OK ? report(s, info->bytes, error) : status;
}

static fm_status emit(void *user, size_t index, const fm__tensor_info *info, fm__writer *writer,
                      fm_error *error) {
    synth *s = user;
    if (info->n_dims == 1)
        return emit_vector(s, index, info, writer, error);
    const pool *p = NULL;
    fm_status status = find_pool(s, info->dtype, (size_t)info->dims[0], &p, error);
    size_t row = (size_t)(info->bytes / info->dims[1]);
    size_t rows = fm__max_size(WRITE_BYTES / row, 1);
    for (uint64_t r = 0; r < info->dims[1] && status == FM_OK;) {
        size_t n = 0;
        for (; n < rows && r < info->dims[1]; n++, r++)
            copy_row(p, index, r, s->piece + n * row);
        status = fm__writer_write(writer, s->piece, n * row, error);
        if (status == FM_OK)
            status = report(s, n * row, error);
    }
    return status;
}

static fm_status unknown_shape(const char *name, fm_error *error) {
    char names[200] = "";
    size_t used = 0;
    for (int i = 0; i < N_SHAPES && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
                                 shapes[i].name);
    return fm__error(error, FM_ERROR_ARGUMENT, "shape", "\"%.40s\" is not one of %s", name, names);
}

fm_status fm_lab_synth(const char *out, const char *shape_name, const char *type, uint64_t seed,
                       fm_progress_callback *progress, void *user, fm_error *error) {
    synth s = {.seed = seed, .progress = progress, .user = user};
    const fm__mixture *mixture = NULL;
    if (!out || !shape_name || !type)
        return fm__error(error, FM_ERROR_ARGUMENT, "synth", "an argument is NULL");
    fm_status status = fm__mixture_find(&mixture, type, error);
    if (status != FM_OK)
        return status;
    for (int i = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, shape_name) == 0)
            s.shape = &shapes[i];
    }
    if (!s.shape)
        return unknown_shape(shape_name, error);
    status = fm__checkpoint_view(&s.out, NULL, error);
    if (status != FM_OK)
        return status;
    /* A row of the longest kind fits a piece: f32 of n_ff. */
    size_t piece = WRITE_BYTES + s.shape->n_ff * sizeof(float);
    s.piece = fm__alloc(piece);
    if (!s.piece)
        status = fm__error_memory(error, "synth", piece);
    if (status == FM_OK)
        status = add_keys(&s, mixture, error);
    if (status == FM_OK)
        status = add_vocabulary(&s, error);
    if (status == FM_OK)
        status = add_tensors(&s, mixture, error);
    if (status == FM_OK)
        status = fm__gguf_write(out, s.out->kvs, s.out->n_kvs, s.out->tensors, s.out->n_tensors,
                                emit, &s, error);
    fm__checkpoint_close(&s.out);
    for (int i = 0; i < N_POOLS; i++)
        fm__free(s.pools[i].rows);
    fm__free(s.piece);
    return status;
}
