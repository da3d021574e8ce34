/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz/fuzz_text_gguf.c: any bytes as a GGUF file with a vocabulary: an error, or a tokenizer whose
 * every token can be read and that encodes and decodes.
 */
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile unsigned consumed; /* keeps the reads */

static void read_tokens(const fm_tokenizer *t) {
    unsigned sum = 0;
    for (size_t i = 0; i < fm_tokenizer_vocab_size(t); i++) {
        const char *shown = fm_tokenizer_token(t, (int32_t)i);
        fm__str raw = fm__tokenizer_bytes(t, (int32_t)i);
        for (size_t k = 0; k < raw.bytes; k++)
            sum += (unsigned char)raw.data[k];
        sum += (unsigned)strlen(shown) + (unsigned)fm_tokenizer_is_end(t, (int32_t)i);
        for (size_t at = 0, n = strlen(shown); at < n;) {
            int length = fm__utf8_next(shown + at, n - at, NULL);
            if (length <= 0)
                __builtin_trap();
            at += (size_t)length;
        }
    }
    consumed = sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char text[] = " The cat's 123 <s>a b\n\ne\xcc\x81\xff\xe6\xad 中\0xaaaaaaab";
    fm__checkpoint *c = NULL;
    fm_tokenizer *t = NULL;
    fm_error error;
    if (fm__checkpoint_open_memory(&c, data, bytes, "fuzz", &error) != FM_OK)
        return 0;
    if (fm__tokenizer_from_checkpoint(&t, c, &error) == FM_OK && t) {
        read_tokens(t);
        for (unsigned flags = 0; flags < 4; flags++) {
            int32_t *ids = NULL;
            char *decoded = NULL;
            size_t n = 0, decoded_bytes = 0;
            if (fm_tokenizer_encode(t, text, sizeof text - 1, flags, &ids, &n, &error) == FM_OK &&
                fm_tokenizer_decode(t, ids, n, 1, &decoded, &decoded_bytes, &error) != FM_OK)
                __builtin_trap();
            fm_free(decoded);
            fm_free(ids);
        }
    }
    fm_tokenizer_destroy(&t);
    fm__checkpoint_close(&c);
    return 0;
}
