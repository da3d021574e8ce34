/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lab/lab.h: what the programs of this folder share: memory, calls that must succeed, clocks.
 *
 * Owns: nothing. Where something fails, the program says what and ends.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/base.h"

static inline void die(const char *place, const char *message) {
    fprintf(stderr, "%s: %s\n", place, message);
    exit(1);
}

/* The call's last argument is `why`. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        fm_error why_ = {0};                                                                       \
        fm_error *why = &why_;                                                                     \
        if ((call) != FM_OK)                                                                       \
            die(why->place, why->message);                                                         \
    } while (0)

/* Zeros, for fm__free(). */
static inline void *need(size_t bytes) {
    void *memory = fm__alloc_zero(bytes);
    if (memory == NULL)
        die("memory", "there is not enough");
    return memory;
}

/* Seconds that the thread has computed: what others do at the time is not in them. */
static inline double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
