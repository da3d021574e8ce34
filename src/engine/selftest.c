/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/selftest.c: a GPU's kernels against the reference, at the shapes of the model that loads.
 *
 * Owns: the names of what was left out. Never does: compare (the device does). Called from: the
 * loading thread, once, before anything is planned.
 */
#include "engine/engine.h"

#include <string.h>

/* Adds a name to a comma separated list, once. */
static void add_name(char *list, size_t capacity, const char *name) {
    size_t bytes = strlen(name), end = strlen(list);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at++) {
        if ((at == list || at[-1] == ' ') && (at[bytes] == ',' || at[bytes] == 0))
            return;
    }
    if (end + bytes + 3 < capacity)
        snprintf(list + end, capacity - end, "%s%s", end ? ", " : "", name);
}

/* What op i's kernel is called, where the device runs it. */
static const char *kernel_of(fm_engine *engine, const fm__tape *tape, uint32_t i) {
    const fm__op *op = &tape->ops[i];
    if (!fm__device_op_supports(engine->gpu, tape, op, NULL))
        return NULL;
    const char *name = fm__device_op_kernel(engine->gpu, tape, op);
    return name[0] ? name : fm__op_name(op->kind);
}

static void note_excluded(fm_engine *engine, const char *name) {
    fm_machine *machine = engine->machine;
    uint32_t i = 0;
    while (machine->devices[i] != engine->gpu)
        i++;
    pthread_mutex_lock(&machine->lock);
    add_name(machine->excluded[i], sizeof(machine->excluded[i]), name);
    pthread_mutex_unlock(&machine->lock);
}

/* How far the tests of all tapes are, in ops. */
typedef struct progress {
    const fm_engine_options *options;
    uint64_t done, total; /* done: of the tapes before */
} progress;

static int on_kernel(void *user, uint32_t op) {
    const progress *p = user;
    const fm_engine_options *o = p->options;
    return o->progress ? o->progress(o->progress_user, "testing kernels", p->done + op, p->total)
                       : 0;
}

static fm_status test_tape(fm_engine *engine, const fm__tape *tape, progress *p, fm_error *error) {
    /* Names as they are now: a kernel that is left out has none afterwards. */
    char(*names)[64] = fm__alloc_array(tape->n_op, sizeof(*names));
    if (!names)
        return fm__error_memory(error, "self-test", tape->n_op * sizeof(*names));
    for (uint32_t i = 0; i < tape->n_op; i++) {
        const char *name = kernel_of(engine, tape, i);
        snprintf(names[i], sizeof(names[i]), "%s", name ? name : "");
    }
    uint32_t n_tested = 0, n_excluded = 0;
    char all[256] = "";
    fm_status status =
        fm__device_vulkan_self_test(engine->gpu, tape, on_kernel, p, &n_tested, &n_excluded, error);
    p->done += tape->n_op;
    for (uint32_t i = 0; i < tape->n_op && status == FM_OK && n_excluded; i++) {
        if (names[i][0] && !fm__device_op_supports(engine->gpu, tape, &tape->ops[i], NULL)) {
            add_name(all, sizeof(all), names[i]);
            note_excluded(engine, names[i]);
        }
    }
    if (status == FM_OK && n_excluded)
        fm__log(FM_LOG_WARNING,
                "%s: %u of %u kernels differ from the reference and are not used: %s",
                engine->gpu->properties.name, n_excluded, n_tested, all[0] ? all : "spare ones");
    fm__free(names);
    return status;
}

fm_status fm__engine_self_test(fm_engine *engine, fm_error *error) {
    if (!engine->gpu || strcmp(engine->gpu->vtable->backend, "vulkan") != 0)
        return FM_OK;
    /* Kernels are chosen by a tape's bound on rows, so each is tested. */
    fm_status status = FM_OK;
    progress p = {.options = &engine->options};
    for (uint32_t i = 0; i < engine->n_bucket; i++)
        p.total += engine->buckets[i].tape->n_op;
    for (uint32_t i = 0; i < engine->n_bucket && status == FM_OK; i++)
        status = test_tape(engine, engine->buckets[i].tape, &p, error);
    return status;
}
