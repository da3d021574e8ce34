/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The identity contract end to end: on a small model of every quantised type (and of float types in
 * the exact class) the logits of every row have the same bits for any rung, number of threads,
 * chunk size, batch mates, cached prefix, fork and restored snapshot.
 */
#include "model_test.h"

#include <unistd.h>

#include "cpu/cpu.h"

enum { N_TOKENS = 75 }; /* past a page of 64 */

static const char *const types[] = {
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "mxfp4",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "tq1_0",
    "tq2_0",
    "q4_k_m",
    "f16",
    "bf16",
    "f32",
    /* made by rewrite(): the types that nothing here encodes, and unlike types beside each other */
    "iq4_nl",
    "iq4_xs",
    "mixed",
};

enum { N_REWRITTEN = 3 };

enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

static char folder[] = "/tmp/fm_identity_XXXXXX";
static int32_t ids[N_TOKENS];

typedef struct fixture {
    fm_machine *machine;
    fm_engine *engine;
} fixture;

static void model_path(const char *type, char out[128]) {
    snprintf(out, 128, "%s/%s.gguf", folder, type);
}

static void open_fixture(fixture *f, const char *type, uint32_t threads, const char *rung,
                         uint32_t chunk) {
    fm_error error = {0};
    char path[128];
    model_path(type, path);
    fm_engine_options options = fm_engine_options_default();
    options.numeric_class = FM_CLASS_EXACT;
    options.chunk_rows = chunk;
    options.context_length = 256;
    options.cache_tokens = 1024;
    f->machine = test_machine(threads, rung);
    f->engine = NULL;
    CHECK_OK(fm_engine_load(&f->engine, f->machine, path, &options, &error));
}

static void close_fixture(fixture *f) {
    fm_engine_destroy(&f->engine);
    test_no_engine(f->machine);
    fm_machine_destroy(&f->machine);
}

static void same_bits(const float *a, const float *b, size_t n, const char *what,
                      const char *type) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s, %s: entry %zu is %.9g instead of %.9g", type, what, i, b[i], a[i]);
    }
}

static float *reference(const char *type, size_t *n_vocab) {
    fixture f;
    open_fixture(&f, type, 1, "ref", 128);
    *n_vocab = fm_engine_vocab_size(f.engine);
    float *logits = test_all_logits(f.engine, ids, N_TOKENS);
    close_fixture(&f);
    return logits;
}

static void threads_and_rungs(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        size_t n_vocab;
        float *want = reference(types[t], &n_vocab);
        for (const char *const *rung = fm__kernels_rungs(); *rung; rung++) {
            for (uint32_t threads = 1; threads <= 3; threads++) {
                if (threads == 2 && strcmp(*rung, "ref") == 0)
                    continue; /* slow, and 1 and 3 say as much */
                char what[64];
                snprintf(what, sizeof(what), "%s with %u threads", *rung, threads);
                fixture f;
                open_fixture(&f, types[t], threads, *rung, 128);
                float *got = test_all_logits(f.engine, ids, N_TOKENS);
                same_bits(want, got, n_vocab * N_TOKENS, what, types[t]);
                free(got);
                close_fixture(&f);
            }
        }
        free(want);
    }
}

static void chunks(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 3, 17, 64};
    for (int t = 0; t < N_TYPES; t++) {
        size_t n_vocab;
        float *want = reference(types[t], &n_vocab);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            char what[64];
            snprintf(what, sizeof(what), "chunks of %u", sizes[i]);
            fixture f;
            open_fixture(&f, types[t], 2, NULL, sizes[i]);
            float *got = test_all_logits(f.engine, ids, N_TOKENS);
            same_bits(want, got, n_vocab * N_TOKENS, what, types[t]);
            free(got);
            close_fixture(&f);
        }
        free(want);
    }
}

/* Every length of a cached prefix: prefill it, then the rest in one go or one by one. */
static void cached_prefix(void **state) {
    (void)state;
    static const char *const some[] = {"q4_k_m", "q8_0", "tq2_0", "bf16"};
    fm_error error = {0};
    for (int t = 0; t < 4; t++) {
        size_t n_vocab;
        float *want = reference(some[t], &n_vocab);
        const float *last = want + (N_TOKENS - 1) * n_vocab, *logits;
        fixture f;
        open_fixture(&f, some[t], 2, NULL, 32);
        fm_session *session = NULL;
        CHECK_OK(fm_session_create(&session, f.engine, NULL, &error));
        for (uint32_t prefix = 1; prefix < N_TOKENS; prefix++) {
            CHECK_OK(fm_session_truncate(session, prefix - 1, &error));
            CHECK_OK(fm_session_decode(session, ids[prefix - 1], &logits, &error));
            same_bits(want + (prefix - 1) * n_vocab, logits, n_vocab, "decode", some[t]);
            CHECK_OK(fm_session_prefill(session, ids + prefix, N_TOKENS - prefix, &logits, &error));
            same_bits(last, logits, n_vocab, "the rest behind a prefix", some[t]);
        }
        fm_session_destroy(&session);
        close_fixture(&f);
        free(want);
    }
}

