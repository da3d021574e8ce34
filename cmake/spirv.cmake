# SPDX-License-Identifier: Apache-2.0
# cmake -D MODULES="a.spv;b.spv" -D LEFT_OUT="c" -D OUT=shaders.c -P spirv.cmake: SPIR-V modules as rows of
# fm__vulkan_shaders[]; rows of those left out hold nothing.
set(arrays "")
set(rows "")
foreach(module IN LISTS MODULES)
    get_filename_component(name ${module} NAME_WE)
    file(READ ${module} bytes HEX)
    string(REGEX REPLACE "(..)(..)(..)(..)" "0x\\4\\3\\2\\1," words "${bytes}")
    string(REGEX REPLACE "(0x[0-9a-f]+,0x[0-9a-f]+,0x[0-9a-f]+,0x[0-9a-f]+,0x[0-9a-f]+,0x[0-9a-f]+,0x[0-9a-f]+,0x[0-9a-f]+,)"
           "\\1\n" words "${words}")
    string(APPEND arrays "static const uint32_t ${name}[] = {\n${words}\n};\n")
    string(APPEND rows "    [FM__VULKAN_SHADER_${name}] = {${name}, sizeof ${name} / 4},\n")
endforeach()
foreach(name IN LISTS LEFT_OUT)
    string(APPEND rows "    [FM__VULKAN_SHADER_${name}] = {NULL, 0},\n")
endforeach()
file(WRITE ${OUT} "/* Made by cmake/spirv.cmake from src/device/vulkan/shaders. */\n"
     "#include \"device/vulkan/core.h\"\n\n${arrays}\n"
     "const fm__vulkan_words fm__vulkan_shaders[FM__VULKAN_SHADER_COUNT] = {\n${rows}};\n")
