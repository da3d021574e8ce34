/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/devices.c: from a list of devices ("vulkan:0,host:0-3") to devices.
 *
 * Owns: the list's grammar, and which processors each host team gets. Never does: keep what it
 * made. Called from: fm_machine_create().
 */
#include "engine/engine.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- parsing; pure ---- */

typedef struct parser {
    const char *text; /* of the item, not NUL-terminated */
    size_t bytes;
    fm_error *error;
} parser;

static fm_status refuse(const parser *p, const char *format, ...) FM__PRINTF(2, 3);

static fm_status refuse(const parser *p, const char *format, ...) {
    char place[64], message[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    snprintf(place, sizeof(place), "device \"%.*s\"", (int)fm__min_size(p->bytes, 40), p->text);
    return fm__error(p->error, FM_ERROR_ARGUMENT, place, "%s", message);
}

/* A number of at most 6 digits at text[*at]; false: there is none. */
static bool number(const char *text, size_t bytes, size_t *at, uint32_t *value) {
    size_t begin = *at;
    *value = 0;
    for (; *at < bytes && text[*at] >= '0' && text[*at] <= '9' && *at - begin < 6; ++*at)
        *value = *value * 10 + (uint32_t)(text[*at] - '0');
    return *at > begin && (*at == bytes || text[*at] < '0' || text[*at] > '9');
}

static fm_status add_cpu(const parser *p, fm__device_item *item, uint32_t cpu) {
    for (uint32_t i = 0; i < item->n_cpu; i++) {
        if (item->cpus[i] == (int)cpu)
            return refuse(p, "processor %u is listed twice", cpu);
    }
    if (item->n_cpu == FM__MAX_CPUS)
        return refuse(p, "more than %d processors", FM__MAX_CPUS);
    item->cpus[item->n_cpu++] = (int)cpu;
    return FM_OK;
}

/* "0-3+8+10-11" */
static fm_status parse_cpus(const parser *p, size_t at, fm__device_item *item) {
    for (;;) {
        uint32_t first, last;
        if (!number(p->text, p->bytes, &at, &first))
            return refuse(p, "a processor's number is missing at character %zu", at + 1);
        last = first;
        if (at < p->bytes && p->text[at] == '-') {
            at++;
            if (!number(p->text, p->bytes, &at, &last))
                return refuse(p, "a processor's number is missing at character %zu", at + 1);
            if (last < first)
                return refuse(p, "the range %u-%u runs backwards", first, last);
        }
        for (uint32_t cpu = first; cpu <= last; cpu++) {
            fm_status status = add_cpu(p, item, cpu);
            if (status != FM_OK)
                return status;
        }
        if (at == p->bytes)
            return FM_OK;
        if (p->text[at] != '+')
            return refuse(p, "'%c' at character %zu: processors are listed as in 0-3+8",
                          p->text[at], at + 1);
        at++;
    }
}

static fm_status parse_host(const parser *p, fm__device_item *item) {
    static const char head[] = "host:";
    item->kind = FM__ITEM_HOST;
    item->cores = FM__ITEM_ALL;
    if (p->bytes == strlen("host"))
        return FM_OK;
    const char *rest = p->text + strlen(head);
    size_t bytes = p->bytes - strlen(head);
    if (bytes == 1 && (*rest == 'p' || *rest == 'e')) {
        item->cores = *rest == 'p' ? FM__ITEM_PERFORMANCE : FM__ITEM_EFFICIENCY;
        return FM_OK;
    }
    item->cores = FM__ITEM_LISTED;
    return parse_cpus(p, strlen(head), item);
}

static fm_status parse_vulkan(const parser *p, fm__device_item *item) {
    static const char head[] = "vulkan:", discrete[] = "+discrete";
    size_t at = strlen(head);
    item->kind = FM__ITEM_VULKAN;
    if (p->bytes == strlen("vulkan"))
        return FM_OK;
    if (!number(p->text, p->bytes, &at, &item->index))
        return refuse(p, "a number is expected behind \"vulkan:\"");
    if (at == p->bytes)
        return FM_OK;
    item->discrete = fm__str_is((fm__str){p->text + at, p->bytes - at}, discrete);
    return item->discrete ? FM_OK : refuse(p, "what stands behind the number is not understood");
}

static bool begins(const parser *p, const char *word) {
    size_t bytes = strlen(word);
    return p->bytes >= bytes && memcmp(p->text, word, bytes) == 0 &&
           (p->bytes == bytes || p->text[bytes] == ':');
}

static fm_status parse_item(const parser *p, fm__device_item *item) {
    size_t shown = fm__min_size(p->bytes, sizeof(item->text) - 1);
    *item = (fm__device_item){0};
    memcpy(item->text, p->text, shown);
    if (p->bytes == 0)
        return refuse(p, "an item of the list is empty");
    if (begins(p, "host"))
        return parse_host(p, item);
    if (begins(p, "vulkan"))
        return parse_vulkan(p, item);
    if (p->bytes == strlen("null") && begins(p, "null")) {
        item->kind = FM__ITEM_NULL;
        return FM_OK;
    }
    if (p->bytes == strlen("auto") && begins(p, "auto"))
        return refuse(p, "\"auto\" stands alone");
    /* "null" is a device too, for tests */
    return refuse(p, "not a device: auto, host, host:0-3, host:p, host:e and vulkan:N are");
}

static fm_status check_list(const fm__device_list *list, const parser *p) {
    uint32_t n_vulkan = 0;
    for (uint32_t i = 0; i < list->n; i++)
        n_vulkan += list->items[i].kind == FM__ITEM_VULKAN;
    if (n_vulkan > 1)
        return refuse(p, "one Vulkan device at most: two cannot wait for each other yet");
    return FM_OK;
}

fm_status fm__devices_parse(const char *text, fm__device_list *list, fm_error *error) {
    list->n = 0;
    list->automatic = !text || strcmp(text, "auto") == 0;
    if (list->automatic)
        return FM_OK;
    parser all = {text, strlen(text), error};
    for (const char *at = text;;) {
        size_t bytes = strcspn(at, ",");
        parser p = {at, bytes, error};
        /* One place stays free for the host team that a list without one gets. */
        if (list->n == FM__MAX_UNITS - 1)
            return refuse(&all, "more than %d devices", FM__MAX_UNITS - 1);
        fm_status status = parse_item(&p, &list->items[list->n]);
        if (status != FM_OK)
            return status;
        list->n++;
        if (at[bytes] == 0)
            return check_list(list, &all);
        at += bytes + 1;
    }
}

/* ---- processors of host teams ---- */

static fm_status core_kind(fm__device_item *item, fm_error *error) {
    bool fast = item->cores == FM__ITEM_PERFORMANCE;
    size_t n = fm__core_list(fast ? FM__CORES_PERFORMANCE : FM__CORES_EFFICIENCY, item->cpus,
                             FM__MAX_CPUS);
    item->n_cpu = (uint32_t)fm__min_size(n, FM__MAX_CPUS);
    if (n > 0)
        return FM_OK;
    return fm__error(error, FM_ERROR_UNSUPPORTED, item->text,
                     "this processor's cores are of one kind, or the system does not tell them "
                     "apart; \"host\" takes all");
}

/* Listed processors must be there. */
static fm_status check_cpus(const fm__device_item *item, fm_error *error) {
    long n = sysconf(_SC_NPROCESSORS_CONF);
    for (uint32_t i = 0; n > 0 && i < item->n_cpu; i++) {
        if (item->cpus[i] >= n)
            return fm__error(error, FM_ERROR_ARGUMENT, item->text,
                             n == 1 ? "there is no processor %d, only host:0"
                                    : "there is no processor %d, only host:0-%ld",
                             item->cpus[i], n - 1);
    }
    return FM_OK;
}

static fm_status check_overlap(const fm__device_item *a, const fm__device_item *b,
                               fm_error *error) {
    for (uint32_t i = 0; i < a->n_cpu; i++) {
        for (uint32_t j = 0; j < b->n_cpu; j++) {
            if (a->cpus[i] == b->cpus[j])
                return fm__error(error, FM_ERROR_ARGUMENT, b->text,
                                 "processor %d is in team \"%s\" already", b->cpus[j], a->text);
        }
    }
    return FM_OK;
}

/* Where several teams exist each must know its processors; a lone "host" takes what there is. */
static fm_status assign_cpus(fm__device_list *list, fm_error *error) {
    uint32_t n_host = 0;
    fm_status status = FM_OK;
    for (uint32_t i = 0; i < list->n; i++)
        n_host += list->items[i].kind == FM__ITEM_HOST;
    for (uint32_t i = 0; i < list->n && status == FM_OK; i++) {
        fm__device_item *item = &list->items[i];
        if (item->kind != FM__ITEM_HOST)
            continue;
        if (item->cores == FM__ITEM_ALL && n_host > 1)
            item->n_cpu = (uint32_t)fm__min_size(fm__cores(item->cpus, FM__MAX_CPUS), FM__MAX_CPUS);
        else if (item->cores == FM__ITEM_PERFORMANCE || item->cores == FM__ITEM_EFFICIENCY)
            status = core_kind(item, error);
        else if (item->cores == FM__ITEM_LISTED)
            status = check_cpus(item, error);
        for (uint32_t j = 0; j < i && status == FM_OK; j++)
            status = check_overlap(&list->items[j], item, error);
    }
    return status;
}

/* ---- making ---- */

void fm__warn_of_crowd(uint32_t threads) {
    size_t processors = fm__processors();
    if (threads > processors)
        fm__log(FM_LOG_WARNING,
                "%u threads take turns on %zu processor%s: no more threads than that are faster",
                threads, processors, processors == 1 ? "" : "s");
}

static fm_status make_host(fm_machine *machine, const fm__device_item *item,
                           const fm_machine_options *o, fm_error *error) {
    bool first = machine->host == NULL;
    uint32_t threads = first && o->threads ? o->threads : item->n_cpu;
    if (item->n_cpu && threads > item->n_cpu)
        return fm__error(error, FM_ERROR_ARGUMENT, item->text,
                         "%u threads were asked for, it lists %u processor%s", threads, item->n_cpu,
                         item->n_cpu == 1 ? "" : "s");
    const fm__host_options host = {.threads = threads,
                                   .rung = o->cpu_rung,
                                   .cpus = item->n_cpu ? item->cpus : NULL,
                                   .name = item->text};
    fm__warn_of_crowd(threads);
    fm__device **out = &machine->devices[machine->n_device];
    fm_status status = fm__device_host_create(out, &host, error);
    if (status != FM_OK)
        return status;
    if (first)
        machine->host = *out;
    machine->n_device++;
    return FM_OK;
}

static fm_status make_vulkan(fm_machine *machine, const fm__device_item *item, bool software,
                             const fm_machine_options *o, fm_error *error) {
    const fm__vulkan_options vulkan = {.index = item->index,
                                       .allow_software = software,
                                       .force_discrete = item->discrete,
                                       .hosted = machine->n_device > 0, /* not the main unit */
                                       .cache_dir = o->cache_dir};
    fm_status status =
        fm__device_vulkan_create(&machine->devices[machine->n_device], &vulkan, error);
    machine->n_device += status == FM_OK;
    return status;
}

static fm_status make_null(fm_machine *machine, fm_error *error) {
    const fm__null_options null = {.memory_bytes = fm__memory_total()};
    fm__log(FM_LOG_WARNING, "device null computes nothing: results that it takes part in mean "
                            "nothing");
    fm_status status = fm__device_null_create(&machine->devices[machine->n_device], &null, error);
    machine->n_device += status == FM_OK;
    return status;
}

/* The best real GPU, if one works; none is no error. Where none can serve nothing has failed
   either: that is for those who look at the log's details. */
static void make_best_gpu(fm_machine *machine, const fm_machine_options *o) {
    fm_error why = {0};
    uint32_t n = fm__device_vulkan_count(false);
    const fm__device_item best = {.text = "vulkan:0"};
    fm_status status = make_vulkan(machine, &best, false, o, &why);
    if (status != FM_OK)
        fm__log(n == 0 && status == FM_ERROR_UNSUPPORTED ? FM_LOG_INFO : FM_LOG_WARNING,
                "no GPU: %s: %s", why.place, why.message);
    else if (n > 1)
        fm__log(FM_LOG_INFO, "%u Vulkan devices: %s is used, one at a time can be", n,
                machine->devices[0]->properties.description);
}

fm_status fm__devices_make(fm_machine *machine, const fm_machine_options *o, fm_error *error) {
    static const fm__device_item all = {.text = "host", .kind = FM__ITEM_HOST};
    fm__device_list *list = fm__alloc_zero(sizeof(*list));
    if (!list)
        return fm__error_memory(error, "devices", sizeof(*list));
    fm_status status = fm__devices_parse(o->devices, list, error);
    if (status == FM_OK)
        status = assign_cpus(list, error);
    if (status == FM_OK && list->automatic)
        make_best_gpu(machine, o);
    for (uint32_t i = 0; i < list->n && status == FM_OK; i++) {
        const fm__device_item *item = &list->items[i];
        if (item->kind == FM__ITEM_HOST)
            status = make_host(machine, item, o, error);
        else if (item->kind == FM__ITEM_VULKAN)
            status = make_vulkan(machine, item, true, o, error);
        else
            status = make_null(machine, error);
        if (status != FM_OK && item->kind != FM__ITEM_HOST)
            fm__error_within(error, status, item->text);
    }
    for (uint32_t i = 1; i < machine->n_device && status == FM_OK; i++) {
        const fm__device_properties *device = &machine->devices[i]->properties;
        if (!device->unified)
            status = fm__error(error, FM_ERROR_ARGUMENT, list->items[i].text,
                               "%s has memory of its own: such a device can only be the first",
                               device->description);
    }
    /* Some ops only a host runs: tables that stay in the file, and what a GPU has no kernel for. */
    if (status == FM_OK && !machine->host)
        status = make_host(machine, &all, o, error);
    fm__free(list);
    return status;
}
