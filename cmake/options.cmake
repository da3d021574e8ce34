# SPDX-License-Identifier: Apache-2.0
# Options of the build and the flags that every target shares (fm_options).
option(FM_TESTS "build the tests" ON)
option(FM_WERROR "treat warnings as errors" OFF)
option(FM_LAB "build the measuring programs of lab/" OFF)
option(FM_FUZZ "build the libFuzzer programs (clang)" OFF)
set(FM_SANITIZE "" CACHE STRING "sanitizers, e.g. address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug, RelWithDebInfo or MinSizeRel" FORCE)
endif()
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # gnu17: base/compiler.h and kernel files use extensions
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

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
                           -fno-sanitize-recover=all)
    target_link_options(fm_options INTERFACE -fsanitize=${FM_SANITIZE})
endif()
if(FM_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "FM_FUZZ needs clang (libFuzzer); use: cmake --preset fuzz")
    endif()
    target_compile_options(fm_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
