/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/run.c: rows through tapes, all or nothing.
 *
 * Owns: the taking of pages, the cutting into chunks, commit and roll-back. Never does: allocate.
 * Called from: any thread that holds the engine's lock.
 */
#include "engine/engine.h"

#include <string.h>

/* ---- pages ---- */

static fm_status pool_full(const fm_engine *engine, uint32_t group, const fm__run_entry *entry,
                           fm_error *error) {
    const fm__pool *pool = &engine->pools[group];
    return fm__error(error, FM_ERROR_LIMIT, "page pool",
                     "%u more tokens need a page of %d tokens, all %u pages (%llu tokens) are "
                     "taken",
                     entry->count, FM__PAGE_TOKENS, pool->n_page,
                     (unsigned long long)pool->n_page * FM__PAGE_TOKENS);
}

/* Gives the session pages for its new rows in one group; undo_* say what was done. */
static fm_status take_group(fm_engine *engine, const fm__run_entry *entry, uint32_t group,
                            fm_error *error) {
    fm_session *s = entry->session;
    fm__pool *pool = &engine->pools[group];
    uint32_t first = entry->base / FM__PAGE_TOKENS;
    uint32_t end = (entry->base + entry->count + FM__PAGE_TOKENS - 1) / FM__PAGE_TOKENS;
    s->undo_page[group] = FM__NO_PAGE;
    s->undo_from[group] = s->undo_end[group] = first;
    if (entry->base % FM__PAGE_TOKENS != 0) {
        uint32_t page = s->pages[group][first];
        if (pool->references[page] > 1) {
            uint32_t copy = fm__pool_take(pool);
            if (copy == FM__NO_PAGE)
                return pool_full(engine, group, entry, error);
            s->undo_page[group] = page; /* its reference is dropped at commit */
            s->pages[group][first] = copy;
            s->undo_from[group] = s->undo_end[group] = first + 1;
            fm_status status = fm__page_copy(engine, group, copy, page, error);
            if (status != FM_OK)
                return status;
        }
        s->undo_from[group] = s->undo_end[group] = first + 1;
    }
    for (uint32_t p = s->undo_from[group]; p < end; p++) {
        uint32_t page = fm__pool_take(pool);
        if (page == FM__NO_PAGE)
            return pool_full(engine, group, entry, error);
        /* What it holds is another sequence's, or nothing: no row sees keys behind its own
           position, and a snapshot leaves them out. */
        s->pages[group][p] = page;
        s->undo_end[group] = p + 1;
    }
    return FM_OK;
}

static void give_back_group(fm_engine *engine, fm_session *s, uint32_t group) {
    fm__pool *pool = &engine->pools[group];
    for (uint32_t p = s->undo_from[group]; p < s->undo_end[group]; p++) {
        fm__pool_drop(pool, s->pages[group][p]);
        s->pages[group][p] = FM__NO_PAGE;
    }
    if (s->undo_page[group] != FM__NO_PAGE) {
        uint32_t at = s->undo_from[group] - 1;
        fm__pool_drop(pool, s->pages[group][at]);
        s->pages[group][at] = s->undo_page[group];
        s->undo_page[group] = FM__NO_PAGE;
    }
    s->undo_end[group] = s->undo_from[group];
}

static void roll_back(fm_engine *engine, const fm__rows_view *rows, uint32_t n_entry) {
    for (uint32_t i = 0; i < n_entry; i++) {
        for (uint32_t g = 0; g < engine->model->n_group; g++)
            give_back_group(engine, rows->entries[i].session, g);
    }
}

static fm_status take_pages(fm_engine *engine, const fm__rows_view *rows, fm_error *error) {
    uint32_t n_group = engine->model->n_group;
    for (uint32_t i = 0; i < rows->n_entry; i++) {
        for (uint32_t g = 0; g < n_group; g++) {
            fm_status status = take_group(engine, &rows->entries[i], g, error);
            if (status != FM_OK) {
                for (; g != UINT32_MAX; g--)
                    give_back_group(engine, rows->entries[i].session, g);
                roll_back(engine, rows, i);
                return status;
            }
            rows->pages[(size_t)i * n_group + g] = rows->entries[i].session->pages[g];
        }
    }
    return FM_OK;
}

