/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c: `fusionml devices`: what was found, and which kernels serve each weight type. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

static void print_text(const fm_machine *machine) {
    fm_device_info d;
    fm_type_info t;
    char memory[32], budget[32];
    cli_bytes_text(fm_machine_memory_budget(machine), budget, sizeof budget);
    for (size_t i = 0; i < fm_machine_device_count(machine); i++) {
        if (fm_machine_device(machine, i, &d, NULL) != FM_OK)
            continue;
        cli_bytes_text(d.memory_bytes, memory, sizeof memory);
        printf("%s (%s): %s\n  threads %u, rung %s, features: %s\n  memory %s%s, budget %s\n",
               d.name, d.kind, d.description, d.threads, d.rung, d.features, memory,
               d.unified ? ", unified" : "", budget);
    }
    printf("\n%-8s %9s %9s  %-6s %-40s %s\n", "type", "bits/w", "packed", "class", "exact kernel",
           "fast kernel");
    for (size_t i = 0; i < fm_machine_type_count(machine); i++) {
        if (fm_machine_type(machine, i, &t, NULL) != FM_OK)
            continue;
        printf("%-8s %9.3f %9.3f  %-6s %-40s %s\n", t.name, t.bits_per_weight,
               t.packed_bits_per_weight, t.has_fast ? "both" : "exact", t.exact_kernel,
               t.fast_kernel);
    }
}

static int print_json(const fm_machine *machine) {
    json_t *root = json_object(), *devices = json_array(), *types = json_array();
    fm_device_info d;
    fm_type_info t;
    for (size_t i = 0; i < fm_machine_device_count(machine); i++)
        if (fm_machine_device(machine, i, &d, NULL) == FM_OK)
            json_array_append_new(devices,
                                  json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:b}", "name",
                                            d.name, "kind", d.kind, "description", d.description,
                                            "rung", d.rung, "features", d.features, "threads",
                                            (json_int_t)d.threads, "memory_bytes",
                                            (json_int_t)d.memory_bytes, "unified", d.unified));
    for (size_t i = 0; i < fm_machine_type_count(machine); i++)
        if (fm_machine_type(machine, i, &t, NULL) == FM_OK)
            json_array_append_new(
                types, json_pack("{s:s, s:f, s:f, s:b, s:b, s:b, s:s, s:s}", "name", t.name,
                                 "bits_per_weight", t.bits_per_weight, "packed_bits_per_weight",
                                 t.packed_bits_per_weight, "quantised", t.quantised, "has_fast",
                                 t.has_fast, "can_encode", t.can_encode, "exact_kernel",
                                 t.exact_kernel, "fast_kernel", t.fast_kernel));
    json_object_set_new(root, "devices", devices);
    json_object_set_new(root, "types", types);
    json_object_set_new(root, "memory_budget",
                        json_integer((json_int_t)fm_machine_memory_budget(machine)));
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL)
        return cli_fail_text("out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

int cli_devices(const cli_args *args) {
    fm_machine *machine = NULL;
    fm_error error = {0};
    int code = CLI_OK;
    if (cli_open_machine(args, &machine, &error) != FM_OK)
        return cli_fail(&error);
    if (args->json)
        code = print_json(machine);
    else
        print_text(machine);
    fm_machine_destroy(&machine);
    return code;
}
