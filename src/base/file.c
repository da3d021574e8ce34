/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/file.c: mappings, whole files, paths and files that appear only when complete.
 *
 * Owns: descriptors and mappings until they are closed. Never does: interpreting a byte. Called
 * from: every thread; one writer from one thread at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

static fm_status io_error(fm_error *error, const char *path, const char *what, int code) {
    return fm__error(error, code == ENOMEM ? FM_ERROR_MEMORY : FM_ERROR_IO, path, "%s: %s", what,
                     strerror(code));
}

/* Opens for reading; *bytes is the size, or 0 for what is no regular file. */
static fm_status open_for_reading(const char *path, int *fd_out, struct stat *stat_out,
                                  fm_error *error) {
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* of a pipe it would wait */
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return io_error(error, path, "cannot be opened", errno);
    if (fstat(fd, stat_out) != 0) {
        int code = errno;
        close(fd);
        return io_error(error, path, "cannot be examined", code);
    }
    if (S_ISDIR(stat_out->st_mode)) {
        close(fd);
        return fm__error(error, FM_ERROR_IO, path, "is a directory, not a file");
    }
    if (S_ISFIFO(stat_out->st_mode) || S_ISSOCK(stat_out->st_mode)) {
        close(fd);
        return fm__error(error, FM_ERROR_IO, path, "is a pipe, not a file");
    }
    *fd_out = fd;
    return FM_OK;
}

/* ---- mappings ---- */

fm_status fm__mapping_open(fm__mapping *out, const char *path, fm_error *error) {
    int fd;
    struct stat info;
    *out = (fm__mapping){0};
    fm_status status = open_for_reading(path, &fd, &info, error);
    if (status != FM_OK)
        return status;
    if (!S_ISREG(info.st_mode)) {
        status = fm__error(error, FM_ERROR_IO, path, "is not a regular file");
    } else if ((uint64_t)info.st_size > PTRDIFF_MAX) {
        status = fm__error(error, FM_ERROR_LIMIT, path, "is too large to be mapped");
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = io_error(error, path, "cannot be mapped", errno);
        else
            *out = (fm__mapping){data, (size_t)info.st_size, info.st_dev, info.st_ino};
    }
    close(fd);
    return status;
}

bool fm__mapping_is_of(const fm__mapping *mapping, const char *path) {
    struct stat info;
    return mapping->data && stat(path, &info) == 0 && info.st_dev == mapping->device &&
           info.st_ino == mapping->inode;
}

void fm__mapping_close(fm__mapping *mapping) {
    if (mapping && mapping->data)
        munmap((void *)(uintptr_t)mapping->data, mapping->bytes);
    if (mapping)
        *mapping = (fm__mapping){0};
}

/* outward: every page that the range touches; else: only the pages wholly inside it. */
static void advise(const fm__mapping *mapping, size_t offset, size_t bytes, bool outward,
                   int advice) {
    if (!mapping->data || offset >= mapping->bytes)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t end = offset + fm__min_size(bytes, mapping->bytes - offset);
    size_t first = outward ? offset / page * page : fm__round_up(offset, page);
    if (!outward && end < mapping->bytes)
        end = end / page * page;
    if (first < end)
        madvise((void *)(uintptr_t)(mapping->data + first), end - first, advice);
}

void fm__mapping_will_need(const fm__mapping *mapping, size_t offset, size_t bytes) {
    advise(mapping, offset, bytes, true, MADV_WILLNEED);
}

void fm__mapping_done_with(const fm__mapping *mapping, size_t offset, size_t bytes) {
    advise(mapping, offset, bytes, false, MADV_DONTNEED);
}

/* ---- whole files ---- */

