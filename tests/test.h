/* SPDX-License-Identifier: Apache-2.0 */
/* test.h: cmocka with what it needs before it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <time.h>

/* CPU time of this process: what others do on the machine does not count. */
static inline uint64_t test_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Temporary files ("NAME.xxxxxxxx.tmp") that a writer of the file `path` has left beside it. */
static inline size_t test_leftovers(const char *path) {
    char folder[256];
    const char *slash = strrchr(path, '/');
    size_t n = 0, length = strlen(slash + 1);
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        const char *name = entry->d_name, *end = name + strlen(name);
        n += strncmp(name, slash + 1, length) == 0 && name[length] == '.' &&
             strlen(name) > length + 4 && strcmp(end - 4, ".tmp") == 0;
    }
    closedir(directory);
    return n;
}
