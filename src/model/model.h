/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/model.h: the model room: architecture families.
 *
 * Owns: hyper-parameters, bound weights, and the recording of tapes. Never does: run anything.
 * Called from: the loading thread. One file per family; family.c holds the table. Nothing outside
 * this room knows architectures.
 *
 * Order of a load: fm__model_open() reads and declares (no weight memory yet), fm__model_record()
 * makes tapes (they name weights, not addresses), the caller checks its budget against need_bytes,
 * fm__model_pack() allocates and fills.
 */
#pragma once

#include "device/device.h"
#include "fusionml/engine.h"

typedef struct fm__hparams {
    char arch[32], name[128];
    uint32_t n_layer, n_embd, n_ff, n_head, n_kv_head, key_dim, value_dim, n_vocab;
    uint32_t context_length; /* as trained */
    uint32_t window;         /* keys a row sees, itself included; 0: full attention */
    float eps;
    uint32_t rotary; /* dims rotated */
    fm__rope_style rope_style;
    double rope_base;
    double rope_linear; /* every frequency is divided by it; 1: none */
    bool tied;          /* output = token embedding */
} fm__hparams;

typedef struct fm__binder fm__binder;

typedef struct fm__model {
    const struct fm__family *family;
    fm__hparams hparams;
    fm__checkpoint *checkpoint; /* owned: gather tables stay mapped */
    fm__weight **weights;       /* owned; ids of the tapes */
    uint32_t n_weight;
    fm__buffer **slabs; /* (n_slab) owned; panels of several weights lie in each */
    uint32_t n_slab;
    fm__cache_group groups[4]; /* n_page, offset and bytes are filled in by the engine */
    uint32_t n_group;
    uint32_t positions; /* that RoPE tables cover */
    bool fast;          /* numeric class of this instance */
    uint64_t parameters, weight_bytes, mapped_bytes, decode_bytes, hash;
    fm__binder *binder; /* owned; from open to pack */
    void *family_data;  /* owned through family->finish */
} fm__model;

typedef struct fm__family {
    const char *arch; /* general.architecture */
    /* Reads and checks hyper-parameters; refuses by name what it does not know. */
    fm_status (*read)(fm__model *model, fm_error *error);
    /* Declares every weight; refuses missing and misshapen tensors by name. */
    fm_status (*bind)(fm__model *model, fm__binder *binder, fm_error *error);
    fm_status (*record)(const fm__model *model, fm__tape *tape, fm_error *error);
    void (*finish)(fm__model *model);
} fm__family;

/* ---- family.c ---- */

const fm__family *fm__family_get(fm__str arch);
const fm__family *const *fm__families(void); /* NULL-terminated */
extern const fm__family fm__family_llama, fm__family_qwen2, fm__family_qwen3;

/* ---- model.c ---- */

typedef struct fm__model_options {
    fm_class numeric_class;
    uint32_t context_length; /* positions that RoPE tables cover; 0: the smaller of 4096 and the
                                model's */
} fm__model_options;

typedef struct fm__pack_options {
    fm__device *memory; /* whose host memory holds the panels */
    uint32_t threads;   /* 0: all cores */
    size_t task_bytes;  /* of rows that a thread takes at once; 0: a megabyte. The hash depends on
                           it */
    fm_progress_callback *progress;
    void *progress_user;
} fm__pack_options;

/* Takes over *checkpoint (also on failure). An HF checkpoint is mapped to GGUF's names first.
   Errors: FORMAT, UNSUPPORTED, ARGUMENT (context above the model's), MEMORY. */
fm_status fm__model_open(fm__model **out, fm__checkpoint **checkpoint,
                         const fm__model_options *options, fm_error *error);
/* Allocates weights and fills them, in parallel, with progress and cancel; computes the hash. Once.
   Each weight then has one range, which says where `host` lies (LINEAR: slab and offset in it). */
fm_status fm__model_pack(fm__model *model, const fm__pack_options *options, fm_error *error);
void fm__model_destroy(fm__model **model);
/* A tape with the given bounds, finished. The model must outlive it. */
fm_status fm__model_record(const fm__model *model, uint32_t max_rows, uint32_t max_outputs,
                           fm__tape **out, fm_error *error);

/* ---- hparams.c: the keys that all families here share ---- */

/* Reads `<arch>.*` keys; refuses keys that change the maths in a way no family here knows. */
fm_status fm__hparams_read(fm__model *model, fm_error *error);
/* For families whose window would hold in some layers only, which GGUF does not say. */
fm_status fm__hparams_refuse_window(const fm__model *model, fm_error *error);

