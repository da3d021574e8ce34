/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/stamp.c: the environment of a measurement, as raw facts in JSON.
 *
 * Owns: nothing. Never does: interpret what it finds: what a system does not tell is left out.
 * Called from: the measuring thread, before and after, never while a model runs.
 */
#include "engine/engine.h"
#include "engine/probe.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "engine/source.h" /* made by the build: FM__SOURCE_HASH, FM__SOURCE_DIRTY */

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

enum { LINE = 256, MAX_ZONES = 64 };

void fm__json_text(fm__buf *out, const char *text) {
    fm__buf_append(out, "\"", 1);
    for (const char *c = text; *c != '\0'; c++) {
        uint32_t code_point;
        int bytes = fm__utf8_next(c, strlen(c), &code_point);
        if (*c == '"' || *c == '\\')
            fm__buf_printf(out, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            fm__buf_printf(out, "\\u%04x", (unsigned)*c);
        else if (bytes <= 0)
            fm__buf_append(out, "?", 1);
        else {
            fm__buf_append(out, c, (size_t)bytes);
            c += bytes - 1;
        }
    }
    fm__buf_append(out, "\"", 1);
}

/* The file's first line without its line feed; false: there is none. */
static bool first_line(const char *path, char line[LINE]) {
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool found = fgets(line, LINE, file) != NULL;
    fclose(file);
    if (found)
        line[strcspn(line, "\n")] = '\0';
    return found && line[0] != '\0';
}

static void put_text(fm__buf *out, const char *key, const char *value) {
    fm__buf_printf(out, ", \"%s\": ", key);
    fm__json_text(out, value);
}

/* A file's first line as text. */
static void put_file(fm__buf *out, const char *key, const char *path) {
    char line[LINE];
    if (first_line(path, line))
        put_text(out, key, line);
}

static void put_number_file(fm__buf *out, const char *key, const char *path, double scale) {
    char line[LINE], *end;
    if (!first_line(path, line))
        return;
    double value = strtod(line, &end);
    if (end != line)
        fm__buf_printf(out, ", \"%s\": %.10g", key, value * scale);
}

/* The kilobytes behind a key of /proc/meminfo, as bytes. */
static void put_meminfo(fm__buf *out, const char *key, const char *name) {
    char line[LINE];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            fm__buf_printf(out, ", \"%s\": %llu", key,
                           strtoull(line + strlen(name), NULL, 10) * 1024);
    if (file != NULL)
        fclose(file);
}

/* ---- what is asked of the system ---- */

static void put_build(fm__buf *out) {
    put_text(out, "version", fm_version());
    put_text(out, "source", FM__SOURCE_HASH);
    fm__buf_printf(out, ", \"dirty\": %s",
                   FM__SOURCE_HASH[0] == '\0' ? "null"
                   : FM__SOURCE_DIRTY         ? "true"
                                              : "false");
    put_text(out, "compiler", COMPILER);
}

static void put_system(fm__buf *out) {
    struct utsname name;
    if (uname(&name) == 0) {
        char kernel[3 * sizeof name.release];
        snprintf(kernel, sizeof kernel, "%s %s %s", name.sysname, name.release, name.machine);
        put_text(out, "kernel", kernel);
    }
    char line[LINE];
    FILE *file = fopen("/etc/os-release", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "PRETTY_NAME=", 12) == 0) {
            char *text = line + 12 + (line[12] == '"');
            text[strcspn(text, "\"\n")] = '\0';
            put_text(out, "os", text);
        }
    if (file != NULL)
        fclose(file);
}

static void put_processor(fm__buf *out) {
    static const char frequency[] = "/sys/devices/system/cpu/cpu0/cpufreq/";
    char name[128], path[LINE];
    int cpus[1024];
    fm__cpu_name(name, sizeof name);
    put_text(out, "cpu", name);
    fm__buf_printf(out, ", \"cores\": %zu, \"logical\": %ld", fm__cores(cpus, 1024),
                   sysconf(_SC_NPROCESSORS_ONLN));
    snprintf(path, sizeof path, "%sscaling_governor", frequency);
    put_file(out, "governor", path);
    snprintf(path, sizeof path, "%sscaling_cur_freq", frequency);
    put_number_file(out, "cpu0_mhz", path, 1e-3);
    double load[3];
    if (getloadavg(load, 3) == 3)
        fm__buf_printf(out, ", \"load\": [%.2f, %.2f, %.2f]", load[0], load[1], load[2]);
}

