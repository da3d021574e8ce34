/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dependency modes: the same bits in each of them, for every share, axis and kind of pair; what
 * each mode promises about who waits for whom, from the recorded times; one run at a time where the
 * host drives; a lost device; no allocation; what the scheduler itself costs.
 */
#include "exec/layout.h"
#include "exec_support.h"

static const fm__deps MODES[] = {FM__DEPS_EVENT, FM__DEPS_BATCH, FM__DEPS_READY, FM__DEPS_EAGER};
enum { N_MODE = 4 };

/* ---- identity ---- */

typedef enum pair { TWO_HOSTS, THREE_HOSTS, DISCRETE_MAIN, DISCRETE_AND_TWO } pair;

static session make_pair(pair kind) {
    session s = {.n_unit = kind == TWO_HOSTS || kind == DISCRETE_MAIN ? 2 : 3};
    bool discrete = kind == DISCRETE_MAIN || kind == DISCRETE_AND_TWO;
    s.units[0] = discrete ? make_discrete_host(2) : make_host(2, NULL);
    s.units[1] = make_host(1, "ref");
    s.units[2] = s.n_unit == 3 ? make_host(1, NULL) : NULL;
    return s;
}

static void check_pair(pair kind, fm__dtype type) {
    model m;
    conversation c;
    model_init(&m, FM__Q8_0, type, 16, 2);
    conversation_init(&c, &m);
    session s = make_pair(kind);
    for (int mode = 0; mode < N_MODE; mode++)
        for (int share = 0; share <= 8; share++)
            for (int axis = 0; axis < 2; axis++) {
                fm__plan_options options = {.shares = {8 - share, share},
                                            .axis = axis ? FM__AXIS_TOKENS : FM__AXIS_CHANNELS,
                                            .deps = MODES[mode]};
                if (s.n_unit == 3)
                    options.shares[2] = share / 2.0;
                session_init(&s, &m, &options);
                converse(&s, &m, &c);
                session_close(&s);
            }
    session_finish(&s);
    conversation_finish(&c);
    model_finish(&m);
}

static void two_hosts_give_the_bits_of_one(void **state) {
    (void)state;
    check_pair(TWO_HOSTS, FM__Q4_K);
}

static void three_hosts_give_the_bits_of_one(void **state) {
    (void)state;
    check_pair(THREE_HOSTS, FM__Q8_0);
}

/* The default of a tape for many rows: every op by tokens, the outputs by channels. */
static void the_default_of_many_rows_gives_the_bits_of_one(void **state) {
    (void)state;
    model m;
    conversation c;
    model_init(&m, FM__Q8_0, FM__Q4_K, 128, 2);
    conversation_init(&c, &m);
    for (int kind = TWO_HOSTS; kind <= THREE_HOSTS; kind++) {
        session s = make_pair((pair)kind);
        for (int mode = 0; mode < N_MODE; mode++)
            for (int share = 0; share <= 8; share++) {
                fm__plan_options options = {.shares = {8 - share, share}, .deps = MODES[mode]};
                if (s.n_unit == 3)
                    options.shares[2] = share / 2.0;
                session_init(&s, &m, &options);
                bool divided = share > 0 && (share < 8 || s.n_unit == 3);
                assert_int_equal(s.plan->ops[0].axis, divided ? FM__AXIS_TOKENS : FM__AXIS_WHOLE);
                converse(&s, &m, &c);
                session_close(&s);
            }
        session_finish(&s);
    }
    conversation_finish(&c);
    model_finish(&m);
}

static void a_discrete_main_unit_gives_the_bits_of_one(void **state) {
    (void)state;
    check_pair(DISCRETE_MAIN, FM__Q4_K);
    check_pair(DISCRETE_MAIN, FM__F16); /* no quantised activations */
}

static void a_discrete_main_unit_with_two_hosts_does_too(void **state) {
    (void)state;
    check_pair(DISCRETE_AND_TWO, FM__Q8_0);
}