/* ---- binder.c: from tensors of the checkpoint to weights ---- */

/* Fills a table of rows x n floats that is computed, not read. */
typedef void fm__bind_fill(const void *user, uint32_t rows, uint32_t n, float *out);

fm_status fm__binder_create(fm__binder **out, fm__model *model, fm_error *error);
void fm__binder_destroy(fm__binder **binder);
/* Each declares one weight and gives its id. Dims are checked by name: k is dims[0], n is dims[1].
 */
fm_status fm__bind_linear(fm__binder *binder, const char *name, uint64_t k, uint64_t n, int16_t *id,
                          fm_error *error);
fm_status fm__bind_gather(fm__binder *binder, const char *name, uint64_t k, uint64_t n, int16_t *id,
                          fm_error *error);
/* optional: a missing tensor gives *id = FM__NONE and success. */
fm_status fm__bind_vector(fm__binder *binder, const char *name, uint64_t n, bool optional,
                          int16_t *id, fm_error *error);
/* user is copied (user_bytes). */
fm_status fm__bind_table(fm__binder *binder, const char *name, uint32_t rows, uint32_t n,
                         fm__bind_fill *fill, const void *user, size_t user_bytes, int16_t *id,
                         fm_error *error);
/* A 1-D tensor that is read while binding (RoPE factors): *out is n floats, fm__free(); NULL where
   the checkpoint has none. */
fm_status fm__bind_read(fm__binder *binder, const char *name, uint64_t n, float **out,
                        fm_error *error);
/* Every tensor of the checkpoint must have been used by now; the first that was not is refused. */
fm_status fm__binder_check(fm__binder *binder, fm_error *error);
/* Allocates and fills what was declared. */
fm_status fm__binder_pack(fm__binder *binder, const fm__pack_options *options, fm_error *error);

/* ---- rope.c ---- */

/* Declares the tables [context][rotary/2] of the model; `rope_freqs.weight` divides frequencies. */
fm_status fm__bind_rope(fm__binder *binder, const fm__hparams *hparams, uint32_t context,
                        int16_t *cos_id, int16_t *sin_id, fm_error *error);
/* Fills cos or sin of position * base^(-2i/rotary) / (factors[i] * linear); factors may be NULL. */
void fm__rope_table(double base, double linear, const float *factors, uint32_t rotary,
                    uint32_t positions, bool sine, float *out);
/* Llama 3's factors for its three bands of wavelengths; out is (rotary/2). */
void fm__rope_llama3_factors(double base, double factor, double low, double high,
                             double original_context, uint32_t rotary, float *out);

/* ---- decoder.c: the block that llama, mistral, qwen2 and qwen3 share ---- */

typedef enum fm__bias { FM__BIAS_NONE, FM__BIAS_OPTIONAL, FM__BIAS_REQUIRED } fm__bias;

typedef struct fm__decoder_options {
    fm__bias qkv_bias, output_bias;
    bool qk_norm; /* RMSNorm of every query and key head before RoPE */
} fm__decoder_options;

fm_status fm__decoder_bind(fm__model *model, fm__binder *binder, const fm__decoder_options *options,
                           fm_error *error);
fm_status fm__decoder_record(const fm__model *model, fm__tape *tape, fm_error *error);
void fm__decoder_finish(fm__model *model);

/* ---- hf.c, hf_config.c ---- */

/* A GGUF-named view of a Hugging Face checkpoint; takes over *hf (also on failure). Needs no
   weights loaded: `convert` and the loader share it. */
fm_status fm__model_from_hf(fm__checkpoint **out, fm__checkpoint **hf, fm_error *error);

/* What config.json says, as far as names and keys depend on it. */
typedef struct fm__hf_config {
    const char *arch;               /* GGUF's name; static */
    bool tied, tied_given, permute; /* permute: q and k rows are stored as half rotations */
    uint32_t n_layer, n_head, n_kv_head, head_dim;
    float *factors; /* llama-3 RoPE factors (head_dim / 2), in the view's arena; NULL: none */
} fm__hf_config;

/* Reads config.json of `hf`, refuses what is not supported by name, adds GGUF keys to `view`. */
fm_status fm__hf_config_read(const fm__checkpoint *hf, fm__checkpoint *view, fm__hf_config *out,
                             fm_error *error);