static void put_memory(fm__buf *out) {
    fm__buf_printf(out, ", \"memory_total\": %llu, \"memory_available\": %llu, \"resident\": %llu",
                   (unsigned long long)fm__memory_total(),
                   (unsigned long long)fm__memory_available(),
                   (unsigned long long)fm__memory_resident());
    put_meminfo(out, "mem_available", "MemAvailable:");
    put_meminfo(out, "swap_total", "SwapTotal:");
    put_meminfo(out, "swap_free", "SwapFree:");
    put_file(out, "psi_cpu", "/proc/pressure/cpu");
    put_file(out, "psi_memory", "/proc/pressure/memory");
    put_file(out, "psi_io", "/proc/pressure/io");
}

/* Names in a folder that begin with `prefix` ("" : all but hidden ones), in order. */
static uint32_t list(const char *folder, const char *prefix, char names[MAX_ZONES][64]) {
    uint32_t n = 0;
    DIR *directory = opendir(folder);
    if (directory == NULL)
        return 0;
    for (const struct dirent *entry; n < MAX_ZONES && (entry = readdir(directory)) != NULL;)
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            strlen(entry->d_name) < sizeof names[0])
            memcpy(names[n++], entry->d_name, strlen(entry->d_name) + 1);
    closedir(directory);
    qsort(names, n, sizeof names[0], (int (*)(const void *, const void *))strcmp);
    return n;
}

static void put_heat_and_power(fm__buf *out) {
    char names[MAX_ZONES][64], path[LINE];
    uint32_t n = list("/sys/class/thermal", "thermal_zone", names);
    fm__buf_printf(out, ", \"thermal\": [");
    for (uint32_t i = 0; i < n; i++) {
        fm__buf_printf(out, "%s{\"zone\": \"%s\"", i > 0 ? ", " : "", names[i]);
        snprintf(path, sizeof path, "/sys/class/thermal/%.63s/type", names[i]);
        put_file(out, "type", path);
        snprintf(path, sizeof path, "/sys/class/thermal/%.63s/temp", names[i]);
        put_number_file(out, "celsius", path, 1e-3);
        fm__buf_printf(out, "}");
    }
    n = list("/sys/class/power_supply", "", names);
    fm__buf_printf(out, "], \"power\": [");
    for (uint32_t i = 0; i < n; i++) {
        fm__buf_printf(out, "%s{\"supply\": \"%s\"", i > 0 ? ", " : "", names[i]);
        snprintf(path, sizeof path, "/sys/class/power_supply/%.63s/type", names[i]);
        put_file(out, "type", path);
        snprintf(path, sizeof path, "/sys/class/power_supply/%.63s/online", names[i]);
        put_file(out, "online", path);
        snprintf(path, sizeof path, "/sys/class/power_supply/%.63s/status", names[i]);
        put_file(out, "status", path);
        snprintf(path, sizeof path, "/sys/class/power_supply/%.63s/capacity", names[i]);
        put_number_file(out, "percent", path, 1);
        fm__buf_printf(out, "}");
    }
    fm__buf_printf(out, "]");
}

static void put_devices(fm__buf *out, const fm_machine *machine) {
    fm_device_info d;
    fm__buf_printf(out, ", \"devices\": [");
    for (size_t i = 0; i < fm_machine_device_count(machine); i++) {
        if (fm_machine_device(machine, i, &d, NULL) != FM_OK)
            continue;
        fm__buf_printf(out, "%s{\"threads\": %u", i > 0 ? ", " : "", d.threads);
        put_text(out, "name", d.name);
        put_text(out, "kind", d.kind);
        put_text(out, "description", d.description);
        put_text(out, "driver", d.driver);
        put_text(out, "rung", d.rung);
        fm__buf_printf(out, ", \"unified\": %s, \"software\": %s}", d.unified ? "true" : "false",
                       d.software ? "true" : "false");
    }
    fm__buf_printf(out, "], \"memory_budget\": %llu",
                   (unsigned long long)fm_machine_memory_budget(machine));
}

char *fm_lab_stamp(const fm_machine *machine) {
    fm__buf out = {0};
    char text[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    fm__buf_printf(&out, "{\"time\": \"%s\"", text);
    put_build(&out);
    put_system(&out);
    put_processor(&out);
    put_memory(&out);
    put_heat_and_power(&out);
    put_devices(&out, machine);
    fm__buf_printf(&out, "}");
    if (out.failed) {
        fm__buf_finish(&out);
        return NULL;
    }
    return out.data;
}