/* Each product has shares of its own, changing sides: whole tensors and parts go to and fro. */
static void shares_may_differ_from_op_to_op(void **state) {
    (void)state;
    fm__random random;
    fm__random_seed(&random, 5);
    model m;
    conversation c;
    model_init(&m, FM__Q4_K, FM__F16, 16, 2);
    conversation_init(&c, &m);
    double(*shares)[FM__MAX_UNITS] = fm__alloc_zero(m.tape->n_op * sizeof *shares);
    assert_non_null(shares);
    static const fm__axis AXES[] = {FM__AXIS_TOKENS, FM__AXIS_CHANNELS, FM__AXIS_PRODUCTS};
    for (int kind = 0; kind < 4; kind++) {
        session s = make_pair((pair)kind);
        for (int round = 0; round < 12; round++) {
            for (uint32_t i = 0; i < m.tape->n_op; i++)
                for (uint32_t u = 0; u < FM__MAX_UNITS; u++)
                    shares[i][u] = u < s.n_unit ? (double)(fm__random_next(&random) % 5) : 0;
            const fm__plan_options options = {
                .shares = {1},
                .op_shares = (const double(*)[FM__MAX_UNITS])shares,
                .axis = AXES[round % 3],
                .deps = MODES[round % N_MODE],
            };
            session_init(&s, &m, &options);
            converse(&s, &m, &c);
            session_close(&s);
        }
        session_finish(&s);
    }
    fm__free(shares);
    conversation_finish(&c);
    model_finish(&m);
}

static uint32_t op_of(const model *m, int16_t weight) {
    uint32_t op = 0;
    while (m->tape->ops[op].weight[0] != weight)
        op++;
    return op;
}

/* Rows of q are turned, which is no work, before attention needs k and v: the main unit waits once
   for all three, and the other unit does them in one piece. */
static void one_wait_is_for_q_k_and_v(void **state) {
    (void)state;
    model m;
    conversation c;
    model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
    conversation_init(&c, &m);
    session s = make_pair(DISCRETE_MAIN);
    const fm__plan_options options = {.shares = {1, 1}, .axis = FM__AXIS_CHANNELS};
    session_init(&s, &m, &options);
    converse(&s, &m, &c);
    fm__exec_span spans[128];
    uint32_t n = fm__exec_spans(s.exec, spans, 128), found = 0;
    assert_true(n <= 128);
    for (uint32_t i = 0; i < n; i++)
        for (int layer = 0; layer < MODEL_LAYERS; layer++)
            if (spans[i].unit == 1 && spans[i].first_op == op_of(&m, m.layers[layer].q)) {
                assert_int_equal(spans[i].last_op, op_of(&m, m.layers[layer].v));
                found++;
            }
    assert_int_equal(found, MODEL_LAYERS);
    session_close(&s);
    session_finish(&s);
    conversation_finish(&c);
    model_finish(&m);
}

/* A plan made for a main unit without the embedding table, run on one that emulates it. */
static void the_embedding_may_be_looked_up_by_the_host(void **state) {
    (void)state;
    model m;
    conversation c;
    model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
    conversation_init(&c, &m);
    session s = make_pair(DISCRETE_MAIN);
    fm__device *planned[2] = {NULL, s.units[1]};
    const fm__null_options null = {.memory_bytes = 1 << 20, .refuse_op = "embed", .discrete = true};
    CHECK(fm__device_null_create(&planned[0], &null, why));
    for (int mode = 0; mode < N_MODE; mode++) {
        const fm__plan_options options = {.shares = {3, 1}, .deps = MODES[mode]};
        CHECK(fm__plan_make(&s.plan, m.tape, planned, 2, &options, why));
        assert_int_equal(s.plan->ops[0].ranges[0].unit, 1);
        CHECK(fm__exec_create(&s.exec, m.tape, s.plan, s.units, 2, why));
        session_buffers(&s, &m);
        converse(&s, &m, &c);
        session_close(&s);
    }
    fm__device_destroy(&planned[0]);
    session_finish(&s);
    conversation_finish(&c);
    model_finish(&m);
}

/* ---- who waits for whom ---- */

enum { SPANS = 512 };

static bool is_product(const fm__tape *tape, uint32_t op) {
    return tape->ops[op].kind == FM__OP_LINEAR || tape->ops[op].kind == FM__OP_LINEAR_GLU;
}

static uint32_t spans_of(const session *s, fm__exec_span *spans) {
    uint32_t n = fm__exec_spans(s->exec, spans, SPANS);
    assert_in_range(n, 1, SPANS);
    for (uint32_t i = 0; i < n; i++)
        assert_true(spans[i].span.begin_ns > 0 && spans[i].span.end_ns >= spans[i].span.begin_ns);
    return n;
}

