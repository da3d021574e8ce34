/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved calibrations: what is saved is loaded; every other byte, key, version and day is refused;
 * the nearest bucket is found; what several processes save at the same time is all there.
 */
#include <fcntl.h>
#include <math.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec/store.h"
#include "fixture.h"

#define NOW UINT64_C(1732934400)

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/fm_store_XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const fm__store_key KEY = {.cpu = "AMD EPYC 9B45",
                                  .rung = "avx512",
                                  .threads = 16,
                                  .units = "NVIDIA H200 x0 discrete; host x16",
                                  .driver = "NVIDIA 550.90.7",
                                  .power = "none",
                                  .build = "0.1.0 0123abcd",
                                  .model_hash = UINT64_C(0xfedcba9876543210),
                                  .model_type = "q4_k"};

static fm__store_entry product(uint32_t rows, double share) {
    return (fm__store_entry){
        .shape = {.product = {.kind = FM__OP_LINEAR_GLU,
                              .n = 18944,
                              .k = 3584,
                              .types = {fm__type_get(FM__Q4_K), fm__type_get(FM__Q6_K)}},
                  .rows = rows,
                  .axis = FM__AXIS_CHANNELS,
                  .deps = FM__DEPS_EVENT,
                  .weights = FM__RESIDENCY_STREAMED},
        .share = share,
        .gain = 1.234567,
        .ns_of_work = {0.125, 1234567.5, 0, 1e9}};
}

static fm__store_entry whole_tape(uint32_t rows, uint32_t cache) {
    return (fm__store_entry){.shape = {.product = {.kind = FM__OP_COUNT},
                                       .rows = rows,
                                       .cache = cache,
                                       .deps = FM__DEPS_READY},
                             .gain = 1,
                             .dealt = rows > 8,
                             .ns_of_work = {5, 6, 7, (double)rows + cache}};
}

static void path_of(char path[256]) {
    CHECK(fm__store_path(folder, &KEY, path, 256, why));
}

/* A store of some entries, saved. */
static void save_some(const char *path) {
    fm__store store;
    fm__store_init(&store, &KEY);
    for (uint32_t rows = 1; rows <= 512; rows *= 8) {
        const fm__store_entry a = product(rows, 0.05 * rows / 32), b = whole_tape(rows, 4096);
        CHECK(fm__store_put(&store, &a, why));
        CHECK(fm__store_put(&store, &b, why));
    }
    CHECK(fm__store_save(&store, path, NOW, why));
    assert_true(store.saved_s == NOW);
    fm__store_finish(&store);
}

static bool load(fm__store *store, const fm__store_key *key, const char *path, uint64_t now_s) {
    fm__store_init(store, key);
    bool loaded = fm__store_load(store, path, now_s);
    if (!loaded)
        assert_true(store->n_entry == 0 && store->saved_s == 0);
    return loaded;
}

static void what_is_saved_is_loaded(void **state) {
    (void)state;
    char path[256];
    path_of(path);
    fm__store store;
    assert_false(load(&store, &KEY, path, NOW)); /* no file yet */
    save_some(path);
    assert_true(load(&store, &KEY, path, NOW + 3600));
    assert_int_equal(store.n_entry, 8);
    assert_true(fm__store_age_s(&store, NOW + 3600) == 3600);
    assert_true(fm__store_age_s(&store, NOW - 5) == 0);
    fm__store_entry want = product(64, 0.1);
    const fm__store_entry *got = fm__store_find(&store, &want.shape);
    assert_non_null(got);
    assert_true(got->share == 0.1 && got->gain == 1.234567);
    for (int i = 0; i < FM__STORE_ARMS; i++)
        assert_true(got->ns_of_work[i] == want.ns_of_work[i]);
    assert_true(fm__shape_equal(&got->shape.product, &want.shape.product));
    assert_int_equal(test_leftovers(path), 0);
    fm__store_finish(&store);
    fm__store_finish(&store);
}

