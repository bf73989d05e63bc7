"""Servers that several end-to-end tests share."""
import os

import pytest

from program import Server, smollm2, tiny

# Needs packages that only the full run installs.
collect_ignore = [] if os.environ.get("DEEPMINT_TEST_FULL") == "1" else ["test_grammar_peers.py"]


@pytest.fixture(scope="session")
def server():
    """deepmint serve on SmolLM2, with its ordinary settings."""
    with Server(smollm2()) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("model") / "tiny-model.gguf")
