/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device: every op against the interpreter for many shapes, team sizes and rungs; ranges
 * on both axes; failures; many submissions in flight; waits; the front end's refusals.
 */
#include <math.h>

#include "device/host/host.h"
#include "interpreter.h"

static fm__device *make_device(uint32_t threads, const char *rung) {
    fm__device *device = NULL;
    int cpus[16];
    for (int i = 0; i < 16; i++)
        cpus[i] = -1; /* unpinned: tests run beside others */
    const fm__host_options options = {.threads = threads, .rung = rung, .cpus = cpus};
    CHECK(fm__device_host_create(&device, &options, why));
    return device;
}

static void record_and_run(fm__device *device, const fm__tape *tape, const fm__op_range *ranges,
                           uint32_t n, const fm__run *run) {
    fm__recording *recording = NULL;
    fm__timeline done;
    fm__timeline_init(&done);
    CHECK(fm__device_record(device, tape, ranges, n, &recording, why));
    const fm__segment segment = {.recording = recording, .signal = &done, .signal_value = 1};
    CHECK(fm__device_submit(device, &segment, 1, run, 0, why));
    fm__timeline_wait(&done, 1);
    fm__span span = fm__device_recording_span(recording);
    assert_true(span.begin_ns > 0 && span.end_ns >= span.begin_ns);
    fm__device_recording_destroy(&recording);
    assert_null(recording);
}

static void run_whole(fm__device *device, const fm__tape *tape, const fm__run *run) {
    fm__op_range ranges[256];
    assert_true(tape->n_op <= 256);
    for (uint32_t i = 0; i < tape->n_op; i++)
        ranges[i] = (fm__op_range){.op = i, .axis = FM__AXIS_WHOLE};
    record_and_run(device, tape, ranges, tape->n_op, run);
}

/* Runs the tape on the device and compares the tensor (`rows` of them) with the interpreter. */
static void conform(fixture *f, const fm__tape *tape, int16_t result, uint32_t rows,
                    fm__device *device) {
    interpreter in;
    fm__run run;
    fm__run_status status;
    interpreter_init(&in, f, tape);
    interpreter_run(&in, tape, &f->batch);
    run_init(&run, &status, f, tape, device);
    run_whole(device, tape, &run);
    assert_true(status.first == UINT64_MAX);
    interpreter_compare(&in, tape, result, rows, &run);
    run_finish(&run);
    interpreter_finish(&in);
}

static const uint32_t THREADS[] = {1, 2, 3, 5};

/* ---- products ---- */

typedef struct product_case {
    fm__dtype type;
    uint32_t n, k, rows;
    int bias, residual; /* residual 2: in place */
    bool glu;
} product_case;

