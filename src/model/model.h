/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/model.h: the model room: architecture families.
 *
 * Owns: hyper-parameters, bound weights, and the recording of tapes. Never does: run anything.
 * Called from: the loading thread. One file per family; family.c holds the table. Nothing outside
 * this room knows architectures.
 */
#pragma once

#include "device/device.h"
#include "fusionml/engine.h"

typedef struct fm__hparams {
    char arch[32], name[128];
    uint32_t n_layer, n_embd, n_ff, n_head, n_kv_head, key_dim, value_dim, n_vocab;
    uint32_t context_length; /* as trained */
    uint32_t window;         /* 0: full attention */
    float eps;
    uint32_t rotary; /* dims rotated */
    fm__rope_style rope_style;
    double rope_base;
    /* RoPE scaling: factors[i] divides frequency i (llama-3: rope_freqs.weight or computed);
     * linear: all equal */
    double rope_linear; /* 1: none */
    bool tied;          /* output = token embedding */
} fm__hparams;

typedef struct fm__model {
    const struct fm__family *family;
    fm__hparams hparams;
    fm__checkpoint *checkpoint; /* owned: gather tables stay mapped */
    fm__weight **weights;       /* owned; ids of the tapes */
    uint32_t n_weight;
    fm__cache_group groups[4]; /* n_page is filled in by the engine */
    uint32_t n_group;
    bool fast; /* numeric class of this instance */
    uint64_t parameters, weight_bytes, mapped_bytes, decode_bytes, hash;
    void *family_data; /* owned through family->finish */
} fm__model;

struct fm__binder;

typedef struct fm__family {
    const char *arch; /* general.architecture */
    /* Reads and checks hyper-parameters; refuses by name what it does not know. */
    fm_status (*read)(fm__model *model, fm_error *error);
    /* Binds every weight; refuses missing, misshapen and unknown tensors by name. */
    fm_status (*bind)(fm__model *model, struct fm__binder *binder, fm_error *error);
    fm_status (*record)(const fm__model *model, fm__tape *tape, fm_error *error);
    void (*finish)(fm__model *model);
} fm__family;

const fm__family *fm__family_get(fm__str arch);
const fm__family *const *fm__families(void); /* NULL-terminated */

typedef struct fm__model_options {
    fm_class numeric_class;
    uint32_t context_length; /* positions that RoPE tables cover */
    fm__device *main;        /* whose buffers hold the panels */
    uint32_t threads;        /* for packing */
    uint64_t memory_budget;  /* bytes left; the need is stated before anything is allocated */
    fm_progress_callback *progress;
    void *progress_user;
} fm__model_options;

/* Takes over *checkpoint (also on failure). An HF checkpoint is mapped to GGUF's names first. */
fm_status fm__model_load(fm__model **out, fm__checkpoint **checkpoint,
                         const fm__model_options *options, fm_error *error);
void fm__model_destroy(fm__model **model);
/* A tape with the given bounds, finished. */
fm_status fm__model_record(const fm__model *model, uint32_t max_rows, uint32_t max_outputs,
                           fm__tape **out, fm_error *error);

/* hf.c: a GGUF-named view of a Hugging Face checkpoint; takes over *hf. Needs no weights loaded:
   `convert` and the loader share it. */
fm_status fm__model_from_hf(fm__checkpoint **out, fm__checkpoint **hf, fm_error *error);
