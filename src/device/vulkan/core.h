/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/vulkan/core.h: what the files of the device itself share; ops.c and linear.c see vulkan.h
 * only.
 *
 * Owns: nothing. Never does: ops.
 *
 * Order of locks: record_lock, then kernel_lock; queue_lock, then a timeline's; transfer_lock, then
 * queue_lock.
 */
#pragma once

#include "device/vulkan/matrix.h"
#include "device/vulkan/vulkan.h"

/* ---- loader.c: the functions of the loader, of the instance and of the device ---- */

/* X(name without vk) */
/* clang-format off */
#define FM__VULKAN_LOADER_FUNCTIONS(X)                                                             \
    X(EnumerateInstanceVersion) X(EnumerateInstanceExtensionProperties) X(CreateInstance)
#define FM__VULKAN_INSTANCE_FUNCTIONS(X)                                                           \
    X(DestroyInstance) X(EnumeratePhysicalDevices) X(EnumerateDeviceExtensionProperties)           \
    X(GetPhysicalDeviceProperties2) X(GetPhysicalDeviceFeatures2)                                  \
    X(GetPhysicalDeviceMemoryProperties2) X(GetPhysicalDeviceQueueFamilyProperties)                \
    X(GetDeviceProcAddr) X(CreateDevice)
#define FM__VULKAN_DEVICE_FUNCTIONS(X)                                                             \
    X(DestroyDevice) X(DeviceWaitIdle) X(GetDeviceQueue) X(QueueSubmit)                            \
    X(AllocateMemory) X(FreeMemory) X(MapMemory)                                                   \
    X(CreateBuffer) X(DestroyBuffer) X(GetBufferMemoryRequirements) X(BindBufferMemory)            \
    X(GetBufferDeviceAddress)                                                                      \
    X(CreateShaderModule) X(DestroyShaderModule) X(CreatePipelineLayout) X(DestroyPipelineLayout)  \
    X(CreatePipelineCache) X(DestroyPipelineCache) X(GetPipelineCacheData)                         \
    X(CreateComputePipelines) X(DestroyPipeline)                                                   \
    X(CreateCommandPool) X(DestroyCommandPool) X(AllocateCommandBuffers) X(FreeCommandBuffers)     \
    X(BeginCommandBuffer) X(EndCommandBuffer) X(CmdBindPipeline) X(CmdPushConstants)               \
    X(CmdDispatch) X(CmdPipelineBarrier) X(CmdCopyBuffer) X(CmdFillBuffer)                                          \
    X(CreateQueryPool) X(DestroyQueryPool) X(CmdResetQueryPool) X(CmdWriteTimestamp)               \
    X(GetQueryPoolResults) X(ResetQueryPool)                                                       \
    X(CreateSemaphore) X(DestroySemaphore) X(GetSemaphoreCounterValue) X(WaitSemaphores)           \
    X(SignalSemaphore)
/* Of extensions: NULL where the device has them not. */
#define FM__VULKAN_OPTIONAL_FUNCTIONS(X)                                                           \
    X(GetMemoryHostPointerPropertiesEXT) X(GetCalibratedTimestampsEXT)
#define FM__VULKAN_OPTIONAL_INSTANCE_FUNCTIONS(X)                          \
    X(GetPhysicalDeviceCalibrateableTimeDomainsEXT)                                                \
    X(GetPhysicalDeviceCooperativeMatrixPropertiesKHR)
/* clang-format on */

typedef struct fm__vulkan_api {
    void *library; /* the loader */
    VkInstance instance;
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
#define FM__VULKAN_MEMBER(name) PFN_vk##name name;
    FM__VULKAN_LOADER_FUNCTIONS(FM__VULKAN_MEMBER)
    FM__VULKAN_INSTANCE_FUNCTIONS(FM__VULKAN_MEMBER)
    FM__VULKAN_OPTIONAL_INSTANCE_FUNCTIONS(FM__VULKAN_MEMBER)
    FM__VULKAN_DEVICE_FUNCTIONS(FM__VULKAN_MEMBER)
    FM__VULKAN_OPTIONAL_FUNCTIONS(FM__VULKAN_MEMBER)
#undef FM__VULKAN_MEMBER
} fm__vulkan_api;

