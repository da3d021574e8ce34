// SPDX-License-Identifier: Apache-2.0
// A tile of one row into the form that linear layers read (docs/numerics.md, "Activations"; layouts:
// src/quant/quant.h). A workgroup of LANES takes 4 * LANES columns, four to a lane; integer maxima and
// sums meet in shared memory, where their order does not matter. Needs: LANES (a multiple of 64), ACT.

const uint ACT_F32 = 0, ACT_R13 = 1, ACT_R16 = 2, ACT_BF16 = 3, ACT_Q8_32 = 4, ACT_Q8_256 = 5;

// Byte offsets of the parts of a row.
struct ActRow {
    uint values, d, sum, shift;
};

shared uint most32[LANES / 8];   // largest magnitudes of 32 columns
shared uint most256[LANES / 64]; // and of 256
shared int sums[LANES / 4];      // of q over 16

void fail(RunBlock run, uint op, uint row) { atomicMin(run.failure, (op << 13) | row); }

int quantised(float x, float inv, float power) {
    float v = round_even(mul(mul(x, inv), power));
    v = v > 127.0 ? 127.0 : v;
    v = v < -127.0 ? -127.0 : v;
    return int(v);
}

// The largest e of 0..3 for which chunk * 2^e <= whole.
uint chunk_exponent(uint chunk, uint whole) {
    float c = uintBitsToFloat(chunk), w = uintBitsToFloat(whole);
    return !(mul(c, 8.0) > w) ? 3u : !(mul(c, 4.0) > w) ? 2u : !(mul(c, 2.0) > w) ? 1u : 0u;
}

void store_floats(uvec2 to, uint column, vec4 x) {
    uvec4 bits;
    for (uint j = 0; j < 4; j++)
        bits[j] = floatBitsToUint(ACT == ACT_R13 ? round_bits(x[j], 11)
                                : ACT == ACT_R16 ? round_bits(x[j], 8)
                                                 : keep(x[j]));
    Quads(to).v[column / 4] = bits;
}

void store_bf16(uvec2 to, uint column, vec4 x) {
    uvec4 h;
    for (uint j = 0; j < 4; j++)
        h[j] = floatBitsToUint(round_bits(x[j], 16)) >> 16;
    Words(to).v[column / 2] = h.x | (h.y << 16);
    Words(to).v[column / 2 + 1] = h.z | (h.w << 16);
}

void store_q8(uvec2 to, ActRow parts, uint column, uint columns, vec4 x, uint most) {
    uint lane = gl_LocalInvocationID.x, chunk = lane / 8;
    bool wide = ACT == ACT_Q8_256, own = column < columns;
    if (lane < LANES / 8)
        most32[lane] = 0;
    if (lane < LANES / 64)
        most256[lane] = 0;
    if (lane < LANES / 16)
        for (uint j = 0; j < 4; j++)
            sums[4 * lane + j] = 0;
    barrier();
    atomicMax(most32[chunk], most);
    if (wide)
        atomicMax(most256[lane / 64], most);
    barrier();
    uint whole = wide ? most256[lane / 64] : most32[chunk];
    bool zero = whole < TINY_BITS;
    float a = uintBitsToFloat(whole);
    float inv = zero ? 0.0 : mul(127.0, rcp(a));
    uint e = !wide ? 0u : zero ? 3u : chunk_exponent(most32[chunk], whole);
    uint packed = 0;
    int sum = 0;
    for (uint j = 0; j < 4; j++) {
        int q = quantised(x[j], inv, float(1u << e));
        packed |= (uint(q) & 255u) << (8 * j);
        sum += q;
    }
    atomicAdd(sums[lane / 4], sum);
    if (own)
        Words(at(to, parts.values)).v[column / 4] = packed;
    if (own && lane % (wide ? 64 : 8) == 0) {
        float d = mul(a, uintBitsToFloat(0x3C010204u)); // 1/127
        d = wide ? mul(d, 0.125) : d;
        Floats(at(to, parts.d)).v[column / (wide ? 256 : 32)] = zero ? 0.0 : d;
    }
    if (wide && own && lane % 8 == 0)
        Bytes(at(to, parts.shift)).v[column / 32] = uint8_t(3 - e);
    barrier();
    uint first = column - 4 * lane + 64 * lane; // of the 64 columns whose sums this lane packs
    if (lane >= LANES / 16 || first >= columns)
        return;
    ivec4 s = ivec4(sums[4 * lane], sums[4 * lane + 1], sums[4 * lane + 2], sums[4 * lane + 3]);
    Words words = Words(at(to, parts.sum));
    if (wide) {
        words.v[first / 32] = (uint(s.x) & 0xFFFFu) | (uint(s.y) << 16);
        words.v[first / 32 + 1] = (uint(s.z) & 0xFFFFu) | (uint(s.w) << 16);
    } else {
        words.v[first / 64] = (uint(s.x + s.y) & 0xFFFFu) | (uint(s.z + s.w) << 16);
    }
}

// Columns [column, column + 4) of a row, column = the tile's first + 4 * lane; x past the last column is
// anything. Every lane of the workgroup calls it. True: no quantiser takes these values.
bool quantise_tile(uvec2 to, ActRow parts, uint column, uint columns, vec4 x) {
    uint most = 0;
    for (uint j = 0; j < 4; j++) {
        x[j] = column + j < columns ? x[j] : 0.0;
        most = max(most, magnitude(x[j]));
    }
    if (ACT == ACT_Q8_32 || ACT == ACT_Q8_256)
        store_q8(to, parts, column, columns, x, most);
    else if (column < columns && ACT == ACT_BF16)
        store_bf16(to, column, x);
    else if (column < columns)
        store_floats(to, column, x);
    return most >= HUGE_BITS;
}
