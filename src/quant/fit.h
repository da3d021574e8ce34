/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/fit.h: what the encoders share: choosing scales, rounding codes (private to the quant
 * room).
 *
 * Everything here takes and returns finite numbers for any input, the largest and the smallest
 * floats included: callers scale a block to a magnitude near 1 first where squares are taken.
 */
#pragma once

#include "quant/quant.h"

/* Copies n elements, non-finite ones as 0; returns the largest magnitude. */
float fm__fit_load(const float *in, float *x, size_t n);
/* The element of largest magnitude, with its sign (the first such). */
float fm__fit_extreme(const float *x, size_t n);
/* The power of two that brings magnitudes up to `largest` below 1; 1 for 0. */
float fm__fit_unit(float largest);

/* f16 bits, clamped to +-65504; 0 for NaN. */
uint16_t fm__fit_half(float x);
/* The same for a block scale, which unless 0 does not round to 0: sub scales and codes then still
 * tell small values apart, and the inverse stays finite. */
uint16_t fm__fit_scale(float scale);
/* 1 / value of those bits; 0 for 0. */
float fm__fit_inverse(uint16_t half);

/* Nearest integer (ties to even) within [low, high], |bounds| < 2^22; NaN gives low. */
FM__INLINE int fm__fit_round(float x, float low, float high) {
    float clamped = x > low ? x : low;
    clamped = clamped < high ? clamped : high;
    return (int)(fm__f32_bits(clamped + 12582912.0f) - fm__f32_bits(12582912.0f));
}

/* Weights for a search: importance[i] * sqrt(spread + x^2). */
void fm__fit_weights(const float *x, const float *importance, float spread, float *w, size_t n);

/* The scale s that minimises sum w (x - s q)^2 over codes q in [-levels, levels - 1], searched near
 * the one that puts the extreme element at -levels. n a multiple of 8, at most 32. */
float fm__fit_symmetric(const float *x, const float *w, size_t n, int levels);

/* Where fm__fit_affine looks: the range is divided into levels + first, first + step, ... parts. */
typedef struct fm__fit_search {
    float first, step;
    int count;
    bool linear;  /* judge by sum w |error| instead of sum w error^2 */
    bool min_any; /* minimum of either sign; else >= 0: zero stays inside the range */
} fm__fit_search;

/* x ~ scale * q - minimum with codes q in [0, levels], scale >= 0. */
void fm__fit_affine(const float *x, const float *w, size_t n, int levels, fm__fit_search search,
                    float *scale, float *minimum);

/* Sum of w e^2 (linear: w |e|) when x is rounded to scale * q + low, q in [lowest, highest]. */
float fm__fit_error(const float *x, const float *w, size_t n, float scale, float low, float lowest,
                    float highest, bool linear);
