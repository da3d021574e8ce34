#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/quant/golden.bin: blocks of every quantised type as ggml decodes them.

Usage: golden_quant.py path/to/libggml-base.so tests/data/quant/golden.bin
The file's format is in tests/data/quant/README.md.
"""
import ctypes
import random
import struct
import sys
import zlib

# name in ggml, elements a block, bytes a block, offsets of f16 fields
TYPES = [
    ("q8_0", 32, 34, [0]), ("q4_0", 32, 18, [0]), ("q4_1", 32, 20, [0, 2]), ("q5_0", 32, 22, [0]),
    ("q5_1", 32, 24, [0, 2]), ("iq4_nl", 32, 18, [0]), ("mxfp4", 32, 17, []),
    ("q2_K", 256, 84, [80, 82]), ("q3_K", 256, 110, [108]), ("q4_K", 256, 144, [0, 2]),
    ("q5_K", 256, 176, [0, 2]), ("q6_K", 256, 210, [208]), ("iq4_xs", 256, 136, [0]),
    ("tq1_0", 256, 54, [52]), ("tq2_0", 256, 66, [64]),
]
# an ordinary scale, then 0, -0, the smallest and the largest subnormal, the largest, a negative one
SCALES = [0x2C00, 0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xB555]
EXPONENTS = [122, 0, 1, 89, 90, 255, 130]  # MXFP4


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    rng = random.Random(20240601)
    with open(sys.argv[2], "wb") as out:
        out.write(struct.pack("<8sI", b"FMQUANT1", len(TYPES)))
        for name, n, size, halves in TYPES:
            blocks = b""
            for i in range(len(SCALES)):
                block = bytearray(rng.randrange(256) for _ in range(size))
                for j, at in enumerate(halves):
                    struct.pack_into("<H", block, at, SCALES[(i + 3 * j) % len(SCALES)])
                if name == "mxfp4":
                    block[0] = EXPONENTS[i]
                blocks += block
            values = (ctypes.c_float * (n * len(SCALES)))()
            getattr(ggml, "dequantize_row_" + name)(blocks, values, ctypes.c_int64(len(values)))
            data = bytes(values)
            out.write(struct.pack("<8sIII", name.lower().encode(), len(SCALES), n, zlib.crc32(data)))
            out.write(blocks)
            out.write(data[: 4 * n])


if __name__ == "__main__":
    main()