/* Opens the loader and an instance. UNSUPPORTED: there is no loader, or no driver. */
fm_status fm__vulkan_open(fm__vulkan_api *vk, fm_error *error);
fm_status fm__vulkan_load_device(fm__vulkan_api *vk, VkDevice device, fm_error *error);
void fm__vulkan_close(fm__vulkan_api *vk); /* after the device was destroyed */
/* "VK_ERROR_DEVICE_LOST", or "VkResult -1234" in `room`. */
const char *fm__vulkan_result(VkResult result, char room[32]);

/* ---- choose.c: what a physical device can do, and which serve ---- */

typedef struct fm__vulkan_choice {
    VkPhysicalDevice physical;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memory;
    char lacks[160]; /* "": it can serve */
    char driver[64];
    uint32_t family; /* of its compute queue, which is the family's first */
    /* Where streamed weights are copied: a queue of its own, or (copies_apart false) the compute
       queue, where copies run only while it waits for other units. */
    bool copies_apart;
    uint32_t copy_family, copy_index;
    uint32_t timestamp_bits, subgroup;
    uint32_t copy_timestamp_bits;        /* of the copies' queue */
    uint64_t max_allocation, max_buffer; /* bytes */
    uint64_t local_bytes, local_budget;  /* of the heap of local_type; budget 0: not told */
    uint32_t local_type, host_type;      /* memory types; host_type is cached where one is */
    bool local_visible;                  /* local_type has host addresses */
    bool unified, software;
    bool can_dot, has_dot, has_f16, rounds_to_even, keeps_zeros_and_nans;
    bool can_reset_queries;            /* from the host */
    bool matrix_extension, has_matrix; /* has_matrix: of the shape that the kernels use */
    bool dot_extension, import_extension, budget_extension, clock_extension, subset_extension;
    size_t import_align; /* bytes */
} fm__vulkan_choice;

/* A queue for copies beside queue 0 of `family`, the compute queue: of a family that only copies (a
   copy engine), else the family's second, else one of a family that computes or draws too, else one
   of a video or optical flow engine. false: there is none but the compute queue. Pure. */
bool fm__vulkan_choose_copies(const VkQueueFamilyProperties *families, uint32_t n, uint32_t family,
                              uint32_t *copy_family, uint32_t *copy_index);

/* Looks at every physical device, those that can serve first, best first; *choices is the
   caller's (fm__free). */
fm_status fm__vulkan_choose(const fm__vulkan_api *vk, bool allow_software,
                            fm__vulkan_choice **choices, uint32_t *n_choice, uint32_t *n_serving,
                            fm_error *error);

/* ---- memory.c ---- */

typedef struct fm__vulkan_buffer {
    fm__buffer base;
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t start;   /* where in `buffer` the first byte lies that the caller asked for */
    uint64_t address; /* of that byte */
    uint8_t *host;    /* NULL: none that the processor reads at speed */
    uint8_t *window;  /* NULL, or where the processor may write, uncached */
} fm__vulkan_buffer;

/* Its bytes are whatever they were. */
fm_status fm__vulkan_buffer_make(fm__vulkan *gpu, size_t bytes, fm__memory memory,
                                 fm__vulkan_buffer **out, fm_error *error);
fm_status fm__vulkan_buffer_create(fm__device *device, size_t bytes, fm__memory memory,
                                   fm__buffer **out, fm_error *error);
fm_status fm__vulkan_buffer_import(fm__device *device, void *host, size_t bytes, fm__buffer **out,
                                   fm_error *error);
void *fm__vulkan_buffer_map(fm__buffer *buffer);
void fm__vulkan_buffer_destroy(fm__buffer *buffer);

/* Device memory that several recordings use one after the other. */
typedef struct fm__vulkan_block {
    fm__vulkan_buffer *buffer;
    uint32_t users;
} fm__vulkan_block;

