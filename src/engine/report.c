/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/report.c: what an engine says of itself: the model, where ops run, and why.
 *
 * Owns: the placement report. Never does: change a plan. Called from: the loading thread, and the
 * user's threads.
 */
#include "engine/engine.h"

#include <string.h>

enum { PLACEMENT_TEXT = 128 };

/* ---- placements ---- */

static const char *residency_text(const fm__tape *tape, const fm__op *op,
                                  const fm__device *device) {
    static const char *const texts[] = {
        [FM__RESIDENCY_SHARED] = "shared",
        [FM__RESIDENCY_RESIDENT] = "resident",
        [FM__RESIDENCY_STREAMED] = "streamed",
        [FM__RESIDENCY_MAPPED] = "mapped",
    };
    if (op->weight[0] == FM__NONE)
        return "";
    const fm__weight *w = tape->weights[op->weight[0]];
    for (uint32_t i = 0; i < w->n_ranges; i++) {
        if (w->ranges[i].buffer && w->ranges[i].buffer->device == device)
            return texts[w->ranges[i].residency];
    }
    return w->role == FM__ROLE_GATHER ? "mapped" : "shared";
}

static const char *axis_text(fm__axis axis) {
    static const char *const texts[] = {
        [FM__AXIS_WHOLE] = "whole",
        [FM__AXIS_CHANNELS] = "channels",
        [FM__AXIS_TOKENS] = "tokens",
        [FM__AXIS_PRODUCTS] = "products",
    };
    return texts[axis];
}

static void place_op(fm_engine *engine, const fm__tape *tape, const fm__way *way, uint32_t i) {
    const fm__op *op = &tape->ops[i];
    const fm__plan_op *plan = &way->plan->ops[i];
    char *text = engine->placement_text + (size_t)i * PLACEMENT_TEXT;
    fm__op_describe(tape, i, text, PLACEMENT_TEXT);
    bool whole = plan->axis == FM__AXIS_WHOLE;
    for (uint32_t r = 0; r < plan->n_range; r++) {
        fm__device *device = way->units[plan->ranges[r].unit];
        uint32_t cols = op->out == FM__NONE ? 0 : tape->tensors[op->out].cols;
        engine->placements[engine->n_placement++] = (fm_placement){
            .layer = op->layer,
            .op = text,
            .device = device->properties.name,
            .axis = axis_text(plan->axis),
            .begin = whole ? 0 : plan->ranges[r].range.begin,
            .end = whole ? cols : plan->ranges[r].range.end,
            .kernel = fm__device_op_kernel(device, tape, op),
            .residency = residency_text(tape, op, device),
            .reason = plan->reason ? plan->reason : "",
        };
    }
}

/* Of the tape of a full chunk, as the active arm runs it. */
fm_status fm__report_placements(fm_engine *engine, fm_error *error) {
    fm__bucket *b = &engine->buckets[engine->n_bucket - 1];
    fm_arm arm = fm__choose_active(engine, b);
    fm_status status = fm__arms_plan(engine, b, arm, error);
    if (status != FM_OK)
        return status;
    const fm__way *way = &b->ways[arm];
    size_t n = 0;
    for (uint32_t i = 0; i < b->tape->n_op; i++)
        n += way->plan->ops[i].n_range;
    fm__free(engine->placements);
    fm__free(engine->placement_text);
    engine->n_placement = 0;
    engine->placements = fm__alloc_array(n, sizeof(fm_placement));
    engine->placement_text = fm__alloc_array(b->tape->n_op, PLACEMENT_TEXT);
    if (!engine->placements || !engine->placement_text)
        return fm__error_memory(error, "placement report", n * sizeof(fm_placement));
    for (uint32_t i = 0; i < b->tape->n_op; i++)
        place_op(engine, b->tape, way, i);
    engine->placed = arm;
    engine->placed_epoch = engine->epoch;
    return FM_OK;
}

