/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gpu and the host on one tape: the same bits in every mode, for every share and axis, with
 * unified memory and with copies, whoever is the main unit; a lost gpu; times.
 */
#include "exec_support.h"

static const fm__deps MODES[] = {FM__DEPS_EVENT, FM__DEPS_BATCH, FM__DEPS_READY, FM__DEPS_EAGER};
enum { N_MODE = 4 };

static fm__device *make_gpu(fm__vulkan_options options) {
    fm__device *device = NULL;
    options.allow_software = true;
    options.cache_dir = "";
    CHECK(fm__device_vulkan_create(&device, &options, why));
    return device;
}

/* ---- a model whose weights the gpu has too ---- */

typedef struct gpu_model {
    model m;
    conversation c;
    fm__buffer *buffers[FIXTURE_WEIGHTS];
    uint32_t n_buffer;
} gpu_model;

static void gpu_model_init(gpu_model *g, fm__device *gpu, fm__dtype type, uint32_t rows,
                           bool gathers) {
    memset(g, 0, sizeof *g);
    model_init(&g->m, FM__Q8_0, type, rows, 2);
    for (uint32_t i = 0; i < g->m.f.n_weight; i++) {
        fm__weight *w = g->m.f.weights[i];
        if (w->role == FM__ROLE_GATHER && !gathers)
            continue;
        fm__buffer **buffer = &g->buffers[g->n_buffer++];
        CHECK(fm__device_buffer_create(gpu, w->bytes, FM__MEMORY_LOCAL, buffer, why));
        CHECK(fm__device_buffer_write(*buffer, 0, w->host, w->bytes, why));
        w->ranges[0] = (fm__weight_range){
            .residency = FM__RESIDENCY_RESIDENT, .panel_end = w->panels, .buffer = *buffer};
        w->n_ranges = 1;
    }
    conversation_init(&g->c, &g->m);
}

static void gpu_model_finish(gpu_model *g) {
    while (g->n_buffer > 0)
        fm__device_buffer_destroy(&g->buffers[--g->n_buffer]);
    conversation_finish(&g->c);
    model_finish(&g->m);
}

/* ---- identity ---- */

/* few: only the shares that differ most. */
static void check_units(fm__device *units[2], gpu_model *g, bool few) {
    static const int all[] = {0, 1, 5, 8}, two[] = {2, 8};
    session s = {.units = {units[0], units[1]}, .n_unit = 2};
    for (int mode = 0; mode < N_MODE; mode++)
        for (int i = 0; i < (few ? 2 : 4); i++)
            for (int axis = 0; axis < 2; axis++) {
                int share = few ? two[i] : all[i];
                const fm__plan_options options = {.shares = {8 - share, share},
                                                  .axis =
                                                      axis ? FM__AXIS_TOKENS : FM__AXIS_CHANNELS,
                                                  .deps = MODES[mode]};
                session_init(&s, &g->m, &options);
                converse(&s, &g->m, &g->c);
                session_close(&s);
            }
}

static void unified_memory_gives_the_bits_of_one(void **state) {
    (void)state;
    fm__device *gpu = make_gpu((fm__vulkan_options){.index = 0});
    if (!gpu->properties.unified) {
        print_message("skip: %s does not address host memory\n", gpu->properties.description);
        fm__device_destroy(&gpu);
        skip();
    }
    fm__device *host = make_host(1, NULL);
    gpu_model g;
    gpu_model_init(&g, gpu, FM__Q4_K, 16, true);
    check_units((fm__device *[]){gpu, host}, &g, false);
    check_units((fm__device *[]){host, gpu}, &g, true);
    gpu_model_finish(&g);
    fm__device_destroy(&host);
    fm__device_destroy(&gpu);
}

static void copies_give_the_bits_of_one(void **state) {
    (void)state;
    static const fm__dtype types[] = {FM__Q4_K, FM__F16};
    fm__device *gpu = make_gpu((fm__vulkan_options){.force_discrete = true});
    fm__device *host = make_host(1, NULL);
    for (int i = 0; i < 2; i++) { /* the host looks up embeddings once */
        gpu_model g;
        gpu_model_init(&g, gpu, types[i], 16, i == 0);
        check_units((fm__device *[]){gpu, host}, &g, i != 0);
        gpu_model_finish(&g);
    }
    fm__device_destroy(&host);
    fm__device_destroy(&gpu);
}

static void alone_it_gives_the_same_bits_in_every_mode(void **state) {
    (void)state;
    fm__device *gpu = make_gpu((fm__vulkan_options){.index = 0});
    gpu_model g;
    gpu_model_init(&g, gpu, FM__Q4_K, 16, true);
    session s = {.units = {gpu}, .n_unit = 1};
    for (int mode = 0; mode < N_MODE; mode++) {
        session_init(&s, &g.m, &(fm__plan_options){.deps = MODES[mode]});
        converse(&s, &g.m, &g.c);
        session_close(&s);
    }
    gpu_model_finish(&g);
    fm__device_destroy(&gpu);
}

