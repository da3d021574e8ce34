/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c: `fusionml inspect`: what a model file holds and what running it would take. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { VALUE_BYTES = 200 };

/* The width of a column that holds the text, too; not more than 64. */
static int wider(int width, const char *text) {
    size_t bytes = strlen(text);
    return bytes <= (size_t)width ? width : bytes < 64 ? (int)bytes : 64;
}

static void print_keys(const fm_checkpoint *checkpoint) {
    size_t n = fm_checkpoint_key_count(checkpoint);
    char value[VALUE_BYTES];
    int width = 0;
    for (size_t i = 0; i < n; i++)
        width = wider(width, fm_checkpoint_key_name(checkpoint, i));
    printf("%zu key%s\n", n, cli_plural(n));
    for (size_t i = 0; i < n; i++) {
        size_t whole = fm_checkpoint_key_value(checkpoint, i, value, sizeof value);
        printf("  %-*s %-26s %s%s\n", width, fm_checkpoint_key_name(checkpoint, i),
               fm_checkpoint_key_type(checkpoint, i), value, whole >= sizeof value ? "..." : "");
    }
}

static void shape_text(const fm_tensor_info *t, char *out, size_t capacity) {
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t d = 0; d < t->n_dims && used < capacity; d++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%" PRIu64, d > 0 ? " x " : "",
                                 t->dims[d]);
}

static void print_tensors(const fm_checkpoint *checkpoint) {
    size_t n = fm_checkpoint_tensor_count(checkpoint);
    uint64_t total = 0;
    fm_tensor_info t;
    char shape[96], bytes[32];
    int width = 0;
    for (size_t i = 0; i < n; i++)
        if (fm_checkpoint_tensor(checkpoint, i, &t, NULL) == FM_OK)
            width = wider(width, t.name);
    printf("%zu tensor%s (first dimension varies fastest)\n", n, cli_plural(n));
    for (size_t i = 0; i < n; i++) {
        if (fm_checkpoint_tensor(checkpoint, i, &t, NULL) != FM_OK)
            continue;
        shape_text(&t, shape, sizeof shape);
        cli_bytes_text(t.bytes, bytes, sizeof bytes);
        printf("  %-*s %-8s %-22s %11s  file %u at %" PRIu64 "\n", width, t.name, t.type, shape,
               bytes, t.file_index, t.file_offset);
        total += t.bytes;
    }
    cli_bytes_text(total, bytes, sizeof bytes);
    printf("  %s in all\n", bytes);
}

static void print_need(const fm_engine_info *info) {
    char weights[32], mapped[32], cache[32], scratch[32], all[32];
    cli_bytes_text(info->weight_bytes, weights, sizeof weights);
    cli_bytes_text(info->mapped_bytes, mapped, sizeof mapped);
    cli_bytes_text(info->cache_bytes, cache, sizeof cache);
    cli_bytes_text(info->scratch_bytes, scratch, sizeof scratch);
    cli_bytes_text(info->weight_bytes + info->cache_bytes + info->scratch_bytes, all, sizeof all);
    printf("%s, %" PRIu64 " parameters, %s\n", info->architecture, info->parameters,
           info->weight_types);
    printf("memory needed for a context of %u tokens (the model's is %u): %s\n",
           info->context_length, info->model_context_length, all);
    printf("  packed weights %s, %s cache %s, scratch %s; %s more stay mapped in the file\n",
           weights, fm_cache_type_name(info->cache_type), cache, scratch, mapped);
}

static int print_json(const fm_checkpoint *checkpoint, const fm_engine_info *info,
                      const fm_error *refusal) {
    json_t *root = json_object(), *keys = json_array(), *tensors = json_array();
    char value[VALUE_BYTES];
    fm_tensor_info t;
    for (size_t i = 0; i < fm_checkpoint_key_count(checkpoint); i++) {
        size_t whole = fm_checkpoint_key_value(checkpoint, i, value, sizeof value);
        json_array_append_new(keys, json_pack("{s:s, s:s, s:s, s:b}", "key",
                                              fm_checkpoint_key_name(checkpoint, i), "type",
                                              fm_checkpoint_key_type(checkpoint, i), "value", value,
                                              "cut", whole >= sizeof value));
    }
    for (size_t i = 0; i < fm_checkpoint_tensor_count(checkpoint); i++) {
        if (fm_checkpoint_tensor(checkpoint, i, &t, NULL) != FM_OK)
            continue;
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t.n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t.dims[d]));
        json_array_append_new(
            tensors, json_pack("{s:s, s:s, s:o, s:I, s:I, s:I}", "name", t.name, "type", t.type,
                               "dims", shape, "bytes", (json_int_t)t.bytes, "file",
                               (json_int_t)t.file_index, "offset", (json_int_t)t.file_offset));
    }
    json_object_set_new(root, "format", json_string(fm_checkpoint_format(checkpoint)));
    json_object_set_new(root, "keys", keys);
    json_object_set_new(root, "tensors", tensors);
    if (refusal != NULL)
        json_object_set_new(root, "not_runnable", json_string(refusal->message));
    else
        json_object_set_new(
            root, "memory",
            json_pack("{s:I, s:I, s:I, s:s, s:I, s:I, s:I}", "weights",
                      (json_int_t)info->weight_bytes, "mapped", (json_int_t)info->mapped_bytes,
                      "cache", (json_int_t)info->cache_bytes, "cache_type",
                      fm_cache_type_name(info->cache_type), "scratch",
                      (json_int_t)info->scratch_bytes, "context", (json_int_t)info->context_length,
                      "parameters", (json_int_t)info->parameters));
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL)
        return cli_fail_text("out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

int cli_inspect(const cli_args *args) {
    fm_checkpoint *checkpoint = NULL;
    fm_engine_options options = fm_engine_options_default();
    fm_engine_info info;
    fm_error error = {0};
    int code = CLI_OK;
    const char *path = args->model != NULL ? args->model : args->positional[0];
    if (path == NULL) {
        cli_fail_text("-m MODEL is needed");
        return CLI_USAGE;
    }
    if (fm_checkpoint_open(&checkpoint, path, &error) != FM_OK)
        return cli_fail(&error);
    options.context_length = args->context;
    options.cache_type = (fm_cache_type)args->cache_type;
    bool runnable = fm_engine_measure(path, &options, &info, &error) == FM_OK;
    if (args->json) {
        code = print_json(checkpoint, &info, runnable ? NULL : &error);
    } else {
        bool all = !args->keys && !args->tensors;
        printf("%s: %s\n", path, fm_checkpoint_format(checkpoint));
        if (all || args->keys)
            print_keys(checkpoint);
        if (all || args->tensors)
            print_tensors(checkpoint);
        if (all && runnable)
            print_need(&info);
        else if (all)
            printf("cannot be run: %s%s%s\n", error.place, error.place[0] ? ": " : "",
                   error.message);
    }
    fm_checkpoint_close(&checkpoint);
    return code;
}