/* ---- transfer.c ---- */

/* Staging: made when a buffer without a host address is first written or read. */
typedef struct fm__vulkan_transfer {
    pthread_mutex_t lock;
    fm__vulkan_buffer *staging;
    VkCommandPool pool;
    VkCommandBuffer commands;
} fm__vulkan_transfer;

fm_status fm__vulkan_transfer_init(fm__vulkan *gpu, fm_error *error);
void fm__vulkan_transfer_finish(fm__vulkan *gpu);
fm_status fm__vulkan_buffer_write(fm__buffer *buffer, size_t offset, const void *from, size_t bytes,
                                  fm_error *error);
fm_status fm__vulkan_buffer_read(fm__buffer *buffer, size_t offset, void *to, size_t bytes,
                                 fm_error *error);
/* New memory holds zeros, as the host's does: what was never written may be saved with a session.
 */
fm_status fm__vulkan_clear(fm__vulkan *gpu, fm__vulkan_buffer *buffer, fm_error *error);

/* ---- pipelines.c ---- */

typedef struct fm__vulkan_words {
    const uint32_t *words;
    size_t n;
} fm__vulkan_words;
extern const fm__vulkan_words fm__vulkan_shaders[]; /* generated: (FM__VULKAN_SHADER_COUNT) */

enum { FM__VULKAN_ADDED_WORDS = 12 };
/* Writes `in` with the float modes that are asked for declared for fp32 into out (in.n +
   FM__VULKAN_ADDED_WORDS words); the words written, 0 if `in` is no module of one entry point. */
size_t fm__vulkan_declare_floats(fm__vulkan_words in, bool round_to_even, bool keep_zeros_and_nans,
                                 uint32_t *out);

typedef struct fm__vulkan_pipelines {
    pthread_mutex_t lock;
    VkPipelineLayout layout;
    VkPipelineCache cache;
    char path[512]; /* of the cache's file; "": none */
    fm__vulkan_kernel **kernels;
    uint32_t n_kernel, capacity;
    bool grown; /* since the file was read */
} fm__vulkan_pipelines;

fm_status fm__vulkan_pipelines_init(fm__vulkan *gpu, const char *cache_dir, fm_error *error);
void fm__vulkan_pipelines_finish(fm__vulkan *gpu); /* writes the file */

/* ---- queue.c: what was handed over, and whether it ended ---- */

typedef struct fm__vulkan_timeline { /* the twin of an fm__timeline */
    VkSemaphore semaphore;
    pthread_mutex_t lock;        /* of signals from the host */
    _Atomic uint64_t from_host;  /* the greatest value that the host signalled */
    _Atomic uint64_t from_queue; /* the greatest that the queue was told to */
} fm__vulkan_timeline;

/* Work is handed over in batches, several in a call of the driver; each counts. */
typedef struct fm__vulkan_queue {
    pthread_mutex_t lock; /* of the queue, of the ring's, and of what is not _Atomic */
    VkQueue queue;
    VkSemaphore progress;       /* counts batches that ended */
    _Atomic uint64_t submitted; /* ... that were handed over */
    _Atomic uint64_t seen;      /* ... that were seen to have ended */
    uint64_t submits, lose_at;  /* fm__device_submit()s ever; the one that loses the device */
    uint64_t calls, fail_at;    /* calls of the driver with a run's work; the one that fails */
    _Atomic bool lost;
    _Atomic bool still_runs;        /* lost, but not to the driver: what was handed over ends */
    struct fm__vulkan_batch *batch; /* room for one call: of submit.c */
} fm__vulkan_queue;

fm_status fm__vulkan_queue_init(fm__vulkan *gpu, const fm__vulkan_options *options,
                                fm_error *error);
void fm__vulkan_queue_finish(fm__vulkan *gpu);
/* A semaphore whose value only grows, from 0. */
VkResult fm__vulkan_semaphore_create(fm__vulkan *gpu, VkSemaphore *out);
/* Hands over commands (NULL: none) of the device's own; *ticket is what to wait for. */
fm_status fm__vulkan_submit_own(fm__vulkan *gpu, VkCommandBuffer commands, uint64_t *ticket,
                                fm_error *error);
