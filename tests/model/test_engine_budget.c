/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What units keep for their work counts against the budget, before it is there, as long as it is
 * there, and once for all engines of a machine.
 */
#include "device/host/host.h"
#include "device_test.h"

#include <unistd.h>

static char model[] = "/tmp/fm_budget_XXXXXX";

/* One team of two threads, which need not have cores of their own: parts of attention wait to be
   merged where there are several. */
static fm_machine *team_of_two(uint64_t budget) {
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm__device *device = NULL;
    const int cpus[2] = {-1, -1};
    const fm__host_options options = {.threads = 2, .cpus = cpus};
    CHECK_OK(fm__device_host_create(&device, &options, &error));
    CHECK_OK(fm__machine_adopt(&machine, &device, 1, budget, &error));
    return machine;
}

static fm_engine_options context(uint32_t tokens) {
    fm_engine_options o = fm_engine_options_default();
    o.context_length = tokens;
    o.chunk_rows = 32;
    return o;
}

static void parts_of_attention_count(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine *engines[2] = {NULL};
    fm_engine_info info;
    fm_machine *machine = team_of_two(UINT64_C(1) << 30);
    fm_engine_options o = context(128);
    CHECK_OK(fm_engine_load(&engines[0], machine, model, &o, &error));
    const fm__memory_need need = engines[0]->need;
    const uint64_t all = need.host + need.session;
    fm_engine_get_info(engines[0], &info);
    assert_true(need.kept[0] >= 1 << 20 && info.kept_bytes == need.kept[0]);
    assert_int_equal(need.host, need.host_alone + need.kept[0]);
    assert_int_equal(fm_machine_memory_used(machine), need.host);
    /* A second engine uses the same, which is there for good. */
    CHECK_OK(fm_engine_load(&engines[1], machine, model, &o, &error));
    assert_int_equal(fm_machine_memory_used(machine), need.host + need.host_alone);
    fm_engine_destroy(&engines[0]);
    assert_int_equal(fm_machine_memory_used(machine), need.host);
    fm_engine_destroy(&engines[1]);
    assert_int_equal(fm__device_held(machine->host).scratch, need.kept[0]);
    assert_int_equal(fm_machine_memory_used(machine), need.kept[0]);
    /* The next one is not told of memory that is not there, nor is it counted twice. */
    machine->memory_budget = all - 1;
    assert_int_equal(fm_engine_load(&engines[0], machine, model, &o, &error), FM_ERROR_MEMORY);
    assert_int_equal(fm_machine_memory_used(machine), need.kept[0]);
    machine->memory_budget = all;
    CHECK_OK(fm_engine_load(&engines[0], machine, model, &o, &error));
    assert_int_equal(fm_machine_memory_used(machine), need.host);
    fm_engine_destroy(&engines[0]);
    fm_machine_destroy(&machine);

    /* A byte less than all of it is too little, all of it is enough. */
    machine = team_of_two(all - 1);
    assert_int_equal(fm_engine_load(&engines[0], machine, model, &o, &error), FM_ERROR_MEMORY);
    assert_non_null(strstr(error.message, "kept by units"));
    assert_int_equal(fm_machine_memory_used(machine), 0); /* none of it was made */
    machine->memory_budget = all;
    CHECK_OK(fm_engine_load(&engines[0], machine, model, &o, &error));
    fm_session *session = NULL; /* for which there was to be room */
    CHECK_OK(fm_session_create(&session, engines[0], NULL, &error));
    assert_int_equal(fm_machine_memory_used(machine), all);
    fm_session_destroy(&session);
    fm_engine_destroy(&engines[0]);
    fm_machine_destroy(&machine);
}

/* What is counted is what the device then holds: no recording makes it grow. */
static void it_is_there_before_recordings(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_machine *machine = team_of_two(UINT64_C(1) << 30);
    fm_engine_options o = context(512);
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    uint64_t most = 0;
    for (uint32_t b = 0; b < engine->n_bucket; b++)
        most = fm__max_size(
            most, fm__device_scratch_bytes(machine->host, engine->buckets[b].tape, false));
    assert_int_equal(engine->need.kept[0], most);
    const fm__host *host = (fm__host *)machine->host;
    const fm__host_parts *parts = host->parts;
    assert_true(parts != NULL && parts->older == NULL);
    assert_int_equal(fm__device_held(machine->host).scratch, most);
    fm_session *session = NULL;
    int32_t tokens[40]; /* in several buckets of rows */
    for (int32_t i = 0; i < 40; i++)
        tokens[i] = i;
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_session_prefill(session, tokens, 40, NULL, &error));
    CHECK_OK(fm_session_prefill(session, tokens, 1, NULL, &error));
    assert_ptr_equal(host->parts, parts);
    assert_null(parts->older);
    assert_int_equal(fm__device_held(machine->host).scratch, most);
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
}

