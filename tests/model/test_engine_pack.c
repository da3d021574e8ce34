/* SPDX-License-Identifier: Apache-2.0 */
/* Packing a model: tasks of any size, on any number of threads, give the panels that the packers
   give alone, and one hash; progress, and cancelling. */
#include <stdlib.h>
#include <unistd.h>

#include "fusionml/lab.h"
#include "model_test.h"

static char q4_k_m[64], bf16[64]; /* models of tiny shape */

/* One load of a file, as far as packing. */
static fm_status pack(const char *path, fm_machine *machine, const fm__pack_options *with,
                      fm__model **model, fm_error *error) {
    fm__checkpoint *checkpoint = NULL;
    const fm__model_options options = {.context_length = 64};
    fm__pack_options pack = *with;
    pack.memory = machine->devices[0];
    fm_status status = fm__checkpoint_open(&checkpoint, path, error);
    if (status == FM_OK)
        status = fm__model_open(model, &checkpoint, &options, error);
    if (status == FM_OK)
        status = fm__model_pack(*model, &pack, error);
    return status;
}

/* Every matrix against the packer of its type, which gets the file's rows in their order. */
static void check_panels(const fm__model *model) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < model->n_weight; i++) {
        const fm__weight *w = model->weights[i];
        if (w->role != FM__ROLE_LINEAR)
            continue;
        const fm__tensor_info *t = fm__checkpoint_find(model->checkpoint, w->name);
        assert_non_null(t);
        size_t row_bytes = t->bytes / w->n;
        uint8_t *panel = malloc(w->layout.stride);
        for (uint32_t p = 0; p < w->panels; p++) {
            const void *rows[FM__PANEL_ROWS];
            for (uint32_t r = 0; r < FM__PANEL_ROWS; r++) {
                uint32_t row = p * FM__PANEL_ROWS + r;
                rows[r] = row < w->n ? t->data + fm__tensor_source_row(t, row) * row_bytes : NULL;
            }
            w->type->pack(rows, w->k, panel);
            assert_memory_equal(w->host + p * w->layout.stride, panel, w->layout.stride);
        }
        free(panel);
        found++;
    }
    assert_true(found > 2);
}

static void any_division_gives_the_same(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(1, NULL);
    const char *const paths[] = {q4_k_m, bf16, "golden/llama", "golden/qwen2"};
    static const size_t tasks[] = {1, 5000, 100000, 0};
    for (size_t m = 0; m < sizeof paths / sizeof paths[0]; m++)
        for (size_t t = 0; t < sizeof tasks / sizeof tasks[0]; t++) {
            uint64_t hash = 0;
            for (uint32_t threads = 1; threads <= 5; threads += 2) {
                const fm__pack_options options = {.threads = threads, .task_bytes = tasks[t]};
                fm__model *model = NULL;
                CHECK_OK(pack(paths[m], machine, &options, &model, &error));
                check_panels(model);
                assert_true(threads == 1 || model->hash == hash);
                hash = model->hash;
                fm__model_destroy(&model);
            }
        }
    fm_machine_destroy(&machine);
}

