/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions and batches at their edges: limits with both numbers, all or nothing, truncation,
 * sliding windows, cancelling, hidden outputs, the budget, and a decode that allocates nothing.
 */
#include "model_test.h"

#include <pthread.h>
#include <unistd.h>

/* ---- the allocation guard: every malloc of the process is counted ---- */

static _Atomic uint64_t n_malloc;

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NO_INTERPOSITION 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NO_INTERPOSITION 1
#endif

#ifndef NO_INTERPOSITION
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t bytes);

void *malloc(size_t bytes) {
    atomic_fetch_add(&n_malloc, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t size) {
    atomic_fetch_add(&n_malloc, 1);
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t bytes) {
    atomic_fetch_add(&n_malloc, 1);
    return __libc_realloc(memory, bytes);
}
#endif

/* ---- fixture ---- */

typedef struct fixture {
    fm_machine *machine;
    fm_engine *engine;
    fm_session *session;
    size_t n_vocab;
} fixture;

static void open_fixture(fixture *f, const char *path, const fm_engine_options *options) {
    fm_error error = {0};
    *f = (fixture){.machine = test_machine(2, NULL)};
    CHECK_OK(fm_engine_load(&f->engine, f->machine, path, options, &error));
    CHECK_OK(fm_session_create(&f->session, f->engine, NULL, &error));
    f->n_vocab = fm_engine_vocab_size(f->engine);
}

static void close_fixture(fixture *f) {
    fm_session_destroy(&f->session);
    assert_null(f->session);
    fm_session_destroy(&f->session); /* NULL is allowed */
    assert_int_equal(f->engine->pools[0].n_free, f->engine->pools[0].n_page);
    fm_engine_destroy(&f->engine);
    test_no_engine(f->machine);
    fm_machine_destroy(&f->machine);
}

static fm_engine_options exact_options(void) {
    fm_engine_options options = fm_engine_options_default();
    options.numeric_class = FM_CLASS_EXACT;
    return options;
}

static int32_t token_at(uint32_t i) {
    return (int32_t)((i * 97 + 5) % 300);
}

static void fill(int32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = token_at(i);
}

/* ---- tests ---- */

static void context_limit(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    options.context_length = 70;
    fixture f;
    open_fixture(&f, "golden/llama", &options);
    int32_t ids[80];
    fill(ids, 80);
    const float *logits = NULL;
    assert_int_equal(fm_session_context_length(f.session), 70);
    assert_int_equal(fm_session_prefill(f.session, ids, 71, &logits, &error), FM_ERROR_LIMIT);
    assert_non_null(strstr(error.message, "71"));
    assert_non_null(strstr(error.message, "70"));
    assert_int_equal(fm_session_length(f.session), 0);
    assert_int_equal(f.engine->pools[0].n_free, f.engine->pools[0].n_page);
    CHECK_OK(fm_session_prefill(f.session, ids, 69, &logits, &error));
    CHECK_OK(fm_session_decode(f.session, ids[69], &logits, &error));
    assert_int_equal(fm_session_length(f.session), 70);
    assert_int_equal(fm_session_decode(f.session, 1, &logits, &error), FM_ERROR_LIMIT);
    assert_int_equal(fm_session_length(f.session), 70);
    /* The whole cached prefix again: the last token is evaluated once more. */
    CHECK_OK(fm_session_truncate(f.session, 69, &error));
    CHECK_OK(fm_session_decode(f.session, ids[69], &logits, &error));
    close_fixture(&f);
}

static void bad_arguments(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    fixture f;
    open_fixture(&f, "golden/llama", &options);
    int32_t ids[3] = {1, 2, (int32_t)f.n_vocab};
    const float *logits;
    assert_int_equal(fm_session_prefill(f.session, ids, 0, &logits, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_session_prefill(f.session, ids, 3, &logits, &error), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "320"));
    assert_int_equal(fm_session_decode(f.session, -1, &logits, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_session_length(f.session), 0);
    assert_int_equal(fm_session_truncate(f.session, 1, &error), FM_ERROR_ARGUMENT);
    CHECK_OK(fm_session_truncate(f.session, 0, &error));

    fm_batch *batch = NULL;
    assert_int_equal(fm_batch_create(&batch, f.engine, 0, 0, &error), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_batch_create(&batch, f.engine, 1, 2, &error), FM_ERROR_ARGUMENT);
    CHECK_OK(fm_batch_create(&batch, f.engine, 2, 1, &error));
    uint32_t row = 99;
    assert_int_equal(fm_engine_run(f.engine, batch, &error), FM_ERROR_ARGUMENT);
    CHECK_OK(fm_batch_add(batch, f.session, 1, FM_OUTPUT_LOGITS, &row, &error));
    assert_int_equal(row, 0);
    assert_int_equal(fm_batch_add(batch, f.session, 1, FM_OUTPUT_LOGITS, NULL, &error),
                     FM_ERROR_LIMIT);
    CHECK_OK(fm_batch_add(batch, f.session, 1, FM_OUTPUT_NONE, NULL, &error));
    assert_int_equal(fm_batch_add(batch, f.session, 1, FM_OUTPUT_NONE, NULL, &error),
                     FM_ERROR_LIMIT);
    assert_null(fm_batch_output(batch, 0));
    /* The session moved on meanwhile: positions in the batch are stale. */
    CHECK_OK(fm_session_decode(f.session, 5, &logits, &error));
    assert_int_equal(fm_engine_run(f.engine, batch, &error), FM_ERROR_STATE);
    assert_int_equal(fm_session_length(f.session), 1);
    fm_batch_clear(batch);
    CHECK_OK(fm_batch_add(batch, f.session, 1, FM_OUTPUT_LOGITS, &row, &error));
    CHECK_OK(fm_engine_run(f.engine, batch, &error));
    assert_non_null(fm_batch_output(batch, 0));
    assert_null(fm_batch_output(batch, 1));
    fm_batch_destroy(&batch);
    close_fixture(&f);

    assert_int_equal(fm_engine_load(&f.engine, NULL, "x", NULL, &error), FM_ERROR_ARGUMENT);
}

static void load_refusals(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(1, NULL);
    fm_engine *engine = NULL;
    fm_engine_options options = exact_options();
    options.context_length = 513;
    assert_int_equal(fm_engine_load(&engine, machine, "golden/llama", &options, &error),
                     FM_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "513"));
    assert_non_null(strstr(error.message, "512"));
    options = exact_options();
    options.chunk_rows = 1u << 30;
    assert_int_equal(fm_engine_load(&engine, machine, "golden/llama", &options, &error),
                     FM_ERROR_ARGUMENT);
    options = exact_options();
    options.cache_tokens = UINT32_MAX; /* 4 Gi tokens: over any budget, said before allocating */
    assert_int_equal(fm_engine_load(&engine, machine, "golden/llama", &options, &error),
                     FM_ERROR_MEMORY);
    assert_non_null(strstr(error.message, "budget 2048.0 MiB"));
    assert_int_equal(fm_engine_load(&engine, machine, "golden/no-such-folder", &options, &error),
                     FM_ERROR_IO);
    assert_null(engine);
    test_no_engine(machine);
    fm_machine_destroy(&machine);
}

/* A pool for 128 tokens: two sessions fit, the third's rows are refused and nothing changes. */
static void pool_limit(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    options.context_length = 128;
    options.cache_tokens = 128;
    fixture f;
    open_fixture(&f, "golden/llama", &options);
    int32_t ids[128];
    fill(ids, 128);
    fm_session *b = NULL, *c = NULL;
    fm_batch *batch = NULL;
    CHECK_OK(fm_session_create(&b, f.engine, NULL, &error));
    CHECK_OK(fm_session_prefill(f.session, ids, 40, NULL, &error));
    CHECK_OK(fm_session_fork(&c, f.session, &error));
    CHECK_OK(fm_session_prefill(b, ids, 10, NULL, &error));
    assert_int_equal(f.engine->pools[0].n_free, 0);
    /* f and c share a page: the first that writes needs a copy, which does not fit. */
    assert_int_equal(fm_session_decode(c, 1, NULL, &error), FM_ERROR_LIMIT);
    assert_non_null(strstr(error.message, "128"));
    CHECK_OK(fm_batch_create(&batch, f.engine, 4, 4, &error));
    CHECK_OK(fm_batch_add(batch, b, 1, FM_OUTPUT_LOGITS, NULL, &error));
    CHECK_OK(fm_batch_add(batch, c, 1, FM_OUTPUT_LOGITS, NULL, &error));
    assert_int_equal(fm_engine_run(f.engine, batch, &error), FM_ERROR_LIMIT);
    assert_int_equal(fm_session_length(b), 10);
    assert_int_equal(fm_session_length(c), 40);
    assert_null(fm_batch_output(batch, 0));
    fm_session_destroy(&b);
    fm_batch_clear(batch);
    CHECK_OK(fm_batch_add(batch, c, 1, FM_OUTPUT_LOGITS, NULL, &error));
    CHECK_OK(fm_engine_run(f.engine, batch, &error));
    fm_batch_destroy(&batch);
    fm_session_destroy(&c);
    close_fixture(&f);
}

static void truncation(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    fixture f;
    open_fixture(&f, "golden/qwen3", &options);
    int32_t ids[200];
    fill(ids, 200);
    const float *logits;
    CHECK_OK(fm_session_prefill(f.session, ids, 200, &logits, &error));
    float *want = malloc(f.n_vocab * sizeof(float));
    memcpy(want, logits, f.n_vocab * sizeof(float));
    static const uint32_t cuts[] = {199, 193, 192, 129, 128, 127, 64, 63, 1, 0};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        CHECK_OK(fm_session_truncate(f.session, cuts[i], &error));
        assert_int_equal(f.engine->pools[0].n_free,
                         f.engine->pools[0].n_page - (cuts[i] + 63) / 64);
        /* Something else is said first, so that stale keys would show. */
        CHECK_OK(fm_session_prefill(f.session, (int32_t[]){9, 8, 7}, 3, NULL, &error));
        CHECK_OK(fm_session_truncate(f.session, cuts[i], &error));
        CHECK_OK(fm_session_prefill(f.session, ids + cuts[i], 200 - cuts[i], &logits, &error));
        assert_memory_equal(want, logits, f.n_vocab * sizeof(float));
        assert_memory_equal(fm_session_tokens(f.session), ids, sizeof(ids));
    }
    free(want);
    close_fixture(&f);
}

