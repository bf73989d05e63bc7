#!/usr/bin/env python3
"""Writes the seeds of the format fuzzers to tests/fuzz/corpus/{gguf,dense_model,safetensors,hf_folder,json,json_schema,grammar_regex,grammar_ebnf,grammar_matcher,seq_state}.

    tests/fuzz/make_corpus.py          writes the seeds; files named regression-* are left alone
    tests/fuzz/make_corpus.py --check  exits 1 when a seed differs from what would be written

Everything is built here from the format descriptions, without our own writers, so that a mistake in them shows.
"""
import json
import pathlib
import struct
import sys

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"


# --- GGUF ---

def string(s):
    data = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(data)) + data


PACK = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def value(kind, v):
    if kind == 8:
        return string(v)
    if kind == 9:
        item_kind, items = v
        return struct.pack("<IQ", item_kind, len(items)) + b"".join(value(item_kind, item) for item in items)
    return struct.pack(PACK[kind], v)


def gguf(metadata, tensors, version=3, alignment=32, order="<"):
    """metadata: (key, type, value); tensors: (name, dims innermost first, type, data)."""
    out = b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(metadata))
    for key, kind, v in metadata:
        out += string(key) + struct.pack("<I", kind) + value(kind, v)
    offset = 0
    for name, dims, kind, data in tensors:
        out += string(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // alignment) * alignment
    out += b"\0" * (-len(out) % alignment)
    for _, _, _, data in tensors:
        out += data + b"\0" * (-len(data) % alignment)
    return out


def tiny_llama():
    """The metadata and tensors of a Llama with one layer of hidden size 4: whole, so that inspect walks every check."""
    tokens = ["<|endoftext|>", "a", "b", "ab"]
    metadata = [
        ("general.architecture", 8, "llama"), ("general.name", 8, "seed"), ("llama.block_count", 4, 1),
        ("llama.context_length", 4, 64), ("llama.embedding_length", 4, 4), ("llama.feed_forward_length", 4, 4),
        ("llama.attention.head_count", 4, 2), ("llama.attention.head_count_kv", 4, 1),
        ("llama.attention.layer_norm_rms_epsilon", 6, 1e-5), ("llama.rope.freq_base", 6, 1e4),
        ("llama.rope.dimension_count", 4, 2), ("tokenizer.ggml.model", 8, "gpt2"), ("tokenizer.ggml.pre", 8, "smollm"),
        ("tokenizer.ggml.tokens", 9, (8, tokens)), ("tokenizer.ggml.token_type", 9, (5, [3, 1, 1, 1])),
        ("tokenizer.ggml.merges", 9, (8, ["a b"])), ("tokenizer.ggml.eos_token_id", 4, 0),
        ("tokenizer.chat_template", 8, "{{ messages }}"),
    ]
    shapes = [("token_embd.weight", [4, 4]), ("blk.0.attn_norm.weight", [4]), ("blk.0.attn_q.weight", [4, 4]),
              ("blk.0.attn_k.weight", [4, 2]), ("blk.0.attn_v.weight", [4, 2]), ("blk.0.attn_output.weight", [4, 4]),
              ("blk.0.ffn_norm.weight", [4]), ("blk.0.ffn_gate.weight", [4, 4]), ("blk.0.ffn_up.weight", [4, 4]),
              ("blk.0.ffn_down.weight", [4, 4]), ("output_norm.weight", [4])]
    tensors = []
    for name, dims in shapes:
        count = 1
        for d in dims:
            count *= d
        tensors.append((name, dims, 1, struct.pack("<e", 0.5) * count))
    return metadata, tensors


def gguf_seeds():
    metadata, tensors = tiny_llama()
    scalars = [(f"k{kind}", kind, {6: 0.5, 7: True, 12: 0.1}.get(kind, 7)) for kind in PACK]
    arrays = [(f"a{kind}", 9, (kind, [{6: 0.5, 7: True, 12: 0.1}.get(kind, 7)] * 3)) for kind in PACK]
    blocks = {0: 4, 1: 2, 30: 2, 8: 34, 2: 18, 3: 20, 6: 22, 7: 24, 12: 144, 13: 176, 14: 210}
    elements = {0: 1, 1: 1, 30: 1, 12: 256, 13: 256, 14: 256}
    return {
        "empty": gguf([], []),
        "llama": gguf(metadata, tensors),
        "llama-v2": gguf(metadata, tensors, version=2),
        "qwen3-missing": gguf([(k.replace("llama.", "qwen3."), t, "qwen3" if v == "llama" else v) for k, t, v in metadata], tensors),
        "every-scalar": gguf(scalars, []),
        "every-array": gguf(arrays + [("s", 9, (8, ["", "x", "é"])), ("n", 9, (9, [(4, [1, 2]), (9, [(8, ["x"])]), (0, [])]))], []),
        "every-tensor-type": gguf([], [(f"t{kind}", [2 * elements.get(kind, 32), 2], kind, b"\1" * 4 * size)
                                       for kind, size in blocks.items()]),
        "scalar-tensor": gguf([], [("s", [], 0, b"\0" * 4), ("v", [1, 1, 1, 1], 0, b"\0" * 4)]),
        "alignment-64": gguf([("general.alignment", 4, 64)], [("a", [3], 0, b"\0" * 12), ("b", [3], 0, b"\0" * 12)], alignment=64),
        "split": gguf([("split.count", 2, 3), ("split.no", 2, 0)], []),
        "big-endian": gguf([], [], order=">"),
        "unsupported-type": gguf([], [("t", [256], 16, b"\0" * 66)]),
        "truncated": gguf(metadata, tensors)[:900],
    }


def dense_model_seeds():
    """Whole models of hidden size 32: each architecture, plain and block types, scalings."""
    def model(arch, kind, size, extra=(), bias=False, norms=False, untied=False):
        metadata, _ = tiny_llama()
        metadata = [(k.replace("llama.", arch + "."), t, arch if v == "llama" else v) for k, t, v in metadata if not k.startswith("tokenizer")]
        for key, v in (("embedding_length", 32), ("feed_forward_length", 32)):
            metadata = [(k, t, v if k == f"{arch}.{key}" else old) for k, t, old in metadata]
        metadata = [(k, t, 16 if k.endswith("rope.dimension_count") else v) for k, t, v in metadata] + list(extra)
        block = struct.pack("<e", 0.01) + bytes(range(7, 7 + size - 2)) if kind not in (0, 1) else b"\x11\x2c" * (size // 2)
        vec = lambda n: (0, struct.pack("<f", 0.5) * n)
        mat = lambda n: (kind, block * n)
        names = [("token_embd.weight", [32, 4], mat(4)), ("blk.0.attn_norm.weight", [32], vec(32)), ("blk.0.attn_q.weight", [32, 32], mat(32)),
                 ("blk.0.attn_k.weight", [32, 16], mat(16)), ("blk.0.attn_v.weight", [32, 16], mat(16)),
                 ("blk.0.attn_output.weight", [32, 32], mat(32)), ("blk.0.ffn_norm.weight", [32], vec(32)),
                 ("blk.0.ffn_gate.weight", [32, 32], mat(32)), ("blk.0.ffn_up.weight", [32, 32], mat(32)),
                 ("blk.0.ffn_down.weight", [32, 32], mat(32)), ("output_norm.weight", [32], vec(32))]
        if bias:
            names += [(f"blk.0.attn_{x}.bias", [n], vec(n)) for x, n in (("q", 32), ("k", 16), ("v", 16))]
        if norms:
            names += [(f"blk.0.attn_{x}_norm.weight", [16], vec(16)) for x in "qk"]
        if untied:
            names += [("output.weight", [32, 4], mat(4)), ("rope_freqs.weight", [8], vec(8))]
        return gguf(metadata, [(name, dims, t, data) for name, dims, (t, data) in names])

    return {
        "llama-f16": model("llama", 1, 64),
        "llama-q4_1": model("llama", 3, 20, untied=True),
        "llama-q8_0-linear": model("llama", 8, 34, [("llama.rope.scaling.type", 8, "linear"), ("llama.rope.scaling.factor", 6, 2.0)]),
        "qwen2-q5_0": model("qwen2", 6, 22, bias=True),
        "qwen3-q4_0-yarn": model("qwen3", 2, 18, [("qwen3.rope.scaling.type", 8, "yarn"), ("qwen3.rope.scaling.factor", 6, 4.0),
                                                  ("qwen3.attention.key_length", 4, 16)], norms=True),
    }


# --- safetensors ---

def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for dtype, size in sizes.items():
        header[dtype] = entry(dtype, [2, 1], at, at + 2 * size)
        at += 2 * size
    return {
        "empty": safetensors({}, b""),
        "every-type": safetensors(header, bytes(at)),
        "padded": safetensors(json.dumps({"s": entry("F32", [], 0, 4)}).encode() + b"    ", bytes(4)),
        "zero-elements": safetensors({"z": entry("I64", [0, 7], 0, 0), "a": entry("U8", [1], 0, 1)}, bytes(1)),
        "overlap": safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, bytes(3)),
        "hole": safetensors({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, bytes(3)),
        "huge-shape": safetensors({"a": entry("F32", [2**62, 4], 0, 0)}, b""),
        "unsupported-type": safetensors({"a": entry("F64", [1], 0, 8)}, bytes(8)),
        "duplicate": safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                                 b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1)),
        "long-header": struct.pack("<Q", 1 << 62) + b"{}",
    }


