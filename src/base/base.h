/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/base.h: the base room: status, memory, strings, hashing, clock, threads, CPU features,
 * files.
 *
 * Owns: nothing but the log callback and the CPU feature word. Never does: anything about models,
 * formats or devices. Called from: every thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/compiler.h"
#include "fusionml/error.h"
#include "fusionml/log.h"

/* ---- status.c ---- */

/* Fills *error (may be NULL) and returns status. place may be NULL. Truncates at whole UTF-8
 * characters. */
fm_status fm__error(fm_error *error, fm_status status, const char *place, const char *format, ...)
    FM__PRINTF(4, 5);
/* Puts "outer: " before the place that an inner call filled in. Returns error->status (or `status`
   if error is NULL). */
fm_status fm__error_within(fm_error *error, fm_status status, const char *outer);
/* FM_ERROR_MEMORY with the byte count in the sentence. */
fm_status fm__error_memory(fm_error *error, const char *place, size_t bytes);

/* ---- log.c ---- */

void fm__log(fm_log_level level, const char *format, ...) FM__PRINTF(2, 3);

/* ---- memory.c: every allocation of the library goes through here ---- */

/* 64-byte aligned; NULL on failure; size 0 gives a valid pointer. */
void *fm__alloc(size_t bytes);
void *fm__alloc_zero(size_t bytes);
/* count * size, overflow-checked, zeroed. */
void *fm__alloc_array(size_t count, size_t size);
/* Grows or shrinks; keeps min(old, new) bytes; the old block stays valid on failure (NULL). */
void *fm__realloc(void *memory, size_t bytes);
void fm__free(void *memory);
/* Allocations since the process began (the allocation guard of tests reads it). */
uint64_t fm__alloc_count(void);
/* Test hook: the n-th allocation from now fails (0: none does). */
void fm__alloc_fail_after(uint64_t n);

/* Large page-aligned zeroed memory for weights and caches, on huge pages where the system gives
 * them. */
void *fm__pages_alloc(size_t bytes);
void fm__pages_free(void *memory, size_t bytes);
/* How many of these bytes lie on huge pages now, as the system tells (Linux: /proc/self/smaps;
 * where it tells nothing: 0). */
uint64_t fm__pages_huge(const void *memory, size_t bytes);

/* ---- arena.c: a bump allocator freed at once ---- */

typedef struct fm__arena {
    struct fm__arena_block *head;
    size_t block_bytes;
} fm__arena;

void fm__arena_init(fm__arena *arena, size_t block_bytes);
void fm__arena_finish(fm__arena *arena);
void *fm__arena_alloc(fm__arena *arena,
                      size_t bytes); /* 16-byte aligned, not zeroed; NULL on failure */
char *fm__arena_copy(fm__arena *arena, const char *data,
                     size_t bytes); /* adds a NUL; NULL on failure */

/* ---- checked arithmetic: false on overflow, *out is then unspecified ---- */

static inline bool fm__add_size(size_t a, size_t b, size_t *out) {
    return __builtin_add_overflow(a, b, out) == 0;
}
static inline bool fm__mul_size(size_t a, size_t b, size_t *out) {
    return __builtin_mul_overflow(a, b, out) == 0;
}
static inline bool fm__add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return __builtin_add_overflow(a, b, out) == 0;
}
static inline bool fm__mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return __builtin_mul_overflow(a, b, out) == 0;
}
static inline size_t fm__round_up(size_t x,
                                  size_t multiple) { /* multiple > 0, no overflow expected */
    return (x + multiple - 1) / multiple * multiple;
}
static inline size_t fm__min_size(size_t a, size_t b) {
    return a < b ? a : b;
}
static inline size_t fm__max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* ---- string.c ---- */

/* A borrowed byte string: not NUL-terminated unless the owner says so. */
typedef struct fm__str {
    const char *data;
    size_t bytes;
} fm__str;

