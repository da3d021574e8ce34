/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/snapshot.c: a session to a file and back.
 *
 * Owns: the file's layout. Never does: trust a byte of a file: counts are compared with the
 * engine's own before anything is sized by them. Called from: the user's threads.
 *
 * Little-endian words, each part padded to 8 bytes:
 *     head | groups | tokens | for each group its pages from the first held one on, in the order of
 *     positions, each page layer by layer | checksum of everything before it
 */
#include "engine/engine.h"

#include <string.h>

#define MAGIC UINT64_C(0x50414e534d465346) /* "FSFMSNAP" */

enum { VERSION = 1 };

typedef struct head {
    uint64_t magic, model_hash;
    uint32_t version, numeric_class, n_group, length;
} head;

typedef struct group_head {
    uint32_t n_layer, n_kv_head, key_dim, value_dim, window;
    uint16_t page_tokens, cache_type;
    uint32_t dropped, n_page;
} group_head;

static uint32_t pages_of(uint32_t length) {
    return (length + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
}

static head make_head(const fm_session *s) {
    return (head){.magic = MAGIC,
                  .model_hash = s->engine->info.model_hash,
                  .version = VERSION,
                  .numeric_class = s->engine->info.numeric_class,
                  .n_group = s->engine->model->n_group,
                  .length = s->length};
}

static group_head make_group(const fm_session *s, uint32_t g) {
    const fm__cache_group *group = &s->engine->model->groups[g];
    return (group_head){.n_layer = group->n_layer,
                        .n_kv_head = group->n_kv_head,
                        .key_dim = group->key_dim,
                        .value_dim = group->value_dim,
                        .window = group->window,
                        .page_tokens = FM__PAGE_TOKENS,
                        .cache_type = (uint16_t)group->type,
                        .dropped = s->dropped[g],
                        .n_page = pages_of(s->length) - s->dropped[g]};
}

static size_t layer_page_bytes(const fm__cache_group *g) {
    return g->n_kv_head * g->head_bytes; /* a multiple of 8 */
}

/* ---- save ---- */

typedef struct output {
    fm__writer *writer;
    uint64_t checksum;
    fm_error *error;
} output;

/* Padded to 8 bytes, in the file and for the checksum. */
static fm_status put(output *o, const void *data, size_t bytes) {
    size_t whole = bytes / 8 * 8;
    char tail[8] = {0};
    memcpy(tail, (const char *)data + whole, bytes - whole);
    o->checksum = fm__hash(o->checksum, data, whole);
    fm_status status = fm__writer_write(o->writer, data, whole, o->error);
    if (status == FM_OK && bytes > whole) {
        o->checksum = fm__hash(o->checksum, tail, sizeof(tail));
        status = fm__writer_write(o->writer, tail, sizeof(tail), o->error);
    }
    return status;
}

/* Keys and values from position `from` of the page on, which no row of the session wrote, are left
   out: they may be another session's. */
static void blank_f16(const fm__cache_group *g, uint8_t *first, size_t t) {
    uint16_t *keys = (uint16_t *)(void *)first;
    uint16_t *values = keys + (size_t)FM__PAGE_TOKENS * g->key_dim;
    for (uint32_t d = 0; d < g->key_dim; d++)
        keys[(t / 16 * g->key_dim + d) * 16 + t % 16] = 0;
    memset(values + t * g->value_dim, 0, g->value_dim * sizeof(*values));
}

static void blank_q8_0(const fm__cache_group *g, uint8_t *first, size_t t) {
    fm__cache_parts parts = fm__cache_q8_0_parts(g->key_dim, g->value_dim);
    uint16_t *key_scales = (uint16_t *)(void *)(first + parts.key_scales);
    uint16_t *value_scales = (uint16_t *)(void *)(first + parts.value_scales);
    size_t words = (g->key_dim + 3) / 4, blocks = fm__cache_blocks(g->key_dim);
    for (size_t w = 0; w < words; w++)
        memset(first + ((t / 16 * words + w) * 16 + t % 16) * 4, 0, 4);
    for (size_t b = 0; b < blocks; b++)
        key_scales[(t / 16 * blocks + b) * 16 + t % 16] = 0;
    for (size_t b = 0; b < fm__cache_blocks(g->value_dim); b++)
        value_scales[b * FM__PAGE_TOKENS + t] = 0;
    uint8_t *block = first + parts.values;
    for (size_t d = 0, n; d < g->value_dim; d += n, block += n * FM__PAGE_TOKENS) {
        n = fm__min_size(g->value_dim - d, FM__CACHE_BLOCK);
        for (size_t i = 0; i < n; i++)
            block[(t / 4 * n + i) * 4 + t % 4] = 0;
    }
}

static void blank(const fm__cache_group *g, uint8_t *page, uint32_t from) {
    for (uint32_t h = 0; h < g->n_kv_head; h++)
        for (uint32_t t = from; t < FM__PAGE_TOKENS; t++)
            (g->type == FM__CACHE_Q8_0 ? blank_q8_0 : blank_f16)(g, page + h * g->head_bytes, t);
}

static fm_status put_pages(output *o, const fm_session *s, uint32_t g, uint8_t *room) {
    const fm__cache_group *group = &s->engine->model->groups[g];
    for (uint32_t p = s->dropped[g]; p < pages_of(s->length); p++) {
        for (uint32_t layer = 0; layer < group->n_layer; layer++) {
            fm_status status = fm__page_read(s->engine, g, s->pages[g][p], layer, room, o->error);
            if (status != FM_OK)
                return status;
            if (s->length - p * FM__PAGE_TOKENS < FM__PAGE_TOKENS)
                blank(group, room, s->length - p * FM__PAGE_TOKENS);
            status = put(o, room, layer_page_bytes(group));
            if (status != FM_OK)
                return status;
        }
    }
    return FM_OK;
}

static fm_status save(output *o, const fm_session *s) {
    head h = make_head(s);
    fm_status status = put(o, &h, sizeof(h));
    for (uint32_t g = 0; g < h.n_group && status == FM_OK; g++) {
        group_head group = make_group(s, g);
        status = put(o, &group, sizeof(group));
    }
    if (status == FM_OK)
        status = put(o, s->tokens, s->length * sizeof(int32_t));
    for (uint32_t g = 0; g < h.n_group && status == FM_OK; g++)
        status = put_pages(o, s, g, s->engine->page);
    uint64_t checksum = o->checksum;
    return status == FM_OK ? put(o, &checksum, sizeof(checksum)) : status;
}

fm_status fm_session_save(const fm_session *session, const char *path, fm_error *error) {
    output o = {.checksum = FM__HASH_SEED, .error = error};
    fm_status status = fm__writer_open(&o.writer, path, error);
    if (status != FM_OK)
        return status;
    pthread_mutex_lock(&session->engine->lock);
    /* Only where a unit's loss took the cache does this change anything, and nothing one can see.
     */
    status = fm__loss_refresh(session->engine, (fm_session *)(uintptr_t)session, error);
    if (status == FM_OK)
        status = save(&o, session);
    pthread_mutex_unlock(&session->engine->lock);
    if (status == FM_OK)
        return fm__writer_commit(&o.writer, error);
    fm__writer_abort(&o.writer);
    return status;
}

/* ---- restore ---- */

typedef struct input {
    const uint8_t *data;
    size_t bytes, at;
    const char *path;
    fm_error *error;
} input;

static fm_status malformed(const input *in, const char *what) {
    return fm__error(in->error, FM_ERROR_FORMAT, in->path, "%s at offset %zu", what, in->at);
}

/* A part of the file; NULL where the file ends before it. */
static const void *get(input *in, size_t bytes) {
    size_t padded = fm__round_up(bytes, 8);
    if (padded > in->bytes - in->at)
        return NULL;
    const void *part = in->data + in->at;
    in->at += padded;
    return part;
}

static fm_status read_head(input *in, const fm_session *s, uint32_t *length) {
    head want = make_head(s), h;
    const void *part = get(in, sizeof(h));
    if (!part)
        return malformed(in, "ends inside the head");
    memcpy(&h, part, sizeof(h));
    in->at = 0;
    if (h.magic != MAGIC)
        return malformed(in, "not a session snapshot");
    if (h.version != VERSION)
        return fm__error(in->error, FM_ERROR_FORMAT, in->path, "version %u, this build reads %d",
                         h.version, VERSION);
    if (h.model_hash != want.model_hash)
        return fm__error(in->error, FM_ERROR_STATE, in->path,
                         "made with another model (hash %016llx, this one has %016llx)",
                         (unsigned long long)h.model_hash, (unsigned long long)want.model_hash);
    if (h.numeric_class != want.numeric_class)
        return fm__error(in->error, FM_ERROR_STATE, in->path,
                         "made in numeric class %s, the engine runs %s",
                         h.numeric_class == FM_CLASS_EXACT ? "exact" : "fast",
                         want.numeric_class == FM_CLASS_EXACT ? "exact" : "fast");
    if (h.n_group != want.n_group)
        return malformed(in, "another number of cache groups");
    if (h.length > s->context_length)
        return fm__error(in->error, FM_ERROR_LIMIT, in->path,
                         "holds %u tokens, the session's context is %u", h.length,
                         s->context_length);
    *length = h.length;
    in->at = sizeof(h);
    return FM_OK;
}

static fm_status read_group(input *in, const fm_session *s, uint32_t g, uint32_t length,
                            uint32_t *dropped) {
    group_head want = make_group(s, g), h;
    const void *part = get(in, sizeof(h));
    if (!part)
        return malformed(in, "ends inside the groups");
    memcpy(&h, part, sizeof(h));
    uint32_t n_page = pages_of(length);
    /* Only pages that lie behind the window may be missing. */
    uint32_t most =
        want.window && length + 1 > want.window ? (length + 1 - want.window) / FM__PAGE_TOKENS : 0;
    if (h.cache_type != want.cache_type && h.cache_type < FM__CACHE_TYPES)
        return fm__error(in->error, FM_ERROR_STATE, in->path,
                         "holds keys and values as %s, the engine keeps them as %s",
                         fm__cache_type_name((fm__cache_type)h.cache_type),
                         fm__cache_type_name((fm__cache_type)want.cache_type));
    if (h.cache_type != want.cache_type || h.n_layer != want.n_layer ||
        h.n_kv_head != want.n_kv_head || h.key_dim != want.key_dim ||
        h.value_dim != want.value_dim || h.window != want.window ||
        h.page_tokens != FM__PAGE_TOKENS || h.dropped > most || h.dropped > n_page ||
        h.n_page != n_page - h.dropped)
        return malformed(in, "another cache geometry");
    *dropped = h.dropped;
    return FM_OK;
}

static bool finite_halves(const uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 2)
        if ((at[i + 1] & 0x7C) == 0x7C)
            return false;
    return true;
}

