/* SPDX-License-Identifier: Apache-2.0 */
/* embedded.c: models/story-21m-q8_0.gguf as bytes of the program (FM_EMBEDDED_MODEL is its path).
 */
#include "cli.h"

#if defined(__APPLE__)
#define SECTION ".const_data"
#define NAME(x) "_" #x
#else
#define SECTION ".section .rodata"
#define NAME(x) #x
#endif

__asm__(SECTION "\n"
                ".balign 4096\n"
                ".globl " NAME(cli_embedded_model) "\n" NAME(
                    cli_embedded_model) ":\n"
                                        ".incbin \"" FM_EMBEDDED_MODEL "\"\n"
                                        ".globl " NAME(cli_embedded_model_end) "\n" NAME(
                                            cli_embedded_model_end) ":\n"
                                                                    ".byte 0\n"
                                                                    ".text\n");
