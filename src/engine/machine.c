/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/machine.c: the machine: its devices and the memory budget.
 *
 * Owns: devices. Never does: run ops. Called from: the user's threads; memory counters are atomic,
 * what self-tests found has a lock, and so has the order of runs; everything else is read-only
 * after creation.
 */
#include "engine/engine.h"

#include "cpu/cpu.h"

#include <assert.h>
#include <string.h>

fm_machine_options fm_machine_options_default(void) {
    return (fm_machine_options){0};
}

static fm_status allocate(fm_machine **out, uint64_t budget, fm_error *error) {
    fm_machine *machine = fm__alloc_zero(sizeof(*machine));
    if (!machine)
        return fm__error_memory(error, "machine", sizeof(*machine));
    if (pthread_mutex_init(&machine->lock, NULL) != 0)
        goto no_lock;
    if (pthread_mutex_init(&machine->order, NULL) != 0)
        goto no_order;
    machine->memory_budget = budget ? budget : fm__memory_available() / 10 * 9;
    *out = machine;
    return FM_OK;
no_order:
    pthread_mutex_destroy(&machine->lock);
no_lock:
    fm__free(machine);
    return fm__error(error, FM_ERROR_MEMORY, "machine", "no lock");
}

static fm_status copy_cache_dir(fm_machine *machine, const char *path, fm_error *error) {
    if (!path)
        return FM_OK;
    size_t bytes = strlen(path) + 1;
    machine->cache_dir = fm__alloc(bytes);
    if (!machine->cache_dir)
        return fm__error_memory(error, "machine", bytes);
    memcpy(machine->cache_dir, path, bytes);
    return FM_OK;
}

fm_status fm_machine_create(fm_machine **out, const fm_machine_options *options, fm_error *error) {
    fm_machine_options o = options ? *options : fm_machine_options_default();
    if (!out)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_machine_create", "out is NULL");
    if (o.threads > 4096)
        return fm__error(error, FM_ERROR_ARGUMENT, "threads", "is %u, the most is 4096", o.threads);
    fm_machine *machine = NULL;
    fm_status status = allocate(&machine, o.memory_budget, error);
    if (status != FM_OK)
        return status;
    status = copy_cache_dir(machine, o.cache_dir, error);
    if (status == FM_OK)
        status = fm__devices_make(machine, &o, error);
    if (status != FM_OK)
        fm_machine_destroy(&machine);
    else
        *out = machine;
    return status;
}

fm_status fm__machine_adopt(fm_machine **out, fm__device *const *devices, uint32_t n_device,
                            uint64_t budget, fm_error *error) {
    assert(n_device <= FM__MAX_UNITS);
    fm_machine *machine = NULL;
    fm_status status = allocate(&machine, budget, error);
    for (uint32_t i = 0; i < n_device; i++) {
        fm__device *device = devices[i];
        if (status != FM_OK) {
            fm__device_destroy(&device);
            continue;
        }
        machine->devices[machine->n_device++] = device;
        if (!machine->host && device->properties.unified &&
            strcmp(device->properties.kind, "cpu") == 0)
            machine->host = device;
    }
    if (status == FM_OK)
        *out = machine;
    return status;
}

/* What devices keep goes with them. */
static void forget_kept(fm_machine *machine) {
    for (uint32_t i = 0; i < machine->n_device; i++)
        for (int what = 0; what < FM__KEEPS_COUNT; what++) {
            struct fm__kept *kept = &machine->kept[i][what];
            assert(kept->users == 0 && "an engine of this machine is alive");
            if (!fm__device_has_own(&machine->devices[i]->properties))
                atomic_fetch_sub(&machine->memory_used, kept->total);
            *kept = (struct fm__kept){.users = 0};
        }
}

void fm_machine_destroy(fm_machine **machine) {
    if (!machine || !*machine)
        return;
    fm_machine *m = *machine;
    forget_kept(m);
    assert(atomic_load(&m->memory_used) == 0 && "an engine of this machine is alive");
    for (uint32_t i = m->n_device; i-- > 0;)
        fm__device_destroy(&m->devices[i]);
    pthread_mutex_destroy(&m->order);
    pthread_mutex_destroy(&m->lock);
    fm__free(m->cache_dir);
    fm__free(m);
    *machine = NULL;
}

