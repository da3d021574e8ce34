/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/arena.c: a bump allocator whose blocks are freed together.
 *
 * Owns: the blocks of each arena. Never does: freeing one allocation. Called from: one thread at a
 * time per arena.
 */
#include <string.h>

#include "base/base.h"

#define ARENA_ALIGNMENT 16

struct fm__arena_block {
    struct fm__arena_block *next;
    size_t used, capacity; /* of data, in bytes */
    FM__ALIGN(ARENA_ALIGNMENT) char data[];
};

void fm__arena_init(fm__arena *arena, size_t block_bytes) {
    arena->head = NULL;
    arena->block_bytes = block_bytes;
}

void fm__arena_finish(fm__arena *arena) {
    struct fm__arena_block *block = arena->head;
    while (block) {
        struct fm__arena_block *next = block->next;
        fm__free(block);
        block = next;
    }
    arena->head = NULL;
}

static struct fm__arena_block *block_create(size_t capacity) {
    size_t whole;
    if (!fm__add_size(capacity, sizeof(struct fm__arena_block), &whole))
        return NULL;
    struct fm__arena_block *block = fm__alloc(whole);
    if (block)
        *block = (struct fm__arena_block){.capacity = capacity};
    return block;
}

void *fm__arena_alloc(fm__arena *arena, size_t bytes) {
    size_t need;
    if (!fm__add_size(bytes, ARENA_ALIGNMENT - 1, &need))
        return NULL;
    need = fm__max_size(need / ARENA_ALIGNMENT * ARENA_ALIGNMENT, ARENA_ALIGNMENT);
    struct fm__arena_block *head = arena->head;
    if (!head || head->capacity - head->used < need) {
        bool large = need > arena->block_bytes / 4; /* has a block of its own */
        struct fm__arena_block *block = block_create(large ? need : arena->block_bytes);
        if (!block)
            return NULL;
        if (large && head) { /* goes second: the head's remaining room stays in use */
            block->next = head->next;
            head->next = block;
        } else {
            block->next = head;
            arena->head = block;
        }
        head = block;
    }
    void *memory = head->data + head->used;
    head->used += need;
    return memory;
}

char *fm__arena_copy(fm__arena *arena, const char *data, size_t bytes) {
    size_t whole;
    if (!fm__add_size(bytes, 1, &whole))
        return NULL;
    char *copy = fm__arena_alloc(arena, whole);
    if (copy) {
        if (bytes)
            memcpy(copy, data, bytes);
        copy[bytes] = 0;
    }
    return copy;
}
