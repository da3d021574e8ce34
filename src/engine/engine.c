/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/engine.c: a loaded model: its tapes, plans and memory.
 *
 * Owns: loading and unloading, and what an engine reports of itself. Never does: run rows (run.c).
 * Called from: one thread while loading and destroying; reports from any thread.
 */
#include "engine/engine.h"

#include <assert.h>
#include <string.h>

enum {
    DEFAULT_CONTEXT = 4096,
    DEFAULT_CHUNK = 512,
    MAX_CHUNK = 8192,
    MAX_OUTPUT_BYTES = 64 << 20, /* logits of one tape run */
    MIN_OUTPUTS = 8
};

fm_engine_options fm_engine_options_default(void) {
    return (fm_engine_options){.split = -1, .axis = FM_AXIS_AUTO};
}

/* ---- sizes ---- */

static fm_status set_sizes(fm_engine *engine, const fm_engine_options *o, fm_error *error) {
    fm__model *model = engine->model;
    const fm__hparams *h = &model->hparams;
    engine->context_length = model->positions;
    engine->chunk_rows = o->chunk_rows ? o->chunk_rows : DEFAULT_CHUNK;
    if (engine->chunk_rows > MAX_CHUNK)
        return fm__error(error, FM_ERROR_ARGUMENT, "chunk_rows", "is %u, the most is %d",
                         engine->chunk_rows, MAX_CHUNK);
    size_t row = (h->n_vocab + h->n_embd) * sizeof(float);
    size_t outputs = fm__max_size(MAX_OUTPUT_BYTES / row, MIN_OUTPUTS);
    engine->max_outputs = (uint32_t)fm__min_size(outputs, engine->chunk_rows);

    uint64_t tokens = o->cache_tokens ? o->cache_tokens : engine->context_length;
    uint64_t n_page = (tokens + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
    size_t offset = 0;
    for (uint32_t g = 0; g < model->n_group; g++) {
        fm__cache_group *group = &model->groups[g];
        group->type = (fm__cache_type)o->cache_type; /* in one order, report.c sees to it */
        group->head_bytes = fm__cache_head_bytes(group->type, group->key_dim, group->value_dim);
        group->n_page = (uint32_t)n_page;
        group->offset = offset;
        size_t layer;
        if (!fm__mul_size(group->head_bytes * group->n_kv_head, n_page, &layer) ||
            !fm__mul_size(layer, group->n_layer, &group->bytes) ||
            !fm__add_size(offset, group->bytes, &offset))
            return fm__error(error, FM_ERROR_MEMORY, "page pool", "%llu tokens overflow",
                             (unsigned long long)tokens);
    }
    engine->info.cache_bytes = offset;
    return FM_OK;
}

/* Row counts of the tapes: a decode, a few sessions, short prompts (how they are best divided
   changes with their length), a chunk. */
static fm_status record(fm_engine *engine, fm_error *error) {
    const uint32_t sizes[] = {1, 8, 64, 128, 256, engine->chunk_rows};
    for (uint32_t i = 0; i < FM__MAX_BUCKETS; i++) {
        if (i + 1 < FM__MAX_BUCKETS && sizes[i] >= engine->chunk_rows)
            continue;
        uint32_t outputs = sizes[i] < engine->max_outputs ? sizes[i] : engine->max_outputs;
        fm__bucket *bucket = &engine->buckets[engine->n_bucket];
        fm_status status = fm__model_record(engine->model, sizes[i], outputs, &bucket->tape, error);
        if (status != FM_OK)
            return status;
        engine->n_bucket++;
    }
    return FM_OK;
}

size_t fm__engine_largest(const fm_engine *engine, bool output) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < engine->n_bucket; i++) {
        const fm__tape *tape = engine->buckets[i].tape;
        bytes = fm__max_size(bytes, output ? tape->output_bytes : tape->scratch_bytes);
    }
    return bytes;
}