#define FM__STR(literal) ((fm__str){(literal), sizeof(literal) - 1})
fm__str fm__str_of(const char *c_string);
bool fm__str_equal(fm__str a, fm__str b);
bool fm__str_is(fm__str a, const char *c_string);
bool fm__str_ends(fm__str a, const char *suffix);

/* A growing byte buffer. Zero-initialise; failed is sticky, so check it once at the end. data is
   always NUL-terminated when not NULL. */
typedef struct fm__buf {
    char *data;
    size_t bytes, capacity;
    bool failed;
} fm__buf;

void fm__buf_finish(fm__buf *buf);
void fm__buf_clear(fm__buf *buf);
bool fm__buf_append(fm__buf *buf, const void *data, size_t bytes);
bool fm__buf_printf(fm__buf *buf, const char *format, ...) FM__PRINTF(2, 3);

/* Length (1..4) of the valid UTF-8 sequence at data, 0 if invalid, and -1 if it is a valid prefix
   cut by the end. *code_point may be NULL. */
int fm__utf8_next(const char *data, size_t bytes, uint32_t *code_point);
/* Writes 1..4 bytes; code_point must be a scalar value. */
size_t fm__utf8_put(uint32_t code_point, char out[4]);

/* ---- hash.c ---- */

/* FNV-1a style 64-bit over 8-byte words, stable across machines: for output hashes and lookup
   tables. Start with FM__HASH_SEED; hashing a;b in two calls equals one call only if a is a
   multiple of 8 bytes. */
#define FM__HASH_SEED UINT64_C(0xcbf29ce484222325)
uint64_t fm__hash(uint64_t seed, const void *data, size_t bytes);
/* For gigabytes: as fast as memory is read; other values, stable too. */
uint64_t fm__hash_bulk(uint64_t seed, const void *data, size_t bytes);

/* A map from byte strings (borrowed) to uint32 values; insertion is amortised O(1). */
typedef struct fm__map {
    struct fm__map_slot *slots;
    size_t n_slots, count;
    uint64_t salt[2]; /* random: a file cannot choose names that collide */
} fm__map;

bool fm__map_init(fm__map *map, size_t expected);
void fm__map_finish(fm__map *map);
/* false: out of memory. *existing (may be NULL) = true if the key was there: its value is kept. */
bool fm__map_put(fm__map *map, fm__str key, uint32_t value, bool *existing);
bool fm__map_get(const fm__map *map, fm__str key, uint32_t *value);

/* ---- random.c: xoshiro256** seeded through splitmix64 ---- */

typedef struct fm__random {
    uint64_t s[4];
} fm__random;

void fm__random_seed(fm__random *random, uint64_t seed);
uint64_t fm__random_next(fm__random *random);
double fm__random_double(fm__random *random); /* [0, 1), 53 bits */
float fm__random_normal(fm__random *random);  /* mean 0, deviation 1 */

/* ---- math.c: our own double functions, the same bits on every machine (tables are made with them)
 * ---- */

double fm__sin(double x); /* |x| < 2^30; error below 2^-50 */
double fm__cos(double x);
double fm__exp(double x);
double fm__ln(double x);            /* x > 0 */
double fm__pow(double x, double y); /* x > 0 */

/* ---- clock.c, system.c ---- */

uint64_t fm__now_ns(void); /* monotonic */
/* For loops that look again and again: a moment in which a core's other thread has it. */
void fm__cpu_pause(void);
uint64_t fm__memory_total(void);
uint64_t fm__memory_available(void);
uint64_t fm__memory_resident(void); /* of this process */

/* ---- pressure.c: is memory tight? ---- */

typedef struct fm__pressure {
    bool stall_known; /* the system counts stalls (Linux: pressure stall information) */
    double stall;     /* percent of the last 10 s in which some task waited for memory */
    uint64_t available_bytes, total_bytes; /* total 0: unknown */
    uint64_t major_faults;                 /* of this process since the reading before */
    uint64_t elapsed_ns;                   /* since the reading before; 0: there was none */
    uint32_t level;                        /* macOS: 1 normal, 2 warning, 4 critical; else 0 */
} fm__pressure;

