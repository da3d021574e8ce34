/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c: `fusionml convert`: a Hugging Face folder or a GGUF file to one GGUF file. */
#include <stdio.h>

#include "cli.h"
#include "fusionml/lab.h"

int cli_convert(const cli_args *args) {
    fm_error error = {0};
    if (args->n_positional != 2 || args->type == NULL) {
        cli_fail_text("IN, OUT and --type TYPE are needed; see --help");
        return CLI_USAGE;
    }
    if (!cli_may_write(args, args->positional[1]))
        return CLI_FAILED;
    cli_show_log(FM_LOG_INFO);
    cli_catch_interrupt(NULL);
    double begin = cli_now_ms();
    fm_status status = fm_lab_convert(args->positional[0], args->positional[1], args->type,
                                      args->threads, cli_progress, NULL, &error);
    cli_progress_end();
    if (status != FM_OK)
        return cli_fail(&error);
    fprintf(stderr, "%s written in %.1f s\n", args->positional[1], (cli_now_ms() - begin) / 1e3);
    return CLI_OK;
}
