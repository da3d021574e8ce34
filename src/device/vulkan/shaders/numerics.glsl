// SPDX-License-Identifier: Apache-2.0
// The scalar functions of the identity contract, operation by operation as src/cpu/numerics.h has them
// (docs/numerics.md). Constants are written as bits, so that no front end rounds them another way.
//
// add, sub and mul are the only places where floats meet: each holds one operation whose result is
// `precise`, so that SPIR-V decorates it NoContraction wherever the call stands. Comparisons are ordered
// (false for a NaN), as in C. No float goes through min, max, abs, sign, round, exp, sqrt, fma or a division.

float add(float a, float b) {
    precise float c = a + b;
    return c;
}

float sub(float a, float b) {
    precise float c = a - b;
    return c;
}

float mul(float a, float b) {
    precise float c = a * b;
    return c;
}

vec4 add(vec4 a, vec4 b) {
    precise vec4 c = a + b;
    return c;
}

vec4 mul(vec4 a, vec4 b) {
    precise vec4 c = a * b;
    return c;
}

uint magnitude(float x) { return floatBitsToUint(x) & 0x7FFFFFFFu; }

const uint TINY_BITS = 0x1F800000u;     // 2^-64: activations and accumulated outputs below it become 0
const uint HUGE_BITS = 0x71800000u;     // 2^100: a magnitude of at least that is an error
const uint INFINITE_BITS = 0x7F800000u; // infinities, and NaN above
const float ROUND_MAGIC = 12582912.0;   // 1.5 * 2^23: (x + M) - M rounds |x| < 2^22 to nearest even

// The nearest integer of |x| < 2^22, ties to even.
float round_even(float x) { return sub(add(x, ROUND_MAGIC), ROUND_MAGIC); }

// 1/x for 2^-126 <= x <= 2^125.6; an infinity or NaN gives NaN.
float rcp(float x) {
    float y = uintBitsToFloat(0x7EF311C7u - floatBitsToUint(x));
    for (int i = 0; i < 3; i++)
        y = mul(y, sub(2.0, mul(x, y)));
    return y;
}

// 1/sqrt(x) for x >= 2^-125; an infinity or NaN gives what is not finite.
float rsqrt(float x) {
    float y = uintBitsToFloat(0x5F375A86u - (floatBitsToUint(x) >> 1));
    float h = mul(0.5, x);
    for (int i = 0; i < 3; i++)
        y = mul(y, sub(1.5, mul(mul(h, y), y)));
    return y;
}

// |x| <= 87 or NaN. exp_f32(+-0) is 1.
float exp_f32(float x) {
    float n = add(mul(x, uintBitsToFloat(0x3FB8AA3Bu)), ROUND_MAGIC);
    float power = uintBitsToFloat((floatBitsToUint(n) << 23) + 0x3F800000u); // 2^n
    n = sub(n, ROUND_MAGIC);
    float r = sub(x, mul(n, uintBitsToFloat(0x3F318000u)));
    r = sub(r, mul(n, uintBitsToFloat(0xB95E8083u)));
    float p = uintBitsToFloat(0x39506967u);
    p = add(mul(p, r), uintBitsToFloat(0x3AB743CEu));
    p = add(mul(p, r), uintBitsToFloat(0x3C088908u));
    p = add(mul(p, r), uintBitsToFloat(0x3D2AA9C1u));
    p = add(mul(p, r), uintBitsToFloat(0x3E2AAAAAu));
    p = add(mul(p, r), uintBitsToFloat(0x3F000000u));
    p = mul(p, mul(r, r));
    p = add(p, r);
    p = add(p, 1.0);
    return mul(p, power);
}

// x <= 0 or NaN: +0 below -24.
float exp_softmax(float x) {
    float e = exp_f32(x < -24.0 ? 0.0 : x); // what is thrown away is finite, too
    return x < -24.0 ? 0.0 : e;
}

float sigmoid(float x) {
    float c = x < -87.0 ? -87.0 : x;
    c = c > 87.0 ? 87.0 : c;
    return rcp(add(1.0, exp_f32(-c)));
}

float silu(float x) { return mul(x, sigmoid(x)); }

float gelu(float x) {
    float t = mul(mul(mul(x, x), x), uintBitsToFloat(0x3D372713u));
    t = mul(add(x, t), uintBitsToFloat(0x3FCC422Au));
    return mul(x, sigmoid(t));
}

// Rounds the lowest `drop` mantissa bits away, to nearest even; +0 below 2^-64; infinities and NaN stay.
float round_bits(float x, uint drop) {
    uint u = floatBitsToUint(x), m = u & 0x7FFFFFFFu;
    uint rounded = (u + (1u << (drop - 1)) - 1u + ((u >> drop) & 1u)) & ~((1u << drop) - 1u);
    return uintBitsToFloat(m < TINY_BITS ? 0u : m >= INFINITE_BITS ? u : rounded);
}

// The float, or +0 where it is below 2^-64.
float keep(float x) { return magnitude(x) < TINY_BITS ? 0.0 : x; }

// f16 bits of a cache entry: +0 below 2^-14, at most 65504, NaN 0x7E00, else rounded to nearest even.
uint kv_f16(float x) {
    uint bits = floatBitsToUint(x), s = (bits >> 16) & 0x8000u, u = bits & 0x7FFFFFFFu;
    uint rounded = (u + 0xFFFu + ((u >> 13) & 1u) - 0x38000000u) >> 13;
    uint half_bits = s | (rounded > 0x7BFFu ? 0x7BFFu : rounded);
    half_bits = u >= 0x477FE000u ? s | 0x7BFFu : half_bits;
    half_bits = u > INFINITE_BITS ? 0x7E00u : half_bits;
    return u < 0x38800000u ? 0u : half_bits;
}

// Two cache entries to floats. They are zeros, normal or NaN (kv_f16), which the instruction widens
// exactly on a device that flushes subnormals, too.
vec2 kv_f32(uint pair) { return unpackHalf2x16(pair); }

// Any f16, subnormals included: those are an integer times 2^-24, which is normal in fp32.
float f16_f32(uint h) {
    uint s = (h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3FFu;
    uint normal = ((e + 112u) << 23) | (m << 13);
    uint small = floatBitsToUint(mul(float(m), uintBitsToFloat(0x33800000u)));
    uint large = INFINITE_BITS | (m << 13);
    return uintBitsToFloat(s | (e == 0u ? small : e == 31u ? large : normal));
}

float bf16_f32(uint h) { return uintBitsToFloat(h << 16); }
