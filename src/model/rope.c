/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/rope.c: the cosine and sine tables of rotary embeddings.
 *
 * Owns: how frequencies follow from the hyper-parameters. Never does: rotate. Called from: the
 * loading thread. Everything is computed in double with base/math.c, never libm: one unit in the
 * last place of a frequency changes table entries at position 10^5.
 */
#include "model/model.h"

#include <string.h>

void fm__rope_table(double base, double linear, const float *factors, uint32_t rotary,
                    uint32_t positions, bool sine, float *out) {
    uint32_t half = rotary / 2;
    for (uint32_t i = 0; i < half; i++) {
        double frequency = fm__pow(base, -2.0 * i / rotary) / linear;
        if (factors)
            frequency /= (double)factors[i];
        for (uint32_t position = 0; position < positions; position++) {
            double angle = position * frequency;
            out[(size_t)position * half + i] = (float)(sine ? fm__sin(angle) : fm__cos(angle));
        }
    }
}

void fm__rope_llama3_factors(double base, double factor, double low, double high,
                             double original_context, uint32_t rotary, float *out) {
    const double two_pi = 6.283185307179586476925;
    double longest = original_context / low, shortest = original_context / high;
    for (uint32_t i = 0; i < rotary / 2; i++) {
        double wavelength = two_pi * fm__pow(base, 2.0 * i / rotary);
        if (wavelength < shortest) {
            out[i] = 1.0f;
        } else if (wavelength > longest) {
            out[i] = (float)factor;
        } else {
            double smooth = (original_context / wavelength - low) / (high - low);
            out[i] = (float)(1.0 / ((1.0 - smooth) / factor + smooth));
        }
    }
}

/* What the fill function of a table needs; factors follow in the same block. */
typedef struct rope_table {
    double base, linear;
    uint32_t rotary;
    bool has_factors;
    float factors[];
} rope_table;

static void fill_cos(const void *user, uint32_t rows, uint32_t n, float *out) {
    const rope_table *t = user;
    (void)n;
    fm__rope_table(t->base, t->linear, t->has_factors ? t->factors : NULL, t->rotary, rows, false,
                   out);
}

static void fill_sin(const void *user, uint32_t rows, uint32_t n, float *out) {
    const rope_table *t = user;
    (void)n;
    fm__rope_table(t->base, t->linear, t->has_factors ? t->factors : NULL, t->rotary, rows, true,
                   out);
}

fm_status fm__bind_rope(fm__binder *binder, const fm__hparams *hparams, uint32_t context,
                        int16_t *cos_id, int16_t *sin_id, fm_error *error) {
    uint32_t half = hparams->rotary / 2;
    float *factors = NULL;
    fm_status status = fm__bind_read(binder, "rope_freqs.weight", half, &factors, error);
    if (status != FM_OK)
        return status;
    size_t bytes = sizeof(rope_table) + half * sizeof(float);
    rope_table *table = fm__alloc_zero(bytes);
    if (!table) {
        status = fm__error_memory(error, "rope table", bytes);
        goto out_factors;
    }
    table->base = hparams->rope_base;
    table->linear = hparams->rope_linear;
    table->rotary = hparams->rotary;
    table->has_factors = factors != NULL;
    for (uint32_t i = 0; i < half && factors; i++) {
        if (!(factors[i] >= 1e-6f && factors[i] <= 1e6f)) {
            status = fm__error(error, FM_ERROR_FORMAT, "tensor rope_freqs.weight",
                               "entry %u must be between 1e-6 and 1e6", i);
            goto out_table;
        }
        table->factors[i] = factors[i];
    }
    status =
        fm__bind_table(binder, "rope_cos", context, half, fill_cos, table, bytes, cos_id, error);
    if (status == FM_OK)
        status = fm__bind_table(binder, "rope_sin", context, half, fill_sin, table, bytes, sin_id,
                                error);
out_table:
    fm__free(table);
out_factors:
    fm__free(factors);
    return status;
}
