/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/store.c: saved calibrations: the file, and finding in it.
 *
 * Owns: entries. Never does: trust a byte that it reads, or lose what another process saved. Called
 * from: the loading and the calibrating thread.
 */
#include "exec/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static const double MILLION = 1e6;
enum { DAY_S = 86400, LIMIT_N = 1 << 30, LIMIT_ROWS = 1 << 24 };
#define LIMIT_SHARE UINT64_C(1000000)
#define LIMIT_GAIN UINT64_C(1000000000)
#define LIMIT_TIME UINT64_C(1000000000000000000)

static const char *const ARM_NAMES[FM__STORE_ARMS] = {"cpu", "gpu", "gpu-eager", "split"};

/* What an entry says by a name. */
typedef enum named { OP, AXIS, DEPS, WEIGHTS } named;

static const struct {
    const char *key;
    int n; /* values from 0 on */
} FIELDS[] = {[OP] = {"op", FM__OP_COUNT + 1},
              [AXIS] = {"axis", FM__AXIS_PRODUCTS + 1},
              [DEPS] = {"deps", FM__DEPS_READY + 1},
              [WEIGHTS] = {"weights", FM__RESIDENCY_MAPPED + 1}};

static const char *name_of(named field, int value) {
    switch (field) {
    case AXIS:
        return fm__axis_name((fm__axis)value);
    case DEPS:
        return fm__deps_name((fm__deps)value);
    case WEIGHTS:
        return fm__residency_name((fm__residency)value);
    case OP:
        break;
    }
    return value == FM__OP_COUNT ? "tape" : fm__op_name((fm__op_kind)value);
}

/* ---- life ---- */

