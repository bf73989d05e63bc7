"""Settings: defaults < file < environment < flags, with the origin of each."""
import json
import pathlib

import pytest

from program import ROOT, bad, good, run, tiny


def setting(output, key):
    entry = json.loads(output)[key]
    return entry["value"], entry["origin"]


def test_precedence_and_origin(tmp_path):
    file = tmp_path / "deepmint.toml"
    file.write_text("[cpu]\nthreads = 3\n\n[engine]\nmax_running = 5\nmax_waiting = 6\n")
    output = good("config", "--json", "--config", file, "--threads", "9",
                  env={"DEEPMINT_CPU_THREADS": "4", "DEEPMINT_ENGINE_MAX_RUNNING": "7"})
    assert setting(output, "cpu.threads") == ("9", "--threads")
    assert setting(output, "engine.max_running") == ("7", "DEEPMINT_ENGINE_MAX_RUNNING")
    assert setting(output, "engine.max_waiting") == ("6", f"{file}:6")
    assert setting(output, "engine.step_tokens")[1] == "default"
    table = good("config", "--config", file)
    assert f"({file}:2)" in table and table.count("\n") == len(json.loads(output))


def test_settings_reach_the_work(tmp_path):
    model = tiny(tmp_path / "m.gguf")
    file = tmp_path / "c.toml"
    file.write_text("[sampling]\nseed = 11\nmax_tokens = 2\ntemperature = 1.5\n[engine]\ncontext_tokens = 40\n[cpu]\nthreads = 1\n")

    def reply(*args, **kwargs):
        return json.loads(good("run", model, "--raw", "-p", "the", "--json", "--config", file, *args, **kwargs))

    first = reply()
    assert first["seed"] == 11 and first["threads"] == 1 and len(first["ids"]) <= 2
    assert reply("--seed", "12")["seed"] == 12
    assert reply(env={"DEEPMINT_SAMPLING_SEED": "13"})["seed"] == 13
    assert reply(env={"DEEPMINT_SAMPLING_SEED": ""})["seed"] == 11
    bad("run", model, "--ids", ",".join(["5"] * 41), "--config", file, says=["40"])


def test_wrong_files_and_variables(tmp_path):
    file = tmp_path / "c.toml"
    for text, says in [("[engine]\n\nmax_runing = 2\n", [":3:", '"engine.max_runing"', '"engine.max_running"']),
                       ("[sever]\nport = 1\n", [":1:", '"sever"', '"server"']),
                       ("[cpu]\nthreads = \"two\"\n", [":2:", "cpu.threads", "an integer"]),
                       ("[cpu]\nthreads = 2.5\n", [":2:", "2.5"]),
                       ("[server]\nport = 70000\n", [":2:", "65535"]),
                       ("[cpu\n", [":1:", "TOML"]),
                       ("\x00", [":1:", "TOML"])]:
        file.write_text(text)
        bad("config", "--config", file, says=["c.toml", *says])
    bad("config", "--config", tmp_path / "none.toml", says=["none.toml"])
    bad("config", "--config", tmp_path, says=[tmp_path.name])
    bad("config", env={"DEEPMINT_CPU_THREAD": "2"}, says=['"DEEPMINT_CPU_THREAD"', '"DEEPMINT_CPU_THREADS"'])
    bad("config", env={"DEEPMINT_CPU_THREADS": "two"}, says=["DEEPMINT_CPU_THREADS", "two"])
    assert run("config", env={"DEEPMINT_TEST_ANYTHING": "1"}).returncode == 0


def test_knobs_page_is_fresh():
    assert good("config", "--markdown") == (ROOT / "docs/knobs.md").read_text()


def test_help_prints_every_setting_with_its_default():
    settings = json.loads(good("config", "--json"))
    page = good("config", "--help")
    for key, entry in settings.items():
        assert f"[{entry['default'] or 'empty'}]" in page, key
    for command in ("run", "chat", "serve", "score", "bench", "inspect", "synth", "tokenize", "detokenize", "encode", "decode", "config"):
        assert f"usage: deepmint {command}" in good(command, "--help")
        assert f"  {command} " in good("--help")


@pytest.mark.parametrize("name", ["docs/cli.md"])
def test_the_manual_names_every_command_and_option(name):
    text = pathlib.Path(ROOT / name).read_text()
    for command in ("run", "chat", "serve", "score", "bench", "inspect", "synth", "tokenize", "detokenize", "encode", "decode", "config"):
        assert f"## {command}" in text
        own = good(command, "--help").split("\n\n")
        for block in own:
            title = block.split("\n")[0]
            if title in ("Prompt", "Reply", "Conversation", "Text", "Codec", "Output", "Measurements", "Model", "Checkpoint", "Approximations"):
                for line in block.split("\n")[1:]:
                    for word in line[:34].replace(",", " ").split():
                        if word.startswith("--"):
                            assert word in text, (command, word)
