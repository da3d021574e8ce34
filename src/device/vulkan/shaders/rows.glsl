// SPDX-License-Identifier: Apache-2.0
// What the shaders of row-wise ops share: where a tensor's rows lie, and which rows are a step's. Mirrored
// by the push structs of ops.c. Workgroups stand in a grid of (parts of a row) x (rows).

// A tensor in one of the run's slots.
struct Place {
    uint slot, stride; // bytes from row to row, a multiple of 64
    uvec2 offset;
};

// 65536ths of the batch's rows or of the outputs.
struct Rows {
    uint begin, end, outputs; // outputs: not 0: the rows are those that want output
    uint op;                  // its index in the tape, for failures
};

// base + offset and base + index * stride, where neither need fit 32 bits.
uvec2 beyond(uvec2 base, uvec2 offset) {
    uvec2 sum = at(base, offset.x);
    return uvec2(sum.x, sum.y + offset.y);
}

uvec2 element(uvec2 base, uint index, uint stride) {
    uint high, low;
    umulExtended(index, stride, high, low);
    return beyond(base, uvec2(low, high));
}

uvec2 row_at(RunBlock run, Place place, uint row) {
    return element(beyond(run.slots[place.slot], place.offset), row, place.stride);
}

// The row of this workgroup; false: it has none.
bool own_row(RunBlock run, Rows rows, out uint row) {
    uint n = row_count(run, rows.outputs);
    row = border(n, rows.begin) + gl_WorkGroupID.y;
    return row < border(n, rows.end);
}