/* embed -> (quantise) -> linear or glu. Returns the result. */
static int16_t product_tape(fixture *f, const product_case *c, fm__tape **out) {
    uint32_t vocab = 50;
    int16_t table = fixture_gather(f, "embed", FM__F32, vocab, c->k);
    int16_t residual_table = fixture_gather(f, "residual", FM__F32, vocab, c->n);
    int16_t weight = fixture_linear(f, "weight", c->type, c->n, c->k);
    int16_t up = fixture_linear(f, "up", c->type, c->n, c->k);
    int16_t bias = fixture_vector(f, "bias", 1, c->n, false);
    fm__act act = f->weights[weight]->type->act[0];
    fixture_batch(f, c->rows, 0, vocab, 0);
    fm__tape *t = *out = fixture_tape(f, c->rows + 3, 0);
    fm__rows R = FM__ROWS_BATCH;
    int16_t x = fm__tape_tensor(t, "x", FM__ACT_F32, c->k, R, FM__SLOT_SCRATCH);
    int16_t a = x;
    fm__op *op = fm__tape_op(t, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = table;
    if (act != FM__ACT_F32) {
        a = fm__tape_tensor(t, "a", act, c->k, R, FM__SLOT_SCRATCH);
        op = fm__tape_op(t, FM__OP_QUANTISE, FM__NONE);
        op->in[0] = x;
        op->out = a;
    }
    int16_t y = fm__tape_tensor(t, "y", FM__ACT_F32, c->n, R, FM__SLOT_OUTPUT), r = FM__NONE;
    if (c->residual != 0) {
        r = c->residual == 2 ? y : fm__tape_tensor(t, "r", FM__ACT_F32, c->n, R, FM__SLOT_SCRATCH);
        op = fm__tape_op(t, FM__OP_EMBED, FM__NONE);
        op->out = r;
        op->weight[0] = residual_table;
    }
    op = fm__tape_op(t, c->glu ? FM__OP_LINEAR_GLU : FM__OP_LINEAR, FM__NONE);
    op->in[0] = a;
    op->in[1] = r;
    op->out = y;
    op->weight[0] = weight;
    if (c->glu) {
        op->weight[1] = up;
        op->glu = c->rows % 2 == 0 ? FM__GLU_SILU : FM__GLU_GELU;
    }
    if (c->bias)
        op->bias = bias;
    CHECK(fm__tape_finish(t, why));
    return y;
}

static void check_product(const product_case *c, fm__device *device) {
    fixture f;
    fm__tape *tape = NULL;
    fixture_init(&f, c->n * 31 + c->rows);
    int16_t y = product_tape(&f, c, &tape);
    conform(&f, tape, y, c->rows, device);
    fm__tape_destroy(&tape);
    fixture_finish(&f);
}

static void products_of_odd_shapes(void **state) {
    (void)state;
    static const uint32_t ns[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100, 128, 300};
    static const uint32_t rows[] = {1, 2, 3, 7, 9, 31, 33, 100};
    static const fm__dtype types[] = {FM__F32, FM__Q8_0, FM__Q4_K, FM__F16};
    for (size_t t = 0; t < 4; t++) {
        fm__device *device = make_device(THREADS[t], NULL);
        int i = 0;
        for (size_t a = 0; a < sizeof ns / sizeof *ns; a++)
            for (size_t b = 0; b < sizeof rows / sizeof *rows; b++, i++) {
                fm__dtype type = types[(a + b) % 4];
                uint32_t k = type == FM__F32 || type == FM__F16 ? 37 : 256;
                const product_case c = {
                    type, ns[a], k, rows[b], i / 2 % 2, i % 3, i % 4 == 3 && i % 3 == 0};
                product_case fixed = c;
                if (fixed.glu)
                    fixed.bias = 0;
                check_product(&fixed, device);
            }
        fm__device_destroy(&device);
        assert_null(device);
    }
}

static void wide_products(void **state) {
    (void)state;
    /* More columns and tokens than one tile holds, K over a segment's border. */
    static const product_case cases[] = {
        {FM__Q8_0, 2000, 1056, 3, 1, 2, false}, {FM__Q8_0, 140, 32, 700, 1, 2, false},
        {FM__Q8_0, 300, 32, 530, 0, 0, true},   {FM__Q4_K, 1600, 256, 1, 0, 0, true},
        {FM__Q8_0, 48, 32, 1100, 0, 1, false},  {FM__Q8_0, 2560, 32, 33, 0, 0, true},
    };
    fm__device *device = make_device(3, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_product(&cases[i], device);
    fm__device_destroy(&device);
}

/* Turns follow each other without a gap, fit in a tile, and end with the product; whoever has none
   has none for good. Returns how many. */
static uint32_t turns_cover_everything(const fm__host_cut *cut) {
    uint32_t n = 0, panel = 0, token = 0;
    for (;; n++) {
        const fm__host_turn turn = fm__host_cut_turn(cut, n);
        if (turn.panel_begin == turn.panel_end)
            break;
        assert_int_equal(turn.panel_begin, panel);
        assert_int_equal(turn.token_begin, token);
        assert_true(turn.panel_end > panel && turn.panel_end <= cut->panels);
        assert_true(turn.token_end > token && turn.token_end <= cut->tokens);
        assert_true((size_t)(turn.panel_end - panel) * 16 * (turn.token_end - token) * 4 <=
                    FM__HOST_TILE);
        token = turn.token_end % cut->tokens;
        panel = token == 0 ? turn.panel_end : panel;
    }
    assert_int_equal(panel, cut->panels);
    assert_int_equal(token, 0);
    const fm__host_turn later = fm__host_cut_turn(cut, n + 100);
    assert_int_equal(later.panel_begin, later.panel_end);
    return n;
}

static uint32_t panels_of(const fm__host_cut *cut, uint32_t i) {
    const fm__host_turn turn = fm__host_cut_turn(cut, i);
    return turn.panel_end - turn.panel_begin;
}

static void cuts_cover_everything(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 7, 8, 31, 33, 100, 512, 1187, 9496};
    for (size_t p = 0; p < 11; p++)
        for (size_t t = 0; t < 10; t++)
            for (uint32_t threads = 1; threads <= 96; threads += 19)
                for (uint32_t nr = 1; nr <= 16; nr += nr < 4 ? 1 : 12) {
                    const fm__host_cut c =
                        fm__host_cut_product(sizes[p], sizes[t], 1152, nr * 3, nr, threads);
                    assert_true(c.n_tile == 1 || sizes[t] > 8);
                    const uint32_t n = turns_cover_everything(&c);
                    for (uint32_t i = 1; i < n; i++) /* the largest come first */
                        assert_true(panels_of(&c, i) <= panels_of(&c, i - 1));
                }
}

/* What a thread does last is small beside what it does in all. */
static void late_turns_are_small(void **state) {
    (void)state;
    const fm__host_cut decode = fm__host_cut_product(256, 1, 9216, 4, 2, 2);
    assert_int_equal(decode.n_tile, 1);
    assert_int_equal(panels_of(&decode, 1), 64); /* half of a part without a jump */
    assert_int_equal(panels_of(&decode, 2), 32);
    assert_int_equal(panels_of(&decode, turns_cover_everything(&decode) - 1), 8);
    const fm__host_cut alone = fm__host_cut_product(256, 1, 9216, 4, 2, 1);
    assert_int_equal(panels_of(&alone, 0), 256);
    /* 14 panels a thread, taken one by one: 64 KiB pay for a jump */
    const fm__host_cut small = fm__host_cut_product(224, 1, 32256, 16, 1, 16);
    assert_int_equal(panels_of(&small, 0), 6);
    assert_int_equal(panels_of(&small, turns_cover_everything(&small) - 1), 2);
    const fm__host_cut wide = fm__host_cut_product(224, 1, 170496, 16, 1, 16);
    assert_int_equal(panels_of(&wide, 0), 7);
    assert_int_equal(panels_of(&wide, turns_cover_everything(&wide) - 1), 1);
    /* of four, which are read side by side, never less */
    const fm__host_cut floats = fm__host_cut_product(224, 1, 170496, 16, 4, 16);
    assert_int_equal(panels_of(&floats, 0), 4);
    const fm__host_cut threes = fm__host_cut_product(128, 1, 18432, 8, 1, 16);
    assert_int_equal(panels_of(&threes, turns_cover_everything(&threes) - 2), 2);
    const fm__host_cut narrow = fm__host_cut_product(2, 512, 9216, 4, 2, 8);
    assert_true(narrow.n_tile >= 8); /* few panels: tokens keep the team busy */
    const fm__host_cut prompt = fm__host_cut_product(256, 512, 9216, 16, 16, 16);
    const uint32_t n = turns_cover_everything(&prompt);
    assert_int_equal(panels_of(&prompt, 0), 16);
    assert_int_equal(panels_of(&prompt, n - 1), 8);
    /* of four, for which tokens are prepared anew, never less */
    const fm__host_cut fours = fm__host_cut_product(64, 64, 9216, 8, 4, 16);
    assert_int_equal(panels_of(&fours, turns_cover_everything(&fours) - 1), 4);
}

/* ---- what is read next ---- */

/* Every product call of a run by one thread, in its order. */
static struct {
    fm__linear_fn *kernels[FM__TYPE_COUNT];
    fm__linear_args calls[512];
    uint32_t n;
} spy;

static void spy_on(const fm__linear_args *args) {
    assert_true(spy.n < sizeof spy.calls / sizeof *spy.calls);
    spy.calls[spy.n++] = *args;
    spy.kernels[fm__type_index(args->type)](args);
}

/* Which way kernels read: as they do, all forwards, all backwards, by turns. */
static void set_ways(fm__kernels *kernels, int ways) {
    for (size_t i = 0; ways > 0 && i < fm__type_count(); i++)
        kernels->linear[i][0].backwards = ways == 2 || (ways == 3 && i % 2 == 0);
}

/* Each call is told where the one behind it begins. */
static void check_ahead(const fm__kernels *kernels) {
    uint32_t unlike = 0;
    for (uint32_t i = 0; i + 1 < spy.n; i++) {
        const fm__linear_args *now = &spy.calls[i], *then = &spy.calls[i + 1];
        const bool backwards = kernels->linear[fm__type_index(then->type)][0].backwards;
        const uint32_t from = backwards ? then->panel_end : then->panel_begin;
        assert_ptr_equal(now->ahead, then->panels + from * then->layout.stride);
        assert_int_equal(now->ahead_backwards, backwards);
        assert_int_equal(now->ahead_alike, now->type == then->type && now->k == then->k);
        unlike += !now->ahead_alike;
    }
    assert_true(unlike > 0 && unlike < spy.n - 1);
    assert_null(spy.calls[spy.n - 1].ahead);
}

static void what_is_read_next_is_known(void **state) {
    (void)state;
    for (int ways = 0; ways < 4; ways++) {
        fm__device *device = make_device(1, NULL);
        fm__kernels *kernels = &((fm__host *)device)->kernels;
        for (size_t i = 0; i < fm__type_count(); i++) {
            spy.kernels[i] = kernels->linear[i][0].fn;
            kernels->linear[i][0].fn = spy_on;
        }
        set_ways(kernels, ways);
        spy.n = 0;
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, 8, 2);
        fixture_batch(&m.f, 1, 0, MODEL_VOCAB, 1);
        conform(&m.f, m.tape, m.tape->logits, 1, device);
        check_ahead(kernels);
        model_finish(&m);
        fm__device_destroy(&device);
    }
}

/* ---- what is read while waiting ---- */

enum { REGION_THREADS = 3 };

/* What a thread reads ahead is its first turn of the product, and no more; nothing with many
   rows. */
static void check_region(const fm__host_region *region, const fm__weight *weight,
                         const fm__linear_kernel *kernel, uint32_t rows, uint32_t thread) {
    const size_t stride = weight->layout.stride;
    const fm__host_cut cut =
        fm__host_cut_product(weight->panels, rows, stride, kernel->tokens,
                             fm__host_panels(kernel, weight->type, rows), REGION_THREADS);
    const fm__host_turn turn = fm__host_cut_turn(&cut, thread);
    if (rows > 8 || turn.panel_begin == turn.panel_end) {
        assert_int_equal(region->bytes, 0);
        return;
    }
    assert_int_equal(cut.n_tile, 1);
    const uint32_t begin = turn.panel_begin, last = turn.panel_end;
    assert_int_equal(region->backwards, kernel->backwards && rows == 1);
    assert_int_equal(region->bytes, (last - begin) * stride);
    assert_ptr_equal(region->at, weight->host + (region->backwards ? last : begin) * stride);
}

