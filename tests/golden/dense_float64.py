#!/usr/bin/python3
"""Float64 forward of a dense GGUF model with NumPy: the reference that the C++ model is measured against.

It reads the file itself, dequantises every weight exactly, and computes in float64 throughout (no activation is
quantised, K and V stay float64). It shares no code with the C++ program and fetches nothing.

  dense_float64.py MODEL.gguf --prompts prompts.json --write-fixture smollm2_q4_1.bin
      computes the logits of every prompt and stores the best 64 of each position with the log-sum-exp
  dense_float64.py MODEL.gguf --prompts prompts.json --save logits.npy
      stores all logits, float32 [positions of all prompts, vocabulary]
  dense_float64.py --reference logits.npy --compare other.f32
      compares raw little-endian float32 [positions, vocabulary] (what `deepmint score --logits FILE` writes) with them:
      top-1 agreement where the reference margin is above 0.2, mean and largest KL(reference || other). Exit 1 when the gate
      (no disagreement, mean KL <= 0.01) fails.

Fixture layout, little-endian: "DMGOLD1\\0", u32 vocabulary, u32 prompts, u32 top; for each prompt: u32 n, n x i32 ids; then
for each position of each prompt: f64 logsumexp, top x i32 ids by descending logit (lower id first on ties),
top x f32 logits.
"""
import argparse
import json
import math
import struct
import sys

import numpy as np

# ---------------------------------------------------------------------------------------------- GGUF

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
         30: "BF16"}
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20),
          "Q5_0": (32, 22), "Q5_1": (32, 24), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}


class Gguf:
    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 0
        magic, version = self._bytes(4), self._scalar("I")
        if magic != b"GGUF" or version not in (2, 3):
            raise SystemExit(f"{path}: expected GGUF version 2 or 3")
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        self.meta = {}
        for _ in range(n_keys):
            key = self._string()
            self.meta[key] = self._value(self._scalar("I"))
        tensors = []
        for _ in range(n_tensors):
            name = self._string()
            dims = [self._scalar("Q") for _ in range(self._scalar("I"))]
            tensors.append((name, dims[::-1], TYPES[self._scalar("I")], self._scalar("Q")))
        align = self.meta.get("general.alignment", 32)
        base = (self.at + align - 1) // align * align
        self.tensors = {name: (shape, kind, base + offset) for name, shape, kind, offset in tensors}

    def _bytes(self, n):
        out = self.data[self.at:self.at + n].tobytes()
        self.at += n
        return out

    def _scalar(self, code):
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _string(self):
        return self._bytes(self._scalar("Q")).decode("utf-8", "replace")

    def _value(self, kind):
        if kind == 8:
            return self._string()
        if kind == 9:
            inner, n = self._scalar("I"), self._scalar("Q")
            return [self._value(inner) for _ in range(n)]
        return self._scalar(SCALARS[kind])

    def get(self, name, rows=None):
        """Float64 values of a tensor, or of some rows of a matrix."""
        shape, kind, offset = self.tensors[name]
        elements, size = BLOCKS[kind]
        row = shape[-1] // elements * size
        raw = np.asarray(self.data[offset:offset + row * int(np.prod(shape[:-1], dtype=np.int64))]).reshape(-1, row)
        if rows is not None:
            raw = raw[rows]
        out = DEQUANTISE[kind](np.ascontiguousarray(raw).reshape(-1, size))
        return out.reshape([-1] + shape[1:]) if len(shape) > 1 else out.reshape(shape)


def f16(raw):
    return np.ascontiguousarray(raw).view("<f2").astype(np.float64)


def nibbles(raw):
    """[blocks, n] bytes -> [blocks, 2n]: all low halves, then all high halves."""
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float64)


