/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fusionml/batch.h: the rows of one run, from any sessions of one engine.
 *
 *     fm_batch_clear(batch);
 *     fm_batch_add(batch, session_a, token, FM_OUTPUT_LOGITS, &row_a, &error);
 *     fm_batch_add(batch, session_b, token, FM_OUTPUT_LOGITS, &row_b, &error);
 *     fm_engine_run(engine, batch, &error);
 *     const float *a = fm_batch_output(batch, row_a);
 *
 * A session must outlive its rows in a batch. A row's position is its session's length plus the
 * rows of that session already in the batch. Not thread-safe; one batch may be reused for many runs
 * and then allocates nothing.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fusionml/engine.h"
#include "fusionml/session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fm_output {
    FM_OUTPUT_NONE = 0,
    FM_OUTPUT_LOGITS = 1, /* (n_vocab) floats */
    FM_OUTPUT_HIDDEN = 2, /* (n_embd) floats: the final norm's output */
} fm_output;

/* Room for max_rows rows, of which max_outputs may want an output. Errors: ARGUMENT, MEMORY. */
FM_API fm_status fm_batch_create(fm_batch **out, fm_engine *engine, uint32_t max_rows,
                                 uint32_t max_outputs, fm_error *error);
FM_API void fm_batch_destroy(fm_batch **batch);
FM_API void fm_batch_clear(fm_batch *batch);

/* row (may be NULL) receives the row's index. Errors: ARGUMENT (token outside the vocabulary,
   session of another engine), LIMIT (batch full, context full). */
FM_API fm_status fm_batch_add(fm_batch *batch, fm_session *session, int32_t token, fm_output output,
                              uint32_t *row, fm_error *error);
FM_API uint32_t fm_batch_rows(const fm_batch *batch);

/* After a successful run: the row's output, valid until the batch is cleared, run again or
   destroyed; NULL if the row asked for none or the batch has not run. */
FM_API const float *fm_batch_output(const fm_batch *batch, uint32_t row);

#ifdef __cplusplus
}
#endif
