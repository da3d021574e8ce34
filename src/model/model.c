/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/model.c: a model from opening to destruction.
 *
 * Owns: the order of the steps and the numeric class. Never does: know an architecture beyond the
 * table's entry. Called from: the loading thread.
 */
#include "model/model.h"

#include <string.h>

static fm_status read_identity(fm__model *model, fm_error *error) {
    const fm__checkpoint *c = model->checkpoint;
    fm__str arch = {0}, name = {0};
    fm_status status = fm__kv_read_str(c, "general.architecture", true, &arch, error);
    if (status == FM_OK)
        status = fm__kv_read_str(c, "general.name", false, &name, error);
    if (status != FM_OK)
        return status;
    model->family = fm__family_get(arch);
    if (!model->family) {
        char place[1200];
        snprintf(place, sizeof(place), "%s: general.architecture", c->path);
        return fm__error(error, FM_ERROR_UNSUPPORTED, place, "not supported: architecture %.*s",
                         (int)fm__min_size(arch.bytes, 64), arch.data);
    }
    snprintf(model->hparams.arch, sizeof(model->hparams.arch), "%s", model->family->arch);
    /* Cut at whole characters, so that the name stays valid UTF-8. */
    size_t bytes = 0;
    while (bytes < name.bytes) {
        int step = fm__utf8_next(name.data + bytes, name.bytes - bytes, NULL);
        if (step <= 0 || bytes + (size_t)step >= sizeof(model->hparams.name))
            break;
        bytes += (size_t)step;
    }
    if (bytes)
        memcpy(model->hparams.name, name.data, bytes);
    model->hparams.name[bytes] = 0;
    return FM_OK;
}

static fm_status choose_class(fm__model *model, fm_class asked, fm_error *error) {
    const char *quantised = NULL;
    for (uint32_t i = 0; i < model->n_weight && !quantised; i++) {
        const fm__weight *w = model->weights[i];
        if (w->role == FM__ROLE_LINEAR && w->type->quantised)
            quantised = w->name;
    }
    if (asked == FM_CLASS_FAST && quantised)
        return fm__error(error, FM_ERROR_UNSUPPORTED, quantised,
                         "numeric class fast: quantised weights have exact kernels only");
    model->fast = asked == FM_CLASS_FAST || (asked == FM_CLASS_AUTO && !quantised);
    return FM_OK;
}

fm_status fm__model_open(fm__model **out, fm__checkpoint **checkpoint,
                         const fm__model_options *options, fm_error *error) {
    fm_status status = FM_OK;
    fm__checkpoint *c = *checkpoint;
    *checkpoint = NULL;
    if (c->kind == FM__CHECKPOINT_SAFETENSORS) {
        fm__checkpoint *hf = c;
        c = NULL;
        status = fm__model_from_hf(&c, &hf, error);
        if (status != FM_OK)
            return status;
    }
    fm__model *model = fm__alloc_zero(sizeof(*model));
    if (!model) {
        fm__checkpoint_close(&c);
        return fm__error_memory(error, "model", sizeof(*model));
    }
    model->checkpoint = c;
    status = read_identity(model, error);
    if (status == FM_OK)
        status = model->family->read(model, error);
    if (status != FM_OK)
        goto fail;

    /* Tables cover this engine's context, not the model's: 128 k positions would be 64 MiB. */
    uint32_t trained = model->hparams.context_length;
    uint32_t context = options->context_length;
    if (context == 0)
        context = trained < 4096 ? trained : 4096;
    if (context > trained) {
        status = fm__error(error, FM_ERROR_ARGUMENT, "context_length",
                           "is %u, the model's context is %u", context, trained);
        goto fail;
    }
    model->positions = context;
    /* The name is no part of what a snapshot depends on. */
    size_t from = offsetof(fm__hparams, n_layer);
    model->hash = fm__hash(FM__HASH_SEED, (const char *)&model->hparams + from,
                           sizeof(model->hparams) - from);
    status = fm__binder_create(&model->binder, model, error);
    if (status != FM_OK)
        goto fail;
    status = model->family->bind(model, model->binder, error);
    if (status == FM_OK)
        status = fm__binder_check(model->binder, error);
    if (status == FM_OK)
        status = choose_class(model, options->numeric_class, error);
    if (status != FM_OK)
        goto fail;
    *out = model;
    return FM_OK;
fail:
    fm__model_destroy(&model);
    return status;
}

fm_status fm__model_pack(fm__model *model, const fm__pack_options *options, fm_error *error) {
    fm_status status = fm__binder_pack(model->binder, options, error);
    if (status == FM_OK)
        fm__binder_destroy(&model->binder);
    return status;
}

void fm__model_destroy(fm__model **model) {
    if (!model || !*model)
        return;
    fm__model *m = *model;
    if (m->family && m->family->finish)
        m->family->finish(m);
    fm__binder_destroy(&m->binder);
    for (uint32_t i = 0; i < m->n_weight; i++) {
        fm__weight *w = m->weights[i];
        if (w->role == FM__ROLE_VECTOR)
            fm__free((void *)(uintptr_t)w->host);
        fm__free(w);
    }
    fm__free(m->weights);
    for (uint32_t i = 0; i < m->n_slab; i++)
        fm__device_buffer_destroy(&m->slabs[i]);
    fm__free(m->slabs);
    fm__checkpoint_close(&m->checkpoint);
    fm__free(m);
    *model = NULL;
}

fm_status fm__model_record(const fm__model *model, uint32_t max_rows, uint32_t max_outputs,
                           fm__tape **out, fm_error *error) {
    fm__tape *tape = NULL;
    fm_status status = fm__tape_create(&tape, max_rows, max_outputs, error);
    if (status != FM_OK)
        return status;
    tape->weights = model->weights;
    tape->n_weight = model->n_weight;
    tape->groups = model->groups;
    tape->n_group = model->n_group;
    status = model->family->record(model, tape, error);
    if (status == FM_OK)
        status = fm__tape_finish(tape, error);
    if (status != FM_OK)
        fm__tape_destroy(&tape);
    else
        *out = tape;
    return status;
}
