/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/gguf_split.c: the other files of a GGUF that was split into name-00001-of-000NN.gguf.
 *
 * Owns: nothing; mappings and tensors go into the checkpoint. Never does: guess a name that the
 * first part's name does not give. Called from: the loading thread.
 *
 * Each part is a GGUF. split.count is the number of parts, split.no the part's number from 0 (file
 * names count from 1), split.tensors.count the tensors of all parts. Keys of the later parts other
 * than these are ignored: the first part holds the model's.
 */
#include <string.h>

#include "format/format.h"

enum { PART_LIMIT = 99999, SUFFIX_BYTES = 20 /* -00001-of-00003.gguf */ };

static const fm__str none = {"", 0};

typedef struct split {
    uint64_t no, count, tensors; /* tensors: 0 where the file does not say */
} split;

static fm_status read_split(const fm__checkpoint *c, split *out, fm_error *error) {
    *out = (split){.count = 1};
    fm_status status = fm__kv_read_u64(c, "split.count", false, &out->count, error);
    if (status == FM_OK)
        status = fm__kv_read_u64(c, "split.no", false, &out->no, error);
    if (status == FM_OK)
        status = fm__kv_read_u64(c, "split.tensors.count", false, &out->tensors, error);
    if (status != FM_OK)
        return status;
    if (out->count == 0) /* some writers put 0 into a file that is whole */
        out->count = 1;
    if (out->count > PART_LIMIT || out->no >= out->count)
        return fm__format_error(error, FM_ERROR_FORMAT, c->path, NULL, none,
                                "split.no %llu of split.count %llu is not a part",
                                (unsigned long long)out->no, (unsigned long long)out->count);
    return FM_OK;
}

static bool five_digits(const char *at, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (at[i] < '0' || at[i] > '9')
            return false;
        *out = *out * 10 + (uint64_t)(at[i] - '0');
    }
    return true;
}

/* Splits "dir/name-00002-of-00003.gguf" into the bytes before the suffix and its two numbers. */
static bool parse_name(const char *path, size_t *stem, uint64_t *part, uint64_t *of) {
    size_t bytes = strlen(path);
    if (bytes < SUFFIX_BYTES)
        return false;
    const char *suffix = path + bytes - SUFFIX_BYTES;
    *stem = bytes - SUFFIX_BYTES;
    return suffix[0] == '-' && five_digits(suffix + 1, part) &&
           memcmp(suffix + 6, "-of-", 4) == 0 && five_digits(suffix + 10, of) &&
           memcmp(suffix + 15, ".gguf", 5) == 0;
}

/* stem's bytes of c->path and the suffix of part 1..of; the length is that of c->path itself. */
static void part_path(const fm__checkpoint *c, size_t stem, uint64_t part, uint64_t of,
                      char out[1024]) {
    memcpy(out, c->path, stem);
    snprintf(out + stem, 1024 - stem, "-%05u-of-%05u.gguf", (unsigned)part, (unsigned)of);
}

/* The file's name without its folder, fit for a message. */
static const char *shown_name(const char *path, char *out, size_t capacity) {
    const char *slash = strrchr(path, '/');
    return fm__format_escape(fm__str_of(slash ? slash + 1 : path), out, capacity);
}