# --- folders: config 0xFF index 0xFF tokenizer 0xFF tokenizer_config ---

def hf_folder_seeds():
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 32,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 276,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "rope_scaling": None,
              "tie_word_embeddings": True, "attention_bias": False}
    layer = ["input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm", "self_attn.k_proj",
             "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"]
    names = ["model.embed_tokens", "model.norm"] + ["model.layers.0." + name for name in layer]
    weights = {name + ".weight": "a.safetensors" for name in names}
    index = {"metadata": {"total_size": 1}, "weight_map": weights}
    with_extra = {"weight_map": {**weights, "extra": "b.safetensors"}}
    scaled = {**config, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}
    nested = {"architectures": ["DeepseekV41ForCausalLM"], "text_config": config}
    tokenizer = {"added_tokens": [{"id": 0, "content": "<s>", "special": True}],
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]},
                 "model": {"type": "BPE", "vocab": {"a": 1, "b": 2, "ab": 3}, "merges": ["a b"]}}
    tokenizer_config = {"bos_token": "<s>", "eos_token": {"content": "a"}, "chat_template": "{{ x }}"}

    def parts(*documents):
        return b"\xff".join(b"" if d is None else json.dumps(d, separators=(",", ":")).encode() for d in documents)

    return {
        "whole": parts(config, index, tokenizer, tokenizer_config),
        "extra-file": parts(config, with_extra, tokenizer),
        "scaled-rope": parts(scaled, index),
        "nested-config": parts(nested, index, tokenizer),
        "no-index": parts(config),
        "missing-tensor": parts({**config, "num_hidden_layers": 2}, index),
        "traversal": parts(config, {"weight_map": {"a": "../a.safetensors"}}),
        "control-name": parts(config, {"weight_map": {"a": "a\x7f.safetensors"}}),
        "no-config": parts(None, index),
    }


