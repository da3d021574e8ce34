/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/ref/attention.c: attention over the paged cache, the specification (docs/numerics.md,
 * "Attention"). Owns: nothing. Never does: writes to the cache. Called from: team threads.
 */
#include "cpu/ref/ref.h"

#include <assert.h>
#include <string.h>

enum { BLOCK = FM__KEY_BLOCK, LANES = 16 };

/* What one block of keys, or several merged ones, amount to. */
struct state {
    float m; /* the largest score */
    float l; /* the sum of p */
    float o[FM__MAX_HEAD_DIM];
};

/* One query head of one row. */
struct query {
    const fm__attention_args *args;
    const uint32_t *pages; /* of the row's sequence */
    uint32_t kv_head;
    uint32_t first, last; /* visible positions, both included */
    float q[FM__MAX_HEAD_DIM];
    /* Q8_0: instead of q */
    int8_t codes[FM__MAX_HEAD_DIM];
    float d[FM__MAX_HEAD_DIM / FM__CACHE_BLOCK];
};

/* The head's part of the page of a position (tape/tape.h). */
static const uint8_t *page_of(const struct query *query, uint32_t position) {
    const fm__cache_group *group = query->args->group;
    uint32_t page = query->pages[position / FM__PAGE_TOKENS];
    assert(page != FM__NO_PAGE);
    size_t index = (size_t)page * group->n_kv_head + query->kv_head;
    return query->args->layer_base + index * group->head_bytes;
}

static const uint16_t *halves(const uint8_t *at) {
    return (const uint16_t *)(const void *)at;
}

/* ---- f16 ---- */

static void load_f16(struct query *query, const float *q) {
    for (uint32_t i = 0; i < query->args->group->key_dim; i++)
        query->q[i] = fm__round_bits(q[i] * query->args->scale, 11);
}

/* Scores of the 16 keys from `position` (a multiple of 16), visible or not. */
static void score_16_f16(const struct query *query, uint32_t position, float s[LANES]) {
    uint32_t key_dim = query->args->group->key_dim;
    const uint16_t *k = halves(page_of(query, position));
    k += (size_t)(position % FM__PAGE_TOKENS / LANES) * key_dim * LANES;
    for (int l = 0; l < LANES; l++)
        s[l] = 0.0f;
    for (uint32_t i = 0; i < key_dim; i++)
        for (int l = 0; l < LANES; l++)
            s[l] = s[l] + query->q[i] * fm__ref_f16(k[i * LANES + l]);
}

/* o = the sum of p * v over the keys first..last of one block; p is counted from its start. */
static void values_f16(const struct query *query, uint32_t first, uint32_t last,
                       const float p[BLOCK], float *o) {
    const fm__cache_group *group = query->args->group;
    for (uint32_t j = 0; j < group->value_dim; j++)
        o[j] = 0.0f;
    for (uint32_t key = first; key <= last; key++) {
        const uint16_t *v = halves(page_of(query, key)) + (size_t)FM__PAGE_TOKENS * group->key_dim +
                            (size_t)(key % FM__PAGE_TOKENS) * group->value_dim;
        for (uint32_t j = 0; j < group->value_dim; j++)
            o[j] = o[j] + p[key % BLOCK] * fm__ref_f16(v[j]);
    }
}

/* ---- q8_0 ---- */

static float scale_at(const uint8_t *scales, size_t index) {
    return fm__bits_f32((uint32_t)halves(scales)[index] << 16);
}

static void load_q8_0(struct query *query, const float *q) {
    uint32_t key_dim = query->args->group->key_dim;
    for (uint32_t begin = 0; begin < key_dim; begin += FM__CACHE_BLOCK) {
        uint32_t end = begin + FM__CACHE_BLOCK < key_dim ? begin + FM__CACHE_BLOCK : key_dim;
        uint32_t most = 0;
        for (uint32_t i = begin; i < end; i++) {
            query->q[i] = q[i] * query->args->scale;
            uint32_t u = fm__f32_bits(query->q[i]) & 0x7FFFFFFFu;
            most = u > most ? u : most;
        }
        bool none = most < FM__TINY_BITS, huge = most >= FM__HUGE_BITS;
        float a = fm__bits_f32(most), inv = none || huge ? 0.0f : 127.0f * fm__rcp(a);
        query->d[begin / FM__CACHE_BLOCK] = none   ? 0.0f
                                            : huge ? fm__bits_f32(0x7FC00000u)
                                                   : a * FM__INV127;
        for (uint32_t i = begin; i < end; i++) {
            float x = huge ? 0.0f : query->q[i] * inv;
            x = x + FM__ROUND_MAGIC;
            x = x - FM__ROUND_MAGIC;
            x = x > 127.0f ? 127.0f : x;
            query->codes[i] = (int8_t)(x < -127.0f ? -127.0f : x);
        }
    }
}

