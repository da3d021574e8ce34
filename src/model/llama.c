/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/llama.c: Llama and Mistral.
 *
 * Owns: what sets the family apart: RoPE over neighbouring pairs (GGUF stores q and k rows for it),
 * biases only where the file has them, a sliding window where `attention.sliding_window` says so.
 * Never does: run anything. Called from: the loading thread.
 */
#include "model/model.h"

static fm_status read(fm__model *model, fm_error *error) {
    model->hparams.rope_style = FM__ROPE_PAIRS;
    return fm__hparams_read(model, error);
}

static fm_status bind(fm__model *model, fm__binder *binder, fm_error *error) {
    const fm__decoder_options options = {.qkv_bias = FM__BIAS_OPTIONAL,
                                         .output_bias = FM__BIAS_OPTIONAL};
    return fm__decoder_bind(model, binder, &options, error);
}

const fm__family fm__family_llama = {
    .arch = "llama",
    .read = read,
    .bind = bind,
    .record = fm__decoder_record,
    .finish = fm__decoder_finish,
};
