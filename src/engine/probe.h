/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/probe.h: what probe.c, probe_setup.c and stamp.c share.
 */
#pragma once

#include "exec/exec.h"
#include "fusionml/fusionml.h"
#include "fusionml/lab.h"

/* Appends text as a JSON string; what is not UTF-8 becomes '?'. */
void fm__json_text(fm__buf *out, const char *text);

enum { FM__PROBE_TABLE, FM__PROBE_NORM, FM__PROBE_MATRIX, FM__PROBE_WEIGHTS };
enum { FM__PROBE_BUFFERS = 8 };

/* One product and its producer, in memory that both units reach, ready to be run in any way.

   The tape is recorded whole: embed x, rmsnorm h, quantise a, product y, select. Nothing runs all
   of it: x is written once by the host, and three views of the op array (a tape is plain data) run
   parts of it on what lies in the scratch buffer: PRODUCER h and a; READY y and its selection from
   the a that is there; DEPENDENT all of these. A last select of x keeps its memory from being
   reused. */
typedef struct fm__probe {
    fm_lab_probe_options options;
    fm_machine *machine;
    fm__device *units[2];
    const fm__type *type;
    fm__weight weights[FM__PROBE_WEIGHTS];
    fm__weight *weight_list[FM__PROBE_WEIGHTS];
    void *pages; /* the matrix's panels, where no buffer holds them */
    size_t page_bytes;
    fm__buffer *buffers[FM__PROBE_BUFFERS]; /* owned, of weights and slots */
    uint32_t n_buffer;
    uint64_t reserved, reserved_own; /* bytes, against the machine's and the GPU's memory */
    fm__tape *tape;
    fm__tape producer, ready, dependent; /* views of `tape` */
    int16_t x, a, y;                     /* tensors */
    int32_t *token;                      /* (rows) zeros */
    uint32_t *position, *sequence;       /* (rows) zeros */
    uint32_t output_row;
    fm__batch_view batch;
    fm__run run;
    fm__run_status status;
} fm__probe;

/* options are resolved (no zeros) and checked. */
fm_status fm__probe_open(fm__probe *probe, fm_machine *machine, const fm_lab_probe_options *options,
                         fm_error *error);
void fm__probe_close(fm__probe *probe); /* also after a failed open, and on zeros */
/* Overwrites y in every instance, so that a case which does not compute it is found out. */
fm_status fm__probe_spoil(fm__probe *probe, fm_error *error);
/* Of tensor `id` (y: rows x n floats; a: rows of its layout) as the main unit sees it. */
fm_status fm__probe_hash(fm__probe *probe, int16_t id, uint64_t *hash, fm_error *error);
/* Where two instances of the scratch slot exist: copies a from the main unit's to the other. */
fm_status fm__probe_share_input(fm__probe *probe, fm_error *error);