/* A run of some rows whose product by the first layer's down matrix a test steps through. */
typedef struct product_run {
    model m;
    fm__run run;
    fm__run_status status;
} product_run;

static void product_run_init(product_run *r, uint32_t rows, fm__device *device) {
    model_init(&r->m, FM__Q8_0, FM__Q4_K, 16, 2);
    fixture_batch(&r->m.f, rows, 0, MODEL_VOCAB, 1);
    run_init(&r->run, &r->status, &r->m.f, r->m.tape, device);
}

static void product_run_finish(product_run *r) {
    run_finish(&r->run);
    model_finish(&r->m);
}

static fm__host_step product_run_step(const product_run *r) {
    fm__host_step step = {.axis = FM__AXIS_WHOLE, .is_product = true};
    while (r->m.tape->ops[step.index].weight[0] != r->m.layers[0].down)
        step.index++;
    step.op = &r->m.tape->ops[step.index];
    return step;
}

static void what_is_read_while_waiting_is_what_comes_first(void **state) {
    (void)state;
    static const uint32_t all_rows[] = {1, 2, 8, 9};
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t rows = all_rows[i / 2];
        fm__device *device = make_device(REGION_THREADS, NULL);
        fm__host *host = (fm__host *)device;
        set_ways(&host->kernels, 1 + (int)(i % 2));
        host->kernels.asks = false;
        product_run r;
        product_run_init(&r, rows, device);
        const fm__weight *down = r.m.tape->weights[r.m.layers[0].down];
        const fm__linear_kernel *kernel = host->kernels.linear[fm__type_index(down->type)];
        const fm__host_step step = product_run_step(&r);
        const uint8_t *free_from = down->host; /* the threads' regions, one behind the other */
        uint32_t n = 0;
        for (uint32_t t = 0; t < REGION_THREADS; t++) {
            const fm__host_work work = {.device = device,
                                        .kernels = &host->kernels,
                                        .tape = r.m.tape,
                                        .step = &step,
                                        .run = &r.run,
                                        .thread = t,
                                        .threads = REGION_THREADS};
            const fm__host_region region = fm__host_first_region(&work);
            check_region(&region, down, kernel, rows, t);
            if (region.bytes == 0)
                continue;
            const uint8_t *low = region.at - (region.backwards ? region.bytes : 0);
            assert_true(low >= free_from && low + region.bytes <= down->host + down->bytes);
            free_from = low + region.bytes;
            n++;
        }
        assert_int_equal(n > 1, rows <= 8);
        product_run_finish(&r);
        fm__device_destroy(&device);
    }
}

/* ---- when turns are taken ---- */

static struct {
    _Atomic uint32_t next;  /* the step's counter */
    uint32_t turns, parted; /* turns that were over or at their last call; in two calls */
    bool few, part;         /* part: the turn's last panel follows */
} taken;

static void count_taken(const fm__linear_args *args) {
    if (taken.part)
        assert_int_equal(args->panel_end, 1);
    taken.part = taken.few && args->panel_end > 4;
    taken.parted += taken.part;
    taken.turns += !taken.part;
    assert_int_equal(taken.next, taken.few && !taken.part ? taken.turns : taken.turns - !taken.few);
    assert_int_equal(args->ahead != NULL, taken.few);
}

/* With few rows a thread takes its next turn when one panel of a large one is left, to read towards
   it; with many when it is done: so a slow thread holds only what it works on. */
static void turns_are_taken_late(void **state) {
    (void)state;
    static const uint32_t all_rows[] = {1, 8, 9, 16};
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t threads = i % 2 == 0 ? 1 : REGION_THREADS, rows = all_rows[i / 4];
        fm__device *device = make_device(threads, NULL);
        fm__host *host = (fm__host *)device;
        set_ways(&host->kernels, 1 + (int)(i / 2 % 2));
        for (size_t j = 0; j < fm__type_count(); j++)
            host->kernels.linear[j][0].fn = count_taken;
        product_run r;
        product_run_init(&r, rows, device);
        /* another product follows the one at work */
        fm__host_step steps[2] = {product_run_step(&r), product_run_step(&r)};
        steps[0].next_product = 1;
        memset(&taken, 0, sizeof taken);
        taken.few = rows <= 8;
        fm__host_work work = {.device = device,
                              .kernels = &host->kernels,
                              .tape = r.m.tape,
                              .step = steps,
                              .run = &r.run,
                              .threads = threads,
                              .scratch = fm__alloc_zero(FM__HOST_SCRATCH),
                              .next = &taken.next};
        assert_non_null(work.scratch);
        fm__host_linear(&work); /* alone: all turns but the others' first */
        assert_true(taken.turns > 0);
        assert_int_equal(taken.next, taken.turns);
        assert_int_equal(taken.parted > 0, taken.few && threads == 1);
        fm__free(work.scratch);
        product_run_finish(&r);
        fm__device_destroy(&device);
    }
}

/* ---- tokens prepared once ---- */

/* A form that shares: the rows themselves, piece by piece a row. */
static struct {
    fm__linear_fn *kernels[FM__TYPE_COUNT];
    fm__attention_fn *attention;
    _Atomic uint32_t pieces, calls;
    _Atomic uint32_t later;   /* calls that begin behind the first of the prepared tokens */
    _Atomic uint32_t parts;   /* of attention, where prepared tokens lay */
    _Atomic(uint8_t *) where; /* these lie */
    uint32_t least;           /* tokens */
} form;

static size_t form_bytes(uint32_t tokens, uint32_t k) {
    return tokens < form.least ? 0 : (size_t)tokens * (k + 64);
}

static uint32_t form_units(uint32_t tokens, uint32_t k) {
    (void)k;
    return tokens;
}

static void form_prepare(const fm__linear_args *args, uint32_t unit) {
    const uint8_t *row = args->act + unit * args->act_layout.stride;
    assert_true(unit < args->tokens && args->prepared_tokens == args->tokens);
    memcpy(args->prepared + (size_t)unit * (args->k + 64), row + args->act_layout.values, args->k);
    form.pieces++;
    form.where = args->prepared;
}

static void form_linear(const fm__linear_args *args) {
    if (args->prepared != NULL) {
        form.calls++;
        form.later += args->prepared_first > 0;
        assert_int_equal(args->prepared_first % 16, 0);
        assert_true(args->prepared_first + args->tokens <= args->prepared_tokens);
    }
    for (uint32_t t = 0; args->prepared != NULL && t < args->tokens; t++)
        assert_memory_equal(args->prepared + (size_t)(args->prepared_first + t) * (args->k + 64),
                            args->act + t * args->act_layout.stride + args->act_layout.values,
                            args->k);
    form.kernels[fm__type_index(args->type)](args);
}

static void form_attention(const fm__attention_args *args) {
    form.parts += args->mode == FM__ATTENTION_PARTS && (uint8_t *)args->parts == form.where;
    form.attention(args);
}

/* Three threads, whose kernels of Q8_0 and Q4_K share a form each. */
static fm__device *make_sharing_device(uint32_t least) {
    static const fm__linear_shared forms[2] = {{form_bytes, form_units, form_prepare},
                                               {form_bytes, form_units, form_prepare}};
    fm__device *device = make_device(3, NULL);
    fm__kernels *kernels = &((fm__host *)device)->kernels;
    for (size_t i = 0; i < fm__type_count(); i++) {
        const fm__dtype dtype = fm__type_at(i)->dtype;
        form.kernels[i] = kernels->linear[i][0].fn;
        kernels->linear[i][0].fn = form_linear;
        if (dtype != FM__Q8_0 && dtype != FM__Q4_K)
            continue;
        kernels->linear[i][0].shared = &forms[dtype == FM__Q4_K];
        kernels->linear[i][0].tokens = 16; /* calls are to begin at multiples of them */
    }
    form.attention = kernels->attention[FM__CACHE_F16];
    kernels->attention[FM__CACHE_F16] = form_attention;
    form.least = least;
    form.pieces = form.calls = form.later = form.parts = 0;
    form.where = NULL;
    return device;
}

