/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine_probe.c: the mechanism probe and the environment stamp. */
#include "model_test.h"

enum { RATIOS = 8, CASES = 10 };

static fm__device *host_team(const char *name) {
    static const int anywhere[] = {-1};
    fm__device *device = NULL;
    fm_error error = {0};
    const fm__host_options options = {.threads = 1, .cpus = anywhere, .name = name};
    CHECK_OK(fm__device_host_create(&device, &options, &error));
    return device;
}

static fm_machine *adopt(fm__device *first, fm__device *second) {
    fm_machine *machine = NULL;
    fm_error error = {0};
    fm__device *devices[2] = {first, second};
    CHECK_OK(
        fm__machine_adopt(&machine, devices, second != NULL ? 2 : 1, UINT64_C(1) << 30, &error));
    return machine;
}

static fm_lab_probe_options small(const char *type, fm_axis axis) {
    fm_lab_probe_options o = fm_lab_probe_options_default();
    o.rows = 33;
    o.k = 512;
    o.n = 208;
    o.type = type;
    o.axis = axis;
    o.share = 0.4;
    o.warmup = 1;
    o.trials = 3;
    o.seed = 5;
    return o;
}

static json_t *probe(fm_machine *machine, const fm_lab_probe_options *options) {
    char *text = NULL;
    fm_error error = {0};
    json_error_t fault;
    CHECK_OK(fm_lab_probe(machine, options, NULL, NULL, &text, &error));
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
    if (root == NULL)
        fail_msg("not JSON: %s at %d", fault.text, fault.position);
    fm_free(text);
    return root;
}

static const char *string(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    assert_non_null(value);
    return value;
}

/* Every way of waiting, either axis: the same bits, raw trials, all ratios; the overlap of what is
   serial by construction is none. */
static void cases_agree(void **state) {
    (void)state;
    static const char *const types[] = {"q8_0", "q4_k", "f16", "f32"};
    fm_machine *machine = adopt(host_team("one"), host_team("two"));
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        char first[32] = "";
        for (int axis = FM_AXIS_CHANNELS; axis <= FM_AXIS_TOKENS; axis++) {
            const fm_lab_probe_options o = small(types[t], (fm_axis)axis);
            json_t *root = probe(machine, &o);
            const json_t *cases = json_object_get(root, "cases"), *entry;
            size_t i;
            assert_true(json_is_true(json_object_get(root, "equal")));
            assert_int_equal(json_array_size(cases), CASES);
            assert_int_equal(json_array_size(json_object_get(root, "ratios")), RATIOS);
            assert_int_equal(json_array_size(json_object_get(root, "ranges")), 2);
            json_array_foreach(cases, i, entry) {
                assert_int_equal(json_array_size(json_object_get(entry, "ns")), o.trials);
                assert_true(json_number_value(json_object_get(entry, "median_ns")) > 0);
            }
            json_array_foreach(json_object_get(root, "overlap"), i, entry) {
                if (strcmp(string(entry, "case"), "D") == 0)
                    assert_true(json_number_value(json_object_get(entry, "of_shorter")) < 0.01);
            }
            const char *hash = string(json_array_get(cases, 0), "hash");
            if (first[0] == '\0')
                snprintf(first, sizeof first, "%s", hash);
            assert_string_equal(first, hash);
            json_decref(root);
        }
    }
    assert_int_equal(fm_machine_memory_used(machine), 0);
    fm_machine_destroy(&machine);
}

static void a_share_is_found(void **state) {
    (void)state;
    fm_machine *machine = adopt(host_team("one"), host_team("two"));
    fm_lab_probe_options o = small("q8_0", FM_AXIS_TOKENS);
    o.share = -1;
    json_t *root = probe(machine, &o);
    double share = json_number_value(json_object_get(root, "share"));
    assert_true(share > 0 && share < 1);
    assert_true(json_array_size(json_object_get(json_object_get(root, "search"), "points")) >= 2);
    json_decref(root);
    fm_machine_destroy(&machine);
}

