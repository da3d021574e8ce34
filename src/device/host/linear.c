/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/host/linear.c: products: how they are dealt out, and what follows them.
 *
 * Owns: nothing. Never does: arithmetic (kernels do). Called from: every thread of the team.
 *
 * A task is some panels times a tile of tokens, and tasks get smaller: whoever comes late, or is
 * slower, holds up the others by a small one only, and takes a task no sooner than it must (lab
 * note 059). For few tokens there is one tile and the weights are read once; every jump costs some
 * latencies of memory, so a thread's first task is half of its part in one run of lines (lab note
 * 056), each later round halves what is left, and where a thread goes on is known before its last
 * panel. For many, a kernel prepares a panel once for the tile's tokens and the tokens once for the
 * task's panels: tiles are as tall as keeps that small and leaves room for many panels, and are cut
 * further only where the panels alone do not keep the team busy. Where preparing tokens takes as
 * long as some panels do, the team does that once for all tasks, in a step of its own.
 */
#include "device/host/host.h"

enum {
    TASKS_A_THREAD = 8,     /* of many tokens */
    FINEST = 16,            /* of a thread's part of few tokens: its last tasks */
    LEAST_WORK = 16 * 1024, /* bytes of weights times tokens: below it taking a task shows */
    TILE_FLOATS = FM__HOST_TILE / 4,
    TALL = 256,     /* tokens a tile should reach where there are that many, and need not exceed */
    FEW_ROWS = 8,   /* up to so many the product is bound by memory */
    FEW_PANELS = 4, /* and a task need not have more panels than these, */
    FEW_BYTES = 64 * 1024, /* nor more weights */
    HALF_PANELS = 4,       /* tasks of many tokens are not halved to fewer, nor to fewer than NR */
};

static uint32_t divide_up(uint64_t a, uint64_t b) {
    return (uint32_t)((a + b - 1) / b);
}

static uint32_t limit(uint64_t x, uint32_t low, uint32_t high) {
    return x < low ? low : x > high ? high : (uint32_t)x;
}

/* Up to `count` turns of `panels` each, of those that are left. Returns how many are left then. */
static uint32_t add_round(fm__host_cut *cut, uint32_t left, uint32_t panels, uint32_t count) {
    if (left == 0 || count == 0)
        return left;
    cut->rounds[cut->n_round].panels = panels;
    cut->rounds[cut->n_round++].count = limit(count, 1, divide_up(left, panels));
    return (uint64_t)panels * count < left ? left - panels * count : 0;
}

/* Rounds of a turn a thread, each of half of what is left, while that is more than the smallest
   task; then smallest tasks. */
static void cut_few(fm__host_cut *cut, size_t panel_bytes, uint32_t nr, uint32_t threads) {
    const uint32_t fits = TILE_FLOATS / FM__PANEL_ROWS / cut->tokens;
    const uint32_t part = divide_up(cut->panels, threads);
    uint32_t least =
        limit(LEAST_WORK / ((uint64_t)panel_bytes * cut->tokens), divide_up(part, FINEST), part);
    nr = limit(FEW_BYTES / panel_bytes, limit(nr, 1, FEW_PANELS), FEW_PANELS);
    nr = nr == 3 ? 2 : nr; /* parts are rarely multiples of three */
    least = limit(divide_up(least, nr) * (uint64_t)nr, 1, part < fits ? part : fits);
    cut->tile = cut->tokens;
    cut->n_tile = 1;
    uint32_t left = cut->panels;
    if (threads == 1)
        left = add_round(cut, left, limit(left, 1, fits), UINT32_MAX);
    while (cut->n_round + 1 < FM__HOST_ROUNDS) {
        const uint32_t half = limit(left / 2 / threads / least * least, 0, fits);
        if (half <= least)
            break;
        left = add_round(cut, left, half, threads);
    }
    add_round(cut, left, least, UINT32_MAX);
}

