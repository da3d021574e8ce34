/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/engine.h: a loaded model.
 *
 * The shortest whole program:
 *
 *     fm_machine *machine = NULL;
 *     fm_engine *engine = NULL;
 *     fm_session *session = NULL;
 *     fm_sampler *sampler = NULL;
 *     fm_error error;
 *     int32_t *ids = NULL, id;
 *     size_t n = 0;
 *     const float *logits;
 *     fm_machine_create(&machine, NULL, &error);
 *     fm_engine_load(&engine, machine, "model.gguf", NULL, &error);
 *     fm_session_create(&session, engine, NULL, &error);
 *     fm_sampler_create(&sampler, NULL, &error);
 *     const fm_tokenizer *tokenizer = fm_engine_tokenizer(engine);
 *     uint32_t n_vocab = fm_engine_vocab_size(engine);
 *     fm_tokenizer_encode(tokenizer, "Once", 4, FM_TOKENIZE_PROMPT, &ids, &n, &error);
 *     fm_session_prefill(session, ids, n, &logits, &error);
 *     while (fm_sampler_sample(sampler, logits, n_vocab, &id, &error) == FM_OK &&
 *            !fm_tokenizer_is_end(tokenizer, id))
 *         if (fm_session_decode(session, id, &logits, &error) != FM_OK)
 *             break;
 *     (check every status; destroy in reverse order)
 *
 * Threads: an engine runs one batch at a time; calls of fm_engine_run() and of session functions on
 * the same engine from several threads are serialised by the engine.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fusionml/error.h"
#include "fusionml/machine.h"
#include "fusionml/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_engine fm_engine;
typedef struct fm_batch fm_batch;

/* docs/numerics.md. AUTO: exact for quantised models, fast for float-weight ones. */
typedef enum fm_class { FM_CLASS_AUTO = 0, FM_CLASS_EXACT = 1, FM_CLASS_FAST = 2 } fm_class;

/* Called now and then while loading, from the calling thread; done and total in bytes for "packing
   weights", in steps for what a GPU takes behind it: "testing kernels", "trying units together".
   Return non-zero to cancel (the load then fails with FM_ERROR_CANCELLED). */
typedef int fm_progress_callback(void *user, const char *phase, uint64_t done, uint64_t total);

/* How work is divided between units, docs/guide/coexecution.md. */
typedef enum fm_axis {
    FM_AXIS_CHANNELS = 0, /* products, by output columns */
    FM_AXIS_TOKENS = 1,   /* products, and in shared memory all that the layers do, by rows */
    FM_AXIS_AUTO = 2,     /* host teams, and many rows: by tokens; else by channels, or products
                             where a calibration says so */
    FM_AXIS_PRODUCTS = 3, /* each product is one unit's: for weights that are streamed */
} fm_axis;
typedef enum fm_deps {
    FM_DEPS_EVENT = 0, /* units wait for each other's results by themselves */
    FM_DEPS_BATCH = 1, /* for each other's whole submissions: for comparison only */
    FM_DEPS_EAGER = 2, /* the host waits for all before each step */
    FM_DEPS_READY = 3, /* the host hands over each step once its inputs are there */
} fm_deps;
/* Where a GPU finds the weights. */
typedef enum fm_weights {
    FM_WEIGHTS_AUTO = 0,     /* shared on unified memory; else resident as far as they fit, then
                                streamed */
    FM_WEIGHTS_RESIDENT = 1, /* its own copy: an error if it does not fit */
    FM_WEIGHTS_SHARED = 2,   /* read from host memory where they are packed */
    FM_WEIGHTS_STREAMED = 3, /* copied from host memory ahead of each use, through a ring */
} fm_weights;
/* The ways to run a tape among which the gate chooses. */
typedef enum fm_arm {
    FM_ARM_AUTO = 0,  /* the gate chooses */
    FM_ARM_CPU = 1,   /* products on the host */
    FM_ARM_GPU = 2,   /* products on the main unit, one submission */
    FM_ARM_EAGER = 3, /* products on the main unit, op by op */
    FM_ARM_SPLIT = 4, /* products on both at once */
} fm_arm;