/* Batch `ticket` has ended; what a driver lost has ended. */
bool fm__vulkan_ended(fm__vulkan *gpu, uint64_t ticket);
/* Waits for it; of a device that is lost, for a while at most. false: the device was lost. */
bool fm__vulkan_wait(fm__vulkan *gpu, uint64_t ticket);
/* The same for copy number `copy` of the ring. */
bool fm__vulkan_wait_copy(fm__vulkan *gpu, uint64_t copy);
/* The ring's copies that have ended; 0 after a loss that the driver noticed. Waits for nothing. */
uint64_t fm__vulkan_copies_ended(fm__vulkan *gpu);
/* The same as the first, for a moment at most: for what ends with a signal that was already seen.
 */
bool fm__vulkan_ended_soon(fm__vulkan *gpu, uint64_t ticket);
/* Fills error for a driver call that failed; notes a lost device. */
fm_status fm__vulkan_failed(fm__vulkan *gpu, VkResult result, const char *call, fm_error *error);
bool fm__vulkan_is_lost(fm__device *device);
fm_status fm__vulkan_timeline_attach(fm__device *device, void **native, fm_error *error);
void fm__vulkan_timeline_detach(fm__device *device, void *native);
uint64_t fm__vulkan_timeline_value(fm__device *device, void *native);
bool fm__vulkan_timeline_wait(fm__device *device, void *native, uint64_t value);
void fm__vulkan_timeline_signal(fm__device *device, void *native, uint64_t value);

/* ---- submit.c: segments as batches, and the copies that they need ---- */

enum { FM__VULKAN_BATCH = 4096 }; /* segments of one fm__device_submit(); batches of one call */

fm_status fm__vulkan_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                            const fm__run *run, uint64_t base, fm_error *error);
/* Room for one call's structures; fm__free(). NULL: no memory. */
struct fm__vulkan_batch *fm__vulkan_batch_create(void);

/* ---- clock.c: the device's timestamps on the scale of fm__now_ns() ---- */

typedef struct fm__vulkan_clock {
    pthread_mutex_t lock;
    uint64_t mask;      /* valid bits of a timestamp; 0: the queue has none */
    uint64_t copy_mask; /* likewise of the copies' queue */
    double period;      /* ns a tick */
    bool calibrated;    /* the extension gives both clocks at once */
    uint64_t ticks, ns; /* the same moment on both */
} fm__vulkan_clock;

fm_status fm__vulkan_clock_init(fm__vulkan *gpu, const fm__vulkan_choice *choice, fm_error *error);
void fm__vulkan_clock_finish(fm__vulkan *gpu);
/* A recent moment on both clocks, taken again where the last one is old. */
void fm__vulkan_clock_refresh(fm__vulkan *gpu);
/* mask: of the queue that wrote them. */
uint64_t fm__vulkan_clock_ns(fm__vulkan *gpu, uint64_t ticks, uint64_t mask);

/* ---- binding.c: what a run binds, where every shader finds it ---- */

typedef struct fm__vulkan_binding {
    struct fm__vulkan_binding *next;
    const fm__tape *tape;
    uint32_t users;     /* recordings */
    uint64_t ticket;    /* of the last submission that reads it */
    uint64_t filled;    /* the fm__device_submit() that last looked at it, counted from 1 */
    const fm__run *run; /* of the last submission */
    fm__vulkan_buffer *block, *pages; /* read by shaders */
    uint8_t *shadow;       /* (block_bytes): what the block holds, and behind it what it will */
    uint32_t *page_shadow; /* (2 * page_capacity): likewise */
    size_t block_bytes;
    uint32_t max_sequences, page_capacity;
    volatile uint32_t *failure; /* in the block */
} fm__vulkan_binding;

/* The tape's block, made when it is first recorded. Both hold record_lock. */
fm_status fm__vulkan_binding_get(fm__vulkan *gpu, const fm__tape *tape, fm__vulkan_binding **out,
                                 fm_error *error);