static void the_nearest_bucket_is_found(void **state) {
    (void)state;
    fm__store store;
    fm__store_init(&store, &KEY);
    for (uint32_t rows = 1; rows <= 512; rows *= 8) /* 1 8 64 512 */
        for (uint32_t cache = 0; cache <= 4096; cache += 2048) {
            const fm__store_entry e = whole_tape(rows, cache);
            CHECK(fm__store_put(&store, &e, why));
        }
    static const uint32_t cases[][4] = {/* rows, cache: found rows, cache */
                                        {1, 0, 1, 0},       {2, 10, 1, 0},
                                        {4, 9999, 8, 4096}, {30, 2000, 64, 2048},
                                        {300, 1, 512, 0},   {9999, 3200, 512, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fm__store_entry like = whole_tape(cases[i][0], cases[i][1]);
        const fm__store_entry *got = fm__store_find(&store, &like.shape);
        assert_non_null(got);
        assert_int_equal(got->shape.rows, cases[i][2]);
        assert_int_equal(got->shape.cache, cases[i][3]);
    }
    fm__store_entry other = whole_tape(1, 0);
    other.shape.deps = FM__DEPS_BATCH;
    assert_null(fm__store_find(&store, &other.shape));
    other = product(1, 0);
    assert_null(fm__store_find(&store, &other.shape));
    fm__store_finish(&store);
}

static void an_entry_takes_the_place_of_its_like(void **state) {
    (void)state;
    fm__store store;
    fm__store_init(&store, &KEY);
    fm__store_entry e = product(512, 0.2);
    CHECK(fm__store_put(&store, &e, why));
    e.share = 0.4;
    CHECK(fm__store_put(&store, &e, why));
    assert_int_equal(store.n_entry, 1);
    assert_true(fm__store_find(&store, &e.shape)->share == 0.4);
    e.shape.product.fast = true;
    CHECK(fm__store_put(&store, &e, why));
    assert_int_equal(store.n_entry, 2);
    fm__store_finish(&store);
}

static void what_makes_no_sense_is_refused(void **state) {
    (void)state;
    fm__store store;
    fm__store_init(&store, &KEY);
    const double nan = strtod("nan", NULL), bad[] = {-0.1, 1.1, 1e300, nan};
    for (size_t i = 0; i < 4; i++) {
        fm__store_entry e = product(1, bad[i]);
        fm_error error = {0};
        assert_int_equal(fm__store_put(&store, &e, &error), FM_ERROR_ARGUMENT);
        e = product(1, 0.5);
        e.gain = i == 1 ? 0 : bad[i];
        assert_int_equal(fm__store_put(&store, &e, &error), FM_ERROR_ARGUMENT);
        e = product(1, 0.5);
        e.ns_of_work[2] = i == 1 ? 1e13 : bad[i];
        assert_int_equal(fm__store_put(&store, &e, &error), FM_ERROR_ARGUMENT);
    }
    fm__store_entry e = product(0, 0.5);
    assert_int_equal(fm__store_put(&store, &e, NULL), FM_ERROR_ARGUMENT);
    for (uint32_t rows = 1; rows <= FM__STORE_ENTRIES; rows++) {
        e = whole_tape(rows, 0);
        assert_int_equal(fm__store_put(&store, &e, NULL), FM_OK);
    }
    e = whole_tape(FM__STORE_ENTRIES + 1, 0);
    assert_int_equal(fm__store_put(&store, &e, NULL), FM_ERROR_LIMIT);
    char path[256];
    path_of(path);
    CHECK(fm__store_save(&store, path, NOW, why)); /* the largest file is within the limit */
    fm__store_finish(&store);
    assert_true(load(&store, &KEY, path, NOW));
    assert_int_equal(store.n_entry, FM__STORE_ENTRIES);
    fm__store_finish(&store);
}

/* ---- files that are not ours ---- */

static char last_line[512];

static void remember(void *user, fm_log_level level, const char *line) {
    (void)user;
    if (level == FM_LOG_WARNING)
        snprintf(last_line, sizeof last_line, "%s", line);
}

static void write_bytes(const char *path, const char *data, size_t bytes) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void every_other_key_is_another_file(void **state) {
    (void)state;
    char path[256], other[256];
    path_of(path);
    save_some(path);
    fm__store_key keys[9];
    for (int i = 0; i < 9; i++)
        keys[i] = KEY;
    strcpy(keys[0].cpu, "AMD EPYC 9B46");
    strcpy(keys[1].rung, "avx2");
    keys[2].threads = 15;
    strcpy(keys[3].units, "host x16; NVIDIA H200 x0 discrete");
    strcpy(keys[4].driver, "NVIDIA 551");
    strcpy(keys[5].power, "battery");
    strcpy(keys[6].build, "0.1.0 0123abce");
    keys[7].model_hash++;
    strcpy(keys[8].model_type, "q8_0");
    fm_log_set(remember, NULL, FM_LOG_DEBUG);
    for (int i = 0; i < 9; i++) {
        CHECK(fm__store_path(folder, &keys[i], other, sizeof other, why));
        assert_string_not_equal(path, other);
        fm__store store;
        last_line[0] = 0;
        assert_false(load(&store, &keys[i], path, NOW)); /* under its name all the same */
        assert_non_null(strstr(last_line, "another version, machine, build or model"));
        fm__store_finish(&store);
    }
    fm_log_set(NULL, NULL, FM_LOG_WARNING);
}

/* Lines cannot be smuggled in through a name. */
static void control_characters_are_harmless(void **state) {
    (void)state;
    char path[256];
    fm__store_key key = KEY;
    strcpy(key.units, "card\nentry op=tape");
    CHECK(fm__store_path(folder, &key, path, sizeof path, why));
    fm__store store;
    fm__store_init(&store, &key);
    CHECK(fm__store_save(&store, path, NOW, why));
    fm__store_finish(&store);
    assert_true(load(&store, &key, path, NOW));
    assert_int_equal(store.n_entry, 0);
    fm__store_finish(&store);
}

static void every_changed_byte_is_noticed(void **state) {
    (void)state;
    char path[256], broken[300], *data = NULL;
    size_t bytes = 0;
    path_of(path);
    save_some(path);
    snprintf(broken, sizeof broken, "%s.broken", path);
    CHECK(fm__file_read(path, 1 << 20, &data, &bytes, why));
    static const char replacements[] = {0, '\n', ' ', '0', '9', 'x', '=', (char)0xFF};
    fm__store store;
    for (size_t i = 0; i < bytes; i++) {
        char saved = data[i];
        data[i] = replacements[i % sizeof replacements];
        if (data[i] == saved)
            data[i] ^= 1;
        write_bytes(broken, data, bytes);
        data[i] = saved;
        assert_false(load(&store, &KEY, broken, NOW));
        fm__store_finish(&store);
    }
    for (size_t cut = 0; cut < bytes; cut++) {
        write_bytes(broken, data, cut);
        assert_false(load(&store, &KEY, broken, NOW));
        fm__store_finish(&store);
    }
    data = fm__realloc(data, bytes + 1);
    assert_non_null(data);
    data[bytes] = '\n'; /* and one byte more */
    write_bytes(broken, data, bytes + 1);
    assert_false(load(&store, &KEY, broken, NOW));
    fm__store_finish(&store);
    write_bytes(broken, data, bytes);
    assert_true(load(&store, &KEY, broken, NOW));
    fm__store_finish(&store);
    fm__free(data);
}

/* A file whose hash is right, but whose values are not. */
static void values_are_bounded(void **state) {
    (void)state;
    static const char *const edits[][2] = {
        {"share=100000 ", "share=1000001 "},
        {"share=100000 ", "share=-1 "},
        {"share=100000 ", "share=0100000 "},
        {"share=100000 ", "share= "},
        {"share=100000 ", "share=99999999999999999999 "},
        {"rows=64 ", "rows=0 "},
        {"rows=64 ", "rows=16777217 "},
        {"op=linear_glu ", "op=linear_gluu "},
        {"type=q4_k ", "type=q4_z "},
        {"axis=channels ", "axis=rows "},
        {"deps=event ", "deps=even "},
        {"weights=streamed ", "weights=gone "},
        {"fast=0 ", "fast=2 "},
        {"gain=1234567 ", "gain=0 "},
        {"k=3584 ", "k=3584  "},
        {"saved 1732934400\n", "saved 1733034400\n"}, /* more than a day ahead */
    };
    char path[256], broken[300], *data = NULL;
    size_t bytes = 0;
    path_of(path);
    save_some(path);
    snprintf(broken, sizeof broken, "%s.broken", path);
    CHECK(fm__file_read(path, 1 << 20, &data, &bytes, why));
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        fm__buf text = {0};
        const char *at = strstr(data, edits[i][0]), *end = strstr(data, "\nend ") + 1;
        assert_non_null(at);
        fm__buf_append(&text, data, (size_t)(at - data));
        fm__buf_append(&text, edits[i][1], strlen(edits[i][1]));
        at += strlen(edits[i][0]);
        fm__buf_append(&text, at, (size_t)(end - at));
        fm__buf_printf(&text, "end 8 %016llx\n",
                       (unsigned long long)fm__hash(FM__HASH_SEED, text.data, text.bytes));
        write_bytes(broken, text.data, text.bytes);
        fm__store store;
        if (load(&store, &KEY, broken, NOW))
            fail_msg("taken: %s", edits[i][1]);
        fm__store_finish(&store);
        fm__buf_finish(&text);
    }
    fm__free(data);
}

