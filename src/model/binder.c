/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/binder.c: from a checkpoint's tensors to weights.
 *
 * Owns: which tensor each weight comes from, and which tensors were used. Never does: know an
 * architecture, read matrices (pack.c). Called from: the loading thread.
 */
#include "model/binder.h"

#include <string.h>

fm_status fm__binder_create(fm__binder **out, fm__model *model, fm_error *error) {
    fm__binder *binder = fm__alloc_zero(sizeof(*binder));
    if (!binder)
        return fm__error_memory(error, "binder", sizeof(*binder));
    binder->model = model;
    binder->used = fm__alloc_array(model->checkpoint->n_tensors + 1, sizeof(bool));
    if (!binder->used) {
        fm__free(binder);
        return fm__error_memory(error, "binder", model->checkpoint->n_tensors);
    }
    *out = binder;
    return FM_OK;
}

void fm__binder_destroy(fm__binder **binder) {
    if (!binder || !*binder)
        return;
    for (uint32_t i = 0; i < (*binder)->model->n_weight; i++)
        fm__free((*binder)->sources[i].user);
    fm__free((*binder)->sources);
    fm__free((*binder)->used);
    fm__free(*binder);
    *binder = NULL;
}

static void place_of(const fm__binder *binder, const char *name, char out[1280]) {
    snprintf(out, 1280, "%s: tensor %s", binder->model->checkpoint->path, name);
}

/* ---- declaring ---- */

static bool grow(fm__binder *binder) {
    fm__model *model = binder->model;
    if (model->n_weight < binder->capacity)
        return true;
    uint32_t capacity = binder->capacity ? binder->capacity * 2 : 64;
    fm__source *sources = fm__realloc(binder->sources, capacity * sizeof(*sources));
    if (!sources)
        return false;
    binder->sources = sources;
    fm__weight **weights = fm__realloc(model->weights, capacity * sizeof(*weights));
    if (!weights)
        return false;
    model->weights = weights;
    binder->capacity = capacity;
    return true;
}

static fm_status append(fm__binder *binder, const char *name, fm__role role,
                        const fm__tensor_info *tensor, fm__weight **weight, fm__source **from,
                        int16_t *id, fm_error *error) {
    fm__model *model = binder->model;
    char place[1280];
    place_of(binder, name, place);
    if (model->n_weight >= INT16_MAX)
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "more than %d weights", INT16_MAX);
    fm__weight *w = fm__alloc_zero(sizeof(*w));
    if (!w)
        return fm__error_memory(error, place, sizeof(*w));
    if (!grow(binder)) {
        fm__free(w);
        return fm__error_memory(error, place, sizeof(*w) * 2 * (binder->capacity + 1));
    }
    snprintf(w->name, sizeof(w->name), "%s", name);
    w->role = role;
    w->groups = 1;
    w->k = 1;
    fm__source *s = &binder->sources[model->n_weight];
    *s = (fm__source){.tensor = tensor, .hashed = true};
    model->weights[model->n_weight] = w;
    *id = (int16_t)model->n_weight++;
    *weight = w;
    *from = s;
    return FM_OK;
}

/* Finds a tensor, checks its dims and marks it as used. *out is NULL where an optional one is
   missing. */
static fm_status find(fm__binder *binder, const char *name, uint64_t d0, uint64_t d1, bool optional,
                      const fm__tensor_info **out, fm_error *error) {
    const fm__checkpoint *c = binder->model->checkpoint;
    const fm__tensor_info *t = fm__checkpoint_find(c, name);
    char place[1280];
    place_of(binder, name, place);
    *out = NULL;
    if (!t)
        return optional ? FM_OK : fm__error(error, FM_ERROR_FORMAT, place, "missing");
    if (t->dims[0] != d0 || t->dims[1] != d1 || t->dims[2] != 1 || t->dims[3] != 1)
        return fm__error(error, FM_ERROR_FORMAT, place,
                         "has shape [%llu, %llu, %llu, %llu], the hyper-parameters ask for "
                         "[%llu, %llu]",
                         (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                         (unsigned long long)t->dims[2], (unsigned long long)t->dims[3],
                         (unsigned long long)d0, (unsigned long long)d1);
    binder->used[t - c->tensors] = true;
    *out = t;
    return FM_OK;
}

static fm_status matrix_type(fm__binder *binder, const fm__tensor_info *t, const char *name,
                             const fm__type **type, fm_error *error) {
    char place[1280];
    place_of(binder, name, place);
    *type = fm__type_get(t->dtype);
    const fm__dtype_info *info = fm__dtype_get(t->dtype);
    if (!*type)
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "type %s cannot be a weight",
                         info ? info->name : "unknown");
    if (t->dims[0] % (*type)->block != 0)
        return fm__error(error, FM_ERROR_FORMAT, place,
                         "rows of %llu entries are not whole %s blocks of %u",
                         (unsigned long long)t->dims[0], (*type)->name, (*type)->block);
    return FM_OK;
}