/* Window 16, two layers: position 39 depends on nothing before 9. */
static void window_reach(void **state) {
    (void)state;
    fm_error error = {0};
    static const uint32_t chunks[] = {1, 3, 8, 9, 64};
    float *want = NULL;
    for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
        fm_engine_options options = exact_options();
        options.chunk_rows = chunks[c];
        fixture f;
        open_fixture(&f, "golden/mistral-swa", &options);
        for (int variant = 0; variant < 2; variant++) {
            int32_t ids[40];
            const float *logits;
            fill(ids, 40);
            ids[0] += variant;
            CHECK_OK(fm_session_truncate(f.session, 0, &error));
            CHECK_OK(fm_session_prefill(f.session, ids, 40, &logits, &error));
            if (!want) {
                want = malloc(f.n_vocab * sizeof(float));
                memcpy(want, logits, f.n_vocab * sizeof(float));
            }
            assert_memory_equal(want, logits, f.n_vocab * sizeof(float));
        }
        close_fixture(&f);
    }
    free(want);
}

/* A long windowed session gives pages back; what they held is never asked for again. */
static void window_pages(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    fixture f;
    open_fixture(&f, "golden/mistral-swa", &options);
    enum { N = 400 };
    int32_t ids[N];
    fill(ids, N);
    const float *logits;
    fm_session *stepped = NULL;
    CHECK_OK(fm_session_prefill(f.session, ids, N, &logits, &error));
    assert_in_range(f.engine->pools[0].n_page - f.engine->pools[0].n_free, 1, 3);
    CHECK_OK(fm_session_create(&stepped, f.engine, NULL, &error));
    const float *stepped_logits = NULL;
    for (uint32_t i = 0; i < N; i++)
        CHECK_OK(fm_session_decode(stepped, ids[i], &stepped_logits, &error));
    assert_memory_equal(logits, stepped_logits, f.n_vocab * sizeof(float));

    assert_int_equal(fm_session_truncate(stepped, 100, &error), FM_ERROR_STATE);
    unsigned shortest = 0;
    assert_non_null(strstr(error.message, "works from "));
    assert_int_equal(sscanf(strstr(error.message, "works from "), "works from %u", &shortest), 1);
    assert_in_range(shortest, 1, N - 64);
    assert_int_equal(fm_session_truncate(stepped, shortest - 1, &error), FM_ERROR_STATE);
    CHECK_OK(fm_session_truncate(stepped, shortest, &error));
    CHECK_OK(fm_session_prefill(stepped, ids + shortest, N - shortest, &stepped_logits, &error));
    assert_memory_equal(logits, stepped_logits, f.n_vocab * sizeof(float));

    /* A snapshot of a session without its first pages. */
    char path[] = "/tmp/fm_window_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    CHECK_OK(fm_session_save(stepped, path, &error));
    CHECK_OK(fm_session_truncate(stepped, 0, &error));
    CHECK_OK(fm_session_restore(stepped, path, &error));
    unlink(path);
    CHECK_OK(fm_session_decode(stepped, 3, &stepped_logits, &error));
    CHECK_OK(fm_session_decode(f.session, 3, &logits, &error));
    assert_memory_equal(logits, stepped_logits, f.n_vocab * sizeof(float));
    CHECK_OK(fm_session_truncate(stepped, 0, &error));
    CHECK_OK(fm_session_decode(stepped, 3, &stepped_logits, &error));
    fm_session_destroy(&stepped);
    close_fixture(&f);
}

