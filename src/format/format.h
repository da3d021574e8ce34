/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/format.h: the format room: untrusted bytes in, a checked directory out.
 *
 * Owns: file mappings and the directory of keys and tensors. Never does: arithmetic on weights, or
 * knows what an architecture is. Called from: the loading thread. Every size is checked before it
 * is used; messages name the file, the key or tensor, and the offset.
 */
#pragma once

#include "base/base.h"

/* ---- dtype.c: storage facts of tensor types. Values are GGUF's type numbers. ---- */

typedef enum fm__dtype {
    FM__F32 = 0,
    FM__F16 = 1,
    FM__Q4_0 = 2,
    FM__Q4_1 = 3,
    FM__Q5_0 = 6,
    FM__Q5_1 = 7,
    FM__Q8_0 = 8,
    FM__Q2_K = 10,
    FM__Q3_K = 11,
    FM__Q4_K = 12,
    FM__Q5_K = 13,
    FM__Q6_K = 14,
    FM__IQ4_NL = 20,
    FM__IQ4_XS = 23,
    FM__I8 = 24,
    FM__I16 = 25,
    FM__I32 = 26,
    FM__I64 = 27,
    FM__F64 = 28,
    FM__BF16 = 30,
    FM__TQ1_0 = 34,
    FM__TQ2_0 = 35,
    FM__MXFP4 = 39,
} fm__dtype;

typedef struct fm__dtype_info {
    fm__dtype dtype;
    const char *name; /* "q4_k" */
    uint32_t block;   /* elements a block */
    uint32_t block_bytes;
} fm__dtype_info;

/* NULL for a number that is not in the table. */
const fm__dtype_info *fm__dtype_get(uint32_t dtype);
const fm__dtype_info *fm__dtype_by_name(fm__str name);
/* "iq2_xxs" and the like: the name of a GGUF type number that we know of but do not read; NULL
 * otherwise. */
const char *fm__dtype_foreign_name(uint32_t dtype);
/* Bytes of n elements (n a multiple of the block); false on overflow or remainder. */
bool fm__dtype_bytes(const fm__dtype_info *info, uint64_t n, uint64_t *bytes);

/* ---- checkpoint.c: the directory ---- */

typedef enum fm__kv_type { /* GGUF's numbers */
                           FM__KV_U8 = 0,
                           FM__KV_I8 = 1,
                           FM__KV_U16 = 2,
                           FM__KV_I16 = 3,
                           FM__KV_U32 = 4,
                           FM__KV_I32 = 5,
                           FM__KV_F32 = 6,
                           FM__KV_BOOL = 7,
                           FM__KV_STRING = 8,
                           FM__KV_ARRAY = 9,
                           FM__KV_U64 = 10,
                           FM__KV_I64 = 11,
                           FM__KV_F64 = 12,
} fm__kv_type;

typedef struct fm__kv {
    fm__str key;
    fm__kv_type type;
    fm__kv_type element; /* of an array */
    uint64_t count;      /* of an array; else 1 */
    const uint8_t
        *data; /* little-endian scalar(s), unaligned; array of strings: (u64 length, bytes)... */
    size_t data_bytes;
    fm__str string; /* of a string */
} fm__kv;

typedef struct fm__tensor_info {
    fm__str name;
    fm__dtype dtype;
    uint32_t n_dims;  /* 1..4 */
    uint64_t dims[4]; /* dims[0] varies fastest; unused ones are 1 */
    uint64_t bytes;
    const uint8_t *data; /* in the mapping; alignment not guaranteed */
    uint64_t file_offset;
    uint32_t file_index;
    /* For weights taken from a Hugging Face llama: rows are stored as two half rotations; a reader
       that wants GGUF's order takes row fm__tensor_source_row(). 0: stored order. */
    uint32_t rope_heads;
} fm__tensor_info;

typedef enum fm__checkpoint_kind {
    FM__CHECKPOINT_GGUF,
    FM__CHECKPOINT_SAFETENSORS
} fm__checkpoint_kind;

typedef struct fm__checkpoint {
    fm__checkpoint_kind kind;
    char path[1024]; /* as given, for messages */
    char format[32]; /* "gguf v3", "safetensors" */
    fm__kv *kvs;
    size_t n_kvs;
    fm__tensor_info *tensors;
    size_t n_tensors;
    fm__map kv_index, tensor_index;
    fm__mapping *files; /* the mappings owned here */
    size_t n_files;
    char *config; /* HF: text of config.json (NUL-terminated) */
    size_t config_bytes;
    char *tokenizer; /* HF: text of tokenizer.json; NULL if the folder has none */
    size_t tokenizer_bytes;
    char *tokenizer_config; /* HF: text of tokenizer_config.json; NULL if none */
    size_t tokenizer_config_bytes;
    char *generation_config; /* HF: text of generation_config.json; NULL if none */
    size_t generation_config_bytes;
    fm__arena arena; /* keys and values made by fm__checkpoint_add_* */
    struct fm__checkpoint
        *base; /* a view (fm__checkpoint_view) owns the checkpoint it borrows from */
} fm__checkpoint;

