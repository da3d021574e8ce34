/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/mixture.c: which type a tensor gets when a model is written.
 *
 * Owns: the named mixtures and the fallbacks where a row's length rules a type out; both follow the
 * recipes that GGUF files in circulation were made with, so that a name means the same everywhere.
 * Never does: encode. Called from: converting threads.
 */
#include "engine/engine.h"

#include <string.h>

/* Which tensors of a mixture get more bits; see more_bits(). */
enum { PURE, Q2_K, Q2_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_M, TERNARY };

static const fm__mixture mixtures[] = {
    {"f32", FM__F32, 0, PURE},         {"f16", FM__F16, 1, PURE},
    {"bf16", FM__BF16, 32, PURE},      {"q4_0", FM__Q4_0, 2, PURE},
    {"q4_1", FM__Q4_1, 3, PURE},       {"q5_0", FM__Q5_0, 8, PURE},
    {"q5_1", FM__Q5_1, 9, PURE},       {"q8_0", FM__Q8_0, 7, PURE},
    {"q2_k", FM__Q2_K, 10, Q2_K},      {"q2_k_s", FM__Q2_K, 21, Q2_K_S},
    {"q3_k", FM__Q3_K, 11, PURE},      {"q3_k_s", FM__Q3_K, 11, PURE},
    {"q3_k_m", FM__Q3_K, 12, Q3_K_M},  {"q3_k_l", FM__Q3_K, 13, Q3_K_L},
    {"q4_k", FM__Q4_K, 14, PURE},      {"q4_k_s", FM__Q4_K, 14, Q4_K_S},
    {"q4_k_m", FM__Q4_K, 15, Q4_K_M},  {"q5_k", FM__Q5_K, 16, PURE},
    {"q5_k_s", FM__Q5_K, 16, PURE},    {"q5_k_m", FM__Q5_K, 17, Q5_K_M},
    {"q6_k", FM__Q6_K, 18, PURE},      {"tq1_0", FM__TQ1_0, 36, TERNARY},
    {"tq2_0", FM__TQ2_0, 37, TERNARY}, {"mxfp4", FM__MXFP4, 38, PURE},
    {"iq4_nl", FM__IQ4_NL, 25, PURE},  {"iq4_xs", FM__IQ4_XS, 30, PURE},
};

const fm__mixture *fm__mixture_get(const char *name) {
    for (size_t i = 0; name && i < sizeof(mixtures) / sizeof(mixtures[0]); i++) {
        if (strcmp(mixtures[i].name, name) == 0)
            return &mixtures[i];
    }
    return NULL;
}

fm_status fm__mixture_find(const fm__mixture **out, const char *name, fm_error *error) {
    char names[320] = "";
    size_t used = 0;
    *out = fm__mixture_get(name);
    if (*out && fm__type_get((*out)->base)->encode)
        return FM_OK;
    for (size_t i = 0; i < sizeof(mixtures) / sizeof(mixtures[0]) && used < sizeof(names); i++) {
        if (fm__type_get(mixtures[i].base)->encode)
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                                     mixtures[i].name);
    }
    if (*out)
        return fm__error(error, FM_ERROR_ARGUMENT, "type", "%s cannot be written, but: %s", name,
                         names);
    return fm__error(error, FM_ERROR_ARGUMENT, "type", "\"%.40s\" is not one of %s", name, names);
}

/* ---- widths that do not fit ---- */

void fm__fallbacks_add(fm__fallbacks *f, const fm__mixture *mixture, uint64_t k, fm__dtype type) {
    uint32_t i = 0;
    while (i < f->n_kind && (f->kinds[i].k != k || f->kinds[i].type != type))
        i++;
    if (i == sizeof(f->kinds) / sizeof(f->kinds[0])) {
        fm__fallbacks_tell(f, mixture);
        i = 0;
    }
    if (i == f->n_kind) {
        f->kinds[i].k = k;
        f->kinds[i].type = type;
        f->kinds[i].n = 0;
        f->n_kind++;
    }
    f->kinds[i].n++;
}

void fm__fallbacks_tell(fm__fallbacks *f, const fm__mixture *mixture) {
    for (uint32_t i = 0; i < f->n_kind; i++)
        fm__log(FM_LOG_WARNING, "rows of %llu do not fit %s: %u tensor%s written as %s",
                (unsigned long long)f->kinds[i].k, mixture->name, f->kinds[i].n,
                f->kinds[i].n == 1 ? " is" : "s are", fm__type_get(f->kinds[i].type)->name);
    f->n_kind = 0;
}

/* ---- which type ---- */

