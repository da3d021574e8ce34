/* SPDX-License-Identifier: Apache-2.0 */
/* fusionml/fusionml.h: the whole public surface. */
#pragma once

#include "fusionml/batch.h"
#include "fusionml/checkpoint.h"
#include "fusionml/engine.h"
#include "fusionml/error.h"
#include "fusionml/log.h"
#include "fusionml/machine.h"
#include "fusionml/sampler.h"
#include "fusionml/session.h"
#include "fusionml/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FM_VERSION_MAJOR 0
#define FM_VERSION_MINOR 1
#define FM_VERSION_PATCH 0

/* "0.1.0". Static. */
FM_API const char *fm_version(void);

#ifdef __cplusplus
}
#endif
