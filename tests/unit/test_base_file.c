/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_file.c: mappings, whole files, and a writer that leaves no half file. */
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

static char folder[64], path[128];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/fm_test_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    return fm__path_join(folder, "file", path, sizeof path) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails if a test left anything else */
}

static void put(const char *data, size_t bytes) {
    fm__writer *writer = NULL;
    fm_error error;
    assert_int_equal(fm__writer_open(&writer, path, &error), FM_OK);
    assert_int_equal(fm__writer_write(writer, data, bytes, &error), FM_OK);
    assert_int_equal(fm__writer_commit(&writer, &error), FM_OK);
    assert_null(writer);
}

/* Whether this file system has files without a name, which can be given one. */
static bool has_nameless(void) {
#ifdef O_TMPFILE
    char self[40], name[140];
    int fd = open(folder, O_TMPFILE | O_WRONLY, 0600);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    snprintf(name, sizeof name, "%s/named", folder);
    bool can = fd >= 0 && linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
    if (can)
        unlink(name);
    if (fd >= 0)
        close(fd);
    return can;
#else
    return false;
#endif
}

/* A process that is killed while it writes leaves nothing. */
static void test_writer_killed(void **state) {
    (void)state;
    if (!has_nameless()) {
        print_message("skip: this file system has no files without a name\n");
        skip();
    }
    pid_t child = fork();
    if (child == 0) {
        fm__writer *writer = NULL;
        static char block[1 << 20];
        if (fm__writer_open(&writer, path, NULL) == FM_OK &&
            fm__writer_write(writer, block, sizeof block, NULL) == FM_OK)
            raise(SIGKILL);
        _exit(1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(test_leftovers(path), 0);
}

static void test_writer(void **state) {
    (void)state;
    fm__writer *writer = NULL;
    fm_error error;
    static uint8_t want[3000000];
    for (size_t i = 0; i < sizeof want; i++)
        want[i] = (uint8_t)(i * 2654435761u >> 24);
    assert_int_equal(fm__writer_open(&writer, path, &error), FM_OK);
    /* pieces of every size around the buffer's */
    static const size_t pieces[] = {1, 0, 7, 262144, 3, 262143, 262145, 100000, 1000000};
    size_t offset = 0;
    for (size_t i = 0; offset < sizeof want; i++) {
        size_t n = fm__min_size(pieces[i % 9], sizeof want - offset);
        assert_int_equal(fm__writer_write(writer, want + offset, n, &error), FM_OK);
        offset += n;
        assert_int_equal(fm__writer_offset(writer), offset);
    }
    assert_true(test_leftovers(path) == !has_nameless() && !fm__path_exists(path));
    assert_int_equal(fm__writer_commit(&writer, &error), FM_OK);
    assert_null(writer);
    assert_true(test_leftovers(path) == 0 && fm__path_exists(path));
    fm__mapping mapping;
    assert_int_equal(fm__mapping_open(&mapping, path, &error), FM_OK);
    assert_int_equal(mapping.bytes, sizeof want);
    fm__mapping_will_need(&mapping, 5, 100);
    fm__mapping_will_need(&mapping, 5, SIZE_MAX);
    fm__mapping_done_with(&mapping, 0, SIZE_MAX);
    fm__mapping_done_with(&mapping, 4097, 10);
    fm__mapping_done_with(&mapping, SIZE_MAX, 10);
    assert_memory_equal(mapping.data, want,
                        sizeof want); /* still there: read again from the file */
    fm__mapping_close(&mapping);
    fm__mapping_close(&mapping);
    assert_null(mapping.data);
}

static void test_writer_abort(void **state) {
    (void)state;
    fm__writer *writer = NULL;
    put("old", 3);
    assert_int_equal(fm__writer_open(&writer, path, NULL), FM_OK);
    assert_int_equal(fm__writer_write(writer, "new and longer", 14, NULL), FM_OK);
    fm__writer_abort(&writer);
    assert_null(writer);
    fm__writer_abort(&writer);
    fm__writer_abort(NULL);
    assert_int_equal(test_leftovers(path), 0);
    char *data;
    size_t bytes;
    assert_int_equal(fm__file_read(path, 100, &data, &bytes, NULL), FM_OK);
    assert_int_equal(bytes, 3);
    assert_string_equal(data, "old");
    fm__free(data);
}

/* The disk that fills up: a file size limit is its stand-in. */
static void test_writer_disk_full(void **state) {
    (void)state;
    static const char block[1000000];
    struct rlimit before, small;
    fm__writer *writer = NULL;
    fm_error error;
    put("old", 3);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 500000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(fm__writer_open(&writer, path, &error), FM_OK);
    fm_status written = fm__writer_write(writer, block, sizeof block, &error);
    fm_status again = fm__writer_write(writer, "x", 1, NULL);
    fm_status committed = fm__writer_commit(&writer, NULL);
    /* a buffered write fails only at the commit */
    fm__writer *second = NULL;
    fm_status late = FM_OK;
    small.rlim_cur = 5;
    setrlimit(RLIMIT_FSIZE, &small);
    if (fm__writer_open(&second, path, NULL) == FM_OK &&
        fm__writer_write(second, block, 100, NULL) == FM_OK)
        late = fm__writer_commit(&second, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(written, FM_ERROR_IO);
    assert_non_null(strstr(error.place, ".tmp"));
    assert_int_equal(again, FM_ERROR_IO);
    assert_int_equal(committed, FM_ERROR_IO);
    assert_int_equal(late, FM_ERROR_IO);
    assert_null(writer);
    assert_null(second);
    assert_int_equal(test_leftovers(path), 0);
    char *data;
    size_t bytes;
    assert_int_equal(fm__file_read(path, 100, &data, &bytes, NULL), FM_OK);
    assert_string_equal(data, "old");
    fm__free(data);
}

static void test_writer_no_folder(void **state) {
    (void)state;
    fm__writer *writer = NULL;
    fm_error error;
    assert_int_equal(fm__writer_open(&writer, "/nonexistent/x", &error), FM_ERROR_IO);
    assert_null(writer);
    assert_string_equal(error.place, "/nonexistent/x"); /* not the temporary name */
    fm__alloc_fail_after(1);
    assert_int_equal(fm__writer_open(&writer, path, &error), FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
    assert_int_equal(test_leftovers(path), 0);
}

static char *content(const char *file) {
    char *data = NULL;
    size_t bytes;
    assert_int_equal(fm__file_read(file, 100, &data, &bytes, NULL), FM_OK);
    return data;
}

/* What is there already is kept: a file that has a temporary's name, a link as a link, and all that
   is not a regular file. */
static void test_writer_target(void **state) {
    (void)state;
    fm__writer *writer = NULL;
    fm_error error;
    char bystander[140], link_path[140], fifo[140];
    struct stat info;
    snprintf(bystander, sizeof bystander, "%s.tmp", path);
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    put("old", 3);
    assert_int_equal(symlink(path, bystander), 0);
    assert_int_equal(symlink("file", link_path), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);

    assert_int_equal(fm__writer_open(&writer, link_path, &error), FM_OK);
    assert_int_equal(fm__writer_write(writer, "new", 3, &error), FM_OK);
    char *data = content(path);
    assert_string_equal(data, "old"); /* not truncated through the link with a temporary's name */
    fm__free(data);
    assert_int_equal(fm__writer_commit(&writer, &error), FM_OK);
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    data = content(path);
    assert_string_equal(data, "new");
    fm__free(data);

    assert_int_equal(fm__writer_open(&writer, fifo, &error), FM_ERROR_IO);
    assert_non_null(strstr(error.message, "regular"));
    assert_int_equal(fm__writer_open(&writer, folder, &error), FM_ERROR_IO);
    assert_int_equal(fm__writer_open(&writer, "/dev/null", &error), FM_ERROR_IO);
    assert_null(writer);
    unlink(fifo);
    unlink(link_path);
    unlink(bystander);
}

static void test_read(void **state) {
    (void)state;
    char *data = NULL;
    size_t bytes = 9;
    fm_error error;
    fm__mapping mapping;
    put("", 0);
    assert_int_equal(fm__file_read(path, 0, &data, &bytes, &error), FM_OK);
    assert_int_equal(bytes, 0);
    assert_string_equal(data, "");
    fm__free(data);
    assert_int_equal(fm__mapping_open(&mapping, path, &error), FM_OK);
    assert_true(mapping.data == NULL && mapping.bytes == 0);
    fm__mapping_close(&mapping);
    put("a\0c", 3);
    assert_int_equal(fm__file_read(path, 3, &data, &bytes, &error), FM_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(data, "a\0c\0", 4);
    fm__free(data);
    assert_int_equal(fm__file_read(path, 2, &data, &bytes, &error), FM_ERROR_LIMIT);
    assert_string_equal(error.place, path);
    /* no size beforehand, and endless: the limit still holds */
    assert_int_equal(fm__file_read("/proc/self/status", 1 << 20, &data, &bytes, &error), FM_OK);
    assert_int_equal(strncmp(data, "Name:", 5), 0);
    fm__free(data);
    assert_int_equal(fm__file_read("/dev/zero", 1 << 20, &data, &bytes, &error), FM_ERROR_LIMIT);
    /* Nobody writes into it: whoever opened it to read would wait. */
    char pipe_path[160];
    fm__mapping piped;
    snprintf(pipe_path, sizeof pipe_path, "%s/silent", folder);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(fm__file_read(pipe_path, 1 << 20, &data, &bytes, &error), FM_ERROR_IO);
    assert_non_null(strstr(error.message, "is a pipe"));
    assert_int_equal(fm__mapping_open(&piped, pipe_path, &error), FM_ERROR_IO);
    assert_true(!fm__path_is_regular(pipe_path) && !fm__path_is_regular(folder));
    unlink(pipe_path);
    assert_int_equal(fm__file_read("/nonexistent", 9, &data, &bytes, &error), FM_ERROR_IO);
    assert_int_equal(fm__file_read(folder, 9, &data, &bytes, &error), FM_ERROR_IO);
    assert_int_equal(fm__mapping_open(&mapping, folder, &error), FM_ERROR_IO);
    assert_non_null(strstr(error.message, "directory"));
    assert_int_equal(fm__mapping_open(&mapping, "/dev/zero", &error), FM_ERROR_IO);
    assert_int_equal(fm__mapping_open(&mapping, "", &error), FM_ERROR_IO);
    for (uint64_t n = 1; n <= 1; n++) {
        fm__alloc_fail_after(n);
        assert_int_equal(fm__file_read(path, 9, &data, &bytes, &error), FM_ERROR_MEMORY);
    }
    fm__alloc_fail_after(2); /* a growing read's second block */
    assert_int_equal(fm__file_read("/dev/zero", 1 << 20, &data, &bytes, &error), FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
}

static void test_paths(void **state) {
    (void)state;
    char out[8];
    assert_true(fm__path_is_directory(folder) && !fm__path_is_directory("/dev/null"));
    assert_true(!fm__path_is_directory("/nonexistent") && fm__path_exists("/dev/null"));
    assert_true(fm__path_join("a", "b", out, sizeof out));
    assert_string_equal(out, "a/b");
    assert_true(fm__path_join("a/", "b", out, sizeof out));
    assert_string_equal(out, "a/b");
    assert_true(fm__path_join("", "b", out, sizeof out));
    assert_string_equal(out, "b");
    assert_true(fm__path_join("abc", "efg", out, sizeof out));
    assert_false(fm__path_join("abcd", "efg", out, sizeof out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_writer_killed),
        cmocka_unit_test(test_writer_abort),
        cmocka_unit_test(test_writer_disk_full),
        cmocka_unit_test(test_writer_no_folder),
        cmocka_unit_test(test_writer_target),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
