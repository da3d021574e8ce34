# SPDX-License-Identifier: Apache-2.0
# Writes OUT: which commit of SOURCE is being built, and whether what is compiled differs from it. Run at every build;
# the file changes only when its content does. Outside a git checkout the hash is "".
find_program(GIT NAMES git)
set(hash "")
set(dirty 0)
if(GIT AND EXISTS ${SOURCE}/.git)
    execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse HEAD OUTPUT_VARIABLE hash
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} status --porcelain -- src include apps cmake CMakeLists.txt
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(NOT changes STREQUAL "")
        set(dirty 1)
    endif()
endif()
set(text "#define FM__SOURCE_HASH \"${hash}\"\n#define FM__SOURCE_DIRTY ${dirty}\n")
set(old "")
if(EXISTS ${OUT})
    file(READ ${OUT} old)
endif()
if(NOT text STREQUAL old)
    file(WRITE ${OUT} "${text}")
endif()
