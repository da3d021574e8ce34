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

int cli_tokenize(const cli_args *args) {
    fm_tokenizer *tokenizer = NULL;
    fm_error error = {0};
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    int code = CLI_OK;
    if (args->model == NULL) {
        cli_fail_text("-m MODEL is needed");
        return CLI_USAGE;
    }
    if (args->prompt != NULL && args->file != NULL) {
        cli_fail_text("-p and -f exclude each other");
        return CLI_USAGE;
    }
    char *text = cli_input(args, &bytes);
    if (text == NULL)
        return CLI_FAILED;
    unsigned flags = args->special ? FM_TOKENIZE_ADD_SPECIAL | FM_TOKENIZE_PARSE_SPECIAL : 0;
    if (fm_tokenizer_load(&tokenizer, args->model, &error) != FM_OK ||
        fm_tokenizer_encode(tokenizer, text, bytes, flags, &ids, &n, &error) != FM_OK) {
        code = cli_fail(&error);
    } else if (args->json) {
        print_json(ids, n);
    } else {
        for (size_t i = 0; i < n; i++)
            printf("%6d  %s\n", ids[i], fm_tokenizer_token(tokenizer, ids[i]));
        fprintf(stderr, "%zu token%s from %zu byte%s\n", n, cli_plural(n), bytes,
                cli_plural(bytes));
    }
    fm_free(ids);
    fm_tokenizer_destroy(&tokenizer);
    free(text);
    return code;
}