static void folders(void **state) {
    (void)state;
    char path[256], deep[128], small[20];
    fm_error error = {0};
    assert_int_equal(fm__store_path("", &KEY, path, sizeof path, NULL), FM_ERROR_IO);
    assert_int_equal(fm__store_path("/proc/none", &KEY, path, sizeof path, &error), FM_ERROR_IO);
    assert_string_equal(error.place, "/proc/none");
    /* Neither a name that is too long nor memory that is short is a folder that is not there. */
    assert_int_equal(fm__store_path(folder, &KEY, small, sizeof small, &error), FM_ERROR_LIMIT);
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(fm__store_path(longer, &KEY, path, sizeof path, &error), FM_ERROR_LIMIT);
    fm__alloc_fail_after(1);
    assert_int_equal(fm__store_path(folder, &KEY, path, sizeof path, &error), FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
    snprintf(deep, sizeof deep, "%s/a/b/c", folder);
    CHECK(fm__store_path(deep, &KEY, path, sizeof path, why));
    assert_true(fm__path_is_directory(deep));
    save_some(path);
    char *old = getenv("XDG_CACHE_HOME"), kept[256] = "";
    if (old != NULL)
        snprintf(kept, sizeof kept, "%s", old);
    setenv("XDG_CACHE_HOME", "/proc/none", 1);
    assert_int_equal(fm__store_path(NULL, &KEY, path, sizeof path, &error), FM_ERROR_IO);
    assert_string_equal(error.place, "/proc/none/fusionml");
    assert_non_null(strstr(error.message, "set XDG_CACHE_HOME to"));
    setenv("XDG_CACHE_HOME", folder, 1);
    CHECK(fm__store_path(NULL, &KEY, path, sizeof path, why));
    assert_true(strncmp(path, folder, strlen(folder)) == 0);
    assert_non_null(strstr(path, "/fusionml/calibration-"));
    if (old != NULL)
        setenv("XDG_CACHE_HOME", kept, 1);
    else
        unsetenv("XDG_CACHE_HOME");
    fm__store store;
    fm__store_init(&store, &KEY);
    assert_int_equal(fm__store_save(&store, folder, NOW, &error), FM_ERROR_IO); /* a folder */
    fm__store_finish(&store);
}

/* What expired goes, with every number of rows; what other options found stays. */
static void entries_are_dropped(void **state) {
    (void)state;
    fm__store store;
    fm__store_init(&store, &KEY);
    for (uint32_t rows = 1; rows <= 512; rows *= 8) {
        const fm__store_entry a = product(rows, 0.1), b = whole_tape(rows, 0);
        fm__store_entry c = product(rows, 0.2), d = product(rows, 0.3);
        c.shape.axis = FM__AXIS_TOKENS;
        d.shape.weights = FM__RESIDENCY_RESIDENT;
        CHECK(fm__store_put(&store, &a, why));
        CHECK(fm__store_put(&store, &b, why));
        CHECK(fm__store_put(&store, &c, why));
        CHECK(fm__store_put(&store, &d, why));
    }
    const fm__store_entry gone = product(1, 0), other = whole_tape(1, 0);
    assert_int_equal(fm__store_drop(&store, &gone.shape), 4);
    assert_int_equal(store.n_entry, 12);
    assert_int_equal(fm__store_drop(&store, &gone.shape), 0);
    assert_null(fm__store_find(&store, &gone.shape));
    assert_non_null(fm__store_find(&store, &other.shape));
    assert_int_equal(fm__store_drop(&store, &other.shape), 4);
    fm__store_entry c = product(64, 0.2);
    c.shape.axis = FM__AXIS_TOKENS;
    assert_true(fm__store_find(&store, &c.shape)->share == 0.2);
    fm__store_finish(&store);
}

/* What other options found does not change the digest; everything of these options does. */
static void digests(void **state) {
    (void)state;
    fm__store store;
    uint64_t none = 1, first, other;
    const fm__store_entry a = product(1, 0.1), tape = whole_tape(1, 0);
    fm__store_init(&store, &KEY);
    assert_true(fm__store_digest(&store, &a.shape, &none) && none == 0);
    CHECK(fm__store_put(&store, &a, why));
    assert_true(fm__store_digest(&store, &a.shape, &first) && first != 0);
    CHECK(fm__store_put(&store, &tape, why));
    assert_true(fm__store_digest(&store, &a.shape, &other) && other == first);
    fm__store_entry e = product(1, 0.1);
    e.ns_of_work[3] += 1;
    CHECK(fm__store_put(&store, &e, why));
    assert_true(fm__store_digest(&store, &a.shape, &other) && other != first);
    CHECK(fm__store_put(&store, &a, why));
    assert_true(fm__store_digest(&store, &a.shape, &other) && other == first);
    e = product(8, 0.1);
    CHECK(fm__store_put(&store, &e, why));
    assert_true(fm__store_digest(&store, &a.shape, &other) && other != first);
    fm__alloc_fail_after(1);
    assert_false(fm__store_digest(&store, &a.shape, &other));
    fm__alloc_fail_after(0);
    fm__store_finish(&store);
}

/* A file of an older version under today's name: as if there were none. */
static void an_older_version_is_not_used(void **state) {
    (void)state;
    char path[256];
    static const char OLD[] = "fusionml-calibration 2\ncpu AMD EPYC 9B45\nrung avx512\n"
                              "threads 16\ngpu NVIDIA H200\n";
    path_of(path);
    write_bytes(path, OLD, sizeof OLD - 1);
    fm__store store;
    fm_log_set(remember, NULL, FM_LOG_DEBUG);
    last_line[0] = 0;
    assert_false(load(&store, &KEY, path, NOW));
    assert_non_null(strstr(last_line, "another version, machine, build or model"));
    fm_log_set(NULL, NULL, FM_LOG_WARNING);
    CHECK(fm__store_save(&store, path, NOW, why)); /* and is replaced */
    assert_true(load(&store, &KEY, path, NOW));
    fm__store_finish(&store);
}

/* Every axis, dependency mode and residency is read as it was written. */
static void names_are_read(void **state) {
    (void)state;
    char path[256];
    path_of(path);
    fm__store store;
    uint32_t n = 0;
    fm__store_init(&store, &KEY);
    for (int a = FM__AXIS_WHOLE; a <= FM__AXIS_PRODUCTS; a++)
        for (int d = FM__DEPS_EVENT; d <= FM__DEPS_READY; d++)
            for (int w = FM__RESIDENCY_SHARED; w <= FM__RESIDENCY_MAPPED; w++) {
                fm__store_entry e = product(1, ++n / 128.0);
                e.shape.axis = (fm__axis)a;
                e.shape.deps = (fm__deps)d;
                e.shape.weights = (fm__residency)w;
                CHECK(fm__store_put(&store, &e, why));
            }
    for (int op = 0; op <= FM__OP_COUNT; op++) {
        fm__store_entry e = product(2, 0);
        e.shape.product.kind = (fm__op_kind)op;
        CHECK(fm__store_put(&store, &e, why));
    }
    assert_int_equal(store.n_entry, n + FM__OP_COUNT + 1);
    CHECK(fm__store_save(&store, path, NOW, why));
    fm__store read;
    assert_true(load(&read, &KEY, path, NOW));
    assert_int_equal(read.n_entry, store.n_entry);
    for (uint32_t i = 0; i < store.n_entry; i++) {
        const fm__store_shape *a = &store.entries[i].shape, *b = &read.entries[i].shape;
        assert_true(a->axis == b->axis && a->deps == b->deps && a->weights == b->weights);
        assert_true(a->product.kind == b->product.kind);
        assert_true(fabs(store.entries[i].share - read.entries[i].share) < 1e-6);
    }
    fm__store_finish(&read);
    fm__store_finish(&store);
}

/* ---- several at the same time ---- */

static fm__store_entry of_axis(fm__axis axis, uint32_t rows, double share) {
    fm__store_entry e = product(rows, share);
    e.shape.axis = axis;
    return e;
}

static double saved_share(const fm__store *store, fm__axis axis, uint32_t rows) {
    const fm__store_entry like = of_axis(axis, rows, 0), *got = fm__store_find(store, &like.shape);
    return got != NULL && got->shape.rows == rows ? got->share : -1;
}

/* Both began before either saved. */
static void what_others_saved_stays(void **state) {
    (void)state;
    char path[256];
    path_of(path);
    fm__store a, b, read;
    fm__store_init(&a, &KEY);
    fm__store_init(&b, &KEY);
    const fm__store_entry first[] = {of_axis(FM__AXIS_CHANNELS, 1, 0.1),
                                     of_axis(FM__AXIS_CHANNELS, 8, 0.2)};
    const fm__store_entry second[] = {of_axis(FM__AXIS_TOKENS, 1, 0.3),
                                      of_axis(FM__AXIS_CHANNELS, 8, 0.4)};
    for (int i = 0; i < 2; i++) {
        CHECK(fm__store_put(&a, &first[i], why));
        CHECK(fm__store_put(&b, &second[i], why));
    }
    CHECK(fm__store_save(&a, path, NOW, why));
    CHECK(fm__store_save(&b, path, NOW + 10, why));
    assert_true(load(&read, &KEY, path, NOW + 10));
    assert_int_equal(read.n_entry, 3);
    assert_true(read.saved_s == NOW + 10);
    assert_true(saved_share(&read, FM__AXIS_CHANNELS, 1) == 0.1); /* the other's */
    assert_true(saved_share(&read, FM__AXIS_TOKENS, 1) == 0.3);
    assert_true(saved_share(&read, FM__AXIS_CHANNELS, 8) == 0.4); /* the later one's */
    uint64_t in_store, in_file;
    assert_true(fm__store_digest(&b, &first[0].shape, &in_store));
    assert_true(fm__store_digest(&read, &first[0].shape, &in_file));
    assert_true(in_store == in_file && in_file != 0);
    fm__store_finish(&read);
    /* Memory that is short where the file is read loses nothing of it. */
    bool saved = false;
    for (uint64_t after = 1; !saved; after++) {
        fm_error error = {0};
        fm__alloc_fail_after(after);
        fm__store c;
        fm__store_init(&c, &KEY);
        const fm__store_entry e = of_axis(FM__AXIS_PRODUCTS, 1, 0.5);
        fm_status status = fm__store_put(&c, &e, &error);
        if (status == FM_OK)
            status = fm__store_save(&c, path, NOW, &error);
        fm__alloc_fail_after(0);
        assert_true(status == FM_OK || status == FM_ERROR_MEMORY);
        saved = status == FM_OK;
        fm__store_finish(&c);
        assert_true(load(&read, &KEY, path, NOW + 10));
        assert_int_equal(read.n_entry, saved ? 4 : 3);
        fm__store_finish(&read);
        assert_true(after < 100);
    }
    assert_int_equal(test_leftovers(path), 0);
    fm__store_finish(&a);
    fm__store_finish(&b);
}

enum { SAVERS = 4, SAVES = 20 };

/* What is saved one after the other by one of several processes. 0: all went well. */
static int save_often(const char *path, int saver) {
    for (int i = 0; i < SAVES; i++) {
        fm__store store;
        fm_error error = {0};
        const fm__store_entry e = of_axis(FM__AXIS_CHANNELS, (uint32_t)(1 + saver * SAVES + i), 1);
        fm__store_init(&store, &KEY);
        bool good = fm__store_put(&store, &e, &error) == FM_OK &&
                    fm__store_save(&store, path, NOW, &error) == FM_OK;
        fm__store_finish(&store);
        if (!good)
            return 1;
    }
    return 0;
}

static void processes_lose_nothing(void **state) {
    (void)state;
    char path[256];
    path_of(path);
    pid_t children[SAVERS];
    for (int i = 0; i < SAVERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0)
            _exit(save_often(path, i));
    }
    for (int i = 0; i < SAVERS; i++) {
        int how = -1;
        assert_int_equal(waitpid(children[i], &how, 0), children[i]);
        assert_int_equal(how, 0);
    }
    fm__store store;
    assert_true(load(&store, &KEY, path, NOW));
    assert_int_equal(store.n_entry, SAVERS * SAVES);
    fm__store_finish(&store);
}

