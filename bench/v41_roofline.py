#!/usr/bin/env python3
"""What the memory of a machine allows for DeepSeek-V4.1: bytes per step and the tokens/s that follow, from a config's dimensions.

    bench/v41_roofline.py                                   # the page docs/kernels/v41_roofline.md on stdout
    bench/v41_roofline.py --write | --check                 # write that page, or fail when it is stale
    bench/v41_roofline.py --config DIR/config.json --json   # bytes per step of another checkpoint, for a benchmark

A step of R rows reads every weight that any of its rows needs once, and the state of each row. Nothing else is counted: no
arithmetic, no activations, no cache hits. The real program is below these figures; `deepmint bench` says by how much.
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/kernels/v41_roofline.md"

# Official dimensions (the specification of the model and of its drafts), under the names of config.json.
OFFICIAL = {
    "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 64, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "moe_intermediate_size": 2304,
    "n_routed_experts": 384, "num_experts_per_tok": 6, "sliding_window": 128, "compress_ratios": [0, 0] + [2] * 18 + [1] * 20,
    "kv_source_layer_ids": [2, 8, 14, 20], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048,
    "candidate_block_size": 8, "hc_mult": 4, "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256, "dspark_block_size": 5, "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3, "num_nextn_predict_layers": 3,
}
# Bytes per stored weight: E4M3 with a scale byte per 32 x 32 tile, E2M1 with one per 32 of a row, BF16, F32.
FP8, FP4, BF16, F32 = 1 + 1 / 1024, 0.5 + 1 / 32, 2, 4
WINDOW_ROW, GLOBAL_ROW, INDEX_ROW = 512 + 16, 256 + 32, 64 + 4  # bytes at official widths; scaled below


class Model:
    def __init__(self, config):
        c = {**OFFICIAL, **{k: v for k, v in config.items() if k in OFFICIAL and v is not None}}
        self.c = c
        self.layers = c["num_hidden_layers"]
        self.hidden, self.experts, self.top = c["hidden_size"], c["n_routed_experts"], c["num_experts_per_tok"]
        heads, dim, hidden = c["num_attention_heads"], c["head_dim"], self.hidden
        q, groups = c["q_lora_rank"], c["o_groups"]
        self.attention = (q * hidden + heads * dim * q + dim * hidden + groups * c["o_lora_rank"] * (heads * dim // groups)
                          + hidden * groups * c["o_lora_rank"])  # FP8
        self.expert = 3 * hidden * c["moe_intermediate_size"]
        self.gate = self.experts * hidden
        self.mhc = 2 * (2 + c["hc_mult"]) * c["hc_mult"] * c["hc_mult"] * hidden
        self.indexer = c["index_n_heads"] * c["index_head_dim"] * q  # FP8, and a small BF16 projection
        self.head = c["vocab_size"] * hidden
        engram_in = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * c["engram_head_dim"]
        self.engram_projection = (c["hc_mult"] + 1) * hidden * engram_in
        self.engram_rows = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * len(c["engram_layer_ids"])
        self.engram_row_bytes = c["engram_head_dim"] * (1 + 1 / 32)
        wide = dim / 512
        self.window_row, self.global_row = WINDOW_ROW * wide, GLOBAL_ROW * wide
        self.index_row = INDEX_ROW * c["index_head_dim"] / 128

    def ratio(self, layer):
        return self.c["compress_ratios"][layer]

    def layer_parameters(self, layer):
        """Parameters of a layer without Engram, norms and the few of an attention sink or a bias: spec model.md 1.3."""
        c, n = self.c, self.attention + (self.experts + 1) * self.expert + self.gate + self.mhc
        if layer in c["index_source_layer_ids"]:
            n += self.indexer + c["index_n_heads"] * self.hidden
        if layer in c["kv_source_layer_ids"]:
            n += c["head_dim"] * self.hidden * (2 if self.ratio(layer) == 2 else 1) + c["index_head_dim"] * c["head_dim"]
        return n

    def distinct(self, rows, experts=None, top=None):
        """Experts that `rows` rows reach, when each picks at random on its own. Rows that agree reach fewer."""
        experts, top = experts or self.experts, top or self.top
        return experts * (1 - (1 - top / experts) ** rows)

    def dense_bytes(self, first=0, last=None, head=True):
        """Weights that every step reads: all but the routed experts."""
        c = self.c
        total = self.head * BF16 if head else 0
        for layer in range(first, self.layers if last is None else last):
            total += (self.attention + self.expert) * FP8 + self.gate * BF16 + self.mhc * F32
            if layer in c["index_source_layer_ids"]:
                total += self.indexer * FP8 + c["index_n_heads"] * self.hidden * BF16
            if layer in c["kv_source_layer_ids"]:
                total += (c["head_dim"] * self.hidden * (2 if self.ratio(layer) == 2 else 1) + c["index_head_dim"] * c["head_dim"]) * BF16
            if layer in c["engram_layer_ids"]:
                total += self.engram_projection * FP8
        return total

    def expert_bytes(self, rows, layers=None):
        return (self.layers if layers is None else layers) * self.distinct(rows) * self.expert * FP4

    def state_bytes(self, context):
        """State that one row reads with `context` tokens behind it."""
        c = self.c
        total = self.layers * min(context, c["sliding_window"]) * self.window_row
        for layer in range(self.layers):
            ratio = self.ratio(layer)
            if ratio == 0:
                continue
            rows = context // ratio
            total += min(rows, c["index_topk"]) * self.global_row
            if layer in c["index_source_layer_ids"]:
                inside = c["candidate_topk_blocks"] * c["candidate_block_size"] if layer > c["candidate_source_layer_id"] >= 0 else rows
                total += min(rows, inside) * self.index_row
        return total + self.engram_rows * self.engram_row_bytes

    def step_bytes(self, rows, context):
        return self.dense_bytes() + self.expert_bytes(rows) + rows * self.state_bytes(context)

    def draft_bytes(self, drafts):
        """One pass of the drafter over `drafts` slots: three stages, the shared head, the serial Markov rows."""
        c = self.c
        stages = c["num_nextn_predict_layers"]
        experts = self.distinct(drafts, c["dspark_n_routed_experts"], c["dspark_num_experts_per_tok"])
        stage = (self.attention + self.expert) * FP8 + c["dspark_n_routed_experts"] * self.hidden * BF16 + self.mhc * F32
        markov = drafts * c["dspark_markov_rank"] * (c["vocab_size"] + 1) * BF16
        return stages * (stage + experts * self.expert * FP4 + drafts * c["sliding_window"] * self.window_row) \
            + 3 * self.hidden * self.hidden * FP8 + self.head * BF16 + markov

    def totals(self):
        c = self.c
        layers = sum(self.layer_parameters(layer) for layer in range(self.layers))
        return {"attention": self.attention, "expert": self.expert, "layers": layers, "backbone": layers + 2 * self.head,
                "engram tables": sum(c["engram_num_embeddings"]) * c["engram_head_dim"],
                "experts, bytes": self.layers * self.experts * self.expert * FP4}


def accepted(rate, drafts):
    """Tokens per step: the one that is sure, and drafts while each is accepted."""
    return sum(rate ** k for k in range(drafts + 1))


def rate_of(tau, drafts=5):
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle, drafts) < tau else (low, middle)
    return low


def gb(x):
    return f"{x / 1e9:.2f}"


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows])


BANDWIDTHS = (34, 200, 460)
MACHINES = "34 GB/s is two channels of a small virtual machine, 200 GB/s a desktop with wide memory or a small server, 460 GB/s a socket with twelve channels of DDR5-4800"


# Measured, not computed: the figures of the commands named in it.
WHICH_BINDS = """## Which roof binds, measured