/* Zero-initialise; one a thread that asks. */
typedef struct fm__pressure_state {
    uint64_t major_faults, read_ns;
    fm__pressure last;
    bool tight;
} fm__pressure_state;

/* Whether memory is tight, by the rules of fm__pressure_is_tight(). Reads the system at most twice
   a second, and otherwise says what it said before. out may be NULL. */
bool fm__memory_pressure(fm__pressure_state *state, fm__pressure *out);
/* A reading of a system whose files are below `root` ("" for this one) at the time `now_ns`, after
   `major_faults` of them in all. */
void fm__pressure_read(fm__pressure_state *state, const char *root, uint64_t now_ns,
                       uint64_t major_faults, fm__pressure *out);
/* The pure rule; pressure.c has the thresholds. */
bool fm__pressure_is_tight(const fm__pressure *pressure);

/* ---- power.c ---- */

typedef enum fm__power {
    FM__POWER_NONE, /* the system names no supply: a desktop, a server, or it does not say */
    FM__POWER_AC,
    FM__POWER_BATTERY,
} fm__power;

/* What feeds the machine, of a system whose files are below `root` ("" for this one). */
fm__power fm__power_source(const char *root);
const char *fm__power_name(fm__power power); /* "none", "ac", "battery" */

/* ---- thread.c ---- */

typedef struct fm__thread fm__thread;
typedef void fm__thread_main(void *argument);

/* cpu: logical processor to pin to, or -1. Worker threads set round-to-nearest and clear FTZ/DAZ
 * themselves. */
fm_status fm__thread_start(fm__thread **out, fm__thread_main *main, void *argument, int cpu,
                           fm_error *error);
void fm__thread_join(fm__thread **thread);
/* Round to nearest, no FTZ/DAZ, for the calling thread. */
void fm__thread_set_float_mode(void);

/* A counter to wait on: spins briefly, then sleeps in the kernel. */
typedef struct fm__counter {
    _Atomic uint64_t value;
    _Atomic uint32_t wake; /* futex word */
    _Atomic uint32_t sleepers;
} fm__counter;

void fm__counter_init(fm__counter *counter, uint64_t value);
uint64_t fm__counter_read(fm__counter *counter);
void fm__counter_set(fm__counter *counter, uint64_t value); /* wakes sleepers; must not decrease */
void fm__counter_add(fm__counter *counter, uint64_t n);
void fm__counter_wait(fm__counter *counter, uint64_t at_least);
/* The same, where work is under way that will end the wait within some 100 us: spins for longer. */
void fm__counter_wait_soon(fm__counter *counter, uint64_t at_least);

/* Physical cores this process may use, through hwloc: fills cpus[] (one logical processor a core)
   up to capacity; returns how many there are. */
size_t fm__cores(int *cpus, size_t capacity);
/* The same for one kind of core of a processor that mixes kinds, through hwloc. PERFORMANCE: those
   of the kind that hwloc ranks highest; EFFICIENCY: all others. 0: all cores are of one kind, or
   the system does not tell. */
typedef enum fm__core_kind { FM__CORES_PERFORMANCE, FM__CORES_EFFICIENCY } fm__core_kind;
size_t fm__core_list(fm__core_kind kind, int *cpus, size_t capacity);
/* Logical processors that the scheduler lets this process use; at least 1. */
size_t fm__processors(void);

/* Calls task(argument, index) for index in [0, count) on `threads` threads (0: all cores), any
   order. Used by loading and converting, never while a model runs. */
typedef void fm__task(void *argument, size_t index);
fm_status fm__parallel_for(uint32_t threads, size_t count, fm__task *task, void *argument,
                           fm_error *error);

/* ---- cpu.c ---- */