static void clean(char *text) {
    for (; *text != 0; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            *text = '?';
}

void fm__store_init(fm__store *store, const fm__store_key *key) {
    *store = (fm__store){.key = *key};
    clean(store->key.cpu);
    clean(store->key.rung);
    clean(store->key.units);
    clean(store->key.driver);
    clean(store->key.power);
    clean(store->key.build);
    clean(store->key.model_type);
}

void fm__store_finish(fm__store *store) {
    fm__free(store->entries);
    store->entries = NULL;
    store->n_entry = store->capacity = 0;
}

/* ---- writing ---- */

static void write_head(const fm__store_key *key, fm__buf *out) {
    fm__buf_printf(out, "fusionml-calibration %d\n", FM__STORE_VERSION);
    fm__buf_printf(out, "cpu %s\nrung %s\nthreads %u\n", key->cpu, key->rung, key->threads);
    fm__buf_printf(out, "units %s\ndriver %s\npower %s\n", key->units, key->driver, key->power);
    fm__buf_printf(out, "build %s\nmodel %016llx %s\n", key->build,
                   (unsigned long long)key->model_hash, key->model_type);
}

static const char *type_name(const fm__type *type) {
    return type != NULL ? type->name : "-";
}

static unsigned long long millionths(double value) {
    return (unsigned long long)(value * MILLION + 0.5);
}

static void write_entry(const fm__store_entry *entry, fm__buf *out) {
    const fm__store_shape *s = &entry->shape;
    const fm__shape *p = &s->product;
    fm__buf_printf(out, "entry op=%s n=%u k=%u type=%s up=%s fast=%d output=%d",
                   name_of(OP, (int)p->kind), p->n, p->k, type_name(p->types[0]),
                   type_name(p->types[1]), p->fast, p->output);
    fm__buf_printf(out, " rows=%u cache=%u axis=%s deps=%s weights=%s", s->rows, s->cache,
                   name_of(AXIS, (int)s->axis), name_of(DEPS, (int)s->deps),
                   name_of(WEIGHTS, (int)s->weights));
    fm__buf_printf(out, " share=%llu gain=%llu dealt=%d", millionths(entry->share),
                   millionths(entry->gain), entry->dealt);
    for (int i = 0; i < FM__STORE_ARMS; i++)
        fm__buf_printf(out, " %s=%llu", ARM_NAMES[i], millionths(entry->ns_of_work[i]));
    fm__buf_append(out, "\n", 1);
}

static fm_status write_file(const char *path, const fm__buf *text, fm_error *error) {
    fm__writer *writer = NULL;
    fm_status status = fm__writer_open(&writer, path, error);
    if (status == FM_OK)
        status = fm__writer_write(writer, text->data, text->bytes, error);
    if (status == FM_OK)
        return fm__writer_commit(&writer, error);
    fm__writer_abort(&writer);
    return status;
}

static fm_status write_store(fm__store *store, const char *path, uint64_t saved_s,
                             fm_error *error) {
    fm__buf text = {0};
    write_head(&store->key, &text);
    fm__buf_printf(&text, "saved %llu\n", (unsigned long long)saved_s);
    for (uint32_t i = 0; i < store->n_entry; i++)
        write_entry(&store->entries[i], &text);
    if (!text.failed)
        fm__buf_printf(&text, "end %u %016llx\n", store->n_entry,
                       (unsigned long long)fm__hash(FM__HASH_SEED, text.data, text.bytes));
    fm_status status =
        text.failed ? fm__error_memory(error, path, text.capacity) : write_file(path, &text, error);
    fm__buf_finish(&text);
    if (status == FM_OK)
        store->saved_s = saved_s;
    return status;
}

/* ---- where ---- */

static const char *advice(const char *cache_dir) {
    return cache_dir == NULL ? "set XDG_CACHE_HOME to a folder that can be written"
                             : "give another cache folder";
}

fm_status fm__store_path(const char *cache_dir, const fm__store_key *key, char *out,
                         size_t capacity, fm_error *error) {
    enum { FOLDER = 1024 };
    char folder[FOLDER], name[64];
    fm__store store;
    fm__buf head = {0};
    if (cache_dir != NULL && strlen(cache_dir) >= FOLDER)
        return fm__error(error, FM_ERROR_LIMIT, "cache folder", "its path has %d bytes or more",
                         FOLDER);
    if (!fm__cache_folder(cache_dir, folder, sizeof folder))
        return fm__error(error, FM_ERROR_IO,
                         cache_dir != NULL ? cache_dir
                         : folder[0] != 0  ? folder
                                           : "cache folder",
                         "is no cache folder to save the calibration in, nor can be made one: %s",
                         advice(cache_dir));
    fm__store_init(&store, key); /* the key as it is compared */
    write_head(&store.key, &head);
    bool failed = head.failed;
    if (!failed)
        snprintf(name, sizeof name, "calibration-%016llx.txt",
                 (unsigned long long)fm__hash(FM__HASH_SEED, head.data, head.bytes));
    fm__buf_finish(&head);
    if (failed)
        return fm__error_memory(error, "calibration", sizeof store.key);
    if (!fm__path_join(folder, name, out, capacity))
        return fm__error(error, FM_ERROR_LIMIT, folder,
                         "a calibration's path in it has %zu bytes or more", capacity);
    return FM_OK;
}

fm_status fm__store_check(const char *cache_dir, const char *path, fm_error *error) {
    fm__writer *writer = NULL;
    fm_error why = {0};
    fm_status status = fm__writer_open(&writer, path, &why);
    fm__writer_abort(&writer);
    if (status == FM_OK)
        return FM_OK;
    return status == FM_ERROR_IO
               ? fm__error(error, status, path, "%s: a calibration could not be saved there; %s",
                           why.message, advice(cache_dir))
               : fm__error(error, status, path, "%s", why.message);
}

/* ---- reading: a cursor that only goes on over what is expected ---- */

typedef struct reader {
    const char *at, *end;
} reader;

static bool take(reader *r, const char *text) {
    size_t bytes = strlen(text);
    if ((size_t)(r->end - r->at) < bytes || memcmp(r->at, text, bytes) != 0)
        return false;
    r->at += bytes;
    return true;
}

/* Digits as printf writes them: no sign, no zeros in front. */
static bool take_number(reader *r, uint64_t limit, uint64_t *out) {
    const char *begin = r->at;
    uint64_t value = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9' && r->at - begin < 19)
        value = value * 10 + (uint64_t)(*r->at++ - '0');
    *out = value;
    return r->at > begin && value <= limit && (*begin != '0' || r->at == begin + 1);
}

static bool take_named(reader *r, const char *name, uint64_t limit, uint64_t *out) {
    return take(r, " ") && take(r, name) && take(r, "=") && take_number(r, limit, out);
}

static bool take_small(reader *r, const char *name, uint32_t limit, uint32_t *out) {
    uint64_t value;
    bool taken = take_named(r, name, limit, &value);
    *out = taken ? (uint32_t)value : 0;
    return taken;
}

static bool take_word(reader *r, const char *name, fm__str *out) {
    if (!take(r, " ") || !take(r, name) || !take(r, "="))
        return false;
    out->data = r->at;
    while (r->at < r->end && *r->at != ' ' && *r->at != '\n')
        r->at++;
    out->bytes = (size_t)(r->at - out->data);
    return out->bytes > 0;
}

static bool take_name(reader *r, named field, int *out) {
    fm__str word;
    if (!take_word(r, FIELDS[field].key, &word))
        return false;
    for (*out = 0; *out < FIELDS[field].n; ++*out)
        if (fm__str_is(word, name_of(field, *out)))
            return true;
    return false;
}

static bool take_type(reader *r, const char *name, const fm__type **out) {
    fm__str word;
    if (!take_word(r, name, &word))
        return false;
    *out = NULL;
    for (size_t i = 0; i < fm__type_count(); i++)
        if (fm__str_is(word, fm__type_at(i)->name))
            *out = fm__type_at(i);
    return *out != NULL || fm__str_is(word, "-");
}

static bool take_flag(reader *r, const char *name, bool *out) {
    uint32_t value;
    bool taken = take_small(r, name, 1, &value);
    *out = value != 0;
    return taken;
}

static bool take_millionths(reader *r, const char *name, uint64_t limit, double *out) {
    uint64_t value;
    bool taken = take_named(r, name, limit, &value);
    *out = taken ? (double)value / MILLION : 0;
    return taken;
}

static bool take_product(reader *r, fm__shape *p) {
    int kind;
    if (!take_name(r, OP, &kind))
        return false;
    p->kind = (fm__op_kind)kind;
    return take_small(r, "n", LIMIT_N, &p->n) && take_small(r, "k", LIMIT_N, &p->k) &&
           take_type(r, "type", &p->types[0]) && take_type(r, "up", &p->types[1]) &&
           take_flag(r, "fast", &p->fast) && take_flag(r, "output", &p->output);
}

static bool take_shape(reader *r, fm__store_shape *s) {
    int axis, deps, weights;
    if (!take_product(r, &s->product) || !take_small(r, "rows", LIMIT_ROWS, &s->rows) ||
        !take_small(r, "cache", LIMIT_N, &s->cache) || !take_name(r, AXIS, &axis) ||
        !take_name(r, DEPS, &deps) || !take_name(r, WEIGHTS, &weights))
        return false;
    s->axis = (fm__axis)axis;
    s->deps = (fm__deps)deps;
    s->weights = (fm__residency)weights;
    return true;
}

/* Behind "entry". */
static bool take_entry(reader *r, fm__store_entry *entry) {
    if (!take_shape(r, &entry->shape) || !take_millionths(r, "share", LIMIT_SHARE, &entry->share) ||
        !take_millionths(r, "gain", LIMIT_GAIN, &entry->gain) ||
        !take_flag(r, "dealt", &entry->dealt))
        return false;
    for (int i = 0; i < FM__STORE_ARMS; i++)
        if (!take_millionths(r, ARM_NAMES[i], LIMIT_TIME, &entry->ns_of_work[i]))
            return false;
    return take(r, "\n");
}

static bool take_hash(reader *r, uint64_t hash) {
    char text[24];
    snprintf(text, sizeof text, " %016llx\n", (unsigned long long)hash);
    return take(r, text);
}

/* ---- entries ---- */

static bool same_options(const fm__store_shape *a, const fm__store_shape *b) {
    return a->axis == b->axis && a->deps == b->deps && a->weights == b->weights;
}

static bool same_shape(const fm__store_shape *a, const fm__store_shape *b) {
    return fm__shape_equal(&a->product, &b->product) && same_options(a, b);
}

/* The entry of this shape, rows and cache; NULL: none. */
static fm__store_entry *find_same(const fm__store *store, const fm__store_shape *shape) {
    for (uint32_t i = 0; i < store->n_entry; i++) {
        fm__store_entry *e = &store->entries[i];
        if (e->shape.rows == shape->rows && e->shape.cache == shape->cache &&
            same_shape(&e->shape, shape))
            return e;
    }
    return NULL;
}

/* What the file can hold; NaN fails every comparison. */
static bool sound(const fm__store_entry *e) {
    const fm__store_shape *s = &e->shape;
    const fm__shape *p = &s->product;
    bool fits = p->kind >= 0 && p->kind <= FM__OP_COUNT && p->n <= LIMIT_N && p->k <= LIMIT_N &&
                s->rows > 0 && s->rows <= LIMIT_ROWS && s->cache <= LIMIT_N && s->axis >= 0 &&
                s->axis <= FM__AXIS_PRODUCTS && s->deps >= 0 && s->deps <= FM__DEPS_READY &&
                s->weights >= 0 && s->weights <= FM__RESIDENCY_MAPPED;
    bool numbers =
        e->share >= 0 && e->share <= 1 && e->gain > 0 && e->gain * MILLION <= (double)LIMIT_GAIN;
    for (int i = 0; i < FM__STORE_ARMS; i++)
        numbers =
            numbers && e->ns_of_work[i] >= 0 && e->ns_of_work[i] * MILLION <= (double)LIMIT_TIME;
    return fits && numbers;
}

static fm_status make_room(fm__store *store, fm_error *error) {
    if (store->n_entry < store->capacity)
        return FM_OK;
    if (store->n_entry == FM__STORE_ENTRIES)
        return fm__error(error, FM_ERROR_LIMIT, "calibration", "more than %d entries",
                         FM__STORE_ENTRIES);
    uint32_t capacity = store->capacity == 0 ? 64 : store->capacity * 2;
    fm__store_entry *entries = fm__realloc(store->entries, capacity * sizeof *entries);
    if (entries == NULL)
        return fm__error_memory(error, "calibration", capacity * sizeof *entries);
    store->entries = entries;
    store->capacity = capacity;
    return FM_OK;
}

fm_status fm__store_put(fm__store *store, const fm__store_entry *entry, fm_error *error) {
    if (!sound(entry))
        return fm__error(error, FM_ERROR_ARGUMENT, "calibration",
                         "share %g, gain %g, %u rows: an entry that cannot be saved", entry->share,
                         entry->gain, entry->shape.rows);
    fm__store_entry *same = find_same(store, &entry->shape);
    if (same != NULL) {
        *same = *entry;
        return FM_OK;
    }
    fm_status status = make_room(store, error);
    if (status == FM_OK)
        store->entries[store->n_entry++] = *entry;
    return status;
}

uint32_t fm__store_drop(fm__store *store, const fm__store_shape *shape) {
    uint32_t kept = 0, n = store->n_entry;
    for (uint32_t i = 0; i < n; i++)
        if (!same_options(&store->entries[i].shape, shape))
            store->entries[kept++] = store->entries[i];
    store->n_entry = kept;
    return n - kept;
}

bool fm__store_digest(const fm__store *store, const fm__store_shape *shape, uint64_t *out) {
    fm__buf text = {0};
    for (uint32_t i = 0; i < store->n_entry; i++)
        if (same_options(&store->entries[i].shape, shape))
            write_entry(&store->entries[i], &text);
    bool made = !text.failed;
    *out = made && text.bytes > 0 ? fm__hash(FM__HASH_SEED, text.data, text.bytes) : 0;
    fm__buf_finish(&text);
    return made;
}

/* 1 for equal numbers, more the further they are apart. */
static double distance(uint32_t a, uint32_t b) {
    double x = (double)a + 1, y = (double)b + 1;
    return x > y ? x / y : y / x;
}

const fm__store_entry *fm__store_find(const fm__store *store, const fm__store_shape *shape) {
    const fm__store_entry *best = NULL;
    double least[2] = {0, 0};
    for (uint32_t i = 0; i < store->n_entry; i++) {
        const fm__store_entry *e = &store->entries[i];
        if (!same_shape(&e->shape, shape))
            continue;
        double rows = distance(e->shape.rows, shape->rows);
        double cache = distance(e->shape.cache, shape->cache);
        if (best == NULL || rows < least[0] || (rows == least[0] && cache < least[1])) {
            best = e;
            least[0] = rows;
            least[1] = cache;
        }
    }
    return best;
}

double fm__store_age_s(const fm__store *store, uint64_t now_s) {
    return now_s > store->saved_s ? (double)(now_s - store->saved_s) : 0;
}

/* ---- the file ---- */

static const char NO_MEMORY[] = "needs more memory than there is";

/* NULL: the store holds what the file says; else why not. */
static const char *parse(fm__store *store, const char *data, size_t bytes, uint64_t now_s) {
    reader r = {data, data + bytes};
    fm__buf head = {0};
    write_head(&store->key, &head);
    bool failed = head.failed, same = !failed && take(&r, head.data);
    fm__buf_finish(&head);
    if (failed)
        return NO_MEMORY;
    if (!same)
        return "is of another version, machine, build or model";
    if (!take(&r, "saved ") || !take_number(&r, LIMIT_TIME, &store->saved_s) || !take(&r, "\n"))
        return "says not when it was saved";
    if (store->saved_s > now_s + DAY_S)
        return "was saved in the future";
    while (take(&r, "entry")) {
        fm__store_entry entry = {0};
        if (!take_entry(&r, &entry))
            return "has an entry that cannot be read";
        fm_status status = fm__store_put(store, &entry, NULL);
        if (status != FM_OK)
            return status == FM_ERROR_MEMORY ? NO_MEMORY
                                             : "has an entry that makes no sense, or too many";
    }
    uint64_t n, hash = fm__hash(FM__HASH_SEED, data, (size_t)(r.at - data));
    if (!take(&r, "end ") || !take_number(&r, FM__STORE_ENTRIES, &n) || n != store->n_entry ||
        !take_hash(&r, hash) || r.at != r.end)
        return "is cut off or was changed";
    return NULL;
}

/* *loaded: the store holds what the file says. Errors: MEMORY. What else is in the way is named in
   the log, and the store is empty. */
static fm_status read_store(fm__store *store, const char *path, uint64_t now_s, bool *loaded,
                            fm_error *error) {
    char *data = NULL;
    size_t bytes = 0;
    fm_error unread = {0};
    *loaded = false;
    if (!fm__path_exists(path))
        return FM_OK;
    const char *why = unread.message;
    fm_status status = fm__file_read(path, FM__STORE_BYTES, &data, &bytes, &unread);
    if (status == FM_OK)
        why = parse(store, data, bytes, now_s);
    fm__free(data);
    *loaded = why == NULL;
    if (*loaded)
        return FM_OK;
    store->n_entry = 0;
    store->saved_s = 0;
    if (status == FM_ERROR_MEMORY || why == NO_MEMORY)
        return fm__error(error, FM_ERROR_MEMORY, path, "%s", why);
    fm__log(FM_LOG_WARNING, "%s: this calibration is not used: it %s", path, why);
    return FM_OK;
}

bool fm__store_load(fm__store *store, const char *path, uint64_t now_s) {
    bool loaded;
    fm_error error = {0};
    if (read_store(store, path, now_s, &loaded, &error) != FM_OK)
        fm__log(FM_LOG_WARNING, "%s: this calibration is not used: it %s", path, error.message);
    return loaded;
}

/* ---- changing the file, one process at a time ---- */

enum { LOCK_WAIT_S = 5, LOCK_PAUSE_NS = 20000000 };

/* Locks the folder that the file is in: there is no further file to be left over, and a process
   that ends gives it back. -1: it could not be locked; a line in the log says why, and the caller
   goes on, as what was measured would be lost for certain. */
static int lock_folder(const char *path) {
    char folder[2048] = ".";
    const char *slash = strrchr(path, '/');
    if (slash != NULL)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), code = errno;
    const uint64_t begin_ns = fm__now_ns();
    while (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0) {
        code = errno;
        if ((code != EWOULDBLOCK && code != EINTR) ||
            fm__now_ns() - begin_ns > LOCK_WAIT_S * UINT64_C(1000000000)) {
            close(file);
            file = -1;
        } else {
            nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        }
    }
    if (file < 0 && code == EWOULDBLOCK)
        fm__log(FM_LOG_WARNING,
                "%s: another process has kept this folder locked for %d s: the calibration is "
                "changed all the same; what that process saves may be lost",
                folder, LOCK_WAIT_S);
    else if (file < 0)
        fm__log(FM_LOG_WARNING,
                "%s: this folder cannot be locked (%s): what another process saves at the same "
                "time may be lost",
                folder, strerror(code));
    return file;
}

