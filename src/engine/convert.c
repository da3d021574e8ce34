/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/convert.c: a Hugging Face folder or a GGUF file to one GGUF file.
 *
 * Owns: what is copied, what is re-encoded, and in which pieces: memory stays below a few blocks of
 * rows whatever the model's size. Never does: run a model. Called from: the converting thread;
 * rows fan out over fm__parallel_for().
 */
#include "engine/engine.h"

#include <string.h>

enum { PIECE_BYTES = 32 << 20 /* of encoded and decoded rows together, roughly */ };

typedef struct converter {
    const fm__checkpoint *in;
    const fm__tensor_info *sources; /* in step with the tensors that are written */
    uint32_t threads;
    fm_progress_callback *progress;
    void *user;
    uint64_t done, total; /* source bytes */
} converter;

/* ---- rows ---- */

typedef struct piece {
    const fm__tensor_info *source;
    const fm__type *from, *to;
    size_t k, from_bytes, to_bytes; /* of one row */
    uint64_t first;                 /* row */
    float *decoded;                 /* (rows, k) */
    uint8_t *encoded;               /* (rows, to_bytes) */
    _Atomic uint64_t bad;           /* lowest element that is not finite; UINT64_MAX: none */
} piece;

static void note_bad(piece *p, uint64_t element) {
    uint64_t seen = atomic_load(&p->bad);
    while (element < seen && !atomic_compare_exchange_weak(&p->bad, &seen, element)) {
    }
}

static void convert_row(void *argument, size_t index) {
    piece *p = argument;
    uint64_t row = p->first + index;
    float *values = p->decoded + index * p->k;
    const uint8_t *from = p->source->data + fm__tensor_source_row(p->source, row) * p->from_bytes;
    p->from->decode(from, values, p->k);
    for (size_t i = 0; i < p->k; i++) {
        if ((fm__f32_bits(values[i]) & 0x7F800000u) == 0x7F800000u) {
            note_bad(p, row * p->k + i);
            return;
        }
    }
    if (p->from == p->to) /* re-encoding would lose bits for nothing */
        memcpy(p->encoded + index * p->to_bytes, from, p->to_bytes);
    else
        p->to->encode(values, NULL, p->encoded + index * p->to_bytes, p->k);
}

static fm_status check_f16(const piece *p, size_t rows, const char *name, fm_error *error) {
    if (p->to->dtype != FM__F16)
        return FM_OK;
    for (size_t i = 0; i < rows * p->k; i++) {
        uint16_t half;
        memcpy(&half, p->encoded + i * 2, 2);
        if ((half & 0x7C00u) == 0x7C00u)
            return fm__error(error, FM_ERROR_NUMERIC, name,
                             "element %llu does not fit f16: convert to bf16 or f32",
                             (unsigned long long)(p->first * p->k + i));
    }
    return FM_OK;
}

static fm_status report(converter *c, uint64_t bytes, fm_error *error) {
    c->done += bytes;
    if (c->progress && c->progress(c->user, "converting", c->done, c->total) != 0)
        return fm__error(error, FM_ERROR_CANCELLED, "convert", "cancelled after %llu of %llu bytes",
                         (unsigned long long)c->done, (unsigned long long)c->total);
    return FM_OK;
}

/* ---- emit ---- */

