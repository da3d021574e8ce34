/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant/fit.c: choosing the scales of a block by weighted least squares.
 *
 * Owns: the searches. Never does: write blocks (encode_*.c). Called from: converting threads.
 *
 * For fixed codes the best scale (and minimum) has a closed form, and for a fixed scale the best
 * codes are the nearest ones; so the searches try a few inverse scales, round, solve, and keep what
 * leaves the least error.
 */
#include "quant/fit.h"

#include <assert.h>
#include <math.h> /* sqrtf alone: exact by IEEE */

enum { LANES = 8, N_MAX = 32 };

float fm__fit_load(const float *in, float *x, size_t n) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = fm__f32_bits(in[i]), magnitude = bits & 0x7FFFFFFFu;
        if (magnitude >= 0x7F800000u)
            bits = magnitude = 0;
        x[i] = fm__bits_f32(bits);
        largest = magnitude > largest ? magnitude : largest;
    }
    return fm__bits_f32(largest);
}

static float magnitude_of(float x) {
    return fm__bits_f32(fm__f32_bits(x) & 0x7FFFFFFFu);
}

float fm__fit_extreme(const float *x, size_t n) {
    float extreme = x[0];
    for (size_t i = 1; i < n; i++)
        if (magnitude_of(x[i]) > magnitude_of(extreme))
            extreme = x[i];
    return extreme;
}

float fm__fit_unit(float largest) {
    if (largest == 0.0f)
        return 1.0f;
    int exponent = (int)(fm__f32_bits(largest) >> 23) - 126; /* largest < 2^exponent */
    exponent = exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
    return fm__bits_f32((uint32_t)(127 - exponent) << 23);
}

uint16_t fm__fit_half(float x) {
    if (x != x)
        return 0;
    if (magnitude_of(x) >= 65504.0f)
        return x < 0.0f ? 0xFBFF : 0x7BFF;
    return fm__f32_to_f16(x);
}

uint16_t fm__fit_scale(float scale) {
    if (scale != 0.0f && magnitude_of(scale) < 0x1p-24f)
        return scale < 0.0f ? 0x8001 : 0x0001;
    return fm__fit_half(scale);
}

float fm__fit_inverse(uint16_t half) {
    float d = fm__f16_to_f32(half);
    return d == 0.0f ? 0.0f : 1.0f / d;
}

void fm__fit_weights(const float *x, const float *importance, float spread, float *w, size_t n) {
    for (size_t i = 0; i < n; i++)
        w[i] = importance[i] * sqrtf(spread + x[i] * x[i]);
}

/* Sums over n elements are kept in eight lanes, so that they vectorise without reordering. */
static float lane_sum(const float lane[LANES]) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* Nearest integer within [low, high] as a float; vectorises. */
FM__INLINE float round_clamped(float x, float low, float high) {
    float clamped = x > low ? x : low;
    clamped = clamped < high ? clamped : high;
    return (clamped + 12582912.0f) - 12582912.0f;
}

/* Sum of w q x and sum of w q^2 for the codes that an inverse scale gives. */
static void symmetric_sums(const float *x, const float *w, size_t n, float inverse, float levels,
                           float *sum_qx, float *sum_qq) {
    float qx[LANES] = {0}, qq[LANES] = {0};
    for (size_t i = 0; i < n; i += LANES)
        for (size_t l = 0; l < LANES; l++) {
            float q = round_clamped(x[i + l] * inverse, -levels, levels - 1.0f);
            float wq = w[i + l] * q;
            qx[l] += wq * x[i + l];
            qq[l] += wq * q;
        }
    *sum_qx = lane_sum(qx);
    *sum_qq = lane_sum(qq);
}

float fm__fit_symmetric(const float *x, const float *w, size_t n, int levels) {
    assert(n % LANES == 0 && n <= N_MAX);
    float extreme = fm__fit_extreme(x, n);
    if (magnitude_of(extreme) < 0x1p-60f) /* of a block scaled to 1: nothing */
        return 0.0f;
    float scale = -extreme / (float)levels, gain = 0.0f;
    for (int step = -9; step <= 9; step++) {
        float inverse = -((float)levels + 0.1f * (float)step) / extreme;
        float sum_qx, sum_qq;
        symmetric_sums(x, w, n, inverse, (float)levels, &sum_qx, &sum_qq);
        /* With s = qx / qq the error is sum w x^2 - qx^2 / qq. */
        if (sum_qq > 0.0f && sum_qx * sum_qx > gain * sum_qq) {
            scale = sum_qx / sum_qq;
            gain = sum_qx * scale;
        }
    }
    return scale;
}

