/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's temporaries and its ring count before they are made, and are what was counted: in its own
 * memory where that is apart, else in the machine's.
 */
#include "device/vulkan/core.h"
#include "device_test.h"

#include <unistd.h>

static char model[] = "/tmp/fm_budget_XXXXXX";

static fm_engine *load(fm_machine *machine, const fm_engine_options *o) {
    fm_error error = {0};
    fm_engine *engine = NULL;
    CHECK_OK(fm_engine_load(&engine, machine, model, o, &error));
    return engine;
}

static void temporaries_and_ring(void **state) {
    (void)state;
    for (int discrete = 0; discrete < 2; discrete++) {
        fm_error error = {0};
        fm_machine *machine =
            test_units_machine(discrete ? TEST_VULKAN_DISCRETE : TEST_VULKAN, &error);
        assert_non_null(machine);
        const fm__vulkan_core *core = ((fm__vulkan *)machine->devices[0])->core;
        fm_engine_options o = fm_engine_options_default();
        o.context_length = 512; /* so many blocks of keys that few rows are attended in parts */
        o.chunk_rows = 64;
        o.weights = FM_WEIGHTS_STREAMED;
        o.arm = FM_ARM_GPU;
        fm_engine *engine = load(machine, &o);
        const fm__memory_need *n = &engine->need;
        assert_true(n->kept[0] >= 1 << 20);
        assert_int_equal(core->temporary->buffer->base.bytes, n->kept[0]);
        assert_int_equal(n->ring, core->ring.buffer->base.bytes);
        uint64_t used =
            discrete ? atomic_load(&machine->own_used[0]) : fm_machine_memory_used(machine);
        uint64_t alone = discrete ? n->own_alone : n->host_alone;
        assert_int_equal(used, alone + n->kept[0] + n->ring);
        assert_int_equal(discrete ? n->own : n->host, used);
        fm_session *session = NULL;
        const int32_t token = 1;
        CHECK_OK(fm_session_create(&session, engine, NULL, &error));
        CHECK_OK(fm_session_prefill(session, &token, 1, NULL, &error));
        assert_int_equal(core->temporary->buffer->base.bytes, n->kept[0]);
        fm_session_destroy(&session);
        /* It stays, and stays counted; the next engine finds it there. */
        uint64_t kept = n->kept[0] + n->ring;
        for (int round = 0; round < 2; round++) {
            fm_engine_destroy(&engine);
            test_no_engine(machine);
            const fm__held held = fm__device_held(machine->devices[0]);
            assert_int_equal(held.scratch + held.ring, kept);
            uint64_t now =
                discrete ? atomic_load(&machine->own_used[0]) : fm_machine_memory_used(machine);
            assert_int_equal(now, kept);
            if (round == 1)
                break;
            engine = load(machine, &o);
            now = discrete ? atomic_load(&machine->own_used[0]) : fm_machine_memory_used(machine);
            assert_int_equal(now, used);
        }
        /* Without a byte of it there is a refusal that says so. */
        if (discrete) {
            machine->devices[0]->properties.memory_bytes = used / 9 * 10 - 20;
            assert_int_equal(fm_engine_load(&engine, machine, model, &o, &error), FM_ERROR_MEMORY);
            assert_non_null(strstr(error.message, "temporaries"));
        }
        fm_machine_destroy(&machine);
    }
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
    if (fm__device_vulkan_count(true) == 0) {
        puts("skip: no Vulkan device, not even one that the processor emulates");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(temporaries_and_ring)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
