"""The roofline page follows from the dimensions, and its counts are the specification's."""
import json
import subprocess
import sys

from program import ROOT

SCRIPT = ROOT / "bench/v41_roofline.py"


def run(*args):
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True)


def test_the_page_is_not_stale():
    done = run("--check")
    assert done.returncode == 0, done.stderr


def test_counts_are_those_of_the_specification():
    counts = json.loads(run("--json").stdout)
    # tests/spec/model.md 1.3, which also counts per layer two norms of 5120, 1280 + 512 for q and kv, 64 sinks.
    assert counts["attention"] + 1280 + 512 + 64 == 126_617_408
    assert counts["expert"] == 35_389_440
    assert counts["engram tables"] == 196_613_849_600
    assert abs(counts["backbone"] / 551_566_180_464 - 1) < 1e-5


def test_another_config_counts_its_own_dimensions(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": {"hidden_size": 2560}}))
    counts = json.loads(run("--config", str(path), "--json").stdout)
    assert counts["expert"] == 35_389_440 // 2
