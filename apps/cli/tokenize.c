/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.c: `fusionml tokenize`: text to ids. */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

static void print_json(const int32_t *ids, size_t n) {
    printf("{\"ids\": [");
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i > 0 ? ", " : "", ids[i]);
    printf("]}\n");
}

/* Of -m, or of the model in the program, which an engine then holds. */
typedef struct source {
    fm_tokenizer *loaded;
    fm_machine *machine;
    fm_engine *engine;
    const fm_tokenizer *tokenizer;
} source;

static fm_status open_source(const cli_args *args, source *s, fm_error *error) {
    if (args->model != NULL) {
        fm_status status = fm_tokenizer_load(&s->loaded, args->model, error);
        s->tokenizer = s->loaded;
        return status;
    }
    fm_status status = cli_open_machine(args, &s->machine, error);
    if (status == FM_OK)
        status = cli_open_engine(args, FM_CLASS_AUTO, s->machine, &s->engine, error);
    if (status == FM_OK)
        s->tokenizer = fm_engine_tokenizer(s->engine);
    return status;
}

static void close_source(source *s) {
    fm_tokenizer_destroy(&s->loaded);
    cli_close_engine(&s->engine);
    fm_machine_destroy(&s->machine);
}

int cli_tokenize(const cli_args *args) {
    cli_args with = *args;
    source s = {0};
    fm_error error = {0};
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    int code = CLI_OK;
    with.devices = "host"; /* nothing is run */
    if (args->prompt != NULL && args->file != NULL) {
        cli_fail_text("-p and -f exclude each other");
        return CLI_USAGE;
    }
    char *text = cli_input(args, &bytes);
    if (text == NULL)
        return CLI_FAILED;
    unsigned flags = args->special ? FM_TOKENIZE_ADD_SPECIAL | FM_TOKENIZE_PARSE_SPECIAL : 0;
    fm_status status = open_source(&with, &s, &error);
    cli_end_on_interrupt(); /* from here on nothing asks, and nothing is left behind */
    if (status == FM_OK)
        status = cli_check_interrupt(&error);
    if (status != FM_OK ||
        fm_tokenizer_encode(s.tokenizer, text, bytes, flags, &ids, &n, &error) != FM_OK) {
        code = cli_fail(&error);
    } else if (args->json) {
        print_json(ids, n);
    } else {
        for (size_t i = 0; i < n; i++)
            printf("%6d  %s\n", ids[i], fm_tokenizer_token(s.tokenizer, ids[i]));
        fprintf(stderr, "%zu token%s from %zu byte%s\n", n, cli_plural(n), bytes,
                cli_plural(bytes));
    }
    fm_free(ids);
    close_source(&s);
    free(text);
    return code;
}