/* Two hosts on one core each, where there are two. */
static void make_two_cores(session *s) {
    int cores[2] = {-1, -1};
    if (fm__cores(cores, 2) < 2)
        cores[0] = cores[1] = -1;
    for (uint32_t u = 0; u < 2; u++) {
        const fm__host_options options = {.threads = 1, .cpus = &cores[u]};
        CHECK(fm__device_host_create(&s->units[u], &options, why));
    }
    s->n_unit = 2;
}

static fm__exec_times run_with_mode(fm__deps deps, fm__exec_span *spans, uint32_t *n) {
    model m;
    model_init(&m, FM__Q8_0, FM__Q4_K, 256, 2);
    fixture_batch(&m.f, 256, 0, MODEL_VOCAB, 2);
    session s = {.n_unit = 0};
    make_two_cores(&s);
    session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = deps});
    fm__exec_times times;
    for (int i = 0; i < 3; i++)
        run_once(&s);
    fm__exec_get_times(s.exec, &times);
    *n = spans_of(&s, spans);
    uint64_t busy[2] = {0, 0};
    for (uint32_t i = 0; i < *n; i++) {
        busy[spans[i].unit] += spans[i].span.end_ns - spans[i].span.begin_ns;
        assert_true(spans[i].span.begin_ns >= times.begin_ns &&
                    spans[i].span.end_ns <= times.end_ns);
        if (deps == FM__DEPS_EAGER) /* every product begins a recording */
            for (uint32_t op = spans[i].first_op + 1; op <= spans[i].last_op; op++)
                assert_false(is_product(m.tape, op) && spans[i].unit == 0);
    }
    assert_true(busy[0] == times.busy_ns[0] && busy[1] == times.busy_ns[1]);
    assert_true(times.divided_ns[0] > 0 && times.divided_ns[0] <= busy[0]);
    assert_true(times.divided_ns[1] == busy[1]); /* it has nothing but its parts */
    assert_int_equal(times.n_segment[0] + times.n_segment[1], *n);
    session_finish(&s);
    model_finish(&m);
    return times;
}

static bool intersect(fm__span a, fm__span b) {
    return a.begin_ns < b.end_ns && b.begin_ns < a.end_ns;
}

static void print_overlap(const char *name, const fm__exec_times *t) {
    uint64_t least = t->busy_ns[0] < t->busy_ns[1] ? t->busy_ns[0] : t->busy_ns[1];
    print_message("%-6s %7.0f us, busy %7.0f and %7.0f us, together %5.1f %% of the less busy; %u "
                  "and %u segments\n",
                  name, (double)(t->end_ns - t->begin_ns) / 1e3, (double)t->busy_ns[0] / 1e3,
                  (double)t->busy_ns[1] / 1e3, 100.0 * (double)t->overlap_ns / (double)least,
                  t->n_segment[0], t->n_segment[1]);
}

static void only_batch_is_serial_by_construction(void **state) {
    (void)state;
    static fm__exec_span spans[SPANS];
    for (int mode = 0; mode < N_MODE; mode++) {
        uint32_t n;
        fm__exec_times times = run_with_mode(MODES[mode], spans, &n);
        print_overlap(fm__deps_name(MODES[mode]), &times);
        if (MODES[mode] != FM__DEPS_BATCH)
            continue;
        assert_int_equal(times.overlap_ns, 0);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < i; j++)
                assert_true(spans[i].unit == spans[j].unit ||
                            !intersect(spans[i].span, spans[j].span));
    }
}

/* In EAGER the host has seen all of a step before the next begins. */
static void eager_steps_do_not_overlap(void **state) {
    (void)state;
    static fm__exec_span spans[SPANS];
    uint32_t n;
    run_with_mode(FM__DEPS_EAGER, spans, &n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) /* parts of the same products may */
            assert_true(spans[j].span.end_ns <= spans[i].span.begin_ns ||
                        spans[j].unit != spans[i].unit);
}