/* Equal tasks, but for the last two of each thread, which are halved. */
static void cut_many(fm__host_cut *cut, size_t panel_bytes, uint32_t mr, uint32_t nr,
                     uint32_t threads) {
    const uint32_t panels = cut->panels, tokens = cut->tokens;
    const uint32_t tall = tokens < TALL ? tokens : TALL, talls = divide_up(tokens, TALL);
    const uint32_t most = TILE_FLOATS / FM__PANEL_ROWS / tall / nr * nr; /* whose tile is `tall` */
    const uint32_t even = divide_up((uint64_t)panels * talls, (uint64_t)threads * TASKS_A_THREAD);
    const uint32_t least = limit(LEAST_WORK / ((uint64_t)panel_bytes * tokens), 1, panels);
    const uint64_t wanted = even > least ? even : least;
    uint32_t block = limit(divide_up(wanted, nr) * (uint64_t)nr, 1, most > nr ? most : nr);
    block = block < panels ? block : panels;
    block = limit(divide_up((uint64_t)panels * talls, threads), 1, block);
    const uint32_t blocks = divide_up(panels, block);

    const uint32_t fits = TILE_FLOATS / (block * FM__PANEL_ROWS);
    uint32_t tiles = divide_up(tokens, fits < tall ? fits : tall);
    if (threads > 1 && blocks < 2 * threads)
        tiles = limit(divide_up(4 * (uint64_t)threads, blocks), tiles,
                      tiles > tokens / (4 * mr) ? tiles : tokens / (4 * mr));
    cut->tile = divide_up(divide_up(tokens, tiles), mr) * mr;
    cut->tile = limit(cut->tile, 1, fits < tokens ? fits : tokens);
    cut->n_tile = divide_up(tokens, cut->tile);

    const uint32_t last = threads > 1 ? divide_up(2 * (uint64_t)threads, cut->n_tile) : 0;
    const uint32_t left = add_round(cut, panels, block, blocks > last ? blocks - last : 0);
    const uint32_t floor = limit(nr, 1, block < HALF_PANELS ? block : HALF_PANELS);
    const uint32_t half = limit(block / 2, floor, block);
    add_round(cut, left, half, UINT32_MAX);
}

uint32_t fm__host_panels(const fm__linear_kernel *kernel, const fm__type *type, uint32_t tokens) {
    return tokens <= FEW_ROWS && type->quantised ? 1 : kernel->panels;
}

fm__host_cut fm__host_cut_product(uint32_t panels, uint32_t tokens, size_t panel_bytes, uint32_t mr,
                                  uint32_t nr, uint32_t threads) {
    fm__host_cut cut = {.panels = panels, .tokens = tokens};
    mr = mr == 0 ? 1 : mr;
    nr = nr == 0 ? 1 : nr;
    if (tokens <= FEW_ROWS)
        cut_few(&cut, panel_bytes, nr, threads);
    else
        cut_many(&cut, panel_bytes, mr, nr, threads);
    return cut;
}

fm__host_turn fm__host_cut_turn(const fm__host_cut *cut, uint32_t i) {
    uint32_t begin = 0;
    for (uint32_t r = 0; r < cut->n_round; r++) {
        const uint32_t panels = cut->rounds[r].panels, count = cut->rounds[r].count;
        if (i / cut->n_tile >= count) {
            begin += panels * count;
            i -= count * cut->n_tile;
            continue;
        }
        fm__host_turn turn = {.panel_begin = begin + i / cut->n_tile * panels,
                              .token_begin = i % cut->n_tile * cut->tile};
        turn.panel_end = turn.panel_begin + limit(panels, 1, cut->panels - turn.panel_begin);
        turn.token_end = turn.token_begin + limit(cut->tile, 1, cut->tokens - turn.token_begin);
        return turn;
    }
    return (fm__host_turn){0};
}

/* One task: rows [row_begin, row_end) x columns [panel_begin * 16, ...) of the step's op. */
typedef struct task {
    uint32_t panel_begin, panel_end;
    uint32_t row_begin, row_end;
    uint32_t column, columns; /* the first, and how many */
} task;

/* A step's product, cut. */
typedef struct product {
    const fm__weight *weight; /* the first */
    const fm__linear_kernel *kernel;
    fm__host_rows rows;
    uint32_t first, last; /* panels */
    fm__host_cut cut;
    bool few;           /* rows: bound by memory */
    fm__host_turn then; /* the thread's next turn, once taken */
} product;