enum {
    FM__CPU_AVX2 = 1u << 0,   /* with FMA and F16C */
    FM__CPU_AVX512 = 1u << 1, /* F, BW, DQ, VL, CD */
    FM__CPU_AVX512_VNNI = 1u << 2,
    FM__CPU_AVX512_BF16 = 1u << 3,
    FM__CPU_AVX_VNNI = 1u << 4,
    FM__CPU_AMX_INT8 = 1u << 5, /* with GFNI; and the OS granted the tile state */
    FM__CPU_AMX_BF16 = 1u << 6,
    FM__CPU_NEON = 1u << 7,
    FM__CPU_DOTPROD = 1u << 8,
    FM__CPU_I8MM = 1u << 9,
    FM__CPU_BF16 = 1u << 10, /* aarch64 BF16 */
    FM__CPU_AMD = 1u << 11,  /* who made it: no unit, but cores that fetch memory in another way */
};

uint32_t fm__cpu_features(void); /* computed once, thread-safe */
/* "AMD EPYC 9B45": into out, NUL-terminated. */
void fm__cpu_name(char *out, size_t capacity);
/* "avx2 avx512 vnni bf16" */
void fm__cpu_feature_text(uint32_t features, char *out, size_t capacity);

/* ---- file.c ---- */

/* A read-only mapping of a whole file. */
typedef struct fm__mapping {
    const uint8_t *data;
    size_t bytes;
    uint64_t device, inode; /* of the file */
} fm__mapping;

fm_status fm__mapping_open(fm__mapping *out, const char *path,
                           fm_error *error); /* an empty file: data NULL */
void fm__mapping_close(fm__mapping *mapping);
/* Whether what lies at path is the mapped file. */
bool fm__mapping_is_of(const fm__mapping *mapping, const char *path);
/* Tells the system that a range will be read soon, or no more (both are hints). */
void fm__mapping_will_need(const fm__mapping *mapping, size_t offset, size_t bytes);
void fm__mapping_done_with(const fm__mapping *mapping, size_t offset, size_t bytes);

/* Whole file into memory (fm__free; NUL-terminated behind *bytes). limit: larger files are refused.
 */
fm_status fm__file_read(const char *path, size_t limit, char **data, size_t *bytes,
                        fm_error *error);
bool fm__path_is_directory(const char *path);
bool fm__path_is_regular(const char *path);
bool fm__path_exists(const char *path);
/* "dir/name" into out; false if it does not fit. */
bool fm__path_join(const char *directory, const char *name, char *out, size_t capacity);

/* A file that appears under its name only when it is complete: writes to a new file beside it, then
   renames. Where the file system can the new file has no name until then, and is gone with a
   process that is killed; else it is "path.12345678.tmp". What is at path must be a regular file, a
   link to one, or nothing. */
typedef struct fm__writer fm__writer;
fm_status fm__writer_open(fm__writer **out, const char *path, fm_error *error);
fm_status fm__writer_write(fm__writer *writer, const void *data, size_t bytes, fm_error *error);
uint64_t fm__writer_offset(const fm__writer *writer);
fm_status fm__writer_commit(fm__writer **writer,
                            fm_error *error); /* flush, sync, rename; clears *writer */
void fm__writer_abort(fm__writer **writer);   /* removes the temporary file; NULL allowed */

/* ---- cache.c ---- */

/* The folder `asked`, or where it is NULL the user's cache folder for us ($XDG_CACHE_HOME/fusionml,
   or below the home folder), made if it is not there. false: there is none, or `asked` is "";
   out is then what could not be made, or "". */
bool fm__cache_folder(const char *asked, char *out, size_t capacity);

/* ---- half.c: integer conversions (docs/numerics.md) ---- */

float fm__f16_to_f32(uint16_t h); /* exact, subnormals included */
uint16_t fm__f32_to_f16(float f); /* round to nearest even; overflow to infinity, as IEEE */
static inline float fm__bf16_to_f32(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t fm__f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */
static inline uint32_t fm__f32_bits(float f) {
    union {
        float f;
        uint32_t u;
    } v = {f};
    return v.u;
}
static inline float fm__bits_f32(uint32_t u) {
    union {
        uint32_t u;
        float f;
    } v = {u};
    return v.f;
}
