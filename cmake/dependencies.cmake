# SPDX-License-Identifier: Apache-2.0
# The system's packages; nothing is vendored. scripts/deps.sh installs what is missing.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

set(FM_PACKAGES JANSSON:jansson PCRE2:libpcre2-8 UTF8PROC:libutf8proc HWLOC:hwloc)
if(FM_TESTS)
    list(APPEND FM_PACKAGES CMOCKA:cmocka)
endif()
set(missing "")
foreach(entry IN LISTS FM_PACKAGES)
    string(REPLACE ":" ";" entry ${entry})
    list(GET entry 0 prefix)
    list(GET entry 1 package)
    pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${package})
    if(NOT ${prefix}_FOUND)
        list(APPEND missing ${package})
    endif()
endforeach()
if(missing)
    list(JOIN missing ", " missing)
    message(FATAL_ERROR "pkg-config does not find: ${missing}.\n"
            "scripts/deps.sh --tests installs what is missing (with --check it only lists it); -DFM_TESTS=OFF "
            "builds no tests, which need cmocka.")
endif()