/* Reads one further part on its own and hands its tensors and mapping to c. */
static fm_status take_part(fm__checkpoint *c, const char *path, uint32_t index, uint64_t count,
                           fm_error *error) {
    fm__mapping mapping = {0};
    fm__checkpoint *part = NULL;
    split said;
    fm_status status = fm__mapping_open(&mapping, path, error);
    if (status != FM_OK)
        return status;
    status = fm__checkpoint_create(&part, FM__CHECKPOINT_GGUF, path, error);
    if (status != FM_OK)
        goto close_mapping;
    status = fm__gguf_parse(part, mapping.data, mapping.bytes, index, path, error);
    if (status != FM_OK)
        goto close_part;
    status = read_split(part, &said, error);
    if (status != FM_OK)
        goto close_part;
    if (said.no != index || said.count != count) {
        status = fm__format_error(
            error, FM_ERROR_FORMAT, path, NULL, none,
            "holds split.no %llu of split.count %llu, its name and the first part say %u of %llu",
            (unsigned long long)said.no, (unsigned long long)said.count, index,
            (unsigned long long)count);
        goto close_part;
    }
    for (size_t i = 0; status == FM_OK && i < part->n_tensors; i++)
        status = fm__checkpoint_take_tensor(c, &part->tensors[i], path,
                                            part->tensors[i].file_offset, error);
    if (status == FM_OK)
        status = fm__checkpoint_take_file(c, &mapping, error);
close_part:
    fm__checkpoint_close(&part);
close_mapping:
    fm__mapping_close(&mapping);
    return status;
}

/* The name must fit the keys before it may tell where the other parts are. */
static fm_status check_first(const fm__checkpoint *c, const split *said, size_t *stem,
                             fm_error *error) {
    uint64_t part = 0, of = 0;
    char other[1024], shown[200];
    if (!parse_name(c->path, stem, &part, &of) || of != said->count)
        return fm__format_error(
            error, FM_ERROR_FORMAT, c->path, NULL, none,
            "is part %llu of %llu, so its name should end in -%05u-of-%05u.gguf",
            (unsigned long long)said->no + 1, (unsigned long long)said->count,
            (unsigned)said->no + 1, (unsigned)said->count);
    part_path(c, *stem, 1, said->count, other);
    shown_name(other, shown, sizeof shown);
    if (part != said->no + 1)
        return fm__format_error(error, FM_ERROR_FORMAT, c->path, NULL, none,
                                "is named part %llu, but its split.no %llu makes it part %llu",
                                (unsigned long long)part, (unsigned long long)said->no,
                                (unsigned long long)said->no + 1);
    if (said->no == 0)
        return FM_OK;
    if (!fm__path_exists(other))
        return fm__format_error(error, FM_ERROR_IO, c->path, NULL, none,
                                "is part %llu of %llu; the first, %s, is missing",
                                (unsigned long long)part, (unsigned long long)of, shown);
    return fm__format_error(error, FM_ERROR_FORMAT, c->path, NULL, none,
                            "is part %llu of %llu; open the first, %s", (unsigned long long)part,
                            (unsigned long long)of, shown);
}

fm_status fm__gguf_open_parts(fm__checkpoint *c, bool in_memory, fm_error *error) {
    split said;
    size_t stem = 0;
    char path[1024], shown[200];
    fm_status status = read_split(c, &said, error);
    if (status != FM_OK || said.count == 1)
        return status;
    if (in_memory)
        return fm__format_error(error, FM_ERROR_UNSUPPORTED, c->path, NULL, none,
                                "is part %llu of %llu; an image in memory must be whole",
                                (unsigned long long)said.no + 1, (unsigned long long)said.count);
    status = check_first(c, &said, &stem, error);
    for (uint64_t i = 1; status == FM_OK && i < said.count; i++) {
        part_path(c, stem, i + 1, said.count, path);
        if (!fm__path_exists(path))
            return fm__format_error(error, FM_ERROR_IO, c->path, NULL, none,
                                    "part %llu of %llu is missing: %s", (unsigned long long)i + 1,
                                    (unsigned long long)said.count,
                                    shown_name(path, shown, sizeof shown));
        status = take_part(c, path, (uint32_t)i, said.count, error);
    }
    if (status == FM_OK && said.tensors != 0 && said.tensors != c->n_tensors)
        status = fm__format_error(error, FM_ERROR_FORMAT, c->path, NULL, none,
                                  "split.tensors.count is %llu, the parts hold %zu",
                                  (unsigned long long)said.tensors, c->n_tensors);
    return status;
}
