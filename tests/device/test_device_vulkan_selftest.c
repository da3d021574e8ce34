/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The self-test of the vulkan device: it passes kernels that are right, for every type and op of a
 * small model, and leaves out those that are wrong, by name.
 */
#include "device/vulkan/vulkan.h"
#include "fixture.h"

static fm__device *make_device(void) {
    fm__device *device = NULL;
    const fm__vulkan_options options = {.allow_software = true, .cache_dir = ""};
    CHECK(fm__device_vulkan_create(&device, &options, why));
    return device;
}

static void expect_pass(fm__device *device, const fm__tape *tape) {
    uint32_t tested = 0, excluded = 1;
    CHECK(fm__device_vulkan_self_test(device, tape, NULL, NULL, &tested, &excluded, why));
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const char *reason = "";
        if (!fm__device_op_supports(device, tape, &tape->ops[i], &reason))
            fail_msg("op %u (%s): %s", i, fm__op_name(tape->ops[i].kind), reason);
    }
    assert_int_equal(excluded, 0);
    assert_true(tested >= 12);
}

/* Every op kind, biases and residuals, two types, a tape for one row and one for many. */
static void test_model(void **state) {
    (void)state;
    fm__device *device = make_device();
    for (uint32_t rows = 1; rows <= 40; rows += 39) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, rows, 1);
        expect_pass(device, m.tape);
        model_finish(&m);
    }
    fm__device_destroy(&device);
}

static void test_float_model(void **state) {
    (void)state;
    fm__device *device = make_device();
    for (int fast = 0; fast < 2; fast++) {
        model m;
        model_init(&m, FM__F32, FM__F32, 5, 1);
        for (uint32_t i = 0; i < m.tape->n_op; i++)
            m.tape->ops[i].fast = fast != 0 && (m.tape->ops[i].kind == FM__OP_LINEAR ||
                                                m.tape->ops[i].kind == FM__OP_LINEAR_GLU);
        expect_pass(device, m.tape);
        model_finish(&m);
    }
    fm__device_destroy(&device);
}

/* With products of one type made wrong, those ops are denied and no others. */
static void test_wrong_kernel(void **state) {
    (void)state;
    fm__device *device = make_device();
    ((fm__vulkan *)device)->trial.sabotage = fm__type_get(FM__Q4_K);
    for (uint32_t rows = 1; rows <= 12; rows += 11) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, rows, 1);
        uint32_t tested = 0, excluded = 0, denied = 0;
        CHECK(fm__device_vulkan_self_test(device, m.tape, NULL, NULL, &tested, &excluded, why));
        for (uint32_t i = 0; i < m.tape->n_op; i++) {
            const fm__op *op = &m.tape->ops[i];
            bool product = op->kind == FM__OP_LINEAR || op->kind == FM__OP_LINEAR_GLU;
            bool wrong = product && m.f.weights[op->weight[0]]->type->dtype == FM__Q4_K;
            const char *reason = "";
            bool supported = fm__device_op_supports(device, m.tape, op, &reason);
            assert_int_equal(supported, !wrong);
            if (supported)
                continue;
            denied++;
            const char *kernel = fm__device_op_kernel(device, m.tape, op);
            assert_non_null(strstr(reason, kernel));
            assert_non_null(strstr(reason, "self-test"));
        }
        assert_true(denied > 0);
        /* LINEAR and LINEAR_GLU; the logits may have one row when others have many. */
        assert_true(excluded >= 2 || rows > 1);
        model_finish(&m);
    }
    fm__device_destroy(&device);
}

static int stop_at(void *user, uint32_t op) {
    uint32_t *left = user;
    (void)op;
    return (*left)-- == 0;
}

/* Between any two kernels it ends when it is told to; the device is whole then. */
static void test_cancel(void **state) {
    (void)state;
    fm__device *device = make_device();
    model m;
    model_init(&m, FM__Q8_0, FM__Q4_K, 5, 1);
    for (uint32_t n = 0; n < 9; n += 4) {
        uint32_t left = n, tested = 99, excluded = 99;
        fm_error error = {0};
        assert_int_equal(
            fm__device_vulkan_self_test(device, m.tape, stop_at, &left, &tested, &excluded, &error),
            FM_ERROR_CANCELLED);
        assert_int_equal(tested, n);
        assert_int_equal(excluded, 0);
    }
    expect_pass(device, m.tape);
    model_finish(&m);
    fm__device_destroy(&device);
}

int main(void) {
    if (fm__device_vulkan_count(true) == 0) {
        printf("skip: no Vulkan device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_float_model),
        cmocka_unit_test(test_wrong_kernel),
        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