/* One unit alone: EAGER cuts before every product and the others do not cut at all. */
static void one_unit_is_cut_by_eager_only(void **state) {
    (void)state;
    static fm__exec_span spans[SPANS];
    model m;
    conversation c;
    model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
    conversation_init(&c, &m);
    session s = {.units = {make_host(2, NULL)}, .n_unit = 1};
    uint32_t products = 0;
    for (uint32_t i = 0; i < m.tape->n_op; i++)
        products += is_product(m.tape, i);
    for (int mode = 0; mode < N_MODE; mode++) {
        session_init(&s, &m, &(fm__plan_options){.deps = MODES[mode]});
        converse(&s, &m, &c);
        uint32_t n = spans_of(&s, spans);
        assert_int_equal(n, MODES[mode] == FM__DEPS_EAGER ? products + 1 : 1);
        for (uint32_t i = 1; i < n; i++) {
            assert_true(is_product(m.tape, spans[i].first_op));
            assert_int_equal(spans[i - 1].last_op + 1, spans[i].first_op);
            assert_true(spans[i - 1].span.end_ns <= spans[i].span.begin_ns);
        }
        session_close(&s);
    }
    session_finish(&s);
    conversation_finish(&c);
    model_finish(&m);
}

/* ---- runs ---- */

static void nothing_is_allocated_and_one_run_is_driven_at_a_time(void **state) {
    (void)state;
    for (int mode = 0; mode < N_MODE; mode++) {
        bool driven = MODES[mode] == FM__DEPS_READY || MODES[mode] == FM__DEPS_EAGER;
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
        fixture_batch(&m.f, 5, 0, MODEL_VOCAB, 2);
        session s = make_pair(DISCRETE_MAIN);
        session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
        uint64_t allocations = fm__alloc_count(), point = 0, second = 0;
        fm_error error = {0};
        CHECK(fm__exec_submit(s.exec, &s.run, &point, why));
        fm__run other = s.run;
        fm__run_status status;
        other.status = &status;
        assert_int_equal(fm__exec_submit(s.exec, &other, &second, &error),
                         driven ? FM_ERROR_STATE : FM_OK);
        assert_int_equal(fm__exec_wait(s.exec, point, &s.run, &error), FM_OK);
        if (!driven)
            assert_int_equal(fm__exec_wait(s.exec, second, &other, &error), FM_OK);
        assert_int_equal(fm__exec_wait(s.exec, point, &s.run, &error), FM_OK); /* again */
        run_once(&s);
        assert_int_equal(fm__alloc_count(), allocations);
        fm__buffer *mirror = s.run.mirrors[FM__SLOT_SCRATCH];
        s.run.mirrors[FM__SLOT_SCRATCH] = NULL;
        assert_int_equal(fm__exec_submit(s.exec, &s.run, &point, &error), FM_ERROR_ARGUMENT);
        s.run.mirrors[FM__SLOT_SCRATCH] = mirror;
        run_once(&s);
        session_finish(&s);
        model_finish(&m);
    }
}

/* Destroying an exec with a run that nobody waited for. */
static void a_run_may_be_left_alone(void **state) {
    (void)state;
    for (int mode = 0; mode < N_MODE; mode++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
        fixture_batch(&m.f, 5, 0, MODEL_VOCAB, 2);
        session s = make_pair(TWO_HOSTS);
        session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
        uint64_t point = 0;
        CHECK(fm__exec_submit(s.exec, &s.run, &point, why));
        fm__exec_destroy(&s.exec);
        session_finish(&s);
        model_finish(&m);
    }
}

/* Bytes of a slot that are not as fill() left them. */
static size_t count_written(const session *s, fm__slot slot) {
    fm__buffer *buffer = s->run.buffers[slot];
    uint8_t *bytes = fm__alloc(buffer->bytes);
    size_t n = 0;
    assert_non_null(bytes);
    CHECK(fm__device_buffer_read(buffer, 0, bytes, buffer->bytes, why));
    for (size_t i = 0; i < buffer->bytes; i++)
        n += bytes[i] != 0xff;
    fm__free(bytes);
    return n;
}

static void fill(const session *s, fm__slot slot) {
    fm__buffer *buffer = s->run.buffers[slot];
    void *bytes = fm__alloc(buffer->bytes);
    assert_non_null(bytes);
    memset(bytes, 0xff, buffer->bytes);
    CHECK(fm__device_buffer_write(buffer, 0, bytes, buffer->bytes, why));
    fm__free(bytes);
}

