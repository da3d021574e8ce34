/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c: the main program that makes a fuzz target an ordinary test.
 *
 * usage: replay_x FOLDER... : feeds every file of the folders to LLVMFuzzerTestOneInput, then, from
 * each file, some of its prefixes and copies with changed bytes, the same ones every time. Fails if
 * a folder holds no file. Each input lies at the end of its own allocation, so that a sanitizer
 * sees a read past it.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { PREFIXES = 48, CHANGES = 48, LARGEST = 1 << 26 };

static size_t inputs;

static void feed(const uint8_t *data, size_t bytes, size_t change_at, uint8_t change) {
    uint8_t *copy = malloc(bytes ? bytes : 1);
    if (!copy) {
        fprintf(stderr, "replay: out of memory\n");
        exit(1);
    }
    if (bytes)
        memcpy(copy, data, bytes);
    if (change_at < bytes)
        copy[change_at] ^= change;
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
    inputs++;
}

static void vary(const uint8_t *data, size_t bytes) {
    uint64_t state = 0x9e3779b97f4a7c15u;
    /* Short prefixes one by one (headers), then evenly spread ones. */
    for (size_t i = 0; i < PREFIXES && i < bytes; i++)
        feed(data, i, SIZE_MAX, 0);
    for (size_t i = 1; i < PREFIXES && bytes > PREFIXES; i++)
        feed(data, bytes * i / PREFIXES, SIZE_MAX, 0);
    for (size_t i = 0; i < CHANGES && bytes > 0; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        /* Half of the changes fall into the first 256 bytes, where the structure is. */
        size_t range = i % 2 && bytes > 256 ? 256 : bytes;
        static const uint8_t changes[] = {0x01, 0x80, 0xff, 0x10};
        feed(data, bytes, (size_t)(state >> 20) % range, changes[i % 4]);
    }
}

static bool replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0 || info.st_size > LARGEST) {
        fprintf(stderr, "replay: %s cannot be read\n", path);
        if (file)
            fclose(file);
        return false;
    }
    size_t bytes = (size_t)info.st_size;
    uint8_t *data = malloc(bytes ? bytes : 1);
    bool good = data && fread(data, 1, bytes, file) == bytes;
    fclose(file);
    if (good) {
        printf("%s\n", path);
        fflush(stdout); /* the last line names the file that crashed */
        feed(data, bytes, SIZE_MAX, 0);
        vary(data, bytes);
    } else {
        fprintf(stderr, "replay: %s cannot be read\n", path);
    }
    free(data);
    return good;
}

static bool replay_folder(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort), files = 0;
    bool good = true;
    for (int i = 0; i < count; i++) {
        char path[4096];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
            good = replay_file(path) && good;
            files++;
        }
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    if (files == 0)
        fprintf(stderr, "replay: %s holds no file\n", folder);
    return good && files > 0;
}

int main(int argc, char **argv) {
    bool good = argc > 1;
    if (!good)
        fprintf(stderr, "usage: %s FOLDER...\n", argv[0]);
    for (int i = 1; i < argc; i++)
        good = replay_folder(argv[i]) && good;
    printf("%zu inputs\n", inputs);
    return good ? 0 : 1;
}
