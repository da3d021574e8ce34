/* SPDX-License-Identifier: Apache-2.0 */
/* bench_probe.c: `fusionml bench probe`: the mechanism probe, as JSON or as tables. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "fusionml/lab.h"

static int show(void *user, const char *phase, uint32_t done, uint32_t total) {
    return cli_progress(user, phase, done, total > 0 ? total : done + 10);
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL ? value : "";
}

static void print_search(const json_t *root) {
    const json_t *search = json_object_get(root, "search"), *point;
    size_t i;
    if (!json_is_object(search))
        return;
    printf("\nsearch of the share, split-event\n");
    json_array_foreach(json_object_get(search, "points"), i, point) {
        printf("  %5.3f %10.3f ms\n", number(point, "share"), number(point, "median_ns") / 1e6);
    }
    if (number(search, "best") == 0)
        printf(
            "  no split is faster than the main unit alone; the fastest share above 0 is used\n");
}

static void print_cases(const json_t *root) {
    const json_t *c;
    size_t i;
    printf("\n   %-13s %10s   %s\n", "case", "median ms", "what");
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        printf("%s  %-13s %10.3f   %s\n", text(c, "letter"), text(c, "name"),
               number(c, "median_ns") / 1e6, text(c, "what"));
    }
}

static double ms_of(const json_t *entry, const char *key, size_t unit) {
    return json_number_value(json_array_get(json_object_get(entry, key), unit)) / 1e6;
}

/* Of a unit that copies weights: busy is either. */
static void print_copies(const json_t *entry) {
    bool observed = json_is_true(json_object_get(entry, "copies_observed"));
    for (size_t u = 0; u < 2; u++)
        if (ms_of(entry, "copy_ns", u) > 0)
            printf("             unit %zu: computed for %.3f ms, copied weights for %s%.3f ms\n", u,
                   ms_of(entry, "compute_ns", u),
                   observed ? "at most (that queue keeps no time) " : "",
                   ms_of(entry, "copy_ns", u));
}

static void print_results(const json_t *root) {
    const json_t *entry;
    size_t i;
    printf("\n%-8s %7s  %-17s %s\n", "ratio", "median", "95 % interval", "what");
    json_array_foreach(json_object_get(root, "ratios"), i, entry) {
        printf("%-8s %7.3f  %6.3f to %6.3f  %s\n", text(entry, "name"), number(entry, "median"),
               number(entry, "low"), number(entry, "high"), text(entry, "what"));
    }
    printf(
        "\noverlap (part of the computing time of the unit that computed less in which both did)\n");
    json_array_foreach(json_object_get(root, "overlap"), i, entry) {
        printf("%s %6.1f %%   busy %.3f and %.3f ms\n", text(entry, "case"),
               100 * number(entry, "of_shorter"), ms_of(entry, "busy_ns", 0),
               ms_of(entry, "busy_ns", 1));
        print_copies(entry);
    }
}

static void print_text(const json_t *root) {
    const json_t *o = json_object_get(root, "options"), *units = json_object_get(root, "units");
    const json_t *first = json_array_get(json_object_get(root, "cases"), 0);
    printf("x[%.0f x %.0f] . w[%.0f x %.0f] %s on %s and %s, share %.3f of %s, weights %s\n",
           number(o, "rows"), number(o, "k"), number(o, "k"), number(o, "n"), text(o, "type"),
           json_string_value(json_array_get(units, 0)), json_string_value(json_array_get(units, 1)),
           number(root, "share"), text(o, "axis"), text(o, "weights"));
    print_search(root);
    print_cases(root);
    if (json_is_true(json_object_get(root, "equal")))
        print_results(root);
    printf("\noutputs %s (%s), drift %.3f%s%s\n",
           json_is_true(json_object_get(root, "equal")) ? "equal" : "DIFFER", text(first, "hash"),
           number(root, "drift"), text(root, "reason")[0] != '\0' ? "; not valid: " : "",
           text(root, "reason"));
}

int cli_bench_probe(const cli_args *args) {
    fm_lab_probe_options options = fm_lab_probe_options_default();
    fm_machine *machine = NULL;
    fm_error error = {0};
    json_error_t fault;
    char *json = NULL;
    options.rows = args->rows;
    options.k = args->k;
    options.n = args->n;
    options.type = args->type;
    options.share = args->split;
    options.axis = args->axis_set ? (fm_axis)args->axis : FM_AXIS_TOKENS; /* as the paper has it */
    options.weights = (fm_weights)args->weights;
    options.warmup = args->warmup;
    options.trials = args->trials;
    options.seed = args->seed;
    cli_catch_interrupt(NULL);
    fm_status status = cli_open_machine(args, &machine, &error);
    if (status == FM_OK && !cli_has_two_units(machine, "the probe")) {
        fm_machine_destroy(&machine);
        return CLI_USAGE;
    }
    if (status == FM_OK)
        status = fm_lab_probe(machine, &options, show, NULL, &json, &error);
    cli_progress_end();
    fm_machine_destroy(&machine);
    if (status != FM_OK)
        return cli_fail(&error);
    json_t *root = json_loads(json, 0, &fault);
    int code = CLI_OK;
    if (root == NULL)
        code = cli_fail_text("the probe's answer is not JSON: %s", fault.text);
    else if (args->json)
        puts(json);
    else
        print_text(root);
    if (root != NULL && !json_is_true(json_object_get(root, "equal")))
        code = cli_fail_text("%s", text(root, "reason"));
    json_decref(root);
    fm_free(json);
    return code;
}