/* And no op of it has written anything: no unit has run one. */
static void a_cancelled_run_ends(void **state) {
    (void)state;
    for (int mode = 0; mode < N_MODE; mode++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
        fixture_batch(&m.f, 5, 0, MODEL_VOCAB, 2);
        session s = make_pair(TWO_HOSTS);
        session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
        _Atomic uint32_t cancel = 1;
        s.run.cancel = &cancel;
        for (int slot = 0; slot < FM__SLOT_COUNT; slot++)
            fill(&s, (fm__slot)slot);
        run_once(&s);
        for (int slot = 0; slot < FM__SLOT_COUNT; slot++)
            assert_int_equal(count_written(&s, (fm__slot)slot), 0);
        atomic_store(&cancel, 0);
        run_once(&s);
        for (int slot = 0; slot < FM__SLOT_COUNT; slot++)
            assert_true(count_written(&s, (fm__slot)slot) > 0);
        s.run.cancel = NULL;
        session_finish(&s);
        model_finish(&m);
    }
}

static void a_failure_names_op_and_token_in_every_mode(void **state) {
    (void)state;
    for (int mode = 0; mode < N_MODE; mode++) {
        model m;
        model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
        failing_batch(&m);
        session s = make_pair(DISCRETE_MAIN);
        session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
        run_fails(&s);
        session_finish(&s);
        model_finish(&m);
    }
}

/* ---- signals ---- */

static bool is_signalled(const fm__exec *exec, const fm__timeline *timeline, uint64_t value) {
    for (uint32_t u = 0; u < exec->n_unit; u++)
        for (uint32_t i = 0; i < exec->n_segment[u]; i++)
            if (exec->segments[u][i].signal == timeline &&
                exec->segments[u][i].signal_value == value)
                return true;
    return false;
}

static bool is_awaited(const fm__exec *exec, const fm__timeline *timeline, uint64_t value) {
    for (uint32_t u = 0; u < exec->n_unit; u++)
        for (uint32_t i = 0; i < exec->n_segment[u]; i++)
            if (exec->segments[u][i].wait == timeline && exec->segments[u][i].wait_value == value)
                return true;
    return false;
}

/* Of what is handed over at once: every value that a segment waits for is signalled (0: the run
   before), and only such values, and the end of each unit's part. Returns how many are left out. */
static uint32_t check_signals(const fm__exec *exec) {
    uint32_t left_out = 0;
    for (uint32_t u = 0; u < exec->n_unit; u++) {
        const fm__segment *segments = exec->segments[u];
        for (uint32_t i = 0; i < exec->n_segment[u]; i++) {
            const fm__segment *s = &segments[i];
            if (s->wait != NULL && s->wait_value != 0)
                assert_true(is_signalled(exec, s->wait, s->wait_value));
            left_out += s->recording != NULL && s->signal == NULL;
            if (s->signal != NULL)
                assert_true(s->signal_value == exec->layout.span ||
                            is_awaited(exec, s->signal, s->signal_value));
        }
        if (exec->n_segment[u] > 0)
            assert_true(segments[exec->n_segment[u] - 1].signal == &exec->timelines[u] &&
                        segments[exec->n_segment[u] - 1].signal_value == exec->layout.span);
    }
    return left_out;
}

static void only_what_is_awaited_is_signalled(void **state) {
    (void)state;
    for (pair kind = TWO_HOSTS; kind <= DISCRETE_AND_TWO; kind++)
        for (int batch = 0; batch < 2; batch++) {
            model m;
            model_init(&m, FM__Q8_0, FM__Q4_K, 16, 2);
            session s = make_pair(kind);
            fm__plan_options options = {.shares = {1, 1, s.n_unit == 3},
                                        .deps = batch ? FM__DEPS_BATCH : FM__DEPS_EVENT};
            session_init(&s, &m, &options);
            uint32_t left_out = check_signals(s.exec);
            assert_true(batch ? left_out == 0 : left_out > 0); /* by batch all are waited for */
            session_finish(&s);
            model_finish(&m);
        }
}

/* ---- a device that is lost ---- */

/* A null device with a queue of its own kind, that signals at once until it has signalled `left`
   times; then it is lost and never signals again. */
typedef struct mortal {
    fm__device *device;
    fm__device_vtable vtable;
    const fm__device_vtable *null;
    _Atomic int left;
    _Atomic bool lost, noticed;
    bool late; /* nobody can tell that it is lost before a wait has failed */
} mortal;

