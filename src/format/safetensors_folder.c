/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/safetensors_folder.c: a Hugging Face folder: its texts, and its one or many safetensors.
 *
 * Owns: nothing; mappings and texts go into a checkpoint. Never does: follow a name that leaves the
 * folder. Called from: the loading thread.
 */
#include <dirent.h>
#include <string.h>

#include <jansson.h>

#include "format/format.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

enum {
    PATH_BYTES = 1280, /* a folder and a file name of up to 255 bytes */
    CONFIG_LIMIT = 16 << 20,
    TOKENIZER_LIMIT = 256 << 20,
    INDEX_LIMIT = 64 << 20,
};

static const fm__str none = {"", 0};

/* ---- the index ---- */

void fm__shard_index_finish(fm__shard_index *index) {
    fm__free(index->shards);
    fm__free(index->tensors);
    fm__free(index->shard_of);
    fm__arena_finish(&index->arena);
    *index = (fm__shard_index){0};
}

/* NULL, or why a shard may not be called so: it must be a plain file of this folder. */
static const char *shard_fault(fm__str name) {
    const char *fault = fm__name_fault(name);
    if (fault)
        return fault;
    if (name.bytes > 255)
        return "the name is longer than 255 bytes";
    if (memchr(name.data, '/', name.bytes) || memchr(name.data, '\\', name.bytes))
        return "the name leaves the folder";
    if (name.data[0] == '.')
        return "the name begins with a dot";
    if (!fm__str_ends(name, ".safetensors"))
        return "the name does not end in .safetensors";
    return NULL;
}

static fm_status index_tensor(fm__shard_index *out, fm__map *shards, fm__str name,
                              const json_t *value, const char *path, fm_error *error) {
    char shown[80];
    uint32_t shard = (uint32_t)out->n_shards;
    if (!json_is_string(value))
        return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", name,
                                "its file is not a string");
    fm__str file = {json_string_value(value), json_string_length(value)};
    const char *fault = shard_fault(file);
    if (fault)
        return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", name, "file \"%s\": %s",
                                fm__format_escape(file, shown, sizeof shown), fault);
    char *tensor_copy = fm__arena_copy(&out->arena, name.data, name.bytes);
    if (!tensor_copy)
        return fm__error_memory(error, path, name.bytes);
    if (!fm__map_get(shards, file, &shard)) {
        char *copy = fm__arena_copy(&out->arena, file.data, file.bytes);
        if (!copy || !fm__map_put(shards, (fm__str){copy, file.bytes}, shard, NULL))
            return fm__error_memory(error, path, file.bytes);
        out->shards[out->n_shards++] = (fm__str){copy, file.bytes};
    }
    out->tensors[out->n_tensors] = (fm__str){tensor_copy, name.bytes};
    out->shard_of[out->n_tensors++] = shard;
    return FM_OK;
}

static fm_status index_tensors(fm__shard_index *out, const json_t *weight_map, const char *path,
                               fm_error *error) {
    fm__map shards = {0};
    const char *key;
    json_t *value;
    size_t n = json_object_size(weight_map);
    fm_status status = FM_OK;
    out->shards = fm__alloc_array(n, sizeof *out->shards);
    out->tensors = fm__alloc_array(n, sizeof *out->tensors);
    out->shard_of = fm__alloc_array(n, sizeof *out->shard_of);
    if (!out->shards || !out->tensors || !out->shard_of || !fm__map_init(&shards, 0))
        return fm__error_memory(error, path, n * sizeof *out->tensors);
    json_object_foreach((json_t *)weight_map, key, value) {
        status = index_tensor(out, &shards, fm__str_of(key), value, path, error);
        if (status != FM_OK)
            break;
    }
    fm__map_finish(&shards);
    return status;
}

fm_status fm__shard_index_parse(fm__shard_index *out, const char *json, size_t bytes,
                                const char *path, fm_error *error) {
    json_t *root = NULL;
    *out = (fm__shard_index){0};
    fm__arena_init(&out->arena, 16 * 1024);
    fm_status status = fm__format_json(&root, json, bytes, 0, path, error);
    if (status != FM_OK)
        return status;
    const json_t *weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        status = fm__format_error(error, FM_ERROR_FORMAT, path, NULL, none,
                                  "has no weight_map with tensors in it");
    else
        status = index_tensors(out, weight_map, path, error);
    json_decref(root);
    if (status != FM_OK)
        fm__shard_index_finish(out);
    return status;
}