Bytes are one roof, arithmetic the other: expanding FP4 and FP8 weights to BF16, multiplying, adding up. `bench/v41_phases` measures both in the run that it times: reads of memory before and after the steps, and
the same products with weights in each core's second-level cache, so that nothing waits for memory; attention counts at the BF16 peak, index scores at the int8 peak. The longer time binds, and the share is of it.
So the roof of arithmetic is that of this program's kernels, in the order of sums that its answers are defined by, not of the best conceivable ones.

Layers of official widths (three of them, 48 experts): `chrt -f 1 v41_phases FOLDER --make-official-layers --decode 1024 --rows 1,2,4,8,16 --steps 7`; two Zen 4 cores, avx512bf16, memory at 37 GB/s where not said otherwise, BF16 peak 473 GFLOP/s, 2026-11-30:

| rows | MB a step | memory, ms | arithmetic, ms | binds | step, ms | of what binds | memory binds below |
|---|---|---|---|---|---|---|---|
| 1 | 1039 | 27.5 | 15.0 | memory | 29.4 | 93 % | 69 GB/s |
| 2 | 1266 | 34.0 | 24.6 | memory | 37.3 | 91 % | 51 GB/s |
| 4 | 1512 | 41.5 | 36.1 | memory | 50.1 | 83 % | 42 GB/s |
| 8 | 1725 | 47.3 | 64.0 | arithmetic | 79.4 | 81 % | 27 GB/s |
| 16, at 47 GB/s | 1978 | 41.9 | 124.6 | arithmetic | 140.5 | 89 % | 16 GB/s |
| 4, at 66 GB/s | 1512 | 23.1 | 36.1 | arithmetic | 48.0 | 75 % | |
| 8, at 64 GB/s | 1725 | 26.8 | 64.1 | arithmetic | 78.6 | 81 % | |
| 16, at 66 GB/s | 1978 | 29.9 | 123.9 | arithmetic | 142.2 | 87 % | |