typedef struct affine_fit {
    float scale, low; /* x ~ scale * q + low */
} affine_fit;

typedef struct range_sums {
    float w, x, min, max; /* sum of w, sum of w x, smallest and largest x */
} range_sums;

static range_sums range_of(const float *x, const float *w, size_t n) {
    range_sums s = {0.0f, 0.0f, x[0], x[0]};
    for (size_t i = 0; i < n; i++) {
        s.w += w[i];
        s.x += w[i] * x[i];
        s.min = x[i] < s.min ? x[i] : s.min;
        s.max = x[i] > s.max ? x[i] : s.max;
    }
    return s;
}

/* Rounds to q = (x - low) * inverse and solves for the best scale and low of those codes. */
static bool solve(const float *x, const float *w, size_t n, float low, float inverse, float levels,
                  const range_sums *sums, bool min_any, float *q, affine_fit *fit) {
    float sq[LANES] = {0}, sqq[LANES] = {0}, sqx[LANES] = {0};
    for (size_t i = 0; i < n; i += LANES)
        for (size_t l = 0; l < LANES; l++) {
            float code = round_clamped((x[i + l] - low) * inverse, 0.0f, levels);
            float wq = w[i + l] * code;
            q[i + l] = code;
            sq[l] += wq;
            sqq[l] += wq * code;
            sqx[l] += wq * x[i + l];
        }
    float sum_q = lane_sum(sq), sum_qq = lane_sum(sqq), sum_qx = lane_sum(sqx);
    float determinant = sums->w * sum_qq - sum_q * sum_q;
    if (!(determinant > 0.0f))
        return false;
    fit->scale = (sums->w * sum_qx - sums->x * sum_q) / determinant;
    fit->low = (sum_qq * sums->x - sum_q * sum_qx) / determinant;
    if (fit->low > 0.0f && !min_any) {
        fit->low = 0.0f;
        fit->scale = sum_qx / sum_qq;
    }
    return fit->scale > 0.0f;
}

static float error_of(const float *x, const float *w, size_t n, const float *q, affine_fit fit,
                      bool linear) {
    float sum[LANES] = {0};
    for (size_t i = 0; i < n; i += LANES)
        for (size_t l = 0; l < LANES; l++) {
            float e = fit.scale * q[i + l] + fit.low - x[i + l];
            e = linear ? magnitude_of(e) : e * e;
            sum[l] += w[i + l] * e;
        }
    return lane_sum(sum);
}

void fm__fit_affine(const float *x, const float *w, size_t n, int levels, fm__fit_search search,
                    float *scale, float *minimum) {
    assert(n % LANES == 0 && n <= N_MAX);
    range_sums sums = range_of(x, w, n);
    if (sums.min > 0.0f && !search.min_any)
        sums.min = 0.0f;
    float width = sums.max - sums.min;
    if (width < 0x1p-60f) { /* constant: the minimum alone */
        *scale = 0.0f;
        *minimum = -sums.min;
        return;
    }

    float q[N_MAX], top = (float)levels;
    affine_fit best = {width / top, sums.min};
    for (size_t i = 0; i < n; i++)
        q[i] = round_clamped((x[i] - best.low) * (top / width), 0.0f, top);
    float least = error_of(x, w, n, q, best, search.linear);
    for (int i = 0; i < search.count; i++) {
        /* From the best low so far, not from the smallest element: the two improve each other. */
        float inverse = (top + search.first + search.step * (float)i) / (sums.max - best.low);
        affine_fit fit;
        if (!solve(x, w, n, best.low, inverse, top, &sums, search.min_any, q, &fit))
            continue;
        float error = error_of(x, w, n, q, fit, search.linear);
        if (error < least) {
            least = error;
            best = fit;
        }
    }
    *scale = best.scale;
    *minimum = -best.low;
}

float fm__fit_error(const float *x, const float *w, size_t n, float scale, float low, float lowest,
                    float highest, bool linear) {
    float q[N_MAX], inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    for (size_t i = 0; i < n; i++)
        q[i] = round_clamped((x[i] - low) * inverse, lowest, highest);
    return error_of(x, w, n, q, (affine_fit){scale, low}, linear);
}