/* An engine whose units come to keep more counts the rest, and has it made, or says that there is
   no room for it. */
static void more_is_kept_later(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_machine *machine = team_of_two(UINT64_C(1) << 30);
    fm_engine_options o = context(128);
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    uint64_t kept = engine->need.kept[0], used = fm_machine_memory_used(machine);
    CHECK_OK(fm__engine_reserve_kept(engine, &error)); /* as much as before */
    assert_int_equal(fm_machine_memory_used(machine), used);
    engine->need.kept[0] = 2 * kept;
    machine->memory_budget = used + 2 * kept - 1;
    assert_int_equal(fm__engine_reserve_kept(engine, &error), FM_ERROR_MEMORY);
    assert_int_equal(fm_machine_memory_used(machine), used);
    assert_int_equal(fm__device_held(machine->host).scratch, kept);
    machine->memory_budget++;
    CHECK_OK(fm__engine_reserve_kept(engine, &error));
    assert_int_equal(fm_machine_memory_used(machine), used + 2 * kept); /* beside the old piece */
    assert_int_equal(fm__device_held(machine->host).scratch, 3 * kept);
    fm_engine_destroy(&engine);
    assert_int_equal(fm_machine_memory_used(machine), 3 * kept);
    test_no_engine(machine);
    fm_machine_destroy(&machine);
}

/* The count itself, as for a ring of which less was to be had than it was meant to have. The device
   makes none of it: so nothing stays counted. */
static void less_is_kept_than_was_meant(void **state) {
    (void)state;
    fm_machine *machine = test_discrete_machine(UINT64_C(1) << 30);
    fm__device *far = machine->devices[0];
    far->properties.memory_bytes = 1000;
    _Atomic uint64_t *own = &machine->own_used[0];
    assert_true(fm__machine_keep(machine, far, FM__KEEPS_RING, 400));
    assert_true(fm__machine_keep(machine, far, FM__KEEPS_SCRATCH, 100));
    assert_int_equal(*own, 500);
    assert_int_equal(fm__machine_would_keep(machine, far, FM__KEEPS_RING, 400), 0);
    assert_false(fm__machine_keep(machine, far, FM__KEEPS_RING, 401)); /* a second one beside it */
    assert_int_equal(*own, 500);
    fm__machine_keep_less(machine, far, FM__KEEPS_RING, 150);
    assert_int_equal(*own, 250);
    fm__machine_keep_less(machine, far, FM__KEEPS_RING, 200); /* never more */
    assert_int_equal(*own, 250);
    assert_true(fm__machine_keep(machine, far, FM__KEEPS_RING, 150));
    assert_int_equal(*own, 250);
    fm__machine_let_go(machine, far, FM__KEEPS_RING);
    assert_int_equal(*own, 250);
    fm__machine_let_go(machine, far, FM__KEEPS_RING);
    assert_int_equal(*own, 100);
    /* More than there is makes another piece beside the old one. */
    assert_true(fm__machine_keep(machine, far, FM__KEEPS_SCRATCH, 120));
    assert_int_equal(*own, 220);
    fm__machine_let_go(machine, far, FM__KEEPS_SCRATCH);
    assert_int_equal(*own, 220);
    fm__machine_let_go(machine, far, FM__KEEPS_SCRATCH);
    assert_int_equal(*own, 0);
    assert_int_equal(fm_machine_memory_used(machine), 0);
    fm_machine_destroy(&machine);
}

/* Loads with a budget that is `less` bytes short of what is needed; the message holds `advice`. */
static void refused_with(const fm_engine_options *o, uint64_t needed, uint64_t less,
                         const char *advice) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_machine *machine = team_of_two(needed - less);
    assert_int_equal(fm_engine_load(&engine, machine, model, o, &error), FM_ERROR_MEMORY);
    if (!strstr(error.message, advice))
        fail_msg("says \"%s\", not \"%s\"", error.message, advice);
    assert_int_equal(fm_machine_memory_used(machine), 0);
    fm_machine_destroy(&machine);
}

/* Room for outputs is looked for at loading and counted by the batch; whatever is too large is what
   the advice names. */