The memory of this machine changes within minutes; the last three lines are another run. The last column is where both roofs are as high, on two cores; half of it is what one core keeps up with. Memory of 200 GB/s takes 6 such cores at one row, 8 at two, 10 at four, 15 at eight; memory of 460 GB/s takes 14, 18, 22 and 34.
Three more runs, memory at 36 to 37 GB/s: 90, 92 and 93 % of memory at one row, 86, 89 and 91 % at two. With weights that expand in groups, later the same day: arithmetic 14.8, 23.8, 36.2, 64.5 and 117 ms; two quiet runs 84 and 93 %, 90 and 90, 82 and 81 of memory at one, two and four rows, 78 and 84 % of arithmetic at 8 and 16. At 65 GB/s the state before reached 66 % of memory at one row and 72 % of arithmetic at two.

GB/s of weights from the second-level caches of both cores, by rows of the step (experts: by the rows that an expert gets, on average):

| | 1 | 2 | 4 | 8 | 16 |
|---|---|---|---|---|---|
| FP8 | 84 | 58 | 43 | 21 | 11 |
| BF16 | 153 | 132 | 105 | 51 | 25 |
| FP4 | 49 (1.0) | 46 (1.2) | 40 (1.7) | 31 (2.7) | 23 (4.3) |

FP4 from the cache is slower than the memory of this machine in its fast minutes (60 GB/s) at every number of rows, and than its slow minutes (37) from about two rows of an expert on: then arithmetic binds the experts, and no
prefetching can change it.

The `bench` preset (all 40 layers, narrow; `chrt -f 1 v41_phases FOLDER --decode 1024 --rows 4,8,16 --steps 14`, one and two rows nine times with `--rows 1,2 --steps 16`, medians, nothing else on the machine, 2026-11-30), where fixed costs of a layer weigh more:

| rows | memory at | MB a step | memory, ms | arithmetic, ms | binds | step, ms | of what binds | each product at what binds it |
|---|---|---|---|---|---|---|---|---|
| 1 | 35–36 GB/s | 754 | 21.2 | 12.6 | memory | 25.6 | 83 % (82 to 84 in six of nine runs) | 88 % |
| 1 | 64–67 GB/s | 754 | 11.6 | 12.7 | arithmetic | 24.6 | 47 to 53 % | 59 % |
| 2 | 35–36 GB/s | 889 | 25.1 | 20.7 | memory | 34.1 | 73 % (71 to 78 in five of nine runs) | 82 % |
| 2 | 64–67 GB/s | 889 | 13.5 | 20.7 | arithmetic | 33.0 | 62 to 65 % | 64 % |
| 4 | 37 GB/s | 1055 | 29.0 | 32.7 | arithmetic | 46.3 | 71 % | 76 % |
| 8 | 67 GB/s | 1224 | 19.0 | 59.8 | arithmetic | 86.4 to 93.1 | 69 % | |
| 16 | 66 GB/s | 1509 | 22.9 | 113.5 | arithmetic | 167 to 190 | 60 to 68 % | |

The last column adds up, kind of product by kind of product, the longer of its two times. What is missing to it: attention, which is a third of all multiply-adds of this preset (a tenth at official widths) and runs at half of the
BF16 peak at one row and at two thirds at more, while it fetches the weights that come next; and the work of one thread, 1.2 to 1.5 ms of a step, during which the others fetch.

"""


def page(m):
    c, context = m.c, 8192
    dense, one = m.dense_bytes(), m.step_bytes(1, context)
    out = [f"""# DeepSeek-V4.1-Flash: what the memory allows