/* bf16: +0, or 2^-29 to 2^93, between which a block's 127th part lies. Units differ in smaller
 * ones. */
static bool usual_scales(const uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 2) {
        uint32_t bits = (uint32_t)at[i] | (uint32_t)at[i + 1] << 8;
        if (bits != 0 && (bits < (127 - 29) << 7 || bits > (127 + 93) << 7))
            return false;
    }
    return true;
}

/* Whether a layer's part of a page holds numbers with which every unit computes the same. */
static bool is_usable(const fm__cache_group *g, const uint8_t *page) {
    fm__cache_parts parts = fm__cache_q8_0_parts(g->key_dim, g->value_dim);
    if (g->type != FM__CACHE_Q8_0)
        return finite_halves(page, layer_page_bytes(g));
    for (uint32_t h = 0; h < g->n_kv_head; h++, page += g->head_bytes)
        if (!usual_scales(page + parts.key_scales, parts.values - parts.key_scales) ||
            !usual_scales(page + parts.value_scales, parts.end - parts.value_scales))
            return false;
    return true;
}

/* Checks the whole file; nothing of the session changes. Leaves in->at at the first page. */
static fm_status check(input *in, const fm_session *s, uint32_t *length,
                       uint32_t dropped[FM__MAX_GROUPS], const uint8_t **tokens) {
    const fm__model *model = s->engine->model;
    fm_status status = read_head(in, s, length);
    for (uint32_t g = 0; g < model->n_group && status == FM_OK; g++)
        status = read_group(in, s, g, *length, &dropped[g]);
    if (status != FM_OK)
        return status;
    *tokens = get(in, *length * sizeof(int32_t));
    if (!*tokens)
        return malformed(in, "ends inside the tokens");
    for (uint32_t i = 0; i < *length; i++) {
        int32_t id;
        memcpy(&id, *tokens + i * sizeof(id), sizeof(id));
        if (id < 0 || (uint32_t)id >= model->hparams.n_vocab)
            return malformed(in, "a token outside the vocabulary");
    }
    size_t pages_at = in->at;
    for (uint32_t g = 0; g < model->n_group; g++) {
        const fm__cache_group *group = &model->groups[g];
        uint32_t parts = (pages_of(*length) - dropped[g]) * group->n_layer;
        for (uint32_t i = 0; i < parts; i++) {
            const uint8_t *page = get(in, layer_page_bytes(group));
            if (!page)
                return malformed(in, "ends inside the pages");
            if (!is_usable(group, page))
                return malformed(in, "a key or value that is not finite");
        }
    }
    size_t covered = in->at;
    const void *stored = get(in, sizeof(uint64_t));
    uint64_t checksum = fm__hash(FM__HASH_SEED, in->data, covered), found;
    if (!stored || in->at != in->bytes)
        return malformed(in, "ends elsewhere than its head says");
    memcpy(&found, stored, sizeof(found));
    if (found != checksum)
        return malformed(in, "a wrong checksum");
    in->at = pages_at;
    return FM_OK;
}

