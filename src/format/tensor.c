/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/tensor.c: a tensor's size from its dims, and where tensors lie in a file.
 *
 * Owns: nothing. Never does: trust a product. Called from: the loading thread.
 */
#include <stdlib.h>

#include "format/format.h"

typedef unsigned long long ull;

fm_status fm__tensor_measure(fm__tensor_info *info, const char *path, fm_error *error) {
    const fm__dtype_info *dtype = fm__dtype_get((uint32_t)info->dtype);
    uint64_t n = 1;
    if (dtype == NULL)
        return fm__format_error(error, FM_ERROR_UNSUPPORTED, path, "tensor", info->name,
                                "type %u is unknown", (unsigned)info->dtype);
    for (uint32_t i = 0; i < info->n_dims; i++) {
        if (info->dims[i] == 0)
            return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", info->name,
                                    "dimension %u is zero", i);
        if (!fm__mul_u64(n, info->dims[i], &n) || n > INT64_MAX)
            return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", info->name,
                                    "dimension %u is %llu: the number of elements overflows", i,
                                    (ull)info->dims[i]);
    }
    if (info->dims[0] % dtype->block != 0)
        return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", info->name,
                                "rows of %llu elements do not divide into %s blocks of %u",
                                (ull)info->dims[0], dtype->name, dtype->block);
    if (!fm__dtype_bytes(dtype, n, &info->bytes) || info->bytes > INT64_MAX)
        return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", info->name,
                                "%llu elements of %s: the number of bytes overflows", (ull)n,
                                dtype->name);
    return FM_OK;
}

typedef struct range {
    uint64_t begin, end;
    size_t index;
} range;

static int compare_ranges(const void *a, const void *b) {
    const range *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static fm_status check_sorted(const fm__checkpoint *c, const range *ranges, size_t n,
                              const char *path, bool tight, uint64_t begin, fm_error *error) {
    uint64_t covered = begin;
    for (size_t i = 0; i < n; i++) {
        fm__str name = c->tensors[ranges[i].index].name;
        char other[80];
        if (i > 0 && ranges[i].begin < covered)
            return fm__format_error(
                error, FM_ERROR_FORMAT, path, "tensor", name,
                "begins at offset %llu inside tensor %s, which ends at %llu", (ull)ranges[i].begin,
                fm__format_escape(c->tensors[ranges[i - 1].index].name, other, sizeof other),
                (ull)covered);
        if (tight && ranges[i].begin != covered)
            return fm__format_error(error, FM_ERROR_FORMAT, path, "tensor", name,
                                    "begins at offset %llu, but the data before it ends at %llu",
                                    (ull)ranges[i].begin, (ull)covered);
        covered = ranges[i].end;
    }
    return FM_OK;
}

fm_status fm__tensors_check_ranges(const fm__checkpoint *c, size_t first, const char *path,
                                   bool tight, uint64_t begin, uint64_t end, fm_error *error) {
    size_t n = c->n_tensors - first;
    bool sorted = true;
    range *ranges = fm__alloc_array(n, sizeof *ranges);
    if (ranges == NULL)
        return fm__error_memory(error, path, n * sizeof *ranges);
    for (size_t i = 0; i < n; i++) {
        const fm__tensor_info *info = &c->tensors[first + i];
        ranges[i] = (range){info->file_offset, info->file_offset + info->bytes, first + i};
        sorted = sorted && (i == 0 || compare_ranges(&ranges[i - 1], &ranges[i]) <= 0);
    }
    if (!sorted)
        qsort(ranges, n, sizeof *ranges, compare_ranges);
    fm_status status = check_sorted(c, ranges, n, path, tight, begin, error);
    uint64_t covered = n > 0 ? ranges[n - 1].end : begin;
    if (status == FM_OK && tight && covered != end)
        status = fm__format_error(error, FM_ERROR_FORMAT, path, NULL, FM__STR(""),
                                  "the tensors end at offset %llu, the file at %llu", (ull)covered,
                                  (ull)end);
    fm__free(ranges);
    return status;
}