static void tokens_are_prepared_once_for_all_tasks(void **state) {
    (void)state;
    enum { OUTPUTS = 2 };
    static const struct {
        uint32_t rows, max_rows, least;
    } cases[] = {{33, 40, 32}, {33, 40, 33}, {33, 40, 34}, {200, 200, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t rows = cases[i].rows, least = cases[i].least;
        fm__device *device = make_sharing_device(least);
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, cases[i].max_rows, OUTPUTS);
        fixture_batch(&m.f, rows, 0, MODEL_VOCAB, OUTPUTS);
        conform(&m.f, m.tape, m.tape->logits, OUTPUTS, device);
        /* q, k and v have one input, and o, gate and up, and down one each; so has the output */
        const uint32_t pieces = rows >= least ? 4 * MODEL_LAYERS * rows : 0;
        assert_int_equal(form.pieces, pieces + (OUTPUTS >= least ? OUTPUTS : 0));
        assert_int_equal(form.calls > 0, rows >= least);
        assert_int_equal(form.later > 0, rows == 200); /* its tokens are cut too */
        assert_true(fm__device_scratch_bytes(device, m.tape, false) >=
                    form_bytes(cases[i].max_rows, MODEL_FF));
        model_finish(&m);
        fm__device_destroy(&device);
    }
}

/* A layer with products of one norm before, just before and just behind attention. What is just
   before it needs nothing of what attention waits for, and the other way round. */
static void norm_around_attention(model *m, uint32_t max_rows, uint32_t max_outputs) {
    const fm__rows R = FM__ROWS_BATCH, O = FM__ROWS_OUTPUT;
    const fm__slot S = FM__SLOT_SCRATCH;
    const model_layer *l = &m->layers[0];
    memset(m, 0, sizeof *m);
    fixture_init(&m->f, 11);
    fixture_cache(&m->f, MODEL_LAYERS, 5, MODEL_KV, MODEL_DIM, 0);
    model_weights(m, FM__Q8_0, FM__Q4_K);
    m->tape = fixture_tape(&m->f, max_rows, max_outputs);
    int16_t x = model_tensor(m, "x", FM__ACT_F32, MODEL_EMBD, R, S);
    fm__op *op = fm__tape_op(m->tape, FM__OP_EMBED, FM__NONE);
    op->out = x;
    op->weight[0] = m->embed;
    int16_t h = model_norm(m, 0, x, l->norm, model_tensor(m, "h", FM__ACT_F32, MODEL_EMBD, R, S));
    int16_t q = model_tensor(m, "q", FM__ACT_F32, MODEL_HEADS * MODEL_DIM, R, S);
    int16_t k = model_tensor(m, "k", FM__ACT_F32, MODEL_KV * MODEL_DIM, R, S);
    int16_t v = model_tensor(m, "v", FM__ACT_F32, MODEL_KV * MODEL_DIM, R, S);
    int16_t a = model_tensor(m, "attn", FM__ACT_F32, MODEL_HEADS * MODEL_DIM, R, S);
    int16_t ffn = model_tensor(m, "ffn", FM__ACT_F32, MODEL_FF, R, S);
    model_product(m, 0, h, l->q, q, FM__NONE, l->q_bias, FM__NONE);
    model_product(m, 0, h, l->k, k, FM__NONE, FM__NONE, FM__NONE);
    model_product(m, 0, h, l->v, v, FM__NONE, FM__NONE, FM__NONE);
    op = fm__tape_op(m->tape, FM__OP_KV_STORE, 0);
    op->in[0] = k;
    op->in[1] = v;
    model_product(m, 0, h, l->gate, ffn, FM__NONE, FM__NONE, l->up);
    model_product(m, 0, ffn, l->down, x, x, FM__NONE, FM__NONE);
    model_product(m, 0, h, l->o, x, x, FM__NONE, FM__NONE); /* just before */
    op = fm__tape_op(m->tape, FM__OP_ATTENTION, 0);
    op->in[0] = q;
    op->out = a;
    op->heads = MODEL_HEADS;
    op->scale = 0.1767767f;
    model_product(m, 0, h, l->q, x, x, FM__NONE, FM__NONE); /* just behind */
    model_product(m, 0, a, l->o, x, x, FM__NONE, FM__NONE);
    int16_t chosen = model_tensor(m, "selected", FM__ACT_F32, MODEL_EMBD, O, FM__SLOT_OUTPUT);
    op = fm__tape_op(m->tape, FM__OP_SELECT, FM__NONE);
    op->in[0] = x;
    op->out = chosen;
    m->tape->hidden = chosen;
    m->tape->logits =
        model_product(m, FM__NONE, chosen, m->output,
                      model_tensor(m, "logits", FM__ACT_F32, MODEL_VOCAB, O, FM__SLOT_OUTPUT),
                      FM__NONE, FM__NONE, FM__NONE);
    CHECK(fm__tape_finish(m->tape, why));
}

/* Attention works where prepared tokens lie: it waits until nobody reads them. */
static void check_attention_waits(fm__device *device, const fm__tape *tape) {
    fm__recording *recording = NULL;
    fm__op_range ranges[64];
    assert_in_range(tape->n_op, 1, 64);
    for (uint32_t i = 0; i < tape->n_op; i++)
        ranges[i] = (fm__op_range){.op = i, .axis = FM__AXIS_WHOLE};
    CHECK(fm__device_record(device, tape, ranges, tape->n_op, &recording, why));
    const fm__host_recording *r = (const fm__host_recording *)recording;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_step; i++)
        if (r->steps[i].fn == fm__host_attention) {
            assert_true(r->steps[i].barrier);
            n++;
        }
    assert_int_equal(n, 1);
    fm__device_recording_destroy(&recording);
}

/* Few rows with more than one block of keys: attention merges them where prepared tokens lie. */
static void attention_and_prepared_tokens_take_turns(void **state) {
    (void)state;
    enum { OUTPUTS = 2, MOST = 8 };
    static const uint32_t firsts[] = {254, 290, 300}; /* the first: some rows see one block */
    for (uint32_t rows = 3; rows <= 5; rows++)
        for (uint32_t i = 0; i < 6; i++) {
            fm__device *device = make_sharing_device(1);
            const bool around = i % 2 == 1;
            model m;
            if (around)
                norm_around_attention(&m, MOST, OUTPUTS);
            else
                model_init(&m, FM__Q8_0, FM__Q4_K, MOST, OUTPUTS);
            fixture_batch(&m.f, rows, firsts[i / 2], MODEL_VOCAB, OUTPUTS);
            conform(&m.f, m.tape, m.tape->logits, OUTPUTS, device);
            if (around)
                check_attention_waits(device, m.tape);
            /* around: the norm three times, and what down and o read */
            assert_int_equal(form.pieces, (around ? 5 : 4 * MODEL_LAYERS) * rows + OUTPUTS);
            assert_true(form.parts > 0);
            model_finish(&m);
            fm__device_destroy(&device);
        }
}

/* ---- the whole model ---- */

