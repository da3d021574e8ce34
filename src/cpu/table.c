/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu/table.c: the ladder of kernel tables. Owns: the order of the rungs and what each needs. Never
 * does: arithmetic. Called from: whoever creates a host device, tests, benches; any thread.
 */
#include "cpu/cpu.h"

#include <string.h>

static void fill_nothing(fm__kernels *table, uint32_t features) {
    (void)table;
    (void)features;
}

static void fill_ref(fm__kernels *table, uint32_t features) {
    (void)features;
    fm__kernels_fill_ref(table);
}

/* Steps above ref that another architecture has. */
#if FM__RUNGS_X86
#define FILL_AVX2 fm__kernels_fill_avx2
#define FILL_AVXVNNI fm__kernels_fill_avxvnni
#define FILL_AVX512 fm__kernels_fill_avx512
#define FILL_AMX fm__kernels_fill_amx
#else
#define FILL_AVX2 fill_nothing
#define FILL_AVXVNNI fill_nothing
#define FILL_AVX512 fill_nothing
#define FILL_AMX fill_nothing
#endif
#if FM__RUNGS_ARM
#define FILL_NEON fm__kernels_fill_neon
#else
#define FILL_NEON fill_nothing
#endif

/* The ladder: a table is filled from the top of this list down to the rung that was asked for; each
   step overwrites the kernels that it has. */
static const struct step {
    const char *name;
    bool built;
    uint32_t needs; /* FM__CPU_* */
    const char *needs_text;
    void (*fill)(fm__kernels *table, uint32_t features);
} ladder[] = {
    {"ref", true, 0, "", fill_ref},
    {"avx2", FM__RUNGS_X86, FM__CPU_AVX2, "AVX2, FMA and F16C", FILL_AVX2},
    {"avxvnni", FM__RUNGS_X86, FM__CPU_AVX2 | FM__CPU_AVX_VNNI, "AVX2, FMA, F16C and AVX-VNNI",
     FILL_AVXVNNI},
    {"avx512", FM__RUNGS_X86, FM__CPU_AVX2 | FM__CPU_AVX512, "AVX-512 F, BW, DQ, VL and CD",
     FILL_AVX512},
    {"amx", FM__RUNGS_X86,
     FM__CPU_AVX2 | FM__CPU_AVX512 | FM__CPU_AVX512_VNNI | FM__CPU_AVX512_BF16 | FM__CPU_AMX_INT8 |
         FM__CPU_AMX_BF16,
     "AMX tiles (int8 and bf16) that the system grants, and AVX-512 VNNI and BF16", FILL_AMX},
    {"neon", FM__RUNGS_ARM, FM__CPU_NEON, "NEON", FILL_NEON},
};
enum { STEPS = sizeof ladder / sizeof ladder[0] };

static bool step_runs(const struct step *step, uint32_t features) {
    return step->built && (features & step->needs) == step->needs;
}

static size_t step_find(const char *rung) {
    size_t i = 0;
    while (i < STEPS && strcmp(rung, ladder[i].name) != 0)
        i++;
    return i;
}

static size_t step_best(uint32_t features) {
    size_t best = 0;
    for (size_t i = 1; i < STEPS; i++)
        if (step_runs(&ladder[i], features))
            best = i;
    return best;
}

fm_status fm__kernels_get(fm__kernels *out, const char *rung, fm_error *error) {
    return fm__kernels_get_for(out, rung, fm__cpu_features(), error);
}

fm_status fm__kernels_get_for(fm__kernels *out, const char *rung, uint32_t features,
                              fm_error *error) {
    size_t last = !rung || strcmp(rung, "auto") == 0 ? step_best(features) : step_find(rung);
    if (last == STEPS)
        return fm__error(error, FM_ERROR_ARGUMENT, "cpu rung",
                         "\"%s\" is none of auto, ref, avx2, avxvnni, avx512, amx and neon", rung);
    if (!ladder[last].built)
        return fm__error(error, FM_ERROR_UNSUPPORTED, "cpu rung", "%s is not part of this build",
                         ladder[last].name);
    if (!step_runs(&ladder[last], features))
        return fm__error(error, FM_ERROR_UNSUPPORTED, "cpu rung",
                         "%s needs %s, which this processor lacks", ladder[last].name,
                         ladder[last].needs_text);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i <= last; i++)
        if (step_runs(&ladder[i], features))
            ladder[i].fill(out, features);
    out->rung = ladder[last].name;
    out->asks = !(features & FM__CPU_AMD);
    return FM_OK;
}

const char *const *fm__kernels_rungs(void) {
    /* One list for each set of rungs that a processor can run: nothing to initialise, nothing to
       lock. */
    static const char *const only_ref[] = {"ref", NULL};
    static const char *const to_avx2[] = {"ref", "avx2", NULL};
    static const char *const to_avxvnni[] = {"ref", "avx2", "avxvnni", NULL};
    static const char *const to_avx512[2][5] = {{"ref", "avx2", "avx512", NULL},
                                                {"ref", "avx2", "avxvnni", "avx512", NULL}};
    static const char *const to_amx[2][6] = {{"ref", "avx2", "avx512", "amx", NULL},
                                             {"ref", "avx2", "avxvnni", "avx512", "amx", NULL}};
    static const char *const to_neon[] = {"ref", "neon", NULL};
    const char *best = ladder[step_best(fm__cpu_features())].name;
    const bool avxvnni = (fm__cpu_features() & FM__CPU_AVX_VNNI) != 0;
    if (strcmp(best, "amx") == 0)
        return to_amx[avxvnni];
    if (strcmp(best, "avx512") == 0)
        return to_avx512[avxvnni];
    if (strcmp(best, "avxvnni") == 0)
        return to_avxvnni;
    if (strcmp(best, "avx2") == 0)
        return to_avx2;
    if (strcmp(best, "neon") == 0)
        return to_neon;
    return only_ref;
}
