/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/vulkan.h: the vulkan device: any GPU with a Vulkan 1.2 driver.
 *
 * Owns: the loader's functions, one logical device and its queues, its memory, pipelines and
 * recordings. Never does: link against the loader (it is opened at run time), wait while it
 * submits, or compute what docs/numerics.md does not say. Called from: device.c only; the files of
 * this folder share the types below.
 *
 * Shaders (shaders/, .comp) are compiled to SPIR-V when the project is built and stand in the
 * library as arrays. They read memory through device addresses: a recording's command buffer holds
 * the address of its tape's *run block*, in which every submission puts what the run binds and its
 * rows. So a command buffer is recorded once for the tape's bound on rows, and workgroups beyond
 * the run's rows end at once.
 */
#pragma once

#define VK_NO_PROTOTYPES
#include <pthread.h>
#include <vulkan/vulkan.h>

#include "device/device.h"

typedef struct fm__vulkan fm__vulkan;
typedef struct fm__vulkan_recorder fm__vulkan_recorder;

/* ---- shaders: one row a file of shaders/, in the order of the file names ---- */

/* X(name): shaders/name.comp. Each is one entry point "main" whose workgroup size and variants are
   specialization constants. */
#define FM__VULKAN_SHADER_LIST(X)                                                                  \
    X(attention)       /* prefill and decode: one key block or all of them */                      \
    X(attention_merge) /* key blocks that were attended apart, in ascending order */               \
    X(attention_q8_0)                                                                              \
    X(attention_q8_0_dot) /* with the integer dot product of the device */                         \
    X(copy)               /* rows of a tensor between its two instances */                         \
    X(embed)                                                                                       \
    X(glu)                                                                                         \
    X(kv_store)                                                                                    \
    X(kv_store_q8_0)                                                                               \
    X(linear_float)       /* F32, F16, BF16 weights: many tokens */                                \
    X(linear_float_vec)   /* few tokens */                                                         \
    X(linear_q256)        /* many tokens: a tile of rows x tokens a workgroup */                   \
    X(linear_q256_dot)    /* with the integer dot product of the device */                         \
    X(linear_q256_matrix) /* with its int8 matrices; not in every build (cmake/vulkan.cmake) */    \
    X(linear_q256_one)    /* one token */                                                          \
    X(linear_q256_one_dot)                                                                         \
    X(linear_q256_vec) /* few tokens: panels are read once, at memory speed */                     \
    X(linear_q256_vec_dot)                                                                         \
    X(linear_q32)                                                                                  \
    X(linear_q32_dot)                                                                              \
    X(linear_q32_matrix)                                                                           \
    X(linear_q32_one)                                                                              \
    X(linear_q32_one_dot)                                                                          \
    X(linear_q32_vec)                                                                              \
    X(linear_q32_vec_dot)                                                                          \
    X(quantise)                                                                                    \
    X(rmsnorm) /* alone, or with the quantise behind it */                                         \
    X(rope)                                                                                        \
    X(select)

typedef enum fm__vulkan_shader {
#define FM__VULKAN_SHADER_ENUM(name) FM__VULKAN_SHADER_##name,
    FM__VULKAN_SHADER_LIST(FM__VULKAN_SHADER_ENUM)
#undef FM__VULKAN_SHADER_ENUM
        FM__VULKAN_SHADER_COUNT
} fm__vulkan_shader;

/* ---- pipelines.c: shaders with their constants, compiled when first asked for ---- */

enum { FM__VULKAN_CONSTANTS = 16, FM__VULKAN_PUSH_BYTES = 128 };

/* Specialization constants 0..n-1 of a shader. Constants 0, 1, 2 are the workgroup's size. */
typedef struct fm__vulkan_variant {
    fm__vulkan_shader shader;
    uint32_t n;
    uint32_t values[FM__VULKAN_CONSTANTS];
} fm__vulkan_variant;

typedef struct fm__vulkan_kernel {
    fm__vulkan_variant variant;
    VkPipeline pipeline;
    char name[64]; /* "linear_q32[64,1,1,...]", or what fm__vulkan_kernel_get() was told */
    bool excluded; /* by the self-test: differs from the reference */
} fm__vulkan_kernel;

/* The kernel of a variant, compiled and kept by the device. name: for reports, "linear_q4_0_vec".
   NULL: the shader's and its constants. */
fm_status fm__vulkan_kernel_get(fm__vulkan *gpu, const fm__vulkan_variant *variant,
                                const char *name, const fm__vulkan_kernel **out, fm_error *error);
/* Sets kernel->excluded. */
void fm__vulkan_kernel_exclude(fm__vulkan *gpu, const fm__vulkan_kernel *kernel);

/* ---- the device ---- */

