/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/machine.h: the machine: its devices, their threads and the memory budget.
 *
 * Create one per process and let engines share it. A machine must outlive its engines. Engines may
 * run at the same time, each in a thread of its own, also where products are divided: their runs
 * enter the queues of all units in one order, so that no unit waits for another for ever.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fusionml/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_machine fm_machine;

typedef struct fm_machine_options {
    /* Threads of the (first) host team; 0: one for each physical core that the process may use, or
       one for each processor that its item lists. */
    uint32_t threads;
    /* Kernel rung of the host device: "ref", "avx2", "avxvnni", "avx512", "amx", "neon"; NULL:
       the fastest that this CPU has. One that the CPU lacks is refused with
       FM_ERROR_UNSUPPORTED. */
    const char *cpu_rung;
    /* Bytes that engines on this machine may hold (weights, caches, scratch); 0: 90 % of the memory
       that is available when the machine is created. */
    uint64_t memory_budget;
    /* The units, the main one first, separated by commas. The main unit keeps activations and
     * caches and runs what is not split. NULL or "auto": the best real GPU that Vulkan offers, then
     * the host.
     * - host: a team of threads, one on each core
     * - host:0-3, host:0+2+4: a team on those logical processors. Several teams are several units
     *   ("host:0,host:1"); no two may share a processor
     * - host:p, host:e: the performance or the efficiency cores of a processor that mixes both
     * - vulkan:N: the N-th Vulkan device, best first; software ones (lavapipe) count here. At most
     *   one. One with memory of its own keeps state and activations there where it comes first;
     *   behind a host it works on host memory, over the bus, and its own has weights alone.
     *   "vulkan:0+discrete" treats the memory as the device's own, whatever it is: it tests that
     * - null: computes nothing, for tests of plans; results that it takes part in mean nothing
     * A list without a host team gets one behind it, for what the others cannot run. A unit that
     * cannot be made is an error that says why. With "auto" it is a warning where a GPU is there,
     * and a line of the log (FM_LOG_INFO) where none can serve. */
    const char *devices;
    const char *cache_dir; /* calibrations, compiled pipelines; NULL: the user's cache folder */
} fm_machine_options;

FM_API fm_machine_options fm_machine_options_default(void);

/* options may be NULL. On success *out is the caller's; fm_machine_destroy() releases it.
   Errors: ARGUMENT, UNSUPPORTED, MEMORY, DEVICE. */
FM_API fm_status fm_machine_create(fm_machine **out, const fm_machine_options *options,
                                   fm_error *error);

/* Clears *machine. NULL and a pointer to NULL are allowed. No engine of it may be alive. */
FM_API void fm_machine_destroy(fm_machine **machine);

typedef struct fm_device_info {
    char name[32];         /* "host" */
    char kind[16];         /* "cpu", "gpu" */
    char description[128]; /* the processor's own name */
    char rung[32];         /* kernel rung, "avx512"; "" where the device has none */
    char features[128];    /* the instruction sets that matter here, space separated */
    uint32_t threads;
    uint64_t memory_bytes; /* memory the device can address */
    int unified;           /* 1: addresses host memory directly */
    int software;          /* 1: a GPU that the processor emulates */
    char driver[64];       /* name and version; "" for the host */
    /* Kernels that the self-test of a loaded engine left out, comma separated; "": none. */
    char excluded[256];
} fm_device_info;

FM_API size_t fm_machine_device_count(const fm_machine *machine);
/* index < fm_machine_device_count(). Errors: ARGUMENT. */
FM_API fm_status fm_machine_device(const fm_machine *machine, size_t index, fm_device_info *out,
                                   fm_error *error);

/* One line per weight type: which identity class the device's kernels keep (docs/numerics.md). */
typedef struct fm_type_info {
    char name[16];                 /* "q4_k" */
    double bits_per_weight;        /* in the file */
    double packed_bits_per_weight; /* in memory, packed into panels */
    int quantised;                 /* 1: integer dot products, exact by contract */
    int has_fast;                  /* 1: a `fast` class kernel exists beside the exact one */
    int can_encode;                /* 1: `convert` can write it */
    char exact_kernel[64];         /* the host's kernel, "fm__linear_q4_k_avx512vnni" */
    char fast_kernel[64];          /* "" where has_fast is 0 */
} fm_type_info;

FM_API size_t fm_machine_type_count(const fm_machine *machine);
FM_API fm_status fm_machine_type(const fm_machine *machine, size_t index, fm_type_info *out,
                                 fm_error *error);

/* Memory budget in bytes, and how much of it is in use: what engines hold now, and what units once
   made for their work and keep for the engines to come. */
FM_API uint64_t fm_machine_memory_budget(const fm_machine *machine);
FM_API uint64_t fm_machine_memory_used(const fm_machine *machine);

#ifdef __cplusplus
}
#endif
