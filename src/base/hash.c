/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/hash.c: a 64-bit hash and a map from byte strings to numbers.
 *
 * Owns: each map's slots; keys are borrowed. Never does: deleting one key. Called from: every
 * thread; a map that is being filled from one.
 */
#include <string.h>
#include <unistd.h>

#include "base/base.h"

#define HASH_PRIME UINT64_C(0x100000001b3)

/* One step. The multiply carries only upwards; the shift brings the high half back down, so that
   two flipped sign bits in different words cannot cancel and a mask of low bits is a good index. */
static uint64_t hash_word(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * HASH_PRIME;
    return hash ^ hash >> 32;
}

/* Little-endian, wherever it runs. */
static uint64_t load_word(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

uint64_t fm__hash(uint64_t seed, const void *data, size_t bytes) {
    const uint8_t *p = data;
    uint64_t hash = seed;
    for (; bytes >= 8; bytes -= 8, p += 8)
        hash = hash_word(hash, load_word(p));
    if (bytes > 0) {
        uint64_t word = (uint64_t)bytes << 56; /* "a" differs from "a\0" */
        for (size_t i = 0; i < bytes; i++)
            word |= (uint64_t)p[i] << (8 * i);
        hash = hash_word(hash, word);
    }
    return hash;
}

/* Eight words side by side, each in a chain of its own, so that it keeps up with memory: a chain of
   multiplications yields a word every 6 cycles. The step is a multiplication by 2^21 + 1 all the
   same; each can be undone, so that words that differ in one place always give other lanes. */
enum { BULK_LANES = 8, BULK_BYTES = 8 * BULK_LANES };

uint64_t fm__hash_bulk(uint64_t seed, const void *data, size_t bytes) {
    const uint8_t *p = data;
    uint64_t lane[BULK_LANES];
    for (size_t i = 0; i < BULK_LANES; i++)
        lane[i] = hash_word(seed, i);
    for (; bytes >= BULK_BYTES; bytes -= BULK_BYTES, p += BULK_BYTES)
        for (size_t i = 0; i < BULK_LANES; i++) {
            lane[i] ^= load_word(p + 8 * i);
            lane[i] += lane[i] << 21;
            lane[i] ^= lane[i] >> 31;
        }
    uint64_t hash = seed;
    for (size_t i = 0; i < BULK_LANES; i++)
        hash = hash_word(hash, lane[i]);
    return fm__hash(hash, p, bytes);
}

/* ---- the map: open addressing, linear probing, at most two thirds full ---- */

struct fm__map_slot {
    fm__str key;
    uint32_t tag; /* high bits of the hash, lowest bit set; 0: empty */
    uint32_t value;
};

/* Both halves of the 128-bit product. */
static uint64_t fold_multiply(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Names come from files: without a secret, a crafted file could make all of its names meet in one
   slot. The salt enters every step as a factor, so which names collide differs from map to map. */
static uint64_t key_hash(const fm__map *map, fm__str key) {
    const uint8_t *p = (const uint8_t *)key.data;
    uint64_t hash = map->salt[0] ^ key.bytes;
    size_t bytes = key.bytes;
    for (; bytes >= 8; bytes -= 8, p += 8)
        hash = fold_multiply(hash ^ load_word(p), map->salt[1]);
    uint64_t word = 0;
    for (size_t i = 0; i < bytes; i++)
        word |= (uint64_t)p[i] << (8 * i);
    hash = fold_multiply(hash ^ word, map->salt[1]);
    return fold_multiply(hash, UINT64_C(0x9e3779b97f4a7c15));
}

static void make_salt(fm__map *map) {
    if (getentropy(map->salt, sizeof map->salt) != 0) { /* no entropy source: clock and address */
        map->salt[0] = fm__now_ns() ^ (uint64_t)(uintptr_t)map;
        map->salt[1] = fm__hash(map->salt[0], &map, sizeof map);
    }
    map->salt[1] |= 1; /* never a zero factor */
}

/* The key's slot, or the empty one where it belongs. */
static struct fm__map_slot *find_slot(struct fm__map_slot *slots, size_t n_slots, fm__str key,
                                      uint64_t hash) {
    uint32_t tag = (uint32_t)(hash >> 32) | 1;
    for (size_t i = (size_t)hash & (n_slots - 1);; i = (i + 1) & (n_slots - 1)) {
        struct fm__map_slot *slot = &slots[i];
        if (slot->tag == 0 || (slot->tag == tag && fm__str_equal(slot->key, key)))
            return slot;
    }
}

static bool map_resize(fm__map *map, size_t n_slots) {
    struct fm__map_slot *slots = fm__alloc_array(n_slots, sizeof *slots);
    if (!slots)
        return false;
    if (map->salt[1] == 0)
        make_salt(map);
    for (size_t i = 0; i < map->n_slots; i++)
        if (map->slots[i].tag)
            *find_slot(slots, n_slots, map->slots[i].key, key_hash(map, map->slots[i].key)) =
                map->slots[i];
    fm__free(map->slots);
    map->slots = slots;
    map->n_slots = n_slots;
    return true;
}

bool fm__map_init(fm__map *map, size_t expected) {
    *map = (fm__map){0};
    size_t n_slots = 16;
    while (n_slots / 3 * 2 <= expected)
        if (!fm__mul_size(n_slots, 2, &n_slots))
            return false;
    return map_resize(map, n_slots);
}

void fm__map_finish(fm__map *map) {
    fm__free(map->slots);
    *map = (fm__map){0};
}

bool fm__map_put(fm__map *map, fm__str key, uint32_t value, bool *existing) {
    if (map->count >= map->n_slots / 3 * 2) {
        size_t n_slots;
        if (!fm__mul_size(fm__max_size(map->n_slots, 8), 2, &n_slots) || !map_resize(map, n_slots))
            return false;
    }
    uint64_t hash = key_hash(map, key);
    struct fm__map_slot *slot = find_slot(map->slots, map->n_slots, key, hash);
    bool was_there = slot->tag != 0;
    if (!was_there) {
        *slot = (struct fm__map_slot){key, (uint32_t)(hash >> 32) | 1, value};
        map->count++;
    }
    if (existing)
        *existing = was_there;
    return true;
}

bool fm__map_get(const fm__map *map, fm__str key, uint32_t *value) {
    if (map->n_slots == 0)
        return false;
    const struct fm__map_slot *slot = find_slot(map->slots, map->n_slots, key, key_hash(map, key));
    if (slot->tag == 0)
        return false;
    if (value)
        *value = slot->value;
    return true;
}
