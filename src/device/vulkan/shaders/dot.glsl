// SPDX-License-Identifier: Apache-2.0
// Integer dots of four signed bytes, and their sums as floats. Included by: linear.glsl, attention_q8_0.glsl, behind
// numerics.glsl. With DOT defined the device multiplies four bytes at once.
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif

// RNE also beyond 2^24, where the conversion itself promises no rounding: both halves are exact.
float exact_float(int i) { return add(mul(float(i >> 12), 4096.0), float(i & 0xFFF)); }

#ifdef DOT
// OpSDot of words that hold four bytes each (packed vector format 0).
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int form);
int dot4(uint a, uint b, int c) { return packed_dot(a, b, 0) + c; }
#else
int dot4(uint a, uint b, int c) {
    int x = int(a), y = int(b);
    c += bitfieldExtract(x, 0, 8) * bitfieldExtract(y, 0, 8);
    c += bitfieldExtract(x, 8, 8) * bitfieldExtract(y, 8, 8);
    c += bitfieldExtract(x, 16, 8) * bitfieldExtract(y, 16, 8);
    return c + (x >> 24) * (y >> 24);
}
#endif
