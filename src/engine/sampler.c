/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/sampler.c: from logits to the next token.
 *
 * Owns: the look-back ring and the random state. Never does: use libm or float: the same logits and
 * seed give the same id on every machine. Called from: one thread at a time. Allocates on the first
 * call for a vocabulary, then no more.
 */
#include "engine/engine.h"

#include <string.h>

enum { MAX_LOOK_BACK = 1 << 20 };

typedef struct candidate {
    double logit, weight;
    uint32_t id;
} candidate;

struct fm_sampler {
    fm_sampler_options options;
    fm__random random;
    int32_t *ring; /* (repeat_last_n): the latest ids */
    uint32_t n_ring, next;
    candidate *candidates; /* (capacity) */
    uint8_t *marks;        /* (capacity): ids already penalised; all 0 between calls */
    size_t capacity;
};

fm_sampler_options fm_sampler_options_default(void) {
    return (fm_sampler_options){.temperature = 0.8f,
                                .top_k = 40,
                                .top_p = 0.95f,
                                .min_p = 0.05f,
                                .repeat_penalty = 1.0f,
                                .repeat_last_n = 64};
}

static fm_status check_options(const fm_sampler_options *o, fm_error *error) {
    if (!(o->temperature >= 0 && o->temperature <= 1e6f))
        return fm__error(error, FM_ERROR_ARGUMENT, "temperature", "must be from 0 to 1e6");
    if (!(o->top_p > 0 && o->top_p <= 1))
        return fm__error(error, FM_ERROR_ARGUMENT, "top_p", "must be above 0 and at most 1");
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return fm__error(error, FM_ERROR_ARGUMENT, "min_p", "must be from 0 to 1");
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 1e6f))
        return fm__error(error, FM_ERROR_ARGUMENT, "repeat_penalty",
                         "must be above 0 and at most 1e6");
    if (o->repeat_last_n > MAX_LOOK_BACK)
        return fm__error(error, FM_ERROR_ARGUMENT, "repeat_last_n", "is %u, the most is %d",
                         o->repeat_last_n, MAX_LOOK_BACK);
    return FM_OK;
}

fm_status fm_sampler_create(fm_sampler **out, const fm_sampler_options *options, fm_error *error) {
    fm_sampler_options o = options ? *options : fm_sampler_options_default();
    fm_status status = check_options(&o, error);
    if (status != FM_OK)
        return status;
    fm_sampler *s = fm__alloc_zero(sizeof(*s));
    if (!s)
        return fm__error_memory(error, "sampler", sizeof(*s));
    s->options = o;
    s->ring = fm__alloc_array(o.repeat_last_n, sizeof(int32_t));
    if (!s->ring) {
        fm__free(s);
        return fm__error_memory(error, "sampler", o.repeat_last_n * sizeof(int32_t));
    }
    fm__random_seed(&s->random, o.seed);
    *out = s;
    return FM_OK;
}

void fm_sampler_destroy(fm_sampler **sampler) {
    if (!sampler || !*sampler)
        return;
    fm__free((*sampler)->ring);
    fm__free((*sampler)->candidates);
    fm__free((*sampler)->marks);
    fm__free(*sampler);
    *sampler = NULL;
}

void fm_sampler_accept(fm_sampler *s, int32_t id) {
    if (s->options.repeat_last_n == 0)
        return;
    s->ring[s->next] = id;
    s->next = (s->next + 1) % s->options.repeat_last_n;
    if (s->n_ring < s->options.repeat_last_n)
        s->n_ring++;
}

static fm_status make_room(fm_sampler *s, size_t n, fm_error *error) {
    if (n <= s->capacity)
        return FM_OK;
    candidate *candidates = fm__alloc_array(n, sizeof(candidate));
    uint8_t *marks = fm__alloc_array(n, 1);
    if (!candidates || !marks) {
        fm__free(candidates);
        fm__free(marks);
        return fm__error_memory(error, "sampler", n * (sizeof(candidate) + 1));
    }
    fm__free(s->candidates);
    fm__free(s->marks);
    s->candidates = candidates;
    s->marks = marks;
    s->capacity = n;
    return FM_OK;
}

static fm_status read_logits(fm_sampler *s, const float *logits, size_t n, fm_error *error) {
    size_t finite = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = fm__f32_bits(logits[i]);
        bool special = (bits & 0x7F800000u) == 0x7F800000u;
        if (special && bits != 0xFF800000u) /* minus infinity only rules a token out */
            return fm__error(error, FM_ERROR_NUMERIC, "logits", "entry %zu is %s", i,
                             bits & 0x7FFFFFu ? "not a number" : "infinite");
        finite += !special;
        s->candidates[i] = (candidate){.logit = logits[i], .id = (uint32_t)i};
    }
    if (finite == 0)
        return fm__error(error, FM_ERROR_NUMERIC, "logits", "none of %zu entries is finite", n);
    return FM_OK;
}