/* The first and last eighth of the layers and every third one between. */
static bool sensitive(uint32_t layer, uint32_t n) {
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

static fm__dtype attn_v_type(const fm__mixture *m, const fm__mixture_model *model, uint32_t layer) {
    uint32_t shared = model->n_head / model->n_kv_head; /* query heads a value head serves */
    fm__dtype type = m->base;
    switch (m->rule) {
    case Q2_K:
        type = shared >= 4 ? FM__Q4_K : FM__Q3_K;
        break;
    case Q2_K_S:
        type = shared >= 4 ? FM__Q4_K : m->base;
        break;
    case Q3_K_M:
        type = layer < 2 ? FM__Q5_K : FM__Q4_K;
        break;
    case Q3_K_L:
        type = FM__Q5_K;
        break;
    case Q4_K_S:
        type = layer < 4 ? FM__Q5_K : m->base;
        break;
    case Q4_K_M:
    case Q5_K_M:
        type = sensitive(layer, model->n_layer) ? FM__Q6_K : m->base;
        break;
    }
    /* 80-layer models share each value head so widely that its tensor is nearly free. */
    if (model->n_layer == 80 && shared > 1 && (type == FM__Q3_K || type == FM__Q4_K))
        type = FM__Q5_K;
    return type;
}

static fm__dtype ffn_down_type(const fm__mixture *m, const fm__mixture_model *model,
                               uint32_t layer) {
    uint32_t n = model->n_layer;
    switch (m->rule) {
    case Q2_K:
        return FM__Q3_K;
    case Q2_K_S:
        return layer < n / 8 ? FM__Q4_K : m->base;
    case Q3_K_M:
        return layer < n / 16 ? FM__Q5_K : FM__Q4_K;
    case Q3_K_L:
        return FM__Q5_K;
    case Q4_K_S:
        return layer < n / 8 ? FM__Q5_K : m->base;
    case Q4_K_M:
    case Q5_K_M:
        return sensitive(layer, n) ? FM__Q6_K : m->base;
    }
    return m->base;
}

static fm__dtype attn_output_type(const fm__mixture *m) {
    switch (m->rule) {
    case Q2_K:
        return FM__Q3_K;
    case Q3_K_M:
        return FM__Q4_K;
    case Q3_K_L:
        return FM__Q5_K;
    }
    return m->base;
}

static bool divides(fm__dtype type, uint64_t k) {
    return k % fm__dtype_get((uint32_t)type)->block == 0;
}

/* The logits' own matrix decides every token: it gets at least six bits. */
static fm__dtype output_type(const fm__mixture *m, uint64_t k) {
    if (!divides(m->base, k) || m->base == FM__Q8_0 || m->base == FM__MXFP4)
        return FM__Q8_0;
    return FM__Q6_K;
}

static fm__dtype fallback(fm__dtype type, uint64_t k) {
    if (divides(type, k))
        return type;
    switch (type) {
    case FM__Q2_K:
    case FM__Q3_K:
    case FM__TQ1_0:
    case FM__TQ2_0:
        type = FM__Q4_0;
        break;
    case FM__Q4_K:
        type = FM__Q5_0;
        break;
    case FM__Q5_K:
        type = FM__Q5_1;
        break;
    case FM__Q6_K:
        type = FM__Q8_0;
        break;
    case FM__IQ4_XS:
        type = FM__IQ4_NL;
        break;
    default:
        break;
    }
    return divides(type, k) ? type : FM__F16;
}

fm__dtype fm__mixture_type(const fm__mixture *m, const fm__mixture_model *model, const char *name,
                           uint32_t n_dims, uint64_t k, bool *fell_back) {
    fm__str text = fm__str_of(name);
    unsigned layer = 0;
    if (fell_back)
        *fell_back = false;
    if (n_dims < 2 || !fm__str_ends(text, ".weight") || fm__str_ends(text, "_norm.weight") ||
        fm__str_is(text, "rope_freqs.weight"))
        return FM__F32;
    if (!fm__type_get(m->base)->quantised)
        return m->base;
    sscanf(name, "blk.%u.", &layer);
    fm__dtype type = m->base;
    bool embedding = fm__str_is(text, "token_embd.weight");
    if (fm__str_is(text, "output.weight") || (embedding && model->tied))
        type = output_type(m, k);
    else if (embedding && m->rule == TERNARY)
        type = FM__Q4_K;
    else if (fm__str_ends(text, ".attn_v.weight"))
        type = attn_v_type(m, model, layer);
    else if (fm__str_ends(text, ".ffn_down.weight"))
        type = ffn_down_type(m, model, layer);
    else if (fm__str_ends(text, ".attn_output.weight"))
        type = attn_output_type(m);
    fm__dtype possible = fallback(type, k);
    if (fell_back)
        *fell_back = possible != type;
    return possible;
}