static void a_model_on_every_team_and_rung(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 3, 17, 40};
    for (const char *const *rung = fm__kernels_rungs(); *rung != NULL; rung++)
        for (size_t t = 0; t < 4; t++) {
            fm__device *device = make_device(THREADS[t], *rung);
            assert_string_equal(device->properties.rung, *rung);
            assert_int_equal(device->properties.threads, THREADS[t]);
            for (size_t r = 0; r < 4; r++) {
                model m;
                model_init(&m, FM__Q8_0, r % 2 == 0 ? FM__Q4_K : FM__F16, 64, 8);
                fixture_batch(&m.f, rows[r], r == 2 ? 60 : 0, MODEL_VOCAB,
                              rows[r] < 8 ? rows[r] : 8);
                conform(&m.f, m.tape, m.tape->logits, m.f.batch.n_output, device);
                model_finish(&m);
            }
            fm__device_destroy(&device);
        }
}

static void no_row_wants_output(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 8, 2);
    fixture_batch(&m.f, 5, 0, MODEL_VOCAB, 0);
    fm__device *device = make_device(2, NULL);
    conform(&m.f, m.tape, m.tape->logits, 0, device); /* the cache is still filled */
    fm__device_destroy(&device);
    model_finish(&m);
}

/* ---- ranges ---- */

/* Each op cut in two on its axis, both halves on one device or on two. */
static void run_in_halves(fm__device *a, fm__device *b, const fm__tape *tape, const fm__run *run,
                          fm__axis axis, uint32_t part) {
    for (uint32_t i = 0; i < tape->n_op; i++) {
        fm__op_range halves[2] = {{.op = i, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0}, {0}};
        uint32_t channels, n = 1;
        uint32_t granule = fm__device_channel_granule(tape, &tape->ops[i], &channels);
        if (axis == FM__AXIS_TOKENS) {
            halves[0] = (fm__op_range){.op = i, .axis = axis, .begin = 0, .end = part};
            halves[1] =
                (fm__op_range){.op = i, .axis = axis, .begin = part, .end = FM__TOKEN_PARTS};
            n = 2;
        } else if (granule > 0 && channels > granule) {
            uint32_t border = channels / 2 / granule * granule;
            border = border == 0 ? granule : border;
            halves[0] = (fm__op_range){.op = i, .axis = axis, .begin = 0, .end = border};
            halves[1] = (fm__op_range){.op = i, .axis = axis, .begin = border, .end = channels};
            n = 2;
        }
        for (uint32_t h = 0; h < n; h++)
            record_and_run(h == 0 ? a : b, tape, &halves[h], 1, run);
    }
}

static void halves_equal_the_whole(void **state) {
    (void)state;
    static const uint32_t parts[] = {1, FM__TOKEN_PARTS / 3, FM__TOKEN_PARTS / 2,
                                     FM__TOKEN_PARTS - 1};
    model m;
    model_init(&m, FM__Q4_K, FM__Q8_0, 16, 3);
    fixture_batch(&m.f, 13, 0, MODEL_VOCAB, 3);
    fm__device *one = make_device(2, NULL), *two = make_device(1, "ref");
    for (int i = 0; i < 5; i++) {
        interpreter in;
        fm__run run;
        fm__run_status status;
        interpreter_init(&in, &m.f, m.tape);
        interpreter_run(&in, m.tape, &m.f.batch);
        run_init(&run, &status, &m.f, m.tape, one); /* `two` works in the buffers of `one` */
        run_in_halves(one, two, m.tape, &run, i == 4 ? FM__AXIS_CHANNELS : FM__AXIS_TOKENS,
                      i == 4 ? 0 : parts[i]);
        interpreter_compare(&in, m.tape, m.tape->logits, 3, &run);
        run_finish(&run);
        interpreter_finish(&in);
    }
    fm__device_destroy(&two);
    fm__device_destroy(&one);
    model_finish(&m);
}

static void a_channel_range_writes_only_its_columns(void **state) {
    (void)state;
    fixture f;
    fm__tape *tape = NULL;
    fixture_init(&f, 5);
    const product_case c = {FM__Q8_0, 100, 64, 9, 1, 0, false};
    int16_t y = product_tape(&f, &c, &tape);
    fm__device *device = make_device(2, NULL);
    fm__run run;
    fm__run_status status;
    run_init(&run, &status, &f, tape, device);
    uint8_t *out = fm__device_buffer_map(run.buffers[FM__SLOT_OUTPUT]);
    memset(out, 0xAB, tape->output_bytes);
    const fm__op_range ranges[] = {{.op = 0, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0},
                                   {.op = 1, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0},
                                   {.op = 2, .axis = FM__AXIS_CHANNELS, .begin = 32, .end = 80}};
    record_and_run(device, tape, ranges, 3, &run);
    for (uint32_t r = 0; r < c.rows; r++)
        for (uint32_t col = 0; col < c.n; col++) {
            uint32_t bits;
            memcpy(&bits,
                   out + tape->tensors[y].offset + r * tape->tensors[y].layout.stride + col * 4, 4);
            assert_true((bits != 0xABABABAB) == (col >= 32 && col < 80));
        }
    run_finish(&run);
    fm__device_destroy(&device);
    fm__tape_destroy(&tape);
    fixture_finish(&f);
}

/* ---- meetings ---- */

static void barriers_stand_where_data_flows(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__F32, FM__F32, 8, 2); /* no quantise ops: q, k, v follow each other */
    fm__op_range ranges[64];
    bool before[64];
    for (uint32_t i = 0; i < m.tape->n_op; i++)
        ranges[i] = (fm__op_range){.op = i};
    fm__host_barriers(m.tape, ranges, m.tape->n_op, before);
    /* embed norm q k v rope rope store attention o norm glu down ... */
    static const bool expected[] = {false, false, true, false, false, true, false,
                                    false, true,  true, true,  true,  true};
    for (size_t i = 0; i < sizeof expected; i++)
        if (before[i] != expected[i])
            fail_msg("op %zu: %d", i, before[i]);
    /* Rows cut unlike in two row-wise ops: the second must wait. */
    const fm__op_range unlike[] = {{.op = 0, .axis = FM__AXIS_TOKENS, .begin = 0, .end = 100},
                                   {.op = 1, .axis = FM__AXIS_TOKENS, .begin = 0, .end = 200}};
    const fm__op_range alike[] = {{.op = 0, .axis = FM__AXIS_TOKENS, .begin = 0, .end = 100},
                                  {.op = 1, .axis = FM__AXIS_TOKENS, .begin = 0, .end = 100}};
    fm__host_barriers(m.tape, unlike, 2, before);
    assert_true(before[1]);
    fm__host_barriers(m.tape, alike, 2, before);
    assert_false(before[1]);
    /* Attention of rows apart: their blocks of keys are merged in the same memory. */
    const fm__op_range attention[] = {{.op = 8, .axis = FM__AXIS_TOKENS, .begin = 0, .end = 2},
                                      {.op = 8, .axis = FM__AXIS_TOKENS, .begin = 2, .end = 8}};
    assert_int_equal(m.tape->ops[8].kind, FM__OP_ATTENTION);
    fm__host_barriers(m.tape, attention, 2, before);
    assert_true(before[1]);
    model_finish(&m);
}

/* ---- failures ---- */

/* Once the flag is set no op begins, yet the run comes to its end; cleared, the device works. */
static void a_cancelled_run_computes_nothing(void **state) {
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q8_0, 16, 4);
        fixture_batch(&m.f, 11, 0, MODEL_VOCAB, 4);
        fm__device *device = make_device(THREADS[t], NULL);
        fm__run run;
        fm__run_status status;
        run_init(&run, &status, &m.f, m.tape, device);
        _Atomic uint32_t cancel = 1;
        run.cancel = &cancel;
        uint8_t *out = fm__device_buffer_map(run.buffers[FM__SLOT_OUTPUT]);
        memset(out, 0x5A, m.tape->output_bytes);
        run_whole(device, m.tape, &run);
        for (size_t i = 0; i < m.tape->output_bytes; i++)
            assert_int_equal(out[i], 0x5A);
        cancel = 0;
        run_whole(device, m.tape, &run);
        assert_int_equal(status.status, FM_OK);
        bool written = false;
        for (size_t i = 0; i < m.tape->output_bytes; i++)
            written = written || out[i] != 0x5A;
        assert_true(written);
        run_finish(&run);
        fm__device_destroy(&device);
        model_finish(&m);
    }
}