static mortal the_mortal;

static fm_status mortal_submit(fm__device *device, const fm__segment *segments, uint32_t n_segment,
                               const fm__run *run, uint64_t base, fm_error *error) {
    (void)run;
    if (the_mortal.lost)
        return fm__error(error, FM_ERROR_DEVICE, device->properties.name, "is lost");
    for (uint32_t i = 0; i < n_segment; i++) {
        if (segments[i].signal == NULL)
            continue;
        if (the_mortal.left == 0) {
            the_mortal.lost = true;
            return FM_OK;
        }
        the_mortal.left--;
        fm__timeline_signal(segments[i].signal, base + segments[i].signal_value);
    }
    return FM_OK;
}

static bool mortal_is_lost(fm__device *device) {
    (void)device;
    return the_mortal.late ? the_mortal.noticed : the_mortal.lost;
}

static fm_status mortal_attach(fm__device *device, void **native, fm_error *error) {
    (void)device;
    *native = fm__alloc_zero(sizeof(fm__counter));
    return *native != NULL ? FM_OK : fm__error_memory(error, "mortal", sizeof(fm__counter));
}

static void mortal_detach(fm__device *device, void *native) {
    (void)device;
    fm__free(native);
}

static uint64_t mortal_value(fm__device *device, void *native) {
    (void)device;
    return fm__counter_read(native);
}

