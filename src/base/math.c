/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/math.c: sin, cos, exp, ln and pow in double.
 *
 * Owns: nothing. Never does: calling libm, contracting a multiply and an add: tables made with
 * these functions (RoPE, ALiBi) have the same bits on every machine. Called from: every thread, in
 * the round-to-nearest mode.
 */
#include "base/base.h"

/* (x + M) - M rounds |x| < 2^51 to the nearest integer, ties to even. */
#define ROUND_MAGIC 0x1.8p52
#define LOG2E 0x1.71547652b82fep+0
/* ln 2 in two parts; the first has 42 bits, so that its product with an exponent is exact. */
#define LN2_HIGH 0x1.62e42fefa3800p-1
#define LN2_LOW 0x1.ef35793c76730p-45

static double from_bits(uint64_t bits) {
    union {
        uint64_t u;
        double d;
    } v = {bits};
    return v.d;
}

static uint64_t to_bits(double x) {
    union {
        double d;
        uint64_t u;
    } v = {x};
    return v.u;
}

/* ---- sums and products of two doubles as an unevaluated pair high + low ---- */

typedef struct pair {
    double high, low;
} pair;

/* Exact if |a| >= |b|. */
static pair sum_ordered(double a, double b) {
    double s = a + b;
    return (pair){s, b - (s - a)};
}

/* Exact (Dekker): each factor is cut into halves of 26 bits. */
static pair product(double a, double b) {
    double ca = a * 0x1.0000002p27, cb = b * 0x1.0000002p27;
    double ah = ca - (ca - a), bh = cb - (cb - b);
    double al = a - ah, bl = b - bh, p = a * b;
    double low = ah * bh - p;
    low = low + ah * bl;
    low = low + al * bh;
    low = low + al * bl;
    return (pair){p, low};
}

/* ---- sin, cos ---- */

/* x = quadrant * pi/2 + r, |r| a little above pi/4 at most. pi/2 is cut into parts of 23 bits, so
   that each product with a quadrant number below 2^30 is exact (Cody and Waite). */
static pair reduce(double x, uint64_t *quadrant) {
    double n = x * 0x1.45f306dc9c883p-1 + ROUND_MAGIC;
    *quadrant = to_bits(n);
    n = n - ROUND_MAGIC;
    double r = x - n * 0x1.921fb4p+0; /* exact: both are multiples of one small unit */
    r = r - n * 0x1.4442dp-24;        /* exact */
    double third = n * 0x1.846988p-48;
    double high = r - third;
    double low = (r - high) - third;
    low = low - n * 0x1.8cc51701b839ap-72;
    double sum = high + low;
    return (pair){sum, (high - sum) + low};
}

/* Taylor's coefficients 1/3!, 1/4!, ...; on |r| < 0.79 the first that is left out is below 2^-62.
 */
static double sine(pair r) {
    double z = r.high * r.high;
    double p = 1.0 / 355687428096000.0;
    p = p * z - 1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    double tail = r.low - r.low * (0.5 * z); /* low * cos(high) */
    return r.high + (r.high * z * p + tail);
}

static double cosine(pair r) {
    double z = r.high * r.high;
    double p = -1.0 / 6402373705728000.0;
    p = p * z + 1.0 / 20922789888000.0;
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    double half = 0.5 * z, one = 1.0 - half;
    double lost = (1.0 - one) - half; /* what 1 - half rounded away */
    return one + (lost + (z * z * p - r.high * r.low));
}

static double by_quadrant(pair r, uint64_t quadrant) {
    double y = quadrant & 1 ? cosine(r) : sine(r);
    return quadrant & 2 ? -y : y;
}

double fm__sin(double x) {
    if (x == 0)
        return x; /* keeps the zero's sign */
    uint64_t quadrant;
    pair r = reduce(x, &quadrant);
    return by_quadrant(r, quadrant);
}

double fm__cos(double x) {
    uint64_t quadrant;
    pair r = reduce(x, &quadrant);
    return by_quadrant(r, quadrant + 1);
}

/* ---- exp, ln, pow ---- */

/* x * 2^n for -1080 < n < 1030 and x in [0.7, 1.5), in two steps because 2^n may not be a double.
 */
static double scale(double x, int64_t n) {
    int64_t half = n / 2;
    x = x * from_bits((uint64_t)(1023 + half) << 52);
    return x * from_bits((uint64_t)(1023 + n - half) << 52);
}

/* exp(x.high + x.low), |low| far below |high| */
static double exp_pair(pair x) {
    if (x.high != x.high)
        return x.high;
    if (x.high > 709.8)
        return from_bits(UINT64_C(0x7ff) << 52);
    if (x.high < -745.2)
        return 0;
    double n = (x.high * LOG2E + ROUND_MAGIC) - ROUND_MAGIC;
    double high = x.high - n * LN2_HIGH; /* exact */
    double low = x.low - n * LN2_LOW;
    double r = high + low, lost = (high - r) + low;
    /* Taylor to r^14/14!: on |r| < 0.35 the next term is below 2^-63 */
    double p = 1.0 / 87178291200.0;
    p = p * r + 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    double y = r * r * p;
    y = y + (lost + lost * r);
    return scale(1.0 + (r + y), (int64_t)n);
}

/* ln x to some 68 bits: x = 2^k * m with m in [0.707, 1.415), ln m = 2 atanh(s), s = (m-1)/(m+1).
 */
static pair ln_pair(double x) {
    int64_t k = 0;
    if (x < 0x1p-1022) {
        x = x * 0x1p54;
        k = -54;
    }
    uint64_t bits = to_bits(x);
    k += (int64_t)(bits >> 52) - 1023;
    double m = from_bits((bits & UINT64_C(0xfffffffffffff)) | UINT64_C(0x3ff) << 52);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        k++;
    }
    double f = m - 1.0;           /* exact */
    pair d = sum_ordered(2.0, f); /* m + 1 */
    double s = f / d.high;
    pair sd = product(s, d.high);
    double s_low = (((f - sd.high) - sd.low) - s * d.low) / d.high;
    double z = s * s; /* |s| < 0.1716 */
    double p = 1.0 / 23.0;
    p = p * z + 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    double series = 2.0 * s * z * p;     /* below 2^-6.6 of the first term */
    double whole = (double)k * LN2_HIGH; /* exact */
    pair sum = whole != 0 ? sum_ordered(whole, 2.0 * s) : (pair){2.0 * s, 0};
    double low = sum.low + (series + (2.0 * s_low + (double)k * LN2_LOW));
    return sum_ordered(sum.high, low);
}

double fm__exp(double x) {
    return exp_pair((pair){x, 0});
}

double fm__ln(double x) {
    if (!(x > 0) || x > 0x1.fffffffffffffp1023) /* the caller's error, but a defined answer */
        return x == 0  ? -from_bits(UINT64_C(0x7ff) << 52)
               : x > 0 ? x
                       : from_bits(UINT64_C(0xfff) << 51);
    pair l = ln_pair(x);
    return l.high + l.low;
}

double fm__pow(double x, double y) {
    if (y == 0 || x == 1)
        return 1;
    pair l = ln_pair(x);
    double rough = l.high * y;
    if (!(rough > -800 && rough < 800)) /* also keeps infinities out of the exact product */
        return exp_pair((pair){rough, 0});
    pair t = product(l.high, y);
    return exp_pair(sum_ordered(t.high, t.low + l.low * y));
}