static void a_bad_row_is_named_and_stops_the_run(void **state) {
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q8_0, 16, 4);
        fixture_batch(&m.f, 11, 0, MODEL_VOCAB, 4);
        float *norm = (float *)(uintptr_t)m.f.weights[m.layers[1].norm]->host;
        norm[3] = INFINITY; /* layer 1's first quantise fails in every row */
        uint32_t bad = 0;
        for (int n = 0; bad < m.tape->n_op; bad++)
            if (m.tape->ops[bad].kind == FM__OP_QUANTISE && m.tape->ops[bad].layer == 1 && n++ == 0)
                break;
        fm__device *device = make_device(THREADS[t], NULL);
        fm__run run;
        fm__run_status status;
        run_init(&run, &status, &m.f, m.tape, device);
        memset(fm__device_buffer_map(run.buffers[FM__SLOT_OUTPUT]), 0x5A, m.tape->output_bytes);
        run_whole(device, m.tape, &run);
        assert_int_equal(status.first >> 32, bad);
        assert_int_equal((uint32_t)status.first, 0);
        assert_int_equal(status.status, FM_ERROR_NUMERIC);
        const uint8_t *out = fm__device_buffer_map(run.buffers[FM__SLOT_OUTPUT]);
        for (size_t i = 0; i < m.tape->output_bytes; i++)
            assert_int_equal(out[i], 0x5A); /* later ops were skipped */
        fm__run_status_clear(&status);
        norm[3] = 1.0f;
        run_whole(device, m.tape, &run); /* the device lives on */
        assert_true(status.first == UINT64_MAX);
        run_finish(&run);
        fm__device_destroy(&device);
        model_finish(&m);
    }
}

static void one_bad_token_is_found(void **state) {
    (void)state;
    fixture f;
    fm__tape *tape = NULL;
    fixture_init(&f, 5);
    const product_case c = {FM__Q8_0, 32, 64, 40, 0, 0, false};
    product_tape(&f, &c, &tape);
    int32_t *token = (int32_t *)(uintptr_t)f.batch.token;
    for (uint32_t r = 0; r < 40; r++)
        token[r] = (int32_t)r;
    float *table = (float *)(uintptr_t)f.weights[0]->host;
    table[29 * 64 + 5] = 0x1p100f;
    table[17 * 64 + 63] = NAN;
    fm__device *device = make_device(3, NULL);
    fm__run run;
    fm__run_status status;
    run_init(&run, &status, &f, tape, device);
    run_whole(device, tape, &run);
    assert_true(status.first == ((uint64_t)1 << 32 | 17));
    run_finish(&run);
    fm__device_destroy(&device);
    fm__tape_destroy(&tape);
    fixture_finish(&f);
}

static void the_lowest_failure_wins(void **state) {
    (void)state;
    fm__run_status status;
    fm__run_status_clear(&status);
    assert_false(fm__run_status_failed_before(&status, UINT32_MAX - 1));
    fm__run_status_report(&status, 5, 9, FM_ERROR_NUMERIC);
    fm__run_status_report(&status, 7, 0, FM_ERROR_DEVICE);
    fm__run_status_report(&status, 5, 3, FM_ERROR_ARGUMENT);
    assert_true(status.first == ((uint64_t)5 << 32 | 3));
    assert_int_equal(status.status, FM_ERROR_ARGUMENT);
    assert_true(fm__run_status_failed_before(&status, 6));
    assert_false(fm__run_status_failed_before(&status, 5));
}

/* ---- the queue ---- */

enum { IN_FLIGHT = 200 };

/* One recording that is run many times, and what it computes. */
typedef struct flight {
    model m;
    interpreter in;
    fm__device *device;
    fm__recording *recording;
} flight;

static void flight_begin(flight *f, uint32_t threads) {
    fm__op_range ranges[64];
    model_init(&f->m, FM__Q8_0, FM__Q4_K, 4, 1);
    fixture_batch(&f->m.f, 2, 0, MODEL_VOCAB, 1);
    interpreter_init(&f->in, &f->m.f, f->m.tape);
    interpreter_run(&f->in, f->m.tape, &f->m.f.batch);
    f->device = make_device(threads, NULL);
    for (uint32_t i = 0; i < f->m.tape->n_op; i++)
        ranges[i] = (fm__op_range){.op = i};
    CHECK(fm__device_record(f->device, f->m.tape, ranges, f->m.tape->n_op, &f->recording, why));
}

static void flight_check(flight *f, fm__run *run) {
    assert_true(run->status->first == UINT64_MAX);
    interpreter_compare(&f->in, f->m.tape, f->m.tape->logits, 1, run);
    run_finish(run);
}

static void flight_end(flight *f) {
    fm__device_recording_destroy(&f->recording);
    fm__device_destroy(&f->device);
    interpreter_finish(&f->in);
    model_finish(&f->m);
}

/* A device of which only timelines are used: a signal to it takes a while, as a driver's call. */
typedef struct listener {
    fm__device device;
    fm__device_vtable vtable;
    uint64_t heard;
    bool ascending;
} listener;

static fm_status listener_attach(fm__device *device, void **native, fm_error *error) {
    (void)error;
    *native = device;
    return FM_OK;
}

static void listener_detach(fm__device *device, void *native) {
    (void)device;
    (void)native;
}

static void listener_signal(fm__device *device, void *native, uint64_t value) {
    listener *l = native;
    (void)device;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    l->ascending = l->ascending && value == l->heard + 1;
    l->heard = value;
}

/* The same recording over and over: the team starts on the next while the leader still signals. */
static void the_team_goes_on_during_a_signal(void **state) {
    (void)state;
    enum { TIMES = 50 };
    static const uint32_t teams[] = {1, 3};
    for (int t = 0; t < 2; t++) {
        flight f;
        flight_begin(&f, teams[t]);
        listener l = {.ascending = true};
        l.vtable = (fm__device_vtable){.timeline_attach = listener_attach,
                                       .timeline_detach = listener_detach,
                                       .timeline_signal = listener_signal};
        l.device.vtable = &l.vtable;
        fm__timeline done;
        CHECK(fm__timeline_create(&done, (fm__device *[]){&l.device, f.device}, 2, 1, why));
        static fm__run runs[TIMES];
        static fm__run_status status[TIMES];
        for (uint64_t i = 0; i < TIMES; i++)
            run_init(&runs[i], &status[i], &f.m.f, f.m.tape, f.device);
        for (uint64_t i = 0; i < TIMES; i++) {
            const fm__segment segment = {f.recording, NULL, 0, &done, 1};
            CHECK(fm__device_submit(f.device, &segment, 1, &runs[i], i, why));
        }
        fm__device_recording_destroy(&f.recording); /* waits until all of it is done */
        assert_true(l.ascending && l.heard == TIMES);
        assert_int_equal(fm__timeline_value(&done), TIMES);
        for (int i = 0; i < TIMES; i++)
            flight_check(&f, &runs[i]);
        fm__timeline_finish(&done);
        flight_end(&f);
    }
}