static fm_status emit_rows(converter *c, piece *p, uint64_t n_row, size_t rows_a_piece,
                           const char *name, fm__writer *writer, fm_error *error) {
    for (p->first = 0; p->first < n_row; p->first += rows_a_piece) {
        size_t rows = (size_t)(n_row - p->first < rows_a_piece ? n_row - p->first : rows_a_piece);
        atomic_store(&p->bad, UINT64_MAX);
        fm_status status = fm__parallel_for(c->threads, rows, convert_row, p, error);
        if (status == FM_OK && atomic_load(&p->bad) != UINT64_MAX)
            status = fm__error(error, FM_ERROR_NUMERIC, name, "element %llu is not finite",
                               (unsigned long long)atomic_load(&p->bad));
        if (status == FM_OK)
            status = check_f16(p, rows, name, error);
        if (status == FM_OK)
            status = fm__writer_write(writer, p->encoded, rows * p->to_bytes, error);
        if (status == FM_OK)
            status = report(c, rows * p->from_bytes, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* A permuted vector (the bias of q or k): its entries are rows of one. */
static fm__tensor_info as_column(const fm__tensor_info *t) {
    fm__tensor_info column = *t;
    column.n_dims = 2;
    column.dims[1] = t->dims[0];
    column.dims[0] = 1;
    return column;
}

static fm_status emit(void *user, size_t index, const fm__tensor_info *info, fm__writer *writer,
                      fm_error *error) {
    converter *c = user;
    char name[160];
    snprintf(name, sizeof(name), "tensor %.*s", (int)fm__min_size(info->name.bytes, 120),
             info->name.data);
    const fm__tensor_info *t = &c->sources[index];
    fm__tensor_info source = t->n_dims == 1 && t->rope_heads ? as_column(t) : *t;
    piece p = {.source = &source,
               .from = fm__type_get(source.dtype),
               .to = fm__type_get(info->dtype),
               .k = (size_t)source.dims[0]};
    p.from_bytes = p.k / p.from->block * p.from->block_bytes;
    p.to_bytes = p.k / p.to->block * p.to->block_bytes;
    uint64_t n_row = source.dims[1] * source.dims[2] * source.dims[3];
    size_t row_cost = p.k * sizeof(float) + p.to_bytes;
    size_t rows = fm__max_size(PIECE_BYTES / row_cost, 1);
    rows = (size_t)(n_row < rows ? n_row : rows);
    p.decoded = fm__alloc_array(rows, p.k * sizeof(float));
    p.encoded = fm__alloc_array(rows, p.to_bytes);
    fm_status status = FM_OK;
    if (!p.decoded || !p.encoded)
        status = fm__error_memory(error, name, rows * row_cost);
    else
        status = emit_rows(c, &p, n_row, rows, name, writer, error);
    fm__free(p.decoded);
    fm__free(p.encoded);
    return status;
}

/* ---- the directory ---- */

static bool is_replaced(fm__str key) {
    static const char *const replaced[] = {"general.file_type", "general.quantization_version",
                                           "general.alignment", "split.no",
                                           "split.count",       "split.tensors.count"};
    for (size_t i = 0; i < sizeof(replaced) / sizeof(replaced[0]); i++) {
        if (fm__str_is(key, replaced[i]))
            return true;
    }
    return false;
}

/* Keys of the file: the source's, then what this conversion decides. */
static fm_status make_keys(fm__checkpoint *out, const fm__checkpoint *in,
                           const fm_tokenizer *tokenizer, const fm__mixture *mixture,
                           fm_error *error) {
    for (size_t i = 0; i < in->n_kvs; i++) {
        if (is_replaced(in->kvs[i].key))
            continue;
        fm_status status = fm__checkpoint_add_kv(out, &in->kvs[i], error);
        if (status != FM_OK)
            return status;
    }
    fm_status status = fm__checkpoint_add_u32(out, "general.file_type", mixture->file_type, error);
    if (status == FM_OK)
        status = fm__checkpoint_add_u32(out, "general.quantization_version", 2, error);
    if (status == FM_OK && tokenizer)
        status = fm__tokenizer_to_keys(tokenizer, out, error);
    return status;
}

static fm_status read_model(const fm__checkpoint *in, fm__mixture_model *model, fm_error *error) {
    fm__str arch = {0};
    char key[128];
    *model = (fm__mixture_model){.n_layer = 0, .n_head = 1};
    model->tied = fm__checkpoint_find(in, "output.weight") == NULL;
    fm_status status = fm__kv_read_str(in, "general.architecture", true, &arch, error);
    if (status != FM_OK)
        return status;
    int bytes = (int)fm__min_size(arch.bytes, 64);
    snprintf(key, sizeof(key), "%.*s.block_count", bytes, arch.data);
    status = fm__kv_read_u32(in, key, true, &model->n_layer, error);
    snprintf(key, sizeof(key), "%.*s.attention.head_count", bytes, arch.data);
    if (status == FM_OK)
        status = fm__kv_read_u32(in, key, true, &model->n_head, error);
    model->n_kv_head = model->n_head;
    snprintf(key, sizeof(key), "%.*s.attention.head_count_kv", bytes, arch.data);
    if (status == FM_OK)
        status = fm__kv_read_u32(in, key, false, &model->n_kv_head, error);
    if (status == FM_OK && (model->n_kv_head == 0 || model->n_head == 0))
        status = fm__error(error, FM_ERROR_FORMAT, in->path, "%s is 0", key);
    return status;
}

/* Shapes and types of what is written. */
static fm_status make_tensors(fm__checkpoint *out, const fm__checkpoint *in,
                              const fm__mixture *mixture, fm_error *error) {
    fm__mixture_model model;
    fm__fallbacks fallbacks = {0};
    fm_status status = read_model(in, &model, error);
    for (size_t i = 0; i < in->n_tensors && status == FM_OK; i++) {
        fm__tensor_info t = in->tensors[i];
        char name[160];
        bool fell_back = false;
        snprintf(name, sizeof(name), "%.*s", (int)fm__min_size(t.name.bytes, 150), t.name.data);
        const fm__type *from = fm__type_get(t.dtype);
        if (!from)
            return fm__error(error, FM_ERROR_UNSUPPORTED, name, "type %s cannot be converted",
                             fm__dtype_get((uint32_t)t.dtype)->name);
        t.dtype = fm__mixture_type(mixture, &model, name, t.n_dims, t.dims[0], &fell_back);
        if (fell_back)
            fm__fallbacks_add(&fallbacks, mixture, t.dims[0], t.dtype);
        const fm__type *to = fm__type_get(t.dtype);
        if (!to->encode && from != to)
            return fm__error(error, FM_ERROR_UNSUPPORTED, name, "type %s cannot be written",
                             to->name);
        uint64_t n = t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3];
        if (!fm__dtype_bytes(fm__dtype_get((uint32_t)t.dtype), n, &t.bytes))
            return fm__error(error, FM_ERROR_FORMAT, name, "too large");
        status = fm__checkpoint_add_tensor(out, &t, error);
    }
    fm__fallbacks_tell(&fallbacks, mixture);
    return status;
}

/* ---- the call ---- */

static fm_status convert(converter *c, const fm_tokenizer *tokenizer, const fm__mixture *mixture,
                         const char *path, fm_error *error) {
    fm__checkpoint *out = NULL;
    fm_status status = fm__checkpoint_view(&out, NULL, error);
    if (status != FM_OK)
        return status;
    status = make_keys(out, c->in, tokenizer, mixture, error);
    if (status == FM_OK)
        status = make_tensors(out, c->in, mixture, error);
    for (size_t i = 0; i < c->in->n_tensors; i++)
        c->total += c->in->tensors[i].bytes;
    c->sources = c->in->tensors;
    if (status == FM_OK)
        status = report(c, 0, error);
    if (status == FM_OK)
        status = fm__gguf_write(path, out->kvs, out->n_kvs, out->tensors, out->n_tensors, emit, c,
                                error);
    fm__checkpoint_close(&out);
    return status;
}

fm_status fm_lab_convert(const char *in, const char *out, const char *type, uint32_t threads,
                         fm_progress_callback *progress, void *user, fm_error *error) {
    fm__checkpoint *checkpoint = NULL;
    fm_tokenizer *tokenizer = NULL;
    const fm__mixture *mixture = NULL;
    if (!in || !out || !type)
        return fm__error(error, FM_ERROR_ARGUMENT, "convert", "an argument is NULL");
    fm_status status = fm__mixture_find(&mixture, type, error);
    if (status == FM_OK)
        status = fm__checkpoint_open(&checkpoint, in, error);
    if (status != FM_OK)
        return status;
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        if (fm__mapping_is_of(&checkpoint->files[i], out)) {
            status = fm__error(error, FM_ERROR_ARGUMENT, out,
                               "is what is converted, and would be lost; give another name");
            goto out_checkpoint;
        }
    }
    if (checkpoint->kind == FM__CHECKPOINT_SAFETENSORS) {
        status = fm__tokenizer_from_checkpoint(&tokenizer, checkpoint, error);
        if (status != FM_OK)
            goto out_checkpoint;
        fm__checkpoint *hf = checkpoint;
        checkpoint = NULL;
        status = fm__model_from_hf(&checkpoint, &hf, error);
        if (status != FM_OK)
            goto out_tokenizer;
    }
    fm__warn_of_crowd(threads);
    converter c = {.in = checkpoint, .threads = threads, .progress = progress, .user = user};
    status = convert(&c, tokenizer, mixture, out, error);
out_tokenizer:
    fm_tokenizer_destroy(&tokenizer);
out_checkpoint:
    fm__checkpoint_close(&checkpoint);
    return status;
}
