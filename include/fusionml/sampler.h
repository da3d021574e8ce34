/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/sampler.h: from logits to the next token. Host code in double, independent of batch and
 * device.
 *
 * Order: repeat penalty, then (temperature 0: arg max, ties to the lower id) or: top-k, top-p,
 * min-p on the softmax at temperature 1, then temperature, then one draw.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fusionml/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_sampler fm_sampler;

typedef struct fm_sampler_options {
    float temperature;      /* >= 0; 0: greedy. Default 0.8 */
    uint32_t top_k;         /* 0: off. Default 40 */
    float top_p;            /* (0, 1]; 1: off. Default 0.95 */
    float min_p;            /* [0, 1]; 0: off. Default 0.05 */
    float repeat_penalty;   /* > 0; 1: off. Default 1 */
    uint32_t repeat_last_n; /* tokens looked back at. Default 64 */
    uint64_t seed;          /* default 0: a fixed seed like any other */
} fm_sampler_options;

FM_API fm_sampler_options fm_sampler_options_default(void);

/* options may be NULL. Errors: ARGUMENT (names the field), MEMORY. */
FM_API fm_status fm_sampler_create(fm_sampler **out, const fm_sampler_options *options,
                                   fm_error *error);
FM_API void fm_sampler_destroy(fm_sampler **sampler);
/* Tells the sampler of a token that it did not draw itself (the prompt), for the repeat penalty. */
FM_API void fm_sampler_accept(fm_sampler *sampler, int32_t id);
/* logits: (n) floats, unchanged. Draws an id and accepts it. Errors: NUMERIC (a NaN, or nothing
 * finite). */
FM_API fm_status fm_sampler_sample(fm_sampler *sampler, const float *logits, size_t n, int32_t *id,
                                   fm_error *error);

#ifdef __cplusplus
}
#endif
