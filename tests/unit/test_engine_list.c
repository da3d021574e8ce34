/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device lists: what is understood, and what each mistake is called. And the machines that they
 * make: processors of host teams, the host that every machine has, what a device says of itself.
 */
#include "engine/engine.h"
#include "test.h"

#include <unistd.h>

static fm__device_list list;

static void understood(const char *text) {
    fm_error error = {0};
    if (fm__devices_parse(text, &list, &error) != FM_OK)
        fail_msg("%s: %s: %s", text, error.place, error.message);
}

static void refused(const char *text, const char *item, const char *why) {
    fm_error error = {0};
    char place[80];
    assert_int_equal(fm__devices_parse(text, &list, &error), FM_ERROR_ARGUMENT);
    snprintf(place, sizeof(place), "device \"%s\"", item);
    assert_string_equal(error.place, place);
    if (!strstr(error.message, why))
        fail_msg("%s: says \"%s\", not \"%s\"", text, error.message, why);
}

static void forms(void **state) {
    (void)state;
    understood(NULL);
    assert_true(list.automatic);
    assert_int_equal(list.n, 0);
    understood("auto");
    assert_true(list.automatic);

    understood("vulkan:0,host");
    assert_false(list.automatic);
    assert_int_equal(list.n, 2);
    assert_int_equal(list.items[0].kind, FM__ITEM_VULKAN);
    assert_int_equal(list.items[0].index, 0);
    assert_false(list.items[0].discrete);
    assert_int_equal(list.items[1].kind, FM__ITEM_HOST);
    assert_int_equal(list.items[1].cores, FM__ITEM_ALL);
    assert_int_equal(list.items[1].n_cpu, 0);

    understood("vulkan:12+discrete");
    assert_int_equal(list.items[0].index, 12);
    assert_true(list.items[0].discrete);
    understood("vulkan");
    assert_int_equal(list.items[0].index, 0);

    understood("host:0-1,host:2");
    assert_int_equal(list.n, 2);
    assert_string_equal(list.items[0].text, "host:0-1");
    assert_int_equal(list.items[0].cores, FM__ITEM_LISTED);
    assert_int_equal(list.items[0].n_cpu, 2);
    assert_int_equal(list.items[0].cpus[1], 1);
    assert_int_equal(list.items[1].cpus[0], 2);

    understood("host:0+2+4-6,null");
    assert_int_equal(list.items[0].n_cpu, 5);
    assert_int_equal(list.items[0].cpus[4], 6);
    assert_int_equal(list.items[1].kind, FM__ITEM_NULL);

    understood("host:p,host:e");
    assert_int_equal(list.items[0].cores, FM__ITEM_PERFORMANCE);
    assert_int_equal(list.items[1].cores, FM__ITEM_EFFICIENCY);
}

static void mistakes(void **state) {
    (void)state;
    refused("", "", "empty");
    refused("host,", "", "empty");
    refused(",host", "", "empty");
    refused("gpu", "gpu", "not a device");
    refused("hostess", "hostess", "not a device");
    refused("Host", "Host", "not a device");
    refused("host ,null", "host ", "not a device");
    refused("nullify", "nullify", "not a device");
    refused("null:1", "null:1", "not a device");
    refused("auto,host", "auto", "stands alone");
    refused("host:", "host:", "number is missing at character 6");
    refused("host:x", "host:x", "number is missing");
    refused("host:0-", "host:0-", "number is missing at character 8");
    refused("host:0+", "host:0+", "number is missing");
    refused("host:0 1", "host:0 1", "' ' at character 7");
    refused("host:3-1", "host:3-1", "backwards");
    refused("host:0-3+2", "host:0-3+2", "processor 2 is listed twice");
    refused("host:-1", "host:-1", "number is missing");
    refused("host:1234567", "host:1234567", "number is missing");
    refused("host:0-99999", "host:0-99999", "more than 1024 processors");
    refused("host:pe", "host:pe", "number is missing");
    refused("vulkan:", "vulkan:", "number is expected");
    refused("vulkan:0+fast", "vulkan:0+fast", "not understood");
    refused("vulkan:0x1", "vulkan:0x1", "not understood");
    refused("vulkan:0,vulkan:1", "vulkan:0,vulkan:1", "one Vulkan device at most");
    refused("null,null,null,null,null,null,null,null", "null,null,null,null,null,null,null,null",
            "more than 7 devices");
}

