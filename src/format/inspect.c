/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/inspect.c: the public listing of what a model file holds.
 *
 * Owns: the listing's names and types; the checkpoint behind it. Never does: load a tensor. Called
 * from: one thread at a time. A Hugging Face folder's keys are config.json's, with dots between the
 * levels.
 */
#include <string.h>

#include <jansson.h>

#include "format/format.h"
#include "fusionml/checkpoint.h"

enum { SHOWN_ELEMENTS = 16, LEVELS = 8 };

typedef struct entry {
    const char *name, *type; /* in the arena */
    const fm__kv *kv;        /* one of the two */
    json_t *json;            /* owned by root */
} entry;

struct fm_checkpoint {
    fm__checkpoint *inner;
    entry *entries;
    size_t n_entries, capacity;
    json_t *root; /* config.json, or NULL */
    fm__arena arena;
};

/* ---- making the list ---- */

static fm_status add_entry(fm_checkpoint *c, entry added, const char *type, fm_error *error) {
    if (c->n_entries == c->capacity) {
        size_t capacity = c->capacity == 0 ? 32 : 2 * c->capacity;
        entry *grown = fm__realloc(c->entries, capacity * sizeof *grown);
        if (!grown)
            return fm__error_memory(error, c->inner->path, capacity * sizeof *grown);
        c->entries = grown;
        c->capacity = capacity;
    }
    added.type = fm__arena_copy(&c->arena, type, strlen(type));
    if (!added.type || !added.name)
        return fm__error_memory(error, c->inner->path, strlen(type));
    c->entries[c->n_entries++] = added;
    return FM_OK;
}

static const char *type_of_json(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_STRING:
        return "string";
    case JSON_INTEGER:
        return "i64";
    case JSON_REAL:
        return "f64";
    case JSON_TRUE:
    case JSON_FALSE:
        return "bool";
    case JSON_NULL:
        return "null";
    case JSON_ARRAY:
        return "array";
    default:
        return "object";
    }
}

static fm_status add_json(fm_checkpoint *c, fm__str name, json_t *value, fm_error *error) {
    char type[64];
    snprintf(type, sizeof type, "%s", type_of_json(value));
    if (json_is_array(value)) {
        const json_t *first = json_array_get(value, 0);
        snprintf(type, sizeof type, "array of %s [%zu]", first ? type_of_json(first) : "null",
                 json_array_size(value));
    }
    entry added = {.name = fm__arena_copy(&c->arena, name.data, name.bytes), .json = value};
    return add_entry(c, added, type, error);
}

