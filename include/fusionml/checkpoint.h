/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/checkpoint.h: what a model file holds, without loading it.
 *
 * Opens a .gguf file (split files: give the first part) or a Hugging Face folder (config.json with
 * *.safetensors) and lists its metadata keys and tensors. Read-only, one thread at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fusionml/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_checkpoint fm_checkpoint;

/* Errors: IO, FORMAT (with the offset and what the file looks like), UNSUPPORTED, MEMORY. */
FM_API fm_status fm_checkpoint_open(fm_checkpoint **out, const char *path, fm_error *error);
FM_API void fm_checkpoint_close(fm_checkpoint **checkpoint);

/* "gguf v3", "safetensors". Owned by the checkpoint. */
FM_API const char *fm_checkpoint_format(const fm_checkpoint *checkpoint);

FM_API size_t fm_checkpoint_key_count(const fm_checkpoint *checkpoint);
/* Name and type ("u32", "string", "array of f32 [3]") are owned by the checkpoint; NULL past the
 * end. */
FM_API const char *fm_checkpoint_key_name(const fm_checkpoint *checkpoint, size_t index);
FM_API const char *fm_checkpoint_key_type(const fm_checkpoint *checkpoint, size_t index);
/* Writes the value as UTF-8 text into out: always NUL-terminated when capacity > 0, long arrays end
   in "...". Returns the length that the whole text would have, like snprintf. */
FM_API size_t fm_checkpoint_key_value(const fm_checkpoint *checkpoint, size_t index, char *out,
                                      size_t capacity);

typedef struct fm_tensor_info {
    const char *name; /* owned by the checkpoint */
    const char *type; /* "q4_k"; static */
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] varies fastest (GGUF order) */
    uint64_t bytes;
    uint64_t file_offset; /* of the data, in its file */
    uint32_t file_index;  /* 0 unless split or sharded */
} fm_tensor_info;

FM_API size_t fm_checkpoint_tensor_count(const fm_checkpoint *checkpoint);
FM_API fm_status fm_checkpoint_tensor(const fm_checkpoint *checkpoint, size_t index,
                                      fm_tensor_info *out, fm_error *error);

#ifdef __cplusplus
}
#endif
