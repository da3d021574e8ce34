/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz/fuzz_format_gguf.c: any bytes as a GGUF image: an error, or a directory whose every name,
 * value and tensor byte can be read.
 */
#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile double consumed; /* keeps the reads */

static void read_value(const fm__kv *kv) {
    char text[256];
    fm__str string;
    size_t cursor = 0;
    uint64_t strings = 0;
    double sum = 0;
    fm__kv_type_text(kv, text, sizeof text);
    fm__kv_value_text(kv, text, sizeof text);
    while (fm__kv_next_string(kv, &cursor, &string))
        strings++;
    if (kv->type == FM__KV_ARRAY && kv->element == FM__KV_STRING && strings != kv->count)
        __builtin_trap();
    for (uint64_t i = 0; kv->type == FM__KV_ARRAY && i < kv->count && i < 4096; i++)
        sum += fm__kv_element(kv, i);
    consumed = sum;
}

static void read_typed(const fm__checkpoint *c, const char *key) {
    uint64_t u64 = 0;
    uint32_t u32 = 0;
    float f32 = 0;
    bool truth = false;
    fm__str string;
    fm_error error;
    fm__kv_read_u64(c, key, true, &u64, &error);
    fm__kv_read_u32(c, key, true, &u32, &error);
    fm__kv_read_f32(c, key, true, &f32, &error);
    fm__kv_read_bool(c, key, true, &truth, &error);
    fm__kv_read_str(c, key, true, &string, &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    fm__checkpoint *c = NULL;
    fm_error error;
    uint8_t sum = 0;
    if (fm__checkpoint_open_memory(&c, data, bytes, "fuzz", &error) != FM_OK)
        return 0;
    for (size_t i = 0; i < c->n_kvs; i++) {
        if (fm__checkpoint_kv(c, c->kvs[i].key.data) != &c->kvs[i])
            __builtin_trap();
        read_value(&c->kvs[i]);
        read_typed(c, c->kvs[i].key.data);
    }
    for (size_t i = 0; i < c->n_tensors; i++) {
        const fm__tensor_info *info = &c->tensors[i];
        if (fm__checkpoint_find(c, info->name.data) != info || info->bytes == 0 ||
            info->file_offset + info->bytes > bytes)
            __builtin_trap();
        for (uint64_t j = 0; j < info->bytes; j++)
            sum = (uint8_t)(sum + info->data[j]);
    }
    consumed = sum;
    fm__checkpoint_close(&c);
    return 0;
}