fm_status fm__file_read(const char *path, size_t limit, char **data, size_t *bytes,
                        fm_error *error) {
    int fd;
    struct stat info;
    fm_status status = open_for_reading(path, &fd, &info, error);
    if (status != FM_OK)
        return status;
    char *memory = NULL;
    size_t used = 0, capacity;
    /* A device or /proc has no size beforehand: then it grows. One byte more shows the end. */
    bool sized = S_ISREG(info.st_mode) && info.st_size > 0;
    if (sized && (uint64_t)info.st_size > limit)
        goto too_large;
    capacity = sized ? (size_t)info.st_size + 2 : 65536;
    memory = fm__alloc(capacity);
    if (!memory)
        goto no_memory;
    for (;;) {
        if (capacity - used < 2) {
            if (!fm__mul_size(capacity, 2, &capacity))
                goto no_memory;
            char *larger = fm__realloc(memory, capacity);
            if (!larger)
                goto no_memory;
            memory = larger;
        }
        ssize_t n = read(fd, memory + used, capacity - used - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = io_error(error, path, "cannot be read", errno);
            goto fail;
        }
        if (n == 0)
            break;
        used += (size_t)n;
        if (used > limit)
            goto too_large;
    }
    close(fd);
    memory[used] = 0;
    *data = memory;
    *bytes = used;
    return FM_OK;

too_large:
    status = fm__error(error, FM_ERROR_LIMIT, path, "is larger than the limit of %zu bytes", limit);
    goto fail;
no_memory:
    status = fm__error_memory(error, path, capacity);
fail:
    fm__free(memory);
    close(fd);
    return status;
}