static void decode_allocates_nothing(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    fixture f;
    open_fixture(&f, "golden/llama", &options);
    int32_t ids[100];
    fill(ids, 100);
    const float *logits;
    CHECK_OK(fm_session_prefill(f.session, ids, 10, &logits, &error));
    uint64_t ours = fm__alloc_count(), all = atomic_load(&n_malloc);
    for (int i = 0; i < 70; i++) /* over a page border */
        CHECK_OK(fm_session_decode(f.session, ids[i], &logits, &error));
    assert_int_equal(fm__alloc_count(), ours);
    assert_int_equal(atomic_load(&n_malloc), all);

    fm_batch *batch = NULL;
    CHECK_OK(fm_batch_create(&batch, f.engine, 20, 20, &error));
    ours = fm__alloc_count();
    all = atomic_load(&n_malloc);
    for (int round = 0; round < 3; round++) {
        fm_batch_clear(batch);
        for (int i = 0; i < 20; i++)
            CHECK_OK(fm_batch_add(batch, f.session, ids[i], FM_OUTPUT_LOGITS, NULL, &error));
        CHECK_OK(fm_engine_run(f.engine, batch, &error));
    }
    assert_int_equal(fm__alloc_count(), ours);
    assert_int_equal(atomic_load(&n_malloc), all);
    fm_batch_destroy(&batch);
    close_fixture(&f);
}

