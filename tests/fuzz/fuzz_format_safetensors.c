/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz/fuzz_format_safetensors.c: any bytes as a safetensors image, and as an index of shards: an
 * error, or tensors whose every byte can be read.
 */
#include <string.h>

#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile uint8_t consumed; /* keeps the reads */

static void parse_image(const uint8_t *data, size_t bytes) {
    fm__checkpoint *c = NULL;
    fm_error error;
    uint8_t sum = 0;
    uint64_t total = 0;
    if (fm__checkpoint_create(&c, FM__CHECKPOINT_SAFETENSORS, "fuzz", &error) != FM_OK)
        return;
    if (fm__safetensors_parse(c, data, bytes, 0, "fuzz", &error) == FM_OK) {
        for (size_t i = 0; i < c->n_tensors; i++) {
            const fm__tensor_info *info = &c->tensors[i];
            total += info->bytes;
            if (fm__checkpoint_find(c, info->name.data) != info)
                __builtin_trap();
            for (uint64_t j = 0; j < info->bytes; j++)
                sum = (uint8_t)(sum + info->data[j]);
        }
        /* Without holes and overlaps the data is the whole rest of the file. */
        if (total != bytes - 8 - fm__load_le(data, 8))
            __builtin_trap();
    }
    consumed = sum;
    fm__checkpoint_close(&c);
}

static void parse_index(const uint8_t *data, size_t bytes) {
    fm__shard_index index;
    fm_error error;
    if (fm__shard_index_parse(&index, (const char *)data, bytes, "fuzz", &error) != FM_OK)
        return;
    for (size_t i = 0; i < index.n_tensors; i++) {
        fm__str file = index.shards[index.shard_of[i]];
        if (memchr(file.data, '/', file.bytes) || file.data[0] == '.')
            __builtin_trap();
    }
    fm__shard_index_finish(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > 0 && data[0] == '{')
        parse_index(data, bytes);
    else
        parse_image(data, bytes);
    return 0;
}
