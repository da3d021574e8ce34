/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/system.c: how much memory there is.
 *
 * Owns: nothing. Never does: caching: each call asks the system. Called from: every thread, never
 * while a model runs.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include "base/base.h"

#ifdef __APPLE__

uint64_t fm__memory_total(void) {
    uint64_t bytes = 0;
    size_t size = sizeof bytes;
    return sysctlbyname("hw.memsize", &bytes, &size, NULL, 0) == 0 ? bytes : 0;
}

uint64_t fm__memory_available(void) {
    vm_statistics64_data_t s;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&s, &count) != 0)
        return 0;
    uint64_t pages = (uint64_t)s.free_count + s.inactive_count + s.purgeable_count;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t fm__memory_resident(void) {
    mach_task_basic_info_data_t info;
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &count) != 0)
        return 0;
    return info.resident_size;
}

#else

/* The number behind `key` at a line's start ("" is the file's first word); false if there is none
   ("max" included). */
static bool read_number(const char *path, const char *key, uint64_t *out) {
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            char *text = line + strlen(key), *end;
            unsigned long long value = strtoull(text, &end, 10);
            found = end != text;
            if (found)
                *out = value;
            else
                break;
        }
    }
    fclose(file);
    return found;
}

/* What one control group still allows; UINT64_MAX if it has no limit. Cached file pages count as
   used there, but are given back under pressure. */
static uint64_t group_available(const char *directory, uint64_t *limit_out) {
    char path[1024];
    uint64_t limit, used, cached = 0;
    snprintf(path, sizeof path, "%s/memory.max", directory);
    if (!read_number(path, "", &limit))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.current", directory);
    if (!read_number(path, "", &used))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    read_number(path, "inactive_file ", &cached);
    if (limit < *limit_out)
        *limit_out = limit;
    used -= cached < used ? cached : used;
    return used < limit ? limit - used : 0;
}

/* The least over this process's control group (version 2) and those around it. */
static uint64_t groups_available(uint64_t *limit) {
    static const char root[] = "/sys/fs/cgroup";
    char line[512] = "", directory[sizeof root + sizeof line];
    *limit = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return UINT64_MAX;
    bool found = false;
    while (!found && fgets(line, sizeof line, file))
        found = strncmp(line, "0::/", 4) == 0;
    fclose(file);
    if (!found)
        return UINT64_MAX;
    line[strcspn(line, "\n")] = 0;
    snprintf(directory, sizeof directory, "%s%s", root, line + 3);
    uint64_t least = UINT64_MAX;
    for (;;) {
        uint64_t available = group_available(directory, limit);
        least = available < least ? available : least;
        char *slash = strrchr(directory, '/');
        if (strlen(directory) <= strlen(root) || !slash)
            return least;
        *slash = 0;
    }
}

uint64_t fm__memory_total(void) {
    uint64_t limit, total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    groups_available(&limit);
    return limit < total ? limit : total;
}

uint64_t fm__memory_available(void) {
    uint64_t kilobytes, limit, inside = groups_available(&limit);
    uint64_t system = fm__memory_total();
    if (read_number("/proc/meminfo", "MemAvailable:", &kilobytes))
        system = kilobytes * 1024;
    return inside < system ? inside : system;
}

uint64_t fm__memory_resident(void) {
    uint64_t kilobytes;
    return read_number("/proc/self/status", "VmRSS:", &kilobytes) ? kilobytes * 1024 : 0;
}

#endif
