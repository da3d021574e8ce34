/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/binder.h: what declaring (binder.c) and packing (pack.c) share; private to the model room.
 */
#pragma once

#include "model/model.h"

/* Where a weight comes from. */
typedef struct fm__source {
    const fm__tensor_info *tensor; /* NULL: a computed table */
    fm__bind_fill *fill;
    void *user;  /* owned */
    bool hashed; /* false: another weight hashes the same tensor */
} fm__source;

struct fm__binder {
    fm__model *model;
    fm__source *sources; /* (capacity), in step with model->weights */
    uint32_t capacity;
    bool *used; /* (checkpoint->n_tensors) */
};

/* Bytes of a row of k weights, and of n rows, in a file; false: too many. */
bool fm__bind_bytes(const fm__type *type, uint64_t k, uint64_t n, size_t *row, size_t *all);
/* A 1-D tensor's floats in GGUF's order; below 2^-38 they become 0. */
void fm__bind_read_vector(const fm__tensor_info *t, float *out);