static fm_status read_index(fm__shard_index *out, const char *path, fm_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    fm_status status = fm__file_read(path, INDEX_LIMIT, &text, &bytes, error);
    if (status == FM_OK)
        status = fm__shard_index_parse(out, text, bytes, path, error);
    fm__free(text);
    return status;
}

/* ---- the folder ---- */

static fm_status join(const char *folder, const char *name, char out[PATH_BYTES], fm_error *error) {
    if (fm__path_join(folder, name, out, PATH_BYTES))
        return FM_OK;
    return fm__format_error(error, FM_ERROR_ARGUMENT, folder, NULL, none, "the path is too long");
}

/* A text of the folder; *text stays NULL where an optional one is not there. */
static fm_status read_text(const fm__checkpoint *c, const char *name, bool required, size_t limit,
                           char **text, size_t *bytes, fm_error *error) {
    char path[PATH_BYTES];
    fm_status status = join(c->path, name, path, error);
    if (status != FM_OK || (!required && !fm__path_exists(path)))
        return status;
    return fm__file_read(path, limit, text, bytes, error);
}

static fm_status read_texts(fm__checkpoint *c, fm_error *error) {
    fm_status status =
        read_text(c, "config.json", true, CONFIG_LIMIT, &c->config, &c->config_bytes, error);
    if (status == FM_OK)
        status = read_text(c, "tokenizer.json", false, TOKENIZER_LIMIT, &c->tokenizer,
                           &c->tokenizer_bytes, error);
    if (status == FM_OK)
        status = read_text(c, "tokenizer_config.json", false, CONFIG_LIMIT, &c->tokenizer_config,
                           &c->tokenizer_config_bytes, error);
    if (status == FM_OK)
        status = read_text(c, "generation_config.json", false, CONFIG_LIMIT, &c->generation_config,
                           &c->generation_config_bytes, error);
    return status;
}

static fm_status read_file(fm__checkpoint *c, const char *path, fm_error *error) {
    fm__mapping mapping = {0};
    uint32_t index = (uint32_t)c->n_files;
    fm_status status = fm__mapping_open(&mapping, path, error);
    if (status != FM_OK)
        return status;
    const uint8_t *data = mapping.data;
    size_t bytes = mapping.bytes;
    status = fm__checkpoint_take_file(c, &mapping, error);
    if (status != FM_OK)
        return status;
    /* A pointer or web page under the right name deserves its own message. */
    if (bytes == 0 || (bytes >= 10 && !fm__foreign_is_safetensors(data, bytes)))
        return fm__foreign_error(data, bytes, path, error);
    return fm__safetensors_parse(c, data, bytes, index, path, error);
}

static fm_status read_shards(fm__checkpoint *c, const fm__shard_index *index, fm_error *error) {
    char path[PATH_BYTES], shown[200];
    for (size_t i = 0; i < index->n_shards; i++) {
        fm_status status = join(c->path, index->shards[i].data, path, error);
        if (status != FM_OK)
            return status;
        if (!fm__path_exists(path))
            return fm__format_error(error, FM_ERROR_IO, c->path, NULL, none,
                                    "file %zu of %zu that " INDEX_NAME " names is missing: %s",
                                    i + 1, index->n_shards,
                                    fm__format_escape(index->shards[i], shown, sizeof shown));
        status = read_file(c, path, error);
        if (status != FM_OK)
            return status;
    }
    return FM_OK;
}

static fm_status check_index(const fm__checkpoint *c, const fm__shard_index *index,
                             fm_error *error) {
    char shown[200];
    for (size_t i = 0; i < index->n_tensors; i++) {
        const fm__tensor_info *info = fm__checkpoint_find(c, index->tensors[i].data);
        if (info == NULL || info->file_index != index->shard_of[i])
            return fm__format_error(
                error, FM_ERROR_FORMAT, c->path, "tensor", index->tensors[i],
                "is not in %s, where " INDEX_NAME " says it is",
                fm__format_escape(index->shards[index->shard_of[i]], shown, sizeof shown));
    }
    return FM_OK;
}