/* A token whose embedding overflows fails by name; the session is as before and goes on. */
static void numeric_failure(void **state) {
    (void)state;
    fm_error error = {0};
    char path[] = "/tmp/fm_numeric_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    CHECK_OK(fm_lab_convert("golden/llama", path, "bf16", 1, NULL, NULL, &error));
    close(file);
    fm__checkpoint *c = NULL;
    CHECK_OK(fm__checkpoint_open(&c, path, &error));
    const fm__tensor_info *embed = fm__checkpoint_find(c, "token_embd.weight");
    long at = (long)(embed->file_offset + 7 * embed->dims[0] * 2);
    fm__checkpoint_close(&c);
    FILE *out = fopen(path, "r+b");
    uint16_t huge = fm__f32_to_bf16(1e38f);
    assert_int_equal(fseek(out, at, SEEK_SET), 0);
    assert_int_equal(fwrite(&huge, 2, 1, out), 1);
    fclose(out);

    fm_engine_options options = exact_options();
    options.chunk_rows = 2;
    fixture f;
    const float *logits;
    open_fixture(&f, path, &options);
    unlink(path);
    const int32_t ids[] = {1, 2, 3, 4, 7, 5};
    CHECK_OK(fm_session_prefill(f.session, ids, 2, NULL, &error));
    assert_int_equal(fm_session_prefill(f.session, ids, 6, &logits, &error), FM_ERROR_NUMERIC);
    assert_non_null(strstr(error.place, "row 4")); /* where its chunk begins */
    assert_int_equal(fm_session_length(f.session), 2);
    CHECK_OK(fm_session_prefill(f.session, ids, 4, &logits, &error));
    assert_int_equal(fm_session_length(f.session), 6);
    close_fixture(&f);
}

/* Sessions of one engine on several threads: serialised, each as if alone. */
typedef struct worker {
    fm_engine *engine;
    uint32_t index;
    float *logits; /* of the last token */
    fm_status status;
} worker;

static void *decode_alone(void *argument) {
    worker *w = argument;
    fm_session *session = NULL;
    fm_error error = {0};
    const float *logits = NULL;
    size_t bytes = fm_engine_vocab_size(w->engine) * sizeof(float);
    w->status = fm_session_create(&session, w->engine, NULL, &error);
    for (uint32_t i = 0; i < 70 && w->status == FM_OK; i++)
        w->status = fm_session_decode(session, token_at(i * (w->index + 1)), &logits, &error);
    if (w->status == FM_OK)
        memcpy(w->logits, logits, bytes);
    fm_session_destroy(&session);
    return NULL;
}

