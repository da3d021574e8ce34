/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/version.c: the library's version as text.
 *
 * Owns: nothing. Never does: anything else. Called from: every thread.
 */
#include "fusionml/fusionml.h"

#define TEXT(x) #x
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *fm_version(void) {
    return DOTTED(FM_VERSION_MAJOR, FM_VERSION_MINOR, FM_VERSION_PATCH);
}