static void many_submissions_in_flight(void **state) {
    (void)state;
    flight f;
    flight_begin(&f, 2);
    fm__timeline gate, done;
    fm__timeline_init(&gate);
    fm__timeline_init(&done);
    static fm__run runs[IN_FLIGHT];
    static fm__run_status status[IN_FLIGHT];
    uint64_t allocations = 0;
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        run_init(&runs[i], &status[i], &f.m.f, f.m.tape, f.device);
        allocations = fm__alloc_count();
        const fm__segment segments[] = {{NULL, &gate, 0, NULL, 0},
                                        {f.recording, &gate, 1, &done, 1}};
        CHECK(fm__device_submit(f.device, segments, 2, &runs[i], i, why));
        assert_int_equal(fm__alloc_count(), allocations);
    }
    assert_int_equal(fm__timeline_value(&done), 0); /* all wait for the gate */
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        fm__timeline_signal(&gate, i + 1);
        if (i % 3 == 0)
            fm__timeline_wait(&done, i + 1);
        assert_true(fm__timeline_value(&done) <= i + 1);
    }
    fm__timeline_wait(&done, IN_FLIGHT);
    assert_int_equal(fm__alloc_count(), allocations); /* running allocates nothing */
    for (int i = 0; i < IN_FLIGHT; i++)
        flight_check(&f, &runs[i]);
    flight_end(&f);
}

static void a_full_queue_refuses_at_once(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *device = make_device(1, NULL);
    fm__run run;
    fm__run_status status;
    run_init(&run, &status, &m.f, m.tape, device);
    fm__timeline gate, done;
    fm__timeline_init(&gate);
    fm__timeline_init(&done);
    const fm__segment segment = {NULL, &gate, 1, &done, 1};
    fm_error error = {0};
    uint64_t pushed = 0;
    while (fm__device_submit(device, &segment, 1, &run, 0, &error) == FM_OK)
        pushed++;
    assert_int_equal(pushed, FM__HOST_QUEUE);
    assert_int_equal(error.status, FM_ERROR_LIMIT);
    fm__timeline_signal(&gate, 1);
    fm__timeline_wait(&done, 1);
    fm__host_queue_drain(&((fm__host *)device)->queue);
    CHECK(fm__device_submit(device, &segment, 1, &run, 0, why));
    run_finish(&run);
    fm__device_destroy(&device); /* finishes what is queued */
    model_finish(&m);
}

/* ---- the front end ---- */

static void records_are_checked(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *device = make_device(1, NULL);
    uint32_t linear = 0;
    while (m.tape->ops[linear].kind != FM__OP_LINEAR)
        linear++;
    const fm__op_range bad[] = {
        {.op = m.tape->n_op, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0},
        {.op = 0, .axis = FM__AXIS_CHANNELS, .begin = 0, .end = 16},
        {.op = linear, .axis = FM__AXIS_CHANNELS, .begin = 0, .end = 8},
        {.op = linear, .axis = FM__AXIS_CHANNELS, .begin = 8, .end = 32},
        {.op = linear, .axis = FM__AXIS_CHANNELS, .begin = 32, .end = 32},
        {.op = linear, .axis = FM__AXIS_CHANNELS, .begin = 0, .end = 272},
        {.op = linear, .axis = FM__AXIS_TOKENS, .begin = 5, .end = 0},
        {.op = linear, .axis = FM__AXIS_TOKENS, .begin = 5, .end = 5},
        {.op = linear, .axis = FM__AXIS_TOKENS, .begin = 0, .end = 1 << 17},
        {.op = linear, .axis = FM__AXIS_PRODUCTS, .begin = 0, .end = 1},
        {.op = linear, .axis = (fm__axis)9, .begin = 0, .end = 1},
    };
    fm_error error;
    fm__recording *recording = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (fm__device_record(device, m.tape, &bad[i], 1, &recording, &error) == FM_OK)
            fail_msg("range %zu was recorded", i);
    const fm__op_range back[] = {{.op = 1, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0},
                                 {.op = 0, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0}};
    assert_int_equal(fm__device_record(device, m.tape, back, 2, &recording, &error),
                     FM_ERROR_ARGUMENT);
    assert_int_equal(fm__device_record(device, m.tape, back, 0, &recording, &error),
                     FM_ERROR_ARGUMENT);
    m.tape->finished = false;
    assert_int_equal(fm__device_record(device, m.tape, back, 1, &recording, &error),
                     FM_ERROR_STATE);
    m.tape->finished = true;
    const uint8_t *host = m.f.weights[m.layers[0].q]->host;
    m.f.weights[m.layers[0].q]->host = NULL;
    const fm__op_range whole = {.op = linear, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0};
    assert_int_equal(fm__device_record(device, m.tape, &whole, 1, &recording, &error),
                     FM_ERROR_STATE);
    assert_string_equal(error.place, "blk.0.attn_q.weight");
    m.f.weights[m.layers[0].q]->host = host;
    for (uint64_t n = 1; n <= 4; n++) {
        fm__alloc_fail_after(n);
        assert_int_equal(fm__device_record(device, m.tape, &whole, 1, &recording, &error),
                         FM_ERROR_MEMORY);
    }
    fm__alloc_fail_after(0);
    assert_null(recording);
    fm__device_destroy(&device);
    model_finish(&m);
}

typedef void spoil(model *m, fm__run *run);

static void no_rows(model *m, fm__run *run) {
    (void)run;
    m->f.batch.n_row = 0;
}
static void many_rows(model *m, fm__run *run) {
    (void)run;
    m->f.batch.n_row = 5;
}
static void many_outputs(model *m, fm__run *run) {
    (void)run;
    m->f.batch.n_output = 3;
}
static void wild_token(model *m, fm__run *run) {
    (void)run;
    ((int32_t *)(uintptr_t)m->f.batch.token)[1] = MODEL_VOCAB;
}
static void negative_token(model *m, fm__run *run) {
    (void)run;
    ((int32_t *)(uintptr_t)m->f.batch.token)[0] = -1;
}
static void far_position(model *m, fm__run *run) {
    (void)run;
    ((uint32_t *)(uintptr_t)m->f.batch.position)[2] = MODEL_POSITIONS;
}
static void wild_sequence(model *m, fm__run *run) {
    (void)run;
    ((uint32_t *)(uintptr_t)m->f.batch.sequence)[2] = 1;
}
static void no_page(model *m, fm__run *run) {
    (void)run;
    ((uint32_t *)(uintptr_t)m->f.batch.pages[0])[0] = FM__NO_PAGE;
}
static void wild_output(model *m, fm__run *run) {
    (void)run;
    ((uint32_t *)(uintptr_t)m->f.batch.output_row)[1] = 3;
}
static void falling_outputs(model *m, fm__run *run) {
    (void)run;
    ((uint32_t *)(uintptr_t)m->f.batch.output_row)[0] = 2;
}
static void no_scratch(model *m, fm__run *run) {
    (void)m;
    run->buffers[FM__SLOT_SCRATCH] = NULL;
}
static void small_output(model *m, fm__run *run) {
    (void)m;
    run->buffers[FM__SLOT_OUTPUT]->bytes--;
}
static void small_cache(model *m, fm__run *run) {
    (void)run;
    m->f.groups[0].offset = 64;
}
static void no_status(model *m, fm__run *run) {
    (void)m;
    run->status = NULL;
}