size_t fm_engine_placement_count(const fm_engine *engine) {
    fm_engine *e = (fm_engine *)(uintptr_t)engine; /* the report is no part of what it computes */
    pthread_mutex_lock(&e->lock);
    const fm__bucket *b = &e->buckets[e->n_bucket - 1];
    if (e->n_unit > 0 && (e->placed != fm__choose_active(e, b) || e->placed_epoch != e->epoch) &&
        fm__report_placements(e, NULL) != FM_OK)
        e->n_placement = 0;
    size_t n = e->n_placement;
    pthread_mutex_unlock(&e->lock);
    return n;
}

fm_status fm_engine_placement(const fm_engine *engine, size_t index, fm_placement *out,
                              fm_error *error) {
    if (index >= engine->n_placement)
        return fm__error(error, FM_ERROR_ARGUMENT, "placement", "index %zu, there are %zu", index,
                         engine->n_placement);
    *out = engine->placements[index];
    return FM_OK;
}

/* ---- plans ---- */

static fm__bucket *bucket_for(fm_engine *engine, uint32_t rows) {
    for (uint32_t i = 0; i < engine->n_bucket; i++) {
        if (engine->buckets[i].tape->max_rows >= rows)
            return &engine->buckets[i];
    }
    return &engine->buckets[engine->n_bucket - 1];
}

static fm_status explain(fm_engine *engine, uint32_t rows, fm_arm arm, bool json, fm__buf *out,
                         fm_error *error) {
    fm__bucket *bucket = bucket_for(engine, rows);
    fm_status status = fm__arms_check(engine, arm, error);
    if (status == FM_OK && engine->n_unit == 0)
        status = fm__error(error, FM_ERROR_DEVICE, "engine", "every unit was lost");
    if (status != FM_OK)
        return status;
    if (arm == FM_ARM_AUTO)
        arm = fm__choose_active(engine, bucket);
    status = fm__arms_plan(engine, bucket, arm, error);
    if (status != FM_OK)
        return status;
    const fm__way *way = &bucket->ways[arm];
    if (json) {
        fm__buf_printf(out, "{\"arm\":\"%s\",\"rows\":%u,\"plan\":", fm_arm_name(arm),
                       bucket->tape->max_rows);
        fm__plan_json(way->plan, bucket->tape, way->units, out);
        fm__buf_printf(out, "}");
    } else {
        fm__buf_printf(out, "arm %s, for up to %u row%s\n", fm_arm_name(arm),
                       bucket->tape->max_rows, bucket->tape->max_rows == 1 ? "" : "s");
        fm__plan_print(way->plan, bucket->tape, way->units, out);
    }
    return out->failed ? fm__error_memory(error, "plan", out->bytes) : FM_OK;
}

fm_status fm_engine_explain(fm_engine *engine, uint32_t rows, fm_arm arm, int json, char **out,
                            fm_error *error) {
    fm__buf text = {0};
    pthread_mutex_lock(&engine->lock);
    fm_status status = explain(engine, rows, arm, json != 0, &text, error);
    pthread_mutex_unlock(&engine->lock);
    if (status != FM_OK)
        fm__buf_finish(&text);
    else
        *out = text.data;
    return status;
}

/* ---- the model ---- */

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

void fm__report_info(fm_engine *engine) {
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
    info->cache_type = engine->options.cache_type;
    info->model_context_length = h->context_length;
    info->parameters = model->parameters;
    info->decode_bytes = model->decode_bytes;
}

_Static_assert(FM_CACHE_F16 == (int)FM__CACHE_F16 && FM_CACHE_Q8_0 == (int)FM__CACHE_Q8_0,
               "types of caches in one order");

const char *fm_cache_type_name(fm_cache_type type) {
    return fm__cache_type_name((fm__cache_type)type);
}

void fm_engine_get_info(const fm_engine *engine, fm_engine_info *out) {
    *out = engine->info;
}