static void outputs_of_batches_count(void **state) {
    (void)state;
    enum { OUTPUTS = 4096 };
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_batch *batch = NULL;
    fm_session *session = NULL;
    fm_machine *machine = team_of_two(UINT64_C(1) << 30);
    fm_engine_options o = context(128);
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    assert_int_equal(engine->need.batch, 0);
    uint64_t alone = engine->need.host + engine->need.session;
    uint64_t outputs = (uint64_t)OUTPUTS * fm_engine_vocab_size(engine) * sizeof(float);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);

    o.batch_outputs = OUTPUTS;
    refused_with(&o, alone + outputs, 1, "batches of fewer outputs than 4096 need less");
    refused_with(&o, alone + outputs, 1, "outputs of batches ");
    machine = team_of_two(alone + outputs);
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    assert_int_equal(fm_machine_memory_used(machine) + engine->need.session + outputs,
                     alone + outputs);
    CHECK_OK(fm_session_create(&session, engine, NULL, &error));
    CHECK_OK(fm_batch_create(&batch, engine, OUTPUTS, OUTPUTS, &error));
    assert_int_equal(fm_machine_memory_used(machine), alone + outputs);
    fm_batch_destroy(&batch);
    assert_int_equal(fm_batch_create(&batch, engine, OUTPUTS + 1, OUTPUTS + 1, &error),
                     FM_ERROR_MEMORY);
    fm_session_destroy(&session);
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);

    o.batch_outputs = (1u << 24) + 1;
    machine = team_of_two(UINT64_C(1) << 30);
    assert_int_equal(fm_engine_load(&engine, machine, model, &o, &error), FM_ERROR_ARGUMENT);
    fm_machine_destroy(&machine);
}

/* Many rows a run, a short context: fewer rows help. A long context: a shorter one does. */
static void advice_names_what_is_large(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine *engine = NULL;
    for (int long_context = 0; long_context < 2; long_context++) {
        fm_machine *machine = team_of_two(UINT64_C(1) << 32);
        fm_engine_options o = context(long_context ? 256 : 64);
        o.chunk_rows = long_context ? 1 : 4096;
        CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
        uint64_t needed = engine->need.host + engine->need.session;
        fm_engine_destroy(&engine);
        fm_machine_destroy(&machine);
        refused_with(&o, needed, 1,
                     long_context ? "a context of 192 tokens would fit"
                                  : "runs of fewer rows than 4096 need less");
        if (!long_context)
            refused_with(&o, needed, needed - 1, "the weights alone need more");
    }
}

/* Where the size of the cache is fixed a shorter context changes nothing: each part that counts is
   named, and no other. */
static void advice_without_a_context(void **state) {
    (void)state;
    enum { ROWS = 4096, OUTPUTS = 8192, TOKENS = 64 };
    fm_error error = {0};
    fm_engine *engine = NULL;
    for (int with_outputs = 0; with_outputs < 2; with_outputs++) {
        fm_machine *machine = team_of_two(UINT64_C(1) << 32);
        fm_engine_options o = context(64);
        o.cache_tokens = TOKENS;
        o.chunk_rows = ROWS;
        o.batch_outputs = with_outputs ? OUTPUTS : 0;
        CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
        const fm__memory_need need = engine->need;
        fm_engine_destroy(&engine);
        fm_machine_destroy(&machine);
        uint64_t needed = need.host + need.session + need.batch;
        uint64_t rows = need.scratch + need.output - (need.scratch + need.output) / ROWS;
        assert_true(need.cache < rows && (!with_outputs || need.cache < need.batch));
        refused_with(&o, needed, rows + need.batch + 1,
                     with_outputs ? "; runs of fewer rows than 4096, batches of fewer outputs than "
                                    "8192, and fewer cache_tokens than 64 need less"
                                  : "; runs of fewer rows than 4096 and fewer cache_tokens than 64 "
                                    "need less");
        if (with_outputs)
            refused_with(&o, needed, fm__max_size(rows, need.batch) + 1,
                         "; runs of fewer rows than 4096 and batches of fewer outputs than 8192 "
                         "need less");
        refused_with(&o, needed, needed - need.weights - 1,
                     with_outputs ? "and fewer cache_tokens than 64 need less"
                                  : "fewer cache_tokens than 64 need less");
        refused_with(&o, needed, needed - 1, "the weights alone need more");
    }
}

static void advice_where_a_fixed_cache_is_large(void **state) {
    (void)state;
    fm_error error = {0};
    fm_engine *engine = NULL;
    fm_machine *machine = team_of_two(UINT64_C(1) << 32);
    fm_engine_options o = context(64);
    o.chunk_rows = 1;
    o.cache_tokens = 4096;
    CHECK_OK(fm_engine_load(&engine, machine, model, &o, &error));
    const fm__memory_need need = engine->need;
    uint64_t needed = need.host + need.session;
    fm_engine_destroy(&engine);
    fm_machine_destroy(&machine);
    refused_with(&o, needed, 1, "; fewer cache_tokens than 4096 need less");
    refused_with(&o, needed, need.cache, "; fewer cache_tokens than 4096 need less");
}

static int make_model(void **state) {
    (void)state;
    return test_make_tiny(model);
}

static int remove_model(void **state) {
    (void)state;
    return unlink(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_attention_count),
        cmocka_unit_test(it_is_there_before_recordings),
        cmocka_unit_test(more_is_kept_later),
        cmocka_unit_test(less_is_kept_than_was_meant),
        cmocka_unit_test(outputs_of_batches_count),
        cmocka_unit_test(advice_names_what_is_large),
        cmocka_unit_test(advice_without_a_context),
        cmocka_unit_test(advice_where_a_fixed_cache_is_large),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
