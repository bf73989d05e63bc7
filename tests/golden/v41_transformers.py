#!/usr/bin/env python3
"""Golden logits of DeepSeek-V4.1 by others: tests/golden/v41_transformers.safetensors, made once and read by v41_golden_test.

    python3 tests/golden/v41_transformers.py tests/golden/v41_transformers.safetensors

Needs torch (run on the CPU) and a `transformers` that has models/deepseek_v41; what was used, and what the file holds, stands in
v41_transformers.md beside it. The checkpoint is the specification's random one (tests/spec/model/oracle.py) with another
configuration: every role of a layer, and prompts longer than the window, the top-k and the candidate pool. Its weights are
expanded (codes times scales, exact in float32) and given to the published model under the published names.

Three runs of that one model:
  published  as it is, in float32: no activation is quantised for a linear, and nothing is rounded to bfloat16.
  rounded    the same modules in float64, with the roundings of the released checkpoint's own arithmetic put between them by
             wrappers: FP8 activations (blocks of 32) in front of FP8 and FP4 linears, bfloat16 behind linears, norms,
             rotations, attention, hyper-connections and experts, softmax weights in bfloat16; and of equal scores the lower
             index wins, which torch.topk leaves open. Structure, masks, selection, hashing and caches stay theirs.
  forced     as `rounded`, and every sublayer is given the residual stream that the specification's oracle has there. A random
             model turns one flipped FP8 code into other choices some layers on; here a difference stays where it arises.
"""
import hashlib
import importlib
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "spec/model"))
import oracle  # noqa: E402

published = importlib.import_module("transformers.models.deepseek_v41.modeling_deepseek_v41")

CONFIG = dict(oracle.TINY, layers=12, window=128, ratios=[0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1], kv_src=[2, 4, 6],
              idx_src=[2, 4, 6, 8, 10], cand_layer=6, itopk=16, cand_blocks=8, cand_size=4)
LENGTHS = (201, 150, 7)
LOGIT_ROWS = ((0, 1, 17, 40, 63, 64, 90, 127, 128, 129, 140, 155, 160, 177, 190, 199, 200), (33, 100, 128, 131, 149), (2, 6))
TAPPED_ROWS = ((31, 64, 127, 128, 160, 200), (101, 149), (0, 6))


class ByteTokenizer:
    """Makes the published token map come out as `id mod n`, which is what the specification's random checkpoints use."""

    def __init__(self, vocab, classes):
        self.vocab, self.classes, self.backend_tokenizer = vocab, classes, self

    def __len__(self):
        return self.vocab

    def decode(self, ids, skip_special_tokens):
        return f"class{ids[0] % self.classes}"


def build(values):
    text = dict(oracle.tiny_config(CONFIG)["text_config"])
    # Two fields have other names there. A `type` in rope_scaling is ignored with a warning and YaRN is then off.
    text["engram_pad_id"] = text.pop("engram_pad_token_id")
    text["rope_scaling"] = {"rope_type": text["rope_scaling"].pop("type"), **text["rope_scaling"]}
    config = published.DeepseekV41TextConfig(**text, attn_implementation="eager", dspark_noise_token_id=0)
    model = published.DeepseekV41ForCausalLM(config).eval()
    state = {("lm_head" + name[4:] if name.startswith("head.") else "model." + name): torch.from_numpy(value.copy())
             for name, value in values.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    # No scale of a table that is loaded as floats is used, and there are no images.
    assert not unexpected and all(n.endswith(("gate.bias_vl", "engram.embed.scale")) for n in missing), (missing, unexpected)
    model.model.bind_tokenizer(ByteTokenizer(CONFIG["vocab"], CONFIG["cvocab"]))
    return model


def bf16(x):
    return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)


