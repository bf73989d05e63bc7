#!/usr/bin/env python3
"""Writes blocks.bin: random blocks of every GGUF tensor type that we read, and their values by the published `gguf` package.

    pip install gguf==0.19.0 numpy==2.4.6 && python make.py blocks.bin

Layout, little-endian, one record per type: name (8 bytes, NUL-padded), block bytes u32, block elements u32, number of blocks u32,
the blocks, their values as float32.
"""
import struct
import sys

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Byte offsets of the f16 scales of a block. Random bytes there would be mostly huge or NaN.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def blocks(name, rng):
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if elements == 1:
        values = (rng.standard_normal(64) * 10.0 ** rng.integers(-6, 4, 64)).astype(np.float32)
        values[:4] = [0.0, -0.0, 1e-7, -65504.0]  # 1e-7 is subnormal in F16
        if name == "F16":
            return elements, size, values.clip(-65504, 65504).astype(np.float16).view(np.uint8).reshape(-1, size)
        raw = values.view(np.uint32)
        return elements, size, (raw if name == "F32" else (raw >> 16).astype(np.uint16)).view(np.uint8).reshape(-1, size)
    count = 8 if elements == 32 else 3
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in SCALES[name]:
        scales = (rng.standard_normal(count) * 10.0 ** rng.integers(-4, 3, count)).astype(np.float16)
        scales[0] = np.float16(6e-8)  # the smallest subnormal
        raw[:, offset:offset + 2] = scales.view(np.uint8).reshape(count, 2)
    raw[1, max(SCALES[name]) + 2:] = 0xFF if max(SCALES[name]) < 100 else raw[1, max(SCALES[name]) + 2:]  # every quant at its top
    return elements, size, raw


def main():
    rng = np.random.default_rng(20261129)
    with open(sys.argv[1], "wb") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            elements, size, raw = blocks(name, rng)
            if name in ("F32", "F16"):  # the package passes these through
                values = raw.reshape(-1).view(np.float32 if name == "F32" else np.float16).astype(np.float32)
            else:
                values = gguf.quants.dequantize(raw.reshape(1, -1), kind).reshape(-1)
            assert values.dtype == np.float32 and values.size == raw.shape[0] * elements and np.isfinite(values).all()
            out.write(name.encode().ljust(8, b"\0") + struct.pack("<III", size, elements, raw.shape[0]))
            out.write(raw.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