def fifth_bits(raw):
    bits = np.ascontiguousarray(raw).view("<u4")
    return ((bits >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float64) * 16


def k_scales(raw):
    """12 bytes -> eight 6-bit scales and eight 6-bit minima."""
    a, b, c = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    least = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return scale.astype(np.float64), least.astype(np.float64)


def q4_k(raw):
    scale, least = k_scales(raw[:, 4:16])
    quants = raw[:, 16:144].reshape(-1, 4, 32)
    q = np.stack([quants & 15, quants >> 4], axis=2).reshape(-1, 8, 32).astype(np.float64)
    return f16(raw[:, 0:2])[:, :, None] * scale[:, :, None] * q - f16(raw[:, 2:4])[:, :, None] * least[:, :, None]


def q5_k(raw):
    scale, least = k_scales(raw[:, 4:16])
    high = raw[:, 16:48]
    quants = raw[:, 48:176].reshape(-1, 4, 32)
    q = np.stack([quants & 15, quants >> 4], axis=2).reshape(-1, 8, 32).astype(np.float64)
    q += np.stack([(high >> bit) & 1 for bit in range(8)], axis=1).astype(np.float64) * 16
    return f16(raw[:, 0:2])[:, :, None] * scale[:, :, None] * q - f16(raw[:, 2:4])[:, :, None] * least[:, :, None]


def q6_k(raw):
    low, high = raw[:, 0:128].reshape(-1, 2, 64), raw[:, 128:192].reshape(-1, 2, 32)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float64)
    parts = [(low[:, :, 0:32] & 15) | ((high & 3) << 4), (low[:, :, 32:64] & 15) | ((high >> 2 & 3) << 4),
             (low[:, :, 0:32] >> 4) | ((high >> 4 & 3) << 4), (low[:, :, 32:64] >> 4) | ((high >> 6) << 4)]
    q = np.stack(parts, axis=2).reshape(-1, 16, 16).astype(np.float64) - 32
    return f16(raw[:, 208:210])[:, :, None] * scales[:, :, None] * q


DEQUANTISE = {
    "F32": lambda r: r.view("<f4").astype(np.float64),
    "F16": lambda r: r.view("<f2").astype(np.float64),
    "BF16": lambda r: (r.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64),
    "Q8_0": lambda r: f16(r[:, 0:2]) * np.ascontiguousarray(r[:, 2:34]).view(np.int8).astype(np.float64),
    "Q4_0": lambda r: f16(r[:, 0:2]) * (nibbles(r[:, 2:18]) - 8),
    "Q4_1": lambda r: f16(r[:, 0:2]) * nibbles(r[:, 4:20]) + f16(r[:, 2:4]),
    "Q5_0": lambda r: f16(r[:, 0:2]) * (nibbles(r[:, 6:22]) + fifth_bits(r[:, 2:6]) - 16),
    "Q5_1": lambda r: f16(r[:, 0:2]) * (nibbles(r[:, 8:24]) + fifth_bits(r[:, 4:8])) + f16(r[:, 2:4]),
    "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
}

# ------------------------------------------------------------------------------------------- forward