static void submits_are_checked(void **state) {
    (void)state;
    static spoil *const spoils[] = {no_rows,        many_rows,       many_outputs,  wild_token,
                                    negative_token, far_position,    wild_sequence, no_page,
                                    wild_output,    falling_outputs, no_scratch,    small_output,
                                    small_cache,    no_status};
    fm__device *device = make_device(1, NULL), *other = make_device(1, NULL);
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q8_0, 4, 2);
        fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
        fm__recording *recording = NULL;
        fm__op_range all[64] = {{.op = 0}}; /* what they touch is what a run must bring */
        assert_in_range(m.tape->n_op, 1, 64);
        for (uint32_t op = 0; op < m.tape->n_op; op++)
            all[op].op = op;
        CHECK(fm__device_record(device, m.tape, all, m.tape->n_op, &recording, why));
        fm__run run, spoiled;
        fm__run_status status;
        run_init(&run, &status, &m.f, m.tape, device);
        const fm__segment segment = {.recording = recording};
        fm_error error = {0};
        CHECK(fm__device_submit(device, &segment, 1, &run, 0, why));
        assert_int_equal(fm__device_submit(other, &segment, 1, &run, 0, &error),
                         FM_ERROR_ARGUMENT); /* another device's recording */
        assert_int_equal(fm__device_submit(device, &segment, 0, &run, 0, &error),
                         FM_ERROR_ARGUMENT);
        fm__host_queue_drain(&((fm__host *)device)->queue);
        spoiled = run;
        spoils[i](&m, &spoiled);
        if (fm__device_submit(device, &segment, 1, &spoiled, 0, &error) != FM_ERROR_ARGUMENT)
            fail_msg("spoil %zu was submitted", i);
        fm__device_recording_destroy(&recording);
        if (spoils[i] == small_output)
            run.buffers[FM__SLOT_OUTPUT]->bytes++;
        run_finish(&run);
        model_finish(&m);
    }
    fm__device_destroy(&other);
    fm__device_destroy(&device);
}

/* A page that a window has left behind may be gone; one inside it may not. */
static void a_window_needs_only_its_pages(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    m.f.groups[0].window = 8;
    fixture_batch(&m.f, 2, 70, MODEL_VOCAB, 1);
    uint32_t *pages = (uint32_t *)(uintptr_t)m.f.batch.pages[0];
    fm__device *device = make_device(1, NULL);
    fm__recording *recording = NULL;
    const fm__op_range whole = {.op = 0, .axis = FM__AXIS_WHOLE, .begin = 0, .end = 0};
    CHECK(fm__device_record(device, m.tape, &whole, 1, &recording, why));
    fm__run run;
    fm__run_status status;
    run_init(&run, &status, &m.f, m.tape, device);
    const fm__segment segment = {.recording = recording};
    fm_error error = {0};
    pages[0] = FM__NO_PAGE; /* row 0 at 70 sees keys 63..70 */
    assert_int_equal(fm__device_submit(device, &segment, 1, &run, 0, &error), FM_ERROR_ARGUMENT);
    m.f.groups[0].window = 7;
    CHECK(fm__device_submit(device, &segment, 1, &run, 0, why));
    fm__device_recording_destroy(&recording);
    run_finish(&run);
    fm__device_destroy(&device);
    model_finish(&m);
}

static void buffers_and_creation(void **state) {
    (void)state;
    fm_error error = {0};
    fm__device *device = NULL;
    fm__host_options options = {.threads = 5000};
    assert_int_equal(fm__device_host_create(&device, &options, &error), FM_ERROR_ARGUMENT);
    options = (fm__host_options){.threads = 1, .rung = "abacus"};
    assert_int_not_equal(fm__device_host_create(&device, &options, &error), FM_OK);
    assert_null(device);
    const int nowhere[] = {-1, 100000};
    options = (fm__host_options){.threads = 2, .cpus = nowhere};
    assert_int_equal(fm__device_host_create(&device, &options, &error), FM_ERROR_DEVICE);
    options = (fm__host_options){.name = "left"}; /* one thread a core, pinned */
    CHECK(fm__device_host_create(&device, &options, why));
    assert_string_equal(device->properties.name, "left");
    assert_int_equal(device->properties.threads, fm__cores(NULL, 0));
    assert_true(device->properties.unified && device->properties.memory_bytes > 0);
    assert_non_null(fm__device_host_kernels(device));
    fm__buffer *buffer = NULL, *import = NULL;
    assert_int_equal(fm__device_buffer_create(device, 0, FM__MEMORY_LOCAL, &buffer, &error),
                     FM_ERROR_ARGUMENT);
    assert_int_equal(
        fm__device_buffer_create(device, SIZE_MAX / 2, FM__MEMORY_LOCAL, &buffer, &error),
        FM_ERROR_MEMORY);
    CHECK(fm__device_buffer_create(device, 1000, FM__MEMORY_LOCAL, &buffer, why));
    uint8_t *memory = fm__device_buffer_map(buffer);
    assert_true(memory[0] == 0 && memory[999] == 0 && (uintptr_t)memory % 64 == 0);
    assert_int_equal(fm__device_buffer_import(device, NULL, 5, &import, &error), FM_ERROR_ARGUMENT);
    uint8_t mine[64];
    CHECK(fm__device_buffer_import(device, mine, sizeof mine, &import, why));
    assert_ptr_equal(fm__device_buffer_map(import), mine);
    fm__device_buffer_destroy(&import);
    fm__device_buffer_destroy(&buffer);
    assert_null(buffer);
    fm__device_buffer_destroy(&buffer);
    fm__device_destroy(&device);
    fm__device_destroy(&device);
}

static void creation_survives_failing_allocations(void **state) {
    (void)state;
    const fm__host_options options = {.threads = 3, .rung = "ref"};
    fm_error error;
    fm__device *device = NULL;
    int failures = 0;
    for (uint64_t n = 1; n < 100; n++) {
        fm__alloc_fail_after(n);
        fm_status status = fm__device_host_create(&device, &options, &error);
        fm__alloc_fail_after(0);
        if (status == FM_OK)
            break;
        assert_null(device);
        failures++;
    }
    assert_true(failures >= 6);
    fm__device_destroy(&device);
}

static void kernels_are_named(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 4, 1);
    fm__device *device = make_device(1, "ref");
    for (uint32_t i = 0; i < m.tape->n_op; i++) {
        const fm__op *op = &m.tape->ops[i];
        const char *reason = NULL, *name = fm__device_op_kernel(device, m.tape, op);
        assert_true(fm__device_op_supports(device, m.tape, op, &reason));
        bool product = op->kind == FM__OP_LINEAR || op->kind == FM__OP_LINEAR_GLU;
        assert_true(product ? strncmp(name, "fm__linear_q8_0", 15) == 0 : name[0] == '\0');
    }
    fm__device_destroy(&device);
    model_finish(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_odd_shapes),
        cmocka_unit_test(wide_products),
        cmocka_unit_test(cuts_cover_everything),
        cmocka_unit_test(late_turns_are_small),
        cmocka_unit_test(what_is_read_next_is_known),
        cmocka_unit_test(what_is_read_while_waiting_is_what_comes_first),
        cmocka_unit_test(turns_are_taken_late),
        cmocka_unit_test(tokens_are_prepared_once_for_all_tasks),
        cmocka_unit_test(attention_and_prepared_tokens_take_turns),
        cmocka_unit_test(a_model_on_every_team_and_rung),
        cmocka_unit_test(no_row_wants_output),
        cmocka_unit_test(halves_equal_the_whole),
        cmocka_unit_test(a_channel_range_writes_only_its_columns),
        cmocka_unit_test(barriers_stand_where_data_flows),
        cmocka_unit_test(a_cancelled_run_computes_nothing),
        cmocka_unit_test(a_bad_row_is_named_and_stops_the_run),
        cmocka_unit_test(one_bad_token_is_found),
        cmocka_unit_test(the_lowest_failure_wins),
        cmocka_unit_test(many_submissions_in_flight),
        cmocka_unit_test(the_team_goes_on_during_a_signal),
        cmocka_unit_test(a_full_queue_refuses_at_once),
        cmocka_unit_test(records_are_checked),
        cmocka_unit_test(submits_are_checked),
        cmocka_unit_test(a_window_needs_only_its_pages),
        cmocka_unit_test(buffers_and_creation),
        cmocka_unit_test(creation_survives_failing_allocations),
        cmocka_unit_test(kernels_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
