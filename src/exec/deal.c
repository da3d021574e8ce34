/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/deal.c: whole products dealt out to units: a pure function.
 *
 * Owns: nothing. Never does: look at times. Called from: the loading thread, through plan.c.
 *
 * Where a unit's weights come to it over a bus while others compute, what counts is how many of
 * them come, not that both units work on the same product: a product that another unit does whole
 * is one that is not copied meanwhile. It needs one hand-over, as its part would, and of few
 * products a unit has a larger part than of all.
 *
 * The products of one shape are dealt out evenly along the tape, and those of different shapes at
 * different places, so that the copies that run ahead are never waited for long.
 */
#include "exec/exec.h"

/* The products of one shape. */
typedef struct hand {
    fm__shape shape;
    uint32_t count;
    double credit[FM__MAX_UNITS];
} hand;

/* NULL: the op is no product. */
static hand *hand_of(const fm__tape *tape, uint32_t op, hand *hands, uint32_t *n) {
    fm__shape shape;
    if (!fm__shape_of(tape, op, &shape))
        return NULL;
    for (uint32_t i = 0; i < *n; i++)
        if (fm__shape_equal(&hands[i].shape, &shape))
            return &hands[i];
    hands[*n] = (hand){.shape = shape};
    return &hands[(*n)++];
}

/* Shapes begin at different points of their turn; a product that is alone goes to whoever has most
   of it. */
static void begin(hand *hands, uint32_t n_hand, uint32_t n_unit) {
    for (uint32_t h = 0; h < n_hand; h++)
        for (uint32_t u = 1; u < n_unit && hands[h].count > 1; u++)
            hands[h].credit[u] = (2 * h + 1.0) / n_hand - 1;
}

/* Every product earns each unit its share of it, and costs the one who gets it a whole one. */
static uint8_t give(hand *h, const double *shares, uint32_t n_unit) {
    double sum = 0;
    uint32_t to = 0;
    for (uint32_t u = 0; u < n_unit; u++)
        sum += shares[u];
    for (uint32_t u = 0; u < n_unit; u++)
        h->credit[u] += sum > 0 ? shares[u] / sum : u == 0;
    while (sum > 0 && !(shares[to] > 0)) /* who has no share gets none, whatever the turn */
        to++;
    for (uint32_t u = to + 1; u < n_unit; u++)
        if ((shares[u] > 0 || sum <= 0) && h->credit[u] > h->credit[to] + 1e-9)
            to = u;
    h->credit[to] -= 1;
    return (uint8_t)to;
}

fm_status fm__deal(const fm__tape *tape, const double (*shares)[FM__MAX_UNITS], uint32_t n_unit,
                   uint8_t *owner, fm_error *error) {
    hand *hands = fm__alloc_array(tape->n_op, sizeof *hands);
    uint32_t n_hand = 0;
    if (hands == NULL)
        return fm__error_memory(error, "plan", tape->n_op * sizeof *hands);
    for (uint32_t i = 0; i < tape->n_op; i++) {
        hand *h = hand_of(tape, i, hands, &n_hand);
        if (h != NULL)
            h->count++;
    }
    begin(hands, n_hand, n_unit);
    for (uint32_t i = 0; i < tape->n_op; i++) {
        hand *h = hand_of(tape, i, hands, &n_hand);
        owner[i] = h != NULL ? give(h, shares[i], n_unit) : 0;
    }
    fm__free(hands);
    return FM_OK;
}
