/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/shape.c: when two products are alike.
 *
 * Owns: nothing. Never does: look at times. Called from: the loading and the calibrating thread.
 */
#include <string.h>

#include "exec/exec.h"

/* "blk.3.ffn_gate.weight": "ffn_gate" */
static void short_name(const char *name, char *out, size_t capacity) {
    const char *begin = name, *end;
    if (strncmp(name, "blk.", 4) == 0 && strchr(name + 4, '.'))
        begin = strchr(name + 4, '.') + 1;
    end = strstr(begin, ".weight");
    size_t bytes = end ? (size_t)(end - begin) : strlen(begin);
    snprintf(out, capacity, "%.*s", (int)bytes, begin);
}

bool fm__shape_of(const fm__tape *tape, uint32_t index, fm__shape *out) {
    const fm__op *op = &tape->ops[index];
    if (!fm__is_product(op->kind))
        return false;
    const fm__weight *w = tape->weights[op->weight[0]];
    bool glu = op->kind == FM__OP_LINEAR_GLU;
    *out = (fm__shape){.kind = op->kind,
                       .n = w->n,
                       .k = w->k,
                       .types = {w->type, glu ? tape->weights[op->weight[1]]->type : NULL},
                       .fast = op->fast,
                       .output = tape->tensors[op->out].rows == FM__ROWS_OUTPUT};
    char name[64], up[64] = "";
    short_name(w->name, name, sizeof(name));
    if (glu)
        short_name(tape->weights[op->weight[1]]->name, up, sizeof(up));
    const char *tail = strncmp(up, "ffn_", 4) == 0 ? up + 4 : up;
    snprintf(out->label, sizeof(out->label), "%.40s%s%.20s %ux%u %s", name, glu ? "+" : "", tail,
             w->n, w->k, w->type->name);
    return true;
}

bool fm__shape_equal(const fm__shape *a, const fm__shape *b) {
    return a->kind == b->kind && a->n == b->n && a->k == b->k && a->types[0] == b->types[0] &&
           a->types[1] == b->types[1] && a->fast == b->fast && a->output == b->output;
}