/* Before the descriptor is closed, as a child of the process may have it, too. */
static void unlock_folder(int file) {
    if (file < 0)
        return;
    flock(file, LOCK_UN);
    close(file);
}

/* The file's entries that the store has none in place of, as far as there is room. */
static fm_status add_saved(fm__store *store, const char *path, uint64_t now_s, fm_error *error) {
    fm__store saved;
    bool loaded;
    uint32_t left_out = 0;
    fm__store_init(&saved, &store->key);
    fm_status status = read_store(&saved, path, now_s, &loaded, error);
    for (uint32_t i = 0; i < saved.n_entry && status == FM_OK; i++) {
        if (find_same(store, &saved.entries[i].shape) != NULL)
            continue;
        if (store->n_entry == FM__STORE_ENTRIES)
            left_out++;
        else
            status = fm__store_put(store, &saved.entries[i], error);
    }
    if (left_out > 0)
        fm__log(FM_LOG_WARNING,
                "%s: %u entries saved before are dropped: a calibration has room for %d", path,
                left_out, FM__STORE_ENTRIES);
    fm__store_finish(&saved);
    return status;
}

fm_status fm__store_save(fm__store *store, const char *path, uint64_t now_s, fm_error *error) {
    int lock = lock_folder(path);
    fm_status status = add_saved(store, path, now_s, error);
    if (status == FM_OK)
        status = write_store(store, path, now_s, error);
    unlock_folder(lock);
    return status;
}

fm_status fm__store_expire(const fm__store_key *key, const char *path, const fm__store_shape *shape,
                           uint64_t digest, uint64_t now_s, fm_error *error) {
    fm__store store;
    bool loaded;
    uint64_t saved;
    int lock = lock_folder(path);
    fm__store_init(&store, key);
    fm_status status = read_store(&store, path, now_s, &loaded, error);
    if (status == FM_OK && !fm__store_digest(&store, shape, &saved))
        status = fm__error_memory(error, path, store.n_entry * sizeof *store.entries);
    if (status == FM_OK && loaded && saved == digest && fm__store_drop(&store, shape) > 0)
        status = write_store(&store, path, store.saved_s, error);
    fm__store_finish(&store);
    unlock_folder(lock);
    return status;
}