/* ---- memory ---- */

static bool take(_Atomic uint64_t *counter, uint64_t bytes, uint64_t limit) {
    uint64_t used = atomic_load(counter), sum;
    do {
        if (!fm__add_u64(used, bytes, &sum) || sum > limit)
            return false;
    } while (!atomic_compare_exchange_weak(counter, &used, sum));
    return true;
}

bool fm__machine_reserve(fm_machine *machine, uint64_t bytes) {
    return take(&machine->memory_used, bytes, machine->memory_budget);
}

void fm__machine_release(fm_machine *machine, uint64_t bytes) {
    atomic_fetch_sub(&machine->memory_used, bytes);
}

static uint32_t index_of(const fm_machine *machine, const fm__device *device) {
    uint32_t i = 0;
    while (i < machine->n_device && machine->devices[i] != device)
        i++;
    assert(i < machine->n_device);
    return i;
}

/* The driver and pipelines get the rest. */
static uint64_t own_limit(const fm__device *device) {
    return device->properties.memory_bytes / 10 * 9;
}

bool fm__machine_reserve_own(fm_machine *machine, const fm__device *device, uint64_t bytes) {
    return take(&machine->own_used[index_of(machine, device)], bytes, own_limit(device));
}

void fm__machine_release_own(fm_machine *machine, const fm__device *device, uint64_t bytes) {
    atomic_fetch_sub(&machine->own_used[index_of(machine, device)], bytes);
}

/* ---- what devices keep for all engines ---- */

static _Atomic uint64_t *counter_of(fm_machine *machine, const fm__device *device,
                                    uint64_t *limit) {
    bool own = fm__device_has_own(&device->properties);
    *limit = own ? own_limit(device) : machine->memory_budget;
    return own ? &machine->own_used[index_of(machine, device)] : &machine->memory_used;
}

static uint64_t more(const struct fm__kept *kept, uint64_t bytes) {
    return bytes > kept->largest ? bytes : 0;
}

static bool keep(fm_machine *machine, const fm__device *device, fm__keeps what, uint64_t bytes,
                 uint32_t users) {
    struct fm__kept *kept = &machine->kept[index_of(machine, device)][what];
    uint64_t limit;
    _Atomic uint64_t *counter = counter_of(machine, device, &limit);
    pthread_mutex_lock(&machine->lock);
    uint64_t further = more(kept, bytes);
    bool fits = take(counter, further, limit);
    if (fits) {
        kept->largest = fm__max_size(kept->largest, bytes);
        kept->total += further;
        kept->users += users;
    }
    pthread_mutex_unlock(&machine->lock);
    return fits;
}

bool fm__machine_keep(fm_machine *machine, const fm__device *device, fm__keeps what,
                      uint64_t bytes) {
    return keep(machine, device, what, bytes, 1);
}

bool fm__machine_keep_more(fm_machine *machine, const fm__device *device, fm__keeps what,
                           uint64_t bytes) {
    return keep(machine, device, what, bytes, 0);
}

uint64_t fm__machine_would_keep(fm_machine *machine, const fm__device *device, fm__keeps what,
                                uint64_t bytes) {
    pthread_mutex_lock(&machine->lock);
    uint64_t further = more(&machine->kept[index_of(machine, device)][what], bytes);
    pthread_mutex_unlock(&machine->lock);
    return further;
}

void fm__machine_keep_less(fm_machine *machine, const fm__device *device, fm__keeps what,
                           uint64_t bytes) {
    struct fm__kept *kept = &machine->kept[index_of(machine, device)][what];
    uint64_t limit;
    _Atomic uint64_t *counter = counter_of(machine, device, &limit);
    pthread_mutex_lock(&machine->lock);
    if (kept->users > 0 && bytes < kept->total) {
        atomic_fetch_sub(counter, kept->total - bytes);
        kept->total = kept->largest = bytes;
    }
    pthread_mutex_unlock(&machine->lock);
}