bool fm__bind_bytes(const fm__type *type, uint64_t k, uint64_t n, size_t *row, size_t *all) {
    uint64_t bytes = 0;
    if (!fm__dtype_bytes(fm__dtype_get(type->dtype), k, &bytes) || bytes > SIZE_MAX)
        return false;
    *row = (size_t)bytes;
    return fm__mul_size(*row, (size_t)n, all);
}

fm_status fm__bind_linear(fm__binder *binder, const char *name, uint64_t k, uint64_t n, int16_t *id,
                          fm_error *error) {
    const fm__tensor_info *t;
    const fm__type *type;
    fm__weight *w;
    fm__source *s;
    char place[1280];
    place_of(binder, name, place);
    fm_status status = find(binder, name, k, n, false, &t, error);
    if (status == FM_OK)
        status = matrix_type(binder, t, name, &type, error);
    if (status == FM_OK)
        status = append(binder, name, FM__ROLE_LINEAR, t, &w, &s, id, error);
    if (status != FM_OK)
        return status;
    w->type = type;
    w->n = (uint32_t)n;
    w->k = (uint32_t)k;
    w->layout = fm__panel_layout_of(type, w->k);
    w->panels = (w->n + FM__PANEL_ROWS - 1) / FM__PANEL_ROWS;
    if (!fm__mul_size(w->layout.stride, w->panels, &w->bytes))
        return fm__error(error, FM_ERROR_FORMAT, place, "too large");
    binder->model->weight_bytes += w->bytes;
    binder->model->decode_bytes += w->bytes;
    binder->model->parameters += k * n;
    return FM_OK;
}

fm_status fm__bind_gather(fm__binder *binder, const char *name, uint64_t k, uint64_t n, int16_t *id,
                          fm_error *error) {
    const fm__tensor_info *t;
    const fm__type *type;
    fm__weight *w;
    fm__source *s;
    char place[1280];
    place_of(binder, name, place);
    fm_status status = find(binder, name, k, n, false, &t, error);
    if (status == FM_OK)
        status = matrix_type(binder, t, name, &type, error);
    if (status == FM_OK && t->rope_heads)
        status = fm__error(error, FM_ERROR_UNSUPPORTED, place, "a gather table in permuted order");
    if (status == FM_OK)
        status = append(binder, name, FM__ROLE_GATHER, t, &w, &s, id, error);
    if (status != FM_OK)
        return status;
    w->type = type;
    w->n = (uint32_t)n;
    w->k = (uint32_t)k;
    if (!fm__bind_bytes(type, k, n, &w->row_bytes, &w->bytes) || w->bytes != t->bytes)
        return fm__error(error, FM_ERROR_FORMAT, place, "has %llu bytes, its shape asks for %zu",
                         (unsigned long long)t->bytes, w->bytes);
    w->host = t->data;
    w->ranges[0] = (fm__weight_range){.residency = FM__RESIDENCY_MAPPED};
    w->n_ranges = 1;
    binder->model->mapped_bytes += w->bytes;
    binder->model->decode_bytes += w->row_bytes;
    binder->model->parameters += k * n;
    return FM_OK;
}

fm_status fm__bind_vector(fm__binder *binder, const char *name, uint64_t n, bool optional,
                          int16_t *id, fm_error *error) {
    const fm__tensor_info *t;
    fm__weight *w;
    fm__source *s;
    *id = FM__NONE;
    fm_status status = find(binder, name, n, 1, optional, &t, error);
    if (status != FM_OK || !t)
        return status;
    if (t->dtype != FM__F32 && t->dtype != FM__F16 && t->dtype != FM__BF16) {
        char place[1280];
        place_of(binder, name, place);
        const fm__dtype_info *info = fm__dtype_get(t->dtype);
        return fm__error(error, FM_ERROR_UNSUPPORTED, place,
                         "type %s where f32, f16 or bf16 is "
                         "read",
                         info ? info->name : "unknown");
    }
    status = append(binder, name, FM__ROLE_VECTOR, t, &w, &s, id, error);
    if (status != FM_OK)
        return status;
    w->type = fm__type_get(FM__F32);
    w->n = (uint32_t)n;
    w->bytes = (size_t)n * sizeof(float);
    binder->model->weight_bytes += w->bytes;
    binder->model->decode_bytes += w->bytes;
    binder->model->parameters += n;
    return FM_OK;
}