static void many_threads(void **state) {
    (void)state;
    enum { N = 4 };
    fm_engine_options options = exact_options();
    options.cache_tokens = 2048;
    fixture f;
    open_fixture(&f, "golden/qwen2", &options);
    worker alone[N], together[N];
    pthread_t threads[N];
    for (uint32_t i = 0; i < N; i++) {
        alone[i] = (worker){f.engine, i, malloc(f.n_vocab * sizeof(float)), FM_OK};
        together[i] = (worker){f.engine, i, malloc(f.n_vocab * sizeof(float)), FM_OK};
        decode_alone(&alone[i]);
    }
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, decode_alone, &together[i]), 0);
    for (uint32_t i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(alone[i].status, FM_OK);
        assert_int_equal(together[i].status, FM_OK);
        assert_memory_equal(alone[i].logits, together[i].logits, f.n_vocab * sizeof(float));
    }
    for (uint32_t i = 0; i < N; i++) {
        free(alone[i].logits);
        free(together[i].logits);
    }
    close_fixture(&f);
}

static _Atomic bool stop_cancelling;

static void *keep_cancelling(void *argument) {
    for (int i = 0; i < 2000000 && !atomic_load(&stop_cancelling); i++)
        fm_engine_cancel(argument);
    return NULL;
}

static void cancelling(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    options.chunk_rows = 1;
    fixture f;
    open_fixture(&f, "golden/llama", &options);
    int32_t ids[400];
    fill(ids, 400);
    CHECK_OK(fm_session_prefill(f.session, ids, 5, NULL, &error));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep_cancelling, f.engine), 0);
    fm_status status = FM_OK;
    for (int i = 0; i < 100 && status == FM_OK; i++) {
        CHECK_OK(fm_session_truncate(f.session, 5, &error));
        status = fm_session_prefill(f.session, ids + 5, 395, NULL, &error);
    }
    atomic_store(&stop_cancelling, true);
    pthread_join(thread, NULL);
    assert_int_equal(status, FM_ERROR_CANCELLED);
    assert_int_equal(fm_session_length(f.session), 5);
    assert_int_equal(f.engine->pools[0].n_free, f.engine->pools[0].n_page - 1);
    /* The request is cleared by the next run. */
    fm_engine_cancel(f.engine);
    CHECK_OK(fm_session_prefill(f.session, ids + 5, 3, NULL, &error));
    close_fixture(&f);
}

static int cancel_at_half(void *user, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    ++*(int *)user;
    return done * 2 >= total;
}

static void cancelled_load(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(2, NULL);
    fm_engine *engine = NULL;
    int calls = 0;
    fm_engine_options options = fm_engine_options_default();
    options.progress = cancel_at_half;
    options.progress_user = &calls;
    assert_int_equal(fm_engine_load(&engine, machine, "golden/llama", &options, &error),
                     FM_ERROR_CANCELLED);
    assert_true(calls > 1);
    assert_null(engine);
    test_no_engine(machine);
    fm_machine_destroy(&machine);
}

/* Hidden rows beside logits rows: logits are the output matrix times the hidden state. */
static void hidden_output(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_options options = exact_options();
    fixture f;
    open_fixture(&f, "golden/qwen2", &options);
    fm_batch *batch = NULL;
    uint32_t rows[3];
    CHECK_OK(fm_batch_create(&batch, f.engine, 3, 2, &error));
    CHECK_OK(fm_batch_add(batch, f.session, 11, FM_OUTPUT_HIDDEN, &rows[0], &error));
    CHECK_OK(fm_batch_add(batch, f.session, 12, FM_OUTPUT_NONE, &rows[1], &error));
    CHECK_OK(fm_batch_add(batch, f.session, 13, FM_OUTPUT_LOGITS, &rows[2], &error));
    CHECK_OK(fm_engine_run(f.engine, batch, &error));
    const float *hidden = fm_batch_output(batch, rows[0]);
    assert_non_null(hidden);
    assert_null(fm_batch_output(batch, rows[1]));
    fm_session *other = NULL;
    const float *logits = NULL;
    CHECK_OK(fm_session_create(&other, f.engine, NULL, &error));
    CHECK_OK(fm_session_decode(other, 11, &logits, &error));
    const fm__tensor_info *embed =
        fm__checkpoint_find(f.engine->model->checkpoint, "token_embd.weight");
    for (size_t v = 0; v < f.n_vocab; v++) {
        double sum = 0;
        for (size_t i = 0; i < embed->dims[0]; i++) {
            uint16_t w;
            memcpy(&w, embed->data + (v * embed->dims[0] + i) * 2, 2);
            sum += (double)fm__bf16_to_f32(w) * hidden[i];
        }
        assert_true(sum - logits[v] < 1e-3 && logits[v] - sum < 1e-3);
    }
    CHECK_OK(fm_session_prefill(other, (int32_t[]){12, 13}, 2, &logits, &error));
    assert_memory_equal(logits, fm_batch_output(batch, rows[2]), f.n_vocab * sizeof(float));
    fm_session_destroy(&other);
    fm_batch_destroy(&batch);
    close_fixture(&f);
}