/* Pages for the whole session, or none. */
static fm_status take_pages(fm_session *s, uint32_t length, const uint32_t *dropped,
                            fm_error *error) {
    fm_engine *engine = s->engine;
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        uint32_t need = pages_of(length) - dropped[g];
        if (need > engine->pools[g].n_free)
            return fm__error(error, FM_ERROR_LIMIT, "page pool",
                             "needs %u pages of %d tokens, %u of %u are free", need,
                             FM__PAGE_TOKENS, engine->pools[g].n_free, engine->pools[g].n_page);
    }
    for (uint32_t g = 0; g < engine->model->n_group; g++) {
        s->dropped[g] = dropped[g];
        for (uint32_t p = dropped[g]; p < pages_of(length); p++)
            s->pages[g][p] = fm__pool_take(&engine->pools[g]);
    }
    return FM_OK;
}

static fm_status copy_pages(input *in, fm_session *s, uint32_t length) {
    for (uint32_t g = 0; g < s->engine->model->n_group; g++) {
        const fm__cache_group *group = &s->engine->model->groups[g];
        for (uint32_t p = s->dropped[g]; p < pages_of(length); p++) {
            for (uint32_t layer = 0; layer < group->n_layer; layer++) {
                fm_status status = fm__page_write(s->engine, g, s->pages[g][p], layer,
                                                  get(in, layer_page_bytes(group)), in->error);
                if (status != FM_OK)
                    return status;
            }
        }
    }
    return FM_OK;
}

