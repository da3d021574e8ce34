/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model/family.c: the table of architecture families.
 *
 * Owns: the table. Never does: anything else. Called from: the loading thread.
 */
#include "model/model.h"

static const fm__family *const families[] = {
    &fm__family_llama,
    &fm__family_qwen2,
    &fm__family_qwen3,
    NULL,
};

const fm__family *const *fm__families(void) {
    return families;
}

const fm__family *fm__family_get(fm__str arch) {
    for (size_t i = 0; families[i]; i++) {
        if (fm__str_is(arch, families[i]->arch))
            return families[i];
    }
    return NULL;
}