/* A unit that computes nothing is infinitely fast: it must not get a ratio. */
static void an_idle_unit_is_found_out(void **state) {
    (void)state;
    fm__device *idle = NULL;
    fm_error error = {0};
    const fm__null_options options = {.name = "idle", .memory_bytes = UINT64_C(1) << 30};
    CHECK_OK(fm__device_null_create(&idle, &options, &error));
    fm_machine *machine = adopt(host_team("one"), idle);
    const fm_lab_probe_options o = small("q8_0", FM_AXIS_CHANNELS);
    json_t *root = probe(machine, &o);
    assert_true(json_is_false(json_object_get(root, "equal")));
    assert_true(json_is_false(json_object_get(root, "valid")));
    assert_int_equal(json_array_size(json_object_get(root, "ratios")), 0);
    json_decref(root);
    fm_machine_destroy(&machine);
}

static void check_refused(fm_machine *machine, const fm_lab_probe_options *o, fm_status status,
                          const char *place) {
    char *text = NULL;
    fm_error error = {0};
    assert_int_equal(fm_lab_probe(machine, o, NULL, NULL, &text, &error), status);
    assert_null(text);
    assert_string_equal(error.place, place);
    assert_int_equal(fm_machine_memory_used(machine), 0);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    fm_machine *machine = adopt(host_team("one"), host_team("two"));
    fm_lab_probe_options o = small("q9_0", FM_AXIS_TOKENS);
    check_refused(machine, &o, FM_ERROR_ARGUMENT, "type");
    o = small("q4_k", FM_AXIS_TOKENS);
    o.k = 96;
    check_refused(machine, &o, FM_ERROR_ARGUMENT, "k");
    o = small("q8_0", FM_AXIS_TOKENS);
    for (int i = 0; i < 3; i++) {
        o.share = i == 0 ? 0 : i == 1 ? 1 : 7;
        check_refused(machine, &o, FM_ERROR_ARGUMENT, "share");
    }
    o = small("q8_0", FM_AXIS_PRODUCTS);
    check_refused(machine, &o, FM_ERROR_ARGUMENT, "axis");
    o = small("f32", FM_AXIS_TOKENS);
    o.k = o.n = 1 << 20;
    check_refused(machine, &o, FM_ERROR_MEMORY, "probe");
    o.rows = (1 << 20) + 1;
    check_refused(machine, &o, FM_ERROR_ARGUMENT, "probe");
    fm_machine_destroy(&machine);

    machine = adopt(host_team("one"), NULL);
    o = small("q8_0", FM_AXIS_TOKENS);
    check_refused(machine, &o, FM_ERROR_ARGUMENT, "probe");
    fm_machine_destroy(&machine);
}

static int stop_at(void *user, const char *phase, uint32_t done, uint32_t total) {
    (void)phase;
    (void)done;
    (void)total;
    uint32_t *left = user;
    return (*left)-- == 0;
}

static void it_can_be_stopped(void **state) {
    (void)state;
    fm_machine *machine = adopt(host_team("one"), host_team("two"));
    const fm_lab_probe_options o = small("q8_0", FM_AXIS_TOKENS);
    for (uint32_t i = 0; i < 13; i++) { /* 10 cases to warm up, 3 trials */
        uint32_t left = i;
        char *text = NULL;
        fm_error error = {0};
        assert_int_equal(fm_lab_probe(machine, &o, stop_at, &left, &text, &error),
                         FM_ERROR_CANCELLED);
        assert_int_equal(fm_machine_memory_used(machine), 0);
    }
    fm_machine_destroy(&machine);
}

static void stamp_is_json(void **state) {
    (void)state;
    fm_machine *machine = adopt(host_team("a \"name\""), NULL);
    json_error_t fault;
    char *text = fm_lab_stamp(machine);
    assert_non_null(text);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
    if (root == NULL)
        fail_msg("not JSON: %s: %s", fault.text, text);
    assert_string_equal(string(root, "version"), fm_version());
    assert_true(strlen(string(root, "cpu")) > 0);
    assert_true(strlen(string(root, "compiler")) > 0);
    assert_true(json_integer_value(json_object_get(root, "memory_available")) > 0);
    assert_int_equal(json_array_size(json_object_get(root, "load")), 3);
    const json_t *device = json_array_get(json_object_get(root, "devices"), 0);
    assert_string_equal(string(device, "name"), "a \"name\"");
    json_decref(root);
    fm_free(text);
    fm_machine_destroy(&machine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_agree),
        cmocka_unit_test(a_share_is_found),
        cmocka_unit_test(an_idle_unit_is_found_out),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(it_can_be_stopped),
        cmocka_unit_test(stamp_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
