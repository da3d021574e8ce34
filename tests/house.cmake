# SPDX-License-Identifier: Apache-2.0
# The house rules as tests: what the scripts in scripts/ can check of the source and of this build.
function(fm_house_test name)
    add_test(NAME house_${name} COMMAND sh ${CMAKE_SOURCE_DIR}/scripts/check-${name} ${ARGN}
             WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(house_${name} PROPERTIES LABELS house TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

fm_house_test(layers)
fm_house_test(architecture)
fm_house_test(format) # skips itself where clang-format is missing or of another version

if(FM_HAVE_VULKAN)
    # The one that came with glslang reads what glslang writes.
    get_filename_component(beside "${FM_GLSLANG}" DIRECTORY)
    find_program(FM_SPIRV_DIS spirv-dis HINTS ${beside})
    fm_house_test(spirv ${FM_SPIRV_DIR} ${FM_SPIRV_DIS} ${FM_GLSLC}) # skips itself where spirv-dis is missing
else()
    fm_skip_test(house_spirv house "built without Vulkan: ${FM_VULKAN_MISSING}")
endif()

find_program(FM_NM NAMES ${CMAKE_NM} nm)
find_program(FM_OBJDUMP NAMES ${CMAKE_OBJDUMP} objdump)
if(FM_SANITIZE OR FM_FUZZ OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set(reason "sanitizers add symbols and code; an ordinary Linux build is checked")
    fm_skip_test(house_symbols house "${reason}")
    fm_skip_test(house_contract-fma house "${reason}")
    fm_skip_test(house_isa house "${reason}")
else()
    if(NOT TARGET fusionml_shared)
        fm_skip_test(house_symbols house "the library is not part of this build")
    elseif(NOT FM_NM)
        fm_skip_test(house_symbols house "nm is missing")
    else()
        fm_house_test(symbols $<TARGET_FILE:fusionml_shared> $<TARGET_FILE:fusionml_static> ${FM_NM})
    endif()
    if(NOT FM_OBJDUMP OR NOT FM_NM)
        fm_skip_test(house_contract-fma house "objdump or nm is missing")
        fm_skip_test(house_isa house "objdump or nm is missing")
    else()
        fm_house_test(contract-fma ${CMAKE_BINARY_DIR}/rooms ${FM_OBJDUMP} ${FM_NM})
        fm_house_test(isa ${CMAKE_BINARY_DIR}/rooms ${FM_OBJDUMP})
    endif()
endif()
