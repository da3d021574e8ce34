/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/quantise.c: activations into the forms that linear layers read, the specification
 * (docs/numerics.md, "Activations"). Owns: nothing. Never does: weights. Called from: team threads.
 */
#include "cpu/ref/ref.h"

/* The largest of bits(x) with the sign cleared: the order of magnitudes, with infinities and NaN at
   the top. */
static uint32_t largest(const float *x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = fm__f32_bits(x[i]) & 0x7FFFFFFFu;
        most = u > most ? u : most;
    }
    return most;
}

/* q = clamp(rne(x * inv * 2^e)) for n values; returns their sum. */
static int quantise(const float *x, int n, float inv, float power, int8_t *q) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        float v = x[i] * inv;
        v = v * power;
        v = v + FM__ROUND_MAGIC;
        v = v - FM__ROUND_MAGIC;
        v = v > 127.0f ? 127.0f : v;
        v = v < -127.0f ? -127.0f : v;
        q[i] = (int8_t)v;
        sum += q[i];
    }
    return sum;
}

bool fm__quantise_q8_32_ref(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    int8_t *q = (int8_t *)row + layout->values;
    float *d = (float *)(void *)(row + layout->d);
    int16_t *sum = (int16_t *)(void *)(row + layout->sum);
    for (size_t b = 0; b < k / 32; b++) {
        uint32_t most = largest(x + b * 32, 32);
        if (most >= FM__HUGE_BITS)
            return false;
        bool zero = most < FM__TINY_BITS;
        float a = fm__bits_f32(most), inv = zero ? 0.0f : 127.0f * fm__rcp(a);
        sum[b] = (int16_t)quantise(x + b * 32, 32, inv, 1.0f, q + b * 32);
        d[b] = zero ? 0.0f : a * FM__INV127;
    }
    return true;
}

/* The largest e of 0..3 for which chunk * 2^e <= whole. */
static int chunk_exponent(uint32_t chunk, uint32_t whole) {
    int e = 3;
    while (e > 0 && fm__bits_f32(chunk) * (float)(1 << e) > fm__bits_f32(whole))
        e--;
    return e;
}

bool fm__quantise_q8_256_ref(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    int8_t *q = (int8_t *)row + layout->values;
    float *d = (float *)(void *)(row + layout->d);
    int16_t *sum = (int16_t *)(void *)(row + layout->sum);
    uint8_t *shift = row + layout->shift;
    for (size_t b = 0; b < k / 256; b++) {
        uint32_t whole = largest(x + b * 256, 256);
        if (whole >= FM__HUGE_BITS)
            return false;
        bool zero = whole < FM__TINY_BITS;
        float a = fm__bits_f32(whole), inv = zero ? 0.0f : 127.0f * fm__rcp(a);
        for (size_t c = b * 8; c < b * 8 + 8; c++) {
            int e = zero ? 3 : chunk_exponent(largest(x + c * 32, 32), whole);
            for (size_t s = 2 * c; s < 2 * c + 2; s++)
                sum[s] = (int16_t)quantise(x + s * 16, 16, inv, (float)(1 << e), q + s * 16);
            shift[c] = (uint8_t)(3 - e);
        }
        d[b] = zero ? 0.0f : a * FM__INV127 * 0.125f;
    }
    return true;
}

static float keep(float x) {
    return (fm__f32_bits(x) & 0x7FFFFFFFu) < FM__TINY_BITS ? 0.0f : x;
}

bool fm__quantise_f32_ref(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    float *out = (float *)(void *)(row + layout->values);
    if (largest(x, k) >= FM__HUGE_BITS)
        return false;
    for (size_t i = 0; i < k; i++)
        out[i] = keep(x[i]);
    return true;
}

bool fm__quantise_r13_ref(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    float *out = (float *)(void *)(row + layout->values);
    if (largest(x, k) >= FM__HUGE_BITS)
        return false;
    for (size_t i = 0; i < k; i++)
        out[i] = fm__round_bits(x[i], 11);
    return true;
}

bool fm__quantise_r16_ref(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    float *out = (float *)(void *)(row + layout->values);
    if (largest(x, k) >= FM__HUGE_BITS)
        return false;
    for (size_t i = 0; i < k; i++)
        out[i] = fm__round_bits(x[i], 8);
    return true;
}

bool fm__quantise_bf16_ref(const float *x, size_t k, const fm__act_layout *layout, uint8_t *row) {
    uint16_t *out = (uint16_t *)(void *)(row + layout->values);
    if (largest(x, k) >= FM__HUGE_BITS)
        return false;
    for (size_t i = 0; i < k; i++)
        out[i] = (uint16_t)(fm__f32_bits(fm__round_bits(x[i], 16)) >> 16);
    if (k % 2 != 0)
        out[k] = 0;
    return true;
}