def put_roundings(model):
    """Wraps the modules and functions of `model` so that values are rounded where the checkpoint's own arithmetic rounds."""
    def quantised_in(_, args):
        return (published._fake_quant_fp8_block(bf16(args[0])),) + args[1:]

    def rounded_in(_, args):
        return (bf16(args[0]),) + args[1:]

    def rounded_out(_, args, out):
        return bf16(out)

    for name, module in model.named_modules():
        if isinstance(module, published.DeepseekV41GroupedLinear):       # wo_a: bfloat16 activations
            module.register_forward_hook(rounded_out)
        elif isinstance(module, torch.nn.Linear) and name != "lm_head":
            if not name.endswith(("weights_proj", "wk", "compressor.wkv", "compressor.wgate")):
                module.register_forward_pre_hook(quantised_in)
            module.register_forward_hook(rounded_out)
        elif isinstance(module, published.DeepseekV41RMSNorm):
            if name.endswith("compressor.norm"):                         # the pooled latent
                module.register_forward_pre_hook(rounded_in)
            module.register_forward_hook(rounded_out)
        elif isinstance(module, (published.DeepseekV41SparseMoeBlock, published.DeepseekV41Engram)):
            module.register_forward_hook(rounded_out)

    rotate = published.apply_rotary_pos_emb
    published.apply_rotary_pos_emb = lambda *a, **k: bf16(rotate(*a, **k))
    layer = published.DeepseekV41DecoderLayer
    collapse, expand = layer.hc_collapse, layer.hc_expand
    layer.hc_collapse = staticmethod(lambda *a: bf16(collapse(*a)))
    layer.hc_expand = staticmethod(lambda *a: bf16(expand(*a)))

    def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
        # As published, but the weights of the values are rounded relative to the largest score, before the division.
        scores = (torch.matmul(query, key.transpose(2, 3)).float() * scaling + attention_mask.float()).double()
        top = scores.max(dim=-1, keepdim=True).values
        weights = torch.exp(scores - top).float().double()
        total = weights.sum(-1, keepdim=True) + torch.exp(module.attn_sink.reshape(1, -1, 1, 1).double() - top)
        out = torch.matmul(bf16(weights), value) / total
        return bf16(out).transpose(1, 2).contiguous(), None

    published.eager_attention_forward = attention

    def first_of_equals(x, k, dim=-1, sorted=True):
        """torch.topk leaves open which of equal scores it takes (scores of exactly 0 are common): the lower index here."""
        order = torch.sort(x, dim=dim, descending=True, stable=True)
        return torch.return_types.topk((order.values.narrow(dim, 0, k), order.indices.narrow(dim, 0, k)))
    torch.Tensor.topk = first_of_equals


class Oracle(oracle.Tiny):
    """The specification's oracle, remembering the residual stream behind every sublayer."""

    def __init__(self, checkpoint):
        super().__init__(checkpoint, CONFIG)
        self.streams, self.added = [], {}

    def forward(self, tokens):
        expand = oracle.expand

        def remember(*args):
            self.streams.append(expand(*args))
            return self.streams[-1]
        oracle.expand = remember
        try:
            return super().forward(tokens)
        finally:
            oracle.expand = expand

    def engram(self, i, *args):
        self.added[f"{i}.engram"] = super().engram(i, *args)
        self.streams.append(self.added[f"{i}.engram"])
        return self.streams[-1]

    def attn(self, i, *args):
        self.added[f"{i}.attn"] = super().attn(i, *args)
        return self.added[f"{i}.attn"]

    def moe(self, i, u):
        y = super().moe(i, u)
        self.added.setdefault(f"{i}.moe", []).append(y)
        return y


class Force:
    """Hands the oracle's stream on behind each sublayer, in the order in which they run, whatever came out."""

    def __init__(self, model, streams):
        self.streams = iter(streams)
        layer = published.DeepseekV41DecoderLayer
        self.layer, self.expand = layer, layer.hc_expand
        layer.hc_expand = staticmethod(lambda *a: self.next(self.expand(*a)))
        self.hooks = [module.register_forward_hook(lambda m, a, out: self.next(out)) for module in model.modules()
                      if isinstance(module, published.DeepseekV41Engram)]

    def next(self, theirs):
        return torch.from_numpy(next(self.streams).copy()).to(theirs.dtype).reshape(theirs.shape)

    def done(self):
        assert next(self.streams, None) is None
        self.layer.hc_expand = staticmethod(self.expand)
        for hook in self.hooks:
            hook.remove()


def tap(model, store, rows):
    """Keeps what each sublayer adds, of the given rows, under the names that our model's taps use."""
    def keep(name, width):
        def hook(_, args, out):
            out = out[0] if isinstance(out, tuple) else out
            store[name] = out.reshape(-1, width)[list(rows)].to(torch.bfloat16).contiguous()
        return hook
    hidden, handles = CONFIG["hidden"], []
    for i, layer in enumerate(model.model.layers):
        handles.append(layer.attn.register_forward_hook(keep(f"{i}.attn", hidden)))
        handles.append(layer.ffn.register_forward_hook(keep(f"{i}.moe", hidden)))
        if layer.engram is not None:
            handles.append(layer.engram.register_forward_hook(keep(f"{i}.engram", CONFIG["hc"] * hidden)))
    handles.append(model.model.norm.register_forward_hook(keep(f"{CONFIG['layers']}.norm", hidden)))
    return handles


