"""DeepSeek-V4.1 checkpoints through the program, against the specification's oracle."""
import json
import math
import os
import resource
import struct
import subprocess

import pytest

from program import ROOT, bad, good, run, tiny

SPEC = ROOT / "tests/spec/model"
EXPECTED = json.loads((SPEC / "tiny/expected.json").read_text())
# The oracle needs NumPy, which comes with the distribution's Python.
ORACLE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, oracle
ids = json.loads(sys.argv[2])
logits = np.asarray(oracle.Tiny(oracle.make_tiny()).forward(ids), np.float64)
top = logits.max(-1, keepdims=True)
logp = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
print(json.dumps([float(logp[i, ids[i + 1]]) for i in range(len(ids) - 1)]))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("v41") / "tiny"
    assert good("synth", "--preset", "tiny", folder) == ""
    return folder


def comma(ids):
    return ",".join(map(str, ids))


def ulps(a, b):
    def key(x):
        i = struct.unpack("<i", struct.pack("<f", x))[0]
        return i if i >= 0 else -(i & 0x7FFFFFFF)
    return abs(key(a) - key(b))


def log_softmax(row):
    top = max(row)
    total = math.log(math.fsum(math.exp(x - top) for x in row))
    return [x - top - total for x in row]


def test_score_prints_the_oracles_log_probabilities(checkpoint):
    ids = EXPECTED["prompt"][:48]
    got = json.loads(good("score", checkpoint, "--arithmetic", "reference", "--ids", comma(ids), "--json"))
    want = json.loads(subprocess.run(["/usr/bin/python3", "-c", ORACLE, str(SPEC), json.dumps(ids)],
                                     capture_output=True, text=True, check=True).stdout)
    assert got["logprobs"][0] is None and len(got["logprobs"]) == len(ids)
    for mine, oracle in zip(got["logprobs"][1:], want):
        assert ulps(mine, oracle) <= 1, (mine, oracle)


def test_score_writes_the_oracles_logits(checkpoint, tmp_path):
    ids = EXPECTED["prompt"]
    file = tmp_path / "logits.f32"
    table = good("score", checkpoint, "--arithmetic", "reference", "--ids", comma(ids), "--logits", file)
    values = struct.unpack(f"<{len(ids) * 512}f", file.read_bytes())
    rows = [values[i * 512:(i + 1) * 512] for i in range(len(ids))]
    assert [max(range(512), key=row.__getitem__) for row in rows] == EXPECTED["argmax_per_position"]
    for mine, oracle in zip(rows[-1], EXPECTED["prefill_last_logits"]):
        assert ulps(mine, oracle) <= 1, (mine, oracle)
    # The table says what follows from the logits.
    for i, line in enumerate(table.splitlines()[1:len(ids)]):
        token, logprob = line.split()
        assert int(token) == ids[i + 1]
        assert float(logprob) == pytest.approx(log_softmax(rows[i])[ids[i + 1]], abs=1e-5)


def test_run_prints_the_oracles_greedy_tokens(checkpoint):
    out = good("run", checkpoint, "--arithmetic", "reference", "--ids", comma(EXPECTED["prompt"]), "--temperature", "0",
               "--max-tokens", "12")
    assert list(map(int, out.split())) == EXPECTED["greedy_tokens"]


@pytest.mark.parametrize("flags", [[], ["--threads", "1"], ["--experts", "mapped"], ["--experts", "resident"],
                                   ["--step-tokens", "7", "--max-running", "1"]])
def test_the_answer_does_not_depend_on_how_it_is_computed(checkpoint, flags):
    args = ["run", checkpoint, "--ids", comma(EXPECTED["prompt"][:70]), "--seed", "11", "--max-tokens", "20"]
    assert good(*args, *flags) == good(*args)


def test_another_seed_is_another_checkpoint_of_the_same_shapes(checkpoint, tmp_path):
    good("synth", "--preset", "tiny", "--seed", "7", tmp_path / "a")
    good("synth", "--preset", "tiny", "--seed", "7", tmp_path / "b")
    a, b, first = ((folder / "model.safetensors").read_bytes() for folder in (tmp_path / "a", tmp_path / "b", checkpoint))
    assert a == b and a != first and len(a) == len(first)
    tensors = [json.loads(good("inspect", folder, "--json"))["tensors"] for folder in (checkpoint, tmp_path / "a")]
    assert tensors[0] == tensors[1]