static bool mortal_wait(fm__device *device, void *native, uint64_t value) {
    (void)device;
    while (fm__counter_read(native) < value) {
        if (the_mortal.lost) {
            the_mortal.noticed = true;
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return true;
}

static void mortal_signal(fm__device *device, void *native, uint64_t value) {
    (void)device;
    fm__counter_set(native, value);
}

static fm__device *make_mortal(int signals, bool late) {
    fm__device *device = NULL;
    CHECK(fm__device_null_create(&device, &(fm__null_options){.memory_bytes = 1 << 26}, why));
    the_mortal.device = device;
    the_mortal.null = device->vtable;
    the_mortal.vtable = *device->vtable;
    the_mortal.left = signals;
    the_mortal.lost = the_mortal.noticed = false;
    the_mortal.late = late;
    fm__device_vtable *v = &the_mortal.vtable;
    v->submit = mortal_submit;
    v->is_lost = mortal_is_lost;
    v->timeline_attach = mortal_attach;
    v->timeline_detach = mortal_detach;
    v->timeline_value = mortal_value;
    v->timeline_wait = mortal_wait;
    v->timeline_signal = mortal_signal;
    device->vtable = v;
    snprintf(device->properties.name, sizeof device->properties.name, "mortal");
    return device;
}

/* The host goes on alone, on the same buffers, with the right bits. */
static void check_survivor(session *s, model *m, uint32_t host) {
    interpreter in;
    interpreter_init(&in, &m->f, m->tape);
    interpreter_run(&in, m->tape, &m->f.batch);
    fm__plan *plan = NULL;
    fm__exec *exec = NULL;
    uint64_t point = 0;
    CHECK(fm__plan_make(&plan, m->tape, &s->units[host], 1, NULL, why));
    CHECK(fm__exec_create(&exec, m->tape, plan, &s->units[host], 1, why));
    CHECK(fm__exec_submit(exec, &s->run, &point, why));
    CHECK(fm__exec_wait(exec, point, &s->run, why));
    interpreter_compare(&in, m->tape, m->tape->logits, 2, &s->run);
    fm__exec_destroy(&exec);
    fm__plan_destroy(&plan);
    interpreter_finish(&in);
}

/* Two runs, with a device that is lost after `signals` signals; true: it was. */
static bool lose_after(model *m, fm__device *host, fm__deps deps, uint32_t mortal_unit, int signals,
                       bool late) {
    session s = {.n_unit = 2};
    s.units[mortal_unit] = make_mortal(signals, late);
    s.units[!mortal_unit] = host;
    session_init(&s, m, &(fm__plan_options){.shares = {1, 1}, .deps = deps});
    bool lost = false;
    for (int i = 0; i < 2; i++) {
        uint64_t point = 0;
        fm_error error = {0};
        fm_status status = fm__exec_submit(s.exec, &s.run, &point, &error);
        bool begun = status == FM_OK;
        if (begun)
            status = fm__exec_wait(s.exec, point, &s.run, &error);
        /* Its numbers are those of a device that computes nothing: they may be any. */
        assert_int_equal(status == FM_ERROR_DEVICE, the_mortal.lost);
        lost = status == FM_ERROR_DEVICE;
        if (!lost)
            continue;
        assert_string_equal(error.place, "mortal");
        if (begun)
            assert_int_equal(s.run.status->status, FM_ERROR_DEVICE);
        assert_int_equal(fm__exec_submit(s.exec, &s.run, &point, &error), FM_ERROR_DEVICE);
        check_survivor(&s, m, !mortal_unit);
        break;
    }
    session_close(&s);
    fm__device_destroy(&s.units[mortal_unit]);
    return lost;
}

static void a_lost_device_leaves_nothing_in_flight(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
    fm__device *host = make_host(2, NULL);
    for (int mode = 0; mode < N_MODE; mode++)
        for (uint32_t unit = 0; unit < 2; unit++) {
            int signals = 0;
            while (lose_after(&m, host, MODES[mode], unit, signals, signals % 2 == 0))
                signals++;
            assert_in_range(signals, 2, 200);
        }
    fm__device_destroy(&host);
    model_finish(&m);
}

/* The null device's own way to be lost: its signals still come, and then it is gone. */
static void a_lost_null_device_is_named(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
    session s = {.units = {make_host(2, NULL)}, .n_unit = 2};
    for (int mode = 0; mode < N_MODE; mode++) {
        const fm__null_options options = {.memory_bytes = 1 << 20, .lose_at = 1};
        CHECK(fm__device_null_create(&s.units[1], &options, why));
        session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
        uint64_t point = 0;
        fm_error error = {0};
        /* Where the host drives, the loss may show before submit returns: the host unit is quick.
         */
        assert_int_equal(run_try(&s, &error), FM_ERROR_DEVICE);
        assert_string_equal(error.place, "null");
        assert_non_null(strstr(error.message, "was lost"));
        assert_int_equal(fm__exec_submit(s.exec, &s.run, &point, &error), FM_ERROR_DEVICE);
        check_survivor(&s, &m, 0);
        session_close(&s);
        fm__device_destroy(&s.units[1]);
    }
    session_finish(&s);
    model_finish(&m);
}

/* A unit that refuses in the middle of a driven run. */
static void a_unit_may_refuse_at_any_step(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
    session s = {.units = {make_host(2, NULL)}, .n_unit = 2};
    for (int mode = 0; mode < N_MODE; mode++) {
        int refused = 0;
        for (uint64_t at = 1; at < 40; at += 3) {
            const fm__null_options options = {.memory_bytes = 1 << 20, .fail_submit_at = at};
            CHECK(fm__device_null_create(&s.units[1], &options, why));
            session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = MODES[mode]});
            for (int i = 0; i < 4; i++) {
                fm_error error = {0};
                if (run_try(&s, &error) != FM_ERROR_DEVICE)
                    continue;
                assert_string_equal(error.place, "null");
                refused++;
            }
            check_survivor(&s, &m, 0);
            session_close(&s);
            fm__device_destroy(&s.units[1]);
        }
        assert_true(refused >= 2);
    }
    session_finish(&s);
    model_finish(&m);
}

/* ---- times ---- */

static void overlap_is_the_time_in_both(void **state) {
    (void)state;
    static const fm__span a[] = {{0, 10}, {20, 30}, {30, 40}, {50, 60}};
    static const fm__span b[] = {{5, 25}, {28, 35}, {45, 50}, {55, 70}};
    assert_int_equal(fm__overlap_ns(a, 4, b, 4), 5 + 5 + 2 + 5 + 5);
    assert_int_equal(fm__overlap_ns(b, 4, a, 4), 5 + 5 + 2 + 5 + 5);
    assert_int_equal(fm__overlap_ns(a, 4, a, 4), 40);
    assert_int_equal(fm__overlap_ns(a, 4, b, 0), 0);
    assert_int_equal(fm__overlap_ns(NULL, 0, NULL, 0), 0);
    static const fm__span whole[] = {{0, UINT64_MAX}};
    assert_int_equal(fm__overlap_ns(whole, 1, b, 4), 20 + 7 + 5 + 15);
    static const fm__span twice[] = {{0, 10}, {5, 12}}; /* of one list: counted once */
    assert_int_equal(fm__overlap_ns(twice, 2, whole, 1), 12);
}