static const fm__weight *weight_of(const fm__host_work *work, int which) {
    return work->tape->weights[work->step->op->weight[which]];
}

static const fm__linear_kernel *kernel_of(const fm__host_work *work, const fm__weight *weight) {
    return &work->kernels->linear[fm__type_index(weight->type)][work->step->op->fast];
}

static product product_of(const fm__host_work *work) {
    const fm__weight *weight = weight_of(work, 0);
    product p = {.weight = weight,
                 .kernel = kernel_of(work, weight),
                 .rows = fm__host_step_rows(work),
                 .last = weight->panels};
    if (work->step->axis == FM__AXIS_CHANNELS) {
        p.first = work->step->begin / FM__PANEL_ROWS;
        p.last = divide_up(work->step->end, FM__PANEL_ROWS);
    }
    const uint32_t tokens = p.rows.end - p.rows.begin;
    p.few = tokens <= FEW_ROWS;
    if (tokens > 0)
        p.cut =
            fm__host_cut_product(p.last - p.first, tokens, weight->layout.stride, p.kernel->tokens,
                                 fm__host_panels(p.kernel, weight->type, tokens), work->threads);
    return p;
}

const fm__linear_shared *fm__host_shared(const fm__host *host, const fm__tape *tape,
                                         const fm__op *op) {
    if (!fm__is_product(op->kind))
        return NULL;
    const fm__weight *weight = tape->weights[op->weight[0]];
    return host->kernels.linear[fm__type_index(weight->type)][op->fast].shared;
}

/* Whether the step's rows are prepared, as far as kernels with this form are concerned. */
static bool is_prepared(const fm__host_work *work, const fm__linear_kernel *kernel,
                        const fm__host_rows *rows) {
    const fm__weight *weight = weight_of(work, 0);
    const fm__linear_shared *shared = kernel_of(work, weight)->shared;
    return work->step->prepared && kernel->shared == shared &&
           shared->bytes(rows->end - rows->begin, weight->k) > 0;
}

void fm__host_prepare(const fm__host_work *work) {
    const fm__op *op = work->step->op;
    const fm__weight *weight = weight_of(work, 0);
    const fm__linear_shared *shared = kernel_of(work, weight)->shared;
    const fm__host_rows rows = fm__host_step_rows(work);
    const uint32_t tokens = rows.end - rows.begin;
    if (tokens == 0 || shared->bytes(tokens, weight->k) == 0)
        return;
    const fm__linear_args args = {
        .type = weight->type,
        .layout = weight->layout,
        .k = weight->k,
        .act = fm__host_row(work, op->in[0], rows.begin),
        .act_layout = work->tape->tensors[op->in[0]].layout,
        .tokens = tokens,
        .prepared = (uint8_t *)work->parts->states,
        .prepared_tokens = tokens,
    };
    const uint32_t units = shared->units(tokens, weight->k);
    for (uint32_t unit; (unit = fm__host_take(work)) < units;)
        shared->prepare(&args, unit);
}

static task task_of(const product *p, fm__host_turn turn) {
    task t = {.panel_begin = p->first + turn.panel_begin,
              .panel_end = p->first + turn.panel_end,
              .row_begin = p->rows.begin + turn.token_begin,
              .row_end = p->rows.begin + turn.token_end};
    t.column = t.panel_begin * FM__PANEL_ROWS;
    uint32_t end = t.panel_end * FM__PANEL_ROWS;
    t.columns = (end < p->weight->n ? end : p->weight->n) - t.column;
    return t;
}

fm__host_ahead fm__host_reading_begins(const fm__weight *weight, const fm__linear_kernel *kernel,
                                       uint32_t begin, uint32_t end, uint32_t tokens) {
    const bool backwards = kernel->backwards && tokens == 1;
    const uint32_t from = backwards ? end : begin;
    return (fm__host_ahead){.at = weight->host + from * weight->layout.stride,
                            .weight = weight,
                            .backwards = backwards};
}