/* Pages a whole page behind the window go back to the pool: a truncate by up to 64 tokens still
   finds what it needs. */
static void drop_behind_window(fm_engine *engine, fm_session *s, uint32_t group) {
    uint32_t window = engine->model->groups[group].window;
    if (window == 0 || s->length + 1 <= window + FM__PAGE_TOKENS)
        return;
    uint32_t keep = (s->length + 1 - window - FM__PAGE_TOKENS) / FM__PAGE_TOKENS;
    for (; s->dropped[group] < keep; s->dropped[group]++) {
        uint32_t *page = &s->pages[group][s->dropped[group]];
        fm__pool_drop(&engine->pools[group], *page);
        *page = FM__NO_PAGE;
    }
}

static void commit(fm_engine *engine, const fm__rows_view *rows) {
    for (uint32_t r = 0; r < rows->n_row; r++) {
        const fm__run_entry *entry = &rows->entries[rows->sequence ? rows->sequence[r] : 0];
        uint32_t position = rows->position ? rows->position[r] : entry->base + r;
        entry->session->tokens[position] = rows->token[r];
    }
    for (uint32_t i = 0; i < rows->n_entry; i++) {
        fm_session *s = rows->entries[i].session;
        s->length += rows->entries[i].count;
        for (uint32_t g = 0; g < engine->model->n_group; g++) {
            if (s->undo_page[g] != FM__NO_PAGE)
                fm__pool_drop(&engine->pools[g], s->undo_page[g]);
            s->undo_page[g] = FM__NO_PAGE;
            drop_behind_window(engine, s, g);
        }
    }
}

/* ---- chunks ---- */

static fm_output wanted(const fm__rows_view *rows, uint32_t row) {
    if (rows->wanted)
        return (fm_output)rows->wanted[row];
    return row + 1 == rows->n_row ? rows->last : FM_OUTPUT_NONE;
}

static fm__bucket *choose_bucket(fm_engine *engine, uint32_t n_row, uint32_t n_output) {
    for (uint32_t i = 0; i < engine->n_bucket; i++) {
        const fm__tape *tape = engine->buckets[i].tape;
        if (tape->max_rows >= n_row && tape->max_outputs >= n_output)
            return &engine->buckets[i];
    }
    return &engine->buckets[engine->n_bucket - 1];
}

static void copy_output(const fm_engine *engine, const fm__tape *tape, fm_output kind,
                        uint32_t index, float *out) {
    const fm__tensor *t = &tape->tensors[kind == FM_OUTPUT_LOGITS ? tape->logits : tape->hidden];
    memcpy(out, engine->output + t->offset + index * t->layout.stride,
           (size_t)t->cols * sizeof(float));
}

static fm_status cancelled(const fm__rows_view *rows, uint32_t done, fm_error *error) {
    return fm__error(error, FM_ERROR_CANCELLED, "run", "cancelled after %u of %u rows", done,
                     rows->n_row);
}

static uint32_t longest(const fm__batch_view *view) {
    uint32_t cached = 0;
    for (uint32_t i = 0; i < view->n_row; i++)
        cached = view->position[i] + 1 > cached ? view->position[i] + 1 : cached;
    return cached;
}

/* The arm's way, made if this is its first run. An arm that cannot be made is out, and another one
   takes its place; where one was asked for, its error is the run's. */
static fm_status choose_way(fm_engine *engine, fm__bucket *bucket, uint32_t cached, fm_arm *arm,
                            fm__way **way, fm_error *error) {
    for (;;) {
        *arm = fm__choose(engine, bucket, cached);
        fm_status status = fm__arms_way(engine, bucket, *arm, way, error);
        if (status == FM_OK || status == FM_ERROR_DEVICE || engine->forced != FM_ARM_AUTO)
            return status;
        if (!fm__choose_remove(engine, *arm))
            return status;
        fm__log(FM_LOG_WARNING, "arm %s is left out: %s", fm_arm_name(*arm),
                error ? error->message : fm_status_text(status));
    }
}

/* Reading when recordings ran takes a call of the driver for each. So that is left until it is
   asked for, or until the recordings are about to run again. */