static void without_clocks_times_are_zero(void **state) {
    (void)state;
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 16, 2);
    fixture_batch(&m.f, 3, 0, MODEL_VOCAB, 2);
    session s = {.n_unit = 2};
    for (uint32_t u = 0; u < 2; u++)
        CHECK(
            fm__device_null_create(&s.units[u], &(fm__null_options){.memory_bytes = 1 << 24}, why));
    session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}});
    run_once(&s);
    fm__exec_times times;
    fm__exec_get_times(s.exec, &times);
    assert_int_equal(times.busy_ns[0] + times.busy_ns[1] + times.overlap_ns, 0);
    assert_int_equal(times.end_ns, times.begin_ns);
    assert_true(times.n_segment[0] > 4 && times.n_segment[1] > 4);
    fm__exec_span one;
    assert_int_equal(fm__exec_spans(s.exec, &one, 1), times.n_segment[0] + times.n_segment[1]);
    assert_int_equal(one.first_op, 0);
    session_finish(&s);
    model_finish(&m);
}

/* What the scheduler itself costs: devices that take no time. */
static void print_cost(fm__deps deps, uint32_t rows) {
    enum { RUNS = 1000 };
    model m;
    model_init(&m, FM__Q8_0, FM__Q8_0, 256, 2);
    fixture_batch(&m.f, rows, rows == 1 ? 100 : 0, MODEL_VOCAB, 1);
    session s = {.n_unit = 2};
    for (uint32_t u = 0; u < 2; u++)
        CHECK(
            fm__device_null_create(&s.units[u], &(fm__null_options){.memory_bytes = 1 << 26}, why));
    session_init(&s, &m, &(fm__plan_options){.shares = {1, 1}, .deps = deps});
    run_once(&s);
    uint64_t began = fm__now_ns();
    for (int i = 0; i < RUNS; i++)
        run_once(&s);
    double us = (double)(fm__now_ns() - began) / 1e3 / RUNS;
    print_message("%-6s %3u rows: %6.2f us a run, %.2f us a split layer\n", fm__deps_name(deps),
                  rows, us, us / MODEL_LAYERS);
    assert_true(us < 5000); /* a defect, whatever the machine */
    session_finish(&s);
    model_finish(&m);
}

static void the_cost_of_a_split_layer(void **state) {
    (void)state;
    for (int mode = 0; mode < N_MODE; mode++) {
        print_cost(MODES[mode], 1);
        print_cost(MODES[mode], 256);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_awaited_is_signalled),
        cmocka_unit_test(two_hosts_give_the_bits_of_one),
        cmocka_unit_test(three_hosts_give_the_bits_of_one),
        cmocka_unit_test(the_default_of_many_rows_gives_the_bits_of_one),
        cmocka_unit_test(a_discrete_main_unit_gives_the_bits_of_one),
        cmocka_unit_test(a_discrete_main_unit_with_two_hosts_does_too),
        cmocka_unit_test(shares_may_differ_from_op_to_op),
        cmocka_unit_test(one_wait_is_for_q_k_and_v),
        cmocka_unit_test(the_embedding_may_be_looked_up_by_the_host),
        cmocka_unit_test(only_batch_is_serial_by_construction),
        cmocka_unit_test(eager_steps_do_not_overlap),
        cmocka_unit_test(one_unit_is_cut_by_eager_only),
        cmocka_unit_test(nothing_is_allocated_and_one_run_is_driven_at_a_time),
        cmocka_unit_test(a_run_may_be_left_alone),
        cmocka_unit_test(a_cancelled_run_ends),
        cmocka_unit_test(a_failure_names_op_and_token_in_every_mode),
        cmocka_unit_test(a_lost_device_leaves_nothing_in_flight),
        cmocka_unit_test(a_lost_null_device_is_named),
        cmocka_unit_test(a_unit_may_refuse_at_any_step),
        cmocka_unit_test(overlap_is_the_time_in_both),
        cmocka_unit_test(without_clocks_times_are_zero),
        cmocka_unit_test(the_cost_of_a_split_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