def frequencies(gguf, arch, rotary):
    base = gguf.meta.get(f"{arch}.rope.freq_base", 10000.0)
    out = base ** (-2.0 * np.arange(rotary // 2) / rotary)
    kind = gguf.meta.get(f"{arch}.rope.scaling.type", "none")
    if kind == "linear":
        out = out / gguf.meta[f"{arch}.rope.scaling.factor"]
    elif kind != "none":
        raise SystemExit(f"rope scaling {kind}: not in this script")
    if "rope_freqs.weight" in gguf.tensors:
        out = out / gguf.get("rope_freqs.weight")
    return out


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, cos, sin, interleaved):
    """x: [positions, heads, head_dim]; cos, sin: [positions, 1, rotary / 2]."""
    half = cos.shape[-1]
    out = x.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def forward(gguf, prompts):
    """Float64 logits, one [len(prompt), vocabulary] for each prompt."""
    meta, arch = gguf.meta, gguf.meta["general.architecture"]
    if arch not in ("llama", "qwen2", "qwen3"):
        raise SystemExit(f"architecture {arch}: not in this script")
    layers, heads = meta[f"{arch}.block_count"], meta[f"{arch}.attention.head_count"]
    kv_heads = meta.get(f"{arch}.attention.head_count_kv", heads)
    hidden, eps = meta[f"{arch}.embedding_length"], meta[f"{arch}.attention.layer_norm_rms_epsilon"]
    dim = meta.get(f"{arch}.attention.key_length", hidden // heads)
    rotary = meta.get(f"{arch}.rope.dimension_count", dim)
    angle = np.concatenate([np.arange(len(p)) for p in prompts])[:, None] * frequencies(gguf, arch, rotary)
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    x = gguf.get("token_embd.weight", np.concatenate([np.asarray(p) for p in prompts]))
    starts = np.cumsum([0] + [len(p) for p in prompts])
    for layer in range(layers):
        def w(name, layer=layer):
            return gguf.get(f"blk.{layer}.{name}")

        h = rms_norm(x, w("attn_norm.weight"), eps)
        q, k, v = (h @ w(f"attn_{n}.weight").T for n in "qkv")
        if f"blk.{layer}.attn_q.bias" in gguf.tensors:
            q, k, v = q + w("attn_q.bias"), k + w("attn_k.bias"), v + w("attn_v.bias")
        q, k, v = q.reshape(-1, heads, dim), k.reshape(-1, kv_heads, dim), v.reshape(-1, kv_heads, dim)
        if f"blk.{layer}.attn_q_norm.weight" in gguf.tensors:
            q, k = rms_norm(q, w("attn_q_norm.weight"), eps), rms_norm(k, w("attn_k_norm.weight"), eps)
        q, k = rotate(q, cos, sin, arch == "llama"), rotate(k, cos, sin, arch == "llama")
        out = np.empty((x.shape[0], heads * dim))
        for begin, end in zip(starts, starts[1:]):
            mask = np.triu(np.full((end - begin, end - begin), -np.inf), 1)
            for head in range(heads):
                kv = head // (heads // kv_heads)
                s = q[begin:end, head] @ k[begin:end, kv].T / math.sqrt(dim) + mask
                p = np.exp(s - s.max(axis=1, keepdims=True))
                out[begin:end, head * dim:(head + 1) * dim] = p / p.sum(axis=1, keepdims=True) @ v[begin:end, kv]
        x = x + out @ w("attn_output.weight").T
        h = rms_norm(x, w("ffn_norm.weight"), eps)
        gate, up = h @ w("ffn_gate.weight").T, h @ w("ffn_up.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w("ffn_down.weight").T
    head = "output.weight" if "output.weight" in gguf.tensors else "token_embd.weight"
    logits = rms_norm(x, gguf.get("output_norm.weight"), eps) @ gguf.get(head).T
    return [logits[a:b] for a, b in zip(starts, starts[1:])]


# ------------------------------------------------------------------------------------------- compare


def log_softmax(x):
    x = x.astype(np.float64)
    top = x.max(axis=1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis=1, keepdims=True))


def compare(reference, other):
    """Figures of `other` against `reference`, both [positions, vocabulary]."""
    p, q = log_softmax(reference), log_softmax(other)
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    ordered = np.partition(reference, -2, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    same = reference.argmax(axis=1) == other.argmax(axis=1)
    return {
        "positions": len(reference),
        "mean_kl": float(kl.mean()),
        "max_kl": float(kl.max()),
        "top1_agreement": float(same.mean()),
        "disagreements_above_margin_0.2": int((~same & (margin > 0.2)).sum()),
        "positions_above_margin_0.2": int((margin > 0.2).sum()),
        "mean_absolute_logprob_error_of_top1": float(np.abs((p - q)[np.arange(len(p)), reference.argmax(axis=1)]).mean()),
    }


def write_fixture(path, prompts, logits, top=64):
    with open(path, "wb") as f:
        f.write(b"DMGOLD1\0" + struct.pack("<III", logits[0].shape[1], len(prompts), top))
        for prompt in prompts:
            f.write(struct.pack(f"<I{len(prompt)}i", len(prompt), *prompt))
        for rows in logits:
            for row in rows:
                best = np.argsort(-row, kind="stable")[:top]
                total = row.max() + math.log(np.exp(row - row.max()).sum())
                f.write(struct.pack("<d", total) + best.astype("<i4").tobytes() + row[best].astype("<f4").tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", help='JSON: {"prompts": [{"ids": [...]}, ...]}')
    parser.add_argument("--write-fixture")
    parser.add_argument("--save", help="all logits as .npy")
    parser.add_argument("--reference", help=".npy made with --save")
    parser.add_argument("--compare", nargs="+", help="raw float32 files; several are put one after another")
    args = parser.parse_args()
    if args.compare:
        reference = np.load(args.reference)
        raw = np.concatenate([np.fromfile(name, dtype="<f4") for name in args.compare])
        if raw.size != reference.size:
            sys.exit(f"expected {reference.size} values, found {raw.size}")
        result = compare(reference, raw.reshape(reference.shape))
        print(json.dumps(result, indent=2))
        return 0 if result["disagreements_above_margin_0.2"] == 0 and result["mean_kl"] <= 0.01 else 1
    with open(args.prompts, encoding="utf-8") as f:
        prompts = [p["ids"] for p in json.load(f)["prompts"]]
    logits = forward(Gguf(args.model), prompts)
    if args.write_fixture:
        write_fixture(args.write_fixture, prompts, logits)
    if args.save:
        np.save(args.save, np.concatenate(logits).astype(np.float32))
    return 0


if __name__ == "__main__":
    sys.exit(main())
