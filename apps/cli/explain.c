/* SPDX-License-Identifier: Apache-2.0 */
/* explain.c: `--explain`: the plans that runs follow, as tables or as JSON. */
#include <jansson.h>
#include <string.h>

#include "cli.h"

enum { DEFAULT_ROWS = 512 };

static uint32_t prefill_rows(const cli_args *args) {
    return args->rows != 0 ? args->rows : DEFAULT_ROWS;
}

static fm_status print_table(fm_engine *engine, const char *title, uint32_t rows, FILE *to,
                             fm_error *error) {
    char *text = NULL;
    fm_status status = fm_engine_explain(engine, rows, FM_ARM_AUTO, 0, &text, error);
    if (status != FM_OK)
        return status;
    fprintf(to, "%s (up to %u row%s)\n%s", title, rows, rows == 1 ? "" : "s", text);
    if (text[0] != '\0' && text[strlen(text) - 1] != '\n')
        fputc('\n', to);
    fm_free(text);
    return FM_OK;
}

static json_t *load_plan(fm_engine *engine, uint32_t rows, fm_error *error) {
    char *text = NULL;
    json_error_t fault;
    if (fm_engine_explain(engine, rows, FM_ARM_AUTO, 1, &text, error) != FM_OK)
        return NULL;
    json_t *plan = json_loads(text, 0, &fault);
    if (plan == NULL) {
        *error = (fm_error){FM_ERROR_FORMAT, "", "--explain"};
        snprintf(error->message, sizeof error->message, "the plan is not JSON: %.200s", fault.text);
    }
    fm_free(text);
    return plan;
}

struct json_t *cli_explain_json(fm_engine *engine, const cli_args *args, fm_error *error) {
    json_t *prefill = load_plan(engine, prefill_rows(args), error);
    json_t *decode = prefill != NULL ? load_plan(engine, 1, error) : NULL;
    if (decode == NULL) {
        json_decref(prefill);
        return NULL;
    }
    return json_pack("{s:o, s:o}", "prefill", prefill, "decode", decode);
}

fm_status cli_explain(fm_engine *engine, const cli_args *args, FILE *to, fm_error *error) {
    if (!args->json) {
        fm_status status = print_table(engine, "prefill", prefill_rows(args), to, error);
        if (status == FM_OK) {
            fputc('\n', to);
            status = print_table(engine, "decode", 1, to, error);
        }
        return status;
    }
    json_t *plans = cli_explain_json(engine, args, error);
    if (plans == NULL)
        return error->status;
    json_dumpf(plans, to, JSON_COMPACT);
    fputc('\n', to);
    json_decref(plans);
    return FM_OK;
}