/* A .gguf file (the first of a split set) or an HF folder. Errors: IO, FORMAT, UNSUPPORTED, MEMORY.
 */
fm_status fm__checkpoint_open(fm__checkpoint **out, const char *path, fm_error *error);
/* A GGUF image in memory that outlives the checkpoint. */
fm_status fm__checkpoint_open_memory(fm__checkpoint **out, const void *image, size_t bytes,
                                     const char *name, fm_error *error);
void fm__checkpoint_close(fm__checkpoint **checkpoint);

const fm__kv *fm__checkpoint_kv(const fm__checkpoint *checkpoint, const char *key);
const fm__tensor_info *fm__checkpoint_find(const fm__checkpoint *checkpoint, const char *name);
/* Row of the stored tensor (rows = dims[1]) that holds row r of GGUF's order; r itself if
 * rope_heads is 0. */
uint64_t fm__tensor_source_row(const fm__tensor_info *tensor, uint64_t r);

/* Typed reads; a missing key gives FM_OK and leaves *out (the default) alone unless `required`,
   then FM_ERROR_FORMAT. A wrong type or a value that does not fit: FM_ERROR_FORMAT naming the key.
 */
fm_status fm__kv_read_u64(const fm__checkpoint *c, const char *key, bool required, uint64_t *out,
                          fm_error *e);
fm_status fm__kv_read_u32(const fm__checkpoint *c, const char *key, bool required, uint32_t *out,
                          fm_error *e);
fm_status fm__kv_read_f32(const fm__checkpoint *c, const char *key, bool required, float *out,
                          fm_error *e);
fm_status fm__kv_read_bool(const fm__checkpoint *c, const char *key, bool required, bool *out,
                           fm_error *e);
fm_status fm__kv_read_str(const fm__checkpoint *c, const char *key, bool required, fm__str *out,
                          fm_error *e);
/* Element i (< kv->count) of a numeric array as a number. */
double fm__kv_element(const fm__kv *kv, uint64_t i);
/* Walks an array of strings: *cursor starts at 0; false at the end. */
bool fm__kv_next_string(const fm__kv *kv, size_t *cursor, fm__str *out);
/* "u32", "array of string [32000]" */
void fm__kv_type_text(const fm__kv *kv, char *out, size_t capacity);
/* snprintf's contract. */
size_t fm__kv_value_text(const fm__kv *kv, char *out, size_t capacity);

/* A new checkpoint, kind GGUF, without keys or tensors, that takes over `base` (may be NULL) on
   success. Adding moves the arrays: pointers from fm__checkpoint_kv() and _find() are valid until
   the next add. A faulty or duplicate name is FM_ERROR_ARGUMENT. */
fm_status fm__checkpoint_view(fm__checkpoint **out, fm__checkpoint *base, fm_error *error);
fm_status fm__checkpoint_add_u32(fm__checkpoint *c, const char *key, uint32_t value, fm_error *e);
fm_status fm__checkpoint_add_f32(fm__checkpoint *c, const char *key, float value, fm_error *e);
fm_status fm__checkpoint_add_bool(fm__checkpoint *c, const char *key, bool value, fm_error *e);
fm_status fm__checkpoint_add_str(fm__checkpoint *c, const char *key, fm__str value, fm_error *e);
fm_status fm__checkpoint_add_strs(fm__checkpoint *c, const char *key, const fm__str *values,
                                  size_t n, fm_error *e);
fm_status fm__checkpoint_add_i32s(fm__checkpoint *c, const char *key, const int32_t *values,
                                  size_t n, fm_error *e);
fm_status fm__checkpoint_add_f32s(fm__checkpoint *c, const char *key, const float *values, size_t n,
                                  fm_error *e);
/* Copies a key/value (its name too), borrowing its bytes from another checkpoint that outlives this
   one. */
fm_status fm__checkpoint_add_kv(fm__checkpoint *c, const fm__kv *kv, fm_error *e);
/* info is copied (its name too); the data pointer is borrowed. */
fm_status fm__checkpoint_add_tensor(fm__checkpoint *c, const fm__tensor_info *info, fm_error *e);

/* ---- gguf_write.c ---- */

/* Produces the data of tensor `index` by calls of fm__writer_write() adding up to exactly
 * info->bytes. */
typedef fm_status fm__gguf_emit(void *user, size_t index, const fm__tensor_info *info,
                                fm__writer *writer, fm_error *error);
/* Writes keys and tensors (dtype, dims and bytes; data is asked for through emit) as GGUF v3,
   alignment 32. The keys general.alignment and split.* are left out: they describe the file that
   they came from. */
fm_status fm__gguf_write(const char *path, const fm__kv *kvs, size_t n_kvs,
                         const fm__tensor_info *tensors, size_t n_tensors, fm__gguf_emit *emit,
                         void *user, fm_error *error);

/* ---- inside the room ---- */

enum { FM__NAME_LIMIT = 65535 }; /* bytes of a key or tensor name, as GGUF allows for keys */

