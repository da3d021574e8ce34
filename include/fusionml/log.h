/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/log.h: where the library's messages go. Without a callback they go nowhere.
 */
#pragma once

#include "fusionml/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fm_log_level {
    FM_LOG_DEBUG = 0,
    FM_LOG_INFO = 1,
    FM_LOG_WARNING = 2,
} fm_log_level;

/* line: one NUL-terminated line without a newline, valid during the call only. May be called from
   any thread that is inside a fusionml call; calls are serialised. */
typedef void fm_log_callback(void *user, fm_log_level level, const char *line);

/* Sets the process-wide callback (NULL: silence) and the least level that is passed on.
 * Thread-safe. */
FM_API void fm_log_set(fm_log_callback *callback, void *user, fm_log_level least);

#ifdef __cplusplus
}
#endif