/* What keys and values are kept as, docs/numerics.md. */
typedef enum fm_cache_type {
    FM_CACHE_F16 = 0,
    FM_CACHE_Q8_0 = 1, /* int8 with a scale for 32: about half the memory */
} fm_cache_type;

/* One line of JSON for each decision or call of the gate, without a line feed; from the running
   thread. {"bucket":512,"arm":"split","ms":41.2,"decision":"kept","reason":"..."} */
typedef void fm_gate_log_callback(void *user, const char *line);

typedef struct fm_engine_options {
    fm_class numeric_class;
    /* Tokens one session may hold; 0: the smaller of the model's context and 4096. More than the
       model's context: ARGUMENT. */
    uint32_t context_length;
    /* Tokens that the page pool holds for all sessions together; 0: context_length rounded up to
     * pages. */
    uint32_t cache_tokens;
    fm_cache_type cache_type; /* of all sessions; default F16 */
    /* Outputs of the batches (fm_batch_create()) that are to find room beside the engine: loading
       looks for it, and names them where the budget is too small. Batches count their own. */
    uint32_t batch_outputs;
    /* Rows of one tape run: longer batches are run in chunks of at most this; 0: 512. */
    uint32_t chunk_rows;
    fm_progress_callback *progress; /* may be NULL */
    void *progress_user;
    /* Share of the last unit in products, 0 to 1; below 0 (the default): as calibrated. With a
       share of one's own the arm is SPLIT unless `arm` says otherwise. */
    double split;
    fm_axis axis; /* the default: AUTO */
    fm_deps deps;
    fm_weights weights;
    fm_arm arm;
    /* 1: the gate measures nothing. With arm AUTO each bucket keeps the arm that it begins with:
       the one with the lowest prediction, or the first where nothing is predicted. */
    int no_gate;
    fm_gate_log_callback *gate_log; /* may be NULL */
    void *gate_log_user;
} fm_engine_options;

FM_API fm_engine_options fm_engine_options_default(void);

/* path: a .gguf file or a Hugging Face folder. options may be NULL. The machine must outlive the
   engine. Errors: IO, FORMAT, UNSUPPORTED (names the architecture, type, RoPE kind or tensor),
   MEMORY (with the number that is needed and the budget), ARGUMENT, CANCELLED. */
FM_API fm_status fm_engine_load(fm_engine **out, fm_machine *machine, const char *path,
                                const fm_engine_options *options, fm_error *error);
/* The same from a GGUF image in memory, which must stay valid and unchanged while the engine lives.
   name stands for the path in messages. */
FM_API fm_status fm_engine_load_memory(fm_engine **out, fm_machine *machine, const void *image,
                                       size_t bytes, const char *name,
                                       const fm_engine_options *options, fm_error *error);
/* Clears *engine. Its sessions and batches must be destroyed before. */
FM_API void fm_engine_destroy(fm_engine **engine);

typedef struct fm_engine_info {
    char architecture[32];  /* "llama", "qwen2", ... */
    char name[128];         /* general.name; may be "" */
    char weight_types[128]; /* "q4_k 84%, q6_k 16%" by bytes */
    fm_class numeric_class; /* EXACT or FAST */
    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint32_t context_length;       /* of this engine's sessions */
    uint32_t model_context_length; /* as trained */
    uint64_t parameters;
    uint64_t weight_bytes; /* packed weights in our memory */
    uint64_t mapped_bytes; /* gather tables read from the file's mapping */
    uint64_t cache_bytes;  /* the page pool */
    fm_cache_type cache_type;
    uint64_t scratch_bytes; /* activations */
    uint64_t decode_bytes;  /* weight bytes that one decoded token reads */
    /* With a GPU: its copies of weights; the activations once more in host memory, where it is
       discrete; and all that lies in a discrete one's own memory (copies, cache, activations).
       What two units address counts once. */
    uint64_t copy_bytes, mirror_bytes, own_bytes;
    /* What units keep for their work: parts of attention, prepared tokens and, of a GPU that
       streams weights, the ring through which they come. Engines of one machine have it in common.
     */
    uint64_t kept_bytes;
    double load_ms, pack_ms; /* pack_ms: of it, reading the file's weights and packing them */
    /* Of weight_bytes' panels, how many the system put on huge pages, as it tells: 0 where it gives
       none or does not tell. */
    uint64_t huge_bytes;
    uint64_t model_hash; /* of the weights and hyper-parameters; snapshots are checked against it */
} fm_engine_info;