static int lock_it(void) {
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(flock(file, LOCK_EX | LOCK_NB), 0);
    return file;
}

/* Who saves waits for the one who does; not for ever. */
static void a_lock_is_waited_for(void **state) {
    (void)state;
    char path[256];
    path_of(path);
    fm_log_set(remember, NULL, FM_LOG_DEBUG);
    last_line[0] = 0;
    int file = lock_it();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* has the same lock */
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        _exit(flock(file, LOCK_UN));
    }
    uint64_t begin_ns = fm__now_ns();
    save_some(path);
    assert_true(fm__now_ns() - begin_ns > 200000000);
    assert_string_equal(last_line, "");
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(file);

    file = lock_it();
    begin_ns = fm__now_ns();
    fm__store store;
    fm__store_init(&store, &KEY);
    const fm__store_entry e = of_axis(FM__AXIS_TOKENS, 1, 0.5);
    CHECK(fm__store_put(&store, &e, why));
    CHECK(fm__store_save(&store, path, NOW, why));
    assert_true(fm__now_ns() - begin_ns > UINT64_C(4000000000));
    assert_non_null(strstr(last_line, folder));
    assert_non_null(strstr(last_line, "another process has kept this folder locked for 5 s"));
    assert_int_equal(store.n_entry, 9); /* and what was there is there */
    close(file);
    fm__store_finish(&store);
    fm_log_set(NULL, NULL, FM_LOG_WARNING);
}