def run(model, prompt):
    # With the published cache: without one, the model appends the global rows of a layer's source to those of earlier sources.
    window = CONFIG["window"]
    cache = DynamicCache()
    cache.layers = [published.DeepseekV41CSACache(model.config) if i in CONFIG["kv_src"] else DynamicSlidingWindowLayer(window)
                    for i in range(CONFIG["layers"])]
    model.model.engram_hash_state.history = None
    with torch.no_grad():
        return model(torch.tensor([prompt]), past_key_values=cache, use_cache=True).logits[0]


def keep_selection(model, store, rows):
    """Keeps which rows and blocks the last index source chose for the given queries (-1 where there are fewer)."""
    def hook(_, args, out):
        shared = args[4]
        chosen = shared["topk_bias"][0, 0, list(rows)] == 0
        blocks = shared["candidates"][0, list(rows)]
        blocks = F.pad(blocks, (0, -blocks.shape[-1] % CONFIG["cand_size"])).unflatten(-1, (-1, CONFIG["cand_size"])).any(-1)
        for name, mask, width in (("selected", chosen, CONFIG["itopk"]), ("blocks", blocks, CONFIG["cand_blocks"])):
            lists = [torch.nonzero(row)[:, 0].tolist() for row in mask]
            store[name] = torch.tensor([x + [-1] * (width - len(x)) for x in lists], dtype=torch.int32)
    return model.model.layers[-1].register_forward_hook(hook)


def compare(k, name, ours, theirs):
    """One line of what the report in v41_transformers.md is written from."""
    ours = torch.from_numpy(oracle.np.asarray(ours, dtype="float32")).reshape(theirs.shape)
    theirs = theirs.float()
    off = (ours - theirs).abs()
    print(f"prompt {k} {name:12} rms {theirs.square().mean().sqrt():.4f}  unequal {(off > 0).float().mean():.5f}  "
          f"rms difference {off.square().mean().sqrt():.2e}  largest {off.max():.2e}")


def main():
    torch.manual_seed(0)
    checkpoint = oracle.make_tiny(CONFIG)
    data = hashlib.sha256(b"".join(raw[2] for raw in checkpoint.raw.values())).hexdigest()
    model = build(checkpoint.val)
    prompts = [[int(x) for x in oracle.np.floor(oracle.rnd(f"prompt.{n}", n) * CONFIG["vocab"])] for n in LENGTHS]
    out, oracles, ours = {}, [], []
    for prompt in prompts:
        oracles.append(Oracle(checkpoint))
        ours.append(oracles[-1].forward(prompt))
    for which in ("published", "rounded", "forced"):
        if which == "rounded":
            model = model.double()
            put_roundings(model)
        for k, prompt in enumerate(prompts):
            taps, everywhere, handles, force = {}, {}, [], None
            if which == "forced":
                handles = tap(model, everywhere, range(len(prompt))) + [keep_selection(model, taps, TAPPED_ROWS[k])]
                force = Force(model, oracles[k].streams)
            logits = run(model, prompt)
            compare(k, which, ours[k], logits)
            for h in handles:
                h.remove()
            for name, value in everywhere.items():
                if name in oracles[k].added:
                    compare(k, name, oracles[k].added[name], value)
                taps[f"tap.{name}"] = value[list(TAPPED_ROWS[k])].contiguous()
            if force:
                force.done()
            two = logits.float().topk(2, dim=-1)
            out[f"{which}.{k}.logits"] = logits[list(LOGIT_ROWS[k])].float().contiguous()
            out[f"{which}.{k}.argmax"] = two.indices[:, 0].to(torch.int32).contiguous()
            out[f"{which}.{k}.margin"] = (two.values[:, 0] - two.values[:, 1]).contiguous()
            out.update({f"{which}.{k}.{name}": value for name, value in taps.items()})
    for k, prompt in enumerate(prompts):
        out[f"{k}.prompt"] = torch.tensor(prompt, dtype=torch.int32)
        out[f"{k}.logit_rows"] = torch.tensor(LOGIT_ROWS[k], dtype=torch.int32)
        out[f"{k}.tapped_rows"] = torch.tensor(TAPPED_ROWS[k], dtype=torch.int32)
    save_file(out, sys.argv[1], metadata={"config": json.dumps(oracle.tiny_config(CONFIG)), "sha256": data,
                                          "made with": f"transformers {transformers.__version__}, torch {torch.__version__}"})


if __name__ == "__main__":
    main()
