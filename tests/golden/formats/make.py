#!/usr/bin/env python3
"""Writes published.gguf and published.safetensors with the published packages; see PROVENANCE.md.

Values follow one rule, so that the test can compute them: element i of a tensor is i % 7 - 3.
"""
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent


def values(shape, dtype):
    return (np.arange(int(np.prod(shape))) % 7 - 3).astype(dtype).reshape(shape)


def write_gguf():
    w = gguf.GGUFWriter(HERE / "published.gguf", "llama")
    w.add_name("Published")
    w.add_block_count(2)
    w.add_context_length(4096)
    w.add_rope_freq_base(10000.0)
    w.add_custom_alignment(64)
    w.add_uint8("x.u8", 200)
    w.add_int8("x.i8", -100)
    w.add_uint16("x.u16", 60000)
    w.add_int16("x.i16", -30000)
    w.add_int32("x.i32", -2000000000)
    w.add_uint64("x.u64", 2**63 + 1)
    w.add_int64("x.i64", -(2**63))
    w.add_float64("x.f64", 0.1)
    w.add_bool("x.bool", True)
    w.add_token_list(["<s>", "é", "Ġ the"])
    w.add_token_types([3, 1, 1])
    w.add_token_scores([0.0, -1.5, -2.5])
    w.add_array("x.nested", [[1, 2], [3]])
    w.add_tensor("plain.f32", values((2, 3), np.float32))
    w.add_tensor("plain.f16", values((3, 5), np.float16))
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1,
                 gguf.GGMLQuantizationType.Q5_0, gguf.GGMLQuantizationType.Q5_1, gguf.GGMLQuantizationType.BF16):
        w.add_tensor("block." + kind.name, gguf.quants.quantize(values((2, 64), np.float32), kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_safetensors():
    tensors = {name: values((2, 3), dtype) for name, dtype in
               {"f32": np.float32, "f16": np.float16, "i8": np.int8, "u8": np.uint8, "i32": np.int32, "i64": np.int64}.items()}
    tensors["scalar"] = np.array(2.5, dtype=np.float32)
    save_file(tensors, HERE / "published.safetensors", metadata={"format": "np", "quote": "\"é\""})


if __name__ == "__main__":
    write_gguf()
    write_safetensors()