/* ---- machines ---- */

static fm_status make(fm_machine **machine, const char *devices, uint32_t threads,
                      fm_error *error) {
    fm_machine_options options = fm_machine_options_default();
    options.devices = devices;
    options.threads = threads;
    options.memory_budget = 1 << 28;
    return fm_machine_create(machine, &options, error);
}

static void not_made(const char *devices, uint32_t threads, fm_status want, const char *why) {
    fm_error error = {0};
    fm_machine *machine = NULL;
    assert_int_equal(make(&machine, devices, threads, &error), want);
    assert_null(machine);
    if (!strstr(error.message, why) && !strstr(error.place, why))
        fail_msg("%s: says \"%s: %s\", not \"%s\"", devices, error.place, error.message, why);
}

static void teams(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm_device_info info;
    assert_int_equal(make(&machine, "host:0", 0, &error), FM_OK);
    assert_int_equal(fm_machine_device_count(machine), 1);
    assert_int_equal(fm_machine_device(machine, 0, &info, &error), FM_OK);
    assert_string_equal(info.name, "host:0");
    assert_string_equal(info.kind, "cpu");
    assert_int_equal(info.threads, 1);
    assert_true(info.unified);
    assert_false(info.software);
    assert_string_equal(info.driver, "");
    assert_string_equal(info.excluded, "");
    fm_machine_destroy(&machine);

    int cpus[2];
    if (fm__cores(cpus, 2) < 2) {
        print_message("one core: pairs of teams are not tried\n");
        return;
    }
    char pair[64];
    snprintf(pair, sizeof(pair), "host:%d,host:%d", cpus[0], cpus[1]);
    assert_int_equal(make(&machine, pair, 0, &error), FM_OK);
    assert_int_equal(fm_machine_device_count(machine), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(fm_machine_device(machine, i, &info, &error), FM_OK);
        assert_int_equal(info.threads, 1);
    }
    assert_int_equal(fm_machine_device(machine, 2, &info, &error), FM_ERROR_ARGUMENT);
    fm_machine_destroy(&machine);

    snprintf(pair, sizeof(pair), "host:%d,host:%d", cpus[1], cpus[1]);
    not_made(pair, 0, FM_ERROR_ARGUMENT, "is in team");
    snprintf(pair, sizeof(pair), "host,host:%d", cpus[1]);
    not_made(pair, 0, FM_ERROR_ARGUMENT, "is in team \"host\"");
    not_made("host,host", 0, FM_ERROR_ARGUMENT, "is in team \"host\"");
    not_made("host:0", 2, FM_ERROR_ARGUMENT, "2 threads were asked for, it lists 1 processor");
    long n = sysconf(_SC_NPROCESSORS_CONF);
    char there[64];
    snprintf(there, sizeof(there),
             n == 1 ? "there is no processor 9999, only host:0"
                    : "there is no processor 9999, only host:0-%ld",
             n - 1);
    not_made("host:9999", 0, FM_ERROR_ARGUMENT, there);
    snprintf(pair, sizeof(pair), "host:0-%ld", n);
    not_made(pair, 0, FM_ERROR_ARGUMENT, "there is no processor");
}

static void host_joins(void **state) {
    (void)state;
    fm_error error = {0};
    fm_machine *machine = NULL;
    fm_device_info info;
    assert_int_equal(make(&machine, "null", 2, &error), FM_OK);
    assert_int_equal(fm_machine_device_count(machine), 2);
    assert_int_equal(fm_machine_device(machine, 0, &info, &error), FM_OK);
    assert_string_equal(info.kind, "gpu");
    assert_int_equal(fm_machine_device(machine, 1, &info, &error), FM_OK);
    assert_string_equal(info.name, "host");
    assert_int_equal(info.threads, 2);
    /* Types are the host's to answer for, wherever it stands. */
    fm_type_info type;
    assert_int_equal(fm_machine_type(machine, 0, &type, &error), FM_OK);
    assert_true(type.exact_kernel[0] != 0);
    fm_machine_destroy(&machine);
}

