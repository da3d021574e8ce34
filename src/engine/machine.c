/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/machine.c: the machine: its devices and the memory budget.
 *
 * Owns: devices. Never does: run ops. Called from: the user's threads; the memory counter is
 * atomic, everything else is read-only after creation.
 */
#include "engine/engine.h"

#include "cpu/cpu.h"

#include <assert.h>
#include <string.h>

fm_machine_options fm_machine_options_default(void) {
    return (fm_machine_options){0};
}

fm_status fm_machine_create(fm_machine **out, const fm_machine_options *options, fm_error *error) {
    fm_machine_options o = options ? *options : fm_machine_options_default();
    if (!out)
        return fm__error(error, FM_ERROR_ARGUMENT, "fm_machine_create", "out is NULL");
    if (o.threads > 4096)
        return fm__error(error, FM_ERROR_ARGUMENT, "threads", "is %u, the most is 4096", o.threads);
    fm_machine *machine = fm__alloc_zero(sizeof(*machine));
    if (!machine)
        return fm__error_memory(error, "machine", sizeof(*machine));
    fm__host_options host = {.threads = o.threads, .rung = o.cpu_rung};
    fm_status status = fm__device_host_create(&machine->devices[0], &host, error);
    if (status != FM_OK) {
        fm__free(machine);
        return status;
    }
    machine->n_device = 1;
    uint64_t available = fm__memory_available();
    machine->memory_budget = o.memory_budget ? o.memory_budget : available / 10 * 9;
    *out = machine;
    return FM_OK;
}

void fm_machine_destroy(fm_machine **machine) {
    if (!machine || !*machine)
        return;
    fm_machine *m = *machine;
    assert(atomic_load(&m->memory_used) == 0 && "an engine of this machine is alive");
    for (uint32_t i = m->n_device; i-- > 0;)
        fm__device_destroy(&m->devices[i]);
    fm__free(m);
    *machine = NULL;
}

bool fm__machine_reserve(fm_machine *machine, uint64_t bytes) {
    uint64_t used = atomic_load(&machine->memory_used), sum;
    do {
        if (!fm__add_u64(used, bytes, &sum) || sum > machine->memory_budget)
            return false;
    } while (!atomic_compare_exchange_weak(&machine->memory_used, &used, sum));
    return true;
}

void fm__machine_release(fm_machine *machine, uint64_t bytes) {
    atomic_fetch_sub(&machine->memory_used, bytes);
}

size_t fm_machine_device_count(const fm_machine *machine) {
    return machine->n_device;
}

fm_status fm_machine_device(const fm_machine *machine, size_t index, fm_device_info *out,
                            fm_error *error) {
    if (index >= machine->n_device)
        return fm__error(error, FM_ERROR_ARGUMENT, "device", "index %zu, there are %u", index,
                         machine->n_device);
    const fm__device_properties *p = &machine->devices[index]->properties;
    *out = (fm_device_info){
        .threads = p->threads, .memory_bytes = p->memory_bytes, .unified = p->unified};
    snprintf(out->name, sizeof(out->name), "%s", p->name);
    snprintf(out->kind, sizeof(out->kind), "%s", p->kind);
    snprintf(out->description, sizeof(out->description), "%s", p->description);
    snprintf(out->rung, sizeof(out->rung), "%s", p->rung);
    snprintf(out->features, sizeof(out->features), "%s", p->features);
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
    const fm__linear_kernel *kernels = fm__device_host_kernels(machine->devices[0])->linear[index];
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
