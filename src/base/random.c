/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/random.c: xoshiro256** (Blackman and Vigna), seeded through splitmix64.
 *
 * Owns: nothing. Never does: asking the system for entropy: the same seed gives the same numbers on
 * every machine. Called from: every thread, each with its own generator.
 */
#include "base/base.h"

static uint64_t rotate_left(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

void fm__random_seed(fm__random *random, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        seed += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t z = seed;
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        random->s[i] = z ^ z >> 31;
    }
}

uint64_t fm__random_next(fm__random *random) {
    uint64_t *s = random->s;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

double fm__random_double(fm__random *random) {
    return (double)(fm__random_next(random) >> 11) * 0x1p-53;
}

float fm__random_normal(fm__random *random) {
    /* Box and Muller, one of the two values: keeping the other would need state in the struct. */
    double u = 1.0 - fm__random_double(random); /* (0, 1] */
    double angle = 6.283185307179586 * fm__random_double(random);
    return (float)(__builtin_sqrt(-2.0 * fm__ln(u)) * fm__cos(angle));
}
