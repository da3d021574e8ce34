/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/log.c: the way from a message to the caller's callback.
 *
 * Owns: the process-wide callback and its lock. Never does: printing; without a callback a message
 * goes nowhere. Called from: every thread.
 */
#include <pthread.h>
#include <stdarg.h>
#include <string.h>

#include "base/base.h"

#define LINE_BYTES 2048
#define LEAST_NONE 1000 /* above every level: no callback is set */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fm_log_callback *current_callback;
static void *current_user;
static _Atomic int current_least = LEAST_NONE;
/* The callback runs under the lock; a message from inside it would wait for itself for ever. */
static _Thread_local bool inside_callback;

void fm_log_set(fm_log_callback *callback, void *user, fm_log_level least) {
    if (!inside_callback)
        pthread_mutex_lock(&lock);
    current_callback = callback;
    current_user = user;
    atomic_store(&current_least, callback ? (int)least : LEAST_NONE);
    if (!inside_callback)
        pthread_mutex_unlock(&lock);
}

void fm__log(fm_log_level level, const char *format, ...) {
    if ((int)level < atomic_load_explicit(&current_least, memory_order_relaxed) || inside_callback)
        return;
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    for (char *c = line; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    pthread_mutex_lock(&lock);
    if (current_callback && (int)level >= atomic_load(&current_least)) {
        inside_callback = true;
        current_callback(current_user, level, line);
        inside_callback = false;
    }
    pthread_mutex_unlock(&lock);
}