Made by `bench/v41_roofline.py --write`; a test fails when this page is stale. Every figure follows from the official dimensions: bytes
that a step has to read, divided by a bandwidth. No arithmetic, no activations, no luck with caches is counted, so these are upper bounds;
the share of them that the program reaches is in docs/benchmarks.md. Only *Which roof binds* is measured. {MACHINES}.

## Bytes of a decode step

One row, {context} tokens behind it:

""", table(["part", "GB", "share"], [[name, gb(v), f"{100 * v / one:.0f} %"] for name, v in (
        ("attention projections, FP8", m.layers * m.attention * FP8),
        (f"routed experts, FP4: {m.top} of {m.experts} in each layer", m.expert_bytes(1)),
        ("shared experts, FP8", m.layers * m.expert * FP8),
        ("head, BF16", m.head * BF16),
        ("Engram projections, FP8", len(c["engram_layer_ids"]) * m.engram_projection * FP8),
        ("routers, mHC, compressors, indexers", dense - m.head * BF16 - m.layers * (m.attention + m.expert) * FP8
         - len(c["engram_layer_ids"]) * m.engram_projection * FP8),
        ("state: windows, selected rows, index keys, Engram rows", m.state_bytes(context)))] + [["**sum**", f"**{gb(one)}**", ""]]),
        f"""

The context costs little: {", ".join(f"{m.state_bytes(n) / 1e6:.0f} MB at {n // 1024}k" for n in (1024, 8192, 65536, 131072, 1048576))} tokens; beyond 16k only
the scan of index keys grows ({(3 * m.index_row / 2 + m.index_row):.0f} bytes per token of context, in layers {", ".join(str(i) for i in c["kv_source_layer_ids"])}).

Rows of one step share the weights, but each brings its own experts. If rows pick experts at random (the worst case):

"""]
    rows = []
    for n in (1, 2, 4, 8, 16, 64):
        step = m.step_bytes(n, context)
        rows.append([str(n), f"{m.distinct(n):.1f}", gb(step)] + [f"{n * b * 1e9 / step:.1f}" for b in BANDWIDTHS])
    out += [table(["rows", "experts of a layer", "GB per step"] + [f"tokens/s at {b} GB/s" for b in BANDWIDTHS], rows), "\n\n", WHICH_BINDS, """## Drafting

The drafter proposes ℓ tokens, the model checks 1 + ℓ rows in one step, and drafting never changes an answer. Those rows bring their own experts,
which is what memory is short of: a check of 6 rows reads """, f"{m.step_bytes(6, context) / one:.2f}", """ times the bytes of one row, and the drafter's pass comes on top. So drafts pay only
as far as they are accepted. Acceptance per draft is taken as constant, fitted to the published tokens per step at ℓ = 5 (tests/spec/dspark).

"""]
    rows = []
    for name, tau in (("prose, 2.76", 2.76), ("GSM8K, 3.73", 3.73), ("code, 4.55", 4.55)):
        rate = rate_of(tau)
        gains = {n: accepted(rate, n) * one / (m.step_bytes(1 + n, context) + m.draft_bytes(n)) for n in range(1, 6)}
        best = max(gains, key=gains.get)
        rows.append([name, f"{rate:.2f}"] + [f"{gains[n]:.2f}" for n in range(1, 6)]
                    + [f"{max(1.0, gains[best]) * b * 1e9 / one:.1f}" for b in BANDWIDTHS])
    out += [table(["text, tokens per step at ℓ = 5", "accepted"] + [f"ℓ = {n}" for n in range(1, 6)] + [f"tokens/s at {b} GB/s" for b in BANDWIDTHS],
                  rows), f"""

The middle columns are speed against no drafts; the last ones take the best ℓ, or none. Without drafts: {", ".join(f"{b * 1e9 / one:.1f} tokens/s at {b} GB/s" for b in BANDWIDTHS)}.
Neighbouring tokens of a text choose more alike than at random, which moves the optimum to longer drafts; a machine with idle bandwidth for other rows moves
it to shorter ones.

## Mapped modes

The whole checkpoint has {m.totals()["experts, bytes"] / 2**30:.0f} GiB of routed experts and {sum(c["engram_num_embeddings"]) * m.engram_row_bytes / 2**30:.0f} GiB of Engram tables; all the rest, which every step reads, is {dense / 2**30:.1f} GiB.