static bool is_none(fm__host_turn turn) {
    return turn.panel_begin == turn.panel_end;
}

/* Where a turn begins to read. */
static fm__host_ahead begin_of(const product *p, fm__host_turn turn) {
    const task t = task_of(p, turn);
    return fm__host_reading_begins(p->weight, p->kernel, t.panel_begin, t.panel_end,
                                   t.row_end - t.row_begin);
}

/* That of the thread's first task of the product that follows this one: known, because the first
   `threads` turns of a product are not handed out but belong to a thread each. */
static fm__host_ahead next_product(const fm__host_work *work) {
    if (work->step->next_product == 0)
        return (fm__host_ahead){0};
    fm__host_work then = *work;
    then.step = work->step + work->step->next_product;
    const product p = product_of(&then);
    const fm__host_turn turn = fm__host_cut_turn(&p.cut, work->thread);
    return is_none(turn) ? (fm__host_ahead){0} : begin_of(&p, turn);
}

fm__host_region fm__host_first_region(const fm__host_work *work) {
    const product p = product_of(work);
    if (!p.few)
        return (fm__host_region){0};
    const fm__host_turn turn = fm__host_cut_turn(&p.cut, work->thread);
    if (is_none(turn))
        return (fm__host_region){0};
    const task t = task_of(&p, turn);
    const fm__host_ahead begin = begin_of(&p, turn);
    return (fm__host_region){.at = begin.at,
                             .bytes = (t.panel_end - t.panel_begin) * p.weight->layout.stride,
                             .backwards = begin.backwards};
}

/* Takes the thread's next turn. Returns where it goes on reading: with few rows, weights come from
   memory at the pace of its latency unless they are asked for early. */
static fm__host_ahead take_turn(const fm__host_work *work, product *p) {
    p->then = fm__host_cut_turn(&p->cut, work->threads + fm__host_take(work));
    if (!p->few)
        return (fm__host_ahead){0};
    return is_none(p->then) ? next_product(work) : begin_of(p, p->then);
}

/* Calls run(work, product, task) for the tasks that this thread takes; run takes the next one
   (multiply_last). */
static void for_tasks(const fm__host_work *work,
                      void (*run)(const fm__host_work *work, product *p, const task *t)) {
    product p = product_of(work);
    for (fm__host_turn turn = fm__host_cut_turn(&p.cut, work->thread); !is_none(turn);
         turn = p.then) {
        const task t = task_of(&p, turn);
        run(work, &p, &t);
    }
}

static bool laid_out_alike(const fm__weight *a, const fm__weight *b) {
    return a->type == b->type && a->k == b->k;
}

/* Panels [begin, end) of the task's part of in[0] . weight[which]^T to out (rows x the task's
   columns, `stride` floats a row). */
static void multiply_panels(const fm__host_work *work, const task *t, int which, uint32_t begin,
                            uint32_t end, fm__host_ahead ahead, float *out, size_t stride) {
    const fm__op *op = work->step->op;
    const fm__weight *weight = weight_of(work, which);
    const fm__linear_kernel *kernel = kernel_of(work, weight);
    const fm__host_rows rows = fm__host_step_rows(work);
    const bool prepared = is_prepared(work, kernel, &rows);
    const fm__linear_args args = {
        .type = weight->type,
        .layout = weight->layout,
        .panels = weight->host + begin * weight->layout.stride,
        .n = weight->n - begin * FM__PANEL_ROWS,
        .k = weight->k,
        .panel_begin = 0,
        .panel_end = end - begin,
        .act = fm__host_row(work, op->in[0], t->row_begin),
        .act_layout = work->tape->tensors[op->in[0]].layout,
        .tokens = t->row_end - t->row_begin,
        .out = out + (size_t)(begin - t->panel_begin) * FM__PANEL_ROWS,
        .out_stride = stride,
        .scratch = work->scratch,
        .ahead = ahead.at,
        .ahead_backwards = ahead.backwards,
        .ahead_alike = ahead.at != NULL && laid_out_alike(ahead.weight, weight),
        .asks = work->kernels->asks,
        .prepared = prepared ? (uint8_t *)work->parts->states : NULL,
        .prepared_first = t->row_begin - rows.begin,
        .prepared_tokens = rows.end - rows.begin,
    };
    kernel->fn(&args);
}

