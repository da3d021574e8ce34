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
    MIN_OUTPUTS = 8,
    PLACEMENT_TEXT = 128
};

fm_engine_options fm_engine_options_default(void) {
    return (fm_engine_options){.split = -1};
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

/* Row counts of the tapes: a decode, a few sessions, a short prompt, a chunk. */
static fm_status record(fm_engine *engine, fm_error *error) {
    const uint32_t sizes[] = {1, 8, 64, engine->chunk_rows};
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

static size_t largest(const fm_engine *engine, bool output) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < engine->n_bucket; i++) {
        const fm__tape *tape = engine->buckets[i].tape;
        bytes = fm__max_size(bytes, output ? tape->output_bytes : tape->scratch_bytes);
    }
    return bytes;
}

/* Counts everything that the load will allocate against the budget, before it allocates. */
static fm_status reserve(fm_engine *engine, fm_error *error) {
    fm_engine_info *info = &engine->info;
    uint64_t need = info->weight_bytes + info->cache_bytes + info->scratch_bytes;
    fm_machine *machine = engine->machine;
    if (!fm__machine_reserve(machine, need))
        return fm__error(error, FM_ERROR_MEMORY, engine->model->checkpoint->path,
                         "needs %.1f MiB (weights %.1f, cache %.1f, activations %.1f), budget %.1f "
                         "MiB of which %.1f MiB are in use; a shorter context needs less",
                         (double)need / 0x1p20, (double)info->weight_bytes / 0x1p20,
                         (double)info->cache_bytes / 0x1p20, (double)info->scratch_bytes / 0x1p20,
                         (double)machine->memory_budget / 0x1p20,
                         (double)fm_machine_memory_used(machine) / 0x1p20);
    engine->reserved = need;
    return FM_OK;
}

static fm_status create_buffers(fm_engine *engine, fm_error *error) {
    const size_t bytes[FM__SLOT_COUNT] = {
        [FM__SLOT_SCRATCH] = largest(engine, false),
        [FM__SLOT_OUTPUT] = largest(engine, true),
        [FM__SLOT_CACHE] = (size_t)engine->info.cache_bytes,
    };
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++) {
        fm_status status =
            fm__device_buffer_create(engine->machine->devices[0], fm__max_size(bytes[slot], 64),
                                     FM__MEMORY_LOCAL, &engine->buffers[slot], error);
        if (status != FM_OK)
            return status;
        engine->run.buffers[slot] = engine->buffers[slot];
    }
    engine->cache = fm__device_buffer_map(engine->buffers[FM__SLOT_CACHE]);
    engine->output = fm__device_buffer_map(engine->buffers[FM__SLOT_OUTPUT]);
    if (!engine->cache || !engine->output)
        return fm__error(error, FM_ERROR_DEVICE, engine->machine->devices[0]->properties.name,
                         "its memory has no host address");
    engine->run.status = &engine->run_status;
    engine->run.cancel = &engine->cancel;
    return FM_OK;
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