# --- JSON ---

def json_seeds():
    texts = {
        "document": '{"a":[1,-2.5e+3,"x\\u00e9\\\\",{"b":null,"c":[true,false]}],"€":""}',
        "numbers": "[0,-0,1.50,1e999,123456789012345678901234567890,-9223372036854775808,18446744073709551615,5e-324]",
        "escapes": '["\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\ud83d\\ude00","😀","\\ud800"]',
        "scalar": " -1.25E-7 ", "string": '"x"', "literals": "[true,false,null]", "deep": "[" * 128 + "]" * 128,
        "too-deep": "[" * 129 + "]" * 129, "duplicates": '{"a":1,"a":2}', "two": "1 2", "trailing": "[1]]", "open": '{"a":[',
        "white": " \t\r\n{ \"a\" : [ ] , \"b\" : { } } ", "control": '"a\nb"', "bom": "\ufeff{}", "comment": "/* x */ 1",
    }
    seeds = {name: text.encode("utf-8") for name, text in texts.items()}
    seeds["invalid-utf8"] = b'["\xed\xa0\x80","\xc0\xaf","\xff"]'
    seeds["nul"] = b"[true\x00]"
    return seeds


# --- JSON Schema ---

def json_schema_seeds():
    d7 = "http://json-schema.org/draft-07/schema#"
    schemas = {
        "object": {"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "exclusiveMaximum": 12.5, "multipleOf": 0.5}, "b": {"enum": ["x", 1, None]}},
                   "required": ["b"], "patternProperties": {"^c": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4}}, "additionalProperties": False, "maxProperties": 3},
        "array": {"type": "array", "prefixItems": [{"const": {"k": [1]}}], "items": {"type": ["null", "boolean"]}, "minItems": 1, "maxItems": 4, "contains": {"const": True}},
        "choices": {"oneOf": [{"type": "number", "minimum": 1}, {"type": "number", "maximum": 5}], "not": {"const": 3}, "anyOf": [{}, {"type": "string"}], "allOf": [{"type": "number"}]},
        "recursion": {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}]}}},
        "conditions": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"properties": {"c": False}}, "dependentRequired": {"b": ["d"]}, "propertyNames": {"maxLength": 2}},
        "formats": {"anyOf": [{"type": "string", "format": f} for f in ("date-time", "ipv6", "uri", "email", "duration", "hostname", "uuid", "json-pointer")]},
        "unevaluated": {"type": "object", "allOf": [{"properties": {"a": True}}], "anyOf": [{"properties": {"b": True}}, {}], "unevaluatedProperties": False},
        "draft-7": {"$schema": d7, "items": [{"type": "integer"}], "additionalItems": False, "dependencies": {"a": ["b"], "c": {"minProperties": 1}}, "uniqueItems": True},
        "loop": {"$ref": "#"}, "identifiers": {"$id": "http://x.test/a/", "$ref": "b#c", "$defs": {"b": {"$id": "b", "$defs": {"c": {"$anchor": "c"}}}}},
        "huge": {"minLength": 1e18, "maxItems": 99999999999, "minimum": -1e308, "multipleOf": 1e-17},
    }
    return {name: json.dumps(schema, separators=(",", ":")).encode() for name, schema in schemas.items()}