static fm_status create_staging(fm_engine *engine, fm_error *error) {
    engine->stage_position = fm__alloc_array(engine->chunk_rows, sizeof(uint32_t));
    engine->stage_sequence = fm__alloc_array(engine->chunk_rows, sizeof(uint32_t));
    engine->output_row = fm__alloc_array(engine->max_outputs, sizeof(uint32_t));
    if (!engine->stage_position || !engine->stage_sequence || !engine->output_row)
        return fm__error_memory(error, "engine", engine->chunk_rows * 3 * sizeof(uint32_t));
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        fm_status status = fm__pool_init(&engine->pools[g], engine->model->groups[g].n_page, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* The arm that each bucket begins with is recorded now, so that the first run is like any other. */
static fm_status create_ways(fm_engine *engine, fm_error *error) {
    for (uint32_t i = 0; i < engine->n_bucket; i++) {
        fm__bucket *bucket = &engine->buckets[i];
        fm__way *way;
        fm_status status =
            fm__arms_way(engine, bucket, fm__choose_active(engine, bucket), &way, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* ---- load ---- */

static fm_status check_options(const fm_engine_options *o, fm_error *error) {
    if (o->numeric_class != FM_CLASS_AUTO && o->numeric_class != FM_CLASS_EXACT &&
        o->numeric_class != FM_CLASS_FAST)
        return fm__error(error, FM_ERROR_ARGUMENT, "numeric_class", "%d is not an fm_class",
                         (int)o->numeric_class);
    if ((uint32_t)o->cache_type >= FM__CACHE_TYPES)
        return fm__error(error, FM_ERROR_ARGUMENT, "cache_type", "%d is not an fm_cache_type",
                         (int)o->cache_type);
    if (o->batch_outputs > FM__MAX_BATCH_ROWS)
        return fm__error(error, FM_ERROR_ARGUMENT, "batch_outputs", "is %u, a batch has at most %d",
                         o->batch_outputs, FM__MAX_BATCH_ROWS);
    if ((uint32_t)o->axis > FM_AXIS_PRODUCTS)
        return fm__error(error, FM_ERROR_ARGUMENT, "axis", "%d is not an fm_axis", (int)o->axis);
    if ((uint32_t)o->deps > FM_DEPS_READY)
        return fm__error(error, FM_ERROR_ARGUMENT, "deps", "%d is not an fm_deps", (int)o->deps);
    if ((uint32_t)o->weights > FM_WEIGHTS_STREAMED)
        return fm__error(error, FM_ERROR_ARGUMENT, "weights", "%d is not an fm_weights",
                         (int)o->weights);
    if (!(o->split <= 1)) /* NaN too */
        return fm__error(error, FM_ERROR_ARGUMENT, "split",
                         "is %g: a share is from 0 to 1, below 0 as calibrated", o->split);
    return FM_OK;
}

/* Everything up to the sizes: reads the directory only. */
static fm_status prepare(fm_engine *engine, fm__checkpoint **checkpoint, const fm_engine_options *o,
                         fm_error *error) {
    const fm__model_options model_options = {.numeric_class = o->numeric_class,
                                             .context_length = o->context_length};
    fm_status status = check_options(o, error);
    if (status == FM_OK)
        status = fm__model_open(&engine->model, checkpoint, &model_options, error);
    if (status == FM_OK)
        status = set_sizes(engine, o, error);
    if (status == FM_OK)
        status = record(engine, error);
    if (status == FM_OK)
        status = fm__weights_plan(engine, error);
    if (status != FM_OK)
        return status;
    fm__engine_add_up(engine);
    fm__report_info(engine);
    return FM_OK;
}

/* Trials are a help, not a need: without them the engine runs as one that is not calibrated. Only
   CANCELLED is an error. */
static fm_status estimate(fm_engine *engine, fm_error *error) {
    fm_error why = {0};
    fm_status status = fm__calibration_estimate(engine, &why);
    if (status == FM_OK)
        return FM_OK;
    if (status == FM_ERROR_CANCELLED)
        return fm__error(error, status, "load", "cancelled during trials of both units");
    fm__log(FM_LOG_WARNING, "trials of %s and %s together ended with: %s: %s; none is divided",
            engine->gpu->properties.name, engine->host->properties.name, why.place, why.message);
    for (uint32_t b = 0; b < engine->n_bucket; b++) {
        fm__bucket *bucket = &engine->buckets[b];
        fm__free(bucket->op_shares);
        bucket->op_shares = NULL;
        bucket->whole_products = false;
        memset(bucket->predicted, 0, sizeof(bucket->predicted));
    }
    return FM_OK;
}

/* Which arms there are follows from the units, the options and a calibration. */
static fm_status find_arms(fm_engine *engine, fm_error *error) {
    const fm_engine_options *o = &engine->options;
    fm__arms_find(engine);
    fm__choose_init(engine);
    fm_status status = fm__calibration_load(engine, error);
    if (status == FM_OK && fm__calibration_wants_estimate(engine))
        status = estimate(engine, error);
    if (status != FM_OK)
        return status;
    fm__arms_find(engine);
    fm_arm arm = o->arm == FM_ARM_AUTO && o->split >= 0 ? FM_ARM_SPLIT : o->arm;
    status = fm__arms_check(engine, arm, error);
    if (status != FM_OK)
        return status;
    engine->forced = arm;
    fm__choose_init(engine);
    if (engine->gpu && o->split < 0 && !engine->calibrated && !engine->estimated)
        fm__log(FM_LOG_INFO,
                "not calibrated: `fusionml calibrate` finds the shares with which %s "
                "and %s work together",
                engine->gpu->properties.name, engine->host->properties.name);
    return FM_OK;
}

static fm_status pack_weights(fm_engine *engine, const fm__pack_options *options, fm_error *error) {
    uint64_t begin_ns = fm__now_ns();
    fm_status status = fm__model_pack(engine->model, options, error);
    if (status != FM_OK)
        return status;
    engine->info.pack_ms = (double)(fm__now_ns() - begin_ns) / 1e6;
    for (uint32_t i = 0; i < engine->model->n_slab; i++) {
        fm__buffer *slab = engine->model->slabs[i];
        engine->info.huge_bytes += fm__pages_huge(fm__device_buffer_map(slab), slab->bytes);
    }
    return FM_OK;
}

static fm_status allocate(fm_engine *engine, const fm_engine_options *o, fm_error *error) {
    const fm__pack_options pack = {
        .memory = engine->gpu ? engine->gpu : engine->host,
        .threads = engine->host->properties.threads,
        .progress = o->progress,
        .progress_user = o->progress_user,
    };
    fm_status status = fm__engine_reserve(engine, error);
    if (status == FM_OK)
        status = pack_weights(engine, &pack, error);
    if (status == FM_OK)
        status = fm__weights_place(engine, error);
    if (status == FM_OK)
        status = fm__buffers_create(engine, error);
    if (status == FM_OK)
        status = create_staging(engine, error);
    if (status == FM_OK)
        status = fm__engine_self_test(engine, error);
    if (status == FM_OK)
        status = find_arms(engine, error);
    if (status == FM_OK)
        status = create_ways(engine, error);
    if (status == FM_OK)
        status = fm__report_placements(engine, error);
    if (status == FM_OK)
        fm__engine_settle(engine);
    return status;
}

static fm_status load(fm_engine **out, fm_machine *machine, fm__checkpoint **checkpoint,
                      const fm_engine_options *options, uint64_t begin_ns, fm_error *error) {
    fm_engine_options o = options ? *options : fm_engine_options_default();
    fm_status status = FM_OK;
    fm_engine *engine = fm__alloc_zero(sizeof(*engine));
    if (!engine) {
        fm__checkpoint_close(checkpoint);
        return fm__error_memory(error, "engine", sizeof(*engine));
    }
    engine->machine = machine;
    engine->options = o;
    fm__arms_find_units(engine, 0);
    if (pthread_mutex_init(&engine->lock, NULL) != 0) {
        fm__free(engine);
        fm__checkpoint_close(checkpoint);
        return fm__error(error, FM_ERROR_MEMORY, "engine", "no lock");
    }
    /* Before the model takes the checkpoint over: a folder's tokenizer.json is not in the view. */
    status = fm__tokenizer_from_checkpoint(&engine->tokenizer, *checkpoint, error);
    if (status == FM_OK)
        status = prepare(engine, checkpoint, &o, error);
    if (status == FM_OK)
        status = allocate(engine, &o, error);
    fm__checkpoint_close(checkpoint); /* where the model did not take it */
    if (status != FM_OK) {
        fm_engine_destroy(&engine);
        return status;
    }
    engine->info.model_hash = engine->model->hash;
    engine->info.load_ms = (double)(fm__now_ns() - begin_ns) / 1e6;
    fm__log(FM_LOG_INFO,
            "%s: %s, %.1f M parameters, %s, %.3f GiB of weights (%.3f on huge pages), %.0f ms, "
            "%.0f of them packing",
            engine->model->checkpoint->path, engine->info.architecture,
            (double)engine->info.parameters / 1e6, engine->info.weight_types,
            (double)engine->info.weight_bytes / 0x1p30, (double)engine->info.huge_bytes / 0x1p30,
            engine->info.load_ms, engine->info.pack_ms);
    if (engine->info.copy_bytes)
        fm__log(FM_LOG_INFO, "weights: %.3f GiB in host memory and %.3f GiB on %s",
                (double)engine->info.weight_bytes / 0x1p30,
                (double)engine->info.copy_bytes / 0x1p30, engine->gpu->properties.name);
    *out = engine;
    return FM_OK;
}

fm_status fm_engine_load(fm_engine **out, fm_machine *machine, const char *path,
                         const fm_engine_options *options, fm_error *error) {
    uint64_t begin_ns = fm__now_ns();
    fm__checkpoint *checkpoint = NULL;
    if (!out || !machine || !path)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_engine_load", "an argument is NULL");
    fm_status status = fm__checkpoint_open(&checkpoint, path, error);
    if (status != FM_OK)
        return status;
    return load(out, machine, &checkpoint, options, begin_ns, error);
}

fm_status fm_engine_load_memory(fm_engine **out, fm_machine *machine, const void *image,
                                size_t bytes, const char *name, const fm_engine_options *options,
                                fm_error *error) {
    uint64_t begin_ns = fm__now_ns();
    fm__checkpoint *checkpoint = NULL;
    if (!out || !machine || !image || !name)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_engine_load_memory", "an argument is NULL");
    fm_status status = fm__checkpoint_open_memory(&checkpoint, image, bytes, name, error);
    if (status != FM_OK)
        return status;
    return load(out, machine, &checkpoint, options, begin_ns, error);
}

fm_status fm_engine_measure(const char *path, const fm_engine_options *options, fm_engine_info *out,
                            fm_error *error) {
    fm_engine_options o = options ? *options : fm_engine_options_default();
    fm__checkpoint *checkpoint = NULL;
    if (!path || !out)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_engine_measure", "an argument is NULL");
    fm_status status = fm__checkpoint_open(&checkpoint, path, error);
    if (status != FM_OK)
        return status;
    fm_engine engine = {.options = o};
    status = prepare(&engine, &checkpoint, &o, error);
    fm__checkpoint_close(&checkpoint);
    if (status == FM_OK)
        *out = engine.info;
    for (uint32_t i = engine.n_bucket; i-- > 0;)
        fm__tape_destroy(&engine.buckets[i].tape);
    fm__model_destroy(&engine.model);
    return status;
}

void fm_engine_destroy(fm_engine **engine) {
    if (!engine || !*engine)
        return;
    fm_engine *e = *engine;
    if (e->expired)
        fm__saved_expire(e);
    fm__arms_forget(e);
    for (uint32_t i = e->n_bucket; i-- > 0;) {
        fm__free(e->buckets[i].op_shares);
        fm__tape_destroy(&e->buckets[i].tape);
    }
    for (uint32_t g = 0; g < FM__MAX_GROUPS; g++)
        fm__pool_finish(&e->pools[g]);
    fm__buffers_destroy(e);
    fm__weights_finish(e);
    fm__free(e->stage_position);
    fm__free(e->stage_sequence);
    fm__free(e->output_row);
    fm__free(e->placements);
    fm__free(e->placement_text);
    fm__model_destroy(&e->model);
    fm_tokenizer_destroy(&e->tokenizer);
    fm__engine_release(e);
    pthread_mutex_destroy(&e->lock);
    fm__free(e);
    *engine = NULL;
}

/* ---- reading ---- */

const fm_tokenizer *fm_engine_tokenizer(const fm_engine *engine) {
    return engine->tokenizer;
}

uint32_t fm_engine_vocab_size(const fm_engine *engine) {
    return engine->model->hparams.n_vocab;
}

void fm_engine_cancel(fm_engine *engine) {
    atomic_store(&engine->cancel, 1);
}
