/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/memory.c: every allocation of the library.
 *
 * Owns: the allocation count and the test hook that makes one fail. Never does: aborting on
 * failure. Called from: every thread.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"

#define ALIGNMENT 64
#define HUGE_BYTES ((size_t)2 << 20)

/* In front of each block, so that realloc knows how much to copy; one alignment unit long. */
typedef struct header {
    size_t bytes;
} header;

static _Atomic uint64_t allocations;
static _Atomic uint64_t fail_after; /* 0: off; 1: the next one fails */

uint64_t fm__alloc_count(void) {
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

void fm__alloc_fail_after(uint64_t n) {
    atomic_store(&fail_after, n);
}

/* Counts one allocation; true if the hook wants it to fail. */
static bool count_and_refuse(void) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    uint64_t left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    while (left > 0)
        if (atomic_compare_exchange_weak(&fail_after, &left, left - 1))
            return left == 1;
    return false;
}

void *fm__alloc(size_t bytes) {
    size_t whole;
    void *block = NULL;
    if (count_and_refuse() || !fm__add_size(bytes, ALIGNMENT, &whole) || whole > PTRDIFF_MAX ||
        posix_memalign(&block, ALIGNMENT, whole) != 0)
        return NULL;
    ((header *)block)->bytes = bytes;
    return (char *)block + ALIGNMENT;
}

void *fm__alloc_zero(size_t bytes) {
    void *memory = fm__alloc(bytes);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

void *fm__alloc_array(size_t count, size_t size) {
    size_t bytes;
    return fm__mul_size(count, size, &bytes) ? fm__alloc_zero(bytes) : NULL;
}

void *fm__realloc(void *memory, size_t bytes) {
    void *fresh = fm__alloc(bytes);
    if (fresh && memory) {
        const header *old = (const header *)((const char *)memory - ALIGNMENT);
        memcpy(fresh, memory, fm__min_size(old->bytes, bytes));
        fm__free(memory);
    }
    return fresh;
}

void fm__free(void *memory) {
    if (memory)
        free((char *)memory - ALIGNMENT);
}

void fm_free(void *memory) {
    fm__free(memory);
}

/* What a request really maps: whole pages, at least one. 0 on overflow. */
static size_t pages_bytes(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole;
    if (!fm__add_size(bytes ? bytes : 1, page - 1, &whole) || whole > PTRDIFF_MAX - HUGE_BYTES)
        return 0;
    return whole / page * page;
}

void *fm__pages_alloc(size_t bytes) {
    size_t whole = pages_bytes(bytes);
    if (count_and_refuse() || whole == 0)
        return NULL;
    /* A huge page needs an aligned 2 MiB range: map more, then give back both ends. */
    size_t slack = whole >= HUGE_BYTES ? HUGE_BYTES : 0;
    char *base =
        mmap(NULL, whole + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (slack) {
        size_t before = (HUGE_BYTES - (uintptr_t)base % HUGE_BYTES) % HUGE_BYTES;
        if (before)
            munmap(base, before);
        base += before;
        if (slack - before)
            munmap(base + whole, slack - before);
#ifdef MADV_HUGEPAGE
        madvise(base, whole, MADV_HUGEPAGE); /* a hint: a system without huge pages says no */
#endif
    }
    return base;
}

void fm__pages_free(void *memory, size_t bytes) {
    if (memory)
        munmap(memory, pages_bytes(bytes));
}

#ifdef __linux__

/* "AnonHugePages:    2048 kB": bytes, where the line is about huge pages of this mapping. Those of
   files are left out: weights lie in memory of our own, or in a device's. */
static uint64_t huge_of_line(const char *line) {
    static const char *const keys[] = {
        "AnonHugePages:", "ShmemPmdMapped:", "Private_Hugetlb:", "Shared_Hugetlb:"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        size_t n = strlen(keys[i]);
        if (strncmp(line, keys[i], n) == 0)
            return (uint64_t)strtoull(line + n, NULL, 10) << 10;
    }
    return 0;
}

uint64_t fm__pages_huge(const void *memory, size_t bytes) {
    uintptr_t from = (uintptr_t)memory, to = from + bytes;
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    uint64_t huge = 0, begin = 0, end = 0, share = 0;
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        char *rest, *behind;
        uint64_t first = strtoull(line, &rest, 16);
        if (rest != line && *rest == '-') { /* a mapping begins: "7f00-7f20 rw-p ..." */
            begin = first;
            end = strtoull(rest + 1, &behind, 16);
            share = begin < to && end > from ? (to < end ? to : end) - (from > begin ? from : begin)
                                             : 0;
        } else if (share > 0) {
            /* Neighbours may be one mapping: then this is what they all have, at most. */
            uint64_t found = huge_of_line(line);
            huge += found < share ? found : share;
        }
    }
    fclose(file);
    return huge;
}

#else

uint64_t fm__pages_huge(const void *memory, size_t bytes) {
    (void)memory, (void)bytes;
    return 0;
}

#endif