fm_status fm__bind_table(fm__binder *binder, const char *name, uint32_t rows, uint32_t n,
                         fm__bind_fill *fill, const void *user, size_t user_bytes, int16_t *id,
                         fm_error *error) {
    fm__weight *w;
    fm__source *s;
    fm_status status = append(binder, name, FM__ROLE_VECTOR, NULL, &w, &s, id, error);
    if (status != FM_OK)
        return status;
    s->user = fm__alloc(user_bytes);
    if (!s->user)
        return fm__error_memory(error, name, user_bytes);
    memcpy(s->user, user, user_bytes);
    s->fill = fill;
    s->hashed = false;
    w->type = fm__type_get(FM__F32);
    w->groups = rows;
    w->n = n;
    if (!fm__mul_size((size_t)rows * sizeof(float), n, &w->bytes))
        return fm__error(error, FM_ERROR_FORMAT, name, "too large");
    binder->model->weight_bytes += w->bytes;
    return FM_OK;
}

/* The row of a 1-D tensor that GGUF's order wants at r: fm__tensor_source_row() counts dims[1]. */
static uint64_t vector_source(const fm__tensor_info *t, uint64_t r) {
    if (!t->rope_heads)
        return r;
    fm__tensor_info column = *t;
    column.dims[1] = t->dims[0];
    column.dims[0] = 1;
    column.n_dims = 2;
    return fm__tensor_source_row(&column, r);
}

void fm__bind_read_vector(const fm__tensor_info *t, float *out) {
    for (uint64_t i = 0; i < t->dims[0]; i++) {
        uint64_t from = vector_source(t, i);
        uint16_t half;
        float value;
        if (t->dtype == FM__F32) {
            memcpy(&value, t->data + from * 4, 4);
        } else {
            memcpy(&half, t->data + from * 2, 2);
            value = t->dtype == FM__F16 ? fm__f16_to_f32(half) : fm__bf16_to_f32(half);
        }
        /* Below 2^-38 a product with a quantised activation could become subnormal. */
        if ((fm__f32_bits(value) & 0x7FFFFFFFu) < 0x2C800000u)
            value = 0;
        out[i] = value;
    }
}

fm_status fm__bind_read(fm__binder *binder, const char *name, uint64_t n, float **out,
                        fm_error *error) {
    const fm__tensor_info *t;
    char place[1280];
    place_of(binder, name, place);
    *out = NULL;
    fm_status status = find(binder, name, n, 1, true, &t, error);
    if (status != FM_OK || !t)
        return status;
    if (t->dtype != FM__F32 && t->dtype != FM__F16 && t->dtype != FM__BF16)
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "not a float type");
    *out = fm__alloc_array((size_t)n, sizeof(float));
    if (!*out)
        return fm__error_memory(error, place, (size_t)n * sizeof(float));
    fm__bind_read_vector(t, *out);
    return FM_OK;
}

fm_status fm__binder_check(fm__binder *binder, fm_error *error) {
    fm__model *model = binder->model;
    const fm__checkpoint *c = model->checkpoint;
    for (size_t i = 0; i < c->n_tensors; i++) {
        fm__str name = c->tensors[i].name;
        /* Old files carry the rotary frequencies, which follow from the hyper-parameters. */
        if (binder->used[i] || fm__str_ends(name, ".attn_rot_embd"))
            continue;
        char place[1280], text[128];
        snprintf(text, sizeof(text), "%.*s", (int)fm__min_size(name.bytes, 120), name.data);
        place_of(binder, text, place);
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "not a part of the %s architecture",
                         model->hparams.arch);
    }
    /* Weights that share a tensor count once: in parameters and in the hash. */
    for (uint32_t i = 0; i < model->n_weight; i++) {
        for (uint32_t j = 0; j < i && binder->sources[i].tensor; j++) {
            if (binder->sources[i].tensor != binder->sources[j].tensor)
                continue;
            fm__source *gather =
                &binder->sources[model->weights[i]->role == FM__ROLE_GATHER ? i : j];
            gather->hashed = false;
            model->parameters -= (uint64_t)model->weights[i]->n * model->weights[i]->k;
        }
    }
    return FM_OK;
}