static void read_spans(fm_engine *engine, fm_lab_times *t) {
    const fm__way *way = engine->timed;
    fm__exec_times exec;
    engine->timed = NULL;
    if (!way || !way->exec)
        return;
    fm__exec_get_times(way->exec, &exec);
    t->overlap_ns += exec.overlap_ns;
    for (uint32_t u = 0; u < way->n_unit; u++) {
        t->busy_ns[way->place[u]] += exec.busy_ns[u];
        t->divided_ns[way->place[u]] += exec.divided_ns[u];
        t->compute_ns[way->place[u]] += exec.compute_ns[u];
        t->copy_ns[way->place[u]] += exec.copy_ns[u];
        t->observed |= exec.observed[u];
    }
}

static void note_times(fm_engine *engine, const fm__way *way, fm_arm arm,
                       const fm__batch_view *view, uint64_t ns) {
    fm_lab_times *t = &engine->times;
    engine->timed = way;
    engine->calls_of[arm]++;
    t->arm = arm;
    t->n_unit = engine->n_unit;
    t->streams = engine->need.ring > 0;
    t->tape_runs++;
    t->wall_ns += ns;
    for (uint32_t u = 0; u < engine->n_unit; u++) {
        t->weight_bytes[u] += way->weight_bytes[u];
        t->ops[u] +=
            (uint64_t)(way->ops_of_row[u] * view->n_row + way->ops_of_output[u] * view->n_output);
    }
}

static fm_status run_tape(fm_engine *engine, fm__bucket *bucket, const fm__batch_view *view,
                          fm_error *error) {
    uint32_t cached = longest(view);
    fm_arm arm = FM_ARM_AUTO;
    fm__way *way = NULL;
    fm_error why = {0};
    read_spans(engine, &engine->times);
    fm_status status = choose_way(engine, bucket, cached, &arm, &way, &why);
    uint64_t point = 0, begin_ns = fm__now_ns();
    if (status == FM_OK) {
        engine->run.batch = view;
        status = fm__exec_submit(way->exec, &engine->run, &point, &why);
    }
    if (status == FM_OK)
        status = fm__exec_wait(way->exec, point, &engine->run, &why);
    uint64_t ns = fm__now_ns() - begin_ns;
    engine->run.batch = NULL;
    if (status != FM_OK && error)
        *error = why;
    if (status != FM_OK || atomic_load(&engine->cancel)) /* ops may have been left out */
        return status;
    note_times(engine, way, arm, view, ns);
    fm__choose_feed(engine, bucket, cached, arm, ns, fm__choose_work(engine, view));
    return FM_OK;
}

/* Runs rows [begin, begin + n) and copies their outputs behind the first n_done ones. */
static fm_status run_chunk(fm_engine *engine, const fm__rows_view *rows, uint32_t begin, uint32_t n,
                           uint32_t *n_done, fm_error *error) {
    fm__batch_view view = {
        .n_row = n,
        .token = rows->token + begin,
        .position = engine->stage_position,
        .sequence = engine->stage_sequence,
        .output_row = engine->output_row,
        .n_sequence = rows->n_entry,
        .pages = rows->pages,
        .n_group = engine->model->n_group,
    };
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = begin + i;
        engine->stage_sequence[i] = rows->sequence ? rows->sequence[row] : 0;
        engine->stage_position[i] =
            rows->position ? rows->position[row] : rows->entries[0].base + row;
        if (wanted(rows, row) != FM_OUTPUT_NONE)
            engine->output_row[view.n_output++] = i;
    }
    fm__bucket *bucket = choose_bucket(engine, n, view.n_output);
    fm_status status = run_tape(engine, bucket, &view, error);
    /* A unit may have computed on what another one left out. */
    if ((status == FM_OK || status == FM_ERROR_NUMERIC) && atomic_load(&engine->cancel))
        status = cancelled(rows, begin, error);
    for (uint32_t i = 0; i < view.n_output && status == FM_OK; i++) {
        copy_output(engine, bucket->tape, wanted(rows, begin + engine->output_row[i]), i,
                    rows->out + *n_done * rows->out_stride);
        ++*n_done;
    }
    return status;
}

