/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c: `fusionml devices`: every unit that can be had, those that cannot and why, and which
   kernels serve each weight type. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { MAX_UNITS = 16 };

/* A unit, by the name that --device takes. */
typedef struct unit {
    char spelled[40];
    fm_device_info info;
    bool used;   /* of the machine that is used without --device, or with the one given */
    bool tested; /* its kernels, at the shapes of -m */
} unit;

typedef struct inventory {
    fm_machine *machine;
    unit units[MAX_UNITS];
    uint32_t n_unit;
    char reason[640]; /* why there is no Vulkan device, or none after the last */
} inventory;

static void add(inventory *all, const char *spelled, const fm_device_info *info, bool used,
                bool tested) {
    if (all->n_unit == MAX_UNITS)
        return;
    unit *u = &all->units[all->n_unit++];
    snprintf(u->spelled, sizeof u->spelled, "%s", spelled);
    u->info = *info;
    u->used = used;
    u->tested = tested && strcmp(info->kind, "cpu") != 0; /* the host's are what is compared with */
}

/* A machine names a device either by what was asked for or by "vulkan:0"; two are the same unit
   when all that is known of them is. */
static unit *find(inventory *all, const fm_device_info *info) {
    for (uint32_t i = 0; i < all->n_unit; i++) {
        const fm_device_info *other = &all->units[i].info;
        if (strcmp(other->name, info->name) == 0 &&
            strcmp(other->description, info->description) == 0)
            return &all->units[i];
    }
    return NULL;
}

/* With -m: loads the model, which tests the GPU's kernels at its shapes; what differs from the
   reference is then in fm_device_info.excluded. */
static fm_status self_test(const cli_args *args, fm_machine *machine, fm_error *error) {
    fm_engine *engine = NULL;
    if (args->model == NULL)
        return FM_OK;
    fm_status status = cli_open_engine(args, FM_CLASS_AUTO, machine, &engine, error);
    cli_close_engine(&engine);
    return status;
}

/* Every Vulkan device in turn, software ones too, until one cannot be had. What a self-test ends
   with is told and no reason to stop, but for Ctrl-C. */
static fm_status list_vulkan(const cli_args *args, inventory *all, fm_error *error) {
    for (uint32_t index = 0; index < MAX_UNITS; index++) {
        fm_machine_options options = fm_machine_options_default();
        fm_machine *machine = NULL;
        fm_device_info info;
        fm_error why = {0};
        char spelled[40];
        if (cli_check_interrupt(error) != FM_OK)
            return error->status;
        snprintf(spelled, sizeof spelled, "vulkan:%u", index);
        options.devices = spelled;
        options.cpu_rung = args->cpu;
        options.threads = args->threads;
        if (fm_machine_create(&machine, &options, &why) != FM_OK) {
            snprintf(all->reason, sizeof all->reason, "no %s%s: %s",
                     index > 0 ? "further Vulkan device, " : "", spelled, why.message);
            return FM_OK;
        }
        if (fm_machine_device(machine, 0, &info, NULL) == FM_OK && find(all, &info) == NULL) {
            bool tested = self_test(args, machine, &why) == FM_OK && args->model != NULL;
            if (args->model != NULL && !tested && !cli_interrupted())
                fprintf(stderr, "%s: %s\n", spelled, why.message);
            fm_machine_device(machine, 0, &info, NULL);
            add(all, spelled, &info, false, tested);
        }
        fm_machine_destroy(&machine);
    }
    return FM_OK;
}

static fm_status take_stock(const cli_args *args, inventory *all, fm_error *error) {
    fm_device_info info;
    for (size_t i = 0; i < fm_machine_device_count(all->machine); i++)
        if (fm_machine_device(all->machine, i, &info, NULL) == FM_OK)
            add(all, info.name, &info, true, args->model != NULL);
    return list_vulkan(args, all, error);
}

