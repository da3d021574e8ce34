// SPDX-License-Identifier: Apache-2.0
// Words of float weights and of float activations.

const uint FLOAT_F32 = 0, FLOAT_F16 = 1, FLOAT_BF16 = 2; // FORM: of the weights
const bool ACT_BF16 = OFFSET == 1;                       // else the activations are f32
const uint PER_WORD = FORM == FLOAT_F32 ? 1 : 2;         // columns
const uint PER_ACT = ACT_BF16 ? 2 : 1;

float weight_of(uint word, uint k) {
    if (FORM == FLOAT_F32)
        return uintBitsToFloat(word);
    uint bits = (k & 1) == 0 ? word & 0xFFFFu : word >> 16;
    return FORM == FLOAT_F16 ? f16_f32(bits) : bf16_f32(bits);
}

float activation_of(uint word, uint k) {
    return uintBitsToFloat(!ACT_BF16 ? word : (k & 1) == 0 ? word << 16 : word & 0xFFFF0000u);
}
