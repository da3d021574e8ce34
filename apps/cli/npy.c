/* SPDX-License-Identifier: Apache-2.0 */
/* npy.c: reads a two-dimensional little-endian float32 array in NumPy's .npy format, versions 1 to
   3 (numpy.org, "NPY format"). */
#include "npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static bool read_shape(const char *header, size_t *rows, size_t *cols) {
    const char *shape = strstr(header, "'shape':");
    unsigned long long r, c;
    if (strstr(header, "'descr': '<f4'") == NULL ||
        strstr(header, "'fortran_order': False") == NULL || shape == NULL ||
        sscanf(shape, "'shape': (%llu, %llu)", &r, &c) != 2)
        return false;
    *rows = (size_t)r;
    *cols = (size_t)c;
    return true;
}

float *npy_read(const char *path, size_t *rows, size_t *cols) {
    size_t bytes = 0, header_at, header_bytes, count, data_bytes;
    char header[1024];
    char *file = cli_read_file(path, &bytes);
    float *values = NULL;
    if (file == NULL)
        return NULL;
    const unsigned char *b = (const unsigned char *)file;
    if (bytes < 12 || memcmp(file, "\x93NUMPY", 6) != 0 || b[6] < 1 || b[6] > 3) {
        cli_fail_text("%s: not a .npy file", path);
        goto done;
    }
    header_at = b[6] == 1 ? 10 : 12;
    header_bytes = b[8] | (size_t)b[9] << 8;
    if (b[6] > 1)
        header_bytes |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (header_bytes >= sizeof header || header_bytes > bytes - header_at) {
        cli_fail_text("%s: header of %zu bytes does not fit", path, header_bytes);
        goto done;
    }
    memcpy(header, file + header_at, header_bytes);
    header[header_bytes] = '\0';
    if (!read_shape(header, rows, cols)) {
        cli_fail_text("%s: not a two-dimensional float32 array in C order", path);
        goto done;
    }
    if (__builtin_mul_overflow(*rows, *cols, &count) ||
        __builtin_mul_overflow(count, sizeof(float), &data_bytes) ||
        data_bytes != bytes - header_at - header_bytes) {
        cli_fail_text("%s: %zu x %zu floats do not match %zu bytes of data", path, *rows, *cols,
                      bytes - header_at - header_bytes);
        goto done;
    }
    values = malloc(data_bytes > 0 ? data_bytes : 1);
    if (values == NULL)
        cli_fail_text("%s: out of memory", path);
    else
        memcpy(values, file + header_at + header_bytes, data_bytes);
done:
    free(file);
    return values;
}