void fm__vulkan_binding_put(fm__vulkan *gpu, fm__vulkan_binding *binding);
/* Under the queue's lock: makes the block hold `run`, of which the slots in `slots` (bits) are
   used. call: which fm__device_submit() asks; it asks once for each recording. STATE: another run
   still uses the block. */
fm_status fm__vulkan_binding_fill(fm__vulkan *gpu, fm__vulkan_binding *binding, const fm__run *run,
                                  uint32_t slots, uint64_t call, fm_error *error);
fm_status fm__vulkan_run_finish(fm__device *device, const fm__tape *tape, const fm__run *run,
                                fm_error *error);

/* ---- stream.c: weights in host memory, on their way through a ring ---- */

enum {
    FM__VULKAN_TURNS = 2,                  /* each writes timestamps of its own */
    FM__VULKAN_UNTIMED = FM__VULKAN_TURNS, /* writes none */
};

/* Panels that one copy brings, for a product or for several that follow each other. */
typedef struct fm__vulkan_part {
    /* The same copy, by turns: so the copy for the next replay leaves the timestamps of this one as
       they are. UNTIMED where the turn's are not free, or the queue keeps no time at all (then that
       is the only one). */
    VkCommandBuffer commands[FM__VULKAN_TURNS + 1];
    uint64_t copies[FM__VULKAN_TURNS]; /* number of the copy that each was last handed over for */
    uint64_t at, bytes;                /* of the ring */
    uint64_t payload; /* bytes that are copied; the rest of `bytes` lies between matrices */
    uint64_t copy;    /* number of the copy that was handed over last; 0: none */
    uint32_t turn;    /* whose that was */
    uint64_t copy_ns; /* when */
    /* The copy that the last batch reads, whether it was the first to do so, when that copy was
       handed over, and whether it wrote timestamps. */
    uint64_t read, read_ns;
    bool fresh, timed;
} fm__vulkan_part;

/* Who uses a cell of the ring, for whoever overwrites it. */
typedef struct fm__vulkan_cell {
    uint64_t copy; /* number of the copy that wrote it last; 0: none */
    /* The last batch that reads that; or UNREAD: none was handed over, and none has to be; or
       CLAIMED: one will be, by the submission that is on its way. */
    uint64_t reader;
} fm__vulkan_cell;

#define FM__VULKAN_UNREAD UINT64_MAX
#define FM__VULKAN_CLAIMED (UINT64_MAX - 1)

enum { FM__VULKAN_CELL = 64 << 10 }; /* bytes */

/* Streamed panels are copied into the ring in the order in which recordings need them, on a queue
   of their own, as far ahead as the ring reaches: weights do not change, so a copy waits for room
   in the ring and for nothing else. */
typedef struct fm__vulkan_ring {
    VkQueue queue;      /* under the compute queue's lock; it may be that queue */
    VkSemaphore copied; /* counts copies that are done */
    uint64_t n_copy;    /* ... that were handed over */
    uint64_t seen;      /* ... that were seen to be done; under the compute queue's lock */
    bool keeps_time;    /* its queue has timestamps, and they are wanted */
    /* What was copied since the device was made; copies of recordings behind the one that was being
       handed over; and copies for the next replay. */
    uint64_t copied_bytes, ahead, early;
    /* record_lock: */
    VkCommandPool pool;
    uint64_t bytes, part_bytes; /* of the ring; of a part at most */
    uint64_t next;              /* where the next part that is recorded begins */
    fm__vulkan_buffer *buffer;  /* NULL until weights are streamed */
    fm__vulkan_cell *cells;     /* (bytes / FM__VULKAN_CELL); under the queue's lock */
} fm__vulkan_ring;

/* Some panels of a product, which are recorded at once: those of one part, or where nothing is
   copied, all. */
typedef struct fm__vulkan_use {
    uint32_t range; /* of the recording's ranges */
    uint32_t part;  /* FM__VULKAN_NO_PART: nothing is copied */
    uint32_t begin, end;
    uint64_t at[2]; /* where panel `begin` of each weight lies in its part */
    bool copied[2];
} fm__vulkan_use;

