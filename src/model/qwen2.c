/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/qwen2.c: Qwen2 and Qwen2.5.
 *
 * Owns: what sets the family apart: biases on q, k and v, RoPE over halves. Never does: run
 * anything. Called from: the loading thread.
 */
#include "model/model.h"

static fm_status read(fm__model *model, fm_error *error) {
    model->hparams.rope_style = FM__ROPE_HALVES;
    fm_status status = fm__hparams_read(model, error);
    return status == FM_OK ? fm__hparams_refuse_window(model, error) : status;
}

static fm_status bind(fm__model *model, fm__binder *binder, fm_error *error) {
    const fm__decoder_options options = {.qkv_bias = FM__BIAS_REQUIRED};
    return fm__decoder_bind(model, binder, &options, error);
}

const fm__family fm__family_qwen2 = {
    .arch = "qwen2",
    .read = read,
    .bind = bind,
    .record = fm__decoder_record,
    .finish = fm__decoder_finish,
};
