# SPDX-License-Identifier: Apache-2.0
# Options of the build and the flags that every target shares (fm_options).
option(FM_TESTS "build the tests" ON)
option(FM_WERROR "treat warnings as errors" OFF)
option(FM_FUZZ "build the libFuzzer targets (clang)" OFF)
set(FM_SANITIZE "" CACHE STRING "sanitizers, e.g. address,undefined")

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # gnu17: base/compiler.h and kernel files use extensions

add_library(fm_options INTERFACE)
target_compile_definitions(fm_options INTERFACE _GNU_SOURCE)
# -ffp-contract=off is part of the identity contract (docs/numerics.md), not a preference.
target_compile_options(fm_options INTERFACE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                       -ffp-contract=off -fno-math-errno)
if(FM_WERROR)
    target_compile_options(fm_options INTERFACE -Werror)
endif()
if(FM_SANITIZE)
    target_compile_options(fm_options INTERFACE -fsanitize=${FM_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=undefined)
    target_link_options(fm_options INTERFACE -fsanitize=${FM_SANITIZE})
endif()