/* The longest chunk from `begin` that one tape run takes. */
static uint32_t chunk_length(const fm_engine *engine, const fm__rows_view *rows, uint32_t begin) {
    uint32_t n = 0, outputs = 0;
    while (begin + n < rows->n_row && n < engine->chunk_rows) {
        outputs += wanted(rows, begin + n) != FM_OUTPUT_NONE;
        if (outputs > engine->max_outputs)
            break;
        n++;
    }
    return n;
}

static fm_status check_entries(const fm__rows_view *rows, fm_error *error) {
    for (uint32_t i = 0; i < rows->n_entry; i++) {
        const fm__run_entry *e = &rows->entries[i];
        if (e->session->length != e->base)
            return fm__error(error, FM_ERROR_STATE, "batch",
                             "a session holds %u tokens, it held %u when its rows were added",
                             e->session->length, e->base);
        if (e->count > e->session->context_length - e->base)
            return fm__error(error, FM_ERROR_LIMIT, "context",
                             "%u tokens are needed (%u held, %u new), the session's context is %u",
                             e->base + e->count, e->base, e->count, e->session->context_length);
    }
    return FM_OK;
}

static fm_status run_chunks(fm_engine *engine, const fm__rows_view *rows, fm_error *error) {
    fm_status status = FM_OK;
    uint32_t done = 0;
    engine->times = (fm_lab_times){0};
    engine->timed = NULL;
    for (uint32_t begin = 0; begin < rows->n_row && status == FM_OK;) {
        uint32_t n = chunk_length(engine, rows, begin);
        status = run_chunk(engine, rows, begin, n, &done, error);
        if (status != FM_OK && begin > 0) { /* the message counts rows of the chunk */
            char place[48];
            snprintf(place, sizeof(place), "chunk from row %u on", begin);
            status = fm__error_within(error, status, place);
        }
        begin += n;
    }
    return status;
}

fm_status fm__engine_run_again(fm_engine *engine, const fm__rows_view *rows, fm_error *error) {
    return run_chunks(engine, rows, error);
}

/* One try: everything, or nothing. */
static fm_status try_rows(fm_engine *engine, const fm__rows_view *rows, fm_error *error) {
    fm_status status = FM_OK;
    for (uint32_t i = 0; i < rows->n_entry && status == FM_OK; i++)
        status = fm__loss_refresh(engine, rows->entries[i].session, error);
    if (status == FM_OK)
        status = take_pages(engine, rows, error);
    if (status != FM_OK)
        return status;
    status = run_chunks(engine, rows, error);
    if (status == FM_OK) {
        commit(engine, rows);
    } else {
        roll_back(engine, rows, rows->n_entry);
        engine->times = (fm_lab_times){0};
        engine->timed = NULL;
    }
    return status;
}

fm_status fm__engine_run_rows(fm_engine *engine, const fm__rows_view *rows, fm_error *error) {
    atomic_store(&engine->cancel, 0);
    fm_status status = check_entries(rows, error);
    if (status == FM_OK && engine->needs_rebuild)
        status = fm__loss_check(engine, &(bool){false}, error);
    if (status != FM_OK)
        return status;
    /* Each unit can be lost once, so this ends. */
    for (;;) {
        fm_error why = {0};
        status = try_rows(engine, rows, &why);
        bool changed = false;
        if (status == FM_ERROR_DEVICE) {
            fm_error other = {0};
            fm_status lost = fm__loss_check(engine, &changed, &other);
            if (lost != FM_OK) {
                why = other;
                status = lost;
            }
        }
        if (status != FM_OK && !changed && error)
            *error = why;
        if (!changed)
            return status;
    }
}

fm_status fm_lab_last_times(fm_engine *engine, fm_lab_times *out, fm_error *error) {
    fm_status status = FM_OK;
    pthread_mutex_lock(&engine->lock);
    if (engine->times.tape_runs == 0)
        status =
            fm__error(error, FM_ERROR_STATE, "times", "the last run failed, or there was none");
    read_spans(engine, &engine->times);
    *out = engine->times;
    pthread_mutex_unlock(&engine->lock);
    return status;
}