/* ---- failures ---- */

static void a_failing_row_is_named(void **state) {
    (void)state;
    fm__device *gpu = make_gpu((fm__vulkan_options){.force_discrete = true});
    fm__device *host = make_host(1, NULL);
    gpu_model g;
    gpu_model_init(&g, gpu, FM__Q8_0, 16, false);
    failing_batch(&g.m);
    session s = {.units = {gpu, host}, .n_unit = 2};
    for (int mode = 0; mode < N_MODE; mode++) {
        session_init(&s, &g.m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
        run_fails(&s);
        session_close(&s);
    }
    gpu_model_finish(&g);
    fm__device_destroy(&host);
    fm__device_destroy(&gpu);
}

/* Lost at its n-th submission; the host then runs alone and right. */
static void a_lost_gpu_leaves_nothing_in_flight(void **state) {
    (void)state;
    fm__device *host = make_host(1, NULL);
    for (int mode = 0; mode < N_MODE; mode++)
        for (uint64_t at = 1; at <= 3; at++) {
            fm__device *gpu = make_gpu((fm__vulkan_options){.force_discrete = true, .lose_at = at});
            gpu_model g;
            gpu_model_init(&g, gpu, FM__Q8_0, 16, true);
            session s = {.units = {gpu, host}, .n_unit = 2};
            session_init(&s, &g.m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
            int lost = 0;
            for (int i = 0; i < 4; i++) {
                uint64_t point = 0;
                fm_error error = {0};
                fm_status status = fm__exec_submit(s.exec, &s.run, &point, &error);
                if (status == FM_OK)
                    status = fm__exec_wait(s.exec, point, &s.run, &error);
                lost += status == FM_ERROR_DEVICE;
                if (status == FM_ERROR_DEVICE)
                    assert_string_equal(error.place, gpu->properties.name);
                else
                    assert_int_equal(status, FM_OK);
                assert_int_equal(status == FM_ERROR_DEVICE, fm__device_is_lost(gpu));
            }
            assert_true(lost > 0);
            session_close(&s);
            session alone = {.units = {host}, .n_unit = 1};
            session_init(&alone, &g.m, NULL);
            converse(&alone, &g.m, &g.c);
            session_close(&alone);
            gpu_model_finish(&g);
            fm__device_destroy(&gpu);
        }
    fm__device_destroy(&host);
}

/* ---- times ---- */

static void times_are_kept(void **state) {
    (void)state;
    fm__device *gpu = make_gpu((fm__vulkan_options){.index = 0});
    fm__device *host = make_host(1, NULL);
    gpu_model g;
    gpu_model_init(&g, gpu, FM__Q4_K, 64, true);
    fixture_batch(&g.m.f, 64, 0, MODEL_VOCAB, 2);
    session s = {.units = {gpu, host}, .n_unit = 2};
    for (int mode = 0; mode < N_MODE; mode++) {
        session_init(&s, &g.m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
        uint64_t began = fm__now_ns();
        for (int i = 0; i < 3; i++)
            run_once(&s);
        uint64_t ended = fm__now_ns();
        fm__exec_times t;
        fm__exec_get_times(s.exec, &t);
        print_message("%-6s busy %.0f and %.0f us of %.0f, together %.0f\n",
                      fm__deps_name(MODES[mode]), (double)t.busy_ns[0] / 1e3,
                      (double)t.busy_ns[1] / 1e3, (double)(t.end_ns - t.begin_ns) / 1e3,
                      (double)t.overlap_ns / 1e3);
        assert_true(t.busy_ns[0] > 0 && t.busy_ns[1] > 0 && t.begin_ns < t.end_ns);
        /* A gpu's clock is read beside the host's: within a millisecond, whatever the driver. */
        assert_true(t.begin_ns + 1000000 > began && t.end_ns < ended + 1000000);
        session_close(&s);
    }
    gpu_model_finish(&g);
    fm__device_destroy(&host);
    fm__device_destroy(&gpu);
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        puts("skip: no Vulkan device, not even one that the processor emulates");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unified_memory_gives_the_bits_of_one),
        cmocka_unit_test(copies_give_the_bits_of_one),
        cmocka_unit_test(alone_it_gives_the_same_bits_in_every_mode),
        cmocka_unit_test(a_failing_row_is_named),
        cmocka_unit_test(a_lost_gpu_leaves_nothing_in_flight),
        cmocka_unit_test(times_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