/* How products are laid out over workgroups; zeros: as linear.c chooses. For tests and the lab. */
typedef struct fm__vulkan_trial {
    const fm__type *sabotage; /* products of this type are made wrong, to test the self-test */
    uint32_t lanes;           /* of a workgroup */
    uint32_t tokens, round;   /* products for few tokens; for one (tokens 0) round: its section */
    uint32_t row_lanes, lane_rows, lane_tokens, step; /* products for many */
    enum { FM__TRIAL_ANY, FM__TRIAL_MATRIX, FM__TRIAL_LANES } matrix;
} fm__vulkan_trial;

struct fm__vulkan {
    fm__device device;
    /* Limits and abilities that kernels choose by. */
    uint32_t subgroup;        /* its size, as the device reports it */
    uint32_t shared_bytes;    /* of a workgroup */
    uint32_t max_invocations; /* of a workgroup */
    bool has_dot;             /* packed 4x8 integer dot product, accelerated */
    bool can_dot;             /* the instruction exists, perhaps emulated */
    bool has_matrix;          /* int8 matrices of 16 x 16 x 32, and the kernels that use them */
    bool has_f16;             /* shaderFloat16 and 16-bit storage */
    bool rounds_to_even;      /* RoundingModeRTE can be declared for fp32 */
    fm__vulkan_trial trial;
    struct fm__vulkan_core *core; /* handles and functions: of loader.c, memory.c, queue.c, ... */
};

/* ---- buffers ---- */

/* The device address of a buffer of this device; 0 if it has none here. */
uint64_t fm__vulkan_address(const fm__vulkan *gpu, const fm__buffer *buffer);
/* Where the device finds a weight's bytes: the address of its panel 0 (LINEAR), row 0 (GATHER) or
   first float (VECTOR), from the weight's range whose buffer is of this device; 0: it has none. Of
   a LINEAR that has several ranges here, the first. */
uint64_t fm__vulkan_weight(const fm__vulkan *gpu, const fm__weight *weight,
                           fm__residency *residency);

/* ---- record.c: what op files use while a recording is made ---- */

/* Barriers between ops are the recorder's business: an op records its dispatches, and a barrier of
   its own only between two dispatches of one op. */
const fm__tape *fm__vulkan_recorder_tape(const fm__vulkan_recorder *recorder);
fm__vulkan *fm__vulkan_recorder_gpu(const fm__vulkan_recorder *recorder);
/* Of the tape's run block; the first push constant of every shader (common.glsl). */
uint64_t fm__vulkan_run_block(const fm__vulkan_recorder *recorder);
/* Where panels [begin, end) of a LINEAR weight can be read while this op runs: panel p is at
   *address + p * stride, also for p that lies before what is there. Streamed panels are copied
   there ahead of the op. An op asks for the panels that it was told to record, once a weight.
   STATE, naming the weight: the device does not have them. */
fm_status fm__vulkan_weight_source(fm__vulkan_recorder *recorder, const fm__weight *weight,
                                   uint32_t panel_begin, uint32_t panel_end, uint64_t *address,
                                   fm_error *error);
/* Scratch of the device's own for the op that is being recorded; gone when it is done. */
fm_status fm__vulkan_temporary(fm__vulkan_recorder *recorder, size_t bytes, uint64_t *address,
                               fm_error *error);
/* push: (push_bytes <= FM__VULKAN_PUSH_BYTES, a multiple of 4). x, y, z: workgroups. Splits
   nothing: the caller stays within maxComputeWorkGroupCount (65535 in y and z). */
void fm__vulkan_dispatch(fm__vulkan_recorder *recorder, const fm__vulkan_kernel *kernel,
                         const void *push, uint32_t push_bytes, uint32_t x, uint32_t y, uint32_t z);
void fm__vulkan_barrier(fm__vulkan_recorder *recorder);

/* ---- ops.c (every op but the products), linear.c (LINEAR, LINEAR_GLU) ---- */

/* Whether the device has kernels for an op as it stands in the tape; *reason says why not. They do
   not look at where weights lie: that is record's question. */
bool fm__vulkan_supports_rows(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                              const char **reason);
bool fm__vulkan_supports_linear(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op,
                                const char **reason);
const char *fm__vulkan_kernel_rows(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op);
/* What linear.c chooses for an op, as a trial that makes it choose the same for any N. */
fm__vulkan_trial fm__vulkan_linear_choice(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op);
const char *fm__vulkan_kernel_linear(fm__vulkan *gpu, const fm__tape *tape, const fm__op *op);
/* Records range->op; next is the range behind it or NULL. *fused: next was recorded with it. */
fm_status fm__vulkan_record_rows(fm__vulkan_recorder *recorder, const fm__op_range *range,
                                 const fm__op_range *next, bool *fused, fm_error *error);
/* Panels [begin, end) of the range alone: of those that a range of CHANNELS gives, or of all. */
fm_status fm__vulkan_record_linear(fm__vulkan_recorder *recorder, const fm__op_range *range,
                                   uint32_t panel_begin, uint32_t panel_end, fm_error *error);
/* A copy range (range->copy != FM__COPY_NONE). */
fm_status fm__vulkan_record_copy(fm__vulkan_recorder *recorder, const fm__op_range *range,
                                 fm_error *error);
