/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/bench_load.c: what reading a model's file costs, to set beside a load.
 *
 * Owns: memory and descriptor of one reading. Never does: load. Called from: the measuring thread;
 * reading fans out over fm__parallel_for().
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/engine.h"
#include "fusionml/lab.h"

enum { PIECE = 1 << 20, SHARE = 64 << 20, PAGE = 4096 };

typedef struct reading {
    fm_lab_reading how;
    int file;
    fm__mapping mapping;
    uint8_t *fresh;      /* (mapping.bytes) */
    _Atomic int failed;  /* errno */
    _Atomic uint8_t sum; /* so that the mapping's bytes are looked at */
} reading;

static double ms_of(struct timeval t) {
    return (double)t.tv_sec * 1e3 + (double)t.tv_usec / 1e3;
}

fm_lab_cost fm_lab_cost_now(void) {
    struct rusage usage;
    memset(&usage, 0, sizeof usage);
    getrusage(RUSAGE_SELF, &usage);
    return (fm_lab_cost){(double)fm__now_ns() / 1e6, ms_of(usage.ru_utime), ms_of(usage.ru_stime),
                         (uint64_t)usage.ru_minflt + (uint64_t)usage.ru_majflt};
}

typedef struct warming {
    uint8_t *memory;
    size_t bytes;
} warming;

static void warm_share(void *argument, size_t index) {
    const warming *w = argument;
    size_t begin = index * SHARE, end = fm__min_size(begin + SHARE, w->bytes);
    for (size_t at = begin; at < end; at += PAGE)
        *(volatile uint8_t *)(w->memory + at) = 1;
}

fm_status fm_lab_warm_memory(uint64_t bytes, uint32_t threads, fm_error *error) {
    warming w = {.memory = fm__pages_alloc((size_t)bytes), .bytes = (size_t)bytes};
    if (!w.memory)
        return fm__error_memory(error, "memory to warm", (size_t)bytes);
    fm_status status =
        fm__parallel_for(threads, (w.bytes + SHARE - 1) / SHARE, warm_share, &w, error);
    fm__pages_free(w.memory, w.bytes);
    return status;
}

static bool read_all(int file, uint8_t *to, size_t bytes, size_t offset) {
    while (bytes > 0) {
        ssize_t n = pread(file, to, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno; /* it became shorter */
            return false;
        }
        to += n;
        offset += (size_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

static void touch(reading *r, size_t offset, size_t bytes) {
    uint8_t sum = 0;
    for (size_t i = 0; i < bytes; i += PAGE)
        sum = (uint8_t)(sum + r->mapping.data[offset + i]);
    atomic_fetch_add_explicit(&r->sum, sum, memory_order_relaxed);
}

/* One share of the file: with a buffer used again, a thread needs it for many pieces. */
static void read_share(void *argument, size_t index) {
    reading *r = argument;
    size_t begin = index * SHARE, end = fm__min_size(begin + SHARE, r->mapping.bytes);
    uint8_t *again = r->how == FM_LAB_READ_AGAIN ? fm__alloc(PIECE) : NULL;
    if (r->how == FM_LAB_READ_AGAIN && !again) {
        atomic_store(&r->failed, ENOMEM);
        return;
    }
    for (size_t at = begin; at < end; at += PIECE) {
        size_t bytes = fm__min_size(PIECE, end - at);
        if (r->how == FM_LAB_READ_MAPPED)
            touch(r, at, bytes);
        else if (!read_all(r->file, again ? again : r->fresh + at, bytes, at))
            atomic_store(&r->failed, errno);
    }
    fm__free(again);
}

static fm_status run(reading *r, const char *path, uint32_t threads, fm_error *error) {
    size_t bytes = r->mapping.bytes;
    if (r->how == FM_LAB_READ_FRESH) {
        r->fresh = fm__pages_alloc(bytes);
        if (!r->fresh)
            return fm__error_memory(error, path, bytes);
    }
    fm_status status = fm__parallel_for(threads, (bytes + SHARE - 1) / SHARE, read_share, r, error);
    int failed = atomic_load(&r->failed);
    if (status == FM_OK && failed)
        status = fm__error(error, FM_ERROR_IO, path, "cannot be read: %s", strerror(failed));
    return status;
}

/* A model of one file, whose path is the model's. */
static fm_status check_path(const char *path, fm_error *error) {
    fm__checkpoint *checkpoint = NULL;
    fm_status status = fm__checkpoint_open(&checkpoint, path, error);
    if (status == FM_OK && (checkpoint->n_files != 1 || fm__path_is_directory(path)))
        status =
            fm__error(error, FM_ERROR_UNSUPPORTED, path,
                      "is %s: reading one file is measured; `fusionml convert` makes one .gguf "
                      "file of it",
                      fm__path_is_directory(path) ? "a folder" : "of several files");
    fm__checkpoint_close(&checkpoint);
    return status;
}

fm_status fm_lab_read(const char *path, fm_lab_reading how, uint32_t threads, uint64_t *bytes,
                      fm_lab_cost *out, fm_error *error) {
    if (!path || !bytes || !out || (uint32_t)how >= FM_LAB_READING_COUNT)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_lab_read", "no such reading");
    reading r = {.how = how};
    fm_status status = check_path(path, error);
    if (status == FM_OK)
        status = fm__mapping_open(&r.mapping, path, error);
    if (status != FM_OK)
        return status;
    r.file = open(path, O_RDONLY | O_CLOEXEC);
    if (r.file < 0) {
        status = fm__error(error, FM_ERROR_IO, path, "cannot be opened: %s", strerror(errno));
        goto close_mapping;
    }
    *bytes = r.mapping.bytes;
    fm_lab_cost before = fm_lab_cost_now();
    status = run(&r, path, threads, error);
    fm_lab_cost after = fm_lab_cost_now();
    *out = (fm_lab_cost){after.ms - before.ms, after.user_ms - before.user_ms,
                         after.system_ms - before.system_ms, after.faults - before.faults};
    fm__pages_free(r.fresh, r.mapping.bytes);
    close(r.file);
close_mapping:
    fm__mapping_close(&r.mapping);
    return status;
}