/* A device that is asked for by name and cannot be had is an error; with "auto" it is not. */
static void no_such_device(void **state) {
    (void)state;
    fm_machine *machine = NULL;
    fm_error error = {0};
    not_made("vulkan:999", 0, FM_ERROR_UNSUPPORTED, "vulkan:999");
    assert_int_equal(make(&machine, "auto", 1, &error), FM_OK);
    assert_true(fm_machine_device_count(machine) >= 1);
    fm_machine_destroy(&machine);
}

/* hwloc reads a made-up processor: 2 fast cores of two threads, 4 slow ones. */
static const char hybrid[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
    "<topology version=\"2.0\">\n"
    "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x000000ff\" complete_cpuset=\"0x000000ff\" "
    "allowed_cpuset=\"0x000000ff\" nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" "
    "allowed_nodeset=\"0x00000001\" gp_index=\"1\">\n"
    "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x000000ff\" complete_cpuset=\"0x000000ff\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"2\" "
    "local_memory=\"1073741824\"/>\n"
    "<object type=\"Core\" os_index=\"0\" cpuset=\"0x00000003\" complete_cpuset=\"0x00000003\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"3\">\n"
    "<object type=\"PU\" os_index=\"0\" cpuset=\"0x00000001\" complete_cpuset=\"0x00000001\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"4\"/>\n"
    "<object type=\"PU\" os_index=\"1\" cpuset=\"0x00000002\" complete_cpuset=\"0x00000002\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"5\"/>\n"
    "</object>\n"
    "<object type=\"Core\" os_index=\"1\" cpuset=\"0x0000000c\" complete_cpuset=\"0x0000000c\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"6\">\n"
    "<object type=\"PU\" os_index=\"2\" cpuset=\"0x00000004\" complete_cpuset=\"0x00000004\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"7\"/>\n"
    "<object type=\"PU\" os_index=\"3\" cpuset=\"0x00000008\" complete_cpuset=\"0x00000008\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"8\"/>\n"
    "</object>\n"
    "%s"
    "</object>\n"
    "%s"
    "</topology>\n";

static void write_topology(const char *path, bool kinds) {
    char cores[4096] = "";
    for (int i = 4; i < 8; i++) {
        size_t end = strlen(cores);
        snprintf(
            cores + end, sizeof(cores) - end,
            "<object type=\"Core\" os_index=\"%d\" cpuset=\"0x%08x\" complete_cpuset=\"0x%08x\" "
            "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"%d\">\n"
            "<object type=\"PU\" os_index=\"%d\" cpuset=\"0x%08x\" complete_cpuset=\"0x%08x\" "
            "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"%d\"/>\n"
            "</object>\n",
            i, 1 << i, 1 << i, 20 + i, i, 1 << i, 1 << i, 40 + i);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, hybrid, cores,
            kinds ? "<cpukind cpuset=\"0x000000f0\" forced_efficiency=\"0\"/>\n"
                    "<cpukind cpuset=\"0x0000000f\" forced_efficiency=\"1\"/>\n"
                  : "");
    fclose(file);
}

static void core_kinds(void **state) {
    (void)state;
    char path[] = "/tmp/fm_topology_XXXXXX";
    int cpus[8], fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_topology(path, true);
    setenv("HWLOC_XMLFILE", path, 1);
    size_t fast = fm__core_list(FM__CORES_PERFORMANCE, cpus, 8);
    assert_int_equal(fast, 2);
    assert_int_equal(cpus[0], 0);
    assert_int_equal(cpus[1], 2);
    assert_int_equal(fm__core_list(FM__CORES_EFFICIENCY, cpus, 8), 4);
    assert_int_equal(cpus[0], 4);
    assert_int_equal(cpus[3], 7);
    assert_int_equal(fm__core_list(FM__CORES_EFFICIENCY, cpus, 1), 4); /* counts beyond the room */
    write_topology(path, false);
    assert_int_equal(fm__core_list(FM__CORES_PERFORMANCE, cpus, 8), 0);
    assert_int_equal(fm__core_list(FM__CORES_EFFICIENCY, cpus, 8), 0);
    not_made("host:p", 0, FM_ERROR_UNSUPPORTED, "one kind");
    unsetenv("HWLOC_XMLFILE");
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms),      cmocka_unit_test(mistakes),
        cmocka_unit_test(teams),      cmocka_unit_test(host_joins),
        cmocka_unit_test(core_kinds), cmocka_unit_test(no_such_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