def test_another_vocabulary_for_another_tokenizer(tmp_path):
    good("synth", "--preset", "tiny", "--vocab", "129280", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["text_config"]["vocab_size"] == 129280
    out = good("run", tmp_path, "--ids", "0,129279,7", "--temperature", "0", "--max-tokens", "3")
    assert all(0 <= int(token) < 129280 for token in out.split())
    bad("run", tmp_path, "--ids", "129264", says=["--ids[0]: expected a text token, found image token 129264"])


def test_the_flat_configuration_works_too(checkpoint, tmp_path):
    nested = json.loads((checkpoint / "config.json").read_text())
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "qk_rope_head_dim": "rope_head_dim",
             "moe_intermediate_size": "moe_inter_dim", "num_experts_per_tok": "n_activated_experts", "scoring_func": "score_func",
             "routed_scaling_factor": "route_scale", "rms_norm_eps": "norm_eps", "sliding_window": "window_size",
             "kv_source_layer_ids": "kv_source_layers", "index_source_layer_ids": "index_source_layers"}
    flat = {}
    for key, value in nested["text_config"].items():
        if key == "rope_scaling":
            flat |= {"rope_factor": value["factor"], "beta_fast": value["beta_fast"], "beta_slow": value["beta_slow"],
                     "original_seq_len": value["original_max_position_embeddings"]}
        elif key != "model_type":
            flat[names.get(key, key)] = value
    flat["x_engram_map"] = nested["x_engram_map"]
    (tmp_path / "config.json").write_text(json.dumps(flat))
    (tmp_path / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    args = ["--ids", "5,6,7,8,9", "--temperature", "0", "--max-tokens", "8"]
    assert good("run", tmp_path, *args) == good("run", checkpoint, *args)


def changed(checkpoint, folder, change):
    config = json.loads((checkpoint / "config.json").read_text())
    change(config)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    return folder


def test_wrong_use_is_one_clear_line(checkpoint, tmp_path):
    bad("synth", "--preset", "tiny", checkpoint, says=["expected a folder without a checkpoint", "found"])
    bad("synth", "--preset", "small", tmp_path / "x", says=["--preset", "tiny, bench or official", '"small"'])
    bad("synth", "--sparse", tmp_path / "x", says=["--sparse"])
    bad("synth", "--seed", "-1", tmp_path / "x", says=["--seed"])
    bad("synth", "--vocab", "15", tmp_path / "x", says=["--vocab", "16", "15"])
    bad("synth", "--preset", "official", "--vocab", "1000", tmp_path / "x", says=["--vocab", "tiny or bench"])
    bad("run", checkpoint, "-p", "hello", says=["tokenizer", "--ids"])
    bad("chat", checkpoint, says=["tokenizer"])
    served = run("serve", checkpoint, env={"DEEPMINT_LOG_LEVEL": "error"})
    assert served.returncode == 2 and served.stdout == "" and "tokenizer" in served.stderr
    bad("score", checkpoint, "--ids", "1,512", says=["--ids[1]", "512"])
    bad("score", checkpoint, "--arithmetic", "exact", "--ids", "1,2", says=["--arithmetic", "reference"])
    folder = changed(checkpoint, tmp_path / "images", lambda c: c.__setitem__("image_token_id", 5))
    for command in ("run", "score"):
        bad(command, folder, "--ids", "1,5,6", says=["--ids[1]: expected a text token, found image token 5"])
    good("run", folder, "--ids", "1,4", "--max-tokens", "1")
    folder = changed(checkpoint, tmp_path / "no_map", lambda c: c.pop("x_engram_map"))
    bad("run", folder, "--ids", "1", says=["tokenizer", "x_engram_map", "config.json"])
    folder = changed(checkpoint, tmp_path / "ratio", lambda c: c["text_config"]["compress_ratios"].__setitem__(3, 4))
    bad("run", folder, "--ids", "1", says=["compress_ratios", "expected", "found 4"])


def test_arithmetic_is_a_choice_of_this_family_only(tmp_path):
    model = tiny(tmp_path / "dense.gguf")
    bad("score", model, "--arithmetic", "reference", "--ids", "1,2", says=["--arithmetic", "DeepSeek-V4.1"])


def test_inspect_knows_the_tensors_and_reads_the_numbers(checkpoint, tmp_path):
    for flags in ([], ["--verify"]):
        assert "whole: the 1166 tensors are those of DeepseekV41ForCausalLM, each with its shape" in good("inspect", checkpoint, *flags)
    data = bytearray((checkpoint / "model.safetensors").read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    begin, _ = json.loads(data[8:8 + size])["layers.3.ffn.experts.5.w1.scale"]["data_offsets"]
    data[8 + size + begin + 6] = 255
    (tmp_path / "model.safetensors").write_bytes(data)
    (tmp_path / "config.json").symlink_to(checkpoint / "config.json")
    assert json.loads(good("inspect", tmp_path, "--json"))["whole"] is True
    damaged = run("inspect", tmp_path, "--verify")
    assert damaged.returncode == 2
    for text in (damaged.stdout, damaged.stderr):
        assert 'tensor "layers.3.ffn.experts.5.w1.scale"' in text and "a NaN in row 1, column 2" in text
    bad("run", tmp_path, "--ids", "1", "--experts", "resident", says=["layers.3.ffn.experts.5.w1.scale", "NaN"])
    folder = changed(checkpoint, tmp_path / "other", lambda c: c["text_config"].__setitem__("n_routed_experts", 15))
    assert "layers.0.ffn.gate.weight" in run("inspect", folder).stderr


if os.environ.get("DEEPMINT_TEST_FULL") == "1":  # writes 3.2 GB and reads 10 GB

    def test_a_step_at_official_dimensions(tmp_path):
        folder = tmp_path / "official"
        good("synth", "--preset", "official", "--sparse", folder, timeout=600)
        report = json.loads(good("inspect", folder, "--json"))
        assert report["whole"] and report["checked_tensors"]
        assert report["totals"]["tensors"] == 96085 and report["totals"]["bytes"] == 510286023000
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = good("run", folder, "--ids", "7", "--temperature", "0", "--max-tokens", "1", "--ctx", "1024", "--experts", "mapped", timeout=600)
        assert 0 <= int(out) < 129280
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Of the processor: what the disk takes is the machine's (10 GB are read).
        assert used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime < 60
        assert used.ru_maxrss < 24 << 20  # KiB
