/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>

/* (rows, cols) floats, malloc'ed; NULL after a message on stderr. */
float *npy_read(const char *path, size_t *rows, size_t *cols);