static void reports(void **state) {
    (void)state;
    fm_error error = {0};
    fixture f;
    open_fixture(&f, "golden/llama", NULL);
    fm_engine_info info, measured;
    fm_engine_get_info(f.engine, &info);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.weight_types, "bf16 100%");
    assert_int_equal(info.numeric_class, FM_CLASS_FAST);
    assert_int_equal(info.n_layer, 2);
    assert_int_equal(info.context_length, 512);
    /* Two embeddings of 320 x 128, two layers, and a norm. */
    assert_int_equal(info.parameters,
                     2 * 320 * 128 + 2 * (128 * (128 + 64 + 64 + 128 + 3 * 256) + 256) + 128);
    assert_int_equal(info.mapped_bytes, 320 * 128 * 2);
    assert_int_not_equal(info.model_hash, 0);
    assert_true(fm_machine_memory_used(f.machine) >=
                info.weight_bytes + info.cache_bytes + info.scratch_bytes);
    CHECK_OK(fm_engine_measure("golden/llama", NULL, &measured, &error));
    assert_int_equal(measured.weight_bytes, info.weight_bytes);
    assert_int_equal(measured.cache_bytes, info.cache_bytes);
    assert_int_equal(measured.scratch_bytes, info.scratch_bytes);
    assert_int_equal(measured.parameters, info.parameters);

    size_t n = fm_engine_placement_count(f.engine), linear = 0;
    fm_placement p;
    for (size_t i = 0; i < n; i++) {
        CHECK_OK(fm_engine_placement(f.engine, i, &p, &error));
        assert_string_equal(p.device, "host");
        assert_true(p.layer >= -1 && p.layer < 2);
        if (strncmp(p.op, "linear ", 7) == 0) {
            linear++;
            assert_string_equal(p.residency, "shared");
            assert_true(p.kernel[0] != 0);
        }
    }
    assert_int_equal(linear, 2 * 5 + 1);
    assert_int_equal(fm_engine_placement(f.engine, n, &p, &error), FM_ERROR_ARGUMENT);
    close_fixture(&f);
}

/* Whichever allocation fails, a load says so, leaks nothing, and the next one works. */
static void failing_allocations(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(1, NULL);
    uint64_t n = 1;
    fm_status status = FM_ERROR_MEMORY;
    for (; status != FM_OK && n < 5000; n += n < 40 ? 1 : 7) {
        fm_engine *engine = NULL;
        fm__alloc_fail_after(n);
        status = fm_engine_load(&engine, machine, "golden/llama", NULL, &error);
        fm__alloc_fail_after(0);
        if (status != FM_OK) {
            assert_int_equal(status, FM_ERROR_MEMORY);
            assert_null(engine);
        }
        fm_engine_destroy(&engine);
        test_no_engine(machine);
    }
    assert_int_equal(status, FM_OK);
    assert_true(n > 50);
    fm_machine_destroy(&machine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_limit),       cmocka_unit_test(bad_arguments),
        cmocka_unit_test(load_refusals),       cmocka_unit_test(pool_limit),
        cmocka_unit_test(truncation),          cmocka_unit_test(window_reach),
        cmocka_unit_test(window_pages),        cmocka_unit_test(decode_allocates_nothing),
        cmocka_unit_test(cancelling),          cmocka_unit_test(cancelled_load),
        cmocka_unit_test(hidden_output),       cmocka_unit_test(reports),
        cmocka_unit_test(numeric_failure),     cmocka_unit_test(many_threads),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