/* A little-endian number of 1..8 bytes, unaligned. */
static inline uint64_t fm__load_le(const uint8_t *data, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)data[i] << (8 * i);
    return value;
}
static inline void fm__store_le(uint8_t *data, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(value >> (8 * i));
}

/* kv.c: "u32"; NULL for a number that GGUF has no type for. */
const char *fm__kv_type_name(uint32_t type);
/* Bytes of a scalar; 0 for strings, arrays and unknown numbers. */
size_t fm__kv_scalar_bytes(uint32_t type);

/* text.c: text of a name for messages: invalid UTF-8 and control characters as \xHH, long ones cut
   with "...". Returns out. */
char *fm__format_escape(fm__str name, char *out, size_t capacity);
/* Fills *error with the place "path" or "path: noun name" (noun NULL: the path alone). */
fm_status fm__format_error(fm_error *error, fm_status status, const char *path, const char *noun,
                           fm__str name, const char *format, ...) FM__PRINTF(6, 7);
/* NULL, or why the name cannot be one: empty, too long, not UTF-8, a control character. */
const char *fm__name_fault(fm__str name);
/* A bounded text sink with snprintf's contract that cuts at whole characters only. */
typedef struct fm__sink {
    char *out;
    size_t capacity, at, total;
    bool full;
} fm__sink;
fm__sink fm__sink_of(char *out, size_t capacity);
void fm__sink_text(fm__sink *sink, const char *data, size_t bytes); /* valid UTF-8, kept whole */
/* Any bytes: invalid ones become U+FFFD; with quoted, in JSON's spelling. */
void fm__sink_string(fm__sink *sink, fm__str text, bool quoted);

/* json.c: an object from untrusted text that begins at `offset` of the file; the caller drops it
   with json_decref(). */
struct json_t;
fm_status fm__format_json(struct json_t **out, const char *text, size_t bytes, size_t offset,
                          const char *path, fm_error *error);

/* checkpoint.c */
fm_status fm__checkpoint_create(fm__checkpoint **out, fm__checkpoint_kind kind, const char *path,
                                fm_error *error);
/* As fm__checkpoint_add_*(), but a duplicate is FM_ERROR_FORMAT at `offset` of file `path`. The
   name is copied, the value's bytes are borrowed. */
fm_status fm__checkpoint_take_kv(fm__checkpoint *c, const fm__kv *kv, const char *path,
                                 uint64_t offset, fm_error *error);
fm_status fm__checkpoint_take_tensor(fm__checkpoint *c, const fm__tensor_info *info,
                                     const char *path, uint64_t offset, fm_error *error);
/* Adds a mapping that c owns from now on (on failure too). */
fm_status fm__checkpoint_take_file(fm__checkpoint *c, fm__mapping *mapping, fm_error *error);
/* tensor.c. Bytes of a tensor from its dtype and dims: zero or overflowing dims and rows that the
   block does not divide are refused. Fills info->bytes. */
fm_status fm__tensor_measure(fm__tensor_info *info, const char *path, fm_error *error);
/* The tensors from index first on, all of one file: refuses any two that share a byte. With `tight`
   also holes: they must cover [begin, end) (safetensors). */
fm_status fm__tensors_check_ranges(const fm__checkpoint *c, size_t first, const char *path,
                                   bool tight, uint64_t begin, uint64_t end, fm_error *error);

/* gguf.c: reads one image into c (its keys and tensors are appended). */
fm_status fm__gguf_parse(fm__checkpoint *c, const uint8_t *data, size_t bytes, uint32_t file_index,
                         const char *path, fm_error *error);
/* gguf_split.c: c holds the opened file; opens the other parts where split.count says so.
   in_memory: there are no other parts to open. */
fm_status fm__gguf_open_parts(fm__checkpoint *c, bool in_memory, fm_error *error);

/* safetensors.c: one image's header; tensors are appended. */
fm_status fm__safetensors_parse(fm__checkpoint *c, const uint8_t *data, size_t bytes,
                                uint32_t file_index, const char *path, fm_error *error);
/* safetensors_folder.c */
fm_status fm__safetensors_open_folder(fm__checkpoint **out, const char *path, fm_error *error);
/* path: a .safetensors file; opens its folder if the folder's model is made of it. */
fm_status fm__safetensors_open_file(fm__checkpoint **out, const char *path, fm_error *error);
/* The shards that an index names, in order of first appearance. */
typedef struct fm__shard_index {
    fm__str *shards;
    size_t n_shards;
    fm__str *tensors;
    uint32_t *shard_of; /* (n_tensors) */
    size_t n_tensors;
    fm__arena arena;
} fm__shard_index;
fm_status fm__shard_index_parse(fm__shard_index *out, const char *json, size_t bytes,
                                const char *path, fm_error *error);
void fm__shard_index_finish(fm__shard_index *index);

/* foreign.c: what a file that is not a model of ours looks like. */
bool fm__foreign_is_safetensors(const uint8_t *data, size_t bytes);
fm_status fm__foreign_error(const uint8_t *data, size_t bytes, const char *path, fm_error *error);