static void score_16_q8_0(const struct query *query, uint32_t position, float s[LANES]) {
    uint32_t key_dim = query->args->group->key_dim, tile = position % FM__PAGE_TOKENS / LANES;
    uint32_t blocks = fm__cache_blocks(key_dim);
    const uint8_t *page = page_of(query, position);
    const uint8_t *scales =
        page + fm__cache_q8_0_parts(key_dim, query->args->group->value_dim).key_scales;
    const int8_t *k = (const int8_t *)page + (size_t)tile * ((key_dim + 3) / 4) * 64;
    for (int l = 0; l < LANES; l++)
        s[l] = 0.0f;
    for (uint32_t b = 0; b < blocks; b++) {
        int32_t sum[LANES] = {0};
        for (uint32_t i = b * 32; i < b * 32 + 32 && i < key_dim; i++)
            for (uint32_t l = 0; l < LANES; l++)
                sum[l] += query->codes[i] * k[i / 4 * 64 + l * 4 + i % 4];
        for (uint32_t l = 0; l < LANES; l++) {
            float d = query->d[b] * scale_at(scales, ((size_t)tile * blocks + b) * 16 + l);
            s[l] = s[l] + (float)sum[l] * d;
        }
    }
}

/* The weights of the keys first..last for the values of block b, as integers of 16 bits; returns
   what one is worth. */
static float weights_of(const struct query *query, uint32_t first, uint32_t last, uint32_t b,
                        const float p[BLOCK], int32_t weights[BLOCK]) {
    const fm__cache_group *group = query->args->group;
    size_t scales = fm__cache_q8_0_parts(group->key_dim, group->value_dim).value_scales;
    float w[BLOCK];
    uint32_t most = 0;
    for (uint32_t key = first; key <= last; key++) {
        float d = scale_at(page_of(query, key) + scales,
                           (size_t)b * FM__PAGE_TOKENS + key % FM__PAGE_TOKENS);
        w[key % BLOCK] = p[key % BLOCK] * d;
        uint32_t u = fm__f32_bits(w[key % BLOCK]) & 0x7FFFFFFFu;
        most = u > most ? u : most;
    }
    if (most >= 0x7F800000u) { /* a NaN among them */
        for (uint32_t key = first; key <= last; key++)
            weights[key % BLOCK] = 0;
        return fm__bits_f32(0x7FC00000u);
    }
    uint32_t exponent = (most < FM__TINY_BITS ? FM__TINY_BITS : most) >> 23;
    float factor = fm__bits_f32((269u - exponent) << 23); /* brings the largest to 2^15..2^16 */
    for (uint32_t key = first; key <= last; key++) {
        float x = w[key % BLOCK] * factor;
        x = x + FM__ROUND_MAGIC;
        x = x - FM__ROUND_MAGIC;
        weights[key % BLOCK] = x > 65535.0f ? 65535 : (int32_t)x;
    }
    return fm__bits_f32((exponent - 15u) << 23);
}

static void values_q8_0(const struct query *query, uint32_t first, uint32_t last,
                        const float p[BLOCK], float *o) {
    const fm__cache_group *group = query->args->group;
    size_t at = fm__cache_q8_0_parts(group->key_dim, group->value_dim).values;
    for (uint32_t b = 0; b < fm__cache_blocks(group->value_dim); b++) {
        int32_t weights[BLOCK], sum[FM__CACHE_BLOCK] = {0};
        uint32_t left = group->value_dim - b * 32, n = left < 32 ? left : 32;
        float unit = weights_of(query, first, last, b, p, weights);
        for (uint32_t key = first; key <= last; key++) {
            const int8_t *v = (const int8_t *)page_of(query, key) + at +
                              (size_t)(key % FM__PAGE_TOKENS / 4) * n * 4 + key % 4;
            for (uint32_t j = 0; j < n; j++)
                sum[j] += weights[key % BLOCK] * v[j * 4];
        }
        for (uint32_t j = 0; j < n; j++)
            o[b * 32 + j] = (float)sum[j] * unit;
        at += (size_t)FM__PAGE_TOKENS * n;
    }
}

/* ---- blocks ---- */

/* p[i] for the visible keys first..last of one block, i counted from the block's start; returns the
   block's m. */
static float probabilities(const struct query *query, uint32_t first, uint32_t last,
                           float p[BLOCK]) {
    uint32_t start = first / BLOCK * BLOCK;
    for (uint32_t tile = first / LANES * LANES; tile <= last; tile += LANES)
        (query->args->group->type == FM__CACHE_Q8_0 ? score_16_q8_0 : score_16_f16)(
            query, tile, p + (tile - start));
    float m = p[first - start];
    for (uint32_t i = first - start; i <= last - start; i++)
        m = p[i] > m ? p[i] : m;
    for (uint32_t i = first - start; i <= last - start; i++)
        p[i] = fm__round_bits(fm__exp_softmax(p[i] - m), 11);
    return m;
}

