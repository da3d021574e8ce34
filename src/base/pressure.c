/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/pressure.c: whether memory is tight, so that nothing should be tried that needs more of it.
 *
 * Owns: nothing; the caller keeps the state. Never does: decide what follows from it. Called from:
 * the running thread, between runs.
 *
 * Tight is, any one of:
 *   stalls     of 5 % of the last 10 s or more: some task stood still for want of memory;
 *   available  below 5 % of all memory (at most 2 GiB: large machines keep large reserves);
 *   faults     of 100 a second or more that had to read a disk, over at least 50 ms: the working
 *              set does not fit (a model that is read for the first time shows the same, and then
 *              nothing should be measured either);
 *   level      macOS says warning or critical.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "base/base.h"

static const double STALL_PERCENT = 5;
static const double AVAILABLE_SHARE = 0.05;
#define AVAILABLE_ENOUGH (UINT64_C(2) << 30)
static const double FAULTS_PER_SECOND = 100;
#define FAULTS_LEAST_NS UINT64_C(50000000)
#define READING_LASTS_NS UINT64_C(500000000)

bool fm__pressure_is_tight(const fm__pressure *p) {
    if (p->stall_known && p->stall >= STALL_PERCENT)
        return true;
    if (p->total_bytes > 0 && p->available_bytes < AVAILABLE_ENOUGH &&
        (double)p->available_bytes < AVAILABLE_SHARE * (double)p->total_bytes)
        return true;
    if (p->elapsed_ns >= FAULTS_LEAST_NS &&
        (double)p->major_faults * 1e9 >= FAULTS_PER_SECOND * (double)p->elapsed_ns)
        return true;
    return p->level >= 2;
}

/* ---- Linux's files ---- */

/* The line of a file that begins with `key`, after the key. */
static bool find_line(const char *root, const char *path, const char *key, char *out,
                      size_t capacity) {
    char full[1024], line[256];
    if ((size_t)snprintf(full, sizeof full, "%s%s", root, path) >= sizeof full)
        return false;
    FILE *file = fopen(full, "re");
    if (file == NULL)
        return false;
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, key, strlen(key)) == 0;
    fclose(file);
    if (found)
        snprintf(out, capacity, "%s", line + strlen(key));
    return found;
}

/* "12.34" whatever the locale says about points; false where no number stands. */
static bool decimal(const char *text, double *out) {
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    double value = (double)strtoull(text, &end, 10), weight = 0.1;
    if (*end == '.')
        for (end++; *end >= '0' && *end <= '9'; end++, weight /= 10)
            value += weight * (*end - '0');
    *out = value;
    return true;
}

static void read_stalls(const char *root, fm__pressure *out) {
    char line[256];
    if (!find_line(root, "/proc/pressure/memory", "some ", line, sizeof line))
        return;
    const char *at = strstr(line, "avg10=");
    out->stall_known = at != NULL && decimal(at + strlen("avg10="), &out->stall);
}

static uint64_t read_kilobytes(const char *root, const char *key) {
    char line[256], *end;
    if (!find_line(root, "/proc/meminfo", key, line, sizeof line))
        return 0;
    unsigned long long value = strtoull(line, &end, 10);
    return end != line && value < UINT64_MAX / 1024 ? value * 1024 : 0;
}

static void read_available(const char *root, fm__pressure *out) {
    if (*root == 0) { /* knows about control groups too */
        out->available_bytes = fm__memory_available();
        out->total_bytes = fm__memory_total();
        return;
    }
    out->available_bytes = read_kilobytes(root, "MemAvailable:");
    out->total_bytes = read_kilobytes(root, "MemTotal:");
}

static uint32_t read_level(void) {
#ifdef __APPLE__
    int level = 0;
    size_t size = sizeof level;
    if (sysctlbyname("kern.memorystatus_vm_pressure_level", &level, &size, NULL, 0) == 0)
        return level > 0 ? (uint32_t)level : 0;
#endif
    return 0;
}

/* ---- readings ---- */

void fm__pressure_read(fm__pressure_state *state, const char *root, uint64_t now_ns,
                       uint64_t major_faults, fm__pressure *out) {
    *out = (fm__pressure){.level = read_level()};
    read_stalls(root, out);
    read_available(root, out);
    if (state->read_ns != 0) {
        out->major_faults = major_faults - state->major_faults;
        out->elapsed_ns = now_ns - state->read_ns;
    }
    state->major_faults = major_faults;
    state->read_ns = now_ns;
}

static uint64_t faults_so_far(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_majflt > 0 ? (uint64_t)usage.ru_majflt
                                                                      : 0;
}

bool fm__memory_pressure(fm__pressure_state *state, fm__pressure *out) {
    uint64_t now = fm__now_ns();
    if (state->read_ns == 0 || now - state->read_ns >= READING_LASTS_NS) {
        fm__pressure_read(state, "", now, faults_so_far(), &state->last);
        state->tight = fm__pressure_is_tight(&state->last);
    }
    if (out != NULL)
        *out = state->last;
    return state->tight;
}
