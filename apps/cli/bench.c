/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: `fusionml bench`: prefill and decode speed, medians of repetitions, with an output hash.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

typedef struct speeds {
    double *prefill, *decode; /* tokens/s, one a repetition */
    uint64_t hash;            /* of the greedy tokens of the last repetition */
} speeds;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, ascending);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* One prompt of n_prompt fixed pseudo-random ids, then n_decode greedy tokens; tokens/s of each. */
static fm_status measure(fm_engine *engine, fm_session *session, const int32_t *prompt,
                         size_t n_prompt, size_t n_decode, double *prefill, double *decode,
                         uint64_t *hash, fm_error *error) {
    uint32_t vocab = fm_engine_vocab_size(engine);
    const float *logits = NULL;
    fm_status status = fm_session_truncate(session, 0, error);
    double begin = cli_now_ms();
    if (status == FM_OK)
        status = fm_session_prefill(session, prompt, n_prompt, &logits, error);
    double middle = cli_now_ms();
    *prefill = (double)n_prompt * 1e3 / (middle - begin);
    *hash = cli_hash_ids(NULL, 0);
    for (size_t i = 0; status == FM_OK && i < n_decode && !cli_interrupted(); i++) {
        int32_t id = cli_argmax(logits, vocab);
        *hash = *hash * UINT64_C(0x100000001b3) ^ (uint32_t)id;
        status = fm_session_decode(session, id, &logits, error);
    }
    *decode = n_decode > 0 ? (double)n_decode * 1e3 / (cli_now_ms() - middle) : 0;
    return status;
}

static void report(const cli_args *args, const fm_engine *engine, const fm_device_info *device,
                   speeds *s, size_t n_prompt, size_t n_decode) {
    fm_engine_info given, *info = &given;
    fm_gate_info gate;
    fm_engine_get_info(engine, info);
    fm_engine_gate_info(engine, &gate);
    double prefill = median(s->prefill, args->repeats), decode = median(s->decode, args->repeats);
    double gigabytes = decode * (double)info->decode_bytes / 1e9;
    if (args->json) {
        printf("{\"model\": \"%s\", \"types\": \"%s\", \"threads\": %u, \"rung\": \"%s\", "
               "\"prefill_tokens\": %zu, \"prefill_per_second\": %.3f, \"decode_tokens\": %zu, "
               "\"decode_per_second\": %.3f, \"decode_gb_per_second\": %.3f, \"repetitions\": %u, "
               "\"prefill_arm\": \"%s\", \"decode_arm\": \"%s\", \"hash\": \"%016" PRIx64 "\"}\n",
               info->architecture, info->weight_types, device->threads, device->rung, n_prompt,
               prefill, n_decode, decode, gigabytes, args->repeats,
               fm_arm_name(gate.active_prefill), fm_arm_name(gate.active_decode), s->hash);
        return;
    }
    printf("| model | types | threads | rung | test | tokens/s | GB/s "
           "|\n|---|---|---|---|---|---|---|\n");
    printf("| %s | %s | %u | %s | pp%zu | %.2f | |\n", info->architecture, info->weight_types,
           device->threads, device->rung, n_prompt, prefill);
    printf("| %s | %s | %u | %s | tg%zu | %.2f | %.2f |\n", info->architecture, info->weight_types,
           device->threads, device->rung, n_decode, decode, gigabytes);
    printf("\nmedian of %u, after one warm-up; output hash %016" PRIx64 "\n", args->repeats,
           s->hash);
    fflush(stdout);
    cli_print_gate(engine);
}

int cli_bench(const cli_args *given) {
    cli_args args = *given;
    fm_machine *machine = NULL;
    fm_engine *engine = NULL;
    fm_session *session = NULL;
    fm_class numeric_class;
    fm_error error = {0};
    fm_device_info device;
    speeds s = {0};
    double ignored_prefill, ignored_decode;
    int code = CLI_OK;
    size_t n_prompt = args.prompt_tokens, n_decode = args.predict_set ? args.predict : 64;
    if (!cli_class(args.numeric_class, FM_CLASS_AUTO, &numeric_class) || n_prompt == 0) {
        cli_fail_text("-P is at least 1, and --class exact or fast");
        return CLI_USAGE;
    }
    args.context = (uint32_t)(n_prompt + n_decode + 1);
    int32_t *prompt = malloc(n_prompt * sizeof *prompt);
    s.prefill = malloc(args.repeats * sizeof *s.prefill);
    s.decode = malloc(args.repeats * sizeof *s.decode);
    fm_status status = FM_OK;
    if (prompt == NULL || s.prefill == NULL || s.decode == NULL) {
        error = (fm_error){FM_ERROR_MEMORY, "out of memory", ""};
        status = error.status;
    }
    if (status == FM_OK)
        status = cli_open_machine(&args, &machine, &error);
    if (status == FM_OK)
        status = cli_open_engine(&args, numeric_class, machine, &engine, &error);
    if (status == FM_OK)
        status = fm_session_create(&session, engine, NULL, &error);
    uint64_t state = 1;
    for (size_t i = 0; status == FM_OK && i < n_prompt; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        prompt[i] = (int32_t)((state >> 33) % fm_engine_vocab_size(engine));
    }
    if (status == FM_OK)
        status = measure(engine, session, prompt, n_prompt, n_decode, &ignored_prefill,
                         &ignored_decode, &s.hash, &error);
    for (uint32_t r = 0; status == FM_OK && r < args.repeats && !cli_interrupted(); r++)
        status = measure(engine, session, prompt, n_prompt, n_decode, &s.prefill[r], &s.decode[r],
                         &s.hash, &error);
    if (status == FM_OK)
        status = fm_machine_device(machine, 0, &device, &error);
    if (cli_interrupted()) {
        code = CLI_INTERRUPTED;
    } else if (status != FM_OK) {
        code = cli_fail(&error);
    } else {
        report(&args, engine, &device, &s, n_prompt, n_decode);
    }
    fm_session_destroy(&session);
    if (!cli_close_engine(&engine))
        code = CLI_FAILED;
    fm_machine_destroy(&machine);
    free(prompt);
    free(s.prefill);
    free(s.decode);
    return code;
}