/* The visible keys first..last, all of one block. */
static void attend_block(const struct query *query, uint32_t first, uint32_t last,
                         struct state *out) {
    uint32_t start = first / BLOCK * BLOCK;
    float p[BLOCK], lanes[LANES] = {0};
    out->m = probabilities(query, first, last, p);
    for (uint32_t i = first - start; i <= last - start; i++)
        lanes[i % LANES] = lanes[i % LANES] + p[i];
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lanes[l] = lanes[l] + lanes[l + w];
    out->l = lanes[0];
    (query->args->group->type == FM__CACHE_Q8_0 ? values_q8_0 : values_f16)(query, first, last, p,
                                                                            out->o);
}

static void merge(struct state *a, const struct state *b, uint32_t value_dim) {
    float m = a->m > b->m ? a->m : b->m;
    float alpha = fm__exp_softmax(a->m - m), beta = fm__exp_softmax(b->m - m);
    a->m = m;
    a->l = a->l * alpha + b->l * beta;
    for (uint32_t j = 0; j < value_dim; j++) {
        float o = a->o[j] * alpha + b->o[j] * beta;
        a->o[j] = (fm__f32_bits(o) & 0x7FFFFFFFu) < FM__TINY_BITS ? 0.0f : o;
    }
}

static void finish(const struct state *all, uint32_t value_dim, float *out) {
    float inverse = fm__rcp(all->l);
    for (uint32_t j = 0; j < value_dim; j++)
        out[j] = all->o[j] * inverse;
}

static void attend(const struct query *query, float *out) {
    uint32_t value_dim = query->args->group->value_dim;
    struct state all, block;
    for (uint32_t first = query->first; first <= query->last;) {
        uint32_t end = (first / BLOCK + 1) * BLOCK - 1;
        uint32_t last = end < query->last ? end : query->last;
        if (first == query->first) {
            attend_block(query, first, last, &all);
        } else {
            attend_block(query, first, last, &block);
            merge(&all, &block, value_dim);
        }
        first = last + 1;
    }
    finish(&all, value_dim, out);
}

/* ---- blocks apart ---- */

/* Of query head `head` of the kv head. */
static float *part_of(const fm__attention_args *args, uint32_t block, uint32_t head) {
    size_t shared = args->heads / args->group->n_kv_head, index = block - args->block_begin;
    return args->parts + (index * shared + head) * fm__attention_part_floats(args->group);
}

static void attend_parts(const struct query *query, uint32_t head) {
    const fm__attention_args *args = query->args;
    size_t dim = args->group->value_dim, padded = fm__round_up(dim, 16);
    for (uint32_t b = args->block_begin; b < args->block_end; b++) {
        struct state state;
        uint32_t start = b * BLOCK, end = start + BLOCK - 1;
        attend_block(query, query->first > start ? query->first : start,
                     query->last < end ? query->last : end, &state);
        float *part = part_of(args, b, head);
        memcpy(part, state.o, dim * sizeof(float));
        part[padded] = state.m;
        part[padded + 1] = state.l;
    }
}

static void merge_parts(const struct query *query, uint32_t head, float *out) {
    const fm__attention_args *args = query->args;
    size_t dim = args->group->value_dim, padded = fm__round_up(dim, 16);
    struct state all, block;
    for (uint32_t b = args->block_begin; b < args->block_end; b++) {
        const float *part = part_of(args, b, head);
        struct state *to = b == args->block_begin ? &all : &block;
        memcpy(to->o, part, dim * sizeof(float));
        to->m = part[padded];
        to->l = part[padded + 1];
        if (to == &block)
            merge(&all, &block, (uint32_t)dim);
    }
    finish(&all, (uint32_t)dim, out);
}

void fm__attention_ref(const fm__attention_args *args) {
    const fm__cache_group *group = args->group;
    const fm__batch_view *batch = args->batch;
    uint32_t shared = args->heads / group->n_kv_head; /* query heads of one kv head */
    struct query query = {.args = args};
    for (uint32_t row = args->row_begin; row < args->row_end; row++) {
        uint32_t position = batch->position[row];
        query.last = position;
        query.first =
            group->window && position + 1 > group->window ? position + 1 - group->window : 0;
        query.pages =
            batch->pages[(size_t)batch->sequence[row] * batch->n_group + args->group_index];
        for (uint32_t h = args->kv_begin * shared; h < args->kv_end * shared; h++) {
            const float *q = (const float *)(const void *)(args->q + row * args->q_stride) +
                             (size_t)h * group->key_dim;
            float *out = (float *)(void *)(args->out + row * args->out_stride) +
                         (size_t)h * group->value_dim;
            query.kv_head = h / shared;
            (group->type == FM__CACHE_Q8_0 ? load_q8_0 : load_f16)(&query, q);
            if (args->mode == FM__ATTENTION_ROWS)
                attend(&query, out);
            else if (args->mode == FM__ATTENTION_PARTS)
                attend_parts(&query, h % shared);
            else
                merge_parts(&query, h % shared, out);
        }
    }
}