/* Objects inside objects become dotted names; below LEVELS, and empty ones, they are values. */
static fm_status add_object(fm_checkpoint *c, fm__buf *prefix, json_t *object, int level,
                            fm_error *error) {
    const char *key;
    json_t *value;
    size_t stem = prefix->bytes;
    fm_status status = FM_OK;
    json_object_foreach(object, key, value) {
        fm__sink sink;
        char shown[256]; /* keys may hold what a terminal should not get */
        sink = fm__sink_of(shown, sizeof shown);
        fm__sink_string(&sink, fm__str_of(key), false);
        prefix->bytes = stem;
        if (!fm__buf_printf(prefix, stem > 0 ? ".%s" : "%s", shown))
            return fm__error_memory(error, c->inner->path, sizeof shown);
        if (json_is_object(value) && json_object_size(value) > 0 && level < LEVELS)
            status = add_object(c, prefix, value, level + 1, error);
        else
            status = add_json(c, (fm__str){prefix->data, prefix->bytes}, value, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

static fm_status list_config(fm_checkpoint *c, fm_error *error) {
    char path[1280];
    fm__buf prefix = {0};
    if (!fm__path_join(c->inner->path, "config.json", path, sizeof path))
        memcpy(path, "config.json", sizeof "config.json");
    fm_status status =
        fm__format_json(&c->root, c->inner->config, c->inner->config_bytes, 0, path, error);
    if (status == FM_OK)
        status = add_object(c, &prefix, c->root, 0, error);
    fm__buf_finish(&prefix);
    return status;
}

static fm_status list_kvs(fm_checkpoint *c, fm_error *error) {
    fm_status status = FM_OK;
    for (size_t i = 0; status == FM_OK && i < c->inner->n_kvs; i++) {
        char type[64];
        const fm__kv *kv = &c->inner->kvs[i];
        fm__kv_type_text(kv, type, sizeof type);
        status = add_entry(c, (entry){.name = kv->key.data, .kv = kv}, type, error);
    }
    return status;
}

fm_status fm_checkpoint_open(fm_checkpoint **out, const char *path, fm_error *error) {
    *out = NULL;
    fm_checkpoint *c = fm__alloc_zero(sizeof *c);
    if (!c)
        return fm__error_memory(error, path, sizeof *c);
    fm__arena_init(&c->arena, 4096);
    fm_status status = fm__checkpoint_open(&c->inner, path, error);
    if (status == FM_OK)
        status = c->inner->config ? list_config(c, error) : list_kvs(c, error);
    if (status != FM_OK)
        fm_checkpoint_close(&c);
    else
        *out = c;
    return status;
}

void fm_checkpoint_close(fm_checkpoint **checkpoint) {
    if (checkpoint == NULL || *checkpoint == NULL)
        return;
    fm_checkpoint *c = *checkpoint;
    *checkpoint = NULL;
    fm__free(c->entries);
    json_decref(c->root);
    fm__arena_finish(&c->arena);
    fm__checkpoint_close(&c->inner);
    fm__free(c);
}

/* ---- reading it ---- */

const char *fm_checkpoint_format(const fm_checkpoint *checkpoint) {
    return checkpoint->inner->format;
}

size_t fm_checkpoint_key_count(const fm_checkpoint *checkpoint) {
    return checkpoint->n_entries;
}

const char *fm_checkpoint_key_name(const fm_checkpoint *checkpoint, size_t index) {
    return index < checkpoint->n_entries ? checkpoint->entries[index].name : NULL;
}

const char *fm_checkpoint_key_type(const fm_checkpoint *checkpoint, size_t index) {
    return index < checkpoint->n_entries ? checkpoint->entries[index].type : NULL;
}

static void sink_json(fm__sink *sink, const json_t *value) {
    char text[1024];
    if (json_is_string(value)) {
        fm__sink_string(sink, (fm__str){json_string_value(value), json_string_length(value)}, true);
        return;
    }
    size_t bytes = json_dumpb(value, text, sizeof text, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (bytes > 0 && bytes <= sizeof text)
        fm__sink_string(sink, (fm__str){text, bytes}, false);
    else
        fm__sink_text(sink, "...", 3);
}

static size_t json_value_text(const json_t *value, char *out, size_t capacity) {
    fm__sink sink = fm__sink_of(out, capacity);
    if (json_is_string(value)) {
        fm__sink_string(&sink, (fm__str){json_string_value(value), json_string_length(value)},
                        false);
        return sink.total;
    }
    if (!json_is_array(value)) {
        sink_json(&sink, value);
        return sink.total;
    }
    size_t n = json_array_size(value);
    fm__sink_text(&sink, "[", 1);
    for (size_t i = 0; i < n && i < SHOWN_ELEMENTS; i++) {
        if (i > 0)
            fm__sink_text(&sink, ", ", 2);
        sink_json(&sink, json_array_get(value, i));
    }
    fm__sink_text(&sink, n > SHOWN_ELEMENTS ? ", ..." : "]", n > SHOWN_ELEMENTS ? 5 : 1);
    return sink.total;
}

size_t fm_checkpoint_key_value(const fm_checkpoint *checkpoint, size_t index, char *out,
                               size_t capacity) {
    if (index >= checkpoint->n_entries) {
        if (capacity > 0)
            out[0] = '\0';
        return 0;
    }
    const entry *e = &checkpoint->entries[index];
    return e->kv ? fm__kv_value_text(e->kv, out, capacity)
                 : json_value_text(e->json, out, capacity);
}

size_t fm_checkpoint_tensor_count(const fm_checkpoint *checkpoint) {
    return checkpoint->inner->n_tensors;
}

fm_status fm_checkpoint_tensor(const fm_checkpoint *checkpoint, size_t index, fm_tensor_info *out,
                               fm_error *error) {
    if (index >= checkpoint->inner->n_tensors)
        return fm__error(error, FM_ERROR_ARGUMENT, checkpoint->inner->path,
                         "tensor %zu of %zu was asked for", index, checkpoint->inner->n_tensors);
    const fm__tensor_info *info = &checkpoint->inner->tensors[index];
    *out = (fm_tensor_info){.name = info->name.data,
                            .type = fm__dtype_get((uint32_t)info->dtype)->name,
                            .n_dims = info->n_dims,
                            .bytes = info->bytes,
                            .file_offset = info->file_offset,
                            .file_index = info->file_index};
    memcpy(out->dims, info->dims, sizeof out->dims);
    return FM_OK;
}