# --- regular expressions: a byte of options (1: ECMA, 2: may match anywhere), then the pattern ---

def grammar_regex_seeds():
    patterns = {
        "classes": (0, r"[a-z\d_]{2,5}[^\s\x00-\x1f]\pL\p{Greek}?[[:alpha:]]+"), "anchors": (3, r"^a|b$|^(?:c|d$)|(e$)?f*"), "counts": (0, r"(a{0,1000}b{3,}){2}|(?:ab?){7}"),
        "escapes": (1, r"\u0041\u{1F600}\uD83D\uDE00\cA\0\x41\-\/[\]\-a]"), "flags": (0, r"(?i)abc(?s:.)(?P<n>x)(?<m>y)\Qa*\E\x{10FFFF}"), "refused": (1, r"(?=a)\1\b(?<!x)"),
        "exponential": (2, r"(a|a)*(a*)*(a|b)*a(a|b){20}"), "unicode": (1, "é[à-ü]日本*\U0001f600|[^é]"), "nested": (0, "(" * 60 + "a" + ")*" * 60), "open": (0, "[a-"),
    }
    return {name: bytes([options]) + pattern.encode() for name, (options, pattern) in patterns.items()}


# --- EBNF ---

def grammar_ebnf_seeds():
    grammars = {
        "arithmetic": 'root ::= root "+" term | term\nterm ::= term "*" atom | atom # comment\natom ::= [0-9]+ | "(" root ")"\n',
        "counts": 'root ::= ("a" | b){2,4} b{3} "c"{,2} "d"{1,}\nb ::= "b"? [^a-z\\n]* .\n', "hidden": 'root ::= x root y | "a"\nx ::= "" | x\ny ::= "b"?\n',
        "mutual": 'root ::= a\na ::= b "x" | "y"\nb ::= a "z" | "w"\n', "tokens": 'root ::= "a" <[257]> root | <[258]>\n', "escapes": r'root ::= "\x41\u00e9\U0001F600\n\t\"\\" [\x00-\x1f\]\-]' + "\n",
        "lines": 'root ::=\n  "a" |\n  # nothing\n  ("b"\n  "c")\n', "empty": 'root ::= root "a"\n', "unknown": 'root ::= x\n', "open": 'root ::= ("a" | [b',
    }
    return {name: text.encode() for name, text in grammars.items()}