enum { FM__VULKAN_NO_PART = INT32_MAX };

typedef struct fm__vulkan_uses {
    fm__vulkan_use *uses; /* in the order of the ranges; fm__free() */
    uint32_t n, capacity;
} fm__vulkan_uses;

struct fm__vulkan_recording;
fm_status fm__vulkan_ring_init(fm__vulkan *gpu, const fm__vulkan_options *options, fm_error *error);
void fm__vulkan_ring_finish(fm__vulkan *gpu);
/* Cuts the products among the ranges into uses, and records the copies as the recording's parts.
   Under record_lock, as is the next. */
fm_status fm__vulkan_stream_plan(fm__vulkan *gpu, const fm__tape *tape, const fm__op_range *ranges,
                                 uint32_t n_range, struct fm__vulkan_recording *recording,
                                 fm__vulkan_uses *out, fm_error *error);
/* Gives parts back whose copies have ended. */
void fm__vulkan_stream_free(fm__vulkan *gpu, struct fm__vulkan_recording *recording);
/* The range of the weight that holds panels [begin, end) for this device, or NULL. */
const fm__weight_range *fm__vulkan_panels(const fm__vulkan *gpu, const fm__weight *weight,
                                          uint32_t begin, uint32_t end);

/* ---- record.c ---- */

enum { FM__VULKAN_BLOCKS = 16 };

/* Command buffers that run one after the other: one, or one a part, which waits for its copy. */
typedef struct fm__vulkan_recording {
    fm__recording base;
    VkCommandBuffer *commands; /* (n_commands) */
    uint32_t n_commands, n_part;
    fm__vulkan_part *parts; /* (n_part) */
    bool begins, ends;      /* holds the tape's first product, its last */
    VkQueryPool queries;    /* (n_commands, 2) begin and end */
    /* (n_part, FM__VULKAN_TURNS, 2) likewise of copies; NULL where their queue keeps no time */
    VkQueryPool copy_queries;
    uint64_t *ticks; /* room for the greater of the two, each with whether it is there */
    fm__vulkan_binding *binding;
    fm__vulkan_block *blocks[FM__VULKAN_BLOCKS]; /* what its ops keep for a while */
    uint32_t n_block;
    uint64_t ticket; /* of its last batch that was handed over; 0: never */
    uint64_t copy;   /* number of its last copy that was */
    uint64_t listed; /* the fm__device_submit() that last named it, counted from 1 */
} fm__vulkan_recording;

fm_status fm__vulkan_record(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                            uint32_t n_range, fm__recording **out, fm_error *error);
void fm__vulkan_recording_destroy(fm__recording *recording);
fm__span fm__vulkan_recording_span(fm__recording *recording);
uint32_t fm__vulkan_recording_work(fm__recording *recording, fm__work *work, uint32_t room);
uint64_t fm__vulkan_scratch_bytes(fm__device *device, const fm__tape *tape, bool or_shorter);
fm_status fm__vulkan_scratch_reserve(fm__device *device, uint64_t bytes, fm_error *error);
fm__held fm__vulkan_held(fm__device *device);
VkResult fm__vulkan_queries_create(fm__vulkan *gpu, uint32_t n, VkQueryPool *out);

/* ---- vulkan.c ---- */

typedef struct fm__vulkan_core {
    fm__vulkan_api vk;
    fm__vulkan_choice choice;
    VkDevice device;
    bool discrete; /* as told, or as the device is */
    bool hosted;   /* discrete, and works on host memory all the same */
    fm__vulkan_transfer transfer;
    fm__vulkan_pipelines pipelines;
    fm__vulkan_queue queue;
    fm__vulkan_clock clock;
    fm__vulkan_ring ring;
    pthread_mutex_t record_lock; /* of what follows */
    VkCommandPool pool;
    fm__vulkan_binding *bindings;
    fm__vulkan_block *temporary; /* the largest so far; a recording keeps what it took */
} fm__vulkan_core;
