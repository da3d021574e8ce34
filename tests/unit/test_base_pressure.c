/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pressure and power source, read from files below a folder of the test's own. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "test.h"

static char root[64];

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/fm_pressure_XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static void remove_below(const char *path) {
    DIR *directory = opendir(path);
    if (directory != NULL) {
        for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
            char inner[600];
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
            remove_below(inner);
        }
        closedir(directory);
    }
    remove(path);
}

static int remove_root(void **state) {
    (void)state;
    remove_below(root);
    return 0;
}

/* Writes root/path, folders included. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        mkdir(full, 0755);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static fm__pressure reading(fm__pressure_state *s, uint64_t now_ns, uint64_t faults) {
    fm__pressure p;
    fm__pressure_read(s, root, now_ns, faults, &p);
    return p;
}

static void files_are_read(void **state) {
    (void)state;
    fm__pressure_state s = {0};
    fm__pressure p = reading(&s, 1, 10); /* no files at all: nothing is known, nothing is tight */
    assert_false(p.stall_known);
    assert_true(p.total_bytes == 0 && p.available_bytes == 0 && p.elapsed_ns == 0);
    assert_false(fm__pressure_is_tight(&p));
    put("/proc/pressure/memory", "some avg10=12.34 avg60=1.00 avg300=0.20 total=77\n"
                                 "full avg10=3.00 avg60=0.00 avg300=0.00 total=7\n");
    put("/proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n"
                         "MemAvailable:    8000000 kB\n");
    p = reading(&s, 2000000001, 25);
    assert_true(p.stall_known && p.stall > 12.339 && p.stall < 12.341);
    assert_true(p.total_bytes == UINT64_C(16384000000));
    assert_true(p.available_bytes == UINT64_C(8192000000));
    assert_true(p.major_faults == 15 && p.elapsed_ns == 2000000000);
    assert_true(fm__pressure_is_tight(&p));
}

static void broken_files_say_nothing(void **state) {
    (void)state;
    static const char *const stalls[] = {
        "", "some\n", "some avg10=\n", "some avg10=-1\n", "some avg10=x\n", "full avg10=99.0\n"};
    static const char *const memory[] = {"", "MemTotal:\n", "MemTotal: x kB\n",
                                         "MemTotal: 99999999999999999999 kB\n", "MemTotal"};
    for (size_t i = 0; i < sizeof stalls / sizeof *stalls; i++)
        for (size_t j = 0; j < sizeof memory / sizeof *memory; j++) {
            put("/proc/pressure/memory", stalls[i]);
            put("/proc/meminfo", memory[j]);
            fm__pressure_state s = {0};
            fm__pressure p = reading(&s, 5, 0);
            assert_false(p.stall_known);
            assert_true(p.total_bytes == 0);
            assert_false(fm__pressure_is_tight(&p));
        }
}

static void thresholds(void **state) {
    (void)state;
    const uint64_t G = UINT64_C(1) << 30;
    const fm__pressure calm = {.stall_known = true,
                               .stall = 4.99,
                               .available_bytes = 1 * G,
                               .total_bytes = 16 * G,
                               .major_faults = 99,
                               .elapsed_ns = 1000000000,
                               .level = 1};
    assert_false(fm__pressure_is_tight(&calm));
    fm__pressure p = calm;
    p.stall = 5;
    assert_true(fm__pressure_is_tight(&p));
    p.stall_known = false;
    assert_false(fm__pressure_is_tight(&p));
    p = calm;
    p.available_bytes = G / 2;
    assert_true(fm__pressure_is_tight(&p));
    p.total_bytes = 0; /* not known */
    assert_false(fm__pressure_is_tight(&p));
    p = calm;
    p.total_bytes = 2000 * G; /* 5 % of it are 100 GiB: 3 are enough */
    p.available_bytes = 3 * G;
    assert_false(fm__pressure_is_tight(&p));
    p = calm;
    p.major_faults = 100;
    assert_true(fm__pressure_is_tight(&p));
    p.elapsed_ns = 40000000; /* too short to say */
    assert_false(fm__pressure_is_tight(&p));
    p = calm;
    p.level = 2;
    assert_true(fm__pressure_is_tight(&p));
}

static void this_system_answers(void **state) {
    (void)state;
    fm__pressure_state s = {0};
    fm__pressure p = {0}, again = {0};
    bool tight = fm__memory_pressure(&s, &p);
    assert_true(p.total_bytes > 0 && p.available_bytes > 0 && p.elapsed_ns == 0);
    uint64_t begin = fm__now_ns();
    for (int i = 0; i < 1000; i++) /* the reading lasts: between calls it costs a look at a clock */
        if (fm__now_ns() - begin < 400000000)
            assert_true(fm__memory_pressure(&s, &again) == tight);
    assert_int_equal(fm__memory_pressure(&s, NULL), s.tight);
}

static void supply(const char *name, const char *type, const char *file, const char *value) {
    char path[128], text[64];
    snprintf(path, sizeof path, "/sys/class/power_supply/%s/type", name);
    snprintf(text, sizeof text, "%s\n", type);
    put(path, text);
    snprintf(path, sizeof path, "/sys/class/power_supply/%s/%s", name, file);
    snprintf(text, sizeof text, "%s\n", value);
    put(path, text);
}

static void power_sources(void **state) {
    (void)state;
    assert_int_equal(fm__power_source(root), FM__POWER_NONE);
    supply("hid-mouse", "Battery", "scope", "Device");
    supply("hid-mouse", "Battery", "status", "Discharging");
    assert_int_equal(fm__power_source(root), FM__POWER_NONE);
    supply("AC", "Mains", "online", "0");
    assert_int_equal(fm__power_source(root), FM__POWER_NONE);
    supply("AC", "Mains", "online", "1");
    assert_int_equal(fm__power_source(root), FM__POWER_AC);
    supply("BAT0", "Battery", "status", "Full");
    assert_int_equal(fm__power_source(root), FM__POWER_AC);
    supply("AC", "Mains", "online", "0");
    supply("BAT1", "Battery", "status", "Discharging");
    assert_int_equal(fm__power_source(root), FM__POWER_BATTERY);
    supply("BAT1", "Battery", "status", "Charging");
    supply("ucsi", "USB", "online", "1");
    assert_int_equal(fm__power_source(root), FM__POWER_AC);
    assert_string_equal(fm__power_name(FM__POWER_NONE), "none");
    assert_string_equal(fm__power_name(FM__POWER_AC), "ac");
    assert_string_equal(fm__power_name(FM__POWER_BATTERY), "battery");
    fm__power_source(""); /* whatever this machine says */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_are_read, make_root, remove_root),
        cmocka_unit_test_setup_teardown(broken_files_say_nothing, make_root, remove_root),
        cmocka_unit_test(thresholds),
        cmocka_unit_test(this_system_answers),
        cmocka_unit_test_setup_teardown(power_sources, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