/* What is new has its place; the log says that something old has not. */
static void a_full_file_makes_room(void **state) {
    (void)state;
    char path[256];
    path_of(path);
    fm__store store;
    fm__store_init(&store, &KEY);
    for (uint32_t rows = 1; rows <= FM__STORE_ENTRIES; rows++) {
        const fm__store_entry e = whole_tape(rows, 0);
        CHECK(fm__store_put(&store, &e, why));
    }
    CHECK(fm__store_save(&store, path, NOW, why));
    fm__store_finish(&store);
    const fm__store_entry more[] = {product(1, 0.5), product(2, 0.25), whole_tape(7, 0)};
    fm__store_init(&store, &KEY);
    for (int i = 0; i < 3; i++)
        CHECK(fm__store_put(&store, &more[i], why));
    fm_log_set(remember, NULL, FM_LOG_DEBUG);
    CHECK(fm__store_save(&store, path, NOW, why));
    fm_log_set(NULL, NULL, FM_LOG_WARNING);
    assert_non_null(strstr(last_line, "2 entries saved before are dropped"));
    fm__store_finish(&store);
    assert_true(load(&store, &KEY, path, NOW));
    assert_int_equal(store.n_entry, FM__STORE_ENTRIES);
    assert_true(fm__store_find(&store, &more[1].shape)->share == 0.25);
    fm__store_finish(&store);
}

