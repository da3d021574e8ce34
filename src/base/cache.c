/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/cache.c: the user's cache folder.
 *
 * Owns: nothing. Never does: put files there. Called from: every thread, never while a model runs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"

/* The folder and those around it, where they are missing; false: it cannot be. */
static bool make_folder(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        bool there = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!there)
            return false;
    }
    return (mkdir(path, 0700) == 0 || errno == EEXIST) && fm__path_is_directory(path);
}

static bool default_folder(char *out, size_t capacity) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    out[0] = 0;
    if (cache != NULL && cache[0] == '/')
        return fm__path_join(cache, "fusionml", out, capacity);
    if (home == NULL || home[0] != '/')
        return false;
#ifdef __APPLE__
    return fm__path_join(home, "Library/Caches/fusionml", out, capacity);
#else
    return fm__path_join(home, ".cache/fusionml", out, capacity);
#endif
}

bool fm__cache_folder(const char *asked, char *out, size_t capacity) {
    if (asked == NULL)
        return default_folder(out, capacity) && make_folder(out);
    int length = snprintf(out, capacity, "%s", asked);
    return length > 0 && (size_t)length < capacity && make_folder(out);
}