static void penalise(fm_sampler *s, size_t n) {
    double penalty = s->options.repeat_penalty;
    if (penalty == 1.0)
        return;
    for (uint32_t i = 0; i < s->n_ring; i++) {
        int32_t id = s->ring[i];
        if (id < 0 || (size_t)id >= n || s->marks[id])
            continue;
        s->marks[id] = 1;
        double *logit = &s->candidates[id].logit;
        *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
    }
    for (uint32_t i = 0; i < s->n_ring; i++) {
        if (s->ring[i] >= 0 && (size_t)s->ring[i] < n)
            s->marks[s->ring[i]] = 0;
    }
}

/* Higher logit first, ties to the lower id. */
static bool before(const candidate *a, const candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(candidate *heap, size_t n, size_t i) {
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            return;
        if (child + 1 < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &heap[i]))
            return;
        candidate held = heap[i];
        heap[i] = heap[child];
        heap[child] = held;
        i = child;
    }
}

/* exp(x), x <= 0; 0 where it would be below the normal numbers. */
static double decay(double x) {
    return x < -700 ? 0 : fm__exp(x);
}

/* Moves the best candidate behind the heap of *n, which shrinks by one. */
static candidate *pop(candidate *heap, size_t *n) {
    candidate top = heap[0];
    --*n;
    heap[0] = heap[*n];
    heap[*n] = top;
    sift_down(heap, *n, 0);
    return &heap[*n];
}

/* Weights at temperature 1 relative to the best, of all n; the sum in id order. */
static double weigh(candidate *c, size_t n, double best) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        c[i].weight = decay(c[i].logit - best);
        sum += c[i].weight;
    }
    return sum;
}

/* What is left to draw from: count entries, from first on, step apart. */
typedef struct survivors {
    const candidate *first;
    ptrdiff_t step, count;
    double best; /* the highest logit */
} survivors;

/* Top-k, top-p and min-p: survivors are taken off a heap, best first, and so lie in descending
   order from the array's end downwards. */
static survivors filter(fm_sampler *s, size_t n) {
    const fm_sampler_options *o = &s->options;
    candidate *c = s->candidates;
    for (size_t i = n / 2; i-- > 0;)
        sift_down(c, n, i);
    double best = c[0].logit, sum = 0;
    size_t left = n, most = o->top_k && o->top_k < n ? o->top_k : n;
    if (most < n) {
        for (size_t i = 0; i < most; i++) {
            candidate *taken = pop(c, &left);
            taken->weight = decay(taken->logit - best);
            sum += taken->weight;
        }
    } else {
        sum = weigh(c, n, best);
    }
    double mass = 0;
    size_t count = 0;
    /* With top-k the order is there already; without, it is made as far as it is needed. */
    while (count < most && (count == 0 || mass < o->top_p * sum)) {
        const candidate *next = most < n ? &c[n - 1 - count] : pop(c, &left);
        if (count > 0 && (next->weight < o->min_p || next->weight == 0))
            break;
        mass += next->weight;
        count++;
    }
    return (survivors){.first = &c[n - 1], .step = -1, .count = (ptrdiff_t)count, .best = best};
}

/* Nothing is filtered: all candidates, in id order, without the cost of sorting a vocabulary. */
static survivors everything(const fm_sampler *s, size_t n) {
    survivors all = {.first = s->candidates, .step = 1, .count = (ptrdiff_t)n};
    all.best = s->candidates[0].logit;
    for (size_t i = 1; i < n; i++)
        all.best = s->candidates[i].logit > all.best ? s->candidates[i].logit : all.best;
    return all;
}

/* One draw at the temperature. */
static uint32_t draw(fm_sampler *s, const survivors *from) {
    double temperature = s->options.temperature, sum = 0;
    uint32_t last = from->first->id;
    for (ptrdiff_t i = 0; i < from->count; i++)
        sum += decay((from->first[i * from->step].logit - from->best) / temperature);
    double left = fm__random_double(&s->random) * sum;
    for (ptrdiff_t i = 0; i < from->count; i++) {
        const candidate *c = &from->first[i * from->step];
        double weight = decay((c->logit - from->best) / temperature);
        if (weight == 0)
            continue;
        last = c->id;
        left -= weight;
        if (left < 0)
            break;
    }
    return last; /* the last with any weight where rounding used the sum up */
}

fm_status fm_sampler_sample(fm_sampler *s, const float *logits, size_t n, int32_t *id,
                            fm_error *error) {
    if (n == 0 || n > INT32_MAX || !logits || !id)
        return fm__error(error, FM_ERROR_ARGUMENT, "logits", "%zu entries", n);
    fm_status status = make_room(s, n, error);
    if (status == FM_OK)
        status = read_logits(s, logits, n, error);
    if (status != FM_OK)
        return status;
    penalise(s, n);
    uint32_t chosen = 0;
    if (s->options.temperature == 0) {
        for (uint32_t i = 1; i < n; i++)
            chosen = before(&s->candidates[i], &s->candidates[chosen]) ? i : chosen;
    } else {
        const fm_sampler_options *o = &s->options;
        bool filters = (o->top_k && o->top_k < n) || o->top_p < 1 || o->min_p > 0;
        survivors left = filters ? filter(s, n) : everything(s, n);
        chosen = draw(s, &left);
    }
    *id = (int32_t)chosen;
    fm_sampler_accept(s, *id);
    return FM_OK;
}