/* Only what the digest is of, and only where it is still the same. */
static void an_entry_expires(void **state) {
    (void)state;
    char path[256];
    path_of(path);
    save_some(path);
    fm__store store;
    uint64_t digest;
    const fm__store_entry a = product(1, 0), b = whole_tape(1, 4096);
    CHECK(fm__store_expire(&KEY, path, &a.shape, 1, NOW, why));
    assert_true(load(&store, &KEY, path, NOW));
    assert_int_equal(store.n_entry, 8);
    assert_true(fm__store_digest(&store, &a.shape, &digest));
    fm__store_finish(&store);
    fm_error error = {0};
    fm__alloc_fail_after(1);
    assert_int_equal(fm__store_expire(&KEY, path, &a.shape, digest, NOW, &error), FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
    CHECK(fm__store_expire(&KEY, path, &a.shape, digest, NOW + 50, why));
    assert_true(load(&store, &KEY, path, NOW + 50));
    assert_int_equal(store.n_entry, 4);
    assert_true(store.saved_s == NOW); /* the rest is as old as it was */
    assert_null(fm__store_find(&store, &a.shape));
    assert_non_null(fm__store_find(&store, &b.shape));
    fm__store_finish(&store);
    assert_int_equal(unlink(path), 0);
    CHECK(fm__store_expire(&KEY, path, &a.shape, digest, NOW, why)); /* gone meanwhile */
    assert_false(fm__path_exists(path));
}

/* A file where a folder should be, a folder where the file should be, a name that is too long. */
static void what_cannot_be_written_is_found_out(void **state) {
    (void)state;
    char path[256], file[256], below[300];
    path_of(path);
    CHECK(fm__store_check(NULL, path, why));
    assert_false(fm__path_exists(path));
    save_some(path);
    CHECK(fm__store_check(folder, path, why));
    fm__store store;
    assert_true(load(&store, &KEY, path, NOW)); /* as it was */
    assert_int_equal(store.n_entry, 8);
    fm__store_finish(&store);
    assert_int_equal(test_leftovers(path), 0);
    fm_error error = {0};
    snprintf(file, sizeof file, "%s/file", folder);
    write_bytes(file, "x", 1);
    snprintf(below, sizeof below, "%s/calibration.txt", file);
    assert_int_equal(fm__store_check(NULL, below, &error), FM_ERROR_IO);
    assert_string_equal(error.place, below);
    assert_non_null(strstr(error.message, "cannot be created: Not a directory"));
    assert_non_null(strstr(error.message, "set XDG_CACHE_HOME to"));
    assert_int_equal(fm__store_check(folder, folder, &error), FM_ERROR_IO);
    assert_string_equal(error.place, folder);
    assert_non_null(strstr(error.message, "is not a regular file"));
    assert_non_null(strstr(error.message, "give another cache folder"));
    assert_int_equal(fm__store_path(file, &KEY, path, sizeof path, &error), FM_ERROR_IO);
    assert_string_equal(error.place, file);
    assert_non_null(strstr(error.message, "give another cache folder"));
    fm__alloc_fail_after(1);
    assert_int_equal(fm__store_check(NULL, below, &error), FM_ERROR_MEMORY);
    fm__alloc_fail_after(0);
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_dropped),
        cmocka_unit_test(digests),
        IN_FOLDER(an_older_version_is_not_used),
        IN_FOLDER(what_is_saved_is_loaded),
        cmocka_unit_test(the_nearest_bucket_is_found),
        cmocka_unit_test(an_entry_takes_the_place_of_its_like),
        IN_FOLDER(what_makes_no_sense_is_refused),
        IN_FOLDER(every_other_key_is_another_file),
        IN_FOLDER(control_characters_are_harmless),
        IN_FOLDER(every_changed_byte_is_noticed),
        IN_FOLDER(values_are_bounded),
        IN_FOLDER(folders),
        IN_FOLDER(names_are_read),
        IN_FOLDER(what_others_saved_stays),
        IN_FOLDER(processes_lose_nothing),
        IN_FOLDER(a_lock_is_waited_for),
        IN_FOLDER(a_full_file_makes_room),
        IN_FOLDER(an_entry_expires),
        IN_FOLDER(what_cannot_be_written_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