static void print_unit(const unit *u) {
    const fm_device_info *d = &u->info;
    char memory[32];
    cli_bytes_text(d->memory_bytes, memory, sizeof memory);
    printf("%s (%s%s): %s%s\n", u->spelled, d->kind, d->software ? ", software" : "",
           d->description, u->used ? "" : "; only with --device");
    if (d->threads > 0)
        printf("  threads %u, rung %s, features: %s\n", d->threads, d->rung, d->features);
    else if (d->features[0] != '\0')
        printf("  features: %s\n", d->features);
    if (d->driver[0] != '\0')
        printf("  driver %s\n", d->driver);
    printf("  memory %s, %s\n", memory, d->unified ? "unified" : "its own");
    if (u->tested)
        printf("  kernels tested at the model's shapes: %s\n",
               d->excluded[0] == '\0' ? "the bits of the reference" : "not all are right");
    if (d->excluded[0] != '\0')
        printf("  excluded kernels: %s\n", d->excluded);
}

static void print_text(const inventory *all) {
    fm_type_info t;
    char budget[32];
    cli_bytes_text(fm_machine_memory_budget(all->machine), budget, sizeof budget);
    for (uint32_t i = 0; i < all->n_unit; i++)
        print_unit(&all->units[i]);
    printf("%s\nmemory budget %s\n", all->reason, budget);
    int width = 40;
    for (size_t i = 0; i < fm_machine_type_count(all->machine); i++)
        if (fm_machine_type(all->machine, i, &t, NULL) == FM_OK &&
            strlen(t.exact_kernel) > (size_t)width)
            width = (int)strlen(t.exact_kernel);
    printf("\nthe host's kernels\n%-8s %9s %9s  %-6s %-*s %s\n", "type", "bits/w", "packed",
           "class", width, "exact kernel", "fast kernel");
    for (size_t i = 0; i < fm_machine_type_count(all->machine); i++) {
        if (fm_machine_type(all->machine, i, &t, NULL) != FM_OK)
            continue;
        printf("%-8s %9.3f %9.3f  %-6s %-*s %s\n", t.name, t.bits_per_weight,
               t.packed_bits_per_weight, t.has_fast ? "both" : "exact", width, t.exact_kernel,
               t.fast_kernel);
    }
}

static json_t *json_unit(const unit *u) {
    const fm_device_info *d = &u->info;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:b, s:b, s:b, s:b}",
                     "device", u->spelled, "name", d->name, "kind", d->kind, "description",
                     d->description, "rung", d->rung, "features", d->features, "driver", d->driver,
                     "excluded", d->excluded, "threads", (json_int_t)d->threads, "memory_bytes",
                     (json_int_t)d->memory_bytes, "unified", d->unified, "software", d->software,
                     "used", (int)u->used, "tested", (int)u->tested);
}

static int print_json(const inventory *all) {
    json_t *root = json_object(), *devices = json_array(), *types = json_array();
    fm_type_info t;
    for (uint32_t i = 0; i < all->n_unit; i++)
        json_array_append_new(devices, json_unit(&all->units[i]));
    for (size_t i = 0; i < fm_machine_type_count(all->machine); i++)
        if (fm_machine_type(all->machine, i, &t, NULL) == FM_OK)
            json_array_append_new(
                types, json_pack("{s:s, s:f, s:f, s:b, s:b, s:b, s:s, s:s}", "name", t.name,
                                 "bits_per_weight", t.bits_per_weight, "packed_bits_per_weight",
                                 t.packed_bits_per_weight, "quantised", t.quantised, "has_fast",
                                 t.has_fast, "can_encode", t.can_encode, "exact_kernel",
                                 t.exact_kernel, "fast_kernel", t.fast_kernel));
    json_object_set_new(root, "devices", devices);
    json_object_set_new(root, "no_more_devices", json_string(all->reason));
    json_object_set_new(root, "types", types);
    json_object_set_new(root, "memory_budget",
                        json_integer((json_int_t)fm_machine_memory_budget(all->machine)));
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL)
        return cli_fail_text("out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

int cli_devices(const cli_args *args) {
    inventory all = {0};
    fm_error error = {0};
    int code = CLI_OK;
    fm_status status = cli_open_machine(args, &all.machine, &error);
    if (status == FM_OK)
        status = self_test(args, all.machine, &error);
    if (status == FM_OK)
        status = take_stock(args, &all, &error);
    if (status != FM_OK)
        code = cli_fail(&error);
    else if (args->json)
        code = print_json(&all);
    else
        print_text(&all);
    fm_machine_destroy(&all.machine);
    return code;
}