void fm__machine_let_go(fm_machine *machine, fm__device *device, fm__keeps what) {
    struct fm__kept *kept = &machine->kept[index_of(machine, device)][what];
    uint64_t limit;
    _Atomic uint64_t *counter = counter_of(machine, device, &limit);
    pthread_mutex_lock(&machine->lock);
    assert(kept->users > 0);
    if (--kept->users == 0) {
        fm__held held = fm__device_held(device);
        uint64_t total = what == FM__KEEPS_RING ? held.ring : held.scratch;
        atomic_fetch_add(counter, total - kept->total); /* either way: unsigned */
        kept->total = total;
        kept->largest = what == FM__KEEPS_RING ? held.ring : held.largest;
    }
    pthread_mutex_unlock(&machine->lock);
}

uint64_t fm__machine_own_left(const fm_machine *machine, const fm__device *device) {
    uint64_t used = atomic_load(&machine->own_used[index_of(machine, device)]);
    return used < own_limit(device) ? own_limit(device) - used : 0;
}

/* ---- reports ---- */

size_t fm_machine_device_count(const fm_machine *machine) {
    return machine->n_device;
}

fm_status fm_machine_device(const fm_machine *machine, size_t index, fm_device_info *out,
                            fm_error *error) {
    if (index >= machine->n_device)
        return fm__error(error, FM_ERROR_ARGUMENT, "device", "index %zu, there are %u", index,
                         machine->n_device);
    const fm__device_properties *p = &machine->devices[index]->properties;
    *out = (fm_device_info){.threads = p->threads,
                            .memory_bytes = p->memory_bytes,
                            .unified = p->unified,
                            .software = p->software};
    snprintf(out->name, sizeof(out->name), "%s", p->name);
    snprintf(out->kind, sizeof(out->kind), "%s", p->kind);
    snprintf(out->description, sizeof(out->description), "%s", p->description);
    snprintf(out->rung, sizeof(out->rung), "%s", p->rung);
    snprintf(out->features, sizeof(out->features), "%s", p->features);
    snprintf(out->driver, sizeof(out->driver), "%s", p->driver);
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&machine->lock);
    snprintf(out->excluded, sizeof(out->excluded), "%s", machine->excluded[index]);
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&machine->lock);
    return FM_OK;
}

size_t fm_machine_type_count(const fm_machine *machine) {
    (void)machine;
    return fm__type_count();
}

fm_status fm_machine_type(const fm_machine *machine, size_t index, fm_type_info *out,
                          fm_error *error) {
    if (index >= fm__type_count())
        return fm__error(error, FM_ERROR_ARGUMENT, "type", "index %zu, there are %zu", index,
                         fm__type_count());
    const fm__type *type = fm__type_at(index);
    const fm__linear_kernel *kernels = fm__device_host_kernels(machine->host)->linear[index];
    const uint32_t k = 4096; /* long enough that rounding up a panel does not show */
    fm__panel_layout layout = fm__panel_layout_of(type, k);
    *out = (fm_type_info){
        .bits_per_weight = 8.0 * type->block_bytes / type->block,
        .packed_bits_per_weight = 8.0 * (double)layout.stride / (FM__PANEL_ROWS * (double)k),
        .quantised = type->quantised,
        .has_fast = kernels[1].fn != NULL,
        .can_encode = type->encode != NULL,
    };
    snprintf(out->name, sizeof(out->name), "%s", type->name);
    snprintf(out->exact_kernel, sizeof(out->exact_kernel), "%s",
             kernels[0].fn ? kernels[0].name : "");
    snprintf(out->fast_kernel, sizeof(out->fast_kernel), "%s",
             kernels[1].fn ? kernels[1].name : "");
    return FM_OK;
}

uint64_t fm_machine_memory_budget(const fm_machine *machine) {
    return machine->memory_budget;
}

uint64_t fm_machine_memory_used(const fm_machine *machine) {
    return atomic_load(&machine->memory_used);
}
