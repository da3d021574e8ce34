/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/error.h: how every call that can fail says so.
 *
 * A function that can fail on its input returns fm_status (0 is success) and, when the caller
 * passes a non-NULL fm_error, fills it with one sentence and the place the sentence is about. The
 * library never prints an error and never exits.
 */
#pragma once

#if defined(FM_BUILDING) && defined(__GNUC__)
#define FM_API __attribute__((visibility("default")))
#else
#define FM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text). The one list of statuses; fm_status_name() and fm_status_text() come from
 * it. */
#define FM_STATUS_LIST(X)                                                                          \
    X(FM_OK, 0, "success")                                                                         \
    X(FM_ERROR_ARGUMENT, 1, "invalid argument")                                                    \
    X(FM_ERROR_MEMORY, 2, "out of memory or over the memory budget")                               \
    X(FM_ERROR_IO, 3, "input or output failed")                                                    \
    X(FM_ERROR_FORMAT, 4, "malformed file")                                                        \
    X(FM_ERROR_UNSUPPORTED, 5, "not supported")                                                    \
    X(FM_ERROR_LIMIT, 6, "a limit is exceeded")                                                    \
    X(FM_ERROR_NUMERIC, 7, "not a finite number")                                                  \
    X(FM_ERROR_DEVICE, 8, "device failure")                                                        \
    X(FM_ERROR_CANCELLED, 9, "cancelled")                                                          \
    X(FM_ERROR_STATE, 10, "not allowed in this state")

typedef enum fm_status {
#define FM_STATUS_ENUM(name, value, text) name = value,
    FM_STATUS_LIST(FM_STATUS_ENUM)
#undef FM_STATUS_ENUM
} fm_status;

/* Filled on failure, untouched on success. Both strings are NUL-terminated and valid UTF-8. */
typedef struct fm_error {
    fm_status status;
    char message[384]; /* one sentence without a trailing period: "ends at 1052, file has 1024" */
    char place[192];   /* what it is about: "model.gguf: tensor blk.3.ffn_up.weight"; may be "" */
} fm_error;

/* "FM_ERROR_FORMAT"; "unknown status" for a value that is not in the list. Static strings. */
FM_API const char *fm_status_name(fm_status status);
/* "malformed file". Static strings. */
FM_API const char *fm_status_text(fm_status status);

/* Releases memory that a fusionml call handed over (it says so where it does). NULL is allowed. */
FM_API void fm_free(void *memory);

#ifdef __cplusplus
}
#endif
