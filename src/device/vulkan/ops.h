/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/ops.h: what the files that record row-wise ops, attention and copies share.
 *
 * Owns: the push constants' common parts (shaders/rows.glsl). Never does: barriers between ops
 * (record.c does). Called from: the loading thread.
 */
#pragma once

#include "device/vulkan/vulkan.h"

enum {
    FM__VULKAN_MAX_ROWS = 8192, /* of a run: a failure's row has 13 bits */
    FM__VULKAN_SLOT_MIRROR = FM__SLOT_COUNT,
};

/* A tensor in one of the run's slots. */
typedef struct fm__vulkan_place {
    uint32_t slot, stride;
    uint64_t offset;
} fm__vulkan_place;

/* Which rows a dispatch covers: 65536ths of the batch's or the outputs' rows. */
typedef struct fm__vulkan_rows {
    uint32_t begin, end, outputs, op;
} fm__vulkan_rows;

/* One op while it is recorded. */
typedef struct fm__vulkan_step {
    fm__vulkan_recorder *recorder;
    const fm__op_range *range;
    const fm__op *op;
    const fm__tape *tape;
    fm_error *error;
} fm__vulkan_step;

fm__vulkan_place fm__vulkan_place_of(const fm__tape *tape, int16_t tensor);
fm__vulkan_rows fm__vulkan_rows_of(const fm__op_range *range, fm__rows rows);
/* Workgroups that the rows of a range need at most. */
uint32_t fm__vulkan_row_bound(const fm__tape *tape, const fm__op_range *range, fm__rows rows);
static inline uint32_t fm__vulkan_groups(uint64_t n, uint32_t of) {
    return (uint32_t)((n + of - 1) / of);
}

/* ---- attention.c ---- */

fm_status fm__vulkan_record_attention(const fm__vulkan_step *step);
bool fm__vulkan_supports_attention(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                   const char **reason);
/* Temporary memory that the op takes; or the most of this context and shorter ones. */
uint64_t fm__vulkan_attention_temporary(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                        bool or_shorter);
/* What its first kernel is called where it needs n. */
const char *fm__vulkan_attention_name(const fm__tape *tape, const fm__op *op, uint32_t n);
/* The variants that the op needs: 1 or 2. */
uint32_t fm__vulkan_attention_variants(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                       fm__vulkan_variant variants[2]);
