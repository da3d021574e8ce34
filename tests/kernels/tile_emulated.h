/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tile_emulated.h: src/cpu/x86/tile_amx.h for processors without AMX, so that the bodies of the AMX
 * kernels run in any test on AVX-512. Written from the instructions' definition; it checks that
 * the shapes of a product's tiles fit and that tiles are configured.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    uint8_t data[8][16][64];
    uint16_t row_bytes[8]; /* 0: not configured */
    uint8_t rows[8];
} emulated;

static inline void tile_check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "tile_emulated.h: %s\n", what);
        abort();
    }
}

static inline void tile_config(const void *config) {
    const uint8_t *bytes = config;
    tile_check(bytes[0] == 1, "palette");
    memset(&emulated, 0, sizeof emulated);
    for (int t = 0; t < 8; t++) {
        memcpy(&emulated.row_bytes[t], bytes + 16 + 2 * t, 2);
        emulated.rows[t] = bytes[48 + t];
        tile_check(emulated.row_bytes[t] <= 64 && emulated.rows[t] <= 16, "configuration");
    }
}

static inline void tile_release(void) {
    memset(&emulated, 0, sizeof emulated);
}

static inline void tile_zero(int t) {
    tile_check(emulated.rows[t] > 0, "tilezero of a tile that is not configured");
    memset(emulated.data[t], 0, sizeof emulated.data[t]);
}

static inline void tile_load(int t, const void *from, size_t stride) {
    tile_check(emulated.rows[t] > 0, "tileloadd to a tile that is not configured");
    memset(emulated.data[t], 0, sizeof emulated.data[t]);
    for (size_t i = 0; i < emulated.rows[t]; i++)
        memcpy(emulated.data[t][i], (const uint8_t *)from + i * stride, emulated.row_bytes[t]);
}

static inline void tile_store(int t, void *to, size_t stride) {
    tile_check(emulated.rows[t] > 0, "tilestored of a tile that is not configured");
    for (size_t i = 0; i < emulated.rows[t]; i++)
        memcpy((uint8_t *)to + i * stride, emulated.data[t][i], emulated.row_bytes[t]);
}

static inline void tile_shapes(int c, int a, int b) {
    tile_check(emulated.rows[c] == emulated.rows[a] &&
                   emulated.row_bytes[a] == 4 * emulated.rows[b] &&
                   emulated.row_bytes[c] == emulated.row_bytes[b] && c != a && c != b && a != b,
               "tiles of a product do not fit");
}

static inline __m512i tile_four(int a, int m, int k) {
    int32_t four;
    memcpy(&four, emulated.data[a][m] + 4 * k, 4);
    return _mm512_set1_epi32(four);
}

/* int8 times int8, or times uint8: each byte widened to int16, two products a lane at a time. */
static inline void tile_dot(int c, int a, int b, int b_signed) {
    tile_shapes(c, a, b);
    for (int m = 0; m < emulated.rows[c]; m++) {
        __m512i sum = _mm512_loadu_si512(emulated.data[c][m]);
        for (int k = 0; k < emulated.rows[b]; k++) {
            const __m512i x = tile_four(a, m, k), y = _mm512_loadu_si512(emulated.data[b][k]);
            const __m512i x_even = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
            const __m512i x_odd = _mm512_srai_epi16(x, 8);
            const __m512i y_even = b_signed ? _mm512_srai_epi16(_mm512_slli_epi16(y, 8), 8)
                                            : _mm512_and_si512(y, _mm512_set1_epi16(255));
            const __m512i y_odd = b_signed ? _mm512_srai_epi16(y, 8) : _mm512_srli_epi16(y, 8);
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x_even, y_even));
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x_odd, y_odd));
        }
        _mm512_storeu_si512(emulated.data[c][m], sum);
    }
}

/* Even and odd k are summed apart from each other, then added to c. */
static inline void tile_dot_bf16(int c, int a, int b) {
    tile_shapes(c, a, b);
    const __m512i high = _mm512_set1_epi32((int)0xFFFF0000);
    for (int m = 0; m < emulated.rows[c]; m++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < emulated.rows[b]; k++) {
            const __m512i x = tile_four(a, m, k), y = _mm512_loadu_si512(emulated.data[b][k]);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                                   _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                                  _mm512_castsi512_ps(_mm512_and_si512(y, high)), odd);
        }
        float *to = (float *)(void *)emulated.data[c][m];
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_add_ps(even, odd)));
    }
}

#define FM__TILE_CONFIG(config) tile_config(config)
#define FM__TILE_RELEASE() tile_release()
#define FM__TILE_ZERO(t) tile_zero(t)
#define FM__TILE_LOAD(t, p, stride) tile_load(t, p, stride)
#define FM__TILE_STORE(t, p, stride) tile_store(t, p, stride)
#define FM__TILE_DOT_SS(c, a, b) tile_dot(c, a, b, 1)
#define FM__TILE_DOT_SU(c, a, b) tile_dot(c, a, b, 0)
#define FM__TILE_DOT_BF16(c, a, b) tile_dot_bf16(c, a, b)