/* Three sessions of different lengths in one batch, interleaved, against each alone. */
static void batch_mates(void **state) {
    (void)state;
    static const uint32_t lengths[3] = {5, 64, 70};
    fm_error error = {0};
    for (int t = 0; t < N_TYPES; t++) {
        size_t n_vocab;
        float *want = reference(types[t], &n_vocab);
        fixture f;
        open_fixture(&f, types[t], 2, NULL, 16);
        fm_session *sessions[3] = {0};
        fm_batch *batch = NULL;
        CHECK_OK(fm_batch_create(&batch, f.engine, 64, 64, &error));
        for (int s = 0; s < 3; s++) {
            CHECK_OK(fm_session_create(&sessions[s], f.engine, NULL, &error));
            CHECK_OK(fm_session_prefill(sessions[s], ids, lengths[s], NULL, &error));
        }
        for (uint32_t step = 0; step < 4; step++) {
            uint32_t rows[3];
            fm_batch_clear(batch);
            for (int s = 0; s < 3; s++)
                CHECK_OK(fm_batch_add(batch, sessions[s], ids[lengths[s] + step], FM_OUTPUT_LOGITS,
                                      &rows[s], &error));
            CHECK_OK(fm_engine_run(f.engine, batch, &error));
            for (int s = 0; s < 3; s++)
                same_bits(want + (lengths[s] + step) * n_vocab, fm_batch_output(batch, rows[s]),
                          n_vocab, "three sessions", types[t]);
        }
        fm_batch_destroy(&batch);
        for (int s = 0; s < 3; s++)
            fm_session_destroy(&sessions[s]);
        close_fixture(&f);
        free(want);
    }
}

/* A fork goes its own way without disturbing the other, and both agree where they say the same. */
static void forks_of(const char *type) {
    fm_error error = {0};
    size_t n_vocab;
    float *want = reference(type, &n_vocab);
    const float *logits;
    fixture f;
    open_fixture(&f, type, 2, NULL, 32);
    for (uint32_t at = 1; at < N_TOKENS - 3; at += 9) {
        fm_session *a = NULL, *b = NULL;
        CHECK_OK(fm_session_create(&a, f.engine, NULL, &error));
        CHECK_OK(fm_session_prefill(a, ids, at, NULL, &error));
        CHECK_OK(fm_session_fork(&b, a, &error));
        assert_int_equal(fm_session_length(b), at);
        /* By turns, so that one would see what the other wrote if they shared the page. */
        for (uint32_t i = 0; i < 3; i++) {
            CHECK_OK(fm_session_decode(a, ids[at + i], &logits, &error));
            same_bits(want + (at + i) * n_vocab, logits, n_vocab, "beside a fork", type);
            CHECK_OK(fm_session_decode(b, 7 + (int32_t)i, &logits, &error));
        }
        CHECK_OK(fm_session_truncate(b, at, &error));
        CHECK_OK(fm_session_decode(b, ids[at], &logits, &error));
        same_bits(want + at * n_vocab, logits, n_vocab, "the fork itself", type);
        fm_session_destroy(&a);
        CHECK_OK(fm_session_decode(b, ids[at + 1], &logits, &error));
        same_bits(want + (at + 1) * n_vocab, logits, n_vocab, "the fork alone", type);
        fm_session_destroy(&b);
    }
    close_fixture(&f);
    free(want);
}

static void forks(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++)
        forks_of(types[t]);
}

static void snapshots(void **state) {
    (void)state;
    fm_error error = {0};
    char path[128];
    snprintf(path, sizeof(path), "%s/session.snap", folder);
    for (int t = 0; t < N_TYPES; t++) {
        size_t n_vocab;
        float *want = reference(types[t], &n_vocab);
        const float *logits;
        for (uint32_t at = 1; at < N_TOKENS; at += 42) {
            fixture f;
            open_fixture(&f, types[t], 2, NULL, 32);
            fm_session *session = NULL;
            CHECK_OK(fm_session_create(&session, f.engine, NULL, &error));
            CHECK_OK(fm_session_prefill(session, ids, at, NULL, &error));
            CHECK_OK(fm_session_save(session, path, &error));
            fm_session_destroy(&session);
            close_fixture(&f);

            open_fixture(&f, types[t], 1, NULL, 8); /* another process' engine, so to speak */
            CHECK_OK(fm_session_create(&session, f.engine, NULL, &error));
            CHECK_OK(fm_session_restore(session, path, &error));
            assert_int_equal(fm_session_length(session), at);
            assert_memory_equal(fm_session_tokens(session), ids, at * sizeof(int32_t));
            CHECK_OK(fm_session_decode(session, ids[at], &logits, &error));
            same_bits(want + at * n_vocab, logits, n_vocab, "restored", types[t]);
            fm_session_destroy(&session);
            close_fixture(&f);
        }
        free(want);
    }
    unlink(path);
}