static fm_status open_sharded(fm__checkpoint *c, const char *index_path, fm_error *error) {
    fm__shard_index index;
    fm_status status = read_index(&index, index_path, error);
    if (status != FM_OK)
        return status;
    status = read_shards(c, &index, error);
    if (status == FM_OK)
        status = check_index(c, &index, error);
    fm__shard_index_finish(&index);
    return status;
}

/* The folder holds no weights of ours: says what it holds instead. */
static fm_status no_weights(const char *folder, fm_error *error) {
    char found[200] = "";
    const char *advice = "";
    DIR *stream = opendir(folder);
    for (struct dirent *entry; stream && (entry = readdir(stream)) != NULL;) {
        fm__str name = fm__str_of(entry->d_name);
        bool pickle =
            fm__str_ends(name, ".bin") || fm__str_ends(name, ".pt") || fm__str_ends(name, ".pth");
        bool gguf = fm__str_ends(name, ".gguf");
        if (!gguf && (!pickle || found[0]))
            continue;
        advice = gguf ? "; open this file itself: " : "; a pickled checkpoint is not read: ";
        fm__format_escape(name, found, sizeof found);
        if (gguf)
            break;
    }
    if (stream)
        closedir(stream);
    return fm__format_error(error, FM_ERROR_FORMAT, folder, NULL, none,
                            "the folder holds neither " SINGLE_NAME " nor " INDEX_NAME "%s%s",
                            advice, found);
}

static fm_status fill_folder(fm__checkpoint *c, fm_error *error) {
    char single[PATH_BYTES], sharded[PATH_BYTES];
    fm_status status = join(c->path, SINGLE_NAME, single, error);
    if (status == FM_OK)
        status = join(c->path, INDEX_NAME, sharded, error);
    if (status != FM_OK)
        return status;
    bool whole = fm__path_exists(single);
    if (!whole && !fm__path_exists(sharded))
        return no_weights(c->path, error);
    status = read_texts(c, error);
    if (status != FM_OK)
        return status;
    return whole ? read_file(c, single, error) : open_sharded(c, sharded, error);
}

fm_status fm__safetensors_open_folder(fm__checkpoint **out, const char *path, fm_error *error) {
    fm__checkpoint *c = NULL;
    *out = NULL;
    fm_status status = fm__checkpoint_create(&c, FM__CHECKPOINT_SAFETENSORS, path, error);
    if (status != FM_OK)
        return status;
    status = fill_folder(c, error);
    if (status != FM_OK)
        fm__checkpoint_close(&c);
    else
        *out = c;
    return status;
}

/* ---- a file of the folder ---- */

/* Whether the folder's model is made of this file: true for the single file, and for a shard. */
static bool is_part(const char *folder, const char *name) {
    char path[PATH_BYTES];
    fm__shard_index index;
    bool found = false;
    if (strcmp(name, SINGLE_NAME) == 0)
        return true;
    if (!fm__path_join(folder, SINGLE_NAME, path, sizeof path) || fm__path_exists(path))
        return false;
    if (!fm__path_join(folder, INDEX_NAME, path, sizeof path) || !fm__path_exists(path) ||
        read_index(&index, path, NULL) != FM_OK)
        return false;
    for (size_t i = 0; i < index.n_shards && !found; i++)
        found = fm__str_is(index.shards[i], name);
    fm__shard_index_finish(&index);
    return found;
}

fm_status fm__safetensors_open_file(fm__checkpoint **out, const char *path, fm_error *error) {
    char folder[PATH_BYTES], config[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    size_t bytes = slash ? (size_t)(slash - path) : 0;
    if (bytes + 2 > sizeof folder)
        return fm__format_error(error, FM_ERROR_ARGUMENT, path, NULL, none, "the path is too long");
    memcpy(folder, path, bytes);
    folder[bytes] = '\0';
    if (bytes == 0)
        memcpy(folder, slash ? "/" : ".", 2);
    if (!fm__path_join(folder, "config.json", config, sizeof config) || !fm__path_exists(config) ||
        !is_part(folder, slash ? slash + 1 : path))
        return fm__format_error(
            error, FM_ERROR_UNSUPPORTED, path, NULL, none,
            "a safetensors file by itself is no model: open a folder that holds "
            "config.json and " SINGLE_NAME " or " INDEX_NAME);
    return fm__safetensors_open_folder(out, folder, error);
}