bool fm__path_is_regular(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool fm__path_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool fm__path_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool fm__path_join(const char *directory, const char *name, char *out, size_t capacity) {
    size_t bytes = strlen(directory);
    bool slash = bytes > 0 && directory[bytes - 1] != '/';
    int length = snprintf(out, capacity, "%s%s%s", directory, slash ? "/" : "", name);
    return length >= 0 && (size_t)length < capacity;
}

/* ---- the writer ---- */

#define WRITER_BYTES ((size_t)1 << 18)
#define TEMPORARY_END ".12345678.tmp"

struct fm__writer {
    int fd;
    char *path, *temporary; /* behind the struct, in the same allocation */
    bool nameless;          /* there is no file `temporary` yet */
    uint64_t offset;        /* bytes taken so far, buffered ones included */
    size_t used;            /* of buffer */
    fm_status failed;       /* sticky: a file with a hole is never committed */
    char buffer[WRITER_BYTES];
};

/* The file that `path` means: a link is followed, so that it stays a link; what is there must be a
   regular file, since it will be replaced. *resolved is malloc'ed, or NULL where nothing is there.
 */
static fm_status writer_target(const char *path, char **resolved, fm_error *error) {
    struct stat info;
    *resolved = NULL;
    if (stat(path, &info) != 0)
        return FM_OK;
    if (!S_ISREG(info.st_mode))
        return fm__error(error, FM_ERROR_IO, path, "is there and is not a regular file");
    *resolved = realpath(path, NULL);
    return *resolved ? FM_OK : io_error(error, path, "cannot be found", errno);
}

static void choose_temporary(fm__writer *writer) {
    size_t capacity = strlen(writer->path) + sizeof TEMPORARY_END;
    uint32_t number;
    if (getentropy(&number, sizeof number) != 0)
        number = (uint32_t)fm__now_ns() ^ (uint32_t)getpid();
    snprintf(writer->temporary, capacity, "%s.%08x.tmp", writer->path, number);
}

/* Gives a file of create_nameless() the name `temporary`, which nobody else has. */
static bool name_temporary(fm__writer *writer, int fd) {
    char self[40];
    bool named = false;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    for (int tries = 0; tries < 16 && !named; tries++) {
        choose_temporary(writer);
        named = linkat(AT_FDCWD, self, AT_FDCWD, writer->temporary, AT_SYMLINK_FOLLOW) == 0;
        if (!named && errno != EEXIST)
            break;
    }
    return named;
}

#ifdef O_TMPFILE
static int open_nameless(fm__writer *writer) {
    const char *slash = strrchr(writer->path, '/');
    size_t bytes = slash ? (size_t)(slash - writer->path) + 1 : 1;
    char *directory = writer->temporary; /* has no name in it yet, or is given one later */
    memcpy(directory, slash ? writer->path : ".", bytes);
    directory[bytes] = '\0';
    return open(directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}
#endif

/* A file that goes with the process, however that ends. -1: this system has none, or could not name
   it when it is complete. */
static int create_nameless(fm__writer *writer) {
    int fd = -1;
#ifdef O_TMPFILE
    /* one to see whether it can be named, since what lost its name gets no other; one to keep */
    int trial = open_nameless(writer);
    if (trial >= 0 && name_temporary(writer, trial)) {
        unlink(writer->temporary);
        fd = open_nameless(writer);
    }
    if (trial >= 0)
        close(trial);
    choose_temporary(writer); /* for messages */
#endif
    writer->nameless = fd >= 0;
    return fd;
}

/* A new file of a name that nobody else has: never opens what is already there. */
static int create_temporary(fm__writer *writer) {
    int fd = -1;
    for (int tries = 0; tries < 16; tries++) {
        choose_temporary(writer);
        fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    return fd;
}

fm_status fm__writer_open(fm__writer **out, const char *path, fm_error *error) {
    char *resolved;
    fm_status status = writer_target(path, &resolved, error);
    if (status != FM_OK)
        return status;
    const char *target = resolved ? resolved : path;
    size_t length = strlen(target), suffix = sizeof TEMPORARY_END;
    size_t need = sizeof(fm__writer) + length + 1 + length + suffix;
    fm__writer *writer = fm__alloc(need);
    if (!writer) {
        status = fm__error_memory(error, path, need);
        goto done;
    }
    writer->path = (char *)writer + sizeof *writer;
    writer->temporary = writer->path + length + 1;
    writer->offset = 0;
    writer->used = 0;
    writer->failed = FM_OK;
    memcpy(writer->path, target, length + 1);
    writer->fd = create_nameless(writer);
    if (writer->fd < 0)
        writer->fd = create_temporary(writer);
    if (writer->fd < 0) {
        status =
            io_error(error, path, "cannot be created", errno); /* the name that was asked for */
        fm__free(writer);
        goto done;
    }
    *out = writer;
done:
    free(resolved);
    return status;
}

static fm_status write_through(fm__writer *writer, const char *data, size_t bytes,
                               fm_error *error) {
    while (bytes > 0) {
        ssize_t n = write(writer->fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            writer->failed =
                io_error(error, writer->temporary, "cannot be written", n < 0 ? errno : EIO);
            return writer->failed;
        }
        data += n;
        bytes -= (size_t)n;
    }
    return FM_OK;
}

static fm_status flush(fm__writer *writer, fm_error *error) {
    fm_status status = write_through(writer, writer->buffer, writer->used, error);
    writer->used = 0;
    return status;
}

fm_status fm__writer_write(fm__writer *writer, const void *data, size_t bytes, fm_error *error) {
    if (writer->failed != FM_OK)
        return fm__error(error, writer->failed, writer->temporary, "an earlier write failed");
    if (bytes > WRITER_BYTES - writer->used) {
        fm_status status = flush(writer, error);
        if (status == FM_OK && bytes >= WRITER_BYTES) {
            status = write_through(writer, data, bytes, error);
            if (status == FM_OK)
                writer->offset += bytes;
            return status;
        }
        if (status != FM_OK)
            return status;
    }
    if (bytes)
        memcpy(writer->buffer + writer->used, data, bytes);
    writer->used += bytes;
    writer->offset += bytes;
    return FM_OK;
}

uint64_t fm__writer_offset(const fm__writer *writer) {
    return writer->offset;
}

fm_status fm__writer_commit(fm__writer **writer, fm_error *error) {
    fm__writer *w = *writer;
    fm_status status = FM_OK;
    if (w->failed != FM_OK)
        status = fm__error(error, w->failed, w->temporary, "an earlier write failed");
    if (status == FM_OK)
        status = flush(w, error);
    /* EINVAL: what cannot be synced, such as a pipe, needs none */
    if (status == FM_OK && fsync(w->fd) != 0 && errno != EINVAL)
        status = io_error(error, w->temporary, "cannot be written to the disk", errno);
    if (status == FM_OK && w->nameless) {
        w->nameless = !name_temporary(w, w->fd);
        if (w->nameless)
            status = io_error(error, w->temporary, "cannot be created", errno);
    }
    if (status == FM_OK) {
        int fd = w->fd;
        w->fd = -1;
        if (close(fd) != 0)
            status = io_error(error, w->temporary, "cannot be closed", errno);
    }
    if (status == FM_OK && rename(w->temporary, w->path) != 0)
        status = io_error(error, w->path, "cannot be put in place", errno);
    if (status != FM_OK) {
        fm__writer_abort(writer);
        return status;
    }
    fm__free(w);
    *writer = NULL;
    return FM_OK;
}

void fm__writer_abort(fm__writer **writer) {
    if (!writer || !*writer)
        return;
    if ((*writer)->fd >= 0)
        close((*writer)->fd);
    if (!(*writer)->nameless)
        unlink((*writer)->temporary);
    fm__free(*writer);
    *writer = NULL;
}