/* A product behind which the thread goes on with another turn. It takes that as late as it can, so
   that a slow thread holds nothing that others could do: when this one is done, or, with few rows,
   when one panel is left, so that it is known where to read on. Small turns are not worth a second
   call. */
static void multiply_last(const fm__host_work *work, product *p, const task *t, int which,
                          float *out, size_t stride) {
    uint32_t begin = t->panel_begin, end = t->panel_end;
    fm__host_ahead ahead = {0};
    if (p->few && end - begin > FEW_PANELS) {
        const fm__weight *weight = weight_of(work, which);
        const uint32_t tokens = t->row_end - t->row_begin;
        fm__host_ahead rest =
            fm__host_reading_begins(weight, kernel_of(work, weight), begin, begin + 1, tokens);
        if (rest.backwards) {
            multiply_panels(work, t, which, begin + 1, end, rest, out, stride);
            end = begin + 1;
        } else {
            rest = fm__host_reading_begins(weight, kernel_of(work, weight), end - 1, end, tokens);
            multiply_panels(work, t, which, begin, end - 1, rest, out, stride);
            begin = end - 1;
        }
    }
    if (p->few)
        ahead = take_turn(work, p);
    multiply_panels(work, t, which, begin, end, ahead, out, stride);
    if (!p->few)
        take_turn(work, p);
}

static float *tile(const fm__host_work *work, int which) {
    return (float *)(work->scratch + FM__LINEAR_SCRATCH + (size_t)which * FM__HOST_TILE);
}

static float *cell(const fm__host_work *work, int16_t tensor, uint32_t row, uint32_t column) {
    return (float *)fm__host_row(work, tensor, row) + column;
}

static void linear_task(const fm__host_work *work, product *p, const task *t) {
    const fm__op *op = work->step->op;
    bool bias = op->bias != FM__NONE, residual = op->in[1] != FM__NONE;
    /* A residual that out overwrites must be read before: the product waits in a tile. */
    bool in_place = residual && op->in[1] == op->out;
    size_t stride = in_place ? t->columns : work->tape->tensors[op->out].layout.stride / 4;
    float *out = in_place ? tile(work, 0) : cell(work, op->out, t->row_begin, t->column);
    multiply_last(work, p, t, 0, out, stride);
    if (!bias && !residual)
        return;
    const float *b = bias ? (const float *)work->tape->weights[op->bias]->host + t->column : NULL;
    for (uint32_t r = t->row_begin; r < t->row_end; r++) {
        float *row = out + (r - t->row_begin) * stride; /* (columns) */
        if (bias)
            work->kernels->add(row, b, t->columns, row);
        if (residual)
            work->kernels->add(row, cell(work, op->in[1], r, t->column), t->columns,
                               cell(work, op->out, r, t->column));
    }
}

static void glu_task(const fm__host_work *work, product *p, const task *t) {
    const fm__op *op = work->step->op;
    float *gate = tile(work, 0), *up = tile(work, 1); /* (rows, columns) */
    const fm__weight *second = weight_of(work, 1);
    fm__host_ahead beside = {0};
    if (p->few)
        beside = fm__host_reading_begins(second, kernel_of(work, second), t->panel_begin,
                                         t->panel_end, t->row_end - t->row_begin);
    multiply_panels(work, t, 0, t->panel_begin, t->panel_end, beside, gate, t->columns);
    multiply_last(work, p, t, 1, up, t->columns);
    for (uint32_t r = t->row_begin; r < t->row_end; r++) {
        size_t at = (size_t)(r - t->row_begin) * t->columns;
        work->kernels->glu[op->glu](gate + at, up + at, t->columns,
                                    cell(work, op->out, r, t->column));
    }
}

void fm__host_linear(const fm__host_work *work) {
    for_tasks(work, linear_task);
}

void fm__host_linear_glu(const fm__host_work *work) {
    for_tasks(work, glu_task);
}
