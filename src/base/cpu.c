/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/cpu.c: what the processor can do, and its name.
 *
 * Owns: the feature word, found once. Never does: choosing kernels (cpu/table.c does). Called from:
 * every thread.
 */
#include <pthread.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "base/base.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t features;

#if defined(FM__ARCH_X86_64)

/* The register state that the operating system saves: a unit whose state it does not save must not
   be used, whatever cpuid says. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux gives the 8 KiB of tile data only to a process that asks. */
static bool tiles_granted(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { request_permission = 0x1023, tile_data = 18 };
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

static uint32_t detect(void) {
    enum { ymm = 0x6, zmm = 0xe6, tiles = 0x60000 };
    const uint32_t amd_ebx = 0x68747541, amd_edx = 0x69746e65; /* "Auth" "enti" "cAMD" */
    uint32_t a, b, c, d, found = 0;
    if (__get_cpuid(0, &a, &b, &c, &d) && b == amd_ebx && d == amd_edx)
        found |= FM__CPU_AMD;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return found;
    bool fma = c >> 12 & 1, xsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    uint64_t state = xsave ? saved_state() : 0;
    if (!avx || (state & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return found;
    uint32_t leaves = a, b7 = b, c7 = c, d7 = d, a71 = 0;
    if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        a71 = a;
    if (!((b7 >> 5 & 1) && fma && f16c))
        return found;
    found |= FM__CPU_AVX2;
    if (a71 >> 4 & 1)
        found |= FM__CPU_AVX_VNNI;
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
    if ((state & zmm) == zmm && (b7 & avx512) == avx512) { /* F, DQ, CD, BW, VL */
        found |= FM__CPU_AVX512;
        if (c7 >> 11 & 1)
            found |= FM__CPU_AVX512_VNNI;
        if (a71 >> 5 & 1)
            found |= FM__CPU_AVX512_BF16;
    }
    /* with GFNI, which the tile kernels use too: every processor that has tiles has it */
    if ((state & tiles) == tiles && (d7 >> 24 & 1) && (c7 >> 8 & 1) && tiles_granted()) {
        if (d7 >> 25 & 1)
            found |= FM__CPU_AMX_INT8;
        if (d7 >> 22 & 1)
            found |= FM__CPU_AMX_BF16;
    }
    return found;
}

static bool read_name(char out[49]) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(0x80000000u, &a, &b, &c, &d) || a < 0x80000004u)
        return false;
    for (uint32_t leaf = 0; leaf < 3; leaf++) {
        __get_cpuid(0x80000002u + leaf, &a, &b, &c, &d);
        uint32_t words[4] = {a, b, c, d};
        memcpy(out + 16 * leaf, words, 16);
    }
    out[48] = 0;
    return true;
}

#else

#if defined(FM__ARCH_AARCH64) && defined(__APPLE__)
static bool has(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}
#endif

static uint32_t detect(void) {
    uint32_t found = 0;
#if defined(FM__ARCH_AARCH64) && defined(__linux__)
    unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
    found |= one >> 1 & 1 ? FM__CPU_NEON : 0; /* HWCAP_ASIMD */
    found |= one >> 20 & 1 ? FM__CPU_DOTPROD : 0;
    found |= two >> 13 & 1 ? FM__CPU_I8MM : 0;
    found |= two >> 14 & 1 ? FM__CPU_BF16 : 0;
#elif defined(FM__ARCH_AARCH64)
    found |= FM__CPU_NEON; /* part of every aarch64 processor that this runs on */
#ifdef __APPLE__
    found |= has("hw.optional.arm.FEAT_DotProd") ? FM__CPU_DOTPROD : 0;
    found |= has("hw.optional.arm.FEAT_I8MM") ? FM__CPU_I8MM : 0;
    found |= has("hw.optional.arm.FEAT_BF16") ? FM__CPU_BF16 : 0;
#endif
#endif
    return found;
}

static bool read_name(char out[49]) {
    bool found = false;
#ifdef __APPLE__
    size_t size = 49;
    found = sysctlbyname("machdep.cpu.brand_string", out, &size, NULL, 0) == 0;
    out[48] = 0;
#elif defined(__linux__)
    FILE *file = fopen("/sys/firmware/devicetree/base/model", "re"); /* a board's name */
    if (file) {
        size_t n = fread(out, 1, 48, file);
        out[n] = 0;
        found = n > 0;
        fclose(file);
    }
#endif
    return found;
}

#endif

static void detect_once(void) {
    features = detect();
}

uint32_t fm__cpu_features(void) {
    pthread_once(&once, detect_once);
    return features;
}

void fm__cpu_name(char *out, size_t capacity) {
    char name[49] = "";
    if (!read_name(name) || !name[0])
#if defined(FM__ARCH_X86_64)
        strcpy(name, "x86-64 processor");
#elif defined(FM__ARCH_AARCH64)
        strcpy(name, "aarch64 processor");
#else
        strcpy(name, "processor");
#endif
    /* Vendors pad with blanks, in front or behind. */
    const char *begin = name + strspn(name, " ");
    size_t bytes = strlen(begin);
    while (bytes > 0 && begin[bytes - 1] == ' ')
        bytes--;
    if (capacity > 0)
        snprintf(out, capacity, "%.*s", (int)bytes, begin);
}

void fm__cpu_feature_text(uint32_t bits, char *out, size_t capacity) {
    static const struct {
        uint32_t bit;
        const char *text;
    } names[] = {
        {FM__CPU_AVX2, "avx2"},         {FM__CPU_AVX512, "avx512"},
        {FM__CPU_AVX512_VNNI, "vnni"},  {FM__CPU_AVX512_BF16, "bf16"},
        {FM__CPU_AVX_VNNI, "avx-vnni"}, {FM__CPU_AMX_INT8, "amx-int8"},
        {FM__CPU_AMX_BF16, "amx-bf16"}, {FM__CPU_NEON, "neon"},
        {FM__CPU_DOTPROD, "dotprod"},   {FM__CPU_I8MM, "i8mm"},
        {FM__CPU_BF16, "bf16"},
    };
    if (capacity == 0)
        return;
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!(bits & names[i].bit))
            continue;
        size_t need = strlen(names[i].text) + (used > 0);
        if (used + need + 1 > capacity)
            return; /* whole names only */
        snprintf(out + used, capacity - used, "%s%s", used > 0 ? " " : "", names[i].text);
        used += need;
    }
}
