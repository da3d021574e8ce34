// SPDX-License-Identifier: Apache-2.0
// What every shader of this folder shares: memory through device addresses, the run block, row ranges.
// Numerics: fp32 add, subtract and multiply only, each on its own (docs/numerics.md). Every float
// result that is kept must be `precise`, also inside functions: glslang does not carry it into calls,
// scripts/check-spirv reads the SPIR-V for it.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

// Addresses are 64 bits in a uvec2 (low, high): no shader needs 64-bit integers.
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Bytes { uint8_t v[]; };

uvec2 at(uvec2 base, uint offset) {
    uint carry;
    uint low = uaddCarry(base.x, offset, carry);
    return uvec2(low, base.y + carry);
}

// Slots of a run as the device addresses them, and its rows. Written by each submission (record.c).
const uint SLOT_SCRATCH = 0, SLOT_OUTPUT = 1, SLOT_CACHE = 2, SLOT_MIRROR = 3; // mirror of the scratch
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer RunBlock {
    uvec2 slots[4];
    uvec2 token, position, sequence, output_row; // arrays of uint, (n_row) and (n_output)
    uvec2 page_start; // (n_sequence * n_group): where in `pages` the list of a sequence's group begins
    uvec2 pages;      // page ids
    uint n_row, n_output, n_sequence, n_group;
    uint failure; // the least (op << 13 | row) that met a value no quantiser takes; 0xFFFFFFFF: none
};

// Which rows a step covers: 65536ths of the batch's rows or of the outputs (fm__token_border).
uint row_count(RunBlock run, uint outputs) { return outputs != 0 ? run.n_output : run.n_row; }
uint border(uint rows, uint part) { return uint((rows * part) >> 16); } // rows <= 8192, part <= 65536
