/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/lab.h: what `convert`, `synth`, `bench` and `calibrate` need beyond the public surface.
 * Unstable, not installed, not exported by the shared library: link the static one.
 */
#pragma once

#include <stdint.h>

#include "fusionml/engine.h"

/* Converts a Hugging Face folder (or re-quantises a .gguf) into one GGUF file. type: "f32", "f16",
   "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0",
   "tq2_0", "mxfp4" or a mixture: "q2_k_s"... "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m",
   "q5_k_s", "q5_k_m". A row length that the type's block does not divide falls back as llama.cpp
   does, and each such tensor is logged. threads: 0 = all cores. Writes to "out.tmp" and renames: an
   error leaves no half file. */
fm_status fm_lab_convert(const char *in, const char *out, const char *type, uint32_t threads,
                         fm_progress_callback *progress, void *user, fm_error *error);

/* Writes a model of a known shape with random weights and a vocabulary that loads. shape:
   "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "llama-3.2-1b", "tiny". type as for convert. */
fm_status fm_lab_synth(const char *out, const char *shape, const char *type, uint64_t seed,
                       fm_progress_callback *progress, void *user, fm_error *error);
/* The shapes' names, NULL-terminated. */
const char *const *fm_lab_synth_shapes(void);