**Engram tables** stay on disk always. A token touches {m.engram_rows} rows of {m.engram_row_bytes:.0f} bytes, each in a page of its own: {m.engram_rows * 4} KiB read at random, known as soon as the token is.
At a latency of 100 µs and 48 reads at once a drive delivers them in 0.1 ms (a drive of 100,000 reads per second: 0.5 ms). Layer 1 waits for the first half; before it lies layer 0, which takes
{", ".join(f"{(m.dense_bytes(0, 1, False) + m.expert_bytes(1, 1)) / b / 1e6:.1f} ms at {b} GB/s" for b in BANDWIDTHS)}. So the wait is hidden for a drive with the queue; over 1 M tokens of cold prompt it is {1e6 * m.engram_rows * 4096 / 1e9:.0f} GB of reads.

**`--experts mapped`** keeps the routed experts on disk. What of them fits in memory beside the rest is hit with the probability of its share (uniform choice; favourites make it better).
Tokens/s of one row, reads from the drive not overlapped with those from memory:

"""]
    rows = []
    for gib in (24, 64, 128, 256, 384):
        kept = min(1.0, max(0.0, (gib * 2**30 * 0.9 - dense) / m.totals()["experts, bytes"]))
        cells = []
        for drive in (3.5, 7, 14):
            cells.append(" / ".join(f"{1 / (one / (b * 1e9) + (1 - kept) * m.expert_bytes(1) / (drive * 1e9)):.2f}" for b in BANDWIDTHS))
        rows.append([f"{gib} GiB", f"{100 * kept:.0f} %"] + cells)
    out += [table(["memory", "experts in it"] + [f"drive of {d:g} GB/s" for d in (3.5, 7, 14)], rows), """

Each cell is for memory of """ + " / ".join(str(b) for b in BANDWIDTHS) + """ GB/s; 10 % of the memory is left to the system and the state. Without mapping: """
            + " / ".join(f"{b * 1e9 / one:.2f}" for b in BANDWIDTHS) + """.

## Prefill

A chunk of prompt rows reads the experts that any of its rows needs, which soon is all of them; only the encoder half (layers 0 to """
            + f"""{c["candidate_source_layer_id"] - 1}) runs for every row (decoder-tail skipping, docs/deepseek_v41.md). Tokens/s that the bytes allow:

"""]
    half = c["candidate_source_layer_id"]
    rows = []
    for n in (128, 512, 2048, 8192):
        size = m.dense_bytes(0, half, False) + m.expert_bytes(n, half)
        rows.append([str(n), f"{m.distinct(n):.0f}", gb(size)] + [f"{n * b * 1e9 / size:.0f}" for b in BANDWIDTHS])
    active = half * (m.attention + (m.top + 1) * m.expert + m.gate + m.mhc)
    tera = 2 * active / 1e12
    out += [table(["rows of a chunk", "experts of a layer", "GB per chunk"] + [f"tokens/s at {b} GB/s" for b in BANDWIDTHS], rows), f"""

Arithmetic binds first on a small machine: {2 * active / 1e9:.1f} GFLOP per prompt token are {0.46 / tera:.0f} tokens/s at 0.46 TFLOP/s of BF16 (two cores of Zen 4), {5 / tera:.0f} at 5, {20 / tera:.0f} at 20
(a socket with matrix units). A chunk should be long enough that its bytes take less time than its arithmetic: at 34 GB/s and 0.46 TFLOP/s from {next(n for n in (64, 128, 256, 512, 1024, 2048) if n * tera / 0.46 > (m.dense_bytes(0, half, False) + m.expert_bytes(n, half)) / 34e9)} rows on, at 460 GB/s and 20 TFLOP/s
from {next(n for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192) if n * tera / 20 > (m.dense_bytes(0, half, False) + m.expert_bytes(n, half)) / 460e9)}.
"""]
    return "".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, help="config.json of a checkpoint (nested or flat); default: the official dimensions")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--json", action="store_true", help="bytes per step for 1 to 16 rows as JSON")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--check", action="store_true", help="fail when that page is stale")
    args = parser.parse_args()
    config = {}
    if args.config:
        config = json.loads(args.config.read_text(encoding="utf-8"))
        config = {**config, **config.get("text_config", {})}
    model = Model(config)
    if args.json:
        print(json.dumps({**model.totals(), "dense bytes": model.dense_bytes(), "state bytes of a row": model.state_bytes(args.context),
                          "step bytes": {n: model.step_bytes(n, args.context) for n in (1, 2, 4, 8, 16)}}, indent=1))
        return 0
    text = page(model)
    if args.check:
        if PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE.relative_to(ROOT)} is stale: run bench/v41_roofline.py --write", file=sys.stderr)
            return 1
    elif args.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
