/* SPDX-License-Identifier: Apache-2.0 */
/* quant_blocks.h: random valid blocks, and memory that ends at a guard page. */
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include "quant/quant.h"
#include "test.h"

/* Offsets of the f16 fields of a block (-1: none). */
static inline void quant_half_fields(const fm__type *type, int field[2]) {
    field[0] = 0;
    field[1] = -1;
    switch (type->dtype) {
    case FM__Q4_1:
    case FM__Q5_1:
    case FM__Q4_K:
    case FM__Q5_K:
        field[1] = 2;
        break;
    case FM__Q2_K:
        field[0] = 80;
        field[1] = 82;
        break;
    case FM__Q3_K:
        field[0] = 108;
        break;
    case FM__Q6_K:
        field[0] = 208;
        break;
    case FM__TQ1_0:
        field[0] = 52;
        break;
    case FM__TQ2_0:
        field[0] = 64;
        break;
    case FM__MXFP4:
        field[0] = -1;
        break;
    default:
        break;
    }
}

/* Fills `bytes` of blocks with random bits; scales are finite and of any size, zero and subnormals
 * among them. Float types: finite values. */
static inline void quant_random_blocks(fm__random *random, const fm__type *type, uint8_t *blocks,
                                       size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        blocks[i] = (uint8_t)fm__random_next(random);
    int field[2];
    quant_half_fields(type, field);
    for (size_t at = 0; at < bytes; at += type->block_bytes) {
        uint8_t *b = blocks + at;
        if (!type->quantised) { /* no exponent of all ones: clear one of its bits */
            uint8_t *top = b + type->block_bytes - 1;
            if (type->dtype == FM__F16)
                *top &= 0xBF;
            else if ((*top & 0x7F) == 0x7F)
                *top &= 0xFE;
            continue;
        }
        for (int f = 0; f < 2; f++)
            if (field[f] >= 0)
                b[field[f] + 1] &= (fm__random_next(random) & 7) == 0 ? 0x80 : 0xBF;
    }
}

typedef struct guarded {
    uint8_t *data; /* `bytes` long, right before a page that cannot be touched */
    void *map;
    size_t map_bytes;
} guarded;

static inline guarded guarded_alloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = fm__round_up(bytes, page);
    guarded g = {.map_bytes = body + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect((uint8_t *)g.map + body, page, PROT_NONE), 0);
    g.data = (uint8_t *)g.map + body - bytes;
    return g;
}

static inline void guarded_free(guarded *g) {
    munmap(g->map, g->map_bytes);
}