/* What loading path with these options would take: fills *out (load_ms, pack_ms, huge_bytes and
   model_hash 0, and kept_bytes 0, as there are no units to ask) from the file's directory alone,
   without reading weights or allocating for them. options may be NULL. Errors: as fm_engine_load(),
   MEMORY excepted. */
FM_API fm_status fm_engine_measure(const char *path, const fm_engine_options *options,
                                   fm_engine_info *out, fm_error *error);

FM_API void fm_engine_get_info(const fm_engine *engine, fm_engine_info *out);
/* Owned by the engine; NULL if the file carries no vocabulary. */
FM_API const fm_tokenizer *fm_engine_tokenizer(const fm_engine *engine);
FM_API uint32_t fm_engine_vocab_size(const fm_engine *engine);

/* One line of the placement report: which unit computes which range of an op, and why. */
typedef struct fm_placement {
    int32_t layer;       /* -1: outside the layers */
    const char *op;      /* "linear blk.0.ffn_gate.weight"; owned by the engine */
    const char *device;  /* "host"; owned by the machine */
    const char *axis;    /* "channels", "tokens", "groups", "whole" */
    uint32_t begin, end; /* range on that axis */
    const char *kernel;  /* "fm__linear_q8_0_avx512vnni"; "" where the device has no name for it */
    const char *residency; /* "shared", "resident", "streamed", "mapped", "" */
    const char *reason;    /* "the main unit runs everything" */
} fm_placement;

FM_API size_t fm_engine_placement_count(const fm_engine *engine);
FM_API fm_status fm_engine_placement(const fm_engine *engine, size_t index, fm_placement *out,
                                     fm_error *error);

/* The plan of the tape for up to `rows` rows as text or JSON, malloc'ed: op, unit, range,
   residency, reason, copies. arm AUTO: the arm that is active now. Errors: ARGUMENT (the engine has
   no such arm), MEMORY. */
FM_API fm_status fm_engine_explain(fm_engine *engine, uint32_t rows, fm_arm arm, int json,
                                   char **out, fm_error *error);
FM_API const char *fm_cache_type_name(fm_cache_type type); /* "f16", "q8_0" */
FM_API const char *fm_arm_name(fm_arm arm); /* "cpu", "gpu", "gpu-eager", "split", "auto" */

/* From the next run on: that arm for every bucket; AUTO: the gate chooses again (or, with no_gate,
   what it began with). Units, weights and sessions stay as they are. Errors: ARGUMENT (the engine
   has no such arm; the message names those it has). */
FM_API fm_status fm_engine_set_arm(fm_engine *engine, fm_arm arm, fm_error *error);

/* What the gate did so far, over all buckets. */
typedef struct fm_gate_info {
    uint64_t calls, probes, switches, forbidden;
    double spent_ms, lost_ms; /* of all calls; in probes, against the arm that was active */
    uint64_t calls_of[5];     /* by fm_arm */
    uint32_t arms;            /* bit a: the engine has fm_arm a */
    /* Of the widest tape that ran (none did: that there is), and of the one for decoding. */
    fm_arm active_prefill, active_decode;
    int calibrated; /* 1: a saved calibration of this machine and model is in use */
    double calibration_age_s;
    /* The last unit's part of all products' operations, of the same two tapes; 0: none. */
    double share_prefill, share_decode;
} fm_gate_info;
FM_API void fm_engine_gate_info(const fm_engine *engine, fm_gate_info *out);

/* Runs every row of a batch (fusionml/batch.h) and appends the rows to their sessions. All or
   nothing: after an error no session has changed its length. Errors: LIMIT (context or page pool
   full; the message carries both numbers), NUMERIC (names the op and row), DEVICE, CANCELLED. */
FM_API fm_status fm_engine_run(fm_engine *engine, fm_batch *batch, fm_error *error);

/* Asks a run in progress to stop at the next op; safe from a signal handler or another thread.
   The run returns CANCELLED. The request is cleared when the next run begins, so one that
   comes between two runs is lost: check your own flag there. */
FM_API void fm_engine_cancel(fm_engine *engine);

#ifdef __cplusplus
}
#endif