static fm_status create_execs(fm_engine *engine, fm_error *error) {
    fm_machine *machine = engine->machine;
    const fm__plan_options options = {.axis = FM__AXIS_CHANNELS};
    for (uint32_t i = 0; i < engine->n_bucket; i++) {
        fm__bucket *b = &engine->buckets[i];
        fm_status status =
            fm__plan_make(&b->plan, b->tape, machine->devices, machine->n_device, &options, error);
        if (status == FM_OK)
            status = fm__exec_create(&b->exec, b->tape, b->plan, machine->devices,
                                     machine->n_device, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

/* ---- reports ---- */

static const char *residency_text(const fm__tape *tape, const fm__op *op) {
    static const char *const texts[] = {
        [FM__RESIDENCY_SHARED] = "shared",
        [FM__RESIDENCY_RESIDENT] = "resident",
        [FM__RESIDENCY_STREAMED] = "streamed",
        [FM__RESIDENCY_MAPPED] = "mapped",
    };
    if (op->weight[0] == FM__NONE)
        return "";
    const fm__weight *w = tape->weights[op->weight[0]];
    return w->n_ranges ? texts[w->ranges[0].residency] : "";
}

static const char *axis_text(fm__axis axis) {
    static const char *const texts[] = {
        [FM__AXIS_WHOLE] = "whole",
        [FM__AXIS_CHANNELS] = "channels",
        [FM__AXIS_TOKENS] = "tokens",
        [FM__AXIS_GROUPS] = "groups",
    };
    return texts[axis];
}

/* The report is made once, from the tape of a full chunk. */
static fm_status make_placements(fm_engine *engine, fm_error *error) {
    const fm__bucket *b = &engine->buckets[engine->n_bucket - 1];
    const fm__tape *tape = b->tape;
    size_t n = 0;
    for (uint32_t i = 0; i < tape->n_op; i++)
        n += b->plan->ops[i].n_range;
    engine->placements = fm__alloc_array(n, sizeof(fm_placement));
    engine->placement_text = fm__alloc_array(tape->n_op, PLACEMENT_TEXT);
    if (!engine->placements || !engine->placement_text)
        return fm__error_memory(error, "placement report", n * sizeof(fm_placement));
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const fm__op *op = &tape->ops[i];
        char *text = engine->placement_text + (size_t)i * PLACEMENT_TEXT;
        fm__op_describe(tape, i, text, PLACEMENT_TEXT);
        for (uint32_t r = 0; r < b->plan->ops[i].n_range; r++) {
            const fm__plan_op *plan = &b->plan->ops[i];
            fm__device *device = engine->machine->devices[plan->ranges[r].unit];
            bool whole = plan->axis == FM__AXIS_WHOLE;
            uint32_t cols = op->out == FM__NONE ? 0 : tape->tensors[op->out].cols;
            engine->placements[engine->n_placement++] = (fm_placement){
                .layer = op->layer,
                .op = text,
                .device = device->properties.name,
                .axis = axis_text(plan->axis),
                .begin = whole ? 0 : plan->ranges[r].range.begin,
                .end = whole ? cols : plan->ranges[r].range.end,
                .kernel = fm__device_op_kernel(device, tape, op),
                .residency = residency_text(tape, op),
                .reason = plan->reason ? plan->reason : "",
            };
        }
    }
    return FM_OK;
}

/* "q4_k 84%, q6_k 16%" by packed bytes of the matrices, most first. */
static void describe_types(const fm__model *model, char *out, size_t capacity) {
    uint64_t bytes[FM__TYPE_COUNT] = {0}, total = 0;
    for (uint32_t i = 0; i < model->n_weight; i++) {
        const fm__weight *w = model->weights[i];
        if (w->role == FM__ROLE_LINEAR) {
            bytes[fm__type_index(w->type)] += w->bytes;
            total += w->bytes;
        }
    }
    size_t used = 0;
    out[0] = 0;
    for (;;) {
        size_t best = 0;
        for (size_t t = 1; t < FM__TYPE_COUNT; t++)
            best = bytes[t] > bytes[best] ? t : best;
        if (bytes[best] == 0 || used >= capacity)
            return;
        used +=
            (size_t)snprintf(out + used, capacity - used, "%s%s %.0f%%", used ? ", " : "",
                             fm__type_at(best)->name, 100.0 * (double)bytes[best] / (double)total);
        bytes[best] = 0;
    }
}

static void fill_info(fm_engine *engine) {
    const fm__model *model = engine->model;
    const fm__hparams *h = &model->hparams;
    fm_engine_info *info = &engine->info;
    snprintf(info->architecture, sizeof(info->architecture), "%s", h->arch);
    snprintf(info->name, sizeof(info->name), "%s", h->name);
    describe_types(model, info->weight_types, sizeof(info->weight_types));
    info->numeric_class = model->fast ? FM_CLASS_FAST : FM_CLASS_EXACT;
    info->n_layer = h->n_layer;
    info->n_embd = h->n_embd;
    info->n_vocab = h->n_vocab;
    info->context_length = engine->context_length;
    info->model_context_length = h->context_length;
    info->parameters = model->parameters;
    info->decode_bytes = model->decode_bytes;
}

/* ---- load ---- */

/* Everything up to the sizes: reads the directory only. */
static fm_status prepare(fm_engine *engine, fm__checkpoint **checkpoint, const fm_engine_options *o,
                         fm_error *error) {
    const fm__model_options model_options = {.numeric_class = o->numeric_class,
                                             .context_length = o->context_length};
    if (o->numeric_class != FM_CLASS_AUTO && o->numeric_class != FM_CLASS_EXACT &&
        o->numeric_class != FM_CLASS_FAST)
        return fm__error(error, FM_ERROR_ARGUMENT, "numeric_class", "%d is not an fm_class",
                         (int)o->numeric_class);
    fm_status status = fm__model_open(&engine->model, checkpoint, &model_options, error);
    if (status == FM_OK)
        status = set_sizes(engine, o, error);
    if (status == FM_OK)
        status = record(engine, error);
    if (status != FM_OK)
        return status;
    engine->info.weight_bytes = engine->model->weight_bytes;
    engine->info.mapped_bytes = engine->model->mapped_bytes;
    engine->info.scratch_bytes = largest(engine, false) + largest(engine, true);
    fill_info(engine);
    return FM_OK;
}

static fm_status allocate(fm_engine *engine, const fm_engine_options *o, fm_error *error) {
    const fm__pack_options pack = {
        .main = engine->machine->devices[0],
        .threads = engine->machine->devices[0]->properties.threads,
        .progress = o->progress,
        .progress_user = o->progress_user,
    };
    fm_status status = reserve(engine, error);
    if (status == FM_OK)
        status = fm__model_pack(engine->model, &pack, error);
    if (status == FM_OK)
        status = create_buffers(engine, error);
    if (status == FM_OK)
        status = create_staging(engine, error);
    if (status == FM_OK)
        status = create_execs(engine, error);
    if (status == FM_OK)
        status = make_placements(engine, error);
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
    fm__log(FM_LOG_INFO, "%s: %s, %.1f M parameters, %s, %.3f GiB of weights, %.0f ms",
            engine->model->checkpoint->path, engine->info.architecture,
            (double)engine->info.parameters / 1e6, engine->info.weight_types,
            (double)engine->info.weight_bytes / 0x1p30, engine->info.load_ms);
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
    fm_engine engine = {0};
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
    for (uint32_t i = e->n_bucket; i-- > 0;) {
        fm__exec_destroy(&e->buckets[i].exec);
        fm__plan_destroy(&e->buckets[i].plan);
        fm__tape_destroy(&e->buckets[i].tape);
    }
    for (uint32_t g = 0; g < FM__MAX_GROUPS; g++)
        fm__pool_finish(&e->pools[g]);
    for (int slot = 0; slot < FM__SLOT_COUNT; slot++)
        fm__device_buffer_destroy(&e->buffers[slot]);
    fm__free(e->stage_position);
    fm__free(e->stage_sequence);
    fm__free(e->output_row);
    fm__free(e->placements);
    fm__free(e->placement_text);
    fm__model_destroy(&e->model);
    fm_tokenizer_destroy(&e->tokenizer);
    fm__machine_release(e->machine, e->reserved);
    pthread_mutex_destroy(&e->lock);
    fm__free(e);
    *engine = NULL;
}

/* ---- reading ---- */

void fm_engine_get_info(const fm_engine *engine, fm_engine_info *out) {
    *out = engine->info;
}

const fm_tokenizer *fm_engine_tokenizer(const fm_engine *engine) {
    return engine->tokenizer;
}

uint32_t fm_engine_vocab_size(const fm_engine *engine) {
    return engine->model->hparams.n_vocab;
}

size_t fm_engine_placement_count(const fm_engine *engine) {
    return engine->n_placement;
}

fm_status fm_engine_placement(const fm_engine *engine, size_t index, fm_placement *out,
                              fm_error *error) {
    if (index >= engine->n_placement)
        return fm__error(error, FM_ERROR_ARGUMENT, "placement", "index %zu, there are %zu", index,
                         engine->n_placement);
    *out = engine->placements[index];
    return FM_OK;
}

void fm_engine_cancel(fm_engine *engine) {
    atomic_store(&engine->cancel, 1);
}