# --- the matcher: the number of a grammar, then pairs of operation and value ---

def grammar_matcher_seeds():
    walks = {"walk": [(1, 3), (2, 5), (1, 0), (3, 9)] * 6, "back": [(1, 2), (1, 7), (4, 1), (5, 4)] * 6, "cold": [(1, 1), (6, 0), (2, 4), (4, 2), (6, 0)] * 5, "bytes": [(1, 11), (7, 9), (0, 20), (5, 33), (7, 15)] * 5}
    return {f"{name}-{grammar}": bytes([grammar]) + b"".join(bytes(step) for step in steps) for grammar in range(11) for name, steps in walks.items() if (grammar + len(name)) % 2}


# --- sequence state (docs/formats/seqstate.md); the fuzzer puts the checksum right ---

def seq_state(n_tokens, computed, prompt=None, parts=(("kv", 0, 64), ("ring", 1, 64)), version=1, tokens=None):
    blocks = -(-computed // 64)
    at = 64 + 64 * len(parts) + 4 * n_tokens
    at += -at % 64
    table, data = b"", b""
    for name, family, size in parts:
        count = 1 if family else blocks
        table += struct.pack("<32sIIQQQ", name.encode(), family, 0, size, count, at + len(data))
        data += bytes(i % 251 for i in range(count * size))
    ids = struct.pack(f"<{n_tokens}i", *(tokens or [i * 7 % 256 for i in range(n_tokens)]))
    head = struct.pack("<8sIIQQQIIIIII", b"DMSEQST", version, 64, at + len(data) + 16, 1, 42, n_tokens,
                       prompt or max(1, n_tokens - 3), computed, 0, len(parts), 0)
    body = head + table + ids
    return body.ljust(at, b"\0") + data + bytes(16)


def seq_state_seeds():
    return {
        "decoding": seq_state(70, 69), "prefill": seq_state(200, 128, prompt=200), "block-end": seq_state(65, 64), "fresh": seq_state(1, 0),
        "bad-id": seq_state(2, 1, tokens=[3, 256]), "version-2": seq_state(3, 2, version=2), "no-parts": seq_state(3, 2, parts=()),
        "too-long": seq_state(257, 256), "other-layout": seq_state(3, 2, parts=(("kv", 0, 128), ("ring", 1, 64))), "empty": b"",
    }


def main():
    check = "--check" in sys.argv[1:]
    differing = 0
    for folder, seeds in (("gguf", gguf_seeds()), ("dense_model", dense_model_seeds()), ("safetensors", safetensors_seeds()),
                          ("hf_folder", hf_folder_seeds()), ("json", json_seeds()), ("json_schema", json_schema_seeds()),
                          ("grammar_regex", grammar_regex_seeds()), ("grammar_ebnf", grammar_ebnf_seeds()), ("grammar_matcher", grammar_matcher_seeds()), ("seq_state", seq_state_seeds())):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            path = CORPUS / folder / name
            if check:
                if not path.exists() or path.read_bytes() != data:
                    print(f"{path}: expected what make_corpus.py writes, found something else")
                    differing += 1
            else:
                path.write_bytes(data)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