/* A byte anywhere in any tensor, gather tables and vectors among them, gives another hash. */
static void the_hash_sees_every_tensor(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(2, NULL);
    const fm__pack_options options = {.memory = machine->devices[0], .threads = 2};
    const fm__model_options model_options = {.context_length = 64};
    char *image = NULL;
    size_t bytes = 0, n_tensors = 1;
    uint64_t seen[64] = {0};
    CHECK_OK(fm__file_read(bf16, 1 << 30, &image, &bytes, &error));
    for (size_t i = 0; i <= n_tensors; i++) { /* the last time: as it is */
        fm__checkpoint *checkpoint = NULL;
        fm__model *model = NULL;
        uint8_t *changed = NULL;
        CHECK_OK(fm__checkpoint_open_memory(&checkpoint, image, bytes, "image", &error));
        n_tensors = checkpoint->n_tensors;
        if (i < n_tensors) {
            const fm__tensor_info *t = &checkpoint->tensors[i];
            size_t at = i % 3 == 0 ? 0 : i % 3 == 1 ? t->bytes / 2 : t->bytes - 2;
            changed = (uint8_t *)(uintptr_t)t->data + at;
            *changed ^= 1;
        }
        CHECK_OK(fm__model_open(&model, &checkpoint, &model_options, &error));
        CHECK_OK(fm__model_pack(model, &options, &error));
        assert_true(n_tensors < sizeof seen / sizeof seen[0]);
        seen[i] = model->hash;
        for (size_t j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
        fm__model_destroy(&model);
        if (changed)
            *changed ^= 1;
    }
    fm__free(image);
    fm_machine_destroy(&machine);
}

typedef struct watcher {
    pthread_t thread;
    uint64_t last, total;
    int calls, stop_at; /* stop_at 0: never */
} watcher;

static int watch(void *user, const char *phase, uint64_t done, uint64_t total) {
    watcher *w = user;
    assert_string_equal(phase, "packing weights");
    assert_true(pthread_equal(pthread_self(), w->thread));
    assert_true(done >= w->last && done <= total);
    assert_true(w->calls == 0 ? done == 0 : w->total == total);
    w->last = done;
    w->total = total;
    return ++w->calls == w->stop_at;
}

static void progress_and_cancel(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(1, NULL);
    watcher w = {.thread = pthread_self()};
    fm__pack_options options = {
        .threads = 1, .task_bytes = 20000, .progress = watch, .progress_user = &w};
    fm__model *model = NULL;
    CHECK_OK(pack(q4_k_m, machine, &options, &model, &error));
    fm__model_destroy(&model);
    assert_int_equal(w.last, w.total);
    int calls = w.calls;
    assert_true(calls > 20);
    for (uint32_t threads = 1; threads <= 3; threads += 2)
        for (int stop_at = 1; stop_at <= calls; stop_at += 7) {
            w = (watcher){.thread = pthread_self(), .stop_at = stop_at};
            options.threads = threads;
            fm_status status = pack(q4_k_m, machine, &options, &model, &error);
            if (status == FM_OK) /* the other threads were faster than this one: fewer calls */
                assert_true(threads > 1 && w.calls < stop_at);
            else
                assert_true(status == FM_ERROR_CANCELLED && w.calls == stop_at);
            fm__model_destroy(&model);
        }
    fm_machine_destroy(&machine);
}

/* Each allocation may fail. */
static void no_memory(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = test_machine(1, NULL);
    const fm__pack_options options = {.threads = 2, .task_bytes = 50000};
    bool failed = true;
    for (uint64_t n = 1; failed; n += 3) {
        fm__model *model = NULL;
        fm__alloc_fail_after(n);
        fm_status status = pack(q4_k_m, machine, &options, &model, &error);
        failed = status != FM_OK;
        assert_true(!failed || status == FM_ERROR_MEMORY);
        fm__alloc_fail_after(0);
        if (!failed)
            check_panels(model);
        fm__model_destroy(&model);
    }
    fm_machine_destroy(&machine);
}

/* What an engine says of it. */
static void reported(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine_info info;
    fm_engine *engine = NULL;
    fm_machine *machine = test_machine(2, NULL);
    CHECK_OK(fm_engine_load(&engine, machine, q4_k_m, NULL, &error));
    fm_engine_get_info(engine, &info);
    assert_true(info.pack_ms > 0 && info.pack_ms <= info.load_ms);
    assert_true(info.huge_bytes <= info.weight_bytes);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

static void readings(void **state) {
    (void)state;
    fm_error error = {0};
    uint64_t bytes = 0;
    fm_lab_cost cost;
    for (int how = 0; how < FM_LAB_READING_COUNT; how++)
        for (uint32_t threads = 0; threads < 3; threads++) {
            CHECK_OK(fm_lab_read(q4_k_m, (fm_lab_reading)how, threads, &bytes, &cost, &error));
            assert_true(bytes > 100000 && cost.ms > 0 && cost.user_ms >= 0 && cost.system_ms >= 0);
        }
    assert_int_equal(fm_lab_read("golden/llama", FM_LAB_READ_FRESH, 1, &bytes, &cost, &error),
                     FM_ERROR_UNSUPPORTED);
    assert_int_equal(fm_lab_read("nowhere.gguf", FM_LAB_READ_FRESH, 1, &bytes, &cost, &error),
                     FM_ERROR_IO);
    assert_int_equal(fm_lab_read(q4_k_m, FM_LAB_READING_COUNT, 1, &bytes, &cost, &error),
                     FM_ERROR_ARGUMENT);
}

static int set_up(void **state) {
    (void)state;
    fm_error error = {0};
    snprintf(q4_k_m, sizeof q4_k_m, "/tmp/fm_pack_q4_%d.gguf", (int)getpid());
    snprintf(bf16, sizeof bf16, "/tmp/fm_pack_bf_%d.gguf", (int)getpid());
    return fm_lab_synth(q4_k_m, "tiny", "q4_k_m", 1, NULL, NULL, &error) == FM_OK &&
                   fm_lab_synth(bf16, "tiny", "bf16", 2, NULL, NULL, &error) == FM_OK
               ? 0
               : 1;
}

static int tear_down(void **state) {
    (void)state;
    unlink(q4_k_m);
    unlink(bf16);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_division_gives_the_same),
        cmocka_unit_test(the_hash_sees_every_tensor),
        cmocka_unit_test(progress_and_cancel),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(reported),
        cmocka_unit_test(readings),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
