/* SPDX-License-Identifier: Apache-2.0 */
/* synth.c: `fusionml synth`: a model of a known shape with random weights. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "fusionml/lab.h"

int cli_synth(const cli_args *args) {
    fm_error error = {0};
    if (args->shape == NULL || args->type == NULL || args->out == NULL) {
        cli_fail_text("--shape, --type and -o are needed; shapes:");
        for (const char *const *shape = fm_lab_synth_shapes(); *shape != NULL; shape++)
            fprintf(stderr, "  %s\n", *shape);
        return CLI_USAGE;
    }
    if (!cli_may_write(args, args->out))
        return CLI_FAILED;
    cli_show_log(FM_LOG_INFO);
    cli_catch_interrupt(NULL);
    fm_status status =
        fm_lab_synth(args->out, args->shape, args->type, args->seed, cli_progress, NULL, &error);
    cli_progress_end();
    if (status != FM_OK)
        return cli_fail(&error);
    fprintf(stderr, "%s written\n", args->out);
    return CLI_OK;
}