/* ---- models that synth does not write ---- */

static fm__dtype rewritten_type(const char *type, const fm__tensor_info *info) {
    if (info->dtype != FM__Q4_K)
        return info->dtype;
    if (strcmp(type, "iq4_nl") == 0)
        return FM__IQ4_NL;
    if (strcmp(type, "iq4_xs") == 0)
        return FM__IQ4_XS;
    /* mixed: gate and up want unlike activations, so do q and k */
    return strstr(info->name.data, "ffn_up") || strstr(info->name.data, "attn_k.") ? FM__IQ4_NL
                                                                                   : FM__Q4_K;
}

/* Blocks of random codes with small scales (IQ4_NL: f16 d, 16 bytes; IQ4_XS: f16 d, 134 bytes). */
static fm_status emit_random(void *user, size_t index, const fm__tensor_info *info,
                             fm__writer *writer, fm_error *error) {
    const fm__checkpoint *from = user;
    if (info->dtype == from->tensors[index].dtype)
        return fm__writer_write(writer, info->data, info->bytes, error);
    uint8_t block[136];
    size_t bytes = fm__dtype_get(info->dtype)->block_bytes;
    uint16_t d = fm__f32_to_f16(info->dtype == FM__IQ4_NL ? 0x1p-11f : 0x1p-14f);
    fm__random random;
    fm__random_seed(&random, index);
    fm_status status = FM_OK;
    for (uint64_t at = 0; at < info->bytes && status == FM_OK; at += bytes) {
        for (size_t i = 2; i < bytes; i++)
            block[i] = (uint8_t)fm__random_next(&random);
        memcpy(block, &d, 2);
        status = fm__writer_write(writer, block, bytes, error);
    }
    return status;
}

/* The q4_k model with other types in its Q4_K tensors. */
static fm_status rewrite(const char *type, fm_error *error) {
    char from_path[128], to_path[128];
    model_path("q4_k", from_path);
    model_path(type, to_path);
    fm__checkpoint *from = NULL;
    fm_status status = fm__checkpoint_open(&from, from_path, error);
    if (status != FM_OK)
        return status;
    fm__tensor_info *tensors = calloc(from->n_tensors, sizeof *tensors);
    for (size_t i = 0; i < from->n_tensors; i++) {
        tensors[i] = from->tensors[i];
        tensors[i].dtype = rewritten_type(type, &tensors[i]);
        uint64_t n = tensors[i].dims[0] * tensors[i].dims[1];
        if (tensors[i].dtype != from->tensors[i].dtype)
            assert_true(fm__dtype_bytes(fm__dtype_get(tensors[i].dtype), n, &tensors[i].bytes));
    }
    status = fm__gguf_write(to_path, from->kvs, from->n_kvs, tensors, from->n_tensors, emit_random,
                            from, error);
    free(tensors);
    fm__checkpoint_close(&from);
    return status;
}

static int make_models(void **state) {
    (void)state;
    fm_error error = {0};
    if (!mkdtemp(folder))
        return 1;
    for (int t = 0; t < N_TYPES - N_REWRITTEN; t++) {
        char path[128];
        model_path(types[t], path);
        if (fm_lab_synth(path, "tiny", types[t], 1, NULL, NULL, &error) != FM_OK) {
            print_error("%s: %s: %s\n", types[t], error.place, error.message);
            return 1;
        }
    }
    for (int t = N_TYPES - N_REWRITTEN; t < N_TYPES; t++) {
        if (rewrite(types[t], &error) != FM_OK) {
            print_error("%s: %s: %s\n", types[t], error.place, error.message);
            return 1;
        }
    }
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (i * 131 + 17) % 509;
    return 0;
}

static int remove_models(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        char path[128];
        model_path(types[t], path);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_rungs),
        cmocka_unit_test(chunks),
        cmocka_unit_test(cached_prefix),
        cmocka_unit_test(batch_mates),
        cmocka_unit_test(forks),
        cmocka_unit_test(snapshots),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
