/* SPDX-License-Identifier: Apache-2.0 */
/* model_test.h: what tests of the model and engine rooms share: machines, engines, golden data. */
#pragma once

#include "test.h"

#include <jansson.h>

#include "engine/engine.h"

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        fm_status check_status_ = (call);                                                          \
        if (check_status_ != FM_OK)                                                                \
            fail_msg("%s: %s: %s: %s", #call, fm_status_name(check_status_), error.place,          \
                     error.message);                                                               \
    } while (0)

static inline fm_machine *test_machine(uint32_t threads, const char *rung) {
    fm_machine *machine = NULL;
    fm_error error = {0};
    fm_machine_options options = fm_machine_options_default();
    options.threads = threads;
    options.cpu_rung = rung;
    options.devices = "host"; /* no GPU takes part, and none is looked for */
    options.memory_budget = UINT64_C(2) << 30;
    CHECK_OK(fm_machine_create(&machine, &options, &error));
    return machine;
}

/* No engine holds memory any more: what is counted is what devices keep, and they do hold it. */
static inline void test_no_engine(const fm_machine *machine) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < machine->n_device; i++) {
        const struct fm__kept *kept = machine->kept[i];
        const fm__held held = fm__device_held(machine->devices[i]);
        uint64_t sum = kept[FM__KEEPS_SCRATCH].total + kept[FM__KEEPS_RING].total;
        bool own = fm__device_has_own(&machine->devices[i]->properties);
        assert_int_equal(kept[FM__KEEPS_SCRATCH].users + kept[FM__KEEPS_RING].users, 0);
        assert_in_range(kept[FM__KEEPS_SCRATCH].total, 0, held.scratch);
        assert_in_range(kept[FM__KEEPS_RING].total, 0, held.ring);
        assert_int_equal(atomic_load(&machine->own_used[i]), own ? sum : 0);
        used += own ? 0 : sum;
    }
    assert_int_equal(fm_machine_memory_used(machine), used);
}

/* A .npy file of little-endian float32 in C order; *rows and *cols are its shape. */
static inline float *test_read_npy(const char *path, size_t *rows, size_t *cols) {
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    unsigned char head[10];
    assert_int_equal(fread(head, 1, 10, file), 10);
    size_t bytes = head[8] + 256u * head[9];
    char *text = calloc(bytes + 1, 1);
    assert_int_equal(fread(text, 1, bytes, file), bytes);
    assert_non_null(strstr(text, "<f4"));
    assert_int_equal(sscanf(strstr(text, "'shape': ("), "'shape': (%zu, %zu)", rows, cols), 2);
    float *data = malloc(*rows * *cols * sizeof(float));
    assert_int_equal(fread(data, sizeof(float), *rows * *cols, file), *rows * *cols);
    fclose(file);
    free(text);
    return data;
}

/* An array of integers of a JSON object; the caller frees it. */
static inline int32_t *test_read_ids(const json_t *object, const char *field, size_t *n) {
    const json_t *array = json_object_get(object, field);
    *n = json_array_size(array);
    int32_t *ids = malloc((*n + 1) * sizeof(int32_t));
    for (size_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

static inline int32_t test_argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return (int32_t)best;
}

/* Logits of every row: (n, n_vocab), the caller frees them. The session is new and destroyed. */
static inline float *test_all_logits(fm_engine *engine, const int32_t *ids, size_t n) {
    fm_error error = {0};
    fm_session *session = NULL;
    fm_batch *batch = NULL;
    size_t n_vocab = fm_engine_vocab_size(engine);
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_batch_create(&batch, engine, (uint32_t)n, (uint32_t)n, &error));
    for (size_t i = 0; i < n; i++)
        CHECK_OK(fm_batch_add(batch, session, ids[i], FM_OUTPUT_LOGITS, NULL, &error));
    CHECK_OK(fm_engine_run(engine, batch, &error));
    float *logits = malloc(n * n_vocab * sizeof(float));
    for (size_t i = 0; i < n; i++)
        memcpy(logits + i * n_vocab, fm_batch_output(batch, (uint32_t)i), n_vocab * sizeof(float));
    fm_batch_destroy(&batch);
    fm_session_destroy(&session);
    return logits;
}
