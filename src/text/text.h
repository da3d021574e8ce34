/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/text.h: the text room: tokenizers and streams of text.
 *
 * Owns: vocabularies, merge tables, compiled pre-tokenizer patterns. Never does: maths on logits,
 * or reads files other than through a checkpoint. Called from: any thread (a tokenizer is
 * immutable); a stream from one.
 */
#pragma once

#include "format/format.h"
#include "fusionml/tokenizer.h"

/* Vocabulary of a GGUF (tokenizer.ggml.* keys) or of an HF folder (tokenizer.json and its
 *companions). out is NULL with FM_OK where the checkpoint carries no vocabulary. */
fm_status fm__tokenizer_from_checkpoint(fm_tokenizer **out, const fm__checkpoint *checkpoint,
                                        fm_error *error);
/* From the text of tokenizer.json; config and generation may be NULL. */
fm_status fm__tokenizer_from_json(fm_tokenizer **out, const char *json, size_t bytes,
                                  const char *config, size_t config_bytes, const char *generation,
                                  size_t generation_bytes, const char *place, fm_error *error);
/* Writes tokenizer.ggml.* keys that give an equal tokenizer when read back. UNSUPPORTED where GGUF
   has no name for its pre-tokenizer. */
fm_status fm__tokenizer_to_keys(const fm_tokenizer *tokenizer, fm__checkpoint *out,
                                fm_error *error);
/* Raw bytes of one token (not NUL-terminated), owned by the tokenizer; control tokens give their
 * spelling. */
fm__str fm__tokenizer_bytes(const fm_tokenizer *tokenizer, int32_t id);
bool fm__tokenizer_is_control(const fm_tokenizer *tokenizer, int32_t id);