static fm_status restore(fm_session *s, input *in) {
    uint32_t length = 0, dropped[FM__MAX_GROUPS] = {0};
    const uint8_t *tokens = NULL;
    if (s->length != 0)
        return fm__error(in->error, FM_ERROR_STATE, in->path,
                         "the session is not empty: it holds %u tokens", s->length);
    fm_status status = check(in, s, &length, dropped, &tokens);
    if (status == FM_OK)
        status = take_pages(s, length, dropped, in->error);
    if (status != FM_OK)
        return status;
    status = copy_pages(in, s, length);
    if (status != FM_OK) {
        fm__session_drop_pages(s, 0);
        return status;
    }
    s->epoch = s->engine->epoch;
    memcpy(s->tokens, tokens, length * sizeof(int32_t));
    s->length = length;
    return FM_OK;
}

fm_status fm_session_restore(fm_session *session, const char *path, fm_error *error) {
    fm__mapping mapping;
    fm_status status = fm__mapping_open(&mapping, path, error);
    if (status != FM_OK)
        return status;
    input in = {.data = mapping.data, .bytes = mapping.bytes, .path = path, .error = error};
    pthread_mutex_lock(&session->engine->lock);
    status = restore(session, &in);
    pthread_mutex_unlock(&session->engine->lock);
    fm__mapping_close(&mapping);
    return status;
}
